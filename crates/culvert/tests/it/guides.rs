//! The code blocks of the README, the tutorial, the guides and the explanations run in order, as a reader pastes them, and
//! their output is checked against the text (`tests/docs/run.py`). Nothing runs that the text does not show. All documents
//! run on machines that systemd boots with the package, and the one for containers with a container (`packaging`). Those
//! that need no server of a package also run here, each in an empty directory with its own network and mount namespace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::layers::root;

/// Host names in the documents, which all resolve to this machine.
const HOSTS: &str = "127.0.0.1 localhost tunnel.example.com connect.example.com app.example.com tcp.example.com\n\
                     ::1 localhost\n";

/// Directories with documents whose code blocks run, in addition to the README.
const FOLDERS: [&str; 3] = ["docs/tutorial", "docs/how-to", "docs/explanation"];

/// Documents that run concurrently. Each starts servers.
const AT_ONCE: usize = 3;

/// Maximum number of blocks that do not run, over all documents: two need a cluster, one the registry of Terraform. It may only
/// be lowered.
const SKIPPED_MAX: usize = 3;

/// Maximum number of blocks that other tests run in their own way, over all documents. It may only be lowered, but for a block
/// that did not run at all.
const ELSEWHERE_MAX: usize = 10;

#[test]
fn the_documents_that_need_no_package_work() {
    let isolated = Command::new("unshare")
        .args(["-rnm", "sh", "-c", "ip link set lo up"])
        .status();
    if !isolated.is_ok_and(|status| status.success()) {
        culvert_testing::ignore("no network namespaces for the documents here");
        return;
    }
    let mut documents = documents();
    documents.retain(|document| {
        let text = std::fs::read_to_string(document).unwrap();
        !text.contains("sudo ") && !text.contains("docker ")
    });
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), HOSTS).unwrap();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(document) = documents.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run(document, hosts.path());
                    done.lock().unwrap().push((document, outcome));
                }
            });
        }
    });
    let mut failures = Vec::new();
    for (document, outcome) in done.into_inner().unwrap() {
        match outcome {
            Ok(counts) => println!("{}: {counts}", document.display()),
            Err(output) => failures.push(format!("{}:\n{output}", document.display())),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The runner refuses a document with commands that its readers do not see, whatever they are called.
#[test]
fn hidden_commands_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join("guide.md");
    let shown = "```sh\necho shown\n```\n\n```text\nshown\n```\n";
    for hidden in [
        "<!-- test:before\nexport KEY=hidden\n-->\n",
        "<!-- test:after\ntest -e file\n-->\n",
        "<!-- test:setup export KEY=hidden -->\n",
        "<!-- test:again\nexport KEY=hidden\n-->\n",
        "  <!--test:before export KEY=hidden -->\n",
        "<!-- test:skip it needs a cluster -->\n",
        "<!-- test:file hidden -->\n",
        "<!-- test:file $(export KEY=hidden) -->\n",
        "<!--\n```sh\nexport KEY=hidden\n```\n-->\n",
    ] {
        for text in [format!("{hidden}{shown}"), format!("{shown}{hidden}")] {
            std::fs::write(&document, text).unwrap();
            let outcome = read(&document);
            assert!(outcome.is_err(), "{hidden}: {outcome:?}");
        }
    }
    std::fs::write(&document, shown).unwrap();
    assert_eq!(read(&document).unwrap()["blocks"], 2);
    // An output that differs from the shown one is noticed.
    std::fs::write(&document, shown.replace("text\nshown", "text\nother")).unwrap();
    assert!(read(&document).is_err());
    // What cannot run says so to the reader, and is counted.
    let untested = "*Not run by the tests: it needs a cluster.*\n\n```sh\nfalse\n```\n";
    std::fs::write(&document, untested).unwrap();
    assert_eq!(read(&document).unwrap()["skipped"], 1);
}

/// No document has commands that its readers do not see, also those that run on a machine. What other tests run, and
/// what does not run at all, is counted.
#[test]
fn documents_say_what_does_not_run() {
    let (mut skipped, mut elsewhere) = (0, 0);
    for document in documents() {
        let (text, name) = (
            std::fs::read_to_string(&document).unwrap(),
            document.display(),
        );
        skipped += text.matches("\n*Not run by the tests: ").count();
        for (at, _) in text.match_indices("<!--") {
            let comment = text[at..].split("-->").next().unwrap();
            let note = comment.trim_start_matches("<!--").trim();
            let (kind, rest) = note.split_once(' ').unwrap_or((note, ""));
            let kinds = ["background", "file", "output", "again", "elsewhere"];
            // The name of a policy in the editor.
            let is_known =
                kind == "template:" || kinds.iter().any(|known| kind == format!("test:{known}"));
            assert!(is_known && !comment.contains('\n'), "{name}: {comment}");
            if kind == "test:elsewhere" {
                assert!(is_a_test(rest), "{name}: no test `{rest}`");
                elsewhere += 1;
            }
        }
    }
    assert!(
        skipped <= SKIPPED_MAX,
        "{skipped} blocks do not run, more than {SKIPPED_MAX}"
    );
    assert!(
        elsewhere <= ELSEWHERE_MAX,
        "other tests run {elsewhere} blocks, more than {ELSEWHERE_MAX}"
    );
}

/// The README, the tutorial, the guides and the explanations.
fn documents() -> Vec<PathBuf> {
    let mut documents = vec![root().join("README.md")];
    for folder in FOLDERS {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        documents.extend(entries.map(|entry| entry.unwrap().path()));
    }
    documents.sort();
    documents
}

/// Whether these integration tests have the test, such as `packaging::the_units_are_valid`.
fn is_a_test(name: &str) -> bool {
    let (module, function) = name.rsplit_once("::").unwrap();
    let file = format!("tests/it/{}.rs", module.replace("::", "/"));
    let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
    source.is_ok_and(|source| source.contains(&format!("fn {function}(")))
}

/// Runs a document that starts no servers and needs no names.
fn read(document: &Path) -> Result<Value, String> {
    let run = Command::new("python3")
        .args(["-B".as_ref(), root().join("tests/docs/run.py").as_os_str()])
        .arg(document)
        .arg(env!("CARGO_BIN_EXE_culvert"))
        .output()
        .unwrap();
    outcome(&run)
}

/// Runs the blocks of one document. Returns their numbers, or what was printed before the failure.
fn run(document: &Path, hosts: &Path) -> Result<Value, String> {
    let run = Command::new("unshare")
        .args(["-rnm", "--pid", "--fork", "--kill-child", "sh", "-c"])
        .arg("ip link set lo up && mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"")
        .arg("sh")
        .arg(hosts)
        .arg("python3")
        .arg(root().join("tests/docs/run.py"))
        .arg(document)
        .arg(env!("CARGO_BIN_EXE_culvert"))
        .output()
        .unwrap();
    outcome(&run)
}

fn outcome(run: &Output) -> Result<Value, String> {
    if run.status.success() {
        return Ok(serde_json::from_slice(&run.stdout).unwrap());
    }
    let [out, err] = [&run.stdout, &run.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    Err(format!("{out}{err}"))
}
