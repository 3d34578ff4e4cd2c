//! Compares the session with the crate `h2`. A client of `h2` sends the same requests to a server
//! of `h2` and to a [`Session`], over connections that cut and delay bytes at random, and must get
//! the same responses from both.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::task::JoinSet;

use super::*;
use crate::random::Random;

/// The course of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// The response follows the request.
    InTurn,
    /// The response begins before the request's body is read, and returns that body.
    Echo,
    /// The server resets the stream after the head of its response.
    ServerResets,
    /// The client resets the stream after the first part of its body.
    ClientCancels,
}

/// An exchange.
#[derive(Clone, Debug)]
struct Exchange {
    manner: Manner,
    request: Vec<usize>,
    request_trailers: bool,
    response: Vec<usize>,
    response_trailers: bool,
}

impl Exchange {
    fn random(random: &mut Random, part_max: usize) -> Self {
        let manner = match random.below(8) {
            0 => Manner::ServerResets,
            1 => Manner::ClientCancels,
            2 | 3 => Manner::Echo,
            _ => Manner::InTurn,
        };
        Self {
            manner,
            request: random.parts(part_max),
            request_trailers: random.one_in(3),
            response: random.parts(part_max),
            response_trailers: random.one_in(3),
        }
    }

    /// The response, as a client must see it.
    fn expected(&self) -> ClientView {
        let request = bytes(&self.request);
        ClientView::Response {
            status: 203,
            got: match self.manner {
                Manner::Echo => String::new(),
                _ => got(&request, self.request_trailers),
            },
            body: match self.manner {
                Manner::Echo => request,
                _ => bytes(&self.response),
            },
            has_trailers: self.response_trailers,
        }
    }
}

type Script = Arc<Vec<Exchange>>;

/// What a client sees of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClientView {
    Response {
        status: u16,
        got: String,
        body: Vec<u8>,
        has_trailers: bool,
    },
    Reset(u32),
    Cancelled,
}

/// A body of parts with these lengths.
fn bytes(parts: &[usize]) -> Vec<u8> {
    let length = parts.iter().sum();
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// Cuts bytes into pieces of these lengths, without empty ones.
fn cut(bytes: &[u8], parts: &[usize]) -> VecDeque<Bytes> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let parts = parts.iter().filter(|&&length| length > 0);
    parts.map(|&length| rest.split_to(length)).collect()
}

/// The server's summary of a request, which it returns to the client.
fn got(body: &[u8], has_trailers: bool) -> String {
    let sum = body.iter().zip(1_u64..).fold(0_u64, |sum, (byte, at)| {
        sum.wrapping_add(u64::from(*byte).wrapping_mul(at))
    });
    format!("{} {sum} {has_trailers}", body.len())
}

fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    trailers
}

fn response(got: &str) -> Response<()> {
    let head = Response::builder().status(203).header("x-got", got);
    head.body(()).unwrap()
}

/// The number of a request's exchange.
fn number(path: &str) -> usize {
    path.trim_start_matches('/').parse().unwrap()
}

/// Most bytes that a connection moves at a time, and most bytes of a part of a body. Connections that move few bytes at a
/// time carry short bodies, which keeps the test fast.
const CUTS: [(usize, usize); 4] = [
    (1, 1_000),
    (40, 10_000),
    (3_000, 100_000),
    (70_000, 150_000),
];

/// A connection that moves a random number of bytes at a time, sometimes none.
pub(super) struct Choppy {
    io: DuplexStream,
    random: Random,
    most: usize,
}

impl Choppy {
    pub(super) fn pair(seed: u64, most: usize, room: usize) -> (Self, Self) {
        let (one, other) = tokio::io::duplex(room);
        let of = |io, seed| Self {
            io,
            random: Random::new(seed),
            most,
        };
        (of(one, seed + 1), of(other, seed + 2))
    }

    /// How many bytes to move now, if any.
    fn some(&mut self, cx: &Context<'_>) -> Option<usize> {
        if self.random.one_in(4) {
            cx.waker().wake_by_ref();
            return None;
        }
        Some(1 + self.random.below(self.most))
    }
}

impl AsyncRead for Choppy {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(some) = self.some(cx) else {
            return Poll::Pending;
        };
        let mut room = vec![0; some.min(buf.remaining())];
        let mut piece = ReadBuf::new(&mut room);
        let read = Pin::new(&mut self.io).poll_read(cx, &mut piece);
        buf.put_slice(piece.filled());
        read
    }
}

impl AsyncWrite for Choppy {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some(some) = self.some(cx) else {
            return Poll::Pending;
        };
        let some = some.min(bytes.len());
        Pin::new(&mut self.io).poll_write(cx, &bytes[..some])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Sends data through the windows of a stream of `h2`.
async fn send_all(
    stream: &mut SendStream<Bytes>,
    mut data: Bytes,
    is_last: bool,
) -> Result<(), h2::Error> {
    if data.is_empty() {
        return stream.send_data(data, is_last);
    }
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let Some(room) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else {
            return Err(h2::Reason::CANCEL.into());
        };
        let piece = data.split_to(room?.min(data.len()));
        let ends = is_last && data.is_empty();
        stream.send_data(piece, ends)?;
    }
    Ok(())
}

async fn receive_all(stream: &mut RecvStream) -> Result<(Vec<u8>, bool), h2::Error> {
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    Ok((body, stream.trailers().await?.is_some()))
}

/// Sends a body in parts, and its end.
async fn send_body(
    stream: &mut SendStream<Bytes>,
    parts: VecDeque<Bytes>,
    has_trailers: bool,
) -> Result<(), h2::Error> {
    for part in parts {
        send_all(stream, part, false).await?;
    }
    match has_trailers {
        true => stream.send_trailers(trailers()),
        false => stream.send_data(Bytes::new(), true),
    }
}

/// The client's side of an exchange.
async fn ask(send: SendRequest<Bytes>, script: Script, number: usize) -> (usize, ClientView) {
    let exchange = &script[number];
    let mut send = send.ready().await.unwrap();
    let uri = format!("https://a.example/{number}");
    let request = Request::post(uri).header("x-y", "z").body(()).unwrap();
    let is_empty = exchange.request.is_empty() && !exchange.request_trailers;
    let (response, mut stream) = send.send_request(request, is_empty).unwrap();
    if exchange.manner == Manner::ClientCancels {
        // Parts of the body may already be sent.
        stream.send_reset(h2::Reason::CANCEL);
        return (number, ClientView::Cancelled);
    }
    let up = async {
        let parts = cut(&bytes(&exchange.request), &exchange.request);
        if !is_empty {
            // A server that resets the stream reads no further.
            drop(send_body(&mut stream, parts, exchange.request_trailers).await);
        }
    };
    let down = async {
        let (head, mut body) = response.await?.into_parts();
        let got = head.headers["x-got"].to_str().unwrap().to_owned();
        let (body, has_trailers) = receive_all(&mut body).await?;
        Ok::<_, h2::Error>(ClientView::Response {
            status: head.status.as_u16(),
            got,
            body,
            has_trailers,
        })
    };
    let ((), seen) = tokio::join!(up, down);
    let seen = seen.unwrap_or_else(|error| {
        let reason = error.reason();
        ClientView::Reset(u32::from(reason.unwrap_or_else(|| panic!("{error}"))))
    });
    (number, seen)
}

/// Runs all exchanges of a script on one connection, a few at a time.
async fn client(io: Choppy, script: Script, seed: u64) -> Vec<ClientView> {
    let mut random = Random::new(seed);
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size([1_000, 65_535, 1 << 20][random.below(3)]);
    builder.initial_connection_window_size([65_535, 1 << 20][random.below(2)]);
    let (send, connection) = builder.handshake(io).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let mut tasks = JoinSet::new();
    let mut seen = vec![ClientView::Cancelled; script.len()];
    let at_once = 1 + random.below(12);
    let mut rest = 0..script.len();
    loop {
        while tasks.len() < at_once
            && let Some(number) = rest.next()
        {
            tasks.spawn(ask(send.clone(), Arc::clone(&script), number));
        }
        let Some(done) = tasks.join_next().await else {
            break;
        };
        let (number, what) = done.unwrap();
        seen[number] = what;
    }
    drop(send);
    driver.join_next().await.unwrap().unwrap().unwrap();
    seen
}

/// A server of `h2`.
async fn their_server(io: Choppy, script: Script) {
    let mut connection = h2::server::handshake(io).await.unwrap();
    let mut tasks = JoinSet::new();
    // A client that has finished may disconnect before it has read everything.
    while let Some(Ok((request, respond))) = connection.accept().await {
        tasks.spawn(their_answer(request, respond, Arc::clone(&script)));
    }
    tasks.join_all().await;
}

async fn their_answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    script: Script,
) {
    let exchange = &script[number(request.uri().path())];
    let mut upload = request.into_body();
    // If the client cancels, this fails early.
    let _cancelled: Result<(), h2::Error> = async {
        if exchange.manner == Manner::ServerResets {
            let mut stream = respond.send_response(response(""), false)?;
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
            return Ok(());
        }
        if exchange.manner == Manner::Echo {
            let mut stream = respond.send_response(response(""), false)?;
            while let Some(data) = upload.data().await {
                let data = data?;
                upload.flow_control().release_capacity(data.len())?;
                send_all(&mut stream, data, false).await?;
            }
            return send_body(&mut stream, VecDeque::new(), exchange.response_trailers).await;
        }
        let (body, has_trailers) = receive_all(&mut upload).await?;
        let mut stream = respond.send_response(response(&got(&body, has_trailers)), false)?;
        let parts = cut(&bytes(&exchange.response), &exchange.response);
        send_body(&mut stream, parts, exchange.response_trailers).await
    }
    .await;
}

/// The machine's side of an exchange.
struct ServerExchange {
    stream: u32,
    number: usize,
    body: Vec<u8>,
    has_trailers: bool,
    is_received: bool,
    has_head: bool,
    rest: VecDeque<Bytes>,
}

impl ServerExchange {
    /// Continues as far as windows and data allow. Returns false when the exchange is over.
    fn go_on(&mut self, session: &mut Session, exchange: &Exchange, now: Instant) -> bool {
        let cx = Context::from_waker(Waker::noop());
        let is_echo = exchange.manner == Manner::Echo;
        if exchange.manner == Manner::ServerResets {
            session.send_head(self.stream, &response("").into_parts().0, false);
            session.close(self.stream, Reason::INTERNAL_ERROR, now);
            return false;
        }
        while !self.is_received {
            match session.poll_data(self.stream, &cx) {
                Poll::Pending => break,
                Poll::Ready(None) => self.is_received = true,
                Poll::Ready(Some(Err(StreamClosed))) => return false,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if is_echo => self.rest.push_back(data),
                    Ok(data) => self.body.extend_from_slice(&data),
                    Err(_) => self.has_trailers = true,
                },
            }
        }
        if !self.has_head && (is_echo || self.is_received) {
            let got = match is_echo {
                true => String::new(),
                false => got(&self.body, self.has_trailers),
            };
            session.send_head(self.stream, &response(&got).into_parts().0, false);
            self.has_head = true;
            if !is_echo {
                self.rest = cut(&bytes(&exchange.response), &exchange.response);
            }
        }
        while let Some(data) = self.rest.front_mut() {
            match session.poll_window(self.stream, &cx) {
                Poll::Pending => return true,
                Poll::Ready(Err(StreamClosed)) => return false,
                Poll::Ready(Ok(room)) => {
                    let piece = data.split_to(room.min(data.len()));
                    session.send_data(self.stream, piece, false);
                    if data.is_empty() {
                        self.rest.pop_front();
                    }
                }
            }
        }
        if !self.is_received {
            return true;
        }
        match exchange.response_trailers {
            true => session.send_trailers(self.stream, &trailers()),
            false => session.send_data(self.stream, Bytes::new(), true),
        }
        session.close(self.stream, Reason::INTERNAL_ERROR, now);
        false
    }
}

/// The machine as a server.
async fn our_server(io: Choppy, script: Script, seed: u64) {
    let (now, cut_max) = (Instant::now(), io.most);
    let (mut reader, mut writer) = tokio::io::split(io);
    let mut random = Random::new(seed);
    let mut session = Session::new(100, Schemes::Https, now);
    let mut inbox = BytesMut::new();
    let mut answers: Vec<ServerExchange> = Vec::new();
    loop {
        loop {
            match session.step(&mut inbox, now).expect("nothing is wrong") {
                Step::More => break,
                Step::Done | Step::Refused(..) => {}
                Step::Request(asked) => answers.push(ServerExchange {
                    stream: asked.stream,
                    number: number(asked.head.into_parts(http::uri::Scheme::HTTPS).uri.path()),
                    body: Vec::new(),
                    has_trailers: false,
                    is_received: false,
                    has_head: false,
                    rest: VecDeque::new(),
                }),
            }
        }
        if !answers.is_empty() {
            let first = random.below(answers.len());
            answers.rotate_left(first);
        }
        answers.retain_mut(|it| it.go_on(&mut session, &script[it.number], now));
        // Reads while it writes, because the client may wait for that before it reads.
        let unwritten = session.outbox().unwritten();
        let next = unwritten.into_iter().find(|it| !it.is_empty());
        let next: Vec<u8> = next.map_or_else(Vec::new, |it| it[..it.len().min(cut_max)].to_vec());
        let read = tokio::select! {
            written = writer.write(&next), if !next.is_empty() => {
                // A client that has finished may disconnect before it has read everything.
                let Ok(written) = written else { return };
                session.outbox().wrote(written);
                continue;
            }
            read = reader.read_buf(&mut inbox) => read,
        };
        if read.unwrap() == 0 {
            assert!(answers.is_empty(), "{} are left", answers.len());
            return;
        }
    }
}

async fn run(seed: u64) {
    let mut random = Random::new(seed);
    let count = 1 + random.below(30);
    let (cut_max, part_max) = CUTS[random.below(CUTS.len())];
    let script = (0..count).map(|_| Exchange::random(&mut random, part_max));
    let script: Script = Arc::new(script.collect());
    let mut seen = Vec::new();
    for is_ours in [true, false] {
        // Two ends of `h2` can deadlock if there is little buffer between them, because neither
        // reads while it has bytes to write.
        let room = if is_ours { 2 * cut_max } else { 4 << 20 };
        let (here, there) = Choppy::pair(seed, cut_max, room);
        let client = client(here, Arc::clone(&script), seed);
        let server = async {
            match is_ours {
                true => our_server(there, Arc::clone(&script), seed).await,
                false => their_server(there, Arc::clone(&script)).await,
            }
        };
        let both = async { tokio::join!(client, server).0 };
        let both = tokio::time::timeout(Duration::from_secs(60), both).await;
        seen.push(both.unwrap_or_else(|_| panic!("seed {seed}, ours: {is_ours}: it hangs")));
    }
    for (number, exchange) in script.iter().enumerate() {
        let expected = match exchange.manner {
            Manner::ServerResets => ClientView::Reset(Reason::INTERNAL_ERROR.0),
            Manner::ClientCancels => ClientView::Cancelled,
            Manner::InTurn | Manner::Echo => exchange.expected(),
        };
        for (name, seen) in ["ours", "h2"].into_iter().zip(&seen) {
            assert!(
                seen[number] == expected,
                "seed {seed}, {name}, {number}: {exchange:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_client_of_h2_sees_the_same_of_both_servers() {
    for seed in 1..=40 {
        run(seed).await;
    }
}
