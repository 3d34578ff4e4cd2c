//! What the queue that stores batches of events and the destinations that get them both name.

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

/// When several batches become one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gathering {
    /// Maximum bytes of the batches; the first one always belongs to it.
    pub bytes_max: u64,
    /// It is due when there are more bytes, or when the first batch is this old.
    pub age_max: Duration,
}
