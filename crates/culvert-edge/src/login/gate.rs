//! A log-in action at work: who has a session passes, everybody else is sent to the provider.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Timestamp};
use culvert_cel::Value;
use futures_util::FutureExt;
use futures_util::future::Shared as SharedFuture;
use http::header::{
    ACCEPT, ACCESS_CONTROL_REQUEST_METHOD, COOKIE, HOST, HeaderValue, ORIGIN, USER_AGENT,
    WWW_AUTHENTICATE,
};
use http::{Method, request};
use url::form_urlencoded;

use super::attempt::{ATTEMPT_WITHIN, Nonce, State, local_path};
use super::cookie::{Cookies, without_ours};
use super::grant::{App, Asking, Failed};
use super::journal::{Ending, Noted, Person, Sighting, UserKey};
use super::provider::{Endpoints, Issuer, Known};
use super::session::{Session, Spans, Standing, Tokens};
use super::{CALLBACK_PATH, CENTRAL_CALLBACK, Logins, new_session_id, redirect};
use crate::edge::Shared;
use crate::http::reply::{self, Problem};
use crate::policy::template::{Template, map};
use crate::policy::{Action, Exchange, Flow, Run};
use crate::route::Authority;
use crate::slots;

/// Begins a log-in anew, whoever is logged in.
const LOGIN_PATH: &str = "/culvert/login";
/// Ends the session.
const LOGOUT_PATH: &str = "/culvert/logout";
/// A provider that cannot be asked is asked again after so long.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Bytes of what a browser says it is.
const USER_AGENT_BYTES_MAX: usize = 512;

/// Which of the two actions it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    OAuth,
    OpenIdConnect,
}

/// Who vouches for users.
#[derive(Debug)]
pub(crate) enum Provider {
    Known(&'static Known, Arc<Endpoints>),
    Issuer(Box<Issuer>),
}

/// The application that users log in to.
pub(crate) enum AppSource {
    /// Its id and its secret.
    Own(Template, Template),
    /// The operator's.
    Operators(App),
}

/// What the configuration of an action says.
pub(crate) struct Options {
    pub(crate) kind: Kind,
    pub(crate) provider: Provider,
    pub(crate) app: AppSource,
    pub(crate) auth_id: String,
    /// With spaces between.
    pub(crate) scopes: String,
    /// Of the authorization URL.
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) spans: Spans,
    pub(crate) allows_preflight: bool,
    pub(crate) cookie_domain: Option<String>,
}

/// A log-in action.
pub(crate) struct Gate {
    options: Options,
    logins: Arc<Logins>,
    cookies: Cookies,
    /// Scopes and parameters, for sessions made before they changed.
    print: String,
}

/// The same as an action.
#[derive(Debug)]
pub(crate) struct Login(pub(crate) Arc<Gate>);

/// One request before the gate.
struct Visit {
    app: App,
    /// What cookies are sealed for.
    context: String,
    now: Timestamp,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    /// There was none.
    Nobody,
    TimedOut,
    TooOld,
    Ended,
}

/// What came of asking the provider again. Those who ask for the same share it.
pub(super) type Refresh = SharedFuture<BoxFuture<'static, Asked>>;

#[derive(Clone)]
pub(super) enum Asked {
    /// It said who this is, or could not be asked now.
    Goes(Arc<Session>, bool),
    /// It does not vouch for the user any more.
    Ends,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("kind", &self.options.kind)
            .field("provider", &self.provider_name())
            .field("auth_id", &self.options.auth_id)
            .finish_non_exhaustive()
    }
}

impl Kind {
    /// The name of its results.
    fn result(self) -> &'static str {
        match self {
            Self::OAuth => "oauth",
            Self::OpenIdConnect => "oidc",
        }
    }
}

impl Gate {
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

    /// What the provider is told apart by.
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

    async fn endpoints(&self, edge: &Shared) -> Result<Arc<Endpoints>, Failed> {
        match &self.options.provider {
            Provider::Known(_, endpoints) => Ok(Arc::clone(endpoints)),
            Provider::Issuer(issuer) => {
                let allows_loopback = self.logins.settings().allows_loopback;
                let found = issuer.endpoints(edge, allows_loopback).await;
                found.map_err(|error| Failed::Away(error.to_string()))
            }
        }
    }

    fn user(&self, account: &str, person: &Person) -> UserKey {
        UserKey::of(account, self.provider_url(), &person.provider_user_id)
    }

    /// Who asks for what; a flow where the application cannot be named.
    fn visit(&self, x: &mut Exchange<'_>, request: &request::Parts) -> Result<Visit, Flow> {
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
        Ok(Visit {
            app,
            context,
            now: x.down.now(),
        })
    }

    /// The session that a request brings.
    fn session(
        &self,
        account: &str,
        request: &request::Parts,
        visit: &Visit,
    ) -> Result<(Session, Standing), Gone> {
        let mut gone = Gone::Nobody;
        for sealed in self.cookies.sessions(&request.headers) {
            let Some(session) = Session::open(&self.logins.keys, &visit.context, &sealed) else {
                continue;
            };
            let user = self.user(account, &session.person);
            if self
                .logins
                .has_ended(user, &session.id, session.started_at())
            {
                gone = Gone::Ended;
                continue;
            }
            match session.standing(self.options.spans, &self.print, visit.now) {
                Standing::TimedOut => gone = Gone::TimedOut,
                Standing::TooOld => gone = Gone::TooOld,
                standing => return Ok((session, standing)),
            }
        }
        Err(gone)
    }

    /// Lets a user pass.
    fn admit(&self, x: &mut Exchange<'_>, session: &Session, was_refreshed: bool) -> Flow {
        x.tell(slots::http::OAUTH_DECISION, "allow");
        self.tell_user(x, &session.person);
        if x.wants_results() {
            let fields = self.result(Some(session), Gone::Nobody, was_refreshed, None);
            x.result(self.options.kind.result(), fields);
        }
        // Whoever reads what upstreams get must not be able to come back as this user.
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
        x.tell(slots::http::OAUTH_USER_ID, &person.provider_user_id);
        if !person.name.is_empty() {
            x.tell(slots::http::OAUTH_USER_NAME, &person.name);
        }
    }

    /// What expressions see.
    fn result(
        &self,
        session: Option<&Session>,
        gone: Gone,
        was_refreshed: bool,
        problem: Option<Problem>,
    ) -> Vec<(&'static str, Value)> {
        let (nobody, no_tokens) = (Person::default(), Tokens::default());
        let person = session.map_or(&nobody, |session| &session.person);
        let tokens = session.map_or(&no_tokens, |session| &session.tokens);
        let text = |text: &str| Value::from(text);
        let is_oauth = self.options.kind == Kind::OAuth;
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
            (problem.code(), problem.text())
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
            ("session_timed_out", Value::Bool(gone == Gone::TimedOut)),
            (
                "session_max_duration_reached",
                Value::Bool(gone == Gone::TooOld),
            ),
            ("userinfo_refreshed", Value::Bool(was_refreshed)),
        ];
        if !is_oauth {
            fields.push(("identity_token", text(&tokens.identity)));
        }
        fields
    }

    /// Answers in the place of the upstream: with a refusal, if there is a problem.
    fn refuse(&self, x: &mut Exchange<'_>, problem: Problem) -> Flow {
        self.stop(x, Gone::Nobody, Some(problem));
        x.refuse(problem)
    }

    fn stop(&self, x: &mut Exchange<'_>, gone: Gone, problem: Option<Problem>) {
        x.tell(slots::http::OAUTH_DECISION, "block");
        if x.wants_results() {
            let fields = self.result(None, gone, false, problem);
            x.result(self.options.kind.result(), fields);
        }
    }

    /// Keeps a session in the browser.
    fn keep(&self, x: &mut Exchange<'_>, visit: &Visit, session: &Session) -> Option<()> {
        let entropy = Arc::clone(&x.down.edge.entropy);
        let sealed = session.seal(&self.logins.keys, &*entropy, &visit.context)?;
        let keep_for = session.ends_at(self.options.spans).since(visit.now);
        let headers = &x.request?.headers;
        let cookies = self.cookies.keep_session(&sealed, keep_for, headers);
        x.memory.cookies.extend(cookies);
        Some(())
    }

    fn sighting(&self, x: &Exchange<'_>, visit: &Visit, session: &Session) -> Sighting {
        let agent = x
            .request
            .and_then(|request| request.headers.get(USER_AGENT));
        let agent = agent.map_or("", |agent| agent.to_str().unwrap_or_default());
        Sighting {
            session: session.id.clone(),
            account: Arc::clone(&x.endpoint.account),
            endpoint: x.endpoint.id.clone(),
            public_url: x.endpoint.url(),
            provider: self.provider_name().to_owned(),
            provider_url: self.provider_url().to_owned(),
            person: session.person.clone(),
            // A field that is text has one byte for each character.
            user_agent: agent.chars().take(USER_AGENT_BYTES_MAX).collect(),
            ip_address: x.down.client.ip().to_string(),
            started_at: session.started_at(),
            seen_at: visit.now,
            expires_at: session.ends_at(self.options.spans),
        }
    }

    async fn enter(self: &Arc<Self>, x: &mut Exchange<'_>, visit: Visit) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        let query = request.uri.query().unwrap_or_default();
        match request.uri.path() {
            LOGIN_PATH if self.is_meant(query) => {
                let path = parameter(query, "redirect_path");
                return match path.as_deref().map(local_path) {
                    None => self.begin(x, &visit, "/", true).await,
                    Some(Some(path)) => self.begin(x, &visit, path, true).await,
                    Some(None) => self.refuse(x, Problem::LoginPath),
                };
            }
            LOGOUT_PATH if self.is_meant(query) => return self.leave(x, &visit, query).await,
            CALLBACK_PATH if request.method == Method::GET => {
                return match self.finish(x, &visit, query).await {
                    Ok(flow) => flow,
                    Err(problem) => self.refuse(x, problem),
                };
            }
            _ => {}
        }
        match self.session(&x.endpoint.account, request, &visit) {
            Ok((session, Standing::Good)) => self.admit(x, &session, false),
            Ok((session, Standing::Ask)) => {
                let edge = Arc::clone(&x.down.edge);
                match self.ask(&edge, &visit, session).await {
                    Asked::Goes(session, was_refreshed) => {
                        self.renew(x, &visit, Session::clone(&session), was_refreshed)
                            .await
                    }
                    Asked::Ends => self.turn_away(x, &visit, Gone::Ended).await,
                }
            }
            Ok((session, _)) => self.renew(x, &visit, session, false).await,
            Err(gone) => self.turn_away(x, &visit, gone).await,
        }
    }

    /// Whether a path of the edge is for this action.
    fn is_meant(&self, query: &str) -> bool {
        parameter(query, "auth_id").unwrap_or_default() == self.options.auth_id
    }

    /// Lets a user pass, and gives the browser a newer session.
    async fn renew(
        &self,
        x: &mut Exchange<'_>,
        visit: &Visit,
        mut session: Session,
        was_refreshed: bool,
    ) -> Flow {
        session.seen(visit.now);
        let user = self.user(&x.endpoint.account, &session.person);
        if session.user_id.is_empty()
            && let Some(id) = self.logins.users.get(&user).await
        {
            session.user_id = id;
        }
        if self.keep(x, visit, &session).is_none() {
            return x.fault();
        }
        let sighting = self.sighting(x, visit, &session);
        self.logins.note_again(&x.down.edge, sighting).await;
        self.admit(x, &session, was_refreshed)
    }

    /// Sends somebody without a session to the provider; what is no page is refused.
    async fn turn_away(&self, x: &mut Exchange<'_>, visit: &Visit, gone: Gone) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        if gone != Gone::Nobody {
            let forgotten = self.cookies.forget_session(&request.headers);
            x.memory.cookies.extend(forgotten);
        }
        if request.method == Method::GET {
            let path = request
                .uri
                .path_and_query()
                .map_or("/", |path| path.as_str());
            let flow = self.begin(x, visit, path, false).await;
            if let Flow::Reply(_) = &flow
                && gone != Gone::Nobody
            {
                self.stop(x, gone, None);
            }
            return flow;
        }
        self.stop(x, gone, Some(Problem::LoginFirst));
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

    /// Where users come back to.
    fn redirect_uri(&self, origin: &str) -> String {
        match &self.logins.settings().callback_base {
            Some(base) => format!("{}{CENTRAL_CALLBACK}", base.as_str().trim_end_matches('/')),
            None => format!("{origin}{CALLBACK_PATH}"),
        }
    }

    /// Sends a user to the provider.
    async fn begin(&self, x: &mut Exchange<'_>, visit: &Visit, path: &str, is_anew: bool) -> Flow {
        let edge = Arc::clone(&x.down.edge);
        let endpoints = match self.endpoints(&edge).await {
            Ok(endpoints) => endpoints,
            Err(failed) => {
                tracing::warn!(endpoint.id = %x.endpoint.id, error = %failed, "nobody can log in");
                return self.refuse(x, Problem::LoginProvider);
            }
        };
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        let (keys, entropy) = (&self.logins.keys, &*edge.entropy);
        let brought = self
            .cookies
            .nonces(&request.headers)
            .find_map(|text| Nonce::open(keys, &visit.context, text, visit.now));
        let nonce = match brought {
            Some(nonce) => nonce.renewed(visit.now),
            None => Nonce::new(entropy, visit.now),
        };
        let origin = origin(x, request);
        let state = State::new(entropy, &nonce, &origin, path, visit.now);
        let sealed = state.seal(keys, entropy, "");
        let cookie = nonce.seal(keys, entropy, &visit.context);
        let cookie = cookie.and_then(|text| self.cookies.keep_nonce(&text, ATTEMPT_WITHIN));
        let (Some(sealed), Some(cookie)) = (sealed, cookie) else {
            return x.fault();
        };
        let mut url = endpoints.authorize.clone();
        let mut given: Vec<(&str, Cow<'_, str>)> = vec![
            ("response_type", "code".into()),
            ("client_id", visit.app.id.as_str().into()),
            ("redirect_uri", self.redirect_uri(&origin).into()),
            ("scope", self.options.scopes.as_str().into()),
            ("state", sealed.into()),
        ];
        if endpoints.has_pkce {
            let challenge = challenge(&nonce.verifier(&state));
            given.push(("code_challenge", challenge.into()));
            given.push(("code_challenge_method", "S256".into()));
        }
        if endpoints.keys.is_some() {
            given.push(("nonce", nonce.token_nonce(&state).into()));
        }
        let has = |name: &str| self.options.parameters.iter().any(|(own, _)| own == name);
        if is_anew && endpoints.keys.is_some() && !has("prompt") {
            given.push(("prompt", "login".into()));
        }
        for (name, value) in &self.options.parameters {
            given.push((name, value.as_str().into()));
        }
        url.query_pairs_mut().extend_pairs(&given);
        self.stop(x, Gone::Nobody, None);
        x.memory.cookies.push(cookie);
        match redirect(url.as_str()) {
            Some(answer) => Flow::Reply(Box::new(answer)),
            None => x.fault(),
        }
    }

    /// A user comes back from the provider.
    async fn finish(
        &self,
        x: &mut Exchange<'_>,
        visit: &Visit,
        query: &str,
    ) -> Result<Flow, Problem> {
        let Some(request) = x.request else {
            return Ok(Flow::Continue);
        };
        let edge = Arc::clone(&x.down.edge);
        let keys = &self.logins.keys;
        let text = parameter(query, "state").ok_or(Problem::LoginNoState)?;
        let state = State::open(keys, "", &text, visit.now).ok_or(Problem::LoginState)?;
        if state.origin != origin(x, request) {
            return Err(Problem::LoginOtherHost);
        }
        let nonce = self
            .cookies
            .nonces(&request.headers)
            .filter_map(|text| Nonce::open(keys, &visit.context, text, visit.now))
            .find(|nonce| nonce.is_of(&state))
            .ok_or(Problem::LoginCookie)?;
        let back = format!("{}{}", state.origin, state.path);
        let attempt = self.logins.used.entry(state.id()).or_insert(()).await;
        if !attempt.is_fresh() {
            // Somebody went back a page, perhaps.
            let session = self.session(&x.endpoint.account, request, visit);
            session.map_err(|_| Problem::LoginState)?;
            self.stop(x, Gone::Nobody, None);
            let answer = redirect(&back).ok_or(Problem::LoginState)?;
            return Ok(Flow::Reply(Box::new(answer)));
        }
        let endpoints = self.endpoints(&edge).await.map_err(|failed| {
            tracing::warn!(endpoint.id = %x.endpoint.id, error = %failed, "nobody can log in");
            Problem::LoginProvider
        })?;
        if let Some(error) = parameter(query, "error") {
            let error: String = error.chars().take(100).collect();
            tracing::info!(endpoint.id = %x.endpoint.id, error, "a provider sends a user back");
            return Err(match error.as_str() {
                "server_error" | "temporarily_unavailable" => Problem::LoginProvider,
                _ => Problem::LoginDenied,
            });
        }
        // RFC 9207: the answer of one provider is not to be taken for another's.
        let is_others = |issuer: String| issuer != endpoints.issuer && endpoints.keys.is_some();
        if parameter(query, "iss").is_some_and(is_others) {
            return Err(Problem::LoginState);
        }
        let code = parameter(query, "code").ok_or(Problem::LoginState)?;
        let _turn = self
            .logins
            .calls
            .try_acquire()
            .map_err(|_| Problem::LoginBusy)?;
        let asking = Asking {
            edge: &edge,
            endpoints: &endpoints,
            app: &visit.app,
            known: self.known(),
            now: visit.now,
        };
        let redirect_uri = self.redirect_uri(&state.origin);
        let (verifier, token_nonce) = (nonce.verifier(&state), nonce.token_nonce(&state));
        let asked = asking.by_code(&code, &verifier, &token_nonce, &redirect_uri);
        let (person, tokens) = asked.await.map_err(|failed| {
            tracing::warn!(endpoint.id = %x.endpoint.id, error = %failed, "a user cannot be let in");
            problem_of(&failed)
        })?;
        let user = self.user(&x.endpoint.account, &person);
        let began = self.logins.beginning(user, visit.now);
        let id = new_session_id(&self.logins, &edge);
        let mut session = Session::new(id, person, &self.print, tokens, began);
        let sighting = self.sighting(x, visit, &session);
        session.user_id = match self.logins.note_first(sighting).await {
            Ok(user_id) => user_id,
            Err(Noted::Ended) => return Err(Problem::LoginState),
            Err(_) => return Err(Problem::LoginBusy),
        };
        edge.meters.logins.up();
        self.keep(x, visit, &session).ok_or(Problem::Policy)?;
        self.stop(x, Gone::Nobody, None);
        self.tell_user(x, &session.person);
        let answer = redirect(&back).ok_or(Problem::LoginState)?;
        Ok(Flow::Reply(Box::new(answer)))
    }

    /// Logs a user out.
    async fn leave(&self, x: &mut Exchange<'_>, visit: &Visit, query: &str) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        for sealed in self.cookies.sessions(&request.headers) {
            let Some(session) = Session::open(&self.logins.keys, &visit.context, &sealed) else {
                continue;
            };
            self.end(&x.endpoint.account, &session).await;
        }
        let forgotten = self.cookies.forget_session(&request.headers);
        x.memory.cookies.extend(forgotten);
        let path = parameter(query, "redirect_path");
        let answer = match path.as_deref().map(local_path) {
            Some(None) => return self.refuse(x, Problem::LoginPath),
            Some(Some(path)) => redirect(&format!("{}{path}", origin(x, request))),
            None => Some(reply::page(
                request.headers.get(ACCEPT),
                "Logged out",
                "You are logged out here. Your session at the identity provider may go on.",
            )),
        };
        self.stop(x, Gone::Nobody, None);
        match answer {
            Some(answer) => Flow::Reply(Box::new(answer)),
            None => x.fault(),
        }
    }

    async fn end(&self, account: &Arc<str>, session: &Session) {
        let ending = Ending {
            session: session.id.clone(),
            account: Arc::clone(account),
            user: self.user(account, &session.person),
            until: session.last_end(self.options.spans),
        };
        self.logins.end(ending).await;
    }

    /// Asks the provider who this is. Requests that come with the same session share the asking, and
    /// it goes on when the request that began it breaks off: a refresh token may be good for one use.
    async fn ask(self: &Arc<Self>, edge: &Arc<Shared>, visit: &Visit, session: Session) -> Asked {
        let key = format!("{} {}", session.id, session.asked());
        let (gate, account, now) = (Arc::clone(self), visit.account(), visit.now);
        let (its_edge, app) = (Arc::clone(edge), visit.app.clone());
        let asking: BoxFuture<'static, Asked> =
            Box::pin(async move { gate.ask_now(&its_edge, &account, &app, session, now).await });
        let entry = self.logins.refreshed.entry(key);
        let entry = entry.or_insert(asking.shared()).await;
        if entry.is_fresh() {
            edge.track(entry.value().clone().map(drop));
        }
        entry.into_value().await
    }

    async fn ask_now(
        &self,
        edge: &Shared,
        account: &Arc<str>,
        app: &App,
        mut session: Session,
        now: Timestamp,
    ) -> Asked {
        let asked = async {
            let turn = self.logins.calls.try_acquire();
            let _turn = turn.map_err(|_| Failed::Away("too many are asked about".to_owned()))?;
            let endpoints = self.endpoints(edge).await?;
            let asking = Asking {
                edge,
                endpoints: &endpoints,
                app,
                known: self.known(),
                now,
            };
            let user_id = &session.person.provider_user_id;
            asking
                .again(&session.tokens, session.is_expired(now), user_id)
                .await
        };
        match asked.await {
            Ok(told) => {
                let was_told = told.is_some();
                if let Some((person, tokens)) = told {
                    session.person = person;
                    session.tokens = tokens;
                }
                session.told(&self.print, now);
                Asked::Goes(Arc::new(session), was_told)
            }
            Err(Failed::Away(why)) => {
                tracing::warn!(why, "a user's data cannot be refreshed now");
                session.postponed(self.options.spans, &self.print, ASK_AGAIN_AFTER, now);
                Asked::Goes(Arc::new(session), false)
            }
            Err(failed) => {
                tracing::info!(session = session.id, error = %failed, "a session ends");
                self.end(account, &session).await;
                Asked::Ends
            }
        }
    }
}

impl Visit {
    /// The account, which the context begins with.
    fn account(&self) -> Arc<str> {
        self.context.split('\n').next().unwrap_or_default().into()
    }
}

/// What a user is told of a failure.
fn problem_of(failed: &Failed) -> Problem {
    match failed {
        Failed::Refused(_) => Problem::LoginDenied,
        Failed::Away(_) => Problem::LoginProvider,
        Failed::Token(_) => Problem::LoginToken,
        Failed::Nobody => Problem::LoginNobody,
        Failed::NoEmail => Problem::LoginNoEmail,
    }
}

/// The code challenge of a verifier (RFC 7636 4.2).
fn challenge(verifier: &str) -> String {
    use base64::Engine;
    use sha2::{Digest, Sha256};
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(Sha256::digest(verifier))
}

/// Where the browser sees the endpoint: `https://host:port`.
fn origin(x: &Exchange<'_>, request: &request::Parts) -> String {
    let authority = Authority::of(&request.uri, request.headers.get(HOST));
    let authority = authority.map_or("", |authority| authority.text);
    let forwarded = request.headers.get("x-forwarded-proto");
    let is_https = x.down.tls.get().is_some()
        || (x.down.is_trusted && forwarded.is_some_and(|scheme| scheme == "https"));
    let scheme = if is_https { "https" } else { "http" };
    format!("{scheme}://{}", authority.to_ascii_lowercase())
}

/// The parameter of that name, unless it comes twice or is empty.
fn parameter(query: &str, name: &str) -> Option<String> {
    let mut all = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name);
    let (_, value) = all.next()?;
    (all.next().is_none() && !value.is_empty()).then(|| value.into_owned())
}

/// Whether a browser asks if another site's page may send a request (Fetch, CORS-preflight).
fn is_preflight(request: &request::Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

impl Action for Login {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> Run<'a> {
        let gate = &self.0;
        let Some(request) = x.request else {
            return Flow::Continue.into();
        };
        let visit = match gate.visit(x, request) {
            Ok(visit) => visit,
            Err(flow) => return flow.into(),
        };
        x.tell(slots::http::OAUTH_APP_CLIENT_ID, &visit.app.id);
        if gate.options.allows_preflight && is_preflight(request) {
            x.tell(slots::http::OAUTH_DECISION, "allow");
            return Flow::Continue.into();
        }
        // Most requests bring a session and wait for nothing.
        let path = request.uri.path();
        if ![LOGIN_PATH, LOGOUT_PATH, CALLBACK_PATH].contains(&path)
            && let Ok((session, Standing::Good)) =
                gate.session(&x.endpoint.account, request, &visit)
        {
            return gate.admit(x, &session, false).into();
        }
        let enter: BoxFuture<'a, Flow> = Box::pin(async move { gate.enter(x, visit).await });
        Run::Later(enter)
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        match &self.0.options.app {
            AppSource::Own(id, secret) => id.slots().chain(secret.slots()).collect(),
            AppSource::Operators(_) => Vec::new(),
        }
    }
}
