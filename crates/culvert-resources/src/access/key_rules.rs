//! The rules of an account about its API keys: how old they may get, and what they must be restricted to.
//!
//! They are stored in the document of the account, which authentication has in memory with the standing of an owner, so a
//! call costs no further read. A form that cannot be read refuses every call.

use std::time::Duration;

use culvert_base::{Prefix, Refusal, Timestamp, code};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::caller::Role;
use crate::access::key_restrictions::KeyRestrictions;

/// Bounds of the maximum age, in days.
pub const AGE_DAYS: (u32, u32) = (1, 3650);

const DAY: Duration = Duration::from_secs(86_400);

/// What happens to a key that breaks a rule.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "KeyRuleStrictness")]
pub enum Strictness {
    /// Nothing.
    #[default]
    Off,
    /// It is reported.
    Warn,
    /// It is refused.
    Refuse,
}

impl Strictness {
    /// The one with this name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Self::Off),
            "warn" => Some(Self::Warn),
            "refuse" => Some(Self::Refuse),
            _ => None,
        }
    }
}

/// The rules. The default has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct KeyRules {
    /// For tokens that are older than `maximum_age_days`.
    pub maximum_age: Strictness,
    /// The maximum age of a token in days, from the creation or the last rotation of its key.
    pub maximum_age_days: u32,
    /// For keys without an end.
    pub required_end: Strictness,
    /// For keys with the role of an admin that work from anywhere.
    pub admin_networks: Strictness,
}

impl Default for KeyRules {
    fn default() -> Self {
        Self {
            maximum_age: Strictness::Off,
            maximum_age_days: 365,
            required_end: Strictness::Off,
            admin_networks: Strictness::Off,
        }
    }
}

/// A rule that a key can break.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "KeyRule")]
pub enum KeyRule {
    /// Its token is older than the maximum age.
    MaximumAge,
    /// It has no end.
    RequiredEnd,
    /// It has the role of an admin, and works from anywhere.
    AdminNetworks,
}

/// What the rules look at.
#[derive(Clone, Copy, Debug)]
pub struct JudgedKey<'a> {
    /// The restrictions of the key.
    pub restrictions: &'a KeyRestrictions,
    /// When it got its token.
    pub issued_at: Timestamp,
    /// The role of its owner.
    pub owner_role: Role,
}

impl JudgedKey<'_> {
    fn is_admin(&self) -> bool {
        self.owner_role == Role::Admin && self.restrictions.role.is_none_or(|r| r == Role::Admin)
    }

    /// Whether its networks together keep it from less than half of the Internet.
    fn is_anywhere(&self) -> bool {
        let networks = &self.restrictions.networks;
        networks.is_empty() || Prefix::are_everywhere(networks.iter().map(|network| network.0))
    }
}

impl KeyRules {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// When a token of this time gets too old, if there is a maximum age.
    pub fn old_at(&self, issued_at: Timestamp) -> Option<Timestamp> {
        let has = self.maximum_age != Strictness::Off;
        has.then(|| issued_at.plus(DAY.saturating_mul(self.maximum_age_days)))
    }

    /// When a token of this time stops working because of its age.
    pub fn ends_at(&self, issued_at: Timestamp) -> Option<Timestamp> {
        self.old_at(issued_at)
            .filter(|_| self.maximum_age == Strictness::Refuse)
    }

    /// Whether a token of this time is refused because of its age.
    pub fn is_too_old(&self, issued_at: Timestamp, now: Timestamp) -> bool {
        self.ends_at(issued_at).is_some_and(|end| end <= now)
    }

    /// What the rule says of keys that break it.
    pub const fn strictness(&self, rule: KeyRule) -> Strictness {
        match rule {
            KeyRule::MaximumAge => self.maximum_age,
            KeyRule::RequiredEnd => self.required_end,
            KeyRule::AdminNetworks => self.admin_networks,
        }
    }

    /// The rules in force that the key breaks.
    pub fn broken(&self, key: JudgedKey<'_>, now: Timestamp) -> Vec<KeyRule> {
        let breaks = [
            (
                KeyRule::MaximumAge,
                self.old_at(key.issued_at).is_some_and(|at| at <= now),
            ),
            (KeyRule::RequiredEnd, key.restrictions.expires_at.is_none()),
            (KeyRule::AdminNetworks, key.is_admin() && key.is_anywhere()),
        ];
        let in_force = breaks
            .into_iter()
            .filter(|(rule, is_broken)| *is_broken && self.strictness(*rule) != Strictness::Off);
        in_force.map(|(rule, _)| rule).collect()
    }

    /// Refuses a key that breaks these rules, if one of them says so (653). Not for its age, which ends the token itself.
    pub fn check(&self, broken: &[KeyRule]) -> Result<(), Refusal> {
        for rule in broken {
            if self.strictness(*rule) != Strictness::Refuse {
                continue;
            }
            let why = match rule {
                KeyRule::MaximumAge => continue,
                KeyRule::RequiredEnd => {
                    "The account requires an end of every API key (rule `required_end`): set `expires_at`."
                }
                KeyRule::AdminNetworks => {
                    "The account requires networks of API keys with the role `admin` (rule `admin_networks`): set \
                     `networks`, or a lower `role`."
                }
            };
            return Err(Refusal::new(code::API_KEY_BREAKS_RULE, why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restrictions(text: &str) -> KeyRestrictions {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_key_breaks_the_rules_in_force() {
        let start = Timestamp::from_unix_seconds(1_800_000_000);
        let rules = KeyRules {
            maximum_age: Strictness::Warn,
            maximum_age_days: 30,
            required_end: Strictness::Warn,
            admin_networks: Strictness::Refuse,
        };
        let end = r#""expires_at":"2099-01-01T00:00:00Z""#;
        use KeyRule::*;
        for (text, role, days, expected) in [
            (
                "{}".to_owned(),
                Role::Admin,
                0,
                vec![RequiredEnd, AdminNetworks],
            ),
            ("{}".to_owned(), Role::Member, 29, vec![RequiredEnd]),
            (
                "{}".to_owned(),
                Role::Member,
                30,
                vec![MaximumAge, RequiredEnd],
            ),
            (format!("{{{end}}}"), Role::ReadOnly, 0, vec![]),
            (
                format!(r#"{{{end},"role":"member"}}"#),
                Role::Admin,
                0,
                vec![],
            ),
            (
                format!(r#"{{{end},"role":"admin"}}"#),
                Role::Admin,
                0,
                vec![AdminNetworks],
            ),
            (
                format!(r#"{{{end},"networks":["192.0.2.0/24"]}}"#),
                Role::Admin,
                0,
                vec![],
            ),
            // Every address of a family is anywhere.
            (
                format!(r#"{{{end},"networks":["192.0.2.0/24","::/0"]}}"#),
                Role::Admin,
                0,
                vec![AdminNetworks],
            ),
            // So are its two halves.
            (
                format!(r#"{{{end},"networks":["0.0.0.0/1","128.0.0.0/1"]}}"#),
                Role::Admin,
                0,
                vec![AdminNetworks],
            ),
        ] {
            let restrictions = restrictions(&text);
            let key = JudgedKey {
                restrictions: &restrictions,
                issued_at: start,
                owner_role: role,
            };
            let now = start.plus(DAY * days);
            let broken = rules.broken(key, now);
            assert_eq!(broken, expected, "{text} {role:?} {days}");
            let is_refused = expected.contains(&AdminNetworks);
            assert_eq!(rules.check(&broken).is_err(), is_refused, "{text}");
            assert!(KeyRules::default().broken(key, now).is_empty());
            assert!(!rules.is_too_old(start, now), "it only warns");
        }
    }

    #[test]
    fn only_refusal_ends_a_token_because_of_its_age() {
        let start = Timestamp::from_unix_seconds(1_800_000_000);
        let rules = KeyRules {
            maximum_age: Strictness::Refuse,
            maximum_age_days: 1,
            ..KeyRules::default()
        };
        let end = start.plus(DAY);
        assert_eq!(rules.ends_at(start), Some(end));
        assert!(rules.is_too_old(start, end));
        assert!(!rules.is_too_old(start, end.minus(Duration::from_secs(1))));
        assert!(rules.check(&[KeyRule::MaximumAge]).is_ok());
        let warns = KeyRules {
            maximum_age: Strictness::Warn,
            ..rules
        };
        assert_eq!(warns.ends_at(start), None);
        assert_eq!(warns.old_at(start), Some(end));
    }

    /// A rule of a later version is not taken for none.
    #[test]
    fn a_rule_that_is_not_known_cannot_be_read() {
        let read = |text: &str| serde_json::from_str::<KeyRules>(text);
        assert_eq!(read("{}").unwrap(), KeyRules::default());
        assert!(read(r#"{"required_end":"deny"}"#).is_err());
    }
}
