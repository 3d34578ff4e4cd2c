//! IP restrictions on live traffic: of the management API and of public endpoints, and how to lift them.

use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::events_arrive::subscribe_debug;
use crate::harness::{Harness, Receiver, backends, binary, eventually};

/// Creates a policy with one rule that allows a prefix; returns its id.
async fn policy(culvert: &Harness, cidr: &str) -> Value {
    let policy = culvert.create("ip_policies", json!({})).await;
    let rule = json!({"ip_policy_id": policy["id"], "action": "allow", "cidr": cidr});
    culvert.create("ip_policy_rules", rule).await;
    policy["id"].clone()
}

/// Creates an enforced restriction; returns its path.
async fn restrict(culvert: &Harness, place: &str, policy: &Value) -> String {
    let body = json!({"type": place, "ip_policy_ids": [policy], "enforced": true});
    let made = culvert.create("ip_restrictions?force=true", body).await;
    format!("/ip_restrictions/{}", made["id"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_accepts_only_admitted_addresses() {
    for backend in backends().await {
        // The test acts as a trusted proxy.
        let culvert = Harness::start_with(&backend, |settings| {
            settings.api.trusted_proxies = vec!["127.0.0.1/32".into()];
        })
        .await;
        let policy = policy(&culvert, "203.0.113.0/24").await;
        restrict(&culvert, "api", &policy).await;
        let own = async || culvert.call(Method::GET, "/api_keys", None).await;
        eventually("the API refuses this address", async || {
            let answer = own().await;
            assert!(matches!(answer.status, 200 | 403), "{}", answer.body);
            answer.status == 403
        })
        .await;
        assert_eq!(own().await.body["error_code"], "ERR_NGROK_220");
        // Unauthenticated callers do not learn about the restriction.
        let nobody = culvert.client_with("");
        let answer = nobody.call(Method::GET, "/api_keys", None).await.unwrap();
        assert_eq!(answer.status, 401);

        // The client address that the proxy reports is the one that counts.
        let address = culvert
            .api
            .strip_prefix("http://")
            .unwrap()
            .parse()
            .unwrap();
        let asked = async |from: &str| {
            let request = format!(
                "GET /api_keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nx-forwarded-for: {from}\r\nconnection: close\r\n\r\n",
                culvert.token
            );
            crate::harness::raw(address, request.as_bytes())
                .await
                .status
        };
        assert_eq!(asked("203.0.113.9").await, 200);
        assert_eq!(asked("198.51.100.9").await, 403);

        let mut lift = binary();
        lift.args(["admin", "lift-api-restriction", "--data-dir"]);
        lift.arg(&culvert.settings.data_dir);
        if !culvert.settings.database_url.is_empty() {
            lift.args(["--database-url", &culvert.settings.database_url]);
        }
        let lifted = lift.output().unwrap();
        assert!(lifted.status.success(), "{lifted:?}");
        assert!(String::from_utf8_lossy(&lifted.stdout).contains("no longer enforced"));
        eventually("the API is open again", async || own().await.status == 200).await;
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_accept_only_admitted_addresses() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let (origin, hook) = (Receiver::start().await, Receiver::start().await);
        subscribe_debug(
            &culvert,
            &hook,
            json!([{"type": "http_request_complete.v0"}, {"type": "tcp_connection_closed.v0"}]),
        )
        .await;
        culvert.endpoint("walled", origin.address).await;
        let body = json!({"url": "tcp://", "upstream_url": format!("tcp://{}", origin.address)});
        let tcp = culvert.create("endpoints", body).await;
        let port = u16::try_from(tcp["port"].as_u64().unwrap()).unwrap();
        eventually("the port is open", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_ok()
        })
        .await;

        let policy = policy(&culvert, "203.0.113.0/24").await;
        let restriction = restrict(&culvert, "endpoints", &policy).await;
        let committed = std::time::Instant::now();
        let host = "walled.culvert.localhost";
        eventually("requests are refused", async || {
            let answer = culvert.get(host, "/").await;
            assert!(matches!(answer.status, 200 | 403), "{}", answer.text);
            answer.status == 403 && answer.text.contains("ERR_NGROK_3205")
        })
        .await;
        println!("refused {:?} after the commit", committed.elapsed());
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .unwrap();
        let mut read = Vec::new();
        drop(stream.read_to_end(&mut read).await);
        assert!(read.is_empty());
        let decided = |kind: &str, decision: &str| {
            hook.events().iter().any(|event| {
                event["event_type"] == kind && event["object"]["ip_policy"]["decision"] == decision
            })
        };
        eventually("the request is reported as blocked", async || {
            decided("http_request_complete.v0", "block")
        })
        .await;
        eventually("the connection is reported as blocked", async || {
            decided("tcp_connection_closed.v0", "block")
        })
        .await;

        // A rule that allows this address lifts both restrictions.
        let rule = json!({"ip_policy_id": policy, "action": "allow", "cidr": "127.0.0.0/8"});
        culvert.create("ip_policy_rules", rule).await;
        eventually("requests pass", async || {
            culvert.get(host, "/").await.status == 200
        })
        .await;
        let in_use = format!("/ip_policies/{}", policy.as_str().unwrap());
        let answer = culvert.call(Method::DELETE, &in_use, None).await;
        assert_eq!(answer.body["error_code"], "ERR_NGROK_1420");
        for path in [&restriction, &in_use] {
            assert_eq!(culvert.call(Method::DELETE, path, None).await.status, 204);
        }
        culvert.stop().await;
    }
}

/// Decisions of the edge and of the API follow every change of a rule and of a restriction, under continuous requests
/// of which none fails otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn changed_restrictions_apply_to_requests_under_load() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let origin = Receiver::start().await;
        culvert.endpoint("busy", origin.address).await;
        let policy = policy(&culvert, "127.0.0.0/8").await;
        let flipped = json!({"ip_policy_id": policy, "action": "deny", "cidr": "127.0.0.1/32"});
        let restriction = restrict(&culvert, "endpoints", &policy).await;

        let host = "busy.culvert.localhost";
        let edge = Flow::default();
        let changes = async {
            for round in 0..3 {
                let rule = culvert.create("ip_policy_rules", flipped.clone()).await;
                edge.turns_to(403, &format!("round {round}: a rule denies"))
                    .await;
                let rule = format!("/ip_policy_rules/{}", rule["id"].as_str().unwrap());
                let other = json!({"cidr": "198.51.100.0/24"});
                let moved = culvert.call(Method::PATCH, &rule, Some(other)).await;
                assert_eq!(moved.status, 200, "{}", moved.body);
                edge.turns_to(200, &format!("round {round}: the rule is about others"))
                    .await;
                let back = json!({"cidr": "127.0.0.1/32"});
                culvert.call(Method::PATCH, &rule, Some(back)).await;
                edge.turns_to(403, &format!("round {round}: the rule is back"))
                    .await;
                for (enforced, status) in [(false, 200), (true, 403)] {
                    let body = json!({"enforced": enforced});
                    culvert.call(Method::PATCH, &restriction, Some(body)).await;
                    edge.turns_to(status, &format!("round {round}: enforced {enforced}"))
                        .await;
                }
                culvert.call(Method::DELETE, &rule, None).await;
                edge.turns_to(200, &format!("round {round}: the rule is gone"))
                    .await;
            }
        };
        let n_asked = edge
            .during(changes, async || culvert.get(host, "/").await.status)
            .await;
        println!("{n_asked} requests while decisions changed");
        assert!(n_asked >= 18, "{n_asked}");
        culvert.stop().await;
    }
}

/// The API rejects and admits its caller as the restriction of its account changes, under continuous calls.
#[tokio::test(flavor = "multi_thread")]
async fn changed_restrictions_apply_to_the_api_under_load() {
    for backend in backends().await {
        // The test acts as a trusted proxy. One address is always allowed.
        let culvert = Harness::start_with(&backend, |settings| {
            settings.api.trusted_proxies = vec!["127.0.0.1/32".into()];
        })
        .await;
        let address: std::net::SocketAddr = culvert
            .api
            .strip_prefix("http://")
            .unwrap()
            .parse()
            .unwrap();
        let call = async |from: &str, method: &str, path: &str, body: &str| {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nx-forwarded-for: {from}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                culvert.token,
                body.len(),
            );
            crate::harness::raw(address, request.as_bytes())
                .await
                .status
        };
        let (inside, outside) = ("203.0.113.9", "198.51.100.9");
        let policy = policy(&culvert, "203.0.113.0/24").await;
        let body = json!({"ip_policy_id": policy, "action": "allow", "cidr": "198.51.100.0/24"});
        let rule = culvert.create("ip_policy_rules", body).await;
        let rule = format!("/ip_policy_rules/{}", rule["id"].as_str().unwrap());
        let restriction = restrict(&culvert, "api", &policy).await;

        let flow = Flow::default();
        let changes = async {
            for round in 0..3 {
                for (path, body, status) in [
                    (&rule, r#"{"cidr": "192.0.2.0/24"}"#, 403),
                    (&restriction, r#"{"enforced": false}"#, 200),
                    (&restriction, r#"{"enforced": true}"#, 403),
                    (&rule, r#"{"cidr": "198.51.100.0/24"}"#, 200),
                ] {
                    assert_eq!(call(inside, "PATCH", path, body).await, 200);
                    flow.turns_to(status, &format!("round {round}: {body}"))
                        .await;
                }
            }
        };
        let n_asked = flow
            .during(changes, async || {
                call(outside, "GET", "/api_keys", "").await
            })
            .await;
        println!("{n_asked} calls while decisions changed");
        assert!(n_asked >= 12, "{n_asked}");
        assert_eq!(call(inside, "DELETE", &restriction, "").await, 204);
        culvert.stop().await;
    }
}

/// Sequential requests, all with the status 200 or 403.
#[derive(Default)]
struct Flow(tokio::sync::watch::Sender<(usize, u16)>);

impl Flow {
    /// Sends requests until `changes` completes; returns their number.
    async fn during(&self, changes: impl Future<Output = ()>, ask: impl AsyncFn() -> u16) -> usize {
        let asking = async {
            loop {
                let status = ask().await;
                assert!(matches!(status, 200 | 403), "{status}");
                self.0.send_modify(|(n_asked, last)| {
                    *n_asked += 1;
                    *last = status;
                });
            }
        };
        tokio::select! {
            () = changes => {}
            () = asking => unreachable!("it never stops on its own"),
        }
        self.0.borrow().0
    }

    /// Waits for a response with this status.
    async fn turns_to(&self, status: u16, why: &str) {
        let began = std::time::Instant::now();
        let (start, _) = *self.0.borrow();
        let mut flow = self.0.subscribe();
        // Ignores the request that was in flight when the change was committed.
        let turned = flow.wait_for(|(n_asked, last)| *n_asked > start + 1 && *last == status);
        tokio::time::timeout(culvert_testing::PATIENCE, turned)
            .await
            .unwrap_or_else(|_| panic!("waited in vain for {status}: {why}"))
            .unwrap();
        println!("{status} {:?} after the commit: {why}", began.elapsed());
    }
}
