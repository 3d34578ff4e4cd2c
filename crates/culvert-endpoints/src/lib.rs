//! Endpoints and what they refer to: domains, addresses, traffic policies, vaults and operators.
//!
//! [`EndpointConfig`] decides what endpoints may be: which address one gets ([`endpoint`], [`host`], [`pool`],
//! [`address_lock`]), and which objects its policy may use ([`traffic_policy`], [`secret_rights`]). Agents ask for
//! endpoints by [`endpoint::agent`]. Its documents reach the edge by `crates/culvert-control/src/compile`.

pub mod address_lock;
pub mod endpoint;
pub mod forwarding;
pub mod health;
pub mod host;
pub mod kubernetes_operator;
pub mod platform;
pub mod pool;
pub mod reserved_addr;
pub mod reserved_domain;
pub mod secret_rights;
mod subject;
pub mod traffic_policy;
pub mod vault;

use culvert_resources::operation::Operation;
use culvert_resources::resource::operations::of_resource;

pub use crate::subject::EndpointConfig;

/// The operations of the subject.
pub fn operations() -> Vec<Operation<EndpointConfig>> {
    let of_resources = [
        of_resource(&endpoint::TYPE, endpoint::OPERATIONS),
        of_resource(&kubernetes_operator::TYPE, kubernetes_operator::OPERATIONS),
        of_resource(&reserved_addr::TYPE, &[]),
        of_resource(&reserved_domain::TYPE, reserved_domain::OPERATIONS),
        of_resource(&vault::TYPE, vault::OPERATIONS),
        of_resource(&vault::secret::TYPE, &[]),
    ];
    of_resources.into_iter().flatten().collect()
}
