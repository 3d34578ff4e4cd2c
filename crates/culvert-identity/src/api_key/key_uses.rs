//! The last use of each API key on this node, until it is written.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use culvert_base::Timestamp;
use hashlink::LruCache;

/// Limit of keys whose use is in memory. Beyond it, the oldest use is dropped.
const KEYS_MAX: usize = 4096;

/// The uses of keys on this node.
#[derive(Debug)]
pub(crate) struct KeyUses(Mutex<LruCache<String, Use>>);

#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) account: String,
    pub(crate) at: Timestamp,
    pub(crate) from: IpAddr,
    pub(crate) is_written: bool,
}

impl Default for KeyUses {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(KEYS_MAX)))
    }
}

impl KeyUses {
    pub(crate) fn lock(&self) -> MutexGuard<'_, LruCache<String, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The uses that are not written.
    pub(crate) fn due(&self) -> Vec<(String, Use)> {
        let uses = self.lock();
        let due = uses.iter().filter(|(_, one)| !one.is_written);
        due.map(|(id, one)| (id.clone(), one.clone())).collect()
    }

    pub(crate) fn set_written(&self, written: &[(String, Use)]) {
        let mut uses = self.lock();
        for (id, one) in written {
            if let Some(known) = uses.peek_mut(id) {
                known.is_written = known.at == one.at;
            }
        }
    }
}
