//! Streams: limits of their number and of their field sections, and how they end.

use super::*;

#[test]
fn a_field_section_may_count_so_much_and_no_more() {
    // Names, values and 32 for each field: 175 for the four pseudo-headers, 133 for each of these.
    let value = "x".repeat(100);
    let (count, rest) = ((LIST_BYTES_MAX - 175) / 133, (LIST_BYTES_MAX - 175) % 133);
    for (last, is_good) in [(rest - 33, true), (rest - 32, false)] {
        let last = "x".repeat(last);
        let mut fields = vec![("x", &value[..]); count];
        fields.push(("x", &last));
        let block = section(&fields);
        let mut talk = Talk::new();
        let (first, others) = block.split_at(frame::PAYLOAD_BYTES_MAX);
        talk.hears(&frame(frame::HEADERS, frame::END_STREAM, 1, first))
            .unwrap();
        let mut pieces = others.chunks(frame::PAYLOAD_BYTES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() {
                frame::END_HEADERS
            } else {
                0
            };
            talk.hears(&frame(frame::CONTINUATION, flags, 1, piece))
                .unwrap();
        }
        assert_eq!(talk.asked.len(), usize::from(is_good));
    }
}

#[test]
fn streams_have_a_number_and_those_that_are_over_make_room() {
    let mut talk = Talk::new();
    for stream in [1, 3, 5, 7] {
        talk.asks(stream, WHOLE);
    }
    assert_eq!(talk.resets(), [(7, Reason::REFUSED_STREAM)]);
    talk.hears(&frame(frame::RST_STREAM, 0, 1, &[0, 0, 0, 8]))
        .unwrap();
    talk.asks(9, WHOLE);
    assert_eq!(talk.asked.len(), 4);
    let cx = Context::from_waker(Waker::noop());
    assert_eq!(talk.session.poll_closed(1, &cx), Poll::Ready(StreamClosed));
    assert_eq!(talk.session.poll_closed(9, &cx), Poll::Pending);
}

#[test]
fn a_stream_that_was_answered_waits_for_its_request_to_end() {
    let ends = [
        frame(frame::DATA, frame::END_STREAM, 1, b"x"),
        frame(frame::HEADERS, WHOLE, 1, &of(&[("x", "y")])),
        frame(frame::RST_STREAM, 0, 1, &[0; 4]),
    ];
    for end in ends {
        let mut talk = Talk::new();
        talk.asks(1, OPENING);
        talk.session.send_head(1, &ok(), true);
        talk.session.close(1, Reason::INTERNAL_ERROR, talk.now);
        talk.hears(&end).unwrap();
        assert!(talk.session.streams.is_empty());
        assert!(talk.resets().is_empty());
    }
    // Other streams need not wait for that.
    let mut talk = Talk::new();
    for stream in [1, 3, 5] {
        talk.asks(stream, OPENING);
    }
    talk.session.send_head(3, &ok(), true);
    talk.session.close(3, Reason::INTERNAL_ERROR, talk.now);
    talk.said();
    talk.asks(7, WHOLE);
    assert_eq!(talk.resets(), [(3, Reason::NO_ERROR)]);
    assert_eq!(talk.asked.len(), 4);
}
