use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The text of the map that `lines` become.
fn map_of(rules: &HeaderRules, cookies: Cookies, lines: &[(&[u8], &[u8])]) -> String {
    let mut out = b"before".to_vec();
    push_map(&mut out, rules, cookies, lines.iter().copied());
    let text = String::from_utf8(out).unwrap();
    text.strip_prefix("before").unwrap().to_owned()
}

#[track_caller]
fn check(lines: &[(&str, &str)], expected: &str) {
    let lines: Vec<_> = lines
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect();
    assert_eq!(
        map_of(&HeaderRules::default(), Cookies::AsReceived, &lines),
        expected
    );
}

#[test]
fn names() {
    for (name, key) in [
        ("content-type", "Content-Type"),
        ("X-UA-COMPATIBLE", "X-Ua-Compatible"),
        ("ETag", "Etag"),
        ("www-authenticate", "Www-Authenticate"),
        ("x_foo", "X_foo"),
        ("dnt", "Dnt"),
        ("a", "A"),
        ("-", "-"),
        ("--a--b", "--A--B"),
        ("1a-2b", "1a-2b"),
        ("abcdefg-h", "Abcdefg-H"),
        ("abcdefgh-i", "Abcdefgh-I"),
        ("sec-websocket-extensions", "Sec-Websocket-Extensions"),
        ("!#$%&'*+-.^_`|~Z", "!#$%&'*+-.^_`|~z"),
    ] {
        check(&[(name, "")], &format!(r#"{{"{key}":[""]}}"#));
    }
}

#[test]
fn values() {
    for (value, expected) in [
        ("", ""),
        (" \t ", ""),
        ("\t Text/HTML; charset=UTF-8 ", "text/html; charset=utf-8"),
        ("a, B ,c", "a, b ,c"),
        ("ÀÉ ABC", "ÀÉ abc"),
        ("@AZ[`az{", "@az[`az{"),
        (r#"W/"0815""#, r#"w/\"0815\""#),
        ("a\tB", "a\\tb"),
        (r"C:\X", r"c:\\x"),
        ("\u{1}\u{1f}\u{7f}", "\\u0001\\u001f\u{7f}"),
    ] {
        check(&[("x", value)], &format!(r#"{{"X":["{expected}"]}}"#));
    }
    let latin = map_of(
        &HeaderRules::default(),
        Cookies::AsReceived,
        &[(b"x", b"caf\xE9 \xC9T")],
    );
    assert_eq!(latin, r#"{"X":["café Ét"]}"#);
}

#[test]
fn values_of_a_name_stand_together_in_order() {
    check(&[], "{}");
    check(
        &[("Via", "a"), ("VIA", ""), ("via", "b, c")],
        r#"{"Via":["a","","b, c"]}"#,
    );
    check(
        &[
            ("b", "1"),
            ("a", "2"),
            ("B", "3"),
            ("c", "4"),
            ("a", "5"),
            ("b", "6"),
            ("b", "7"),
            ("d", "8"),
        ],
        r#"{"B":["1","3","6","7"],"A":["2","5"],"C":["4"],"D":["8"]}"#,
    );
}

#[test]
fn credentials_are_redacted_one_for_one() {
    check(
        &[
            ("AUTHORIZATION", "Bearer abc"),
            ("set-cookie", "a=1"),
            ("x", "y"),
            ("Set-Cookie", "b=2"),
            ("proxy-authorization", "q"),
            ("cookie", ""),
            ("x-api-key", "k"),
            ("x-api-keys", "k"),
        ],
        r#"{"Authorization":["[redacted]"],"Set-Cookie":["[redacted]","[redacted]"],"X":["y"],"Proxy-Authorization":["[redacted]"],"Cookie":["[redacted]"],"X-Api-Key":["[redacted]"],"X-Api-Keys":["k"]}"#,
    );
    let lines: [(&[u8], &[u8]); 2] = [(b"cookie", b"A=1"), (b"x-secret", b"2")];
    let more = HeaderRules::redacting(&["X-SECRET"], &[]);
    assert_eq!(
        map_of(&more, Cookies::AsReceived, &lines),
        r#"{"Cookie":["[redacted]"],"X-Secret":["[redacted]"]}"#
    );
    let off = HeaderRules::redacting::<&str>(&[], &[]);
    assert_eq!(
        map_of(&off, Cookies::AsReceived, &lines),
        r#"{"Cookie":["a=1"],"X-Secret":["2"]}"#
    );
}

#[test]
fn cookies_of_http2_are_one_value() {
    let lines: [(&[u8], &[u8]); 6] = [
        (b"cookie", b"A=1"),
        (b"cookie", b"b=2"),
        (b"x", b"y"),
        (b"cookie", b"c=3 "),
        (b"cookie", b"d=4"),
        (b"x", b"z"),
    ];
    let off = HeaderRules::redacting::<&str>(&[], &[]);
    assert_eq!(
        map_of(&off, Cookies::Joined, &lines),
        r#"{"Cookie":["a=1; b=2; c=3; d=4"],"X":["y","z"]}"#
    );
    assert_eq!(
        map_of(&HeaderRules::default(), Cookies::Joined, &lines),
        r#"{"Cookie":["[redacted]"],"X":["y","z"]}"#
    );
}

#[test]
fn whole_names_are_dropped_from_the_end_beyond_the_cap() {
    let large = "v".repeat(MAP_BYTES_MAX - 3);
    // 1 + (cap - 3) + 1 + 1: exactly the limit.
    check(
        &[("a", &large), ("b", "1")],
        &format!(r#"{{"A":["{large}"],"B":["1"]}}"#),
    );
    check(
        &[("a", &large), ("b", "12")],
        &format!(r#"{{"A":["{large}"]}}"#),
    );
    check(
        &[("a", &large), ("b", "12"), ("c", "")],
        &format!(r#"{{"A":["{large}"]}}"#),
    );
    // A later value is added to the first occurrence of its name.
    check(
        &[("a", &large), ("b", ""), ("a", "1")],
        &format!(r#"{{"A":["{large}","1"],"B":[""]}}"#),
    );
    check(
        &[("a", &large), ("b", ""), ("a", "12")],
        &format!(r#"{{"A":["{large}","12"]}}"#),
    );
    let huge = "v".repeat(MAP_BYTES_MAX);
    check(&[("a", &huge), ("b", "1")], "{}");
    check(&[("a", "1"), ("b", &huge)], r#"{"A":["1"]}"#);
    // The limit applies to the text before escaping.
    check(
        &[("a", &large), ("\"", "1")],
        &format!(r#"{{"A":["{large}"],"\"":["1"]}}"#),
    );
}

/// A slow implementation that follows the contract literally.
fn by_the_book(
    rules: &[&str],
    cookies: Cookies,
    lines: &[(Vec<u8>, Vec<u8>)],
) -> Vec<(String, Vec<String>)> {
    let mut map: Vec<(String, Vec<String>)> = Vec::new();
    for (name, value) in lines {
        let mut key = String::new();
        let mut begins = true;
        for character in decode(name).chars() {
            key.push(if begins {
                character.to_ascii_uppercase()
            } else {
                character.to_ascii_lowercase()
            });
            begins = character == '-';
        }
        let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
        let first = value
            .iter()
            .position(|byte| !blank(byte))
            .unwrap_or(value.len());
        let end = value
            .iter()
            .rposition(|byte| !blank(byte))
            .map_or(first, |last| last + 1);
        let redacted = rules.iter().any(|rule| rule.eq_ignore_ascii_case(&key));
        let value = if redacted {
            "[redacted]".to_owned()
        } else {
            decode(&value[first..end]).to_ascii_lowercase()
        };
        let is_cookie = cookies == Cookies::Joined && key == "Cookie";
        match map.iter_mut().find(|(known, _)| *known == key) {
            Some(_) if is_cookie && redacted => {}
            Some((_, values)) if is_cookie => {
                let joined = format!("{}; {value}", values[0]);
                values[0] = joined;
            }
            Some((_, values)) => values.push(value),
            None => map.push((key, vec![value])),
        }
    }
    let mut bytes = 0;
    map.retain(|(key, values)| {
        bytes += key.len() + values.iter().map(String::len).sum::<usize>();
        bytes <= MAP_BYTES_MAX
    });
    map
}

fn text_of(map: &[(String, Vec<String>)]) -> String {
    let entries: Vec<String> = map
        .iter()
        .map(|(key, values)| format!("{}:{}", json!(key), json!(values)))
        .collect();
    format!("{{{}}}", entries.join(","))
}

fn any_line() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let name = prop_oneof![
        4 => "[abAB]{1,2}".prop_map(String::into_bytes),
        2 => "[a-zA-Z0-9-]{1,30}".prop_map(String::into_bytes),
        2 => prop::sample::select(vec!["cookie", "Cookie", "set-cookie", "X-API-KEY"])
            .prop_map(|name| name.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ];
    let value = prop_oneof![
        4 => "[ -~]{0,40}".prop_map(String::into_bytes),
        1 => ".{0,20}".prop_map(String::into_bytes),
        2 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (0..20_000usize).prop_map(|length| vec![b'V'; length]),
    ];
    (name, value)
}

proptest! {
    #[test]
    fn any_lines_become_what_the_contract_says(
        lines in prop::collection::vec(any_line(), 0..24),
        joined: bool,
        redact: bool,
    ) {
        let cookies = if joined { Cookies::Joined } else { Cookies::AsReceived };
        let names: &[&str] = if redact { &HeaderRules::REDACTED } else { &[] };
        let borrowed: Vec<(&[u8], &[u8])> =
            lines.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        let text = map_of(&HeaderRules::redacting(names, &[]), cookies, &borrowed);
        prop_assert_eq!(&text, &text_of(&by_the_book(names, cookies, &lines)));
        let parsed: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(parsed.is_object());
    }
}

#[test]
fn parameters_that_are_credentials_are_redacted() {
    let rules = HeaderRules::default();
    for (query, expected) in [
        ("", ""),
        ("a=b", "a=b"),
        ("token=x", "token=[redacted]"),
        ("token=", "token="),
        ("token", "token"),
        ("a=b&access_token=x&c=d", "a=b&access_token=[redacted]&c=d"),
        (
            "accessToken=x;API-Key=y",
            "accessToken=[redacted];API-Key=[redacted]",
        ),
        (
            "X-Amz-Signature=a%20b&x=y",
            "X-Amz-Signature=[redacted]&x=y",
        ),
        // A sign-in, from the redirect to the provider to the link to the endpoint.
        (
            "client_id=a&state=s&nonce=n&code_challenge=c",
            "client_id=a&state=[redacted]&nonce=[redacted]&code_challenge=c",
        ),
        ("code=c&state=s", "code=[redacted]&state=[redacted]"),
        ("ticket=t", "ticket=[redacted]"),
        ("tokens=x&my_token=y", "tokens=x&my_token=y"),
        ("a=é&password==x=y&&", "a=é&password=[redacted]&&"),
    ] {
        assert_eq!(rules.query(query), expected);
    }
    let more = HeaderRules::redacting(&[], &["My-Key"]);
    assert_eq!(
        more.query("my_key=a&jwt=b"),
        "my_key=[redacted]&jwt=[redacted]"
    );
    let nameless = HeaderRules::redacting(&[], &["-"]);
    assert_eq!(nameless.query("_=a&b=c&=d"), "_=[redacted]&b=c&=[redacted]");
    let off = HeaderRules::redacting::<&str>(&[], &[]);
    assert_eq!(off.query("token=a"), "token=a");

    let lines: Vec<(&[u8], &[u8])> = vec![
        (b"Referer", b"https://a.example/?token=abc&x=y"),
        (b"Location", b"https://b.example/#id_token=abc"),
        (b"Location", b"/?x=y"),
        (b"X-Url", b"https://c.example/?token=abc"),
    ];
    assert_eq!(
        map_of(&rules, Cookies::AsReceived, &lines),
        "{\"Referer\":[\"https://a.example/?token=[redacted]&x=y\"],\
         \"Location\":[\"https://b.example/#id_token=[redacted]\",\"/?x=y\"],\
         \"X-Url\":[\"https://c.example/?token=abc\"]}"
    );
}

proptest! {
    #[test]
    fn lines_are_written_as_with_an_empty_cache(
        picks in proptest::collection::vec((0usize..6, 0usize..6), 1..400),
    ) {
        const NAMES: [&[u8]; 6] = [b"Accept", b"accept", b"Cookie", b"Vary", b"X-A", b"x-b"];
        const VALUES: [&[u8]; 6] = [b"a", b"A", b" b", b"b", b"\"", b"long value of a header"];
        let rules = HeaderRules::default();
        for lines in picks.chunks(5) {
            let lines: Vec<_> = lines.iter().map(|(name, value)| (NAMES[*name], VALUES[*value])).collect();
            let here = map_of(&rules, Cookies::AsReceived, &lines);
            let cache = CACHE.take();
            prop_assert_eq!(here, map_of(&rules, Cookies::AsReceived, &lines));
            CACHE.set(cache);
        }
    }
}

#[test]
fn a_line_that_occurs_again_is_written_as_before() {
    let lines: Vec<(&[u8], &[u8])> = vec![
        (b"host", b"App.example"),
        (b"X-Token", b"Abc"),
        (b"ACCEPT", b" */* "),
        (b"Accept", b"text/Html"),
        (b"x-odd", b"\"caf\xE9\""),
        (b"Referer", b"https://a.example/?token=abc"),
        (b"Culvert-Replay-Of", b"ev_3MNwake7NlaYWxjRh9bXOmHaq4T"),
    ];
    let strict = HeaderRules::redacting(&["x-token"], &["token"]);
    let off = HeaderRules::redacting::<&str>(&[], &[]);
    let written = |rules| map_of(rules, Cookies::AsReceived, &lines);
    let expected = [&strict, &off].map(|rules| {
        // A thread has its own cache, so this one is empty.
        std::thread::scope(|scope| scope.spawn(|| written(rules)).join().unwrap())
    });
    assert!(expected[0].contains("\"X-Token\":[\"[redacted]\"]"));
    assert!(expected[1].contains("\"X-Token\":[\"abc\"]"));
    for _ in 0..100 {
        for (rules, expected) in [&strict, &off].into_iter().zip(&expected) {
            assert_eq!(written(rules), *expected);
        }
    }
    let mut cache = CACHE.take().unwrap().lines;
    let mut is_kept =
        |rules: &HeaderRules, line: (&[u8], &[u8])| cache.get(rules, line.0, line.1).is_some();
    assert!(is_kept(&strict, lines[0]) || is_kept(&off, lines[0]));
    for secret in [lines[1], lines[5]] {
        assert!(!is_kept(&strict, secret));
    }
}

#[test]
fn a_map_that_occurs_again_is_copied_and_has_no_credentials() {
    let rules = HeaderRules::default();
    let written = |agent: &[u8], cookie: &[u8], more: Option<(&[u8], &[u8])>| {
        let lines = [
            (&b"Host"[..], &b"a.example"[..]),
            (b"Cookie", cookie),
            (b"Agent", agent),
        ];
        let lines: Vec<_> = lines.into_iter().chain(more).collect();
        map_of(&rules, Cookies::AsReceived, &lines)
    };
    for _ in 0..10 {
        written(b"One", b"secret=1", None);
    }
    let expected = r#"{"Host":["a.example"],"Cookie":["[redacted]"],"Agent":["one"]}"#;
    assert_eq!(written(b"One", b"secret=2", None), expected);
    let of_this_thread = CACHE.take().unwrap();
    let text = format!("{:?}", of_this_thread.maps);
    assert!(
        !text.contains(&format!("{:?}", b"secret").replace(['[', ']'], "")),
        "{text}"
    );
    let mut maps = of_this_thread.maps;
    let lines: [Line<'_>; 3] = [
        (b"Host", b"a.example"),
        (b"Cookie", b"x"),
        (b"Agent", b"One"),
    ];
    let mut whole = |rules: &HeaderRules, cookies| {
        let (mut next, mut rest) = (Some(lines[0]), lines[1..].iter().copied());
        let known = maps.matching(rules, cookies, &mut next, &mut rest);
        maps.whole(known)
            .map(|json| String::from_utf8_lossy(json).into_owned())
    };
    assert_eq!(
        whole(&rules, Cookies::AsReceived).as_deref(),
        Some(expected)
    );
    assert_eq!(whole(&rules, Cookies::Joined), None);
    assert_eq!(
        whole(
            &HeaderRules::redacting(&["agent"], &["token"]),
            Cookies::AsReceived
        ),
        None
    );
    CACHE.set(Some(Box::new(Cache {
        maps,
        ..Cache::default()
    })));
    // Lines that differ, are missing or come further.
    assert_eq!(
        written(b"Two", b"secret=1", None),
        expected.replace("one", "two")
    );
    let more = written(b"One", b"secret=1", Some((b"Agent", b"Three")));
    assert_eq!(more, expected.replace(r#""one""#, r#""one","three""#));
    let fewer = map_of(&rules, Cookies::AsReceived, &lines[..2]);
    assert_eq!(fewer, r#"{"Host":["a.example"],"Cookie":["[redacted]"]}"#);
}

#[test]
fn maps_that_are_large_or_have_parts_of_credentials_are_not_kept() {
    let rules = HeaderRules::default();
    let long = "x".repeat(3 << 10);
    for line in [
        (&b"Referer"[..], &b"https://a.example/?token=abc"[..]),
        (b"X-Long", long.as_bytes()),
    ] {
        for _ in 0..20 {
            map_of(
                &rules,
                Cookies::AsReceived,
                &[(b"Host", b"a.example"), line],
            );
        }
    }
    let cache = CACHE.take().unwrap();
    assert_eq!(format!("{:?}", cache.maps).matches("CachedLine").count(), 0);
}
