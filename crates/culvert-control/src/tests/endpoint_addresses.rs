//! Addresses of endpoints: pools, random addresses and requests for one address at the same time.

use super::*;

#[tokio::test]
async fn private_upstreams_are_refused_if_disabled() {
    let rig = Rig::adjusted(|settings| settings.allow_private_upstreams = false).await;
    let body = json!({"url": "https://", "upstream_url": "http://127.0.0.1:9"});
    assert_eq!(rig.post("/endpoints", body).await.code(), Some(18014));
}

#[tokio::test]
pub(super) async fn only_pooled_endpoints_share_an_address() {
    let rig = Rig::start().await;
    let make = |scheme: &'static str, host: &'static str, pooling: bool| {
        let upstream = if scheme == "tls" {
            "tcp://127.0.0.1:9"
        } else {
            "http://127.0.0.1:9"
        };
        let url = format!("{scheme}://{host}.culvert.localhost");
        rig.post(
            "/endpoints",
            json!({"url": url, "upstream_url": upstream, "pooling_enabled": pooling}),
        )
    };
    let first = make("https", "a", false).await.body();
    let first = format!("/endpoints/{}", first["id"].as_str().unwrap());
    assert_eq!(make("https", "a", false).await.code(), Some(18017));
    assert_eq!(make("https", "a", true).await.code(), Some(18016));
    assert_eq!(make("tls", "a", false).await.code(), Some(18017));
    make("http", "a", false).await.body();

    rig.patch(&first, json!({"pooling_enabled": true}))
        .await
        .body();
    let second = make("https", "a", true).await.body();
    let second = format!("/endpoints/{}", second["id"].as_str().unwrap());
    assert_eq!(make("tls", "a", true).await.code(), Some(18017));
    let off = rig.patch(&second, json!({"pooling_enabled": false})).await;
    assert_eq!(off.code(), Some(18017));
    let elsewhere = json!({"url": "https://b.culvert.localhost"});
    rig.patch(&second, elsewhere.clone()).await.body();
    rig.patch(&first, json!({"pooling_enabled": false}))
        .await
        .body();
    assert_eq!(rig.patch(&first, elsewhere).await.code(), Some(18017));
    assert_eq!(rig.delete(&first).await, Answered::NoContent);
    make("https", "a", false).await.body();
    // Another account cannot join the pool of endpoints.
    let stranger = rig.stranger().await;
    let body = json!({"url": "https://b.culvert.localhost", "upstream_url": "http://127.0.0.1:9", "pooling_enabled": true});
    let answered = rig.call(&stranger, "POST", "/endpoints", body).await;
    assert_eq!(answered.code(), Some(18006));
}

#[tokio::test]
async fn random_addresses_are_unused_until_none_is_left() {
    let rig = Rig::start().await;
    let make = || {
        rig.post(
            "/endpoints",
            json!({"url": "tcp://", "upstream_url": "tcp://127.0.0.1:9"}),
        )
    };
    let expected =
        [20000, 20001, 20002].map(|port| format!("tcp://1.tcp.culvert.localhost:{port}"));
    // Unused addresses are assigned first, then released ones. Of two concurrent requests for one address,
    // the later one gets another.
    for round in 0..12 {
        let (a, b, c) = tokio::join!(make(), make(), make());
        let made = [a.body(), b.body(), c.body()];
        let mut urls = made
            .each_ref()
            .map(|made| made["url"].as_str().unwrap().to_owned());
        urls.sort();
        assert_eq!(urls, expected, "round {round}");
        if round < 11 {
            for made in made {
                let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
                assert_eq!(rig.delete(&path).await, Answered::NoContent);
            }
        }
    }
    assert_eq!(make().await.code(), Some(18014));
    let one = json!({"upstream_url": "http://127.0.0.1:9"});
    let made = rig.post("/endpoints", one).await.body();
    let host = made["host"].as_str().unwrap();
    assert!(
        host.ends_with(".culvert.localhost") && host.len() == 12 + 18,
        "{host}"
    );
    assert_eq!(made["scheme"], "https");
}

#[tokio::test]
async fn concurrent_endpoints_at_one_address_succeed_once() {
    let rig = Rig::start().await;
    let body =
        json!({"url": "https://race.culvert.localhost", "upstream_url": "http://127.0.0.1:9"});
    let make = || rig.post("/endpoints", body.clone());
    let answers = tokio::join!(make(), make(), make(), make());
    let answers = [answers.0, answers.1, answers.2, answers.3];
    let n_made = answers
        .iter()
        .filter(|one| matches!(one, Answered::Created(_)))
        .count();
    assert_eq!(n_made, 1, "{answers:?}");
    let refused = answers
        .iter()
        .filter(|one| !matches!(one, Answered::Created(_)));
    assert!(refused.map(Answered::code).all(|code| code == Some(18017)));
}
