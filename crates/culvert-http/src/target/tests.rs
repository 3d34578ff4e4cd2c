use super::*;

fn path_of(target: &str) -> Result<String, Wrong> {
    let read = read(&Bytes::copy_from_slice(target.as_bytes()), false)?;
    let local = read.uri.path_and_query().unwrap();
    let merged = merge_slashes(local)?.unwrap_or_else(|| local.clone());
    Ok(merged.to_string())
}

#[test]
fn paths_become_normal() {
    for (target, expected) in [
        ("/", "/"),
        ("/a", "/a"),
        ("/?", "/?"),
        ("/a?b=%zz&c=../..//", "/a?b=%zz&c=../..//"),
        ("/admin/../public", "/public"),
        ("/admin/%2e%2e/public", "/public"),
        ("/admin/%2E%2e/public", "/public"),
        ("/admin/.%2e/public", "/public"),
        ("/admin\\..\\public", "/public"),
        ("//admin", "/admin"),
        ("/\\admin", "/admin"),
        ("///a////b//", "/a/b/"),
        ("/a//../b", "/a/b"),
        ("/a/.", "/a/"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/..", "/"),
        ("/../../a", "/a"),
        ("/./a/./b", "/a/b"),
        ("/a/b/c/./../../g", "/a/g"),
        ("/mid/content=5/../6", "/mid/6"),
        ("/...", "/..."),
        ("/.well-known/a", "/.well-known/a"),
        ("/a..", "/a.."),
        ("/%61dmin", "/admin"),
        ("/%7euser", "/~user"),
        ("/%2d%2D", "/--"),
        ("/a%20b%c3%a9", "/a%20b%C3%A9"),
        ("/%3a%3A:", "/%3A%3A:"),
        ("/{a}|[b]^\"", "/%7Ba%7D%7C%5Bb%5D%5E%22"),
        ("/<`>", "/%3C%60%3E"),
        ("/café", "/caf%C3%A9"),
        ("/é/../ü", "/%C3%BC"),
        ("/?é<\">`{|}^[]\\", "/?%C3%A9%3C%22%3E%60{|}^[]\\"),
        ("/%252e%252e/a", "/%252e%252e/a"),
        ("/%2561", "/%2561"),
        ("/group%2fproject", "/group%2Fproject"),
        ("/a%5cb", "/a%5Cb"),
        ("/a;x=1/b;y", "/a;x=1/b;y"),
        ("/;jsessionid=1", "/;jsessionid=1"),
        ("/api/queues/%2f", "/api/queues/%2F"),
        ("/a%2f", "/a%2F"),
        ("/a%0d%0a", "/a%0D%0A"),
        ("/http://x/", "/http:/x/"),
        ("http://h", "/"),
        ("HTTP://h?q", "/?q"),
        ("https://h:1/a/../b?q", "/b?q"),
    ] {
        assert_eq!(path_of(target).as_deref(), Ok(expected), "{target}");
    }
}

#[test]
fn doubtful_targets_are_refused() {
    for target in [
        "",
        "*",
        "a",
        "?a",
        "#",
        "/a#b",
        "/a b",
        "/\u{7f}",
        "/\u{1}",
        "/?\u{1}",
        "/?a b",
        "/%",
        "/%4",
        "/%zz",
        "/%u0041",
        "/%2",
        "/%00",
        "/a%00b",
        "/..%2fa",
        "/a%2f..",
        "/a/%2e%2e%2fb",
        "/%2e%2e%5cb",
        "/.%2Fa",
        "/..;/a",
        "/..;x=y/a",
        "/.;/a",
        "/..%3ba/b",
        "/a%2f..;x/b",
        "/%2fa",
        "/a%2f/b",
        "/a/%2f/b",
        "/a%2f%2fb",
        "/a%5c%2fb",
        "/;/a",
        "/;x/a",
        "/a/;x/b",
        "/%3b/a",
        "http://",
        "http:///a",
        "http://u@h/",
        "ftp://h/",
        "http://h#",
        "http://h\\a",
        "https:/h",
        "//%2fa",
        "/a/..%2f/../b",
    ] {
        assert!(path_of(target).is_err(), "{target}");
    }
    assert!(read(&Bytes::from_static(b"*"), true).is_ok());
    assert!(read_path(&Bytes::from_static(b"*"), true).is_ok());
    for path in ["", "*", "?q", "a", "http://h/a", "/a b", "/a#b"] {
        assert!(read_path(&Bytes::from(path), false).is_err(), "{path}");
    }
    for made in ["a", "*", "/a b", "/%zz", "/a/..%2fb", "/a#b"] {
        assert!(settle(made, false).is_err(), "{made}");
    }
    for (made, settled) in [
        ("/a/../b?c", "/b?c"),
        ("?c", "/?c"),
        ("", "/"),
        ("/é?é", "/%C3%A9?%C3%A9"),
        ("//a", "//a"),
    ] {
        assert_eq!(settle(made, false).unwrap(), settled);
    }
    assert_eq!(settle("//a", true).unwrap(), "/a");
}

/// Paths that keep empty segments get escaped ones, too, but for a first one that rules would not see.
#[test]
fn empty_segments_stay_where_they_are_kept() {
    for path in [
        "/;x/a",
        "/%2Fa",
        "/%5ca",
        "/%2F/a",
        "/%2f%2fa",
        "/a/../%2Fb",
    ] {
        assert!(read_path(&Bytes::from(path), false).is_err(), "{path}");
    }
    for path in [
        "//a",
        "/a//",
        "/api/queues/%2F/name",
        "/;x",
        "/%2F",
        "/a%2F/b",
        "/a//..//b",
    ] {
        let local = read_path(&Bytes::from(path), false).unwrap().0;
        let expected = path.replace("//..", "");
        assert_eq!(local, expected.as_str(), "{path}");
    }
}

#[test]
fn what_came_is_kept_where_it_matters() {
    let read = |target| read(&Bytes::from_static(target), true).unwrap();
    assert_eq!(read(b"/a/b.c?d").received, None);
    let changed = read(b"http://h/a/../b?c");
    assert_eq!(changed.uri, "http://h/b?c");
    let received = changed.received.unwrap();
    assert_eq!(
        (received.path(), received.target()),
        ("/a/../b", "/a/../b?c")
    );
    assert_eq!(read(b"http://h?c").received.unwrap().path(), "");
    // RFC 9112 3.2.4.
    assert_eq!(read(b"http://h:1").uri.path(), "*");
    assert_eq!(read(b"http://h:1/").uri.path(), "/");
}

/// A request line may hold bytes that are no text.
#[test]
fn bytes_beyond_ascii_are_escaped_in_what_was_received_too() {
    for byte in 0x80..=0xFF_u8 {
        let target = Bytes::from(vec![b'/', byte, b'?', byte]);
        assert_eq!(check(&target, false), Ok(false));
        let escaped = format!("/%{byte:02X}?%{byte:02X}");
        let read = read(&target, false).unwrap();
        assert_eq!(read.uri, escaped.as_str());
        assert_eq!(read.received.unwrap().target(), escaped);
        let (path, received) = read_path(&target, false).unwrap();
        assert_eq!(path, escaped.as_str());
        assert_eq!(received.unwrap().target(), escaped);
    }
}

#[test]
fn a_plain_target_shares_memory() {
    let bytes = Bytes::from_static(b"/a/b-c.d_e~f/(g)?h=i");
    let uri = read(&bytes, false).unwrap().uri;
    assert_eq!(uri.path().as_ptr(), bytes.as_ptr());
}

#[test]
fn an_escaped_target_is_as_long_as_any_other() {
    let third = (TARGET_BYTES_MAX - 1) / 3;
    let long = |byte: &[u8], count| Bytes::from([b"/", &*byte.repeat(count)].concat());
    for byte in [&b"\xE9"[..], b"<", b"\""] {
        let fits = long(byte, third);
        assert!(read(&fits, false).is_ok() && read_path(&fits, false).is_ok());
        let over = long(byte, third + 1);
        assert_eq!(read(&over, false), Err(TOO_LONG));
        assert_eq!(read_path(&over, false), Err(TOO_LONG));
    }
    // What was received is seen too, whatever it becomes.
    let removed = [&long(b"\xE9", third + 1)[..], b"/.."].concat();
    assert_eq!(read(&removed.into(), false), Err(TOO_LONG));
    let query = [b"/?", &*b"\xE9".repeat(third + 1)].concat();
    assert_eq!(read(&query.into(), false), Err(TOO_LONG));
}
