//! The addresses and URLs that requests of this server may reach (reliability 9).
//!
//! Pure: this module has no resolver and no socket. `net` checks every URL when a destination is
//! configured and at every attempt, and every address immediately before it connects. A refusal
//! names the rule and not the address, so it reveals nothing about names inside the network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use culvert_base::metadata_address::is_metadata;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

/// What the operator allows beyond the default.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Networks that are allowed although a rule denies them. Metadata addresses need an entry for
    /// exactly that address.
    pub allow_networks: Vec<IpNet>,
    /// Whether `http` URLs are allowed besides `https`.
    pub allow_plain_http: bool,
    /// Ports that are never connected to.
    pub deny_ports: Vec<u16>,
}

/// A URL that was accepted: scheme, port and host are known, and the host is a name or an allowed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedUrl {
    /// As parsed; without userinfo and fragment.
    pub url: Url,
    /// The port in the URL or the default of the scheme.
    pub port: u16,
}

/// Maximum bytes of a URL.
pub const URL_BYTES_MAX: usize = 2048;
/// Maximum bytes of a host.
pub const HOST_BYTES_MAX: usize = 253;
/// Maximum number of addresses of a host; a host with more is denied.
pub const ADDRESSES_MAX: usize = 16;

/// The rule that denied a request. [`Denied::ALL`] lists all rules, for metrics and documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Denied {
    /// Not a URL, or with spaces or control characters, or too long.
    #[error("it is not a URL of at most 2048 bytes")]
    Malformed,
    /// Neither `https` nor, where allowed, `http`.
    #[error("its scheme must be https (or http where `destinations.allow_plain_http` is set)")]
    Scheme,
    /// A user or password in the URL.
    #[error("it must not contain a user or password")]
    Userinfo,
    /// Port 0 or one on the operator's list.
    #[error("its port is not allowed")]
    Port,
    /// No host, one of more than 253 bytes, or one with a zone.
    #[error("its host is neither a host name nor an IP address")]
    Host,
    /// The resolver returned no address, or more than [`ADDRESSES_MAX`].
    #[error("its host resolves to no address or to too many")]
    Addresses,
    /// `0.0.0.0/8`, `::`.
    #[error("unspecified addresses are not allowed")]
    Unspecified,
    /// `127.0.0.0/8`, `::1`.
    #[error("loopback addresses are not allowed unless `destinations.allow_networks` lists them")]
    Loopback,
    /// RFC 1918, unique local, site local.
    #[error("private addresses are not allowed unless `destinations.allow_networks` lists them")]
    Private,
    /// `100.64.0.0/10`.
    #[error(
        "carrier-grade NAT addresses are not allowed unless `destinations.allow_networks` lists them"
    )]
    Carrier,
    /// `224.0.0.0/4`, `ff00::/8`.
    #[error("multicast addresses are not allowed")]
    Multicast,
    /// `255.255.255.255`, `240.0.0.0/4`, and other blocks that are not the public Internet.
    #[error("reserved addresses are not allowed")]
    Reserved,
    /// Documentation and benchmarking blocks.
    #[error("documentation and test addresses are not allowed")]
    Documentation,
    /// IPv6 blocks that carry an IPv4 address.
    #[error("NAT64 and other translated addresses are not allowed")]
    Translated,
    /// The addresses at which cloud providers serve credentials, which include all link-local ones.
    #[error("metadata services and other link-local addresses are not allowed")]
    Metadata,
    /// A listener of this server.
    #[error("this server's own listeners are not allowed")]
    OwnListener,
}

impl Denied {
    /// Every rule.
    pub const ALL: &'static [Self] = &[
        Self::Malformed,
        Self::Scheme,
        Self::Userinfo,
        Self::Port,
        Self::Host,
        Self::Addresses,
        Self::Unspecified,
        Self::Loopback,
        Self::Private,
        Self::Carrier,
        Self::Multicast,
        Self::Reserved,
        Self::Documentation,
        Self::Translated,
        Self::Metadata,
        Self::OwnListener,
    ];

    /// Its name in metrics.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Scheme => "scheme",
            Self::Userinfo => "userinfo",
            Self::Port => "port",
            Self::Host => "host",
            Self::Addresses => "addresses",
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::Carrier => "carrier",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
            Self::Documentation => "documentation",
            Self::Translated => "translated",
            Self::Metadata => "metadata",
            Self::OwnListener => "own_listener",
        }
    }
}

impl Rules {
    /// Checks a URL without resolving its host. A host that is an address is checked as an address.
    pub fn url(&self, text: &str) -> Result<CheckedUrl, Denied> {
        let checked = self.url_on_any_port(text)?;
        self.port(checked.port)?;
        Ok(checked)
    }

    /// Checks everything of a URL but its port.
    pub fn url_on_any_port(&self, text: &str) -> Result<CheckedUrl, Denied> {
        if text.len() > URL_BYTES_MAX
            || text
                .chars()
                .any(|c| c.is_control() || c.is_whitespace() || c == '\\')
        {
            return Err(Denied::Malformed);
        }
        // The URL standard accepts `https:host` and `https:///host` for `https://host`; this guard does not.
        let (scheme, rest) = text.split_once(':').ok_or(Denied::Malformed)?;
        match scheme.to_ascii_lowercase().as_str() {
            "https" => {}
            "http" if self.allow_plain_http => {}
            _ => return Err(Denied::Scheme),
        }
        let authority = rest.strip_prefix("//").ok_or(Denied::Malformed)?;
        let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err(Denied::Userinfo);
        }
        if authority.is_empty() || authority.contains('%') {
            return Err(Denied::Host);
        }
        let mut url = Url::parse(text).map_err(|error| match error {
            url::ParseError::InvalidPort => Denied::Port,
            url::ParseError::EmptyHost
            | url::ParseError::IdnaError
            | url::ParseError::InvalidIpv4Address
            | url::ParseError::InvalidIpv6Address
            | url::ParseError::InvalidDomainCharacter => Denied::Host,
            _ => Denied::Malformed,
        })?;
        url.set_fragment(None);
        let port = url.port_or_known_default().ok_or(Denied::Port)?;
        match url.host().ok_or(Denied::Host)? {
            Host::Ipv4(address) => self.address(address.into())?,
            Host::Ipv6(address) => self.address(address.into())?,
            Host::Domain(name) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                let fits = !name.is_empty()
                    && name.len() <= HOST_BYTES_MAX
                    && name.split('.').all(|label| (1..=63).contains(&label.len()))
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
                if !fits {
                    return Err(Denied::Host);
                }
                let name = name.to_owned();
                url.set_host(Some(&name)).map_err(|_| Denied::Host)?;
            }
        }
        Ok(CheckedUrl { url, port })
    }

    /// Checks a port.
    pub fn port(&self, port: u16) -> Result<(), Denied> {
        if port == 0 || self.deny_ports.contains(&port) {
            return Err(Denied::Port);
        }
        Ok(())
    }

    /// Checks all addresses of a host. If one is not allowed, the host is denied.
    pub fn addresses(&self, addresses: &[IpAddr]) -> Result<(), Denied> {
        self.count(addresses)?;
        addresses
            .iter()
            .try_for_each(|address| self.address(*address))
    }

    /// Checks the number of addresses of a host.
    pub(crate) fn count(&self, addresses: &[IpAddr]) -> Result<(), Denied> {
        match addresses.len() {
            1..=ADDRESSES_MAX => Ok(()),
            _ => Err(Denied::Addresses),
        }
    }

    /// Checks one address. An IPv4 address written as IPv6 (`::ffff:a.b.c.d`) is checked as IPv4.
    pub fn address(&self, address: IpAddr) -> Result<(), Denied> {
        let address = address.to_canonical();
        let Some(denied) = rule_against(address) else {
            return Ok(());
        };
        let allowed = self.allow_networks.iter().any(|network| {
            let exact = network.prefix_len() == network.max_prefix_len();
            network.contains(&address) && (exact || denied != Denied::Metadata)
        });
        if allowed { Ok(()) } else { Err(denied) }
    }
}

/// The rule that denies `address` unless the operator allows it.
fn rule_against(address: IpAddr) -> Option<Denied> {
    if is_metadata(address) {
        return Some(Denied::Metadata);
    }
    match address {
        IpAddr::V4(v4) => V4
            .iter()
            .find(|(network, _)| network.contains(&v4))
            .map(|(_, denied)| *denied),
        IpAddr::V6(v6) => V6
            .iter()
            .find(|(network, _)| network.contains(&v6))
            .map(|(_, denied)| *denied)
            // Public IPv6 addresses are in 2000::/3.
            .or_else(|| (v6.segments()[0] & 0xe000 != 0x2000).then_some(Denied::Reserved)),
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(first: u16, second: u16, third: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0), prefix)
}

#[rustfmt::skip]
const V4: &[(Ipv4Net, Denied)] = &[
    (v4(0, 0, 0, 0, 8), Denied::Unspecified),
    (v4(10, 0, 0, 0, 8), Denied::Private),
    (v4(100, 64, 0, 0, 10), Denied::Carrier),
    (v4(127, 0, 0, 0, 8), Denied::Loopback),
    (v4(172, 16, 0, 0, 12), Denied::Private),
    (v4(192, 0, 0, 0, 24), Denied::Reserved),
    (v4(192, 0, 2, 0, 24), Denied::Documentation),
    (v4(192, 31, 196, 0, 24), Denied::Reserved),
    (v4(192, 52, 193, 0, 24), Denied::Reserved),
    (v4(192, 88, 99, 0, 24), Denied::Translated),
    (v4(192, 168, 0, 0, 16), Denied::Private),
    (v4(192, 175, 48, 0, 24), Denied::Reserved),
    (v4(198, 18, 0, 0, 15), Denied::Documentation),
    (v4(198, 51, 100, 0, 24), Denied::Documentation),
    (v4(203, 0, 113, 0, 24), Denied::Documentation),
    (v4(224, 0, 0, 0, 4), Denied::Multicast),
    (v4(240, 0, 0, 0, 4), Denied::Reserved),
];

#[rustfmt::skip]
const V6: &[(Ipv6Net, Denied)] = &[
    (Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128), Denied::Unspecified),
    (Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128), Denied::Loopback),
    (v6(0, 0, 0, 96), Denied::Translated),
    (v6(0x64, 0xff9b, 0, 96), Denied::Translated),
    (v6(0x64, 0xff9b, 1, 48), Denied::Translated),
    (v6(0x100, 0, 0, 64), Denied::Reserved),
    (v6(0x2001, 0, 0, 32), Denied::Translated),
    // The rest of the block for protocol assignments: benchmarking, ORCHID and others.
    (v6(0x2001, 0, 0, 23), Denied::Reserved),
    (v6(0x2001, 0xdb8, 0, 32), Denied::Documentation),
    (v6(0x2002, 0, 0, 16), Denied::Translated),
    (v6(0x3fff, 0, 0, 20), Denied::Documentation),
    (v6(0x5f00, 0, 0, 16), Denied::Reserved),
    (v6(0xfc00, 0, 0, 7), Denied::Private),
    (v6(0xfec0, 0, 0, 10), Denied::Private),
    (v6(0xff00, 0, 0, 8), Denied::Multicast),
];

#[cfg(test)]
mod tests;
