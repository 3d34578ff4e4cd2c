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
    /// The range of the audit log.
    pub range: Range,
    /// The range of the traffic log; `None` without traffic events.
    pub traffic: Option<TrafficRange>,
    /// Only events of these kinds are sent.
    pub kinds: Vec<String>,
    /// Subscriptions for events that were not sent to this destination when they happened: ids, and the kinds that they
    /// select. An event that none of them selects is sent for the replay itself.
    pub subscriptions: Vec<(String, Vec<String>)>,
}

/// The prefix of the names of replay cursors.
pub(crate) const CURSORS: &str = "replay:";

/// The prefix for the traffic log.
pub(crate) const TRAFFIC_CURSORS: &str = "replay-traffic:";

impl Replay {
    pub(crate) fn cursor(id: &str) -> String {
        format!("{CURSORS}{id}")
    }

    pub(crate) fn traffic_cursor(id: &str) -> String {
        format!("{TRAFFIC_CURSORS}{id}")
    }

    /// The position of a cursor with this value; 0 before its first move.
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

    /// The subscriptions for which a row is sent: those at the time of the event, so that a receiver recognises a
    /// delivery that it has already.
    ///
    /// Private kinds need the rights of the replay. If the owner of a subscription has lost the right to such an event,
    /// the replay sends it for itself.
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
    /// The event at the start of the range. Its time is in `since`.
    pub from_event: Option<EventBound>,
    /// The event at the end of the range. Its time is in `until`.
    pub to_event: Option<EventBound>,
    /// The pieces overlap in time. Events before this time are excluded.
    pub since: Option<Timestamp>,
    /// Events after this time are excluded.
    pub until: Option<Timestamp>,
}

/// The event at a bound of a range. Among events with equal times, the order of the log decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBound {
    /// The piece that has the event.
    pub piece: i64,
    /// `ev_…`.
    pub id: String,
}
