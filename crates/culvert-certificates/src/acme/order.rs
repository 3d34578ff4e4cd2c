//! The stored form of an order, and of the account it is placed with.

use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{Fault, IdMaker, Secret, Timestamp};
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, Key};
use culvert_tls::acme::{Challenge, ChallengeKind};
use serde::{Deserialize, Serialize};

use crate::CertificateManager;
use crate::acme::Asker;
use crate::acme::halt::Halt;
use crate::ports::Issuer;

/// Kind of the documents of orders.
pub const KIND: &str = "acme_order";
const PREFIX: &str = "acmeorder";
const KEY: &str = "domain";

const ACCOUNT_KIND: &str = "acme_account";
const ACCOUNT_PREFIX: &str = "acmeaccount";
const ACCOUNT_KEY: &str = "directory";

/// The other steps of an order emit no events.
pub(super) const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "the domain shows the steps to a certificate; the certificate itself has an event",
};

/// The stored form of an order.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    format: Format<1>,
    /// ID of the reserved domain or agent ingress of the order.
    pub(super) domain_id: String,
    /// Directory of the authority it is placed with; empty when there was none.
    pub(super) directory: String,
    /// URL of the order at the authority; `None` until it is placed.
    pub(super) url: Option<String>,
    /// Private key of the certificate, PEM, encrypted.
    pub(super) sealed_key: Option<String>,
    pub(super) answers: Vec<ChallengeResponse>,
    /// Consecutive failed attempts.
    pub(super) attempts: u32,
    pub(super) lease: Option<Lease>,
}

/// A response to a challenge, which an authority looks up.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct ChallengeResponse {
    kind: String,
    host: String,
    pub(super) token: String,
    answer: String,
    /// Name of the TXT record, for a DNS challenge.
    pub(super) record: Option<String>,
}

/// Lease duration, renewed by each commit.
pub(super) const LEASE: Duration = Duration::from_secs(300);

/// A node's exclusive right to run the steps of an order.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Lease {
    pub(super) node: String,
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
}

impl ChallengeResponse {
    pub(super) fn of(challenge: Challenge, record: Option<String>) -> Self {
        Self {
            kind: challenge.kind.name().to_owned(),
            host: challenge.host.to_string(),
            token: challenge.token,
            answer: challenge.answer,
            record,
        }
    }

    pub(super) fn kind(&self) -> Option<ChallengeKind> {
        ChallengeKind::parse(&self.kind)
    }

    /// The value of the TXT record.
    pub(super) fn record_value(&self) -> String {
        use base64::Engine;
        use base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, self.answer.as_bytes());
        URL_SAFE_NO_PAD.encode(digest)
    }
}

impl Order {
    pub(super) fn new(domain_id: String, directory: String) -> Self {
        Self {
            format: Format,
            domain_id,
            directory,
            url: None,
            sealed_key: None,
            answers: Vec::new(),
            attempts: 0,
            lease: None,
        }
    }

    /// The challenges that the edge responds to.
    pub(super) fn challenges(&self) -> impl Iterator<Item = Challenge> {
        self.answers.iter().filter_map(|answer| {
            Some(Challenge {
                kind: answer.kind()?,
                host: HostName::parse(&answer.host).ok()?,
                token: answer.token.clone(),
                answer: answer.answer.clone(),
            })
        })
    }

    /// When the lease of another process ends, if one holds it.
    pub(super) fn lease_end(&self, asker: Asker<'_>, now: Timestamp) -> Option<Timestamp> {
        let lease = self.lease.as_ref()?;
        let is_left_behind = lease.node == asker.node && lease.since < asker.since;
        // A longer one was taken by a clock that was ahead.
        let is_real = lease.until > now && lease.until <= now.plus(2 * LEASE);
        (is_real && !is_left_behind).then_some(lease.until)
    }

    /// Clears the state that belongs to the order at the authority.
    pub(super) fn forget(&mut self) {
        self.url = None;
        self.sealed_key = None;
        self.answers.clear();
    }
}

/// The document of a new order.
pub(super) fn document(manager: &CertificateManager, order: &Order) -> Result<Document, Fault> {
    let id = manager
        .kernel
        .ids
        .next(&*manager.kernel.clock, &*manager.kernel.entropy);
    Ok(Document {
        head: Head {
            id: format!("{PREFIX}_{id}"),
            kind: KIND.to_owned(),
            account: String::new(),
            revision: 0,
            created_at: id.at(),
            updated_at: id.at(),
        },
        body: stored::write(order)?,
        keys: vec![Key::new(KEY, &*order.domain_id)],
        refs: Vec::new(),
        topics: Vec::new(),
    })
}

/// The order of a domain, if there is one.
pub(super) async fn find(
    manager: &CertificateManager,
    domain_id: &str,
) -> Result<Option<(Document, Order)>, Fault> {
    let Some(document) = manager.kernel.store.find(KIND, KEY, domain_id).await? else {
        return Ok(None);
    };
    let order = stored::read(&document)?;
    Ok(Some((document, order)))
}

#[derive(Debug, Deserialize, Serialize)]
struct Account {
    format: Format<1>,
    sealed_key: String,
}

/// The key of the installation's account at an authority. It is stored before the authority receives it, so a
/// crash in between cannot leave an account without a key; except for accounts that are bound to an external one.
pub(super) async fn account_key(
    manager: &CertificateManager,
    issuer: &dyn Issuer,
) -> Result<Secret, Halt> {
    // Another external account has another account at the authority.
    let directory = match issuer.external_account() {
        Some(key_id) => format!("{} {key_id}", issuer.directory()),
        None => issuer.directory().to_owned(),
    };
    // If two nodes run this concurrently, one creates it and the other reads it.
    for _ in 0..2 {
        let found = manager
            .kernel
            .store
            .find(ACCOUNT_KIND, ACCOUNT_KEY, &directory);
        if let Some(document) = found.await? {
            let account: Account = stored::read(&document)?;
            return Ok(manager
                .kernel
                .seal
                .open(&document.head.id, &account.sealed_key)?);
        }
        let id = IdMaker::next(
            &manager.kernel.ids,
            &*manager.kernel.clock,
            &*manager.kernel.entropy,
        );
        let head = Head {
            id: format!("{ACCOUNT_PREFIX}_{id}"),
            kind: ACCOUNT_KIND.to_owned(),
            account: String::new(),
            revision: 0,
            created_at: id.at(),
            updated_at: id.at(),
        };
        let key = issuer.new_account().await?;
        let sealed_key =
            manager
                .kernel
                .seal
                .seal(&*manager.kernel.entropy, &head.id, key.reveal())?;
        let document = Document {
            body: stored::write(&Account {
                format: Format,
                sealed_key,
            })?,
            head,
            keys: vec![Key::new(ACCOUNT_KEY, &*directory)],
            refs: Vec::new(),
            topics: Vec::new(),
        };
        match manager
            .kernel
            .store
            .commit(Changes::insert(document, NOTHING))
            .await
        {
            Ok(_) | Err(CommitError::Duplicate { .. }) => {}
            Err(error) => return Err(Fault::new("storing the ACME account key", error).into()),
        }
    }
    Err(Fault::bare("reading the new ACME account key").into())
}
