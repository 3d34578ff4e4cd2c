//! The house rules that manifests and the lock file can show: which crate may depend on which, and
//! which libraries are not let in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Crate, and what it may depend on of ours. ARCHITECTURE.md says why.
const LAYERS: &[(&str, &[&str])] = &[
    ("culvert-base", &[]),
    ("culvert-cel", &["culvert-base"]),
    ("culvert-events", &["culvert-base", "culvert-cel"]),
    ("culvert-mux", &[]),
    ("culvert-store", &["culvert-base"]),
    (
        "culvert-edge",
        &["culvert-base", "culvert-cel", "culvert-events"],
    ),
    ("culvert-tunnel", &["culvert-base", "culvert-mux"]),
    ("culvert-ssh", &["culvert-base", "culvert-tunnel"]),
    (
        "culvert-delivery",
        &["culvert-base", "culvert-events", "culvert-store"],
    ),
    (
        "culvert-control",
        &[
            "culvert-base",
            "culvert-cel",
            "culvert-events",
            "culvert-store",
            "culvert-edge",
            "culvert-tunnel",
            "culvert-delivery",
        ],
    ),
    (
        "culvert-api",
        &["culvert-base", "culvert-events", "culvert-control"],
    ),
    (
        "culvert",
        &[
            "culvert-api",
            "culvert-base",
            "culvert-cel",
            "culvert-control",
            "culvert-delivery",
            "culvert-edge",
            "culvert-events",
            "culvert-ssh",
            "culvert-store",
            "culvert-tunnel",
        ],
    ),
];

/// Crate of ours, and what it must never name.
const NEVER: &[(&str, &[&str])] = &[
    ("culvert-base", &["tokio", "sqlx", "hyper"]),
    ("culvert-cel", &["tokio", "sqlx", "hyper"]),
    ("culvert-events", &["tokio", "sqlx", "hyper"]),
    ("culvert-mux", &["tokio", "sqlx", "hyper"]),
    ("culvert-store", &["hyper", "axum"]),
    ("culvert-edge", &["sqlx", "axum"]),
    ("culvert-tunnel", &["sqlx", "axum", "hyper", "russh"]),
    ("culvert-ssh", &["sqlx", "axum", "hyper"]),
    ("culvert-delivery", &["sqlx", "axum"]),
    (
        "culvert-control",
        &[
            "sqlx",
            "axum",
            "hyper",
            "hyper-util",
            "hyper-rustls",
            "tokio-rustls",
        ],
    ),
    ("culvert-api", &["sqlx"]),
];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Names under `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let start = manifest
        .find("[dependencies]")
        .expect("every crate has the section");
    let section = &manifest[start + "[dependencies]".len()..];
    let section = section.split("\n[").next().unwrap_or_default();
    section
        .lines()
        .filter_map(|line| line.split(['.', '=', ' ']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .map(String::from)
        .collect()
}

#[test]
fn crates_depend_only_downwards() {
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap();
        let name = folder.file_name().into_string().unwrap();
        let manifest = std::fs::read_to_string(folder.path().join("Cargo.toml")).unwrap();
        let (_, allowed) = LAYERS
            .iter()
            .find(|(layer, _)| *layer == name)
            .unwrap_or_else(|| panic!("{name} has no layer"));
        let named = dependencies(&manifest);
        for dependency in named.iter().filter(|d| d.starts_with("culvert")) {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} must not depend on {dependency}"
            );
        }
        for (_, banned) in NEVER.iter().filter(|(layer, _)| *layer == name) {
            for dependency in *banned {
                assert!(
                    !named.contains(*dependency),
                    "{name} must not name {dependency}"
                );
            }
        }
        assert!(
            !manifest.contains("[features]"),
            "{name} has cargo features"
        );
        assert!(
            !folder.path().join("build.rs").exists(),
            "{name} has a build script"
        );
        seen.insert(name);
    }
    assert_eq!(seen.len(), LAYERS.len());
}

#[test]
fn the_lock_file_holds_nothing_that_is_banned() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let banned: Vec<&str> = deny
        .lines()
        .filter_map(|line| line.trim().strip_prefix("{ name = \"")?.split('"').next())
        .collect();
    assert!(banned.len() >= 7);
    for name in banned {
        assert!(
            !lock.contains(&format!("\nname = \"{name}\"\n")),
            "{name} is banned and in Cargo.lock"
        );
    }
}

#[test]
fn every_path_the_map_names_exists() {
    for page in ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let quoted = text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|path| path.starts_with("crates/"));
        let linked = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for path in quoted.chain(linked.filter(|path| !path.starts_with("http"))) {
            assert!(
                root().join(path).exists(),
                "{page} names `{path}`, which is not there"
            );
        }
    }
}
