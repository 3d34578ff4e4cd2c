//! Memory for bodies that are read whole before they go on. All exchanges share a limited amount, and of
//! each connection is known what its own take of it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::downstream::Downstream;

/// What a body takes of that memory, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    /// Weak, since a body may be the upstream's a moment longer than the client's connection is open.
    down: Weak<Downstream>,
    bodies: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

/// Too many bodies are held at once.
#[derive(Debug)]
pub(crate) struct NoRoom;

impl Room {
    /// For a body of an exchange on this connection. Nothing yet.
    pub(crate) fn new(down: &Arc<Downstream>) -> Self {
        Self {
            down: Arc::downgrade(down),
            bodies: Arc::clone(&down.edge.bodies),
            taken: None,
        }
    }

    /// Takes so many bytes more.
    ///
    /// # Errors
    ///
    /// When there are not as many.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let permits = u32::try_from(bytes).map_err(|_| NoRoom)?;
        let permit = Arc::clone(&self.bodies).try_acquire_many_owned(permits);
        let permit = permit.map_err(|_| NoRoom)?;
        match &mut self.taken {
            Some(taken) => taken.merge(permit),
            none => *none = Some(permit),
        }
        if let Some(down) = self.down.upgrade() {
            down.counters.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let (Some(down), Some(taken)) = (self.down.upgrade(), &self.taken) {
            let bytes = taken.num_permits();
            down.counters.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}
