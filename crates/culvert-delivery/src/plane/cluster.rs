//! Sharing between the nodes of one database: destination health, and traffic for live tails.
//!
//! Every node stores its view of a destination's health when it changes, at most twice a second; a request adds up the
//! views. A tail is open on one node. The other nodes find it in the database, follow the same events, and store them
//! there. So a tail sees traffic of other nodes about a second after it was opened, and each event a fraction of a
//! second late. Every node reads audit events in the outbox itself.
//!
//! Everything is bounded; lines that a slow tail misses are counted as lost.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use culvert_base::{Fault, Timestamp};
use culvert_target::failure::{Failure, FailureClass};

use crate::health::attempts::{ATTEMPTS_MAX, Attempt};
use crate::health::{DestinationState, Health};
use crate::plane::Plane;
use crate::tail::followers::{Follower, Tailed};

/// Poll intervals, with open tails and without.
const LOOK_EVERY_TAILING: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest interval of storing health.
const NOTE_EVERY: Duration = Duration::from_millis(500);
/// Unchanged health is stored again after this, so it is not removed.
const NOTE_AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// Maximum number of destinations stored together.
const NOTES_MAX: usize = 500;
/// Attempts that other nodes see.
const NOTED_ATTEMPTS: usize = 10;
/// How long a tail is announced as open.
const TAIL_FOR: Duration = Duration::from_secs(30);
/// Interval of announcing a tail again.
const TAIL_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Bytes of lines in one piece, and pieces that are read together.
const PIECE_BYTES: usize = 256 << 10;
const PIECES: usize = 4;

/// One node's view of a destination.
#[derive(Clone, Debug)]
pub struct NodeHealth {
    /// Its name.
    pub node: String,
    /// Events in its memory, and its counters. Dead letters belong to no node.
    pub health: Health,
}

/// Health of a destination across all nodes.
#[derive(Clone, Debug)]
pub struct ClusterHealth {
    /// The sum of all counters; the state is that of the node that sent last.
    pub health: Health,
    /// Every node that stored its view within a day.
    pub nodes: Vec<NodeHealth>,
}

/// The stored form of a view.
#[derive(Debug, Deserialize, Serialize)]
struct Note {
    state: String,
    last_success_at: Option<i64>,
    last_error_at: Option<i64>,
    last_error: Option<NotedFailure>,
    held: u64,
    dropped: u64,
    sent: u64,
    bytes: u64,
    batches: u64,
    failures: BTreeMap<String, u64>,
    #[serde(default)]
    attempts: Vec<Attempt>,
}

#[derive(Debug, Deserialize, Serialize)]
struct NotedFailure {
    class: String,
    code: String,
    text: String,
}

impl Note {
    fn of(health: &Health, held: u64) -> Self {
        let nanos = |at: Option<Timestamp>| at.map(Timestamp::unix_nanos);
        let failures = health.failures.iter().filter(|(_, count)| *count > 0);
        Self {
            state: health.state.name().to_owned(),
            last_success_at: nanos(health.last_success_at),
            last_error_at: nanos(health.last_error_at),
            last_error: health.last_error.as_ref().map(|failure| NotedFailure {
                class: failure.class.name().to_owned(),
                code: failure.code.clone(),
                text: failure.text.clone(),
            }),
            held,
            dropped: health.dropped,
            sent: health.sent,
            bytes: health.bytes,
            batches: health.batches,
            failures: failures
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
            attempts: Vec::new(),
        }
    }

    fn health(self) -> Health {
        let at = |nanos: Option<i64>| nanos.map(Timestamp::from_unix_nanos);
        let class = |name: &str| {
            let mut classes = FailureClass::ALL.iter();
            classes.find(|class| class.name() == name).copied()
        };
        Health {
            state: match self.state.as_str() {
                "unhealthy" => DestinationState::Unhealthy,
                "retrying" => DestinationState::Retrying,
                _ => DestinationState::Ok,
            },
            last_success_at: at(self.last_success_at),
            last_error_at: at(self.last_error_at),
            last_error: self.last_error.map(|noted| {
                let class = class(&noted.class).unwrap_or(FailureClass::Unknown);
                Failure::new(class, noted.code, noted.text)
            }),
            queued: self.held,
            dropped: self.dropped,
            dead_lettered: 0,
            sent: self.sent,
            bytes: self.bytes,
            batches: self.batches,
            failures: FailureClass::ALL
                .iter()
                .map(|class| {
                    let count = self.failures.get(class.name()).copied();
                    (class.name(), count.unwrap_or(0))
                })
                .collect(),
        }
    }
}

/// Health of a destination across all nodes, with this node's current view.
pub(crate) async fn health(plane: &Plane, destination: &str) -> Result<ClusterHealth, Fault> {
    let counters = plane.all_counters.get(destination);
    let (own, held) = match &counters {
        Some(counters) => (counters.health(), counters.held_events()),
        None => (Health::unknown(), 0),
    };
    let in_queue = own.queued.saturating_sub(held);
    let dead_lettered = own.dead_lettered;
    let own = Note::of(&own, held).health();
    let mut nodes = Vec::new();
    if plane.settings.is_shared {
        for (node, body) in plane.queue.healths(destination).await? {
            if node != plane.settings.node
                && let Ok(note) = serde_json::from_str::<Note>(&body)
            {
                let health = note.health();
                nodes.push(NodeHealth { node, health });
            }
        }
    }
    nodes.push(NodeHealth {
        node: plane.settings.node.clone(),
        health: own,
    });
    nodes.sort_unstable_by(|one, other| one.node.cmp(&other.node));
    let mut health = merged(&nodes);
    health.queued = health.queued.saturating_add(in_queue);
    health.dead_lettered = dead_lettered;
    Ok(ClusterHealth { health, nodes })
}

/// Health of all destinations across all nodes, with this node's current view, without dead letters.
pub(crate) async fn healths(plane: &Plane) -> Result<HashMap<String, Health>, Fault> {
    let mut nodes: HashMap<String, Vec<NodeHealth>> = HashMap::new();
    let own = &plane.settings.node;
    for (destination, health) in plane.all_counters.healths() {
        let node = own.clone();
        nodes.insert(destination, vec![NodeHealth { node, health }]);
    }
    if plane.settings.is_shared {
        for (destination, node, body) in plane.queue.all_healths().await? {
            if node != *own
                && let Ok(note) = serde_json::from_str::<Note>(&body)
            {
                let health = note.health();
                let known = nodes.entry(destination).or_default();
                known.push(NodeHealth { node, health });
            }
        }
    }
    let merged = |(destination, nodes): (String, Vec<NodeHealth>)| (destination, merged(&nodes));
    Ok(nodes.into_iter().map(merged).collect())
}

/// The last attempts to send to a destination, the newest first, each with its node: all that this node remembers, and
/// the newest of each other node.
pub(crate) async fn attempts(
    plane: &Plane,
    destination: &str,
) -> Result<Vec<(String, Attempt)>, Fault> {
    let own = plane.all_counters.get(destination);
    let own = own.map_or_else(Vec::new, |counters| counters.attempts.newest(ATTEMPTS_MAX));
    let node = &plane.settings.node;
    let mut all: Vec<_> = own.into_iter().map(|one| (node.clone(), one)).collect();
    if plane.settings.is_shared {
        for (other, body) in plane.queue.healths(destination).await? {
            if other != *node
                && let Ok(note) = serde_json::from_str::<Note>(&body)
            {
                all.extend(note.attempts.into_iter().map(|one| (other.clone(), one)));
            }
        }
    }
    // Stable: attempts of a node at the same time keep their order.
    all.sort_by_key(|(_, one)| std::cmp::Reverse(one.at));
    all.truncate(ATTEMPTS_MAX);
    Ok(all)
}

/// Adds up counters. The state is that of the node that sent last: a batch that fails on one node may be delivered
/// by another.
fn merged(nodes: &[NodeHealth]) -> Health {
    let mut all = Health::unknown();
    let mut sent_at = None;
    for NodeHealth { health, .. } in nodes {
        let last_at = health.last_success_at.max(health.last_error_at);
        if last_at > sent_at {
            sent_at = last_at;
            all.state = health.state;
        }
        all.last_success_at = all.last_success_at.max(health.last_success_at);
        if health.last_error_at > all.last_error_at {
            all.last_error_at = health.last_error_at;
            all.last_error = health.last_error.clone();
        }
        for (sum, count) in [
            (&mut all.queued, health.queued),
            (&mut all.dropped, health.dropped),
            (&mut all.sent, health.sent),
            (&mut all.bytes, health.bytes),
            (&mut all.batches, health.batches),
        ] {
            *sum = sum.saturating_add(count);
        }
        for ((_, sum), (_, count)) in all.failures.iter_mut().zip(&health.failures) {
            *sum = sum.saturating_add(*count);
        }
    }
    all
}

/// Lines that one node has for a tail of another.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Piece {
    /// Events that were missed before these.
    lost: u64,
    lines: Vec<String>,
}

/// Shares with other nodes until cancelled.
pub(crate) async fn run(plane: Arc<Plane>, cancel: CancellationToken) {
    let mut sharing = Sharing::new(plane);
    let mut is_failing = false;
    while !cancel.is_cancelled() {
        match sharing.pass().await {
            Ok(()) => is_failing = false,
            Err(fault) if !std::mem::replace(&mut is_failing, true) => {
                tracing::warn!(cause = %fault.chain(),
                    "sharing destination health and live tails with other nodes failed");
            }
            Err(_) => {}
        }
        let pause = match sharing.is_tailing() {
            true => LOOK_EVERY_TAILING,
            false => LOOK_EVERY,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = sharing.plane.tails.opened() => {}
            () = cancel.cancelled() => {}
        }
    }
    for id in sharing.own.keys() {
        // A tail that is not closed here expires.
        sharing.plane.queue.close_tail(id).await.ok();
    }
}

pub(crate) struct Sharing {
    plane: Arc<Plane>,
    /// The last stored view of each destination, and when.
    noted: HashMap<Arc<str>, (String, Instant)>,
    noted_at: Option<Instant>,
    /// Tails of this node: the read position of each, and when it was last announced.
    own: HashMap<String, (i64, Instant)>,
    /// Tails of other nodes.
    others: HashMap<String, Arc<Follower>>,
    looked_at: Option<Instant>,
    /// How often the clock had been set when tails were last announced.
    times_set: u64,
}

impl Sharing {
    pub(crate) fn new(plane: Arc<Plane>) -> Self {
        Self {
            times_set: plane.clock.times_set(),
            plane,
            noted: HashMap::new(),
            noted_at: None,
            own: HashMap::new(),
            others: HashMap::new(),
            looked_at: None,
        }
    }

    fn is_tailing(&self) -> bool {
        !self.own.is_empty() || !self.others.is_empty()
    }

    /// Does all work that is due.
    pub(crate) async fn pass(&mut self) -> Result<(), Fault> {
        let is_due = |at: Option<Instant>, every| at.is_none_or(|at| at.elapsed() >= every);
        if is_due(self.noted_at, NOTE_EVERY) {
            self.noted_at = Some(Instant::now());
            self.note().await?;
        }
        self.exchange_lines().await?;
        if is_due(self.looked_at, LOOK_EVERY) {
            self.looked_at = Some(Instant::now());
            self.find_tails().await?;
        }
        self.store_lines().await
    }

    /// Stores changed views.
    async fn note(&mut self) -> Result<(), Fault> {
        let all_counters = self.plane.all_counters.each();
        let known: HashSet<&Arc<str>> = all_counters.iter().map(|(id, _)| id).collect();
        self.noted.retain(|id, _| known.contains(id));
        let mut notes = Vec::new();
        for (id, counters) in &all_counters {
            let health = counters.health();
            let is_silent = health.batches == 0 && health.dropped == 0;
            let mut note = Note::of(&health, counters.held_events());
            note.attempts = counters.attempts.newest(NOTED_ATTEMPTS);
            let Ok(body) = serde_json::to_string(&note) else {
                continue;
            };
            let is_known = match self.noted.get(id) {
                Some((noted, at)) => *noted == body && at.elapsed() < NOTE_AGAIN_AFTER,
                None => is_silent && note.held == 0,
            };
            if !is_known && notes.len() < NOTES_MAX {
                notes.push((id.clone(), body));
            }
        }
        if notes.is_empty() {
            return Ok(());
        }
        let plane = &self.plane;
        let bodies = notes
            .iter()
            .map(|(id, body)| (id.to_string(), body.clone()));
        let bodies = bodies.collect();
        plane
            .queue
            .note_healths(&plane.settings.node, bodies)
            .await?;
        let now = Instant::now();
        for (id, body) in notes {
            self.noted.insert(id, (body, now));
        }
        Ok(())
    }

    /// Announces open tails, and reads the lines of other nodes.
    async fn exchange_lines(&mut self) -> Result<(), Fault> {
        let plane = self.plane.clone();
        let open = plane.tails.shared();
        let gone: Vec<String> = self
            .own
            .keys()
            .filter(|id| !open.iter().any(|(known, ..)| known == *id))
            .cloned()
            .collect();
        for id in gone {
            plane.queue.close_tail(&id).await?;
            self.own.remove(&id);
        }
        // By a clock that was set forward, announced tails are over.
        let times_set = plane.clock.times_set();
        let was_set = std::mem::replace(&mut self.times_set, times_set) != times_set;
        for (id, spec, follower) in open {
            let known = self.own.get(&id).copied();
            if was_set || known.is_none_or(|(_, said_at)| said_at.elapsed() >= TAIL_AGAIN_AFTER) {
                let until = plane.clock.now().plus(TAIL_FOR);
                let node = &plane.settings.node;
                plane.queue.open_tail(&id, node, &spec, until).await?;
                let after = known.map_or(0, |(after, _)| after);
                self.own.insert(id.clone(), (after, Instant::now()));
            }
            let Some((after, _)) = self.own.get_mut(&id) else {
                continue;
            };
            let pieces = plane.queue.tail_pieces(&id, *after).await?;
            let Some(last) = pieces.last().map(|piece| piece.id) else {
                continue;
            };
            for piece in pieces {
                let Ok(Piece { lost, lines }) = serde_json::from_str(&piece.body) else {
                    continue;
                };
                follower.miss(lost);
                for line in lines {
                    if !follower.put(line) {
                        plane.meters.tail_lost.add(1);
                    }
                }
            }
            *after = last;
            plane.queue.drop_tail_pieces(&id, last).await?;
        }
        Ok(())
    }

    /// Finds the tails of other nodes.
    async fn find_tails(&mut self) -> Result<(), Fault> {
        let plane = &self.plane;
        let now = plane.clock.now();
        let open = plane.queue.tails_beside(&plane.settings.node, now).await?;
        let mut is_changed = false;
        self.others.retain(|id, follower| {
            let stays = open.iter().any(|tail| tail.id == *id);
            if !stays {
                plane.tails.close(follower);
                is_changed = true;
            }
            stays
        });
        for tail in open {
            if self.others.contains_key(&tail.id) {
                continue;
            }
            // This version may not understand a tail of a newer version.
            let follower = serde_json::from_str(&tail.spec)
                .ok()
                .and_then(|spec| Follower::for_another_node(spec).ok());
            if let Some(follower) = follower {
                plane.tails.open_for_another_node(&follower);
                self.others.insert(tail.id, follower);
                is_changed = true;
            }
        }
        if is_changed {
            plane.recapture();
        }
        Ok(())
    }

    /// Stores lines for tails of other nodes.
    async fn store_lines(&mut self) -> Result<(), Fault> {
        for (id, follower) in &self.others {
            for _ in 0..PIECES {
                let mut piece = Piece::default();
                let mut bytes = 0;
                while bytes < PIECE_BYTES
                    && let Some(next) = follower.take()
                {
                    match next {
                        Tailed::Event(line) => {
                            bytes += line.len();
                            piece.lines.push(line);
                        }
                        // Further lines go into the next piece.
                        Tailed::Lost(lost) if piece.lines.is_empty() => piece.lost += lost,
                        Tailed::Lost(lost) => {
                            follower.miss(lost);
                            break;
                        }
                    }
                }
                if piece.lines.is_empty() && piece.lost == 0 {
                    break;
                }
                let missed = piece.lost + piece.lines.len() as u64;
                let body = serde_json::to_string(&piece)
                    .map_err(|error| Fault::new("writing for a tail", error))?;
                if !self.plane.queue.tell_tail(id, body).await? {
                    follower.miss(missed);
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        for follower in self.others.values() {
            self.plane.tails.close(follower);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(
        name: &str,
        state: DestinationState,
        success_at: Option<i64>,
        error_at: Option<i64>,
    ) -> NodeHealth {
        let at = |seconds: Option<i64>| seconds.map(Timestamp::from_unix_seconds);
        NodeHealth {
            node: name.to_owned(),
            health: Health {
                state,
                last_success_at: at(success_at),
                last_error_at: at(error_at),
                last_error: error_at
                    .map(|at| Failure::new(FailureClass::Retryable, at.to_string(), "")),
                sent: 2,
                queued: 1,
                ..Health::unknown()
            },
        }
    }

    #[test]
    fn the_last_sending_node_sets_the_state_and_counters_are_summed() {
        use DestinationState::{Ok, Retrying, Unhealthy};
        for (nodes, state, code) in [
            (vec![node("a", Ok, None, None)], Ok, None),
            (
                vec![
                    node("a", Unhealthy, None, Some(5)),
                    node("b", Ok, Some(6), None),
                ],
                Ok,
                Some("5"),
            ),
            (
                vec![
                    node("a", Ok, Some(6), Some(2)),
                    node("b", Retrying, Some(1), Some(7)),
                    node("c", Ok, None, None),
                ],
                Retrying,
                Some("7"),
            ),
        ] {
            let all = merged(&nodes);
            assert_eq!(all.state, state);
            assert_eq!(all.last_error.map(|error| error.code).as_deref(), code);
            assert_eq!(
                (all.sent, all.queued),
                (2 * nodes.len() as u64, nodes.len() as u64)
            );
        }
    }
}
