//! The 147 cases of h2spec, by its names: `generic`, `http2` and `hpack`, a section and a number each. The
//! bytes are our own.

use super::cases::*;
use super::*;

type Case = (&'static str, Vec<u8>, Expect);

/// Cases of clients that follow the protocol.
fn generic() -> Vec<Case> {
    use Expect::{Answers, Goes, Says};
    let opening = headers(frame::END_STREAM, 1, &section(&[]));
    let piece = of(&[("x", "y")]);
    let with_priority = [&[0, 0, 0, 0, 255][..], &section(&[])].concat();
    let padded = [&[3][..], &section(&[]), &[0; 3]].concat();
    let coded_name = [0x87, 0xb5, 0x05, 0xb1, 0x61, 0xcc, 0x5a, 0x93];
    let coded_value = [0x84, 0x9c, 0x48, 0xac, 0xa4];
    let name = b"\x06x-test";
    let value = b"\x06h2spec";
    vec![
        ("generic/2/1", priority(1, 0, 255), Goes),
        ("generic/2/2", many(&[&get(1), &window(1, 100)]), Answers(1)),
        (
            "generic/2/3",
            many(&[&get(1), &priority(1, 0, 255)]),
            Answers(1),
        ),
        ("generic/2/4", many(&[&get(1), &reset(1, 8)]), Goes),
        ("generic/2/5", many(&[&get(1), &priority(1, 0, 255)]), Goes),
        (
            "generic/3.1/1",
            many(&[&post(1, &[]), &data(1, 1, b"test")]),
            Answers(1),
        ),
        (
            "generic/3.1/2",
            many(&[&post(1, &[]), &data(0, 1, b"test"), &data(1, 1, b"test")]),
            Answers(1),
        ),
        (
            "generic/3.1/3",
            many(&[
                &post(1, &[]),
                &data(1 | frame::PADDED, 1, b"\x06test\0\0\0\0\0\0"),
            ]),
            Answers(1),
        ),
        ("generic/3.2/1", get(1), Answers(1)),
        (
            "generic/3.2/2",
            headers(WHOLE | frame::PADDED, 1, &padded),
            Answers(1),
        ),
        (
            "generic/3.2/3",
            headers(WHOLE | frame::WITH_PRIORITY, 1, &with_priority),
            Answers(1),
        ),
        (
            "generic/3.3/1",
            many(&[&priority(1, 0, 0), &get(1)]),
            Answers(1),
        ),
        (
            "generic/3.3/2",
            many(&[&priority(1, 0, 255), &get(1)]),
            Answers(1),
        ),
        (
            "generic/3.3/3",
            many(&[&priority(3, 1, 255), &get(1)]),
            Answers(1),
        ),
        (
            "generic/3.3/4",
            many(&[&priority(3, 0x8000_0001, 255), &get(1)]),
            Answers(1),
        ),
        (
            "generic/3.3/5",
            many(&[&priority(7, 0, 255), &get(5)]),
            Answers(1),
        ),
        ("generic/3.4/1", many(&[&post(1, &[]), &reset(1, 8)]), Goes),
        (
            "generic/3.5/1",
            settings(&[(3, 100)]),
            Says(frame::SETTINGS, frame::ACK, &[]),
        ),
        (
            "generic/3.7/1",
            frame(frame::PING, 0, 0, b"h2spec  "),
            Says(frame::PING, frame::ACK, b"h2spec  "),
        ),
        ("generic/3.8/1", frame(frame::GOAWAY, 0, 0, &[0; 8]), Goes),
        ("generic/3.9/1", many(&[&window(0, 1), &get(1)]), Answers(1)),
        ("generic/3.9/2", many(&[&get(1), &window(1, 1)]), Answers(1)),
        (
            "generic/3.10/1",
            many(&[&opening, &continuation(frame::END_HEADERS, 1, &piece)]),
            Answers(1),
        ),
        (
            "generic/3.10/2",
            many(&[
                &opening,
                &continuation(0, 1, &piece),
                &continuation(frame::END_HEADERS, 1, &piece),
            ]),
            Answers(1),
        ),
        ("generic/4/1", get(1), Answers(1)),
        (
            "generic/4/2",
            headers(
                WHOLE,
                1,
                &of(&[
                    (":method", "HEAD"),
                    (":scheme", "https"),
                    (":path", "/"),
                    (":authority", "a.example"),
                ]),
            ),
            Answers(1),
        ),
        (
            "generic/4/3",
            many(&[&post(1, &[]), &data(1, 1, b"test")]),
            Answers(1),
        ),
        (
            "generic/4/4",
            many(&[
                &post(1, &[("trailer", "x-test")]),
                &data(0, 1, b"test"),
                &headers(WHOLE, 1, &of(&[("x-test", "ok")])),
            ]),
            Answers(1),
        ),
        // 58: `user-agent`, without a value.
        ("generic/5/1", behind(&[0xBA]), Answers(1)),
        ("generic/5/2", behind(&many(&[&[0x7A], value])), Answers(1)),
        (
            "generic/5/3",
            behind(&many(&[&[0x7A], &coded_value])),
            Answers(1),
        ),
        (
            "generic/5/4",
            behind(&many(&[&[0x40], name, value])),
            Answers(1),
        ),
        (
            "generic/5/5",
            behind(&many(&[&[0x40], &coded_name, &coded_value])),
            Answers(1),
        ),
        (
            "generic/5/6",
            behind(&many(&[&[0x0F, 0x2B], value])),
            Answers(1),
        ),
        (
            "generic/5/7",
            behind(&many(&[&[0x0F, 0x2B], &coded_value])),
            Answers(1),
        ),
        (
            "generic/5/8",
            behind(&many(&[&[0x00], name, value])),
            Answers(1),
        ),
        (
            "generic/5/9",
            behind(&many(&[&[0x00], &coded_name, &coded_value])),
            Answers(1),
        ),
        (
            "generic/5/10",
            behind(&many(&[&[0x1F, 0x2B], value])),
            Answers(1),
        ),
        (
            "generic/5/11",
            behind(&many(&[&[0x1F, 0x2B], &coded_value])),
            Answers(1),
        ),
        (
            "generic/5/12",
            behind(&many(&[&[0x10], name, value])),
            Answers(1),
        ),
        (
            "generic/5/13",
            behind(&many(&[&[0x10], &coded_name, &coded_value])),
            Answers(1),
        ),
        (
            "generic/5/14",
            headers(WHOLE, 1, &many(&[&[0x21], &section(&[])])),
            Answers(1),
        ),
        (
            "generic/5/15",
            headers(WHOLE, 1, &many(&[&[0x20, 0x3F, 0x60], &section(&[])])),
            Answers(1),
        ),
    ]
}

/// Field sections with compression errors.
fn hpack() -> Vec<Case> {
    use Expect::Connection;
    let broken = Connection;
    vec![
        ("hpack/2.3.3/1", behind(&[0xC6]), broken(&[COMPRESSION])),
        (
            "hpack/2.3.3/2",
            behind(b"\x7F\x07\x05empty"),
            broken(&[COMPRESSION]),
        ),
        (
            "hpack/4.2/1",
            behind(&[0x3F, 0xE1, 0x1F]),
            broken(&[COMPRESSION]),
        ),
        // `test` as a value, with padding longer than 7 bits.
        (
            "hpack/5.2/1",
            behind(b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"),
            broken(&[COMPRESSION]),
        ),
        (
            "hpack/5.2/2",
            behind(b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"),
            broken(&[COMPRESSION]),
        ),
        (
            "hpack/5.2/3",
            behind(b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f"),
            broken(&[COMPRESSION]),
        ),
        ("hpack/6.1/1", behind(&[0x80]), broken(&[COMPRESSION])),
        (
            "hpack/6.3/1",
            headers(WHOLE, 1, &many(&[&[0x3F, 0xE2, 0x1F], &section(&[])])),
            broken(&[COMPRESSION]),
        ),
    ]
}

/// Frames and streams.
fn frames() -> Vec<Case> {
    use Expect::{Answers, Connection, Goes, Says, Stream};
    let unfinished = headers(frame::END_STREAM, 1, &section(&[]));
    let piece = of(&[("x", "y")]);
    let whole = vec![b'x'; 16 << 10];
    let longer = vec![b'x'; (16 << 10) + 1];
    let itself = [&[0, 0, 0, 1, 255][..], &section(&[])].concat();
    let more_streams: Vec<u8> = (0..101).flat_map(|turn| post(turn * 2 + 1, &[])).collect();
    vec![
        ("http2/4.1/1", frame(0xFF, 0, 0, &[0; 8]), Goes),
        (
            "http2/4.1/2",
            frame(frame::PING, 0xFE, 0, b"flagged!"),
            Says(frame::PING, frame::ACK, b"flagged!"),
        ),
        (
            "http2/4.1/3",
            frame(frame::PING, 0, 0x8000_0000, b"reserved"),
            Says(frame::PING, frame::ACK, b"reserved"),
        ),
        (
            "http2/4.2/1",
            many(&[&post(1, &[]), &data(1, 1, &whole)]),
            Answers(1),
        ),
        (
            "http2/4.2/2",
            many(&[&post(1, &[]), &data(1, 1, &longer)]),
            Stream(&[SIZE]),
        ),
        (
            "http2/4.2/3",
            headers(WHOLE, 1, &longer),
            Connection(&[SIZE]),
        ),
        (
            "http2/4.3/1",
            headers(WHOLE, 1, &[0x40]),
            Connection(&[COMPRESSION]),
        ),
        (
            "http2/4.3/2",
            many(&[&unfinished, &priority(1, 0, 255)]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/4.3/3",
            many(&[&unfinished, &get(3)]),
            Connection(&[PROTOCOL]),
        ),
        ("http2/5.1.1/1", get(2), Connection(&[PROTOCOL])),
        // A stream identifier that was skipped counts as closed (RFC 9113 5.1.1).
        (
            "http2/5.1.1/2",
            many(&[&get(5), &get(3)]),
            Connection(&[PROTOCOL, CLOSED]),
        ),
        (
            "http2/5.1.2/1",
            more_streams,
            Stream(&[PROTOCOL, Reason::REFUSED_STREAM]),
        ),
        ("http2/5.1/1", data(1, 1, b"test"), Connection(&[PROTOCOL])),
        ("http2/5.1/2", reset(1, 8), Connection(&[PROTOCOL])),
        ("http2/5.1/3", window(1, 100), Connection(&[PROTOCOL])),
        (
            "http2/5.1/4",
            continuation(frame::END_HEADERS, 1, &piece),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/5.1/5",
            many(&[&get(1), &data(1, 1, b"test")]),
            Stream(&[CLOSED]),
        ),
        ("http2/5.1/6", many(&[&get(1), &get(1)]), Stream(&[CLOSED])),
        (
            "http2/5.1/7",
            many(&[&get(1), &continuation(frame::END_HEADERS, 1, &piece)]),
            Stream(&[CLOSED, PROTOCOL]),
        ),
        (
            "http2/5.1/8",
            many(&[&post(1, &[]), &reset(1, 8), &data(1, 1, b"test")]),
            Stream(&[CLOSED]),
        ),
        (
            "http2/5.1/9",
            many(&[&post(1, &[]), &reset(1, 8), &get(1)]),
            Stream(&[CLOSED]),
        ),
        (
            "http2/5.1/10",
            many(&[
                &post(1, &[]),
                &reset(1, 8),
                &continuation(frame::END_HEADERS, 1, &piece),
            ]),
            Stream(&[CLOSED, PROTOCOL]),
        ),
        (
            "http2/5.3.1/1",
            headers(WHOLE | frame::WITH_PRIORITY, 1, &itself),
            Stream(&[PROTOCOL]),
        ),
        ("http2/5.3.1/2", priority(1, 1, 255), Stream(&[PROTOCOL])),
        (
            "http2/5.4.1/1",
            frame(frame::PING, 0, 3, &[0; 8]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/5.4.1/2",
            many(&[&get(1), &frame(frame::PING, 0, 3, &[0; 8])]),
            Connection(&[PROTOCOL]),
        ),
        ("http2/5.5/1", frame(0xFF, 0, 0, b"unknown"), Goes),
        (
            "http2/5.5/2",
            many(&[&unfinished, &frame(0xFF, 0, 0, b"unknown")]),
            Connection(&[PROTOCOL]),
        ),
        ("http2/6.1/1", data(1, 0, b"test"), Connection(&[PROTOCOL])),
        (
            "http2/6.1/2",
            many(&[&get(1), &data(1, 1, b"test")]),
            Stream(&[CLOSED]),
        ),
        (
            "http2/6.1/3",
            many(&[&post(1, &[]), &data(1 | frame::PADDED, 1, b"\x17test")]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.2/1",
            many(&[&unfinished, &priority(1, 0, 255)]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.2/2",
            many(&[&unfinished, &get(3)]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.2/3",
            headers(WHOLE, 0, &section(&[])),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.2/4",
            headers(
                WHOLE | frame::PADDED,
                1,
                &[&[200][..], &section(&[])].concat(),
            ),
            Stream(&[PROTOCOL]),
        ),
        ("http2/6.3/1", priority(0, 1, 255), Connection(&[PROTOCOL])),
        (
            "http2/6.3/2",
            many(&[&get(1), &frame(frame::PRIORITY, 0, 1, &[0x80, 0, 0, 1])]),
            Stream(&[SIZE]),
        ),
        ("http2/6.4/1", reset(0, 8), Connection(&[PROTOCOL])),
        ("http2/6.4/2", reset(1, 8), Connection(&[PROTOCOL])),
        (
            "http2/6.4/3",
            many(&[&get(1), &frame(frame::RST_STREAM, 0, 1, &[0; 3])]),
            Stream(&[SIZE]),
        ),
        (
            "http2/6.10/1",
            many(&[
                &unfinished,
                &continuation(0, 1, &piece),
                &continuation(frame::END_HEADERS, 1, &piece),
            ]),
            Answers(1),
        ),
        (
            "http2/6.10/2",
            many(&[
                &unfinished,
                &continuation(0, 1, &piece),
                &data(1, 1, b"test"),
            ]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.10/3",
            many(&[&unfinished, &continuation(frame::END_HEADERS, 0, &piece)]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.10/4",
            many(&[&post(1, &[]), &continuation(frame::END_HEADERS, 1, &piece)]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.10/5",
            many(&[
                &unfinished,
                &continuation(frame::END_HEADERS, 1, &piece),
                &continuation(frame::END_HEADERS, 1, &piece),
            ]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.10/6",
            many(&[
                &post(1, &[]),
                &data(0, 1, b"test"),
                &continuation(frame::END_HEADERS, 1, &piece),
            ]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/7/1",
            frame(frame::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0xFF]),
            Goes,
        ),
        ("http2/7/2", many(&[&post(1, &[]), &reset(1, 0xFF)]), Goes),
    ]
}

/// Streams that are surely closed, which needs a server that responds.
fn closed() -> Vec<Case> {
    use Expect::{Connection, Stream};
    let piece = of(&[("x", "y")]);
    vec![
        (
            "http2/5.1/11",
            many(&[&get(1), &data(1, 1, b"test")]),
            Stream(&[CLOSED]),
        ),
        (
            "http2/5.1/12",
            many(&[&get(1), &get(1)]),
            Connection(&[CLOSED]),
        ),
        (
            "http2/5.1/13",
            many(&[&get(1), &continuation(frame::END_HEADERS, 1, &piece)]),
            Connection(&[CLOSED, PROTOCOL]),
        ),
    ]
}

/// Settings, PING, GOAWAY and windows.
fn connection() -> Vec<Case> {
    use Expect::{Answers, Connection, Data, Goes, Says, Stream};
    let ping = |flags: u8, stream: u32, payload: &[u8]| frame(frame::PING, flags, stream, payload);
    let most = 0x7FFF_FFFF;
    vec![
        (
            "http2/6.5/1",
            frame(frame::SETTINGS, frame::ACK, 0, &[0]),
            Connection(&[SIZE]),
        ),
        (
            "http2/6.5/2",
            frame(frame::SETTINGS, 0, 1, &[0, 3, 0, 0, 0, 100]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.5/3",
            frame(frame::SETTINGS, 0, 0, &[0, 3, 0]),
            Connection(&[SIZE]),
        ),
        (
            "http2/6.5.2/1",
            settings(&[(2, 2)]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.5.2/2",
            settings(&[(4, 1 << 31)]),
            Connection(&[FLOW]),
        ),
        (
            "http2/6.5.2/3",
            settings(&[(5, (1 << 14) - 1)]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.5.2/4",
            settings(&[(5, 1 << 24)]),
            Connection(&[PROTOCOL]),
        ),
        ("http2/6.5.2/5", settings(&[(0xFF, 1)]), Goes),
        (
            "http2/6.5.3/1",
            many(&[&settings(&[(4, 100), (4, 1)]), &get(1)]),
            Data(&[1]),
        ),
        (
            "http2/6.5.3/2",
            settings(&[(2, 0)]),
            Says(frame::SETTINGS, frame::ACK, &[]),
        ),
        (
            "http2/6.7/1",
            ping(0, 0, b"h2spec  "),
            Says(frame::PING, frame::ACK, b"h2spec  "),
        ),
        // A PING with ACK gets no reply; only the next PING does.
        ("http2/6.7/2", ping(frame::ACK, 0, b"invalid "), Answers(0)),
        (
            "http2/6.7/3",
            ping(0, 1, b"h2spec  "),
            Connection(&[PROTOCOL]),
        ),
        ("http2/6.7/4", ping(0, 0, b"h2spec"), Connection(&[SIZE])),
        (
            "http2/6.8/1",
            frame(frame::GOAWAY, 0, 1, &[0; 8]),
            Connection(&[PROTOCOL]),
        ),
        (
            "http2/6.9.1/1",
            many(&[&settings(&[(4, 1)]), &get(1)]),
            Data(&[1]),
        ),
        (
            "http2/6.9.1/2",
            many(&[&window(0, most), &window(0, most)]),
            Connection(&[FLOW]),
        ),
        (
            "http2/6.9.1/3",
            many(&[&post(1, &[]), &window(1, most), &window(1, most)]),
            Stream(&[FLOW]),
        ),
        (
            "http2/6.9.2/1",
            many(&[&settings(&[(4, 0)]), &get(1), &settings(&[(4, 1)])]),
            Data(&[1]),
        ),
        // Three bytes are sent, which exceeds the reduced window by one. Two more bytes of window
        // allow one more byte.
        (
            "http2/6.9.2/2",
            many(&[
                &settings(&[(4, 3)]),
                &get(1),
                &settings(&[(4, 2)]),
                &window(1, 2),
            ]),
            Data(&[3, 1]),
        ),
        (
            "http2/6.9.2/3",
            settings(&[(4, 1 << 31)]),
            Connection(&[FLOW]),
        ),
        ("http2/6.9/1", window(0, 0), Connection(&[PROTOCOL])),
        (
            "http2/6.9/2",
            many(&[&post(1, &[]), &window(1, 0)]),
            Stream(&[PROTOCOL]),
        ),
        (
            "http2/6.9/3",
            frame(frame::WINDOW_UPDATE, 0, 0, &[0; 3]),
            Connection(&[SIZE]),
        ),
    ]
}

/// Requests.
fn messages() -> Vec<Case> {
    use Expect::{Connection, Stream};
    let malformed = || Stream(&[PROTOCOL]);
    let with = |fields: &[(&str, &str)]| headers(WHOLE, 1, &of(fields));
    let method = (":method", "GET");
    let scheme = (":scheme", "https");
    let path = (":path", "/");
    let host = (":authority", "a.example");
    let body = |length: &str, parts: &[Vec<u8>]| {
        many(&[&post(1, &[("content-length", length)]), &parts.concat()])
    };
    vec![
        (
            "http2/8.1/1",
            many(&[
                &post(1, &[]),
                &data(0, 1, b"test"),
                &headers(OPENING, 1, &of(&[("x-test", "ok")])),
            ]),
            malformed(),
        ),
        ("http2/8.1.2/1", get_with(("X-TEST", "ok")), malformed()),
        (
            "http2/8.1.2.1/1",
            with(&[method, scheme, path, host, (":test", "ok")]),
            malformed(),
        ),
        (
            "http2/8.1.2.1/2",
            with(&[method, scheme, path, host, (":status", "200")]),
            malformed(),
        ),
        (
            "http2/8.1.2.1/3",
            many(&[
                &post(1, &[]),
                &data(0, 1, b"test"),
                &headers(WHOLE, 1, &of(&[method])),
            ]),
            malformed(),
        ),
        (
            "http2/8.1.2.1/4",
            with(&[method, scheme, host, ("x-test", "ok"), path]),
            malformed(),
        ),
        (
            "http2/8.1.2.2/1",
            get_with(("connection", "keep-alive")),
            malformed(),
        ),
        (
            "http2/8.1.2.2/2",
            get_with(("te", "trailers, deflate")),
            malformed(),
        ),
        (
            "http2/8.1.2.3/1",
            with(&[method, scheme, host, (":path", "")]),
            malformed(),
        ),
        ("http2/8.1.2.3/2", with(&[scheme, path, host]), malformed()),
        ("http2/8.1.2.3/3", with(&[method, path, host]), malformed()),
        (
            "http2/8.1.2.3/4",
            with(&[method, scheme, host]),
            malformed(),
        ),
        (
            "http2/8.1.2.3/5",
            with(&[method, scheme, path, host, method]),
            malformed(),
        ),
        (
            "http2/8.1.2.3/6",
            with(&[method, scheme, path, host, scheme]),
            malformed(),
        ),
        (
            "http2/8.1.2.3/7",
            with(&[method, scheme, path, host, path]),
            malformed(),
        ),
        (
            "http2/8.1.2.6/1",
            body("1", &[data(1, 1, b"test")]),
            malformed(),
        ),
        (
            "http2/8.1.2.6/2",
            body("1", &[data(0, 1, b"test"), data(1, 1, b"test")]),
            malformed(),
        ),
        (
            "http2/8.2/1",
            many(&[
                &get(1),
                &frame(frame::PUSH_PROMISE, OPENING, 1, &[0, 0, 0, 2]),
            ]),
            Connection(&[PROTOCOL]),
        ),
    ]
}

/// The three cases of the preface, which all other cases send too.
fn prefaces() -> usize {
    // generic/1/1 and http2/3.5/1: the server's preface comes first, and is SETTINGS.
    let mut talk = Talk::new();
    talk.session = Session::new(100, Schemes::Https, talk.now);
    let first = talk.said();
    assert_eq!((first[0].0, first[0].1), (frame::SETTINGS, 0));
    let preface = [frame::PREFACE, &settings(&[])].concat();
    talk.hears(&preface).unwrap();
    assert_eq!((talk.said()[0].0, 3), (frame::SETTINGS, 3));
    // http2/3.5/2
    talk.session = Session::new(100, Schemes::Https, talk.now);
    let invalid = talk.hears(b"INVALID CONNECTION PREFACE\r\n\r\n");
    assert_eq!(invalid, Err(ConnectionError::Protocol(PROTOCOL)));
    3
}

#[test]
fn every_case_of_h2spec_passes() {
    let cases = [
        generic(),
        hpack(),
        frames(),
        closed(),
        connection(),
        messages(),
    ]
    .concat_cases();
    let mut wrong = Vec::new();
    for (name, bytes, expect) in &cases {
        let needs_answers =
            expect.needs_answers() || closed().iter().any(|(closed, ..)| closed == name);
        for server in [Server::AtOnce, Server::Never] {
            if server == Server::Never && needs_answers {
                continue;
            }
            wrong.extend(check(name, bytes, server, expect));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(cases.len() + prefaces(), 147);
}

trait Cases {
    fn concat_cases(self) -> Vec<Case>;
}

impl<const N: usize> Cases for [Vec<Case>; N] {
    fn concat_cases(self) -> Vec<Case> {
        self.into_iter().flatten().collect()
    }
}
