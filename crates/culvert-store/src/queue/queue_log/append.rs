//! Writes at the end: batches, cursors and pieces of the traffic log.

use culvert_base::Timestamp;

use super::{QueueLog, QueueOutcome, written};
use crate::commit::writer::Outcome;
use crate::database::dialect::{Arg, Connection, Row};
use crate::database::statements::{BEGIN_KEEPING, INDEX_PIECE, events};
use crate::queue::batch::{
    Body, CursorMove, Lease, MissingHash, NewBatch, NewPiece, QueueError, checksum, class_number,
    counted, leaf,
};

pub(super) async fn append(
    connection: &mut Connection,
    batches: &[NewBatch],
    cursor: Option<&CursorMove>,
    at: Timestamp,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    if let Some(CursorMove { name, from, to }) = cursor {
        let (name, from, to) = (Arg::Text(name), Arg::Int(*from), Arg::Int(*to));
        let mut n_moved = connection
            .run(events::MOVE_CURSOR, &[name, from, to])
            .await?;
        if n_moved == 0 && matches!(from, Arg::Int(0)) {
            n_moved = connection.run(events::START_CURSOR, &[name, to]).await?;
        }
        if n_moved == 0 {
            return Ok(Outcome::Refused(QueueError::Lost));
        }
    }
    for batch in batches {
        let arguments = [
            Arg::Text(&batch.destination),
            Arg::Int(class_number(batch.class)),
            Arg::Int(i64::from(batch.count)),
            Arg::Int(counted(&batch.body)),
            Arg::Int(checksum(&batch.body.stored)),
            Arg::Int(at.unix_nanos()),
        ];
        put(connection, events::APPEND, &arguments, &batch.body).await?;
    }
    Ok(Outcome::Written(QueueOutcome::Rows(0)))
}

/// Inserts a batch and its body. Returns the batch's id, followed by the result of the first insert.
pub(super) async fn put(
    connection: &mut Connection,
    sql: &'static str,
    arguments: &[Arg<'_>],
    body: &Body,
) -> Result<Row, sqlx::Error> {
    let row = connection.row(sql, arguments).await?;
    let row = row.ok_or(sqlx::Error::RowNotFound)?;
    let of_batch = [Arg::Int(row.get(0)?), Arg::Blob(&body.stored)];
    connection.run(events::PUT_BODY, &of_batch).await?;
    Ok(row)
}

pub(super) async fn append_leased(
    connection: &mut Connection,
    batch: &NewBatch,
    owner: &str,
    until: Timestamp,
    at: Timestamp,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let arguments = [
        Arg::Text(&batch.destination),
        Arg::Int(class_number(batch.class)),
        Arg::Int(i64::from(batch.count)),
        Arg::Int(counted(&batch.body)),
        Arg::Int(checksum(&batch.body.stored)),
        Arg::Int(at.unix_nanos()),
        Arg::Text(owner),
        Arg::Int(until.unix_nanos()),
    ];
    let row = put(connection, events::APPEND_LEASED, &arguments, &batch.body).await?;
    Ok(Outcome::Written(QueueOutcome::Lease(Some(Box::new(
        Lease {
            batch: row.get(0)?,
            destination: batch.destination.clone(),
            class: batch.class,
            count: batch.count,
            body: Vec::new(),
            attempt: 1,
            first_at: at,
            fence: row.get(1)?,
            why: None,
        },
    )))))
}

pub(super) async fn keep_traffic(
    connection: &mut Connection,
    pieces: &[NewPiece],
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let mut n = 0;
    let begin = connection.spell(BEGIN_KEEPING);
    connection.row(begin, &[]).await?;
    for piece in pieces {
        let arguments = [
            Arg::Int(piece.first_at.unix_nanos()),
            Arg::Int(piece.last_at.unix_nanos()),
            Arg::Int(length(&piece.body).saturating_add(length(&piece.summary))),
            Arg::Int(checksum(&piece.body)),
            Arg::Blob(&piece.body),
        ];
        let row = connection.row(events::KEEP_TRAFFIC, &arguments).await?;
        let id: i64 = row.ok_or(sqlx::Error::RowNotFound)?.get(0)?;
        index_piece(connection, id, &piece.endpoints).await?;
        if !piece.summary.is_empty() {
            let arguments = [Arg::Int(id), Arg::Blob(&piece.summary)];
            connection
                .run(events::SUMMARIZE_TRAFFIC, &arguments)
                .await?;
        }
        let times = (piece.first_at.unix_nanos(), piece.last_at.unix_nanos());
        let hash = leaf(times.0, times.1, &piece.body).to_string();
        let arguments = [Arg::Int(id), Arg::Int(times.1), Arg::Text(&hash)];
        connection.run(events::HASH_TRAFFIC, &arguments).await?;
        n += 1;
    }
    Ok(written(n))
}

/// Adds hashes to pieces that have none.
pub(super) async fn hash_traffic(
    connection: &mut Connection,
    hashes: &[MissingHash],
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let mut n = 0;
    for MissingHash {
        piece,
        last_at,
        hash,
    } in hashes
    {
        let hash = hash.to_string();
        let arguments = [Arg::Int(*piece), Arg::Int(*last_at), Arg::Text(&hash)];
        n += connection
            .run(events::HASH_TRAFFIC_LATER, &arguments)
            .await?;
    }
    Ok(written(n))
}

/// Indexes a piece by the endpoints of its events.
async fn index_piece(
    connection: &mut Connection,
    piece: i64,
    endpoints: &[String],
) -> Result<(), sqlx::Error> {
    if endpoints.is_empty() {
        return Ok(());
    }
    let endpoints =
        serde_json::to_string(endpoints).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let arguments = [Arg::Int(piece), Arg::Text(&endpoints)];
    let sql = connection.spell(INDEX_PIECE);
    connection.run(sql, &arguments).await.map(drop)
}

pub(super) fn length(body: &[u8]) -> i64 {
    i64::try_from(body.len()).unwrap_or(i64::MAX)
}
