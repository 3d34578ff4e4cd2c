//! Audit events: who changed what, how it was before, and how the call came (contract: events 3, audit 2).

use std::fmt;
use std::net::IpAddr;

use culvert_base::{Event, Fault, Timestamp};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{finished, push_head};

/// An audit event without its object.
#[derive(Clone, Copy, Debug)]
pub struct Audit<'a> {
    /// The kind, with version suffix.
    pub kind: &'a str,
    /// When it happened.
    pub at: Timestamp,
    /// `ev_…`.
    pub id: &'a str,
    /// `ac_…`.
    pub account: &'a str,
    /// Who did it; `None` for the server itself.
    pub principal: Option<&'a Principal>,
    /// In an update, the changed fields as they were: a JSON object.
    pub previous: Option<&'a RawValue>,
    /// Paths of fields that are missing because of their size.
    pub truncated: &'a [String],
    /// `ev_…` of the event that this one follows.
    pub cause: Option<&'a str>,
}

impl<'a> Audit<'a> {
    /// An event of the server itself.
    pub fn by_server(kind: &'a str, at: Timestamp, id: &'a str, account: &'a str) -> Self {
        Self {
            kind,
            at,
            id,
            account,
            principal: None,
            previous: None,
            truncated: &[],
            cause: None,
        }
    }

    /// The event about this object, whose keys are written in the order of their serialisation.
    ///
    /// # Errors
    /// If `object` cannot be serialised, such as a map whose keys are not strings.
    pub fn about(&self, object: &impl Serialize) -> Result<Event, Fault> {
        let mut body = Vec::with_capacity(1024);
        push_head(&mut body, self.id, self.kind, self.at, self.account);
        // Ends the account's string.
        body.push(b'"');
        self.push(&mut body, "principal", &self.principal)?;
        let begin = body.len();
        self.push(&mut body, "object", object)?;
        let mut truncated = self.truncated.to_vec();
        if body.len() - begin > OBJECT_BYTES_MAX {
            body.truncate(begin);
            let (object, removed) = shortened(object)
                .map_err(|cause| Fault::new(format!("shortening a {}", self.kind), cause))?;
            self.push(&mut body, "object", &object)?;
            truncated.extend(removed);
        }
        if let Some(previous) = self.previous {
            self.push(&mut body, "previous", previous)?;
        }
        if !truncated.is_empty() {
            self.push(&mut body, "truncated", &truncated)?;
        }
        if let Some(cause) = self.cause {
            self.push(&mut body, "cause", cause)?;
        }
        body.push(b'}');
        Ok(finished(self.id, self.kind, self.at, self.account, body))
    }

    fn push<T: Serialize + ?Sized>(
        &self,
        body: &mut Vec<u8>,
        key: &str,
        value: &T,
    ) -> Result<(), Fault> {
        body.extend_from_slice(b",\"");
        body.extend_from_slice(key.as_bytes());
        body.extend_from_slice(b"\":");
        serde_json::to_writer(body, value)
            .map_err(|cause| Fault::new(format!("writing the {key} of a {}", self.kind), cause))
    }
}

/// Limit of an object in bytes of JSON. The other parts of an event have limits of their own.
const OBJECT_BYTES_MAX: usize = 256 << 10;

/// The fields of an object in their order.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// An object without its largest fields, so that it is within the limit, and their paths.
fn shortened(object: &impl Serialize) -> Result<(Fields, Vec<String>), serde_json::Error> {
    let Fields(mut fields) = serde_json::from_str(&serde_json::to_string(object)?)?;
    let size = |field: &(String, Box<RawValue>)| field.0.len() + field.1.get().len() + 4;
    let mut removed = Vec::new();
    while fields.iter().map(size).sum::<usize>() > OBJECT_BYTES_MAX
        && let Some(largest) = (0..fields.len()).max_by_key(|index| size(&fields[*index]))
    {
        let (name, _) = fields.remove(largest);
        removed.push(format!("object.{name}"));
    }
    Ok((Fields(fields), removed))
}

/// An event with the event that it follows (`ev_…`), unless it names one already.
pub fn caused_by(event: Event, cause: &str) -> Event {
    #[derive(Deserialize)]
    struct Named {
        cause: Option<IgnoredAny>,
    }
    let is_named = serde_json::from_str::<Named>(&event.body).is_ok_and(|it| it.cause.is_some());
    let mut body = event.body;
    // IDs have no character that JSON escapes.
    if !is_named && event.id != cause && body.pop() == Some('}') {
        body.push_str(",\"cause\":\"");
        body.push_str(cause);
        body.push_str("\"}");
    }
    Event { body, ..event }
}

/// The caller who made a change (contract: events 3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Principal {
    /// `usr_…` or `bot_…` of the owner of the credential.
    pub id: String,
    /// The user's email address or the bot's name.
    pub subject: String,
    /// What was used.
    pub source: Source,
    /// The credential; `None` for the dashboard.
    pub credential: Option<Reference>,
    /// How the call came; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<CallContext>,
}

/// What a principal used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Source {
    /// The management API with a key.
    #[serde(rename = "API")]
    Api,
    /// An agent.
    Agent,
    /// The console without a key.
    Dashboard,
    /// A command on the machine of the server.
    #[serde(rename = "CLI")]
    Cli,
}

/// Another object, by id and URI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reference {
    /// Its id.
    pub id: String,
    /// Its URI in the API.
    pub uri: String,
}

/// How a call came (contract: audit 2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallContext {
    /// Address of the client: not of a trusted proxy.
    pub client_ip: Option<IpAddr>,
    /// Port of the client; `None` behind a trusted proxy.
    pub client_port: Option<u16>,
    /// As the client sent it, at most 512 bytes.
    pub user_agent: String,
    /// `op_…`, as in the header `ngrok-operation-id` of the response; empty for agents.
    pub operation_id: String,
    /// The node that accepted it.
    pub node: String,
    /// The program that called for a person: the console or our command line.
    pub via: Option<Via>,
}

/// A program that calls for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The web console.
    Console,
    /// `culvert api` and the other commands.
    Cli,
}
