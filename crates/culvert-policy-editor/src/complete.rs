//! What may stand at a position of a policy.

use std::ops::Range;

use culvert_edge_config::ACTIONS;
use culvert_policy::Phase;
use culvert_yaml::TEXT_BYTES_MAX;

use crate::cursor::{Cursor, word_start};
use crate::position::floor;
use crate::schema::{self, Config, Place};
use crate::{templates, words};

/// Maximum number of completions.
const COMPLETIONS_MAX: usize = 400;

/// Something that may stand at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The name that people see.
    pub label: String,
    /// What it is.
    pub kind: Kind,
    /// Its type, or how it is called; may be empty.
    pub detail: String,
    /// Its description in the reference, in Markdown; may be empty.
    pub doc: String,
    /// The text that it inserts.
    pub insert: String,
}

/// What a completion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole policy.
    Template,
    /// A key of a policy, a rule, an action or a configuration.
    Field,
    /// The name of an action.
    Action,
    /// A value of a field.
    Value,
    /// A variable of expressions.
    Variable,
    /// A function or macro of expressions.
    Function,
}

impl Kind {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Field => "field",
            Self::Action => "action",
            Self::Value => "value",
            Self::Variable => "variable",
            Self::Function => "function",
        }
    }
}

/// Completions, and the bytes that they replace.
#[derive(Debug, Default)]
pub struct Completions {
    /// The bytes that they replace.
    pub at: Range<usize>,
    /// Them.
    pub items: Vec<Completion>,
}

/// What may stand at a byte of a text.
pub fn complete(text: &str, byte: usize) -> Completions {
    let byte = floor(text, byte);
    let nothing = Completions {
        at: byte..byte,
        items: Vec::new(),
    };
    if text.len() > TEXT_BYTES_MAX {
        return nothing;
    }
    if text.trim().is_empty() {
        let mut items = templates();
        items.extend(phases(&[], text));
        return Completions {
            at: 0..text.len(),
            items,
        };
    }
    let Some(cursor) = Cursor::at(text, byte) else {
        return nothing;
    };
    let Some(place) = Place::of(&cursor, &cursor.path) else {
        return nothing;
    };
    let (others, mut items): (&[char], _) = match &place {
        Place::Expression(phase) => (&['_'], in_expression(&cursor.before, *phase)),
        Place::Config(config) if config.is_expression && !cursor.is_key => {
            (&['_'], in_expression(&cursor.before, config.phase))
        }
        Place::Config(config) if !cursor.is_key => match words::in_template(&cursor.before) {
            Some(inside) => (&['_'], in_expression(inside, config.phase)),
            None => (&['_', '-'], of_config(&cursor, config, text)),
        },
        Place::Config(config) => (&['_', '-'], of_config(&cursor, config, text)),
        Place::Type(phase) if !cursor.is_key => (&['_', '-'], actions(*phase)),
        Place::Root => (&['_', '-'], phases(&cursor.keys(&[]), text)),
        Place::Rule => (&['_', '-'], keys(&cursor, &schema::RULE, text)),
        Place::Action => (&['_', '-'], keys(&cursor, &schema::ACTION, text)),
        // A list begins with an item.
        Place::Rules if !cursor.is_key && cursor.is_plain => (
            &['_', '-'],
            first_of(keys(&cursor, &schema::RULE, text), text),
        ),
        Place::Actions if !cursor.is_key && cursor.is_plain => (
            &['_', '-'],
            first_of(keys(&cursor, &schema::ACTION, text), text),
        ),
        Place::Rules | Place::Actions | Place::Type(_) | Place::Name | Place::Expressions => {
            return nothing;
        }
    };
    items.truncate(COMPLETIONS_MAX);
    Completions {
        at: word_start(text, byte, others)..byte,
        items,
    }
}

/// Whether keys of a text are written as in JSON.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

fn templates() -> Vec<Completion> {
    let all = templates::all().iter();
    let items = all.map(|template| Completion {
        label: template.title.clone(),
        kind: Kind::Template,
        detail: "template".to_owned(),
        doc: format!("```\n{}```", template.text),
        insert: template.text.clone(),
    });
    items.collect()
}

fn field(name: &str, has_parts: bool, text: &str) -> String {
    match (is_json(text), has_parts) {
        // The quotes of a key are the writer's.
        (true, _) => name.to_owned(),
        (false, true) => format!("{name}:"),
        (false, false) => format!("{name}: "),
    }
}

fn phases(known: &[&str], text: &str) -> Vec<Completion> {
    let phases = Phase::ALL.into_iter();
    let missing = phases.filter(|phase| !known.contains(&phase.name()));
    let items = missing.map(|phase| Completion {
        label: phase.name().to_owned(),
        kind: Kind::Field,
        detail: "phase".to_owned(),
        doc: format!("Rules that run {}.", phase.doc()),
        insert: field(phase.name(), true, text),
    });
    items.collect()
}

/// The keys that an object lacks.
fn keys(cursor: &Cursor, all: &[(&str, &str)], text: &str) -> Vec<Completion> {
    let known = cursor.keys(&cursor.path);
    let missing = all.iter().filter(|(name, _)| !known.contains(name));
    let items = missing.map(|(name, doc)| Completion {
        label: (*name).to_owned(),
        kind: Kind::Field,
        detail: String::new(),
        doc: (*doc).to_owned(),
        insert: field(
            name,
            ["expressions", "actions", "config"].contains(name),
            text,
        ),
    });
    items.collect()
}

/// The items as the first ones of a list.
fn first_of(items: Vec<Completion>, text: &str) -> Vec<Completion> {
    let dash = if is_json(text) { "" } else { "- " };
    let items = items.into_iter().map(|item| Completion {
        insert: format!("{dash}{}", item.insert),
        ..item
    });
    items.collect()
}

fn actions(phase: Phase) -> Vec<Completion> {
    let all = ACTIONS.sorted().into_iter();
    let fitting = all.filter(|ty| ty.phases.contains(&phase));
    let items = fitting.map(|ty| Completion {
        label: ty.name.to_owned(),
        kind: Kind::Action,
        detail: "action".to_owned(),
        doc: schema::action_doc(ty),
        insert: ty.name.to_owned(),
    });
    items.collect()
}

/// Fields and values of a configuration.
fn of_config(cursor: &Cursor, config: &Config, text: &str) -> Vec<Completion> {
    let value = |label: &str| Completion {
        label: label.to_owned(),
        kind: Kind::Value,
        detail: String::new(),
        doc: String::new(),
        insert: label.to_owned(),
    };
    let choices = schema::choices(config.schema);
    if !cursor.is_key && !choices.is_empty() {
        return choices.into_iter().map(value).collect();
    }
    if !cursor.is_key && schema::is_bool(config.schema) {
        return ["true", "false"].map(value).to_vec();
    }
    if !cursor.is_key && !cursor.is_plain {
        return Vec::new();
    }
    let known = cursor.keys(&cursor.path);
    let fields = schema::fields(config.schema).into_iter();
    let missing = fields.filter(|field| !known.contains(&field.name));
    let mut missing: Vec<_> = missing.collect();
    missing.sort_by_key(|field| !field.is_required);
    let items = missing.into_iter().map(|one| Completion {
        label: one.name.to_owned(),
        kind: Kind::Field,
        detail: match one.is_required {
            true => format!("{}, required", one.kind),
            false => one.kind,
        },
        doc: one.doc,
        insert: field(one.name, one.has_parts, text),
    });
    items.collect()
}

/// Names that may follow the beginning of an expression.
fn in_expression(before: &str, phase: Phase) -> Vec<Completion> {
    if words::is_in_literal(before) {
        return Vec::new();
    }
    let (object, _) = words::path_before(before);
    let words = words::below(object, phase).into_iter();
    let items = words.map(|word| Completion {
        kind: match word.is_function {
            true => Kind::Function,
            false => Kind::Variable,
        },
        insert: word.name.clone(),
        label: word.name,
        detail: word.detail,
        doc: word.doc,
    });
    items.collect()
}
