//! Functions on lists: the lists extension of the language.

use std::cmp::Ordering;

use culvert_cel::{EvalErrorKind, Meter, Value, ValueRef};

use super::row::{INVALID, NO_OVERLOAD, Row, global, member};
use crate::policy::values::{charge, to_json};

#[rustfmt::skip]
pub(super) fn rows() -> Vec<Row> {
    vec![
        member("slice", &["(list(dyn), int, int) -> list(dyn)"], "The items from a position up to another.", slice),
        member("flatten", &["(list(dyn)) -> list(dyn)", "(list(dyn), int) -> list(dyn)"], "The list with nested lists flattened by one level, or by the given number of levels.", flatten),
        member("sort", &["(list(dyn)) -> list(dyn)"], "The items in ascending order.", sort),
        member("distinct", &["(list(dyn)) -> list(dyn)"], "The items without duplicates.", distinct),
        global("lists.range", &["(int) -> list(int)"], "The numbers from 0 up to one less than given.", range),
    ]
}

fn new_list(items: Vec<Value>, meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    meter.make_list(items.len())?;
    Ok(Value::List(items.into()))
}

fn slice(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [
        ValueRef::List(items),
        ValueRef::Int(start),
        ValueRef::Int(end),
    ] = arguments
    else {
        return Err(NO_OVERLOAD);
    };
    let bounds = (usize::try_from(*start), usize::try_from(*end));
    let (Ok(start), Ok(end)) = bounds else {
        return Err(EvalErrorKind::IndexOutOfRange);
    };
    let part = items
        .get(start..end)
        .ok_or(EvalErrorKind::IndexOutOfRange)?;
    new_list(part.to_vec(), meter)
}

fn flatten(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let (items, depth) = match arguments {
        [ValueRef::List(items)] => (items, 1),
        [ValueRef::List(items), ValueRef::Int(depth)] => (items, *depth),
        _ => return Err(NO_OVERLOAD),
    };
    let depth = usize::try_from(depth).map_err(|_| INVALID)?;
    let mut flat = Vec::new();
    push_flat(items, depth, &mut flat, meter)?;
    new_list(flat, meter)
}

fn push_flat(
    items: &[Value],
    depth: usize,
    flat: &mut Vec<Value>,
    meter: &mut Meter<'_>,
) -> Result<(), EvalErrorKind> {
    for item in items {
        meter.spend(1)?;
        match item {
            Value::List(below) if depth > 0 => push_flat(below, depth - 1, flat, meter)?,
            item => flat.push(item.clone()),
        }
    }
    Ok(())
}

fn sort(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::List(items)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    // Sorting compares each item about log2(n) times.
    let steps = items.len().checked_ilog2().unwrap_or(0) + 1;
    meter.spend(items.len() as u64 * u64::from(steps))?;
    // All are of one kind, so that the order is total: the sort of the library may panic without one.
    if let Some((first, others)) = items.split_first() {
        let are_ordered = |item: &Value| compare(first.borrow(), item.borrow()).is_some();
        if !others.iter().all(are_ordered) {
            return Err(INVALID);
        }
    }
    let mut sorted = items.to_vec();
    sorted.sort_by(|a, b| compare(a.borrow(), b.borrow()).unwrap_or(Ordering::Equal));
    new_list(sorted, meter)
}

/// The order of two items of one kind.
fn compare(a: ValueRef<'_>, b: ValueRef<'_>) -> Option<Ordering> {
    match (a, b) {
        (ValueRef::Bool(a), ValueRef::Bool(b)) => Some(a.cmp(&b)),
        (ValueRef::Int(a), ValueRef::Int(b)) => Some(a.cmp(&b)),
        (ValueRef::Uint(a), ValueRef::Uint(b)) => Some(a.cmp(&b)),
        (ValueRef::Double(a), ValueRef::Double(b)) => a.partial_cmp(&b),
        (ValueRef::String(a), ValueRef::String(b)) => Some(a.cmp(b)),
        (ValueRef::Bytes(a), ValueRef::Bytes(b)) => Some(a.cmp(b)),
        (ValueRef::Timestamp(a), ValueRef::Timestamp(b)) => Some(a.cmp(&b)),
        (ValueRef::Duration(a), ValueRef::Duration(b)) => Some(a.cmp(&b)),
        _ => None,
    }
}

fn distinct(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::List(items)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    let mut seen = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for item in *items {
        charge(item.borrow(), meter)?;
        let text = to_json(item.borrow()).to_string();
        meter.touch(text.len())?;
        if seen.insert((item.borrow().kind().name(), text)) {
            kept.push(item.clone());
        }
    }
    new_list(kept, meter)
}

fn range(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::Int(count)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    meter.make_list(usize::try_from(*count).unwrap_or(0))?;
    Ok(Value::List((0..*count).map(Value::Int).collect()))
}
