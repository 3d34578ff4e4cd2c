//! The interface of targets.

use std::fmt;
use std::sync::Arc;

use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use culvert_base::batch::Gathering;
use culvert_base::{BoxFuture, Entropy, Refusal};

use crate::batch::{Batch, BatchLimits};
use crate::context::TargetContext;
use crate::destination_ids::DestinationIds;
use crate::failure::Failure;
use crate::settings::TargetSettings;
use crate::verdict::Verdict;

/// An open target.
pub trait Target: Send + Sync + fmt::Debug {
    /// Sends a batch once and returns the result. Its future is dropped after the `send_deadline` of the delivery plane.
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict>;

    /// Limits of a batch.
    fn limits(&self) -> BatchLimits;

    /// The interface of a target that makes one object of many batches. Its [`Self::send`] is only for tests.
    fn gathers(&self) -> Option<&dyn Gathers> {
        None
    }
}

/// A target that makes one object of many batches, which stay in the queue meanwhile.
pub trait Gathers: Send + Sync {
    /// When an object is due.
    fn gathering(&self) -> Gathering;

    /// Writes an object of a run, once. Its future is dropped after the `PUT_DEADLINE` of the delivery plane.
    fn put<'a>(&'a self, run: &'a dyn Run) -> BoxFuture<'a, Result<(), Failure>>;
}

/// Batches of one destination and class, in order, at least one. Each can be read repeatedly, because together they
/// may not fit into memory.
pub trait Run: Send + Sync {
    /// How many there are.
    fn batches(&self) -> usize;

    /// The batch at `index`.
    fn batch(&self, index: usize) -> BoxFuture<'_, Result<Batch, Failure>>;
}

/// A type of targets.
pub struct TargetType {
    /// Its key in `target`, such as `webhook`.
    pub name: &'static str,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// Limits of its batches.
    pub limits: BatchLimits,
    /// JSON Schema of the input.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Checks the input, without network, and generates secrets.
    pub check: fn(&Value, &TargetSettings, &dyn Entropy) -> Result<Checked, Refusal>,
    /// Copies stored secrets (first) into a new configuration (second) that omits them. The result is checked again.
    pub merge: fn(&Value, Value) -> Value,
    /// The stored form without secrets, for the API and events.
    pub redact: fn(&Value) -> Value,
    /// Opens the target. Makes no connection.
    pub open: Open,
}

/// A configuration that passed its checks.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The stored form: every field present, normalised.
    pub stored: Value,
    /// Fields added to the redacted form in the response to the create call only: generated secrets.
    pub shown_once: Option<Value>,
}

/// Opens a target with its stored configuration.
pub type Open = fn(&Value, &TargetContext, DestinationIds<'_>) -> Result<Arc<dyn Target>, Refusal>;

impl fmt::Debug for TargetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetType")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
