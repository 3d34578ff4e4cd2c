//! One attempt to obtain a certificate for a domain: the steps in order, and how the attempt ends.

use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{Fault, RetryAfter, Secret, Timestamp};
use culvert_resources::audit::verb::Verb;
use culvert_resources::service::RUNS_MAX;
use culvert_resources::{Error, stored};
use culvert_store::{Changes, CommitError, Document, Head, Revision};
use culvert_tls::acme::{Blame, Challenge, ChallengeKind, Failure, Order as Placed, OrderState};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256,
    RsaKeySize,
};
use tracing::{debug, error, info, warn};

use crate::acme::halt::Halt;
use crate::acme::holder::Holder;
use crate::acme::order::{ChallengeResponse, LEASE, Lease, NOTHING};
use crate::acme::report::{self, Reported};
use crate::acme::{Asker, Due, Order, due_for, order, wait_after};
use crate::management::model::{Job, JobError, KeyType};
use crate::ports::{Certificates, Issuer, Record};
use crate::tls_certificate::model::TlsCertificate;
use crate::{CertificateManager, tls_certificate};

/// Time limit of an attempt. A later attempt resumes the order.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(240);
const _: () = assert!(
    ATTEMPT_WITHIN.as_secs() < LEASE.as_secs(),
    "an attempt ends before its lease"
);
/// Time limit for the edge of this process to serve a challenge response.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);
/// First and longest interval for polling the authority.
const LOOK_AFTER: Duration = Duration::from_millis(200);
const LOOK_AFTER_MAX: Duration = Duration::from_secs(5);
/// Longest interval that the authority may request.
const LOOK_ASKED_MAX: Duration = Duration::from_secs(60);

/// An order that this process holds the lease of.
struct ClaimedOrder {
    document: Document,
    order: Order,
    /// The names of the certificate.
    names: Vec<HostName>,
    /// The name at which challenge records are published.
    target: Option<String>,
    /// Whether DNS records may be written for these names, although they are no wildcards.
    is_own: bool,
    /// The chain of the certificate to renew, PEM.
    replaces: Option<String>,
    key_type: KeyType,
    /// The revision of the last commit.
    revision: Revision,
}

impl CertificateManager {
    /// Runs the due work of a domain, if it is still due, and records the result.
    pub(super) async fn attempt(&self, domain_id: &str, since: Timestamp) {
        let Some(certificates) = &self.certificates else {
            return;
        };
        let asker = Asker {
            node: &certificates.node,
            since,
            directory: certificates.directory(),
        };
        let mut claim = match self.claim(domain_id, asker).await {
            Ok(Some(claim)) => claim,
            Ok(None) | Err(Halt::Overtaken) => return,
            Err(Halt::Failed { failure, .. }) => {
                warn!(domain.id = domain_id, %failure, "domain cannot be managed");
                return;
            }
            Err(Halt::Faulted(fault)) => {
                error!(domain.id = domain_id, cause = %fault.chain(), "domain is waiting for its certificate");
                return;
            }
        };
        let running =
            tokio::time::timeout(ATTEMPT_WITHIN, self.run_order(certificates, &mut claim));
        let halt = match running.await {
            Ok(Ok(())) => return,
            Ok(Err(halt)) => halt,
            Err(_) => Failure::passing("the certificate authority did not respond in time").into(),
        };
        let (failure, is_over) = match halt {
            Halt::Overtaken => {
                debug!(
                    domain.id = domain_id,
                    "another node took over a certificate order"
                );
                return;
            }
            Halt::Failed { failure, is_over } => (failure, is_over),
            Halt::Faulted(fault) => {
                error!(domain.id = domain_id, cause = %fault.chain(), "certificate request failed");
                (
                    Failure::passing("internal error; see the server log"),
                    false,
                )
            }
        };
        self.meters.failed.up();
        warn!(
            domain.id = domain_id,
            domain = claim.described(),
            attempt = claim.order.attempts.saturating_add(1),
            %failure,
            "certificate request failed"
        );
        if is_over {
            self.clean_up(certificates, &claim.order.answers).await;
            claim.order.forget();
        }
        let noting = self.note_failure(certificates, claim, &failure);
        if let Err(Halt::Faulted(fault)) = self.kernel.locks.with(&[domain_id], noting).await {
            error!(domain.id = domain_id, cause = %fault.chain(), "recording a certificate failure failed");
        }
    }

    /// Takes the lease of a domain's order and creates the order if there is none. Returns `None` when
    /// nothing is due any more. Removes the leftovers of a domain that is no longer managed.
    async fn claim(&self, domain_id: &str, asker: Asker<'_>) -> Result<Option<ClaimedOrder>, Halt> {
        let mut leftovers = Vec::new();
        let claiming = self.claim_locked(domain_id, asker, &mut leftovers);
        let claimed = self.kernel.locks.with(&[domain_id], claiming).await?;
        if let Some(certificates) = &self.certificates {
            self.clean_up(certificates, &leftovers).await;
        }
        Ok(claimed)
    }

    async fn claim_locked(
        &self,
        domain_id: &str,
        asker: Asker<'_>,
        leftovers: &mut Vec<ChallengeResponse>,
    ) -> Result<Option<ClaimedOrder>, Halt> {
        let now = self.kernel.clock.now();
        let found = order::find(self, domain_id).await?;
        let managed = Holder::managed(self, domain_id).await?;
        let Some((mut document, mut domain)) = managed else {
            if let Some((document, order)) = found
                && order.lease_end(asker, now).is_none()
            {
                *leftovers = order.answers;
                self.kernel
                    .store
                    .commit(Changes::remove(document.head, NOTHING))
                    .await?;
            }
            return Ok(None);
        };
        let Some(management) = domain.management_mut() else {
            return Ok(None);
        };
        let order = found.as_ref().map(|(_, order)| order);
        if due_for(management, order, asker, now) != Due::Now {
            return Ok(None);
        }
        let key_type = management.private_key_type;
        let is_begun = management.job.is_some();
        // Also true after a requested retry, which resets the waits.
        let has_not_failed = management
            .job
            .get_or_insert_with(|| Job::begin(now))
            .has_not_failed();

        let lease = Lease {
            node: asker.node.to_owned(),
            since: now,
            until: now.plus(LEASE),
        };
        let (changes, mut claimed, order) = match found {
            Some((mut document, mut order)) => {
                if order.directory != asker.directory {
                    leftovers.clone_from(&order.answers);
                    order.forget();
                    order.attempts = 0;
                    asker.directory.clone_into(&mut order.directory);
                }
                if has_not_failed {
                    order.attempts = 0;
                }
                order.lease = Some(lease);
                document.body = stored::write(&order)?;
                document.head.updated_at = now;
                (Changes::replace(document.clone(), NOTHING), document, order)
            }
            None => {
                let mut order = Order::new(domain_id.to_owned(), asker.directory.to_owned());
                order.lease = Some(lease);
                let document = order::document(self, &order)?;
                (Changes::insert(document.clone(), NOTHING), document, order)
            }
        };
        let names: Result<Vec<_>, _> = domain.names().into_iter().map(HostName::parse).collect();
        let names =
            names.map_err(|error| Fault::new(format!("reading the name of {domain_id}"), error))?;
        let target = domain.challenge_record();
        let is_own = domain.ty().is_none();
        let replaces = domain.chain_pem(self).await?;
        let changes = if is_begun {
            changes
        } else {
            domain.write(&mut document)?;
            changes.and(Changes::replace(document, NOTHING))
        };
        let revision = self.kernel.store.commit(changes).await?;
        claimed.head.revision = revision.number;
        Ok(Some(ClaimedOrder {
            document: claimed,
            order,
            names,
            target,
            is_own,
            replaces,
            key_type,
            revision,
        }))
    }

    /// Runs the steps from the current state of the order to an installed certificate.
    async fn run_order(
        &self,
        certificates: &Certificates,
        claim: &mut ClaimedOrder,
    ) -> Result<(), Halt> {
        let Some(issuer) = certificates.issuer.as_deref() else {
            return Err(Failure::passing(
                "this installation has no certificate authority (`acme.directory_url` is not set)",
            )
            .into());
        };
        let kinds = kinds_for(certificates, issuer, claim)?;
        let key = order::account_key(self, issuer).await?;
        let mut open_order = self.open_order(certificates, issuer, &key, claim).await?;
        let mut is_reported = false;
        let mut look_after = LOOK_AFTER;
        let chain = loop {
            match open_order.state {
                OrderState::Pending(wanted) => {
                    if !is_reported && !wanted.is_empty() {
                        self.publish_challenges(certificates, issuer, claim, wanted, &kinds)
                            .await?;
                        let mut logged = None;
                        for answer in &claim.order.answers {
                            if let Some(kind) = answer.kind()
                                && logged.replace(kind) != Some(kind)
                            {
                                issuer.ready(&key, &open_order.url, kind).await?;
                            }
                        }
                        is_reported = true;
                    }
                }
                OrderState::Ready => {
                    let request = self.request(claim)?;
                    issuer.finalize(&key, &open_order.url, &request).await?;
                }
                OrderState::Processing => {}
                OrderState::Valid => break issuer.certificate(&key, &open_order.url).await?,
                OrderState::Failed(failure) => {
                    return Err(Halt::Failed {
                        failure,
                        is_over: true,
                    });
                }
            }
            let asked = open_order.retry_after;
            tokio::time::sleep(RetryAfter::wait(asked, look_after, LOOK_ASKED_MAX)).await;
            look_after = (look_after * 3 / 2).min(LOOK_AFTER_MAX);
            open_order = issuer.order_state(&key, &open_order.url).await?;
        };
        self.clean_up(certificates, &claim.order.answers).await;
        let installing = self.install(claim, &chain);
        self.kernel
            .locks
            .with(&[&claim.order.domain_id], installing)
            .await
    }

    /// Returns the authority's order: the stored one if the authority still knows it, else a new one, which
    /// is stored before any further step.
    async fn open_order(
        &self,
        certificates: &Certificates,
        issuer: &dyn Issuer,
        key: &Secret,
        claim: &mut ClaimedOrder,
    ) -> Result<Placed, Halt> {
        if let Some(url) = &claim.order.url {
            match issuer.order_state(key, url).await {
                // The order may have failed while no node was running to respond to it.
                Ok(open_order) if matches!(open_order.state, OrderState::Failed(_)) => {
                    self.clean_up(certificates, &claim.order.answers).await;
                    claim.order.forget();
                }
                Ok(open_order) => return Ok(open_order),
                Err(failure) if failure.blame == Blame::Gone => {
                    self.clean_up(certificates, &claim.order.answers).await;
                    claim.order.forget();
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        let certificate_key = new_key(claim.key_type).await?;
        let replaces = claim.replaces.as_deref();
        let open_order = issuer.order(key, &claim.names, replaces).await?;
        claim.order.url = Some(open_order.url.clone());
        claim.order.sealed_key = Some(self.kernel.seal.seal(
            &*self.kernel.entropy,
            &claim.document.head.id,
            certificate_key.reveal(),
        )?);
        // Further attempts of a failed order are not reported.
        let ordered = match claim.order.attempts {
            0 => self.ordered(claim).await?,
            _ => Changes::default(),
        };
        self.save_with(claim, ordered).await?;
        Ok(open_order)
    }

    /// Stores the responses to the wanted challenges and waits until the edge serves them.
    async fn publish_challenges(
        &self,
        certificates: &Certificates,
        issuer: &dyn Issuer,
        claim: &mut ClaimedOrder,
        wanted: Vec<Challenge>,
        kinds: &[ChallengeKind],
    ) -> Result<(), Halt> {
        let stored = &claim.order.answers;
        let is_stored = wanted
            .iter()
            .any(|one| stored.iter().any(|answer| answer.token == one.token));
        if !is_stored {
            let offered = |kind: &&ChallengeKind| wanted.iter().any(|one| one.kind == **kind);
            let Some(kind) = kinds.iter().find(offered).copied() else {
                return Err(Failure::passing(
                    "the certificate authority offers no challenge that this installation supports",
                )
                .into());
            };
            let record = |kind| {
                claim
                    .target
                    .clone()
                    .filter(|_| kind == ChallengeKind::Dns01)
            };
            let chosen = wanted.into_iter().filter(|one| one.kind == kind);
            claim.order.answers = chosen
                .map(|one| ChallengeResponse::of(one, record(kind)))
                .collect();
            self.save(claim).await?;
        }
        for answer in &claim.order.answers {
            if let Some(record) = &answer.record {
                let value = answer.record_value();
                issuer.record(Record::Add, record, &value).await?;
            }
        }
        if claim.order.answers.iter().any(|one| one.record.is_none()) {
            self.wait_until_published(claim.revision).await?;
            tokio::time::sleep(certificates.spread).await;
        }
        Ok(())
    }

    /// Waits until the edge of this process, if it has one, has applied a revision.
    async fn wait_until_published(&self, revision: Revision) -> Result<(), Halt> {
        match self.kernel.applied.reach(revision, SHOWN_WITHIN).await {
            true => Ok(()),
            false => Err(Failure::passing("the edge does not accept changes").into()),
        }
    }

    /// The certificate signing request, DER.
    fn request(&self, claim: &ClaimedOrder) -> Result<Vec<u8>, Halt> {
        let failed = |error| Fault::new("requesting a certificate", error);
        let key = KeyPair::from_pem(self.certificate_key(claim)?.reveal()).map_err(failed)?;
        let names: Vec<String> = claim.names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(failed)?;
        Ok(request.der().to_vec())
    }

    fn certificate_key(&self, claim: &ClaimedOrder) -> Result<Secret, Halt> {
        let Some(sealed) = &claim.order.sealed_key else {
            // The stored order has no private key. Start a new order, which has one.
            return Err(Halt::Failed {
                failure: Failure::passing("the private key of the order is missing"),
                is_over: true,
            });
        };
        Ok(self.kernel.seal.open(&claim.document.head.id, sealed)?)
    }

    /// Installs the certificate, which completes the order.
    async fn install(&self, claim: &ClaimedOrder, chain: &str) -> Result<(), Halt> {
        let key = self.certificate_key(claim)?;
        let unusable = |why: String| Halt::Failed {
            failure: Failure::passing(format!(
                "the certificate authority returned an unusable certificate: {why}"
            )),
            is_over: true,
        };
        let domain_id = &claim.order.domain_id;
        for _ in 0..RUNS_MAX {
            let managed = Holder::managed(self, domain_id).await?;
            let Some((mut document, mut domain)) = managed else {
                // The domain is no longer managed, so the certificate is not needed.
                let changes = Changes::remove(claim.document.head.clone(), NOTHING);
                self.kernel.store.commit(changes).await?;
                return Err(Halt::Overtaken);
            };
            let now = self.kernel.clock.now();
            let ty = &tls_certificate::TYPE;
            let id = self
                .kernel
                .ids
                .next(&*self.kernel.clock, &*self.kernel.entropy);
            let own_ty = domain.ty();
            let head = Head {
                id: ty.stored_id_of(id),
                kind: ty.kind.to_owned(),
                account: document.head.account.clone(),
                revision: 0,
                created_at: id.at(),
                updated_at: id.at(),
            };
            let certificate = TlsCertificate::issued(
                &self.kernel.seal,
                &*self.kernel.entropy,
                // Names of the installation keep their certificate in their own document.
                own_ty.map_or(&document.head.id, |_| &head.id),
                chain.to_owned(),
                &key,
                &domain.names(),
                now,
            );
            let certificate = match certificate {
                // It belongs to the owner of its domain.
                Ok(certificate) => TlsCertificate {
                    owner_id: domain.owner_id().to_owned(),
                    ..certificate
                },
                Err(Error::Refused(refusal)) => return Err(unusable(refusal.to_string())),
                Err(Error::Faulted(fault)) => return Err(fault.into()),
            };
            let renews_at = certificate.renews_at();
            document.head.updated_at = now.whole_seconds();
            let changes = match (own_ty, &mut domain) {
                (_, Holder::Own(own)) => {
                    own.take_issued(certificate, renews_at);
                    domain.write(&mut document)?;
                    Changes::replace(document, NOTHING)
                }
                (Some(own_ty), _) => {
                    domain.take_issued(head.id.clone(), renews_at);
                    let issued = Document {
                        body: stored::write(&certificate)?,
                        head,
                        keys: Vec::new(),
                        refs: Vec::new(),
                        topics: Vec::new(),
                    };
                    let before = document.clone();
                    domain.write(&mut document)?;
                    let created = self.kernel.own_event(ty, Verb::Created, &issued)?;
                    let updated = self.kernel.own_update(own_ty, &before, &document)?;
                    Changes::insert(issued, created).and(Changes::replace(document, updated))
                }
                (None, _) => return Err(Halt::Overtaken),
            };
            let changes = changes.and(Changes::remove(claim.document.head.clone(), NOTHING));
            match self.kernel.store.commit(changes).await {
                Ok(_) => {
                    self.meters.issued.up();
                    info!(
                        domain.id = domain_id,
                        domain = claim.described(),
                        renews_at = %renews_at,
                        "certificate issued"
                    );
                    return Ok(());
                }
                // The domain or the order changed meanwhile; read both again.
                Err(CommitError::Stale) => {
                    let order = order::find(self, domain_id).await?;
                    let ours = claim.document.head.revision;
                    if order.is_none_or(|(document, _)| document.head.revision != ours) {
                        return Err(Halt::Overtaken);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Halt::Overtaken)
    }

    /// Records a failure and the time of the next attempt in the domain, and releases the order.
    async fn note_failure(
        &self,
        certificates: &Certificates,
        mut claim: ClaimedOrder,
        failure: &Failure,
    ) -> Result<(), Halt> {
        let order = &mut claim.order;
        order.lease = None;
        order.attempts = order.attempts.saturating_add(1);
        let [spice] = self.kernel.entropy.bytes();
        let domain_id = order.domain_id.clone();
        for _ in 0..RUNS_MAX {
            let now = self.kernel.clock.now();
            let managed = Holder::managed(self, &domain_id).await?;
            let job = managed.as_ref().and_then(|(_, domain)| {
                let management = domain.management()?;
                management.job.as_ref()
            });
            // After a retry that was requested during this attempt, this failure counts as the first.
            let is_first = job.is_some_and(Job::has_not_failed);
            if is_first {
                claim.order.attempts = 1;
            }
            let wait = wait_after(
                failure.blame,
                claim.order.attempts,
                certificates.retry_after,
                failure.retry_after,
                spice,
            );
            claim.document.body = stored::write(&claim.order)?;
            claim.document.head.updated_at = now;
            let mut changes = Changes::replace(claim.document.clone(), NOTHING);
            let document = managed.as_ref().map(|(document, _)| document);
            if is_first && let Some(account) = report::account_of(self, document).await? {
                let retries_at = now.plus(wait).whole_seconds();
                let failed = Some((failure, retries_at));
                changes = changes.and(claim.reported(&account).event(self, failed)?);
            }
            if let Some((mut document, mut domain)) = managed
                && let Some(management) = domain.management_mut()
            {
                let job = management.job.get_or_insert_with(|| Job::begin(now));
                job.failed_at = Some(now);
                job.error = Some(match failure.blame {
                    Blame::Name => JobError::Dns,
                    Blame::Passing | Blame::Gone => JobError::Internal,
                });
                job.msg = sentence(&failure.why);
                job.retries_at = Some(now.plus(wait).whole_seconds());
                domain.write(&mut document)?;
                changes = changes.and(Changes::replace(document, NOTHING));
            }
            match self.kernel.store.commit(changes).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Stale) => {
                    let order = order::find(self, &domain_id).await?;
                    let ours = claim.document.head.revision;
                    if order.is_none_or(|(document, _)| document.head.revision != ours) {
                        return Err(Halt::Overtaken);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Halt::Overtaken)
    }

    /// Removes the DNS records of an order. A record that cannot be removed is harmless: its challenge is
    /// over.
    async fn clean_up(&self, certificates: &Certificates, answers: &[ChallengeResponse]) {
        let Some(issuer) = &certificates.issuer else {
            return;
        };
        for answer in answers {
            if let Some(record) = &answer.record {
                let value = answer.record_value();
                if let Err(failure) = issuer.record(Record::Remove, record, &value).await {
                    warn!(%failure, record, "removing the DNS record of a challenge failed");
                }
            }
        }
    }

    /// The event of the order.
    async fn ordered(&self, claim: &ClaimedOrder) -> Result<Changes, Halt> {
        let managed = Holder::managed(self, &claim.order.domain_id).await?;
        let document = managed.as_ref().map(|(document, _)| document);
        match report::account_of(self, document).await? {
            Some(account) => claim.reported(&account).event(self, None),
            None => Ok(Changes::default()),
        }
    }

    /// Commits a step.
    async fn save(&self, claim: &mut ClaimedOrder) -> Result<(), Halt> {
        self.save_with(claim, Changes::default()).await
    }

    /// Commits a step and its event.
    async fn save_with(&self, claim: &mut ClaimedOrder, event: Changes) -> Result<(), Halt> {
        let now = self.kernel.clock.now();
        if let Some(lease) = &mut claim.order.lease {
            lease.until = now.plus(LEASE);
        }
        claim.document.body = stored::write(&claim.order)?;
        claim.document.head.updated_at = now;
        let changes = Changes::replace(claim.document.clone(), NOTHING).and(event);
        claim.revision = self.kernel.store.commit(changes).await?;
        claim.document.head.revision = claim.revision.number;
        Ok(())
    }
}

/// Lists the challenge kinds that can be used for a name, the next to try first. Each failure moves on to
/// another kind.
fn kinds_for(
    certificates: &Certificates,
    issuer: &dyn Issuer,
    claim: &ClaimedOrder,
) -> Result<Vec<ChallengeKind>, Failure> {
    if claim.names.iter().any(HostName::is_wildcard) {
        if !issuer.writes_records() {
            return Err(Failure::passing(
                "a wildcard requires a DNS record, and this installation has neither `acme.dns.provider` nor `acme.dns_hook`",
            ));
        }
        return Ok(vec![ChallengeKind::Dns01]);
    }
    let mut kinds = certificates.challenges.clone();
    if claim.is_own && issuer.writes_records() {
        kinds.push(ChallengeKind::Dns01);
    }
    if kinds.is_empty() {
        return Err(Failure::passing(
            "this installation has no listener that can respond to challenges",
        ));
    }
    let turn = usize::try_from(claim.order.attempts).unwrap_or(0) % kinds.len();
    kinds.rotate_left(turn);
    Ok(kinds)
}

impl ClaimedOrder {
    /// The names, for the log.
    /// What events say of it.
    fn reported<'a>(&'a self, account: &'a str) -> Reported<'a> {
        Reported {
            domain_id: &self.order.domain_id,
            account,
            names: self.names.iter().map(|name| &**name).collect(),
            authority: &self.order.directory,
            is_renewal: self.replaces.is_some(),
        }
    }

    fn described(&self) -> String {
        let names: Vec<&str> = self.names.iter().map(|name| &**name).collect();
        names.join(", ")
    }
}

async fn new_key(key_type: KeyType) -> Result<Secret, Fault> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new("generating a certificate key", error)
    };
    // Key generation is slow, so it runs on a blocking thread.
    let made = tokio::task::spawn_blocking(move || match key_type {
        KeyType::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        KeyType::Ecdsa => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
    });
    let key = made.await.map_err(|error| failed(error.into()))?;
    let key = key.map_err(|error| failed(error.into()))?;
    Ok(Secret::new(key.serialize_pem()))
}

/// Formats a failure for display.
fn sentence(why: &str) -> String {
    let mut letters = why.chars();
    let Some(first) = letters.next() else {
        return String::new();
    };
    let rest = letters.as_str();
    let end = if why.ends_with('.') { "" } else { "." };
    format!("{}{rest}{end}", first.to_uppercase())
}
