//! The maintenance of endpoints: how it is stored, changed and shown.

use super::*;

const SECRET: &str = "let-me-in-please-1";

#[tokio::test]
async fn maintenance_is_switched_without_its_other_values() {
    let rig = Rig::start().await;
    let body = json!({
        "url": "https://x.culvert.localhost", "upstream_url": "http://127.0.0.1:9",
        "maintenance": {"body": "closed", "content_type": "text/plain", "bypass_cidrs": ["10.0.0.0/8"], "bypass_secret": SECRET},
    });
    let made = rig.post("/endpoints", body).await.body();
    let mut shown = json!({
        "enabled": false, "status": 503, "body": "closed", "content_type": "text/plain", "retry_after": "1m",
        "bypass_cidrs": ["10.0.0.0/8"], "bypass_secret": "[redacted]",
    });
    assert_eq!(made["maintenance"], shown);
    let one = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let on = json!({"maintenance": {"enabled": true}});
    shown["enabled"] = json!(true);
    assert_eq!(rig.patch(&one, on).await.body()["maintenance"], shown);
    // Clients may send the values that they got.
    let same = json!({"maintenance": shown});
    assert_eq!(rig.patch(&one, same).await.body()["maintenance"], shown);
    let fewer = json!({"maintenance": {"body": "", "content_type": "", "bypass_cidrs": [], "bypass_secret": "", "status": 502}});
    let shown = json!({
        "enabled": true, "status": 502, "body": "", "content_type": "", "retry_after": "1m",
        "bypass_cidrs": [], "bypass_secret": "",
    });
    assert_eq!(rig.patch(&one, fewer).await.body()["maintenance"], shown);
}

#[tokio::test]
async fn wrong_maintenance_is_refused() {
    let rig = Rig::start().await;
    for (maintenance, code, why) in [
        (json!({"status": 200}), 18014, "from 400 to 599"),
        (json!({"body": "x".repeat(65_537)}), 18014, "65536 bytes"),
        (
            json!({"content_type": "text/plain"}),
            18014,
            "needs `maintenance.body`",
        ),
        (
            json!({"body": "x", "content_type": "plain"}),
            18014,
            "must be a media type",
        ),
        (json!({"retry_after": "1ms"}), 18014, "from 1s to 168h"),
        (
            json!({"bypass_cidrs": ["10.0.0.0/8", "ten"]}),
            18014,
            "`maintenance.bypass_cidrs[1]`",
        ),
        (json!({"bypass_secret": "short"}), 18014, "16 to 256"),
        (
            json!({"bypass_secret": "0123456789abcdef;"}),
            18014,
            "16 to 256",
        ),
        (json!({"on": true}), 214, ""),
    ] {
        let body = json!({
            "url": "https://x.culvert.localhost", "upstream_url": "http://127.0.0.1:9",
            "maintenance": maintenance,
        });
        let answered = rig.post("/endpoints", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
        let message = format!("{answered:?}");
        assert!(message.contains(why), "{body}: {message}");
        assert!(!message.contains("0123456789abcdef"), "{message}");
    }
    let tls = json!({
        "url": "tls://x.culvert.localhost", "upstream_url": "tcp://127.0.0.1:9",
        "maintenance": {"enabled": true},
    });
    let answered = rig.post("/endpoints", tls).await;
    assert_eq!(answered.code(), Some(18014));
}
