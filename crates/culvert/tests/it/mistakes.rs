//! Mistakes of newcomers, and the words that they get: the real program, against a real server. Each row is a mistake and
//! parts of the message.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Backend, Harness, binary, eventually};

/// A server, a user's directory, and the token of a credential.
struct Stage {
    culvert: Harness,
    folder: tempfile::TempDir,
    authtoken: String,
    credential: String,
}

impl Stage {
    async fn start() -> Self {
        let culvert = Harness::start(&Backend::Sqlite).await;
        let credential = culvert.create("credentials", json!({})).await;
        let text = |name: &str| credential[name].as_str().unwrap().to_owned();
        Self {
            culvert,
            folder: tempfile::tempdir().unwrap(),
            authtoken: text("token"),
            credential: text("id"),
        }
    }

    fn ca(&self) -> PathBuf {
        self.culvert.settings.data_dir.join("ca.pem")
    }

    /// The program, in the user's directory.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = binary();
        command
            .current_dir(self.folder.path())
            .env("XDG_CONFIG_HOME", self.folder.path())
            .env("CULVERT_API_URL", &self.culvert.api)
            .args(arguments);
        command
    }

    /// An agent with an address of a server.
    fn agent(&self, server: &str, more: &[&str]) -> Command {
        let mut command = self.command(&["http", "3000", "--inspect=false", "--server", server]);
        command
            .env("CULVERT_AUTHTOKEN", &self.authtoken)
            .env("CULVERT_CA_FILE", self.ca())
            .args(more);
        command
    }

    /// An agent at the right address.
    fn connected(&self, more: &[&str]) -> Command {
        self.agent(&self.culvert.agents.to_string(), more)
    }
}

/// The first complaint of a command: the reason for which an agent waits, or else all that a command says before it ends.
fn complaint(mut command: Command) -> String {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        let logged: Value = serde_json::from_str(&line).unwrap_or_default();
        if logged["message"] == "disconnected; retrying" {
            said = logged["why"].as_str().unwrap().to_owned();
            let server = logged["server"].as_str().unwrap();
            assert!(said.contains(server) || said.contains("resolve"), "{line}");
            break;
        }
        if logged.is_null() {
            said.push_str(&line);
            said.push('\n');
        }
    }
    child.kill().ok();
    child.wait().unwrap();
    said
}

fn check(mistake: &str, command: Command, words: &[&str]) {
    let said = complaint(command);
    for word in words {
        assert!(said.contains(word), "{mistake}: `{word}` in: {said}");
    }
}

/// A server that sends these bytes on each connection.
fn speaker(bytes: &'static [u8]) -> u16 {
    use std::io::{Read, Write};

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(mut socket) = socket else { return };
            socket.write_all(bytes).ok();
            // A socket that is closed with unread bytes resets the connection.
            let _read = socket.read(&mut [0; 4096]).unwrap_or(0);
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_at_a_wrong_address_says_who_listens_there() {
    let stage = Stage::start().await;
    let culvert = &stage.culvert;
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = free.local_addr().unwrap().port();
    drop(free);
    let api: u16 = culvert.api.rsplit(':').next().unwrap().parse().unwrap();
    let not_ours = "so it is not the port for agents; the usual one is 8441, and `agents.addr`";
    for (mistake, port, words) in [
        (
            "the edge with TLS",
            culvert.https.port(),
            ["has no certificate for `localhost`", not_ours],
        ),
        (
            "the edge",
            culvert.http.port(),
            ["speaks HTTP without TLS", not_ours],
        ),
        ("the API", api, ["speaks HTTP without TLS", not_ours]),
        (
            "agents over SSH",
            culvert.ssh.port(),
            ["speaks SSH", not_ours],
        ),
        (
            "another protocol",
            speaker(b"220 mail ready\r\n"),
            ["does not speak TLS", not_ours],
        ),
        (
            "nothing",
            closed,
            [
                "nothing listens at",
                "is the server running, with `agents.addr`",
            ],
        ),
    ] {
        let command = stage.agent(&format!("localhost:{port}"), &[]);
        check(mistake, command, &words);
    }
    // Its certificate is for the name of the agents' port too.
    let edge = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.edge.domain = "localhost".into();
    });
    let edge = edge.await;
    let mut command = stage.agent(&format!("localhost:{}", edge.https.port()), &[]);
    command.env("CULVERT_CA_FILE", edge.settings.data_dir.join("ca.pem"));
    check(
        "the edge with TLS at a name of its certificate",
        command,
        &["speaks another protocol over TLS", not_ours],
    );
    edge.stop().await;
    for (mistake, server, words) in [
        (
            "a name without DNS",
            "nosuch.invalid",
            &["`nosuch.invalid` does not resolve"][..],
        ),
        (
            "a URL",
            "https://tunnel.test:8420",
            &[
                "is a URL",
                "leave out `https://`",
                "such as `tunnel.test:8441`",
            ],
        ),
        (
            "a wrong port",
            "localhost:http",
            &["`localhost:http` is not `host:port`"],
        ),
    ] {
        check(mistake, stage.agent(server, &[]), words);
    }
    stage.culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_the_ca_says_where_it_is() {
    let stage = Stage::start().await;
    let place = "in the data directory of the server, and on the Connect page of its console";
    let mut command = stage.connected(&[]);
    command.env_remove("CULVERT_CA_FILE");
    let words = [
        "this machine does not trust the CA",
        "`ca.pem` with `--ca`",
        place,
    ];
    check("no CA", command, &words);

    let other = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let other_ca = stage.folder.path().join("other.pem");
    std::fs::write(&other_ca, other.cert.pem()).unwrap();
    let command = stage.connected(&["--ca", other_ca.to_str().unwrap()]);
    let words = ["the CAs in `--ca` did not sign the certificate", place];
    check("another CA", command, &words);

    stage.culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_agent_says_what_to_do() {
    let stage = Stage::start().await;
    let culvert = &stage.culvert;
    let with_token = |token: &str| {
        let mut command = stage.connected(&[]);
        command.env("CULVERT_AUTHTOKEN", token);
        command
    };
    check(
        "a cut token",
        with_token("culvert_agent"),
        &["malformed", "copy the whole token"],
    );
    check(
        "an API key",
        with_token(&culvert.token),
        &[
            "API key",
            "`culvert api credentials create`",
            "is from CULVERT_AUTHTOKEN",
        ],
    );
    check(
        "no token",
        with_token(""),
        &[
            "no authtoken",
            "CULVERT_AUTHTOKEN",
            "`culvert config add-authtoken`",
            "Connect page",
        ],
    );
    check(
        "a reserved name",
        stage.connected(&["--subdomain", "api"]),
        &[
            "`api.culvert.localhost` is reserved for the installation",
            "`edge.reserved_names`",
            "acme-challenge, admin, api, auth, connect, console, login, metrics, tcp",
        ],
    );
    check(
        "a foreign name",
        stage.connected(&["--url", "https://www.example.com"]),
        &[
            "`culvert.localhost`",
            "`culvert api reserved_domains create`",
        ],
    );
    let mut first = stage
        .connected(&["--subdomain", "taken"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the first agent is online", async || {
        let list = culvert.call(Method::GET, "/endpoints", None).await.body;
        list["endpoints"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    })
    .await;
    check(
        "a name in use",
        stage.connected(&["--subdomain", "taken"]),
        &["`--pooling`"],
    );
    first.kill().unwrap();
    first.wait().unwrap();

    // A token that was saved, and whose credential was deleted.
    let add = ["config", "add-authtoken", &stage.authtoken];
    assert!(stage.command(&add).output().unwrap().status.success());
    culvert
        .call(
            Method::DELETE,
            &format!("/credentials/{}", stage.credential),
            None,
        )
        .await;
    let mut command = stage.connected(&[]);
    command.env_remove("CULVERT_AUTHTOKEN");
    let file = stage.folder.path().join("culvert/config.toml");
    let from = format!(
        "the token of `{}` is from `{}`",
        stage.credential,
        file.display()
    );
    check(
        "a stale token",
        command,
        &["its credential was deleted", &from],
    );
    stage.culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_says_which_key_it_had() {
    let stage = Stage::start().await;
    let culvert = &stage.culvert;
    check(
        "no key",
        stage.command(&["status", "--api-url", "http://localhost:1"]),
        &["no response from the API"],
    );
    check(
        "no key",
        stage.command(&["whoami"]),
        &["no API key", "`culvert login`"],
    );

    // A key that was saved, and deleted.
    let key = culvert.create("api_keys", json!({})).await;
    let (id, token) = (key["id"].as_str().unwrap(), key["token"].as_str().unwrap());
    let mut login = stage.command(&["login"]);
    login.env("CULVERT_API_KEY", token);
    assert!(login.output().unwrap().status.success());
    culvert
        .call(Method::DELETE, &format!("/api_keys/{id}"), None)
        .await;
    let file = stage.folder.path().join("culvert/config.toml");
    let from = format!("the key `{id}` is from `{}`", file.display());
    check("a stale key", stage.command(&["whoami"]), &[&from]);
    let local = stage.folder.path().join("culvert-data");
    std::fs::create_dir(&local).unwrap();
    std::fs::write(local.join("bootstrap-key"), &culvert.token).unwrap();
    check(
        "a stale key beside the server's own",
        stage.command(&["whoami"]),
        &[&from, "`--token-file ./culvert-data/bootstrap-key`"],
    );
    let own = ["whoami", "--token-file", "./culvert-data/bootstrap-key"];
    assert!(stage.command(&own).output().unwrap().status.success());
    stage.culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_endpoint_says_what_is_possible() {
    let stage = Stage::start().await;
    let create = |more: &[&str]| {
        let mut command = stage.command(&["endpoints", "create"]);
        command
            .env("CULVERT_API_KEY", &stage.culvert.token)
            .args(more);
        command
    };
    let long = "x".repeat(256);
    for (mistake, more, words) in [
        (
            "a reserved name",
            &[
                "--url",
                "https://console.culvert.localhost",
                "--upstream-url",
                "3000",
            ][..],
            &[
                "`console.culvert.localhost` is reserved",
                "acme-challenge, admin",
            ][..],
        ),
        (
            "an upstream without a port",
            &[
                "--url",
                "https://a.culvert.localhost",
                "--upstream-url",
                "web",
            ],
            &["it has no scheme; write a port, `host:port`, or a URL such as `http://host:port`"],
        ),
        (
            "a long description",
            &["--upstream-url", "3000", "--description", &long],
            &["`description` is invalid: it is longer than 255 bytes."],
        ),
    ] {
        check(mistake, create(more), words);
    }
    for (nth, upstream) in ["3000", ":3000", "localhost:3000"].into_iter().enumerate() {
        let url = format!("https://short-{nth}.culvert.localhost");
        let made = create(&["--url", &url, "--upstream-url", upstream])
            .output()
            .unwrap();
        let made: Value = serde_json::from_slice(&made.stdout).unwrap();
        assert_eq!(made["upstream_url"], upstream);
    }
    stage.culvert.stop().await;
}
