//! Agent sessions: authorizes agents, decides what each may serve, and stores and reports their sessions.
//!
//! [`AgentControl`] is the [`AgentAuthorizer`] of the tunnel plane. A session is stored as a document while it
//! lasts, and so is each of its endpoints, which reach the edge like every other endpoint. A session whose
//! connection broke can resume within a few seconds, so a short network failure causes no write and no event.
//!
//! Every session belongs to the run of one server, because only that process can reach its agent. When a run
//! crashes, another run removes what it left behind (module `heartbeat`).

pub mod authorize;
pub mod bind;
pub mod events;
pub mod failure_detector;
pub mod heartbeat;
pub mod ingress;
pub mod nodes;
pub mod options;
pub mod reserved_names;
pub mod run_lease;
pub mod session;
pub mod state;
mod subject;
pub mod tunnel;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use culvert_access::active_owners::ActiveOwners;
use culvert_base::{BoxFuture, Fault, Refusal, Timestamp, code};
use culvert_certificates::authority;
use culvert_certificates::own_certificate::OwnCertificates;
use culvert_certificates::ssh::public_key_model::SshPublicKey;
use culvert_endpoints::endpoint::model::Endpoint;
use culvert_endpoints::host;
use culvert_endpoints::reserved_addr::model::ReservedAddr;
use culvert_endpoints::reserved_domain::model::ReservedDomain;
use culvert_identity::credential::model::TunnelCredential;
use culvert_resources::operation::Operation;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::operations::of_resource;
use culvert_resources::stored;
use culvert_resources::stored::informer_cache::InformerCache;
use culvert_store::Document;
use culvert_tunnel::server::{
    AgentAuthRequest, AgentAuthorizer, Binding, EndReason, EndpointRequest, SessionEnd,
    SessionGrant,
};
use culvert_tunnel::wire::{LabelledRequest, PatchRequest};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

pub use crate::events::kinds;
use crate::ingress::model::AgentIngress;
use crate::reserved_names::ReservedNames;
use crate::session::ending::GRACE;
use crate::session::model::TunnelSession;
use crate::state::{AgentCertificates, Agents};
pub use crate::subject::AgentControl;
use crate::subject::answered;

/// The text of [`EndReason::Expired`].
const EXPIRED: &str = "session expired";
/// The error of a session that the database lost.
const LOST: &str = "transport error: the database lost the session";
/// Limit of sessions that are ended concurrently.
const ENDED_AT_ONCE: usize = 64;

/// The operations of the subject.
pub fn operations() -> Vec<Operation<AgentControl>> {
    let of_resources = [
        of_resource(&ingress::TYPE, ingress::OPERATIONS),
        of_resource(&session::TYPE, session::OPERATIONS),
        of_resource(&tunnel::TYPE, &[]),
    ];
    of_resources.into_iter().flatten().collect()
}

/// Presents issued certificates first, then the operator's, then public ones of the installation's names, then one of
/// the installation's CA.
#[derive(Debug)]
struct Resolver {
    presented: Arc<AgentCertificates>,
    public: Arc<OwnCertificates>,
    operators: Option<Arc<dyn ResolvesServerCert>>,
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let name = name.unwrap_or_default();
        let issued = self.presented.issued.load().get(&name).cloned();
        issued.or_else(|| match &self.operators {
            Some(operators) => operators.resolve(hello),
            None => self
                .public
                .find(&name)
                .or_else(|| self.presented.own.load_full()),
        })
    }
}

/// The state that the reconcile loop has seen.
struct ReconcileState {
    credentials: InformerCache<()>,
    keys: InformerCache<()>,
    owners: ActiveOwners,
    domains: InformerCache<()>,
    addresses: InformerCache<()>,
    /// Endpoints of agents of this run, with their reservations.
    holders: InformerCache<Option<Holder>>,
    /// IDs of the endpoints whose reservation may be gone.
    to_check: BTreeSet<String>,
    /// Agent ingress domains and the certificates issued for them.
    ingresses: InformerCache<Option<(String, Option<String>)>>,
    /// Names reserved for owners whose agents may reconnect.
    names: ReservedNames,
    /// Issued certificates in use, by ID. A certificate never changes under its ID.
    issued: BTreeMap<String, (String, Arc<CertifiedKey>)>,
    /// Names of the certificate, and when to renew it.
    certificate: (Vec<String>, Timestamp),
    /// Time of the last check of runs.
    runs_at: Option<Instant>,
    /// Whether this run is registered.
    is_registered: bool,
    /// The epoch of the store in which all sessions were there.
    epoch: u64,
}

/// An agent's endpoint under a reservation of its account.
#[derive(Debug)]
struct Holder {
    endpoint_id: String,
    session_id: String,
    /// ID of the reserved domain or address.
    reservation_id: String,
}

impl AgentControl {
    /// Prepares for agents: cleans up after earlier runs and creates a certificate. [`Self::keep_agents`] repeats what
    /// fails.
    pub async fn begin_agents(&self) -> Result<(), Fault> {
        let Some(agents) = &self.agents else {
            return Ok(());
        };
        if self.kernel.store.is_read_only() {
            warn!(
                "rejecting agents: the database is read-only because the disk took no writes at startup"
            );
        } else if let Err(fault) = self.begin_instance(agents).await {
            // The nodes of a cluster route to each other by it.
            if !agents.settings.is_alone {
                return Err(fault);
            }
            // The edge needs neither. `keep_agents` does both once the disk takes writes.
            error!(cause = %fault.chain(), "this run is not registered yet; agents wait");
        }
        let mut seen = ReconcileState::empty();
        self.renew_certificate(agents, &mut seen).await
    }

    async fn begin_instance(&self, agents: &Agents) -> Result<(), Fault> {
        self.register_instance(agents).await?;
        self.check_instances(agents).await
    }

    /// Resolves the certificate for agents: the one issued for the ingress they connect to, else the
    /// operator's, else a public one of the name, else one of the installation's authority.
    pub fn agent_certificate(
        &self,
        operators: Option<Arc<dyn ResolvesServerCert>>,
    ) -> Option<Arc<dyn ResolvesServerCert>> {
        let presented = Arc::clone(&self.agents.as_ref()?.certificate);
        Some(Arc::new(Resolver {
            presented,
            public: Arc::clone(&self.certificates.own_certificates),
            operators,
        }))
    }

    /// Ends sessions that are due, for any reason, until cancelled.
    pub async fn keep_agents(self: Arc<Self>, cancel: CancellationToken) {
        let Some(agents) = &self.agents else {
            return cancel.cancelled().await;
        };
        let mut seen = ReconcileState::empty();
        let mut revision = self.kernel.store.watch();
        while !cancel.is_cancelled() {
            revision.mark_unchanged();
            let is_read_only = self.kernel.store.is_read_only();
            if let Err(fault) = self.keep(agents, &mut seen).await {
                error!(cause = %fault.chain(), "agent sessions left unchanged");
            }
            self.end_those_due(agents, Instant::now()).await;
            let until = agents
                .next_deadline()
                .min(Instant::now() + agents.look_every());
            tokio::select! {
                () = tokio::time::sleep_until(until.into()) => {}
                _ = revision.changed() => {}
                () = agents.woken.notified() => {}
                () = self.kernel.store.until_writable(), if is_read_only => {}
                () = cancel.cancelled() => {}
            }
        }
        // No agent can resume its session at this run any more.
        self.end_those_due(agents, Instant::now() + GRACE).await;
        if let Err(fault) = self.unregister_instance(agents).await {
            warn!(cause = %fault.chain(), "recording the shutdown failed; the next start will detect it");
        }
    }

    async fn keep(&self, agents: &Agents, seen: &mut ReconcileState) -> Result<(), Fault> {
        // Read the sessions first. A session in this list then had its credential before the credentials are
        // read.
        let sessions: Vec<(String, String, String)> = agents
            .lock()
            .iter()
            .map(|(id, live)| {
                (
                    id.clone(),
                    live.credential_id.clone(),
                    live.owner_id.clone(),
                )
            })
            .collect();
        seen.credentials.refresh(&self.kernel.store, |_| ()).await?;
        seen.keys.refresh(&self.kernel.store, |_| ()).await?;
        seen.owners
            .refresh(&self.kernel.store, &mut BTreeSet::new())
            .await?;
        let mut dismissing = JoinSet::new();
        for (id, credential_id, owner_id) in sessions {
            let (why, refusal) = if !seen.knows(&credential_id) {
                let refusal = Refusal::of(code::AGENT_CREDENTIAL_DELETED);
                (session::commands::CREDENTIAL_DELETED, refusal)
            } else if !seen.owners.has(&owner_id) {
                let refusal = Refusal::of(code::OWNER_INACTIVE);
                (session::commands::OWNER_INACTIVE, refusal)
            } else {
                continue;
            };
            let bindings = Arc::clone(&agents.bindings);
            dismissing.spawn(async move {
                let was_connected = bindings.dismiss(&id, why, &refusal).await;
                (id, was_connected, why)
            });
        }
        for (id, was_connected, why) in dismissing.join_all().await {
            if !was_connected {
                agents.leave(&id, Instant::now(), EndReason::Stopped(why.into()));
            }
        }
        if !seen.is_registered && !self.kernel.store.is_read_only() {
            self.register_late(agents).await?;
            seen.is_registered = true;
        }
        self.end_lost(agents, seen).await?;
        self.withdraw_unreserved(agents, seen).await?;
        self.forget_names(agents, seen).await?;
        if seen
            .runs_at
            .is_none_or(|at| at.elapsed() >= agents.look_every())
        {
            seen.runs_at = Some(Instant::now());
            if !self.kernel.store.is_read_only() {
                self.check_instances(agents).await?;
            }
        }
        self.remove_unanswered(agents).await?;
        self.renew_certificate(agents, seen).await
    }

    /// Ends the sessions that the database lost, or an endpoint of which it lost. Their agents connect again immediately
    /// and bind their endpoints again.
    async fn end_lost(&self, agents: &Agents, seen: &mut ReconcileState) -> Result<(), Fault> {
        let epoch = self.kernel.store.epoch();
        if seen.epoch == epoch {
            return Ok(());
        }
        let sessions: Vec<(String, BTreeSet<String>)> = {
            let sessions = agents.lock();
            let all = sessions.iter();
            all.map(|(id, live)| (id.clone(), live.endpoints.clone()))
                .collect()
        };
        for (id, endpoints) in sessions {
            let mut is_there = self
                .kernel
                .store
                .get(TunnelSession::KIND, &id)
                .await?
                .is_some();
            for endpoint in &endpoints {
                is_there = is_there
                    && self
                        .kernel
                        .store
                        .get(Endpoint::KIND, endpoint)
                        .await?
                        .is_some();
            }
            if !is_there {
                let now = self.kernel.clock.now();
                self.remove_session(&id, &agents.run, (LOST, true), now)
                    .await?;
                agents.lock().remove(&id);
                agents.bindings.hang_up(&id, LOST);
            }
        }
        seen.epoch = epoch;
        Ok(())
    }

    /// Takes endpoints offline whose reservation was removed, since another account may hold it now.
    async fn withdraw_unreserved(
        &self,
        agents: &Agents,
        seen: &mut ReconcileState,
    ) -> Result<(), Fault> {
        // The order matters: the reservation of every endpoint read here is read after it.
        let read = |document: Document| holder(&document, &agents.run);
        let changes = seen.holders.refresh(&self.kernel.store, read).await?;
        seen.to_check.extend(changes.into_iter().map(|(id, _)| id));
        for reservations in [&mut seen.domains, &mut seen.addresses] {
            if !reservations
                .refresh(&self.kernel.store, |_| ())
                .await?
                .is_empty()
            {
                let all = seen.holders.values().flatten();
                seen.to_check.extend(all.map(|one| one.endpoint_id.clone()));
            }
        }
        // Endpoints without a reservation are checked until they are gone.
        seen.to_check.retain(|id| {
            let holder = seen.holders.get(id).and_then(Option::as_ref);
            holder.is_some_and(|holder| {
                let id = &holder.reservation_id;
                !seen.domains.contains(id) && !seen.addresses.contains(id)
            })
        });
        let unreserved = seen.to_check.iter();
        for holder in unreserved.filter_map(|id| seen.holders.get(id)?.as_ref()) {
            self.unbind_endpoint(&holder.session_id, &holder.endpoint_id)
                .await?;
            let is_address = holder.reservation_id.starts_with(ReservedAddr::ID_PREFIX);
            let code = if is_address {
                code::BIND_ADDRESS_UNAVAILABLE
            } else {
                code::BIND_NAME_NOT_RESERVED
            };
            agents
                .bindings
                .stop_endpoint(&holder.endpoint_id, &Refusal::of(code))
                .await;
        }
        Ok(())
    }

    /// Removes expired names, and the oldest names of an owner with more names than the endpoint limit.
    /// Otherwise an owner could fill the store by binding names and leaving them.
    async fn forget_names(&self, agents: &Agents, seen: &mut ReconcileState) -> Result<(), Fault> {
        seen.names.refresh(&self.kernel.store).await?;
        let limits = &agents.settings.limits;
        let max = limits.endpoints_per_account.min(limits.endpoints_per_owner);
        for name in seen.names.surplus(self.kernel.clock.now(), max) {
            host::forget(&self.kernel.store, name).await?;
        }
        Ok(())
    }

    /// Replaces the certificate when it lacks a name or is due for renewal.
    async fn renew_certificate(
        &self,
        agents: &Agents,
        seen: &mut ReconcileState,
    ) -> Result<(), Fault> {
        seen.ingresses
            .refresh(&self.kernel.store, |document| {
                ingress::certified(&document).ok()
            })
            .await?;
        self.show_issued(agents, seen).await;
        let mut names = agents.settings.names.clone();
        for (name, _) in seen.ingresses.values().flatten() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        let now = self.kernel.clock.now();
        if seen.certificate.0 == names && now < seen.certificate.1 {
            return Ok(());
        }
        let (key, renew_at) = authority::sign_server(
            &self.kernel.store,
            &self.kernel.seal,
            &names,
            now,
            &*self.kernel.entropy,
        )
        .await?;
        agents.certificate.own.store(Some(key));
        seen.certificate = (names, renew_at);
        Ok(())
    }

    /// Installs the certificates that were issued for ingresses.
    async fn show_issued(&self, agents: &Agents, seen: &mut ReconcileState) {
        let mut issued = BTreeMap::new();
        for (name, id) in seen.ingresses.values().flatten() {
            let Some(id) = id else { continue };
            let key = match seen.issued.get(id) {
                Some((_, key)) => Ok(Arc::clone(key)),
                None => self.certificates.open_certificate(id).await,
            };
            match key {
                Ok(key) => drop(issued.insert(id.clone(), (name.clone(), key))),
                Err(fault) => error!(cause = %fault.chain(), "certificate skipped"),
            }
        }
        if issued.keys().ne(seen.issued.keys()) {
            let by_name = issued.values().cloned().collect();
            agents.certificate.issued.store(Arc::new(by_name));
        }
        seen.issued = issued;
    }

    /// Ends the sessions that were not resumed in time, and closes the connections of sessions past their
    /// stop time.
    async fn end_those_due(self: &Arc<Self>, agents: &Agents, now: Instant) {
        let mut due = Vec::new();
        let time = self.kernel.clock.now();
        for (id, live) in &mut *agents.lock() {
            if live.expires_at.is_some_and(|at| at <= time) {
                live.expires_at = None;
                agents.bindings.hang_up(id, EXPIRED);
            }
            if let Some((at, why)) = live.cut
                && at <= now
            {
                live.cut = None;
                agents.bindings.hang_up(id, why);
            }
            if let Some((at, reason)) = &live.leaving
                && *at <= now
            {
                due.push((id.clone(), reason.clone()));
            }
        }
        let mut ending = JoinSet::new();
        for (id, reason) in due {
            if ending.len() >= ENDED_AT_ONCE {
                ending.join_next().await;
            }
            let control = Arc::clone(self);
            ending.spawn(async move { control.end_session(&id, &reason).await });
        }
        ending.join_all().await;
    }

    /// The number of agent sessions in this process, including those that may still resume.
    pub fn agent_sessions(&self) -> usize {
        self.agents.as_ref().map_or(0, |agents| agents.lock().len())
    }
}

impl ReconcileState {
    fn empty() -> Self {
        Self {
            credentials: InformerCache::of(TunnelCredential::KIND),
            keys: InformerCache::of(SshPublicKey::KIND),
            owners: ActiveOwners::empty(),
            domains: InformerCache::of(ReservedDomain::KIND),
            addresses: InformerCache::of(ReservedAddr::KIND),
            to_check: BTreeSet::new(),
            holders: InformerCache::of(Endpoint::KIND),
            ingresses: InformerCache::of(AgentIngress::KIND),
            names: ReservedNames::empty(),
            issued: BTreeMap::new(),
            certificate: (Vec::new(), Timestamp::from_unix_seconds(0)),
            runs_at: None,
            is_registered: false,
            epoch: 0,
        }
    }

    fn knows(&self, credential_id: &str) -> bool {
        self.credentials.contains(credential_id) || self.keys.contains(credential_id)
    }
}

/// The reservation of an endpoint that an agent of this run serves.
fn holder(document: &Document, run: &str) -> Option<Holder> {
    let endpoint: Endpoint = stored::read(document).ok()?;
    let served = endpoint.served().filter(|served| served.run == run)?;
    Some(Holder {
        endpoint_id: document.head.id.clone(),
        session_id: served.session_id.clone(),
        reservation_id: endpoint.reservation()?.to_owned(),
    })
}

impl AgentAuthorizer for AgentControl {
    fn authorize(&self, hello: AgentAuthRequest) -> BoxFuture<'_, Result<SessionGrant, Refusal>> {
        Box::pin(async { answered(self.admit_session(hello).await) })
    }

    fn next_tcp_port<'a>(&'a self, grant: &'a SessionGrant) -> BoxFuture<'a, Option<u16>> {
        Box::pin(async {
            let port = self.next_tcp_port(&grant.session_id).await;
            // The request for the endpoint reports the error.
            port.unwrap_or_default()
        })
    }

    fn bind<'a>(
        &'a self,
        grant: &'a SessionGrant,
        want: &'a EndpointRequest,
    ) -> BoxFuture<'a, Result<Binding, Refusal>> {
        Box::pin(async { answered(self.bind_endpoint(&grant.session_id, want).await) })
    }

    fn bind_labels<'a>(
        &'a self,
        grant: &'a SessionGrant,
        want: &'a LabelledRequest,
    ) -> BoxFuture<'a, Result<String, Refusal>> {
        Box::pin(async { answered(self.refuse_labels(&grant.session_id, want).await) })
    }

    fn patch<'a>(
        &'a self,
        grant: &'a SessionGrant,
        change: &'a PatchRequest,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { answered(Box::pin(self.patch_endpoint(&grant.session_id, change)).await) })
    }

    fn unbind<'a>(&'a self, grant: &'a SessionGrant, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Err(fault) = self.unbind_endpoint(&grant.session_id, id).await {
                error!(endpoint.id = id, cause = %fault.chain(), "removing an endpoint failed; it is removed with its session");
            }
        })
    }

    fn ended(&self, end: SessionEnd) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(agents) = &self.agents else { return };
            let id = &end.grant.session_id;
            if let Some(live) = agents.lock().get_mut(id) {
                live.left_at = Some(self.kernel.clock.now());
            }
            let reason = match agents.asked(id) {
                Some(why) if end.reason.may_pass() || end.reason == EndReason::Closed => {
                    EndReason::Stopped(why.into())
                }
                _ => end.reason,
            };
            if reason.may_pass() && end.may_return {
                agents.leave(id, Instant::now() + GRACE, reason);
                return;
            }
            agents.leave(id, Instant::now(), reason.clone());
            self.end_session(id, &reason).await;
        })
    }
}
