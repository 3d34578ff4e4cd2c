//! One connection of an agent, from start to end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use culvert_base::{Refusal, Secret, code};
use culvert_mux::{Ending, ErrorCode, Limits, Side};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Bindings;
use super::accept::UnauthenticatedPermit;
use super::agent_limits::limits_of;
use super::auth_backoff::AuthBackoff;
use super::authorizer::{
    About, AgentAuthRequest, AgentAuthorizer, EndReason, EndpointRequest, Former, Proof,
    SessionEnd, SessionGrant, Transport,
};
use super::bindings::SessionConnection;
use super::call::{self, ReadDeadline};
use super::command::Abilities;
use super::link_watch;
use super::meters::Meters;
use crate::driver::{self, Session, Stream};
use crate::wire::{
    self, AuthReply, AuthReplyExtra, AuthRequest, BindReply, BindReplyExtra, BindRequest,
    ConnectAddress, LabelledReply, LabelledRequest, Outcome, PatchRequest, ServerInfoReply,
    StreamType, UnbindRequest,
};

/// Timeout for an agent to authenticate.
const AUTH_TIME: Duration = Duration::from_secs(10);
/// Timeout for the authorizer's decision. Agents wait meanwhile, because they handle a delay better than a
/// refusal.
const DECISION_TIME: Duration = Duration::from_secs(20);
/// Time for a refusal to be delayed and received.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Default limit of endpoints per session.
const ENDPOINTS_MAX: usize = 100;
/// Agents open one heartbeat stream; a second may remain from before.
const HEARTBEATS_MAX: usize = 2;
/// How long the thread that moves an agent's bytes may take to end its connection. The last frame has two seconds.
const DRIVER_ENDS_WITHIN: Duration = Duration::from_secs(5);
/// The permitted sum of an agent's heartbeat interval and tolerance.
const SILENCE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(2)..=Duration::from_secs(600);

/// The addresses of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The agent's address.
    pub(crate) peer: SocketAddr,
    /// The server's address.
    pub(crate) local: SocketAddr,
    /// The server name of the TLS handshake.
    pub(crate) server_name: Option<String>,
    /// Whether to acknowledge received data immediately.
    pub(crate) prompt: Arc<AtomicBool>,
}

/// State that all connections share.
pub struct Server {
    authorizer: Arc<dyn AgentAuthorizer>,
    bindings: Arc<Bindings>,
    region: String,
    connect_addresses: Vec<String>,
    endpoints_max: usize,
    pace: AuthBackoff,
    meters: Meters,
    closing: CancellationToken,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// Creates a server that asks `authorizer` about agents, reports `region` to them, and keeps `bindings`.
    pub fn new(
        authorizer: Arc<dyn AgentAuthorizer>,
        bindings: Arc<Bindings>,
        region: String,
    ) -> Self {
        Self {
            authorizer,
            bindings,
            region,
            connect_addresses: Vec::new(),
            endpoints_max: ENDPOINTS_MAX,
            pace: AuthBackoff::default(),
            meters: Meters::default(),
            closing: CancellationToken::new(),
        }
    }

    /// Sets the addresses, each `host:port`, that are offered to agents which support several connections.
    /// All lead to this server; the first replaces the one that the agent connected to.
    #[must_use]
    pub fn with_connect_addresses(self, connect_addresses: Vec<String>) -> Self {
        Self {
            connect_addresses,
            ..self
        }
    }

    /// Sets the limit of endpoints per session.
    #[must_use]
    pub fn with_endpoints_max(self, endpoints_max: usize) -> Self {
        Self {
            endpoints_max,
            ..self
        }
    }

    /// Cancelled when the listeners must stop accepting. Open connections continue.
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// The counters.
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    pub(super) fn authorizer(&self) -> &Arc<dyn AgentAuthorizer> {
        &self.authorizer
    }

    pub(super) fn pace(&self) -> &AuthBackoff {
        &self.pace
    }

    /// The region that agents see.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The bindings of sessions and endpoints.
    pub fn bindings(&self) -> &Arc<Bindings> {
        &self.bindings
    }

    /// Serves one connection to its end. `permit` counts it as unauthenticated. Its bytes move on `runtime`, to which
    /// the socket belongs.
    pub(crate) async fn serve<S>(
        self: &Arc<Self>,
        socket: S,
        origin: Origin,
        permit: UnauthenticatedPermit,
        stop: CancellationToken,
        runtime: &Handle,
    ) where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (session, driver) = driver::connect(socket, Side::Server, Limits::unauthenticated());
        session.watch_path(origin.local, origin.peer);
        // A task, so that bytes do not wake the conversation. It ends if this future is dropped.
        let mut driving = JoinSet::new();
        driving.spawn_on(async { drop(driver.run().await) }, runtime);
        let connection = Connection {
            server: Arc::clone(self),
            origin,
            session,
            beat_at: Mutex::new(Instant::now()),
            end_reason: Arc::default(),
        };
        Arc::new(connection).converse(permit, stop).await;
        let driven = async { while driving.join_next().await.is_some() {} };
        if tokio::time::timeout(DRIVER_ENDS_WITHIN, driven)
            .await
            .is_err()
        {
            tracing::warn!("a thread of the edge does not end an agent's connection in time");
        }
    }
}

/// One connection.
struct Connection {
    server: Arc<Server>,
    origin: Origin,
    session: Session,
    /// When the last heartbeat arrived.
    beat_at: Mutex<Instant>,
    /// Why the server ended it, if it did.
    end_reason: Arc<OnceLock<EndReason>>,
}

/// An authenticated connection.
struct Admitted {
    grant: Arc<SessionGrant>,
    leg: SessionConnection,
    silence: Duration,
    /// Permits for endpoints, including those being requested.
    places: Arc<Semaphore>,
    /// The endpoints that it serves, by id.
    serves: Mutex<BTreeMap<String, OwnedSemaphorePermit>>,
    /// Whether the agent is culvert's own, which replaces a connection before it closes the old one.
    is_ours: bool,
}

/// The result of one of a connection's tasks.
enum Done {
    /// A stream sent its type.
    Kind(StreamType, Stream),
    /// The agent sent its authentication request.
    Asked(Box<AuthRequest>, Stream),
    /// The agent was accepted.
    Admitted(SessionGrant, Box<AuthRequest>, Stream),
    /// The agent was refused, and has no reply yet.
    Refused(Refusal, Stream),
    /// The agent was refused, and has the reply.
    RefusalSent,
    /// A heartbeat stream ended.
    HeartbeatEnded,
    /// No further action is needed.
    Nothing,
}

impl Connection {
    async fn converse(self: Arc<Self>, permit: UnauthenticatedPermit, stop: CancellationToken) {
        let mut permit = Some(permit);
        let mut tasks: JoinSet<Done> = JoinSet::new();
        let mut admitted: Option<Arc<Admitted>> = None;
        let (mut has_begun, mut heartbeats) = (false, 0);
        // Whether the authorizer is deciding, and until when an agent may still have to receive its reply.
        let (mut is_deciding, mut answered_by) = (false, None);
        let began = Instant::now();
        let mut expires = None;
        let reason = loop {
            // The next deadline of the connection.
            let deadline = match &admitted {
                None => answered_by.unwrap_or(began + AUTH_TIME),
                Some(admitted) => expires
                    .into_iter()
                    .chain([self.last_beat() + admitted.silence])
                    .min()
                    .unwrap_or(began),
            };
            let done = tokio::select! {
                () = stop.cancelled() => {
                    break EndReason::shutdown();
                }
                () = async {
                    match &permit {
                        Some(permit) => permit.displaced().await,
                        None => std::future::pending().await,
                    }
                } => break EndReason::Silent,
                accepted = self.session.accept() => match accepted {
                    Some(mut stream) => {
                        // The type may arrive late, and delays no other stream.
                        tasks.spawn(async move {
                            match call::kind(&mut stream).await {
                                Some(kind) => Done::Kind(kind, stream),
                                None => Done::Nothing,
                            }
                        });
                        continue;
                    }
                    None => {
                        let ending = self.session.ended().await;
                        let why = || how_it_ended(&ending, self.session.failure());
                        break self.end_reason.get().cloned().unwrap_or_else(why);
                    }
                },
                Some(done) = tasks.join_next() => done.unwrap_or(Done::Nothing),
                () = tokio::time::sleep_until(deadline) => {
                    let now = Instant::now();
                    match &admitted {
                        _ if now < deadline => continue,
                        None => break EndReason::Silent,
                        Some(_) if expires.is_some_and(|at| at <= now) => break EndReason::Expired,
                        Some(admitted) if self.last_beat() + admitted.silence <= now => {
                            break EndReason::Silent;
                        }
                        Some(_) => continue,
                    }
                }
            };
            match done {
                Done::Kind(StreamType::HEARTBEAT, stream) if heartbeats < HEARTBEATS_MAX => {
                    heartbeats += 1;
                    tasks.spawn(Arc::clone(&self).echo(stream));
                }
                Done::HeartbeatEnded => heartbeats -= 1,
                Done::Kind(StreamType::AUTH, stream) if !has_begun => {
                    has_begun = true;
                    tasks.spawn(read_auth(stream));
                }
                Done::Asked(auth, stream) => {
                    if let Some(permit) = &permit {
                        permit.has_spoken();
                    }
                    is_deciding = true;
                    answered_by = Some(Instant::now() + DECISION_TIME + ANSWER_TIME);
                    tasks.spawn(Arc::clone(&self).authenticate(auth, stream));
                }
                Done::Refused(refusal, stream) => {
                    if let Some(permit) = &permit {
                        permit.is_refused();
                    }
                    is_deciding = false;
                    answered_by = Some(Instant::now() + ANSWER_TIME);
                    tasks.spawn(Arc::clone(&self).refuse(refusal, stream));
                }
                Done::Kind(kind, stream) => {
                    let this = Arc::clone(&self);
                    let admitted = admitted.clone();
                    tasks.spawn(async move {
                        this.answer(kind, stream, admitted).await;
                        Done::Nothing
                    });
                }
                Done::Admitted(grant, auth, stream) => {
                    is_deciding = false;
                    drop(permit.take());
                    expires = grant.duration.map(|duration| Instant::now() + duration);
                    admitted = Some(self.admit(grant, &auth, stream, &mut tasks));
                }
                Done::RefusalSent => break EndReason::Stopped("refused".into()),
                Done::Nothing => {}
            }
        };
        tracing::debug!(%reason, "agent connection ended");
        self.finish(tasks, admitted, is_deciding, reason).await;
    }

    /// Begins the session of an accepted agent, and sends the reply.
    fn admit(
        &self,
        grant: SessionGrant,
        auth: &AuthRequest,
        stream: Stream,
        tasks: &mut JoinSet<Done>,
    ) -> Arc<Admitted> {
        self.session.set_limits(limits_of(auth));
        if auth.extra.user_agent.starts_with(wire::OWN_AGENT) {
            // culvert's agent does not use Nagle's algorithm, so acknowledgements may travel with replies.
            self.origin.prompt.store(false, Ordering::Relaxed);
        }
        let admitted = self.enter(grant, auth);
        self.beat();
        let session = self.session.clone();
        tasks.spawn(async move {
            link_watch::watch(session).await;
            Done::Nothing
        });
        let reply = wire::reply(&self.welcome(&admitted.grant, auth.extra.leg));
        tasks.spawn(async move {
            call::answer(stream, &reply).await;
            Done::Nothing
        });
        admitted
    }

    /// Ends the connection, and the session that it was granted or is being granted.
    async fn finish(
        &self,
        mut tasks: JoinSet<Done>,
        mut admitted: Option<Arc<Admitted>>,
        mut is_deciding: bool,
        reason: EndReason,
    ) {
        self.session.hang_up();
        // The authorizer may be granting a session now, and a granted session must be ended.
        while is_deciding {
            match tasks.join_next().await {
                Some(Ok(Done::Admitted(grant, auth, _))) => {
                    admitted = Some(self.enter(grant, &auth));
                    is_deciding = false;
                }
                Some(Ok(Done::Refused(..))) | None => is_deciding = false,
                Some(_) => {}
            }
        }
        drop(tasks);
        if let Some(admitted) = admitted
            && self.server.bindings.leave(&admitted.leg)
        {
            let grant = Arc::clone(&admitted.grant);
            let end = SessionEnd {
                grant,
                reason,
                may_return: true,
            };
            self.server.authorizer.ended(end).await;
        }
    }

    fn enter(&self, grant: SessionGrant, auth: &AuthRequest) -> Arc<Admitted> {
        let nanos = auth
            .extra
            .heartbeat_interval
            .saturating_add(auth.extra.heartbeat_tolerance);
        let silence = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
        let leg = self.server.bindings.enter(
            &grant.session_id,
            auth.extra.leg,
            self.session.clone(),
            Arc::clone(&self.end_reason),
            Abilities::of(&auth.extra),
        );
        Arc::new(Admitted {
            grant: Arc::new(grant),
            leg,
            silence: silence.clamp(*SILENCE.start(), *SILENCE.end()),
            places: Arc::new(Semaphore::new(self.server.endpoints_max)),
            serves: Mutex::default(),
            is_ours: auth.extra.user_agent.starts_with(wire::OWN_AGENT),
        })
    }

    fn welcome(&self, grant: &SessionGrant, leg: u32) -> AuthReply {
        // Only the first connection of a session opens more.
        let offered = match leg {
            0 => &self.server.connect_addresses[..],
            _ => &[],
        };
        let connect_addresses = offered.iter().map(|address| ConnectAddress {
            region: self.server.region.clone(),
            server_addr: address.clone(),
        });
        AuthReply {
            version: wire::VERSION.into(),
            client_id: grant.session_id.clone(),
            error: String::new(),
            extra: AuthReplyExtra {
                version: env!("CARGO_PKG_VERSION").into(),
                region: self.server.region.clone(),
                cookie: grant.cookie.clone(),
                account_name: grant.account_name.clone(),
                plan_name: grant.plan_name.clone(),
                deprecation: grant.deprecation.clone(),
                session_duration: grant
                    .duration
                    .map_or(0, |duration| i64::try_from(duration.as_secs()).unwrap_or(0)),
                connect_addresses: connect_addresses.collect(),
                agent_session_id: grant.session_id.clone(),
                ..AuthReplyExtra::default()
            },
        }
    }

    fn last_beat(&self) -> Instant {
        *self
            .beat_at
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn beat(&self) {
        *self
            .beat_at
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner()) = Instant::now();
    }

    /// Echoes each heartbeat.
    async fn echo(self: Arc<Self>, mut stream: Stream) -> Done {
        let mut beat = [0; 4];
        while stream.read_exact(&mut beat).await.is_ok() {
            self.beat();
            if stream.write_all(&beat).await.is_err() {
                break;
            }
        }
        Done::HeartbeatEnded
    }

    fn hello(&self, auth: &AuthRequest) -> AgentAuthRequest {
        let extra = &auth.extra;
        AgentAuthRequest {
            proof: Proof::Token(Secret::new(extra.token.clone())),
            transport: Transport::Muxado,
            former: (!auth.client_id.is_empty()).then(|| Former {
                session_id: auth.client_id.clone(),
                cookie: extra.cookie.clone(),
            }),
            about: About {
                version: extra.version.clone(),
                user_agent: extra.user_agent.clone(),
                os: extra.os.clone(),
                arch: extra.arch.clone(),
                metadata: extra.metadata.clone(),
            },
            peer: self.origin.peer,
            local: self.origin.local,
            server_name: self.origin.server_name.clone(),
        }
    }

    /// Asks the authorizer.
    async fn authenticate(self: Arc<Self>, auth: Box<AuthRequest>, stream: Stream) -> Done {
        match decided(self.server.authorizer.authorize(self.hello(&auth))).await {
            Ok(grant) => {
                self.server.meters.admitted.up();
                Done::Admitted(grant, auth, stream)
            }
            Err(refusal) => Done::Refused(refusal, stream),
        }
    }

    /// Sends the refusal to an agent, with a delay if its source was refused too often.
    async fn refuse(self: Arc<Self>, refusal: Refusal, stream: Stream) -> Done {
        self.server.meters.refused.up();
        let source = self.origin.peer.ip();
        let wait = self.server.pace.wait(source, std::time::Instant::now());
        tokio::time::sleep(wait).await;
        call::answer(stream, &wire::reply(&Outcome::refused(&refusal))).await;
        Done::RefusalSent
    }

    /// Replies to any other call.
    async fn answer(&self, kind: StreamType, mut stream: Stream, admitted: Option<Arc<Admitted>>) {
        let reply = match (kind, &admitted) {
            (StreamType::SERVER_INFO, _) => Ok(wire::reply(&ServerInfoReply {
                region: self.server.region.clone(),
            })),
            (_, None) => Err(Refusal::new(
                code::AGENT_REQUEST_MALFORMED,
                "The first call of a session must be Auth.",
            )),
            (StreamType::BIND, Some(admitted)) => self.bind(&mut stream, admitted).await,
            (StreamType::UNBIND, Some(admitted)) => self.unbind(&mut stream, admitted).await,
            (StreamType::LABELLED, Some(admitted)) => self.bind_labels(&mut stream, admitted).await,
            (StreamType::PATCH_ENDPOINT, Some(admitted)) => self.patch(&mut stream, admitted).await,
            _ => Err(Refusal::of(code::AGENT_STREAM_TYPE_UNKNOWN)),
        };
        let reply = reply.unwrap_or_else(|refusal| {
            self.server.meters.calls_refused.up();
            wire::reply(&Outcome::refused(&refusal))
        });
        call::answer(stream, &reply).await;
    }

    async fn bind(
        &self,
        stream: &mut Stream,
        admitted: &Admitted,
    ) -> Result<bytes::Bytes, Refusal> {
        let object = call::request(stream, ReadDeadline::AGENT).await?;
        let invalid = |_| Refusal::of(code::BIND_MALFORMED);
        let want = BindRequest::read(object).map_err(invalid)?;
        let options = want.options().map_err(invalid)?;
        if !matches!(&want.proto[..], "http" | "https" | "tcp" | "tls") {
            return Err(Refusal::of(code::BIND_PROTOCOL_UNSUPPORTED));
        }
        let place = admitted.permit()?;
        let extra = &want.extra;
        let wanted = EndpointRequest {
            id: want.id.clone(),
            token: extra.token.clone(),
            proto: want.proto.clone(),
            forwards_to: want.forwards_to.clone(),
            forwards_proto: want.forwards_proto.clone(),
            options,
            ip_policy: extra.ip_policy_ref.clone(),
            tcp_port: None,
            metadata: extra.metadata.clone(),
            bindings: extra.bindings.clone(),
            pooling_enabled: extra.pooling_enabled,
            name: extra.name.clone(),
            description: extra.description.clone(),
        };
        if !wanted.id.is_empty() {
            // Requests may arrive before the authorizer's decision.
            self.server.bindings.expect(&wanted.id);
        }
        let binding = decided(self.server.authorizer.bind(&admitted.grant, &wanted)).await?;
        self.server.meters.bound.up();
        self.serves(admitted, &binding.id, place);
        Ok(wire::reply(&BindReply {
            opts: want.options_with(&binding.name, &binding.url),
            id: binding.id.clone(),
            url: binding.url,
            proto: want.proto,
            error: String::new(),
            extra: BindReplyExtra {
                token: binding.token,
                tunnel_id: binding.id,
            },
        }))
    }

    async fn bind_labels(
        &self,
        stream: &mut Stream,
        admitted: &Admitted,
    ) -> Result<bytes::Bytes, Refusal> {
        let object = call::request(stream, ReadDeadline::AGENT).await?;
        let want: LabelledRequest =
            wire::parse(object).map_err(|_| Refusal::of(code::BIND_MALFORMED))?;
        let place = admitted.permit()?;
        let id = decided(self.server.authorizer.bind_labels(&admitted.grant, &want)).await?;
        self.serves(admitted, &id, place);
        Ok(wire::reply(&LabelledReply {
            id,
            error: String::new(),
        }))
    }

    fn serves(&self, admitted: &Admitted, id: &str, place: OwnedSemaphorePermit) {
        admitted.lock().insert(id.to_owned(), place);
        self.server.bindings.bind(id, &admitted.leg, &self.session);
    }

    /// Agents send Unbind two or three times, so an unknown endpoint is not an error.
    async fn unbind(
        &self,
        stream: &mut Stream,
        admitted: &Admitted,
    ) -> Result<bytes::Bytes, Refusal> {
        let object = call::request(stream, ReadDeadline::AGENT).await?;
        let request: UnbindRequest =
            wire::parse(object).map_err(|_| Refusal::of(code::AGENT_REQUEST_MALFORMED))?;
        let served = admitted.lock().remove(&request.id);
        if served.is_some() {
            let goes_on = self.server.bindings.unbind(&request.id, &admitted.leg);
            if goes_on && admitted.is_ours {
                return Ok(wire::reply(&Outcome::default()));
            }
            let unbinding = self.server.authorizer.unbind(&admitted.grant, &request.id);
            decided(async {
                unbinding.await;
                Ok(())
            })
            .await?;
        }
        Ok(wire::reply(&Outcome::default()))
    }

    async fn patch(
        &self,
        stream: &mut Stream,
        admitted: &Admitted,
    ) -> Result<bytes::Bytes, Refusal> {
        let object = call::request(stream, ReadDeadline::AGENT).await?;
        let change: PatchRequest =
            wire::parse(object).map_err(|_| Refusal::of(code::AGENT_REQUEST_MALFORMED))?;
        if !admitted.lock().contains_key(&change.tunnel_id) {
            return Err(Refusal::of(code::AGENT_ENDPOINT_UNKNOWN));
        }
        decided(self.server.authorizer.patch(&admitted.grant, &change)).await?;
        Ok(wire::reply(&Outcome::default()))
    }
}

impl Admitted {
    /// A permit for one more endpoint. Fails with code 324.
    fn permit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map_err(|_| Refusal::of(code::AGENT_ENDPOINT_LIMIT_REACHED))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, OwnedSemaphorePermit>> {
        self.serves
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Reads the authentication request.
async fn read_auth(mut stream: Stream) -> Done {
    let read = async {
        let object = call::request(&mut stream, ReadDeadline::UNAUTHENTICATED).await?;
        let auth: AuthRequest =
            wire::parse(object).map_err(|_| Refusal::of(code::AGENT_AUTH_MALFORMED))?;
        if auth.extra.leg >= wire::SESSION_CONNECTIONS_MAX {
            return Err(Refusal::new(
                code::AGENT_AUTH_MALFORMED,
                format!(
                    "A session may have at most {} connections.",
                    wire::SESSION_CONNECTIONS_MAX
                ),
            ));
        }
        if !auth.versions.iter().any(|version| version == wire::VERSION) {
            return Err(Refusal::of(code::AGENT_VERSION_UNSUPPORTED));
        }
        Ok(auth)
    };
    match read.await {
        Ok(auth) => Done::Asked(Box::new(auth), stream),
        Err(refusal) => Done::Refused(refusal, stream),
    }
}

/// Why a session ended that the server did not end. An agent closes its session with GOAWAY or with the end
/// of TLS; if the socket just ends, the connection broke.
fn how_it_ended(ending: &Ending, failure: Option<String>) -> EndReason {
    match (ending, failure) {
        (Ending::GoneAway { code, .. }, _) if *code == ErrorCode::NONE => EndReason::Closed,
        (Ending::Lost, None) => EndReason::Closed,
        (Ending::Lost, Some(how)) => EndReason::Lost(how),
        (other, _) => EndReason::Lost(other.to_string()),
    }
}

/// The authorizer's decision, or a refusal if it takes too long.
pub(super) async fn decided<T>(
    deciding: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    tokio::time::timeout(DECISION_TIME, deciding)
        .await
        .unwrap_or_else(|_| Err(Refusal::of(code::AGENT_REQUEST_TIMED_OUT)))
}
