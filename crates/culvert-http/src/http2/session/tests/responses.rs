//! Responses: frames, windows, and the order in which streams write.

use super::*;

#[test]
fn answers_keep_to_the_windows_of_the_client() {
    let mut talk = Talk::new();
    let settings = frame(frame::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 10]);
    talk.hears(&settings).unwrap();
    talk.asks(1, WHOLE);
    talk.session.send_head(1, &ok(), false);
    assert_eq!(talk.window(1), Poll::Ready(Ok(10)));
    talk.session
        .send_data(1, Bytes::from_static(&[1; 10]), false);
    assert_eq!(talk.window(1), Poll::Pending);
    // The smaller initial window makes the stream's window negative, so updates must first fill the
    // deficit.
    talk.hears(&frame(frame::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 4]))
        .unwrap();
    talk.hears(&frame(frame::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 6]))
        .unwrap();
    assert_eq!(talk.window(1), Poll::Pending);
    talk.hears(&frame(frame::WINDOW_UPDATE, 0, 1, &[0, 1, 0, 0]))
        .unwrap();
    // The connection's window still has the rest of its initial size.
    talk.said();
    let mut sent = 10;
    while let Poll::Ready(Ok(room)) = talk.window(1) {
        talk.session.send_data(1, Bytes::from(vec![1; room]), false);
        sent += room;
        talk.said();
    }
    assert_eq!(sent, 65_535);
    talk.hears(&frame(frame::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))
        .unwrap();
    assert_eq!(talk.window(1), Poll::Ready(Ok(1)));
}

#[test]
fn an_answer_is_its_head_its_data_and_its_end() {
    let mut talk = Talk::new();
    talk.asks(1, WHOLE);
    talk.session.send_head(1, &ok(), false);
    talk.session
        .send_data(1, Bytes::from_static(b"hello"), false);
    let mut trailers = HeaderMap::new();
    trailers.insert("x", http::HeaderValue::from_static("y"));
    talk.session.send_trailers(1, &trailers);
    let said = talk.said();
    let shape: Vec<_> = said.iter().map(|it| (it.0, it.1, it.2)).collect();
    assert_eq!(
        shape,
        [
            (frame::HEADERS, frame::END_HEADERS, 1),
            (frame::DATA, 0, 1),
            (frame::HEADERS, frame::END_HEADERS | frame::END_STREAM, 1),
        ]
    );
    // The table size of zero is announced once. Connection-specific fields of HTTP/1 are not sent.
    assert_eq!(said[0].3[..2], [0x20, 0x88]);
    let mut names = Vec::new();
    let block = Bytes::from(said[0].3.clone());
    Decoder::default()
        .read(&block, |field, _, _| {
            if let hpack::Field::Plain(name, _) = field {
                names.push(name.to_string());
            }
        })
        .unwrap();
    assert_eq!(names, ["server"]);
    assert!(talk.session.streams.is_empty());
    // A field section that is longer than a frame continues in further frames.
    talk.asks(3, WHOLE);
    let mut long = ok();
    let value = http::HeaderValue::from_str(&"\u{20ac}".repeat(12_000)).unwrap();
    long.headers.insert("long", value);
    long.status = StatusCode::NOT_FOUND;
    talk.session.send_head(3, &long, true);
    let shape: Vec<_> = talk.said().iter().map(|it| (it.0, it.1, it.2)).collect();
    assert_eq!(
        shape,
        [
            (frame::HEADERS, frame::END_STREAM, 3),
            (frame::CONTINUATION, 0, 3),
            (frame::CONTINUATION, frame::END_HEADERS, 3),
        ]
    );
}

#[test]
fn those_that_wait_for_room_have_it_in_turn() {
    let mut talk = Talk::new();
    talk.hears(&frame(frame::WINDOW_UPDATE, 0, 0, &[0, 0x10, 0, 0]))
        .unwrap();
    for stream in [1, 3] {
        talk.asks(stream, WHOLE);
        talk.session.send_head(stream, &ok(), false);
    }
    let room = |window| match window {
        Poll::Ready(Ok(room)) => room,
        other => panic!("there is room: {other:?}"),
    };
    let first = room(talk.window(1));
    talk.session
        .send_data(1, Bytes::from(vec![1; first]), false);
    assert_eq!(talk.window(3), Poll::Pending);
    assert!(!talk.session.wake_next(), "nothing was sent yet");
    talk.said();
    assert!(talk.session.wake_next());
    assert!(!talk.session.wake_next());
    assert!(room(talk.window(3)) > 0);
}
