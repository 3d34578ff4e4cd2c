//! Takes connections from a listener, no more at once than there is room for. Fewer still are those of
//! strangers, who have not said who they are, in all and of one source.
//!
//! Where the places of strangers are taken, a newcomer displaces the oldest silent stranger of the source
//! that has most places. Strangers of a source with no more places than the newcomer's have a moment in
//! which they cannot be displaced; if there are only such, the newcomer is turned away. So one who holds
//! places, or takes them over and over, keeps no other source out, and slow agents have time to speak.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::meters::Meters;

/// After a failure to accept, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A stranger that has begun to speak has this long before one of a source with as many places can
/// displace it.
const PROTECTED: Duration = Duration::from_millis(1_500);
/// One that has not sent a byte: clients send their first with the end of the handshake of TCP.
const PROTECTED_MUTE: Duration = Duration::from_millis(250);

/// How many connections a listener takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// In all; further ones wait to be accepted.
    pub connections: usize,
    /// Of them, those of strangers; for a further one another is closed, or the new one.
    pub strangers: usize,
    /// Of strangers, those of one source; for a further one another of that source is closed, or the new
    /// one.
    pub strangers_per_source: usize,
}

/// A place among the strangers, given back when dropped.
#[derive(Debug)]
pub struct UnauthenticatedPermit {
    book: Arc<UnauthenticatedConnections>,
    source: IpAddr,
    number: u64,
    displaced: CancellationToken,
}

impl UnauthenticatedPermit {
    /// Waits until another stranger was given this place; then the connection is to end.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }

    /// Its first byte is there.
    pub fn has_begun(&self) {
        self.book.lock().change(self.source, |source| {
            if let Some(place) = source.mute.remove(&self.number) {
                source.silent.insert(self.number, place);
            }
        });
    }

    /// Waits for its first byte, which is left unread.
    pub async fn begins(&self, socket: &TcpStream) -> io::Result<()> {
        socket.peek(&mut [0]).await?;
        self.has_begun();
        Ok(())
    }

    /// It has said all of who it is, and waits for an answer: those that have not go before it.
    pub fn has_spoken(&self) {
        self.book.lock().change(self.source, |source| {
            if let Some(place) = source.take(self.number) {
                source.spoken.insert(self.number, place);
            }
        });
    }

    /// It was refused, and holds its place no better than one that never spoke.
    pub fn is_refused(&self) {
        self.book.lock().change(self.source, |source| {
            if let Some(place) = source.spoken.remove(&self.number) {
                source.silent.insert(self.number, place);
            }
        });
    }
}

impl Drop for UnauthenticatedPermit {
    fn drop(&mut self) {
        self.book.lock().leave(self.source, self.number);
    }
}

/// Who the strangers are.
#[derive(Debug, Default)]
struct UnauthenticatedConnections(Mutex<Strangers>);

#[derive(Debug, Default)]
struct Strangers {
    numbers: u64,
    count: usize,
    sources: BTreeMap<IpAddr, Source>,
    /// The sources by how many places they have, most first.
    order: BTreeSet<Rank>,
}

/// Of sources with as many places each, those come first whose strangers have sent nothing, then those
/// whose first stranger is the oldest.
type Rank = (Reverse<usize>, bool, u64, IpAddr);

fn first_of(count: usize, has_begun: bool) -> Rank {
    let lowest = Ipv4Addr::UNSPECIFIED.into();
    (Reverse(count), has_begun, 0, lowest)
}

/// The places of one source, by number: the oldest has the lowest.
#[derive(Debug, Default)]
struct Source {
    /// Without a byte yet.
    mute: BTreeMap<u64, Permit>,
    /// In the middle of saying who they are.
    silent: BTreeMap<u64, Permit>,
    /// Waiting for an answer.
    spoken: BTreeMap<u64, Permit>,
}

#[derive(Debug)]
struct Permit {
    since: Instant,
    displaced: CancellationToken,
}

/// What becomes of a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// There is a place.
    Free,
    /// This one makes room.
    Displaces(IpAddr, u64),
    /// Nobody makes room.
    TurnedAway,
}

impl UnauthenticatedConnections {
    fn lock(&self) -> MutexGuard<'_, Strangers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more stranger, unless it is turned away, and whether another lost its place for it.
    fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        room: ConnectionLimits,
        now: Instant,
    ) -> (Option<UnauthenticatedPermit>, bool) {
        let source = block_of(address);
        let mut state = self.lock();
        let decision = state.decide(source, room, now);
        match decision {
            Decision::Free => {}
            Decision::Displaces(other, number) => {
                if let Some(place) = state.leave(other, number) {
                    place.displaced.cancel();
                }
            }
            Decision::TurnedAway => return (None, false),
        }
        let displaced = CancellationToken::new();
        let place = Permit {
            since: now,
            displaced: displaced.clone(),
        };
        let number = state.enter(source, place);
        drop(state);
        let stranger = UnauthenticatedPermit {
            book: Arc::clone(self),
            source,
            number,
            displaced,
        };
        (Some(stranger), decision != Decision::Free)
    }
}

impl Source {
    fn count(&self) -> usize {
        self.mute.len() + self.silent.len() + self.spoken.len()
    }

    fn take(&mut self, number: u64) -> Option<Permit> {
        let all = [&mut self.mute, &mut self.silent, &mut self.spoken];
        all.into_iter().find_map(|places| places.remove(&number))
    }

    fn rank(&self, address: IpAddr) -> Rank {
        let first = self.mute.keys().chain(self.silent.keys()).next();
        let oldest = first.copied().unwrap_or(u64::MAX);
        (Reverse(self.count()), self.mute.is_empty(), oldest, address)
    }

    /// The oldest stranger that has not spoken and had its time to speak.
    fn oldest_silent(&self, now: Instant) -> Option<u64> {
        let had_time = |places: &BTreeMap<u64, Permit>, protected| {
            let (number, place) = places.first_key_value()?;
            let age = now.saturating_duration_since(place.since);
            (age >= protected).then_some(*number)
        };
        had_time(&self.mute, PROTECTED_MUTE).or_else(|| had_time(&self.silent, PROTECTED))
    }

    /// The one that goes first, however young.
    fn first(&self) -> Option<u64> {
        let not_spoken = self.mute.keys().chain(self.silent.keys());
        not_spoken.chain(self.spoken.keys()).next().copied()
    }
}

impl Strangers {
    fn decide(&self, source: IpAddr, room: ConnectionLimits, now: Instant) -> Decision {
        let own = self.sources.get(&source);
        let count = own.map_or(0, Source::count);
        if let Some(own) = own
            && count >= room.strangers_per_source.max(1)
        {
            let number = own.oldest_silent(now);
            return number.map_or(Decision::TurnedAway, |number| {
                Decision::Displaces(source, number)
            });
        }
        if self.count < room.strangers.max(1) {
            return Decision::Free;
        }
        // The first of each rank stands for all of it, so this costs the same however many there are.
        let mut from = first_of(usize::MAX, false);
        while let Some((Reverse(most), has_begun, _, address)) = self.order.range(from..).next() {
            let other = self.sources.get(address);
            let number = match *most > count + 1 {
                true => other.and_then(Source::first),
                false => other.and_then(|other| other.oldest_silent(now)),
            };
            if let Some(number) = number {
                return Decision::Displaces(*address, number);
            }
            from = match has_begun {
                false => first_of(*most, true),
                true => first_of(most.saturating_sub(1), false),
            };
        }
        Decision::TurnedAway
    }

    /// Changes the places of a source, and keeps the order of sources.
    fn change<T>(&mut self, address: IpAddr, change: impl FnOnce(&mut Source) -> T) -> T {
        let source = self.sources.entry(address).or_default();
        self.order.remove(&source.rank(address));
        let before = source.count();
        let changed = change(source);
        let after = source.count();
        self.count = self.count + after - before;
        if after > 0 {
            self.order.insert(source.rank(address));
        } else {
            self.sources.remove(&address);
        }
        changed
    }

    fn enter(&mut self, source: IpAddr, place: Permit) -> u64 {
        self.numbers += 1;
        let number = self.numbers;
        self.change(source, |source| source.mute.insert(number, place));
        number
    }

    fn leave(&mut self, source: IpAddr, number: u64) -> Option<Permit> {
        self.change(source, |source| source.take(number))
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
    room: ConnectionLimits,
    meters: Option<&Meters>,
    stop: &CancellationToken,
    mut serve: impl FnMut(TcpStream, SocketAddr, UnauthenticatedPermit) -> F,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let book = Arc::new(UnauthenticatedConnections::default());
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
        let (stranger, has_displaced) = book.admit(peer.ip(), room, Instant::now());
        if let Some(meters) = meters {
            meters.accepted.up();
            if has_displaced || stranger.is_none() {
                meters.turned_away.up();
            }
        }
        if let Some(stranger) = stranger {
            connections.spawn(serve(socket, peer, stranger));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits {
        connections: 100,
        strangers: 6,
        strangers_per_source: 3,
    };

    /// The book, and a clock that tests set.
    #[derive(Default)]
    struct Door {
        book: Arc<UnauthenticatedConnections>,
        past: Duration,
    }

    impl Door {
        fn comes(&self, began: Instant, address: &str) -> Option<UnauthenticatedPermit> {
            let now = began + self.past;
            let stranger = self
                .book
                .admit(address.parse().unwrap(), CONNECTION_LIMITS, now)
                .0;
            stranger.inspect(UnauthenticatedPermit::has_begun)
        }
    }

    fn is_displaced(stranger: &UnauthenticatedPermit) -> bool {
        stranger.displaced.is_cancelled()
    }

    #[test]
    fn the_oldest_silent_stranger_of_a_source_makes_room_for_a_new_one() {
        let (mut door, began) = (Door::default(), Instant::now());
        let others = door.comes(began, "192.0.2.9").unwrap();
        let spoken = door.comes(began, "192.0.2.1").unwrap();
        spoken.has_spoken();
        let silent = [(); 2].map(|()| door.comes(began, "192.0.2.1").unwrap());
        // They have a moment to speak, however many come.
        for _ in 0..50 {
            assert!(door.comes(began, "::ffff:192.0.2.1").is_none());
        }
        // However many come, those that wait for an answer and those of other sources stay.
        let mut more = Vec::new();
        for _ in 0..50 {
            door.past += PROTECTED;
            more.push(door.comes(began, "::ffff:192.0.2.1").unwrap());
        }
        assert!(silent.iter().all(is_displaced));
        assert_eq!(more.iter().filter(|one| !is_displaced(one)).count(), 2);
        assert!(!is_displaced(&spoken) && !is_displaced(&others));
        // One that was refused waits for nothing.
        spoken.is_refused();
        let last = door.comes(began + PROTECTED, "192.0.2.1").unwrap();
        assert!(is_displaced(&spoken));
        drop((silent, more, spoken, others, last));
        let state = door.book.lock();
        assert!(state.order.is_empty() && state.sources.is_empty());
        assert_eq!(state.count, 0);
    }

    #[test]
    fn strangers_without_a_byte_go_first_and_soon() {
        let (mut door, began) = (Door::default(), Instant::now());
        let begun = door.comes(began, "192.0.2.1").unwrap();
        let mute = [(); 2].map(|()| {
            let source = "192.0.2.1".parse().unwrap();
            door.book.admit(source, CONNECTION_LIMITS, began).0.unwrap()
        });
        assert!(door.comes(began, "192.0.2.1").is_none());
        door.past = PROTECTED_MUTE;
        let new = door.comes(began, "192.0.2.1").unwrap();
        let newer = door.comes(began, "192.0.2.1").unwrap();
        assert!(mute.iter().all(is_displaced));
        assert!(door.comes(began, "192.0.2.1").is_none());
        for stays in [&begun, &new, &newer] {
            assert!(!is_displaced(stays));
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let (door, began) = (Door::default(), Instant::now());
        let other = door.comes(began, "2001:db8:0:2::1").unwrap();
        let many: Vec<UnauthenticatedPermit> = (0..20)
            .filter_map(|nth| door.comes(began, &format!("2001:db8:0:1::{nth:x}")))
            .collect();
        assert_eq!(many.len(), 3);
        assert!(!is_displaced(&other));
    }

    #[test]
    fn where_all_places_are_taken_the_source_with_most_makes_room() {
        let (door, began) = (Door::default(), Instant::now());
        let few = door.comes(began, "192.0.2.1").unwrap();
        let two = [(); 2].map(|()| door.comes(began, "192.0.2.2").unwrap());
        let greedy = [(); 3].map(|()| door.comes(began, "192.0.2.3").unwrap());
        greedy[0].has_spoken();
        // At once, for it has more than its share.
        let new = door.comes(began, "192.0.2.4").unwrap();
        assert_eq!(greedy.each_ref().map(is_displaced), [false, true, false]);
        // The next one may come, and the one after it has nobody with more places than one and its own.
        let newer = door.comes(began, "192.0.2.5").unwrap();
        assert!(is_displaced(&two[0]) || is_displaced(&greedy[2]));
        let newest = door.comes(began, "192.0.2.6").unwrap();
        assert!(is_displaced(&two[0]) && is_displaced(&greedy[2]));
        assert!(!is_displaced(&greedy[0]), "it waits for an answer");
        assert!(door.comes(began, "192.0.2.7").is_none());
        for stays in [&few, &new, &newer, &newest] {
            assert!(!is_displaced(stays));
        }
    }

    #[test]
    fn many_sources_of_one_place_each_take_turns_at_the_speed_of_the_slowest() {
        let (mut door, began) = (Door::default(), Instant::now());
        let first = door.comes(began, "192.0.2.1").unwrap();
        first.has_spoken();
        let mut many = Vec::new();
        let mut turned_away = 0;
        for nth in 2..100 {
            door.past += PROTECTED / 10;
            match door.comes(began, &format!("192.0.2.{nth}")) {
                Some(stranger) => many.push((door.past, stranger)),
                None => turned_away += 1,
            }
            // Nobody lost its place before its time.
            let now = door.past;
            for (since, stranger) in &many {
                assert!(!is_displaced(stranger) || now - *since >= PROTECTED);
            }
        }
        assert!(!is_displaced(&first));
        assert!(turned_away > 40 && many.len() > 40, "{turned_away}");
    }
}
