//! What happens to one stream of an HTTP/2 connection while others go on, and to all of them when their
//! connection ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tokio_rustls::client::TlsStream;

use super::floods::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame,
    request, section, stream,
};
use super::harness::*;
use super::streams::rig;
use crate::{Limits, Settings};

pub(super) type Raw = Client<TlsStream<TcpStream>>;

/// A connection whose frames are made by hand, with a first window for streams.
pub(super) async fn raw(rig: &Rig, root: &CertificateDer<'static>, window: u32) -> Raw {
    let address = rig.edge.https_addr().unwrap();
    let mut client = Client::new(tls(address, root, "app.example", "h2").await.unwrap());
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let first = [&[0, 4][..], &window.to_be_bytes()].concat();
    client.send(frame(SETTINGS, 0, 0, &first)).await;
    client
}

/// The next frame of messages or of an end: type, flags, stream, payload.
async fn next(client: &mut Raw) -> (u8, u8, u32, Vec<u8>) {
    loop {
        let head = soon("a frame", client.take(9)).await.expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = client.take(usize::try_from(length).unwrap()).await.unwrap();
        if [DATA, HEADERS, RST_STREAM, GOAWAY].contains(&head[3]) {
            return (head[3], head[4], code(&head[5..]), payload);
        }
    }
}

fn code(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

#[tokio::test]
async fn a_stalled_stream_is_reset_and_its_connection_continues() {
    const STALL: Duration = Duration::from_millis(300);
    let mut tasks = tokio::task::JoinSet::new();
    let origin = origin(&mut tasks, |mut client| async move {
        while client.request().await.is_some() {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";
            client
                .send([head.as_bytes(), &[b'x'; 100_000]].concat())
                .await;
        }
    })
    .await;
    let settings = Settings {
        limits: Limits {
            write_stall: STALL,
            ..settings().limits
        },
        ..settings()
    };
    let (rig, root) = rig(&format!("http://{origin}"), "", settings).await;
    let mut client = raw(&rig, &root, 10).await;
    // The window of the connection is wide; that of the first stream is never widened.
    client
        .send(frame(WINDOW_UPDATE, 0, 0, &[0, 0x7F, 0, 0]))
        .await;
    client.send(request(0, END_STREAM)).await;
    let mut held = 0;
    loop {
        let (kind, _, of, payload) = next(&mut client).await;
        assert_ne!(kind, GOAWAY, "the connection goes on");
        assert_eq!(of, stream(0));
        match kind {
            DATA => held += payload.len(),
            RST_STREAM => {
                assert_eq!(code(&payload), 8, "CANCEL");
                break;
            }
            _ => {}
        }
    }
    assert_eq!(held, 10);
    // Another stream is served, to its end.
    client.send(request(1, END_STREAM)).await;
    client
        .send(frame(WINDOW_UPDATE, 0, stream(1), &[0, 0x7F, 0, 0]))
        .await;
    let mut taken = 0;
    loop {
        let (kind, flags, of, payload) = next(&mut client).await;
        assert_eq!(of, stream(1));
        if kind == DATA {
            taken += payload.len();
            if flags & END_STREAM != 0 {
                break;
            }
        }
    }
    assert_eq!(taken, 100_000);
    assert_eq!(rig.edge.meters().accepted.get(), 1);
}

#[tokio::test]
async fn the_end_of_stream_and_trailers_need_no_window() {
    let (go, gate) = mpsc::channel::<()>(1);
    let gate = Arc::new(Mutex::new(gate));
    let mut tasks = tokio::task::JoinSet::new();
    let origin = origin(&mut tasks, move |mut client| {
        let gate = Arc::clone(&gate);
        async move {
            while let Some((head, _)) = client.request().await {
                client
                    .send(
                        "HTTP/1.1 200 OK\r\ntrailer: x\r\ntransfer-encoding: chunked\r\n\r\n\
                         5\r\nhello\r\n",
                    )
                    .await;
                // The end comes when the window is empty.
                gate.lock().await.recv().await;
                let trailers = if head.contains("te: trailers") {
                    "x: y\r\n"
                } else {
                    ""
                };
                client.send(format!("0\r\n{trailers}\r\n")).await;
            }
        }
    })
    .await;
    let (rig, root) = rig(&format!("http://{origin}"), "", settings()).await;
    for has_trailers in [false, true] {
        let mut client = raw(&rig, &root, 5).await;
        let mut block = section();
        if has_trailers {
            block.extend_from_slice(b"\x00\x02te\x08trailers");
        }
        client
            .send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block))
            .await;
        let (kind, ..) = next(&mut client).await;
        assert_eq!(kind, HEADERS);
        let (kind, flags, _, payload) = next(&mut client).await;
        assert_eq!((kind, flags & END_STREAM), (DATA, 0));
        assert_eq!(payload, b"hello");
        go.send(()).await.unwrap();
        let (kind, flags, _, payload) = next(&mut client).await;
        assert_eq!(kind, if has_trailers { HEADERS } else { DATA });
        assert_eq!(flags & END_STREAM, END_STREAM);
        assert_eq!(payload.is_empty(), !has_trailers);
    }
}

#[tokio::test]
async fn streams_of_a_broken_connection_end_with_its_error() {
    let mut tasks = tokio::task::JoinSet::new();
    let origin = origin(&mut tasks, |mut client| async move {
        client.rest().await;
    })
    .await;
    let (rig, root) = rig(&format!("http://{origin}"), "", settings()).await;
    let mut client = raw(&rig, &root, 5).await;
    client.send(request(0, END_STREAM)).await;
    client.send(request(1, 0)).await;
    soon("requests", async {
        while rig.edge.meters().requests.get() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Data of no stream.
    client.send(frame(DATA, 0, 0, b"x")).await;
    let (kind, _, _, payload) = next(&mut client).await;
    assert_eq!(kind, GOAWAY);
    assert_eq!((code(&payload), code(&payload[4..])), (stream(1), 1));
    let mut reset = Vec::new();
    for _ in 0..2 {
        let (kind, _, of, payload) = next(&mut client).await;
        assert_eq!(kind, RST_STREAM);
        assert_eq!(code(&payload), 1, "PROTOCOL_ERROR");
        reset.push(of);
    }
    reset.sort_unstable();
    assert_eq!(reset, [stream(0), stream(1)]);
    assert!(!client.more().await);
}

/// An HTTP/2 upstream with large responses.
async fn large(tasks: &mut tokio::task::JoinSet<()>) -> std::net::SocketAddr {
    origin(tasks, |client| async move {
        let service = hyper::service::service_fn(|_| async {
            let body = Full::new(Bytes::from_static(&[b'x'; 200_000]));
            Ok::<_, std::convert::Infallible>(Response::new(body))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        drop(
            server
                .serve_connection(TokioIo::new(client.stream), service)
                .await,
        );
    })
    .await
}

#[tokio::test]
async fn stalled_clients_of_an_http2_upstream_delay_no_other() {
    let mut tasks = tokio::task::JoinSet::new();
    let origin = large(&mut tasks).await;
    let (rig, root) = rig(&format!("http://{origin}"), "http2", settings()).await;
    // Each stream takes nothing of its answer, and the upstream's connection is one.
    let mut paused = raw(&rig, &root, 0).await;
    for nth in 0..60 {
        paused.send(request(nth, END_STREAM)).await;
    }
    for _ in 0..60 {
        assert_eq!(next(&mut paused).await.0, HEADERS);
    }
    let mut client = raw(&rig, &root, 1 << 20).await;
    client
        .send(frame(WINDOW_UPDATE, 0, 0, &[0, 0x7F, 0, 0]))
        .await;
    let mut taken = 0;
    for nth in 0..10 {
        client.send(request(nth, END_STREAM)).await;
        loop {
            let (kind, flags, _, payload) = next(&mut client).await;
            if kind == DATA {
                taken += payload.len();
                if flags & END_STREAM != 0 {
                    break;
                }
            }
        }
    }
    assert_eq!(taken, 10 * 200_000);
}

/// Frames of data with their flags, and the bytes that are forwarded.
type Case = (&'static [(&'static str, u8)], &'static [u8]);

/// A request whose body is longer or shorter than its `content-length` is reset, and the upstream gets no byte that this
/// field does not cover.
#[tokio::test]
async fn no_body_exceeds_its_content_length() {
    let (send, mut upstreams) = mpsc::channel(1);
    let mut tasks = tokio::task::JoinSet::new();
    let origin = origin(&mut tasks, move |client| {
        let send = send.clone();
        async move { send.send(client).await.unwrap() }
    })
    .await;
    let (rig, root) = rig(&format!("http://{origin}"), "", settings()).await;
    let mut client = raw(&rig, &root, 65_535).await;
    let cases: [Case; 5] = [
        (&[("hello", 0), ("x", 0)], b"hello"),
        (&[("hello", 0), ("x", END_STREAM)], b"hello"),
        (&[("hellox", 0)], b""),
        (&[("hell", END_STREAM)], b""),
        (&[("hell", 0), ("", END_STREAM)], b"hell"),
    ];
    for (turn, (frames, forwarded)) in (0..).zip(cases) {
        // `POST`, and `content-length: 5`.
        let mut block = section();
        block[0] = 0x83;
        block.extend_from_slice(&[0x0F, 0x0D, 1, b'5']);
        client
            .send(frame(HEADERS, END_HEADERS, stream(turn), &block))
            .await;
        let mut upstream = soon("a connection", upstreams.recv()).await.unwrap();
        upstream.head().await.unwrap();
        for (position, (data, flags)) in frames.iter().enumerate() {
            client
                .send(frame(DATA, *flags, stream(turn), data.as_bytes()))
                .await;
            if position == 0 && !forwarded.is_empty() {
                assert_eq!(upstream.take(forwarded.len()).await.unwrap(), forwarded);
            }
        }
        let (kind, _, of, payload) = next(&mut client).await;
        assert_eq!((kind, of, code(&payload)), (RST_STREAM, stream(turn), 1));
        assert_eq!(upstream.rest().await, b"", "{turn}");
    }
}

/// Heads count against the allowance of their connection while further ones are read: a client cannot make the edge hold
/// many times as much with one write.
#[tokio::test]
async fn requests_begin_before_many_further_heads_are_read() {
    let mut tasks = tokio::task::JoinSet::new();
    let origin = hello(&mut tasks).await;
    let (rig, root) = rig(&format!("http://{origin}"), "", settings()).await;
    let mut client = raw(&rig, &root, 65_535).await;
    let mut frames = Vec::new();
    for turn in 0..8 {
        let mut block = section();
        for _ in 0..3 {
            // A literal that is not kept, of 4,000 bytes.
            block.extend_from_slice(&[0x00, 1, b'x', 0x7F, 0xA1, 0x1E]);
            block.extend_from_slice(&[b'y'; 4_000]);
        }
        let head = END_STREAM | END_HEADERS;
        frames.extend(frame(HEADERS, head, stream(turn), &block));
    }
    // The connection ends with the last frame, whether the requests before have begun or not.
    frames.extend(frame(DATA, 0, 0, b""));
    client.send(frames).await;
    while client.more().await {}
    assert!(rig.edge.meters().requests.get() >= 5);
}
