//! Types that all layers share: identifiers, time, entropy, bounded text, secrets, host names, IP address sets,
//! persistent maps, permits with fair shares, words of batches, and the two kinds of error.
//!
//! A type belongs here if two crates need it that do not depend on each other, or if it knows nothing of its user.
//! It does no I/O except for reading the system clock and random source. It contains no async runtime, SQL or HTTP.

pub mod entropy;
mod error;
pub mod event;
pub mod future;
pub mod id;
mod limit;
pub mod meter;
pub mod net;
pub mod persistent_map;
pub mod secret;
pub mod supervisor;
pub mod sync;
pub mod text;
pub mod time;

pub use entropy::{Entropy, OsEntropy, SeededEntropy};
pub use error::code::Code;
pub use error::fault::{Fault, chain};
pub use error::refusal::{Class, Refusal};
pub use error::{code, fault, refusal};
pub use event::{Event, batch};
pub use future::BoxFuture;
pub use id::{Id, IdKind, IdMaker, Ksuid};
pub use limit::fair_permits::{FairPermit, FairPermits, NoPermit, Share};
pub use limit::limit_table::LimitTable;
pub use limit::{fair_permits, limit_table};
pub use meter::Meter;
pub use net::ipset::{IpSet, Prefix, Verdict};
pub use net::{ipset, metadata_address};
pub use persistent_map::PersistentMap;
pub use secret::{Digest, DigestKey, Secret};
pub use supervisor::{Ended, Supervised, Supervisor};
pub use text::names;
pub use text::{Bounded, Description, Metadata};
pub use time::retention_clock::RetentionClock;
pub use time::retry_after::RetryAfter;
pub use time::steady_clock::{Reading, SteadyClock};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};
pub use time::{retry_after, steady_clock};
