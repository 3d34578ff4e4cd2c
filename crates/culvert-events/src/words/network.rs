//! Networks as tests of an address in text form, which events have.
//!
//! Addresses are in canonical form (RFC 5952), so a network that ends between two parts of the text is a beginning of
//! it. Other networks of IPv4 list the values of the part in which they end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::condition::quoted;

/// The tests for the addresses of a network such as `203.0.113.0/24`; `None` if the text is none.
pub(super) fn tests(text: &str) -> Option<Result<Vec<String>, String>> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u32 = length.parse().ok()?;
    let (address, length) = match address.to_canonical() {
        // An address of IPv4 as one of IPv6, which events have as that of IPv4.
        mapped @ IpAddr::V4(_) if address.is_ipv6() && length >= 96 => (mapped, length - 96),
        _ => (address, length),
    };
    match address {
        IpAddr::V4(address) if length <= 32 => Some(Ok(of_v4(address, length))),
        IpAddr::V6(address) if length <= 128 => Some(of_v6(address, length)),
        _ => None,
    }
}

fn of_v4(address: Ipv4Addr, length: u32) -> Vec<String> {
    if length == 32 {
        return vec![format!(" == {}", quoted(&address.to_string()))];
    }
    let octets = address.octets();
    let n_whole = (length / 8) as usize;
    let mut begin = String::new();
    for octet in octets.iter().take(n_whole) {
        begin.push_str(&format!("{octet}."));
    }
    let n_free = 8 - length % 8;
    if n_free == 8 {
        // All addresses of IPv4 have dots and no colons.
        return vec![match begin.is_empty() {
            true => ".contains(\".\")".to_owned(),
            false => format!(".startsWith({})", quoted(&begin)),
        }];
    }
    let octet = octets.get(n_whole).copied().unwrap_or(0);
    let mask = u8::try_from((0xff_u32 << n_free) & 0xff).unwrap_or(0);
    let first = octet & mask;
    let last = first | !mask;
    let values: Vec<String> = (first..=last).map(|value| value.to_string()).collect();
    let begin = begin.replace('.', "\\.");
    let end = if n_whole == 3 { "$" } else { "\\." };
    let pattern = format!("^{begin}({}){end}", values.join("|"));
    vec![format!(".matches({})", quoted(&pattern))]
}

fn of_v6(address: Ipv6Addr, length: u32) -> Result<Vec<String>, String> {
    if length == 128 {
        return Ok(vec![format!(" == {}", quoted(&address.to_string()))]);
    }
    let n_groups = (length / 16) as usize;
    let groups = &address.segments()[..n_groups];
    let n_zeros = groups.iter().rev().take_while(|group| **group == 0).count();
    let named = &groups[..n_groups - n_zeros];
    // Zeros are written in two ways, depending on those that follow.
    let is_plain =
        !length.is_multiple_of(16) || named.is_empty() || n_zeros > 2 || named.contains(&0);
    if is_plain {
        return Err(format!(
            "`{address}/{length}` cannot be searched; search for a network of IPv6 whose length is a multiple of 16, such as /48 or /64"
        ));
    }
    let text = |groups: &[u16]| {
        let groups = groups.iter().map(|group| format!("{group:x}:"));
        groups.collect::<String>()
    };
    let mut begins = vec![text(groups)];
    if n_zeros > 0 {
        begins.push(format!("{}:", text(named)));
    }
    let tests = begins.iter();
    Ok(tests
        .map(|begin| format!(".startsWith({})", quoted(begin)))
        .collect())
}
