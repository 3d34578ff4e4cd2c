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

/// Spellings of the URL of an endpoint: of a host, with these ports or none.
fn spellings(scheme: &str, host: &str, ports: &[u16]) -> Vec<String> {
    let name = host.replace('h', "H");
    let mut spellings = Vec::new();
    for host in [host.to_owned(), name, format!("{host}.")] {
        let ports = ports
            .iter()
            .flat_map(|port| [format!(":{port}"), format!(":0{port}")]);
        for port in std::iter::once(String::new()).chain(ports) {
            spellings.push(format!("{scheme}://{host}{port}"));
            if scheme.starts_with("http") {
                spellings.push(format!("{}://{host}{port}/", scheme.to_uppercase()));
            }
            if scheme == "https" {
                spellings.push(format!("{host}{port}"));
            }
        }
    }
    spellings
}

/// Every spelling that makes an endpoint finds it, however it was spelled, and so does its public URL; filters see one.
#[tokio::test]
async fn an_endpoint_is_found_by_every_spelling_of_its_url() {
    for has_public_ports in [false, true] {
        let rig = match has_public_ports {
            false => Rig::start().await,
            true => {
                Rig::adjusted(|settings| {
                    (settings.public_ports.http, settings.public_ports.https) = (8080, 8443);
                })
                .await
            }
        };
        let found = async |query: String| {
            let list = rig.get(&format!("/endpoints?{query}")).await.body();
            let listed = list["endpoints"].as_array().unwrap().iter();
            let ids = listed.map(|one| one["id"].as_str().unwrap().to_owned());
            ids.collect::<Vec<_>>()
        };
        for (scheme, usual, public) in
            [("http", 80, 8080), ("https", 443, 8443), ("tls", 443, 8443)]
        {
            for (binding, host) in [
                ("public", "h.culvert.localhost"),
                ("internal", "h.internal"),
                ("kubernetes", "h.namespace"),
            ] {
                if (scheme, binding) == ("https", "kubernetes") {
                    continue;
                }
                let ports: &[u16] = match has_public_ports && binding == "public" {
                    true => &[usual, public],
                    false => &[usual],
                };
                let spellings = spellings(scheme, host, ports);
                let upstream = match scheme {
                    "tls" => "tcp://127.0.0.1:9",
                    _ => "http://127.0.0.1:9",
                };
                for sent in &spellings {
                    let body =
                        json!({"url": sent, "bindings": [binding], "upstream_url": upstream});
                    let made = rig.post("/endpoints", body).await.body();
                    assert_eq!(made["url"], **sent);
                    let id = [made["id"].as_str().unwrap().to_owned()];
                    let shown = made["public_url"].as_str().unwrap().to_owned();
                    for url in spellings.iter().chain([&shown]) {
                        let listed = found(format!("url={}", form_urlencoded(url))).await;
                        assert_eq!(listed, id, "{binding} {sent} by {url}");
                    }
                    let one = format!("{scheme}://{host}");
                    for (filter, is_found) in [
                        (format!("obj.url == '{one}'"), true),
                        (format!("obj.url in ['{one}']"), true),
                        (format!("obj.url.endsWith('{host}')"), true),
                        (format!("obj.url != '{one}'"), false),
                        (format!("!(obj.url.contains('{host}'))"), false),
                        (
                            "size(obj.url) > 60 || obj.url.contains(':4')".to_owned(),
                            false,
                        ),
                    ] {
                        let listed = found(format!("filter={}", form_urlencoded(&filter))).await;
                        assert_eq!(listed == id, is_found, "{sent}: {filter}");
                    }
                    // Where any port is another address, that of public URLs is one too.
                    let others = match binding {
                        "public" => vec![format!("{scheme}://x{host}"), format!("{one}:9")],
                        _ => vec![format!("{one}:{public}"), format!("{one}:9")],
                    };
                    for url in others {
                        let listed = found(format!("url={}", form_urlencoded(&url))).await;
                        assert!(listed.is_empty(), "{binding} {sent} by {url}");
                    }
                    rig.delete(&format!("/endpoints/{}", id[0])).await;
                }
            }
        }
    }
}

/// Endpoints of earlier versions, which kept the usual port of `tls`, are found and pooled like others.
#[tokio::test]
async fn stored_urls_of_earlier_versions_are_found() {
    let rig = Rig::start().await;
    let body = json!({
        "url": "tls://old.culvert.localhost:443", "upstream_url": "tcp://127.0.0.1:9", "pooling_enabled": true,
    });
    let made = rig.post("/endpoints", body.clone()).await.body();
    let id = made["id"].as_str().unwrap();
    for kind in ["endpoint", "endpoint_address"] {
        for mut document in rig.store.all(kind).await.unwrap() {
            let mut form: Value = serde_json::from_str(&document.body).unwrap();
            let url = "tls://old.culvert.localhost:443".into();
            match kind {
                "endpoint" => {
                    form["address"]["url"] = url;
                    form["address"].as_object_mut().unwrap().remove("sent");
                }
                _ => form["url"] = url,
            }
            document.body = form.to_string();
            let event = AuditEvent::Suppress { reason: "a test" };
            rig.store
                .commit(Changes::replace(document, event))
                .await
                .unwrap();
        }
    }
    let shown = rig.get(&format!("/endpoints/{id}")).await.body();
    assert_eq!(shown, made);
    rig.store.meta_set("endpoint_urls", "").await.unwrap();
    let seal = Seal::new(&Secret::new("a master key of the tests".into()));
    for _ in 0..2 {
        relink::relink(&rig.store, &seal).await.unwrap();
        assert_eq!(rig.get(&format!("/endpoints/{id}")).await.body(), made);
        for query in [
            "url=tls://old.culvert.localhost:443",
            "url=tls://old.culvert.localhost",
            "filter=obj.url%20==%20'tls://old.culvert.localhost'",
        ] {
            let list = rig.get(&format!("/endpoints?{query}")).await.body();
            assert_eq!(list["endpoints"][0]["id"], id, "{query}");
        }
    }
    rig.post("/endpoints", body).await.body();
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
