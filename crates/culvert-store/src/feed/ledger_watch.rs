//! Detects commits of other processes, and completes the text index.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::commit::state_log::{StateCommand, StateLog};
use crate::commit::writer::Writer;
use crate::database::pool::Pool;

/// Interval of reading the revision.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(500);

/// Notices commits of other nodes and of commands on the same file, and completes the text index.
pub(crate) async fn watch_ledger(
    pool: Arc<Pool>,
    writer: Arc<Writer<StateLog>>,
    state_log: Arc<StateLog>,
    heard: Arc<Notify>,
    mut closing: watch::Receiver<bool>,
) {
    let mut is_reported = false;
    loop {
        let pause = match state_log.read_ledger(&pool).await {
            Ok((revision, texts)) => {
                if !texts.is_ours || texts.is_complete(revision.number) {
                    if std::mem::take(&mut is_reported) {
                        tracing::info!("text index complete");
                    }
                    POLL_EVERY
                } else {
                    if !std::mem::replace(&mut is_reported, true) {
                        let from = texts.up_to;
                        tracing::info!(
                            from,
                            to = revision.number,
                            "indexing texts of older documents"
                        );
                    }
                    match writer
                        .write(
                            "indexing texts",
                            StateCommand::CatchUp {
                                documents_max: CAUGHT_UP_AT_ONCE,
                            },
                        )
                        .await
                    {
                        Ok(_) => CAUGHT_UP_PAUSE,
                        Err(error) => {
                            tracing::debug!(%error, "indexing texts");
                            POLL_EVERY
                        }
                    }
                }
            }
            Err(fault) => {
                tracing::debug!(fault = fault.chain(), "polling the revision");
                POLL_EVERY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = heard.notified() => {}
            _ = closing.wait_for(|closing| *closing) => return,
        }
    }
}

/// Documents indexed in one transaction.
const CAUGHT_UP_AT_ONCE: usize = 256;

/// Pause between two such transactions, for other writes.
const CAUGHT_UP_PAUSE: Duration = Duration::from_millis(5);
