//! Health checks of upstreams: what passes, and who gets traffic.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use culvert_edge_config::{ActiveHealth, HttpProbe, Probe, UpstreamStatus};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;

use super::balanced::{list, publish, several};
use super::harness::*;
use super::limits::free_port;
use crate::{Endpoint, Snapshot};

const GET: &str = "GET /x HTTP/1.1\r\nHost: app.example\r\n\r\n";

fn often(probe: Probe) -> ActiveHealth {
    ActiveHealth {
        probe,
        interval: Duration::from_millis(100),
        timeout: Duration::from_secs(10),
        healthy_threshold: 1,
        unhealthy_threshold: 1,
    }
}

fn http(path: &str) -> HttpProbe {
    HttpProbe {
        is_head: false,
        path: path.to_owned(),
        host: String::new(),
        statuses: vec![200..=399],
        body: String::new(),
    }
}

/// An origin that responds to checks with a status that can be changed, and to others with 200. It keeps the heads of
/// checks.
async fn ready(tasks: &mut JoinSet<()>, status: &Arc<AtomicU16>, heads: &Heads) -> SocketAddr {
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    ready_at(here, tasks, status, heads).await
}

async fn ready_at(
    address: SocketAddr,
    tasks: &mut JoinSet<()>,
    status: &Arc<AtomicU16>,
    heads: &Heads,
) -> SocketAddr {
    let (status, heads) = (Arc::clone(status), Arc::clone(heads));
    origin_at(address, tasks, move |mut client| {
        let (status, heads) = (Arc::clone(&status), Arc::clone(&heads));
        async move {
            while let Some((head, _)) = client.request().await {
                let is_check = head.contains("culvert-health-check");
                let status = if is_check {
                    heads.lock().unwrap().push(head);
                    status.load(Ordering::SeqCst)
                } else {
                    200
                };
                let body = "all is well";
                let length = body.len();
                client
                    .send(format!(
                        "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}"
                    ))
                    .await;
            }
        }
    })
    .await
}

type Heads = Arc<std::sync::Mutex<Vec<String>>>;

fn statuses(rig: &Rig) -> Vec<UpstreamStatus> {
    rig.edge.upstream_statuses("ep_1").unwrap()
}

/// An edge whose endpoint checks these upstreams.
async fn checking(upstreams: &[SocketAddr], protocol: &str, probe: Probe) -> Rig {
    let rig = Rig::start().await;
    let upstreams: Vec<_> = upstreams.iter().map(|one| (*one, 1, 0)).collect();
    let mut list = list("http", &upstreams, protocol);
    list.checks = Some(often(probe));
    publish(&rig, several(list)).await;
    rig
}

/// Waits until the upstreams are healthy or not as listed, and all have been checked.
async fn are(rig: &Rig, healthy: &[bool]) {
    eventually("the health", || {
        let statuses = statuses(rig);
        let is_checked = statuses.iter().all(|one| one.last_check.is_some());
        let found = statuses.iter().map(|one| one.is_healthy);
        is_checked && found.eq(healthy.iter().copied())
    })
    .await;
}

#[tokio::test]
async fn traffic_goes_to_upstreams_that_pass_their_checks() {
    let mut tasks = JoinSet::new();
    let (good, changing) = (Arc::new(AtomicU16::new(200)), Arc::new(AtomicU16::new(503)));
    let heads = Heads::default();
    let a = ready(&mut tasks, &good, &heads).await;
    let b = ready(&mut tasks, &changing, &Heads::default()).await;
    let mut probe = http("/healthz?full=1");
    probe.host = "app.internal".to_owned();
    let rig = checking(&[a, b], "", Probe::Http(probe)).await;
    are(&rig, &[true, false]).await;
    assert_eq!(statuses(&rig)[1].reason, "health check: status 503");
    let to = |event: &serde_json::Value| event["culvert"]["upstream"].as_str().map(str::to_owned);
    for _ in 0..6 {
        assert_eq!(rig.ask(GET).await.status, 200);
    }
    // Each connection has an event too.
    let events = rig.recorder.events(11).await;
    let requests = of(&events, "http_request_complete.v0");
    let upstreams: Vec<_> = requests.into_iter().map(to).collect();
    assert_eq!(upstreams, vec![Some(format!("http://{a}")); 6]);
    let unhealthy = rig.edge.unhealthy_upstreams().unwrap();
    assert_eq!(unhealthy.len(), 1);
    assert_eq!(unhealthy[0].url, format!("http://{b}"));

    changing.store(204, Ordering::SeqCst);
    are(&rig, &[true, true]).await;
    assert!(rig.edge.unhealthy_upstreams().unwrap().is_empty());
    let head = heads.lock().unwrap()[0].to_ascii_lowercase();
    assert!(
        head.starts_with("get /healthz?full=1 http/1.1\r\n"),
        "{head}"
    );
    assert!(head.contains("host: app.internal\r\n"), "{head}");
}

#[tokio::test]
async fn the_body_and_the_connection_decide_if_the_check_says_so() {
    let mut tasks = JoinSet::new();
    let status = Arc::new(AtomicU16::new(200));
    let server = ready(&mut tasks, &status, &Heads::default()).await;
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port().await));
    let body = |text: &str| {
        Probe::Http(HttpProbe {
            body: text.to_owned(),
            ..http("/")
        })
    };
    for (probe, healthy, reason) in [
        (body("is well"), true, ""),
        (
            body("is ill"),
            false,
            "health check: the body does not have the expected text",
        ),
        (Probe::Tcp, true, ""),
    ] {
        let rig = checking(&[server, closed], "", probe).await;
        are(&rig, &[healthy, false]).await;
        let statuses = statuses(&rig);
        assert_eq!(statuses[0].reason, reason);
        assert!(statuses[1].reason.contains("refused"), "{:?}", statuses[1]);
    }
}

/// The health service of a gRPC server: `up` serves, `down` does not, others are unknown.
async fn health_service(request: Request<Incoming>) -> Result<Response<Health>, Infallible> {
    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    let message = request.into_body().collect().await.unwrap().to_bytes();
    let (message, status) = match message.get(7..) {
        Some(b"up") => (&[0, 0, 0, 0, 2, 8, 1][..], "0"),
        Some(b"down") => (&[0, 0, 0, 0, 2, 8, 2][..], "0"),
        _ => (&[][..], "5"),
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let body = Full::new(Bytes::from_static(message))
        .with_trailers(std::future::ready(Some(Ok(trailers))));
    Ok(Response::new(body.boxed()))
}

type Health = http_body_util::combinators::BoxBody<Bytes, Infallible>;

#[tokio::test]
async fn the_health_service_of_grpc_decides() {
    let mut tasks = JoinSet::new();
    let server = origin(&mut tasks, |client| async move {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let io = TokioIo::new(client.stream);
        drop(
            server
                .serve_connection(io, service_fn(health_service))
                .await,
        );
    })
    .await;
    for (service, reason) in [
        ("up", ""),
        (
            "down",
            "health check: the gRPC health service says NOT_SERVING",
        ),
        ("other", "health check: gRPC status 5"),
    ] {
        let rig = checking(&[server], "http2", Probe::Grpc(service.to_owned())).await;
        are(&rig, &[reason.is_empty()]).await;
        assert_eq!(statuses(&rig)[0].reason, reason, "{service}");
    }
}

/// An upstream that accepts connections and sends nothing fails its check, and one that never ends its response too.
#[tokio::test]
async fn a_check_ends_in_time() {
    let mut tasks = JoinSet::new();
    let silent = origin(&mut tasks, |mut client| async move {
        client.rest().await;
    })
    .await;
    let endless = origin(&mut tasks, |mut client| async move {
        client.head().await;
        client
            .send("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n")
            .await;
        client.rest().await;
    })
    .await;
    let rig = Rig::start().await;
    let mut list = list("http", &[(silent, 1, 0), (endless, 1, 0)], "");
    let mut checks = often(Probe::Http(HttpProbe {
        body: "x".to_owned(),
        ..http("/")
    }));
    checks.timeout = Duration::from_millis(200);
    list.checks = Some(checks);
    publish(&rig, several(list)).await;
    are(&rig, &[false, false]).await;
    for status in statuses(&rig) {
        assert_eq!(status.reason, "health check: no response in time");
    }
}

/// Nothing checks the upstreams of an endpoint that has no checks any more, or is gone.
#[tokio::test]
async fn checks_end_with_their_endpoint() {
    let mut tasks = JoinSet::new();
    let status = Arc::new(AtomicU16::new(200));
    let (heads, others) = (Heads::default(), Heads::default());
    let server = ready(&mut tasks, &status, &heads).await;
    let other = ready(&mut tasks, &status, &others).await;
    let rig = Rig::start().await;
    let of = |server: SocketAddr, is_checked: bool| {
        let mut list = list("http", &[(server, 1, 0)], "");
        list.checks = is_checked.then(|| often(Probe::Http(http("/"))));
        several(list)
    };
    let goes_on = || Endpoint {
        id: "ep_2".into(),
        ..of(other, true)
    };
    let count = |heads: &Heads| heads.lock().unwrap().len();
    for last in [Some(of(server, false)), None] {
        let snapshot = Snapshot::builder().endpoint(of(server, true));
        rig.edge.publish(snapshot.endpoint(goes_on()).build()).await;
        let before = count(&heads);
        eventually("checks", || count(&heads) > before).await;
        let snapshot = Snapshot::builder().endpoint(goes_on());
        let is_listed = last.is_some();
        let snapshot = last
            .into_iter()
            .fold(snapshot, |all, one| all.endpoint(one));
        rig.edge.publish(snapshot.build()).await;
        let statuses = rig.edge.upstream_statuses("ep_1");
        assert_eq!(statuses.is_some(), is_listed);
        assert!(
            statuses
                .iter()
                .flatten()
                .all(|one| one.last_check.is_none())
        );
        let (before, others_before) = (count(&heads), count(&others));
        eventually("checks of the other", || count(&others) > others_before + 5).await;
        // One may have been on its way.
        assert!(count(&heads) <= before + 1);
    }
}

/// A change of the interval holds immediately, not after the interval before.
#[tokio::test]
async fn a_shorter_interval_holds_immediately() {
    let mut tasks = JoinSet::new();
    let status = Arc::new(AtomicU16::new(200));
    let heads = Heads::default();
    let server = ready(&mut tasks, &status, &heads).await;
    let rig = Rig::start().await;
    let of = |interval: Duration| {
        let mut list = list("http", &[(server, 1, 0)], "");
        list.checks = Some(ActiveHealth {
            interval,
            ..often(Probe::Http(http("/")))
        });
        several(list)
    };
    let count = || heads.lock().unwrap().len();
    publish(&rig, of(Duration::from_secs(3_600))).await;
    eventually("the first check", || count() == 1).await;
    let change = crate::Change {
        put: vec![Arc::new(of(Duration::from_millis(100)))],
        ..crate::Change::default()
    };
    rig.edge.apply(change).await;
    eventually("further checks", || count() > 5).await;
}

/// Three servers are replaced one after the other under load. Each says in its checks that it wants no more requests, and
/// stops once it has none. The requests have bodies, so none is sent twice, and none fails.
#[tokio::test]
async fn a_rolling_deploy_with_readiness_loses_no_request() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        let (mut tasks, status) = (JoinSet::new(), Arc::new(AtomicU16::new(200)));
        let address = ready(&mut tasks, &status, &Heads::default()).await;
        servers.push((tasks, status, address));
    }
    let addresses: Vec<_> = servers.iter().map(|(_, _, address)| *address).collect();
    let rig = Arc::new(checking(&addresses, "", Probe::Http(http("/ready"))).await);
    are(&rig, &[true; 3]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let (rig, stop) = (Arc::clone(&rig), Arc::clone(&stop));
        clients.spawn(async move {
            let mut client = rig.connect().await;
            let (mut served, mut failed) = (0, Vec::new());
            while !stop.load(Ordering::SeqCst) {
                client
                    .send("POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 2\r\n\r\nab")
                    .await;
                match client.answer("POST").await.status {
                    200 => served += 1,
                    other => failed.push(other),
                }
            }
            (served, failed)
        });
    }
    for (index, (tasks, status, address)) in servers.iter_mut().enumerate() {
        status.store(503, Ordering::SeqCst);
        eventually("it is out and has no requests", || {
            let status = &statuses(&rig)[index];
            !status.is_used && status.open_requests == 0
        })
        .await;
        tasks.shutdown().await;
        *status = Arc::new(AtomicU16::new(200));
        ready_at(*address, tasks, status, &Heads::default()).await;
        eventually("it is back", || statuses(&rig)[index].is_used).await;
    }
    stop.store(true, Ordering::SeqCst);
    for (served, failed) in clients.join_all().await {
        assert!(served > 0 && failed.is_empty(), "{served}, {failed:?}");
    }
}
