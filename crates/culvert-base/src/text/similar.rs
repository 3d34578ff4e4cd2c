//! The name that was probably meant by a misspelled one.

/// Longer names are compared by their beginning.
const NAME_CHARS_MAX: usize = 64;

/// The edit distance of two names: insertions, deletions and replacements of characters, and two swapped ones.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(NAME_CHARS_MAX).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut above = row.clone();
    let mut before = None;
    for (i, c) in a.chars().take(NAME_CHARS_MAX).enumerate() {
        let mut next = vec![i + 1; b.len() + 1];
        for (j, other) in b.iter().enumerate() {
            let replaced = row[j] + usize::from(c != *other);
            next[j + 1] = replaced.min(row[j + 1] + 1).min(next[j] + 1);
            if j > 0 && c == b[j - 1] && before == Some(*other) {
                next[j + 1] = next[j + 1].min(above[j - 1] + 1);
            }
        }
        above = std::mem::replace(&mut row, next);
        before = Some(c);
    }
    row[b.len()]
}

/// The name among `known` that is most similar to `name`; `None` if none is similar.
pub fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let known = known.into_iter().map(|one| (distance(one, name), one));
    let (distance, nearest) = known.min()?;
    (distance > 0 && 3 * distance <= name.chars().count().max(3)).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_has_the_nearest_known_one() {
        let known = ["deny", "log", "rate-limit", "redirect"];
        for (name, expected) in [
            ("dney", Some("deny")),
            ("deni", Some("deny")),
            ("ratelimit", Some("rate-limit")),
            ("rate_limit", Some("rate-limit")),
            ("redirct", Some("redirect")),
            ("lgo", Some("log")),
            ("logs", Some("log")),
            ("compress", None),
            ("deny", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance(&"a".repeat(100_000), &"b".repeat(100_000)), 64);
    }
}
