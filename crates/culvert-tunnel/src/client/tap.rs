//! Watches the bytes of one proxied connection and records its exchanges, or a sample under load. It follows
//! the boundaries of all exchanges, so recorded ones are complete; it copies nothing of the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_http::http1::follow::{Follower, MessagePart};
use http::StatusCode;

use super::endpoint::Endpoint;
use super::exchanges::{Exchange, Exchanges, Message};
use super::heads::{self, RequestHead, ResponseHead};

/// Maximum number of requests whose responses have not begun. Beyond it, the connection is no longer watched.
const PIPELINED_MAX: usize = 16;
/// Shown with a request whose response is missing or incomplete.
const CLOSED_EARLY: &str = "the service closed the connection before its response was complete";

/// The connection that an exchange belongs to.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) url: String,
    /// Empty if the stream carries the requests of many clients.
    pub(crate) client: String,
    pub(crate) replay_of: Option<u64>,
}

/// Watches both directions of a connection.
#[derive(Debug)]
pub(crate) struct Tap {
    all: Arc<Exchanges>,
    about: About,
    requests: Follower,
    responses: Follower,
    /// Open exchanges, oldest first. The body being read belongs to the last.
    open: VecDeque<Open>,
    /// The id of the last recorded exchange.
    kept: Option<u64>,
    is_lost: bool,
}

/// An open exchange.
#[derive(Debug)]
struct Open {
    /// Whether it is a HEAD request.
    is_head: bool,
    began: Instant,
    /// Set only if it is recorded.
    exchange: Option<Box<Exchange>>,
}

impl Tap {
    pub(crate) fn new(all: Arc<Exchanges>, about: About) -> Self {
        Self {
            all,
            about,
            requests: Follower::default(),
            responses: Follower::default(),
            open: VecDeque::new(),
            kept: None,
            is_lost: false,
        }
    }

    /// Processes bytes from the client.
    pub(crate) fn request(&mut self, mut bytes: &[u8]) {
        while !self.is_lost {
            if self.requests.is_before_head()
                && let Some((read, length)) = heads::usual(bytes)
                && let Some((head, rest)) = bytes.split_at_checked(length)
            {
                self.begin_request(read, head);
                bytes = rest;
                continue;
            }
            let Some(part) = self.requests.next_part(&mut bytes) else {
                return;
            };
            match part {
                MessagePart::Head(head) => match heads::request(&head) {
                    Some(read) => self.begin_request(read, &head),
                    None => self.lose(),
                },
                MessagePart::Body(body) => {
                    if let Some(Open {
                        exchange: Some(it), ..
                    }) = self.open.back_mut()
                    {
                        it.request.append(body);
                    }
                }
                MessagePart::End => {}
                MessagePart::Lost => self.lose(),
            }
        }
    }

    fn begin_request(&mut self, read: RequestHead<'_>, head: &[u8]) {
        if self.open.len() >= PIPELINED_MAX {
            return self.lose();
        }
        let began = Instant::now();
        self.about.endpoint.meters.requests.begin();
        self.open.push_back(Open {
            is_head: read.method == "HEAD",
            began,
            exchange: self.watch(began, &read, head),
        });
        self.requests.expect(read.body);
    }

    /// Processes bytes from the service.
    pub(crate) fn response(&mut self, mut bytes: &[u8]) {
        while !self.is_lost {
            if self.responses.is_before_head()
                && let Some(open) = self.open.front()
                && let Some((read, length)) = heads::usual_answer(bytes, open.is_head)
                && let Some((head, rest)) = bytes.split_at_checked(length)
            {
                self.begin_response(read, head);
                bytes = rest;
                continue;
            }
            let Some(part) = self.responses.next_part(&mut bytes) else {
                return;
            };
            let Some(open) = self.open.front_mut() else {
                return self.lose();
            };
            match part {
                MessagePart::Head(head) => match heads::response(&head, open.is_head) {
                    Some(read) => self.begin_response(read, &head),
                    None => self.lose(),
                },
                MessagePart::Body(body) => {
                    if let Some(it) = &mut open.exchange {
                        it.response.append(body);
                    }
                }
                // The response may end before the request was read; the rest of the request's body is then
                // dropped.
                MessagePart::End => self.keep_first(),
                MessagePart::Lost => self.lose(),
            }
        }
    }

    fn begin_response(&mut self, read: ResponseHead, head: &[u8]) {
        let Some(body) = read.body else {
            return self.responses.expect_head();
        };
        if let Some(Open {
            exchange: Some(it), ..
        }) = self.open.front_mut()
        {
            it.status = Some(read.status.as_u16());
            it.response.begin(head.to_vec(), &self.all);
        }
        if read.status == StatusCode::SWITCHING_PROTOCOLS {
            // The bytes that follow are not HTTP messages.
            self.is_lost = true;
            self.keep_first();
            return;
        }
        self.responses.expect(body);
    }

    /// The service closed its side of the connection. This completes a body that is delimited by the close.
    pub(crate) fn response_ended(&mut self) {
        if !self.is_lost {
            if self.responses.ends_with_connection() {
                self.keep_first();
            }
            self.fail(CLOSED_EARLY);
        }
        self.is_lost = true;
    }

    /// Records an error for every exchange without a complete response.
    pub(crate) fn fail(&mut self, why: &str) {
        for open in &mut self.open {
            if let Some(exchange) = &mut open.exchange {
                exchange.error.get_or_insert_with(|| why.to_owned());
            }
        }
    }

    /// Whether every request has its complete response. `None` once the connection carries something other
    /// than HTTP messages, such as a WebSocket.
    pub(crate) fn is_idle(&self) -> Option<bool> {
        (!self.is_lost).then(|| self.open.is_empty() && self.requests.is_between_messages())
    }

    /// Whether the head of a request has arrived.
    pub(crate) fn has_request(&self) -> bool {
        self.is_lost || !self.open.is_empty()
    }

    /// The id of the last recorded exchange.
    pub(crate) fn kept(&self) -> Option<u64> {
        self.kept
    }

    /// Starts recording a request if it is selected. Replayed requests are always recorded.
    fn watch(&self, began: Instant, read: &RequestHead<'_>, head: &[u8]) -> Option<Box<Exchange>> {
        if self.about.replay_of.is_none() && !self.all.takes(began) {
            return None;
        }
        let mut request = Message::default();
        request.begin(head.to_vec(), &self.all);
        Some(Box::new(Exchange {
            id: 0,
            url: self.about.url.clone(),
            endpoint: Arc::clone(&self.about.endpoint),
            // A stream that many clients share names no client.
            client: match read.client {
                Some(client) if self.about.client.is_empty() => client.to_owned(),
                _ => self.about.client.clone(),
            },
            started_at: self.all.now(),
            took: Duration::ZERO,
            method: read.method.to_owned(),
            path: read.path.to_owned(),
            request,
            status: None,
            response: Message::default(),
            replay_of: self.about.replay_of,
            error: None,
        }))
    }

    fn keep_first(&mut self) {
        let Some(open) = self.open.pop_front() else {
            return;
        };
        let took = open.began.elapsed();
        self.about.endpoint.meters.requests.end(took);
        if let Some(mut exchange) = open.exchange {
            exchange.took = took;
            self.kept = Some(self.all.keep(*exchange));
        }
    }

    /// Stops watching. Open exchanges are recorded as far as they were seen.
    fn lose(&mut self) {
        self.is_lost = true;
        while !self.open.is_empty() {
            self.keep_first();
        }
    }
}

/// Also records the open exchanges of a connection that fails.
impl Drop for Tap {
    fn drop(&mut self) {
        self.lose();
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::{ManualClock, Timestamp};

    use super::*;

    fn tap() -> (Arc<Exchanges>, Tap) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(0)));
        let all = Arc::new(Exchanges::new(clock));
        let about = About {
            endpoint: Arc::new(Endpoint::for_tests()),
            url: "https://a.test".into(),
            client: "192.0.2.1:7".into(),
            replay_of: None,
        };
        (Arc::clone(&all), Tap::new(all, about))
    }

    fn seen(all: &Exchanges) -> Vec<String> {
        let mut seen: Vec<_> = all
            .recent()
            .iter()
            .map(|it| {
                let (request, response) = (it.request.plain_body(), it.response.plain_body());
                format!(
                    "{} {} {:?} {}>{}",
                    it.method,
                    it.path,
                    it.status,
                    String::from_utf8(request).unwrap(),
                    String::from_utf8(response).unwrap()
                )
            })
            .collect();
        seen.reverse();
        seen
    }

    #[test]
    fn requests_one_behind_the_other_are_distinguished() {
        let (all, mut tap) = tap();
        tap.request(b"POST /a HTTP/1.1\r\ncontent-length: 2\r\n\r\nhi");
        tap.response(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n");
        tap.request(b"HEAD /b?c HTTP/1.1\r\n\r\n");
        tap.response(b"HTTP/1.1 404 No\r\ncontent-length: 9\r\n\r\n");
        tap.request(b"GET /c HTTP/1.1\r\n\r\n");
        tap.response(b"HTTP/1.1 200 OK\r\n\r\nto the");
        tap.response(b" end");
        assert_eq!(all.recent().len(), 2);
        tap.response_ended();
        assert_eq!(
            seen(&all),
            [
                "POST /a Some(200) hi>yes",
                "HEAD /b?c Some(404) >",
                "GET /c Some(200) >to the end"
            ]
        );
    }

    #[test]
    fn pipelined_requests_find_their_responses() {
        let (all, mut tap) = tap();
        tap.request(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
        tap.response(b"HTTP/1.1 204 x\r\n\r\nHTTP/1.1 200 x\r\ncontent-length: 1\r\n\r\nb");
        assert_eq!(seen(&all), ["GET /a Some(204) >", "GET /b Some(200) >b"]);
    }

    #[test]
    fn exchanges_that_are_not_kept_are_followed_to_their_end() {
        let (all, mut tap) = tap();
        let soon = Instant::now() + Duration::from_secs(1);
        while all.takes(soon) {}
        let before = all.counts().not_kept;
        tap.request(b"POST /a HTTP/1.1\r\ncontent-length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n");
        tap.response(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nyes\r\n");
        tap.response(b"0\r\n\r\n");
        tap.request(b"HEAD /b HTTP/1.1\r\n\r\n");
        tap.response(b"HTTP/1.1 404 No\r\ncontent-length: 9\r\n\r\n");
        assert_eq!(all.counts().not_kept, before + 2);
        assert!(all.recent().is_empty());
        // A replayed request is recorded, regardless of the load.
        tap.about.replay_of = Some(1);
        tap.request(b"GET /c HTTP/1.1\r\n\r\n");
        tap.response(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi");
        assert_eq!(seen(&all), ["GET /c Some(200) >hi"]);
        assert_eq!(all.counts().seen, before + 3);
    }

    #[test]
    fn what_is_cut_off_or_no_http_is_kept_as_far_as_it_was_seen() {
        let (all, mut cut) = tap();
        cut.request(b"GET /a HTTP/1.1\r\n\r\n");
        drop(cut);
        assert_eq!(seen(&all), ["GET /a None >"]);

        let (all, mut upgraded) = tap();
        upgraded.request(b"GET /ws HTTP/1.1\r\nupgrade: websocket\r\n\r\n");
        upgraded.response(b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x81\x00");
        upgraded.request(b"\x81\x00");
        assert_eq!(seen(&all), ["GET /ws Some(101) >"]);

        let (all, mut strange) = tap();
        strange.request(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        strange.response(b"\0\0\0\x04");
        drop(strange);
        assert!(all.recent().is_empty());
    }
}
