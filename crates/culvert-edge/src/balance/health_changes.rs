//! Upstreams that became healthy or unhealthy since the last look of those who report it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use culvert_base::Timestamp;
use culvert_base::sync::lock;
use culvert_edge_config::UpstreamChange;
use tokio::time::Instant;

/// Most changes that wait. They are taken every second.
const WAITING_MAX: usize = 4_096;

/// The changes that wait, the last one of each upstream.
#[derive(Debug, Default)]
pub(crate) struct HealthChanges(Mutex<HashMap<(Arc<str>, String), (UpstreamChange, Instant)>>);

impl HealthChanges {
    /// Notes a change that occurs now. Returns whether there is room for it.
    pub(crate) fn note(&self, change: UpstreamChange) -> bool {
        let key = (Arc::clone(&change.endpoint), change.url.clone());
        let mut waiting = lock(&self.0);
        if waiting.len() >= WAITING_MAX && !waiting.contains_key(&key) {
            return false;
        }
        waiting.insert(key, (change, Instant::now()));
        true
    }

    /// Takes all, with the times at which they occurred.
    pub(crate) fn take(&self, now: Timestamp) -> Vec<UpstreamChange> {
        let waiting = std::mem::take(&mut *lock(&self.0));
        let changes = waiting.into_values().map(|(change, at)| UpstreamChange {
            at: now.minus(at.elapsed()),
            ..change
        });
        changes.collect()
    }
}
