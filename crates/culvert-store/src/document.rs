//! What is stored of a resource: a typed head, a JSON body, and what is enforced about it.
//!
//! The store knows nothing of any resource. What it enforces is declared beside the body: keys are
//! unique, references point at documents that exist, topics say who wants which audit events.

use std::borrow::Cow;

use culvert_base::Timestamp;
use serde::{Deserialize, Serialize};

use crate::dialect::Row;

/// A stored resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub head: Head,
    /// The resource's stored form, JSON.
    pub body: String,
    /// Unique values it can be found by.
    pub keys: Vec<Key>,
    /// Documents it needs.
    pub refs: Vec<Ref>,
    /// Audit events it wants, for subscriptions; empty for everything else.
    pub topics: Vec<Topic>,
}

/// The columns every document has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Unique in the installation.
    pub id: String,
    /// Name of the resource, such as `api_key`.
    pub kind: String,
    /// `ac_…` of the account it belongs to.
    pub account: String,
    /// The revision that last wrote it. Given by the store at commit; before an insert it is 0 and
    /// is not read.
    pub revision: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A value by which one document is found: no two documents of a kind hold the same value under
/// the same name, in the whole installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub name: Cow<'static, str>,
    pub value: String,
}

impl Key {
    pub fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self {
            name: Cow::Borrowed(name),
            value: value.into(),
        }
    }

    /// A value as it stands in the database, whose text may have no NUL: NUL is spelled, and so is the
    /// character that spells it.
    pub(crate) fn spelled(value: &str) -> Cow<'_, str> {
        if value.contains(['\0', '\u{1}']) {
            Cow::Owned(value.replace('\u{1}', "\u{1}1").replace('\0', "\u{1}0"))
        } else {
            Cow::Borrowed(value)
        }
    }
}

/// A reference to another document, which exists as long as the reference does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ref {
    /// The field that holds it, such as `owner_id`.
    pub field: Cow<'static, str>,
    /// The id it points at.
    pub to: String,
    pub on_delete: OnDelete,
}

impl Ref {
    pub fn new(field: &'static str, to: impl Into<String>, on_delete: OnDelete) -> Self {
        Self {
            field: Cow::Borrowed(field),
            to: to.into(),
            on_delete,
        }
    }
}

/// What a reference means for the removal of what it points at.
///
/// A reference never dangles. A removal that leaves one behind is not committed: a `Block`
/// reference is reported as [`CommitError::InUse`](crate::commit_error::CommitError::InUse), one of the other two
/// as [`CommitError::Stale`](crate::commit_error::CommitError::Stale), since it appeared after the caller looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDelete {
    /// The removal is refused.
    Block,
    /// The removal takes this document with it, in the same `Changes`.
    Cascade,
    /// The removal replaces this document by one without the reference, in the same `Changes`.
    Detach,
}

/// One kind of audit event a subscription wants, and where it sends it. Events of the document's
/// own account only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Event kind, such as `api_key_created.v0`.
    pub kind: String,
    /// Id of the destination.
    pub destination: String,
}

/// Which documents of one kind and account, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageQuery {
    pub kind: String,
    pub account: String,
    /// Only documents whose id sorts before this one.
    pub before: Option<String>,
    /// At most so many.
    pub limit: u32,
    /// Only documents that reference this id.
    pub refs_to: Option<String>,
}

/// Keys, references and topics as they stand in the document's own row.
#[derive(Debug, Deserialize)]
struct Links {
    keys: Vec<Key>,
    refs: Vec<Ref>,
    topics: Vec<Topic>,
}

/// The same, borrowed.
#[derive(Serialize)]
struct LinksOf<'a> {
    keys: &'a [Key],
    refs: &'a [Ref],
    topics: &'a [Topic],
}

impl Document {
    /// From a row whose columns are those of `statements::state`.
    pub(crate) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        let links: String = row.get(6)?;
        let Links { keys, refs, topics } =
            serde_json::from_str(&links).map_err(|error| sqlx::Error::Decode(error.into()))?;
        Ok(Self {
            head: Head {
                id: row.get(0)?,
                kind: row.get(1)?,
                account: row.get(2)?,
                revision: row.get(3)?,
                created_at: Timestamp::from_unix_nanos(row.get(4)?),
                updated_at: Timestamp::from_unix_nanos(row.get(5)?),
            },
            body: row.get(7)?,
            keys,
            refs,
            topics,
        })
    }

    /// What its row says of keys, references and topics.
    pub(crate) fn links(&self) -> Result<String, sqlx::Error> {
        let links = LinksOf {
            keys: &self.keys,
            refs: &self.refs,
            topics: &self.topics,
        };
        serde_json::to_string(&links).map_err(|error| sqlx::Error::Encode(error.into()))
    }
}

/// Ids are letters, digits and underscores.
pub(crate) const BEHIND_EVERY_ID: &str = "~";
