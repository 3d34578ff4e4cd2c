//! Exchanges the counts of rate limits with `scope: cluster` between the nodes on one database.
//!
//! The edge produces and consumes the messages ([`SharedCounts`]); database notifications carry them. A node that
//! cannot send or receive uses its own counts and those received so far, and reports this in the log and in
//! `culvert_rate_limit_exchange`. When it is connected again, it requests the counts of all others.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert_base::Fault;
use culvert_policy::{SharedCounts, TELL_EVERY};
use culvert_store::{Broadcast, Store};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

const TOPIC: &str = "rate_limit";
/// Delay before a lost connection is opened again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Maximum interval between messages, which this node receives too.
const BEAT_EVERY: Duration = Duration::from_secs(5);
/// A connection without messages for this long is considered lost.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Time limit for sending the last counts when the node stops.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// Exchanges messages until stopped.
pub(crate) async fn run(store: Store, counts: SharedCounts, stop: CancellationToken) {
    let mut is_failing = false;
    while !stop.is_cancelled() {
        let Err(fault) = exchange(&store, &counts, &stop, &mut is_failing).await else {
            continue;
        };
        counts.meters().is_up.set(0);
        if !std::mem::replace(&mut is_failing, true) {
            tracing::warn!(cause = %fault.chain(),
                "cluster rate limits are not shared; this node uses its own counts and those received so far");
        }
        tokio::select! {
            () = sleep(AGAIN_AFTER) => {}
            () = stop.cancelled() => {}
        }
    }
    counts.meters().is_up.set(0);
}

/// Exchanges messages over one connection until stopped. Fails when the connection is lost.
async fn exchange(
    store: &Store,
    counts: &SharedCounts,
    stop: &CancellationToken,
    is_failing: &mut bool,
) -> Result<(), Fault> {
    let Some(mut channel) = store.broadcast(TOPIC).await? else {
        stop.cancelled().await;
        return Ok(());
    };
    send(&mut channel, vec![counts.join()]).await?;
    counts.meters().is_up.set(1);
    if std::mem::take(is_failing) {
        tracing::info!("cluster rate limits are shared again");
    }
    let mut turns = interval(TELL_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut reported_at, mut heard_at) = (Instant::now(), Instant::now());
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => {
                // The requests that this node permitted continue to count.
                drop(timeout(LAST_WITHIN, send(&mut channel, counts.outgoing())).await);
                return Ok(());
            }
            _ = turns.tick() => {
                if heard_at.elapsed() > SILENCE_MAX {
                    return Err(Fault::bare("receiving messages of other nodes: none arrived"));
                }
                let mut messages = counts.outgoing();
                if messages.is_empty() && reported_at.elapsed() >= BEAT_EVERY {
                    messages.push(counts.beat());
                }
                if !messages.is_empty() {
                    send(&mut channel, messages).await?;
                    reported_at = Instant::now();
                }
            }
            message = channel.receive() => {
                heard_at = Instant::now();
                // An invalid message is rejected and counted like any other.
                counts.receive(&STANDARD.decode(message?).unwrap_or_default());
            }
        }
    }
}

async fn send(channel: &mut Broadcast, messages: Vec<Vec<u8>>) -> Result<(), Fault> {
    let messages: Vec<String> = messages.iter().map(|it| STANDARD.encode(it)).collect();
    channel.send(&messages).await
}
