//! What every resource of the management API needs: the five operations, lists, input, rights, stored forms, and the
//! context of a call.
//!
//! A resource is a [`Model`](resource::model::Model), its stored form and view, and a
//! [`Resource`](resource::Resource), its behaviour. Both become a row of the table of resources
//! ([`ResourceType`]), over which operations, schemas and tests loop. This crate knows no resource but those that
//! decide rights: users, bots and grants, whose behaviour other crates define.
//!
//! A subject of the control plane holds the shared [`Kernel`] and runs its operations in the context of a call
//! ([`Cx`]). A handler reads and decides; [`service`] commits its decision with the audit event.
//!
//! - [`access`]: who may see, use and change an object; owners, keys, grants.
//! - [`operation`], [`input`], [`list`]: requests, bodies and pages, before and after a handler.
//! - [`resource`], [`service`], [`audit`]: the behaviour of a resource and the write that it decides.
//! - [`stored`]: reading, writing, encrypting and caching documents.
//! - [`settings`], [`targets`], [`applied`], [`keyed_mutex`]: what the subjects share besides the store.

pub mod access;
pub mod applied;
pub mod audit;
pub mod cx;
pub mod error;
pub mod input;
pub mod keyed_mutex;
pub mod list;
pub mod operation;
pub mod resource;
pub mod service;
pub mod settings;
pub mod stored;
pub mod targets;

use std::sync::Arc;

use culvert_base::{Clock, Entropy, IdMaker, Refusal};
use culvert_store::Store;

pub use crate::access::caller::{Caller, OwnerKind, PresentedToken, Role};
use crate::access::key_uses::KeyUses;
use crate::applied::Applied;
use crate::audit::counted::Refusals;
use crate::cx::Cx;
use crate::cx::base::Base;
use crate::cx::policy_service::PolicyService;
pub use crate::error::Error;
use crate::input::force::{DRY_RUN, FORCE, flag};
use crate::keyed_mutex::KeyedMutex;
pub use crate::list::page::Parameter;
use crate::operation::{Call, OperationSpec};
use crate::resource::ResourceType;
use crate::settings::Settings;
use crate::stored::seal::{Pepper, Seal};

/// What the subjects of the control plane share.
#[derive(Debug)]
pub struct Kernel {
    /// The table of resources.
    pub resources: &'static [&'static ResourceType],
    /// The table of operations.
    pub operations: fn() -> &'static [OperationSpec],
    /// Stores the resources.
    pub store: Store,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness of IDs, tokens and encryption.
    pub entropy: Arc<dyn Entropy>,
    /// Makes IDs that sort by time.
    pub ids: Arc<IdMaker>,
    /// Encrypts stored secrets.
    pub seal: Seal,
    /// Digests tokens.
    pub pepper: Pepper,
    /// Configuration.
    pub settings: Settings,
    /// Held by a write while it reads, decides and commits.
    pub locks: KeyedMutex,
    /// What traffic policies may use of this process.
    pub policies: PolicyService,
    /// What the edge of this process has applied.
    pub applied: Applied,
    /// Refused calls and reads that events report together.
    pub refusals: Refusals,
    /// The last use of each API key on this node.
    pub key_uses: KeyUses,
}

impl Kernel {
    /// The context of a call by `caller` whose views have URIs below `base`.
    pub fn cx<'a>(&'a self, caller: &'a Caller, base: &'a str) -> Cx<'a> {
        Cx {
            resources: self.resources,
            operations: self.operations,
            store: &self.store,
            clock: &*self.clock,
            entropy: &*self.entropy,
            ids: &self.ids,
            locks: &self.locks,
            seal: &self.seal,
            pepper: &self.pepper,
            settings: &self.settings,
            policies: &self.policies,
            key_uses: &self.key_uses,
            caller,
            base: Base {
                viewer: (caller.role != Role::Admin).then_some(caller.owner_id.as_str()),
                ..self.base(base)
            },
            address: None,
            force: false,
            dry_run: false,
            by_server: false,
            cause: None,
            terms: None,
        }
    }

    /// The context of a change that can lock out. `parameters` are those that the operation accepts.
    ///
    /// # Errors
    ///
    /// 215, 231 and 232 if it accepts parameters and the query has something else.
    pub fn cx_of<'a>(
        &'a self,
        call: &'a Call,
        parameters: &[Parameter],
    ) -> Result<Cx<'a>, Refusal> {
        let is_set = |wanted: &Parameter| match parameters {
            [] => Ok(false),
            accepted => flag(&call.query, accepted, wanted),
        };
        Ok(Cx {
            address: Some(call.address),
            terms: Some(&call.terms),
            force: is_set(&FORCE)?,
            dry_run: is_set(&DRY_RUN)?,
            ..self.cx(&call.caller, &call.base)
        })
    }

    /// The base of views, with the public base of `uri` fields.
    pub fn base<'a>(&'a self, uri: &'a str) -> Base<'a> {
        Base {
            uri,
            ports: self.settings.public_ports,
            kubernetes_ingress: &self.settings.kubernetes_ingress,
            viewer: None,
        }
    }
}
