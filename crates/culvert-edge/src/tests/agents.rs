//! Endpoints of agents. A fake port opens streams in place of the component with the agents' connections.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use culvert_base::BoxFuture;
use culvert_policy::Scheme;
use tokio::io::{AsyncRead, DuplexStream, ReadBuf};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::events;
use super::harness::*;
use super::traces::{clients, taken, text};
use crate::{
    AgentCall, AgentIo, AgentPlace, AgentRefused, Clients, Dial, Endpoint, Inherited, Protocol,
    ProxyVersion, Settings, Snapshot, Upstream,
};

/// The behaviour of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agent {
    /// Responds to each request with the id of its endpoint.
    Serves,
    /// Echoes what it receives.
    Echoes,
    /// Reads a request and ends the stream.
    SaysNothing,
    /// Refuses every stream, which the edge notices when it reads.
    Refuses,
    /// Refuses the next stream and serves later ones.
    RefusesOne,
    /// Is not at its last known place for the next stream, and then serves.
    MovesOnce,
    /// Loses its connection with the next stream, and then serves on another.
    LostOnce,
    /// Is gone, unnoticed.
    IsGone,
    /// Is gone.
    IsAway,
    Busy,
    /// Its connection carries nothing, as is known.
    IsSilent,
    /// Its connection carries nothing, as the edge learns while it waits.
    FallsSilent,
}

#[derive(Debug)]
struct Agents {
    of: Mutex<BTreeMap<&'static str, Agent>>,
    /// Endpoint and client of each stream.
    dialled: Mutex<Vec<(String, Option<SocketAddr>)>>,
    tasks: Mutex<JoinSet<()>>,
    may_rest: bool,
    /// Number of streams that were ended in order.
    ended: Arc<AtomicUsize>,
    /// Changes when an agent has capacity again.
    room: watch::Sender<()>,
    queued: watch::Sender<usize>,
    /// Whether agents that are away may reconnect soon.
    return_soon: AtomicBool,
}

impl Agents {
    fn new(of: &[(&'static str, Agent)]) -> Arc<Self> {
        Arc::new(Self {
            of: Mutex::new(of.iter().copied().collect()),
            dialled: Mutex::default(),
            tasks: Mutex::default(),
            may_rest: true,
            ended: Arc::default(),
            room: watch::Sender::default(),
            queued: watch::Sender::default(),
            return_soon: AtomicBool::new(false),
        })
    }

    fn set(&self, id: &'static str, agent: Agent) {
        self.of.lock().unwrap().insert(id, agent);
        self.room.send_replace(());
    }

    fn take_dialled(&self) -> Vec<String> {
        let dialled = std::mem::take(&mut *self.dialled.lock().unwrap());
        dialled.into_iter().map(|(id, _)| id).collect()
    }
}

/// One side of a stream.
#[derive(Debug)]
struct Near {
    io: DuplexStream,
    fails: Option<Agent>,
    may_rest: bool,
    ended: Arc<AtomicUsize>,
}

impl AgentIo for Near {
    fn set_idle(&mut self) -> bool {
        self.may_rest
    }

    fn end(&mut self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl AsyncRead for Near {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let reset = io::ErrorKind::ConnectionReset;
        match self.fails {
            None => {}
            Some(Agent::LostOnce) => {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            Some(Agent::FallsSilent) => {
                let silent = io::Error::new(io::ErrorKind::TimedOut, AgentRefused::Silent);
                return Poll::Ready(Err(silent));
            }
            Some(Agent::MovesOnce) => {
                return Poll::Ready(Err(io::Error::new(reset, AgentRefused::Away)));
            }
            Some(_) => return Poll::Ready(Err(io::Error::new(reset, AgentRefused::Busy))),
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

culvert_io::delegate_io!(AsyncWrite for Near { Self { io, .. } => io });

impl Dial for Agents {
    fn dial(&self, call: &AgentCall<'_>) -> Result<Box<dyn AgentIo>, AgentRefused> {
        let mut of = self.of.lock().unwrap();
        let (near, far) = tokio::io::duplex(64 << 10);
        let agent = of.get_mut(call.endpoint);
        let fails;
        match agent {
            None | Some(Agent::IsAway | Agent::IsGone) => return Err(AgentRefused::Away),
            Some(Agent::Busy) => return Err(AgentRefused::Busy),
            Some(Agent::IsSilent) => return Err(AgentRefused::Silent),
            Some(agent) => {
                let id = call.endpoint.to_owned();
                self.dialled.lock().unwrap().push((id.clone(), call.client));
                let is_once = matches!(
                    agent,
                    Agent::RefusesOne | Agent::MovesOnce | Agent::LostOnce
                );
                let is_never = matches!(agent, Agent::Refuses | Agent::FallsSilent);
                fails = (is_once || is_never).then_some(*agent);
                self.tasks.lock().unwrap().spawn(serve(far, *agent, id));
                if is_once {
                    *agent = Agent::Serves;
                }
            }
        }
        Ok(Box::new(Near {
            io: near,
            fails,
            may_rest: self.may_rest,
            ended: Arc::clone(&self.ended),
        }))
    }

    fn dial_in_turn<'a>(
        &'a self,
        call: AgentCall<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn AgentIo>, AgentRefused>> {
        Box::pin(async move {
            let mut room = self.room.subscribe();
            match self.dial(&call) {
                Err(AgentRefused::Busy) => {}
                opened => return opened,
            }
            self.queued.send_modify(|queued| *queued += 1);
            drop(tokio::time::timeout(PATIENCE, room.changed()).await);
            self.dial(&call)
        })
    }

    fn is_online(&self, endpoint: &str) -> bool {
        let of = self.of.lock().unwrap();
        of.get(endpoint)
            .is_some_and(|agent| *agent != Agent::IsAway)
    }

    fn may_return(&self, endpoint: &str) -> bool {
        self.return_soon.load(Ordering::Relaxed) && !self.is_online(endpoint)
    }

    fn place(&self, endpoint: &str) -> AgentPlace {
        AgentPlace {
            session: Some(format!("session of {endpoint}")),
            node: None,
        }
    }
}

/// How long the fake port lets callers wait; tests that expect no change wait for all of it.
const PATIENCE: Duration = Duration::from_secs(1);

async fn serve(stream: DuplexStream, agent: Agent, id: String) {
    let mut client = Client::new(stream);
    if agent == Agent::Echoes {
        while client.more().await {
            let bytes = std::mem::take(&mut client.read);
            client.send(bytes).await;
        }
        return;
    }
    while client.request().await.is_some() {
        if agent == Agent::SaysNothing {
            return;
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{id}",
            id.len()
        );
        client.send(answer).await;
    }
}

fn endpoint_of(id: &str, scheme: Scheme, host: &str, proxy: Option<ProxyVersion>) -> Endpoint {
    Endpoint {
        id: id.into(),
        upstream: Some(Upstream::agent(
            id,
            scheme,
            Protocol::Http1,
            proxy,
            Clients::Apart,
        )),
        ..endpoint(scheme, host, 80, "http://127.0.0.1:1", "")
    }
}

/// An endpoint whose agent forwards streams to a service.
fn forwarding(id: &str) -> Endpoint {
    let (scheme, clients) = (Scheme::Http, Clients::Shared);
    Endpoint {
        upstream: Some(Upstream::agent(id, scheme, Protocol::Http1, None, clients)),
        ..endpoint_of(id, scheme, "app.example", None)
    }
}

async fn rig(agents: &Arc<Agents>, endpoints: Vec<Endpoint>) -> Rig {
    let rig = Rig::with(Settings {
        agents: Some(Arc::clone(agents) as _),
        ..settings()
    })
    .await;
    let snapshot = endpoints
        .into_iter()
        .fold(Snapshot::builder(), |snapshot, one| snapshot.endpoint(one));
    rig.edge.publish(snapshot.build()).await;
    rig
}

const REQUEST: &str = "GET / HTTP/1.1\r\nhost: app.example\r\n\r\n";
const UPLOAD: &str = "POST / HTTP/1.1\r\nhost: app.example\r\ncontent-length: 1\r\n\r\nx";

#[tokio::test]
async fn a_stream_is_reused_only_by_the_same_client() {
    let agents = Agents::new(&[("ep_a", Agent::Serves)]);
    let endpoints = vec![endpoint_of("ep_a", Scheme::Http, "app.example", None)];
    let rig = rig(&agents, endpoints).await;
    for _ in 0..2 {
        let mut client = rig.connect().await;
        for _ in 0..3 {
            client.send(REQUEST).await;
            assert_eq!(client.answer("GET").await.text(), "ep_a");
        }
        let own = client.stream.local_addr().unwrap();
        let dialled = std::mem::take(&mut *agents.dialled.lock().unwrap());
        assert_eq!(dialled, [("ep_a".to_owned(), Some(own))]);
    }
    let reused: Vec<_> = rig
        .recorder
        .events(7)
        .await
        .iter()
        .map(|event| event["object"]["backend"]["connection_reused"].clone())
        .filter(|reused| !reused.is_null())
        .collect();
    assert_eq!(reused, [false, true, true, false, true, true]);
}

#[tokio::test]
async fn attempts_at_agents_are_traced() {
    let agents = Agents::new(&[("ep_a", Agent::RefusesOne), ("ep_b", Agent::IsAway)]);
    let (traced, tracer) = super::traces::all();
    let rig = Rig::with(Settings {
        agents: Some(Arc::clone(&agents) as _),
        ..traced
    })
    .await;
    let snapshot = Snapshot::builder()
        .endpoint(forwarding("ep_a"))
        .endpoint(endpoint_of("ep_b", Scheme::Http, "away.example", None));
    rig.edge.publish(snapshot.build()).await;
    assert_eq!(rig.ask(REQUEST).await.status, 200);
    let trace = taken(&tracer, 1).await.remove(0);
    let attempts = clients(&trace);
    let errors: Vec<String> = attempts.iter().map(|it| text(it, "error.type")).collect();
    assert_eq!(errors, ["agent_busy", ""]);
    for attempt in attempts {
        assert_eq!(text(attempt, "culvert.agent.endpoint.id"), "ep_a");
        let session = text(attempt, "culvert.agent.session.id");
        assert_eq!(session, "session of ep_a");
    }
    let away = REQUEST.replace("app.example", "away.example");
    assert_eq!(rig.ask(&away).await.status, 404);
    let trace = taken(&tracer, 1).await.remove(0);
    assert_eq!(text(clients(&trace)[0], "error.type"), "agent_away");
}

#[tokio::test]
async fn clients_share_streams_if_the_agent_needs_no_client_address() {
    let agents = Agents::new(&[("ep_a", Agent::Serves)]);
    let rig = rig(&agents, vec![forwarding("ep_a")]).await;
    // Clients that stay connected, with one request at a time among them.
    let mut kept = Vec::new();
    for _ in 0..50 {
        kept.push(rig.connect().await);
    }
    for _ in 0..3 {
        for client in &mut kept {
            client.send(REQUEST).await;
            assert_eq!(client.answer("GET").await.text(), "ep_a");
        }
    }
    // Each thread of the edge keeps its own streams.
    let dialled = std::mem::take(&mut *agents.dialled.lock().unwrap());
    assert!(dialled.len() <= 8, "{dialled:?}");
    assert!(dialled.iter().all(|(_, client)| client.is_none()));
}

#[test]
fn services_that_need_the_client_address_get_a_stream_per_client() {
    let schemes = [Scheme::Http, Scheme::Https, Scheme::Tcp, Scheme::Tls];
    let protocols = [Protocol::Http1, Protocol::Http2];
    let proxies = [None, Some(ProxyVersion::One), Some(ProxyVersion::Two)];
    for scheme in schemes {
        for protocol in protocols {
            for proxy in proxies {
                for clients in [Clients::Apart, Clients::Shared] {
                    let upstream = Upstream::agent("ep_a", scheme, protocol, proxy, clients);
                    let shares = clients == Clients::Shared && scheme.is_http() && proxy.is_none();
                    assert_eq!(upstream.keeps_clients_apart(), !shares, "{upstream:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_request_to_a_busy_agent_waits_for_a_stream() {
    let agents = Agents::new(&[("ep_a", Agent::Busy)]);
    let rig = rig(&agents, vec![forwarding("ep_a")]).await;
    let mut client = rig.connect().await;
    client.send(UPLOAD).await;
    let mut queued = agents.queued.subscribe();
    queued.wait_for(|queued| *queued == 1).await.unwrap();
    agents.set("ep_a", Agent::Serves);
    assert_eq!(client.answer("POST").await.text(), "ep_a");
}

#[tokio::test]
async fn a_refused_stream_is_opened_again_or_answered_as_retryable() {
    let mut agents = Agents::new(&[("ep_a", Agent::RefusesOne)]);
    // Keeps no streams, so that every request asks the agent.
    Arc::get_mut(&mut agents).unwrap().may_rest = false;
    let rig = rig(&agents, vec![forwarding("ep_a")]).await;
    assert_eq!(rig.ask(REQUEST).await.text(), "ep_a");
    assert_eq!(agents.take_dialled().len(), 2);
    // The client's body is lost: the client may retry.
    agents.set("ep_a", Agent::Refuses);
    let mut client = rig.connect().await;
    client.send(UPLOAD).await;
    let head = client.head().await.unwrap();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(head.contains("\r\nretry-after: 1\r\n"), "{head}");
}

#[tokio::test]
async fn a_stream_that_is_not_pooled_ends_cleanly_after_its_response() {
    let mut agents = Agents::new(&[("ep_a", Agent::Serves)]);
    Arc::get_mut(&mut agents).unwrap().may_rest = false;
    let rig = rig(&agents, vec![forwarding("ep_a")]).await;
    for served in 1..4 {
        assert_eq!(rig.ask(REQUEST).await.text(), "ep_a");
        let ended = async {
            while agents.ended.load(Ordering::Relaxed) < served {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ended)
            .await
            .expect("the stream is ended");
    }
}

#[tokio::test]
async fn streams_of_a_nearly_full_agent_end_with_their_request() {
    let mut agents = Agents::new(&[("ep_a", Agent::Serves)]);
    Arc::get_mut(&mut agents).unwrap().may_rest = false;
    let endpoints = vec![endpoint_of("ep_a", Scheme::Http, "app.example", None)];
    let rig = rig(&agents, endpoints).await;
    let mut client = rig.connect().await;
    for _ in 0..3 {
        client.send(REQUEST).await;
        assert_eq!(client.answer("GET").await.status, 200);
    }
    assert_eq!(agents.take_dialled().len(), 3);
}

#[tokio::test]
async fn unreachable_busy_and_silent_agents_have_distinct_error_codes() {
    let agents = Agents::new(&[]);
    let endpoints = vec![endpoint_of("ep_a", Scheme::Http, "app.example", None)];
    let rig = rig(&agents, endpoints).await;
    for (agent, status, code) in [
        (Agent::IsAway, 404, "ERR_NGROK_3200"),
        (Agent::IsGone, 404, "ERR_NGROK_3200"),
        (Agent::Busy, 503, "ERR_NGROK_3621"),
        (Agent::SaysNothing, 502, "ERR_NGROK_8012"),
        (Agent::IsSilent, 503, "ERR_NGROK_3623"),
        (Agent::FallsSilent, 503, "ERR_NGROK_3623"),
    ] {
        agents.set("ep_a", agent);
        let before = rig.recorder.count();
        let mut client = rig.connect().await;
        client.send(REQUEST).await;
        let head = client.head().await.unwrap();
        let page = client.body(&head).await.unwrap().0.len() as u64;
        drop(client);
        let reported = |name: &str| {
            let mut lines = head.split("\r\n");
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{agent:?}"
        );
        assert_eq!(reported("ngrok-error-code"), Some(code));
        let retry = (status == 503).then_some("1");
        assert_eq!(reported("retry-after"), retry);
        let events = rig.recorder.events(before + 2).await;
        let object = events::whole(&rig, REQUEST, Some(&head), [0, page]);
        assert_eq!(events::reported(&events[before]), object, "{agent:?}");
    }
}

#[tokio::test]
async fn agents_at_one_address_share_load_and_fail_over() {
    let agents = Agents::new(&[("ep_a", Agent::Serves), ("ep_b", Agent::Serves)]);
    let endpoints = ["ep_a", "ep_b"]
        .map(|id| endpoint_of(id, Scheme::Http, "app.example", None))
        .to_vec();
    let rig = rig(&agents, endpoints).await;
    for _ in 0..10 {
        assert_eq!(rig.ask(REQUEST).await.status, 200);
    }
    let mut dialled = agents.take_dialled();
    dialled.sort();
    assert_eq!(dialled, [["ep_a"; 5], ["ep_b"; 5]].concat());

    // Known to be gone, gone unnoticed, full, or lost with the request: the other agent serves it.
    for state in [
        Agent::IsAway,
        Agent::IsGone,
        Agent::Busy,
        Agent::Refuses,
        Agent::SaysNothing,
    ] {
        agents.set("ep_a", state);
        for _ in 0..4 {
            assert_eq!(rig.ask(REQUEST).await.text(), "ep_b", "{state:?}");
        }
    }
    // Requests that must not be repeated are not repeated after an agent accepted them.
    let mut statuses = Vec::new();
    for _ in 0..2 {
        statuses.push(rig.ask(UPLOAD).await.status);
    }
    statuses.sort();
    assert_eq!(statuses, [200, 502]);
    agents.set("ep_a", Agent::IsGone);
    for _ in 0..4 {
        assert_eq!(rig.ask(UPLOAD).await.text(), "ep_b");
    }
}

#[tokio::test]
async fn tcp_bytes_pass_and_the_service_gets_the_client_address() {
    let agents = Agents::new(&[("ep_a", Agent::Echoes)]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::with(Settings {
        agents: Some(Arc::clone(&agents) as _),
        inherited: Inherited::new(vec![listener]),
        ..settings()
    })
    .await;
    let mut endpoint = endpoint_of("ep_a", Scheme::Tcp, "tcp.example", Some(ProxyVersion::One));
    endpoint.port = port;
    let snapshot = Snapshot::builder().endpoint(endpoint).build();
    rig.edge.publish(snapshot).await;
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .unwrap();
    let own = stream.local_addr().unwrap();
    let mut client = Client::new(stream);
    let header = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {port}\r\n", own.port());
    let reported = client.take(header.len()).await.unwrap();
    assert_eq!(String::from_utf8(reported).unwrap(), header);
    client.send(b"over").await;
    assert_eq!(client.take(4).await.unwrap(), b"over");
}

#[tokio::test]
async fn a_tcp_stream_that_an_agent_refuses_fails_over_to_another() {
    let agents = Agents::new(&[("ep_a", Agent::RefusesOne), ("ep_b", Agent::Refuses)]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::with(Settings {
        agents: Some(Arc::clone(&agents) as _),
        inherited: Inherited::new(vec![listener]),
        ..settings()
    })
    .await;
    let endpoint_of = |id| Endpoint {
        port,
        ..endpoint_of(id, Scheme::Tcp, "tcp.example", None)
    };
    let connect = async || {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port));
        Client::new(stream.await.unwrap())
    };
    // The same agent accepts the next stream.
    let one = Snapshot::builder().endpoint(endpoint_of("ep_a"));
    rig.edge.publish(one.build()).await;
    let mut client = connect().await;
    client.send(REQUEST).await;
    assert_eq!(client.answer("GET").await.text(), "ep_a");
    assert_eq!(agents.take_dialled(), ["ep_a", "ep_a"]);
    // One stays full, and the other does not.
    let both = ["ep_a", "ep_b"].map(endpoint_of);
    let both = both
        .into_iter()
        .fold(Snapshot::builder(), |all, it| all.endpoint(it));
    rig.edge.publish(both.build()).await;
    for _ in 0..4 {
        let mut client = connect().await;
        client.send(REQUEST).await;
        assert_eq!(client.answer("GET").await.text(), "ep_a");
    }
    // Data that a client sends late is not lost, even if no more follows.
    agents.set("ep_a", Agent::Echoes);
    let mut client = connect().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.send(b"late").await;
    assert_eq!(client.take(4).await.unwrap(), b"late");
    assert!(agents.take_dialled().contains(&"ep_b".to_owned()));
}

#[tokio::test]
async fn a_request_finds_an_agent_that_moved_or_reconnected() {
    for fails in [Agent::MovesOnce, Agent::LostOnce] {
        let mut agents = Agents::new(&[("ep_a", fails)]);
        Arc::get_mut(&mut agents).unwrap().may_rest = false;
        let rig = rig(&agents, vec![forwarding("ep_a")]).await;
        assert_eq!(rig.ask(REQUEST).await.text(), "ep_a", "{fails:?}");
        assert_eq!(agents.take_dialled().len(), 2);
        // Requests that may have been processed, or whose body is lost, are not sent again.
        agents.set("ep_a", fails);
        let mut client = rig.connect().await;
        client.send(UPLOAD).await;
        let head = client.head().await.unwrap();
        assert!(!head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(agents.take_dialled().len(), 1);
    }
}

#[tokio::test]
async fn a_request_waits_for_an_agent_that_is_reconnecting() {
    let agents = Agents::new(&[("ep_1", Agent::IsAway)]);
    let one = endpoint_of("ep_1", Scheme::Http, "app.example", None);
    let rig = rig(&agents, vec![one]).await;
    // Without a reason to wait, the response comes immediately.
    assert_eq!(rig.ask(REQUEST).await.status, 404);

    agents.return_soon.store(true, Ordering::Relaxed);
    let returns = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        agents.set("ep_1", Agent::Serves);
    };
    let (answer, ()) = tokio::join!(rig.ask(REQUEST), returns);
    assert_eq!((answer.status, answer.body), (200, b"ep_1".to_vec()));

    // The full time is waited for an agent that does not reconnect.
    agents.set("ep_1", Agent::IsAway);
    let gives_up = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        agents.return_soon.store(false, Ordering::Relaxed);
    };
    let (answer, ()) = tokio::join!(rig.ask(REQUEST), gives_up);
    assert_eq!(answer.status, 404);
}
