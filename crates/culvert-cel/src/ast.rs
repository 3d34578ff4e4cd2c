//! The syntax tree. The parser limits its height, so functions that walk or drop it may recurse.

/// An expression and its position.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    /// Byte offset that errors about this expression report.
    pub(crate) at: usize,
    /// Height of the subtree; 1 for a leaf.
    pub(crate) height: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum ExprKind {
    Literal(Literal),
    Name(Box<str>),
    Select {
        operand: Box<Expr>,
        field: Box<str>,
    },
    Index {
        operand: Box<Expr>,
        index: Box<Expr>,
    },
    /// `has` of a selection or an index.
    Has(Box<Expr>),
    Call {
        name: Box<str>,
        target: Option<Box<Expr>>,
        arguments: Vec<Expr>,
    },
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary {
        operator: Operator,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    /// `&&` of two or more operands.
    And(Vec<Expr>),
    /// `||` of two or more operands.
    Or(Vec<Expr>),
    Conditional(Box<[Expr; 3]>),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Fold(Box<Fold>),
}

/// A macro: `range.macro(variable, …)`.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    pub(crate) kind: FoldKind,
    pub(crate) range: Expr,
    pub(crate) variable: Box<str>,
    /// Only for `map` with three arguments.
    pub(crate) condition: Option<Expr>,
    pub(crate) body: Expr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    /// Sorts the items of a list by the value of the body.
    SortBy,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Box<str>),
    Bytes(Box<[u8]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

impl Operator {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::In => "in",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Modulo => "%",
        }
    }
}
