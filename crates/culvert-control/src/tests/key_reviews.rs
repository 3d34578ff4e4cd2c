//! What a review of API keys asks: restrictions, owners and last uses of all keys, by `include` and filters.

use std::time::Duration;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

/// The descriptions of the keys that a filter selects, sorted.
async fn selected(rig: &Rig, filter: &str) -> Vec<String> {
    let query = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("filter", filter)
        .finish();
    let list = rig.get(&format!("/api_keys?{query}")).await.body();
    let keys = list["keys"].as_array().unwrap().iter();
    let mut found: Vec<String> = keys
        .map(|key| {
            // Without `include`, an object has the published fields.
            assert_eq!(key.as_object().unwrap().len(), 7, "{key}");
            key["description"].as_str().unwrap().to_owned()
        })
        .collect();
    found.retain(|description| description != "first key of the installation");
    found.sort();
    found
}

#[tokio::test]
async fn each_question_of_a_review_is_one_filter() {
    let rig = Rig::start().await;
    let bot = rig
        .post("/bot_users", json!({"name": "deployer"}))
        .await
        .body();
    let make = async |description: &str, body: Value| {
        let mut body = body;
        body["description"] = json!(description);
        let key = rig.post("/api_keys", body).await.body();
        let caller = rig.authenticate(key["token"].as_str().unwrap()).await;
        (key, caller.unwrap())
    };
    let (_, old) = make("old", json!({})).await;
    let address = |text: &str| text.parse().unwrap();
    rig.control
        .identity
        .note_key_use(&old, address("192.0.2.1"));
    rig.control.identity.write_key_uses().await.unwrap();
    rig.clock.advance(100 * DAY);
    let (_, ends) = make("ends", json!({"expires_at": "20d", "owner_id": bot["id"]})).await;
    rig.control
        .identity
        .note_key_use(&ends, address("2001:db8::1"));
    make(
        "narrow",
        json!({"role": "read_only", "scopes": ["keys.read"], "networks": ["192.0.2.0/24"]}),
    )
    .await;
    let (leaked, _) = make("leaked", json!({})).await;
    let tokens = json!([{"token": leaked["token"]}]).to_string();
    let tokens = signed_tokens(tokens.as_bytes()).unwrap();
    rig.control
        .identity
        .report_leaks(None, &tokens)
        .await
        .unwrap();
    let (rotated, _) = make("rotated", json!({})).await;
    let path = format!("/api_keys/{}/rotate", rotated["id"].as_str().unwrap());
    rig.post(&path, json!({"overlap": 3600})).await.body();

    let unused = r#"obj.last_used_at < timestamp(time.now).subtract("90d")"#;
    for (question, filter, expected) in [
        ("unused for 90 days", unused, vec!["old"]),
        (
            "never used",
            "obj.last_used_at == null",
            vec!["leaked", "narrow", "rotated"],
        ),
        (
            "without an end",
            "obj.expires_at == null",
            vec!["leaked", "narrow", "old", "rotated"],
        ),
        (
            "ends within 30 days",
            r#"obj.expires_at < timestamp(time.now).add("30d")"#,
            vec!["ends"],
        ),
        (
            "old",
            r#"obj.created_at < timestamp(time.now).subtract("90d")"#,
            vec!["old"],
        ),
        ("whose", r#"obj.owner_name == "deployer""#, vec!["ends"]),
        (
            "used from where",
            r#"obj.last_used_from.startsWith("2001:db8:")"#,
            vec!["ends"],
        ),
        (
            "from anywhere",
            "obj.networks == []",
            vec!["ends", "leaked", "old", "rotated"],
        ),
        (
            "without scopes",
            "size(obj.scopes) == 0",
            vec!["ends", "leaked", "old", "rotated"],
        ),
        (
            "with a scope",
            r#""keys.read" in obj.scopes"#,
            vec!["narrow"],
        ),
        ("lower role", r#"obj.role == "read_only""#, vec!["narrow"]),
        ("leaked", "obj.leaked_at != null", vec!["leaked"]),
        (
            "in a rotation",
            "obj.previous_token_expires_at != null",
            vec!["rotated"],
        ),
    ] {
        assert_eq!(selected(&rig, filter).await, expected, "{question}");
    }
    for filter in ["obj.restrictions == null", "obj.expires_at == \"2027\""] {
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("filter", filter)
            .finish();
        let answered = rig.get(&format!("/api_keys?{query}")).await;
        assert_eq!(answered.code(), Some(250), "{filter}");
    }
}

#[tokio::test]
async fn restrictions_and_usage_are_included_on_request() {
    let rig = Rig::start().await;
    let bot = rig
        .post("/bot_users", json!({"name": "deployer"}))
        .await
        .body();
    let body = json!({
        "owner_id": bot["id"], "role": "member", "scopes": ["keys.write"], "networks": ["192.0.2.0/24"],
        "expires_at": "2099-01-01",
    });
    let made = rig
        .post("/api_keys?include=restrictions,usage", body)
        .await
        .body();
    let restrictions = json!({
        "owner_name": "deployer", "role": "member", "scopes": ["keys.read", "keys.write"],
        "networks": ["192.0.2.0/24"], "expires_at": "2099-01-01T00:00:00Z",
        "previous_token_expires_at": null, "leaked_at": null,
    });
    let unused = json!({"last_used_at": null, "last_used_from": ""});
    let has = |object: &Value, fields: &Value| {
        let fields = fields.as_object().unwrap().iter();
        let mut same = fields.map(|(name, value)| object.get(name) == Some(value));
        same.all(|same| same)
    };
    assert!(has(&made, &restrictions) && has(&made, &unused), "{made}");
    let token = made["token"].as_str().unwrap();
    assert!(rig.authenticate(token).await.is_ok());
    let path = format!("/api_keys/{}", made["id"].as_str().unwrap());
    let plain = rig.get(&path).await.body();
    assert_eq!(plain.as_object().unwrap().len(), 7);
    let caller = rig.authenticate(token).await.unwrap();
    rig.control
        .identity
        .note_key_use(&caller, [192, 0, 2, 9].into());
    let used = json!({
        "last_used_at": rig.clock.now().to_string(), "last_used_from": "192.0.2.9",
    });
    for include in [
        "",
        "restrictions",
        "usage",
        "usage,restrictions",
        " usage , ",
    ] {
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("include", include)
            .finish();
        let one = rig.get(&format!("{path}?{query}")).await.body();
        let list = rig.get(&format!("/api_keys?{query}&limit=1")).await.body();
        let changed = rig
            .patch(&format!("{path}?{query}"), json!({"metadata": "m"}))
            .await;
        let changed = changed.body();
        assert_eq!(list["keys"][0]["id"], made["id"]);
        for object in [&one, &list["keys"][0], &changed] {
            let has_restrictions = include.contains("restrictions");
            assert_eq!(
                has(object, &restrictions),
                has_restrictions,
                "{include}: {object}"
            );
            assert_eq!(
                has(object, &used),
                include.contains("usage"),
                "{include}: {object}"
            );
            let n = 7
                + if has_restrictions { 10 } else { 0 }
                + if include.contains("usage") { 6 } else { 0 };
            assert_eq!(object.as_object().unwrap().len(), n);
            assert_eq!(object["token"], Value::Null);
        }
        // The next page has the same fields.
        let next = list["next_page_uri"].as_str().unwrap();
        assert_eq!(
            next.contains("include="),
            !include.trim().is_empty(),
            "{next}"
        );
    }
    for (path, code) in [
        (format!("{path}?include=secrets"), 215),
        (format!("{path}?include=usage&include=usage"), 232),
        ("/api_keys?include=secrets".to_owned(), 215),
        ("/bot_users?include=usage".to_owned(), 231),
    ] {
        assert_eq!(rig.get(&path).await.code(), Some(code), "{path}");
    }
    // Events have the published fields.
    let (events, _) = rig.events_after(0).await;
    let of_keys = events.iter().filter(|event| {
        let kind = event["event_type"].as_str().unwrap();
        kind.starts_with("api_key_created") || kind.starts_with("api_key_updated")
    });
    for event in of_keys {
        assert_eq!(event["object"].as_object().unwrap().len(), 6, "{event}");
    }
}
