//! What the workflows run is pinned: the tag of an action may move to other code, its commit cannot. The corpus that
//! the fuzz targets start from is complete and small.

use std::path::{Path, PathBuf};

use super::layers::root;

#[test]
fn actions_are_pinned_to_commits() {
    let pinned = "uses: a/b/c@0123456789abcdef0123456789abcdef01234567 # v1.2.3";
    assert!(is_pinned(pinned) && is_pinned("- uses: ./.github/actions/build"));
    for line in [
        "- uses: a/b@v1",
        "- uses: a/b@0123456789abcdef0123456789abcdef01234567",
        "- uses: a/b@0123456 # v1",
        "- { uses: a/b@main }",
        "- uses: docker://a/b:1",
    ] {
        assert!(!is_pinned(line), "{line}");
    }
    let mut steps = Vec::new();
    for file in files(&root().join(".github/workflows")) {
        let text = std::fs::read_to_string(file).unwrap();
        steps.extend(
            text.lines()
                .filter(|line| line.contains("uses:"))
                .map(String::from),
        );
    }
    assert!(!steps.is_empty());
    steps.retain(|line| !is_pinned(line));
    assert!(
        steps.is_empty(),
        "no commit, or no tag as a comment: {steps:#?}"
    );
}

/// Whether a line names an action of this repository, or the commit of another one with its tag as a comment.
fn is_pinned(line: &str) -> bool {
    let (_, action) = line.split_once("uses:").unwrap();
    let action = action.trim();
    if action.starts_with("./") {
        return true;
    }
    let Some((action, tag)) = action.split_once(" # v") else {
        return false;
    };
    let (_, commit) = action.split_once('@').unwrap_or_default();
    let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    commit.len() == 40
        && commit.chars().all(is_digit)
        && tag.starts_with(|c: char| c.is_ascii_digit())
}

#[test]
fn each_fuzz_target_has_a_small_corpus() {
    let fuzz = root().join("fuzz");
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut targets: Vec<String> = files(&fuzz.join("fuzz_targets")).map(name).collect();
    let mut folders: Vec<String> = files(&fuzz.join("corpus")).map(name).collect();
    targets.sort();
    folders.sort();
    assert_eq!(targets, folders);
    let mut total = 0;
    for folder in files(&fuzz.join("corpus")) {
        let sizes = files(&folder).map(|file| file.metadata().unwrap().len());
        let bytes: u64 = sizes.sum();
        assert!(bytes > 0, "{} is empty", folder.display());
        total += bytes;
    }
    assert!(
        total < 1 << 20,
        "{total} bytes; scripts/fuzz --keep has a limit for each"
    );
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path())
}
