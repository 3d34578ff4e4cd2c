//! The contract between the delivery plane and the targets of event destinations.
//!
//! ```text
//! a stored configuration ─check─▶ open ─▶ target
//!                    a batch of envelopes ─send─▶ target ─▶ verdict
//! ```
//!
//! A [`TargetType`] checks configurations and opens targets. A [`Target`] sends one [`batch`] and returns a
//! [`Verdict`], whose [`failure`]s have a class and a text without secrets. It connects through [`Net`], which refuses
//! addresses that the [`guard`] denies. A target knows nothing of the queue that a batch came from, so this crate needs
//! no store.
//!
//! The types themselves are in `crates/culvert-destinations`. Only the program depends on them: it hands their table,
//! [`TargetTypes`], to control when it makes it. So a change of a target rebuilds neither delivery nor control.
//!
//! Not here: when a batch is sent, and what follows a failure (`crates/culvert-delivery`), and which destinations
//! exist (`crates/culvert-event-config`).

pub mod batch;
mod client;
mod context;
mod destination_ids;
pub mod failure;
mod formatted;
pub mod settings;
mod target_type;
mod target_types;
mod unopened;
mod verdict;

pub use client::nats_servers::{NatsLogin, NatsServers};
pub use client::net::Net;
pub use client::{guard, net, rotating_file};
pub use context::TargetContext;
pub use destination_ids::DestinationIds;
pub use formatted::formatted;
pub use settings::TargetSettings;
pub use target_type::{Checked, Gathers, Open, Run, Target, TargetType};
pub use target_types::TargetTypes;
pub use unopened::unopened;
pub use verdict::{Outcome, Verdict};
