//! Environments: the variables and functions that expressions may use.

use std::collections::BTreeMap;

use crate::check;
use crate::error::{Error, ErrorKind, Position};
use crate::eval::{Predicate, Program};
use crate::functions::extension::{Declared, Extension};
use crate::limits::{HEIGHT_MAX, Limits};
use crate::pattern::PatternBudget;
use crate::resolver::{Slot, Zones};
use crate::syntax::parse;
use crate::types::Type;
use crate::value::ValueType;

/// The variables, functions and limits that expressions are compiled against.
///
/// Variables are declared by dotted path: `ev.conn.client_ip` makes `ev` and `ev.conn` objects. A path may be a
/// variable and also have fields. A longer declared path takes precedence over a field of a map.
#[derive(Clone, Debug)]
pub struct Env {
    pub(crate) root: Field,
    pub(crate) limits: Limits,
    pub(crate) zones: Option<Zones>,
    pub(crate) mode: Mode,
    pub(crate) extensions: Vec<Declared>,
}

/// Whether compilation checks types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Checked,
    Dynamic,
}

/// A node in the tree of declared paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Field {
    pub(crate) leaf: Option<Leaf>,
    pub(crate) fields: BTreeMap<Box<str>, Field>,
}

#[derive(Clone, Debug)]
pub(crate) enum Leaf {
    Slot {
        slot: Slot,
        of: Type,
    },
    Unusable,
    /// The name of a type.
    Type(ValueType),
}

impl Env {
    /// An environment without variables. Expressions are type-checked when they are compiled.
    pub fn new(limits: Limits) -> Self {
        let limits = Limits {
            height_max: limits.height_max.min(HEIGHT_MAX),
            nesting_max: limits.nesting_max.min(HEIGHT_MAX),
            source_bytes_max: limits.source_bytes_max.min(usize::from(u16::MAX)),
            ..limits
        };
        let mut env = Self {
            root: Field::default(),
            limits,
            zones: None,
            mode: Mode::Checked,
            extensions: Vec::new(),
        };
        for kind in ValueType::ALL {
            env.at(kind.name()).leaf = Some(Leaf::Type(kind));
        }
        env
    }

    /// An environment without type checks. All errors except for syntax and size appear at run time.
    pub fn dynamic(limits: Limits) -> Self {
        Self {
            mode: Mode::Dynamic,
            ..Self::new(limits)
        }
    }

    /// Declares a variable at `path`. The resolver knows it by `slot`.
    #[must_use]
    pub fn with_slot(mut self, path: &str, slot: Slot, of: Type) -> Self {
        self.at(path).leaf = Some(Leaf::Slot { slot, of });
        self
    }

    /// Declares that `path` exists but must not be used ([`ErrorKind::UnusableField`]).
    #[must_use]
    pub fn with_unusable(mut self, path: &str) -> Self {
        self.at(path).leaf = Some(Leaf::Unusable);
        self
    }

    /// Allows names of time zones in time selectors.
    #[must_use]
    pub fn with_zones(mut self, zones: Zones) -> Self {
        self.zones = Some(zones);
        self
    }

    /// Adds a function. A standard function with the same name takes precedence.
    ///
    /// # Panics
    /// If a signature does not parse.
    #[must_use]
    pub fn with_extension(mut self, function: &'static Extension) -> Self {
        self.extensions.push(Declared::new(function));
        self
    }

    pub(crate) fn extension(&self, name: &str, is_member: bool) -> Option<&Declared> {
        self.extensions
            .iter()
            .find(|one| one.function.name == name && one.function.is_member == is_member)
    }

    /// Compiles an expression of any type.
    ///
    /// # Errors
    /// Every [`ErrorKind`] except for `NotBool`.
    pub fn compile(&self, source: &str) -> Result<Program, Error> {
        let patterns = PatternBudget::new(PatternBudget::EXPRESSION_BYTES);
        self.compile_within(&patterns, source)
    }

    /// Like [`Self::compile`], for an expression whose patterns share a budget with those of others.
    ///
    /// # Errors
    /// Those of `compile`.
    pub fn compile_within(&self, patterns: &PatternBudget, source: &str) -> Result<Program, Error> {
        let expr = parse::parse(source, &self.limits)?;
        check::compile(self, source, &expr, patterns)
    }

    /// Compiles a condition: an expression of type bool, or of type dyn that is a bool at run time.
    ///
    /// # Errors
    /// Every [`ErrorKind`].
    pub fn compile_predicate(&self, source: &str) -> Result<Predicate, Error> {
        let patterns = PatternBudget::new(PatternBudget::EXPRESSION_BYTES);
        self.compile_predicate_within(&patterns, source)
    }

    /// Like [`Self::compile_predicate`], for an expression whose patterns share a budget with those of others.
    ///
    /// # Errors
    /// Every [`ErrorKind`].
    pub fn compile_predicate_within(
        &self,
        patterns: &PatternBudget,
        source: &str,
    ) -> Result<Predicate, Error> {
        let program = self.compile_within(patterns, source)?;
        match program.result_type() {
            Type::Bool | Type::Dyn => Ok(Predicate::new(program)),
            other => Err(Error {
                kind: ErrorKind::NotBool,
                position: Position { line: 1, column: 1 },
                message: format!("the expression must be a bool, it is a {other}"),
            }),
        }
    }

    fn at(&mut self, path: &str) -> &mut Field {
        path.split('.').fold(&mut self.root, |field, name| {
            field.fields.entry(name.into()).or_default()
        })
    }
}

impl Field {
    /// Whether this field or one below it may be used.
    pub(crate) fn has_usable(&self) -> bool {
        matches!(self.leaf, Some(Leaf::Slot { .. } | Leaf::Type(_)))
            || self.fields.values().any(Self::has_usable)
    }
}
