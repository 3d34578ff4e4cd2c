//! Where the messages of HTTP/1.1 begin and end in bytes that pass by (RFC 9112).
//!
//! It only watches: the server has judged the requests already, and what it cannot follow it gives
//! up on ([`Part::Strange`]) without a word to either side. A head that arrives in one piece, as nearly
//! all do, is looked at where it lies.

use std::borrow::Cow;
use std::mem::MaybeUninit;

/// Longest head that is followed.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most fields in one.
const FIELDS_MAX: usize = 128;
const HEAD_END: &[u8] = b"\r\n\r\n";
/// Longest line that says how long a chunk is, and longest trailer line.
const LINE_BYTES_MAX: usize = 8 << 10;

/// What comes next in the bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// A whole head. The caller says what follows it by [`Framing::expect`].
    Head(Cow<'a, [u8]>),
    /// Some of a body, as it travels: with its chunk lines, if it has any.
    Body(&'a [u8]),
    /// The message is complete.
    End,
    /// No HTTP/1.1 from here on.
    Strange,
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// After so many bytes.
    Fixed(u64),
    /// With a chunk of length zero and the trailers behind it.
    Chunked,
    /// With the connection.
    ToTheEnd,
}

/// The bytes of one direction.
#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
}

#[derive(Debug)]
enum State {
    /// What came of a head so far.
    Head(Vec<u8>),
    /// The head is out; nobody has said yet what follows.
    Between,
    Fixed(u64),
    Chunk(Chunk),
    ToTheEnd,
    Strange,
}

#[derive(Clone, Copy, Debug)]
enum Chunk {
    /// In the line before a chunk: its length so far, whether digits may follow, bytes of the line.
    Line {
        length: u64,
        digits: bool,
        seen: usize,
    },
    Data(u64),
    /// The two bytes behind a chunk.
    Tail(u8),
    /// Behind the last chunk: bytes of the current line.
    Trailer(usize),
}

const FIRST_LINE: Chunk = Chunk::Line {
    length: 0,
    digits: true,
    seen: 0,
};

impl Default for Framing {
    fn default() -> Self {
        Self {
            state: State::Head(Vec::new()),
        }
    }
}

impl Framing {
    /// Takes the next part off the front of `bytes`; `None` when they are used up.
    pub(crate) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Part<'a>> {
        match &mut self.state {
            State::Fixed(0) => {
                self.state = State::Head(Vec::new());
                Some(Part::End)
            }
            State::Between | State::Strange => None,
            _ if bytes.is_empty() => None,
            State::Head(head) if head.is_empty() => {
                let seen = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
                match memchr::memmem::find(seen, HEAD_END) {
                    Some(at) => {
                        let (head, rest) = bytes.split_at(at + HEAD_END.len());
                        *bytes = rest;
                        self.state = State::Between;
                        Some(Part::Head(Cow::Borrowed(head)))
                    }
                    None if bytes.len() > HEAD_BYTES_MAX => Some(self.give_up()),
                    None => {
                        head.extend_from_slice(std::mem::take(bytes));
                        None
                    }
                }
            }
            State::Head(head) => {
                let had = head.len();
                // The end may lie across two reads.
                let from = had.saturating_sub(3);
                head.extend_from_slice(&bytes[..bytes.len().min(HEAD_BYTES_MAX + 1 - had)]);
                match memchr::memmem::find(&head[from..], HEAD_END) {
                    Some(at) => {
                        head.truncate(from + at + HEAD_END.len());
                        *bytes = &bytes[head.len() - had..];
                        let head = std::mem::take(head);
                        self.state = State::Between;
                        Some(Part::Head(Cow::Owned(head)))
                    }
                    None if head.len() > HEAD_BYTES_MAX => Some(self.give_up()),
                    None => {
                        *bytes = &[];
                        None
                    }
                }
            }
            State::Fixed(left) => {
                let length = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let (body, rest) = bytes.split_at(length);
                *left -= length as u64;
                *bytes = rest;
                Some(Part::Body(body))
            }
            State::ToTheEnd => Some(Part::Body(std::mem::take(bytes))),
            State::Chunk(chunk) => match chunks(chunk, bytes) {
                Some((body, rest, ended)) => {
                    *bytes = rest;
                    if ended {
                        // What is left to say is that it ended.
                        self.state = State::Fixed(0);
                    }
                    Some(Part::Body(body))
                }
                None => Some(self.give_up()),
            },
        }
    }

    /// Says what follows the head that was given out last.
    pub(crate) fn expect(&mut self, length: Length) {
        self.state = match length {
            Length::Fixed(length) => State::Fixed(length),
            Length::Chunked => State::Chunk(FIRST_LINE),
            Length::ToTheEnd => State::ToTheEnd,
        };
    }

    /// The head that was given out last stands for itself: another follows.
    pub(crate) fn expect_head(&mut self) {
        self.state = State::Head(Vec::new());
    }

    /// Whether the last message is complete and no byte of another has arrived.
    pub(crate) fn is_between_messages(&self) -> bool {
        match &self.state {
            State::Head(head) => head.is_empty(),
            State::Fixed(left) => *left == 0,
            State::Between | State::Chunk(_) | State::ToTheEnd | State::Strange => false,
        }
    }

    /// Whether a message ends with the connection.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.state, State::ToTheEnd)
    }

    pub(crate) fn give_up<'a>(&mut self) -> Part<'a> {
        self.state = State::Strange;
        Part::Strange
    }
}

/// Follows the chunks as far as the bytes go: what belongs to the message, what does not, and
/// whether it ended between them. `None` if these are no chunks.
fn chunks<'a>(chunk: &mut Chunk, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8], bool)> {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match chunk {
            Chunk::Line {
                length,
                digits,
                seen,
            } => {
                at += 1;
                *seen += 1;
                match (byte, char::from(*byte).to_digit(16)) {
                    (b'\n', _) if *seen > 1 => {
                        *chunk = match *length {
                            0 => Chunk::Trailer(0),
                            length => Chunk::Data(length),
                        };
                    }
                    (_, Some(digit)) if *digits => {
                        *length = length.checked_mul(16)?.checked_add(u64::from(digit))?;
                    }
                    _ if *seen == 1 || *seen > LINE_BYTES_MAX => return None,
                    // An extension, or the end of the line.
                    _ => *digits = false,
                }
            }
            Chunk::Data(left) => {
                let length = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len() - at);
                at += length;
                *left -= length as u64;
                if *left == 0 {
                    *chunk = Chunk::Tail(0);
                }
            }
            Chunk::Tail(seen) => {
                at += 1;
                match (byte, *seen) {
                    (b'\r', 0) => *seen = 1,
                    (b'\n', 1) => *chunk = FIRST_LINE,
                    _ => return None,
                }
            }
            Chunk::Trailer(seen) => {
                at += 1;
                match byte {
                    b'\n' if *seen == 0 => return Some((&bytes[..at], &bytes[at..], true)),
                    b'\n' => *seen = 0,
                    b'\r' => {}
                    _ if *seen > LINE_BYTES_MAX => return None,
                    _ => *seen += 1,
                }
            }
        }
    }
    Some((bytes, &[], false))
}

/// The head of a request, as far as it matters here.
#[derive(Debug)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) length: Length,
    /// The last address of the last `x-forwarded-for`: who the server says is its client.
    pub(crate) client: Option<&'a str>,
}

/// Reads the head of a request; `None` if it is none, or cannot be followed.
pub(crate) fn request(head: &[u8]) -> Option<RequestHead<'_>> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let parsed = request.parse_with_uninit_headers(head, &mut fields);
    if !parsed.ok()?.is_complete() || request.method == Some("CONNECT") {
        return None;
    }
    Some(RequestHead {
        method: request.method?,
        path: request.path?,
        length: length(request.headers)?.unwrap_or(Length::Fixed(0)),
        client: request
            .headers
            .iter()
            .rfind(|field| field.name.eq_ignore_ascii_case("x-forwarded-for"))
            .and_then(|field| std::str::from_utf8(field.value).ok()?.rsplit(',').next())
            .map(str::trim),
    })
}

/// The head of a response, as far as it matters here.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    /// `None` behind a status that only announces another response.
    pub(crate) length: Option<Length>,
}

/// Reads the head of a response to a request of `HEAD`, or of another method; `None` if it is none, or
/// cannot be followed.
pub(crate) fn response(head: &[u8], to_head: bool) -> Option<ResponseHead> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let parsed = config.parse_response_with_uninit_headers(&mut response, head, &mut fields);
    if !parsed.ok()?.is_complete() {
        return None;
    }
    let status = response.code?;
    let length = match status {
        101 => Some(Length::ToTheEnd),
        100..=199 => None,
        204 | 304 => Some(Length::Fixed(0)),
        _ if to_head => Some(Length::Fixed(0)),
        _ => Some(length(response.headers)?.unwrap_or(Length::ToTheEnd)),
    };
    Some(ResponseHead { status, length })
}

/// What the fields say of the body: nothing, or how long it is. `None` outside if they contradict
/// each other.
fn length(fields: &[httparse::Header<'_>]) -> Option<Option<Length>> {
    let mut found = None;
    for field in fields {
        if field.name.eq_ignore_ascii_case("transfer-encoding") {
            if !field.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return None;
            }
            found = Some(Length::Chunked);
        } else if field.name.eq_ignore_ascii_case("content-length")
            && found != Some(Length::Chunked)
        {
            let text = std::str::from_utf8(field.value).ok()?;
            let length = Length::Fixed(text.trim().parse().ok()?);
            if found.is_some_and(|other| other != length) {
                return None;
            }
            found = Some(length);
        }
    }
    Some(found)
}

/// A body without the lines of its chunks, if it had any. What is cut off is simply missing.
pub(crate) fn unchunked(head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let fields = match head.starts_with(b"HTTP/") {
        true => {
            let mut response = httparse::Response::new(&mut fields);
            response.parse(head).is_ok().then_some(response.headers)
        }
        false => {
            let mut request = httparse::Request::new(&mut fields);
            request.parse(head).is_ok().then_some(request.headers)
        }
    };
    let is_chunked = fields.is_some_and(|fields| length(fields) == Some(Some(Length::Chunked)));
    if !is_chunked {
        return body.to_vec();
    }
    let (mut chunk, mut plain) = (FIRST_LINE, Vec::with_capacity(body.len()));
    for byte in body {
        if matches!(chunk, Chunk::Data(_)) {
            plain.push(*byte);
        }
        if !matches!(
            chunks(&mut chunk, std::slice::from_ref(byte)),
            Some((_, _, false))
        ) {
            break;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the bytes fall into, fed in pieces of `size`.
    fn parts(bytes: &[u8], size: usize, length: Length) -> Vec<String> {
        let (mut framing, mut said) = (Framing::default(), Vec::<String>::new());
        for mut piece in bytes.chunks(size) {
            while let Some(part) = framing.next(&mut piece) {
                match part {
                    Part::Head(head) => {
                        said.push(format!("head {}", head.len()));
                        framing.expect(length);
                    }
                    Part::Body(body) => match said.last_mut() {
                        Some(last) if last.starts_with("body ") => {
                            let so_far: usize = last[5..].parse().unwrap();
                            *last = format!("body {}", so_far + body.len());
                        }
                        _ => said.push(format!("body {}", body.len())),
                    },
                    Part::End => said.push("end".into()),
                    Part::Strange => said.push("strange".into()),
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
                parts(fixed, size, Length::Fixed(5))[..4],
                ["head 38", "body 5", "end", "head 18"],
                "in pieces of {size}"
            );
            assert_eq!(
                parts(chunked, size, Length::Chunked)[..4],
                ["head 19", "body 40", "end", "head 18"],
                "in pieces of {size}"
            );
            assert_eq!(parts(fixed, size, Length::ToTheEnd), ["head 38", "body 23"]);
        }
    }

    #[test]
    fn what_is_no_message_is_given_up() {
        assert_eq!(parts(&[b'x'; 70_000], 1000, Length::Fixed(0)), ["strange"]);
        for bad in [
            "\r\n",
            "xyz\r\n",
            "5\r\nhelloX\r\n",
            "11112222333344445555\r\n",
        ] {
            let bytes = format!("POST / HTTP/1.1\r\n\r\n{bad}");
            let said = parts(bytes.as_bytes(), 7, Length::Chunked);
            assert_eq!(said.last().unwrap(), "strange", "{bad:?}: {said:?}");
        }
    }

    #[test]
    fn heads_say_how_long_bodies_are() {
        let of_request = |fields: &str| {
            request(format!("POST /a HTTP/1.1\r\n{fields}\r\n").as_bytes()).map(|head| head.length)
        };
        assert_eq!(of_request(""), Some(Length::Fixed(0)));
        assert_eq!(of_request("content-length: 7\r\n"), Some(Length::Fixed(7)));
        assert_eq!(
            of_request("Transfer-Encoding: Chunked\r\n"),
            Some(Length::Chunked)
        );
        assert_eq!(of_request("Transfer-Encoding: gzip\r\n"), None);
        assert_eq!(
            of_request("content-length: 7\r\ncontent-length: 8\r\n"),
            None
        );
        let of_response = |status: u16, method: &str| {
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: 7\r\n\r\n");
            response(head.as_bytes(), method == "HEAD").and_then(|head| head.length)
        };
        assert_eq!(of_response(200, "GET"), Some(Length::Fixed(7)));
        assert_eq!(of_response(200, "HEAD"), Some(Length::Fixed(0)));
        assert_eq!(of_response(304, "GET"), Some(Length::Fixed(0)));
        assert_eq!(of_response(103, "GET"), None);
        assert_eq!(of_response(101, "GET"), Some(Length::ToTheEnd));
    }

    #[test]
    fn chunk_lines_are_not_shown() {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(
            unchunked(head, b"5\r\nhello\r\n3\r\n, y\r\n0\r\n\r\n"),
            b"hello, y"
        );
        assert_eq!(unchunked(head, b"5\r\nhel"), b"hel");
        assert_eq!(unchunked(b"HTTP/1.1 200 OK\r\n\r\n", b"5\r\n"), b"5\r\n");
    }
}
