//! The agent as a command. It runs a plan until a signal, and reports as text on a terminal and as JSON otherwise.
#![allow(
    clippy::print_stdout,
    reason = "public URLs are the output of the commands"
)]

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use culvert_base::{OsEntropy, Secret, SystemClock};
use culvert_tunnel::client::{
    Agent, AgentError, Dialing, Endpoint, Event, Exchanges, Observer, Servers, Settings,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli::{Failure, say};
use crate::config::{Log, LogFormat};
use crate::{memory, telemetry};

pub mod file;
mod files;
pub mod inspect;
pub mod plan;

/// Address of the inspection page. If it is in use, one of the next ports is used.
pub const INSPECT_ADDR: &str = "127.0.0.1:4040";
/// Number of ports to try.
const INSPECT_PORTS: u16 = 10;
/// Time limit for open requests and connections after a signal.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// The configuration of an agent.
#[derive(Debug)]
pub struct Plan {
    /// The servers' addresses and how to connect to them; at least one.
    pub servers: Vec<Dialing>,
    /// The credential.
    pub token: Secret,
    /// The user's metadata for the session.
    pub metadata: String,
    /// The endpoints to create.
    pub endpoints: Vec<Endpoint>,
    /// Address of the inspection page.
    pub inspect: Inspect,
}

/// Address of the inspection page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspect {
    /// No page. Requests are not recorded either.
    Off,
    /// [`INSPECT_ADDR`] or one of the next ports; no page if all are in use.
    Usual,
    /// This address. If it is in use, the agent does not start.
    At(std::net::SocketAddr),
}

/// Runs an agent until SIGINT or SIGTERM, or until the server ends its session.
pub async fn run(plan: Plan) -> Result<(), Failure> {
    // Text for people at a terminal, JSON for log collectors.
    let is_terminal = std::io::stderr().is_terminal();
    telemetry::start(&Log {
        format: LogFormat::Auto,
        level: "info".into(),
    })?;
    let mut term = signal(SignalKind::terminate()).map_err(anyhow::Error::from)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(anyhow::Error::from)?;
    let page = listen(&plan.inspect).await?;
    let exchanges = page
        .is_some()
        .then(|| Arc::new(Exchanges::new(Arc::new(SystemClock))));
    let page_url = match &page {
        Some(page) => format!("http://{}", page.local_addr().map_err(anyhow::Error::from)?),
        None => String::new(),
    };
    let voice = Voice {
        is_terminal,
        page_url,
        said: plan
            .endpoints
            .iter()
            .map(|_| AtomicBool::new(false))
            .collect(),
    };
    let sessions = Servers::of_sessions(plan.servers);
    let streams_max = files::streams_that_fit(files::raise_limit()) / sessions.len().max(1);
    let observer: Observer = Arc::new(move |event| voice.tell(event));
    let make = {
        let exchanges = exchanges.clone();
        let (token, metadata) = (plan.token, plan.metadata);
        move |servers: Servers, endpoints: Vec<Endpoint>| {
            let settings = Settings {
                servers,
                token: token.clone(),
                metadata: metadata.clone(),
                version: env!("CARGO_PKG_VERSION").into(),
                drain_time: DRAIN_TIME,
                streams_max,
            };
            let (entropy, observer) = (Arc::new(OsEntropy), Arc::clone(&observer));
            Arc::new(Agent::new(
                settings,
                endpoints,
                exchanges.clone(),
                entropy,
                observer,
            ))
        }
    };
    let mut sessions = sessions.into_iter();
    let first = sessions.next().context("no server address")?;
    let second = sessions.next();
    let endpoints: Vec<Endpoint> = match &second {
        Some(_) => plan.endpoints.iter().map(|it| it.pooled(None)).collect(),
        None => plan.endpoints,
    };
    let agent = make(first, endpoints.clone());
    let mut tasks = JoinSet::new();
    if let Some(listener) = page {
        tasks.spawn(inspect::serve(listener, Arc::clone(&agent)));
    }
    let stop = CancellationToken::new();
    tasks.spawn(memory::give_back(stop.clone()));
    tasks.spawn(memory::collect_idle_threads(stop.clone()));
    let beside = {
        let (agent, stop) = (Arc::clone(&agent), stop.clone());
        async move {
            match second {
                Some(servers) => run_beside(agent, servers, endpoints, make, stop).await,
                None => Ok(()),
            }
        }
    };
    let mut running = JoinSet::new();
    // On a thread of the runtime, which gives memory back when it is idle.
    running.spawn(run_both(agent.run(stop.clone()), beside, stop.clone()));
    let running = async move {
        match running.join_next().await {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            None => Ok(()),
        }
    };
    tokio::pin!(running);
    let outcome = tokio::select! {
        outcome = &mut running => outcome,
        _ = term.recv() => finish(&stop, running, &mut term, &mut interrupt).await?,
        _ = interrupt.recv() => finish(&stop, running, &mut term, &mut interrupt).await?,
    };
    outcome.map_err(|error| match error {
        AgentError::Refused(..) => {
            Failure::Failed(format!("the server rejected the agent: {error}"))
        }
        AgentError::Taken(_) | AgentError::Cut(_) => Failure::Failed(error.to_string()),
    })
}

/// Runs another session of the agent, with another server, at the URLs that the first session got. A stop by its
/// server stops the agent.
async fn run_beside(
    first: Arc<Agent>,
    servers: Servers,
    endpoints: Vec<Endpoint>,
    make: impl Fn(Servers, Vec<Endpoint>) -> Arc<Agent>,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let mut status = first.status();
    let has_urls = status.wait_for(|it| it.endpoints.iter().all(|it| !it.url.is_empty()));
    let endpoints: Vec<Endpoint> = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        status = has_urls => {
            let Ok(status) = status else {
                return Ok(());
            };
            let urls = status.endpoints.iter().map(|it| &it.url[..]);
            let pairs = endpoints.iter().zip(urls);
            pairs.map(|(endpoint, url)| endpoint.pooled(Some(url))).collect()
        }
    };
    let ended = make(servers, endpoints).run(stop.clone()).await;
    match &ended {
        Ok(()) => stop.cancel(),
        Err(AgentError::Cut(_)) => {}
        Err(error) => tracing::warn!(%error, "the second session ended; the first goes on"),
    }
    ended
}

/// Runs the first session and the one `beside` it to their ends. What the first one comes to counts, and how many
/// connections either cut.
async fn run_both(
    first: impl Future<Output = Result<(), AgentError>>,
    beside: impl Future<Output = Result<(), AgentError>>,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let first = async {
        let ended = first.await;
        stop.cancel();
        ended
    };
    match tokio::join!(first, beside) {
        (Err(AgentError::Cut(one)), Err(AgentError::Cut(other))) => {
            Err(AgentError::Cut(one + other))
        }
        (Ok(()), Err(AgentError::Cut(count))) => Err(AgentError::Cut(count)),
        (first, _) => first,
    }
}

/// Waits for the agent to drain. A second signal ends it immediately.
async fn finish(
    stop: &CancellationToken,
    running: impl Future<Output = Result<(), AgentError>>,
    term: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) -> Result<Result<(), AgentError>, Failure> {
    tracing::info!("stopping: finishing requests in flight; a second signal stops immediately");
    stop.cancel();
    tokio::select! {
        outcome = running => Ok(outcome),
        _ = term.recv() => Err(Failure::Failed("stopped immediately by a second signal".into())),
        _ = interrupt.recv() => Err(Failure::Failed("stopped immediately by a second signal".into())),
    }
}

async fn listen(inspect: &Inspect) -> Result<Option<TcpListener>, Failure> {
    match inspect {
        Inspect::Off => Ok(None),
        Inspect::At(address) => {
            let listener = TcpListener::bind(address).await;
            let listener = listener
                .with_context(|| format!("the inspection page cannot listen on {address}"))?;
            Ok(Some(listener))
        }
        Inspect::Usual => {
            let usual: std::net::SocketAddr = INSPECT_ADDR.parse().map_err(anyhow::Error::from)?;
            for port in usual.port()..usual.port() + INSPECT_PORTS {
                if let Ok(listener) = TcpListener::bind((usual.ip(), port)).await {
                    return Ok(Some(listener));
                }
            }
            tracing::warn!("no free port for the inspection page; it is disabled");
            Ok(None)
        }
    }
}

/// Reports the agent's events.
struct Voice {
    is_terminal: bool,
    page_url: String,
    /// Whether the URL of each endpoint was printed.
    said: Vec<AtomicBool>,
}

impl Voice {
    fn tell(&self, event: Event) {
        match event {
            Event::Connecting { address } => {
                tracing::debug!(server = %address, "connecting to the server");
            }
            Event::Bound {
                endpoint,
                url,
                upstream,
            } => {
                let said = self.said.get(endpoint);
                if !said.is_some_and(|said| said.swap(true, Ordering::Relaxed)) {
                    // If standard output is closed, the log contains the URL.
                    if say(&url).is_err() {
                        tracing::warn!(url, "cannot print the URL");
                    }
                    if self.is_terminal && std::io::stdout().is_terminal() {
                        println!("  forwarding to {upstream}");
                    }
                }
                tracing::info!(url, upstream, "endpoint online");
            }
            Event::Online { session_id, again } => {
                if again {
                    tracing::info!(session.id = session_id, "session reconnected");
                } else {
                    tracing::info!(
                        session.id = session_id,
                        inspect = self.page_url,
                        "online; press Ctrl+C to stop"
                    );
                }
            }
            Event::Waiting { why, after } => {
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(why, after_ms, "disconnected; retrying");
            }
            Event::Unreached { upstream, why } => {
                tracing::warn!(upstream, why, "service unreachable");
            }
            Event::Taken { url, message } => {
                tracing::warn!(url, message, "the server closed an endpoint");
            }
            Event::Asked { command } => {
                tracing::info!(command, "command from the server");
            }
        }
    }
}
