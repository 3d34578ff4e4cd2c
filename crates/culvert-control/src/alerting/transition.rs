//! From true conditions to alerts: they begin, are repeated, wait for the end of a silence, and end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Event, Fault, Timestamp};
use culvert_event_config::alert::model::{Alert, Reason, State, Subject};
use culvert_event_config::alert::rule_model::AlertRule;
use culvert_events::{Audit, EventId};
use culvert_resources::resource::model::{Links, Model};
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, Document, Head};

use super::facts::Facts;
use super::truth::{Truth, Truths};
use super::{AlertEvaluator, ByOwner, Known, has_fired_within_hour};

/// Limit of the open alerts of a rule, and of an account. The objects of an owner beyond it have one alert together.
const OF_RULE_MAX: usize = 100;
const OF_ACCOUNT_MAX: usize = 1_000;
/// How many objects of an owner have an alert of a rule, however many others have, up to twice the limit of the account.
const OF_OWNER_MIN: usize = 10;
/// How many alerts of a rule begin in an hour for the objects of an owner. So making and deleting objects makes few events.
const OF_OWNER_HOURLY: usize = OF_RULE_MAX;
/// How many alerts of a rule about the objects of an owner beyond the limit begin in an hour.
const OF_OTHERS_HOURLY: usize = 10;
/// Owners with an alert about their objects beyond the limit. Those of further owners have one together.
const OWNERS_MAX: usize = 100;
/// The ID of the subject of the alert about the objects beyond the limit; with the ID of the owner behind it, if there is one.
const OTHERS: &str = "others";

pub(super) fn is_others(subject_id: &str) -> bool {
    subject_id.starts_with(OTHERS)
}
/// How long resolved alerts are kept, and how many of an account. Those of the last hour are kept anyway, because they are
/// counted.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3_600);
const KEPT_MAX: usize = 1_000;

/// Since when something is true that must last until there is an alert, by rule and object. A restart begins again.
#[derive(Debug, Default)]
pub(super) struct Pending(HashMap<String, HashMap<String, Timestamp>>);

impl Pending {
    /// Forgets a rule.
    pub(super) fn forget(&mut self, rule_id: &str) {
        self.0.remove(rule_id);
    }

    /// Notes the objects of which it is true now. Returns since when it is true of each.
    fn note(
        &mut self,
        rule_id: &str,
        truths: &[Truth],
        now: Timestamp,
    ) -> &HashMap<String, Timestamp> {
        let since = self.0.entry(rule_id.to_owned()).or_default();
        let there: HashSet<&str> = truths.iter().map(|truth| &*truth.subject.id).collect();
        since.retain(|id, _| there.contains(&**id));
        for truth in truths {
            // The clock may have been set back.
            let at = since.entry(truth.subject.id.clone()).or_insert(now);
            *at = now.min(*at);
        }
        since
    }
}

fn is_silenced(rule: &AlertRule, now: Timestamp) -> bool {
    rule.silenced_until.is_some_and(|until| until > now)
}

impl AlertEvaluator {
    /// Makes the alerts of a rule agree with these truths. `n_open` counts the open alerts of the account.
    pub(super) async fn follow(
        &self,
        rule: &Known<AlertRule>,
        open: &[&Arc<Known<Alert>>],
        truths: Truths,
        (pending, facts, n_open, fired): (&mut Pending, &Facts, &mut usize, ByOwner),
        now: Timestamp,
    ) -> Result<(), Fault> {
        let since = pending.note(&rule.document.head.id, &truths.found, now);
        let lasting = rule.form.lasting.time();
        let is_open = |id: &str| open.iter().any(|alert| alert.form.subject.id == id);
        let lasts = |truth: &Truth| {
            let since = since.get(&truth.subject.id).copied().unwrap_or(now);
            is_open(&truth.subject.id) || now.since(since) >= lasting
        };
        let (mut there, new): (Vec<Truth>, Vec<Truth>) = truths
            .found
            .into_iter()
            .filter(lasts)
            .partition(|truth| is_open(&truth.subject.id));
        // Those that have an alert keep it; then in the order of their IDs.
        let (fresh, beyond) = admitted(open, new, n_open, fired);
        there.extend(fresh);
        there.extend(beyond);
        let mut known: BTreeMap<&str, &Arc<Known<Alert>>> = open
            .iter()
            .map(|alert| (&*alert.form.subject.id, *alert))
            .collect();
        for truth in there {
            match known.remove(&*truth.subject.id) {
                Some(alert) => self.go_on(rule, alert, truth, now).await?,
                None => self.fire(rule, truth, now).await?,
            }
        }
        let silenced = is_silenced(&rule.form, now);
        for (id, alert) in known {
            let subject = &alert.form.subject;
            let reason = if alert.form.condition != rule.form.condition.kind()
                || !truth_is_asked(&rule.form, subject)
            {
                Reason::RuleChanged
            } else if truths.unknown.contains(id) || facts.is_unreadable(&subject.kind, id) {
                continue;
            } else if !is_others(id) && !facts.has_fact(&subject.kind, id) {
                Reason::SubjectDeleted
            } else {
                Reason::Recovered
            };
            self.end(alert, (reason, silenced), now).await?;
        }
        Ok(())
    }

    /// Begins an alert.
    async fn fire(
        &self,
        rule: &Known<AlertRule>,
        truth: Truth,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let kernel = &self.control.kernel;
        let (form, rule_head) = (&rule.form, &rule.document.head);
        let is_sent = !is_silenced(form, now);
        let alert = Alert {
            format: Format,
            rule_id: rule_head.id.clone(),
            rule_name: form.name.to_string(),
            condition: form.condition.kind().to_owned(),
            severity: form.severity,
            state: State::Firing,
            summary: truth.summary,
            subject: truth.subject,
            owner_id: truth.owner_id,
            value: truth.value,
            threshold: truth.threshold,
            fired_at: now,
            resolved_at: None,
            reason: None,
            repetition: 0,
            sent_at: is_sent.then_some(now),
            owes_end: false,
            destination_ids: form.destination_ids.clone(),
        };
        let id = kernel.ids.next(&*kernel.clock, &*kernel.entropy);
        let head = Head {
            id: format!("{}_{id}", Alert::ID_PREFIX),
            kind: Alert::KIND.to_owned(),
            account: rule_head.account.clone(),
            revision: 0,
            created_at: now,
            updated_at: now,
        };
        let event = self.event(&head, &alert, is_sent, truth.cause.as_deref())?;
        let changes = Changes::insert(document(head, &alert)?, event);
        self.log
            .commit_once("firing an alert", changes)
            .await
            .map(drop)
    }

    /// Repeats an alert that is due, or sends what a silence withheld.
    async fn go_on(
        &self,
        rule: &Known<AlertRule>,
        known: &Known<Alert>,
        truth: Truth,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let (form, before) = (&rule.form, &known.form);
        // Another destination gets the beginning of another alert, and the former one the end of this.
        let has_moved = !is_same_set(&before.destination_ids, &form.destination_ids);
        if before.condition != form.condition.kind() || has_moved {
            let why = (Reason::RuleChanged, is_silenced(form, now));
            return self.end(known, why, now).await;
        }
        let every = form.repeat_every.time();
        let is_repeated = |at: Timestamp| !every.is_zero() && (at > now || now.since(at) >= every);
        // Objects that come to many are said, and a flood of them makes few events.
        let has_grown = is_others(&before.subject.id) && truth.value >= 2.0 * before.value;
        if is_silenced(form, now) || !(has_grown || before.sent_at.is_none_or(is_repeated)) {
            return Ok(());
        }
        let alert = Alert {
            rule_name: form.name.to_string(),
            severity: form.severity,
            summary: truth.summary,
            value: truth.value,
            threshold: truth.threshold,
            repetition: before.repetition + u32::from(before.sent_at.is_some()),
            sent_at: Some(now),
            ..before.clone()
        };
        self.replace(known, &alert, true, truth.cause.as_deref(), now)
            .await
    }

    /// Ends all alerts of a rule.
    pub(super) async fn end_all(
        &self,
        rule: &Known<AlertRule>,
        open: &[&Arc<Known<Alert>>],
        reason: Reason,
        now: Timestamp,
    ) -> Result<(), Fault> {
        for alert in open {
            let why = (reason, is_silenced(&rule.form, now));
            self.end(alert, why, now).await?;
        }
        Ok(())
    }

    /// Ends an alert. Its event is written if it has one of its beginning; in a silence, afterwards.
    pub(super) async fn end(
        &self,
        known: &Known<Alert>,
        (reason, silenced): (Reason, bool),
        now: Timestamp,
    ) -> Result<(), Fault> {
        let is_sent = known.form.sent_at.is_some();
        let alert = Alert {
            state: State::Resolved,
            resolved_at: Some(now),
            reason: Some(reason),
            owes_end: is_sent && silenced,
            ..known.form.clone()
        };
        self.replace(known, &alert, is_sent && !silenced, None, now)
            .await
    }

    /// Sends the ends that a silence withheld, and forgets old alerts.
    pub(super) async fn settle(
        &self,
        rules: &[Arc<Known<AlertRule>>],
        alerts: &[Arc<Known<Alert>>],
        now: Timestamp,
    ) -> Result<(), Fault> {
        let mut kept: HashMap<&str, usize> = HashMap::new();
        // IDs sort by time: the newest first.
        for known in alerts.iter().rev() {
            let alert = &known.form;
            if alert.state == State::Firing {
                continue;
            }
            if alert.owes_end {
                let mut rules = rules.iter();
                let rule = rules.find(|rule| rule.document.head.id == alert.rule_id);
                if rule.is_none_or(|rule| !is_silenced(&rule.form, now)) {
                    let ended = Alert {
                        owes_end: false,
                        ..alert.clone()
                    };
                    self.replace(known, &ended, true, None, now).await?;
                }
                continue;
            }
            let kept = kept.entry(&known.document.head.account).or_default();
            *kept += 1;
            let is_old = alert.resolved_at.is_none_or(|at| now.since(at) > KEPT_FOR);
            if is_old || *kept > KEPT_MAX && !has_fired_within_hour(alert, now) {
                let reason = "the alert ended long ago";
                let event = AuditEvent::Suppress { reason };
                let changes = Changes::remove(known.document.head.clone(), event);
                self.log.commit_once("forgetting an alert", changes).await?;
            }
        }
        Ok(())
    }

    async fn replace(
        &self,
        known: &Known<Alert>,
        alert: &Alert,
        is_sent: bool,
        cause: Option<&str>,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let head = Head {
            updated_at: now,
            ..known.document.head.clone()
        };
        let event = self.event(&head, alert, is_sent, cause)?;
        let changes = Changes::replace(document(head, alert)?, event);
        self.log
            .commit_once("changing an alert", changes)
            .await
            .map(drop)
    }

    fn event(
        &self,
        head: &Head,
        alert: &Alert,
        is_sent: bool,
        cause: Option<&str>,
    ) -> Result<AuditEvent, Fault> {
        if !is_sent {
            let reason = "the rule of the alert is or was silenced";
            return Ok(AuditEvent::Suppress { reason });
        }
        let kernel = &self.control.kernel;
        let at = kernel.clock.now();
        let id = EventId::new(at, kernel.entropy.bytes());
        let audit = Audit {
            cause,
            ..Audit::by_server(alert.event_kind(), at, &id, &head.account)
        };
        let event: Event = audit.about(&alert.object(&head.id))?;
        Ok(AuditEvent::Emit(event))
    }
}

fn is_same_set(one: &[String], other: &[String]) -> bool {
    one.iter().all(|id| other.contains(id)) && other.iter().all(|id| one.contains(id))
}

fn document(head: Head, alert: &Alert) -> Result<Document, Fault> {
    let Links { keys, refs, topics } = alert.links(&head);
    Ok(Document {
        body: stored::write(alert)?,
        head,
        keys,
        refs,
        topics,
    })
}

/// Whether the rule still watches the object.
fn truth_is_asked(rule: &AlertRule, subject: &Subject) -> bool {
    rule.object_ids.is_empty() || is_others(&subject.id) || rule.object_ids.contains(&subject.id)
}

/// The new objects that get an alert, and one for each owner about the others. The objects of one owner never take the room of
/// all: each has a share.
fn admitted(
    open: &[&Arc<Known<Alert>>],
    new: Vec<Truth>,
    n_open: &mut usize,
    mut fired: ByOwner,
) -> (Vec<Truth>, Vec<Truth>) {
    let mut of_owner = ByOwner::new();
    let own = open
        .iter()
        .filter(|alert| !is_others(&alert.form.subject.id));
    let mut n_of_rule = 0;
    for alert in own {
        *of_owner.entry(alert.form.owner_id.clone()).or_default() += 1;
        n_of_rule += 1;
    }
    let (mut fresh, mut beyond) = (Vec::new(), BTreeMap::<String, Vec<Truth>>::new());
    for truth in new {
        let n_mine = of_owner.entry(truth.owner_id.clone()).or_default();
        let has_room = n_of_rule < OF_RULE_MAX && *n_open < OF_ACCOUNT_MAX;
        let has_share = *n_mine < OF_OWNER_MIN && *n_open < 2 * OF_ACCOUNT_MAX;
        let n_fired = fired.entry(truth.owner_id.clone()).or_default();
        if (has_room || has_share) && *n_fired < OF_OWNER_HOURLY {
            *n_fired += 1;
            *n_mine += 1;
            n_of_rule += 1;
            *n_open += 1;
            fresh.push(truth);
            continue;
        }
        let of_others = match beyond.len() < OWNERS_MAX || beyond.contains_key(&truth.owner_id) {
            true => truth.owner_id.clone(),
            false => String::new(),
        };
        beyond.entry(of_others).or_default().push(truth);
    }
    let others = beyond.into_iter().filter_map(|(owner_id, beyond)| {
        let first = beyond.first()?;
        let n_shown = of_owner.get(&owner_id).copied().unwrap_or_default();
        Some(others(owner_id, first, beyond.len(), n_shown))
    });
    let is_admitted = |truth: &Truth| {
        let id = &truth.subject.id;
        let n_fired = fired.get(id).copied().unwrap_or_default();
        n_fired < OF_OTHERS_HOURLY || open.iter().any(|alert| alert.form.subject.id == *id)
    };
    (fresh, others.filter(is_admitted).collect())
}

/// The truth about the objects of an owner beyond the limit.
fn others(owner_id: String, first: &Truth, count: usize, shown: usize) -> Truth {
    let id = match owner_id.as_str() {
        "" => OTHERS.to_owned(),
        owner_id => format!("{OTHERS}_{owner_id}"),
    };
    Truth {
        subject: Subject {
            kind: first.subject.kind.clone(),
            id,
            name: format!("{count} more"),
        },
        owner_id,
        value: count as f64,
        threshold: shown as f64,
        summary: format!(
            "The condition is true of {count} more objects than the {shown} of the same owner that have alerts of this rule."
        ),
        cause: None,
    }
}
