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
//!
//! # A replay
//!
//! A replay is a document beside its destination that control compiles into delivery's table. The replayer copies
//! its range from the audit log, and from the traffic log, into the queue, under cursors that move with the copies.
//! The cursors alone say whether it is complete. The traffic log
//! (`crates/culvert-delivery/src/retained_events/retained.rs`) has each event once with every field, in segments,
//! as its difference from the event before (`crates/culvert-events/src/record/packed.rs`). The events of a segment are
//! read back as records, so that current filters and selections apply to them. Their JSON is written when a search
//! finds them.
//!
//! # A search of events
//!
//! A search of events (`crates/culvert-event-config/src/event_query.rs`). The query becomes an `EventQuery` with
//! the kinds that the caller may read → `crates/culvert-delivery/src/retained_events/event_query.rs` reads the
//! audit log and the traffic log, each in its own order, and merges them by time until the page is full or its cost
//! limit is reached → the cursor has a position in each log, so pages fit together. Indexes by object, actor, kind
//! and endpoint (`crates/culvert-store/src/audit_log/event_index.rs`) decide which rows are read; the filter
//! (`crates/culvert-events/src/filter/log_filter.rs`) runs on those. A stream of retained events
//! (`crates/culvert-api/src/event_stream/follow.rs`) repeats the search behind its last message.
//!
//! # A capture
//!
//! The action `capture` marks the exchange (`crates/culvert-policy/src/event/capture`). The edge copies the bytes
//! as they pass: of the request through a tap that the task reading the body shares, of the response in the
//! exchange. The record carries the messages to the recorder, which hands them to a task
//! (`crates/culvert-delivery/src/retained_events/retained_bodies.rs`) that redacts them and writes a row for each
//! event. Their share of one budget of memory is given back after the commit, so a slow disk makes captures
//! incomplete and never traffic slow.
//!
//! # An event
//!
//! State that tasks share is in `crates/culvert-delivery/src/plane/mod.rs`, below all tasks. The recorder filters,
//! selects and encodes into batches. The dispatcher copies audit events from the outbox into the durable queue and
//! moves its cursor in the same transaction. Events about keys wait there for a table of destinations with the
//! rights as they were at their commit. One worker per destination leases, sends and settles. An event id does not
//! change between attempts. Targets and their clients are in `crates/culvert-destinations`. A target that makes one
//! object of many batches
//! (`crates/culvert-delivery/src/worker/gather.rs`) leaves them in the queue until the object is written. Traffic
//! batches wait in memory, in a buffer for each destination (`crates/culvert-delivery/src/queue/buffer.rs`), and
//! the worker of a destination that keeps up takes them from there. A task
//! (`crates/culvert-delivery/src/queue/spill.rs`) writes to the queue all batches that are not accepted within half
//! a second, and all batches of a failing destination, so no destination waits for the disk writes of another. The
//! queue is for destinations that may be unavailable.
//!
//! # The event log
//!
//! The event log (`crates/culvert-delivery/src/queue/event_log.rs`) is the port behind which traffic events wait:
//! the queue in the database, or a stream of NATS JetStream with that queue as fallback. One suite runs against
//! both. In the stream, a destination's consumer delivers its first message to one node, which then holds the
//! destination's lease. The node keeps the message through all attempts and extends its deadline, so it schedules
//! the next attempt itself; a node that fails loses the message by the NATS server's clock. A batch that is written
//! to the stream while it is being sent contains the time until which other nodes leave it alone. Each node
//! remembers what it stored, so messages that vanish from the stream are counted
//! (`crates/culvert-delivery/src/queue/event_log/jetstream/outstanding.rs`). Audit events, cursors and dead letters
//! are always in the database.

mod dispatch;
mod health;
mod plane;
mod queue;
mod recorder;
mod retained_events;
pub mod retry;
mod subscription;
mod tail;
mod worker;

pub use dispatch::replay::{EventBound, Replay, TrafficRange};
pub use health::attempts::Attempt;
pub use health::{DestinationState, Health};
pub use plane::cluster::{ClusterHealth, NodeHealth};
pub use plane::delivery::Delivery;
pub use plane::meters;
pub use plane::meters::Meters;
pub use plane::settings::{DESTINATION_KIND, PUT_DEADLINE, Settings};
pub use queue::event_log::{JetStreamSettings, STREAM_LEASE};
pub use retained_events::event_query::{
    AuditPlace, Cursor, EventPage, EventQuery, LoggedEvent, Searched,
};
pub use retained_events::pruning_notice::{PruningHolds, PruningNotice, Released};
pub use subscription::{Destination, Source, Subscription, TableChange};
pub use tail::Tail;
pub use tail::followers::{TAIL_BYTES_MAX, TAIL_LINES_MAX, TailSpec, Tailed};

#[cfg(test)]
mod tests;
