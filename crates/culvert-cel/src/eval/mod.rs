//! The evaluator: walks a tree of nodes and borrows values where possible.
//!
//! A comparison of a variable with a literal is one node, which reads the variable in place and allocates nothing.
//! `&&` and `||` absorb errors from either side; only an exhausted budget always ends the evaluation. The parser
//! limits the height of the tree, so the evaluator may recurse.

pub(crate) mod condition;
pub(crate) mod cost;
pub(crate) mod node;

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::{EvalError, EvalErrorKind, Position, absorb};
use crate::eval::cost::{CLASS_UNITS, Meter, PATTERN_UNITS};
use crate::eval::node::{FoldNode, Node};
use crate::functions::Function;
use crate::functions::extension::{ARGUMENTS_MAX, Extension};
use crate::limits::Limits;
use crate::pattern::{Pattern, PatternCache};
use crate::resolver::{Resolver, Slot, Zones};
use crate::syntax::ast::{FoldKind, Operator};
use crate::types::Type;
use crate::value::{Key, Map, Value, ValueRef};

/// A compiled condition.
#[derive(Debug)]
pub struct Predicate {
    program: Program,
}

impl Predicate {
    pub(crate) fn new(program: Program) -> Self {
        Self { program }
    }

    /// Evaluates the condition with these variables.
    ///
    /// # Errors
    /// If the evaluation fails, or if an expression of type dyn is not a bool.
    #[inline]
    pub fn test<R: Resolver + ?Sized>(&self, variables: &R) -> Result<bool, EvalError> {
        match &self.program.root {
            Node::Condition { condition, units } => {
                let mut meter = Meter::new(&self.program.limits);
                meter
                    .spend(*units)
                    .map_err(|kind| Position::START.failed(kind))?;
                condition.holds(variables, &mut meter)
            }
            root => Walk::new(&self.program, variables).test(root),
        }
    }

    /// Like [`Predicate::test`], and returns the cost in units too.
    pub fn test_metered<R: Resolver + ?Sized>(
        &self,
        variables: &R,
    ) -> (Result<bool, EvalError>, u64) {
        match &self.program.root {
            Node::Condition { units, .. } => (self.test(variables), *units),
            root => {
                let mut walk = Walk::new(&self.program, variables);
                let result = walk.test(root);
                let units = self.program.limits.cost_max - walk.meter.units_left();
                (result, units)
            }
        }
    }

    /// The slots of the variables that it may read, without duplicates, in ascending order.
    pub fn slots(&self) -> &[Slot] {
        self.program.slots()
    }
}

/// A compiled expression of any type.
#[derive(Debug)]
pub struct Program {
    pub(crate) root: Node,
    pub(crate) result_type: Type,
    pub(crate) slots: Vec<Slot>,
    pub(crate) limits: Limits,
    pub(crate) zones: Option<Zones>,
    pub(crate) patterns: PatternCache,
}

impl Program {
    /// Evaluates the expression with these variables.
    ///
    /// # Errors
    /// If the evaluation fails.
    pub fn eval<R: Resolver + ?Sized>(&self, variables: &R) -> Result<Value, EvalError> {
        self.eval_metered(variables).0
    }

    /// Like [`Program::eval`], and returns the cost in units too.
    pub fn eval_metered<R: Resolver + ?Sized>(
        &self,
        variables: &R,
    ) -> (Result<Value, EvalError>, u64) {
        let mut walk = Walk::new(self, variables);
        let result = walk.eval(&self.root).map(Val::into_value);
        (result, self.limits.cost_max - walk.meter.units_left())
    }

    /// The static type of the result.
    pub fn result_type(&self) -> &Type {
        &self.result_type
    }

    /// The slots of the variables that it may read, without duplicates, in ascending order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

/// A value during an evaluation.
#[derive(Clone, Debug)]
enum Val<'a> {
    Borrowed(ValueRef<'a>),
    Owned(Value),
}

impl<'a> Val<'a> {
    fn borrow(&self) -> ValueRef<'_> {
        match self {
            Self::Borrowed(value) => *value,
            Self::Owned(value) => value.borrow(),
        }
    }

    fn into_value(self) -> Value {
        match self {
            Self::Borrowed(value) => value.to_value(),
            Self::Owned(value) => value,
        }
    }

    fn bool(value: bool) -> Self {
        Self::Borrowed(ValueRef::Bool(value))
    }

    /// Number of iterations of a comprehension over this value. `None` if it is not iterable.
    fn n_items(&self) -> Option<usize> {
        match self.borrow() {
            ValueRef::List(items) => Some(items.len()),
            ValueRef::Map(map) => Some(map.len()),
            _ => None,
        }
    }

    /// The item of a list, or the key of a map, at this index.
    fn item(&self, index: usize) -> Option<Val<'a>> {
        Some(match self {
            Self::Borrowed(ValueRef::List(items)) => Val::Borrowed(items.get(index)?.borrow()),
            Self::Borrowed(ValueRef::Map(map)) => {
                Val::Borrowed(map.entries().get(index)?.0.borrow())
            }
            Self::Owned(Value::List(items)) => Val::Owned(items.get(index)?.clone()),
            Self::Owned(Value::Map(map)) => Val::Owned(map.entries().get(index)?.0.to_value()),
            _ => return None,
        })
    }

    fn entry(&self, key: ValueRef<'_>) -> Result<Val<'a>, EvalErrorKind> {
        match self {
            Self::Borrowed(ValueRef::Map(map)) => {
                map.get(key).map(|value| Val::Borrowed(value.borrow()))
            }
            Self::Owned(Value::Map(map)) => map.get(key).map(|value| Val::Owned(value.clone())),
            _ => return Err(EvalErrorKind::NoSuchOverload),
        }
        .ok_or(EvalErrorKind::NoSuchKey)
    }
}

/// The state of one evaluation.
struct Walk<'a, R: ?Sized> {
    variables: &'a R,
    program: &'a Program,
    meter: Meter<'a>,
    locals: Vec<Val<'a>>,
}

impl<'a, R: Resolver + ?Sized> Walk<'a, R> {
    #[inline]
    fn new(program: &'a Program, variables: &'a R) -> Self {
        Self {
            variables,
            program,
            meter: Meter::new(&program.limits),
            locals: Vec::new(),
        }
    }

    /// Evaluates a node.
    fn eval(&mut self, node: &'a Node) -> Result<Val<'a>, EvalError> {
        match node {
            Node::Constant(value) => {
                self.step()?;
                Ok(Val::Borrowed(value.borrow()))
            }
            Node::Slot(slot, at) => {
                self.step()?;
                self.variables
                    .value(*slot)
                    .map(Val::Borrowed)
                    .ok_or(at.failed(EvalErrorKind::NoValue))
            }
            Node::Local(index) => {
                self.step()?;
                let value = self.locals.get(*index).cloned();
                value.ok_or(Position::START.failed(EvalErrorKind::UnknownIdentifier))
            }
            Node::Field(operand, name, at) => {
                self.step()?;
                let operand = self.eval(operand)?;
                self.touch(name.len(), *at)?;
                operand
                    .entry(ValueRef::String(name))
                    .map_err(|kind| at.failed(kind))
            }
            Node::Index(sides, at) => self.index(sides, *at),
            Node::Negate(operand, at) => {
                self.step()?;
                match self.eval(operand)?.borrow() {
                    ValueRef::Int(value) => value
                        .checked_neg()
                        .map(|value| Val::Borrowed(ValueRef::Int(value)))
                        .ok_or(at.failed(EvalErrorKind::Overflow)),
                    ValueRef::Double(value) => Ok(Val::Borrowed(ValueRef::Double(-value))),
                    _ => Err(at.failed(EvalErrorKind::NoSuchOverload)),
                }
            }
            Node::Conditional(parts) => {
                self.step()?;
                let [condition, then, otherwise] = &**parts;
                let chosen = if self.test(condition)? {
                    then
                } else {
                    otherwise
                };
                self.eval(chosen)
            }
            Node::Arithmetic {
                sides,
                operator,
                at,
            } => {
                self.step()?;
                let [left, right] = &**sides;
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                arithmetic(*operator, left.borrow(), right.borrow(), &mut self.meter)
                    .map(Val::Owned)
                    .map_err(|kind| at.failed(kind))
            }
            Node::List(items, at) => {
                self.step()?;
                self.make_list(items.len(), *at)?;
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    let item = self.eval(item)?;
                    list.push(self.own(item, *at)?);
                }
                Ok(Val::Owned(Value::List(list.into())))
            }
            Node::Map(entries, at) => self.map(entries, *at),
            Node::Call(function, arguments, at) => self.call(*function, arguments, *at),
            Node::Extension(function, arguments, at) => self.extension(function, arguments, *at),
            Node::Fold(fold) if fold.kind == FoldKind::SortBy => self.sort(fold),
            Node::Fold(fold) if matches!(fold.kind, FoldKind::Map | FoldKind::Filter) => {
                self.collect(fold)
            }
            Node::HasField(..)
            | Node::Not(_)
            | Node::And(_)
            | Node::Or(_)
            | Node::Equal { .. }
            | Node::Order { .. }
            | Node::In(..)
            | Node::Matches { .. }
            | Node::MatchesComputed(..)
            | Node::Fold(_)
            | Node::Fail(..)
            | Node::Condition { .. } => self.test(node).map(Val::bool),
        }
    }

    /// Evaluates a node as a bool. Other values are an error.
    fn test(&mut self, node: &'a Node) -> Result<bool, EvalError> {
        match node {
            Node::Condition { condition, units } => {
                self.spend(*units, Position::START)?;
                condition.holds(self.variables, &mut self.meter)
            }
            Node::And(parts) => self.all_of(parts),
            Node::Or(parts) => self.any_of(parts),
            Node::HasField(operand, name, at) => {
                self.step()?;
                match self.eval(operand)?.borrow() {
                    ValueRef::Map(map) => Ok(map.get(ValueRef::String(name)).is_some()),
                    _ => Err(at.failed(EvalErrorKind::NoSuchOverload)),
                }
            }
            Node::Not(operand) => {
                self.step()?;
                Ok(!self.test(operand)?)
            }
            Node::Equal { sides, is, at } => {
                self.step()?;
                let [left, right] = &**sides;
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                let are_equal = equal(left.borrow(), right.borrow(), &mut self.meter);
                Ok(are_equal.map_err(|kind| at.failed(kind))? == *is)
            }
            Node::Order {
                sides,
                comparison,
                at,
            } => {
                self.step()?;
                let [left, right] = &**sides;
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                let (left, right) = (left.borrow(), right.borrow());
                self.touch(left.weight().min(right.weight()), *at)?;
                let ordering = left
                    .order(right)
                    .ok_or(at.failed(EvalErrorKind::NoSuchOverload))?;
                Ok(ordering.is_some_and(|ordering| comparison.holds(ordering)))
            }
            Node::In(sides, at) => {
                self.step()?;
                let [needle, container] = &**sides;
                let (needle, container) = (self.eval(needle)?, self.eval(container)?);
                contains(container.borrow(), needle.borrow(), &mut self.meter)
                    .map_err(|kind| at.failed(kind))
            }
            Node::Matches { text, pattern, at } => {
                self.step()?;
                let text = self.eval(text)?;
                match text.borrow() {
                    ValueRef::String(text) => self.search(pattern, text, *at),
                    _ => Err(at.failed(EvalErrorKind::NoSuchOverload)),
                }
            }
            Node::MatchesComputed(sides, at) => {
                self.step()?;
                let [text, pattern] = &**sides;
                let (text, pattern) = (self.eval(text)?, self.eval(pattern)?);
                match (text.borrow(), pattern.borrow()) {
                    (ValueRef::String(text), ValueRef::String(pattern)) => {
                        let pattern = self.pattern(pattern, *at)?;
                        self.search(&pattern, text, *at)
                    }
                    _ => Err(at.failed(EvalErrorKind::NoSuchOverload)),
                }
            }
            Node::Fold(fold)
                if !matches!(
                    fold.kind,
                    FoldKind::Map | FoldKind::Filter | FoldKind::SortBy
                ) =>
            {
                self.quantify(fold)
            }
            Node::Fail(kind, at) => Err(at.failed(*kind)),
            _ => match self.eval(node)?.borrow() {
                ValueRef::Bool(value) => Ok(value),
                _ => Err(node.position().failed(EvalErrorKind::NoSuchOverload)),
            },
        }
    }

    /// `&&`: false if any part is false, otherwise the first error, otherwise true.
    fn all_of(&mut self, parts: &'a [Node]) -> Result<bool, EvalError> {
        let mut outcome = Ok(true);
        for part in parts {
            match self.test(part) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => outcome = absorb(outcome, error)?,
            }
        }
        outcome
    }

    /// `||`: true if any part is true, otherwise the first error, otherwise false.
    fn any_of(&mut self, parts: &'a [Node]) -> Result<bool, EvalError> {
        let mut outcome = Ok(false);
        for part in parts {
            match self.test(part) {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(error) => outcome = absorb(outcome, error)?,
            }
        }
        outcome
    }

    /// `all`, `exists`, `exists_one`.
    fn quantify(&mut self, fold: &'a FoldNode) -> Result<bool, EvalError> {
        self.step()?;
        let (range, n_items) = self.range(fold)?;
        let mut outcome = Ok(fold.kind == FoldKind::All);
        let mut n_true = 0_usize;
        for index in 0..n_items {
            match (fold.kind, self.round(fold, &range, index, &fold.body)) {
                (FoldKind::All, Ok(false)) => return Ok(false),
                (FoldKind::Exists, Ok(true)) => return Ok(true),
                (FoldKind::All | FoldKind::Exists, Ok(_)) => {}
                (FoldKind::All | FoldKind::Exists, Err(error)) => outcome = absorb(outcome, error)?,
                (_, result) => n_true += usize::from(result?),
            }
        }
        if fold.kind == FoldKind::ExistsOne {
            Ok(n_true == 1)
        } else {
            outcome
        }
    }

    /// `map`, `filter`.
    fn collect(&mut self, fold: &'a FoldNode) -> Result<Val<'a>, EvalError> {
        self.step()?;
        let (range, n_items) = self.range(fold)?;
        self.make_list(n_items, fold.at)?;
        let mut list = Vec::new();
        for index in 0..n_items {
            if fold.kind == FoldKind::Filter {
                if self.round(fold, &range, index, &fold.body)? {
                    let item = range.item(index).unwrap_or(Val::Borrowed(ValueRef::Null));
                    list.push(self.own(item, fold.at)?);
                }
                continue;
            }
            if let Some(condition) = &fold.condition
                && !self.round(fold, &range, index, condition)?
            {
                continue;
            }
            self.enter(&range, index);
            let item = self.eval(&fold.body);
            self.locals.pop();
            list.push(self.own(item?, fold.at)?);
        }
        Ok(Val::Owned(Value::List(list.into())))
    }

    /// `sortBy`.
    fn sort(&mut self, fold: &'a FoldNode) -> Result<Val<'a>, EvalError> {
        self.step()?;
        let (range, n_items) = self.range(fold)?;
        let not_ordered = fold.at.failed(EvalErrorKind::NoSuchOverload);
        if !matches!(range.borrow(), ValueRef::List(_)) {
            return Err(not_ordered);
        }
        self.make_list(n_items, fold.at)?;
        let steps = n_items.checked_ilog2().unwrap_or(0) + 1;
        self.spend(n_items as u64 * u64::from(steps), fold.at)?;
        let mut keyed = Vec::with_capacity(n_items);
        for index in 0..n_items {
            self.enter(&range, index);
            let key = self.eval(&fold.body);
            self.locals.pop();
            let item = range.item(index).unwrap_or(Val::Borrowed(ValueRef::Null));
            keyed.push((self.own(key?, fold.at)?, self.own(item, fold.at)?));
        }
        // An order that is not total makes the sort of the library panic.
        if let Some(((first, _), others)) = keyed.split_first() {
            let is_ordered = |key: &Value| first.borrow().order(key.borrow()).flatten().is_some();
            if !others.iter().all(|(key, _)| is_ordered(key)) {
                return Err(not_ordered);
            }
        }
        // A double may equal several ints, so either all numbers are compared as doubles or none is.
        let has_doubles = keyed.iter().any(|(key, _)| matches!(key, Value::Double(_)));
        keyed.sort_by(|(a, _), (b, _)| {
            let (a, b) = (a.borrow(), b.borrow());
            let order = match (has_doubles, a.as_double(), b.as_double()) {
                (true, Some(a), Some(b)) => a.partial_cmp(&b),
                _ => a.order(b).flatten(),
            };
            order.unwrap_or(Ordering::Equal)
        });
        let items = keyed.into_iter().map(|(_, item)| item);
        Ok(Val::Owned(Value::List(items.collect())))
    }

    fn range(&mut self, fold: &'a FoldNode) -> Result<(Val<'a>, usize), EvalError> {
        let range = self.eval(&fold.range)?;
        let n_items = range
            .n_items()
            .ok_or(fold.at.failed(EvalErrorKind::NoSuchOverload))?;
        Ok((range, n_items))
    }

    /// Evaluates `condition` with the variable of the comprehension set.
    fn round(
        &mut self,
        fold: &FoldNode,
        range: &Val<'a>,
        index: usize,
        condition: &'a Node,
    ) -> Result<bool, EvalError> {
        self.spend(1, fold.at)?;
        self.enter(range, index);
        let result = self.test(condition);
        self.locals.pop();
        result
    }

    fn enter(&mut self, range: &Val<'a>, index: usize) {
        self.locals
            .push(range.item(index).unwrap_or(Val::Borrowed(ValueRef::Null)));
    }

    fn index(&mut self, sides: &'a [Node; 2], at: Position) -> Result<Val<'a>, EvalError> {
        self.step()?;
        let [operand, index] = sides;
        let (operand, index) = (self.eval(operand)?, self.eval(index)?);
        let index = index.borrow();
        self.touch(index.weight(), at)?;
        if !matches!(operand.borrow(), ValueRef::List(_)) {
            return operand.entry(index).map_err(|kind| at.failed(kind));
        }
        let position = match index {
            ValueRef::Int(index) => usize::try_from(index).ok(),
            ValueRef::Uint(index) => usize::try_from(index).ok(),
            ValueRef::Double(index) if index.fract() == 0.0 && index >= 0.0 => Some(index as usize),
            _ => return Err(at.failed(EvalErrorKind::InvalidArgument)),
        };
        position
            .and_then(|position| operand.item(position))
            .ok_or(at.failed(EvalErrorKind::IndexOutOfRange))
    }

    fn map(&mut self, entries: &'a [(Node, Node)], at: Position) -> Result<Val<'a>, EvalError> {
        self.step()?;
        self.make_list(entries.len(), at)?;
        let mut list = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            let key = self.own(key, at)?;
            let key = Key::from_value(&key).ok_or(at.failed(EvalErrorKind::InvalidArgument))?;
            list.push((key, self.own(value, at)?));
        }
        let map = Map::new(list).map_err(|_| at.failed(EvalErrorKind::RepeatedKey))?;
        Ok(Val::Owned(Value::Map(Arc::new(map))))
    }

    fn call(
        &mut self,
        function: Function,
        arguments: &'a [Node],
        at: Position,
    ) -> Result<Val<'a>, EvalError> {
        self.step()?;
        let zones = self.program.zones;
        let result = match arguments {
            [only] => {
                let only = self.eval(only)?;
                function.call(&[only.borrow()], zones, &mut self.meter)
            }
            [first, second] => {
                let (first, second) = (self.eval(first)?, self.eval(second)?);
                function.call(&[first.borrow(), second.borrow()], zones, &mut self.meter)
            }
            _ => Err(EvalErrorKind::NoSuchOverload),
        };
        result.map(Val::Owned).map_err(|kind| at.failed(kind))
    }

    fn extension(
        &mut self,
        function: &'static Extension,
        arguments: &'a [Node],
        at: Position,
    ) -> Result<Val<'a>, EvalError> {
        const NOTHING: Val<'_> = Val::Borrowed(ValueRef::Null);
        self.step()?;
        let mut values = [NOTHING; ARGUMENTS_MAX];
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = self.eval(argument)?;
            self.touch(value.borrow().weight(), at)?;
        }
        let borrowed = values.each_ref().map(Val::borrow);
        let borrowed = borrowed.get(..arguments.len()).unwrap_or_default();
        (function.run)(borrowed, &mut self.meter)
            .map(Val::Owned)
            .map_err(|kind| at.failed(kind))
    }

    /// The compiled pattern of a computed text.
    fn pattern(&mut self, text: &str, at: Position) -> Result<Pattern, EvalError> {
        self.touch(text.len(), at)?;
        if let Some(pattern) = self.program.patterns.get(text) {
            return Ok(pattern);
        }
        let classes = Pattern::n_large_classes(text).saturating_mul(CLASS_UNITS);
        self.spend(PATTERN_UNITS.saturating_add(classes), at)?;
        let pattern = Pattern::computed(text, &self.program.limits).map_err(|error| {
            at.failed(match error.is_too_large() {
                true => EvalErrorKind::PatternTooLarge,
                false => EvalErrorKind::Pattern,
            })
        })?;
        self.program.patterns.put(text, pattern.clone());
        Ok(pattern)
    }

    fn search(&mut self, pattern: &Pattern, text: &str, at: Position) -> Result<bool, EvalError> {
        self.meter
            .search(text.len(), pattern.weight())
            .map_err(|kind| at.failed(kind))?;
        Ok(pattern.is_found_in(text))
    }

    /// Copies a borrowed value into an owned one, and charges for it.
    fn own(&mut self, value: Val<'a>, at: Position) -> Result<Value, EvalError> {
        match value {
            Val::Owned(value) => Ok(value),
            Val::Borrowed(value) => {
                let paid = match value {
                    ValueRef::List(items) => self.meter.make_list(items.len()),
                    ValueRef::Map(map) => self.meter.make_list(map.len()),
                    other => self.meter.make_string(other.weight()),
                };
                paid.map_err(|kind| at.failed(kind))?;
                Ok(value.to_value())
            }
        }
    }

    #[inline]
    fn step(&mut self) -> Result<(), EvalError> {
        self.spend(1, Position::START)
    }

    #[inline]
    fn spend(&mut self, units: u64, at: Position) -> Result<(), EvalError> {
        self.meter.spend(units).map_err(|kind| at.failed(kind))
    }

    #[inline]
    fn touch(&mut self, bytes: usize, at: Position) -> Result<(), EvalError> {
        self.meter.touch(bytes).map_err(|kind| at.failed(kind))
    }

    fn make_list(&mut self, items: usize, at: Position) -> Result<(), EvalError> {
        self.meter.make_list(items).map_err(|kind| at.failed(kind))
    }
}

/// Whether two values are equal. Numbers compare across types; values of other distinct types are never equal.
fn equal(
    left: ValueRef<'_>,
    right: ValueRef<'_>,
    meter: &mut Meter<'_>,
) -> Result<bool, EvalErrorKind> {
    Ok(match (left, right) {
        (ValueRef::Null, ValueRef::Null) => true,
        (ValueRef::Type(a), ValueRef::Type(b)) => a == b,
        (ValueRef::String(a), ValueRef::String(b)) => {
            meter.touch(a.len().min(b.len()))?;
            a == b
        }
        (ValueRef::Bytes(a), ValueRef::Bytes(b)) => {
            meter.touch(a.len().min(b.len()))?;
            a == b
        }
        (ValueRef::List(a), ValueRef::List(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b) {
                meter.spend(1)?;
                if !equal(a.borrow(), b.borrow(), meter)? {
                    return Ok(false);
                }
            }
            true
        }
        (ValueRef::Map(a), ValueRef::Map(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for ((key_a, a), (key_b, b)) in a.entries().iter().zip(b.entries()) {
                meter.spend(1)?;
                let are_equal = equal(key_a.borrow(), key_b.borrow(), meter)?
                    && equal(a.borrow(), b.borrow(), meter)?;
                if !are_equal {
                    return Ok(false);
                }
            }
            true
        }
        (a, b) => a.order(b).flatten().is_some_and(Ordering::is_eq),
    })
}

/// `needle in container`.
fn contains(
    container: ValueRef<'_>,
    needle: ValueRef<'_>,
    meter: &mut Meter<'_>,
) -> Result<bool, EvalErrorKind> {
    match container {
        ValueRef::List(items) => {
            for item in items {
                meter.spend(1)?;
                if equal(item.borrow(), needle, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        ValueRef::Map(map) => {
            let may_be_key = matches!(
                needle,
                ValueRef::Bool(_)
                    | ValueRef::Int(_)
                    | ValueRef::Uint(_)
                    | ValueRef::Double(_)
                    | ValueRef::String(_)
            );
            if !may_be_key {
                return Err(EvalErrorKind::NoSuchOverload);
            }
            meter.touch(needle.weight())?;
            Ok(map.get(needle).is_some())
        }
        _ => Err(EvalErrorKind::NoSuchOverload),
    }
}

fn arithmetic(
    operator: Operator,
    left: ValueRef<'_>,
    right: ValueRef<'_>,
    meter: &mut Meter<'_>,
) -> Result<Value, EvalErrorKind> {
    use EvalErrorKind::{DivideByZero, NoSuchOverload, OutOfRange, Overflow};
    use Operator::{Add, Divide, Modulo, Multiply, Subtract};
    match (left, right) {
        (ValueRef::Int(a), ValueRef::Int(b)) => match operator {
            Divide | Modulo if b == 0 => return Err(DivideByZero),
            Add => a.checked_add(b),
            Subtract => a.checked_sub(b),
            Multiply => a.checked_mul(b),
            Divide => a.checked_div(b),
            Modulo => a.checked_rem(b),
            _ => return Err(NoSuchOverload),
        }
        .map(Value::Int)
        .ok_or(Overflow),
        (ValueRef::Uint(a), ValueRef::Uint(b)) => match operator {
            Divide | Modulo if b == 0 => return Err(DivideByZero),
            Add => a.checked_add(b),
            Subtract => a.checked_sub(b),
            Multiply => a.checked_mul(b),
            Divide => a.checked_div(b),
            Modulo => a.checked_rem(b),
            _ => return Err(NoSuchOverload),
        }
        .map(Value::Uint)
        .ok_or(Overflow),
        (ValueRef::Double(a), ValueRef::Double(b)) => Ok(Value::Double(match operator {
            Add => a + b,
            Subtract => a - b,
            Multiply => a * b,
            Divide => a / b,
            _ => return Err(NoSuchOverload),
        })),
        (ValueRef::String(a), ValueRef::String(b)) if operator == Add => {
            meter.make_string(a.len().saturating_add(b.len()))?;
            Ok(Value::String([a, b].concat().into()))
        }
        (ValueRef::Bytes(a), ValueRef::Bytes(b)) if operator == Add => {
            meter.make_string(a.len().saturating_add(b.len()))?;
            Ok(Value::Bytes([a, b].concat().into()))
        }
        (ValueRef::List(a), ValueRef::List(b)) if operator == Add => {
            meter.make_list(a.len().saturating_add(b.len()))?;
            Ok(Value::List([a, b].concat().into()))
        }
        (ValueRef::Timestamp(a), ValueRef::Duration(b)) => {
            let sum = match operator {
                Add => a.plus(b),
                Subtract => a.minus(b),
                _ => return Err(NoSuchOverload),
            };
            sum.map(Value::Timestamp).ok_or(OutOfRange)
        }
        (ValueRef::Duration(a), ValueRef::Timestamp(b)) if operator == Add => {
            b.plus(a).map(Value::Timestamp).ok_or(OutOfRange)
        }
        (ValueRef::Timestamp(a), ValueRef::Timestamp(b)) if operator == Subtract => {
            a.since(b).map(Value::Duration).ok_or(OutOfRange)
        }
        (ValueRef::Duration(a), ValueRef::Duration(b)) => {
            let sum = match operator {
                Add => a.checked_add(b),
                Subtract => a.checked_sub(b),
                _ => return Err(NoSuchOverload),
            };
            sum.map(Value::Duration).ok_or(OutOfRange)
        }
        _ => Err(NoSuchOverload),
    }
}
