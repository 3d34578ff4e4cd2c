//! A copy of the documents of the edge compiles to the same snapshot as the database.

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::CopyEntry;
use crate::compile::copied::{CopySource, fill_from_copy};

/// What distinguishes a snapshot for traffic.
fn shown(snapshot: &culvert_edge_config::Snapshot) -> BTreeSet<String> {
    let endpoints = snapshot.endpoints().map(|endpoint| {
        let has_policy = endpoint.policy.is_some();
        format!(
            "{} {:?} {} {has_policy}",
            endpoint.id, endpoint.host, endpoint.owner
        )
    });
    let restrictions = snapshot.restrictions().iter();
    let restrictions =
        restrictions.map(|one| format!("{} {} {:?}", one.id, one.enforced, one.admitted));
    let certified = snapshot.certified().map(|name| format!("{name:?}"));
    endpoints.chain(restrictions).chain(certified).collect()
}

/// The first snapshot that a compilation publishes.
async fn first<F: Future<Output = ()> + Send + 'static>(
    rig: &Rig,
    run: impl FnOnce(Arc<Control>, CancellationToken) -> F,
) -> BTreeSet<String> {
    let cancel = CancellationToken::new();
    let mut snapshots = rig.edge.0.subscribe();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(run(rig.control.clone(), cancel.clone()));
    let published = snapshots.wait_for(Option::is_some);
    let published = tokio::time::timeout(culvert_testing::PATIENCE, published);
    let found = shown(published.await.unwrap().unwrap().as_ref().unwrap());
    cancel.cancel();
    tasks.join_next().await;
    found
}

async fn all(rig: &Rig) -> (CopySource, Vec<CopyEntry>) {
    let mut source = CopySource::new(rig.store.clone());
    let mut entries = Vec::new();
    let push = |entry| {
        entries.push(entry);
        Ok(())
    };
    source.all(push).await.unwrap();
    (source, entries)
}

#[tokio::test]
async fn a_copy_compiles_to_the_snapshot_of_the_database() {
    let rig = Rig::start().await;
    for collection in [
        "certificate_authorities",
        "ip_policies",
        "ip_policy_rules",
        "ip_restrictions?force=true",
        "vaults",
        "vault_secrets",
        "tls_certificates",
        "reserved_domains",
        "endpoints",
        "grants",
    ] {
        let (name, _) = collection.split_once('?').unwrap_or((collection, ""));
        for n in 1..3 {
            let mut body = rig.sample(name, n).await;
            if name == "ip_restrictions" {
                body["type"] = ["endpoints", "agent"][(n - 1) as usize].into();
                body["enforced"] = true.into();
                let rule = json!({
                    "ip_policy_id": body["ip_policy_ids"][0], "action": "allow", "cidr": "192.0.2.0/24",
                });
                rig.post("/ip_policy_rules", rule).await.body();
            }
            rig.post(&format!("/{collection}"), body).await.body();
        }
    }
    let (_, entries) = all(&rig).await;
    let text = format!("{entries:?}");
    assert!(!text.contains('@'), "an address of a user: {text}");
    let of_database = first(&rig, |control, stop| control.run(stop)).await;
    assert!(of_database.len() >= 3, "{of_database:?}");

    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::Sqlite(folder.path().join("state.db"));
    let store = Store::open(&url, rig.clock.clone(), texts()).await.unwrap();
    fill_from_copy(entries, &store).await.unwrap();
    store.close().await;
    let copied = Rig::on(Some(url), None, AGENTS).await;
    let of_copy = first(&copied, |control, stop| control.run_copy(stop)).await;
    assert_eq!(of_copy, of_database);
}

#[tokio::test]
async fn changes_follow_a_copy() {
    let rig = Rig::start().await;
    let (mut source, before) = all(&rig).await;
    assert_eq!(source.changes().await.unwrap(), Some(Vec::new()));
    let body = rig.sample("ip_policies", 1).await;
    let policy = rig.post("/ip_policies", body).await.body();
    let id = policy["id"].as_str().unwrap().to_owned();
    // A kind that the edge does not need.
    rig.post("/api_keys", json!({})).await.body();
    let changes = source.changes().await.unwrap().unwrap();
    let [CopyEntry::Put(document)] = &changes[..] else {
        panic!("{changes:?}");
    };
    assert_eq!(document.head.id, id);
    assert!(document.keys.is_empty() && document.refs.is_empty());
    rig.delete(&format!("/ip_policies/{id}")).await;
    let removed = Some(vec![CopyEntry::Remove { id }]);
    assert_eq!(source.changes().await.unwrap(), removed);
    // One that comes and goes between two looks was never there.
    let body = rig.sample("ip_policies", 2).await;
    let policy = rig.post("/ip_policies", body).await.body();
    rig.delete(&format!("/ip_policies/{}", policy["id"].as_str().unwrap()))
        .await;
    assert_eq!(source.changes().await.unwrap(), Some(Vec::new()));
    let (_, after) = all(&rig).await;
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_copy_without_an_authority_is_refused() {
    let rig = Rig::start().await;
    let (_, mut entries) = all(&rig).await;
    entries.retain(
        |entry| !matches!(entry, CopyEntry::Put(document) if document.head.kind == "authority"),
    );
    let empty = Rig::start().await;
    let error = fill_from_copy(entries, &empty.store).await.unwrap_err();
    assert!(error.chain().contains("certificate authority"), "{error:?}");
}
