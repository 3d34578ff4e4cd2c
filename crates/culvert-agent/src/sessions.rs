//! The sessions of an agent: one, or two at different servers, which share their endpoints.

use std::sync::{Arc, OnceLock};

use culvert_tunnel::client::{
    Agent, AgentError, Endpoint, EndpointStatus, OpenError, Servers, Status,
};
use tokio_util::sync::CancellationToken;

/// The sessions. The first one gets the URLs, and the second serves at the same ones.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub first: Arc<Agent>,
    /// Set once the first session has its URLs.
    second: OnceLock<Arc<Agent>>,
    has_second: bool,
}

impl Sessions {
    /// `has_second` tells whether [`Sessions::run`] will start a second session.
    pub(crate) fn new(first: Arc<Agent>, has_second: bool) -> Self {
        Self {
            first,
            second: OnceLock::new(),
            has_second,
        }
    }

    /// The status of each session.
    pub(crate) fn statuses(&self) -> Vec<Status> {
        let all = std::iter::once(&self.first).chain(self.second.get());
        all.map(|agent| agent.status().borrow().clone()).collect()
    }

    /// Adds an endpoint to all sessions.
    pub(crate) async fn open(&self, endpoint: Endpoint) -> Result<EndpointStatus, OpenError> {
        if !self.has_second {
            return self.first.open(endpoint).await;
        }
        let opened = self.first.open(endpoint.pooled(None)).await?;
        if let Some(second) = self.second.get()
            && let Err(error) = second.open(endpoint.pooled(Some(&opened.url))).await
        {
            tracing::warn!(%error, name = opened.name, "the second session does not serve a new endpoint");
        }
        Ok(opened)
    }

    /// Removes the endpoint with this name from all sessions. `false` if there is none.
    pub(crate) async fn close(&self, name: &str) -> bool {
        let was_there = self.first.close(name).await;
        if let Some(second) = self.second.get() {
            second.close(name).await;
        }
        was_there
    }

    /// Runs the first session and, with `second`, one beside it, to their ends. The result is that of the first one,
    /// with the number of connections that both of them cut.
    pub(crate) async fn run(
        self: Arc<Self>,
        second: Option<Servers>,
        make: impl Fn(Servers, Vec<Endpoint>) -> Arc<Agent>,
        endpoints: Vec<Endpoint>,
        stop: CancellationToken,
    ) -> Result<(), AgentError> {
        let first = async {
            let ended = Arc::clone(&self.first).run(stop.clone()).await;
            stop.cancel();
            ended
        };
        let beside = async {
            match second {
                Some(servers) => {
                    self.run_beside(servers, endpoints, make, stop.clone())
                        .await
                }
                None => Ok(()),
            }
        };
        match tokio::join!(first, beside) {
            (Err(AgentError::Cut(one)), Err(AgentError::Cut(other))) => {
                Err(AgentError::Cut(one + other))
            }
            (Ok(()), Err(AgentError::Cut(count))) => Err(AgentError::Cut(count)),
            (first, _) => first,
        }
    }

    /// Runs the second session, at the URLs that the first one got. A stop by its server stops the agent.
    async fn run_beside(
        &self,
        servers: Servers,
        endpoints: Vec<Endpoint>,
        make: impl Fn(Servers, Vec<Endpoint>) -> Arc<Agent>,
        stop: CancellationToken,
    ) -> Result<(), AgentError> {
        let mut status = self.first.status();
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
        let second = self.second.get_or_init(|| make(servers, endpoints));
        let ended = Arc::clone(second).run(stop.clone()).await;
        match &ended {
            Ok(()) => stop.cancel(),
            Err(AgentError::Cut(_)) => {}
            Err(error) => tracing::warn!(%error, "the second session ended; the first goes on"),
        }
        ended
    }
}
