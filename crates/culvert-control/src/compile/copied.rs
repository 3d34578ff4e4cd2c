//! A copy of the stored documents that the edge is compiled from, for a start while the database is away.
//!
//! [`CopySource`] reads them, and then what has changed. Control that was opened over such a copy
//! ([`Control::open_copy`]) compiles it for the edge, as it does with the database, and nothing else.
//!
//! The copy has neither endpoints of agents, which are bound again when the agents connect, nor Kubernetes operators,
//! sessions of visitors and orders of certificates: what needs them is refused. Secrets stay encrypted, and users are
//! reduced to their roles.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use culvert_base::Fault;
use culvert_store::{AuditEvent, Changes, Document, Revision, Store};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::RETRY_AFTER;
use super::state::CompileState;
use crate::control::Control;
use culvert_access::ip::policy_model::IpPolicy;
use culvert_access::ip::policy_rule_model::IpPolicyRule;
use culvert_access::ip::restriction_model::IpRestriction;
use culvert_agents::ingress::model::AgentIngress;
use culvert_certificates::authority::{self, Authority};
use culvert_certificates::certificate_authority::model::CertificateAuthority;
use culvert_certificates::own_certificate;
use culvert_certificates::tls_certificate::model::TlsCertificate;
use culvert_endpoints::endpoint::model::Endpoint;
use culvert_endpoints::reserved_domain::model::ReservedDomain;
use culvert_endpoints::secret_rights::GRACE_MARK;
use culvert_endpoints::vault::model::Vault;
use culvert_endpoints::vault::secret_model::VaultSecret;
use culvert_resources::access::bot_user::BotUser;
use culvert_resources::access::grant::Grant;
use culvert_resources::access::user::User;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_resources::stored::copy_entry::CopyEntry;

/// The kinds of a copy, those that others refer to first.
const KINDS: [&str; 14] = [
    authority::KIND,
    User::KIND,
    BotUser::KIND,
    Grant::KIND,
    IpPolicy::KIND,
    IpPolicyRule::KIND,
    IpRestriction::KIND,
    CertificateAuthority::KIND,
    Vault::KIND,
    VaultSecret::KIND,
    TlsCertificate::KIND,
    own_certificate::KIND,
    ReservedDomain::KIND,
    AgentIngress::KIND,
];
/// Documents of one commit into a store.
const ADDED_TOGETHER: usize = 500;
const NO_EVENT: AuditEvent = AuditEvent::Suppress {
    reason: "the document is a copy of one whose write had its event",
};

fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().chain([Endpoint::KIND])
}

/// Reads the entries of a copy from the store.
#[derive(Debug)]
pub struct CopySource {
    store: Store,
    /// All commits up to this revision were read.
    complete_to: Option<Revision>,
    /// The documents that were read and are still there.
    ids: HashSet<String>,
}

impl CopySource {
    /// A source that has read nothing yet.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            complete_to: None,
            ids: HashSet::new(),
        }
    }

    /// The revision up to which everything was read; `None` if all must be read again.
    pub fn complete_to(&self) -> Option<Revision> {
        self.complete_to
    }

    /// Reads all entries. Writes of the meantime may be missing: [`Self::changes`] has them.
    ///
    /// # Errors
    /// If the store cannot be read, or the first error of `each`.
    pub async fn all(
        &mut self,
        mut each: impl FnMut(CopyEntry) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.complete_to = None;
        self.ids.clear();
        let (until, _) = self.store.touched(Revision::START).await;
        if let Some(value) = self.store.meta_get(GRACE_MARK).await? {
            let name = GRACE_MARK.to_owned();
            each(CopyEntry::Named { name, value })?;
        }
        for kind in kinds() {
            let mut outcome = Ok(());
            let ids = &mut self.ids;
            let copy = |document: Document| {
                if outcome.is_ok()
                    && let Some(document) = reduced(document)
                {
                    ids.insert(document.head.id.clone());
                    outcome = each(CopyEntry::Put(document));
                }
            };
            self.store.each_changed(kind, 0, copy).await?;
            outcome?;
        }
        self.complete_to = Some(until);
        Ok(())
    }

    /// The entries of the documents that were written since the last call, or since [`Self::all`]. `None` if they are not known; then all
    /// must be read again.
    ///
    /// # Errors
    /// If the store cannot be read. Then the next call has the same entries.
    pub async fn changes(&mut self) -> Result<Option<Vec<CopyEntry>>, Fault> {
        let Some(known) = self.complete_to else {
            return Ok(None);
        };
        let (until, touched) = self.store.touched(known).await;
        let Some(touched) = touched.filter(|_| until.epoch == known.epoch) else {
            self.complete_to = None;
            return Ok(None);
        };
        let touched: BTreeSet<(&str, &str)> = touched
            .iter()
            .filter(|one| kinds().any(|kind| kind == one.kind))
            .map(|one| (&*one.kind, &*one.id))
            .collect();
        let mut read = Vec::new();
        for (kind, id) in touched {
            let document = self.store.get(kind, id).await?;
            read.push((id.to_owned(), document.and_then(reduced)));
        }
        let mut entries = Vec::new();
        for (id, document) in read {
            match document {
                Some(document) => {
                    self.ids.insert(id);
                    entries.push(CopyEntry::Put(document));
                }
                None if self.ids.remove(&id) => entries.push(CopyEntry::Remove { id }),
                None => {}
            }
        }
        self.complete_to = Some(until);
        Ok(Some(entries))
    }
}

/// A document with only what the edge needs of it; `None` if that is nothing.
fn reduced(mut document: Document) -> Option<Document> {
    let kind = document.head.kind.as_str();
    let report = |fault: &Fault| error!(cause = %fault.chain(), "not copied");
    if kind == Endpoint::KIND {
        let endpoint = stored::read::<Endpoint>(&document).inspect_err(report);
        if endpoint.ok()?.served.is_some() {
            return None;
        }
    } else if kind == User::KIND {
        let user = stored::read::<User>(&document).inspect_err(report).ok()?;
        let role_alone = User {
            email: String::new(),
            invitation: None,
            openid: None,
            is_by_group: false,
            ..user
        };
        document.body = stored::write(&role_alone).inspect_err(report).ok()?;
    } else if kind == authority::KIND && !authority::is_of_endpoints(&document) {
        return None;
    }
    // Only these are read by a key or a reference.
    if kind != authority::KIND {
        document.keys.clear();
    }
    let is_of_rule = kind == IpPolicyRule::KIND;
    document
        .refs
        .retain(|reference| is_of_rule && reference.field == "ip_policy_id");
    document.topics.clear();
    Some(document)
}

/// Fills an empty store with the documents of a copy, which get new revisions.
///
/// # Errors
/// If the entries contradict each other, or the store cannot be written.
pub async fn fill_from_copy(
    entries: impl IntoIterator<Item = CopyEntry>,
    store: &Store,
) -> Result<(), Fault> {
    let mut documents = BTreeMap::new();
    for entry in entries {
        match entry {
            CopyEntry::Put(document) => {
                documents.insert(document.head.id.clone(), document);
            }
            CopyEntry::Remove { id } => {
                documents.remove(&id);
            }
            CopyEntry::Named { name, value } => store.meta_set(&name, &value).await?,
        }
    }
    let mut by_kind: BTreeMap<usize, Vec<Document>> = BTreeMap::new();
    for document in documents.into_values() {
        let place = kinds().position(|kind| kind == document.head.kind);
        let place = place.ok_or_else(|| {
            Fault::bare(format!(
                "reading a copy: unknown kind {}",
                document.head.kind
            ))
        })?;
        by_kind.entry(place).or_default().push(document);
    }
    if !by_kind.contains_key(&0) {
        return Err(Fault::bare(
            "reading a copy: it has no certificate authority",
        ));
    }
    // A policy that went between two reads is missing, which allows no address. Its rules say nothing any more.
    let policies: HashSet<String> = by_kind
        .values()
        .flatten()
        .filter(|document| document.head.kind == IpPolicy::KIND)
        .map(|document| document.head.id.clone())
        .collect();
    for documents in by_kind.into_values() {
        let mut documents = documents.into_iter().filter(|document| {
            let mut refs = document.refs.iter();
            refs.all(|reference| policies.contains(&reference.to))
        });
        loop {
            let some = documents.by_ref().take(ADDED_TOGETHER);
            let inserts: Vec<Changes> = some
                .map(|document| Changes::insert(document, NO_EVENT))
                .collect();
            if inserts.is_empty() {
                break;
            }
            let changes = inserts.into_iter().reduce(Changes::and).unwrap_or_default();
            let committed = store.commit(changes).await;
            committed.map_err(|error| Fault::new("filling a store from a copy", error))?;
        }
    }
    Ok(())
}

impl Control {
    /// Compiles documents of a copy for the edge until cancelled: grants and certificates end when they expire.
    pub async fn run_copy(self: Arc<Self>, cancel: CancellationToken) {
        let mut authority = self.certificates.authority.lock().await;
        let mut state = CompileState::empty(Arc::clone(&self.endpoints.policies.logins));
        loop {
            let compiled = self.copy_pass(&mut authority, &mut state).await;
            self.has_failed.store(compiled.is_err(), Ordering::Relaxed);
            let next = match compiled {
                // Often, because the clock may be set forward.
                Ok(()) => self
                    .next_pass(&state)
                    .clamp(Duration::from_millis(1), super::CONFIRM_EVERY),
                Err(fault) => {
                    error!(cause = %fault.chain(), "the copy of the configuration failed to compile");
                    RETRY_AFTER
                }
            };
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                () = cancel.cancelled() => return,
            }
        }
    }

    async fn copy_pass(
        &self,
        authority: &mut Authority,
        state: &mut CompileState,
    ) -> Result<(), Fault> {
        let now = self.kernel.clock.now();
        state.uses.refresh(&self.kernel.store, now).await?;
        self.compile_own_certificates(state).await?;
        if let Some(edge) = &self.edge {
            self.compile_edge(&**edge, authority, state).await?;
        }
        Ok(())
    }
}
