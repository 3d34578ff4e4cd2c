//! Runs every code block of the README, the tutorial and the guides, in order, in an empty directory, and checks its
//! output against the text (`tests/docs/run.py`). Each document has its own network and mount namespace, so that the
//! ports and host names in the text are available.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// Host names in the documents, which all resolve to this machine.
const HOSTS: &str = "127.0.0.1 localhost tunnel.example.com connect.example.com app.example.com tcp.example.com\n\
                     ::1 localhost\n";

/// Directories with documents whose code blocks run, in addition to the README.
const FOLDERS: [&str; 3] = ["docs/tutorial", "docs/how-to", "docs/explanation"];

/// Documents that run concurrently. Each starts servers.
const AT_ONCE: usize = 3;

/// Maximum number of blocks that cannot run here, over all documents. It may only be lowered.
const SKIPPED_MAX: u64 = 12;

/// Maximum number of shell blocks that readers do not see, over all documents. It may only be lowered.
const HIDDEN_MAX: u64 = 42;

#[test]
fn the_code_blocks_of_the_documents_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let isolated = Command::new("unshare")
        .args(["-rnm", "sh", "-c", "ip link set lo up"])
        .status();
    if !isolated.is_ok_and(|status| status.success()) {
        culvert_testing::ignore("no network namespaces for the documents here");
        return;
    }
    let mut documents = vec![root.join("README.md")];
    for folder in FOLDERS {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        documents.extend(entries.map(|entry| entry.unwrap().path()));
    }
    documents.sort();
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), HOSTS).unwrap();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(document) = documents.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run(&root, document, hosts.path());
                    done.lock().unwrap().push((document, outcome));
                }
            });
        }
    });
    let (mut failures, mut skipped, mut hidden) = (Vec::new(), 0, 0);
    for (document, outcome) in done.into_inner().unwrap() {
        match outcome {
            Ok(counts) => {
                skipped += counts["skipped"].as_u64().unwrap();
                hidden += counts["hidden"].as_u64().unwrap();
                for test in counts["elsewhere"].as_array().unwrap() {
                    let test = test.as_str().unwrap();
                    if !is_a_test(test) {
                        failures.push(format!("{}: no test `{test}`", document.display()));
                    }
                }
                println!("{}: {counts}", document.display());
            }
            Err(output) => failures.push(format!("{}:\n{output}", document.display())),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(
        skipped <= SKIPPED_MAX,
        "{skipped} blocks do not run, more than {SKIPPED_MAX}"
    );
    assert!(
        hidden <= HIDDEN_MAX,
        "{hidden} blocks are hidden from readers, more than {HIDDEN_MAX}"
    );
}

/// Whether these integration tests have the test, such as `packaging::the_units_are_valid`.
fn is_a_test(name: &str) -> bool {
    let (module, function) = name.rsplit_once("::").unwrap();
    let file = format!("tests/it/{}.rs", module.replace("::", "/"));
    let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
    source.is_ok_and(|source| source.contains(&format!("fn {function}(")))
}

/// Runs the blocks of one document. Returns their numbers, or what was printed before the failure.
fn run(root: &Path, document: &Path, hosts: &Path) -> Result<Value, String> {
    let run = Command::new("unshare")
        .args(["-rnm", "--pid", "--fork", "--kill-child", "sh", "-c"])
        .arg("ip link set lo up && mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"")
        .arg("sh")
        .arg(hosts)
        .arg("python3")
        .arg(root.join("tests/docs/run.py"))
        .arg(document)
        .arg(env!("CARGO_BIN_EXE_culvert"))
        .output()
        .unwrap();
    if run.status.success() {
        return Ok(serde_json::from_slice(&run.stdout).unwrap());
    }
    let [out, err] = [&run.stdout, &run.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    Err(format!("{out}{err}"))
}
