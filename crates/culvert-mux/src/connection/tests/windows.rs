//! Flow control: windows, credit and the turns of senders.

use super::*;

#[test]
fn a_frame_over_the_window_ends_its_stream_before_its_payload_is_read() {
    let mut pair = Pair::server();
    let (victim, other) = (pair.open(b"x"), pair.open(b"x"));
    let head = frame::data_head(victim, 0, PAYLOAD_BYTES_MAX);
    pair.send_bytes(&head);
    assert_eq!(pair.frames(), [fin(2), rst(2, ErrorCode::FLOW_CONTROL)]);
    assert_eq!(
        pair.read(victim),
        Err(Broken::Here(ErrorCode::FLOW_CONTROL))
    );
    for _ in 0..PAYLOAD_BYTES_MAX.div_ceil(1 << 20) - 1 {
        pair.send_bytes(&vec![9; 1 << 20]);
        assert_eq!(pair.here.held_bytes(), 0);
    }
    pair.send_bytes(&vec![9; PAYLOAD_BYTES_MAX % (1 << 20)]);
    pair.send(&[data(4, b"fine")]);
    assert_eq!(pair.drain(other), b"fine");
    assert!(pair.here.ending().is_none());
}

#[test]
fn the_window_is_counted_to_the_byte() {
    let whole = vec![1; WINDOW_BYTES as usize];
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    pair.send(&[data(2, &whole)]);
    assert_eq!(pair.here.held_bytes(), whole.len());
    assert_eq!(pair.frames(), []);
    pair.send(&[data(2, b"y")]);
    assert_eq!(pair.frames(), [fin(2), rst(2, ErrorCode::FLOW_CONTROL)]);
    assert_eq!(pair.here.held_bytes(), 0, "what was unread is gone");
    assert!(pair.read(stream).is_err());
}

#[test]
fn credit_returns_when_half_a_window_was_read() {
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    for _ in 0..3 {
        pair.send(&[data(2, &[1; 40_000])]);
        pair.drain(stream);
        assert_eq!(pair.frames(), []);
    }
    pair.send(&[data(2, &[1; 40_000])]);
    pair.drain(stream);
    assert_eq!(
        pair.frames(),
        [Frame::WndInc {
            id: stream,
            increment: 160_000
        }]
    );
    // A peer that has finished needs no credit.
    pair.send(&[data(2, &[1; 200_000]), fin(2)]);
    pair.drain(stream);
    assert_eq!(pair.frames(), []);
}

/// One stream over a long distance: the peer sends all it may and waits for credit, which takes a round trip.
#[test]
fn the_window_grows_to_what_the_distance_needs() {
    let mut pair = Pair::with(Limits::for_ours());
    let stream = pair.open(b"x");
    let mut credit = WINDOW_BYTES as usize;
    let mut rounds = Vec::new();
    for _ in 0..8 {
        rounds.push(credit);
        while credit > 0 {
            let length = credit.min(32 << 10);
            pair.send(&[data(2, &vec![1; length])]);
            credit -= length;
            pair.drain(stream);
        }
        for frame in pair.frames() {
            if let Frame::WndInc { increment, .. } = frame {
                credit += increment as usize;
            }
        }
        pair.now += Duration::from_millis(40);
    }
    let most = Limits::for_ours().window_grows_to as usize;
    assert!(rounds[7] > most / 2, "{rounds:?}");
    assert!(rounds.iter().all(|round| *round <= most), "{rounds:?}");
}

#[test]
fn writers_wait_for_the_window_and_are_reported_once() {
    let mut pair = Pair::server();
    let stream = pair.open(b"");
    let mut left = Bytes::from(vec![5; 300_000]);
    let mut sent = 0;
    while pair.here.write(stream, &mut left).unwrap() > 0 {
        sent += pair.bytes().len() - HEAD_BYTES * 2;
    }
    assert_eq!(sent, WINDOW_BYTES as usize);
    while pair.here.next_event().is_some() {}
    assert_eq!(pair.here.capacity(stream), Ok(0));

    let increment = Frame::WndInc {
        id: stream,
        increment: 10_000,
    };
    pair.send(&[increment.clone(), increment]);
    assert_eq!(pair.here.next_event(), Some(Event::Writable(stream)));
    assert_eq!(pair.here.next_event(), None);
    assert_eq!(pair.here.write(stream, &mut left), Ok(20_000));
}

#[test]
fn credit_beyond_what_can_be_said_resets_the_stream() {
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    pair.send(&[Frame::WndInc {
        id: stream,
        increment: 0x7FFF_FFFF,
    }]);
    assert_eq!(pair.frames(), [fin(2), rst(2, ErrorCode::FLOW_CONTROL)]);
    assert!(pair.here.ending().is_none());
}

#[test]
fn senders_take_turns_in_frames_of_a_modest_length() {
    let mut pair = Pair::server();
    let (bulk, small) = (pair.open(b"x"), pair.open(b"x"));
    pair.here
        .write(bulk, &mut Bytes::from(vec![1; 64 << 10]))
        .unwrap();
    pair.here.write_copy(small, b"quick").unwrap();
    let lengths: Vec<(u32, usize)> = pair
        .frames()
        .iter()
        .map(|frame| match frame {
            Frame::Data { id, payload, .. } => (id.get(), payload.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lengths, [(2, 32 << 10), (4, 5), (2, 32 << 10)]);
}

#[test]
fn long_payloads_pass_through_without_a_copy() {
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    let mut input = BytesMut::new();
    data(2, &[3; 16_000]).encode(&mut input);
    let arrived_at = input[HEAD_BYTES..].as_ptr();
    pair.here.receive(&mut input, pair.now);
    let Ok(Read::Data(mut bytes)) = pair.here.read(stream, usize::MAX, pair.now) else {
        panic!("nothing to read");
    };
    assert_eq!(bytes.as_ptr(), arrived_at);

    let length = bytes.len();
    assert_eq!(pair.here.write(stream, &mut bytes), Ok(length));
    let mut out = Outbox::default();
    pair.here.transmit(&mut out, usize::MAX, pair.now);
    let mut slices = [std::io::IoSlice::new(&[]); 4];
    assert_eq!(out.chunks_vectored(&mut slices), 2);
    assert_eq!(slices[1].as_ptr(), arrived_at);
}

#[test]
fn a_peer_of_our_own_is_granted_a_larger_window_at_once() {
    let mut pair = Pair::with(Limits {
        window_bytes_max: 1 << 20,
        ..Limits::default()
    });
    let stream = pair.open(b"x");
    pair.send(&[data(2, b"first")]);
    assert_eq!(
        pair.frames(),
        [Frame::WndInc {
            id: stream,
            increment: (1 << 20) - WINDOW_BYTES
        }]
    );
}

#[test]
fn several_pieces_are_read_at_once_up_to_the_limit_and_give_their_credit_back() {
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    let piece = vec![1; 40 << 10];
    for _ in 0..4 {
        pair.send(&[data(2, &piece)]);
    }
    let (mut more, max) = (Vec::new(), 150 << 10);
    let read = pair.here.read_all(stream, max, pair.now, &mut more);
    pair.here.check();
    assert_eq!(read, Ok(Read::Data(piece.into())));
    let length: usize = more.iter().map(Bytes::len).sum();
    assert_eq!(length, max - (40 << 10));
    assert_eq!(pair.here.held_bytes(), 10 << 10);
    let increment = 150 << 10;
    let id = id(2);
    assert_eq!(pair.frames(), [Frame::WndInc { id, increment }]);
    assert_eq!(pair.drain(stream).len(), 10 << 10);
    let read = pair.here.read_all(stream, max, pair.now, &mut more);
    assert_eq!(read, Ok(Read::Wait));
}

/// An empty piece would look like the end of the stream.
#[test]
fn a_read_returns_at_least_one_byte() {
    let mut pair = Pair::server();
    pair.send(&[syn(1, b"ab")]);
    let stream = pair.here.accept().unwrap();
    let read = pair.here.read(stream, 0, pair.now);
    assert_eq!(read, Ok(Read::Data(Bytes::from_static(b"a"))));
}
