//! Which addresses, Unix sockets and folders the edge may connect to (reliability 9).
//!
//! All addresses that a resolver returns are checked, and connections go only to checked addresses. A name is never
//! resolved a second time.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use culvert_base::metadata_address::is_metadata;
use culvert_base::net::{AllowedPaths, plain_address};
use ipnet::IpNet;

/// The addresses that may be connected to.
#[derive(Clone, Debug, Default)]
pub struct AddressGuard {
    /// Whether private addresses are allowed.
    private: bool,
    /// Networks that are allowed in any case. A metadata service needs an entry for exactly its address.
    networks: Arc<[IpNet]>,
    /// The listeners of this process, which URLs from third parties must not reach.
    own: Arc<[SocketAddr]>,
    /// The Unix sockets that are allowed. By default none: many of them give their user the whole machine.
    sockets: AllowedPaths,
    /// The folders whose files may be served. By default none.
    folders: AllowedPaths,
}

impl AddressGuard {
    /// Allows public addresses, `networks`, and private addresses if `private`.
    pub fn new(private: bool, networks: &[IpNet]) -> Self {
        Self {
            private,
            networks: networks.into(),
            own: Arc::default(),
            sockets: AllowedPaths::default(),
            folders: AllowedPaths::default(),
        }
    }

    /// The same, which also allows these Unix sockets and folders.
    #[must_use]
    pub fn with_paths(self, sockets: AllowedPaths, folders: AllowedPaths) -> Self {
        Self {
            sockets,
            folders,
            ..self
        }
    }

    /// The same for URLs from third parties: no private addresses outside of the allowed networks, no Unix sockets and folders, and not
    /// the listeners of this process.
    pub(crate) fn to_public(&self, own: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            private: false,
            networks: Arc::clone(&self.networks),
            own: own.into_iter().collect(),
            sockets: AllowedPaths::default(),
            folders: AllowedPaths::default(),
        }
    }

    /// The folders whose files may be served.
    pub(crate) fn folders(&self) -> &AllowedPaths {
        &self.folders
    }

    /// The Unix sockets that may be connected to.
    pub(crate) fn sockets(&self) -> &AllowedPaths {
        &self.sockets
    }

    /// Whether all of a name's addresses may be connected to.
    pub(crate) fn admits(&self, addresses: &[SocketAddr]) -> bool {
        addresses.iter().all(|address| {
            let plain = plain_address(address.ip());
            let mut networks = self.networks.iter();
            if is_metadata(plain) {
                return networks.any(|network| is_exactly(network, plain));
            }
            self.private || !is_private(plain) || networks.any(|network| network.contains(&plain))
        })
    }

    /// Whether this process listens there, as far as the address shows.
    pub(crate) fn is_own(&self, place: SocketAddr) -> bool {
        self.own.iter().any(|own| {
            own.port() == place.port()
                && (own.ip() == place.ip()
                    || (own.ip().is_unspecified()
                        && (place.ip().is_loopback() || place.ip().is_unspecified())))
        })
    }

    /// Whether established connections are to be checked.
    pub(crate) fn minds_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// The same for an established connection from `local` to `peer`: a listener on all addresses is reached at each
    /// address of the machine.
    pub(crate) fn is_own_by_now(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        let mut own = self.own.iter();
        local.ip() == peer.ip()
            && own.any(|own| own.ip().is_unspecified() && own.port() == peer.port())
    }
}

/// Whether a network is this address and no other.
fn is_exactly(network: &IpNet, address: IpAddr) -> bool {
    network.prefix_len() == network.max_prefix_len() && network.addr() == address
}

/// Whether an address is in a range that is not public.
pub fn is_private(address: IpAddr) -> bool {
    match plain_address(address) {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_documentation()
                || matches!(
                    (a, b, c),
                    (0 | 240.., ..) | (100, 64..=127, _) | (198, 18..=19, _)
                )
                || matches!((a, b, c), (192, 0, 0) | (192, 88, 99) | (168, 63, 129))
        }
        IpAddr::V6(v6) => {
            let [a, b, c, ..] = v6.segments();
            // Only 2000::/3 is routed, and parts of it lead elsewhere: Teredo, documentation, 6to4.
            (a & 0xE000) != 0x2000
                || a == 0x2002
                || (a == 0x2001 && (b == 0 || b == 0x0DB8))
                || (a == 0x3FFF && b < 0x1000)
                || (a == 0x64 && b == 0xFF9B && c == 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(addresses: &[&str]) -> Vec<SocketAddr> {
        let places = addresses.iter();
        places
            .map(|address| SocketAddr::new(address.parse().unwrap(), 443))
            .collect()
    }

    #[test]
    fn private_addresses_are_recognised() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in ["1.1.1.1", "93.184.216.34", "2606:4700::1111"] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn a_name_with_one_forbidden_address_is_refused() {
        let public = AddressGuard::new(true, &[]).to_public([]);
        assert!(public.admits(&places(&["1.1.1.1", "2606:4700::1111"])));
        assert!(!public.admits(&places(&["1.1.1.1", "10.0.0.1"])));
        let networks = ["10.0.0.0/8".parse().unwrap()];
        let guard = AddressGuard::new(false, &networks);
        assert!(guard.admits(&places(&["1.1.1.1", "10.0.0.1", "::ffff:10.0.0.2"])));
        assert!(!guard.admits(&places(&["10.0.0.1", "11.0.0.1", "127.0.0.1"])));
    }

    #[test]
    fn metadata_addresses_must_be_allowed_explicitly() {
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "169.254.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fe80::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "2002:a9fe:a9fe::",
        ] {
            let there = places(&[address]);
            let wide = ["0.0.0.0/0", "::/0", "169.254.0.0/16", "fe80::/10"];
            let wide = wide.map(|network| network.parse().unwrap());
            let guard = AddressGuard::new(true, &wide);
            assert!(!guard.admits(&there), "{address}");
            assert!(!guard.to_public([]).admits(&there), "{address}");
            let plain = plain_address(address.parse().unwrap());
            assert!(
                AddressGuard::new(false, &[plain.into()]).admits(&there),
                "{address}"
            );
        }
    }

    #[test]
    fn own_listeners_are_recognised_by_address_and_port() {
        let own: [SocketAddr; 2] = ["0.0.0.0:443", "192.0.2.1:80"].map(|own| own.parse().unwrap());
        let networks = ["127.0.0.0/8".parse().unwrap()];
        let guard = AddressGuard::new(true, &networks).to_public(own);
        for (place, is_own) in [
            ("127.0.0.1:443", true),
            ("127.0.0.1:80", false),
            ("192.0.2.1:80", true),
            ("192.0.2.1:443", false),
        ] {
            assert_eq!(guard.is_own(place.parse().unwrap()), is_own, "{place}");
        }
        let ends = |local: &str, peer: &str| (local.parse().unwrap(), peer.parse().unwrap());
        let (local, peer) = ends("192.0.2.1:5000", "192.0.2.1:443");
        assert!(guard.is_own_by_now(local, peer));
        let (local, peer) = ends("192.0.2.1:5000", "192.0.2.2:443");
        assert!(!guard.is_own_by_now(local, peer));
    }
}
