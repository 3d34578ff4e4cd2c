//! Access tokens of OAuth 2.0, from a token endpoint: each is used until shortly before it expires, or is refused.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use url::Url;

use culvert_base::{Secret, Timestamp};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::{Http, HttpRequest, Net};

use crate::client::http_failure::{class_of_status, failed};
use crate::client::request_body::form_headers;

/// How long before its expiry a token is renewed.
const RENEWED_BEFORE: Duration = Duration::from_secs(300);
/// How long a token is used if the endpoint does not say it (RFC 6749, 5.1 only recommends that), and at most.
const VALID_FOR: Duration = Duration::from_secs(3_600);
const VALID_FOR_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The tokens of one client.
pub(crate) struct OauthTokens {
    url: Url,
    http: Http,
    net: Net,
    deadline: Duration,
    cached: Mutex<Option<(Secret, Timestamp)>>,
}

impl fmt::Debug for OauthTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OauthTokens").finish_non_exhaustive()
    }
}

/// The response of a token endpoint (RFC 6749, section 5.1).
#[derive(Deserialize)]
struct Token {
    access_token: Secret,
    /// A number, which some endpoints write as text.
    #[serde(default)]
    expires_in: Value,
}

impl OauthTokens {
    /// Those of the endpoint at `url`.
    pub(crate) fn new(url: Url, http: Http, net: Net, deadline: Duration) -> Self {
        Self {
            url,
            http,
            net,
            deadline,
            cached: Mutex::new(None),
        }
    }

    /// A token that is valid for a while, and is not the one that was `refused`. `form` makes the body of the request at the
    /// given time, and returns the part of it that no error text may have.
    pub(crate) async fn token(
        &self,
        refused: Option<&Secret>,
        form: impl FnOnce(Timestamp) -> Result<(Bytes, Secret), Failure>,
    ) -> Result<Secret, Failure> {
        let mut cached = self.cached.lock().await;
        let now = self.net.now();
        if let Some((token, until)) = &*cached
            && now.plus(RENEWED_BEFORE) < *until
            && refused != Some(token)
        {
            return Ok(token.clone());
        }
        let (body, secret) = form(now)?;
        let order = HttpRequest::post(self.url.clone(), form_headers(), body, self.deadline);
        let answer = self.http.send(order).await?;
        if let Err(class) = class_of_status(answer.status) {
            // A 400 with `invalid_client` or a similar code is about the credentials, not about
            // content.
            let class = match class {
                FailureClass::Retryable => class,
                _ => FailureClass::Auth,
            };
            return Err(failed(&answer, class, &[secret.reveal()]));
        }
        let invalid = || {
            let text = "the token response is invalid";
            Failure::new(FailureClass::Retryable, "token", text)
        };
        let made: Token = serde_json::from_str(&answer.text).map_err(|_| invalid())?;
        // One that cannot be sent is not kept: no response would ever refuse it.
        let is_token = HeaderValue::from_str(made.access_token.reveal()).is_ok();
        if !is_token || made.access_token.reveal().is_empty() {
            return Err(invalid());
        }
        let seconds = match &made.expires_in {
            Value::String(text) => text.parse().ok(),
            number => number.as_f64(),
        };
        let valid_for = match seconds {
            None => VALID_FOR,
            Some(seconds) if seconds < 0.0 => return Err(invalid()),
            Some(seconds) => Duration::try_from_secs_f64(seconds).unwrap_or(VALID_FOR_MAX),
        };
        let until = now.plus(valid_for.min(VALID_FOR_MAX));
        *cached = Some((made.access_token.clone(), until));
        Ok(made.access_token)
    }
}
