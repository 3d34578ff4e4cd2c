//! The agent's commands: the real program against the agent ingress, with a gate of this test.

use std::process::Stdio;
use std::sync::Arc;

use culvert_base::{BoxFuture, Refusal, code};
use culvert_tunnel::driver::Stream;
use culvert_tunnel::server::{
    AgentAuthRequest, AgentAuthorizer, Binding, Bindings, ConnectionLimits, EndpointRequest,
    Ingress, Proof, Server, SessionEnd, SessionGrant,
};
use culvert_tunnel::wire::{LabelledRequest, PatchRequest, ProxyHeader};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::harness::binary;

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(culvert_testing::PATIENCE, future)
        .await
        .expect("it comes to an end")
}

/// Admits every agent with the token, and assigns every requested name.
#[derive(Debug)]
struct OpenGate;

impl AgentAuthorizer for OpenGate {
    fn authorize(&self, hello: AgentAuthRequest) -> BoxFuture<'_, Result<SessionGrant, Refusal>> {
        Box::pin(async move {
            match &hello.proof {
                Proof::Token(token) if token.reveal() == "right" => Ok(SessionGrant {
                    session_id: "ts_test".into(),
                    ..SessionGrant::default()
                }),
                _ => Err(Refusal::of(code::AGENT_AUTH_MALFORMED)),
            }
        })
    }

    fn next_tcp_port<'a>(&'a self, _: &'a SessionGrant) -> BoxFuture<'a, Option<u16>> {
        Box::pin(async { None })
    }

    fn bind<'a>(
        &'a self,
        _: &'a SessionGrant,
        want: &'a EndpointRequest,
    ) -> BoxFuture<'a, Result<Binding, Refusal>> {
        Box::pin(async move {
            let asked = want.options.requested().unwrap_or("random.example.test");
            let name = asked.rsplit("://").next().unwrap_or_default().to_owned();
            Ok(Binding {
                id: format!("ep_{name}"),
                url: format!("{}://{name}", want.proto),
                name,
                token: String::new(),
            })
        })
    }

    fn bind_labels<'a>(
        &'a self,
        _: &'a SessionGrant,
        _: &'a LabelledRequest,
    ) -> BoxFuture<'a, Result<String, Refusal>> {
        Box::pin(async { Err(Refusal::of(code::BIND_PROTOCOL_UNSUPPORTED)) })
    }

    fn patch<'a>(
        &'a self,
        _: &'a SessionGrant,
        _: &'a PatchRequest,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn unbind<'a>(&'a self, _: &'a SessionGrant, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn ended(&self, _: SessionEnd) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// The ingress, a service that responds `ok`, and the folder with the authority's certificate.
struct Stage {
    server: String,
    bindings: Arc<Bindings>,
    service: String,
    folder: tempfile::TempDir,
    _tasks: JoinSet<()>,
}

impl Stage {
    async fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = rustls_pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let bindings = Arc::new(Bindings::default());
        let server = Server::new(Arc::new(OpenGate), Arc::clone(&bindings), "test".into());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let room = ConnectionLimits {
            connections: 100,
            unauthenticated: 16,
            unauthenticated_per_source: 16,
        };
        let ingress = Ingress::new(listener, Arc::new(tls), Arc::new(server), room);
        tasks.spawn(ingress.run(CancellationToken::new()));
        let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service_address = service.local_addr().unwrap();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut socket, _) = service.accept().await.unwrap();
                connections.spawn(async move {
                    let mut bytes = Vec::new();
                    while socket.read_buf(&mut bytes).await.unwrap_or(0) > 0 {
                        if bytes.ends_with(b"\r\n\r\n") {
                            bytes.clear();
                            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                            socket.write_all(answer).await.unwrap();
                        }
                    }
                });
            }
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), made.cert.pem()).unwrap();
        Self {
            server: format!("localhost:{}", address.port()),
            bindings,
            service: service_address.to_string(),
            folder,
            _tasks: tasks,
        }
    }

    /// The program with the token, the server, and the folder in which it finds the authority.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::from(binary());
        command
            .args(arguments)
            .env("CULVERT_SERVER", &self.server)
            .env("CULVERT_AUTHTOKEN", "right")
            .env("CULVERT_DATA_DIR", self.folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    fn run(&self, arguments: &[&str]) -> Agent {
        let mut child = self.command(arguments).spawn().unwrap();
        Agent {
            out: BufReader::new(child.stdout.take().unwrap()).lines(),
            log: BufReader::new(child.stderr.take().unwrap()).lines(),
            child,
        }
    }

    /// A client's connection to an endpoint.
    fn dial(&self, id: &str) -> Stream {
        let header = ProxyHeader {
            id: id.into(),
            client_addr: "192.0.2.7:1234".into(),
            proto: "https".into(),
            edge_type: "3".into(),
            passthrough_tls: false,
        };
        self.bindings.dial(&header).unwrap()
    }
}

struct Agent {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    log: Lines<BufReader<ChildStderr>>,
}

impl Agent {
    async fn line(&mut self) -> String {
        soon(self.out.next_line()).await.unwrap().unwrap()
    }

    /// The next line of the log that says `what`.
    async fn logged(&mut self, what: &str) -> Value {
        loop {
            let line = soon(self.log.next_line()).await.unwrap().expect(what);
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["message"]
                .as_str()
                .is_some_and(|message| message.starts_with(what))
            {
                return line;
            }
        }
    }

    /// Asks it to end, and waits for that.
    async fn stopped(mut self) -> Option<i32> {
        let id = self.child.id().unwrap().to_string();
        let kill = std::process::Command::new("kill")
            .args(["-TERM", &id])
            .status();
        assert!(kill.unwrap().success());
        soon(self.child.wait()).await.unwrap().code()
    }
}

/// Sends a request as it stands and reads until the connection ends.
async fn raw(address: &str, head: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!("{head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(socket.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_command_publishes_an_endpoint_and_replays_a_request() {
    let stage = Stage::start().await;
    let mut agent = stage.run(&[
        "http",
        &stage.service,
        "--url",
        "app.example.test",
        "--inspect-addr",
        "127.0.0.1:0",
    ]);
    assert_eq!(agent.line().await, "https://app.example.test");
    let online = agent.logged("online").await;
    let page = online["inspect"]
        .as_str()
        .unwrap()
        .strip_prefix("http://")
        .unwrap()
        .to_owned();

    let mut stream = stage.dial("ep_app.example.test");
    let request = b"GET /<script>alert(1)</script> HTTP/1.1\r\nhost: app.example.test\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = [0; 40];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert!(answer.ends_with(b"ok"));
    drop(stream);

    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: {page}");
    let requests = soon(async {
        loop {
            let answer = raw(&page, &get("/api/requests/http"), "").await;
            let body = answer.split("\r\n\r\n").nth(1).unwrap().to_owned();
            let value: Value = serde_json::from_str(&body).unwrap();
            if value["requests"].as_array().unwrap().len() == 1 {
                return value;
            }
        }
    })
    .await;
    let request = &requests["requests"][0];
    assert_eq!(request["request"]["uri"], "/<script>alert(1)</script>");
    assert_eq!(request["response"]["status_code"], 200);
    assert_eq!(request["remote_addr"], "192.0.2.7:1234");
    assert_eq!(
        [&requests["seen"], &requests["not_kept"]].map(Value::as_u64),
        [Some(1), Some(0)]
    );
    let id = request["id"].as_str().unwrap();

    let list = raw(&page, &get("/inspect/http"), "").await;
    assert!(
        list.starts_with("HTTP/1.1 200") && !list.contains("alert(1)"),
        "{list}"
    );
    assert!(list.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    let tunnels = raw(&page, &get("/api/tunnels"), "").await;
    assert!(
        tunnels.contains(r#""public_url":"https://app.example.test""#),
        "{tunnels}"
    );
    assert!(
        raw(&page, &get("/"), "")
            .await
            .contains("location: /inspect/http")
    );
    assert!(
        raw(&page, &get("/inspect/api/requests/99"), "")
            .await
            .starts_with("HTTP/1.1 404")
    );

    // Names that others can point here, and forms of others.
    for host in ["evil.test", "127.0.0.1", "localhost:1", ""] {
        let head = format!("GET /inspect/http HTTP/1.1\r\nhost: {host}");
        assert!(
            raw(&page, &head, "").await.starts_with("HTTP/1.1 403"),
            "{host}"
        );
    }
    let replay = format!("POST /inspect/api/requests/{id}/replay HTTP/1.1\r\nhost: {page}");
    for foreign in [
        "origin: http://evil.test",
        "origin: null",
        "sec-fetch-site: cross-site",
    ] {
        let refused = raw(&page, &format!("{replay}\r\n{foreign}"), "").await;
        assert!(refused.starts_with("HTTP/1.1 403"), "{foreign}: {refused}");
    }
    let own = raw(&page, &format!("{replay}\r\norigin: http://{page}"), "").await;
    assert!(
        own.starts_with("HTTP/1.1 200") && own.ends_with(r#"{"id":2}"#),
        "{own}"
    );
    let detail = raw(&page, &get("/inspect/api/requests/2"), "").await;
    assert!(detail.contains(r#""line":"HTTP/1.1 200 OK""#), "{detail}");
    let from_page = format!("{replay}\r\norigin: http://{page}");
    let edited = async |edit: &str| raw(&page, &from_page, edit).await;
    let sent = edited(r#"{"method":"PUT","path":"/b","fields":[["x-a","1"]],"body":""}"#).await;
    assert!(sent.ends_with(r#"{"id":3}"#), "{sent}");
    for invalid in [
        r#"{"method":"PUT","path":"no path","fields":[],"body":""}"#,
        r#"{"method":"PUT","path":"/","fields":[["a\r\nb","1"]],"body":""}"#,
        r#"{"method":"PUT","path":"/","fields":[["a","1\r\nb: 2"]],"body":""}"#,
        r#"{"method":"PUT","path":"/","fields":[],"body":"?"}"#,
        "[]",
    ] {
        let refused = edited(invalid).await;
        assert!(refused.starts_with("HTTP/1.1 400"), "{invalid}: {refused}");
    }
    let post = format!("POST /api/requests/http HTTP/1.1\r\nhost: {page}");
    let again = raw(&page, &post, &format!(r#"{{"id":"{id}"}}"#)).await;
    assert!(again.starts_with("HTTP/1.1 204"), "{again}");
    assert!(
        raw(&page, &post, r#"{"id":"77"}"#)
            .await
            .starts_with("HTTP/1.1 404")
    );
    let clear = format!("DELETE /api/requests/http HTTP/1.1\r\nhost: {page}");
    assert!(raw(&page, &clear, "").await.starts_with("HTTP/1.1 204"));
    assert!(
        raw(&page, &get("/api/requests/http"), "")
            .await
            .contains(r#""requests":[]"#)
    );

    assert_eq!(agent.stopped().await, Some(0));
    assert_eq!(stage.bindings.connections(), 0);
}

/// Sends `each` requests on each connection, one after another.
async fn exchanges(streams: Vec<Stream>, each: usize) -> Vec<Stream> {
    let mut tasks = JoinSet::new();
    for mut stream in streams {
        tasks.spawn(async move {
            for _ in 0..each {
                let request = b"GET / HTTP/1.1\r\nhost: busy.example.test\r\n\r\n";
                stream.write_all(request).await.unwrap();
                let mut answer = [0; 40];
                stream.read_exact(&mut answer).await.unwrap();
                assert!(answer.ends_with(b"ok"));
            }
            stream
        });
    }
    tasks.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inspection_page_counts_requests_that_were_not_kept() {
    const ENDPOINT: &str = "ep_busy.example.test";
    let stage = Stage::start().await;
    let mut agent = stage.run(&[
        "http",
        &stage.service,
        "--url",
        "https://busy.example.test",
        "--inspect-addr",
        "127.0.0.1:0",
    ]);
    agent.line().await;
    let online = agent.logged("online").await;
    let page = online["inspect"].as_str().unwrap();
    let page = page.strip_prefix("http://").unwrap();
    let counted = async || {
        let get = format!("GET /api/requests/http HTTP/1.1\r\nhost: {page}");
        let answer = raw(page, &get, "").await;
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        let count = |field: &str| usize::try_from(body[field].as_u64().unwrap()).unwrap();
        let shown = body["requests"].as_array().unwrap().clone();
        (shown, count("seen"), count("not_kept"))
    };

    // Nothing is missing of what the page can hold, however fast it came.
    let streams: Vec<Stream> = (0..10).map(|_| stage.dial(ENDPOINT)).collect();
    let mut streams = soon(exchanges(streams, 50)).await;
    let mut sent = 500;
    // The last bytes of an answer are here before the agent has noted its end.
    let all_are_shown = async { while counted().await.0.len() < sent {} };
    soon(all_are_shown).await;
    let (_, seen, not_kept) = counted().await;
    assert_eq!((seen, not_kept), (sent, 0));

    let too_many = async {
        while counted().await.2 == 0 {
            streams = exchanges(std::mem::take(&mut streams), 100).await;
            sent += 1_000;
        }
    };
    soon(too_many).await;
    let counts = async {
        loop {
            let (shown, seen, not_kept) = counted().await;
            if seen == sent {
                return (shown, not_kept);
            }
        }
    };
    let (shown, not_kept) = soon(counts).await;
    assert_eq!(shown.len(), 500);
    assert!(not_kept <= sent - 500);
    assert!(shown.iter().all(|it| it["response"]["status_code"] == 200));
    let get = format!("GET /inspect/api/state HTTP/1.1\r\nhost: {page}");
    let state = raw(page, &get, "").await;
    let said = format!(r#""not_kept":{not_kept},"#);
    assert!(state.contains(&said), "{state}");
    assert_eq!(agent.stopped().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_of_a_file_reconnect_after_a_lost_connection() {
    let stage = Stage::start().await;
    let file = stage.folder.path().join("agent.yml");
    let text = format!(
        "version: 3\nagent: {{web_addr: false, connect_cas: ca.pem}}\nendpoints:\n\
         - name: web\n  url: https://web.example.test\n  upstream: {{url: 'http://{0}'}}\n\
         - name: bytes\n  url: tcp://tcp.example.test:7\n  upstream: {{url: 'tcp://{0}'}}\n",
        stage.service
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let mut agent = stage.run(&["start", "--config", file]);
    assert_eq!(agent.line().await, "https://web.example.test");
    assert_eq!(agent.line().await, "tcp://tcp.example.test:7");
    agent.logged("online").await;
    assert!(stage.bindings.hang_up("ts_test", "cut by a test"));
    agent.logged("session reconnected").await;
    assert_eq!(stage.bindings.count("ep_web.example.test"), 1);
    assert_eq!(agent.stopped().await, Some(0));

    let some = stage.command(&["start", "--config", file, "nope"]).output();
    assert_eq!(soon(some).await.unwrap().status.code(), Some(78));
}

/// Version 2 of ngrok's configuration, without flags or variables: the file says everything.
#[tokio::test(flavor = "multi_thread")]
async fn ngroks_configuration_file_works_unchanged() {
    let stage = Stage::start().await;
    let text = format!(
        "version: \"2\"\nauthtoken: right\nregion: eu\nserver_addr: {}\nroot_cas: ca.pem\nweb_addr: false\n\
         connect_timeout: 10s\nheartbeat_interval: 5s\nremote_management: false\nupdate_check: false\ntunnels:\n  \
         bytes: {{proto: tcp, addr: '{1}', remote_addr: 'tcp.example.test:7'}}\n  \
         web:\n    proto: http\n    addr: 'http://{1}'\n    domain: web.example.test\n    schemes: [https]\n    \
         basic_auth: ['user:long enough']\n    host_header: rewrite\n",
        stage.server, stage.service
    );
    let file = stage.folder.path().join("ngrok.yml");
    std::fs::write(&file, text).unwrap();
    let mut command = stage.command(&["start", "--all", "--config", file.to_str().unwrap()]);
    for name in ["CULVERT_SERVER", "CULVERT_AUTHTOKEN", "CULVERT_DATA_DIR"] {
        command.env_remove(name);
    }
    let mut child = command.spawn().unwrap();
    let mut agent = Agent {
        out: BufReader::new(child.stdout.take().unwrap()).lines(),
        log: BufReader::new(child.stderr.take().unwrap()).lines(),
        child,
    };
    let notice = agent.logged(&format!("`{}`: ", file.display())).await;
    let notice = notice["message"].as_str().unwrap();
    assert!(
        notice.ends_with("line 3: `region`: the key has no effect: the server decides the region"),
        "{notice}"
    );
    assert_eq!(agent.line().await, "tcp://tcp.example.test:7");
    assert_eq!(agent.line().await, "https://web.example.test");
    agent.logged("online").await;
    let mut stream = stage.dial("ep_web.example.test");
    let request = b"GET / HTTP/1.1\r\nhost: web.example.test\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = [0; 40];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert!(answer.ends_with(b"ok"));
    drop(stream);
    assert_eq!(agent.stopped().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_and_wrong_usage_have_distinct_one_line_errors() {
    let stage = Stage::start().await;
    let said = async |change: &dyn Fn(&mut Command), arguments: &[&str]| {
        let mut command = stage.command(arguments);
        change(&mut command);
        let output = soon(command.output()).await.unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let wrong = |command: &mut Command| {
        command.env("CULVERT_AUTHTOKEN", "wrong");
    };
    let (code, text) = said(&wrong, &["http", "8080", "--inspect=false"]).await;
    assert_eq!(code, Some(1));
    assert!(text.contains("ERR_NGROK_109"), "{text}");
    let none = |command: &mut Command| {
        command.env_remove("CULVERT_AUTHTOKEN");
    };
    let (code, text) = said(&none, &["tcp", "22"]).await;
    assert_eq!((code, text.lines().count()), (Some(2), 1), "{text}");
    let same = |_: &mut Command| {};
    for arguments in [
        &["http", "ftp://x"][..],
        &["http", "8080", "--inspect-addr", "0.0.0.0:4040"],
        &["http", "8080", "--basic-auth", "nobody"],
        &["tls", "443", "--basic-auth", "a:b"],
        &["tls", "443", "--crt", "x"],
        &["http", "8080", "--traffic-policy-url", "ftp://a.test"],
        &["http", "8080", "--upstream-pin", "00"],
        &["tls", "443", "--terminate-at", "agent"],
    ] {
        let (code, text) = said(&same, arguments).await;
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
    }
}
