//! The agent's side of a session: calls, and heartbeats in both directions.

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::network;
use crate::driver::{Session, Stream};
use crate::server::call::{self, ReadDeadline};
use crate::wire::{self, StreamType};

/// Deadline for replies to calls, which the server may have to decide. Replies repeat the options, and
/// policies can be long.
const ANSWER: ReadDeadline = ReadDeadline {
    bytes: 2 << 20,
    time: Duration::from_secs(40),
};

/// After a change of the network, a connection from which nothing arrives for this long is dead.
const PROBE_TIME: Duration = Duration::from_millis(1_500);

/// When heartbeats are sent, and how long the agent waits for their replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The interval of heartbeats.
    pub interval: Duration,
    /// The timeout for a reply. The agent reconnects after it.
    pub tolerance: Duration,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            tolerance: Duration::from_secs(15),
        }
    }
}

/// Makes a call.
pub(crate) async fn call<T: DeserializeOwned>(
    session: &Session,
    kind: StreamType,
    request: &impl Serialize,
) -> io::Result<T> {
    wire::parse(call_plain(session, kind, request).await?)
        .map_err(|_| io::Error::other("the server's response is invalid"))
}

/// Makes a call and returns the reply without decoding it.
pub(crate) async fn call_plain(
    session: &Session,
    kind: StreamType,
    request: &impl Serialize,
) -> io::Result<Value> {
    let mut stream = session.open(wire::call(kind, request)).map_err(|refused| {
        io::Error::other(format!("the request to the server failed: {refused:?}"))
    })?;
    let answer = call::request(&mut stream, ANSWER).await.ok();
    stream.shutdown().await.ok();
    answer.ok_or_else(|| io::Error::other("the server did not respond"))
}

/// Sends heartbeats, and returns when one gets no reply in time. Calls `report` with each round-trip time.
///
/// A change of the network is immediately followed by a heartbeat. If `local`, the address of this end, has gone, or if
/// nothing at all arrives for [`PROBE_TIME`], the connection is dead.
pub(crate) async fn heartbeat(
    session: Session,
    rhythm: Heartbeat,
    local: Option<IpAddr>,
    mut changes: watch::Receiver<u64>,
    report: impl Fn(Duration),
) {
    let kind = Bytes::copy_from_slice(&StreamType::HEARTBEAT.to_bytes());
    let Ok(mut stream) = session.open(kind) else {
        return;
    };
    let probe_time = PROBE_TIME.min(rhythm.tolerance);
    let mut beat: u32 = 0;
    let mut is_probe = false;
    loop {
        beat = beat.wrapping_add(1);
        let sent = Instant::now();
        let mut back = [0; 4];
        let mut beating = pin!(async {
            stream.write_all(&beat.to_be_bytes()).await?;
            stream.read_exact(&mut back).await
        });
        // While probing: the bytes that had arrived before.
        let mut heard = is_probe.then(|| session.received());
        let mut deadline = sent
            + if is_probe {
                probe_time
            } else {
                rhythm.tolerance
            };
        let beaten = loop {
            tokio::select! {
                beaten = &mut beating => break beaten,
                () = tokio::time::sleep_until(deadline) => match heard.take() {
                    // The connection carries bytes, so the reply is only late.
                    Some(before) if session.received() > before => {
                        deadline = sent + rhythm.tolerance;
                    }
                    _ => return,
                },
                () = changed(&mut changes) => {
                    if local.is_some_and(|local| !network::has_address(local)) {
                        return;
                    }
                    heard = Some(session.received());
                    deadline = deadline.min(Instant::now() + probe_time);
                }
            }
        };
        if beaten.is_err() || back != beat.to_be_bytes() {
            return;
        }
        report(sent.elapsed());
        is_probe = tokio::select! {
            () = tokio::time::sleep_until(sent + rhythm.interval) => false,
            () = changed(&mut changes) => {
                if local.is_some_and(|local| !network::has_address(local)) {
                    return;
                }
                true
            }
        };
    }
}

/// Waits for a change of the network.
pub(super) async fn changed(changes: &mut watch::Receiver<u64>) {
    if changes.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Echoes the server's heartbeats.
pub(crate) async fn echo(mut stream: Stream) {
    let mut beat = [0; 4];
    while stream.read_exact(&mut beat).await.is_ok() {
        if stream.write_all(&beat).await.is_err() {
            return;
        }
    }
}
