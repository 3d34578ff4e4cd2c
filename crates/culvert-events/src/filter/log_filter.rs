//! Selects the events that a query of the logs returns: a CEL condition over the envelope and every
//! field of every kind.
//!
//! The envelope's keys are variables (`event_id`, `event_type`, `event_timestamp`, `account_id`,
//! `principal`), and so is `endpoint_id`. The fields of the object are below `ev`, as in the
//! filters of subscriptions. A field that no kind has is an error that names it. If a condition has
//! no result for an event, for example because its kind lacks a field, the event is not selected.

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_base::Refusal;
use culvert_cel::{
    Env, EvalErrorKind, Key, Limits, Map, Predicate, Resolver, Slot, Timestamp, Type, Value,
    ValueRef,
};
use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;

use crate::catalogue::field::{FieldDef, Type as FieldType};
use crate::catalogue::kind::Family;
use crate::catalogue::{Catalogue, CatalogueEntry};
use crate::filter::hint;
use crate::filter::need::{Need, OfAudit, OfRecord, Subject};
use crate::filter::summary::Summary;
use crate::record::Record;

/// An event as the log stores it.
#[derive(Clone, Copy, Debug)]
pub struct Logged<'a> {
    /// The envelope.
    pub envelope: &'a str,
    /// `ep_…` of the endpoint that had the traffic; empty for other events.
    pub endpoint: &'a str,
}

/// A condition on the events of all kinds.
#[derive(Debug)]
pub struct LogFilter {
    condition: Predicate,
    /// The variable of each slot that the condition uses.
    named: Vec<(Slot, Variable)>,
    /// What an event must have so that the condition can hold.
    need: Need,
    /// The cost of comparing that with an event.
    need_work: u64,
}

#[derive(Clone, Debug)]
enum Variable {
    Id,
    Kind,
    Time,
    Account,
    Principal,
    Endpoint,
    /// A path in the object.
    Field(Field),
}

#[derive(Clone, Debug)]
struct Field {
    path: String,
    /// Whether a kind of audit event has it.
    is_of_audit: bool,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    event_id: &'a str,
    event_type: &'a str,
    event_timestamp: &'a str,
    account_id: &'a str,
    #[serde(borrow)]
    principal: Option<&'a RawValue>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Maximum depth of nested objects and lists. Deeper values are null.
const DEPTH_MAX: usize = 32;

impl LogFilter {
    /// Compiles `source` for the events of `catalogue`.
    ///
    /// # Errors
    /// 5404 with line and column if it is not a condition, or compares a field of traffic with a literal of another type;
    /// 5405 for an unknown field.
    pub fn compile(catalogue: &Catalogue, source: &str) -> Result<Self, Refusal> {
        let filter = Self::compile_with(variables(catalogue.entries()), source)?;
        hint::check_types(source)?;
        Ok(filter)
    }

    /// Compiles `source` for audit events: it names no field of traffic alone.
    ///
    /// # Errors
    /// As [`LogFilter::compile`].
    pub fn compile_for_audit(catalogue: &Catalogue, source: &str) -> Result<Self, Refusal> {
        let entries = catalogue.entries();
        let of_audit = entries.filter(|entry| matches!(entry, CatalogueEntry::Audit(_)));
        let mut variables = variables(of_audit);
        variables.remove(ENDPOINT);
        Self::compile_with(variables, source)
    }

    /// Whether the condition may hold for an event of the audit log.
    pub fn may_match_audit(&self) -> bool {
        self.need.may_be(&OfAudit)
    }

    /// Whether the condition may hold for an event of a piece of the traffic log with this summary.
    pub fn may_match_piece(&self, summary: &Summary<'_>) -> bool {
        self.need.may_be(summary)
    }

    /// The cost of [`LogFilter::may_match_record`], at most. A unit is about a nanosecond.
    pub fn record_work(&self) -> u64 {
        self.need_work
    }

    /// Whether the condition may hold for a traffic event, which is not encoded for that.
    pub fn may_match_record(&self, record: &Record, endpoint: &str) -> bool {
        self.need.may_be(&OfRecord { record, endpoint })
    }

    fn compile_with(
        variables: BTreeMap<String, (Variable, Type)>,
        source: &str,
    ) -> Result<Self, Refusal> {
        let mut env = Env::new(Limits::FILTER);
        for (index, (name, (_, of))) in variables.iter().enumerate() {
            env = env.with_slot(name, slot(index), of.clone());
        }
        let condition = env
            .compile_predicate(source)
            .map_err(|error| hint::refusal(error, source, variables.keys()))?;
        let need = Need::of(source, &|names| subject(&variables, names));
        let is_named = |index: usize| condition.slots().contains(&slot(index));
        let named = variables.into_values().enumerate();
        let named = named.filter(|(index, _)| is_named(*index));
        let named = named.map(|(index, (variable, _))| (slot(index), variable));
        Ok(Self {
            named: named.collect(),
            condition,
            need_work: need.work(),
            need,
        })
    }

    /// Whether it selects an event, and the evaluation cost in units. An event whose evaluation reaches a limit is
    /// selected: otherwise a client could hide its request from a search by making it expensive.
    pub fn matches(&self, logged: Logged<'_>) -> (bool, u64) {
        let Some(values) = self.values(logged) else {
            return (false, 0);
        };
        let (holds, units) = self.condition.test_metered(&values);
        let is_selected = holds.unwrap_or_else(|error| error.is_limit());
        (is_selected, units)
    }

    /// Whether a hold with this condition keeps an event, and the evaluation cost in units. That are the events that it
    /// selects, and those for which it has no result other than because a field, key or element is missing. A text that is no
    /// event is kept too, and so is one that lacks a field of the condition because of its size.
    pub fn keeps(&self, logged: Logged<'_>) -> (bool, u64) {
        if self.is_cut(logged) {
            return (true, 0);
        }
        let Some(values) = self.values(logged) else {
            return (true, 0);
        };
        let (holds, units) = self.condition.test_metered(&values);
        let is_kept = holds.unwrap_or_else(|error| {
            !matches!(
                error.kind,
                EvalErrorKind::NoValue
                    | EvalErrorKind::Missing
                    | EvalErrorKind::NoSuchKey
                    | EvalErrorKind::IndexOutOfRange
            )
        });
        (is_kept, units)
    }

    /// Whether a field that the condition reads is missing because of the event's size, or a part of it. A caller chooses
    /// what its calls write, and could hide them from a hold.
    fn is_cut(&self, logged: Logged<'_>) -> bool {
        #[derive(Deserialize)]
        struct Cut {
            #[serde(default)]
            truncated: Vec<String>,
        }
        // Few have it, and to read all would take twice the time.
        if !logged.envelope.contains("\"truncated\"") {
            return false;
        }
        let Ok(Cut { truncated }) = serde_json::from_str(logged.envelope) else {
            return true;
        };
        let is_below = |inner: &str, outer: &str| {
            let rest = inner.strip_prefix(outer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let cut = truncated.iter().filter(|path| !is_below(path, "previous"));
        // Paths of traffic events begin in the object.
        let mut cut = cut.map(|path| path.strip_prefix("object.").unwrap_or(path));
        cut.any(|cut| {
            self.named.iter().any(|(_, variable)| match variable {
                Variable::Field(Field { path, .. }) => is_below(path, cut) || is_below(cut, path),
                _ => false,
            })
        })
    }

    /// The variables that the condition uses; `None` if the text is not an event.
    fn values(&self, logged: Logged<'_>) -> Option<Values> {
        let envelope: Envelope<'_> = serde_json::from_str(logged.envelope).ok()?;
        let has_fields = self
            .named
            .iter()
            .any(|(_, variable)| matches!(variable, Variable::Field(_)));
        let object: Json = match has_fields {
            true => serde_json::from_str(envelope.object.get()).ok()?,
            false => Json::Null,
        };
        let value = |variable: &Variable| {
            Some(match variable {
                Variable::Id => Value::from(envelope.event_id),
                Variable::Kind => Value::from(envelope.event_type),
                Variable::Time => Value::Timestamp(Timestamp::parse(envelope.event_timestamp)?),
                Variable::Account => Value::from(envelope.account_id),
                Variable::Endpoint => Value::from(logged.endpoint),
                Variable::Principal => {
                    let text = envelope.principal.map_or("null", RawValue::get);
                    of_json(&serde_json::from_str(text).ok()?, DEPTH_MAX)
                }
                Variable::Field(Field { path, .. }) => {
                    let found = path.split('.').try_fold(&object, |at, key| at.get(key));
                    of_json(found?, DEPTH_MAX)
                }
            })
        };
        let named = self.named.iter();
        let values = named.map(|(slot, variable)| (*slot, value(variable)));
        Some(Values(values.collect()))
    }
}

/// The values of a condition's variables. There are few, so a linear search is the fastest.
struct Values(Vec<(Slot, Option<Value>)>);

impl Resolver for Values {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        let found = self.0.iter().find(|(one, _)| *one == slot);
        found?.1.as_ref().map(Value::borrow)
    }
}

fn slot(index: usize) -> Slot {
    Slot::try_from(index).unwrap_or(Slot::MAX)
}

/// The endpoint that had the traffic.
const ENDPOINT: &str = "endpoint_id";

/// Every variable by name, and its type.
fn variables<'a>(
    entries: impl Iterator<Item = CatalogueEntry<'a>>,
) -> BTreeMap<String, (Variable, Type)> {
    let mut variables = BTreeMap::new();
    for (name, variable, of) in [
        ("event_id", Variable::Id, Type::String),
        ("event_type", Variable::Kind, Type::String),
        ("event_timestamp", Variable::Time, Type::Timestamp),
        ("account_id", Variable::Account, Type::String),
        ("principal", Variable::Principal, Type::Dyn),
        (ENDPOINT, Variable::Endpoint, Type::String),
    ] {
        variables.insert(name.to_owned(), (variable, of));
    }
    let mut add = |path: &str, of: Type, is_of_audit: bool| {
        let field = Field {
            path: path.to_owned(),
            is_of_audit,
        };
        let field = (Variable::Field(field), of.clone());
        let known = variables.entry(format!("ev.{path}")).or_insert(field);
        if known.1 != of {
            known.1 = Type::Dyn;
        }
        if let Variable::Field(field) = &mut known.0 {
            field.is_of_audit |= is_of_audit;
        }
    };
    for entry in entries {
        match entry {
            CatalogueEntry::Table(kind) => {
                for field in kind.fields {
                    add(field.path, type_of(field), kind.family != Family::Traffic);
                }
            }
            CatalogueEntry::Audit(kind) => {
                let properties = kind.schema.get("properties").and_then(Json::as_object);
                for (name, _) in properties.into_iter().flatten() {
                    add(name, Type::Dyn, true);
                }
            }
        }
    }
    variables
}

/// The subject of the variable that a path of names begins with, and how many of them are its name.
fn subject(
    variables: &BTreeMap<String, (Variable, Type)>,
    names: &[&str],
) -> Option<(Subject, usize)> {
    let known = |n_names: usize| Some((variables.get(&names.get(..n_names)?.join("."))?, n_names));
    let ((variable, _), n_names) = (1..=names.len()).rev().find_map(known)?;
    let subject = match variable {
        Variable::Kind => Subject::Kind,
        Variable::Account => Subject::Account,
        Variable::Endpoint => Subject::Endpoint,
        Variable::Principal if names.len() > n_names => {
            return Some((Subject::PrincipalField, names.len()));
        }
        Variable::Id | Variable::Time | Variable::Principal => Subject::Other,
        Variable::Field(Field { path, is_of_audit }) => Subject::Field {
            path: path.as_str().into(),
            is_of_audit: *is_of_audit,
        },
    };
    Some((subject, n_names))
}

fn type_of(field: &FieldDef) -> Type {
    match field.ty {
        _ if field.nullable() => Type::Dyn,
        FieldType::Bool => Type::Bool,
        FieldType::Int32 | FieldType::Int64 => Type::Int,
        FieldType::Text => Type::String,
        _ => Type::Dyn,
    }
}

/// JSON as a value; values nested too deeply are null.
fn of_json(json: &Json, depth: usize) -> Value {
    match json {
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::Double(number),
            _ => Value::Null,
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) if depth > 0 => {
            let items = items.iter().map(|item| of_json(item, depth - 1));
            Value::List(items.collect())
        }
        Json::Object(entries) if depth > 0 => {
            let entries = entries.iter().map(|(key, value)| {
                let key = Key::String(key.as_str().into());
                (key, of_json(value, depth - 1))
            });
            // Keys of an object are unique.
            let map = Map::new(entries.collect()).unwrap_or_default();
            Value::Map(Arc::new(map))
        }
        Json::Null | Json::Array(_) | Json::Object(_) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::code;
    use serde_json::json;

    use super::*;
    use crate::catalogue::AuditKind;

    fn catalogue() -> Catalogue {
        Catalogue::new(vec![AuditKind {
            name: "vault_created.v0".to_owned(),
            doc: String::new(),
            schema: json!({"properties": {"id": {}, "name": {}, "nested": {}}}),
        }])
    }

    fn matches(source: &str, envelope: &str) -> bool {
        let filter = LogFilter::compile(&catalogue(), source).unwrap();
        let logged = Logged {
            envelope,
            endpoint: "ep_1",
        };
        filter.matches(logged).0
    }

    const AUDIT: &str = r#"{"event_id":"ev_1","event_type":"vault_created.v0","event_timestamp":"2026-11-20T19:53:18.737Z","account_id":"ac_1","principal":{"id":"usr_1"},"object":{"id":"vault_1","name":"a","nested":{"list":[1,2.5,null]}}}"#;
    const TRAFFIC: &str = r#"{"event_id":"ev_2","event_type":"http_request_complete.v0","event_timestamp":"2026-11-20T19:53:18.737Z","account_id":"ac_1","principal":null,"object":{"conn":{"server_port":443},"http":{"request":{"headers":{"Host":["a"]},"user_agent":null},"response":{"status_code":500}}}}"#;

    #[test]
    fn an_event_that_exceeds_a_limit_is_selected() {
        let long = TRAFFIC.replace("[\"a\"]", &format!("[\"{}\"]", "a".repeat(70_000)));
        let source = "ev.http.request.headers['Host'][0].matches('b$')";
        assert!(!matches(source, TRAFFIC));
        assert!(matches(source, &long));
        // Another error selects nothing.
        assert!(!matches("ev.http.request.headers['Nope'][0] == 'a'", &long));
    }

    /// A hold errs on the side of keeping, but not for every kind that lacks a field.
    #[test]
    fn a_hold_keeps_what_it_cannot_evaluate() {
        let long = AUDIT.replace(
            "\"name\":\"a\"",
            &format!("\"name\":\"{}\"", "a".repeat(70_000)),
        );
        let cut = |path: &str| {
            let whole = AUDIT.strip_suffix('}').unwrap();
            format!("{whole},\"truncated\":[\"{path}\"]}}")
        };
        let keeps = |source: &str, envelope: &str| {
            let filter = LogFilter::compile(&catalogue(), source).unwrap();
            let logged = Logged {
                envelope,
                endpoint: "",
            };
            filter.keeps(logged).0
        };
        for (source, envelope, is_kept) in [
            ("ev.name == 'a'", AUDIT, true),
            ("ev.name == 'b'", AUDIT, false),
            ("true", AUDIT, true),
            // The limit of a string.
            ("ev.name.matches('b$')", &long, true),
            // Wrong types and values.
            ("ev.name > 1", AUDIT, true),
            ("ev.nested.list[0] / 0 == 1", AUDIT, true),
            ("int(ev.name) == 1", AUDIT, true),
            ("ev.name.matches(ev.name + '(')", AUDIT, true),
            // What the event lacks.
            ("ev.nested.nothing == 1", AUDIT, false),
            ("ev.nested.list[9] == 1", AUDIT, false),
            ("ev.conn.server_port == 1", AUDIT, false),
            ("ev.conn.server_port == 1 || ev.name == 'a'", AUDIT, true),
            ("ev.conn.server_port == 1 || ev.name == 'b'", AUDIT, false),
            // What the event lost because of its size, or a part of it.
            ("ev.name == 'b'", &cut("object.name"), true),
            ("has(ev.name) && ev.name == 'b'", &cut("object.name"), true),
            ("ev.nested.list[9] == 1", &cut("object.nested.list"), true),
            ("ev.conn.server_port == 1", &cut("object.conn"), true),
            ("ev.name == 'b'", &cut("object.names"), false),
            ("ev.name == 'b'", &cut("previous.name"), false),
            ("event_id == 'ev_9'", &cut("object.name"), false),
            // No event.
            ("ev.name == 'b'", "{", true),
            ("ev.name == 'b'", "", true),
            ("event_id == 'ev_2'", "{\"event_id\": 1}", true),
        ] {
            assert_eq!(keeps(source, envelope), is_kept, "{source}");
        }
    }

    #[test]
    fn every_field_of_every_kind_is_a_variable() {
        for (source, of_audit, of_traffic) in [
            ("event_id == 'ev_1'", true, false),
            ("event_type.startsWith('http_')", false, true),
            (
                "event_timestamp > timestamp('2026-11-20T00:00:00Z')",
                true,
                true,
            ),
            ("account_id == 'ac_2'", false, false),
            ("principal.id == 'usr_1'", true, false),
            ("principal == null", false, true),
            ("endpoint_id == 'ep_1'", true, true),
            ("ev.name == 'a'", true, false),
            ("has(ev.name)", true, false),
            ("ev.nested.list[1] > 2.0", true, false),
            ("ev.conn.server_port == 443", false, true),
            ("ev.http.response.status_code >= 500", false, true),
            ("ev.http.request.user_agent == null", false, true),
            ("ev.http.request.headers['Host'][0] == 'a'", false, true),
            ("ev.name == 'a' || ev.conn.server_port == 443", true, true),
            ("ev.http.request.body_length > 0", false, false),
        ] {
            assert_eq!(matches(source, AUDIT), of_audit, "{source}");
            assert_eq!(matches(source, TRAFFIC), of_traffic, "{source}");
        }
        assert!(!matches("true", "no event"));
    }

    #[test]
    fn what_no_event_has_is_refused_by_name() {
        for (source, code) in [
            ("ev.nothing == 1", code::EVENT_FILTER_FIELD_UNKNOWN),
            ("ev.conn.server_port == 'x'", code::EVENT_FILTER_INVALID),
            ("ev.conn.server_port", code::EVENT_FILTER_INVALID),
            ("", code::EVENT_FILTER_INVALID),
        ] {
            let refused = LogFilter::compile(&catalogue(), source).unwrap_err();
            assert_eq!(refused.code, Some(code), "{source}: {refused}");
        }
    }

    #[test]
    fn what_only_traffic_has_is_refused_for_audit_events() {
        let compile = |source: &str| LogFilter::compile_for_audit(&catalogue(), source);
        for source in [
            "ev.conn.server_port == 443",
            "ev.name == 'a' || ev.conn.server_port == 443",
            "endpoint_id == 'ep_1'",
        ] {
            assert!(LogFilter::compile(&catalogue(), source).is_ok(), "{source}");
            assert!(compile(source).is_err(), "{source}");
        }
        assert!(compile("ev.name == 'a' && principal.id == 'usr_1'").is_ok());
    }
}
