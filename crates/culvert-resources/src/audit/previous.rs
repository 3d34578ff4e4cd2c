//! The changed fields of an object as they were before an update (contract: audit 2).

use std::time::Duration;

use culvert_base::Fault;
use culvert_store::Document;
use indexmap::IndexMap;
use serde_json::value::{RawValue, to_raw_value};
use similar::TextDiff;

use crate::cx::base::Base;
use crate::resource::ResourceType;

/// Limit of all fields together, in bytes of JSON.
const FIELDS_BYTES_MAX: usize = 64 << 10;
/// Limit of a unified diff in bytes.
const DIFF_BYTES_MAX: usize = 16 << 10;
/// After this time a diff may be longer than it needs to be.
const DIFF_WITHIN: Duration = Duration::from_millis(50);
/// Lines around a change.
const DIFF_CONTEXT: usize = 3;
/// Instead of the value of a secret that was changed.
const CHANGED_SECRET: &str = "[changed]";

/// The changed fields of an object before an update.
#[derive(Debug)]
pub struct Previous {
    /// A JSON object; empty if no visible field changed.
    pub fields: Box<RawValue>,
    /// Paths of fields that are missing or shortened.
    pub truncated: Vec<String>,
    /// Whether a field or a secret changed, apart from times of use.
    pub has_changes: bool,
}

impl Previous {
    /// What an update changes, by the documents before and after it.
    pub fn between(
        ty: &ResourceType,
        before: &Document,
        after: &Document,
        base: Base<'_>,
    ) -> Result<Self, Fault> {
        let (old, new) = (ty.view_text(before, base)?, ty.view_text(after, base)?);
        let (old, new) = (fields(&old)?, fields(&new)?);
        let mut changed: IndexMap<String, Box<RawValue>> = IndexMap::new();
        let mut truncated = Vec::new();
        let mut has_changes = false;
        for (name, value) in old {
            let now = new.get(name).map(|value| value.get());
            if ty.not_in_events.contains(&name) || now == Some(value.get()) {
                continue;
            }
            has_changes |= !ty.times_of_use.contains(&name);
            changed.insert(name.to_owned(), value.to_owned());
            if ty.long_texts.contains(&name)
                && let Some((diff, is_whole)) = diff(value.get(), now.unwrap_or("\"\""))
            {
                let name = format!("{name}_diff");
                if !is_whole {
                    truncated.push(format!("previous.{name}"));
                }
                changed.insert(name, raw(&diff)?);
            }
        }
        for secret in (ty.changed_secrets)(before, after)? {
            has_changes = true;
            changed.insert(secret.to_owned(), raw(CHANGED_SECRET)?);
        }
        truncated.extend(shorten(&mut changed));
        Ok(Self {
            fields: raw(&changed)?,
            truncated,
            has_changes,
        })
    }
}

fn fields(view: &str) -> Result<IndexMap<&str, &RawValue>, Fault> {
    serde_json::from_str(view).map_err(|error| Fault::new("reading a view for its event", error))
}

fn raw<T: serde::Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, Fault> {
    to_raw_value(value).map_err(|error| Fault::new("writing the fields before an update", error))
}

/// The unified diff of two JSON strings, and whether it is whole; `None` if one of them is no string.
fn diff(old: &str, new: &str) -> Option<(String, bool)> {
    let old: String = serde_json::from_str(old).ok()?;
    let new: String = serde_json::from_str(new).ok()?;
    let diff = TextDiff::configure()
        .timeout(DIFF_WITHIN)
        .diff_lines(&old, &new);
    let mut text = diff.unified_diff().context_radius(DIFF_CONTEXT).to_string();
    if text.len() <= DIFF_BYTES_MAX {
        return Some((text, true));
    }
    let last = text.as_bytes()[..DIFF_BYTES_MAX]
        .iter()
        .rposition(|byte| *byte == b'\n');
    text.truncate(last.map_or(0, |last| last + 1));
    Some((text, false))
}

/// Removes the largest fields until the others are within the limit. Returns the paths of those that it removed.
fn shorten(changed: &mut IndexMap<String, Box<RawValue>>) -> Vec<String> {
    let mut sizes: Vec<(usize, String)> = changed
        .iter()
        .map(|(name, value)| (name.len() + value.get().len(), name.clone()))
        .collect();
    sizes.sort_unstable();
    let mut total: usize = sizes.iter().map(|(size, _)| size).sum();
    let mut removed = Vec::new();
    while total > FIELDS_BYTES_MAX
        && let Some((size, name)) = sizes.pop()
    {
        total -= size;
        changed.shift_remove(&name);
        removed.push(format!("previous.{name}"));
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_is_cut_at_the_end_of_a_line() {
        let text = |lines: std::ops::Range<u32>| {
            let text: String = lines.map(|n| format!("line {n}\n")).collect();
            serde_json::Value::from(text).to_string()
        };
        let (short, is_whole) = diff(&text(0..9), &text(1..9)).unwrap();
        assert!(is_whole && short.contains("\n-line 0\n"), "{short}");
        let (long, is_whole) = diff(&text(0..5_000), &text(5_000..9_000)).unwrap();
        assert!(!is_whole && long.len() <= DIFF_BYTES_MAX && long.ends_with('\n'));
        assert_eq!(diff("null", "\"\""), None);
    }

    #[test]
    fn the_largest_fields_are_removed_first() {
        let value = |length: usize| raw(&"x".repeat(length)).unwrap();
        let mut changed: IndexMap<String, Box<RawValue>> =
            [("a", 10), ("b", FIELDS_BYTES_MAX), ("c", 20)]
                .map(|(name, length)| (name.to_owned(), value(length)))
                .into();
        assert_eq!(shorten(&mut changed), ["previous.b"]);
        assert_eq!(changed.keys().collect::<Vec<_>>(), ["a", "c"]);
    }
}
