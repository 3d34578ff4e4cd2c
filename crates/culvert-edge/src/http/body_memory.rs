//! Memory for bodies that are buffered as a whole. All exchanges share a limited amount, and each connection counts
//! its share.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use culvert_http::http1::Violation;
use culvert_policy::problem::Problem;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::conn_state::ConnState;

/// How long buffering a body may take.
pub(crate) const BUFFERED_WITHIN: Duration = Duration::from_secs(60);

/// The memory that a body occupies, until this is dropped.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    /// Weak, because the upstream's task may keep a body a little longer than the client's connection is open.
    conn: Weak<ConnState>,
    bodies: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

/// The memory for buffered bodies is full.
#[derive(Debug)]
pub(crate) struct BodyMemoryFull;

impl BodyReservation {
    /// An empty reservation for a body on this connection.
    pub(crate) fn new(conn: &Arc<ConnState>) -> Self {
        Self {
            conn: Arc::downgrade(conn),
            bodies: Arc::clone(&conn.edge.bodies),
            taken: None,
        }
    }

    /// Reserves further bytes.
    ///
    /// # Errors
    ///
    /// When the memory is full.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), BodyMemoryFull> {
        let permits = u32::try_from(bytes).map_err(|_| BodyMemoryFull)?;
        let permit = Arc::clone(&self.bodies).try_acquire_many_owned(permits);
        let permit = permit.map_err(|_| BodyMemoryFull)?;
        match &mut self.taken {
            Some(taken) => taken.merge(permit),
            none => *none = Some(permit),
        }
        if let Some(conn) = self.conn.upgrade() {
            conn.counters.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        if let (Some(conn), Some(taken)) = (self.conn.upgrade(), &self.taken) {
            let bytes = taken.num_permits();
            conn.counters.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// Why a body was not buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotBuffered {
    /// It exceeds the limit of its reader.
    TooLong,
    /// The memory for buffered bodies is full.
    MemoryFull,
    /// It did not arrive in time.
    TooSlow,
    /// Its sender aborted it.
    Broken,
}

impl NotBuffered {
    /// The problem that the client gets for its request's body. `None` if the client aborted it.
    pub(crate) fn problem(self) -> Option<Problem> {
        match self {
            Self::TooLong => Some(Problem::BodyTooLong),
            Self::MemoryFull => Some(Problem::NoRoom),
            Self::TooSlow => Some(Problem::Violation(Violation::TooSlow)),
            Self::Broken => None,
        }
    }
}

impl From<BodyMemoryFull> for NotBuffered {
    fn from(_: BodyMemoryFull) -> Self {
        Self::MemoryFull
    }
}
