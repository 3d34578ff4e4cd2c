//! A start on a full disk.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use culvert_base::Clock;

use super::test_database::{TestDatabase, texts};
use crate::database::store_url::StoreUrl;
use crate::store::Store;
use crate::{AuditEvent, Changes, Document, Head, Queue};

/// A separate file system, small enough to be filled.
struct Small(PathBuf);

impl Small {
    /// `None`, reported as ignored, if no file system can be mounted.
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs"])
            .arg(at)
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(at.to_owned()));
        }
        culvert_testing::ignore("a start on a full disk: no file system can be mounted here");
        None
    }

    /// Fills the file system.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).output());
    }
}

fn item(db: &TestDatabase, id: &str) -> Changes {
    let at = db.clock.now();
    let document = Document {
        head: Head {
            id: id.to_owned(),
            kind: "item".to_owned(),
            account: "ac_1".to_owned(),
            revision: 0,
            created_at: at,
            updated_at: at,
        },
        body: "{}".to_owned(),
        keys: Vec::new(),
        refs: Vec::new(),
        topics: Vec::new(),
    };
    Changes::insert(document, AuditEvent::Suppress { reason: "a test" })
}

#[tokio::test]
async fn a_start_on_a_full_disk_reads_everything_and_refuses_writes_at_once() {
    let db = TestDatabase::sqlite();
    let Some(disk) = Small::mount(&db.folder.path().join("disk")) else {
        return;
    };
    let url = StoreUrl::Sqlite(disk.0.join("state.db"));
    let open = async || {
        let store = Store::open(&url, db.clock.clone(), texts()).await;
        let queue = Queue::open(&url, db.clock.clone()).await;
        (store.unwrap(), queue.unwrap())
    };
    let (store, queue) = open().await;
    store.commit(item(&db, "it_1")).await.unwrap();
    assert!(!store.is_read_only());
    store.close().await;
    queue.close().await;

    disk.fill();
    let (store, queue) = open().await;
    assert!(store.is_read_only());
    assert!(store.get("item", "it_1").await.unwrap().is_some());
    assert_eq!(store.ids("item").await.unwrap(), ["it_1"]);
    assert_eq!(queue.backlog().await.unwrap(), []);
    let began = std::time::Instant::now();
    assert!(store.commit(item(&db, "it_2")).await.is_err());
    assert!(queue.append(Vec::new(), None).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(1));
    for usable in [store.usable().await, queue.usable().await] {
        let fault = usable.unwrap_err().chain();
        assert!(
            fault.contains("the disk took no writes at startup"),
            "{fault}"
        );
    }

    // Reads continue all the time, and none fails when the file becomes writable.
    let reading = AtomicBool::new(true);
    let mut revision = store.watch();
    let read = async {
        while reading.load(Ordering::Relaxed) {
            assert!(store.get("item", "it_1").await.unwrap().is_some());
            assert!(
                store
                    .ids("item")
                    .await
                    .unwrap()
                    .contains(&"it_1".to_owned())
            );
            assert!(queue.backlog().await.is_ok());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let write = async {
        disk.empty();
        let writable = async {
            store.until_writable().await;
            while queue.usable().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), writable).await;
        waited.expect("there is room again");
        assert!(!store.is_read_only());
        store.usable().await.unwrap();
        for n in 2..40 {
            let id = format!("it_{n}");
            store.commit(item(&db, &id)).await.unwrap();
            assert!(store.get("item", &id).await.unwrap().is_some());
        }
        assert_eq!(store.ids("item").await.unwrap().len(), 39);
        assert_eq!(revision.borrow_and_update().number, 39);
        queue.append(Vec::new(), None).await.unwrap();
        reading.store(false, Ordering::Relaxed);
    };
    tokio::join!(read, write);
    store.check().await.unwrap();
    store.close().await;
    queue.close().await;

    // All data is there, and the next start finds room.
    let (store, queue) = open().await;
    assert!(!store.is_read_only());
    assert_eq!(store.ids("item").await.unwrap().len(), 39);
    store.close().await;
    queue.close().await;
}
