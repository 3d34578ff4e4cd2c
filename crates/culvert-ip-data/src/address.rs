//! The client addresses that a policy admits: inline prefixes, and IP policies whose rules may change.

use std::net::IpAddr;

use arc_swap::ArcSwap;
use culvert_base::net::plain_address;
use culvert_base::{IpSet, Prefix, Verdict};

/// Prefixes that allow and deny. An address is admitted when it is allowed and not denied.
#[derive(Debug, Default)]
pub struct Addresses {
    rules: Vec<(Verdict, Prefix)>,
    allowed: IpSet,
    denied: IpSet,
    /// Whether the rules are known. Without them every address is denied.
    is_known: bool,
}

impl Addresses {
    /// A policy with these rules.
    pub fn of(rules: Vec<(Verdict, Prefix)>) -> Self {
        let only = |wanted: Verdict| {
            let prefixes = rules.iter().filter(move |(verdict, _)| *verdict == wanted);
            IpSet::of(prefixes.map(|(_, prefix)| (Verdict::Allow, *prefix)))
        };
        Self {
            allowed: only(Verdict::Allow),
            denied: only(Verdict::Deny),
            rules,
            is_known: true,
        }
    }

    /// Whether a rule allows an address.
    pub fn allows(&self, address: IpAddr) -> bool {
        self.allowed.contains(address)
    }

    /// Whether a rule denies an address.
    pub fn denies(&self, address: IpAddr) -> bool {
        !self.is_known || self.denied.contains(address)
    }

    /// The first prefix with that verdict that contains the address.
    pub fn matched(&self, wanted: Verdict, address: IpAddr) -> Option<String> {
        let has = |prefix: Prefix| IpSet::of([(Verdict::Allow, prefix)]).contains(address);
        self.rules
            .iter()
            .find(|(verdict, prefix)| *verdict == wanted && has(*prefix))
            .map(|(_, prefix)| prefix.to_string())
    }
}

/// The rules of an IP policy. A change applies to the next request of every policy that uses it.
/// While it has no rules, before the first and after its removal, it denies every address.
#[derive(Debug, Default)]
pub struct IpPolicy(ArcSwap<Addresses>);

impl IpPolicy {
    /// An IP policy of these rules; without rules it denies every address.
    pub fn new(rules: Vec<(Verdict, Prefix)>) -> Self {
        Self(ArcSwap::from_pointee(Addresses::of(rules)))
    }

    /// Replaces the rules.
    pub fn replace(&self, rules: Vec<(Verdict, Prefix)>) {
        self.0.store(std::sync::Arc::new(Addresses::of(rules)));
    }

    /// Notes that the policy no longer exists. It then denies every address.
    pub fn vanish(&self) {
        self.0.store(std::sync::Arc::default());
    }

    /// The current rules.
    pub fn now(&self) -> arc_swap::Guard<std::sync::Arc<Addresses>> {
        self.0.load()
    }
}

/// Parses an address or a prefix. Clears the bits of a prefix after its mask.
pub fn prefix(text: &str) -> Option<Prefix> {
    let text = text.trim();
    let network = match text.split_once('/') {
        Some(_) => text.parse::<ipnet::IpNet>().ok()?.trunc(),
        None => ipnet::IpNet::from(plain_address(text.parse().ok()?)),
    };
    Prefix::parse(&network.to_string()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_prefixes_match() {
        for (text, read) in [
            ("192.0.2.7", Some("192.0.2.7/32")),
            ("192.0.2.7/24", Some("192.0.2.0/24")),
            ("2001:db8::1", Some("2001:db8::1/128")),
            ("2001:db8::1/32", Some("2001:db8::/32")),
            ("::ffff:192.0.2.7", Some("192.0.2.7/32")),
            ("192.0.2.7/33", None),
            ("example.com", None),
            ("", None),
        ] {
            assert_eq!(
                prefix(text).map(|p| p.to_string()).as_deref(),
                read,
                "{text}"
            );
        }
    }
}
