//! Sessions of the console: who gets one, what it permits, and protection against other pages.

use culvert_base::Secret;
use tokio_util::sync::CancellationToken;

use super::harness::{Harness, TestResponse, Wire};
use super::*;

const HOST: &str = "Host: localhost:8420";
const ORIGIN: &str = "Origin: http://localhost:8420";
const BY_CONSOLE: &str = "x-culvert-console: 1";

async fn sign_in(wire: &mut Wire, token: &str, headers: &[&str]) -> TestResponse {
    let body = json!({"token": token}).to_string();
    wire.ask("POST", "/console/session", None, headers, &body)
        .await
}

/// The cookie of a response, as a request header.
fn cookie_of(answer: &TestResponse) -> String {
    let set = answer.header("set-cookie").unwrap();
    format!("Cookie: {}", set.split(';').next().unwrap())
}

#[tokio::test]
async fn a_session_stands_for_its_key_until_it_ends() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let page = [HOST, ORIGIN, BY_CONSOLE];

    let answer = sign_in(&mut wire, &harness.token, &page).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.body["role"], "admin");
    assert_eq!(answer.body["key_id"], json!(harness.key_id().await));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let set = answer.header("set-cookie").unwrap();
    for part in [
        "culvert=",
        "; HttpOnly",
        "; SameSite=Strict",
        "; Path=/console",
        "; Max-Age=43200",
    ] {
        assert!(set.contains(part), "{part}: {set}");
    }
    assert!(!set.contains(&harness.token), "{set}");

    let cookie = cookie_of(&answer);
    let signed = [HOST, ORIGIN, BY_CONSOLE, &cookie];
    let shown = wire
        .ask("GET", "/console/session", None, &signed, NO_BODY)
        .await;
    assert_eq!((shown.status, &shown.body), (200, &answer.body));
    let made = wire
        .ask(
            "POST",
            "/console/api/api_keys",
            None,
            &signed,
            r#"{"description":"by page"}"#,
        )
        .await;
    assert_eq!(made.status, 201, "{made:?}");
    assert!(
        made.body["uri"]
            .as_str()
            .unwrap()
            .starts_with("http://localhost:8420/api_keys/")
    );

    // A bearer token is not valid on the console's paths, and the cookie is not valid elsewhere.
    let token = Some(harness.token.as_str());
    let bare = [HOST, ORIGIN, BY_CONSOLE];
    let answer = wire
        .ask("GET", "/console/api/api_keys", token, &bare, NO_BODY)
        .await;
    assert_eq!((answer.status, answer.code()), (401, Some(200)));
    let answer = wire.ask("GET", "/api_keys", None, &signed, NO_BODY).await;
    assert_eq!((answer.status, answer.code()), (401, Some(200)));

    let other = sign_in(&mut wire, &harness.token, &page).await;
    let out = wire
        .ask("DELETE", "/console/session", None, &signed, NO_BODY)
        .await;
    assert_eq!(out.status, 204);
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    let answer = wire
        .ask("GET", "/console/api/api_keys", None, &signed, NO_BODY)
        .await;
    assert_eq!((answer.status, answer.code()), (401, Some(203)));
    answer.check_shape("ended");

    // The other session is independent, and ends with its key.
    let cookie = cookie_of(&other);
    let signed = [HOST, ORIGIN, BY_CONSOLE, &cookie];
    let path = format!(
        "/console/api/api_keys/{}?force=true",
        other.body["key_id"].as_str().unwrap()
    );
    let gone = wire.ask("DELETE", &path, None, &signed, NO_BODY).await;
    assert_eq!(gone.status, 204);
    let answer = wire
        .ask("GET", "/console/session", None, &signed, NO_BODY)
        .await;
    assert_eq!((answer.status, answer.code()), (401, Some(203)));
}

/// All combinations of method, origin, header and fetch metadata: with a valid cookie, only a page of the API's own
/// origin that sends the header is accepted.
#[tokio::test]
async fn only_our_own_pages_use_the_cookie() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let answer = sign_in(&mut wire, &harness.token, &[HOST, ORIGIN, BY_CONSOLE]).await;
    let cookie = cookie_of(&answer);

    let origins = [
        None,
        Some(ORIGIN),
        Some("Origin: http://localhost:9000"),
        Some("Origin: https://localhost:8420"),
        Some("Origin: http://evil.example"),
        Some("Origin: null"),
    ];
    let sites = [
        None,
        Some("same-origin"),
        Some("same-site"),
        Some("cross-site"),
        Some("none"),
    ];
    let mut n_admitted = 0;
    for method in ["GET", "POST", "DELETE", "OPTIONS"] {
        for origin in origins {
            for site in sites {
                for header in [None, Some(BY_CONSOLE)] {
                    let site_header = site.map(|site| format!("Sec-Fetch-Site: {site}"));
                    let mut headers = vec![HOST, &cookie];
                    headers.extend(origin);
                    headers.extend(site_header.as_deref());
                    headers.extend(header);
                    if method == "OPTIONS" {
                        headers.push("Access-Control-Request-Method: POST");
                    }
                    let path = match method {
                        "DELETE" => "/console/api/api_keys/ak_2h0bXHdzY5W9r3oLUMHCLCbPRUc",
                        _ => "/console/api/api_keys",
                    };
                    let about = format!("{method} {headers:?}");
                    let body = if method == "POST" { "{}" } else { NO_BODY };
                    let answer = wire.ask(method, path, None, &headers, body).await;
                    let is_own = origin == Some(ORIGIN) || (origin.is_none() && method == "GET");
                    let is_admitted = is_own
                        && matches!(site, None | Some("same-origin"))
                        && header.is_some()
                        && method != "OPTIONS";
                    let expected = match method {
                        _ if !is_admitted && method == "OPTIONS" && answer.status == 204 => 204,
                        _ if !is_admitted => 403,
                        "GET" => 200,
                        "POST" => 201,
                        _ => 404,
                    };
                    assert_eq!(answer.status, expected, "{about}: {answer:?}");
                    let allowed = answer.header("access-control-allow-origin");
                    let is_read = origin == Some(ORIGIN);
                    assert_eq!(allowed.is_some(), is_read, "{about}");
                    n_admitted += usize::from(is_admitted);
                }
            }
        }
    }
    assert_eq!(n_admitted, 4 + 2 + 2);
}

#[tokio::test]
async fn sign_in_needs_a_key_and_a_safe_way() {
    let proxied = Settings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..Settings::default()
    };
    let harness = Harness::start(proxied).await;
    let mut wire = Wire::to(&harness).await;
    let token = harness.token.clone();

    for host in [
        "api.example.com",
        "192.0.2.1",
        "localhost.example.com",
        "127.0.0.1.example.com",
    ] {
        let (host, origin) = (format!("Host: {host}"), format!("Origin: http://{host}"));
        let answer = sign_in(&mut wire, &token, &[&host, &origin, BY_CONSOLE]).await;
        assert_eq!(answer.status, 403, "{host}");
        assert_eq!(answer.header("set-cookie"), None);
    }
    for host in ["127.0.0.1:8420", "[::1]:8420", "culvert.localhost"] {
        let (host, origin) = (format!("Host: {host}"), format!("Origin: http://{host}"));
        let answer = sign_in(&mut wire, &token, &[&host, &origin, BY_CONSOLE]).await;
        assert_eq!(answer.status, 200, "{host}");
    }
    let headers = [
        "Host: culvert.example.com",
        "Origin: https://culvert.example.com",
        "X-Forwarded-Proto: https",
        BY_CONSOLE,
    ];
    let answer = sign_in(&mut wire, &token, &headers).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let set = answer.header("set-cookie").unwrap();
    assert!(
        set.starts_with("__Host-culvert=") && set.contains("; Path=/; Secure;"),
        "{set}"
    );

    let page = [HOST, ORIGIN, BY_CONSOLE];
    for (body, status, code) in [
        ("", 400, 215),
        ("{}", 400, 215),
        (r#"{"token": 1}"#, 400, 215),
        ("[]", 400, 213),
        (r#"{"token": "nonsense"}"#, 401, 202),
        (r#"{"token": ""}"#, 401, 201),
    ] {
        let answer = wire
            .ask("POST", "/console/session", None, &page, body)
            .await;
        assert_eq!(
            (answer.status, answer.code()),
            (status, Some(code)),
            "{body}"
        );
        answer.check_shape(body);
    }
    let answer = wire
        .ask("PATCH", "/console/session", None, &page, "{}")
        .await;
    assert_eq!(answer.status, 405);
    // Invalid session cookies, and a valid one together with another value of the same name.
    let cookie = cookie_of(&sign_in(&mut wire, &token, &page).await);
    let twice = format!("{cookie}; culvert=x");
    let key = format!("Cookie: culvert={token}");
    for wrong in [
        "Cookie: culvert=",
        "Cookie: culvert=abc",
        "Cookie: other=1",
        &key,
        &twice,
    ] {
        let headers = [HOST, ORIGIN, BY_CONSOLE, wrong];
        let answer = wire
            .ask("GET", "/console/session", None, &headers, NO_BODY)
            .await;
        assert_eq!(answer.status, 401, "{wrong}");
    }
}

#[tokio::test]
async fn a_browser_gets_the_page_and_a_program_gets_json() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let html = "Accept: text/html,application/xhtml+xml";
    let answer = wire.ask("GET", "/", None, &[html], NO_BODY).await;
    assert_eq!(answer.status, 303);
    assert_eq!(answer.header("location"), Some("/console/"));
    let answer = wire.ask("GET", "/", None, &["Accept: */*"], NO_BODY).await;
    assert!(answer.status >= 400, "{answer:?}");
    answer.check_shape("a program");

    for path in ["/console/", "/console/endpoints/ep_1", "/console/assets/"] {
        let mut wire = Wire::to(&harness).await;
        let answer = wire.open("GET", path, None).await;
        if path == "/console/assets/" {
            assert_eq!(answer.status, 404, "{path}");
            continue;
        }
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(
            answer.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        let tag = format!("If-None-Match: {}", answer.header("etag").unwrap());
        let mut wire = Wire::to(&harness).await;
        let again = wire.ask("GET", path, None, &[&tag], NO_BODY).await;
        assert_eq!(again.status, 304, "{path}");
    }
    let answer = wire.ask("POST", "/console/", None, &[], NO_BODY).await;
    assert_eq!(answer.status, 405);
}

/// The console loads the document with its first list or form: it is compressed, and sent again only after it has changed.
#[tokio::test]
async fn the_openapi_document_is_compressed_and_has_a_tag() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let plain = wire.ask("HEAD", OPENAPI_PATH, None, &[], NO_BODY).await;
    assert_eq!(plain.header("content-encoding"), None);
    let asked = ["Accept-Encoding: br, gzip", "Origin: https://other.example"];
    let packed = wire.ask("HEAD", OPENAPI_PATH, None, &asked, NO_BODY).await;
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    let bytes = |answer: &TestResponse| -> usize {
        let length = answer.header("content-length").unwrap();
        length.parse().unwrap()
    };
    let (whole, part) = (bytes(&plain), bytes(&packed));
    assert!(part * 5 < whole, "{part} of {whole} bytes");
    let vary: Vec<_> = packed
        .headers
        .iter()
        .filter(|(name, _)| name == "vary")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(vary, ["accept-encoding", "origin"]);

    let tag = format!("If-None-Match: {}", packed.header("etag").unwrap());
    let again = wire.ask("GET", OPENAPI_PATH, None, &[&tag], NO_BODY).await;
    assert_eq!(again.status, 304);
    let other = wire
        .ask(
            "GET",
            OPENAPI_PATH,
            None,
            &["If-None-Match: W/\"0\""],
            NO_BODY,
        )
        .await;
    assert_eq!(
        (other.status, &other.body["openapi"]),
        (200, &json!("3.1.0"))
    );
}

/// Files are sent in the smallest form that the browser takes, and are kept by it if it asked for those of this build.
#[tokio::test]
async fn files_are_compressed_and_kept_with_their_build() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let script = format!("/console/assets/app.js?v={}", culvert_console::build());
    let forever = Some("public, max-age=31536000, immutable");
    for (path, accepted, coding, kept) in [
        (script.as_str(), "gzip, deflate, br", Some("br"), forever),
        (&script, "gzip, br;q=0", Some("gzip"), forever),
        (&script, "br;q=0.1, gzip;q=1", Some("gzip"), forever),
        (&script, "br;q=0.1, identity", None, forever),
        (&script, "identity", None, forever),
        ("/console/assets/app.js", "br", Some("br"), Some("no-cache")),
        ("/console/", "br", Some("br"), Some("no-cache")),
    ] {
        let asked = format!("Accept-Encoding: {accepted}");
        let answer = wire.ask("HEAD", path, None, &[&asked], NO_BODY).await;
        assert_eq!(answer.status, 200, "{path} {accepted}");
        assert_eq!(answer.header("content-encoding"), coding, "{path}");
        assert_eq!(answer.header("cache-control"), kept, "{path} {accepted}");
        let vary = answer.header("vary").unwrap();
        assert!(vary.starts_with("accept-encoding"), "{path} {vary}");
    }
    // All lines of the field are one list.
    let asked = ["Accept-Encoding: deflate", "Accept-Encoding: br"];
    let answer = wire.ask("HEAD", &script, None, &asked, NO_BODY).await;
    assert_eq!(answer.header("content-encoding"), Some("br"));
    let other = "/console/assets/app.js?v=0123456789abcdef";
    let answer = wire.ask("HEAD", other, None, &[], NO_BODY).await;
    let refused = (404, Some("no-store"));
    assert_eq!((answer.status, answer.header("cache-control")), refused);
}

/// A browser with a session's cookie gets the page that loads the files of the first page ahead. Each page has its own tag, so
/// that neither is taken for the other.
#[tokio::test]
async fn the_page_of_a_session_loads_its_files_ahead() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let mut tags = Vec::new();
    for (cookie, page) in [
        ("Cookie: other=1", culvert_console::page()),
        ("Cookie: culvert=x", culvert_console::page_with_session()),
        (
            "Cookie: a=b; __Host-culvert=x",
            culvert_console::page_with_session(),
        ),
    ] {
        let answer = wire
            .ask("HEAD", "/console/", None, &[cookie], NO_BODY)
            .await;
        assert_eq!(answer.header("etag"), Some(page.tag()), "{cookie}");
        assert_eq!(answer.header("vary"), Some("accept-encoding, cookie"));
        tags.push(answer.header("etag").unwrap().to_owned());
    }
    assert_ne!(tags[0], tags[1]);
    let known = format!("If-None-Match: {}", tags[0]);
    for (cookie, status) in [("Cookie: other=1", 304), ("Cookie: culvert=x", 200)] {
        let asked = [cookie, &known];
        let answer = wire.ask("HEAD", "/console/", None, &asked, NO_BODY).await;
        assert_eq!(answer.status, status, "{cookie}");
    }
}

/// `HEAD` has the headers of `GET` and no body.
#[tokio::test]
async fn files_have_head_beside_get() {
    let harness = Harness::start(Settings::default()).await;
    let html = "Accept: text/html";
    for path in [
        "/",
        "/console",
        "/console/",
        "/console/endpoints",
        "/console/assets/app.js",
        "/console/assets/none.js",
        "/console/ca.pem",
        OPENAPI_PATH,
        ALIVE_PATH,
        READY_PATH,
    ] {
        let mut wire = Wire::to(&harness).await;
        let head = wire.ask("HEAD", path, None, &[html], NO_BODY).await;
        let mut other = Wire::to(&harness).await;
        let get = other.open_with("GET", path, html).await;
        assert_eq!(head.status, get.status, "{path}");
        for name in ["content-type", "content-length", "etag", "location"] {
            assert_eq!(head.header(name), get.header(name), "{path}: {name}");
        }
        // No body followed the head.
        let next = wire.ask("GET", ALIVE_PATH, None, &[], NO_BODY).await;
        assert_eq!(next.status, 200, "{path}");
    }
    let mut wire = Wire::to(&harness).await;
    for path in [
        "/api_keys",
        "/console/api/api_keys",
        "/console/session",
        TAIL_PATH,
    ] {
        let answer = wire.ask("HEAD", path, None, &[], NO_BODY).await;
        assert!(answer.status >= 400, "{path}: {answer:?}");
    }
}

/// A blocked IP address gets no session, and cannot end or extend one.
#[tokio::test]
async fn a_blocked_address_has_nothing_to_do_with_sessions() {
    let settings = Settings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let mut wire = Wire::to(&harness).await;
    let admitted = [HOST, ORIGIN, BY_CONSOLE, "X-Forwarded-For: 192.0.2.1"];
    let blocked = [HOST, ORIGIN, BY_CONSOLE, "X-Forwarded-For: 198.51.100.1"];
    let answer = sign_in(&mut wire, &harness.token, &admitted).await;
    let cookie = cookie_of(&answer);
    harness.restrict_api("192.0.2.1/32").await;

    for _ in 0..12 {
        let answer = sign_in(&mut wire, &harness.token, &blocked).await;
        assert_eq!((answer.status, answer.code()), (403, Some(220)));
        assert_eq!(answer.header("set-cookie"), None);
    }
    let mut by_cookie = async |from: &str, path: &str| {
        let headers = [HOST, ORIGIN, BY_CONSOLE, &cookie, from];
        let answer = wire.ask("GET", path, None, &headers, NO_BODY).await;
        (answer.status, answer.code())
    };
    for path in ["/console/session", "/console/api/api_keys"] {
        let answer = by_cookie(blocked[3], path).await;
        assert_eq!(answer, (403, Some(220)), "{path}");
        assert_eq!(by_cookie(admitted[3], path).await, (200, None), "{path}");
    }
}

/// The sender of a sign-in is not known yet: bodies that do not come hold no place that callers need.
#[tokio::test]
async fn sign_ins_that_are_not_finished_leave_room_for_callers() {
    let settings = Settings {
        limits: Limits {
            concurrent: 4,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let begin = async |length: usize| {
        let mut wire = Wire::to(&harness).await;
        let head = format!(
            "POST /console/session HTTP/1.1\r\n{HOST}\r\n{ORIGIN}\r\n{BY_CONSOLE}\r\n\
             Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        wire.send(head).await;
        // From here on the server reads the body.
        let answer = wire.answer().await;
        (wire, answer)
    };
    let mut unfinished = Vec::new();
    for _ in 0..16 {
        let (wire, answer) = begin(4096).await;
        assert_eq!(answer.status, 100);
        unfinished.push(wire);
    }
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let answer = wire.ask("GET", "/api_keys", token, &[], NO_BODY).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let (_, answer) = begin(4097).await;
    assert_eq!((answer.status, answer.code()), (413, Some(212)));
}

/// A refused sign-in does not use the link up.
#[tokio::test]
async fn a_link_signs_in_after_a_refusal() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let made = wire.ask("POST", "/api_keys", token, &[], "{}").await;
    let of_link = Secret::new(made.body["token"].as_str().unwrap().to_owned());
    let link = harness.api.control.identity.make_console_link(&of_link);
    let path = format!(
        "/api_keys/{}/restrictions",
        made.body["id"].as_str().unwrap()
    );
    let body = json!({"link": link.reveal()}).to_string();
    let page = [HOST, ORIGIN, BY_CONSOLE];
    for (networks, status) in [
        (r#"{"networks":["192.0.2.0/24"]}"#, 403),
        (r#"{"networks":[]}"#, 200),
        (r#"{"networks":[]}"#, 401),
    ] {
        let set = wire.ask("PATCH", &path, token, &[], networks).await;
        assert_eq!(set.status, 200, "{set:?}");
        let answer = wire
            .ask("POST", "/console/session", None, &page, &body)
            .await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

/// The kept events of these types, oldest first.
async fn kept(harness: &Harness, wire: &mut Wire, kinds: &str) -> Vec<Value> {
    let over = CancellationToken::new();
    over.cancel();
    let control = Arc::clone(&harness.api.control);
    control.report_refusals(over).await;
    let path = format!("/events?order=oldest&limit=100&type={kinds}");
    let token = Some(harness.token.as_str());
    let page = wire.ask("GET", &path, token, &[], NO_BODY).await;
    let events = page.body["events"].as_array().unwrap().iter();
    events.map(|logged| logged["event"].clone()).collect()
}

/// `via` is what the session shows, not what a client says of itself or which path it asks for.
#[tokio::test]
async fn only_a_session_shows_that_the_console_called() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let page = [HOST, ORIGIN, BY_CONSOLE];
    let cookie = cookie_of(&sign_in(&mut wire, &harness.token, &page).await);
    let signed = [
        HOST,
        ORIGIN,
        BY_CONSOLE,
        &cookie,
        "user-agent: culvert-cli/1",
    ];
    let body = r#"{"name":"by-console"}"#;
    let made = wire
        .ask("POST", "/console/api/vaults", None, &signed, body)
        .await;
    assert_eq!(made.status, 201, "{made:?}");
    let token = Some(harness.token.as_str());
    let body = r#"{"name":"by-key"}"#;
    let made = wire.ask("POST", "/vaults", token, &[], body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let events = kept(&harness, &mut wire, "vault_created.v0,sign_in.v0").await;
    let via: Vec<_> = events
        .iter()
        .map(|event| event["principal"]["context"]["via"].clone())
        .collect();
    assert_eq!(via, [json!("console"), json!("console"), json!(null)]);
}

/// What the console's own paths refuse is in the log too. That it is not signed in yet is no refusal.
#[tokio::test]
async fn refusals_of_the_paths_of_the_console_are_in_the_log() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let page = [HOST, ORIGIN, BY_CONSOLE];
    let asked = wire
        .ask("GET", "/console/session", None, &page, NO_BODY)
        .await;
    assert_eq!(asked.status, 401);
    let kinds = "request_refused.v0";
    let events = kept(&harness, &mut wire, kinds).await;
    assert_eq!(events, Vec::<Value>::new());

    let foreign = [HOST, "Origin: https://evil.example", BY_CONSOLE];
    let wrong = [HOST, ORIGIN, BY_CONSOLE, "Cookie: culvert=wrong"];
    for (method, path, headers, status) in [
        ("POST", "/console/session", &foreign[..], 403),
        ("GET", "/console/api/vaults", &foreign[..], 403),
        ("POST", "/console/invitation", &foreign[..], 403),
        ("GET", "/console/session", &wrong[..], 401),
        ("GET", "/console/api/vaults", &wrong[..], 401),
    ] {
        let answer = wire.ask(method, path, None, headers, NO_BODY).await;
        assert_eq!(answer.status, status, "{path} {answer:?}");
    }
    let events = kept(&harness, &mut wire, kinds).await;
    let count = |status: u16| {
        let of_it = events
            .iter()
            .filter(|event| event["object"]["status"] == status);
        of_it
            .map(|event| event["object"]["count"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!((count(403), count(401)), (3, 2), "{events:?}");
}

/// A valid key cannot fill the log with sign-ins.
#[tokio::test]
async fn sign_ins_of_an_owner_are_limited() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let page = [HOST, ORIGIN, BY_CONSOLE];
    let mut refused = 0;
    for _ in 0..60 {
        let answer = sign_in(&mut wire, &harness.token, &page).await;
        match answer.status {
            200 => {}
            429 => refused += 1,
            other => panic!("{other} {answer:?}"),
        }
    }
    // Some more than twenty, if that took longer than six seconds.
    assert!(refused >= 20, "{refused}");
    let failed = kept(&harness, &mut wire, "sign_in_failed.v0").await;
    let counted = failed
        .iter()
        .map(|event| event["object"]["count"].as_u64().unwrap());
    assert_eq!(counted.sum::<u64>(), refused);
    assert!(failed.len() <= 2, "{failed:?}");
    let begun = kept(&harness, &mut wire, "sign_in.v0").await;
    assert_eq!(begun.len(), 60 - usize::try_from(refused).unwrap());
}

/// An update names the event that it follows only if that is about its object.
#[tokio::test]
async fn an_update_names_its_cause() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let token = Some(harness.token.as_str());
    let mut paths = Vec::new();
    for name in ["a", "b"] {
        let body = json!({"name": name}).to_string();
        let made = wire.ask("POST", "/vaults", token, &[], &body).await;
        paths.push(format!("/vaults/{}", made.body["id"].as_str().unwrap()));
    }
    let made = kept(&harness, &mut wire, "vault_created.v0").await;
    let of = |n: usize| format!("culvert-cause: {}", made[n]["event_id"].as_str().unwrap());
    let body = r#"{"description":"changed"}"#;
    for (cause, status) in [
        (of(0), 200),
        (of(1), 400),
        (
            "culvert-cause: ev_000000000000000000000000000".to_owned(),
            400,
        ),
        ("culvert-cause: x".to_owned(), 400),
    ] {
        let answer = wire.ask("PATCH", &paths[0], token, &[&cause], body).await;
        assert_eq!(answer.status, status, "{cause} {answer:?}");
    }
    let events = kept(&harness, &mut wire, "vault_updated.v0").await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["cause"], made[0]["event_id"]);
}
