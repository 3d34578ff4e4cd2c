//! Internal endpoints: addresses that belong to the account without a reservation.

use super::*;

fn body(url: &str) -> Value {
    let scheme = url.split("://").next().unwrap();
    let upstream = if scheme.starts_with("http") {
        "http://127.0.0.1:9"
    } else {
        "tcp://127.0.0.1:9"
    };
    json!({"url": url, "upstream_url": upstream})
}

#[tokio::test]
async fn internal_hosts_are_separate_for_each_account() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    for (url, port) in [
        ("http://A.internal:80", 80),
        ("http://a.internal:8080", 8080),
        ("https://a.b.c.d.e.internal", 443),
        ("https://*.internal", 443),
        ("tls://a.internal:443", 443),
        ("tcp://db.internal:5432", 5432),
    ] {
        for caller in [&rig.admin, &stranger] {
            let made = rig.call(caller, "POST", "/endpoints", body(url)).await;
            let made = made.body();
            assert_eq!(made["url"], url);
            assert_eq!(made["port"], port);
            assert_eq!(made["bindings"], json!(["internal"]), "{url}");
            assert_eq!(
                (&made["domain"], &made["tcp_addr"]),
                (&Value::Null, &Value::Null)
            );
        }
        // A second one at the URL does not pool with the first.
        let again = rig.post("/endpoints", body(url)).await;
        assert_eq!(again.code(), Some(18017), "{url}");
    }
    let random =
        json!({"url": "http://", "bindings": ["internal"], "upstream_url": "http://127.0.0.1:9"});
    let random = rig.post("/endpoints", random).await.body();
    assert!(
        random["host"].as_str().unwrap().ends_with(".internal"),
        "{random}"
    );
}

#[tokio::test]
async fn an_endpoint_moves_between_bindings_with_its_host() {
    let rig = Rig::start().await;
    let made = rig
        .post("/endpoints", body("http://a.internal"))
        .await
        .body();
    let one = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let public = json!({"bindings": ["public"]});
    assert_eq!(rig.patch(&one, public).await.code(), Some(18014));
    let same = json!({"url": "http://a.internal", "bindings": ["internal"], "description": "d"});
    assert_eq!(rig.patch(&one, same).await.body()["description"], "d");
    let out = json!({"url": "http://a.culvert.localhost"});
    let moved = rig.patch(&one, out).await.body();
    assert_eq!(moved["bindings"], json!(["public"]));
    // The previous address is free.
    rig.post("/endpoints", body("http://a.internal"))
        .await
        .body();
}
