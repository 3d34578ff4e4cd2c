//! Events about what the edge of this process sees and no call causes.

pub mod refused_traffic;
pub mod upstream_health;
pub(crate) mod upstream_reports;
