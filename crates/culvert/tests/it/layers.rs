//! The house rules that manifests and the lock file can show: which crate may depend on which, and
//! which libraries are not let in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crate, and what it may depend on of ours. ARCHITECTURE.md says why.
const LAYERS: &[(&str, &[&str])] = &[
    ("culvert-aws", &["culvert-base"]),
    ("culvert-base", &[]),
    ("culvert-cel", &["culvert-base"]),
    ("culvert-events", &["culvert-base", "culvert-cel"]),
    ("culvert-console", &[]),
    ("culvert-http", &[]),
    ("culvert-io", &["culvert-base", "culvert-http"]),
    ("culvert-mux", &[]),
    ("culvert-overload", &["culvert-base"]),
    ("culvert-statistics", &["culvert-base"]),
    ("culvert-store", &["culvert-base"]),
    ("culvert-testing", &[]),
    ("culvert-tls", &["culvert-base"]),
    (
        "culvert-dns",
        &["culvert-aws", "culvert-base", "culvert-tls"],
    ),
    (
        "culvert-policy",
        &[
            "culvert-base",
            "culvert-cel",
            "culvert-events",
            "culvert-http",
            "culvert-tls",
        ],
    ),
    (
        "culvert-login",
        &[
            "culvert-base",
            "culvert-cel",
            "culvert-events",
            "culvert-http",
            "culvert-policy",
        ],
    ),
    (
        "culvert-edge",
        &[
            "culvert-base",
            "culvert-cel",
            "culvert-events",
            "culvert-http",
            "culvert-io",
            "culvert-login",
            "culvert-overload",
            "culvert-policy",
            "culvert-statistics",
            "culvert-tls",
            "culvert-upstream",
        ],
    ),
    (
        "culvert-upstream",
        &[
            "culvert-base",
            "culvert-http",
            "culvert-io",
            "culvert-policy",
            "culvert-tls",
        ],
    ),
    (
        "culvert-tunnel",
        &["culvert-base", "culvert-http", "culvert-io", "culvert-mux"],
    ),
    ("culvert-ssh", &["culvert-base", "culvert-tunnel"]),
    (
        "culvert-delivery",
        &[
            "culvert-aws",
            "culvert-base",
            "culvert-events",
            "culvert-statistics",
            "culvert-store",
        ],
    ),
    (
        "culvert-control",
        &[
            "culvert-base",
            "culvert-cel",
            "culvert-events",
            "culvert-statistics",
            "culvert-store",
            "culvert-edge",
            "culvert-login",
            "culvert-policy",
            "culvert-tls",
            "culvert-tunnel",
            "culvert-delivery",
        ],
    ),
    (
        "culvert-api",
        &["culvert-base", "culvert-console", "culvert-control"],
    ),
    (
        "culvert",
        &[
            "culvert-api",
            "culvert-aws",
            "culvert-base",
            "culvert-cel",
            "culvert-console",
            "culvert-control",
            "culvert-delivery",
            "culvert-dns",
            "culvert-edge",
            "culvert-events",
            "culvert-http",
            "culvert-login",
            "culvert-policy",
            "culvert-ssh",
            "culvert-statistics",
            "culvert-store",
            "culvert-tls",
            "culvert-tunnel",
        ],
    ),
];

/// Crate of ours, and what it must never name.
const NEVER: &[(&str, &[&str])] = &[
    ("culvert-aws", &["tokio", "sqlx", "hyper"]),
    ("culvert-base", &["tokio", "sqlx", "hyper"]),
    ("culvert-cel", &["tokio", "sqlx", "hyper"]),
    ("culvert-events", &["tokio", "sqlx", "hyper"]),
    ("culvert-console", &["tokio", "sqlx", "hyper"]),
    (
        "culvert-http",
        &["tokio", "tokio-util", "hyper", "h2", "rustls", "socket2"],
    ),
    ("culvert-io", &["sqlx", "axum", "hyper"]),
    ("culvert-mux", &["tokio", "sqlx", "hyper"]),
    ("culvert-overload", &["sqlx", "axum", "hyper", "rustls"]),
    ("culvert-statistics", &["tokio", "sqlx", "hyper"]),
    ("culvert-store", &["hyper", "axum"]),
    ("culvert-login", &["sqlx", "axum", "hyper", "tokio-rustls"]),
    ("culvert-policy", &["sqlx", "axum", "hyper", "tokio-rustls"]),
    ("culvert-tls", &["sqlx", "axum", "hyper", "tokio-rustls"]),
    ("culvert-dns", &["sqlx", "axum", "hyper", "tokio-rustls"]),
    ("culvert-upstream", &["sqlx", "axum"]),
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

/// Names under a section of a manifest, such as `[dependencies]`; none without the section.
fn dependencies(manifest: &str, section: &str) -> BTreeSet<String> {
    let (_, rest) = manifest
        .split_once(&format!("\n{section}\n"))
        .unwrap_or_default();
    let section = rest.split("\n[").next().unwrap_or_default();
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
        let named = dependencies(&manifest, "[dependencies]");
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

/// Nouns of the product. `culvert-http` speaks the protocol's.
const PRODUCT: [&str; 15] = [
    "account", "acme", "agent", "audit", "console", "culvert", "edge", "endpoint", "ngrok",
    "policies", "policy", "snapshot", "tunnel", "upstream", "webhook",
];

#[test]
fn the_http_crate_has_no_product_terms() {
    let source = sources(&root().join("crates/culvert-http/src")).to_lowercase();
    let source = source.replace("user-agent", "");
    let words = source.split(|c: char| !c.is_ascii_alphabetic());
    let found: BTreeSet<&str> = words
        .filter(|word| {
            let singular = word.strip_suffix('s').unwrap_or(word);
            PRODUCT.contains(word) || PRODUCT.contains(&singular)
        })
        .collect();
    assert!(found.is_empty(), "words of the product: {found:?}");
}

#[test]
fn the_lock_file_has_no_banned_crates() {
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

/// Versions by crate, of all crates in the lock file.
fn locked() -> BTreeMap<String, Vec<String>> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let quoted = |text: &str, key: &str| {
        let (_, rest) = text.split_once(&format!("\n{key} = \"")).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let of_crate = versions.entry(quoted(package, "name")).or_default();
        of_crate.push(quoted(package, "version"));
    }
    versions
}

#[test]
fn a_second_version_of_a_crate_has_a_reason() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let mut reasons: BTreeSet<&str> = deny
        .lines()
        .filter_map(|line| line.trim().strip_prefix("{ crate = \"")?.split('"').next())
        .collect();
    let mut missing = Vec::new();
    for (name, versions) in locked() {
        let unwanted = versions
            .iter()
            .filter(|version| !reasons.remove(format!("{name}@{version}").as_str()))
            .count();
        if unwanted > 1 {
            missing.push(format!("{name}: {versions:?}"));
        }
    }
    assert!(missing.is_empty(), "duplicates without reason: {missing:?}");
    assert!(reasons.is_empty(), "no longer in Cargo.lock: {reasons:?}");
}

/// The text of all Rust files below a folder; empty if there is none.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
    text
}

#[test]
fn every_dependency_is_used() {
    // Package, and the name of its library.
    const RENAMED: [(&str, &str); 1] = [("md-5", "md5")];
    for (layer, _) in LAYERS {
        let folder = root().join("crates").join(layer);
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let source = sources(&folder.join("src"));
        let with_tests = format!(
            "{source}{}{}",
            sources(&folder.join("tests")),
            sources(&folder.join("benches"))
        );
        let sections = [
            ("[dependencies]", &source),
            ("[dev-dependencies]", &with_tests),
        ];
        for (section, text) in sections {
            for name in dependencies(&manifest, section) {
                let renamed = RENAMED.iter().find(|(package, _)| *package == name);
                let library = renamed.map_or(name.replace('-', "_"), |(_, library)| {
                    String::from(*library)
                });
                let is_word = |at: usize| {
                    let bytes = text.as_bytes();
                    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                    let end = at + library.len();
                    (at == 0 || !is_part(bytes[at - 1]))
                        && bytes.get(end).is_none_or(|b| !is_part(*b))
                };
                assert!(
                    text.match_indices(&library).any(|(at, _)| is_word(at)),
                    "{layer} does not use `{name}` of {section}"
                );
            }
        }
    }
}

#[test]
fn every_path_in_the_architecture_document_exists() {
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

#[test]
fn code_numbers_are_in_one_module() {
    let made = ["Code", "::new("].concat();
    let everywhere = sources(&root().join("crates")).matches(&made).count();
    let module = root().join("crates/culvert-base/src/code.rs");
    let there = std::fs::read_to_string(module).unwrap();
    assert_eq!(everywhere, there.matches(&made).count());
}
