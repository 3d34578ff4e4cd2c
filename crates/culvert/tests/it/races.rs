//! Two owners on two nodes of one database who want kin names at the same moment: one gets them.

use std::any::Any;
use std::sync::Mutex;

use http::Method;
use ngrok::prelude::*;
use serde_json::{Value, json};

use crate::agents::{Service, builder, soon};
use crate::harness::{Harness, backends};
use crate::nodes::beside;

/// URLs that belong to one owner together.
const KIN: [[&str; 2]; 4] = [
    ["http://a.", "https://a."],
    ["https://*.", "https://a."],
    ["http://*.", "https://x.y."],
    ["https://*.", "https://*.y."],
];

/// Someone with a key and an agent at one node.
struct Owner<'a> {
    node: &'a Harness,
    client: culvert::client::Client,
    session: ngrok::Session,
    /// What its agent serves.
    open: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl<'a> Owner<'a> {
    async fn of(first: &Harness, node: &'a Harness, name: &str) -> Self {
        let bot = first.create("bot_users", json!({"name": name})).await;
        let owned = json!({"owner_id": bot["id"]});
        let key = first.create("api_keys", owned.clone()).await;
        let credential = first.create("credentials", owned).await;
        let token = credential["token"].as_str().unwrap();
        let builder = builder(first, node.agents, token);
        Self {
            node,
            client: node.client_with(key["token"].as_str().unwrap()),
            session: soon("a session", builder.connect()).await.unwrap(),
            open: Mutex::default(),
        }
    }

    /// Whether it gets a URL, for an endpoint of its agent or a cloud endpoint.
    async fn takes(&self, is_agent: bool, url: &str, service: &Service) -> bool {
        let (scheme, host) = url.split_once("://").unwrap();
        if is_agent {
            let mut endpoint = self.session.http_endpoint();
            endpoint.domain(host);
            if scheme == "http" {
                endpoint.scheme(Scheme::HTTP);
            }
            let tunnel = soon("an answer", endpoint.listen_and_forward(service.url())).await;
            let is_taken = tunnel.is_ok();
            if let Ok(tunnel) = tunnel {
                self.open.lock().unwrap().push(Box::new(tunnel));
            }
            return is_taken;
        }
        let body = json!({"url": url, "upstream_url": "http://127.0.0.1:1"});
        let made = self.client.call(Method::POST, "/endpoints", Some(&body));
        let made = made.await.unwrap();
        let code = made.body.get("error_code").and_then(Value::as_str);
        assert!(
            made.status == 201 || code == Some("ERR_NGROK_18006"),
            "{} {url}: {} {}",
            self.node.api,
            made.status,
            made.body
        );
        made.status == 201
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_reservations_on_two_nodes_succeed_once() {
    for backend in backends().await {
        let backend = backend.for_nodes(2);
        let one = Harness::start(&backend).await;
        // A file has one server.
        let other = match one.settings.database_url.is_empty() {
            true => None,
            false => Some(beside(&one).await),
        };
        let service = Service::named("service").await;
        let owners = [
            Owner::of(&one, &one, "one").await,
            Owner::of(&one, other.as_ref().unwrap_or(&one), "two").await,
        ];
        let mut n = 0;
        for _ in 0..2 {
            for [first, second] in KIN {
                for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
                    n += 1;
                    let first = format!("{first}n{n}.culvert.localhost");
                    let second = format!("{second}n{n}.culvert.localhost");
                    let (is_first, is_second) = tokio::join!(
                        owners[0].takes(a, &first, &service),
                        owners[1].takes(b, &second, &service),
                    );
                    assert_ne!(is_first, is_second, "{first} {a}, {second} {b}");
                }
            }
        }
        drop(owners);
        if let Some(other) = other {
            other.stop().await;
        }
        one.stop().await;
    }
}
