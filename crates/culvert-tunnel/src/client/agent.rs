//! The agent: keeps a session with the server until it is stopped or refused for good.

mod bindings;
mod streams;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use culvert_base::{Entropy, Secret};
use culvert_mux::ErrorCode;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::endpoint::Endpoint;
use super::exchanges::{Exchanges, ReplayError};
use super::forward::{self, Held};
use super::further::{Load, Others};
use super::servers::Servers;
use super::session;
use super::status::{AgentError, EndpointStatus, Event, Observer, Phase, Status};
use crate::driver::Session;
use crate::wire::{Outcome, StopEndpointRequest, StreamType, UnbindRequest};

/// How long the old connection goes on serving beside the new one. Other nodes look twice a second where
/// an endpoint is served.
const OVERLAP: Duration = Duration::from_secs(2);
/// How long a request may take to follow its stream through other nodes.
const STRAGGLERS: Duration = Duration::from_secs(1);
/// Streams that are carried beyond those that the server is told of.
const SPARE_PLACES: usize = 8;
/// The token is of no use and will not become so.
const CREDENTIAL_CODES: [u16; 8] = [103, 105, 107, 109, 121, 123, 300, 4018];
/// The server would say otherwise a little later.
const PASSING_CODES: [u16; 7] = [108, 348, 349, 350, 351, 802, 803];
/// The session is not to be had again, but another is.
const SESSION_CODES: [u16; 1] = [110];

/// Who the agent is.
#[derive(Debug)]
pub struct Settings {
    /// Where the servers are.
    pub servers: Servers,
    /// The credential.
    pub token: Secret,
    /// Text of the user's own, shown with the session.
    pub metadata: String,
    /// Of the program.
    pub version: String,
    /// Time for open requests and connections to end when the agent stops.
    pub drain_time: Duration,
    /// Streams that it takes at once, each with a connection to its service. The server is told, and what
    /// is beyond it is refused as busy.
    pub streams_max: usize,
}

/// An agent with its endpoints.
pub struct Agent {
    settings: Settings,
    endpoints: Vec<Endpoint>,
    exchanges: Option<Arc<Exchanges>>,
    entropy: Arc<dyn Entropy>,
    observer: Observer,
    status: watch::Sender<Status>,
    /// What the server gave, endpoint by endpoint.
    slots: watch::Sender<Vec<Slot>>,
    resumption: Mutex<Resumption>,
    /// One for each stream that is carried.
    places: Semaphore,
    held: Held,
    /// Its connections, those that have ended lately among them.
    sessions: Mutex<Vec<Session>>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("status", &*self.status.borrow())
            .finish_non_exhaustive()
    }
}

/// An endpoint at the server.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// What the last reply gave; `None` before the first.
    bound: Option<Bound>,
    is_gone: bool,
}

#[derive(Clone, Debug)]
struct Bound {
    id: String,
    url: String,
    token: String,
    opts: Value,
}

/// What brings a session back.
#[derive(Clone, Debug, Default)]
struct Resumption {
    client_id: String,
    cookie: String,
    /// Number of the connection. One that replaces another while that one still serves has a number of
    /// its own; the server would close the other first.
    leg: u32,
}

/// A connection whose driver and heartbeat run.
pub(super) struct Started {
    pub(super) session: Session,
    pub(super) chores: JoinSet<Chore>,
}

/// A connection that another has replaced.
pub(super) struct Replaced {
    pub(super) session: Session,
    pub(super) chores: JoinSet<Chore>,
    pub(super) streams: JoinSet<Done>,
    pub(super) draining: CancellationToken,
}

/// Why there is no session.
pub(super) enum Trouble {
    Refused(String, Option<u16>),
    Lost(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}

/// Why a session that was there is over.
enum Left {
    /// By either side's wish, in order.
    Stopped,
    /// Stopped with this many connections open.
    Cut(usize),
    /// Another connection has taken its place; it may finish what it began.
    Moved(Started, Replaced),
    Lost(String),
    Taken(String),
}

/// What one of a session's streams has come to.
pub(super) enum Done {
    Nothing,
    Stop,
    Restart,
    Taken(StopEndpointRequest),
}

/// What one of a session's own tasks has come to.
pub(super) enum Chore {
    Ended,
    Silent,
    Bound(Result<(), Trouble>),
}

impl Agent {
    /// An agent that has not dialled yet. With `exchanges`, requests and responses are kept there.
    pub fn new(
        settings: Settings,
        endpoints: Vec<Endpoint>,
        exchanges: Option<Arc<Exchanges>>,
        entropy: Arc<dyn Entropy>,
        observer: Observer,
    ) -> Self {
        let status = Status {
            endpoints: endpoints
                .iter()
                .map(|endpoint| EndpointStatus {
                    name: endpoint.name.clone(),
                    protocol: endpoint.protocol.as_str(),
                    upstream: endpoint.upstream.as_str().to_owned(),
                    ..EndpointStatus::default()
                })
                .collect(),
            ..Status::default()
        };
        let slots = vec![Slot::default(); endpoints.len()];
        // The server counts a stream no longer once both ends have said all; the service may take longer.
        let places = settings.streams_max.saturating_add(SPARE_PLACES);
        Self {
            settings,
            endpoints,
            exchanges,
            entropy,
            observer,
            status: watch::Sender::new(status),
            slots: watch::Sender::new(slots),
            resumption: Mutex::default(),
            places: Semaphore::new(places.min(Semaphore::MAX_PERMITS)),
            held: Held::default(),
            sessions: Mutex::default(),
        }
    }

    /// Bytes that it holds on their way, in either direction.
    pub fn held_bytes(&self) -> usize {
        let sessions = self.sessions();
        self.held.bytes() + sessions.iter().map(Session::held_bytes).sum::<usize>()
    }

    /// How it stands, now and after each change.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// What is kept of requests, if anything.
    pub fn exchanges(&self) -> Option<&Arc<Exchanges>> {
        self.exchanges.as_ref()
    }

    /// Sends a kept request to its service once more: the number of the new exchange.
    pub async fn replay(&self, id: u64) -> Result<u64, ReplayError> {
        let all = self.exchanges.as_ref().ok_or(ReplayError::Unknown)?;
        let upstream = |nth: usize| self.endpoints.get(nth).map(|it| it.upstream.clone());
        forward::replay(all, id, upstream).await
    }

    /// Serves until `stop`, and then finishes what is on its way. What the network does is no end:
    /// the server is dialled again.
    ///
    /// # Errors
    ///
    /// The server refused for good, or took the last endpoint away.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), AgentError> {
        let (mut backoff, mut was_online) = (Backoff::default(), false);
        let (mut started, mut others) = (None, Others::new());
        // A connection that was replaced can be told to stop, too.
        let stop = stop.child_token();
        loop {
            if started.is_none() {
                self.status
                    .send_modify(|status| status.phase = Phase::Connecting);
                self.tell(Event::Connecting {
                    address: self.settings.servers.current().address().to_owned(),
                });
            }
            let mut is_online = false;
            let left = self
                .serve(
                    started.take(),
                    &stop,
                    &mut is_online,
                    was_online,
                    &mut others,
                )
                .await;
            while others.connections.try_join_next().is_some() {}
            if is_online {
                was_online = true;
                backoff.reset();
            }
            let why = match left {
                Ok(Left::Stopped) => {
                    stop.cancel();
                    let cut: usize = others.connections.join_all().await.into_iter().sum();
                    return match cut {
                        0 => Ok(()),
                        count => Err(AgentError::Cut(count)),
                    };
                }
                Ok(Left::Cut(count)) => {
                    stop.cancel();
                    let more: usize = others.connections.join_all().await.into_iter().sum();
                    return Err(AgentError::Cut(count + more));
                }
                Ok(Left::Moved(next, old)) => {
                    started = Some(next);
                    others.supersede();
                    let leaving = Arc::clone(&self).leave(old, stop.clone());
                    others.connections.spawn(leaving);
                    continue;
                }
                Ok(Left::Taken(message)) => {
                    stop.cancel();
                    others.connections.join_all().await;
                    return Err(AgentError::Taken(message));
                }
                Ok(Left::Lost(why)) | Err(Trouble::Lost(why)) => why,
                Err(Trouble::Refused(text, code)) => {
                    if self.is_final(code, was_online) {
                        return Err(AgentError::Refused(text, code));
                    }
                    text
                }
            };
            let after = backoff.next(&*self.entropy);
            self.status
                .send_modify(|status| status.phase = Phase::Waiting);
            self.tell(Event::Waiting { why, after });
            tokio::select! {
                () = tokio::time::sleep(after) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    /// Whether a refusal ends the agent. One that was served before is most often served again.
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

    /// Connects. The server does not know yet who the agent is.
    pub(super) async fn begin(self: &Arc<Self>) -> io::Result<Started> {
        let (session, driver) = self.settings.servers.current().dial().await?;
        let mut sessions = self.sessions();
        sessions.retain(|session| !session.is_over());
        sessions.push(session.clone());
        drop(sessions);
        let mut chores = JoinSet::new();
        chores.spawn(async {
            driver.run().await;
            Chore::Ended
        });
        let beating = session::heartbeat(session.clone(), {
            let this = Arc::clone(self);
            move |latency| {
                this.status
                    .send_modify(|status| status.latency = Some(latency))
            }
        });
        chores.spawn(async {
            beating.await;
            Chore::Silent
        });
        Ok(Started { session, chores })
    }

    /// Another connection that serves all endpoints, beside the one that does so now.
    async fn succeed(self: Arc<Self>) -> Started {
        self.resumption().leg ^= 1;
        let mut backoff = Backoff::default();
        loop {
            self.tell(Event::Connecting {
                address: self.settings.servers.current().address().to_owned(),
            });
            let why = match self.begin().await {
                Ok(started) => match self.introduce(&started.session, None).await {
                    Ok(()) => return started,
                    Err(Trouble::Refused(why, _) | Trouble::Lost(why)) => {
                        started.session.hang_up();
                        why
                    }
                },
                Err(error) => {
                    self.settings.servers.move_on();
                    error.to_string()
                }
            };
            let after = backoff.next(&*self.entropy);
            self.tell(Event::Waiting { why, after });
            tokio::time::sleep(after).await;
        }
    }

    /// Serves on a connection that another has replaced until the whole installation knows the other, and
    /// then ends it in order. How many streams were cut.
    pub(super) async fn leave(self: Arc<Self>, old: Replaced, stop: CancellationToken) -> usize {
        let Replaced {
            session,
            chores,
            mut streams,
            draining,
        } = old;
        let overlap = async {
            tokio::select! {
                () = tokio::time::sleep(OVERLAP) => {}
                () = stop.cancelled() => {}
            }
        };
        let cut = self
            .drain(&session, &mut streams, draining, overlap, &stop)
            .await;
        close(&session, chores).await;
        cut
    }

    /// One connection, from the first byte to the last; `started` if it has begun and serves already.
    async fn serve(
        self: &Arc<Self>,
        started: Option<Started>,
        stop: &CancellationToken,
        is_online: &mut bool,
        again: bool,
        others: &mut Others,
    ) -> Result<Left, Trouble> {
        let Started {
            session,
            mut chores,
        } = match started {
            Some(started) => {
                *is_online = true;
                self.come_online(again);
                started
            }
            None => {
                let mut started = tokio::select! {
                    begun = self.begin() => begun.inspect_err(|_| self.settings.servers.move_on())?,
                    () = stop.cancelled() => return Ok(Left::Stopped),
                };
                let (this, session) = (Arc::clone(self), started.session.clone());
                started
                    .chores
                    .spawn(async move { Chore::Bound(this.introduce(&session, None).await) });
                started
            }
        };

        let (mut streams, draining) = (JoinSet::new(), CancellationToken::new());
        let mut successors = JoinSet::new();
        let mut left = loop {
            tokio::select! {
                accepted = session.accept() => match accepted {
                    Some(stream) => {
                        streams.spawn(Arc::clone(self).take(stream, draining.clone()));
                    }
                    None => {
                        let ending = session.ended().await;
                        break Left::Lost(session.failure().unwrap_or(ending.to_string()));
                    }
                },
                Some(done) = streams.join_next(), if !streams.is_empty() => match done {
                    Ok(Done::Stop) => break Left::Stopped,
                    Ok(Done::Restart) => {
                        if successors.is_empty() {
                            successors.spawn(Arc::clone(self).succeed());
                        }
                    }
                    Ok(Done::Taken(request)) => {
                        if let Some(message) = self.taken(&request) {
                            break Left::Taken(message);
                        }
                    }
                    Ok(Done::Nothing) | Err(_) => {}
                },
                Some(started) = successors.join_next(), if !successors.is_empty() => {
                    // One that ended without a result is tried again when this connection is lost.
                    if let Ok(started) = started {
                        let old = Replaced { session, chores, streams, draining };
                        return Ok(Left::Moved(started, old));
                    }
                },
                Some(chore) = chores.join_next() => match chore {
                    Ok(Chore::Bound(Ok(()))) => {
                        *is_online = true;
                        self.come_online(again);
                    }
                    Ok(Chore::Bound(Err(trouble))) => {
                        session.hang_up();
                        return Err(trouble);
                    }
                    Ok(Chore::Silent) if session.has_room() => {
                        break Left::Lost("the server does not respond".into());
                    }
                    Ok(Chore::Ended | Chore::Silent) | Err(_) => {}
                },
                () = others.look(), if *is_online => others.open_if_needed(self, stop),
                () = stop.cancelled() => break Left::Stopped,
            }
        };
        match &left {
            Left::Stopped | Left::Taken(_) => {
                self.status
                    .send_modify(|status| status.phase = Phase::Stopping);
                draining.cancel();
                let at_once = std::future::ready(());
                let cut = self
                    .drain(&session, &mut streams, draining, at_once, stop)
                    .await;
                if cut > 0 && matches!(left, Left::Stopped) {
                    left = Left::Cut(cut);
                }
                close(&session, chores).await;
            }
            Left::Lost(_) | Left::Cut(_) | Left::Moved(..) => session.hang_up(),
        }
        Ok(left)
    }

    fn come_online(&self, again: bool) {
        self.status
            .send_modify(|status| status.phase = Phase::Online);
        let session_id = self.resumption().client_id.clone();
        self.tell(Event::Online { session_id, again });
    }

    /// Gives the endpoints up after `overlap` and waits for open connections to end, up to the drain time.
    /// How many were still open then. Cancels `stop` when the server asks for that.
    async fn drain(
        self: &Arc<Self>,
        session: &Session,
        streams: &mut JoinSet<Done>,
        draining: CancellationToken,
        overlap: impl Future<Output = ()>,
        stop: &CancellationToken,
    ) -> usize {
        let ids: Vec<String> = self
            .slots
            .borrow()
            .iter()
            .filter(|slot| !slot.is_gone)
            .filter_map(|slot| slot.bound.as_ref().map(|bound| bound.id.clone()))
            .collect();
        let unbinding = async {
            overlap.await;
            for id in ids {
                let request = UnbindRequest { id };
                // A server that is gone needs no goodbye.
                let answer: io::Result<Outcome> =
                    session::call(session, StreamType::UNBIND, &request).await;
                if answer.is_err() {
                    break;
                }
            }
            // Only now: what is idle ends, and no new stream comes in its place. The request of one that
            // came before may still be on its way through another node.
            if !draining.is_cancelled() {
                tokio::time::sleep(STRAGGLERS).await;
            }
            draining.cancel();
        };
        tokio::pin!(unbinding);
        let (deadline, mut is_unbound) = (Instant::now() + self.settings.drain_time, false);
        while !is_unbound || !streams.is_empty() {
            tokio::select! {
                () = &mut unbinding, if !is_unbound => is_unbound = true,
                accepted = session.accept() => match accepted {
                    Some(stream) => {
                        streams.spawn(Arc::clone(self).take(stream, draining.clone()));
                    }
                    None => break,
                },
                Some(done) = streams.join_next(), if !streams.is_empty() => {
                    if matches!(done, Ok(Done::Stop)) {
                        stop.cancel();
                    }
                }
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        streams.len()
    }

    /// What its connections carry.
    pub(super) fn load(&self) -> Load {
        let sessions = self.sessions();
        let live = || sessions.iter().filter(|session| !session.is_over());
        Load {
            connections: live().count(),
            streams: live().map(Session::stream_count).sum(),
            is_congested: live().all(Session::is_congested),
        }
    }

    fn tell(&self, event: Event) {
        (self.observer)(event);
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Session>> {
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

/// Says goodbye and waits until that is sent.
async fn close(session: &Session, mut chores: JoinSet<Chore>) {
    session.close(ErrorCode::NONE, "");
    // The driver takes the goodbye along.
    while let Some(chore) = chores.join_next().await {
        if matches!(chore, Ok(Chore::Ended)) {
            break;
        }
    }
}
