//! `kill -9` at any moment: acknowledged writes exist, and every document has its event.
//!
//! The test starts its own binary as a child that writes continuously and prints each acknowledged
//! write. The child is killed after a random number of lines. The first child is not killed before
//! it has printed lines of every kind.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::{Entropy, OsEntropy, SystemClock};
use tokio::task::JoinSet;

use super::on_both_engines;
use super::store::{document, event};
use super::test_database::TestDatabase;
use crate::database::store_url::StoreUrl;
use crate::store::Store;
use crate::{
    AuditEvent, BatchClass, Body, Changes, CursorMove, NewBatch, OutboxRow, Queue, QueueError,
};

on_both_engines!(nothing_acknowledged_is_lost_by_a_kill);

const ROUNDS: usize = 4;
const URL: &str = "CULVERT_TEST_CHILD_URL";
const ROUND: &str = "CULVERT_TEST_CHILD_ROUND";
const CURSOR: &str = "outbox";

async fn nothing_acknowledged_is_lost_by_a_kill(db: &TestDatabase) {
    let mut documents = BTreeSet::new();
    let mut cursor = 0;
    for round in 0..ROUNDS {
        let url = match &db.url {
            StoreUrl::Sqlite(path) => path.to_str().unwrap().to_owned(),
            StoreUrl::Postgres(url) => url.clone(),
        };
        let acknowledged = tokio::task::spawn_blocking(move || run_and_kill(&url, round))
            .await
            .unwrap();
        for line in acknowledged {
            match line.split_once(' ') {
                Some(("document", id)) => assert!(documents.insert(id.to_owned())),
                Some(("cursor", to)) => cursor = to.parse().unwrap(),
                _ => panic!("the child said {line:?}"),
            }
        }
        verify(db, &documents, cursor).await;
    }
    assert!(
        cursor > 0 && !documents.is_empty(),
        "the child did something"
    );
}

/// Starts the child, kills it after a random number of acknowledgements, and returns all that it
/// printed.
fn run_and_kill(url: &str, round: usize) -> Vec<String> {
    let entropy: &dyn Entropy = &OsEntropy;
    let n_lines = 20 + usize::from(entropy.bytes::<1>()[0]);
    let mut child = Running(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::kill::child", "--nocapture"])
            .env(URL, url)
            .env(ROUND, round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    // The harness prints its own lines too. A line that was cut off does not count.
    while let Some(Ok(line)) = lines.next() {
        if let Some(line) = line.strip_prefix("acknowledged ") {
            if let Some(line) = line.strip_suffix('.') {
                said.push(line.to_owned());
            }
            let has_moved = round > 0 || said.iter().any(|line| line.starts_with("cursor"));
            if said.len() >= n_lines && has_moved {
                child.0.kill().unwrap();
            }
        }
    }
    assert!(
        said.len() >= n_lines,
        "the child ended by itself after {said:?}"
    );
    said
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already; wait for it in any case.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn verify(db: &TestDatabase, documents: &BTreeSet<String>, cursor: i64) {
    let store = db.store().await;
    let queue = db.queue().await;
    store.check().await.unwrap();
    queue.check().await.unwrap();

    let rows = outbox_and_documents(&store, documents).await;
    let n_rows = i64::try_from(rows.len()).unwrap();
    assert_eq!(
        rows.last().map(|row| row.seq),
        Some(n_rows),
        "the outbox has gaps"
    );

    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let reached = queue.cursor(CURSOR).await.unwrap();
        assert!(reached >= cursor, "an acknowledged append is gone");
        let backlog = queue.backlog().await.unwrap();
        // A child that was killed before its first append leaves nothing in the queue.
        let n_batches = backlog
            .iter()
            .find(|line| line.destination == "ed_1")
            .map_or(0, |line| line.batches);
        if i64::try_from(n_batches).unwrap() == reached {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "{n_batches} batches, but the cursor stands at {reached}"
        );
        tokio::task::yield_now().await;
    }
    store.close().await;
    queue.close().await;
}

/// The outbox, once it agrees with the documents. PostgreSQL may still finish a commit of a killed
/// process. Such a commit was not acknowledged, but it is complete.
async fn outbox_and_documents(store: &Store, acknowledged: &BTreeSet<String>) -> Vec<OutboxRow> {
    store.audit_log().verify(None).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let present: BTreeSet<String> = store
            .all("user")
            .await
            .unwrap()
            .into_iter()
            .map(|document| document.head.id)
            .collect();
        assert!(
            acknowledged.is_subset(&present),
            "an acknowledged document is gone"
        );
        let rows = store.outbox_after(0, 1_000_000).await.unwrap();
        let emitted: BTreeSet<String> = rows
            .iter()
            .map(|row| row.event.id.replace("ev_", "usr_"))
            .collect();
        if emitted == present {
            return rows;
        }
        assert!(
            Instant::now() < deadline,
            "a document without its event, or the reverse: {:?}",
            emitted.symmetric_difference(&present).collect::<Vec<_>>()
        );
        tokio::task::yield_now().await;
    }
}

/// Does nothing unless another test starts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(
    clippy::disallowed_methods,
    reason = "a child process is emitted what to do by its environment"
)]
async fn child() {
    let (Ok(url), Ok(round)) = (std::env::var(URL), std::env::var(ROUND)) else {
        return;
    };
    let url: StoreUrl = url.parse().unwrap();
    let store = Store::open(&url, Arc::new(SystemClock), super::test_database::texts())
        .await
        .unwrap();
    let queue = Queue::open(&url, Arc::new(SystemClock)).await.unwrap();
    let mut writers = JoinSet::new();
    for writer in 0..6 {
        let (store, round) = (store.clone(), round.clone());
        writers.spawn(async move {
            for n in 0.. {
                let id = format!("{round}_{writer}_{n}");
                let emitted = AuditEvent::Emit(event("k.v0", &format!("ev_{id}")));
                let made = document("user", &format!("usr_{id}"));
                store.commit(Changes::insert(made, emitted)).await.unwrap();
                acknowledge(&format!("document usr_{id}"));
            }
        });
    }
    writers.spawn(async move {
        let mut from = queue.cursor(CURSOR).await.unwrap();
        loop {
            let batch = NewBatch {
                destination: "ed_1".to_owned(),
                class: BatchClass::Audit,
                count: 1,
                body: Body {
                    stored: from.to_string().into_bytes(),
                    bytes: 1,
                },
            };
            let to = from + 1;
            let moved = CursorMove {
                name: CURSOR.to_owned(),
                from,
                to,
            };
            match queue.append(vec![batch], Some(moved)).await {
                Ok(()) => {
                    acknowledge(&format!("cursor {to}"));
                    from = to;
                }
                // PostgreSQL has just finished the last append of the previous child.
                Err(QueueError::Lost) => from = queue.cursor(CURSOR).await.unwrap(),
                Err(QueueError::Fault(fault)) => panic!("{fault}"),
            }
        }
    });
    writers.join_all().await;
}

/// The leading line break separates the line from the harness's output; the full stop shows that
/// the line is complete.
fn acknowledge(what: &str) {
    let line = format!("\nacknowledged {what}.\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}
