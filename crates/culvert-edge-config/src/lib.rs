//! The compiled input of the edge: what it is to serve.
//!
//! Control builds a [`Snapshot`] or a [`Change`] and asks for a [replay](ReplayRequest); the edge
//! (`crates/culvert-edge`) turns them into the tables that requests read. Neither depends on the other.
//!
//! Not here: those tables, the settings of the process, and how traffic is served.

mod actions;
mod change;
mod endpoint;
pub mod fuzz;
mod limits;
mod maintenance;
mod operators;
mod replay;
mod snapshot;
mod upstream_health;
mod upstream_list;

pub use actions::ACTIONS;
pub use change::Change;
pub use culvert_io::proxy::ProxyVersion;
pub use culvert_io::upstream_tls;
pub use culvert_upstream::{
    Clients, HttpProbe, Probe, Protocol, TlsOptions, TlsWithheld, Upstream,
};
pub use endpoint::{Endpoint, EndpointBinding, ForwardRights, Restriction};
pub use limits::{InFlightLimits, Limits, Timeouts};
pub use maintenance::Maintenance;
pub use operators::{Operator, Operators};
pub use replay::{NotReplayed, ReplayRequest, Replayed};
pub use snapshot::{NamedCertificate, Snapshot, SnapshotBuilder, may_forward};
pub use upstream_health::{CheckReport, UnhealthyUpstream, UpstreamStatus};
pub use upstream_list::{
    ActiveHealth, Balancing, HashKey, ListedUpstream, PassiveHealth, RetriedStatuses, Retries,
    Sticky, UpstreamList,
};
