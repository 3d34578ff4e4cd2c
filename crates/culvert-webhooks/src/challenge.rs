//! Challenges with which providers verify that an address belongs to their customer. The edge responds to them, so
//! upstreams need not.
//!
//! A response must not sign data that a client could then send as a webhook. So the edge responds to Zoom's challenge
//! only if it is signed, and to Twitter's only if it cannot be the body of an event.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Response, StatusCode};

use culvert_base::text::hex;

use crate::request::{Request, Unverified};
use crate::signature::Digester;
use crate::signature::Hash;
use crate::{Provider, json};

/// Maximum size of the challenge value that is returned, in bytes.
const QUESTION_BYTES_MAX: usize = 512;

/// The response to a request that is a challenge of its provider; `None` if it is another request, or must
/// not get one. The verdict is that of [`verify`](super::verify).
pub fn answer(
    provider: Provider,
    secret: &str,
    request: &Request<'_>,
    verdict: Result<(), Unverified>,
) -> Option<Response<Bytes>> {
    if secret.is_empty() {
        return None;
    }
    match provider.name() {
        "twitter" => twitter(secret, request),
        "worldline" => worldline(request),
        "xero" => xero(request, verdict),
        "zoom" => verdict.ok().and_then(|()| zoom(secret, request)),
        _ => None,
    }
}

fn twitter(secret: &str, request: &Request<'_>) -> Option<Response<Bytes>> {
    if request.method != Method::GET {
        return None;
    }
    let (_, query) = request.url.split_once('?')?;
    let mut tokens = url::form_urlencoded::parse(query.as_bytes())
        .filter_map(|(name, value)| (name == "crc_token").then_some(value));
    let token = tokens.next().filter(|token| is_word(token))?;
    let text = serde_json::json!({
        "response_token": format!("sha256={}", STANDARD.encode(mac(secret, &token))),
    });
    Some(reply(StatusCode::OK, "application/json", text.to_string()))
}

fn worldline(request: &Request<'_>) -> Option<Response<Bytes>> {
    if request.method != Method::GET {
        return None;
    }
    let question = request
        .headers
        .get("x-gcs-webhooks-endpoint-verification")?;
    let text = question.to_str().ok().filter(|text| is_word(text))?;
    Some(reply(StatusCode::OK, "text/plain", text.to_owned()))
}

/// Xero sends an event without entries, both validly signed and not, and expects different responses.
fn xero(request: &Request<'_>, verdict: Result<(), Unverified>) -> Option<Response<Bytes>> {
    #[derive(serde::Deserialize)]
    struct Question {
        events: [serde::de::IgnoredAny; 0],
        #[serde(rename = "entropy")]
        _entropy: String,
    }
    let Question { events: [], .. } = serde_json::from_slice(request.body).ok()?;
    let status = match verdict {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::UNAUTHORIZED,
    };
    Some(reply(status, "text/plain", String::new()))
}

fn zoom(secret: &str, request: &Request<'_>) -> Option<Response<Bytes>> {
    let event = json::text(request.body, &["event"]).ok()?;
    if event != "endpoint.url_validation" {
        return None;
    }
    let token = json::text(request.body, &["payload", "plainToken"]).ok()?;
    if token.len() > QUESTION_BYTES_MAX {
        return None;
    }
    let encrypted = hex(&mac(secret, &token));
    let text = serde_json::json!({ "plainToken": token, "encryptedToken": encrypted });
    Some(reply(StatusCode::OK, "application/json", text.to_string()))
}

fn mac(secret: &str, text: &str) -> Vec<u8> {
    let mut digester = Digester::new(Hash::Sha256, secret.as_bytes());
    digester.update(text.as_bytes());
    digester.finish()
}

/// Whether a text has only letters, digits and the other characters of base64, so that it is an id and not an
/// event.
fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_+/=.".contains(&byte);
    (1..=QUESTION_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

fn reply(status: StatusCode, media: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    if !body.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    *response.body_mut() = body.into();
    response
}
