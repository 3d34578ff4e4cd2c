//! Where events go, and questions about those that are kept.
//!
//! [`EventConfig`] decides about subscriptions, destinations and alert rules ([`alert`]), whose rows `crates/culvert-control/src/compile` hands to
//! the delivery plane. It finds kept events ([`event_query`], [`tail`]), sends events and requests again
//! ([`replay`], [`captured`]), and reads [`statistics`]. What exists is in [`event_kinds`]; the contents of events are in
//! the catalogue that it is made with.

pub mod alert;
pub mod captured;
pub mod destination;
pub mod edge_reports;
pub mod event_kinds;
mod event_proof;
pub mod event_query;
pub mod lost_events;
pub mod ports;
pub mod replay;
pub mod statistics;
mod subject;
pub mod subscription;
pub mod tail;

pub use crate::subject::EventConfig;

use culvert_resources::operation::Operation;
use culvert_resources::resource::operations::of_resource;

/// The operations of the subject.
pub fn operations() -> Vec<Operation<EventConfig>> {
    let mut operations = Vec::from_iter(event_query::operations());
    operations.extend(event_query::terms::operations());
    operations.extend(captured::operations());
    operations.extend(event_proof::operations());
    operations.extend(statistics::query::operations());
    let of_resources = [
        of_resource(&alert::TYPE, &[]),
        of_resource(&alert::rule::TYPE, &[]),
        of_resource(&destination::TYPE, destination::OPERATIONS),
        of_resource(&subscription::TYPE, subscription::OPERATIONS),
    ];
    operations.extend(of_resources.into_iter().flatten());
    operations
}
