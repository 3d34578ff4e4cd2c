//! Finds out whether an agent's connection is dead, while requests wait for it.
//!
//! The heartbeats of agents tell after 25 seconds; a visitor should not wait so long. The connection itself lives
//! on, because the network may come back.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::driver::{Session, Stream};
use crate::wire::StreamType;

/// How long nothing may arrive after a stream was opened before the agent is sent a heartbeat.
const PROBE_AFTER: Duration = Duration::from_millis(1_500);
/// How long nothing may arrive after that.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// How often to check whether something has arrived.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Watches a connection for as long as it is polled.
pub(super) async fn watch(session: Session) {
    let mut probe = Probe::default();
    loop {
        session.opened().await;
        if hears(&session, PROBE_AFTER, None).await {
            continue;
        }
        if hears(&session, SILENT_AFTER, Some(&mut probe)).await {
            continue;
        }
        tracing::debug!("an agent's connection carries nothing");
        session.set_silent(true);
        while !hears(&session, SILENT_AFTER, None).await && !session.is_over() {}
        session.set_silent(false);
    }
}

/// Whether something arrives within a time, perhaps because of a heartbeat.
async fn hears(session: &Session, within: Duration, probe: Option<&mut Probe>) -> bool {
    let before = session.reads();
    let hearing = async {
        while session.reads() == before {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let beating = async {
        match probe {
            Some(probe) => probe.beat(session).await,
            None => std::future::pending().await,
        }
    };
    let hearing = async {
        tokio::select! {
            () = hearing => {}
            () = beating => {}
        }
    };
    tokio::time::timeout(within, hearing).await.is_ok()
}

/// The stream of the server's heartbeats. It lasts as long as the connection: agents cannot end it in order.
#[derive(Default)]
struct Probe(Option<Stream>);

impl Probe {
    /// Sends a heartbeat, and waits for its reply or for the end of the stream.
    async fn beat(&mut self, session: &Session) {
        let mut stream = match self.0.take() {
            Some(stream) => stream,
            None => {
                let kind = Bytes::copy_from_slice(&StreamType::HEARTBEAT.to_bytes());
                match session.open_background(kind) {
                    Ok(stream) => stream,
                    // The connection has ended.
                    Err(_) => return,
                }
            }
        };
        let mut beat = *b"beat";
        let beaten = async {
            stream.write_all(&beat).await?;
            stream.read_exact(&mut beat).await
        };
        if beaten.await.is_ok() {
            self.0 = Some(stream);
        }
    }
}
