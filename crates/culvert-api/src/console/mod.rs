//! The web console at `/console/`: its files, its sessions, and the API with cookie authentication.
//!
//! ```text
//! GET    /                      to /console/, for a browser that opens it
//! GET    /console/…             the console's files; its page for every other path
//! GET    /console/ca.pem        the certificate of the installation's CA, for agents and clients to trust
//! any    /console/sign-in…      see `console_sign_in`
//! POST   /console/session       {"token": "…"} or {"link": "…"} signs in: returns the session and sets its cookie
//! GET    /console/session       the session
//! DELETE /console/session       signs out
//! any    /console/api/…         the management API, by cookie
//! ```
//!
//! Browsers send a cookie with every request, even if a foreign page caused the request. Four measures exclude
//! foreign pages: the cookie is valid only on these paths; it is `SameSite=Strict`; every call needs a header that a
//! page of another origin cannot send without a preflight request, which is rejected; and an `Origin` must be the
//! API's own.
//!
//! The cookie is `Secure`. Without TLS it is set only on a loopback host, where it cannot be intercepted.
//!
//! Control defines the lifetime of sessions. The crate `culvert-console` contains the files.

pub(crate) mod console_sign_in;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Class, Refusal, Secret, code};
use culvert_console::File;
use culvert_control::{CONSOLE_SESSION_MAX, CallContext, ConsoleSession, LinkUse, Origin, Via};
use http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    COOKIE, ETAG, IF_NONE_MATCH, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::access::auth;
use crate::console::console_sign_in::Step;
use crate::{Api, Arrival};
use culvert_api_http::access::cors;
use culvert_api_http::access::limits::{Entered, Source};
use culvert_api_http::response::answer::{Body, NO_STORE};
use culvert_api_http::response::coding;
use culvert_api_http::response::problem::Problem;

const PREFIX: &str = "/console";
/// Required header of every call with the cookie. Its value does not matter.
const BY_CONSOLE: HeaderName = HeaderName::from_static("x-culvert-console");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// The Content-Security-Policy: only own files and calls to the own origin, without inline code and frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const ANOTHER_ORIGIN: &str = "The console session can only be used by pages of the same origin.";
/// Bytes of the body of a sign-in.
pub(crate) const SIGN_IN_BYTES_MAX: usize = 4 << 10;
/// The operation of refused requests of the console's own paths, in events.
const CONSOLE: &str = "console";
/// Rate and burst of sign-ins of an owner, with its keys or at the OpenID provider. Each makes events.
pub(crate) const SIGN_INS_EVERY: Duration = Duration::from_secs(6);
pub(crate) const SIGN_INS_AT_ONCE: u32 = 20;
/// Rate and burst of failed callbacks of an address, which many people may share. Each belongs to a sign-in that began here,
/// and may have asked the provider. Who only begins sign-ins, or completes them, is not counted.
pub(crate) const FAILED_CALLBACKS_EVERY: Duration = Duration::from_secs(1);
pub(crate) const FAILED_CALLBACKS_AT_ONCE: u32 = 100;
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
const GET_HEAD: HeaderValue = HeaderValue::from_static("GET, HEAD");
/// Name and attributes of the session cookie behind TLS, and on loopback hosts without it.
const SECURE: (&str, &str) = (
    "__Host-culvert",
    "Path=/; Secure; HttpOnly; SameSite=Strict",
);
const CLEAR: (&str, &str) = ("culvert", "Path=/console; HttpOnly; SameSite=Strict");
/// Of files that were asked for with their build: another build has another address.
const FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// The meaning of a path to the console.
pub(crate) enum Located<'a> {
    /// A path outside of the console.
    Elsewhere,
    /// The root path, opened in a browser.
    Root,
    /// The path of an API operation with cookie authentication.
    Api(&'a str),
    Session,
    /// The certificate of the installation's CA. It is public: every server certificate is signed with it.
    Ca,
    /// A step of a sign-in without an API key.
    SignIn(Step),
    /// The name of a file. Unknown names return the console's page.
    File(&'a str),
}

/// Whether a path belongs to the console.
pub(crate) fn has(path: &str) -> bool {
    path.strip_prefix(PREFIX)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a path of the console has `HEAD` beside `GET`: all but those of API operations, sessions and sign-ins.
pub(crate) fn serves_head(path: &str) -> bool {
    let is_file = |rest: &str| {
        rest != "/session" && !rest.starts_with("/api/") && !rest.starts_with("/sign-in")
    };
    has(path) && path.strip_prefix(PREFIX).is_some_and(is_file)
}

/// The path of the API operation that a path of the console names.
pub(crate) fn api_path(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(PREFIX)?.strip_prefix("/api")?;
    rest.starts_with('/').then_some(rest)
}

pub(crate) fn locate(parts: &Parts) -> Located<'_> {
    let path = parts.uri.path();
    if path == "/" && is_opened(parts) {
        return Located::Root;
    }
    let Some(rest) = path.strip_prefix(PREFIX).filter(|_| has(path)) else {
        return Located::Elsewhere;
    };
    match rest.strip_prefix("/api").filter(|api| api.starts_with('/')) {
        Some(api) => Located::Api(api),
        None if rest == "/session" => Located::Session,
        None if rest == "/ca.pem" => Located::Ca,
        // The page of an invitation has the path to which it sends the token.
        None if rest == "/invitation" && parts.method == Method::GET => Located::File(""),
        None if Step::of(rest).is_some() => {
            Step::of(rest).map_or(Located::File(""), Located::SignIn)
        }
        None => Located::File(rest.trim_start_matches('/')),
    }
}

/// Whether a browser opens the path as a page.
fn is_opened(parts: &Parts) -> bool {
    let accepts = parts.headers.get(ACCEPT).map(HeaderValue::as_bytes);
    parts.method == Method::GET
        && !parts.headers.contains_key(AUTHORIZATION)
        && accepts.is_some_and(|types| types.starts_with(b"text/html"))
}

pub(crate) fn redirect() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_static("/console/"));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    response
}

/// Returns a file of the console, or its page.
pub(crate) fn file(parts: &Parts, name: &str) -> Result<Response<Body>, Problem> {
    if parts.method != Method::GET {
        return Err(Problem::wrong_method(GET_HEAD));
    }
    if parts.uri.path() == PREFIX {
        return Ok(redirect());
    }
    // A page of the version before must not get parts of this one.
    let build = parts.uri.query().and_then(|query| query.strip_prefix("v="));
    let is_of_build = build == Some(culvert_console::build());
    let file = match culvert_console::find(name) {
        Some(_) if name.starts_with("assets/") && build.is_some() && !is_of_build => {
            return Err(Problem::unknown_path(parts.uri.path()));
        }
        Some(file) => file,
        // Paths of the console's pages return the page; missing files are an error.
        None if name.starts_with("assets/") => {
            return Err(Problem::unknown_path(parts.uri.path()));
        }
        None if has_cookie(&parts.headers) => culvert_console::page_with_session(),
        None => culvert_console::page(),
    };
    let mut response = answer(file, &parts.headers);
    let headers = response.headers_mut();
    if file.name.starts_with("assets/") && is_of_build {
        headers.insert(CACHE_CONTROL, FOREVER);
    }
    if !file.name.starts_with("assets/") {
        headers.insert(VARY, HeaderValue::from_static("accept-encoding, cookie"));
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Scripts, styles and fonts are under the policy of their page, and over a slow line each byte of the first load counts.
    if !file.name.starts_with("assets/") || file.media_type.starts_with("image/") {
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, "no-referrer"),
            (OPENER_POLICY, "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    Ok(response)
}

/// A file for a client that sent `asked`: empty if it has the file, else compressed if it accepts that.
pub(crate) fn answer(file: &'static File, asked: &HeaderMap) -> Response<Body> {
    let is_known = asked
        .get(IF_NONE_MATCH)
        .is_some_and(|tag| tag.as_bytes() == file.tag().as_bytes());
    let mut response = match is_known {
        true => Response::new(Body::empty()),
        false => packed(file, asked),
    };
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, file.media_type),
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept-encoding"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(file.tag()) {
        headers.insert(ETAG, tag);
    }
    response
}

/// The content of a file, compressed if the client accepts that.
fn packed(file: &'static File, headers: &HeaderMap) -> Response<Body> {
    let coding = coding::negotiated(headers, file.codings());
    let mut response = Response::new(Body::whole(file.encoded(coding).into()));
    if let Some(coding) = coding {
        let coding = HeaderValue::from_static(coding);
        response.headers_mut().insert(CONTENT_ENCODING, coding);
    }
    response
}

/// Whether a browser sends the cookie of a session, which may have ended. It decides only which files are loaded ahead.
fn has_cookie(headers: &HeaderMap) -> bool {
    [SECURE, CLEAR]
        .iter()
        .any(|(name, _)| cookie(headers, name).is_some())
}

/// How a call came that the console made, as its session shows.
pub(crate) fn by_console(context: &CallContext) -> Arc<CallContext> {
    Arc::new(CallContext {
        via: Some(Via::Console),
        ..context.clone()
    })
}

/// Rejects calls that a page of another origin may have made.
pub(crate) fn check_page(parts: &Parts, base: &str) -> Result<(), Refusal> {
    let headers = &parts.headers;
    let is_foreign = headers
        .get(ORIGIN)
        .is_some_and(|origin| !cors::is_of(origin, base));
    let is_of_other_site = headers
        .get(SEC_FETCH_SITE)
        .is_some_and(|site| site != "same-origin");
    // Browsers send the origin with every call that may change something.
    let lacks_origin = parts.method != Method::GET && !headers.contains_key(ORIGIN);
    if is_foreign || is_of_other_site || lacks_origin || !headers.contains_key(BY_CONSOLE) {
        return Err(Refusal::uncoded(Class::Forbidden, ANOTHER_ORIGIN));
    }
    Ok(())
}

/// Name and attributes of the session cookie for this base URL. Without TLS, only loopback hosts have one.
pub(crate) fn cookie_of(base: &str) -> Option<(&'static str, &'static str)> {
    if base.starts_with("https://") {
        return Some(SECURE);
    }
    let host = base.strip_prefix("http://")?.split('/').next()?;
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next()?,
        None => host.split(':').next()?,
    };
    let is_loopback = name == "localhost"
        || name.ends_with(".localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback());
    is_loopback.then_some(CLEAR)
}

/// The value of the cookie with this name. `None` unless there is exactly one.
pub(crate) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).iter();
    let mut values = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter_map(|(key, value)| (key == name).then_some(value));
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

pub(crate) fn set_cookie(
    name: &str,
    value: &str,
    attributes: &str,
    age: Duration,
) -> Option<HeaderValue> {
    let text = format!("{name}={value}; {attributes}; Max-Age={}", age.as_secs());
    let mut header = HeaderValue::try_from(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

impl Api {
    /// The certificate of the installation's CA, as a file.
    pub(crate) fn ca(&self, parts: &Parts) -> Result<Response<Body>, Problem> {
        if parts.method != Method::GET {
            return Err(Problem::wrong_method(GET_HEAD));
        }
        let pem = self.control.certificates.ca_pem().as_bytes().to_vec();
        let mut response = Response::new(Body::whole(pem.into()));
        let headers = response.headers_mut();
        for (name, value) in [
            (CONTENT_TYPE, "application/x-pem-file"),
            (CACHE_CONTROL, "no-cache"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Ok(response)
    }

    /// The session cookie of a request.
    pub(crate) fn session_cookie<'a>(&self, arrival: &Arrival<'a>) -> Option<&'a str> {
        let (name, _) = cookie_of(&self.base(arrival.parts, arrival.ends))?;
        cookie(&arrival.parts.headers, name)
    }

    /// The session of a request's cookie.
    pub(crate) async fn session_of(
        &self,
        arrival: &Arrival<'_>,
    ) -> Result<ConsoleSession, Problem> {
        let Some(cookie) = self.session_cookie(arrival) else {
            return Err(Refusal::new(code::CREDENTIAL_MISSING, "Sign in to the console.").into());
        };
        let client = self.client(arrival);
        let found = self.control.identity.console_session(cookie, client);
        let found = tokio::time::timeout_at(arrival.deadline, found).await;
        let problem = match found {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(error)) => Problem::from(error),
            Err(_late) => return Err(Problem::unavailable("The server is busy; try again.")),
        };
        Err(self.failed(problem, arrival))
    }

    /// Signs in, returns the session, or signs out.
    pub(crate) async fn session(
        &self,
        mut arrival: Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        let base = self.base(arrival.parts, arrival.ends);
        let checked = check_page(arrival.parts, &base);
        checked.inspect_err(|refusal| self.note_page(refusal, &arrival))?;
        // Before it takes a place: its sender is not known yet, and may take long.
        let body = arrival.read_up_to(SIGN_IN_BYTES_MAX).await?;
        let source = Source::of(self.client(&arrival));
        let Some(entered) = self.turnstile.enter(source).await else {
            return Err(self.full());
        };
        match arrival.parts.method {
            Method::GET => {
                let session = self.session_of(&arrival).await;
                let session = session.inspect_err(|problem| {
                    // The console asks without a cookie whether it is signed in.
                    if self.session_cookie(&arrival).is_some() {
                        self.note_page(problem.refusal(), &arrival);
                    }
                })?;
                Ok(shown(&session))
            }
            Method::POST => {
                let signed_in = self.sign_in(body, &base, &arrival, entered).await;
                signed_in.inspect_err(|problem| self.note_failed_sign_in(problem, &arrival))
            }
            Method::DELETE => self.sign_out(&base, &arrival).await,
            _ => Err(Problem::wrong_method(METHODS)),
        }
    }

    async fn sign_in(
        &self,
        body: Option<Value>,
        base: &str,
        arrival: &Arrival<'_>,
        entered: Entered,
    ) -> Result<Response<Body>, Problem> {
        let Some((name, attributes)) = cookie_of(base) else {
            return Err(needs_tls().into());
        };
        let given = |name| body.as_ref().and_then(|body| body.get(name)?.as_str());
        let (token, link) = (given("token"), given("link"));
        let beginning = async {
            let authenticated = match (token, link) {
                (Some(token), None) => {
                    let header = Secret::new(format!("Bearer {}", token.trim()));
                    let caller = self
                        .control
                        .identity
                        .authenticate(Some(header.reveal()))
                        .await;
                    caller.map(|caller| (caller, None))
                }
                (None, Some(link)) => {
                    let used = self.control.identity.use_console_link(link).await;
                    used.map(|(caller, link_use)| (caller, Some(link_use)))
                }
                _ => {
                    let why = "`token` must be the token of an API key.";
                    let refusal = Refusal::new(code::BODY_FIELD_INVALID, why);
                    return Err(refusal.with("field", "token").into());
                }
            };
            let (mut caller, link_use) =
                authenticated.map_err(|error| self.failed(error.into(), arrival))?;
            caller.context = Some(by_console(&arrival.context));
            let owner_id = caller.owner_id.clone();
            // A key that may not be used from here takes nothing from its owner's share.
            let admitted = self.control.identity.admit(&caller, self.client(arrival));
            admitted.map_err(|refusal| self.failed(refusal.into(), arrival))?;
            self.count_sign_in(&owner_id)?;
            let Some(_place) = self.turnstile.enter_owner(entered, &owner_id).await else {
                return Err(self.full());
            };
            let begun = self
                .control
                .identity
                .sign_in(caller, self.client(arrival))
                .await;
            let begun = begun.map_err(|error| self.failed(error.into(), arrival))?;
            // A refused sign-in leaves the link valid.
            link_use.into_iter().for_each(LinkUse::complete);
            Ok(begun)
        };
        let begun = tokio::time::timeout_at(arrival.deadline, beginning).await;
        let (cookie, session) = begun
            .unwrap_or_else(|_late| Err(Problem::unavailable("The server is busy; try again.")))?;
        let mut response = shown(&session);
        if let Some(set) = set_cookie(name, cookie.reveal(), attributes, CONSOLE_SESSION_MAX) {
            response.headers_mut().insert(SET_COOKIE, set);
        }
        Ok(response)
    }

    async fn sign_out(&self, base: &str, arrival: &Arrival<'_>) -> Result<Response<Body>, Problem> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let Some((name, attributes)) = cookie_of(base) else {
            return Ok(response);
        };
        if let Some(cookie) = cookie(&arrival.parts.headers, name) {
            let origin = self.console_origin(arrival);
            let ending = self.control.identity.sign_out(cookie, origin);
            let ended = tokio::time::timeout_at(arrival.deadline, ending).await;
            ended.unwrap_or_else(|_late| {
                Err(culvert_base::Fault::bare("ending a console session in time").into())
            })?;
        }
        if let Some(set) = set_cookie(name, "", attributes, Duration::ZERO) {
            response.headers_mut().insert(SET_COOKIE, set);
        }
        Ok(response)
    }

    /// Counts a sign-in of an owner of keys or a user.
    pub(crate) fn count_sign_in(&self, owner_id: &str) -> Result<(), Problem> {
        let counted = self.sign_ins.count(owner_id, self.started_at.elapsed());
        counted.map_err(|wait| {
            let why = "You signed in too often; try again later.";
            Problem::too_many(wait, why)
        })
    }

    /// Notes a refused sign-in, for the audit log.
    pub(crate) fn note_failed_sign_in(&self, problem: &Problem, arrival: &Arrival<'_>) {
        let origin = self.origin(arrival);
        self.control.note_failed_sign_in(&origin, problem.refusal());
    }

    /// Where a request of a session came from, or one that begins or ends one.
    pub(crate) fn console_origin(&self, arrival: &Arrival<'_>) -> Origin {
        Origin {
            context: Some(by_console(&arrival.context)),
            ..self.origin(arrival)
        }
    }

    /// Notes a refused request of the console's own paths, for the audit log.
    pub(crate) fn note_page(&self, refusal: &Refusal, arrival: &Arrival<'_>) {
        let origin = self.origin(arrival);
        self.control.note_refusal(&origin, (CONSOLE, None), refusal);
    }

    /// Counts a failed attempt with a wrong token or cookie.
    pub(crate) fn failed(&self, problem: Problem, arrival: &Arrival<'_>) -> Problem {
        let source = Source::of(self.client(arrival));
        let now = self.started_at.elapsed();
        auth::counted(problem, self.failures.as_ref(), source, now)
    }
}

/// The refusal of a sign-in where a cookie could be intercepted.
pub(crate) fn needs_tls() -> Refusal {
    let why = "The console needs HTTPS, or a loopback address. Put TLS in front of the API \
               and set `api.trusted_proxies`, or open an SSH tunnel to it.";
    Refusal::uncoded(Class::Forbidden, why)
}

/// A session as the console's page reads it.
pub(crate) fn view(session: &ConsoleSession) -> Value {
    let caller = &session.caller;
    let key_id = Some(&caller.key_id).filter(|id| !id.is_empty());
    json!({
        "key_id": key_id,
        "owner_id": caller.owner_id,
        "subject": caller.subject,
        "role": caller.role.name(),
        "expires_at": session.expires_at.to_string(),
    })
}

fn shown(session: &ConsoleSession) -> Response<Body> {
    let body = view(session);
    let mut response = crate::json(StatusCode::OK, body.to_string().into(), true);
    response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    response
}
