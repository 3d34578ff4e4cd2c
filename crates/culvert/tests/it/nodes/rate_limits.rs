//! Rate limits whose scope is the cluster.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{beside, beside_at, status_of};
use crate::agents::{self, ProxyMode};
use crate::harness::{Harness, cluster, eventually};

/// Clients spread over three nodes: a limit of the cluster holds but for what was under way, and other buckets are
/// not touched. A limit without a scope is each node's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_rate_limit_counts_all_nodes() {
    const CAPACITY: usize = 100;
    // How long a count may take to be known elsewhere, on a machine with other work.
    const KNOWN_WITHIN: Duration = Duration::from_secs(6);
    let Some(backend) = cluster(3).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let (two, three) = (beside(&one).await, beside(&one).await);
    let nodes = [&one, &two, &three];
    let policy = |capacity: usize, scope: &str| {
        json!({"on_http_request": [{"actions": [
            {"type": "rate-limit", "config": {"capacity": capacity, "rate": "1h", "bucket_key": ["req.url.path"], "scope": scope}},
            {"type": "custom-response", "config": {"body": "in"}},
        ]}]})
        .to_string()
    };
    for (host, capacity, scope) in [
        ("cluster.culvert.localhost", CAPACITY, "cluster"),
        ("node.culvert.localhost", 3, "node"),
    ] {
        let url = format!("http://{host}");
        let body = json!({"url": url, "traffic_policy": policy(capacity, scope)});
        one.create("endpoints", body).await;
    }
    let ask = async |at: SocketAddr, host: &str, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = text_of(at, &request).await;
        let status = answer.split(' ').nth(1).and_then(|text| text.parse().ok());
        status.unwrap_or_else(|| panic!("{at}: {answer:?}"))
    };
    for node in nodes {
        eventually("every node serves both and shares counts", async || {
            let metrics = text_of(node.metrics, "GET /metrics HTTP/1.0\r\n\r\n").await;
            ask(node.http, "cluster.culvert.localhost", "/warm").await == 200_u16
                && ask(
                    node.http,
                    "node.culvert.localhost",
                    &format!("/{}", node.http),
                )
                .await
                    != 404
                && metrics.contains("\nculvert_rate_limit_exchange 1\n")
        })
        .await;
    }

    let began = Instant::now();
    let mut clients = JoinSet::new();
    for nth in 0..6 {
        let at = nodes[nth % 3].http;
        clients.spawn(async move {
            let (mut passed, mut refused) = (Vec::new(), 0);
            while refused < 20 {
                let request = "GET /shared HTTP/1.1\r\nhost: cluster.culvert.localhost\r\nconnection: close\r\n\r\n";
                let answer = text_of(at, request).await;
                if answer.starts_with("HTTP/1.1 200 ") {
                    passed.push((began.elapsed(), at));
                    refused = 0;
                } else {
                    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer:?}");
                    assert!(answer.contains("retry-after: "), "{answer:?}");
                    refused += 1;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            passed
        });
    }
    let mut passed: Vec<(Duration, SocketAddr)> = clients.join_all().await.concat();
    passed.sort_unstable();
    println!(
        "{} of {CAPACITY} passed in {:?}",
        passed.len(),
        began.elapsed()
    );
    assert!(passed.len() >= CAPACITY, "{}", passed.len());
    for (before, (at, node)) in passed.iter().enumerate() {
        let since = at.saturating_sub(KNOWN_WITHIN);
        let is_unheard = |(when, by): &&(Duration, SocketAddr)| *when >= since && by != node;
        let unheard = passed[..before].iter().filter(is_unheard).count();
        assert!(
            before < CAPACITY + unheard,
            "{before} before {at:?}, {unheard} unheard"
        );
    }
    // When all is known, no node lets one more pass.
    for node in nodes {
        eventually("each node knows", async || {
            ask(node.http, "cluster.culvert.localhost", "/shared").await == 429_u16
        })
        .await;
        for _ in 0..10 {
            let status: u16 = ask(node.http, "cluster.culvert.localhost", "/other").await;
            assert_eq!(status, 200);
        }
        for expected in [200, 200, 200, 429] {
            let status: u16 = ask(node.http, "node.culvert.localhost", "/shared").await;
            assert_eq!(status, expected, "each node's own");
        }
    }
    three.stop().await;
    two.stop().await;
    one.stop().await;
}

/// A node that loses the database limits by its own counts and those that it has received, and is one of all again
/// when the database is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_rate_limit_holds_on_a_node_without_the_database() {
    const HOST: &str = "apart.culvert.localhost";
    const CAPACITY: usize = 10;
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let mut url = url::Url::parse(&one.settings.database_url).unwrap();
    let host = url.host_str().unwrap().to_owned();
    let database = (host, url.port().unwrap_or(5432));
    let database = tokio::net::lookup_host(database).await.unwrap().next();
    let proxy = agents::Proxy::to(database.unwrap()).await;
    url.set_ip_host(proxy.address.ip()).unwrap();
    url.set_port(Some(proxy.address.port())).unwrap();
    let other = beside_at(&one, url.as_str()).await;
    let policy = json!({"on_http_request": [{"actions": [
        {"type": "rate-limit", "config": {"capacity": CAPACITY, "rate": "1h", "bucket_key": ["req.url.path"], "scope": "cluster"}},
        {"type": "custom-response", "config": {"body": "in"}},
    ]}]});
    let body = json!({"url": format!("http://{HOST}"), "traffic_policy": policy.to_string()});
    one.create("endpoints", body).await;
    let passes = async |node: &Harness, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
        let answer = text_of(node.http, &request).await;
        match answer.split(' ').nth(1) {
            Some("200") => true,
            Some("429") => false,
            _ => panic!("{answer:?}"),
        }
    };
    // How many pass until one does not.
    let exhaust = async |node: &Harness, path: &str| {
        let mut n_passed = 0;
        while passes(node, path).await {
            n_passed += 1;
        }
        n_passed
    };
    let shares = async |node: &Harness, shares: bool| {
        let metrics = text_of(node.metrics, "GET /metrics HTTP/1.0\r\n\r\n").await;
        let line = format!("\nculvert_rate_limit_exchange {}\n", u8::from(shares));
        metrics.contains(&line)
    };
    for node in [&one, &other] {
        eventually("it serves and shares counts", async || {
            status_of(node.http, HOST).await != Ok(404) && shares(node, true).await
        })
        .await;
    }
    assert_eq!(exhaust(&one, "/before").await, CAPACITY);
    eventually("the other node knows", async || {
        !passes(&other, "/before").await
    })
    .await;

    for lost in [ProxyMode::Reset, ProxyMode::Still] {
        let path = |name: &str| format!("/{name}/{lost:?}");
        proxy.becomes(lost);
        eventually("it finds itself alone", async || {
            shares(&other, false).await
        })
        .await;
        assert!(shares(&one, true).await);
        for node in [&one, &other] {
            let n_passed = exhaust(node, &path("apart")).await;
            assert_eq!(n_passed, CAPACITY, "the limit of each node by itself");
        }
        assert!(
            !passes(&other, "/before").await,
            "what it has heard counts on"
        );
        proxy.becomes(ProxyMode::Open);
        proxy.cut();
        eventually("it is one of them again", async || {
            shares(&other, true).await
        })
        .await;
        for node in [&one, &other] {
            assert!(!passes(node, &path("apart")).await);
        }
        assert_eq!(exhaust(&other, &path("after")).await, CAPACITY);
        eventually("the first node knows", async || {
            !passes(&one, &path("after")).await
        })
        .await;
    }
    other.stop().await;
    one.stop().await;
}

/// All that is answered to one request.
async fn text_of(at: SocketAddr, request: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(culvert_testing::PATIENCE, exchange).await;
    answer.unwrap().unwrap()
}
