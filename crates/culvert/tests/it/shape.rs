//! The shape of the crates: few entries side by side in `src`, and no long function.

use std::path::{Path, PathBuf};

use super::layers::root;

/// Files and folders in `src`, at most.
const ENTRIES_MAX: usize = 15;
/// Lines of a function, at most. Those of tests may be longer.
const LINES_MAX: usize = 120;
/// A `match` with a few lines for each command of the queue.
const TABLE: &str = "crates/culvert-store/src/queue/queue_log.rs: write";

#[test]
fn few_entries_are_side_by_side() {
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let n_entries = std::fs::read_dir(entry.path().join("src")).unwrap().count();
        assert!(n_entries <= ENTRIES_MAX, "{name}: {n_entries} entries");
    }
}

#[test]
fn no_function_is_long() {
    let mut long = Vec::new();
    let mut n_functions = 0;
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        for file in files(&entry.unwrap().path().join("src")) {
            let text = std::fs::read_to_string(&file).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for (function, n_lines) in functions(text) {
                n_functions += 1;
                let place = file.strip_prefix(root()).unwrap().display();
                let name = format!("{place}: {function}");
                if n_lines > LINES_MAX && name != TABLE {
                    long.push(format!("{name}: {n_lines}"));
                }
            }
        }
    }
    assert!(n_functions > 5_000, "{n_functions}");
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn lengths_of_functions_are_counted() {
    let text = "fn a() {\n    1\n}\n\nimpl B {\n    pub(super) async fn c(\n        d: u8,\n    ) {\n    }\n\n    fn e();\n}\n";
    let found: Vec<(&str, usize)> = functions(text).collect();
    assert_eq!(found, [("a", 3), ("c", 4)]);
}

/// The functions of a formatted file with their lines.
fn functions(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    (0..lines.len()).filter_map(move |at| {
        let line = lines[at].trim_start();
        let indent = &lines[at][..lines[at].len() - line.len()];
        let (before, after) = line.split_once("fn ")?;
        let is_qualifier =
            |word: &str| ["async", "const", "unsafe"].contains(&word) || word.starts_with("pub");
        let is_function = before.split_whitespace().all(is_qualifier);
        let name = after.split(['(', '<']).next().filter(|_| is_function)?;
        // The body ends at the first closing brace with the indentation of the first line; a function without a body
        // ends before.
        let rest = lines[at..].iter().enumerate();
        let mut ends = rest.filter(|(_, line)| {
            let text = line.strip_prefix(indent);
            text.is_some_and(|text| {
                text == "}" || !text.starts_with([' ', ')']) && text.ends_with(';')
            })
        });
        let (n_before, end) = ends.next()?;
        end.ends_with('}').then_some((name, n_before + 1))
    })
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        match path.file_stem().unwrap().to_str().unwrap() {
            "tests" => {}
            name if name.ends_with("_tests") => {}
            _ if path.is_dir() => found.append(&mut files(&path)),
            _ if is_source => found.push(path),
            _ => {}
        }
    }
    found
}
