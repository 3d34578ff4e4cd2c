//! Compiled expressions: a tree of nodes, which `check` builds and `eval` walks.

use std::sync::Arc;

use crate::error::{EvalErrorKind, Position};
use crate::eval::condition::Condition;
use crate::functions::Function;
use crate::functions::extension::Extension;
use crate::pattern::Pattern;
use crate::resolver::Slot;
use crate::syntax::ast::{FoldKind, Operator};
use crate::value::Value;

/// A node of a compiled expression.
#[derive(Debug)]
pub(crate) enum Node {
    Constant(Value),
    Slot(Slot, Position),
    /// A variable of a comprehension, by its index from the outermost.
    Local(usize),
    /// `has` of a field.
    HasField(Box<Node>, Arc<str>, Position),
    Field(Box<Node>, Arc<str>, Position),
    Index(Box<[Node; 2]>, Position),
    Not(Box<Node>),
    Negate(Box<Node>, Position),
    And(Box<[Node]>),
    Or(Box<[Node]>),
    Conditional(Box<[Node; 3]>),
    Equal {
        sides: Box<[Node; 2]>,
        is: bool,
        at: Position,
    },
    Order {
        sides: Box<[Node; 2]>,
        comparison: Comparison,
        at: Position,
    },
    Arithmetic {
        sides: Box<[Node; 2]>,
        operator: Operator,
        at: Position,
    },
    In(Box<[Node; 2]>, Position),
    List(Box<[Node]>, Position),
    Map(Box<[(Node, Node)]>, Position),
    Call(Function, Box<[Node]>, Position),
    /// A call of an extension, with at most `ARGUMENTS_MAX` arguments.
    Extension(&'static Extension, Box<[Node]>, Position),
    Matches {
        text: Box<Node>,
        pattern: Box<Pattern>,
        at: Position,
    },
    MatchesComputed(Box<[Node; 2]>, Position),
    Fold(Box<FoldNode>),
    /// Fails at run time. Only dynamic environments produce it.
    Fail(EvalErrorKind, Position),
    /// A condition that reads only variables, and the cost of visiting it.
    Condition {
        condition: Condition,
        units: u64,
    },
}

impl Node {
    pub(crate) fn position(&self) -> Position {
        match self {
            Self::Slot(_, at)
            | Self::Field(_, _, at)
            | Self::Index(_, at)
            | Self::Negate(_, at)
            | Self::Arithmetic { at, .. }
            | Self::List(_, at)
            | Self::Map(_, at)
            | Self::Call(_, _, at)
            | Self::Extension(_, _, at) => *at,
            Self::Fold(fold) => fold.at,
            _ => Position::START,
        }
    }
}

/// A macro that iterates over a list or a map.
#[derive(Debug)]
pub(crate) struct FoldNode {
    pub(crate) kind: FoldKind,
    pub(crate) range: Node,
    pub(crate) condition: Option<Node>,
    pub(crate) body: Node,
    pub(crate) at: Position,
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Comparison {
    /// `None` for other operators.
    pub(crate) fn of(operator: Operator) -> Option<Self> {
        Some(match operator {
            Operator::Equal => Self::Equal,
            Operator::NotEqual => Self::NotEqual,
            Operator::Less => Self::Less,
            Operator::LessEqual => Self::LessEqual,
            Operator::Greater => Self::Greater,
            Operator::GreaterEqual => Self::GreaterEqual,
            _ => return None,
        })
    }

    /// The equivalent comparison with exchanged sides.
    pub(crate) fn swapped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessEqual => Self::GreaterEqual,
            Self::Greater => Self::Less,
            Self::GreaterEqual => Self::LessEqual,
            same => same,
        }
    }
}
