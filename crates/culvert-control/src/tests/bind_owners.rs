//! An agent of an inactive owner can bind nothing, although its session ends only a moment later.

use culvert_certificates::ssh::PublicKey;
use culvert_tunnel::server::{AgentAuthRequest, AgentAuthorizer, Proof, SessionGrant, Transport};
use culvert_tunnel::wire::{LabelledRequest, PatchRequest};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agents::{Open, code, hello, http};
use super::ssh::new_key;
use super::*;

/// A server whose task that ends sessions does not run.
async fn open() -> Open {
    let rig = Rig::with(None, AGENTS).await;
    rig.control.agents.begin_agents().await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&rig.control).run(CancellationToken::new()));
    Open { rig, tasks }
}

/// A new bot's ID, and the introduction of an agent of its credential.
async fn bots_agent(open: &Open, transport: Transport) -> (String, AgentAuthRequest) {
    let bot = open.rig.post("/bot_users", json!({"name": "b"})).await;
    let bot = bot.body()["id"].as_str().unwrap().to_owned();
    let hello = match transport {
        Transport::Ssh => {
            let key = new_key();
            let body = json!({"public_key": key, "owner_id": bot});
            open.rig.post("/ssh_credentials", body).await.body();
            let key = PublicKey::parse(&key).unwrap();
            AgentAuthRequest {
                proof: Proof::PublicKey(key.fingerprint),
                transport,
                ..hello("")
            }
        }
        Transport::Muxado => {
            let body = json!({"owner_id": bot});
            let made = open.rig.post("/credentials", body).await.body();
            hello(made["token"].as_str().unwrap())
        }
    };
    (bot, hello)
}

/// The codes of every request of a session.
async fn refusals(open: &Open, grant: &SessionGrant, endpoint: &str) -> Vec<Option<u16>> {
    let control = &open.rig.control;
    let patch = PatchRequest {
        tunnel_id: endpoint.to_owned(),
        description: Some("new".into()),
        ..PatchRequest::default()
    };
    let labels = LabelledRequest {
        labels: [("team".to_owned(), "red".to_owned())].into(),
        ..LabelledRequest::default()
    };
    vec![
        open.bind(grant, http("")).await.err(),
        control.agents.patch(grant, &patch).await.err().map(code),
        control
            .agents
            .bind_labels(grant, &labels)
            .await
            .err()
            .map(code),
    ]
}

#[tokio::test]
async fn an_agent_of_an_inactive_owner_binds_nothing() {
    for transport in [Transport::Muxado, Transport::Ssh] {
        let open = open().await;
        let (bot, hello) = bots_agent(&open, transport).await;
        let grant = open.authorize(hello).await.unwrap();
        let bound = open.bind(&grant, http("")).await.unwrap();
        let one = format!("/bot_users/{bot}");
        open.rig.patch(&one, json!({"active": false})).await.body();
        let refused = refusals(&open, &grant, &bound.id).await;
        assert_eq!(refused, [Some(636); 3], "{transport:?}");
        // It may still take its endpoint offline.
        AgentAuthorizer::unbind(&*open.rig.control.agents, &grant, &bound.id).await;
        assert!(open.collection("endpoints").await.is_empty());
        open.rig.patch(&one, json!({"active": true})).await.body();
        open.bind(&grant, http("")).await.unwrap();
    }
}

#[tokio::test]
async fn an_agent_of_a_suspended_account_binds_nothing() {
    let open = open().await;
    let (_, hello) = bots_agent(&open, Transport::Muxado).await;
    let grant = open.authorize(hello).await.unwrap();
    let bound = open.bind(&grant, http("")).await.unwrap();
    open.suspend().await;
    let refused = refusals(&open, &grant, &bound.id).await;
    assert_eq!(refused, [Some(103); 3]);
}
