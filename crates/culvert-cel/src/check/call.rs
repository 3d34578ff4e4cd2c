//! Calls of standard functions and of extensions.

use super::{Checker, Lowered, condition, constant, dotted, narrow, unary};
use crate::env::Mode;
use crate::error::{Error, ErrorKind, EvalErrorKind};
use crate::eval::condition::{Condition, TextTest};
use crate::eval::cost::{PATTERN_UNITS, units_of, units_of_search};
use crate::eval::node::Node;
use crate::functions::extension::{ARGUMENTS_MAX, Declared};
use crate::functions::{self, Function};
use crate::pattern::Pattern;
use crate::syntax::ast::Expr;
use crate::types::{Type, assumed_size};
use crate::value::Value;

impl Checker<'_> {
    pub(super) fn call(
        &mut self,
        name: &str,
        target: Option<&Expr>,
        arguments: &[Expr],
        at: usize,
    ) -> Result<Lowered, Error> {
        let env = self.env;
        let Some(function) = functions::find(name, target.is_some()) else {
            // `hash.md5(x)` is a member call on `hash`, unless an extension has the full name.
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
        let pattern = match Pattern::new(&literal, &self.env.limits, self.patterns) {
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
}
