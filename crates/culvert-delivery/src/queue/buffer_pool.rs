//! Memory of delivered batches, for the next ones.

use culvert_target::batch::Batch;

use std::sync::{Mutex, MutexGuard};

/// Maximum number of buffers in the pool.
const SPARE_MAX: usize = 4;

/// Buffers of delivered batches, reused for new ones.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(Mutex<Vec<Vec<u8>>>);

impl BufferPool {
    /// Returns the batch's buffer, if it has no other owner.
    pub(crate) fn put(&self, batch: Batch) {
        if let Some(buffer) = batch.into_buffer() {
            let mut buffers = self.lock();
            if buffers.len() < SPARE_MAX {
                buffers.push(buffer);
            }
        }
    }

    pub(crate) fn take(&self) -> Vec<u8> {
        self.lock().pop().unwrap_or_default()
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
