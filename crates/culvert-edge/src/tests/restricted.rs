//! Endpoints that admit some addresses only, and what events say of the others (contract: events 7.3).

use std::net::TcpListener;
use std::sync::Arc;

use culvert_base::{IpSet, Prefix, Verdict};
use culvert_policy::Scheme;

use super::harness::*;
use crate::{Restriction, Snapshot};

/// A restriction of the harness's account that admits a prefix.
fn only(prefix: &str, enforced: bool) -> Restriction {
    Restriction {
        id: "ipx_1".into(),
        account: "ac_1".into(),
        enforced,
        admitted: Arc::new(IpSet::of([(
            Verdict::Allow,
            Prefix::parse(prefix).unwrap(),
        )])),
    }
}

const ASK: &str = "GET / HTTP/1.1\r\nHost: app.example\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n";

#[tokio::test]
async fn restricted_http_requests_get_403_and_are_recorded_as_blocked() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    for (n, (restriction, status, decision)) in [
        (only("127.0.0.0/8", true), 200, "invalid"),
        (only("192.0.2.0/24", true), 403, "block"),
        (only("192.0.2.0/24", false), 200, "invalid"),
        (
            Restriction {
                account: "ac_2".into(),
                ..only("192.0.2.0/24", true)
            },
            200,
            "invalid",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let snapshot = http("app.example", origin).restriction(restriction);
        rig.edge.publish(snapshot.build()).await;
        let answer = rig.ask(ASK).await;
        assert_eq!(answer.status, status, "case {n}");
        if status == 403 {
            assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3205"));
        }
        let events = rig.recorder.events(2 * n + 2).await;
        let (http, tcp) = (of(&events, HTTP), of(&events, TCP));
        let object = &http[n]["object"];
        assert_eq!(object["ip_policy"]["decision"], decision, "case {n}");
        assert_eq!(object["http"]["response"]["status_code"], status);
        assert_eq!(tcp[n]["object"]["ip_policy"]["decision"], "invalid");
    }
}

#[tokio::test]
async fn a_new_ip_restriction_applies_to_open_connections() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client.send(ASK).await;
    assert_eq!(client.answer("GET").await.status, 200);
    let snapshot = http("app.example", origin).restriction(only("192.0.2.0/24", true));
    rig.edge.publish(snapshot.build()).await;
    client.send(ASK).await;
    assert_eq!(client.answer("GET").await.status, 403);
}

#[tokio::test]
async fn restricted_tcp_and_tls_connections_are_closed_and_recorded_as_blocked() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.send("from the origin").await;
    })
    .await;
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let upstream = format!("tcp://{origin}");
    let snapshot = |restriction: Restriction| {
        Snapshot::builder()
            .endpoint(endpoint(
                Scheme::Tcp,
                "tcp.example",
                free.port(),
                &upstream,
                "",
            ))
            .endpoint(endpoint(Scheme::Tls, "pass.example", 443, &upstream, ""))
            .restriction(restriction)
            .build()
    };
    let connect = async || Client::new(tokio::net::TcpStream::connect(free).await.unwrap());
    rig.edge
        .publish(snapshot(only("192.0.2.0/24", false)))
        .await;
    assert_eq!(connect().await.rest().await, b"from the origin");

    rig.edge.publish(snapshot(only("192.0.2.0/24", true))).await;
    assert_eq!(connect().await.rest().await, b"");
    let (_, _, root) = certificate(&["pass.example"]);
    let https = rig.edge.https_addr().unwrap();
    assert!(tls(https, &root, "pass.example", "x").await.is_err());
    let events = rig.recorder.events(3).await;
    let decisions: Vec<_> = events
        .iter()
        .map(|event| {
            assert_eq!(event["event_type"], TCP);
            let object = &event["object"];
            (
                object["conn"]["server_name"].as_str().unwrap(),
                object["ip_policy"]["decision"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("tcp.example", "invalid"),
        ("tcp.example", "block"),
        ("pass.example", "block"),
    ];
    assert_eq!(decisions, expected);
}
