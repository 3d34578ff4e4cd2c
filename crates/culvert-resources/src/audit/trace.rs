//! What a call of an operation leaves in the audit log (contract: audit 1).

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// What a successful call of an operation leaves in the audit log.
#[derive(Clone, Copy, Debug)]
pub enum Trace {
    /// Nothing: it shows what its caller may always see.
    Nothing,
    /// The events of the objects that it writes.
    Objects,
    /// Those, and in the same commit an event of this kind.
    Also(&'static OperationKind),
    /// An event of this kind for each call.
    Each(&'static OperationKind),
    /// An event of this kind for the first call of a caller about an object, and one for its further calls within an
    /// hour.
    Hourly(&'static OperationKind),
    /// An event of this kind for the first call of a caller, and one for its further calls within an hour, with the first
    /// 100 IDs that the responses show. The function finds them in a response.
    HourlyList(&'static OperationKind, fn(&str) -> Vec<String>),
}

/// Limit of IDs in the event of reads of a list.
pub const IDS_MAX: usize = 100;

/// A kind of event that reports an operation instead of a written object.
#[derive(Debug)]
pub struct OperationKind {
    /// The kind, with version suffix: `api_key_rotated.v0`.
    pub name: &'static str,
    /// When it occurs, for the reference.
    pub doc: &'static str,
    /// Whether the event shows the body of the call. Such a body has no secret.
    pub shows_body: bool,
}

/// The event of an object that was shown with its secrets.
pub static POLICY_READ_WITH_SECRETS: OperationKind = OperationKind {
    name: "policy_read_with_secrets.v0",
    doc: "A traffic policy was shown with its secrets, to its owner.",
    shows_body: false,
};

impl Trace {
    /// The kind of event that reports the operation.
    pub const fn kind(self) -> Option<&'static OperationKind> {
        match self {
            Self::Nothing | Self::Objects => None,
            Self::Also(kind)
            | Self::Each(kind)
            | Self::Hourly(kind)
            | Self::HourlyList(kind, _) => Some(kind),
        }
    }
}

impl<'a> Performed<'a> {
    /// One call about this object.
    pub const fn of(id: &'a str, operation: &'a str) -> Self {
        Self {
            id,
            operation,
            count: 1,
            ids: &[],
            asked: None,
            before: None,
            after: None,
        }
    }
}

/// The object of an event that reports an operation.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Performed<'a> {
    /// ID of the object in the path of the call; empty for an operation without one.
    pub id: &'a str,
    /// The operation, by its ID in the OpenAPI document.
    pub operation: &'a str,
    /// How many calls the event stands for. The calls of a caller about an object within an hour have two events: one for
    /// the first call, and one for the others.
    pub count: u64,
    /// IDs that the responses showed, at most 100; only in events about reads of lists.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub ids: &'a [String],
    /// The body of the call; null if it had none.
    pub asked: Option<&'a Value>,
    /// The restrictions of the key before the operation; only in events about restrictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The restrictions of the key after the operation; only in events about restrictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}
