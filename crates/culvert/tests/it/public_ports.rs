//! Public URLs contain the public port of the edge: the configured one, otherwise the bound one.

use http::Method;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::agents::own_agent;
use crate::harness::{Backend, Harness, eventually};

/// A policy that responds with the variables of its endpoint.
const TELLS: &str = r#"{"on_http_request": [{"actions": [{"type": "custom-response",
    "config": {"status_code": 200, "body": "${endpoint.url} ${endpoint.addr} ${endpoint.port}"}}]}]}"#;

async fn with_ports(http: u16, https: u16) -> Harness {
    Harness::start_with(&Backend::Sqlite, |settings| {
        settings.edge.public_http_port = http;
        settings.edge.public_https_port = https;
    })
    .await
}

/// `:port`, or nothing for the default port.
fn suffix(port: u16, usual: u16) -> String {
    if port == usual {
        String::new()
    } else {
        format!(":{port}")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn public_urls_have_the_ports_of_the_settings_or_the_bound_ones() {
    for (http, https) in [(0, 0), (80, 443), (8000, 0), (0, 9443)] {
        let culvert = with_ports(http, https).await;
        let http = if http == 0 { culvert.http.port() } else { http };
        let https = match https {
            0 => culvert.https.port(),
            given => given,
        };
        for (scheme, port, usual) in [
            ("http", http, 80),
            ("https", https, 443),
            ("tls", https, 443),
        ] {
            let host = format!("{scheme}.culvert.localhost");
            let plain = format!("{scheme}://{host}");
            let body = match scheme {
                "tls" => json!({"url": plain, "upstream_url": "tcp://127.0.0.1:9"}),
                _ => json!({"url": plain, "traffic_policy": TELLS}),
            };
            let made = culvert.create("endpoints", body).await;
            let public = format!("{plain}{}", suffix(port, usual));
            // `hostport` has the default port, whatever the public port is.
            assert_eq!(
                (&made["url"], &made["public_url"]),
                (&json!(plain), &json!(public))
            );
            assert_eq!(made["hostport"], format!("{host}:{usual}"));

            // A PATCH accepts the URL that was returned, and no other.
            let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
            let sent = format!("{plain}:{port}");
            let same = culvert
                .call(Method::PATCH, &path, Some(json!({"url": sent})))
                .await;
            assert_eq!(same.status, 200);
            // `url` is shown as it was sent.
            assert_eq!(same.body["url"], *sent);
            assert_eq!(same.body["public_url"], *public);
            let change = json!({"url": format!("{plain}:7")});
            let refused = culvert.call(Method::PATCH, &path, Some(change)).await;
            assert_eq!(refused.body["error_code"], "ERR_NGROK_18023");

            if scheme == "http" {
                let reported = format!("{public} {host}:{port} {port}");
                eventually("the policy knows its public URL", async || {
                    culvert.get(&host, "/").await.text.ends_with(&reported)
                })
                .await;
            }
            if scheme == "https" {
                let location = format!("\r\nlocation: {public}/a?b=c\r\n");
                eventually("plain HTTP is sent to the public URL", async || {
                    let answer = culvert.get(&host, "/x/../a?b=c").await;
                    answer.status == 301 && answer.text.contains(&location)
                })
                .await;
            }
        }
        let inner = json!({"url": "https://a.internal", "traffic_policy": TELLS});
        let inner = culvert.create("endpoints", inner).await;
        assert_eq!(inner["public_url"], "https://a.internal");
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_the_url_with_the_public_port() {
    let culvert = with_ports(0, 0).await;
    let credential = culvert.create("credentials", json!({})).await;
    let port = culvert.http.port();
    let wanted = format!("http://own.culvert.localhost:{port}");
    let mut child = own_agent(&culvert, &credential, &["http", "9", "--url", &wanted]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    eventually("its URL is printed", async || {
        lines.next_line().await.unwrap().expect("it runs") == wanted
    })
    .await;
    let tunnels = culvert.call(Method::GET, "/tunnels", None).await.body;
    assert_eq!(tunnels["tunnels"][0]["public_url"], wanted);
    // The agent reports that its service is offline. It is not an unknown endpoint.
    let answer = culvert
        .get(&format!("own.culvert.localhost:{port}"), "/")
        .await;
    assert_eq!(answer.status, 502);
    culvert.stop().await;
}
