//! Liveness and readiness (contract: operations 4).
//!
//! `GET /readyz` asks whether all of the process is usable. With `?role=edge` or `?role=agents` it asks whether that role
//! serves, as it does without a database, from its last configuration. Load balancers of traffic ask that.
//!
//! Both paths are public, so the parts are checked at most every half second, however many requests arrive.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Class, Refusal};
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::query;
use crate::response::answer::{Body, JSON, NO_STORE};

const ASKED_EVERY: Duration = Duration::from_millis(500);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What a load balancer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// All of the process.
    All,
    /// Traffic.
    Edge,
    /// Agents.
    Agents,
}

impl Serves {
    /// Reads the query of a readiness check.
    fn of(query: Option<&str>) -> Result<Self, Refusal> {
        let parameters = query::parse(query.unwrap_or_default())?;
        let role = parameters.iter().find(|(name, _)| name == "role");
        match role.map(|(_, role)| role.as_str()) {
            None => Ok(Self::All),
            Some("edge") => Ok(Self::Edge),
            Some("agents") => Ok(Self::Agents),
            Some(_) => {
                let why = "The parameter `role` must be `edge` or `agents`.";
                Err(Refusal::uncoded(Class::Invalid, why))
            }
        }
    }
}

/// The parts that this process needs.
pub trait Health: Debug + Send + Sync {
    /// The name of each part that is needed for this, and the problem if it is not usable.
    fn ready(&self, serves: Serves) -> BoxFuture<'_, Vec<(&'static str, Result<(), String>)>>;

    /// What an operator should know although all parts are usable, by part. Anyone may read it.
    fn notices(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// The readiness check, with its latest responses.
#[derive(Debug)]
pub struct Probe {
    health: Arc<dyn Health>,
    /// The last response for all, the edge, and agents.
    last: [Mutex<Option<(Instant, bool, Value)>>; 3],
}

impl Probe {
    /// A probe of this health.
    pub fn new(health: Arc<dyn Health>) -> Self {
        Self {
            health,
            last: Default::default(),
        }
    }

    /// `GET /readyz`.
    pub async fn ready(&self, query: Option<&str>) -> Result<Response<Body>, Refusal> {
        let serves = Serves::of(query)?;
        let [all, edge, agents] = &self.last;
        let mut last = match serves {
            Serves::All => all,
            Serves::Edge => edge,
            Serves::Agents => agents,
        }
        .lock()
        .await;
        let (ready, body) = match &*last {
            Some((at, ready, body)) if at.elapsed() < ASKED_EVERY => (*ready, body.clone()),
            _ => {
                let (ready, body) = self.ask(serves).await;
                *last = Some((Instant::now(), ready, body.clone()));
                (ready, body)
            }
        };
        drop(last);
        let status = if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Ok(respond(status, &body))
    }

    /// Whether all parts are usable now.
    pub async fn is_ready(&self) -> bool {
        self.ask(Serves::All).await.0
    }

    async fn ask(&self, serves: Serves) -> (bool, Value) {
        let asked = tokio::time::timeout(ANSWER_WITHIN, self.health.ready(serves)).await;
        let Ok(parts) = asked else {
            return (false, json!({"ready": false, "parts": {}}));
        };
        let ready = parts.iter().all(|(_, state)| state.is_ok());
        let parts: Map<String, Value> = parts
            .into_iter()
            .map(|(part, state)| match state {
                Ok(()) => (part.to_owned(), "ok".into()),
                Err(why) => (part.to_owned(), why.into()),
            })
            .collect();
        let mut body = json!({"ready": ready, "parts": parts});
        if serves == Serves::All {
            let notices = self.health.notices().into_iter();
            let notices: Map<String, Value> = notices
                .map(|(part, notice)| (part.to_owned(), notice.into()))
                .collect();
            if !notices.is_empty() {
                body["notices"] = notices.into();
            }
        }
        (ready, body)
    }
}

/// `GET /healthz`.
pub fn alive() -> Response<Body> {
    respond(StatusCode::OK, &json!({"alive": true}))
}

fn respond(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::whole(body.to_string().into()));
    *response.status_mut() = status;
    let headers: [(_, HeaderValue); 2] = [
        (header::CONTENT_TYPE, JSON),
        (header::CACHE_CONTROL, NO_STORE),
    ];
    response.headers_mut().extend(headers);
    response
}
