//! An event as a message for people: title, sentence, severity, link and fields, for mail, chat and paging.
//!
//! Names, paths and user agents in events are written by strangers. So a value has no control characters and no marks that
//! change the direction of text, no web address with a scheme, and each receiver's markup is escaped by
//! [`escaped`]. The one link is that to the event in the console. It is the same in every format of events.

use serde_json::Value;

use culvert_base::Timestamp;
use culvert_events::{EventSeverity, read_json, severity_of};
use culvert_target::batch::Delivery;

/// Maximum characters of a value that a message quotes.
const VALUE_MAX: usize = 256;
/// Maximum characters of the sentence of an alert.
const SUMMARY_MAX: usize = 1000;
const ALERT_FIRED: &str = "alert_fired";
const ALERT_RESOLVED: &str = "alert_resolved";
/// What a longer text ends with.
const CUT: char = '…';

/// How serious a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Info,
    Warning,
    Critical,
}

impl Severity {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// The alert that a message is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alert {
    /// `alr_…`: equal when it fires and when it is resolved.
    pub(crate) id: String,
    pub(crate) is_resolved: bool,
}

/// A message about one event. Its texts are single lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) title: String,
    /// One sentence.
    pub(crate) text: String,
    pub(crate) severity: Severity,
    /// The event in the console.
    pub(crate) link: Option<String>,
    /// Name and value of details.
    pub(crate) fields: Vec<(&'static str, String)>,
    pub(crate) alert: Option<Alert>,
    pub(crate) at: Option<Timestamp>,
    /// The type of the event without its version.
    pub(crate) kind: String,
}

impl Message {
    /// The message about an event. `public_base` is the base URL of the API and the console.
    pub(crate) fn of(delivery: Delivery<'_>, public_base: &str) -> Self {
        let event = read_json(delivery.envelope).unwrap_or_default();
        let event_type = event["event_type"].as_str().unwrap_or("event");
        let versioned = event_type.rsplit_once(".v");
        let kind = clean(versioned.map_or(event_type, |(kind, _)| kind), VALUE_MAX);
        let at = event["event_timestamp"].as_str().and_then(Timestamp::parse);
        let object = &event["object"];
        let is_resolved = kind == ALERT_RESOLVED;
        let alert = (is_resolved || kind == ALERT_FIRED).then(|| Alert {
            id: value(object, "id").unwrap_or_default(),
            is_resolved,
        });
        let (severity, title, text) = match &alert {
            Some(alert) => of_alert(alert, object),
            None => {
                let severity = match severity_of(event_type) {
                    EventSeverity::High => Severity::Critical,
                    EventSeverity::Medium => Severity::Warning,
                    EventSeverity::Low | EventSeverity::Informational => Severity::Info,
                };
                let title = title_of(&kind);
                let text = sentence(&title, &event);
                (severity, title, text)
            }
        };
        Self {
            title,
            text,
            severity,
            link: link(delivery.event_id, public_base),
            fields: fields(&event, alert.is_some()),
            alert,
            at,
            kind,
        }
    }
}

fn of_alert(alert: &Alert, object: &Value) -> (Severity, String, String) {
    let severity = match object["severity"].as_str() {
        Some("info") => Severity::Info,
        Some("warning") => Severity::Warning,
        // An unknown one is not made harmless.
        _ => Severity::Critical,
    };
    let summary = object["summary"].as_str().unwrap_or_default();
    let summary = match clean(summary, SUMMARY_MAX) {
        summary if summary.is_empty() => {
            value(object, "rule_name").unwrap_or_else(|| alert.id.clone())
        }
        summary => summary,
    };
    let state = match alert.is_resolved {
        true => "resolved",
        false => severity.name(),
    };
    let title = format!("[{state}] {summary}");
    (severity, cut(&title, VALUE_MAX), summary)
}

/// `api_key_created` becomes "API key created".
fn title_of(kind: &str) -> String {
    const CAPITALS: [&str; 10] = [
        "api", "dns", "http", "id", "ip", "ssh", "tcp", "tls", "url", "acme",
    ];
    let words = kind.split('_').filter(|word| !word.is_empty());
    let words = words.enumerate().map(|(at, word)| {
        let mut rest = word.chars();
        match (CAPITALS.contains(&word), at, rest.next()) {
            (true, ..) => word.to_ascii_uppercase(),
            (false, 0, Some(first)) => first.to_uppercase().chain(rest).collect(),
            _ => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// One sentence about an event that is no alert.
fn sentence(title: &str, event: &Value) -> String {
    let object = &event["object"];
    let mut text = title.to_owned();
    let mut push = |before: &str, found: Option<String>| {
        if let Some(found) = found {
            text.push_str(before);
            text.push_str(&found);
        }
    };
    let request = &object["http"]["request"];
    push(": ", value(object, "id"));
    push(" ", value(request, "method"));
    push(" ", value(&request["url"], "path"));
    push(" on ", value(&object["conn"], "server_name"));
    push(
        " with status ",
        value(&object["http"]["response"], "status_code"),
    );
    push(" from ", value(&object["conn"], "client_ip"));
    let principal = &event["principal"];
    let by = value(principal, "subject").or_else(|| value(principal, "id"));
    push(" by ", by);
    text.push('.');
    text
}

/// The details of an event, in order.
fn fields(event: &Value, is_alert: bool) -> Vec<(&'static str, String)> {
    let object = &event["object"];
    let mut fields = Vec::new();
    let mut push = |name, found: Option<String>| fields.extend(found.map(|found| (name, found)));
    if is_alert {
        push("Rule", value(object, "rule_name"));
        push("Severity", value(object, "severity"));
        let subject = &object["subject"];
        let named = value(subject, "name").or_else(|| value(subject, "id"));
        push("Subject", named);
        push("Value", value(object, "value"));
        push("Threshold", value(object, "threshold"));
        push("Fired at", value(object, "fired_at"));
        push("Resolved at", value(object, "resolved_at"));
    } else {
        push("Object", value(object, "id"));
        for key in ["name", "description", "hostport", "url", "reason"] {
            push(
                match key {
                    "name" => "Name",
                    "description" => "Description",
                    "hostport" => "Address",
                    "url" => "URL",
                    _ => "Reason",
                },
                value(object, key),
            );
        }
        push("By", value(&event["principal"], "subject"));
        push("Client", value(&object["conn"], "client_ip"));
        let request = &object["http"]["request"];
        push("User agent", value(request, "user_agent"));
    }
    push("Account", value(event, "account_id"));
    push("Time", value(event, "event_timestamp"));
    push("Event", value(event, "event_id"));
    fields
}

/// A text or number of an object, cleaned. `None` if it is missing or empty.
fn value(object: &Value, key: &str) -> Option<String> {
    let text = match &object[key] {
        Value::String(text) => clean(text, VALUE_MAX),
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// The page of an event in the console.
fn link(event_id: &str, public_base: &str) -> Option<String> {
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_plain = !public_base.is_empty() && event_id.bytes().all(is_id);
    is_plain.then(|| format!("{public_base}/console/events/{event_id}"))
}

/// Text of an event as one line without the web addresses that every program for mail and chat recognises: they make links of
/// texts with `://`, so a character without width follows the colon.
fn clean(text: &str, chars_max: usize) -> String {
    let is_steering = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
            // Marks of direction and language, and letters that look like nothing.
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{e0000}'..='\u{e007f}')
            || matches!(c, '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}')
    };
    let shown = text.chars().map(|c| if is_steering(c) { ' ' } else { c });
    let line: String = shown.take(chars_max.saturating_mul(2)).collect();
    cut(&line.replace("://", ":\u{200b}//"), chars_max)
        .trim()
        .to_owned()
}

/// A text of at most `max` UTF-16 units, which is at least as strict as every receiver's count of characters.
pub(crate) fn cut(text: &str, max: usize) -> String {
    escaped(text, max, |c, out| out.push(c))
}

/// A text whose characters are written by `escape`, of at most `max` UTF-16 units. No character is cut within its escape.
pub(crate) fn escaped(text: &str, max: usize, escape: impl Fn(char, &mut String)) -> String {
    let mut out = String::new();
    let mut n_units = 0;
    // The end of the longest text that leaves room for the mark.
    let mut end_of_cut = 0;
    for c in text.chars() {
        let before = out.len();
        escape(c, &mut out);
        n_units += out[before..].encode_utf16().count();
        if n_units > max {
            out.truncate(end_of_cut);
            out.push(CUT);
            return out;
        }
        if n_units < max {
            end_of_cut = out.len();
        }
    }
    out
}

/// A text of at most `bytes_max` bytes of UTF-8.
pub(crate) fn cut_bytes(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let mut end = bytes_max.saturating_sub(CUT.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", &text[..end])
}

#[cfg(test)]
pub(crate) mod tests;
