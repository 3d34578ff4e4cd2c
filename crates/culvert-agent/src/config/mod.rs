//! What an agent is to run: its settings and endpoints, from flags, the environment and files.

mod definition;
pub mod file;
pub mod identity;
mod keys;
mod lines;
pub mod plan;
pub mod policy_url;

use culvert_base::Secret;
use culvert_tunnel::client::{Dialing, Endpoint, Heartbeat};

use crate::log::LogPlan;
use policy_url::PolicyUrl;

/// Address of the inspection page. If it is in use, one of the next ports is used.
pub const INSPECT_ADDR: &str = "127.0.0.1:4040";

/// The configuration of an agent.
#[derive(Debug)]
pub struct Plan {
    /// The servers' addresses and how to connect to them; at least one.
    pub servers: Vec<Dialing>,
    /// The credential.
    pub token: Secret,
    /// A part of a sentence that says where the credential is from; may be empty.
    pub token_origin: String,
    /// The user's metadata for the session.
    pub metadata: String,
    /// The endpoints to create.
    pub endpoints: Vec<Endpoint>,
    /// Policies of the endpoints that are fetched before the start.
    pub policies: Vec<PolicyUrl>,
    /// Address of the inspection page.
    pub inspect: Inspect,
    /// The log.
    pub log: LogPlan,
    /// Whether to show the status screen where it is possible.
    pub has_screen: bool,
    /// Heartbeats of its connections.
    pub heartbeat: Heartbeat,
    /// Whether the server may stop and restart it.
    pub is_managed: bool,
    /// Warnings about settings, which are logged first.
    pub notices: Vec<String>,
}

/// Address of the inspection page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspect {
    /// No page. Requests are not recorded either.
    Off,
    /// [`INSPECT_ADDR`] or one of the next ports; no page if all are in use.
    Usual,
    /// This address. If it is in use, the agent does not start.
    At(std::net::SocketAddr),
}
