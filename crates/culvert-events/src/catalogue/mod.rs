//! The catalogue of all kinds of events: a row for each kind (`kind`) with its columns (`field`), and their
//! documentation, namely names, JSON Schema and reference page.
//!
//! This crate has the kinds with a fixed table. Control derives audit kinds from the API's views,
//! and passes them in.

pub(crate) mod field;
pub(crate) mod kind;

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::catalogue::field::{FieldDef, Type};
use crate::catalogue::kind::{EventKind, Family};
use crate::formats;
use crate::kinds;
use crate::reason::Reason;

/// A kind of event whose object is the API's view of a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditKind {
    /// Name with version suffix: `api_key_created.v0`.
    pub name: String,
    /// When it occurs, for the reference page.
    pub doc: String,
    /// JSON Schema (2020-12) of its object.
    pub schema: Value,
}

/// All kinds.
#[derive(Clone, Debug)]
pub struct Catalogue {
    audit: Vec<AuditKind>,
}

/// One kind of the catalogue.
#[derive(Clone, Copy, Debug)]
pub enum CatalogueEntry<'c> {
    /// With a fixed table of fields.
    Table(&'static EventKind),
    /// With the view of a resource as its object.
    Audit(&'c AuditKind),
}

impl Catalogue {
    /// A catalogue of the kinds with fixed tables and these audit kinds.
    pub fn new(mut audit: Vec<AuditKind>) -> Self {
        audit.sort_by(|a, b| a.name.cmp(&b.name));
        Self { audit }
    }

    /// All kinds: traffic first, then audit, each sorted by name.
    pub fn entries(&self) -> impl Iterator<Item = CatalogueEntry<'_>> {
        let tables = kinds::ALL.iter().copied().map(CatalogueEntry::Table);
        tables.chain(self.audit.iter().map(CatalogueEntry::Audit))
    }

    /// The kind of that name.
    pub fn find(&self, name: &str) -> Option<CatalogueEntry<'_>> {
        self.entries().find(|entry| entry.name() == name)
    }

    /// The reference page over all kinds.
    pub fn markdown(&self) -> String {
        let mut page = String::from(PAGE_HEAD);
        page.push_str(REASONS_HEAD);
        for reason in Reason::ALL {
            row(&mut page, &[&code(reason.name()), reason.doc()]);
        }
        page.push_str(&formats_head());
        page.push_str(&formats::markdown(
            self.entries().map(|entry| entry.name().to_owned()),
        ));
        for entry in self.entries() {
            page.push_str(&entry.markdown());
        }
        page
    }
}

/// What the reference says about formats, before their table.
fn formats_head() -> String {
    format!(
        "\n## OCSF and ECS\n\nThe format of an event destination decides in which form it gets events. `json`: as above. \
         `ocsf`: events of the Open Cybersecurity Schema Framework {}, with the original event under \
         `unmapped.culvert`. `ecs`: documents of the Elastic Common Schema {}, with the original event as text in \
         `event.original`. This table has what both say about each kind. The number of a severity, in `severity_id` and \
         `event.severity`, is 1 for Informational, 2 for Low, 3 for Medium and 4 for High.\n\n",
        formats::OCSF_VERSION,
        formats::ECS_VERSION
    )
}

const PAGE_HEAD: &str = "# Events\n\nEvery event is a JSON object with the keys `event_id`, \
    `event_type`, `event_timestamp`, `account_id`, `principal` and `object`, in this order. \
    `principal` is null for traffic events and for actions of the server itself. Its `context` \
    says how the call came: address, user agent, operation ID, node, and `via` if the console or \
    the command line called. Events of updates also have `previous`: the changed fields as they \
    were. `truncated` lists fields that are missing because of their size. The fields below belong to `object`; a dotted field is a path of nested objects.\n\nA source of traffic \
    events can select fields (`fields`) and events (`filter`, a CEL expression over `ev`, such \
    as `ev.conn.server_port == 443`). Filterable fields are marked. Fields below `culvert` are in \
    retained events, in the live tail, and in events of sources that select them by name.\n";

const REASONS_HEAD: &str =
    "\n## Reasons\n\nValues of `culvert.reason`.\n\n| reason | meaning |\n|---|---|\n";

impl CatalogueEntry<'_> {
    /// Its name, with version suffix.
    pub fn name(&self) -> &str {
        match self {
            Self::Table(kind) => kind.name,
            Self::Audit(kind) => &kind.name,
        }
    }

    /// Its family: `Agent` for audit kinds of agent sessions, `Audit` for all others.
    pub fn family(&self) -> Family {
        match self {
            Self::Table(kind) => kind.family,
            Self::Audit(kind) if kind.name.starts_with("agent_session_") => Family::Agent,
            Self::Audit(_) => Family::Audit,
        }
    }

    /// When it occurs.
    pub fn doc(&self) -> &str {
        match self {
            Self::Table(kind) => kind.doc,
            Self::Audit(kind) => &kind.doc,
        }
    }

    /// JSON Schema (2020-12) of the whole event. Fields of traffic events are optional, because
    /// subscriptions select fields. Objects may have further keys, because fields may be added.
    pub fn json_schema(&self) -> Value {
        let (mut object, principal) = match self {
            Self::Table(kind) => (schema_of_fields(kind.fields), json!({"type": "null"})),
            Self::Audit(kind) => (kind.schema.clone(), schema_of_principal()),
        };
        let mut schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.name(),
            "description": self.doc(),
            "type": "object",
            "required": [
                "event_id", "event_type", "event_timestamp", "account_id", "principal", "object"
            ],
            "properties": {
                "event_id": {"type": "string", "pattern": "^ev_[0-9A-Za-z]{27}$"},
                "event_type": {"const": self.name()},
                "event_timestamp": {"type": "string", "format": "date-time", "pattern": moment(3)},
                "account_id": {"type": "string"},
                "principal": principal,
            },
        });
        if let Self::Audit(_) = self {
            schema["properties"]["previous"] = json!({
                "type": "object",
                "description": "Only in updates: the changed fields as they were. A changed secret is `[changed]`.",
            });
        }
        schema["properties"]["truncated"] = json!({
            "type": "array",
            "description": "Paths of fields that are missing or shortened because of their size.",
            "items": {"type": "string"},
        });
        if let Some(object) = object.as_object_mut() {
            object.remove("$schema");
            // References start at the root of the document, so the definitions must move there.
            if let Some(definitions) = object.remove("$defs") {
                schema["$defs"] = definitions;
            }
        }
        schema["properties"]["object"] = object;
        schema
    }

    /// Its section of the reference page.
    pub fn markdown(&self) -> String {
        let mut page = format!("\n## {}\n\n{}\n\n", self.name(), self.doc());
        match self {
            Self::Table(kind) => table_of_fields(&mut page, kind),
            Self::Audit(kind) => table_of_schema(&mut page, &kind.schema),
        }
        page
    }
}

fn schema_of_fields(fields: &[FieldDef]) -> Value {
    let mut root = Map::new();
    for field in fields {
        let mut properties = &mut root;
        let mut names: Vec<&str> = field.path.split('.').collect();
        let leaf = names.pop().unwrap_or_default();
        for name in names {
            let parent = properties
                .entry(name)
                .or_insert_with(|| json!({"type": "object", "minProperties": 1, "properties": {}}));
            properties = parent["properties"]
                .as_object_mut()
                .expect("no path is another's parent, so this was made above");
        }
        properties.insert(leaf.to_owned(), schema_of_field(field));
    }
    json!({"type": "object", "minProperties": 1, "properties": root})
}

fn schema_of_field(field: &FieldDef) -> Value {
    let mut schema = match field.ty {
        Type::Bool => json!({"type": "boolean"}),
        Type::Int32 => {
            json!({"type": "integer", "format": "int32", "minimum": i32::MIN, "maximum": i32::MAX})
        }
        Type::Int64 => {
            json!({"type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX})
        }
        Type::Text => json!({"type": "string"}),
        Type::Timestamp => json!({"type": "string", "format": "date-time", "pattern": moment(9)}),
        Type::Headers => json!({
            "type": "object",
            "additionalProperties": {"type": "array", "minItems": 1, "items": {"type": "string"}},
        }),
        Type::Logs => json!({
            "type": "array",
            "maxItems": crate::record::LOGS_MAX,
            "items": {
                "type": "object",
                "required": ["metadata"],
                "properties": {"metadata": {"type": "object"}},
            },
        }),
    };
    if !field.values.is_empty() {
        let mut values: Vec<Value> = field.values.iter().map(|value| json!(value)).collect();
        if field.nullable() {
            values.push(Value::Null);
        }
        schema["enum"] = values.into();
    }
    if field.nullable() {
        schema["type"] = json!([schema["type"], "null"]);
    }
    schema["description"] = field.doc.into();
    schema
}

fn schema_of_principal() -> Value {
    json!({
        "type": ["object", "null"],
        "required": ["id", "subject", "source", "credential"],
        "properties": {
            "id": {"type": "string"},
            "subject": {"type": "string"},
            "source": {"enum": ["API", "Agent", "CLI", "Dashboard"]},
            "credential": {
                "type": ["object", "null"],
                "required": ["id", "uri"],
                "properties": {"id": {"type": "string"}, "uri": {"type": "string"}},
            },
            "context": {
                "type": "object",
                "required": [
                    "client_ip", "client_port", "user_agent", "operation_id", "node", "via"
                ],
                "properties": {
                    "client_ip": {"type": ["string", "null"]},
                    "client_port": {"type": ["integer", "null"]},
                    "user_agent": {"type": "string"},
                    "operation_id": {"type": "string"},
                    "node": {"type": "string"},
                    "via": {"enum": ["console", "cli", null]},
                },
            },
        },
    })
}

/// The pattern of a time with `digits` fractional digits.
fn moment(digits: u8) -> String {
    format!(r"^\d{{4}}-\d{{2}}-\d{{2}}T\d{{2}}:\d{{2}}:\d{{2}}\.\d{{{digits}}}Z$")
}

fn table_of_fields(page: &mut String, kind: &EventKind) {
    page.push_str("| field | type | filterable | null when | meaning |\n|---|---|---|---|---|\n");
    for field in kind.fields {
        let filterable = if field.filterable { "yes" } else { "" };
        let null_when = field.null_when.unwrap_or("never");
        let (path, ty, doc) = (field.path, field.ty.name(), field.doc);
        row(page, &[&code(path), &code(ty), filterable, null_when, doc]);
    }
}

/// Lists the properties of an object's schema, with dotted names for those of nested objects.
fn table_of_schema(page: &mut String, schema: &Value) {
    page.push_str("| field | type | meaning |\n|---|---|---|\n");
    list_properties(page, schema, schema, "", 0);
}

/// Objects nested deeper than this are listed without their properties.
const DEPTH_MAX: usize = 8;

fn list_properties(page: &mut String, root: &Value, schema: &Value, prefix: &str, depth: usize) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (name, property) in properties {
        let path = format!("{prefix}{name}");
        let (target, is_nullable) = resolve(root, property);
        let doc = [property, target]
            .iter()
            .find_map(|schema| schema["description"].as_str())
            .unwrap_or_default();
        let mut ty = type_name(root, target);
        if is_nullable {
            ty.push_str(" or null");
        }
        row(page, &[&code(&path), &ty, &doc.replace('\n', " ")]);
        if depth < DEPTH_MAX {
            let inner = if target["items"].is_object() {
                resolve(root, &target["items"]).0
            } else {
                target
            };
            list_properties(page, root, inner, &format!("{path}."), depth + 1);
        }
    }
}

/// Resolves references and the `anyOf` of an optional value. Returns the schema, and whether null
/// is allowed too.
fn resolve<'s>(root: &'s Value, schema: &'s Value) -> (&'s Value, bool) {
    let (mut schema, mut is_nullable) = (schema, false);
    for _ in 0..DEPTH_MAX {
        let options = schema["anyOf"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let is_null = |option: &&Value| option["type"] == "null";
        if let Some(reference) = schema["$ref"].as_str() {
            schema = reference
                .strip_prefix('#')
                .and_then(|pointer| root.pointer(pointer))
                .unwrap_or(&Value::Null);
        } else if options.len() == 2 && options.iter().any(|option| is_null(&option)) {
            is_nullable = true;
            schema = options
                .iter()
                .find(|option| !is_null(option))
                .unwrap_or(&Value::Null);
        } else {
            break;
        }
    }
    is_nullable |= schema["type"]
        .as_array()
        .is_some_and(|types| types.iter().any(|ty| ty == "null"));
    (schema, is_nullable)
}

fn type_name(root: &Value, schema: &Value) -> String {
    let of = |ty: &Value| match ty.as_str() {
        Some("array") => {
            format!(
                "list of {}",
                type_name(root, resolve(root, &schema["items"]).0)
            )
        }
        Some(name) => name.to_owned(),
        None => "any".to_owned(),
    };
    match &schema["type"] {
        Value::Array(types) => types
            .iter()
            .filter(|ty| *ty != "null")
            .map(of)
            .collect::<Vec<_>>()
            .join(" or "),
        one => of(one),
    }
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// One row of a table.
fn row(page: &mut String, cells: &[&str]) {
    for cell in cells {
        // A bar would end the cell.
        write!(page, "| {} ", cell.replace('|', "\\|")).expect("writing to a string cannot fail");
    }
    page.push_str("|\n");
}

#[cfg(test)]
mod tests;
