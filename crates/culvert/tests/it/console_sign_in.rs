//! Sign-ins to the console at a real OpenID provider: who comes in, with which role, and who does not.

use std::net::SocketAddr;

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

/// The code with which a step to the provider is refused, from this address of the machine.
async fn begin_from(from: [u8; 4], api: SocketAddr) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(api).await.unwrap();
    let request =
        format!("GET /console/sign-in HTTP/1.1\r\nhost: {api}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, number) = answer.split_once("/console/?refused=").unwrap();
    number.lines().next().unwrap().to_owned()
}

/// Anyone can begin a sign-in, for which the server may ask the provider.
#[tokio::test(flavor = "multi_thread")]
async fn steps_of_sign_ins_are_limited_by_network() {
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        let openid = &mut settings.console.openid;
        // A port without a listener.
        openid.issuer_url = "http://127.0.0.1:1".into();
        openid.client_id = "app".into();
        openid.client_secret = "a secret of the tests".into();
    })
    .await;
    let api = culvert.api.strip_prefix("http://").unwrap();
    let api: SocketAddr = api.parse().unwrap();
    let mut n_asked = 0;
    while begin_from([127, 0, 0, 1], api).await == "649" {
        n_asked += 1;
        assert!(n_asked < 1_000);
    }
    assert!(n_asked >= 100, "{n_asked}");
    // The addresses of a network share its limit.
    eventually("the network is refused", async || {
        begin_from([127, 0, 0, 9], api).await == TOO_MANY
    })
    .await;
    assert_eq!(begin_from([127, 0, 9, 1], api).await, "649");
    culvert.stop().await;
}
