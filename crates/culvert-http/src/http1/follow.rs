//! Finds the messages of one direction of a connection in bytes that pass by, without delaying them.
//!
//! It refuses nothing: [`MessagePart::Lost`] ends it when it cannot parse the bytes. A head that arrives in one piece, as nearly
//! all do, is not copied.

use std::borrow::Cow;

use http::StatusCode;

use crate::http1::body::{BodyLength, BodyReader, Piece};
use crate::http1::head::{self, End};
use crate::http1::raw::RawField;
use crate::http1::{read_lines, read_request_line, read_status_line};

/// Longest head, in bytes.
pub const HEAD_BYTES_MAX: usize = 96 << 10;

const EMPTY_LINE_BYTES: usize = 2;

/// The next part of the bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum MessagePart<'a> {
    /// A complete head. The next part follows once [`expect`](Follower::expect) or [`expect_head`](Follower::expect_head)
    /// says what it is.
    Head(Cow<'a, [u8]>),
    /// A part of a body as sent, with its chunk framing.
    Body(&'a [u8]),
    /// The message is complete.
    End,
    /// The bytes are not HTTP/1, or exceed a limit. No further part follows.
    Lost,
}

/// The head of a request in the usual form.
#[derive(Debug)]
pub struct UsualRequest<'a> {
    /// A token.
    pub method: &'a [u8],
    /// As received.
    pub target: &'a [u8],
    /// The body that follows.
    pub body: BodyReader,
    /// Length of the head.
    pub bytes: usize,
}

/// Reads a head in the usual form at the front of `bytes`, in one pass. `None` if it is incomplete or in another form;
/// then the [`Follower`] finds it. `each` gets its fields, even if the result is `None`.
pub fn usual_request<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(RawField<'a>),
) -> Option<UsualRequest<'a>> {
    let bytes = bytes.get(..HEAD_BYTES_MAX).unwrap_or(bytes);
    let (method, target, start) = read_request_line(bytes)?;
    if !head::are_field_bytes(target) {
        return None;
    }
    let mut body = BodyLength::default();
    let end = read_lines(bytes, start, |field, _, _| {
        each(field);
        body.note(field.name, field.value).is_ok()
    })?;
    Some(UsualRequest {
        method,
        target,
        body: body.of_request().ok()?,
        bytes: end + EMPTY_LINE_BYTES,
    })
}

/// The status of a final response whose head is in the usual form, the body that follows, and the length of the head. As
/// [`usual_request`]. `to_head` if the method of the request was HEAD.
pub fn usual_response(bytes: &[u8], to_head: bool) -> Option<(StatusCode, BodyReader, usize)> {
    let bytes = bytes.get(..HEAD_BYTES_MAX).unwrap_or(bytes);
    let (status, start) = read_status_line(bytes)?;
    let mut body = BodyLength::default();
    let end = read_lines(bytes, start, |field, _, _| {
        body.note(field.name, field.value).is_ok()
    })?;
    let body = body.of_response(status, to_head).ok()?;
    Some((status, body, end + EMPTY_LINE_BYTES))
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Follower(State);

#[derive(Debug)]
enum State {
    /// The beginning of a head, and how much of it was scanned for its end.
    Head(Vec<u8>, End),
    /// A head was returned, and the caller has not said what follows it.
    Between,
    Body(BodyReader),
    Lost,
}

impl Default for Follower {
    fn default() -> Self {
        Self(State::Head(Vec::new(), End::default()))
    }
}

impl Follower {
    /// Takes the next part off the front of `bytes`; `None` if more bytes are needed.
    pub fn next_part<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<MessagePart<'a>> {
        match &mut self.0 {
            State::Body(payload) if payload.is_ended() => {
                *self = Self::default();
                Some(MessagePart::End)
            }
            State::Between | State::Lost => None,
            _ if bytes.is_empty() => None,
            State::Head(begun, end) => {
                if begun.is_empty()
                    && let Some(at) = end.find(bytes)
                {
                    let (head, rest) = bytes.split_at_checked(at)?;
                    return self.head(Cow::Borrowed(head), rest, bytes);
                }
                let had = begun.len();
                let some = bytes.len().min((HEAD_BYTES_MAX + 1).saturating_sub(had));
                begun.extend_from_slice(bytes.get(..some)?);
                match end.find(begun) {
                    Some(at) => {
                        begun.truncate(at);
                        let head = std::mem::take(begun);
                        let rest = bytes.get(at - had..)?;
                        self.head(Cow::Owned(head), rest, bytes)
                    }
                    None if begun.len() > HEAD_BYTES_MAX => Some(self.give_up()),
                    None => {
                        *bytes = &[];
                        None
                    }
                }
            }
            State::Body(payload) => {
                let mut at = 0;
                while at < bytes.len() && !payload.is_ended() {
                    match payload.step(bytes.get(at..)?) {
                        Ok((taken, Piece::Data | Piece::Frame)) => at += taken,
                        Err(_) => return Some(self.give_up()),
                    }
                }
                let (body, rest) = bytes.split_at_checked(at)?;
                *bytes = rest;
                Some(MessagePart::Body(body))
            }
        }
    }

    fn head<'a>(
        &mut self,
        head: Cow<'a, [u8]>,
        rest: &'a [u8],
        bytes: &mut &'a [u8],
    ) -> Option<MessagePart<'a>> {
        if head.len() > HEAD_BYTES_MAX {
            return Some(self.give_up());
        }
        *bytes = rest;
        self.0 = State::Between;
        Some(MessagePart::Head(head))
    }

    /// Says which body follows the last head.
    pub fn expect(&mut self, payload: BodyReader) {
        self.0 = State::Body(payload);
    }

    /// Says that the last head has no body and that another head follows, as after an interim response.
    pub fn expect_head(&mut self) {
        *self = Self::default();
    }

    /// Whether the next byte is the first of a head. The caller may then read the head itself, and call
    /// [`expect`](Self::expect).
    pub fn is_before_head(&self) -> bool {
        matches!(&self.0, State::Head(begun, end) if begun.is_empty() && end.is_untouched())
    }

    /// Whether the last message is complete and no byte of another has arrived.
    pub fn is_between_messages(&self) -> bool {
        match &self.0 {
            State::Head(begun, _) => begun.is_empty(),
            State::Body(payload) => payload.is_ended(),
            State::Between | State::Lost => false,
        }
    }

    /// Whether the close of the connection ends the message.
    pub fn ends_with_connection(&self) -> bool {
        matches!(&self.0, State::Body(payload) if payload.ends_with_connection())
    }

    fn give_up<'a>(&mut self) -> MessagePart<'a> {
        self.0 = State::Lost;
        MessagePart::Lost
    }
}

/// Removes the chunk framing of a body, which may be incomplete.
pub fn without_chunk_lines(mut body: &[u8]) -> Vec<u8> {
    let mut payload = BodyReader::padded_chunks();
    let mut plain = Vec::with_capacity(body.len());
    while !body.is_empty() && !payload.is_ended() {
        let Ok((taken, piece)) = payload.step(body) else {
            break;
        };
        let (read, rest) = body.split_at(taken);
        if piece == Piece::Data {
            plain.extend_from_slice(read);
        }
        body = rest;
    }
    plain
}

/// Whether the body that follows a complete head is chunked.
pub fn is_chunked(head: &[u8]) -> bool {
    let length = head::split_head(head).and_then(|(_, fields)| head::body_length(fields).ok());
    length.is_some_and(|length| length.is_chunked())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the bytes fall into, fed in pieces of `size`.
    fn parts(bytes: &[u8], size: usize, body: fn() -> BodyReader) -> Vec<String> {
        let (mut follower, mut said) = (Follower::default(), Vec::<String>::new());
        for mut piece in bytes.chunks(size) {
            while let Some(part) = follower.next_part(&mut piece) {
                match part {
                    MessagePart::Head(head) => {
                        said.push(format!("head {}", head.len()));
                        follower.expect(body());
                    }
                    MessagePart::Body(body) => match said.last_mut() {
                        Some(last) if last.starts_with("body ") => {
                            let so_far: usize = last[5..].parse().unwrap();
                            *last = format!("body {}", so_far + body.len());
                        }
                        _ => said.push(format!("body {}", body.len())),
                    },
                    MessagePart::End => said.push("end".into()),
                    MessagePart::Lost => said.push("lost".into()),
                }
            }
        }
        said
    }

    #[test]
    fn messages_end_where_they_say_however_they_arrive() {
        let fixed = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n\r\n";
        let chunked = b"POST / HTTP/1.1\r\n\r\n5;x=y\r\nhello\r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        for size in 1..=chunked.len() {
            assert_eq!(
                parts(fixed, size, || BodyReader::length(5))[..4],
                ["head 38", "body 5", "end", "head 18"],
                "in pieces of {size}"
            );
            assert_eq!(
                parts(chunked, size, BodyReader::chunks)[..4],
                ["head 19", "body 40", "end", "head 18"],
                "in pieces of {size}"
            );
            assert_eq!(
                parts(fixed, size, BodyReader::close),
                ["head 38", "body 23"]
            );
        }
    }

    #[test]
    fn a_usual_head_ends_where_any_head_ends() {
        let fields = "Host: a\r\nContent-Length: 2\r\n\r\n";
        let read = |line: &str| {
            let head = format!("{line}\r\n{fields}hi");
            usual_request(head.as_bytes(), |_| ()).map(|it| it.bytes)
        };
        assert_eq!(
            read("POST /a HTTP/1.1"),
            Some("POST /a HTTP/1.1\r\n".len() + fields.len())
        );
        // A line ends with its first LF, also within a target.
        for line in [
            "POST /a\nb HTTP/1.1",
            "POST /a\0 HTTP/1.1",
            "POST /a HTTP/1.0",
            " /a HTTP/1.1",
        ] {
            assert_eq!(read(line), None, "{line:?}");
        }
    }

    #[test]
    fn what_is_no_message_is_given_up() {
        assert_eq!(parts(&[b'x'; 100_000], 1000, BodyReader::none), ["lost"]);
        for bad in [
            "\r\n",
            "xyz\r\n",
            "5\r\nhelloX\r\n",
            "11112222333344445555\r\n",
        ] {
            let bytes = format!("POST / HTTP/1.1\r\n\r\n{bad}");
            let said = parts(bytes.as_bytes(), 7, BodyReader::chunks);
            assert_eq!(said.last().unwrap(), "lost", "{bad:?}: {said:?}");
        }
    }

    #[test]
    fn a_head_has_a_limit_however_it_arrives() {
        for (bytes, is_lost) in [(HEAD_BYTES_MAX, false), (HEAD_BYTES_MAX + 1, true)] {
            let fixed = "GET / HTTP/1.1\r\na: \r\n\r\n".len();
            let head = format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "b".repeat(bytes - fixed));
            for size in [1_000, 65_536, usize::MAX] {
                let said = parts(head.as_bytes(), size, BodyReader::none);
                assert_eq!(said[0] == "lost", is_lost, "{bytes} in {size}");
            }
        }
    }

    #[test]
    fn chunk_lines_are_left_out() {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(is_chunked(head));
        assert!(!is_chunked(b"HTTP/1.1 200 OK\r\n\r\n"));
        let whole = b"5\r\nhello\r\n3\r\n, y\r\n0\r\n\r\n";
        assert_eq!(without_chunk_lines(whole), b"hello, y");
        assert_eq!(without_chunk_lines(b"5\r\nhel"), b"hel");
    }
}
