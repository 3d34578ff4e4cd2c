//! Request bodies: windows, and how much is buffered.

use super::*;

#[test]
fn a_body_is_held_to_its_windows_and_they_open_as_it_is_taken() {
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    let full = vec![7; frame::PAYLOAD_BYTES_MAX];
    for _ in 0..4 {
        talk.hears(&frame(frame::DATA, 0, 1, &full)).unwrap();
    }
    assert!(talk.said().is_empty(), "nothing was taken");
    // One byte more than the stream's window.
    talk.hears(&frame(frame::DATA, 0, 1, &[7])).unwrap();
    assert_eq!(talk.resets(), [(1, Reason::FLOW_CONTROL_ERROR)]);
    assert_eq!(talk.data(1), Poll::Ready(Some(Err(StreamClosed))));

    talk.asks(3, OPENING);
    for _ in 0..4 {
        talk.hears(&frame(frame::DATA, 0, 3, &full)).unwrap();
    }
    let mut taken = 0;
    while let Poll::Ready(Some(Ok(data))) = talk.data(3) {
        taken += data.len();
    }
    assert_eq!(taken, 4 * full.len());
    let opened: u32 = talk
        .said()
        .iter()
        .filter(|it| (it.0, it.2) == (frame::WINDOW_UPDATE, 3))
        .map(|it| frame::number(&it.3).unwrap())
        .sum();
    assert_eq!(opened as usize, taken);
    // The connection's window is enlarged too, once half of it was read.
    let mut opened = 0;
    for _ in 0..64 {
        talk.hears(&frame(frame::DATA, 0, 3, &full)).unwrap();
        assert!(talk.data(3).is_ready());
        let said = talk.said();
        let of_all = said
            .iter()
            .filter(|it| (it.0, it.2) == (frame::WINDOW_UPDATE, 0));
        opened += of_all.map(|it| frame::number(&it.3).unwrap()).sum::<u32>();
    }
    assert!(opened >= 1 << 20, "{opened}");
}

#[test]
fn small_pieces_of_a_body_are_gathered() {
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    let large = vec![b'l'; COPIED_BYTES_MAX + 1];
    let mut sent = Vec::new();
    for turn in 0..300u16 {
        let piece = match turn % 100 {
            50 => large.clone(),
            _ => turn.to_be_bytes().to_vec(),
        };
        talk.hears(&frame(frame::DATA, 0, 1, &piece)).unwrap();
        sent.extend(piece);
    }
    let (mut received, mut pieces) = (Vec::new(), 0);
    while let Poll::Ready(Some(Ok(data))) = talk.data(1) {
        received.extend_from_slice(&data);
        pieces += 1;
    }
    assert!(received == sent);
    assert_eq!(pieces, 7);
}

#[test]
fn a_body_nobody_reads_takes_no_more_than_its_window() {
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    let full = vec![7; frame::PAYLOAD_BYTES_MAX];
    talk.hears(&frame(frame::DATA, 0, 1, &full)).unwrap();
    talk.session.stop_reading(1);
    for _ in 0..3 {
        talk.hears(&frame(frame::DATA, 0, 1, &full)).unwrap();
    }
    // The same for a request with a response before its end, which was reset because it continued
    // too long.
    talk.asks(3, OPENING);
    talk.session.send_head(3, &ok(), true);
    talk.session.close(3, Reason::INTERNAL_ERROR, talk.now);
    assert!(talk.resets().is_empty());
    talk.hears(&frame(frame::DATA, 0, 3, &full)).unwrap();
    let deadline = talk.session.closing_deadline().unwrap();
    talk.session.reset_closing(deadline);
    assert_eq!(talk.resets(), [(3, Reason::NO_ERROR)]);
    for _ in 0..3 {
        talk.hears(&frame(frame::DATA, 0, 3, &full)).unwrap();
    }
    let more = talk.hears(&frame(frame::DATA, 0, 3, &[7]));
    assert_eq!(
        more,
        Err(ConnectionError::Protocol(Reason::FLOW_CONTROL_ERROR))
    );
}
