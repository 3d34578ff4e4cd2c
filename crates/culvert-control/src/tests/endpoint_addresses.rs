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

/// Terraform compares the URL that it sent with the one in the response, and replaces the endpoint if they differ.
#[tokio::test]
async fn a_url_comes_back_as_it_was_sent() {
    let rig = Rig::start().await;
    for (url, whole) in [
        ("https://A.culvert.localhost", "https://a.culvert.localhost"),
        (
            "HTTP://b.culvert.localhost:80/",
            "http://b.culvert.localhost",
        ),
        (
            "https://c.culvert.localhost:443",
            "https://c.culvert.localhost",
        ),
        ("d.culvert.localhost", "https://d.culvert.localhost"),
        (
            "https://e.culvert.localhost.",
            "https://e.culvert.localhost",
        ),
        ("http://F.internal:80", "http://f.internal"),
        (
            "https://bücher.culvert.localhost",
            "https://xn--bcher-kva.culvert.localhost",
        ),
    ] {
        // So does the URL of the upstream.
        let upstream = "HTTP://Localhost:9";
        let sent = json!({"url": url, "upstream_url": upstream});
        let made = rig.post("/endpoints", sent).await.body();
        let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
        let listed = form_urlencoded(url);
        for shown in [
            made.clone(),
            rig.get(&path).await.body(),
            // It is found by either spelling.
            rig.get(&format!("/endpoints?url={listed}")).await.body()["endpoints"][0].clone(),
            rig.get(&format!("/endpoints?url={whole}")).await.body()["endpoints"][0].clone(),
            // Clients repeat the URL in an update, or leave it out.
            rig.patch(&path, json!({"url": url})).await.body(),
            rig.patch(&path, json!({"description": "x"})).await.body(),
        ] {
            assert_eq!(shown["url"], url, "{shown}");
            assert_eq!(shown["public_url"], whole);
            assert_eq!(shown["upstream_url"], upstream);
            assert_eq!(shown["id"], made["id"]);
        }
        // Another spelling names the same address.
        let again = rig.post(
            "/endpoints",
            json!({"url": whole, "upstream_url": upstream}),
        );
        assert_eq!(again.await.code(), Some(18017), "{url}");
        let shown = rig.patch(&path, json!({"url": whole})).await.body();
        assert_eq!(shown["url"], whole);
    }
    // The server assigned this address, so the URL that was sent is not shown. An update may spell the assigned one.
    let made = json!({"url": "tcp://", "upstream_url": "tcp://127.0.0.1:9"});
    let made = rig.post("/endpoints", made).await.body();
    let url = made["url"].as_str().unwrap();
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let spelled = url.replace("tcp://1", "TCP://1");
    let shown = rig.patch(&path, json!({"url": spelled})).await.body();
    assert_eq!(shown["url"], *spelled);
    assert_eq!(shown["public_url"], url);
    for url in [
        "https://x.culvert.localhost ",
        " https://x.culvert.localhost",
    ] {
        let refused = rig.post(
            "/endpoints",
            json!({"url": url, "upstream_url": "http://127.0.0.1:9"}),
        );
        assert!(matches!(refused.await.code(), Some(18001)), "{url}");
    }
    // Destinations show the URLs of their targets as they were sent.
    for target in [
        json!({"webhook": {"url": "https://Hooks.Example:443/a/../b?c=%7e"}}),
        json!({"loki": {"url": "HTTPS://Loki.Example/"}}),
        json!({"debug": {"log": true, "callback_url": "https://Hooks.Example:443"}}),
    ] {
        let sent = json!({"format": "json", "target": target});
        let made = rig.post("/event_destinations", sent).await.body();
        for (kind, fields) in target.as_object().unwrap() {
            for (name, value) in fields.as_object().unwrap() {
                assert_eq!(made["target"][kind][name], *value, "{made}");
            }
        }
    }
}

fn form_urlencoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
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
