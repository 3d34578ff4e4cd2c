//! GOAWAY, graceful and immediate.

use super::*;

#[test]
fn a_connection_parts_when_its_client_has_heard() {
    let mut talk = Talk::new();
    talk.asks(1, WHOLE);
    talk.session.send_graceful_goaway();
    let said = talk.said();
    assert_eq!(
        (said[0].0, said[0].3[..8].to_vec()),
        (frame::GOAWAY, vec![0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0])
    );
    assert_eq!(said[1].0, frame::PING);
    // Requests that the client had started meanwhile are served.
    talk.asks(3, WHOLE);
    talk.hears(&frame(frame::PING, frame::ACK, 0, &said[1].3))
        .unwrap();
    let said = talk.said();
    assert_eq!(
        (said[0].0, said[0].3[..8].to_vec()),
        (frame::GOAWAY, vec![0, 0, 0, 3, 0, 0, 0, 0])
    );
    // Requests that it starts now are ignored without a reply.
    talk.asks(5, OPENING);
    talk.hears(&frame(frame::DATA, frame::END_STREAM, 5, b"x"))
        .unwrap();
    assert!(talk.said().is_empty());
    assert_eq!(talk.asked.len(), 2);
    for stream in [1, 3] {
        assert!(!talk.session.is_done());
        talk.session.send_head(stream, &ok(), true);
    }
    assert!(talk.session.is_done());
}

#[test]
fn a_later_goaway_names_no_higher_stream() {
    let last = |said: &[(u8, u8, u32, Vec<u8>)]| -> Vec<(u32, u32)> {
        let ends = said.iter().filter(|it| it.0 == frame::GOAWAY);
        let number = |bytes: &[u8]| frame::number(bytes).unwrap();
        ends.map(|it| (number(&it.3), number(&it.3[4..]))).collect()
    };
    let mut talk = Talk::new();
    talk.asks(1, OPENING);
    talk.session.send_graceful_goaway();
    talk.session.send_final_goaway();
    assert_eq!(last(&talk.said()), [(LAST_STREAM, 0), (1, 0)]);
    // A request that arrived in between is not served, whatever frames follow.
    talk.asks(3, WHOLE);
    talk.asks(9, WHOLE);
    talk.session.close_connection(Reason::PROTOCOL_ERROR);
    talk.session.close_connection(Reason::INTERNAL_ERROR);
    assert_eq!(last(&talk.said()), [(1, 1)]);
}

#[test]
fn streams_end_for_the_reason_of_their_connection() {
    for (reason, expected) in [
        (Reason::PROTOCOL_ERROR, Reason::PROTOCOL_ERROR),
        (Reason::ENHANCE_YOUR_CALM, Reason::ENHANCE_YOUR_CALM),
        (Reason::NO_ERROR, Reason::CANCEL),
    ] {
        let mut talk = Talk::new();
        talk.asks(1, OPENING);
        talk.asks(3, WHOLE);
        talk.session.close_connection(reason);
        for stream in [1, 3] {
            let internal = Reason::INTERNAL_ERROR;
            talk.session.close(stream, internal, talk.now);
        }
        let said = talk.said();
        assert_eq!(said[0].0, frame::GOAWAY);
        let resets = said[1..].iter().map(|it| (it.2, it.3.clone()));
        let code = expected.0.to_be_bytes().to_vec();
        assert_eq!(
            resets.collect::<Vec<_>>(),
            [(1, code.clone()), (3, code)],
            "{reason:?}"
        );
    }
}
