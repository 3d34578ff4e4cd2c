//! `POST /traffic_policy_analysis`: what it finds, where, and what it keeps to itself.

use crate::tests::*;

const PATH: &str = "/traffic_policy_analysis";

impl Rig {
    async fn analyzed(&self, by: &Caller, body: Value) -> Value {
        self.call(by, "POST", PATH, body).await.body()
    }

    /// The messages of all problems.
    async fn problems(&self, by: &Caller, body: Value) -> Vec<String> {
        let analyzed = self.analyzed(by, body).await;
        let problems = analyzed["problems"].as_array().unwrap().iter();
        let messages = problems.map(|one| one["message"].as_str().unwrap().to_owned());
        messages.collect()
    }
}

/// A policy for a new endpoint with an upstream.
fn new(text: &str) -> Value {
    json!({"traffic_policy": text, "upstream_url": "http://127.0.0.1:9"})
}

#[tokio::test]
async fn a_policy_is_analyzed_while_it_is_written() {
    let rig = Rig::start().await;
    let text = "on_http_request:\r\n  - expressions: [\"'é😀' == req.hots\"]\r\n    actions:\r\n      - type: dney\r\n";
    let analyzed = rig.analyzed(&rig.admin, new(text)).await;
    let found = analyzed["problems"].as_array().unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    // Columns count as editors do.
    let start = json!({"line": 2, "column": 33});
    assert_eq!(found[0]["range"]["start"], start, "{found:?}");
    assert_eq!(found[1]["error_code"], "ERR_NGROK_2201");
    let message = found[1]["message"].as_str().unwrap();
    assert!(message.contains("did you mean `deny`?"), "{message}");
    let mut at = new(text);
    at["position"] = json!({"line": 4, "column": 17});
    let analyzed = rig.analyzed(&rig.admin, at).await;
    assert_eq!(analyzed["problems"], json!([]));
    let labels = analyzed["completions"].as_array().unwrap().iter();
    let labels: Vec<_> = labels.map(|one| one["label"].as_str().unwrap()).collect();
    assert!(labels.contains(&"deny"), "{labels:?}");
    assert_eq!(
        analyzed["replaces"]["start"],
        json!({"line": 4, "column": 15})
    );
    // The first position of an empty text has the templates.
    let at = json!({"traffic_policy": "", "position": {"line": 1, "column": 1}});
    let analyzed = rig.analyzed(&rig.admin, at).await;
    let items = analyzed["completions"].as_array().unwrap().iter();
    assert_eq!(items.filter(|one| one["kind"] == "template").count(), 20);
    // Without an upstream, and at an endpoint without HTTP.
    let log = "on_http_request: [{actions: [{type: log, config: {metadata: {}}}]}]";
    let alone = rig
        .problems(&rig.admin, json!({"traffic_policy": log}))
        .await;
    assert!(alone[0].contains("upstream_url"), "{alone:?}");
    let mut tcp = new(log);
    tcp["url"] = json!("tcp://1.tcp.example.com:1");
    let problems = rig.problems(&rig.admin, tcp).await;
    assert!(problems[0].contains("do not support"), "{problems:?}");
    assert_eq!(
        rig.problems(&rig.admin, new(log)).await,
        <[&str; 0]>::default()
    );
    // An object, and nothing.
    let object = json!({"traffic_policy": {"on_http_request": 5}, "upstream_url": "http://x"});
    assert_eq!(rig.problems(&rig.admin, object).await.len(), 1);
    assert_eq!(rig.problems(&rig.admin, json!({})).await.len(), 0);
    let long = rig.problems(&rig.admin, new(&"é".repeat(200_000))).await;
    assert!(long[0].contains("the limit is"), "{long:?}");
    for position in [
        json!({"line": 0, "column": 1}),
        json!({"line": 1, "column": -1}),
        json!(5),
    ] {
        let mut wrong = new(log);
        wrong["position"] = position;
        let answered = rig.call(&rig.admin, "POST", PATH, wrong).await;
        assert!(matches!(answered, Answered::Refused(..)), "{answered:?}");
    }
}

#[tokio::test]
async fn an_analysis_stores_nothing_and_names_no_object_of_others() {
    let rig = Rig::start().await;
    let anna = rig.user("anna@example.com", Role::Member, true).await;
    let reader = rig.user("reader@example.com", Role::ReadOnly, true).await;
    let vault = rig.post("/vaults", json!({"name": "logins"})).await.body();
    let secret = json!({"vault_id": vault["id"], "name": "anna", "value": "a long password"});
    rig.post("/vault_secrets", secret).await.body();
    let reads = |vault: &str, name: &str| {
        let value = format!("${{\"a:\" + secrets.get(\"{vault}\", \"{name}\")}}");
        let config = json!({"credentials": [value]});
        let action = json!({"type": "basic-auth", "config": config});
        new(&json!({"on_http_request": [{"actions": [action]}]}).to_string())
    };
    assert_eq!(
        rig.problems(&rig.admin, reads("logins", "anna"))
            .await
            .len(),
        0
    );
    // Whether a secret of others exists is not said.
    let foreign = rig.analyzed(&anna, reads("logins", "anna")).await;
    for absent in [reads("logins", "anne"), reads("logons", "anna")] {
        assert_eq!(rig.analyzed(&anna, absent).await, foreign);
    }
    let message = foreign["problems"][0]["message"].as_str().unwrap();
    assert!(message.contains("does not exist, or"), "{message}");
    let policy = |id: &str| {
        new(&format!(
            "on_tcp_connect: [{{actions: [{{type: restrict-ips, config: {{ip_policies: [{id}]}}}}]}}]"
        ))
    };
    let made = rig.post("/ip_policies", json!({})).await.body();
    let id = made["id"].as_str().unwrap();
    assert_eq!(rig.problems(&rig.admin, policy(id)).await.len(), 0);
    let absent = policy("ipp_2OtNvAlhso10Gx6s7eupzX3F98q");
    assert_eq!(rig.problems(&rig.admin, absent).await.len(), 1);
    // Who may not write a policy gets no analysis of one.
    let answered = rig.call(&reader, "POST", PATH, new("")).await;
    assert!(matches!(answered, Answered::Refused(..)), "{answered:?}");
    let list = rig.get("/endpoints").await.body();
    assert_eq!(list["endpoints"], json!([]));
}

#[tokio::test]
async fn the_policy_of_an_endpoint_is_analyzed_for_who_may_change_it() {
    let rig = Rig::start().await;
    let anna = rig.user("anna@example.com", Role::Member, true).await;
    let text = "on_http_request: [{actions: [{type: basic-auth, config: {credentials: [\"me:correct horse\"]}}]}]";
    let body = json!({"url": "https://a.example.internal", "upstream_url": "http://127.0.0.1:9", "traffic_policy": text});
    let made = rig
        .call(&rig.admin, "POST", "/endpoints", body)
        .await
        .body();
    let id = made["id"].as_str().unwrap();
    let of = |text: &str| json!({"traffic_policy": text, "endpoint_id": id});
    assert_eq!(rig.problems(&rig.admin, of(text)).await.len(), 0);
    // The redacted secret stands for the stored one.
    let redacted = text.replace("me:correct horse", "[redacted]");
    assert_eq!(rig.problems(&rig.admin, of(&redacted)).await.len(), 0);
    assert!(!rig.problems(&rig.admin, new(&redacted)).await.is_empty());
    let answered = rig.call(&anna, "POST", PATH, of(text)).await;
    assert!(matches!(answered, Answered::Refused(..)), "{answered:?}");
    let absent = json!({"traffic_policy": text, "endpoint_id": "ep_2OtNvAlhso10Gx6s7eupzX3F98q"});
    let answered = rig.call(&anna, "POST", PATH, absent).await;
    assert!(matches!(answered, Answered::Refused(..)), "{answered:?}");
}

/// An alias of YAML repeats a text for a few bytes. The patterns of a policy may take a few megabytes together.
#[tokio::test]
async fn a_few_bytes_do_not_ask_for_many_patterns() {
    let rig = Rig::start().await;
    let one = "req.host.matches('\\\\\\\\p{L}{1,24}N')";
    let text = format!(
        "on_http_request:\n  - expressions: [&e \"{one} || {one}\"{}]\n    actions: [{{type: deny}}]\n",
        ", *e".repeat(19)
    );
    let found = rig.problems(&rig.admin, new(&text)).await;
    assert!(
        found[0].contains("larger than 4194304 bytes together"),
        "{found:?}"
    );
}
