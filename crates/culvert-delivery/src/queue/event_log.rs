//! The event log, in which batches wait durably for their destinations.
//!
//! Recorder, buffers and workers use this port only. One implementation is the queue in the database, which accepts
//! all events. The other is a stream of NATS JetStream (`jetstream`) with that queue as fallback. Cursors, dead letters
//! and the audit events that the dispatcher copies are always in the database.
//!
//! Not here: the content of batches (`batch`), the retry schedule (`retry`).

mod database;
mod jetstream;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::time::Duration;

use culvert_base::{BoxFuture, Fault, Timestamp};
use culvert_store::{Backlog, DeadLetterReason, Gathering, Lease, NewBatch, QueueError, Run};
use culvert_target::Net;
use culvert_target::batch::BatchLimits;
use tokio_util::sync::CancellationToken;

pub(crate) use jetstream::JetStream;
pub use jetstream::{JetStreamSettings, STREAM_LEASE};

/// How leases end.
#[derive(Clone, Debug)]
pub(crate) enum Settlement {
    /// The batches were delivered and are removed.
    Ack,
    /// The batches stay and are due again at `at`.
    Retry { at: Timestamp, why: String },
    /// The batch, of which there is one, is replaced by `pieces` with its first time and attempts.
    Replace {
        pieces: Vec<NewBatch>,
        at: Timestamp,
    },
    /// They become dead letters.
    DeadLetter(DeadLetterReason),
}

/// A log of batches. Audit batches of a destination come before traffic batches. The first batch of a class delays
/// the others while it is leased or waits for its time.
pub(crate) trait EventLog: Debug + Send + Sync {
    /// Starts the log. Other calls may come earlier; they use the parts that are available.
    fn start<'a>(&'a self, _: &'a Net) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Keeps leases and connections alive until cancelled. Calls `lost` with a destination and the number of its events
    /// that the log has lost.
    fn keep<'a>(
        &'a self,
        cancel: CancellationToken,
        _lost: &'a (dyn Fn(&str, u64) + Send + Sync),
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move { cancel.cancelled().await })
    }

    /// Returns this node's leases, when no worker leases any more.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether appends are written by the database's writer, in its order.
    fn is_in_database(&self) -> bool {
        false
    }

    /// Whether the log can be used right now.
    fn usable(&self) -> BoxFuture<'_, Result<(), Fault>>;

    /// Appends all batches. Durable on return.
    fn append(&self, batches: Vec<NewBatch>) -> BoxFuture<'_, Result<(), Fault>>;

    /// Appends a batch that `owner` is sending already, so no other node sends it.
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

    /// Leases the next batches of a class with their bodies: those that fit into one send, or more. The first of those
    /// sent together is settled last, because its lease also covers the others.
    fn lease_several<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
        send: BatchLimits,
    ) -> BoxFuture<'a, Result<Vec<Lease>, Fault>>;

    /// Leases several batches of a class without their bodies, once there are enough or the first is old enough.
    fn lease_run<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
        gathering: Gathering,
    ) -> BoxFuture<'a, Result<Run, Fault>>;

    /// The body of a leased batch; `None` if the lease has ended or the body is damaged.
    fn body<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Option<Vec<u8>>, Fault>>;

    /// Ends leases. Returns the batches of those that were still held; other holders settle the rest.
    fn settle<'a>(
        &'a self,
        leases: &'a [Lease],
        how: Settlement,
    ) -> BoxFuture<'a, Result<Vec<i64>, Fault>>;

    /// When `lease` may next return a batch; `None` if none is known to wait.
    fn next_due<'a>(
        &'a self,
        destination: &'a str,
    ) -> BoxFuture<'a, Result<Option<Timestamp>, Fault>>;

    /// The backlog of every destination with waiting batches or dead letters.
    fn backlog(&self) -> BoxFuture<'_, Result<Vec<Backlog>, Fault>>;

    /// Makes all postponed batches due `now`.
    fn hasten<'a>(
        &'a self,
        destination: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Fault>>;

    /// Removes everything of a deleted destination.
    fn drop_destination<'a>(&'a self, destination: &'a str) -> BoxFuture<'a, Result<(), Fault>>;

    /// Releases every known lease of a previous run of `owner`.
    fn release_owner<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<(), Fault>>;
}

/// Operations on a single lease.
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
        match self.settle(std::slice::from_ref(lease), how).await?[..] {
            [] => Err(QueueError::Lost),
            [..] => Ok(()),
        }
    }
}
