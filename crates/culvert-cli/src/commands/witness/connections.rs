//! The open connections of a witness: a limited number, which source networks share.
//!
//! When all are open, a new one replaces one that waits for its client: of the network with the most, the one that has waited
//! longest. So a client that opens many delays mostly itself.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;
use culvert_policy::conn::source_number;
use tokio::sync::Notify;

/// Limit of connections.
pub(super) const CONNECTIONS_MAX: usize = 256;

#[derive(Debug, Default)]
struct Table {
    /// Number of the next connection, and of the next one that begins to wait.
    next: u64,
    /// At most [`CONNECTIONS_MAX`].
    open: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// As [`network`].
    network: u64,
    /// Ascending in the order in which connections began to wait; `None` while the witness works on a request.
    waits_since: Option<u64>,
    close: Arc<Notify>,
}

impl Table {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The table. Clones are handles to the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Mutex<Table>>);

/// A connection, until this is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection {
    connections: Connections,
    id: u64,
    close: Arc<Notify>,
}

/// A request of the connection that the witness works on, until this is dropped.
#[derive(Debug)]
pub(super) struct BusyConnection<'c>(&'c OpenConnection);

/// The /24 or /64 of an address, as a number.
fn network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        address @ IpAddr::V4(_) => source_number(address) & !0xFF,
        address @ IpAddr::V6(_) => source_number(address),
    }
}

impl Connections {
    /// Adds a connection. `None` if all others are busy.
    pub(super) fn enter(&self, peer: IpAddr) -> Option<OpenConnection> {
        let network = network(peer);
        let mut table = lock(&self.0);
        if table.open.len() >= CONNECTIONS_MAX {
            let mut sizes = HashMap::from([(network, 1_usize)]);
            for entry in table.open.values() {
                *sizes.entry(entry.network).or_default() += 1;
            }
            let waiting = table.open.iter().filter_map(|(id, entry)| {
                let size = sizes.get(&entry.network)?;
                Some(((*size, Reverse(entry.waits_since?)), *id))
            });
            let (_, id) = waiting.max()?;
            if let Some(replaced) = table.open.remove(&id) {
                replaced.close.notify_one();
            }
        }
        let id = table.number();
        let close = Arc::new(Notify::new());
        let entry = Entry {
            network,
            waits_since: Some(id),
            close: Arc::clone(&close),
        };
        table.open.insert(id, entry);
        Some(OpenConnection {
            connections: self.clone(),
            id,
            close,
        })
    }
}

impl OpenConnection {
    /// Completes when another connection replaces this one.
    pub(super) async fn replaced(&self) {
        self.close.notified().await;
    }

    /// Keeps it from being replaced.
    pub(super) fn busy(&self) -> BusyConnection<'_> {
        self.set(false);
        BusyConnection(self)
    }

    fn set(&self, waits: bool) {
        let mut table = lock(&self.connections.0);
        let number = table.number();
        // A replaced one is not there.
        if let Some(entry) = table.open.get_mut(&self.id) {
            entry.waits_since = waits.then_some(number);
        }
    }
}

impl Drop for BusyConnection<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        lock(&self.connections.0).open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn is_replaced(connection: &OpenConnection) -> bool {
        !lock(&connection.connections.0)
            .open
            .contains_key(&connection.id)
    }

    fn at(network: usize) -> IpAddr {
        let [.., high, low] = network.to_be_bytes();
        Ipv4Addr::new(10, high, low, 7).into()
    }

    #[test]
    fn the_network_with_the_most_connections_replaces_its_oldest() {
        let connections = Connections::default();
        let honest = connections.enter(at(1)).unwrap();
        let hostile: Vec<_> = (0..2 * CONNECTIONS_MAX)
            .map(|_| connections.enter(at(2)).unwrap())
            .collect();
        assert!(!is_replaced(&honest));
        let n_open = hostile.iter().filter(|it| !is_replaced(it)).count();
        assert_eq!(n_open, CONNECTIONS_MAX - 1);
        assert!(hostile[..=CONNECTIONS_MAX].iter().all(is_replaced));
        // From many networks, each with one: the one that waits longest.
        let others: Vec<_> = (3..CONNECTIONS_MAX)
            .map(|n| connections.enter(at(n)).unwrap())
            .collect();
        assert!(!is_replaced(&honest) && !others.iter().any(is_replaced));
        drop(hostile);
        let last = [300, 301, 302].map(|n| connections.enter(at(n)).unwrap());
        assert!(is_replaced(&honest) && !last.iter().any(is_replaced));
    }

    #[test]
    fn busy_connections_are_not_replaced() {
        let connections = Connections::default();
        let open: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|n| connections.enter(at(n)).unwrap())
            .collect();
        let mut busy: Vec<_> = open.iter().map(OpenConnection::busy).collect();
        assert!(connections.enter(at(500)).is_none());
        drop(busy.remove(9));
        assert!(connections.enter(at(500)).is_some());
        assert!(is_replaced(&open[9]));
    }
}
