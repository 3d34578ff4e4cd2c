//! Traffic policies: rules that match a connection, a request or a response, and act on it. The crate has compiled
//! rules, expressions, templates and actions, and their inputs: facts of connections, data about addresses, webhook
//! signatures, signed tokens, rate limits.
//!
//! It opens and serves no connections. Actions use ports for everything outside: the network
//! ([`Fetch`](services::Fetch)), the runtime ([`Spawn`](services::Spawn)), the endpoints of the account
//! ([`PolicyHost`](host::PolicyHost)) and the body of a message ([`BodyReader`](host::BodyReader)).

pub mod action;
pub mod action_type;
mod address;
pub mod capture;
pub mod conn;
mod document;
pub mod documents;
mod error_page;
pub mod event;
pub mod event_slots;
mod fair_table;
mod fields;
mod forward_target;
pub mod host;
pub mod identity;
pub mod ipdata;
pub mod jws;
pub mod own_cookies;
pub mod policy;
pub mod problem;
pub mod reply;
pub mod scheme;
pub mod services;
pub mod shared_counts;
mod unique_json;
mod webhook;

pub use address::IpPolicy;
pub use document::read_yaml;
pub use error_page::{ErrorPages, ErrorPagesError, TEMPLATE_BYTES_MAX, TemplateError};
pub use forward_target::ForwardTarget;
pub use ipdata::{IpData, IpDataFiles, IpDatabases, IpField, IpFields, Scalar};
pub use policy::compiled::{Policy, SecretUse};
pub use policy::context::{LoginService, Resources};
pub use policy::phase::Phase;
pub use policy::reference::reference;
pub use policy::run::OnExpressionError;
pub use policy::secret::REDACTED;
pub use policy::secrets::Secrets;
pub use policy::source::{Reference, Source};
pub use scheme::Scheme;
pub use shared_counts::{CountMeters, MESSAGE_BYTES_MAX, MESSAGES_MAX, SharedCounts, TELL_EVERY};
