//! Agent ingresses: codes, and what is shown.

use super::*;

#[tokio::test]
pub(super) async fn codes_of_ingresses() {
    let house = House::start().await;
    let first = json!({"domain": " Connect.Example.COM. "});
    let made = house.post("/agent_ingresses", first).await.body();
    assert_eq!(made["domain"], "connect.example.com");
    for name in ["ns_targets", "region_domains"] {
        assert_eq!(made[name], json!([]));
    }
    assert_eq!(made["certificate_management_policy"], Value::Null);
    assert_eq!(made["certificate_management_status"], Value::Null);
    let policy = json!({"authority": "letsencrypt", "private_key_type": "rsa"});
    for (body, code) in [
        (json!({}), 6704),
        (json!({"domain": "a b.example"}), 6704),
        (json!({"domain": "a..example"}), 6704),
        (json!({"domain": "*.x.example"}), 6704),
        (json!({"domain": "single"}), 6704),
        (json!({"domain": "192.0.2.1"}), 6704),
        (json!({"domain": "culvert.localhost"}), 6705),
        (json!({"domain": "a.culvert.localhost"}), 6705),
        (json!({"domain": "connect.example.com"}), 6706),
        (
            json!({"domain": "b.example", "description": "x".repeat(256)}),
            6700,
        ),
        (
            json!({"domain": "b.example", "metadata": "x".repeat(4097)}),
            6701,
        ),
        (
            json!({"domain": "b.example", "certificate_management_policy": policy}),
            215,
        ),
        (json!({"domain": "b.example", "ns_targets": []}), 214),
    ] {
        let answered = house.post("/agent_ingresses", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let one = format!("/agent_ingresses/{}", made["id"].as_str().unwrap());
    let refused = house
        .patch(&one, json!({"certificate_management_policy": policy}))
        .await;
    let Answered::Refused(_, Some(215), message) = refused else {
        panic!("{refused:?}");
    };
    assert!(message.contains("managed certificates come in a later version"));
    let moved = house.patch(&one, json!({"domain": "c.example"})).await;
    assert_eq!(moved.code(), Some(214));
    // A domain is one installation's, whosever account it is in.
    let stranger = house.stranger().await;
    let body = json!({"domain": "connect.example.com"});
    let taken = house
        .call(&stranger, "POST", "/agent_ingresses", body)
        .await;
    assert_eq!(taken.code(), Some(6706));
    let list = house
        .get("/agent_ingresses?filter=obj.domain == 'connect.example.com'")
        .await
        .body();
    assert_eq!(list["ingresses"], json!([made]));
}
