//! Whether an address belongs to this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Whether `ip` belongs to this machine: a socket connected to it has it as its local address. Nothing is sent.
pub fn is_own_address(ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let local = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    local().is_ok_and(|local| local.ip() == ip)
}
