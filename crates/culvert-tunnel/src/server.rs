//! The server side of tunnels: accepts agents, asks the [`AgentAuthorizer`] about each request, and records
//! which connection serves which endpoint.
//!
//! ```text
//! accept ──TLS──▶ Handshaking ──Auth admitted──▶ Serving ──┬─ lost, said goodbye ─▶ ended
//!                      │                                   ├─ silent, expired ────▶ ended
//!                      └─ refused, too slow ─▶ gone        └─ taken over ─▶ gone, the session lives
//! ```

mod accept;
mod agent_limits;
mod auth_backoff;
mod authorizer;
mod bindings;
pub(crate) mod call;
mod command;
mod dial;
mod in_process;
mod ingress;
mod link_watch;
mod meters;
mod session;

pub use accept::{ConnectionLimits, UnauthenticatedPermit, accept};
pub use authorizer::{
    About, AgentAuthRequest, AgentAuthorizer, Binding, EndReason, EndpointRequest, Former, ISSUER,
    Proof, SessionEnd, SessionGrant, Transport,
};
pub use bindings::Bindings;
pub use command::{Command, CommandError};
pub use dial::{DialError, PATIENCE};
pub(crate) use dial::{open_first, open_in_turn, source_of};
pub use in_process::{Brought, IN_PROCESS_STREAMS_MAX, InProcessAgent, carry, decline};
pub use ingress::Ingress;
pub use meters::{Meter, Meters};
pub use session::Server;
