//! The parser: turns tokens into a syntax tree by precedence climbing.
//!
//! It checks the number of nodes, the height of the tree and the nesting of brackets while it parses, so no text
//! makes it, or code that walks the tree, recurse too deeply. It also turns macros into nodes.

use crate::error::{Error, ErrorKind, Position};
use crate::limits::Limits;
use crate::syntax::ast::{Expr, ExprKind, Fold, FoldKind, Literal, Operator};
use crate::syntax::lex::{LexError, Lexer, Spanned, Token};

/// Parses all of `source`.
pub(crate) fn parse(source: &str, limits: &Limits) -> Result<Expr, Error> {
    parse_tokens(Lexer::new(source), limits)
}

/// Parses all of `source` into its syntax tree, for callers that give it another meaning than this crate does. Unlike in
/// CEL, a line break in a string literal needs no escape.
pub fn parse_lenient(source: &str, limits: &Limits) -> Result<Expr, Error> {
    parse_tokens(Lexer::with_line_breaks(source), limits)
}

fn parse_tokens(lexer: Lexer<'_>, limits: &Limits) -> Result<Expr, Error> {
    let source = lexer.source;
    if source.len() > limits.source_bytes_max {
        return Err(Error {
            kind: ErrorKind::TooLarge,
            position: Position { line: 1, column: 1 },
            message: format!(
                "the expression is longer than {} bytes: {}",
                limits.source_bytes_max,
                source.len()
            ),
        });
    }
    let mut parser = Parser {
        source,
        limits,
        lexer,
        current: Spanned {
            token: Token::End,
            at: 0,
        },
        n_nodes: 0,
        nesting: 0,
    };
    parser.advance()?;
    let expr = parser.expression()?;
    match parser.current.token {
        Token::End => Ok(expr),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

struct Parser<'s> {
    source: &'s str,
    limits: &'s Limits,
    lexer: Lexer<'s>,
    current: Spanned,
    n_nodes: usize,
    nesting: usize,
}

impl Parser<'_> {
    fn expression(&mut self) -> Result<Expr, Error> {
        self.nesting += 1;
        if self.nesting > self.limits.nesting_max {
            return Err(self.too_deep(self.current.at, self.limits.nesting_max));
        }
        let condition = self.binary(1)?;
        let expr = if self.is("?") {
            let at = self.current.at;
            self.advance()?;
            let then = self.binary(1)?;
            self.expect(":")?;
            let otherwise = self.expression()?;
            let height = condition.height.max(then.height).max(otherwise.height);
            let parts = Box::new([condition, then, otherwise]);
            self.node(ExprKind::Conditional(parts), at, height)?
        } else {
            condition
        };
        self.nesting -= 1;
        Ok(expr)
    }

    /// Parses operators with at least the precedence `floor`. All of them are left-associative.
    fn binary(&mut self, floor: u8) -> Result<Expr, Error> {
        let mut left = self.unary()?;
        while let Some((infix, binding)) = self.infix() {
            if binding < floor {
                break;
            }
            let at = self.current.at;
            self.advance()?;
            let right = self.binary(binding + 1)?;
            let height = left.height.max(right.height);
            left = match (infix, left) {
                // A chain is flat: `a && b && c` is one node with three operands.
                (
                    Infix::And,
                    Expr {
                        kind: ExprKind::And(mut parts),
                        at: first,
                        height: before,
                    },
                ) => {
                    let below = (before - 1).max(right.height);
                    parts.push(right);
                    self.node(ExprKind::And(parts), first, below)?
                }
                (
                    Infix::Or,
                    Expr {
                        kind: ExprKind::Or(mut parts),
                        at: first,
                        height: before,
                    },
                ) => {
                    let below = (before - 1).max(right.height);
                    parts.push(right);
                    self.node(ExprKind::Or(parts), first, below)?
                }
                (Infix::And, left) => self.node(ExprKind::And(vec![left, right]), at, height)?,
                (Infix::Or, left) => self.node(ExprKind::Or(vec![left, right]), at, height)?,
                (Infix::Operator(operator), left) => {
                    let (left, right) = (Box::new(left), Box::new(right));
                    self.node(
                        ExprKind::Binary {
                            operator,
                            left,
                            right,
                        },
                        at,
                        height,
                    )?
                }
            };
        }
        Ok(left)
    }

    fn infix(&self) -> Option<(Infix, u8)> {
        use Operator::{
            Add, Divide, Equal, Greater, GreaterEqual, In, Less, LessEqual, Modulo, Multiply,
            NotEqual, Subtract,
        };
        let mark = match &self.current.token {
            Token::Punctuation(mark) => *mark,
            Token::Name(name) if &**name == "in" => "in",
            _ => return None,
        };
        Some(match mark {
            "||" => (Infix::Or, 1),
            "&&" => (Infix::And, 2),
            "==" => (Infix::Operator(Equal), 3),
            "!=" => (Infix::Operator(NotEqual), 3),
            "<" => (Infix::Operator(Less), 3),
            "<=" => (Infix::Operator(LessEqual), 3),
            ">" => (Infix::Operator(Greater), 3),
            ">=" => (Infix::Operator(GreaterEqual), 3),
            "in" => (Infix::Operator(In), 3),
            "+" => (Infix::Operator(Add), 4),
            "-" => (Infix::Operator(Subtract), 4),
            "*" => (Infix::Operator(Multiply), 5),
            "/" => (Infix::Operator(Divide), 5),
            "%" => (Infix::Operator(Modulo), 5),
            _ => return None,
        })
    }

    fn unary(&mut self) -> Result<Expr, Error> {
        let mark = match self.current.token {
            Token::Punctuation(mark @ ("!" | "-")) => mark,
            _ => return self.member(),
        };
        let mut marks = Vec::new();
        while self.is(mark) {
            marks.push(self.current.at);
            if marks.len() > self.limits.nesting_max {
                return Err(self.too_deep(self.current.at, self.limits.nesting_max));
            }
            self.advance()?;
        }
        // A sign directly before a number is part of the literal, because the smallest int has no positive
        // counterpart.
        let signed = match &self.current.token {
            Token::Integer(magnitude) if mark == "-" => {
                Some(Literal::Int(0_i64.wrapping_sub_unsigned(*magnitude)))
            }
            Token::Literal(Literal::Double(value)) if mark == "-" => Some(Literal::Double(-value)),
            _ => None,
        };
        let mut expr = match signed {
            Some(literal) => {
                let at = marks.pop().unwrap_or(self.current.at);
                self.advance()?;
                let literal = self.node(ExprKind::Literal(literal), at, 0)?;
                self.suffixes(literal)?
            }
            None if mark == "!" && self.is("-") => self.negative_number()?,
            None => self.member()?,
        };
        while let Some(at) = marks.pop() {
            let height = expr.height;
            let operand = Box::new(expr);
            let kind = if mark == "!" {
                ExprKind::Not(operand)
            } else {
                ExprKind::Negate(operand)
            };
            expr = self.node(kind, at, height)?;
        }
        Ok(expr)
    }

    /// Parses the operand of `!`, where a minus can only be the sign of a number.
    fn negative_number(&mut self) -> Result<Expr, Error> {
        let at = self.current.at;
        self.advance()?;
        let literal = match self.current.token {
            Token::Integer(magnitude) => Literal::Int(0_i64.wrapping_sub_unsigned(magnitude)),
            Token::Literal(Literal::Double(value)) => Literal::Double(-value),
            _ => return Err(self.unexpected("a number")),
        };
        self.advance()?;
        let literal = self.node(ExprKind::Literal(literal), at, 0)?;
        self.suffixes(literal)
    }

    fn member(&mut self) -> Result<Expr, Error> {
        let primary = self.primary()?;
        self.suffixes(primary)
    }

    fn suffixes(&mut self, mut expr: Expr) -> Result<Expr, Error> {
        loop {
            if self.is(".") {
                self.advance()?;
                let at = self.current.at;
                let (name, is_quoted) = match std::mem::replace(&mut self.current.token, Token::End)
                {
                    Token::Name(name) if !KEYWORDS.contains(&&*name) => (name, false),
                    Token::Quoted(name) => (name, true),
                    other => {
                        self.current.token = other;
                        return Err(self.unexpected("a field name"));
                    }
                };
                self.advance()?;
                expr = if !is_quoted && self.is("(") {
                    let arguments = self.arguments(")")?;
                    self.call(name, Some(expr), arguments, at)?
                } else {
                    let height = expr.height;
                    let operand = Box::new(expr);
                    self.node(
                        ExprKind::Select {
                            operand,
                            field: name,
                        },
                        at,
                        height,
                    )?
                };
            } else if self.is("[") {
                let at = self.current.at;
                self.advance()?;
                let index = self.expression()?;
                self.expect("]")?;
                let height = expr.height.max(index.height);
                let (operand, index) = (Box::new(expr), Box::new(index));
                expr = self.node(ExprKind::Index { operand, index }, at, height)?;
            } else if self.is("{") {
                return Err(self.error(self.current.at, "messages cannot be constructed here"));
            } else {
                return Ok(expr);
            }
        }
    }

    fn primary(&mut self) -> Result<Expr, Error> {
        let at = self.current.at;
        match std::mem::replace(&mut self.current.token, Token::End) {
            Token::Literal(literal) => {
                self.advance()?;
                self.node(ExprKind::Literal(literal), at, 0)
            }
            Token::Integer(magnitude) => {
                let Ok(value) = i64::try_from(magnitude) else {
                    return Err(self.error(at, "number out of range"));
                };
                self.advance()?;
                self.node(ExprKind::Literal(Literal::Int(value)), at, 0)
            }
            Token::Name(name) => self.name(name, at),
            Token::Punctuation(".") => {
                self.advance()?;
                match std::mem::replace(&mut self.current.token, Token::End) {
                    Token::Name(name) => self.name(name, at),
                    other => {
                        self.current.token = other;
                        Err(self.unexpected("a name"))
                    }
                }
            }
            Token::Punctuation("(") => {
                self.advance()?;
                let inner = self.expression()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Punctuation("[") => {
                self.current.token = Token::Punctuation("[");
                let items = self.arguments("]")?;
                let height = tallest(&items);
                self.node(ExprKind::List(items), at, height)
            }
            Token::Punctuation("{") => self.map(at),
            other => {
                self.current.token = other;
                Err(self.unexpected("an expression"))
            }
        }
    }

    fn name(&mut self, name: Box<str>, at: usize) -> Result<Expr, Error> {
        let literal = match &*name {
            "true" => Some(Literal::Bool(true)),
            "false" => Some(Literal::Bool(false)),
            "null" => Some(Literal::Null),
            "in" => return Err(self.error(at, "unexpected `in`: expected an expression")),
            reserved if RESERVED.contains(&reserved) => {
                return Err(self.error(at, &format!("`{reserved}` is a reserved word")));
            }
            _ => None,
        };
        self.advance()?;
        match literal {
            Some(literal) => self.node(ExprKind::Literal(literal), at, 0),
            None if self.is("(") => {
                let arguments = self.arguments(")")?;
                self.call(name, None, arguments, at)
            }
            None => self.node(ExprKind::Name(name), at, 0),
        }
    }

    fn map(&mut self, at: usize) -> Result<Expr, Error> {
        self.advance()?;
        let mut entries = Vec::new();
        let mut height = 0;
        while !self.is("}") {
            let key = self.expression()?;
            self.expect(":")?;
            let value = self.expression()?;
            height = height.max(key.height).max(value.height);
            entries.push((key, value));
            if !self.is(",") {
                break;
            }
            self.advance()?;
        }
        self.expect("}")?;
        self.node(ExprKind::Map(entries), at, height)
    }

    /// Parses from the opening to the closing bracket. Only a list may have a trailing comma.
    fn arguments(&mut self, close: &'static str) -> Result<Vec<Expr>, Error> {
        self.advance()?;
        let mut items = Vec::new();
        while !self.is(close) {
            items.push(self.expression()?);
            if !self.is(",") {
                break;
            }
            self.advance()?;
            if close == ")" && self.is(close) {
                return Err(self.unexpected("an argument"));
            }
        }
        self.expect(close)?;
        Ok(items)
    }

    /// Parses a call or a macro.
    fn call(
        &mut self,
        name: Box<str>,
        target: Option<Expr>,
        mut arguments: Vec<Expr>,
        at: usize,
    ) -> Result<Expr, Error> {
        let fold = match (&*name, arguments.len()) {
            ("all", 2) => Some(FoldKind::All),
            ("exists", 2) => Some(FoldKind::Exists),
            ("exists_one", 2) => Some(FoldKind::ExistsOne),
            ("map", 2 | 3) => Some(FoldKind::Map),
            ("filter", 2) => Some(FoldKind::Filter),
            ("sortBy", 2) => Some(FoldKind::SortBy),
            _ => None,
        };
        let height = tallest(&arguments);
        match (target, fold) {
            (Some(range), Some(kind)) => self.fold(kind, range, arguments, at),
            (None, _) if &*name == "has" && arguments.len() == 1 => match arguments.pop() {
                Some(
                    of @ Expr {
                        kind: ExprKind::Select { .. },
                        ..
                    },
                ) => self.node(ExprKind::Has(Box::new(of)), at, height),
                Some(of) if is_field_by_text(&of) => {
                    self.node(ExprKind::Has(Box::new(of)), at, height)
                }
                _ => Err(self.error(at, "the argument of has() must select a field")),
            },
            (target, _) => {
                let height = height.max(target.as_ref().map_or(0, |target| target.height));
                let target = target.map(Box::new);
                self.node(
                    ExprKind::Call {
                        name,
                        target,
                        arguments,
                    },
                    at,
                    height,
                )
            }
        }
    }

    fn fold(
        &mut self,
        kind: FoldKind,
        range: Expr,
        arguments: Vec<Expr>,
        at: usize,
    ) -> Result<Expr, Error> {
        let height = range.height.max(tallest(&arguments));
        let mut arguments = arguments.into_iter();
        let variable = match arguments.next() {
            Some(Expr {
                kind: ExprKind::Name(name),
                ..
            }) => name,
            other => {
                let at = other.map_or(at, |other| other.at);
                return Err(self.error(at, "the first argument must be a simple name"));
            }
        };
        let (condition, body) = match (arguments.next(), arguments.next()) {
            (Some(body), None) => (None, body),
            (Some(condition), Some(body)) => (Some(condition), body),
            (None, _) => return Err(self.error(at, "the macro needs a body")),
        };
        let fold = Fold {
            kind,
            range,
            variable,
            condition,
            body,
        };
        self.node(ExprKind::Fold(Box::new(fold)), at, height)
    }

    /// Creates a node and checks the limits. `below` is the height of its tallest child.
    fn node(&mut self, kind: ExprKind, at: usize, below: usize) -> Result<Expr, Error> {
        self.n_nodes += 1;
        if self.n_nodes > self.limits.nodes_max {
            let message = format!(
                "the expression has more than {} parts",
                self.limits.nodes_max
            );
            return Err(self.refuse(ErrorKind::TooLarge, at, message));
        }
        let height = below + 1;
        if height > self.limits.height_max {
            return Err(self.too_deep(at, self.limits.height_max));
        }
        Ok(Expr { kind, at, height })
    }

    fn is(&self, mark: &str) -> bool {
        matches!(self.current.token, Token::Punctuation(here) if here == mark)
    }

    fn expect(&mut self, mark: &str) -> Result<(), Error> {
        if !self.is(mark) {
            return Err(self.unexpected(&format!("`{mark}`")));
        }
        self.advance()
    }

    fn advance(&mut self) -> Result<(), Error> {
        match self.lexer.next() {
            Ok(token) => {
                self.current = token;
                Ok(())
            }
            Err(LexError { at, message }) => Err(self.refuse(ErrorKind::Syntax, at, message)),
        }
    }

    fn unexpected(&self, wanted: &str) -> Error {
        let found = match &self.current.token {
            Token::Name(name) => format!("`{name}`"),
            Token::Quoted(name) => format!("`` `{name}` ``"),
            Token::Literal(Literal::String(_)) => "a string".to_owned(),
            Token::Literal(Literal::Bytes(_)) => "bytes".to_owned(),
            Token::Literal(_) | Token::Integer(_) => "a number".to_owned(),
            Token::Punctuation(mark) => format!("`{mark}`"),
            Token::End => "end of the expression".to_owned(),
        };
        self.error(
            self.current.at,
            &format!("unexpected {found}: expected {wanted}"),
        )
    }

    fn too_deep(&self, at: usize, levels_max: usize) -> Error {
        let message = format!("the expression is nested deeper than {levels_max} levels");
        self.refuse(ErrorKind::TooLarge, at, message)
    }

    fn error(&self, at: usize, message: &str) -> Error {
        self.refuse(ErrorKind::Syntax, at, message.to_owned())
    }

    fn refuse(&self, kind: ErrorKind, at: usize, message: String) -> Error {
        Error {
            kind,
            position: Position::of(self.source, at),
            message,
        }
    }
}

enum Infix {
    And,
    Or,
    Operator(Operator),
}

fn tallest(items: &[Expr]) -> usize {
    items.iter().map(|item| item.height).max().unwrap_or(0)
}

/// Whether the expression is of the form `x["name"]`.
fn is_field_by_text(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Index { index, .. } => {
            matches!(index.kind, ExprKind::Literal(Literal::String(_)))
        }
        _ => false,
    }
}

/// Words that are never names.
const KEYWORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Words that may be fields but not variables.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];
