//! Binds, changes and unbinds the endpoints of agents (contract: agent protocol 5.2 to 5.6).

use std::time::Duration;

use culvert_base::names::escaped;
use culvert_base::{Code, Description, Fault, Metadata, Refusal, code, id};
use culvert_certificates::ssh::public_key;
use culvert_endpoints::endpoint::agent;
use culvert_endpoints::endpoint::agent::{
    AgentAddress, Parts, Patch, RequestedOptions, RequestedTimeouts, Written,
};
use culvert_endpoints::endpoint::model::{Endpoint, Served};
use culvert_endpoints::{endpoint, pool};
use culvert_identity::credential;
use culvert_resources::access::acl::{Acl, Bound};
use culvert_resources::audit::verb::Verb;
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::service::{RUNS_MAX, overtaken};
use culvert_resources::stored::Format;
use culvert_resources::{Caller, Error, audit, stored};
use culvert_store::{Changes, CommitError, Document, Head, Revision};
use culvert_tunnel::server::{Binding, EndpointRequest};
use culvert_tunnel::wire::{EndpointTimeouts, LabelledRequest, PatchRequest};

use crate::authorize::{Credential, cut};
use crate::session::model::TunnelSession;
use crate::state::Agents;
use crate::tunnel::REPORTED_AS_ENDPOINT;
use crate::tunnel::model::Tunnel;
use crate::{AgentControl, options, tunnel};

/// Longest description of an agent's service that is stored, in bytes.
const FORWARDS_TO_BYTES_MAX: usize = 2048;
const NAME_BYTES_MAX: usize = 255;

/// The session state that binding needs.
struct Session {
    caller: Caller,
    stored: TunnelSession,
    acl: Acl,
}

impl AgentControl {
    /// Binds an endpoint for a session. Returns once traffic reaches this process.
    pub(crate) async fn bind_endpoint(
        &self,
        session_id: &str,
        want: &EndpointRequest,
    ) -> Result<Binding, Error> {
        let (agents, session) = self.entitled_session(session_id).await?;
        let cx = self
            .kernel
            .cx(&session.caller, &self.kernel.settings.base_url);
        let text = options::policy(want)?;
        let had = self.had_before(&cx, want)?;
        // Reserved before this waits for the lock of the session, so that requests which wait are counted too.
        let room = agents.room_for(session_id, had.as_ref().map(|(id, _)| &id[..]))?;
        let binding = self.bind_locked(&cx, &session, want, &text, had.as_ref(), room);
        // Boxed because the future is large.
        let binding = Box::pin(binding);
        self.kernel.locks.with(&[session_id], binding).await
    }

    async fn bind_locked(
        &self,
        cx: &Cx<'_>,
        session: &Session,
        want: &EndpointRequest,
        text: &str,
        had: Option<&(String, String)>,
        room: EndpointSlot<'_>,
    ) -> Result<Binding, Error> {
        let EndpointSlot {
            agents, session_id, ..
        } = room;
        let mut _retry = None;
        let mut has_made_room = false;
        for run in 0..RUNS_MAX {
            if run == 1 {
                _retry = Some(cx.locks.retry().await);
            }
            let id = match had {
                Some((id, _)) => id.clone(),
                None => endpoint::TYPE.stored_id_of(cx.new_id()),
            };
            let place = self.place_for(cx, want, &id, had).await?;
            refuse_by(&session.acl, want, &place)?;
            let (url, name) = (place.url().to_owned(), place.name());
            let occupants = place.occupants(cx).await?;
            // Before the commit: if this future is dropped during it, the endpoint is listed for removal.
            let unanswered = Unanswered::of(agents, session_id, &id);
            let written = self
                .write_endpoint(cx, (session_id, session), &id, place, want, text)
                .await;
            match written {
                Ok(Some(revision)) => {
                    // It is stored, so it counts even if the edge does not get it in time.
                    room.take(&id);
                    self.reaches_edge(revision).await?;
                    unanswered.settle();
                    let token = self.token_of(cx, &id, &url);
                    return Ok(Binding {
                        id,
                        url: cx.settings.public_ports.shown(&url).into_owned(),
                        name,
                        token,
                    });
                }
                // Nothing was committed.
                Ok(None) => unanswered.settle(),
                Err(Error::Refused(refusal)) if is_occupied(&refusal) => {
                    unanswered.settle();
                    // The session of the occupant may have lost its connection, or its agent may never have
                    // received the response.
                    if !has_made_room && self.make_room(agents, cx, &occupants).await? {
                        has_made_room = true;
                        continue;
                    }
                    return Err(Refusal::new(code::BIND_URL_IN_USE, refusal.message).into());
                }
                Err(Error::Refused(refusal)) if is_anothers(&refusal) => {
                    unanswered.settle();
                    return Err(
                        Refusal::new(code::BIND_NAME_OF_ANOTHER_ACCOUNT, refusal.message).into(),
                    );
                }
                Err(error) => {
                    // After a fault the outcome is unknown: the commit may still succeed.
                    if matches!(error, Error::Refused(_)) {
                        unanswered.settle();
                    }
                    return Err(error);
                }
            }
        }
        Err(overtaken())
    }

    /// The port that the next TCP endpoint of a session gets, unless another one takes it first.
    pub async fn next_tcp_port(&self, session_id: &str) -> Result<Option<u16>, Error> {
        let (_, session) = self.entitled_session(session_id).await?;
        let cx = self
            .kernel
            .cx(&session.caller, &self.kernel.settings.base_url);
        Ok(pool::take(&cx, None).await?.map(|taken| taken.port))
    }

    /// Takes endpoints offline that were committed although their agents got no response, and that no agent
    /// serves. Called again while the outcome of a commit may be unknown.
    pub(crate) async fn remove_unanswered(&self, agents: &Agents) -> Result<(), Fault> {
        let found = agents.unanswered().clone();
        for (id, session_id) in found {
            let removing = self.remove_one_unanswered(agents, &id, &session_id);
            self.kernel.locks.with(&[&session_id], removing).await?;
        }
        Ok(())
    }

    async fn remove_one_unanswered(
        &self,
        agents: &Agents,
        id: &str,
        session_id: &str,
    ) -> Result<(), Fault> {
        if agents.bindings.count(id) == 0 {
            let document = self.kernel.store.get(Endpoint::KIND, id).await?;
            let session = self.session(session_id).await;
            if let (Some(document), Ok((_, session))) = (document, session) {
                let cx = self
                    .kernel
                    .cx(&session.caller, &self.kernel.settings.base_url);
                self.remove_endpoints(&cx, session_id, vec![document], self.names_kept())
                    .await
                    .map_err(|error| Fault::new("taking an unconfirmed endpoint offline", error))?;
            }
        }
        agents.unanswered().remove(id);
        Ok(())
    }

    /// The ID and URL of an earlier endpoint of the agent, proved by its token. Code 335.
    fn had_before(
        &self,
        cx: &Cx<'_>,
        want: &EndpointRequest,
    ) -> Result<Option<(String, String)>, Refusal> {
        if want.id.is_empty() {
            return Ok(None);
        }
        let (digest, url) = want
            .token
            .split_once(' ')
            .ok_or_else(|| Refusal::of(code::ENDPOINT_TOKEN_INVALID))?;
        let text = token_text(cx.caller, &want.id, url);
        if !self.kernel.pepper.recognises(Some(digest), &text) {
            return Err(Refusal::of(code::ENDPOINT_TOKEN_INVALID));
        }
        Ok(Some((want.id.clone(), url.to_owned())))
    }

    fn token_of(&self, cx: &Cx<'_>, id: &str, url: &str) -> String {
        let text = token_text(cx.caller, id, url);
        format!("{} {url}", self.kernel.pepper.digest(&text))
    }

    async fn place_for(
        &self,
        cx: &Cx<'_>,
        want: &EndpointRequest,
        id: &str,
        had: Option<&(String, String)>,
    ) -> Result<AgentAddress, Error> {
        let wanted = RequestedOptions {
            proto: &want.proto,
            bindings: &want.bindings,
            tcp_port: want.tcp_port,
        };
        if let Some((_, url)) = had {
            return agent::settle(cx, wanted, Some(url), id, true).await;
        }
        let subdomain = &want.options.subdomain;
        let below = (!subdomain.is_empty() && want.proto != "tcp")
            .then(|| format!("{subdomain}.{}", cx.settings.edge_domain));
        let requested = want.options.requested().or(below.as_deref());
        agent::settle(cx, wanted, requested, id, false).await
    }

    /// Writes an endpoint and its tunnel. Returns the revision of the commit; `None` when a document has
    /// changed and the write must be decided again.
    async fn write_endpoint(
        &self,
        cx: &Cx<'_>,
        (session_id, session): (&str, &Session),
        endpoint_id: &str,
        place: AgentAddress,
        want: &EndpointRequest,
        policy: &str,
    ) -> Result<Option<Revision>, Error> {
        let ty = &endpoint::TYPE;
        let before = cx.own(ty.kind, endpoint_id).await?;
        if let Some(before) = &before {
            let endpoint: Endpoint = stored::read(before)?;
            if endpoint.principal_id() != cx.caller.owner_id {
                return Err(Refusal::of(code::ENDPOINT_TOKEN_INVALID).into());
            }
        }
        // The IDs of an endpoint and its tunnel differ only in the prefix.
        let body = id::split(endpoint_id).map_or("", |(_, body)| body);
        let tunnel_id = tunnel::TYPE.stored_id_of(body);
        let url = place.url().to_owned();
        let served = Served {
            session_id: session_id.to_owned(),
            tunnel_id: tunnel_id.clone(),
            run: session.stored.run.clone(),
            region: session.stored.region.clone(),
            forwards_to: cut(&want.forwards_to, FORWARDS_TO_BYTES_MAX),
            forwards_proto: forwards_proto(&want.forwards_proto)?.to_owned(),
            proxy_version: proxy_version(want.options.proxy_proto)?,
            name: cut(&escaped(&want.name), NAME_BYTES_MAX),
        };
        let metadata = metadata(&want.metadata)?;
        let parts = Parts {
            served,
            pooling_enabled: want.pooling_enabled,
            description: description(&want.description)?,
            metadata: metadata.clone(),
            policy,
            merge_slashes: want.options.merge_slashes,
            timeouts: timeouts(&want.options.timeouts),
        };
        let (endpoint, also, is_new) =
            match Endpoint::serve(cx, endpoint_id, place, parts, before.as_ref()).await? {
                // Already stored, perhaps by a bind whose response was lost. The edge may not have that commit yet.
                Written::Same => {
                    return Ok(Some(Revision {
                        epoch: self.kernel.store.epoch(),
                        number: before.map_or(0, |before| before.head.revision),
                    }));
                }
                Written::New(endpoint, also) => (endpoint, also, true),
                Written::Replaced(endpoint, also) => (endpoint, also, false),
            };
        let now = cx.clock.now().whole_seconds();
        let head = match &before {
            Some(before) => Head {
                updated_at: now,
                ..before.head.clone()
            },
            None => Head {
                id: endpoint_id.to_owned(),
                kind: ty.kind.to_owned(),
                account: cx.caller.account.clone(),
                revision: 0,
                created_at: now,
                updated_at: now,
            },
        };
        let tunnel = Tunnel {
            format: Format,
            owner_id: cx.caller.owner_id.clone(),
            public_url: url,
            metadata: metadata.into(),
            proto: want.proto.clone(),
            region: session.stored.region.clone(),
            session_id: session_id.to_owned(),
            endpoint_id: Some(endpoint_id.to_owned()),
            labels: Default::default(),
            forwards_to: cut(&want.forwards_to, FORWARDS_TO_BYTES_MAX),
        };
        let document = Document {
            body: stored::write(&endpoint)?,
            refs: endpoint.links(&head).refs,
            keys: Vec::new(),
            topics: Vec::new(),
            head,
        };
        let written = match before.filter(|_| !is_new) {
            Some(before) => {
                let event = audit::update(cx, ty, &before, &document)?;
                Changes::replace(document, event)
            }
            None => {
                let view = ty.view_text(&document, cx.base)?;
                let event = audit::event(cx, ty, Verb::Created, &view)?;
                Changes::insert(document, event)
            }
        };
        let changes = written.and(also);
        let changes = changes.and(self.tunnel_written(cx, tunnel_id, tunnel).await?);
        match self.kernel.store.commit(changes).await {
            Ok(revision) => Ok(Some(revision)),
            Err(CommitError::Fault(fault)) => Err(fault.into()),
            Err(_) => Ok(None),
        }
    }

    async fn tunnel_written(
        &self,
        cx: &Cx<'_>,
        id: String,
        tunnel: Tunnel,
    ) -> Result<Changes, Fault> {
        let ty = &tunnel::TYPE;
        let before = cx.own(ty.kind, &id).await?;
        let now = cx.clock.now().whole_seconds();
        let (head, is_new) = match before {
            Some(before) => (before.head, false),
            None => {
                let head = Head {
                    id,
                    kind: ty.kind.to_owned(),
                    account: cx.caller.account.clone(),
                    revision: 0,
                    created_at: now,
                    updated_at: now,
                };
                (head, true)
            }
        };
        let document = Document {
            body: stored::write(&tunnel)?,
            refs: tunnel.links(&head).refs,
            keys: Vec::new(),
            topics: Vec::new(),
            head,
        };
        Ok(match is_new {
            true => Changes::insert(document, REPORTED_AS_ENDPOINT),
            false => Changes::replace(document, REPORTED_AS_ENDPOINT),
        })
    }

    /// Takes endpoints of this run offline that no agent serves: those of the caller whose session has no connection,
    /// and those whose bind got no response. Returns whether there was one.
    async fn make_room(
        &self,
        agents: &Agents,
        cx: &Cx<'_>,
        endpoint_ids: &[String],
    ) -> Result<bool, Error> {
        let mut has_made = false;
        for id in endpoint_ids {
            let Some(document) = cx.own(Endpoint::KIND, id).await? else {
                continue;
            };
            let endpoint: Endpoint = stored::read(&document)?;
            let Some(served) = endpoint.served() else {
                continue;
            };
            let is_disconnected = served.run == agents.run
                && endpoint.principal_id() == cx.caller.owner_id
                && agents
                    .lock()
                    .get(&served.session_id)
                    .is_some_and(|live| live.leaving.is_some())
                && !agents.bindings.is_connected(&served.session_id);
            let is_unanswered = served.run == agents.run
                && agents.unanswered().contains_key(id)
                && agents.bindings.count(id) == 0;
            if is_disconnected || is_unanswered {
                has_made |= self
                    .remove_endpoints(cx, &served.session_id, vec![document], self.names_kept())
                    .await?;
            }
        }
        Ok(has_made)
    }

    /// Refuses labels, which are not supported: code 358 if the ACL allows them, else 399.
    pub(crate) async fn refuse_labels(
        &self,
        session_id: &str,
        want: &LabelledRequest,
    ) -> Result<String, Error> {
        let (_, session) = self.entitled_session(session_id).await?;
        let is_allowed = want
            .labels
            .iter()
            .all(|(key, value)| session.acl.admits(Bound::Label(key, value)));
        Err(Refusal::of(if is_allowed {
            code::LABELLED_TUNNELS_RETIRED
        } else {
            code::BIND_LABELS_FORBIDDEN
        })
        .into())
    }

    /// Changes an endpoint at the request of its agent.
    pub(crate) async fn patch_endpoint(
        &self,
        session_id: &str,
        change: &PatchRequest,
    ) -> Result<(), Error> {
        let (_, session) = self.entitled_session(session_id).await?;
        let patching = self.patch_endpoint_locked(session_id, &session, change);
        Box::pin(self.kernel.locks.with(&[session_id], patching)).await
    }

    async fn patch_endpoint_locked(
        &self,
        session_id: &str,
        session: &Session,
        change: &PatchRequest,
    ) -> Result<(), Error> {
        let cx = self
            .kernel
            .cx(&session.caller, &self.kernel.settings.base_url);
        for _ in 0..RUNS_MAX {
            let id = &change.tunnel_id;
            let document = cx.own(Endpoint::KIND, id).await?;
            let document = document.ok_or_else(|| Refusal::of(code::AGENT_ENDPOINT_UNKNOWN))?;
            let endpoint: Endpoint = stored::read(&document)?;
            let served = endpoint.served().filter(|one| one.session_id == session_id);
            let tunnel_id = match served {
                Some(served) => served.tunnel_id.clone(),
                None => return Err(Refusal::of(code::AGENT_ENDPOINT_UNKNOWN).into()),
            };
            let patch = Patch {
                name: change.name.as_deref(),
                description: change.description.as_deref().map(description).transpose()?,
                metadata: change.metadata.as_deref().map(metadata).transpose()?,
                pooling_enabled: change.pooling_enabled,
                policy: change.traffic_policy.as_deref(),
            };
            let (endpoint, mut also) = match endpoint.patched(&cx, id, patch).await {
                Err(Error::Refused(refusal)) if is_occupied(&refusal) => {
                    return Err(Refusal::new(code::BIND_URL_IN_USE, refusal.message).into());
                }
                other => other?,
            };
            if let Some(metadata) = &change.metadata
                && let Some(document) = cx.own(Tunnel::KIND, &tunnel_id).await?
            {
                let mut tunnel: Tunnel = stored::read(&document)?;
                tunnel.metadata.clone_from(metadata);
                let body = stored::write(&tunnel)?;
                let written = Document { body, ..document };
                also = also.and(Changes::replace(written, REPORTED_AS_ENDPOINT));
            }
            let written = Document {
                body: stored::write(&endpoint)?,
                refs: endpoint.links(&document.head).refs,
                head: Head {
                    updated_at: cx.clock.now().whole_seconds(),
                    ..document.head.clone()
                },
                ..document.clone()
            };
            let event = audit::update(&cx, &endpoint::TYPE, &document, &written)?;
            let changes = Changes::replace(written, event).and(also);
            match self.kernel.store.commit(changes).await {
                Ok(revision) => return Ok(self.reaches_edge(revision).await?),
                Err(CommitError::Fault(fault)) => return Err(fault.into()),
                Err(_) => {}
            }
        }
        Err(overtaken())
    }

    /// Unbinds an endpoint at the request of its agent. The endpoint may be gone already.
    pub(crate) async fn unbind_endpoint(&self, session_id: &str, id: &str) -> Result<(), Fault> {
        let Ok((agents, session)) = self.session(session_id).await else {
            // The end of the session removes its endpoints.
            return Ok(());
        };
        let unbinding = self.unbind_endpoint_locked(agents, (session_id, &session), id);
        self.kernel.locks.with(&[session_id], unbinding).await
    }

    async fn unbind_endpoint_locked(
        &self,
        agents: &Agents,
        (session_id, session): (&str, &Session),
        id: &str,
    ) -> Result<(), Fault> {
        let cx = self
            .kernel
            .cx(&session.caller, &self.kernel.settings.base_url);
        let Some(document) = cx.own(Endpoint::KIND, id).await? else {
            return Ok(());
        };
        let endpoint: Endpoint = stored::read(&document)?;
        if endpoint
            .served()
            .is_none_or(|served| served.session_id != session_id || served.run != agents.run)
        {
            // The session has moved it to another node and is closing an old connection.
            return Ok(());
        }
        // The agent may have been asked to connect to another node, or may be restarting.
        self.remove_endpoints(&cx, session_id, vec![document], self.names_kept())
            .await
            .map(drop)
            .map_err(|error| Fault::new("taking an agent's endpoint offline", error))
    }

    /// Removes endpoints of a session and their tunnels; with `kept`, their names stay reserved for that
    /// long. Returns `false` if concurrent writers kept changing them.
    async fn remove_endpoints(
        &self,
        cx: &Cx<'_>,
        session_id: &str,
        mut documents: Vec<Document>,
        kept: Option<Duration>,
    ) -> Result<bool, Error> {
        let ids: Vec<String> = documents
            .iter()
            .map(|document| document.head.id.clone())
            .collect();
        for _ in 0..RUNS_MAX {
            if documents.is_empty() {
                return Ok(true);
            }
            let mut changes = agent::removal(cx, documents, kept).await?;
            for id in &ids {
                let body = id::split(id).map_or("", |(_, body)| body);
                let ty = &tunnel::TYPE;
                if let Some(tunnel) = cx.own(ty.kind, &ty.stored_id_of(body)).await? {
                    changes = changes.and(Changes::remove(tunnel.head, REPORTED_AS_ENDPOINT));
                }
            }
            match self.kernel.store.commit(changes).await {
                Ok(_) => {
                    if let Some(agents) = &self.agents
                        && let Some(live) = agents.lock().get_mut(session_id)
                    {
                        live.endpoints.retain(|id| !ids.contains(id));
                    }
                    return Ok(true);
                }
                Err(CommitError::Fault(fault)) => return Err(fault.into()),
                Err(_) => {}
            }
            documents = Vec::new();
            for id in &ids {
                documents.extend(cx.own(Endpoint::KIND, id).await?);
            }
        }
        Ok(false)
    }

    /// A session whose owner may still have agents. It ends when the owner becomes inactive, but only a moment later.
    /// Codes 103, 300 and 636.
    async fn entitled_session(&self, id: &str) -> Result<(&Agents, Session), Error> {
        let (agents, session) = self.session(id).await?;
        self.agents_owner(&session.caller.owner_id).await?;
        Ok((agents, session))
    }

    /// A session of this run, with the current rights of its credential. Codes 300 and 802.
    async fn session(&self, id: &str) -> Result<(&Agents, Session), Error> {
        let gone = || Refusal::of(code::AGENT_CREDENTIAL_DELETED);
        let agents = self.agents.as_ref().ok_or_else(gone)?;
        let document = self.kernel.store.get(TunnelSession::KIND, id).await?;
        let Some(document) = document else {
            return Err(self.refusal_of_ended(agents, id).await?.into());
        };
        let stored: TunnelSession = stored::read(&document)?;
        let ty = if stored.transport == "ssh" {
            &public_key::TYPE
        } else {
            &credential::TYPE
        };
        let credential = self
            .kernel
            .store
            .get(ty.kind, &stored.credential_id)
            .await?;
        let credential = credential.ok_or_else(gone)?;
        let acl = stored::read::<Credential>(&credential)?.acl;
        let caller = stored.caller(&document.head.account);
        let session = Session {
            caller,
            stored,
            acl,
        };
        Ok((agents, session))
    }

    /// The refusal of a session that is not stored any more. Another node may have ended it, which found this one silent:
    /// then its agent may connect again. 300, which ends agents, is only for one whose credential was deleted.
    async fn refusal_of_ended(&self, agents: &Agents, id: &str) -> Result<Refusal, Fault> {
        let credential_id = agents.lock().get(id).map(|live| live.credential_id.clone());
        let Some(credential_id) = credential_id else {
            return Ok(Refusal::of(code::AGENT_REQUEST_TIMED_OUT));
        };
        for ty in [&credential::TYPE, &public_key::TYPE] {
            let found = self.kernel.store.get(ty.kind, &credential_id).await?;
            if found.is_some() {
                return Ok(Refusal::of(code::AGENT_REQUEST_TIMED_OUT));
            }
        }
        Ok(Refusal::of(code::AGENT_CREDENTIAL_DELETED))
    }
}

impl Agents {
    /// Reserves a slot for one more endpoint of a session. It counts immediately, unless the session already
    /// has this endpoint. Codes 324 and 802.
    fn room_for<'a>(
        &'a self,
        session_id: &'a str,
        had: Option<&str>,
    ) -> Result<EndpointSlot<'a>, Refusal> {
        let mut sessions = self.lock();
        // It ended meanwhile. Its agent may connect again.
        let gone = || Refusal::of(code::AGENT_REQUEST_TIMED_OUT);
        let live = sessions.get(session_id).ok_or_else(gone)?;
        let counts = had.is_none_or(|id| !live.endpoints.contains(id));
        if counts {
            let (mut of_account, mut of_owner) = (0, 0);
            for other in sessions
                .values()
                .filter(|other| other.account == live.account)
            {
                let count = other.endpoints.len() + other.binding;
                of_account += count;
                of_owner += if other.owner_id == live.owner_id {
                    count
                } else {
                    0
                };
            }
            let limits = &self.settings.limits;
            if of_account >= limits.endpoints_per_account || of_owner >= limits.endpoints_per_owner
            {
                return Err(Refusal::of(code::AGENT_ENDPOINT_LIMIT_REACHED));
            }
            sessions.get_mut(session_id).ok_or_else(gone)?.binding += 1;
        }
        Ok(EndpointSlot {
            agents: self,
            session_id,
            counts,
        })
    }
}

/// A slot for an endpoint that is being bound. Dropping it frees the slot.
struct EndpointSlot<'a> {
    agents: &'a Agents,
    session_id: &'a str,
    counts: bool,
}

impl EndpointSlot<'_> {
    /// Assigns the slot to the bound endpoint.
    fn take(mut self, endpoint_id: &str) {
        let mut sessions = self.agents.lock();
        if let Some(live) = sessions.get_mut(self.session_id) {
            live.endpoints.insert(endpoint_id.to_owned());
            live.binding -= usize::from(self.counts).min(live.binding);
        }
        drop(sessions);
        self.counts = false;
    }
}

impl Drop for EndpointSlot<'_> {
    fn drop(&mut self) {
        if self.counts
            && let Some(live) = self.agents.lock().get_mut(self.session_id)
        {
            live.binding = live.binding.saturating_sub(1);
        }
    }
}

/// An endpoint whose agent has no response yet. If this is dropped before a response, the endpoint is listed
/// for removal: the agent will request its address again, and its lost endpoint must not block it.
struct Unanswered<'a> {
    agents: &'a Agents,
    session_id: &'a str,
    endpoint_id: String,
    is_settled: bool,
}

impl<'a> Unanswered<'a> {
    fn of(agents: &'a Agents, session_id: &'a str, endpoint_id: &str) -> Self {
        Self {
            agents,
            session_id,
            endpoint_id: endpoint_id.to_owned(),
            is_settled: false,
        }
    }

    /// Nothing was committed, or the agent gets its response.
    fn settle(mut self) {
        self.is_settled = true;
        self.agents.unanswered().remove(&self.endpoint_id);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            let id = std::mem::take(&mut self.endpoint_id);
            let session_id = self.session_id.to_owned();
            self.agents.unanswered().insert(id, session_id);
            self.agents.woken.notify_one();
        }
    }
}

/// The text that is digested for a token. No other digested text has this prefix.
fn token_text(caller: &Caller, id: &str, url: &str) -> String {
    format!("agent endpoint {} {id} {url}", caller.account)
}

/// Whether the refusal says that the address is in use.
fn is_occupied(refusal: &Refusal) -> bool {
    matches!(refusal.code.map(Code::number), Some(18016 | 18017))
}

/// Whether the refusal says that another account uses the address.
fn is_anothers(refusal: &Refusal) -> bool {
    refusal.code.map(Code::number) == Some(18006)
}

/// Refuses an endpoint that the credential's ACL does not allow: codes 308, 316 and 356.
fn refuse_by(acl: &Acl, want: &EndpointRequest, place: &AgentAddress) -> Result<(), Refusal> {
    if place.admitted_by(acl) {
        return Ok(());
    }
    let is_random = want.options.requested().is_none() && want.id.is_empty();
    let code = match (want.proto.as_str(), is_random) {
        ("tcp", true) => code::BIND_RANDOM_ADDRESS_FORBIDDEN,
        ("tcp", false) => code::BIND_ADDRESS_FORBIDDEN,
        _ => code::BIND_NAME_FORBIDDEN,
    };
    let name = place.name();
    Err(Refusal::new(
        code,
        format!("The credential's ACL does not allow `{name}`."),
    ))
}

fn timeouts(wanted: &EndpointTimeouts) -> RequestedTimeouts<'_> {
    RequestedTimeouts {
        connect: &wanted.connect,
        first_byte: &wanted.first_byte,
        idle: &wanted.idle,
        write: &wanted.write,
        request: &wanted.request,
    }
}

fn forwards_proto(given: &str) -> Result<&str, Refusal> {
    match given {
        "" | "http1" | "http2" => Ok(given),
        _ => Err(Refusal::new(
            code::ENDPOINT_OPTION_INVALID,
            "`ForwardsProto` must be `http1` or `http2`.",
        )),
    }
}

fn proxy_version(given: i64) -> Result<u8, Refusal> {
    match given {
        0 => Ok(0),
        1 => Ok(1),
        2 => Ok(2),
        _ => Err(Refusal::new(
            code::ENDPOINT_OPTION_INVALID,
            "`ProxyProto` must be 0, 1 or 2.",
        )),
    }
}

fn metadata(text: &str) -> Result<Metadata, Refusal> {
    Metadata::try_from(text.to_owned()).map_err(|_| Refusal::of(code::AGENT_METADATA_TOO_LONG))
}

fn description(text: &str) -> Result<Description, Refusal> {
    Description::try_from(text.to_owned())
        .map_err(|_| Refusal::of(code::ENDPOINT_DESCRIPTION_TOO_LONG))
}
