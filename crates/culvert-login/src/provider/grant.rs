//! Requests to a provider that do not pass through the browser: exchanging codes and refresh tokens for tokens (RFC
//! 6749 4.1.3, 6), and user data.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use culvert_base::{Share, Timestamp};
use culvert_policy::documents::FETCH_WITHIN;
use culvert_policy::jws::{self, Expected, KeySet, PublicKey, TOKEN_BYTES_MAX, Token, Unbelieved};
use culvert_policy::services::{Call, PolicyServices};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, response};
use serde_json::Value as Json;
use url::Url;
use url::form_urlencoded::{Serializer, byte_serialize};

use crate::journal::Person;
use crate::provider::{BuiltInProvider, EMAIL_VERIFIED, Endpoints, standard_person};
use crate::session::Tokens;

/// Judges the claims of a token by the keys of its issuer.
type Judge = fn(&[PublicKey], &Token<'_>, &Expected, Timestamp) -> Result<Json, Unbelieved>;

const CLIENT_ID: HeaderName = HeaderName::from_static("client-id");

/// The OAuth client that users sign in to.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// Why a sign-in or a refresh failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failed {
    /// The provider denied the request.
    #[error("the provider denied the sign-in: {0}")]
    Refused(String),
    /// The provider did not respond, or its response is invalid.
    #[error("the request to the provider failed: {0}")]
    Away(String),
    /// The ID token is invalid.
    #[error("the ID token is invalid: {0}")]
    Token(&'static str),
    /// The response contains no user id.
    #[error("the provider returned no user ID")]
    NoUser,
    /// The response contains no verified e-mail address.
    #[error("the provider returned no verified e-mail address")]
    NoEmail,
}

/// Sends requests to a provider on behalf of an application.
pub(crate) struct Asking<'a> {
    pub(crate) services: &'a PolicyServices,
    /// The share of its owner in lookups of names.
    pub(crate) share: Share,
    pub(crate) endpoints: &'a Endpoints,
    pub(crate) app: &'a App,
    /// `None` for an OpenID issuer.
    pub(crate) known: Option<&'static BuiltInProvider>,
    pub(crate) now: Timestamp,
}

impl Asking<'_> {
    /// Exchanges a code for tokens, and requests the user's data.
    pub(crate) async fn by_code(
        &self,
        code: &str,
        verifier: &str,
        nonce: &str,
        redirect_uri: &str,
    ) -> Result<(Person, Tokens), Failed> {
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
        ];
        if self.endpoints.has_pkce {
            form.push(("code_verifier", verifier));
        }
        let tokens = self.tokens(&form).await?;
        let claims = match &self.endpoints.keys {
            Some(keys) => self.claims(keys, &tokens.identity, nonce).await?,
            None => Json::Null,
        };
        let (person, _) = self.person(&tokens.access, &claims).await?;
        Ok((person, tokens))
    }

    /// Exchanges a code at an OpenID issuer. Returns the claims of the ID token, and the user's data or `null`.
    pub(crate) async fn claims_by_code(
        &self,
        code: &str,
        verifier: &str,
        nonce: &str,
        redirect_uri: &str,
    ) -> Result<(Json, Json), Failed> {
        let keys = self.endpoints.keys.as_ref();
        let keys = keys.ok_or(Failed::Token("the provider issues none"))?;
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier),
        ];
        let tokens = self.tokens(&form).await?;
        let claims = self.claims(keys, &tokens.identity, nonce).await?;
        let Some(url) = &self.endpoints.userinfo else {
            return Ok((claims, Json::Null));
        };
        let profile = self.get(url, bearer(&tokens.access)?).await?;
        // OpenID Connect Core 5.3.2: data of another user must not be used.
        match profile.get("sub") == claims.get("sub") {
            true => Ok((claims, profile)),
            false => Err(Failed::NoUser),
        }
    }

    /// Requests the user's data again, and refreshes expired tokens. `None` if this is not possible with the tokens
    /// at hand.
    pub(crate) async fn again(
        &self,
        before: &Tokens,
        is_expired: bool,
        user: &Person,
    ) -> Result<Option<(Person, Tokens)>, Failed> {
        let mut tokens = before.clone();
        if is_expired || before.access.is_empty() {
            if before.refresh.is_empty() {
                return Ok(None);
            }
            let form = [
                ("grant_type", "refresh_token"),
                ("refresh_token", before.refresh.as_str()),
            ];
            tokens = self.tokens(&form).await?;
            // Keeps the tokens that the response does not replace.
            if tokens.refresh.is_empty() {
                tokens.refresh.clone_from(&before.refresh);
            }
            tokens.identity.clone_from(&before.identity);
        }
        if self.endpoints.userinfo.is_none() {
            return Ok(None);
        }
        let (mut person, is_judged) = self.person(&tokens.access, &Json::Null).await?;
        // Perhaps only the ID token of the sign-in said whether the address is verified. Then the address stays.
        if self.known.is_none() && !is_judged {
            person.email.clone_from(&user.email);
        }
        if person.provider_user_id != user.provider_user_id {
            return Err(Failed::Refused(
                "the tokens belong to another user".to_owned(),
            ));
        }
        Ok(Some((person, tokens)))
    }

    async fn tokens(&self, form: &[(&str, &str)]) -> Result<Tokens, Failed> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let media = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(CONTENT_TYPE, media);
        let App { id, secret } = self.app;
        if self.endpoints.takes_basic {
            // RFC 6749 2.3.1: both values are encoded before they are joined.
            let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            let pair = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
            let value = HeaderValue::try_from(format!("Basic {pair}")).map_err(away)?;
            headers.insert(AUTHORIZATION, value);
        }
        let named = [("client_id", id.as_str()), ("client_secret", secret)];
        let named = named.iter().filter(|_| !self.endpoints.takes_basic);
        let body = Serializer::new(String::new())
            .extend_pairs(form.iter().chain(named))
            .finish();
        let body = Bytes::from(body);
        let (status, body) = self
            .ask(Method::POST, &self.endpoints.token, headers, body)
            .await?;
        // Some providers report errors with a success status.
        if let Some(error) = body.get("error") {
            let error = error.as_str().unwrap_or("no reason given");
            return Err(match status.is_server_error() {
                true => Failed::Away(format!("it returned status {status}")),
                false => Failed::Refused(error.chars().take(100).collect()),
            });
        }
        if !status.is_success() {
            return Err(refused_by(status));
        }
        let text = |name: &str| body.get(name).and_then(Json::as_str).unwrap_or_default();
        if text("access_token").is_empty() {
            return Err(Failed::Away("it returned no access token".to_owned()));
        }
        let lifetime = body.get("expires_in").and_then(|value| match value {
            Json::String(text) => text.parse().ok(),
            value => value.as_f64(),
        });
        let expires = lifetime
            .filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)
            .map(|seconds| Duration::from_secs(seconds.min(1e9) as u64));
        Ok(Tokens {
            access: text("access_token").to_owned(),
            refresh: text("refresh_token").to_owned(),
            identity: text("id_token").to_owned(),
            expires: expires.map(|lifetime| self.now.plus(lifetime).unix_seconds()),
        })
    }

    /// The claims of a verified ID token (OpenID Connect Core 3.1.3.7).
    async fn claims(&self, keys: &KeySet, token: &str, nonce: &str) -> Result<Json, Failed> {
        if token.is_empty() {
            return Err(Failed::Token("there is none"));
        }
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Failed::Token("it is too long"));
        }
        let token = Token::read(token).ok_or(Failed::Token("it cannot be read"))?;
        if token.algorithm.is_none() || token.is_extended {
            return Err(Failed::Token("its algorithm is not supported"));
        }
        let claims = self.believed(keys, &token, jws::claims_by).await?;
        let text = |name: &str| claims.get(name).and_then(Json::as_str);
        if text("nonce") != Some(nonce) {
            return Err(Failed::Token("its nonce belongs to another sign-in"));
        }
        let has_many = claims
            .get("aud")
            .and_then(Json::as_array)
            .is_some_and(|all| all.len() > 1);
        match text("azp") {
            Some(party) if party != self.app.id => {
                return Err(Failed::Token("its `azp` is another application"));
            }
            None if has_many => return Err(Failed::Token("it has no `azp`")),
            _ => {}
        }
        if text("sub").is_none_or(str::is_empty) {
            return Err(Failed::NoUser);
        }
        Ok(claims)
    }

    /// The claims of a token of the issuer for the application, as `judge` believes them.
    async fn believed(
        &self,
        keys: &KeySet,
        token: &Token<'_>,
        judge: Judge,
    ) -> Result<Json, Failed> {
        let expected = Expected {
            issuers: vec![self.endpoints.issuer.clone()],
            audiences: vec![self.app.id.clone()],
        };
        let judged = match keys.keys(self.services).await {
            None => Err(Unbelieved::NoKeys),
            Some(keys) => judge(&keys, token, &expected, self.now),
        };
        let judged = match judged {
            // The provider may have added the key since the keys were fetched.
            Err(Unbelieved::Signature) => match keys.fresh_keys(self.services).await {
                None => Err(Unbelieved::NoKeys),
                Some(keys) => judge(&keys, token, &expected, self.now),
            },
            judged => judged,
        };
        judged.map_err(|why| match why {
            Unbelieved::NoKeys => Failed::Away("its keys cannot be fetched".to_owned()),
            Unbelieved::Signature => Failed::Token("its signature is invalid"),
            Unbelieved::Issuer => Failed::Token("it has another issuer"),
            Unbelieved::Audience => Failed::Token("its audience is another application"),
            Unbelieved::Expired => Failed::Token("it has expired"),
            Unbelieved::Early => Failed::Token("it is not valid yet"),
        })
    }

    /// The claims of a signed user info response (OpenID Connect Core 5.3.2).
    async fn signed_user_info(&self, body: &[u8]) -> Result<Json, Failed> {
        let keys = self.endpoints.keys.as_ref();
        let keys = keys.ok_or_else(|| away("its signed user info has no known keys"))?;
        let text = std::str::from_utf8(body).unwrap_or_default().trim();
        let token = Token::read(text).filter(|token| token.algorithm.is_some());
        let token = token.ok_or_else(|| away("its user info is not a signed JWT"))?;
        let claims = self.believed(keys, &token, jws::user_info_by).await;
        claims.map_err(|failed| match failed {
            Failed::Token(why) => Failed::Away(format!("its user info is not accepted: {why}")),
            failed => failed,
        })
    }

    /// Requests the data of an access token's user. Also returns whether they say that the address is verified or not.
    async fn person(&self, access: &str, claims: &Json) -> Result<(Person, bool), Failed> {
        let mut headers = bearer(access)?;
        if self.known.is_some_and(|known| known.wants_client_id) {
            headers.insert(
                CLIENT_ID,
                HeaderValue::try_from(&self.app.id).map_err(away)?,
            );
        }
        let body = match &self.endpoints.userinfo {
            Some(url) => self.get(url, headers.clone()).await?,
            None => Json::Null,
        };
        let mut person = match self.known {
            Some(known) => known.person(&body),
            None => {
                let person = standard_person([&body, claims]);
                let has_body = self.endpoints.userinfo.is_some();
                let answers = [(has_body, &body), (!claims.is_null(), claims)];
                // OpenID Connect Core 5.3.2: data without the `sub` of the ID token must not be used. It must also be what
                // the user is known by, or two users would be one.
                let is_hers = |answer: &Json| {
                    let sub = answer.get("sub").and_then(Json::as_str);
                    sub == Some(&person.provider_user_id)
                };
                if answers
                    .iter()
                    .any(|(is_used, answer)| *is_used && !is_hers(answer))
                {
                    return Err(Failed::NoUser);
                }
                person
            }
        };
        if person.provider_user_id.is_empty() {
            return Err(Failed::NoUser);
        }
        if let (Some(known), true) = (self.known, person.email.is_empty()) {
            if let (Some(behind), Some(url)) = (known.emails, &self.endpoints.userinfo) {
                let mut url = url.clone();
                url.set_path(&format!("{}{behind}", url.path()));
                person.email = match self.get(&url, headers).await {
                    Ok(emails) => primary(&emails),
                    Err(Failed::Refused(_)) => String::new(),
                    Err(failed) => return Err(failed),
                };
            }
            if person.email.is_empty() {
                return Err(Failed::NoEmail);
            }
        }
        let is_judged = body.get(EMAIL_VERIFIED).is_some_and(|said| !said.is_null());
        Ok((person, is_judged))
    }

    async fn get(&self, url: &Url, headers: HeaderMap) -> Result<Json, Failed> {
        let sent = self.send(Method::GET, url, headers, Bytes::new()).await?;
        let (head, body) = sent;
        if !head.status.is_success() {
            return Err(refused_by(head.status));
        }
        match is_jwt(&head.headers) {
            true => self.signed_user_info(&body).await,
            false => json(&body),
        }
    }

    /// Sends a request and reads the JSON response; `null` if an error is not JSON.
    async fn ask(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, Json), Failed> {
        let (head, body) = self.send(method, url, headers, body).await?;
        match json(&body) {
            Err(failed) if head.status.is_success() => Err(failed),
            read => Ok((head.status, read.unwrap_or_default())),
        }
    }

    async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(response::Parts, Bytes), Failed> {
        let call = Call {
            method,
            url: url.clone(),
            headers,
            body,
        };
        let call = self.services.call(self.share, call);
        match tokio::time::timeout(FETCH_WITHIN, call).await {
            Ok(answered) => answered.map_err(away),
            Err(_) => Err(Failed::Away("it timed out".to_owned())),
        }
    }
}

/// Whether a response is a JWT.
fn is_jwt(headers: &HeaderMap) -> bool {
    let media = headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let media = media.split(|byte| *byte == b';').next().unwrap_or_default();
    media.trim_ascii().eq_ignore_ascii_case(b"application/jwt")
}

fn json(body: &[u8]) -> Result<Json, Failed> {
    serde_json::from_slice(body).map_err(|_| away("its response is not JSON"))
}

/// The headers of a request with an access token.
fn bearer(access: &str) -> Result<HeaderMap, Failed> {
    let mut headers = HeaderMap::new();
    let accepted = HeaderValue::from_static("application/json, application/jwt;q=0.9");
    headers.insert(ACCEPT, accepted);
    let mut bearer = HeaderValue::try_from(format!("Bearer {access}")).map_err(away)?;
    bearer.set_sensitive(true);
    headers.insert(AUTHORIZATION, bearer);
    Ok(headers)
}

fn refused_by(status: StatusCode) -> Failed {
    let said = format!("it returned status {status}");
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Failed::Refused(said)
        }
        _ => Failed::Away(said),
    }
}

fn away(why: impl ToString) -> Failed {
    Failed::Away(why.to_string())
}

/// The primary address of a list, if it is verified.
fn primary(claims: &Json) -> String {
    let is = |entry: &Json, name: &str| entry.get(name) == Some(&Json::Bool(true));
    let all = claims.as_array().into_iter().flatten();
    all.filter(|entry| is(entry, "verified") && is(entry, "primary"))
        .find_map(|entry| entry.get("email")?.as_str())
        .unwrap_or_default()
        .to_owned()
}
