//! The parts of a server: in which order they start and stop, and what happens if one cannot start.
//!
//! A part is a group of long-lived tasks, with its listeners. It starts after the parts that it depends on. It stops when
//! all parts that depend on it have stopped, so parts that do not depend on each other stop at the same time. If a part
//! cannot start, those that run stop in this order too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use anyhow::Result;
use culvert_base::{BoxFuture, Supervisor};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::listeners::Addresses;
use super::tasks::Tasks;

/// The parts by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    /// Events: recording, dispatching, sending.
    Delivery,
    /// The configuration of this process, and its connections to other nodes.
    Control,
    /// The stored sessions of agents.
    AgentSessions,
    /// The listeners for agents.
    Agents,
    /// The listener for other nodes.
    Nodes,
    /// Traffic.
    Edge,
    /// The copy of the configuration for a start without the database.
    EdgeCopy,
    /// Managed certificates.
    Certificates,
    /// The management API.
    Api,
    /// Statistics of this node.
    Statistics,
    /// Metrics, and the memory of the process.
    Metrics,
    /// The tree over the audit log.
    AuditTree,
    /// What this node says of itself in the list of nodes.
    NodeNote,
    /// Events of the server itself.
    ServerEvents,
    /// The export of spans.
    Tracing,
}

/// Why parts stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The process was asked to.
    Asked,
    /// A task ended unexpectedly, or a part cannot start.
    Failed,
}

/// What a part gets when it starts.
pub(super) struct Start<'a> {
    /// The group of its tasks.
    pub(super) tasks: &'a mut Tasks,
    /// The addresses of the listeners so far. The part adds its own.
    pub(super) addresses: &'a mut Addresses,
}

/// One part.
pub(super) trait Part: Send + Sync {
    fn name(&self) -> Name;

    /// The parts that it uses: they start before it, and stop after it.
    fn depends_on(&self) -> &'static [Name];

    /// The parts that it watches: they start before it, and it stops after them.
    fn outlives(&self, _: Reason) -> &'static [Name] {
        &[]
    }

    /// Binds its listeners and starts its tasks.
    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>>;

    /// Hands its clients over to other nodes. All parts still run.
    fn leave(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Stops its tasks, and waits for their end.
    fn stop<'a>(&'a mut self, tasks: &'a mut Tasks) -> BoxFuture<'a, ()> {
        Box::pin(tasks.finish())
    }
}

/// The parts of a server, in the order of their start.
pub(super) struct Parts(Vec<Entry>);

struct Entry {
    part: Box<dyn Part>,
    tasks: Tasks,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|entry| entry.part.name()))
            .finish()
    }
}

impl Parts {
    /// The parts of `list`, each with a group of supervised tasks.
    pub(super) fn new(list: Vec<Box<dyn Part>>, supervisor: &Supervisor) -> Self {
        let entries = list.into_iter().map(|part| Entry {
            part,
            tasks: Tasks::new(supervisor),
        });
        let parts = Self(entries.collect());
        debug_assert_eq!(parts.misplaced(), None, "it is before a part that it needs");
        for reason in [Reason::Asked, Reason::Failed] {
            // Otherwise a stop would never end.
            debug_assert_eq!(parts.waits_for_itself(reason), None, "{reason:?}");
        }
        parts
    }

    /// Starts all parts, and returns the addresses of their listeners.
    ///
    /// # Errors
    /// If one cannot start. Then those that had started have stopped.
    pub(super) async fn start(&mut self) -> Result<Addresses> {
        let mut addresses = Addresses::default();
        for at in 0..self.0.len() {
            let Entry { part, tasks } = &mut self.0[at];
            let start = Start {
                tasks,
                addresses: &mut addresses,
            };
            if let Err(error) = part.start(start).await {
                // The parts that run may need a while to stop.
                tracing::error!(part = ?part.name(), %error, "a part cannot start; stopping the others");
                self.0.truncate(at + 1);
                self.stop(Reason::Failed).await;
                return Err(error);
            }
        }
        Ok(addresses)
    }

    /// Hands clients over to other nodes, while all parts still run.
    pub(super) async fn leave(&self) {
        for entry in &self.0 {
            entry.part.leave().await;
        }
    }

    /// Stops all parts. Returns when each had stopped, counted from the begin.
    pub(super) async fn stop(&mut self, reason: Reason) -> BTreeMap<Name, Duration> {
        let began = Instant::now();
        let first = self.stop_first(reason);
        let ended: BTreeMap<Name, CancellationToken> = self
            .0
            .iter()
            .map(|entry| (entry.part.name(), CancellationToken::new()))
            .collect();
        let mut stopping = JoinSet::new();
        for Entry {
            mut part,
            mut tasks,
        } in self.0.drain(..)
        {
            let name = part.name();
            let before = first.get(&name).into_iter().flatten();
            let before: Vec<CancellationToken> =
                before.filter_map(|name| ended.get(name).cloned()).collect();
            // Dropped with the task: a panic must not keep the others waiting.
            let end = ended.get(&name).cloned().map(CancellationToken::drop_guard);
            stopping.spawn(async move {
                for other in before {
                    other.cancelled().await;
                }
                part.stop(&mut tasks).await;
                drop(end);
                (name, began.elapsed())
            });
        }
        let mut stopped = BTreeMap::new();
        while let Some(ended) = stopping.join_next().await {
            match ended {
                Ok((name, after)) => {
                    stopped.insert(name, after);
                }
                Err(error) => tracing::error!(%error, "a part failed while it stopped"),
            }
        }
        stopped
    }

    /// For each part, those that stop before it.
    fn stop_first(&self, reason: Reason) -> BTreeMap<Name, BTreeSet<Name>> {
        let mut first: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
        for Entry { part, .. } in &self.0 {
            for used in part.depends_on() {
                first.entry(*used).or_default().insert(part.name());
            }
            let watched = part.outlives(reason);
            first.entry(part.name()).or_default().extend(watched);
        }
        first
    }

    /// A part that is before one that must start first.
    fn misplaced(&self) -> Option<Name> {
        let names: Vec<Name> = self.0.iter().map(|entry| entry.part.name()).collect();
        self.0
            .iter()
            .enumerate()
            .find_map(|(at, Entry { part, .. })| {
                let needed = part.depends_on().iter().chain(part.outlives(Reason::Asked));
                let mut later = names[at..].iter();
                later
                    .any(|name| needed.clone().any(|needed| needed == name))
                    .then(|| part.name())
            })
    }

    /// A part that would have to stop before itself.
    fn waits_for_itself(&self, reason: Reason) -> Option<Name> {
        let first = self.stop_first(reason);
        self.0.iter().map(|entry| entry.part.name()).find(|name| {
            let (mut next, mut seen) = (vec![*name], BTreeSet::new());
            while let Some(at) = next.pop() {
                for before in first.get(&at).into_iter().flatten() {
                    if seen.insert(*before) {
                        next.push(*before);
                    }
                }
            }
            seen.contains(name)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use anyhow::bail;
    use culvert_base::sync::lock;

    use super::*;

    type Log = Arc<Mutex<Vec<String>>>;

    /// A part that notes when it starts and stops.
    struct Noted {
        name: Name,
        depends_on: &'static [Name],
        outlives: &'static [Name],
        outlives_failed: &'static [Name],
        can_start: bool,
        log: Log,
    }

    impl Noted {
        fn new(name: Name, depends_on: &'static [Name], log: &Log) -> Self {
            Self {
                name,
                depends_on,
                outlives: &[],
                outlives_failed: &[],
                can_start: true,
                log: Arc::clone(log),
            }
        }
    }

    impl Part for Noted {
        fn name(&self) -> Name {
            self.name
        }

        fn depends_on(&self) -> &'static [Name] {
            self.depends_on
        }

        fn outlives(&self, reason: Reason) -> &'static [Name] {
            match reason {
                Reason::Asked => self.outlives,
                Reason::Failed => self.outlives_failed,
            }
        }

        fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
            Box::pin(async move {
                if !self.can_start {
                    bail!("no");
                }
                lock(&self.log).push(format!("{:?} starts", self.name));
                let (log, name) = (Arc::clone(&self.log), self.name);
                let task = "noted";
                start.tasks.start(task, move |stop| async move {
                    stop.cancelled().await;
                    lock(&log).push(format!("{name:?} begins to stop"));
                    // Others have every chance to go on too early.
                    for _ in 0..100 {
                        tokio::task::yield_now().await;
                    }
                    lock(&log).push(format!("{name:?} has stopped"));
                });
                Ok(())
            })
        }
    }

    fn parts(list: Vec<Noted>) -> Parts {
        let list = list.into_iter().map(|part| Box::new(part) as Box<dyn Part>);
        Parts::new(list.collect(), &Supervisor::default())
    }

    fn at(log: &Log, line: &str) -> usize {
        let log = lock(log);
        let found = log.iter().position(|noted| noted == line);
        found.unwrap_or_else(|| panic!("{line}: {log:?}"))
    }

    #[tokio::test]
    async fn a_part_stops_after_those_that_depend_on_it() {
        let log = Log::default();
        let mut metrics = Noted::new(Name::Metrics, &[], &log);
        metrics.outlives = &[Name::Delivery];
        let mut parts = parts(vec![
            Noted::new(Name::Delivery, &[], &log),
            Noted::new(Name::Control, &[Name::Delivery], &log),
            Noted::new(Name::Edge, &[Name::Control], &log),
            // Depends on a part that this process does not have.
            Noted::new(Name::Api, &[Name::Control, Name::Agents], &log),
            metrics,
        ]);
        parts.start().await.unwrap();
        let started: Vec<String> = lock(&log).clone();
        assert_eq!(
            started,
            ["Delivery", "Control", "Edge", "Api", "Metrics"].map(|name| format!("{name} starts"))
        );
        let stopped = parts.stop(Reason::Asked).await;
        assert_eq!(stopped.len(), 5);
        for (first, second) in [
            ("Edge", "Control"),
            ("Api", "Control"),
            ("Control", "Delivery"),
            ("Delivery", "Metrics"),
        ] {
            let (ended, began) = (
                at(&log, &format!("{first} has stopped")),
                at(&log, &format!("{second} begins to stop")),
            );
            assert!(ended < began, "{first} before {second}");
        }
        // Neither depends on the other.
        assert!(at(&log, "Api begins to stop") < at(&log, "Edge has stopped"));
        assert!(at(&log, "Edge begins to stop") < at(&log, "Api has stopped"));
    }

    #[tokio::test]
    async fn after_a_failure_a_part_may_outlive_others() {
        let log = Log::default();
        let mut api = Noted::new(Name::Api, &[], &log);
        api.outlives_failed = &[Name::Edge];
        let mut parts = parts(vec![Noted::new(Name::Edge, &[], &log), api]);
        parts.start().await.unwrap();
        parts.stop(Reason::Failed).await;
        assert!(at(&log, "Edge has stopped") < at(&log, "Api begins to stop"));
    }

    #[tokio::test]
    async fn if_a_part_cannot_start_those_that_run_stop_in_order() {
        let log = Log::default();
        let mut edge = Noted::new(Name::Edge, &[Name::Control], &log);
        edge.can_start = false;
        let mut parts = parts(vec![
            Noted::new(Name::Delivery, &[], &log),
            Noted::new(Name::Control, &[Name::Delivery], &log),
            edge,
            Noted::new(Name::Api, &[Name::Control], &log),
        ]);
        assert!(parts.start().await.is_err());
        assert_eq!(
            *lock(&log),
            [
                "Delivery starts",
                "Control starts",
                "Control begins to stop",
                "Control has stopped",
                "Delivery begins to stop",
                "Delivery has stopped",
            ]
        );
    }

    #[test]
    #[should_panic(expected = "it is before a part that it needs")]
    fn a_list_in_another_order_is_refused() {
        let log = Log::default();
        parts(vec![
            Noted::new(Name::Edge, &[Name::Control], &log),
            Noted::new(Name::Control, &[], &log),
        ]);
    }

    #[test]
    #[should_panic(expected = "Failed")]
    fn parts_that_wait_for_each_other_are_refused() {
        let log = Log::default();
        let mut edge = Noted::new(Name::Edge, &[Name::Control], &log);
        edge.outlives_failed = &[Name::Control];
        parts(vec![Noted::new(Name::Control, &[], &log), edge]);
    }
}
