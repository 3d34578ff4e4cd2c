//! An endpoint with several upstreams, as users see it: it goes on without those that fail, and with those that are back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use culvert::client::Client;
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::harness::{binary, eventually, raw};
use crate::kill::Process;

const GET: &[u8] =
    b"GET / HTTP/1.1\r\nhost: several.culvert.localhost\r\nconnection: close\r\n\r\n";

/// A service that counts its requests.
struct Service {
    address: SocketAddr,
    served: Arc<AtomicU32>,
    /// All of it: without them, its port is closed and its connections are reset.
    tasks: JoinSet<()>,
}

impl Service {
    async fn start(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::<AtomicU32>::default();
        let mut tasks = JoinSet::new();
        let count = Arc::clone(&served);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&count)));
            }
        });
        Self {
            address,
            served,
            tasks,
        }
    }

    fn served(&self) -> u32 {
        self.served.load(Ordering::Relaxed)
    }

    async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }
}

/// Responds to requests without a body until the connection ends.
async fn serve(mut stream: TcpStream, count: Arc<AtomicU32>) {
    let mut head = Vec::new();
    while let Ok(1..) = stream.read_buf(&mut head).await {
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        head.clear();
        count.fetch_add(1, Ordering::Relaxed);
        let answered = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        if answered.await.is_err() {
            return;
        }
    }
}

async fn statuses(address: SocketAddr, count: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(raw(address, GET).await.status);
    }
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_goes_on_without_an_upstream_that_fails() {
    let folder = tempfile::tempdir().unwrap();
    let allow = ["--edge-allow-private-upstreams", "true"];
    let server = Process::start_as(binary(), folder.path(), "", &allow);
    let token = culvert::client::read_token(&folder.path().join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut services = [
        Service::start(any).await,
        Service::start(any).await,
        Service::start(any).await,
    ];
    let upstreams = services
        .each_ref()
        .map(|one| json!({"url": format!("http://{}", one.address)}));
    let endpoint = json!({"url": "http://several.culvert.localhost", "upstreams": upstreams});
    let made = client.expect(Method::POST, "/endpoints", Some(&endpoint));
    let made = made.await.unwrap();
    eventually("the endpoint is live", async || {
        raw(server.http, GET).await.status == 200
    })
    .await;

    // In turn.
    let before = services.each_ref().map(Service::served);
    assert_eq!(statuses(server.http, 30).await, [200; 30]);
    for (service, before) in services.iter().zip(before) {
        assert_eq!(service.served() - before, 10);
    }

    // One is away: the others serve all, and no client sees it.
    let [first, ..] = &mut services;
    first.stop().await;
    assert_eq!(statuses(server.http, 60).await, [200; 60]);

    // All are away, and one returns.
    let [_, second, third] = &mut services;
    second.stop().await;
    third.stop().await;
    assert_eq!(statuses(server.http, 6).await, [502; 6]);
    let back = Service::start(second.address).await;
    assert_eq!(statuses(server.http, 10).await, [200; 10]);
    assert_eq!(back.served(), 10);

    // A URL takes the place of the list.
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let alone = Service::start(any).await;
    let change = json!({"upstream_url": format!("http://{}", alone.address)});
    let changed = client.expect(Method::PATCH, &path, Some(&change)).await;
    assert_eq!(changed.unwrap()["upstreams"], json!([]));
    eventually("the URL is live", async || {
        raw(server.http, GET).await;
        alone.served() > 0
    })
    .await;
}

/// The kinds of the events about upstreams, the oldest first, with the reason of each.
async fn health_events(client: &Client) -> Vec<(String, String)> {
    let path = "/events?type=upstream_unhealthy.v0,upstream_healthy.v0";
    let page = client.expect(Method::GET, path, None).await.unwrap();
    let events = page["events"].as_array().unwrap().iter().rev();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    events
        .map(|entry| {
            let event = &entry["event"];
            (text(&event["event_type"]), text(&event["object"]["reason"]))
        })
        .collect()
}

/// Checks find what no request has met, the API shows it, and each change of state has an event.
#[tokio::test(flavor = "multi_thread")]
async fn upstreams_that_fail_their_checks_are_shown_and_have_events() {
    let folder = tempfile::tempdir().unwrap();
    let allow = ["--edge-allow-private-upstreams", "true"];
    let server = Process::start_as(binary(), folder.path(), "", &allow);
    let token = culvert::client::read_token(&folder.path().join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token.clone()).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let stays = Service::start(any).await;
    let mut leaves = Service::start(any).await;
    let of = |service: &Service| json!({"url": format!("http://{}", service.address)});
    let endpoint = json!({
        "url": "http://several.culvert.localhost",
        "upstreams": [of(&stays), of(&leaves)],
        "upstream_health": {"active": {
            "path": "/ready", "interval": "1s", "healthy_threshold": 1, "unhealthy_threshold": 1,
        }},
    });
    let made = client.expect(Method::POST, "/endpoints", Some(&endpoint));
    let made = made.await.unwrap();
    let path = format!("/endpoints/{}/upstreams", made["id"].as_str().unwrap());
    let states = async || {
        let shown = client.expect(Method::GET, &path, None).await.unwrap();
        shown["upstreams"].as_array().unwrap().clone()
    };
    eventually("both are checked", async || {
        let states = states().await;
        states.len() == 2 && states.iter().all(|one| one["last_check"]["passed"] == true)
    })
    .await;
    assert!(health_events(&client).await.is_empty());

    leaves.stop().await;
    eventually("one is unhealthy", async || {
        let states = states().await;
        (&states[0]["state"], &states[1]["state"]) == (&json!("healthy"), &json!("unhealthy"))
    })
    .await;
    let state = &states().await[1];
    assert_eq!(state["used"], false);
    let reason = state["reason"].as_str().unwrap();
    assert!(reason.starts_with("health check: connecting: "), "{state}");
    let unhealthy = ("upstream_unhealthy.v0".to_owned(), reason.to_owned());
    eventually("its event", async || {
        health_events(&client).await == [unhealthy.clone()]
    })
    .await;
    let before = stays.served();
    assert_eq!(statuses(server.http, 20).await, [200; 20]);
    assert!(stays.served() - before >= 20, "no request met the other");

    let _back = Service::start(leaves.address).await;
    eventually("it is healthy", async || {
        states().await[1]["state"] == "healthy"
    })
    .await;
    // The event of its return comes a minute after that of its failure at the earliest. A stop is no return.
    assert_eq!(server.terminate(), 0);
    let server = Process::start_as(binary(), folder.path(), "", &allow);
    let client = Client::new(&server.api, token).unwrap();
    assert_eq!(health_events(&client).await, [unhealthy]);
}
