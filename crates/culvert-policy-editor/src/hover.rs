//! What stands at a position of a policy.

use std::ops::Range;

use culvert_edge_config::ACTIONS;
use culvert_policy::Phase;
use culvert_yaml::TEXT_BYTES_MAX;

use crate::cursor::{Cursor, word};
use crate::position::floor;
use crate::schema::{self, Place};
use crate::words;

/// What stands at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hover {
    /// The bytes that it is about.
    pub at: Range<usize>,
    /// Its description in the reference, in Markdown.
    pub doc: String,
}

/// What stands at a byte of a text; `None` for what the reference does not have.
pub fn hover(text: &str, byte: usize) -> Option<Hover> {
    let byte = floor(text, byte);
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let cursor = Cursor::at(text, byte)?;
    let whole = format!("{}{}", cursor.before, cursor.behind);
    if cursor.is_key {
        let at = word(text, byte, &['_', '-']);
        let doc = of_key(&cursor, &whole)?;
        return Some(Hover { at, doc });
    }
    match Place::of(&cursor, &cursor.path)? {
        Place::Type(_) => {
            let ty = ACTIONS.find(&whole)?;
            let at = word(text, byte, &['_', '-']);
            let doc = format!("**{}**\n\n{}", ty.name, schema::action_doc(ty));
            Some(Hover { at, doc })
        }
        Place::Expression(phase) => {
            in_expression(&cursor.before, &cursor.behind, phase, text, byte)
        }
        Place::Config(config) => {
            let inside = match config.is_expression {
                true => Some(cursor.before.as_str()),
                false => words::in_template(&cursor.before),
            };
            in_expression(inside?, &cursor.behind, config.phase, text, byte)
        }
        _ => None,
    }
}

fn of_key(cursor: &Cursor, name: &str) -> Option<String> {
    let listed = |all: &[(&str, &str)]| {
        let found = all.iter().find(|(known, _)| *known == name)?;
        Some(format!("**{}**\n\n{}", found.0, found.1))
    };
    match Place::of(cursor, &cursor.path)? {
        Place::Root => {
            let phase = schema::phase(name)?;
            Some(format!("**{name}**\n\nRules that run {}.", phase.doc()))
        }
        Place::Rule => listed(&schema::RULE),
        Place::Action => listed(&schema::ACTION),
        Place::Config(config) => {
            let fields = schema::fields(config.schema);
            let field = fields.into_iter().find(|field| field.name == name)?;
            let required = if field.is_required { ", required" } else { "" };
            Some(format!(
                "**{name}**: {}{required}\n\n{}",
                field.kind, field.doc
            ))
        }
        _ => None,
    }
}

/// The variable or function at a position of an expression.
fn in_expression(
    before: &str,
    behind: &str,
    phase: Phase,
    text: &str,
    byte: usize,
) -> Option<Hover> {
    if words::is_in_literal(before) {
        return None;
    }
    let end = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let rest = behind.split(end).next().unwrap_or_default();
    let (object, name) = words::path_before(before);
    let name = format!("{name}{rest}");
    let path = match object {
        "" => name,
        object => format!("{object}.{name}"),
    };
    let word_found = words::meaning(&path, phase).or_else(|| {
        // A function of a value: `req.url.path.startsWith`.
        let name = path.rsplit('.').next()?;
        words::meaning(&format!(").{name}"), phase)
    })?;
    let shown = path.strip_prefix(").").unwrap_or(&path);
    let detail = match word_found.is_function {
        true => format!("```\n{}\n```", word_found.detail),
        false => format!("**{shown}**: {}", word_found.detail),
    };
    Some(Hover {
        at: word(text, byte, &['_']),
        doc: format!("{detail}\n\n{}", word_found.doc),
    })
}
