//! Which sessions are connected, and which of them serve which endpoint.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use culvert_mux::OpenRefused;

use super::EndReason;
use super::command::Abilities;
use crate::driver::{Session, Stream};
use crate::wire::ProxyHeader;

/// The connections of a session, and a connection among all that ever were.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leg {
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
}

#[derive(Debug, Default)]
struct State {
    serial: u64,
    /// By session and number of the connection.
    legs: BTreeMap<(String, u32), Connected>,
    endpoints: BTreeMap<String, Endpoint>,
}

#[derive(Debug)]
struct Connected {
    serial: u64,
    session: Session,
    /// Where the reason goes if somebody here ends it.
    told: Arc<OnceLock<EndReason>>,
    abilities: Abilities,
}

#[derive(Debug, Default)]
struct Endpoint {
    served_by: Vec<(Leg, Session)>,
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

impl Bindings {
    /// Opens a stream to an agent that serves the endpoint named in `header`. The next agent is
    /// asked where one has no room, or is gone and nobody noticed yet.
    pub fn dial(&self, header: &ProxyHeader) -> Result<Stream, DialError> {
        let mut state = self.lock();
        let endpoint = state.endpoints.get_mut(&header.id).ok_or(DialError::Away)?;
        let count = endpoint.served_by.len();
        let first = endpoint.turn;
        endpoint.turn = (first + 1) % count.max(1);
        let sessions: Vec<Session> = (0..count)
            .map(|nth| endpoint.served_by[(first + nth) % count].1.clone())
            .collect();
        drop(state);
        let mut failed = DialError::Away;
        for session in sessions {
            match session.open(header.encode()) {
                Ok(stream) => return Ok(stream),
                Err(OpenRefused::Full | OpenRefused::TooLong) => failed = DialError::Busy,
                Err(OpenRefused::Ended | OpenRefused::Exhausted) => {}
            }
        }
        Err(failed)
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
                .told
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
        let is_its = |(leg, _): &(Leg, Session)| leg.session_id == session_id;
        self.lock()
            .endpoints
            .iter()
            .filter(|(_, endpoint)| endpoint.served_by.iter().all(is_its))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// A connection of a session begins. The one it replaces, if any, is ended, and serves nothing
    /// from now on.
    pub(crate) fn enter(
        &self,
        session_id: &str,
        number: u32,
        session: Session,
        told: Arc<OnceLock<EndReason>>,
        abilities: Abilities,
    ) -> Leg {
        let mut state = self.lock();
        state.serial += 1;
        let leg = Leg {
            session_id: session_id.to_owned(),
            number,
            serial: state.serial,
        };
        let key = (leg.session_id.clone(), number);
        let connected = Connected {
            serial: leg.serial,
            session,
            told,
            abilities,
        };
        if let Some(former) = state.legs.insert(key, connected) {
            state.forget(&Leg {
                serial: former.serial,
                ..leg.clone()
            });
            drop(state);
            former.session.hang_up();
        }
        leg
    }

    /// A connection has ended. Whether its session has none any more; not so if another has taken
    /// its place.
    pub(crate) fn leave(&self, leg: &Leg) -> bool {
        let mut state = self.lock();
        state.forget(leg);
        if !state.holds(leg) {
            return false;
        }
        state.legs.remove(&(leg.session_id.clone(), leg.number));
        state.legs.range(legs_of(&leg.session_id)).next().is_none()
    }

    /// A connection serves an endpoint, from now on.
    pub(crate) fn bind(&self, endpoint: &str, leg: &Leg, session: &Session) {
        let mut state = self.lock();
        if !state.holds(leg) {
            // It was taken over while it asked.
            return;
        }
        let endpoint = state.endpoints.entry(endpoint.to_owned()).or_default();
        endpoint.served_by.retain(|(other, _)| other != leg);
        endpoint.served_by.push((leg.clone(), session.clone()));
    }

    /// A connection serves an endpoint no more.
    pub(crate) fn unbind(&self, endpoint: &str, leg: &Leg) {
        let mut state = self.lock();
        if let Some(served) = state.endpoints.get_mut(endpoint) {
            served.served_by.retain(|(other, _)| other != leg);
            if served.served_by.is_empty() {
                state.endpoints.remove(endpoint);
            }
        }
    }

    /// The first connection of a session, and what its agent can be asked for.
    pub(crate) fn agent(&self, session_id: &str) -> Option<(Session, Abilities)> {
        let state = self.lock();
        let (_, connected) = state.legs.range(legs_of(session_id)).next()?;
        Some((connected.session.clone(), connected.abilities.clone()))
    }

    /// Takes an endpoint out, and says who served it.
    pub(crate) fn forget_endpoint(&self, endpoint: &str) -> Vec<Session> {
        let served = self.lock().endpoints.remove(endpoint);
        served
            .map(|endpoint| endpoint.served_by)
            .unwrap_or_default()
            .into_iter()
            .map(|(_, session)| session)
            .collect()
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
    fn holds(&self, leg: &Leg) -> bool {
        self.legs
            .get(&(leg.session_id.clone(), leg.number))
            .is_some_and(|connected| connected.serial == leg.serial)
    }

    fn forget(&mut self, leg: &Leg) {
        self.endpoints.retain(|_, endpoint| {
            endpoint.served_by.retain(|(other, _)| other != leg);
            !endpoint.served_by.is_empty()
        });
    }
}
