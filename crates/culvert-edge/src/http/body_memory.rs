//! Memory for bodies that are read whole before they go on. All exchanges share a limited amount, and of
//! each connection is known what its own take of it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use culvert_http::http1::Violation;
use culvert_policy::problem::Problem;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::conn_state::ConnState;

/// How long buffering a body may take.
pub(crate) const BUFFERED_WITHIN: Duration = Duration::from_secs(60);

/// What a body takes of that memory, until this is dropped.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    /// Weak, since a body may be the upstream's a moment longer than the client's connection is open.
    conn: Weak<ConnState>,
    bodies: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

/// Too many are held already.
#[derive(Debug)]
pub(crate) struct BodyMemoryFull;

impl BodyReservation {
    /// For a body of an exchange on this connection. Nothing yet.
    pub(crate) fn new(conn: &Arc<ConnState>) -> Self {
        Self {
            conn: Arc::downgrade(conn),
            bodies: Arc::clone(&conn.edge.bodies),
            taken: None,
        }
    }

    /// Takes so many bytes more.
    ///
    /// # Errors
    ///
    /// When there are not as many.
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

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotBuffered {
    /// It is longer than its reader takes.
    TooLong,
    /// Too many bodies are held at once.
    MemoryFull,
    /// It did not come in time.
    TooSlow,
    /// Its sender broke off.
    Broken,
}

impl NotBuffered {
    /// What the client is told of its request's body. `None` where it broke off: it is not there.
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
