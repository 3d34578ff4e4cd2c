//! Documents: the stored form of a resource, with typed columns, a JSON body, and constraints.
//!
//! The store is independent of resources. Its constraints are declared beside the body: keys are
//! unique, references have existing targets, and topics list the audit events that a subscription
//! wants.

pub(crate) mod lookup;
pub(crate) mod text_index;
pub(crate) mod text_query;

use std::borrow::Cow;

use culvert_base::Timestamp;
use serde::{Deserialize, Serialize};

use crate::database::dialect::Row;

/// A stored resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The columns that every document has.
    pub head: Head,
    /// The resource's stored form, as JSON.
    pub body: String,
    /// Unique values by which it can be found.
    pub keys: Vec<Key>,
    /// Documents that it depends on.
    pub refs: Vec<Ref>,
    /// The audit events that a subscription wants; empty for other documents.
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
    /// The revision that last wrote it, assigned by the store at the commit. Before an insert it is
    /// 0 and ignored.
    pub revision: i64,
    /// When it was inserted.
    pub created_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
}

/// A value by which one document is found. In the whole installation, no two documents of a kind
/// have the same value under the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Its name, such as `prefix`.
    pub name: Cow<'static, str>,
    /// The value, compared byte by byte.
    pub value: String,
}

impl Key {
    /// A key with this name and value.
    pub fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self {
            name: Cow::Borrowed(name),
            value: value.into(),
        }
    }

    /// A value as it is stored. The database allows no NUL in texts, so NUL is escaped, and so is
    /// the escape character.
    pub(crate) fn spelled(value: &str) -> Cow<'_, str> {
        if value.contains(['\0', '\u{1}']) {
            Cow::Owned(value.replace('\u{1}', "\u{1}1").replace('\0', "\u{1}0"))
        } else {
            Cow::Borrowed(value)
        }
    }
}

/// A reference to another document. The target exists as long as the reference does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ref {
    /// The field with the reference, such as `owner_id`.
    pub field: Cow<'static, str>,
    /// The id of the target.
    pub to: String,
    /// What a removal of the target does.
    pub on_delete: OnDelete,
}

impl Ref {
    /// A reference of `field` to the document `to`; `on_delete` is the effect of a removal of `to`.
    pub fn new(field: &'static str, to: impl Into<String>, on_delete: OnDelete) -> Self {
        Self {
            field: Cow::Borrowed(field),
            to: to.into(),
            on_delete,
        }
    }
}

/// The effect of a reference on the removal of its target.
///
/// Every reference has a target. A removal that leaves a reference behind is not committed: a `Block` reference is
/// reported as [`CommitError::InUse`](crate::commit::commit_error::CommitError::InUse), one of the other two as
/// [`CommitError::Stale`](crate::commit::commit_error::CommitError::Stale), because it was added after the caller read the
/// document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDelete {
    /// The removal is refused.
    Block,
    /// The removal also removes this document, in the same `Changes`.
    Cascade,
    /// The removal replaces this document by one without the reference, in the same `Changes`.
    Detach,
}

/// A kind of audit event that a subscription wants, and its destination. Only events of the
/// document's account are selected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Event kind, such as `api_key_created.v0`, [`Self::EVERY`], or [`Self::about`] an object.
    pub kind: String,
    /// Id of the destination.
    pub destination: String,
}

impl Topic {
    /// Stands for every kind of audit event, those of later versions too.
    pub const EVERY: &'static str = "audit";

    /// Stands for every kind of audit event about the object with this ID. No kind has such a name.
    pub fn about(id: &str) -> String {
        format!("about {id}")
    }
}

/// A query for documents of one kind and account, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageQuery {
    /// Name of the resource, such as `api_key`.
    pub kind: String,
    /// `ac_…` of the account.
    pub account: String,
    /// Only documents whose id sorts before this one.
    pub before: Option<String>,
    /// Maximum number of documents.
    pub limit: u32,
    /// Only documents with a reference to this id.
    pub refs_to: Option<String>,
}

/// Keys, references and topics, as stored in the document's row.
#[derive(Debug, Deserialize)]
struct Links {
    keys: Vec<Key>,
    refs: Vec<Ref>,
    topics: Vec<Topic>,
}

/// [`Links`], borrowed for serialisation.
#[derive(Serialize)]
struct LinksOf<'a> {
    keys: &'a [Key],
    refs: &'a [Ref],
    topics: &'a [Topic],
}

impl Document {
    /// Reads a row with the columns of `statements::state`.
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

    /// The revision and the ID of the document in a row.
    pub(crate) fn sort_key(row: &Row) -> Result<(i64, String), sqlx::Error> {
        Ok((row.get(3)?, row.get(0)?))
    }

    /// The document's keys, references and topics, as stored in its row.
    pub(crate) fn links(&self) -> Result<String, sqlx::Error> {
        let links = LinksOf {
            keys: &self.keys,
            refs: &self.refs,
            topics: &self.topics,
        };
        serde_json::to_string(&links).map_err(|error| sqlx::Error::Encode(error.into()))
    }
}

/// Sorts after every id. Ids are letters, digits and underscores.
pub(crate) const BEHIND_EVERY_ID: &str = "~";
