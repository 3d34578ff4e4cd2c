//! Memory of delivered batches, for the next ones.

use std::sync::{Mutex, MutexGuard};

use crate::batch::Batch;

/// Buffers kept for the next batches.
const SPARE_MAX: usize = 4;

/// Buffers of batches that were delivered, for the next ones while there is much to write.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(Mutex<Vec<Vec<u8>>>);

impl BufferPool {
    /// Keeps the batch's memory, if it was the last to have it.
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
