//! Request targets of HTTP/1 and HTTP/2 (RFC 9112 3.2, RFC 9113 8.3.1): read strictly, and normalised
//! (RFC 3986 6.2.2), so that the path that a rule sees is the path that is sent.
//!
//! A pure parser over bytes. It knows the syntax of targets and nothing of hosts or routes.
//!
//! # What a path becomes
//!
//! 1. `%` needs two hexadecimal digits. An escaped unreserved character (`A-Z a-z 0-9 - . _ ~`) is decoded,
//!    other escapes get upper-case digits.
//! 2. `\` becomes `/`. `"`, `<`, `>`, `[`, `]`, `^`, `` ` ``, `{`, `|`, `}` and bytes beyond ASCII, which a path may not
//!    hold (RFC 3986 3.3), are escaped.
//! 3. `.` and `..` segments are removed (RFC 3986 5.2.4); `..` stops at the root.
//! 4. `//` becomes `/`, unless the caller keeps empty segments ([`merge_slashes`]).
//!
//! The query is sent as it came, except that `"`, `<`, `>`, `` ` `` and bytes beyond ASCII are escaped. Nothing is decoded
//! twice: `%252e` stays.
//!
//! # Rejected targets
//!
//! Paths that origins read in more than one way:
//!
//! - `%00`, broken escapes, control characters, blanks, `#`;
//! - an escaped slash or backslash (`%2F`, `%5C`) beside a `.` or `..`, as in `..%2F`: a server that decodes
//!   first takes it for a dot segment;
//! - a `.` or `..` with parameters, as in `..;x`: servlet containers cut the parameters off first;
//! - the same, or parameters, that stand for an empty first segment with more behind it, as in `/%2Fa`;
//! - where slashes are merged: an escaped slash or backslash, or parameters, that stand for an empty segment,
//!   as in `/%2Fa` and `/;x/a`.
//!
//! An escaped slash between ordinary characters (`group%2Fproject`) is part of a name, as in RFC 3986 2.2,
//! and stays escaped.

use bytes::Bytes;
use http::Uri;
use http::uri::{PathAndQuery, Scheme};
use memchr::{memchr, memchr2, memmem};

/// The defect of a target, as text for logs.
pub type Wrong = &'static str;

const NOT_A_TARGET: Wrong = "the target is not acceptable";
const ESCAPE: Wrong = "a % in the path is not followed by two hexadecimal digits";
const NUL: Wrong = "the path has an escaped NUL";
const DOTS: Wrong = "a dot segment of the path is hidden by an escape or a parameter";
const EMPTY: Wrong = "an empty segment of the path is hidden by an escape or a parameter";

/// The target is too long when its bytes are escaped.
pub const TOO_LONG: Wrong = "the target is too long with its bytes escaped";

/// Longest target, in bytes, as received and with its bytes escaped.
pub const TARGET_BYTES_MAX: usize = 16 << 10;

/// Path and query as received, kept if they are not in normal form. Bytes beyond ASCII are escaped, because they may be no
/// text, and `<`, `>` and `` ` ``, which a page may show. Request heads carry it as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received(Bytes);

impl Received {
    fn of(target: Bytes) -> Self {
        let is_escaped = |byte: u8| !byte.is_ascii() || matches!(byte, b'<' | b'>' | b'`');
        if !target.iter().copied().any(is_escaped) {
            return Self(target);
        }
        let mut escaped = Vec::with_capacity(target.len() * 2);
        escape(&target, is_escaped, &mut escaped);
        Self(escaped.into())
    }

    fn text(&self) -> &str {
        // It is ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The path, possibly empty.
    pub fn path(&self) -> &str {
        let text = self.text();
        text.split_once('?').map_or(text, |(path, _)| path)
    }

    /// The query, without its `?`.
    pub fn query(&self) -> Option<&str> {
        self.text().split_once('?').map(|(_, query)| query)
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.text()
    }
}

/// A parsed, normalised target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// With scheme and authority if the target is absolute. The path starts with `/` or is `*`.
    pub uri: Uri,
    /// The target as received, if it was not in normal form.
    pub received: Option<Received>,
}

/// The treatment of a byte in a path or query.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Kept.
    Plain,
    /// Depends on its neighbours: `.`, `/`.
    Context,
    /// Needs normalisation: `%`, `\`, `;`.
    Special,
    /// Escaped.
    Escaped,
    /// Refused.
    Wrong,
}

const CLASSES: [Class; 256] = {
    let mut table = [Class::Wrong; 256];
    let mut byte = 0;
    while byte < table.len() {
        #[expect(clippy::cast_possible_truncation, reason = "a table of all bytes")]
        let class = match byte as u8 {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => Class::Plain,
            b'-' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b','
            | b'=' | b':' | b'@' => Class::Plain,
            b'.' | b'/' => Class::Context,
            b'%' | b'\\' | b';' => Class::Special,
            b'"' | b'<' | b'>' | b'[' | b']' | b'^' | b'`' | b'{' | b'|' | b'}' => Class::Escaped,
            0x80.. => Class::Escaped,
            _ => Class::Wrong,
        };
        table[byte] = class;
        byte += 1;
    }
    table
};

const fn query_class(byte: u8) -> Class {
    match byte {
        b'"' | b'<' | b'>' | b'`' | 0x80.. => Class::Escaped,
        b'#' | ..=b' ' | 0x7F => Class::Wrong,
        _ => Class::Plain,
    }
}

/// The parts of a target.
struct Parts<'t> {
    /// Length of `scheme://authority`; 0 if the target is relative.
    origin: usize,
    path: &'t [u8],
    /// With its `?`; empty without one.
    query: &'t [u8],
    /// Whether path and query are in normal form, with slashes merged or not.
    is_plain: bool,
}

/// Checks the target of a request line without normalising it. Returns whether it is a path, perhaps with a query, in
/// normal form.
///
/// # Errors
///
/// When its form or a character is invalid.
pub fn check(target: &[u8], is_options: bool) -> Result<bool, Wrong> {
    let parts = split(target, is_options)?;
    Ok(parts.is_plain && parts.path.first() == Some(&b'/') && parts.origin == 0)
}

fn split(target: &[u8], is_options: bool) -> Result<Parts<'_>, Wrong> {
    if target == b"*" {
        return match is_options {
            true => Ok(Parts {
                origin: 0,
                path: target,
                query: &[],
                is_plain: true,
            }),
            false => Err(NOT_A_TARGET),
        };
    }
    let origin = match target.first() {
        Some(b'/') => 0,
        _ => origin(target).ok_or(NOT_A_TARGET)?,
    };
    let local = target.get(origin..).unwrap_or_default();
    let (path, query) = local.split_at(memchr(b'?', local).unwrap_or(local.len()));
    let mut is_plain = !path.is_empty();
    for &byte in query {
        match query_class(byte) {
            Class::Wrong => return Err(NOT_A_TARGET),
            class => is_plain &= class == Class::Plain,
        }
    }
    let mut before = 0;
    for &byte in path {
        match CLASSES[usize::from(byte)] {
            Class::Plain => {}
            Class::Context => is_plain &= before != b'/',
            Class::Special | Class::Escaped => is_plain = false,
            Class::Wrong => return Err(NOT_A_TARGET),
        }
        before = byte;
    }
    Ok(Parts {
        origin,
        path,
        query,
        is_plain,
    })
}

/// The length of a leading `http://` or `https://` and authority.
fn origin(target: &[u8]) -> Option<usize> {
    let scheme = ["http://", "https://"].into_iter().find(|scheme| {
        let start = target.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
    })?;
    let rest = target.get(scheme.len()..)?;
    let end = memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let authority = rest.get(..end)?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(byte);
    (!authority.is_empty() && authority.iter().all(is_plain)).then_some(scheme.len() + end)
}

/// Parses the target of an HTTP/1 request (RFC 9112 3.2), except for CONNECT. Shares the memory of `target` if nothing
/// changes. An absolute target of OPTIONS without path and query becomes `*` (RFC 9112 3.2.4).
///
/// # Errors
///
/// When the target is invalid, or its normal form ambiguous.
pub fn read(target: &Bytes, is_options: bool) -> Result<Target, Wrong> {
    let parts = split(target, is_options)?;
    let as_it_is = || Uri::from_maybe_shared(target.clone()).map_err(|_| NOT_A_TARGET);
    if parts.is_plain {
        return Ok(Target {
            uri: as_it_is()?,
            received: None,
        });
    }
    let received = Received::of(target.slice(parts.origin..));
    let local = if is_options && parts.path.is_empty() && parts.query.is_empty() {
        PathAndQuery::from_static("*")
    } else {
        normal(parts.path, parts.query)?
    };
    check_length(&received, &local)?;
    let uri = if parts.origin == 0 {
        Uri::from(local)
    } else {
        let origin = Uri::from_maybe_shared(target.slice(..parts.origin));
        with_path(&origin.map_err(|_| NOT_A_TARGET)?, local)?
    };
    Ok(Target {
        uri,
        received: Some(received),
    })
}

/// Parses the `:path` of an HTTP/2 request.
///
/// # Errors
///
/// When the path is invalid, or its normal form ambiguous.
pub fn read_path(
    path: &Bytes,
    is_options: bool,
) -> Result<(PathAndQuery, Option<Received>), Wrong> {
    if !matches!(path.first(), Some(b'/' | b'*')) {
        return Err(NOT_A_TARGET);
    }
    let parts = split(path, is_options)?;
    if parts.is_plain {
        let path = PathAndQuery::from_maybe_shared(path.clone());
        return Ok((path.map_err(|_| NOT_A_TARGET)?, None));
    }
    let local = normal(parts.path, parts.query)?;
    let received = Received::of(path.clone());
    check_length(&received, &local)?;
    Ok((local, Some(received)))
}

/// Refuses what has become too long because each escaped byte is three: servers and logs expect no longer ones.
fn check_length(received: &Received, local: &PathAndQuery) -> Result<(), Wrong> {
    match received.0.len().max(local.as_str().len()) > TARGET_BYTES_MAX {
        true => Err(TOO_LONG),
        false => Ok(()),
    }
}

/// Normalises `/path?query` or `?query`, the result of a rewrite, for sending. Merges slashes if `merges` is set.
///
/// # Errors
///
/// When the path is invalid, or its normal form ambiguous.
pub fn settle(local: &str, merges: bool) -> Result<PathAndQuery, Wrong> {
    let target = match local.bytes().next() {
        Some(b'/') => {
            let parts = split(local.as_bytes(), false)?;
            normal(parts.path, parts.query)?
        }
        None | Some(b'?') => return settle(&format!("/{local}"), merges),
        Some(_) => return Err(NOT_A_TARGET),
    };
    match merges {
        true => Ok(merge_slashes(&target)?.unwrap_or(target)),
        false => Ok(target),
    }
}

/// Normalises a path without merging slashes, and appends the query, with what it may not hold escaped.
fn normal(path: &[u8], query: &[u8]) -> Result<PathAndQuery, Wrong> {
    if path == b"*" {
        return Ok(PathAndQuery::from_static("*"));
    }
    let unescaped = unescape(path)?;
    let mut out = Vec::with_capacity(unescaped.len() + query.len() + 1);
    let mut segments = unescaped.split(|&byte| byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if is_hidden_dot(segment) {
            return Err(DOTS);
        }
        match segment {
            b"." => {}
            b".." => {
                let parent = out.iter().rposition(|&byte| byte == b'/');
                out.truncate(parent.unwrap_or(0));
            }
            _ => {
                out.push(b'/');
                out.extend_from_slice(segment);
                continue;
            }
        }
        if is_last {
            out.push(b'/');
        }
    }
    if out.is_empty() {
        out.push(b'/');
    }
    if hides_empty_root(&out) {
        return Err(EMPTY);
    }
    escape(query, |byte| query_class(byte) == Class::Escaped, &mut out);
    PathAndQuery::from_maybe_shared(Bytes::from(out)).map_err(|_| NOT_A_TARGET)
}

/// Decodes unreserved characters, writes other escapes in upper case, escapes invalid characters, and replaces `\` by
/// `/`.
fn unescape(path: &[u8]) -> Result<Vec<u8>, Wrong> {
    let mut out = Vec::with_capacity(path.len() + 8);
    let mut rest = path;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'%' => {
                let [high, low, behind @ ..] = behind else {
                    return Err(ESCAPE);
                };
                let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                    return Err(ESCAPE);
                };
                rest = behind;
                match high << 4 | low {
                    0 => return Err(NUL),
                    byte if is_unreserved(byte) => out.push(byte),
                    byte => push_escape(&mut out, byte),
                }
            }
            b'\\' => out.push(b'/'),
            _ if CLASSES[usize::from(byte)] == Class::Escaped => push_escape(&mut out, byte),
            _ => out.push(byte),
        }
    }
    Ok(out)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Appends `text` to `out`, with the bytes of which `is_escaped` is true escaped.
fn escape(text: &[u8], is_escaped: impl Fn(u8) -> bool, out: &mut Vec<u8>) {
    for &byte in text {
        match is_escaped(byte) {
            true => push_escape(out, byte),
            false => out.push(byte),
        }
    }
}

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    let hex = |digit: u8| {
        if digit < 10 {
            b'0' + digit
        } else {
            b'A' + digit - 10
        }
    };
    out.extend([b'%', hex(byte >> 4), hex(byte & 15)]);
}

/// The parts of a segment between escaped slashes and backslashes, without parameters. Escapes must be in upper case.
fn parts(segment: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(segment);
    std::iter::from_fn(move || {
        let all = rest?;
        let slash = memmem::find(all, b"%2F");
        let backslash = memmem::find(all, b"%5C");
        let end = match (slash, backslash) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        rest = end.and_then(|end| all.get(end + 3..));
        let part = all.get(..end.unwrap_or(all.len())).unwrap_or_default();
        let end = memchr(b';', part).unwrap_or(part.len());
        let end = memmem::find(part, b"%3B").map_or(end, |escaped| escaped.min(end));
        part.get(..end)
    })
}

/// Whether a segment hides a dot segment from us that a server finds by decoding it or cutting off parameters.
fn is_hidden_dot(segment: &[u8]) -> bool {
    let is_dot = |part: &[u8]| matches!(part, b"." | b"..");
    !is_dot(segment) && memchr(b'.', segment).is_some() && parts(segment).any(is_dot)
}

/// Whether a server finds an empty first segment, as in `//a`, by decoding the path or cutting off parameters. Such a path
/// would evade every rule about its beginning, and a server may read it as a host.
fn hides_empty_root(path: &[u8]) -> bool {
    let mut segments = path.split(|&byte| byte == b'/').skip(1);
    let first = segments.next().unwrap_or_default();
    let mut behind = parts(first);
    if first.is_empty() || behind.next().is_none_or(|part| !part.is_empty()) {
        return false;
    }
    behind.any(|part| !part.is_empty()) || segments.any(|segment| !segment.is_empty())
}

/// Merges slashes in a normalised path: `//` becomes `/`. `None` if there is nothing to merge.
///
/// # Errors
///
/// When a segment is empty to servers that decode it, or cut its parameters off, first.
pub fn merge_slashes(target: &PathAndQuery) -> Result<Option<PathAndQuery>, Wrong> {
    let path = target.path().as_bytes();
    if memchr2(b'%', b';', path).is_some() {
        let mut segments = path.split(|&byte| byte == b'/').skip(1).peekable();
        while let Some(segment) = segments.next() {
            let mut behind = parts(segment).skip_while(|part| !part.is_empty());
            // Nothing follows the parameters of the root in `/;jsessionid=1`, and the slash of `/a%2F`.
            let is_hidden = match segments.peek() {
                Some(_) => !segment.is_empty() && behind.next().is_some(),
                None => behind.any(|part| !part.is_empty()),
            };
            if is_hidden {
                return Err(EMPTY);
            }
        }
    }
    if memmem::find(path, b"//").is_none() {
        return Ok(None);
    }
    let mut merged = String::with_capacity(target.as_str().len());
    let mut before = ' ';
    for c in target.path().chars() {
        if c != '/' || before != '/' {
            merged.push(c);
        }
        before = c;
    }
    if let Some(query) = target.query() {
        merged.push('?');
        merged.push_str(query);
    }
    let merged = PathAndQuery::from_maybe_shared(Bytes::from(merged));
    merged.map(Some).map_err(|_| NOT_A_TARGET)
}

/// A URI with another path and query.
///
/// # Errors
///
/// When they do not go together.
pub fn with_path(uri: &Uri, path: PathAndQuery) -> Result<Uri, Wrong> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| NOT_A_TARGET)
}

/// The scheme of an HTTP/2 request, which is one of the two that are served.
pub fn read_scheme(scheme: &[u8]) -> Option<Scheme> {
    if scheme.eq_ignore_ascii_case(b"https") {
        Some(Scheme::HTTPS)
    } else if scheme.eq_ignore_ascii_case(b"http") {
        Some(Scheme::HTTP)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
