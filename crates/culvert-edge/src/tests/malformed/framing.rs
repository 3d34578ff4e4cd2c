//! Lengths, encodings and chunks.

use super::*;

pub(super) fn requests() -> Vec<Request> {
    [lengths(), encodings(), chunk_lines(), framing_games()].concat()
}

/// Content-Length, alone and beside Transfer-Encoding.
fn lengths() -> Vec<Request> {
    vec![
        // Two lengths, or a length and an encoding.
        (
            Refuse(400),
            body("Content-Length: 3\r\nContent-Length: 3", "abc"),
        ),
        (
            Refuse(400),
            body("Content-Length: 3\r\nContent-Length: 4", "abcd"),
        ),
        (
            Refuse(400),
            body("Content-Length: 3\r\ncontent-length: 3", "abc"),
        ),
        (Refuse(400), body("Content-Length: 3, 3", "abc")),
        (Refuse(400), body("Content-Length: 3,4", "abc")),
        (
            Refuse(400),
            body(
                "Content-Length: 3\r\nTransfer-Encoding: chunked",
                "0\r\n\r\n",
            ),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: chunked\r\nContent-Length: 3",
                "0\r\n\r\n",
            ),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: chunked\r\nContent-Length: 0",
                "0\r\n\r\n",
            ),
        ),
        // Lengths that are no numbers.
        (Refuse(400), body("Content-Length: +3", "abc")),
        (Refuse(400), body("Content-Length: -3", "abc")),
        (Refuse(400), body("Content-Length: -0", "")),
        (Refuse(400), body("Content-Length: 0x3", "abc")),
        (Refuse(400), body("Content-Length: 3_0", "abc")),
        (Refuse(400), body("Content-Length: 3 0", "abc")),
        (Refuse(400), body("Content-Length: 3.0", "abc")),
        (Refuse(400), body("Content-Length: 3;q=1", "abc")),
        (Refuse(400), body("Content-Length: \"3\"", "abc")),
        (Refuse(400), body("Content-Length:", "")),
        (Refuse(400), body("Content-Length: ", "")),
        (Refuse(400), body("Content-Length: a", "abc")),
        (Refuse(400), body("Content-Length: 9223372036854775808", "")),
        (
            Refuse(400),
            body("Content-Length: 18446744073709551616", ""),
        ),
        (
            Refuse(400),
            body("Content-Length: 99999999999999999999999999", ""),
        ),
        (Refuse(400), body("Content-Length: ３", "abc")),
        (Pass, body("Content-Length: 3", "abc")),
        (Pass, body("Content-Length:3", "abc")),
        (Pass, body("Content-Length: \t 3 \t", "abc")),
        (Pass, body("Content-Length: 003", "abc")),
        (Pass, body("content-LENGTH: 3", "abc")),
        (Pass, body("Content-Length: 0", "")),
    ]
}

/// Transfer-Encoding other than exactly chunked.
fn encodings() -> Vec<Request> {
    vec![
        // Encodings other than exactly chunked.
        (
            Refuse(400),
            body("Transfer-Encoding: xchunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: chunked, chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: chunked, identity", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: identity, chunked", "0\r\n\r\n"),
        ),
        (Refuse(400), body("Transfer-Encoding: identity", "")),
        (
            Refuse(400),
            body("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                "0\r\n\r\n",
            ),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
                "0\r\n\r\n",
            ),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
                "0\r\n\r\n",
            ),
        ),
        (Refuse(400), body("Transfer-Encoding:", "")),
        (
            Refuse(400),
            body("Transfer-Encoding: chunked;q=1", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: \"chunked\"", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: chunked,", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: ,chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: \x0bchunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding : chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding\t: chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding:\r\n chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("X: y\r\n Transfer-Encoding: chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            format!("POST / HTTP/1.0\r\n{H}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
                .into_bytes(),
        ),
        (Pass, body("Transfer-Encoding: Chunked", "0\r\n\r\n")),
        (
            Pass,
            body("transfer-encoding:\tchunked ", "3\r\nabc\r\n0\r\n\r\n"),
        ),
    ]
}

/// Chunks.
fn chunk_lines() -> Vec<Request> {
    vec![
        // Chunks.
        (Refuse(400), chunks("x\r\n")),
        (Refuse(400), chunks("\r\n0\r\n\r\n")),
        (Refuse(400), chunks("0x3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("+3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("-3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks(" 3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3 \r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3\r\nabc0\r\n\r\n")),
        (Refuse(400), chunks("3\r\nabcd\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3\r\nabc\n0\r\n\r\n")),
        (Refuse(400), chunks("3\r\nabc\r0\r\n\r\n")),
        (Refuse(400), chunks("3;a\nb\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3;\x00\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("00000000000000003\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("10000000000000000\r\nabc")),
        (Refuse(400), chunks("3,3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("0\r\nX\r\n\r\n")),
        (Refuse(400), chunks("0\r\n X: y\r\n\r\n")),
        (Refuse(400), chunks("0\r\nX: y\n\r\n")),
        (Refuse(400), chunks("0\r\nX: \x01\r\n\r\n")),
        (Refuse(400), chunks("0\n\n")),
        (Pass, chunks("0\r\n\r\n")),
        (Pass, chunks("000\r\n\r\n")),
        (Pass, chunks("3\r\nabc\r\n0\r\n\r\n")),
        (Pass, chunks("0000000000000003\r\nabc\r\n0\r\n\r\n")),
        (
            Pass,
            chunks("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n"),
        ),
        (Pass, chunks("3;x=\"y\";z\r\nabc\r\n0;last\r\n\r\n")),
        (Pass, chunks("0\r\nX-Sum: 1\r\nContent-Length: 7\r\n\r\n")),
    ]
}

/// Lengths, encodings and chunks.
#[expect(clippy::too_many_lines, reason = "a table")]
fn framing_games() -> Vec<Request> {
    let mut games = Vec::new();
    for length in [
        "3,",
        ",3",
        "3 3",
        "0 3",
        "3\t4",
        "=3",
        "0b11",
        "'3'",
        "$3",
        "3h",
        "%33",
        "1e1",
        "٣",
        "3\u{a0}",
        "\u{feff}3",
        "3\\0",
        "three",
        "3/1",
        "(3)",
        "[3]",
        "3:3",
        "#3",
        "*",
        "NaN",
        "Infinity",
        "null",
        "0x",
        "00x3",
        "3-",
        "3+0",
        "0,0",
        "-9223372036854775808",
    ] {
        games.push((
            Refuse(400),
            body(&format!("Content-Length: {length}"), "abc"),
        ));
    }
    for lines in [
        "Content-Length:\r\nContent-Length: 3",
        "Content-Length: 3\r\nX: y\r\nContent-Length: 3",
        "Content-Length: 3\r\nCONTENT-LENGTH: 03",
        "Content-Length: 0\r\nContent-Length: 3",
        "Content-Length: 3\r\nContent-Length: 0",
        "Content-Length: 3\r\nContent-Length: 3\r\nContent-Length: 3",
        "Content-Length : 3",
        "Content-Length\t: 3",
        " Content-Length: 3",
        "\tContent-Length: 3",
        "Content-\r\nLength: 3",
        "Content Length: 3",
        "Content-Length 3",
        "Content-Length= 3",
        "Content-Length\u{b}: 3",
        "Content-Length:\u{b}3",
        "Content-Length: 3\u{c}",
        "Content-Length:\r\n 3",
        "Content-Length:\r\n\t3",
        "X: y\r\n\tContent-Length: 3",
        "X:\r\n Content-Length: 3",
        "Content-Length: 3\nTransfer-Encoding: chunked",
        "Content-Length: 3\rTransfer-Encoding: chunked",
        "X: y\nContent-Length: 3",
        "X: y\rContent-Length: 3",
        "Content-Length: 3\r\nTransfer-Encoding: identity",
        "Content-Length: 3\r\nTransfer-Encoding:",
        "Content-Length: 3\r\ntransfer-encoding: CHUNKED",
        "TRANSFER-ENCODING: chunked\r\ncontent-length: 3",
        "Content-Length: 3\r\nTransfer-Encoding: x",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
        "Content-Length: 3\r\n Transfer-Encoding: chunked",
        "Content-Length: 3\r\nTransfer-Encoding : chunked",
        "Content-Length: 3\r\nTransfer-Encoding\u{b}: chunked",
        "Content-Length: 3\r\nTransfer-Encoding:\u{b}chunked",
    ] {
        games.push((Refuse(400), body(lines, "abc")));
    }
    for encoding in [
        "chunk",
        "chunkedx",
        "chun ked",
        "\"chunked",
        "chunked\"",
        "'chunked'",
        "chunked\u{a0}",
        "chunked ;",
        "chunked;",
        "chunked;x",
        "CHUNKED,identity",
        "x, chunked",
        "chunked x",
        "chunked chunked",
        "chunked,gzip",
        "br, chunked",
        "deflate",
        "compress",
        "trailers",
        "null",
        "cow, chunked",
        "chunked/1.1",
        "(chunked)",
        "chunked\\",
        "chunked\r\n\tx",
        "\r\n chunked",
        "chunked\r\nTransfer-Encoding:",
        "\r\nTransfer-Encoding: chunked",
        "%63hunked",
        "ｃhunked",
        "chunked\r\nX: y\r\nTransfer-Encoding: chunked",
        "identity\r\nTransfer-Encoding: chunked",
        "chunked\nX: y",
        "chunked\rX: y",
        "chunked,,",
        "identity, identity",
        "gzip;q=1, chunked",
    ] {
        games.push((
            Refuse(400),
            body(&format!("Transfer-Encoding: {encoding}"), "0\r\n\r\n"),
        ));
    }
    for wire in [
        "3 ;x\r\nabc\r\n0\r\n\r\n",
        "3\t\r\nabc\r\n0\r\n\r\n",
        "\t3\r\nabc\r\n0\r\n\r\n",
        "-0\r\n\r\n",
        "+0\r\n\r\n",
        "0x0\r\n\r\n",
        "0 \r\n\r\n",
        "0\u{b}\r\n\r\n",
        "0\r\nGET /smuggled HTTP/1.1\r\n\r\n",
        "0\r\n\r\r\n",
        "0\r\n\n",
        "0\r\r\n\r\n",
        "0\n\r\n",
        "3\r\r\nabc\r\n0\r\n\r\n",
        "3\n\rabc\r\n0\r\n\r\n",
        "3\rabc\r\n0\r\n\r\n",
        "3\r\nab\r\n0\r\n\r\n",
        "3\r\nabc\r\n\r\n0\r\n\r\n",
        "3\r\nabc\n\n0\r\n\r\n",
        "3\r\nabc\r\r\n0\r\n\r\n",
        "3;a=\"b\r\nc\"\r\nabc\r\n0\r\n\r\n",
        "3;a\u{7f}\r\nabc\r\n0\r\n\r\n",
        "3;\rx\r\nabc\r\n0\r\n\r\n",
        "3;x\nabc\r\n0\r\n\r\n",
        "3;x\r\r\nabc\r\n0\r\n\r\n",
        "g\r\n",
        "３\r\nabc\r\n0\r\n\r\n",
        "3\u{a0}\r\nabc\r\n0\r\n\r\n",
        "3.\r\nabc\r\n0\r\n\r\n",
        "'3'\r\nabc\r\n0\r\n\r\n",
        "3h\r\nabc\r\n0\r\n\r\n",
        "0x\r\n\r\n",
        "3_0\r\nabc\r\n0\r\n\r\n",
        "1 0\r\nabc\r\n0\r\n\r\n",
        "#3\r\nabc\r\n0\r\n\r\n",
        "3=\r\nabc\r\n0\r\n\r\n",
        "%33\r\nabc\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        ";x\r\nabc\r\n0\r\n\r\n",
        "0\r\nX: y\r\n z\r\n\r\n",
        "0\r\n: y\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\nX: y\r\nX\r\n\r\n",
        "0\r\nX: y\rz\r\n\r\n",
        "0\r\nX: y\nz: 1\r\n\r\n",
        "0\r\nX: \0\r\n\r\n",
        "0\r\n\tX: y\r\n\r\n",
        "0\r\nX(: y\r\n\r\n",
    ] {
        games.push((Refuse(400), chunks(wire)));
    }
    for wire in [
        "3; x=y\r\nabc\r\n0\r\n\r\n",
        "3;x=y;z=\"; \t\"\r\nabc\r\n0\r\n\r\n",
        "03\r\nabc\r\n0000000000000000\r\n\r\n",
        "1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n",
        "2\r\n\r\n\r\n0\r\n\r\n",
        "5\r\n0\r\n\r\n\r\n0\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "0\r\nHost: other.example\r\n\r\n",
        "0\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n",
        "0\r\nAuthorization: Basic x\r\nCookie: a=b\r\n\r\n",
    ] {
        games.push((Pass, chunks(wire)));
    }
    for lines in [
        "TE: chunked\r\nContent-Length: 3",
        "Connection: content-length\r\nContent-Length: 3",
        "Connection: transfer-encoding, host, te\r\nContent-Length: 3",
        "Content-Encoding: chunked\r\nContent-Length: 3",
        "Length: 9\r\nContent-Length: 3",
        "Content-Length: 0000000000000000000000003",
        "Expect: 100-continue\r\nContent-Length: 3",
        "Expect: 100-Continue\r\nContent-Length: 3",
        "Trailer: content-length\r\nContent-Length: 3",
    ] {
        games.push((Pass, body(lines, "abc")));
    }
    for expectation in [
        "",
        "100-continue, x",
        "100",
        "x, 100-continue",
        "200-ok, 100-continue",
    ] {
        games.push((
            Refuse(417),
            body(&format!("Expect: {expectation}\r\nContent-Length: 0"), ""),
        ));
    }
    games
}
