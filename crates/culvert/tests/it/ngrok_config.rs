//! ngrok's agent configuration: every documented key of versions 2 and 3 is accepted, has no effect and says so, or is
//! refused, each time with its line.

use std::path::{Path, PathBuf};

use culvert_agent::config::file::{self, Read, Selection};

use crate::harness::binary;

/// What happens with a key.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is applied.
    Applied,
    /// It is accepted, and a notice has this text.
    NoEffect(&'static str),
    /// The file is refused with this text.
    Refused(&'static str),
}

use Fate::{Applied, NoEffect, Refused};

/// The agent's keys, at the top of version 2 and below `agent` in version 3.
const AGENT: &[(&str, &str, Fate)] = &[
    ("api_key", "x", NoEffect("culvert login")),
    ("authtoken", "x", Applied),
    ("congestion_control", "cubic", Applied),
    (
        "congestion_control",
        "'a b'",
        Refused("not the name of a congestion control"),
    ),
    ("connect_cas", "host", Applied),
    ("connect_cas", "trusted", Applied),
    ("connect_cas", "ca.pem", Applied),
    ("connect_interface", "eth0", Applied),
    ("connect_interface", "192.0.2.7", Applied),
    (
        "connect_interface",
        "'eth0:80'",
        Refused("neither an address"),
    ),
    ("connect_timeout", "30s", Applied),
    ("connect_timeout", "soon", Refused("must be a duration")),
    ("connect_url", "a.test:443", Applied),
    (
        "connect_url",
        "tls://a.test:443",
        Refused("without a scheme"),
    ),
    ("console_ui", "iftty", Applied),
    ("console_ui", "false", Applied),
    (
        "console_ui",
        "maybe",
        Refused("must be true, false or iftty"),
    ),
    ("console_ui_color", "transparent", Applied),
    ("console_ui_color", "black", NoEffect("background")),
    ("crl_noverify", "true", Applied),
    ("crl_noverify", "false", NoEffect("revocation lists")),
    ("crl_url", "http://a.test/crl", Refused("revocation lists")),
    (
        "dns_resolver_ips",
        "[1.1.1.1]",
        NoEffect("resolver of the system"),
    ),
    ("heartbeat_interval", "1m", Applied),
    ("heartbeat_interval", "0s", Refused("must be a duration")),
    ("heartbeat_tolerance", "5s", Applied),
    ("inspect_db_size", "-1", Applied),
    ("inspect_db_size", "104857600", NoEffect("500 requests")),
    ("local_storage", "false", Applied),
    ("log", "stdout", Applied),
    ("log", "false", Applied),
    ("log", "/var/log/agent.log", Applied),
    ("log_format", "json", Applied),
    ("log_format", "xml", Refused("must be term, logfmt or json")),
    ("log_level", "crit", Applied),
    ("log_level", "loud", Refused("must be debug, info")),
    ("metadata", "'{\"a\": 1}'", Applied),
    ("proxy_url", "http://localhost:3128", Applied),
    ("proxy_url", "socks5://localhost:9150", Applied),
    ("proxy_url", "ftp://localhost", Refused("http or socks5")),
    ("region", "eu", NoEffect("decides the region")),
    ("remote_management", "false", Applied),
    ("root_cas", "trusted", Applied),
    ("server_addr", "a.test:443", Applied),
    (
        "update_channel",
        "stable",
        NoEffect("does not update itself"),
    ),
    ("update_check", "false", Applied),
    ("update_check", "true", NoEffect("does not update itself")),
    (
        "update_url",
        "http://a.test",
        NoEffect("does not update itself"),
    ),
    ("web_addr", "false", Applied),
    ("web_addr", "localhost:4040", Applied),
    ("web_addr", "127.0.0.1:4040", Applied),
    ("web_addr", "0.0.0.0:4040", Refused("loopback address")),
    (
        "web_allow_hosts",
        "[a.test]",
        NoEffect("names of this machine"),
    ),
    ("colour", "red", Refused("unknown key")),
];

/// The keys of an http definition, of tunnels in both versions and of endpoints in version 3.
const HTTP: &[(&str, &str, Fate)] = &[
    ("auth", "'a:b'", Applied),
    ("basic_auth", "['a:b']", Applied),
    ("basic_auth", "[nobody]", Refused("user:password")),
    ("bind_tls", "both", Applied),
    ("binding", "internal", Applied),
    ("bindings", "[public]", Applied),
    ("circuit_breaker", "0.5", Applied),
    ("compression", "true", Applied),
    ("crt", "a.pem", Refused("no such key")),
    ("description", "text", Applied),
    ("domain", "a.test", Applied),
    ("host_header", "rewrite", Applied),
    ("host_header", "preserve", Applied),
    ("hostname", "a.test", Applied),
    ("inspect", "false", Applied),
    (
        "ip_restriction",
        "{allow_cidrs: [10.0.0.0/8], deny_cidrs: [10.1.0.0/16]}",
        Applied,
    ),
    ("labels", "[env=prod]", Refused("no edges")),
    ("metadata", "text", Applied),
    ("mutual_tls_cas", "ca.pem", Applied),
    (
        "oauth",
        "{provider: google, allow_domains: [a.test], allow_emails: [a@a.test], scopes: [x]}",
        Applied,
    ),
    (
        "oauth",
        "{provider: google, client_id: a, client_secret: b, oauth_scopes: [x]}",
        Applied,
    ),
    ("oauth", "{colour: red}", Refused("unknown key")),
    (
        "oidc",
        "{issuer_url: 'https://a.test', client_id: a, client_secret: b, allow_domains: [a.test], allow_emails: [a@a.test], scopes: [x]}",
        Applied,
    ),
    ("policy", "{on_http_request: []}", Applied),
    ("pooling_enabled", "true", Applied),
    ("proxy_proto", "2", Applied),
    ("proxy_proto", "3", Refused("must be 1 or 2")),
    ("remote_addr", "'a.test:1'", Refused("no such key")),
    ("request_header", "{add: ['a: b'], remove: [c]}", Applied),
    ("response_header", "{add: ['a: b'], remove: [c]}", Applied),
    ("schemes", "[https]", Applied),
    ("schemes", "[http, https]", Applied),
    ("schemes", "[gopher]", Refused("list of http and https")),
    ("subdomain", "a", Applied),
    ("terminate_at", "edge", Refused("no such key")),
    ("traffic_policy", "{on_http_request: []}", Applied),
    ("traffic_policy", "7", Refused("an object or a text")),
    ("traffic_policy_file", "policy.yml", Applied),
    ("traffic_policy_file", "missing.yml", Refused("missing.yml")),
    ("traffic_policy_url", "https://a.test", Applied),
    (
        "traffic_policy_url",
        "policy.yml",
        Refused("http or https URL"),
    ),
    ("upstream_tls_verify", "true", Applied),
    ("upstream_tls_verify", "false", Applied),
    ("upstream_tls_verify_cas", "ca.pem", Applied),
    ("url", "https://a.test", Applied),
    ("url", "tcp://a.test:1", Refused("not a valid URL")),
    ("user_agent_filter", "{allow: [a], deny: [b]}", Applied),
    ("verify_webhook", "{provider: slack, secret: x}", Applied),
    ("websocket_tcp_converter", "true", Applied),
    ("colour", "red", Refused("unknown key")),
];

const TCP: &[(&str, &str, Fate)] = &[
    ("basic_auth", "['a:b']", Refused("no such key")),
    ("ip_restriction", "{allow_cidrs: [10.0.0.0/8]}", Applied),
    ("proxy_proto", "1", Applied),
    ("remote_addr", "'a.test:1'", Applied),
    ("schemes", "[https]", Refused("no such key")),
    ("traffic_policy", "{on_tcp_connect: []}", Applied),
];

const TLS: &[(&str, &str, Fate)] = &[
    ("crt", "cert.pem\n    key: key.pem", Applied),
    (
        "crt",
        "cert.pem\n    key: key.pem\n    terminate_at: agent",
        Applied,
    ),
    (
        "crt",
        "cert.pem\n    key: key.pem\n    terminate_at: edge",
        Applied,
    ),
    (
        "crt",
        "cert.pem\n    key: key.pem\n    mutual_tls_cas: ca.pem",
        Applied,
    ),
    ("crt", "cert.pem", Refused("private key")),
    (
        "agent_tls_termination",
        "{server_certificate: cert.pem, server_private_key: key.pem, mutual_tls_certificate_authorities: [ca.pem]}",
        Applied,
    ),
    ("domain", "a.test", Applied),
    ("mutual_tls_cas", "ca.pem", Applied),
    ("terminate_at", "edge", Applied),
    ("terminate_at", "upstream", Applied),
    ("terminate_at", "agent", Refused("needs a certificate")),
    (
        "terminate_at",
        "nowhere",
        Refused("edge, agent or upstream"),
    ),
];

/// The keys of an endpoint that tunnels do not have.
const UPSTREAM: &[(&str, &str, Fate)] = &[
    ("url", "8080", Applied),
    ("url", "'https://'", Applied),
    ("url", "example.org", Applied),
    ("url", "'file:///srv'", Applied),
    ("url", "'file://srv'", Refused("must be absolute")),
    ("url", "'unix:/run/a.sock'", Applied),
    ("url", "8080\n      protocol: http2", Applied),
    ("url", "8080\n      proxy_protocol: 2", Applied),
    ("url", "8080\n      ca_file: ca.pem", Applied),
    ("url", "https://a.test\n      tls_verify: false", Applied),
    (
        "url",
        "https://a.test\n      tls_verify_cas: ca.pem",
        Applied,
    ),
    (
        "url",
        "https://a.test\n      tls_certificate: cert.pem\n      tls_private_key: key.pem\n      tls_server_name: b.test",
        Applied,
    ),
    ("url", "8080\n      colour: red", Refused("unknown key")),
];

/// A directory with the files that the values name.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["a.test".into()]).unwrap();
        for (name, text) in [
            ("ca.pem", made.cert.pem()),
            ("cert.pem", made.cert.pem()),
            ("key.pem", made.signing_key.serialize_pem()),
            ("policy.yml", "on_http_request: []\n".to_owned()),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Self(folder)
    }

    fn write(&self, text: &str) -> PathBuf {
        let path = self.0.path().join("ngrok.yml");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Checks the fate of the key at `path`, which is in this line of the text.
    fn check(&self, text: &str, path: &str, fate: Fate) {
        let file = self.write(text);
        let read = file::read(std::slice::from_ref(&file), Selection::Check);
        let key = path.rsplit('.').next().unwrap();
        let line = text
            .lines()
            .position(|line| {
                line.trim_start()
                    .trim_start_matches("- ")
                    .starts_with(&format!("{key}:"))
            })
            .unwrap();
        let place = format!("line {}: `{path}", line + 1);
        match fate {
            Applied => assert_eq!(notices(&read, text), Vec::<String>::new(), "{text}"),
            NoEffect(why) => {
                let notices = notices(&read, text);
                assert_eq!(notices.len(), 1, "{text}");
                assert!(
                    notices[0].contains(why) && notices[0].contains(&place),
                    "{notices:?}"
                );
            }
            Refused(why) => {
                let refused = format!("{:?}", read.err().unwrap_or_else(|| panic!("{text}")));
                assert!(refused.contains(why), "{text}{refused}");
                assert!(refused.contains("line "), "{text}{refused}");
            }
        }
    }
}

fn notices(read: &Result<Read, impl std::fmt::Debug>, text: &str) -> Vec<String> {
    match read {
        Ok(read) => read.identity.notices.clone(),
        Err(error) => panic!("{text}{error:?}"),
    }
}

#[test]
fn every_agent_key_is_handled_in_both_versions() {
    let folder = Folder::new();
    for (key, value, fate) in AGENT {
        folder.check(&format!("version: 2\n\n{key}: {value}\n"), key, *fate);
        let text = format!("version: \"3\"\nagent:\n  {key}: {value}\n");
        folder.check(&text, &format!("agent.{key}"), *fate);
        let misplaced = format!("version: 3\n{key}: {value}\n");
        let why = match *key {
            "colour" => "unknown key",
            _ => "below `agent`",
        };
        folder.check(&misplaced, key, Refused(why));
    }
}

#[test]
fn every_tunnel_and_endpoint_key_is_handled_in_both_versions() {
    let folder = Folder::new();
    for (proto, keys) in [("http", HTTP), ("tcp", TCP), ("tls", TLS)] {
        for (key, value, fate) in keys {
            // Two endpoints of one name need one.
            let both = match *value {
                "both" | "[http, https]" => "domain: b.test",
                _ => "description: text",
            };
            for version in [2, 3] {
                let text = format!(
                    "version: {version}\ntunnels:\n  web:\n    proto: {proto}\n    addr: 8080\n    {key}: {value}\n"
                );
                let text =
                    match text.contains("\n    description:") || text.contains("\n    domain:") {
                        true => text,
                        false => format!("{text}    {both}\n"),
                    };
                folder.check(&text, &format!("tunnels.web.{key}"), *fate);
            }
            let text = format!(
                "version: 3\nendpoints:\n  - name: web\n    proto: {proto}\n    {key}: {value}\n    upstream: {{\"url\": \"8080\"}}\n"
            );
            let text = match *value {
                "both" | "[http, https]" => format!("{text}    domain: b.test\n"),
                _ => text,
            };
            folder.check(&text, &format!("endpoints[0].{key}"), *fate);
        }
    }
    for (key, value, fate) in UPSTREAM {
        let text =
            format!("version: 3\nendpoints:\n  - name: web\n    upstream:\n      {key}: {value}\n");
        folder.check(&text, &format!("endpoints[0].upstream.{key}"), *fate);
    }
}

#[test]
fn config_check_lists_keys_without_effect() {
    let folder = Folder::new();
    let check = |path: &Path| {
        let output = binary()
            .args(["config", "check", "--config"])
            .arg(path)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let path = folder.write(
        "version: 2\nauthtoken: hidden\nregion: eu\ntunnels:\n  web: {proto: http, addr: 80}\n",
    );
    let (code, out, error) = check(&path);
    assert_eq!((code, &error[..]), (0, ""));
    assert!(
        out.contains("line 3: `region`: the key has no effect"),
        "{out}"
    );
    assert!(out.ends_with("the configuration is valid\n"), "{out}");
    let path =
        folder.write("version: 2\nauthtoken: hidden\ntunnels:\n  web: {addr: 80, labels: [a=b]}\n");
    let (code, out, error) = check(&path);
    assert_eq!((code, &out[..], error.lines().count()), (78, "", 1));
    assert!(error.contains("line 4: `tunnels.web.labels`: "), "{error}");
    assert!(!error.contains("hidden"), "{error}");
}

/// Serves a policy that makes the endpoint respond with this text.
async fn policy_server(text: &str) -> (std::net::SocketAddr, tokio::task::JoinSet<()>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let policy = format!(
        "on_http_request:\n- actions:\n  - {{type: custom-response, config: {{body: {text}}}}}\n"
    );
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{policy}",
        policy.len()
    );
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && socket.read_buf(&mut head).await.unwrap() > 0 {}
            socket.write_all(response.as_bytes()).await.unwrap();
        }
    });
    (address, tasks)
}

/// The policy is fetched before the start, and the connection leaves from the interface.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_fetches_its_policy_and_connects_from_its_interface() {
    use crate::harness::{Backend, Harness, eventually};
    let culvert = Harness::start(&Backend::Sqlite).await;
    let (policies, _serving) = policy_server("fetched").await;
    let credential = culvert.create("credentials", serde_json::json!({})).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ngrok.yml");
    let host = "fetched.culvert.localhost";
    let text = format!(
        "version: 2\nauthtoken: {}\nserver_addr: localhost:{}\nroot_cas: {}\nconnect_interface: 127.0.0.9\nweb_addr: false\ntunnels:\n  web: {{proto: http, addr: 9, schemes: [http], domain: {host}, traffic_policy_url: 'http://{policies}/policy.yml'}}\n",
        credential["token"].as_str().unwrap(),
        culvert.agents.port(),
        culvert.settings.data_dir.join("ca.pem").display(),
    );
    std::fs::write(&path, &text).unwrap();
    let start = || {
        let mut command = tokio::process::Command::from(binary());
        command
            .args(["start", "--config"])
            .arg(&path)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true);
        command
    };
    let agent = start().spawn().unwrap();
    eventually("the policy responds", async || {
        let response = culvert.get(host, "/").await;
        response.status == 200 && response.text.ends_with("fetched")
    })
    .await;
    let sessions = crate::agents::list(&culvert, "tunnel_sessions").await;
    assert_eq!(sessions[0]["ip"], "127.0.0.9", "{sessions:?}");
    drop(agent);
    // Without its policy the agent does not start: the endpoint would be open.
    std::fs::write(&path, text.replace(&policies.to_string(), "127.0.0.1:1")).unwrap();
    let output = start().output().await.unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("line 8: `tunnels.web.traffic_policy_url`: cannot fetch"),
        "{error}"
    );
    culvert.stop().await;
}
