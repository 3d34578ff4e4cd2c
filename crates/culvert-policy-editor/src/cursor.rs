//! What a position in a text belongs to: the steps to its part, and the text before it. Works in texts that are being
//! typed: it puts a mark at the position, completes the text around it in several ways, and finds the mark.

use std::ops::Range;

use culvert_yaml::{Part, PartKind, Step};

use crate::position::floor;

/// The mark. A character for private use: a text that contains it has no cursor.
const MARK: char = '\u{e0c1}';

/// What may be needed behind the mark so that the text can be read: a key lacks its colon, a string its end.
const ENDS: [&str; 6] = ["", ":", "\"", "\": x", "'", "': x"];

/// A position in a document.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The steps to the part that has the position; for a key, to its object.
    pub path: Vec<Step>,
    /// Whether the position is in a key.
    pub is_key: bool,
    /// The key or the value before the position.
    pub before: String,
    /// The key or the value behind it.
    pub behind: String,
    /// Whether the value may be anything but text.
    pub is_plain: bool,
    /// The document, with the mark in it.
    outline: Part,
}

impl Cursor {
    /// The cursor at a byte of a text; `None` in comments and where nothing can be read.
    pub(crate) fn at(text: &str, byte: usize) -> Option<Self> {
        if text.contains(MARK) {
            return None;
        }
        let (before, behind) = text.split_at(floor(text, byte));
        ENDS.iter().find_map(|end| {
            let marked = format!("{before}{MARK}{end}{behind}");
            let outline = Part::outline(&marked)?;
            let mut found = None;
            find(&outline, &mut Vec::new(), &mut found);
            let Found {
                path,
                is_key,
                is_plain,
                value,
            } = found?;
            let (before, behind) = value.split_once(MARK)?;
            Some(Self {
                path,
                is_key,
                before: before.to_owned(),
                behind: behind.to_owned(),
                is_plain,
                outline,
            })
        })
    }

    /// The part at the end of these steps.
    pub(crate) fn part(&self, path: &[Step]) -> Option<&Part> {
        self.outline.at(path)
    }

    /// The keys of the object at the end of these steps, without the marked one.
    pub(crate) fn keys(&self, path: &[Step]) -> Vec<&str> {
        let entries = self.part(path).map(Part::entries).unwrap_or_default();
        let names = entries.iter().map(|(key, _)| key.name.as_str());
        names.filter(|name| !name.contains(MARK)).collect()
    }

    /// The text of a key of the object at the end of these steps.
    pub(crate) fn text(&self, path: &[Step], key: &str) -> Option<&str> {
        let scalar = self.part(path)?.get(key)?.scalar()?;
        Some(scalar.value.as_str())
    }
}

struct Found {
    path: Vec<Step>,
    is_key: bool,
    is_plain: bool,
    value: String,
}

/// Finds the mark. The depth of an outline is limited.
fn find(part: &Part, path: &mut Vec<Step>, found: &mut Option<Found>) {
    if found.is_some() {
        return;
    }
    match &part.kind {
        PartKind::Scalar(scalar) if scalar.value.contains(MARK) => {
            *found = Some(Found {
                path: path.clone(),
                is_key: false,
                is_plain: scalar.is_plain,
                value: scalar.value.clone(),
            });
        }
        PartKind::Scalar(_) | PartKind::Alias => {}
        PartKind::List(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push(Step::Item(index));
                find(item, path, found);
                path.pop();
            }
        }
        PartKind::Object(entries) => {
            for (key, value) in entries {
                if key.name.contains(MARK) && found.is_none() {
                    *found = Some(Found {
                        path: path.clone(),
                        is_key: true,
                        is_plain: true,
                        value: key.name.clone(),
                    });
                    return;
                }
                path.push(Step::Key(key.name.clone()));
                find(value, path, found);
                path.pop();
            }
        }
    }
}

/// The beginning of the word that ends at a byte, of letters, digits and the given characters.
pub(crate) fn word_start(text: &str, byte: usize, others: &[char]) -> usize {
    let before = &text[..floor(text, byte)];
    let is_of_word =
        |character: char| character.is_ascii_alphanumeric() || others.contains(&character);
    before.trim_end_matches(is_of_word).len()
}

/// The word around a byte.
pub(crate) fn word(text: &str, byte: usize, others: &[char]) -> Range<usize> {
    let byte = floor(text, byte);
    let is_of_word =
        |character: char| character.is_ascii_alphanumeric() || others.contains(&character);
    let behind = &text[byte..];
    let end = behind.len() - behind.trim_start_matches(is_of_word).len();
    word_start(text, byte, others)..byte + end
}
