//! Cases of h2spec and of RFC 9113: bytes from a client, and the required outcome.
//!
//! The meaning of a frame depends on the state of its stream. So each case runs against a server
//! that responds immediately and, unless it needs a response, against one that never responds. Each
//! is fed whole and byte by byte.

use super::*;
use crate::http2::Refused;

/// The required outcome of a case.
pub(super) enum Expect {
    /// Nothing is reset and the connection continues: a later PING is acknowledged.
    Goes,
    /// This many complete responses are sent, and the connection continues.
    Answers(usize),
    /// A request arrives that must be refused with a status, and the connection continues.
    Refuses,
    /// The connection is closed for one of these reasons.
    Connection(&'static [Reason]),
    /// A stream or the connection is closed for one of these reasons.
    Stream(&'static [Reason]),
    /// One stream is reset for this reason, and the connection continues.
    Reset(Reason),
    /// DATA of these lengths is sent.
    Data(&'static [usize]),
    /// A frame with this type, these flags and this payload is sent, and the connection continues.
    Says(u8, u8, &'static [u8]),
}

impl Expect {
    /// Whether the case requires responses.
    pub(super) fn needs_answers(&self) -> bool {
        matches!(self, Self::Answers(_) | Self::Data(_))
    }
}

/// Whether the server responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    AtOnce,
    Never,
}

struct Outcome {
    end: Option<ConnectionError>,
    said: Vec<(u8, u8, u32, Vec<u8>)>,
    refused: usize,
}

/// The server. It responds to each complete request with `hello`, as far as windows allow.
struct Serving {
    talk: Talk,
    server: Server,
    /// Requests without a complete response, and the rest of the response.
    pending: Vec<(u32, Option<&'static [u8]>)>,
    outcome: Outcome,
}

impl Serving {
    fn new(server: Server) -> Self {
        Self {
            talk: Talk::with(100),
            server,
            pending: Vec::new(),
            outcome: Outcome {
                end: None,
                said: Vec::new(),
                refused: 0,
            },
        }
    }

    /// Processes one frame after another, and responds after each.
    fn hears(&mut self, bytes: &[u8]) {
        self.talk.inbox.extend_from_slice(bytes);
        while self.outcome.end.is_none() {
            let now = self.talk.now;
            match self.talk.session.step(&mut self.talk.inbox, now) {
                Ok(Step::More) => break,
                Ok(Step::Done | Step::Refused(..)) => {}
                Ok(Step::Request(asked)) => {
                    let head = asked.head.into_parts(http::uri::Scheme::HTTPS);
                    let is_refused = head.extensions.get::<Refused>().is_some();
                    self.outcome.refused += usize::from(is_refused);
                    self.pending.push((asked.stream, None));
                }
                Err(end) => {
                    self.talk.session.close_connection(end.reason());
                    self.outcome.end = Some(end);
                }
            }
            if self.server == Server::AtOnce {
                self.answer();
            }
            self.outcome.said.extend(self.talk.said());
        }
    }

    fn answer(&mut self) {
        let talk = &mut self.talk;
        self.pending.retain_mut(|(id, rest)| {
            let id = *id;
            let rest = match rest {
                Some(rest) => rest,
                None => {
                    loop {
                        match talk.data(id) {
                            Poll::Pending => return true,
                            Poll::Ready(Some(Ok(_))) => {}
                            Poll::Ready(Some(Err(StreamClosed))) => return false,
                            Poll::Ready(None) => break,
                        }
                    }
                    talk.session.send_head(id, &ok(), false);
                    rest.insert(b"hello")
                }
            };
            while let Poll::Ready(window) = talk.window(id) {
                let Ok(window) = window else { return false };
                let (data, more) = rest.split_at(window.min(rest.len()));
                *rest = more;
                let is_last = rest.is_empty();
                talk.session
                    .send_data(id, Bytes::from_static(data), is_last);
                if is_last {
                    talk.session.close(id, Reason::INTERNAL_ERROR, talk.now);
                    return false;
                }
            }
            true
        });
    }
}

const PING: [u8; 8] = *b"is alive";

fn run(bytes: &[u8], server: Server, step: usize) -> Outcome {
    let mut serving = Serving::new(server);
    for piece in bytes.chunks(step) {
        serving.hears(piece);
    }
    serving.hears(&frame(frame::PING, 0, 0, &PING));
    serving.outcome
}

/// Runs a case, whole and byte by byte. Returns the failures.
pub(super) fn check(name: &str, bytes: &[u8], server: Server, expect: &Expect) -> Vec<String> {
    let mut wrong = Vec::new();
    for step in [usize::MAX, 1] {
        let outcome = run(bytes, server, step);
        if !outcome.is(expect) {
            wrong.push(format!(
                "{name} ({server:?}, in pieces of {step}): {:?} {:?}",
                outcome.end, outcome.said
            ));
        }
    }
    wrong
}

impl Outcome {
    fn goes(&self) -> bool {
        let is_alive = |it: &(u8, u8, u32, Vec<u8>)| {
            (it.0, it.1, &it.3[..]) == (frame::PING, frame::ACK, &PING[..])
        };
        self.end.is_none() && self.said.iter().any(is_alive)
    }

    fn ends(&self, reasons: &[Reason]) -> bool {
        let said = self.said.iter().filter(|it| it.0 == frame::GOAWAY);
        let codes: Vec<Reason> = said
            .map(|it| Reason(frame::number(&it.3[4..]).unwrap()))
            .collect();
        matches!(self.end, Some(ConnectionError::Protocol(reason)) if reasons.contains(&reason) && codes == [reason])
    }

    /// The reasons of all resets that were sent.
    fn resets(&self) -> Vec<Reason> {
        let resets = self.said.iter().filter(|it| it.0 == frame::RST_STREAM);
        resets
            .map(|it| Reason(frame::number(&it.3).unwrap()))
            .collect()
    }

    fn is(&self, expect: &Expect) -> bool {
        match expect {
            Expect::Goes => self.goes() && self.resets().is_empty(),
            Expect::Reset(reason) => self.goes() && self.resets() == [*reason],
            Expect::Answers(count) => {
                let is_end = |it: &&(u8, u8, u32, Vec<u8>)| {
                    it.0 == frame::DATA && it.1 & frame::END_STREAM != 0
                };
                self.goes()
                    && self.refused == 0
                    && self.said.iter().filter(is_end).count() == *count
            }
            Expect::Refuses => self.goes() && self.refused > 0,
            Expect::Connection(reasons) => self.ends(reasons),
            Expect::Stream(reasons) => {
                let is_reset = self.resets().iter().any(|it| reasons.contains(it));
                self.ends(reasons) || (self.goes() && is_reset)
            }
            Expect::Data(lengths) => {
                let data = self.said.iter().filter(|it| it.0 == frame::DATA);
                self.goes() && data.map(|it| it.3.len()).collect::<Vec<_>>() == *lengths
            }
            Expect::Says(kind, flags, payload) => {
                let is_it = |it: &(u8, u8, u32, Vec<u8>)| {
                    (it.0, it.1, &it.3[..]) == (*kind, *flags, *payload)
                };
                self.goes() && self.said.iter().any(is_it)
            }
        }
    }
}

// The frames of the cases.

pub(super) fn headers(flags: u8, stream: u32, block: &[u8]) -> Vec<u8> {
    frame(frame::HEADERS, flags, stream, block)
}

/// A request without a body.
pub(super) fn get(stream: u32) -> Vec<u8> {
    headers(WHOLE, stream, &section(&[]))
}

pub(super) fn get_with(field: (&str, &str)) -> Vec<u8> {
    headers(WHOLE, 1, &section(&[field]))
}

/// The head of a request with a body.
pub(super) fn post(stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = of(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/"),
        (":authority", "a.example"),
    ]);
    block.extend(of(more));
    headers(OPENING, stream, &block)
}

pub(super) fn data(flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    frame(frame::DATA, flags, stream, payload)
}

pub(super) fn continuation(flags: u8, stream: u32, block: &[u8]) -> Vec<u8> {
    frame(frame::CONTINUATION, flags, stream, block)
}

pub(super) fn priority(stream: u32, on: u32, weight: u8) -> Vec<u8> {
    let payload = [&on.to_be_bytes()[..], &[weight]].concat();
    frame(frame::PRIORITY, 0, stream, &payload)
}

pub(super) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(frame::RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub(super) fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(frame::WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

pub(super) fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let entry =
        |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let payload: Vec<u8> = settings.iter().flat_map(entry).collect();
    frame(frame::SETTINGS, 0, 0, &payload)
}

pub(super) fn many(frames: &[&[u8]]) -> Vec<u8> {
    frames.concat()
}

/// A request whose field section ends with these bytes.
pub(super) fn behind(bytes: &[u8]) -> Vec<u8> {
    headers(WHOLE, 1, &[&section(&[])[..], bytes].concat())
}

pub(super) const PROTOCOL: Reason = Reason::PROTOCOL_ERROR;
pub(super) const CLOSED: Reason = Reason::STREAM_CLOSED;
pub(super) const SIZE: Reason = Reason::FRAME_SIZE_ERROR;
pub(super) const FLOW: Reason = Reason::FLOW_CONTROL_ERROR;
pub(super) const COMPRESSION: Reason = Reason::COMPRESSION_ERROR;
