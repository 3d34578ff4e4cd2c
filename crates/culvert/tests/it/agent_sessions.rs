//! Events of sessions: whole events of every kind of client, the reason of every kind of end, and no event
//! lost when the server ends, in whatever way.

use std::time::Duration;

use culvert::client::Client;
use http::Method;
use ngrok::prelude::*;
use serde_json::json;

use crate::agent_clients::{KINDS, Kind, Order, start};
use crate::agents::{
    Proxy, ProxyMode, Service, builder, builder_of, connect, credential, list, soon,
};
use crate::events_arrive::{subscribe, subscribe_debug};
use crate::harness::{Backend, Harness, Receiver, eventually};
use crate::kill::Process;

const START: &str = "agent_session_start.v0";
const STOP: &str = "agent_session_stop.v0";

/// A receiver of both kinds.
async fn hook(culvert: &Harness) -> Receiver {
    let hook = Receiver::start().await;
    subscribe_debug(culvert, &hook, json!([{"type": START}, {"type": STOP}])).await;
    hook
}

/// What only a kind of client says of itself.
struct Said {
    of: Kind,
    user_agent: &'static str,
    transport: &'static str,
    /// Whether it says its system, and its processor.
    says_more: bool,
    /// As it is in the session's resource.
    shown: &'static str,
}

const SAID: [Said; KINDS.len()] = [
    Said {
        of: Kind::Crate,
        user_agent: "ngrok-rust/0.19",
        transport: "muxado",
        says_more: true,
        shown: "ngrok/2",
    },
    Said {
        of: Kind::Python,
        user_agent: "ngrok-python/1.4.0 ngrok-rust/",
        transport: "muxado",
        says_more: true,
        shown: "ngrok/2",
    },
    Said {
        of: Kind::Node,
        user_agent: "ngrok-javascript/1.7.0 ngrok-rust/",
        transport: "muxado",
        says_more: true,
        shown: "ngrok/2",
    },
    Said {
        of: Kind::Own,
        user_agent: "culvert/",
        transport: "muxado",
        says_more: true,
        shown: "ngrok/2",
    },
    Said {
        of: Kind::Ssh,
        user_agent: "SSH-2.0-OpenSSH",
        transport: "ssh",
        says_more: false,
        shown: "ssh",
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn session_events_are_complete_for_every_kind_of_client() {
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.region = "here".into();
    })
    .await;
    let service = Service::named("one").await;
    let folder = tempfile::tempdir().unwrap();
    let keys = culvert.call(Method::GET, "/api_keys", None).await.body;
    let owner = keys["keys"][0]["owner_id"].clone();
    for said in SAID.iter().filter(|said| said.of.is_here()) {
        let hook = hook(&culvert).await;
        let folder = folder.path().join(said.shown.replace('/', "-"));
        std::fs::create_dir_all(&folder).unwrap();
        let (credential, token) = said.of.credential(&culvert, &folder, json!([])).await;
        let order = Order {
            proto: "http",
            name: "app.culvert.localhost",
            upstream: service.address,
            at: said.of.ingress(&culvert),
            token: &token,
            folder: &folder,
            files: None,
        };
        let client = start(said.of, &culvert, order).await.unwrap();
        let begun = hook.wait_for(START, 1).await.remove(0);
        let sessions = list(&culvert, "tunnel_sessions").await;
        let id = begun["object"]["session"]["id"].clone();
        let shown = sessions
            .into_iter()
            .find(|session| session["id"] == id)
            .unwrap();
        assert_eq!(shown["transport"], said.shown);
        client.kill().await;
        let ended = hook.wait_for(STOP, 1).await.remove(0);
        for (event, name) in [(&begun, START), (&ended, STOP)] {
            let object = &event["object"];
            let (agent, reason) = (&object["user_agent"], &object["error"]);
            assert!(
                agent.as_str().unwrap().starts_with(said.user_agent),
                "{agent}"
            );
            let is_stop = name == STOP;
            // A program that is killed resets what it had not read.
            let reason_text = reason.as_str().unwrap();
            let is_end = reason_text == "agent closed the session"
                || reason_text.starts_with("transport error: ");
            assert_eq!(is_end, is_stop, "{:?}: {reason}", said.of);
            assert_eq!(reason_text.is_empty(), !is_stop);
            assert_eq!(object["stopped_at"].is_string(), is_stop);
            let more = |text: &str| {
                if said.says_more {
                    text.to_owned()
                } else {
                    String::new()
                }
            };
            let reference = json!({
                "id": credential["id"],
                "uri": credential["uri"],
            });
            let expected = json!({
                "event_id": event["event_id"],
                "event_type": name,
                "event_timestamp": event["event_timestamp"],
                "account_id": event["account_id"],
                "principal": {
                    "id": owner,
                    "subject": event["principal"]["subject"],
                    "source": "Agent",
                    "credential": reference,
                },
                "object": {
                    "session": {"id": id, "uri": shown["uri"]},
                    "credential": reference,
                    "agent_ip": "127.0.0.1",
                    "ingress_server_ip": "127.0.0.1",
                    "region": "here",
                    "ingress_hostname": object["ingress_hostname"],
                    "user_agent": agent,
                    "metadata": more("of the test"),
                    "os": more("linux"),
                    "arch": more(std::env::consts::ARCH),
                    "transport": said.transport,
                    "started_at": shown["started_at"],
                    "expires_at": null,
                    "stopped_at": object["stopped_at"],
                    "deprecated": null,
                    "error": reason,
                },
            });
            assert_eq!(*event, expected, "{:?}", said.of);
            println!("{:?}: {event}", said.of);
        }
        // It has no other events.
        assert_eq!(hook.events().len(), 2, "{:?}", said.of);
    }
    culvert.stop().await;
}

/// How a session is brought to its end.
#[derive(Clone, Copy, Debug)]
enum End {
    Close,
    Reset,
    Silence,
    Stop,
    Restart,
    Credential,
}

/// Every kind of end while the server runs. A takeover is none: the session continues. The
/// message to an expired session needs a certificate that expires, and is in the tests of SSH.
const ENDS: [(End, &str); 6] = [
    (
        End::Close,
        "transport error: the connection ended without close_notify",
    ),
    (End::Reset, "transport error: "),
    (End::Silence, "heartbeat timeout"),
    (End::Stop, "stopped by a call of the API"),
    (End::Restart, "restarted by a call of the API"),
    (End::Credential, "credential deleted"),
];

#[tokio::test(flavor = "multi_thread")]
async fn session_end_events_have_the_reason() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let service = Service::named("one").await;
    for (end, expected) in ENDS {
        let hook = hook(&culvert).await;
        let (credential_id, token) = credential(&culvert, json!([])).await;
        let proxy = Proxy::to(culvert.agents).await;
        let mut builder = builder(&culvert, proxy.address, &token);
        // A busy machine is late with many things; only one end is about that.
        let seconds = match end {
            End::Silence => 2,
            _ => 120,
        };
        builder
            .heartbeat_interval(Duration::from_secs(1))
            .unwrap()
            .heartbeat_tolerance(Duration::from_secs(seconds))
            .unwrap()
            .handle_stop_command(|_| async { Ok(()) })
            .handle_restart_command(|_| async { Ok(()) });
        let session = soon("a session", builder.connect()).await.unwrap();
        let mut endpoint = session.http_endpoint();
        endpoint
            .scheme(Scheme::HTTP)
            .domain("app.culvert.localhost");
        let tunnel = endpoint.listen_and_forward(service.url());
        let tunnel = soon("an endpoint", tunnel).await.unwrap();
        let id = session.id();
        let ask = async |what: &str| {
            let path = format!("/tunnel_sessions/{id}/{what}");
            let answer = culvert.call(Method::POST, &path, Some(json!({}))).await;
            assert_eq!(answer.status, 204, "{:?}", answer.body);
        };
        let asked = tokio::time::Instant::now();
        match end {
            End::Close => proxy.becomes(ProxyMode::Closed),
            End::Reset => proxy.becomes(ProxyMode::Reset),
            End::Silence => proxy.becomes(ProxyMode::Still),
            End::Stop => ask("stop").await,
            End::Restart => {
                ask("restart").await;
                // Its application ends it.
                proxy.cut();
            }
            End::Credential => {
                let path = format!("/credentials/{credential_id}");
                let answer = culvert.call(Method::DELETE, &path, None).await;
                assert_eq!(answer.status, 204);
            }
        }
        if matches!(end, End::Credential) {
            eventually("the session is gone", async || {
                list(&culvert, "tunnel_sessions").await.is_empty()
            })
            .await;
            println!(
                "a deleted credential ended its session within {:?}",
                asked.elapsed()
            );
        }
        // No client reconnects. A silent one stays silent, and one that is reset does not close before that.
        let stays = matches!(end, End::Silence | End::Reset);
        let held = stays.then_some((proxy, tunnel, session));
        let stop = hook.wait_for(STOP, 1).await.remove(0);
        assert_eq!(stop["object"]["session"]["id"], *id, "{end:?}");
        let reason = stop["object"]["error"].as_str().unwrap();
        let is_it = match expected.ends_with(": ") {
            true => reason.starts_with(expected) && reason.len() > expected.len(),
            false => reason == expected,
        };
        assert!(is_it, "{end:?}: {reason}");
        drop(held);
        eventually("the endpoint is gone", async || {
            let endpoints = list(&culvert, "endpoints").await;
            endpoints.is_empty() && list(&culvert, "tunnel_sessions").await.is_empty()
        })
        .await;
    }
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_ended_by_the_server_are_reported_after_its_restart() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let hook = Receiver::start().await;
    let service = Service::named("one").await;
    let mut token = String::new();
    for (round, (is_kill, expected)) in [
        (true, "transport error: the server stopped unexpectedly"),
        (false, "server shutdown"),
    ]
    .into_iter()
    .enumerate()
    {
        let server = Process::start(&data, "");
        let key = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
        let client = Client::new(&server.api, key.clone()).unwrap();
        if round == 0 {
            subscribe(&client, &hook, json!([{"type": START}, {"type": STOP}])).await;
            let body = json!({});
            let made = client.expect(Method::POST, "/credentials", Some(&body));
            token = made.await.unwrap()["token"].as_str().unwrap().to_owned();
        }
        let before = hook.events().len();
        let mut sessions = Vec::new();
        for nth in 0..5 {
            let builder = builder_of(&data, server.agents.unwrap(), &token);
            let session = soon("a session", builder.connect()).await.unwrap();
            let mut endpoint = session.http_endpoint();
            let domain = format!("app{nth}.culvert.localhost");
            endpoint.scheme(Scheme::HTTP).domain(domain);
            let tunnel = endpoint.listen_and_forward(service.url());
            sessions.push((soon("an endpoint", tunnel).await.unwrap(), session));
        }
        let mut ids: Vec<String> = sessions.iter().map(|(_, session)| session.id()).collect();
        ids.sort();
        match is_kill {
            true => server.kill(),
            false => assert_eq!(server.terminate(), 0),
        }
        drop(sessions);
        let server = Process::start(&data, "");
        let client = Client::new(&server.api, key).unwrap();
        eventually("every end is reported", async || {
            hook.events().len() >= before + 10
        })
        .await;
        let events = hook.events().split_off(before);
        let stops = events.iter().filter(|event| event["event_type"] == STOP);
        let mut reported: Vec<&str> = Vec::new();
        for stop in stops {
            assert_eq!(stop["object"]["error"], expected);
            assert!(stop["object"]["stopped_at"].is_string());
            reported.push(stop["object"]["session"]["id"].as_str().unwrap());
        }
        reported.sort_unstable();
        // Delivery may repeat itself after a crash, with the same event.
        reported.dedup();
        assert_eq!(reported, ids);
        for collection in ["tunnel_sessions", "tunnels", "endpoints"] {
            let path = format!("/{collection}");
            let shown = client.expect(Method::GET, &path, None).await.unwrap();
            assert_eq!(shown[collection], json!([]));
        }
        assert_eq!(server.terminate(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_goes_offline_with_its_reservation() {
    const HOST: &str = "app.reserved.example";
    let culvert = Harness::start(&Backend::Sqlite).await;
    let service = Service::named("one").await;
    let (_, token) = credential(&culvert, json!([])).await;
    let domain = json!({"domain": HOST});
    let domain = culvert.create("reserved_domains", domain).await;
    let session = connect(&culvert, &token).await;
    let mut endpoint = session.http_endpoint();
    endpoint.scheme(Scheme::HTTP).domain(HOST);
    let tunnel = endpoint.listen_and_forward(service.url());
    let _tunnel = soon("an endpoint", tunnel).await.unwrap();
    assert_eq!(culvert.get(HOST, "/").await.status, 200);
    let path = format!("/reserved_domains/{}", domain["id"].as_str().unwrap());
    let answer = culvert.call(Method::DELETE, &path, None).await;
    assert_eq!(answer.status, 204, "{:?}", answer.body);
    eventually("the endpoint is gone", async || {
        list(&culvert, "endpoints").await.is_empty()
    })
    .await;
    assert_eq!(culvert.get(HOST, "/").await.status, 404);
    // The session has its other endpoints, if it has any.
    assert_eq!(list(&culvert, "tunnel_sessions").await.len(), 1);
    culvert.stop().await;
}
