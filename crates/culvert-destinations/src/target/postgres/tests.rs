use culvert_base::batch::BatchClass;
use culvert_base::{Entropy, OsEntropy};
use serde_json::json;
use url::Url;

use super::*;
use crate::tests::fake::{
    assert_connections_have_a_life, batch, envelope, failure, local_settings, target,
};

/// The server of the suite and a client; `None`, reported as ignored, if there is no server.
async fn server() -> Option<(Url, Client, JoinSet<()>)> {
    let url = std::env::var_os("CULVERT_TEST_POSTGRES_URL");
    let url = url.and_then(|url| url.into_string().ok());
    let url = url.unwrap_or_else(|| "postgres://postgres@127.0.0.1:5432/postgres".into());
    let Ok((client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await
    else {
        culvert_testing::ignore("PostgreSQL does not answer; set CULVERT_TEST_POSTGRES_URL");
        return None;
    };
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    Some((Url::parse(&url).unwrap(), client, driver))
}

fn config(server: &Url, table: &str, more: Value) -> Value {
    let place = format!(
        "postgres://{}:{}{}",
        server.host_str().unwrap(),
        server.port().unwrap_or(5432),
        server.path()
    );
    let password = server.password();
    let mut config = json!({"url": place, "tls": false, "user": server.username(), "password": password, "table": table});
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

fn name() -> String {
    let entropy: &dyn Entropy = &OsEntropy;
    format!(
        "culvert_target_{}",
        entropy.text(b"abcdefghijklmnopqrstuvwxyz", 12)
    )
}

#[tokio::test]
async fn events_become_rows_and_repeated_events_are_ignored() {
    let Some((server, client, _driver)) = server().await else {
        return;
    };
    let table = name();
    let postgres = target(&TYPE, &config(&server, &table, json!({})), |_| {});
    let who = r#"{"event_id":"ev_9","event_type":"api_key_created.v0","event_timestamp":"2027-01-15T07:59:59.123Z","account_id":"ac_1","principal":{"id":"usr_1"},"object":{"n":3}}"#;
    let events = [envelope(1, "2027-01-15T08:00:00.000Z"), who.to_owned()];
    let batch = batch(BatchClass::Audit, &[&events[0], &events[1]]);
    for _ in 0..2 {
        assert_eq!(postgres.send(&batch).await, Verdict::Delivered);
    }
    let rows = client
        .query(
            &format!("SELECT event_id, subscription_id, event_type, principal->>'id', (object->>'n')::int, \
                      extract(epoch FROM event_timestamp)::float8 FROM {table} ORDER BY event_timestamp"),
            &[],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].get::<_, &str>(0), "ev_9");
    assert_eq!(rows[0].get::<_, &str>(1), "esb_1");
    assert_eq!(rows[0].get::<_, &str>(2), "api_key_created.v0");
    assert_eq!(rows[0].get::<_, Option<&str>>(3), Some("usr_1"));
    assert_eq!(rows[0].get::<_, Option<i32>>(4), Some(3));
    assert!((rows[0].get::<_, f64>(5) - 1_799_999_999.123).abs() < 1e-3);
    assert_eq!(rows[1].get::<_, Option<&str>>(3), None);

    // A text that the database cannot store is the event's fault. The next batch is delivered.
    let nul = who.replace("ev_9", "ev_10").replace("usr_1", "a\\u0000b");
    let bad = crate::tests::fake::batch(BatchClass::Audit, &[&nul]);
    assert_eq!(
        failure(postgres.send(&bad).await).class,
        FailureClass::Permanent
    );
    assert_eq!(postgres.send(&batch).await, Verdict::Delivered);

    // The table is dropped while a connection is kept open.
    client
        .batch_execute(&format!("DROP TABLE {table}"))
        .await
        .unwrap();
    assert_eq!(
        failure(postgres.send(&batch).await).class,
        FailureClass::Config
    );
    assert_eq!(postgres.send(&batch).await, Verdict::Delivered, "made anew");
    client
        .batch_execute(&format!("DROP TABLE {table}"))
        .await
        .unwrap();
}

#[tokio::test]
async fn missing_tables_and_refused_users_are_classified() {
    let Some((server, client, _driver)) = server().await else {
        return;
    };
    let events = [envelope(1, "2027-01-15T08:00:00.000Z")];
    let batch = batch(BatchClass::Audit, &[&events[0]]);
    let send = async |config: Value| failure(target(&TYPE, &config, |_| {}).send(&batch).await);
    let table = name();
    let missing = send(config(&server, &table, json!({"create_table": false}))).await;
    assert_eq!(
        (missing.class, missing.code.as_str()),
        (FailureClass::Config, "42P01")
    );
    let mut elsewhere = server.clone();
    elsewhere.set_path("/culvert_no_such_database");
    let missing = send(config(&elsewhere, &table, json!({}))).await;
    assert_eq!(
        (missing.class, missing.code.as_str()),
        (FailureClass::Config, "3D000")
    );
    let role = name();
    let unknown = send(config(&server, &table, json!({"user": role}))).await;
    assert_eq!(unknown.class, FailureClass::Auth, "{unknown}");
    drop(client);
}

#[test]
fn invalid_configurations_are_refused() {
    let good = json!({"url": "postgres://db.example/events", "user": "u"});
    let stored = check(&good, &TargetSettings::default(), &OsEntropy)
        .unwrap()
        .stored;
    assert_eq!(stored["table"], "culvert_events");
    assert_eq!(stored["tls"], true);
    for (field, value, says) in [
        (
            "url",
            json!("postgres://u:p@db.example/events"),
            "user or password",
        ),
        ("url", json!("postgres://10.0.0.1/events"), "private"),
        ("url", json!("postgres://db.example"), "database name"),
        ("url", json!("postgres://db.example/a/b"), "database name"),
        (
            "url",
            json!("postgres://db.example/a?sslmode=disable"),
            "query",
        ),
        ("url", json!("mysql://db.example/a"), "must start with"),
        ("tls", json!(false), "`tls` must be on"),
        ("user", json!(""), "`user`"),
        ("table", json!("a;DROP TABLE b"), "`table`"),
        ("table", json!("a.b.c"), "`table`"),
        ("table", json!("1a"), "`table`"),
    ] {
        let mut given = good.clone();
        given[field] = value;
        let refusal = check(&given, &TargetSettings::default(), &OsEntropy).unwrap_err();
        assert!(
            refusal.message.contains(says),
            "{given}: {}",
            refusal.message
        );
    }
    let plain = json!({"url": "postgresql://127.0.0.1:6000/events", "user": "u", "tls": false});
    check(&plain, &local_settings(), &OsEntropy).unwrap();
}

#[tokio::test]
async fn a_busy_connection_is_replaced() {
    let Some((server, client, _driver)) = server().await else {
        return;
    };
    let table = name();
    let mut config = config(&server, &table, json!({}));
    let url = config["url"].as_str().unwrap();
    config["url"] = url.replace("127.0.0.1", "db.example").into();
    assert_connections_have_a_life(&TYPE, &config).await;
    let count = format!("SELECT count(*) FROM {table}");
    let count: i64 = client.query_one(&count, &[]).await.unwrap().get(0);
    assert_eq!(count, 4);
    let drop = format!("DROP TABLE {table}");
    client.batch_execute(&drop).await.unwrap();
}
