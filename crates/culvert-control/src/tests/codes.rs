//! Tests that reach every code of these resources.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use culvert_event_config::destination::model::EventDestination;

use super::*;

#[tokio::test]
async fn event_query_errors_have_their_codes() {
    let rig = Rig::start().await;
    for (query, code) in [
        ("order=up", 5407),
        ("cursor=x", 5407),
        ("follow=true", 5407),
        ("q=a5pAHqXtgrEbPsBxNn3SU1KwBfm_aaaaaaaaaaaaaaaaaaaaa", 269),
        // This server retains no traffic events.
        ("type=http_request_complete.v0", 5408),
    ] {
        let answered = rig.get(&format!("/events?{query}")).await;
        assert_eq!(answered.code(), Some(code), "{query}");
    }
    let token = rig.token.reveal();
    for query in [format!("q={token}"), format!("q=502%20by:{token}")] {
        for path in ["/events", "/events/terms"] {
            let answered = rig.get(&format!("{path}?{query}")).await;
            assert_eq!(answered.code(), Some(269), "{path}");
            assert!(!format!("{answered:?}").contains(secret_of(token)));
        }
    }
    rig.post("/vaults", json!({"name": "v"})).await.body();
    let page = rig.get("/events?type=vault_created.v0").await.body();
    let id = page["events"][0]["event"]["event_id"].as_str().unwrap();
    let replay = rig.post(&format!("/events/{id}/replay"), json!({})).await;
    assert_eq!(replay.code(), Some(5409));
}

#[tokio::test]
async fn statistics_errors_have_their_codes() {
    let rig = Rig::start().await;
    for (query, code) in [
        ("subject=weather", 5430),
        ("subject=endpoint", 5430),
        ("id=ep_1", 5430),
        ("step=7", 5430),
        ("step=1000000", 5430),
        ("from=2030-01-01T00:00:00Z&to=2029-01-01T00:00:00Z", 5430),
        ("from=2020-01-01T00:00:00Z&step=10", 5430),
        ("from=yesterday", 241),
        ("order=requests", 231),
        ("to=&to=", 232),
    ] {
        let answered = rig.get(&format!("/statistics?{query}")).await;
        assert_eq!(answered.code(), Some(code), "{query}");
    }
    for (query, code) in [
        ("subject=account", 5430),
        ("order=beauty", 5430),
        ("limit=1001", 5430),
        ("from=2020-01-01T00:00:00Z", 5430),
    ] {
        let answered = rig.get(&format!("/statistics/top?{query}")).await;
        assert_eq!(answered.code(), Some(code), "{query}");
    }
}

#[tokio::test]
async fn event_destination_errors_have_their_codes() {
    let rig = Rig::start().await;
    let debug = json!({"debug": {"log": true}});
    for (body, code) in [
        (json!({}), 235),
        (json!({"target": debug}), 235),
        (json!({"format": "xml", "target": debug}), 235),
        (json!({"format": "json"}), 5100),
        (json!({"format": "json", "target": {}}), 5100),
        (
            json!({"format": "json", "target": {"kinesis": null, "debug": null}}),
            5100,
        ),
        (
            json!({"format": "json", "target": {"debug": {"log": true}, "file": {"path": "x"}}}),
            5115,
        ),
        (json!({"format": "json", "target": {"mqtt": {}}}), 236),
        (json!({"format": "json", "target": {"debug": {}}}), 5140),
        (
            json!({"format": "json", "target": {"file": {"path": "../x"}}}),
            5140,
        ),
        (
            json!({"format": "json", "target": {"webhook": {"url": "not a url"}}}),
            5140,
        ),
        (json!({"format": "json", "target": "debug"}), 215),
        (
            json!({"format": "json", "target": debug, "description": "x".repeat(256)}),
            5140,
        ),
    ] {
        let answered = rig.post("/event_destinations", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    for (target, code) in wrong_clouds() {
        let body = json!({"format": "json", "target": target});
        let answered = rig.post("/event_destinations", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let body = json!({"format": "JSON", "target": {"debug": {"log": true}, "firehose": null}});
    let made = rig.post("/event_destinations", body).await.body();
    assert_eq!(made["format"], "JSON");
    let mut names: Vec<_> = made["target"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    names.sort();
    let expected = [
        "azure_logs_ingestion",
        "cloudwatch_logs",
        "datadog",
        "debug",
        "firehose",
        "kinesis",
    ];
    assert_eq!(names, expected);
    let one = format!("/event_destinations/{}", made["id"].as_str().unwrap());
    for (body, code) in [
        (json!({"format": ""}), 235),
        (json!({"target": {}}), 5100),
        (json!({"target": {"file": {"path": "x"}}}), 5108),
        (json!({"target": {"azure_logs_ingestion": {}}}), 5108),
    ] {
        assert_eq!(
            rig.patch(&one, body.clone()).await.code(),
            Some(code),
            "{body}"
        );
    }
    assert_eq!(rig.patch(&one, json!({})).await.body(), made);
}

/// Invalid cloud targets, with the codes of their refusals.
fn wrong_clouds() -> Vec<(Value, u16)> {
    let role = json!({"role_arn": "arn:aws:iam::123456789012:role/events"});
    let creds = json!({"aws_access_key_id": "AKIA", "aws_secret_access_key": "s"});
    let stream = "arn:aws:kinesis:us-east-1:123456789012:stream/events";
    let kinesis = |auth: Value, arn: &str| json!({"kinesis": {"auth": auth, "stream_arn": arn}});
    let azure = |rule: &str, stream: &str, uri: &str| {
        json!({"azure_logs_ingestion": {
            "tenant_id": "t", "client_id": "c", "client_secret": "s", "data_collection_rule_id": rule,
            "data_collection_stream_name": stream, "logs_ingestion_uri": uri,
        }})
    };
    let user = json!({"role_arn": "arn:aws:iam::123456789012:user/events"});
    let ours = json!({"creds": creds});
    vec![
        (json!({"kinesis": {"stream_arn": stream}}), 5106),
        (kinesis(json!(null), stream), 5106),
        (kinesis(json!({"role": null}), stream), 5107),
        (kinesis(json!({"role": role, "creds": creds}), stream), 5116),
        (kinesis(json!({"role": user}), stream), 5104),
        (
            kinesis(json!({"creds": {"aws_access_key_id": "AKIA"}}), stream),
            5140,
        ),
        (kinesis(ours.clone(), "events"), 5120),
        (
            kinesis(ours.clone(), &stream.replace(":aws:", ":azure:")),
            5118,
        ),
        (
            kinesis(ours.clone(), &stream.replace("kinesis", "firehose")),
            5119,
        ),
        (
            kinesis(ours.clone(), &stream.replace("stream/", "topic/")),
            5130,
        ),
        (
            json!({"firehose": {"auth": ours, "delivery_stream_arn": stream}}),
            5119,
        ),
        (json!({"cloudwatch_logs": {"auth": ours}}), 5120),
        (json!({"datadog": {"service": "x"}}), 5133),
        (
            json!({"datadog": {"api_key": "x", "ddsite": "example.com"}}),
            5134,
        ),
        (azure("rule", "Custom-E", "https://a.example"), 5136),
        (azure("dcr-1", "E", "https://a.example"), 5137),
        (azure("dcr-1", "Custom-E", "http://a.example/x"), 5138),
        (azure("dcr-1", "Custom-E", "https://10.0.0.1"), 5138),
    ]
}

#[tokio::test]
async fn cloud_secrets_are_hidden_encrypted_and_kept_by_updates() {
    let rig = Rig::start().await;
    let auth = json!({"role": null, "creds": {"aws_access_key_id": "AKIA", "aws_secret_access_key": "hush-hush"}});
    let stream = "arn:aws:kinesis:us-east-1:123456789012:stream/events";
    let azure = json!({
        "tenant_id": "t", "client_id": "c", "client_secret": "hush hush", "data_collection_rule_id": "dcr-1",
        "data_collection_stream_name": "Custom-E", "logs_ingestion_uri": "https://a.example",
    });
    for (name, target, secret, shown) in [
        (
            "kinesis",
            json!({"auth": auth, "stream_arn": stream}),
            "/auth/creds/aws_secret_access_key",
            Value::Null,
        ),
        (
            "datadog",
            json!({"api_key": "hush-hush", "ddtags": null, "service": "x", "ddsite": ""}),
            "/api_key",
            Value::Null,
        ),
        ("azure_logs_ingestion", azure, "/client_secret", json!("")),
    ] {
        let body = json!({"format": "json", "target": {name: target}});
        let made = rig.post("/event_destinations", body.clone()).await.body();
        let mut expected = target.clone();
        *expected.pointer_mut(secret).unwrap() = shown;
        assert_eq!(made["target"][name], expected);
        let one = format!("/event_destinations/{}", made["id"].as_str().unwrap());
        // A view can be sent back unchanged: the secret stays.
        let again = json!({"target": {name: made["target"][name]}});
        assert_eq!(rig.patch(&one, again).await.body(), made);
        assert!(!made.to_string().contains("hush"));
    }
}

#[tokio::test]
async fn destination_secrets_are_shown_once_encrypted_and_kept_by_updates() {
    let rig = Rig::start().await;
    let target =
        json!({"webhook": {"url": "https://hooks.example/x", "headers": {"x-auth": "hush hush"}}});
    let body = json!({"format": "json", "target": target});
    let made = rig.post("/event_destinations", body).await.body();
    let secret = made["target"]["webhook"]["secrets"][0]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(secret.starts_with("whsec_"));
    let id = made["id"].as_str().unwrap();
    let one = format!("/event_destinations/{id}");
    let hidden = |body: &Value| {
        let text = body.to_string();
        assert!(!text.contains(&secret) && !text.contains("hush"), "{text}");
    };
    hidden(&rig.get(&one).await.body());
    hidden(&rig.get("/event_destinations").await.body());
    let change = json!({"target": {"webhook": {"url": "https://hooks.example/y"}}});
    let changed = rig.patch(&one, change).await.body();
    assert_eq!(
        changed["target"]["webhook"]["url"],
        "https://hooks.example/y"
    );
    hidden(&changed);
    // With a template, the kept secret would sign any text.
    let template = |secrets: Value| {
        let webhook = json!({
            "url": "https://hooks.example/y", "body_template": "{'type': event.event_type}", "secrets": secrets,
        });
        json!({"target": {"webhook": webhook}})
    };
    let refused = rig.patch(&one, template(json!([]))).await;
    assert_eq!(refused.code(), Some(215));
    let document = rig
        .store
        .get("event_destination", id)
        .await
        .unwrap()
        .unwrap();
    assert!(!document.body.contains(&secret) && !document.body.contains("hush"));
    let stored: EventDestination = stored::read(&document).unwrap();
    let (_, whole) = stored
        .target(
            culvert_destinations::TYPES,
            &rig.control.kernel.seal,
            &document.head,
        )
        .unwrap();
    assert_eq!(whole["secrets"][0], *secret);
    let (reported, _) = rig.events_after(0).await;
    hidden(&Value::from(reported));
    let own = "whsec_QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB";
    rig.patch(&one, template(json!([own]))).await.body();
    let mut moved = template(json!([]));
    let changed = rig.patch(&one, moved.clone()).await.body();
    assert_eq!(
        changed["target"]["webhook"]["url"],
        "https://hooks.example/y"
    );
    moved["target"]["webhook"]["url"] = "https://hooks.example/z".into();
    assert_eq!(rig.patch(&one, moved).await.code(), Some(215));
}

#[tokio::test]
async fn event_subscription_errors_have_their_codes() {
    let rig = Rig::start().await;
    let destination = rig.post(
        "/event_destinations",
        rig.sample("event_destinations", 1).await,
    );
    let destination = destination.await.body()["id"].as_str().unwrap().to_owned();
    let foreign = rig.stranger().await;
    let foreign = rig
        .call(
            &foreign,
            "POST",
            "/event_destinations",
            rig.sample("event_destinations", 2).await,
        )
        .await
        .body()["id"]
        .clone();
    let sources: &[(Value, u16)] = &[
        (json!({"type": "nope.v0"}), 238),
        (json!({"type": ""}), 238),
        (json!({}), 238),
        (json!({"type": "api_key_created"}), 238),
        (json!({"type": "test"}), 238),
        (json!({"type": "endpoint_eaten.v0"}), 238),
        (
            json!({"type": "api_key_created.v0", "fields": ["id"]}),
            5401,
        ),
        (
            json!({"type": "api_key_created.v0", "filter": "true"}),
            5402,
        ),
        (
            json!({"type": "http_request_complete.v0", "fields": ["conn"]}),
            5403,
        ),
        (
            json!({"type": "tcp_connection_closed.v0", "fields": ["http.request.method"]}),
            5403,
        ),
        (
            json!({"type": "http_request_complete.v0", "filter": " "}),
            5404,
        ),
        (
            json!({"type": "http_request_complete.v0", "filter": "principal.id == 'x'"}),
            5404,
        ),
        (
            json!({"type": "http_request_complete.v0", "filter": "ev.conn.nope == 1"}),
            5405,
        ),
        (
            json!({"type": "http_request_complete.v0", "filter": "ev.http.request.method == 'get'"}),
            5406,
        ),
        (json!({"type": 1}), 215),
        (json!({"type": "api_key_created.v0", "fields": "id"}), 215),
        (json!({"type": "api_key_created.v0", "nope": 1}), 214),
    ];
    for (source, code) in sources {
        let answered = rig
            .post("/event_subscriptions", json!({"sources": [source]}))
            .await;
        assert_eq!(answered.code(), Some(*code), "{source}");
    }
    let nobody = format!("ed_{}", "0".repeat(27));
    let twice = json!([{"type": "api_key_created.v0"}, {"type": "api_key_created.v0"}]);
    for (body, code) in [
        (json!({"sources": twice}), 5127),
        (json!({"destination_ids": [nobody]}), 5103),
        (json!({"destination_ids": [foreign]}), 5103),
        (json!({"destination_ids": ["junk junk"]}), 223),
        (json!({"destination_ids": ["ak_1"]}), 227),
        (json!({"metadata": "x".repeat(4097)}), 5140),
    ] {
        let answered = rig.post("/event_subscriptions", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let made = rig
        .post(
            "/event_subscriptions",
            json!({"destination_ids": [destination]}),
        )
        .await;
    let made = made.body();
    let one = format!("/event_subscriptions/{}", made["id"].as_str().unwrap());
    for (source, code) in sources {
        let answered = rig.post(&format!("{one}/sources"), source.clone()).await;
        assert_eq!(answered.code(), Some(*code), "{source}");
    }
    let in_use = rig
        .delete(&format!("/event_destinations/{destination}"))
        .await;
    assert_eq!(in_use.code(), Some(5112));

    let absent = format!("/event_subscriptions/esb_{}", "0".repeat(27));
    let source = json!({"type": "api_key_created.v0"});
    for (method, path, body, code) in [
        ("POST", format!("{absent}/sources"), source.clone(), 5123),
        ("GET", format!("{absent}/sources"), Value::Null, 5123),
        (
            "GET",
            format!("{absent}/sources/api_key_created.v0"),
            Value::Null,
            5123,
        ),
        (
            "PATCH",
            format!("{absent}/sources/api_key_created.v0"),
            json!({}),
            5123,
        ),
        (
            "DELETE",
            format!("{absent}/sources/api_key_created.v0"),
            Value::Null,
            5123,
        ),
        (
            "GET",
            format!("{one}/sources/api_key_created.v0"),
            Value::Null,
            5125,
        ),
        (
            "PATCH",
            format!("{one}/sources/api_key_created.v0"),
            json!({}),
            5125,
        ),
        (
            "DELETE",
            format!("{one}/sources/api_key_created.v0"),
            Value::Null,
            5125,
        ),
    ] {
        let answered = rig.call(&rig.admin, method, &path, body).await;
        assert_eq!(answered.code(), Some(code), "{method} {path}");
    }
    rig.post(&format!("{one}/sources"), source.clone())
        .await
        .body();
    assert_eq!(
        rig.post(&format!("{one}/sources"), source).await.code(),
        Some(5127)
    );
    let path = format!("{one}/sources/api_key_created.v0");
    let renamed = rig
        .patch(&path, json!({"type": "api_key_deleted.v0"}))
        .await;
    assert_eq!(renamed.code(), Some(215));
    let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
    let unseen = rig.call(&reader, "DELETE", &path, Value::Null).await;
    assert_eq!(unseen.code(), Some(5123));
}

#[tokio::test]
async fn bot_and_key_errors_have_their_codes() {
    let rig = Rig::start().await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    rig.post("/bot_users", json!({"name": "c"})).await.body();
    let one = format!("/bot_users/{}", bot["id"].as_str().unwrap());
    for (method, path, body, code) in [
        ("POST", "/bot_users", json!([]), 213),
        ("POST", "/bot_users", json!({}), 4109),
        ("POST", "/bot_users", json!({"name": ""}), 4109),
        ("POST", "/bot_users", json!({"name": "x".repeat(256)}), 4110),
        ("POST", "/bot_users", json!({"name": "b"}), 4112),
        (
            "POST",
            "/bot_users",
            json!({"name": "d", "active": "yes"}),
            215,
        ),
        ("PATCH", &one, json!({"name": ""}), 4109),
        ("PATCH", &one, json!({"name": "c"}), 4112),
    ] {
        let answered = rig.call(&rig.admin, method, path, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{method} {body}");
    }
    let made = rig
        .post("/bot_users", json!({"name": "off", "active": false}))
        .await
        .body();
    assert_eq!(made["active"], false);
    let key = format!("/api_keys/{}", rig.admin.key_id);
    for body in [
        Value::Null,
        json!({}),
        json!({"description": null, "id": "x"}),
    ] {
        assert_eq!(rig.patch(&key, body).await.code(), Some(606));
    }
    assert_eq!(
        rig.patch(&key, json!({"description": ""})).await.body()["description"],
        ""
    );
}

#[tokio::test]
async fn tunnel_credential_errors_have_their_codes() {
    let rig = Rig::start().await;
    for (body, code) in [
        (json!({"acl": ["nope"]}), 600),
        (json!({"acl": ["*", "bind:"]}), 600),
        (json!({"acl": vec!["*"; 257]}), 600),
        (json!({"acl": "*"}), 215),
        (json!({"acl": [1]}), 215),
        (json!({"owner_id": format!("bot_{}", "0".repeat(27))}), 634),
        (json!({"token": "x"}), 214),
    ] {
        let answered = rig.post("/credentials", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let developer = rig.user("dev@x.example", Role::Member, true).await;
    let body = json!({"owner_id": rig.admin.owner_id});
    let answered = rig.call(&developer, "POST", "/credentials", body).await;
    assert_eq!(answered.code(), Some(630));

    let acl = json!(["bind:*.b.example", "bind:a.example", "*"]);
    let made = rig.post("/credentials", json!({"acl": acl})).await.body();
    assert_eq!(made["acl"], acl);
    let one = format!("/credentials/{}", made["id"].as_str().unwrap());
    for (body, code) in [
        (json!({}), 606),
        (json!({"acl": null}), 606),
        (json!({"acl": ["bind: "]}), 600),
        (json!({"owner_id": rig.admin.owner_id}), 214),
    ] {
        let answered = rig.patch(&one, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let listed = rig.get("/credentials?filter=obj.acl%20!=%20null").await;
    assert_eq!(listed.body()["credentials"][0]["id"], made["id"]);
    let changed = rig.patch(&one, json!({"description": "d"})).await.body();
    assert_eq!(changed["acl"], acl);
    let changed = rig.patch(&one, json!({"acl": []})).await.body();
    assert_eq!(changed["acl"], json!([]));
    let listed = rig.get("/credentials?filter=obj.acl%20!=%20null").await;
    assert_eq!(listed.body()["credentials"], json!([]));
}

#[tokio::test]
async fn endpoint_errors_have_their_codes() {
    let rig = Rig::start().await;
    let upstream = "http://127.0.0.1:9";
    let with = |field: &str, value: Value| {
        let mut body = json!({"url": "https://x.culvert.localhost", "upstream_url": upstream});
        body[field] = value;
        body
    };
    let url = |url: &str| with("url", json!(url));
    let tcp = |url: &str| json!({"url": url, "upstream_url": "tcp://127.0.0.1:9"});
    for (body, code) in [
        (url("https://x.culvert.localhost/path"), 18001),
        (url("https://x:y"), 18001),
        (url("gopher://x.culvert.localhost"), 18022),
        (tcp("tcp://1.tcp.culvert.localhost"), 18003),
        (url("https://elsewhere.example"), 18006),
        (url("https://culvert.localhost"), 18006),
        (url("https://*.culvert.localhost"), 18006),
        (tcp("tcp://1.tcp.culvert.localhost:19999"), 18006),
        (tcp("tcp://2.tcp.culvert.localhost:20000"), 18006),
        (url("http://x.culvert.localhost:8080"), 18023),
        (tcp("tls://x.culvert.localhost:444"), 18023),
        (url("https://a.b.c.d.e.f.internal"), 18014),
        (url("https://internal"), 18014),
        (tcp("tcp://x.internal"), 18003),
        (
            json!({"url": "http://x.internal", "bindings": ["public"], "upstream_url": upstream}),
            18014,
        ),
        (with("bindings", json!(["internal"])), 18014),
        (with("bindings", json!(["kubernetes"])), 18018),
        (
            json!({"url": "http://a.b.c", "bindings": ["kubernetes"], "upstream_url": upstream}),
            18014,
        ),
        (with("bindings", json!(["nope"])), 15005),
        (with("bindings", json!(["public", "public"])), 15006),
        (with("bindings", json!(["public", "internal"])), 18014),
        (with("type", json!("edge")), 248),
        (with("upstream_url", json!("")), 18015),
        (with("upstream_url", json!("ftp://x")), 18014),
        (with("upstream_url", json!("tcp://127.0.0.1:9")), 18014),
        (with("upstream_protocol", json!("http3")), 18014),
        (with("timeouts", json!({"connect": "99ms"})), 18014),
        (with("timeouts", json!({"connect": "11m"})), 18014),
        (with("timeouts", json!({"first_byte": "169h"})), 18014),
        (with("timeouts", json!({"idle": "999ms"})), 18014),
        (with("timeouts", json!({"write": "-5s"})), 18014),
        (with("timeouts", json!({"request": "soon"})), 18014),
        (with("timeouts", json!({"request": "30"})), 18014),
        (with("timeouts", json!({"request": 30})), 215),
        (with("timeouts", json!({"read": "30s"})), 214),
        (with("timeouts", json!("30s")), 215),
        (json!({"url": "tcp://", "upstream_url": upstream}), 18014),
        (
            json!({"url": "tcp://", "upstream_url": "tcp://a:1", "upstream_protocol": "http1"}),
            18014,
        ),
        (with("traffic_policy", json!(7)), 18002),
        (with("traffic_policy", json!("nope: []")), 2236),
        (
            with(
                "traffic_policy",
                json!({"on_http_request": [{"actions": []}]}),
            ),
            2206,
        ),
        (
            json!({"url": "https://", "traffic_policy": "on_http_request: []"}),
            2235,
        ),
        (with("description", json!("x".repeat(256))), 18012),
        (with("metadata", json!("x".repeat(4097))), 18013),
        (with("region", json!("us")), 214),
        (with("pooling_enabled", json!("yes")), 215),
        (with("merge_slashes", json!("yes")), 215),
        (url("https://x.culvert.localhost//"), 18001),
    ] {
        let answered = rig.post("/endpoints", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let made = rig
        .post("/endpoints", url("https://X.culvert.localhost:443/"))
        .await
        .body();
    assert_eq!(made["url"], "https://X.culvert.localhost:443/");
    assert_eq!(made["public_url"], "https://x.culvert.localhost");
    assert_eq!(made["merge_slashes"], true);
    assert_eq!(
        (&made["port"], &made["hostport"]),
        (&json!(443), &json!("x.culvert.localhost:443"))
    );
    assert_eq!(made["bindings"], json!(["public"]));
    assert_eq!(made["upstream_protocol"], "http1");
    let one = format!("/endpoints/{}", made["id"].as_str().unwrap());
    for (body, code) in [
        (json!({}), 18004),
        (json!({"url": "http://x.culvert.localhost"}), 18005),
        (json!({"url": "https://"}), 18001),
        (json!({"upstream_url": ""}), 18015),
        (
            json!({"traffic_policy": "on_http_request: [{actions: [{type: nope}]}]"}),
            2201,
        ),
        (json!({"bindings": ["internal"]}), 18014),
        (json!({"type": "cloud"}), 214),
    ] {
        assert_eq!(
            rig.patch(&one, body.clone()).await.code(),
            Some(code),
            "{body}"
        );
    }
    rig.clock.advance(std::time::Duration::from_secs(5));
    let whole = json!({
        "url": "https://x.culvert.localhost", "traffic_policy": "", "bindings": ["public"],
        "pooling_enabled": false, "description": "d", "metadata": "m", "merge_slashes": false,
    });
    let changed = rig.patch(&one, whole).await.body();
    assert_eq!(changed["merge_slashes"], false);
    let same = rig
        .patch(&one, json!({"url": "https://x.culvert.localhost/"}))
        .await;
    assert_eq!(same.body()["merge_slashes"], false);
    assert_ne!(changed["updated_at"], made["updated_at"]);
    assert_eq!(changed["created_at"], made["created_at"]);
    assert_eq!(changed["url"], "https://x.culvert.localhost");
}

thread_local! {
    /// Codes that operations on this thread returned.
    static ANSWERED: RefCell<BTreeSet<u16>> = const { RefCell::new(BTreeSet::new()) };
}

/// Records a code that an operation returned.
pub(super) fn note(code: Option<Code>) {
    ANSWERED.with_borrow_mut(|answered| answered.extend(code.map(Code::number)));
}

/// The codes of the HTTP server; its own tests reach them.
const OF_THE_HTTP_FACE: &[u16] = &[
    210, 211, 212, 217, 220, 221, 226, 230, 260, 261, 1608, 7008, 10000,
];

/// The codes of repeated requests and of conditions; the tests of `idempotency` and of the store reach them.
const OF_TERMS: RangeInclusive<u16> = 262..=267;

/// The codes of agent connections; the tests of `culvert-tunnel` reach them.
const OF_AGENTS: &[u16] = &[109, 301, 324, 332, 333, 800, 801, 802, 811, 812];

/// The codes of SSH clients; the tests of `culvert-ssh` reach them.
const OF_SSH: &[u16] = &[
    1100, 1101, 1104, 1105, 1106, 1107, 1108, 1109, 1111, 1112, 1114, 1115, 1116, 1117, 1118, 1119,
    1120, 1123,
];

/// The codes of commands that an agent did not run; the tests of the whole server reach them with connected
/// agents.
const OF_CONNECTED_AGENTS: &[u16] = &[804, 805, 806, 807, 808, 809];

/// The codes of sign-ins to the console at an identity provider; the tests of the whole server reach them with one.
const OF_CONSOLE_SIGN_INS: &[u16] = &[648, 649];

/// Codes of the contract that no operation can return yet, and why. A code with a row in the table must be
/// reached like every other.
const LATER: &[(&[u16], &str)] = &[
    (
        &[207],
        "tokens of an older service, which this one never gave out",
    ),
    (&[511], "checks of the DNS, which are off"),
    (
        &[18020],
        "a maximum size of endpoint pools, which cannot be configured",
    ),
];

/// The codes in the contract's tables.
#[rustfmt::skip]
const OF_THE_CONTRACT: &[u16] = &[
    200, 201, 202, 203, 205, 206, 207, 208, 210, 211, 212, 213, 214, 215, 217, 220, 221, 223,
    226, 227, 230, 231, 232, 233, 235, 236, 238, 241, 243, 244, 248, 250, 400, 402, 403, 406,
    407, 408, 409, 410, 411, 413, 414, 416, 417, 420, 421, 422, 423, 429, 434, 435, 436, 438,
    439, 440, 446, 448, 456, 500, 503, 504, 505, 506, 511, 513, 514, 600, 604, 605, 606, 609,
    610, 611, 612, 630, 634, 635, 636, 804, 805, 806, 807, 808, 809, 810, 1121, 1122, 1400,
    1401, 1402, 1405, 1406, 1408, 1409, 1413, 1414, 1419, 1420, 1421, 1422, 1423, 1608, 1801,
    1802, 1803, 1804, 1900, 1901, 1902, 1903, 1909, 1910, 1911, 1912, 1913, 1914, 1915, 1916,
    1917, 1919, 1920, 1921, 1922, 1923, 1924, 1925, 1926, 1934, 1936, 1937, 1938, 1939, 1940,
    1941, 1942, 1945, 1946, 1947, 1948, 1949, 1950, 1951, 1952, 1962, 1963, 1964, 1965, 1966,
    4109, 4110, 4111, 4112, 5100, 5103, 5104, 5106, 5107, 5108, 5112, 5115, 5116, 5118, 5119,
    5120, 5123, 5125, 5127, 5130, 5133, 5134, 5136, 5137, 5138, 5140, 5401, 5402, 5403, 5404,
    5405, 5406, 6700, 6701, 6704, 6705, 6706, 7008, 15005, 15006, 18001, 18002, 18003, 18004,
    18005, 18006, 18012, 18013, 18014, 18015, 18016, 18017, 18018, 18020, 18022, 18023, 19001,
    19002, 19003, 23000, 23001, 23002, 23003, 23004, 24000, 24001, 24002, 24003, 24004, 24005,
    24006, 24008, 24009,
];

/// The tests that return codes.
const REACHING: &[fn()] = &[
    addresses::invalid_addresses_are_refused_with_codes,
    addresses::an_address_in_use_stays_reserved,
    agents::sessions_of_a_deleted_credential_end,
    agents::sessions_of_a_suspended_account_end,
    alerts::senseless_rules_are_refused,
    audit_holds::senseless_holds_are_refused,
    agents::sessions_are_limited_per_credential_account_and_process,
    agents::unsupported_agent_operations_are_refused,
    agents::invalid_binds_are_refused_with_their_codes,
    agents::a_refused_agent_gets_the_error_code,
    callers::a_suspended_account_is_refused,
    callers::authentication_checks_each_property_of_a_token,
    callers::deactivation_of_an_owner_applies_immediately,
    callers::tunnel_credentials_are_refused_by_the_api,
    certificates::certificate_authorities_are_validated,
    certificates::invalid_tls_certificates_are_refused,
    statistics_errors_have_their_codes,
    domains::a_certificate_is_attached_to_a_domain_and_detached,
    domains::a_domain_and_its_subdomains_belong_to_one_account,
    domains::endpoints_need_a_domain_of_their_account,
    domains::invalid_domains_are_refused,
    every_resource::refused_calls_change_nothing_and_make_no_event,
    ingresses::agent_ingress_errors_have_their_codes,
    ip::a_dashboard_restriction_keeps_the_last_rule,
    ip::an_ip_policy_is_deleted_with_its_rules_unless_in_use,
    ip::ip_policy_and_rule_errors_have_their_codes,
    ip::ip_restriction_errors_have_their_codes,
    key_restrictions::a_restricted_key_may_do_less_than_its_owner,
    key_restrictions::a_restricted_key_grants_no_more_than_it_has,
    keys::only_admins_may_set_another_owner,
    lists::filters_are_applied_before_paging,
    key_rules::networks_are_required_of_the_keys_of_admins,
    lockout::a_bot_is_not_called_like_a_user,
    lockout::an_ip_restriction_that_blocks_its_caller_needs_force,
    lockout::names_have_no_deceptive_characters,
    managed::an_issued_certificate_is_reported_once_and_kept_while_managed,
    managed::retries_without_a_failed_order_are_refused,
    operators::kubernetes_operator_errors_have_their_codes,
    people::the_last_active_admin_cannot_be_removed,
    people::invalid_invitations_are_refused,
    people::groups_of_the_identity_provider_admit_users,
    people::invalid_users_are_refused,
    ssh::ssh_certificate_authorities_are_validated,
    ssh::ssh_certificates_are_issued_or_refused,
    ssh::ssh_public_keys_are_validated,
    uses::grant_errors_have_their_codes,
    search::senseless_searches_and_tokens_are_refused,
    search_objects::senseless_orders_and_cursors_are_refused,
    vaults::vault_secret_errors_have_their_codes,
    vaults::invalid_vault_names_are_refused,
    endpoint_addresses::only_pooled_endpoints_share_an_address,
    bot_and_key_errors_have_their_codes,
    endpoint_errors_have_their_codes,
    event_destination_errors_have_their_codes,
    event_query_errors_have_their_codes,
    event_subscription_errors_have_their_codes,
    tunnel_credential_errors_have_their_codes,
];

/// Codes of traffic policies, which the edge's tests reach.
const OF_POLICIES: RangeInclusive<u16> = 2200..=2299;

#[test]
#[expect(clippy::print_stdout, reason = "the counts are read by people")]
fn every_code_is_returned_by_some_operation() {
    for test in REACHING {
        test();
    }
    let reached = ANSWERED.take();
    let rows: BTreeSet<u16> = culvert_base::refusal::CODES
        .iter()
        .map(|row| row.number)
        .collect();
    let unreached: Vec<_> = rows
        .iter()
        .filter(|number| !reached.contains(number) && !OF_THE_HTTP_FACE.contains(number))
        .filter(|number| !OF_POLICIES.contains(number) && !OF_AGENTS.contains(number))
        .filter(|number| !OF_CONSOLE_SIGN_INS.contains(number) && !OF_TERMS.contains(number))
        .filter(|number| !OF_CONNECTED_AGENTS.contains(number) && !OF_SSH.contains(number))
        .collect();
    assert!(
        unreached.is_empty(),
        "nothing answers {unreached:?}: let a test of `REACHING` reach them"
    );
    let is_later = |number: &u16| LATER.iter().any(|(numbers, _)| numbers.contains(number));
    let unknown: Vec<_> = OF_THE_CONTRACT
        .iter()
        .filter(|number| !rows.contains(number) && !is_later(number))
        .collect();
    assert!(unknown.is_empty(), "the contract names {unknown:?}");
    println!(
        "codes: {} here, {} by the HTTP face, {} later",
        reached.len(),
        OF_THE_HTTP_FACE.len(),
        LATER
            .iter()
            .map(|(numbers, _)| numbers.len())
            .sum::<usize>(),
    );
}
