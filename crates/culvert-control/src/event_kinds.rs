//! The names of all kinds of events, and which of them only admins may follow.
//!
//! `audit_kinds` defines the contents of events. It depends on all resources, while subscriptions, which are
//! resources, need the names.

use culvert_base::{Refusal, code};

use crate::caller::{Caller, Role};
use crate::resource::model::Model;
use crate::resource::model::api_key::ApiKey;
use crate::resource::model::certificate_authority::CertificateAuthority;
use crate::resource::model::event_destination::EventDestination;
use crate::resource::model::event_subscription::{EventSubscription, traffic_kinds};
use crate::resource::model::ip_policy::IpPolicy;
use crate::resource::model::ip_policy_rule::IpPolicyRule;
use crate::resource::model::ip_restriction::IpRestriction;
use crate::resource::model::reserved_addr::ReservedAddr;
use crate::resource::model::reserved_domain::ReservedDomain;
use crate::resource::model::ssh_certificate_authority::SshCertificateAuthority;
use crate::resource::model::ssh_host_certificate::SshHostCertificate;
use crate::resource::model::ssh_public_key::SshPublicKey;
use crate::resource::model::ssh_user_certificate::SshUserCertificate;
use crate::resource::model::tls_certificate::TlsCertificate;
use crate::resource::model::tunnel_credential::TunnelCredential;
use crate::resource::model::vault::Vault;
use crate::resource::model::vault_secret::VaultSecret;

/// Kinds of agent session events.
pub(crate) const AGENT_SESSION_START: &str = "agent_session_start.v0";
pub(crate) const AGENT_SESSION_STOP: &str = "agent_session_stop.v0";

/// A resource whose writes have events.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AuditedResource {
    pub(crate) name: &'static str,
    pub(crate) is_private: bool,
}

/// Every resource with events. A test compares them with the table of resources.
pub(crate) static AUDITED: [AuditedResource; 17] = [
    AuditedResource::of::<ApiKey>(),
    AuditedResource::of::<CertificateAuthority>(),
    AuditedResource::of::<EventDestination>(),
    AuditedResource::of::<EventSubscription>(),
    AuditedResource::of::<IpPolicy>(),
    AuditedResource::of::<IpPolicyRule>(),
    AuditedResource::of::<IpRestriction>(),
    AuditedResource::of::<ReservedAddr>(),
    AuditedResource::of::<ReservedDomain>(),
    AuditedResource::of::<SshCertificateAuthority>(),
    AuditedResource::of::<SshHostCertificate>(),
    AuditedResource::of::<SshPublicKey>(),
    AuditedResource::of::<SshUserCertificate>(),
    AuditedResource::of::<TlsCertificate>(),
    AuditedResource::of::<TunnelCredential>(),
    AuditedResource::of::<Vault>(),
    AuditedResource::of::<VaultSecret>(),
];

impl AuditedResource {
    const fn of<R: Model>() -> Self {
        Self {
            name: R::NAME,
            is_private: R::IS_PRIVATE,
        }
    }
}

/// A change to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Created,
    Updated,
    Deleted,
}

impl Verb {
    pub(crate) const ALL: [Self; 3] = [Self::Created, Self::Updated, Self::Deleted];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
        }
    }
}

/// `api_key_created.v0`.
pub(crate) fn kind_name(resource: &str, verb: Verb) -> String {
    format!("{resource}_{}.v0", verb.name())
}

/// The names of all kinds of audit events.
pub(crate) fn names() -> impl Iterator<Item = String> {
    let audited = AUDITED.iter();
    audited
        .flat_map(|resource| Verb::ALL.map(|verb| kind_name(resource.name, verb)))
        .chain([AGENT_SESSION_START, AGENT_SESSION_STOP].map(str::to_owned))
}

/// The names of all kinds of events.
pub(crate) fn event_types() -> Vec<String> {
    let traffic = traffic_kinds().map(|kind| kind.name.to_owned());
    traffic.chain(names()).collect()
}

/// Whether an audit event of this kind exists.
pub(crate) fn is_kind(name: &str) -> bool {
    names().any(|kind| kind == name)
}

/// Whether events of this kind are about keys or credentials, which only their owners and admins may see.
/// Agent session events name the credential.
pub(crate) fn is_private(name: &str) -> bool {
    let mut private = AUDITED.iter().filter(|resource| resource.is_private);
    private.any(|resource| {
        Verb::ALL
            .iter()
            .any(|verb| kind_name(resource.name, *verb) == name)
    }) || [AGENT_SESSION_START, AGENT_SESSION_STOP].contains(&name)
}

/// Refuses the name of an unknown kind.
pub(crate) fn known(name: &str) -> Result<(), Refusal> {
    if is_kind(name) || traffic_kinds().any(|kind| kind.name == name) {
        return Ok(());
    }
    let name: String = name.chars().take(64).collect();
    Err(Refusal::new(
        code::EVENT_TYPE_UNKNOWN,
        format!("The event type `{name}` does not exist."),
    ))
}

/// Refuses events about keys and credentials (630), unless the caller is an admin.
pub(crate) fn may_follow(caller: &Caller, name: &str) -> Result<(), Refusal> {
    if caller.role == Role::Admin || !is_private(name) {
        return Ok(());
    }
    let why = format!(
        "Events of the type `{name}` tell about keys and credentials of every owner; only admins follow \
         and subscribe to them."
    );
    Err(Refusal::new(code::NOT_ADMIN, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_with_events_is_in_the_table() {
        let all = crate::resource::ALL.iter();
        let audited = all
            .filter(|ty| ty.silent.is_none())
            .map(|ty| AuditedResource {
                name: ty.name,
                is_private: ty.is_private,
            });
        assert_eq!(audited.collect::<Vec<_>>(), AUDITED);
    }
}
