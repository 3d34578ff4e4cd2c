//! The control plane: resources, permissions, and the inputs of the other planes.
//!
//! It makes all decisions of the management API but contains none of its HTTP. It makes no outgoing calls, so no
//! write waits for another system.
//!
//! Each subject is a crate, with its resources and its state, and what all need is in `crates/culvert-resources`:
//!
//! ```text
//!              ┌─ identity ──────┐
//! resources ◀──┤                 ├◀─ endpoints ◀─┬─ agents ◀─────────┬─ compile, operations, control
//!              └─ certificates ──┘               └─ event-config ◀───┘
//! ```
//!
//! Here are:
//!
//! - `compile`: stored documents as the inputs of edge and delivery.
//! - `server_watch`: the task that reports what the server does; the events are in `crates/culvert-server-log`.
//! - `alerting`: which alert rules are true, and the alerts that follow.
//! - `upgrade`: the start of the control plane, which completes what older versions stored.
//!
//! A subject has its own state, with the shared `Kernel` in it. [`Control`] holds the subjects, and
//! [`operations`] joins their tables.
//!
//! # A list with a filter
//!
//! A list with a filter (`crates/culvert-resources/src/list/mod.rs`). The filter runs on the view of each object
//! that is read. The conditions that every match must meet decide which objects are read. Strings that filters may
//! name have rows beside the documents (`crates/culvert-store/src/document/text_index.rs`), written in the same
//! commit. The ledger row says up to which revision these rows are complete: a server of an older format writes
//! documents without them. A background task adds the missing rows; lists work without them meanwhile.
//!
//! # A change reaching the edge
//!
//! A commit increments the store's revision and notes which documents it touched
//! (`crates/culvert-store/src/feed/mod.rs`). On PostgreSQL it also notifies the other nodes of them
//! (`crates/culvert-store/src/feed/notifications.rs`). `crates/culvert-resources/src/stored/informer_cache.rs`
//! reads and compiles only those documents. Where the feed does not know them, as after a lost connection, it
//! queries the database for what was written since. `crates/culvert-control/src/compile` hands the edge a `Change`,
//! and delivery a `TableChange` (`crates/culvert-delivery/src/subscription/mod.rs`). The edge applies it to tables
//! whose copies share unchanged parts (`crates/culvert-base/src/persistent_map.rs`), so a change costs the same
//! with ten endpoints and with a hundred thousand. Delivery does the same with its table. Requests in flight keep
//! the tables they began with. A whole snapshot is published at the start, every hour, and when IP restrictions or
//! nodes change. The API's response to a write waits until the edge of its process has applied it, for at most a
//! second; after that it has the header `culvert-applied: pending`.
//!
//! # A certificate
//!
//! A managed domain is due → `crates/culvert-certificates/src/acme` takes the lease of its order, a
//! document beside the domain → control has no network client, so each step goes through its port `Issuer` to
//! `crates/culvert-tls/src/acme` which sends its requests through the guarded client
//! (`crates/culvert-upstream/src/fetch.rs`), and is stored before the next → records of DNS challenges are written
//! by `crates/culvert-dns`, through the same client, or by the operator's program → challenge responses are
//! documents too, and reach every node's edge in its snapshot → the certificate, the domain's update and the
//! order's end are one commit, whose events have no principal. The installation's own public names
//! (`crates/culvert-certificates/src/own_certificate.rs`) are managed the same way: a document that no
//! account sees has the certificate itself, and the edge, the agent listener and the API select from it.
//!
//! # A new master key
//!
//! The key file contains the new and the old key until no document has a secret under the old one. `reseal` finds
//! encrypted values in any stored document: an encrypted value is bound to the id of its document.
//!
//! # A right
//!
//! Each row of the operation table has the lowest role and the scope that it needs
//! (`crates/culvert-resources/src/access/right.rs`). The scope is checked before the operation runs. Who may
//! see, use and change an object is a row of its resource (`crates/culvert-resources/src/access/rights.rs`),
//! and `crates/culvert-resources/src/access/mod.rs` decides by it: change in the service that all resources
//! share, use wherever an object refers to another. Use is checked for the owner of the referring object, by
//! ownership and grants. The table of grants is compiled with the rest
//! (`crates/culvert-access/src/use_table.rs`), so edge and delivery refuse what a grant no longer covers.
//! Secrets in policies are followed through variables and results when the policy is compiled
//! (`crates/culvert-policy/src/policy/taint.rs`). A change that would leave no admin a way in has a condition that
//! the commit checks (`crates/culvert-identity/src/lockout.rs`). The restrictions of a key
//! (`crates/culvert-resources/src/access/key_restrictions.rs`) are in its document, which authentication reads
//! anyway. Whatever a restricted key creates has its restrictions, or is refused.
//!
//! # An agent's session
//!
//! An agent's session begins in `crates/culvert-tunnel/src/server` and is decided in `crates/culvert-agents/src`,
//! which implements the plane's `AgentAuthorizer` over the store: credential, restrictions, limits → a document and
//! its event in one commit. Each endpoint it binds is an `endpoint` document with the run of the server it is
//! connected to; the response waits until the edge of this process has it. Options become rules of a traffic policy
//! (`crates/culvert-agents/src/options.rs`, a row each). The edge sees an upstream and its port `Dial`
//! (`crates/culvert-upstream/src/agent.rs`); `crates/culvert-server/src/nodes/to_agents.rs` is the adapter. After
//! the TLS handshake, a thread of the edge moves the connection's bytes
//! (`crates/culvert-tunnel/src/server/ingress.rs`), so most requests to an agent wake no other thread. A session
//! whose connection breaks has a few seconds to resume before it ends, and its names stay reserved for its owner
//! for minutes more (`crates/culvert-endpoints/src/host.rs`). The next server to start ends the sessions of a run
//! that died (`crates/culvert-agents/src/failure_detector.rs`).

mod alerting;
mod audit_hold;
mod bootstrap;
mod catalogue;
mod compile;
mod control;
mod grant;
mod operations;
mod server_watch;
mod upgrade;

pub use culvert_agents::AgentControl;
pub use culvert_agents::nodes::node_identity;
pub use culvert_agents::state::AgentSettings;
pub use culvert_certificates::CertificateManager;
pub use culvert_certificates::own_certificate::ApiCertificate;
pub use culvert_certificates::ports::{CertificateMeters, Certificates, Issuer, Record};
pub use culvert_delivery::{Tail, TailSpec, Tailed};
pub use culvert_endpoints::EndpointConfig;
pub use culvert_endpoints::health::policy_misuses;
pub use culvert_endpoints::traffic_policy::runtime::PolicyRuntime;
pub use culvert_event_config::EventConfig;
pub use culvert_event_config::destination::targets::Targets;
pub use culvert_event_config::event_query::{Followed, Message, follows, ids_of};
pub use culvert_event_config::ports::EdgePort;
pub use culvert_event_config::statistics::{
    Keeper, Statistics, StatisticsMeters, StatisticsSource,
};
pub use culvert_events::{CallContext, Via};
pub use culvert_identity::Identity;
pub use culvert_identity::console::link::LinkUse;
pub use culvert_identity::console::provider::ConsoleSignIn;
pub use culvert_identity::console::session::{CONSOLE_SESSION_MAX, ConsoleSession};
pub use culvert_identity::console::sign_in::{CONSOLE_CALLBACK_PATH, PendingSignIn};
pub use culvert_identity::leak::{LEAKED_TOKENS_PATH, signed_tokens};
pub use culvert_identity::user::people::Accepted;
pub use culvert_login::{
    CONSOLE_SIGN_IN_WITHIN, ConsoleOpenId, ConsoleProvider, LeakPartner, LoginKeys, LoginSettings,
    Logins, NotSigned,
};
pub use culvert_resources::access::caller::Origin;
pub use culvert_resources::access::grant::grants_of_upgrade;
pub use culvert_resources::access::key_restrictions::{KeyRestrictions, Network};
pub use culvert_resources::access::policy_misuse::PolicyMisuse;
pub use culvert_resources::access::right::{Right, Scope, Scopes};
pub use culvert_resources::access::rights::{Access, Change, Rights, See, Use};
pub use culvert_resources::access::token;
pub use culvert_resources::cx::base::PublicPorts;
pub use culvert_resources::operation::terms::{TagKey, Terms};
pub use culvert_resources::operation::{
    BodySpec, Call, EVENTS_PATH, Method, ObjectRight, Reply, ResponseSpec, SchemaOf, Status,
};
pub use culvert_resources::settings::{
    AgentLimits, AgentMinimum, Leaked, Settings, StatisticsSettings,
};
pub use culvert_resources::stored::copy_entry::CopyEntry;
pub use culvert_resources::stored::lost_events::{Loss, LostEvents};
pub use culvert_resources::stored::reencrypt::{Reencrypted, reencrypt};
pub use culvert_resources::stored::seal::{Pepper, Seal, login_key};
pub use culvert_resources::{Caller, Error, OwnerKind, Parameter, PresentedToken, Role};
pub use culvert_store::{AuditFile, Revision};

pub use crate::alerting::meters::AlertMeters;
pub use crate::alerting::{AlertEvaluator, AlertSettings};
pub use crate::bootstrap::{Bootstrap, first_account};
pub use crate::catalogue::catalogue;
pub use crate::compile::copied::{CopySource, fill_from_copy};
pub use crate::control::{Control, Parts};
pub use crate::operations::node_list::{EventLogFacts, NodeFacts, StoreFacts};
pub use crate::operations::{Operation, collection_doc, operation_specs, operations, texts};
pub use crate::server_watch::ServerWatch;
pub use culvert_server_log::ServerLog;
pub use culvert_server_log::command::AdminCommand;
pub use culvert_server_log::ended::LostHead;
pub use culvert_server_log::reload::Reloaded;
pub use culvert_server_log::run::{RunFacts, StopReason};

#[cfg(test)]
mod tests;
