//! Operators. Fuses comparisons of a variable with a literal, and chains of them, into one node.

use super::{Checker, Lowered, condition, narrow, unary};
use crate::error::{Error, ErrorKind, Position};
use crate::eval::condition::{Condition, TextTest};
use crate::eval::cost::units_of;
use crate::eval::node::{Comparison, Node};
use crate::syntax::ast::{Expr, Operator};
use crate::types::{Type, joined, of_binary};
use crate::value::Value;

impl Checker<'_> {
    pub(super) fn binary(
        &mut self,
        operator: Operator,
        left: &Expr,
        right: &Expr,
        at: usize,
    ) -> Result<Lowered, Error> {
        let (left, right) = (self.value(left)?, self.value(right)?);
        let Some(of) = of_binary(operator, &left.of, &right.of) else {
            let message = format!(
                "`{}` is not defined for {} and {}",
                operator.text(),
                left.of,
                right.of
            );
            return Err(self.error(ErrorKind::Type, at, message));
        };
        let size = left.size.saturating_add(right.size);
        let touched = match operator {
            Operator::In => right.size.max(1),
            Operator::Equal | Operator::NotEqual if matches!(left.of, Type::List(_)) => {
                left.size.min(right.size)
            }
            _ => units_of(narrow(size)),
        };
        let cost = left
            .cost
            .saturating_add(right.cost)
            .saturating_add(touched)
            .saturating_add(1);
        let at = self.position(at);
        let node = match (operator, Comparison::of(operator)) {
            (Operator::In, _) => membership(left, right, at),
            (_, Some(comparison)) => compared(comparison, left, right, at),
            (_, None) => {
                let sides = Box::new([left.node, right.node]);
                Node::Arithmetic {
                    sides,
                    operator,
                    at,
                }
            }
        };
        Ok(Lowered {
            node,
            of,
            cost,
            size,
        })
    }

    pub(super) fn bool(&mut self, expr: &Expr, of: &str) -> Result<Lowered, Error> {
        let lowered = self.value(expr)?;
        if matches!(lowered.of, Type::Bool | Type::Dyn) {
            return Ok(lowered);
        }
        let message = format!("an operand of {of} must be a bool, it is a {}", lowered.of);
        Err(self.error(ErrorKind::Type, expr.at, message))
    }

    pub(super) fn chain(
        &mut self,
        parts: &[Expr],
        of: &str,
        of_nodes: fn(Box<[Node]>) -> Node,
        of_conditions: fn(Vec<Condition>) -> Condition,
    ) -> Result<Lowered, Error> {
        let mut nodes = Vec::with_capacity(parts.len());
        let mut cost = 0_u64;
        for part in parts {
            let part = self.bool(part, of)?;
            cost = cost.saturating_add(part.cost);
            nodes.push(part.node);
        }
        let node = match conditions(nodes) {
            Ok(parts) => condition(of_conditions(parts)),
            Err(nodes) => of_nodes(nodes.into()),
        };
        Ok(unary(node, Type::Bool, cost))
    }

    pub(super) fn conditional(&mut self, parts: &[Expr; 3], at: usize) -> Result<Lowered, Error> {
        let [condition, then, otherwise] = parts;
        let condition = self.bool(condition, "`?:`")?;
        let (then, otherwise) = (self.value(then)?, self.value(otherwise)?);
        let Some(of) = joined(&then.of, &otherwise.of) else {
            let message = format!(
                "the branches of `?:` must have one type, they are {} and {}",
                then.of, otherwise.of
            );
            return Err(self.error(ErrorKind::Type, at, message));
        };
        let cost = condition
            .cost
            .saturating_add(then.cost.max(otherwise.cost))
            .saturating_add(1);
        let size = then.size.max(otherwise.size);
        let node = Node::Conditional(Box::new([condition.node, then.node, otherwise.node]));
        Ok(Lowered {
            node,
            of,
            cost,
            size,
        })
    }
}

/// Converts nodes to conditions. Returns the nodes unchanged if any of them is not a condition.
pub(super) fn conditions(nodes: Vec<Node>) -> Result<Vec<Condition>, Vec<Node>> {
    if !nodes
        .iter()
        .all(|node| matches!(node, Node::Condition { .. }))
    {
        return Err(nodes);
    }
    let parts = nodes.into_iter().filter_map(|node| match node {
        Node::Condition { condition, .. } => Some(condition),
        _ => None,
    });
    Ok(parts.collect())
}

/// A comparison. Comparing a variable with a literal gives one fused node.
pub(super) fn compared(
    comparison: Comparison,
    left: Lowered,
    right: Lowered,
    at: Position,
) -> Node {
    let (left, right, comparison) = match left.node {
        Node::Constant(_) => (right, left, comparison.swapped()),
        _ => (left, right, comparison),
    };
    let test = match comparison {
        Comparison::Equal => Some(TextTest::Equal),
        Comparison::NotEqual => Some(TextTest::NotEqual),
        _ => None,
    };
    match (left.node, &left.of, right.node, test) {
        (
            Node::Slot(slot, at),
            Type::String,
            Node::Constant(Value::String(literal)),
            Some(test),
        ) => condition(Condition::Text {
            slot,
            test,
            literal: (*literal).into(),
            at,
        }),
        (Node::Slot(slot, at), Type::Int, Node::Constant(Value::Int(literal)), _) => {
            condition(Condition::Number {
                slot,
                comparison,
                literal,
                at,
            })
        }
        (left, _, right, Some(test)) => {
            let is = test == TextTest::Equal;
            Node::Equal {
                sides: Box::new([left, right]),
                is,
                at,
            }
        }
        (left, _, right, None) => Node::Order {
            sides: Box::new([left, right]),
            comparison,
            at,
        },
    }
}

/// The `in` operator. Looking up a variable in a list of literals of its type gives one fused node.
pub(super) fn membership(needle: Lowered, container: Lowered, at: Position) -> Node {
    if let (Node::Slot(slot, at), Node::Constant(Value::List(items))) =
        (&needle.node, &container.node)
    {
        let texts: Option<Box<[Box<str>]>> = items
            .iter()
            .map(|item| match item {
                Value::String(text) => Some((**text).into()),
                _ => None,
            })
            .collect();
        let numbers: Option<Box<[i64]>> = items
            .iter()
            .map(|item| match item {
                Value::Int(number) => Some(*number),
                _ => None,
            })
            .collect();
        match (&needle.of, texts, numbers) {
            (Type::String, Some(literals), _) => {
                return condition(Condition::TextIn {
                    slot: *slot,
                    literals,
                    at: *at,
                });
            }
            (Type::Int, _, Some(literals)) => {
                return condition(Condition::NumberIn {
                    slot: *slot,
                    literals,
                    at: *at,
                });
            }
            _ => {}
        }
    }
    Node::In(Box::new([needle.node, container.node]), at)
}
