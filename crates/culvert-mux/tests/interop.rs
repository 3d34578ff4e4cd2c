//! Tests against the multiplexer of the published agents, over an in-memory pipe.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use culvert_mux::{Connection, ErrorCode, Limits, Outbox, Read, Side, StreamId};
use muxado::{Accept, OpenClose, SessionBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(60);

/// Moves bytes between a connection and its socket in both directions, and calls `user` after each step. An agent
/// stops reading while it cannot write, so reading must not depend on writing.
async fn drive(
    socket: DuplexStream,
    mut here: Connection,
    mut user: impl FnMut(&mut Connection) -> bool,
) -> Connection {
    let (mut reader, mut writer) = tokio::io::split(socket);
    let (mut out, mut input) = (Outbox::default(), BytesMut::new());
    loop {
        let done = user(&mut here);
        here.check();
        while here.next_event().is_some() {}
        here.transmit(&mut out, 64 << 10, Instant::now());
        if done && !out.has_remaining() {
            return here;
        }
        input.reserve(16 << 10);
        tokio::select! {
            written = writer.write_buf(&mut out), if out.has_remaining() => {
                written.unwrap();
            }
            read = reader.read_buf(&mut input) => {
                assert!(read.unwrap() > 0, "the agent dropped the connection");
                here.receive(&mut input, Instant::now());
            }
        }
    }
}

fn payload(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 31 + at / 977 + seed) as u8)
        .collect()
}

/// Echoes the data of each stream.
#[derive(Default)]
struct Echo {
    waiting: BTreeMap<StreamId, Bytes>,
    ended: usize,
}

impl Echo {
    fn act(&mut self, here: &mut Connection) {
        let now = Instant::now();
        while let Some(id) = here.accept() {
            self.waiting.insert(id, Bytes::new());
        }
        let mut over = Vec::new();
        for (id, waiting) in &mut self.waiting {
            loop {
                here.write(*id, waiting).unwrap();
                if !waiting.is_empty() {
                    break;
                }
                match here.read(*id, usize::MAX, now).unwrap() {
                    Read::Data(bytes) => *waiting = bytes,
                    Read::Wait => break,
                    Read::End => {
                        here.finish(*id).unwrap();
                        here.release(*id, now);
                        over.push(*id);
                        break;
                    }
                }
            }
        }
        self.ended += over.len();
        self.waiting.retain(|id, _| !over.contains(id));
    }
}

#[tokio::test]
async fn an_agents_streams_reach_a_server_of_ours_and_come_back_intact() {
    const STREAMS: usize = 40;
    let (theirs, ours) = duplex(64 << 10);
    let mut agent = SessionBuilder::new(theirs).client().start();
    let mut tasks = JoinSet::new();
    let agent = async move {
        for seed in 0..STREAMS {
            let stream = agent.open().await.unwrap();
            tasks.spawn(async move {
                let sent = payload(seed, 400_000 + seed * 1000);
                let (mut reader, mut writer) = tokio::io::split(stream);
                let writing = async {
                    writer.write_all(&sent).await.unwrap();
                    writer.shutdown().await.unwrap();
                };
                let mut back = Vec::new();
                let reading = async {
                    reader.read_to_end(&mut back).await.unwrap();
                };
                tokio::join!(writing, reading);
                assert!(back == sent, "stream {seed} came back changed");
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        agent
    };
    let mut echo = Echo::default();
    let driving = drive(
        ours,
        Connection::new(Side::Server, Limits::default()),
        |here| {
            echo.act(here);
            assert!(here.held_bytes() <= 8 << 20);
            echo.ended == STREAMS
        },
    );
    let both = async { tokio::join!(driving, agent) };
    let (here, _agent) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    assert_eq!(here.ending(), None);
    assert_eq!(here.stream_count(), 0);
}

#[tokio::test]
async fn streams_that_we_open_reach_an_agent_and_come_back_intact() {
    const STREAMS: usize = 40;
    const LENGTH: usize = 600_000;
    let (theirs, ours) = duplex(64 << 10);
    let mut agent = SessionBuilder::new(theirs).client().start();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut echoes = JoinSet::new();
        while let Some(stream) = agent.accept().await {
            echoes.spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(stream);
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
            });
        }
    });

    struct Talk {
        left: Bytes,
        back: Vec<u8>,
        finished: bool,
    }
    let mut talks: BTreeMap<StreamId, (usize, Talk)> = BTreeMap::new();
    let mut opened = 0;
    let driving = drive(
        ours,
        Connection::new(Side::Server, Limits::default()),
        |here| {
            let now = Instant::now();
            while opened < STREAMS {
                let mut left = Bytes::from(payload(opened, LENGTH));
                let first = left.split_to(100);
                let id = here.open(first, now).unwrap();
                let talk = Talk {
                    left,
                    back: Vec::new(),
                    finished: false,
                };
                talks.insert(id, (opened, talk));
                opened += 1;
            }
            talks.retain(|id, (seed, talk)| {
                if !talk.finished {
                    here.write(*id, &mut talk.left).unwrap();
                    if talk.left.is_empty() {
                        here.finish(*id).unwrap();
                        talk.finished = true;
                    }
                }
                loop {
                    match here.read(*id, 9999, now).unwrap() {
                        Read::Data(bytes) => talk.back.extend_from_slice(&bytes),
                        Read::Wait => return true,
                        Read::End => break,
                    }
                }
                assert!(
                    talk.back == payload(*seed, LENGTH),
                    "{id:?} came back changed"
                );
                here.release(*id, now);
                false
            });
            talks.is_empty()
        },
    );
    let here = tokio::time::timeout(PATIENCE, driving).await.unwrap();
    assert_eq!(here.ending(), None);
    assert_eq!(here.stream_count(), 0);
}

#[tokio::test]
async fn an_agents_reader_wakes_when_we_break_a_stream_off() {
    let (theirs, ours) = duplex(64 << 10);
    let mut agent = SessionBuilder::new(theirs).client().start();
    let (woken, mut is_woken) = tokio::sync::oneshot::channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut stream = agent.accept().await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        woken.send(bytes).unwrap();
        // Keeps the session open, so that only the frames can wake the reader.
        std::future::pending::<()>().await;
    });
    let mut stream = None;
    let mut here = Connection::new(Side::Server, Limits::default());
    let opened = here.open(Bytes::from_static(b"head"), Instant::now());
    let driving = drive(ours, here, |here| {
        let now = Instant::now();
        match stream {
            None => stream = Some(opened.unwrap()),
            // Credit for the first bytes: the agent has read them.
            Some(id) => here.reset(id, ErrorCode::STREAM_CANCELLED, now),
        }
        is_woken.try_recv().is_ok_and(|bytes| bytes == b"head")
            || here.stream_count() == 0
            || matches!(
                here.read(opened.unwrap(), 1, now),
                Err(culvert_mux::Broken::Here(_))
            )
    });
    let mut here = tokio::time::timeout(PATIENCE, driving).await.unwrap();
    here.release(opened.unwrap(), Instant::now());
    let bytes = tokio::time::timeout(PATIENCE, is_woken).await.unwrap();
    assert_eq!(bytes.unwrap(), b"head");
}

#[tokio::test]
async fn the_frames_of_an_agent_are_the_ones_we_would_send() {
    let (theirs, mut ours) = duplex(64 << 10);
    let mut agent = SessionBuilder::new(theirs).client().start();
    let mut stream = agent.open().await.unwrap();
    stream.write_all(&[0xFF; 4]).await.unwrap();
    let mut second = agent.open().await.unwrap();
    second.write_all(&[0; 4]).await.unwrap();
    second.write_all(b"{}").await.unwrap();
    second.shutdown().await.unwrap();

    let now = Instant::now();
    let mut here = Connection::new(Side::Client, Limits::default());
    let heartbeat = here.open(Bytes::from_static(&[0xFF; 4]), now).unwrap();
    let call = here.open(Bytes::from_static(&[0; 4]), now).unwrap();
    let mut out = Outbox::default();
    here.transmit(&mut out, usize::MAX, now);
    here.write_copy(call, b"{}").unwrap();
    here.transmit(&mut out, usize::MAX, now);
    here.finish(call).unwrap();
    here.transmit(&mut out, usize::MAX, now);
    assert_ne!(heartbeat, call);
    let expected = out.copy_to_bytes(out.remaining());

    let mut sent = vec![0; expected.len()];
    tokio::time::timeout(PATIENCE, ours.read_exact(&mut sent))
        .await
        .unwrap()
        .unwrap();
    // Frames of different streams may be sent in either order.
    let by_stream = |bytes: &[u8], stream: u8| -> Vec<u8> {
        let (mut rest, mut frames) = (bytes, Vec::new());
        while let [_, _, length, ..] = rest {
            let (frame, after) = rest.split_at(8 + usize::from(*length));
            if frame[7] == stream {
                frames.extend_from_slice(frame);
            }
            rest = after;
        }
        frames
    };
    for stream in [3, 5] {
        assert_eq!(by_stream(&sent, stream), by_stream(&expected, stream));
    }
}
