//! The collections that files may describe, with their fields, from the operation table.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use culvert_resources::operation::{OperationSpec, SchemaOf};
use serde_json::{Map, Value};

use crate::linked::Linked;

/// A collection.
#[derive(Debug)]
pub(super) struct ManifestKind {
    /// As in the path, and as `kind` in files.
    pub(super) collection: &'static str,
    /// The field of a list that holds the objects.
    pub(super) list_field: String,
    pub(super) identity: Identity,
    pub(super) create: BTreeSet<String>,
    /// Those of them that are texts.
    pub(super) texts: BTreeSet<String>,
    pub(super) required: Vec<String>,
    pub(super) update: BTreeSet<String>,
    /// Fields that an operation of their own changes.
    pub(super) apart: Option<FieldsApart>,
    pub(super) view: BTreeSet<String>,
    /// Whether the response to a create carries a token that is shown once.
    pub(super) has_token: bool,
    /// Whether a replacement is created before the old object is deleted: others refer to it, and no field is unique.
    pub(super) replaces_first: bool,
}

/// Fields that views have only with `include`, and that `PATCH /{collection}/{id}/{name}` changes.
#[derive(Debug)]
pub(super) struct FieldsApart {
    pub(super) name: &'static str,
    pub(super) fields: BTreeSet<String>,
}

/// Where the name of an object is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// In its metadata.
    Metadata,
    /// The object has no metadata; this unique field is its name.
    Field(&'static str),
}

/// The collections in the order of creation: an object may refer to objects of the same and of earlier kinds.
const ORDER: [&str; 20] = [
    "bot_users",
    "service_users",
    "vaults",
    "vault_secrets",
    "ip_policies",
    "ip_policy_rules",
    "certificate_authorities",
    "tls_certificates",
    "ssh_certificate_authorities",
    "agent_ingresses",
    "reserved_addrs",
    "reserved_domains",
    "event_destinations",
    "event_subscriptions",
    "ssh_credentials",
    "credentials",
    "endpoints",
    "grants",
    "api_keys",
    "alert_rules",
];
/// The kind that comes last, because a wrong restriction locks the caller out.
const LAST: &str = "ip_restrictions";

/// All collections, in the order of creation.
pub(super) static KINDS: LazyLock<Vec<ManifestKind>> = LazyLock::new(|| {
    let names = ORDER.into_iter().chain([LAST]);
    names.filter_map(ManifestKind::of).collect()
});

/// The collection with this name.
pub(super) fn kind(name: &str) -> Option<&'static ManifestKind> {
    KINDS.iter().find(|kind| kind.collection == name)
}

impl ManifestKind {
    fn of(collection: &'static str) -> Option<Self> {
        let operation = |name: &str| {
            (Linked::get().operations)()
                .iter()
                .find(|it| it.collection == collection && it.name == name)
        };
        let (create, update) = (operation("create")?, operation("update")?);
        let body = |operation: &OperationSpec| Some(resolved(operation.body?.schema));
        let apart = operation("update_restrictions").and_then(body);
        let created = body(create)?;
        let view = resolved(operation("get")?.response.schema?);
        let list = resolved(operation("list")?.response.schema?);
        let fields =
            |schema: &Value| -> BTreeSet<String> { properties(schema).keys().cloned().collect() };
        let identity = match collection {
            "bot_users" | "service_users" => Identity::Field("name"),
            _ => Identity::Metadata,
        };
        let texts = properties(&created).into_iter();
        let is_text = |ty: &Value| match ty {
            // With null, which means an absent field.
            Value::Array(types) => types.iter().all(|ty| ty == "string" || ty == "null"),
            ty => ty == "string",
        };
        let texts = texts.filter(|(_, schema)| is_text(&schema["type"]));
        let required = created["required"].as_array().into_iter().flatten();
        Some(Self {
            collection,
            list_field: properties(&list)
                .into_iter()
                .find_map(|(name, it)| (it["type"] == "array").then_some(name))?,
            identity,
            required: required
                .filter_map(|it| Some(it.as_str()?.to_owned()))
                .collect(),
            create: fields(&created),
            texts: texts.map(|(name, _)| name).collect(),
            update: body(update)
                .map(|schema| fields(&schema))
                .unwrap_or_default(),
            apart: apart.map(|schema| FieldsApart {
                name: "restrictions",
                fields: fields(&schema),
            }),
            has_token: properties(&view).contains_key("token"),
            view: fields(&view),
            replaces_first: collection.ends_with("_authorities")
                || collection == "tls_certificates",
        })
    }

    /// Position in the order of creation.
    pub(super) fn rank(&self) -> usize {
        let same = |kind: &ManifestKind| kind.collection == self.collection;
        KINDS.iter().position(same).unwrap_or(usize::MAX)
    }

    /// Whether an update can change a field.
    pub(super) fn may_update(&self, field: &str) -> bool {
        self.update.contains(field) || self.is_apart(field)
    }

    /// Whether a field is one of those that an operation of their own changes.
    pub(super) fn is_apart(&self, field: &str) -> bool {
        let apart = self.apart.as_ref();
        apart.is_some_and(|apart| apart.fields.contains(field))
    }

    /// What the query of a read needs so that views have all fields.
    pub(super) fn include(&self) -> String {
        let apart = self.apart.as_ref();
        apart.map_or_else(String::new, |apart| format!("include={}", apart.name))
    }

    /// Whether an object of this kind keeps a field that views do not show.
    pub(super) fn hides(&self, field: &str) -> bool {
        !self.view.contains(field) && shown_reference(self, field).is_none()
    }
}

/// The field of a view that holds the objects that `ip_policy_id` or `destination_ids` name.
pub(super) fn shown_reference(kind: &ManifestKind, field: &str) -> Option<String> {
    let one = field.strip_suffix("_id").map(str::to_owned);
    let many = field
        .strip_suffix("_ids")
        .map(|stem| match stem.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{stem}s"),
        });
    one.or(many).filter(|name| kind.view.contains(name))
}

/// A schema without its outer reference.
fn resolved(schema: SchemaOf) -> Value {
    let mut generator = schemars::SchemaGenerator::default();
    let schema = schema(&mut generator).to_value();
    let name = schema["$ref"]
        .as_str()
        .and_then(|it| it.strip_prefix("#/$defs/"));
    match name {
        Some(name) => generator
            .definitions()
            .get(name)
            .cloned()
            .unwrap_or_default(),
        None => schema,
    }
}

fn properties(schema: &Value) -> Map<String, Value> {
    schema["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_writable_collection_has_a_position_in_the_order() {
        // Made by people, for a case, or by Kubernetes, or signed once.
        const LEFT_OUT: [&str; 5] = [
            "audit_holds",
            "kubernetes_operators",
            "ssh_host_certificates",
            "ssh_user_certificates",
            "users",
        ];
        let writes =
            |it: &&OperationSpec| it.name == "create" && it.path == format!("/{}", it.collection);
        for operation in (Linked::get().operations)().iter().filter(writes) {
            let is_known = kind(operation.collection).is_some();
            let is_left_out = LEFT_OUT.contains(&operation.collection);
            assert!(is_known != is_left_out, "{}", operation.collection);
        }
        for kind in KINDS.iter() {
            let has_metadata = kind.create.contains("metadata") && kind.view.contains("metadata");
            assert_eq!(
                has_metadata,
                kind.identity == Identity::Metadata,
                "{kind:?}"
            );
            assert!(
                !kind.update.is_empty() && !kind.list_field.is_empty(),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn references_are_found_in_views() {
        let field =
            |collection: &str, field: &str| shown_reference(kind(collection).unwrap(), field);
        assert_eq!(
            field("ip_policy_rules", "ip_policy_id").unwrap(),
            "ip_policy"
        );
        assert_eq!(
            field("ip_restrictions", "ip_policy_ids").unwrap(),
            "ip_policies"
        );
        assert_eq!(
            field("event_subscriptions", "destination_ids").unwrap(),
            "destinations"
        );
        assert_eq!(
            field("reserved_domains", "certificate_id").unwrap(),
            "certificate"
        );
        assert_eq!(field("api_keys", "owner_id"), None);
        assert!(kind("vault_secrets").unwrap().hides("value"));
        assert!(!kind("vault_secrets").unwrap().hides("vault_id"));
    }
}
