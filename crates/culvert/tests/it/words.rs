//! Turns of phrase that make a reader look twice. `words.txt` holds how often each may occur in documents,
//! in messages and in comments. The numbers only shrink: a count above its maximum fails, and a count below
//! it rewrites the file and fails once, so that the lower maximum is committed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::layers::root;

/// The maxima: documents, messages, comments, phrase.
const MAXIMA: &str = "crates/culvert/tests/it/words.txt";
/// This file and the maxima quote the phrases.
const THIS: &str = "crates/culvert/tests/it/words.rs";
/// The columns of [`MAXIMA`].
const SCOPES: [&str; 3] = ["documents", "messages", "comments"];

#[test]
fn banned_phrases_only_become_fewer() {
    let texts = texts();
    let maxima = std::fs::read_to_string(root().join(MAXIMA)).unwrap();
    let mut rewritten = String::new();
    let mut above = String::new();
    for line in maxima.lines() {
        if line.starts_with('#') {
            writeln!(rewritten, "{line}").unwrap();
            continue;
        }
        let mut columns = line.split_whitespace();
        let most: Vec<usize> = (0..SCOPES.len())
            .map(|_| columns.next().unwrap().parse().unwrap())
            .collect();
        let phrase = columns.collect::<Vec<_>>().join(" ");
        let mut kept = Vec::new();
        for ((scope, texts), most) in SCOPES.iter().zip(&texts).zip(most) {
            let places: BTreeMap<&Path, usize> = texts
                .iter()
                .map(|(file, text)| (file.as_path(), occurrences(text, &phrase)))
                .filter(|(_, count)| *count > 0)
                .collect();
            let count: usize = places.values().sum();
            if count > most {
                writeln!(
                    above,
                    "{scope}: `{phrase}` occurs {count} times, at most {most} are allowed: {places:?}"
                )
                .unwrap();
            }
            kept.push(count.min(most));
        }
        writeln!(
            rewritten,
            "{:4} {:4} {:4} {phrase}",
            kept[0], kept[1], kept[2]
        )
        .unwrap();
    }
    assert!(above.is_empty(), "write these differently:\n{above}");
    if rewritten != maxima {
        std::fs::write(root().join(MAXIMA), &rewritten).unwrap();
        panic!("{MAXIMA} has lower maxima now: commit it");
    }
}

/// Whole words of `text`, which is in lower case.
fn occurrences(text: &str, phrase: &str) -> usize {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(phrase)
        .filter(|(at, _)| {
            !is_word(text[..*at].chars().next_back())
                && !is_word(text[at + phrase.len()..].chars().next())
        })
        .count()
}

/// The texts of each scope by file, in lower case, with single spaces between words.
fn texts() -> [Vec<(PathBuf, String)>; 3] {
    let mut scopes: [Vec<(PathBuf, String)>; 3] = Default::default();
    let mut add = |scope: usize, file: &Path, text: &str| {
        let words: Vec<_> = text.split_whitespace().collect();
        let file = file.strip_prefix(root()).unwrap().to_owned();
        scopes[scope].push((file, words.join(" ").to_lowercase()));
    };
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let file = root().join(name);
        add(0, &file, &std::fs::read_to_string(&file).unwrap());
    }
    for file in files(&root().join("docs"), &["md", "json"]) {
        add(0, &file, &std::fs::read_to_string(&file).unwrap());
    }
    for file in files(&root().join("crates"), &["rs"]) {
        if file.ends_with(THIS) {
            continue;
        }
        let source = std::fs::read_to_string(&file).unwrap();
        let (literals, comments) = literals_and_comments(without_tests(&source));
        if !is_test(&file) {
            add(1, &file, &literals);
        }
        add(2, &file, &comments);
    }
    scopes
}

fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.append(&mut files(&path, extensions));
        } else if path
            .extension()
            .is_some_and(|extension| extensions.iter().any(|wanted| extension == *wanted))
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Whether all of a file is for tests.
fn is_test(file: &Path) -> bool {
    let file = file.strip_prefix(root()).unwrap();
    file.iter().any(|part| {
        matches!(
            part.to_str(),
            Some("tests" | "tests.rs" | "conformance" | "conformance.rs" | "fuzz.rs" | "fake.rs")
        )
    })
}

/// A source without the module of tests at its end.
fn without_tests(source: &str) -> &str {
    const MODULE: &str = "\n#[cfg(test)]\nmod ";
    source
        .match_indices(MODULE)
        .find(|(at, _)| {
            let rest = &source[at + MODULE.len()..];
            rest.lines().next().is_some_and(|line| line.ends_with('{'))
        })
        .map_or(source, |(at, _)| &source[..at])
}

/// All string literals of a source, and all its comments, each with spaces between them.
fn literals_and_comments(source: &str) -> (String, String) {
    let (mut literals, mut comments) = (String::new(), String::new());
    let mut rest = source;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("//") {
            let end = comment.find('\n').unwrap_or(comment.len());
            comments.push_str(comment[..end].trim_start_matches(['/', '!']));
            comments.push(' ');
            rest = &comment[end..];
        } else if let Some((hashes, literal)) = raw(rest, before) {
            let end = format!("\"{}", "#".repeat(hashes));
            let length = literal.find(&end).unwrap();
            literals.push_str(&literal[..length]);
            literals.push(' ');
            rest = &literal[length + end.len()..];
        } else if first == '"' {
            let literal = &rest[1..];
            let mut end = 0;
            let bytes = literal.as_bytes();
            while bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            literals.push_str(&literal[..end].replace("\\\n", "").replace("\\n", " "));
            literals.push(' ');
            rest = &literal[end + 1..];
        } else if let Some(after) = character(rest) {
            rest = after;
        } else {
            rest = &rest[first.len_utf8()..];
        }
        before = first;
    }
    (literals, comments)
}

/// A raw literal that begins here: the number of its hashes, and what follows its first quote.
fn raw(text: &str, before: char) -> Option<(usize, &str)> {
    if before.is_alphanumeric() || before == '_' {
        return None;
    }
    let text = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let body = text.trim_start_matches('#');
    Some((text.len() - body.len(), body.strip_prefix('"')?))
}

/// What follows a character literal that begins here; a lifetime is none.
fn character(text: &str) -> Option<&str> {
    let body = text.strip_prefix('\'')?;
    match body.strip_prefix('\\') {
        Some(escape) => {
            let skipped = escape.chars().next()?.len_utf8();
            let end = escape[skipped..].find('\'')?;
            Some(&escape[skipped + end + 1..])
        }
        None => {
            let length = body.chars().next()?.len_utf8();
            body[length..].strip_prefix('\'')
        }
    }
}

#[test]
fn literals_are_distinguished_from_comments() {
    let source = r##"
//! one "a"
fn f<'a>(x: &'a str) -> char { g("b // b", '"', r#"c " c"#, b"d\"d"); 'e' } // two
"##;
    let (literals, comments) = literals_and_comments(source);
    assert_eq!(literals, "b // b c \" c d\\\"d ");
    assert_eq!(comments, " one \"a\"  two ");
    assert_eq!(occurrences("told, retold and told_", "told"), 1);
}
