//! Declarative configuration: files describe objects of the management API, and [`plan()`] finds the changes that make
//! the server match them.
//!
//! The name of an object is in its metadata, under `culvert_apply`, so a run that was interrupted is completed by
//! another, and nothing is stored on this side. Everything goes through the public API with the rights of one key.

mod compare;
mod execute;
mod kinds;
mod manifest;
mod plan;
mod reference;
mod report;

pub use execute::execute;
pub use manifest::{Manifest, Selector, load};
pub use plan::{Plan, plan};
pub use report::{as_json, as_text};

/// The key in the metadata of an object that holds its name and labels.
const IDENTITY: &str = "culvert_apply";
/// Requests in flight at the same time.
const PARALLEL: usize = 16;
