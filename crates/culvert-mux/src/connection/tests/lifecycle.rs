//! Streams open, finish, are reset and are free again.

use super::*;

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
    assert!(!pair.here.has_capacity(pair.now));
    pair.now += Duration::from_secs(1);
    assert!(pair.here.has_capacity(pair.now));
}

#[test]
fn streams_that_nobody_takes_are_refused_after_the_first() {
    let mut pair = Pair::with(Limits::unauthenticated());
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
fn streams_that_are_reset_before_they_are_accepted_leave_the_others_in_order() {
    let mut pair = Pair::with(Limits {
        accept_max: 300,
        ..Limits::default()
    });
    let numbers: Vec<u32> = (0..300).map(|n| 2 * n + 3).collect();
    let opened: Vec<_> = numbers.iter().map(|n| syn(*n, b"")).collect();
    pair.send(&opened);
    let is_reset = |n: &&u32| n.is_multiple_of(3);
    for number in numbers.iter().rev().filter(is_reset) {
        pair.send(&[rst(*number, ErrorCode::STREAM_CANCELLED)]);
        // Nothing remains of it.
        pair.send(&[rst(*number, ErrorCode::STREAM_CANCELLED)]);
        pair.here.check();
    }
    // Its number may be used again, and then it is the last.
    pair.send(&[syn(3, b"again")]);
    let left = numbers.iter().filter(|n| !is_reset(n)).chain([&3]);
    for number in left {
        assert_eq!(pair.here.accept(), Some(id(*number)));
        pair.here.check();
    }
    assert_eq!(pair.here.accept(), None);
    pair.send(&[rst(5, ErrorCode::STREAM_CANCELLED)]);
    pair.here.check();
    assert!(pair.read(id(5)).is_err());
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
fn a_stream_ended_in_good_order_is_free_soon_after_the_peer_has_finished_it() {
    let mut pair = Pair::with(Limits {
        streams_max: 1,
        ..Limits::default()
    });
    for round in 0..10 {
        let stream = pair.open(b"x");
        pair.here.end_in_order(stream, pair.now);
        assert_eq!(pair.frames(), [fin(stream.get())]);
        assert!(!pair.here.has_capacity(pair.now), "the peer has it still");
        pair.send(&[fin(stream.get())]);
        assert!(
            !pair.here.has_capacity(pair.now),
            "the agent's task has it still"
        );
        pair.now = pair.here.room_grows_at().unwrap();
        assert!(pair.here.has_capacity(pair.now), "round {round}");
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
    assert!(
        !pair.here.has_capacity(pair.now),
        "it lets go a little later"
    );
    pair.now = pair.here.room_grows_at().unwrap();
    assert!(pair.here.has_capacity(pair.now));
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
    assert!(!pair.here.has_capacity(pair.now));
    pair.now = pair.here.room_grows_at().unwrap();
    assert!(pair.here.has_capacity(pair.now));
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
        assert!(pair.here.has_capacity(pair.now), "round {round}");
    }
}
