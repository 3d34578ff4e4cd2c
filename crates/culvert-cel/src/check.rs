//! Types and names: turns a syntax tree into the nodes that run, or says what is wrong with it.
//!
//! Field paths of declared variables become slots, literal patterns are compiled, comparisons of a variable with a
//! literal become one node, and the cost of an evaluation is estimated in the units of `cost`.
//!
//! Without a check (`Mode::Dynamic`) every type is dyn and a bad name fails when it is reached.
//!
//! Not here: which types go together (`types`), which functions there are (`functions`).

use std::sync::Arc;

use crate::ast::{Expr, ExprKind, Fold, FoldKind, Literal, Operator};
use crate::condition::{Condition, TextTest};
use crate::cost::{PATTERN_UNITS, units_of, units_of_search};
use crate::env::{Env, Field, Leaf, Mode, Slot};
use crate::error::{Error, ErrorKind, EvalErrorKind, Position};
use crate::eval::{Comparison, FoldNode, Node, Program};
use crate::extension::{ARGUMENTS_MAX, Declared};
use crate::functions::{self, Function};
use crate::pattern::{Pattern, PatternCache};
use crate::types::{Type, are_comparable, assumed_size, joined, joined_all, of_binary};
use crate::value::{Key, Map, Value};

/// Checks and compiles `expr`, which was parsed from `source`.
pub(crate) fn compile(env: &Env, source: &str, expr: &Expr) -> Result<Program, Error> {
    let mut checker = Checker {
        env,
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
        estimated_cost: lowered.cost,
        limits: env.limits,
        zones: env.zones,
        patterns: PatternCache::default(),
    })
}

struct Checker<'e> {
    env: &'e Env,
    source: &'e str,
    /// Variables of the comprehensions around, outermost first.
    scopes: Vec<(Box<str>, Type)>,
    slots: Vec<Slot>,
    nesting: usize,
}

/// A compiled expression: how it runs, what it gives, what that costs.
struct Lowered {
    node: Node,
    of: Type,
    /// Units an evaluation costs at most.
    cost: u64,
    /// Bytes of its text or items of its list at most.
    size: u64,
}

/// What a name or a selection denotes.
enum Place<'e> {
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
                let place = self.place(expr)?;
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

    fn place(&mut self, expr: &Expr) -> Result<Place<'e>, Error> {
        match &expr.kind {
            ExprKind::Name(name) => self.name(name, expr.at),
            ExprKind::Select { operand, field } => {
                let operand_at = operand.at;
                let operand = self.place(operand)?;
                self.select(operand, field, operand_at, expr.at)
            }
            ExprKind::Index { operand, index } => {
                let operand_at = operand.at;
                match (self.place(operand)?, &index.kind) {
                    (
                        declared @ Place::Declared { .. },
                        ExprKind::Literal(Literal::String(name)),
                    ) => self.select(declared, name, operand_at, expr.at),
                    (Place::Declared { field, path }, _) if field.leaf.is_none() => {
                        let message =
                            format!("`{path}` is an object: its fields are selected by name");
                        Err(self.error(ErrorKind::ComputedField { path }, index.at, message))
                    }
                    (operand, _) => {
                        let operand = self.load(operand, operand_at)?;
                        self.index(operand, index, expr.at).map(Place::Value)
                    }
                }
            }
            _ => self.value(expr).map(Place::Value),
        }
    }

    fn name(&mut self, name: &str, at: usize) -> Result<Place<'e>, Error> {
        if let Some(index) = self.scopes.iter().rposition(|(known, _)| **known == *name) {
            let of = self
                .scopes
                .get(index)
                .map_or(Type::Dyn, |(_, of)| of.clone());
            let size = assumed_size(&of);
            return Ok(Place::Value(Lowered {
                node: Node::Local(index),
                of,
                cost: 1,
                size,
            }));
        }
        if let Some(field) = self.env.root.fields.get(name) {
            return Ok(Place::Declared {
                field,
                path: name.to_owned(),
            });
        }
        if self.env.mode == Mode::Dynamic {
            return Ok(Place::Value(
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
        operand: Place<'e>,
        name: &str,
        operand_at: usize,
        at: usize,
    ) -> Result<Place<'e>, Error> {
        let path = match &operand {
            Place::Value(_) => None,
            Place::Declared { field, path } => {
                let path_here = format!("{path}.{name}");
                if let Some(below) = field.fields.get(name) {
                    return Ok(Place::Declared {
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
        Ok(Place::Value(Lowered {
            node,
            of,
            cost,
            size,
        }))
    }

    /// The value at a place; an error for an object.
    fn load(&mut self, place: Place<'e>, at: usize) -> Result<Lowered, Error> {
        let mut lowered = match place {
            Place::Value(lowered) => lowered,
            Place::Declared { field, path } => match &field.leaf {
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
        let place = self.place(of)?;
        if let Place::Declared { field, .. } = &place
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

    fn call(
        &mut self,
        name: &str,
        target: Option<&Expr>,
        arguments: &[Expr],
        at: usize,
    ) -> Result<Lowered, Error> {
        let env = self.env;
        let Some(function) = functions::find(name, target.is_some()) else {
            // `hash.md5(x)` is a member call of `hash`, unless there is a function of the whole name.
            let qualified = target.and_then(dotted).map(|path| format!("{path}.{name}"));
            if let Some(found) = qualified.and_then(|name| env.extension(&name, false)) {
                return self.extension(found, None, arguments, at);
            }
            if let Some(found) = env.extension(name, target.is_some()) {
                return self.extension(found, target, arguments, at);
            }
            if self.env.mode == Mode::Dynamic {
                return Ok(self.fails(EvalErrorKind::UnknownFunction, at));
            }
            return Err(self.unknown_function(name, target.is_some(), at));
        };
        let mut lowered = Vec::with_capacity(arguments.len() + 1);
        for argument in target.into_iter().chain(arguments) {
            lowered.push(self.value(argument)?);
        }
        let types: Vec<Type> = lowered.iter().map(|argument| argument.of.clone()).collect();
        let Some(of) = function.result(&types) else {
            if self.env.mode == Mode::Dynamic {
                return Ok(self.fails(EvalErrorKind::NoSuchOverload, at));
            }
            let types: Vec<String> = types.iter().map(Type::to_string).collect();
            let message = format!("`{name}` is not defined for ({})", types.join(", "));
            return Err(self.error(ErrorKind::Type, at, message));
        };
        let cost = lowered.iter().fold(1_u64, |sum, part| {
            sum.saturating_add(part.cost)
                .saturating_add(units_of(narrow(part.size)))
        });
        match function {
            Function::Dyn => {
                let inner = lowered.pop().unwrap_or_else(|| constant(Value::Null));
                Ok(Lowered {
                    of: Type::Dyn,
                    ..inner
                })
            }
            Function::Matches => {
                let pattern_at = arguments.last().map_or(at, |pattern| pattern.at);
                self.matches(lowered, cost, at, pattern_at)
            }
            function => {
                let size = if of == Type::String || of == Type::Bytes {
                    lowered.iter().map(|part| part.size).sum::<u64>().max(32)
                } else {
                    0
                };
                let node = self.function_node(function, lowered, at);
                Ok(Lowered {
                    node,
                    of,
                    cost,
                    size,
                })
            }
        }
    }

    fn extension(
        &mut self,
        declared: &Declared,
        target: Option<&Expr>,
        arguments: &[Expr],
        at: usize,
    ) -> Result<Lowered, Error> {
        let (function, here) = (declared.function, self.position(at));
        let mut lowered = Vec::with_capacity(arguments.len() + 2);
        let mut types = Vec::with_capacity(arguments.len() + 2);
        if let Some(slot) = function.reads {
            self.slots.push(slot);
            lowered.push(unary(Node::Slot(slot, here), Type::Dyn, 0));
            types.push(Type::Dyn);
        }
        for argument in target.into_iter().chain(arguments) {
            let argument = self.value(argument)?;
            types.push(argument.of.clone());
            lowered.push(argument);
        }
        let result = declared.result(&types);
        let Some(of) = result.filter(|_| lowered.len() <= ARGUMENTS_MAX) else {
            let shown: Vec<String> = types.iter().map(Type::to_string).collect();
            let message = format!(
                "`{}` is not defined for ({})",
                function.name,
                shown.join(", ")
            );
            return Err(self.error(ErrorKind::Type, at, message));
        };
        let cost = lowered.iter().fold(1_u64, |sum, part| {
            sum.saturating_add(part.cost)
                .saturating_add(units_of(narrow(part.size)))
        });
        let size = match of {
            Type::String | Type::Bytes => lowered.iter().map(|part| part.size).sum::<u64>().max(32),
            _ => assumed_size(&of),
        };
        let nodes = lowered.into_iter().map(|argument| argument.node).collect();
        Ok(Lowered {
            node: Node::Extension(function, nodes, here),
            of,
            cost,
            size,
        })
    }

    fn function_node(&self, function: Function, arguments: Vec<Lowered>, at: usize) -> Node {
        let at = self.position(at);
        let test = match function {
            Function::StartsWith => Some(TextTest::StartsWith),
            Function::EndsWith => Some(TextTest::EndsWith),
            Function::Contains => Some(TextTest::Contains),
            _ => None,
        };
        if let (
            Some(test),
            [
                Lowered {
                    node: Node::Slot(slot, at),
                    of: Type::String,
                    ..
                },
                Lowered {
                    node: Node::Constant(Value::String(literal)),
                    ..
                },
            ],
        ) = (test, arguments.as_slice())
        {
            return condition(Condition::Text {
                slot: *slot,
                test,
                literal: (**literal).into(),
                at: *at,
            });
        }
        Node::Call(
            function,
            arguments
                .into_iter()
                .map(|argument| argument.node)
                .collect(),
            at,
        )
    }

    fn matches(
        &mut self,
        arguments: Vec<Lowered>,
        cost: u64,
        at: usize,
        pattern_at: usize,
    ) -> Result<Lowered, Error> {
        let here = self.position(at);
        let mut arguments = arguments.into_iter();
        let (Some(text), Some(pattern)) = (arguments.next(), arguments.next()) else {
            return Ok(self.fails(EvalErrorKind::NoSuchOverload, at));
        };
        let Node::Constant(Value::String(literal)) = pattern.node else {
            let node = Node::MatchesComputed(Box::new([text.node, pattern.node]), here);
            let cost = cost.saturating_add(PATTERN_UNITS);
            return Ok(Lowered {
                node,
                of: Type::Bool,
                cost,
                size: 0,
            });
        };
        let pattern = match Pattern::new(&literal, &self.env.limits) {
            Ok(pattern) => Box::new(pattern),
            Err(_) if self.env.mode == Mode::Dynamic => {
                return Ok(self.fails(EvalErrorKind::Pattern, at));
            }
            Err(error) => {
                return Err(self.error(ErrorKind::Pattern, pattern_at, error.to_string()));
            }
        };
        let units = units_of_search(narrow(text.size), pattern.weight());
        let node = match text {
            Lowered {
                node: Node::Slot(slot, at),
                of: Type::String,
                ..
            } => condition(Condition::Matches { slot, pattern, at }),
            text => Node::Matches {
                text: Box::new(text.node),
                pattern,
                at: here,
            },
        };
        Ok(Lowered {
            node,
            of: Type::Bool,
            cost: cost.saturating_add(units),
            size: 0,
        })
    }

    fn binary(
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

    fn bool(&mut self, expr: &Expr, of: &str) -> Result<Lowered, Error> {
        let lowered = self.value(expr)?;
        if matches!(lowered.of, Type::Bool | Type::Dyn) {
            return Ok(lowered);
        }
        let message = format!("an operand of {of} must be a bool, it is a {}", lowered.of);
        Err(self.error(ErrorKind::Type, expr.at, message))
    }

    fn chain(
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

    fn conditional(&mut self, parts: &[Expr; 3], at: usize) -> Result<Lowered, Error> {
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

    fn list(&mut self, items: &[Expr], at: Position) -> Result<Lowered, Error> {
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
        // A list of literals is made once.
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

    fn map(&mut self, entries: &[(Expr, Expr)], at: Position) -> Result<Lowered, Error> {
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

    fn fold(&mut self, fold: &Fold, at: usize) -> Result<Lowered, Error> {
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
            // Every item is compared about as often as the list can be halved.
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

    fn fails(&self, kind: EvalErrorKind, at: usize) -> Lowered {
        unary(Node::Fail(kind, self.position(at)), Type::Dyn, 0)
    }

    fn unusable(&self, path: &str, at: usize) -> Error {
        let kind = ErrorKind::UnusableField {
            path: path.to_owned(),
        };
        self.error(kind, at, format!("`{path}` cannot be used here"))
    }

    fn unknown_function(&self, name: &str, is_member: bool, at: usize) -> Error {
        let other_form = functions::find(name, !is_member).is_some()
            || self.env.extension(name, !is_member).is_some();
        let message = match functions::nearest(name) {
            Some(known) if known != name => {
                format!("unknown function `{name}`; a function `{known}` exists")
            }
            _ if other_form && is_member => {
                format!("unknown function `{name}`; it is called as {name}(x)")
            }
            _ if other_form => format!("unknown function `{name}`; it is called as x.{name}(...)"),
            _ => format!("unknown function `{name}`"),
        };
        self.error(
            ErrorKind::UnknownFunction {
                name: name.to_owned(),
            },
            at,
            message,
        )
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

/// The path of names and selections, if it is nothing else.
fn dotted(expr: &Expr) -> Option<String> {
    match &expr.kind {
        ExprKind::Name(name) => Some(name.to_string()),
        ExprKind::Select { operand, field } => Some(format!("{}.{field}", dotted(operand)?)),
        _ => None,
    }
}

/// The node of a condition on variables alone.
fn condition(condition: Condition) -> Node {
    let units = condition.units();
    Node::Condition { condition, units }
}

/// The conditions of nodes that are nothing else; the nodes unchanged if one is.
fn conditions(nodes: Vec<Node>) -> Result<Vec<Condition>, Vec<Node>> {
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

/// A comparison, as one node where a variable meets a literal.
fn compared(comparison: Comparison, left: Lowered, right: Lowered, at: Position) -> Node {
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

/// `in`, as one node where a variable meets a list of literals of its kind.
fn membership(needle: Lowered, container: Lowered, at: Position) -> Node {
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
