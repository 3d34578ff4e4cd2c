//! Batches of events as the queue that stores them and the destinations that take them both name them.

use std::time::Duration;

/// The class of a batch; each destination has a queue for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BatchClass {
    /// Audit events: changes of resources.
    Audit,
    /// Traffic events: HTTP requests and connections.
    Traffic,
}

impl BatchClass {
    /// `audit` or `traffic`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Audit => "audit",
            Self::Traffic => "traffic",
        }
    }
}

/// The content of a batch, opaque to the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The bytes as stored.
    pub stored: Vec<u8>,
    /// Its size towards limits, however it is stored.
    pub bytes: u64,
}

/// When several batches are taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gathering {
    /// Maximum bytes of the batches; one batch is always taken.
    pub bytes_max: u64,
    /// They are taken when there are more bytes, or when the first batch is this old.
    pub age_max: Duration,
}
