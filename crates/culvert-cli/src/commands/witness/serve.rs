//! `culvert witness serve`: the HTTP server of a witness.

use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::names::escaped;
use culvert_base::{Clock, SystemClock};
use culvert_tlog::{
    ADD_CHECKPOINT_PATH, AddCheckpoint, Declined, REQUEST_BYTES_MAX, SIZE_TYPE, SignedCheckpoint,
    SigningKey, origin_digest,
};
use culvert_tls::server_certificate::{ServerCertificate, read_certificate_files};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::connections::{Connections, OpenConnection};
use super::state::{Answer, WitnessState};
use super::{Failure, failed, say};

/// How long a TLS handshake, the head of a request, its body, and each pause between requests may take.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// How long a connection may last.
const CONNECTION_FOR: Duration = Duration::from_secs(300);
/// Pause after the system has no descriptor for a connection.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The files of a certificate, which SIGHUP reads again.
#[derive(Debug)]
pub(super) struct TlsFiles {
    /// The chain, in PEM.
    pub(super) certificate: PathBuf,
    /// Its private key, in PEM.
    pub(super) key: PathBuf,
}

impl TlsFiles {
    /// Returns why they cannot be used, if they cannot.
    fn read(&self) -> Result<TlsAcceptor, String> {
        let key = read_certificate_files(&self.certificate, &self.key);
        let key = key.map_err(|fault| fault.chain())?;
        let certificate = ServerCertificate::plain(key).map_err(|error| error.to_string())?;
        let mut config = ServerConfig::clone(&certificate.config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config).into())
    }
}

/// TLS of a listener.
struct Tls {
    files: TlsFiles,
    acceptor: TlsAcceptor,
    reloads: Signal,
}

impl Tls {
    fn open(files: TlsFiles) -> Result<Self, Failure> {
        Ok(Self {
            acceptor: files.read().map_err(Failure::Failed)?,
            files,
            reloads: signal(SignalKind::hangup()).map_err(failed)?,
        })
    }

    /// Completes when the files are to be read again.
    async fn reload(tls: &mut Option<Self>) {
        match tls {
            Some(tls) => {
                tls.reloads.recv().await;
                match tls.files.read() {
                    Ok(acceptor) => {
                        tls.acceptor = acceptor;
                        complain(format_args!("the certificate was read again"));
                    }
                    Err(why) => complain(format_args!("the old certificate stays: {why}")),
                }
            }
            None => std::future::pending().await,
        }
    }
}

struct Witness {
    state: WitnessState,
    key: SigningKey,
}

/// Serves until the process ends.
pub(super) async fn run(
    state: WitnessState,
    key: SigningKey,
    listen: SocketAddr,
    tls: Option<TlsFiles>,
) -> Result<(), Failure> {
    let mut tls = tls.map(Tls::open).transpose()?;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| Failure::Failed(format!("listening on {listen}: {error}")))?;
    let address = listener.local_addr().map_err(failed)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    say(format_args!("key of the witness: {}", key.verifier()))?;
    say(format_args!("the witness listens on {scheme}://{address}"))?;
    let witness = Arc::new(Witness { state, key });
    let connections = Connections::default();
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = Tls::reload(&mut tls) => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                complain(format_args!("cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        let Some(open) = connections.enter(peer.ip()) else {
            continue;
        };
        let witness = Arc::clone(&witness);
        let acceptor = tls.as_ref().map(|tls| tls.acceptor.clone());
        tasks.spawn(async move {
            let open = Arc::new(open);
            tokio::select! {
                () = open.replaced() => {}
                _ = tokio::time::timeout(
                    CONNECTION_FOR,
                    connection(stream, acceptor, witness, Arc::clone(&open)),
                ) => {}
            }
        });
    }
}

/// Completes the TLS handshake, if there is one, and serves the connection.
async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    witness: Arc<Witness>,
    open: Arc<OpenConnection>,
) {
    let Some(acceptor) = acceptor else {
        return requests(stream, witness, open).await;
    };
    let secured = tokio::time::timeout(REQUEST_WITHIN, acceptor.accept(stream)).await;
    if let Ok(Ok(stream)) = secured {
        requests(stream, witness, open).await;
    }
}

async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    witness: Arc<Witness>,
    open: Arc<OpenConnection>,
) {
    let service = service_fn(move |request| {
        let (witness, open) = (Arc::clone(&witness), Arc::clone(&open));
        async move {
            let answered = tokio::time::timeout(REQUEST_WITHIN, witness.respond(request, &open));
            let late = |_| {
                plain(
                    StatusCode::REQUEST_TIMEOUT,
                    "the request is too slow\n".into(),
                )
            };
            Ok::<_, Infallible>(answered.await.unwrap_or_else(late))
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
    async fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
        open: &OpenConnection,
    ) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, ADD_CHECKPOINT_PATH) => {
                let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX)
                    .collect()
                    .await;
                let request = body.ok().map(|body| body.to_bytes());
                let request = request.and_then(|body| AddCheckpoint::parse(&body));
                // Until here, it waited for its client.
                let _busy = open.busy();
                match request {
                    Some(request) => self.add(request).await,
                    None => plain(StatusCode::BAD_REQUEST, "not a request of a log\n".into()),
                }
            }
            (&Method::GET, path) => {
                let origin = path
                    .strip_prefix('/')
                    .and_then(|it| it.strip_suffix("/checkpoint"));
                let _busy = open.busy();
                self.latest(origin.unwrap_or_default().to_owned()).await
            }
            _ => plain(StatusCode::NOT_FOUND, "not found\n".into()),
        }
    }

    async fn add(self: Arc<Self>, request: AddCheckpoint) -> Response<Full<Bytes>> {
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
            Ok(Ok(Answer::Forked(heads))) => {
                accuse(&heads);
                let status = StatusCode::from_u16(Declined::Inconsistent.status());
                let status = status.unwrap_or(StatusCode::BAD_REQUEST);
                plain(status, "the log signed two histories\n".into())
            }
            Ok(Ok(Answer::Declined(declined))) => {
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

/// Prints two signed heads of one log that cannot both be true, in lines that a terminal shows as they are.
fn accuse([known, other]: &[SignedCheckpoint; 2]) {
    let head = known.checkpoint();
    complain(format_args!(
        "the log `{}` signed two histories of {} events: {:?} and {:?}",
        escaped(&head.origin),
        head.size,
        known.to_string(),
        other.to_string(),
    ));
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
