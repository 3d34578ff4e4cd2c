//! Measures reads and commits of the store: `cargo bench -p culvert-store`.
//!
//! Prints, for SQLite in a temporary directory: lookups per second and CPU time per lookup with 1
//! and 64 callers, durable commits per second with 64 callers, and the duration of a sync in that
//! directory. Results are comparable only on the same machine.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]
#![allow(clippy::unwrap_used, reason = "a measurement may stop at any failure")]

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::{Clock, Event, SystemClock};
use culvert_store::{
    AuditEvent, Changes, Document, Head, Key, OnDelete, Ref, Store, StoreUrl, Texts,
};
use tokio::task::JoinSet;

const CALLERS: usize = 64;
const MEASURED: Duration = Duration::from_secs(3);

fn main() {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(measure());
}

async fn measure() {
    let folder = tempfile::tempdir().unwrap();
    println!("one sync: {:?}", one_sync(&folder.path().join("sync")));
    let url = StoreUrl::Sqlite(folder.path().join("state.db"));
    let store = Store::open(&url, Arc::new(SystemClock), Texts::default())
        .await
        .unwrap();
    let owner = Document {
        keys: Vec::new(),
        refs: Vec::new(),
        ..api_key("usr_1")
    };
    let nothing = AuditEvent::Suppress {
        reason: "a measurement",
    };
    store.commit(Changes::insert(owner, nothing)).await.unwrap();

    for callers in [1, CALLERS] {
        let shared = store.clone();
        let report = run(callers, move |caller, n| {
            let store = shared.clone();
            async move {
                let id = format!("ak_{caller:027}_{n:027}");
                let event = Event {
                    id: format!("ev_{caller:027}_{n:027}_{callers}"),
                    kind: "api_key_created.v0".to_owned(),
                    at: SystemClock.now(),
                    account: "ac_1".to_owned(),
                    body: "x".repeat(500),
                };
                let made = api_key(&format!("{id}_{callers}"));
                store
                    .commit(Changes::insert(made, AuditEvent::Emit(event)))
                    .await
                    .unwrap();
            }
        })
        .await;
        println!("commits, {callers} callers: {report}");
    }
    for callers in [1, CALLERS] {
        let shared = store.clone();
        let report = run(callers, move |caller, n| {
            let store = shared.clone();
            async move {
                let id = format!("ak_{caller:027}_{:027}_{CALLERS}", n % 50);
                store.get("api_key", &id).await.unwrap().unwrap();
            }
        })
        .await;
        println!("lookups, {callers} callers: {report}");
    }
    store.close().await;
}

fn api_key(id: &str) -> Document {
    let now = SystemClock.now();
    Document {
        head: Head {
            id: id.to_owned(),
            kind: "api_key".to_owned(),
            account: "ac_1".to_owned(),
            revision: 0,
            created_at: now,
            updated_at: now,
        },
        body: "x".repeat(300),
        keys: vec![Key::new("token", id)],
        refs: vec![Ref::new("owner_id", "usr_1", OnDelete::Cascade)],
        topics: Vec::new(),
    }
}

/// The combined result of all callers, each of which works sequentially.
async fn run<F, Fut>(callers: usize, work: F) -> String
where
    F: Fn(usize, usize) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let (began, cpu_before) = (Instant::now(), cpu());
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let work = work.clone();
        tasks.spawn(async move {
            let mut n = 0;
            while began.elapsed() < MEASURED {
                work(caller, n).await;
                n += 1;
            }
            n
        });
    }
    let n: usize = tasks.join_all().await.into_iter().sum();
    let (elapsed, cpu) = (began.elapsed(), cpu() - cpu_before);
    let n = u32::try_from(n.max(1)).unwrap();
    format!(
        "{:.0}/s, {:?} of processor each",
        f64::from(n) / elapsed.as_secs_f64(),
        cpu / n
    )
}

/// CPU time of this process so far, in steps of 10 ms.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}

fn one_sync(path: &Path) -> Duration {
    let mut file = std::fs::File::create(path).unwrap();
    let began = Instant::now();
    for _ in 0..100 {
        file.write_all(&[0; 4096]).unwrap();
        file.sync_data().unwrap();
    }
    began.elapsed() / 100
}
