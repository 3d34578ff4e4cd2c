//! Events are found by index, in both directions, and no page reads further than its limit.

use culvert_base::Clock as _;
use sqlx::{AssertSqlSafe, Row as _};

use super::on_both_engines;
use super::store::event;
use super::test_database::TestDatabase;
use crate::database::dialect::{Access, Connection};
use crate::database::statements::{
    AUDIT_NEWEST_OF, AUDIT_OLDEST_OF, SUMMARIES_OF_NEWEST, SUMMARIES_OF_OLDEST, events, state,
};
use crate::database::{Database, STATE};
use crate::{AuditKey, Changes, NewPiece, Order, Store, TrafficEnds};

on_both_engines!(
    audit_events_are_found_by_object_actor_and_kind,
    what_an_older_program_writes_is_indexed_later,
    pieces_are_found_by_endpoint,
    a_page_of_events_is_read_from_an_index_and_no_further,
);

/// Commits events about ten objects by three actors, in two kinds.
async fn tell(store: &Store, n_events: u32) {
    let mut changes = Changes::default();
    for n in 0..n_events {
        let mut event = event(&format!("k{}.v0", n % 2), &format!("ev_{n}"));
        let (object, actor) = (n % 10, n % 3);
        event.body = format!(
            r#"{{"event_id":"ev_{n}","principal":{{"id":"usr_{actor}"}},"object":{{"id":"ob_{object}"}}}}"#
        );
        changes = changes.and(Changes::event(event));
    }
    store.commit(changes).await.unwrap();
}

async fn found(store: &Store, key: AuditKey<'_>, order: Order, limit: u32) -> Vec<i64> {
    let log = store.audit_log();
    let last = log.extent().await.unwrap().last;
    let rows = log.page(key, order, 1..=last, limit).await.unwrap();
    for linked in &rows {
        let before = log.hash_at(linked.row.seq - 1).await.unwrap();
        let expected = before.filter(|_| linked.row.seq > 1);
        assert_eq!(linked.previous, expected);
    }
    rows.iter().map(|linked| linked.row.seq).collect()
}

async fn audit_events_are_found_by_object_actor_and_kind(db: &TestDatabase) {
    use Order::{NewestFirst, OldestFirst};
    let store = db.store().await;
    tell(&store, 30).await;
    assert!(store.audit_log().is_indexed().await.unwrap());
    let object = AuditKey::Object("ob_4");
    assert_eq!(found(&store, object, NewestFirst, 9).await, [25, 15, 5]);
    assert_eq!(found(&store, object, OldestFirst, 2).await, [5, 15]);
    assert_eq!(
        found(&store, AuditKey::Actor("usr_2"), NewestFirst, 2).await,
        [30, 27]
    );
    assert_eq!(
        found(&store, AuditKey::Kind("k1.v0"), OldestFirst, 3).await,
        [2, 4, 6]
    );
    assert_eq!(found(&store, AuditKey::All, NewestFirst, 2).await, [30, 29]);
    assert_eq!(found(&store, AuditKey::All, OldestFirst, 2).await, [1, 2]);
    assert!(
        found(&store, AuditKey::Object("ob_x"), NewestFirst, 9)
            .await
            .is_empty()
    );
    store.close().await;
}

async fn what_an_older_program_writes_is_indexed_later(db: &TestDatabase) {
    let store = db.store().await;
    tell(&store, 30).await;
    let mut connection = store
        .shared
        .database
        .site
        .connect(Access::Write)
        .await
        .unwrap();
    let older = "UPDATE outbox SET object_id = NULL, actor_id = NULL WHERE seq > 10";
    connection.script(older.to_owned()).await.unwrap();
    connection.close().await;
    assert!(!store.audit_log().is_indexed().await.unwrap());
    assert_eq!(store.index_events().await.unwrap(), 20);
    assert!(store.audit_log().is_indexed().await.unwrap());
    let object = AuditKey::Object("ob_4");
    assert_eq!(
        found(&store, object, Order::OldestFirst, 9).await,
        [5, 15, 25]
    );
    store.close().await;
}

async fn pieces_are_found_by_endpoint(db: &TestDatabase) {
    let queue = db.queue().await;
    let now = db.clock.now();
    let piece = |n: usize| NewPiece {
        first_at: now,
        last_at: now,
        endpoints: vec![format!("ep_{}", n % 3), "ep_all".to_owned()],
        summary: if n == 4 {
            Vec::new()
        } else {
            vec![u8::try_from(n).unwrap()]
        },
        body: format!("{n}").into_bytes(),
    };
    let ends = queue.traffic_ends().await.unwrap();
    assert_eq!((ends.first, ends.settled, ends.last), (1, 0, 0));
    queue
        .keep_traffic((0..9).map(piece).collect())
        .await
        .unwrap();
    let TrafficEnds { first, last, .. } = queue.traffic_ends().await.unwrap();
    assert_eq!(last - first, 8);
    use Order::{NewestFirst, OldestFirst};
    let summaries = async |endpoint, order, limit| -> Vec<(i64, Option<u8>)> {
        let pieces = queue
            .traffic_summaries(endpoint, order, first..=last, limit)
            .await
            .unwrap();
        assert!(pieces.iter().all(|piece| piece.last_at == now));
        let byte = |summary: Option<Vec<u8>>| summary.map(|summary| summary[0]);
        let pieces = pieces.into_iter();
        pieces
            .map(|piece| (piece.id - first, byte(piece.summary)))
            .collect()
    };
    // A program of an older format wrote no summary of the fifth.
    let of_one = [(7, Some(7)), (4, None), (1, Some(1))];
    assert_eq!(summaries(Some("ep_1"), NewestFirst, 9).await, of_one);
    assert_eq!(
        summaries(None, OldestFirst, 2).await,
        [(0, Some(0)), (1, Some(1))]
    );
    assert_eq!(summaries(None, NewestFirst, 1).await, [(8, Some(8))]);
    assert_eq!(
        summaries(Some("ep_1"), OldestFirst, 2).await,
        [(1, Some(1)), (4, None)]
    );
    assert!(summaries(Some("ep_x"), OldestFirst, 2).await.is_empty());
    // The bodies have nine bytes, and the summaries eight. They and the index rows are removed with their pieces.
    assert_eq!(queue.traffic().await.unwrap().bytes, 17);
    queue.prune_traffic(now, 2).await.unwrap();
    assert_eq!(
        summaries(Some("ep_all"), OldestFirst, 9).await,
        [(8, Some(8))]
    );
    assert_eq!(summaries(None, OldestFirst, 9).await, [(8, Some(8))]);
    queue.close().await;
}

async fn a_page_of_events_is_read_from_an_index_and_no_further(db: &TestDatabase) {
    let store = db.store().await;
    tell(&store, 1000).await;
    store.close().await;
    let queue = db.queue().await;
    let now = db.clock.now();
    let piece = |n: usize| NewPiece {
        first_at: now,
        last_at: now,
        endpoints: vec![format!("ep_{}", n % 50)],
        summary: vec![1],
        body: vec![0],
    };
    queue
        .keep_traffic((0..500).map(piece).collect())
        .await
        .unwrap();
    queue.close().await;
    for (part, statements) in [
        (
            STATE,
            vec![
                (Ok(state::AUDIT_NEWEST), "", ""),
                (Ok(state::AUDIT_OLDEST), "", ""),
                (Err(AUDIT_NEWEST_OF[0]), "'ob_4'", "outbox_object"),
                (Err(AUDIT_OLDEST_OF[0]), "'ob_4'", "outbox_object"),
                (Err(AUDIT_NEWEST_OF[1]), "'usr_2'", "outbox_actor"),
                (Err(AUDIT_OLDEST_OF[1]), "'usr_2'", "outbox_actor"),
                (Err(AUDIT_NEWEST_OF[2]), "'k1.v0'", "outbox_kind"),
                (Err(AUDIT_OLDEST_OF[2]), "'k1.v0'", "outbox_kind"),
                (Ok(state::UNINDEXED_ONE), "", "outbox_object"),
            ],
        ),
        (
            crate::queue::EVENTS,
            vec![
                (Ok(events::SUMMARIES_NEWEST), "", ""),
                (Ok(events::SUMMARIES_OLDEST), "", ""),
                (Err(SUMMARIES_OF_NEWEST), "'ep_7'", "traffic_endpoint"),
                (Err(SUMMARIES_OF_OLDEST), "'ep_7'", "traffic_endpoint"),
                (Ok(events::TRAFFIC_UNINDEXED), "", "traffic_unindexed"),
            ],
        ),
    ] {
        let database = Database::open(&db.url, part, &*db.clock).await.unwrap();
        let mut connection = database.site.connect(Access::Write).await.unwrap();
        for (sql, value, index) in statements {
            let arguments = ["1", "900", "100", value];
            let sql = sql.unwrap_or_else(|pair| database.site.spell(pair));
            let plan = plan(&mut connection, sql, &arguments).await;
            for slow in ["SCAN o", "SCAN t", "TEMP B-TREE", "Seq Scan", "Sort"] {
                let is_index =
                    plan.contains("USING INDEX") || plan.contains("USING COVERING INDEX");
                let is_walk = slow.starts_with("SCAN") && is_index;
                assert!(is_walk || !plan.contains(slow), "{sql}\n{plan}");
            }
            // SQLite does not name the index of a primary key.
            let is_by_key = plan.contains("PRIMARY KEY (endpoint=? AND piece>?");
            assert!(plan.contains(index) || is_by_key, "{sql}\n{plan}");
        }
        connection.close().await;
        database.close().await;
    }
}

/// The query plan as text.
async fn plan(connection: &mut Connection, sql: &str, arguments: &[&str]) -> String {
    let sql = (1..)
        .zip(arguments)
        .fold(sql.to_owned(), |sql, (n, argument)| {
            sql.replace(&format!("${n}"), argument)
        });
    let lines: Vec<String> = match connection {
        Connection::Sqlite(connection) => {
            let plan = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
            let rows = sqlx::raw_sql(plan).fetch_all(connection).await.unwrap();
            rows.iter().map(|row| row.get("detail")).collect()
        }
        Connection::Postgres(connection, _) => {
            // Otherwise the planner would scan a small table.
            let no_other_way = "SET enable_seqscan = off; SET enable_sort = off; \
                 SET enable_bitmapscan = off; SET enable_hashjoin = off; ANALYZE";
            sqlx::Executor::execute(&mut *connection, no_other_way)
                .await
                .unwrap();
            let plan = AssertSqlSafe(format!("EXPLAIN {sql}"));
            let rows = sqlx::raw_sql(plan).fetch_all(connection).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    };
    lines.join("\n")
}
