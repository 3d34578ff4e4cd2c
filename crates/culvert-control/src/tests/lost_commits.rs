//! A database that lost commits, as after a fail-over to a standby without them.

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;

use super::uses::Database;
use super::*;

const SAVE: &str = "CREATE SCHEMA saved; DO $$ DECLARE t text; BEGIN \
     FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'culvert' LOOP \
       EXECUTE format('CREATE TABLE saved.%I AS TABLE culvert.%I', t, t); \
     END LOOP; END $$";
const RESTORE: &str = "DO $$ DECLARE t text; BEGIN \
     SET LOCAL session_replication_role = replica; \
     FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'saved' LOOP \
       EXECUTE format('DELETE FROM culvert.%I', t); \
       EXECUTE format('INSERT INTO culvert.%I SELECT * FROM saved.%I', t, t); \
     END LOOP; END $$";

#[tokio::test]
async fn changes_after_a_loss_of_commits_reach_the_edge() {
    let Some(database) = Database::new("lost").await else {
        return;
    };
    let rig = Rig::on(Some(database.url.clone()), None, AGENTS).await;
    let cancel = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));
    let ids = || {
        let snapshot = rig.edge.0.borrow();
        let all = snapshot.iter().flat_map(culvert_edge::Snapshot::endpoints);
        all.map(|one| one.id.clone()).collect::<BTreeSet<_>>()
    };
    let add = async |n: u32| {
        let body = rig.sample("endpoints", n).await;
        rig.post("/endpoints", body).await.body()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let applied = async || rig.control.is_applied(culvert_testing::PATIENCE).await;
    let rule = async |id: &str| rig.get(&format!("/endpoints/{id}")).await.body();

    let kept = add(1).await;
    database.run(SAVE).await;
    let mut lost = Vec::new();
    for n in 2..8 {
        lost.push(add(n).await);
    }
    let path = format!("/endpoints/{kept}");
    rig.patch(&path, json!({"description": "lost"})).await;
    assert!(applied().await);
    assert_eq!(ids().len(), 7);
    database.run(RESTORE).await;

    // Its revision is below those that the edge had applied.
    let new = add(9).await;
    assert!(applied().await);
    assert_eq!(ids(), BTreeSet::from([kept.clone(), new.clone()]));
    assert_ne!(rule(&kept).await["description"], "lost");
    rig.delete(&path).await;
    assert!(applied().await);
    assert_eq!(ids(), BTreeSet::from([new]));
    assert!(!rig.control.is_reading_again());
    eventually("the loss is recorded once", async || {
        let rows = rig.store.outbox_after(0, 1_000).await.unwrap();
        let told = rows
            .iter()
            .filter(|row| row.event.kind == "commits_lost.v0");
        told.count() == 1
    })
    .await;
    cancel.cancel();
    tasks.join_next().await.unwrap().unwrap();
    rig.store.close().await;
    rig.queue.close().await;
    database.remove().await;
}
