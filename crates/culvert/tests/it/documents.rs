//! Generated documents are current: a stale one is rewritten here, and the test fails once so that
//! the difference is reviewed and committed. Links between documents, and paths of crates in them, lead to
//! files and headings that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use culvert_destinations::TYPES;

use super::layers::root;

#[test]
fn generated_documents_are_current() {
    let pages = [
        ("docs/reference/settings.md", culvert::config::reference()),
        (
            "docs/reference/events.md",
            culvert_control::catalogue().markdown(),
        ),
        (
            "docs/reference/traffic-policy.md",
            culvert_policy::reference(culvert_edge_config::ACTIONS),
        ),
        (
            "docs/reference/api.md",
            culvert_api::reference::api(culvert_control::operation_specs(), |generator| {
                TYPES.schema(generator)
            }),
        ),
        (
            "docs/reference/edge-errors.md",
            culvert_policy::problem::errors(),
        ),
        ("docs/reference/sizes.md", culvert_edge::sizes()),
        ("docs/reference/errors.md", culvert_api::reference::errors()),
        ("docs/reference/commands.md", culvert::cli::reference()),
        (
            "docs/openapi.json",
            format!(
                "{:#}\n",
                culvert_api::openapi(culvert_control::operation_specs(), |generator| TYPES
                    .schema(generator))
            ),
        ),
    ];
    let mut stale = Vec::new();
    for (path, text) in pages {
        let file = root().join(path);
        if std::fs::read_to_string(&file).unwrap_or_default() != text {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, text).unwrap();
            stale.push(path);
        }
    }
    assert!(
        stale.is_empty(),
        "rewritten, look at them and commit them: {stale:?}"
    );
}

#[test]
fn links_between_documents_resolve() {
    let mut documents = markdown(&root().join("docs"));
    for entry in std::fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            documents.push(path);
        }
    }
    let mut broken = Vec::new();
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for path in quoted(&text).filter(|path| path.starts_with("crates/")) {
            if !root().join(path).exists() {
                broken.push(format!("{}: `{path}`", document.display()));
            }
        }
        for link in links(&text) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap().join(path)
            };
            let found = target.exists()
                && (heading.is_empty()
                    || anchors(&std::fs::read_to_string(&target).unwrap()).contains(heading));
            if !found {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The page about interoperability names files that exist, all suites of foreign clients and all destinations.
#[test]
fn every_foreign_suite_is_listed() {
    let page = root().join("docs/explanation/interoperability.md");
    let text = std::fs::read_to_string(page).unwrap();
    let named: BTreeSet<&str> = quoted(&text).collect();
    for path in named.iter().filter(|name| name.contains('/')) {
        let exists = root().join(path).exists();
        assert!(
            exists || !path.contains('.') && !path.contains("tests/"),
            "{path}"
        );
    }
    for entry in std::fs::read_dir(root().join("tests/clients")).unwrap() {
        let folder = entry.unwrap().file_name().into_string().unwrap();
        let start = format!("tests/clients/{folder}");
        let is_named = named.iter().any(|name| name.starts_with(&start));
        assert!(is_named, "{start} is not listed");
    }
    for target in TYPES.all() {
        assert!(named.contains(target.name), "{} is not listed", target.name);
    }
}

/// ShellCheck warns of nothing in the scripts.
#[test]
fn shell_scripts_have_no_warnings() {
    let folders = ["scripts", "packaging", "packaging/deb", "benches"];
    let files = folders
        .iter()
        .filter_map(|folder| std::fs::read_dir(root().join(folder)).ok());
    let files = files.flatten().map(|entry| entry.unwrap().path());
    let is_script = |file: &PathBuf| {
        let first = std::fs::read_to_string(file).unwrap_or_default();
        let first = first.lines().next().unwrap_or_default();
        first.starts_with("#!") && first.ends_with("sh")
    };
    let scripts: Vec<PathBuf> = files
        .chain([root().join("test")])
        .filter(is_script)
        .collect();
    assert!(scripts.len() > 12, "{scripts:?}");
    let checked = std::process::Command::new("shellcheck")
        .args(["--severity=warning", "--format=gcc"])
        .args(scripts)
        .output();
    match checked {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), ""),
        Err(_) => culvert_testing::ignore("shellcheck is not here"),
    }
}

fn markdown(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.append(&mut markdown(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// The lines of a document outside its code blocks.
fn prose(document: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    document.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The pieces of a document's prose that are inside backticks.
fn quoted(document: &str) -> impl Iterator<Item = &str> {
    prose(document).flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Targets of the links and images of a document, without those on other sites.
fn links(document: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(document) {
        // Every second piece is inside backticks.
        let text: String = line.split('`').step_by(2).collect();
        for (before, after) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
            for piece in text.split(before).skip(1) {
                let target = piece.split(after).next().unwrap();
                if !target.contains(':') {
                    found.push(target.to_owned());
                }
            }
        }
    }
    found
}

/// The anchors that GitHub makes of a document's headings.
fn anchors(document: &str) -> BTreeSet<String> {
    prose(document)
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}
