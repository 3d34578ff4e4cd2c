//! The command line: exit codes, output streams, and operations of the API.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};

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
fn commands_have_documented_exit_codes() {
    assert_eq!(run(&["--version"]).0, 0);
    assert_eq!(run(&["--help"]).0, 0);
    assert_eq!(run(&["config", "check"]).0, 0);
    assert_eq!(run(&["no-such-command"]).0, 2);
    assert_eq!(run(&["version"]).0, 0);
    assert_eq!(run(&["service", "install", "start"]).0, 2);
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

/// Closing standard output early, like `| head`, is not an error.
#[test]
fn a_closed_output_pipe_is_no_failure() {
    for arguments in [
        &["openapi"][..],
        &["config", "show"],
        &["events", "kinds"],
        &["completions", "bash"],
        &["complete", "--", "api", ""],
        &["admin", "generate-token"],
        &["version"],
        &["help", "http"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = binary().args(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    }
}

#[test]
fn only_similar_settings_are_suggested() {
    let mut check = binary();
    check.args(["config", "check"]);
    let output = check.env("CULVERT_FOO", "x").output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "culvert: unknown setting `foo`; `culvert config show` lists all settings\n"
    );
}

/// If a port is in use, the error names its setting, for every setting.
#[test]
fn a_taken_port_names_its_setting() {
    for setting in [
        "api.addr",
        "edge.http_addr",
        "edge.https_addr",
        "agents.addr",
        "agents.ssh_addr",
        "metrics.addr",
    ] {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut serve = binary();
        serve.arg("serve").arg("--data-dir").arg(folder.path());
        for one in [
            "api.addr",
            "edge.http_addr",
            "edge.https_addr",
            "agents.addr",
            "agents.ssh_addr",
            "metrics.addr",
        ] {
            serve.arg(format!("--{}", one.replace(['.', '_'], "-")));
            serve.arg(if one == setting {
                address.to_string()
            } else {
                "127.0.0.1:0".into()
            });
        }
        let output = serve.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        let wanted = format!("listening on {address} (setting `{setting}`): ");
        assert!(error.contains(&wanted), "{setting}: {error}");
        assert_eq!(error.matches("os error").count(), 1, "{error}");
    }
}

/// Commands of the storage need no secret of a CA or a DNS provider, which only the service has.
#[test]
fn commands_of_the_storage_need_no_secret_of_a_provider() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("culvert.toml");
    let text =
        "[acme]\ndirectory_url = \"https://ca.test/\"\n[acme.dns]\nprovider = \"cloudflare\"\n";
    std::fs::write(&file, text).unwrap();
    let data = folder.path().join("data");
    let (file, data) = (file.to_str().unwrap(), data.to_str().unwrap());
    let (code, _, error) = run(&["config", "check", "--config", file]);
    assert!(
        code == 78 && error.contains("`acme.dns.cloudflare.api_token`"),
        "{error}"
    );
    for command in [
        &["admin", "check"][..],
        &["admin", "backup", "to"],
        &["audit", "verify"],
    ] {
        let settings = ["--config", file, "--data-dir", data];
        let (code, _, error) = run(&[command, &settings].concat());
        assert!(
            code == 1 && !error.contains("acme"),
            "{command:?}: {code}: {error}"
        );
    }
}

/// Scripts of completions stay small, because they ask the program.
#[test]
fn completions_are_short_and_ask_the_program() {
    for shell in ["bash", "fish", "zsh"] {
        let (code, script, _) = run(&["completions", shell]);
        assert_eq!(code, 0);
        assert!(script.lines().count() < 30, "{script}");
        assert!(script.contains("culvert complete -- "), "{script}");
    }
    let (code, found, _) = run(&["complete", "--", "endpoints", "cre"]);
    assert_eq!((code, found.split('\t').next()), (0, Some("create")));
}

/// The flags of an agent are in groups.
#[test]
fn the_flags_of_agents_have_headings() {
    for command in ["http", "tcp", "tls"] {
        let (_, help, _) = run(&[command, "--help"]);
        for heading in [
            "Endpoint:",
            "Access:",
            "Traffic:",
            "Service:",
            "Server:",
            "Screen and log:",
        ] {
            assert!(
                help.contains(&format!("\n{heading}\n")),
                "{heading}: {help}"
            );
        }
        assert!(!help.contains("\nOther:\n"), "{help}");
        assert!(help.contains("\nExamples:\n"), "{help}");
    }
}

#[test]
fn help_has_groups_and_a_near_miss_gets_a_suggestion() {
    let (_, help, _) = run(&["--help"]);
    for group in ["Server:", "Agent:", "Manage:", "See:", "Install:"] {
        assert!(help.contains(group), "{group}: {help}");
    }
    assert!(!help.contains("Other:") && !help.contains('{'), "{help}");
    assert!(
        help.contains("\n  start       Start the endpoints of a configuration file\n"),
        "{help}"
    );
    for (given, meant) in [("htpp", "http"), ("stauts", "status"), ("logn", "login")] {
        let (code, _, error) = run(&[given]);
        assert!(
            code == 2 && error.contains(&format!("'{meant}'")),
            "{error}"
        );
    }
    let (_, help, _) = run(&["api", "--help"]);
    assert!(
        help.contains("Vaults: named collections of secrets"),
        "{help}"
    );
}

#[test]
fn printed_output_is_valid_json() {
    let (_, document, _) = run(&["openapi"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(
        document["openapi"].as_str().unwrap().split('.').next(),
        Some("3")
    );
    let (_, older, _) = run(&["openapi", "--oas", "3.0"]);
    let older: Value = serde_json::from_str(&older).unwrap();
    assert_eq!(older["openapi"], "3.0.3");
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
async fn api_operations_run_from_the_shell() {
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
    let (code, dashed, _) = run(&["api-keys", "get", id]);
    assert_eq!((code, dashed.contains(id)), (0, true));
    // A list of texts: one flag per item, or all items as JSON.
    for acl in [
        &[
            "--acl",
            "bind:a.example.test",
            "--acl",
            "bind:b.example.test",
        ][..],
        &["--acl", r#"["bind:a.example.test", "bind:b.example.test"]"#],
    ] {
        let (code, made, error) = run(&[&["credentials", "create"][..], acl].concat());
        assert_eq!(code, 0, "{error}");
        let made: Value = serde_json::from_str(&made).unwrap();
        assert_eq!(
            made["acl"],
            serde_json::json!(["bind:a.example.test", "bind:b.example.test"])
        );
    }
    // The command fails if the test event is not delivered.
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = refusing.local_addr().unwrap();
    drop(refusing);
    let target = format!(r#"{{"webhook": {{"url": "http://{address}/"}}}}"#);
    let (code, made, error) = run(&[
        "event_destinations",
        "create",
        "--format",
        "json",
        "--target",
        &target,
    ]);
    assert_eq!(code, 0, "{error}");
    let made: Value = serde_json::from_str(&made).unwrap();
    let destination = made["id"].as_str().unwrap();
    let (code, tested, error) = run(&["event_destinations", "test", destination]);
    assert_eq!(code, 1, "{tested}");
    assert!(tested.contains("\"delivered\": false"), "{tested}");
    assert!(
        error.starts_with("culvert: the event was not delivered: "),
        "{error}"
    );
    let (_, table, _) = run(&["api_keys", "list", "--limit", "2", "--table"]);
    assert!(table.starts_with("ID "), "{table}");
    assert!(
        table.lines().all(|line| line.chars().count() <= 120),
        "{table}"
    );
    assert!(table.contains(id));
    let columns = ["api_keys", "list", "--columns", "id,description"];
    let (_, table, _) = run(&columns);
    assert!(
        table.starts_with("ID ") && table.contains("  from the shell\n"),
        "{table}"
    );
    let (_, oneself, _) = run(&["self", "--columns", "account.id"]);
    assert!(oneself.starts_with("account.id  ac_"), "{oneself}");
    // One field, as programs need it.
    let (_, ids, _) = run(&["api_keys", "list", "--field", "id"]);
    assert!(
        ids.lines().count() >= 2 && ids.lines().all(|it| it.starts_with("ak_")),
        "{ids}"
    );
    let (_, none, _) = run(&["vaults", "list", "--field", "id"]);
    assert_eq!(none, "");
    let credentials = || run(&["credentials", "list", "--field", "id"]).1;
    let (code, token, error) = run(&["credentials", "create", "--field", "token"]);
    assert_eq!((code, token.lines().count()), (0, 1), "{error}");
    // A misspelled one does not lose the token of what was made.
    let before = credentials();
    let (code, _, error) = run(&["credentials", "create", "--field", "tokn"]);
    let said = "culvert: the response has no field `tokn`\n";
    assert_eq!((code, error.as_str()), (2, said));
    assert_eq!(credentials(), before);
    // Neither is the form ignored where the output has another one.
    let one = before.lines().next().unwrap();
    let (code, _, _) = run(&["credentials", "history", one, "--field", "id"]);
    assert_eq!(code, 2);
    // Texts from files and standard input.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from a file\n").unwrap();
    let of_file = format!("@{}", file.path().display());
    let (code, made, error) = run(&[
        "vaults",
        "create",
        "--name",
        "texts",
        "--description",
        &of_file,
    ]);
    assert_eq!(code, 0, "{error}");
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["description"], "from a file");
    let vault = made["id"].as_str().unwrap();
    let piped = |arguments: &[&str], text: &str| {
        let mut child = binary()
            .env("CULVERT_API_URL", &culvert.api)
            .env("CULVERT_API_KEY", &culvert.token)
            .args(["api", "vaults", "update", vault])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that refuses its flags may not read this.
        child.stdin.take().unwrap().write_all(text.as_bytes()).ok();
        child.wait_with_output().unwrap()
    };
    for (value, shown) in [("-", "typed"), ("@-", "typed"), ("@@x", "@x")] {
        let output = piped(&["--description", value], "typed\n");
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(made["description"], shown, "{value}");
    }
    let output = piped(&["--json", "-"], "{\"description\": \"as JSON\"}");
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(made["description"], "as JSON");
    let output = piped(&["--description", "-", "--metadata", "-"], "typed");
    assert_eq!(output.status.code(), Some(2));
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

#[tokio::test(flavor = "multi_thread")]
async fn events_are_streamed_with_follow() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    culvert.create("vaults", json!({"name": "kept"})).await;
    let list = |more: &[&str]| {
        let mut command = binary();
        command
            .env("CULVERT_API_URL", &culvert.api)
            .env("CULVERT_API_KEY", &culvert.token)
            .args(["api", "events", "list", "--follow", "true"])
            .args(["--type", "audit", "--from", "2020-01-01T00:00:00Z"])
            .args(more);
        command
    };
    let mut child = list(&[]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next_vault = || {
        let messages = lines.by_ref().map(|line| line.unwrap());
        let mut events = messages.map(|line| serde_json::from_str::<Value>(&line).unwrap());
        let vault = events.find(|message| message["event"]["event_type"] == "vault_created.v0");
        vault.unwrap()["event"]["object"]["name"].clone()
    };
    assert_eq!(next_vault(), "kept");
    culvert.create("vaults", json!({"name": "new"})).await;
    assert_eq!(next_vault(), "new");
    child.kill().unwrap();
    child.wait().unwrap();
    let refused = list(&["--table"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_searched_in_words() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let key = culvert
        .create("api_keys", json!({"description": "one"}))
        .await;
    let id = key["id"].as_str().unwrap();
    let query = |words: &[&str]| {
        let output = binary()
            .env("CULVERT_API_URL", &culvert.api)
            .env("CULVERT_API_KEY", &culvert.token)
            .args(["events", "query"])
            .args(words)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, found, said) = query(&["type:api_key_created", id, "last", "1h", "--limit", "7"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(found.lines().count() == 1 && found.contains(id), "{found}");
    let (code, others, _) = query(&["type:api_key_created", "not", id]);
    assert!(code == Some(0) && !others.contains(id), "{others}");
    let (code, _, said) = query(&["sttus:502"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("did you mean `status:`?"), "{said}");
    culvert.stop().await;
}

/// A server that never responds: the search ends with the interrupt.
#[test]
fn an_interrupted_search_says_how_far_it_came() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let child = binary()
        .env(
            "CULVERT_API_URL",
            format!("http://{}", server.local_addr().unwrap()),
        )
        .env("CULVERT_API_KEY", "none")
        .args(["events", "query", "502"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _connection = server.accept().unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "culvert: stopped: searched 0 %; found 0\n");
}

/// mandoc has nothing to say about the manual pages, except for what their generator always does.
#[test]
fn manual_pages_are_read_by_mandoc() {
    let folder = tempfile::tempdir().unwrap();
    let written = binary().arg("man").arg(folder.path()).status().unwrap();
    assert!(written.success());
    let pages = std::fs::read_dir(folder.path()).unwrap();
    let pages: Vec<_> = pages.map(|page| page.unwrap().path()).collect();
    assert!(pages.len() > 40);
    let lint = std::process::Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .args(pages)
        .output();
    let Ok(lint) = lint else {
        culvert_testing::ignore("mandoc is not here");
        return;
    };
    let said = String::from_utf8(lint.stdout).unwrap();
    let serious = said.lines().filter(|line| {
        // Superfluous breaks between paragraphs, and no date, so that pages are reproducible.
        !line.contains("skipping paragraph macro: br")
            && !line.contains("missing date, using \"\": TH")
    });
    assert_eq!(serious.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// Each shell loads its completions, and bash and fish complete a command with them.
#[test]
fn shells_complete_with_our_completions() {
    let folder = tempfile::tempdir().unwrap();
    // The scripts ask the program.
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_culvert"));
    let path = format!(
        "{}:/usr/local/bin:/usr/bin:/bin",
        program.parent().unwrap().display()
    );
    for (shell, script, expected) in [
        (
            "bash",
            "source FILE; COMP_WORDS=(culvert ht); COMP_CWORD=1; _culvert culvert ht culvert; echo ${COMPREPLY[@]}",
            "http",
        ),
        (
            "zsh",
            "autoload -U compinit; compinit -D; source FILE; whence -w _culvert; echo $_comps[culvert]",
            "_culvert: function\n_culvert",
        ),
        (
            "fish",
            "source FILE; complete -C 'culvert ht'",
            "http\tExpose a local HTTP service",
        ),
    ] {
        let file = folder.path().join(shell);
        let (code, completions, _) = run(&["completions", shell]);
        assert_eq!(code, 0);
        std::fs::write(&file, completions).unwrap();
        let script = script.replace("FILE", file.to_str().unwrap());
        let mut command = std::process::Command::new(shell);
        // Not what the user of this machine has set up.
        command
            .env("HOME", folder.path())
            .env("ZDOTDIR", folder.path())
            .env("PATH", &path);
        let Ok(output) = command.args(["-c", &script]).output() else {
            culvert_testing::ignore(format_args!("{shell} is not here"));
            continue;
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        assert_eq!(text(&output.stderr), "", "{shell}");
        assert_eq!(text(&output.stdout), expected, "{shell}");
    }
}
