//! HTTP/2 clients that ask for nothing and cost much: each is cut within a thousand frames, with the
//! reason counted, while another client is served.

use std::time::Duration;

use culvert_policy::Scheme;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::harness::*;
use super::secure::{ask2, http2};
use crate::{Limits, Meters, Settings, Snapshot};

/// Frames within which every flood must end.
const FRAMES_MAX: usize = 1_000;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A field section: `GET https://app.example/`, as indexes and one literal that is not kept.
pub(super) fn section() -> Vec<u8> {
    let mut block = vec![0x82, 0x87, 0x84, 0x01, 11];
    block.extend_from_slice(b"app.example");
    block
}

/// The same of `GET http://app.example/`.
pub(super) fn clear_section() -> Vec<u8> {
    let mut block = section();
    block[1] = 0x86;
    block
}

/// A request on the `turn`th stream of the client.
pub(super) fn request(turn: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream(turn), &section())
}

pub(super) fn stream(turn: u32) -> u32 {
    turn * 2 + 1
}

/// One attack: its name, what must count it, what goes before, and its `turn`th step.
struct Attack {
    name: &'static str,
    counts: fn(&Meters) -> u64,
    before: Vec<u8>,
    step: Box<dyn Fn(u32) -> Vec<Vec<u8>>>,
}

fn attack(
    name: &'static str,
    counts: fn(&Meters) -> u64,
    before: Vec<u8>,
    step: impl Fn(u32) -> Vec<Vec<u8>> + 'static,
) -> Attack {
    Attack {
        name,
        counts,
        before,
        step: Box::new(step),
    }
}

fn attacks() -> Vec<Attack> {
    let resets: fn(&Meters) -> u64 = |meters| meters.floods_resets.get();
    let idle: fn(&Meters) -> u64 = |meters| meters.floods_idle_frames.get();
    let pieces: fn(&Meters) -> u64 =
        |meters| meters.floods_continuations.get() + meters.http2_errors.get();
    let either: fn(&Meters) -> u64 = |meters| {
        meters.floods_resets.get() + meters.floods_idle_frames.get() + meters.http2_errors.get()
    };
    let cancel = 8u32.to_be_bytes();
    // 60 references to an entry of 4,000 bytes: small on the wire, four times too large decoded.
    let bomb = |first: bool| {
        let mut block = section();
        if first {
            block.extend_from_slice(&[0x40, 1, b'x', 0x7F, 0xA1, 0x1E]);
            block.extend_from_slice(&[b'y'; 4_000]);
        }
        block.extend_from_slice(&[0xBE; 60]);
        block
    };
    vec![
        attack("rapid reset", resets, vec![], move |turn| {
            vec![
                request(turn, END_STREAM),
                frame(RST_STREAM, 0, stream(turn), &cancel),
            ]
        }),
        attack(
            "continuation",
            pieces,
            frame(HEADERS, 0, 1, &section()),
            |_| {
                // A literal field that is not kept, over and over.
                vec![frame(CONTINUATION, 0, 1, &[0, 1, b'a', 1, b'b'])]
            },
        ),
        attack(
            "empty continuation",
            pieces,
            frame(HEADERS, 0, 1, &section()),
            |_| vec![frame(CONTINUATION, 0, 1, &[])],
        ),
        attack("ping", idle, vec![], |_| vec![frame(PING, 0, 0, &[0; 8])]),
        attack("settings", idle, vec![], |_| {
            vec![frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xFF, 0xFF])]
        }),
        attack("settings that are not due", either, vec![], |_| {
            vec![frame(SETTINGS, ACK, 0, &[])]
        }),
        attack("empty data", either, request(0, 0), |_| {
            vec![frame(DATA, 0, 1, &[])]
        }),
        attack("padding for data", either, request(0, 0), |_| {
            vec![frame(DATA, PADDED, 1, &[3, 0, 0, 0])]
        }),
        attack("windows that grow for nothing", idle, vec![], |_| {
            vec![frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])]
        }),
        attack(
            "windows of one byte",
            idle,
            // No window, so that each byte of an answer waits for its own.
            [
                frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]),
                request(0, END_STREAM),
            ]
            .concat(),
            |_| vec![frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])],
        ),
        attack("priority", idle, vec![], |turn| {
            vec![frame(PRIORITY, 0, stream(turn), &[0, 0, 0, 0, 16])]
        }),
        attack("unknown frames", idle, vec![], |_| {
            vec![frame(0xB0, 0, 0, &[1, 2, 3])]
        }),
        attack(
            "headers of a stream that its client reset",
            pieces,
            [request(0, 0), frame(RST_STREAM, 0, 1, &cancel)].concat(),
            |_| vec![frame(HEADERS, END_STREAM | END_HEADERS, 1, &section())],
        ),
        attack("headers without end", resets, vec![], |turn| {
            vec![request(turn, 0)]
        }),
        attack("made you reset by a window", resets, vec![], |turn| {
            vec![
                request(turn, 0),
                frame(WINDOW_UPDATE, 0, stream(turn), &[0x7F, 0xFF, 0xFF, 0xFF]),
            ]
        }),
        attack(
            "made you reset by an empty window update",
            either,
            vec![],
            |turn| {
                vec![
                    request(turn, 0),
                    frame(WINDOW_UPDATE, 0, stream(turn), &[0, 0, 0, 0]),
                ]
            },
        ),
        attack("header bomb", either, vec![], move |turn| {
            vec![frame(
                HEADERS,
                END_STREAM | END_HEADERS,
                stream(turn),
                &bomb(turn == 0),
            )]
        }),
    ]
}

/// Reads to the end of a connection. Returns the error code of the last GOAWAY.
pub(super) async fn last_words<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> Option<u32> {
    let mut client = Client::new(stream);
    let mut code = None;
    loop {
        let Some(head) = client.take(9).await else {
            return code;
        };
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = client.take(usize::try_from(length).unwrap()).await;
        if let Some(payload) = payload.filter(|_| head[3] == GOAWAY) {
            code = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
    }
}

/// The bytes of an attack, and how many frames they are.
fn bytes_of(attack: &Attack) -> (Vec<u8>, usize) {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(&attack.before);
    let mut frames = 3;
    for turn in 0.. {
        let step = (attack.step)(turn);
        frames += step.len();
        if frames > FRAMES_MAX {
            break;
        }
        bytes.extend(step.into_iter().flatten());
    }
    (bytes, frames)
}

/// Nothing but a verdict ends the connections of these tests.
fn patient() -> Settings {
    Settings {
        limits: Limits {
            http2_idle: Duration::from_secs(600),
            body_stall: Duration::from_secs(600),
            write_stall: Duration::from_secs(600),
            ..Limits::default()
        },
        ..settings()
    }
}

/// Clients with prior knowledge have the same allowance.
#[tokio::test]
async fn floods_in_the_clear_end_within_a_thousand_frames() {
    let mut rig = Rig::with(patient()).await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while client.request().await.is_some() {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n";
            client
                .send([head.as_bytes(), &[b'x'; 4_000]].concat())
                .await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for attack in attacks() {
        let (mut bytes, _) = bytes_of(&attack);
        let (over_tls, clear) = (section(), clear_section());
        while let Some(at) = find(&bytes, &over_tls) {
            bytes[at..at + clear.len()].copy_from_slice(&clear);
        }
        let before = (attack.counts)(rig.edge.meters());
        let client = rig.connect().await;
        let (read, mut write) = tokio::io::split(client.stream);
        let (code, ()) = tokio::join!(
            last_words(tokio::io::join(read, tokio::io::sink())),
            async {
                // The edge may close before all of it is written.
                drop(write.write_all(&bytes).await);
            },
        );
        assert!(code.is_some_and(|code| code != 0), "{}", attack.name);
        let after = (attack.counts)(rig.edge.meters());
        assert_eq!(after, before + 1, "{}", attack.name);
    }
    assert_eq!(rig.edge.meters().panics.get(), 0);
}

#[tokio::test]
async fn floods_end_within_a_thousand_frames_while_others_are_served() {
    let mut rig = Rig::with(patient()).await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while client.request().await.is_some() {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n";
            client
                .send([head.as_bytes(), &[b'x'; 4_000]].concat())
                .await;
        }
    })
    .await;
    let (names, key, root) = certificate(&["app.example"]);
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Https,
            "app.example",
            443,
            &format!("http://{origin}"),
            "",
        ))
        .certificate(names, key)
        .build();
    rig.edge.publish(snapshot).await;
    let mut good = http2(&mut rig, &root, "app.example").await;
    let address = rig.edge.https_addr().unwrap();

    let attacks: Vec<Attack> = attacks().into_iter().chain(cells()).collect();
    for attack in &attacks {
        let (bytes, _) = bytes_of(attack);
        let before = (attack.counts)(rig.edge.meters());
        let stream = tls(address, &root, "app.example", "h2").await.unwrap();
        let (read, mut write) = tokio::io::split(stream);
        // Reads everything immediately, as an attacker does to keep windows open.
        let (code, (), ()) = tokio::join!(
            last_words(tokio::io::join(read, tokio::io::sink())),
            async {
                // The edge may close before all of it is written.
                drop(write.write_all(&bytes).await);
                drop(write.flush().await);
            },
            async {
                for _ in 0..2 {
                    let (status, body) = ask2(&mut good, "https://app.example/", "").await;
                    assert_eq!((status, body.len()), (200, 4_000), "{}", attack.name);
                }
            }
        );
        let frame = (attack.step)(0).concat();
        assert!(
            code.is_some_and(|code| code != 0),
            "{}, {frame:?}: {code:?}",
            attack.name
        );
        let after = (attack.counts)(rig.edge.meters());
        assert_eq!(after, before + 1, "{}, {frame:?}", attack.name);
    }
    // The good client had one connection all along.
    let meters = rig.edge.meters();
    assert_eq!(meters.accepted.get(), 1 + attacks.len() as u64);
    assert_eq!(meters.panics.get(), 0);
}

/// Every frame, whole and cut short, over and over on a stream in every state.
fn cells() -> Vec<Attack> {
    let any: fn(&Meters) -> u64 = |meters| {
        meters.floods_resets.get()
            + meters.floods_idle_frames.get()
            + meters.floods_continuations.get()
            + meters.http2_errors.get()
    };
    let cancel = 8u32.to_be_bytes();
    let reset = frame(RST_STREAM, 0, 1, &cancel);
    let states: [(&str, u32, Vec<u8>); 6] = [
        ("the connection", 0, vec![]),
        ("an idle stream", 1, vec![]),
        ("an open stream", 1, request(0, 0)),
        ("an answered stream", 1, request(0, END_STREAM)),
        (
            "a stream the client reset",
            1,
            [request(0, 0), reset].concat(),
        ),
        (
            "a stream we reset",
            1,
            [request(0, 0), frame(WINDOW_UPDATE, 0, 1, &[0; 4])].concat(),
        ),
    ];
    let frames: [(u8, u8, Vec<u8>); 11] = [
        // With bytes in it, it is an upload.
        (DATA, 0, vec![]),
        // Without its end, a request waits for more.
        (HEADERS, END_HEADERS, section()),
        (PRIORITY, 0, vec![0, 0, 0, 99, 16]),
        (RST_STREAM, 0, cancel.to_vec()),
        (SETTINGS, 0, vec![0, 4, 0, 0, 0xFF, 0xFF]),
        (PUSH_PROMISE, END_HEADERS, vec![0, 0, 0, 2]),
        (PING, 0, vec![0; 8]),
        (GOAWAY, 0, vec![0; 8]),
        (WINDOW_UPDATE, 0, vec![0, 0, 0, 1]),
        (CONTINUATION, END_HEADERS, section()),
        (0xB0, 0, vec![1, 2, 3]),
    ];
    let mut attacks = Vec::new();
    for (name, of, before) in &states {
        for (kind, flags, payload) in &frames {
            let (kind, flags, of) = (*kind, *flags, *of);
            // Cut short, or with more padding than payload.
            for (flags, payload) in [(flags, payload.clone()), (flags | PADDED, vec![0xFF; 3])] {
                if kind == GOAWAY && of == 0 && payload.len() == 8 {
                    // The client says that it leaves: the connection is closed, and no flood.
                    continue;
                }
                let is_new = kind == HEADERS && before.is_empty() && of > 0;
                attacks.push(attack(name, any, before.clone(), move |turn| {
                    let of = if is_new { stream(turn) } else { of };
                    vec![frame(kind, flags, of, &payload)]
                }));
            }
        }
    }
    attacks
}

#[tokio::test]
async fn a_busy_client_is_not_treated_as_a_flood() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    let (names, key, root) = certificate(&["app.example"]);
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Https,
            "app.example",
            443,
            &format!("http://{origin}"),
            "",
        ))
        .certificate(names, key)
        .build();
    rig.edge.publish(snapshot).await;
    let stream = tls(rig.edge.https_addr().unwrap(), &root, "app.example", "h2")
        .await
        .unwrap();
    let mut client = Client::new(stream);
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    client.send(frame(SETTINGS, 0, 0, &[])).await;
    // Each request with a frame about its priority, as browsers send them.
    let mut answered = 0;
    for turn in 0..1_000 {
        client
            .send(
                [
                    request(turn, END_STREAM),
                    frame(0x10, 0, 0, &stream_priority(turn)),
                ]
                .concat(),
            )
            .await;
        loop {
            let head = client.take(9).await.expect("it is served");
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            client.take(usize::try_from(length).unwrap()).await;
            assert_ne!(head[3], GOAWAY);
            if head[3] == DATA && head[4] & END_STREAM != 0 {
                answered += 1;
                break;
            }
        }
    }
    assert_eq!(answered, 1_000);
}

/// The payload of a PRIORITY_UPDATE (RFC 9218 7.1).
fn stream_priority(turn: u32) -> Vec<u8> {
    [&stream(turn).to_be_bytes()[..], b"u=3"].concat()
}
