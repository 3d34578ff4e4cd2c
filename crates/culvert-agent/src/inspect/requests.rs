//! Recorded requests as JSON: for programs in the form of ngrok's agent API, and for the page with decoded bodies.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_http::coding;
use culvert_tunnel::client::{Counts, Exchange, Exchanges, Message};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

/// Maximum size of a body after decoding.
const DECODED_BYTES_MAX: usize = 1 << 20;

/// An exchange, as `GET /api/requests/http/<id>` returns it.
pub(crate) fn item(it: &Exchange) -> Value {
    json!({
        "uri": format!("/api/requests/http/{}", it.id),
        "id": it.id.to_string(),
        "tunnel_name": it.endpoint.name,
        "remote_addr": it.client,
        "start": it.started_at.to_millis_text(),
        "duration": u64::try_from(it.took.as_nanos()).unwrap_or(u64::MAX),
        "request": {
            "method": it.method,
            "proto": version(&it.request, Part::Request),
            "headers": fields(&it.request),
            "uri": it.path,
            "raw": raw(&it.request),
            "body_bytes": it.request.body_bytes,
        },
        "response": response(it),
        "public_url": it.url,
        "replay_of": it.replay_of.map(|id| id.to_string()),
        "error": it.error,
    })
}

/// The response. If the service did not respond, that of the server, whose headers and body the agent does not know.
fn response(it: &Exchange) -> Value {
    let Some(status) = it.shown_status() else {
        return Value::Null;
    };
    let reason = StatusCode::from_u16(status).ok();
    let reason = reason.and_then(|status| status.canonical_reason());
    let text = match it.status {
        Some(_) => first_line(&it.response)
            .split_once(' ')
            .map(|(_, text)| text.to_owned()),
        None => None,
    };
    json!({
        "status": text.unwrap_or_else(|| format!("{status} {}", reason.unwrap_or_default())),
        "status_code": status,
        "proto": version(&it.response, Part::Response),
        "headers": fields(&it.response),
        "raw": raw(&it.response),
        "body_bytes": it.response.body_bytes,
    })
}

/// What the page lists about an exchange.
pub(crate) fn summary(it: &Exchange) -> Value {
    json!({
        "id": it.id,
        "tunnel": it.endpoint.name,
        "url": it.url,
        "client": it.client,
        "at": it.started_at.unix_millis(),
        "took_ms": it.took.as_secs_f64() * 1_000.0,
        "method": it.method,
        "path": it.path,
        "status": it.shown_status(),
        "error": it.error,
        "replay_of": it.replay_of,
        "request_bytes": it.request.body_bytes,
        "response_bytes": it.response.body_bytes,
        "response_type": list(&it.response)
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("content-type"))
            .map(|(_, value)| value),
    })
}

/// An exchange with everything that the page shows.
pub(crate) fn detail(it: &Exchange) -> Value {
    let mut detail = summary(it);
    detail["request"] = message(&it.request);
    detail["response"] = match it.status {
        Some(_) => message(&it.response),
        None => Value::Null,
    };
    detail
}

/// A message with its decoded body.
fn message(it: &Message) -> Value {
    let fields = list(it);
    let mut headers = HeaderMap::new();
    for (name, value) in &fields {
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_str(value),
        ) {
            headers.append(name, value);
        }
    }
    let plain = it.plain_body();
    let is_encoded = coding::is_encoded(&headers);
    let decoded = match (is_encoded, it.is_whole()) {
        (true, true) => coding::decode(&headers, plain.clone().into(), DECODED_BYTES_MAX)
            .map_err(|e| e.to_string()),
        (true, false) => Err("the body is not recorded completely, so it cannot be decoded".into()),
        (false, _) => Ok(plain.clone().into()),
    };
    let problem = decoded.as_ref().err().cloned();
    let body = decoded.unwrap_or_else(|_| plain.into());
    json!({
        "line": first_line(it),
        "fields": fields,
        "body": STANDARD.encode(&body),
        "is_decoded": is_encoded && problem.is_none(),
        "problem": problem,
        "body_bytes": it.body_bytes,
        "is_whole": it.is_whole(),
    })
}

/// The number of exchanges, for lists.
pub(crate) fn counts(all: Option<&Exchanges>) -> Counts {
    all.map(Exchanges::counts).unwrap_or_default()
}

/// The head and the recorded body of a message in wire format, as base64.
fn raw(message: &Message) -> String {
    STANDARD.encode([&message.head[..], &message.body[..]].concat())
}

fn first_line(message: &Message) -> String {
    let head = String::from_utf8_lossy(&message.head);
    head.split("\r\n").next().unwrap_or_default().to_owned()
}

enum Part {
    Request,
    Response,
}

fn version(message: &Message, part: Part) -> String {
    let line = first_line(message);
    let version = match part {
        Part::Request => line.rsplit(' ').next(),
        Part::Response => line.split(' ').next(),
    };
    let version = version.filter(|version| version.starts_with("HTTP/"));
    version.unwrap_or("HTTP/1.1").to_owned()
}

/// The fields in their order, as they were sent.
fn list(message: &Message) -> Vec<(String, String)> {
    String::from_utf8_lossy(&message.head)
        .split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// The fields by name, which is spelled as in `Content-Type`.
fn fields(message: &Message) -> Value {
    let mut fields: Map<String, Value> = Map::new();
    for (name, value) in list(message) {
        let values = fields.entry(canonical(&name)).or_insert_with(|| json!([]));
        if let Value::Array(values) = values {
            values.push(value.into());
        }
    }
    fields.into()
}

fn canonical(name: &str) -> String {
    let mut starts = true;
    name.chars()
        .map(|c| {
            let spelled = match starts {
                true => c.to_ascii_uppercase(),
                false => c.to_ascii_lowercase(),
            };
            starts = c == '-';
            spelled
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_are_canonicalised() {
        assert_eq!(canonical("content-TYPE"), "Content-Type");
        assert_eq!(canonical("x-forwarded-for"), "X-Forwarded-For");
        assert_eq!(canonical(""), "");
    }
}
