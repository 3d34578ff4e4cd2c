//! The command line: exit codes, what goes where, and the operations from the shell.

use serde_json::Value;

use crate::harness::{Backend, Harness, binary};

fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = binary().args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn exit_codes() {
    assert_eq!(run(&["--version"]).0, 0);
    assert_eq!(run(&["--help"]).0, 0);
    assert_eq!(run(&["config", "check"]).0, 0);
    assert_eq!(run(&["no-such-command"]).0, 2);
    assert_eq!(run(&["serve", "--no-such-flag"]).0, 2);
    assert_eq!(run(&["events", "schema", "no_such_kind.v0"]).0, 2);
    assert_eq!(run(&["serve", "--bootstrap-api-key", "x"]).0, 2);
    assert_eq!(run(&["config", "check", "--edge-tcp-ports", "7"]).0, 78);
    let mut check = binary();
    check.args(["config", "check"]);
    let checked = check.env("CULVERT_BOOTSTRAP__API_KEY", "short").output();
    assert_eq!(checked.unwrap().status.code(), Some(78));
    let (code, out, error) = run(&["serve", "--config", "/no/such/file.toml"]);
    assert_eq!((code, out.as_str()), (78, ""));
    assert_eq!(error.lines().count(), 1, "one sentence: {error}");
}

#[test]
fn a_reader_that_went_away_is_a_failure_and_no_panic() {
    for arguments in [&["openapi"][..], &["config", "show"], &["events", "kinds"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = binary().args(arguments).stdout(writer).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn what_is_printed_can_be_parsed() {
    let (_, document, _) = run(&["openapi"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(
        document["openapi"].as_str().unwrap().split('.').next(),
        Some("3")
    );
    let (_, settings, _) = run(&["config", "show", "--edge-domain", "example.test"]);
    let settings: Value = serde_json::from_str(&settings).unwrap();
    assert_eq!(settings["edge"]["domain"], "example.test");
    let (_, kinds, _) = run(&["events", "kinds"]);
    for line in kinds.lines() {
        let kind = line.split(' ').next().unwrap();
        let (code, schema, _) = run(&["events", "schema", kind]);
        assert_eq!(code, 0, "{kind}");
        assert!(serde_json::from_str::<Value>(&schema).unwrap().is_object());
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completions", shell]).1.contains("culvert"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_from_the_shell() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let run = |arguments: &[&str]| {
        let output = binary()
            .env("CULVERT_API_URL", &culvert.api)
            .env("CULVERT_API_KEY", &culvert.token)
            .arg("api")
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            error,
        )
    };
    let (code, made, error) = run(&["api_keys", "create", "--description", "from the shell"]);
    assert_eq!(code, 0, "{error}");
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["description"], "from the shell");
    let id = made["id"].as_str().unwrap();
    let (_, got, _) = run(&["api_keys", "get", id]);
    assert_eq!(
        serde_json::from_str::<Value>(&got).unwrap()["token"],
        Value::Null
    );
    let (_, table, _) = run(&["api_keys", "list", "--limit", "2", "--table"]);
    assert!(
        table.starts_with("CREATED_AT") || table.contains("ID"),
        "{table}"
    );
    assert!(table.contains(id));
    assert_eq!(
        run(&["api_keys", "delete", id]),
        (0, String::new(), String::new())
    );
    let (code, _, error) = run(&["api_keys", "get", id]);
    assert_eq!(
        (code, error.as_str()),
        (1, "culvert: Resource not found (HTTP 404)\n")
    );
    culvert.stop().await;
}
