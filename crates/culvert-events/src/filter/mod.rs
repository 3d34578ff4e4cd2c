//! Selects the events of a kind that a subscription receives: a CEL condition over the filterable
//! fields (contract: events 11).
//!
//! The only variable is `ev`. It has each filterable field of every kind of the catalogue. The
//! other fields are declared as unusable, so that an error can name them.

mod hint;
pub(crate) mod log_filter;
pub(crate) mod need;

use std::fmt;
use std::sync::LazyLock;

use culvert_base::{Refusal, code};
use culvert_cel::{Env, Error, ErrorKind, EvalError, Limits, Predicate, Resolver, Slot, ValueRef};

use crate::capture::Capture;
use crate::catalogue::field::Type;
use crate::catalogue::kind::EventKind;
use crate::kinds;
use crate::record::{Cell, Record};

/// A condition on the events of one kind.
#[derive(Debug)]
pub struct Filter {
    kind: &'static EventKind,
    condition: Predicate,
    capture: Capture,
}

/// A filter had no result for an event, so the event is not captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterFault(EvalError);

impl Filter {
    /// Compiles `source` for events of `kind`. Empty text is an error; for no filter, make no
    /// `Filter`.
    ///
    /// # Errors
    /// 5404 with line and column if it is not a condition, 5405 for an unknown field, 5406 for a
    /// field that filters cannot use.
    pub fn compile(kind: &'static EventKind, source: &str) -> Result<Self, Refusal> {
        let condition = env(kind).compile_predicate(source).map_err(refusal)?;
        let capture = condition
            .slots()
            .iter()
            .fold(Capture::NONE, |capture, slot| {
                capture.with_index(usize::from(*slot))
            });
        Ok(Self {
            kind,
            condition,
            capture,
        })
    }

    /// The kind it is compiled for.
    pub fn kind(&self) -> &'static EventKind {
        self.kind
    }

    /// The fields that must be captured for it.
    pub fn capture(&self) -> Capture {
        self.capture
    }

    /// Whether the filter selects `record`, which is of the same kind.
    ///
    /// # Errors
    /// If the condition has no result, such as after a division by zero.
    pub fn matches(&self, record: &Record) -> Result<bool, FilterFault> {
        debug_assert!(record.kind() == self.kind, "another kind");
        self.condition.test(&Fields(record)).map_err(FilterFault)
    }
}

impl fmt::Display for FilterFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "evaluating the event filter failed: {}", self.0)
    }
}

impl std::error::Error for FilterFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// Resolves variables from a record. A slot is the index of a field.
struct Fields<'r>(&'r Record);

impl Resolver for Fields<'_> {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        let index = usize::from(slot);
        Some(match self.0.cell(index) {
            Cell::Int(value) => ValueRef::Int(value),
            Cell::Text(span) => ValueRef::String(self.0.text_of(span)),
            // Filterable fields are text or numbers and never null; tests of the catalogue check
            // this.
            _ => match self.0.kind().fields.get(index)?.ty {
                Type::Text => ValueRef::String(""),
                _ => ValueRef::Int(0),
            },
        })
    }
}

/// The environment in which filters on `kind` are compiled.
fn env(kind: &'static EventKind) -> &'static Env {
    static ENVS: LazyLock<Vec<Env>> =
        LazyLock::new(|| kinds::ALL.iter().copied().map(new_env).collect());
    let index = kinds::ALL
        .iter()
        .position(|listed| *listed == kind)
        .unwrap_or(0);
    &ENVS[index]
}

fn new_env(kind: &EventKind) -> Env {
    let mut env = Env::new(Limits::FILTER);
    for field in kinds::ALL
        .iter()
        .flat_map(|kind| kind.fields)
        .filter(|field| !field.filterable)
    {
        env = env.with_unusable(&variable(field.path));
    }
    for (index, field) in kind
        .fields
        .iter()
        .enumerate()
        .filter(|(_, field)| field.filterable)
    {
        let of = match field.ty {
            Type::Text => culvert_cel::Type::String,
            _ => culvert_cel::Type::Int,
        };
        let slot = Slot::try_from(index).expect("a kind has at most 64 fields");
        env = env.with_slot(&variable(field.path), slot, of);
    }
    env
}

fn variable(path: &str) -> String {
    format!("ev.{path}")
}

pub(crate) fn refusal(error: Error) -> Refusal {
    let field = |path: &str| path.strip_prefix("ev.").unwrap_or(path).to_owned();
    match &error.kind {
        ErrorKind::UnknownField { path } => Refusal::new(
            code::EVENT_FILTER_FIELD_UNKNOWN,
            format!(
                "filter, {}: events have no field {:?}",
                error.position,
                field(path)
            ),
        ),
        ErrorKind::UnusableField { path } => Refusal::new(
            code::EVENT_FILTER_FIELD_UNUSABLE,
            format!(
                "filter, {}: field {:?} cannot be used in filters; usable: {}",
                error.position,
                field(path),
                usable()
            ),
        ),
        _ => Refusal::new(code::EVENT_FILTER_INVALID, format!("filter, {error}")),
    }
}

/// Paths of all filterable fields.
fn usable() -> String {
    let mut paths: Vec<&str> = kinds::ALL
        .iter()
        .flat_map(|kind| kind.fields)
        .filter(|field| field.filterable)
        .map(|field| field.path)
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths.join(", ")
}

#[cfg(test)]
mod tests;
