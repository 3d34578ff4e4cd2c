//! Captured messages in memory, between the recorder and the task that writes them.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::Notify;

use culvert_base::Timestamp;
use culvert_base::sync::lock;
use culvert_events::EventId;
use culvert_events::bodies::CapturedExchange;

/// Events whose messages are redacted and written together.
const TOGETHER: usize = 16;

/// The captured messages of an event.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) event: EventId,
    pub(crate) happened_at: Timestamp,
    pub(crate) captured: Box<CapturedExchange>,
}

/// Captured messages that wait to be written. The memory for captures limits them.
#[derive(Debug, Default)]
pub(crate) struct BodyQueue {
    held: Mutex<QueuedBodies>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct QueuedBodies {
    waiting: VecDeque<Waiting>,
    /// Set when the recorder will add no more.
    is_last: bool,
}

impl BodyQueue {
    /// Adds the captured messages of an event.
    pub(crate) fn put(
        &self,
        event: EventId,
        happened_at: Timestamp,
        captured: Box<CapturedExchange>,
    ) {
        lock(&self.held).waiting.push_back(Waiting {
            event,
            happened_at,
            captured,
        });
        self.wake.notify_one();
    }

    /// Notes that the recorder has finished.
    pub(crate) fn finish(&self) {
        lock(&self.held).is_last = true;
        self.wake.notify_one();
    }

    /// The next messages; `None` after the last.
    pub(crate) async fn take(&self) -> Option<Vec<Waiting>> {
        loop {
            let notified = self.wake.notified();
            {
                let mut held = lock(&self.held);
                let count = held.waiting.len().min(TOGETHER);
                if count > 0 {
                    return Some(held.waiting.drain(..count).collect());
                }
                if held.is_last {
                    return None;
                }
            }
            notified.await;
        }
    }
}
