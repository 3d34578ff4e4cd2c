//! Traffic policies: rules that match a connection, a request or a response, and act on it. The crate has compiled
//! rules, expressions and templates, what an action is, and their inputs: facts of connections, data about addresses,
//! signed tokens, rate limits. The actions are in `crates/culvert-actions` and `crates/culvert-login`.
//!
//! It opens and serves no connections. Actions use ports for everything outside: the network
//! ([`Fetch`](services::Fetch)), the runtime ([`Spawn`](services::Spawn)), the endpoints of the account
//! ([`PolicyHost`](host::PolicyHost)) and the body of a message ([`BodyReader`](host::BodyReader)).
//!
//! # A response of the edge
//!
//! A response of the edge (`crates/culvert-policy/src/response/reply.rs`) is JSON, text or a page, as the client
//! prefers. One table (`crates/culvert-policy/src/response/problem.rs`) has status, code, sentence, and the advice
//! that pages give. A page is a template (`crates/culvert-policy/src/response/error_page`) that escapes every
//! value; an operator's files replace it by status, with the rules of the connection.
//!
//! # A policy
//!
//! A policy (`crates/culvert-policy/src/policy`) is compiled when it is written, by the code that runs it:
//! expressions and templates become programs, configurations become actions. For a request, only the values that
//! its expressions name are built. An action runs immediately or is awaited (`Run`), so an action that decides from
//! existing values allocates nothing. Expressions see the request that would be sent: forwarding fields and host in
//! normal form are made before the first rule. Edits apply when the message is forwarded: to the upstream, to the
//! client, or to an internal endpoint with its own policy, whose response phase runs before that of the policy that
//! forwarded (`crates/culvert-edge/src/http/policy_chain.rs`). The engine sees the facts of a connection
//! (`crates/culvert-policy/src/conn.rs`) and reaches everything else through ports: requests, tasks, internal
//! endpoints and bodies (`crates/culvert-policy/src/ports/services.rs`, `crates/culvert-policy/src/ports/host.rs`).
//! The table of actions that control and the edge compile with is `crates/culvert-edge-config/src/actions.rs`.
//!
//! # Address data
//!
//! Address data (`crates/culvert-ip-data/src`) comes from files of the operator. A file is validated as a
//! whole when it is read, so a look-up cannot fail. It is laid out as sorted ranges and a table of records
//! (`crates/culvert-ip-data/src/flat.rs`). Each policy variable names the field it reads. Control rejects a
//! policy whose fields no file has. The edge rejects the traffic of a policy whose data is no longer loaded, and
//! `/readyz` reports it.
//!
//! # A rate limit
//!
//! A rate limit counts buckets by key in a table of fixed size, in which each client has a share
//! (`crates/culvert-policy/src/rate_limit/fair_table.rs`). With `scope: cluster` the edge writes and reads messages
//! with the counts of each node (`crates/culvert-policy/src/rate_limit/shared_counts.rs`) and decides by its own
//! counts and those it received. `crates/culvert-server/src/nodes/rate_exchange.rs` carries them as database
//! notifications (`crates/culvert-store/src/node/broadcast.rs`).

pub mod action_type;
pub mod conn;
pub mod event;
pub mod fuzz;
mod headers;
pub mod identity;
pub mod policy;
mod ports;
mod rate_limit;
mod response;
pub mod scheme;
mod token;

pub use culvert_ip_data as ipdata;
pub use culvert_ip_data::address::IpPolicy;
pub use culvert_ip_data::{IpData, IpDataFiles, IpDatabases, IpField, IpFields, Scalar};
pub use event::{capture, event_slots};
pub use headers::own_cookies;
pub use policy::compiled::{Policy, SecretUse};
pub use policy::context::{LoginService, Resources};
pub use policy::phase::Phase;
pub use policy::reference::reference;
pub use policy::run::OnExpressionError;
pub use policy::secret::REDACTED;
pub use policy::secrets::Secrets;
pub use policy::single_condition::single_condition;
pub use policy::source::{Reference, Source};
pub use ports::forward_target::ForwardTarget;
pub use ports::{host, services};
pub use rate_limit::shared_counts::{
    CountMeters, MESSAGE_BYTES_MAX, MESSAGES_MAX, SharedCounts, TELL_EVERY,
};
pub use rate_limit::{fair_table, shared_counts};
pub use response::error_page::{ErrorPages, ErrorPagesError, TEMPLATE_BYTES_MAX, TemplateError};
pub use response::{problem, reply};
pub use scheme::Scheme;
pub use token::{documents, jws, unique_json};
