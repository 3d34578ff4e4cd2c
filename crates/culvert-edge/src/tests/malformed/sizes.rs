//! Sizes at their limits and one over, and expectations.

use culvert_http::http1::limits::{
    CHUNK_EXTENSION_BYTES_MAX, FIELD_LINE_BYTES_MAX, FIELD_SECTION_BYTES_MAX, FIELDS_MAX,
    REQUEST_LINE_BYTES_MAX, TRAILER_BYTES_MAX, TRAILERS_MAX,
};

use super::*;

pub(super) fn requests() -> Vec<Request> {
    [large(), sizes()].concat()
}

/// Large requests, and expectations.
fn large() -> Vec<Request> {
    let long = |n: usize| "x".repeat(n);
    vec![
        // Expectations, and sizes at and over their limits.
        (Refuse(417), body("Expect: 200-ok\r\nContent-Length: 0", "")),
        (
            Refuse(414),
            line(&format!("GET /{} HTTP/1.1", long(16 << 10))),
        ),
        (Pass, line(&format!("GET /{} HTTP/1.1", long(15 << 10)))),
        (Refuse(431), field(&format!("X: {}", long(33 << 10)))),
        (Pass, field(&format!("X: {}", long(31 << 10)))),
        (
            Refuse(431),
            field(&format!("{}X: y", "X: y\r\n".repeat(127))),
        ),
        (Pass, field(&format!("{}X: y", "X: y\r\n".repeat(120)))),
        (
            Refuse(431),
            field(&format!("A: {0}\r\nB: {0}\r\nC: {0}", long(22 << 10))),
        ),
        (
            Refuse(400),
            chunks(&format!("3;{}\r\nabc\r\n0\r\n\r\n", long(300))),
        ),
        (
            Refuse(400),
            chunks(&format!("0\r\nX: {}\r\n\r\n", long(9 << 10))),
        ),
        (
            Refuse(400),
            chunks(&format!("0\r\n{}\r\n", "X: y\r\n".repeat(33))),
        ),
        (
            Pass,
            chunks(&format!("3;{}\r\nabc\r\n0\r\n\r\n", long(200))),
        ),
    ]
}

/// Sizes at their limits, and one over.
fn sizes() -> Vec<Request> {
    let long = |n: usize| "x".repeat(n);
    let target = REQUEST_LINE_BYTES_MAX - "GET / HTTP/1.1".len();
    let value = FIELD_LINE_BYTES_MAX - "X: ".len();
    // The rest of a section beside the host, in three lines.
    let third = (FIELD_SECTION_BYTES_MAX - H.len()) / 3;
    let last = FIELD_SECTION_BYTES_MAX - H.len() - 2 * third;
    let section = |last: usize| {
        let [a, b, c] = [third, third, last].map(|n| long(n - "A: \r\n".len()));
        field(&format!("A: {a}\r\nB: {b}\r\nC: {c}"))
    };
    let fields = |n: usize| field("X: y\r\n".repeat(n - 1).trim_end());
    let trailer = TRAILER_BYTES_MAX - "X: \r\n".len();
    let trailers = |n: usize| chunks(&format!("0\r\n{}\r\n", "X: y\r\n".repeat(n)));
    let extension = CHUNK_EXTENSION_BYTES_MAX - ";".len();
    let chunk = |n: usize| chunks(&format!("3;{}\r\nabc\r\n0\r\n\r\n", long(n)));
    vec![
        (Pass, line(&format!("GET /{} HTTP/1.1", long(target)))),
        (
            Refuse(414),
            line(&format!("GET /{} HTTP/1.1", long(target + 1))),
        ),
        (Pass, line(&format!("GET /?{} HTTP/1.1", long(target - 1)))),
        (
            Refuse(414),
            line(&format!("GET /?{} HTTP/1.1", long(target))),
        ),
        // Each escaped byte is three.
        (
            Refuse(414),
            line(&format!("GET /{} HTTP/1.1", "{".repeat((16 << 10) / 3 + 1))),
        ),
        (
            Refuse(414),
            line(&format!("GET /{} HTTP/1.1", "é".repeat(3 << 10))),
        ),
        (Refuse(414), line(&format!("{} / HTTP/1.1", long(17 << 10)))),
        (
            Refuse(414),
            line(&format!("GET / HTTP/1.1{}", long(17 << 10))),
        ),
        (Pass, field(&format!("X: {}", long(value)))),
        (Refuse(431), field(&format!("X: {}", long(value + 1)))),
        (
            Refuse(431),
            field(&format!("{}: x", long(FIELD_LINE_BYTES_MAX))),
        ),
        (Pass, section(last)),
        (Refuse(431), section(last + 1)),
        (Pass, fields(FIELDS_MAX)),
        (Refuse(431), fields(FIELDS_MAX + 1)),
        (Pass, trailers(TRAILERS_MAX)),
        (Refuse(400), trailers(TRAILERS_MAX + 1)),
        (Pass, chunks(&format!("0\r\nX: {}\r\n\r\n", long(trailer)))),
        (
            Refuse(400),
            chunks(&format!("0\r\nX: {}\r\n\r\n", long(trailer + 1))),
        ),
        (Pass, chunk(extension)),
        (Refuse(400), chunk(extension + 1)),
        (
            Pass,
            chunks(&format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(2_000))),
        ),
        (Pass, body("Content-Length: 70000", &long(70_000))),
        (
            Refuse(400),
            format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", long(254)).into_bytes(),
        ),
        (Pass, line(&format!("{} / HTTP/1.1", "M".repeat(200)))),
    ]
}
