//! The open connections: how many there are, and how many each source has. It is locked when a connection
//! begins or ends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

use culvert_base::sync::lock;

/// The open connections of an edge.
#[derive(Debug)]
pub struct Census<T>(Mutex<Entries<T>>);

/// Keeps a connection in the census until it is dropped.
#[derive(Debug)]
pub struct CensusEntry<T> {
    census: Arc<Census<T>>,
    slot: usize,
    source: IpAddr,
}

/// The limit that a new connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CensusLimit {
    /// That of all connections.
    All,
    /// That of its source.
    Source,
}

#[derive(Debug)]
struct Entries<T> {
    open: Vec<Option<Weak<T>>>,
    free: Vec<usize>,
    by_source: HashMap<IpAddr, usize>,
}

impl<T> Default for Census<T> {
    fn default() -> Self {
        Self(Mutex::new(Entries {
            open: Vec::new(),
            free: Vec::new(),
            by_source: HashMap::new(),
        }))
    }
}

impl<T> Census<T> {
    /// Counts a new connection.
    ///
    /// # Errors
    ///
    /// When `all_max` connections are open, or `source_max` from this source.
    pub fn enter(
        self: &Arc<Self>,
        source: IpAddr,
        all_max: usize,
        source_max: usize,
    ) -> Result<CensusEntry<T>, CensusLimit> {
        let mut entries = lock(&self.0);
        if entries.open.len() - entries.free.len() >= all_max {
            return Err(CensusLimit::All);
        }
        let count = entries.by_source.entry(source).or_default();
        if *count >= source_max {
            return Err(CensusLimit::Source);
        }
        *count += 1;
        let slot = entries.free.pop().unwrap_or_else(|| {
            entries.open.push(None);
            entries.open.len() - 1
        });
        Ok(CensusEntry {
            census: Arc::clone(self),
            slot,
            source,
        })
    }

    /// The connections that are open now.
    pub fn open(&self) -> Vec<Arc<T>> {
        let entries = lock(&self.0);
        let open = entries.open.iter().flatten();
        open.filter_map(Weak::upgrade).collect()
    }

    /// How many connections each source has.
    pub fn by_source(&self) -> HashMap<IpAddr, usize> {
        lock(&self.0).by_source.clone()
    }
}

impl<T> CensusEntry<T> {
    /// Makes the connection visible to [`Census::open`].
    pub fn show(&self, connection: &Arc<T>) {
        if let Some(slot) = lock(&self.census.0).open.get_mut(self.slot) {
            *slot = Some(Arc::downgrade(connection));
        }
    }
}

impl<T> Drop for CensusEntry<T> {
    fn drop(&mut self) {
        let mut entries = lock(&self.census.0);
        if let Some(slot) = entries.open.get_mut(self.slot) {
            *slot = None;
            entries.free.push(self.slot);
        }
        if let Some(count) = entries.by_source.get_mut(&self.source) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                entries.by_source.remove(&self.source);
            }
        }
    }
}
