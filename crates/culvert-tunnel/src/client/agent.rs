//! The agent: keeps a session with the server until it is stopped or permanently refused.

mod bindings;
mod drain;
mod open;
mod streams;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use culvert_base::sync::lock;
use culvert_base::{Entropy, Secret};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

pub(super) use drain::{Drained, Serving};
pub use open::OpenError;

use super::backoff::Backoff;
use super::diagnosis::{self, DialError};
use super::endpoint::Endpoint;
use super::exchanges::{Exchanges, ReplayError};
use super::forward::{self, BytesInFlight, Edit};
use super::further::{Load, Others};
use super::meter;
use super::network;
use super::numbers::{Number, Numbers};
use super::servers::Servers;
use super::session::{self, Heartbeat};
use super::status::{AgentError, EndpointStatus, Event, Observer, Phase, SessionTrouble, Status};
use crate::driver::Session;
use crate::wire::StopEndpointRequest;

/// Additional streams that the agent carries beyond the limit that it sends to the server.
const SPARE_PLACES: usize = 8;
/// Codes for a credential that is invalid and stays invalid.
const CREDENTIAL_CODES: [u16; 8] = [103, 105, 107, 109, 121, 123, 300, 4018];
/// Codes for temporary refusals.
const PASSING_CODES: [u16; 7] = [108, 348, 349, 350, 351, 802, 803];
/// Codes for a session that cannot be resumed. A new session is possible.
const SESSION_CODES: [u16; 1] = [110];

/// Settings of the agent.
#[derive(Debug)]
pub struct Settings {
    /// The addresses of the servers.
    pub servers: Servers,
    /// The credential.
    pub token: Secret,
    /// Metadata that the user sets, shown with the session.
    pub metadata: String,
    /// Version of the program.
    pub version: String,
    /// Time for open requests and connections to end when the agent stops.
    pub drain_time: Duration,
    /// Maximum number of concurrent streams, each with a connection to its service. The agent sends the limit
    /// to the server, and refuses further streams as busy.
    pub streams_max: usize,
    /// Heartbeats of its connections.
    pub heartbeat: Heartbeat,
    /// Whether the server may stop and restart the agent.
    pub is_managed: bool,
    /// How long an agent that was never online repeats an attempt that fails for a mistake, such as a wrong CA or port.
    pub mistake_time: Duration,
}

/// An agent with its endpoints.
pub struct Agent {
    pub(super) settings: Settings,
    exchanges: Option<Arc<Exchanges>>,
    pub(super) entropy: Arc<dyn Entropy>,
    observer: Observer,
    status: watch::Sender<Status>,
    /// The endpoints, in the order of [`Status::endpoints`].
    slots: watch::Sender<Vec<Slot>>,
    resumption: Mutex<Resumption>,
    /// One permit per open stream.
    places: Semaphore,
    held: BytesInFlight,
    /// The agent's connections, including those that ended recently.
    sessions: Mutex<Vec<Leg>>,
    pub(super) numbers: Numbers,
    /// Counts changes of the network.
    network: watch::Sender<u64>,
    /// Notified when the server sends the restart command on any connection.
    pub(super) restarts: Notify,
    /// The connection that introduced the agent's endpoints, while it is online.
    main: Mutex<Option<Session>>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("status", &*self.status.borrow())
            .finish_non_exhaustive()
    }
}

/// An endpoint at the server.
#[derive(Clone, Debug)]
struct Slot {
    endpoint: Arc<Endpoint>,
    /// The values of the last reply; `None` before the first.
    bound: Option<Bound>,
    is_gone: bool,
}

impl Slot {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint: Arc::new(endpoint),
            bound: None,
            is_gone: false,
        }
    }
}

#[derive(Clone, Debug)]
struct Bound {
    id: String,
    url: String,
    token: String,
    opts: Value,
}

/// The values that resume a session.
#[derive(Clone, Debug, Default)]
struct Resumption {
    client_id: String,
    cookie: String,
}

/// A connection.
struct Leg {
    session: Session,
    is_retired: Arc<AtomicBool>,
}

/// A connection with a running driver and heartbeat.
pub(super) struct Started {
    pub(super) session: Session,
    pub(super) chores: JoinSet<Chore>,
    /// Whether it takes no new streams.
    pub(super) is_retired: Arc<AtomicBool>,
}

/// Why a session could not be established.
pub(super) enum Trouble {
    Refused(String, Option<u16>),
    Lost(String),
    /// As lost, until a user changes something.
    Mistaken(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}

impl From<DialError> for Trouble {
    fn from(error: DialError) -> Self {
        match error.is_lasting {
            true => Self::Mistaken(error.why),
            false => Self::Lost(error.why),
        }
    }
}

/// Why a session ended.
enum Left {
    /// Either side stopped it, in order.
    Stopped,
    /// Stopped with this number of open connections.
    Cut(usize),
    /// Another connection replaced it. Its open streams may finish.
    Moved(Started, Number, Serving),
    Lost(String),
    Taken(String),
}

/// The result of the task of one stream.
pub(super) enum Done {
    Nothing,
    Stop,
    Restart,
    Taken(StopEndpointRequest),
}

/// The result of one of a session's own tasks.
pub(super) enum Chore {
    Ended,
    Silent,
    Bound(Result<(), Trouble>),
}

impl Agent {
    /// Creates an agent that has not connected yet. With `exchanges`, it records requests and responses
    /// there.
    pub fn new(
        settings: Settings,
        endpoints: Vec<Endpoint>,
        exchanges: Option<Arc<Exchanges>>,
        entropy: Arc<dyn Entropy>,
        observer: Observer,
    ) -> Self {
        let status = Status {
            endpoints: endpoints.iter().map(EndpointStatus::of).collect(),
            ..Status::default()
        };
        let slots = endpoints.into_iter().map(Slot::new).collect();
        // The server stops counting a stream when both ends have finished it; the connection to the service
        // may close later.
        let places = settings.streams_max.saturating_add(SPARE_PLACES);
        Self {
            settings,
            exchanges,
            entropy,
            observer,
            status: watch::Sender::new(status),
            slots: watch::Sender::new(slots),
            resumption: Mutex::default(),
            places: Semaphore::new(places.min(Semaphore::MAX_PERMITS)),
            held: BytesInFlight::default(),
            sessions: Mutex::default(),
            numbers: Numbers::default(),
            network: watch::Sender::new(0),
            restarts: Notify::new(),
            main: Mutex::default(),
        }
    }

    /// Number of bytes in transit that the agent holds, in both directions.
    pub fn held_bytes(&self) -> usize {
        let sessions = self.sessions();
        let held = sessions.iter().map(|leg| leg.session.held_bytes());
        self.held.bytes() + held.sum::<usize>()
    }

    /// The agent's status, now and after each change.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// The recorded requests, if recording is on.
    pub fn exchanges(&self) -> Option<&Arc<Exchanges>> {
        self.exchanges.as_ref()
    }

    /// Sends a recorded request to its service again. Returns the id of the new exchange.
    pub async fn replay(&self, id: u64) -> Result<u64, ReplayError> {
        let all = self.exchanges.as_ref().ok_or(ReplayError::Unknown)?;
        forward::replay(all, id, None).await
    }

    /// Sends a recorded request to its service again, with changes. Returns the id of the new exchange.
    pub async fn replay_edited(&self, id: u64, edit: &Edit) -> Result<u64, ReplayError> {
        let all = self.exchanges.as_ref().ok_or(ReplayError::Unknown)?;
        forward::replay(all, id, Some(edit)).await
    }

    /// Updates the average rates of all endpoints, for as long as it is polled.
    pub async fn keep_rates(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(meter::TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for slot in self.slots.borrow().iter() {
                slot.endpoint.meters.tick();
            }
        }
    }

    /// Serves until `stop`, and then finishes open requests. Reconnects after network failures.
    ///
    /// # Errors
    ///
    /// The server refused permanently, or stopped the last endpoint.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), AgentError> {
        let (mut backoff, mut was_online) = (Backoff::default(), false);
        // Grows apart from the other: a server that has just started, and refuses only until its database is back, is
        // not punished for the time in which it could not be reached.
        let mut refused = Backoff::default();
        let (mut started, mut others) = (None, Others::new());
        let mut mistaken_since = None;
        let mut watching = JoinSet::new();
        watching.spawn(network::announce(self.network.clone()));
        let mut changes = self.network.subscribe();
        // A replaced connection can also receive the stop command.
        let stop = stop.child_token();
        // A connection replaces a lost one at the server by its index.
        let Some(mut number) = self.numbers.take() else {
            return Ok(());
        };
        loop {
            if started.is_none() {
                let address = self.settings.servers.current().address().to_owned();
                self.status.send_modify(|status| {
                    status.phase = Phase::Connecting;
                    status.server.clone_from(&address);
                });
                self.notify(Event::Connecting { address });
            }
            let mut online_at: Option<Instant> = None;
            let left = self
                .serve(
                    started.take(),
                    &number,
                    &stop,
                    &mut online_at,
                    was_online,
                    &mut others,
                )
                .await;
            if !matches!(left, Ok(Left::Moved(..))) {
                *lock(&self.main) = None;
            }
            while others.connections.try_join_next().is_some() {}
            if let Some(at) = online_at {
                was_online = true;
                backoff.lasted(at.elapsed());
                refused.lasted(at.elapsed());
            }
            let (why, after, is_lost) = match left {
                Ok(Left::Stopped) => {
                    stop.cancel();
                    return others.end(0).await;
                }
                Ok(Left::Cut(count)) => {
                    stop.cancel();
                    return others.end(count).await;
                }
                Ok(Left::Moved(next, its_number, old)) => {
                    started = Some(next);
                    others.supersede();
                    let old_number = std::mem::replace(&mut number, its_number);
                    let leaving = Arc::clone(&self).leave(old, old_number, stop.clone());
                    others.connections.spawn(leaving);
                    continue;
                }
                Ok(Left::Taken(message)) => {
                    stop.cancel();
                    others.connections.join_all().await;
                    return Err(AgentError::Taken(message));
                }
                Ok(Left::Lost(why)) | Err(Trouble::Lost(why)) => {
                    mistaken_since = None;
                    (why, backoff.next(&*self.entropy), true)
                }
                Err(Trouble::Mistaken(why)) => {
                    let since = mistaken_since.get_or_insert_with(Instant::now);
                    if !was_online && since.elapsed() >= self.settings.mistake_time {
                        return Err(AgentError::Mistaken(why));
                    }
                    (why, backoff.next(&*self.entropy), true)
                }
                Err(Trouble::Refused(text, code)) => {
                    if self.is_final(code, was_online) {
                        return Err(AgentError::Refused(text, code));
                    }
                    // Another server may take it.
                    self.settings.servers.move_on();
                    backoff = Backoff::default();
                    (text, refused.next(&*self.entropy), false)
                }
            };
            self.status.send_modify(|status| {
                status.phase = Phase::Waiting;
                status.latency = None;
                let since = status.trouble.take().map(|trouble| trouble.since);
                status.trouble = Some(SessionTrouble {
                    since: since.unwrap_or_else(Instant::now),
                    why: why.clone(),
                });
            });
            self.wait_because(why, after);
            changes.mark_unchanged();
            // A refusal has nothing to do with the network.
            let changes = is_lost.then_some(&mut changes);
            if !backoff.wait(after, changes, &*self.entropy, &stop).await {
                self.status
                    .send_modify(|status| status.phase = Phase::Stopping);
                return others.end(0).await;
            }
        }
    }

    /// Whether a refusal ends the agent. If the agent was online before, a refusal is more often temporary.
    fn is_final(&self, code: Option<u16>, was_online: bool) -> bool {
        match code {
            Some(code) if SESSION_CODES.contains(&code) => {
                let had = std::mem::take(&mut *self.resumption());
                had.client_id.is_empty()
            }
            Some(code) if CREDENTIAL_CODES.contains(&code) => true,
            Some(code) if PASSING_CODES.contains(&code) => false,
            _ => !was_online,
        }
    }

    /// Connects to the server, without authenticating.
    pub(super) async fn begin(self: &Arc<Self>) -> Result<Started, DialError> {
        // Before it connects, so that it misses no change.
        let changes = self.network.subscribe();
        let (session, driver, local) = self.settings.servers.current().dial().await?;
        let is_retired = Arc::new(AtomicBool::new(false));
        let mut sessions = self.sessions();
        sessions.retain(|leg| !leg.session.is_over());
        sessions.push(Leg {
            session: session.clone(),
            is_retired: Arc::clone(&is_retired),
        });
        drop(sessions);
        let mut chores = JoinSet::new();
        chores.spawn(async {
            driver.run().await;
            Chore::Ended
        });
        let this = Arc::clone(self);
        let report = move |latency| {
            this.status
                .send_modify(|status| status.latency = Some(latency));
        };
        let (of, rhythm) = (session.clone(), self.settings.heartbeat);
        let beating = session::heartbeat(of, rhythm, Some(local), changes, report);
        chores.spawn(async {
            beating.await;
            Chore::Silent
        });
        Ok(Started {
            session,
            chores,
            is_retired,
        })
    }

    /// Establishes another connection that serves all endpoints, beside the one with the index `current`.
    async fn succeed(self: Arc<Self>, current: Number) -> (Started, Number) {
        // If all others are in use, the server ends the current connection first.
        let number = self.numbers.take().unwrap_or(current);
        let mut backoff = Backoff::default();
        loop {
            self.notify(Event::Connecting {
                address: self.settings.servers.current().address().to_owned(),
            });
            let why = match self.begin().await {
                Ok(started) => match self
                    .introduce(&started.session, number.value(), false)
                    .await
                {
                    Ok(()) => return (started, number),
                    Err(Trouble::Refused(why, _) | Trouble::Lost(why) | Trouble::Mistaken(why)) => {
                        started.session.hang_up();
                        self.settings.servers.move_on();
                        why
                    }
                },
                Err(error) => {
                    self.settings.servers.move_on();
                    error.why
                }
            };
            let after = backoff.next(&*self.entropy);
            self.wait_because(why, after);
            tokio::time::sleep(after).await;
        }
    }

    /// Serves one connection from start to end; `started` if it is established already.
    async fn serve(
        self: &Arc<Self>,
        started: Option<Started>,
        number: &Number,
        stop: &CancellationToken,
        online_at: &mut Option<Instant>,
        again: bool,
        others: &mut Others,
    ) -> Result<Left, Trouble> {
        let started = match started {
            Some(started) => {
                online_at.get_or_insert_with(Instant::now);
                self.come_online(&started.session, again);
                started
            }
            None => {
                let mut changes = self.network.subscribe();
                let mut started = tokio::select! {
                    () = session::changed(&mut changes) => {
                        return Err(Trouble::Lost("the network has changed".into()));
                    }
                    begun = self.begin() => begun.inspect_err(|_| self.settings.servers.move_on())?,
                    () = stop.cancelled() => return Ok(Left::Stopped),
                };
                self.notify(Event::Connected {
                    address: self.status.borrow().server.clone(),
                });
                let (this, session) = (Arc::clone(self), started.session.clone());
                let number = number.value();
                started.chores.spawn(async move {
                    Chore::Bound(this.introduce(&session, number, false).await)
                });
                started
            }
        };

        let mut it = Serving::new(started);
        let mut successors = JoinSet::new();
        let mut left = loop {
            tokio::select! {
                accepted = it.session.accept() => match accepted {
                    Some(stream) => {
                        it.streams.spawn(Arc::clone(self).take(stream, it.draining.clone()));
                    }
                    None => {
                        let ending = it.session.ended().await;
                        break Left::Lost(it.session.failure().unwrap_or(ending.to_string()));
                    }
                },
                Some(done) = it.streams.join_next(), if !it.streams.is_empty() => match done {
                    Ok(Done::Stop) => break Left::Stopped,
                    Ok(Done::Restart) => self.restarts.notify_one(),
                    Ok(Done::Taken(request)) => {
                        if let Some(message) = self.taken(&request) {
                            break Left::Taken(message);
                        }
                    }
                    Ok(Done::Nothing) | Err(_) => {}
                },
                () = self.restarts.notified(), if online_at.is_some() && successors.is_empty() => {
                    successors.spawn(Arc::clone(self).succeed(number.clone()));
                }
                Some(started) = successors.join_next(), if !successors.is_empty() => {
                    // If the replacement ended without a result, it is tried again when this connection is
                    // lost.
                    if let Ok((started, its_number)) = started {
                        return Ok(Left::Moved(started, its_number, it));
                    }
                },
                Some(chore) = it.chores.join_next() => match chore {
                    Ok(Chore::Bound(Ok(()))) => {
                        online_at.get_or_insert_with(Instant::now);
                        self.come_online(&it.session, again);
                    }
                    Ok(Chore::Bound(Err(Trouble::Lost(why)))) => break Left::Lost(why),
                    Ok(Chore::Bound(Err(refused))) => {
                        it.session.hang_up();
                        return Err(refused);
                    }
                    Ok(Chore::Silent) if it.session.has_capacity() => {
                        break Left::Lost("the server does not respond".into());
                    }
                    Ok(Chore::Ended | Chore::Silent) | Err(_) => {}
                },
                () = others.next_check(), if online_at.is_some() => others.open_if_needed(self, stop),
                () = stop.cancelled() => break Left::Stopped,
            }
        };
        let is_violated = it.session.is_violated();
        match &left {
            Left::Stopped | Left::Taken(_) => {
                self.status
                    .send_modify(|status| status.phase = Phase::Stopping);
                stop.cancel();
                it.draining.cancel();
                let (at_once, never) = (std::future::ready(()), std::future::pending());
                let drained = self.drain(&mut it, at_once, never, stop).await;
                if let (Drained::Ended(cut @ 1..), Left::Stopped) = (drained, &left) {
                    left = Left::Cut(cut);
                }
                it.close().await;
            }
            Left::Lost(_) | Left::Cut(_) | Left::Moved(..) => it.session.hang_up(),
        }
        if matches!(left, Left::Lost(_)) && online_at.is_none() && is_violated {
            self.settings.servers.move_on();
            let server = self.status.borrow().server.clone();
            return Err(Trouble::Mistaken(diagnosis::after_tls(&server)));
        }
        if let (Left::Lost(why), None) = (&mut left, &online_at) {
            if !again {
                *why = diagnosis::before_session(why, &self.status.borrow().server);
            }
            // It took the connection, but does not serve.
            self.settings.servers.move_on();
        }
        Ok(left)
    }

    fn come_online(&self, session: &Session, again: bool) {
        *lock(&self.main) = Some(session.clone());
        self.status.send_modify(|status| {
            status.phase = Phase::Online;
            status.trouble = None;
        });
        let session_id = self.resumption().client_id.clone();
        self.notify(Event::Online { session_id, again });
    }

    /// The current load of the agent's connections.
    pub(super) fn load(&self) -> Load {
        let sessions = self.sessions();
        let serves = |leg: &&Leg| !leg.session.is_over() && !leg.is_retired.load(Ordering::Relaxed);
        let serving = || sessions.iter().filter(serves).map(|leg| &leg.session);
        Load {
            connections: serving().count(),
            streams: serving().map(Session::stream_count).sum(),
            is_congested: serving().all(|one| one.is_congested() || one.is_held_back()),
            is_held_back: serving().any(Session::is_held_back),
        }
    }

    fn wait_because(&self, why: String, after: Duration) {
        let address = self.status.borrow().server.clone();
        self.notify(Event::Waiting {
            address,
            why,
            after,
        });
    }

    fn notify(&self, event: Event) {
        (self.observer)(event);
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Leg>> {
        self.sessions
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn resumption(&self) -> MutexGuard<'_, Resumption> {
        self.resumption
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
