//! The last use of each API key on this node, until it is written.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use culvert_base::Timestamp;
use hashlink::LruCache;

/// Limit of keys whose use is in memory. Beyond it, the oldest use is dropped.
const KEYS_MAX: usize = 4096;

/// The uses of keys on this node.
#[derive(Debug)]
pub struct KeyUses(Mutex<LruCache<String, Use>>);

/// A use of a key.
#[derive(Clone, Debug)]
pub struct Use {
    /// `ac_…` of the key.
    pub account: String,
    /// When it was used.
    pub at: Timestamp,
    /// From where.
    pub from: IpAddr,
    /// Whether the use is stored.
    pub is_written: bool,
}

impl Default for KeyUses {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(KEYS_MAX)))
    }
}

impl KeyUses {
    /// All of them, by the IDs of their keys.
    pub fn lock(&self) -> MutexGuard<'_, LruCache<String, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The uses that are not written.
    pub fn due(&self) -> Vec<(String, Use)> {
        let uses = self.lock();
        let due = uses.iter().filter(|(_, one)| !one.is_written);
        due.map(|(id, one)| (id.clone(), one.clone())).collect()
    }

    /// Notes that these uses are stored. A later one of the same key stays due.
    pub fn set_written(&self, written: &[(String, Use)]) {
        let mut uses = self.lock();
        for (id, one) in written {
            if let Some(known) = uses.peek_mut(id) {
                known.is_written = known.at == one.at;
            }
        }
    }
}
