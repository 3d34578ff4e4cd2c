//! One event for each request that found an endpoint, one for each connection that did, in every
//! situation (contract: events 7.5 and 8).

use serde_json::{Value, json};

use super::harness::*;
use crate::{Limits, Settings};

/// Fields as events have them (contract: events 9.2), of a head as it went over the wire.
fn fields(head: &str) -> Value {
    let mut fields = serde_json::Map::new();
    for line in head.split("\r\n").skip(1).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap();
        let mut starts = true;
        let name: String = name
            .chars()
            .map(|letter| {
                let letter = if starts {
                    letter.to_ascii_uppercase()
                } else {
                    letter.to_ascii_lowercase()
                };
                starts = letter == '-';
                letter
            })
            .collect();
        let values = fields.entry(name).or_insert_with(|| json!([]));
        let value = value.trim_matches([' ', '\t']).to_ascii_lowercase();
        values.as_array_mut().unwrap().push(json!(value));
    }
    fields.into()
}

/// The whole event of a request in clear and the answer to it, where no module ran, from what went
/// over the wire.
pub(super) fn whole(rig: &Rig, request: &str, answer: Option<&str>, lengths: [u64; 2]) -> Value {
    let head = request.split("\r\n\r\n").next().unwrap();
    let line: Vec<&str> = head.split("\r\n").next().unwrap().split(' ').collect();
    let (path, query) = line[1].split_once('?').unwrap_or((line[1], ""));
    let asked = fields(head);
    let host = asked["Host"][0].as_str().unwrap();
    let status = answer.map(|head| head.split(' ').nth(1).unwrap().parse::<u16>().unwrap());
    json!({
        "backend": {"connection_reused": false},
        "basic_auth": {"decision": "invalid", "username": null},
        "circuit_breaker": {"decision": "invalid"},
        "compression": {"algorithm": "none", "bytes_saved": 0},
        "conn": {"client_ip": "127.0.0.1", "server_ip": "127.0.0.1", "server_name": host,
            "server_port": rig.edge.http_addr().unwrap().port()},
        "http": {
            "request": {
                "body_length": lengths[0],
                "headers": asked,
                "method": line[0].to_ascii_lowercase(),
                "url": {"host": host, "path": path, "query": query,
                    "raw": format!("http://{host}{}", line[1]), "scheme": "http"},
                "user_agent": null,
            },
            "response": {
                "body_length": lengths[1],
                "headers": answer.map_or_else(|| json!({}), fields),
                "status_code": status,
            },
        },
        "ip_policy": {"decision": "invalid"},
        "oauth": {"app_client_id": null, "decision": "invalid", "user": {"id": null, "name": null}},
        "tls": {"cipher_suite": null, "client_cert": {"serial_number": null, "subject": {"cn": null}}, "version": null},
        "traffic_policy": {"logs": []},
        "webhook_verification": {"decision": "invalid"},
    })
}

/// An exchange's event without the time, which no two have in common.
pub(super) fn reported(event: &Value) -> Value {
    let mut object = event["object"].clone();
    assert_eq!(event["event_type"], HTTP);
    let since = object["conn"].as_object_mut().unwrap().remove("start_ts");
    assert!(since.is_some_and(|since| since.as_str().unwrap().ends_with('Z')));
    object
}

#[tokio::test]
async fn a_request_event_has_every_field() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client.send("GET /a/b?c=d HTTP/1.1\r\nHost: App.example:81\r\nUser-Agent: Probe/1\r\nAccept: A\r\naccept: b\r\n\r\n").await;
    assert_eq!(client.answer("GET").await.status, 200);
    let event = rig.recorder.events(1).await.remove(0);
    assert_eq!(event["event_type"], HTTP);
    assert_eq!(event["account_id"], "ac_1");
    let mut object = event["object"].clone();
    let port = rig.edge.http_addr().unwrap().port();
    assert!(object["conn"]["start_ts"].as_str().unwrap().ends_with('Z'));
    object["conn"]["start_ts"] = json!("T");
    assert!(
        object["http"]["response"]["headers"]["Date"][0]
            .as_str()
            .unwrap()
            .ends_with("gmt")
    );
    object["http"]["response"]["headers"]["Date"] = json!("D");
    assert_eq!(
        object,
        json!({
            "backend": {"connection_reused": false},
            "basic_auth": {"decision": "invalid", "username": null},
            "circuit_breaker": {"decision": "invalid"},
            "compression": {"algorithm": "none", "bytes_saved": 0},
            "conn": {"client_ip": "127.0.0.1", "server_ip": "127.0.0.1", "server_name": "app.example",
                "server_port": port, "start_ts": "T"},
            "http": {
                "request": {
                    "body_length": 0,
                    "headers": {"Host": ["app.example:81"], "User-Agent": ["probe/1"], "Accept": ["a", "b"]},
                    "method": "get",
                    "url": {"host": "app.example", "path": "/a/b", "query": "c=d",
                        "raw": "http://App.example:81/a/b?c=d", "scheme": "http"},
                    "user_agent": "Probe/1",
                },
                "response": {
                    "body_length": 5,
                    "headers": {"Content-Type": ["text/plain"], "Content-Length": ["5"], "Date": "D"},
                    "status_code": 200,
                },
            },
            "ip_policy": {"decision": "invalid"},
            "oauth": {"app_client_id": null, "decision": "invalid", "user": {"id": null, "name": null}},
            "tls": {"cipher_suite": null, "client_cert": {"serial_number": null, "subject": {"cn": null}}, "version": null},
            "traffic_policy": {"logs": []},
            "webhook_verification": {"decision": "invalid"},
        })
    );
    drop(client);
    let events = rig.recorder.events(2).await;
    let conn = &events[1]["object"]["conn"];
    assert_eq!(events[1]["event_type"], TCP);
    assert_eq!(conn["server_name"], "app.example");
    assert_eq!(conn["bytes_in"], 90);
    assert!(conn["bytes_out"].as_i64().unwrap() > 100);
    assert!(conn["start_ts"].as_str() <= conn["end_ts"].as_str());
}

/// Response fields that the protocol adds are in the event like those of the upstream: each once.
#[tokio::test]
async fn the_response_is_recorded_as_sent() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let answer: &[u8] = match head.split(' ').nth(1).unwrap() {
                "/chunked" => {
                    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
                }
                _ => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            };
            client.send(answer).await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for (number, (line, asks, reported)) in [
        ("/ HTTP/1.1", "", None),
        ("/ HTTP/1.1", "Connection: x, Close\r\n", Some("close")),
        ("/chunked HTTP/1.1", "Connection: close\r\n", Some("close")),
        ("/ HTTP/1.0", "", Some("close")),
        (
            "/ HTTP/1.0",
            "Connection: keep-alive\r\n",
            Some("keep-alive"),
        ),
        (
            "/chunked HTTP/1.0",
            "Connection: keep-alive\r\n",
            Some("close"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = rig.connect().await;
        client
            .send(format!("GET {line}\r\nHost: app.example\r\n{asks}\r\n"))
            .await;
        let answer = client.answer("GET").await;
        assert_eq!(answer.status, 200, "{line} {asks}");
        let mut sent: Vec<String> = answer
            .headers
            .iter()
            .map(|(name, _)| name.to_ascii_lowercase())
            .collect();
        sent.sort();
        drop(client);
        let events = rig.recorder.events(2 * (number + 1)).await;
        let event = of(&events, HTTP).pop().unwrap();
        let headers = event["object"]["http"]["response"]["headers"]
            .as_object()
            .unwrap();
        let mut listed: Vec<String> = headers
            .iter()
            .flat_map(|(name, values)| {
                let times = values.as_array().unwrap().len();
                std::iter::repeat_n(name.to_ascii_lowercase(), times)
            })
            .collect();
        listed.sort();
        assert_eq!(listed, sent, "{line} {asks}");
        let connection = headers
            .get("Connection")
            .map(|values| values[0].as_str().unwrap());
        assert_eq!(connection, reported, "{line} {asks}");
    }
}

#[tokio::test]
async fn exchanges_are_recorded_however_they_end() {
    let mut rig = Rig::with(Settings {
        limits: Limits {
            answer: std::time::Duration::from_millis(300),
            ..Limits::default()
        },
        ..settings()
    })
    .await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        if let Some((head, _)) = client.request().await {
            let answer: &[u8] = match head.split(' ').nth(1).unwrap() {
                "/chunked" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nx: y\r\n\r\n",
                "/head" => b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n",
                "/204" => b"HTTP/1.1 204 No Content\r\n\r\n",
                "/304" => b"HTTP/1.1 304 Not Modified\r\netag: \"A\"\r\n\r\n",
                "/dies" => b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nabcdef",
                "/bad" => b"?\r\n\r\n",
                "/slow" => {
                    client.rest().await;
                    return;
                }
                "/events" => b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n",
                _ => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            };
            // No connection serves twice, which events would tell.
            let answer = String::from_utf8(answer.to_vec()).unwrap();
            client
                .send(answer.replacen("\r\n", "\r\nconnection: close\r\n", 1))
                .await;
        }
    })
    .await;
    let unreachable = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let snapshot = http("app.example", origin).endpoint(endpoint(
        culvert_policy::Scheme::Http,
        "gone.example",
        80,
        &format!("http://{unreachable}"),
        "",
    ));
    let mut denied = super::policies::governed(
        culvert_policy::Scheme::Http,
        "",
        "
on_http_request:
- expressions: [req.method == 'POST']
  actions:
  - {type: log, config: {metadata: {a: 1}}}
  - {type: basic-auth, config: {credentials: ['me:password'], enforce: false}}
  - {type: deny}
- expressions: [req.url.path == '/close']
  actions: [{type: close-connection}]
- actions: [{type: redirect, config: {to: 'https://app.example/', headers: {x-redirected: yes}}}]
",
    );
    denied.host = culvert_base::net::HostName::parse("denied.example").unwrap();
    let snapshot = snapshot.endpoint(denied);
    rig.edge.publish(snapshot.build()).await;

    let app = "Host: app.example\r\n";
    let situations = [
        (
            format!(
                "POST /chunked HTTP/1.1\r\n{app}Transfer-Encoding: chunked\r\n\r\n4;x=y\r\nabcd\r\n0\r\nt: u\r\n\r\n"
            ),
            json!(["post", 200, 4, 5]),
        ),
        (
            format!("HEAD /head HTTP/1.1\r\n{app}\r\n"),
            json!(["head", 200, 0, 0]),
        ),
        (
            format!("GET /204 HTTP/1.1\r\n{app}\r\n"),
            json!(["get", 204, 0, 0]),
        ),
        (
            format!("GET /304 HTTP/1.1\r\n{app}If-None-Match: \"a\"\r\n\r\n"),
            json!(["get", 304, 0, 0]),
        ),
        // The policy responds before the body is read.
        (
            "POST /a?b=c HTTP/1.1\r\nHost: denied.example\r\nContent-Length: 3\r\n\r\n".to_owned(),
            json!(["post", 403, 0, 0, {
                "/basic_auth/decision": "allow", "/traffic_policy/logs": [{"metadata": {"a": 1}}],
            }]),
        ),
        (
            "GET /away HTTP/1.1\r\nHost: denied.example\r\n\r\n".to_owned(),
            json!(["get", 302, 0, 0]),
        ),
        (
            "GET /close HTTP/1.1\r\nHost: denied.example\r\n\r\n".to_owned(),
            json!(["get", null, 0, 0]),
        ),
        (
            format!("GET /dies HTTP/1.1\r\n{app}\r\n"),
            json!(["get", 200, 0, 6]),
        ),
        (
            format!("GET /bad HTTP/1.1\r\n{app}\r\n"),
            json!(["get", 502, 0, null]),
        ),
        (
            format!("GET /slow HTTP/1.1\r\n{app}\r\n"),
            json!(["get", 504, 0, null]),
        ),
        (
            format!("GET /events HTTP/1.1\r\n{app}\r\n"),
            json!(["get", 200, 0, 9]),
        ),
        (
            "GET / HTTP/1.1\r\nHost: gone.example\r\n\r\n".to_owned(),
            json!(["get", 502, 0, null]),
        ),
        (
            format!("TRACE / HTTP/1.1\r\n{app}\r\n"),
            json!(["trace", 405, 0, null]),
        ),
        (
            format!("POST / HTTP/1.1\r\n{app}Expect: x\r\nContent-Length: 3\r\n\r\n"),
            json!(["post", 417, 0, null]),
        ),
        (
            format!("M-SEARCH / HTTP/1.1\r\n{app}\r\n"),
            json!(["m-search", 200, 0, 2]),
        ),
        (
            format!("OPTIONS * HTTP/1.1\r\n{app}\r\n"),
            json!(["options", 200, 0, 2]),
        ),
    ];
    let count = situations.len();
    for (request, expected) in situations {
        let before = rig.recorder.count();
        let mut client = rig.connect().await;
        client.send(&request).await;
        let head = client.head().await;
        let events = rig.recorder.events(before + 1).await;
        drop(client);
        let length = |at: usize| expected[at].as_u64();
        // The edge's own page is as long as it says.
        let page = || {
            let reported = head.as_deref().map(fields);
            let length = reported
                .as_ref()
                .map(|reported| reported["Content-Length"][0].as_str().unwrap());
            length.map_or(0, |length| length.parse().unwrap())
        };
        let lengths = [length(2).unwrap(), length(3).unwrap_or_else(page)];
        let mut object = whole(&rig, &request, head.as_deref(), lengths);
        assert_eq!(
            object["http"]["request"]["method"], expected[0],
            "{request}"
        );
        assert_eq!(
            object["http"]["response"]["status_code"], expected[1],
            "{request}"
        );
        if let Some(changes) = expected.get(4) {
            for (path, value) in changes.as_object().unwrap() {
                *object.pointer_mut(path).unwrap() = value.clone();
            }
        }
        assert_eq!(reported(&events[before]), object, "{request}");
        let events = rig.recorder.events(before + 2).await;
        assert_eq!(events[before + 1]["event_type"], TCP, "{request}");
    }
    // Nothing more came of any of them.
    assert_eq!(rig.recorder.count(), 2 * count);
}

#[tokio::test]
async fn unrouted_requests_make_no_event() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for request in [
        "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n",
        "nonsense\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: other.example\r\nContent-Length: x\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
    ] {
        assert!(rig.ask(request).await.status >= 400);
    }
    drop(rig.connect().await);
    rig.ask("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n").await;
    let events = rig.recorder.events(2).await;
    assert_eq!(events[0]["object"]["http"]["response"]["status_code"], 200);
    assert_eq!(rig.recorder.count(), 2);
    // Each is counted by the edge.
    let refused = rig.edge.take_refused();
    assert_eq!(refused.iter().map(|one| one.count).sum::<u64>(), 4);
}

#[tokio::test]
async fn a_disconnect_of_the_client_ends_the_exchange() {
    let mut rig = Rig::start().await;
    let (tell, mut heard) = tokio::sync::mpsc::channel(8);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let tell = tell.clone();
        async move {
            let head = client.head().await.unwrap();
            if head.starts_with("GET /stream") {
                client
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n0123456789")
                    .await;
            }
            if head.starts_with("POST") {
                while client.read.len() < 5 {
                    client.more().await;
                }
            }
            tell.send("asked").await.unwrap();
            client.rest().await;
            tell.send("left").await.unwrap();
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;

    // While the answer is awaited.
    let wait = "GET /wait HTTP/1.1\r\nHost: app.example\r\n\r\n";
    let mut client = rig.connect().await;
    client.send(wait).await;
    heard.recv().await.unwrap();
    drop(client);
    soon("the origin to be left", heard.recv()).await.unwrap();
    let events = rig.recorder.events(2).await;
    assert_eq!(reported(&events[0]), whole(&rig, wait, None, [0, 0]));

    // While the request is sent.
    let post = "POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 100\r\n\r\n";
    let mut client = rig.connect().await;
    client.send(format!("{post}01234")).await;
    heard.recv().await.unwrap();
    drop(client);
    soon("the origin to be left", heard.recv()).await.unwrap();
    let events = rig.recorder.events(4).await;
    assert_eq!(reported(&events[2]), whole(&rig, post, None, [5, 0]));

    // While the answer is sent.
    let stream = "GET /stream HTTP/1.1\r\nHost: app.example\r\n\r\n";
    let mut client = rig.connect().await;
    client.send(stream).await;
    heard.recv().await.unwrap();
    let head = client.head().await.unwrap();
    assert_eq!(client.take(10).await.unwrap(), b"0123456789");
    drop(client);
    soon("the origin to be left", heard.recv()).await.unwrap();
    let events = rig.recorder.events(6).await;
    let object = whole(&rig, stream, Some(&head), [0, 10]);
    assert_eq!(reported(&events[4]), object);
    for at in [1, 3, 5] {
        assert_eq!(events[at]["event_type"], TCP);
    }
}

#[tokio::test]
async fn bytes_that_were_not_sent_are_not_counted() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.request().await;
        client
            .send("HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
            .await;
        let block = vec![b'x'; 1 << 20];
        for _ in 0..95 {
            client.send(&block).await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client
        .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    client.head().await.unwrap();
    drop(client);
    let events = rig.recorder.events(2).await;
    let body = events[0]["object"]["http"]["response"]["body_length"]
        .as_i64()
        .unwrap();
    let out = events[1]["object"]["conn"]["bytes_out"].as_i64().unwrap();
    assert!(
        body > 0 && body < out && out - body < 400,
        "{body} of {out}"
    );
}

#[tokio::test]
async fn no_record_is_made_without_a_subscription() {
    let mut rig = Rig::start().await;
    rig.recorder
        .is_off
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    assert_eq!(
        rig.ask("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
            .await
            .status,
        200
    );
    soon("the connection to end", async {
        while rig.edge.meters().connections.get() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(rig.recorder.count(), 0);
}

#[tokio::test]
async fn connections_beyond_the_limit_of_their_source_are_closed() {
    let rig = Rig::with(Settings {
        limits: Limits {
            connections_per_source: 2,
            ..Limits::default()
        },
        ..settings()
    })
    .await;
    let (mut one, _two) = (rig.connect().await, rig.connect().await);
    one.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(one.answer("GET").await.status, 404);
    soon("both to be taken in", async {
        while rig.edge.meters().connections.get() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut three = rig.connect().await;
    assert!(!three.more().await);
    assert_eq!(rig.edge.meters().refused_source.get(), 1);
}

#[tokio::test]
async fn slow_connections_are_closed() {
    let short = std::time::Duration::from_millis(100);
    let mut rig = Rig::with(Settings {
        limits: Limits {
            first_byte: short,
            head: short,
            idle: short,
            body_stall: short,
            ..Limits::default()
        },
        ..settings()
    })
    .await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;

    let mut silent = rig.connect().await;
    assert_eq!(silent.rest().await, b"");

    let mut dripping = rig.connect().await;
    dripping.send("GET / HTTP/1.1\r\nHo").await;
    assert_eq!(dripping.answer("GET").await.status, 408);

    let mut idle = rig.connect().await;
    idle.send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    assert_eq!(idle.answer("GET").await.status, 200);
    assert_eq!(idle.rest().await, b"");

    let mut stalled = rig.connect().await;
    stalled
        .send("POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 9\r\n\r\nabc")
        .await;
    assert_eq!(stalled.answer("POST").await.status, 408);
}
