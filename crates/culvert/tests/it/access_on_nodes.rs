//! Rights on several nodes: what one node changes, the others enforce.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Harness, cluster, eventually};
use crate::nodes::beside;

#[tokio::test(flavor = "multi_thread")]
async fn rights_revoked_on_one_node_end_on_the_others() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let other = beside(&one).await;
    let key = one.create("api_keys", json!({})).await;
    let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
    let there = other.client_with(key["token"].as_str().unwrap());
    let code = async |path: &str| {
        let answer = there.call(Method::GET, path, None).await.unwrap();
        answer.body["error_code"].as_str().unwrap_or("").to_owned()
    };
    let restrict = async |body: Value| {
        let path = format!("{path}/restrictions");
        let answer = one.call(Method::PATCH, &path, Some(body)).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
    };
    // Restrictions are part of the key, which every call reads.
    assert_eq!(code("/vaults").await, "");
    restrict(json!({"scopes": ["endpoints.read"]})).await;
    assert_eq!(code("/vaults").await, "ERR_NGROK_642");
    assert_eq!(code("/endpoints").await, "");
    restrict(json!({"networks": ["192.0.2.0/24"]})).await;
    assert_eq!(code("/endpoints").await, "ERR_NGROK_641");
    let rotate = format!("{path}/rotate");
    assert_eq!(one.call(Method::POST, &rotate, None).await.status, 201);
    assert_eq!(code("/endpoints").await, "ERR_NGROK_203");

    // A role is cached until other nodes hear of the commit.
    let user = one
        .create("users", json!({"email": "ada@x.example", "role": "admin"}))
        .await;
    let link = user["invitation_url"].as_str().unwrap();
    let (_, invitation) = link.split_once('#').unwrap();
    let body = json!({"token": invitation}).to_string();
    let accepted = std::process::Command::new("curl")
        .args(["--silent", "--fail", "--data", &body])
        .args(["--header", "content-type: application/json"])
        .args(["--header", "x-culvert-console: 1"])
        .args(["--header", &format!("origin: {}", one.api)])
        .arg(format!("{}/console/invitation", one.api))
        .output()
        .unwrap();
    let accepted: Value = serde_json::from_slice(&accepted.stdout).unwrap();
    let ada = other.client_with(accepted["token"].as_str().unwrap());
    let role = async || {
        let answer = ada.call(Method::GET, "/self", None).await.unwrap();
        answer.body["role"].as_str().unwrap_or("none").to_owned()
    };
    assert_eq!(role().await, "admin");
    let path = format!("/users/{}", user["id"].as_str().unwrap());
    let demote = json!({"role": "read_only"});
    assert_eq!(
        one.call(Method::PATCH, &path, Some(demote)).await.status,
        200
    );
    eventually("the other node knows the role", async || {
        role().await == "read_only"
    })
    .await;
    assert_eq!(one.call(Method::DELETE, &path, None).await.status, 204);
    assert_eq!(role().await, "none");
    other.stop().await;
    one.stop().await;
}
