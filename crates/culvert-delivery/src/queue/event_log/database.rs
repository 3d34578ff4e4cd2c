//! The queue in the database as an event log. Most methods call the method of the queue with the
//! same name.

use std::time::Duration;

use culvert_base::{BoxFuture, Fault, Timestamp};
use culvert_store::{Backlog, Gathering, Lease, NewBatch, Queue, QueueError, Run};
use culvert_target::batch::BatchLimits;

use super::{EventLog, Settlement};

/// Bytes of batches that a worker leases together from the database, where each lease is a synced
/// commit. This limits the memory of a worker.
const SEVERAL_BYTES: u64 = 4 << 20;

impl EventLog for Queue {
    fn is_in_database(&self) -> bool {
        true
    }

    fn usable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(self.usable())
    }

    fn append(&self, batches: Vec<NewBatch>) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            self.append(batches, None)
                .await
                .map_err(|error| Fault::new("appending batches", error))
        })
    }

    fn append_leased<'a>(
        &'a self,
        batch: NewBatch,
        owner: &'a str,
        lease_for: Duration,
    ) -> BoxFuture<'a, Result<Lease, Fault>> {
        Box::pin(self.append_leased(batch, owner, lease_for))
    }

    fn lease<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Option<Lease>, Fault>> {
        Box::pin(self.lease(destination, owner, lease_for, now))
    }

    fn lease_several<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
        _: BatchLimits,
    ) -> BoxFuture<'a, Result<Vec<Lease>, Fault>> {
        Box::pin(self.lease_several(destination, owner, lease_for, now, SEVERAL_BYTES))
    }

    fn lease_run<'a>(
        &'a self,
        destination: &'a str,
        owner: &'a str,
        lease_for: Duration,
        now: Timestamp,
        gathering: Gathering,
    ) -> BoxFuture<'a, Result<Run, Fault>> {
        Box::pin(self.lease_run(destination, owner, lease_for, now, gathering))
    }

    fn body<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Option<Vec<u8>>, Fault>> {
        Box::pin(self.body(lease))
    }

    fn settle<'a>(
        &'a self,
        leases: &'a [Lease],
        how: Settlement,
    ) -> BoxFuture<'a, Result<Vec<i64>, Fault>> {
        Box::pin(async move {
            let settled = match (how, leases) {
                (Settlement::Ack, [one]) => self.ack(one).await,
                (Settlement::Retry { at, why }, [one]) => self.retry(one, at, &why).await,
                (Settlement::DeadLetter(why), [one]) => self.dead_letter(one, why).await,
                (Settlement::Replace { pieces, at }, [one, ..]) => {
                    self.replace(one, pieces, at).await
                }
                (Settlement::Ack, run) => return self.ack_run(run).await,
                (Settlement::Retry { at, why }, run) => return self.retry_run(run, at, &why).await,
                (Settlement::DeadLetter(why), run) => return self.dead_letter_run(run, why).await,
                (Settlement::Replace { .. }, []) => return Ok(Vec::new()),
            };
            match settled {
                Ok(()) => Ok(leases.iter().take(1).map(|lease| lease.batch).collect()),
                Err(QueueError::Lost) => Ok(Vec::new()),
                Err(QueueError::Fault(fault)) => Err(fault),
            }
        })
    }

    fn next_due<'a>(
        &'a self,
        destination: &'a str,
    ) -> BoxFuture<'a, Result<Option<Timestamp>, Fault>> {
        Box::pin(self.next_due(destination))
    }

    fn backlog(&self) -> BoxFuture<'_, Result<Vec<Backlog>, Fault>> {
        Box::pin(self.backlog())
    }

    fn hasten<'a>(
        &'a self,
        destination: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move { self.hasten(destination, now).await.map(drop) })
    }

    fn drop_destination<'a>(&'a self, destination: &'a str) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move { self.drop_destination(destination).await.map(drop) })
    }

    fn release_owner<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.release_owner(owner))
    }
}
