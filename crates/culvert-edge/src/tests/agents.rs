//! Endpoints of agents: a port that opens streams stands in for whoever has the connections of agents.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::DuplexStream;
use tokio::task::JoinSet;

use super::events;
use super::harness::*;
use crate::{
    AgentCall, AgentRefused, AgentStream, Dial, Endpoint, Inherited, Protocol, ProxyVersion,
    Scheme, Settings, Snapshot, Upstream,
};

/// What an agent does with streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agent {
    /// Answers each request with the id of its endpoint.
    Serves,
    /// Sends back what comes.
    Echoes,
    /// Reads a request and ends the stream.
    SaysNothing,
    /// Is gone, and nobody noticed.
    IsGone,
    /// Is gone.
    IsAway,
    Busy,
}

#[derive(Debug)]
struct Agents {
    of: Mutex<BTreeMap<&'static str, Agent>>,
    /// Endpoint and client of each stream.
    dialled: Mutex<Vec<(String, SocketAddr)>>,
    tasks: Mutex<JoinSet<()>>,
    may_rest: bool,
}

impl Agents {
    fn new(of: &[(&'static str, Agent)]) -> Arc<Self> {
        Arc::new(Self {
            of: Mutex::new(of.iter().copied().collect()),
            dialled: Mutex::default(),
            tasks: Mutex::default(),
            may_rest: true,
        })
    }

    fn set(&self, id: &'static str, agent: Agent) {
        self.of.lock().unwrap().insert(id, agent);
    }

    fn take_dialled(&self) -> Vec<String> {
        let dialled = std::mem::take(&mut *self.dialled.lock().unwrap());
        dialled.into_iter().map(|(id, _)| id).collect()
    }
}

impl Dial for Agents {
    fn dial(&self, call: &AgentCall<'_>) -> Result<AgentStream, AgentRefused> {
        let agent = self.of.lock().unwrap().get(call.endpoint).copied();
        let (near, far) = tokio::io::duplex(64 << 10);
        match agent {
            None | Some(Agent::IsAway | Agent::IsGone) => return Err(AgentRefused::Away),
            Some(Agent::Busy) => return Err(AgentRefused::Busy),
            Some(agent) => {
                let id = call.endpoint.to_owned();
                self.dialled.lock().unwrap().push((id.clone(), call.client));
                self.tasks.lock().unwrap().spawn(serve(far, agent, id));
            }
        }
        Ok(AgentStream {
            io: Box::new(near),
            may_rest: self.may_rest,
        })
    }

    fn is_online(&self, endpoint: &str) -> bool {
        let of = self.of.lock().unwrap();
        of.get(endpoint)
            .is_some_and(|agent| *agent != Agent::IsAway)
    }
}

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
        upstream: Some(Upstream::agent(id, scheme, Protocol::Http1, proxy)),
        ..endpoint(scheme, host, 80, "http://127.0.0.1:1", "")
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
async fn a_stream_carries_the_requests_of_one_client_and_of_no_other() {
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
        assert_eq!(dialled, [("ep_a".to_owned(), own)]);
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
async fn where_an_agent_has_little_room_its_streams_end_with_their_request() {
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
async fn an_agent_that_is_away_busy_or_silent_has_an_answer_of_its_own() {
    let agents = Agents::new(&[]);
    let endpoints = vec![endpoint_of("ep_a", Scheme::Http, "app.example", None)];
    let rig = rig(&agents, endpoints).await;
    for (agent, status, code) in [
        (Agent::IsAway, 404, "ERR_NGROK_3200"),
        (Agent::IsGone, 404, "ERR_NGROK_3200"),
        (Agent::Busy, 503, "ERR_NGROK_3621"),
        (Agent::SaysNothing, 502, "ERR_NGROK_8012"),
    ] {
        agents.set("ep_a", agent);
        let before = rig.recorder.count();
        let mut client = rig.connect().await;
        client.send(REQUEST).await;
        let head = client.head().await.unwrap();
        let page = client.body(&head).await.unwrap().0.len() as u64;
        drop(client);
        let told = |name: &str| {
            let mut lines = head.split("\r\n");
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{agent:?}"
        );
        assert_eq!(told("ngrok-error-code"), Some(code));
        let retry = (agent == Agent::Busy).then_some("1");
        assert_eq!(told("retry-after"), retry);
        let events = rig.recorder.events(before + 2).await;
        let object = events::whole(&rig, REQUEST, Some(&head), [0, page]);
        assert_eq!(events::told(&events[before]), object, "{agent:?}");
    }
}

#[tokio::test]
async fn agents_at_one_address_share_the_load_and_stand_in_for_each_other() {
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

    // Known to be gone, gone unnoticed, too busy, or gone with the request: the other one serves it.
    for state in [
        Agent::IsAway,
        Agent::IsGone,
        Agent::Busy,
        Agent::SaysNothing,
    ] {
        agents.set("ep_a", state);
        for _ in 0..4 {
            assert_eq!(rig.ask(REQUEST).await.text(), "ep_b", "{state:?}");
        }
    }
    // What may not be repeated is not, once it was taken.
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
async fn bytes_of_tcp_pass_and_the_service_is_told_of_the_client() {
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
    let told = client.take(header.len()).await.unwrap();
    assert_eq!(String::from_utf8(told).unwrap(), header);
    client.send(b"over").await;
    assert_eq!(client.take(4).await.unwrap(), b"over");
}
