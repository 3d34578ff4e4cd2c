//! Tests of agent sessions: authorization, endpoints, limits and events. No real agent is connected here; the
//! tests of the whole server have real ones.

use std::net::SocketAddr;

use culvert_base::{Refusal, Secret};
use culvert_tunnel::server::{
    About, AgentAuthRequest, AgentAuthorizer, Binding, EndReason, EndpointRequest, Former, Proof,
    SessionEnd, SessionGrant, Transport,
};
use culvert_tunnel::wire::{LabelledRequest, Options, PatchRequest};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::names::{Kind, Owner};
use super::*;

/// A rig with a running compiler for its edge.
pub(super) struct Open {
    pub(super) rig: Rig,
    pub(super) tasks: JoinSet<()>,
}

impl Open {
    pub(super) async fn start() -> Self {
        Self::with(AGENTS).await
    }

    /// Waits until the number of documents of a kind is as wanted.
    pub(super) async fn until_count(&self, kind: &str, is_wanted: impl Fn(usize) -> bool) {
        let mut commits = self.rig.store.watch();
        let counted = async {
            while !is_wanted(self.rig.store.count(kind).await.unwrap()) {
                commits.changed().await.unwrap();
            }
        };
        tokio::time::timeout(culvert_testing::PATIENCE, counted)
            .await
            .unwrap();
    }

    pub(super) async fn with(limits: AgentLimits) -> Self {
        Self::of(Rig::with(None, limits).await).await
    }

    pub(super) async fn of(rig: Rig) -> Self {
        rig.control.agents.begin_agents().await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&rig.control).run(CancellationToken::new()));
        tasks.spawn(Arc::clone(&rig.control.agents).keep_agents(CancellationToken::new()));
        Self { rig, tasks }
    }

    /// Creates a credential; returns its ID and token.
    pub(super) async fn credential(&self, acl: Value) -> (String, String) {
        let made = self.rig.post("/credentials", json!({"acl": acl})).await;
        let made = made.body();
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        (text("id"), text("token"))
    }

    pub(super) async fn authorize(&self, hello: AgentAuthRequest) -> Result<SessionGrant, u16> {
        AgentAuthorizer::authorize(&*self.rig.control.agents, hello)
            .await
            .map_err(code)
    }

    /// A session of a new credential with this ACL.
    pub(super) async fn session(&self, acl: Value) -> SessionGrant {
        let (_, token) = self.credential(acl).await;
        self.authorize(hello(&token)).await.unwrap()
    }

    pub(super) async fn bind(
        &self,
        grant: &SessionGrant,
        want: EndpointRequest,
    ) -> Result<Binding, u16> {
        self.rig
            .control
            .agents
            .bind(grant, &want)
            .await
            .map_err(code)
    }

    async fn labels(&self, grant: &SessionGrant) -> u16 {
        let want = LabelledRequest {
            labels: [("team".to_owned(), "red".to_owned())].into(),
            ..LabelledRequest::default()
        };
        let refused = self.rig.control.agents.bind_labels(grant, &want).await;
        code(refused.unwrap_err())
    }

    pub(super) async fn end(&self, grant: SessionGrant, reason: EndReason) {
        let end = SessionEnd {
            grant: Arc::new(grant),
            reason,
            may_return: true,
        };
        self.rig.control.agents.ended(end).await;
    }

    pub(super) async fn collection(&self, name: &str) -> Vec<Value> {
        let shown = self.rig.get(&format!("/{name}")).await.body();
        shown[name].as_array().unwrap().clone()
    }

    /// Suspends the account.
    pub(super) async fn suspend(&self) {
        let account = &self.rig.admin.account;
        let document = self.rig.store.get(Account::KIND, account).await.unwrap();
        let mut document = document.unwrap();
        let mut stored: Account = stored::read(&document).unwrap();
        stored.suspended = true;
        document.body = stored::write(&stored).unwrap();
        let reported = AuditEvent::Suppress { reason: "a test" };
        let changes = Changes::replace(document, reported);
        self.rig.store.commit(changes).await.unwrap();
    }

    /// Waits for a collection to be empty.
    pub(super) async fn until_empty(&self, name: &str) {
        let is_empty = async || self.collection(name).await.is_empty();
        eventually(&format!("no {name}"), is_empty).await;
    }
}

pub(super) fn code(refusal: Refusal) -> u16 {
    codes::note(refusal.code);
    refusal.code.unwrap().number()
}

pub(super) fn hello(token: &str) -> AgentAuthRequest {
    AgentAuthRequest {
        proof: Proof::Token(Secret::new(token.to_owned())),
        transport: Transport::Muxado,
        former: None,
        about: About {
            version: "3.9".into(),
            user_agent: "agent/3.9".into(),
            os: "linux".into(),
            arch: "amd64".into(),
            metadata: "of the agent".into(),
        },
        peer: SocketAddr::from(([192, 0, 2, 1], 5000)),
        local: SocketAddr::from(([192, 0, 2, 2], 8441)),
        server_name: None,
    }
}

pub(super) fn http(domain: &str) -> EndpointRequest {
    EndpointRequest {
        proto: "https".into(),
        forwards_to: "http://localhost:80".into(),
        options: Options {
            domain: domain.into(),
            ..Options::default()
        },
        ..EndpointRequest::default()
    }
}

fn tcp(addr: &str) -> EndpointRequest {
    EndpointRequest {
        proto: "tcp".into(),
        options: Options {
            addr: addr.into(),
            ..Options::default()
        },
        ..EndpointRequest::default()
    }
}

/// A request to bind the same endpoint again.
pub(super) fn again(want: &EndpointRequest, had: &Binding) -> EndpointRequest {
    EndpointRequest {
        id: had.id.clone(),
        token: had.token.clone(),
        ..want.clone()
    }
}

#[tokio::test]
pub(super) async fn a_refused_agent_gets_the_error_code() {
    let open = Open::start().await;
    let rig = &open.rig;
    let (id, token) = open.credential(json!([])).await;
    let unknown = token::Form::Prefixed.generate(&*rig.clock, &SeededEntropy::new(3));
    for (token, expected) in [
        ("", 4018),
        ("hunter2", 105),
        ("ak_000000000000000000000000000", 105),
        (unknown.reveal(), 107),
        // The token of an API key.
        (rig.token.reveal(), 107),
    ] {
        assert_eq!(open.authorize(hello(token)).await.unwrap_err(), expected);
    }
    let unknown_key = AgentAuthRequest {
        proof: Proof::PublicKey("SHA256:nobody".into()),
        ..hello("")
    };
    assert_eq!(open.authorize(unknown_key).await.unwrap_err(), 1102);
    // Agents without a known account cause no event.
    let (events, seq) = rig.events_after(0).await;
    let sessions = |events: &[Value]| -> Vec<Value> {
        let of_sessions = events.iter().filter(|event| {
            let kind = event["event_type"].as_str().unwrap();
            kind.starts_with("agent_session_")
        });
        of_sessions.cloned().collect()
    };
    assert_eq!(sessions(&events), Vec::<Value>::new());

    let mut long = hello(&token);
    long.about.metadata = "x".repeat(4097);
    assert_eq!(open.authorize(long).await.unwrap_err(), 100);
    let stranger = rig.stranger().await;
    let ingress = json!({"domain": "connect.another.example"});
    let made = rig
        .call(&stranger, "POST", "/agent_ingresses", ingress)
        .await;
    made.body();
    let elsewhere = AgentAuthRequest {
        server_name: Some("connect.another.example".into()),
        ..hello(&token)
    };
    assert_eq!(open.authorize(elsewhere).await.unwrap_err(), 122);
    let policy = rig.ip_policy().await;
    let restriction = json!({"type": "agent", "ip_policy_ids": [policy], "enforced": true});
    let restriction = rig.post("/ip_restrictions", restriction).await.body();
    let path = format!("/ip_restrictions/{}", restriction["id"].as_str().unwrap());
    // The restriction takes effect after a short delay.
    let mut refused = Ok(SessionGrant::default());
    while refused.is_ok() {
        refused = open.authorize(hello(&token)).await;
    }
    assert_eq!(refused.unwrap_err(), 115);
    assert_eq!(rig.delete(&path).await, Answered::NoContent);

    // An account receives the events of its agents.
    let reported = sessions(&rig.events_after(seq).await.0);
    let refused: Vec<&Value> = reported
        .iter()
        .filter(|event| event["object"]["error"] != "")
        .collect();
    assert_eq!(refused.len(), 3, "{reported:?}");
    for event in refused {
        assert_eq!(event["event_type"], "agent_session_start.v0");
        assert_eq!(event["object"]["credential"]["id"], *id);
        assert_eq!(event["principal"]["source"], "Agent");
    }
}

#[tokio::test]
pub(super) async fn sessions_of_a_suspended_account_end() {
    let open = Open::start().await;
    let (_, token) = open.credential(json!([])).await;
    open.suspend().await;
    assert_eq!(open.authorize(hello(&token)).await.unwrap_err(), 103);
}

/// Starts sessions of two credentials concurrently, the same number for each. Returns the started ones, and
/// the codes of the others.
async fn crowd(open: &Open, tokens: [&str; 2], tries: usize) -> (Vec<SessionGrant>, Vec<u16>) {
    let mut asked = JoinSet::new();
    for token in tokens {
        for _ in 0..tries {
            let (control, hello) = (Arc::clone(&open.rig.control), hello(token));
            asked.spawn(async move { AgentAuthorizer::authorize(&*control.agents, hello).await });
        }
    }
    let (mut admitted, mut refused) = (Vec::new(), Vec::new());
    for answer in asked.join_all().await {
        match answer {
            Ok(grant) => admitted.push(grant),
            Err(refusal) => refused.push(code(refusal)),
        }
    }
    (admitted, refused)
}

#[tokio::test(flavor = "multi_thread")]
pub(super) async fn sessions_are_limited_per_credential_account_and_process() {
    let of_credential = AgentLimits {
        sessions_per_credential: 3,
        ..AGENTS
    };
    let of_account = AgentLimits {
        sessions_per_account: 7,
        ..AGENTS
    };
    let of_process = AgentLimits {
        sessions: 5,
        ..AGENTS
    };
    let of_owner = AgentLimits {
        sessions_per_owner: 4,
        ..AGENTS
    };
    for (limits, of_two) in [
        (of_credential, 6),
        (of_owner, 4),
        (of_account, 7),
        (of_process, 5),
    ] {
        let open = Open::with(limits).await;
        let tokens = [
            open.credential(json!([])).await.1,
            open.credential(json!([])).await.1,
        ];
        let (admitted, refused) = crowd(&open, [&tokens[0], &tokens[1]], 6).await;
        assert_eq!(admitted.len(), of_two, "{limits:?}");
        assert_eq!(refused, vec![108; 12 - of_two], "{limits:?}");
        // Resuming a session does not count as another one.
        let first = &admitted[0];
        let back = |token| AgentAuthRequest {
            former: Some(Former {
                session_id: first.session_id.clone(),
                cookie: first.cookie.clone(),
            }),
            ..hello(token)
        };
        let mut again = Vec::new();
        for token in &tokens {
            again.extend(open.authorize(back(token)).await.ok());
        }
        assert_eq!(again.len(), 1, "of its own credential alone");
        assert_eq!(again[0].session_id, first.session_id);
        // A session that ends frees its slot.
        open.end(first.clone(), EndReason::Expired).await;
        let (more, refused) = crowd(&open, [&tokens[0], &tokens[1]], 1).await;
        assert_eq!((more.len(), refused), (1, vec![108]), "{limits:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_and_disconnected_sessions_do_not_block_new_ones() {
    let limits = AgentLimits {
        sessions_per_credential: 3,
        sessions: 5,
        ..AGENTS
    };
    let open = Open::with(limits).await;
    let (_, token) = open.credential(json!([])).await;
    // Sessions that closed end immediately: they are neither listed nor counted.
    for round in 0..4 {
        let mut sessions = Vec::new();
        for _ in 0..3 {
            let admitted = open.authorize(hello(&token)).await;
            sessions.push(admitted.unwrap_or_else(|code| panic!("round {round}: {code}")));
        }
        assert_eq!(open.authorize(hello(&token)).await.unwrap_err(), 108);
        for session in sessions {
            open.end(session, EndReason::Closed).await;
        }
        assert_eq!(open.collection("tunnel_sessions").await.len(), 0);
    }
    // Disconnected sessions wait for their agents as long as there are free slots.
    let back = |grant: &SessionGrant| AgentAuthRequest {
        former: Some(Former {
            session_id: grant.session_id.clone(),
            cookie: grant.cookie.clone(),
        }),
        ..hello(&token)
    };
    let mut away = Vec::new();
    for _ in 0..3 {
        away.push(open.authorize(hello(&token)).await.unwrap());
    }
    for session in &away {
        open.end(session.clone(), EndReason::Lost("cut".into()))
            .await;
    }
    let fresh = open.authorize(hello(&token)).await.unwrap();
    assert_ne!(fresh.session_id, away[0].session_id);
    // The session that was disconnected longest was ended; the others resume, and then no slot is free.
    let mut shown: Vec<Value> = open.collection("tunnel_sessions").await;
    shown.retain(|session| session["id"] == *away[0].session_id);
    assert_eq!(shown, Vec::<Value>::new());
    for session in &away[1..] {
        let again = open.authorize(back(session)).await.unwrap();
        assert_eq!(again.session_id, session.session_id);
    }
    assert_eq!(open.authorize(hello(&token)).await.unwrap_err(), 108);
    assert_eq!(open.authorize(back(&away[0])).await.unwrap_err(), 108);
    // The limit of the process also applies to another credential.
    let (_, other) = open.credential(json!([])).await;
    let others = [(); 2].map(|()| hello(&other));
    for hello in others {
        open.authorize(hello).await.unwrap();
    }
    assert_eq!(open.authorize(hello(&other)).await.unwrap_err(), 108);
    open.end(away[1].clone(), EndReason::Lost("cut".into()))
        .await;
    open.authorize(hello(&other)).await.unwrap();
}

#[tokio::test]
async fn a_session_takes_the_slot_of_a_disconnected_one_that_shares_its_lock() {
    let limits = AgentLimits {
        sessions_per_credential: 1,
        ..AGENTS
    };
    let rig = Rig::with(None, limits).await;
    let open = Open::of(rig).await;
    let (_, token) = open.credential(json!([])).await;
    let mut current = open.authorize(hello(&token)).await.unwrap();
    for _ in 0..3 {
        open.end(current, EndReason::Lost("cut".into())).await;
        let admitted =
            tokio::time::timeout(culvert_testing::PATIENCE, open.authorize(hello(&token)));
        current = admitted.await.expect("it waited for itself").unwrap();
    }
}

/// One owner with many credentials leaves sessions, endpoints and ports for others.
#[tokio::test]
async fn an_owner_cannot_exhaust_the_shared_limits() {
    let open = Open::with(AgentLimits {
        sessions_per_owner: 3,
        endpoints_per_owner: 2,
        ..AGENTS
    })
    .await;
    let (one, other) = (
        Owner::bot(&open, "one").await,
        Owner::bot(&open, "other").await,
    );
    for n in 0..3 {
        let made = open
            .rig
            .call(&one.caller, "POST", "/credentials", Value::Null);
        let token = made.await.body()["token"].as_str().unwrap().to_owned();
        let admitted = open.authorize(hello(&token)).await.map(drop);
        assert_eq!(admitted, if n < 2 { Ok(()) } else { Err(108) });
    }
    open.authorize(hello(&other.token)).await.unwrap();
    for owner in [&one, &other] {
        for n in 0..3 {
            let bound = open.bind(&owner.grant, http("")).await.map(drop);
            assert_eq!(bound, if n < 2 { Ok(()) } else { Err(324) });
        }
    }
    // The pool has three ports, of which one owner has at most two, whatever their use.
    let reserve = async |caller: &Caller| {
        let made = open
            .rig
            .call(caller, "POST", "/reserved_addrs", Value::Null);
        matches!(made.await, Answered::Created(_))
    };
    let take = async |owner: &Owner| owner.take(&open, Kind::Cloud, "tcp://").await.is_ok();
    assert!(reserve(&one.caller).await && take(&one).await);
    assert!(!take(&one).await && !reserve(&one.caller).await);
    assert!(take(&other).await);
    assert!(!reserve(&open.rig.admin).await);
}

/// The limit does not apply to admins.
#[tokio::test]
async fn an_admin_may_bind_every_port() {
    let open = Open::with(AGENTS).await;
    let admin = Owner::of(&open, open.rig.admin.clone()).await;
    for n in 0..4 {
        let taken = admin.take(&open, Kind::Agent, "tcp://").await;
        assert_eq!(taken.is_ok(), n < 3, "{taken:?}");
    }
}

#[tokio::test]
async fn endpoints_are_limited_per_account() {
    let open = Open::with(AgentLimits {
        endpoints_per_account: 3,
        ..AGENTS
    })
    .await;
    let (one, other) = (open.session(json!([])).await, open.session(json!([])).await);
    let first = open.bind(&one, http("")).await.unwrap();
    open.bind(&one, http("")).await.unwrap();
    open.bind(&other, http("")).await.unwrap();
    for grant in [&one, &other] {
        assert_eq!(open.bind(grant, http("")).await.unwrap_err(), 324);
    }
    open.rig.control.agents.unbind(&one, &first.id).await;
    open.bind(&other, http("")).await.unwrap();
    assert_eq!(open.bind(&one, http("")).await.unwrap_err(), 324);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_binds_obey_the_endpoint_limit() {
    let open = Open::with(AgentLimits {
        endpoints_per_account: 5,
        ..AGENTS
    })
    .await;
    let sessions = [open.session(json!([])).await, open.session(json!([])).await];
    let mut asked = JoinSet::new();
    for nth in 0..40 {
        let (control, grant) = (Arc::clone(&open.rig.control), sessions[nth % 2].clone());
        asked.spawn(async move {
            // One bind in four fails, and must not use up a slot permanently.
            let want = http(if nth % 4 == 0 { "foreign.example" } else { "" });
            let bound = AgentAuthorizer::bind(&*control.agents, &grant, &want).await;
            bound.map(|bound| (grant, want, bound)).map_err(code)
        });
    }
    let answers = asked.join_all().await;
    let refused =
        |code: u16| move |answer: &&Result<_, u16>| matches!(answer, Err(it) if *it == code);
    assert!(answers.iter().filter(refused(324)).count() >= 25);
    let mut bound: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
    assert!(bound.len() <= 5, "{}", bound.len());
    while bound.len() < 5 {
        let want = http("");
        let more = open.bind(&sessions[0], want.clone()).await.unwrap();
        bound.push((sessions[0].clone(), want, more));
    }
    assert_eq!(open.collection("endpoints").await.len(), 5);
    assert_eq!(open.bind(&sessions[0], http("")).await.unwrap_err(), 324);
    // Binding an endpoint again does not count as another one.
    let (grant, want, had) = &bound[0];
    let back = open.bind(grant, again(want, had)).await.unwrap();
    assert_eq!(back.id, had.id);
    assert_eq!(open.bind(grant, http("")).await.unwrap_err(), 324);
}

#[tokio::test]
pub(super) async fn invalid_binds_are_refused_with_their_codes() {
    let open = Open::start().await;
    let rig = &open.rig;
    let stranger = rig.stranger().await;
    let reserved = json!({"domain": "another.example"});
    let made = rig
        .call(&stranger, "POST", "/reserved_domains", reserved)
        .await;
    made.body();
    let grant = open.session(json!([])).await;
    let with = |change: fn(&mut EndpointRequest)| {
        let mut want = http("");
        change(&mut want);
        want
    };
    for (want, expected) in [
        (http("*.foreign.example"), 318),
        (http("foreign.example"), 319),
        (http("another.example"), 320),
        (http("a..example"), 326),
        (http("https://u@a.culvert.localhost"), 9037),
        (http("https://a.culvert.localhost:8443"), 9037),
        (http("a.culvert.localhost/x"), 9037),
        (http("https://a.culvert.localhost/"), 9038),
        (http("tcp://a.culvert.localhost:1"), 301),
        (tcp("1.tcp.culvert.localhost:20000"), 307),
        (tcp("a.example"), 307),
        (with(|want| want.options.proxy_proto = 3), 359),
        (with(|want| want.forwards_proto = "http3".into()), 359),
        (
            with(|want| want.options.websocket_tcp_converter = Some(Default::default())),
            359,
        ),
        (with(|want| want.metadata = "x".repeat(4097)), 100),
        (with(|want| want.description = "x".repeat(256)), 18012),
        (with(|want| want.bindings = vec!["nobody".into()]), 15005),
        (with(|want| want.options.traffic_policy = "[]".into()), 2236),
        (
            with(|want| {
                want.id = "ep_000000000000000000000000000".into();
                want.token = "made up".into();
            }),
            335,
        ),
    ] {
        let refused = open.bind(&grant, want.clone()).await;
        assert_eq!(refused.unwrap_err(), expected, "{want:?}");
    }
    assert_eq!(open.labels(&grant).await, 358);
    assert_eq!(open.collection("endpoints").await, Vec::<Value>::new());

    // Bindings that the credential does not allow.
    let address = rig.post("/reserved_addrs", json!({})).await.body();
    let address = address["addr"].as_str().unwrap();
    let few = open.session(json!(["bind:one.culvert.localhost"])).await;
    for (want, expected) in [
        (http("two.culvert.localhost"), 316),
        (http(""), 316),
        (tcp(address), 308),
        (tcp(""), 356),
    ] {
        assert_eq!(open.bind(&few, want).await.unwrap_err(), expected);
    }
    assert_eq!(open.labels(&few).await, 399);
    let allowed = open.bind(&few, http("one.culvert.localhost")).await;
    assert_eq!(allowed.unwrap().url, "https://one.culvert.localhost");
    assert_eq!(
        open.bind(&grant, tcp(address)).await.unwrap().name,
        *address
    );

    // Two endpoints at one URL need pooling.
    let want = http("one.culvert.localhost");
    assert_eq!(open.bind(&grant, want).await.unwrap_err(), 334);
    let pooling = |domain| EndpointRequest {
        pooling_enabled: true,
        ..http(domain)
    };
    let first = open.bind(&grant, pooling("p.culvert.localhost")).await;
    let second = open.bind(&grant, pooling("p.culvert.localhost")).await;
    assert_ne!(first.unwrap().id, second.unwrap().id);
    let alone = open.bind(&grant, http("p.culvert.localhost")).await;
    assert_eq!(alone.unwrap_err(), 334);
}

/// SSH clients get a port before their command is known.
#[tokio::test]
async fn a_tcp_endpoint_gets_the_port_that_was_announced() {
    let open = Open::start().await;
    let grant = open.session(json!([])).await;
    let at = |port| EndpointRequest {
        tcp_port: Some(port),
        ..tcp("")
    };
    let port_of = |had: Binding| -> u16 {
        let (_, port) = had.url.rsplit_once(':').unwrap();
        port.parse().unwrap()
    };
    let next = async || {
        open.rig
            .control
            .agents
            .next_tcp_port(&grant.session_id)
            .await
            .unwrap()
    };
    // Both are announced before the first one binds.
    let (first, mut second) = (next().await.unwrap(), next().await.unwrap());
    for _ in 0..100 {
        if second != first {
            break;
        }
        second = next().await.unwrap();
    }
    for announced in [first, second] {
        let had = open.bind(&grant, at(announced)).await.unwrap();
        assert_eq!(port_of(had), announced);
    }
    // Another endpoint has taken it, or it is not in the pool.
    let last = next().await.unwrap();
    let had = open.bind(&grant, at(first)).await.unwrap();
    assert_eq!(port_of(had), last);
    assert_eq!(next().await, None);
    assert_eq!(open.bind(&grant, at(80)).await.unwrap_err(), 307);
}

#[tokio::test]
async fn a_resumed_session_gets_its_endpoints_back() {
    let open = Open::start().await;
    let (_, token) = open.credential(json!([])).await;
    let grant = open.authorize(hello(&token)).await.unwrap();
    let (_, seq) = open.rig.events_after(0).await;
    let wants = [http(""), tcp("")];
    let mut had = Vec::new();
    for want in &wants {
        had.push(open.bind(&grant, want.clone()).await.unwrap());
    }
    assert!(had[0].url.starts_with("https://"), "{}", had[0].url);
    assert!(had[0].url.ends_with(".culvert.localhost"));
    assert!(had[1].url.starts_with("tcp://1.tcp.culvert.localhost:200"));
    let endpoints = open.collection("endpoints").await;
    let tunnels = open.collection("tunnels").await;
    assert_eq!((endpoints.len(), tunnels.len()), (2, 2));

    // The connection breaks and the agent resumes in time: nothing changes.
    let lost = EndReason::Lost("cut".into());
    open.end(grant.clone(), lost.clone()).await;
    let back = AgentAuthRequest {
        former: Some(Former {
            session_id: grant.session_id.clone(),
            cookie: grant.cookie.clone(),
        }),
        ..hello(&token)
    };
    let same = open.authorize(back.clone()).await.unwrap();
    assert_eq!(same.session_id, grant.session_id);
    for (want, had) in wants.iter().zip(&had) {
        let kept = open.bind(&same, again(want, had)).await.unwrap();
        assert_eq!((&kept.id, &kept.url), (&had.id, &had.url));
    }
    assert_eq!(open.collection("endpoints").await, endpoints);
    // Only the new endpoints have events, and the agent is their author.
    let (reported, seq) = open.rig.events_after(seq).await;
    assert_eq!(reported.len(), 2);
    for event in reported {
        assert_eq!(event["event_type"], "endpoint_created.v0");
        assert_eq!(event["principal"]["source"], "Agent");
        let credential = &event["principal"]["credential"]["uri"];
        assert!(credential.as_str().unwrap().contains("/credentials/cr_"));
    }

    // The agent stays away for longer: its session and endpoints end with events, and are restored when it
    // reconnects.
    let left_at = open.rig.clock.now().whole_seconds();
    open.end(same, lost).await;
    open.rig.clock.advance(std::time::Duration::from_secs(7));
    open.until_empty("tunnel_sessions").await;
    assert_eq!(open.collection("endpoints").await, Vec::<Value>::new());
    assert_eq!(open.collection("tunnels").await, Vec::<Value>::new());
    let (reported, seq) = open.rig.events_after(seq).await;
    let kinds: Vec<_> = reported.iter().map(|event| &event["event_type"]).collect();
    let gone = "endpoint_deleted.v0";
    assert_eq!(kinds, [gone, gone, "agent_session_stop.v0"]);
    assert_eq!(reported[2]["object"]["error"], "transport error: cut");
    assert_eq!(reported[2]["object"]["stopped_at"], left_at.to_string());
    let late = open.authorize(back.clone()).await.unwrap();
    assert_eq!(late.session_id, grant.session_id);
    for (want, had) in wants.iter().zip(&had) {
        let kept = open.bind(&late, again(want, had)).await.unwrap();
        assert_eq!((&kept.id, &kept.url), (&had.id, &had.url));
    }
    let (reported, _) = open.rig.events_after(seq).await;
    assert_eq!(reported[0]["event_type"], "agent_session_start.v0");
    assert_eq!(reported[0]["object"]["error"], "");

    // A cookie of another session starts a new session.
    let (_, other) = open.credential(json!([])).await;
    let other = AgentAuthRequest {
        proof: Proof::Token(Secret::new(other)),
        ..back
    };
    let other = open.authorize(other).await.unwrap();
    assert_ne!(other.session_id, grant.session_id);
    // The token of an endpoint is enough to take the endpoint over.
    let taken = open.bind(&other, again(&wants[0], &had[0])).await.unwrap();
    assert_eq!(taken.url, had[0].url);
    open.rig.control.agents.unbind(&late, &taken.id).await;
    assert_eq!(open.collection("endpoints").await.len(), 2);
    open.rig.control.agents.unbind(&other, &taken.id).await;
    open.rig.control.agents.unbind(&other, &taken.id).await;
    assert_eq!(open.collection("endpoints").await.len(), 1);
}

#[tokio::test]
async fn the_token_of_an_api_key_is_recognised_as_one() {
    let open = Open::start().await;
    let key = open.rig.post("/api_keys", json!({})).await.body();
    let token = key["token"].as_str().unwrap();
    // A wrong token with the same shape gets no such hint.
    let wrong = format!("{}x", &token[..token.len() - 1]);
    for (token, is_hinted) in [(token, true), (&wrong, false)] {
        let agents = &*open.rig.control.agents;
        let refusal = AgentAuthorizer::authorize(agents, hello(token)).await;
        let refusal = refusal.unwrap_err();
        let message = refusal.message.to_string();
        assert_eq!(message.contains("API key token"), is_hinted, "{message}");
        assert_eq!(code(refusal), 107);
    }
}

#[tokio::test]
async fn a_name_of_a_lost_session_is_free_for_its_owner() {
    let open = Open::start().await;
    let first = open.session(json!([])).await;
    let want = http("one.culvert.localhost");
    let had = open.bind(&first, want.clone()).await.unwrap();
    let second = open.session(json!([])).await;
    assert_eq!(open.bind(&second, want.clone()).await.unwrap_err(), 334);
    // The first session has no connection any more, though it could resume.
    open.end(first, EndReason::Closed).await;
    let taken = open.bind(&second, want).await.unwrap();
    assert_ne!(taken.id, had.id);
    assert_eq!(open.collection("endpoints").await.len(), 1);
}

#[tokio::test]
async fn an_agent_changes_only_its_own_endpoint() {
    let open = Open::start().await;
    let grant = open.session(json!([])).await;
    let bound = open.bind(&grant, http("")).await.unwrap();
    let change = PatchRequest {
        tunnel_id: bound.id.clone(),
        name: Some("named".into()),
        description: Some("described".into()),
        metadata: Some("changed".into()),
        pooling_enabled: Some(true),
        traffic_policy: Some(r#"{"on_http_request":[{"actions":[{"type":"deny"}]}]}"#.into()),
    };
    open.rig
        .control
        .agents
        .patch(&grant, &change)
        .await
        .unwrap();
    let shown = open.collection("endpoints").await.remove(0);
    for (field, expected) in [
        ("name", json!("named")),
        ("description", json!("described")),
        ("metadata", json!("changed")),
        ("pooling_enabled", json!(true)),
        ("traffic_policy", json!(change.traffic_policy)),
    ] {
        assert_eq!(shown[field], expected);
    }
    assert_eq!(open.collection("tunnels").await[0]["metadata"], "changed");
    let other = open.session(json!([])).await;
    let refused = open.rig.control.agents.patch(&other, &change).await;
    assert_eq!(code(refused.unwrap_err()), 333);
}

#[tokio::test]
pub(super) async fn sessions_of_a_deleted_credential_end() {
    let open = Open::start().await;
    let (id, token) = open.credential(json!([])).await;
    let grant = open.authorize(hello(&token)).await.unwrap();
    open.bind(&grant, http("")).await.unwrap();
    let (_, seq) = open.rig.events_after(0).await;
    let path = format!("/credentials/{id}");
    assert_eq!(open.rig.delete(&path).await, Answered::NoContent);
    assert_eq!(open.bind(&grant, http("")).await.unwrap_err(), 300);
    open.until_empty("tunnel_sessions").await;
    open.until_empty("endpoints").await;
    let (reported, _) = open.rig.events_after(seq).await;
    assert_eq!(reported[0]["event_type"], "tunnel_credential_deleted.v0");
    assert_eq!(reported[1]["event_type"], "endpoint_deleted.v0");
    assert_eq!(reported[2]["event_type"], "agent_session_stop.v0");
    assert_eq!(reported[2]["object"]["error"], "credential deleted");
    assert_eq!(reported[2]["principal"]["id"], *open.rig.admin.owner_id);
    assert_eq!(open.authorize(hello(&token)).await.unwrap_err(), 107);
}

#[tokio::test]
async fn sessions_of_an_inactive_owner_end() {
    let open = Open::start().await;
    let rig = &open.rig;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let body = json!({"owner_id": bot["id"]});
    let made = rig.post("/credentials", body).await.body();
    let token = made["token"].as_str().unwrap();
    let grant = open.authorize(hello(token)).await.unwrap();
    open.bind(&grant, http("")).await.unwrap();
    let path = format!("/bot_users/{}", bot["id"].as_str().unwrap());
    let (_, seq) = rig.events_after(0).await;
    rig.patch(&path, json!({"active": false})).await.body();
    open.until_empty("tunnel_sessions").await;
    open.until_empty("endpoints").await;
    let (reported, _) = rig.events_after(seq).await;
    assert_eq!(reported[0]["event_type"], "bot_user_updated.v0");
    assert_eq!(reported[0]["previous"], json!({"active": true}));
    assert_eq!(reported[1]["event_type"], "endpoint_deleted.v0");
    assert_eq!(reported[2]["event_type"], "agent_session_stop.v0");
    assert_eq!(reported[2]["object"]["error"], "owner inactive");
    rig.patch(&path, json!({"active": true})).await.body();
    open.authorize(hello(token)).await.unwrap();
}

/// Events about an old agent contain a notice, and the references in events resolve.
#[tokio::test]
async fn events_of_old_agents_recommend_an_upgrade() {
    for (version, transport, is_old) in [
        ("3.4.9", Transport::Muxado, true),
        ("v2.99.1-beta", Transport::Muxado, true),
        ("3", Transport::Muxado, true),
        ("3.5.0", Transport::Muxado, false),
        ("3.5", Transport::Muxado, false),
        ("3.10.0", Transport::Muxado, false),
        ("4", Transport::Muxado, false),
        ("", Transport::Muxado, false),
        ("unknown", Transport::Muxado, false),
        ("1.0", Transport::Ssh, false),
    ] {
        let open = Open::start().await;
        let (_, token) = open.credential(json!([])).await;
        let mut hello = hello(&token);
        hello.about.version = version.into();
        hello.transport = transport;
        let (_, seq) = open.rig.events_after(0).await;
        let grant = open.authorize(hello).await.unwrap();
        let warned = grant
            .deprecation
            .as_ref()
            .map(|warning| &warning.next_date[..]);
        assert_eq!(
            warned,
            is_old.then_some("2027-01-31T00:00:00Z"),
            "{version}"
        );
        open.end(grant, EndReason::Closed).await;
        open.until_empty("tunnel_sessions").await;
        let (reported, _) = open.rig.events_after(seq).await;
        assert_eq!(reported.len(), 2);
        for event in reported {
            let expected = match is_old {
                true => json!({
                    "upcoming_minimum_version": "3.5.0",
                    "upcoming_enforcement_date": "2027-01-31",
                    "message": "Update the agent.",
                }),
                false => Value::Null,
            };
            assert_eq!(event["object"]["deprecated"], expected, "{version}");
            for uri in [
                &event["object"]["session"]["uri"],
                &event["object"]["credential"]["uri"],
                &event["principal"]["credential"]["uri"],
            ] {
                assert!(uri.as_str().unwrap().starts_with("http"), "{uri}");
            }
        }
    }
}

/// A stored session without a connected agent.
pub(super) async fn recorded(rig: &Rig, run: &str, transport: &str) -> String {
    let form = json!({
        "format": 1, "agent_version": "3.9", "credential_id": "cr_1",
        "principal_id": rig.admin.owner_id, "principal_subject": "ann@x.example",
        "ip": "192.0.2.1", "ingress_server_ip": "192.0.2.2", "ingress_hostname": "",
        "user_agent": "", "metadata": "", "os": "", "arch": "", "region": "",
        "transport": transport, "run": run,
    });
    let account = rig.admin.account.clone();
    rig.insert("tunnel_session", "ts", &account, &form, Vec::new())
        .await
}

#[tokio::test]
pub(super) async fn unsupported_agent_operations_are_refused() {
    let rig = Rig::start().await;
    let run = rig.control.agents.agents.as_ref().unwrap().run.clone();
    let elsewhere = recorded(&rig, "agrun_1", "muxado").await;
    let gone = recorded(&rig, &run, "muxado").await;
    let ssh = recorded(&rig, &run, "ssh").await;
    for (id, operation, expected) in [
        (&elsewhere, "stop", 810),
        (&gone, "stop", 810),
        (&gone, "restart", 810),
        (&gone, "update", 810),
        (&ssh, "restart", 1122),
        (&ssh, "update", 1121),
        (&ssh, "stop", 810),
    ] {
        let path = format!("/tunnel_sessions/{id}/{operation}");
        let answered = rig.post(&path, json!({})).await;
        assert_eq!(answered.code(), Some(expected), "{path}");
    }
    let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
    let path = format!("/tunnel_sessions/{ssh}/stop");
    let unseen = rig.call(&reader, "POST", &path, Value::Null).await;
    assert!(unseen.is_absent(), "{unseen:?}");
}

/// What an endpoint of the API can set, one of an agent can too.
#[tokio::test]
async fn an_agent_sets_slashes_and_timeouts_of_its_endpoint() {
    let open = Open::start().await;
    let grant = open.session(json!([])).await;
    let mut want = http("slashes.culvert.localhost");
    want.options.merge_slashes = Some(false);
    want.options.timeouts.first_byte = "90s".into();
    want.options.timeouts.idle = "1h".into();
    let bound = open.bind(&grant, want).await.unwrap();
    let shown = open
        .rig
        .get(&format!("/endpoints/{}", bound.id))
        .await
        .body();
    assert_eq!(shown["merge_slashes"], false);
    assert_eq!(shown["timeouts"]["first_byte"], "90s");
    assert_eq!(shown["timeouts"]["idle"], "1h");
    for time in ["10ms", "x", "169h"] {
        let mut wrong = http("wrong.culvert.localhost");
        wrong.options.timeouts.idle = time.into();
        assert_eq!(open.bind(&grant, wrong).await.unwrap_err(), 359, "{time}");
    }
}
