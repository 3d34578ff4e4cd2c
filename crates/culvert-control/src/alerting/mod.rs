//! Evaluates alert rules: which of them are true, which alerts begin or end, and their events.
//!
//! Each interval is one pass. [`facts`] reads what changed since the last one: documents through caches, statistics of one
//! window for each account, refused sign-ins from the audit log. [`truth`] finds the objects for which a rule is true,
//! without the store. [`transition`] makes alerts of them, each change in one commit with its event.
//!
//! An open alert is a document with a unique key of its rule and object, and a change names the revision that it was decided
//! with. So an alert fires once, even if two nodes evaluate, and a restart or another node continues with the stored state. Of
//! several nodes, the first by name evaluates whose passes go on, as its description says. What cannot be read or evaluated
//! changes nothing: the rule says why in its `error`.

mod agents;
mod defaults;
mod facts;
pub(crate) mod kinds;
pub(crate) mod meters;
mod transition;
mod truth;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use culvert_event_config::alert::model::{Alert, Reason, State};
use culvert_event_config::alert::rule_model::{AlertRule, Severity};
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_resources::stored::informer_cache::InformerCache;
use culvert_store::{AuditEvent, Changes, Document};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::facts::Facts;
use self::transition::Pending;
use crate::control::Control;
use culvert_server_log::ServerLog;

/// A node whose passes did not go on for so long does not evaluate.
const SILENT_AFTER: Duration = Duration::from_secs(60);
/// Longest time of an evaluation.
const EVALUATED_WITHIN: Duration = Duration::from_secs(120);
/// Longest text of an error of a rule, in bytes.
const ERROR_MAX: usize = 512;

/// How rules are evaluated.
#[derive(Clone, Debug)]
pub struct AlertSettings {
    /// Whether there are default rules, and whether they are evaluated (`alerts.defaults`).
    pub defaults: bool,
    /// Time between two evaluations (`alerts.interval`).
    pub interval: Duration,
    /// Whether other nodes may use the database.
    pub is_shared: bool,
}

/// A stored form with its document.
#[derive(Debug)]
pub(crate) struct Known<T> {
    document: Document,
    form: T,
}

/// The documents of a kind; `None` for one that cannot be read.
type KnownCache<T> = InformerCache<Option<Arc<Known<T>>>>;

/// What an evaluation knows from the last one.
#[derive(Debug)]
struct Memory {
    rules: KnownCache<AlertRule>,
    alerts: KnownCache<Alert>,
    facts: Facts,
    pending: Pending,
    has_defaults: bool,
    has_failed: bool,
    others: OtherNodes,
}

/// The other nodes that evaluate alert rules: the number of their passes, and when it changed, by the clock of this node.
type OtherNodes = HashMap<String, (u64, Option<Timestamp>)>;

/// What the description of a node says of its evaluator.
#[derive(Debug, Deserialize)]
struct PassesOfNode {
    alert_passes: u64,
}

/// Evaluates the alert rules of all accounts.
#[derive(Debug)]
pub struct AlertEvaluator {
    control: Arc<Control>,
    log: ServerLog,
    settings: AlertSettings,
    memory: tokio::sync::Mutex<Memory>,
}

fn read<T: serde::de::DeserializeOwned>(document: Document) -> Option<Arc<Known<T>>> {
    match stored::read(&document) {
        Ok(form) => Some(Arc::new(Known { document, form })),
        Err(fault) => {
            tracing::error!(cause = %fault.chain(), "an alert or its rule cannot be read");
            None
        }
    }
}

impl AlertEvaluator {
    /// An evaluator of this process.
    pub fn new(control: Arc<Control>, settings: AlertSettings) -> Self {
        Self {
            log: control.server_log(),
            control,
            settings,
            memory: tokio::sync::Mutex::new(Memory {
                rules: InformerCache::of(AlertRule::KIND),
                alerts: InformerCache::of(Alert::KIND),
                facts: Facts::default(),
                pending: Pending::default(),
                has_defaults: false,
                has_failed: false,
                others: HashMap::new(),
            }),
        }
    }

    /// Evaluates until cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.tick() => {}
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(self.settings.interval) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Evaluates once, if this node is the one that does. A failure is logged, and changes nothing.
    pub async fn tick(&self) {
        let mut memory = self.memory.lock().await;
        let meters = &self.control.alerts;
        let evaluated = tokio::time::timeout(EVALUATED_WITHIN, self.evaluate(&mut memory)).await;
        let evaluated = evaluated.unwrap_or_else(|_| {
            Err(Fault::bare(
                "evaluating alert rules: it takes too long, and is given up",
            ))
        });
        match evaluated {
            Ok(()) => {
                meters.passes.up();
                memory.has_failed = false;
            }
            Err(fault) => {
                meters.errors.up();
                if !std::mem::replace(&mut memory.has_failed, true) {
                    warn!(cause = %fault.chain(), "evaluating alert rules failed; retrying");
                }
            }
        }
    }

    /// Whether this node evaluates: the first by name of those whose passes go on. Clocks may differ, so the time of a
    /// description only counts when it is seen first. A node without an evaluator has no passes.
    async fn is_first(&self, seen: &mut OtherNodes, now: Timestamp) -> Result<bool, Fault> {
        if !self.settings.is_shared {
            return Ok(true);
        }
        let own = self.control.node();
        let silent_after = SILENT_AFTER.max(3 * self.settings.interval);
        let notes = self.control.events.statistics.queue().node_notes().await?;
        seen.retain(|node, _| notes.iter().any(|note| note.node == *node));
        let mut is_first = true;
        for note in notes {
            let Ok(PassesOfNode { alert_passes }) = serde_json::from_str(&note.body) else {
                continue;
            };
            let is_before = note.node.as_str() < own;
            let is_near = now.since(note.at) < silent_after && note.at.since(now) < silent_after;
            let first_look = (alert_passes, is_near.then_some(now));
            let (passes, moved_at) = seen.entry(note.node).or_insert(first_look);
            if *passes != alert_passes {
                (*passes, *moved_at) = (alert_passes, Some(now));
            }
            // The clock may have been set back.
            *moved_at = moved_at.map(|at| at.min(now));
            let goes_on = moved_at.is_some_and(|at| now.since(at) < silent_after);
            is_first &= !(is_before && goes_on);
        }
        Ok(is_first)
    }

    async fn evaluate(&self, memory: &mut Memory) -> Result<(), Fault> {
        let kernel = &self.control.kernel;
        let (store, now) = (&kernel.store, kernel.clock.now());
        // A database that takes no writes is the subject of other reports.
        if store.is_read_only() || !self.is_first(&mut memory.others, now).await? {
            memory.pending = Pending::default();
            memory.facts = Facts::default();
            self.count(&[]);
            return Ok(());
        }
        if self.settings.defaults && !memory.has_defaults {
            memory.has_defaults = self.make_defaults().await?;
        }
        memory.rules.refresh(store, read).await?;
        memory.alerts.refresh(store, read).await?;
        let rules: Vec<_> = memory.rules.values().flatten().cloned().collect();
        let alerts: Vec<_> = memory.alerts.values().flatten().cloned().collect();
        let active: Vec<_> = rules.iter().filter(|rule| self.is_active(rule)).collect();
        let watched: Vec<_> = active
            .iter()
            .map(|rule| (&*rule.document.head.account, &rule.form.condition))
            .collect();
        memory
            .facts
            .read_facts(&self.control, &self.log, &watched, now)
            .await?;
        let mut of_rule: HashMap<&str, Vec<&Arc<Known<Alert>>>> = HashMap::new();
        let mut n_open: HashMap<&str, usize> = HashMap::new();
        for alert in alerts
            .iter()
            .filter(|alert| alert.form.state == State::Firing)
        {
            of_rule.entry(&alert.form.rule_id).or_default().push(alert);
            *n_open.entry(&alert.document.head.account).or_default() += 1;
        }
        // An end that was withheld comes before the beginnings of this pass. What fails keeps nothing else from its turn.
        let mut failed = self.settle(&rules, &alerts, now).await.err();
        for rule in &rules {
            let head = &rule.document.head;
            let open = of_rule.remove(&*head.id).unwrap_or_default();
            let n_open = n_open.entry(&head.account).or_default();
            let fired = fired_within_hour(&alerts, &head.id, now);
            let known = (&mut memory.pending, &memory.facts, n_open, fired);
            if let Err(fault) = self.apply(rule, &open, known, now).await {
                failed.get_or_insert(fault);
            }
        }
        for (rule_id, open) in of_rule {
            // A rule that cannot be read is there.
            if memory.rules.contains(rule_id) {
                continue;
            }
            for alert in open {
                self.end(alert, (Reason::RuleDeleted, false), now).await?;
            }
            memory.pending.forget(rule_id);
        }
        self.count(&alerts);
        match failed {
            Some(fault) => Err(fault),
            None => {
                self.control.alerts.evaluations.up();
                Ok(())
            }
        }
    }

    /// Makes the alerts of a rule agree with the facts.
    async fn apply(
        &self,
        rule: &Known<AlertRule>,
        open: &[&Arc<Known<Alert>>],
        (pending, facts, n_open, fired): (&mut Pending, &Facts, &mut usize, ByOwner),
        now: Timestamp,
    ) -> Result<(), Fault> {
        if !self.is_active(rule) {
            pending.forget(&rule.document.head.id);
            return self.end_all(rule, open, Reason::RuleDisabled, now).await;
        }
        let error = match truth::of(rule, facts, open, now) {
            Ok(truths) => {
                let known = (pending, facts, n_open, fired);
                self.follow(rule, open, truths, known, now).await?;
                None
            }
            Err(why) => {
                self.control.alerts.errors.up();
                Some(why)
            }
        };
        self.note_error(rule, error).await
    }

    /// Whether a rule is evaluated.
    fn is_active(&self, rule: &Known<AlertRule>) -> bool {
        rule.form.enabled && (self.settings.defaults || !rule.form.is_default)
    }

    /// Stores why a rule cannot be evaluated, if that changed.
    async fn note_error(
        &self,
        rule: &Known<AlertRule>,
        error: Option<String>,
    ) -> Result<(), Fault> {
        let error = error.map(|mut text| {
            text.truncate(text.floor_char_boundary(ERROR_MAX));
            text
        });
        if rule.form.error == error {
            return Ok(());
        }
        let form = AlertRule {
            error,
            ..rule.form.clone()
        };
        let document = Document {
            body: stored::write(&form)?,
            ..rule.document.clone()
        };
        let reason = "only the outcome of the evaluation changes";
        let changes = Changes::replace(document, AuditEvent::Suppress { reason });
        let doing = "noting the outcome of an alert rule";
        self.log.commit_once(doing, changes).await.map(drop)
    }

    /// Counts open alerts for the metrics, as of the beginning of the evaluation.
    fn count(&self, alerts: &[Arc<Known<Alert>>]) {
        let meters = &self.control.alerts.open;
        for (severity, meter) in Severity::ALL.into_iter().zip(meters) {
            let is_open = |alert: &&Arc<Known<Alert>>| {
                alert.form.state == State::Firing && alert.form.severity == severity
            };
            let n_open = alerts.iter().filter(is_open).count();
            meter.set(u64::try_from(n_open).unwrap_or(u64::MAX));
        }
    }
}

/// Numbers by the ID of an owner.
type ByOwner = HashMap<String, usize>;

/// How many alerts of a rule began in the last hour, without those that a change of the rule ended. Those about the objects
/// beyond the limit have the ID of their subject in place of the owner.
fn fired_within_hour(alerts: &[Arc<Known<Alert>>], rule_id: &str, now: Timestamp) -> ByOwner {
    let mut fired = ByOwner::new();
    for alert in alerts.iter().map(|known| &known.form) {
        let is_counted = alert.rule_id == rule_id && alert.reason != Some(Reason::RuleChanged);
        if is_counted && has_fired_within_hour(alert, now) {
            let of = match transition::is_others(&alert.subject.id) {
                true => &alert.subject.id,
                false => &alert.owner_id,
            };
            *fired.entry(of.clone()).or_default() += 1;
        }
    }
    fired
}

fn has_fired_within_hour(alert: &Alert, now: Timestamp) -> bool {
    const HOUR: Duration = Duration::from_secs(3_600);
    // Of a clock that was wrong.
    const MINUTE: Duration = Duration::from_secs(60);
    now.since(alert.fired_at) < HOUR && alert.fired_at.since(now) < MINUTE
}

/// The IDs of the objects of open alerts.
fn subjects<'a>(open: &[&'a Arc<Known<Alert>>]) -> HashSet<&'a str> {
    open.iter().map(|alert| &*alert.form.subject.id).collect()
}
