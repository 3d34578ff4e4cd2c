//! Message heads: parsing and writing (RFC 9112 2 to 5).
//!
//! The fields of a parsed head share its memory.

use bytes::{BufMut, Bytes};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version, request, response};
use memchr::memchr;

use crate::http1::body::BodyLength;
use crate::target;

/// Error for a field name that is not a token.
pub(crate) const NO_NAME: &str = "a field name is not a token";
const NO_STATUS: &str = "the response does not start with a status line";
pub(crate) const NO_METHOD: &str = "the method is not a token";
const TOO_MANY: &str = "a message has too many fields";
/// Error for a field value with a control character.
pub(crate) const NO_VALUE: &str = "a field value has a control character";

/// Space for fields that a proxy adds to a request.
const ADDED_TO_REQUESTS: usize = 3;
/// Space for the `date` of a response.
const ADDED_TO_RESPONSES: usize = 1;

/// Parses the head of a request that [`Framing`](super::Framing) has accepted. `lines` is its number of field
/// lines.
///
/// The target is normalised.
///
/// # Errors
///
/// When the target cannot be normalised.
pub(crate) fn request(head: &Bytes, lines: usize) -> Result<Box<request::Parts>, &'static str> {
    let empty_lines = head.chunks(2).take_while(|line| line == b"\r\n");
    let start = 2 * empty_lines.count();
    let (line, fields) = line(head, start).ok_or("the head has no line")?;
    let line = request_line(line)?;
    let mut parts = Box::new(Request::new(()).into_parts().0);
    parts.method = Method::from_bytes(line.method).map_err(|_| NO_METHOD)?;
    let target = target::read(&head.slice_ref(line.target), line.method == b"OPTIONS")?;
    parts.uri = target.uri;
    if let Some(received) = target.received {
        parts.extensions.insert(received);
    }
    parts.version = line.version;
    parts.headers = HeaderMap::with_capacity(lines + ADDED_TO_REQUESTS);
    read_fields(head, fields, &mut parts.headers)?;
    Ok(parts)
}

/// Parses the head of a response with `lines` field lines. A line may end with LF alone, as old servers write
/// it (RFC 9112 2.2).
///
/// # Errors
///
/// When the head is malformed or has more than `lines_max` field lines.
pub(crate) fn response(
    head: &Bytes,
    lines: usize,
    lines_max: usize,
) -> Result<response::Parts, &'static str> {
    if lines > lines_max {
        return Err(TOO_MANY);
    }
    let (line, fields) = line(head, 0).ok_or(NO_STATUS)?;
    let line = status_line(line)?;
    let mut parts = Response::new(()).into_parts().0;
    parts.status = line.status;
    parts.version = line.version;
    parts.headers = HeaderMap::with_capacity(lines + ADDED_TO_RESPONSES);
    read_fields(head, fields, &mut parts.headers)?;
    Ok(parts)
}

/// The first line of a request (RFC 9112 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLine<'a> {
    /// A token.
    pub method: &'a [u8],
    /// As received.
    pub target: &'a [u8],
    /// HTTP/1.0 or HTTP/1.1.
    pub version: Version,
}

/// Parses a request line without its end: method, target and version, separated by single spaces.
///
/// # Errors
///
/// When the line is malformed.
pub fn request_line(line: &[u8]) -> Result<RequestLine<'_>, &'static str> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let (Some(method), Some(target), Some(version)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err("the request line has not three parts");
    };
    if method.is_empty() || !method.iter().copied().all(is_token) {
        return Err(NO_METHOD);
    }
    let version = match version {
        b"HTTP/1.1" => Version::HTTP_11,
        b"HTTP/1.0" => Version::HTTP_10,
        _ => return Err("the version is neither 1.0 nor 1.1"),
    };
    Ok(RequestLine {
        method,
        target,
        version,
    })
}

/// The first line of a response (RFC 9112 4), without the reason phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusLine {
    /// HTTP/1.0 or HTTP/1.1.
    pub version: Version,
    /// From 100 to 599.
    pub status: StatusCode,
}

/// Whether a status is one of HTTP: from 100 to 599 (RFC 9110 15). Recipients disagree about others.
pub fn is_status(status: StatusCode) -> bool {
    status.as_u16() < 600
}

/// Parses a status line without its end.
///
/// # Errors
///
/// When the line is malformed.
pub fn status_line(line: &[u8]) -> Result<StatusLine, &'static str> {
    let (version, rest) = line.split_at_checked(9).ok_or(NO_STATUS)?;
    let version = match version {
        b"HTTP/1.1 " => Version::HTTP_11,
        b"HTTP/1.0 " => Version::HTTP_10,
        _ => return Err(NO_STATUS),
    };
    let (status, reason) = rest.split_at_checked(3).ok_or(NO_STATUS)?;
    if !matches!(reason.first(), None | Some(b' ')) || !are_field_bytes(reason) {
        return Err(NO_STATUS);
    }
    let status = StatusCode::from_bytes(status).map_err(|_| NO_STATUS)?;
    if !is_status(status) {
        return Err(NO_STATUS);
    }
    Ok(StatusLine { version, status })
}

/// Splits a complete head into its first line and its field lines, each without its end.
pub fn split_head(head: &[u8]) -> Option<(&[u8], impl Iterator<Item = &[u8]>)> {
    let (first, mut at) = line(head, 0)?;
    let fields = std::iter::from_fn(move || {
        let (line, next) = line(head, at).filter(|(line, _)| !line.is_empty())?;
        at = next;
        Some(line)
    });
    Some((first, fields))
}

/// The length of the body according to the field lines of a head.
///
/// # Errors
///
/// When a line is malformed, or the length is ambiguous.
pub fn body_length<'a>(
    mut fields: impl Iterator<Item = &'a [u8]>,
) -> Result<BodyLength, &'static str> {
    fields.try_fold(BodyLength::default(), |mut length, line| {
        let (name, value) = field_line(line)?;
        length.note(name, value)?;
        Ok(length)
    })
}

/// The line that starts at `start`, without its end, and the start of the next.
fn line(head: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let rest = head.get(start..)?;
    let end = memchr(b'\n', rest)?;
    let line = rest.get(..end)?;
    Some((line.strip_suffix(b"\r").unwrap_or(line), start + end + 1))
}

fn read_fields(head: &Bytes, mut at: usize, headers: &mut HeaderMap) -> Result<(), &'static str> {
    while let Some((line, next)) = line(head, at).filter(|(line, _)| !line.is_empty()) {
        at = next;
        let (name, value) = split_field(line)?;
        let name = HeaderName::from_bytes(name).map_err(|_| NO_NAME)?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(value)).map_err(|_| NO_VALUE)?;
        headers.try_append(name, value).map_err(|_| TOO_MANY)?;
    }
    Ok(())
}

/// Finds the end of a head that arrives in pieces. Each byte is scanned once.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// Bytes that were scanned, and the start of the current line.
    seen: usize,
    line: usize,
    /// Complete lines.
    lines: usize,
}

impl End {
    /// Returns the length of the head once its empty line is in `bytes`.
    pub(crate) fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(at) = memchr(b'\n', bytes.get(self.seen..)?) {
            let end = self.seen + at;
            let line = bytes.get(self.line..end)?;
            self.seen = end + 1;
            self.line = end + 1;
            self.lines += 1;
            if line.is_empty() || line == b"\r" {
                return Some(end + 1);
            }
        }
        self.seen = bytes.len();
        None
    }

    /// Whether no byte was scanned.
    pub(crate) fn is_untouched(&self) -> bool {
        self.seen == 0
    }

    /// Number of field lines of a complete head.
    pub(crate) fn fields(&self) -> usize {
        self.lines.saturating_sub(2)
    }
}

/// Writes the head of a request without the final empty line, so that fields can be added.
pub(crate) fn write_request(out: &mut Vec<u8>, parts: &request::Parts) {
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.put_u8(b' ');
    let target = parts
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_fields(out, &parts.headers);
}

/// Writes the head of a response.
pub fn write_response(out: &mut Vec<u8>, version: Version, head: &response::Parts) {
    write_status_line(out, version, head.status);
    write_fields(out, &head.headers);
    out.extend_from_slice(b"\r\n");
}

/// Writes a status line.
pub(crate) fn write_status_line(out: &mut Vec<u8>, version: Version, status: StatusCode) {
    out.extend_from_slice(if version == Version::HTTP_10 {
        b"HTTP/1.0 "
    } else {
        b"HTTP/1.1 "
    });
    out.extend_from_slice(status.as_str().as_bytes());
    out.put_u8(b' ');
    let reason = status.canonical_reason().unwrap_or("");
    out.extend_from_slice(reason.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes field lines.
pub(crate) fn write_fields(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Parses a field line into its name and its value without surrounding whitespace.
///
/// # Errors
///
/// When the line is malformed.
pub fn field_line(line: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let (name, value) = split_field(line)?;
    check_field(name, value)?;
    Ok((name, value))
}

/// Checks the characters of a field.
#[inline]
pub(crate) fn check_field(name: &[u8], value: &[u8]) -> Result<(), &'static str> {
    if name.is_empty() || !name.iter().copied().all(is_token) {
        return Err(NO_NAME);
    }
    if !are_field_bytes(value) {
        return Err(NO_VALUE);
    }
    Ok(())
}

/// The same without a check of the characters.
fn split_field(line: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err("a field line is folded");
    }
    let colon = memchr(b':', line).ok_or("a field line has no colon")?;
    let (name, rest) = line.split_at(colon);
    Ok((name, trim(rest.get(1..).unwrap_or_default())))
}

/// Without leading and trailing spaces and tabs.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// What a byte is in a name (RFC 9110 5.6.2): 0 if no token has it, 3 for letters, digits and `-`, 1 for others.
const NAME_BYTES: [u8; 256] = {
    let mut table = [0; 256];
    let extra = b"!#$%&'*+.^_`|~";
    let mut at = 0;
    while at < 256 {
        let is_plain = (at as u8).is_ascii_alphanumeric() || at as u8 == b'-';
        table[at] = if is_plain { 3 } else { 0 };
        at += 1;
    }
    at = 0;
    while at < extra.len() {
        table[extra[at] as usize] = 1;
        at += 1;
    }
    table
};

/// Whether a byte may be in a token (RFC 9110 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    NAME_BYTES[usize::from(byte)] != 0
}

/// How many bytes at the front are in a token, and whether these are only letters, digits and `-`.
pub(crate) fn token(bytes: &[u8]) -> (usize, bool) {
    let mut common = 3;
    let end = bytes.iter().position(|byte| {
        let class = NAME_BYTES[usize::from(*byte)];
        if class != 0 {
            common &= class;
        }
        class == 0
    });
    (end.unwrap_or(bytes.len()), common == 3)
}

/// How many bytes at the front may be in a field value and are no tab.
pub(crate) fn text_length(bytes: &[u8]) -> usize {
    let mut words = bytes.chunks_exact(8);
    let mut length = 0;
    for word in &mut words {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        match controls(word) {
            0 => length += 8,
            found => return length + found.trailing_zeros() as usize / 8,
        }
    }
    let rest = words.remainder().iter();
    length
        + rest
            .take_while(|byte| is_field_byte(**byte) && **byte != b'\t')
            .count()
}

/// Whether all bytes may be in a field value (RFC 9110 5.5).
pub(crate) fn are_field_bytes(bytes: &[u8]) -> bool {
    // Eight bytes at a time: few values have a tab, and only those are checked byte by byte.
    let mut words = bytes.chunks_exact(8);
    let is_plain = |word: [u8; 8]| controls(u64::from_le_bytes(word)) == 0;
    let are_plain = match bytes.last_chunk::<8>() {
        // The last word overlaps the one before.
        Some(last) => words.all(|word| word.try_into().is_ok_and(is_plain)) && is_plain(*last),
        None => false,
    };
    are_plain || bytes.iter().copied().all(is_field_byte)
}

/// The high bit of each of eight bytes that is below 0x20 or is 0x7F. Only the lowest bit is exact: behind the first such
/// byte, others may have it too.
fn controls(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let delete = word ^ (ONES * 0x7F);
    let below = word.wrapping_sub(ONES * 0x20) & !word;
    let zero = delete.wrapping_sub(ONES) & !delete;
    (below | zero) & HIGH
}

/// Whether a byte may be in a field value (RFC 9110 5.5).
pub(crate) fn is_field_byte(byte: u8) -> bool {
    (byte >= 0x20 && byte != 0x7F) || byte == b'\t'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_a_value_counts_wherever_it_stands() {
        for length in 0..40 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut value = vec![b'a'; length];
                    value[at] = byte;
                    let expected = byte == b'\t' || byte > 0x7F || (0x20..0x7F).contains(&byte);
                    assert_eq!(
                        are_field_bytes(&value),
                        expected,
                        "{byte} at {at} of {length}"
                    );
                    // Beside a byte that needs a closer look.
                    value[length - 1 - at] = b'\t';
                    let expected = expected || at == length - 1 - at;
                    assert_eq!(
                        are_field_bytes(&value),
                        expected,
                        "{byte} at {at} of {length}"
                    );
                }
            }
        }
        assert!(are_field_bytes(b""));
    }

    #[test]
    fn text_ends_before_the_first_control_character() {
        for length in 0..20 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut value = vec![b'a'; length];
                    value[at] = byte;
                    let ends = byte < 0x20 || byte == 0x7F;
                    let expected = if ends { at } else { length };
                    assert_eq!(text_length(&value), expected, "{byte} at {at} of {length}");
                    // Whatever follows.
                    if let Some(next) = value.get_mut(at + 1) {
                        *next = b' ';
                    }
                    assert_eq!(text_length(&value), expected, "{byte} at {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn a_head_ends_behind_its_first_empty_line() {
        for (bytes, end) in [
            (&b"HTTP/1.1 200 OK\r\na: b\r\n\r\nrest"[..], Some(25)),
            (b"HTTP/1.1 200 OK\na: b\n\nrest", Some(22)),
            (b"HTTP/1.1 200 OK\r\na: b\r\n\r", None),
            (b"\r\n", Some(2)),
            (b"", None),
        ] {
            assert_eq!(End::default().find(bytes), end);
            let mut dripped = End::default();
            let found = (1..=bytes.len()).find_map(|length| dripped.find(&bytes[..length]));
            assert_eq!(found, end);
        }
    }

    #[test]
    fn answers_are_read() {
        let read = |head: &'static str| {
            let mut end = End::default();
            end.find(head.as_bytes());
            response(&Bytes::from_static(head.as_bytes()), end.fields(), 2)
        };
        let parts = read("HTTP/1.1 204 No Content\r\nA: b\r\na:\t c \r\n\r\n").unwrap();
        assert_eq!(parts.status, StatusCode::NO_CONTENT);
        let values: Vec<_> = parts.headers.get_all("a").iter().collect();
        assert_eq!(values, ["b", "c"]);
        assert_eq!(read("HTTP/1.0 200\n\n").unwrap().version, Version::HTTP_10);
        for wrong in [
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 600 OK\r\n\r\n",
            "HTTP/1.1 999 OK\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1  200 OK\r\n\r\n",
            "HTTP/1.1 200 \u{1}\r\n\r\n",
            "ICY 200 OK\r\n\r\n",
            "\r\n",
            "HTTP/1.1 200 OK\r\na : b\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
            "HTTP/1.1 200 OK\r\n: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nab\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\u{0}\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: 1\r\nb: 2\r\nc: 3\r\n\r\n",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        for status in [200, 404, 599] {
            let response = Response::builder().status(status).header("a", "b").body(());
            let head = response.unwrap().into_parts().0;
            let mut out = Vec::new();
            write_response(&mut out, Version::HTTP_11, &head);
            let read = super::response(&out.into(), 1, 9).unwrap();
            assert_eq!((read.status, read.headers), (head.status, head.headers));
        }
    }
}
