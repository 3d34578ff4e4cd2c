//! `culvert witness serve`: the HTTP server of a witness.

use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Clock, SystemClock};
use culvert_tlog::{
    ADD_CHECKPOINT_PATH, AddCheckpoint, Declined, REQUEST_BYTES_MAX, SIZE_TYPE, SigningKey,
    origin_digest,
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::state::{Answer, WitnessState};
use super::{Failure, failed, say};

/// Limit of connections; more wait in the backlog.
const CONNECTIONS_MAX: usize = 256;
/// How long the head of a request, its body, and each pause between requests may take.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// How long a connection may last.
const CONNECTION_FOR: Duration = Duration::from_secs(300);
/// Pause after the system has no descriptor for a connection.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

struct Witness {
    state: WitnessState,
    key: SigningKey,
}

/// Serves until the process ends.
pub(super) async fn run(
    state: WitnessState,
    key: SigningKey,
    listen: SocketAddr,
) -> Result<(), Failure> {
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| Failure::Failed(format!("listening on {listen}: {error}")))?;
    let address = listener.local_addr().map_err(failed)?;
    say(format_args!("key of the witness: {}", key.verifier()))?;
    say(format_args!("the witness listens on http://{address}"))?;
    let witness = Arc::new(Witness { state, key });
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return Ok(());
        };
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                complain(format_args!("cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let witness = Arc::clone(&witness);
        connections.spawn(async move {
            drop(tokio::time::timeout(CONNECTION_FOR, connection(stream, witness)).await);
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, witness: Arc<Witness>) {
    let service = service_fn(move |request| {
        let witness = Arc::clone(&witness);
        async move {
            let answered = tokio::time::timeout(REQUEST_WITHIN, witness.respond(request)).await;
            let late = |_| {
                plain(
                    StatusCode::REQUEST_TIMEOUT,
                    "the request is too slow\n".into(),
                )
            };
            Ok::<_, Infallible>(answered.unwrap_or_else(late))
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .serve_connection(TokioIo::new(stream), service);
    // A client that closes its connection is not worth a line.
    drop(served.await);
}

impl Witness {
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, ADD_CHECKPOINT_PATH) => {
                let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX)
                    .collect()
                    .await;
                let request = body.ok().map(|body| body.to_bytes());
                let request = request.and_then(|body| AddCheckpoint::parse(&body));
                match request {
                    Some(request) => self.add(request).await,
                    None => plain(StatusCode::BAD_REQUEST, "not a request of a log\n".into()),
                }
            }
            (&Method::GET, path) => {
                let origin = path
                    .strip_prefix('/')
                    .and_then(|it| it.strip_suffix("/checkpoint"));
                self.latest(origin.unwrap_or_default().to_owned()).await
            }
            _ => plain(StatusCode::NOT_FOUND, "not found\n".into()),
        }
    }

    async fn add(self: Arc<Self>, request: AddCheckpoint) -> Response<Full<Bytes>> {
        let origin = request.signed.checkpoint().origin.clone();
        let now = SystemClock.now().unix_seconds().unsigned_abs();
        // The state is synced to disk.
        let answer =
            tokio::task::spawn_blocking(move || self.state.answer(&request, &self.key, now)).await;
        match answer {
            Ok(Ok(Answer::Signed(line))) => plain(StatusCode::OK, line),
            Ok(Ok(Answer::UnknownLog)) => plain(
                StatusCode::NOT_FOUND,
                "the witness does not know this log\n".into(),
            ),
            Ok(Ok(Answer::Declined(declined))) => {
                if matches!(declined, Declined::Inconsistent) {
                    complain(format_args!(
                        "a signed head of `{origin}` does not extend the one before it: its history was written again"
                    ));
                }
                let status = StatusCode::from_u16(declined.status());
                let status = status.unwrap_or(StatusCode::BAD_REQUEST);
                let Declined::Conflict(size) = declined else {
                    return plain(status, format!("{declined}\n"));
                };
                let mut response = plain(status, format!("{size}\n"));
                let media_type = HeaderValue::from_static(SIZE_TYPE);
                response
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, media_type);
                response
            }
            Ok(Err(error)) => broken(&error),
            Err(error) => broken(&error),
        }
    }

    /// The latest head of the log whose origin has this SHA-256, in lower-case hexadecimal digits.
    async fn latest(self: Arc<Self>, digest: String) -> Response<Full<Bytes>> {
        let is_asked = move |origin: &str| origin_digest(origin) == digest;
        match tokio::task::spawn_blocking(move || self.state.latest(is_asked)).await {
            Ok(Ok(Some(head))) => plain(StatusCode::OK, head),
            Ok(Ok(None)) => plain(StatusCode::NOT_FOUND, "not found\n".into()),
            Ok(Err(error)) => broken(&error),
            Err(error) => broken(&error),
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> Response<Full<Bytes>> {
    complain(format_args!(
        "the state of the witness cannot be used: {error}"
    ));
    let why = "the witness cannot use its state\n";
    plain(StatusCode::INTERNAL_SERVER_ERROR, why.into())
}

/// A line on standard error; without it, the witness serves as well.
fn complain(what: std::fmt::Arguments<'_>) {
    drop(writeln!(std::io::stderr(), "{what}"));
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let media_type = HeaderValue::from_static("text/plain; charset=utf-8");
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
    response
}
