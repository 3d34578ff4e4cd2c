//! A fail-over of PostgreSQL that loses commits: traffic continues, the API says why it waits, and the next change is in
//! force.

use std::os::unix::fs::symlink;
use std::path::Path;

use culvert_testing::Postgres;
use http::Method;
use ngrok::prelude::*;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use crate::agents::{Service, connect, credential, soon};
use crate::harness::{Backend, Harness, Receiver, eventually, raw};

/// Runs a statement that returns text.
async fn text(server: &Postgres, sql: &'static str) -> String {
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    let text = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
    connection.close().await.unwrap();
    text.unwrap()
}

/// Waits until a standby has all up to a position.
async fn replayed(standby: &Postgres, position: &str) {
    eventually("the standby has it", async || {
        let mut connection = PgConnection::connect(&standby.url()).await.unwrap();
        let has = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
        let has = sqlx::query_scalar::<_, bool>(has).bind(position);
        has.fetch_one(&mut connection).await.unwrap()
    })
    .await;
}

/// Makes the address lead to this server.
fn lead(address: &Path, server: &Path) {
    let new = address.with_extension("new");
    symlink(server, &new).unwrap();
    std::fs::rename(&new, address).unwrap();
}

/// Status and body of a readiness check.
async fn ready(culvert: &Harness, query: &str) -> (u16, Value) {
    let address = culvert.api.trim_start_matches("http://").parse().unwrap();
    let request = format!("GET /readyz{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let answer = raw(address, request.as_bytes()).await;
    let (_, body) = answer.text.split_once("\r\n\r\n").unwrap();
    (answer.status, serde_json::from_str(body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_after_a_fail_over_that_lost_commits_are_in_force() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [first, second, outer] = folders.each_ref().map(tempfile::TempDir::path);
    let Some(primary) = tokio::task::block_in_place(|| Postgres::start(first)) else {
        return;
    };
    let standby = tokio::task::block_in_place(|| primary.standby(second));
    let address = outer.join("current");
    lead(&address, first);
    let url = format!(
        "postgres://postgres@localhost/postgres?host={}",
        address.display()
    );
    let culvert = Harness::start(&Backend::Postgres(url)).await;
    let origin = Receiver::start().await;
    let kept = culvert.endpoint("kept", origin.address).await;
    let (_, token) = credential(&culvert, json!([])).await;
    let position = text(&primary, "SELECT pg_current_wal_lsn()::text").await;
    replayed(&standby, &position).await;
    let mut connection = PgConnection::connect(&standby.url()).await.unwrap();
    for sql in [
        "ALTER SYSTEM SET primary_conninfo = ''",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    }
    let receivers = "SELECT count(*)::text FROM pg_stat_wal_receiver";
    eventually("replication ends", async || {
        text(&standby, receivers).await == "0"
    })
    .await;
    for n in 0..8 {
        culvert.endpoint(&format!("lost{n}"), origin.address).await;
    }
    let service = Service::named("one").await;
    let session = connect(&culvert, &token).await;
    let mut endpoint = session.http_endpoint();
    endpoint
        .scheme(Scheme::HTTP)
        .domain("agent.culvert.localhost");
    let endpoint = endpoint.listen_and_forward(service.url());
    let _tunnel = soon("an endpoint", endpoint).await.unwrap();

    tokio::task::block_in_place(|| primary.stop());
    lead(&address, second);
    let create = |name: &str| {
        let url = format!("http://{name}.culvert.localhost");
        let upstream = format!("http://{}", origin.address);
        json!({"url": url, "upstream_url": upstream})
    };
    let refused = culvert.call(Method::POST, "/endpoints", Some(create("refused")));
    assert_eq!(refused.await.status, 503);
    eventually("the store is said to be a standby", async || {
        let (status, body) = ready(&culvert, "").await;
        status == 503 && body["parts"]["store"] == "a standby, which is read only"
    })
    .await;
    for role in ["edge", "agents"] {
        let (status, body) = ready(&culvert, &format!("?role={role}")).await;
        assert_eq!(status, 200, "{body}");
    }
    let served = culvert.get("kept.culvert.localhost", "/").await;
    assert_eq!(served.status, 200, "traffic needs no database");

    tokio::task::block_in_place(|| standby.promote());
    eventually("changes are accepted", async || {
        let answer = culvert.call(Method::POST, "/endpoints", Some(create("new")));
        answer.await.status == 201
    })
    .await;
    // Each of the next changes has the number of a lost one.
    eventually("a change is in force", async || {
        culvert.get("new.culvert.localhost", "/").await.status == 200
    })
    .await;
    let deny = json!({"on_http_request": [{"actions": [{"type": "deny"}]}]});
    let denied = json!({"traffic_policy": deny.to_string()});
    let path = format!("/endpoints/{}", kept["id"].as_str().unwrap());
    let changed = culvert.call(Method::PATCH, &path, Some(denied)).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    eventually("it denies", async || {
        culvert.get("kept.culvert.localhost", "/").await.status == 403
    })
    .await;
    for n in 0..8 {
        let lost = format!("lost{n}.culvert.localhost");
        assert_eq!(culvert.get(&lost, "/").await.status, 404, "{lost}");
    }
    eventually("the agent has its endpoint again", async || {
        culvert.get("agent.culvert.localhost", "/").await.status == 200
    })
    .await;
    eventually("all is usable", async || {
        let (status, body) = ready(&culvert, "").await;
        status == 200 && body["parts"]["history"] == "ok"
    })
    .await;
    eventually("the loss is in the audit log", async || {
        let found = culvert.call(Method::GET, "/events?type=commits_lost.v0", None);
        let found = found.await.body;
        found["events"]
            .as_array()
            .is_some_and(|events| events.len() == 1)
    })
    .await;

    // The former primary follows the new one, and then is the primary again. Nothing is lost. Without a checkpoint, the
    // new one does not say yet that its history is another.
    let mut connection = PgConnection::connect(&standby.url()).await.unwrap();
    let checkpoint = sqlx::raw_sql("CHECKPOINT").execute(&mut connection);
    checkpoint.await.unwrap();
    connection.close().await.unwrap();
    tokio::task::block_in_place(|| primary.follow(&standby));
    let position = text(&standby, "SELECT pg_current_wal_flush_lsn()::text").await;
    replayed(&primary, &position).await;
    tokio::task::block_in_place(|| standby.stop());
    lead(&address, first);
    tokio::task::block_in_place(|| primary.promote());
    eventually("changes are accepted", async || {
        let answer = culvert.call(Method::POST, "/endpoints", Some(create("back")));
        answer.await.status == 201
    })
    .await;
    for (name, status) in [("back", 200), ("new", 200), ("kept", 403), ("lost0", 404)] {
        eventually(name, async || {
            let host = format!("{name}.culvert.localhost");
            culvert.get(&host, "/").await.status == status
        })
        .await;
    }
    let found = culvert.call(Method::GET, "/events?type=commits_lost.v0", None);
    let found = found.await.body;
    assert_eq!(found["events"].as_array().unwrap().len(), 1, "{found}");
    culvert.stop().await;
}
