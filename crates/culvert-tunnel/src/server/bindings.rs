//! The connected sessions, and the endpoints that each serves.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::EndReason;
use super::command::Abilities;
use super::dial::{DialError, open_first, open_in_turn, source_of};
use crate::driver::{Session, SessionTraffic, Stream};
use crate::path::{Candidate, with_most_room};
use crate::wire::ProxyHeader;

/// One connection of a session, identified among all past and present connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionConnection {
    pub(crate) session_id: String,
    pub(crate) number: u32,
    /// Unique, so that a connection that was replaced cannot remove its replacement.
    pub(crate) serial: u64,
}

/// Endpoints and the connections that serve them. The streams of an endpoint are spread over its connections,
/// whether of one agent or of several.
#[derive(Debug, Default)]
pub struct Bindings {
    state: Mutex<State>,
    /// Whether `lost` has entries. Every request reads this.
    has_lost: AtomicBool,
    /// Whether agents are being moved to other nodes.
    is_moving: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    serial: u64,
    /// Connections by session and index.
    legs: BTreeMap<(String, u32), Connected>,
    endpoints: BTreeMap<String, Endpoint>,
    /// Endpoints that recently lost their last connection.
    lost: RecentlyLost,
    /// Traffic of connections that ended, by session, until it is read.
    ended_traffic: BTreeMap<String, SessionTraffic>,
}

#[derive(Debug)]
struct Connected {
    serial: u64,
    session: Session,
    /// Receives the reason if the server ends the connection.
    end_reason: Arc<OnceLock<EndReason>>,
    abilities: Abilities,
    /// Ids of the endpoints that it serves.
    serves: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Endpoint {
    served_by: Vec<(SessionConnection, Session)>,
    /// The index of the next connection in round-robin order.
    turn: usize,
}

/// Waits until a condition holds, at most until `deadline`. Returns whether it holds.
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

/// How long requests wait for an agent whose connection was lost.
const RETURNS_WITHIN: Duration = Duration::from_secs(2);
/// How long requests in transit may still arrive after a connection stopped serving, while others wait for
/// the agent to reconnect.
const LAST_STREAMS: Duration = Duration::from_secs(2);
/// How long requests wait if this node ends the connections of its agents, so that they connect to another
/// node. Their sessions are kept as long.
const MOVES_WITHIN: Duration = Duration::from_secs(5);
/// How often a waiting stream checks whether the agent is connected.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum number of sessions whose connections ended since their traffic was read.
const ENDED_MAX: usize = 10_000;
/// Maximum number of endpoints that are recorded as lost.
const LOST_MAX: usize = 10_000;

impl Bindings {
    /// Opens a stream to an agent that serves the endpoint named in `header`. If an agent is full or its
    /// connection is found to be gone, tries the next one.
    pub fn dial(&self, header: &ProxyHeader) -> Result<Stream, DialError> {
        let sessions = self.sessions_of(&header.id);
        let source = source_of(header);
        let open = |session: &Session, first| session.open_behind(source, first);
        open_first(sessions, || header.encode(), open)
    }

    /// As [`Self::dial`], but if no agent has capacity, waits until one has, for at most [`PATIENCE`](crate::server::PATIENCE).
    pub async fn dial_in_turn(&self, header: &ProxyHeader) -> Result<Stream, DialError> {
        match self.dial(header) {
            Err(DialError::Busy) => {
                let sessions = || self.sessions_of(&header.id);
                open_in_turn(sessions, || header.encode(), source_of(header)).await
            }
            opened => opened,
        }
    }

    /// The connections that serve an endpoint, in round-robin order. Of those of the agent whose turn it is, the one with
    /// the most room is the first.
    fn sessions_of(&self, endpoint: &str) -> Vec<Session> {
        let mut state = self.lock();
        let Some(endpoint) = state.endpoints.get_mut(endpoint) else {
            return Vec::new();
        };
        let count = endpoint.served_by.len();
        let first = endpoint.turn;
        endpoint.turn = (first + 1) % count.max(1);
        let in_turn = || (0..count).filter_map(|nth| endpoint.served_by.get((first + nth) % count));
        let mut sessions: Vec<Session> = in_turn().map(|(_, session)| session.clone()).collect();
        let agent = in_turn().next().map(|(leg, _)| &leg.session_id);
        let of_agent = in_turn().enumerate();
        let of_agent = of_agent.filter(|(_, (leg, _))| Some(&leg.session_id) == agent);
        let of_agent: Vec<usize> = of_agent.map(|(nth, _)| nth).collect();
        drop(state);
        if of_agent.len() > 1 {
            let room = |nth: &usize| sessions.get(*nth).map(Session::room);
            let rooms: Vec<Candidate> = of_agent.iter().filter_map(room).collect();
            let best = with_most_room(&rooms).and_then(|best| of_agent.get(best));
            if let Some(ahead) = best.and_then(|best| sessions.get_mut(..=*best)) {
                ahead.rotate_right(1);
            }
        }
        sessions
    }

    /// As [`Self::dial_in_turn`], for a stream that another node forwarded because an agent of this node
    /// serves the endpoint. If no agent is connected, waits up to two seconds (five while agents are moved)
    /// for one to connect, unless the endpoint `has_moved` to another node.
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

    /// How long a request waits for an agent whose connection was lost.
    fn returns_within(&self) -> Duration {
        match self.is_moving.load(Ordering::Relaxed) {
            true => MOVES_WITHIN,
            false => RETURNS_WITHIN,
        }
    }

    /// Whether the last connection of an endpoint was lost so recently that its agent may reconnect soon.
    /// Takes no lock while no connection was lost.
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

    /// Announces that a connection will serve an endpoint which its agent had before. Earlier requests for it
    /// wait, as after a lost connection.
    pub(crate) fn expect(&self, endpoint: &str) {
        let mut state = self.lock();
        if !state.endpoints.contains_key(endpoint) && state.note_lost([endpoint.to_owned()]) {
            self.has_lost.store(true, Ordering::Relaxed);
        }
    }

    /// Number of connections that serve an endpoint.
    pub fn count(&self, endpoint: &str) -> usize {
        self.lock()
            .endpoints
            .get(endpoint)
            .map_or(0, |endpoint| endpoint.served_by.len())
    }

    /// The session that serves an endpoint, if there is exactly one.
    pub fn only_session(&self, endpoint: &str) -> Option<String> {
        let state = self.lock();
        let mut serving = state.endpoints.get(endpoint)?.served_by.iter();
        let (first, _) = serving.next()?;
        let is_only = serving.all(|(other, _)| other.session_id == first.session_id);
        is_only.then(|| first.session_id.clone())
    }

    /// Whether a session has a connection.
    pub fn is_connected(&self, session_id: &str) -> bool {
        self.lock().legs.range(legs_of(session_id)).next().is_some()
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.lock().legs.len()
    }

    /// Streams and bytes of each session since the last call, by session ID; without idle sessions.
    pub fn take_traffic(&self) -> BTreeMap<String, SessionTraffic> {
        let mut state = self.lock();
        let mut traffic = std::mem::take(&mut state.ended_traffic);
        for ((session_id, _), connected) in &state.legs {
            let taken = connected.session.take_traffic();
            if !taken.is_empty() {
                traffic.entry(session_id.clone()).or_default().add(taken);
            }
        }
        traffic
    }

    /// Number of endpoints that are served.
    pub fn endpoints(&self) -> usize {
        self.lock().endpoints.len()
    }

    /// Ends every connection of a session for this reason. `false` if it has none.
    pub fn hang_up(&self, session_id: &str, why: &str) -> bool {
        let mut sessions = Vec::new();
        for connected in self.lock().legs.range(legs_of(session_id)) {
            let connected = connected.1;
            // The first reason is kept.
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

    /// The endpoints that only this session serves.
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

    /// Adds a connection of a session. If it replaces another, that one is ended and serves nothing any more.
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
            state.keep_traffic(session_id, former.session.take_traffic());
            let former_leg = SessionConnection {
                serial: former.serial,
                ..leg.clone()
            };
            if state.lose(&former_leg, former.serves) {
                // The replacement binds the endpoints again.
                self.has_lost.store(true, Ordering::Relaxed);
            }
            drop(state);
            former.session.hang_up();
        }
        leg
    }

    /// Removes an ended connection. Returns whether its session has no connection left; `false` if another
    /// has replaced it.
    pub(crate) fn leave(&self, leg: &SessionConnection) -> bool {
        let mut state = self.lock();
        if !state.holds(leg) {
            return false;
        }
        let key = (leg.session_id.clone(), leg.number);
        let removed = state.legs.remove(&key);
        if let Some(connected) = &removed {
            state.keep_traffic(&leg.session_id, connected.session.take_traffic());
        }
        let serves = removed.map(|connected| connected.serves);
        if state.lose(leg, serves.unwrap_or_default()) {
            self.has_lost.store(true, Ordering::Relaxed);
        }
        state.legs.range(legs_of(&leg.session_id)).next().is_none()
    }

    /// Lets a connection serve an endpoint.
    pub(crate) fn bind(&self, endpoint: &str, leg: &SessionConnection, session: &Session) {
        let mut state = self.lock();
        let Some(connected) = state.connected(leg) else {
            // The connection was replaced while the request ran.
            return;
        };
        if connected.serves.is_empty() {
            // The agent may have removed all endpoints before.
            connected.session.rest_again();
        }
        connected.serves.insert(endpoint.to_owned());
        state.lost.at.remove(endpoint);
        let endpoint = state.endpoints.entry(endpoint.to_owned()).or_default();
        endpoint.served_by.retain(|(other, _)| other != leg);
        endpoint.served_by.push((leg.clone(), session.clone()));
    }

    /// Removes an endpoint from a connection. Returns whether another connection of its session still serves
    /// it.
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
            // An agent that has removed all endpoints waits for its streams to end before it disconnects.
            session.rest_none();
        }
        goes_on
    }

    /// The connections of sessions that are not in `stays`.
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

    /// Ends the connections of agents that do not support the restart command, so that they reconnect
    /// elsewhere: all sessions except those in `stays`. Open streams may end first, until `deadline`. Then
    /// new requests wait, here and at other nodes, until the agent is back, and the connection ends as soon
    /// as it carries no streams. Returns the number of ended connections, and of those that still carried
    /// streams.
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

    /// Ends one connection. Returns whether it still carried streams.
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
        // Marked as lost, so that the agent can resume the session.
        end_reason.get_or_init(|| EndReason::Lost("the node is stopping".to_owned()));
        session.hang_up();
        let is_gone = || !self.lock().holds(&leg);
        until(Instant::now() + LAST_STREAMS, is_gone).await;
        !is_quiet
    }

    /// The ids of connected sessions.
    pub(crate) fn session_ids(&self) -> Vec<String> {
        let state = self.lock();
        let mut ids: Vec<String> = state.legs.keys().map(|(id, _)| id.clone()).collect();
        ids.dedup();
        ids
    }

    /// The sessions that their agents cannot resume.
    pub(crate) fn in_process_sessions(&self) -> Vec<String> {
        let state = self.lock();
        let in_process = state
            .legs
            .iter()
            .filter(|(_, it)| it.abilities.is_in_process());
        in_process.map(|((id, _), _)| id.clone()).collect()
    }

    /// The connection of a session for commands, and the commands that its agent supports: the first that serves
    /// endpoints, if any, because an agent retires others.
    pub(crate) fn agent(&self, session_id: &str) -> Option<(Session, Abilities)> {
        let state = self.lock();
        let mut legs = state.legs.range(legs_of(session_id)).map(|(_, leg)| leg);
        let first = legs.next()?;
        let connected = match first.serves.is_empty() {
            true => legs.find(|leg| !leg.serves.is_empty()).unwrap_or(first),
            false => first,
        };
        Some((connected.session.clone(), connected.abilities.clone()))
    }

    /// Removes an endpoint. Returns the sessions that served it.
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

/// The range of a session's connections.
fn legs_of(session_id: &str) -> RangeInclusive<(String, u32)> {
    (session_id.to_owned(), 0)..=(session_id.to_owned(), u32::MAX)
}

impl State {
    /// Whether this is the session's current connection with its index.
    fn holds(&self, leg: &SessionConnection) -> bool {
        self.legs
            .get(&(leg.session_id.clone(), leg.number))
            .is_some_and(|connected| connected.serial == leg.serial)
    }

    /// The connection, if it is the session's current one with its index.
    fn connected(&mut self, leg: &SessionConnection) -> Option<&mut Connected> {
        self.legs
            .get_mut(&(leg.session_id.clone(), leg.number))
            .filter(|connected| connected.serial == leg.serial)
    }

    /// Keeps the traffic of a connection that ended, unless the limit is reached.
    fn keep_traffic(&mut self, session_id: &str, traffic: SessionTraffic) {
        if let Some(kept) = self.ended_traffic.get_mut(session_id) {
            kept.add(traffic);
        } else if self.ended_traffic.len() < ENDED_MAX && !traffic.is_empty() {
            self.ended_traffic.insert(session_id.to_owned(), traffic);
        }
    }

    /// Removes an open connection from all its endpoints. Returns whether it was the last for any.
    fn lose_all(&mut self, leg: &SessionConnection) -> bool {
        let connected = self.connected(leg);
        let serves = connected.map(|connected| std::mem::take(&mut connected.serves));
        self.lose(leg, serves.unwrap_or_default())
    }

    /// Removes a lost connection from its endpoints. Returns whether it was the last for any.
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

    /// Records endpoints that no connection serves any more. Returns whether there are any.
    fn note_lost(&mut self, ids: impl IntoIterator<Item = String>) -> bool {
        let (mut is_any, now) = (false, Instant::now());
        for id in ids {
            is_any = true;
            self.lost.note(id, now);
        }
        is_any
    }
}

/// Endpoints that recently lost their last connection. The cost of a call does not depend on their number.
#[derive(Debug, Default)]
struct RecentlyLost {
    /// When each was lost last.
    at: HashMap<String, Instant>,
    /// In the order of their loss. An entry whose endpoint was found again stays here until it expires.
    order: VecDeque<(String, Instant)>,
}

impl RecentlyLost {
    /// Maximum number of entries that one call expires.
    const FORGOTTEN_MAX: usize = 2;

    /// Records a lost endpoint, unless the limit is reached.
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

    /// Whether an endpoint was lost less than `within` ago.
    fn contains(&self, id: &str, within: Duration, now: Instant) -> bool {
        let at = self.at.get(id);
        at.is_some_and(|at| now.duration_since(*at) < within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At the limit, a flood of lost endpoints costs the same as below it, and expires gradually.
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
        // An endpoint that was lost again counts from the last time.
        lost.note("ep".into(), later);
        lost.at.remove("ep");
        lost.note("ep".into(), later + RETURNS_WITHIN);
        let end = later + MOVES_WITHIN;
        lost.forget_old(end);
        assert_eq!(lost.order.len(), 1);
        assert!(lost.contains("ep", MOVES_WITHIN, end));
    }
}
