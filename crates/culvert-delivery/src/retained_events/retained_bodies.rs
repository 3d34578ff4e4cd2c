//! Messages captured beside traffic events: written in the recorder's order, read by the id of their event.
//!
//! A capture keeps its share of the memory for captures from the edge until its row is committed. So if the disk is
//! slow, that memory fills, and further captures are skipped and counted; neither traffic nor the traffic log waits.
//! Redaction happens here, before anything is written, on a thread for blocking work. A crash loses messages in memory.
//!
//! Not here: the rules of capture and redaction (policies), and the rights of readers (control).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use culvert_base::{Fault, Timestamp};
use culvert_events::bodies::{BodyShare, CapturedMessages};
use culvert_store::NewTrafficBody;
use culvert_target::batch;

use crate::plane::Plane;
use crate::retained_events::body_queue::Waiting;

/// The last byte of a row: plain or packed messages.
const PLAIN: u8 = 1;
const PACKED: u8 = 2;

/// Writes captured messages until the recorder has finished.
pub(crate) async fn run(plane: Arc<Plane>, cancel: CancellationToken) {
    let mut is_failing = false;
    while let Some(waiting) = plane.bodies.take().await {
        let count = u64::try_from(waiting.len()).unwrap_or(0);
        let redacted = tokio::task::spawn_blocking(move || redact(waiting)).await;
        let Ok((rows, _shares)) = redacted else {
            tracing::error!("redacting captured messages failed");
            plane.meters.bodies_lost.add(count);
            continue;
        };
        let mut pause = Duration::from_millis(50);
        loop {
            let Err(fault) = plane.queue.keep_bodies(rows.clone()).await else {
                plane.meters.bodies_kept.add(count);
                if std::mem::take(&mut is_failing) {
                    tracing::info!("captured messages are stored again");
                }
                break;
            };
            if !std::mem::replace(&mut is_failing, true) {
                tracing::error!(cause = %fault.chain(), "cannot store captured messages");
            }
            if cancel.is_cancelled() {
                plane.meters.bodies_lost.add(count);
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

/// The rows, and the shares of memory to be kept until they are written.
fn redact(waiting: Vec<Waiting>) -> (Vec<NewTrafficBody>, Vec<BodyShare>) {
    let each = waiting.into_iter().map(|one| {
        let (messages, share) = one.captured.finish();
        let row = NewTrafficBody {
            event: one.event.to_string(),
            happened_at: one.happened_at,
            body: pack(&messages),
        };
        (row, share)
    });
    each.unzip()
}

fn pack(messages: &CapturedMessages) -> Vec<u8> {
    let mut plain = messages.encode();
    if let Some(mut packed) = batch::packed(&plain) {
        // The last byte is the version of packed batches.
        packed.pop();
        packed.push(PACKED);
        return packed;
    }
    plain.push(PLAIN);
    plain
}

fn unpack(stored: &[u8]) -> Option<CapturedMessages> {
    match stored.split_last()? {
        (&PLAIN, plain) => CapturedMessages::decode(plain).ok(),
        (&PACKED, rest) => CapturedMessages::decode(&batch::decompressed(rest).ok()?).ok(),
        _ => None,
    }
}

/// The captured messages of an event; `None` if there are none.
pub(crate) async fn of(plane: &Plane, event: &str) -> Result<Option<CapturedMessages>, Fault> {
    let stored = plane.queue.traffic_body(event).await?;
    Ok(stored.as_deref().and_then(unpack))
}

/// Removes captured messages of events before `cutoff`, and the oldest until they have at most `bytes_max` bytes.
/// Returns the bytes that are left.
pub(crate) async fn prune(plane: &Plane, cutoff: Timestamp, bytes_max: u64) -> Result<u64, Fault> {
    plane.queue.prune_bodies(cutoff, bytes_max).await?;
    let bytes = plane.queue.traffic_body_bytes().await?;
    plane.meters.bodies_bytes.set(bytes);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use culvert_events::bodies::{CapturedBody, CapturedRequest};

    use super::*;

    #[test]
    fn rows_are_read_back_as_written() {
        for bytes in [vec![b'x'; 100_000], (0..=255).collect(), Vec::new()] {
            let messages = CapturedMessages {
                owners: Vec::new(),
                request: Some(CapturedRequest {
                    method: "POST".to_owned(),
                    url: "http://a.test/".to_owned(),
                    is_url_redacted: false,
                    headers: Vec::new(),
                    trailers: Vec::new(),
                    body: CapturedBody {
                        length: bytes.len() as u64,
                        bytes,
                        ..CapturedBody::default()
                    },
                }),
                response: None,
            };
            let stored = pack(&messages);
            assert!(stored.len() < 2_000);
            assert_eq!(unpack(&stored), Some(messages));
            for end in 0..stored.len() {
                drop(unpack(&stored[..end]));
            }
        }
    }
}
