//! What the owner of a credential may bind, as a list of rules (contract: management API 2.16).
//!
//! A rule is `*`, or `bind:` and one of: a domain, `*.` and a domain, `host:port`, `key=value` with `*`
//! allowed on either side, `*`. An empty list allows everything. Rules are stored unchanged and in order.

use std::ops::Deref;

use culvert_base::net::HostName;
use serde::{Deserialize, Serialize};

/// Limit of rules of one list.
pub const RULES_MAX: usize = 256;
/// Longest rule, in bytes: enough for a host name of full length with a port.
pub const RULE_BYTES_MAX: usize = 512;

/// A list of valid rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Acl(Vec<String>);

/// Why a list is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAcl {
    /// The list has more rules than the limit.
    #[error("the ACL has more than {RULES_MAX} rules")]
    TooMany,
    /// A rule has more bytes than the limit.
    #[error("a rule is longer than {RULE_BYTES_MAX} bytes")]
    TooLong,
    /// The rule at this place, counted from 1, is malformed.
    #[error(
        "rule {0} must be `*` or `bind:` followed by a domain, `*.` and a domain, `host:port`, \
         `key=value` or `*`"
    )]
    Rule(usize),
}

/// What a caller binds.
#[derive(Clone, Copy, Debug)]
pub enum Bound<'a> {
    /// A host or a wildcard.
    Host(&'a str),
    /// A `host:port`.
    Address(&'a str),
    /// A label and its value.
    Label(&'a str, &'a str),
}

impl Acl {
    /// Whether the rules allow it.
    pub fn admits(&self, bound: Bound<'_>) -> bool {
        self.0.is_empty() || self.0.iter().any(|rule| admits(rule, bound))
    }
}

fn admits(rule: &str, bound: Bound<'_>) -> bool {
    let Some(rule) = rule.strip_prefix("bind:") else {
        return rule == "*";
    };
    if rule == "*" {
        return true;
    }
    match bound {
        Bound::Label(key, value) => rule.split_once('=').is_some_and(|(keys, values)| {
            (keys == "*" || keys == key) && (values == "*" || values == value)
        }),
        Bound::Address(address) => rule.eq_ignore_ascii_case(address),
        Bound::Host(host) => match rule.strip_prefix("*.") {
            Some(base) => HostName::parse(base).is_ok_and(|base| {
                let below = host.strip_suffix(&*base);
                below.is_some_and(|below| below.ends_with('.'))
            }),
            None => HostName::parse(rule).is_ok_and(|name| *name == *host),
        },
    }
}

impl TryFrom<Vec<String>> for Acl {
    type Error = BadAcl;

    fn try_from(rules: Vec<String>) -> Result<Self, BadAcl> {
        if rules.len() > RULES_MAX {
            return Err(BadAcl::TooMany);
        }
        for (index, rule) in rules.iter().enumerate() {
            if rule.len() > RULE_BYTES_MAX {
                return Err(BadAcl::TooLong);
            }
            if !is_rule(rule) {
                return Err(BadAcl::Rule(index + 1));
            }
        }
        Ok(Self(rules))
    }
}

impl From<Acl> for Vec<String> {
    fn from(acl: Acl) -> Self {
        acl.0
    }
}

impl Deref for Acl {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

fn is_rule(rule: &str) -> bool {
    let Some(bound) = rule.strip_prefix("bind:") else {
        return rule == "*";
    };
    if bound == "*" {
        return true;
    }
    if let Some((key, value)) = bound.split_once('=') {
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic());
        return is_word(key) && is_word(value);
    }
    match bound.rsplit_once(':') {
        Some((host, port)) => is_host(host) && is_port(port),
        None => is_host(bound.strip_prefix("*.").unwrap_or(bound)),
    }
}

fn is_host(text: &str) -> bool {
    // The name parser ignores surrounding blanks, but the rule is shown as it was sent.
    let is_plain = !text.contains(|c: char| c == '*' || c.is_whitespace());
    is_plain && HostName::parse(text).is_ok()
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn acl_rules_are_parsed_or_refused() {
        for rule in [
            "*",
            "bind:*",
            "bind:example.com",
            "bind:*.example.com",
            "bind:1.tcp.example.com:20000",
            "bind:edge=edghts_1",
            "bind:team=*",
            "bind:*=a",
            "bind:*=*",
        ] {
            assert!(is_rule(rule), "{rule}");
        }
        for rule in [
            "",
            "**",
            "bind:",
            "bind",
            "Bind:example.com",
            "example.com",
            "bind: example.com",
            "bind:exa mple.com",
            "bind:*.*.example.com",
            "bind:a.*.example.com",
            "bind:example.com:0",
            "bind:example.com:65536",
            "bind:example.com:+80",
            "bind:example.com:",
            "bind::80",
            "bind:=a",
            "bind:a=",
            "bind:a=b c",
            "bind:https://example.com",
        ] {
            assert!(!is_rule(rule), "{rule}");
        }
    }

    #[test]
    fn an_acl_decides_which_addresses_may_be_bound() {
        let list = |rules: &[&str]| {
            let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
            Acl::try_from(rules).unwrap()
        };
        let host = Bound::Host("a.b.example");
        let address = Bound::Address("1.tcp.example:20000");
        let label = Bound::Label("team", "red");
        for (rules, expected) in [
            (&[][..], [true, true, true]),
            (&["*"], [true, true, true]),
            (&["bind:*"], [true, true, true]),
            (&["bind:a.b.example"], [true, false, false]),
            (&["bind:A.B.example"], [true, false, false]),
            (&["bind:*.b.example"], [true, false, false]),
            (&["bind:*.example"], [true, false, false]),
            (&["bind:b.example"], [false, false, false]),
            (&["bind:*.a.b.example"], [false, false, false]),
            (&["bind:1.tcp.example:20000"], [false, true, false]),
            (&["bind:1.tcp.example:20001"], [false, false, false]),
            (&["bind:1.tcp.example"], [false, false, false]),
            (&["bind:team=red"], [false, false, true]),
            (&["bind:*=red"], [false, false, true]),
            (&["bind:team=*"], [false, false, true]),
            (&["bind:team=blue"], [false, false, false]),
            (&["bind:team=blue", "bind:*.example"], [true, false, false]),
        ] {
            let list = list(rules);
            let admitted = [host, address, label].map(|bound| list.admits(bound));
            assert_eq!(admitted, expected, "{rules:?}");
        }
        assert!(list(&["bind:*.b.example"]).admits(Bound::Host("*.b.example")));
        assert!(!list(&["bind:a.b.example"]).admits(Bound::Host("*.b.example")));
    }

    #[test]
    fn acls_have_a_length_limit() {
        let many = |n| Acl::try_from(vec!["*".to_owned(); n]);
        assert_eq!(many(RULES_MAX).unwrap().len(), RULES_MAX);
        assert_eq!(many(RULES_MAX + 1), Err(BadAcl::TooMany));
        let long = format!("bind:a={}", "b".repeat(RULE_BYTES_MAX));
        assert_eq!(Acl::try_from(vec![long]), Err(BadAcl::TooLong));
        let second = Acl::try_from(vec!["*".to_owned(), "x".to_owned()]);
        assert_eq!(second, Err(BadAcl::Rule(2)));
    }

    proptest! {
        #[test]
        fn any_text_is_a_rule_or_refused(rule in "(bind:)?[*.:=a-z0-9é\\[\\]-]{0,40}") {
            if is_rule(&rule) {
                prop_assert!(rule == "*" || rule.starts_with("bind:"));
            }
        }
    }
}
