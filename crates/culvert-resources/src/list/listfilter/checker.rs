//! Checks the syntax tree of a filter, and turns it into the expression that is evaluated.

use culvert_base::{Refusal, Timestamp};
use culvert_cel::ast::{Expr as Node, ExprKind, Literal, Operator};
use culvert_cel::{ErrorKind, Limits, parse_lenient};

use super::{Expr, Field, Match, Relation, Shape, Type, refusal, type_of};
use crate::input::period::Period;

/// Longest filter, in bytes.
const SOURCE_BYTES_MAX: usize = 4096;
/// Limit of comparisons, function calls and bare flags in one filter.
const CONDITIONS_MAX: usize = 64;
/// Deepest nesting of parentheses, lists and calls.
const DEPTH_MAX: usize = 32;

const LIMITS: Limits = Limits {
    source_bytes_max: SOURCE_BYTES_MAX,
    // Every node has at least one byte of text.
    nodes_max: SOURCE_BYTES_MAX,
    height_max: Limits::POLICY.height_max,
    // The whole filter counts as a level.
    nesting_max: DEPTH_MAX + 1,
    ..Limits::FILTER
};

type Typed = (Expr, Type);

/// Parses a filter and checks it against the fields of a resource. `now` is the value of `time.now`.
pub(super) fn compile(
    source: &str,
    fields: &'static [Field],
    now: Timestamp,
) -> Result<Expr, Refusal> {
    let tree = parse_lenient(source, &LIMITS).map_err(|error| match error.kind {
        ErrorKind::TooLarge => refusal(error.message),
        _ => refusal(error),
    })?;
    let mut checker = Checker {
        fields,
        now,
        n_conditions: 0,
    };
    checker.condition(&tree)
}

struct Checker {
    fields: &'static [Field],
    now: Timestamp,
    n_conditions: usize,
}

/// A refusal of a part of the filter.
fn should_be(wanted: &str, node: &Node) -> Refusal {
    refusal(format!("column {} should be {wanted}", node.at + 1))
}

impl Checker {
    fn count(&mut self) -> Result<(), Refusal> {
        self.n_conditions += 1;
        if self.n_conditions > CONDITIONS_MAX {
            return Err(refusal(format!(
                "it has more than {CONDITIONS_MAX} conditions"
            )));
        }
        Ok(())
    }

    fn condition(&mut self, node: &Node) -> Result<Expr, Refusal> {
        match &node.kind {
            ExprKind::And(parts) => self.chain(parts, Expr::And),
            ExprKind::Or(parts) => self.chain(parts, Expr::Or),
            ExprKind::Not(inner) => Ok(Expr::Not(Box::new(self.condition(inner)?))),
            kind => {
                // A comparison is counted where it is checked.
                if !matches!(kind, ExprKind::Binary { .. }) {
                    self.count()?;
                }
                match self.value(node)? {
                    (expr, Type::Bool) => Ok(expr),
                    _ => Err(should_be("a condition", node)),
                }
            }
        }
    }

    fn chain(
        &mut self,
        parts: &[Node],
        join: fn(Box<Expr>, Box<Expr>) -> Expr,
    ) -> Result<Expr, Refusal> {
        let mut chain = None;
        for part in parts {
            let right = self.condition(part)?;
            chain = Some(match chain {
                None => right,
                Some(left) => join(Box::new(left), Box::new(right)),
            });
        }
        chain.ok_or_else(|| refusal("an operator has no operands"))
    }

    fn value(&mut self, node: &Node) -> Result<Typed, Refusal> {
        match &node.kind {
            ExprKind::Literal(literal) => match literal {
                Literal::Null => Ok((Expr::Null, Type::Null)),
                Literal::Bool(flag) => Ok((Expr::Bool(*flag), Type::Bool)),
                Literal::Int(number) => Ok((Expr::Integer(*number), Type::Integer)),
                Literal::String(text) => Ok((Expr::Text(text.to_string()), Type::Text)),
                Literal::Uint(_) | Literal::Double(_) | Literal::Bytes(_) => {
                    Err(should_be("a string or an integer", node))
                }
            },
            ExprKind::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    match self.value(item)? {
                        (_, Type::List | Type::Null) => {
                            return Err(should_be("an item that is neither a list nor null", item));
                        }
                        (value, _) => list.push(value),
                    }
                }
                Ok((Expr::List(list), Type::List))
            }
            ExprKind::Not(_) | ExprKind::And(_) | ExprKind::Or(_) => {
                Ok((self.condition(node)?, Type::Bool))
            }
            ExprKind::Binary {
                operator,
                left,
                right,
            } => self.relation(node, *operator, left, right),
            ExprKind::Name(_) | ExprKind::Select { .. } => {
                let field = self.field(node)?;
                Ok((Expr::Field(field), type_of(field.shape)))
            }
            ExprKind::Call {
                name,
                target,
                arguments,
            } => self.call(node, name, target.as_deref(), arguments),
            ExprKind::Index { .. }
            | ExprKind::Has(_)
            | ExprKind::Negate(_)
            | ExprKind::Conditional(_)
            | ExprKind::Map(_)
            | ExprKind::Fold(_) => Err(refusal(format!(
                "column {} has an operator or a macro that filters do not support",
                node.at + 1
            ))),
        }
    }

    fn relation(
        &mut self,
        node: &Node,
        operator: Operator,
        left: &Node,
        right: &Node,
    ) -> Result<Typed, Refusal> {
        self.count()?;
        let (left, right) = spoken(self.value(left)?, self.value(right)?);
        let relation = match operator {
            Operator::Less => Relation::Less,
            Operator::LessEqual => Relation::LessEqual,
            Operator::Equal => Relation::Equal,
            Operator::NotEqual => Relation::NotEqual,
            Operator::GreaterEqual => Relation::GreaterEqual,
            Operator::Greater => Relation::Greater,
            Operator::In => {
                if right.1 != Type::List || matches!(left.1, Type::List | Type::Null) {
                    return Err(refusal(format!(
                        "`in` at column {} requires a value and a list",
                        node.at + 1
                    )));
                }
                return Ok((Expr::In(Box::new(left.0), Box::new(right.0)), Type::Bool));
            }
            Operator::Add
            | Operator::Subtract
            | Operator::Multiply
            | Operator::Divide
            | Operator::Modulo => return Err(should_be("a comparison", node)),
        };
        if !comparable(relation, left.1, right.1) {
            return Err(refusal(format!(
                "the operands at column {} cannot be compared; compare times with `timestamp()`",
                node.at + 1
            )));
        }
        let compared = Expr::Compare(relation, Box::new(left.0), Box::new(right.0));
        Ok((compared, Type::Bool))
    }

    fn field(&self, node: &Node) -> Result<Field, Refusal> {
        let path = path(node).ok_or_else(|| should_be("a field as `obj.…`", node))?;
        let Some(path) = path.strip_prefix("obj") else {
            return Err(unknown(&path));
        };
        let path = match path.strip_prefix('.') {
            None if !path.is_empty() => return Err(unknown(&format!("obj{path}"))),
            rest => rest.unwrap_or_default(),
        };
        self.lookup(path).ok_or_else(|| {
            let names: Vec<_> = self.fields.iter().map(|field| field.name).collect();
            refusal(format!(
                "filters cannot use `obj.{path}`; valid fields: {}",
                names.join(", ")
            ))
        })
    }

    fn lookup(&self, path: &str) -> Option<Field> {
        let by_name = |name: &str| self.fields.iter().find(|field| field.name == name);
        by_name(path)
            .or_else(|| {
                let name = path.strip_suffix(".id")?;
                by_name(name).filter(|field| matches!(field.shape, Shape::Reference | Shape::Link))
            })
            .copied()
    }

    fn call(
        &mut self,
        node: &Node,
        name: &str,
        target: Option<&Node>,
        arguments: &[Node],
    ) -> Result<Typed, Refusal> {
        match (target, name, arguments) {
            (None, "size", [inner]) => match self.value(inner)? {
                (inner, Type::Text | Type::Id | Type::List) => {
                    Ok((Expr::Size(Box::new(inner)), Type::Integer))
                }
                _ => Err(should_be("a string or a list in `size`", inner)),
            },
            (None, "timestamp", [moment]) => Ok((Expr::Time(self.moment(moment)?), Type::Time)),
            (Some(target), "add" | "subtract", [by]) => {
                let (Expr::Time(moment), _) = self.value(target)? else {
                    return Err(should_be("a call of `timestamp`", target));
                };
                let by = text(by).ok_or_else(|| should_be("a duration such as \"7d\"", by))?;
                let length = Period::parse(by).map(Period::time).ok_or_else(|| {
                    refusal(format!(
                        "`{by}` is not a duration such as \"7d\" or \"24h\""
                    ))
                })?;
                let moment = match name {
                    "add" => moment.plus(length),
                    _ => moment.minus(length),
                };
                Ok((Expr::Time(moment), Type::Time))
            }
            (Some(target), _, [argument]) => match matching(name) {
                Some(function) => self.string_function(target, function, argument),
                None => Err(unknown(name)),
            },
            (_, "size" | "timestamp" | "startsWith" | "endsWith" | "contains", _) => {
                Err(should_be(&format!("`{name}` with one argument"), node))
            }
            _ => Err(unknown(name)),
        }
    }

    fn string_function(
        &mut self,
        target: &Node,
        function: Match,
        argument: &Node,
    ) -> Result<Typed, Refusal> {
        let field = self.field(target)?;
        if type_of(field.shape) != Type::Text {
            return Err(refusal(format!(
                "`obj.{}` does not support string functions",
                field.name
            )));
        }
        let (part, Type::Text) = self.value(argument)? else {
            return Err(should_be("a text", argument));
        };
        let call = Expr::Match(function, Box::new(Expr::Field(field)), Box::new(part));
        Ok((call, Type::Bool))
    }

    /// The argument of `timestamp`.
    fn moment(&self, node: &Node) -> Result<Timestamp, Refusal> {
        match text(node) {
            Some(text) => Timestamp::parse(text)
                .ok_or_else(|| refusal(format!("`{text}` is not an RFC 3339 time"))),
            None if path(node).as_deref() == Some("time.now") => Ok(self.now),
            None => Err(should_be("a string or `time.now`", node)),
        }
    }
}

fn unknown(name: &str) -> Refusal {
    refusal(format!(
        "`{name}` is unknown; use fields as `obj.…` and the functions size, timestamp, startsWith, endsWith and contains"
    ))
}

/// A variable and the fields selected from it, with dots.
fn path(node: &Node) -> Option<String> {
    match &node.kind {
        ExprKind::Name(name) => Some(name.to_string()),
        ExprKind::Select { operand, field } => Some(format!("{}.{field}", path(operand)?)),
        _ => None,
    }
}

fn text(node: &Node) -> Option<&str> {
    match &node.kind {
        ExprKind::Literal(Literal::String(text)) => Some(text),
        _ => None,
    }
}

/// Both sides of a comparison. Compared with the type of an endpoint, `agent` is replaced with `ephemeral`.
fn spoken(mut left: Typed, mut right: Typed) -> (Typed, Typed) {
    let is_type =
        |side: &Typed| matches!(&side.0, Expr::Field(field) if field.shape == Shape::EndpointType);
    if is_type(&left) {
        respell(&mut right.0);
    } else if is_type(&right) {
        respell(&mut left.0);
    }
    (left, right)
}

fn respell(expr: &mut Expr) {
    match expr {
        Expr::Text(text) if text == "agent" => "ephemeral".clone_into(text),
        Expr::List(items) => items.iter_mut().for_each(respell),
        _ => {}
    }
}

fn comparable(relation: Relation, a: Type, b: Type) -> bool {
    use Type::{Id, Integer, List, Null, Text, Time};
    let equality = matches!(relation, Relation::Equal | Relation::NotEqual);
    match (a, b) {
        (Null, _) | (_, Null) | (List, List | Text) | (Text, List) => equality,
        (Type::Bool, Type::Bool) => equality,
        (Integer, Integer) | (Time, Time) | (Text | Id, Text | Id) => true,
        _ => false,
    }
}

fn matching(name: &str) -> Option<Match> {
    match name {
        "startsWith" => Some(Match::StartsWith),
        "endsWith" => Some(Match::EndsWith),
        "contains" => Some(Match::Contains),
        _ => None,
    }
}
