//! Takes the connections of agents: TCP, TLS, and a place among the strangers until an agent has
//! said who it is.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::session::{Origin, Server};
use crate::socket::Socket;

/// Connections that have not said who they are; further ones wait to be accepted.
const STRANGERS_MAX: usize = 256;
/// The same of one source; further ones are closed.
const STRANGERS_PER_SOURCE_MAX: usize = 16;
/// Agents at once; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 10_000;
/// For the handshake of TLS.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// After a failure to accept, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listener of agents.
#[derive(Debug)]
pub struct Ingress {
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    server: Arc<Server>,
}

impl Ingress {
    /// Agents dial `listener` and are shown the certificate of `tls`.
    pub fn new(listener: TcpListener, tls: Arc<ServerConfig>, server: Arc<Server>) -> Self {
        Self {
            listener,
            tls,
            server,
        }
    }

    /// Serves agents until told to stop; then their connections are closed and their sessions ended.
    pub async fn run(self, stop: CancellationToken) {
        let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
        let sources = Arc::new(Sources::default());
        let mut connections = JoinSet::new();
        loop {
            let accepting = async {
                let place = Arc::clone(&strangers).acquire_owned().await;
                (place, self.listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = accepting, if connections.len() < CONNECTIONS_MAX => accepted,
            };
            let (Ok(place), Ok((socket, peer))) = (place, accepted) else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            self.server.meters().accepted.up();
            let Some(source) = Sources::enter(&sources, peer.ip()) else {
                self.server.meters().turned_away.up();
                continue;
            };
            let tls = TlsAcceptor::from(Arc::clone(&self.tls));
            let server = Arc::clone(&self.server);
            let stranger = Stranger {
                _place: place,
                _source: source,
            };
            let stop = stop.clone();
            connections.spawn(async move {
                let greeted = tokio::select! {
                    greeted = greet(socket, peer, tls) => greeted,
                    () = stop.cancelled() => None,
                };
                match greeted {
                    Some((socket, origin)) => {
                        server.serve(socket, origin, stranger, stop).await;
                    }
                    None => server.meters().handshakes_failed.up(),
                }
            });
        }
        while connections.join_next().await.is_some() {}
    }
}

/// Speaks TLS, or gives up.
async fn greet(
    socket: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
) -> Option<(TlsStream<Socket>, Origin)> {
    let local = socket.local_addr().ok()?;
    let prompt = Arc::new(AtomicBool::new(true));
    let socket = Socket::prompt(socket, Arc::clone(&prompt)).ok()?;
    let handshake = tls.accept(socket);
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

/// A place among those who have not said who they are, given back when dropped.
#[derive(Debug)]
pub(crate) struct Stranger {
    _place: OwnedSemaphorePermit,
    _source: Source,
}

/// How many strangers each source has.
#[derive(Debug, Default)]
pub struct Sources {
    counts: Mutex<BTreeMap<IpAddr, usize>>,
}

/// The place of a stranger among those of its source, given back when dropped.
#[derive(Debug)]
pub struct Source {
    sources: Arc<Sources>,
    address: IpAddr,
}

impl Sources {
    /// `None` if the source has all of its places taken.
    pub fn enter(sources: &Arc<Self>, address: IpAddr) -> Option<Source> {
        let mut counts = sources
            .counts
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let count = counts.entry(address).or_default();
        if *count >= STRANGERS_PER_SOURCE_MAX {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Source {
            sources: Arc::clone(sources),
            address,
        })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut counts = self
            .sources
            .counts
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}
