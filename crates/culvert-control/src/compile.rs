//! Compiles documents for the other planes: endpoints, certificates and IP restrictions become a snapshot for
//! the edge; subscriptions and destinations become a table for delivery.
//!
//! A pass takes no input and can run at any time. Commits and a timer start it, so a missed notification only
//! causes a delay. Commits in quick succession share a pass, and a pass without changes publishes nothing.
//! The cost of a pass depends on what changed: the edge gets the changes of its snapshot. It gets a whole
//! snapshot only at the start, every hour, and when restrictions or nodes change. An invalid document is
//! logged and skipped; the others still take effect.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use culvert_base::Fault;
use culvert_base::net::HostName;
use culvert_delivery::{Destination, DestinationIds, Replay, Source, Table, Target};
use culvert_edge::{Change, Operator, Operators, Reach, Snapshot, SnapshotBuilder};
use culvert_events::{Filter, Selection};
use culvert_login::{Logins, Revoked, UserKey};
use culvert_policy::Scheme;
use culvert_store::Document;
use culvert_tunnel::nodes::Whereabouts;
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use crate::active_operators::ActiveOperators;
use crate::agents::heartbeat;
use crate::authority::{self, Authority};
use crate::base::Base;
use crate::caller::Role;
use crate::control::Control;
use crate::endpoint_selector::EndpointFacts;
use crate::informer_cache::InformerCache;
use crate::own_certificate::{self, Certified};
use crate::ports::EdgePort;
use crate::reconcile::acme;
use crate::resource::model::Model;
use crate::resource::model::agent_ingress::AgentIngress;
use crate::resource::model::certificate_authority::CertificateAuthority;
use crate::resource::model::endpoint::Endpoint;
use crate::resource::model::event_destination::EventDestination;
use crate::resource::model::event_subscription::EventSubscription;
use crate::resource::model::ip_policy::IpPolicy;
use crate::resource::model::ip_policy_rule::IpPolicyRule;
use crate::resource::model::ip_restriction::IpRestriction;
use crate::resource::model::reserved_domain::ReservedDomain;
use crate::resource::model::tls_certificate::TlsCertificate;
use crate::resource::model::user::User;
use crate::resource::model::vault::Vault;
use crate::resource::model::vault_secret::VaultSecret;
use crate::restriction::Restrictions;
use crate::seal::Seal;
use crate::settings::Settings;
use crate::traffic_policy::Compiled;
use crate::{event_kinds, login, replay, stored};

/// Longest time between two passes: certificates become due without a commit.
const PASS_EVERY: Duration = Duration::from_secs(60);
/// Longest time until a failed pass is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Minimum and maximum pause between two passes.
const PASS_APART: Duration = Duration::from_millis(1);
const PASS_APART_MAX: Duration = Duration::from_millis(100);

/// The pause after a pass. It is four times the duration of a pass, so that many changes leave most of a processor to the
/// traffic. A single long pass, such as the first one or one that waited for the database, does not delay the next one.
fn pause(before: Duration, last: Duration) -> Duration {
    (4 * before.min(last)).clamp(PASS_APART, PASS_APART_MAX)
}

/// The documents of the last pass, to detect changes.
#[derive(Debug)]
struct ReconcileState {
    /// Compiled endpoints; `None` for one that is skipped.
    endpoints: InformerCache<Option<Ready>>,
    /// Runs of servers with agents: ID, and the address at which other nodes reach the agents.
    runs: InformerCache<(String, Option<String>)>,
    domains: InformerCache<Document>,
    own_certificates: InformerCache<Option<Certified>>,
    ingresses: InformerCache<Document>,
    orders: InformerCache<Document>,
    operators: ActiveOperators,
    subscriptions: InformerCache<Subscribed>,
    /// Whether each user may receive every event.
    users: InformerCache<bool>,
    destinations: InformerCache<Document>,
    /// Replays with their owners; `None` for one that is skipped.
    replays: InformerCache<Option<(Replay, String)>>,
    /// Changes that the edge does not have yet.
    due: Due,
    /// The number of endpoints that present a certificate for names below each parent.
    parents: BTreeMap<String, usize>,
    /// The IP restrictions and the other nodes of the snapshot.
    restrictions: Option<Arc<Restrictions>>,
    elsewhere: BTreeMap<String, String>,
    /// The revisions up to which restrictions and policies were read.
    restrictions_at: Option<i64>,
    policies_at: Option<i64>,
    /// Uploaded certificates in use, by ID. A certificate never changes under its ID.
    certificates: HashMap<String, Arc<CertifiedKey>>,
    /// Whether delivery has received the table.
    has_delivery: bool,
    /// Open targets by destination, with the revision they were opened from.
    targets: HashMap<String, (i64, Arc<dyn Target>)>,
    /// Traffic policies in use.
    policies: Compiled,
    /// Sessions that ended early, and whether the edge has them.
    ends: InformerCache<Option<(UserKey, Revoked)>>,
    has_ends: bool,
    /// When the snapshot was last built; its certificates become due for renewal.
    snapshot_at: Option<Instant>,
}

/// Changes that were read since the edge was last updated. They stay due while passes fail.
#[derive(Debug, Default)]
struct Due {
    endpoints: BTreeSet<String>,
    certificates: bool,
    challenges: bool,
    operators: bool,
    /// Where agents are connected, for streams to other nodes.
    whereabouts: bool,
}

/// Kinds that decide which addresses are allowed.
const RESTRICTION_KINDS: [&str; 3] = [IpRestriction::KIND, IpPolicy::KIND, IpPolicyRule::KIND];
/// Kinds that traffic policies refer to.
const POLICY_KINDS: [&str; 5] = [
    IpPolicy::KIND,
    IpPolicyRule::KIND,
    CertificateAuthority::KIND,
    Vault::KIND,
    VaultSecret::KIND,
];

/// A compiled endpoint for the edge.
#[derive(Debug)]
struct Ready {
    endpoint: culvert_edge::Endpoint,
    /// The host below the platform domain whose certificate it presents.
    certificate_host: Option<String>,
    /// The endpoint's ID and the run that its agent is connected to, for an agent's endpoint.
    served: Option<(String, String)>,
    /// What selectors of Kubernetes operators see, if they may bind it.
    facts: Option<EndpointFacts>,
}

impl ReconcileState {
    fn nothing(logins: Arc<Logins>) -> Self {
        Self {
            endpoints: InformerCache::of(Endpoint::KIND),
            runs: InformerCache::of(heartbeat::KIND),
            domains: InformerCache::of(ReservedDomain::KIND),
            own_certificates: InformerCache::of(own_certificate::KIND),
            ingresses: InformerCache::of(AgentIngress::KIND),
            orders: InformerCache::of(acme::KIND),
            operators: ActiveOperators::nothing(),
            subscriptions: InformerCache::of(EventSubscription::KIND),
            users: InformerCache::of(User::KIND),
            destinations: InformerCache::of(EventDestination::KIND),
            replays: InformerCache::of(replay::KIND),
            due: Due::default(),
            parents: BTreeMap::new(),
            restrictions: None,
            elsewhere: BTreeMap::new(),
            restrictions_at: None,
            policies_at: None,
            certificates: HashMap::new(),
            has_delivery: false,
            targets: HashMap::new(),
            policies: Compiled::new(logins),
            ends: InformerCache::of(login::KIND),
            has_ends: false,
            snapshot_at: None,
        }
    }
}

impl ReconcileState {
    /// An endpoint for the edge, with the Kubernetes operators that select it.
    fn bound(&self, ready: &Ready) -> culvert_edge::Endpoint {
        let mut endpoint = ready.endpoint.clone();
        if let Some(facts) = &ready.facts {
            let selecting = self.operators.selecting(&endpoint.account, facts);
            endpoint.reach = Reach::Kubernetes(selecting);
        }
        endpoint
    }
}

impl Control {
    /// Keeps the other planes up to date until cancelled.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let mut authority = self.authority.lock().await;
        let mut seen = ReconcileState::nothing(Arc::clone(&self.logins));
        let mut revision = self.store.watch();
        let mut before = Duration::ZERO;
        loop {
            revision.mark_unchanged();
            let began = Instant::now();
            let compiled = self.pass(&mut authority, &mut seen).await;
            self.has_failed.store(compiled.is_err(), Ordering::Relaxed);
            let next = match compiled {
                Ok(()) => PASS_EVERY,
                Err(fault) => {
                    error!(cause = %fault.chain(), "configuration failed to compile; keeping the last snapshot");
                    RETRY_AFTER
                }
            };
            let last = began.elapsed();
            let apart = pause(std::mem::replace(&mut before, last), last);
            let woken = async {
                tokio::time::sleep(apart).await;
                // The sender lives in the store, which outlives this task.
                drop(tokio::time::timeout(next, revision.changed()).await);
            };
            tokio::select! {
                () = woken => {}
                () = cancel.cancelled() => return,
            }
        }
    }

    async fn pass(
        &self,
        authority: &mut Authority,
        seen: &mut ReconcileState,
    ) -> Result<(), Fault> {
        self.compile_restrictions(seen).await;
        if self.edge.is_some() {
            // First, so that an ended session is not accepted while the rest is compiled.
            self.compile_ends(seen).await?;
        }
        self.compile_delivery(seen).await?;
        self.compile_own_certificates(seen).await?;
        if let Some(edge) = &self.edge {
            // All that is read from here on includes at least this revision.
            let revision = *self.store.watch().borrow();
            self.compile_edge(&**edge, authority, seen).await?;
            self.published.send_replace(revision);
        }
        Ok(())
    }

    /// The latest revision, and whether a document of these kinds was, or may have been, written since
    /// `since`.
    async fn is_touched(&self, since: Option<i64>, kinds: &[&str]) -> (i64, bool) {
        let (until, touched) = self.store.touched(since.unwrap_or(0)).await;
        let is_touched = match (since, touched) {
            (Some(_), Some(touched)) => touched.iter().any(|one| kinds.contains(&&*one.kind)),
            _ => true,
        };
        (until, is_touched)
    }

    /// Applies new IP restrictions. If they cannot be read, the previous ones stay in force.
    async fn compile_restrictions(&self, seen: &mut ReconcileState) {
        let (until, is_due) = self
            .is_touched(seen.restrictions_at, &RESTRICTION_KINDS)
            .await;
        if !is_due {
            seen.restrictions_at = Some(until);
            return;
        }
        let before = self.restrictions.load_full();
        match Restrictions::load(&self.store, &before).await {
            Ok(loaded) => {
                seen.restrictions_at = Some(until);
                if let Some(restrictions) = loaded {
                    self.restrictions.store(Arc::new(restrictions));
                }
            }
            Err(fault) => {
                error!(cause = %fault.chain(), "IP restrictions failed to compile; keeping the previous ones");
            }
        }
    }

    /// Sends ended sessions to the edge, without a new snapshot.
    async fn compile_ends(&self, seen: &mut ReconcileState) -> Result<(), Fault> {
        let made = |document: Document| match login::compile(&document) {
            Ok(made) => Some(made),
            Err(fault) => {
                error!(cause = %fault.chain(), "session revocations of a user are skipped");
                None
            }
        };
        let changes = seen.ends.refresh(&self.store, made).await?;
        if !changes.is_empty() || !std::mem::replace(&mut seen.has_ends, true) {
            self.logins.revoke(login::table(seen.ends.made()));
        }
        Ok(())
    }

    /// Gives the public certificates of the installation's own names to the listeners.
    async fn compile_own_certificates(&self, seen: &mut ReconcileState) -> Result<(), Fault> {
        let read = |document: Document| {
            own_certificate::certified(self, &document).unwrap_or_else(|fault| {
                error!(cause = %fault.chain(), "certificate skipped");
                None
            })
        };
        let changes = seen.own_certificates.refresh(&self.store, read).await?;
        if !changes.is_empty() {
            seen.due.certificates = true;
            let certificates = seen.own_certificates.made().flatten().cloned();
            self.own_certificates.replace(certificates.collect());
        }
        Ok(())
    }

    async fn compile_edge(
        &self,
        edge: &dyn EdgePort,
        authority: &mut Authority,
        seen: &mut ReconcileState,
    ) -> Result<(), Fault> {
        // Read the runs before and after the endpoints. An endpoint that moves from a stopping node meanwhile
        // is then on a known run, whichever of its two runs is read.
        let mut elsewhere = self.elsewhere(seen).await?;
        self.read_endpoints(seen).await?;
        elsewhere.extend(self.elsewhere(seen).await?);
        self.find_runs(seen, &mut elsewhere).await?;
        self.read_operators(seen).await?;
        for informer_cache in [&mut seen.domains, &mut seen.ingresses] {
            let changes = informer_cache
                .refresh(&self.store, |document| document)
                .await?;
            seen.due.certificates |= !changes.is_empty();
        }
        let changes = seen.orders.refresh(&self.store, |document| document);
        seen.due.challenges |= !changes.await?.is_empty();
        // Rules of IP policies reach the traffic policies that refer to them without a new snapshot.
        let (until, is_due) = self.is_touched(seen.policies_at, &POLICY_KINDS).await;
        if is_due {
            seen.policies_at = None;
            seen.policies.refresh(&self.store, &self.seal).await?;
        }
        seen.policies_at = Some(until);
        let restrictions = self.restrictions.load_full();
        let is_fresh = seen
            .snapshot_at
            .is_some_and(|at| at.elapsed() < 60 * PASS_EVERY);
        let has_restrictions = seen
            .restrictions
            .as_ref()
            .is_some_and(|before| before.read == restrictions.read);
        let is_whole = !(is_fresh && has_restrictions && seen.elsewhere == elsewhere);
        let due = &seen.due;
        let is_quiet = due.endpoints.is_empty() && !due.operators;
        if !is_whole && is_quiet && !due.certificates && !due.challenges {
            return Ok(());
        }
        let operators = match is_whole || due.operators {
            true => Some(self.operators(seen).await?),
            false => None,
        };
        if let Some(nodes) = &self.nodes
            && (is_whole || due.whereabouts)
        {
            let place = |ready: &Ready| {
                let (id, run) = ready.served.as_ref()?;
                Some((id.clone(), elsewhere.get(run)?.clone()))
            };
            if is_whole {
                let endpoints = seen.endpoints.made().flatten().filter_map(place).collect();
                nodes.publish(Whereabouts { endpoints }).await;
            } else {
                let moved = due.endpoints.iter().map(|id| {
                    let ready = seen.endpoints.get(id).and_then(Option::as_ref);
                    (
                        id.clone(),
                        ready.and_then(place).map(|(_, address)| address),
                    )
                });
                nodes.apply(moved.collect()).await;
            }
        }
        let certificates = match is_whole || seen.due.certificates {
            true => Some(self.certificates_due(authority, seen).await?),
            false => None,
        };
        let own = self.agents.as_ref().map(|agents| agents.run.as_str());
        // The agent is connected to this run or to a run that this node can reach.
        let is_reached = |ready: &&Ready| match &ready.served {
            None => true,
            Some((_, run)) => own == Some(run.as_str()) || elsewhere.contains_key(run),
        };
        if is_whole {
            let mut snapshot = certificates
                .unwrap_or_else(Snapshot::builder)
                .logins(Arc::clone(&self.logins))
                .operators(operators.unwrap_or_default());
            for restriction in &restrictions.endpoints {
                snapshot = snapshot.restriction(restriction.clone());
            }
            for challenge in Self::challenges(seen.orders.made()) {
                snapshot = snapshot.challenge(challenge);
            }
            for ready in seen.endpoints.made().flatten().filter(is_reached) {
                snapshot = snapshot.endpoint(seen.bound(ready));
            }
            let snapshot = snapshot.build();
            info!(
                endpoints = snapshot.len(),
                "endpoints published to the edge"
            );
            edge.publish(snapshot).await;
            seen.snapshot_at = Some(Instant::now());
        } else {
            let mut change = Change::default();
            for id in &seen.due.endpoints {
                let ready = seen.endpoints.get(id).and_then(Option::as_ref);
                match ready.filter(is_reached) {
                    Some(ready) => change.put(seen.bound(ready)),
                    None => change.remove(id.clone()),
                }
            }
            if let Some(operators) = operators {
                change.operators(operators);
            }
            if seen.due.challenges {
                change.challenges(Self::challenges(seen.orders.made()));
            }
            if let Some(certificates) = certificates {
                change.certificates_of(certificates.build());
            }
            debug!(
                endpoints = change.len(),
                of = seen.endpoints.len(),
                "change published to the edge"
            );
            edge.apply(change).await;
        }
        seen.due = Due::default();
        seen.restrictions = Some(restrictions);
        seen.elsewhere = elsewhere;
        Ok(())
    }

    /// Adds the runs that endpoints refer to and that are not known here yet. An endpoint that this process
    /// wrote is read in its latest state. This may include a later commit that moved it to a node that has
    /// just started. Commits of other nodes are otherwise seen here only after a short delay.
    async fn find_runs(
        &self,
        seen: &ReconcileState,
        elsewhere: &mut BTreeMap<String, String>,
    ) -> Result<(), Fault> {
        if self.nodes.is_none() {
            return Ok(());
        }
        let own = self.agents.as_ref().map(|agents| agents.run.as_str());
        let run_of = |ready: &Ready| Some(ready.served.as_ref()?.1.clone());
        let due = seen.due.endpoints.iter();
        let due = due.filter_map(|id| seen.endpoints.get(id)?.as_ref().and_then(run_of));
        let mut named: BTreeSet<String> = due.collect();
        // In this case the whole snapshot is rebuilt.
        if *elsewhere != seen.elsewhere {
            named.extend(seen.endpoints.made().flatten().filter_map(run_of));
        }
        for run in named {
            if own == Some(run.as_str()) || elsewhere.contains_key(&run) {
                continue;
            }
            if let Some(document) = self.store.get(heartbeat::KIND, &run).await?
                && let Some(address) = heartbeat::address(&document)?
            {
                elsewhere.insert(run, address);
            }
        }
        Ok(())
    }

    /// Reads and compiles the endpoints that have changed.
    async fn read_endpoints(&self, seen: &mut ReconcileState) -> Result<(), Fault> {
        let policies = &mut seen.policies;
        let settings = &self.settings;
        let ready = |document: Document| match ready(&document, settings, &self.seal, policies) {
            Ok(ready) => Some(ready),
            Err(fault) => {
                error!(cause = %fault.chain(), "endpoint skipped");
                None
            }
        };
        let changes = seen.endpoints.refresh(&self.store, ready).await?;
        for (id, before) in changes {
            let now = seen.endpoints.get(&id).and_then(Option::as_ref);
            let before = before.flatten();
            if now.is_some_and(|now| now.endpoint.policy.is_some()) {
                // It may refer to a policy that was not read yet. Until then that policy denies every
                // address.
                seen.policies_at = None;
            } else {
                seen.policies.forget(&id);
            }
            let parent = |ready: &Ready| {
                let (_, parent) = ready.certificate_host.as_deref()?.split_once('.')?;
                Some(parent.to_owned())
            };
            if let Some(parent) = now.and_then(parent) {
                let count = seen.parents.entry(parent).or_default();
                *count += 1;
                seen.due.certificates |= *count == 1;
            }
            if let Some(parent) = before.as_ref().and_then(parent)
                && let Some(count) = seen.parents.get_mut(&parent)
            {
                *count -= 1;
                if *count == 0 {
                    seen.parents.remove(&parent);
                    seen.due.certificates = true;
                }
            }
            let is_served = |ready: &Ready| ready.served.is_some();
            seen.due.whereabouts |=
                now.is_some_and(is_served) || before.is_some_and(|ready| is_served(&ready));
            seen.due.endpoints.insert(id);
        }
        Ok(())
    }

    /// Reads the Kubernetes operators that have changed. The endpoints that they may bind are due again.
    async fn read_operators(&self, seen: &mut ReconcileState) -> Result<(), Fault> {
        let accounts = seen.operators.refresh(&self.store).await?;
        if accounts.is_empty() {
            return Ok(());
        }
        seen.due.operators = true;
        let offered = seen.endpoints.made().flatten();
        let offered = offered
            .filter(|ready| ready.facts.is_some() && accounts.contains(&ready.endpoint.account));
        let offered = offered.map(|ready| ready.endpoint.id.clone());
        seen.due.endpoints.extend(offered);
        Ok(())
    }

    /// The Kubernetes operators that may connect.
    async fn operators(&self, seen: &ReconcileState) -> Result<Operators, Fault> {
        let operators: Vec<Operator> = seen.operators.all().cloned().collect();
        if operators.is_empty() {
            return Ok(Operators::default());
        }
        Ok(Operators {
            authority: authority::operators_certificate(&self.store).await?,
            operators,
        })
    }

    /// A snapshot update with only the certificates in use.
    async fn certificates_due(
        &self,
        authority: &mut Authority,
        seen: &mut ReconcileState,
    ) -> Result<SnapshotBuilder, Fault> {
        let platform = &self.settings.edge_domain;
        let mut snapshot = Snapshot::builder();
        let (custom, mut bare) = self.custom_domains(seen).await;
        for (name, key) in custom {
            snapshot = snapshot.certificate([name], key);
        }
        for (names, key) in seen.own_certificates.made().flatten() {
            if !names.contains(platform) {
                snapshot = snapshot.certificate(names.iter().cloned(), key.clone());
            }
        }
        let mut public = seen.own_certificates.made().flatten();
        let public = public.find(|(names, _)| names.contains(platform));
        let parents = seen.parents.keys().cloned();
        let now = self.clock.now();
        for (mut names, key) in authority.certificates_below(parents, now, &*self.entropy)? {
            let mut key = key;
            if names.contains(platform) {
                if let Some((_, public)) = public {
                    key = public.clone();
                }
                names.append(&mut bare);
            }
            snapshot = snapshot.fallback_certificate(names, key);
        }
        Ok(snapshot)
    }

    /// Other runs whose agents this node can reach, with their addresses.
    async fn elsewhere(
        &self,
        seen: &mut ReconcileState,
    ) -> Result<BTreeMap<String, String>, Fault> {
        if self.nodes.is_none() {
            return Ok(BTreeMap::new());
        }
        let read = |document: Document| {
            let address = heartbeat::address(&document).unwrap_or_else(|fault| {
                error!(cause = %fault.chain(), "node instance skipped");
                None
            });
            (document.head.id, address)
        };
        seen.runs.refresh(&self.store, read).await?;
        let own = self.agents.as_ref().map(|agents| &agents.run);
        let others = seen.runs.made().filter(|(run, _)| Some(run) != own);
        Ok(others
            .filter_map(|(run, address)| Some((run.clone(), address.clone()?)))
            .collect())
    }

    /// Custom domains and agent ingresses with their certificates, and the names that have none. For the
    /// latter the edge presents the platform's certificate.
    async fn custom_domains(
        &self,
        seen: &mut ReconcileState,
    ) -> (Vec<(HostName, Arc<CertifiedKey>)>, Vec<HostName>) {
        let mut known = std::mem::take(&mut seen.certificates);
        let mut covered: Vec<(HostName, Arc<CertifiedKey>)> = Vec::new();
        let mut bare = Vec::new();
        // If a name has two certificates, the later one wins: the reserved domain's.
        let ingresses = seen.ingresses.made().map(ingress);
        for named in ingresses.chain(seen.domains.made().map(custom_domain)) {
            let (name, certificate_id) = match named {
                Ok(Some(custom)) => custom,
                Ok(None) => continue,
                Err(fault) => {
                    error!(cause = %fault.chain(), "domain skipped");
                    continue;
                }
            };
            let Some(id) = certificate_id else {
                bare.push(name);
                continue;
            };
            let key = match seen
                .certificates
                .get(&id)
                .cloned()
                .or_else(|| known.remove(&id))
            {
                Some(key) => Ok(key),
                None => self.open_certificate(&id).await,
            };
            match key {
                Ok(key) => {
                    seen.certificates.insert(id, key.clone());
                    covered.push((name, key));
                }
                Err(fault) => {
                    error!(cause = %fault.chain(), "certificate skipped");
                    bare.push(name);
                }
            }
        }
        (covered, bare)
    }

    pub(crate) async fn open_certificate(&self, id: &str) -> Result<Arc<CertifiedKey>, Fault> {
        let document = self.store.get(TlsCertificate::KIND, id).await?;
        let document = document.ok_or_else(|| Fault::bare(format!("opening {id}: not found")))?;
        let certificate: TlsCertificate = stored::read(&document)?;
        certificate.certified_key(&self.seal, &document.head)
    }

    async fn compile_delivery(&self, seen: &mut ReconcileState) -> Result<(), Fault> {
        // All that is read below includes at least this revision.
        let revision = *self.store.watch().borrow();
        // Changes that were read stay due while passes fail.
        let read = |document: Document| {
            subscribed(&document).unwrap_or_else(|fault| {
                error!(cause = %fault.chain(), "subscription skipped");
                Subscribed::default()
            })
        };
        let changes = seen.subscriptions.refresh(&self.store, read).await?;
        seen.has_delivery &= changes.is_empty();
        let may_have_all = |document: Document| {
            let user = stored::read::<User>(&document);
            user.is_ok_and(|user| user.active && user.role == Role::Admin)
        };
        let changes = seen.users.refresh(&self.store, may_have_all).await?;
        seen.has_delivery &= changes.is_empty();
        let changes = seen.destinations.refresh(&self.store, |document| document);
        seen.has_delivery &= changes.await?.is_empty();
        let read = |document: Document| {
            let compiled = replay::compile(&document);
            let report = |fault: &Fault| error!(cause = %fault.chain(), "replay skipped");
            compiled.inspect_err(report).ok()
        };
        let changes = seen.replays.refresh(&self.store, read).await?;
        seen.has_delivery &= changes.is_empty();
        if seen.has_delivery {
            self.delivery.has_rights_of(revision);
            return Ok(());
        }
        // A bot is never an admin. Documents stored without an owner wait for an admin.
        let is_entitled = |owner_id: &str| seen.users.get(owner_id).is_some_and(|may| *may);
        let subscriptions = seen.subscriptions.made();
        let subscriptions = subscriptions.map(|one| (&one.id, &one.owner_id));
        let replays = seen.replays.made().flatten();
        let replays = replays.map(|(replay, owner_id)| (&replay.id, owner_id));
        let entitled = subscriptions
            .chain(replays)
            .filter(|(_, owner_id)| is_entitled(owner_id));
        let mut table = Table {
            private_kinds: event_kinds::names()
                .filter(|kind| event_kinds::is_private(kind))
                .collect(),
            entitled: entitled.map(|(id, _)| id.clone()).collect(),
            sources: seen
                .subscriptions
                .made()
                .flat_map(|one| one.sources.iter().cloned())
                .collect(),
            replays: (seen.replays.made().flatten())
                .map(|(replay, _)| replay.clone())
                .collect(),
            ..Table::default()
        };
        // Drop the targets of removed destinations.
        let known = std::mem::take(&mut seen.targets);
        for document in seen.destinations.made() {
            let head = &document.head;
            let target = match known.get(&head.id) {
                // The target of an unchanged destination stays open.
                Some((revision, target)) if *revision == head.revision => Ok(target.clone()),
                _ => self.open_target(document),
            };
            match target {
                Ok(target) => {
                    let open = (head.revision, target.clone());
                    seen.targets.insert(head.id.clone(), open);
                    table.destinations.push(Destination {
                        id: head.id.clone(),
                        account: head.account.clone(),
                        revision: head.revision,
                        target,
                    });
                }
                Err(fault) => error!(cause = %fault.chain(), "destination skipped"),
            }
        }
        self.delivery.publish(table);
        self.delivery.has_rights_of(revision);
        seen.has_delivery = true;
        Ok(())
    }

    fn open_target(&self, document: &Document) -> Result<Arc<dyn Target>, Fault> {
        let head = &document.head;
        let destination: EventDestination = stored::read(document)?;
        let (ty, configuration) = destination.target(&self.seal, head)?;
        let ids = DestinationIds {
            destination: &head.id,
            account: &head.account,
        };
        (ty.open)(&configuration, self.delivery.targets(), ids)
            .map_err(|refusal| Fault::new(format!("opening destination {}", head.id), refusal))
    }
}

fn ready(
    document: &Document,
    settings: &Settings,
    seal: &Seal,
    policies: &mut Compiled,
) -> Result<Ready, Fault> {
    let endpoint: Endpoint = stored::read(document)?;
    let served = endpoint
        .served()
        .map(|served| (document.head.id.clone(), served.run.clone()));
    let ready = endpoint.compile(settings.public_ports, seal, &document.head, policies)?;
    let policy = ready.policy.as_ref();
    let ends_tls =
        ready.scheme == Scheme::Https || policy.is_some_and(|policy| policy.terminates_tls());
    let host = endpoint
        .certificate_host(&settings.edge_domain)
        .filter(|_| ends_tls);
    let base = Base {
        uri: "",
        ports: settings.public_ports,
        kubernetes_ingress: "",
        viewer: None,
    };
    let facts = match ready.reach {
        Reach::Kubernetes(_) => {
            let view = serde_json::to_value(endpoint.view(&document.head, base));
            let view = view.map_err(|error| Fault::new("reading an endpoint", error))?;
            EndpointFacts::of(&view)
        }
        Reach::Public | Reach::Internal => None,
    };
    Ok(Ready {
        facts,
        certificate_host: host.map(str::to_owned),
        endpoint: ready,
        served,
    })
}

/// The name of a custom domain and the ID of its certificate; `None` for a platform name.
fn custom_domain(document: &Document) -> Result<Option<(HostName, Option<String>)>, Fault> {
    let domain: ReservedDomain = stored::read(document)?;
    let Some((name, certificate_id)) = domain.custom() else {
        return Ok(None);
    };
    let name = HostName::parse(name)
        .map_err(|error| Fault::new(format!("compiling {}", document.head.id), error))?;
    Ok(Some((name, certificate_id.map(str::to_owned))))
}

/// The name of an agent ingress and the ID of its certificate; `None` while it has none.
fn ingress(document: &Document) -> Result<Option<(HostName, Option<String>)>, Fault> {
    let ingress: AgentIngress = stored::read(document)?;
    let Some(id) = ingress.certificate_id() else {
        return Ok(None);
    };
    let name = HostName::parse(ingress.name())
        .map_err(|error| Fault::new(format!("compiling {}", document.head.id), error))?;
    Ok(Some((name, Some(id.to_owned()))))
}

/// The parts of a subscription that delivery needs.
#[derive(Debug, Default)]
struct Subscribed {
    /// The compiled traffic sources.
    sources: Vec<Arc<Source>>,
    id: String,
    /// The owner, whose role decides whether events for admins are sent.
    owner_id: String,
}

fn subscribed(document: &Document) -> Result<Subscribed, Fault> {
    let subscription: EventSubscription = stored::read(document)?;
    Ok(Subscribed {
        sources: sources(document, &subscription),
        id: document.head.id.clone(),
        owner_id: subscription.owner_id,
    })
}

/// The traffic sources of a subscription. A source that no longer compiles after an upgrade is logged and
/// captures nothing.
fn sources(document: &Document, subscription: &EventSubscription) -> Vec<Arc<Source>> {
    let head = &document.head;
    let account: Arc<str> = head.account.as_str().into();
    let mut compiled = Vec::new();
    for source in &subscription.sources {
        let Some(kind) = source.traffic() else {
            continue;
        };
        let selection = Selection::parse(kind, &source.fields);
        let filter = match source.filter.as_str() {
            "" => Ok(None),
            text => Filter::compile(kind, text).map(|filter| Some(Arc::new(filter))),
        };
        match (selection, filter) {
            (Ok(selection), Ok(filter)) => compiled.push(Arc::new(Source {
                subscription: head.id.clone(),
                account: account.clone(),
                kind,
                selection,
                filter,
                destinations: subscription.destination_ids.clone(),
            })),
            (Err(refusal), _) | (_, Err(refusal)) => error!(
                subscription = head.id,
                source = kind.name,
                cause = %refusal,
                "stored event source failed to compile; it captures no events"
            ),
        }
    }
    compiled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pass_delays_no_change() {
        let ms = Duration::from_millis;
        for (before, last, expected) in [
            (ms(0), ms(700), PASS_APART),
            (ms(700), ms(2), ms(8)),
            (ms(2), ms(30), ms(8)),
            (ms(30), ms(20), ms(80)),
            (ms(700), ms(700), PASS_APART_MAX),
        ] {
            assert_eq!(pause(before, last), expected, "{before:?} {last:?}");
        }
    }
}
