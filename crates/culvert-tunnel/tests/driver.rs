//! Connections over pipes in memory: our driver at one end, the multiplexer of the published agents
//! or our own at the other.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use culvert_mux::{Ending, ErrorCode, Limits, OpenRefused, Side, Source};
use culvert_tunnel::driver::{Session, Stream, connect};
use muxado::{Accept, OpenClose, SessionBuilder};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const STREAMS: usize = 40;
const LENGTH: usize = 500_000;

fn payload(seed: usize) -> Vec<u8> {
    (0..LENGTH)
        .map(|at| (at * 31 + at / 977 + seed) as u8)
        .collect()
}

/// Fails instead of hanging.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .expect("it comes to an end")
}

/// Sends a payload and expects it back.
async fn expect_echo(stream: impl AsyncRead + AsyncWrite, seed: usize) {
    let (mut reader, mut writer) = split(stream);
    let sent = payload(seed);
    let writing = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let reading = async { reader.read_to_end(&mut back).await.unwrap() };
    tokio::join!(writing, reading);
    assert!(back == sent, "stream {seed} came back changed");
}

async fn echo(stream: impl AsyncRead + AsyncWrite) {
    let (mut reader, mut writer) = split(stream);
    tokio::io::copy(&mut reader, &mut writer).await.unwrap();
    writer.shutdown().await.unwrap();
}

async fn echo_all(session: Session) {
    let mut echoes = JoinSet::new();
    while let Some(stream) = session.accept().await {
        echoes.spawn(echo(stream));
    }
}

/// Two connected sessions of ours, the agent's side first.
fn pair(tasks: &mut JoinSet<()>, agent: Limits, server: Limits) -> (Session, Session) {
    let (near, far) = duplex(64 << 10);
    let (agent, agent_driver) = connect(near, Side::Client, agent);
    let (server, server_driver) = connect(far, Side::Server, server);
    tasks.spawn(async { drop(agent_driver.run().await) });
    tasks.spawn(async { drop(server_driver.run().await) });
    (agent, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_reach_a_published_agent_and_come_back_intact() {
    let (near, far) = duplex(64 << 10);
    let mut agent = SessionBuilder::new(far).client().start();
    let (session, driver) = connect(near, Side::Server, Limits::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(async { drop(driver.run().await) });
    tasks.spawn(async move {
        let mut echoes = JoinSet::new();
        while let Some(stream) = agent.accept().await {
            echoes.spawn(echo(stream));
        }
    });
    let mut talks = JoinSet::new();
    for seed in 0..STREAMS {
        let stream = session
            .open(Bytes::copy_from_slice(&payload(seed)[..100]))
            .unwrap();
        talks.spawn(async move {
            let (mut reader, mut writer) = split(stream);
            let sent = payload(seed);
            let writing = async {
                writer.write_all(&sent[100..]).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let mut back = Vec::new();
            let reading = async { reader.read_to_end(&mut back).await.unwrap() };
            tokio::join!(writing, reading);
            assert!(back == sent, "stream {seed} came back changed");
        });
    }
    soon(talks.join_all()).await;
    assert_eq!(session.stream_count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_a_published_agent_come_back_intact() {
    let (near, far) = duplex(64 << 10);
    let mut agent = SessionBuilder::new(far).client().start();
    let (session, driver) = connect(near, Side::Server, Limits::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(async { drop(driver.run().await) });
    tasks.spawn(echo_all(session.clone()));
    let mut talks = JoinSet::new();
    for seed in 0..STREAMS {
        talks.spawn(expect_echo(soon(agent.open()).await.unwrap(), seed));
    }
    soon(talks.join_all()).await;
    assert_eq!(session.open(Bytes::new()).map(drop), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_ends_of_ours_carry_streams_both_ways_at_once() {
    let mut tasks = JoinSet::new();
    let limits = Limits {
        window_bytes_max: 1 << 20,
        // Room for all of it: with less, two ends that echo to each other may both stop reading, until
        // the one stream is reset that was not read for longest.
        held_bytes_max: 2 * STREAMS * LENGTH,
        fin_before_rst: false,
        ..Limits::default()
    };
    let (agent, server) = pair(&mut tasks, limits, limits);
    tasks.spawn(echo_all(agent.clone()));
    tasks.spawn(echo_all(server.clone()));
    let mut talks = JoinSet::new();
    for seed in 0..STREAMS {
        for session in [&agent, &server] {
            talks.spawn(expect_echo(session.open(Bytes::new()).unwrap(), seed));
        }
    }
    soon(talks.join_all()).await;
    assert_eq!((agent.stream_count(), server.stream_count()), (0, 0));
}

#[tokio::test]
async fn whole_pieces_pass_from_stream_to_stream() {
    let mut tasks = JoinSet::new();
    let (agent, server) = pair(&mut tasks, Limits::default(), Limits::default());
    tasks.spawn(async move {
        let mut stream = agent.accept().await.unwrap();
        loop {
            let mut bytes = std::future::poll_fn(|cx| stream.poll_read_bytes(cx, usize::MAX))
                .await
                .unwrap();
            if bytes.is_empty() {
                break;
            }
            while !bytes.is_empty() {
                std::future::poll_fn(|cx| stream.poll_write_bytes(cx, &mut bytes))
                    .await
                    .unwrap();
            }
        }
        stream.shutdown().await.unwrap();
    });
    soon(expect_echo(server.open(Bytes::new()).unwrap(), 7)).await;
}

#[tokio::test]
async fn a_dropped_stream_is_broken_off_at_the_other_end() {
    let mut tasks = JoinSet::new();
    let limits = Limits {
        fin_before_rst: false,
        ..Limits::default()
    };
    let (agent, server) = pair(&mut tasks, limits, limits);
    let opened = server.open(Bytes::from_static(b"half a story")).unwrap();
    let mut stream: Stream = soon(agent.accept()).await.unwrap();
    let mut first = [0; 12];
    soon(stream.read_exact(&mut first)).await.unwrap();
    drop(opened);
    let error = soon(stream.read(&mut first)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let error = stream.write(b"x").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn what_was_written_leaves_although_the_stream_is_dropped() {
    let mut tasks = JoinSet::new();
    let (agent, server) = pair(&mut tasks, Limits::default(), Limits::default());
    let mut call = agent.open(Bytes::from_static(b"question")).unwrap();
    call.shutdown().await.unwrap();
    let mut answering = soon(server.accept()).await.unwrap();
    let mut question = Vec::new();
    soon(answering.read_to_end(&mut question)).await.unwrap();
    answering.write_all(b"answer").await.unwrap();
    answering.shutdown().await.unwrap();
    drop(answering);
    let mut answer = Vec::new();
    soon(call.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(
        (&question[..], &answer[..]),
        (&b"question"[..], &b"answer"[..])
    );
}

#[tokio::test]
async fn the_end_of_a_connection_reaches_everybody() {
    let mut tasks = JoinSet::new();
    let (agent, server) = pair(&mut tasks, Limits::default(), Limits::default());
    let mut opened = server.open(Bytes::from_static(b"x")).unwrap();
    let mut accepted = soon(agent.accept()).await.unwrap();
    server.close(ErrorCode::ENHANCE_YOUR_CALM, "enough");
    assert_eq!(
        soon(agent.ended()).await,
        Ending::GoneAway {
            code: ErrorCode::ENHANCE_YOUR_CALM,
            text: "enough".into()
        }
    );
    assert_eq!(
        soon(server.ended()).await,
        Ending::Closed(ErrorCode::ENHANCE_YOUR_CALM)
    );
    let mut byte = [0; 1];
    assert!(soon(opened.read(&mut byte)).await.is_err());
    soon(accepted.read_exact(&mut byte)).await.unwrap();
    assert!(soon(accepted.read(&mut byte)).await.is_err());
    assert!(soon(agent.accept()).await.is_none());
    assert_eq!(server.open(Bytes::new()).unwrap_err(), OpenRefused::Ended);
    soon(tasks.join_all()).await;
}

#[tokio::test]
async fn a_driver_that_is_dropped_leaves_nobody_waiting() {
    let (near, _far) = duplex(1000);
    let (session, driver) = connect(near, Side::Server, Limits::default());
    let mut stream = session.open(Bytes::from_static(b"x")).unwrap();
    let mut byte = [0; 1];
    let waiting = async {
        let read = stream.read(&mut byte).await;
        (read.is_err(), session.accept().await.is_none())
    };
    let ending = async {
        tokio::task::yield_now().await;
        drop(driver);
    };
    let (waited, ()) = soon(async { tokio::join!(waiting, ending) }).await;
    assert_eq!(waited, (true, true));
}

#[tokio::test]
async fn a_peer_that_takes_nothing_is_given_up() {
    let (near, _far) = duplex(1000);
    let (session, driver) = connect(near, Side::Server, Limits::default());
    let mut stream = session.open(Bytes::from_static(b"x")).unwrap();
    stream.write_all(&[7; 50_000]).await.unwrap();
    let ending = soon(driver.with_stall(Duration::from_millis(50)).run()).await;
    assert_eq!(ending, Ending::Lost);
    assert!(stream.write(b"more").await.is_err());
}

#[tokio::test]
async fn a_reader_that_stalls_loses_its_stream_and_stops_no_other() {
    let mut tasks = JoinSet::new();
    let limits = Limits {
        held_bytes_max: 100_000,
        unread_after: Duration::from_millis(50),
        ..Limits::default()
    };
    let (agent, server) = pair(&mut tasks, Limits::default(), limits);
    // This one is never read.
    let mut unread = server.open(Bytes::from_static(b"x")).unwrap();
    let mut sender = soon(agent.accept()).await.unwrap();
    tasks.spawn(async move {
        // Fails when the stream is reset, which the test awaits below.
        drop(sender.write_all(&[1; 200_000]).await);
        std::future::pending::<()>().await;
    });
    tasks.spawn(echo_all(agent.clone()));
    let cut = async {
        while server.cut_streams() == 0 {
            expect_echo(server.open(Bytes::new()).unwrap(), 3).await;
        }
    };
    soon(cut).await;
    let error = soon(unread.read(&mut [0; 1])).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn those_who_wait_for_a_stream_have_their_turn_one_after_the_other() {
    let mut tasks = JoinSet::new();
    let limits = Limits {
        streams_max: 4,
        ..Limits::for_ours()
    };
    let (agent, server) = pair(&mut tasks, Limits::for_ours(), limits);
    tasks.spawn(async move {
        let mut echoes = JoinSet::new();
        while let Some(stream) = agent.accept().await {
            // Some are broken off.
            echoes.spawn(async {
                let (mut reader, mut writer) = split(stream);
                drop(tokio::io::copy(&mut reader, &mut writer).await);
                drop(writer.shutdown().await);
            });
        }
    });
    let (turns, mut taken) = tokio::sync::mpsc::channel(200);
    let mut clients = JoinSet::new();
    for nth in 0..200 {
        let (server, turns) = (server.clone(), turns.clone());
        clients.spawn(async move {
            let mut stream = loop {
                match server.open_behind(Source::default(), Bytes::new()) {
                    Ok(stream) => break stream,
                    Err(OpenRefused::Full) => {}
                    Err(other) => panic!("{other}"),
                }
                let mut turn = server.queue();
                (&mut turn).await;
                if let Ok(stream) = server.open(Bytes::new()) {
                    break stream;
                }
            };
            turns.send(nth).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            stream.read_exact(&mut [0; 5]).await.unwrap();
            // As a request that was answered leaves it.
            match nth % 3 {
                0 => stream.end_in_order(),
                1 => drop(stream.set_idle()),
                _ => {}
            }
        });
        // They come one after the other.
        tokio::task::yield_now().await;
    }
    drop(turns);
    let all = async {
        while let Some(served) = clients.join_next().await {
            served.unwrap();
        }
    };
    soon(all).await;
    let mut order = Vec::new();
    while let Some(nth) = taken.recv().await {
        order.push(nth);
    }
    assert_eq!(order.len(), 200);
    let late = order.iter().enumerate();
    let late = late.filter(|(at, nth)| at.abs_diff(**nth) > 8).count();
    assert_eq!(late, 0, "{order:?}");
}

#[tokio::test]
async fn who_waits_for_a_stream_hears_that_the_connection_ended() {
    let mut tasks = JoinSet::new();
    let limits = Limits {
        streams_max: 1,
        ..Limits::default()
    };
    let (_agent, server) = pair(&mut tasks, Limits::default(), limits);
    let _only = server.open(Bytes::new()).unwrap();
    let waiting = server.queue();
    server.hang_up();
    soon(waiting).await;
    assert_eq!(server.open(Bytes::new()).unwrap_err(), OpenRefused::Ended);
}

#[tokio::test]
async fn a_stranger_that_opens_much_ends_nothing_but_its_own_streams() {
    let mut tasks = JoinSet::new();
    let (agent, server) = pair(&mut tasks, Limits::default(), Limits::unauthenticated());
    let mut calls: Vec<Stream> = (0..5)
        .map(|_| agent.open(Bytes::from_static(b"call")).unwrap())
        .collect();
    let mut byte = [0; 1];
    let refused = soon(calls[4].read(&mut byte)).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionReset);
    // It has authenticated.
    server.set_limits(Limits::default());
    tasks.spawn(echo_all(server.clone()));
    soon(expect_echo(agent.open(Bytes::new()).unwrap(), 1)).await;
    calls[0].shutdown().await.unwrap();
    let mut back = String::new();
    soon(calls[0].read_to_string(&mut back)).await.unwrap();
    assert_eq!(back, "call");
}

/// A peer of which a frame can be read at any time.
struct Flood {
    /// Frames that come first.
    first: Vec<Vec<u8>>,
    frame: Vec<u8>,
    frames: Arc<AtomicUsize>,
}

/// A DATA frame; `opens` its stream.
fn data(stream: u8, opens: bool, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u8;
    let head = [0, 0, length, 0x10 | u8::from(opens) << 1, 0, 0, 0, stream];
    [&head, payload].concat()
}

impl AsyncRead for Flood {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.frames.fetch_add(1, Ordering::Relaxed);
        let first = self.first.pop();
        buf.put_slice(first.as_ref().unwrap_or(&self.frame));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flood {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_peer_whose_bytes_are_much_work_does_not_keep_the_thread() {
    let streams = || [3, 5, 7].map(|stream| data(stream, true, b"")).to_vec();
    for (first, frame) in [
        // Frames that mean nothing, and frames that are each answered, with and without streams for which the driver waits.
        (vec![], data(9, false, b"")),
        (vec![], data(9, false, b"x")),
        (streams(), data(9, false, b"")),
        (streams(), data(9, false, b"x")),
    ] {
        let frames = Arc::new(AtomicUsize::new(0));
        let flood = Flood {
            first,
            frame,
            frames: Arc::clone(&frames),
        };
        let (_session, driver) = connect(flood, Side::Server, Limits::for_ours());
        let mut tasks = JoinSet::new();
        tasks.spawn(driver.run());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap());
        let (far, near) = tokio::join!(far, listener.accept());
        let (mut far, mut near) = (far.unwrap(), near.unwrap().0);
        for _ in 0..20 {
            let before = frames.load(Ordering::Relaxed);
            far.write_u8(0).await.unwrap();
            // With more room than bytes, so that each read waits for the socket.
            assert_eq!(near.read(&mut [0; 8]).await.unwrap(), 1);
            // A millisecond is far less, also where tests are optimised.
            let meanwhile = frames.load(Ordering::Relaxed) - before;
            assert!(meanwhile < 100_000, "{meanwhile}");
        }
        // It goes on.
        let before = frames.load(Ordering::Relaxed);
        let goes_on = async {
            while frames.load(Ordering::Relaxed) < before + 1_000 {
                tokio::task::yield_now().await;
            }
        };
        soon(goes_on).await;
    }
}
