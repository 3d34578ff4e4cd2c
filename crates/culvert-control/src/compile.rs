//! Documents become what the planes run on: endpoints, certificates and IP restrictions a snapshot for
//! the edge,
//! subscriptions and destinations a table for delivery.
//!
//! A pass takes no input and may run at any time; it is woken by commits and by a timer, so a missed
//! wake costs time and not truth. Commits that come in a storm share passes, and a pass that finds
//! nothing changed publishes nothing. One broken document is logged and left out; it does not keep
//! the others from running.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Fault};
use culvert_delivery::{Destination, Source, Table, Target, Whose};
use culvert_edge::login::{Logins, Revoked, UserKey};
use culvert_edge::{Scheme, Snapshot};
use culvert_events::{Filter, Selection};
use culvert_store::Document;
use culvert_tunnel::nodes::Whereabouts;
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::authority::Authority;
use crate::gate::runs;
use crate::mirror::Mirror;
use crate::reconcile::acme;
use crate::resource::agent_ingress::{self, AgentIngress};
use crate::resource::endpoint::{self, Endpoint};
use crate::resource::event_destination::{self, EventDestination};
use crate::resource::event_subscription::{self, EventSubscription};
use crate::resource::reserved_domain::{self, ReservedDomain};
use crate::resource::tls_certificate::{self, TlsCertificate};
use crate::restriction::Restrictions;
use crate::seal::Seal;
use crate::traffic_policy::Compiled;
use crate::{Control, Settings, login, replay, stored};

/// Where snapshots go: the edge, wherever it runs.
pub trait EdgePort: std::fmt::Debug + Send + Sync {
    /// Runs on `snapshot` from now on; done when it is live.
    fn publish(&self, snapshot: Snapshot) -> BoxFuture<'_, ()>;
}

/// A pass happens at least this often: certificates come of age without a commit.
const PASS_EVERY: Duration = Duration::from_secs(60);
/// Two passes are at least this far apart, and ten times as far as a pass takes.
const PASS_APART: Duration = Duration::from_millis(20);
const PASS_APART_MAX: Duration = Duration::from_millis(500);

/// What the last pass read, to know what is new.
#[derive(Debug)]
struct Seen {
    /// Endpoints, ready to run; `None` for one that is left out.
    endpoints: Mirror<Option<Ready>>,
    /// Runs of servers with agents: id, and where other nodes reach them.
    runs: Mirror<(String, Option<String>)>,
    domains: Mirror<Document>,
    ingresses: Mirror<Document>,
    /// Endpoints, reserved domains, agent ingresses and IP restrictions.
    edge: Vec<(String, i64)>,
    /// Uploaded certificates in use, by id; one never changes.
    certificates: HashMap<String, Arc<CertifiedKey>>,
    delivery: Option<Vec<(String, i64)>>,
    /// Targets that are open, by destination, with the revision they were opened from.
    targets: HashMap<String, (i64, Arc<dyn Target>)>,
    /// Traffic policies in use.
    policies: Compiled,
    /// Sessions that ended before their time, and which of them the edge has.
    ends: Mirror<Option<(UserKey, Revoked)>>,
    revoked: Vec<(String, i64)>,
    /// When the snapshot was last made, since certificates in it come of age.
    snapshot_at: Option<Instant>,
}

/// An endpoint as the edge runs it.
#[derive(Debug)]
struct Ready {
    endpoint: culvert_edge::Endpoint,
    /// The host below the platform domain whose certificate it presents.
    certificate_host: Option<String>,
    /// Its id and the run of the server its agent is connected to, if it is an agent's.
    served: Option<(String, String)>,
}

impl Seen {
    fn nothing(logins: Arc<Logins>) -> Self {
        Self {
            endpoints: Mirror::of(endpoint::TYPE.kind),
            runs: Mirror::of(runs::KIND),
            domains: Mirror::of(reserved_domain::TYPE.kind),
            ingresses: Mirror::of(agent_ingress::TYPE.kind),
            edge: Vec::new(),
            certificates: HashMap::new(),
            delivery: None,
            targets: HashMap::new(),
            policies: Compiled::new(logins),
            ends: Mirror::of(login::KIND),
            revoked: Vec::new(),
            snapshot_at: None,
        }
    }
}

impl Control {
    /// Keeps the planes up to date until cancelled.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let mut authority = self.authority.lock().await;
        let mut seen = Seen::nothing(Arc::clone(&self.logins));
        let mut revision = self.store.watch();
        loop {
            revision.mark_unchanged();
            let began = Instant::now();
            if let Err(fault) = self.pass(&mut authority, &mut seen).await {
                error!(cause = %fault.chain(), "the planes keep running on what they have");
            }
            let apart = (10 * began.elapsed()).clamp(PASS_APART, PASS_APART_MAX);
            let woken = async {
                tokio::time::sleep(apart).await;
                // The sender goes with the store, which goes after this task.
                drop(tokio::time::timeout(PASS_EVERY, revision.changed()).await);
            };
            tokio::select! {
                () = woken => {}
                () = cancel.cancelled() => return,
            }
        }
    }

    async fn pass(&self, authority: &mut Authority, seen: &mut Seen) -> Result<(), Fault> {
        self.compile_restrictions().await;
        if self.edge.is_some() {
            // First: a session that was ended is not to be let in while other things are compiled.
            self.compile_ends(seen).await?;
        }
        self.compile_delivery(seen).await?;
        if let Some(edge) = &self.edge {
            // What is read from here on has this much in it.
            let revision = *self.store.watch().borrow();
            self.compile_edge(&**edge, authority, seen).await?;
            self.published.send_replace(revision);
        }
        Ok(())
    }

    /// Takes new IP restrictions into force; if they cannot be read, the ones before stay.
    async fn compile_restrictions(&self) {
        let before = self.restrictions.load_full();
        match Restrictions::load(&self.store, &before).await {
            Ok(None) => {}
            Ok(Some(restrictions)) => self.restrictions.store(Arc::new(restrictions)),
            Err(fault) => {
                error!(cause = %fault.chain(), "the IP restrictions of before stay in force");
            }
        }
    }

    /// Ends sessions at the edge, without a new snapshot.
    async fn compile_ends(&self, seen: &mut Seen) -> Result<(), Fault> {
        let made = |document: Document| match login::compile(&document) {
            Ok(made) => Some(made),
            Err(fault) => {
                error!(cause = %fault.chain(), "the ends of sessions of a user are left out");
                None
            }
        };
        seen.ends.refresh(&self.store, made).await?;
        let read: Vec<_> = seen.ends.revisions().collect();
        if read != seen.revoked {
            self.logins.revoke(login::table(seen.ends.made()));
            seen.revoked = read;
        }
        Ok(())
    }

    async fn compile_edge(
        &self,
        edge: &dyn EdgePort,
        authority: &mut Authority,
        seen: &mut Seen,
    ) -> Result<(), Fault> {
        let platform = &self.settings.edge_domain;
        let policies = &mut seen.policies;
        let settings = &self.settings;
        let ready = |document: Document| match ready(&document, settings, &self.seal, policies) {
            Ok(ready) => Some(ready),
            Err(fault) => {
                error!(cause = %fault.chain(), "an endpoint is left out");
                None
            }
        };
        seen.endpoints.refresh(&self.store, ready).await?;
        for mirror in [&mut seen.domains, &mut seen.ingresses] {
            mirror.refresh(&self.store, |document| document).await?;
        }
        // Rules of IP policies reach the traffic policies that name them without a new snapshot.
        seen.policies.refresh(&self.store, &self.seal).await?;
        let mut read: Vec<_> = seen.endpoints.revisions().collect();
        read.extend(seen.domains.revisions());
        read.extend(seen.ingresses.revisions());
        let orders = self.store.all(acme::KIND).await?;
        read.extend(revisions(&orders));
        let restrictions = self.restrictions.load_full();
        read.extend(restrictions.read.iter().cloned());
        let elsewhere = self.elsewhere(seen).await?;
        read.extend(elsewhere.iter().map(|(run, at)| (format!("{run} {at}"), 0)));
        let is_fresh = seen
            .snapshot_at
            .is_some_and(|at| at.elapsed() < 60 * PASS_EVERY);
        if is_fresh && read == seen.edge {
            return Ok(());
        }
        let mut snapshot = Snapshot::builder().logins(Arc::clone(&self.logins));
        for restriction in &restrictions.endpoints {
            snapshot = snapshot.restriction(restriction.clone());
        }
        for challenge in Self::challenges(&orders) {
            snapshot = snapshot.challenge(challenge);
        }
        if let Some(nodes) = &self.nodes {
            let place = |ready: &Ready| {
                let (id, run) = ready.served.as_ref()?;
                Some((id.clone(), elsewhere.get(run)?.clone()))
            };
            let endpoints = seen.endpoints.made().flatten().filter_map(place).collect();
            nodes.publish(Whereabouts { endpoints }).await;
        }
        let own = self.agents.as_ref().map(|agents| agents.run.as_str());
        // An agent is connected to this run of the server, or to one that can be reached.
        let is_reached = |ready: &&Ready| match &ready.served {
            None => true,
            Some((_, run)) => own == Some(run.as_str()) || elsewhere.contains_key(run),
        };
        for ready in seen.endpoints.made().flatten().filter(is_reached) {
            snapshot = snapshot.endpoint(ready.endpoint.clone());
        }
        let (custom, mut bare) = self.custom_domains(seen).await;
        for (name, key) in custom {
            snapshot = snapshot.certificate([name], key);
        }
        let ready = seen.endpoints.made().flatten();
        let hosts = ready.filter_map(|ready| ready.certificate_host.as_deref());
        for (mut names, key) in authority.certificates(hosts, self.clock.now(), &*self.entropy)? {
            if names.contains(platform) {
                names.append(&mut bare);
            }
            snapshot = snapshot.fallback_certificate(names, key);
        }
        let snapshot = snapshot.build();
        info!(
            endpoints = snapshot.len(),
            "endpoints are published to the edge"
        );
        edge.publish(snapshot).await;
        seen.edge = read;
        seen.snapshot_at = Some(Instant::now());
        Ok(())
    }

    /// Other runs of servers whose agents this node reaches, and where.
    async fn elsewhere(&self, seen: &mut Seen) -> Result<BTreeMap<String, String>, Fault> {
        if self.nodes.is_none() {
            return Ok(BTreeMap::new());
        }
        let read = |document: Document| {
            let address = runs::address(&document).unwrap_or_else(|fault| {
                error!(cause = %fault.chain(), "a run of a server is left out");
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

    /// Custom domains and agent ingresses with their certificates, and domains that have none: for them the platform's is
    /// presented.
    async fn custom_domains(
        &self,
        seen: &mut Seen,
    ) -> (Vec<(HostName, Arc<CertifiedKey>)>, Vec<HostName>) {
        let mut known = std::mem::take(&mut seen.certificates);
        let mut covered: Vec<(HostName, Arc<CertifiedKey>)> = Vec::new();
        let mut bare = Vec::new();
        // Of two for one name the later one is presented: the reserved domain's.
        let ingresses = seen.ingresses.made().map(ingress);
        for named in ingresses.chain(seen.domains.made().map(custom_domain)) {
            let (name, certificate_id) = match named {
                Ok(Some(custom)) => custom,
                Ok(None) => continue,
                Err(fault) => {
                    error!(cause = %fault.chain(), "a domain is left out");
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
                    error!(cause = %fault.chain(), "a certificate is left out");
                    bare.push(name);
                }
            }
        }
        (covered, bare)
    }

    pub(crate) async fn open_certificate(&self, id: &str) -> Result<Arc<CertifiedKey>, Fault> {
        let document = self.store.get(tls_certificate::TYPE.kind, id).await?;
        let document =
            document.ok_or_else(|| Fault::bare(format!("opening {id}: there is no such one")))?;
        let certificate: TlsCertificate = stored::read(&document)?;
        certificate.certified_key(&self.seal, &document.head)
    }

    async fn compile_delivery(&self, seen: &mut Seen) -> Result<(), Fault> {
        let subscriptions = self.store.all(event_subscription::TYPE.kind).await?;
        let destinations = self.store.all(event_destination::TYPE.kind).await?;
        let mut read = revisions(&subscriptions);
        read.extend(revisions(&destinations));
        let replays = self.store.all(replay::KIND).await?;
        read.extend(revisions(&replays));
        if seen.delivery.as_ref() == Some(&read) {
            return Ok(());
        }
        seen.targets
            .retain(|id, _| destinations.iter().any(|one| one.head.id == *id));
        let mut table = Table::default();
        for document in &destinations {
            match self.open_target(document, seen) {
                Ok(target) => table.destinations.push(Destination {
                    id: document.head.id.clone(),
                    account: document.head.account.clone(),
                    revision: document.head.revision,
                    target,
                }),
                Err(fault) => error!(cause = %fault.chain(), "a destination is left out"),
            }
        }
        for document in &subscriptions {
            match sources(document) {
                Ok(sources) => table.sources.extend(sources),
                Err(fault) => error!(cause = %fault.chain(), "a subscription is left out"),
            }
        }
        for document in &replays {
            match replay::compile(document) {
                Ok(replay) => table.replays.push(replay),
                Err(fault) => error!(cause = %fault.chain(), "a replay is left out"),
            }
        }
        self.delivery.publish(table);
        seen.delivery = Some(read);
        Ok(())
    }

    /// The target of a destination; one that has not changed stays open.
    fn open_target(&self, document: &Document, seen: &mut Seen) -> Result<Arc<dyn Target>, Fault> {
        let head = &document.head;
        if let Some((revision, target)) = seen.targets.get(&head.id)
            && *revision == head.revision
        {
            return Ok(target.clone());
        }
        let destination: EventDestination = stored::read(document)?;
        let (ty, configuration) = destination.target(&self.seal, head)?;
        let whose = Whose {
            destination: &head.id,
            account: &head.account,
        };
        let target = (ty.open)(&configuration, self.delivery.net(), whose)
            .map_err(|refusal| Fault::new(format!("opening destination {}", head.id), refusal))?;
        seen.targets
            .insert(head.id.clone(), (head.revision, target.clone()));
        Ok(target)
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
    Ok(Ready {
        certificate_host: host.map(str::to_owned),
        endpoint: ready,
        served,
    })
}

/// The name of a custom domain and the id of its certificate; `None` for one of the platform's.
fn custom_domain(document: &Document) -> Result<Option<(HostName, Option<String>)>, Fault> {
    let domain: ReservedDomain = stored::read(document)?;
    let Some((name, certificate_id)) = domain.custom() else {
        return Ok(None);
    };
    let name = HostName::parse(name)
        .map_err(|error| Fault::new(format!("compiling {}", document.head.id), error))?;
    Ok(Some((name, certificate_id.map(str::to_owned))))
}

/// The name of an agent ingress and the id of its certificate; `None` while it has none.
fn ingress(document: &Document) -> Result<Option<(HostName, Option<String>)>, Fault> {
    let ingress: AgentIngress = stored::read(document)?;
    let Some(id) = ingress.certificate_id() else {
        return Ok(None);
    };
    let name = HostName::parse(ingress.name())
        .map_err(|error| Fault::new(format!("compiling {}", document.head.id), error))?;
    Ok(Some((name, Some(id.to_owned()))))
}

fn revisions(documents: &[Document]) -> Vec<(String, i64)> {
    let of = |document: &Document| (document.head.id.clone(), document.head.revision);
    documents.iter().map(of).collect()
}

/// The traffic sources of a subscription. One that does not compile any more, after an upgrade,
/// captures nothing and says so.
fn sources(document: &Document) -> Result<Vec<Source>, Fault> {
    let subscription: EventSubscription = stored::read(document)?;
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
            text => Filter::compile(kind, text).map(Some),
        };
        match (selection, filter) {
            (Ok(selection), Ok(filter)) => compiled.push(Source {
                subscription: head.id.clone(),
                account: account.clone(),
                kind,
                selection,
                filter,
                destinations: subscription.destination_ids.clone(),
            }),
            (Err(refusal), _) | (_, Err(refusal)) => error!(
                subscription = head.id,
                source = kind.name,
                cause = %refusal,
                "a stored source does not compile and captures nothing"
            ),
        }
    }
    Ok(compiled)
}
