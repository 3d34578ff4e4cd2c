//! `culvert policy`: files are checked and editors are served without a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::binary;

const GOOD: &str = "on_http_request: [{actions: [{type: deny}]}]\n";
const BAD: &str = "# é\non_http_request:\n  - expressions: [\"'😀' == req.hots\"]\n    actions:\n      - type: dney\n";

fn check(folder: &std::path::Path, arguments: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut child = binary()
        .args(["policy", "check"])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input closes it.
    drop(child.stdin.take().unwrap().write_all(input));
    let done = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        done.status.code().unwrap(),
        text(done.stdout),
        text(done.stderr),
    )
}

#[test]
fn files_are_checked_with_lines_and_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("good.yaml"), GOOD).unwrap();
    std::fs::write(path.join("bad.yaml"), BAD).unwrap();
    std::fs::write(path.join("large.yaml"), "x".repeat(1 << 20)).unwrap();
    std::fs::write(path.join("latin.yaml"), b"a: \xe9").unwrap();
    assert_eq!(
        check(path, &["good.yaml"], b""),
        (0, String::new(), String::new())
    );
    let (code, said, errors) = check(path, &["good.yaml", "bad.yaml"], b"");
    assert_eq!(code, 1);
    assert_eq!(errors, "culvert: 2 errors found\n");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("bad.yaml:3:31: "), "{said}");
    assert!(lines[0].ends_with("did you mean `req.host`?"), "{said}");
    assert!(lines[1].starts_with("bad.yaml:5:15: "), "{said}");
    let (code, said, _) = check(path, &["--format", "json", "-"], BAD.as_bytes());
    let problems: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, problems.as_array().unwrap().len()), (1, 2));
    assert_eq!(problems[1]["error_code"], "ERR_NGROK_2201");
    assert_eq!(problems[1]["end_column"], 19);
    let (code, said, _) = check(path, &["--format", "json", "good.yaml"], b"");
    assert_eq!((code, said.as_str()), (0, "[]\n"));
    // The endpoint matters.
    assert_eq!(check(path, &["--scheme", "tcp", "good.yaml"], b"").0, 1);
    assert_eq!(check(path, &["--no-upstream", "good.yaml"], b"").0, 0);
    assert!(check(path, &["large.yaml"], b"").1.contains("the limit is"));
    for (file, error) in [
        ("latin.yaml", "is not UTF-8 from byte 3"),
        ("no.yaml", "cannot read no.yaml"),
    ] {
        let (code, said, errors) = check(path, &[file], b"");
        assert_eq!((code, said.as_str()), (1, ""));
        assert!(errors.contains(error), "{errors}");
    }
}

#[test]
fn an_editor_is_served_over_pipes() {
    let mut child = binary()
        .args(["policy", "lsp"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut send = |message: Value| {
        let body = message.to_string();
        write!(input, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        input.flush().unwrap();
    };
    let mut next = || -> Value {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let length = line.trim_end().strip_prefix("Content-Length: ").unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        output.read_line(&mut line).unwrap();
        output.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    };
    let uri = "file:///policy.yaml";
    send(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}));
    assert_eq!(next()["result"]["serverInfo"]["name"], "culvert");
    let document = json!({"uri": uri, "languageId": "yaml", "version": 1, "text": BAD});
    send(json!({"method": "textDocument/didOpen", "params": {"textDocument": document}}));
    let published = next();
    assert_eq!(
        published["params"]["diagnostics"].as_array().unwrap().len(),
        2
    );
    let change =
        json!({"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": GOOD}]});
    send(json!({"method": "textDocument/didChange", "params": change}));
    let published = next();
    assert_eq!(
        published["params"],
        json!({"uri": uri, "version": 2, "diagnostics": []})
    );
    let at = json!({"textDocument": {"uri": uri}, "position": {"line": 0, "character": 36}});
    send(json!({"id": 2, "method": "textDocument/completion", "params": at}));
    let found = next();
    let mut items = found["result"].as_array().unwrap().iter();
    assert!(items.any(|item| item["label"] == "deny"), "{found}");
    send(json!({"id": 3, "method": "shutdown"}));
    assert_eq!(next()["result"], Value::Null);
    send(json!({"method": "exit"}));
    assert!(child.wait().unwrap().success());
}
