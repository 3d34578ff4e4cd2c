//! Which sessions are connected, and which of them serve which endpoint.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use culvert_mux::OpenRefused;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::EndReason;
use super::command::Abilities;
use crate::driver::{Session, Stream};
use crate::wire::ProxyHeader;

/// The connections of a session, and a connection among all that ever were.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionConnection {
    pub(crate) session_id: String,
    pub(crate) number: u32,
    /// Two connections never have the same, so one that was taken over cannot remove its heir.
    pub(crate) serial: u64,
}

/// Endpoints and the connections that serve them. An endpoint of several connections, of one agent
/// or of many, shares its streams among them.
#[derive(Debug, Default)]
pub struct Bindings {
    state: Mutex<State>,
    /// Whether `lost` has any, to be asked by every request.
    has_lost: AtomicBool,
    /// Whether agents are sent to other nodes.
    is_moving: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    serial: u64,
    /// By session and number of the connection.
    legs: BTreeMap<(String, u32), Connected>,
    endpoints: BTreeMap<String, Endpoint>,
    /// Endpoints whose last connection was lost within the last seconds.
    lost: RecentlyLost,
}

#[derive(Debug)]
struct Connected {
    serial: u64,
    session: Session,
    /// Where the reason goes if somebody here ends it.
    end_reason: Arc<OnceLock<EndReason>>,
    abilities: Abilities,
    /// Ids of the endpoints that it serves.
    serves: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Endpoint {
    served_by: Vec<(SessionConnection, Session)>,
    /// Whose turn it is.
    turn: usize,
}

/// Why no stream was opened to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialError {
    /// No agent serves it.
    Away,
    /// Each agent that serves it has as many streams as it can stand.
    Busy,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Away => "no agent serves the endpoint",
            Self::Busy => "all agents of the endpoint are busy",
        })
    }
}

impl std::error::Error for DialError {}

/// How long somebody waits for a stream where all are in use.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Opens a stream to the first of `sessions` that has room.
pub(crate) fn open_first(
    sessions: impl IntoIterator<Item = Session>,
    first: impl Fn() -> Bytes,
    open: impl Fn(&Session, Bytes) -> Result<Stream, OpenRefused>,
) -> Result<Stream, DialError> {
    let mut failed = DialError::Away;
    for session in sessions {
        match open(&session, first()) {
            Ok(stream) => return Ok(stream),
            Err(OpenRefused::Full | OpenRefused::TooLong) => failed = DialError::Busy,
            Err(OpenRefused::Ended | OpenRefused::Exhausted) => {}
        }
    }
    Err(failed)
}

/// The same, where all may be full: queues at each of them, for [`PATIENCE`] at most.
pub(crate) async fn open_in_turn(
    sessions: impl Fn() -> Vec<Session>,
    first: impl Fn() -> Bytes,
) -> Result<Stream, DialError> {
    let waiting = async {
        loop {
            let sessions = sessions();
            let mut queued: FuturesUnordered<_> = sessions.iter().map(Session::queue).collect();
            // Those in front have their turn first.
            if queued.next().await.is_none() {
                return Err(DialError::Away);
            }
            match open_first(sessions, &first, Session::open) {
                Err(DialError::Busy) => {}
                opened => return opened,
            }
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap_or(Err(DialError::Busy))
}

/// Waits until something holds, for no longer than until `deadline`. Whether it does.
async fn until(deadline: Instant, holds: impl Fn() -> bool) -> bool {
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// An agent whose connection was lost is waited for this long.
const RETURNS_WITHIN: Duration = Duration::from_secs(2);
/// Requests that were on their way when a connection was taken out of service may take so long, while
/// others wait for the agent to come back.
const LAST_STREAMS: Duration = Duration::from_secs(2);
/// The same where this node ends the connections of its agents, so that they connect to another: their
/// sessions are kept for as long.
const MOVES_WITHIN: Duration = Duration::from_secs(5);
/// How often a stream that waits for an agent looks whether it is there.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Endpoints that are remembered as lost.
const LOST_MAX: usize = 10_000;

impl Bindings {
    /// Opens a stream to an agent that serves the endpoint named in `header`. The next agent is
    /// asked where one has no room, or is gone and nobody noticed yet.
    pub fn dial(&self, header: &ProxyHeader) -> Result<Stream, DialError> {
        let sessions = self.sessions_of(&header.id);
        open_first(sessions, || header.encode(), Session::open_behind)
    }

    /// The same. Where no agent has room, waits until one has, for [`PATIENCE`] at most.
    pub async fn dial_in_turn(&self, header: &ProxyHeader) -> Result<Stream, DialError> {
        match self.dial(header) {
            Err(DialError::Busy) => {
                open_in_turn(|| self.sessions_of(&header.id), || header.encode()).await
            }
            opened => opened,
        }
    }

    /// The connections that serve an endpoint, beginning with the one whose turn it is.
    fn sessions_of(&self, endpoint: &str) -> Vec<Session> {
        let mut state = self.lock();
        let Some(endpoint) = state.endpoints.get_mut(endpoint) else {
            return Vec::new();
        };
        let count = endpoint.served_by.len();
        let first = endpoint.turn;
        endpoint.turn = (first + 1) % count.max(1);
        (0..count)
            .map(|nth| endpoint.served_by[(first + nth) % count].1.clone())
            .collect()
    }

    /// The same, for a stream that another node brought because an agent of this node serves the endpoint:
    /// one that just left or is about to come is waited for, for two seconds at most, unless it
    /// `has_moved` to another node.
    pub(crate) async fn dial_soon(
        &self,
        header: &ProxyHeader,
        has_moved: impl Fn() -> bool,
    ) -> Result<Stream, DialError> {
        let deadline = Instant::now() + self.returns_within();
        loop {
            match self.dial_in_turn(header).await {
                Err(DialError::Away) if Instant::now() < deadline && !has_moved() => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                opened => return opened,
            }
        }
    }

    /// How long a request waits for an agent that lost its connection.
    fn returns_within(&self) -> Duration {
        match self.is_moving.load(Ordering::Relaxed) {
            true => MOVES_WITHIN,
            false => RETURNS_WITHIN,
        }
    }

    /// Whether the last connection that served an endpoint was lost less than two seconds ago, so that its
    /// agent may be on its way back. Takes no lock while no connection was lost.
    pub fn has_just_lost(&self, endpoint: &str) -> bool {
        if !self.has_lost.load(Ordering::Relaxed) {
            return false;
        }
        let within = self.returns_within();
        let (mut state, now) = (self.lock(), Instant::now());
        state.lost.forget_old(now);
        self.has_lost
            .store(!state.lost.order.is_empty(), Ordering::Relaxed);
        state.lost.contains(endpoint, within, now) && !state.endpoints.contains_key(endpoint)
    }

    /// A connection is about to serve an endpoint that the agent had before: requests for it that come too
    /// early wait, as for one that was lost.
    pub(crate) fn expect(&self, endpoint: &str) {
        let mut state = self.lock();
        if !state.endpoints.contains_key(endpoint) && state.note_lost([endpoint.to_owned()]) {
            self.has_lost.store(true, Ordering::Relaxed);
        }
    }

    /// How many connections serve an endpoint.
    pub fn count(&self, endpoint: &str) -> usize {
        self.lock()
            .endpoints
            .get(endpoint)
            .map_or(0, |endpoint| endpoint.served_by.len())
    }

    /// Whether a session has a connection.
    pub fn is_connected(&self, session_id: &str) -> bool {
        self.lock().legs.range(legs_of(session_id)).next().is_some()
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.lock().legs.len()
    }

    /// How many endpoints are served.
    pub fn endpoints(&self) -> usize {
        self.lock().endpoints.len()
    }

    /// Ends every connection of a session and says why. `false` if it has none.
    pub fn hang_up(&self, session_id: &str, why: &str) -> bool {
        let mut sessions = Vec::new();
        for connected in self.lock().legs.range(legs_of(session_id)) {
            let connected = connected.1;
            // The first reason stays.
            connected
                .end_reason
                .get_or_init(|| EndReason::Stopped(why.to_owned()));
            sessions.push(connected.session.clone());
        }
        for session in &sessions {
            session.hang_up();
        }
        !sessions.is_empty()
    }

    /// The endpoints of a session that it alone serves.
    pub(crate) fn endpoints_of(&self, session_id: &str) -> Vec<String> {
        let state = self.lock();
        let is_its = |(leg, _): &(SessionConnection, Session)| leg.session_id == session_id;
        let is_alone = |id: &&String| {
            let endpoint = state.endpoints.get(*id);
            endpoint.is_some_and(|endpoint| endpoint.served_by.iter().all(is_its))
        };
        let legs = state.legs.range(legs_of(session_id));
        let ids: BTreeSet<&String> = legs.flat_map(|(_, connected)| &connected.serves).collect();
        ids.into_iter().filter(is_alone).cloned().collect()
    }

    /// A connection of a session begins. The one it replaces, if any, is ended, and serves nothing
    /// from now on.
    pub(crate) fn enter(
        &self,
        session_id: &str,
        number: u32,
        session: Session,
        end_reason: Arc<OnceLock<EndReason>>,
        abilities: Abilities,
    ) -> SessionConnection {
        let mut state = self.lock();
        state.serial += 1;
        let leg = SessionConnection {
            session_id: session_id.to_owned(),
            number,
            serial: state.serial,
        };
        let key = (leg.session_id.clone(), number);
        let connected = Connected {
            serial: leg.serial,
            session,
            end_reason,
            abilities,
            serves: BTreeSet::new(),
        };
        if let Some(former) = state.legs.insert(key, connected) {
            let former_leg = SessionConnection {
                serial: former.serial,
                ..leg.clone()
            };
            if state.lose(&former_leg, former.serves) {
                // Its successor binds the endpoints again.
                self.has_lost.store(true, Ordering::Relaxed);
            }
            drop(state);
            former.session.hang_up();
        }
        leg
    }

    /// A connection has ended. Whether its session has none any more; not so if another has taken
    /// its place.
    pub(crate) fn leave(&self, leg: &SessionConnection) -> bool {
        let mut state = self.lock();
        if !state.holds(leg) {
            return false;
        }
        let key = (leg.session_id.clone(), leg.number);
        let serves = state.legs.remove(&key).map(|connected| connected.serves);
        if state.lose(leg, serves.unwrap_or_default()) {
            self.has_lost.store(true, Ordering::Relaxed);
        }
        state.legs.range(legs_of(&leg.session_id)).next().is_none()
    }

    /// A connection serves an endpoint, from now on.
    pub(crate) fn bind(&self, endpoint: &str, leg: &SessionConnection, session: &Session) {
        let mut state = self.lock();
        let Some(connected) = state.connected(leg) else {
            // It was taken over while it asked.
            return;
        };
        connected.serves.insert(endpoint.to_owned());
        state.lost.at.remove(endpoint);
        let endpoint = state.endpoints.entry(endpoint.to_owned()).or_default();
        endpoint.served_by.retain(|(other, _)| other != leg);
        endpoint.served_by.push((leg.clone(), session.clone()));
    }

    /// A connection serves an endpoint no more. Whether another of its session goes on serving it.
    pub(crate) fn unbind(&self, endpoint: &str, leg: &SessionConnection) -> bool {
        let mut state = self.lock();
        let serves_more = state.connected(leg).is_some_and(|connected| {
            connected.serves.remove(endpoint);
            !connected.serves.is_empty()
        });
        let Some(served) = state.endpoints.get_mut(endpoint) else {
            return false;
        };
        let is_own = |(other, _): &mut (SessionConnection, Session)| other == leg;
        let own = served.served_by.extract_if(.., is_own).last();
        let mut others = served.served_by.iter();
        let goes_on = others.any(|(other, _)| other.session_id == leg.session_id);
        if served.served_by.is_empty() {
            state.endpoints.remove(endpoint);
        }
        drop(state);
        if let Some((_, session)) = own
            && !serves_more
        {
            // An agent that gave all up waits for its streams to end before it leaves.
            session.rest_none();
        }
        goes_on
    }

    /// Connections of the sessions that `stays` does not name.
    fn others(
        &self,
        stays: &BTreeSet<String>,
    ) -> Vec<(SessionConnection, Session, Arc<OnceLock<EndReason>>)> {
        let state = self.lock();
        let legs = state.legs.iter();
        legs.filter(|((id, _), _)| !stays.contains(id))
            .map(|((id, number), connected)| {
                let leg = SessionConnection {
                    session_id: id.clone(),
                    number: *number,
                    serial: connected.serial,
                };
                (
                    leg,
                    connected.session.clone(),
                    Arc::clone(&connected.end_reason),
                )
            })
            .collect()
    }

    /// Ends the connections of agents that could not be asked to connect elsewhere, so that they do it:
    /// all sessions but those that `stays` names. What is under way on them may end first, until
    /// `deadline`; then requests wait here and at other nodes until the agent is back, and the
    /// connection ends as soon as it carries none. How many were ended, and how many of those cut
    /// something off.
    pub(crate) async fn let_go(
        &self,
        stays: &BTreeSet<String>,
        deadline: Instant,
    ) -> (usize, usize) {
        self.is_moving.store(true, Ordering::Relaxed);
        let mut leaving = FuturesUnordered::new();
        for (leg, session, end_reason) in self.others(stays) {
            leaving.push(self.let_one_go(leg, session, end_reason, deadline));
        }
        let (mut count, mut cut) = (0, 0);
        while let Some(has_cut) = leaving.next().await {
            count += 1;
            cut += usize::from(has_cut);
        }
        (count, cut)
    }

    /// Whether something was cut off.
    async fn let_one_go(
        &self,
        leg: SessionConnection,
        session: Session,
        end_reason: Arc<OnceLock<EndReason>>,
        deadline: Instant,
    ) -> bool {
        session.rest_none();
        let before = session.busy();
        until(deadline, || session.busy().is_disjoint(&before)).await;
        if self.lock().lose_all(&leg) {
            self.has_lost.store(true, Ordering::Relaxed);
        }
        let is_quiet = until(Instant::now() + LAST_STREAMS, || session.busy().is_empty()).await;
        // Its agent may come back to the session.
        end_reason.get_or_init(|| EndReason::Lost("the node is stopping".to_owned()));
        session.hang_up();
        let is_gone = || !self.lock().holds(&leg);
        until(Instant::now() + LAST_STREAMS, is_gone).await;
        !is_quiet
    }

    /// The sessions that have a connection.
    pub(crate) fn session_ids(&self) -> Vec<String> {
        let state = self.lock();
        let mut ids: Vec<String> = state.legs.keys().map(|(id, _)| id.clone()).collect();
        ids.dedup();
        ids
    }

    /// The sessions whose agents cannot come back to them.
    pub(crate) fn guests(&self) -> Vec<String> {
        let state = self.lock();
        let guests = state.legs.iter().filter(|(_, it)| it.abilities.is_guest());
        guests.map(|((id, _), _)| id.clone()).collect()
    }

    /// The first connection of a session, and what its agent can be asked for.
    pub(crate) fn agent(&self, session_id: &str) -> Option<(Session, Abilities)> {
        let state = self.lock();
        let (_, connected) = state.legs.range(legs_of(session_id)).next()?;
        Some((connected.session.clone(), connected.abilities.clone()))
    }

    /// Takes an endpoint out, and says who served it.
    pub(crate) fn forget_endpoint(&self, endpoint: &str) -> Vec<Session> {
        let mut state = self.lock();
        let served = state.endpoints.remove(endpoint);
        let served_by = served.map(|endpoint| endpoint.served_by);
        let mut sessions = Vec::new();
        for (leg, session) in served_by.unwrap_or_default() {
            if let Some(connected) = state.connected(&leg) {
                connected.serves.remove(endpoint);
            }
            sessions.push(session);
        }
        sessions
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The connections of a session among all.
fn legs_of(session_id: &str) -> RangeInclusive<(String, u32)> {
    (session_id.to_owned(), 0)..=(session_id.to_owned(), u32::MAX)
}

impl State {
    /// Whether the connection is the one that its session has under its number.
    fn holds(&self, leg: &SessionConnection) -> bool {
        self.legs
            .get(&(leg.session_id.clone(), leg.number))
            .is_some_and(|connected| connected.serial == leg.serial)
    }

    /// The connection, if it is the one that its session has under its number.
    fn connected(&mut self, leg: &SessionConnection) -> Option<&mut Connected> {
        self.legs
            .get_mut(&(leg.session_id.clone(), leg.number))
            .filter(|connected| connected.serial == leg.serial)
    }

    /// Takes a connection that goes on from all it serves. Whether it was the last for an endpoint.
    fn lose_all(&mut self, leg: &SessionConnection) -> bool {
        let connected = self.connected(leg);
        let serves = connected.map(|connected| std::mem::take(&mut connected.serves));
        self.lose(leg, serves.unwrap_or_default())
    }

    /// Takes a connection that was lost from the endpoints it served. Whether it was the last for one.
    fn lose(&mut self, leg: &SessionConnection, serves: BTreeSet<String>) -> bool {
        let mut lost = Vec::new();
        for id in serves {
            let Some(endpoint) = self.endpoints.get_mut(&id) else {
                continue;
            };
            endpoint.served_by.retain(|(other, _)| other != leg);
            if endpoint.served_by.is_empty() {
                self.endpoints.remove(&id);
                lost.push(id);
            }
        }
        self.note_lost(lost)
    }

    /// Notes endpoints that no connection serves now. Whether there is any.
    fn note_lost(&mut self, ids: impl IntoIterator<Item = String>) -> bool {
        let (mut is_any, now) = (false, Instant::now());
        for id in ids {
            is_any = true;
            self.lost.note(id, now);
        }
        is_any
    }
}

/// Endpoints whose last connection was lost within the last seconds. Each call costs the same, however many they are.
#[derive(Debug, Default)]
struct RecentlyLost {
    /// When.
    at: HashMap<String, Instant>,
    /// In the order in which they were lost. What was found again stays here until it is old.
    order: VecDeque<(String, Instant)>,
}

impl RecentlyLost {
    /// Those that are forgotten in one call.
    const FORGOTTEN_MAX: usize = 2;

    /// Notes one, unless there are too many.
    fn note(&mut self, id: String, now: Instant) {
        self.forget_old(now);
        if self.order.len() < LOST_MAX {
            self.at.insert(id.clone(), now);
            self.order.push_back((id, now));
        }
    }

    fn forget_old(&mut self, now: Instant) {
        for _ in 0..Self::FORGOTTEN_MAX {
            let is_old = |(_, at): &(String, Instant)| now.duration_since(*at) >= MOVES_WITHIN;
            if !self.order.front().is_some_and(is_old) {
                return;
            }
            if let Some((id, at)) = self.order.pop_front()
                && self.at.get(&id) == Some(&at)
            {
                self.at.remove(&id);
            }
        }
    }

    /// Whether one was lost less than `within` ago.
    fn contains(&self, id: &str, within: Duration, now: Instant) -> bool {
        let at = self.at.get(id);
        at.is_some_and(|at| now.duration_since(*at) < within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flood of endpoints that are lost costs the same at the cap as below it, and is forgotten a little at a time.
    #[test]
    fn what_was_lost_is_forgotten_a_little_at_a_time() {
        let (mut lost, begin) = (RecentlyLost::default(), Instant::now());
        for nth in 0..2 * LOST_MAX {
            lost.note(format!("ep_{nth}"), begin);
        }
        assert_eq!((lost.at.len(), lost.order.len()), (LOST_MAX, LOST_MAX));
        assert!(lost.contains("ep_0", RETURNS_WITHIN, begin));
        assert!(!lost.contains("ep_0", RETURNS_WITHIN, begin + RETURNS_WITHIN));
        let later = begin + MOVES_WITHIN;
        for nth in 1..=LOST_MAX / 2 {
            lost.forget_old(later);
            assert_eq!(
                lost.order.len(),
                LOST_MAX - nth * RecentlyLost::FORGOTTEN_MAX
            );
        }
        assert!(lost.at.is_empty());
        // One that was found again and lost again counts from the last time.
        lost.note("ep".into(), later);
        lost.at.remove("ep");
        lost.note("ep".into(), later + RETURNS_WITHIN);
        let end = later + MOVES_WITHIN;
        lost.forget_old(end);
        assert_eq!(lost.order.len(), 1);
        assert!(lost.contains("ep", MOVES_WITHIN, end));
    }
}
