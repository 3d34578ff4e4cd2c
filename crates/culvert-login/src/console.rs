//! The sign-in to the console at an OpenID provider: authorization code with PKCE.
//!
//! The browser keeps a random secret in a cookie while it is at the provider. `state`, the nonce of the ID token and
//! the PKCE verifier derive from it, so the server stores nothing, and a callback is useless in another browser.
//!
//! Control decides who the person is here, and which role it has.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::{Digest, FairPermit, FairPermits, Secret, Share};
use culvert_events::sign_in_parameter::{CODE, NONCE, STATE};
use culvert_policy::services::PolicyServices;
use serde_json::Value as Json;
use subtle::ConstantTimeEq;
use url::Url;

use crate::attempt::{challenge, parameter};
use crate::provider::grant::{App, Asking, Failed};
use crate::provider::{EMAIL_VERIFIED, Endpoints, Issuer, is_secure};

/// Time limit for the person at the provider.
pub const CONSOLE_SIGN_IN_WITHIN: Duration = Duration::from_secs(15 * 60);

/// Maximum number of concurrent sign-ins that wait for the response of the provider to their code. Each source has a share.
const AT_ONCE: usize = 16;
/// Limit of groups of one person.
const GROUPS_MAX: usize = 1024;
/// Limit of the parameters of a callback.
const QUERY_BYTES_MAX: usize = 8 << 10;
/// Limit of the identity that is stored, as OpenID Connect Core 2 limits `sub`.
const SUBJECT_BYTES_MAX: usize = 255;

/// The operator's settings for the sign-in to the console.
#[derive(Clone, Debug)]
pub struct ConsoleOpenId {
    /// The issuer's URL.
    pub issuer_url: Url,
    /// The application at the provider.
    pub client_id: String,
    /// Its secret.
    pub client_secret: Secret,
    /// Scopes besides `openid`.
    pub scopes: Vec<String>,
    /// The claim with the groups of the person.
    pub groups_claim: String,
    /// Whether the issuer may have an `http` URL with a loopback address.
    pub allows_loopback: bool,
}

/// A person at the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Permanent identity of the person: the issuer and its subject.
    pub id: String,
    /// The e-mail address, if the provider says that it is verified.
    pub email: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
}

/// Why a sign-in to the console failed.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleSignInError {
    /// The callback does not belong to a sign-in of this browser.
    #[error("the sign-in has expired, or began in another browser")]
    State,
    /// The provider denied it.
    #[error("the identity provider denied the sign-in")]
    Denied,
    /// The provider did not respond, or its response is invalid.
    #[error("the identity provider is not usable: {0}")]
    Provider(String),
    /// Too many sign-ins are in progress.
    #[error("too many sign-ins are in progress")]
    Busy,
}

/// The OpenID provider of the console.
#[derive(Debug)]
pub struct ConsoleProvider {
    settings: ConsoleOpenId,
    issuer: Issuer,
    services: Arc<PolicyServices>,
    calls: FairPermits,
}

/// The secret of a sign-in, which the browser keeps.
struct Attempt([u8; 32]);

impl Attempt {
    fn read(cookie: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// The attempt of a cookie, if the callback with this query has its state.
    fn of(cookie: &str, query: &str) -> Option<Self> {
        let attempt = Self::read(cookie)?;
        if query.len() > QUERY_BYTES_MAX {
            return None;
        }
        let state = parameter(query, STATE)?;
        let expected = attempt.derived("state");
        bool::from(state.as_bytes().ct_eq(expected.as_bytes())).then_some(attempt)
    }

    fn derived(&self, purpose: &str) -> String {
        let text = format!("console {purpose}");
        URL_SAFE_NO_PAD.encode(Digest::of(&self.0, &text).to_bytes())
    }
}

/// Whether the callback with this query is that of the sign-in with this cookie.
pub fn is_callback_of(cookie: &str, query: &str) -> bool {
    Attempt::of(cookie, query).is_some()
}

impl ConsoleProvider {
    /// The provider, which is asked at the first sign-in. `None` if the issuer's URL is not secure.
    pub fn new(settings: ConsoleOpenId, services: Arc<PolicyServices>) -> Option<Self> {
        let is_usable = is_secure(&settings.issuer_url, settings.allows_loopback);
        let issuer = Issuer::at(settings.issuer_url.clone()).filter(|_| is_usable)?;
        Some(Self {
            settings,
            issuer,
            services,
            calls: FairPermits::new(AT_ONCE),
        })
    }

    async fn endpoints(&self) -> Result<Arc<Endpoints>, ConsoleSignInError> {
        let found = self
            .issuer
            .endpoints(&self.services, self.settings.allows_loopback);
        found
            .await
            .map_err(|error| ConsoleSignInError::Provider(error.to_string()))
    }

    /// Begins a sign-in. Returns the value of the browser's cookie, and where the browser goes. It takes no place: the
    /// metadata of the provider is cached, also that it cannot be fetched.
    ///
    /// # Errors
    ///
    /// The provider cannot be used.
    pub async fn begin(&self, redirect_uri: &str) -> Result<(Secret, Url), ConsoleSignInError> {
        let endpoints = self.endpoints().await?;
        if !endpoints.has_pkce {
            let why = "it does not support PKCE with S256".to_owned();
            return Err(ConsoleSignInError::Provider(why));
        }
        let attempt = Attempt(self.services.entropy.bytes());
        let scopes: Vec<&str> = std::iter::once("openid")
            .chain(self.settings.scopes.iter().map(String::as_str))
            .collect();
        let mut url = endpoints.authorize.clone();
        url.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", &self.settings.client_id),
            ("redirect_uri", redirect_uri),
            ("scope", &scopes.join(" ")),
            (STATE, &attempt.derived("state")),
            (NONCE, &attempt.derived("nonce")),
            ("code_challenge", &challenge(&attempt.derived("verifier"))),
            ("code_challenge_method", "S256"),
        ]);
        Ok((Secret::new(URL_SAFE_NO_PAD.encode(attempt.0)), url))
    }

    /// Completes a sign-in: `cookie` is the browser's, `query` that of the callback, and `share` stands for the client's
    /// network.
    ///
    /// # Errors
    ///
    /// See [`ConsoleSignInError`].
    pub async fn finish(
        &self,
        cookie: &str,
        query: &str,
        redirect_uri: &str,
        share: Share,
    ) -> Result<Identity, ConsoleSignInError> {
        let attempt = Attempt::of(cookie, query).ok_or(ConsoleSignInError::State)?;
        if parameter(query, "error").is_some() {
            return Err(ConsoleSignInError::Denied);
        }
        let code = parameter(query, CODE).ok_or(ConsoleSignInError::State)?;
        let _place = self.permit(share)?;
        let endpoints = self.endpoints().await?;
        if !endpoints.is_response_ours(query) {
            return Err(ConsoleSignInError::State);
        }
        let app = App {
            id: self.settings.client_id.clone(),
            secret: self.settings.client_secret.reveal().to_owned(),
        };
        let asking = Asking {
            services: &self.services,
            share: Share::of_owner(""),
            endpoints: &endpoints,
            app: &app,
            known: None,
            now: self.services.clock.now(),
        };
        let (verifier, nonce) = (attempt.derived("verifier"), attempt.derived("nonce"));
        let claims = asking.claims_by_code(&code, &verifier, &nonce, redirect_uri);
        let (claims, user_info) = claims.await.map_err(|failed| match failed {
            Failed::Refused(_) => ConsoleSignInError::Denied,
            other => ConsoleSignInError::Provider(other.to_string()),
        })?;
        self.identity(&endpoints.issuer, &claims, &user_info)
    }

    /// The person of an ID token, with the data of the provider about it.
    fn identity(
        &self,
        issuer: &str,
        claims: &Json,
        user_info: &Json,
    ) -> Result<Identity, ConsoleSignInError> {
        let subject = claims.get("sub").and_then(Json::as_str).unwrap_or_default();
        if subject.is_empty() || subject.len() > SUBJECT_BYTES_MAX {
            let why = "it returned no usable user ID".to_owned();
            return Err(ConsoleSignInError::Provider(why));
        }
        // The address must be said to be verified by the one who says it.
        let email = [claims, user_info].into_iter().find_map(|said| {
            let is_verified = said.get(EMAIL_VERIFIED) == Some(&Json::Bool(true));
            let email = said.get("email")?.as_str()?.trim();
            (is_verified && !email.is_empty()).then(|| email.to_owned())
        });
        let claim = self.settings.groups_claim.as_str();
        let groups = [claims, user_info]
            .into_iter()
            .find_map(|said| said.get(claim));
        let groups = match groups {
            Some(Json::Array(groups)) => groups
                .iter()
                .filter_map(|group| group.as_str().map(str::to_owned))
                .take(GROUPS_MAX)
                .collect(),
            Some(Json::String(group)) => vec![group.clone()],
            _ => Vec::new(),
        };
        Ok(Identity {
            id: format!("{issuer} {subject}"),
            email,
            groups,
        })
    }

    fn permit(&self, share: Share) -> Result<FairPermit, ConsoleSignInError> {
        self.calls
            .try_acquire(share)
            .map_err(|_| ConsoleSignInError::Busy)
    }
}
