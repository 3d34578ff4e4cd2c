//! Events of the server itself: its starts and stops, its nodes, commands on its machine, the delivery of its events, and
//! certificates and keys that expire (contract: audit 1).
//!
//! An event that occurs once has a mark, a document that is written in its commit: it is not repeated after a restart, and
//! of several nodes one reports it. All these events belong to the first account, the account of the
//! installation.
//!
//! Not here: the task that looks at the parts of the process (`crates/culvert-control/src/server_watch.rs`), and events of
//! calls of the API (`crates/culvert-resources/src/audit`).

mod backup;
pub mod command;
pub mod destinations;
pub mod ended;
mod expiry;
pub mod kinds;
pub mod mark;
pub mod members;
mod names;
mod pruning;
pub mod reload;
pub mod run;
pub mod traffic_log;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use culvert_base::{Clock, Entropy, Event, Fault};
use culvert_events::{Audit, EventId, Principal};
use culvert_resources::access::tenant::Account;
use culvert_store::{Changes, CommitError, Store};
use serde::Serialize;

/// Writes events of the server itself.
#[derive(Clone, Debug)]
pub struct ServerLog {
    /// Where events and marks are written.
    pub store: Store,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness of IDs.
    pub entropy: Arc<dyn Entropy>,
    /// IDs of marks that were logged because they cannot be read.
    unreadable: Arc<Mutex<BTreeSet<String>>>,
}

impl ServerLog {
    /// A log in this store.
    pub fn new(store: Store, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self {
            store,
            clock,
            entropy,
            unreadable: Arc::default(),
        }
    }

    /// The account of the installation; `None` before the first start.
    ///
    /// # Errors
    /// The store fails.
    pub async fn account(&self) -> Result<Option<String>, Fault> {
        let (key, value) = Account::FIRST;
        let found = self.store.find(Account::KIND, key, value).await?;
        Ok(found.map(|account| account.head.id))
    }

    /// An event of the server, or of a command on its machine.
    ///
    /// # Errors
    /// The object cannot be written.
    pub fn event(
        &self,
        account: &str,
        kind: &str,
        principal: Option<&Principal>,
        object: &impl Serialize,
    ) -> Result<Event, Fault> {
        event(
            (&*self.clock, &*self.entropy),
            account,
            kind,
            principal,
            object,
        )
    }

    /// Commits, unless another node was faster: then `false`.
    ///
    /// # Errors
    /// The store fails.
    pub async fn commit_once(&self, doing: &'static str, changes: Changes) -> Result<bool, Fault> {
        match self.store.commit(changes).await {
            Ok(_) => Ok(true),
            Err(CommitError::Stale | CommitError::Duplicate { .. }) => Ok(false),
            Err(error) => Err(Fault::new(doing, error)),
        }
    }
}

/// An event of the server, or of a command on its machine.
pub(crate) fn event(
    (clock, entropy): (&dyn Clock, &dyn Entropy),
    account: &str,
    kind: &str,
    principal: Option<&Principal>,
    object: &impl Serialize,
) -> Result<Event, Fault> {
    let at = clock.now();
    let id = EventId::new(at, entropy.bytes());
    let audit = Audit {
        principal,
        ..Audit::by_server(kind, at, &id, account)
    };
    audit.about(object)
}
