use std::time::Duration;

use bytes::{Buf, BytesMut};

use super::*;
use crate::codec::Piece;
use crate::frame::{self, Frame, HEAD_BYTES, PAYLOAD_BYTES_MAX};
use crate::outbox::Outbox;

/// A connection whose peer is a test that sends and receives single frames.
struct Pair {
    here: Connection,
    decoder: Decoder,
    now: Instant,
}

fn id(id: u32) -> StreamId {
    StreamId::new(id).unwrap()
}

fn data(stream: u32, payload: &[u8]) -> Frame {
    Frame::Data {
        id: id(stream),
        syn: false,
        fin: false,
        payload: Bytes::copy_from_slice(payload),
    }
}

fn syn(stream: u32, payload: &[u8]) -> Frame {
    Frame::Data {
        id: id(stream),
        syn: true,
        fin: false,
        payload: Bytes::copy_from_slice(payload),
    }
}

fn fin(stream: u32) -> Frame {
    Frame::Data {
        id: id(stream),
        syn: false,
        fin: true,
        payload: Bytes::new(),
    }
}

fn rst(stream: u32, code: ErrorCode) -> Frame {
    Frame::Rst {
        id: id(stream),
        code,
    }
}

impl Pair {
    fn server() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        Self {
            here: Connection::new(Side::Server, limits),
            decoder: Decoder::default(),
            now: Instant::now(),
        }
    }

    /// Sends frames from the peer.
    fn send(&mut self, frames: &[Frame]) -> &mut Self {
        let mut bytes = BytesMut::new();
        for frame in frames {
            frame.encode(&mut bytes);
        }
        self.send_bytes(&bytes)
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let mut input = BytesMut::from(bytes);
        self.here.receive(&mut input, self.now);
        self.here.check();
        self
    }

    /// All pending output as bytes.
    fn bytes(&mut self) -> Vec<u8> {
        let mut out = Outbox::default();
        self.here.transmit(&mut out, usize::MAX, self.now);
        self.here.check();
        let length = out.remaining();
        out.copy_to_bytes(length).to_vec()
    }

    /// All pending output as frames.
    fn frames(&mut self) -> Vec<Frame> {
        let mut input = BytesMut::from(&self.bytes()[..]);
        let mut frames = Vec::new();
        while let Some(piece) = self.decoder.next(&mut input).unwrap() {
            frames.push(match piece {
                Piece::Data { id, syn, fin, .. } => Frame::Data {
                    id,
                    syn,
                    fin,
                    payload: Bytes::new(),
                },
                Piece::Payload(bytes) => {
                    let Some(Frame::Data { payload, .. }) = frames.last_mut() else {
                        panic!("payload without a head");
                    };
                    *payload = bytes;
                    continue;
                }
                Piece::Rst { id, code } => Frame::Rst { id, code },
                Piece::WndInc { id, increment } => Frame::WndInc { id, increment },
                Piece::GoAway { code, text } => Frame::GoAway {
                    last: 0,
                    code,
                    text,
                },
                Piece::Unknown => panic!("an unknown frame was sent"),
            });
        }
        frames
    }

    fn open(&mut self, first: &'static [u8]) -> StreamId {
        let id = self.here.open(Bytes::from_static(first), self.now).unwrap();
        self.frames();
        id
    }

    fn read(&mut self, stream: StreamId) -> Result<Read, Broken> {
        let read = self.here.read(stream, usize::MAX, self.now);
        self.here.check();
        read
    }

    /// All data that can be read without waiting.
    fn drain(&mut self, stream: StreamId) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Ok(Read::Data(piece)) = self.read(stream) {
            bytes.extend_from_slice(&piece);
        }
        bytes
    }

    fn violated(&self) -> Option<ErrorCode> {
        match self.here.ending() {
            Some(Ending::Violated(violation)) => Some(violation.code),
            _ => None,
        }
    }
}

#[test]
fn the_first_bytes_of_a_stream_leave_in_the_frame_that_opens_it() {
    let mut pair = Pair::server();
    let mut header = b"\0\0\0\x03\x72\0\0\0\0\0\0\0".to_vec();
    header.extend_from_slice(&[b'{'; 114]);
    pair.here.open(header.clone().into(), pair.now).unwrap();

    let mut expected = b"\0\0\x7e\x12\0\0\0\x02".to_vec();
    expected.extend_from_slice(&header);
    assert_eq!(pair.bytes(), expected);
    assert_eq!(
        pair.here.open(Bytes::from(vec![0; 40_000]), pair.now),
        Err(OpenRefused::TooLong)
    );
}

#[test]
fn servers_count_from_two_and_clients_from_three() {
    let now = Instant::now();
    for (side, numbers) in [(Side::Server, [2, 4, 6]), (Side::Client, [3, 5, 7])] {
        let mut here = Connection::new(side, Limits::default());
        for number in numbers {
            assert_eq!(here.open(Bytes::new(), now), Ok(id(number)));
        }
    }
}

#[test]
fn numbers_end_and_do_not_begin_again() {
    let mut pair = Pair::server();
    pair.here.next_id = STREAM_ID_MAX - 1;
    assert_eq!(
        pair.here.open(Bytes::new(), pair.now),
        Ok(id(STREAM_ID_MAX - 1))
    );
    for _ in 0..3 {
        assert_eq!(
            pair.here.open(Bytes::new(), pair.now),
            Err(OpenRefused::Exhausted)
        );
    }
}

#[test]
fn an_exchange_both_ways_ends_without_a_trace() {
    let mut pair = Pair::server();
    pair.send(&[syn(3, b"\0\0\0\0"), data(3, b"{}"), fin(3)]);
    assert_eq!(pair.here.next_event(), Some(Event::Opened));
    let stream = pair.here.accept().unwrap();
    assert_eq!(pair.here.accept(), None);
    assert_eq!(pair.drain(stream), b"\0\0\0\0{}");
    assert_eq!(pair.read(stream), Ok(Read::End));

    assert_eq!(pair.here.write_copy(stream, b"yes"), Ok(3));
    pair.here.finish(stream).unwrap();
    pair.here.release(stream, pair.now);
    assert_eq!(
        pair.frames(),
        [Frame::Data {
            id: stream,
            syn: false,
            fin: true,
            payload: Bytes::from_static(b"yes")
        }],
        "what was written leaves although nobody holds the stream"
    );
    assert_eq!(pair.here.stream_count(), 0);
    assert!(!pair.here.has_output());
}

#[test]
fn breaking_off_says_fin_before_rst() {
    let mut pair = Pair::server();
    let stream = pair.open(b"head");
    pair.here
        .reset(stream, ErrorCode::STREAM_CANCELLED, pair.now);
    assert_eq!(pair.frames(), [fin(2), rst(2, ErrorCode::STREAM_CANCELLED)]);
    // Releasing an unfinished stream resets it. After its own FIN, it sends no second one.
    let stream = pair.open(b"head");
    pair.here.release(stream, pair.now);
    assert_eq!(pair.frames(), [fin(4), rst(4, ErrorCode::STREAM_CANCELLED)]);
    let stream = pair.open(b"head");
    pair.here.finish(stream).unwrap();
    assert_eq!(pair.frames(), [fin(6)]);
    pair.here.release(stream, pair.now);
    assert_eq!(pair.frames(), [rst(6, ErrorCode::STREAM_CANCELLED)]);
}

#[test]
fn breaking_off_towards_an_end_of_ours_is_one_frame() {
    let mut pair = Pair::with(Limits {
        fin_before_rst: false,
        ..Limits::default()
    });
    let stream = pair.open(b"head");
    pair.here.release(stream, pair.now);
    assert_eq!(pair.frames(), [rst(2, ErrorCode::STREAM_CANCELLED)]);
}

#[test]
fn a_stream_that_never_left_leaves_nothing_behind() {
    let mut pair = Pair::server();
    let stream = pair
        .here
        .open(Bytes::from_static(b"head"), pair.now)
        .unwrap();
    pair.here.release(stream, pair.now);
    assert_eq!(pair.frames(), []);
    assert_eq!(pair.here.stream_count(), 0);
}

#[test]
fn opening_and_ending_are_never_one_frame() {
    let mut pair = Pair::server();
    let stream = pair
        .here
        .open(Bytes::from_static(b"all"), pair.now)
        .unwrap();
    pair.here.finish(stream).unwrap();
    assert_eq!(pair.frames(), [syn(2, b"all"), fin(2)]);
}

#[test]
fn streams_may_be_opened_out_of_order_but_not_twice_and_not_with_our_numbers() {
    let mut pair = Pair::server();
    pair.send(&[syn(7, b"x"), syn(3, b"x"), syn(5, b"x")]);
    assert!(pair.here.ending().is_none());
    for opened in [7, 3, 5] {
        assert_eq!(pair.here.accept(), Some(id(opened)));
    }
    pair.send(&[syn(5, b"x")]);
    assert_eq!(pair.violated(), Some(ErrorCode::PROTOCOL));
    assert!(matches!(
        &pair.frames()[..],
        [Frame::GoAway {
            code: ErrorCode::PROTOCOL,
            ..
        }]
    ));

    let mut pair = Pair::server();
    pair.send(&[syn(4, b"x")]);
    assert_eq!(pair.violated(), Some(ErrorCode::PROTOCOL));
}

#[test]
fn one_stream_too_many_is_refused_and_the_others_go_on() {
    let mut pair = Pair::server();
    let first = pair.open(b"x");
    for number in 0..479 {
        pair.send(&[syn(3 + 2 * number, b"x")]);
        assert!(pair.here.accept().is_some());
    }
    assert_eq!(pair.here.stream_count(), 480);
    assert_eq!(
        pair.here.open(Bytes::from_static(b"x"), pair.now),
        Err(OpenRefused::Full)
    );
    pair.send(&[syn(2001, b"x"), data(2001, b"y"), fin(2001)]);
    assert_eq!(pair.frames(), [rst(2001, ErrorCode::STREAM_REFUSED)]);
    pair.send(&[data(2, b"fine")]);
    assert_eq!(pair.drain(first), b"fine");
}

#[test]
fn a_stream_that_was_reset_counts_until_the_agent_has_let_go_of_it() {
    let mut pair = Pair::with(Limits {
        streams_max: 2,
        ..Limits::default()
    });
    let (first, _second) = (pair.open(b"x"), pair.open(b"x"));
    pair.here.release(first, pair.now);
    pair.frames();
    assert_eq!(pair.here.stream_count(), 1);
    assert!(!pair.here.has_room(pair.now));
    pair.now += Duration::from_secs(1);
    assert!(pair.here.has_room(pair.now));
}

#[test]
fn streams_that_nobody_takes_are_refused_after_the_first() {
    let mut pair = Pair::with(Limits::for_strangers());
    pair.send(&[syn(3, b""), syn(5, b""), syn(7, b""), syn(9, b"")]);
    assert_eq!(pair.frames(), []);
    pair.send(&[syn(11, b"")]);
    assert_eq!(pair.frames(), [rst(11, ErrorCode::STREAM_REFUSED)]);

    let mut pair = Pair::with(Limits {
        accept_max: 1,
        ..Limits::default()
    });
    pair.send(&[syn(3, b""), syn(5, b"")]);
    assert_eq!(pair.frames(), [rst(5, ErrorCode::ACCEPT_QUEUE_FULL)]);
    // A stream that was reset before it was accepted frees its place.
    pair.send(&[rst(3, ErrorCode::STREAM_CANCELLED), syn(7, b"")]);
    assert_eq!(pair.frames(), []);
    assert_eq!(pair.here.accept(), Some(id(7)));
}

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

#[test]
fn late_data_is_answered_once_and_in_silence_where_the_peer_could_not_know() {
    let mut pair = Pair::server();
    pair.send(&[data(5, b"who"), fin(5), fin(7), data(9, b"")]);
    assert_eq!(pair.frames(), [rst(5, ErrorCode::STREAM_CLOSED)]);

    let stream = pair.open(b"x");
    pair.here.release(stream, pair.now);
    pair.frames();
    pair.send(&[data(2, b"still"), data(2, b"more"), fin(2)]);
    assert_eq!(pair.frames(), []);

    let stream = pair.open(b"x");
    pair.send(&[fin(4), fin(4)]);
    assert_eq!(pair.frames(), []);
    pair.send(&[data(4, b"behind the end")]);
    assert_eq!(pair.frames(), [fin(4), rst(4, ErrorCode::STREAM_CLOSED)]);
    assert!(pair.read(stream).is_err());
}

#[test]
fn a_fin_followed_by_a_reset_is_no_clean_end() {
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    pair.send(&[
        data(2, b"half an ans"),
        fin(2),
        rst(2, ErrorCode::STREAM_CANCELLED),
    ]);
    // The reader gets all data before the FIN, and then the error.
    assert_eq!(pair.drain(stream), b"half an ans");
    assert_eq!(
        pair.read(stream),
        Err(Broken::ByPeer(ErrorCode::STREAM_CANCELLED))
    );
}

#[test]
fn an_answer_given_early_stays_whole_when_the_rest_of_the_question_is_refused() {
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    pair.send(&[data(2, b"413"), fin(2)]);
    pair.here.write_copy(stream, b"more body").unwrap();
    pair.send(&[rst(2, ErrorCode::STREAM_CLOSED)]);
    assert_eq!(
        pair.here.write_copy(stream, b"and more"),
        Err(Broken::ByPeer(ErrorCode::STREAM_CLOSED))
    );
    assert_eq!(pair.drain(stream), b"413");
    assert_eq!(pair.read(stream), Ok(Read::End));
    pair.here.release(stream, pair.now);
    assert_eq!(pair.frames(), []);
}

#[test]
fn writers_wait_for_the_window_and_are_told_once() {
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
fn all_queues_together_have_a_bound_and_their_writers_are_woken() {
    let mut pair = Pair::with(Limits {
        queue_bytes_max: 100_000,
        ..Limits::default()
    });
    let streams: Vec<StreamId> = (0..4).map(|_| pair.open(b"x")).collect();
    let taken: Vec<usize> = streams
        .iter()
        .map(|stream| {
            pair.here
                .write(*stream, &mut Bytes::from(vec![1; 64 << 10]))
                .unwrap()
        })
        .collect();
    assert_eq!(taken, [64 << 10, 100_000 - (64 << 10), 0, 0]);
    // A peer that reads nothing and grants much credit must not cause growth.
    for _ in 0..1000 {
        pair.send(&[Frame::WndInc {
            id: streams[3],
            increment: 1,
        }]);
        assert_eq!(pair.here.capacity(streams[3]), Ok(0));
    }
    assert!(pair.here.waiting.len() <= 2);
    pair.bytes();
    let mut woken = Vec::new();
    while let Some(event) = pair.here.next_event() {
        woken.push(event);
    }
    assert_eq!(
        woken,
        [Event::Writable(streams[2]), Event::Writable(streams[3])]
    );
}

#[test]
fn who_reads_nothing_hears_that_a_stream_broke() {
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    pair.send(&[data(2, &[1; 1_000])]);
    assert_eq!(pair.here.watch(stream), Ok(()));
    pair.send(&[rst(2, ErrorCode::STREAM_CANCELLED)]);
    assert_eq!(pair.here.next_event(), Some(Event::Readable(stream)));
    assert_eq!(
        pair.here.watch(stream),
        Err(Broken::ByPeer(ErrorCode::STREAM_CANCELLED))
    );
}

#[test]
fn a_small_answer_waits_for_little_more_than_what_is_queued() {
    let mut pair = Pair::server();
    let endless = Bytes::from(vec![1; 1 << 20]);
    let bulk: Vec<StreamId> = (0..300).map(|_| pair.open(b"x")).collect();
    let small = pair.open(b"x");
    for stream in &bulk {
        pair.send(&[Frame::WndInc {
            id: *stream,
            increment: 1 << 30,
        }]);
        while pair.here.write(*stream, &mut endless.clone()).unwrap() > 0 {}
    }
    assert_eq!(pair.here.write_copy(small, b"answer"), Ok(0), "all is full");
    // Each round sends as much as one write, and then the notified writers queue data in that order.
    let (mut sent, mut woken) = (0, 0);
    let mut is_written = false;
    while !is_written {
        let mut out = Outbox::default();
        pair.here.transmit(&mut out, 64 << 10, pair.now);
        pair.here.check();
        sent += out.remaining();
        // Without shares of the queue, 256 MiB went ahead, 8,190 were woken, and it was still not written.
        assert!(sent <= 4 << 20, "{sent} bytes went ahead");
        while let Some(event) = pair.here.next_event() {
            let Event::Writable(id) = event else {
                panic!("{event:?}");
            };
            woken += 1;
            if id == small {
                is_written |= pair.here.write_copy(small, b"answer").unwrap() > 0;
            } else {
                while pair.here.write(id, &mut endless.clone()).unwrap() > 0 {}
            }
        }
    }
    assert!(woken <= 2 * 300, "{woken} were woken");
}

#[test]
fn a_stream_that_holds_most_for_longest_is_reset_and_the_connection_is_read_on() {
    let mut pair = Pair::with(Limits {
        held_bytes_max: 100_000,
        burst_bytes_max: 200_000,
        ..Limits::default()
    });
    let (slow, small, quick) = (pair.open(b"x"), pair.open(b"x"), pair.open(b"x"));
    pair.send(&[data(2, &[1; 60_000]), data(4, &[1; 10_000])]);
    pair.now += Duration::from_secs(6);
    pair.send(&[data(6, &[1; 60_000])]);
    assert!(pair.here.wants_input(), "held: 130,000");
    let soon = pair.now + Duration::from_millis(100);
    assert_eq!(pair.here.deadline(), Some(soon));
    pair.now = soon;
    pair.here.expire(pair.now);
    assert_eq!(
        pair.frames(),
        [fin(2), rst(2, ErrorCode::ENHANCE_YOUR_CALM)]
    );
    assert_eq!(
        pair.read(slow),
        Err(Broken::Here(ErrorCode::ENHANCE_YOUR_CALM))
    );
    // The remaining data is within the limit, so it may wait for any time.
    pair.now += Duration::from_secs(60);
    pair.here.expire(pair.now);
    assert_eq!(pair.here.cut_streams(), 1);
    assert_eq!(pair.drain(small).len(), 10_000);
    assert_eq!(pair.drain(quick).len(), 60_000);
}

#[test]
fn who_holds_little_is_never_cut_for_those_who_hold_much() {
    let mut pair = Pair::server();
    let small = pair.open(b"x");
    let bulk: Vec<StreamId> = (0..80).map(|_| pair.open(b"x")).collect();
    pair.send(&[data(small.get(), b"answer")]);
    // The readers have not run for a while, and half of the new data is fresh when the other half is dropped.
    pair.now += Duration::from_millis(150);
    for (nth, stream) in bulk.iter().enumerate() {
        if nth == 33 {
            pair.now += Duration::from_millis(60);
        }
        if pair.here.wants_input() {
            pair.send(&[data(stream.get(), &vec![1; WINDOW_BYTES as usize])]);
        }
    }
    assert!(pair.here.held_bytes() >= 16 << 20);
    for _ in 0..150 {
        pair.now += Duration::from_millis(20);
        pair.here.expire(pair.now);
    }
    assert!(pair.here.cut_streams() > 0);
    assert!(pair.here.held_bytes() < 8 << 20);
    assert_eq!(pair.drain(small), b"answer");
}

/// A service responds to 300 clients that read nothing, as fast as their windows allow, and to one that reads.
/// Returns for how long the connection was not read, and how many streams were reset.
fn stalled_readers(limits: Limits) -> (Duration, u64) {
    const STEP: Duration = Duration::from_millis(1);
    let mut pair = Pair::with(limits);
    let stalled: Vec<StreamId> = (0..300).map(|_| pair.open(b"x")).collect();
    let honest = pair.open(b"x");
    let (mut paused, mut answered) = (Duration::ZERO, 0);
    for round in 0..WINDOW_BYTES / (32 << 10) {
        for (nth, stream) in stalled.iter().enumerate() {
            while !pair.here.wants_input() {
                pair.now += STEP;
                paused += STEP;
                pair.here.expire(pair.now);
            }
            pair.send(&[
                data(stream.get(), &[1; 32 << 10]),
                data(honest.get(), b"answer"),
            ]);
            answered += usize::from(pair.drain(honest) == b"answer");
            if nth % 10 == 0 {
                pair.now += STEP;
                pair.here.expire(pair.now);
            }
            assert!(pair.here.held_bytes() <= limits.burst_bytes_max + (32 << 10));
            pair.frames();
        }
        assert_eq!(answered, (round as usize + 1) * 300, "each answer arrives");
    }
    // Without new data, unread data falls below the limit.
    pair.now += Duration::from_secs(3);
    pair.here.expire(pair.now);
    assert!(pair.here.held_bytes() <= limits.held_bytes_max);
    (paused, pair.here.cut_streams())
}

#[test]
fn readers_that_stall_do_not_stall_the_connection() {
    let (paused, cut) = stalled_readers(Limits::default());
    // 75 MiB were sent, of which 8 MiB may remain unread.
    assert!(cut >= 200, "{cut}");
    assert!(paused <= Duration::from_millis(300), "{paused:?}");
}

#[test]
fn readers_that_are_slow_but_read_are_not_cut() {
    let mut pair = Pair::server();
    let slow: Vec<StreamId> = (0..40).map(|_| pair.open(b"x")).collect();
    for stream in &slow {
        pair.send(&[data(stream.get(), &vec![1; WINDOW_BYTES as usize])]);
    }
    assert!(pair.here.held_bytes() > 8 << 20);
    // Each reads 200 KiB per second, in small steps.
    while pair.here.held_bytes() > 0 {
        pair.now += Duration::from_millis(160);
        pair.here.expire(pair.now);
        for stream in &slow {
            drop(pair.here.read(*stream, 32 << 10, pair.now).unwrap());
        }
    }
    assert_eq!(pair.here.cut_streams(), 0);
}

#[test]
fn a_stream_ended_in_good_order_is_free_soon_after_the_peer_has_finished_it() {
    let mut pair = Pair::with(Limits {
        streams_max: 1,
        ..Limits::default()
    });
    for round in 0..10 {
        let stream = pair.open(b"x");
        pair.here.end_in_order(stream, pair.now);
        assert_eq!(pair.frames(), [fin(stream.get())]);
        assert!(!pair.here.has_room(pair.now), "the peer has it still");
        pair.send(&[fin(stream.get())]);
        assert!(
            !pair.here.has_room(pair.now),
            "the agent's task has it still"
        );
        pair.now = pair.here.room_grows_at().unwrap();
        assert!(pair.here.has_room(pair.now), "round {round}");
    }
    // If the peer does not finish, the stream is reset.
    let stream = pair.open(b"x");
    pair.here.end_in_order(stream, pair.now);
    pair.frames();
    pair.now = pair.here.deadline().unwrap();
    pair.here.expire(pair.now);
    assert_eq!(
        pair.frames(),
        [rst(stream.get(), ErrorCode::STREAM_CANCELLED)]
    );
    assert_eq!(pair.here.stream_count(), 0);
    assert!(!pair.here.has_room(pair.now), "it lets go a little later");
    pair.now = pair.here.room_grows_at().unwrap();
    assert!(pair.here.has_room(pair.now));
}

#[test]
fn a_stream_whose_last_frame_is_ours_counts_as_long() {
    let mut pair = Pair::with(Limits {
        streams_max: 1,
        ..Limits::default()
    });
    let stream = pair.open(b"x");
    pair.send(&[fin(stream.get())]);
    pair.here.end_in_order(stream, pair.now);
    assert_eq!(pair.frames(), [fin(stream.get())]);
    assert_eq!(pair.here.stream_count(), 0);
    assert!(!pair.here.has_room(pair.now));
    pair.now = pair.here.room_grows_at().unwrap();
    assert!(pair.here.has_room(pair.now));
}

#[test]
fn towards_an_end_of_ours_every_stream_is_free_at_once() {
    let mut pair = Pair::with(Limits {
        streams_max: 1,
        ..Limits::for_ours()
    });
    for round in 0..10 {
        let stream = pair.open(b"x");
        if round % 2 == 0 {
            pair.here.release(stream, pair.now);
        } else {
            pair.send(&[fin(stream.get())]);
            pair.here.end_in_order(stream, pair.now);
        }
        pair.frames();
        assert!(pair.here.has_room(pair.now), "round {round}");
    }
}

#[test]
fn streams_at_rest_make_room_and_those_in_use_do_not() {
    let mut pair = Pair::with(Limits {
        streams_max: 3,
        ..Limits::default()
    });
    let [first, second, busy] = [(); 3].map(|()| pair.open(b"x"));
    assert!(pair.here.rest(first) && pair.here.rest(second));
    assert!(pair.here.resume(first), "its user wants it again");
    assert!(pair.here.rest(first));
    // The least recently used idle stream is ended. Its place becomes available when the peer has finished it too.
    let full = pair.here.open(Bytes::from_static(b"x"), pair.now);
    assert_eq!(full, Err(OpenRefused::Full));
    assert_eq!(pair.frames(), [fin(second.get())]);
    assert!(!pair.here.resume(second));
    assert!(pair.here.resume(busy));
    pair.send(&[fin(second.get())]);
    pair.now = pair.here.room_grows_at().unwrap();
    pair.open(b"x");
    assert!(pair.here.resume(first));
    // A stream that the peer ended, or sent data on, cannot be reused.
    pair.send(&[data(busy.get(), b"?")]);
    assert!(!pair.here.rest(busy));
    pair.here.release(first, pair.now);
    assert!(!pair.here.rest(first));
}

#[test]
fn so_does_a_reader_whose_peer_has_long_finished() {
    let mut pair = Pair::with(Limits {
        held_bytes_max: 50_000,
        burst_bytes_max: 50_000,
        ..Limits::default()
    });
    let stream = pair.open(b"x");
    pair.here.finish(stream).unwrap();
    pair.send(&[data(2, &[1; 60_000]), fin(2)]);
    pair.now += Duration::from_secs(10);
    pair.frames();
    pair.here.expire(pair.now);
    assert!(pair.here.wants_input());
    assert!(pair.read(stream).is_err());
    assert_eq!(pair.frames(), [], "the peer has nothing to be told");
}

#[test]
fn many_slow_readers_squeeze_their_own_senders() {
    let mut pair = Pair::server();
    let slow: Vec<StreamId> = (0..24).map(|_| pair.open(b"x")).collect();
    for stream in &slow {
        pair.send(&[data(stream.get(), &vec![1; WINDOW_BYTES as usize])]);
    }
    assert!(pair.here.wants_input());
    // With 6 of 8 MiB unread, reading half a window returns no credit, and reading all of it returns a part.
    let half = WINDOW_BYTES as usize / 2;
    for expected in [0, 1] {
        let read = pair.here.read(slow[0], half, pair.now).unwrap();
        assert!(matches!(read, Read::Data(piece) if piece.len() == half));
        let credits = pair.frames();
        assert_eq!(credits.len(), expected);
        assert!(credits.iter().all(|frame| matches!(
            frame,
            Frame::WndInc { increment, .. } if *increment < WINDOW_BYTES / 2
        )));
    }
    // A fast reader still gets all the credit that it needs, in smaller steps.
    let quick = pair.open(b"x");
    let mut credit = WINDOW_BYTES as usize;
    for _ in 0..100 {
        let length = credit.min(40_000);
        credit -= length;
        pair.send(&[data(quick.get(), &vec![2; length])]);
        assert_eq!(pair.drain(quick).len(), length);
        for frame in pair.frames() {
            if let Frame::WndInc { increment, .. } = frame {
                credit += increment as usize;
            }
        }
        assert!(credit > 0, "the quick reader's sender stalls");
    }
}

#[test]
fn a_peer_that_reads_no_answers_is_not_read_either() {
    let mut pair = Pair::server();
    let mut sent = 0;
    while pair.here.wants_input() {
        pair.send(&[data(3, b"x")]);
        sent += 1;
        assert!(sent <= 4096);
    }
    pair.bytes();
    assert!(pair.here.wants_input());
}

#[test]
fn the_seventeenth_unknown_frame_is_the_last() {
    let unknown = [0, 0, 1, 0x70, 0, 0, 0, 0, 9];
    let mut pair = Pair::server();
    for _ in 0..16 {
        pair.send_bytes(&unknown);
        assert!(pair.here.ending().is_none());
    }
    pair.send_bytes(&unknown);
    assert_eq!(pair.violated(), Some(ErrorCode::PROTOCOL));
}

#[test]
fn a_goodbye_with_any_text_ends_everything_and_leaves_what_was_received() {
    let mut pair = Pair::server();
    let stream = pair.open(b"x");
    assert_eq!(pair.read(stream), Ok(Read::Wait));
    let mut garbage = vec![0xFF; 70_000];
    garbage[3] = 0;
    pair.send(&[
        data(2, b"last words"),
        Frame::GoAway {
            last: 0x7FFF_FFFF,
            code: ErrorCode(0xDEAD_BEEF),
            text: garbage.into(),
        },
        data(2, b"behind it"),
    ]);
    let Some(Ending::GoneAway { code, text }) = pair.here.ending() else {
        panic!("{:?}", pair.here.ending());
    };
    assert_eq!(code.name(), "unknown error");
    assert!(text.len() <= 1024);
    assert_eq!(pair.here.next_event(), Some(Event::Readable(stream)));
    assert_eq!(pair.here.next_event(), Some(Event::Ended));
    assert_eq!(pair.drain(stream), b"last words");
    assert_eq!(pair.read(stream), Err(Broken::Gone));
    assert_eq!(pair.here.capacity(stream), Err(Broken::Gone));
    assert_eq!(
        pair.here.open(Bytes::new(), pair.now),
        Err(OpenRefused::Ended)
    );
    pair.here.release(stream, pair.now);
    assert_eq!(pair.here.stream_count(), 0);
    assert_eq!(pair.frames(), []);
}

#[test]
fn a_lost_connection_wakes_everybody_and_keeps_clean_ends_clean() {
    let mut pair = Pair::server();
    let (clean, cut) = (pair.open(b"x"), pair.open(b"x"));
    pair.send(&[data(2, b"all"), fin(2), data(4, b"a part")]);
    pair.here.lost();
    pair.here.lost();
    assert_eq!(pair.here.ending(), Some(&Ending::Lost));
    assert_eq!(pair.drain(clean), b"all");
    assert_eq!(pair.read(clean), Ok(Read::End));
    assert_eq!(pair.drain(cut), b"a part");
    assert_eq!(pair.read(cut), Err(Broken::Gone));
    assert_eq!(pair.frames(), []);
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
