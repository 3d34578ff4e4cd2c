//! The inspection page of an agent: shows and replays recent requests, for browsers and programs.
//!
//! It listens on loopback. The requests that it shows are untrusted, so they are escaped and no script runs. To block
//! DNS rebinding and cross-site requests, `Host` must be a loopback name, and changes must come from the page itself
//! or from a client that is not a browser.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_tunnel::client::{Agent, Counts, Exchange, Exchanges, Message, Phase, Status};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Maximum number of concurrent connections; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Maximum body of a request.
const BODY_BYTES_MAX: usize = 4 << 10;
/// Maximum part of a body that the page shows.
const SHOWN_BYTES_MAX: usize = 64 << 10;

type Answer = Response<Full<Bytes>>;

/// Serves the page until the future is dropped.
pub async fn serve(listener: TcpListener, agent: Arc<Agent>) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    let page = Arc::new(Page { agent, port });
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

struct Page {
    agent: Arc<Agent>,
    port: u16,
}

impl Page {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let host = text_of(&head.headers, header::HOST);
        if !self.is_own(host) {
            return plain(
                StatusCode::FORBIDDEN,
                "Open this page with a host name of this machine.\n",
            );
        }
        let is_read = matches!(head.method, Method::GET | Method::HEAD);
        if !is_read && !is_from_here(&head.headers, host) {
            return plain(
                StatusCode::FORBIDDEN,
                "Cross-site requests are not allowed.\n",
            );
        }
        let path: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        match (&head.method, &path[..]) {
            (&Method::GET | &Method::HEAD, [""]) => see_other("/inspect/http".into()),
            (&Method::GET | &Method::HEAD, ["inspect", "http"]) => html(&self.list()),
            (&Method::GET | &Method::HEAD, ["inspect", "http", id]) => match self.find(id) {
                Some(exchange) => html(&self.detail(&exchange)),
                None => not_found(),
            },
            (&Method::POST, ["inspect", "http", id, "replay"]) => match self.find(id) {
                Some(exchange) => match self.agent.replay(exchange.id).await {
                    Ok(id) => see_other(format!("/inspect/http/{id}")),
                    Err(error) => plain(StatusCode::BAD_GATEWAY, &format!("{error}\n")),
                },
                None => not_found(),
            },
            (&Method::GET | &Method::HEAD, ["api", "status"]) => {
                data(&status(&self.agent.status().borrow()))
            }
            (&Method::GET | &Method::HEAD, ["api", "tunnels"]) => {
                data(&tunnels(&self.agent.status().borrow()))
            }
            (&Method::GET | &Method::HEAD, ["api", "requests", "http"]) => {
                let requests: Vec<Value> = self.recent().iter().map(|it| shown(it)).collect();
                let Counts { seen, not_kept } = self.counts();
                data(&json!({
                    "requests": requests,
                    "seen": seen,
                    "not_kept": not_kept,
                    "uri": "/api/requests/http",
                }))
            }
            (&Method::GET | &Method::HEAD, ["api", "requests", "http", id]) => {
                match self.find(id) {
                    Some(exchange) => data(&shown(&exchange)),
                    None => not_found(),
                }
            }
            (&Method::POST, ["api", "requests", "http"]) => self.replay_named(body).await,
            (&Method::DELETE, ["api", "requests", "http"]) => {
                if let Some(all) = self.agent.exchanges() {
                    all.clear();
                }
                with_status(StatusCode::NO_CONTENT, "text/plain", Bytes::new())
            }
            _ => not_found(),
        }
    }

    /// Whether `Host` is a loopback name, which foreign DNS cannot point here.
    fn is_own(&self, host: &str) -> bool {
        ["127.0.0.1", "localhost", "[::1]"]
            .into_iter()
            .any(|name| host.strip_prefix(name) == Some(&format!(":{}", self.port)[..]))
    }

    fn recent(&self) -> Vec<Arc<Exchange>> {
        self.agent
            .exchanges()
            .map(|all| all.recent())
            .unwrap_or_default()
    }

    fn counts(&self) -> Counts {
        self.agent
            .exchanges()
            .map(|all| all.counts())
            .unwrap_or_default()
    }

    fn find(&self, id: &str) -> Option<Arc<Exchange>> {
        self.agent.exchanges()?.get(id.parse().ok()?)
    }

    /// Replays the request that the body names: `{"id": "7"}` or a number.
    async fn replay_named(&self, body: Incoming) -> Answer {
        let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
            return plain(StatusCode::PAYLOAD_TOO_LARGE, "The body is too long.\n");
        };
        let body: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
        let id = match &body["id"] {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64(),
        };
        let Some(id) = id else {
            return plain(
                StatusCode::BAD_REQUEST,
                "The body must be an object with the `id` of a request.\n",
            );
        };
        match self.agent.replay(id).await {
            Ok(_) => with_status(StatusCode::NO_CONTENT, "text/plain", Bytes::new()),
            Err(culvert_tunnel::client::ReplayError::Unknown) => not_found(),
            Err(error) => plain(StatusCode::BAD_GATEWAY, &format!("{error}\n")),
        }
    }

    fn list(&self) -> String {
        let agent = self.agent.status().borrow().clone();
        let mut page = top("Requests", true);
        page.push_str(&format!(
            "<p>{} · session {}</p><ul>",
            phase(agent.phase),
            escaped(&agent.session_id)
        ));
        for endpoint in &agent.endpoints {
            page.push_str(&format!(
                "<li><b>{}</b> → {}</li>",
                escaped(&endpoint.url),
                escaped(&endpoint.upstream)
            ));
        }
        page.push_str("</ul>");
        let (recent, Counts { seen, not_kept }) = (self.recent(), self.counts());
        if not_kept > 0 {
            page.push_str(&format!(
                "<p>Showing {} of {seen} requests. {not_kept} requests were not kept, because the limit is {} per second.</p>",
                recent.len(),
                Exchanges::kept_per_second()
            ));
        }
        page.push_str(
            "<table><tr><th>At</th><th>Method</th><th>Path</th><th>Status</th><th>Took</th></tr>",
        );
        for it in recent {
            page.push_str(&format!("<tr><td>{}</td><td>{}</td><td><a href=\"/inspect/http/{}\">{}</a>{}</td><td>{}</td><td>{} ms</td></tr>",
                it.started_at.to_millis_text(),
                escaped(&it.method),
                it.id,
                escaped(&it.path),
                it.replay_of
                    .map_or(String::new(), |of| format!(" (replay of {of})")),
                match (it.status, &it.error) {
                    (Some(status), None) => status.to_string(),
                    (Some(status), Some(_)) => format!("{status}, incomplete"),
                    (None, Some(_)) => "failed".into(),
                    (None, None) => "–".into(),
                },
                it.took.as_millis()));
        }
        page.push_str("</table></body></html>");
        page
    }

    fn detail(&self, it: &Exchange) -> String {
        let mut page = top(&format!("{} {}", it.method, it.path), false);
        page.push_str(&format!("<p><a href=\"/inspect/http\">All requests</a></p><p>{} from {} at {}, {} ms</p>\
             <form method=\"post\" action=\"/inspect/http/{}/replay\"><button>Replay</button></form>",
            escaped(&it.url),
            escaped(&it.client),
            it.started_at.to_millis_text(),
            it.took.as_millis(),
            it.id));
        if let Some(error) = &it.error {
            page.push_str(&format!("<p><b>No response:</b> {}</p>", escaped(error)));
        }
        for (name, message) in [("Request", &it.request), ("Response", &it.response)] {
            let body = message.plain_body();
            let cut = body.len().min(SHOWN_BYTES_MAX);
            page.push_str(&format!(
                "<h2>{name}</h2><pre>{}{}</pre>",
                escaped(&String::from_utf8_lossy(&message.head)),
                escaped(&String::from_utf8_lossy(&body[..cut]))
            ));
            if cut < body.len() || !message.is_whole() {
                page.push_str(&format!(
                    "<p>The body is truncated; its length is {} bytes.</p>",
                    message.body_bytes
                ));
            }
        }
        page.push_str("</body></html>");
        page
    }
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
    json!({
        "status": phase(agent.phase),
        "agent_version": env!("CARGO_PKG_VERSION"),
        "session": {
            "id": agent.session_id,
            "account": agent.account,
            "region": agent.region,
            "server_version": agent.server_version,
            "latency_ms": agent.latency.map(|latency| latency.as_secs_f64() * 1000.0),
        },
        "uri": "/api/status",
    })
}

fn tunnels(agent: &Status) -> Value {
    let tunnels: Vec<Value> = agent
        .endpoints
        .iter()
        .filter(|endpoint| !endpoint.url.is_empty() && !endpoint.is_gone)
        .map(|endpoint| {
            json!({
                "name": endpoint.name,
                "ID": endpoint.id,
                "public_url": endpoint.url,
                "proto": endpoint.protocol,
                "config": {"addr": endpoint.upstream},
            })
        })
        .collect();
    json!({"tunnels": tunnels, "uri": "/api/tunnels"})
}

fn shown(it: &Exchange) -> Value {
    json!({
        "uri": format!("/api/requests/http/{}", it.id),
        "id": it.id.to_string(),
        "public_url": it.url,
        "remote_addr": it.client,
        "start": it.started_at.to_millis_text(),
        "duration": u64::try_from(it.took.as_nanos()).unwrap_or(u64::MAX),
        "tunnel_name": it.endpoint.name,
        "replay_of": it.replay_of.map(|id| id.to_string()),
        "error": it.error,
        "request": {
            "method": it.method,
            "uri": it.path,
            "headers": fields(&it.request),
            "body_bytes": it.request.body_bytes,
            "raw": raw(&it.request),
        },
        "response": it.status.map(|status| json!({
            "status_code": status,
            "headers": fields(&it.response),
            "body_bytes": it.response.body_bytes,
            "raw": raw(&it.response),
        })),
    })
}

/// The head and the kept body of a message in wire format, as base64.
fn raw(message: &Message) -> String {
    STANDARD.encode([&message.head[..], &message.body[..]].concat())
}

fn fields(message: &Message) -> Value {
    let mut fields: Map<String, Value> = Map::new();
    for line in String::from_utf8_lossy(&message.head).split("\r\n").skip(1) {
        if let Some((name, value)) = line.split_once(':') {
            let values = fields
                .entry(name.to_ascii_lowercase())
                .or_insert_with(|| json!([]));
            if let Value::Array(values) = values {
                values.push(value.trim().into());
            }
        }
    }
    fields.into()
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

fn top(title: &str, refresh: bool) -> String {
    let refresh = if refresh {
        "<meta http-equiv=\"refresh\" content=\"2\">"
    } else {
        ""
    };
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">{refresh}<title>{0}</title><style>\
         body{{font:14px/1.5 system-ui,sans-serif;margin:2rem;max-width:72rem}}\
         table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #ddd}}\
         pre{{background:#f6f6f6;padding:1rem;overflow:auto;white-space:pre-wrap;word-break:break-all}}\
         </style></head><body><h1>{0}</h1>",
        escaped(title)
    )
}

fn with_status(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        ),
    ] {
        headers.insert(name, header::HeaderValue::from_static(value));
    }
    answer
}

fn html(page: &str) -> Answer {
    with_status(
        StatusCode::OK,
        "text/html; charset=utf-8",
        Bytes::copy_from_slice(page.as_bytes()),
    )
}

fn data(value: &Value) -> Answer {
    with_status(
        StatusCode::OK,
        "application/json",
        Bytes::from(value.to_string()),
    )
}

fn plain(status: StatusCode, text: &str) -> Answer {
    with_status(
        status,
        "text/plain; charset=utf-8",
        Bytes::copy_from_slice(text.as_bytes()),
    )
}

fn not_found() -> Answer {
    plain(StatusCode::NOT_FOUND, "Not found.\n")
}

fn see_other(to: String) -> Answer {
    let mut answer = plain(StatusCode::SEE_OTHER, "");
    if let Ok(to) = header::HeaderValue::from_str(&to) {
        answer.headers_mut().insert(header::LOCATION, to);
    }
    answer
}
