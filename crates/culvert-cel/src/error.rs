//! What can be wrong with an expression: before it runs (`Error`) and while it runs (`EvalError`).

use std::fmt;

/// A place in the text, counted from 1; columns are characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub line: u16,
    pub column: u16,
}

impl Position {
    /// For what has no place of its own: the whole expression.
    pub(crate) const START: Self = Self { line: 1, column: 1 };

    /// The position of the byte `offset` of `source`.
    pub(crate) fn of(source: &str, offset: usize) -> Self {
        let mut end = offset.min(source.len());
        while !source.is_char_boundary(end) {
            end -= 1;
        }
        let before = source.get(..end).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        let narrow = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        Self {
            line: narrow(line),
            column: narrow(column),
        }
    }
}

impl Position {
    /// A failure here.
    #[inline]
    pub(crate) fn failed(self, kind: EvalErrorKind) -> EvalError {
        EvalError {
            kind,
            position: self,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Why a text was not accepted as an expression. Displayed as `line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: ErrorKind,
    pub position: Position,
    /// A sentence without position, lower case, without a full stop.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.message)
    }
}

impl std::error::Error for Error {}

/// What sort of mistake an [`Error`] is. Paths are dotted and begin with the variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not an expression.
    Syntax,
    /// A name that is not declared.
    UnknownIdentifier { name: String },
    /// A field that its object does not have.
    UnknownField { path: String },
    /// A field that exists but was declared unusable, or an object that has only such fields.
    UnusableField { path: String },
    /// An object with fields where a value is needed.
    ObjectAsValue { path: String },
    /// An object indexed by something other than a string literal.
    ComputedField { path: String },
    /// Operands or arguments of types that the operation is not defined for.
    Type,
    /// A function that does not exist.
    UnknownFunction { name: String },
    /// A regular expression that does not compile or is too large.
    Pattern,
    /// Beyond one of the [`Limits`](crate::Limits).
    TooLarge,
    /// A condition whose result is known not to be a bool.
    NotBool,
}

/// Why an evaluation has no result. Displayed as `line:column: message`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalError {
    pub kind: EvalErrorKind,
    pub position: Position,
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.kind.message())
    }
}

impl std::error::Error for EvalError {}

/// What sort of failure an [`EvalError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalErrorKind {
    /// The resolver has no value for a variable.
    NoValue,
    /// An object of the host that the expression names does not exist.
    Missing,
    NoSuchKey,
    NoSuchOverload,
    UnknownIdentifier,
    UnknownFunction,
    IndexOutOfRange,
    RepeatedKey,
    DivideByZero,
    Overflow,
    OutOfRange,
    InvalidArgument,
    Pattern,
    /// The budget of units is spent.
    CostExceeded,
    /// The budget of bytes is spent, or one string or list is too long.
    MemoryExceeded,
}

impl EvalErrorKind {
    /// A sentence, lower case, without a full stop.
    pub fn message(self) -> &'static str {
        match self {
            Self::NoValue => "the variable has no value",
            Self::Missing => "an object that the expression names does not exist",
            Self::NoSuchKey => "no such key",
            Self::NoSuchOverload => "no such overload",
            Self::UnknownIdentifier => "undeclared name",
            Self::UnknownFunction => "undeclared function",
            Self::IndexOutOfRange => "index out of range",
            Self::RepeatedKey => "repeated key in a map",
            Self::DivideByZero => "division by zero",
            Self::Overflow => "integer overflow",
            Self::OutOfRange => "value out of range",
            Self::InvalidArgument => "invalid argument",
            Self::Pattern => "invalid regular expression",
            Self::CostExceeded => "the evaluation costs too much",
            Self::MemoryExceeded => "the evaluation needs too much memory",
        }
    }

    /// Whether `&&`, `||`, `all` and `exists` may pass over it. A spent budget ends the evaluation.
    pub(crate) fn is_absorbable(self) -> bool {
        !matches!(self, Self::CostExceeded | Self::MemoryExceeded)
    }
}

/// Keeps the first error, unless the new one must not be passed over.
pub(crate) fn absorb(
    outcome: Result<bool, EvalError>,
    error: EvalError,
) -> Result<Result<bool, EvalError>, EvalError> {
    match outcome {
        _ if !error.kind.is_absorbable() => Err(error),
        Ok(_) => Ok(Err(error)),
        Err(first) => Ok(Err(first)),
    }
}
