//! Names in expressions: variables, functions and macros of a phase, and what they mean.

use std::collections::BTreeMap;

use culvert_cel::STANDARD;
use culvert_policy::Phase;
use culvert_policy::policy::reference::calls;
use culvert_policy::policy::{functions, variables};

/// A name in expressions.
#[derive(Debug)]
pub(crate) struct Word {
    /// What stands in the expression behind the last dot.
    pub name: String,
    /// The type of a variable, or how a function is called.
    pub detail: String,
    pub doc: String,
    pub is_function: bool,
}

/// The names that may follow `object.`, or stand alone if it is empty.
pub(crate) fn below(object: &str, phase: Phase) -> Vec<Word> {
    let mut found: BTreeMap<String, Word> = BTreeMap::new();
    for variable in listed(phase) {
        let rest = match object.is_empty() {
            true => Some(&*variable.path),
            false => variable
                .path
                .strip_prefix(object)
                .and_then(|rest| rest.strip_prefix('.')),
        };
        let Some(rest) = rest else { continue };
        let (name, is_whole) = match rest.split_once('.') {
            Some((name, _)) => (name, false),
            None => (rest, true),
        };
        let known = found.get(name).is_some_and(|word| word.detail != "object");
        if known || (!is_whole && found.contains_key(name)) {
            continue;
        }
        let word = match is_whole {
            true => of_variable(name, variable),
            false => Word {
                name: name.to_owned(),
                detail: "object".to_owned(),
                doc: String::new(),
                is_function: false,
            },
        };
        found.insert(name.to_owned(), word);
    }
    let mut words: Vec<Word> = found.into_values().collect();
    words.extend(functions_below(object, phase));
    words
}

fn listed(phase: Phase) -> impl Iterator<Item = &'static variables::Variable> {
    let variables = variables::ALL.iter();
    variables.filter(move |one| one.since <= phase && !one.path.starts_with('('))
}

fn of_variable(name: &str, variable: &variables::Variable) -> Word {
    Word {
        name: name.to_owned(),
        detail: variable.of.to_string(),
        doc: format!(
            "{}\n\nSet: {}. From `{}`.",
            variable.doc,
            variable.filled.text(),
            variable.since.name()
        ),
        is_function: false,
    }
}

fn functions_below(object: &str, phase: Phase) -> Vec<Word> {
    let is_member = !object.is_empty();
    let mut words: Vec<Word> = Vec::new();
    for function in functions::ALL.iter().filter(|one| one.since <= phase) {
        let extension = function.extension;
        let name = match (extension.is_member, extension.name.split_once('.')) {
            (true, _) if is_member => extension.name,
            (false, Some((before, name))) if before == object => name,
            (false, Some((before, _))) if !is_member => before,
            (false, None) if !is_member => extension.name,
            _ => continue,
        };
        if name.is_empty() || words.iter().any(|word| word.name == name) {
            continue;
        }
        let is_space = !is_member && extension.name != name;
        let calls: Vec<String> = calls(extension).collect();
        words.push(Word {
            name: name.to_owned(),
            detail: if is_space {
                "functions".to_owned()
            } else {
                calls.join("\n")
            },
            doc: if is_space {
                String::new()
            } else {
                extension.doc.to_owned()
            },
            is_function: !is_space,
        });
    }
    let standard = STANDARD.iter().filter(|row| row.is_member == is_member);
    words.extend(standard.map(|row| Word {
        name: row.name.to_owned(),
        detail: row.call.to_owned(),
        doc: row.doc.to_owned(),
        is_function: true,
    }));
    words
}

/// What the name at the end of a dotted path means.
pub(crate) fn meaning(path: &str, phase: Phase) -> Option<Word> {
    if let Some(variable) = listed(Phase::Response).find(|variable| *variable.path == *path) {
        return Some(of_variable(path, variable));
    }
    let (object, name) = path.rsplit_once('.').unwrap_or(("", path));
    let words = below(object, phase);
    let found = words.into_iter().find(|word| word.name == name)?;
    Some(Word {
        name: path.to_owned(),
        ..found
    })
}

/// The source of the expression that a position of a text with `${…}` is in, up to the position.
pub(crate) fn in_template(before: &str) -> Option<&str> {
    let (outside, inside) = before.rsplit_once("${")?;
    let is_escaped = outside.ends_with('$');
    (!is_escaped && !is_closed(inside)).then_some(inside)
}

/// Whether the expression that begins here ends before the end of the text: its `}` outside of literals.
fn is_closed(inside: &str) -> bool {
    let (mut open, mut quote) = (0_usize, None);
    for character in inside.chars() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(begun), character) if begun == character => quote = None,
            (None, '{') => open += 1,
            (None, '}') if open == 0 => return true,
            (None, '}') => open -= 1,
            _ => {}
        }
    }
    false
}

/// Whether a position of an expression is in a literal.
pub(crate) fn is_in_literal(before: &str) -> bool {
    let mut quote = None;
    let mut characters = before.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(_), '\\') => drop(characters.next()),
            (Some(begun), character) if begun == character => quote = None,
            _ => {}
        }
    }
    quote.is_some()
}

/// The dotted path that ends at the end of a text: the object, and the last name.
pub(crate) fn path_before(before: &str) -> (&str, &str) {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let start = before.trim_end_matches(is_of_path).len();
    let path = before.get(start..).unwrap_or_default();
    match path.rsplit_once('.') {
        Some((object, name)) if !object.is_empty() => (object, name),
        // A call or an index ends before the dot: any member function may follow.
        Some((_, name)) => (")", name),
        None => ("", path),
    }
}
