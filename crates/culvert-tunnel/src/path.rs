//! The network path of a connection: what the kernel knows of its round trip, window and losses.
//!
//! Where one connection is not enough, the agent opens further ones, and the server chooses one for each stream. The rules:
//!
//! - **When to open.** TCP takes a lost packet for a sign that the path is full, and sends less. If the path is not full, as
//!   on a long distance with some loss, several connections send more than one. So an agent opens a further connection if
//!   for two seconds each connection has bytes that wait, and either very many wait, or packets are lost while the round
//!   trip is near its minimum. A longer round trip shows that the path is full: further connections would only take from
//!   others.
//! - **Which one.** The turn chooses among agents. Of the connections of that agent, a stream takes the one with the fewest
//!   streams in use; bytes that wait there count as streams, more if the kernel knows that it sends more slowly than
//!   another. A difference of less than a stream changes nothing, so the choice does not alternate for noise.
//! - **How many.** At most four serve. One that was not needed for ten seconds takes no new streams.
//!
//! Where the kernel says nothing (other systems than Linux, forbidden netlink sockets), only waiting bytes and streams count.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How old a reading may be.
const READ_EVERY: Duration = Duration::from_millis(250);
/// How long a loss counts as recent.
const LOSS_COUNTS_FOR: Duration = Duration::from_secs(2);
/// How long a rate counts.
const RATE_COUNTS_FOR: Duration = Duration::from_secs(10);
/// How many bytes that wait weigh as much as a stream in use.
const STREAM_BYTES: usize = 64 << 10;
/// How much more the bytes of a slow connection weigh at most.
const SLOWNESS_MAX: f64 = 4.0;
/// Up to this round trip, in relation to the shortest, the path is not full. A little more is the scheduling of tasks.
const FULL_AT: f64 = 1.5;
const SCHEDULING: Duration = Duration::from_millis(2);

/// What the kernel knows of a TCP connection now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    /// The smoothed round trip.
    pub(crate) rtt: Duration,
    /// The shortest round trip of the last minutes.
    pub(crate) rtt_min: Duration,
    /// Packets that were sent again, since the connection began.
    pub(crate) retransmitted: u32,
    /// The latest rate of delivery in bytes per second, if it was limited by the path and not by what there was to send.
    pub(crate) rate: Option<u64>,
}

/// Keeps the latest reading of a connection.
#[derive(Debug, Default)]
pub(crate) struct PathWatch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The addresses of this end and of the peer; `None` without a TCP connection.
    ends: Option<(SocketAddr, SocketAddr)>,
    read_at: Option<Instant>,
    last: Option<TcpInfo>,
    lost_at: Option<Instant>,
    rate: Option<(u64, Instant)>,
}

/// The knowledge of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// Whether packets were lost recently although the path is not full.
    pub(crate) loses: bool,
    /// Bytes per second that it recently delivered with enough to send.
    pub(crate) rate: Option<u64>,
}

impl PathWatch {
    /// Begins to watch the connection between these addresses.
    pub(crate) fn begin(&self, own: SocketAddr, peer: SocketAddr) {
        self.lock().ends = Some((own, peer));
    }

    /// The knowledge of now. Asks the kernel at most every 250 ms.
    pub(crate) fn now(&self, now: Instant) -> Path {
        let mut state = self.lock();
        let is_due = state
            .read_at
            .is_none_or(|at| now.saturating_duration_since(at) >= READ_EVERY);
        if is_due && let Some((own, peer)) = state.ends {
            state.read_at = Some(now);
            if let Some(info) = kernel::tcp_info(own, peer) {
                state.note(info, now);
            }
        }
        state.path(now)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, info: TcpInfo, now: Instant) {
        let before = self.last.replace(info);
        let has_lost = before.is_some_and(|before| info.retransmitted > before.retransmitted);
        let is_full = info.rtt > info.rtt_min.mul_f64(FULL_AT) + SCHEDULING;
        match is_full {
            true => self.lost_at = None,
            false if has_lost => self.lost_at = Some(now),
            false => {}
        }
        if let Some(rate) = info.rate {
            self.rate = Some((rate, now));
        }
    }

    fn path(&self, now: Instant) -> Path {
        let since = |at: Instant| now.saturating_duration_since(at);
        Path {
            loses: self.lost_at.is_some_and(|at| since(at) < LOSS_COUNTS_FOR),
            rate: self
                .rate
                .filter(|(_, at)| since(*at) < RATE_COUNTS_FOR)
                .map(|(rate, _)| rate),
        }
    }
}

/// A connection that a new stream could take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Streams in use.
    pub(crate) streams: usize,
    /// Bytes that wait to be sent.
    pub(crate) waiting: usize,
    pub(crate) path: Path,
}

/// The index of the connection with most room; the first one if none has a stream's room more. `None` if there are none.
pub(crate) fn with_most_room(candidates: &[Candidate]) -> Option<usize> {
    let rates = candidates.iter().filter_map(|one| one.path.rate);
    let best_rate = rates.max().unwrap_or(0);
    let load = |one: &Candidate| {
        let slowness = one.path.rate.map_or(1.0, |rate| {
            (best_rate as f64 / rate.max(1) as f64).clamp(1.0, SLOWNESS_MAX)
        });
        one.streams as f64 + one.waiting as f64 / STREAM_BYTES as f64 * slowness
    };
    let loads: Vec<f64> = candidates.iter().map(load).collect();
    let least = loads.iter().copied().min_by(f64::total_cmp)?;
    loads.iter().position(|load| *load < least + 1.0)
}

#[cfg(target_os = "linux")]
mod kernel {
    //! Asks with `NETLINK_SOCK_DIAG` (linux/sock_diag.h, linux/inet_diag.h), because `getsockopt` of `TCP_INFO` has no safe
    //! interface. The kernel responds before the call that sends the request returns.

    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::OwnedFd;
    use std::sync::{Mutex, OnceLock, PoisonError};
    use std::time::Duration;

    use rustix::net::netlink::{self, SocketAddrNetlink};
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    };

    use super::TcpInfo;

    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const IPPROTO_TCP: u8 = 6;
    const INET_DIAG_INFO: u16 = 2;
    /// Lengths of `nlmsghdr`, `inet_diag_req_v2` and `inet_diag_msg`.
    const HEADER: usize = 16;
    const REQUEST: usize = 56;
    const MESSAGE: usize = 72;
    /// Longer than a response.
    const RESPONSE_MAX: usize = 4 << 10;
    /// Responses to earlier requests that may come first.
    const STALE_MAX: usize = 8;

    /// One socket for all connections, and the number of the next request. `None` where it cannot be opened.
    static ASKING: OnceLock<Option<Mutex<(OwnedFd, u32)>>> = OnceLock::new();

    /// What the kernel knows of the TCP connection between these addresses; `None` if it does not say.
    pub(super) fn tcp_info(own: SocketAddr, peer: SocketAddr) -> Option<TcpInfo> {
        let asking = ASKING.get_or_init(|| open().ok().map(|socket| Mutex::new((socket, 1))));
        let mut asking = asking
            .as_ref()?
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (socket, number) = &mut *asking;
        *number = number.wrapping_add(1);
        send(&*socket, &request(own, peer, *number)?, SendFlags::DONTWAIT).ok()?;
        let mut response = [0; RESPONSE_MAX];
        for _ in 0..STALE_MAX {
            let (_, length) = recv(&*socket, &mut response[..], RecvFlags::DONTWAIT).ok()?;
            let response = response.get(..length)?;
            if u32_at(response, 8)? == *number {
                return parse(response, own.port(), peer.port());
            }
        }
        None
    }

    fn open() -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(socket)
    }

    fn request(own: SocketAddr, peer: SocketAddr, number: u32) -> Option<Vec<u8>> {
        let family = match (own, peer) {
            (SocketAddr::V4(_), SocketAddr::V4(_)) => AddressFamily::INET,
            (SocketAddr::V6(_), SocketAddr::V6(_)) => AddressFamily::INET6,
            _ => return None,
        };
        let mut bytes = Vec::with_capacity(HEADER + REQUEST);
        bytes.extend(u32::try_from(HEADER + REQUEST).ok()?.to_ne_bytes());
        bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes.extend(NLM_F_REQUEST.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
        bytes.extend([0; 4]);
        let extensions = 1 << (INET_DIAG_INFO - 1);
        bytes.extend([
            u8::try_from(family.as_raw()).ok()?,
            IPPROTO_TCP,
            extensions,
            0,
        ]);
        // All states of a connection.
        bytes.extend(u32::MAX.to_ne_bytes());
        bytes.extend(own.port().to_be_bytes());
        bytes.extend(peer.port().to_be_bytes());
        for address in [own.ip(), peer.ip()] {
            let mut field = [0; 16];
            match address {
                IpAddr::V4(address) => field[..4].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => field = address.octets(),
            }
            bytes.extend(field);
        }
        let scope = match own {
            SocketAddr::V6(own) => own.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        bytes.extend(scope.to_ne_bytes());
        // No cookie.
        bytes.extend([0xFF; 8]);
        Some(bytes)
    }

    fn parse(response: &[u8], own: u16, peer: u16) -> Option<TcpInfo> {
        // Another type is an error: the connection has ended. If its address is listened on, the response is about the
        // listener.
        let ports = response.get(HEADER + 4..HEADER + 8)?;
        let is_it = ports == [own.to_be_bytes(), peer.to_be_bytes()].as_flattened();
        if u16_at(response, 4)? != SOCK_DIAG_BY_FAMILY || !is_it {
            return None;
        }
        let mut at = HEADER + MESSAGE;
        loop {
            let length = usize::from(u16_at(response, at)?);
            if u16_at(response, at + 2)? == INET_DIAG_INFO {
                return info(response.get(at + 4..at + length)?);
            }
            // Attributes begin at multiples of four.
            at += length.max(4).next_multiple_of(4);
        }
    }

    /// Reads a `tcp_info` of linux/tcp.h.
    fn info(fields: &[u8]) -> Option<TcpInfo> {
        let micros = |at| Some(Duration::from_micros(u32_at(fields, at)?.into()));
        let is_limited_by_sender = fields.get(7)? & 1 == 1;
        let rate = fields
            .get(160..168)?
            .try_into()
            .ok()
            .map(u64::from_ne_bytes);
        Some(TcpInfo {
            rtt: micros(68)?,
            rtt_min: micros(148)?,
            retransmitted: u32_at(fields, 100)?,
            rate: rate.filter(|rate| *rate > 0 && !is_limited_by_sender),
        })
    }

    fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
        let field = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(u16::from_ne_bytes(field))
    }

    fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
        let field = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(field))
    }

    #[cfg(test)]
    mod tests {
        use std::io::{Read as _, Write as _};
        use std::net::{TcpListener, TcpStream};

        use super::*;

        #[test]
        fn the_kernel_says_what_it_knows_of_a_connection() {
            for own in ["127.0.0.1:0", "[::1]:0"] {
                let Ok(listener) = TcpListener::bind(own) else {
                    continue;
                };
                let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (mut far, _) = listener.accept().unwrap();
                near.write_all(&[7; 4_000]).unwrap();
                far.read_exact(&mut [0; 4_000]).unwrap();
                let ends = (near.local_addr().unwrap(), near.peer_addr().unwrap());
                let info = tcp_info(ends.0, ends.1).unwrap();
                assert!(
                    info.rtt > Duration::ZERO && info.rtt_min <= info.rtt,
                    "{info:?}"
                );
                drop((near, far));
                let nothing = (ends.1, "127.0.0.1:1".parse().unwrap());
                assert_eq!(tcp_info(nothing.0, nothing.1), None);
            }
        }

        #[test]
        fn a_response_that_was_cut_says_nothing() {
            let mut response = vec![0; HEADER + MESSAGE];
            response[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            response.extend(8_u16.to_ne_bytes());
            response.extend(8_u16.to_ne_bytes());
            response.extend([0; 4]);
            response.extend(172_u16.to_ne_bytes());
            response.extend(INET_DIAG_INFO.to_ne_bytes());
            response.extend([0; 168]);
            assert!(parse(&response, 0, 0).is_some());
            assert!(parse(&response, 0, 1).is_none());
            for length in 0..response.len() {
                assert_eq!(parse(&response[..length], 0, 0), None, "{length}");
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod kernel {
    use std::net::SocketAddr;

    use super::TcpInfo;

    pub(super) fn tcp_info(_: SocketAddr, _: SocketAddr) -> Option<TcpInfo> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(rtt: u32, retransmitted: u32) -> TcpInfo {
        TcpInfo {
            rtt: rtt * MS,
            rtt_min: 40 * MS,
            retransmitted,
            rate: None,
        }
    }

    #[test]
    fn losses_count_while_the_path_is_not_full() {
        let began = Instant::now();
        let mut state = State::default();
        state.note(at(41, 5), began);
        assert!(!state.path(began).loses, "no loss since");
        state.note(at(45, 6), began);
        assert!(state.path(began).loses);
        assert!(!state.path(began + LOSS_COUNTS_FOR).loses, "no longer");
        state.note(at(120, 9), began);
        assert!(!state.path(began).loses, "the path is full");
    }

    #[test]
    fn a_stream_takes_the_connection_with_most_room() {
        let one = |streams, waiting| Candidate {
            streams,
            waiting,
            path: Path::default(),
        };
        let of_rate = |rate| Candidate {
            path: Path {
                rate: Some(rate),
                loses: true,
            },
            ..one(1, 4 * STREAM_BYTES)
        };
        for (candidates, expected) in [
            (vec![], None),
            (vec![one(9, 0)], Some(0)),
            (vec![one(0, 0), one(0, 0)], Some(0)),
            (vec![one(1, 0), one(0, 0)], Some(1)),
            (vec![one(3, 0), one(1, 0), one(2, 0)], Some(1)),
            // Less than the room of a stream changes nothing.
            (vec![one(1, STREAM_BYTES - 1), one(1, 0)], Some(0)),
            (vec![one(1, STREAM_BYTES), one(1, 0)], Some(1)),
            (vec![of_rate(100_000), of_rate(300_000)], Some(1)),
            (vec![of_rate(300_000), of_rate(290_000)], Some(0)),
            (vec![of_rate(100_000), one(2, 4 * STREAM_BYTES)], Some(0)),
        ] {
            assert_eq!(with_most_room(&candidates), expected, "{candidates:?}");
        }
    }

    /// Streams of the same kind are spread evenly, however they end.
    #[test]
    fn streams_are_spread_evenly() {
        let mut candidates = [Candidate::default(); 4];
        for nth in 0..400 {
            // The order of the turn.
            candidates.rotate_left(1);
            let chosen = with_most_room(&candidates).unwrap();
            candidates[chosen].streams += 1;
            let counts = candidates.map(|one| one.streams);
            let (most, least) = (counts.iter().max(), counts.iter().min());
            assert!(most.unwrap() - least.unwrap() <= 1, "{nth}: {counts:?}");
            if nth % 3 == 0 {
                candidates[nth % 4].streams = candidates[nth % 4].streams.saturating_sub(1);
                // Until they are even again.
                let least = candidates.iter().map(|one| one.streams).min().unwrap();
                for one in &mut candidates {
                    one.streams = one.streams.min(least + 1);
                }
            }
        }
    }
}
