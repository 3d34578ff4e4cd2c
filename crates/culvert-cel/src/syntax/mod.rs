//! The syntax of the language: lexer, parser and tree.

pub mod ast;
pub(crate) mod calls;
pub(crate) mod lex;
pub(crate) mod parse;
