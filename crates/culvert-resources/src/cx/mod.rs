//! The context of a handler: the store to read, clock, randomness, encryption, settings, and the caller.
//!
//! A handler reads and decides; it cannot write. It returns its decision as a value, which `service` commits.

pub mod base;
pub mod policy_service;

use std::net::IpAddr;

use culvert_base::{Clock, Entropy, Fault, IdMaker, Ksuid};
use culvert_store::{Document, Head, PageQuery, Store};

use crate::Caller;
use crate::access::key_uses::KeyUses;
use crate::cx::base::Base;
use crate::cx::policy_service::PolicyService;
use crate::keyed_mutex::KeyedMutex;
use crate::list::page::LIMIT_MAX;
use crate::operation::OperationSpec;
use crate::operation::terms::Terms;
use crate::resource::ResourceType;
use crate::settings::Settings;
use crate::stored::seal::{Pepper, Seal};

/// The context of one call.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The table of resources.
    pub resources: &'static [&'static ResourceType],
    /// The table of operations.
    pub operations: fn() -> &'static [OperationSpec],
    /// Read only: `service` writes.
    pub store: &'a Store,
    /// The time of the call.
    pub clock: &'a dyn Clock,
    /// Randomness of IDs, tokens and encryption.
    pub entropy: &'a dyn Entropy,
    /// Makes IDs that sort by time.
    pub ids: &'a IdMaker,
    /// Held by writes while they read, decide and commit.
    pub locks: &'a KeyedMutex,
    /// Encrypts stored secrets.
    pub seal: &'a Seal,
    /// Digests tokens.
    pub pepper: &'a Pepper,
    /// Configuration.
    pub settings: &'a Settings,
    /// What traffic policies may use of this process.
    pub policies: &'a PolicyService,
    /// The last use of each API key on this node.
    pub key_uses: &'a KeyUses,
    /// Whose rights decide.
    pub caller: &'a Caller,
    /// The public base of views.
    pub base: Base<'a>,
    /// The address that the call came from; `None` for work that no call started.
    pub address: Option<IpAddr>,
    /// Whether the caller accepts that the change locks out.
    pub force: bool,
    /// Whether nothing is written, and the caller wants to know what the new object could do.
    pub dry_run: bool,
    /// Whether the server decided, so that events name no caller.
    pub by_server: bool,
    /// `ev_…` of the event that the call follows.
    pub cause: Option<&'a str>,
    /// Conditions and the key of the call; `None` for work that no call started.
    pub terms: Option<&'a Terms>,
}

impl Cx<'_> {
    /// The body of a new id.
    pub fn new_id(&self) -> Ksuid {
        self.ids.next(self.clock, self.entropy)
    }

    /// A document of the caller's account. A document of another account counts as absent, so that callers
    /// cannot find out which IDs exist.
    pub async fn own(&self, kind: &str, id: &str) -> Result<Option<Document>, Fault> {
        let document = self.store.get(kind, id).await?;
        Ok(document.filter(|document| document.head.account == self.caller.account))
    }

    /// Every document of a kind that refers to `to`, oldest first.
    pub async fn referring(&self, kind: &str, to: &Head) -> Result<Vec<Document>, Fault> {
        let mut documents: Vec<Document> = Vec::new();
        loop {
            let query = PageQuery {
                kind: kind.to_owned(),
                account: to.account.clone(),
                before: documents.last().map(|document| document.head.id.clone()),
                limit: LIMIT_MAX,
                refs_to: Some(to.id.clone()),
            };
            let page = self.store.page(&query).await?;
            if page.is_empty() {
                documents.reverse();
                return Ok(documents);
            }
            documents.extend(page);
        }
    }
}
