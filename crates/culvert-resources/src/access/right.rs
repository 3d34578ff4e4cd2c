//! The right that each operation needs: a role of the caller, and a scope of its API key.
//!
//! Roles are cumulative. Scopes name a family of resources and whether it is read or written; they only matter
//! for API keys that are restricted to some of them. Both are in the operation table, in the OpenAPI document and
//! in the API reference.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::access::caller::Role;

/// The right that an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The lowest role that may call the operation. The operation may still refuse objects of other owners.
    pub role: Role,
    /// The scope that a restricted API key needs; `None` for operations that every key may call.
    pub scope: Option<Scope>,
}

/// The right to follow events live.
pub const TAIL_RIGHT: Right = Right::read(Scope::EventsRead);

impl Right {
    /// The right to an operation that every authenticated caller may call.
    pub const ANY: Self = Self {
        role: Role::ReadOnly,
        scope: None,
    };

    /// The right to read with this scope.
    pub const fn read(scope: Scope) -> Self {
        Self {
            role: Role::ReadOnly,
            scope: Some(scope),
        }
    }
}

/// What a restricted API key may do: read or write a family of resources. To write includes to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline, extend("x-enum-descriptions" = SENTENCES))]
#[allow(missing_docs, reason = "comments without the schema's descriptions")]
pub enum Scope {
    // Agent sessions, tunnels, agent ingresses and Kubernetes operators.
    #[serde(rename = "agents.read")]
    AgentsRead,
    #[serde(rename = "agents.write")]
    AgentsWrite,
    // Application users and their sessions.
    #[serde(rename = "applications.read")]
    ApplicationsRead,
    #[serde(rename = "applications.write")]
    ApplicationsWrite,
    // Credentials of agents: tunnel credentials, SSH keys, SSH certificates and their authorities.
    #[serde(rename = "credentials.read")]
    CredentialsRead,
    #[serde(rename = "credentials.write")]
    CredentialsWrite,
    // Domains, TCP addresses, TLS certificates and certificate authorities.
    #[serde(rename = "domains.read")]
    DomainsRead,
    #[serde(rename = "domains.write")]
    DomainsWrite,
    // Endpoints with their traffic policies.
    #[serde(rename = "endpoints.read")]
    EndpointsRead,
    #[serde(rename = "endpoints.write")]
    EndpointsWrite,
    // Events, event destinations and event subscriptions, alerts and their rules, holds of audit events, statistics and the list of nodes.
    #[serde(rename = "events.read")]
    EventsRead,
    #[serde(rename = "events.write")]
    EventsWrite,
    // Grants of the right to use an object.
    #[serde(rename = "grants.read")]
    GrantsRead,
    #[serde(rename = "grants.write")]
    GrantsWrite,
    // IP policies with their rules, and IP restrictions.
    #[serde(rename = "ip_policies.read")]
    IpPoliciesRead,
    #[serde(rename = "ip_policies.write")]
    IpPoliciesWrite,
    // API keys and their restrictions.
    #[serde(rename = "keys.read")]
    KeysRead,
    #[serde(rename = "keys.write")]
    KeysWrite,
    // Vaults and their secrets.
    #[serde(rename = "secrets.read")]
    SecretsRead,
    #[serde(rename = "secrets.write")]
    SecretsWrite,
    // Users, bot users and service users.
    #[serde(rename = "users.read")]
    UsersRead,
    #[serde(rename = "users.write")]
    UsersWrite,
}

/// What a key may do with each scope, in the order of their names.
const SENTENCES: [&str; 22] = [
    "See agent sessions, tunnels, agent ingresses and Kubernetes operators.",
    "Stop, restart and update agents; change agent ingresses and Kubernetes operators.",
    "See the people who signed in to applications, and their sessions.",
    "Remove the people who signed in to applications, and end their sessions.",
    "See tunnel credentials, SSH keys and SSH certificates, without their secrets.",
    "Create, change and delete tunnel credentials, SSH keys and SSH certificates.",
    "See domains, TCP addresses and certificates.",
    "Reserve, change and release domains and TCP addresses; change certificates.",
    "See endpoints and their traffic policies.",
    "Create, change and delete endpoints and their traffic policies.",
    "See events, alerts, statistics, nodes, event destinations and subscriptions.",
    "Change event destinations, subscriptions, alert rules and holds of audit events.",
    "See grants of the right to use an object.",
    "Grant others the right to use an object, and take it back.",
    "See IP policies and IP restrictions.",
    "Change IP policies and IP restrictions.",
    "See API keys and their restrictions, without their tokens.",
    "Create, change, rotate and delete API keys, none with more rights than this key.",
    "See vaults and the names of secrets, and use secrets in traffic policies.",
    "Create, change and delete vaults and secrets.",
    "See users, bot users and service users.",
    "Create, change and delete users, bot users and service users.",
];

/// The collections of each pair of scopes.
const FAMILIES: [(Scope, Scope, &[&str]); 11] = {
    use Scope::*;
    [
        (
            AgentsRead,
            AgentsWrite,
            &[
                "agent_ingresses",
                "kubernetes_operators",
                "tunnel_sessions",
                "tunnels",
            ],
        ),
        (
            ApplicationsRead,
            ApplicationsWrite,
            &["app/sessions", "app/users"],
        ),
        (
            CredentialsRead,
            CredentialsWrite,
            &[
                "credentials",
                "ssh_certificate_authorities",
                "ssh_credentials",
                "ssh_host_certificates",
                "ssh_user_certificates",
            ],
        ),
        (
            DomainsRead,
            DomainsWrite,
            &[
                "certificate_authorities",
                "reserved_addrs",
                "reserved_domains",
                "tls_certificates",
            ],
        ),
        (EndpointsRead, EndpointsWrite, &["endpoints"]),
        (
            EventsRead,
            EventsWrite,
            &[
                "alert_rules",
                "alerts",
                "audit_holds",
                "event_destinations",
                "event_subscriptions",
                "events",
                "nodes",
                "statistics",
            ],
        ),
        (GrantsRead, GrantsWrite, &["grants"]),
        (
            IpPoliciesRead,
            IpPoliciesWrite,
            &["ip_policies", "ip_policy_rules", "ip_restrictions"],
        ),
        (KeysRead, KeysWrite, &["api_key_rules", "api_keys"]),
        (SecretsRead, SecretsWrite, &["vault_secrets", "vaults"]),
        (
            UsersRead,
            UsersWrite,
            &["bot_users", "service_users", "users"],
        ),
    ]
};

impl Scope {
    /// All scopes, by name.
    pub const ALL: [Self; 22] = {
        let mut all = [Self::AgentsRead; 22];
        let mut n = 0;
        while n < FAMILIES.len() {
            all[2 * n] = FAMILIES[n].0;
            all[2 * n + 1] = FAMILIES[n].1;
            n += 1;
        }
        all
    };

    /// The scopes to read and to write a collection; `None` for an unknown collection.
    pub fn of(collection: &str) -> Option<(Self, Self)> {
        let mut families = FAMILIES.iter();
        let (read, write, _) = families.find(|(.., names)| names.contains(&collection))?;
        Some((*read, *write))
    }

    /// The scope with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    /// As in the API: `endpoints.read`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AgentsRead => "agents.read",
            Self::AgentsWrite => "agents.write",
            Self::ApplicationsRead => "applications.read",
            Self::ApplicationsWrite => "applications.write",
            Self::CredentialsRead => "credentials.read",
            Self::CredentialsWrite => "credentials.write",
            Self::DomainsRead => "domains.read",
            Self::DomainsWrite => "domains.write",
            Self::EndpointsRead => "endpoints.read",
            Self::EndpointsWrite => "endpoints.write",
            Self::EventsRead => "events.read",
            Self::EventsWrite => "events.write",
            Self::GrantsRead => "grants.read",
            Self::GrantsWrite => "grants.write",
            Self::IpPoliciesRead => "ip_policies.read",
            Self::IpPoliciesWrite => "ip_policies.write",
            Self::KeysRead => "keys.read",
            Self::KeysWrite => "keys.write",
            Self::SecretsRead => "secrets.read",
            Self::SecretsWrite => "secrets.write",
            Self::UsersRead => "users.read",
            Self::UsersWrite => "users.write",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of scopes. With a scope to write, it has the one to read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes(u32);

impl Scopes {
    /// Whether the set is empty.
    pub const fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// Whether `scope` is in the set.
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// Whether every scope of this set is in `other`.
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The scopes, by name.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.has(*scope))
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        let mut bits = 0;
        for scope in scopes {
            bits |= scope.bit();
            let read = FAMILIES.iter().find(|(_, write, _)| *write == scope);
            bits |= read.map_or(0, |(read, ..)| read.bit());
        }
        Self(bits)
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for Scopes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Scopes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Scope>::deserialize(deserializer)?
            .into_iter()
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_sorted_by_name() {
        assert!(Scope::ALL.is_sorted_by_key(|scope| scope.name()));
        for scope in Scope::ALL {
            let text = serde_json::to_string(&scope).unwrap();
            assert_eq!(text, format!("\"{scope}\""));
        }
        let bits: u32 = Scope::ALL.into_iter().map(Scope::bit).sum();
        assert_eq!(bits.count_ones(), 22);
    }

    #[test]
    fn a_write_scope_includes_reading() {
        let write: Scopes = [Scope::KeysWrite].into_iter().collect();
        let read: Scopes = [Scope::KeysRead].into_iter().collect();
        assert!(write.has(Scope::KeysRead) && write.has(Scope::KeysWrite));
        assert!(read.is_within(write) && !write.is_within(read));
        assert!(!read.has(Scope::KeysWrite) && !read.has(Scope::UsersRead));
        let text = serde_json::to_string(&write).unwrap();
        assert_eq!(text, "[\"keys.read\",\"keys.write\"]");
        assert_eq!(serde_json::from_str::<Scopes>(&text).unwrap(), write);
        assert!(serde_json::from_str::<Scopes>("[\"keys.eat\"]").is_err());
    }
}
