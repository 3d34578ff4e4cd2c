//! Heads that pass almost as received: their lines are copied, without a map of their fields.
//!
//! Most requests and responses of endpoints without a policy have such heads. A head with a field that needs more than to
//! be removed is not plain; it is read into a map and takes the general path, which has the same results
//! ([`fields`](crate::http::fields)).

use culvert_http::fields::{authenticates_connection, is_of_one_hop};
use culvert_http::http1::{
    BodyWriter, FieldSet, RawField, RawRequest, RawResponse, WriteBuffer, end_request,
    write_request,
};
use culvert_policy::own_cookies;
use culvert_policy::problem::{is_edges_own, is_edges_request};
use culvert_traces::{Outgoing, TRACEPARENT, TRACESTATE};
use culvert_upstream::UpstreamHead;
use http::header::{EXPECT, HeaderMap, HeaderValue, UPGRADE};
use http::{Method, StatusCode, request};

use crate::http::fields::{self, FIELD_OVERHEAD, says_who_calls};

/// Longest name that is compared with the names of the edge.
const NAME_BYTES_MAX: usize = 32;

/// A request that is sent as received, except for fields of the hop and forwarding fields.
#[derive(Debug)]
pub(crate) struct PlainRequest {
    raw: Box<RawRequest>,
    /// Fields that are not sent.
    without: FieldSet,
    host: usize,
    accept: Option<usize>,
    user_agent: Option<usize>,
    length: Option<u64>,
    /// Whether the client keeps the connection open.
    pub(crate) keeps_alive: bool,
}

/// What becomes of a field of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldUse {
    Sent,
    Removed,
    /// It needs the general path.
    Unusual,
}

/// A name in lower case, if it is short, and consists of letters, digits and `-`.
fn lower<'b>(name: &[u8], room: &'b mut [u8; NAME_BYTES_MAX]) -> Option<&'b str> {
    let room = room.get_mut(..name.len())?;
    room.copy_from_slice(name);
    room.make_ascii_lowercase();
    std::str::from_utf8(room).ok()
}

fn is_plain(name: &[u8]) -> bool {
    const PLAIN: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            table[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'-';
            byte += 1;
        }
        table
    };
    name.iter().all(|byte| PLAIN[usize::from(*byte)])
}

/// Whether a name may be one that the edge interprets: by its length, which is cheaper to compare.
fn may_be_ours(name: &[u8]) -> bool {
    match name.len() {
        2 | 4..=7 | 9 | 10 | 14 | 16..=19 => true,
        length => length >= 12 && matches!(name.first(), Some(b'x' | b'X')),
    }
}

impl PlainRequest {
    /// The request, if it is plain. A peer that is `trusted` may send forwarding fields, which are continued.
    pub(crate) fn of(raw: Box<RawRequest>, trusted: bool) -> Result<Self, Box<RawRequest>> {
        let mut without = FieldSet::default();
        let (mut host, mut accept, mut user_agent) = (None, None, None);
        let (mut length, mut keeps_alive) = (None, true);
        let mut is_plain_head = *raw.method() != Method::TRACE && raw.method().as_str() != "PRI";
        for (position, field) in raw.fields().iter().enumerate() {
            let fate = if !is_plain(field.name) {
                FieldUse::Unusual
            } else if !may_be_ours(field.name) {
                match field.is("authorization") && authenticates_connection(field.value) {
                    true => FieldUse::Unusual,
                    false => FieldUse::Sent,
                }
            } else if field.is("host") {
                host = Some(position);
                FieldUse::Sent
            } else if field.is("accept") {
                accept = accept.or(Some(position));
                FieldUse::Sent
            } else if field.is("user-agent") {
                user_agent = user_agent.or(Some(position));
                FieldUse::Sent
            } else if field.is("connection") {
                connection(field, &mut keeps_alive)
            } else if field.is("content-length") {
                length = plain_number(field.value);
                match length {
                    Some(_) => FieldUse::Sent,
                    None => FieldUse::Unusual,
                }
            } else {
                other(field, trusted)
            };
            match fate {
                FieldUse::Sent => {}
                FieldUse::Removed => without.add(position),
                FieldUse::Unusual => {
                    is_plain_head = false;
                    break;
                }
            }
        }
        match host {
            Some(host) if is_plain_head => Ok(Self {
                raw,
                without,
                host,
                accept,
                user_agent,
                length,
                keeps_alive,
            }),
            _ => Err(raw),
        }
    }

    /// Leaves out the fields with these names.
    pub(crate) fn leave_out(&mut self, names: &[&str]) {
        for (position, field) in self.raw.fields().iter().enumerate() {
            if names.iter().any(|name| field.is(name)) {
                self.without.add(position);
            }
        }
    }

    /// HTTP/2: the size of its target and fields, with the overhead for each field of RFC 9113 6.5.2. The first field was a
    /// pseudo-header field and does not count.
    pub(crate) fn size(&self) -> usize {
        let fields = self.raw.fields().iter().skip(1);
        fields.fold(self.raw.target().len(), |sum, field| {
            sum + field.name.len() + field.value.len() + FIELD_OVERHEAD
        })
    }

    /// The head as received.
    pub(crate) fn raw(&self) -> &RawRequest {
        &self.raw
    }

    pub(crate) fn into_raw(self) -> Box<RawRequest> {
        self.raw
    }

    fn value(&self, position: Option<usize>) -> Option<&[u8]> {
        Some(self.raw.fields().get(position?)?.value)
    }

    /// The value of its `host` field, if it is text.
    pub(crate) fn host(&self) -> Option<&str> {
        std::str::from_utf8(self.value(Some(self.host))?).ok()
    }

    /// The value of its first `accept` field.
    pub(crate) fn accept(&self) -> Option<&[u8]> {
        self.value(self.accept)
    }

    /// The value of its first `user-agent` field.
    pub(crate) fn user_agent(&self) -> Option<&[u8]> {
        self.value(self.user_agent)
    }
}

/// A number without leading zeros, which some servers read as octal.
fn plain_number(digits: &[u8]) -> Option<u64> {
    let is_padded = digits.len() > 1 && digits.starts_with(b"0");
    let digits = std::str::from_utf8(digits).ok().filter(|_| !is_padded)?;
    digits.parse().ok()
}

/// A `connection` field: the usual options name no other field.
fn connection(field: RawField<'_>, keeps_alive: &mut bool) -> FieldUse {
    if field.value.eq_ignore_ascii_case(b"keep-alive") {
        FieldUse::Removed
    } else if field.value.eq_ignore_ascii_case(b"close") {
        *keeps_alive = false;
        FieldUse::Removed
    } else {
        FieldUse::Unusual
    }
}

/// A field that the callers have no rule for.
fn other(field: RawField<'_>, trusted: bool) -> FieldUse {
    let mut room = [0; NAME_BYTES_MAX];
    let Some(name) = lower(field.name, &mut room) else {
        // Forwarding fields have a common beginning, so a long name may be one.
        return match field.name.get(..12) {
            Some(start) if start.eq_ignore_ascii_case(b"x-forwarded-") => FieldUse::Unusual,
            _ => FieldUse::Sent,
        };
    };
    match name {
        "expect" | "te" | "transfer-encoding" | "upgrade" => FieldUse::Unusual,
        "trailer" => FieldUse::Removed,
        // The general path removes the edge's cookies.
        "cookie" if own_cookies::has_own(field.value) => FieldUse::Unusual,
        _ if is_edges_request(name) => FieldUse::Unusual,
        _ if is_of_one_hop(name) => FieldUse::Removed,
        _ if says_who_calls(name) => match trusted {
            true => FieldUse::Unusual,
            false => FieldUse::Removed,
        },
        _ => FieldUse::Sent,
    }
}

/// The head of a request to an upstream.
#[derive(Debug)]
pub(crate) enum OutgoingHead<'x> {
    Parts(Box<request::Parts>),
    Plain {
        request: &'x PlainRequest,
        /// The values of forwarding fields.
        client: HeaderValue,
        scheme: &'static str,
        /// The fields of its trace, if it has one. Those of the client are not sent then.
        trace: Option<Box<Outgoing>>,
    },
}

impl OutgoingHead<'_> {
    /// Whether it asks for another protocol. An upstream that received it may have begun to speak that.
    pub(crate) fn is_upgrade(&self) -> bool {
        match self {
            Self::Parts(parts) => parts.headers.contains_key(UPGRADE),
            Self::Plain { .. } => false,
        }
    }

    /// Sets the fields of its trace.
    pub(crate) fn set_trace(&mut self, outgoing: Outgoing) {
        match self {
            Self::Parts(parts) => set_trace(&mut parts.headers, outgoing),
            Self::Plain { trace, .. } => *trace = Some(Box::new(outgoing)),
        }
    }
}

/// Replaces the fields of a trace.
pub(crate) fn set_trace(headers: &mut HeaderMap, outgoing: Outgoing) {
    headers.insert(TRACEPARENT, outgoing.parent_value());
    match outgoing.tracestate {
        Some(state) => drop(headers.insert(TRACESTATE, state)),
        None => drop(headers.remove(TRACESTATE)),
    }
}

impl OutgoingHead<'_> {
    /// The values of a field, whose name is in lower case.
    pub(crate) fn each_value(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Parts(parts) => {
                let values = parts.headers.get_all(name).into_iter();
                values.for_each(|value| each(value.as_bytes()));
            }
            Self::Plain { request, .. } => {
                let fields = request.raw.fields().iter();
                let named = fields.filter(|field| field.is(name));
                named.for_each(|field| each(field.value));
            }
        }
    }
}

impl UpstreamHead for OutgoingHead<'_> {
    fn method(&self) -> &Method {
        match self {
            Self::Parts(parts) => &parts.method,
            Self::Plain { request, .. } => request.raw.method(),
        }
    }

    fn wants_raw_response(&self) -> bool {
        matches!(self, Self::Plain { .. })
    }

    fn awaits_continue(&self) -> bool {
        match self {
            Self::Parts(parts) => {
                let expected = parts.headers.get(EXPECT);
                expected.is_some_and(|value| value == fields::CONTINUE)
            }
            Self::Plain { .. } => false,
        }
    }

    fn write(&self, out: &mut WriteBuffer, body_bytes: Option<u64>) -> BodyWriter {
        match self {
            Self::Parts(parts) => write_request(out, parts, body_bytes),
            Self::Plain {
                request,
                client,
                scheme,
                trace,
            } => {
                let out = out.front();
                request.raw.write_line(out);
                request.raw.fields().write(out, request.without);
                let host = request.value(Some(request.host)).unwrap_or_default();
                for part in [
                    b"x-forwarded-for: ",
                    client.as_bytes(),
                    b"\r\nx-forwarded-proto: ",
                    scheme.as_bytes(),
                    b"\r\nx-forwarded-host: ",
                    host,
                    b"\r\n",
                ] {
                    out.extend_from_slice(part);
                }
                if let Some(trace) = trace {
                    let state = trace.tracestate.as_ref();
                    let fields = [
                        (TRACEPARENT, Some(&trace.traceparent[..])),
                        (TRACESTATE, state.map(HeaderValue::as_bytes)),
                    ];
                    for (name, value) in fields {
                        let Some(value) = value else { continue };
                        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                            out.extend_from_slice(part);
                        }
                    }
                }
                end_request(out, request.raw.method(), request.length, body_bytes)
            }
        }
    }
}

/// A response that is sent as received, except for fields of the hop.
#[derive(Debug)]
pub(crate) struct PlainResponse {
    raw: Box<RawResponse>,
    without: FieldSet,
    /// The length of its body.
    pub(crate) length: u64,
    /// Added if it has none.
    date: Option<HeaderValue>,
    /// Whether the connection to the client closes after it.
    pub(crate) closes: bool,
}

impl PlainResponse {
    /// The response to a request that is not HEAD, if it is plain: with a body of known length, and not 426 (Upgrade Required),
    /// which keeps a field of the hop. `date` is for one without.
    pub(crate) fn of(
        raw: Box<RawResponse>,
        date: impl FnOnce() -> HeaderValue,
    ) -> Result<Self, Box<RawResponse>> {
        let is_other = [
            StatusCode::NO_CONTENT,
            StatusCode::NOT_MODIFIED,
            StatusCode::UPGRADE_REQUIRED,
        ]
        .contains(&raw.status());
        let length = match raw.length().bytes() {
            Some(length) if !is_other => length,
            _ => return Err(raw),
        };
        let (mut without, mut has_date) = (FieldSet::default(), false);
        let mut has_plain_length = true;
        for (position, field) in raw.fields().iter().enumerate() {
            has_date |= field.is("date");
            if !may_be_ours(field.name) {
                continue;
            }
            if field.is("content-length") {
                has_plain_length = plain_number(field.value).is_some();
                continue;
            }
            let mut room = [0; NAME_BYTES_MAX];
            if let Some(name) = lower(field.name, &mut room)
                && (is_of_one_hop(name)
                    || is_edges_own(name)
                    || (name == "set-cookie" && own_cookies::sets_own(field.value)))
            {
                without.add(position);
            }
        }
        if !has_plain_length {
            return Err(raw);
        }
        Ok(Self {
            raw,
            without,
            length,
            date: (!has_date).then(date),
            closes: false,
        })
    }

    /// The status.
    pub(crate) fn status(&self) -> StatusCode {
        self.raw.status()
    }

    /// The fields as they are sent.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let raw = self.raw.fields().iter().enumerate();
        let sent = raw
            .filter(|(position, _)| !self.without.has(*position))
            .map(|(_, field)| (field.name, field.value));
        let date = self.date.iter();
        let date = date.map(|date| (&b"date"[..], date.as_bytes()));
        let close = self.closes.then_some((&b"connection"[..], &b"close"[..]));
        sent.chain(date).chain(close)
    }

    /// Writes it.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.raw.write_line(out);
        self.raw.fields().write(out, self.without);
        if let Some(date) = &self.date {
            out.extend_from_slice(b"date: ");
            out.extend_from_slice(date.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        if self.closes {
            out.extend_from_slice(b"connection: close\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests;
