//! What an event must have so that a condition can hold for it. It is derived from the syntax tree and errs on one side
//! only: an event for which the condition holds always has it.
//!
//! A search reads only pieces of the log that may have it by their summary, and encodes only events with it.
//! An event without it is not selected either if its evaluation would reach a limit.

use culvert_cel::ast::{Expr, ExprKind, Literal, Operator};
use culvert_cel::{Limits, parse_lenient};

use crate::record::{Cell, Record};

/// What must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Need {
    /// Nothing: any event.
    Always,
    /// The condition never holds.
    Never,
    All(Vec<Need>),
    Any(Vec<Need>),
    Test(Test),
}

/// A test of one variable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Test {
    pub(crate) subject: Subject,
    pub(crate) what: What,
}

/// What a test reads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Subject {
    Kind,
    Account,
    Endpoint,
    /// A field of the principal, which traffic has none of.
    PrincipalField,
    /// A field of the object.
    Field {
        path: Box<str>,
        /// Whether a kind of audit event has it.
        is_of_audit: bool,
    },
    /// Another variable, which every event has.
    Other,
}

/// What a value must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// There is a value.
    Given,
    /// One of these texts.
    Equals(Vec<Box<str>>),
    /// A number in this range, both ends included.
    Within(i64, i64),
    StartsWith(Box<str>),
    EndsWith(Box<str>),
    Contains(Box<str>),
    /// As `Contains`, in any letter case.
    ContainsFolded(Box<str>),
}

/// The facts about events that a test has.
pub(crate) trait Facts {
    /// Whether an event may pass a test.
    fn may_pass(&self, test: &Test) -> bool;
}

/// Finds the variable of a path: its subject, and how many of the names are its name.
pub(crate) type Variables<'v> = &'v dyn Fn(&[&str]) -> Option<(Subject, usize)>;

impl Need {
    /// What the condition `source` needs.
    pub(crate) fn of(source: &str, variables: Variables<'_>) -> Self {
        match parse_lenient(source, &Limits::FILTER) {
            Ok(expression) => Reader { variables }.need(&expression, true),
            Err(_) => Self::Always,
        }
    }

    /// Whether an event with these facts may have it.
    pub(crate) fn may_be(&self, facts: &impl Facts) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::All(needs) => needs.iter().all(|need| need.may_be(facts)),
            Self::Any(needs) => needs.iter().any(|need| need.may_be(facts)),
            Self::Test(test) => facts.may_pass(test),
        }
    }

    /// The cost of [`Self::may_be`] for an event, at most. A unit is about a nanosecond.
    pub(crate) fn work(&self) -> u64 {
        match self {
            Self::Always | Self::Never => 0,
            Self::All(needs) | Self::Any(needs) => needs.iter().map(Self::work).sum(),
            Self::Test(test) => match &test.what {
                What::ContainsFolded(_) => 1_500,
                What::Equals(texts) => 20 * u64::try_from(texts.len()).unwrap_or(u64::MAX),
                _ => 50,
            },
        }
    }

    fn all(needs: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Vec::new();
        for need in needs {
            match need {
                Self::Always => {}
                Self::Never => return Self::Never,
                need => all.push(need),
            }
        }
        match all.len() {
            0 => Self::Always,
            _ => Self::All(all),
        }
    }

    fn any(needs: impl IntoIterator<Item = Self>) -> Self {
        let mut any = Vec::new();
        for need in needs {
            match need {
                Self::Always => return Self::Always,
                Self::Never => {}
                need => any.push(need),
            }
        }
        match any.len() {
            0 => Self::Never,
            _ => Self::Any(any),
        }
    }
}

struct Reader<'v> {
    variables: Variables<'v>,
}

impl Reader<'_> {
    /// The need of an expression to be `holds`.
    fn need(&self, expression: &Expr, holds: bool) -> Need {
        match &expression.kind {
            ExprKind::Literal(Literal::Bool(value)) if *value == holds => Need::Always,
            ExprKind::Literal(_) => Need::Never,
            ExprKind::Not(operand) => self.need(operand, !holds),
            ExprKind::And(parts) if holds => {
                Need::all(parts.iter().map(|part| self.need(part, true)))
            }
            ExprKind::And(parts) => Need::any(parts.iter().map(|part| self.need(part, false))),
            ExprKind::Or(parts) if holds => {
                Need::any(parts.iter().map(|part| self.need(part, true)))
            }
            ExprKind::Or(parts) => Need::all(parts.iter().map(|part| self.need(part, false))),
            ExprKind::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                Need::any([
                    Need::all([self.need(condition, true), self.need(then, holds)]),
                    Need::all([self.need(condition, false), self.need(otherwise, holds)]),
                ])
            }
            ExprKind::Has(_) if !holds => Need::Always,
            ExprKind::Has(operand) => self.strict(operand),
            ExprKind::Binary {
                operator,
                left,
                right,
            } => self.comparison(*operator, left, right, holds),
            ExprKind::Call {
                name,
                target: Some(target),
                arguments,
            } if holds => self
                .call(name, target, arguments)
                .unwrap_or_else(|| self.strict(expression)),
            _ => self.strict(expression),
        }
    }

    /// Every variable that an expression certainly reads has a value.
    fn strict(&self, expression: &Expr) -> Need {
        if let Some(subject) = self.subject(expression) {
            let what = What::Given;
            return Need::Test(Test { subject, what });
        }
        match &expression.kind {
            ExprKind::Select { operand, .. } | ExprKind::Negate(operand) => self.strict(operand),
            ExprKind::Index { operand, index } => {
                Need::all([self.strict(operand), self.strict(index)])
            }
            ExprKind::Call {
                target, arguments, ..
            } => {
                let parts = target.iter().map(|target| &**target).chain(arguments);
                Need::all(parts.map(|part| self.strict(part)))
            }
            ExprKind::Binary { left, right, .. } => {
                Need::all([self.strict(left), self.strict(right)])
            }
            ExprKind::List(items) => Need::all(items.iter().map(|item| self.strict(item))),
            _ => Need::Always,
        }
    }

    fn comparison(&self, operator: Operator, left: &Expr, right: &Expr, holds: bool) -> Need {
        let strict = || Need::all([self.strict(left), self.strict(right)]);
        // `5 < x` is `x > 5`.
        let (operator, variable, value) = match (operator, &left.kind) {
            (Operator::In, _) => (operator, left, right),
            (_, ExprKind::Literal(_)) => (turned(operator), right, left),
            _ => (operator, left, right),
        };
        let Some((subject, true)) = self.named(variable) else {
            return strict();
        };
        let operator = match holds {
            true => operator,
            false => match negated(operator) {
                Some(operator) => operator,
                None => return strict(),
            },
        };
        match wanted(operator, value) {
            Some(what) => Need::Test(Test { subject, what }),
            None => strict(),
        }
    }

    fn call(&self, name: &str, target: &Expr, arguments: &[Expr]) -> Option<Need> {
        let (subject, true) = self.named(target)? else {
            return None;
        };
        let [argument] = arguments else {
            return None;
        };
        let ExprKind::Literal(Literal::String(text)) = &argument.kind else {
            return None;
        };
        let what = match name {
            "startsWith" => What::StartsWith(text.clone()),
            "endsWith" => What::EndsWith(text.clone()),
            "contains" => What::Contains(text.clone()),
            "matches" => What::ContainsFolded(folded_literal(text)?.into()),
            _ => return None,
        };
        Some(Need::Test(Test { subject, what }))
    }

    /// The variable that an expression reads, if it only selects.
    fn subject(&self, expression: &Expr) -> Option<Subject> {
        self.named(expression).map(|(subject, _)| subject)
    }

    /// The variable that an expression reads, and whether it is the whole expression.
    fn named(&self, expression: &Expr) -> Option<(Subject, bool)> {
        let mut names = Vec::new();
        names_of(expression, &mut names).then_some(())?;
        let (subject, n_names) = (self.variables)(&names)?;
        Some((subject, n_names == names.len()))
    }
}

/// The names of an expression that only selects.
fn names_of<'e>(expression: &'e Expr, names: &mut Vec<&'e str>) -> bool {
    match &expression.kind {
        ExprKind::Name(name) => {
            names.push(name);
            true
        }
        ExprKind::Select { operand, field } => {
            let is_path = names_of(operand, names);
            names.push(field);
            is_path
        }
        ExprKind::Index { operand, index } => {
            let ExprKind::Literal(Literal::String(field)) = &index.kind else {
                return false;
            };
            let is_path = names_of(operand, names);
            names.push(field);
            is_path
        }
        _ => false,
    }
}

/// The operator with its operands exchanged.
fn turned(operator: Operator) -> Operator {
    match operator {
        Operator::Less => Operator::Greater,
        Operator::LessEqual => Operator::GreaterEqual,
        Operator::Greater => Operator::Less,
        Operator::GreaterEqual => Operator::LessEqual,
        other => other,
    }
}

/// The operator that holds where this one does not, of values that can be compared.
fn negated(operator: Operator) -> Option<Operator> {
    Some(match operator {
        Operator::Less => Operator::GreaterEqual,
        Operator::LessEqual => Operator::Greater,
        Operator::Greater => Operator::LessEqual,
        Operator::GreaterEqual => Operator::Less,
        Operator::NotEqual => Operator::Equal,
        _ => return None,
    })
}

fn wanted(operator: Operator, value: &Expr) -> Option<What> {
    match (operator, &value.kind) {
        (Operator::Equal, ExprKind::Literal(Literal::String(text))) => {
            Some(What::Equals(vec![text.clone()]))
        }
        (Operator::In, ExprKind::List(items)) => {
            let texts = items.iter().map(|item| match &item.kind {
                ExprKind::Literal(Literal::String(text)) => Some(text.clone()),
                _ => None,
            });
            if let Some(texts) = texts.collect() {
                return Some(What::Equals(texts));
            }
            let numbers = items.iter().map(|item| match &item.kind {
                ExprKind::Literal(Literal::Int(number)) => Some(*number),
                _ => None,
            });
            let numbers: Vec<i64> = numbers.collect::<Option<_>>()?;
            Some(What::Within(*numbers.iter().min()?, *numbers.iter().max()?))
        }
        (operator, ExprKind::Literal(Literal::Int(number))) => {
            let number = *number;
            Some(match operator {
                Operator::Equal => What::Within(number, number),
                Operator::Less => What::Within(i64::MIN, number.checked_sub(1)?),
                Operator::LessEqual => What::Within(i64::MIN, number),
                Operator::Greater => What::Within(number.checked_add(1)?, i64::MAX),
                Operator::GreaterEqual => What::Within(number, i64::MAX),
                _ => return None,
            })
        }
        _ => None,
    }
}

/// The text that a pattern `(?i)text` searches; `None` for other patterns.
fn folded_literal(pattern: &str) -> Option<String> {
    let mut rest = pattern.strip_prefix("(?i)")?.chars();
    let mut text = String::new();
    while let Some(c) = rest.next() {
        match c {
            '\\' => text.push(rest.next().filter(char::is_ascii_punctuation)?),
            '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => {
                return None;
            }
            c => text.push(c),
        }
    }
    Some(text)
}

impl What {
    /// Whether a text may be as wanted.
    pub(crate) fn may_hold_for(&self, text: &str) -> bool {
        match self {
            Self::Given | Self::Within(..) => true,
            Self::Equals(texts) => texts.iter().any(|one| **one == *text),
            Self::StartsWith(begin) => text.starts_with(&**begin),
            Self::EndsWith(end) => text.ends_with(&**end),
            Self::Contains(part) => text.contains(&**part),
            Self::ContainsFolded(part) => has_folded(text, part),
        }
    }
}

/// Limits of a search in any letter case: of the text, and of the beginning of the part.
const FOLDED_TEXT_BYTES_MAX: usize = 256;
const FOLDED_PART_BYTES_MAX: usize = 16;

/// Whether a text may have a part in any letter case. Of long text and of text beyond ASCII, nothing is known.
fn has_folded(text: &str, part: &str) -> bool {
    let is_known = part.is_ascii() && text.is_ascii() && text.len() <= FOLDED_TEXT_BYTES_MAX;
    if part.is_empty() || !is_known {
        return true;
    }
    if part.len() > text.len() {
        return false;
    }
    let part = &part[..part.len().min(FOLDED_PART_BYTES_MAX)];
    let mut places = text.as_bytes().windows(part.len());
    places.any(|place| place.eq_ignore_ascii_case(part.as_bytes()))
}

/// A traffic event that is not encoded yet.
pub(crate) struct OfRecord<'r> {
    pub(crate) record: &'r Record,
    pub(crate) endpoint: &'r str,
}

impl Facts for OfRecord<'_> {
    fn may_pass(&self, test: &Test) -> bool {
        let Test { subject, what } = test;
        match subject {
            Subject::Kind => what.may_hold_for(self.record.kind().name),
            Subject::Account => what.may_hold_for(self.record.account()),
            Subject::Endpoint => what.may_hold_for(self.endpoint),
            Subject::PrincipalField => false,
            Subject::Other => true,
            Subject::Field { path, .. } => {
                let Some(index) = self.record.kind().index_of(path) else {
                    return false;
                };
                let field = &self.record.kind().fields[index];
                // Encoding may cut such a text, and so change its end.
                let is_whole = field.bytes_max.is_none() && field.large_bytes_max.is_none();
                match (self.record.cell(index), what) {
                    (Cell::Int(value), What::Within(first, last)) => {
                        (*first..=*last).contains(&value)
                    }
                    (Cell::Text(_), What::Equals(_) | What::EndsWith(_)) if !is_whole => true,
                    (Cell::Text(span), what) => what.may_hold_for(self.record.text_of(span)),
                    _ => true,
                }
            }
        }
    }
}

/// Any event of the audit log.
pub(crate) struct OfAudit;

impl Facts for OfAudit {
    fn may_pass(&self, Test { subject, what }: &Test) -> bool {
        match subject {
            Subject::Endpoint => what.may_hold_for(""),
            Subject::Kind => match what {
                What::Equals(names) => {
                    !(names.iter()).all(|name| crate::kinds::find(name).is_some())
                }
                _ => true,
            },
            Subject::Field { is_of_audit, .. } => *is_of_audit,
            Subject::Account | Subject::PrincipalField | Subject::Other => true,
        }
    }
}

#[cfg(test)]
mod tests;
