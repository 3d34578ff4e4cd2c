//! The PROXY protocol, versions 1 and 2: the client's addresses, which a load balancer sends before the client's first
//! byte (<https://www.haproxy.org/download/1.8/doc/proxy-protocol.txt>). A server reads headers of load balancers, and
//! writes headers for services behind agents.
//!
//! No I/O. For an incomplete header the parser returns how many bytes are certainly missing, so that its caller never
//! reads a byte after the header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Longest header of version 2.
pub const HEADER_BYTES_MAX: usize = 536;
/// Longest line of version 1, its end included.
const LINE_BYTES_MAX: usize = 107;
/// Shortest: `PROXY UNKNOWN` and a line end.
const LINE_BYTES_MIN: usize = 15;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyVersion {
    /// A line of text.
    One,
    /// Binary.
    Two,
}

/// The two addresses of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyAddresses {
    /// The address of the client.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub server: SocketAddr,
}

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// At least this many bytes are missing.
    Partial(usize),
    /// A complete header. Without addresses, the connection is the load balancer's own, or of a family without addresses.
    Whole(Option<ProxyAddresses>),
    /// No header.
    Malformed,
}

/// Reads a header.
pub fn parse(bytes: &[u8]) -> ProxyHeader {
    let known = bytes.len().min(SIGNATURE.len());
    let verdict = if bytes.is_empty() {
        Some(ProxyHeader::Partial(LINE_BYTES_MIN))
    } else if bytes.get(..known) == SIGNATURE.get(..known) {
        second(bytes)
    } else {
        first(bytes)
    };
    verdict.unwrap_or(ProxyHeader::Malformed)
}

/// Version 1, a line of text. `None` if it is malformed.
fn first(bytes: &[u8]) -> Option<ProxyHeader> {
    const WORD: &[u8] = b"PROXY ";
    let known = bytes.len().min(WORD.len());
    if bytes.get(..known) != WORD.get(..known) {
        return None;
    }
    let Some(end) = memchr::memchr(b'\n', bytes) else {
        let least = match bytes.get(6..10) {
            Some(b"TCP4") => "PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n".len(),
            Some(b"TCP6") => "PROXY TCP6 :: :: 0 0\r\n".len(),
            _ => LINE_BYTES_MIN,
        };
        let end = if bytes.last() == Some(&b'\r') { 1 } else { 2 };
        let missing = least.saturating_sub(bytes.len()).max(end);
        let fits = bytes.len() + missing <= LINE_BYTES_MAX;
        return fits.then_some(ProxyHeader::Partial(missing));
    };
    if end + 1 != bytes.len() || bytes.len() > LINE_BYTES_MAX {
        return None;
    }
    let line = std::str::from_utf8(bytes.get(..end)?).ok()?;
    let line = line.strip_suffix('\r')?;
    if line.contains('\r') {
        return None;
    }
    let mut words = line.split(' ');
    let (_, family) = (words.next()?, words.next()?);
    let ends = match family {
        // The rest is ignored.
        "UNKNOWN" => return Some(ProxyHeader::Whole(None)),
        "TCP4" => line_ends::<Ipv4Addr>(&mut words)?,
        "TCP6" => line_ends::<Ipv6Addr>(&mut words)?,
        _ => return None,
    };
    words
        .next()
        .is_none()
        .then_some(ProxyHeader::Whole(Some(ends)))
}

fn line_ends<'a, A: FromStr + Into<IpAddr>>(
    words: &mut impl Iterator<Item = &'a str>,
) -> Option<ProxyAddresses> {
    let mut address = || words.next()?.parse::<A>().ok();
    let (client, server) = (address()?, address()?);
    let mut port = || {
        let text = words.next()?;
        let is_plain =
            text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        text.parse::<u16>().ok().filter(|_| is_plain)
    };
    Some(ProxyAddresses {
        client: SocketAddr::new(client.into(), port()?),
        server: SocketAddr::new(server.into(), port()?),
    })
}

/// Version 2, binary. `None` if it is malformed.
fn second(bytes: &[u8]) -> Option<ProxyHeader> {
    let Some((head, rest)) = bytes.split_at_checked(16) else {
        return Some(ProxyHeader::Partial(16 - bytes.len()));
    };
    let [command, family, high, low] = *head.last_chunk()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if !matches!(command, 0x20 | 0x21) || 16 + length > HEADER_BYTES_MAX {
        return None;
    }
    if rest.len() < length {
        return Some(ProxyHeader::Partial(length - rest.len()));
    }
    if rest.len() > length {
        return None;
    }
    let is_local = command == 0x20;
    let (ends, after) = match family {
        // Ignored.
        _ if is_local => return Some(ProxyHeader::Whole(None)),
        0x00 => return Some(ProxyHeader::Whole(None)),
        // TCP over IPv4 and IPv6, a stream of a Unix socket.
        0x11 => binary_ends::<4>(rest)?,
        0x21 => binary_ends::<16>(rest)?,
        0x31 => (None, rest.get(216..)?),
        _ => return None,
    };
    are_records(after).then_some(ProxyHeader::Whole(ends))
}

/// Two addresses of `N` bytes, two ports, and the rest.
fn binary_ends<const N: usize>(bytes: &[u8]) -> Option<(Option<ProxyAddresses>, &[u8])>
where
    [u8; N]: Into<IpAddr>,
{
    let (client, rest) = bytes.split_first_chunk::<N>()?;
    let (server, rest) = rest.split_first_chunk::<N>()?;
    let (client_port, rest) = rest.split_first_chunk::<2>()?;
    let (server_port, rest) = rest.split_first_chunk::<2>()?;
    let ends = ProxyAddresses {
        client: SocketAddr::new((*client).into(), u16::from_be_bytes(*client_port)),
        server: SocketAddr::new((*server).into(), u16::from_be_bytes(*server_port)),
    };
    Some((Some(ends), rest))
}

/// Whether all bytes are records of type, length and value.
fn are_records(mut bytes: &[u8]) -> bool {
    while let Some((&[_, high, low], rest)) = bytes.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        match rest.get(length..) {
            Some(after) => bytes = after,
            None => return false,
        }
    }
    bytes.is_empty()
}

/// The header with these addresses.
pub fn encode(version: ProxyVersion, ends: ProxyAddresses) -> Vec<u8> {
    // A header has addresses of one family.
    let (client, server) = match (ends.client.ip(), ends.server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => (client.into(), server.into()),
        (client, server) => (as_v6(client), as_v6(server)),
    };
    let ports = (ends.client.port(), ends.server.port());
    match version {
        ProxyVersion::One => {
            let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
            format!(
                "PROXY {family} {client} {server} {} {}\r\n",
                ports.0, ports.1
            )
            .into_bytes()
        }
        ProxyVersion::Two => {
            let (family, addresses) = match (client, server) {
                (IpAddr::V4(client), IpAddr::V4(server)) => {
                    (0x11, [client.octets(), server.octets()].concat())
                }
                (client, server) => (0x21, [octets(client), octets(server)].concat()),
            };
            let mut header = SIGNATURE.to_vec();
            // At most 36 bytes follow.
            header.extend([0x21, family, 0, addresses.len() as u8 + 4]);
            header.extend(addresses);
            header.extend(ports.0.to_be_bytes());
            header.extend(ports.1.to_be_bytes());
            header
        }
    }
}

/// The header of a connection of this process itself, such as a health check: without addresses.
pub fn encode_own(version: ProxyVersion) -> Vec<u8> {
    match version {
        ProxyVersion::One => b"PROXY UNKNOWN\r\n".to_vec(),
        // The command LOCAL, and no address.
        ProxyVersion::Two => [&SIGNATURE[..], &[0x20, 0, 0, 0]].concat(),
    }
}

fn as_v6(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        IpAddr::V6(_) => address,
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends(client: &str, server: &str) -> ProxyHeader {
        ProxyHeader::Whole(Some(ProxyAddresses {
            client: client.parse().unwrap(),
            server: server.parse().unwrap(),
        }))
    }

    /// A header of version 2 with this after its length.
    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[test]
    fn version_1_headers_are_parsed() {
        for (line, header) in [
            (
                "PROXY TCP4 1.2.3.4 5.6.7.8 9 10",
                ends("1.2.3.4:9", "5.6.7.8:10"),
            ),
            (
                "PROXY TCP4 255.255.255.255 0.0.0.0 65535 0",
                ends("255.255.255.255:65535", "0.0.0.0:0"),
            ),
            (
                "PROXY TCP6 2001:db8::1 ::1 9 10",
                ends("[2001:db8::1]:9", "[::1]:10"),
            ),
            ("PROXY UNKNOWN", ProxyHeader::Whole(None)),
            ("PROXY UNKNOWN ffff::1 whatever", ProxyHeader::Whole(None)),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 9", ProxyHeader::Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 9 10 11", ProxyHeader::Malformed),
            ("PROXY TCP4 1.2.3.4  5.6.7.8 9 10", ProxyHeader::Malformed),
            ("PROXY TCP4 1.2.3.04 5.6.7.8 9 10", ProxyHeader::Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 09 10", ProxyHeader::Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 +9 10", ProxyHeader::Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 9 65536", ProxyHeader::Malformed),
            ("PROXY TCP4 ::1 ::1 9 10", ProxyHeader::Malformed),
            ("PROXY TCP6 1.2.3.4 5.6.7.8 9 10", ProxyHeader::Malformed),
            ("PROXY TCP5 1.2.3.4 5.6.7.8 9 10", ProxyHeader::Malformed),
            ("PROXY tcp4 1.2.3.4 5.6.7.8 9 10", ProxyHeader::Malformed),
            ("PROXY  TCP4 1.2.3.4 5.6.7.8 9 10", ProxyHeader::Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r", ProxyHeader::Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 9 10 ", ProxyHeader::Malformed),
            ("proxy TCP4 1.2.3.4 5.6.7.8 9 10", ProxyHeader::Malformed),
            ("GET / HTTP/1.1", ProxyHeader::Malformed),
        ] {
            assert_eq!(parse(format!("{line}\r\n").as_bytes()), header, "{line}");
        }
        let bare = b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\n";
        assert_eq!(parse(bare), ProxyHeader::Malformed);
        let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(LINE_BYTES_MAX - 16));
        assert_eq!(parse(longest.as_bytes()), ProxyHeader::Whole(None));
        let longer = format!("PROXY UNKNOWN {}", "x".repeat(LINE_BYTES_MAX - 15));
        assert_eq!(parse(longer.as_bytes()), ProxyHeader::Malformed);
    }

    #[test]
    fn version_2_headers_are_parsed() {
        let four = [1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 0, 10];
        let whole = ends("1.2.3.4:9", "5.6.7.8:10");
        let with = |after: &[u8]| [&four[..], after].concat();
        let mut six = [0; 36];
        six[15] = 1;
        six[31] = 2;
        six[33] = 9;
        six[35] = 10;
        for (bytes, header) in [
            (binary(0x21, 0x11, &four), whole),
            (binary(0x21, 0x21, &six), ends("[::1]:9", "[::2]:10")),
            (binary(0x21, 0x11, &with(&[4, 0, 1, 7, 4, 0, 0])), whole),
            (binary(0x21, 0x11, &with(&[0; 508])), ProxyHeader::Malformed),
            (
                binary(0x21, 0x11, &with(&[4, 1, 249])),
                ProxyHeader::Malformed,
            ),
            (binary(0x21, 0x11, &with(&[4, 0])), ProxyHeader::Malformed),
            (
                binary(0x21, 0x11, &with(&[4, 0, 2, 7])),
                ProxyHeader::Malformed,
            ),
            (binary(0x21, 0x11, &four[..11]), ProxyHeader::Malformed),
            (binary(0x21, 0x21, &six[..35]), ProxyHeader::Malformed),
            (binary(0x20, 0x00, &[]), ProxyHeader::Whole(None)),
            (binary(0x20, 0x11, &[1]), ProxyHeader::Whole(None)),
            (binary(0x21, 0x00, &[9]), ProxyHeader::Whole(None)),
            (binary(0x21, 0x31, &[0; 216]), ProxyHeader::Whole(None)),
            (binary(0x21, 0x31, &[0; 215]), ProxyHeader::Malformed),
            (binary(0x21, 0x12, &four), ProxyHeader::Malformed),
            (binary(0x22, 0x11, &four), ProxyHeader::Malformed),
            (binary(0x11, 0x11, &four), ProxyHeader::Malformed),
            (binary(0x21, 0x41, &four), ProxyHeader::Malformed),
            (
                binary(0x20, 0x00, &[0; HEADER_BYTES_MAX - 16]),
                ProxyHeader::Whole(None),
            ),
            (
                binary(0x20, 0x00, &[0; HEADER_BYTES_MAX - 15]),
                ProxyHeader::Malformed,
            ),
        ] {
            assert_eq!(parse(&bytes), header, "{bytes:?}");
        }
    }

    #[test]
    fn written_headers_are_parsed_back() {
        for (client, server) in [
            ("1.2.3.4:9", "5.6.7.8:10"),
            ("[2001:db8::1]:9", "[::1]:10"),
            ("[2001:db8::1]:65535", "[::ffff:5.6.7.8]:1"),
        ] {
            for version in [ProxyVersion::One, ProxyVersion::Two] {
                assert_eq!(parse(&encode_own(version)), ProxyHeader::Whole(None));
                let ProxyHeader::Whole(Some(addresses)) = ends(client, server) else {
                    panic!("{client}");
                };
                assert_eq!(
                    parse(&encode(version, addresses)),
                    ProxyHeader::Whole(Some(addresses))
                );
            }
        }
        let mixed = ProxyAddresses {
            client: "1.2.3.4:9".parse().unwrap(),
            server: "[::1]:10".parse().unwrap(),
        };
        let line = encode(ProxyVersion::One, mixed);
        assert_eq!(line, b"PROXY TCP6 ::ffff:1.2.3.4 ::1 9 10\r\n");
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            crate::fuzz::proxy_header(&bytes);
        }

        #[test]
        fn damaged_headers_are_parsed_or_refused(
            start in prop_oneof![Just(&SIGNATURE[..]), Just(&b"PROXY TCP4 "[..]), Just(&b"PROXY "[..])],
            rest in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                "[0-9:. TCPUNKOW\r\n]{0,120}".prop_map(String::into_bytes),
            ],
        ) {
            crate::fuzz::proxy_header(&[start, &rest].concat());
        }
    }
}
