//! Compiled expressions of a policy. An error of one is never lost: evaluating it tells the exchange, which rejects the
//! request if it must, whatever the caller makes of the missing value.

use culvert_cel::{EvalError, Position, Predicate, Program, Resolver, Slot, Value};

use crate::policy::exchange::Exchange;
use crate::policy::values::check_size;

/// An expression of any type.
#[derive(Debug)]
pub struct Expression(Box<Program>);

impl Expression {
    pub(super) fn new(program: Program) -> Self {
        Self(Box::new(program))
    }

    /// Its value with these variables. The exchange notes an error.
    pub fn value<R: Resolver + ?Sized>(
        &self,
        x: &Exchange<'_>,
        variables: &R,
    ) -> Result<Value, EvalError> {
        let sized = |value: Value| match check_size(value.borrow()) {
            Ok(()) => Ok(value),
            Err(kind) => Err(EvalError {
                kind,
                position: Position { line: 1, column: 1 },
            }),
        };
        let value = self.0.eval(variables).and_then(sized);
        value.inspect_err(|error| x.failed(error))
    }

    /// The variables it reads.
    pub fn slots(&self) -> &[Slot] {
        self.0.slots()
    }
}

/// An expression that is true or false.
#[derive(Debug)]
pub struct Condition(Predicate);

impl Condition {
    pub(super) fn new(predicate: Predicate) -> Self {
        Self(predicate)
    }

    /// Whether it holds with these variables. The exchange notes an error.
    pub fn holds<R: Resolver + ?Sized>(
        &self,
        x: &Exchange<'_>,
        variables: &R,
    ) -> Result<bool, EvalError> {
        self.0.test(variables).inspect_err(|error| x.failed(error))
    }

    /// The same for rules, which decide themselves what an error means.
    pub(super) fn test<R: Resolver + ?Sized>(&self, variables: &R) -> Result<bool, EvalError> {
        self.0.test(variables)
    }

    /// The variables it reads.
    pub fn slots(&self) -> &[Slot] {
        self.0.slots()
    }
}
