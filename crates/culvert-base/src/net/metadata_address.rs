//! The addresses of cloud metadata services and similar ones, which give credentials to any client that connects.
//!
//! No guard of addresses allows them through a range. An operator who needs one allows exactly this address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range of such addresses.
struct Range {
    network: IpAddr,
    prefix: u32,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u32) -> Range {
    Range {
        network: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        prefix,
    }
}

const fn v6(segments: [u16; 8], prefix: u32) -> Range {
    let [a, b, c, d, e, f, g, h] = segments;
    Range {
        network: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)),
        prefix,
    }
}

/// All of them. Link-local ranges are here as a whole, because each cloud chooses further addresses in them.
const RANGES: [Range; 8] = [
    // Link-local: Amazon (also ECS, EKS and time), Google, Azure, Oracle, DigitalOcean, Hetzner, OpenStack and others.
    v4(169, 254, 0, 0, 16),
    v6([0xFE80, 0, 0, 0, 0, 0, 0, 0], 10),
    // Amazon.
    v6([0xFD00, 0x0EC2, 0, 0, 0, 0, 0, 0], 32),
    // Google.
    v6([0xFD20, 0x00CE, 0, 0, 0, 0, 0, 0x0254], 128),
    // Oracle.
    v6([0xFD00, 0x00C1, 0, 0, 0, 0, 0xA9FE, 0xA9FE], 128),
    // Azure.
    v4(168, 63, 129, 16, 32),
    // Oracle (IMDS of classic instances).
    v4(192, 0, 0, 192, 32),
    // Alibaba.
    v4(100, 100, 100, 200, 32),
];

/// Whether it is the address of a metadata service, also inside of an IPv6 address that leads to an IPv4 address: mapped,
/// compatible, translated (NAT64), 6to4, Teredo and ISATAP.
pub fn is_metadata(address: IpAddr) -> bool {
    let is_listed = |address: IpAddr| RANGES.iter().any(|range| range.contains(address));
    match address {
        IpAddr::V4(_) => is_listed(address),
        IpAddr::V6(v6) => {
            is_listed(address)
                || embedded(v6)
                    .into_iter()
                    .flatten()
                    .any(|v4| is_listed(v4.into()))
        }
    }
}

impl Range {
    fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= self.prefix
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= self.prefix
            }
            _ => false,
        }
    }
}

/// The IPv4 addresses that a router may take out of an IPv6 address.
fn embedded(address: Ipv6Addr) -> [Option<Ipv4Addr>; 5] {
    let bits = address.to_bits();
    let octets = address.octets();
    // In bits from the right; the last 32 are 0.
    let at = |shift: u32| Ipv4Addr::from_bits((bits >> shift) as u32);
    let [a, b, c, d, e, f, ..] = address.segments();
    // Mapped (::ffff:0:0/96), SIIT (::ffff:0:0:0/96), compatible (::/96) and the well-known prefix of NAT64
    // (64:ff9b::/96) have it at the end.
    let is_zero = a == 0 && b == 0 && c == 0 && d == 0;
    let is_last = is_zero && matches!((e, f), (0, 0 | 0xFFFF) | (0xFFFF, 0))
        || [a, b, c, d, e, f] == [0x64, 0xFF9B, 0, 0, 0, 0];
    let is_isatap = matches!((e & !0x0200, f), (0, 0x5EFE));
    let mut found = [
        (is_last || is_isatap).then(|| at(0)),
        None,
        None,
        None,
        None,
    ];
    match (a, b) {
        // The local prefix of NAT64 (64:ff9b:1::/48): a translator with a prefix of 48, 56, 64 or 96 bits may use it (RFC
        // 6052 section 2.2). Octet 8 is always 0.
        (0x64, 0xFF9B) if c == 1 => {
            let [.., q6, q7, _, q9, q10, q11, q12, _, _, _] = octets;
            found[1] = Some(Ipv4Addr::new(q6, q7, q9, q10));
            found[2] = Some(Ipv4Addr::new(q9, q10, q11, q12));
            found[3] = Some(at(0));
            found[4] = Some(Ipv4Addr::new(q7, q9, q10, q11));
        }
        // 6to4.
        (0x2002, _) => found[1] = Some(at(80)),
        // Teredo: the server, and the inverted client.
        (0x2001, 0) => {
            found[1] = Some(at(64));
            found[2] = Some(Ipv4Addr::from_bits(!(bits as u32)));
        }
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(text: &str) -> bool {
        is_metadata(text.parse().unwrap())
    }

    #[test]
    fn metadata_addresses_are_recognised() {
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "169.254.0.1",
            "169.254.255.255",
            "168.63.129.16",
            "192.0.0.192",
            "100.100.100.200",
            "fe80::1",
            "fe80::a9fe:a9fe",
            "febf:ffff::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd00:ec2:ffff::1",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
        ] {
            assert!(is(address), "{address}");
        }
        for address in [
            "169.253.255.255",
            "169.255.0.0",
            "168.63.129.15",
            "192.0.0.191",
            "100.100.100.201",
            "10.0.0.1",
            "127.0.0.1",
            "::",
            "::1",
            "fec0::1",
            "fd00:ec1::254",
            "fd00:ec3::254",
            "fd20:ce::253",
            "fd00:c1::a9fe:a9fd",
            "fd00::1",
            "2606:4700::1111",
            "64:ff9b::102:304",
            "2002:102:304::1",
        ] {
            assert!(!is(address), "{address}");
        }
    }

    /// Every listed IPv4 address in every form that leads to it.
    #[test]
    fn embedded_metadata_addresses_are_recognised() {
        for address in [
            [169, 254, 169, 254],
            [169, 254, 170, 2],
            [168, 63, 129, 16],
            [192, 0, 0, 192],
            [100, 100, 100, 200],
        ] {
            let [a, b, c, d] = address;
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            let (inverted_high, inverted_low) = (!high, !low);
            for form in [
                format!("::ffff:{high:x}:{low:x}"),
                format!("::{high:x}:{low:x}"),
                format!("::ffff:0:{high:x}:{low:x}"),
                format!("64:ff9b::{high:x}:{low:x}"),
                format!("64:ff9b:1::{high:x}:{low:x}"),
                // Prefixes of 48, of 56 and of 64 bits.
                format!("64:ff9b:1:{high:x}:{c:x}:{d:x}00::"),
                format!("64:ff9b:1:2{a:02x}:{b:x}:{low:x}::"),
                format!("64:ff9b:1:2:{a:x}:{b:x}{c:02x}:{d:x}00:0"),
                format!("2002:{high:x}:{low:x}::"),
                format!("2002:{high:x}:{low:x}:1::1"),
                format!("2001:0:{high:x}:{low:x}::1"),
                format!("2001:0:102:304:0:0:{inverted_high:x}:{inverted_low:x}"),
                format!("2606:4700::5efe:{high:x}:{low:x}"),
                format!("2606:4700::200:5efe:{high:x}:{low:x}"),
            ] {
                assert!(is(&form), "{form}");
            }
            // The same digits elsewhere lead nowhere.
            for form in [
                format!("2606:4700::{high:x}:{low:x}"),
                format!("fd00::{high:x}:{low:x}"),
            ] {
                assert!(!is(&form), "{form}");
            }
        }
    }
}
