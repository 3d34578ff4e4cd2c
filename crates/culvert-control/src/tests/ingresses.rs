//! Agent ingresses: codes and views.

use super::*;

#[tokio::test]
pub(super) async fn agent_ingress_errors_have_their_codes() {
    let rig = Rig::start().await;
    let first = json!({"domain": " Connect.Example.COM. "});
    let made = rig.post("/agent_ingresses", first).await.body();
    assert_eq!(made["domain"], "connect.example.com");
    for name in ["ns_targets", "region_domains"] {
        assert_eq!(made[name], json!([]));
    }
    assert_eq!(made["certificate_management_policy"], Value::Null);
    assert_eq!(made["certificate_management_status"], Value::Null);
    for (body, code) in [
        (json!({}), 6704),
        (json!({"domain": "a b.example"}), 6704),
        (json!({"domain": "a..example"}), 6704),
        (json!({"domain": "*.x.example"}), 6704),
        (json!({"domain": "single"}), 6704),
        (json!({"domain": "192.0.2.1"}), 6704),
        (json!({"domain": "culvert.localhost"}), 6705),
        (json!({"domain": "a.culvert.localhost"}), 6705),
        // A name of the settings, and the host of the management API.
        (json!({"domain": "own.example"}), 6705),
        (
            json!({"domain": BASE.strip_prefix("http://").unwrap()}),
            6705,
        ),
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
            json!({"domain": "b.example", "certificate_management_policy": {"authority": "own"}}),
            435,
        ),
        (
            json!({"domain": "b.example", "certificate_management_policy": {"private_key_type": "dsa"}}),
            1909,
        ),
        (json!({"domain": "b.example", "ns_targets": []}), 214),
    ] {
        let answered = rig.post("/agent_ingresses", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let one = format!("/agent_ingresses/{}", made["id"].as_str().unwrap());
    let moved = rig.patch(&one, json!({"domain": "c.example"})).await;
    assert_eq!(moved.code(), Some(214));
    // A domain is unique in the installation, across accounts.
    let stranger = rig.stranger().await;
    let body = json!({"domain": "connect.example.com"});
    let taken = rig.call(&stranger, "POST", "/agent_ingresses", body).await;
    assert_eq!(taken.code(), Some(6706));
    let list = rig
        .get("/agent_ingresses?filter=obj.domain == 'connect.example.com'")
        .await
        .body();
    assert_eq!(list["ingresses"], json!([made]));
}

#[tokio::test]
async fn certificate_management_of_an_ingress_cannot_be_removed() {
    let rig = Rig::start().await;
    let body = json!({"domain": "connect.example.com"});
    let made = rig.post("/agent_ingresses", body).await.body();
    let one = format!("/agent_ingresses/{}", made["id"].as_str().unwrap());
    let unset = json!({"certificate_management_policy": null});
    assert_eq!(rig.patch(&one, unset.clone()).await.body(), made);
    let rsa = json!({"certificate_management_policy": {"authority": "letsencrypt"}});
    let managed = rig.patch(&one, rsa).await.body();
    let policy = json!({"authority": "letsencrypt", "private_key_type": "rsa"});
    assert_eq!(managed["certificate_management_policy"], policy);
    let status = &managed["certificate_management_status"];
    assert_eq!(status["renews_at"], Value::Null);
    let job = &status["provisioning_job"];
    assert_eq!(
        (&job["error_code"], &job["retries_at"]),
        (&Value::Null, &Value::Null)
    );
    let ecdsa = json!({"certificate_management_policy": {"private_key_type": "ecdsa"}});
    let changed = rig.patch(&one, ecdsa).await.body();
    let key_type = &changed["certificate_management_policy"]["private_key_type"];
    assert_eq!(key_type, "ecdsa");
    assert_eq!(rig.patch(&one, unset).await.body(), changed);
}

#[tokio::test]
async fn an_ingress_below_a_domain_of_another_account_is_refused() {
    let rig = Rig::start().await;
    rig.post("/reserved_domains", json!({"domain": "*.example.com"}))
        .await
        .body();
    let stranger = rig.stranger().await;
    let body = json!({"domain": "connect.example.com"});
    let taken = rig
        .call(&stranger, "POST", "/agent_ingresses", body.clone())
        .await;
    assert_eq!(taken.code(), Some(6706));
    rig.post("/agent_ingresses", body).await.body();
}
