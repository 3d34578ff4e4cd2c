//! The redirects of a sign-in: to the provider, back from it, and the sign-out.

use std::borrow::Cow;
use std::sync::Arc;

use culvert_http::authority::Authority;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::run::Flow;
use culvert_policy::problem::Problem;
use culvert_policy::reply;
use http::header::HOST;
use http::request;

use super::{NoSession, RequestContext, SessionMiddleware};
use crate::attempt::{ATTEMPT_WITHIN, AttemptState, Nonce, challenge, local_path, parameter};
use crate::grant::{Asking, Failed};
use crate::journal::{Ending, Noted};
use crate::session::Session;
use crate::{CALLBACK_PATH, CENTRAL_CALLBACK, new_session_id, redirect};

impl SessionMiddleware {
    /// The callback URL.
    fn redirect_uri(&self, origin: &str) -> String {
        match &self.logins.settings().callback_base {
            Some(base) => format!("{}{CENTRAL_CALLBACK}", base.as_str().trim_end_matches('/')),
            None => format!("{origin}{CALLBACK_PATH}"),
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
        let services = Arc::clone(x.conn.services);
        let endpoints = match self.endpoints(&services).await {
            Ok(endpoints) => endpoints,
            Err(failed) => {
                tracing::warn!(endpoint.id = %x.endpoint.id, error = %failed, "sign-in is not possible");
                return self.refuse(x, Problem::LoginProvider);
            }
        };
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        let (keys, entropy) = (&self.logins.keys, &*services.entropy);
        let brought = self.cookies.nonces(&request.headers).find_map(|text| {
            Nonce::open(keys, &request_context.context, text, request_context.now)
        });
        let nonce = match brought {
            Some(nonce) => nonce.renewed(request_context.now),
            None => Nonce::new(entropy, request_context.now),
        };
        let origin = origin(x, request);
        let state = AttemptState::new(entropy, &nonce, &origin, path, request_context.now);
        let sealed = state.seal(keys, entropy, "");
        let cookie = nonce.seal(keys, entropy, &request_context.context);
        let cookie = cookie.and_then(|text| self.cookies.keep_nonce(&text, ATTEMPT_WITHIN));
        let (Some(sealed), Some(cookie)) = (sealed, cookie) else {
            return x.fault();
        };
        let mut url = endpoints.authorize.clone();
        let mut given: Vec<(&str, Cow<'_, str>)> = vec![
            ("response_type", "code".into()),
            ("client_id", request_context.app.id.as_str().into()),
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
        self.stop(x, NoSession::Absent, None);
        x.memory.cookies.push(cookie);
        match redirect(url.as_str()) {
            Some(answer) => Flow::Reply(Box::new(answer)),
            None => x.fault(),
        }
    }

    /// Completes a sign-in when the provider redirects the user back.
    pub(super) async fn finish(
        &self,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        query: &str,
    ) -> Result<Flow, Problem> {
        let Some(request) = x.request else {
            return Ok(Flow::Continue);
        };
        let services = Arc::clone(x.conn.services);
        let keys = &self.logins.keys;
        let text = parameter(query, "state").ok_or(Problem::LoginNoState)?;
        let state =
            AttemptState::open(keys, "", &text, request_context.now).ok_or(Problem::LoginState)?;
        if state.origin != origin(x, request) {
            return Err(Problem::LoginOtherHost);
        }
        let nonce = self
            .cookies
            .nonces(&request.headers)
            .filter_map(|text| {
                Nonce::open(keys, &request_context.context, text, request_context.now)
            })
            .find(|nonce| nonce.is_of(&state))
            .ok_or(Problem::LoginCookie)?;
        let back = format!("{}{}", state.origin, state.path);
        let attempt = self.logins.used.entry(state.id()).or_insert(()).await;
        if !attempt.is_fresh() {
            // The user may have gone back a page.
            let session = self.session(x.endpoint.account, request, request_context);
            session.map_err(|_| Problem::LoginState)?;
            self.stop(x, NoSession::Absent, None);
            let answer = redirect(&back).ok_or(Problem::LoginState)?;
            return Ok(Flow::Reply(Box::new(answer)));
        }
        let endpoints = self.endpoints(&services).await.map_err(|failed| {
            tracing::warn!(endpoint.id = %x.endpoint.id, error = %failed, "sign-in is not possible");
            Problem::LoginProvider
        })?;
        if let Some(error) = parameter(query, "error") {
            let error: String = error.chars().take(100).collect();
            tracing::info!(endpoint.id = %x.endpoint.id, error, "identity provider returned an error");
            return Err(match error.as_str() {
                "server_error" | "temporarily_unavailable" => Problem::LoginProvider,
                _ => Problem::LoginDenied,
            });
        }
        // RFC 9207: prevents that the response of one provider is used as another's.
        let is_others = |issuer: String| issuer != endpoints.issuer && endpoints.keys.is_some();
        if parameter(query, "iss").is_some_and(is_others) {
            return Err(Problem::LoginState);
        }
        let code = parameter(query, "code").ok_or(Problem::LoginState)?;
        let _turn = self
            .logins
            .calls
            .try_acquire(self.options.share)
            .map_err(|_| Problem::LoginBusy)?;
        let asking = Asking {
            services: &services,
            endpoints: &endpoints,
            app: &request_context.app,
            known: self.known(),
            now: request_context.now,
        };
        let redirect_uri = self.redirect_uri(&state.origin);
        let (verifier, token_nonce) = (nonce.verifier(&state), nonce.token_nonce(&state));
        let asked = asking.by_code(&code, &verifier, &token_nonce, &redirect_uri);
        let (person, tokens) = asked.await.map_err(|failed| {
            tracing::warn!(endpoint.id = %x.endpoint.id, error = %failed, "sign-in failed");
            problem_of(&failed)
        })?;
        let user = self.user(x.endpoint.account, &person);
        let began = self.logins.beginning(user, request_context.now);
        let id = new_session_id(&self.logins, &services);
        let mut session = Session::new(id, person, &self.print, tokens, began);
        let sighting = self.sighting(x, request_context, &session);
        session.user_id = match self.logins.note_first(sighting).await {
            Ok(user_id) => user_id,
            Err(Noted::Ended) => return Err(Problem::LoginState),
            Err(_) => return Err(Problem::LoginBusy),
        };
        services.meters.logins.up();
        self.keep(x, request_context, &session)
            .ok_or(Problem::Policy)?;
        self.stop(x, NoSession::Absent, None);
        self.tell_user(x, &session.person);
        let answer = redirect(&back).ok_or(Problem::LoginState)?;
        Ok(Flow::Reply(Box::new(answer)))
    }

    /// Signs a user out.
    pub(super) async fn leave(
        &self,
        x: &mut Exchange<'_>,
        request_context: &RequestContext,
        query: &str,
    ) -> Flow {
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        for sealed in self.cookies.sessions(&request.headers) {
            let Some(session) = Session::open(&self.logins.keys, &request_context.context, &sealed)
            else {
                continue;
            };
            self.end(x.endpoint.account, &session).await;
        }
        let forgotten = self.cookies.forget_session(&request.headers);
        x.memory.cookies.extend(forgotten);
        let path = parameter(query, "redirect_path");
        let answer = match path.as_deref().map(local_path) {
            Some(None) => return self.refuse(x, Problem::LoginPath),
            Some(Some(path)) => redirect(&format!("{}{path}", origin(x, request))),
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

    pub(super) async fn end(&self, account: &Arc<str>, session: &Session) {
        let ending = Ending {
            session: session.id.clone(),
            account: Arc::clone(account),
            user: self.user(account, &session.person),
            until: session.last_end(self.options.spans),
        };
        self.logins.end(ending).await;
    }
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
    let authority = Authority::of(&request.uri, request.headers.get(HOST));
    let authority = authority.map_or("", |authority| authority.text);
    let forwarded = request.headers.get("x-forwarded-proto");
    let is_https = x.conn.info.tls.get().is_some()
        || (x.conn.info.is_trusted && forwarded.is_some_and(|scheme| scheme == "https"));
    let scheme = if is_https { "https" } else { "http" };
    format!("{scheme}://{}", authority.to_ascii_lowercase())
}
