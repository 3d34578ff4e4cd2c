//! Replays: ranges of the audit log and of retained traffic that are sent to a destination again.

use culvert_base::{Fault, Timestamp};
use culvert_events::Record;
use culvert_store::{AuditRow, Range};

/// Events to be sent to a destination again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// `replay_…`.
    pub id: String,
    /// `ed_…`.
    pub destination: String,
    /// Only events of this account are sent.
    pub account: String,
    /// Where in the audit log.
    pub range: Range,
    /// Where in the log of traffic, if events of it are wanted.
    pub traffic: Option<TrafficRange>,
    /// Only events of these kinds are sent.
    pub kinds: Vec<String>,
    /// Subscription ids that events are sent for if they were for none of the destination's when they
    /// happened, with the kinds they want. An event that no subscription wants is sent for the replay itself.
    pub subscriptions: Vec<(String, Vec<String>)>,
}

/// The names of replays' cursors begin with it.
pub(crate) const CURSORS: &str = "replay:";

/// The same in the log of traffic.
pub(crate) const TRAFFIC_CURSORS: &str = "replay-traffic:";

impl Replay {
    pub(crate) fn cursor(id: &str) -> String {
        format!("{CURSORS}{id}")
    }

    pub(crate) fn traffic_cursor(id: &str) -> String {
        format!("{TRAFFIC_CURSORS}{id}")
    }

    /// Where a cursor stands that reads `value`; 0 before its first move.
    pub(crate) fn position(range: &Range, value: i64) -> i64 {
        value.max(range.first.saturating_sub(1))
    }

    pub(crate) fn wants(&self, row: &AuditRow) -> bool {
        row.account == self.account
            && self.kinds.contains(&row.kind)
            && self
                .range
                .holds(Timestamp::from_unix_nanos(row.happened_at))
    }

    pub(crate) fn wants_traffic(&self, record: &Record, range: &TrafficRange) -> bool {
        let at = record.at();
        **record.account() == *self.account
            && self.kinds.iter().any(|kind| kind == record.kind().name)
            && range.since.is_none_or(|since| since <= at)
            && range.until.is_none_or(|until| at <= until)
    }

    /// The subscriptions a row is sent for: those it was for when it happened, so that a receiver
    /// that knows the delivery knows it again.
    ///
    /// The rights to private kinds are the replay's own: it sends them for itself instead of for a subscription
    /// whose owner has lost them.
    pub(crate) fn readers(
        &self,
        row: &AuditRow,
        is_withheld: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Fault> {
        if is_withheld(&self.id) {
            return Ok(Vec::new());
        }
        let audience: Vec<(String, String)> =
            serde_json::from_str(&row.audience).map_err(|error| {
                Fault::new(format!("reading the audience of event {}", row.seq), error)
            })?;
        let of_destination = |(subscription, destination): (String, String)| {
            (destination == self.destination).then_some(subscription)
        };
        let is_due = |subscription: &String| !is_withheld(subscription);
        let then = audience.into_iter().filter_map(of_destination);
        let then: Vec<String> = then.filter(is_due).collect();
        if !then.is_empty() {
            return Ok(then);
        }
        let wanting = self.subscriptions.iter();
        let now: Vec<String> = wanting
            .filter(|(_, kinds)| kinds.contains(&row.kind))
            .map(|(subscription, _)| subscription.clone())
            .filter(is_due)
            .collect();
        Ok(if now.is_empty() {
            vec![self.id.clone()]
        } else {
            now
        })
    }
}

/// A part of the traffic log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficRange {
    /// The first piece; beyond `last` in an empty range.
    pub first: i64,
    /// The last piece.
    pub last: i64,
    /// The event that the range begins with. Its time is in `since`.
    pub from_event: Option<EventBound>,
    /// The event that it ends with. Its time is in `until`.
    pub to_event: Option<EventBound>,
    /// The pieces overlap in time. Of their events, the range has those that are no earlier than this,
    pub since: Option<Timestamp>,
    /// and no later than this.
    pub until: Option<Timestamp>,
}

/// The event at an end of a range. Of events with its time, those before it in the log are before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBound {
    /// The piece that has the event.
    pub piece: i64,
    /// `ev_…`.
    pub id: String,
}
