//! Runs a plan until a signal.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use culvert_base::{OsEntropy, SystemClock};
use culvert_tunnel::client::{Agent, AgentError, Endpoint, Exchanges, Observer, Servers, Settings};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use culvert_command::{Failure, StopSignals, memory};

use crate::config::{INSPECT_ADDR, Inspect, Plan, policy_url};
use crate::log::LogTo;
use crate::reporter::Reporter;
use crate::screen::{self, Problem, Screen, terminal};
use crate::sessions::Sessions;
use crate::{files, inspect};

/// Number of ports to try.
const INSPECT_PORTS: u16 = 10;
/// Time limit for open requests and connections after a signal.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// Refusals of the token itself.
const TOKEN_CODES: [u16; 3] = [105, 107, 300];
/// How long a wrong address or CA is tried again.
const MISTAKE_TIME: Duration = Duration::from_secs(60);

/// Runs an agent until SIGINT or SIGTERM, or until the server ends its session.
pub async fn run(mut plan: Plan) -> Result<(), Failure> {
    let has_screen = plan.has_screen && !plan.log.takes_the_terminal() && terminal::is_usable();
    plan.log.start(has_screen)?;
    for notice in &plan.notices {
        tracing::warn!("{notice}");
    }
    policy_url::fetch_all(&plan.policies, &mut plan.endpoints).await?;
    let mut signals = StopSignals::new().map_err(anyhow::Error::from)?;
    let page = listen(&plan.inspect).await?;
    let exchanges = page
        .is_some()
        .then(|| Arc::new(Exchanges::new(Arc::new(SystemClock))));
    let page_url = match &page {
        Some(page) => format!("http://{}", page.local_addr().map_err(anyhow::Error::from)?),
        None => String::new(),
    };
    let problem = Arc::new(Problem::default());
    let reporter = Reporter {
        prints_urls: !has_screen && plan.log.to != LogTo::Stdout,
        page_url: page_url.clone(),
        problem: Arc::clone(&problem),
    };
    let servers = Servers::of_sessions(plan.servers);
    let streams_max = files::streams_that_fit(files::raise_limit()) / servers.len().max(1);
    let observer: Observer = Arc::new(move |event| reporter.report(event));
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
                heartbeat: plan.heartbeat,
                is_managed: plan.is_managed,
                mistake_time: MISTAKE_TIME,
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
    let mut servers = servers.into_iter();
    let first = servers.next().context("no server address")?;
    let second = servers.next();
    let endpoints: Vec<Endpoint> = match &second {
        Some(_) => plan.endpoints.iter().map(|it| it.pooled(None)).collect(),
        None => plan.endpoints,
    };
    let sessions = Arc::new(Sessions::new(
        make(first, endpoints.clone()),
        second.is_some(),
    ));
    let mut tasks = JoinSet::new();
    if let Some(listener) = page {
        tracing::info!(addr = %listener.local_addr().map_err(anyhow::Error::from)?, "starting web service");
        tasks.spawn(inspect::serve(
            listener,
            Arc::clone(&sessions),
            exchanges.clone(),
        ));
    }
    let stop = CancellationToken::new();
    tasks.spawn(memory::give_back(stop.clone()));
    tasks.spawn(memory::collect_idle_threads(stop.clone()));
    tasks.spawn(Arc::clone(&sessions.first).keep_rates());
    if has_screen {
        let screen = Screen {
            sessions: Arc::clone(&sessions),
            exchanges,
            problem,
            page_url,
        };
        tasks.spawn(async move {
            if let Err(error) = screen.show().await {
                tracing::warn!(%error, "the status screen ended");
            }
        });
    }
    let mut running = JoinSet::new();
    // On a thread of the runtime, which gives memory back when it is idle.
    running.spawn(sessions.run(second, make, endpoints, stop.clone()));
    let running = async move {
        match running.join_next().await {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            None => Ok(()),
        }
    };
    tokio::pin!(running);
    let outcome = tokio::select! {
        outcome = &mut running => Ok(outcome),
        () = signals.next() => {
            tracing::info!("stopping: finishing requests in flight; a second signal stops immediately");
            stop.cancel();
            signals.or_stop_at_once(running).await
        }
    };
    tasks.shutdown().await;
    screen::restore().await;
    outcome?.map_err(|error| failure_of(error, &plan.token_origin))
}

fn failure_of(error: AgentError, token_origin: &str) -> Failure {
    match error {
        AgentError::Refused(_, code) => {
            let is_of_token = code.is_some_and(|code| TOKEN_CODES.contains(&code));
            let origin = match is_of_token && !token_origin.is_empty() {
                true => format!("; {token_origin}"),
                false => String::new(),
            };
            Failure::Failed(format!("the server rejected the agent: {error}{origin}"))
        }
        AgentError::Mistaken(why) => Failure::Failed(format!(
            "no connection within {} seconds: {why}",
            MISTAKE_TIME.as_secs()
        )),
        AgentError::Taken(_) | AgentError::Cut(_) => Failure::Failed(error.to_string()),
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
