//! Connections: accepted within limits, with or without TLS, served as HTTP/1.1 or HTTP/2, and drained at the stop.
//!
//! Each connection is a task, and is closed if a deadline passes (`connection_state`). A stop ends accepting and live tails
//! immediately, lets requests in flight finish, and closes remaining connections after the drain period.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderValue;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{Api, Body, Limits, Meters, OPERATION_ID};
use culvert_api_http::access::limits::{Source, SourceConnection};
use culvert_api_http::connection::connection_state::{
    ConnectionState, ConnectionTimeouts, STREAMS_MAX, TimedSocket,
};
use culvert_api_http::connection::peer::{self, Ends};
use culvert_api_http::response::problem::Problem;

/// Maximum size of a head over HTTP/1: 16 KiB for the request line and 64 KiB for the fields.
const HEAD_BYTES_MAX: usize = (16 + 64) << 10;
/// Maximum number of fields of a head.
const HEADERS_MAX: usize = 128;
/// Limits of HTTP/2: a decoded header section, flow control windows, and data that waits to be sent.
const HEADER_LIST_BYTES_MAX: u32 = 64 << 10;
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const UNSENT_BYTES_MAX: usize = 512 << 10;
/// Limit of unsent bytes in the kernel's buffer of a connection.
#[cfg(target_os = "linux")]
const KERNEL_BYTES: u32 = 64 << 10;
/// Maximum number of connections that only get 503 because their source has too many, in all and of a source, and the
/// time for each.
pub(crate) const REFUSALS_AT_ONCE: usize = 64;
const REFUSALS_OF_SOURCE: usize = 8;
const TURNED_AWAY_WITHIN: Duration = Duration::from_secs(1);
/// The time for a connection that has no place, whatever it sends.
const WITHOUT_PLACE_WITHIN: Duration = Duration::from_secs(3);
const FULL: &str = "Your address has too many connections; try again.";
/// Delay after a failed accept: file descriptors or memory are exhausted, and an immediate retry would spin.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

impl Api {
    /// Serves `listener` until `stop` is cancelled, and then requests in flight for the drain period.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        self.serve_on(listener, None, stop).await;
    }

    /// Like [`Api::serve`], over TLS.
    pub async fn serve_tls(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Arc<ServerConfig>,
        stop: CancellationToken,
    ) {
        self.serve_on(listener, Some(tls.into()), stop).await;
    }

    /// Accepts connections until `stop` is cancelled, then waits for requests in flight.
    async fn serve_on(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        stop: CancellationToken,
    ) {
        let builder = builder();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = connections.join_next() => self.note_ended(ended),
                accepted = self.accept_from(&listener) => match accepted {
                    Ok((socket, from)) => {
                        // Another listener may have taken the last permit since `accept_from` saw one.
                        let permit = Arc::clone(&self.permits).acquire_owned();
                        let permit = tokio::select! {
                            biased;
                            () = stop.cancelled() => break,
                            permit = permit => permit,
                        };
                        match self.admit(&socket, from, tls.is_some()) {
                            Some((ends, Some(held))) => {
                                let serving = Arc::clone(&self).handshake_and_serve(
                                    builder.clone(), socket, tls.clone(), ends, held, stop.clone(),
                                );
                                connections.spawn(async move {
                                    let _permit = permit;
                                    serving.await;
                                });
                            }
                            // Without TLS it gets 503. There are few of these at one time, so that one source takes
                            // neither the places nor the refusals of others.
                            Some((_, None)) if tls.is_none() => {
                                let operation_id = self.operation_id();
                                let of_source = self.sources.refuse(Source::of(from.ip()), REFUSALS_OF_SOURCE);
                                let of_all = Arc::clone(&self.refusals).try_acquire_owned();
                                let (Some(of_source), Ok(of_all)) = (of_source, of_all) else {
                                    // Without a wait, the end of the connection may overtake it.
                                    drop(socket.try_write(refusal(&operation_id).as_bytes()));
                                    continue;
                                };
                                connections.spawn(async move {
                                    let _places = (permit, of_source, of_all);
                                    turn_away(socket, operation_id).await;
                                });
                            }
                            _ => continue,
                        }
                        self.meters.connections.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the API cannot accept connections: {error}");
                        tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                    }
                },
            }
        }
        drop(listener);
        // Ends streams of events, which would otherwise last until the end of the drain period.
        self.stopping.cancel();
        let draining = async {
            while let Some(ended) = connections.join_next().await {
                self.note_ended(ended);
            }
        };
        if tokio::time::timeout(self.settings.limits.drain, draining)
            .await
            .is_err()
        {
            let left = connections.len();
            tracing::warn!(
                left,
                "{left} API connections were closed at the end of the drain time"
            );
            connections.shutdown().await;
        }
    }

    /// Accepts a connection once there is a permit for it. All listeners share the permits.
    async fn accept_from(
        &self,
        listener: &TcpListener,
    ) -> std::io::Result<(TcpStream, SocketAddr)> {
        // Not kept while this waits for a client: an idle listener would take a permit from the others.
        drop(self.permits.acquire().await);
        listener.accept().await
    }

    /// Counts a connection for its source, except for trusted proxies, which have many clients. `None` if the socket is
    /// already closed, and `None` as the place if the source has too many to wait for one.
    fn admit(
        &self,
        socket: &TcpStream,
        from: SocketAddr,
        is_tls: bool,
    ) -> Option<(Ends, Option<SourcePlace>)> {
        let ends = Ends {
            peer: from,
            local: socket.local_addr().ok()?,
            is_tls,
        };
        // Responses are small and written whole, so delaying segments has no benefit.
        socket.set_nodelay(true).ok()?;
        // So that progress shows how fast the client reads, not how large the kernel's buffer is.
        #[cfg(target_os = "linux")]
        if let Err(error) = SockRef::from(socket).set_tcp_notsent_lowat(KERNEL_BYTES) {
            tracing::debug!(%error, "cannot limit the send buffer of a connection of the API");
        }
        if peer::is_trusted(from.ip(), &self.settings.trusted_proxies) {
            return Some((ends, Some(SourcePlace(None))));
        }
        let most = self.settings.limits.connections_per_source;
        let held = self.sources.enter(Source::of(from.ip()), most);
        if held.is_none() {
            Meters::count(&self.meters.connections_refused);
        }
        Some((ends, held.map(|held| SourcePlace(Some(held)))))
    }

    /// Counts the end of a connection.
    fn note_ended(&self, ended: Result<(), tokio::task::JoinError>) {
        self.meters.connections.fetch_sub(1, Ordering::Relaxed);
        if ended.is_err_and(|error| error.is_panic()) {
            Meters::count(&self.meters.panics);
            tracing::error!("an API connection panicked");
        }
    }

    /// Completes the TLS handshake, if there is one, and serves the connection.
    async fn handshake_and_serve(
        self: Arc<Self>,
        builder: Builder<TokioExecutor>,
        socket: TcpStream,
        tls: Option<TlsAcceptor>,
        ends: Ends,
        source: SourcePlace,
        stop: CancellationToken,
    ) {
        let Some(tls) = tls else {
            let serving = self.serve_connection(builder, socket, ends, source, stop);
            return serving.await;
        };
        let handshake = tokio::time::timeout(self.settings.limits.head, tls.accept(socket));
        let secured = tokio::select! {
            secured = handshake => secured,
            () = stop.cancelled() => return,
        };
        match secured {
            // Boxed because the state of TLS is large.
            Ok(Ok(socket)) => {
                Box::pin(self.serve_connection(builder, socket, ends, source, stop)).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(peer = %ends.peer, %error, "a TLS handshake of the API failed");
            }
            Err(_) => {
                Meters::count(&self.meters.connections_late);
                tracing::debug!(peer = %ends.peer, "a TLS handshake of the API timed out");
            }
        }
    }

    /// The deadlines of a connection now. While few permits are left, idle connections end early, so that a few sources do
    /// not keep all of them.
    fn now(&self, timeouts: ConnectionTimeouts) -> ConnectionTimeouts {
        let limits = &self.settings.limits;
        match self.permits.available_permits() < limits.connections.div_ceil(4) {
            true => ConnectionTimeouts {
                idle: timeouts.idle.min(limits.head),
                idle_h2: timeouts.idle_h2.min(limits.head),
                ..timeouts
            },
            false => timeouts,
        }
    }

    /// The response to a request of a connection that has no place.
    fn refuse_connection(&self) -> hyper::Response<Body> {
        Meters::count(&self.meters.requests);
        Meters::count(&self.meters.failed);
        let operation_id = self.operation_id();
        let mut response = Problem::unavailable(FULL).into_response(&operation_id);
        if let Ok(id) = HeaderValue::try_from(operation_id) {
            response.headers_mut().insert(OPERATION_ID, id);
        }
        response
    }

    /// Serves the requests of a connection until it ends, a deadline passes, or it is drained after `stop`. If its source
    /// has too many others, it gets 503 and ends.
    async fn serve_connection(
        self: Arc<Self>,
        builder: Builder<TokioExecutor>,
        socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        ends: Ends,
        mut source: SourcePlace,
        stop: CancellationToken,
    ) {
        let limits = &self.settings.limits;
        let has_place = match &mut source.0 {
            Some(source) => source.wait(limits.waiting).await,
            None => true,
        };
        if !has_place {
            Meters::count(&self.meters.connections_refused);
        }
        let timeouts = match has_place {
            true => timeouts(limits),
            false => ConnectionTimeouts {
                head: TURNED_AWAY_WITHIN,
                idle: TURNED_AWAY_WITHIN,
                idle_h2: TURNED_AWAY_WITHIN,
                stalled: TURNED_AWAY_WITHIN,
            },
        };
        let refused = Arc::new(Notify::new());
        let state = ConnectionState::begin();
        let service = service_fn(|request: Request<Incoming>| {
            let busy = state.request();
            let api = Arc::clone(&self);
            let refused = Arc::clone(&refused);
            async move {
                let mut response = match has_place {
                    true => api.answer(request, ends).await,
                    false => {
                        refused.notify_one();
                        api.refuse_connection()
                    }
                };
                // In flight until its body is sent, so that no idle deadline cuts a stream.
                response.body_mut().hold(busy);
                Ok::<_, Infallible>(response)
            }
        });
        let io = TokioIo::new(TimedSocket::new(socket, state.clone()));
        let mut connection = Box::pin(builder.serve_connection(io, service));
        // One timer per connection. It finds a deadline at most a quarter of `head` late.
        let mut checks = tokio::time::interval(timeouts.head / 4);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = tokio::time::sleep(WITHOUT_PLACE_WITHIN);
        let mut end = std::pin::pin!(end);
        let mut stopping = false;
        loop {
            tokio::select! {
                // The connection first, so that bytes which have arrived count before a deadline is checked.
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "an API connection ended early: {error}");
                    }
                    return;
                }
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = refused.notified(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = end.as_mut(), if !has_place => return,
                _ = checks.tick() => if let Some(why) = state.overdue(Instant::now(), &self.now(timeouts)) {
                    Meters::count(&self.meters.connections_late);
                    tracing::debug!(peer = %ends.peer, "an API connection was closed: {why}");
                    return;
                },
            }
        }
    }
}

/// The place of a connection among those of its source; `None` for a trusted proxy.
struct SourcePlace(Option<SourceConnection>);

/// The response to a client of a source with too many connections.
fn refusal(operation_id: &str) -> String {
    let body = format!(
        r#"{{"error_code":"ERR_NGROK_10000","status_code":503,"msg":"{FULL}","details":{{"operation_id":"{operation_id}"}}}}"#
    );
    let length = body.len();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncache-control: no-store\r\n\
         retry-after: 1\r\nngrok-operation-id: {operation_id}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Responds with 503 to a client without TLS, before its request is complete.
async fn turn_away(mut socket: TcpStream, operation_id: String) {
    let telling = async {
        // A response before the request could be lost with the end of the connection.
        let mut head = [0; 4096];
        if socket.read(&mut head).await? == 0 {
            return Ok(());
        }
        socket.write_all(refusal(&operation_id).as_bytes()).await?;
        socket.shutdown().await?;
        // Until the client has read it and closes.
        while socket.read(&mut head).await? > 0 {}
        std::io::Result::Ok(())
    };
    // Fails if the client is gone, or too slow.
    drop(tokio::time::timeout(TURNED_AWAY_WITHIN, telling).await);
}

fn timeouts(limits: &Limits) -> ConnectionTimeouts {
    ConnectionTimeouts {
        head: limits.head,
        idle: limits.idle.0,
        idle_h2: limits.idle.1,
        stalled: limits.stalled,
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // `connection_state` has a deadline for heads; this one would also run while a connection is idle.
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_send_buf_size(UNSENT_BYTES_MAX);
    builder
}
