//! Accepts agents over TCP and TLS, and limits unauthenticated connections.

use std::fmt;
use std::io;
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
use crate::socket::Socket;

/// Timeout of the TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The listener for agents.
#[derive(Debug)]
pub struct Ingress {
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    server: Arc<Server>,
    limits: ConnectionLimits,
    threads: Threads,
}

/// Returns the runtime that moves the bytes of the next connection; `None` for the current one.
#[derive(Clone)]
struct Threads(Arc<dyn Fn() -> Option<Handle> + Send + Sync>);

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Threads")
    }
}

impl Threads {
    /// Gives a connection that was accepted to the next runtime, whose reactor then watches it.
    fn place(&self, socket: TcpStream) -> io::Result<(TcpStream, Handle)> {
        let Some(thread) = (self.0)() else {
            return Ok((socket, Handle::current()));
        };
        let socket = socket.into_std()?;
        let entered = thread.enter();
        let socket = TcpStream::from_std(socket)?;
        drop(entered);
        Ok((socket, thread))
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
            threads: Threads(Arc::new(|| None)),
        }
    }

    /// Moves the bytes of each connection on a runtime that `threads` returns. The handshake and the calls of agents
    /// stay on the runtime of [`Ingress::run`].
    #[must_use]
    pub fn on_threads(self, threads: impl Fn() -> Option<Handle> + Send + Sync + 'static) -> Self {
        Self {
            threads: Threads(Arc::new(threads)),
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
            threads,
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
                let threads = threads.clone();
                async move {
                    let placed = threads.place(socket);
                    let greeting = async {
                        let (socket, thread) = placed.ok()?;
                        let greeted = greet(socket, peer, tls, &permit).await?;
                        Some((greeted, thread))
                    };
                    let greeted = tokio::select! {
                        greeted = greeting => greeted,
                        () = permit.displaced() => None,
                        () = stop.cancelled() => None,
                    };
                    match greeted {
                        Some(((socket, origin), thread)) => {
                            server.serve(socket, &thread, origin, permit, stop).await;
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
async fn greet(
    socket: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
    permit: &UnauthenticatedPermit,
) -> Option<(TlsStream<Socket>, Origin)> {
    let local = socket.local_addr().ok()?;
    let prompt = Arc::new(AtomicBool::new(true));
    let to_socket = Arc::clone(&prompt);
    let handshake = async {
        permit.begins(&socket).await?;
        tls.accept(Socket::prompt(socket, to_socket)?).await
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
