//! The functions of policy expressions beyond the language's own: one table, for the checker, for
//! evaluation and for the reference.

mod codes;
mod hashes;
mod lists;
mod messages;
mod texts;

use std::sync::LazyLock;

use culvert_cel::{EvalErrorKind, Extension, Meter, Slot, Value, ValueRef};

use crate::policy::phase::Phase;
use crate::policy::variables;

/// A function, and the first phase that has it.
pub(crate) struct Function {
    pub(crate) since: Phase,
    pub(crate) extension: &'static Extension,
}

/// Every function, in the order of the reference. A name has one entry for each way to call it.
pub(crate) static ALL: LazyLock<Vec<Function>> = LazyLock::new(|| {
    let files = [
        messages::rows(),
        texts::rows(),
        lists::rows(),
        codes::rows(),
        hashes::rows(),
    ];
    let rows = files.into_iter().flatten();
    // They live as long as the process: compiled expressions point at them.
    rows.map(|(since, extension)| Function {
        since,
        extension: Box::leak(Box::new(extension)),
    })
    .collect()
});

type Row = (Phase, Extension);
type Run = fn(&[ValueRef<'_>], &mut Meter<'_>) -> Result<Value, EvalErrorKind>;

/// Called as `name(…)`.
fn global(
    name: &'static str,
    signatures: &'static [&'static str],
    doc: &'static str,
    run: Run,
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
fn member(
    name: &'static str,
    signatures: &'static [&'static str],
    doc: &'static str,
    run: Run,
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
fn about(
    since: Phase,
    variable: &str,
    name: &'static str,
    signatures: &'static [&'static str],
    doc: &'static str,
    run: Run,
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

const NO_OVERLOAD: EvalErrorKind = EvalErrorKind::NoSuchOverload;
const INVALID: EvalErrorKind = EvalErrorKind::InvalidArgument;

/// A text that was made, paid for.
fn made(text: impl AsRef<str>, meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let text = text.as_ref();
    meter.make_string(text.len())?;
    Ok(Value::from(text))
}

#[cfg(test)]
mod tests;
