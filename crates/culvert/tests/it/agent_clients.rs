//! Every kind of client that the contract names, each with one endpoint, as the tests start them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;

use ngrok::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::agents::{Proxy, builder, list, soon};
use crate::harness::{Harness, binary, eventually};
use crate::ssh_reverse::stock_client;

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Crate,
    Python,
    Node,
    Own,
    Ssh,
}

pub const KINDS: [Kind; 5] = [Kind::Crate, Kind::Python, Kind::Node, Kind::Own, Kind::Ssh];

impl Kind {
    /// Whether it is installed. If not, the test is reported as ignored.
    pub fn is_here(self) -> bool {
        let place = match self {
            Self::Crate | Self::Own => return true,
            Self::Python => target("python-clients/ngrok/requirements.txt"),
            Self::Node => target("node-clients/ngrok/made"),
            Self::Ssh => {
                let found = std::process::Command::new("ssh-keygen").arg("-?").output();
                if found.is_err() {
                    culvert_testing::ignore("the OpenSSH client is not installed");
                }
                return found.is_ok();
            }
        };
        if !place.exists() {
            culvert_testing::ignore(format_args!(
                "{self:?} is not here; `scripts/python-clients` and `node-clients` get them"
            ));
        }
        place.exists()
    }

    /// Where it dials.
    pub fn ingress(self, culvert: &Harness) -> SocketAddr {
        match self {
            Self::Ssh => culvert.ssh,
            _ => culvert.agents,
        }
    }

    /// A credential of the kind that it shows: the object, and the token of one that has a token. The key
    /// of one that has none is in the folder.
    pub async fn credential(self, culvert: &Harness, folder: &Path, acl: Value) -> (Value, String) {
        if self == Self::Ssh {
            let public = crate::ssh_reverse::key(folder).unwrap();
            let body = json!({"public_key": public, "acl": acl});
            return (culvert.create("ssh_credentials", body).await, String::new());
        }
        let made = culvert.create("credentials", json!({"acl": acl})).await;
        let token = made["token"].as_str().unwrap().to_owned();
        (made, token)
    }
}

fn target(path: &str) -> PathBuf {
    root().join("target").join(path)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a client is to do.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// `http` or `tcp`, or `http2` for an http endpoint whose service speaks HTTP/2.
    pub proto: &'a str,
    /// Domain of an http endpoint.
    pub name: &'a str,
    /// Its service.
    pub upstream: SocketAddr,
    /// Where the ingress is, or the way to it.
    pub at: SocketAddr,
    pub token: &'a str,
    /// With the key of a client that has one.
    pub folder: &'a Path,
    /// How many files our own agent may open: the limit that it starts with, and the one it may raise it to.
    pub files: Option<(u64, u64)>,
}

/// The program with limits of open files.
fn limited(soft: u64, hard: u64) -> std::process::Command {
    let program = binary();
    let mut shell = std::process::Command::new("sh");
    let limits = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
    shell.args(["-c", &limits]).arg(program.get_program());
    for (name, _) in program.get_envs() {
        shell.env_remove(name);
    }
    shell
}

/// A client that has its endpoint. It ends without a word when this is dropped.
pub struct Running {
    pub url: String,
    /// How it is asked to end.
    ends: Ends,
}

enum Ends {
    /// A library in this process, whose connection is broken when it is done: it leaves that open.
    Library(Pin<Box<dyn Future<Output = ()> + Send>>, Proxy),
    /// A program, which ends at the end of its input or at a signal.
    Program(Box<Child>, Option<&'static str>, JoinSet<()>),
}

impl Running {
    /// Tells a program to end, and does not wait for that.
    pub fn tell_to_end(&self) {
        let Ends::Program(child, Some(signal), _) = &self.ends else {
            panic!("only programs of the command line are reported by signals");
        };
        let id = child.id().unwrap().to_string();
        let kill = std::process::Command::new("kill")
            .args([*signal, &id])
            .status();
        assert!(kill.unwrap().success());
    }

    /// Waits until a program ends that was asked to, after it has completed its streams.
    pub async fn exits_well(self) {
        let Ends::Program(mut child, ..) = self.ends else {
            panic!("a library does not exit");
        };
        let status = soon("the end of a client", child.wait()).await.unwrap();
        assert!(status.success(), "{status}");
    }

    /// Ends it as its users do.
    pub async fn close(self) {
        match self.ends {
            Ends::Library(closing, proxy) => {
                soon("a clean end", closing).await;
                proxy.cut();
            }
            Ends::Program(mut child, signal, _reading) => {
                drop(child.stdin.take());
                if let (Some(signal), Some(id)) = (signal, child.id()) {
                    let kill = std::process::Command::new("kill")
                        .args([signal, &id.to_string()])
                        .status();
                    assert!(kill.unwrap().success());
                }
                soon("the end of a client", child.wait()).await.unwrap();
            }
        }
    }

    /// Ends it as a crash does.
    pub async fn kill(self) {
        match self.ends {
            Ends::Library(_, proxy) => proxy.cut(),
            Ends::Program(mut child, _, _) => child.kill().await.unwrap(),
        }
    }
}

/// Starts a client.
///
/// # Errors
///
/// The code that it was refused with.
pub async fn start(kind: Kind, culvert: &Harness, order: Order<'_>) -> Result<Running, String> {
    if kind == Kind::Crate {
        return library(culvert, order).await;
    }
    let Order { name, at, .. } = order;
    let (proto, app_protocol) = match order.proto {
        "http2" => ("http", "http2"),
        proto => (proto, ""),
    };
    let upstream = order.upstream.to_string();
    let at_name = format!("localhost:{}", at.port());
    let (mut command, signal, begins) = match kind {
        Kind::Crate => unreachable!("it is a library"),
        Kind::Python => {
            let mut command = Command::new(target("python-clients/ngrok/bin/python"));
            command
                .arg("-B")
                .arg(root().join("tests/clients/ngrok/agent.py"));
            (command, None, "")
        }
        Kind::Node => {
            let mut command = Command::new("node");
            let package = target("node-clients/ngrok/node_modules/@ngrok/ngrok/index.js");
            command
                .arg(root().join("tests/clients/node/agent.cjs"))
                .env("CULVERT_AGENT_PACKAGE", package);
            (command, None, "")
        }
        Kind::Own => {
            let mut command = match order.files {
                None => Command::from(binary()),
                Some((soft, hard)) => Command::from(limited(soft, hard)),
            };
            command.args([proto, &upstream, "--server", &at_name]);
            if proto == "http" {
                command
                    .args(["--url", &format!("http://{name}")])
                    .args(["--inspect-addr", "127.0.0.1:0"]);
            }
            if !app_protocol.is_empty() {
                command.args(["--upstream-protocol", app_protocol]);
            }
            command
                .args(["--session-metadata", "of the test"])
                .env("CULVERT_DATA_DIR", &culvert.settings.data_dir)
                .env("CULVERT_AUTHTOKEN", order.token);
            (command, Some("-TERM"), "")
        }
        Kind::Ssh => {
            let mut command = stock_client(order.folder, at);
            let forward = match proto {
                "http" => format!("{name}:80:{upstream}"),
                _ => format!("0:{upstream}"),
            };
            command.args(["-R", &forward, "v2@127.0.0.1", proto]);
            if proto == "http" {
                command.args(["--scheme", "http"]);
            }
            // Without job control, shells start programs that ignore SIGINT, and the client keeps that.
            (command, Some("-TERM"), "Forwarding")
        }
    };
    let mut child = command
        .env("CULVERT_AGENTS", &at_name)
        .env("CULVERT_CA", culvert.settings.data_dir.join("ca.pem"))
        .env("TOKEN", order.token)
        .env("PROTO", proto)
        .env("APP_PROTOCOL", app_protocol)
        .env("NAME", name)
        .env("UPSTREAM", &upstream)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (out, mut log) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut reading = JoinSet::new();
    let said = soon("a first word", first(out, begins, &mut reading)).await;
    match said.as_deref().map(|line| line.split_whitespace().last()) {
        Some(Some(url)) if url.contains("://") => Ok(Running {
            url: url.to_owned(),
            ends: Ends::Program(child.into(), signal, reading),
        }),
        said => {
            let mut text = format!("{}\n", said.flatten().unwrap_or_default());
            soon("its log", log.read_to_string(&mut text))
                .await
                .unwrap();
            let code = text.find("ERR_NGROK_").map(|at| &text[at..]);
            let code = code
                .unwrap_or(&text)
                .split(|c: char| !(c.is_alphanumeric() || c == '_'));
            Err(code.into_iter().next().unwrap_or_default().to_owned())
        }
    }
}

/// The first line with this beginning. The rest is read too, so that the program never waits for a full pipe.
async fn first(
    out: impl AsyncRead + Unpin + Send + 'static,
    begins: &str,
    reading: &mut JoinSet<()>,
) -> Option<String> {
    let mut lines = BufReader::new(out).lines();
    let found = loop {
        match lines.next_line().await.unwrap() {
            Some(line) if line.starts_with(begins) && !line.is_empty() => break Some(line),
            Some(_) => {}
            None => break None,
        }
    };
    reading.spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    found
}

async fn library(culvert: &Harness, order: Order<'_>) -> Result<Running, String> {
    fn code(error: impl Error) -> String {
        error.error_code().unwrap_or_default().to_owned()
    }
    let proxy = Proxy::to(order.at).await;
    let session = builder(culvert, proxy.address, order.token);
    let session = soon("a session", session.connect()).await;
    let mut session = session.map_err(code)?;
    let proto = order.proto.trim_end_matches('2');
    let upstream = format!("{proto}://{}", order.upstream);
    let upstream = upstream.parse().unwrap();
    let (url, closing): (_, Pin<Box<dyn Future<Output = ()> + Send>>) = match proto {
        "http" => {
            let mut endpoint = session.http_endpoint();
            endpoint.scheme(Scheme::HTTP).domain(order.name);
            if order.proto == "http2" {
                endpoint.app_protocol("http2");
            }
            let tunnel = soon("an endpoint", endpoint.listen_and_forward(upstream)).await;
            let mut tunnel = tunnel.map_err(code)?;
            let url = tunnel.url().to_owned();
            let closing = async move {
                tunnel.close().await.unwrap();
                session.close().await.unwrap();
            };
            (url, Box::pin(closing))
        }
        _ => {
            let endpoint = session.tcp_endpoint();
            let tunnel = soon("an endpoint", endpoint.listen_and_forward(upstream)).await;
            let mut tunnel = tunnel.map_err(code)?;
            let url = tunnel.url().to_owned();
            let closing = async move {
                tunnel.close().await.unwrap();
                session.close().await.unwrap();
            };
            (url, Box::pin(closing))
        }
    };
    Ok(Running {
        url,
        ends: Ends::Library(closing, proxy),
    })
}

/// Waits until nothing is online.
pub async fn all_gone(culvert: &Harness) {
    eventually("the endpoint is gone", async || {
        list(culvert, "endpoints").await.is_empty()
            && list(culvert, "tunnel_sessions").await.is_empty()
    })
    .await;
}
