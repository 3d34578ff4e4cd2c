//! The control plane: resources, permissions, and the inputs of the other planes.
//!
//! Control decides who may do what ([`caller`]), defines the form and rules of each resource
//! (`resource`), and compiles stored documents into the inputs of the other planes
//! ([`compile`]). It makes all decisions of the management API but contains none of its HTTP. It makes no
//! outgoing calls, so no write waits for another system.

mod access;
mod acl;
mod active_operators;
mod active_owners;
mod address_lock;
mod admission;
mod agents;
mod audit;
mod audit_kinds;
mod authentication;
mod authority;
mod base;
pub mod bootstrap;
pub mod caller;
mod captured;
mod captured_access;
mod certificate;
pub mod compile;
mod console_link;
mod console_provider;
mod console_session;
mod control;
mod cx;
mod destination_operations;
mod dry_run;
pub mod endpoint_health;
mod endpoint_selector;
mod error;
mod event_kinds;
mod event_query;
mod grants;
mod host;
mod informer_cache;
mod input;
mod key_operations;
mod key_restrictions;
mod key_use;
mod key_uses;
mod keyed_mutex;
mod list;
mod listfilter;
mod lockout;
mod login;
mod lost_commits;
mod management;
mod names;
mod node_list;
mod nodes;
mod open;
pub mod operation;
mod operations;
mod own_certificate;
mod owner;
mod page;
mod people;
mod platform;
mod pool;
mod ports;
mod read_set;
mod reconcile;
mod reencrypt;
mod relink;
mod replay;
mod replay_limits;
mod resource;
mod restriction;
mod right;
mod rights;
mod root;
pub mod seal;
mod secret_rights;
mod service;
mod settings;
mod sign_in;
mod ssh;
mod ssh_host_key;
mod ssh_issue;
mod standing;
mod statistics;
mod stored;
mod tail;
mod tenant;
pub mod token;
mod tombstones;
mod traffic_policy;
mod upgrade_grants;

pub use culvert_delivery::{Tail, TailSpec, Tailed};
pub use culvert_login::{
    CONSOLE_SIGN_IN_WITHIN, ConsoleOpenId, ConsoleProvider, LoginKeys, LoginSettings, Logins,
};
pub use culvert_store::Revision;

pub use crate::agents::state::{AgentLimits, AgentSettings};
pub use crate::audit_kinds::catalogue;
pub use crate::base::PublicPorts;
pub use crate::bootstrap::Bootstrap;
pub use crate::caller::{Caller, OwnerKind, PresentedToken, Role};
pub use crate::console_link::LinkUse;
pub use crate::console_provider::ConsoleSignIn;
pub use crate::console_session::{CONSOLE_SESSION_MAX, ConsoleSession};
pub use crate::control::{Control, Parts};
pub use crate::error::Error;
pub use crate::event_query::{EVENTS_PATH, Followed, Message, follows};
pub use crate::key_restrictions::{KeyRestrictions, Network};
pub use crate::node_list::{EventLogFacts, NodeFacts, StoreFacts};
pub use crate::nodes::node_identity;
pub use crate::operation::{
    BodySpec, Call, Handler, Method, ObjectRight, Operation, Reply, ResponseSpec, SchemaOf, Status,
};
pub use crate::operations::{collection_doc, operations, texts};
pub use crate::own_certificate::ApiCertificate;
pub use crate::page::Parameter;
pub use crate::people::Accepted;
pub use crate::ports::{CertificateMeters, Certificates, EdgePort, Issuer, Record};
pub use crate::reencrypt::{Reencrypted, reencrypt};
pub use crate::right::{Right, Scope, Scopes};
pub use crate::rights::{Access, Change, Rights, See, Use};
pub use crate::seal::{Pepper, Seal, login_key};
pub use crate::settings::{AgentMinimum, Settings};
pub use crate::sign_in::CONSOLE_CALLBACK_PATH;
pub use crate::statistics::{
    Keeper, Statistics, StatisticsMeters, StatisticsSettings, StatisticsSource,
};
pub use crate::tail::TAIL_RIGHT;
pub use crate::tombstones::retired;
pub use crate::upgrade_grants::grants_of_upgrade;

#[cfg(test)]
mod tests;
