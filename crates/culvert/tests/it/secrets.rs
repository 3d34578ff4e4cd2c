//! Secrets are returned once and never stored in plain text.

use std::path::Path;

use http::Method;
use serde_json::json;

use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, Receiver, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_in_one_response_and_nowhere_else() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let hook = Receiver::start().await;
    let kinds = [
        "api_key_created.v0",
        "api_key_updated.v0",
        "event_destination_created.v0",
    ];
    subscribe_debug(
        &culvert,
        &hook,
        json!(kinds.map(|kind| json!({"type": kind}))),
    )
    .await;
    let key = culvert.create("api_keys", json!({})).await;
    let token = key["token"].as_str().unwrap();
    let secret_part = token.rsplit('_').next().unwrap().to_owned();
    let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
    let user = culvert.client_with(token);
    for answer in [
        user.call(Method::GET, &path, None).await.unwrap(),
        user.call(Method::PATCH, &path, Some(&json!({"metadata": "x"})))
            .await
            .unwrap(),
        user.call(Method::GET, "/api_keys", None).await.unwrap(),
        user.call(Method::GET, "/self", None).await.unwrap(),
    ] {
        assert!(answer.status < 300);
        assert!(!answer.body.to_string().contains(&secret_part));
    }
    let webhook = json!({"webhook": {"url": format!("http://{}/", hook.address)}});
    let made = culvert
        .create(
            "event_destinations",
            json!({"format": "json", "target": webhook}),
        )
        .await;
    let hook_secret = made["target"]["webhook"]["secrets"][0]
        .as_str()
        .unwrap()
        .to_owned();
    let hook_secret = hook_secret.strip_prefix("whsec_").unwrap().to_owned();
    let read = culvert
        .call(
            Method::GET,
            &format!("/event_destinations/{}", made["id"].as_str().unwrap()),
            None,
        )
        .await;
    assert!(!read.body.to_string().contains(&hook_secret));

    hook.wait_for("api_key_updated.v0", 1).await;
    eventually("the destination's event arrives", async || {
        hook.events()
            .iter()
            .any(|event| event["object"]["id"] == made["id"])
    })
    .await;
    for event in hook.events() {
        let event = event.to_string();
        assert!(
            !event.contains(&secret_part) && !event.contains(&hook_secret),
            "{event}"
        );
    }
    let data = culvert.settings.data_dir.clone();
    for needle in [&secret_part, &hook_secret] {
        assert_eq!(files_with(&data, needle.as_bytes()), Vec::<String>::new());
    }
    culvert.stop().await;
}

/// Names of the files below `folder` that contain `needle`.
pub fn files_with(folder: &Path, needle: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, needle));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            if bytes.windows(needle.len()).any(|window| window == needle) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}
