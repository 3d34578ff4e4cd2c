use std::os::unix::fs::MetadataExt;
use std::{fs, io};

use culvert_base::batch::BatchClass;
use culvert_base::{Clock, ManualClock, OsEntropy, SystemClock};
use culvert_target::batch::OpenBatch;
use culvert_target::rotating_file::{blame, is_stamp};
use proptest::prelude::*;
use serde_json::json;

use super::*;

struct Bench {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
    context: TargetContext,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(SystemClock.now()));
        let settings = TargetSettings {
            file_root: Some(folder.path().to_owned()),
            ..TargetSettings::default()
        };
        let context = TargetContext::new(
            settings,
            clock.clone() as Arc<dyn Clock>,
            Arc::new(OsEntropy),
        );
        Self {
            folder,
            clock,
            context,
        }
    }

    fn target(&self, config: Value) -> Arc<dyn Target> {
        let stored = check(&config, self.context.settings(), &OsEntropy)
            .unwrap()
            .stored;
        open(&stored, &self.context, crate::tests::fake::DESTINATION_IDS).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Names of the files in the root, sorted.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn batch(ids: std::ops::Range<usize>, filling: usize) -> Batch {
    let mut open = OpenBatch::default();
    for id in ids {
        let envelope = format!(
            r#"{{"event_id":"ev_{id}","object":"{}"}}"#,
            "x".repeat(filling)
        );
        open.push(&"esb_1".into(), envelope.as_bytes());
    }
    Batch::read("ed_1".into(), BatchClass::Traffic, open.finish().stored).unwrap()
}

fn lines(batch: &Batch) -> String {
    String::from_utf8(batch.lines().to_vec()).unwrap()
}

#[tokio::test]
async fn batches_are_appended_as_lines() {
    let bench = Bench::new();
    let file = bench.target(json!({"path": "a/b/events.ndjson"}));
    let (first, second) = (batch(0..3, 5), batch(3..4, 0));
    assert_eq!(file.send(&first).await, Verdict::Delivered);
    assert_eq!(file.send(&second).await, Verdict::Delivered);
    assert_eq!(
        bench.read("a/b/events.ndjson"),
        lines(&first) + &lines(&second)
    );
    let mode = fs::metadata(bench.path("a/b/events.ndjson"))
        .unwrap()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn files_rotate_by_size_and_age_and_old_ones_are_deleted() {
    let bench = Bench::new();
    let file =
        bench.target(json!({"path": "e.log", "max_bytes": 4096, "max_age": "1h", "max_files": 2}));
    for round in 0..4 {
        bench.clock.advance(Duration::from_secs(1));
        assert_eq!(
            file.send(&batch(round..round + 1, 3000)).await,
            Verdict::Delivered
        );
    }
    // After three rotations, two rotated files are kept.
    assert_eq!(bench.names().len(), 3, "{:?}", bench.names());
    assert!(
        bench.names()[1..]
            .iter()
            .all(|name| is_stamp(&name["e.log.".len()..]))
    );
    assert!(bench.read("e.log").contains("ev_3"));
    assert!(bench.read(&bench.names()[2]).contains("ev_2"));
    fs::write(bench.path("e.log.backup"), "not ours").unwrap();

    let before = bench.names().len();
    bench.clock.advance(Duration::from_secs(3600));
    file.send(&batch(9..10, 0)).await;
    assert_eq!(bench.names().len(), before, "one more, one less");
    assert_eq!(bench.read("e.log").lines().count(), 1);
    assert_eq!(bench.read("e.log.backup"), "not ours");
}

#[tokio::test]
async fn a_batch_larger_than_the_limit_gets_its_own_file() {
    let bench = Bench::new();
    let file = bench.target(json!({"path": "e.log", "max_bytes": 4096}));
    assert_eq!(file.send(&batch(0..1, 9000)).await, Verdict::Delivered);
    assert_eq!(bench.names(), ["e.log"]);
}

#[tokio::test]
async fn a_moved_file_is_reopened() {
    let bench = Bench::new();
    let file = bench.target(json!({"path": "e.log"}));
    file.send(&batch(0..1, 0)).await;
    fs::rename(bench.path("e.log"), bench.path("moved")).unwrap();
    file.send(&batch(1..2, 0)).await;
    assert!(bench.read("moved").contains("ev_0") && !bench.read("moved").contains("ev_1"));
    assert!(bench.read("e.log").contains("ev_1"));
}

#[tokio::test]
async fn a_partial_line_of_a_previous_run_is_removed() {
    let bench = Bench::new();
    for (torn, kept) in [
        ("{\"event_id\":\"ev_", 0),
        ("one\ntwo\n{\"ev", 2),
        ("one\n", 1),
        ("", 0),
    ] {
        fs::write(bench.path("e.log"), torn).unwrap();
        let file = bench.target(json!({"path": "e.log"}));
        assert_eq!(file.send(&batch(0..1, 0)).await, Verdict::Delivered);
        let text = bench.read("e.log");
        assert_eq!(text.lines().count(), kept + 1, "{torn:?}: {text}");
        assert!(text.ends_with(&lines(&batch(0..1, 0))));
    }
}

#[tokio::test]
async fn two_destinations_with_one_path_never_mix_their_lines() {
    let bench = Bench::new();
    let targets: Vec<_> = (0..4)
        .map(|_| bench.target(json!({"path": "e.log", "fsync": "none"})))
        .collect();
    let mut senders = tokio::task::JoinSet::new();
    for (n, target) in targets.into_iter().enumerate() {
        senders.spawn(async move {
            for round in 0..20 {
                let id = n * 100 + round;
                assert_eq!(
                    target.send(&batch(id..id + 1, 300)).await,
                    Verdict::Delivered
                );
            }
        });
    }
    while let Some(done) = senders.join_next().await {
        done.unwrap();
    }
    let text = bench.read("e.log");
    assert_eq!(text.lines().count(), 80);
    assert!(
        text.lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok())
    );
}

#[tokio::test]
async fn symbolic_links_are_refused_at_creation_and_every_open() {
    let bench = Bench::new();
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), bench.path("out")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", bench.path("file")).unwrap();
    for path in ["out/e.log", "file"] {
        let refusal =
            check(&json!({"path": path}), bench.context.settings(), &OsEntropy).unwrap_err();
        assert_eq!(refusal.code.unwrap().number(), 5140);
    }
    // The symbolic link is created after the target was opened.
    let file = bench.target(json!({"path": "dir/e.log"}));
    std::os::unix::fs::symlink(outside.path(), bench.path("dir")).unwrap();
    let Verdict::Failed(failure) = file.send(&batch(0..1, 0)).await else {
        panic!("written")
    };
    assert_eq!(failure.class, FailureClass::Config);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn file_paths_are_validated() {
    let settings = TargetSettings {
        file_root: Some("/nowhere".into()),
        ..TargetSettings::default()
    };
    for path in ["e.log", "a/b.c", ".hidden", "a b", "é/ü.log", "..."] {
        check(&json!({"path": path}), &settings, &OsEntropy).unwrap();
    }
    let long = "x".repeat(201);
    for path in [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../x",
        "a/../b",
        "a/..",
        ".",
        "./a",
        "a/./b",
        "a//b",
        "a/",
        "a\0b",
        "a\nb",
        &long,
    ] {
        let refusal = check(&json!({"path": path}), &settings, &OsEntropy).unwrap_err();
        assert_eq!(refusal.code.unwrap().number(), 5140, "{path:?}");
    }
    let without_root = TargetSettings::default();
    check(&json!({"path": "e.log"}), &without_root, &OsEntropy).unwrap_err();
}

#[test]
fn numeric_settings_have_bounds_and_defaults() {
    let settings = TargetSettings {
        file_root: Some("/nowhere".into()),
        ..TargetSettings::default()
    };
    assert_eq!(
        check(&json!({"path": "e"}), &settings, &OsEntropy)
            .unwrap()
            .stored,
        json!({"path": "e", "max_bytes": 104_857_600, "max_age": "24h", "max_files": 10, "fsync": "batch"})
    );
    for (field, wrong) in [
        ("max_bytes", json!(4095)),
        ("max_bytes", json!(-1)),
        ("max_bytes", json!("1")),
        ("max_age", json!("59s")),
        ("max_age", json!("367d")),
        ("max_files", json!(0)),
        ("max_files", json!(10_001)),
        ("fsync", json!("always")),
    ] {
        let given = json!({"path": "e", field: wrong});
        assert!(check(&given, &settings, &OsEntropy).is_err(), "{given}");
    }
}

#[test]
fn a_full_disk_is_retryable_and_denied_permission_is_a_configuration_error() {
    let class = |kind: io::ErrorKind| blame(kind.into()).class;
    assert_eq!(class(io::ErrorKind::StorageFull), FailureClass::Retryable);
    assert_eq!(class(io::ErrorKind::Other), FailureClass::Retryable);
    assert_eq!(class(io::ErrorKind::PermissionDenied), FailureClass::Config);
}

proptest! {
    #[test]
    fn accepted_paths_stay_below_their_root(text in "[a-z./\\\\]{0,24}") {
        if let Ok(path) = relative(&text) {
            let joined = Path::new("/root").join(path);
            prop_assert!(joined.starts_with("/root"));
            prop_assert!(joined.components().all(|part| !matches!(part, Component::ParentDir)));
        }
    }
}
