//! The tree over the audit log: what it is made of, proofs, pruning, several nodes, and a history that is written again.

use std::time::Duration;

use culvert_tlog::{
    AddCheckpoint, Declined, Edge, KeyType, KnownTree, Policy, SignedCheckpoint, SigningKey,
    TreeHash, consistency_ranges, judge, verify_consistency,
};
use tokio::task::JoinSet;

use super::audit::script;
use super::store::{at, event};
use super::test_database::TestDatabase;
use super::{UNDECIDED, on_both_engines};
use crate::audit_log::chain::Link;
use crate::audit_log::outbox;
use crate::database::dialect::Access;
use crate::store::Store;
use crate::{
    AuditLog, AuditRecord, AuditRow, Changes, Expired, ProveError, SignedHead, TreeDamage,
};

on_both_engines!(
    two_nodes_grow_one_tree,
    proofs_outlive_the_pruning_of_other_rows,
    a_log_that_was_pruned_before_has_a_tree_of_the_rest,
    an_interrupted_follower_leaves_no_gap,
    one_node_follows_at_a_time,
    a_head_replaces_only_the_one_before_it,
    every_damage_of_the_tree_is_found,
    a_history_that_is_written_again_is_found,
);

const ORIGIN: &str = "culvert.example/audit/ac_1";

fn key() -> SigningKey {
    SigningKey::new(ORIGIN, KeyType::Note, [7; 32]).unwrap()
}

async fn tell(store: &Store, n: u32) {
    let event = event("k.v0", &format!("ev_{n}"));
    store.commit(Changes::event(event)).await.unwrap();
}

async fn told(db: &TestDatabase, n: u32) -> (Store, AuditLog) {
    let store = db.store().await;
    for n in 1..=n {
        tell(&store, n).await;
    }
    let log = store.audit_log();
    (store, log)
}

/// Signs the head of the whole tree.
async fn sign(store: &Store) -> SignedCheckpoint {
    let log = store.audit_log();
    let tree = log.tree().await.unwrap();
    let head = log.head(ORIGIN, tree.size).await.unwrap();
    let line = key().sign(&head.to_string(), 0);
    let checkpoint = SignedCheckpoint::new(head, vec![line]).unwrap();
    let after = SignedHead {
        at: at(0),
        checkpoint: checkpoint.clone(),
    };
    let before = tree.signed.as_ref();
    assert!(store.sign_audit_tree(before, after).await.unwrap());
    checkpoint
}

fn policy() -> Policy {
    Policy {
        origin_keys: vec![key().verifier().clone()],
        origin: None,
        ..Policy::default()
    }
}

/// The root of a tree of these rows, computed from nothing else.
fn root_of(rows: &[AuditRow]) -> TreeHash {
    let (mut edge, mut link) = (Edge::default(), Link::START);
    for row in rows {
        edge.push(TreeHash::leaf(&row.content().bytes(link.hash, row.seq)));
        link = link.next(row.seq, row.content());
    }
    edge.root()
}

async fn two_nodes_grow_one_tree(db: &TestDatabase) {
    let nodes = [db.store().await, db.store().await];
    let mut tasks = JoinSet::new();
    // Few together: a commit fails if those before it take longer than its deadline.
    for task in 0..8_u32 {
        let store = nodes[(task % 2) as usize].clone();
        tasks.spawn(async move {
            for n in (task..600).step_by(8) {
                tell(&store, n).await;
                if n % 5 == 0 {
                    store.grow_audit_tree().await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    nodes[1].grow_audit_tree().await.unwrap();
    let log = nodes[0].audit_log();
    let rebuilt = log.rebuild().await.unwrap();
    assert_eq!((rebuilt.tree.size, rebuilt.from_rows), (600, 600));
    let rows = log.rows(0, 600, 600).await.unwrap();
    assert_eq!(rebuilt.root, root_of(&rows));
    assert_eq!(log.root(600).await.unwrap(), rebuilt.root);
}

async fn proofs_outlive_the_pruning_of_other_rows(db: &TestDatabase) {
    let (store, log) = told(db, 9).await;
    assert!(matches!(
        log.prove("ev_7", None).await,
        Err(ProveError::NotSigned)
    ));
    // Pruning makes leaves of what it removes.
    assert_eq!(store.prune_outbox(Expired(5), UNDECIDED).await.unwrap(), 5);
    let early = sign(&store).await;
    let proof = log.prove("ev_7", Some("ac_1")).await.unwrap();
    let bytes = proof.extra.clone().unwrap();
    let record = AuditRecord::parse(&bytes).unwrap();
    assert_eq!(
        (record.id.as_str(), record.seq, proof.index),
        ("ev_7", 7, 6)
    );
    proof.verify(TreeHash::leaf(&bytes), &policy()).unwrap();
    for (id, account) in [("ev_2", None), ("ev_99", None), ("ev_7", Some("ac_2"))] {
        let refused = log.prove(id, account).await;
        assert!(
            matches!(refused, Err(ProveError::Unknown(_))),
            "{refused:?}"
        );
    }
    tell(&store, 10).await;
    assert!(matches!(
        log.prove("ev_10", None).await,
        Err(ProveError::NotSigned)
    ));
    store.prune_outbox(Expired(9), UNDECIDED).await.unwrap();
    let late = sign(&store).await;
    let proof = log.prove("ev_10", None).await.unwrap();
    let leaf = TreeHash::leaf(proof.extra.as_deref().unwrap());
    proof.verify(leaf, &policy()).unwrap();
    let [early, late] = [early, late].map(|signed| signed.checkpoint().clone());
    let ranges = consistency_ranges(early.size, late.size).unwrap();
    let proof = log.range_hashes(&ranges).await.unwrap();
    verify_consistency((early.size, early.root), (late.size, late.root), &proof).unwrap();
    let rebuilt = log.rebuild().await.unwrap();
    assert_eq!((rebuilt.tree.size, rebuilt.from_rows), (10, 1));
}

async fn a_log_that_was_pruned_before_has_a_tree_of_the_rest(db: &TestDatabase) {
    let (store, log) = told(db, 6).await;
    // As a program without the tree does it.
    let third = log.hash_at(3).await.unwrap().unwrap();
    let pruned = format!(
        "DELETE FROM outbox WHERE seq <= 3; UPDATE ledger SET anchor = 3, anchor_hash = '{third}'"
    );
    script(&store, &pruned).await;
    assert_eq!(store.grow_audit_tree().await.unwrap(), 3);
    sign(&store).await;
    let proof = log.prove("ev_4", None).await.unwrap();
    assert_eq!(proof.index, 0);
    let rebuilt = log.rebuild().await.unwrap();
    assert_eq!((rebuilt.tree.base, rebuilt.from_rows), (3, 3));
}

async fn an_interrupted_follower_leaves_no_gap(db: &TestDatabase) {
    let (mut store, _) = told(db, 300).await;
    for n in 0..20_u64 {
        // Cut off anywhere between rows and tiles.
        let grow = store.grow_audit_tree();
        drop(tokio::time::timeout(Duration::from_micros(n * 300), grow).await);
        tell(&store, u32::try_from(1_000 + n).unwrap()).await;
        if n % 5 == 0 {
            store.close().await;
            store = db.store().await;
        }
        store.audit_log().rebuild().await.unwrap();
    }
    store.grow_audit_tree().await.unwrap();
    let rebuilt = store.audit_log().rebuild().await.unwrap();
    assert_eq!((rebuilt.tree.size, rebuilt.from_rows), (320, 320));
}

async fn one_node_follows_at_a_time(db: &TestDatabase) {
    let (store, log) = told(db, 2).await;
    let now = at(100);
    assert_eq!(store.follow_audit_log("a", now).await.unwrap(), 2);
    tell(&store, 3).await;
    let soon = now.plus(Duration::from_secs(5));
    assert_eq!(store.follow_audit_log("b", soon).await.unwrap(), 0);
    assert_eq!(store.follow_audit_log("a", soon).await.unwrap(), 1);
    tell(&store, 4).await;
    let late = soon.plus(Duration::from_secs(11));
    assert_eq!(store.follow_audit_log("b", late).await.unwrap(), 1);
    tell(&store, 5).await;
    // The clock of the other node was far ahead.
    assert_eq!(store.follow_audit_log("a", at(0)).await.unwrap(), 1);
    assert_eq!(log.rebuild().await.unwrap().from_rows, 5);
}

async fn a_head_replaces_only_the_one_before_it(db: &TestDatabase) {
    let (store, log) = told(db, 2).await;
    store.grow_audit_tree().await.unwrap();
    let first = sign(&store).await;
    let before = log.tree().await.unwrap().signed;
    tell(&store, 3).await;
    store.grow_audit_tree().await.unwrap();
    let second = sign(&store).await;
    let late = SignedHead {
        at: at(1),
        checkpoint: first,
    };
    assert!(
        !store
            .sign_audit_tree(before.as_ref(), late.clone())
            .await
            .unwrap()
    );
    assert!(!store.sign_audit_tree(None, late).await.unwrap());
    let tree = log.tree().await.unwrap();
    assert_eq!(
        tree.signed.as_ref().map(|head| head.checkpoint.clone()),
        Some(second)
    );
    // A head that enough witnesses signed is published until a newer one has as many signatures.
    let published = async || log.tree().await.unwrap().published().cloned();
    let cosigned = tree.signed.clone().unwrap();
    let same = store.cosign_audit_tree(&cosigned, cosigned.clone()).await;
    assert!(same.unwrap());
    tell(&store, 4).await;
    store.grow_audit_tree().await.unwrap();
    let third = sign(&store).await;
    assert_eq!(published().await, Some(cosigned.checkpoint.clone()));
    let proof = log.prove("ev_1", None).await.unwrap();
    assert_eq!(proof.signed, cosigned.checkpoint);
    let proof = log.prove("ev_4", None).await.unwrap();
    assert_eq!(proof.signed, third);
    let latest = log.tree().await.unwrap().signed.unwrap();
    let same = store.cosign_audit_tree(&latest, latest.clone()).await;
    assert!(same.unwrap());
    assert_eq!(published().await, Some(third));
    let tree = log.tree().await.unwrap();
    // Not a head of a tree that is not there.
    let head = log.head(ORIGIN, 3).await.unwrap();
    let head = culvert_tlog::Checkpoint { size: 5, ..head };
    let line = key().sign(&head.to_string(), 0);
    let after = SignedHead {
        at: at(2),
        checkpoint: SignedCheckpoint::new(head, vec![line]).unwrap(),
    };
    assert!(
        !store
            .sign_audit_tree(tree.signed.as_ref(), after)
            .await
            .unwrap()
    );
}

async fn every_damage_of_the_tree_is_found(db: &TestDatabase) {
    let (store, log) = told(db, 300).await;
    store.grow_audit_tree().await.unwrap();
    sign(&store).await;
    log.rebuild().await.unwrap();
    script(&store, "CREATE TABLE saved (body TEXT NOT NULL)").await;
    script(
        &store,
        "INSERT INTO saved SELECT body FROM outbox WHERE seq = 280",
    )
    .await;
    for (damage, repair, expected) in [
        (
            "UPDATE outbox SET body = '{}' WHERE seq = 280",
            "UPDATE outbox SET body = (SELECT body FROM saved) WHERE seq = 280",
            "event 280 does not match its leaf",
        ),
        (
            "UPDATE outbox SET seq = 999 WHERE seq = 280",
            "UPDATE outbox SET seq = 280 WHERE seq = 999",
            "event 280 is missing",
        ),
        (
            "UPDATE audit_tile SET n = 7 WHERE level = 0 AND n = 1",
            "UPDATE audit_tile SET n = 1 WHERE level = 0 AND n = 7",
            "tile 0/001 is missing or wrong",
        ),
        (
            "UPDATE audit_tile SET level = 5 WHERE level = 1",
            "UPDATE audit_tile SET level = 1 WHERE level = 5",
            "tile 1/000 is missing or wrong",
        ),
        (
            "INSERT INTO audit_tile SELECT 7, 7, hashes FROM audit_tile WHERE level = 1",
            "DELETE FROM audit_tile WHERE level = 7",
            "1 tiles more",
        ),
        (
            "UPDATE audit_tree SET size = 299",
            "UPDATE audit_tree SET size = 300",
            "head of 300 leaves",
        ),
    ] {
        script(&store, damage).await;
        let found = log.rebuild().await.unwrap_err().to_string();
        assert!(found.contains(expected), "{damage}: {found}");
        script(&store, repair).await;
        log.rebuild().await.unwrap();
    }
}

/// Changes, removes, inserts or exchanges a row at or before `until`. The rows after it are consistent again.
fn rewrite(rows: &mut Vec<AuditRow>, n: usize, until: usize) {
    let place = n * 7_919 % (until - 1);
    match n % 4 {
        0 => rows[place].body.push(' '),
        1 => drop(rows.remove(place)),
        2 => {
            let mut more = rows[place].clone();
            more.id = format!("ev_inserted_{n}");
            rows.insert(place, more);
        }
        _ => rows.swap(place, place + 1),
    }
}

/// What an attacker with the database can do: the whole log, its chain, ledger and tree are written again.
async fn write_again(store: &Store, rows: &[AuditRow]) {
    let site = &store.shared.database.site;
    let mut connection = site.connect(Access::Write).await.unwrap();
    let clear = "DELETE FROM outbox; DELETE FROM audit_tile; \
         UPDATE audit_tree SET size = 0, signed = 0, checkpoint = ''";
    connection.script(format!("BEGIN; {clear}")).await.unwrap();
    let mut link = Link::START;
    for row in rows {
        let event = culvert_base::Event {
            id: row.id.clone(),
            account: row.account.clone(),
            kind: row.kind.clone(),
            at: culvert_base::Timestamp::from_unix_nanos(row.happened_at),
            body: row.body.clone(),
        };
        let content = outbox::content(&event, &row.audience);
        link = link.next(link.seq + 1, content);
        let hash = link.hash.to_string();
        let written = outbox::insert(
            &mut connection,
            link.seq,
            &event,
            &row.audience,
            Some(&hash),
        )
        .await;
        assert!(written.unwrap());
    }
    let (seq, hash) = (link.seq, link.hash);
    let ledger = format!("UPDATE ledger SET outbox = {seq}, chained = {seq}, head = '{hash}'");
    connection
        .script(format!("{ledger}; COMMIT"))
        .await
        .unwrap();
    connection.close().await;
}

/// An attacker with the database, the master key and the key of the log writes the history again. A witness that saw an
/// earlier head finds it in every try, and so does an auditor who kept that head.
async fn a_history_that_is_written_again_is_found(db: &TestDatabase) {
    const TRIES: usize = 100;
    let (store, log) = told(db, 12).await;
    let keys = [key().verifier().clone()];
    let mut n_found = 0;
    for n in 0..TRIES {
        // The honest history, which the witness and the auditor see.
        store.grow_audit_tree().await.unwrap();
        let seen = sign(&store).await.checkpoint().clone();
        let known = KnownTree {
            size: seen.size,
            root: seen.root,
        };
        tell(&store, u32::try_from(10_000 + n).unwrap()).await;
        store.grow_audit_tree().await.unwrap();
        let ask = async |old: u64, signed: &SignedCheckpoint| {
            let ranges = consistency_ranges(old, signed.checkpoint().size).unwrap();
            let request = AddCheckpoint {
                old,
                proof: log.range_hashes(&ranges).await.unwrap(),
                signed: signed.clone(),
            };
            judge(&request, &keys, known)
        };
        let honest = sign(&store).await;
        assert!(ask(seen.size, &honest).await.is_ok());

        let mut rows = log.rows(0, i64::MAX, 1_000).await.unwrap();
        let until = usize::try_from(seen.size).unwrap();
        rewrite(&mut rows, n, until);
        write_again(&store, &rows).await;
        tell(&store, u32::try_from(20_000 + n).unwrap()).await;
        store.grow_audit_tree().await.unwrap();
        let forged = sign(&store).await;
        // Without an earlier head, the new history is perfect.
        log.verify(None).await.unwrap();
        log.rebuild().await.unwrap();
        assert_eq!(ask(seen.size, &forged).await, Err(Declined::Inconsistent));
        assert_eq!(ask(0, &forged).await, Err(Declined::Conflict(seen.size)));
        let is_found = log.root(seen.size).await.unwrap() != seen.root;
        n_found += usize::from(is_found);
    }
    assert_eq!(n_found, TRIES);
    assert!(!matches!(log.rebuild().await, Err(TreeDamage::Fault(_))));
}

/// The CPU time that this process used, to 10 ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let (_, fields) = stat.rsplit_once(") ").expect("the name is in parentheses");
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|n| n.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}

/// What leaves and heads cost at 1,000 events a second. It prints the figure, which depends on the machine and the profile.
#[tokio::test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "the figure is the result")]
async fn cost_of_a_thousand_events_a_second() {
    const SECONDS: u32 = 60;
    let store = TestDatabase::sqlite().store().await;
    let body = "x".repeat(800);
    let mut spent = Duration::ZERO;
    for second in 0..SECONDS {
        let mut changes = Changes::default();
        for n in 0..1_000 {
            let mut event = event("k.v0", &format!("ev_{second}_{n}"));
            event.body = format!(r#"{{"event_id":"{}","text":"{body}"}}"#, event.id);
            changes = changes.and(Changes::event(event));
        }
        store.commit(changes).await.unwrap();
        let before = cpu_time();
        assert_eq!(store.grow_audit_tree().await.unwrap(), 1_000);
        if second % 10 == 9 {
            sign(&store).await;
        }
        spent += cpu_time().saturating_sub(before);
    }
    let percent = spent.as_secs_f64() * 100.0 / f64::from(SECONDS);
    println!("tree and signature: {percent:.2} % of a core at 1,000 events of 0.9 KiB a second");
}
