//! The strict reading of HTTP/1 requests on the wire: where a message begins and ends, and whether
//! its head may be believed at all.
//!
//! A pure state machine over bytes: no I/O, no clock. It promises that its verdict does not depend
//! on how the bytes were cut into reads, that it holds at most one unfinished line, and that a head
//! or chunk frame which two parsers could read differently is refused. What follows a refusal is the
//! caller's: answer, close, and let nothing of the message pass.
//!
//! Not here: which host is meant (`route`), and anything about answers.

use memchr::memchr;

/// Longest request line, in bytes.
pub(crate) const REQUEST_LINE_BYTES_MAX: usize = 16 << 10;
/// Longest field line, in bytes.
pub(crate) const FIELD_LINE_BYTES_MAX: usize = 32 << 10;
/// Longest field section, in bytes.
pub(crate) const FIELD_SECTION_BYTES_MAX: usize = 64 << 10;
/// Most field lines of a head.
pub(crate) const FIELDS_MAX: usize = 128;
/// Longest trailer section, in bytes.
pub(crate) const TRAILER_BYTES_MAX: usize = 8 << 10;
/// Most trailer lines.
pub(crate) const TRAILERS_MAX: usize = 32;
/// Longest chunk extension, in bytes.
pub(crate) const CHUNK_EXTENSION_BYTES_MAX: usize = 256;
/// Most hexadecimal digits of a chunk size.
const CHUNK_DIGITS_MAX: usize = 16;

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Not a request, or one that could be read in two ways. The text says what is wrong.
    Malformed(&'static str),
    /// The request line is too long.
    TargetTooLong,
    /// A field line or the whole section is too long, or there are too many lines.
    FieldsTooLarge,
    /// The method is never served.
    Method,
    /// The head or body did not arrive in time.
    TooSlow,
}

/// What is known after feeding bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The message goes on.
    More,
    /// The message is complete; bytes after it were not taken.
    End,
    /// The message is refused; it takes no more bytes.
    Refused(Violation),
}

/// One request on the wire, from its first byte to its last.
#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
    head: Head,
    /// Bytes and lines of the section being read.
    section_bytes: usize,
    section_lines: usize,
    payload: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the request line; one empty line may precede it.
    Start,
    RequestLine,
    Fields,
    Length(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd(u8),
    Trailers,
    End,
    Refused(Violation),
}

/// What the lines of a head said so far.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    is_1_1: bool,
    hosts: u8,
    length: Option<u64>,
    is_chunked: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self::new()
    }
}

impl Framing {
    /// A message none of whose bytes has arrived.
    pub(crate) fn new() -> Self {
        Self {
            state: State::Start,
            line: Vec::new(),
            head: Head::default(),
            section_bytes: 0,
            section_lines: 0,
            payload: 0,
        }
    }

    /// Whether no byte of the message has been taken.
    pub(crate) fn is_untouched(&self) -> bool {
        self.state == State::Start && self.line.is_empty()
    }

    /// Whether the whole head was read and found good.
    pub(crate) fn has_head(&self) -> bool {
        matches!(
            self.state,
            State::Length(_)
                | State::ChunkSize
                | State::ChunkData(_)
                | State::ChunkEnd(_)
                | State::Trailers
                | State::End
        )
    }

    /// Whether the message is complete.
    pub(crate) fn is_ended(&self) -> bool {
        self.state == State::End
    }

    /// Body bytes read, without chunk framing and trailers.
    pub(crate) fn payload(&self) -> u64 {
        self.payload
    }

    /// Refuses the message for a reason that is not in its bytes.
    pub(crate) fn refuse(&mut self, violation: Violation) {
        self.state = State::Refused(violation);
        self.line = Vec::new();
    }

    /// Reads on. Returns how many of the bytes belong to the message and may be believed.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> (usize, Progress) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = match self.state {
                State::End | State::Refused(_) => break,
                State::Length(left) => {
                    let taken = upto(rest, left);
                    let left = left.saturating_sub(taken as u64);
                    self.payload = self.payload.saturating_add(taken as u64);
                    self.state = if left == 0 {
                        State::End
                    } else {
                        State::Length(left)
                    };
                    taken
                }
                State::ChunkData(left) => {
                    let taken = upto(rest, left);
                    let left = left.saturating_sub(taken as u64);
                    self.payload = self.payload.saturating_add(taken as u64);
                    self.state = match left {
                        0 => State::ChunkEnd(b'\r'),
                        left => State::ChunkData(left),
                    };
                    taken
                }
                State::ChunkEnd(expected) => {
                    if rest.first() != Some(&expected) {
                        self.refuse(Violation::Malformed("a chunk does not end where it says"));
                        break;
                    }
                    self.state = match expected {
                        b'\r' => State::ChunkEnd(b'\n'),
                        _ => State::ChunkSize,
                    };
                    1
                }
                State::Start
                | State::RequestLine
                | State::Fields
                | State::ChunkSize
                | State::Trailers => match self.feed_line(rest) {
                    Ok(taken) => taken,
                    Err(violation) => {
                        self.refuse(violation);
                        break;
                    }
                },
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        let progress = match self.state {
            State::End => Progress::End,
            State::Refused(violation) => Progress::Refused(violation),
            _ => Progress::More,
        };
        (bytes.len() - rest.len(), progress)
    }

    /// Takes bytes up to the end of a line, and the line with it if it is whole.
    fn feed_line(&mut self, rest: &[u8]) -> Result<usize, Violation> {
        let end = memchr(b'\n', rest).map(|at| at + 1);
        let taken = end.unwrap_or(rest.len());
        let piece = rest.get(..taken).unwrap_or_default();
        self.check_length(self.line.len() + piece.len())?;
        if end.is_none() {
            self.line.extend_from_slice(piece);
            return Ok(taken);
        }
        if self.line.is_empty() {
            self.whole_line(piece)?;
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(piece);
            self.whole_line(&line)?;
        }
        Ok(taken)
    }

    /// Whether a line of that many bytes, its end included, may still be good.
    fn check_length(&self, bytes: usize) -> Result<(), Violation> {
        match self.state {
            State::Start | State::RequestLine if bytes > REQUEST_LINE_BYTES_MAX + 2 => {
                Err(Violation::TargetTooLong)
            }
            State::Fields
                if bytes > FIELD_LINE_BYTES_MAX + 2
                    || self.section_bytes + bytes > FIELD_SECTION_BYTES_MAX + 2 =>
            {
                Err(Violation::FieldsTooLarge)
            }
            State::ChunkSize if bytes > CHUNK_DIGITS_MAX + CHUNK_EXTENSION_BYTES_MAX + 2 => {
                Err(Violation::Malformed("a chunk extension is too long"))
            }
            State::Trailers if self.section_bytes + bytes > TRAILER_BYTES_MAX + 2 => {
                Err(Violation::Malformed("the trailers are too long"))
            }
            _ => Ok(()),
        }
    }

    /// Reads one whole line, its end included.
    fn whole_line(&mut self, line: &[u8]) -> Result<(), Violation> {
        let Some(content) = line.strip_suffix(b"\r\n") else {
            return Err(Violation::Malformed("a line ends without CR LF"));
        };
        match self.state {
            State::Start if content.is_empty() => self.state = State::RequestLine,
            State::Start | State::RequestLine => {
                self.head.is_1_1 = request_line(content)?;
                self.state = State::Fields;
            }
            State::Fields if content.is_empty() => self.state = self.head.body()?,
            State::Fields => {
                self.count(line, FIELDS_MAX)
                    .map_err(|()| Violation::FieldsTooLarge)?;
                let (name, value) = field_line(content)?;
                self.head.field(name, value)?;
            }
            State::ChunkSize => {
                self.section_bytes = 0;
                self.section_lines = 0;
                self.state = match chunk_size(content)? {
                    0 => State::Trailers,
                    size => State::ChunkData(size),
                };
            }
            State::Trailers if content.is_empty() => self.state = State::End,
            State::Trailers => {
                self.count(line, TRAILERS_MAX)
                    .map_err(|()| Violation::Malformed("too many trailers"))?;
                field_line(content)?;
            }
            State::Length(_)
            | State::ChunkData(_)
            | State::ChunkEnd(_)
            | State::End
            | State::Refused(_) => {}
        }
        Ok(())
    }

    fn count(&mut self, line: &[u8], lines_max: usize) -> Result<(), ()> {
        self.section_bytes += line.len();
        self.section_lines += 1;
        if self.section_lines > lines_max {
            Err(())
        } else {
            Ok(())
        }
    }
}

impl Head {
    /// Notes the fields that decide framing and routing.
    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                self.hosts = self.hosts.saturating_add(1);
                if self.hosts > 1 {
                    return Err(Violation::Malformed("more than one host"));
                }
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                if self.length.is_some() {
                    return Err(Violation::Malformed("more than one content-length"));
                }
                self.length = Some(content_length(value)?);
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Violation::Malformed(
                        "transfer-encoding is not exactly chunked",
                    ));
                }
                if !self.is_1_1 {
                    return Err(Violation::Malformed("transfer-encoding in HTTP/1.0"));
                }
                self.is_chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// What follows the head.
    fn body(&self) -> Result<State, Violation> {
        if self.is_1_1 && self.hosts == 0 {
            return Err(Violation::Malformed("no host"));
        }
        match (self.is_chunked, self.length) {
            (true, Some(_)) => Err(Violation::Malformed("both a length and an encoding")),
            (true, None) => Ok(State::ChunkSize),
            (false, None | Some(0)) => Ok(State::End),
            (false, Some(length)) => Ok(State::Length(length)),
        }
    }
}

/// How many of `bytes` lie within the next `left`.
fn upto(bytes: &[u8], left: u64) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}

/// Method, target and version with one blank between them. Returns whether the version is 1.1.
fn request_line(line: &[u8]) -> Result<bool, Violation> {
    let mut parts = line.splitn(3, |&b| b == b' ');
    let (Some(method), Some(target), Some(version)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(Violation::Malformed("the request line has not three parts"));
    };
    if method.is_empty() || !method.iter().copied().all(is_token) {
        return Err(Violation::Malformed("the method is not a token"));
    }
    let is_1_1 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return Err(Violation::Malformed("the version is neither 1.0 nor 1.1")),
    };
    if method == b"CONNECT" {
        return Err(Violation::Method);
    }
    if !is_target(target, method == b"OPTIONS") {
        return Err(Violation::Malformed("the target is not acceptable"));
    }
    Ok(is_1_1)
}

/// A path with perhaps a query, the same after `http://` or `https://` and an authority, or `*`.
/// Beyond controls, blanks, `#` and high bytes, what no URL may hold unescaped is refused too, since
/// the parser behind would.
fn is_target(target: &[u8], may_be_star: bool) -> bool {
    let after = |scheme: &[u8]| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    let local = match after(b"http://").or_else(|| after(b"https://")) {
        Some(rest) => {
            let end = rest
                .iter()
                .position(|b| b"/?".contains(b))
                .unwrap_or(rest.len());
            let (authority, local) = rest.split_at(end);
            let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(b);
            if authority.is_empty() || !authority.iter().all(is_plain) {
                return false;
            }
            local
        }
        None if target == b"*" => return may_be_star,
        None if target.first() == Some(&b'/') => target,
        None => return false,
    };
    let (path, query) = match memchr(b'?', local) {
        Some(at) => local.split_at(at),
        None => (local, &[][..]),
    };
    let is_visible = |b: &u8| (0x21..=0x7E).contains(b) && !b"#<>".contains(b);
    path.iter().all(|b| is_visible(b) && *b != b'`')
        && query.iter().all(|b| is_visible(b) && *b != b'"')
}

/// Name and trimmed value of a field line.
fn field_line(line: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(Violation::Malformed("a field line is folded"));
    }
    let Some(colon) = memchr(b':', line) else {
        return Err(Violation::Malformed("a field line has no colon"));
    };
    let (name, rest) = line.split_at(colon);
    if name.is_empty() || !name.iter().copied().all(is_token) {
        return Err(Violation::Malformed("a field name is not a token"));
    }
    let value = trim(rest.get(1..).unwrap_or_default());
    if !value.iter().copied().all(is_field_byte) {
        return Err(Violation::Malformed(
            "a field value has a control character",
        ));
    }
    Ok((name, value))
}

/// Without leading and trailing blanks and tabs.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Decimal digits, at most 2^63 - 1.
fn content_length(value: &[u8]) -> Result<u64, Violation> {
    const WRONG: Violation = Violation::Malformed("content-length is not a number");
    if value.is_empty() {
        return Err(WRONG);
    }
    let mut length = 0u64;
    for &byte in value {
        if !byte.is_ascii_digit() {
            return Err(WRONG);
        }
        length = length
            .checked_mul(10)
            .and_then(|length| length.checked_add(u64::from(byte - b'0')))
            .filter(|length| i64::try_from(*length).is_ok())
            .ok_or(WRONG)?;
    }
    Ok(length)
}

/// 1 to 16 hexadecimal digits, perhaps an extension.
fn chunk_size(line: &[u8]) -> Result<u64, Violation> {
    let (digits, extension) = match memchr(b';', line) {
        Some(at) => line.split_at(at),
        None => (line, &[][..]),
    };
    if digits.is_empty() || digits.len() > CHUNK_DIGITS_MAX {
        return Err(Violation::Malformed("a chunk size has not 1 to 16 digits"));
    }
    if extension.len() > CHUNK_EXTENSION_BYTES_MAX || !extension.iter().copied().all(is_field_byte)
    {
        return Err(Violation::Malformed("a chunk extension is not acceptable"));
    }
    let mut size = 0u64;
    for &byte in digits {
        let digit = char::from(byte)
            .to_digit(16)
            .ok_or(Violation::Malformed("a chunk size is not hexadecimal"))?;
        size = (size << 4) | u64::from(digit);
    }
    Ok(size)
}

/// A character of a method or a field name.
pub(crate) fn is_token(byte: u8) -> bool {
    const TOKEN: [bool; 256] = {
        let mut table = [false; 256];
        let extra = b"!#$%&'*+-.^_`|~";
        let mut at = 0;
        while at < 256 {
            table[at] = (at as u8).is_ascii_alphanumeric();
            at += 1;
        }
        at = 0;
        while at < extra.len() {
            table[extra[at] as usize] = true;
            at += 1;
        }
        table
    };
    TOKEN[usize::from(byte)]
}

/// A byte of a field value: anything but controls, tabs allowed.
pub(crate) fn is_field_byte(byte: u8) -> bool {
    (byte >= 0x20 && byte != 0x7F) || byte == b'\t'
}

#[cfg(test)]
mod tests;
