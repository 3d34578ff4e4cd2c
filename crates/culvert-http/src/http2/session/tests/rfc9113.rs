//! The rules of RFC 9113 for a server, a row each: section, rule, bytes of the client, outcome.
//!
//! Not here: limits that only a long exchange reaches, in `bodies`, `streams` and `floods`; sections for clients and for
//! server push (8.4); and how responses are sent, in `responses`.

use super::cases::*;
use super::*;

/// Section, rule, bytes after the preface, outcome.
type Row = (&'static str, &'static str, Vec<u8>, Expect);

const METHOD: (&str, &str) = (":method", "GET");
const SCHEME: (&str, &str) = (":scheme", "https");
const PATH: (&str, &str) = (":path", "/");
const HOST: (&str, &str) = (":authority", "a.example");
const MALFORMED: Expect = Expect::Reset(PROTOCOL);
const ONE: Expect = Expect::Answers(1);
const MOST: u32 = 0x7FFF_FFFF;
const END: u8 = frame::END_STREAM;
const PADDED: u8 = frame::PADDED;

/// A request of exactly these fields.
fn with(fields: &[(&str, &str)]) -> Vec<u8> {
    headers(WHOLE, 1, &of(fields))
}

/// A request with a field whose bytes need not be text.
fn with_bytes(name: &[u8], value: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
    behind(&[&[0, length(name)], name, &[length(value)], value].concat())
}

/// A request with this `content-length`, and the frames after its head.
fn body(length: &str, frames: &[Vec<u8>]) -> Vec<u8> {
    [post(1, &[("content-length", length)]), frames.concat()].concat()
}

fn trailers(flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    headers(flags, 1, &of(fields))
}

fn sized(kind: u8, stream: u32, bytes: usize) -> Vec<u8> {
    frame(kind, 0, stream, &vec![0; bytes])
}

/// An incomplete field section.
fn unfinished() -> Vec<u8> {
    headers(END, 1, &section(&[]))
}

/// Frames (sections 4 and 6, without 6.5, 6.9 and 6.10).
#[rustfmt::skip]
fn frames() -> Vec<Row> {
    use Expect::{Connection, Goes, Reset, Says};
    let with_priority = |on: u32| [&on.to_be_bytes()[..], &[16], &section(&[])].concat();
    let padded = [&[2][..], &section(&[]), &[9, 9]].concat();
    let both = [&[1][..], &with_priority(0), &[0]].concat();
    vec![
        ("4.1", "an unknown type is ignored on the connection", frame(0x42, 0xFF, 0, b"x"), Goes),
        ("4.1", "and on a stream", many(&[&post(1, &[]), &frame(0x42, 0xFF, 1, b"x")]), Goes),
        ("4.1", "flags without a meaning are ignored", frame(frame::PING, 0xFE, 0, b"12345678"), Says(frame::PING, frame::ACK, b"12345678")),
        ("4.1", "the reserved bit of the stream is ignored", headers(WHOLE, 0x8000_0001, &section(&[])), ONE),
        ("4.2", "a payload of 16,384 bytes is accepted", many(&[&post(1, &[]), &data(END, 1, &[7; 16_384])]), ONE),
        ("4.2", "a longer one is not", many(&[&post(1, &[]), &data(END, 1, &[7; 16_385])]), Connection(&[SIZE])),
        ("4.2", "nor one of an unknown type", frame(0x42, 0, 0, &[7; 16_385]), Connection(&[SIZE])),
        ("4.2", "HEADERS without room for its priority", headers(WHOLE | frame::WITH_PRIORITY, 1, &[0; 4]), Connection(&[SIZE])),
        ("4.2", "HEADERS without room for its padding length", headers(WHOLE | PADDED, 1, &[]), Connection(&[SIZE])),
        ("4.2", "DATA without room for its padding length", many(&[&post(1, &[]), &data(PADDED, 1, &[])]), Connection(&[SIZE])),
        ("4.3", "a field section that cannot be decoded", headers(WHOLE, 1, &[0x80]), Connection(&[COMPRESSION])),
        ("4.3", "a section ends within a field", headers(WHOLE, 1, &[0x40]), Connection(&[COMPRESSION])),
        ("4.3", "a dropped section is decoded all the same", many(&[&post(1, &[]), &reset(1, 8), &headers(WHOLE, 3, &[0xFF; 9])]), Connection(&[COMPRESSION])),
        ("4.3", "a section of a closed stream keeps the table right", many(&[&get(1), &headers(WHOLE, 1, &[0x40, 1, b'a', 1, b'b']), &headers(WHOLE, 3, &[&section(&[])[..], &[0xBE]].concat())]), Expect::Stream(&[CLOSED])),
        ("4.3", "another frame between the pieces of a section", many(&[&unfinished(), &sized(frame::PING, 0, 8)]), Connection(&[PROTOCOL])),
        ("4.3", "another stream's frame between them", many(&[&unfinished(), &continuation(frame::END_HEADERS, 3, &[])]), Connection(&[PROTOCOL])),
        ("4.3.1", "a table as large as the setting", headers(WHOLE, 1, &[&[0x3F, 0xE1, 0x1F][..], &section(&[])].concat()), ONE),
        ("4.3.1", "a larger table", headers(WHOLE, 1, &[&[0x3F, 0xE2, 0x1F][..], &section(&[])].concat()), Connection(&[COMPRESSION])),

        ("6.1", "DATA on stream 0", data(0, 0, b"x"), Connection(&[PROTOCOL])),
        ("6.1", "DATA on an idle stream", data(0, 1, b"x"), Connection(&[PROTOCOL])),
        ("6.1", "DATA behind the end of its stream", many(&[&get(1), &data(END, 1, b"x")]), Expect::Stream(&[CLOSED])),
        ("6.1", "padding is dropped", body("1", &[data(END | PADDED, 1, b"\x02x\0\0")]), ONE),
        ("6.1", "padding need not be zero", body("1", &[data(END | PADDED, 1, b"\x02xyz")]), ONE),
        ("6.1", "padding of the whole payload", body("0", &[data(END | PADDED, 1, b"\x02\0\0")]), ONE),
        ("6.1", "padding as long as the payload", many(&[&post(1, &[]), &data(PADDED, 1, b"\x02\0")]), Connection(&[PROTOCOL])),
        ("6.1", "an empty frame may end a stream", many(&[&post(1, &[]), &data(END, 1, b"")]), ONE),
        ("6.2", "HEADERS on stream 0", headers(WHOLE, 0, &section(&[])), Connection(&[PROTOCOL])),
        ("6.2", "padding of HEADERS is dropped", headers(WHOLE | PADDED, 1, &padded), ONE),
        ("6.2", "padding longer than the payload", headers(WHOLE | PADDED, 1, &[200, 0x82]), Connection(&[PROTOCOL])),
        ("6.2", "a priority is ignored", headers(WHOLE | frame::WITH_PRIORITY, 1, &with_priority(0x8000_0003)), ONE),
        ("6.2", "padding and a priority", headers(WHOLE | PADDED | frame::WITH_PRIORITY, 1, &both), ONE),
        ("6.2", "the section may go on after END_STREAM", many(&[&unfinished(), &continuation(frame::END_HEADERS, 1, &of(&[("x", "y")]))]), ONE),
        ("6.3", "PRIORITY on stream 0", priority(0, 1, 16), Connection(&[PROTOCOL])),
        ("6.3", "PRIORITY on an idle stream", many(&[&priority(3, 0, 16), &get(1)]), ONE),
        ("6.3", "PRIORITY on an open stream", many(&[&post(1, &[]), &priority(1, 0, 16), &data(END, 1, b"")]), ONE),
        ("6.3", "PRIORITY on a reset stream", many(&[&post(1, &[]), &reset(1, 8), &priority(1, 0, 16)]), Goes),
        ("6.3", "PRIORITY of another size", many(&[&post(1, &[]), &sized(frame::PRIORITY, 1, 4)]), Reset(SIZE)),
        ("6.3", "the same on an idle stream, which cannot be reset", sized(frame::PRIORITY, 1, 6), Connection(&[SIZE])),
        ("5.3.1", "a stream that depends on itself, of RFC 7540", many(&[&post(1, &[]), &priority(1, 1, 16)]), Reset(PROTOCOL)),
        ("5.3.1", "the same in HEADERS", headers(WHOLE | frame::WITH_PRIORITY, 1, &with_priority(1)), Reset(PROTOCOL)),
        ("6.4", "RST_STREAM on stream 0", reset(0, 8), Connection(&[PROTOCOL])),
        ("6.4", "RST_STREAM on an idle stream", reset(1, 8), Connection(&[PROTOCOL])),
        ("6.4", "RST_STREAM of another size", many(&[&post(1, &[]), &sized(frame::RST_STREAM, 1, 5)]), Connection(&[SIZE])),
        ("6.4", "a stream can be reset", many(&[&post(1, &[]), &reset(1, 8), &get(3)]), ONE),
        ("6.6", "PUSH_PROMISE of a client", many(&[&post(1, &[]), &frame(frame::PUSH_PROMISE, OPENING, 1, &[0, 0, 0, 2])]), Connection(&[PROTOCOL])),
        ("6.6", "the same on the connection", frame(frame::PUSH_PROMISE, OPENING, 0, &[0, 0, 0, 2]), Connection(&[PROTOCOL])),
        ("6.7", "PING is acknowledged", frame(frame::PING, 0, 0, b"12345678"), Says(frame::PING, frame::ACK, b"12345678")),
        ("6.7", "an acknowledgement is not", frame(frame::PING, frame::ACK, 0, b"12345678"), Goes),
        ("6.7", "PING on a stream", frame(frame::PING, 0, 1, &[0; 8]), Connection(&[PROTOCOL])),
        ("6.7", "PING of another size", sized(frame::PING, 0, 7), Connection(&[SIZE])),
        ("6.7", "an acknowledgement of another size", frame(frame::PING, frame::ACK, 0, &[0; 9]), Connection(&[SIZE])),
        ("6.8", "GOAWAY on a stream", sized(frame::GOAWAY, 1, 8), Connection(&[PROTOCOL])),
        ("6.8", "GOAWAY that is too short", sized(frame::GOAWAY, 0, 7), Connection(&[SIZE])),
        ("6.8", "GOAWAY with debug data", sized(frame::GOAWAY, 0, 30), Goes),
        ("6.8", "streams go on after it", many(&[&post(1, &[]), &sized(frame::GOAWAY, 0, 8), &data(END, 1, b"x")]), ONE),
        ("7", "an unknown error code of GOAWAY", frame(frame::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0xFF]), Goes),
        ("7", "an unknown error code of RST_STREAM", many(&[&post(1, &[]), &reset(1, 0xFF)]), Goes),
    ]
}

/// States of streams and errors (section 5).
#[rustfmt::skip]
fn streams() -> Vec<Row> {
    use Expect::{Connection, Goes, Reset, Stream};
    let opened: Vec<u8> = (0..101).flat_map(|nth| post(2 * nth + 1, &[])).collect();
    vec![
        ("5.1", "idle: WINDOW_UPDATE", window(1, 1), Connection(&[PROTOCOL])),
        ("5.1", "idle: CONTINUATION", continuation(frame::END_HEADERS, 1, &[]), Connection(&[PROTOCOL])),
        ("5.1", "half-closed by the client: DATA", many(&[&get(1), &data(0, 1, b"x")]), Stream(&[CLOSED])),
        ("5.1", "half-closed by the client: HEADERS", many(&[&get(1), &get(1)]), Stream(&[CLOSED])),
        ("5.1", "half-closed by the client: WINDOW_UPDATE", many(&[&get(1), &window(1, 1)]), ONE),
        ("5.1", "half-closed by the client: PRIORITY", many(&[&get(1), &priority(1, 0, 1)]), ONE),
        ("5.1", "half-closed by the client: RST_STREAM", many(&[&get(1), &reset(1, 8)]), Goes),
        ("5.1", "closed by a reset: DATA", many(&[&post(1, &[]), &reset(1, 8), &data(0, 1, b"x")]), Reset(CLOSED)),
        ("5.1", "closed by a reset: HEADERS", many(&[&post(1, &[]), &reset(1, 8), &get(1)]), Reset(CLOSED)),
        ("5.1", "closed by a reset: WINDOW_UPDATE", many(&[&post(1, &[]), &reset(1, 8), &window(1, 1)]), Goes),
        ("5.1", "closed by a reset: an unknown type", many(&[&post(1, &[]), &reset(1, 8), &frame(0x42, 0, 1, b"")]), Goes),
        ("5.1", "reset by us: DATA that was on its way", many(&[&headers(OPENING, 1, &section(&[("connection", "a")])), &data(END, 1, b"x")]), Reset(PROTOCOL)),
        ("5.1", "reset by us: trailers that were on their way", many(&[&headers(OPENING, 1, &section(&[("connection", "a")])), &trailers(WHOLE, &[("x", "y")])]), Reset(PROTOCOL)),
        ("5.1.1", "a stream of the server's", get(2), Connection(&[PROTOCOL])),
        ("5.1.1", "numbers may be skipped", get(7), ONE),
        ("5.1.1", "a lower number than before", many(&[&get(5), &get(3)]), Connection(&[PROTOCOL, CLOSED])),
        ("5.1.1", "a skipped stream is closed", many(&[&post(5, &[]), &data(0, 3, b"x")]), Stream(&[CLOSED, PROTOCOL])),
        ("5.1.1", "the highest number", many(&[&get(MOST), &priority(1, 0, 0)]), ONE),
        ("5.1.2", "more streams than the setting", opened, Reset(Reason::REFUSED_STREAM)),
        ("5.4.2", "a reset is not answered with a reset", many(&[&post(1, &[]), &reset(1, 8), &reset(1, 8)]), Goes),
        ("5.5", "an unknown type within a field section", many(&[&unfinished(), &frame(0x42, 0, 1, b"")]), Connection(&[PROTOCOL])),
        ("6.10", "CONTINUATION on stream 0", many(&[&unfinished(), &continuation(frame::END_HEADERS, 0, &[])]), Connection(&[PROTOCOL])),
        ("6.10", "CONTINUATION behind a whole section", many(&[&post(1, &[]), &continuation(frame::END_HEADERS, 1, &[])]), Connection(&[PROTOCOL])),
        ("6.10", "CONTINUATION behind DATA", many(&[&post(1, &[]), &data(0, 1, b"x"), &continuation(frame::END_HEADERS, 1, &[])]), Connection(&[PROTOCOL])),
        ("6.10", "flags of CONTINUATION other than END_HEADERS", many(&[&unfinished(), &continuation(frame::END_HEADERS | 0x29, 1, &of(&[("x", "y")]))]), ONE),
        ("6.10", "an empty CONTINUATION", many(&[&unfinished(), &continuation(0, 1, &[]), &continuation(frame::END_HEADERS, 1, &[])]), ONE),
    ]
}

/// Settings and flow control (sections 5.2, 6.5 and 6.9).
#[rustfmt::skip]
fn windows() -> Vec<Row> {
    use Expect::{Connection, Data, Goes, Reset, Says};
    const ACK: Expect = Says(frame::SETTINGS, frame::ACK, &[]);
    vec![
        ("6.5", "SETTINGS on a stream", frame(frame::SETTINGS, 0, 1, &[]), Connection(&[PROTOCOL])),
        ("6.5", "SETTINGS of another size", sized(frame::SETTINGS, 0, 5), Connection(&[SIZE])),
        ("6.5", "an acknowledgement with a payload", frame(frame::SETTINGS, frame::ACK, 0, &[0; 6]), Connection(&[SIZE])),
        ("6.5", "an acknowledgement", frame(frame::SETTINGS, frame::ACK, 0, &[]), Goes),
        ("6.5", "empty SETTINGS are acknowledged", settings(&[]), ACK),
        ("6.5.2", "ENABLE_PUSH off", settings(&[(2, 0)]), ACK),
        ("6.5.2", "ENABLE_PUSH on", settings(&[(2, 1)]), ACK),
        ("6.5.2", "ENABLE_PUSH of another value", settings(&[(2, 2)]), Connection(&[PROTOCOL])),
        ("6.5.2", "the largest INITIAL_WINDOW_SIZE", settings(&[(4, MOST)]), ACK),
        ("6.5.2", "a larger one", settings(&[(4, MOST + 1)]), Connection(&[FLOW])),
        ("6.5.2", "the smallest MAX_FRAME_SIZE", settings(&[(5, 1 << 14)]), ACK),
        ("6.5.2", "a smaller one", settings(&[(5, (1 << 14) - 1)]), Connection(&[PROTOCOL])),
        ("6.5.2", "the largest MAX_FRAME_SIZE", settings(&[(5, (1 << 24) - 1)]), ACK),
        ("6.5.2", "a larger one", settings(&[(5, 1 << 24)]), Connection(&[PROTOCOL])),
        ("6.5.2", "HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS and MAX_HEADER_LIST_SIZE of any value", settings(&[(1, 0), (1, u32::MAX), (3, 0), (6, 0)]), ACK),
        ("6.5.2", "an unknown setting is ignored", settings(&[(0xFF, u32::MAX)]), ACK),
        ("6.5.3", "settings apply in their order", many(&[&settings(&[(4, 100), (4, 2)]), &get(1)]), Data(&[2])),
        ("6.5.3", "each frame is acknowledged", many(&[&settings(&[(4, 100)]), &settings(&[])]), ACK),
        ("6.9", "WINDOW_UPDATE of 0 on the connection", window(0, 0), Connection(&[PROTOCOL])),
        ("6.9", "WINDOW_UPDATE of 0 on a stream", many(&[&post(1, &[]), &window(1, 0)]), Reset(PROTOCOL)),
        ("6.9", "WINDOW_UPDATE of another size", sized(frame::WINDOW_UPDATE, 0, 3), Connection(&[SIZE])),
        ("6.9", "the same on a stream", many(&[&post(1, &[]), &sized(frame::WINDOW_UPDATE, 1, 5)]), Connection(&[SIZE])),
        ("6.9", "the reserved bit is ignored", window(0, 0x8000_0001), Goes),
        ("6.9.1", "a connection window above the largest", window(0, MOST), Connection(&[FLOW])),
        ("6.9.1", "the largest connection window", window(0, MOST - 65_535), Goes),
        ("6.9.1", "a stream window above the largest", many(&[&post(1, &[]), &window(1, MOST)]), Reset(FLOW)),
        ("6.9.1", "a stream's window limits DATA", many(&[&settings(&[(4, 1)]), &get(1), &window(1, 3)]), Data(&[1, 3])),
        ("6.9.2", "a window of 0 stops DATA", many(&[&settings(&[(4, 0)]), &get(1)]), Data(&[])),
        ("6.9.2", "SETTINGS change the windows of open streams", many(&[&settings(&[(4, 0)]), &get(1), &settings(&[(4, 4)])]), Data(&[4])),
        ("6.9.2", "a window may become negative", many(&[&settings(&[(4, 3)]), &get(1), &settings(&[(4, 1)]), &window(1, 2)]), Data(&[3])),
        ("6.9.2", "and has to become positive again", many(&[&settings(&[(4, 3)]), &get(1), &settings(&[(4, 1)]), &window(1, 3)]), Data(&[3, 1])),
        ("6.9.2", "SETTINGS that lift a window above the largest", many(&[&post(1, &[]), &window(1, MOST - 65_535), &settings(&[(4, 65_536)])]), Connection(&[FLOW])),
        ("6.9.3", "streams opened after SETTINGS have the new window", many(&[&settings(&[(4, 2)]), &get(1), &settings(&[(4, 5)]), &get(3)]), Data(&[2, 3, 5])),
    ]
}

/// Messages (section 8).
#[rustfmt::skip]
fn messages() -> Vec<Row> {
    use Expect::{Connection, Refuses, Stream};
    let connect = (":method", "CONNECT");
    let long = "x".repeat(100);
    vec![
        ("8.1", "a request with a body", body("4", &[data(END, 1, b"test")]), ONE),
        ("8.1", "a request with trailers", many(&[&post(1, &[]), &data(0, 1, b"test"), &trailers(WHOLE, &[("x", "y")])]), ONE),
        ("8.1", "trailers without DATA", many(&[&post(1, &[]), &trailers(WHOLE, &[("x", "y")])]), ONE),
        ("8.1", "trailers that do not end the stream", many(&[&post(1, &[]), &trailers(OPENING, &[("x", "y")])]), MALFORMED),
        ("8.1", "DATA behind trailers", many(&[&post(1, &[]), &trailers(WHOLE, &[("x", "y")]), &data(0, 1, b"x")]), Stream(&[CLOSED])),
        ("8.1.1", "as long as content-length", body("5", &[data(0, 1, b"te"), data(END, 1, b"sts")]), ONE),
        ("8.1.1", "longer", body("5", &[data(0, 1, b"tests!")]), MALFORMED),
        ("8.1.1", "longer in the second frame", body("5", &[data(0, 1, b"tests"), data(0, 1, b"!")]), MALFORMED),
        ("8.1.1", "shorter", body("5", &[data(END, 1, b"test")]), MALFORMED),
        ("8.1.1", "shorter, with trailers", body("5", &[data(0, 1, b"test"), trailers(WHOLE, &[("x", "y")])]), MALFORMED),
        ("8.1.1", "as long, with trailers", body("5", &[data(0, 1, b"tests"), trailers(WHOLE, &[("x", "y")])]), ONE),
        ("8.1.1", "padding does not count", body("5", &[data(END | PADDED, 1, b"\x01tests\0")]), ONE),
        ("8.1.1", "a length and no body", get_with(("content-length", "1")), MALFORMED),
        ("8.1.1", "a length of 0 and no body", get_with(("content-length", "0")), ONE),
        ("8.1.1", "two lengths", behind(&of(&[("content-length", "0"), ("content-length", "0")])), MALFORMED),
        ("8.1.1", "a length that is not a number", get_with(("content-length", "+0")), MALFORMED),
        ("8.1.1", "a malformed request leaves others alone", many(&[&get_with(("connection", "a")), &get(3)]), Stream(&[PROTOCOL])),
        ("8.2", "an upper-case name", get_with(("X", "y")), MALFORMED),
        ("8.2.1", "an empty name", get_with(("", "y")), MALFORMED),
        ("8.2.1", "a space in a name", get_with(("x y", "z")), MALFORMED),
        ("8.2.1", "a colon in a name", get_with(("x:y", "z")), MALFORMED),
        ("8.2.1", "a quotation mark in a name", get_with(("x\"", "z")), MALFORMED),
        ("8.2.1", "a control character in a name", get_with(("x\u{1}", "z")), MALFORMED),
        ("8.2.1", "DEL in a name", get_with(("x\u{7f}", "z")), MALFORMED),
        ("8.2.1", "a byte above 0x7F in a name", with_bytes(b"x\x80", b"z"), MALFORMED),
        ("8.2.1", "NUL in a value", get_with(("x", "a\0")), MALFORMED),
        ("8.2.1", "LF in a value", get_with(("x", "a\nb: c")), MALFORMED),
        ("8.2.1", "CR in a value", get_with(("x", "a\rb")), MALFORMED),
        ("8.2.1", "a space before a value", get_with(("x", " a")), MALFORMED),
        ("8.2.1", "a tab behind a value", get_with(("x", "a\t")), MALFORMED),
        ("8.2.1", "a space and a tab within a value", get_with(("x", "a \tb")), ONE),
        ("8.2.1", "an empty value", get_with(("x", "")), ONE),
        ("8.2.1", "bytes above 0x7F in a value", with_bytes(b"x", b"\x80\xFF"), ONE),
        ("8.2.1", "the same in trailers", many(&[&post(1, &[]), &trailers(WHOLE, &[("X", "y")])]), MALFORMED),
        ("8.2.2", "connection", get_with(("connection", "close")), MALFORMED),
        ("8.2.2", "keep-alive", get_with(("keep-alive", "1")), MALFORMED),
        ("8.2.2", "proxy-connection", get_with(("proxy-connection", "close")), MALFORMED),
        ("8.2.2", "transfer-encoding", get_with(("transfer-encoding", "chunked")), MALFORMED),
        ("8.2.2", "upgrade", get_with(("upgrade", "h2c")), MALFORMED),
        ("8.2.2", "te: trailers", get_with(("te", "trailers")), ONE),
        ("8.2.2", "te of another value", get_with(("te", "gzip")), MALFORMED),
        ("8.2.2", "te of more than one value", get_with(("te", "trailers, gzip")), MALFORMED),
        ("8.2.2", "connection in trailers", many(&[&post(1, &[]), &trailers(WHOLE, &[("connection", "x")])]), MALFORMED),
        ("8.2.3", "cookie fields may be split", behind(&of(&[("cookie", "a=1"), ("cookie", "b=2")])), ONE),
        ("8.3", "a pseudo-header field behind others", with(&[METHOD, SCHEME, HOST, ("x", "y"), PATH]), MALFORMED),
        ("8.3", "an unknown pseudo-header field", get_with((":x", "y")), MALFORMED),
        ("8.3", "a pseudo-header field of responses", with(&[METHOD, SCHEME, PATH, HOST, (":status", "200")]), MALFORMED),
        ("8.3", "a pseudo-header field in trailers", many(&[&post(1, &[]), &trailers(WHOLE, &[PATH])]), MALFORMED),
        ("8.3", "two methods", with(&[METHOD, METHOD, SCHEME, PATH, HOST]), MALFORMED),
        ("8.3", "two schemes", with(&[METHOD, SCHEME, SCHEME, PATH, HOST]), MALFORMED),
        ("8.3", "two paths", with(&[METHOD, SCHEME, PATH, PATH, HOST]), MALFORMED),
        ("8.3", "two authorities", with(&[METHOD, SCHEME, PATH, HOST, HOST]), MALFORMED),
        ("8.3.1", "no method", with(&[SCHEME, PATH, HOST]), MALFORMED),
        ("8.3.1", "no scheme", with(&[METHOD, PATH, HOST]), MALFORMED),
        ("8.3.1", "no path", with(&[METHOD, SCHEME, HOST]), MALFORMED),
        ("8.3.1", "an empty path", with(&[METHOD, SCHEME, HOST, (":path", "")]), MALFORMED),
        ("8.3.1", "no authority, but a host", with(&[METHOD, SCHEME, PATH, ("host", "a.example")]), ONE),
        ("8.3.1", "an authority with a path", with(&[METHOD, SCHEME, PATH, (":authority", "a/b")]), MALFORMED),
        ("8.3.1", "an empty method", with(&[(":method", ""), SCHEME, PATH, HOST]), MALFORMED),
        ("8.3.1", "a method that is not a token", with(&[(":method", "G(T"), SCHEME, PATH, HOST]), MALFORMED),
        ("8.3.1", "a scheme in upper case", with(&[METHOD, (":scheme", "HTTPS"), PATH, HOST]), ONE),
        ("8.3.1", "a scheme that is not the connection's", with(&[METHOD, (":scheme", "http"), PATH, HOST]), Refuses),
        ("8.3.1", "an unknown scheme", with(&[METHOD, (":scheme", "ftp"), PATH, HOST]), Refuses),
        ("8.3.1", "an empty scheme", with(&[METHOD, (":scheme", ""), PATH, HOST]), Refuses),
        ("8.3.1", "OPTIONS of the server", with(&[(":method", "OPTIONS"), SCHEME, HOST, (":path", "*")]), ONE),
        ("8.3.1", "another method of the server", with(&[METHOD, SCHEME, HOST, (":path", "*")]), Refuses),
        ("8.3.1", "a long path", with(&[METHOD, SCHEME, HOST, (":path", &format!("/{long}"))]), ONE),
        ("8.3.1", "a path that does not start with a slash", with(&[METHOD, SCHEME, HOST, (":path", "a")]), Refuses),
        ("8.3.1", "a path of a query only", with(&[METHOD, SCHEME, HOST, (":path", "?q")]), Refuses),
        ("8.3.1", "a path with an origin", with(&[METHOD, SCHEME, HOST, (":path", "https://a.example/")]), Refuses),
        ("8.3.1", "a path with a fragment", with(&[METHOD, SCHEME, HOST, (":path", "/a#b")]), Refuses),
        ("8.3.1", "a path with a space", with(&[METHOD, SCHEME, HOST, (":path", "/a b")]), Refuses),
        ("8.3.1", "a path with a control character", with(&[METHOD, SCHEME, HOST, (":path", "/a\u{1}")]), Refuses),
        ("8.3.1", "a path that is not ASCII", with(&[METHOD, SCHEME, HOST, (":path", "/\u{e9}")]), ONE),
        ("8.3.1", "a query that is not ASCII", with(&[METHOD, SCHEME, HOST, (":path", "/?\u{e9}")]), ONE),
        ("8.3.1", "a path with a broken escape", with(&[METHOD, SCHEME, HOST, (":path", "/%zz")]), Refuses),
        ("8.3.1", "a path that servers read in two ways", with(&[METHOD, SCHEME, HOST, (":path", "/..%2fa")]), Refuses),
        ("8.4", "a client pushes nothing", many(&[&get(1), &frame(frame::PUSH_PROMISE, OPENING, 1, &[0, 0, 0, 2])]), Connection(&[PROTOCOL])),
        ("8.5", "CONNECT", with(&[connect, (":authority", "a:1")]), ONE),
        ("8.5", "CONNECT with a path", with(&[connect, (":authority", "a:1"), PATH]), MALFORMED),
        ("8.5", "CONNECT with a scheme", with(&[connect, (":authority", "a:1"), SCHEME]), MALFORMED),
        ("8.5", "CONNECT without an authority", with(&[connect]), MALFORMED),
        ("RFC 8441 4", "CONNECT with a protocol", with(&[connect, (":protocol", "websocket"), SCHEME, PATH, HOST]), ONE),
        ("RFC 8441 4", "the same without a path", with(&[connect, (":protocol", "websocket"), SCHEME, HOST]), MALFORMED),
        ("RFC 8441 4", "the same without an authority", with(&[connect, (":protocol", "websocket"), SCHEME, PATH]), MALFORMED),
        ("RFC 8441 4", "another method with a protocol", get_with((":protocol", "websocket")), MALFORMED),
    ]
}

/// Bodies that the server does not read. Run against a server that never responds.
#[rustfmt::skip]
fn unread() -> Vec<Row> {
    let full = data(0, 1, &[7; 16_384]);
    let padding = data(PADDED, 1, &[&[255][..], &[0; 16_383]].concat());
    let window = |frame: &[u8]| [&post(1, &[])[..], &frame.repeat(4)].concat();
    vec![
        ("5.2.1", "a stream's window can be filled", window(&full), Expect::Goes),
        ("6.9.1", "one byte more", many(&[&window(&full), &data(0, 1, b"x")]), Expect::Reset(FLOW)),
        ("6.9.1", "an empty frame needs no window", many(&[&window(&full), &data(END, 1, b"")]), Expect::Goes),
        ("6.1", "padding counts for flow control", many(&[&window(&padding), &data(0, 1, b"x")]), Expect::Reset(FLOW)),
    ]
}

/// Streams that both sides have ended. Run against a server that responds immediately.
#[rustfmt::skip]
fn closed() -> Vec<Row> {
    use Expect::{Answers, Connection, Reset};
    vec![
        ("5.1", "closed: DATA", many(&[&get(1), &data(0, 1, b"x")]), Reset(CLOSED)),
        ("5.1", "closed: HEADERS", many(&[&get(1), &get(1)]), Connection(&[CLOSED])),
        ("5.1", "closed: WINDOW_UPDATE", many(&[&get(1), &window(1, 1)]), Answers(1)),
        ("5.1", "closed: RST_STREAM", many(&[&get(1), &reset(1, 8)]), Answers(1)),
        ("5.1", "closed: PRIORITY", many(&[&get(1), &priority(1, 0, 1)]), Answers(1)),
        ("5.1.2", "streams that are closed do not count", (0..300).flat_map(|nth| get(2 * nth + 1)).collect(), Answers(300)),
    ]
}

#[test]
fn each_rule_holds() {
    let both = [Server::AtOnce, Server::Never];
    let mut wrong = Vec::new();
    for (rows, servers) in [
        (frames(), &both[..]),
        (streams(), &both),
        (windows(), &both),
        (messages(), &both),
        (unread(), &[Server::Never]),
        (closed(), &[Server::AtOnce]),
    ] {
        for (section, rule, bytes, expect) in &rows {
            for &server in servers {
                if server == Server::AtOnce || !expect.needs_answers() {
                    let name = format!("{section}: {rule}");
                    wrong.extend(check(&name, bytes, server, expect));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Section 3.4: the preface of each side.
#[test]
fn a_connection_starts_with_the_preface_and_settings() {
    const WRONG: Option<ConnectionError> = Some(ConnectionError::Protocol(PROTOCOL));
    let preface = |frame: &[u8]| [frame::PREFACE, frame].concat();
    for (rule, bytes, expected) in [
        ("the preface and SETTINGS", preface(&settings(&[])), None),
        ("the preface alone", preface(&[]), None),
        ("a part of it", frame::PREFACE[..9].to_vec(), None),
        ("HTTP/1.1", b"GET / HTTP/1.1\r\n".to_vec(), WRONG),
        (
            "another preface",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\t".to_vec(),
            WRONG,
        ),
        (
            "another frame first",
            preface(&sized(frame::PING, 0, 8)),
            WRONG,
        ),
        (
            "an acknowledgement first",
            preface(&frame(frame::SETTINGS, frame::ACK, 0, &[])),
            WRONG,
        ),
        (
            "an unknown frame first",
            preface(&frame(0x42, 0, 0, &[])),
            WRONG,
        ),
        (
            "settings that are wrong",
            preface(&settings(&[(2, 2)])),
            WRONG,
        ),
    ] {
        for step in [usize::MAX, 1] {
            let mut talk = Talk::new();
            talk.session = Session::new(3, Schemes::Https, talk.now);
            // The server's preface is SETTINGS, sent before anything has arrived.
            let first = talk.said();
            assert_eq!((first[0].0, first[0].1), (frame::SETTINGS, 0));
            let end = bytes.chunks(step).find_map(|piece| talk.hears(piece).err());
            assert_eq!(end, expected, "{rule}");
        }
    }
}
