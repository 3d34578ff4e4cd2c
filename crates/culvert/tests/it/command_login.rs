//! `culvert login`, `logout`, `whoami`, `status` and the tokens that `culvert config` saves: the real program with a
//! separate home directory.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::harness::{Backend, Harness, binary};

/// A user's home directory.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("culvert/config.toml")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = binary();
        command
            .env("XDG_CONFIG_HOME", self.0.path())
            .current_dir(self.0.path())
            .args(arguments);
        command
    }

    /// Runs a command with this standard input. Returns its exit code, output and errors.
    fn run(&self, arguments: &[&str], input: &str) -> (i32, String, String) {
        finished(self.command(arguments), input)
    }
}

/// Runs a command on a terminal of `script`; `None` where that program is missing.
pub fn on_a_terminal(command: &Command) -> Option<Child> {
    let mut line = command.get_program().to_str().unwrap().to_owned();
    for argument in command.get_args() {
        line.push_str(&format!(" '{}'", argument.to_str().unwrap()));
    }
    let mut script = Command::new("script");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let child = script
        .args(["-qec", &line, "/dev/null"])
        .current_dir(command.get_current_dir().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    if child.is_err() {
        culvert_testing::ignore("no `script` for a terminal");
    }
    child.ok()
}

fn finished(mut command: Command, input: &str) -> (i32, String, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails early reads nothing.
    child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_checked_saved_used_and_removed() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let home = Home::new();
    let (code, _, error) = home.run(&["whoami"], "");
    assert_eq!(code, 2);
    assert!(error.contains("culvert login"), "{error}");

    let (code, _, error) = home.run(&["login", &culvert.api], "wrong\n");
    assert_eq!(code, 1, "{error}");
    assert!(!error.contains("wrong") && !home.file().exists(), "{error}");
    let input = format!("{}\n", culvert.token);
    let (code, out, error) = home.run(&["login", &culvert.api], &input);
    assert_eq!(code, 0, "{error}");
    assert!(
        out.starts_with(&format!("logged in to {}", culvert.api)),
        "{out}"
    );
    assert!(!out.contains(&culvert.token) && !error.contains(&culvert.token));
    let mode = std::fs::metadata(home.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let (code, out, error) = home.run(&["whoami"], "");
    assert_eq!(code, 0, "{error}");
    let oneself: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(oneself["role"], "admin");
    let (_, out, _) = home.run(&["whoami", "--format", "text"], "");
    assert!(
        out.contains("\nrole     admin\n") && out.contains("\nscopes   all\n"),
        "{out}"
    );
    let (code, out, _) = home.run(&["api", "vaults", "list"], "");
    assert_eq!((code, out.contains("vaults")), (0, true));

    // The environment takes precedence.
    let mut other = home.command(&["whoami"]);
    other.env("CULVERT_API_KEY", "wrong");
    assert_eq!(finished(other, "").0, 1);
    // The key goes to no other server.
    let (code, _, error) = home.run(&["whoami", "--api-url", "http://127.0.0.1:9"], "");
    assert_eq!(code, 2);
    assert!(error.contains("the saved one is for"), "{error}");
    // A file that others may read is not used.
    std::fs::set_permissions(home.file(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, _, error) = home.run(&["whoami"], "");
    assert_eq!(code, 78);
    assert!(error.contains("chmod 600"), "{error}");
    std::fs::set_permissions(home.file(), std::fs::Permissions::from_mode(0o600)).unwrap();

    assert_eq!(home.run(&["logout"], "").0, 0);
    assert!(!home.file().exists());
    assert_eq!(home.run(&["whoami"], "").0, 2);
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_says_whether_the_installation_is_healthy() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let home = Home::new();
    let (api, token) = (culvert.api.clone(), culvert.token.clone());
    let status = |more: &[&str]| {
        let mut command = home.command(&["status"]);
        command.args(more).env("CULVERT_API_URL", &api);
        command.env("CULVERT_API_KEY", &token);
        finished(command, "")
    };
    let (code, out, error) = status(&[]);
    assert_eq!(code, 0, "{error}");
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        [
            &found["healthy"],
            &found["ready"],
            &found["destinations"]["total"]
        ],
        [&json!(true), &json!(true), &json!(0)]
    );
    assert_eq!(found["endpoints"], 0);
    let (_, out, _) = status(&["--format", "text"]);
    assert!(
        out.contains(" ready\n") && out.contains("destinations  0: 0 ok"),
        "{out}"
    );
    // Without a key there is less to see, and a wrong key is a problem.
    let mut without = home.command(&["status", "--format", "text"]);
    without.env("CULVERT_API_URL", &culvert.api);
    let (code, out, _) = finished(without, "");
    assert_eq!((code, out.contains("no API key")), (0, true), "{out}");
    let mut wrong = home.command(&["status"]);
    wrong
        .env("CULVERT_API_URL", &culvert.api)
        .env("CULVERT_API_KEY", "wrong");
    assert_eq!(finished(wrong, "").0, 1);
    culvert.stop().await;
    let (code, _, error) = status(&[]);
    assert_eq!(code, 1);
    assert!(error.contains("no response from the API"), "{error}");
}

#[test]
fn the_authtoken_of_agents_is_saved_for_its_server() {
    let home = Home::new();
    let ca = home.0.path().join("ca.pem");
    std::fs::write(&ca, "").unwrap();
    let add = [
        "config",
        "add-authtoken",
        "--server",
        "a.test:8441",
        "--ca",
        "ca.pem",
    ];
    let (code, _, error) = home.run(&add, "hidden\n");
    assert_eq!((code, &error[..]), (0, ""));
    let saved = std::fs::read_to_string(home.file()).unwrap();
    assert!(saved.contains("authtoken = \"hidden\"") && saved.contains("server = \"a.test:8441\""));
    let whole = ca.canonicalize().unwrap();
    assert!(saved.contains(whole.to_str().unwrap()), "{saved}");
    // A token on the command line is accepted, with a warning that does not repeat it.
    let (code, _, error) = home.run(&["config", "add-api-key", "visible"], "");
    assert_eq!(code, 0);
    assert!(
        error.contains("other users can see") && !error.contains("visible"),
        "{error}"
    );
    // The token goes to no other server, and is removed with the address.
    let http = ["http", "80", "--server", "b.test:8441", "--inspect=false"];
    let (code, _, error) = home.run(&http, "");
    assert_eq!(code, 2);
    assert!(
        error.contains("`b.test:8441`") && !error.contains("hidden"),
        "{error}"
    );
    assert_eq!(
        home.run(&["config", "add-connect-url", "b.test:8441"], "")
            .0,
        0
    );
    let saved = std::fs::read_to_string(home.file()).unwrap();
    assert!(
        !saved.contains("hidden") && saved.contains("visible"),
        "{saved}"
    );
    assert_eq!(home.run(&["logout", "--all"], "").0, 0);
    assert!(!home.file().exists());
    assert_eq!(home.run(&["config", "add-authtoken"], "").0, 2);
}

/// On a terminal, the key is asked for and not shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_does_not_show_the_key() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let home = Home::new();
    let Some(mut child) = on_a_terminal(&home.command(&["login", &culvert.api])) else {
        return culvert.stop().await;
    };
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut byte) = (Vec::new(), [0]);
    while !shown.ends_with(b"API key: ") {
        output.read_exact(&mut byte).unwrap();
        shown.push(byte[0]);
    }
    input
        .write_all(format!("{}\n", culvert.token).as_bytes())
        .unwrap();
    output.read_to_end(&mut shown).unwrap();
    let shown = String::from_utf8(shown).unwrap();
    assert!(child.wait().unwrap().success(), "{shown}");
    assert!(shown.contains("logged in to"), "{shown}");
    assert!(!shown.contains(&culvert.token), "{shown}");
    culvert.stop().await;
}

/// Events are lines of text on a terminal, and JSON in a pipe.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_readable_on_a_terminal() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let home = Home::new();
    let mut tail = home.command(&["events", "tail", "--type", "vault_created.v0"]);
    tail.env("CULVERT_API_URL", &culvert.api);
    tail.env("CULVERT_API_KEY", &culvert.token);
    let Some(mut child) = on_a_terminal(&tail) else {
        return culvert.stop().await;
    };
    let output = child.stdout.take().unwrap();
    let (found, line) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines();
        found.send(lines.next().unwrap().unwrap()).ok();
    });
    // The stream begins some time after the start of the program.
    let mut count = 0;
    let line = loop {
        count += 1;
        let name = format!("vault-{count}");
        culvert.create("vaults", json!({"name": name})).await;
        match line.recv_timeout(std::time::Duration::from_millis(200)) {
            Ok(line) => break line,
            Err(_) => assert!(count < 300, "no event within a minute"),
        }
    };
    assert!(
        line.contains(" vault_created.v0 ") && !line.contains('{'),
        "{line}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    culvert.stop().await;
}
