//! Busy clients that follow the protocol are not treated as floods.

use super::*;

/// The frames that a gRPC client sends in reply to a message.
fn grpc_says(stream: u32, bytes: u32) -> Vec<u8> {
    [
        frame(frame::WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes()),
        frame(frame::PING, 0, 0, &[2, 4, 16, 16, 9, 14, 7, 7]),
        frame(frame::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()),
    ]
    .concat()
}

#[test]
fn a_stream_of_small_messages_runs_on() {
    // grpc-go and grpcio reply to each message with frames that enlarge windows and measure the
    // round trip.
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    talk.session.send_head(1, &ok(), false);
    for turn in 0..100_000_u32 {
        let bytes = Bytes::from(vec![7; 25]);
        assert!(talk.window(1).is_ready(), "{turn}");
        talk.session.send_data(1, bytes, false);
        talk.hears(&grpc_says(1, 25)).unwrap();
        // The client's own messages between them.
        talk.hears(&frame(frame::DATA, 0, 1, &[7; 25])).unwrap();
        assert!(talk.data(1).is_ready());
        talk.said();
    }
    // Delayed replies to as many messages as fit into the windows are not a flood either.
    for _ in 0..2_000 {
        talk.session
            .send_data(1, Bytes::from_static(&[7; 25]), false);
        talk.said();
    }
    for _ in 0..2_000 {
        talk.hears(&grpc_says(1, 25)).unwrap();
    }
}

#[test]
fn sequential_calls_run_on() {
    let mut talk = Talk::new();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    for turn in 0..50_000_u32 {
        let stream = turn * 2 + 1;
        talk.asks(stream, OPENING);
        let message = frame(frame::DATA, frame::END_STREAM, stream, &[7; 25]);
        talk.hears(&message).unwrap();
        assert!(talk.data(stream).is_ready());
        talk.session.send_head(stream, &ok(), false);
        talk.session
            .send_data(stream, Bytes::from_static(&[7; 25]), false);
        talk.session.send_trailers(stream, &trailers);
        talk.hears(&grpc_says(stream, 25)).unwrap();
        // Some clients reset streams that are already complete.
        let reset = frame(frame::RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        talk.hears(&reset).unwrap();
        if turn % 10 == 0 {
            let window = frame(frame::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
            talk.hears(&window).unwrap();
        }
        talk.said();
    }
}

#[test]
fn a_client_may_cancel_as_many_calls_as_it_lets_end() {
    let mut talk = Talk::new();
    for turn in 0..10_000_u32 {
        let (taken, cancelled) = (turn * 4 + 1, turn * 4 + 3);
        talk.asks(taken, WHOLE);
        talk.asks(cancelled, WHOLE);
        talk.session.send_head(taken, &ok(), true);
        let reset = frame(frame::RST_STREAM, 0, cancelled, &[0, 0, 0, 8]);
        talk.hears(&reset).unwrap();
        talk.said();
    }
}
