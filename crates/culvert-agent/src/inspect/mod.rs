//! The agent's page and its API: recent requests, their repetition, and the endpoints.
//!
//! Both listen on loopback, for the user of this machine. To block DNS rebinding, `Host` must be a loopback name. To
//! block requests that pages of other sites make, changes must come from the page itself or from a client that is not a
//! browser. The requests that the page shows are untrusted: the page gets them as data, and a strict policy keeps it
//! from running anything else than its own files.
//!
//! The paths and fields below `/api` are those of ngrok's agent API; the page has its own below `/inspect/api`.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Clock, SystemClock};
use culvert_tunnel::client::{
    Counts, Edit, EndpointStatus, Exchange, Exchanges, OpenError, Phase, ReplayError, Status,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::config::file;
use crate::sessions::Sessions;
use reply::{Problem, Reply, data, empty, see_other};

mod reply;
mod requests;
mod tunnels;

/// Maximum number of concurrent connections; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time limit for the body of a request.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Maximum body of a request: an edited request with the largest recorded body, or an endpoint with a policy.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Serves the page and the API until the future is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    sessions: Arc<Sessions>,
    exchanges: Option<Arc<Exchanges>>,
) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    let page = Arc::new(InspectPage {
        sessions,
        exchanges,
        port,
        run: SystemClock.now().unix_nanos(),
    });
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => accepted,
        };
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let page = Arc::clone(&page);
        connections.spawn(async move {
            let service = service_fn(|request| {
                let page = Arc::clone(&page);
                async move { Ok::<_, std::convert::Infallible>(page.answer(request).await) }
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .serve_connection(TokioIo::new(socket), service);
            // The client may close the connection at any time.
            serving.await.ok();
        });
    }
}

struct InspectPage {
    sessions: Arc<Sessions>,
    exchanges: Option<Arc<Exchanges>>,
    port: u16,
    /// Tells this run of the agent from others, whose requests have the same ids.
    run: i64,
}

impl InspectPage {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        match self.routed(&head, body).await {
            Ok(reply) => reply,
            Err(problem) => problem.reply(),
        }
    }

    async fn routed(&self, head: &Parts, body: Incoming) -> Result<Reply, Problem> {
        let host = text_of(&head.headers, header::HOST);
        if !self.is_own(host) {
            return Err(Problem::forbidden(
                "open this page with a host name of this machine",
            ));
        }
        let method = match head.method {
            Method::HEAD => Method::GET,
            ref method => method.clone(),
        };
        if method != Method::GET && !is_from_here(&head.headers, host) {
            return Err(Problem::forbidden("cross-site requests are not allowed"));
        }
        let path = head.uri.path();
        let Some(path) = path.strip_prefix("/api/") else {
            return self.page(&method, head, body).await;
        };
        match path.split('/').collect::<Vec<_>>()[..] {
            ["status"] => match method {
                Method::GET => Ok(data(StatusCode::OK, &status(&self.status()))),
                _ => Err(Problem::wrong_method()),
            },
            [kind @ ("tunnels" | "endpoints")] => match method {
                Method::GET => Ok(self.endpoints(kind)),
                Method::POST => self.open(kind, &read(body).await?).await,
                _ => Err(Problem::wrong_method()),
            },
            [kind @ ("tunnels" | "endpoints"), name] => {
                let name = decoded(name);
                match method {
                    Method::GET => self.endpoint(kind, &name),
                    Method::DELETE => match self.sessions.close(&name).await {
                        true => Ok(empty()),
                        false => Err(Problem::not_found("no endpoint has this name")),
                    },
                    _ => Err(Problem::wrong_method()),
                }
            }
            ["requests", "http"] => match method {
                Method::GET => self.requests(head.uri.query().unwrap_or_default()),
                Method::POST => {
                    let body = read(body).await?;
                    self.replay_named(&body).await
                }
                Method::DELETE => {
                    if let Some(all) = &self.exchanges {
                        all.clear();
                    }
                    Ok(empty())
                }
                _ => Err(Problem::wrong_method()),
            },
            ["requests", "http", id] => match method {
                Method::GET => Ok(data(StatusCode::OK, &requests::item(&*self.find(id)?))),
                _ => Err(Problem::wrong_method()),
            },
            _ => Err(Problem::not_found("the path does not exist")),
        }
    }

    /// The files of the page, and its own API.
    async fn page(&self, method: &Method, head: &Parts, body: Incoming) -> Result<Reply, Problem> {
        let path: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        match (method, &path[..]) {
            (&Method::GET, [""] | ["inspect"] | ["inspect", ""]) => Ok(see_other("/inspect/http")),
            (&Method::GET, ["inspect", "http"] | ["inspect", "http", _]) => {
                Ok(reply::file(culvert_console::agent_page(), &head.headers))
            }
            (&Method::GET, ["inspect", "assets", name]) => {
                let file = culvert_console::agent_file(&format!("assets/{name}"));
                let file = file.ok_or_else(|| Problem::not_found("the file does not exist"))?;
                Ok(reply::file(file, &head.headers))
            }
            (&Method::GET, ["inspect", "api", "state"]) => {
                self.state(head.uri.query().unwrap_or_default())
            }
            (&Method::GET, ["inspect", "api", "requests", id]) => {
                Ok(data(StatusCode::OK, &requests::detail(&*self.find(id)?)))
            }
            (&Method::POST, ["inspect", "api", "requests", id, "replay"]) => {
                let id = self.find(id)?.id;
                let edit: Value = read(body).await?;
                let replayed = match edit {
                    Value::Null => self.sessions.first.replay(id).await,
                    edit => {
                        let edit = edit_of(edit)?;
                        self.sessions.first.replay_edited(id, &edit).await
                    }
                };
                let id = replayed.map_err(replay_problem)?;
                Ok(data(StatusCode::OK, &json!({"id": id})))
            }
            _ => Err(Problem::not_found("the path does not exist")),
        }
    }

    /// Whether `Host` is a loopback name, which foreign DNS cannot point here.
    fn is_own(&self, host: &str) -> bool {
        ["127.0.0.1", "localhost", "[::1]"]
            .into_iter()
            .any(|name| host.strip_prefix(name) == Some(&format!(":{}", self.port)[..]))
    }

    fn status(&self) -> Status {
        self.sessions.first.status().borrow().clone()
    }

    fn find(&self, id: &str) -> Result<Arc<Exchange>, Problem> {
        let all = self.exchanges.as_ref();
        let found = id.parse().ok().and_then(|id| all?.get(id));
        found.ok_or_else(|| Problem::not_found("the request is not recorded, or no longer"))
    }

    fn endpoints(&self, kind: &str) -> Reply {
        let endpoints: Vec<Value> = online(&self.status())
            .map(|endpoint| shown(kind, endpoint))
            .collect();
        data(
            StatusCode::OK,
            &json!({kind: endpoints, "uri": format!("/api/{kind}")}),
        )
    }

    fn endpoint(&self, kind: &str, name: &str) -> Result<Reply, Problem> {
        let status = self.status();
        let found = online(&status).find(|endpoint| endpoint.name == name);
        let found = found.ok_or_else(|| Problem::not_found("no endpoint has this name"))?;
        Ok(data(StatusCode::OK, &shown(kind, found)))
    }

    async fn open(&self, kind: &str, body: &Value) -> Result<Reply, Problem> {
        let endpoint = file::endpoint_of(body).map_err(Problem::invalid)?;
        match self.sessions.open(endpoint).await {
            Ok(opened) => Ok(data(StatusCode::CREATED, &shown(kind, &opened))),
            Err(error @ (OpenError::NameInUse | OpenError::TooMany)) => {
                Err(Problem::invalid(error.to_string()))
            }
            Err(error @ OpenError::Offline) => Err(Problem::offline(error.to_string())),
            Err(error @ OpenError::Refused(..)) => Err(Problem::failed(error.to_string())),
        }
    }

    fn requests(&self, query: &str) -> Result<Reply, Problem> {
        let limit = match parameter(query, "limit") {
            None => usize::MAX,
            Some(text) => text
                .parse()
                .map_err(|_| Problem::invalid("`limit` must be a number"))?,
        };
        let name = parameter(query, "tunnel_name").filter(|name| !name.is_empty());
        let all = self.exchanges.as_ref();
        let is_wanted = |it: &Exchange| name.as_ref().is_none_or(|name| it.endpoint.name == *name);
        let newest = all
            .map(|all| all.newest(limit, is_wanted))
            .unwrap_or_default();
        let requests: Vec<Value> = newest.iter().map(|it| requests::item(it)).collect();
        let Counts { seen, not_kept } = requests::counts(all.map(|all| &**all));
        let body = json!({
            "requests": requests,
            "seen": seen,
            "not_kept": not_kept,
            "uri": "/api/requests/http",
        });
        Ok(data(StatusCode::OK, &body))
    }

    /// What the page shows beside a single request: everything, or the requests after an id.
    fn state(&self, query: &str) -> Result<Reply, Problem> {
        let after: u64 = match parameter(query, "after") {
            None => 0,
            Some(text) => text
                .parse()
                .map_err(|_| Problem::invalid("`after` must be a number"))?,
        };
        let all = self.exchanges.as_ref();
        let recent = all.map(|all| all.recent()).unwrap_or_default();
        let new = recent.iter().take_while(|it| it.id > after);
        let new: Vec<Value> = new.map(|it| requests::summary(it)).collect();
        let Counts { seen, not_kept } = requests::counts(all.map(|all| &**all));
        let agent = self.status();
        let endpoints: Vec<Value> = online(&agent).map(tunnels::tunnel).collect();
        let body = json!({
            "run": self.run.to_string(),
            "agent": status(&agent),
            "server": agent.server,
            "trouble": agent.trouble.as_ref().map(|trouble| &trouble.why),
            "notices": agent.notices,
            "tunnels": endpoints,
            "requests": new,
            "oldest": recent.last().map(|it| it.id),
            "seen": seen,
            "not_kept": not_kept,
            "kept_per_second": Exchanges::kept_per_second(),
        });
        Ok(data(StatusCode::OK, &body))
    }

    /// Replays the request that the body names: `{"id": "7"}` or a number.
    async fn replay_named(&self, body: &Value) -> Result<Reply, Problem> {
        let id = match &body["id"] {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64(),
        };
        let id = id.ok_or_else(|| {
            Problem::invalid("the body must be an object with the `id` of a request")
        })?;
        match self.sessions.first.replay(id).await {
            Ok(_) => Ok(empty()),
            Err(error) => Err(replay_problem(error)),
        }
    }
}

fn online(status: &Status) -> impl Iterator<Item = &EndpointStatus> {
    let endpoints = status.endpoints.iter();
    endpoints.filter(|endpoint| !endpoint.url.is_empty() && !endpoint.is_gone)
}

fn shown(kind: &str, endpoint: &EndpointStatus) -> Value {
    match kind {
        "tunnels" => tunnels::tunnel(endpoint),
        _ => tunnels::endpoint(endpoint),
    }
}

fn replay_problem(error: ReplayError) -> Problem {
    match error {
        ReplayError::Unknown => Problem::not_found("the request is not recorded, or no longer"),
        ReplayError::Invalid(_) | ReplayError::Cut | ReplayError::Upgraded => {
            Problem::invalid(error.to_string())
        }
        ReplayError::Away(_) => Problem::failed(error.to_string()),
    }
}

/// An edited request from the page.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EditPart {
    method: String,
    path: String,
    fields: Vec<(String, String)>,
    /// Base64.
    body: String,
}

fn edit_of(value: Value) -> Result<Edit, Problem> {
    use base64::Engine;
    let part: EditPart =
        serde_json::from_value(value).map_err(|error| Problem::invalid(error.to_string()))?;
    let body = base64::engine::general_purpose::STANDARD.decode(part.body);
    Ok(Edit {
        method: part.method,
        path: part.path,
        fields: part.fields,
        body: body.map_err(|_| Problem::invalid("`body` is not Base64"))?,
    })
}

/// Reads a JSON body. An empty one is null.
async fn read(body: Incoming) -> Result<Value, Problem> {
    let reading = Limited::new(body, BODY_BYTES_MAX).collect();
    let Ok(Ok(body)) = tokio::time::timeout(BODY_TIME, reading).await else {
        return Err(Problem::too_long());
    };
    let body: Bytes = body.to_bytes();
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&body).map_err(|_| Problem::invalid("the body is not valid JSON"))
}

/// A parameter of a query.
fn parameter(query: &str, name: &str) -> Option<String> {
    url::form_urlencoded::parse(query.as_bytes())
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.into_owned())
}

/// A segment of a path without its percent encoding.
fn decoded(segment: &str) -> String {
    // In a path, `+` is itself.
    let segment = format!("x={}", segment.replace('+', "%2B").replace('&', "%26"));
    parameter(&segment, "x").unwrap_or_default()
}

fn text_of(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Whether a request for a change comes from the page itself or from a client that is not a browser.
fn is_from_here(headers: &HeaderMap, host: &str) -> bool {
    let origin_fits = match headers.get(header::ORIGIN) {
        None => true,
        Some(origin) => {
            origin
                .to_str()
                .ok()
                .and_then(|it| it.strip_prefix("http://"))
                == Some(host)
        }
    };
    let site_fits = match headers.get("sec-fetch-site") {
        None => true,
        Some(site) => site == "same-origin" || site == "none",
    };
    origin_fits && site_fits
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Connecting => "connecting",
        Phase::Online => "online",
        Phase::Waiting => "reconnecting",
        Phase::Stopping => "stopping",
    }
}

fn status(agent: &Status) -> Value {
    let latency = agent.latency.map(|latency| latency.as_secs_f64() * 1000.0);
    json!({
        "status": phase(agent.phase),
        "agent_version": env!("CARGO_PKG_VERSION"),
        "session": {
            "id": agent.session_id,
            "account": agent.account,
            "region": agent.region,
            "server_version": agent.server_version,
            "latency_ms": latency,
            "legs": [{
                "region": agent.region,
                "latency": latency.map(|latency| format!("{latency:.0}ms")),
            }],
        },
        "uri": "/api/status",
    })
}
