//! Whether the table is complete, and whether its documentation is up to date.

use super::*;

pub(crate) const KINDS: [FrameType; 11] = [
    FrameType::Data,
    FrameType::Headers,
    FrameType::Priority,
    FrameType::RstStream,
    FrameType::Settings,
    FrameType::PushPromise,
    FrameType::Ping,
    FrameType::GoAway,
    FrameType::WindowUpdate,
    FrameType::Continuation,
    FrameType::Unknown,
];
pub(crate) const STATES: [StreamState; 9] = [
    StreamState::Connection,
    StreamState::Idle,
    StreamState::Open,
    StreamState::HalfClosedRemote,
    StreamState::HalfClosedLocal,
    StreamState::Closed,
    StreamState::ResetByPeer,
    StreamState::ResetByUs,
    StreamState::Unserved,
];

const OF_STREAMS: &[FrameType] = &[
    FrameType::Data,
    FrameType::Headers,
    FrameType::Priority,
    FrameType::RstStream,
    FrameType::WindowUpdate,
];
const BEHIND_THE_END: &[FrameType] = &[
    FrameType::Priority,
    FrameType::RstStream,
    FrameType::WindowUpdate,
];

/// The states of RFC 9113 5.1, the states here that they are, and the frames that a client may send in them.
const OF_THE_RFC: &[(&str, &[StreamState], &[FrameType])] = &[
    (
        "stream 0",
        &[StreamState::Connection],
        &[
            FrameType::Settings,
            FrameType::Ping,
            FrameType::GoAway,
            FrameType::WindowUpdate,
        ],
    ),
    (
        "idle",
        &[StreamState::Idle],
        &[FrameType::Headers, FrameType::Priority],
    ),
    // The server pushes nothing, and a client must not.
    ("reserved (local)", &[], &[]),
    ("reserved (remote)", &[], &[]),
    ("open", &[StreamState::Open], OF_STREAMS),
    (
        "half-closed (local)",
        &[StreamState::HalfClosedLocal],
        OF_STREAMS,
    ),
    (
        "half-closed (remote)",
        &[StreamState::HalfClosedRemote],
        BEHIND_THE_END,
    ),
    (
        "closed, and the client knows it",
        &[StreamState::Closed, StreamState::ResetByPeer],
        BEHIND_THE_END,
    ),
    (
        "closed, and the client may not know it yet",
        &[StreamState::ResetByUs, StreamState::Unserved],
        OF_STREAMS,
    ),
];

#[test]
fn each_state_of_the_rfc_has_its_rules() {
    let covered = OF_THE_RFC.iter().flat_map(|(_, states, _)| *states);
    assert_eq!(covered.count(), STATES.len());
    for (name, states, allowed) in OF_THE_RFC {
        for (kind, state) in KINDS
            .iter()
            .flat_map(|kind| states.iter().map(move |state| (*kind, *state)))
        {
            let is_error = matches!(
                rule(kind, state).action,
                Action::StreamError(_) | Action::ConnectionError(_)
            );
            // 4.1: frames of unknown types are ignored in any state.
            let is_allowed = allowed.contains(&kind) || kind == FrameType::Unknown;
            assert_eq!(is_error, !is_allowed, "{kind:?}, {name}, {state:?}");
        }
    }
}

fn name(kind: FrameType) -> &'static str {
    match kind {
        FrameType::Data => "DATA",
        FrameType::Headers => "HEADERS",
        FrameType::Priority => "PRIORITY",
        FrameType::RstStream => "RST_STREAM",
        FrameType::Settings => "SETTINGS",
        FrameType::PushPromise => "PUSH_PROMISE",
        FrameType::Ping => "PING",
        FrameType::GoAway => "GOAWAY",
        FrameType::WindowUpdate => "WINDOW_UPDATE",
        FrameType::Continuation => "CONTINUATION",
        FrameType::Unknown => "unknown type",
    }
}

fn place(state: StreamState) -> &'static str {
    match state {
        StreamState::Connection => "stream 0",
        StreamState::Idle => "idle",
        StreamState::Open => "open",
        StreamState::HalfClosedRemote => "half-closed (remote)",
        StreamState::HalfClosedLocal => "half-closed (local)",
        StreamState::Closed => "closed",
        StreamState::ResetByPeer => "reset by the client",
        StreamState::ResetByUs => "reset by the server",
        StreamState::Unserved => "above GOAWAY",
    }
}

fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::PROTOCOL_ERROR => "PROTOCOL_ERROR",
        Reason::STREAM_CLOSED => "STREAM_CLOSED",
        Reason::FRAME_SIZE_ERROR => "FRAME_SIZE_ERROR",
        other => panic!("no rule has {other:?}"),
    }
}

/// The table as text: a line for each frame and effect, with the states in which it has that effect.
fn documentation() -> String {
    let mut text =
        String::from("| frame | on a stream that is | effect | cost |\n|---|---|---|---|\n");
    for kind in KINDS {
        let mut rules: Vec<(Rule, Vec<StreamState>)> = Vec::new();
        for state in STATES {
            let rule = rule(kind, state);
            match rules.iter_mut().find(|(known, _)| *known == rule) {
                Some((_, states)) => states.push(state),
                None => rules.push((rule, vec![state])),
            }
        }
        for (rule, states) in rules {
            let states: Vec<_> = states.into_iter().map(place).collect();
            let states = match states.len() {
                len if len == STATES.len() => "any".to_owned(),
                len if len + 1 == STATES.len() && !states.contains(&"stream 0") => {
                    "any other".to_owned()
                }
                _ => states.join(", "),
            };
            let effect = match rule.action {
                Action::Process => "processed".to_owned(),
                Action::Ignore => "ignored".to_owned(),
                Action::StreamError(code) => format!("stream error {}", reason(code)),
                Action::ConnectionError(code) => format!("connection error {}", reason(code)),
            };
            let cost = match rule.cost {
                Cost::Window => "flow control".to_owned(),
                Cost::Stream => "a concurrent stream".to_owned(),
                Cost::Once => "none; once in a stream".to_owned(),
                Cost::Control(frames) => format!("{frames} control frame"),
                Cost::Reset => "1 reset".to_owned(),
                Cost::End => "the connection".to_owned(),
            };
            text.push_str(&format!(
                "| {} | {states} | {effect} | {cost} |\n",
                name(kind)
            ));
        }
    }
    text
}

#[test]
fn the_documentation_is_the_table() {
    let expected = documentation();
    assert!(
        include_str!("../states.md") == expected,
        "states.md must be:\n{expected}"
    );
}
