//! What OCSF and ECS say about each kind of event: one row for each resource, whose events are written, and one for each
//! other kind. A test compares the rows with all kinds.

use std::fmt::Write;

/// A class of OCSF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    AccountChange,
    ApiActivity,
    ApplicationLifecycle,
    Authentication,
    DetectionFinding,
    EntityManagement,
    HttpActivity,
    NetworkActivity,
    UserAccess,
}

impl Class {
    /// Its number and name. The thousands of the number are the category.
    pub(super) fn id(self) -> (u64, &'static str) {
        match self {
            Self::AccountChange => (3001, "Account Change"),
            Self::ApiActivity => (6003, "API Activity"),
            Self::ApplicationLifecycle => (6002, "Application Lifecycle"),
            Self::Authentication => (3002, "Authentication"),
            Self::DetectionFinding => (2004, "Detection Finding"),
            Self::EntityManagement => (3004, "Entity Management"),
            Self::HttpActivity => (4002, "HTTP Activity"),
            Self::NetworkActivity => (4001, "Network Activity"),
            Self::UserAccess => (3005, "User Access Management"),
        }
    }

    /// The number and name of its category.
    pub(super) fn category(self) -> (u64, &'static str) {
        match self.id().0 / 1000 {
            2 => (2, "Findings"),
            3 => (3, "Identity & Access Management"),
            4 => (4, "Network Activity"),
            _ => (6, "Application Activity"),
        }
    }

    /// Its activities for objects that are created, updated and deleted.
    const fn of_verbs(self) -> [Activity; 3] {
        match self {
            Self::AccountChange => [(1, "Create"), OTHER, (6, "Delete")],
            Self::Authentication => [LOGON, OTHER, LOGOFF],
            Self::UserAccess => [(1, "Assign Privileges"), OTHER, (2, "Revoke Privileges")],
            _ => [CREATE, UPDATE, DELETE],
        }
    }
}

/// Number and name of an activity of a class.
pub(super) type Activity = (u64, &'static str);

/// The activity that a class has no number for; its name is the kind.
pub(super) const OTHER: Activity = (99, "Other");
const CREATE: Activity = (1, "Create");
const READ: Activity = (2, "Read");
const UPDATE: Activity = (3, "Update");
/// Of entities and of API activity.
const DELETE: Activity = (4, "Delete");
const DISABLE: Activity = (9, "Disable");
const LOGON: Activity = (1, "Logon");
const LOGOFF: Activity = (2, "Logoff");
const START: Activity = (3, "Start");
const STOP: Activity = (4, "Stop");
/// Of the lifecycle of an application.
const CHANGE: Activity = (8, "Update");
const CLOSE: Activity = (2, "Close");
/// Of findings.
const END: Activity = (3, "Close");
const REFUSE: Activity = (5, "Refuse");

/// How serious an event is, with its number in OCSF and ECS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Everyday.
    Informational = 1,
    /// Worth a look.
    Low,
    /// Needs attention.
    Medium,
    /// Needs attention now.
    High,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Informational => "Informational",
            Self::Low => "Low",
            Self::Medium => "Medium",
            Self::High => "High",
        }
    }
}

/// Whether what an event is about succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    Failure,
    /// A status or an error in the object says so.
    OfObject,
}

/// What the formats say about a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) class: Class,
    pub(super) activity: Activity,
    pub(super) severity: Severity,
    pub(super) outcome: Outcome,
    /// `event.category` of ECS.
    pub(super) categories: &'static [&'static str],
    /// `event.type` of ECS.
    pub(super) types: &'static [&'static str],
    /// The resource whose objects the kind is about; empty for kinds that do not report a write.
    pub(super) resource: &'static str,
}

use Class::{
    AccountChange, ApiActivity, ApplicationLifecycle, Authentication, DetectionFinding,
    EntityManagement, HttpActivity, NetworkActivity, UserAccess,
};
use Outcome::{Failure, OfObject, Success};
use Severity::{High, Informational, Low, Medium};

type OfKind = (
    &'static str,
    Class,
    Activity,
    Severity,
    Outcome,
    &'static [&'static str],
    &'static [&'static str],
);

/// The kinds that do not report a write to a resource, by name without version.
#[rustfmt::skip]
const KINDS: [OfKind; 63] = [
    ("admin_command", ApplicationLifecycle, OTHER, Low, Success, &["configuration"], &["change"]),
    ("agent_session_commanded", ApiActivity, OTHER, Informational, Success, &["session"], &["info"]),
    ("agent_session_start", Authentication, LOGON, Informational, OfObject, &["authentication", "session"], &["start"]),
    ("agent_session_stop", Authentication, LOGOFF, Informational, Success, &["authentication", "session"], &["end"]),
    ("alert_fired", DetectionFinding, CREATE, Medium, Failure, &["host"], &["info"]),
    ("alert_resolved", DetectionFinding, END, Medium, Success, &["host"], &["info"]),
    ("api_key_expiring", EntityManagement, OTHER, Low, Success, &["iam"], &["info"]),
    ("api_key_leaked", EntityManagement, OTHER, High, Failure, &["iam"], &["info"]),
    ("api_key_overlap_ended", EntityManagement, UPDATE, Low, Success, &["iam"], &["change"]),
    ("api_key_overlap_ending", EntityManagement, OTHER, Medium, Success, &["iam"], &["info"]),
    ("api_key_restricted", EntityManagement, UPDATE, Low, Success, &["iam"], &["change"]),
    ("api_key_rotated", EntityManagement, UPDATE, Low, Success, &["iam"], &["change"]),
    ("api_key_rotation_unused", EntityManagement, OTHER, Medium, Failure, &["iam"], &["info"]),
    ("api_key_rule_broken", EntityManagement, OTHER, Medium, Failure, &["iam"], &["info"]),
    ("api_key_rules_updated", EntityManagement, UPDATE, Medium, Success, &["configuration"], &["change"]),
    ("api_key_unrestricted", EntityManagement, UPDATE, Medium, Success, &["iam"], &["change"]),
    ("api_key_unused", EntityManagement, OTHER, Low, Success, &["iam"], &["info"]),
    ("audit_hold_ended", EntityManagement, OTHER, Low, Success, &["configuration"], &["info"]),
    ("audit_tree_damaged", ApplicationLifecycle, OTHER, High, Failure, &["database"], &["error"]),
    ("backup_made", ApplicationLifecycle, OTHER, Informational, Success, &["database"], &["info"]),
    ("captured_message_read", ApiActivity, READ, Low, Success, &["api"], &["access"]),
    ("certificate_checked", ApiActivity, OTHER, Informational, Success, &["configuration"], &["info"]),
    ("certificate_expiring", EntityManagement, OTHER, Low, Success, &["configuration"], &["info"]),
    ("certificate_failed", EntityManagement, OTHER, Medium, Failure, &["configuration"], &["info"]),
    ("certificate_ordered", EntityManagement, OTHER, Informational, Success, &["configuration"], &["change"]),
    ("certificate_retried", ApiActivity, OTHER, Informational, Success, &["configuration"], &["change"]),
    ("commits_lost", ApplicationLifecycle, OTHER, High, Failure, &["database"], &["error"]),
    ("console_session_created", EntityManagement, CREATE, Informational, Success, &["session"], &["start"]),
    ("console_session_deleted", EntityManagement, DELETE, Informational, Success, &["session"], &["end"]),
    ("destination_disabled", EntityManagement, DISABLE, Medium, Failure, &["configuration"], &["change"]),
    ("destination_failing", EntityManagement, OTHER, Medium, Failure, &["configuration"], &["info"]),
    ("destination_recovered", EntityManagement, OTHER, Informational, Success, &["configuration"], &["info"]),
    ("event_destination_redriven", ApiActivity, OTHER, Informational, Success, &["api"], &["info"]),
    ("event_destination_replayed", ApiActivity, OTHER, Low, Success, &["api"], &["info"]),
    ("event_destination_tested", ApiActivity, OTHER, Informational, Success, &["api"], &["info"]),
    ("event_log_pruned", ApplicationLifecycle, OTHER, Low, Success, &["configuration"], &["deletion"]),
    ("events_dropped", ApplicationLifecycle, OTHER, Medium, Failure, &["database"], &["error"]),
    ("events_exported", ApiActivity, READ, Low, Success, &["api"], &["access"]),
    ("http_request_complete", HttpActivity, OTHER, Informational, OfObject, &["web"], &["access"]),
    ("invitation_created", AccountChange, (1, "Create"), Informational, Success, &["iam"], &["user", "creation"]),
    ("invitation_deleted", AccountChange, (6, "Delete"), Informational, Success, &["iam"], &["user", "deletion"]),
    ("master_key_rotated", ApplicationLifecycle, CHANGE, Low, Success, &["configuration"], &["change"]),
    ("node_joined", ApplicationLifecycle, OTHER, Informational, Success, &["configuration"], &["info"]),
    ("node_left", ApplicationLifecycle, OTHER, Informational, Success, &["configuration"], &["info"]),
    ("policy_dry_run", ApiActivity, OTHER, Informational, Success, &["api"], &["access"]),
    ("policy_read_with_secrets", ApiActivity, READ, Medium, Success, &["api"], &["access"]),
    ("request_refused", ApiActivity, OTHER, Medium, Failure, &["api"], &["denied"]),
    ("request_replayed", ApiActivity, OTHER, Low, Success, &["api"], &["info"]),
    ("restored", ApplicationLifecycle, OTHER, High, Success, &["database"], &["info"]),
    ("secret_used", EntityManagement, READ, Low, Success, &["configuration"], &["access"]),
    ("server_started", ApplicationLifecycle, START, Informational, Success, &["process"], &["start"]),
    ("server_stopped", ApplicationLifecycle, STOP, Informational, Success, &["process"], &["end"]),
    ("settings_reloaded", ApplicationLifecycle, CHANGE, Informational, Success, &["configuration"], &["change"]),
    ("sign_in", Authentication, LOGON, Informational, Success, &["authentication", "session"], &["start"]),
    ("sign_in_failed", Authentication, LOGON, Medium, Failure, &["authentication"], &["start"]),
    ("sign_out", Authentication, LOGOFF, Informational, Success, &["authentication", "session"], &["end"]),
    ("tcp_connection_closed", NetworkActivity, CLOSE, Informational, OfObject, &["network"], &["connection", "end"]),
    ("test", ApplicationLifecycle, OTHER, Informational, Success, &["configuration"], &["info"]),
    ("traffic_log_hashed", ApplicationLifecycle, OTHER, Informational, Success, &["configuration"], &["info"]),
    ("traffic_refused", NetworkActivity, REFUSE, Low, Failure, &["network"], &["connection", "denied"]),
    ("tunnel_credential_leaked", EntityManagement, OTHER, High, Failure, &["iam"], &["info"]),
    ("upstream_healthy", ApplicationLifecycle, OTHER, Informational, Success, &["network"], &["info"]),
    ("upstream_unhealthy", ApplicationLifecycle, OTHER, Medium, Failure, &["network"], &["info"]),
];

/// The resources whose writes have events.
#[rustfmt::skip]
const OF_RESOURCES: [(&str, Class, Severity, &[&str]); 28] = [
    ("agent_ingress", EntityManagement, Informational, &["configuration"]),
    ("alert_rule", EntityManagement, Low, &["configuration"]),
    ("api_key", EntityManagement, Low, &["iam"]),
    ("application_session", Authentication, Informational, &["authentication", "session"]),
    ("application_user", AccountChange, Informational, &["iam"]),
    ("audit_hold", EntityManagement, Low, &["configuration"]),
    ("bot_user", AccountChange, Low, &["iam"]),
    ("certificate_authority", EntityManagement, Informational, &["configuration"]),
    ("domain", EntityManagement, Informational, &["configuration"]),
    ("endpoint", EntityManagement, Informational, &["configuration"]),
    ("event_destination", EntityManagement, Low, &["configuration"]),
    ("event_subscription", EntityManagement, Low, &["configuration"]),
    ("grant", UserAccess, Low, &["iam"]),
    ("ip_policy", EntityManagement, Informational, &["configuration"]),
    ("ip_policy_rule", EntityManagement, Informational, &["configuration"]),
    ("ip_restriction", EntityManagement, Low, &["configuration"]),
    ("kubernetes_operator", EntityManagement, Informational, &["configuration"]),
    ("secret", EntityManagement, Low, &["configuration"]),
    ("service_user", AccountChange, Low, &["iam"]),
    ("ssh_certificate_authority", EntityManagement, Low, &["configuration"]),
    ("ssh_host_certificate", EntityManagement, Informational, &["configuration"]),
    ("ssh_public_key", EntityManagement, Low, &["iam"]),
    ("ssh_user_certificate", EntityManagement, Low, &["configuration"]),
    ("tcp_address", EntityManagement, Informational, &["configuration"]),
    ("tls_certificate", EntityManagement, Informational, &["configuration"]),
    ("tunnel_credential", EntityManagement, Low, &["iam"]),
    ("user", AccountChange, Low, &["iam"]),
    ("vault", EntityManagement, Low, &["configuration"]),
];

const VERBS: [&str; 3] = ["created", "updated", "deleted"];

/// The row of the kind of this name, which has no version. A kind that this version does not have, such as one of a newer
/// node, has the row of test events.
pub(super) fn row_of(kind: &str) -> Row {
    find(kind)
        .or_else(|| find("test"))
        .expect("the table has the kind of test events")
}

fn find(kind: &str) -> Option<Row> {
    let of_kind = KINDS.iter().find(|(name, ..)| *name == kind);
    if let Some(&(_, class, activity, severity, outcome, categories, types)) = of_kind {
        return Some(Row {
            class,
            activity,
            severity,
            outcome,
            categories,
            types,
            resource: "",
        });
    }
    let (resource, verb) = kind.rsplit_once('_')?;
    let verb = VERBS.iter().position(|known| *known == verb)?;
    let of_resource = OF_RESOURCES.iter().find(|(name, ..)| *name == resource);
    let &(resource, class, severity, categories) = of_resource?;
    Some(Row {
        class,
        activity: class.of_verbs()[verb],
        severity,
        outcome: Success,
        categories,
        types: match class {
            Authentication => [&["start"][..], &["info"], &["end"]][verb],
            AccountChange => [
                &["user", "creation"][..],
                &["user", "change"],
                &["user", "deletion"],
            ][verb],
            _ => [&["creation"][..], &["change"], &["deletion"]][verb],
        },
        resource,
    })
}

/// The names of all kinds that have a row, without version, in no order.
pub fn kinds() -> impl Iterator<Item = String> {
    let of_kinds = KINDS.iter().map(|(name, ..)| (*name).to_owned());
    let of_resources = OF_RESOURCES.iter();
    of_kinds.chain(of_resources.flat_map(|(name, ..)| VERBS.map(|verb| format!("{name}_{verb}"))))
}

/// The table of the reference page over these kinds, whose names have a version.
///
/// # Panics
/// If a kind has no row.
pub(crate) fn markdown(names: impl Iterator<Item = String>) -> String {
    let mut page = String::from(
        "| kind | OCSF class | activity | severity | ECS category | ECS type |\n|---|---|---|---|---|---|\n",
    );
    for name in names {
        let kind = name.rsplit_once(".v").map_or(&*name, |(kind, _)| kind);
        let row = find(kind).unwrap_or_else(|| panic!("the kind {kind} has no row"));
        let (number, class) = row.class.id();
        let activity = match row.class {
            HttpActivity => "by method",
            _ => row.activity.1,
        };
        writeln!(
            page,
            "| `{name}` | {class} ({number}) | {activity} | {} | {} | {} |",
            row.severity.name(),
            row.categories.join(", "),
            row.types.join(", "),
        )
        .expect("writing to a string cannot fail");
    }
    page
}
