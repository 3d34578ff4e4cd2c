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
use crate::resource::model::grant::Grant;
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
use crate::resource::model::tunnel_session::TunnelSession;
use crate::resource::model::vault::Vault;
use crate::resource::model::vault_secret::VaultSecret;

/// Kinds of agent session events.
pub(crate) const AGENT_SESSION_START: &str = "agent_session_start.v0";
pub(crate) const AGENT_SESSION_STOP: &str = "agent_session_stop.v0";

/// The kind of the event of commits that the database lost.
pub(crate) const COMMITS_LOST: &str = "commits_lost.v0";

/// Kinds that do not report a write to a resource. Only admins may follow them.
const OTHERS: [&str; 3] = [AGENT_SESSION_START, AGENT_SESSION_STOP, COMMITS_LOST];

/// A resource whose writes have events.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AuditedResource {
    pub(crate) name: &'static str,
    pub(crate) prefixes: &'static [&'static str],
    pub(crate) is_private: bool,
}

/// Every resource with events. A test compares them with the table of resources.
pub(crate) static AUDITED: [AuditedResource; 18] = [
    AuditedResource::of::<ApiKey>(),
    AuditedResource::of::<CertificateAuthority>(),
    AuditedResource::of::<EventDestination>(),
    AuditedResource::of::<EventSubscription>(),
    AuditedResource::of::<Grant>(),
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
            prefixes: R::PREFIXES,
            is_private: !R::RIGHTS.see.has_public_events(),
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
        .chain(OTHERS.map(str::to_owned))
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

/// Whether events of this kind are about keys or credentials, which only their owners and admins may see, or about the
/// installation. Agent session events name the credential.
pub(crate) fn is_private(name: &str) -> bool {
    let mut private = AUDITED.iter().filter(|resource| resource.is_private);
    private.any(|resource| {
        Verb::ALL
            .iter()
            .any(|verb| kind_name(resource.name, *verb) == name)
    }) || OTHERS.contains(&name)
}

/// Whether all events about the object with this ID are about keys or credentials.
pub(crate) fn is_private_object(id: &str) -> bool {
    let Some((prefix, _)) = culvert_base::id::split(id) else {
        return false;
    };
    let mut private = AUDITED.iter().filter(|resource| resource.is_private);
    private.any(|resource| resource.prefixes.contains(&prefix))
        || prefix == TunnelSession::ID_PREFIX
}

/// The kinds that a caller asked for by name, and those of them that the caller may not read. `audit` and `traffic`
/// name all kinds of a family; no names stand for all kinds.
#[derive(Debug)]
pub(crate) struct AskedKinds {
    pub(crate) readable: Vec<String>,
    /// Only kinds of families.
    pub(crate) withheld: Vec<String>,
}

impl AskedKinds {
    /// Each kind once.
    ///
    /// # Errors
    /// An unknown kind (238), or one by name that the caller may not read (630).
    pub(crate) fn of(caller: &Caller, asked: &[String]) -> Result<Self, Refusal> {
        let (mut readable, mut withheld) = (Vec::new(), Vec::new());
        let mut add = |name: String| {
            let kinds = match may_follow(caller, &name) {
                Ok(()) => &mut readable,
                Err(_) => &mut withheld,
            };
            if !kinds.contains(&name) {
                kinds.push(name);
            }
        };
        if asked.is_empty() {
            event_types().into_iter().for_each(&mut add);
        }
        for name in asked {
            match name.as_str() {
                "audit" => names().for_each(&mut add),
                "traffic" => traffic_kinds().for_each(|kind| add(kind.name.to_owned())),
                _ => {
                    known(name)?;
                    may_follow(caller, name)?;
                    add(name.clone());
                }
            }
        }
        Ok(Self { readable, withheld })
    }
}

/// Refuses the name of an unknown kind.
pub(crate) fn known(name: &str) -> Result<(), Refusal> {
    if is_kind(name) || traffic_kinds().any(|kind| kind.name == name) {
        return Ok(());
    }
    Err(unknown(name, ""))
}

/// The refusal of an event type that does not exist. `more` follows the sentence's subject. A text that cannot be an event
/// type is not repeated: it may be a secret in the wrong field.
pub(crate) fn unknown(name: &str, more: &str) -> Refusal {
    let (bare, version) = name.rsplit_once(".v").unwrap_or((name, "0"));
    let is_name = name.len() <= 64
        && bare
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        && version.bytes().all(|byte| byte.is_ascii_digit());
    let name = match is_name {
        true => format!(" `{name}`"),
        false => String::new(),
    };
    Refusal::new(
        code::EVENT_TYPE_UNKNOWN,
        format!("The event type{name} does not exist{more}."),
    )
}

/// Refuses events about keys and credentials (630), unless the caller is an admin.
pub(crate) fn may_follow(caller: &Caller, name: &str) -> Result<(), Refusal> {
    if caller.role == Role::Admin || !is_private(name) {
        return Ok(());
    }
    let why = format!(
        "Events of the type `{name}` reveal keys and credentials of all owners; only admins may follow \
         and subscribe to them."
    );
    Err(Refusal::new(code::NOT_ADMIN, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::OwnerKind;

    #[test]
    fn every_resource_with_events_is_in_the_table() {
        let all = crate::resource::ALL.iter();
        let audited = all
            .filter(|ty| ty.silent.is_none())
            .map(|ty| AuditedResource {
                name: ty.name,
                prefixes: ty.prefixes,
                is_private: !ty.rights.see.has_public_events(),
            });
        assert_eq!(audited.collect::<Vec<_>>(), AUDITED);
    }

    #[test]
    fn a_family_expands_to_the_kinds_that_the_caller_may_read() {
        let caller = |role| Caller {
            owner_id: "usr_1".to_owned(),
            owner_kind: OwnerKind::User,
            role,
            key_id: "ak_1".to_owned(),
            subject: String::new(),
            account: "ac_1".to_owned(),
            restrictions: None,
            token: None,
        };
        let of = |role, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            AskedKinds::of(&caller(role), &names)
        };
        let n_private = names().filter(|name| is_private(name)).count();
        assert!(n_private > 0);
        for role in [Role::Admin, Role::Member, Role::ReadOnly] {
            let n_withheld = match role {
                Role::Admin => 0,
                Role::Member | Role::ReadOnly => n_private,
            };
            for (asked, n_all) in [
                (&[][..], event_types().len()),
                (&["audit"], names().count()),
                (&["traffic"], traffic_kinds().count()),
                (
                    &["traffic", "audit", "vault_created.v0"],
                    event_types().len(),
                ),
            ] {
                let kinds = of(role, asked).unwrap();
                let n_withheld = if asked == ["traffic"] { 0 } else { n_withheld };
                assert_eq!(kinds.withheld.len(), n_withheld, "{role:?} {asked:?}");
                assert_eq!(kinds.readable.len(), n_all - n_withheld, "{asked:?}");
                assert!(kinds.withheld.iter().all(|name| is_private(name)));
            }
        }
        let refused = of(Role::Member, &["audit", "api_key_created.v0"]).unwrap_err();
        assert_eq!(refused.code, Some(code::NOT_ADMIN));
        let refused = of(Role::Admin, &["audits"]).unwrap_err();
        assert_eq!(refused.code, Some(code::EVENT_TYPE_UNKNOWN));
    }

    #[test]
    fn events_of_private_objects_are_recognised_by_id() {
        for id in ["ak_1", "cr_1", "sshcr_1", "ts_1"] {
            assert!(is_private_object(id), "{id}");
        }
        for id in ["ep_1", "vault_1", "ak", "", "ak_\u{e9}"] {
            assert!(!is_private_object(id), "{id}");
        }
    }
}
