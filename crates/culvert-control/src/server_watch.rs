//! The task that reports what the server does and sees.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use culvert_base::sync::lock;
use culvert_base::{Fault, RetentionClock, Timestamp};
use culvert_delivery::DESTINATION_KIND;
use culvert_delivery::meters::DroppedFrom;
use culvert_event_config::lost_events::DroppedEvents;
use culvert_resources::stored::lost_events::Loss;
use culvert_server_log::ServerLog;
use culvert_server_log::destinations::FailingSince;
use culvert_server_log::members::Members;
use culvert_server_log::reload::Reloaded;
use culvert_server_log::run::RunFacts;
use culvert_server_log::traffic_log::TrafficRecords;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::audit_hold::retention::end_holds;
use crate::control::Control;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often it looks for ends of certificates and keys.
const EXPIRY_EVERY: Duration = Duration::from_secs(3_600);
/// How often it looks for holds whose time is over.
const HOLDS_EVERY: Duration = Duration::from_secs(60);
/// How often it looks for overlaps of rotations that end.
const OVERLAPS_EVERY: Duration = Duration::from_secs(60);
/// How often it looks for traffic without a record.
const TRAFFIC_EVERY: Duration = Duration::from_secs(60);
/// Time between two events about dropped events of a destination.
const DROPPED_EVERY: Duration = Duration::from_secs(600);
/// Limit of reloads that wait to be reported: the first ones and the last.
const RELOADS_MAX: usize = 100;

/// Reports what this process does and sees.
#[derive(Debug)]
pub struct ServerWatch {
    control: Arc<Control>,
    log: ServerLog,
    facts: RunFacts,
    /// How long a key is not used until it is reported; zero for never.
    key_unused_after: Duration,
    traffic: TrafficRecords,
    reloads: Mutex<Vec<Reloaded>>,
    is_reloaded: Notify,
    seen: tokio::sync::Mutex<Seen>,
}

/// What it saw before.
#[derive(Debug, Default)]
struct Seen {
    is_started: bool,
    members: Members,
    failing: FailingSince,
    dropped: HashMap<DroppedFrom, Drops>,
    clock: RetentionClock,
    looked_for_expiry: Option<Instant>,
    looked_for_holds: Option<Instant>,
    looked_for_overlaps: Option<Instant>,
    looked_for_traffic: Option<Instant>,
    has_failed: bool,
}

/// The dropped events of a destination or an account for one reason.
#[derive(Clone, Debug)]
struct Drops {
    /// As of the last look.
    total: u64,
    reported: u64,
    reported_at: Option<Instant>,
    first_at: Timestamp,
    last_at: Timestamp,
}

impl ServerWatch {
    /// A watch of this process.
    pub fn new(control: Arc<Control>, facts: RunFacts, key_unused_after: Duration) -> Self {
        Self {
            log: control.server_log(),
            control,
            facts,
            key_unused_after,
            traffic: TrafficRecords::default(),
            reloads: Mutex::default(),
            is_reloaded: Notify::new(),
            seen: tokio::sync::Mutex::default(),
        }
    }

    /// What this process says of itself.
    pub fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// How far the records of the traffic log in the audit log are behind; zero if none is missing.
    pub fn traffic_behind(&self) -> Duration {
        self.traffic.behind()
    }

    /// A disturbance of these records, for a public page.
    pub fn traffic_notice(&self) -> Option<&'static str> {
        self.traffic.notice()
    }

    /// Writes the events of a process that stops.
    pub fn log(&self) -> &ServerLog {
        &self.log
    }

    /// Reports a reload soon. The name of the node is added.
    pub fn reloaded(&self, reloaded: Reloaded) {
        let reloaded = Reloaded {
            node: self.facts.node.clone(),
            ..reloaded
        };
        let mut reloads = lock(&self.reloads);
        // The last one has the digest of the file that is in force.
        reloads.truncate(RELOADS_MAX - 1);
        reloads.push(reloaded);
        drop(reloads);
        self.is_reloaded.notify_one();
    }

    /// Looks until cancelled, and then reports all that waits.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let is_over = stop.is_cancelled();
            self.check(is_over).await;
            if is_over {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.is_reloaded.notified() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Looks once; with `all`, reports also what would wait. A failure is logged, and tried again at the next look.
    pub async fn check(&self, all: bool) {
        // A database that takes no writes is the subject of other reports.
        if self.log.store.is_read_only() {
            return;
        }
        let mut seen = self.seen.lock().await;
        let checked = self.check_all(&mut seen, all, Instant::now()).await;
        match checked {
            Ok(()) => seen.has_failed = false,
            Err(fault) if !std::mem::replace(&mut seen.has_failed, true) => {
                warn!(cause = %fault.chain(), "reporting what the server does failed; retrying");
            }
            Err(_) => {}
        }
    }

    /// Each failure of one part comes again until it is repaired. So none keeps the traffic log from being recorded, whose
    /// notice depends on the looks.
    async fn check_all(&self, seen: &mut Seen, all: bool, now: Instant) -> Result<(), Fault> {
        let reported = self.report(seen, all, now).await;
        let recorded = self.record_traffic(seen, all, now).await;
        reported.and(recorded)
    }

    async fn record_traffic(&self, seen: &mut Seen, all: bool, now: Instant) -> Result<(), Fault> {
        let looked_at = seen.looked_for_traffic;
        if looked_at.is_some_and(|at| now.duration_since(at) < TRAFFIC_EVERY) && !all {
            return Ok(());
        }
        seen.looked_for_traffic = Some(now);
        let queue = self.control.events.statistics.queue();
        let wall = seen.clock.now(&*self.log.clock, now);
        let (traffic, node) = (&self.traffic, &self.facts.node);
        let recorded = self.log.record_traffic(traffic, node, queue, (wall, all));
        recorded.await
    }

    async fn report(&self, seen: &mut Seen, all: bool, now: Instant) -> Result<(), Fault> {
        let (log, delivery) = (&self.log, &self.control.events.delivery);
        if !seen.is_started {
            let copied_to = delivery.audit_copied_to().await?;
            log.started(&self.facts, copied_to).await?;
            seen.is_started = true;
        }
        self.report_reloads().await?;
        if self.facts.is_shared && !all {
            let notes = self.control.events.statistics.queue().node_notes().await?;
            log.watch_members(&self.facts, &mut seen.members, &notes, now)
                .await?;
        }
        log.watch_destinations(delivery, &mut seen.failing, now)
            .await?;
        self.report_dropped(seen, all, now).await?;
        let wall = seen.clock.now(&*log.clock, now);
        let is_due =
            |at: Option<Instant>, every| at.is_none_or(|at| now.duration_since(at) >= every);
        if is_due(seen.looked_for_holds, HOLDS_EVERY) && !all {
            end_holds(log, wall).await?;
            seen.looked_for_holds = Some(now);
        }
        if is_due(seen.looked_for_overlaps, OVERLAPS_EVERY) && !all {
            self.control.identity.watch_overlaps(wall).await?;
            seen.looked_for_overlaps = Some(now);
        }
        if is_due(seen.looked_for_expiry, EXPIRY_EVERY) && !all {
            log.watch_expiry(wall, self.key_unused_after).await?;
            self.control.identity.watch_key_rules(wall).await?;
            seen.looked_for_expiry = Some(now);
        }
        Ok(())
    }

    async fn report_reloads(&self) -> Result<(), Fault> {
        loop {
            let Some(first) = lock(&self.reloads).first().cloned() else {
                return Ok(());
            };
            self.log.reloaded(&first).await?;
            let mut reloads = lock(&self.reloads);
            if reloads.first() == Some(&first) {
                reloads.remove(0);
            }
        }
    }

    /// The account whose events were dropped. `None` if the destination is gone, or there is no account yet.
    async fn account_of(&self, from: &DroppedFrom) -> Result<Option<String>, Fault> {
        let (account, id) = (&from.account, &from.destination);
        if !id.is_empty() {
            let destination = self.log.store.get(DESTINATION_KIND, id).await?;
            return Ok(destination.map(|destination| destination.head.account));
        }
        if account.is_empty() {
            // Of accounts that were not counted one by one: the installation's.
            return self.log.account().await;
        }
        Ok(Some(account.clone()))
    }

    async fn report_dropped(&self, seen: &mut Seen, all: bool, now: Instant) -> Result<(), Fault> {
        let at = self.log.clock.now();
        let dropped = self.control.events.delivery.dropped();
        let is_counted = |from: &DroppedFrom| dropped.iter().any(|(other, _)| other == from);
        // Deleted destinations are counted no more.
        seen.dropped.retain(|from, _| is_counted(from));
        for (from, total) in &dropped {
            let Some(reason) = Loss::of_metric(from.reason) else {
                continue;
            };
            let drops = seen.dropped.entry(from.clone()).or_insert(Drops {
                total: 0,
                reported: 0,
                reported_at: None,
                first_at: at,
                last_at: at,
            });
            if *total > drops.total {
                if drops.total == drops.reported {
                    drops.first_at = at;
                }
                (drops.total, drops.last_at) = (*total, at);
            }
            let count = drops.total.saturating_sub(drops.reported);
            let is_due = drops
                .reported_at
                .is_none_or(|at| now.duration_since(at) >= DROPPED_EVERY);
            if count == 0 || !(is_due || all) {
                continue;
            }
            let Some(account) = self.account_of(from).await? else {
                continue;
            };
            let report = DroppedEvents {
                destination: from.destination.clone(),
                reason,
                count,
                first_at: drops.first_at,
                last_at: drops.last_at,
            };
            self.control
                .events
                .report_dropped(&account, &report)
                .await?;
            (drops.reported, drops.reported_at) = (drops.total, Some(now));
        }
        Ok(())
    }
}
