//! The house rules that manifests and the lock file can show: which crate may depend on which, and
//! which libraries are not let in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crate, and what it may depend on of ours. ARCHITECTURE.md says why.
const LAYERS: &[(&str, &[&str])] = &[
    ("culvert-aws", &["culvert-base"]),
    ("culvert-base", &[]),
    (
        "culvert-agent",
        &[
            "culvert-base",
            "culvert-command",
            "culvert-console",
            "culvert-http",
            "culvert-tunnel",
            "culvert-yaml",
        ],
    ),
    ("culvert-cel", &["culvert-base"]),
    ("culvert-command", &["culvert-base"]),
    ("culvert-events", &["culvert-base", "culvert-cel"]),
    ("culvert-console", &[]),
    ("culvert-http", &[]),
    ("culvert-import", &[]),
    ("culvert-io", &["culvert-base", "culvert-http"]),
    ("culvert-ip-data", &["culvert-base"]),
    ("culvert-mux", &[]),
    ("culvert-overload", &["culvert-base"]),
    ("culvert-site", &["culvert-base", "culvert-io"]),
    ("culvert-statistics", &["culvert-base"]),
    ("culvert-store", &["culvert-base", "culvert-tlog"]),
    ("culvert-testing", &[]),
    ("culvert-tlog", &[]),
    ("culvert-tls", &["culvert-base"]),
    ("culvert-traces", &["culvert-base"]),
    ("culvert-webhooks", &["culvert-base", "culvert-http"]),
    ("culvert-yaml", &[]),
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
            "culvert-ip-data",
            "culvert-tls",
            "culvert-traces",
            "culvert-yaml",
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
        "culvert-actions",
        &[
            "culvert-base",
            "culvert-cel",
            "culvert-events",
            "culvert-http",
            "culvert-ip-data",
            "culvert-policy",
            "culvert-tls",
            "culvert-webhooks",
        ],
    ),
    (
        "culvert-edge-config",
        &[
            "culvert-actions",
            "culvert-base",
            "culvert-events",
            "culvert-io",
            "culvert-login",
            "culvert-policy",
            "culvert-tls",
            "culvert-upstream",
        ],
    ),
    (
        "culvert-policy-editor",
        &[
            "culvert-base",
            "culvert-cel",
            "culvert-edge-config",
            "culvert-login",
            "culvert-policy",
            "culvert-yaml",
        ],
    ),
    (
        "culvert-edge",
        &[
            "culvert-base",
            "culvert-cel",
            "culvert-edge-config",
            "culvert-events",
            "culvert-http",
            "culvert-io",
            "culvert-login",
            "culvert-overload",
            "culvert-policy",
            "culvert-statistics",
            "culvert-tls",
            "culvert-traces",
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
            "culvert-site",
            "culvert-tls",
        ],
    ),
    (
        "culvert-tunnel",
        &[
            "culvert-base",
            "culvert-http",
            "culvert-io",
            "culvert-mux",
            "culvert-site",
        ],
    ),
    ("culvert-ssh", &["culvert-base", "culvert-tunnel"]),
    (
        "culvert-delivery",
        &[
            "culvert-base",
            "culvert-events",
            "culvert-statistics",
            "culvert-store",
            "culvert-target",
        ],
    ),
    (
        "culvert-destinations",
        &[
            "culvert-aws",
            "culvert-base",
            "culvert-events",
            "culvert-target",
            "culvert-traces",
        ],
    ),
    (
        "culvert-target",
        &["culvert-base", "culvert-events", "culvert-io"],
    ),
    (
        "culvert-resources",
        &[
            "culvert-base",
            "culvert-cel",
            "culvert-events",
            "culvert-store",
        ],
    ),
    (
        "culvert-access",
        &["culvert-base", "culvert-resources", "culvert-store"],
    ),
    (
        "culvert-identity",
        &[
            "culvert-access",
            "culvert-base",
            "culvert-events",
            "culvert-login",
            "culvert-resources",
            "culvert-store",
        ],
    ),
    (
        "culvert-certificates",
        &[
            "culvert-base",
            "culvert-resources",
            "culvert-store",
            "culvert-tls",
            "culvert-tunnel",
        ],
    ),
    (
        "culvert-endpoints",
        &[
            "culvert-access",
            "culvert-base",
            "culvert-cel",
            "culvert-certificates",
            "culvert-edge-config",
            "culvert-events",
            "culvert-login",
            "culvert-policy",
            "culvert-resources",
            "culvert-store",
            "culvert-tls",
        ],
    ),
    (
        "culvert-agents",
        &[
            "culvert-access",
            "culvert-base",
            "culvert-certificates",
            "culvert-edge-config",
            "culvert-endpoints",
            "culvert-events",
            "culvert-identity",
            "culvert-policy",
            "culvert-resources",
            "culvert-statistics",
            "culvert-store",
            "culvert-tunnel",
        ],
    ),
    (
        "culvert-event-config",
        &[
            "culvert-base",
            "culvert-delivery",
            "culvert-edge-config",
            "culvert-events",
            "culvert-policy",
            "culvert-resources",
            "culvert-statistics",
            "culvert-store",
            "culvert-target",
        ],
    ),
    (
        "culvert-server-log",
        &[
            "culvert-base",
            "culvert-certificates",
            "culvert-delivery",
            "culvert-event-config",
            "culvert-events",
            "culvert-identity",
            "culvert-resources",
            "culvert-store",
            "culvert-target",
        ],
    ),
    (
        "culvert-control",
        &[
            "culvert-access",
            "culvert-agents",
            "culvert-base",
            "culvert-certificates",
            "culvert-delivery",
            "culvert-edge-config",
            "culvert-endpoints",
            "culvert-event-config",
            "culvert-events",
            "culvert-identity",
            "culvert-login",
            "culvert-policy",
            "culvert-policy-editor",
            "culvert-resources",
            "culvert-server-log",
            "culvert-statistics",
            "culvert-store",
            "culvert-target",
            "culvert-tunnel",
        ],
    ),
    (
        "culvert-api-http",
        &[
            "culvert-base",
            "culvert-events",
            "culvert-http",
            "culvert-resources",
        ],
    ),
    (
        "culvert-api",
        &[
            "culvert-api-http",
            "culvert-base",
            "culvert-console",
            "culvert-control",
        ],
    ),
    (
        "culvert-installation",
        &[
            "culvert-aws",
            "culvert-base",
            "culvert-command",
            "culvert-dns",
            "culvert-edge-config",
            "culvert-events",
            "culvert-io",
            "culvert-login",
            "culvert-policy",
            "culvert-resources",
            "culvert-store",
            "culvert-target",
            "culvert-tlog",
            "culvert-tls",
            "culvert-tunnel",
            "culvert-upstream",
        ],
    ),
    (
        "culvert-cli",
        &[
            "culvert-agent",
            "culvert-base",
            "culvert-command",
            "culvert-edge-config",
            "culvert-events",
            "culvert-import",
            "culvert-installation",
            "culvert-policy",
            "culvert-policy-editor",
            "culvert-resources",
            "culvert-store",
            "culvert-tlog",
            "culvert-tls",
            "culvert-yaml",
        ],
    ),
    (
        "culvert-metrics",
        &[
            "culvert-base",
            "culvert-control",
            "culvert-delivery",
            "culvert-edge",
            "culvert-events",
            "culvert-policy",
            "culvert-statistics",
            "culvert-store",
            "culvert-tunnel",
        ],
    ),
    (
        "culvert-audit-tree",
        &[
            "culvert-base",
            "culvert-control",
            "culvert-target",
            "culvert-installation",
            "culvert-store",
            "culvert-tlog",
        ],
    ),
    (
        "culvert-admin",
        &[
            "culvert-audit-tree",
            "culvert-base",
            "culvert-command",
            "culvert-control",
            "culvert-installation",
            "culvert-store",
            "culvert-tlog",
        ],
    ),
    (
        "culvert-server",
        &[
            "culvert-api",
            "culvert-audit-tree",
            "culvert-base",
            "culvert-command",
            "culvert-control",
            "culvert-delivery",
            "culvert-destinations",
            "culvert-dns",
            "culvert-edge",
            "culvert-events",
            "culvert-installation",
            "culvert-login",
            "culvert-metrics",
            "culvert-policy",
            "culvert-ssh",
            "culvert-statistics",
            "culvert-store",
            "culvert-target",
            "culvert-tls",
            "culvert-traces",
            "culvert-tunnel",
        ],
    ),
    (
        "culvert",
        &[
            "culvert-admin",
            "culvert-agent",
            "culvert-base",
            "culvert-cli",
            "culvert-command",
            "culvert-control",
            "culvert-installation",
            "culvert-metrics",
            "culvert-server",
        ],
    ),
];

/// Crate of ours, and what it must never name.
const NEVER: &[(&str, &[&str])] = &[
    ("culvert-agent", &["sqlx", "axum", "russh"]),
    ("culvert-aws", &["tokio", "sqlx", "hyper"]),
    ("culvert-base", &["tokio", "sqlx", "hyper"]),
    ("culvert-cel", &["tokio", "sqlx", "hyper"]),
    ("culvert-events", &["tokio", "sqlx", "hyper"]),
    ("culvert-cli", &["sqlx", "axum"]),
    ("culvert-command", &["sqlx", "hyper"]),
    ("culvert-console", &["tokio", "sqlx", "hyper"]),
    (
        "culvert-http",
        &["tokio", "tokio-util", "hyper", "h2", "rustls", "socket2"],
    ),
    ("culvert-import", &["tokio", "sqlx", "hyper"]),
    ("culvert-installation", &["sqlx", "axum", "hyper"]),
    ("culvert-io", &["sqlx", "axum", "hyper"]),
    ("culvert-ip-data", &["tokio", "sqlx", "hyper"]),
    ("culvert-mux", &["tokio", "sqlx", "hyper"]),
    ("culvert-overload", &["sqlx", "axum", "hyper", "rustls"]),
    ("culvert-statistics", &["tokio", "sqlx", "hyper"]),
    ("culvert-traces", &["sqlx", "axum", "hyper", "rustls"]),
    ("culvert-store", &["hyper", "axum"]),
    ("culvert-login", &["sqlx", "axum", "hyper", "tokio-rustls"]),
    (
        "culvert-actions",
        &["sqlx", "axum", "hyper", "tokio-rustls"],
    ),
    ("culvert-policy-editor", &["tokio", "sqlx", "hyper"]),
    ("culvert-policy", &["sqlx", "axum", "hyper", "tokio-rustls"]),
    ("culvert-tls", &["sqlx", "axum", "hyper", "tokio-rustls"]),
    ("culvert-dns", &["sqlx", "axum", "hyper", "tokio-rustls"]),
    ("culvert-upstream", &["sqlx", "axum"]),
    ("culvert-edge", &["sqlx", "axum"]),
    (
        "culvert-edge-config",
        &["sqlx", "axum", "hyper", "tokio", "tokio-rustls"],
    ),
    ("culvert-tunnel", &["sqlx", "axum", "hyper", "russh"]),
    ("culvert-ssh", &["sqlx", "axum", "hyper"]),
    ("culvert-delivery", &["sqlx", "axum", "hyper"]),
    ("culvert-destinations", &["sqlx", "axum", "hyper"]),
    ("culvert-target", &["sqlx", "axum"]),
    (
        "culvert-access",
        &[
            "sqlx",
            "axum",
            "hyper",
            "hyper-util",
            "hyper-rustls",
            "tokio-rustls",
        ],
    ),
    (
        "culvert-identity",
        &[
            "sqlx",
            "axum",
            "hyper",
            "hyper-util",
            "hyper-rustls",
            "tokio-rustls",
        ],
    ),
    (
        "culvert-certificates",
        &[
            "sqlx",
            "axum",
            "hyper",
            "hyper-util",
            "hyper-rustls",
            "tokio-rustls",
        ],
    ),
    (
        "culvert-endpoints",
        &[
            "sqlx",
            "axum",
            "hyper",
            "hyper-util",
            "hyper-rustls",
            "tokio-rustls",
        ],
    ),
    (
        "culvert-agents",
        &[
            "sqlx",
            "axum",
            "hyper",
            "hyper-util",
            "hyper-rustls",
            "tokio-rustls",
        ],
    ),
    (
        "culvert-event-config",
        &[
            "sqlx",
            "axum",
            "hyper",
            "hyper-util",
            "hyper-rustls",
            "tokio-rustls",
        ],
    ),
    (
        "culvert-resources",
        &[
            "sqlx",
            "axum",
            "hyper",
            "hyper-util",
            "hyper-rustls",
            "tokio-rustls",
        ],
    ),
    (
        "culvert-server-log",
        &[
            "sqlx",
            "axum",
            "hyper",
            "hyper-util",
            "hyper-rustls",
            "tokio-rustls",
        ],
    ),
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
    ("culvert-api-http", &["sqlx"]),
    ("culvert-metrics", &["sqlx", "axum"]),
    ("culvert-audit-tree", &["sqlx", "axum", "hyper"]),
    ("culvert-admin", &["sqlx", "axum", "hyper"]),
    ("culvert-server", &["sqlx", "axum", "hyper"]),
    ("culvert-webhooks", &["tokio", "sqlx", "hyper"]),
    ("culvert-yaml", &["tokio", "sqlx", "hyper"]),
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

/// Crates that no program of an agent may contain, however deep.
const SERVER: [&str; 29] = [
    "culvert-access",
    "culvert-actions",
    "culvert-admin",
    "culvert-agents",
    "culvert-api",
    "culvert-api-http",
    "culvert-audit-tree",
    "culvert-certificates",
    "culvert-cli",
    "culvert-control",
    "culvert-delivery",
    "culvert-destinations",
    "culvert-edge",
    "culvert-edge-config",
    "culvert-endpoints",
    "culvert-event-config",
    "culvert-identity",
    "culvert-installation",
    "culvert-login",
    "culvert-metrics",
    "culvert-policy",
    "culvert-policy-editor",
    "culvert-resources",
    "culvert-server",
    "culvert-server-log",
    "culvert-store",
    "culvert-target",
    "culvert-tls",
    "culvert-upstream",
];

#[test]
fn the_agent_has_no_server_code() {
    let crates = root().join("crates");
    let mut named = vec!["culvert-agent".to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(name) = named.pop() {
        let manifest = std::fs::read_to_string(crates.join(&name).join("Cargo.toml")).unwrap();
        let below = dependencies(&manifest, "[dependencies]");
        named.extend(below.into_iter().filter(|it| it.starts_with("culvert")));
        seen.insert(name);
    }
    for name in SERVER {
        assert!(crates.join(name).exists(), "{name} is no crate");
        assert!(!seen.contains(name), "the agent depends on {name}");
    }
    // The walk went below the first level.
    assert!(seen.contains("culvert-tunnel"), "{seen:?}");
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

/// A crate and its version.
type Package = (String, String);

/// All crates in the lock file, with what each depends on.
fn locked() -> BTreeMap<Package, Vec<Package>> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let quoted = |text: &str, key: &str| {
        let (_, rest) = text.split_once(&format!("\n{key} = \"")).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let sections = || lock.split("[[package]]").skip(1);
    let package = |section| (quoted(section, "name"), quoted(section, "version"));
    let versions: BTreeMap<String, String> = sections().map(package).collect();
    let below = |section: &str| {
        let (_, rest) = section
            .split_once("\ndependencies = [\n")
            .unwrap_or_default();
        let lines = rest.lines().take_while(|line| *line != "]");
        lines
            .map(|line| {
                // The version stands there if the lock file has several.
                let mut words = line.trim_matches([' ', '"', ',']).split(' ');
                let name = words.next().unwrap().to_owned();
                let version = words.next().map(str::to_owned);
                let version = version.unwrap_or_else(|| versions[&name].clone());
                (name, version)
            })
            .collect()
    };
    sections()
        .map(|section| (package(section), below(section)))
        .collect()
}

/// The crates that a list of `deny.toml` names, with their versions.
fn listed<'d>(deny: &'d str, list: &str) -> BTreeSet<&'d str> {
    let (_, rest) = deny.split_once(&format!("\n{list} = [\n")).unwrap();
    rest.lines()
        .take_while(|line| *line != "]")
        .filter_map(|line| line.trim().strip_prefix("{ crate = \"")?.split('"').next())
        .collect()
}

#[test]
fn a_second_version_of_a_crate_has_a_reason() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let mut reasons = listed(&deny, "skip");
    let locked = locked();
    let mut trees = listed(&deny, "skip-tree");
    // Only packages outside these trees; cargo-deny skips all that is below the crates, which is less strict.
    let mut left: Vec<&Package> = locked
        .keys()
        .filter(|(name, _)| name.starts_with("culvert"))
        .collect();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut in_trees = BTreeSet::new();
    while let Some(package) = left.pop() {
        let (name, version) = package;
        let spelled = format!("{name}@{version}");
        if trees.contains(spelled.as_str()) {
            in_trees.insert(spelled);
        } else if versions.entry(name).or_default().insert(version) {
            left.extend(&locked[package]);
        }
    }
    trees.retain(|spelled| !in_trees.contains(*spelled));
    assert!(trees.is_empty(), "no longer in Cargo.lock: {trees:?}");
    let mut missing = Vec::new();
    for (name, versions) in versions {
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

#[test]
fn skipped_trees_are_of_tests_only() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let trees = listed(&deny, "skip-tree");
    assert!(!trees.is_empty());
    for (layer, _) in LAYERS {
        let manifest = root().join("crates").join(layer).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let named = dependencies(&manifest, "[dependencies]");
        for tree in &trees {
            let (name, _) = tree.split_once('@').unwrap();
            assert!(!named.contains(name), "{layer} depends on {name}");
        }
    }
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
fn every_path_in_documents_of_the_code_exists() {
    let crates = std::fs::read_dir(root().join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path().join("src/lib.rs"));
    let pages = ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"].map(|page| root().join(page));
    for page in pages.into_iter().chain(crates) {
        let text = std::fs::read_to_string(&page).unwrap();
        let is_page = page.extension().is_some_and(|end| end == "md");
        let text: String = match is_page {
            true => text,
            false => text
                .lines()
                .filter_map(|line| line.strip_prefix("//!"))
                .collect(),
        };
        let page = page.display();
        let quoted = text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|path| path.starts_with("crates/"));
        let linked = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        let linked = linked.filter(|path| is_page && !path.starts_with("http"));
        for path in quoted.chain(linked) {
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
    let module = root().join("crates/culvert-base/src/error/code.rs");
    let there = std::fs::read_to_string(module).unwrap();
    assert_eq!(everywhere, there.matches(&made).count());
}
