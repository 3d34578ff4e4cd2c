//! Accepts agents over TCP and TLS, and limits unauthenticated connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::accept::{ConnectionLimits, UnauthenticatedPermit, accept};
use super::session::{Origin, Server};
use crate::congestion_control::CongestionControl;
use crate::socket::Socket;

/// Timeout of the TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The runtime that moves the bytes of the next connection; `None` for the current one.
type NextRuntime = dyn Fn() -> Option<Handle> + Send + Sync;

/// The listener for agents.
pub struct Ingress {
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    server: Arc<Server>,
    limits: ConnectionLimits,
    next_runtime: Arc<NextRuntime>,
    congestion_control: CongestionControl,
}

impl fmt::Debug for Ingress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ingress")
            .field("listener", &self.listener)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Ingress {
    /// Creates an ingress on `listener` with the certificate of `tls`.
    pub fn new(
        listener: TcpListener,
        tls: Arc<ServerConfig>,
        server: Arc<Server>,
        limits: ConnectionLimits,
    ) -> Self {
        Self {
            listener,
            tls,
            server,
            limits,
            next_runtime: Arc::new(|| None),
            congestion_control: CongestionControl::default(),
        }
    }

    /// Moves the bytes of each connection on the runtime that this returns, after its TLS handshake. It should be the
    /// one that uses the streams: then neither wakes another thread, and the bytes of many streams go out together.
    #[must_use]
    pub fn with_runtimes(self, next: impl Fn() -> Option<Handle> + Send + Sync + 'static) -> Self {
        Self {
            next_runtime: Arc::new(next),
            ..self
        }
    }

    /// Has the kernel use this congestion control for the bytes that the server sends to agents.
    #[must_use]
    pub fn with_congestion_control(self, congestion_control: CongestionControl) -> Self {
        Self {
            congestion_control,
            ..self
        }
    }

    /// Serves agents until `stop`; then closes their connections and ends their sessions. The listener closes
    /// earlier, when [`Server::closing`] is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let Self {
            listener,
            tls,
            server,
            limits,
            next_runtime,
            congestion_control,
        } = self;
        let accepting = stop.child_token();
        let closing = async {
            tokio::select! {
                () = server.closing().cancelled() => accepting.cancel(),
                () = accepting.cancelled() => {}
            }
        };
        let serving = accept(
            &listener,
            limits,
            Some(server.meters()),
            &accepting,
            |socket, peer, permit| {
                let tls = TlsAcceptor::from(Arc::clone(&tls));
                let (server, stop) = (Arc::clone(&server), stop.clone());
                let next_runtime = Arc::clone(&next_runtime);
                let congestion_control = congestion_control.clone();
                async move {
                    let accepted = tokio::select! {
                        accepted = accept_tls(socket, &congestion_control, peer, tls, &permit) => accepted,
                        // Another unauthenticated connection takes its permit.
                        () = permit.displaced() => None,
                        () = stop.cancelled() => None,
                    };
                    match accepted {
                        Some((mut socket, origin)) => {
                            // A socket that cannot be moved stays on this runtime.
                            let moves_to = next_runtime()
                                .filter(|runtime| socket.get_mut().0.move_to(runtime).is_ok())
                                .unwrap_or_else(Handle::current);
                            server.serve(socket, origin, permit, stop, &moves_to).await;
                        }
                        None => server.meters().handshakes_failed.up(),
                    }
                }
            },
        );
        let (mut served, ()) = tokio::join!(serving, closing);
        // Agents that connect now are refused and try another node.
        drop(listener);
        while served.join_next().await.is_some() {}
    }
}

/// Performs the TLS handshake, within a timeout.
async fn accept_tls(
    socket: TcpStream,
    congestion_control: &CongestionControl,
    peer: SocketAddr,
    tls: TlsAcceptor,
    permit: &UnauthenticatedPermit,
) -> Option<(TlsStream<Socket>, Origin)> {
    let local = socket.local_addr().ok()?;
    // Until the session knows that the agent does not use Nagle's algorithm.
    let prompt = Arc::new(AtomicBool::new(true));
    let to_socket = Arc::clone(&prompt);
    let handshake = async {
        // A connection that has sent its first byte is protected longer.
        permit.begins(&socket).await?;
        let socket = Socket::prompt(socket, congestion_control, to_socket)?;
        tls.accept(socket).await
    };
    let socket = tokio::time::timeout(HANDSHAKE_TIME, handshake)
        .await
        .ok()?
        .ok()?;
    let origin = Origin {
        peer,
        local,
        server_name: socket.get_ref().1.server_name().map(String::from),
        prompt,
    };
    Some((socket, origin))
}
