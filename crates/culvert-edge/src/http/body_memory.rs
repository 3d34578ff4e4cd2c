//! Memory for bodies that are buffered as a whole. All exchanges use a limited amount, of which each endpoint and each
//! owner has a share, and each connection counts what it uses.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use culvert_base::{FairPermit, FairPermits, Share};
use culvert_http::http1::Violation;
use culvert_policy::problem::Problem;

use crate::connection::conn_state::ConnState;

/// How long buffering a body may take.
pub(crate) const BUFFERED_WITHIN: Duration = Duration::from_secs(60);

/// The memory that a body occupies, until this is dropped.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    /// Weak, because the upstream's task may keep a body a little longer than the client's connection is open.
    conn: Weak<ConnState>,
    bodies: FairPermits,
    share: Share,
    taken: Option<FairPermit>,
}

/// The memory for buffered bodies, or the share of the endpoint or of its owner, is full.
#[derive(Debug)]
pub(crate) struct BodyMemoryFull;

impl BodyReservation {
    /// An empty reservation for a body on this connection.
    pub(crate) fn new(conn: &Arc<ConnState>, share: Share) -> Self {
        Self {
            conn: Arc::downgrade(conn),
            bodies: conn.edge.bodies.clone(),
            share,
            taken: None,
        }
    }

    /// Reserves further bytes.
    ///
    /// # Errors
    ///
    /// When the memory is full.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), BodyMemoryFull> {
        match &mut self.taken {
            Some(taken) => taken.grow(bytes).map_err(|_| BodyMemoryFull)?,
            none => {
                let taken = self.bodies.try_acquire_many(self.share, bytes);
                *none = Some(taken.map_err(|_| BodyMemoryFull)?);
            }
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
            let bytes = taken.count();
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
    /// It cannot be decoded.
    Coding,
}

impl NotBuffered {
    /// The problem that the client gets for its request's body. `None` if the client aborted it.
    pub(crate) fn problem(self) -> Option<Problem> {
        match self {
            Self::TooLong => Some(Problem::BodyTooLong),
            Self::MemoryFull => Some(Problem::NoRoom),
            Self::TooSlow => Some(Problem::Violation(Violation::TooSlow)),
            Self::Broken => None,
            Self::Coding => Some(Problem::malformed(
                "the coding of the body is unknown or wrong",
            )),
        }
    }
}

impl From<BodyMemoryFull> for NotBuffered {
    fn from(_: BodyMemoryFull) -> Self {
        Self::MemoryFull
    }
}
