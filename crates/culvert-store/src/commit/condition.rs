//! Conditions that must hold when changes are committed.
//!
//! A write that depends on documents it does not change names them here. The writer checks the conditions in the same
//! transaction before it applies any step. Commits are serialized, so of two writes that depend on each other the later
//! one is stale and is decided again. A condition changes nothing, so writes that share one do not block each other.

use crate::commit::commit_error::CommitError;
use crate::commit::revision::Revision;
use crate::database::dialect::{Arg, Connection};
use crate::database::statements::{WRITTEN_SINCE, state};
use crate::document::{Document, Head, Key};

/// A condition.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The document exists at the revision of this head.
    Unchanged(Head),
    /// No document refers to this id.
    Unreferred(String),
    /// No document of this kind that refers to this id was written after a revision.
    ReferrersUnwritten {
        kind: String,
        to: String,
        since: Revision,
    },
    /// No document that holds one of these keys was written after a revision.
    Unwritten {
        kind: String,
        name: &'static str,
        values: Vec<String>,
        since: Revision,
    },
    /// No document that holds a key with this end was written after a revision.
    UnwrittenBelow {
        kind: String,
        name: &'static str,
        end: String,
        since: Revision,
    },
}

impl Condition {
    /// Whether it holds.
    async fn holds(&self, connection: &mut Connection, epoch: u64) -> Result<bool, sqlx::Error> {
        match self {
            // What was read then may be lost.
            Self::ReferrersUnwritten { since, .. }
            | Self::Unwritten { since, .. }
            | Self::UnwrittenBelow { since, .. }
                if since.epoch != epoch =>
            {
                Ok(false)
            }
            Self::Unchanged(head) => {
                let arguments = [
                    Arg::Text(&head.id),
                    Arg::Text(&head.kind),
                    Arg::Int(head.revision),
                ];
                let found = connection.row(state::BEFORE, &arguments).await?;
                Ok(found.is_some())
            }
            Self::Unreferred(id) => {
                let found = connection.row(state::REFERRER, &[Arg::Text(id)]).await?;
                Ok(found.is_none())
            }
            Self::ReferrersUnwritten { kind, to, since } => {
                let arguments = [Arg::Text(to), Arg::Text(kind), Arg::Int(since.number)];
                let found = connection.row(state::REFERRER_SINCE, &arguments).await?;
                Ok(found.is_none())
            }
            Self::Unwritten {
                kind,
                name,
                values,
                since,
            } => {
                let spelled: Vec<_> = values.iter().map(|value| Key::spelled(value)).collect();
                let list = serde_json::to_string(&spelled)
                    .map_err(|error| sqlx::Error::Encode(error.into()))?;
                let arguments = [
                    Arg::Text(kind),
                    Arg::Text(name),
                    Arg::Text(&list),
                    Arg::Int(since.number),
                ];
                let sql = connection.spell(WRITTEN_SINCE);
                Ok(connection.row(sql, &arguments).await?.is_none())
            }
            Self::UnwrittenBelow {
                kind,
                name,
                end,
                since,
            } => {
                let arguments = [Arg::Text(kind), Arg::Int(since.number)];
                for row in connection.rows(state::CHANGED, &arguments).await? {
                    let document = Document::read(&row)?;
                    let mut keys = document.keys.iter().filter(|key| key.name == *name);
                    if keys.any(|key| key.value.ends_with(end)) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Refuses changes whose conditions do not all hold in a transaction of this epoch.
    pub(crate) async fn check(
        conditions: &[Self],
        connection: &mut Connection,
        epoch: u64,
    ) -> Result<Result<(), CommitError>, sqlx::Error> {
        for condition in conditions {
            if !condition.holds(connection, epoch).await? {
                return Ok(Err(CommitError::Stale));
            }
        }
        Ok(Ok(()))
    }
}
