//! Errors of expressions: at compile time (`Error`) and at run time (`EvalError`).

use std::fmt;

/// A position in the text. Line and column start at 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Starts at 1.
    pub line: u16,
    /// Starts at 1; counts characters.
    pub column: u16,
}

impl Position {
    /// The position of errors that concern the whole expression.
    pub(crate) const START: Self = Self { line: 1, column: 1 };

    /// The position of a byte offset.
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
    /// An evaluation error at this position.
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

/// Why a text is not a valid expression. Displays as `line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The class of the error, for callers that map it to a code.
    pub kind: ErrorKind,
    /// The position of the error in the text.
    pub position: Position,
    /// A message without position, in lower case, without a full stop.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.message)
    }
}

impl std::error::Error for Error {}

/// The kind of an [`Error`]. Paths are dotted and begin with the variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text does not parse.
    Syntax,
    /// The name is not declared.
    UnknownIdentifier {
        /// The name.
        name: String,
    },
    /// The object does not have this field.
    UnknownField {
        /// Path of the field.
        path: String,
    },
    /// The field exists but was declared unusable, or the object has only such fields.
    UnusableField {
        /// Path of the field or the object.
        path: String,
    },
    /// An object with fields where a value is expected.
    ObjectAsValue {
        /// Path of the object.
        path: String,
    },
    /// An object indexed by an expression other than a string literal.
    ComputedField {
        /// Path of the object.
        path: String,
    },
    /// The operation is not defined for these types.
    Type,
    /// The function does not exist.
    UnknownFunction {
        /// The name.
        name: String,
    },
    /// The regular expression does not compile or is too large.
    Pattern,
    /// The expression exceeds one of the [`Limits`](crate::Limits).
    TooLarge,
    /// The result of a condition is certainly not a bool.
    NotBool,
}

/// Why an evaluation failed. Displays as `line:column: message`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalError {
    /// The class of the failure.
    pub kind: EvalErrorKind,
    /// The position of the failing part of the expression.
    pub position: Position,
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.kind.message())
    }
}

impl std::error::Error for EvalError {}

/// The kind of an [`EvalError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalErrorKind {
    /// The resolver has no value for a variable.
    NoValue,
    /// The host object that the expression names does not exist.
    Missing,
    /// A map has no such key.
    NoSuchKey,
    /// A function or operator is not defined for the types of its operands.
    NoSuchOverload,
    /// The name is not declared, in an [`Env`](crate::Env) that is checked only at run time.
    UnknownIdentifier,
    /// The function does not exist, in an [`Env`](crate::Env) that is checked only at run time.
    UnknownFunction,
    /// The index of a list is negative or too large.
    IndexOutOfRange,
    /// The literal of a map has a key twice.
    RepeatedKey,
    /// An integer is divided by zero, also by `%`.
    DivideByZero,
    /// An integer operation exceeds 64 bits.
    Overflow,
    /// The result of a conversion or a time is outside the range of its type.
    OutOfRange,
    /// An argument has the right type and an invalid value.
    InvalidArgument,
    /// A computed regular expression does not compile.
    Pattern,
    /// The budget of units is exhausted.
    CostExceeded,
    /// The budget of bytes is exhausted, or a string or list is too long.
    MemoryExceeded,
    /// A value is nested too deeply.
    DepthExceeded,
    /// A computed regular expression is too large.
    PatternTooLarge,
}

impl EvalErrorKind {
    /// The message, in lower case, without a full stop.
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
            Self::DepthExceeded => "a value is nested too deeply",
            Self::PatternTooLarge => "a computed regular expression is too large",
        }
    }

    /// Whether the evaluation reached one of its limits. The sender of the data can cause that at will, so it says
    /// nothing about the data: the result is neither true nor false. `&&`, `||`, `all` and `exists` do not absorb
    /// such an error; it always ends the evaluation.
    pub fn is_limit(self) -> bool {
        match self {
            Self::CostExceeded
            | Self::MemoryExceeded
            | Self::DepthExceeded
            | Self::PatternTooLarge => true,
            Self::NoValue
            | Self::Missing
            | Self::NoSuchKey
            | Self::NoSuchOverload
            | Self::UnknownIdentifier
            | Self::UnknownFunction
            | Self::IndexOutOfRange
            | Self::RepeatedKey
            | Self::DivideByZero
            | Self::Overflow
            | Self::OutOfRange
            | Self::InvalidArgument
            | Self::Pattern => false,
        }
    }
}

impl EvalError {
    /// Whether the evaluation reached one of its limits ([`EvalErrorKind::is_limit`]).
    pub fn is_limit(&self) -> bool {
        self.kind.is_limit()
    }
}

/// Keeps the first error, unless the new one cannot be absorbed.
pub(crate) fn absorb(
    outcome: Result<bool, EvalError>,
    error: EvalError,
) -> Result<Result<bool, EvalError>, EvalError> {
    match outcome {
        _ if error.is_limit() => Err(error),
        Ok(_) => Ok(Err(error)),
        Err(first) => Ok(Err(first)),
    }
}
