//! Event delivery: from records and the audit outbox, through the durable queue, to destinations.
//!
//! ```text
//! planes ─offer─▶ recorder ─────┐                       ┌─▶ worker ─▶ target
//! store's outbox ─▶ dispatcher ─┼─append─▶ queue ─lease─┤
//! the audit log ─▶ replayer ────┘                       └─▶ worker ─▶ target
//! ```
//!
//! Delivery from the queue is at least once, with the same id at every attempt. Traffic never waits
//! for delivery. Control compiles subscriptions and destinations, and passes on each [`TableChange`].
//!
//! Not here: how an event was produced, who may configure what, how metrics are exported.

mod amqp;
pub mod aws;
pub mod batch;
mod body_queue;
mod buffer;
mod buffer_pool;
mod certificate_verifier;
mod cluster;
mod config;
mod copies;
mod delivery;
mod destination_count;
mod destination_ids;
mod dispatcher;
mod event_log;
mod event_query;
pub mod failure;
#[cfg(test)]
mod fake;
mod followers;
pub mod guard;
mod headers;
mod health;
mod http_failure;
mod kafka;
mod losses;
pub mod meters;
pub mod net;
mod open_pieces;
mod plane;
mod record_shards;
mod recorder;
mod replay;
mod replayer;
mod request_body;
mod retained;
mod retained_bodies;
mod retained_pieces;
mod retention;
mod retention_clock;
pub mod retry;
mod search_turns;
mod settings;
mod spill;
mod spill_writer;
mod statistics;
mod stored_piece;
mod subscription;
mod tail;
pub mod target;
mod tls_client;
mod worker;
mod worker_notifier;

pub use cluster::{ClusterHealth, NodeHealth};
pub use delivery::Delivery;
pub use event_log::{JetStreamSettings, NatsServers, STREAM_LEASE};
pub use event_query::{AuditPlace, Cursor, EventPage, EventQuery, LoggedEvent};
pub use followers::{TAIL_BYTES_MAX, TAIL_LINES_MAX, TailSpec, Tailed};
pub use health::{DestinationState, Health};
pub use meters::Meters;
pub use net::Net;
pub use replay::{EventBound, Replay, TrafficRange};
pub use settings::{DESTINATION_KIND, PUT_DEADLINE, Settings};
pub use subscription::{Destination, Source, Subscription, TableChange};
pub use tail::Tail;
pub use target::{DestinationIds, Target, TargetContext, TargetSettings, TargetType};

#[cfg(test)]
mod tests;
