//! The traffic log.

use std::time::Duration;

use culvert_base::{Clock, Timestamp};
use culvert_tlog::TreeHash;
use sqlx::{Connection as _, PgConnection};

use crate::database::Database;
use crate::database::dialect::{Access, Arg, Connection};
use crate::database::statements::{BEGIN_KEEPING, events, transaction};
use crate::queue::{EVENTS, HASHES_KEPT, leaf};
use crate::tests::on_both_engines;
use crate::tests::test_database::TestDatabase;
use crate::{
    HashedTraffic, NewPiece, NewTrafficBody, PieceFound, Queue, RetainedTraffic, TrafficLog,
    TrafficState, UnrecordedTraffic,
};

on_both_engines!(
    traffic_is_kept_found_by_time_and_pruned_by_age_and_size,
    captured_messages_are_found_by_event_and_pruned_by_age_and_size,
    a_change_of_the_traffic_log_is_found_by_its_record,
    pieces_that_retention_removed_before_their_record_are_in_it,
    hashes_outlive_all_pieces_of_their_record,
    events_of_other_times_part_no_record,
    pieces_without_a_record_are_compared_with_their_hashes,
);

/// Only several nodes can commit in another order than they wrote. A SQLite file has one writer.
#[tokio::test]
async fn the_end_of_the_traffic_log_is_before_what_is_not_committed() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let queue = db.queue().await;
    let database = Database::open(&db.url, EVENTS, &*db.clock);
    let database = database.await.unwrap();
    let now = db.clock.now();
    let keep = async |text: &str| {
        let piece = NewPiece {
            first_at: now,
            last_at: now,
            endpoints: Vec::new(),
            summary: Vec::new(),
            body: text.as_bytes().to_vec(),
        };
        queue.keep_traffic(vec![piece]).await.unwrap();
    };
    let texts = async |last: i64| -> Vec<String> {
        let pieces = queue.traffic_pieces(0, last, 9).await.unwrap();
        let bodies = pieces.into_iter().filter_map(|piece| piece.body);
        bodies
            .map(|body| String::from_utf8(body).unwrap())
            .collect()
    };
    keep("first").await;
    let mut other_node = database.site.connect(Access::Write).await.unwrap();
    other_node.begin().await.unwrap();
    let begin = other_node.spell(BEGIN_KEEPING);
    other_node.row(begin, &[]).await.unwrap();
    let crc = i64::from(crc32fast::hash(b"early"));
    let [first_at, last_at, bytes, crc] = [1, 2, 5, crc].map(Arg::Int);
    let early = [first_at, last_at, bytes, crc, Arg::Blob(b"early")];
    other_node.run(events::KEEP_TRAFFIC, &early).await.unwrap();
    keep("late").await;
    // The other node may hang here; no one waits for it.
    let end = queue.traffic_ends().await.unwrap().settled;
    assert_eq!(texts(end).await, ["first"]);
    assert_eq!(queue.settled_traffic().await.unwrap().last, end);
    assert_eq!(queue.traffic().await.unwrap().last, end + 2);
    other_node.run(transaction::COMMIT, &[]).await.unwrap();
    let end = queue.traffic_ends().await.unwrap().settled;
    assert_eq!(texts(end).await, ["first", "early", "late"]);
}

/// A VACUUM of the table holds this lock, for hours on a slow disk.
#[tokio::test]
async fn the_traffic_log_is_read_during_maintenance() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let queue = db.queue().await;
    let database = Database::open(&db.url, EVENTS, &*db.clock);
    let mut vacuum = database
        .await
        .unwrap()
        .site
        .connect(Access::Write)
        .await
        .unwrap();
    vacuum.begin().await.unwrap();
    let lock = "LOCK TABLE traffic IN SHARE UPDATE EXCLUSIVE MODE";
    vacuum.run(lock, &[]).await.unwrap();
    let ends = queue.traffic_ends().await.unwrap();
    assert_eq!((ends.first, ends.settled, ends.last), (1, 0, 0));
    assert_eq!(queue.settled_traffic().await.unwrap().last, 0);
    vacuum.run(transaction::COMMIT, &[]).await.unwrap();
}

async fn traffic_is_kept_found_by_time_and_pruned_by_age_and_size(db: &TestDatabase) {
    let queue = db.queue().await;
    let at = |seconds| db.clock.now().plus(Duration::from_secs(seconds));
    assert_eq!(queue.traffic().await.unwrap().bytes, 0);
    assert_eq!(queue.traffic_since(at(0)).await.unwrap(), None);
    let pieces = (0..600u64).map(|n| NewPiece {
        first_at: at(10 * n),
        endpoints: Vec::new(),
        last_at: at(10 * n + 5),
        summary: Vec::new(),
        body: format!("{n:04}").into_bytes(),
    });
    queue.keep_traffic(pieces.collect()).await.unwrap();
    let RetainedTraffic { first, last, bytes } = queue.traffic().await.unwrap();
    assert_eq!((last - first, bytes), (599, 2400));
    let texts = async |after, limit| -> Vec<String> {
        let pieces = queue.traffic_pieces(after, last, limit).await.unwrap();
        let text = |body: Option<Vec<u8>>| String::from_utf8(body.unwrap()).unwrap();
        pieces.into_iter().map(|piece| text(piece.body)).collect()
    };
    assert_eq!(texts(first - 1, 2).await, ["0000", "0001"]);
    assert_eq!(texts(last - 1, 2).await, ["0599"]);
    assert_eq!(queue.traffic_since(at(6)).await.unwrap(), Some(first + 1));
    assert_eq!(queue.traffic_until(at(9)).await.unwrap(), Some(first));

    assert_eq!(queue.prune_traffic(at(16), u64::MAX).await.unwrap(), 2);
    assert_eq!(queue.prune_traffic(at(0), 8).await.unwrap(), 596);
    assert_eq!(texts(0, 9).await, ["0598", "0599"]);
    queue.close().await;
    let queue = db.queue().await;
    assert_eq!(queue.traffic().await.unwrap().bytes, 8);
    assert_eq!(queue.prune_traffic(at(100_000), 8).await.unwrap(), 2);
    assert_eq!(queue.traffic().await.unwrap().bytes, 0);
}

async fn captured_messages_are_found_by_event_and_pruned_by_age_and_size(db: &TestDatabase) {
    let queue = db.queue().await;
    let at = |seconds| db.clock.now().plus(Duration::from_secs(seconds));
    let new = |n: u64, body: &str| NewTrafficBody {
        event: format!("ev_{n}"),
        happened_at: at(n),
        body: body.as_bytes().to_vec(),
    };
    for first in (0..300).step_by(100) {
        let bodies = (first..first + 100).map(|n| new(n, &format!("{n:04}")));
        queue.keep_bodies(bodies.collect()).await.unwrap();
    }
    // A write that is repeated after an unknown outcome changes nothing.
    queue.keep_bodies(vec![new(7, "other")]).await.unwrap();
    assert_eq!(queue.traffic_body_bytes().await.unwrap(), 1200);
    let found = async |id: &str| queue.traffic_body(id).await.unwrap();
    assert_eq!(found("ev_7").await.as_deref(), Some(&b"0007"[..]));
    assert_eq!(found("ev_300").await, None);
    assert_eq!(queue.prune_bodies(at(2), u64::MAX).await.unwrap(), 2);
    assert_eq!(queue.prune_bodies(at(0), 8).await.unwrap(), 296);
    assert_eq!(found("ev_297").await, None);
    assert_eq!(found("ev_299").await.as_deref(), Some(&b"0299"[..]));
    queue.close().await;
    let queue = db.queue().await;
    assert_eq!(queue.traffic_body_bytes().await.unwrap(), 8);
    assert_eq!(queue.prune_bodies(at(10_000), 8).await.unwrap(), 2);
    assert_eq!(queue.traffic_body_bytes().await.unwrap(), 0);
}

const MINUTE: Duration = Duration::from_secs(60);

fn piece_at(at: Timestamp, text: &str) -> NewPiece {
    NewPiece {
        first_at: at,
        last_at: at,
        endpoints: Vec::new(),
        summary: Vec::new(),
        body: text.as_bytes().to_vec(),
    }
}

/// Keeps the pieces of `range`, ten minutes apart.
async fn keep_pieces(db: &TestDatabase, queue: &Queue, range: std::ops::RangeInclusive<u32>) {
    let began_at = db.clock.now();
    let pieces = range.map(|n| piece_at(began_at.plus(10 * n * MINUTE), &format!("piece {n}")));
    queue.keep_traffic(pieces.collect()).await.unwrap();
}

/// A connection that changes the database.
async fn attacker(db: &TestDatabase) -> (Database, Connection) {
    let database = Database::open(&db.url, EVENTS, &*db.clock);
    let database = database.await.unwrap();
    let connection = database.site.connect(Access::Write).await.unwrap();
    (database, connection)
}

async fn state_of(log: &TrafficLog, record: &HashedTraffic) -> TrafficState {
    let sha256 = culvert_base::text::hex(&record.root.0);
    let compared = log.compare((record.first, record.last), record.count, &sha256);
    compared.await.unwrap()
}

async fn a_change_of_the_traffic_log_is_found_by_its_record(db: &TestDatabase) {
    let queue = db.queue().await;
    let started_at = db.clock.now();
    assert_eq!(queue.hash_traffic(0, 9, 9).await.unwrap(), None);
    keep_pieces(db, &queue, 1..=6).await;
    let [one, two, six] = [1, 2, 6].map(|n| {
        let at = started_at.plus(10 * n * MINUTE).unix_nanos();
        leaf(at, at, format!("piece {n}").as_bytes())
    });
    let both = queue.hash_traffic(0, 2, 99).await.unwrap().unwrap();
    assert_eq!(both.root, TreeHash::node(one, two));
    let last = queue.hashed_traffic_ends().await.unwrap().settled;
    let record = queue.hash_traffic(0, last, 99).await.unwrap().unwrap();
    assert_eq!((record.first, record.last, record.count), (1, last, 6));
    assert_eq!(record.last_leaf, six);
    let [from, to] = [1, 6].map(|n| started_at.plus(10 * n * MINUTE));
    assert_eq!((record.from, record.to), (from, to));
    // A piece of a node that writes no hashes counts as the others, and gets its hash.
    let (database, mut other) = attacker(db).await;
    let forget = "DELETE FROM traffic_hash WHERE piece = 2".to_owned();
    other.script(forget).await.unwrap();
    let again = queue.hash_traffic(0, last, 99).await.unwrap().unwrap();
    assert_eq!(again, record);
    let row = other.row(events::TRAFFIC_HASH, &[Arg::Int(2)]).await;
    let stored: String = row.unwrap().unwrap().get(0).unwrap();
    assert_eq!(stored, two.to_string());

    let log = TrafficLog::open(&db.url).await.unwrap().unwrap();
    let same = TrafficState::Same { is_cut: false };
    assert_eq!(state_of(&log, &record).await, same);
    let body = match &database.site {
        crate::database::dialect::Site::Sqlite(_) => "CAST('forged' AS BLOB)",
        crate::database::dialect::Site::Postgres(_) => "convert_to('forged', 'UTF8')",
    };
    let crc = crc32fast::hash(b"forged");
    for change in [
        format!("UPDATE traffic SET body = {body}, crc = {crc} WHERE id = 3"),
        "DELETE FROM traffic WHERE id = 4".to_owned(),
        "UPDATE traffic SET first_at = 1 WHERE id = 2".to_owned(),
        "UPDATE traffic SET last_at = last_at + 1 WHERE id = 2".to_owned(),
        "UPDATE traffic SET id = 99 WHERE id = 5".to_owned(),
    ] {
        let keep = "CREATE TABLE kept AS SELECT * FROM traffic".to_owned();
        other.script(keep).await.unwrap();
        other.script(change.clone()).await.unwrap();
        assert_eq!(
            state_of(&log, &record).await,
            TrafficState::Changed,
            "{change}"
        );
        let restore =
            "DELETE FROM traffic; INSERT INTO traffic SELECT * FROM kept; DROP TABLE kept";
        other.script(restore.to_owned()).await.unwrap();
        assert_eq!(state_of(&log, &record).await, same, "{change}");
    }
    log.close().await;
    other.close().await;
    database.close().await;
    queue.close().await;
}

/// Anyone who fills the log makes retention remove pieces within the hour.
async fn pieces_that_retention_removed_before_their_record_are_in_it(db: &TestDatabase) {
    let queue = db.queue().await;
    let began_at = db.clock.now();
    keep_pieces(db, &queue, 1..=5).await;
    assert_eq!(queue.prune_traffic(began_at, 14).await.unwrap(), 3);
    assert_eq!(queue.traffic().await.unwrap().first, 4);
    let first_at = began_at.plus(10 * MINUTE);
    assert_eq!(queue.traffic_begins_at(0).await.unwrap(), Some(first_at));
    let record = queue.hash_traffic(0, 5, 99).await.unwrap().unwrap();
    assert_eq!((record.first, record.last, record.count), (1, 5, 5));
    let log = TrafficLog::open(&db.url).await.unwrap().unwrap();
    let cut = TrafficState::Same { is_cut: true };
    assert_eq!(state_of(&log, &record).await, cut);

    // Those of an empty log too.
    assert_eq!(queue.prune_traffic(began_at, 0).await.unwrap(), 2);
    let ends = queue.hashed_traffic_ends().await.unwrap();
    assert_eq!((ends.first, ends.settled, ends.last), (1, 5, 5));
    let again = queue.hash_traffic(0, ends.settled, 99).await.unwrap();
    assert_eq!(again.unwrap().root, record.root);
    let found = queue.traffic_piece(5).await.unwrap();
    assert_eq!(found, PieceFound::Leaf(record.last_leaf));
    log.close().await;
    queue.close().await;
}

/// A record spans at most an hour, and its hashes are there as long as one of its pieces is.
async fn hashes_outlive_all_pieces_of_their_record(db: &TestDatabase) {
    let queue = db.queue().await;
    let began_at = db.clock.now();
    keep_pieces(db, &queue, 1..=30).await;
    let record = queue.hash_traffic(0, 30, 99).await.unwrap().unwrap();
    assert_eq!((record.first, record.last, record.count), (1, 7, 7));
    let next = queue.hash_traffic(7, 30, 99).await.unwrap().unwrap();
    assert_eq!((next.first, next.last, next.count), (8, 14, 7));
    let log = TrafficLog::open(&db.url).await.unwrap().unwrap();
    let cut = TrafficState::Same { is_cut: true };
    for n in 2..=7 {
        let cutoff = began_at.plus(10 * n * MINUTE);
        queue.prune_traffic(cutoff, u64::MAX).await.unwrap();
        assert_eq!(state_of(&log, &record).await, cut, "{n}");
    }
    // The removal of old pieces with their hashes hides no change of the next piece.
    let (database, mut other) = attacker(db).await;
    let forge = "DELETE FROM traffic_hash WHERE piece < 7; UPDATE traffic SET crc = 0 WHERE id = 7";
    other.script(forge.to_owned()).await.unwrap();
    assert_eq!(state_of(&log, &record).await, TrafficState::Incomplete);
    let malformed = "UPDATE traffic_hash SET hash = 'x' WHERE piece = 7".to_owned();
    other.script(malformed).await.unwrap();
    let found = queue.traffic_piece(7).await.unwrap();
    assert_eq!(found, PieceFound::Malformed);

    let cutoff = began_at.plus(300 * MINUTE);
    queue.prune_traffic(cutoff, u64::MAX).await.unwrap();
    assert_eq!(state_of(&log, &record).await, TrafficState::Removed);
    // The hashes of the last removed pieces are kept.
    keep_pieces(db, &queue, 31..=1_000).await;
    queue.prune_traffic(began_at, 0).await.unwrap();
    let ends = queue.hashed_traffic_ends().await.unwrap();
    assert_eq!((ends.first, ends.last), (1_000 - HASHES_KEPT + 1, 1_000));
    let found = queue.traffic_piece(8).await.unwrap();
    assert_eq!(found, PieceFound::Removed);
    log.close().await;
    other.close().await;
    database.close().await;
    queue.close().await;
}

/// A connection keeps its time when the clock is set, so its events are of any time. They part no record, and retention
/// removes none of its hashes.
async fn events_of_other_times_part_no_record(db: &TestDatabase) {
    let queue = db.queue().await;
    let began_at = db.clock.now();
    let pieces = (1..=21_u32).map(|n| {
        let at = began_at.plus(n * MINUTE);
        let at = if n % 2 == 0 {
            at.minus(480 * MINUTE)
        } else {
            at
        };
        piece_at(at, &format!("piece {n}"))
    });
    queue.keep_traffic(pieces.collect()).await.unwrap();
    let record = queue.hash_traffic(0, 21, 99).await.unwrap().unwrap();
    assert_eq!((record.first, record.last, record.count), (1, 21, 21));
    let log = TrafficLog::open(&db.url).await.unwrap().unwrap();
    let cut = TrafficState::Same { is_cut: true };
    for n in 1..=20 {
        let bytes = queue.traffic().await.unwrap().bytes;
        let cutoff = began_at.minus(1_000 * MINUTE);
        assert_eq!(queue.prune_traffic(cutoff, bytes - 1).await.unwrap(), 1);
        assert_eq!(state_of(&log, &record).await, cut, "{n}");
    }
    log.close().await;
    queue.close().await;
}

async fn pieces_without_a_record_are_compared_with_their_hashes(db: &TestDatabase) {
    let queue = db.queue().await;
    let began_at = db.clock.now();
    keep_pieces(db, &queue, 1..=6).await;
    queue
        .prune_traffic(began_at.plus(15 * MINUTE), u64::MAX)
        .await
        .unwrap();
    let log = TrafficLog::open(&db.url).await.unwrap().unwrap();
    let times = [3, 6].map(|n| began_at.plus(10 * n * MINUTE));
    let expected = UnrecordedTraffic {
        count: 4,
        times: Some((times[0], times[1])),
        changed: None,
    };
    assert_eq!(log.unrecorded(2).await.unwrap(), expected);
    assert_eq!(log.unrecorded(0).await.unwrap().changed, None);
    // The first event of a connection from before the clock was set makes no piece old.
    let mut mixed = piece_at(times[1], "mixed");
    mixed.first_at = began_at.minus(480 * MINUTE);
    queue.keep_traffic(vec![mixed]).await.unwrap();
    assert_eq!(log.unrecorded(2).await.unwrap().times, expected.times);
    let begins_at = queue.traffic_begins_at(6).await.unwrap();
    assert_eq!(begins_at, Some(times[1]));
    let (database, mut other) = attacker(db).await;
    for (change, piece) in [
        ("UPDATE traffic SET first_at = first_at + 1 WHERE id = 5", 5),
        ("DELETE FROM traffic WHERE id = 4", 4),
    ] {
        other.script(change.to_owned()).await.unwrap();
        let changed = log.unrecorded(2).await.unwrap().changed;
        assert_eq!(changed, Some(piece), "{change}");
    }
    log.close().await;
    other.close().await;
    database.close().await;
    queue.close().await;
}

/// Every role that may connect can take any advisory lock.
#[tokio::test]
async fn a_lock_of_a_role_without_rights_hides_no_traffic() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let crate::database::store_url::StoreUrl::Postgres(url) = &db.url else {
        return;
    };
    let queue = db.queue().await;
    keep_pieces(&db, &queue, 1..=2).await;
    let name = url.rsplit_once('/').unwrap().1.replace("test_", "role_");
    let create = format!("CREATE ROLE {name} LOGIN PASSWORD 'x'");
    crate::tests::test_database::run(url, create).await.unwrap();
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, server) = rest.rsplit_once('@').unwrap();
    let foreign = format!("{scheme}://{name}:x@{server}");
    let mut foreign = PgConnection::connect(&foreign).await.unwrap();
    let lock = "SELECT pg_advisory_lock_shared(CAST(6518124 AS BIGINT) << 40)";
    sqlx::raw_sql(lock).execute(&mut foreign).await.unwrap();
    let settled = queue.settled_traffic().await.unwrap().last;
    // A role that may write pieces counts.
    let grant = format!(
        "GRANT USAGE ON SCHEMA culvert_events TO {name}; GRANT INSERT ON culvert_events.traffic TO {name}"
    );
    crate::tests::test_database::run(url, grant).await.unwrap();
    let held_back = queue.settled_traffic().await.unwrap().last;
    foreign.close().await.unwrap();
    let drop = format!("DROP OWNED BY {name}; DROP ROLE {name}");
    crate::tests::test_database::run(url, drop).await.unwrap();
    assert_eq!((settled, held_back), (2, 0));
    queue.close().await;
}
