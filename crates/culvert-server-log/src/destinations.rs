//! Destinations that fail, recover, or are gone.
//!
//! Each node judges by its own sends, and asks the others before it reports. A destination that failed has a mark, so one
//! node reports it once. An event about a destination may be sent to it: it is an audit event, which no limit counts, so
//! it changes no state here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use culvert_base::{Fault, Timestamp};
use culvert_delivery::{DESTINATION_KIND, Delivery, Health};
use culvert_event_config::destination::model::EventDestination;
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Document};
use culvert_target::failure::FailureClass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ServerLog;
use super::mark::{Mark, MarkKind};
use super::names::{DESTINATION_DISABLED, DESTINATION_FAILING, DESTINATION_RECOVERED};

/// Time without success after which a destination is failing.
const FAILING_AFTER: Duration = Duration::from_secs(600);
/// Percent of the limit of a queue from which a destination is failing, and below which it is not any more.
const FULL_PERCENT: u64 = 90;
const EMPTIER_PERCENT: u64 = 70;

/// The marks of destinations that fail.
const FAILING: MarkKind = MarkKind {
    kind: "failing_destination",
    prefix: "faild",
};

/// Why a destination is failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Failing {
    /// It accepted nothing for ten minutes.
    NoSuccess,
    /// Its queue of traffic events is filled to 90 % of its limit.
    QueueFull,
    /// It answered that it is gone.
    Gone,
}

/// The object of the events of a destination.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DestinationState<'a> {
    /// ID of the destination.
    id: &'a str,
    /// Its description.
    description: &'a str,
    /// Why it fails, or failed.
    reason: Failing,
    /// When a batch was last accepted; null if none was since the start of the server.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    last_success_at: Option<Timestamp>,
    /// The last error; null if there was none since the start of the server.
    last_error: Option<LastError<'a>>,
    /// Events that wait.
    queued: u64,
    /// How full its queue of traffic events is, in percent of its limit.
    queue_percent: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct LastError<'a> {
    /// Class, as in its health: `auth`.
    class: &'a str,
    /// Code: `401`.
    code: &'a str,
    /// Text, without secrets.
    text: &'a str,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Marked {
    format: Format<1>,
    reason: Failing,
}

/// Since when each destination fails, as this node sees it.
#[derive(Debug, Default)]
pub struct FailingSince(HashMap<String, Instant>);

impl FailingSince {
    fn failing_for(&mut self, id: &str, is_failing: bool, now: Instant) -> Duration {
        if !is_failing {
            self.0.remove(id);
            return Duration::ZERO;
        }
        let since = *self.0.entry(id.to_owned()).or_insert(now);
        now.duration_since(since)
    }

    fn keep(&mut self, healths: &[(String, Health)]) {
        self.0
            .retain(|id, _| healths.iter().any(|(known, _)| known == id));
    }
}

/// Why a destination with this health fails, if it does.
fn judge(health: &Health, failing_for: Duration, queue_percent: u64) -> Option<Failing> {
    let is_failing = health.state != culvert_delivery::DestinationState::Ok;
    let class = health.last_error.as_ref().map(|error| error.class);
    if is_failing && class == Some(FailureClass::Gone) {
        return Some(Failing::Gone);
    }
    if is_failing && failing_for >= FAILING_AFTER {
        return Some(Failing::NoSuccess);
    }
    (queue_percent >= FULL_PERCENT).then_some(Failing::QueueFull)
}

/// Whether a destination that failed accepts events again.
fn has_recovered(health: &Health, queue_percent: u64) -> bool {
    health.state == culvert_delivery::DestinationState::Ok
        && health.last_success_at.is_some()
        && queue_percent < EMPTIER_PERCENT
}

impl ServerLog {
    /// Reports destinations whose state changed.
    pub async fn watch_destinations(
        &self,
        delivery: &Delivery,
        since: &mut FailingSince,
        now: Instant,
    ) -> Result<(), Fault> {
        let healths = delivery.healths();
        since.keep(&healths);
        let mut marks: HashMap<String, Mark<Marked>> = self
            .marks(FAILING)
            .await?
            .into_iter()
            .map(|mark: Mark<Marked>| (mark.of().to_owned(), mark))
            .collect();
        for (id, health) in &healths {
            let is_failing = health.state != culvert_delivery::DestinationState::Ok;
            let failing_for = since.failing_for(id, is_failing, now);
            let percent = delivery.queue_percent(id);
            let judged = judge(health, failing_for, percent);
            let mark = marks.remove(id);
            let reported = mark.as_ref().and_then(|mark| mark.state.as_ref());
            let reported = reported.map(|state| state.reason);
            let changed = match (judged, reported) {
                (Some(judged), None) => Some(judged),
                (Some(Failing::Gone), Some(reported)) if reported != Failing::Gone => {
                    Some(Failing::Gone)
                }
                _ => None,
            };
            if let Some(reason) = changed {
                self.report_failing(delivery, id, mark, reason).await?;
            } else if let (Some(mark), Some(reason)) = (mark, reported)
                && has_recovered(health, percent)
            {
                self.report_recovered(delivery, id, mark, reason).await?;
            }
        }
        for (id, mark) in marks {
            if self.store.get(DESTINATION_KIND, &id).await?.is_none() {
                let reason = "the destination is gone";
                let changes = mark.removal(AuditEvent::Suppress { reason });
                self.commit_once("forgetting a destination", changes)
                    .await?;
            }
        }
        Ok(())
    }

    async fn report_failing(
        &self,
        delivery: &Delivery,
        id: &str,
        mark: Option<Mark<Marked>>,
        reason: Failing,
    ) -> Result<(), Fault> {
        let Some(destination) = self.store.get(DESTINATION_KIND, id).await? else {
            return Ok(());
        };
        // Another node may have sent to it meanwhile.
        let health = delivery.cluster_health(id).await?.health;
        let is_recent = health
            .last_success_at
            .is_some_and(|at| self.clock.now().since(at) < FAILING_AFTER);
        if reason == Failing::NoSuccess
            && (is_recent || health.state == culvert_delivery::DestinationState::Ok)
        {
            return Ok(());
        }
        let kind = match reason {
            Failing::Gone => DESTINATION_DISABLED,
            Failing::NoSuccess | Failing::QueueFull => DESTINATION_FAILING,
        };
        let percent = delivery.queue_percent(id);
        let event = self.event_of_state(kind, &destination, reason, &health, percent)?;
        let state = Marked {
            format: Format,
            reason,
        };
        let known = mark.map(|mark| mark.document);
        let changes = self.marking(FAILING, id, known, &state, AuditEvent::Emit(event))?;
        self.commit_once("reporting a failing destination", changes)
            .await?;
        Ok(())
    }

    async fn report_recovered(
        &self,
        delivery: &Delivery,
        id: &str,
        mark: Mark<Marked>,
        reason: Failing,
    ) -> Result<(), Fault> {
        let Some(destination) = self.store.get(DESTINATION_KIND, id).await? else {
            return Ok(());
        };
        let health = delivery.cluster_health(id).await?.health;
        let percent = delivery.queue_percent(id);
        if !has_recovered(&health, percent) {
            return Ok(());
        }
        let kind = DESTINATION_RECOVERED;
        let event = self.event_of_state(kind, &destination, reason, &health, percent)?;
        let changes = mark.removal(AuditEvent::Emit(event));
        self.commit_once("reporting a destination that recovered", changes)
            .await?;
        Ok(())
    }

    fn event_of_state(
        &self,
        kind: &str,
        destination: &Document,
        reason: Failing,
        health: &Health,
        queue_percent: u64,
    ) -> Result<culvert_base::Event, Fault> {
        let stored: EventDestination = stored::read(destination)?;
        let object = DestinationState {
            id: &destination.head.id,
            description: &stored.description,
            reason,
            last_success_at: health.last_success_at,
            last_error: health.last_error.as_ref().map(|error| LastError {
                class: error.class.name(),
                code: &error.code,
                text: &error.text,
            }),
            queued: health.queued,
            queue_percent,
        };
        self.event(&destination.head.account, kind, None, &object)
    }
}

#[cfg(test)]
mod tests {
    use culvert_target::failure::Failure;

    use super::*;

    #[test]
    fn a_destination_fails_after_ten_minutes_or_with_a_full_queue() {
        let at = |state, class: Option<FailureClass>| Health {
            state,
            last_error: class.map(|class| Failure::new(class, "503", "busy")),
            ..Health::unknown()
        };
        let retrying = culvert_delivery::DestinationState::Retrying;
        let busy = at(retrying, Some(FailureClass::Retryable));
        let short = FAILING_AFTER - Duration::from_secs(1);
        assert_eq!(judge(&busy, short, 0), None);
        assert_eq!(judge(&busy, FAILING_AFTER, 0), Some(Failing::NoSuccess));
        assert_eq!(judge(&busy, short, 90), Some(Failing::QueueFull));
        let gone = at(retrying, Some(FailureClass::Gone));
        assert_eq!(judge(&gone, Duration::ZERO, 0), Some(Failing::Gone));
        // After a restart, nothing is known.
        let unknown = Health::unknown();
        assert_eq!(judge(&unknown, Duration::ZERO, 89), None);
        assert!(!has_recovered(&unknown, 0));
        let sent = Health {
            last_success_at: Some(Timestamp::from_unix_seconds(1)),
            ..unknown
        };
        assert!(has_recovered(&sent, 69) && !has_recovered(&sent, 70));
    }
}
