//! The demo: a complete culvert in a temporary directory, with a sample service, that prints events as they are
//! delivered.
//!
//! It uses only public interfaces: requests to the API like any client, and a receiver behind the ordinary `debug`
//! destination.

use std::convert::Infallible;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_base::{Entropy, OsEntropy};
use culvert_cli::client::Client;
use culvert_server::{Server, telemetry};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use culvert_command::{StopSignals, say};
use culvert_installation::config::{LogFormat, Settings};

/// How long `--once` waits for its events.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of deliveries that wait to be printed. When the channel is full, the sender waits.
const WAITING_MAX: usize = 256;

/// Runs the demo; with `once` only until the first traffic event is delivered.
pub async fn run(once: bool) -> Result<()> {
    let folder = Folder::make()?;
    let mut settings = Settings {
        data_dir: folder.0.join("data"),
        ..Settings::default()
    };
    settings.api.addr = "127.0.0.1:0".into();
    settings.edge.http_addr = "127.0.0.1:0".into();
    settings.edge.https_addr = "127.0.0.1:0".into();
    settings.agents.addr = "127.0.0.1:0".into();
    settings.agents.ssh_addr = "127.0.0.1:0".into();
    settings.metrics.addr = "127.0.0.1:0".into();
    // This process receives the events.
    settings.destinations.allow_networks = vec!["127.0.0.1/32".into()];
    settings.destinations.allow_plain_http = true;
    settings.log.level = "warn".into();
    settings.log.format = LogFormat::Text;
    telemetry::start(&settings.log)?;

    let mut tasks = JoinSet::new();
    let (sample, receiver, mut deliveries) = serve_locally(&mut tasks).await?;
    let server = Server::start(settings).await?;
    let cancel = CancellationToken::new();
    let play = Play {
        api: server.api_url(),
        http: server.http_addr().context("the demo requires plain HTTP")?,
        https: server.https_addr().context("the demo requires TLS")?,
        console: server.console_url().context("the demo requires the API")?,
        ca: server.ca_file(),
        token: server
            .first_token()
            .context("a new server creates a first key")?
            .reveal()
            .to_owned(),
        folder: folder.0.clone(),
        sample,
        receiver,
    };
    let served = server.run(cancel.clone());
    tokio::pin!(served);
    let mut signals = StopSignals::new()?;

    let shown = async {
        tokio::time::timeout(PATIENCE, play.perform(&mut deliveries))
            .await
            .unwrap_or_else(|_| bail!("no event was delivered within {} s", PATIENCE.as_secs()))?;
        if !once {
            play.say_what_next()?;
            loop {
                tokio::select! {
                    Some(event) = deliveries.recv() => print_event(&event)?,
                    () = signals.next() => break,
                }
            }
        }
        anyhow::Ok(())
    };
    let outcome = tokio::select! {
        outcome = shown => outcome,
        outcome = &mut served => return outcome.and_then(|()| bail!("the server stopped unexpectedly")),
    };
    cancel.cancel();
    served.await?;
    outcome
}

/// Addresses and the first API key.
struct Play {
    api: String,
    http: SocketAddr,
    https: SocketAddr,
    console: String,
    ca: PathBuf,
    token: String,
    folder: PathBuf,
    sample: SocketAddr,
    receiver: SocketAddr,
}

impl Play {
    async fn perform(&self, deliveries: &mut mpsc::Receiver<Value>) -> Result<()> {
        let admin = Client::new(&self.api, self.token.clone())?;
        say(format_args!(
            "culvert demo: a real server on free ports, with its data in {}\n",
            self.folder.display()
        ))?;

        heading("1. Create an event destination and a subscription")?;
        let destination = json!({
            "description": "this terminal",
            "format": "json",
            "target": {"debug": {"callback_url": format!("http://{}/", self.receiver)}},
        });
        let destination = admin
            .expect(Method::POST, "/event_destinations", Some(&destination))
            .await?;
        let filter = "ev.conn.server_name.startsWith(\"hello.\")";
        let fields = [
            "http.request.method",
            "http.request.url.path",
            "http.response.status_code",
            "conn.client_ip",
        ];
        let subscription = json!({
            "description": "keys, and requests to hello",
            "sources": [
                {"type": "api_key_created.v0"},
                {"type": "http_request_complete.v0", "fields": fields, "filter": filter},
            ],
            "destination_ids": [destination["id"]],
        });
        admin
            .expect(Method::POST, "/event_subscriptions", Some(&subscription))
            .await?;
        say("   POST /event_destinations, POST /event_subscriptions")?;
        say(format_args!(
            "   fields  {}\n   filter  {filter}\n",
            fields.join(", ")
        ))?;

        heading("2. Create an API key")?;
        let key = json!({"description": "demo"});
        let key = admin.expect(Method::POST, "/api_keys", Some(&key)).await?;
        say(format_args!(
            "   POST /api_keys -> {}, token shown once: {}\n",
            text(&key["id"]),
            text(&key["token"])
        ))?;
        let user = Client::new(&self.api, text(&key["token"]).to_owned())?;

        heading("3. Create endpoints that forward to a service")?;
        for scheme in ["http", "https"] {
            for name in ["hello", "quiet"] {
                let endpoint = json!({
                    "url": format!("{scheme}://{name}.culvert.localhost"),
                    "upstream_url": format!("http://{}", self.sample),
                });
                let endpoint = user
                    .expect(Method::POST, "/endpoints", Some(&endpoint))
                    .await?;
                say(format_args!(
                    "   POST /endpoints -> {}",
                    text(&endpoint["public_url"])
                ))?;
            }
        }

        heading("\n4. Send requests and receive events (only `hello` matches the filter)")?;
        for host in ["quiet.culvert.localhost", "hello.culvert.localhost"] {
            let status = self.get(host, "/greeting?from=demo").await?;
            say(format_args!(
                "   GET http://{host}:{}/greeting -> {status}",
                self.http.port()
            ))?;
        }
        say("")?;
        // The audit event of the key comes first, because it was committed before any request was sent.
        let (mut audit, mut traffic) = (false, false);
        while !(audit && traffic) {
            let event = deliveries
                .recv()
                .await
                .context("the event receiver stopped")?;
            print_event(&event)?;
            audit |= event["event_type"] == "api_key_created.v0";
            traffic |= event["event_type"] == "http_request_complete.v0";
        }
        say("")?;
        Ok(())
    }

    /// Sends one request through the edge. A new endpoint is available at the edge within a second.
    async fn get(&self, host: &str, target: &str) -> Result<u16> {
        let give_up = tokio::time::Instant::now() + Duration::from_secs(5);
        loop {
            let mut stream = TcpStream::connect(self.http)
                .await
                .context("connecting to the edge")?;
            let request = format!(
                "GET {target} HTTP/1.1\r\nhost: {host}:{}\r\nuser-agent: culvert-demo\r\nconnection: close\r\n\r\n",
                self.http.port()
            );
            stream
                .write_all(request.as_bytes())
                .await
                .context("sending a request")?;
            let mut answer = Vec::new();
            stream
                .take(64 * 1024)
                .read_to_end(&mut answer)
                .await
                .context("reading the response")?;
            let answer = String::from_utf8_lossy(&answer);
            let status = answer
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok());
            match status.context("the edge did not respond with HTTP")? {
                404 if tokio::time::Instant::now() < give_up => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                status => return Ok(status),
            }
        }
    }

    fn say_what_next(&self) -> Result<()> {
        let (http, https) = (self.http.port(), self.https.port());
        heading(
            "The server keeps running. Open its console; this link signs in once, within an hour:",
        )?;
        say(format_args!("   {}\n", self.console))?;
        heading("Or in another terminal, try:")?;
        say(format_args!(
            "   curl --resolve hello.culvert.localhost:{http}:127.0.0.1 http://hello.culvert.localhost:{http}/"
        ))?;
        say(format_args!(
            "   curl --cacert {} --resolve hello.culvert.localhost:{https}:127.0.0.1 https://hello.culvert.localhost:{https}/",
            self.ca.display()
        ))?;
        say(format_args!(
            "   export CULVERT_API_URL={} CULVERT_API_KEY={}",
            self.api, self.token
        ))?;
        say("   culvert api_keys list --table")?;
        say("   culvert events tail")?;
        say(format_args!("   curl {}/openapi.json\n", self.api))?;
        say("Ctrl-C stops the server and deletes its data. Delivered events:")?;
        Ok(())
    }
}

/// Starts the sample service and the receiver of events. Deliveries arrive in the channel.
async fn serve_locally(
    tasks: &mut JoinSet<()>,
) -> Result<(SocketAddr, SocketAddr, mpsc::Receiver<Value>)> {
    let sample = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let receiver = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let addresses = (sample.local_addr()?, receiver.local_addr()?);
    let (sender, deliveries) = mpsc::channel(WAITING_MAX);
    tasks.spawn(accept(sample, None));
    tasks.spawn(accept(receiver, Some(sender)));
    Ok((addresses.0, addresses.1, deliveries))
}

async fn accept(listener: TcpListener, events: Option<mpsc::Sender<Value>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let events = events.clone();
        connections.spawn(async move {
            let answer = service_fn(|request| answer(request, events.clone()));
            let served = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a connection of the sample service ended");
            }
        });
    }
}

/// The sample service responds with a greeting; the receiver accepts a batch, which is an array of events.
async fn answer(
    request: Request<Incoming>,
    events: Option<mpsc::Sender<Value>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let Some(events) = events else {
        let greeting = format!(
            "hello from the sample service, you requested {}\n",
            request.uri()
        );
        return Ok(Response::new(Full::new(greeting.into())));
    };
    let mut response = Response::new(Full::default());
    let bytes = Limited::new(request.into_body(), 4 << 20)
        .collect()
        .await
        .map(|body| body.to_bytes());
    match bytes
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Vec<Value>>(&bytes).ok())
    {
        Some(batch) => {
            for event in batch {
                if events.send(event).await.is_err() {
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                }
            }
        }
        None => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(response)
}

fn print_event(event: &Value) -> Result<()> {
    let kind = bold(text(&event["event_type"]));
    Ok(say(format_args!("   {kind} {event}"))?)
}

fn heading(line: &str) -> Result<()> {
    Ok(say(bold(line))?)
}

fn bold(line: &str) -> String {
    if std::io::stdout().is_terminal() {
        format!("\x1b[1m{line}\x1b[0m")
    } else {
        line.to_owned()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A temporary directory that is deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Self> {
        let entropy: &dyn Entropy = &OsEntropy;
        let name = format!(
            "culvert-demo-{}",
            entropy.text(b"abcdefghijklmnopqrstuvwxyz0123456789", 8)
        );
        let path = std::env::temp_dir().join(name);
        culvert_installation::keys::make_data_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, "cannot remove the directory `{}`", self.0.display());
        }
    }
}
