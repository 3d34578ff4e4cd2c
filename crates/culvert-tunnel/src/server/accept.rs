//! Takes connections from a listener, no more at once than there is room for. Fewer still are those of
//! strangers, who have not said who they are, in all and of one source.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::meters::Meters;

/// After a failure to accept, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections a listener takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// In all; further ones wait to be accepted.
    pub connections: usize,
    /// Of them, those of strangers; further ones wait to be accepted.
    pub strangers: usize,
    /// Of strangers, those of one source; further ones are closed.
    pub strangers_per_source: usize,
}

/// A place among the strangers, given back when dropped.
#[derive(Debug)]
pub struct Stranger {
    _place: OwnedSemaphorePermit,
    _source: Source,
}

/// Serves each connection of a listener in a task of its own until told to stop. What is still served
/// then is answered.
pub async fn accept<F>(
    listener: &TcpListener,
    room: Room,
    meters: Option<&Meters>,
    stop: &CancellationToken,
    mut serve: impl FnMut(TcpStream, SocketAddr, Stranger) -> F,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let strangers = Arc::new(Semaphore::new(room.strangers));
    let sources = Arc::new(Sources::default());
    let mut connections = JoinSet::new();
    loop {
        let accepting = async {
            let place = Arc::clone(&strangers).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => return connections,
            Some(_) = connections.join_next() => continue,
            accepted = accepting, if connections.len() < room.connections => accepted,
        };
        let (Ok(place), Ok((socket, peer))) = (place, accepted) else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if let Some(meters) = meters {
            meters.accepted.up();
        }
        let Some(source) = Source::enter(&sources, peer.ip(), room.strangers_per_source) else {
            if let Some(meters) = meters {
                meters.turned_away.up();
            }
            continue;
        };
        let stranger = Stranger {
            _place: place,
            _source: source,
        };
        connections.spawn(serve(socket, peer, stranger));
    }
}

/// How many strangers each source has.
type Sources = Mutex<BTreeMap<IpAddr, usize>>;

/// The place of a stranger among those of its source, given back when dropped.
#[derive(Debug)]
struct Source {
    sources: Arc<Sources>,
    address: IpAddr,
}

impl Source {
    /// `None` if the source has all of its places taken.
    fn enter(sources: &Arc<Sources>, address: IpAddr, most: usize) -> Option<Self> {
        let mut counts = sources.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Self {
            sources: Arc::clone(sources),
            address,
        })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut counts = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}
