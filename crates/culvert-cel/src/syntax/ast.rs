//! The syntax tree, without types. The parser limits its height, so functions that walk or drop it may recurse.

/// An expression and its position.
#[derive(Clone, Debug)]
pub struct Expr {
    /// What it is, with its parts.
    pub kind: ExprKind,
    /// Byte offset that errors about this expression report.
    pub at: usize,
    /// Height of the subtree; 1 for a leaf.
    pub(crate) height: usize,
}

/// The kinds of expressions.
#[derive(Clone, Debug)]
pub enum ExprKind {
    /// A literal; a number with its sign.
    Literal(Literal),
    /// The name of a variable, or its first part.
    Name(Box<str>),
    /// `operand.field`.
    Select {
        /// What the field is selected from.
        operand: Box<Expr>,
        /// The name of the field.
        field: Box<str>,
    },
    /// `operand[index]`.
    Index {
        /// The list or map.
        operand: Box<Expr>,
        /// The expression in brackets.
        index: Box<Expr>,
    },
    /// `has` of a selection or an index.
    Has(Box<Expr>),
    /// `name(arguments)` or `target.name(arguments)`.
    Call {
        /// The name of the function.
        name: Box<str>,
        /// The expression before the dot.
        target: Option<Box<Expr>>,
        /// The arguments in parentheses.
        arguments: Vec<Expr>,
    },
    /// `!` of an operand.
    Not(Box<Expr>),
    /// `-` of an operand that is no number.
    Negate(Box<Expr>),
    /// Two operands of any operator but `&&` and `||`.
    Binary {
        /// The operator.
        operator: Operator,
        /// The operand before it.
        left: Box<Expr>,
        /// The operand after it.
        right: Box<Expr>,
    },
    /// `&&` of two or more operands.
    And(Vec<Expr>),
    /// `||` of two or more operands.
    Or(Vec<Expr>),
    /// `condition ? then : otherwise`.
    Conditional(Box<[Expr; 3]>),
    /// `[items]`.
    List(Vec<Expr>),
    /// `{key: value}`.
    Map(Vec<(Expr, Expr)>),
    /// A macro.
    Fold(Box<Fold>),
}

/// A macro: `range.macro(variable, …)`.
#[derive(Clone, Debug)]
pub struct Fold {
    /// Which macro.
    pub kind: FoldKind,
    /// The list or map.
    pub range: Expr,
    /// The name of the item in the condition and the body.
    pub variable: Box<str>,
    /// Only for `map` with three arguments.
    pub condition: Option<Expr>,
    /// The last argument.
    pub body: Expr,
}

/// The macros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldKind {
    /// `all`.
    All,
    /// `exists`.
    Exists,
    /// `exists_one`.
    ExistsOne,
    /// `map`.
    Map,
    /// `filter`.
    Filter,
    /// Sorts the items of a list by the value of the body.
    SortBy,
}

/// A literal, with its escapes resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// `1`.
    Int(i64),
    /// `1u`.
    Uint(u64),
    /// `1.0`.
    Double(f64),
    /// `"text"`.
    String(Box<str>),
    /// `b"bytes"`.
    Bytes(Box<[u8]>),
}

/// The operators of two operands, without `&&` and `||`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `==`.
    Equal,
    /// `!=`.
    NotEqual,
    /// `<`.
    Less,
    /// `<=`.
    LessEqual,
    /// `>`.
    Greater,
    /// `>=`.
    GreaterEqual,
    /// `in`.
    In,
    /// `+`.
    Add,
    /// `-`.
    Subtract,
    /// `*`.
    Multiply,
    /// `/`.
    Divide,
    /// `%`.
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
