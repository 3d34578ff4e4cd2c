//! Authorizes agents: checks the credential, the client address and the limits, and resumes earlier sessions
//! (contract: agent protocol 5.1, 5.7).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use culvert_base::net::plain_address;
use culvert_base::sync::lock;
use culvert_base::{Fault, Refusal, Timestamp, code, id};
use culvert_certificates::ssh::{certificate_authority, issue, public_key};
use culvert_identity::api_key::model::ApiKey;
use culvert_identity::{api_key, credential};
use culvert_resources::access::acl::Acl;
use culvert_resources::access::owner::Owner;
use culvert_resources::access::tenant::Account;
use culvert_resources::access::token;
use culvert_resources::access::token::{Kind, Shape};
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::service::{RUNS_MAX, overtaken};
use culvert_resources::settings::{AgentLimits, AgentMinimum};
use culvert_resources::stored::{self, Format};
use culvert_resources::{Caller, Error};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head};
use culvert_tunnel::server::{AgentAuthRequest, EndReason, Former, Proof, SessionGrant};
use culvert_tunnel::wire::DeprecationWarning;
use serde::Deserialize;
use tracing::info;

use crate::session::ending::GRACE;
use crate::session::model::TunnelSession;
use crate::state::{Agents, LiveSession};
use crate::{AgentControl, events, ingress, session};

/// Length limits of stored texts from agents, in bytes.
const USER_AGENT_BYTES_MAX: usize = 1024;
const WORD_BYTES_MAX: usize = 255;
const METADATA_BYTES_MAX: usize = 4096;

/// Whether the limits allow one more session.
enum SessionSlot {
    Free,
    /// Free once this session ends, whose agent is disconnected but may reconnect.
    After(String),
    Taken,
}

/// Finds a slot within all limits. A session whose agent is disconnected keeps its slot until another session needs it.
fn find_slot(
    sessions: &BTreeMap<String, LiveSession>,
    caller: &Caller,
    limits: &AgentLimits,
) -> SessionSlot {
    let of_account = |live: &LiveSession| live.account == caller.account;
    let of_owner = |live: &LiveSession| of_account(live) && live.owner_id == caller.owner_id;
    let of_credential =
        |live: &LiveSession| of_account(live) && live.credential_id == caller.key_id;
    type Scope<'s> = (usize, &'s dyn Fn(&LiveSession) -> bool);
    let scopes: [Scope<'_>; 4] = [
        (limits.sessions_per_credential, &of_credential),
        (limits.sessions_per_owner, &of_owner),
        (limits.sessions_per_account, &of_account),
        (limits.sessions, &|_| true),
    ];
    for (most, is_in) in scopes {
        let counted = sessions
            .iter()
            .filter(|(_, live)| live.has_place && is_in(live));
        if counted.clone().count() < most {
            continue;
        }
        let away = counted.filter_map(|(id, live)| Some((live.leaving.as_ref()?.0, id)));
        return match away.min() {
            Some((_, id)) => SessionSlot::After(id.clone()),
            None => SessionSlot::Taken,
        };
    }
    SessionSlot::Free
}

/// The part of a stored credential that agents need.
#[derive(Deserialize)]
pub(crate) struct Credential {
    pub owner_id: String,
    /// Empty for public keys.
    #[serde(default)]
    digest: String,
    pub acl: Acl,
}

/// The notice for an agent of this version, if it is older than the announced minimum. Published agents reject a notice
/// without a valid date, so there is none without one.
fn deprecation(minimum: &AgentMinimum, version: &str) -> Option<DeprecationWarning> {
    let date = [minimum.date.clone(), format!("{}T00:00:00Z", minimum.date)]
        .into_iter()
        .find(|date| Timestamp::parse(date).is_some())?;
    minimum.is_above(version).then(|| DeprecationWarning {
        next_min: minimum.version.clone(),
        next_date: date,
        message: minimum.message.clone(),
    })
}

/// The refusal of an agent that gives the token of an API key.
fn is_api_key() -> Refusal {
    Refusal::new(
        code::AUTHTOKEN_UNKNOWN,
        "This is an API key token; agents require the token of a tunnel credential.",
    )
}

impl AgentControl {
    pub(crate) async fn admit_session(
        &self,
        hello: AgentAuthRequest,
    ) -> Result<SessionGrant, Error> {
        // With this code, agents try again, and may reach another server.
        let Some(agents) = &self.agents else {
            return Err(Refusal::of(code::AGENT_REQUEST_TIMED_OUT).into());
        };
        if lock(&agents.lease).is_over() {
            let why = "This server lost the database; connect to another one.";
            return Err(Refusal::new(code::AGENT_REQUEST_TIMED_OUT, why).into());
        }
        let caller = self.known_agent(&hello.proof).await?;
        let cx = self.kernel.cx(&caller, &self.kernel.settings.base_url);
        let former = hello
            .former
            .as_ref()
            .and_then(|former| self.resumed(&caller, former));
        let (session_id, started_at) = former.unwrap_or_else(|| {
            let id = cx.new_id();
            let ty = &session::TYPE;
            (ty.stored_id_of(id), id.at())
        });
        let now = self.kernel.clock.now();
        let expires_at = expiry(&hello.proof);
        let session = stored_session(agents, &caller, &hello, expires_at);
        let begun = loop {
            // Under the lock of the session: one that resumes while it is being ended waits for its end.
            let starting =
                self.start_session(&cx, (&session_id, started_at), &session, (agents, &hello));
            match self.kernel.locks.with(&[&session_id], starting).await? {
                Start::Begun(begun) => break begun,
                Start::Refused(refusal) => return Err(refusal.into()),
                Start::After(away) => self.give_up_waiting(agents, &away).await,
            }
        };
        let account = self
            .kernel
            .store
            .get(Account::KIND, &caller.account)
            .await?;
        let account_name = match account {
            Some(document) => stored::read::<Account>(&document)?.name,
            None => String::new(),
        };
        let deprecation = self
            .kernel
            .settings
            .agent_minimum
            .as_ref()
            // SSH clients are no agents, so no minimum version applies to them.
            .filter(|_| hello.transport.name() == "muxado")
            .and_then(|minimum| deprecation(minimum, &hello.about.version));
        begun.done();
        Ok(SessionGrant {
            deprecation,
            cookie: self.cookie(&caller, &session_id, started_at),
            session_id,
            account_name,
            plan_name: String::new(),
            duration: expires_at.map(|at| at.since(now)),
        })
    }

    /// The caller of an agent, by its proof. Codes 103, 105, 107, 636, 1102 and 4018.
    async fn known_agent(&self, proof: &Proof) -> Result<Caller, Error> {
        let (document, credential) = match proof {
            Proof::Token(token) => self.credential_of_token(token.reveal()).await?,
            Proof::PublicKey(fingerprint) => {
                let document = public_key::find(&self.kernel.store, fingerprint, false).await?;
                let document = document.ok_or_else(|| Refusal::of(code::SSH_KEY_NOT_REGISTERED))?;
                let credential: Credential = stored::read(&document)?;
                (document, credential)
            }
            Proof::Certificate {
                authority, issuer, ..
            } => {
                let document = public_key::find(&self.kernel.store, authority, true).await?;
                let document = document.ok_or_else(|| {
                    let why = "The CA of the SSH certificate is not registered.";
                    Refusal::new(code::SSH_KEY_NOT_REGISTERED, why)
                })?;
                let credential: Credential = stored::read(&document)?;
                self.check_issuer(authority, issuer.as_deref(), &credential.owner_id)
                    .await?;
                (document, credential)
            }
        };
        let owner = self.agents_owner(&credential.owner_id).await?;
        Ok(Caller {
            owner_id: credential.owner_id,
            owner_kind: owner.kind,
            role: owner.role,
            key_id: document.head.id,
            subject: owner.subject,
            account: document.head.account,
            restrictions: None,
            token: None,
            context: None,
        })
    }

    /// The owner of a credential, if it may have agents. Codes 103, 107 and 636.
    pub(super) async fn agents_owner(&self, owner_id: &str) -> Result<Owner, Error> {
        let standing = self
            .identity
            .standings
            .of(&self.kernel.store, owner_id)
            .await?;
        // The removal of an owner removes its credentials, so the credential no longer exists.
        let standing = standing.ok_or_else(|| Refusal::of(code::AUTHTOKEN_UNKNOWN))?;
        let owner = standing.owner;
        if standing.is_suspended {
            return Err(Refusal::of(code::AGENT_ACCOUNT_SUSPENDED).into());
        }
        if !owner.active {
            return Err(Refusal::new(
                code::OWNER_INACTIVE,
                "The owner of this credential is inactive.",
            )
            .into());
        }
        Ok(owner)
    }

    /// Refuses a certificate that another owner had issued (1102). The authority may have been registered
    /// after that, so the certificate itself names its issuer. A certificate of this installation without an
    /// issuer was signed before issuers were recorded.
    async fn check_issuer(
        &self,
        authority: &str,
        issuer: Option<&str>,
        owner_id: &str,
    ) -> Result<(), Error> {
        let is_its = match issuer {
            Some(issuer) => issuer == owner_id || issuer == issue::ISSUED_BY_ADMIN,
            None => !certificate_authority::is_known(&self.kernel.store, authority).await?,
        };
        if is_its {
            return Ok(());
        }
        let why = match issuer {
            Some(_) => "The SSH certificate was issued for another owner.",
            None => {
                "The SSH certificate does not name its issuing owner; request a new certificate."
            }
        };
        Err(Refusal::new(code::SSH_KEY_NOT_REGISTERED, why).into())
    }

    async fn credential_of_token(&self, token: &str) -> Result<(Document, Credential), Error> {
        if token.is_empty() {
            return Err(Refusal::of(code::AUTHTOKEN_MISSING).into());
        }
        let body = match token::shape(token) {
            Shape::Token {
                body,
                kind: None | Some(Kind::Agent),
            } => body,
            Shape::Token {
                kind: Some(Kind::Key),
                ..
            } => return Err(is_api_key().into()),
            Shape::Token { .. } => return Err(Refusal::of(code::AUTHTOKEN_UNKNOWN).into()),
            Shape::Mistyped => return Err(Refusal::of(code::AUTHTOKEN_UNKNOWN).into()),
            Shape::KeyId | Shape::Unknown => {
                return Err(Refusal::of(code::AUTHTOKEN_MALFORMED).into());
            }
        };
        let ty = &credential::TYPE;
        let document = self
            .kernel
            .store
            .get(ty.kind, &ty.stored_id_of(body))
            .await?;
        let credential: Option<Credential> = document.as_ref().map(stored::read).transpose()?;
        let digest = credential.as_ref().map(|one| one.digest.as_str());
        if self.kernel.pepper.recognises(digest, token)
            && let (Some(document), Some(credential)) = (document, credential)
        {
            return Ok((document, credential));
        }
        // Both kinds of token have one format, and users confuse them.
        let ty = &api_key::TYPE;
        let key = self
            .kernel
            .store
            .get(ty.kind, &ty.stored_id_of(body))
            .await?;
        let key: Option<ApiKey> = key.as_ref().map(stored::read).transpose()?;
        if key.is_some_and(|key| self.kernel.pepper.recognises(Some(&key.digest), token)) {
            return Err(is_api_key().into());
        }
        Err(Refusal::of(code::AUTHTOKEN_UNKNOWN).into())
    }

    /// Starts or resumes a session of a known agent, and stores it.
    async fn start_session<'a>(
        &self,
        cx: &Cx<'_>,
        (session_id, started_at): (&'a str, Timestamp),
        session: &TunnelSession,
        (agents, hello): (&'a Agents, &AgentAuthRequest),
    ) -> Result<Start<'a>, Error> {
        let start = self.begin(cx, agents, session_id, hello).await?;
        match &start {
            Start::Begun(begun) if begun.is_new => {
                self.write_session(cx, session_id, started_at, session)
                    .await?;
            }
            Start::Refused(refusal) => {
                let head = head(session_id, cx.caller, started_at);
                self.tell_of_refusal(cx, &head, session, refusal).await?;
            }
            Start::Begun(_) | Start::After(_) => {}
        }
        Ok(start)
    }

    /// Starts or resumes a session of a known agent, if allowed: codes 100, 108, 115 and 122.
    async fn begin<'a>(
        &self,
        cx: &Cx<'_>,
        agents: &'a Agents,
        session_id: &'a str,
        hello: &AgentAuthRequest,
    ) -> Result<Start<'a>, Error> {
        if hello.about.metadata.len() > METADATA_BYTES_MAX {
            return Ok(Start::Refused(Refusal::of(code::AGENT_METADATA_TOO_LONG)));
        }
        if let Err(refusal) = self.identity.admit_agent(cx.caller, hello.peer.ip()) {
            return Ok(Start::Refused(refusal));
        }
        if let Some(name) = &hello.server_name
            && let Some(ingress) = ingress::find(cx.store, name).await?
            && ingress.head.account != cx.caller.account
        {
            return Ok(Start::Refused(Refusal::of(
                code::AGENT_INGRESS_OF_ANOTHER_ACCOUNT,
            )));
        }
        let begun = |is_new| {
            Start::Begun(StartingSession {
                agents,
                session_id,
                is_new,
                is_done: false,
            })
        };
        let mut sessions = agents.lock();
        // A session that resumes is not counted again.
        if let Some(known) = sessions.get_mut(session_id) {
            known.leaving = None;
            known.left_at = None;
            known.asked = None;
            known.expires_at = expiry(&hello.proof);
            known.has_place = true;
            return Ok(begun(false));
        }
        let slot = find_slot(&sessions, cx.caller, &agents.settings.limits);
        Ok(match slot {
            SessionSlot::Free => {
                // Added before it is stored, so that the check for deleted credentials finds it.
                let live = LiveSession {
                    account: cx.caller.account.clone(),
                    owner_id: cx.caller.owner_id.clone(),
                    credential_id: cx.caller.key_id.clone(),
                    expires_at: expiry(&hello.proof),
                    endpoints: BTreeSet::new(),
                    binding: 0,
                    leaving: None,
                    left_at: None,
                    cut: None,
                    asked: None,
                    has_place: true,
                };
                sessions.insert(session_id.to_owned(), live);
                begun(true)
            }
            SessionSlot::After(away) => Start::After(away),
            SessionSlot::Taken => Start::Refused(Refusal::of(code::AGENT_SESSION_LIMIT_REACHED)),
        })
    }

    /// Ends a session that waits for its agent, if it still waits: another session needs its slot.
    async fn give_up_waiting(&self, agents: &Agents, id: &str) {
        let reason = match agents.lock().get(id) {
            Some(LiveSession {
                leaving: Some((_, reason)),
                ..
            }) => reason.clone(),
            _ => return,
        };
        self.end_session(id, &reason).await;
        // A session that cannot be removed from the store now is retried later, and frees its slot here.
        if let Some(live) = agents.lock().get_mut(id)
            && live.leaving.is_some()
        {
            live.has_place = false;
        }
    }

    async fn tell_of_refusal(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        session: &TunnelSession,
        refusal: &Refusal,
    ) -> Result<(), Error> {
        let AuditEvent::Emit(event) = events::refused(cx, head, session, &refusal.message)? else {
            return Ok(());
        };
        match self.kernel.store.commit(Changes::event(event)).await {
            Ok(_) => Ok(()),
            Err(CommitError::Fault(fault)) => Err(fault.into()),
            Err(error) => Err(Fault::new("recording a rejected agent", error).into()),
        }
    }

    /// Stores a session under this run.
    async fn write_session(
        &self,
        cx: &Cx<'_>,
        id: &str,
        started_at: Timestamp,
        session: &TunnelSession,
    ) -> Result<(), Error> {
        let ty = &session::TYPE;
        for _ in 0..RUNS_MAX {
            let changes = match self.kernel.store.get(ty.kind, id).await? {
                Some(mut document) => {
                    document.body = stored::write(session)?;
                    let reason = "the session began earlier";
                    Changes::replace(document, AuditEvent::Suppress { reason })
                }
                None => {
                    let head = head(id, cx.caller, started_at);
                    let event = events::started(cx, &head, session)?;
                    let document = Document {
                        head,
                        body: stored::write(session)?,
                        keys: Vec::new(),
                        refs: Vec::new(),
                        topics: Vec::new(),
                    };
                    Changes::insert(document, event)
                }
            };
            match self.kernel.store.commit(changes).await {
                Ok(_) => {
                    info!(
                        session.id = id,
                        credential.id = session.credential_id,
                        ip = session.ip,
                        agent = session.user_agent,
                        "agent session started"
                    );
                    return Ok(());
                }
                Err(CommitError::Fault(fault)) => return Err(fault.into()),
                // Another run resumed or ended it meanwhile.
                Err(_) => {}
            }
        }
        Err(overtaken())
    }

    /// The earlier session of an agent, proved by its cookie: ID and start time.
    fn resumed(&self, caller: &Caller, former: &Former) -> Option<(String, Timestamp)> {
        let (started_at, digest) = former.cookie.split_once(' ')?;
        let started_at = Timestamp::from_unix_seconds(started_at.parse().ok()?);
        let (prefix, _) = id::split(&former.session_id)?;
        let text = cookie_text(caller, &former.session_id, started_at);
        let is_its = prefix == TunnelSession::ID_PREFIX
            && self.kernel.pepper.recognises(Some(digest), &text);
        is_its.then(|| (former.session_id.clone(), started_at))
    }

    fn cookie(&self, caller: &Caller, id: &str, started_at: Timestamp) -> String {
        let text = cookie_text(caller, id, started_at);
        format!(
            "{} {}",
            started_at.unix_seconds(),
            self.kernel.pepper.digest(&text)
        )
    }
}

/// Whether a session starts.
enum Start<'a> {
    Begun(StartingSession<'a>),
    Refused(Refusal),
    /// Only once this session has ended.
    After(String),
}

/// A session that is being started. If it does not start, for any reason, it ends.
struct StartingSession<'a> {
    agents: &'a Agents,
    session_id: &'a str,
    is_new: bool,
    is_done: bool,
}

impl StartingSession<'_> {
    fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for StartingSession<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let reason = EndReason::Lost("internal error".into());
            // A resumed session may try again.
            let grace = if self.is_new { Duration::ZERO } else { GRACE };
            let at = Instant::now() + grace;
            self.agents.leave(self.session_id, at, reason);
        }
    }
}

/// The text that is digested for a cookie. No token contains a space, so no token has the digest of a cookie.
fn cookie_text(caller: &Caller, id: &str, started_at: Timestamp) -> String {
    let (account, credential) = (&caller.account, &caller.key_id);
    let seconds = started_at.unix_seconds();
    format!("agent session {account} {credential} {id} {seconds}")
}

fn head(id: &str, caller: &Caller, started_at: Timestamp) -> Head {
    Head {
        id: id.to_owned(),
        kind: TunnelSession::KIND.to_owned(),
        account: caller.account.clone(),
        revision: 0,
        created_at: started_at,
        updated_at: started_at,
    }
}

/// The latest end of a session, which is the end of the certificate's validity.
fn expiry(proof: &Proof) -> Option<Timestamp> {
    match proof {
        Proof::Certificate { valid_until, .. } => valid_until
            .and_then(|seconds| i64::try_from(seconds).ok())
            .map(Timestamp::from_unix_seconds),
        Proof::Token(_) | Proof::PublicKey(_) => None,
    }
}

/// The stored form of a session.
fn stored_session(
    agents: &Agents,
    caller: &Caller,
    hello: &AgentAuthRequest,
    expires_at: Option<Timestamp>,
) -> TunnelSession {
    let about = &hello.about;
    let settings = &agents.settings;
    let first_name = settings.names.first().cloned().unwrap_or_default();
    TunnelSession {
        format: Format,
        agent_version: cut(&about.version, WORD_BYTES_MAX),
        credential_id: caller.key_id.clone(),
        principal_id: caller.owner_id.clone(),
        principal_subject: caller.subject.clone(),
        ip: plain_address(hello.peer.ip()).to_string(),
        ingress_server_ip: plain_address(hello.local.ip()).to_string(),
        ingress_hostname: hello.server_name.clone().unwrap_or(first_name),
        user_agent: cut(&about.user_agent, USER_AGENT_BYTES_MAX),
        metadata: cut(&about.metadata, METADATA_BYTES_MAX),
        os: cut(&about.os, WORD_BYTES_MAX),
        arch: cut(&about.arch, WORD_BYTES_MAX),
        region: settings.region.clone(),
        transport: hello.transport.name().to_owned(),
        expires_at,
        run: agents.run.clone(),
    }
}

/// The beginning of a text, cut at a character boundary.
pub fn cut(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}
