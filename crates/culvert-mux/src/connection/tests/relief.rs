//! Bounded memory: queues, slow readers and which stream is reset for the others.

use super::*;

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
fn streams_at_rest_make_room_and_those_in_use_do_not() {
    let mut pair = Pair::with(Limits {
        streams_max: 3,
        ..Limits::default()
    });
    let [first, second, busy] = [(); 3].map(|()| pair.open(b"x"));
    assert!(pair.here.set_idle(first) && pair.here.set_idle(second));
    assert!(pair.here.resume(first), "its user wants it again");
    assert!(pair.here.set_idle(first));
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
    assert!(!pair.here.set_idle(busy));
    pair.here.release(first, pair.now);
    assert!(!pair.here.set_idle(first));
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
    assert_eq!(pair.frames(), [], "the peer has nothing to be reported");
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
