//! Accepts connections from a listener, up to a limit. Lower limits hold for unauthenticated connections, in
//! total and per source.
//!
//! When the limit of unauthenticated connections is reached, a new one displaces the oldest silent one of the
//! source with the most permits. Connections of a source with no more permits than the new connection's
//! source are protected for a short time; if only such remain, the new connection is closed. A source that
//! holds its permits, or reconnects continuously, therefore cannot keep other sources out, and slow agents
//! have time to authenticate.

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

/// Pause after a failed accept, usually because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long an unauthenticated connection that has sent data is protected from displacement by a source with
/// as many permits.
const PROTECTED: Duration = Duration::from_millis(1_500);
/// The same for a connection that has not sent a byte: clients send their first byte with the end of the TCP
/// handshake.
const PROTECTED_MUTE: Duration = Duration::from_millis(250);

/// Limits on the connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Most connections; further ones wait to be accepted.
    pub connections: usize,
    /// Most unauthenticated connections among them. At the limit, one of them or the new one is closed.
    pub unauthenticated: usize,
    /// Most unauthenticated connections of one source. At the limit, one of that source or the new one is
    /// closed.
    pub unauthenticated_per_source: usize,
}

/// A permit for an unauthenticated connection, released when dropped.
#[derive(Debug)]
pub struct UnauthenticatedPermit {
    permits: Arc<UnauthenticatedConnections>,
    source: IpAddr,
    number: u64,
    displaced: CancellationToken,
}

impl UnauthenticatedPermit {
    /// Waits until another connection displaces this one, which must then close.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }

    /// Records that the first byte has arrived.
    pub fn has_begun(&self) {
        self.permits.lock().change(self.source, |source| {
            if let Some(place) = source.mute.remove(&self.number) {
                source.silent.insert(self.number, place);
            }
        });
    }

    /// Waits for the first byte, without reading it.
    pub async fn begins(&self, socket: &TcpStream) -> io::Result<()> {
        socket.peek(&mut [0]).await?;
        self.has_begun();
        Ok(())
    }

    /// Records that the authentication request is complete. Connections that still have to send theirs are
    /// displaced first.
    pub fn has_spoken(&self) {
        self.permits.lock().change(self.source, |source| {
            if let Some(place) = source.take(self.number) {
                source.spoken.insert(self.number, place);
            }
        });
    }

    /// Records that authentication was refused. The permit is then as easy to displace as that of a
    /// connection that sent nothing.
    pub fn is_refused(&self) {
        self.permits.lock().change(self.source, |source| {
            if let Some(place) = source.spoken.remove(&self.number) {
                source.silent.insert(self.number, place);
            }
        });
    }
}

impl Drop for UnauthenticatedPermit {
    fn drop(&mut self) {
        self.permits.lock().leave(self.source, self.number);
    }
}

/// The unauthenticated connections of a listener.
#[derive(Debug, Default)]
struct UnauthenticatedConnections(Mutex<PermitTable>);

#[derive(Debug, Default)]
struct PermitTable {
    numbers: u64,
    count: usize,
    sources: BTreeMap<IpAddr, SourcePermits>,
    /// Sources by number of permits, most first.
    order: BTreeSet<Rank>,
}

/// The order of sources: those with the most permits first, then those with connections that have sent
/// nothing, then those whose first connection is oldest.
type Rank = (Reverse<usize>, bool, u64, IpAddr);

fn first_of(count: usize, has_begun: bool) -> Rank {
    let lowest = Ipv4Addr::UNSPECIFIED.into();
    (Reverse(count), has_begun, 0, lowest)
}

/// The permits of one source by number, in the order of arrival.
#[derive(Debug, Default)]
struct SourcePermits {
    /// Connections that have sent nothing.
    mute: BTreeMap<u64, Permit>,
    /// Connections with an incomplete authentication request.
    silent: BTreeMap<u64, Permit>,
    /// Connections that wait for the reply.
    spoken: BTreeMap<u64, Permit>,
}

#[derive(Debug)]
struct Permit {
    since: Instant,
    displaced: CancellationToken,
}

/// The decision about a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// There is a free permit.
    Free,
    /// It displaces this connection.
    Displaces(IpAddr, u64),
    /// It is closed, because no connection can be displaced.
    TurnedAway,
}

impl UnauthenticatedConnections {
    fn lock(&self) -> MutexGuard<'_, PermitTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits an unauthenticated connection unless it is turned away. Also returns whether it displaced
    /// another.
    fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        limits: ConnectionLimits,
        now: Instant,
    ) -> (Option<UnauthenticatedPermit>, bool) {
        let source = block_of(address);
        let mut state = self.lock();
        let decision = state.decide(source, limits, now);
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
        let permit = UnauthenticatedPermit {
            permits: Arc::clone(self),
            source,
            number,
            displaced,
        };
        (Some(permit), decision != Decision::Free)
    }
}

impl SourcePermits {
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

    /// The oldest connection whose request is incomplete and whose protection has ended.
    fn oldest_silent(&self, now: Instant) -> Option<u64> {
        let had_time = |places: &BTreeMap<u64, Permit>, protected| {
            let (number, place) = places.first_key_value()?;
            let age = now.saturating_duration_since(place.since);
            (age >= protected).then_some(*number)
        };
        had_time(&self.mute, PROTECTED_MUTE).or_else(|| had_time(&self.silent, PROTECTED))
    }

    /// The connection to displace first, regardless of its age.
    fn first(&self) -> Option<u64> {
        let not_spoken = self.mute.keys().chain(self.silent.keys());
        not_spoken.chain(self.spoken.keys()).next().copied()
    }
}

impl PermitTable {
    fn decide(&self, source: IpAddr, limits: ConnectionLimits, now: Instant) -> Decision {
        let own = self.sources.get(&source);
        let count = own.map_or(0, SourcePermits::count);
        if let Some(own) = own
            && count >= limits.unauthenticated_per_source.max(1)
        {
            let number = own.oldest_silent(now);
            return number.map_or(Decision::TurnedAway, |number| {
                Decision::Displaces(source, number)
            });
        }
        if self.count < limits.unauthenticated.max(1) {
            return Decision::Free;
        }
        // The first source of each rank stands for the rank, so the cost does not depend on the number of
        // sources.
        let mut from = first_of(usize::MAX, false);
        while let Some((Reverse(most), has_begun, _, address)) = self.order.range(from..).next() {
            let other = self.sources.get(address);
            let number = match *most > count + 1 {
                true => other.and_then(SourcePermits::first),
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

    /// Changes the permits of a source and updates the order of sources.
    fn change<T>(&mut self, address: IpAddr, change: impl FnOnce(&mut SourcePermits) -> T) -> T {
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

/// The source address by which unauthenticated connections are counted: the IPv4 address, or the /64 of an
/// IPv6 address.
pub(super) fn block_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// Serves each connection of a listener in its own task until it is stopped. Returns the tasks that are still
/// running then.
pub async fn accept<F>(
    listener: &TcpListener,
    limits: ConnectionLimits,
    meters: Option<&Meters>,
    stop: &CancellationToken,
    mut serve: impl FnMut(TcpStream, SocketAddr, UnauthenticatedPermit) -> F,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(UnauthenticatedConnections::default());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return connections,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if connections.len() < limits.connections => accepted,
        };
        let Ok((socket, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (permit, has_displaced) = permits.admit(peer.ip(), limits, Instant::now());
        if let Some(meters) = meters {
            meters.accepted.up();
            if has_displaced || permit.is_none() {
                meters.turned_away.up();
            }
        }
        if let Some(permit) = permit {
            connections.spawn(serve(socket, peer, permit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits {
        connections: 100,
        unauthenticated: 6,
        unauthenticated_per_source: 3,
    };

    /// The connections, and a clock that tests set.
    #[derive(Default)]
    struct Door {
        permits: Arc<UnauthenticatedConnections>,
        past: Duration,
    }

    impl Door {
        fn comes(&self, began: Instant, address: &str) -> Option<UnauthenticatedPermit> {
            let now = began + self.past;
            let permit = self
                .permits
                .admit(address.parse().unwrap(), CONNECTION_LIMITS, now)
                .0;
            permit.inspect(UnauthenticatedPermit::has_begun)
        }
    }

    fn is_displaced(permit: &UnauthenticatedPermit) -> bool {
        permit.displaced.is_cancelled()
    }

    #[test]
    fn the_oldest_silent_stranger_of_a_source_makes_room_for_a_new_one() {
        let (mut door, began) = (Door::default(), Instant::now());
        let others = door.comes(began, "192.0.2.9").unwrap();
        let spoken = door.comes(began, "192.0.2.1").unwrap();
        spoken.has_spoken();
        let silent = [(); 2].map(|()| door.comes(began, "192.0.2.1").unwrap());
        // Each has a short time to authenticate, however many connections arrive.
        for _ in 0..50 {
            assert!(door.comes(began, "::ffff:192.0.2.1").is_none());
        }
        // However many arrive, connections that wait for a reply and those of other sources stay.
        let mut more = Vec::new();
        for _ in 0..50 {
            door.past += PROTECTED;
            more.push(door.comes(began, "::ffff:192.0.2.1").unwrap());
        }
        assert!(silent.iter().all(is_displaced));
        assert_eq!(more.iter().filter(|one| !is_displaced(one)).count(), 2);
        assert!(!is_displaced(&spoken) && !is_displaced(&others));
        // A refused connection is no longer protected.
        spoken.is_refused();
        let last = door.comes(began + PROTECTED, "192.0.2.1").unwrap();
        assert!(is_displaced(&spoken));
        drop((silent, more, spoken, others, last));
        let state = door.permits.lock();
        assert!(state.order.is_empty() && state.sources.is_empty());
        assert_eq!(state.count, 0);
    }

    #[test]
    fn strangers_without_a_byte_go_first_and_soon() {
        let (mut door, began) = (Door::default(), Instant::now());
        let begun = door.comes(began, "192.0.2.1").unwrap();
        let mute = [(); 2].map(|()| {
            let source = "192.0.2.1".parse().unwrap();
            door.permits
                .admit(source, CONNECTION_LIMITS, began)
                .0
                .unwrap()
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
        // Immediately, because its source has more than its share.
        let new = door.comes(began, "192.0.2.4").unwrap();
        assert_eq!(greedy.each_ref().map(is_displaced), [false, true, false]);
        // It displaces this one; for the next, no source has more than one permit and its own.
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
                Some(permit) => many.push((door.past, permit)),
                None => turned_away += 1,
            }
            // No connection is displaced before its protection ends.
            let now = door.past;
            for (since, permit) in &many {
                assert!(!is_displaced(permit) || now - *since >= PROTECTED);
            }
        }
        assert!(!is_displaced(&first));
        assert!(turned_away > 40 && many.len() > 40, "{turned_away}");
    }
}
