//! The restrictions of an API key: what it may do less than its owner (a role, scopes, networks, an end).
//!
//! They are stored in the key's document, which is read for every call anyway, so they take effect on every node
//! immediately and cost no further read. Keys that a restricted key creates inherit its restrictions, and a restricted
//! key cannot give any key more than it has itself.

use std::net::IpAddr;

use culvert_base::net::plain_address;
use culvert_base::{Prefix, Refusal, Timestamp, code};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::access::caller::{Caller, Role};
use crate::access::right::{Right, Scope, Scopes};

/// Limit of networks of one key.
pub const NETWORKS_MAX: usize = 32;

/// The restrictions of a key. The default restricts nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct KeyRestrictions {
    /// The highest role of the key. The owner's role counts if it is lower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The scopes of the key; none for all.
    #[serde(skip_serializing_if = "Scopes::is_empty")]
    pub scopes: Scopes,
    /// When the key stops working.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Where the key may be used; none for anywhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
}

/// A network that a key may be used from; stored and shown as `192.0.2.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(pub Prefix);

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Prefix::parse(&text).map(Self).map_err(de::Error::custom)
    }
}

impl KeyRestrictions {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses a key that has expired (640).
    pub fn check_time(&self, now: Timestamp) -> Result<(), Refusal> {
        match self.expires_at {
            Some(end) if end <= now => Err(Refusal::of(code::API_KEY_EXPIRED)),
            _ => Ok(()),
        }
    }

    /// Refuses a call from an address outside of the key's networks (641).
    pub fn check_address(&self, address: IpAddr) -> Result<(), Refusal> {
        let is_admitted = |network: &Network| network.0.contains(address);
        if self.networks.is_empty() || self.networks.iter().any(is_admitted) {
            return Ok(());
        }
        Err(Refusal::new(
            code::API_KEY_OUTSIDE_NETWORKS,
            format!(
                "The API key may not be used from the address {}.",
                plain_address(address)
            ),
        ))
    }

    /// Whether an admin's key with them is a way in.
    pub fn is_way_in(&self) -> bool {
        let plain = Self {
            role: self.role.filter(|role| *role != Role::Admin),
            ..self.clone()
        };
        plain.is_none()
    }

    /// Whether a key with these restrictions can do nothing that a key of the same owner with `other` cannot.
    pub fn is_within(&self, other: &Self) -> bool {
        let role = match (self.role, other.role) {
            (_, None) => true,
            (Some(role), Some(highest)) => role <= highest,
            (None, Some(_)) => false,
        };
        let has_scopes = other.scopes.is_empty()
            || (!self.scopes.is_empty() && self.scopes.is_within(other.scopes));
        let ends = match (self.expires_at, other.expires_at) {
            (_, None) => true,
            (Some(end), Some(last)) => end <= last,
            (None, Some(_)) => false,
        };
        let is_inside = |network: &Network| {
            other
                .networks
                .iter()
                .any(|wide| network.0.is_within(wide.0))
        };
        let has_networks = other.networks.is_empty()
            || (!self.networks.is_empty() && self.networks.iter().all(is_inside));
        role && has_scopes && ends && has_networks
    }
}

impl Caller {
    /// The restrictions of the caller's key.
    pub fn restrictions(&self) -> KeyRestrictions {
        self.restrictions.as_deref().cloned().unwrap_or_default()
    }

    /// Refuses an operation whose scope the caller's key does not have (642). The operation checks the role, once
    /// it knows the object.
    pub fn check_scope(&self, right: Right) -> Result<(), Refusal> {
        let Some((scope, restrictions)) = right.scope.zip(self.restrictions.as_deref()) else {
            return Ok(());
        };
        if restrictions.scopes.is_empty() || restrictions.scopes.has(scope) {
            return Ok(());
        }
        Err(Refusal::new(
            code::API_KEY_LACKS_SCOPE,
            format!("The API key does not have the scope `{scope}`."),
        ))
    }

    /// Whether the caller may call an operation with this right on its own objects.
    pub fn may(&self, right: Right) -> bool {
        self.role >= right.role && self.check_scope(right).is_ok()
    }

    /// Refuses to give a key these restrictions (643), unless they are within those of the caller's own key.
    pub fn may_give(&self, restrictions: &KeyRestrictions) -> Result<(), Refusal> {
        match &self.restrictions {
            Some(own) if !restrictions.is_within(own) => {
                Err(Refusal::of(code::API_KEY_CANNOT_WIDEN))
            }
            _ => Ok(()),
        }
    }

    /// Refuses to invite a person or to give one more rights (643), unless the caller's key is unrestricted: people
    /// have no restrictions.
    pub fn may_invite(&self) -> Result<(), Refusal> {
        self.must_be_unrestricted("A restricted API key cannot invite users or raise their role.")
    }

    /// Refuses to activate a person or bot (643), unless the caller's key is unrestricted: the keys and credentials of
    /// that owner, which work again, do not have its restrictions.
    pub fn may_activate(&self) -> Result<(), Refusal> {
        self.must_be_unrestricted("A restricted API key cannot activate users.")
    }

    fn must_be_unrestricted(&self, why: &'static str) -> Result<(), Refusal> {
        if self.restrictions().is_none() {
            return Ok(());
        }
        Err(Refusal::new(code::API_KEY_CANNOT_WIDEN, why))
    }

    /// Refuses to make a credential or an SSH certificate (643) whose rights would exceed those of the caller's key: it
    /// would have its owner's role, without the end and the networks of the key, and agents could serve endpoints with
    /// it, whose policies use secrets.
    pub fn may_make_credentials(&self) -> Result<(), Refusal> {
        let Some(own) = &self.restrictions else {
            return Ok(());
        };
        let has_role = own.role.is_some_and(|role| role < Role::Admin);
        // The policies of agents use the secrets of their owner.
        let is_wide = own.scopes.is_empty()
            || (own.scopes.has(Scope::EndpointsWrite) && own.scopes.has(Scope::SecretsRead));
        if !has_role && is_wide && own.expires_at.is_none() && own.networks.is_empty() {
            return Ok(());
        }
        let why = "An API key with a role, an end, networks, or scopes without `endpoints.write` and `secrets.read` \
                   cannot create credentials, operators or certificates, which would not have these restrictions.";
        Err(Refusal::new(code::API_KEY_CANNOT_WIDEN, why))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> KeyRestrictions {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn empty_restrictions_are_not_stored() {
        assert_eq!(
            serde_json::to_string(&KeyRestrictions::default()).unwrap(),
            "{}"
        );
        let text = r#"{"role":"member","scopes":["keys.read"],"expires_at":"2027-01-31T00:00:00Z","networks":["192.0.2.0/24","2001:db8::/32"]}"#;
        assert_eq!(serde_json::to_string(&of(text)).unwrap(), text);
    }

    #[test]
    fn only_equal_or_narrower_restrictions_are_within_others() {
        for (own, other, is_within) in [
            ("{}", "{}", true),
            (r#"{"role":"read_only"}"#, r#"{"role":"member"}"#, true),
            (r#"{"role":"admin"}"#, r#"{"role":"member"}"#, false),
            ("{}", r#"{"role":"admin"}"#, false),
            (
                r#"{"scopes":["keys.read"]}"#,
                r#"{"scopes":["keys.write"]}"#,
                true,
            ),
            (
                r#"{"scopes":["keys.write"]}"#,
                r#"{"scopes":["keys.read"]}"#,
                false,
            ),
            ("{}", r#"{"scopes":["keys.read"]}"#, false),
            (
                r#"{"expires_at":"2027-01-01T00:00:00Z"}"#,
                r#"{"expires_at":"2027-01-02T00:00:00Z"}"#,
                true,
            ),
            (
                r#"{"expires_at":"2027-01-03T00:00:00Z"}"#,
                r#"{"expires_at":"2027-01-02T00:00:00Z"}"#,
                false,
            ),
            ("{}", r#"{"expires_at":"2027-01-02T00:00:00Z"}"#, false),
            (
                r#"{"networks":["10.1.0.0/16"]}"#,
                r#"{"networks":["10.0.0.0/8","::/0"]}"#,
                true,
            ),
            (
                r#"{"networks":["10.1.0.0/16","192.0.2.0/24"]}"#,
                r#"{"networks":["10.0.0.0/8"]}"#,
                false,
            ),
            (
                r#"{"networks":["::/0"]}"#,
                r#"{"networks":["0.0.0.0/0"]}"#,
                false,
            ),
            ("{}", r#"{"networks":["0.0.0.0/0"]}"#, false),
        ] {
            assert_eq!(of(own).is_within(&of(other)), is_within, "{own} {other}");
            assert!(of(own).is_within(&of("{}")), "{own}");
        }
    }

    #[test]
    fn a_key_works_within_its_networks_until_it_expires() {
        let key = of(r#"{"expires_at":"2027-01-01T00:00:00Z","networks":["192.0.2.0/24"]}"#);
        let end = key.expires_at.unwrap();
        assert!(
            key.check_time(end.minus(std::time::Duration::from_secs(1)))
                .is_ok()
        );
        assert_eq!(
            key.check_time(end).unwrap_err().code,
            Some(code::API_KEY_EXPIRED)
        );
        for (address, is_inside) in [
            ("192.0.2.7", true),
            ("::ffff:192.0.2.7", true),
            ("192.0.3.7", false),
            ("::1", false),
        ] {
            let checked = key.check_address(address.parse().unwrap());
            assert_eq!(checked.is_ok(), is_inside, "{address}");
        }
    }

    fn any() -> impl Strategy<Value = KeyRestrictions> {
        let role = proptest::option::of(prop_oneof![
            Just(Role::ReadOnly),
            Just(Role::Member),
            Just(Role::Admin)
        ]);
        let scopes = proptest::collection::vec(0..Scope::ALL.len(), 0..4);
        let end = proptest::option::of(0..3_i64);
        let networks = proptest::collection::vec(
            prop_oneof![
                Just("10.0.0.0/8"),
                Just("10.1.0.0/16"),
                Just("0.0.0.0/0"),
                Just("::/0")
            ],
            0..3,
        );
        (role, scopes, end, networks).prop_map(|(role, scopes, end, networks)| KeyRestrictions {
            role,
            scopes: scopes.into_iter().map(|n| Scope::ALL[n]).collect(),
            expires_at: end.map(Timestamp::from_unix_seconds),
            networks: networks
                .into_iter()
                .map(|text| Network(Prefix::parse(text).unwrap()))
                .collect(),
        })
    }

    proptest! {
        /// Whatever is within another can do nothing that the other cannot.
        #[test]
        fn restrictions_within_others_allow_no_more(own in any(), other in any()) {
            prop_assert!(own.is_within(&own));
            if own.is_within(&other) {
                for scope in Scope::ALL {
                    let has = |key: &KeyRestrictions| key.scopes.is_empty() || key.scopes.has(scope);
                    prop_assert!(!has(&own) || has(&other));
                }
                for address in ["10.1.2.3", "10.2.3.4", "192.0.2.1", "2001:db8::1"] {
                    let address = address.parse().unwrap();
                    prop_assert!(own.check_address(address).is_err() || other.check_address(address).is_ok());
                }
                for at in 0..4 {
                    let at = Timestamp::from_unix_seconds(at);
                    prop_assert!(own.check_time(at).is_err() || other.check_time(at).is_ok());
                }
                prop_assert!(own.role.unwrap_or(Role::Admin) <= other.role.unwrap_or(Role::Admin));
            }
        }
    }
}
