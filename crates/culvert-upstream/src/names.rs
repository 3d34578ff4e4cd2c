//! Looks up the addresses of host names, with a bound on how many lookups run at one time.
//!
//! The system looks up a name in a thread, for as long as its name servers let it wait, and nothing ends that. One owner
//! of names whose servers never respond could take all threads. So traffic, health checks and the requests of policies
//! have separate places, of which an owner has a share; a lookup keeps its place until the system has ended it, and all that
//! want the same name wait for one lookup.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{FairPermit, FairPermits, Share};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::dial_error::DialError;

/// Most lookups that run at one time, for traffic and for each of the others.
const LOOKUPS_MAX: usize = 128;
const FURTHER_LOOKUPS_MAX: usize = 64;
/// Most requests that wait for a place. Each place that becomes free wakes all of them.
const WAITING_MAX: usize = 512;
/// Most lookups of one name that run at one time.
const LOOKUPS_OF_NAME_MAX: u8 = 3;
/// Most addresses of a name that are known, and that are tried.
const KNOWN_ADDRESSES_MAX: usize = 256;
const ADDRESSES_MAX: usize = 16;
/// After how long a lookup is no longer waited for by those that come later: its name server may respond again.
const STALE_AFTER: Duration = Duration::from_secs(1);

/// What a lookup is for. Each has its own places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupFor {
    /// The traffic of endpoints.
    Traffic,
    /// Health checks of upstreams.
    Checks,
    /// Requests of policies and of the edge.
    Calls,
}

/// The result of a lookup: an error of the system as text, because all that wait get it. The ports are 0.
type Answer = Result<Arc<[SocketAddr]>, (io::ErrorKind, Arc<str>)>;

/// Looks up names. Clones share the lookups that run.
#[derive(Clone)]
pub(crate) struct Names(Arc<Shared>);

struct Shared {
    running: Mutex<HashMap<Arc<str>, Lookup>>,
    traffic: Places,
    checks: Places,
    calls: Places,
}

/// The places of lookups for one purpose, and of those that wait for one.
struct Places {
    running: FairPermits,
    waiting: FairPermits,
    /// Notified of each place that becomes free.
    freed: Notify,
}

impl Places {
    fn new(lookups_max: usize) -> Self {
        Self {
            running: FairPermits::new(lookups_max),
            waiting: FairPermits::new(WAITING_MAX),
            freed: Notify::new(),
        }
    }
}

impl Shared {
    fn places(&self, purpose: LookupFor) -> &Places {
        match purpose {
            LookupFor::Traffic => &self.traffic,
            LookupFor::Checks => &self.checks,
            LookupFor::Calls => &self.calls,
        }
    }
}

/// A lookup that runs.
struct Lookup {
    began: Instant,
    /// How many of the name began, with this one, since none ran.
    nth: u8,
    answer: watch::Receiver<Option<Answer>>,
}

/// The place of a lookup. However it ends, others may begin then.
struct Place {
    names: Names,
    host: Arc<str>,
    purpose: LookupFor,
    answer: watch::Receiver<Option<Answer>>,
    permit: Option<FairPermit>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = lock(&self.names.0.running);
        // A later lookup of the name may have taken its entry.
        let is_own = |it: &Lookup| it.answer.same_channel(&self.answer);
        if running.get(&self.host).is_some_and(is_own) {
            running.remove(&self.host);
        }
        drop(running);
        self.permit = None;
        self.names.0.places(self.purpose).freed.notify_waiters();
    }
}

impl Default for Names {
    fn default() -> Self {
        Self(Arc::new(Shared {
            running: Mutex::default(),
            traffic: Places::new(LOOKUPS_MAX),
            checks: Places::new(FURTHER_LOOKUPS_MAX),
            calls: Places::new(FURTHER_LOOKUPS_MAX),
        }))
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

impl Names {
    /// The addresses of a host name or address, in the order of the system's preference (RFC 6724), at most 256; their ports are
    /// 0. If the share is used up, waits for a place, and `is_queued` says so meanwhile.
    ///
    /// # Errors
    ///
    /// The name has no address, the system cannot look it up, or too many of the share wait.
    pub(crate) async fn addresses(
        &self,
        host: &str,
        (purpose, share): (LookupFor, Share),
        is_queued: &AtomicBool,
    ) -> Result<Arc<[SocketAddr]>, DialError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Arc::new([SocketAddr::new(address, 0)]));
        }
        let places = self.0.places(purpose);
        let mut waiting = None;
        let mut answer = loop {
            let mut freed = std::pin::pin!(places.freed.notified());
            // Before the try, so that a place that becomes free meanwhile is not missed.
            freed.as_mut().enable();
            match self.answer(host, (purpose, share)) {
                Some(answer) => break answer,
                None => {
                    is_queued.store(true, Ordering::Relaxed);
                    if waiting.is_none() {
                        let place = places.waiting.try_acquire(share);
                        waiting = Some(place.map_err(|_| DialError::TooManyLookups)?);
                    }
                    freed.await;
                }
            }
        };
        drop(waiting);
        is_queued.store(false, Ordering::Relaxed);
        let answer = answer.wait_for(Option::is_some).await;
        // The task has panicked, or its runtime has ended.
        let ended = |_| DialError::Connect(io::Error::other("the lookup of the name has ended"));
        match answer.map_err(ended)?.as_ref() {
            Some(Ok(addresses)) => Ok(Arc::clone(addresses)),
            Some(Err((kind, why))) => {
                Err(DialError::Connect(io::Error::new(*kind, why.to_string())))
            }
            None => Err(DialError::NoAddress),
        }
    }

    /// The lookup of a name that runs, or a new one. `None` if the share is used up.
    fn answer(
        &self,
        host: &str,
        (purpose, share): (LookupFor, Share),
    ) -> Option<watch::Receiver<Option<Answer>>> {
        let mut running = lock(&self.0.running);
        let known = running.get(host);
        let nth = known.map_or(0, |known| known.nth);
        let is_fresh = |known: &&Lookup| known.began.elapsed() < STALE_AFTER;
        let fresh = known.filter(|known| is_fresh(known) || nth >= LOOKUPS_OF_NAME_MAX);
        if let Some(fresh) = fresh {
            return Some(fresh.answer.clone());
        }
        let Ok(permit) = self.0.places(purpose).running.try_acquire(share) else {
            return known.map(|known| known.answer.clone());
        };
        let host: Arc<str> = host.into();
        let (answers, answer) = watch::channel(None);
        let lookup = Lookup {
            began: Instant::now(),
            nth: nth + 1,
            answer: answer.clone(),
        };
        running.insert(Arc::clone(&host), lookup);
        drop(running);
        let place = Place {
            names: self.clone(),
            host: Arc::clone(&host),
            purpose,
            answer: answer.clone(),
            permit: Some(permit),
        };
        // A task, because the one that asks first may leave before the system has ended.
        #[expect(
            clippy::disallowed_methods,
            reason = "it ends with its lookup, which its place bounds; nothing waits for it at the stop"
        )]
        tokio::spawn(async move {
            let found = look_up(&host).await;
            // Who comes from now on asks again.
            drop(place);
            answers.send_replace(Some(found));
        });
        Some(answer)
    }
}

async fn look_up(host: &str) -> Answer {
    let found = tokio::net::lookup_host((host, 0)).await;
    let found = found.map_err(|error| (error.kind(), error.to_string().into()))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if addresses.len() < KNOWN_ADDRESSES_MAX && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses.into())
}

/// The order in which a connection tries addresses: those of the preferred family begin with another one each `turn`, so that
/// all servers of a name get connections, and the families alternate (RFC 8305, section 4).
pub(crate) fn order(addresses: &[SocketAddr], port: u16, turn: usize) -> Vec<SocketAddr> {
    let is_preferred = |address: &&SocketAddr| {
        let first = addresses.first();
        first.is_some_and(|first| first.is_ipv4() == address.is_ipv4())
    };
    let (preferred, others): (Vec<&SocketAddr>, Vec<&SocketAddr>) =
        addresses.iter().partition(is_preferred);
    let turned = |list: Vec<&SocketAddr>| -> Vec<SocketAddr> {
        let first = turn.checked_rem(list.len()).unwrap_or(0);
        let (before, behind) = list.split_at(first);
        behind.iter().chain(before).map(|one| **one).collect()
    };
    let (preferred, others) = (turned(preferred), turned(others));
    let mut ordered: Vec<SocketAddr> = Vec::with_capacity(addresses.len());
    for index in 0..preferred.len().max(others.len()) {
        let pair = [preferred.get(index), others.get(index)];
        ordered.extend(pair.into_iter().flatten());
    }
    ordered.truncate(ADDRESSES_MAX);
    for address in &mut ordered {
        // The scope of a link-local address stays.
        address.set_port(port);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(owner: &str) -> (LookupFor, Share) {
        (LookupFor::Traffic, Share::of_owner(owner))
    }

    fn not_queued() -> AtomicBool {
        AtomicBool::new(false)
    }

    #[test]
    fn all_addresses_have_their_turn_and_families_alternate() {
        let addresses = [
            "[2001:db8::1]:0",
            "192.0.2.1:0",
            "[fe80::2%7]:0",
            "192.0.2.2:0",
        ];
        let addresses = addresses.map(|address| address.parse().unwrap());
        let ordered = |turn| -> Vec<String> {
            let ordered = order(&addresses, 80, turn);
            ordered.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            ordered(0),
            [
                "[2001:db8::1]:80",
                "192.0.2.1:80",
                "[fe80::2%7]:80",
                "192.0.2.2:80"
            ]
        );
        assert_eq!(
            ordered(1),
            [
                "[fe80::2%7]:80",
                "192.0.2.2:80",
                "[2001:db8::1]:80",
                "192.0.2.1:80"
            ]
        );
        assert_eq!(ordered(2), ordered(0));
        assert_eq!(order(&[], 80, 7), []);
    }

    #[tokio::test]
    async fn who_holds_too_many_lookups_waits_and_others_do_not() {
        let names = Names::default();
        let greedy = Share::of_owner("greedy");
        let mut held = Vec::new();
        while let Ok(permit) = names.0.traffic.running.try_acquire(greedy) {
            held.push(permit);
        }
        assert!(held.len() < LOOKUPS_MAX);
        let free = not_queued();
        // Another owner, the checks of the same one, and an address need no place of these.
        for who in [traffic("other"), (LookupFor::Checks, greedy)] {
            let found = names.addresses("localhost", who, &free).await.unwrap();
            assert!(found.iter().all(|one| one.ip().is_loopback()) && !found.is_empty());
        }
        names
            .addresses("::1", traffic("greedy"), &free)
            .await
            .unwrap();
        let queued = not_queued();
        let mut waiting = std::pin::pin!(names.addresses("localhost", traffic("greedy"), &queued));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert!(queued.load(Ordering::Relaxed));
        drop(held);
        names.0.traffic.freed.notify_waiters();
        waiting.await.unwrap();
        assert!(!queued.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn who_waits_too_often_is_refused_immediately_and_others_are_not() {
        let names = Names::default();
        let greedy = Share::of_owner("greedy");
        let all = |permits: &FairPermits| {
            let mut held = Vec::new();
            while let Ok(permit) = permits.try_acquire(greedy) {
                held.push(permit);
            }
            held
        };
        let traffic_places = &names.0.traffic;
        let _held = (all(&traffic_places.running), all(&traffic_places.waiting));
        let queued = not_queued();
        let refused = names.addresses("localhost", traffic("greedy"), &queued);
        let refused = refused.await.unwrap_err();
        assert!(matches!(refused, DialError::TooManyLookups) && refused.is_local());
        let other = names.addresses("localhost", traffic("other"), &queued);
        other.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_hangs_has_few_lookups() {
        let names = Names::default();
        let (_answers, answer) = watch::channel(None);
        let hanging = Lookup {
            began: Instant::now(),
            nth: LOOKUPS_OF_NAME_MAX,
            answer: answer.clone(),
        };
        lock(&names.0.running).insert("hangs.example".into(), hanging);
        tokio::time::advance(STALE_AFTER * 10).await;
        let joined = names.answer("hangs.example", traffic("one")).unwrap();
        assert!(joined.same_channel(&answer));
        assert_eq!(names.0.traffic.running.available(), LOOKUPS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_want_a_name_wait_for_one_lookup_unless_it_hangs() {
        let names = Names::default();
        let (answers, answer) = watch::channel(None);
        let began = Instant::now();
        lock(&names.0.running).insert(
            "localhost".into(),
            Lookup {
                began,
                nth: 1,
                answer,
            },
        );
        let address: SocketAddr = "192.0.2.1:0".parse().unwrap();
        let queued = not_queued();
        let wanted = [(); 50].map(|()| names.addresses("localhost", traffic("one"), &queued));
        let all = futures_util::future::join_all(wanted);
        let (found, ()) = tokio::join!(all, async {
            assert_eq!(names.0.traffic.running.available(), LOOKUPS_MAX);
            // Another lookup does not wait for one that began long ago.
            tokio::time::advance(STALE_AFTER).await;
            let other = names.addresses("localhost", traffic("one"), &queued).await;
            assert!(other.unwrap().iter().all(|one| one.ip().is_loopback()));
            answers.send_replace(Some(Ok(Arc::new([address]))));
        });
        for found in found {
            assert_eq!(*found.unwrap(), [address]);
        }
    }

    #[tokio::test]
    async fn a_lookup_that_has_ended_is_forgotten() {
        let names = Names::default();
        let queued = not_queued();
        names
            .addresses("localhost", traffic("one"), &queued)
            .await
            .unwrap();
        let failed = names
            .addresses("no-such-name.invalid", traffic("one"), &queued)
            .await;
        assert!(failed.is_err());
        assert!(lock(&names.0.running).is_empty());
        assert_eq!(names.0.traffic.running.available(), LOOKUPS_MAX);
    }
}
