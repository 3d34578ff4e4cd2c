//! Sign-ins to the console at a real OpenID provider: who comes in, with which role, and who does not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_edge::Inherited;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::harness::{Backend, Harness, backends, eventually};
use crate::login::{Browser, Page, Provider};

/// The session that a browser has, or the status of the refusal.
async fn session(browser: &Browser, api: &str) -> Result<Value, u16> {
    let header = ["--header", "x-culvert-console: 1"];
    let page = browser
        .open(&format!("{api}/console/session"), &header)
        .await;
    match page.status {
        200 => Ok(serde_json::from_str(&page.body).unwrap()),
        status => Err(status),
    }
}

/// The number of the code with which a sign-in failed.
fn refused(page: &Page) -> Option<&str> {
    page.url.split_once("?refused=").map(|(_, number)| number)
}

/// A server whose console has a real provider.
async fn start(backend: &Backend) -> Option<(Provider, Harness)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let provider = Provider::start(&[format!("http://{address}/console/sign-in/callback")])?;
    let sockets = Inherited::new(vec![listener]);
    let culvert = Harness::start_on(backend, sockets, |settings| {
        settings.api.addr = address.to_string();
        let openid = &mut settings.console.openid;
        openid.issuer_url = provider.issuer.clone();
        openid.client_id = "app".into();
        openid.client_secret = "a secret of the tests".into();
        openid.scopes = vec!["email".into(), "groups".into()];
        openid.name = "Example".into();
        openid.roles = vec!["ops=admin".into(), "staff=read_only".into()];
    });
    let culvert = culvert.await;
    Some((provider, culvert))
}

#[tokio::test(flavor = "multi_thread")]
async fn people_sign_in_to_the_console_at_a_real_provider() {
    for backend in backends().await {
        let Some((provider, culvert)) = start(&backend).await else {
            return;
        };
        let api = culvert.api.clone();
        let folder = tempfile::tempdir().unwrap();
        let browser = |name: &str| Browser::new(folder.path(), name, &culvert, "127.0.0.1");
        let begin = format!("{api}/console/sign-in");

        let methods = browser("none").open(&format!("{begin}/methods"), &[]).await;
        assert_eq!(methods.body, r#"{"openid":{"name":"Example"}}"#);

        // A group lets in with its role, without a key.
        let ann = browser("ann");
        let page = ann.log_in_at(&begin, "ops-ann").await;
        assert_eq!(
            (page.status, page.url.as_str()),
            (200, &*format!("{api}/console/"))
        );
        let shown = session(&ann, &api).await.unwrap();
        assert_eq!(shown["role"], "admin");
        assert_eq!(shown["subject"], "ops-ann@x.example");
        assert_eq!(shown["key_id"], Value::Null);

        // What she does names her.
        let body = json!({"description": "by ann"}).to_string();
        let origin = format!("origin: {api}");
        let more = [
            "--header",
            "x-culvert-console: 1",
            "--header",
            &origin,
            "--data",
            &body,
        ];
        let more = [&more[..], &["--header", "content-type: application/json"]].concat();
        let made = ann
            .open(&format!("{api}/console/api/ip_policies"), &more)
            .await;
        assert_eq!(made.status, 201, "{}", made.body);
        let query = "/events?type=ip_policy_created.v0";
        let reported = culvert.call(Method::GET, query, None).await;
        let principal = &reported.body["events"][0]["event"]["principal"];
        assert_eq!(principal["subject"], "ops-ann@x.example");
        assert_eq!(principal["source"], "Dashboard");
        assert_eq!(principal["credential"], Value::Null);

        // A person without a group comes in only if invited.
        let bob = browser("bob");
        assert_eq!(refused(&bob.log_in_at(&begin, "bob").await), Some("647"));
        assert_eq!(session(&bob, &api).await, Err(401));
        culvert
            .create("users", json!({"email": "bob@x.example"}))
            .await;
        let bob = browser("bob again");
        let page = bob.log_in_at(&begin, "bob").await;
        assert_eq!(refused(&page), None, "{page:?}");
        assert_eq!(session(&bob, &api).await.unwrap()["role"], "member");

        // To remove a person ends its session.
        let users = culvert.call(Method::GET, "/users", None).await;
        let users = users.body["users"].as_array().unwrap().clone();
        let ann_user = users
            .iter()
            .find(|user| user["email"] == "ops-ann@x.example");
        let path = format!("/users/{}", ann_user.unwrap()["id"].as_str().unwrap());
        assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
        assert_eq!(session(&ann, &api).await, Err(401));

        // A callback belongs to a sign-in of this browser.
        let callback = format!("{begin}/callback?code=x&state=y");
        let stranger = browser("stranger");
        let location = ["--location"];
        assert_eq!(
            refused(&stranger.open(&callback, &location).await),
            Some("648")
        );
        let cookie = format!("cookie: culvert-sign-in={}", "a".repeat(43));
        let forged = ["--location", "--header", &cookie];
        assert_eq!(
            refused(&stranger.open(&callback, &forged).await),
            Some("648")
        );
        drop(provider);
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_provider_is_reported() {
    for backend in backends().await {
        let culvert = Harness::start_with(&backend, |settings| {
            let openid = &mut settings.console.openid;
            // A port without a listener.
            openid.issuer_url = "http://127.0.0.1:1".into();
            openid.client_id = "app".into();
            openid.client_secret = "a secret of the tests".into();
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let browser = Browser::new(folder.path(), "jar", &culvert, "127.0.0.1");
        let begin = format!("{}/console/sign-in", culvert.api);
        let page = browser.open(&begin, &["--location"]).await;
        assert_eq!(refused(&page), Some("649"));
        culvert.stop().await;

        // Without a provider, there is no such page.
        let culvert = Harness::start(&backend).await;
        let browser = Browser::new(folder.path(), "jar 2", &culvert, "127.0.0.1");
        let begin = format!("{}/console/sign-in", culvert.api);
        assert_eq!(browser.open(&begin, &[]).await.status, 404);
        let methods = browser.open(&format!("{begin}/methods"), &[]).await;
        assert_eq!(methods.body, r#"{"openid":null}"#);
        culvert.stop().await;
    }
}

/// The code of a request that is one of too many.
const TOO_MANY: &str = "226";

/// As with a key, a person cannot fill the log with sign-ins.
#[tokio::test(flavor = "multi_thread")]
async fn sign_ins_of_a_person_are_limited() {
    let Some((_provider, culvert)) = start(&Backend::Sqlite).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let begin = format!("{}/console/sign-in", culvert.api);
    let sign_in = async |person: &str, n: usize| {
        let name = format!("{person} {n}");
        let browser = Browser::new(folder.path(), &name, &culvert, "127.0.0.1");
        let page = browser.log_in_at(&begin, person).await;
        refused(&page).map(str::to_owned)
    };
    let mut n_signed_in = 0;
    // Some more than twenty, if that takes longer than six seconds.
    while sign_in("ops-ann", n_signed_in).await.is_none() {
        n_signed_in += 1;
        assert!(n_signed_in < 40);
    }
    assert!(n_signed_in >= 20, "{n_signed_in}");
    eventually("she is refused", async || {
        sign_in("ops-ann", 99).await.as_deref() == Some(TOO_MANY)
    })
    .await;
    // Others are not.
    assert_eq!(sign_in("staff-bob", 0).await, None);
    culvert.stop().await;
}

/// A request from this address of the machine, and its response.
async fn ask(from: [u8; 4], api: SocketAddr, path: &str, cookie: &str) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(api).await.unwrap();
    let request = format!(
        "GET /console/sign-in{path} HTTP/1.1\r\nhost: {api}\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = answer
        .lines()
        .map_while(|line| line.split_once(": ").or(Some(("", line))));
    lines.find_map(|(other, value)| (other == name).then_some(value))
}

/// The code with which a step is refused.
fn code_of(answer: &str) -> Option<&str> {
    header(answer, "location")?
        .split_once("?refused=")
        .map(|(_, code)| code)
}

/// A sign-in that begins: its cookie and the path of a callback with a code that the provider did not give.
async fn begin(from: [u8; 4], api: SocketAddr) -> (String, String) {
    let answer = ask(from, api, "", "").await;
    assert_eq!(code_of(&answer), None, "{answer}");
    let cookie = header(&answer, "set-cookie").unwrap();
    let url = url::Url::parse(header(&answer, "location").unwrap()).unwrap();
    let (_, state) = url.query_pairs().find(|(name, _)| name == "state").unwrap();
    let callback = format!("/callback?code=not-given&state={state}");
    (cookie.split(';').next().unwrap().to_owned(), callback)
}

/// Who begins sign-ins without end holds off no one, and who fails them without end only those at the same address.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_sign_ins_hold_off_no_neighbour() {
    let Some((_provider, culvert)) = start(&Backend::Sqlite).await else {
        return;
    };
    let api = culvert.api.strip_prefix("http://").unwrap();
    let api: SocketAddr = api.parse().unwrap();
    let (stranger, neighbour) = ([127, 0, 0, 66], [127, 0, 0, 67]);
    for _ in 0..150 {
        begin(stranger, api).await;
    }
    // Only the address counts: a new cookie costs nothing.
    let (cookie, callback) = begin(stranger, api).await;
    for _ in 0..10 {
        let answer = ask(stranger, api, &callback, &cookie).await;
        assert_eq!(code_of(&answer), Some("648"), "{answer}");
    }
    // One that did not begin here does not ask, and is not counted.
    let forged = format!("culvert-sign-in={}", "a".repeat(43));
    for _ in 0..150 {
        let answer = ask([127, 0, 0, 68], api, &callback, &forged).await;
        assert_ne!(code_of(&answer), None, "{answer}");
    }
    let mut n_failed = 0;
    loop {
        let (cookie, callback) = begin(stranger, api).await;
        let answer = ask(stranger, api, &callback, &cookie).await;
        if code_of(&answer) == Some(TOO_MANY) {
            assert!(header(&answer, "retry-after").is_some(), "{answer}");
            break;
        }
        n_failed += 1;
        assert!(n_failed < 1_000);
    }
    assert!(n_failed >= 40, "{n_failed}");
    // The neighbour's callback asks the provider.
    let (cookie, callback) = begin(neighbour, api).await;
    let answer = ask(neighbour, api, &callback, &cookie).await;
    assert_eq!(code_of(&answer), Some("648"), "{answer}");
    // And a person at the neighbour's network signs in.
    let folder = tempfile::tempdir().unwrap();
    let browser = Browser::new(folder.path(), "ann", &culvert, "127.0.0.1");
    let begin = format!("{}/console/sign-in", culvert.api);
    assert_eq!(refused(&browser.log_in_at(&begin, "ops-ann").await), None);
    culvert.stop().await;
}

/// A provider whose metadata is good and whose token endpoint fails, until the process ends. Returns its issuer, and how
/// many token requests it had.
fn broken_provider() -> (String, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let issuer = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let (at, n_asked) = (issuer.clone(), Arc::clone(&asked));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), [0; 8192]);
            let n = std::io::Read::read(&mut stream, &mut head).unwrap_or(0);
            let is_metadata = head[..n].starts_with(b"GET /.well-known/");
            let (status, body) = match is_metadata {
                true => {
                    let metadata = json!({
                        "issuer": at,
                        "authorization_endpoint": format!("{at}/authorize"),
                        "token_endpoint": format!("{at}/token"),
                        "jwks_uri": format!("{at}/keys"),
                        "response_types_supported": ["code"],
                        "id_token_signing_alg_values_supported": ["RS256"],
                        "code_challenge_methods_supported": ["S256"],
                    });
                    ("200 OK", metadata.to_string())
                }
                false => {
                    n_asked.fetch_add(1, Ordering::Relaxed);
                    ("503 Service Unavailable", String::new())
                }
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            drop(std::io::Write::write_all(&mut stream, head.as_bytes()));
        }
    });
    (issuer, asked)
}

/// A provider that fails is not asked without end either.
#[tokio::test(flavor = "multi_thread")]
async fn callbacks_that_a_broken_provider_fails_are_counted() {
    let (issuer, asked) = broken_provider();
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        let openid = &mut settings.console.openid;
        openid.issuer_url = issuer.clone();
        openid.client_id = "app".into();
        openid.client_secret = "a secret of the tests".into();
    });
    let culvert = culvert.await;
    let api = culvert.api.strip_prefix("http://").unwrap();
    let api: SocketAddr = api.parse().unwrap();
    let here = [127, 0, 0, 69];
    let (cookie, callback) = begin(here, api).await;
    let mut n_failed = 0;
    loop {
        let answer = ask(here, api, &callback, &cookie).await;
        if code_of(&answer) == Some(TOO_MANY) {
            // The provider was not asked, so the callback may come once more.
            assert_eq!(header(&answer, "set-cookie"), None, "{answer}");
            break;
        }
        assert_eq!(code_of(&answer), Some("649"), "{answer}");
        n_failed += 1;
        assert!(n_failed < 1_000);
    }
    assert_eq!(asked.load(Ordering::Relaxed), n_failed);
    assert!(n_failed >= 100, "{n_failed}");
    culvert.stop().await;
}

/// Any page can send a browser to the callback. Without a pending sign-in there, none has failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_callback_without_a_cookie_is_no_failed_sign_in() {
    let Some((_provider, culvert)) = start(&Backend::Sqlite).await else {
        return;
    };
    let api = culvert.api.strip_prefix("http://").unwrap();
    let api: SocketAddr = api.parse().unwrap();
    let here = [127, 0, 0, 1];
    for _ in 0..3 {
        let answer = ask(here, api, "/callback?code=x&state=y", "").await;
        assert_eq!(code_of(&answer), Some("648"), "{answer}");
    }
    // Nor has one with another state, and the pending sign-in goes on.
    let (cookie, callback) = begin(here, api).await;
    for other in ["/callback?code=x&state=y", "/callback", "/callback?error=x"] {
        let answer = ask(here, api, other, &cookie).await;
        assert_eq!(code_of(&answer), Some("648"), "{answer}");
        assert_eq!(header(&answer, "set-cookie"), None, "{answer}");
    }
    // One that began here and fails is one, and is over.
    let answer = ask(here, api, &callback, &cookie).await;
    assert_eq!(code_of(&answer), Some("648"), "{answer}");
    let over = header(&answer, "set-cookie").unwrap();
    assert!(over.starts_with("culvert-sign-in=;"), "{over}");
    let query = "/events?type=sign_in_failed.v0";
    let mut failed = Value::Null;
    eventually("the failed sign-in is reported", async || {
        failed = culvert.call(Method::GET, query, None).await.body["events"].clone();
        failed.as_array().is_some_and(|events| !events.is_empty())
    })
    .await;
    assert_eq!(failed.as_array().unwrap().len(), 1, "{failed}");
    assert_eq!(failed[0]["event"]["object"]["count"], 1, "{failed}");
    culvert.stop().await;
}
