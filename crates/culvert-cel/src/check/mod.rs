//! The type checker and compiler: turns a syntax tree into executable nodes, or reports an error.
//!
//! It resolves field paths of declared variables to slots, compiles literal patterns, fuses the comparison of a
//! variable with a literal into one node, and estimates the cost of an evaluation in the units of `cost`.
//!
//! With `Mode::Dynamic` there is no check: every type is dyn, and an unknown name fails at run time.
//!
//! This file handles names, selections and literals. The files in `check/` handle calls, collections and operators.
//! `types` has the typing rules, `functions` the standard library.

mod call;
mod collection;
mod operator;

use crate::env::{Env, Field, Leaf, Mode};
use crate::error::{Error, ErrorKind, EvalErrorKind, Position};
use crate::eval::Program;
use crate::eval::condition::Condition;
use crate::eval::cost::units_of;
use crate::eval::node::Node;
use crate::pattern::{PatternBudget, PatternCache};
use crate::resolver::Slot;
use crate::syntax::ast::{Expr, ExprKind, Literal};
use crate::types::{Type, are_comparable, assumed_size};
use crate::value::Value;

/// Checks and compiles `expr`, the syntax tree of `source`.
pub(crate) fn compile(
    env: &Env,
    source: &str,
    expr: &Expr,
    patterns: &PatternBudget,
) -> Result<Program, Error> {
    let mut checker = Checker {
        env,
        patterns,
        source,
        scopes: Vec::new(),
        slots: Vec::new(),
        nesting: 0,
    };
    let lowered = checker.value(expr)?;
    if lowered.cost > env.limits.cost_max {
        let message = format!(
            "the expression may cost {} units, allowed are {}",
            lowered.cost, env.limits.cost_max
        );
        return Err(checker.error(ErrorKind::TooLarge, expr.at, message));
    }
    let mut slots = checker.slots;
    slots.sort_unstable();
    slots.dedup();
    Ok(Program {
        root: lowered.node,
        result_type: lowered.of,
        slots,
        limits: env.limits,
        zones: env.zones,
        patterns: PatternCache::default(),
    })
}

struct Checker<'e> {
    env: &'e Env,
    patterns: &'e PatternBudget,
    source: &'e str,
    /// Variables of the enclosing comprehensions, outermost first.
    scopes: Vec<(Box<str>, Type)>,
    slots: Vec<Slot>,
    nesting: usize,
}

/// A compiled subexpression: its node, type and cost.
struct Lowered {
    node: Node,
    of: Type,
    /// Maximum cost of an evaluation, in units.
    cost: u64,
    /// Maximum length of the result: bytes of a text, or items of a list.
    size: u64,
}

/// The meaning of a name or a selection.
enum Meaning<'e> {
    Value(Lowered),
    /// A declared path.
    Declared {
        field: &'e Field,
        path: String,
    },
}

impl<'e> Checker<'e> {
    fn value(&mut self, expr: &Expr) -> Result<Lowered, Error> {
        let at = self.position(expr.at);
        let mut lowered = match &expr.kind {
            ExprKind::Literal(literal) => constant(literal_value(literal)),
            ExprKind::Name(_) | ExprKind::Select { .. } | ExprKind::Index { .. } => {
                let place = self.meaning(expr)?;
                self.load(place, expr.at)?
            }
            ExprKind::Has(of) => self.has(of)?,
            ExprKind::Call {
                name,
                target,
                arguments,
            } => self.call(name, target.as_deref(), arguments, expr.at)?,
            ExprKind::Not(operand) => {
                let operand = self.bool(operand, "`!`")?;
                let node = match operand.node {
                    Node::Condition { condition: of, .. } => {
                        condition(Condition::Not(Box::new(of)))
                    }
                    node => Node::Not(Box::new(node)),
                };
                unary(node, Type::Bool, operand.cost)
            }
            ExprKind::Negate(operand) => {
                let operand = self.value(operand)?;
                if !matches!(operand.of, Type::Int | Type::Double | Type::Dyn) {
                    let message = format!("`-` is not defined for {}", operand.of);
                    return Err(self.error(ErrorKind::Type, expr.at, message));
                }
                unary(
                    Node::Negate(Box::new(operand.node), at),
                    operand.of,
                    operand.cost,
                )
            }
            ExprKind::Binary {
                operator,
                left,
                right,
            } => self.binary(*operator, left, right, expr.at)?,
            ExprKind::And(parts) => self.chain(parts, "`&&`", Node::And, Condition::and)?,
            ExprKind::Or(parts) => self.chain(parts, "`||`", Node::Or, Condition::or)?,
            ExprKind::Conditional(parts) => self.conditional(parts, expr.at)?,
            ExprKind::List(items) => self.list(items, at)?,
            ExprKind::Map(entries) => self.map(entries, at)?,
            ExprKind::Fold(fold) => self.fold(fold, expr.at)?,
        };
        if self.env.mode == Mode::Dynamic {
            lowered.of = Type::Dyn;
        }
        Ok(lowered)
    }

    fn meaning(&mut self, expr: &Expr) -> Result<Meaning<'e>, Error> {
        match &expr.kind {
            ExprKind::Name(name) => self.name(name, expr.at),
            ExprKind::Select { operand, field } => {
                let operand_at = operand.at;
                let operand = self.meaning(operand)?;
                self.select(operand, field, operand_at, expr.at)
            }
            ExprKind::Index { operand, index } => {
                let operand_at = operand.at;
                match (self.meaning(operand)?, &index.kind) {
                    (
                        declared @ Meaning::Declared { .. },
                        ExprKind::Literal(Literal::String(name)),
                    ) => self.select(declared, name, operand_at, expr.at),
                    (Meaning::Declared { field, path }, _) if field.leaf.is_none() => {
                        let message =
                            format!("`{path}` is an object: its fields are selected by name");
                        Err(self.error(ErrorKind::ComputedField { path }, index.at, message))
                    }
                    (operand, _) => {
                        let operand = self.load(operand, operand_at)?;
                        self.index(operand, index, expr.at).map(Meaning::Value)
                    }
                }
            }
            _ => self.value(expr).map(Meaning::Value),
        }
    }

    fn name(&mut self, name: &str, at: usize) -> Result<Meaning<'e>, Error> {
        if let Some(index) = self.scopes.iter().rposition(|(known, _)| **known == *name) {
            let of = self
                .scopes
                .get(index)
                .map_or(Type::Dyn, |(_, of)| of.clone());
            let size = assumed_size(&of);
            return Ok(Meaning::Value(Lowered {
                node: Node::Local(index),
                of,
                cost: 1,
                size,
            }));
        }
        if let Some(field) = self.env.root.fields.get(name) {
            return Ok(Meaning::Declared {
                field,
                path: name.to_owned(),
            });
        }
        if self.env.mode == Mode::Dynamic {
            return Ok(Meaning::Value(
                self.fails(EvalErrorKind::UnknownIdentifier, at),
            ));
        }
        let message = format!("undeclared name `{name}`");
        Err(self.error(
            ErrorKind::UnknownIdentifier {
                name: name.to_owned(),
            },
            at,
            message,
        ))
    }

    fn select(
        &mut self,
        operand: Meaning<'e>,
        name: &str,
        operand_at: usize,
        at: usize,
    ) -> Result<Meaning<'e>, Error> {
        let path = match &operand {
            Meaning::Value(_) => None,
            Meaning::Declared { field, path } => {
                let path_here = format!("{path}.{name}");
                if let Some(below) = field.fields.get(name) {
                    return Ok(Meaning::Declared {
                        field: below,
                        path: path_here,
                    });
                }
                match &field.leaf {
                    Some(Leaf::Slot {
                        of: Type::Map(..) | Type::Dyn,
                        ..
                    }) => {}
                    Some(Leaf::Unusable) => return Err(self.unusable(path, at)),
                    _ => {
                        let message = format!("unknown field `{path_here}`");
                        let kind = ErrorKind::UnknownField { path: path_here };
                        return Err(self.error(kind, at, message));
                    }
                }
                Some(path_here)
            }
        };
        let operand = self.load(operand, operand_at)?;
        let of = match &operand.of {
            Type::Dyn => Type::Dyn,
            Type::Map(key, value) if matches!(**key, Type::String | Type::Dyn) => (**value).clone(),
            other => {
                let path = path.unwrap_or_else(|| name.to_owned());
                let message = format!("`{path}`: a value of type {other} has no fields");
                return Err(self.error(ErrorKind::Type, at, message));
            }
        };
        let size = assumed_size(&of);
        let cost = operand.cost + 1 + units_of(name.len());
        let node = Node::Field(Box::new(operand.node), name.into(), self.position(at));
        Ok(Meaning::Value(Lowered {
            node,
            of,
            cost,
            size,
        }))
    }

    /// The value of a place. An object without a value is an error.
    fn load(&mut self, place: Meaning<'e>, at: usize) -> Result<Lowered, Error> {
        let mut lowered = match place {
            Meaning::Value(lowered) => lowered,
            Meaning::Declared { field, path } => match &field.leaf {
                Some(Leaf::Slot { slot, of }) => {
                    self.slots.push(*slot);
                    let node = Node::Slot(*slot, self.position(at));
                    Lowered {
                        node,
                        of: of.clone(),
                        cost: 1,
                        size: assumed_size(of),
                    }
                }
                Some(Leaf::Type(kind)) => constant(Value::Type(*kind)),
                None if field.has_usable() => {
                    let message = format!("`{path}` is an object: select one of its fields");
                    return Err(self.error(ErrorKind::ObjectAsValue { path }, at, message));
                }
                Some(Leaf::Unusable) | None => return Err(self.unusable(&path, at)),
            },
        };
        if self.env.mode == Mode::Dynamic {
            lowered.of = Type::Dyn;
        }
        Ok(lowered)
    }

    fn index(&mut self, operand: Lowered, index: &Expr, at: usize) -> Result<Lowered, Error> {
        let index_at = index.at;
        let index = self.value(index)?;
        let of = match &operand.of {
            Type::Dyn => Type::Dyn,
            Type::List(item) if matches!(index.of, Type::Int | Type::Dyn) => (**item).clone(),
            Type::Map(key, value) if are_comparable(key, &index.of) => (**value).clone(),
            Type::List(_) | Type::Map(..) => {
                let message = format!("{} cannot be indexed by {}", operand.of, index.of);
                return Err(self.error(ErrorKind::Type, index_at, message));
            }
            other => {
                let message = format!("a value of type {other} cannot be indexed");
                return Err(self.error(ErrorKind::Type, at, message));
            }
        };
        let size = assumed_size(&of);
        let cost = operand.cost + index.cost + 1 + units_of(narrow(index.size));
        let node = Node::Index(Box::new([operand.node, index.node]), self.position(at));
        Ok(Lowered {
            node,
            of,
            cost,
            size,
        })
    }

    fn has(&mut self, of: &Expr) -> Result<Lowered, Error> {
        let place = self.meaning(of)?;
        if let Meaning::Declared { field, .. } = &place
            && let Some(Leaf::Slot { slot, .. }) = field.leaf
        {
            self.slots.push(slot);
            return Ok(unary(condition(Condition::Present(slot)), Type::Bool, 0));
        }
        let lowered = self.load(place, of.at)?;
        match (lowered.node, &of.kind) {
            (Node::Field(operand, name, at), _) => Ok(unary(
                Node::HasField(operand, name, at),
                Type::Bool,
                lowered.cost,
            )),
            (Node::Index(sides, at), ExprKind::Index { index, .. }) => {
                let [operand, _] = *sides;
                let ExprKind::Literal(Literal::String(name)) = &index.kind else {
                    let message = "the argument of has() must select a field".to_owned();
                    return Err(self.error(ErrorKind::Syntax, of.at, message));
                };
                let node = Node::HasField(Box::new(operand), (**name).into(), at);
                Ok(unary(node, Type::Bool, lowered.cost))
            }
            (Node::Fail(kind, at), _) => Ok(unary(Node::Fail(kind, at), Type::Bool, 0)),
            _ => Ok(unary(Node::Constant(Value::Bool(true)), Type::Bool, 0)),
        }
    }

    fn fails(&self, kind: EvalErrorKind, at: usize) -> Lowered {
        unary(Node::Fail(kind, self.position(at)), Type::Dyn, 0)
    }

    fn unusable(&self, path: &str, at: usize) -> Error {
        let kind = ErrorKind::UnusableField {
            path: path.to_owned(),
        };
        self.error(kind, at, format!("`{path}` cannot be used here"))
    }

    fn position(&self, at: usize) -> Position {
        Position::of(self.source, at)
    }

    fn error(&self, kind: ErrorKind, at: usize, message: String) -> Error {
        Error {
            kind,
            position: self.position(at),
            message,
        }
    }
}

/// The dotted path if the expression consists only of names and selections.
fn dotted(expr: &Expr) -> Option<String> {
    match &expr.kind {
        ExprKind::Name(name) => Some(name.to_string()),
        ExprKind::Select { operand, field } => Some(format!("{}.{field}", dotted(operand)?)),
        _ => None,
    }
}

/// The node of a condition that reads only variables.
fn condition(condition: Condition) -> Node {
    let units = condition.units();
    Node::Condition { condition, units }
}

fn unary(node: Node, of: Type, operand_cost: u64) -> Lowered {
    Lowered {
        node,
        of,
        cost: operand_cost.saturating_add(1),
        size: 0,
    }
}

fn constant(value: Value) -> Lowered {
    let of = match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::String(_) => Type::String,
        Value::Bytes(_) => Type::Bytes,
        Value::Type(_) => Type::Type,
        Value::Timestamp(_) | Value::Duration(_) | Value::List(_) | Value::Map(_) => Type::Dyn,
    };
    let size = value.borrow().weight() as u64;
    Lowered {
        node: Node::Constant(value),
        of,
        cost: 1,
        size,
    }
}

fn constant_of(node: &Node) -> Option<Value> {
    match node {
        Node::Constant(value) => Some(value.clone()),
        _ => None,
    }
}

fn literal_value(literal: &Literal) -> Value {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Uint(value) => Value::Uint(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::String(value) => Value::String((**value).into()),
        Literal::Bytes(value) => Value::Bytes((**value).into()),
    }
}

fn narrow(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
