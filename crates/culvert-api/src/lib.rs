//! The HTTP interface of control: the management API, its OpenAPI document, the live tail of events, the console, and
//! health (contract: management API 1, operations 4).
//!
//! One hyper service handles all requests. The routes are rows of a table, and most of them share one sequence of
//! steps, so a router of handlers would only add boxes and copies. A request passes through `Api::answer`, which
//! checks in the order of the contract: preflight, path and method, caller, version, rate, body. Then control runs
//! the operation.
//!
//! Guarantees: every request gets a response, or its connection is closed within [`Limits`]; every response names its
//! operation; only `problem` chooses status codes of errors.
//!
//! Control makes all decisions: permissions, valid values, existing objects.
//!
//! # A change
//!
//! `crates/culvert-api` matches the path in control's operation table, authenticates the caller, reads the body
//! strictly → `crates/culvert-resources/src/service.rs` runs the resource's own `create` or `update` → the draft
//! and its audit event become one `Changes` → `crates/culvert-store` commits documents, keys, references and outbox
//! row together, with the list of subscriptions that want the event, decided inside the transaction → the response
//! is written after the commit. If a handler relied on something that it does not change, such as that no wildcard
//! covers a name, it adds a condition to the `Changes` (`crates/culvert-store/src/commit/condition.rs`). If the
//! condition is false at the commit, the handler decides again. The one-time token is in no stored form and in no
//! event; it is added only to the response.
//!
//! # A console session
//!
//! `crates/culvert-api/src/console/mod.rs` serves the files, rejects calls from other pages, and reads the cookie →
//! `crates/culvert-identity/src/console/session.rs` finds the session and its key in the store and returns
//! the key's caller → the call continues like one with a bearer token. A person may have a session without a key:
//! `crates/culvert-api/src/console/console_sign_in.rs` sends the browser to the OpenID provider and back,
//! `crates/culvert-login/src/console.rs` verifies the identity, and
//! `crates/culvert-identity/src/console/sign_in.rs` decides the user and role.

mod access;
mod audit_log;
mod connection;
mod console;
mod event_stream;
mod leak_reports;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::{Clock, Entropy, Fault, IdMaker, Refusal, code};
use culvert_console::File;
use culvert_control::{
    Call, CallContext, Caller, Control, EVENTS_PATH, LEAKED_TOKENS_PATH, Operation, Origin, Reply,
    TagKey, Terms, Via, follows, operation_specs, operations,
};
use futures_util::FutureExt;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ORIGIN, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use ipnet::IpNet;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::auth;
use crate::connection::serve;
use crate::console::Located;
use crate::event_stream::follow;
use crate::leak_reports::{LeakReports, NotTaken};
use culvert_api_http::access::cors;
use culvert_api_http::access::limits::{
    Failures, PerSource, Rolling, Source, Turnstile, WindowStanding,
};
use culvert_api_http::connection::peer::{self, Ends};
use culvert_api_http::health::Probe;
use culvert_api_http::request::{host, terms};
use culvert_api_http::response::answer::{self, JSON, NO_STORE};
use culvert_api_http::response::coding;
use culvert_api_http::response::problem::Problem;
use culvert_api_http::route::{FOLLOW_PATH, Found, OtherMethods, Preset, Route, Routes};
use culvert_api_http::{body, health, query};

pub use culvert_api_http::access::limits::{Rate, Window};
pub use culvert_api_http::body::{BODY_BYTES_MAX, JSON_DEPTH_MAX, JSON_MEMBERS_MAX};
pub use culvert_api_http::health::{Health, Serves};
pub use culvert_api_http::openapi::openapi;
pub use culvert_api_http::openapi::version_3_0::openapi_3_0;
pub use culvert_api_http::reference;
pub use culvert_api_http::response::answer::Body;
pub use culvert_api_http::route::{
    ALIVE_PATH, OPENAPI_3_0_PATH, OPENAPI_PATH, READY_PATH, TAIL_PATH,
};

const OPERATION_ID: HeaderName = HeaderName::from_static("ngrok-operation-id");
const VERSION: HeaderName = HeaderName::from_static("ngrok-version");
const TARGET_BYTES_MAX: usize = 16 << 10;
/// Maximum number of unread request bytes that are discarded so that the peer can read the response: for
/// unauthenticated and for authenticated callers.
const DISCARD_BYTES: (usize, usize) = (64 << 10, 8 << 20);
const DISCARD_WITHIN: Duration = Duration::from_secs(2);

/// URLs and limits of the API.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Public base of every `uri`, such as `https://api.example.com`; `None` takes it from each request.
    pub base_url: Option<String>,
    /// Networks of proxies whose `x-forwarded-*` headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Limits.
    pub limits: Limits,
    /// Whether only the two health checks are served, and all else gets 503: the database is away at the start.
    pub is_health_alone: bool,
    /// Whether the audit log below `/audit/log` is served without a key.
    pub is_audit_log_public: bool,
}

/// Limits of the API.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of connections of all listeners together; more wait in the backlog.
    pub connections: usize,
    /// Maximum number of connections per source (/32, /64), except for trusted proxies. The same number again waits, and then gets
    /// 503. Further ones get it immediately, or are closed if they use TLS.
    pub connections_per_source: usize,
    /// Time limit from a request's first byte to the end of its head.
    pub head: Duration,
    /// Maximum idle time of a connection without a request: HTTP/1.1, HTTP/2.
    pub idle: (Duration, Duration),
    /// How long a peer may not read data that is sent to it.
    pub stalled: Duration,
    /// Time limit from the end of a request's head to the start of its response.
    pub request: Duration,
    /// Maximum number of requests in flight.
    pub concurrent: usize,
    /// Maximum number of requests in flight per owner of API keys.
    pub concurrent_per_owner: usize,
    /// How long a request waits for capacity before the response is 503.
    pub waiting: Duration,
    /// Failed authentications per source before the response is 429.
    pub failed_authentications: Rate,
    /// Requests per account; `None` for no limit.
    pub account_window: Option<Window>,
    /// How long requests in flight may continue after the stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_source: 256,
            head: Duration::from_secs(5),
            idle: (Duration::from_secs(75), Duration::from_secs(120)),
            stalled: Duration::from_secs(30),
            request: Duration::from_secs(30),
            concurrent: 256,
            concurrent_per_owner: 32,
            waiting: Duration::from_secs(1),
            failed_authentications: Rate {
                per_second: 10,
                burst: 50,
            },
            account_window: None,
            drain: Duration::from_secs(30),
        }
    }
}

/// Metrics of the API: running totals, except for gauges.
#[derive(Debug, Default)]
pub struct Meters {
    /// Responses.
    pub requests: AtomicU64,
    /// Responses with a client error (4xx).
    pub refused: AtomicU64,
    /// Responses with a server error (5xx).
    pub failed: AtomicU64,
    /// Authentication errors (401, or 429 after too many).
    pub unauthenticated: AtomicU64,
    /// Responses with 503 because of a lack of capacity.
    pub shed: AtomicU64,
    /// Caught panics.
    pub panics: AtomicU64,
    /// Gauge: open connections.
    pub connections: AtomicU64,
    /// Connections that got 503, or were closed, because of the limit per source.
    pub connections_refused: AtomicU64,
    /// Connections closed because a deadline passed.
    pub connections_late: AtomicU64,
    /// Gauge: open live tails.
    pub tails: AtomicU64,
}

impl Meters {
    fn count(meter: &AtomicU64) {
        meter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The API of one process.
#[derive(Debug)]
pub struct Api {
    control: Arc<Control>,
    probe: Probe,
    settings: Settings,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    ids: IdMaker,
    routes: Routes<Control>,
    started_at: Instant,
    turnstile: Turnstile,
    failures: Option<Failures>,
    /// Sign-ins to the console, by owner.
    sign_ins: Failures,
    /// Failed callbacks from the OpenID provider, by source.
    failed_callbacks: Failures,
    /// Reads of the audit log without a key, by source.
    public_reads: Failures,
    leak_reports: LeakReports,
    tag_key: TagKey,
    rolling: Option<Rolling>,
    sources: PerSource,
    /// Permits for connections, of all listeners together.
    permits: Arc<Semaphore>,
    /// Permits to read a request that only gets 503.
    refusals: Arc<Semaphore>,
    followers: follow::Followers,
    stopping: CancellationToken,
    meters: Arc<Meters>,
    /// The OpenAPI document. Created at the first request for it, which most servers never get.
    document: OnceLock<&'static File>,
    /// The same in OpenAPI 3.0.
    document_3_0: OnceLock<&'static File>,
}

impl Api {
    /// The API for `control`. Fails only if the operation table has duplicate routes.
    pub fn new(
        control: Arc<Control>,
        health: Arc<dyn Health>,
        mut settings: Settings,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Arc<Self>, Fault> {
        if let Some(base) = &mut settings.base_url {
            base.truncate(base.trim_end_matches('/').len());
        }
        let limits = &settings.limits;
        let tag_key = control.tag_key();
        Ok(Arc::new(Self {
            control,
            probe: Probe::new(health),
            clock,
            entropy,
            ids: IdMaker::new(),
            routes: Routes::new(operations())?,
            started_at: Instant::now(),
            turnstile: Turnstile::new(
                limits.concurrent,
                limits.concurrent_per_owner,
                limits.waiting,
            ),
            failures: Failures::new(limits.failed_authentications),
            sign_ins: Failures::every(console::SIGN_INS_EVERY, console::SIGN_INS_AT_ONCE),
            failed_callbacks: Failures::every(
                console::FAILED_CALLBACKS_EVERY,
                console::FAILED_CALLBACKS_AT_ONCE,
            ),
            public_reads: Failures::every(audit_log::PUBLIC_EVERY, audit_log::PUBLIC_AT_ONCE),
            leak_reports: LeakReports::new(limits.waiting, limits.head),
            tag_key,
            rolling: limits.account_window.map(Rolling::new),
            sources: PerSource::default(),
            permits: Arc::new(Semaphore::new(limits.connections)),
            refusals: Arc::new(Semaphore::new(serve::REFUSALS_AT_ONCE)),
            followers: follow::Followers::default(),
            stopping: CancellationToken::new(),
            meters: Arc::default(),
            document: OnceLock::new(),
            document_3_0: OnceLock::new(),
            settings,
        }))
    }

    /// The OpenAPI 3.1 document.
    fn document(&self) -> &'static File {
        let made = || self.document_as("openapi.json", |document| document);
        self.document.get_or_init(made)
    }

    /// The same document in OpenAPI 3.0.
    fn document_3_0(&self) -> &'static File {
        let made = || self.document_as("openapi-3.0.json", openapi_3_0);
        self.document_3_0.get_or_init(made)
    }

    fn document_as(&self, name: &'static str, form: impl Fn(Value) -> Value) -> &'static File {
        let targets = self.control.events.target_types;
        let document = openapi(operation_specs(), |generator| targets.schema(generator));
        let text = form(document).to_string().leak();
        let file = File::new(name, "application/json", text.as_bytes());
        Box::leak(Box::new(file))
    }

    /// The metrics.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    /// A new ID of a request.
    fn operation_id(&self) -> String {
        format!("op_{}", self.ids.next(&*self.clock, &*self.entropy))
    }

    /// Responds to one request; never fails.
    async fn answer(&self, request: Request<Incoming>, ends: Ends) -> Response<Body> {
        let operation_id = self.operation_id();
        let deadline = Instant::now() + self.settings.limits.request;
        let (mut parts, mut body) = request.into_parts();
        let is_head = parts.method == Method::HEAD && self.serves_head(&parts);
        if is_head {
            parts.method = Method::GET;
        }
        let context = Arc::new(self.context(&parts, ends, &operation_id));
        let standing = OnceLock::new();
        let arrival = Arrival {
            parts: &parts,
            body: &mut body,
            ends,
            deadline,
            context,
            standing: &standing,
        };
        let mut response = match self.handle(arrival).await {
            Ok(response) => response,
            Err((problem, caller)) => {
                let problem = self.record_problem(problem).await;
                let bytes_max = match caller {
                    CallerStanding::Unauthenticated => DISCARD_BYTES.0,
                    CallerStanding::Caller => DISCARD_BYTES.1,
                };
                let until = deadline.min(Instant::now() + DISCARD_WITHIN);
                body::discard(&parts.headers, body, bytes_max, until).await;
                problem.into_response(&operation_id)
            }
        };
        Meters::count(&self.meters.requests);
        let headers = response.headers_mut();
        headers.insert(
            OPERATION_ID,
            HeaderValue::try_from(operation_id).expect("an identifier is plain ASCII"),
        );
        if let Some(standing) = standing.get() {
            standing.describe(headers);
        }
        if let Some(origin) = parts.headers.get(ORIGIN) {
            let base = self.base(&parts, ends);
            let is_own = cors::is_of(origin, &base);
            // Pages of other origins must not read responses of the console's paths.
            if is_own || !console::has(parts.uri.path()) {
                cors::admit(headers, origin.clone(), is_own);
            }
        }
        if is_head {
            response = answer::without_body(response);
        }
        response
    }

    /// How a request came, as audit events show it.
    fn context(&self, parts: &Parts, ends: Ends, operation_id: &str) -> CallContext {
        let peer = ends.peer;
        let client = peer::client(&parts.headers, peer.ip(), &self.settings.trusted_proxies);
        let agent = parts.headers.get(USER_AGENT).map(HeaderValue::as_bytes);
        let agent = String::from_utf8_lossy(agent.unwrap_or_default());
        let end = agent.floor_char_boundary(USER_AGENT_BYTES_MAX);
        // Only a session of the console shows that the console called: see `by_console`.
        let is_command_line = agent.starts_with(COMMAND_LINE) && !console::has(parts.uri.path());
        CallContext {
            client_ip: Some(client.to_canonical()),
            client_port: (client == peer.ip()).then_some(peer.port()),
            user_agent: agent[..end].to_owned(),
            operation_id: operation_id.to_owned(),
            node: self.control.node().to_owned(),
            via: is_command_line.then_some(Via::Cli),
        }
    }

    /// `scheme://host`, the base of every `uri`, as the caller sees it.
    fn base(&self, parts: &Parts, ends: Ends) -> String {
        let Settings {
            base_url,
            trusted_proxies,
            ..
        } = &self.settings;
        match base_url {
            Some(base) => base.clone(),
            None => peer::base(&parts.uri, &parts.headers, ends, trusted_proxies),
        }
    }

    /// Counts a problem. If a part is not usable, an internal error becomes a temporary one.
    async fn record_problem(&self, problem: Problem) -> Problem {
        if problem.status().is_server_error() {
            Meters::count(&self.meters.failed);
        } else {
            Meters::count(&self.meters.refused);
        }
        if problem.is_passing() || problem.is_fault() && !self.probe.is_ready().await {
            return problem.passing();
        }
        problem
    }

    /// Runs the checks in order, then the operation.
    async fn handle(
        &self,
        mut arrival: Arrival<'_>,
    ) -> Result<Response<Body>, (Problem, CallerStanding)> {
        let unauthenticated = |problem: Problem| (problem, CallerStanding::Unauthenticated);
        let known = |problem: Problem| (problem, CallerStanding::Caller);
        let parts = arrival.parts;
        let headers = &parts.headers;
        let path = parts.uri.path();

        let target_bytes = path.len() + parts.uri.query().map_or(0, str::len);
        if target_bytes > TARGET_BYTES_MAX {
            return Err(unauthenticated(Problem::target_too_long()));
        }
        host::check(parts).map_err(|refusal| unauthenticated(refusal.into()))?;
        if self.settings.is_health_alone && path != ALIVE_PATH && path != READY_PATH {
            let why = "The server waits for its database; try again. `/readyz` shows the cause.";
            return Err(unauthenticated(Problem::unavailable(why)));
        }
        let (path, is_by_cookie) = match console::locate(parts) {
            Located::Elsewhere => (path, false),
            Located::Api(path) => (path, true),
            Located::Session => return self.session(arrival).await.map_err(unauthenticated),
            Located::SignIn(step) => {
                return self
                    .console_sign_in(step, arrival)
                    .await
                    .map_err(unauthenticated);
            }
            Located::Ca => return self.ca(parts).map_err(unauthenticated),
            Located::Root => return Ok(console::redirect()),
            Located::File(name) => return console::file(parts, name).map_err(unauthenticated),
        };
        if is_by_cookie {
            let base = self.base(parts, arrival.ends);
            let checked = console::check_page(parts, &base);
            checked.map_err(|refusal| {
                self.note_page(&refusal, &arrival);
                unauthenticated(refusal.into())
            })?;
        } else if cors::is_preflight(&parts.method, headers) {
            return Ok(cors::preflight(headers, self.routes.methods(path)));
        }
        let (route, values) = match self.routes.find(&parts.method, routed(parts, path)) {
            Found::Route(route, values) => (route, values),
            Found::OtherMethods(other) if parts.method == Method::OPTIONS => {
                return Ok(cors::options(other.allow));
            }
            Found::OtherMethods(other) => {
                let OtherMethods { allow, kind, id } = other;
                let problem = Problem::wrong_method_of(allow, kind, id.as_deref());
                return Err(unauthenticated(problem));
            }
            Found::Nothing => return Err(unauthenticated(Problem::unknown_path(path))),
        };
        let asked = match route {
            Route::Operation(operation) => Ok(Asked::Operation(operation, None)),
            Route::Preset(operation, preset) => Ok(Asked::Operation(operation, Some(preset))),
            Route::Tail => Ok(Asked::Tail),
            Route::AuditLog => Ok(Asked::AuditLog),
            Route::Retired(code) => Err(Refusal::of(code)),
            Route::OpenApi => {
                return Ok(console::answer(self.document(), headers));
            }
            Route::OpenApi30 => {
                return Ok(console::answer(self.document_3_0(), headers));
            }
            Route::Alive => return Ok(health::alive()),
            Route::Ready => {
                let ready = self.probe.ready(parts.uri.query()).await;
                return ready.map_err(|refusal| unauthenticated(refusal.into()));
            }
        };

        let reported = self.signed_report(&asked, &mut arrival).await;
        if let Some(reported) = reported.map_err(unauthenticated)? {
            return Ok(reported);
        }
        let client = self.client(&arrival);
        let Some(entered) = self.turnstile.enter(Source::of(client)).await else {
            return Err(unauthenticated(self.full()));
        };
        let served = self.without_caller(&asked, &values, &arrival).await;
        if let Some(served) = served.map_err(unauthenticated)? {
            return Ok(served);
        }
        let operation_name = asked.as_ref().map_or_else(|_| String::new(), Asked::name);
        let named = match &asked {
            Ok(Asked::Operation(..)) => values.first().map(String::as_str),
            _ => None,
        };
        let called_as = (operation_name.as_str(), named);
        let caller = self.authenticated(&arrival, is_by_cookie, called_as).await;
        let caller = caller.map_err(unauthenticated)?;
        check_version(headers).map_err(|refusal| known(refusal.into()))?;
        let refused = |problem: Problem| {
            self.control
                .note_refused(&caller, (&operation_name, named), problem.refusal());
            known(problem)
        };
        let admitted = self.control.identity.admit(&caller, client);
        admitted.map_err(|refusal| refused(refusal.into()))?;
        let called = asked.as_ref().ok().map(Asked::called);
        self.control.identity.note_call(&caller, client, called);
        self.check_rate(&caller, arrival.standing)
            .map_err(refused)?;
        if is_report(&asked) {
            let now = self.started_at.elapsed();
            self.leak_reports.count(&caller, now).map_err(refused)?;
        }
        let Some(place) = self.turnstile.enter_owner(entered, &caller.owner_id).await else {
            return Err(known(self.full()));
        };
        let asked = asked.map_err(|refusal| known(refusal.into()))?;
        let answered = self.run(asked, (caller, is_by_cookie), values, arrival);
        let mut response = answered.await.map_err(known)?;
        // Others need no place that a slow reader keeps.
        response.body_mut().keep(place.into_share());
        Ok(response)
    }

    /// The caller by key, or by the cookie of the console.
    async fn authenticated(
        &self,
        arrival: &Arrival<'_>,
        is_by_cookie: bool,
        called: (&str, Option<&str>),
    ) -> Result<Caller, Problem> {
        let caller = match is_by_cookie {
            false => self.caller(arrival).await,
            true => self.session_of(arrival).await.map(|session| session.caller),
        };
        let mut caller = caller.inspect_err(|problem| {
            let origin = self.origin(arrival);
            self.control
                .note_refusal(&origin, called, problem.refusal());
        })?;
        caller.context = Some(match is_by_cookie {
            false => Arc::clone(&arrival.context),
            true => console::by_console(&arrival.context),
        });
        Ok(caller)
    }

    /// The response to a report of leaked tokens that has the signature of a partner; `None` for other requests.
    async fn signed_report(
        &self,
        asked: &Result<Asked, Refusal>,
        arrival: &mut Arrival<'_>,
    ) -> Result<Option<Response<Body>>, Problem> {
        let signature = leak_reports::signature(&arrival.parts.headers);
        let Some(signature) = signature.filter(|_| is_report(asked)) else {
            return Ok(None);
        };
        let from = (self.client(arrival), self.started_at.elapsed());
        let taking = self
            .leak_reports
            .take(&self.control, signature, from, arrival.body);
        let taken = match tokio::time::timeout_at(arrival.deadline, taking).await {
            Ok(Err(NotTaken::Full)) => Err(self.full()),
            Ok(Err(NotTaken::Refused(problem))) => Err(problem),
            Ok(Ok(response)) => Ok(Some(response)),
            Err(_late) => Err(Problem::unavailable("The server is busy; try again.")),
        };
        taken.inspect_err(|problem| {
            let called = ("leaked_tokens_report", None);
            let origin = self.origin(arrival);
            self.control
                .note_refusal(&origin, called, problem.refusal());
        })
    }

    /// The response to a request that needs no caller: a read of a public audit log. `None` for others.
    async fn without_caller(
        &self,
        asked: &Result<Asked, Refusal>,
        values: &[String],
        arrival: &Arrival<'_>,
    ) -> Result<Option<Response<Body>>, Problem> {
        let (client, now) = (self.client(arrival), self.started_at.elapsed());
        let headers = &arrival.parts.headers;
        match asked {
            // A caller with a key has the rate of its owner.
            Ok(Asked::AuditLog)
                if self.settings.is_audit_log_public && !headers.contains_key(AUTHORIZATION) =>
            {
                let counted = self.public_reads.count(Source::of(client), now);
                counted.map_err(audit_log::too_many)?;
                audit_log::answer(&self.control, &values.concat())
                    .await
                    .map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Does what an admitted caller asks for.
    async fn run(
        &self,
        asked: Asked,
        (caller, is_by_cookie): (Caller, bool),
        values: Vec<String>,
        arrival: Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        match asked {
            Asked::Operation(operation, preset) => {
                if operation.path == EVENTS_PATH
                    && let Ok(query) = query_of(arrival.parts, preset)
                    && follows(&query)
                {
                    return self.follow(caller, is_by_cookie, query, arrival).await;
                }
                self.operate((operation, preset), caller, values, arrival)
                    .await
            }
            Asked::Tail => self.tail(caller, is_by_cookie, arrival).await,
            Asked::AuditLog => audit_log::answer(&self.control, &values.concat()).await,
        }
    }

    /// The IP address of the client.
    fn client(&self, arrival: &Arrival<'_>) -> IpAddr {
        let peer = arrival.ends.peer.ip();
        peer::client(&arrival.parts.headers, peer, &self.settings.trusted_proxies)
    }

    /// Where a request came from.
    fn origin(&self, arrival: &Arrival<'_>) -> Origin {
        Origin {
            address: self.client(arrival),
            context: Some(Arc::clone(&arrival.context)),
        }
    }

    async fn caller(&self, arrival: &Arrival<'_>) -> Result<Caller, Problem> {
        let asking = auth::caller(
            &self.control,
            &arrival.parts.headers,
            self.failures.as_ref(),
            Source::of(self.client(arrival)),
            self.started_at.elapsed(),
        );
        tokio::time::timeout_at(arrival.deadline, asking)
            .await
            .unwrap_or_else(|_late| Err(Problem::unavailable("The server is busy; try again.")))
            .inspect_err(|problem| {
                if !problem.status().is_server_error() {
                    Meters::count(&self.meters.unauthenticated);
                }
            })
    }

    /// Counts a request of an account, and keeps the standing for the response.
    fn check_rate(
        &self,
        caller: &Caller,
        standing: &OnceLock<WindowStanding>,
    ) -> Result<(), Problem> {
        let Some(rolling) = &self.rolling else {
            return Ok(());
        };
        let counted = rolling.count(&caller.account, Instant::now());
        match standing.get_or_init(|| counted) {
            counted if counted.is_admitted => Ok(()),
            counted => {
                let why = "The account has reached its limit of requests per minute.";
                Err(Problem::too_many(counted.next_in, why))
            }
        }
    }

    fn full(&self) -> Problem {
        Meters::count(&self.meters.shed);
        Problem::unavailable("The server is busy; try again.")
    }

    /// Whether `HEAD` is answered like `GET`: not for streams, which have no end.
    fn serves_head(&self, parts: &Parts) -> bool {
        let path = parts.uri.path();
        let routed = routed(parts, console::api_path(path).unwrap_or(path));
        console::serves_head(path) || self.routes.has_head(routed)
    }

    /// Reads the body and runs the operation, both before the request's deadline.
    async fn operate(
        &self,
        (operation, preset): (&'static Operation, Option<&'static Preset>),
        caller: Caller,
        path: Vec<String>,
        mut arrival: Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        let address = self.client(&arrival);
        let Parts {
            method, headers, ..
        } = arrival.parts;
        let terms = Arc::new(terms::of(method, headers, &self.tag_key)?);
        let body = arrival.read().await?;
        let Arrival {
            parts,
            ends,
            deadline,
            ..
        } = arrival;
        let query = query_of(parts, preset)?;
        let base = self.base(parts, ends);
        let cause = parts.headers.get(CAUSE).map(HeaderValue::as_bytes);
        let cause = cause.map(|cause| String::from_utf8_lossy(cause).into_owned());
        let call = Call {
            caller,
            path,
            query,
            body,
            base,
            address,
            cause,
            terms: Arc::clone(&terms),
        };
        let running = AssertUnwindSafe(operation.call(&self.control, call)).catch_unwind();
        let reply = match tokio::time::timeout_at(deadline, running).await {
            Ok(Ok(outcome)) => outcome?,
            Ok(Err(_panic)) => {
                Meters::count(&self.meters.panics);
                return Err(Problem::broken("running an operation, which panicked"));
            }
            Err(_late) => {
                return Err(Problem::unavailable(
                    "The server did not finish in time; check the result before you repeat a write.",
                ));
            }
        };
        let is_write = operation.method != culvert_control::Method::Get;
        let is_applied = !is_write || self.control.is_applied(APPLIED_WITHIN).await;
        let mut response = match is_list(operation) {
            true => listed(reply, &parts.headers).await,
            false => answered(reply, &parts.method, &terms),
        };
        if !is_applied {
            response.headers_mut().insert(APPLIED, PENDING);
        }
        Ok(response)
    }
}

/// Whether an operation returns a list, which may be compressed.
fn is_list(operation: &Operation) -> bool {
    operation.method == culvert_control::Method::Get && operation.name.starts_with("list")
}

/// The response with a list.
async fn listed(reply: Reply, asked: &HeaderMap) -> Response<Body> {
    let Reply::Ok(body) = reply else {
        return plain(reply);
    };
    let mut headers = HeaderMap::new();
    let body = coding::packed(body.into(), asked, &mut headers).await;
    let mut response = json(StatusCode::OK, body, false);
    response.headers_mut().extend(headers);
    response
}

/// The response to a call that shows at most one object.
fn answered(reply: Reply, method: &Method, terms: &Terms) -> Response<Body> {
    let tag = match &reply {
        Reply::Created { body, .. } | Reply::Ok(body) | Reply::Secret { body, .. } => {
            terms::tag_of(terms, body)
        }
        Reply::NoContent => None,
    };
    terms::described(plain(reply), method, terms, tag.as_deref())
}

/// The response with the body of a reply.
fn plain(reply: Reply) -> Response<Body> {
    match reply {
        Reply::Created { body, secret } => json(StatusCode::CREATED, body.into(), secret),
        Reply::Ok(body) => json(StatusCode::OK, body.into(), false),
        Reply::Secret { body, .. } => json(StatusCode::OK, body.into(), true),
        Reply::NoContent => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
    }
}

/// Maximum time that the response to a write waits for the edge of its process.
const APPLIED_WITHIN: Duration = Duration::from_secs(1);
/// The ID of the operation that shows traffic as it happens.
const TAIL: &str = "events_tail";
/// Header with the ID of the event that an update follows.
const CAUSE: HeaderName = HeaderName::from_static("culvert-cause");
/// Limit of a user agent in audit events.
const USER_AGENT_BYTES_MAX: usize = 512;
/// The beginning of the user agent of our command line.
const COMMAND_LINE: &str = "culvert-cli/";
/// Header of a response to a write that the edge of this process has not applied yet.
const APPLIED: HeaderName = HeaderName::from_static("culvert-applied");
const PENDING: HeaderValue = HeaderValue::from_static("pending");

/// The ID of reading the audit log as a transparency log.
const AUDIT_LOG: &str = "audit_log";

/// What a caller with a key asks for.
enum Asked {
    Operation(&'static Operation, Option<&'static Preset>),
    Tail,
    AuditLog,
}

impl Asked {
    /// As statistics name it: collection and name.
    const fn called(&self) -> (&'static str, &'static str) {
        match self {
            Self::Operation(operation, _) => (operation.collection, operation.name),
            Self::Tail => ("events", "tail"),
            Self::AuditLog => ("audit", "log"),
        }
    }

    /// As events name it.
    fn name(&self) -> String {
        match self {
            Self::Operation(operation, _) => operation.id(),
            Self::Tail => TAIL.to_owned(),
            Self::AuditLog => AUDIT_LOG.to_owned(),
        }
    }
}

/// A request that is being processed.
struct Arrival<'a> {
    parts: &'a Parts,
    body: &'a mut Incoming,
    ends: Ends,
    /// The deadline for the response.
    deadline: Instant,
    /// How it came, as audit events show it.
    context: Arc<CallContext>,
    /// Filled with the standing of the caller's account, for the headers of the response.
    standing: &'a OnceLock<WindowStanding>,
}

impl Arrival<'_> {
    async fn read(&mut self) -> Result<Option<Value>, Refusal> {
        self.read_up_to(BODY_BYTES_MAX).await
    }

    /// The same, of a body with at most `bytes_max` bytes.
    async fn read_up_to(&mut self, bytes_max: usize) -> Result<Option<Value>, Refusal> {
        let Parts {
            method, headers, ..
        } = self.parts;
        let reading = body::read(method, headers, self.body, bytes_max);
        tokio::time::timeout_at(self.deadline, reading)
            .await
            .unwrap_or_else(|_late| Err(body::too_slow()))
    }
}

fn is_report(asked: &Result<Asked, Refusal>) -> bool {
    matches!(asked, Ok(Asked::Operation(operation, _)) if operation.path == LEAKED_TOKENS_PATH)
}

/// Whether the caller of a failed request was authenticated.
enum CallerStanding {
    Unauthenticated,
    Caller,
}

/// The query of a request, with the parameter that its path sets.
fn query_of(
    parts: &Parts,
    preset: Option<&'static Preset>,
) -> Result<Vec<(String, String)>, Refusal> {
    let mut query = match parts.uri.query() {
        Some(query) => query::parse(query)?,
        None => Vec::new(),
    };
    let set = preset.map(|preset| (preset.parameter.to_owned(), "true".to_owned()));
    query.extend(set);
    Ok(query)
}

/// The path whose methods this path of an operation has. For `HEAD`, the list of events with `follow=true` is the stream of
/// another path, which has none.
fn routed<'p>(parts: &Parts, path: &'p str) -> &'p str {
    let query = parts.uri.query().filter(|_| parts.method == Method::HEAD);
    // As in the table of routes, a second slash before a path counts for nothing.
    let is_list = path == EVENTS_PATH || path.strip_prefix('/') == Some(EVENTS_PATH);
    match query.map(query::parse) {
        Some(Ok(query)) if is_list && follows(&query) => FOLLOW_PATH,
        _ => path,
    }
}

/// The API has one version, 2, which is also the default.
fn check_version(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get(VERSION).map(HeaderValue::as_bytes) {
        None | Some(b"" | b"2") => Ok(()),
        Some(_) => Err(Refusal::of(code::API_VERSION_UNSUPPORTED)),
    }
}

fn json(status: StatusCode, body: Bytes, secret: bool) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    if secret {
        headers.insert(CACHE_CONTROL, NO_STORE);
    }
    response
}

#[cfg(test)]
mod tests;
