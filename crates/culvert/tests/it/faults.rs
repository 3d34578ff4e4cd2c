//! `scripts/faults` at a whole installation: its quick form, and its table of loops, caches and leases.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::growing::read;
use crate::layers::root;
use crate::supervision::{TASKS, TASKS_AMONG_NODES};

/// Where state is held that came from elsewhere, or that others hand over when it ends.
const CACHES: [&str; 3] = ["Cache<", "ArcSwap<", "OnceCell<"];

/// The rows of the table: kind and name, and how it is seen alive.
fn rows() -> BTreeMap<(String, String), String> {
    let table = std::fs::read_to_string(root().join("tests/faults/held.py")).unwrap();
    let rows = table
        .lines()
        .filter_map(|line| line.strip_prefix("    (\""));
    let row = |line: &str| {
        let parts: Vec<&str> = line.split('"').step_by(2).collect();
        let [kind, name, _, seen] = parts[..] else {
            panic!("no row: {line}");
        };
        ((kind.to_owned(), name.to_owned()), seen.to_owned())
    };
    rows.map(row).collect()
}

/// All that the sources have of it, and their text.
fn found() -> (BTreeSet<(String, String)>, String) {
    let mut found = BTreeSet::new();
    let mut all = String::new();
    let mut add = |kind: &str, name: String| {
        found.insert((kind.to_owned(), name));
    };
    for task in TASKS.iter().chain(&TASKS_AMONG_NODES) {
        add("loop", (*task).to_owned());
    }
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path().join("src");
        let name = folder.parent().unwrap().file_name().unwrap();
        let name = name.to_str().unwrap().to_owned();
        if name == "culvert-testing" {
            continue;
        }
        let short = name.strip_prefix("culvert-").unwrap_or(&name);
        let (mut fields, mut text) = (Vec::new(), String::new());
        read(short, &folder, &folder, &CACHES, &mut fields, &mut text);
        for field in fields {
            add("cache", field);
        }
        // A task that only some settings start.
        for start in [".start(\"", ".supervise(\""] {
            for rest in text.split(start).skip(1) {
                let task = rest.split('"').next().unwrap();
                if short != "base" {
                    add("loop", task.to_owned());
                }
            }
        }
        for rest in text.split("struct ").skip(1) {
            let is_name = |c: char| c.is_alphanumeric();
            let of = rest.split(|c| !is_name(c)).next().unwrap();
            if of.contains("Lease") {
                add("lease", format!("{short} {of}"));
            }
        }
        all.push_str(&text);
    }
    for entry in std::fs::read_dir(root().join("crates/culvert/tests/it")).unwrap() {
        let path = entry.unwrap().path();
        // The folders have no test that the table names.
        if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    for file in [
        "crates/culvert/tests/it/nodes/rate_limits.rs",
        "crates/culvert-control/src/tests/alerts.rs",
    ] {
        all.push_str(&std::fs::read_to_string(root().join(file)).unwrap());
    }
    (found, all)
}

#[test]
fn every_loop_cache_and_lease_has_a_fault_and_is_seen_alive_after_it() {
    let (rows, (found, text)) = (rows(), found());
    for (row, seen) in &rows {
        if let Some(test) = seen.strip_prefix("it:") {
            assert!(
                text.contains(&format!("fn {test}(")),
                "{row:?}: no test `{test}`"
            );
        }
    }
    let rows: BTreeSet<_> = rows.into_keys().collect();
    let without: Vec<_> = found.difference(&rows).collect();
    assert!(
        without.is_empty(),
        "not in tests/faults/held.py: {without:#?}"
    );
    let gone: Vec<_> = rows.difference(&found).collect();
    assert!(
        gone.is_empty(),
        "in tests/faults/held.py, and gone: {gone:#?}"
    );
}

#[test]
fn an_installation_keeps_its_promises_through_faults_of_each_kind() {
    let program = root().join("scripts/faults");
    let ran = Command::new(program)
        .args(["--binary", env!("CARGO_BIN_EXE_culvert"), "--nodes", "2"])
        .args(["--quick", "--hold", "2", "--seed", "39"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    if let Some(skipped) = said.lines().find(|line| line.starts_with("skipped: ")) {
        return culvert_testing::ignore(skipped);
    }
    let trouble = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}\n{trouble}");
}
