//! Sets of IP addresses, built from prefixes that allow or deny.
//!
//! An [`IpSet`] contains an address if a prefix allows it and no prefix denies it, regardless of prefix length
//! (contract: management API 2.7, traffic policy 8.1). Prefixes are merged into sorted, disjoint ranges, so a look-up
//! is one binary search over these ranges and allocates nothing.
//!
//! IPv4-mapped IPv6 addresses (`::ffff:192.0.2.1`) are treated as IPv4, in prefixes and in look-ups.

use std::fmt;
use std::net::IpAddr;

use crate::net::plain_address;

/// An address prefix, such as `192.0.2.0/24`, without bits beyond its mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Why a text is not a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAPrefix {
    /// The text is not an address and a prefix length.
    #[error("a prefix must be an IPv4 or IPv6 address, a slash and the prefix length")]
    Malformed,
    /// The text is an address without a prefix length.
    #[error("the prefix length is missing, such as `/32` or `/128` for a single address")]
    NoMask,
    /// The address has bits beyond the mask.
    #[error("the address has bits set beyond its mask")]
    HostBits,
}

/// Whether it is IPv4, and the first and last address of the Internet of each family.
const INTERNET: [(bool, (u128, u128)); 2] = [
    (true, (0, u32::MAX as u128)),
    (false, (0x2000 << 112, (0x4000 << 112) - 1)),
];

impl Prefix {
    /// This address alone.
    pub fn of(address: IpAddr) -> Self {
        let address = plain_address(address);
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { address, length }
    }

    /// Parses `address/length`.
    pub fn parse(text: &str) -> Result<Self, NotAPrefix> {
        let Some((address, length)) = text.split_once('/') else {
            return Err(match text.parse::<IpAddr>() {
                Ok(_) => NotAPrefix::NoMask,
                Err(_) => NotAPrefix::Malformed,
            });
        };
        let address: IpAddr = address.parse().map_err(|_| NotAPrefix::Malformed)?;
        let is_number = (1..=3).contains(&length.len())
            && length.bytes().all(|byte| byte.is_ascii_digit())
            && (length == "0" || !length.starts_with('0'));
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let length = length
            .parse()
            .ok()
            .filter(|length| is_number && *length <= bits);
        let prefix = Self {
            address,
            length: length.ok_or(NotAPrefix::Malformed)?,
        };
        if prefix.first() & prefix.behind_mask() != 0 {
            return Err(NotAPrefix::HostBits);
        }
        Ok(prefix)
    }

    /// Whether the prefix contains an address.
    pub fn contains(self, address: IpAddr) -> bool {
        let address = plain_address(address);
        let (is_v4, (first, last)) = self.range();
        is_v4 == address.is_ipv4() && (first..=last).contains(&number(address))
    }

    /// Whether `wide` contains every address of this prefix.
    pub fn is_within(self, wide: Self) -> bool {
        let ((own_v4, own), (wide_v4, wide)) = (self.range(), wide.range());
        own_v4 == wide_v4 && wide.0 <= own.0 && own.1 <= wide.1
    }

    /// Whether these prefixes together contain at least half of the addresses of the Internet of a family: all of IPv4,
    /// or `2000::/3`, from which the addresses of IPv6 are given out.
    pub fn are_everywhere(prefixes: impl Iterator<Item = Self>) -> bool {
        let mut ranges: Vec<(bool, (u128, u128))> = prefixes.map(Self::range).collect();
        ranges.sort_unstable();
        INTERNET.into_iter().any(|(is_v4, (begin, end))| {
            let mut contained = 0_u128;
            let mut next = begin;
            let of_family = ranges.iter().filter(|(v4, _)| *v4 == is_v4);
            for (_, (first, last)) in of_family {
                let (first, last) = ((*first).max(next), (*last).min(end));
                if first <= last {
                    contained += last - first + 1;
                    next = last + 1;
                }
            }
            contained > (end - begin) / 2
        })
    }

    /// The lowest address of the prefix, as a number.
    fn first(self) -> u128 {
        number(self.address)
    }

    /// A mask of the host bits.
    fn behind_mask(self) -> u128 {
        let bits = if self.address.is_ipv4() { 32 } else { 128 };
        let open = u32::from(bits - self.length.min(bits));
        1u128.checked_shl(open).map_or(u128::MAX, |one| one - 1)
    }

    /// Whether the prefix is IPv4, with its lowest and highest address.
    fn range(self) -> (bool, (u128, u128)) {
        let range = (self.first(), self.first() | self.behind_mask());
        match plain_address(self.address) {
            // A prefix of IPv4-mapped addresses.
            plain @ IpAddr::V4(_) if self.address.is_ipv6() && self.length >= 96 => {
                let first = number(plain);
                (true, (first, first | self.behind_mask()))
            }
            _ => (self.address.is_ipv4(), range),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Whether a prefix allows or denies its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Allows the addresses unless another prefix denies them.
    Allow,
    /// Denies the addresses, whatever other prefixes allow.
    Deny,
}

/// A set of allowed addresses. The default is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpSet {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

/// Sorted, disjoint ranges. First and last addresses are in separate arrays, so that a search reads only the first
/// ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges<T> {
    firsts: Vec<T>,
    lasts: Vec<T>,
}

impl<T: Copy + Ord> Ranges<T> {
    fn contain(&self, address: T) -> bool {
        let after = self.firsts.partition_point(|first| *first <= address);
        after
            .checked_sub(1)
            .and_then(|index| self.lasts.get(index))
            .is_some_and(|last| address <= *last)
    }
}

impl IpSet {
    /// Builds the set. The order of the prefixes does not matter.
    pub fn of(prefixes: impl IntoIterator<Item = (Verdict, Prefix)>) -> Self {
        let (mut allowed, mut denied) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (verdict, prefix) in prefixes {
            let [v6, v4] = match verdict {
                Verdict::Allow => &mut allowed,
                Verdict::Deny => &mut denied,
            };
            let (is_v4, range) = prefix.range();
            if is_v4 { v4 } else { v6 }.push(range);
        }
        let ([v6, v4], [not_v6, not_v4]) = (allowed, denied);
        let low = |number: u128| u32::try_from(number).unwrap_or(u32::MAX);
        let v4 = without(united(v4), &united(not_v4));
        let (firsts, lasts) = without(united(v6), &united(not_v6)).into_iter().unzip();
        Self {
            v4: Ranges {
                firsts: v4.iter().map(|range| low(range.0)).collect(),
                lasts: v4.iter().map(|range| low(range.1)).collect(),
            },
            v6: Ranges { firsts, lasts },
        }
    }

    /// Whether the address is in the set.
    pub fn contains(&self, address: IpAddr) -> bool {
        match plain_address(address) {
            IpAddr::V4(address) => self.v4.contain(u32::from(address)),
            IpAddr::V6(address) => self.v6.contain(u128::from(address)),
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// First and last address, both inclusive.
type Range = (u128, u128);

/// Merges ranges into sorted ranges that neither overlap nor touch.
fn united(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut united: Vec<Range> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match united.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => united.push((first, last)),
        }
    }
    united
}

/// Subtracts `removed` from `ranges`. Both are results of [`united`].
fn without(ranges: Vec<Range>, removed: &[Range]) -> Vec<Range> {
    let mut left = Vec::with_capacity(ranges.len());
    let mut removed = removed.iter().peekable();
    for (mut first, last) in ranges {
        loop {
            match removed.peek() {
                Some((_, end)) if *end < first => {
                    removed.next();
                }
                Some((begin, end)) if *begin <= last => {
                    if first < *begin {
                        left.push((first, *begin - 1));
                    }
                    if *end >= last {
                        break;
                    }
                    first = *end + 1;
                }
                _ => {
                    left.push((first, last));
                    break;
                }
            }
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text).unwrap()
    }

    #[test]
    fn prefixes() {
        for (text, expected) in [
            ("192.0.2.0/24", Ok("192.0.2.0/24")),
            ("0.0.0.0/0", Ok("0.0.0.0/0")),
            ("::/0", Ok("::/0")),
            ("2001:DB8:0::/48", Ok("2001:db8::/48")),
            ("::1/128", Ok("::1/128")),
            ("192.0.2.1", Err(NotAPrefix::NoMask)),
            ("::1", Err(NotAPrefix::NoMask)),
            ("192.0.2.1/24", Err(NotAPrefix::HostBits)),
            ("2001:db8::1/64", Err(NotAPrefix::HostBits)),
            ("::1/0", Err(NotAPrefix::HostBits)),
            ("", Err(NotAPrefix::Malformed)),
            ("/", Err(NotAPrefix::Malformed)),
            ("example.com/24", Err(NotAPrefix::Malformed)),
            ("192.0.2.0/33", Err(NotAPrefix::Malformed)),
            ("192.0.2.0/024", Err(NotAPrefix::Malformed)),
            ("192.0.2.0/+24", Err(NotAPrefix::Malformed)),
            ("192.0.2.0/", Err(NotAPrefix::Malformed)),
            ("192.0.2.0/24/1", Err(NotAPrefix::Malformed)),
            ("192.0.2.0/255.255.255.0", Err(NotAPrefix::Malformed)),
            ("::/129", Err(NotAPrefix::Malformed)),
            ("fe80::%eth0/64", Err(NotAPrefix::Malformed)),
            (" 10.0.0.0/8", Err(NotAPrefix::Malformed)),
        ] {
            let read = Prefix::parse(text).map(|prefix| prefix.to_string());
            assert_eq!(
                read.as_deref(),
                expected.as_ref().map(|text| *text),
                "{text}"
            );
        }
    }

    #[test]
    fn prefixes_that_leave_out_less_than_half_are_everywhere() {
        for (texts, expected) in [
            ("0.0.0.0/0", true),
            ("::/0", true),
            ("::ffff:0:0/96", true),
            ("0.0.0.0/1", true),
            ("0.0.0.0/1 128.0.0.0/1", true),
            ("128.0.0.0/2 10.0.0.0/8 64.0.0.0/2", true),
            ("128.0.0.0/2 64.0.0.0/3 128.0.0.0/2", false),
            ("0.0.0.0/2 ::/3", false),
            ("2000::/3", true),
            ("2000::/4", true),
            ("2000::/5 2800::/6 3800::/6", true),
            ("2000::/5 2000::/6 3800::/6", false),
            ("4000::/2 fc00::/7", false),
            ("192.0.2.1/32 ::/0", true),
            ("192.0.2.1/32", false),
            ("", false),
        ] {
            let prefixes = texts.split_whitespace().map(prefix);
            assert_eq!(Prefix::are_everywhere(prefixes), expected, "{texts}");
        }
    }

    #[test]
    fn a_prefix_may_be_one_address() {
        let of = |text: &str| Prefix::of(text.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.1"), "192.0.2.1/32");
        assert_eq!(of("::ffff:192.0.2.1"), "192.0.2.1/32");
        assert_eq!(of("2001:db8::1"), "2001:db8::1/128");
    }

    #[test]
    fn an_address_is_admitted_if_allowed_and_not_denied() {
        let set = IpSet::of([
            (Verdict::Deny, prefix("10.1.0.0/16")),
            (Verdict::Allow, prefix("10.0.0.0/8")),
            (Verdict::Allow, prefix("10.1.2.0/24")),
            (Verdict::Allow, prefix("::ffff:192.0.2.0/120")),
            (Verdict::Allow, prefix("2001:db8::/32")),
            (Verdict::Deny, prefix("2001:db8::1/128")),
        ]);
        for (address, admitted) in [
            ("10.0.0.0", true),
            ("10.0.255.255", true),
            ("10.1.0.0", false),
            ("10.1.2.3", false),
            ("10.2.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("::ffff:10.0.0.1", true),
            ("192.0.2.77", true),
            ("::ffff:192.0.2.77", true),
            ("2001:db8::", true),
            ("2001:db8::1", false),
            ("2001:db9::", false),
        ] {
            assert_eq!(
                set.contains(address.parse().unwrap()),
                admitted,
                "{address}"
            );
        }
        let nobody = IpSet::of([(Verdict::Deny, prefix("10.0.0.0/8"))]);
        assert_eq!(nobody, IpSet::default());
        let everybody = IpSet::of(["0.0.0.0/0", "::/0"].map(|all| (Verdict::Allow, prefix(all))));
        for address in ["0.0.0.0", "255.255.255.255", "::", "ffff::ffff"] {
            assert!(everybody.contains(address.parse().unwrap()), "{address}");
        }
    }

    /// Prefixes with few distinct bits, so that they often overlap.
    fn some_prefix() -> impl Strategy<Value = Prefix> {
        (any::<bool>(), 0u8..=12, 0u128..4096, any::<bool>()).prop_map(
            |(is_v4, open, host, at_the_end)| {
                let base = if at_the_end { u128::MAX - 4095 } else { 0 };
                let first = (base | host) >> open << open;
                let address = if is_v4 {
                    let low = u32::try_from(first & u128::from(u32::MAX)).unwrap();
                    IpAddr::V4(Ipv4Addr::from(low))
                } else {
                    IpAddr::V6(Ipv6Addr::from(first))
                };
                let bits = if is_v4 { 32 } else { 128 };
                Prefix::parse(&format!("{address}/{}", bits - open)).unwrap()
            },
        )
    }

    fn scan(prefixes: &[(Verdict, Prefix)], address: IpAddr) -> bool {
        let has = |wanted: Verdict| {
            prefixes.iter().any(|(verdict, prefix)| {
                *verdict == wanted
                    && prefix.address.is_ipv4() == address.is_ipv4()
                    && number(address) & !prefix.behind_mask() == prefix.first()
            })
        };
        has(Verdict::Allow) && !has(Verdict::Deny)
    }

    proptest! {
        #[test]
        fn a_set_decides_as_a_scan_does(
            prefixes in proptest::collection::vec(
                (prop_oneof![Just(Verdict::Allow), Just(Verdict::Allow), Just(Verdict::Deny)], some_prefix()),
                0..40,
            ),
            hosts in proptest::collection::vec(0u32..4096, 40),
        ) {
            let set = IpSet::of(prefixes.iter().copied());
            let ends = prefixes.iter().flat_map(|(_, prefix)| {
                let (_, (first, last)) = prefix.range();
                [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
            });
            let numbers = hosts.iter().flat_map(|host| {
                [u128::from(*host), u128::MAX - u128::from(*host)]
            });
            for number in numbers.chain(ends) {
                let low = u32::try_from(number & u128::from(u32::MAX)).unwrap();
                let v4 = IpAddr::V4(Ipv4Addr::from(low));
                prop_assert_eq!(set.contains(v4), scan(&prefixes, v4), "{}", v4);
                let v6 = IpAddr::V6(Ipv6Addr::from(number));
                if plain_address(v6) == v6 {
                    prop_assert_eq!(set.contains(v6), scan(&prefixes, v6), "{}", v6);
                }
            }
        }

        #[test]
        fn any_text_is_a_prefix_or_not(text in "\\PC{0,40}|[0-9.:a-f/]{0,24}") {
            if let Ok(prefix) = Prefix::parse(&text) {
                prop_assert_eq!(Prefix::parse(&prefix.to_string()), Ok(prefix));
            }
        }
    }
}
