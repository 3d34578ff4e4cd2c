//! Liveness and readiness (contract: operations 4).
//!
//! Both paths are public, so the parts are checked at most every half second, however many requests arrive.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::BoxFuture;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::answer::{Body, JSON, NO_STORE};

const ASKED_EVERY: Duration = Duration::from_millis(500);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The parts that this process needs.
pub trait Health: Debug + Send + Sync {
    /// The name of each part, and the problem if it is not usable.
    fn ready(&self) -> BoxFuture<'_, Vec<(&'static str, Result<(), String>)>>;
}

#[derive(Debug)]
pub(crate) struct Probe {
    health: Arc<dyn Health>,
    last: Mutex<Option<(Instant, bool, Value)>>,
}

impl Probe {
    pub(crate) fn new(health: Arc<dyn Health>) -> Self {
        Self {
            health,
            last: Mutex::default(),
        }
    }

    /// `GET /readyz`.
    pub(crate) async fn ready(&self) -> Response<Body> {
        let mut last = self.last.lock().await;
        let (ready, body) = match &*last {
            Some((at, ready, body)) if at.elapsed() < ASKED_EVERY => (*ready, body.clone()),
            _ => {
                let (ready, body) = self.ask().await;
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
        respond(status, &body)
    }

    /// Whether all parts are usable now.
    pub(crate) async fn is_ready(&self) -> bool {
        self.ask().await.0
    }

    async fn ask(&self) -> (bool, Value) {
        let Ok(parts) = tokio::time::timeout(ANSWER_WITHIN, self.health.ready()).await else {
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
        (ready, json!({"ready": ready, "parts": parts}))
    }
}

/// `GET /healthz`.
pub(crate) fn alive() -> Response<Body> {
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
