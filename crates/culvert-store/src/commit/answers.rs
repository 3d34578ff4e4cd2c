//! The answer to each request with an idempotency key, kept beside the documents.
//!
//! An answer is written in the transaction of what it reports, so a request is never repeated whose effect was
//! committed, and never answered from here if it was not. The ID is unique: of two requests with the same key, on
//! whatever nodes, one is committed, and the other finds its answer.
//!
//! Each owner has limited room, and each API key a part of it. If one is full, a further answer is refused with the write
//! that it belongs to.

use culvert_base::Timestamp;

use crate::commit::commit_error::{CommitError, Failure};
use crate::database::dialect::{Arg, Connection, Row};
use crate::database::statements::state;

/// A kept answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Names the request: a digest of its key and caller.
    pub id: String,
    /// Whose room it takes. No control characters.
    pub owner: String,
    /// Whose part of this room it takes. No control characters.
    pub key: String,
    /// When it was kept.
    pub kept_at: Timestamp,
    /// The revision of its commit, assigned by the store.
    pub revision: i64,
    /// The answer; the store does not read it.
    pub body: String,
    /// What the answer shows only for a short time, encrypted.
    pub secret: Option<String>,
}

/// The room of an owner, of which a key takes at most half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerRoom {
    /// Maximum number.
    pub answers: i64,
    /// Maximum size of all together.
    pub bytes: i64,
}

/// Between the owner and the key in a row, so that the rows of an owner are a range.
const OF: char = '\n';
/// Sorts after every row of an owner, behind its name.
const BEHIND: char = '\u{b}';

/// A step that writes an answer.
#[derive(Clone, Debug)]
pub(crate) enum AnswerStep {
    /// Inserts it, unless there is one that is newer than `since`.
    Keep {
        answer: KeptAnswer,
        since: Timestamp,
        room: AnswerRoom,
    },
    /// Replaces the body of the answer that was kept at this time, if it is still there.
    Complete {
        id: String,
        kept_at: Timestamp,
        body: String,
    },
    /// Removes the answer that was kept at this time.
    Forget { id: String, kept_at: Timestamp },
}

impl AnswerStep {
    pub(crate) async fn apply(
        &self,
        connection: &mut Connection,
        revision: i64,
    ) -> Result<(), Failure> {
        match self {
            Self::Keep {
                answer,
                since,
                room,
            } => keep(connection, answer, *since, *room, revision).await,
            Self::Complete { id, kept_at, body } => {
                let arguments = [
                    Arg::Text(id),
                    Arg::Int(kept_at.unix_nanos()),
                    Arg::Int(length(body, None)),
                    Arg::Text(body),
                ];
                connection.run(state::COMPLETE_ANSWER, &arguments).await?;
                Ok(())
            }
            Self::Forget { id, kept_at } => {
                let arguments = [Arg::Text(id), Arg::Int(kept_at.unix_nanos())];
                connection.run(state::FORGET_ANSWER, &arguments).await?;
                Ok(())
            }
        }
    }
}

async fn keep(
    connection: &mut Connection,
    answer: &KeptAnswer,
    since: Timestamp,
    room: AnswerRoom,
    revision: i64,
) -> Result<(), Failure> {
    let owner = &answer.owner;
    let key = format!("{owner}{OF}{}", answer.key);
    let (id, taken_by) = (Arg::Text(&answer.id), Arg::Text(&key));
    let old = [id, Arg::Int(since.unix_nanos())];
    connection.run(state::FORGET_OLD_ANSWER, &old).await?;
    let bytes = length(&answer.body, answer.secret.as_deref());
    // Before the room: a request that is repeated has its answer, and needs none.
    let arguments = [
        id,
        taken_by,
        Arg::Int(answer.kept_at.unix_nanos()),
        Arg::Int(revision),
        Arg::Int(bytes),
        Arg::Text(&answer.body),
        Arg::MaybeText(answer.secret.as_deref()),
    ];
    if connection.run(state::KEEP_ANSWER, &arguments).await? == 0 {
        return Err(CommitError::Kept.into());
    }
    let end = format!("{owner}{BEHIND}");
    let arguments = [Arg::Text(owner), Arg::Text(&end), taken_by];
    let row = connection.row(state::ANSWERS_OF, &arguments).await?;
    let row = row.ok_or(sqlx::Error::RowNotFound)?;
    let (count, bytes): (i64, i64) = (row.get(0)?, row.get(1)?);
    let (count_of_key, bytes_of_key): (i64, i64) = (row.get(2)?, row.get(3)?);
    let is_full = count > room.answers || bytes > room.bytes;
    if is_full || count_of_key > room.answers / 2 || bytes_of_key > room.bytes / 2 {
        return Err(CommitError::NoRoom.into());
    }
    Ok(())
}

fn length(body: &str, secret: Option<&str>) -> i64 {
    let bytes = body.len() + secret.map_or(0, str::len);
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

pub(crate) fn read(row: &Row) -> Result<KeptAnswer, sqlx::Error> {
    let taken_by: String = row.get(1)?;
    let (owner, key) = taken_by.split_once(OF).unwrap_or((&taken_by, ""));
    Ok(KeptAnswer {
        id: row.get(0)?,
        owner: owner.to_owned(),
        key: key.to_owned(),
        kept_at: Timestamp::from_unix_nanos(row.get(2)?),
        revision: row.get(3)?,
        body: row.get(4)?,
        secret: row.get(5)?,
    })
}

/// How many rows one transaction removes.
const PRUNED_AT_ONCE: i64 = 1_000;

pub(crate) async fn prune(
    connection: &mut Connection,
    answers_until: Timestamp,
    secrets_until: Timestamp,
) -> Result<u64, sqlx::Error> {
    let arguments = [
        Arg::Int(answers_until.unix_nanos()),
        Arg::Int(PRUNED_AT_ONCE),
    ];
    let n_removed = connection.run(state::PRUNE_ANSWERS, &arguments).await?;
    let arguments = [Arg::Int(secrets_until.unix_nanos())];
    let n_cleared = connection.run(state::PRUNE_SECRETS, &arguments).await?;
    Ok(n_removed + n_cleared)
}
