//! The agent's side of a session: calls, and heartbeats in both directions.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::driver::{Session, Stream};
use crate::server::call::{self, ReadDeadline};
use crate::wire::{self, StreamType};

/// Deadline for replies to calls, which the server may have to decide. Replies repeat the options, and
/// policies can be long.
const ANSWER: ReadDeadline = ReadDeadline {
    bytes: 2 << 20,
    time: Duration::from_secs(40),
};

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
    // Type and request must be sent in one frame.
    let mut stream = session.open(wire::call(kind, request)).map_err(|refused| {
        io::Error::other(format!("the request to the server failed: {refused:?}"))
    })?;
    let answer = call::request(&mut stream, ANSWER).await.ok();
    stream.shutdown().await.ok();
    answer.ok_or_else(|| io::Error::other("the server did not respond"))
}

/// Sends heartbeats, and returns when one gets no reply in time. Calls `report` with each round-trip time.
pub(crate) async fn heartbeat(session: Session, rhythm: Heartbeat, report: impl Fn(Duration)) {
    let kind = Bytes::copy_from_slice(&StreamType::HEARTBEAT.to_bytes());
    let Ok(mut stream) = session.open(kind) else {
        return;
    };
    let mut beat: u32 = 0;
    loop {
        beat = beat.wrapping_add(1);
        let sent = Instant::now();
        let mut back = [0; 4];
        let beating = async {
            stream.write_all(&beat.to_be_bytes()).await?;
            stream.read_exact(&mut back).await
        };
        match tokio::time::timeout(rhythm.tolerance, beating).await {
            Ok(Ok(_)) if back == beat.to_be_bytes() => report(sent.elapsed()),
            _ => return,
        }
        tokio::time::sleep_until(sent + rhythm.interval).await;
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
