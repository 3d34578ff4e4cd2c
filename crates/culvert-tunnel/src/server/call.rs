//! One call of an agent: a request without an end mark, and a reply that ends with FIN.

use std::time::Duration;

use bytes::BytesMut;
use culvert_base::{Refusal, code};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::driver::Stream;
use crate::wire::{Object, Scanned, StreamType};

/// How long an agent may take to end its direction after a reply.
const LINGER: Duration = Duration::from_secs(10);

/// The maximum size and duration of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadDeadline {
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
}

impl ReadDeadline {
    /// For an unauthenticated agent.
    pub(crate) const UNAUTHENTICATED: Self = Self {
        bytes: 64 << 10,
        time: Duration::from_secs(10),
    };
    /// For an authenticated agent, whose policies can be long.
    pub(crate) const AGENT: Self = Self {
        bytes: 1 << 20,
        time: Duration::from_secs(30),
    };
}

/// Reads the type of a stream; `None` if the stream ended or the type did not arrive in time.
pub(crate) async fn kind(stream: &mut Stream) -> Option<StreamType> {
    let mut bytes = [0; 4];
    let reading = stream.read_exact(&mut bytes);
    match tokio::time::timeout(ReadDeadline::UNAUTHENTICATED.time, reading).await {
        Ok(Ok(_)) => Some(StreamType::from_bytes(bytes)),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Reads the request.
pub(crate) async fn request(stream: &mut Stream, deadline: ReadDeadline) -> Result<Value, Refusal> {
    let (mut bytes, mut object) = (BytesMut::new(), Object::default());
    let reading = async {
        loop {
            let piece = std::future::poll_fn(|cx| stream.poll_read_bytes(cx, 16 << 10)).await;
            let piece = piece.unwrap_or_default();
            if piece.is_empty() {
                return Err(unreadable());
            }
            bytes.extend_from_slice(&piece);
            match object.scan(&piece) {
                Scanned::Whole(length) if length > deadline.bytes => return Err(too_long()),
                Scanned::Whole(length) => {
                    return serde_json::from_slice(&bytes[..length]).map_err(|_| unreadable());
                }
                Scanned::Nonsense => return Err(unreadable()),
                Scanned::Part if bytes.len() > deadline.bytes => return Err(too_long()),
                Scanned::Part => {}
            }
        }
    };
    tokio::time::timeout(deadline.time, reading)
        .await
        .unwrap_or_else(|_| Err(unreadable()))
}

fn too_long() -> Refusal {
    Refusal::of(code::AGENT_REQUEST_TOO_LONG)
}

fn unreadable() -> Refusal {
    Refusal::of(code::AGENT_REQUEST_MALFORMED)
}

/// Writes the reply, ends the stream, and waits for the agent to end it: a reset immediately after the reply
/// could overtake it in the agent.
pub(crate) async fn answer(mut stream: Stream, reply: &[u8]) {
    let answering = async {
        stream.write_all(reply).await?;
        stream.shutdown().await?;
        let mut rest = [0; 256];
        while stream.read(&mut rest).await? > 0 {}
        std::io::Result::Ok(())
    };
    // A stream is reset if the agent does not read the reply or does not end the stream.
    match tokio::time::timeout(LINGER, answering).await {
        Ok(Ok(())) | Ok(Err(_)) | Err(_) => {}
    }
}
