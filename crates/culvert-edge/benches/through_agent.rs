//! The programs whose instructions `benches/instructions` counts for a request through an agent: an edge with a
//! listener for agents, and our agent, with nothing of control, the store or the command line.
//!
//! `through_agent serve HOST CA_FILE` serves `http://HOST` until its input ends. It writes the certificate that the
//! agent trusts to the file, and prints the addresses of the edge and of the listener for agents.
//! `through_agent agent SERVER CA_FILE UPSTREAM` is the agent of that endpoint. It prints a line when it is online.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for measurements: its caller reads what it prints, and sees its panics"
)]

use std::io::Read;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{BoxFuture, OsEntropy, Refusal, Secret, SystemClock};
use culvert_edge::{
    Clients, Edge, Endpoint, EndpointBinding, Protocol, Snapshot, Timeouts, Upstream,
};
use culvert_events::{Capture, EventKind, Record, Recorder};
use culvert_policy::Scheme;
use culvert_tunnel::client;
use culvert_tunnel::server::{
    AgentAuthRequest, AgentAuthorizer, Binding, Bindings, ConnectionLimits, EndpointRequest,
    Ingress, Server, SessionEnd, SessionGrant,
};
use culvert_tunnel::wire::{LabelledRequest, PatchRequest};
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[path = "../../culvert-server/src/nodes/to_agents.rs"]
mod to_agents;

use to_agents::ToAgents;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The id of the only endpoint.
const ENDPOINT: &str = "ep_1";

/// Wants no events.
#[derive(Debug)]
struct NoEvents;

impl Recorder for NoEvents {
    fn capture(&self, _: &'static EventKind) -> Capture {
        Capture::NONE
    }

    fn offer(&self, _: Record) {}
}

/// Admits every agent, and binds every request to the only endpoint.
struct AnyAgent(HostName);

impl AgentAuthorizer for AnyAgent {
    fn authorize(&self, _: AgentAuthRequest) -> BoxFuture<'_, Result<SessionGrant, Refusal>> {
        let grant = SessionGrant {
            session_id: "ts_1".into(),
            ..SessionGrant::default()
        };
        Box::pin(async { Ok(grant) })
    }

    fn next_tcp_port<'a>(&'a self, _: &'a SessionGrant) -> BoxFuture<'a, Option<u16>> {
        Box::pin(async { None })
    }

    fn bind<'a>(
        &'a self,
        _: &'a SessionGrant,
        _: &'a EndpointRequest,
    ) -> BoxFuture<'a, Result<Binding, Refusal>> {
        let binding = Binding {
            id: ENDPOINT.into(),
            url: format!("http://{}", self.0),
            name: self.0.to_string(),
            token: String::new(),
        };
        Box::pin(async { Ok(binding) })
    }

    fn bind_labels<'a>(
        &'a self,
        _: &'a SessionGrant,
        _: &'a LabelledRequest,
    ) -> BoxFuture<'a, Result<String, Refusal>> {
        Box::pin(async { Ok(ENDPOINT.into()) })
    }

    fn patch<'a>(
        &'a self,
        _: &'a SessionGrant,
        _: &'a PatchRequest,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn unbind<'a>(&'a self, _: &'a SessionGrant, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn ended(&self, _: SessionEnd) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// A certificate for this machine, and the file with it.
fn tls(ca_file: &str) -> rustls::ServerConfig {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(ca_file, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap()
}

async fn serve(host: &str, ca_file: &str, stop: CancellationToken) {
    let host = HostName::parse(host).unwrap();
    let bindings = Arc::new(Bindings::default());
    let agents = ToAgents {
        here: Some(Arc::clone(&bindings)),
        elsewhere: None,
    };
    let settings = culvert_edge::Settings {
        http_addr: Some((Ipv4Addr::LOCALHOST, 0).into()),
        agents: Some(Arc::new(agents)),
        threads: 1,
        ..culvert_edge::Settings::default()
    };
    let protocol = Protocol::Http1;
    let upstream = Upstream::agent(ENDPOINT, Scheme::Http, protocol, None, Clients::Shared);
    let endpoint = Endpoint {
        id: ENDPOINT.into(),
        account: "ac_1".into(),
        owner: "usr_1".into(),
        scheme: Scheme::Http,
        binding: EndpointBinding::Public,
        host: host.clone(),
        port: 80,
        upstream: Some(upstream),
        upstreams: None,
        policy: None,
        merge_slashes: true,
        timeouts: Timeouts::default(),
        in_flight: None,
        maintenance: None,
    };
    let edge = Edge::bind(settings, Arc::new(NoEvents), Arc::new(SystemClock));
    let edge = edge.await.unwrap();
    edge.publish(Snapshot::builder().endpoint(endpoint).build())
        .await;

    let server = Server::new(Arc::new(AnyAgent(host)), bindings, String::new());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = ConnectionLimits {
        connections: 64,
        unauthenticated: 64,
        unauthenticated_per_source: 64,
    };
    let ingress = Ingress::new(listener, Arc::new(tls(ca_file)), Arc::new(server), limits);
    let threads = edge.clone();
    let ingress = ingress.with_runtimes(move || threads.next_thread());
    println!("{}", edge.http_addr().unwrap());
    println!("localhost:{}", address.port());
    tokio::join!(edge.run(stop.clone()), ingress.run(stop));
}

async fn agent(server: &str, ca_file: &str, upstream: &str, stop: CancellationToken) {
    let authority = std::fs::read(ca_file).unwrap();
    let settings = client::Settings {
        servers: client::Dialing::new(server, Some(&authority))
            .unwrap()
            .into(),
        token: Secret::new("any".into()),
        metadata: String::new(),
        version: "1".into(),
        drain_time: Duration::ZERO,
        streams_max: 1_000,
        heartbeat: client::Heartbeat::default(),
        mistake_time: Duration::from_secs(60),
        is_managed: false,
    };
    let (protocol, options) = (client::Protocol::Http, client::UpstreamTls::default());
    let upstream = client::Upstream::parse(upstream, protocol, false, &options).unwrap();
    let endpoint =
        client::Endpoint::new(protocol, client::RequestedEndpoint::default(), upstream).unwrap();
    let observer = Arc::new(|event| {
        if matches!(event, client::Event::Online { .. }) {
            println!("online");
        }
    });
    let agent = client::Agent::new(
        settings,
        vec![endpoint],
        // How many exchanges an agent records depends on the time that they take.
        None,
        Arc::new(OsEntropy),
        observer,
    );
    Arc::new(agent).run(stop).await.unwrap();
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // As in a server and an agent on one core. The edge has one more thread for connections.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let stops = stop.clone();
    let until_input_ends = move || {
        std::thread::spawn(move || {
            drop(std::io::stdin().read_to_end(&mut Vec::new()));
            stops.cancel();
        });
    };
    match words[..] {
        ["serve", host, ca_file] => {
            until_input_ends();
            runtime.block_on(serve(host, ca_file, stop));
        }
        ["agent", server, ca_file, upstream] => {
            until_input_ends();
            runtime.block_on(agent(server, ca_file, upstream, stop));
        }
        // `cargo test` and `cargo bench` start it without these.
        _ => println!("usage: through_agent serve HOST CA_FILE | agent SERVER CA_FILE UPSTREAM"),
    }
}
