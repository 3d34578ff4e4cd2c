//! Both engines can prepare every statement on the migrated tables.

use sqlx::postgres::{PgConnection, PgTypeInfo};
use sqlx::{AssertSqlSafe, Executor as _, Row as _, SqlSafeStr as _, SqlStr};

use super::on_both_engines;
use super::store::document;
use super::test_database::TestDatabase;
use crate::database::dialect::{Access, Connection};
use crate::database::statements::{PAIRS, TEXTS_ONE_OF, WRITTEN_SINCE, events, meta, state};
use crate::database::{Database, DatabasePart};
use crate::{AuditEvent, Changes, Document, OnDelete, Ref};

on_both_engines!(
    every_statement_is_prepared,
    a_page_is_read_from_an_index_and_no_further,
);

async fn every_statement_is_prepared(db: &TestDatabase) {
    for (part, statements) in [
        (crate::database::STATE, [state::ALL, meta::ALL]),
        (crate::queue::EVENTS, [events::ALL, meta::ALL]),
    ] {
        prepare(db, part, &statements.concat()).await;
    }
}

async fn prepare(db: &TestDatabase, part: DatabasePart, statements: &[&'static str]) {
    let database = Database::open(&db.url, part, &*db.clock).await.unwrap();
    let pairs = PAIRS
        .iter()
        .filter(|pair| match part.file {
            None => !["batch", "FROM body", "traffic"]
                .iter()
                .any(|one| pair.sqlite.contains(one)),
            Some(_) => !["document", "outbox"]
                .iter()
                .any(|one| pair.sqlite.contains(one)),
        })
        .map(|pair| database.site.spell(*pair));
    let mut connection = database.site.connect(Access::Write).await.unwrap();
    for sql in statements.iter().copied().chain(pairs) {
        let prepared = match &mut connection {
            Connection::Sqlite(connection) => connection.prepare(text(sql)).await.map(drop),
            Connection::Postgres(connection, _) => prepare_typed(connection, sql).await,
        };
        if let Err(error) = prepared {
            panic!("{error}: {sql}");
        }
    }
    connection.close().await;
    database.close().await;
}

/// Arguments in a select list have only the type with which they are sent.
async fn prepare_typed(
    connection: &mut PgConnection,
    sql: &'static str,
) -> Result<(), sqlx::Error> {
    let types: &[&'static str] = match sql {
        events::APPEND => &["text", "int8", "int8", "int8", "int8", "int8"],
        events::INSERT_DEAD_LETTER => &["int8", "int8", "int8", "text", "text", "text", "bytea"],
        events::REDRIVE => &["int8", "int8"],
        _ => &[],
    };
    let types: Vec<PgTypeInfo> = types
        .iter()
        .map(|name| PgTypeInfo::with_name(name))
        .collect();
    connection.prepare_with(text(sql), &types).await.map(drop)
}

fn text(sql: &'static str) -> SqlStr {
    sql.into_sql_str()
}

/// The query plans of pages on large tables: an index returns the rows in order, so reading stops
/// at the limit.
async fn a_page_is_read_from_an_index_and_no_further(db: &TestDatabase) {
    let store = db.store().await;
    let nothing = || AuditEvent::Suppress { reason: "a test" };
    let owner = document("own", "own_1");
    store
        .commit(Changes::insert(owner, nothing()))
        .await
        .unwrap();
    for batch in 0..10 {
        let items = (0..100).map(|n| Document {
            refs: ["a", "b"]
                .map(|field| Ref::new(field, "own_1", OnDelete::Block))
                .into(),
            body: r#"{"name":"same"}"#.to_owned(),
            ..document("item", &format!("item_{batch}{n:02}"))
        });
        let changes = items.fold(Changes::default(), |changes, item| {
            changes.and(Changes::insert(item, nothing()))
        });
        store.commit(changes).await.unwrap();
    }
    store.close().await;

    let database = Database::open(&db.url, crate::database::STATE, &*db.clock)
        .await
        .unwrap();
    let mut connection = database.site.connect(Access::Write).await.unwrap();
    for sql in [
        state::PAGE,
        state::PAGE_OF_REFERRERS,
        state::COUNT_REFERRERS,
        state::CHANGED,
        state::COUNT,
        state::COUNT_UNTIL,
        state::IDS,
        state::PAGE_BY_TEXT,
        state::TEXTS_BETWEEN,
        state::SOME_CHANGED,
        state::CHANGED_AT,
    ] {
        let plan = plan(&mut connection, sql).await;
        for slow in ["SCAN ", "TEMP B-TREE", "Seq Scan", "Sort"] {
            assert!(!plan.contains(slow), "{sql}\n{plan}");
        }
    }
    let by_values = plan(&mut connection, database.site.spell(TEXTS_ONE_OF)).await;
    assert!(by_values.contains("document_text_value"), "{by_values}");
    assert!(!by_values.contains("Seq Scan"), "{by_values}");
    let by_keys = plan(&mut connection, database.site.spell(WRITTEN_SINCE)).await;
    for slow in ["SCAN k", "SCAN d", "Seq Scan"] {
        assert!(!by_keys.contains(slow), "{by_keys}");
    }
    connection.close().await;
    database.close().await;
}

/// The query plan as text.
async fn plan(connection: &mut Connection, sql: &str) -> String {
    let arguments: &[&str] = match sql {
        state::COUNT_REFERRERS => &["'own_1'"],
        state::CHANGED | state::COUNT_UNTIL => &["'item'", "5"],
        state::COUNT | state::IDS => &["'item'"],
        state::SOME_CHANGED => &["'item'", "5", "9"],
        state::CHANGED_AT => &["'item'", "5"],
        state::PAGE_BY_TEXT => &["'item'", "'ac_1'", "'item_500'", "100", "'name'", "'same'"],
        state::TEXTS_BETWEEN => &["'item'", "'ac_1'", "'name'", "100", "'sa'", "'sb'"],
        sql if sql.contains("document_key") => &["'item'", "'name'", "'[\"same\"]'", "5"],
        sql if sql.contains("document_text") => {
            &["'item'", "'ac_1'", "'name'", "100", "'[\"same\"]'"]
        }
        _ => &["'item'", "'ac_1'", "'item_500'", "100", "'own_1'"],
    };
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
            // These settings disable everything but an index, if one can be used. Otherwise the
            // planner would scan a small table.
            let no_other_way = "SET enable_seqscan = off; SET enable_sort = off; \
                 SET enable_bitmapscan = off; SET enable_hashjoin = off; ANALYZE";
            connection.execute(no_other_way).await.unwrap();
            let plan = AssertSqlSafe(format!("EXPLAIN {sql}"));
            let rows = sqlx::raw_sql(plan).fetch_all(connection).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    };
    lines.join("\n")
}
