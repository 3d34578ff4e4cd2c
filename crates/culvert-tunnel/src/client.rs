//! culvert's own agent: connects to a server, requests endpoints, and forwards their traffic to services on
//! this machine or network.
//!
//! ```text
//! Connecting ──Auth, Bind──▶ Online ──┬─ lost ──▶ Waiting ──back-off──▶ Connecting
//!     │                               ├─ restarted by the server ─────▶ Connecting
//!     └─ refused ──────────▶ ended    └─ stopped, here or there ─▶ drained ─▶ ended
//! ```
//!
//! It implements the protocol of the published agents with the corrections of section 5.1 of its description:
//! back-off with jitter and a cap, deadlines for calls, a timeout for heartbeats, and reading a stream's
//! header in the stream's own task. After a session ends, the agent requests the same session and endpoints
//! again.
//!
//! The terminal, the configuration file and the page of requests are elsewhere.

mod agent;
mod backoff;
mod connect;
mod diagnosis;
mod endpoint;
mod exchanges;
mod flags;
mod forward;
mod further;
mod heads;
mod interface;
mod meter;
mod network;
mod numbers;
mod servers;
mod session;
mod status;
mod tap;
mod upstream;
mod upstream_tls;

pub(crate) use forward::{header, relay};

pub use agent::{Agent, OpenError, Settings};
pub use connect::{Dialing, DialingError};
pub use culvert_io::forward_proxy::Proxy;
pub use culvert_io::upstream_tls::UpstreamTls;
pub use endpoint::{Endpoint, Protocol, TlsEnd};
pub use exchanges::{Counts, Exchange, Exchanges, Message, ReplayError};
pub use flags::{FLAGS, Flag, FlagScope, Given, RequestedEndpoint};
pub use forward::Edit;
pub use interface::Interface;
pub use meter::{EndpointMeters, RateMeter, Reading};
pub use servers::Servers;
pub use session::Heartbeat;
pub use status::{AgentError, EndpointStatus, Event, Observer, Phase, SessionTrouble, Status};
pub use upstream::Upstream;
pub use upstream_tls::RequestedTls;
