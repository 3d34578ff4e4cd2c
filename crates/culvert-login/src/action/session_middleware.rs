//! The sign-in actions: requests with a session pass, others are redirected to the provider.

mod journey;
mod refresh;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::{BoxFuture, Share, Timestamp};
use culvert_cel::Value;
use culvert_events::sign_in_parameter::STATE;
use culvert_policy::own_cookies::EdgeCookies;
use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderName, HeaderValue, ORIGIN, USER_AGENT,
    WWW_AUTHENTICATE,
};
use http::{Method, request};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(crate) use self::journey::Completion;
pub(crate) use self::refresh::{Refresh, RefreshOutcome};
use crate::attempt::{AttemptState, local_path, parameter};
use crate::event_slots;
use crate::journal::{Person, Sighting, UserKey};
use crate::logins::{CALLBACK_PATH, Logins};
use crate::provider::grant::{App, Failed};
use crate::provider::{BuiltInProvider, Endpoints, Issuer};
use crate::seal::Purpose;
use crate::session::cookie::Cookies;
use crate::session::{Session, Spans, Standing, Tokens};
use culvert_http::authority::Authority;
use culvert_policy::identity::{ForwardIdentity, VerifiedUser};
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::run::{Action, ActionResult, EdgePaths, Flow};
use culvert_policy::policy::secret::REDACTED;
use culvert_policy::policy::template::Template;
use culvert_policy::policy::values::map;
use culvert_policy::problem::Problem;
use culvert_policy::services::PolicyServices;

/// Begins a new sign-in, even if there is a session.
const LOGIN_PATH: &str = "/culvert/login";
/// Ends the session.
const LOGOUT_PATH: &str = "/culvert/logout";
/// Maximum length of a recorded `User-Agent`, in bytes.
const USER_AGENT_BYTES_MAX: usize = 512;

/// Which of the two actions this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum SignInAction {
    #[serde(rename = "o")]
    OAuth,
    #[serde(rename = "i")]
    OpenIdConnect,
}

/// Identity provider.
#[derive(Debug)]
pub(crate) enum Provider {
    BuiltInProvider(&'static BuiltInProvider, Arc<Endpoints>),
    Issuer(Box<Issuer>),
}

/// The application that users sign in to.
pub(crate) enum AppSource {
    /// The configured client id and client secret.
    Own(Template, Template),
    /// The operator's default application.
    Operators(App),
}

/// The configuration of an action.
pub(crate) struct Options {
    pub(crate) kind: SignInAction,
    /// Owner of the endpoint.
    pub(crate) owner: Arc<str>,
    pub(crate) provider: Provider,
    pub(crate) app: AppSource,
    pub(crate) auth_id: String,
    /// Separated by spaces.
    pub(crate) scopes: String,
    /// Additional parameters of the authorization URL.
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) spans: Spans,
    pub(crate) allows_preflight: bool,
    pub(crate) cookie_domain: Option<String>,
    /// How the upstream learns who the user is.
    pub(crate) forwards: Option<ForwardIdentity>,
    /// The share of calls to providers.
    pub(crate) share: Share,
}

/// What `forward_identity` can tell about a user.
pub(crate) const USER_FIELDS: [&str; 7] = [
    "email",
    "id",
    "name",
    "provider",
    "provider_user_id",
    "session_id",
    "username",
];

/// A sign-in action.
pub(crate) struct SessionMiddleware {
    options: Options,
    logins: Arc<Logins>,
    cookies: Cookies,
    /// Fingerprint of scopes and parameters, to detect sessions from before a change.
    print: String,
}

/// The sign-in as an action of a policy.
#[derive(Debug)]
pub(crate) struct Login(pub(crate) Arc<SessionMiddleware>);

/// The context of one request.
struct RequestContext {
    app: App,
    account: Arc<str>,
    /// What sessions, attempts and tickets are bound to besides the host: the owner of the endpoint, the provider, the
    /// application with its secret, and the action.
    bound: Sha256,
    host: String,
    /// The context that sessions are encrypted for.
    context: String,
    now: Timestamp,
}

/// A session in a request.
struct FoundSession {
    session: Session,
    standing: Standing,
    /// Whether this host accepts sessions of this user alone from now on.
    is_first: bool,
}

/// The known facts about the browser of a sign-in.
struct Visit {
    account: Arc<str>,
    endpoint: String,
    public_url: String,
    user_agent: String,
    ip_address: String,
}

/// Why there is no valid session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoSession {
    /// The request has no session.
    Absent,
    TimedOut,
    TooOld,
    Ended,
}

impl fmt::Debug for SessionMiddleware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionMiddleware")
            .field("kind", &self.options.kind)
            .field("provider", &self.provider_name())
            .field("auth_id", &self.options.auth_id)
            .finish_non_exhaustive()
    }
}

impl SignInAction {
    /// The name of the action's results.
    fn result(self) -> &'static str {
        match self {
            Self::OAuth => "oauth",
            Self::OpenIdConnect => "oidc",
        }
    }
}

impl SessionMiddleware {
    pub(crate) fn new(options: Options, logins: Arc<Logins>) -> Self {
        let asked: Vec<String> = options
            .parameters
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let print = UserKey::of(&options.scopes, "", &asked.join("&"), "").to_string();
        Self {
            cookies: Cookies::new(&options.auth_id, options.cookie_domain.as_deref()),
            print,
            logins,
            options,
        }
    }

    fn provider_name(&self) -> &str {
        match &self.options.provider {
            Provider::BuiltInProvider(known, _) => known.id,
            Provider::Issuer(issuer) => issuer.url.host_str().unwrap_or_default(),
        }
    }

    /// The URL that identifies the provider.
    fn provider_url(&self) -> &str {
        match &self.options.provider {
            Provider::BuiltInProvider(known, _) => known.site,
            Provider::Issuer(issuer) => issuer.url.as_str(),
        }
    }

    fn known(&self) -> Option<&'static BuiltInProvider> {
        match &self.options.provider {
            Provider::BuiltInProvider(known, _) => Some(known),
            Provider::Issuer(_) => None,
        }
    }

    async fn endpoints(&self, services: &PolicyServices) -> Result<Arc<Endpoints>, Failed> {
        match &self.options.provider {
            Provider::BuiltInProvider(_, endpoints) => Ok(Arc::clone(endpoints)),
            Provider::Issuer(issuer) => {
                let allows_loopback = self.logins.settings().allows_loopback;
                let found = issuer.endpoints(services, allows_loopback).await;
                found.map_err(|error| Failed::Away(error.to_string()))
            }
        }
    }

    fn user(&self, account: &str, person: &Person) -> UserKey {
        let (owner, provider) = (&self.options.owner, self.provider_url());
        UserKey::of(account, owner, provider, &person.provider_user_id)
    }

    /// The context of a request to this host. A flow if the client id or secret cannot be computed.
    fn request_context(&self, x: &mut Exchange<'_>, host: &str) -> Result<RequestContext, Flow> {
        let app = match &self.options.app {
            AppSource::Operators(app) => app.clone(),
            AppSource::Own(id, secret) => {
                let id = id.strict(x).map(Cow::into_owned);
                let secret = secret.strict(x).map(Cow::into_owned);
                match (id, secret) {
                    (Ok(id), Ok(secret)) if !id.is_empty() => App { id, secret },
                    _ => return Err(x.fault()),
                }
            }
        };
        let secret: [u8; 32] = Sha256::digest(&app.secret).into();
        let mut bound = Sha256::new();
        for part in [
            x.endpoint.account.as_bytes(),
            self.options.owner.as_bytes(),
            self.provider_url().as_bytes(),
            app.id.as_bytes(),
            &secret,
            self.options.kind.result().as_bytes(),
            self.options.auth_id.as_bytes(),
        ] {
            push_part(&mut bound, part);
        }
        let context = match &self.options.cookie_domain {
            Some(domain) => bound_to(&bound, "domain", domain),
            None => bound_to(&bound, "host", host),
        };
        Ok(RequestContext {
            app,
            account: Arc::clone(x.endpoint.account),
            bound,
            host: host.to_owned(),
            context,
            now: x.conn.info.now(),
        })
    }

    /// The session in a request. If hosts of a domain share it, another host of the domain may have set other cookies with
    /// its name. Then it must be of the user who signed in here, or whose session was the first here.
    fn session(
        &self,
        request: &request::Parts,
        request_context: &RequestContext,
    ) -> Result<FoundSession, NoSession> {
        let mut absence = NoSession::Absent;
        let Some(cookies) = own_cookies(request) else {
            return Err(absence);
        };
        let person = self.person(cookies, request_context);
        let mut first: Option<FoundSession> = None;
        for sealed in self.cookies.sessions(cookies) {
            let Some(session) = Session::open(&self.logins.keys, &request_context.context, &sealed)
            else {
                continue;
            };
            let user = self.user(&request_context.account, &session.person);
            if self
                .logins
                .has_ended(user, &session.id, session.started_at())
            {
                absence = NoSession::Ended;
                continue;
            }
            let standing = session.standing(self.options.spans, &self.print, request_context.now);
            match standing {
                Standing::TimedOut => absence = NoSession::TimedOut,
                Standing::TooOld => absence = NoSession::TooOld,
                _ => {
                    let user = &session.person.provider_user_id;
                    let is_first = person.is_none() && self.options.cookie_domain.is_some();
                    if person.as_ref().is_some_and(|person| person != user) {
                        continue;
                    }
                    // Two users: nothing says which of them is here.
                    if first
                        .as_ref()
                        .is_some_and(|first| first.session.person.provider_user_id != *user)
                    {
                        return Err(NoSession::Absent);
                    }
                    let found = FoundSession {
                        session,
                        standing,
                        is_first,
                    };
                    if !is_first {
                        return Ok(found);
                    }
                    first.get_or_insert(found);
                }
            }
        }
        first.ok_or(absence)
    }

    /// The user whose sessions this host accepts; `None` if it accepts those of any.
    fn person(&self, cookies: &EdgeCookies, request_context: &RequestContext) -> Option<String> {
        self.options.cookie_domain.as_ref()?;
        let context = request_context.of_host();
        self.cookies.persons(cookies).find_map(|text| {
            let bytes = self.logins.keys.open(Purpose::Person, &context, text)?;
            String::from_utf8(bytes).ok()
        })
    }

    /// Accepts only sessions of this user on this host from now on, if hosts share sessions.
    fn keep_person(
        &self,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        session: &Session,
    ) {
        if self.options.cookie_domain.is_none() {
            return;
        }
        let user = session.person.provider_user_id.as_bytes();
        let entropy = &*x.conn.services.entropy;
        let context = request_context.of_host();
        let sealed = self
            .logins
            .keys
            .seal(entropy, Purpose::Person, &context, user);
        let keep_for = session
            .last_end(self.options.spans)
            .since(request_context.now);
        let cookie = sealed.and_then(|sealed| self.cookies.keep_person(&sealed, keep_for));
        x.memory.cookies.extend(cookie);
    }

    /// Lets a request with a session pass.
    fn admit(&self, x: &mut Exchange<'_>, session: &Session, was_refreshed: bool) -> Flow {
        x.set_field(event_slots::OAUTH_DECISION, "allow");
        self.tell_user(x, &session.person);
        if x.wants_results() {
            let fields = self.result(Some(session), NoSession::Absent, was_refreshed, None);
            x.result(self.options.kind.result(), fields);
        }
        if let Some(forwards) = &self.options.forwards {
            let person = &session.person;
            let user = VerifiedUser {
                subject: &person.provider_user_id,
                provider: self.provider_url(),
                claim: &|name| {
                    let text = match name {
                        "email" => &person.email,
                        "id" => &session.user_id,
                        "name" => &person.name,
                        "provider" => self.provider_url(),
                        "provider_user_id" => &person.provider_user_id,
                        "session_id" => &session.id,
                        "username" => &person.username,
                        _ => return None,
                    };
                    Some(text.into())
                },
            };
            forwards.forward(x, &user);
        }
        Flow::Continue
    }

    fn tell_app(&self, x: &mut Exchange<'_>, request_context: &RequestContext) {
        let id = match &self.options.app {
            AppSource::Own(id, _) if id.is_secret() => REDACTED,
            AppSource::Own(..) | AppSource::Operators(_) => &request_context.app.id,
        };
        x.set_field(event_slots::OAUTH_APP_CLIENT_ID, id);
    }

    fn tell_user(&self, x: &mut Exchange<'_>, person: &Person) {
        x.set_field(event_slots::OAUTH_USER_ID, &person.provider_user_id);
        if !person.name.is_empty() {
            x.set_field(event_slots::OAUTH_USER_NAME, &person.name);
        }
    }

    /// The results for expressions.
    fn result(
        &self,
        session: Option<&Session>,
        absence: NoSession,
        was_refreshed: bool,
        problem: Option<Problem>,
    ) -> Vec<(&'static str, Value)> {
        let (nobody, no_tokens) = (Person::default(), Tokens::default());
        let person = session.map_or(&nobody, |session| &session.person);
        let tokens = session.map_or(&no_tokens, |session| &session.tokens);
        let text = |text: &str| Value::from(text);
        let is_oauth = self.options.kind == SignInAction::OAuth;
        let session_id = match is_oauth {
            true => "current_provider_session_id",
            false => "current_session_id",
        };
        let identity = map(vec![
            ("id", text(session.map_or("", |session| &session.user_id))),
            ("email", text(&person.email)),
            ("name", text(&person.name)),
            ("username", text(&person.username)),
            ("provider_user_id", text(&person.provider_user_id)),
            (session_id, text(session.map_or("", |session| &session.id))),
        ]);
        let (code, message) = problem.map_or((String::new(), ""), |problem| {
            (problem.code(), problem.sentence())
        });
        let error = map(vec![("code", text(&code)), ("message", text(message))]);
        let expires = tokens.expires.map(Timestamp::from_unix_seconds);
        let expires = expires.map_or(String::new(), |at| at.to_string());
        let mut fields = vec![
            ("error", error),
            ("identity", identity),
            ("access_token", text(&tokens.access)),
            ("refresh_token", text(&tokens.refresh)),
            ("expires_at", text(&expires)),
            (
                "session_timed_out",
                Value::Bool(absence == NoSession::TimedOut),
            ),
            (
                "session_max_duration_reached",
                Value::Bool(absence == NoSession::TooOld),
            ),
            ("userinfo_refreshed", Value::Bool(was_refreshed)),
        ];
        if !is_oauth {
            fields.push(("identity_token", text(&tokens.identity)));
        }
        fields
    }

    /// Responds instead of the upstream, with the error of the problem.
    fn refuse(&self, x: &mut Exchange<'_>, problem: Problem) -> Flow {
        self.stop(x, NoSession::Absent, Some(problem));
        x.refuse(problem)
    }

    fn stop(&self, x: &mut Exchange<'_>, absence: NoSession, problem: Option<Problem>) {
        x.set_field(event_slots::OAUTH_DECISION, "block");
        if x.wants_results() {
            let fields = self.result(None, absence, false, problem);
            x.result(self.options.kind.result(), fields);
        }
    }

    /// Sets the cookies of a session.
    fn keep(
        &self,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        session: &Session,
    ) -> Option<()> {
        let entropy = Arc::clone(&x.conn.services.entropy);
        let sealed = session.seal(&self.logins.keys, &*entropy, &request_context.context)?;
        let keep_for = session
            .ends_at(self.options.spans)
            .since(request_context.now);
        let before = own_cookies(x.request?);
        let cookies = self.cookies.keep_session(&sealed, keep_for, before);
        x.memory.cookies.extend(cookies);
        Some(())
    }

    /// A record of the use of a session.
    fn sighting(&self, visit: &Visit, session: &Session, now: Timestamp) -> Sighting {
        Sighting {
            session: session.id.clone(),
            account: Arc::clone(&visit.account),
            owner: Arc::clone(&self.options.owner),
            endpoint: visit.endpoint.clone(),
            public_url: visit.public_url.clone(),
            provider: self.provider_name().to_owned(),
            provider_url: self.provider_url().to_owned(),
            person: session.person.clone(),
            user_agent: visit.user_agent.clone(),
            ip_address: visit.ip_address.clone(),
            started_at: session.started_at(),
            seen_at: now,
            expires_at: session.ends_at(self.options.spans),
        }
    }

    /// Lets a request with a session pass, and turns others away.
    async fn enter(
        self: &Arc<Self>,
        x: &mut Exchange<'_>,
        request_context: RequestContext,
    ) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        let found = match self.session(request, &request_context) {
            Ok(found) => found,
            Err(absence) => return self.turn_away(x, &request_context, absence).await,
        };
        if found.is_first {
            self.keep_person(x, &request_context, &found.session);
        }
        match found.standing {
            Standing::Good => self.admit(x, &found.session, false),
            Standing::Ask => {
                let services = Arc::clone(x.conn.services);
                match self.ask(&services, &request_context, found.session).await {
                    RefreshOutcome::Goes(session, was_refreshed) => {
                        self.renew(x, &request_context, Session::clone(&session), was_refreshed)
                            .await
                    }
                    RefreshOutcome::Ends => {
                        self.turn_away(x, &request_context, NoSession::Ended).await
                    }
                }
            }
            _ => self.renew(x, &request_context, found.session, false).await,
        }
    }

    /// Handles a request to a path of the edge.
    async fn serve(
        self: &Arc<Self>,
        x: &mut Exchange<'_>,
        request_context: RequestContext,
    ) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        let query = request.uri.query().unwrap_or_default();
        match (request.uri.path(), &request.method) {
            (LOGIN_PATH, &Method::GET | &Method::HEAD | &Method::POST) => {
                let path = parameter(query, "redirect_path");
                match path.as_deref().map(local_path) {
                    None => self.begin(x, &request_context, "/", true).await,
                    Some(Some(path)) => self.begin(x, &request_context, path, true).await,
                    Some(None) => self.refuse(x, Problem::LoginPath),
                }
            }
            (LOGOUT_PATH, &Method::GET | &Method::POST) => {
                self.leave(x, &request_context, query).await
            }
            (CALLBACK_PATH, &Method::GET) => match self.finish(x, &request_context, query).await {
                Ok(flow) => flow,
                Err(problem) => self.refuse(x, problem),
            },
            _ => x.refuse(Problem::EdgePath),
        }
    }

    /// Whether this is the action that a sign-in attempt is for.
    pub(crate) fn is_of(&self, state: &AttemptState) -> bool {
        state.kind == self.options.kind && state.auth_id == self.options.auth_id
    }

    /// Whether a request to a path of the edge is for this action.
    fn is_meant(&self, query: &str) -> bool {
        parameter(query, "auth_id").unwrap_or_default() == self.options.auth_id
    }

    /// Lets a request pass and sends a renewed session to the browser.
    async fn renew(
        &self,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        mut session: Session,
        was_refreshed: bool,
    ) -> Flow {
        session.seen(request_context.now);
        let user = self.user(&request_context.account, &session.person);
        if session.user_id.is_empty()
            && let Some(id) = self.logins.users.get(&user)
        {
            session.user_id = id;
        }
        if self.keep(x, request_context, &session).is_none() {
            return x.fault();
        }
        let sighting = self.sighting(&Visit::of(x), &session, request_context.now);
        self.logins.note_again(x.conn.services, sighting);
        self.admit(x, &session, was_refreshed)
    }

    /// Redirects a GET request without a session to the provider. Requests with other methods get an error.
    async fn turn_away(
        &self,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        absence: NoSession,
    ) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        if absence != NoSession::Absent {
            let forgotten = self.cookies.forget_session(own_cookies(request));
            x.memory.cookies.extend(forgotten);
        }
        if request.method == Method::GET {
            let path = request
                .uri
                .path_and_query()
                .map_or("/", |path| path.as_str());
            let flow = self.begin(x, request_context, path, false).await;
            if let Flow::Reply(_) = &flow
                && absence != NoSession::Absent
            {
                self.stop(x, absence, None);
            }
            return flow;
        }
        self.stop(x, absence, Some(Problem::LoginFirst));
        let mut flow = x.refuse(Problem::LoginFirst);
        if let Flow::Reply(answer) = &mut flow {
            let challenge = format!(
                "Cookie realm=\"culvert\", form-action=\"{LOGIN_PATH}\", cookie-name=\"{}\"",
                self.cookies.session_name()
            );
            if let Ok(challenge) = HeaderValue::try_from(challenge) {
                answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            }
        }
        flow
    }
}

/// Whether the request is a CORS preflight request (Fetch, CORS-preflight).
fn is_preflight(request: &request::Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The edge's cookies of a request.
fn own_cookies(request: &request::Parts) -> Option<&EdgeCookies> {
    request.extensions.get()
}

/// The host of a request, without its port.
fn host_of(request: &request::Parts) -> String {
    let authority = Authority::of(request.version, &request.uri, request.headers.get(HOST));
    authority
        .map_or(Cow::default(), |authority| authority.host)
        .into_owned()
}

/// Adds a part in a way that no two lists of parts are equal.
fn push_part(hash: &mut Sha256, part: &[u8]) {
    hash.update((part.len() as u64).to_be_bytes());
    hash.update(part);
}

fn bound_to(bound: &Sha256, what: &str, name: &str) -> String {
    let mut hash = bound.clone();
    push_part(&mut hash, what.as_bytes());
    push_part(&mut hash, name.as_bytes());
    URL_SAFE_NO_PAD.encode(hash.finalize())
}

impl RequestContext {
    /// The context of what only this host may use: nonces, attempts and tickets.
    fn of_host(&self) -> String {
        bound_to(&self.bound, "host", &self.host)
    }
}

impl Visit {
    fn of(x: &Exchange<'_>) -> Self {
        let agent = x
            .request
            .and_then(|request| request.headers.get(USER_AGENT));
        let agent = agent.map_or("", |agent| agent.to_str().unwrap_or_default());
        Self {
            account: Arc::clone(x.endpoint.account),
            endpoint: x.endpoint.id.to_owned(),
            public_url: x.endpoint.url(),
            // `to_str` accepts only ASCII, so each character is one byte.
            user_agent: agent.chars().take(USER_AGENT_BYTES_MAX).collect(),
            ip_address: x.conn.info.client.ip().to_string(),
        }
    }
}

impl Action for Login {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let middleware = &self.0;
        let Some(request) = x.request else {
            return Flow::Continue.into();
        };
        let request_context = match middleware.request_context(x, &host_of(request)) {
            Ok(request_context) => request_context,
            Err(flow) => return flow.into(),
        };
        middleware.tell_app(x, &request_context);
        if middleware.options.allows_preflight && is_preflight(request) {
            x.set_field(event_slots::OAUTH_DECISION, "allow");
            return Flow::Continue.into();
        }
        if x.conn.services.is_from_copy {
            // The session may have ended since the copy was written.
            return x.refuse(Problem::NeedsDatabase).into();
        }
        // The fast path: most requests have a session and need not wait.
        if let Ok(FoundSession {
            session,
            standing: Standing::Good,
            is_first: false,
        }) = middleware.session(request, &request_context)
        {
            return middleware.admit(x, &session, false).into();
        }
        let enter: BoxFuture<'a, Flow> =
            Box::pin(async move { middleware.enter(x, request_context).await });
        ActionResult::Later(enter)
    }

    fn edge_paths(&self) -> Option<&dyn EdgePaths> {
        Some(self)
    }

    fn identity_fields(&self) -> Vec<&HeaderName> {
        let forwards = self.0.options.forwards.iter();
        forwards.flat_map(ForwardIdentity::names).collect()
    }

    fn key_set(&self) -> Option<&dyn EdgePaths> {
        self.0.options.forwards.as_ref()?.key_set()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        match &self.0.options.app {
            AppSource::Own(id, secret) => id.slots().chain(secret.slots()).collect(),
            AppSource::Operators(_) => Vec::new(),
        }
    }
}

impl EdgePaths for Login {
    fn answers(&self, request: &request::Parts) -> bool {
        let query = request.uri.query().unwrap_or_default();
        match request.uri.path() {
            LOGIN_PATH | LOGOUT_PATH => self.0.is_meant(query),
            // The state names the action.
            CALLBACK_PATH => parameter(query, STATE).is_none_or(|text| {
                let state = AttemptState::read(&self.0.logins.keys, &text);
                state.is_none_or(|state| self.0.is_of(&state))
            }),
            _ => false,
        }
    }

    fn answer<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let middleware = &self.0;
        let Some(request) = x.request else {
            return Flow::Continue.into();
        };
        let request_context = match middleware.request_context(x, &host_of(request)) {
            Ok(request_context) => request_context,
            Err(flow) => return flow.into(),
        };
        middleware.tell_app(x, &request_context);
        if x.conn.services.is_from_copy {
            return x.refuse(Problem::NeedsDatabase).into();
        }
        let serve: BoxFuture<'a, Flow> =
            Box::pin(async move { middleware.serve(x, request_context).await });
        ActionResult::Later(serve)
    }
}
