//! The committed bundle matches its source, and the binary has all of its files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn crate_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a directory, by their path from `root`.
fn files(root: &Path, folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(root, &path));
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            found.insert(name.to_owned(), path);
        }
    }
    found
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("txt") => "text/plain; charset=utf-8",
        _ => panic!("{name}: a kind of file without media type"),
    }
}

#[test]
fn the_list_of_files_is_complete() {
    let dist = crate_root().join("dist");
    let mut names: Vec<String> = files(&dist, &dist).into_keys().collect();
    names.retain(|name| name != "MANIFEST" && !name.ends_with(".br"));
    let mut list = format!(
        "//! The files of `dist/`. Written by the test `the_list_of_files_is_complete`.\n\n\
         use crate::File;\n\n\
         pub(crate) static FILES: [File; {}] = [\n",
        names.len()
    );
    assert!(names.contains(&"index.html".to_owned()));
    for name in names {
        let media_type = media_type(&name);
        write!(
            list,
            "    File::new(\n        \"{name}\",\n        \"{media_type}\",\n        \
             include_bytes!(\"../dist/{name}\"),\n    )"
        )
        .unwrap();
        if dist.join(format!("{name}.br")).exists() {
            write!(
                list,
                "\n    .with_brotli(include_bytes!(\"../dist/{name}.br\"))"
            )
            .unwrap();
        }
        list.push_str(",\n");
    }
    list.push_str("];\n");
    let path = crate_root().join("src/files.rs");
    if fs::read_to_string(&path).unwrap_or_default() != list {
        fs::write(&path, list).unwrap();
        panic!("src/files.rs was stale and is rewritten: build again and commit it");
    }
}

#[test]
fn the_bundle_is_built_from_the_source() {
    let manifest = fs::read_to_string(crate_root().join("dist/MANIFEST")).unwrap();
    let console = crate_root().join("../../console");
    let mut listed = BTreeMap::new();
    for line in manifest.lines() {
        let (hash, name) = line.split_once("  ").unwrap();
        listed.insert(name.to_owned(), hash.to_owned());
    }
    // Every source file is listed, and none has changed since the build.
    for (name, _) in files(&console, &console.join("src")) {
        assert!(
            listed.contains_key(&name),
            "console/{name} is not in the bundle: npm run build"
        );
    }
    assert!(listed.contains_key("package-lock.json") && listed.contains_key("agent.html"));
    for (name, hash) in listed {
        let bytes = fs::read(console.join(&name)).unwrap_or_default();
        let mut found = String::new();
        for byte in Sha256::digest(&bytes) {
            write!(found, "{byte:02x}").unwrap();
        }
        assert_eq!(
            found, hash,
            "console/{name} has changed since the bundle: npm run build"
        );
    }
}

#[test]
fn compressed_forms_have_the_content_of_their_files() {
    let dist = crate_root().join("dist");
    let mut found = 0;
    for (name, path) in files(&dist, &dist) {
        let Some(plain) = name.strip_suffix(".br") else {
            continue;
        };
        let mut content = Vec::new();
        let packed = fs::read(path).unwrap();
        brotli::BrotliDecompress(&mut packed.as_slice(), &mut content).unwrap();
        assert_eq!(content, fs::read(dist.join(plain)).unwrap(), "{name}");
        found += 1;
    }
    assert!(found > 10, "{found} files have a compressed form");
}

#[test]
fn a_file_has_compressed_forms() {
    let file = culvert_console::find("assets/app.js").unwrap();
    assert_eq!(file.codings(), ["br", "gzip"]);
    let bytes = |coding| file.encoded(coding).len();
    assert!(bytes(Some("br")) < bytes(Some("gzip")));
    assert!(bytes(Some("gzip")) < bytes(None));
    assert_eq!(file.encoded(Some("zstd")), file.bytes);
}

#[test]
fn the_page_of_a_session_is_the_other_one_with_files_to_load_ahead() {
    let plain = std::str::from_utf8(culvert_console::page().bytes).unwrap();
    let page = std::str::from_utf8(culvert_console::page_with_session().bytes).unwrap();
    let mut rest = plain.lines().peekable();
    let further: Vec<&str> = page
        .lines()
        .filter(|line| rest.next_if_eq(line).is_none())
        .collect();
    assert_eq!(rest.next(), None, "{page}");
    assert!(further.len() >= 2, "{page}");
    for line in further {
        let is_ahead =
            line.contains("rel=\"modulepreload\"") || line.contains("rel=\"stylesheet\"");
        assert!(is_ahead, "{line}");
    }
}

#[test]
fn nothing_in_the_page_runs_inline_or_comes_from_elsewhere() {
    for page in [
        culvert_console::page(),
        culvert_console::page_with_session(),
        culvert_console::agent_page(),
    ] {
        runs_nothing_inline(std::str::from_utf8(page.bytes).unwrap());
    }
}

#[test]
fn the_console_and_the_page_of_agents_have_their_own_files() {
    assert!(culvert_console::find("agent/agent.html").is_none());
    assert!(culvert_console::agent_file("index.html").is_none());
    assert!(culvert_console::agent_file("assets/agent.js").is_some());
}

fn runs_nothing_inline(page: &str) {
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "{page}"
    );
    for tag in page.split("<script").skip(1) {
        let (attributes, rest) = tag.split_once('>').unwrap();
        assert!(attributes.contains("src="), "{attributes}");
        assert!(rest.starts_with("</script>"), "{rest}");
    }
    assert!(
        !page.contains("<style") && !page.contains("style="),
        "{page}"
    );
}
