//! The names of all kinds of events, and which of them only admins may follow.
//!
//! The catalogue of control defines the contents of events. It depends on all resources, while subscriptions, which are
//! resources, need the names. So the resources of other subjects are named here, and a test of control compares them.

use culvert_base::{Refusal, code};
use culvert_resources::access::bot_user::BotUser;
use culvert_resources::access::caller::{Caller, Role};
use culvert_resources::access::grant::Grant;
use culvert_resources::access::user::User;
use culvert_resources::audit::verb::{Verb, kind_name};
use culvert_resources::audit::{AGENT_SESSION_START, AGENT_SESSION_STOP};
use culvert_resources::resource::model::{Model, TUNNEL_SESSION_PREFIX};
use culvert_store::Topic;

use crate::alert::rule_model::AlertRule;
use crate::destination::model::EventDestination;
use crate::subscription::model::{EventSubscription, traffic_kinds};

/// The kind of the event of commits that the database lost.
pub const COMMITS_LOST: &str = "commits_lost.v0";

/// The kind of the event of an alert that fires, and of its repetitions.
pub const ALERT_FIRED: &str = "alert_fired.v0";

/// The kind of the event of an alert that is resolved.
pub const ALERT_RESOLVED: &str = "alert_resolved.v0";

/// The kind of the event of events that waited and are lost.
pub(crate) const EVENTS_DROPPED: &str = "events_dropped.v0";

/// The kind of the event of refused traffic that names no endpoint.
pub(crate) const TRAFFIC_REFUSED: &str = "traffic_refused.v0";

/// The kind of the event of an upstream that is healthy again.
pub(crate) const UPSTREAM_HEALTHY: &str = "upstream_healthy.v0";

/// The kind of the event of an upstream that is unhealthy.
pub(crate) const UPSTREAM_UNHEALTHY: &str = "upstream_unhealthy.v0";

/// The classes of events, which stand for all of their kinds, those of later versions too (contract: audit 1). No kind
/// has such a name.
pub(crate) const CLASSES: [&str; 2] = [AUDIT_CLASS, TRAFFIC_CLASS];
pub(crate) const AUDIT_CLASS: &str = Topic::EVERY;
pub(crate) const TRAFFIC_CLASS: &str = "traffic";

/// The resource of endpoints, whose events show traffic policies.
pub(crate) const ENDPOINT: &str = "endpoint";

/// Kinds that do not report a write to a resource. Only admins may follow them. A test compares them with the
/// catalogue.
const OTHERS: [&str; 60] = [
    "admin_command.v0",
    "agent_session_commanded.v0",
    AGENT_SESSION_START,
    AGENT_SESSION_STOP,
    ALERT_FIRED,
    ALERT_RESOLVED,
    "api_key_expiring.v0",
    "api_key_leaked.v0",
    "api_key_overlap_ended.v0",
    "api_key_overlap_ending.v0",
    "api_key_restricted.v0",
    "api_key_rotated.v0",
    "api_key_rotation_unused.v0",
    "api_key_rule_broken.v0",
    "api_key_rules_updated.v0",
    "api_key_unrestricted.v0",
    "api_key_unused.v0",
    "audit_hold_ended.v0",
    "audit_tree_damaged.v0",
    "backup_made.v0",
    "captured_message_read.v0",
    "certificate_checked.v0",
    "certificate_expiring.v0",
    "certificate_failed.v0",
    "certificate_ordered.v0",
    "certificate_retried.v0",
    COMMITS_LOST,
    "console_session_created.v0",
    "console_session_deleted.v0",
    "destination_disabled.v0",
    "destination_failing.v0",
    "destination_recovered.v0",
    "event_destination_redriven.v0",
    "event_destination_replayed.v0",
    "event_destination_tested.v0",
    "event_log_pruned.v0",
    EVENTS_DROPPED,
    "events_exported.v0",
    "invitation_created.v0",
    "invitation_deleted.v0",
    "master_key_rotated.v0",
    "node_joined.v0",
    "node_left.v0",
    "policy_dry_run.v0",
    "policy_read_with_secrets.v0",
    "request_refused.v0",
    "request_replayed.v0",
    "restored.v0",
    "secret_used.v0",
    "server_started.v0",
    "server_stopped.v0",
    "settings_reloaded.v0",
    "sign_in.v0",
    "sign_in_failed.v0",
    "sign_out.v0",
    "traffic_log_hashed.v0",
    TRAFFIC_REFUSED,
    "tunnel_credential_leaked.v0",
    UPSTREAM_HEALTHY,
    UPSTREAM_UNHEALTHY,
];

/// A resource whose writes have events.
#[derive(Debug, PartialEq, Eq)]
pub struct AuditedResource {
    /// Singular, with underscores; the stem of its events.
    pub name: &'static str,
    /// Prefixes of the IDs of its objects.
    pub prefixes: &'static [&'static str],
    /// Whether only admins may follow its events.
    pub is_private: bool,
}

/// Every resource with events. A test compares them with the table of resources.
pub static AUDITED: [AuditedResource; 28] = [
    AuditedResource::named("agent_ingress", &["agin"], false),
    AuditedResource::of::<AlertRule>(),
    AuditedResource::named("api_key", &["ak"], true),
    AuditedResource::named("application_session", &["as"], true),
    AuditedResource::named("application_user", &["au"], true),
    AuditedResource::named("audit_hold", &["ah"], true),
    AuditedResource::of::<BotUser>(),
    AuditedResource::named("certificate_authority", &["ca"], false),
    AuditedResource::named(ENDPOINT, &["ep"], true),
    AuditedResource::of::<EventDestination>(),
    AuditedResource::of::<EventSubscription>(),
    AuditedResource::of::<Grant>(),
    AuditedResource::named("ip_policy", &["ipp"], false),
    AuditedResource::named("ip_policy_rule", &["ipr"], false),
    AuditedResource::named("ip_restriction", &["ipx"], false),
    AuditedResource::named("kubernetes_operator", &["k8sop"], false),
    AuditedResource::named("tcp_address", &["ra"], false),
    AuditedResource::named("domain", &["rd"], false),
    AuditedResource::named("service_user", &["bot", "service"], false),
    AuditedResource::named("ssh_certificate_authority", &["sshca"], false),
    AuditedResource::named("ssh_host_certificate", &["shcrt"], false),
    AuditedResource::named("ssh_public_key", &["sshcr"], true),
    AuditedResource::named("ssh_user_certificate", &["sucrt"], false),
    AuditedResource::named("tls_certificate", &["cert"], false),
    AuditedResource::named("tunnel_credential", &["cr"], true),
    AuditedResource::of::<User>(),
    AuditedResource::named("vault", &["vault"], false),
    AuditedResource::named("secret", &["secret"], false),
];

impl AuditedResource {
    /// A resource of a subject that this one does not know.
    const fn named(
        name: &'static str,
        prefixes: &'static [&'static str],
        is_private: bool,
    ) -> Self {
        Self {
            name,
            prefixes,
            is_private,
        }
    }

    const fn of<R: Model>() -> Self {
        Self {
            name: R::NAME,
            prefixes: R::PREFIXES,
            is_private: !R::HAS_PUBLIC_EVENTS,
        }
    }
}

/// The names of all kinds of audit events.
pub fn names() -> impl Iterator<Item = String> {
    let audited = AUDITED.iter();
    audited
        .flat_map(|resource| Verb::ALL.map(|verb| kind_name(resource.name, verb)))
        .chain(OTHERS.map(str::to_owned))
}

/// The names of all kinds of events.
pub fn event_types() -> Vec<String> {
    let traffic = traffic_kinds().map(|kind| kind.name.to_owned());
    traffic.chain(names()).collect()
}

/// The kinds of a class, or the one kind with this name.
pub(crate) fn kinds_of(name: &str) -> Vec<String> {
    match name {
        AUDIT_CLASS => names().collect(),
        TRAFFIC_CLASS => traffic_kinds().map(|kind| kind.name.to_owned()).collect(),
        kind => vec![kind.to_owned()],
    }
}

/// Whether an audit event of this kind exists.
pub(crate) fn is_kind(name: &str) -> bool {
    names().any(|kind| kind == name)
}

/// Whether events of this kind are about keys or credentials, which only their owners and admins may see, or about the
/// installation. Agent session events name the credential. The class of audit events has such kinds.
pub fn is_private(name: &str) -> bool {
    if name == AUDIT_CLASS {
        return true;
    }
    let mut private = AUDITED.iter().filter(|resource| resource.is_private);
    private.any(|resource| {
        Verb::ALL
            .iter()
            .any(|verb| kind_name(resource.name, *verb) == name)
    }) || OTHERS.contains(&name)
}

/// Whether all events about the object with this ID are about keys or credentials. Endpoints have traffic events too,
/// which everyone may read.
pub(crate) fn is_private_object(id: &str) -> bool {
    let Some((prefix, _)) = culvert_base::id::split(id) else {
        return false;
    };
    let mut private = AUDITED.iter().filter(|resource| resource.is_private);
    private.any(|resource| resource.name != ENDPOINT && resource.prefixes.contains(&prefix))
        || prefix == TUNNEL_SESSION_PREFIX
}

/// The kinds that a caller asked for by name, and those of them that the caller may not read. `audit` and `traffic`
/// name all kinds of a family; no names stand for all kinds.
#[derive(Debug)]
pub(crate) struct AskedKinds {
    pub readable: Vec<String>,
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
            if !CLASSES.contains(&name.as_str()) {
                known(name)?;
                may_follow(caller, name)?;
            }
            kinds_of(name).into_iter().for_each(&mut add);
        }
        Ok(Self { readable, withheld })
    }
}

/// Refuses the name of an unknown kind.
pub fn known(name: &str) -> Result<(), Refusal> {
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
    use culvert_resources::access::caller::OwnerKind;

    use super::*;

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
            context: None,
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
    fn every_kind_has_a_row_in_the_formats_of_others() {
        let sorted = |names: Vec<String>| {
            let mut names = names;
            names.sort_unstable();
            names
        };
        let bare = |name: String| name.strip_suffix(".v0").map(str::to_owned).unwrap_or(name);
        let mut kinds: Vec<String> = event_types().into_iter().map(bare).collect();
        kinds.push(culvert_events::encode::TEST.to_owned());
        let rows = culvert_events::formatted_kinds().collect();
        assert_eq!(sorted(rows), sorted(kinds));
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
