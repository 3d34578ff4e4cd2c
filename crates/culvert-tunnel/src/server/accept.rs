//! Takes connections from a listener, no more at once than there is room for. Fewer still are those of
//! strangers, who have not said who they are, in all and of one source. A new stranger takes the place of
//! the oldest one that has said nothing, so silent connections keep no agent waiting.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
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
    /// Of them, those of strangers; for a further one another is closed.
    pub strangers: usize,
    /// Of strangers, those of one source; for a further one another of that source is closed.
    pub strangers_per_source: usize,
}

/// A place among the strangers, given back when dropped.
#[derive(Debug)]
pub struct Stranger {
    book: Arc<Book>,
    place: Place,
    source: IpAddr,
    displaced: CancellationToken,
}

impl Stranger {
    /// Waits until another stranger was given this place; then the connection is to end.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }

    /// It has said who it is, and waits for an answer: those that have not go before it.
    pub fn has_spoken(&mut self) {
        let mut state = self.book.lock();
        if let Some(token) = state.leave(self.place, self.source) {
            self.place.has_spoken = true;
            state.enter(self.place, self.source, token);
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.book.lock().leave(self.place, self.source);
    }
}

/// In the order in which strangers lose their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    has_spoken: bool,
    number: u64,
}

/// Who the strangers are.
#[derive(Debug, Default)]
struct Book(Mutex<Strangers>);

#[derive(Debug, Default)]
struct Strangers {
    numbers: u64,
    places: BTreeMap<Place, (IpAddr, CancellationToken)>,
    /// The places of each source.
    sources: BTreeMap<IpAddr, BTreeMap<Place, ()>>,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Strangers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more stranger, and whether another lost its place for it.
    fn admit(self: &Arc<Self>, address: IpAddr, room: Room) -> (Stranger, bool) {
        let source = block_of(address);
        let mut state = self.lock();
        let mut has_displaced = false;
        while let Some(first) = state.first_over(source, room) {
            let (source, _) = state.places[&first];
            if let Some(token) = state.leave(first, source) {
                token.cancel();
                has_displaced = true;
            }
        }
        state.numbers += 1;
        let place = Place {
            has_spoken: false,
            number: state.numbers,
        };
        let displaced = CancellationToken::new();
        state.enter(place, source, displaced.clone());
        drop(state);
        let stranger = Stranger {
            book: Arc::clone(self),
            place,
            source,
            displaced,
        };
        (stranger, has_displaced)
    }
}

impl Strangers {
    /// Who has to go before a stranger from `source` can come.
    fn first_over(&self, source: IpAddr, room: Room) -> Option<Place> {
        let own = self.sources.get(&source);
        let own = own.filter(|own| own.len() >= room.strangers_per_source.max(1));
        if let Some((first, ())) = own.and_then(|own| own.first_key_value()) {
            return Some(*first);
        }
        let is_full = self.places.len() >= room.strangers.max(1);
        let first = self.places.keys().next().filter(|_| is_full);
        first.copied()
    }

    fn enter(&mut self, place: Place, source: IpAddr, token: CancellationToken) {
        self.places.insert(place, (source, token));
        self.sources.entry(source).or_default().insert(place, ());
    }

    fn leave(&mut self, place: Place, source: IpAddr) -> Option<CancellationToken> {
        let (_, token) = self.places.remove(&place)?;
        if let Some(own) = self.sources.get_mut(&source) {
            own.remove(&place);
            if own.is_empty() {
                self.sources.remove(&source);
            }
        }
        Some(token)
    }
}

/// The address block strangers are counted by: the address itself, or the /64 of IPv6.
pub(super) fn block_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
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
    let book = Arc::new(Book::default());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return connections,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if connections.len() < room.connections => accepted,
        };
        let Ok((socket, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (stranger, has_displaced) = book.admit(peer.ip(), room);
        if let Some(meters) = meters {
            meters.accepted.up();
            if has_displaced {
                meters.turned_away.up();
            }
        }
        connections.spawn(serve(socket, peer, stranger));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room {
        connections: 100,
        strangers: 6,
        strangers_per_source: 3,
    };

    fn come(book: &Arc<Book>, address: &str) -> Stranger {
        book.admit(address.parse().unwrap(), ROOM).0
    }

    fn is_displaced(stranger: &Stranger) -> bool {
        stranger.displaced.is_cancelled()
    }

    #[test]
    fn the_oldest_silent_stranger_of_a_source_makes_room_for_a_new_one() {
        let book = Arc::new(Book::default());
        let others = come(&book, "192.0.2.9");
        let mut spoken = come(&book, "192.0.2.1");
        spoken.has_spoken();
        let silent = [(); 2].map(|()| come(&book, "192.0.2.1"));
        // However many come, those that wait for an answer and those of other sources stay.
        let more: Vec<Stranger> = (0..50).map(|_| come(&book, "::ffff:192.0.2.1")).collect();
        assert!(silent.iter().all(is_displaced));
        assert_eq!(more.iter().filter(|one| !is_displaced(one)).count(), 2);
        assert!(!is_displaced(&spoken) && !is_displaced(&others));
        drop((silent, more, spoken, others));
        let state = book.lock();
        assert!(state.places.is_empty() && state.sources.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let book = Arc::new(Book::default());
        let other = come(&book, "2001:db8:0:2::1");
        let many: Vec<Stranger> = (0..20)
            .map(|nth| come(&book, &format!("2001:db8:0:1::{nth:x}")))
            .collect();
        assert_eq!(many.iter().filter(|one| !is_displaced(one)).count(), 3);
        assert!(!is_displaced(&other));
    }

    #[test]
    fn where_all_places_are_taken_the_oldest_silent_stranger_of_any_source_goes() {
        let book = Arc::new(Book::default());
        let mut first = come(&book, "192.0.2.1");
        first.has_spoken();
        let many: Vec<Stranger> = (2..40)
            .map(|nth| come(&book, &format!("192.0.2.{nth}")))
            .collect();
        assert!(!is_displaced(&first));
        let stay: Vec<bool> = many.iter().map(|one| !is_displaced(one)).collect();
        assert!(stay[stay.len() - 5..].iter().all(|stays| *stays));
        assert_eq!(stay.iter().filter(|stays| **stays).count(), 5);
    }
}
