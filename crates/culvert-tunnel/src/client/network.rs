//! Changes of this machine's addresses and routes, as the kernel announces them (rtnetlink(7)). After a change, a
//! connection may be dead without either end knowing. Announced on Linux only.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use tokio::sync::watch;

/// How long to wait for further changes: a new address comes with routes.
const SETTLES: Duration = Duration::from_millis(100);

/// Announces each change, for as long as it is polled.
pub(super) async fn announce(changes: watch::Sender<u64>) {
    let socket = match system::Socket::open() {
        Ok(socket) => socket,
        Err(error) => {
            tracing::debug!(%error, "cannot watch the network for changes");
            return std::future::pending().await;
        }
    };
    while let Ok(()) = socket.changed().await {
        tokio::time::sleep(SETTLES).await;
        socket.skip();
        changes.send_modify(|count| *count += 1);
    }
}

/// Whether this machine has an address, as far as that can be found out.
pub(super) fn has_address(address: IpAddr) -> bool {
    let bound = UdpSocket::bind((address, 0));
    !matches!(bound, Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable)
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;

    use rustix::io::Errno;
    use rustix::net::netlink::SocketAddrNetlink;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
    use tokio::net::UdpSocket;

    /// The groups `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV6_IFADDR` and `RTMGRP_IPV6_ROUTE` of
    /// linux/rtnetlink.h.
    const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;

    /// The runtime's type for UDP only receives datagrams here, which is the same for every family.
    #[derive(Debug)]
    pub(super) struct Socket(UdpSocket);

    impl Socket {
        pub(super) fn open() -> io::Result<Self> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
            bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
            Ok(Self(UdpSocket::from_std(socket.into())?))
        }

        /// Waits for a message. What it says does not matter.
        pub(super) async fn changed(&self) -> io::Result<()> {
            match self.0.recv(&mut [0; 64]).await {
                // The kernel dropped messages, so there were some.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => Ok(()),
                read => read.map(drop),
            }
        }

        /// Drops the messages that have arrived.
        pub(super) fn skip(&self) {
            while self.0.try_recv(&mut [0; 64]).is_ok() {}
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    #[derive(Debug)]
    pub(super) struct Socket;

    impl Socket {
        pub(super) fn open() -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) async fn changed(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn skip(&self) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_there_or_not() {
        assert!(has_address([127, 0, 0, 1].into()));
        assert!(!has_address([192, 0, 2, 77].into()));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_socket_for_changes_can_be_opened() {
        let socket = system::Socket::open().unwrap();
        socket.skip();
    }
}
