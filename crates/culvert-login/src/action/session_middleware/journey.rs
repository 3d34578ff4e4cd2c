//! The redirects of a sign-in: to the provider, back from it, and the sign-out.

use std::borrow::Cow;
use std::sync::Arc;

use culvert_base::{BoxFuture, Timestamp};
use culvert_events::sign_in_parameter::{CODE, NONCE, STATE, TICKET};
use culvert_http::authority::Authority;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::run::Flow;
use culvert_policy::problem::Problem;
use culvert_policy::reply;
use culvert_policy::services::PolicyServices;
use futures_util::FutureExt;
use futures_util::future::Shared as SharedFuture;
use http::header::{HOST, HeaderName, ORIGIN};
use http::{Method, request};
use sha2::{Digest, Sha256};
use url::Url;

use super::{NoSession, RequestContext, SessionMiddleware, Visit, own_cookies};
use crate::attempt::{
    ATTEMPT_WITHIN, Aim, AttemptState, EndpointPlace, Nonce, Ticket, challenge, local_path,
    parameter,
};
use crate::journal::{Ending, Noted, Person};
use crate::logins::{
    AttemptStep, CALLBACK_PATH, CENTRAL_CALLBACK, new_session_id, redirect, secret_redirect,
};
use crate::provider::Endpoints;
use crate::provider::grant::{App, Asking, Failed};
use crate::session::{Session, Tokens};

/// How the site that made the browser send a request relates to its host.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The result of a step of a sign-in. A browser may send its callback several times concurrently; all requests get it.
pub(crate) type Completion = SharedFuture<BoxFuture<'static, Result<Completed, Problem>>>;

/// What a step of a sign-in results in.
#[derive(Clone)]
pub(crate) enum Completed {
    /// The provider named the user.
    Granted(Arc<(Person, Tokens)>),
    /// The session has begun.
    Begun(Arc<Session>),
}

/// An authorization response of the provider, with what its code was requested with.
struct Response {
    code: String,
    verifier: String,
    nonce: String,
    redirect_uri: String,
}

impl SessionMiddleware {
    /// Whether sign-ins are completed at the common callback address. Several issuers share it, so a response must name its
    /// issuer, or the code of one could go to another, which a user may have set up (RFC 9207). The URLs of known
    /// providers are fixed.
    fn is_central(&self, endpoints: &Endpoints) -> bool {
        let has_base = self.logins.settings().callback_base.is_some();
        has_base && (self.known().is_some() || endpoints.announces_issuer)
    }

    /// Whether an origin has the port of `https`, or that of the common callback address. Any client may begin a
    /// sign-in with another port and have a different browser sent there with the ticket, which another service of the
    /// host would see.
    fn has_known_port(&self, origin: &str) -> bool {
        let port = Url::parse(origin)
            .ok()
            .and_then(|url| url.port_or_known_default());
        let base = self.logins.settings().callback_base.as_ref();
        port == Some(443) || port == base.and_then(Url::port_or_known_default)
    }

    /// The callback URL.
    fn redirect_uri(&self, origin: &str, is_central: bool) -> String {
        match &self.logins.settings().callback_base {
            Some(base) if is_central => {
                format!("{}{CENTRAL_CALLBACK}", base.as_str().trim_end_matches('/'))
            }
            _ => format!("{origin}{CALLBACK_PATH}"),
        }
    }

    /// Redirects a user to the provider.
    pub(super) async fn begin(
        &self,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        path: &str,
        is_anew: bool,
    ) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        let origin = origin(x, request);
        // Browsers keep no cookies of the edge, and others could read the session.
        if !origin.starts_with("https://") {
            return self.refuse(x, Problem::LoginInsecure);
        }
        let services = Arc::clone(x.conn.services);
        let endpoints = match self.endpoints(&services).await {
            Ok(endpoints) => endpoints,
            Err(failed) => {
                tracing::warn!(endpoint.id = %x.endpoint.id, error = %failed, "sign-in is not possible");
                return self.refuse(x, Problem::LoginProvider);
            }
        };
        let (keys, entropy) = (&self.logins.keys, &*services.entropy);
        let context = request_context.of_host();
        let brought = own_cookies(request).and_then(|cookies| {
            let mut nonces = self.cookies.nonces(cookies);
            nonces.find_map(|text| Nonce::open(keys, &context, text, request_context.now))
        });
        let nonce = match brought {
            Some(nonce) => nonce.renewed(request_context.now),
            None => Nonce::new(entropy, request_context.now),
        };
        let is_central = self.is_central(&endpoints) && self.has_known_port(&origin);
        let aim = Aim {
            context: &context,
            kind: self.options.kind,
            auth_id: &self.options.auth_id,
            endpoint: EndpointPlace {
                id: x.endpoint.id.to_owned(),
                internal: x.endpoint.is_internal.then(|| {
                    let scheme = x.endpoint.scheme.name().to_owned();
                    (scheme, x.endpoint.host.to_owned(), x.endpoint.port)
                }),
            },
            origin: &origin,
            path,
            is_central,
        };
        let state = AttemptState::new(entropy, &nonce, aim, request_context.now);
        let sealed = state.seal(keys, entropy);
        let cookie = nonce.seal(keys, entropy, &context);
        let cookie = cookie.and_then(|text| self.cookies.keep_nonce(&text, ATTEMPT_WITHIN));
        let (Some(sealed), Some(cookie)) = (sealed, cookie) else {
            return x.fault();
        };
        let mut url = endpoints.authorize.clone();
        let mut given: Vec<(&str, Cow<'_, str>)> = vec![
            ("response_type", "code".into()),
            ("client_id", request_context.app.id.as_str().into()),
            (
                "redirect_uri",
                self.redirect_uri(&origin, is_central).into(),
            ),
            ("scope", self.options.scopes.as_str().into()),
            (STATE, sealed.into()),
        ];
        if endpoints.has_pkce {
            let challenge = challenge(&nonce.verifier(&state));
            given.push(("code_challenge", challenge.into()));
            given.push(("code_challenge_method", "S256".into()));
        }
        if endpoints.keys.is_some() {
            given.push((NONCE, nonce.token_nonce(&state).into()));
        }
        let has = |name: &str| self.options.parameters.iter().any(|(own, _)| own == name);
        if is_anew && endpoints.keys.is_some() && !has("prompt") {
            given.push(("prompt", "login".into()));
        }
        for (name, value) in &self.options.parameters {
            given.push((name, value.as_str().into()));
        }
        url.query_pairs_mut().extend_pairs(&given);
        self.stop(x, NoSession::Absent, None);
        x.memory.cookies.push(cookie);
        match secret_redirect(url.as_str()) {
            Some(answer) => Flow::Reply(Box::new(answer)),
            None => x.fault(),
        }
    }

    /// Completes a sign-in when the provider, or the common callback address, redirects the user back.
    pub(super) async fn finish(
        self: &Arc<Self>,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        query: &str,
    ) -> Result<Flow, Problem> {
        let Some(request) = x.request else {
            return Ok(Flow::Continue);
        };
        let (keys, now) = (&self.logins.keys, request_context.now);
        let context = request_context.of_host();
        let ticket_text = parameter(query, TICKET);
        let ticket = ticket_text.as_deref();
        let ticket =
            ticket.map(|text| Ticket::open(keys, &context, text).ok_or(Problem::LoginState));
        let ticket = ticket.transpose()?;
        let is_recent = ticket.as_ref().is_none_or(|ticket| ticket.is_recent(now));
        let state = match &ticket {
            Some(ticket) => ticket.state.clone(),
            None => {
                let text = parameter(query, STATE).ok_or(Problem::LoginNoState)?;
                AttemptState::read(keys, &text).ok_or(Problem::LoginState)?
            }
        };
        if state.origin != origin(x, request) {
            return Err(Problem::LoginOtherHost);
        }
        if state.context != context {
            return Err(Problem::LoginState);
        }
        // Codes of central attempts are of use at the common callback address only.
        let is_expected = ticket.is_some() == state.seed.is_some();
        if !is_expected || !is_recent || !state.is_recent(now) {
            return self.resume(x, request_context, &state, Problem::LoginState);
        }
        let nonce = own_cookies(request).and_then(|cookies| {
            let nonces = self.cookies.nonces(cookies);
            let mut nonces = nonces.filter_map(|text| Nonce::open(keys, &context, text, now));
            nonces.find(|nonce| nonce.is_of(&state))
        });
        let Some(nonce) = nonce else {
            return self.resume(x, request_context, &state, Problem::LoginCookie);
        };
        let services = Arc::clone(x.conn.services);
        let visit = Visit::of(x);
        let begun = match ticket {
            Some(ticket) => {
                let (middleware, services_there) = (Arc::clone(self), Arc::clone(&services));
                let work: BoxFuture<'static, Result<Completed, Problem>> = Box::pin(async move {
                    let Ticket { person, tokens, .. } = ticket;
                    middleware
                        .begin_session(&services_there, visit, person, tokens, now)
                        .await
                });
                let proof = ticket_text.unwrap_or_default();
                self.once(&services, ("ticket", state.id()), &proof, work)
                    .await
            }
            None => {
                let endpoints = self.usable_endpoints(&services, x.endpoint.id).await?;
                let response = Response {
                    code: code_of(query, &endpoints, x.endpoint.id)?,
                    verifier: nonce.verifier(&state),
                    nonce: nonce.token_nonce(&state),
                    redirect_uri: self.redirect_uri(&state.origin, false),
                };
                let (middleware, services_there) = (Arc::clone(self), Arc::clone(&services));
                let (app, endpoint) = (request_context.app.clone(), visit.endpoint.clone());
                let proof = response.code.clone();
                let work: BoxFuture<'static, Result<Completed, Problem>> = Box::pin(async move {
                    let services = &services_there;
                    let (person, tokens) = middleware
                        .exchange(services, &endpoints, &app, &response, &endpoint, now)
                        .await?;
                    middleware
                        .begin_session(services, visit, person, tokens, now)
                        .await
                });
                self.once(&services, ("code", state.id()), &proof, work)
                    .await
            }
        };
        let session = match begun {
            Ok(Completed::Begun(session)) => session,
            Ok(Completed::Granted(_)) => return Err(Problem::Policy),
            // The user may have gone back a page.
            Err(Problem::LoginState) => {
                return self.resume(x, request_context, &state, Problem::LoginState);
            }
            Err(problem) => return Err(problem),
        };
        self.keep(x, request_context, &session)
            .ok_or(Problem::Policy)?;
        self.keep_person(x, request_context, &session);
        x.memory.cookies.extend(self.cookies.forget_nonce());
        self.stop(x, NoSession::Absent, None);
        self.tell_user(x, &session.person);
        let answer = redirect(&state.back()).ok_or(Problem::LoginState)?;
        Ok(Flow::Reply(Box::new(answer)))
    }

    /// Redirects a signed-in user to the page that was wanted; others get the problem.
    fn resume(
        &self,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        state: &AttemptState,
        problem: Problem,
    ) -> Result<Flow, Problem> {
        let request = x.request.ok_or(problem)?;
        let session = self.session(request, request_context);
        session.map_err(|_| problem)?;
        self.stop(x, NoSession::Absent, None);
        let answer = redirect(&state.back()).ok_or(problem)?;
        Ok(Flow::Reply(Box::new(answer)))
    }

    /// Completes a sign-in at the common callback address: exchanges the code, and sends the user to the endpoint with a
    /// ticket. Only the browser in which the sign-in began can use it.
    pub(crate) async fn finish_centrally(
        self: &Arc<Self>,
        x: &mut Exchange<'_>,
        state: AttemptState,
        host: &str,
        query: &str,
    ) -> Result<Flow, Problem> {
        let request_context = match self.request_context(x, host) {
            Ok(request_context) => request_context,
            Err(flow) => return Ok(flow),
        };
        // The endpoint must still have this host, and the action this application.
        if state.context != request_context.of_host() {
            return Err(Problem::LoginState);
        }
        let (verifier, nonce) = state.central_secrets().ok_or(Problem::LoginState)?;
        let services = Arc::clone(x.conn.services);
        let endpoints = self.usable_endpoints(&services, x.endpoint.id).await?;
        if !self.is_central(&endpoints) {
            return Err(Problem::LoginState);
        }
        let response = Response {
            code: code_of(query, &endpoints, x.endpoint.id)?,
            verifier,
            nonce,
            redirect_uri: self.redirect_uri(&state.origin, true),
        };
        let (middleware, services_there) = (Arc::clone(self), Arc::clone(&services));
        let (endpoint, now) = (x.endpoint.id.to_owned(), request_context.now);
        let app = request_context.app;
        let proof = response.code.clone();
        let work: BoxFuture<'static, Result<Completed, Problem>> = Box::pin(async move {
            let granted = middleware
                .exchange(&services_there, &endpoints, &app, &response, &endpoint, now)
                .await?;
            Ok(Completed::Granted(Arc::new(granted)))
        });
        let granted = self
            .once(&services, ("code", state.id()), &proof, work)
            .await?;
        let Completed::Granted(granted) = granted else {
            return Err(Problem::Policy);
        };
        let (person, tokens) = (*granted).clone();
        let origin = state.origin.clone();
        let ticket = Ticket::new(state, person, tokens, now);
        let ticket = ticket.seal(&self.logins.keys, &*services.entropy);
        let ticket = ticket.ok_or(Problem::Policy)?;
        let answer = secret_redirect(&format!("{origin}{CALLBACK_PATH}?{TICKET}={ticket}"));
        Ok(Flow::Reply(Box::new(answer.ok_or(Problem::Policy)?)))
    }

    async fn usable_endpoints(
        &self,
        services: &PolicyServices,
        endpoint: &str,
    ) -> Result<Arc<Endpoints>, Problem> {
        self.endpoints(services).await.map_err(|failed| {
            tracing::warn!(endpoint.id = %endpoint, error = %failed, "sign-in is not possible");
            Problem::LoginProvider
        })
    }

    /// Runs a step of a sign-in once. Concurrent requests with the same code or ticket, `proof`, share its result, which is
    /// remembered for a while: a client with only the state, such as the one that began the attempt, gets nothing. The
    /// step continues if the request that began it is cancelled, because a code is valid only once.
    async fn once(
        self: &Arc<Self>,
        services: &Arc<PolicyServices>,
        step: AttemptStep,
        proof: &str,
        work: BoxFuture<'static, Result<Completed, Problem>>,
    ) -> Result<Completed, Problem> {
        let middleware = Arc::clone(self);
        let work: BoxFuture<'static, Result<Completed, Problem>> = Box::pin(async move {
            // The result of a step that was done before may be forgotten.
            let ((), is_first) = middleware.logins.used.get_or_insert(step, ());
            match is_first {
                true => work.await,
                false => Err(Problem::LoginState),
            }
        });
        let key = (step, Sha256::digest(proof).into());
        // Further codes of an attempt take no room from the results of others.
        if self.logins.used.contains_key(&step) && !self.logins.completing.contains_key(&key) {
            return Err(Problem::LoginState);
        }
        let (completion, is_new) = self.logins.completing.get_or_insert(key, work.shared());
        if is_new {
            services.tasks.spawn(Box::pin(completion.clone().map(drop)));
        }
        completion.await
    }

    /// Exchanges a code for the user and the tokens.
    async fn exchange(
        &self,
        services: &PolicyServices,
        endpoints: &Endpoints,
        app: &App,
        response: &Response,
        endpoint: &str,
        now: Timestamp,
    ) -> Result<(Person, Tokens), Problem> {
        let _turn = self
            .logins
            .calls
            .try_acquire(self.options.share)
            .map_err(|_| Problem::LoginBusy)?;
        let asking = Asking {
            services,
            share: self.options.share,
            endpoints,
            app,
            known: self.known(),
            now,
        };
        let Response {
            code,
            verifier,
            nonce,
            redirect_uri,
        } = response;
        let asked = asking.by_code(code, verifier, nonce, redirect_uri).await;
        asked.map_err(|failed| {
            tracing::warn!(endpoint.id = %endpoint, error = %failed, "sign-in failed");
            problem_of(&failed)
        })
    }

    /// Begins the session of a user, and records it.
    async fn begin_session(
        &self,
        services: &PolicyServices,
        visit: Visit,
        person: Person,
        tokens: Tokens,
        now: Timestamp,
    ) -> Result<Completed, Problem> {
        let user = self.user(&visit.account, &person);
        let began = self.logins.beginning(user, now);
        let id = new_session_id(&self.logins, services);
        let mut session = Session::new(id, person, &self.print, tokens, began);
        let sighting = self.sighting(&visit, &session, now);
        session.user_id = match self.logins.note_first(sighting).await {
            Ok(user_id) => user_id,
            Err(Noted::Ended) => return Err(Problem::LoginState),
            Err(_) => return Err(Problem::LoginBusy),
        };
        services.meters.logins.up();
        Ok(Completed::Begun(Arc::new(session)))
    }

    /// Signs a user out, if the user or a page of this site asks for it. A link on another site shows a page with a button.
    pub(super) async fn leave(
        &self,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        query: &str,
    ) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        let path = parameter(query, "redirect_path");
        let path = match path.as_deref().map(local_path) {
            Some(None) => return self.refuse(x, Problem::LoginPath),
            Some(path) => path,
            None => None,
        };
        if !is_wanted(request, &origin(x, request)) {
            self.stop(x, NoSession::Absent, None);
            let page = x.reply_context().map(|to| {
                reply::confirmation(
                    &to,
                    "Sign out?",
                    "Sign out of this site? Send a POST request to this address to do so.",
                    "Sign out",
                )
            });
            return match page {
                Some(page) => Flow::Reply(Box::new(page)),
                None => x.fault(),
            };
        }
        if let Some(cookies) = own_cookies(request) {
            for sealed in self.cookies.sessions(cookies) {
                let keys = &self.logins.keys;
                let session = Session::open(keys, &request_context.context, &sealed);
                if let Some(session) = session {
                    self.end(&request_context.account, &session);
                }
            }
        }
        let forgotten = self.cookies.forget_session(own_cookies(request));
        x.memory.cookies.extend(forgotten);
        if self.options.cookie_domain.is_some() {
            let person = self.cookies.keep_person("", std::time::Duration::ZERO);
            x.memory.cookies.extend(person);
        }
        let answer = match path {
            Some(path) => redirect(&format!("{}{path}", origin(x, request))),
            None => x.reply_context().map(|to| reply::page(
                &to,
                "Signed out",
                "You are signed out. Your session at the identity provider may still be active.",
            )),
        };
        self.stop(x, NoSession::Absent, None);
        match answer {
            Some(answer) => Flow::Reply(Box::new(answer)),
            None => x.fault(),
        }
    }

    pub(super) fn end(&self, account: &Arc<str>, session: &Session) {
        let ending = Ending {
            session: session.id.clone(),
            account: Arc::clone(account),
            user: self.user(account, &session.person),
            until: session.last_end(self.options.spans),
        };
        self.logins.end(ending);
    }
}

/// Whether a request to sign out is no link or form of another site. Browsers say which site it is of, and scripts cannot
/// change that.
fn is_wanted(request: &request::Parts, origin: &str) -> bool {
    match request.headers.get(SEC_FETCH_SITE) {
        Some(site) => ["same-origin", "same-site", "none"]
            .iter()
            .any(|own| site.as_bytes().eq_ignore_ascii_case(own.as_bytes())),
        // An old browser, or no browser.
        None => {
            let from = request.headers.get(ORIGIN);
            request.method == Method::POST && from.is_none_or(|from| from == origin)
        }
    }
}

/// The code of an authorization response.
fn code_of(query: &str, endpoints: &Endpoints, endpoint: &str) -> Result<String, Problem> {
    if !endpoints.is_response_ours(query) {
        tracing::warn!(endpoint.id = %endpoint, "an authorization response is not of the identity provider");
        return Err(Problem::LoginState);
    }
    if let Some(error) = parameter(query, "error") {
        let error: String = error.chars().take(100).collect();
        tracing::info!(endpoint.id = %endpoint, error, "identity provider returned an error");
        return Err(match error.as_str() {
            "server_error" | "temporarily_unavailable" => Problem::LoginProvider,
            _ => Problem::LoginDenied,
        });
    }
    parameter(query, CODE).ok_or(Problem::LoginState)
}

/// The error that the user sees.
fn problem_of(failed: &Failed) -> Problem {
    match failed {
        Failed::Refused(_) => Problem::LoginDenied,
        Failed::Away(_) => Problem::LoginProvider,
        Failed::Token(_) => Problem::LoginToken,
        Failed::NoUser => Problem::LoginNoUser,
        Failed::NoEmail => Problem::LoginNoEmail,
    }
}

/// The endpoint's origin as the browser sees it: `https://host:port`.
fn origin(x: &Exchange<'_>, request: &request::Parts) -> String {
    let authority = Authority::of(request.version, &request.uri, request.headers.get(HOST));
    let authority = authority.map_or("", |authority| authority.text);
    let forwarded = request.headers.get("x-forwarded-proto");
    let is_https = x.conn.info.tls.get().is_some()
        || (x.conn.info.is_trusted && forwarded.is_some_and(|scheme| scheme == "https"));
    let scheme = if is_https { "https" } else { "http" };
    format!("{scheme}://{}", authority.to_ascii_lowercase())
}
