//! Which variables an expression may name, and how their values are had.

use std::collections::BTreeMap;

use crate::check;
use crate::error::{Error, ErrorKind, Position};
use crate::eval::{Predicate, Program};
use crate::extension::{Declared, Extension};
use crate::limits::{HEIGHT_MAX, Limits};
use crate::parse;
use crate::types::Type;
use crate::value::{Kind, ValueRef};

/// The number by which a [`Resolver`] knows a variable.
pub type Slot = u16;

/// Answers a time zone's offset from UTC in seconds: name of the zone, seconds since 1970.
/// Offsets like `+02:00` and `UTC` never ask.
pub type Zones = fn(&str, i64) -> Option<i32>;

/// Answers variables while an expression runs.
pub trait Resolver {
    /// The value of `slot`, of the type declared for it. None is an error for whoever reads it,
    /// and `false` for `has`.
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>>;
}

/// The variables and bounds that expressions are compiled against.
///
/// Variables are declared by dotted path, so `ev.conn.client_ip` makes `ev` and `ev.conn` objects. A path may be
/// a variable and have fields at once; a longer path wins over a field of a map.
#[derive(Clone, Debug)]
pub struct Env {
    pub(crate) root: Field,
    pub(crate) limits: Limits,
    pub(crate) zones: Option<Zones>,
    pub(crate) mode: Mode,
    pub(crate) extensions: Vec<Declared>,
}

/// Whether types are checked when an expression is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Checked,
    Dynamic,
}

/// A name in the tree of declared paths.
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
    Type(Kind),
}

impl Env {
    /// An environment without variables. Expressions are checked against declared types before they run.
    pub fn new(limits: Limits) -> Self {
        let limits = Limits {
            height_max: limits.height_max.min(HEIGHT_MAX),
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
        for kind in Kind::ALL {
            env.at(kind.name()).leaf = Some(Leaf::Type(kind));
        }
        env
    }

    /// The same without a check: whatever is wrong beyond syntax and size shows when it runs.
    pub fn dynamic(limits: Limits) -> Self {
        Self {
            mode: Mode::Dynamic,
            ..Self::new(limits)
        }
    }

    /// Declares the variable at `path`, which the resolver answers as `slot`.
    #[must_use]
    pub fn with_slot(mut self, path: &str, slot: Slot, of: Type) -> Self {
        self.at(path).leaf = Some(Leaf::Slot { slot, of });
        self
    }

    /// Declares that `path` exists and may not be used ([`ErrorKind::UnusableField`]).
    #[must_use]
    pub fn with_unusable(mut self, path: &str) -> Self {
        self.at(path).leaf = Some(Leaf::Unusable);
        self
    }

    /// Lets time selectors take the names of time zones.
    #[must_use]
    pub fn with_zones(mut self, zones: Zones) -> Self {
        self.zones = Some(zones);
        self
    }

    /// Adds a function. One of the standard library with the same name comes first.
    ///
    /// # Panics
    /// When a signature of it cannot be read.
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
    /// Every [`ErrorKind`] but `NotBool`.
    pub fn compile(&self, source: &str) -> Result<Program, Error> {
        let expr = parse::parse(source, &self.limits)?;
        check::compile(self, source, &expr)
    }

    /// Compiles a condition: an expression whose type is bool, or dyn and then bool when it runs.
    ///
    /// # Errors
    /// Every [`ErrorKind`].
    pub fn compile_predicate(&self, source: &str) -> Result<Predicate, Error> {
        let program = self.compile(source)?;
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
    /// Whether anything below may be used.
    pub(crate) fn has_usable(&self) -> bool {
        matches!(self.leaf, Some(Leaf::Slot { .. } | Leaf::Type(_)))
            || self.fields.values().any(Self::has_usable)
    }
}
