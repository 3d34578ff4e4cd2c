//! The kinds of events of the server.

use culvert_certificates::acme::report::{
    CERTIFICATE_FAILED, CERTIFICATE_ORDERED, CertificateOrder,
};
use culvert_events::catalogue::AuditKind;
use culvert_resources::audit::schema_of;
use serde_json::Value;

use super::backup::{BackupMade, Restored};
use super::command::{Commanded, MasterKeyRotated};
use super::destinations::DestinationState;
use super::ended::TreeDamaged;
use super::expiry::{CertificateExpiring, KeyExpiring, KeyUnused};
use super::members::{NodeJoined, NodeLeft};
use super::names::{
    ADMIN_COMMAND, API_KEY_EXPIRING, API_KEY_UNUSED, AUDIT_TREE_DAMAGED, BACKUP_MADE,
    CERTIFICATE_EXPIRING, DESTINATION_DISABLED, DESTINATION_FAILING, DESTINATION_RECOVERED,
    EVENT_LOG_PRUNED, MASTER_KEY_ROTATED, NODE_JOINED, NODE_LEFT, RESTORED, SERVER_STARTED,
    SERVER_STOPPED, SETTINGS_RELOADED, TRAFFIC_LOG_HASHED,
};
use super::pruning::Pruned;
use super::reload::Reloaded;
use super::run::{Started, Stopped};
use super::traffic_log::TrafficHashed;

type Row = (&'static str, &'static str, fn() -> Value);

/// Each kind, when it occurs, and the schema of its object.
static ALL: [Row; 20] = [
    (
        SERVER_STARTED,
        "A server process started and is ready.",
        schema_of::<Started<'static>>,
    ),
    (
        SERVER_STOPPED,
        "A server process stopped. A process that was killed, crashed, or could not write any more is reported by the \
         next start, with the reason `killed`.",
        schema_of::<Stopped<'static>>,
    ),
    (
        SETTINGS_RELOADED,
        "A running server applied changed settings.",
        schema_of::<Reloaded>,
    ),
    (
        NODE_JOINED,
        "A node joined an installation on PostgreSQL.",
        schema_of::<NodeJoined<'static>>,
    ),
    (
        NODE_LEFT,
        "A node left an installation on PostgreSQL: it stopped, or the other nodes did not see it for a minute. One of \
         them reports it.",
        schema_of::<NodeLeft<'static>>,
    ),
    (
        MASTER_KEY_ROTATED,
        "All stored secrets were encrypted with a new master key.",
        schema_of::<MasterKeyRotated>,
    ),
    (
        AUDIT_TREE_DAMAGED,
        "The tree over the audit log lacks hashes that its next leaves need. Until `culvert admin rebuild-audit-tree`, the log \
         is neither signed nor pruned. One event until then.",
        schema_of::<TreeDamaged<'static>>,
    ),
    (
        BACKUP_MADE,
        "`culvert admin backup` copies the installation. Written before the copy, which has the event too.",
        schema_of::<BackupMade<'static>>,
    ),
    (
        RESTORED,
        "The database has an earlier state than a backup, the event queue, a running node, a signed head of the audit log, \
         or a witness knows of: a backup was restored, or a fail-over lost commits.",
        schema_of::<Restored<'static>>,
    ),
    (
        ADMIN_COMMAND,
        "A command of `culvert admin` that changes the installation. The event is written before the change, or with \
         it; the events of the change name it as their `cause`.",
        schema_of::<Commanded<'static>>,
    ),
    (
        EVENT_LOG_PRUNED,
        "Events of the audit log reached the end of their retention. The event is written before they are deleted.",
        schema_of::<Pruned>,
    ),
    (
        TRAFFIC_LOG_HASHED,
        "The root over the pieces of the traffic log of the last hour, so that the signed audit log vouches for them. None \
         if there was no traffic.",
        schema_of::<TrafficHashed<'static>>,
    ),
    (
        DESTINATION_FAILING,
        "An event destination accepted nothing for ten minutes, or its queue of traffic events is filled to 90 %. One \
         event until it recovers.",
        schema_of::<DestinationState<'static>>,
    ),
    (
        DESTINATION_RECOVERED,
        "An event destination that failed accepts events again, and its queue is filled to less than 70 %.",
        schema_of::<DestinationState<'static>>,
    ),
    (
        DESTINATION_DISABLED,
        "An event destination answered that it is gone (HTTP 410). Nothing is sent to it until it is edited.",
        schema_of::<DestinationState<'static>>,
    ),
    (
        CERTIFICATE_ORDERED,
        "A certificate was ordered at the certificate authority.",
        schema_of::<CertificateOrder<'static>>,
    ),
    (
        CERTIFICATE_FAILED,
        "A certificate could not be obtained. One event for the first failure, and one more after a retry that was \
         requested; the domain shows later attempts.",
        schema_of::<CertificateOrder<'static>>,
    ),
    (
        CERTIFICATE_EXPIRING,
        "A certificate expires within 30 days, 7 days or a day: one event each. A certificate that is renewed \
         automatically is reported only when its renewal is overdue.",
        schema_of::<CertificateExpiring<'static>>,
    ),
    (
        API_KEY_EXPIRING,
        "An API key expires within 30 days, 7 days or a day, or its token reaches the maximum age of the account, which \
         ends it: one event each.",
        schema_of::<KeyExpiring<'static>>,
    ),
    (
        API_KEY_UNUSED,
        "An API key was not used for as long as `audit.key_unused_after` says. One event until it is used again.",
        schema_of::<KeyUnused<'static>>,
    ),
];

/// The kinds, with the schemas of their objects.
pub fn kinds() -> impl Iterator<Item = AuditKind> {
    ALL.iter().map(|(name, doc, schema)| AuditKind {
        name: (*name).to_owned(),
        doc: (*doc).to_owned(),
        schema: schema(),
    })
}
