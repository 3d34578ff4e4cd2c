//! Upstreams that authenticate connections instead of requests, as NTLM and Negotiate do: no client gets a connection that
//! has the identity of another, and a client gets its own again.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use culvert_policy::Scheme;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::harness::*;
use super::internal::named;
use super::secure::http2;
use crate::{Settings, Snapshot};

/// A policy that changes nothing.
const IDLE: &str = "on_http_request: [{expressions: ['false'], actions: [{type: deny}]}]";

/// Whom a connection is authenticated as.
#[derive(Debug, Default)]
struct Session {
    is_challenged: bool,
    user: Option<String>,
}

impl Session {
    /// Reads credentials: `<scheme> begin` gets a challenge, and then `<scheme> <user>` authenticates. `Negotiate ticket-<user>`
    /// authenticates immediately.
    fn read(&mut self, credentials: &str) {
        for credentials in credentials.split(',') {
            let (scheme, token) = credentials.trim().split_once(' ').unwrap_or_default();
            let scheme = scheme.to_ascii_lowercase();
            if !["ntlm", "negotiate", "kerberos"].contains(&&*scheme) {
                continue;
            }
            match token.strip_prefix("ticket-") {
                Some(user) => self.user = Some(user.to_owned()),
                None if token == "begin" => self.is_challenged = true,
                None if self.is_challenged => self.user = Some(token.to_owned()),
                None => {}
            }
        }
    }
}

/// A mail server that speaks HTTP/1: it shows the mailbox of the user of the connection, and counts its connections.
async fn mail(tasks: &mut JoinSet<()>, name: &'static str) -> (SocketAddr, Arc<Turns>) {
    let turns = Arc::new(Turns::default());
    let counted = Arc::clone(&turns);
    let address = origin(tasks, move |mut client| {
        counted.next();
        async move {
            let mut session = Session::default();
            while let Some((head, _)) = client.request().await {
                let lines = head.split("\r\n");
                let is_credentials = |line: &&str| line.to_ascii_lowercase().starts_with("authorization:");
                for line in lines.filter(is_credentials) {
                    session.read(line.split_once(':').unwrap().1);
                }
                let answer = match (&session.user, head.contains(" /empty ")) {
                    (Some(user), true) => {
                        format!("HTTP/1.1 200 OK\r\nx-user: {user}\r\ncontent-length: 0\r\n\r\n")
                    }
                    (Some(user), false) => {
                        let body = format!("mailbox of {user} at {name}");
                        let length = body.len();
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
                    }
                    (None, _) if session.is_challenged => {
                        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM challenge\r\ncontent-length: 0\r\n\r\n".to_owned()
                    }
                    (None, _) => {
                        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Negotiate, NTLM\r\ncontent-length: 2\r\n\r\nno".to_owned()
                    }
                };
                client.send(answer).await;
            }
        }
    })
    .await;
    (address, turns)
}

/// The result of a request: its status and text.
type Shown = (u16, String);

async fn ask(client: &mut Client<TcpStream>, path: &str, fields: &str) -> Shown {
    client
        .send(format!(
            "GET {path} HTTP/1.1\r\nHost: app.example\r\n{fields}\r\n"
        ))
        .await;
    let answer = client.answer("GET").await;
    (answer.status, answer.text().to_owned())
}

/// No stranger sees a mailbox, on several connections and paths.
async fn strangers_see_nothing(rig: &Rig, case: &str) {
    for path in ["/", "/empty", "/"] {
        let mut stranger = rig.connect().await;
        for fields in ["", "Authorization: Basic dTpw\r\n"] {
            let shown = ask(&mut stranger, path, fields).await;
            assert_eq!(shown.0, 401, "{case}: a stranger got {shown:?}");
        }
    }
}

async fn rig(settings: Settings, policy: &str, upstreams: &[String]) -> Rig {
    let rig = Rig::with(settings).await;
    let mut snapshot = Snapshot::builder();
    for (number, upstream) in upstreams.iter().enumerate() {
        let mut endpoint = named(Scheme::Http, "app.example", 80, upstream, policy);
        endpoint.id = format!("ep_{number}");
        snapshot = snapshot.endpoint(endpoint);
    }
    rig.edge.publish(snapshot.build()).await;
    rig
}

#[tokio::test]
async fn a_client_keeps_its_authenticated_connection_and_no_stranger_gets_it() {
    for policy in ["", IDLE] {
        for scheme in ["NTLM", "ntlm", "NeGoTiAtE", "Kerberos", "Basic dTpw, NTLM"] {
            let case = format!("{scheme} {policy}");
            let mut tasks = JoinSet::new();
            let (mail, connections) = mail(&mut tasks, "one").await;
            let rig = rig(settings(), policy, &[format!("http://{mail}")]).await;
            // There are connections to share.
            strangers_see_nothing(&rig, &case).await;
            let mut anna = rig.connect().await;
            let begin = format!("Authorization: {scheme} begin\r\n");
            assert_eq!(ask(&mut anna, "/", &begin).await.0, 401, "{case}");
            let own = format!("aUTHORIZATION: {scheme} anna\r\n");
            let mailbox = (200, "mailbox of anna at one".to_owned());
            assert_eq!(ask(&mut anna, "/", &own).await, mailbox, "{case}");
            for _ in 0..3 {
                let before = connections.get();
                assert_eq!(ask(&mut anna, "/", "").await, mailbox, "{case}");
                assert_eq!(ask(&mut anna, "/empty", "").await.0, 200, "{case}");
                assert_eq!(connections.get(), before, "{case}: one connection");
                strangers_see_nothing(&rig, &case).await;
            }
            // Another user at the same time.
            let mut ben = rig.connect().await;
            let ticket = "Authorization: Negotiate ticket-ben\r\n";
            let other = (200, "mailbox of ben at one".to_owned());
            assert_eq!(ask(&mut ben, "/", ticket).await, other, "{case}");
            assert_eq!(ask(&mut ben, "/", "").await, other, "{case}");
            assert_eq!(ask(&mut anna, "/", "").await, mailbox, "{case}");
            drop((anna, ben));
            strangers_see_nothing(&rig, &case).await;
        }
    }
}

#[tokio::test]
async fn a_challenge_alone_keeps_the_connection_for_the_client() {
    let mut tasks = JoinSet::new();
    let (mail, connections) = mail(&mut tasks, "one").await;
    let rig = rig(settings(), "", &[format!("http://{mail}")]).await;
    let (mut anna, mut ben) = (rig.connect().await, rig.connect().await);
    for _ in 0..2 {
        assert_eq!(ask(&mut anna, "/", "").await.0, 401);
        assert_eq!(ask(&mut ben, "/", "").await.0, 401);
    }
    assert_eq!(connections.get(), 2);
}

#[tokio::test]
async fn an_identity_that_a_policy_sets_ends_with_the_request() {
    let policy = r#"
on_http_request:
- expressions: ["req.url.path == '/service'"]
  actions: [{type: add-headers, config: {headers: {authorization: "Negotiate ticket-service"}}}]
"#;
    let mut tasks = JoinSet::new();
    let (mail, _) = mail(&mut tasks, "one").await;
    let rig = rig(settings(), policy, &[format!("http://{mail}")]).await;
    for _ in 0..2 {
        let mut client = rig.connect().await;
        for _ in 0..2 {
            let service = (200, "mailbox of service at one".to_owned());
            assert_eq!(ask(&mut client, "/service", "").await, service);
            assert_eq!(ask(&mut client, "/", "").await.0, 401);
        }
        strangers_see_nothing(&rig, "after a policy").await;
    }
}

#[tokio::test]
async fn clients_behind_a_proxy_share_no_authenticated_connection() {
    let settings = Settings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..settings()
    };
    let mut tasks = JoinSet::new();
    let (mail, _) = mail(&mut tasks, "one").await;
    let rig = rig(settings, "", &[format!("http://{mail}")]).await;
    let mut proxy = rig.connect().await;
    let ticket = "Authorization: Negotiate ticket-anna\r\nX-Forwarded-For: 192.0.2.1\r\n";
    assert_eq!(ask(&mut proxy, "/", ticket).await.0, 200);
    let other = "X-Forwarded-For: 192.0.2.2\r\n";
    assert_eq!(ask(&mut proxy, "/", other).await.0, 401);
    strangers_see_nothing(&rig, "behind a proxy").await;
}

#[tokio::test]
async fn a_client_stays_at_the_endpoint_where_it_is_authenticated() {
    let mut tasks = JoinSet::new();
    let mut upstreams = Vec::new();
    for name in ["one", "two", "three"] {
        upstreams.push(format!("http://{}", mail(&mut tasks, name).await.0));
    }
    for policy in ["", IDLE] {
        let rig = rig(settings(), policy, &upstreams).await;
        for user in ["anna", "ben"] {
            let mut client = rig.connect().await;
            let begin = "Authorization: NTLM begin\r\n";
            assert_eq!(ask(&mut client, "/", begin).await.0, 401);
            let own = format!("Authorization: NTLM {user}\r\n");
            let mailbox = ask(&mut client, "/", &own).await;
            assert_eq!(mailbox.0, 200);
            for _ in 0..4 {
                assert_eq!(ask(&mut client, "/", "").await, mailbox);
            }
        }
        strangers_see_nothing(&rig, "a pool of endpoints").await;
    }
}

#[tokio::test]
async fn streams_of_one_connection_share_no_authenticated_connection() {
    let mut tasks = JoinSet::new();
    let (mail, _) = mail(&mut tasks, "one").await;
    let upstream = format!("http://{mail}");
    let mut rig = Rig::start().await;
    let (names, key, root) = certificate(&["app.example"]);
    let mut snapshot = Snapshot::builder().certificate(names, key);
    for (scheme, port) in [(Scheme::Http, 80), (Scheme::Https, 443)] {
        snapshot = snapshot.endpoint(named(scheme, "app.example", port, &upstream, ""));
    }
    rig.edge.publish(snapshot.build()).await;
    let mut sender = http2(&mut rig, &root, "app.example").await;
    for turn in 0..3 {
        for (credentials, status) in [("Negotiate ticket-anna", 200), ("", 401)] {
            let mut request = Request::get("https://app.example/");
            if !credentials.is_empty() {
                request = request.header("authorization", credentials);
            }
            let request = request.body(Full::<Bytes>::default()).unwrap();
            let answer = soon("an answer", sender.send_request(request)).await;
            let answer = answer.unwrap();
            assert_eq!(answer.status(), status, "{turn}");
            answer.into_body().collect().await.unwrap();
        }
        strangers_see_nothing(&rig, "HTTP/2").await;
    }
}

/// A mail server that speaks HTTP/2 and authenticates connections all the same.
async fn mail2(tasks: &mut JoinSet<()>) -> SocketAddr {
    origin(tasks, |client| async move {
        let session = Arc::new(Mutex::new(Session::default()));
        let service = hyper::service::service_fn(move |request: Request<_>| {
            let mut session = session.lock().unwrap();
            for credentials in request.headers().get_all("authorization") {
                session.read(credentials.to_str().unwrap());
            }
            let status = match &session.user {
                // It has no WebSocket.
                _ if request.method() == Method::CONNECT => 403,
                Some(_) => 200,
                None => 401,
            };
            let response = Response::builder().status(status);
            let response = response.body(Full::<Bytes>::default()).unwrap();
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.enable_connect_protocol();
        let served = server.serve_connection(TokioIo::new(client.stream), service);
        drop(served.await);
    })
    .await
}

#[tokio::test]
async fn credentials_of_a_connection_are_not_sent_on_a_shared_http2_connection() {
    for policy in ["", IDLE] {
        let mut tasks = JoinSet::new();
        let upstream = format!("http://{}", mail2(&mut tasks).await);
        let rig = Rig::start().await;
        let mut endpoint = named(Scheme::Http, "app.example", 80, &upstream, policy);
        endpoint.upstream = Some(crate::Upstream::parse(&upstream, "http2").unwrap());
        rig.edge
            .publish(Snapshot::builder().endpoint(endpoint).build())
            .await;
        strangers_see_nothing(&rig, "before").await;
        for _ in 0..2 {
            let mut anna = rig.connect().await;
            let ticket = "Authorization: Negotiate ticket-anna\r\n";
            assert_eq!(ask(&mut anna, "/", ticket).await.0, 200);
            strangers_see_nothing(&rig, policy).await;
            // Those of a handshake of WebSocket too.
            let mut anna = rig.connect().await;
            let handshake = format!("{HANDSHAKE}{ticket}");
            assert_eq!(ask(&mut anna, "/", &handshake).await.0, 403);
            strangers_see_nothing(&rig, policy).await;
        }
    }
}

/// The fields of a handshake of WebSocket.
const HANDSHAKE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[tokio::test]
async fn a_connection_that_refused_an_upgrade_carries_nothing_else() {
    let mut tasks = JoinSet::new();
    let connections = Arc::new(Turns::default());
    let counted = Arc::clone(&connections);
    let address = origin(&mut tasks, move |mut client| {
        counted.next();
        async move {
            while client.request().await.is_some() {
                let answer = "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno";
                client.send(answer).await;
            }
        }
    })
    .await;
    for policy in ["", IDLE] {
        let rig = rig(settings(), policy, &[format!("http://{address}")]).await;
        let before = connections.get();
        for (fields, count) in [("", 1), ("", 1), (HANDSHAKE, 1), ("", 2), ("", 2)] {
            let mut client = rig.connect().await;
            assert_eq!(ask(&mut client, "/", fields).await.0, 403);
            assert_eq!(connections.get() - before, count, "{policy} {fields}");
        }
    }
}
