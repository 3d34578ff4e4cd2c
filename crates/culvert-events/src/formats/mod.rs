//! Events in the formats of others: OCSF and ECS (contract: audit 6).
//!
//! [`table`] has what both say about each kind; [`ocsf`] and [`ecs`] write an event with its row. The original event is
//! in each, so nothing is lost where a format has no field for it.

mod ecs;
mod json;
mod ocsf;
mod table;

use std::net::IpAddr;

use culvert_base::Timestamp;
use serde_json::Value;

pub(crate) use ecs::VERSION as ECS_VERSION;
pub use json::{JsonReader, JsonRules, read_json};
pub(crate) use ocsf::VERSION as OCSF_VERSION;
pub(crate) use table::markdown;
pub use table::{Severity as EventSeverity, kinds};

use table::{Class, Outcome, Row};

/// The form in which a destination gets events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFormat {
    /// As they are.
    Json,
    /// Open Cybersecurity Schema Framework.
    Ocsf,
    /// Elastic Common Schema.
    Ecs,
}

impl EventFormat {
    /// Their names in the API.
    pub const NAMES: [&'static str; 3] = ["json", "ocsf", "ecs"];

    /// The format of that name, in any letter case.
    pub fn find(name: &str) -> Option<Self> {
        [Self::Json, Self::Ocsf, Self::Ecs]
            .into_iter()
            .zip(Self::NAMES)
            .find_map(|(format, known)| known.eq_ignore_ascii_case(name).then_some(format))
    }

    /// Appends the event with this envelope in this form, as one line without its end. `None`, and nothing is appended,
    /// if the envelope is not one.
    pub fn encode(self, envelope: &str, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Json => out.extend_from_slice(envelope.as_bytes()),
            Self::Ocsf => ocsf::encode(&Event::read(envelope)?, out),
            Self::Ecs => ecs::encode(&Event::read(envelope)?, out),
        }
        Some(())
    }
}

/// How serious events of a type are, such as `api_key_created.v0`.
pub fn severity_of(event_type: &str) -> EventSeverity {
    table::row_of(kind_of(event_type)).severity
}

/// A type without its version.
fn kind_of(event_type: &str) -> &str {
    let versioned = event_type.rsplit_once(".v");
    versioned.map_or(event_type, |(kind, _)| kind)
}

/// An event that is written in another format.
struct Event<'e> {
    envelope: &'e str,
    json: Value,
    /// Its kind without version suffix.
    kind: String,
    at: Timestamp,
    row: Row,
}

impl<'e> Event<'e> {
    fn read(envelope: &'e str) -> Option<Self> {
        let json = read_json(envelope.as_bytes())?;
        let at = Timestamp::parse(json["event_timestamp"].as_str()?)?;
        let kind = kind_of(json["event_type"].as_str()?);
        let mut row = table::row_of(kind);
        if row.class == Class::DetectionFinding {
            row.severity = match json.pointer("/object/severity").and_then(Value::as_str) {
                Some("info") => EventSeverity::Informational,
                Some("critical") => EventSeverity::High,
                _ => row.severity,
            };
        }
        Some(Self {
            envelope,
            at,
            row,
            kind: kind.to_owned(),
            json,
        })
    }

    /// The text at the first of these pointers that has one which is not empty.
    fn text_at(&self, pointers: &[&str]) -> Option<&str> {
        let texts = pointers.iter().map(|pointer| self.json.pointer(pointer));
        let mut texts = texts.filter_map(|value| value.and_then(Value::as_str));
        texts.find(|text| !text.is_empty())
    }

    /// The number at the first of these pointers that has one which is not negative and fits into 63 bits.
    fn number_at(&self, pointers: &[&str]) -> Option<u64> {
        let numbers = pointers.iter().map(|pointer| self.json.pointer(pointer));
        numbers
            .filter_map(|value| value.and_then(Value::as_u64))
            .find(|number| i64::try_from(*number).is_ok())
    }

    /// The time at this pointer.
    fn time(&self, pointer: &str) -> Option<Timestamp> {
        Timestamp::parse(self.text_at(&[pointer])?)
    }

    fn ip(&self, pointers: &[&str]) -> Option<String> {
        let ip: IpAddr = self.text_at(pointers)?.parse().ok()?;
        Some(ip.to_canonical().to_string())
    }

    fn port(&self, pointers: &[&str]) -> Option<u64> {
        self.number_at(pointers)
            .filter(|port| u16::try_from(*port).is_ok())
    }

    fn client_ip(&self) -> Option<String> {
        self.ip(&[
            "/principal/context/client_ip",
            "/object/conn/client_ip",
            "/object/sample/client_ip",
            "/object/agent_ip",
        ])
    }

    fn client_port(&self) -> Option<u64> {
        self.port(&[
            "/principal/context/client_port",
            "/object/sample/client_port",
        ])
    }

    fn server_ip(&self) -> Option<String> {
        self.ip(&["/object/conn/server_ip", "/object/ingress_server_ip"])
    }

    fn server_port(&self) -> Option<u64> {
        self.port(&["/object/conn/server_port", "/object/sample/server_port"])
    }

    fn server_name(&self) -> Option<&str> {
        self.text_at(&[
            "/object/conn/server_name",
            "/object/sample/host",
            "/object/ingress_hostname",
        ])
    }

    fn user_agent(&self) -> Option<&str> {
        self.text_at(&[
            "/principal/context/user_agent",
            "/object/http/request/user_agent",
            "/object/sample/user_agent",
            "/object/user_agent",
        ])
    }

    /// ID of the caller, or of the user of a request.
    fn user_id(&self) -> Option<&str> {
        self.text_at(&["/principal/id", "/object/oauth/user/id"])
    }

    fn user_name(&self) -> Option<&str> {
        self.text_at(&[
            "/principal/subject",
            "/object/oauth/user/name",
            "/object/basic_auth/username",
        ])
    }

    fn object_id(&self) -> Option<&str> {
        self.text_at(&[
            "/object/id",
            "/object/session/id",
            "/object/sample/object_id",
        ])
    }

    fn object_name(&self) -> Option<&str> {
        self.text_at(&[
            "/object/name",
            "/object/email",
            "/object/domain",
            "/object/url",
            "/object/addr",
        ])
    }

    /// Why it happened, or failed.
    fn reason(&self) -> Option<&str> {
        self.text_at(&["/object/culvert/reason", "/object/reason", "/object/error"])
    }

    /// Whether what it is about succeeded; `None` if it does not say so.
    fn succeeded(&self) -> Option<bool> {
        match self.row.outcome {
            Outcome::Success => Some(true),
            Outcome::Failure => Some(false),
            Outcome::OfObject => match self.json.pointer("/object/http/response/status_code") {
                Some(status) => Some(status.as_u64().is_some_and(|status| status < 400)),
                None => {
                    let error = self.json.pointer("/object/error").is_some();
                    let is_told = error || self.reason().is_some();
                    is_told.then(|| self.reason().is_none())
                }
            },
        }
    }

    fn message(&self) -> String {
        self.kind.replace('_', " ")
    }
}

/// Removes nulls, empty texts, and objects and lists that are empty then.
fn compact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(compact);
            fields.retain(|_, value| !is_empty(value));
        }
        Value::Array(values) => {
            values.iter_mut().for_each(compact);
            values.retain(|value| !is_empty(value));
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests;
