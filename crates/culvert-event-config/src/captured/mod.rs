//! Reads one retained event and its captured messages, and sends its request again.
//!
//! Everyone in the account may read traffic events. Captured messages are private to the owners of the endpoints whose
//! policies captured them, and to admins. A request is sent again only to the endpoint that received it, for those who
//! may change that endpoint.

pub mod captured_access;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{BoxFuture, Fault, Ksuid, Refusal, Share, code, id};
use culvert_delivery::{EventQuery, LoggedEvent};
use culvert_edge_config::{NotReplayed, ReplayRequest};
use culvert_events::bodies::{
    BodyOmission, CapturedBody, CapturedMessages, CapturedRequest, Field,
};
use culvert_events::{HTTP_REQUEST_COMPLETE, LogFilter};
use culvert_policy::capture::decoded;
use culvert_resources::access::caller::{Caller, Role};
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::audit::trace::{OperationKind, Trace};
use culvert_resources::operation::{
    BodySpec, Call, EVENTS_PATH, Method, Operation, Reply, ResponseSpec, Run, Status,
};
use culvert_resources::{Error, Kernel, access, input, stored};
use culvert_store::{AuditLog, Bound, Order, RangeError, Store};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::captured::captured_access::CapturedAccess;
use crate::event_kinds::ENDPOINT;
use crate::event_query::EVENTS_EXPORTED;
use crate::{EventConfig, event_query};

pub(crate) static CAPTURED_MESSAGE_READ: OperationKind = OperationKind {
    name: "captured_message_read.v0",
    doc: "A captured request or response was read.",
    shows_body: false,
};

pub(crate) static REQUEST_REPLAYED: OperationKind = OperationKind {
    name: "request_replayed.v0",
    doc: "The request of a traffic event was sent to its endpoint again.",
    shows_body: false,
};

/// Prefix of event ids.
const PREFIX: &str = "ev";
/// Pages of a search for one event: all pieces of a second are read.
const PAGES_MAX: usize = 64;
/// Limits of a request that is sent again.
const METHOD_BYTES_MAX: usize = 32;
const PATH_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 128;
const HEADER_BYTES_MAX: usize = 64 << 10;

pub(crate) fn operations() -> [Operation<EventConfig>; 3] {
    let path = |rest: &str| format!("{EVENTS_PATH}/{{id}}{rest}");
    [
        Operation {
            name: "get",
            collection: "events",
            method: Method::Get,
            path: path(""),
            doc: "Gets a kept audit or traffic event.".to_owned(),
            body: None,
            response: ResponseSpec {
                status: Status::Ok,
                schema: Some(SchemaGenerator::subschema_for::<event_query::View<'static>>),
            },
            query: &[],
            right: Right::read(Scope::EventsRead),
            object: None,
            hides: Some(hides),
            preview: None,
            trace: Trace::HourlyList(&EVENTS_EXPORTED, event_query::shown),
            run: Run::new(|events, call| Box::pin(get(events, call))),
        },
        Operation {
            name: "get_messages",
            collection: "events",
            method: Method::Get,
            path: path("/messages"),
            doc: "Gets the request and the response that a `capture` action of the endpoint's traffic policy stored \
                  beside a traffic event. Both are null if nothing was captured, or it is not retained any more. \
                  Requires an admin key or a key of the endpoint's owner (630)."
                .to_owned(),
            body: None,
            response: ResponseSpec {
                status: Status::Ok,
                schema: Some(SchemaGenerator::subschema_for::<View<'static>>),
            },
            query: &[],
            right: Right::read(Scope::EventsRead),
            object: None,
            hides: Some(hides),
            preview: None,
            trace: Trace::Hourly(&CAPTURED_MESSAGE_READ),
            run: Run::new(|events, call| Box::pin(get_messages(events, call))),
        },
        Operation {
            name: "replay",
            collection: "events",
            method: Method::Post,
            path: path("/replay"),
            doc: "Sends the request of a traffic event to its endpoint again, as captured or with changes, and waits \
                  for the response. The request has the field `culvert-replay-of` with the ID of the original event, \
                  which clients cannot set, and makes a new event. Without a captured request, the header \
                  values are those of the event, in lower case and without credentials. Requires an admin key or a \
                  key of the endpoint's owner (630). At most 60 replays of an owner in a minute, and 8 at a time \
                  (226)."
                .to_owned(),
            body: Some(BodySpec {
                schema: SchemaGenerator::subschema_for::<Input>,
                required: false,
            }),
            response: ResponseSpec {
                status: Status::Ok,
                schema: Some(SchemaGenerator::subschema_for::<ReplayView<'static>>),
            },
            query: &[],
            right: Right {
                role: Role::Member,
                scope: Some(Scope::EventsWrite),
            },
            object: None,
            hides: Some(hides),
            preview: None,
            trace: Trace::Each(&REQUEST_REPLAYED),
            run: Run::new(|events, call| Box::pin(replay(events, call))),
        },
    ]
}

/// A retained event that the caller may read, by its id.
pub(crate) async fn find(
    events: &EventConfig,
    caller: &Caller,
    id: &str,
) -> Result<LoggedEvent, Error> {
    let ksuid = id::split(id).filter(|(prefix, _)| *prefix == PREFIX);
    let ksuid = ksuid.and_then(|(_, body)| body.parse::<Ksuid>().ok());
    let Some(second) = ksuid.map(|ksuid| ksuid.at()) else {
        return Err(Refusal::not_found().into());
    };
    // The id consists of letters and digits.
    let filter = LogFilter::compile(events.catalogue, &format!("event_id == '{id}'"))?;
    let mut query = EventQuery {
        owner: caller.owner_id.clone(),
        account: caller.account.clone(),
        kinds: event_query::readable_kinds(caller),
        filter: Some(filter),
        since: Some(second),
        until: Some(second.plus(Duration::from_secs(1))),
        object: None,
        actor: None,
        order: Order::OldestFirst,
        from: None,
        limit: 1,
        is_followed: false,
    };
    for _ in 0..PAGES_MAX {
        let page = events.delivery.events(&query).await?;
        if let Some(event) = page.events.into_iter().next() {
            return Ok(event);
        }
        if page.is_end {
            break;
        }
        query.from = Some(page.next);
    }
    Err(Refusal::not_found().into())
}

/// Whether a caller may not read an event of its account.
pub(crate) fn hides<'a>(
    kernel: &'a Kernel,
    caller: &'a Caller,
    id: &'a str,
) -> BoxFuture<'a, Result<bool, Fault>> {
    Box::pin(async move {
        let Some(kinds) = event_query::readable_kinds(caller) else {
            return Ok(false);
        };
        let log = Store::audit_log(&kernel.store);
        let bound = Bound::Event(id.to_owned());
        let found = AuditLog::range(&log, Some(&bound), None, Some(&caller.account)).await;
        let position = match found {
            Ok(range) => range.first,
            Err(RangeError::Unknown(_)) => return Ok(false),
            Err(RangeError::Fault(fault)) => return Err(fault),
        };
        let rows = log.rows(position - 1, position, 1).await?;
        Ok(rows.first().is_some_and(|row| !kinds.contains(&row.kind)))
    })
}

fn id_of(call: &Call) -> &str {
    call.path.first().map_or("", String::as_str)
}

async fn get(events: &EventConfig, call: Call) -> Result<Reply, Error> {
    let logged = find(events, &call.caller, id_of(&call)).await?;
    let view = event_query::View::of(events, &logged).await?;
    Ok(Reply::Ok(stored::write(&view)?))
}

/// The messages captured beside a traffic event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventMessages")]
struct View<'a> {
    event_id: &'a str,
    uri: String,
    /// The request as received; null if it was not captured.
    request: Option<RequestView<'a>>,
    /// The response as sent; null if it was not captured or not sent.
    response: Option<ResponseView<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CapturedRequest")]
struct RequestView<'a> {
    method: &'a str,
    url: &'a str,
    /// Whether the URL has a redacted part.
    url_redacted: bool,
    headers: Vec<FieldView<'a>>,
    trailers: Vec<FieldView<'a>>,
    body: BodyView,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CapturedResponse")]
struct ResponseView<'a> {
    status_code: u16,
    headers: Vec<FieldView<'a>>,
    trailers: Vec<FieldView<'a>>,
    body: BodyView,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CapturedField")]
struct FieldView<'a> {
    name: &'a str,
    value: &'a str,
    redacted: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CapturedBody")]
struct BodyView {
    /// Bytes that were transferred.
    length: u64,
    /// The stored bytes in base64: as transferred, or redacted and without content coding.
    data: String,
    /// The body as text, without content coding; null if it is not UTF-8 text or cannot be decoded.
    text: Option<String>,
    /// The body without content coding, in base64, if it has one and is not text.
    decoded: Option<String>,
    /// Whether the end is missing: the body is longer than `max_bytes`, or was not transferred to its end.
    truncated: bool,
    /// Whether parts are redacted.
    redacted: bool,
    /// Why bytes are missing: `content_type`, `memory` or `redaction`; null if they are not.
    #[schemars(extend("enum" = ["content_type", "memory", "redaction", null]))]
    omitted: Option<&'static str>,
}

impl<'a> FieldView<'a> {
    fn all(fields: &'a [Field]) -> Vec<Self> {
        let view = |field: &'a Field| Self {
            name: &field.name,
            value: &field.value,
            redacted: field.is_redacted,
        };
        fields.iter().map(view).collect()
    }
}

impl BodyView {
    fn of(headers: &[Field], body: &CapturedBody) -> Self {
        let plain = decoded(headers, body);
        let is_coded = !body.is_redacted && headers.iter().any(|it| it.name == "content-encoding");
        let readable = match (&plain, is_coded) {
            (Some(plain), _) => Some(plain.as_slice()),
            (None, true) => None,
            (None, false) => Some(body.bytes.as_slice()),
        };
        let text = readable.and_then(|bytes| text_of(bytes, body.is_truncated));
        let text = text.map(str::to_owned);
        Self {
            length: body.length,
            data: STANDARD.encode(&body.bytes),
            decoded: plain
                .filter(|_| text.is_none())
                .map(|plain| STANDARD.encode(plain)),
            text,
            truncated: body.is_truncated,
            redacted: body.is_redacted,
            omitted: body.omitted.map(|why| match why {
                BodyOmission::ContentType => "content_type",
                BodyOmission::Memory => "memory",
                BodyOmission::Redaction => "redaction",
            }),
        }
    }
}

/// The bytes as text. A text that is cut may end within a character.
fn text_of(bytes: &[u8], is_truncated: bool) -> Option<&str> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if is_truncated && error.error_len().is_none() => {
            std::str::from_utf8(bytes.get(..error.valid_up_to())?).ok()?
        }
        Err(_) => return None,
    };
    (!text.contains('\0')).then_some(text)
}

/// Whether the endpoint of an event still exists.
///
/// # Errors
/// The caller may not change it.
async fn has_endpoint(
    events: &EventConfig,
    call: &Call,
    logged: &LoggedEvent,
) -> Result<bool, Error> {
    let Some(id) = &logged.endpoint else {
        return Ok(false);
    };
    let cx = events.kernel.cx(&call.caller, &call.base);
    let Some(ty) = cx.resources.iter().find(|ty| ty.name == ENDPOINT) else {
        return Ok(false);
    };
    let Some(document) = cx.own(ty.kind, id).await? else {
        return Ok(false);
    };
    access::may_change(&cx, ty, &document).await?;
    Ok(true)
}

const NOT_OWNER: &str = "Only an admin or the owner of the endpoint may read captured messages.";

async fn get_messages(events: &EventConfig, call: Call) -> Result<Reply, Error> {
    let id = id_of(&call);
    let logged = find(events, &call.caller, id).await?;
    // Only the owner and admins may learn whether anything was captured.
    has_endpoint(events, &call, &logged).await?;
    let messages = events.delivery.messages(id).await?;
    let access = CapturedAccess(&call.caller);
    if messages
        .as_ref()
        .is_some_and(|messages| !access.allows(&messages.owners))
    {
        return Err(Refusal::new(code::NOT_ADMIN, NOT_OWNER).into());
    }
    let messages = messages.unwrap_or_default();
    let view = View {
        event_id: id,
        uri: format!("{}{EVENTS_PATH}/{id}/messages", call.base),
        request: messages.request.as_ref().map(|request| RequestView {
            method: &request.method,
            url: &request.url,
            url_redacted: request.is_url_redacted,
            headers: FieldView::all(&request.headers),
            trailers: FieldView::all(&request.trailers),
            body: BodyView::of(&request.headers, &request.body),
        }),
        response: messages.response.as_ref().map(|response| ResponseView {
            status_code: response.status_code,
            headers: FieldView::all(&response.headers),
            trailers: FieldView::all(&response.trailers),
            body: BodyView::of(&response.headers, &response.body),
        }),
    };
    Ok(Reply::Ok(stored::write(&view)?))
}

/// Changes to a request that is sent again.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventReplayRequest", transform = input::create_schema)]
struct Input {
    /// `edge` (default): through the endpoint's traffic policy; `upstream`: directly to its upstream.
    #[schemars(extend("enum" = ["edge", "upstream"]))]
    to: String,
    /// Another method.
    method: String,
    /// Another path, with the query.
    path: String,
    /// All header fields, instead of those of the original request. The host, the length, forwarding fields and
    /// hop-by-hop fields are set by the server.
    headers: Vec<InputField>,
    /// Another body.
    body: Option<InputBody>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
struct InputField {
    /// The name.
    name: String,
    /// The value.
    value: String,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
struct InputBody {
    /// The body as text.
    text: String,
    /// The body in base64, instead of `text`.
    base64: String,
}

impl Input {
    fn skips_policy(&self) -> Result<bool, Refusal> {
        match &*self.to {
            "" | "edge" => Ok(false),
            "upstream" => Ok(true),
            _ => {
                let why = "`to` must be `edge` or `upstream`.";
                Err(Refusal::new(code::BODY_FIELD_INVALID, why))
            }
        }
    }
}

/// A request that was sent again.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventReplayResult")]
struct ReplayView<'a> {
    /// The ID of the new event, which is kept within about a second; null if no event is made.
    event_id: Option<&'a str>,
    /// URL of the new event.
    uri: Option<String>,
    /// The ID of the original event.
    replay_of: &'a str,
    /// The status of the response; null if the connection was closed without one.
    status_code: Option<u16>,
}

async fn replay(events: &EventConfig, call: Call) -> Result<Reply, Error> {
    let shape = |problem| match problem {
        input::Problem::Shape(refusal) => refusal,
        input::Problem::Value { field, why } => {
            let why = format!("`{field}` is not allowed: {why}.");
            Refusal::new(code::BODY_FIELD_INVALID, why)
        }
    };
    let input = input::update::<Input>(call.body.clone())
        .map_err(shape)?
        .input;
    input.skips_policy()?;
    let id = id_of(&call);
    let logged = find(events, &call.caller, id).await?;
    call.caller.may_write()?;
    if logged.endpoint.is_none() {
        return Err(refused("Only requests of HTTP endpoints can be sent again.").into());
    }
    let exists = has_endpoint(events, &call, &logged).await?;
    let (true, Some(endpoint_id)) = (exists, &logged.endpoint) else {
        return Err(refused("Its endpoint does not exist any more.").into());
    };
    let Some(edge) = &events.edge else {
        return Err(refused("This server has no edge; call a node with the role `edge`.").into());
    };
    let captured = events.delivery.messages(id).await?;
    let captured = captured
        .filter(|messages| CapturedAccess(&call.caller).allows(&messages.owners))
        .and_then(|messages: CapturedMessages| messages.request);
    let original = match captured {
        Some(request) => Original::of_capture(request),
        None => Original::of_event(&logged.envelope)?,
    };
    let mut request = original.edited(input)?;
    request.event = id.to_owned();
    request.endpoint.clone_from(endpoint_id);
    let limits = &events.replays;
    let share = Share::of_owner(&call.caller.owner_id);
    let permit = limits.running.try_acquire(share);
    let is_counted = limits.count(&call.caller.owner_id, events.kernel.clock.now());
    let (Ok(_permit), true) = (permit, is_counted) else {
        let why = "Too many requests are being sent again; try again in a moment.";
        return Err(Refusal::new(code::TOO_MANY_REQUESTS, why).into());
    };
    tracing::info!(
        event = id,
        endpoint.id = %endpoint_id,
        by = %call.caller.owner_id,
        key = %call.caller.key_id,
        skips_policy = request.skips_policy,
        "a request is sent again"
    );
    let replayed = edge.replay(request).await.map_err(|why| {
        refused(match why {
            NotReplayed::NoEndpoint => "Its endpoint does not serve its host on this server.",
            NotReplayed::Malformed => "The method, the path or a header field is malformed.",
            NotReplayed::Refused => {
                "The traffic policy asks for a client certificate or rejects the connection; set `to` to `upstream`."
            }
            NotReplayed::Unavailable => "This server is stopping or overloaded.",
        })
    })?;
    let event_id = replayed.event.as_deref();
    Ok(Reply::Ok(stored::write(&ReplayView {
        event_id,
        uri: event_id.map(|event| format!("{}{EVENTS_PATH}/{event}", call.base)),
        replay_of: id,
        status_code: replayed.status,
    })?))
}

fn refused(why: &'static str) -> Refusal {
    Refusal::new(code::REQUEST_NOT_REPLAYABLE, why)
}

/// The request of an event, as far as it is recorded.
#[derive(Debug)]
struct Original {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    /// The body, or why it is not recorded.
    body: Result<Vec<u8>, &'static str>,
}

/// The fields of an event about its request.
#[derive(Deserialize)]
struct Event {
    event_type: String,
    object: Value,
}

impl Original {
    fn of_capture(request: CapturedRequest) -> Self {
        let body = request.body;
        let known = match () {
            () if body.omitted.is_some() => Err("The body was not captured; send `body`."),
            () if body.is_truncated => Err("The body was captured only in part; send `body`."),
            () if body.is_redacted => Err("The body was redacted; send `body`."),
            () => Ok(body.bytes),
        };
        let fields = request.headers.into_iter();
        let fields = fields.filter(|field| !field.is_redacted);
        Self {
            method: request.method,
            url: request.url,
            headers: fields.map(|field| (field.name, field.value)).collect(),
            body: known,
        }
    }

    fn of_event(envelope: &str) -> Result<Self, Error> {
        let event: Event = serde_json::from_str(envelope)
            .map_err(|error| Fault::new("reading a kept event", error))?;
        if event.event_type != HTTP_REQUEST_COMPLETE.name {
            return Err(refused("Only requests of HTTP endpoints can be sent again.").into());
        }
        let text = |path: &str| event.object.pointer(path).and_then(Value::as_str);
        let mut headers = Vec::new();
        let fields = event.object.pointer("/http/request/headers");
        for (name, values) in fields.and_then(Value::as_object).into_iter().flatten() {
            for value in values.as_array().into_iter().flatten() {
                if let Some(value) = value.as_str().filter(|value| !value.contains("[redacted]")) {
                    headers.push((name.to_ascii_lowercase(), value.to_owned()));
                }
            }
        }
        let length = event.object.pointer("/http/request/body_length");
        Ok(Self {
            method: text("/http/request/method")
                .unwrap_or_default()
                .to_ascii_uppercase(),
            url: text("/http/request/url/raw").unwrap_or_default().to_owned(),
            headers,
            body: match length.and_then(Value::as_u64) {
                Some(0) => Ok(Vec::new()),
                _ => Err("The body was not captured; send `body`."),
            },
        })
    }

    /// The request with changes, without its event and endpoint.
    fn edited(self, input: Input) -> Result<ReplayRequest, Refusal> {
        let wrong = |field: &str, why: &str| {
            Refusal::new(code::BODY_FIELD_INVALID, format!("`{field}` {why}."))
        };
        let skips_policy = input.skips_policy()?;
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        let target = match &*input.path {
            "" if target.contains("[redacted]") => {
                return Err(refused("The URL was redacted; send `path`."));
            }
            "" if target.starts_with('/') => target.to_owned(),
            "" => format!("/{target}"),
            path if !path.starts_with('/') || path.len() > PATH_BYTES_MAX => {
                return Err(wrong("path", "must begin with `/` and have at most 16 KiB"));
            }
            path => path.to_owned(),
        };
        let method = match &*input.method {
            "" => self.method,
            method if method.len() > METHOD_BYTES_MAX => {
                return Err(wrong("method", "may have at most 32 characters"));
            }
            method => method.to_owned(),
        };
        let has_fields = !input.headers.is_empty();
        let mut headers = match has_fields {
            true => input
                .headers
                .into_iter()
                .map(|it| (it.name, it.value))
                .collect(),
            false => self.headers,
        };
        let bytes = headers.iter().map(|(name, value)| name.len() + value.len());
        if headers.len() > HEADERS_MAX || bytes.sum::<usize>() > HEADER_BYTES_MAX {
            let why = "may have at most 128 fields of 64 KiB in total";
            return Err(wrong("headers", why));
        }
        let body = match input.body {
            None => self.body.map_err(refused)?,
            Some(InputBody { text, base64 }) => {
                if !text.is_empty() && !base64.is_empty() {
                    return Err(wrong("body", "must have `text` or `base64`, not both"));
                }
                if !has_fields {
                    // The field describes the body that is replaced.
                    headers.retain(|(name, _)| name != "content-encoding");
                }
                match base64.is_empty() {
                    true => text.into_bytes(),
                    false => {
                        let bytes = STANDARD.decode(base64);
                        bytes.map_err(|_| wrong("body.base64", "must be base64"))?
                    }
                }
            }
        };
        Ok(ReplayRequest {
            event: String::new(),
            endpoint: String::new(),
            skips_policy,
            is_https: scheme == "https",
            authority: authority.to_owned(),
            method,
            target,
            headers,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original() -> Original {
        Original {
            method: "POST".to_owned(),
            url: "https://a.test:8443?x=1".to_owned(),
            headers: vec![("content-encoding".to_owned(), "gzip".to_owned())],
            body: Ok(b"body".to_vec()),
        }
    }

    #[test]
    fn a_captured_request_is_replayed_unchanged_or_edited() {
        let request = original().edited(Input::default()).unwrap();
        assert_eq!(
            (&*request.authority, &*request.target),
            ("a.test:8443", "/?x=1")
        );
        assert!(request.is_https && !request.skips_policy);
        assert_eq!((request.headers.len(), &*request.body), (1, &b"body"[..]));
        let input = Input {
            to: "upstream".to_owned(),
            method: "PUT".to_owned(),
            path: "/b".to_owned(),
            body: Some(InputBody::default()),
            ..Input::default()
        };
        let request = original().edited(input).unwrap();
        assert!(request.skips_policy && request.headers.is_empty() && request.body.is_empty());
        assert_eq!((&*request.method, &*request.target), ("PUT", "/b"));
    }

    #[test]
    fn edits_of_a_replay_are_limited_and_keep_the_host() {
        let field = |name: &str, value: &str| InputField {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let body = |text: &str, base64: &str| Input {
            body: Some(InputBody {
                text: text.to_owned(),
                base64: base64.to_owned(),
            }),
            ..Input::default()
        };
        let path = |path: String| Input {
            path,
            ..Input::default()
        };
        let headers = |headers| Input {
            headers,
            ..Input::default()
        };
        for input in [
            Input {
                to: "host".to_owned(),
                ..Input::default()
            },
            Input {
                method: "M".repeat(33),
                ..Input::default()
            },
            path("http://b.test/".to_owned()),
            path("@b.test/".to_owned()),
            path("/".repeat(PATH_BYTES_MAX + 1)),
            headers(vec![field("a", "b"); 129]),
            headers(vec![field("a", &"b".repeat(70_000))]),
            body("a", "YQ=="),
            body("", "%"),
        ] {
            let refusal = original().edited(input).unwrap_err();
            assert_eq!(refusal.code, Some(code::BODY_FIELD_INVALID));
        }
    }

    #[test]
    fn a_replay_must_supply_what_was_not_captured() {
        let mut unknown = original();
        unknown.body = Err("The body was not captured; send `body`.");
        assert_eq!(
            unknown.edited(Input::default()).unwrap_err().code,
            Some(code::REQUEST_NOT_REPLAYABLE)
        );
        let mut redacted = original();
        redacted.url = "http://a.test/?token=[redacted]".to_owned();
        assert!(redacted.edited(Input::default()).is_err());
    }
}
