//! Sign-ins to the console without an API key: by the link of an invitation, and at an OpenID provider.
//!
//! ```text
//! POST /console/invitation         {"token": "…"} accepts an invitation: returns the session and an API key
//! POST /console/invitation/look    {"token": "…"} the person and the role of an invitation; changes nothing
//! GET  /console/sign-in/methods    the name of the provider, if there is one
//! GET  /console/sign-in            to the provider
//! GET  /console/sign-in/callback   back from it, to the console
//! ```
//!
//! While a browser is at the provider, it keeps a secret in a cookie. That one is `SameSite=Lax`: the provider's
//! redirect is a navigation from another site. A failed sign-in returns to the console with the number of its code.
//!
//! Control decides who comes in.

use std::time::Duration;

use culvert_base::{Class, Refusal, Secret, code};
use culvert_control::{CONSOLE_SESSION_MAX, CONSOLE_SIGN_IN_WITHIN, ConsoleSession, PendingSignIn};
use http::header::{CACHE_CONTROL, LOCATION, REFERRER_POLICY, RETRY_AFTER, SET_COOKIE};
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::json;

use crate::console::{
    SIGN_IN_BYTES_MAX, check_page, cookie, cookie_of, needs_tls, set_cookie, view,
};
use crate::{Api, Arrival};
use culvert_api_http::access::limits::{Failures, Source};
use culvert_api_http::response::answer::{Body, NO_STORE};
use culvert_api_http::response::problem::Problem;

const GET: HeaderValue = HeaderValue::from_static("GET");
const POST: HeaderValue = HeaderValue::from_static("POST");

/// The paths of this module.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Invitation,
    Look,
    Methods,
    Begin,
    Callback,
}

impl Step {
    /// The step of a path behind `/console`.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            // Browsers open the page of the console at this path, and the page sends the token.
            "/invitation" => Some(Self::Invitation),
            "/invitation/look" => Some(Self::Look),
            "/sign-in/methods" => Some(Self::Methods),
            "/sign-in" => Some(Self::Begin),
            "/sign-in/callback" => Some(Self::Callback),
            _ => None,
        }
    }
}

/// Name and attributes of the cookie of a sign-in, beside those of the session's.
fn sign_in_cookie(base: &str) -> Option<(&'static str, &'static str)> {
    let (name, _) = cookie_of(base)?;
    Some(match name.starts_with("__Host-") {
        true => (
            "__Host-culvert-sign-in",
            "Path=/; Secure; HttpOnly; SameSite=Lax",
        ),
        false => (
            "culvert-sign-in",
            "Path=/console/sign-in; HttpOnly; SameSite=Lax",
        ),
    })
}

fn to(location: &str) -> Result<Response<Body>, Problem> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    let location = HeaderValue::try_from(location)
        .map_err(|_| Problem::broken("writing the URL of an identity provider"))?;
    headers.insert(LOCATION, location);
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

impl Api {
    /// Runs a step of a sign-in.
    pub(crate) async fn console_sign_in(
        &self,
        step: Step,
        mut arrival: Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        let method = &arrival.parts.method;
        let base = self.base(arrival.parts, arrival.ends);
        let body = match step {
            Step::Invitation | Step::Look if *method == Method::POST => {
                let checked = check_page(arrival.parts, &base);
                checked.inspect_err(|refusal| self.note_page(refusal, &arrival))?;
                arrival.read_up_to(SIGN_IN_BYTES_MAX).await?
            }
            Step::Invitation | Step::Look => return Err(Problem::wrong_method(POST)),
            _ if *method != Method::GET => return Err(Problem::wrong_method(GET)),
            _ => None,
        };
        let source = Source::of(self.client(&arrival));
        let Some(_entered) = self.turnstile.enter(source).await else {
            return Err(self.full());
        };
        let token = body.as_ref().and_then(|body| body.get("token")?.as_str());
        let running = async {
            match step {
                Step::Invitation => self.accept(token, &base, &arrival).await,
                Step::Look => self.look_at_invitation(token, &arrival).await,
                Step::Methods => {
                    let provider = self.control.identity.console_provider();
                    let methods = json!({"openid": provider.map(|name| json!({"name": name}))});
                    Ok(crate::json(
                        StatusCode::OK,
                        methods.to_string().into(),
                        true,
                    ))
                }
                Step::Begin => self.begin(&base).await,
                Step::Callback => self.callback(&base, &arrival).await,
            }
        };
        tokio::time::timeout_at(arrival.deadline, running)
            .await
            .unwrap_or_else(|_late| Err(Problem::unavailable("The server is busy; try again.")))
    }

    async fn accept(
        &self,
        token: Option<&str>,
        base: &str,
        arrival: &Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        let (name, attributes) = cookie_of(base).ok_or_else(needs_tls)?;
        let token = given(token)?;
        let accepted = self
            .control
            .identity
            .accept_invitation(token, self.console_origin(arrival));
        let accepted = accepted.await;
        let accepted = accepted.map_err(|error| self.failed(error.into(), arrival));
        let accepted =
            accepted.inspect_err(|problem| self.note_failed_sign_in(problem, arrival))?;
        let mut body = view(&accepted.session);
        body["token"] = accepted.token.reveal().into();
        let mut response = crate::json(StatusCode::CREATED, body.to_string().into(), true);
        let cookie = accepted.cookie.reveal();
        if let Some(set) = set_cookie(name, cookie, attributes, CONSOLE_SESSION_MAX) {
            response.headers_mut().insert(SET_COOKIE, set);
        }
        Ok(response)
    }

    /// The person and the role of an invitation. A wrong token counts like one that is used: guesses have one limit.
    async fn look_at_invitation(
        &self,
        token: Option<&str>,
        arrival: &Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        let looking = self
            .control
            .identity
            .invitation(given(token)?, self.client(arrival));
        let invited = looking
            .await
            .map_err(|error| self.failed(error.into(), arrival));
        let invited = invited.inspect_err(|problem| self.note_failed_sign_in(problem, arrival))?;
        let body = json!({
            "subject": invited.email,
            "role": invited.role.name(),
            "expires_at": invited.until.to_string(),
            "invited_by": Some(invited.by).filter(|by| !by.is_empty()),
        });
        let mut response = crate::json(StatusCode::OK, body.to_string().into(), true);
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        Ok(response)
    }

    async fn begin(&self, base: &str) -> Result<Response<Body>, Problem> {
        let (name, attributes) = sign_in_cookie(base).ok_or_else(needs_tls)?;
        let beginning = self.control.identity.begin_console_sign_in(base);
        match beginning.await {
            Ok((secret, url)) => {
                let mut response = to(url.as_str())?;
                let set = set_cookie(name, secret.reveal(), attributes, CONSOLE_SIGN_IN_WITHIN);
                if let Some(set) = set {
                    response.headers_mut().insert(SET_COOKIE, set);
                }
                Ok(response)
            }
            Err(error) => back(error.into()),
        }
    }

    async fn callback(&self, base: &str, arrival: &Arrival<'_>) -> Result<Response<Body>, Problem> {
        let (name, attributes) = sign_in_cookie(base).ok_or_else(needs_tls)?;
        let Some(kept) = cookie(&arrival.parts.headers, name) else {
            // No sign-in began in this browser, so none failed: any page can send a browser here.
            return back(Refusal::of(code::CONSOLE_SIGN_IN_FAILED).into());
        };
        let query = arrival.parts.uri.query().unwrap_or_default();
        let identity = &self.control.identity;
        let pending = match identity.pending_console_sign_in(kept, query) {
            Ok(pending) => pending,
            // Any page can make up such a callback too. The sign-in of this browser goes on.
            Err(refusal) => return back(refusal.into()),
        };
        let mut is_over = false;
        let finishing = self.finish(&pending, base, arrival, &mut is_over);
        let mut response = match finishing.await {
            Ok((secret, _)) => {
                let mut response = to("/console/")?;
                let session = cookie_of(base).and_then(|(name, attributes)| {
                    set_cookie(name, secret.reveal(), attributes, CONSOLE_SESSION_MAX)
                });
                if let Some(set) = session {
                    response.headers_mut().append(SET_COOKIE, set);
                }
                response
            }
            Err(problem) => {
                self.note_failed_sign_in(&problem, arrival);
                back(self.failed(problem, arrival))?
            }
        };
        // One that was refused before it could ask the provider can return once more.
        if is_over && let Some(set) = set_cookie(name, "", attributes, Duration::ZERO) {
            response.headers_mut().append(SET_COOKIE, set);
        }
        Ok(response)
    }

    /// Completes a sign-in. `is_over` becomes true if the callback cannot come once more.
    async fn finish(
        &self,
        pending: &PendingSignIn,
        base: &str,
        arrival: &Arrival<'_>,
        is_over: &mut bool,
    ) -> Result<(Secret, ConsoleSession), Problem> {
        let identity = &self.control.identity;
        let (source, now) = (Source::of(self.client(arrival)), self.started_at.elapsed());
        self.failed_callbacks.check(source, now).map_err(too_many)?;
        let mut counted = CountedCallback {
            failures: &self.failed_callbacks,
            source,
            now,
            has_failed: true,
        };
        let query = arrival.parts.uri.query().unwrap_or_default();
        let origin = self.console_origin(arrival);
        let caller = identity.finish_console_sign_in(pending, query, base, &origin);
        let caller = caller.await.map_err(Problem::from).inspect_err(|problem| {
            // Without a place the provider was not asked.
            counted.has_failed = problem.refusal().class != Class::TooMany;
            *is_over = counted.has_failed;
        })?;
        *is_over = true;
        self.count_sign_in(&caller.owner_id)?;
        let signed_in = identity.sign_in(caller, origin.address).await?;
        counted.has_failed = false;
        Ok(signed_in)
    }
}

/// A callback that may ask the provider. It counts as failed when it is dropped, for whatever reason: a client that leaves
/// while the provider is asked too.
struct CountedCallback<'a> {
    failures: &'a Failures,
    source: Source,
    /// Since the start of the API.
    now: Duration,
    has_failed: bool,
}

impl Drop for CountedCallback<'_> {
    fn drop(&mut self) {
        if self.has_failed {
            // Above the limit, the next one is refused before it asks.
            self.failures
                .count(self.source, self.now)
                .unwrap_or_default();
        }
    }
}

/// The token of an invitation in a body.
fn given(token: Option<&str>) -> Result<&str, Refusal> {
    let token = token.ok_or_else(|| {
        let why = "`token` must be the token of an invitation.";
        Refusal::new(code::BODY_FIELD_INVALID, why).with("field", "token")
    });
    Ok(token?.trim())
}

fn too_many(wait: Duration) -> Problem {
    let why = "Too many sign-ins failed; try again later.";
    Problem::too_many(wait, why)
}

/// Returns a browser to the console's page, which says why the sign-in failed. Without a provider, there is no such
/// page.
fn back(problem: Problem) -> Result<Response<Body>, Problem> {
    let refusal = problem.refusal();
    if refusal.class == Class::NotFound {
        return Err(problem);
    }
    let number = refusal.code.map_or(0, culvert_base::Code::number);
    let mut response = to(&format!("/console/?refused={number}"))?;
    if let Some(seconds) = problem.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    Ok(response)
}
