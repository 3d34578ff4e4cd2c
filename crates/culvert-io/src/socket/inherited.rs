//! Listening sockets that a supervisor passes to this process, or that one part of the process hands over to its
//! successor.
//!
//! The supervisor keeps them open, so a restart loses no connection: connections that arrive while no process accepts
//! wait in the socket.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;

/// Sockets that listeners on their addresses use instead of new ones. Clones share the sockets.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    of_supervisor: Arc<Mutex<Vec<TcpListener>>>,
    /// Those that a predecessor in this process hands over.
    handed_over: Arc<Mutex<Vec<TcpListener>>>,
}

impl Inherited {
    /// Inherits these sockets.
    pub fn new(sockets: Vec<TcpListener>) -> Self {
        Self {
            of_supervisor: Arc::new(Mutex::new(sockets)),
            handed_over: Arc::default(),
        }
    }

    /// The same sockets, and those that a predecessor in this process hands over, until [`Self::end_handover`].
    #[must_use]
    pub fn with_handed_over(&self, sockets: Vec<TcpListener>) -> Self {
        Self {
            of_supervisor: Arc::clone(&self.of_supervisor),
            handed_over: Arc::new(Mutex::new(sockets)),
        }
    }

    /// Closes the sockets that were handed over, except for the handles that listeners took: a port that closes later
    /// must refuse connections.
    pub fn end_handover(&self) {
        lock(&self.handed_over).clear();
    }

    /// A handle of the socket that listens on `address`, or on all addresses of its port. `None` if there is no such
    /// socket. The socket stays here for later callers.
    ///
    /// The inner result fails if the process has no free file descriptor.
    pub fn take(&self, address: SocketAddr) -> Option<std::io::Result<TcpListener>> {
        let bound = |socket: &&TcpListener| {
            socket.local_addr().is_ok_and(|own| {
                own == address || (own.ip().is_unspecified() && own.port() == address.port())
            })
        };
        // One that this process uses already is taken before the supervisor's, which may be another one.
        [&self.handed_over, &self.of_supervisor]
            .into_iter()
            .find_map(|sockets| {
                let sockets = lock(sockets);
                sockets.iter().find(bound).map(TcpListener::try_clone)
            })
    }

    /// The addresses on which the supervisor's sockets listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let sockets = lock(&self.of_supervisor);
        let addresses = sockets.iter().filter_map(|socket| socket.local_addr().ok());
        addresses.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inherited_socket_is_found_by_its_address() {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let all = TcpListener::bind("0.0.0.0:0").unwrap();
        let (one_at, port) = (one.local_addr().unwrap(), all.local_addr().unwrap().port());
        let inherited = Inherited::new(vec![one, all]);
        let found = |address: SocketAddr| {
            let socket = inherited.take(address)?.unwrap();
            Some(socket.local_addr().unwrap())
        };
        assert_eq!(found(one_at), Some(one_at));
        assert_eq!(found(one_at), Some(one_at));
        let on_all = SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(found(on_all).unwrap().port(), port);
        assert_eq!(
            found(SocketAddr::from(([127, 0, 0, 2], one_at.port()))),
            None
        );
        assert_eq!(inherited.addresses().len(), 2);
    }

    #[test]
    fn a_socket_that_was_handed_over_closes_with_its_listener() {
        let supervised = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = TcpListener::bind("127.0.0.1:0").unwrap();
        let (supervised_at, own_at) = (supervised.local_addr().unwrap(), own.local_addr().unwrap());
        let inherited = Inherited::new(vec![supervised]).with_handed_over(vec![own]);
        let listener = inherited.take(own_at).unwrap().unwrap();
        assert!(inherited.take(supervised_at).is_some());
        inherited.clone().end_handover();
        assert!(inherited.take(own_at).is_none() && inherited.take(supervised_at).is_some());
        assert!(TcpListener::bind(own_at).is_err(), "it still listens");
        drop(listener);
        assert!(TcpListener::bind(own_at).is_ok());
    }
}
