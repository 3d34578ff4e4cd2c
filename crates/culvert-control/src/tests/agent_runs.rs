//! Sessions of agents across runs of servers, and binds whose response was lost.

use std::time::Instant;

use culvert_base::sync::lock;
use culvert_tunnel::nodes::RunState;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agents::{Open, hello, http, recorded};
use super::*;

#[tokio::test]
async fn sessions_of_a_crashed_run_are_ended_and_reported() {
    let rig = Rig::start().await;
    let run = json!({"format": 1, "node": "a node"});
    let run = rig.insert("agent_run", "agrun", "", &run, Vec::new()).await;
    let id = recorded(&rig, &run, "muxado").await;
    let (_, seq) = rig.events_after(0).await;
    let last_seen = rig.clock.now().whole_seconds();
    rig.clock.advance(std::time::Duration::from_secs(3600));
    rig.control.agents.begin_agents().await.unwrap();
    assert!(rig.get(&format!("/tunnel_sessions/{id}")).await.is_absent());
    let (reported, _) = rig.events_after(seq).await;
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0]["event_type"], "agent_session_stop.v0");
    assert_eq!(
        reported[0]["object"]["error"],
        "transport error: the server stopped unexpectedly"
    );
    assert_eq!(reported[0]["object"]["stopped_at"], last_seen.to_string());
    let runs = rig.store.ids("agent_run").await.unwrap();
    assert_eq!(
        runs,
        [rig.control.agents.agents.as_ref().unwrap().run.clone()]
    );
}

#[tokio::test]
async fn a_stale_read_ends_no_session_of_a_new_run() {
    let rig = Rig::start().await;
    let control = &rig.control;
    let agents = control.agents.agents.as_ref().unwrap();
    let run = async || {
        let form = json!({"format": 1, "node": "another node"});
        let run = rig.insert("agent_run", "agrun", "", &form, Vec::new());
        run.await
    };
    let dead = run().await;
    let left_behind = recorded(&rig, &dead, "muxado").await;
    // For a node without a cluster, every other run is over.
    let over = agents
        .over(rig.store.all("agent_run").await.unwrap())
        .unwrap();
    assert_eq!(over.len(), 1);

    // After this check, a new run starts, and a silent one writes its heartbeat.
    rig.clock.advance(std::time::Duration::from_secs(1));
    let young = run().await;
    let alive = recorded(&rig, &young, "muxado").await;
    control.agents.end_sessions_of(agents, over).await.unwrap();
    let sessions = rig.store.ids("tunnel_session").await.unwrap();
    assert_eq!(sessions, [alive], "only {left_behind} is over");

    let over = agents
        .over(rig.store.all("agent_run").await.unwrap())
        .unwrap();
    let mut heartbeat = rig.store.heartbeat("agent_run", &young);
    let later = rig.clock.now().plus(std::time::Duration::from_secs(1));
    assert!(heartbeat.beat(later).await.unwrap());
    control.agents.end_sessions_of(agents, over).await.unwrap();
    assert_eq!(rig.store.ids("tunnel_session").await.unwrap(), sessions);
    // A heartbeat is not a commit, and does not restore a removed run.
    let gone = rig.store.heartbeat("agent_run", &dead).beat(later).await;
    assert!(!gone.unwrap());
}

/// A run that may have lost its sessions takes no agent back until it writes its heartbeat again.
#[tokio::test]
async fn a_run_that_was_cut_off_admits_no_agent() {
    let open = Open::start().await;
    let (_, token) = open.credential(json!([])).await;
    open.authorize(hello(&token)).await.unwrap();
    let agents = open.rig.control.agents.agents.as_ref().unwrap();
    let now = Instant::now();
    let (is_removed, _) = lock(&agents.lease).asked(now, &[Some(RunState::Removed)]);
    assert!(is_removed);
    assert!(lock(&agents.lease).ends(now));
    assert!(open.rig.control.agents.is_cut_off());
    let refused = open.authorize(hello(&token)).await.unwrap_err();
    assert_eq!(refused, code::AGENT_REQUEST_TIMED_OUT.number());
    lock(&agents.lease).beat(now);
    open.authorize(hello(&token)).await.unwrap();
}

/// An agent does not connect again after 300, so that is only for a deleted credential.
#[tokio::test]
async fn an_agent_whose_session_another_node_ended_may_connect_again() {
    let open = Open::start().await;
    let (id, token) = open.credential(json!([])).await;
    let grant = open.authorize(hello(&token)).await.unwrap();
    let session = open.rig.store.get("tunnel_session", &grant.session_id);
    let session = session.await.unwrap().unwrap();
    let reason = "as another node";
    let removal = Changes::remove(session.head, AuditEvent::Suppress { reason });
    open.rig.store.commit(removal).await.unwrap();
    let passing = code::AGENT_REQUEST_TIMED_OUT.number();
    let refused = open.bind(&grant, http("")).await.unwrap_err();
    assert_eq!(refused, passing);
    open.rig.delete(&format!("/credentials/{id}")).await;
    let refused = open.bind(&grant, http("")).await.unwrap_err();
    assert!([passing, 300].contains(&refused), "{refused}");
}

/// The runs that are remembered as dead are bounded, and one that registers again is forgotten.
#[tokio::test]
async fn a_run_that_registers_again_is_not_dead() {
    let rig = Rig::start().await;
    rig.control.agents.begin_agents().await.unwrap();
    let agents = rig.control.agents.agents.as_ref().unwrap();
    agents.note_removed("agrun_first".into());
    agents.note_removed(agents.run.clone());
    assert!(agents.has_removed(&agents.run));
    rig.control.agents.check_instances(agents).await.unwrap();
    assert!(!agents.has_removed(&agents.run));
    assert!(agents.has_removed("agrun_first"));
    for n in 0..1000 {
        agents.note_removed(format!("agrun_{n}"));
    }
    assert!(!agents.has_removed("agrun_first"));
    assert!(agents.has_removed("agrun_0"));
}

#[tokio::test]
async fn an_unanswered_bind_leaves_no_endpoint() {
    for keeper_runs in [false, true] {
        let rig = Rig::start().await;
        rig.control.agents.begin_agents().await.unwrap();
        let mut open = Open {
            rig,
            tasks: JoinSet::new(),
        };
        let grant = open.session(json!([])).await;
        // No configuration reaches the edge, so the bind is committed and waits until it is cancelled.
        let want = http("ghost.culvert.localhost");
        let mut commits = open.rig.store.watch();
        let committed = async {
            while open.collection("endpoints").await.is_empty() {
                commits.changed().await.unwrap();
            }
        };
        tokio::select! {
            bound = open.bind(&grant, want.clone()) => panic!("{bound:?}"),
            () = committed => {}
        }
        let control = &open.rig.control;
        if keeper_runs {
            open.tasks
                .spawn(Arc::clone(&control.agents).keep_agents(CancellationToken::new()));
            open.until_empty("endpoints").await;
        }
        open.tasks
            .spawn(Arc::clone(control).run(CancellationToken::new()));
        let bound = open.bind(&grant, want).await.unwrap();
        assert!(bound.url.contains("ghost.culvert.localhost"));
        assert_eq!(open.collection("endpoints").await.len(), 1);
        // A bind with a response stays.
        let refused = open.bind(&grant, http("ghost.culvert.localhost")).await;
        assert_eq!(refused.unwrap_err(), 334);
    }
}
