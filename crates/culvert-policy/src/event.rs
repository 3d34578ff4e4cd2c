//! The event of an exchange while it is being filled.

use culvert_events::{Record, Settable, Slot, Text};
use serde_json::{Map, Value};

use crate::event_slots::POLICY_LOGS;

/// How many entries are kept; the event keeps fewer if they are long.
const LOGS_MAX: usize = 32;

/// The event of an exchange, as far as it makes one.
#[derive(Debug, Default)]
pub struct EventDraft {
    /// The record; `None` if there is no event.
    pub record: Option<Record>,
    /// Whether a module that may run more than once refused the exchange.
    is_blocked: bool,
    /// Whether header maps and logs are omitted.
    pub is_trimmed: bool,
    /// Entries of log actions.
    logs: Vec<Map<String, Value>>,
}

impl EventDraft {
    /// Whether it makes an event that has this field.
    pub fn wants<T>(&self, slot: Slot<T>) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|record| record.wants(slot))
    }

    /// Sets a field, if there is an event.
    pub fn set<T: Settable>(&mut self, slot: Slot<T>, value: T::In<'_>) {
        if let Some(record) = &mut self.record {
            record.set(slot, value);
        }
    }

    /// The same for a decision that may be made more than once: to block is final.
    pub fn decide(&mut self, slot: Slot<Text>, decision: &str) {
        if !self.is_blocked {
            self.set(slot, decision);
        }
        self.is_blocked |= decision == "block";
    }

    /// Keeps an entry of the event's log.
    pub fn log(&mut self, entry: Map<String, Value>) {
        if !self.is_trimmed && self.wants(POLICY_LOGS) {
            push_log(&mut self.logs, entry);
        }
    }

    /// Whether it has entries of a log.
    pub fn has_logs(&self) -> bool {
        !self.logs.is_empty()
    }

    /// Puts the log into the record, unless logs are omitted.
    pub fn write_logs(&mut self) {
        if let (Some(record), false, false) =
            (&mut self.record, self.logs.is_empty(), self.is_trimmed)
        {
            record.set(POLICY_LOGS, &self.logs);
        }
    }
}

/// Adds an entry, unless there are as many as an event has.
pub(crate) fn push_log(logs: &mut Vec<Map<String, Value>>, entry: Map<String, Value>) {
    if logs.len() < LOGS_MAX {
        logs.push(entry);
    }
}
