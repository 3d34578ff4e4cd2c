//! The sign-in actions: requests with a session pass, others are redirected to the provider.

mod journey;
mod refresh;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use culvert_base::{BoxFuture, Share, Timestamp};
use culvert_cel::Value;
use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, COOKIE, HOST, HeaderValue, ORIGIN, USER_AGENT, WWW_AUTHENTICATE,
};
use http::{Method, request};

pub(super) use self::refresh::{Refresh, RefreshOutcome};
use super::attempt::{local_path, parameter};
use super::cookie::{Cookies, without_ours};
use super::event_slots;
use super::grant::{App, Failed};
use super::journal::{Person, Sighting, UserKey};
use super::provider::{Endpoints, Issuer, Known};
use super::session::{Session, Spans, Standing, Tokens};
use super::{CALLBACK_PATH, Logins};
use culvert_http::authority::Authority;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::run::{Action, ActionResult, Flow};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignInAction {
    OAuth,
    OpenIdConnect,
}

/// Identity provider.
#[derive(Debug)]
pub(crate) enum Provider {
    Known(&'static Known, Arc<Endpoints>),
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
    /// The share of calls to providers.
    pub(crate) share: Share,
}

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
    /// The context that cookies are encrypted for.
    context: String,
    now: Timestamp,
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
        let print = UserKey::of(&options.scopes, &asked.join("&"), "").to_string();
        Self {
            cookies: Cookies::new(&options.auth_id, options.cookie_domain.as_deref()),
            print,
            logins,
            options,
        }
    }

    fn provider_name(&self) -> &str {
        match &self.options.provider {
            Provider::Known(known, _) => known.id,
            Provider::Issuer(issuer) => issuer.url.host_str().unwrap_or_default(),
        }
    }

    /// The URL that identifies the provider.
    fn provider_url(&self) -> &str {
        match &self.options.provider {
            Provider::Known(known, _) => known.site,
            Provider::Issuer(issuer) => issuer.url.as_str(),
        }
    }

    fn known(&self) -> Option<&'static Known> {
        match &self.options.provider {
            Provider::Known(known, _) => Some(known),
            Provider::Issuer(_) => None,
        }
    }

    async fn endpoints(&self, services: &PolicyServices) -> Result<Arc<Endpoints>, Failed> {
        match &self.options.provider {
            Provider::Known(_, endpoints) => Ok(Arc::clone(endpoints)),
            Provider::Issuer(issuer) => {
                let allows_loopback = self.logins.settings().allows_loopback;
                let found = issuer.endpoints(services, allows_loopback).await;
                found.map_err(|error| Failed::Away(error.to_string()))
            }
        }
    }

    fn user(&self, account: &str, person: &Person) -> UserKey {
        UserKey::of(account, self.provider_url(), &person.provider_user_id)
    }

    /// The context of a request. A flow if the client id or secret cannot be computed.
    fn request_context(
        &self,
        x: &mut Exchange<'_>,
        request: &request::Parts,
    ) -> Result<RequestContext, Flow> {
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
        let authority = Authority::of(&request.uri, request.headers.get(HOST));
        let host = authority.map_or(Cow::default(), |authority| authority.host);
        let place = self.options.cookie_domain.as_deref().unwrap_or(&host);
        let context = format!(
            "{}\n{}\n{}\n{}\n{place}",
            x.endpoint.account,
            self.provider_url(),
            app.id,
            self.options.auth_id
        );
        Ok(RequestContext {
            app,
            context,
            now: x.conn.info.now(),
        })
    }

    /// The session in a request.
    fn session(
        &self,
        account: &str,
        request: &request::Parts,
        request_context: &RequestContext,
    ) -> Result<(Session, Standing), NoSession> {
        let mut absence = NoSession::Absent;
        for sealed in self.cookies.sessions(&request.headers) {
            let Some(session) = Session::open(&self.logins.keys, &request_context.context, &sealed)
            else {
                continue;
            };
            let user = self.user(account, &session.person);
            if self
                .logins
                .has_ended(user, &session.id, session.started_at())
            {
                absence = NoSession::Ended;
                continue;
            }
            match session.standing(self.options.spans, &self.print, request_context.now) {
                Standing::TimedOut => absence = NoSession::TimedOut,
                Standing::TooOld => absence = NoSession::TooOld,
                standing => return Ok((session, standing)),
            }
        }
        Err(absence)
    }

    /// Lets a request with a session pass.
    fn admit(&self, x: &mut Exchange<'_>, session: &Session, was_refreshed: bool) -> Flow {
        x.tell(event_slots::OAUTH_DECISION, "allow");
        self.tell_user(x, &session.person);
        if x.wants_results() {
            let fields = self.result(Some(session), NoSession::Absent, was_refreshed, None);
            x.result(self.options.kind.result(), fields);
        }
        // Upstreams must not receive the cookies, which would allow them to act as the user.
        let others = x.request.and_then(|request| without_ours(&request.headers));
        if let Some(others) = others {
            x.edits.remove(COOKIE);
            if !others.is_empty() {
                x.edits.add(COOKIE, others);
            }
        }
        Flow::Continue
    }

    fn tell_user(&self, x: &mut Exchange<'_>, person: &Person) {
        x.tell(event_slots::OAUTH_USER_ID, &person.provider_user_id);
        if !person.name.is_empty() {
            x.tell(event_slots::OAUTH_USER_NAME, &person.name);
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
        x.tell(event_slots::OAUTH_DECISION, "block");
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
        let headers = &x.request?.headers;
        let cookies = self.cookies.keep_session(&sealed, keep_for, headers);
        x.memory.cookies.extend(cookies);
        Some(())
    }

    fn sighting(
        &self,
        x: &Exchange<'_>,
        request_context: &RequestContext,
        session: &Session,
    ) -> Sighting {
        let agent = x
            .request
            .and_then(|request| request.headers.get(USER_AGENT));
        let agent = agent.map_or("", |agent| agent.to_str().unwrap_or_default());
        Sighting {
            session: session.id.clone(),
            account: Arc::clone(x.endpoint.account),
            endpoint: x.endpoint.id.to_owned(),
            public_url: x.endpoint.url(),
            provider: self.provider_name().to_owned(),
            provider_url: self.provider_url().to_owned(),
            person: session.person.clone(),
            // `to_str` accepts only ASCII, so each character is one byte.
            user_agent: agent.chars().take(USER_AGENT_BYTES_MAX).collect(),
            ip_address: x.conn.info.client.ip().to_string(),
            started_at: session.started_at(),
            seen_at: request_context.now,
            expires_at: session.ends_at(self.options.spans),
        }
    }

    async fn enter(
        self: &Arc<Self>,
        x: &mut Exchange<'_>,
        request_context: RequestContext,
    ) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        let query = request.uri.query().unwrap_or_default();
        match request.uri.path() {
            LOGIN_PATH if self.is_meant(query) => {
                let path = parameter(query, "redirect_path");
                return match path.as_deref().map(local_path) {
                    None => self.begin(x, &request_context, "/", true).await,
                    Some(Some(path)) => self.begin(x, &request_context, path, true).await,
                    Some(None) => self.refuse(x, Problem::LoginPath),
                };
            }
            LOGOUT_PATH if self.is_meant(query) => {
                return self.leave(x, &request_context, query).await;
            }
            CALLBACK_PATH if request.method == Method::GET => {
                return match self.finish(x, &request_context, query).await {
                    Ok(flow) => flow,
                    Err(problem) => self.refuse(x, problem),
                };
            }
            _ => {}
        }
        match self.session(x.endpoint.account, request, &request_context) {
            Ok((session, Standing::Good)) => self.admit(x, &session, false),
            Ok((session, Standing::Ask)) => {
                let services = Arc::clone(x.conn.services);
                match self.ask(&services, &request_context, session).await {
                    RefreshOutcome::Goes(session, was_refreshed) => {
                        self.renew(x, &request_context, Session::clone(&session), was_refreshed)
                            .await
                    }
                    RefreshOutcome::Ends => {
                        self.turn_away(x, &request_context, NoSession::Ended).await
                    }
                }
            }
            Ok((session, _)) => self.renew(x, &request_context, session, false).await,
            Err(absence) => self.turn_away(x, &request_context, absence).await,
        }
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
        let user = self.user(x.endpoint.account, &session.person);
        if session.user_id.is_empty()
            && let Some(id) = self.logins.users.get(&user).await
        {
            session.user_id = id;
        }
        if self.keep(x, request_context, &session).is_none() {
            return x.fault();
        }
        let sighting = self.sighting(x, request_context, &session);
        self.logins.note_again(x.conn.services, sighting).await;
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
            let forgotten = self.cookies.forget_session(&request.headers);
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

impl Action for Login {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let middleware = &self.0;
        let Some(request) = x.request else {
            return Flow::Continue.into();
        };
        let request_context = match middleware.request_context(x, request) {
            Ok(request_context) => request_context,
            Err(flow) => return flow.into(),
        };
        x.tell(event_slots::OAUTH_APP_CLIENT_ID, &request_context.app.id);
        if middleware.options.allows_preflight && is_preflight(request) {
            x.tell(event_slots::OAUTH_DECISION, "allow");
            return Flow::Continue.into();
        }
        // The fast path: most requests have a session and need not wait.
        let path = request.uri.path();
        if ![LOGIN_PATH, LOGOUT_PATH, CALLBACK_PATH].contains(&path)
            && let Ok((session, Standing::Good)) =
                middleware.session(x.endpoint.account, request, &request_context)
        {
            return middleware.admit(x, &session, false).into();
        }
        let enter: BoxFuture<'a, Flow> =
            Box::pin(async move { middleware.enter(x, request_context).await });
        ActionResult::Later(enter)
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        match &self.0.options.app {
            AppSource::Own(id, secret) => id.slots().chain(secret.slots()).collect(),
            AppSource::Operators(_) => Vec::new(),
        }
    }
}
