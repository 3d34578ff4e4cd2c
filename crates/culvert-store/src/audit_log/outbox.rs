//! Audit events in commit order, each with its audience.
//!
//! Each row is written in the transaction of its change, and retained: the rows are the audit log. The queue has the
//! cursors of readers, beside their copies.

use culvert_base::{Event, Timestamp};

use crate::audit_log::audit::AuditRow;
use crate::audit_log::chain::{Content, Link};
use crate::audit_log::event_names::Named;
use crate::audit_log::tree::AuditTree;
use crate::database::dialect::{Arg, Connection, Row};
use crate::database::statements::state;
use crate::document::Topic;

/// One audit event as committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Position in commit order; ascending, never reused.
    pub seq: i64,
    /// The event as committed.
    pub event: Event,
    /// The audience as of the commit: after an insert or a replacement, before a removal. Pairs of subscription id and
    /// destination id.
    pub audience: Vec<(String, String)>,
}

impl OutboxRow {
    /// From a row of `OUTBOX_AFTER`.
    pub(crate) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        let audience: String = row.get(5)?;
        Ok(Self {
            seq: row.get(0)?,
            event: Event {
                id: row.get(1)?,
                account: row.get(2)?,
                kind: row.get(3)?,
                at: Timestamp::from_unix_nanos(row.get(4)?),
                body: row.get(6)?,
            },
            audience: serde_json::from_str(&audience)
                .map_err(|error| sqlx::Error::Decode(error.into()))?,
        })
    }
}

/// The audience of an event, as JSON, by the topics at this point of the transaction.
pub(crate) async fn audience(
    connection: &mut Connection,
    event: &Event,
) -> Result<String, sqlx::Error> {
    let about = Topic::about(&Named::of(&event.body).object);
    let rows = connection
        .rows(
            state::AUDIENCE,
            &[
                Arg::Text(&event.account),
                Arg::Text(&event.kind),
                Arg::Text(Topic::EVERY),
                Arg::Text(&about),
            ],
        )
        .await?;
    let audience = rows
        .iter()
        .map(|row| Ok((row.get(0)?, row.get(1)?)))
        .collect::<Result<Vec<(String, String)>, sqlx::Error>>()?;
    serde_json::to_string(&audience).map_err(|error| sqlx::Error::Encode(error.into()))
}

/// Writes the row. False if the event's id exists.
pub(crate) async fn insert(
    connection: &mut Connection,
    seq: i64,
    event: &Event,
    audience: &str,
    hash: Option<&str>,
) -> Result<bool, sqlx::Error> {
    let named = Named::of(&event.body);
    let n_written = connection
        .run(
            state::TELL,
            &[
                Arg::Int(seq),
                Arg::Text(&event.id),
                Arg::Text(&event.account),
                Arg::Text(&event.kind),
                Arg::Int(event.at.unix_nanos()),
                Arg::Text(audience),
                Arg::Text(&event.body),
                Arg::MaybeText(hash),
                Arg::Text(&named.object),
                Arg::Text(&named.actor),
            ],
        )
        .await?;
    Ok(n_written > 0)
}

/// The hashed content of an event.
pub(crate) fn content<'a>(event: &'a Event, audience: &'a str) -> Content<'a> {
    Content {
        id: &event.id,
        account: &event.account,
        kind: &event.kind,
        happened_at: event.at.unix_nanos(),
        audience,
        body: &event.body,
    }
}

/// Chains at most `rows_max` rows up to `last` that an older version wrote without hashes. Returns the end of the
/// chain.
pub(crate) async fn chain(
    connection: &mut Connection,
    head: Link,
    last: i64,
    rows_max: i64,
) -> Result<Link, sqlx::Error> {
    let arguments = [Arg::Int(head.seq), Arg::Int(last), Arg::Int(rows_max)];
    let mut head = head;
    for row in connection.rows(state::AUDIT, &arguments).await? {
        let row = AuditRow::read(&row)?;
        head = head.next(row.seq, row.content());
        let hash = head.hash.to_string();
        let arguments = [Arg::Int(head.seq), Arg::Text(&hash)];
        connection.run(state::SET_HASH, &arguments).await?;
    }
    Ok(head)
}

/// Removes chained rows up to `up_to` that are in the tree, and keeps the link of the last one as the anchor of the rest. Returns how many.
pub(crate) async fn prune(
    connection: &mut Connection,
    head: Link,
    up_to: i64,
) -> Result<u64, sqlx::Error> {
    let tree = AuditTree::read_in(connection).await?;
    let up_to = [Arg::Int(up_to.min(head.seq).min(tree.last()))];
    let Some(row) = connection.row(state::LAST_UP_TO, &up_to).await? else {
        return Ok(0);
    };
    let (seq, hash): (i64, String) = (row.get(0)?, row.get(1)?);
    let n_removed = connection.run(state::PRUNE_OUTBOX, &up_to).await?;
    let anchor = [Arg::Int(seq), Arg::Text(&hash)];
    connection.run(state::ANCHOR, &anchor).await?;
    Ok(n_removed)
}
