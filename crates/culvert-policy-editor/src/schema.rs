//! The fields of a policy: those of rules and actions, and those of configurations, from their schemas.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use culvert_edge_config::ACTIONS;
use culvert_policy::Phase;
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::reference::{kind, schema_value};
use culvert_yaml::Step;
use serde_json::Value;

use crate::cursor::Cursor;

/// The fields of a rule.
pub(crate) const RULE: [(&str, &str); 3] = [
    (
        "name",
        "Optional label of the rule, at most 255 bytes. Events and errors name it.",
    ),
    (
        "expressions",
        "Optional conditions in CEL, at most 20. The actions run if all are true; without conditions they always run.",
    ),
    ("actions", "What the rule does, in order: 1 to 20 actions."),
];

/// The fields of an action.
pub(crate) const ACTION: [(&str, &str); 2] = [
    ("type", "The name of the action."),
    ("config", "The configuration of the action."),
];

/// What a place of a policy is.
#[derive(Debug)]
pub(crate) enum Place {
    /// The whole policy: its keys are phases.
    Root,
    /// A list of rules.
    Rules,
    /// A rule.
    Rule,
    /// The name of a rule.
    Name,
    /// The conditions of a rule.
    Expressions,
    /// A list of actions.
    Actions,
    /// An action.
    Action,
    /// The name of an action.
    Type(Phase),
    /// An expression.
    Expression(Phase),
    /// A part of the configuration of an action.
    Config(Box<Config>),
}

/// A part of the configuration of an action.
#[derive(Debug)]
pub(crate) struct Config {
    pub phase: Phase,
    /// Its schema; null if it is not known.
    pub schema: &'static Value,
    /// Whether its text is an expression; otherwise it can have expressions between `${` and `}`.
    pub is_expression: bool,
}

/// The schema of the configuration of each action.
static SCHEMAS: LazyLock<BTreeMap<&'static str, Value>> = LazyLock::new(|| {
    let actions = ACTIONS.sorted().into_iter();
    let with_schema = actions.filter_map(|ty| Some((ty.name, schema_value(ty.schema?))));
    with_schema.collect()
});

static NULL: Value = Value::Null;

/// The phase of this name.
pub(crate) fn phase(name: &str) -> Option<Phase> {
    Phase::ALL.into_iter().find(|phase| phase.name() == name)
}

impl Place {
    /// The place at the end of these steps of a cursor's document; `None` for one that a policy does not have.
    pub(crate) fn of(cursor: &Cursor, path: &[Step]) -> Option<Self> {
        let (first, rest) = match path.split_first() {
            None => return Some(Self::Root),
            Some((Step::Key(name), rest)) => (phase(name)?, rest),
            Some(_) => return None,
        };
        let key = |step: &Step, name: &str| matches!(step, Step::Key(key) if key == name);
        let is_item = |step: &Step| matches!(step, Step::Item(_));
        match rest {
            [] => Some(Self::Rules),
            [rule] => is_item(rule).then_some(Self::Rule),
            [_, list] if key(list, "name") => Some(Self::Name),
            [_, list] if key(list, "expressions") => Some(Self::Expressions),
            [_, list] if key(list, "actions") => Some(Self::Actions),
            [_, list, item] if key(list, "expressions") && is_item(item) => {
                Some(Self::Expression(first))
            }
            [_, list, item] if key(list, "actions") && is_item(item) => Some(Self::Action),
            [_, list, _, field] if key(list, "actions") && key(field, "type") => {
                Some(Self::Type(first))
            }
            [_, list, _, field, inner @ ..] if key(list, "actions") && key(field, "config") => {
                let action = path.get(..4)?;
                let ty = cursor.text(action, "type")?;
                let mut schema = SCHEMAS.get(ty)?;
                let mut is_expression = false;
                for step in inner {
                    if let Step::Key(name) = step {
                        is_expression = is_cel(name);
                    }
                    schema = below(schema, step);
                }
                Some(Self::Config(Box::new(Config {
                    phase: first,
                    schema,
                    is_expression,
                })))
            }
            _ => None,
        }
    }
}

/// Whether the values of a field are expressions.
fn is_cel(field: &str) -> bool {
    ["bucket_key", "retry_condition"].contains(&field)
}

/// The schema without the alternative that the value is null.
fn plain(schema: &'static Value) -> &'static Value {
    let any = schema.get("anyOf").and_then(Value::as_array);
    any.and_then(|any| any.first()).unwrap_or(schema)
}

fn below(schema: &'static Value, step: &Step) -> &'static Value {
    let schema = plain(schema);
    let found = match step {
        Step::Key(name) => schema
            .get("properties")
            .and_then(|fields| fields.get(name))
            .or_else(|| schema.get("additionalProperties")),
        Step::Item(_) => schema.get("items"),
    };
    found.unwrap_or(&NULL)
}

/// A field of a configuration.
#[derive(Debug)]
pub(crate) struct Field {
    pub name: &'static str,
    pub kind: String,
    pub doc: String,
    pub is_required: bool,
    /// Whether its value is a list or an object, which begins on the next line.
    pub has_parts: bool,
}

/// The fields of an object of a configuration.
pub(crate) fn fields(schema: &'static Value) -> Vec<Field> {
    let schema = plain(schema);
    let required = texts(schema.get("required"));
    let fields = schema.get("properties").and_then(Value::as_object);
    let fields = fields.into_iter().flatten();
    fields
        .map(|(name, field)| {
            let kind = kind(field);
            Field {
                name,
                has_parts: matches!(&*kind, "list" | "object"),
                is_required: required.contains(&name.as_str()),
                doc: doc(field),
                kind,
            }
        })
        .collect()
}

/// The description of a field, with its values.
pub(crate) fn doc(field: &'static Value) -> String {
    let said = field.get("description").and_then(Value::as_str);
    let mut doc = said.unwrap_or_default().replace('\n', " ");
    let choices = choices(field);
    if !choices.is_empty() {
        doc.push_str(&format!(" One of `{}`.", choices.join("`, `")));
    }
    doc.trim_start().to_owned()
}

/// The values that a field can have, if they are listed.
pub(crate) fn choices(schema: &'static Value) -> Vec<&'static str> {
    let schema = plain(schema);
    let listed = texts(schema.get("enum"));
    if !listed.is_empty() {
        return listed;
    }
    let one_of = schema.get("oneOf").and_then(Value::as_array);
    let consts = one_of.into_iter().flatten();
    let consts = consts.filter_map(|one| match one.get("const") {
        Some(value) => value.as_str().map(|text| vec![text]),
        None => Some(texts(one.get("enum"))),
    });
    consts.flatten().collect()
}

/// Whether a field is a bool.
pub(crate) fn is_bool(schema: &'static Value) -> bool {
    kind(plain(schema)) == "bool"
}

fn texts(value: Option<&'static Value>) -> Vec<&'static str> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).collect()
}

/// The reference of an action: what it does and where it may be.
pub(crate) fn action_doc(ty: &ActionType) -> String {
    let phases: Vec<_> = ty
        .phases
        .iter()
        .map(|phase| format!("`{}`", phase.name()))
        .collect();
    format!("{}\n\nIn {}.", ty.doc, phases.join(", "))
}
