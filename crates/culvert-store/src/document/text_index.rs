//! An index of texts, by which documents are found without reading all of them.
//!
//! The program that opens a store lists the indexed fields: texts of a kind's stored form. Each
//! text that is not empty gets a row, written in the same commit as its document. The ledger says
//! up to which revision the rows are complete, and for which fields. Documents written by a program
//! of an older format, or by one with other fields, are indexed gradually in the background. Until
//! then, [`crate::Store::has_all_texts`] is false and the index is not used.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use culvert_base::text::hex;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::database::dialect::{Arg, Connection, Row};
use crate::database::statements::{INSERT_TEXTS, REMOVE_TEXTS, state};
use crate::document::Key;

/// The indexed fields of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts(BTreeMap<&'static str, BTreeSet<TextField>>);

/// A text of a stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextField {
    /// Name of the field in queries, unique within its kind.
    pub name: &'static str,
    /// The object that contains the text; `None` for the top level.
    pub within: Option<&'static str>,
}

/// A condition on a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Like {
    /// Equal to one of these, none of which is empty.
    OneOf(Vec<String>),
    /// Starts with this.
    Begins(String),
    /// Contains this. Scans all texts of the field.
    Contains(String),
}

/// A query for documents of one kind and account by a text.
#[derive(Clone, Copy, Debug)]
pub struct TextQuery<'a> {
    /// Name of the resource, such as `endpoint`.
    pub kind: &'a str,
    /// `ac_…` of the account.
    pub account: &'a str,
    /// The name of one of the [`Texts`] that the store was opened with.
    pub field: &'a str,
    /// The condition on the text.
    pub like: &'a Like,
}

impl FromIterator<(&'static str, TextField)> for Texts {
    /// Pairs of kind and field.
    fn from_iter<I: IntoIterator<Item = (&'static str, TextField)>>(pairs: I) -> Self {
        let mut texts = Self::default();
        for (kind, field) in pairs {
            texts.0.entry(kind).or_default().insert(field);
        }
        texts
    }
}

impl Texts {
    /// Identifies these fields in the ledger; empty if there are none.
    pub(crate) fn mark(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut hasher = Sha256::new();
        for (kind, fields) in &self.0 {
            for field in fields {
                let TextField { name, within } = field;
                hasher.update(format!("{kind} {} {name}\n", within.unwrap_or_default()));
            }
        }
        hex(&hasher.finalize())
    }

    /// The rows of a document, as lists of id, field, kind, account and value.
    pub(crate) fn rows(&self, id: &str, kind: &str, account: &str, body: &str) -> Vec<[String; 5]> {
        let Some(fields) = self.0.get(kind) else {
            return Vec::new();
        };
        // Anything but a JSON object has no texts.
        let object: Map<String, Value> = serde_json::from_str(body).unwrap_or_default();
        let row = |field: &TextField| {
            let holder = match field.within {
                Some(name) => object.get(name)?.as_object()?,
                None => &object,
            };
            let text = holder.get(field.name)?.as_str()?;
            let value = value(text);
            (!text.is_empty()).then(|| [id, field.name, kind, account, &*value].map(str::to_owned))
        };
        fields.iter().filter_map(row).collect()
    }
}

/// The progress of indexing, from the ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexProgress {
    /// The rows are complete up to this revision.
    pub(crate) up_to: i64,
    /// Whether the rows are for the fields of this program.
    pub(crate) is_ours: bool,
}

impl IndexProgress {
    /// Reads two columns of the ledger, the first at `index`.
    pub(crate) fn read(row: &Row, index: usize, mark: &str) -> Result<Self, sqlx::Error> {
        let texts_of: String = row.get(index + 1)?;
        Ok(Self {
            up_to: row.get(index)?,
            is_ours: !mark.is_empty() && texts_of == mark,
        })
    }

    /// Whether every document up to `revision` is indexed.
    pub(crate) const fn is_complete(self, revision: i64) -> bool {
        self.is_ours && self.up_to >= revision
    }
}

/// Longest value that is stored unabridged, in bytes.
const WHOLE_BYTES_MAX: usize = 256;
/// Maximum bytes of a longer value that are stored before its hash. Cut at a character boundary.
const KEPT_BYTES_MAX: usize = 224;
/// A prefix no longer than this is contained in every abridged value, because a character has at
/// most four bytes.
pub(crate) const BEGINNING_BYTES_MAX: usize = KEPT_BYTES_MAX - 3;
const HASH_BYTES: usize = 64;

const _: () = assert!(
    BEGINNING_BYTES_MAX + HASH_BYTES > WHOLE_BYTES_MAX,
    "a value with a hash is longer than any without"
);

/// A text as it is stored: without NUL (see [`Key::spelled`]); a long text is cut and followed by
/// its hash, because indexes limit the length of values.
pub(crate) fn value(text: &str) -> Cow<'_, str> {
    let text = Key::spelled(text);
    if text.len() <= WHOLE_BYTES_MAX {
        return text;
    }
    let hash = hex(&Sha256::digest(text.as_bytes()));
    Cow::Owned(format!("{}{hash}", begin(&text, KEPT_BYTES_MAX)))
}

/// The beginning of a text, cut at a character boundary.
pub(crate) fn begin(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// The smallest text that sorts after all texts with this beginning.
pub(crate) fn behind(beginning: &str) -> String {
    let mut rest = beginning.to_owned();
    while let Some(last) = rest.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            rest.push(next);
            return rest;
        }
    }
    // There is no character after the last one; no stored value is longer than this.
    char::MAX.to_string().repeat(WHOLE_BYTES_MAX)
}

pub(crate) fn json(value: &impl serde::Serialize) -> Result<String, sqlx::Error> {
    serde_json::to_string(value).map_err(|error| sqlx::Error::Encode(error.into()))
}

/// Writes rows.
pub(crate) async fn insert(
    connection: &mut Connection,
    rows: &[[String; 5]],
) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let rows = json(&rows)?;
    let sql = connection.spell(INSERT_TEXTS);
    connection.run(sql, &[Arg::Text(&rows)]).await.map(drop)
}

/// Removes the rows of documents.
pub(crate) async fn remove(connection: &mut Connection, ids: &[&str]) -> Result<(), sqlx::Error> {
    let ids = json(&ids)?;
    let sql = connection.spell(REMOVE_TEXTS);
    connection.run(sql, &[Arg::Text(&ids)]).await.map(drop)
}

/// Indexes documents written after `up_to`, in the order of writing: about `documents_max`, but all
/// documents of one commit together. Returns the revision up to which all documents are indexed.
pub(crate) async fn catch_up(
    connection: &mut Connection,
    texts: &Texts,
    up_to: i64,
    revision: i64,
    documents_max: usize,
) -> Result<i64, sqlx::Error> {
    let limit = i64::try_from(documents_max)
        .unwrap_or(i64::MAX)
        .saturating_add(1);
    let mut behind = Vec::new();
    for kind in texts.0.keys() {
        let arguments = [Arg::Text(kind), Arg::Int(up_to), Arg::Int(limit)];
        behind.extend(read(connection, state::SOME_CHANGED, &arguments, kind).await?);
    }
    behind.sort_by_key(|one| one.revision);
    let up_to = match behind.get(documents_max).map(|next| next.revision) {
        None => revision,
        Some(next) => {
            behind.retain(|one| one.revision < next);
            if behind.is_empty() {
                for kind in texts.0.keys() {
                    let arguments = [Arg::Text(kind), Arg::Int(next)];
                    behind.extend(read(connection, state::CHANGED_AT, &arguments, kind).await?);
                }
                next
            } else {
                next - 1
            }
        }
    };
    for some in behind.chunks(documents_max.max(1)) {
        let ids: Vec<&str> = some.iter().map(|one| &*one.id).collect();
        remove(connection, &ids).await?;
        let rows = some
            .iter()
            .flat_map(|one| texts.rows(&one.id, one.kind, &one.account, &one.body));
        insert(connection, &rows.collect::<Vec<_>>()).await?;
    }
    Ok(up_to)
}

/// A document that is not indexed.
struct Behind {
    revision: i64,
    id: String,
    kind: &'static str,
    account: String,
    body: String,
}

async fn read(
    connection: &mut Connection,
    sql: &'static str,
    arguments: &[Arg<'_>],
    kind: &'static str,
) -> Result<Vec<Behind>, sqlx::Error> {
    let rows = connection.rows(sql, arguments).await?;
    let read = |row: &Row| {
        Ok(Behind {
            revision: row.get(0)?,
            id: row.get(1)?,
            kind,
            account: row.get(2)?,
            body: row.get(3)?,
        })
    };
    rows.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_are_of_texts_that_are_named_and_not_empty() {
        let top = |name| ("item", TextField { name, within: None });
        let inner = TextField {
            name: "inner",
            within: Some("n"),
        };
        let texts: Texts = [top("name"), top("note"), top("n"), ("item", inner)]
            .into_iter()
            .collect();
        let body = r#"{"name":"a\u0000\u0001","n":1,"note":"","other":"x"}"#;
        let row = ["item_1", "name", "item", "ac_1", "a\u{1}0\u{1}1"].map(str::to_owned);
        assert_eq!(texts.rows("item_1", "item", "ac_1", body), [row]);
        let nested = r#"{"n":{"inner":"b"},"inner":"c"}"#;
        let row = ["item_1", "inner", "item", "ac_1", "b"].map(str::to_owned);
        assert_eq!(texts.rows("item_1", "item", "ac_1", nested), [row]);
        assert!(texts.rows("user_1", "user", "ac_1", body).is_empty());
        for body in ["", "[]", "7", "{\"name\""] {
            assert!(texts.rows("item_1", "item", "ac_1", body).is_empty());
        }
        assert_eq!(Texts::default().mark(), "");
        assert_ne!(
            texts.mark(),
            [top("name")].into_iter().collect::<Texts>().mark()
        );
    }

    #[test]
    fn what_is_behind_a_beginning() {
        for (beginning, expected) in [("a", "b"), ("a\u{10ffff}", "b"), ("a\u{d7ff}", "a\u{e000}")]
        {
            assert_eq!(behind(beginning), expected);
        }
        assert!(behind("\u{10ffff}").as_str() > &*"\u{10ffff}".repeat(WHOLE_BYTES_MAX / 4));
    }

    proptest! {
        #[test]
        fn a_beginning_is_between_its_bounds(text in "[a-z\u{e9}\u{10ffff}\u{0}\u{1}]{1,300}", cut in 0usize..300) {
            let beginning: String = text.chars().take(cut.max(1)).collect();
            let spelled = Key::spelled(&beginning);
            let from = begin(&spelled, BEGINNING_BYTES_MAX);
            let value = value(&text);
            prop_assert!(value.starts_with(from));
            prop_assert!(from <= &*value && *value < *behind(from));
            prop_assert!(value.len() <= KEPT_BYTES_MAX + HASH_BYTES);
            prop_assert_eq!(value.len() > WHOLE_BYTES_MAX, Key::spelled(&text).len() > WHOLE_BYTES_MAX);
        }
    }
}
