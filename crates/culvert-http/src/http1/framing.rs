//! Strict framing of HTTP/1 requests: where a message starts and ends, and whether its head is acceptable.
//!
//! A state machine over bytes without I/O or clock. Its verdict does not depend on how the bytes are split into
//! reads. It buffers at most one incomplete line, and refuses a head or chunk that two parsers could read
//! differently. After a refusal it reads nothing more.

use bytes::BytesMut;
use http::Version;

use crate::http1::body::{BodyLength, BodyPart, BodyReader, LineBuffer, Piece};
use crate::http1::head::{self, field_line};
use crate::target;

/// Longest request line, in bytes.
pub const REQUEST_LINE_BYTES_MAX: usize = 16 << 10;
/// Longest field line, in bytes.
pub const FIELD_LINE_BYTES_MAX: usize = 32 << 10;
/// Longest field section, in bytes.
pub const FIELD_SECTION_BYTES_MAX: usize = 64 << 10;
/// Most empty lines before a request line. RFC 9112 2.2 demands one; some clients send two.
pub(crate) const EMPTY_LINES_MAX: u8 = 2;
/// Most field lines of a head.
pub const FIELDS_MAX: usize = 128;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Not a valid request, or ambiguous. The text names the defect.
    Malformed(&'static str),
    /// The request line is too long.
    TargetTooLong,
    /// A field line or the whole section is too long, or there are too many lines.
    FieldsTooLarge,
    /// The method is not supported.
    Method,
    /// The head or body did not arrive in time.
    TooSlow,
}

impl Violation {
    /// For a head with this defect.
    pub(crate) fn of(what: &'static str) -> Self {
        match what == target::TOO_LONG {
            true => Self::TargetTooLong,
            false => Self::Malformed(what),
        }
    }
}

/// The state after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The message is incomplete.
    More,
    /// The message is complete. Bytes after it were not consumed.
    End,
    /// The message is refused. It consumes no more bytes.
    Refused(Violation),
}

/// One request.
#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    /// A line that is incomplete.
    line: LineBuffer,
    head: Head,
    /// Size of the field section.
    section_bytes: usize,
    section_lines: usize,
    payload: BodyReader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the request line, after this many empty lines.
    Start {
        empty_lines: u8,
    },
    Fields,
    Body,
    Refused(Violation),
}

/// What the lines of the head have said.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    is_1_1: bool,
    hosts: u8,
    body: BodyLength,
}

impl Default for Framing {
    fn default() -> Self {
        Self::new()
    }
}

impl Framing {
    /// A message of which no byte has arrived.
    pub(crate) fn new() -> Self {
        Self {
            state: State::Start { empty_lines: 0 },
            line: LineBuffer::default(),
            head: Head::default(),
            section_bytes: 0,
            section_lines: 0,
            payload: BodyReader::none(),
        }
    }

    /// Whether no byte has arrived.
    pub(crate) fn is_untouched(&self) -> bool {
        self.state == State::Start { empty_lines: 0 } && self.line.len() == 0
    }

    /// Whether the head is complete and valid.
    pub(crate) fn has_head(&self) -> bool {
        self.state == State::Body
    }

    /// Number of field lines.
    pub(crate) fn lines(&self) -> usize {
        self.section_lines
    }

    /// The head was [read otherwise](super::raw::RawRequest::take), and has this body.
    pub(crate) fn skip_head(&mut self, body: BodyReader) {
        self.payload = body;
        self.state = State::Body;
    }

    /// Whether the message is complete.
    pub(crate) fn is_ended(&self) -> bool {
        self.has_head() && self.payload.is_ended()
    }

    /// The body.
    pub(crate) fn payload(&self) -> &BodyReader {
        &self.payload
    }

    /// Why the message is refused, if it is.
    pub(crate) fn refused(&self) -> Option<Violation> {
        match self.state {
            State::Refused(violation) => Some(violation),
            _ => None,
        }
    }

    /// Refuses the message for a reason outside its bytes.
    pub(crate) fn refuse(&mut self, violation: Violation) {
        self.state = State::Refused(violation);
        self.line.forget();
    }

    /// Consumes bytes up to the end of the message. Returns how many.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> (usize, Progress) {
        let mut taken = self.feed_head(bytes);
        while self.has_head() && !self.payload.is_ended() && taken < bytes.len() {
            taken += self.step(bytes.get(taken..).unwrap_or_default()).0;
        }
        let progress = match self.state {
            State::Refused(violation) => Progress::Refused(violation),
            _ if self.is_ended() => Progress::End,
            _ => Progress::More,
        };
        (taken, progress)
    }

    /// Consumes bytes up to the end of the head. Returns how many.
    pub(crate) fn feed_head(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && !self.has_head() && self.refused().is_none() {
            match self.feed_line(bytes.get(taken..).unwrap_or_default()) {
                Ok(line) => taken += line,
                Err(violation) => self.refuse(violation),
            }
        }
        taken
    }

    /// Takes the next part of the body off the front of `buffer`.
    ///
    /// # Errors
    ///
    /// When the message is refused, for example because its body is ambiguous.
    pub(crate) fn take_body(&mut self, buffer: &mut BytesMut) -> Result<BodyPart, Violation> {
        if let Some(violation) = self.refused() {
            return Err(violation);
        }
        debug_assert!(self.has_head(), "a head comes before its body");
        self.payload.take(buffer).map_err(|what| {
            let violation = Violation::Malformed(what);
            self.refuse(violation);
            violation
        })
    }

    /// Consumes the next piece of the body: its length, and its kind.
    fn step(&mut self, bytes: &[u8]) -> (usize, Piece) {
        self.payload.step(bytes).unwrap_or_else(|what| {
            self.refuse(Violation::Malformed(what));
            (0, Piece::Frame)
        })
    }

    /// Consumes bytes up to the end of a line, and the line if it is complete.
    fn feed_line(&mut self, rest: &[u8]) -> Result<usize, Violation> {
        let is_first = self.line.len() == 0 && matches!(self.state, State::Start { .. });
        let begins_line = |byte: &u8| head::is_token(*byte) || matches!(byte, b'\r' | b'\n');
        // Clients of other protocols send no line, and would wait until the head is too slow.
        if is_first && rest.first().is_some_and(|byte| !begins_line(byte)) {
            return Err(Violation::Malformed(head::NO_METHOD));
        }
        let (taken, line) = self.line.take(rest);
        let length = line.as_ref().map_or(self.line.len(), |line| line.len());
        self.check_length(length)?;
        if let Some(line) = line {
            self.whole_line(&line)?;
        }
        Ok(taken)
    }

    /// Checks the length of a line, its end included.
    fn check_length(&self, bytes: usize) -> Result<(), Violation> {
        match self.state {
            State::Start { .. } if bytes > REQUEST_LINE_BYTES_MAX + 2 => {
                Err(Violation::TargetTooLong)
            }
            State::Fields
                if bytes > FIELD_LINE_BYTES_MAX + 2
                    || self.section_bytes + bytes > FIELD_SECTION_BYTES_MAX + 2 =>
            {
                Err(Violation::FieldsTooLarge)
            }
            _ => Ok(()),
        }
    }

    /// Processes a complete line, its end included.
    fn whole_line(&mut self, line: &[u8]) -> Result<(), Violation> {
        let Some(content) = line.strip_suffix(b"\r\n") else {
            return Err(Violation::Malformed("a line ends without CR LF"));
        };
        match self.state {
            State::Start { empty_lines } if content.is_empty() && empty_lines < EMPTY_LINES_MAX => {
                self.state = State::Start {
                    empty_lines: empty_lines + 1,
                };
            }
            State::Start { .. } => {
                self.head.is_1_1 = check_request_line(content)?;
                self.state = State::Fields;
            }
            State::Fields if content.is_empty() => {
                self.payload = self.head.body()?;
                self.state = State::Body;
            }
            State::Fields => {
                self.section_bytes += line.len();
                self.section_lines += 1;
                if self.section_lines > FIELDS_MAX {
                    return Err(Violation::FieldsTooLarge);
                }
                let (name, value) = field_line(content).map_err(Violation::Malformed)?;
                self.head.field(name, value)?;
            }
            State::Body | State::Refused(_) => {}
        }
        Ok(())
    }
}

impl Head {
    /// Checks the fields that decide framing and routing.
    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        if name.len() == 4 && name.eq_ignore_ascii_case(b"host") {
            self.hosts = self.hosts.saturating_add(1);
            if self.hosts > 1 {
                return Err(Violation::Malformed("more than one host"));
            }
        }
        self.body.note(name, value).map_err(Violation::Malformed)?;
        if self.body.is_chunked() && !self.is_1_1 {
            return Err(Violation::Malformed("transfer-encoding in HTTP/1.0"));
        }
        Ok(())
    }

    /// The body behind the head.
    fn body(&self) -> Result<BodyReader, Violation> {
        if self.is_1_1 && self.hosts == 0 {
            return Err(Violation::Malformed("no host"));
        }
        self.body.of_request().map_err(Violation::Malformed)
    }
}

/// Checks a request line. Returns whether the version is 1.1.
fn check_request_line(line: &[u8]) -> Result<bool, Violation> {
    let line = head::request_line(line).map_err(Violation::Malformed)?;
    if line.method == b"CONNECT" {
        return Err(Violation::Method);
    }
    let checked = target::check(line.target, line.method == b"OPTIONS");
    checked.map_err(Violation::Malformed)?;
    Ok(line.version == Version::HTTP_11)
}

#[cfg(test)]
mod tests;
