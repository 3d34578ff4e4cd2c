//! The context of a handler: the store to read, clock, randomness, encryption, settings, and the caller.
//!
//! A handler reads and decides; it cannot write. It returns its decision as a value, which `service` commits.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_base::{Clock, Entropy, Fault, IdMaker, Ksuid};
use culvert_login::Logins;
use culvert_store::{Document, Head, PageQuery, Store};

use crate::Caller;
use crate::base::Base;
use crate::keyed_mutex::KeyedMutex;
use crate::page::LIMIT_MAX;
use crate::seal::{Pepper, Seal};
use crate::settings::Settings;

/// The context of one call.
#[derive(Debug)]
pub(crate) struct Cx<'a> {
    pub(crate) store: &'a Store,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) entropy: &'a dyn Entropy,
    pub(crate) ids: &'a IdMaker,
    pub(crate) locks: &'a KeyedMutex,
    pub(crate) seal: &'a Seal,
    pub(crate) pepper: &'a Pepper,
    pub(crate) settings: &'a Settings,
    /// State that sign-ins share.
    pub(crate) logins: &'a Arc<Logins>,
    pub(crate) caller: &'a Caller,
    /// The public base of views.
    pub(crate) base: Base<'a>,
    /// The address that the call came from; `None` for work that no call started.
    pub(crate) address: Option<IpAddr>,
    /// Whether the caller accepts that the change locks out.
    pub(crate) force: bool,
}

impl Cx<'_> {
    /// The body of a new id.
    pub(crate) fn new_id(&self) -> Ksuid {
        self.ids.next(self.clock, self.entropy)
    }

    /// A document of the caller's account. A document of another account counts as absent, so that callers
    /// cannot find out which IDs exist.
    pub(crate) async fn own(&self, kind: &str, id: &str) -> Result<Option<Document>, Fault> {
        let document = self.store.get(kind, id).await?;
        Ok(document.filter(|document| document.head.account == self.caller.account))
    }

    /// Every document of a kind that refers to `to`, oldest first.
    pub(crate) async fn referring(&self, kind: &str, to: &Head) -> Result<Vec<Document>, Fault> {
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
