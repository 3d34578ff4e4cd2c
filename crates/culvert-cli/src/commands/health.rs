//! `culvert health`: asks a running server whether it is ready, for the health check of a container.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;
use http::{Request, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{CommandType, Failure, say};
use culvert_installation::config::{Role, Settings};
use culvert_installation::{settings_of, with_settings};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "health",
    arguments,
    run,
};

/// A container's health check usually has five seconds.
const PATIENCE: Duration = Duration::from_secs(4);
/// Maximum length of a response.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

fn arguments(command: Command) -> Command {
    with_settings(command.about(
        "Check whether the server of these settings is ready; exits with 1 and the reason if it is not",
    ))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let settings = settings_of(&matches)?;
        match tokio::time::timeout(PATIENCE, ask(&settings)).await {
            Ok(Ok(())) => say("ready"),
            Ok(Err(why)) => Err(Failure::Failed(why)),
            Err(_) => Err(Failure::Failed(format!(
                "no response within {} s",
                PATIENCE.as_secs()
            ))),
        }
    })
}

/// Whether the server is ready, and otherwise the reason. A node without the API is asked for its metrics.
async fn ask(settings: &Settings) -> Result<(), String> {
    let has_api = settings.roles.contains(&Role::Api);
    let (key, text, path) = match has_api {
        true => ("api.addr", &settings.api.addr, "/readyz"),
        false => ("metrics.addr", &settings.metrics.addr, "/metrics"),
    };
    let address = local(text).ok_or_else(|| {
        format!("a node without the role `api` needs `metrics.addr` for health checks, and `{key}` is `{text}`")
    })?;
    let (status, body) = get(address, path).await?;
    match status {
        200 => Ok(()),
        503 => Err(format!("not ready: {}", problems(&body))),
        _ => Err(format!(
            "{address} responded with status {status}; is `{key}` the address of culvert?"
        )),
    }
}

/// An address of this machine under which a listener is reached; `None` if its setting is empty or its port is not
/// known before the start.
pub(super) fn local(listener: &str) -> Option<SocketAddr> {
    let mut address: SocketAddr = listener.parse().ok()?;
    if address.port() == 0 {
        return None;
    }
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Some(address)
}

/// Sends a GET without TLS. Returns status and body. The error is one sentence.
pub(super) async fn get(address: SocketAddr, path: &str) -> Result<(u16, Bytes), String> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| format!("no connection to {address}: {error}"))?;
    let unusable = |error: &dyn std::fmt::Display| {
        format!("{address} did not respond like an HTTP server: {error}")
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unusable(&error))?;
    let request = Request::get(path)
        .header(header::HOST, address.to_string())
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| unusable(&error))?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| unusable(&error))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX)
            .collect()
            .await
            // The first bytes of a longer body are not needed: its status is the result.
            .map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
        Ok((status, body))
    };
    let (outcome, _) = tokio::join!(exchange, connection);
    outcome
}

/// The parts that are not usable, from the body of `/readyz`.
pub(super) fn problems(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let parts = body["parts"].as_object();
    let broken: Vec<String> = parts
        .into_iter()
        .flatten()
        .filter(|(_, state)| *state != "ok")
        .map(|(part, state)| match state.as_str() {
            Some(text) => format!("{part}: {text}"),
            None => format!("{part}: {state}"),
        })
        .collect();
    match broken.is_empty() {
        true => "the server does not say why".to_owned(),
        false => broken.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_reached_on_this_machine() {
        let reached = |text: &str| local(text).map(|address| address.to_string());
        assert_eq!(reached("0.0.0.0:8420").unwrap(), "127.0.0.1:8420");
        assert_eq!(reached("[::]:8420").unwrap(), "[::1]:8420");
        assert_eq!(reached("10.0.0.7:8420").unwrap(), "10.0.0.7:8420");
        assert_eq!(reached("127.0.0.1:0"), None);
        assert_eq!(reached(""), None);
    }

    #[test]
    fn a_reason_names_the_broken_parts() {
        let body = br#"{"ready": false, "parts": {"store": "no connection", "edge": "ok"}}"#;
        assert_eq!(problems(body), "store: no connection");
        assert_eq!(problems(b"?"), "the server does not say why");
    }
}
