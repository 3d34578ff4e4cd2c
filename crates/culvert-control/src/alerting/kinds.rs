//! The kinds of events of alerts.

use culvert_event_config::alert::model::AlertObject;
use culvert_event_config::event_kinds::{ALERT_FIRED, ALERT_RESOLVED};
use culvert_events::catalogue::AuditKind;
use culvert_resources::audit::schema_of;

/// The kinds of events of alerts.
pub(crate) fn kinds() -> [AuditKind; 2] {
    let schema = schema_of::<AlertObject<'static>>();
    [
        (
            ALERT_FIRED,
            "The condition of an alert rule is true of an object. Repeated as often as the rule says, with the same `id`.",
        ),
        (
            ALERT_RESOLVED,
            "The condition of an alert rule is not true of an object any more, or the rule or the object is gone.",
        ),
    ]
    .map(|(name, doc)| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema: schema.clone(),
    })
}
