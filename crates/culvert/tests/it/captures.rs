//! Captured requests and responses over the API: readers, redaction, limits, survival of a kill, requests that are
//! sent again, and dry runs.

use culvert::client::Client;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Backend, Harness, Receiver, backends, eventually, raw};
use crate::kill::Process;

const KIND: &str = "http_request_complete.v0";

/// A policy with one `capture` action for every request.
fn capture(config: &Value) -> String {
    json!({"on_http_request": [{"actions": [{"type": "capture", "config": config}]}]}).to_string()
}

/// Creates an endpoint with a policy, and waits until it is live.
async fn endpoint(culvert: &Harness, client: &Client, name: &str, body: Value) -> String {
    let host = format!("{name}.culvert.localhost");
    let mut whole = json!({"url": format!("http://{host}")});
    for (key, value) in body.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let made = client.expect(Method::POST, "/endpoints", Some(&whole));
    let made = made.await.unwrap();
    eventually("the endpoint is live", async || {
        culvert.get(&host, "/live").await.status != 404
    })
    .await;
    made["id"].as_str().unwrap().to_owned()
}

/// The kept events of requests with this path, oldest first.
async fn events(client: &Client, path: &str) -> Vec<Value> {
    let filter = format!("ev.http.request.url.path == '{path}'");
    let filter: String = url::form_urlencoded::byte_serialize(filter.as_bytes()).collect();
    let query = format!("/events?order=oldest&type={KIND}&filter={filter}");
    let page = client.expect(Method::GET, &query, None).await.unwrap();
    page["events"].as_array().unwrap().clone()
}

/// Waits for that many kept events of requests with this path; their ids.
async fn ids(client: &Client, path: &str, count: usize) -> Vec<String> {
    eventually("the events are kept", async || {
        events(client, path).await.len() == count
    })
    .await;
    let events = events(client, path).await.into_iter();
    let id = |one: Value| one["event"]["event_id"].as_str().unwrap().to_owned();
    events.map(id).collect()
}

async fn id(client: &Client, path: &str) -> String {
    ids(client, path, 1).await.remove(0)
}

/// Waits until messages are stored.
async fn messages(client: &Client, id: &str) -> Value {
    let path = format!("/events/{id}/messages");
    eventually("the messages are stored", async || {
        let found = client.expect(Method::GET, &path, None).await.unwrap();
        found["request"] != Value::Null
    })
    .await;
    client.expect(Method::GET, &path, None).await.unwrap()
}

fn value<'v>(message: &'v Value, name: &str) -> Option<&'v str> {
    let fields = message["headers"].as_array().unwrap().iter();
    let mut named = fields.filter(|field| field["name"] == name);
    named.next()?["value"].as_str()
}

/// A new bot with its own key.
async fn bot(culvert: &Harness, name: &str) -> Client {
    let bot = culvert.create("bot_users", json!({"name": name})).await;
    let body = json!({"owner_id": bot["id"]});
    let key = culvert.create("api_keys", body).await;
    culvert.client_with(key["token"].as_str().unwrap())
}

async fn send(culvert: &Harness, host: &str, target: &str, fields: &str, body: &str) -> u16 {
    let length = body.len();
    let request = format!(
        "POST {target} HTTP/1.1\r\nhost: {host}.culvert.localhost\r\nconnection: close\r\n{fields}content-length: {length}\r\n\r\n{body}"
    );
    raw(culvert.http, request.as_bytes()).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn captures_are_readable_by_owner_and_admins_without_credentials() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let (owner, other) = (bot(&culvert, "owner").await, bot(&culvert, "other").await);
        let origin = Receiver::start().await;
        let upstream = format!("http://{}", origin.address);
        let policy = capture(&json!({
            "max_bytes": 1000,
            "redact": {"json": ["**.secret"], "query": ["pin"], "headers": ["x-mine"]},
            "reveal": {"query": ["sig"]},
        }));
        let body = json!({"upstream_url": upstream, "traffic_policy": policy});
        endpoint(&culvert, &owner, "captured", body).await;
        let fields = "content-type: application/json\r\nAuthorization: Bearer Abc\r\nX-Mine: 1\r\nX-Mine: 2\r\nX-Plain: AbC\r\n";
        let text = r#"{"a":[{"Secret":"s\u0065same"}],"b":"Text"}"#;
        let target = "/in?token=the-token&pin=first-pin&sig=S&%70in=second-pin";
        assert_eq!(send(&culvert, "captured", target, fields, text).await, 200);
        let id = id(&owner, "/in").await;

        let path = format!("/events/{id}");
        for client in [&owner, &other, &culvert.client] {
            let event = client.expect(Method::GET, &path, None).await.unwrap();
            assert_eq!(event["event"]["event_id"], id);
        }
        let of_owner = messages(&owner, &id).await;
        assert_eq!(of_owner, messages(&culvert.client, &id).await);
        let request = &of_owner["request"];
        assert_eq!(request["method"], "POST");
        let redacted = "[redacted]";
        let url = format!(
            "http://captured.culvert.localhost/in?token={redacted}&pin={redacted}&sig=S&%70in={redacted}"
        );
        assert_eq!(request["url"], url);
        assert_eq!(value(request, "x-plain"), Some("AbC"));
        assert_eq!(value(request, "authorization"), Some(redacted));
        let whole = of_owner.to_string();
        for secret in ["Bearer", "the-token", "first-pin", "second-pin", "same"] {
            assert!(!whole.contains(secret), "{secret}: {whole}");
        }
        assert_eq!(
            request["body"]["text"],
            r#"{"a":[{"Secret":"[redacted]"}],"b":"Text"}"#
        );
        assert_eq!(request["body"]["length"], text.len());
        assert_eq!(request["body"]["redacted"], true);
        assert_eq!(of_owner["response"]["status_code"], 200);

        let path = format!("/events/{id}/messages");
        let refused = other.call(Method::GET, &path, None).await.unwrap();
        assert_eq!(
            (refused.status, &refused.body["error_code"]),
            (403, &json!("ERR_NGROK_630"))
        );
        let path = format!("/events/{id}/replay");
        let refused = other
            .call(Method::POST, &path, Some(&json!({})))
            .await
            .unwrap();
        assert_eq!(
            (refused.status, &refused.body["error_code"]),
            (403, &json!("ERR_NGROK_630"))
        );

        // An endpoint without the action captures nothing.
        culvert.endpoint("plain", origin.address).await;
        culvert.get("plain.culvert.localhost", "/out").await;
        let id = ids(&culvert.client, "/out", 1).await.remove(0);
        let path = format!("/events/{id}/messages");
        let nothing = culvert.call(Method::GET, &path, None).await.body;
        assert_eq!(
            (&nothing["request"], &nothing["response"]),
            (&Value::Null, &Value::Null)
        );
        let path = format!("/events/{id}x");
        assert_eq!(culvert.call(Method::GET, &path, None).await.status, 404);
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn response_rules_capture_by_properties_of_the_response() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let origin = Receiver::start().await;
    let policy = json!({"on_http_response": [{
        "expressions": ["res.status_code >= 500"],
        "actions": [{"type": "capture", "config": {"max_bytes": 5}}],
    }]});
    let body = json!({
        "upstream_url": format!("http://{}", origin.address),
        "traffic_policy": policy.to_string(),
    });
    endpoint(&culvert, &culvert.client, "late", body).await;
    send(&culvert, "late", "/good", "", "a body").await;
    origin.answer_with(http::StatusCode::INTERNAL_SERVER_ERROR);
    send(&culvert, "late", "/bad", "", "a body").await;
    let bad = messages(&culvert.client, &id(&culvert.client, "/bad").await).await;
    assert_eq!(bad["request"]["body"]["text"], "a bod");
    assert_eq!(bad["request"]["body"]["truncated"], true);
    assert_eq!(bad["response"]["status_code"], 500);
    let good = id(&culvert.client, "/good").await;
    let path = format!("/events/{good}/messages");
    let nothing = culvert.call(Method::GET, &path, None).await.body;
    assert_eq!(nothing["request"], Value::Null);
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_upload_is_captured_up_to_the_abort() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let body = json!({
        "upstream_url": format!("http://{}", origin.local_addr().unwrap()),
        "traffic_policy": capture(&json!({})),
        "url": "http://aborted.culvert.localhost",
    });
    culvert.create("endpoints", body).await;
    let head = "POST /cut HTTP/1.1\r\nhost: aborted.culvert.localhost\r\ncontent-length: 100\r\n\r\nfirst part";
    let mut client = TcpStream::connect(culvert.http).await.unwrap();
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut upstream, _) = origin.accept().await.unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"first part") {
        assert!(upstream.read_buf(&mut received).await.unwrap() > 0);
    }
    drop(client);
    let cut = messages(&culvert.client, &id(&culvert.client, "/cut").await).await;
    assert_eq!(cut["request"]["body"]["text"], "first part");
    assert_eq!(cut["request"]["body"]["truncated"], true);
    assert_eq!(cut["response"], Value::Null);
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_capture_memory_does_not_affect_traffic() {
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.events.capture_memory_bytes = 8 << 10;
    })
    .await;
    let origin = Receiver::start().await;
    let body = json!({
        "upstream_url": format!("http://{}", origin.address),
        "traffic_policy": capture(&json!({"max_bytes": 1 << 20})),
    });
    endpoint(&culvert, &culvert.client, "full", body).await;
    let large = "x".repeat(100_000);
    assert_eq!(send(&culvert, "full", "/large", "", &large).await, 200);
    let large = messages(&culvert.client, &id(&culvert.client, "/large").await).await;
    assert_eq!(large["request"]["body"]["omitted"], "memory");
    assert_eq!(large["request"]["body"]["length"], 100_000);
    assert_eq!(send(&culvert, "full", "/small", "", "small").await, 200);
    let small = messages(&culvert.client, &id(&culvert.client, "/small").await).await;
    assert_eq!(small["request"]["body"]["text"], "small");
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn captures_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Receiver::start().await;
    let process = Process::start(folder.path(), "");
    let token = std::fs::read_to_string(folder.path().join("bootstrap-key")).unwrap();
    let token = token.trim().to_owned();
    let client = Client::new(&process.api, token.clone()).unwrap();
    let body = json!({
        "url": "http://kept.culvert.localhost",
        "upstream_url": format!("http://{}", origin.address),
        "traffic_policy": capture(&json!({})),
    });
    let made = client.expect(Method::POST, "/endpoints", Some(&body));
    made.await.unwrap();
    let request = b"POST /kept HTTP/1.1\r\nhost: kept.culvert.localhost\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbody";
    eventually("a request is served", async || {
        raw(process.http, request).await.status == 200
    })
    .await;
    eventually("an event is kept", async || {
        !events(&client, "/kept").await.is_empty()
    })
    .await;
    let event = events(&client, "/kept").await.remove(0);
    let id = event["event"]["event_id"].as_str().unwrap().to_owned();
    let before = messages(&client, &id).await;
    process.kill();

    let process = Process::start(folder.path(), "");
    let client = Client::new(&process.api, token).unwrap();
    let path = format!("/events/{id}/messages");
    let after = client.expect(Method::GET, &path, None).await.unwrap();
    assert_eq!(after["request"], before["request"]);
    assert_eq!(after["request"]["body"]["text"], "body");
    assert_eq!(process.terminate(), 0);
}

async fn replay(client: &Client, id: &str, body: Value) -> (u16, Value) {
    let path = format!("/events/{id}/replay");
    let answer = client.call(Method::POST, &path, Some(&body)).await.unwrap();
    (answer.status, answer.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_captured_request_is_replayed_unchanged_or_edited_with_a_mark() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let origin = Receiver::start().await;
        let policy = json!({"on_http_request": [
            {"actions": [{"type": "capture", "config": {}}]},
            {
                "expressions": ["req.url.path == '/closed'"],
                "actions": [{"type": "deny", "config": {"status_code": 418}}],
            },
        ]});
        let body = json!({
            "upstream_url": format!("http://{}", origin.address),
            "traffic_policy": policy.to_string(),
        });
        let endpoint = endpoint(&culvert, &culvert.client, "again", body).await;
        let client = &culvert.client;
        // A stranger's mark is removed.
        let fields = "Culvert-Replay-Of: ev_1\r\nX-Case: AbC\r\nAuthorization: Bearer Abc\r\nX-Forwarded-For: 9.9.9.9\r\n";
        assert_eq!(
            send(&culvert, "again", "/do?x=Y", fields, "Body").await,
            200
        );
        let id = id(client, "/do").await;
        let first = origin.received().pop().unwrap();
        assert!(!first.headers.contains_key("culvert-replay-of"));
        let event = events(client, "/do").await.remove(0);
        let headers = &event["event"]["object"]["http"]["request"]["headers"];
        assert_eq!(headers["Culvert-Replay-Of"], Value::Null);
        messages(client, &id).await;

        let (status, body) = replay(client, &id, json!({})).await;
        assert_eq!((status, &body["status_code"]), (200, &json!(200)), "{body}");
        assert_eq!(body["replay_of"], id);
        let again = origin.received().pop().unwrap();
        assert_eq!(again.headers["culvert-replay-of"], id.as_str());
        assert_eq!(again.headers["x-case"], "AbC");
        assert!(!again.headers.contains_key("authorization"));
        assert_ne!(again.headers["x-forwarded-for"], "9.9.9.9");
        assert_eq!(&*again.body, b"Body");
        let new = body["event_id"].as_str().unwrap().to_owned();
        let both = ids(client, "/do", 2).await;
        assert!(both.contains(&new) && both.contains(&id), "{both:?} {new}");
        let path = format!("/events/{new}");
        let event = client.expect(Method::GET, &path, None).await.unwrap();
        assert_eq!(event["endpoint_id"], endpoint);
        let request = &event["event"]["object"]["http"]["request"];
        assert_eq!(request["headers"]["Culvert-Replay-Of"], json!([id]));
        assert_eq!(request["body_length"], 4);
        assert_eq!(
            messages(client, &new).await["request"]["body"]["text"],
            "Body"
        );

        // Changed, and through the policy or past it.
        let edits = json!({
            "method": "PUT",
            "path": "/closed",
            "headers": [{"name": "x-new", "value": "1"}, {"name": "host", "value": "evil.test"}],
            "body": {"text": "other"},
        });
        let (_, body) = replay(client, &id, edits.clone()).await;
        assert_eq!(body["status_code"], 418, "{body}");
        let mut direct = edits;
        direct["to"] = json!("upstream");
        let (_, body) = replay(client, &new, direct).await;
        assert_eq!(body["status_code"], 200, "{body}");
        let last = origin.received().pop().unwrap();
        assert_eq!(last.headers["host"], "again.culvert.localhost");
        assert_eq!(last.headers["x-new"], "1");
        assert!(!last.headers.contains_key("x-case"));
        assert_eq!(&*last.body, b"other");

        // An audit event has no request, and a deleted endpoint receives none.
        let page = client.expect(Method::GET, "/events?type=api_key_created.v0", None);
        let page = page.await.unwrap();
        let audit = page["events"][0]["event"]["event_id"]
            .as_str()
            .unwrap()
            .to_owned();
        let path = format!("/endpoints/{endpoint}");
        client.call(Method::DELETE, &path, None).await.unwrap();
        for id in [&audit, &id] {
            let (status, body) = replay(client, id, json!({})).await;
            assert_eq!(status, 400, "{body}");
            assert_eq!(body["error_code"], "ERR_NGROK_5409");
        }
        // Admins still read what was captured.
        messages(client, &id).await;
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_capture_is_replayed_from_its_event() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let origin = Receiver::start().await;
    let client = &culvert.client;
    culvert.endpoint("plain", origin.address).await;
    culvert.get("plain.culvert.localhost", "/empty?a=b").await;
    let empty = id(client, "/empty").await;
    let (status, body) = replay(client, &empty, json!({})).await;
    assert_eq!((status, &body["status_code"]), (200, &json!(200)), "{body}");
    send(&culvert, "plain", "/body", "", "body").await;
    let with_body = id(client, "/body").await;
    let (status, body) = replay(client, &with_body, json!({})).await;
    assert_eq!(
        (status, &body["error_code"]),
        (400, &json!("ERR_NGROK_5409")),
        "{body}"
    );
    let (status, _) = replay(client, &with_body, json!({"body": {"text": "known"}})).await;
    assert_eq!(status, 200);
    assert_eq!(&*origin.received().pop().unwrap().body, b"known");
    for (body, code) in [
        (json!({"path": "http://other.test/"}), 215),
        (json!({"headers": [{"name": "a b", "value": "c"}]}), 5409),
        (
            json!({"headers": [{"name": "a", "value": "b\r\nc: d"}]}),
            5409,
        ),
        (json!({"method": "A B"}), 5409),
        (json!({"url": "http://other.test/"}), 214),
    ] {
        let (status, said) = replay(client, &empty, body).await;
        assert_eq!(status, 400, "{said}");
        assert_eq!(said["error_code"], format!("ERR_NGROK_{code}"), "{said}");
    }
    let n_received = origin.received().len();
    let mut has_refused = false;
    for _ in 0..70 {
        let (status, _) = replay(client, &empty, json!({})).await;
        has_refused |= status == 429;
    }
    assert!(has_refused && origin.received().len() < n_received + 70);
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_lists_matching_rules_without_side_effects() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let (owner, other) = (bot(&culvert, "owner").await, bot(&culvert, "other").await);
        let origin = Receiver::start().await;
        let body = json!({
            "upstream_url": format!("http://{}", origin.address),
            "traffic_policy": capture(&json!({"reveal": {"headers": ["x-api-key"]}})),
        });
        let endpoint = endpoint(&culvert, &owner, "dry", body).await;
        send(
            &culvert,
            "dry",
            "/old?a=1",
            "X-Case: AbC\r\nX-Api-Key: K\r\nCookie: a=b\r\n",
            "",
        )
        .await;
        let id = id(&owner, "/old").await;
        messages(&owner, &id).await;
        let n_received = origin.received().len();
        let policy = json!({
            "on_http_request": [
                {"name": "case", "expressions": ["req.headers['x-case'][0] == 'AbC' && conn.client_ip == '127.0.0.1'"],
                 "actions": [{"type": "log", "config": {"metadata": {"a": "b"}}}]},
                {"name": "no", "expressions": ["req.method == 'GET'"], "actions": [{"type": "deny"}]},
                {"name": "vars", "expressions": ["vars.x == 1"], "actions": [{"type": "deny"}]},
                {"name": "deny", "expressions": ["req.url.query_params['a'][0] == '1'"], "actions": [{"type": "deny"}]},
                {"name": "behind", "actions": [{"type": "deny"}]},
            ],
            "on_http_response": [
                {"name": "ok", "expressions": ["res.status_code == 200"], "actions": [{"type": "log", "config": {"metadata": {}}}]},
            ],
        });
        let path = format!("/endpoints/{endpoint}/dry_run");
        let body = json!({"traffic_policy": policy, "limit": 1});
        let ran = owner
            .expect(Method::POST, &path, Some(&body))
            .await
            .unwrap();
        let request = &ran["requests"][0];
        assert_eq!(
            (&request["event_id"], &request["captured"]),
            (&json!(id), &json!(true))
        );
        assert_eq!(request["redacted"], json!(["cookie"]));
        let rules = request["rules"].as_array().unwrap().iter();
        let results: Vec<(&str, &str)> = rules
            .map(|rule| {
                (
                    rule["name"].as_str().unwrap(),
                    rule["result"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            results,
            [
                ("case", "match"),
                ("no", "no_match"),
                ("vars", "unknown"),
                ("deny", "match"),
                ("behind", "not_reached"),
                ("ok", "match"),
            ]
        );
        assert_eq!(request["rules"][2]["unknown"], json!(["vars"]));
        let end =
            json!({"phase": "on_http_request", "number": 3, "action": "deny", "certain": false});
        assert_eq!(request["ended_by"], end);
        assert_eq!(origin.received().len(), n_received);

        let filter = json!({"filter": "ev.http.request.url.path == '/old'", "limit": 1});
        let ran = owner
            .expect(Method::POST, &path, Some(&filter))
            .await
            .unwrap();
        assert_eq!(ran["requests"][0]["matches"], true);
        for (body, code) in [
            (
                json!({"traffic_policy": {"on_http_request": [{"actions": []}]}}),
                2208,
            ),
            (json!({"filter": "ev.nope"}), 5405),
            (json!({"filter": "true", "traffic_policy": "{}"}), 215),
            (json!({"limit": 101}), 215),
        ] {
            let answer = owner.call(Method::POST, &path, Some(&body)).await.unwrap();
            assert_eq!(answer.status, 400, "{}", answer.body);
            let error = answer.body["error_code"].as_str().unwrap();
            assert!(
                code == 2208 || error == format!("ERR_NGROK_{code}"),
                "{}",
                answer.body
            );
        }
        let refused = other
            .call(Method::POST, &path, Some(&filter))
            .await
            .unwrap();
        assert_eq!(refused.status, 403);
        culvert.stop().await;
    }
}
