use proptest::prelude::*;

use super::*;

/// The verdict on `bytes` cut into pieces of at most `step`, and how many were taken.
fn read(bytes: &[u8], step: usize) -> (usize, Progress, u64) {
    let mut framing = Framing::new();
    let mut taken = 0;
    let mut progress = Progress::More;
    for piece in bytes.chunks(step.max(1)) {
        let (some, now) = framing.feed(piece);
        taken += some;
        progress = now;
        if now != Progress::More {
            break;
        }
    }
    (taken, progress, framing.payload().bytes())
}

#[test]
fn messages_end_where_they_say() {
    let get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(read(get, 1000), (get.len(), Progress::End, 0));

    let two = [&get[..], b"GET /2"].concat();
    assert_eq!(read(&two, 1000), (get.len(), Progress::End, 0));

    let post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET";
    assert_eq!(read(post, 7), (post.len() - 3, Progress::End, 5));

    let chunks = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n\
                   5;x=1\r\nhello\r\n0A\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\n";
    assert_eq!(read(chunks, 3), (chunks.len(), Progress::End, 15));
}

#[test]
fn an_unfinished_message_is_no_verdict() {
    let mut framing = Framing::new();
    assert!(framing.is_untouched());
    assert_eq!(framing.feed(b"GET / HT"), (8, Progress::More));
    assert!(!framing.is_untouched() && !framing.has_head());
    assert_eq!(
        framing
            .feed(b"TP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n!")
            .1,
        Progress::More
    );
    assert!(framing.has_head() && !framing.is_ended());
}

#[test]
fn limits_are_inclusive() {
    let line = |target: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(target));
    let overhead = "GET / HTTP/1.1".len();
    let fits = line(REQUEST_LINE_BYTES_MAX - overhead);
    assert_eq!(read(fits.as_bytes(), 999).1, Progress::End);
    let long = line(REQUEST_LINE_BYTES_MAX - overhead + 1);
    assert_eq!(
        read(long.as_bytes(), 999).1,
        Progress::Refused(Violation::TargetTooLong)
    );

    let fields = |n: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "x: y\r\n".repeat(n));
    assert_eq!(
        read(fields(FIELDS_MAX - 1).as_bytes(), 999).1,
        Progress::End
    );
    assert_eq!(
        read(fields(FIELDS_MAX).as_bytes(), 999).1,
        Progress::Refused(Violation::FieldsTooLarge)
    );

    let value = |n: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "y".repeat(n));
    assert_eq!(
        read(value(FIELD_LINE_BYTES_MAX - 3).as_bytes(), 999).1,
        Progress::End
    );
    assert_eq!(
        read(value(FIELD_LINE_BYTES_MAX - 2).as_bytes(), 999).1,
        Progress::Refused(Violation::FieldsTooLarge)
    );
}

#[test]
fn an_endless_line_is_refused_before_its_end() {
    let mut framing = Framing::new();
    let mut fed = 0;
    while framing.feed(&[b'a'; 1000]).1 == Progress::More {
        fed += 1000;
        assert!(fed < REQUEST_LINE_BYTES_MAX + 2000);
    }
}

/// The first byte shows that it is another protocol, so nothing waits for the end of a line.
#[test]
fn what_begins_no_method_is_refused_at_its_first_byte() {
    for first in [0, b' ', b'{', 0x16, 0x80] {
        let refused = Progress::Refused(Violation::Malformed("the method is not a token"));
        assert_eq!(read(&[first], 1).1, refused, "{first}");
        assert_eq!(read(&[b'\r', b'\n', first], 1).1, refused, "{first}");
    }
    for first in [b'G', b'!', b'\r', b'\n'] {
        let refused = matches!(read(&[first], 1).1, Progress::Refused(_));
        assert_eq!(refused, first == b'\n', "{first}");
    }
}

proptest! {
    #[test]
    fn cutting_changes_nothing(bytes in request_like(), step in 1usize..40) {
        let whole = read(&bytes, usize::MAX);
        let cut = read(&bytes, step);
        prop_assert_eq!(whole.1, cut.1);
        if whole.1 == Progress::End {
            prop_assert_eq!(whole, cut);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), step in 1usize..40) {
        let (taken, _, _) = read(&bytes, step);
        prop_assert!(taken <= bytes.len());
    }

    #[test]
    fn httparse_agrees(bytes in request_like()) {
        crate::fuzz::request(&bytes);
    }
}

/// Bytes near a request: good parts in any order.
fn request_like() -> impl Strategy<Value = Vec<u8>> {
    let part = proptest::sample::select(vec![
        &b"GET / HTTP/1.1\r\n"[..],
        &b"POST /x?y HTTP/1.1\r\n"[..],
        &b"Host: a\r\n"[..],
        &b"Content-Length: 5\r\n"[..],
        &b"Transfer-Encoding: chunked\r\n"[..],
        &b"X: y\r\n"[..],
        &b"\r\n"[..],
        &b"\n"[..],
        &b"\r"[..],
        &b" "[..],
        &b"\x00"[..],
        &b":"[..],
        &b"hello"[..],
        &b"5\r\nhello\r\n"[..],
        &b"5;a=b\r\nhello\r\n"[..],
        &b"0\r\n\r\n"[..],
    ]);
    (any::<bool>(), proptest::collection::vec(part, 0..10)).prop_map(|(starts, parts)| {
        let start: &[u8] = if starts {
            b"POST / HTTP/1.1\r\nHost: b\r\n"
        } else {
            b""
        };
        [start, &parts.concat()].concat()
    })
}
