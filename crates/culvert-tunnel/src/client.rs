//! An agent of our own: dials a server, asks it for endpoints, and carries what arrives there to
//! services of this machine or network.
//!
//! ```text
//! Connecting ──Auth, Bind──▶ Online ──┬─ lost ──▶ Waiting ──back-off──▶ Connecting
//!     │                               ├─ restarted by the server ─────▶ Connecting
//!     └─ refused for good ─▶ ended    └─ stopped, here or there ─▶ drained ─▶ ended
//! ```
//!
//! It speaks the protocol of the published agents with the corrections that section 5.1 of its
//! description asks for: back-off with jitter and a cap, calls with a deadline, a session without
//! an answer to its heartbeats is given up, and a stream's header is read by the stream's own task.
//! The end of a session takes nothing with it that the server gave: session and endpoints are asked
//! for again under their old names.
//!
//! Not here: a terminal, a configuration file, the page that shows requests.

mod agent;
mod backoff;
mod connect;
mod endpoint;
mod exchanges;
mod flags;
mod forward;
mod further;
mod heads;
mod servers;
mod session;
mod status;
mod tap;
mod upstream;

pub(crate) use forward::{header, relay};

pub use agent::{Agent, Settings};
pub use connect::{Dialing, DialingError};
pub use endpoint::{Endpoint, Protocol, TlsEnd};
pub use exchanges::{Counts, Exchange, Exchanges, Message, ReplayError};
pub use flags::{FLAGS, Flag, FlagScope, Given, Wanted};
pub use servers::Servers;
pub use status::{AgentError, EndpointStatus, Event, Observer, Phase, Status};
pub use upstream::{Upstream, UpstreamTrust};
