//! Types that all layers share: identifiers, time, entropy, bounded text, secrets, host names, IP address sets,
//! persistent maps, permits with fair shares, and the two kinds of error.
//!
//! A type belongs here if two crates need it that do not depend on each other, or if it knows nothing of its user. It does no I/O except for
//! reading the system clock and random source. It contains no async runtime, SQL or HTTP.

pub mod code;
pub mod entropy;
pub mod event;
pub mod fair_permits;
pub mod fault;
pub mod future;
pub mod id;
pub mod ipset;
pub mod limit_table;
pub mod metadata_address;
pub mod meter;
pub mod names;
pub mod net;
pub mod persistent_map;
pub mod refusal;
pub mod retry_after;
pub mod secret;
pub mod steady_clock;
pub mod supervisor;
pub mod sync;
pub mod text;
pub mod time;

pub use code::Code;
pub use entropy::{Entropy, OsEntropy, SeededEntropy};
pub use event::Event;
pub use fair_permits::{FairPermit, FairPermits, NoPermit, Share};
pub use fault::{Fault, chain};
pub use future::BoxFuture;
pub use id::{Id, IdKind, IdMaker, Ksuid};
pub use ipset::{IpSet, Prefix, Verdict};
pub use limit_table::LimitTable;
pub use meter::Meter;
pub use persistent_map::PersistentMap;
pub use refusal::{Class, Refusal};
pub use retry_after::RetryAfter;
pub use secret::{Digest, Secret};
pub use steady_clock::{Reading, SteadyClock};
pub use supervisor::{Ended, Supervised, Supervisor};
pub use text::{Bounded, Description, Metadata};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};
