//! Listening sockets that a supervisor passes to this process.
//!
//! The supervisor keeps them open, so a restart loses no connection: connections that arrive while no process accepts
//! wait in the socket.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;

/// Sockets that listeners on their addresses use instead of new ones. Clones share the sockets.
#[derive(Clone, Debug, Default)]
pub struct Inherited(Arc<Mutex<Vec<TcpListener>>>);

impl Inherited {
    /// Inherits these sockets.
    pub fn new(sockets: Vec<TcpListener>) -> Self {
        Self(Arc::new(Mutex::new(sockets)))
    }

    /// A handle of the socket that listens on `address`, or on all addresses of its port. `None` if there is no such
    /// socket. The socket stays here for later callers.
    ///
    /// The inner result fails if the process has no free file descriptor.
    pub fn take(&self, address: SocketAddr) -> Option<std::io::Result<TcpListener>> {
        let sockets = lock(&self.0);
        let bound = |socket: &&TcpListener| {
            socket.local_addr().is_ok_and(|own| {
                own == address || (own.ip().is_unspecified() && own.port() == address.port())
            })
        };
        sockets.iter().find(bound).map(TcpListener::try_clone)
    }

    /// The addresses on which the sockets listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let sockets = lock(&self.0);
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
}
