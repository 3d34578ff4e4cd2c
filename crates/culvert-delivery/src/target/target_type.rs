//! The interface of targets.

use std::fmt;
use std::sync::Arc;

use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_store::Gathering;

use super::context::TargetContext;
use super::settings::TargetSettings;
use super::verdict::Verdict;
use crate::batch::{Batch, BatchLimits};
use crate::config::Checked;
use crate::destination_ids::DestinationIds;
use crate::failure::Failure;

/// A configured remote system.
pub trait Target: Send + Sync + fmt::Debug {
    /// Sends a batch, once, and says what became of it. The caller drops the future after 30 s.
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict>;

    /// How large a batch may be.
    fn limits(&self) -> BatchLimits;

    /// Whether it makes one object of many batches; then it is told to put that, and [`Self::send`]
    /// is for tests.
    fn gathers(&self) -> Option<&dyn Gathers> {
        None
    }
}

/// A target that makes one object of many batches, which lie in the queue meanwhile.
pub trait Gathers: Send + Sync {
    /// When an object is made.
    fn gathering(&self) -> Gathering;

    /// Makes an object of a run, once. The caller drops the future after
    /// [`PUT_DEADLINE`](crate::settings::PUT_DEADLINE).
    fn put<'a>(&'a self, run: &'a dyn Run) -> BoxFuture<'a, Result<(), Failure>>;
}

/// Batches of one destination and class, in order, at least one. They are read one by one and as
/// often as wanted: together they may be more than memory should hold.
pub trait Run: Send + Sync {
    /// How many there are.
    fn batches(&self) -> usize;

    /// The batch at `index`.
    fn batch(&self, index: usize) -> BoxFuture<'_, Result<Batch, Failure>>;
}

/// One kind of target.
pub struct TargetType {
    /// Its key in `target`, such as `webhook`.
    pub name: &'static str,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// How large its batches may be.
    pub limits: BatchLimits,
    /// Of what a caller sends.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Checks what a caller sent, without any network, and makes the secrets that are made here.
    pub check: fn(&Value, &TargetSettings, &dyn Entropy) -> Result<Checked, Refusal>,
    /// Puts the stored secrets (first) where the new configuration (second) leaves them out. The
    /// result is checked like any other.
    pub merge: fn(&Value, Value) -> Value,
    /// The stored form without its secrets: what API and events show.
    pub redact: fn(&Value) -> Value,
    /// Makes it ready to send. Opens no connection.
    pub open: Open,
}

/// Makes a stored configuration ready to send.
pub type Open = fn(&Value, &TargetContext, DestinationIds<'_>) -> Result<Arc<dyn Target>, Refusal>;

impl fmt::Debug for TargetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetType")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
