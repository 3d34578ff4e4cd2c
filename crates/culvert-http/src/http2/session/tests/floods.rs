//! A flood for each cell of the table of [states](crate::http2::states): each frame, of valid and invalid sizes, again and
//! again on a stream in each state.

use super::*;
use crate::http2::states::tests::{KINDS, STATES};
use crate::http2::states::{self, Action, Cost, FrameType};

/// A flood must end within this many frames or this much CPU time.
const FRAMES_MAX: usize = 1_000;
const CPU_MAX: Duration = Duration::from_millis(200);

/// CPU time of this thread, if the system reports it.
fn cpu() -> Option<Duration> {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = times.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

/// A connection whose stream 1 is in `state`.
fn talk_in(state: StreamState) -> Talk {
    let mut talk = Talk::with(100);
    match state {
        StreamState::Connection | StreamState::Idle => {}
        StreamState::Open => talk.asks(1, OPENING),
        StreamState::HalfClosedRemote => talk.asks(1, WHOLE),
        StreamState::HalfClosedLocal => {
            talk.asks(1, OPENING);
            talk.session.send_head(1, &ok(), true);
        }
        StreamState::Closed => {
            talk.asks(1, WHOLE);
            talk.session.send_head(1, &ok(), true);
        }
        StreamState::ResetByPeer => {
            talk.asks(1, OPENING);
            talk.hears(&frame(frame::RST_STREAM, 0, 1, &[0; 4]))
                .unwrap();
        }
        StreamState::ResetByUs => {
            talk.asks(1, OPENING);
            talk.session.close(1, Reason::INTERNAL_ERROR, talk.now);
        }
        StreamState::Unserved => {
            talk.session.send_graceful_goaway();
            talk.session.send_final_goaway();
            talk.asks(1, OPENING);
        }
    }
    talk.said();
    talk
}

/// Frames of a kind: their code, flags and payload.
fn frames(kind: FrameType) -> Vec<(u8, u8, Vec<u8>)> {
    match kind {
        FrameType::Data => vec![
            (frame::DATA, 0, vec![]),
            (frame::DATA, 0, vec![7; 16]),
            (frame::DATA, 0, vec![7; 16 << 10]),
            (frame::DATA, frame::END_STREAM, vec![]),
            (frame::DATA, frame::END_STREAM, vec![7]),
            (frame::DATA, frame::PADDED, vec![3, 0, 0, 0]),
            (frame::DATA, frame::PADDED, vec![]),
        ],
        FrameType::Headers => {
            let long = "y".repeat(120);
            let fields = vec![("x", &long[..]); 100];
            let priority = [&[0, 0, 0, 0, 16][..], &section(&[])].concat();
            vec![
                (frame::HEADERS, WHOLE, section(&[])),
                (frame::HEADERS, OPENING, section(&[])),
                (frame::HEADERS, WHOLE, section(&fields)),
                (frame::HEADERS, WHOLE, of(&[("x", "y")])),
                (frame::HEADERS, WHOLE, vec![]),
                (frame::HEADERS, WHOLE | frame::WITH_PRIORITY, priority),
                (frame::HEADERS, WHOLE | frame::WITH_PRIORITY, vec![0; 3]),
                (frame::HEADERS, WHOLE | frame::PADDED, vec![]),
            ]
        }
        FrameType::Priority => vec![
            (frame::PRIORITY, 0, vec![0, 0, 0, 99, 16]),
            (frame::PRIORITY, 0, vec![0, 0, 0, 1, 16]),
            (frame::PRIORITY, 0, vec![0; 4]),
        ],
        FrameType::RstStream => vec![
            (frame::RST_STREAM, 0, vec![0, 0, 0, 8]),
            (frame::RST_STREAM, 0, vec![0; 5]),
        ],
        FrameType::Settings => vec![
            (frame::SETTINGS, 0, vec![]),
            (frame::SETTINGS, 0, [0, 4, 0, 0, 0xFF, 0xFF].repeat(2_000)),
            (frame::SETTINGS, frame::ACK, vec![]),
            (frame::SETTINGS, frame::ACK, vec![0; 6]),
            (frame::SETTINGS, 0, vec![0; 5]),
        ],
        FrameType::PushPromise => vec![(frame::PUSH_PROMISE, OPENING, vec![0, 0, 0, 2])],
        FrameType::Ping => vec![
            (frame::PING, 0, vec![0; 8]),
            (frame::PING, frame::ACK, vec![0; 8]),
            (frame::PING, 0, vec![0; 7]),
        ],
        FrameType::GoAway => vec![
            (frame::GOAWAY, 0, vec![0; 8]),
            (frame::GOAWAY, 0, vec![0; 16 << 10]),
            (frame::GOAWAY, 0, vec![0; 7]),
        ],
        FrameType::WindowUpdate => vec![
            (frame::WINDOW_UPDATE, 0, vec![0, 0, 0, 1]),
            (frame::WINDOW_UPDATE, 0, vec![0; 4]),
            (frame::WINDOW_UPDATE, 0, vec![0; 3]),
        ],
        FrameType::Continuation => vec![
            (frame::CONTINUATION, 0, section(&[])),
            (frame::CONTINUATION, frame::END_HEADERS, section(&[])),
        ],
        FrameType::Unknown => vec![(0xB0, 0, vec![]), (0xB0, 0xFF, vec![0; 16 << 10])],
    }
}

#[test]
fn a_flood_of_any_frame_in_any_state_ends() {
    let mut floods = 0;
    for kind in KINDS {
        for state in STATES {
            for (code, flags, payload) in frames(kind) {
                let mut talk = talk_in(state);
                let first = u32::from(state != StreamState::Connection);
                let seen = talk.session.state_of(kind, first);
                // The connection is in the state that is tested.
                assert_eq!(seen, state, "{kind:?}");
                let is_new = kind == FrameType::Headers
                    && matches!(state, StreamState::Idle | StreamState::Unserved);
                let before = cpu();
                let mut count: u32 = 0;
                let end = loop {
                    let stream = if is_new { first + 2 * count } else { first };
                    count += 1;
                    if let Err(end) = talk.hears(&frame(code, flags, stream, &payload)) {
                        break end;
                    }
                    // The client reads all replies.
                    talk.session.out.clear();
                    assert!(count < 100_000, "{kind:?} {state:?} {flags} goes on");
                };
                let took = before.zip(cpu()).map(|(before, after)| after - before);
                assert!(
                    count as usize <= FRAMES_MAX || took.is_none_or(|took| took < CPU_MAX),
                    "{kind:?} {state:?} {flags} {}: {count} frames, {took:?}, {end:?}",
                    payload.len()
                );
                floods += 1;
            }
        }
    }
    assert!(floods > 300, "{floods}");
}

#[test]
fn no_cell_is_free() {
    for kind in KINDS {
        for state in STATES {
            for rule in [states::rule(kind, state), states::wrong_size(kind, state)] {
                let is_end = matches!(rule.action, Action::ConnectionError(_));
                assert_eq!(is_end, rule.cost == Cost::End, "{kind:?} {state:?}");
                let is_reset = matches!(rule.action, Action::StreamError(_));
                assert!(!is_reset || rule.cost == Cost::Reset, "{kind:?} {state:?}");
                assert_ne!(rule.cost, Cost::Control(0), "{kind:?} {state:?}");
                // Only an open stream can have its one frame.
                assert!(
                    rule.cost != Cost::Once
                        || matches!(state, StreamState::Open | StreamState::HalfClosedLocal)
                );
            }
        }
    }
}
