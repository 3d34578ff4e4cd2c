//! Field sections as requests, responses and trailers (RFC 9113 8.1 to 8.3).

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::uri::{self, PathAndQuery, Scheme, Uri};
use http::{Method, Request, StatusCode, Version, request, response};
use memchr::memchr;

use crate::http1::limits::{FIELDS_MAX, TRAILERS_MAX};
use crate::http1::{BodyLength, RawDraft, RawRequest, Violation};
use crate::http2::hpack::{self, Field, Pseudo};
use crate::refused_head::RefusedHead;
use crate::target;

/// Most bytes of a decoded field section, with 32 for each field (RFC 9113 6.5.2).
pub const LIST_BYTES_MAX: usize = 64 << 10;

/// A well-formed request that must be refused with a status. Request heads carry it as an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub Violation);

/// The schemes that the requests of a connection may name (RFC 9113 8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schemes {
    /// Over TLS: `https`.
    #[default]
    Https,
    /// In the clear: `http`.
    Http,
    /// In the clear, from a trusted proxy that may have terminated TLS: `http`, or `https` in a request with `:authority`.
    /// The target of a head in parts then has the scheme that the request names, and the caller decides about `https`.
    HttpOrHttps,
}

impl Schemes {
    /// That of the connection.
    pub fn own(self) -> Scheme {
        match self {
            Self::Https => Scheme::HTTPS,
            Self::Http | Self::HttpOrHttps => Scheme::HTTP,
        }
    }
}

/// The protocol of an extended CONNECT (RFC 8441 4). Request heads carry it as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol(Bytes);

impl Protocol {
    fn new(name: Bytes) -> Option<Self> {
        std::str::from_utf8(&name).is_ok().then_some(Self(name))
    }

    /// Its name, as received.
    pub fn as_str(&self) -> &str {
        // Checked by `new`.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The head of a request.
#[derive(Debug)]
pub enum IncomingHead {
    /// As text: most heads have nothing that needs a map.
    Raw(Box<RawRequest>),
    /// With a map of its fields, and its target in normal form.
    Parts(Box<request::Parts>),
}

impl IncomingHead {
    /// The head with a map of its fields. A head as text names the scheme of its connection, `scheme`. A [`Refused`] among
    /// its extensions says that it must be refused.
    pub fn into_parts(self, scheme: Scheme) -> Box<request::Parts> {
        match self {
            Self::Raw(raw) => read_raw(&raw, scheme).unwrap_or_else(|| {
                let mut parts = Box::new(Request::new(()).into_parts().0);
                parts.version = Version::HTTP_2;
                let violation = Violation::Malformed("the head is malformed");
                parts.extensions.insert(Refused(violation));
                parts
            }),
            Self::Parts(parts) => parts,
        }
    }

    /// The value of `content-length`.
    ///
    /// # Errors
    ///
    /// When it is repeated or not a number.
    pub(super) fn content_length(&self) -> Result<Option<u64>, Verdict> {
        let length = match self {
            Self::Raw(raw) => {
                let mut length = BodyLength::default();
                let mut fields = raw.fields().iter();
                fields
                    .try_for_each(|field| length.note(field.name, field.value))
                    .map(|()| length.bytes())
            }
            Self::Parts(parts) => BodyLength::content_length(&parts.headers),
        };
        length.map_err(|_| Verdict::Malformed)
    }

    /// Whether the client waits for 100 (Continue) (RFC 9110 10.1.1).
    pub(super) fn expects_continue(&self) -> bool {
        match self {
            Self::Raw(raw) => raw.fields().iter().any(|field| field.is("expect")),
            Self::Parts(parts) => parts.headers.contains_key(EXPECT),
        }
    }
}

/// The head of a request on HTTP/2 as it would have been read into a map.
fn read_raw(raw: &RawRequest, scheme: Scheme) -> Option<Box<request::Parts>> {
    let share = |part: &[u8]| raw.bytes().slice_ref(part);
    let host = share(raw.fields().get(0)?.value);
    let path = share(raw.target().as_bytes());
    let mut target = uri::Parts::default();
    target.scheme = Some(scheme);
    target.authority = Some(uri::Authority::from_maybe_shared(host).ok()?);
    target.path_and_query = Some(PathAndQuery::from_maybe_shared(path).ok()?);
    let mut parts = Box::new(Request::new(()).into_parts().0);
    parts.version = Version::HTTP_2;
    parts.method = raw.method().clone();
    parts.uri = Uri::from_parts(target).ok()?;
    parts.headers = read_fields(raw)?;
    Some(parts)
}

/// The map of its fields without `host`, which was a pseudo-header field.
fn read_fields(raw: &RawRequest) -> Option<HeaderMap> {
    let fields = raw.fields().iter().enumerate().skip(1);
    let mut map = HeaderMap::with_capacity(fields.len());
    for (position, field) in fields {
        let name = HeaderName::from_bytes(field.name).ok()?;
        let value = raw.bytes().slice_ref(field.value);
        let mut value = HeaderValue::from_maybe_shared(value).ok()?;
        value.set_sensitive(raw.is_sensitive(position));
        map.try_append(name, value).ok()?;
    }
    Some(map)
}

/// A field section that is being decoded.
#[derive(Debug, Default)]
pub(super) struct Fields<'r> {
    method: Option<Bytes>,
    scheme: Option<Bytes>,
    authority: Option<Bytes>,
    path: Option<Bytes>,
    protocol: Option<Bytes>,
    /// Those that the connection allows.
    schemes: Schemes,
    /// Memory for a head as text, until that has begun; `None` if none is wanted.
    room: Option<&'r mut BytesMut>,
    /// The head as text, as long as it has nothing that needs a map.
    draft: Option<RawDraft<'r>>,
    plain: HeaderMap,
    has_cookie: bool,
    /// Number of fields. All `cookie` fields count as one, because they will be joined (RFC 9113 8.2.3).
    count: usize,
    bytes: usize,
    verdict: Verdict,
}

/// The verdict on a field section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Verdict {
    #[default]
    Good,
    Malformed,
    TooLarge,
}

impl<'r> Fields<'r> {
    /// Those of a request, whose head may be kept as text in `room`.
    pub(super) fn of_request(schemes: Schemes, room: Option<&'r mut BytesMut>) -> Self {
        Self {
            schemes,
            room,
            ..Self::default()
        }
    }

    /// The size of all fields.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a field of `bytes` bytes, which a table may also have as a line. Drops it if a limit is exceeded.
    pub(super) fn add(&mut self, field: &Field, bytes: usize, line: Option<&[u8]>) {
        self.bytes += bytes;
        if self.verdict != Verdict::Good {
            return;
        }
        if self.bytes > LIST_BYTES_MAX {
            self.verdict = Verdict::TooLarge;
            return;
        }
        self.verdict = match field {
            Field::Pseudo(name, value) => self.set(*name, value),
            Field::Plain(name, value) if is_of_a_message(name, value) => {
                let is_more_cookies = *name == COOKIE && self.has_cookie;
                self.has_cookie |= *name == COOKIE;
                self.count += usize::from(!is_more_cookies);
                if self.count > FIELDS_MAX {
                    // The refusal does not need them.
                    return;
                }
                self.keep(name, value, line, is_more_cookies)
            }
            Field::Plain(..) | Field::Wrong => Verdict::Malformed,
        };
    }

    fn set(&mut self, name: Pseudo, value: &Bytes) -> Verdict {
        let place = match name {
            Pseudo::Authority => &mut self.authority,
            Pseudo::Method => &mut self.method,
            Pseudo::Path => &mut self.path,
            Pseudo::Protocol => &mut self.protocol,
            Pseudo::Scheme => &mut self.scheme,
        };
        // Each occurs once, and before all other fields (RFC 9113 8.3).
        if place.is_some() || self.count > 0 {
            return Verdict::Malformed;
        }
        *place = Some(value.clone());
        Verdict::Good
    }

    /// Keeps a field in the text, or in the map if it needs that.
    fn keep(
        &mut self,
        name: &HeaderName,
        value: &HeaderValue,
        line: Option<&[u8]>,
        is_more_cookies: bool,
    ) -> Verdict {
        self.begin_draft();
        let is_usual = !is_more_cookies && *name != HOST;
        if let Some(draft) = &mut self.draft {
            let is_added = is_usual
                && match line {
                    // The value of a table's field is not sensitive.
                    Some(line) => draft.add_line(line, value.len()),
                    None => {
                        let name = name.as_str().as_bytes();
                        draft.add(name, value.as_bytes(), value.is_sensitive())
                    }
                };
            if is_added {
                return Verdict::Good;
            }
        }
        if let Some(draft) = self.draft.take() {
            match read_fields(&draft.finish()) {
                Some(fields) => self.plain = fields,
                None => return Verdict::Malformed,
            }
        }
        match self.plain.try_append(name, value.clone()) {
            Ok(_) => Verdict::Good,
            Err(_) => Verdict::TooLarge,
        }
    }

    /// Begins the head as text, once all pseudo-header fields are known, if its target and host need no more checks.
    fn begin_draft(&mut self) {
        if let Some(room) = self.room.take() {
            self.draft = self.draft(room);
        }
    }

    fn draft(&self, room: &'r mut BytesMut) -> Option<RawDraft<'r>> {
        let method = Method::from_bytes(self.method.as_ref()?).ok()?;
        let (authority, path) = (self.authority.as_ref()?, self.path.as_ref()?);
        let is_usual = method != Method::CONNECT
            && self.protocol.is_none()
            && target::read_scheme(self.scheme.as_ref()?)? == self.schemes.own()
            && is_plain_authority(authority)
            && path.len() <= target::TARGET_BYTES_MAX
            && target::check(path, method == Method::OPTIONS) == Ok(true);
        if is_usual {
            RawDraft::new(room, method, path, authority)
        } else {
            None
        }
    }

    /// Returns the head of a request.
    ///
    /// # Errors
    ///
    /// When the section is not a valid request. Then the result has its known parts.
    pub(super) fn request(mut self) -> Result<IncomingHead, (Verdict, Box<RefusedHead>)> {
        if self.verdict != Verdict::Good {
            return Err((self.verdict, self.refused()));
        }
        self.begin_draft();
        if let Some(draft) = self.draft.take() {
            return Ok(IncomingHead::Raw(Box::new(draft.finish())));
        }
        match self.parts() {
            Some(parts) => Ok(IncomingHead::Parts(Box::new(parts))),
            None => Err((Verdict::Malformed, self.refused())),
        }
    }

    /// The known parts of a request that is not valid.
    #[cold]
    fn refused(self) -> Box<RefusedHead> {
        let mut headers = self.plain;
        if let Some(draft) = self.draft {
            headers = read_fields(&draft.finish()).unwrap_or_default();
        }
        let (method, authority) = (self.method.as_ref(), self.authority.as_ref());
        let mut refused = RefusedHead::http2(method, authority, headers);
        let is_options = refused.parts.method == Method::OPTIONS;
        let path = self.path.as_ref();
        if let Some(Ok((local, received))) = path.map(|path| target::read_path(path, is_options)) {
            refused.parts.uri = Uri::from(local);
            if let Some(received) = received {
                refused.parts.extensions.insert(received);
            }
            refused.has_target = true;
        }
        Box::new(refused)
    }

    fn parts(&mut self) -> Option<request::Parts> {
        let mut parts = Request::new(()).into_parts().0;
        parts.version = Version::HTTP_2;
        parts.method = Method::from_bytes(self.method.as_ref()?).ok()?;
        let mut target = uri::Parts::default();
        if let Some(authority) = &self.authority {
            let authority = uri::Authority::from_maybe_shared(authority.clone());
            target.authority = Some(authority.ok()?);
        }
        if parts.method == Method::CONNECT && self.protocol.is_none() {
            // Its target is an authority (RFC 9113 8.5).
            if self.scheme.is_some() || self.path.is_some() || target.authority.is_none() {
                return None;
            }
        } else {
            let scheme = self.scheme.as_ref()?;
            let path = self.path.as_ref().filter(|path| !path.is_empty())?;
            let mut refused = (self.count + usize::from(target.authority.is_some()) > FIELDS_MAX)
                .then_some(Violation::FieldsTooLarge);
            let own = self.schemes.own();
            let named = target::read_scheme(scheme).filter(|named| {
                let is_proxied = self.schemes == Schemes::HttpOrHttps && target.authority.is_some();
                *named == own || is_proxied
            });
            if named.is_none() {
                refused = Some(Violation::Malformed(
                    "the scheme is not that of the connection",
                ));
            }
            if path.len() > target::TARGET_BYTES_MAX {
                refused = Some(Violation::TargetTooLong);
            }
            let local = match refused {
                Some(_) => Ok((PathAndQuery::from_static("/"), None)),
                None => target::read_path(path, parts.method == Method::OPTIONS),
            };
            let (local, received) = local.unwrap_or_else(|what| {
                refused = Some(Violation::of(what));
                (PathAndQuery::from_static("/"), None)
            });
            if let Some(violation) = refused {
                parts.extensions.insert(Refused(violation));
            }
            if let Some(received) = received {
                parts.extensions.insert(received);
            }
            target.path_and_query = Some(local);
            // Without `:authority` the host is in a field, and the target has no scheme.
            target.scheme = target.authority.is_some().then(|| named.unwrap_or(own));
        }
        if let Some(protocol) = self.protocol.clone() {
            if parts.method != Method::CONNECT || target.authority.is_none() {
                return None;
            }
            parts.extensions.insert(Protocol::new(protocol)?);
        }
        parts.uri = Uri::from_parts(target).ok()?;
        parts.headers = std::mem::take(&mut self.plain);
        Some(parts)
    }

    /// Returns the trailers.
    ///
    /// # Errors
    ///
    /// When they are not allowed.
    pub(super) fn trailers(self) -> Result<HeaderMap, Verdict> {
        let pseudo = [
            &self.method,
            &self.scheme,
            &self.authority,
            &self.path,
            &self.protocol,
        ];
        match self.verdict {
            Verdict::Good if pseudo.iter().any(|it| it.is_some()) => Err(Verdict::Malformed),
            Verdict::Good if self.count > TRAILERS_MAX => Err(Verdict::TooLarge),
            Verdict::Good => Ok(self.plain),
            wrong => Err(wrong),
        }
    }
}

/// Whether a field is allowed in HTTP/2 (RFC 9113 8.2.2).
fn is_of_a_message(name: &HeaderName, value: &HeaderValue) -> bool {
    let is_of_the_connection = *name == CONNECTION
        || *name == TRANSFER_ENCODING
        || *name == UPGRADE
        || matches!(name.as_str(), "keep-alive" | "proxy-connection");
    !is_of_the_connection && (*name != TE || value == "trailers")
}

/// Whether an authority consists of a name or IPv4 address, and perhaps a port.
fn is_plain_authority(authority: &[u8]) -> bool {
    let (host, port) = match memchr(b':', authority) {
        Some(colon) => {
            let (host, port) = authority.split_at(colon);
            (host, port.get(1..).unwrap_or_default())
        }
        None => (authority, &b"0"[..]),
    };
    const OF_A_HOST: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            table[byte] = (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'-' | b'.');
            byte += 1;
        }
        table
    };
    let is_host = |byte: &u8| OF_A_HOST[usize::from(*byte)];
    let is_port = (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit);
    !host.is_empty() && host.iter().all(is_host) && is_port
}

/// Writes the head of a response from its fields, whose names may be in upper case and which HTTP/2 allows.
pub(super) fn write_lines<'x>(
    out: &mut Vec<u8>,
    status: StatusCode,
    fields: impl Iterator<Item = (&'x [u8], &'x [u8])>,
) {
    hpack::write_status(out, status);
    for (name, value) in fields {
        hpack::write_line(out, name, value);
    }
}

/// Writes the head of a response.
pub(super) fn write_response(out: &mut Vec<u8>, head: &response::Parts) {
    hpack::write_status(out, head.status);
    write_fields(out, &head.headers);
}

/// Writes fields, except those that HTTP/2 does not allow.
pub(super) fn write_fields(out: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        if is_of_a_message(name, value) {
            hpack::write_field(out, name, value);
        }
    }
}
