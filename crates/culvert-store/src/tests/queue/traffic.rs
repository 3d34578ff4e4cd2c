//! The traffic log.

use std::time::Duration;

use culvert_base::Clock;
use culvert_tlog::TreeHash;

use crate::database::Database;
use crate::database::dialect::{Access, Arg};
use crate::database::statements::{BEGIN_KEEPING, events, transaction};
use crate::queue::{EVENTS, leaf};
use crate::tests::on_both_engines;
use crate::tests::test_database::TestDatabase;
use crate::{NewPiece, NewTrafficBody, RetainedTraffic, TrafficLog, TrafficState};

on_both_engines!(
    traffic_is_kept_found_by_time_and_pruned_by_age_and_size,
    captured_messages_are_found_by_event_and_pruned_by_age_and_size,
    a_change_of_the_traffic_log_is_found_by_its_record,
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

async fn a_change_of_the_traffic_log_is_found_by_its_record(db: &TestDatabase) {
    let queue = db.queue().await;
    let started_at = db.clock.now();
    let hour = Duration::from_secs(3_600);
    assert_eq!(queue.hash_traffic(0, 9, 9).await.unwrap(), None);
    let keep = async |n: u32| {
        let at = started_at.plus(n * hour);
        let piece = NewPiece {
            first_at: at,
            last_at: at,
            endpoints: Vec::new(),
            body: format!("piece {n}").into_bytes(),
        };
        queue.keep_traffic(vec![piece]).await.unwrap();
    };
    for n in 1..=6 {
        keep(n).await;
    }
    let [one, two] = [1, 2].map(|n| {
        let at = started_at.plus(n * hour).unix_nanos();
        leaf(at, at, format!("piece {n}").as_bytes())
    });
    let both = queue.hash_traffic(0, 2, 99).await.unwrap().unwrap();
    assert_eq!(both.root, TreeHash::node(one, two));
    let last = queue.settled_traffic().await.unwrap().last;
    let record = queue.hash_traffic(0, last, 99).await.unwrap().unwrap();
    assert_eq!((record.first, record.last, record.count), (1, last, 6));
    let [from, to] = [1, 6].map(|n| started_at.plus(n * hour));
    assert_eq!((record.from, record.to), (from, to));
    // A piece of a node that writes no hashes counts as the others.
    let database = Database::open(&db.url, EVENTS, &*db.clock);
    let database = database.await.unwrap();
    let mut other = database.site.connect(Access::Write).await.unwrap();
    let forget = "DELETE FROM traffic_hash WHERE piece = 2".to_owned();
    other.script(forget).await.unwrap();
    let again = queue.hash_traffic(0, last, 99).await.unwrap().unwrap();
    assert_eq!(again, record);

    let log = TrafficLog::open(&db.url).await.unwrap().unwrap();
    let sha256 = culvert_base::text::hex(&record.root.0);
    let state = async || {
        let compared = log.compare((record.first, record.last), record.count, &sha256);
        compared.await.unwrap()
    };
    assert_eq!(state().await, TrafficState::Same);
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
        assert_eq!(state().await, TrafficState::Changed, "{change}");
        let restore =
            "DELETE FROM traffic; INSERT INTO traffic SELECT * FROM kept; DROP TABLE kept";
        other.script(restore.to_owned()).await.unwrap();
        assert_eq!(state().await, TrafficState::Same, "{change}");
    }

    // Retention removes the oldest, and their hashes two hours later.
    let cutoff = |n: u32| started_at.plus(n * hour);
    for (n, expected) in [
        (2, TrafficState::Same),
        (3, TrafficState::Same),
        (6, TrafficState::Incomplete),
        (7, TrafficState::Removed),
    ] {
        // The hash of the second was removed above.
        if n == 2 {
            let late = cutoff(2).unix_nanos();
            let known = format!("INSERT INTO traffic_hash VALUES (2, {late}, '{two}')");
            other.script(known).await.unwrap();
        }
        queue.prune_traffic(cutoff(n), u64::MAX).await.unwrap();
        assert_eq!(state().await, expected, "{n}");
    }
    log.close().await;
    other.close().await;
    database.close().await;
    queue.close().await;
}
