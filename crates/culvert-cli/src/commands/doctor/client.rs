//! `culvert doctor URL`: plays clients of several kinds, and says for each what it saw.
//!
//! Each probe has its own connection and a time limit, so one that fails does not hide the others. Nothing is sent but
//! requests for the URL itself; the upload is the only one with a body.

mod old_tls;
mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use http::header;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ProtocolVersion;
use tokio::net::lookup_host;
use url::Url;

use self::old_tls::Reaction;
use self::wire::{Answer, Dialled, Offer, Target};
use super::report::Report;
use crate::commands::Failure;
use culvert_installation::config::Settings;

/// Time limit of a probe.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit of the upload.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(60);
/// The key and the proof of RFC 6455 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const PROOF: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// The URL to examine, and how.
#[derive(Debug)]
pub(super) struct Examination<'x> {
    /// An `http` or `https` URL.
    pub(super) url: &'x str,
    /// The address to connect to instead of that of the host.
    pub(super) connect: Option<SocketAddr>,
    /// Bytes of the body that is sent; 0 for none.
    pub(super) upload_bytes: u64,
}

/// Examines a URL as clients see it.
///
/// # Errors
///
/// When it is not an `http` or `https` URL with a host.
pub(super) async fn examine(
    wanted: &Examination<'_>,
    settings: &Settings,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut url = Url::parse(wanted.url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or_else(|| {
            Failure::Usage(format!(
                "`{}` is not a URL such as `https://app.example.com/`",
                wanted.url
            ))
        })?;
    // Browsers do not send a user in the target either. A URL with a host can always lose it.
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return Err(Failure::Usage("the URL must not contain a user".to_owned()));
    }
    let mut target = Target::new(url, settings);
    if let Some(address) = wanted.connect {
        target.addresses = vec![address];
    } else if !resolve(&mut target, report).await {
        return Ok(());
    }
    if !reach(&mut target, report).await {
        return Ok(());
    }
    if target.is_tls() {
        if !tls(&target, report).await {
            return Ok(());
        }
        old_tls(&target, report).await;
    }
    http1(&target, report).await;
    http2(&target, report).await;
    upgrades(&target, report).await;
    if wanted.upload_bytes > 0 {
        upload(&target, wanted.upload_bytes, report).await;
    }
    Ok(())
}

/// The result of a probe within its time.
async fn timed<T>(probe: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    // On the heap: a probe holds a connection with TLS.
    match tokio::time::timeout(PATIENCE, Box::pin(probe)).await {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

/// Looks up the host. False if it has no address.
async fn resolve(target: &mut Target, report: &mut Report) -> bool {
    const AREA: &str = "resolution";
    let host = target.host.clone();
    let found = timed(async {
        let found = lookup_host((host.as_str(), target.port)).await;
        found
            .map(|all| all.collect::<Vec<_>>())
            .map_err(|error| error.to_string())
    });
    let found = found.await;
    match found {
        Ok(mut addresses) if !addresses.is_empty() => {
            addresses.dedup();
            let text: Vec<_> = addresses.iter().map(|it| it.ip().to_string()).collect();
            report.ok(AREA, format!("`{host}` has {}", text.join(", ")));
            target.addresses = addresses;
            true
        }
        other => {
            let why = other.err().unwrap_or_else(|| "there is no address".into());
            report.fail(
                AREA,
                format!("`{host}` cannot be resolved: {why}"),
                format!("add an A or AAAA record for `{host}` or a wildcard above it, or pass `--connect`"),
            );
            false
        }
    }
}

/// Connects to each address. False if none accepts.
async fn reach(target: &mut Target, report: &mut Report) -> bool {
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for address in &target.addresses {
        match timed(target.dial_to(*address)).await {
            Ok(_) => good.push(*address),
            Err(why) => bad.push(format!("{address}: {why}")),
        }
    }
    let port = target.port;
    if bad.is_empty() {
        report.ok("connection", format!("port {port} accepts connections"));
    } else {
        let text = format!("{} does not accept connections", bad.join("; "));
        let mend = format!(
            "open port {port} in the firewall and the forwarding of the router, check that the server listens there, or \
             remove the record of an address that is not its own"
        );
        match good.is_empty() {
            true => report.fail("connection", text, mend),
            false => report.warn("connection", text, mend),
        }
    }
    target.addresses = good;
    !target.addresses.is_empty()
}

/// A handshake of a client of today. False if it fails.
async fn tls(target: &Target, report: &mut Report) -> bool {
    const AREA: &str = "tls";
    match timed(target.dial(&Offer::new(&["h2", "http/1.1"]))).await {
        Ok(dialled) => {
            let version = match dialled.version {
                Some(ProtocolVersion::TLSv1_3) => "1.3",
                _ => "1.2",
            };
            let until = dialled.expires.map(|end| format!(", until {end}"));
            report.ok(
                AREA,
                format!(
                    "TLS {version} with a valid certificate for `{}`{}",
                    target.host,
                    until.unwrap_or_default()
                ),
            );
            true
        }
        Err(why) => {
            report.fail(
                AREA,
                format!("the handshake for `{}` failed: {why}", target.host),
                "if the certificate is the problem, reserve the domain with a certificate, or give clients `ca.pem` of the data \
                 directory; if the name is unknown, start the agent or create the endpoint",
            );
            false
        }
    }
}

/// Handshakes of older clients.
async fn old_tls(target: &Target, report: &mut Report) {
    const AREA: &str = "old_tls";
    match timed(target.dial(&Offer::new(&["http/1.1"]).tls12())).await {
        Ok(_) => report.ok(AREA, "TLS 1.2 is accepted"),
        Err(why) => report.warn(
            AREA,
            format!("TLS 1.2 is refused: {why}"),
            "set `min_version` of the `terminate-tls` action to `1.2` if clients from before 2018 must connect",
        ),
    }
    match timed(target.dial(&Offer::new(&["http/1.1"]).unnamed())).await {
        Ok(_) => report.ok(AREA, "clients without server name (SNI) are served"),
        Err(_) => report.ok(
            AREA,
            "clients without server name (SNI) are refused; `edge.default_server_name` accepts them",
        ),
    }
    match timed(old_tls::ask(target, old_tls::TLS12)).await {
        Ok(Reaction::Accepted) => report.ok(AREA, "TLS 1.2 without extended master secret is accepted"),
        Ok(Reaction::Refused(_)) => report.ok(
            AREA,
            "TLS 1.2 without extended master secret is refused; `edge.tls12_without_ems` accepts such clients",
        ),
        Err(why) => report.warn(
            AREA,
            format!("no answer to TLS 1.2 without extended master secret: {why}"),
            "look for a middlebox between this machine and the server",
        ),
    }
    for (name, version) in [("1.1", old_tls::TLS11), ("1.0", old_tls::TLS10)] {
        match timed(old_tls::ask(target, version)).await {
            Ok(Reaction::Accepted) => report.warn(
                AREA,
                format!("TLS {name} is accepted, which is not secure"),
                "culvert does not accept it: look for the proxy or load balancer in front that does",
            ),
            Ok(Reaction::Refused(alert)) => {
                report.ok(AREA, format!("TLS {name} is refused (alert {alert})"));
            }
            Err(_) => report.ok(AREA, format!("TLS {name} is refused (the connection closes)")),
        }
    }
}

/// Reports a response to an ordinary request.
fn answered(area: &'static str, what: &str, answer: &Answer, report: &mut Report) {
    // Of another server, it may be anything.
    let is_code = |code: &&str| {
        let is_of_code = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        code.len() <= 40 && code.bytes().all(is_of_code)
    };
    let code = answer.field("ngrok-error-code").filter(is_code);
    let with = code.map_or_else(String::new, |code| format!(" with {code}"));
    let text = format!("{what} got {}{with}", answer.status);
    match (answer.status, code) {
        (404, Some(_)) => report.fail(
            area,
            text,
            "no endpoint serves this host: start its agent, or create a cloud endpoint for it",
        ),
        (502..=504, Some(_)) => report.fail(
            area,
            text,
            "the edge does not get a response of the service: check that it runs where the endpoint forwards to; \
             `culvert events query 5xx last 1h` has the cause",
        ),
        (400, Some(_)) => report.warn(
            area,
            text,
            "the edge refuses such a request as malformed; look for a proxy in between that changes it",
        ),
        (500.., _) => report.warn(
            area,
            text,
            "the service itself responds so: look at its log",
        ),
        _ => report.ok(area, text),
    }
}

/// The error of a probe of HTTP.
fn unanswered(area: &'static str, what: &str, why: &str, mend: &str, report: &mut Report) {
    report.fail(area, format!("{what} got no response: {why}"), mend);
}

async fn http1(target: &Target, report: &mut Report) {
    for (area, version) in [("http1.1", "1.1"), ("http1.0", "1.0")] {
        let what = format!("GET with HTTP/{version}");
        match timed(target.ask(&target.request("GET", version, ""))).await {
            Ok(answer) => answered(area, &what, &answer, report),
            Err(why) => unanswered(
                area,
                &what,
                &why,
                "look for another program on the port, or a proxy that does not forward this version",
                report,
            ),
        }
    }
}

async fn http2(target: &Target, report: &mut Report) {
    let (area, what) = match target.is_tls() {
        true => ("http2", "GET with HTTP/2"),
        false => ("h2c", "GET with HTTP/2 in the clear (prior knowledge)"),
    };
    match timed(ask_http2(target)).await {
        Ok(Some(answer)) => answered(area, what, &answer, report),
        Ok(None) => report.warn(
            area,
            "the server does not choose HTTP/2 (ALPN)",
            "culvert offers it: look for a proxy or load balancer in front that terminates TLS, and switch HTTP/2 on there; gRPC needs it",
        ),
        Err(why) => report.warn(
            area,
            format!("{what} got no response: {why}"),
            "if a proxy or load balancer is in front, switch HTTP/2 on there; gRPC needs it",
        ),
    }
}

/// `None` if the server chooses another protocol.
async fn ask_http2(target: &Target) -> Result<Option<Answer>, String> {
    let Dialled { io, protocol, .. } = target.dial(&Offer::new(&["h2"])).await?;
    if target.is_tls() && protocol.as_deref() != Some(b"h2") {
        return Ok(None);
    }
    let failed = |error: hyper::Error| match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io));
    let (mut sender, connection) = handshake.await.map_err(failed)?;
    let request = http::Request::get(target.url.as_str())
        .header(header::USER_AGENT, wire::USER_AGENT)
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = tokio::select! {
        answer = sender.send_request(request) => answer.map_err(failed)?,
        ended = connection => {
            return Err(ended.err().map_or_else(|| "the connection closed".into(), failed));
        }
    };
    Ok(Some(Answer::of(answer.status(), answer.headers())))
}

async fn upgrades(target: &Target, report: &mut Report) {
    let websocket = format!(
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
    );
    let asked = target.request("GET", "1.1", &websocket);
    match timed(target.ask(&asked)).await {
        Ok(answer) if answer.status == 101 => match answer.field("sec-websocket-accept") {
            Some(PROOF) => report.ok("websocket", "a WebSocket opens"),
            _ => report.fail(
                "websocket",
                "the handshake of a WebSocket got 101 with a wrong proof",
                "look for a proxy in front that does not pass `Sec-WebSocket-Key` on",
            ),
        },
        Ok(answer) if answer.status < 500 => report.ok(
            "websocket",
            format!(
                "the handshake of a WebSocket got {}: there is none at this path",
                answer.status
            ),
        ),
        Ok(answer) => answered("websocket", "the handshake of a WebSocket", &answer, report),
        Err(why) => unanswered(
            "websocket",
            "the handshake of a WebSocket",
            &why,
            "switch upgrades on in the proxy or load balancer in front",
            report,
        ),
    }
    for (area, protocol) in [("upgrade", "culvert-doctor"), ("h2c_upgrade", "h2c")] {
        let fields = format!("Connection: Upgrade\r\nUpgrade: {protocol}\r\n");
        let what = format!("a request to upgrade to `{protocol}`");
        match timed(target.ask(&target.request("GET", "1.1", &fields))).await {
            Ok(answer) if answer.status == 101 => report.warn(
                area,
                format!("{what} got 101"),
                "culvert does not pass `h2c` on, and no service knows `culvert-doctor`: look for the proxy in front that switches",
            ),
            Ok(answer) => answered(area, &what, &answer, report),
            Err(why) => unanswered(
                area,
                &what,
                &why,
                "look for a proxy in front that closes connections of clients that ask for an upgrade",
                report,
            ),
        }
    }
}

async fn upload(target: &Target, bytes: u64, report: &mut Report) {
    const AREA: &str = "upload";
    let what = format!("POST of {} MiB", bytes >> 20);
    let sent = tokio::time::timeout(UPLOAD_PATIENCE, Box::pin(target.upload(bytes))).await;
    let sent =
        sent.unwrap_or_else(|_| Err(format!("no answer within {} s", UPLOAD_PATIENCE.as_secs())));
    match sent {
        Ok((answer, taken)) if answer.status == 413 => report.warn(
            AREA,
            format!("{what} got 413 after {taken} bytes"),
            match answer.field("ngrok-error-code") {
                Some(_) => "raise `edge.body_bytes_max` if clients must send more",
                None => "raise the limit of the service, or of the proxy in front",
            },
        ),
        Ok((answer, taken)) if taken < bytes && answer.status < 500 => report.ok(
            AREA,
            format!("{what} got {} after {taken} bytes", answer.status),
        ),
        Ok((answer, _)) => answered(AREA, &what, &answer, report),
        Err(why) => unanswered(
            AREA,
            &what,
            &why,
            "raise limits of bodies and timeouts in the proxy in front, and `edge.timeouts.request` if the upload is slow",
            report,
        ),
    }
}
