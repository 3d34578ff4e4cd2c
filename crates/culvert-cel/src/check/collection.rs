//! Lists, maps, and the macros that iterate over them.

use std::sync::Arc;

use super::{Checker, Lowered, constant_of};
use crate::error::{Error, ErrorKind, Position};
use crate::eval::cost::units_of;
use crate::eval::node::{FoldNode, Node};
use crate::syntax::ast::{Expr, Fold, FoldKind};
use crate::types::{Type, joined_all};
use crate::value::{Key, Map, Value};

impl Checker<'_> {
    pub(super) fn list(&mut self, items: &[Expr], at: Position) -> Result<Lowered, Error> {
        let mut lowered = Vec::with_capacity(items.len());
        for item in items {
            lowered.push(self.value(item)?);
        }
        let cost = lowered
            .iter()
            .fold(1_u64, |sum, item| sum.saturating_add(item.cost));
        let of = joined_all(lowered.iter().map(|item| &item.of));
        let size = items.len() as u64;
        let nodes: Vec<Node> = lowered.into_iter().map(|item| item.node).collect();
        let of = Type::List(Box::new(of));
        // A list of literals is built once, at compile time.
        if let Some(values) = nodes
            .iter()
            .map(constant_of)
            .collect::<Option<Vec<Value>>>()
        {
            let node = Node::Constant(Value::List(values.into()));
            return Ok(Lowered {
                node,
                of,
                cost: 1,
                size,
            });
        }
        Ok(Lowered {
            node: Node::List(nodes.into(), at),
            of,
            cost: cost + units_of(items.len() * 32),
            size,
        })
    }

    pub(super) fn map(&mut self, entries: &[(Expr, Expr)], at: Position) -> Result<Lowered, Error> {
        let mut keys = Vec::with_capacity(entries.len());
        let mut values = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key_at = key.at;
            let key = self.value(key)?;
            let is_key = matches!(
                key.of,
                Type::Bool | Type::Int | Type::Uint | Type::String | Type::Dyn
            );
            if !is_key {
                let message = format!("the key of a map cannot be a {}", key.of);
                return Err(self.error(ErrorKind::Type, key_at, message));
            }
            keys.push(key);
            values.push(self.value(value)?);
        }
        let of_keys = Box::new(joined_all(keys.iter().map(|key| &key.of)));
        let of_values = Box::new(joined_all(values.iter().map(|value| &value.of)));
        let cost = keys
            .iter()
            .chain(&values)
            .fold(1_u64, |sum, part| sum.saturating_add(part.cost));
        let of = Type::Map(of_keys, of_values);
        let size = entries.len() as u64;
        let nodes: Vec<(Node, Node)> = keys
            .into_iter()
            .zip(values)
            .map(|(key, value)| (key.node, value.node))
            .collect();
        let constants: Option<Vec<(Key, Value)>> = nodes
            .iter()
            .map(|(key, value)| Some((Key::from_value(&constant_of(key)?)?, constant_of(value)?)))
            .collect();
        if let Some(Ok(map)) = constants.map(Map::new) {
            let node = Node::Constant(Value::Map(Arc::new(map)));
            return Ok(Lowered {
                node,
                of,
                cost: 1,
                size,
            });
        }
        let cost = cost.saturating_add(units_of(entries.len() * 32));
        Ok(Lowered {
            node: Node::Map(nodes.into(), at),
            of,
            cost,
            size,
        })
    }

    pub(super) fn fold(&mut self, fold: &Fold, at: usize) -> Result<Lowered, Error> {
        let range = self.value(&fold.range)?;
        let item = match &range.of {
            Type::List(item) => (**item).clone(),
            Type::Map(key, _) if fold.kind != FoldKind::SortBy => (**key).clone(),
            Type::Dyn => Type::Dyn,
            other => {
                let message = format!("a value of type {other} has no items to go through");
                return Err(self.error(ErrorKind::Type, fold.range.at, message));
            }
        };
        self.nesting += 1;
        if self.nesting > self.env.limits.comprehension_nesting_max {
            let message = format!(
                "comprehensions are nested deeper than {} levels",
                self.env.limits.comprehension_nesting_max
            );
            return Err(self.error(ErrorKind::TooLarge, at, message));
        }
        self.scopes.push((fold.variable.clone(), item.clone()));
        let condition = match &fold.condition {
            Some(condition) => Some(self.bool(condition, "the condition of `map`")?),
            None => None,
        };
        let body = match fold.kind {
            FoldKind::Map | FoldKind::SortBy => self.value(&fold.body)?,
            _ => self.bool(&fold.body, "a comprehension")?,
        };
        self.scopes.pop();
        self.nesting -= 1;
        let of = match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => Type::Bool,
            FoldKind::Map => Type::List(Box::new(body.of)),
            FoldKind::Filter | FoldKind::SortBy => Type::List(Box::new(item)),
        };
        let sorting = match fold.kind {
            // Sorting compares each item about log2(n) times.
            FoldKind::SortBy => u64::from(range.size.max(1).ilog2()) + 1,
            _ => 0,
        };
        let round = body
            .cost
            .saturating_add(condition.as_ref().map_or(0, |condition| condition.cost))
            .saturating_add(1 + sorting);
        let cost = range
            .cost
            .saturating_add(range.size.saturating_mul(round))
            .saturating_add(1);
        let node = Node::Fold(Box::new(FoldNode {
            kind: fold.kind,
            range: range.node,
            condition: condition.map(|condition| condition.node),
            body: body.node,
            at: self.position(at),
        }));
        Ok(Lowered {
            node,
            of,
            cost,
            size: range.size,
        })
    }
}
