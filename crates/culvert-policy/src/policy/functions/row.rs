//! Rows of the table of functions.

use culvert_cel::{EvalErrorKind, Extension, Meter, Slot, Value, ValueRef};

use crate::policy::phase::Phase;
use crate::policy::variables;

/// A function, and the first phase that has it.
pub(super) type Row = (Phase, Extension);
pub(super) type FunctionBody = fn(&[ValueRef<'_>], &mut Meter<'_>) -> Result<Value, EvalErrorKind>;

/// Called as `name(…)`.
pub(super) fn global(
    name: &'static str,
    signatures: &'static [&'static str],
    doc: &'static str,
    run: FunctionBody,
) -> Row {
    let extension = Extension {
        name,
        is_member: false,
        signatures,
        reads: None,
        run,
        doc,
    };
    (Phase::Connect, extension)
}

/// Called as `x.name(…)`.
pub(super) fn member(
    name: &'static str,
    signatures: &'static [&'static str],
    doc: &'static str,
    run: FunctionBody,
) -> Row {
    let (since, extension) = global(name, signatures, doc, run);
    (
        since,
        Extension {
            is_member: true,
            ..extension
        },
    )
}

/// Called as `name(…)`; a variable precedes the written arguments.
pub(super) fn about(
    since: Phase,
    variable: &str,
    name: &'static str,
    signatures: &'static [&'static str],
    doc: &'static str,
    run: FunctionBody,
) -> Row {
    let slot: Slot = variables::slot(variable);
    let (_, extension) = global(name, signatures, doc, run);
    (
        since,
        Extension {
            reads: Some(slot),
            ..extension
        },
    )
}

pub(super) const NO_OVERLOAD: EvalErrorKind = EvalErrorKind::NoSuchOverload;
pub(super) const INVALID: EvalErrorKind = EvalErrorKind::InvalidArgument;

/// A new text. Charges its length to the meter.
pub(super) fn new_text(
    text: impl AsRef<str>,
    meter: &mut Meter<'_>,
) -> Result<Value, EvalErrorKind> {
    let text = text.as_ref();
    meter.make_string(text.len())?;
    Ok(Value::from(text))
}
