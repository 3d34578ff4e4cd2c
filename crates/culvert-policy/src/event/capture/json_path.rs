//! Paths to values in JSON documents, for redaction.

use serde_json::Value;

/// Maximum length of a path in bytes, and maximum number of its keys.
const BYTES_MAX: usize = 256;
const SEGMENTS_MAX: usize = 8;

/// A path such as `user.password`. `*` is any key, and `**` any number of keys. An array stands for each of its
/// elements. Keys are compared without ASCII case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Key(String),
    Any,
    Deep,
}

impl JsonPath {
    /// Parses a path; `None` if it is malformed or too long.
    pub fn parse(text: &str) -> Option<Self> {
        let segments: Vec<Segment> = text
            .split('.')
            .map(|segment| match segment {
                "*" => Segment::Any,
                "**" => Segment::Deep,
                key => Segment::Key(key.to_owned()),
            })
            .collect();
        let is_empty = |segment: &Segment| matches!(segment, Segment::Key(key) if key.is_empty());
        let is_valid = text.len() <= BYTES_MAX
            && segments.len() <= SEGMENTS_MAX
            && !segments.iter().any(is_empty)
            && segments.last() != Some(&Segment::Deep);
        is_valid.then_some(Self(segments))
    }
}

/// Replaces the values at these paths. Returns whether there were any.
pub(crate) fn redact(value: &mut Value, paths: &[JsonPath], with: &str) -> bool {
    let start = paths.iter().map(|path| path.0.as_slice()).collect();
    descend(value, &closed(start), with)
}

/// Each list is the rest of a path that may continue here. The nesting that the parser accepts bounds the recursion.
fn descend(value: &mut Value, rests: &[&[Segment]], with: &str) -> bool {
    let mut has_redacted = false;
    match value {
        Value::Array(items) => {
            for item in items {
                has_redacted |= descend(item, rests, with);
            }
        }
        Value::Object(entries) => {
            for (key, value) in entries {
                let mut next = Vec::new();
                let mut is_found = false;
                for rest in rests {
                    let Some((first, after)) = rest.split_first() else {
                        continue;
                    };
                    let is_match = match first {
                        Segment::Any => true,
                        Segment::Key(wanted) => wanted.eq_ignore_ascii_case(key),
                        Segment::Deep => {
                            next.push(*rest);
                            false
                        }
                    };
                    if is_match {
                        is_found |= after.is_empty();
                        next.push(after);
                    }
                }
                if is_found {
                    *value = Value::from(with);
                    has_redacted = true;
                } else if !next.is_empty() {
                    has_redacted |= descend(value, &closed(next), with);
                }
            }
        }
        _ => {}
    }
    has_redacted
}

/// Adds the rests of paths after each `**`, which may match no key. Removes duplicates, so a level costs no more than
/// the number of segments of all paths.
fn closed(mut rests: Vec<&[Segment]>) -> Vec<&[Segment]> {
    let mut at = 0;
    while let Some(rest) = rests.get(at) {
        if let Some((Segment::Deep, after)) = rest.split_first() {
            rests.push(after);
        }
        at += 1;
    }
    let place = |rest: &&[Segment]| (rest.as_ptr(), rest.len());
    rests.sort_unstable_by_key(place);
    rests.dedup_by_key(|rest| place(rest));
    rests
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(paths: &[&str], mut value: Value) -> Value {
        let paths: Vec<_> = paths
            .iter()
            .map(|path| JsonPath::parse(path).unwrap())
            .collect();
        redact(&mut value, &paths, "-");
        value
    }

    #[test]
    fn values_are_found_by_their_path() {
        for (paths, before, after) in [
            (
                &["a.b"][..],
                json!({"a": {"b": 1, "c": 2}}),
                json!({"a": {"b": "-", "c": 2}}),
            ),
            (&["a.b"], json!({"A": {"B": 1}}), json!({"A": {"B": "-"}})),
            (
                &["a"],
                json!([{"a": [1, 2]}, [{"a": {}}]]),
                json!([{"a": "-"}, [{"a": "-"}]]),
            ),
            (
                &["*.b"],
                json!({"x": {"b": 1}, "b": 2}),
                json!({"x": {"b": "-"}, "b": 2}),
            ),
            (
                &["**.b"],
                json!({"b": 1, "x": [{"y": {"b": 2}}]}),
                json!({"b": "-", "x": [{"y": {"b": "-"}}]}),
            ),
            (
                &["a.**.c.**.d"],
                json!({"a": {"c": {"d": 1}, "e": {"c": {"x": {"d": 2}}}}, "d": 3}),
                json!({"a": {"c": {"d": "-"}, "e": {"c": {"x": {"d": "-"}}}}, "d": 3}),
            ),
            (&["a"], json!("a"), json!("a")),
        ] {
            assert_eq!(redacted(paths, before), after, "{paths:?}");
        }
    }

    #[test]
    fn malformed_paths_are_refused() {
        for text in [
            "",
            ".",
            "a.",
            "a..b",
            "**",
            "a.**",
            "a.b.c.d.e.f.g.h.i",
            &"a".repeat(257),
        ] {
            assert_eq!(JsonPath::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_cost_of_nested_wildcards_is_limited() {
        let paths: Vec<_> = (0..10)
            .map(|_| JsonPath::parse("**.**.**.**.**.**.**.x").unwrap())
            .collect();
        let mut value = json!({});
        for _ in 0..100 {
            value = json!({"a": value, "b": 1});
        }
        let start = paths.iter().map(|path| path.0.as_slice()).collect();
        assert!(closed(start).len() <= 80);
        assert!(!redact(&mut value, &paths, "-"));
    }
}
