//! The catalogue of events: every kind with the schema of its object.

pub(crate) mod lost_commits;

use culvert_endpoints::traffic_policy;
use culvert_event_config::edge_reports::{refused_traffic, upstream_health};
use culvert_event_config::lost_events;
use culvert_events::catalogue::{AuditKind, Catalogue};
use culvert_identity::api_key::{overlap, rules};
use culvert_identity::console::session;
use culvert_identity::leak;
use culvert_identity::user::invitations;
use culvert_resources::audit;
use culvert_resources::audit::counted::REQUEST_REFUSED;
use culvert_resources::audit::refusals::{Refused, SIGN_IN_FAILED};
use culvert_resources::audit::trace::{OperationKind, POLICY_READ_WITH_SECRETS, Performed, Trace};
use culvert_resources::audit::verb::{Verb, kind_name};
use culvert_resources::resource::{Audited, ResourceType};
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::operations::resources;
use crate::{alerting, audit_hold};

/// Every kind of audit event, with the schema of its object.
pub(crate) fn kinds() -> Vec<AuditKind> {
    let audited = resources::ALL
        .iter()
        .filter(|ty| ty.audited == Audited::Own);
    audited
        .flat_map(|ty| {
            let schema = object_schema(ty);
            Verb::ALL.map(|verb| AuditKind {
                name: kind_name(ty.name, verb),
                doc: doc(ty, verb),
                schema: schema.clone(),
            })
        })
        .chain(culvert_agents::kinds())
        .chain(operation_kinds())
        .chain(refusal_kinds())
        .chain(session::kinds())
        .chain(invitations::kinds())
        .chain(leak::report::kinds())
        .chain(overlap::kinds())
        .chain(rules::kinds())
        .chain(traffic_policy::kinds())
        .chain(lost_commits::kinds())
        .chain(lost_events::kinds())
        .chain(refused_traffic::kinds())
        .chain(upstream_health::kinds())
        .chain(culvert_server_log::kinds::kinds())
        .chain([audit_hold::retention::kind()])
        .chain(alerting::kinds::kinds())
        .collect()
}

/// The kinds that report operations.
fn operation_kinds() -> Vec<AuditKind> {
    let kinds = crate::operations().iter().map(|operation| operation.trace);
    let mut kinds: Vec<_> = kinds.filter_map(Trace::kind).collect();
    kinds.push(&POLICY_READ_WITH_SECRETS);
    kinds.sort_by_key(|kind| kind.name);
    kinds.dedup_by_key(|kind| kind.name);
    let schema = audit::schema_of::<Performed<'static>>();
    let kind = |kind: &OperationKind| AuditKind {
        name: kind.name.to_owned(),
        doc: kind.doc.to_owned(),
        schema: schema.clone(),
    };
    kinds.into_iter().map(kind).collect()
}

/// The kinds that report refusals.
fn refusal_kinds() -> [AuditKind; 2] {
    let schema = audit::schema_of::<Refused<'static>>();
    [
        (
            REQUEST_REFUSED,
            "Calls of the API were refused: without valid credentials, without the right, about an object of another \
             owner, or above a limit. One event when it begins, and one a minute while it goes on.",
        ),
        (
            SIGN_IN_FAILED,
            "Sign-ins to the console were refused. One event when it begins, and one a minute while it goes on.",
        ),
    ]
    .map(|(name, doc)| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema: schema.clone(),
    })
}

pub(crate) fn doc(ty: &ResourceType, verb: Verb) -> String {
    let object = ty.with_article();
    let behind = object.strip_prefix('a').unwrap_or(&object);
    format!("A{behind} was {}.", verb.name())
}

pub(crate) fn object_schema(ty: &ResourceType) -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .for_serialize()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator();
    let mut schema = (ty.view_schema)(&mut generator).to_value();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| !ty.not_in_events.contains(&name.as_str()));
    }
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| {
            !ty.not_in_events
                .contains(&name.as_str().unwrap_or_default())
        });
    }
    schema
}

/// All kinds of events: those of traffic and those of resources.
pub fn catalogue() -> &'static Catalogue {
    static CATALOGUE: std::sync::OnceLock<Catalogue> = std::sync::OnceLock::new();
    CATALOGUE.get_or_init(|| Catalogue::new(kinds()))
}
