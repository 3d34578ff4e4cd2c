//! The problems of a text, by the code that compiles policies.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use culvert_base::{Refusal, code};
use culvert_edge_config::ACTIONS;
use culvert_login::{LoginKeys, LoginSettings, Logins};
use culvert_policy::policy::problems::Problem;
use culvert_policy::{LoginService, Phase, Resources, Scheme, Source};
use culvert_yaml::{Node, Part, PartKind, Scalar, Step};

use crate::position::{LineIndex, Position, Unit, floor};

/// Maximum number of problems of a text.
pub const PROBLEMS_MAX: usize = 50;

/// A problem of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The bytes that it is about.
    pub at: Range<usize>,
    /// How bad it is.
    pub severity: Severity,
    /// The number of the error that the API has for it; `None` for a warning.
    pub code: Option<u16>,
    /// A sentence.
    pub message: String,
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// A write of the policy is refused.
    Error,
    /// A likely mistake.
    Warning,
}

/// The endpoint that a policy is for.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its scheme.
    pub scheme: Scheme,
    /// Whether it has an upstream for requests that pass the policy.
    pub has_upstream: bool,
    /// What the policy may use of the server.
    pub resources: Resources,
}

impl Place {
    /// An endpoint of no server: its data about addresses and its settings are not known, so a policy may use all of
    /// them.
    pub fn offline(scheme: Scheme, has_upstream: bool) -> Self {
        static LOGINS: LazyLock<Arc<Logins>> = LazyLock::new(|| {
            let settings = LoginSettings {
                issuer: "https://culvert.invalid".to_owned(),
                callback_base: None,
                providers: Default::default(),
                allows_loopback: true,
            };
            // No policy of this process runs, so nothing is encrypted with these keys and nothing is journaled.
            Logins::new(LoginKeys::new([[0; 32]]), settings).0
        });
        let resources = Resources {
            logins: Some(LoginService::new(Arc::clone(&LOGINS))),
            assertions: Some(Arc::clone(LOGINS.assertions())),
            is_written: true,
            allows_public_calls: true,
            has_tls_before_edge: true,
            ..Resources::default()
        };
        Self {
            scheme,
            has_upstream,
            resources,
        }
    }
}

impl Severity {
    /// Its name in the API and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// The problems of a text for an endpoint, in the order of the text. Every object that the policy names counts as one
/// that exists.
pub fn check(text: &str, place: &Place) -> Vec<Diagnostic> {
    let source = match Source::read(text, ACTIONS) {
        Ok(source) => source,
        Err(refusal) => return vec![unreadable(text, &refusal)],
    };
    let mut resources = place.resources.clone();
    for reference in source.references() {
        match reference.prefix {
            "ipp" => drop(resources.ip_policies.insert(reference.id, Arc::default())),
            _ => drop(resources.authorities.insert(reference.id, Arc::default())),
        }
    }
    let outline = Part::outline(text);
    let outline = outline.as_ref();
    let Place {
        scheme,
        has_upstream,
        ..
    } = *place;
    let mut found: Vec<Diagnostic> =
        match source.problems(scheme, has_upstream, &resources, PROBLEMS_MAX) {
            Ok(policy) => {
                let warnings = policy.warnings().iter();
                warnings
                    .map(|warning| of_warning(text, outline, warning))
                    .collect()
            }
            Err(problems) => {
                let problems = problems.iter();
                problems
                    .map(|problem| of_problem(text, outline, problem))
                    .collect()
            }
        };
    if source.computes_secret_names() {
        found.push(Diagnostic {
            at: first_line(text),
            severity: Severity::Error,
            code: Some(code::POLICY_VALUE_INVALID.number()),
            message: "`secrets` is only valid in `secrets.get('vault', 'name')`, with both names as literals.".to_owned(),
        });
    }
    found.sort_by_key(|one| one.at.start);
    found
}

/// A refusal of the whole policy, such as that of an object that it names: at the first place of the text that has one
/// of the names between its backticks.
pub fn of_refusal(text: &str, refusal: &Refusal) -> Diagnostic {
    let names = refusal.message.split('`').skip(1).step_by(2);
    let at = names.filter(|name| name.len() > 2).find_map(|name| {
        let start = text.find(name)?;
        Some(start..start + name.len())
    });
    error(
        at.unwrap_or_else(|| first_line(text)),
        refusal,
        &refusal.message,
    )
}

fn error(at: Range<usize>, refusal: &Refusal, message: &str) -> Diagnostic {
    let message = message.trim_end_matches('.');
    Diagnostic {
        at,
        severity: Severity::Error,
        code: refusal.code.map(|code| code.number()),
        message: match message.ends_with('?') {
            true => message.to_owned(),
            false => format!("{message}."),
        },
    }
}

fn first_line(text: &str) -> Range<usize> {
    0..LineIndex::new(text).line_end(0)
}

fn unreadable(text: &str, refusal: &Refusal) -> Diagnostic {
    let Err(unreadable) = Node::parse(text) else {
        return error(
            first_line(text),
            refusal,
            "A policy is an object with phases such as `on_http_request`",
        );
    };
    let index = LineIndex::new(text);
    let at = unreadable.at.map_or(first_line(text), |(line, column)| {
        let position = Position {
            line: line.saturating_sub(1),
            column: column.saturating_sub(1),
        };
        let start = index.byte(position, Unit::Characters);
        start..index.line_end(start)
    });
    error(at, refusal, &capital(&unreadable.why))
}

/// A message as a sentence.
fn capital(message: &str) -> String {
    let mut characters = message.chars();
    match characters.next() {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => String::new(),
    }
}

fn of_problem(text: &str, outline: Option<&Part>, problem: &Problem) -> Diagnostic {
    let at = outline.and_then(|outline| place(text, outline, problem));
    let message = match problem.field.as_str() {
        "" => capital(&problem.why),
        // The sentence goes on behind the field.
        field if problem.why.starts_with(' ') => format!("`{field}`{}", problem.why),
        _ if problem.why.starts_with('`') => problem.why.clone(),
        field => format!("`{field}`: {}", problem.why),
    };
    error(
        at.unwrap_or_else(|| first_line(text)),
        &problem.refusal,
        &message,
    )
}

/// The bytes of a problem: its field, its expression, or the line that its part begins with.
fn place(text: &str, outline: &Part, problem: &Problem) -> Option<Range<usize>> {
    let mut path = problem.path.clone();
    let is_action = path.len() == 4 && path.get(2) == Some(&Step::Key("actions".to_owned()));
    let mut part = outline.at(&path);
    if is_action
        && part.is_some_and(|part| part.get("config").is_some())
        && !problem.field.is_empty()
    {
        let mut deepest = path.clone();
        deepest.push(Step::Key("config".to_owned()));
        let config = deepest.len();
        for step in steps(&problem.field) {
            deepest.push(step);
            if outline.at(&deepest).is_none() {
                deepest.pop();
                break;
            }
        }
        // The action has no such field, or the name is none of a field.
        if deepest.len() > config {
            part = outline.at(&deepest);
            path = deepest;
        }
    }
    // A field that is wrong by its name.
    let unknown = problem.why.split_once("unknown field `");
    let unknown = unknown.and_then(|(_, rest)| rest.split_once('`'));
    if let (Some((name, _)), Some(found)) = (unknown, part) {
        let config = found.get("config").unwrap_or(found);
        if let Some(key) = found.key(name).or_else(|| config.key(name)) {
            return Some(key.at.clone());
        }
        if let Some(Step::Key(last)) = path.last()
            && last == name
        {
            return key_of(outline, &path);
        }
    }
    // A template can stand deeper than the field that has it.
    let holder = part.and_then(|part| holder(part, &problem.expression));
    let Some(part) = holder.or(part) else {
        return key_of(outline, &path);
    };
    if let Some(scalar) = part.scalar() {
        if let Some(position) = problem.in_expression {
            return Some(in_expression(
                text,
                part,
                scalar,
                &problem.expression,
                position,
            ));
        }
        let is_phase = path.len() == 1;
        if part.at.is_empty() || is_phase {
            return key_of(outline, &path).or(Some(part.at.clone()));
        }
        return Some(part.at.clone());
    }
    if is_action && path.len() == 4 {
        let ty = part.get("type");
        return Some(ty.map_or(line_of(text, part), |ty| ty.at.clone()));
    }
    match path.len() {
        1 => key_of(outline, &path),
        _ => Some(line_of(text, part)),
    }
}

/// The first text in a part that has an expression of a template.
fn holder<'p>(part: &'p Part, expression: &str) -> Option<&'p Part> {
    if expression.is_empty() {
        return None;
    }
    match &part.kind {
        PartKind::Scalar(scalar) => expressions_of(&scalar.value)
            .any(|at| scalar.value[at..].starts_with(expression))
            .then_some(part),
        PartKind::List(items) => items.iter().find_map(|item| holder(item, expression)),
        PartKind::Object(entries) => {
            let mut values = entries.iter().map(|(_, value)| value);
            values.find_map(|value| holder(value, expression))
        }
        PartKind::Alias => None,
    }
}

/// Where the expressions of a template begin.
fn expressions_of(value: &str) -> impl Iterator<Item = usize> {
    let open = value.match_indices("${").map(|(at, open)| at + open.len());
    open.map(|at| at + value[at..].len() - value[at..].trim_start().len())
}

/// The first line of a part.
fn line_of(text: &str, part: &Part) -> Range<usize> {
    let start = floor(text, part.at.start);
    let end = floor(text, part.at.end.min(LineIndex::new(text).line_end(start)));
    start..end.max(start)
}

fn key_of(outline: &Part, path: &[Step]) -> Option<Range<usize>> {
    let (last, above) = path.split_last()?;
    let Step::Key(name) = last else { return None };
    Some(outline.at(above)?.key(name)?.at.clone())
}

/// The steps of a field such as `tokens[0].name`.
fn steps(field: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in field.split('.') {
        let (name, indexes) = part.split_once('[').unwrap_or((part, ""));
        steps.push(Step::Key(name.to_owned()));
        let indexes = indexes
            .split('[')
            .filter_map(|index| index.trim_end_matches(']').parse().ok());
        steps.extend(indexes.map(Step::Item));
    }
    steps
}

/// The word at a position of an expression.
fn in_expression(
    text: &str,
    part: &Part,
    scalar: &Scalar,
    expression: &str,
    (line, column): (usize, usize),
) -> Range<usize> {
    let value = scalar.value.as_str();
    // The position counts from the expression, which can be one of several in a template.
    let begin = match expression {
        "" => 0,
        expression => expressions_of(value)
            .find(|at| value[*at..].starts_with(expression))
            .unwrap_or(0),
    };
    let source = &value[begin..];
    let position = Position {
        line: line.saturating_sub(1),
        column: column.saturating_sub(1),
    };
    let wrong = begin + LineIndex::new(source).byte(position, Unit::Characters);
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let rest = &value[wrong..];
    let width = rest.len() - rest.trim_start_matches(is_of_word).len();
    let width = match width {
        0 => rest.chars().next().map_or(0, char::len_utf8),
        width => width,
    };
    let start = byte_of(text, part, scalar, wrong);
    let end = byte_of(text, part, scalar, wrong + width);
    start..end.max(start)
}

/// The byte of the text that stands for a byte of a value. Quotes, escapes, indents and folded lines are skipped.
fn byte_of(text: &str, part: &Part, scalar: &Scalar, wanted: usize) -> usize {
    let raw = text.get(part.at.clone()).unwrap_or_default();
    let mut start = 0;
    if scalar.is_block {
        start = raw.find('\n').map_or(0, |newline| newline + 1);
        // The position of some block scalars begins behind the line of its mark.
        if !raw.starts_with(['|', '>']) {
            start = 0;
        }
    } else if !scalar.is_plain {
        start = 1;
    }
    let is_quoted = raw.starts_with('"') && !scalar.is_block && !scalar.is_plain;
    let mut rest = raw.get(start..).unwrap_or_default();
    for character in scalar
        .value
        .get(..floor(&scalar.value, wanted))
        .unwrap_or_default()
        .chars()
    {
        if is_quoted && let Some(escape) = rest.strip_prefix('\\') {
            let width = match escape.chars().next() {
                Some('x') => 3,
                Some('u') => 5,
                Some('U') => 9,
                other => other.map_or(0, char::len_utf8),
            };
            rest = escape.get(width..).unwrap_or_default();
            continue;
        }
        if character.is_whitespace() {
            rest = rest.strip_prefix(character).unwrap_or(rest.trim_start());
            continue;
        }
        match rest.find(character) {
            Some(at) => rest = rest.get(at + character.len_utf8()..).unwrap_or_default(),
            None => break,
        }
    }
    // An indent is not where a word begins.
    let rest = match scalar
        .value
        .get(wanted..)
        .and_then(|behind| behind.chars().next())
    {
        Some(next) if !next.is_whitespace() => rest.trim_start_matches([' ', '\n', '\r']),
        _ => rest,
    };
    floor(text, part.at.start + raw.len() - rest.len())
}

/// A warning about an action: `on_http_request, rule 1 (name), action 2 (log): …`.
fn of_warning(text: &str, outline: Option<&Part>, warning: &str) -> Diagnostic {
    let number = |text: &str, before: &str| {
        let (_, rest) = text.rsplit_once(before)?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<usize>().ok()?.checked_sub(1)
    };
    let place = || {
        let phase = Phase::ALL
            .into_iter()
            .find(|phase| warning.starts_with(phase.name()))?;
        let rule = warning
            .strip_prefix(phase.name())?
            .strip_prefix(", rule ")?;
        let rule = rule.split(|c: char| !c.is_ascii_digit()).next()?;
        let path = [
            Step::Key(phase.name().to_owned()),
            Step::Item(rule.parse::<usize>().ok()?.checked_sub(1)?),
            Step::Key("actions".to_owned()),
            Step::Item(number(warning, ", action ")?),
        ];
        Some(outline?.at(&path)?.get("type")?.at.clone())
    };
    let message = match warning.split_once("): ") {
        Some((before, said)) if before.contains(", action ") => capital(said),
        _ => warning.to_owned(),
    };
    Diagnostic {
        at: place().unwrap_or_else(|| first_line(text)),
        severity: Severity::Warning,
        code: None,
        message,
    }
}
