//! The event log: batches on their way to destinations, and where they wait durably.
//!
//! Recorder, lanes and workers know this port alone. The queue in the database is one such log and takes
//! whatever there is; the other is a stream of NATS JetStream (`jetstream`), with that queue to fall back
//! to. Cursors, dead letters and the audit events that the dispatcher copies are always in the database.
//!
//! Not here: what is in a batch (`batch`), when to try again and when to give up (`retry`).

#[cfg(test)]
mod conformance;
mod database;
mod jetstream;
mod servers;

use std::fmt::Debug;
use std::time::Duration;

use culvert_base::{BoxFuture, Fault, Timestamp};
use culvert_store::{Backlog, DeadLetterReason, Gathering, Lease, NewBatch, QueueError, Run};
use tokio_util::sync::CancellationToken;

use crate::batch::BatchLimits;
use crate::net::Net;

pub(crate) use jetstream::JetStream;
pub use jetstream::{JetStreamSettings, STREAM_LEASE};
pub use servers::NatsServers;

/// How leases end.
#[derive(Clone, Debug)]
pub(crate) enum Settlement {
    /// The batches were delivered and go.
    Ack,
    /// They stay and are due again at `at`.
    Retry { at: Timestamp, why: String },
    /// The batch, of which there is one, goes; `pieces` take its place, with its first time and
    /// attempts.
    Replace {
        pieces: Vec<NewBatch>,
        at: Timestamp,
    },
    /// They become dead letters.
    DeadLetter(DeadLetterReason),
}

/// Where batches wait. Within a destination audit batches go before traffic batches, and the first of
/// its class holds back the others while it is leased or waits for its time.
pub(crate) trait EventLog: Debug + Send + Sync {
    /// Begins. Everything else may be asked before, and finds what is there.
    fn start<'a>(&'a self, _: &'a Net) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Keeps leases and connections alive until cancelled.
    fn keep(&self, cancel: CancellationToken) -> BoxFuture<'_, ()> {
        Box::pin(async move { cancel.cancelled().await })
    }

    /// Gives back what this node has, when nobody leases any more.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether what is appended is written by the writer of the database, in its order.
    fn is_in_database(&self) -> bool {
        false
    }

    /// Whether the log can be used right now.
    fn usable(&self) -> BoxFuture<'_, Result<(), Fault>>;

    /// Appends all. Durable on return.
    fn append(&self, batches: Vec<NewBatch>) -> BoxFuture<'_, Result<(), Fault>>;

    /// Appends a batch that `owner` is sending already, so that nobody else sends it.
    fn append_leased<'a>(
        &'a self,
        batch: NewBatch,
        owner: &'a str,
        lease_for: Duration,
    ) -> BoxFuture<'a, Result<Lease, Fault>>;

    /// The next batch of a destination, or `None` if none is due.
    fn lease<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Option<Lease>, Fault>>;

    /// The next batches of a destination with their bodies, of one class: one, and what is due behind it as
    /// far as it goes into the same send, or more than that. Of what is sent together the first is settled
    /// last: where the line belongs to whoever has its first, the others have passed on with it.
    fn lease_several<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
        send: BatchLimits,
    ) -> BoxFuture<'a, Result<Vec<Lease>, Fault>>;

    /// Several batches of one class together, without their bodies, once there are enough of them or
    /// the first is old enough.
    fn lease_run<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
        gathering: Gathering,
    ) -> BoxFuture<'a, Result<Run, Fault>>;

    /// The body of a leased batch; `None` when the lease is not held any more, or the body is damaged.
    fn body<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Option<Vec<u8>>, Fault>>;

    /// Ends leases. How many of them were still held: what passed to another holder is theirs.
    fn settle<'a>(
        &'a self,
        leases: &'a [Lease],
        how: Settlement,
    ) -> BoxFuture<'a, Result<u64, Fault>>;

    /// When `lease` may next return something; `None` when nothing is known to wait.
    fn next_due<'a>(
        &'a self,
        destination: &'a str,
    ) -> BoxFuture<'a, Result<Option<Timestamp>, Fault>>;

    /// What waits, for every destination that has anything waiting or buried.
    fn backlog(&self) -> BoxFuture<'_, Result<Vec<Backlog>, Fault>>;

    /// Makes everything that waits for a later time due `now`.
    fn hasten<'a>(
        &'a self,
        destination: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Fault>>;

    /// Forgets everything of a destination that no longer exists.
    fn drop_destination<'a>(&'a self, destination: &'a str) -> BoxFuture<'a, Result<(), Fault>>;

    /// Gives back every lease of a former life of `owner` that is known.
    fn release_owner<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<(), Fault>>;
}

/// One lease at a time.
impl dyn EventLog {
    pub(crate) async fn ack(&self, lease: &Lease) -> Result<(), QueueError> {
        self.settle_one(lease, Settlement::Ack).await
    }

    pub(crate) async fn retry(
        &self,
        lease: &Lease,
        at: Timestamp,
        why: &str,
    ) -> Result<(), QueueError> {
        let why = why.to_owned();
        self.settle_one(lease, Settlement::Retry { at, why }).await
    }

    pub(crate) async fn replace(
        &self,
        lease: &Lease,
        pieces: Vec<NewBatch>,
        at: Timestamp,
    ) -> Result<(), QueueError> {
        self.settle_one(lease, Settlement::Replace { pieces, at })
            .await
    }

    pub(crate) async fn dead_letter(
        &self,
        lease: &Lease,
        why: DeadLetterReason,
    ) -> Result<(), QueueError> {
        self.settle_one(lease, Settlement::DeadLetter(why)).await
    }

    async fn settle_one(&self, lease: &Lease, how: Settlement) -> Result<(), QueueError> {
        match self.settle(std::slice::from_ref(lease), how).await? {
            0 => Err(QueueError::Lost),
            _ => Ok(()),
        }
    }
}
