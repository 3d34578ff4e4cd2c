//! Request bodies: content type, size, and strict JSON (contract: management API 1.2 row 8; limits: reliability 4.2).
//!
//! A body that is not text or exceeds the limits has the error 212. Text that is not exactly one JSON object with
//! unique names has the error 213. No allocation depends on a length that the peer announces.
//!
//! Control validates fields and their types.

use std::cell::Cell;
use std::pin::pin;

use bytes::{Bytes, BytesMut};
use culvert_base::{Class, Refusal, code};
use culvert_events::{JsonReader, JsonRules};
use culvert_http::coding::is_encoded;
use http::header::{CONTENT_TYPE, EXPECT};
use http::{HeaderMap, Method};
use http_body::Body;
use http_body_util::BodyExt;
use serde::de::{DeserializeSeed, Error};
use serde_json::{Map, Value};
use tokio::time::Instant;

/// Maximum size of a request body.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum nesting of arrays and objects, including the outermost one.
pub const JSON_DEPTH_MAX: u32 = 32;
/// Maximum number of members of all objects and elements of all arrays.
pub const JSON_MEMBERS_MAX: u32 = 10_000;

const KEY_SHOWN_CHARS_MAX: usize = 64;

/// Reads and parses the body of a request. `None` if there is no body.
pub async fn read<B>(
    method: &Method,
    headers: &HeaderMap,
    body: &mut B,
    bytes_max: usize,
) -> Result<Option<Value>, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.is_end_stream() {
        return Ok(None);
    }
    if *method == Method::GET || *method == Method::DELETE {
        return match next(body).await? {
            None => Ok(None),
            Some(_) => Err(Refusal::of(code::BODY_NOT_ACCEPTED)),
        };
    }
    check_coding(headers)?;
    let bytes = whole(body, bytes_max).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if !is_json(headers) {
        return Err(Refusal::of(code::BODY_NOT_JSON_TYPE));
    }
    parse(&bytes).map(Some)
}

/// Reads the body of a request whose bytes are signed.
pub async fn read_raw<B>(body: &mut B, bytes_max: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    whole(body, bytes_max).await
}

/// Refuses a body in a content coding: none is supported (210).
fn check_coding(headers: &HeaderMap) -> Result<(), Refusal> {
    match is_encoded(headers) {
        false => Ok(()),
        true => Err(Refusal::new(
            code::BODY_NOT_JSON_TYPE,
            "The request body must not have a `Content-Encoding`.",
        )),
    }
}

/// Whether the content type is JSON or missing.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return true;
    };
    let Ok(text) = value.to_str() else {
        return false;
    };
    let media_type = text.split(';').next().unwrap_or_default().trim();
    media_type.is_empty() || media_type.eq_ignore_ascii_case("application/json")
}

async fn whole<B>(body: &mut B, bytes_max: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large(bytes_max));
    }
    let Some(first) = next(body).await? else {
        return Ok(Bytes::new());
    };
    if first.len() > bytes_max {
        return Err(too_large(bytes_max));
    }
    // Most bodies arrive in one piece, which is not copied.
    let Some(second) = next(body).await? else {
        return Ok(first);
    };
    let mut bytes = BytesMut::from(first);
    let mut piece = Some(second);
    while let Some(more) = piece {
        if bytes.len() + more.len() > bytes_max {
            return Err(too_large(bytes_max));
        }
        bytes.extend_from_slice(&more);
        piece = next(body).await?;
    }
    Ok(bytes.freeze())
}

/// The next non-empty piece. Skips trailers.
async fn next<B: Body<Data = Bytes> + Unpin>(body: &mut B) -> Result<Option<Bytes>, Refusal> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            Refusal::new(
                code::BODY_UNREADABLE,
                "The request body is incomplete or incorrectly framed.",
            )
        })?;
        if let Ok(bytes) = frame.into_data()
            && !bytes.is_empty()
        {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

fn too_large(bytes_max: usize) -> Refusal {
    let why = format!("The request body is larger than {} KiB.", bytes_max >> 10);
    Refusal {
        class: Class::TooLarge,
        ..Refusal::new(code::BODY_UNREADABLE, why)
    }
}

/// The error for a body that did not arrive before the request's deadline (408).
pub fn too_slow() -> Refusal {
    Refusal {
        class: Class::TooSlow,
        ..Refusal::new(
            code::BODY_UNREADABLE,
            "The request body did not arrive in time.",
        )
    }
}

/// Reads and discards the rest of a body, so that a peer that is still sending can read the response. Reads at most
/// `bytes_max`, until `until`. Does nothing if the peer waits for `100 Continue`.
pub async fn discard<B>(headers: &HeaderMap, body: B, bytes_max: usize, until: Instant)
where
    B: Body<Data = Bytes>,
{
    if body.is_end_stream() || headers.contains_key(EXPECT) {
        return;
    }
    let mut body = pin!(body);
    let reading = async {
        let mut left = bytes_max;
        while let Some(Ok(frame)) = body.frame().await {
            let taken = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(taken) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // The response follows in either case. If data remains, the connection is closed.
    tokio::time::timeout_at(until, reading).await.unwrap_or(());
}

/// Parses exactly one JSON object with unique names, within the limits.
pub fn parse(bytes: &[u8]) -> Result<Value, Refusal> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Refusal::new(code::BODY_UNREADABLE, "The request body is not UTF-8."))?;
    let budget = Budget::default();
    let mut reader = serde_json::Deserializer::from_str(text);
    let place = Place {
        budget: &budget,
        depth: 0,
    };
    let value = JsonReader(place)
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| match budget.over.get() {
            Some(limit) => Refusal::new(code::BODY_UNREADABLE, limit),
            None => Refusal::new(
                code::BODY_NOT_OBJECT,
                format!("The request body is not JSON: {error}."),
            ),
        })?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Refusal::of(code::BODY_NOT_OBJECT))
    }
}

/// The remaining part of the limits for one document.
#[derive(Default)]
struct Budget {
    members: Cell<u32>,
    over: Cell<Option<&'static str>>,
}

impl Budget {
    fn member<E: Error>(&self) -> Result<(), E> {
        let members = self.members.get() + 1;
        self.members.set(members);
        if members > JSON_MEMBERS_MAX {
            return Err(self.exceed("The request body has more than 10000 members."));
        }
        Ok(())
    }

    fn exceed<E: Error>(&self, limit: &'static str) -> E {
        self.over.set(Some(limit));
        E::custom(limit)
    }
}

/// A place in the document, at a nesting depth.
#[derive(Clone, Copy)]
struct Place<'a> {
    budget: &'a Budget,
    depth: u32,
}

impl JsonRules for Place<'_> {
    fn inner<E: Error>(self) -> Result<Self, E> {
        if self.depth >= JSON_DEPTH_MAX {
            return Err(self
                .budget
                .exceed("The request body is nested deeper than 32 levels."));
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }

    fn member<E: Error>(self) -> Result<(), E> {
        self.budget.member()
    }

    fn name<E: Error>(self, object: &Map<String, Value>, name: &str) -> Result<(), E> {
        if object.contains_key(name) {
            let shown: String = name.chars().take(KEY_SHOWN_CHARS_MAX).collect();
            return Err(E::custom(format_args!("duplicate key `{shown}`")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
