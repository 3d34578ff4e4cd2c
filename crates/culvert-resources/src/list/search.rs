//! Finds objects of all resources by a text in their names, addresses, IDs or descriptions.
//!
//! It reads what lists read, and judges the views that lists show, so it finds nothing that the caller cannot list.
//! Pages of all resources are read in turns, newest first, until `WORK_MAX` is spent: many objects of one resource
//! hide none of another.

use std::cmp::Reverse;
use std::collections::VecDeque;

use culvert_base::{Fault, Timestamp};
use culvert_store::{Document, PageQuery};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::cx::Cx;
use crate::keyed_mutex::KeyedMutex;
use crate::list::{BYTE_WORK, OBJECT_WORK, ObjectPage, ObjectSource, only_owner};
use crate::resource::ResourceType;

/// Limit of the cost of one search. A unit is about a nanosecond, as in filters of lists.
pub(crate) const WORK_MAX: u64 = 200_000_000;
/// Objects in one read.
pub(crate) const PAGE: u32 = 250;
/// Limit of concurrent searches of all owners; others wait.
const SEARCHES_MAX: usize = 2;
/// Number of locks that owners share by hash.
const OWNER_LOCKS: usize = 256;

/// The fields of views that are searched, the most telling first.
pub const FIELDS: &[&str] = &[
    "id",
    "name",
    "username",
    "email",
    "public_url",
    "url",
    "host",
    "hostport",
    "domain",
    "addr",
    "dns_names",
    "subject_common_name",
    "upstream_url",
    "forwards_to",
    "description",
];

/// What stands for the name of an object without one.
pub(super) const NAMES: &[&str] = &[
    "name",
    "username",
    "domain",
    "addr",
    "subject_common_name",
    "email",
];

/// The turns of searches: an owner's run one after another, so that its next one waits for those of others.
#[derive(Debug)]
pub struct Searches {
    owners: KeyedMutex,
    all: Semaphore,
}

impl Default for Searches {
    fn default() -> Self {
        Self {
            owners: KeyedMutex::of_size(OWNER_LOCKS),
            all: Semaphore::new(SEARCHES_MAX),
        }
    }
}

impl Searches {
    /// Runs a search of an owner in its turn.
    pub async fn run<T>(&self, owner_id: &str, search: impl Future<Output = T>) -> T {
        let searching = async {
            // The semaphore is never closed, so there always is a permit.
            let _permit = self.all.acquire().await;
            search.await
        };
        self.owners.with(&[owner_id], searching).await
    }
}

/// Objects that a search found.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SearchResults")]
pub struct Found {
    /// The objects, best matches first.
    pub results: Vec<Hit>,
    /// URI of the search, without its query.
    pub uri: String,
    /// Whether all objects were searched. If not, the oldest ones of collections with many objects were not.
    pub is_complete: bool,
}

/// An object that a search found.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SearchResult")]
pub struct Hit {
    /// Kind of the object, such as `endpoint`.
    kind: &'static str,
    /// Its collection, as in paths: `endpoints`.
    collection: &'static str,
    /// ID of the object.
    id: String,
    /// Its name, or its domain, address or e-mail address if it has none; empty if it has none of these.
    name: String,
    /// Its description.
    description: String,
    /// Its URL; empty if it has none.
    url: String,
    /// The field of the object that has the text.
    matched: &'static str,
}

/// How well a text matches, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Closeness {
    Exact,
    Prefix,
    Within,
}

/// A found object with its place among the others.
#[derive(Debug)]
struct Ranked {
    closeness: Closeness,
    created_at: Timestamp,
    hit: Hit,
}

/// A text to search for.
#[derive(Debug)]
pub(crate) struct Sought {
    /// In small letters.
    text: String,
    /// The same within a JSON string.
    quoted: String,
}

/// Searches the objects of these resources that the caller may see. `text` is compared without regard to case, and at
/// most `limit` results are returned.
///
/// # Errors
///
/// The store fails.
pub async fn search(
    cx: &Cx<'_>,
    types: &[&'static ResourceType],
    text: &str,
    limit: usize,
) -> Result<Found, Fault> {
    let sought = Sought::of(text)?;
    let mut found = Vec::new();
    let exact = by_id(cx, types, text, &sought, &mut found).await?;
    let mut work = 0_u64;
    let mut is_complete = true;
    let mut unread: VecDeque<(&'static ResourceType, Option<String>)> =
        types.iter().map(|ty| (*ty, None)).collect();
    while let Some((ty, before)) = unread.pop_front() {
        if work > WORK_MAX {
            is_complete = false;
            break;
        }
        let query = PageQuery {
            kind: ty.kind.to_owned(),
            account: cx.caller.account.clone(),
            before,
            limit: PAGE,
            refs_to: only_owner(cx, ty),
        };
        let ObjectPage { documents, next } = ObjectSource::All.read(cx, &query).await?;
        for document in &documents {
            work = work.saturating_add(OBJECT_WORK);
            if exact.as_ref() != Some(&document.head.id) {
                let n_bytes = sought.judge(cx, ty, document, &mut found)?;
                work = work.saturating_add(n_bytes.saturating_mul(BYTE_WORK));
            }
        }
        if found.len() > limit.saturating_mul(8) {
            keep_best(&mut found, limit);
        }
        unread.extend(next.map(|next| (ty, Some(next))));
    }
    keep_best(&mut found, limit);
    Ok(Found {
        results: found.into_iter().map(|ranked| ranked.hit).collect(),
        uri: format!("{}/search", cx.base),
        is_complete,
    })
}

/// Adds the object with this ID, which is found whatever the number of objects. Returns its stored ID.
async fn by_id(
    cx: &Cx<'_>,
    types: &[&'static ResourceType],
    text: &str,
    sought: &Sought,
    found: &mut Vec<Ranked>,
) -> Result<Option<String>, Fault> {
    let text = text.trim();
    let ids = types.iter().find_map(|ty| Some((*ty, ty.stored_id(text)?)));
    let Some((ty, id)) = ids else {
        return Ok(None);
    };
    let Some(document) = cx.own(ty.kind, &id).await? else {
        return Ok(None);
    };
    sought.judge(cx, ty, &document, found)?;
    Ok(Some(id))
}

fn keep_best(found: &mut Vec<Ranked>, limit: usize) {
    found.sort_by(|a, b| {
        let place = |one: &Ranked| (one.closeness, Reverse(one.created_at));
        place(a)
            .cmp(&place(b))
            .then_with(|| b.hit.id.cmp(&a.hit.id))
    });
    found.truncate(limit);
}

/// A text in small letters. The Greek sigma has one form, wherever it is in a word.
pub(crate) fn folded(text: &str) -> String {
    let text = text.to_lowercase();
    match text.contains('ς') {
        true => text.replace('ς', "σ"),
        false => text,
    }
}

impl Sought {
    pub(crate) fn of(text: &str) -> Result<Self, Fault> {
        let text = folded(text.trim());
        let quoted = serde_json::to_string(&text)
            .map_err(|error| Fault::new("quoting the text of a search", error))?;
        let quoted = quoted.get(1..quoted.len() - 1).unwrap_or_default();
        Ok(Self {
            quoted: quoted.to_owned(),
            text,
        })
    }

    /// Adds an object if the caller sees it and it matches. Returns the length of its view in bytes.
    fn judge(
        &self,
        cx: &Cx<'_>,
        ty: &'static ResourceType,
        document: &Document,
        found: &mut Vec<Ranked>,
    ) -> Result<u64, Fault> {
        if !ty.is_seen_by(cx.caller, document)? {
            return Ok(0);
        }
        let view = ty.view_text(document, cx.base)?;
        let n_bytes = u64::try_from(view.len()).unwrap_or(u64::MAX);
        // Only what the caller sees decides how long it takes.
        if !self.may_be_in(&folded(&view)) {
            return Ok(n_bytes);
        }
        let view: Value = serde_json::from_str(&view)
            .map_err(|error| Fault::new("reading a view to search it", error))?;
        if let Some((closeness, matched)) = self.best(&view) {
            let first = |names: &[&str]| {
                let mut texts = names.iter().filter_map(|name| view.get(name)?.as_str());
                let text = texts.find(|text| !text.is_empty());
                text.unwrap_or_default().to_owned()
            };
            found.push(Ranked {
                closeness,
                created_at: document.head.created_at,
                hit: Hit {
                    kind: ty.name,
                    collection: ty.collection,
                    id: first(&["id"]),
                    name: first(NAMES),
                    description: first(&["description"]),
                    url: first(&["public_url", "url"]),
                    matched,
                },
            });
        }
        Ok(n_bytes)
    }

    /// Whether a view in small letters may have the text in a field. It has none otherwise.
    pub(crate) fn may_be_in(&self, view: &str) -> bool {
        view.contains(&self.quoted)
    }

    /// The field that matches best.
    pub(crate) fn best(&self, view: &Value) -> Option<(Closeness, &'static str)> {
        let in_field = |field: &&'static str| {
            let closeness = match view.get(*field)? {
                Value::String(text) => self.closeness(text),
                Value::Array(texts) => texts
                    .iter()
                    .filter_map(Value::as_str)
                    .filter_map(|text| self.closeness(text))
                    .min(),
                _ => None,
            };
            Some((closeness?, *field))
        };
        // The first of equal ones.
        FIELDS
            .iter()
            .filter_map(in_field)
            .min_by_key(|(closeness, _)| *closeness)
    }

    fn closeness(&self, text: &str) -> Option<Closeness> {
        let text = folded(text);
        let at = text.find(&self.text)?;
        // A host is the beginning of a URL, and so is a URL.
        let is_begin = at == 0 || text.get(..at).is_some_and(|before| before.ends_with("://"));
        Some(match is_begin {
            true if at + self.text.len() == text.len() => Closeness::Exact,
            true => Closeness::Prefix,
            false => Closeness::Within,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_best_field_is_named() {
        let view = json!({
            "id": "ep_1", "name": "Shop", "public_url": "https://shop.example:8443",
            "description": "the shop of Ägypten \"x\" Οδοσήμα", "dns_names": ["a.example", "b.example"],
            "metadata": "hidden",
        });
        for (text, expected) in [
            ("shop", Some((Closeness::Exact, "name"))),
            ("  SHOP ", Some((Closeness::Exact, "name"))),
            ("shop.example", Some((Closeness::Prefix, "public_url"))),
            (
                "https://shop.example:8443",
                Some((Closeness::Exact, "public_url")),
            ),
            ("B.EXAMPLE", Some((Closeness::Exact, "dns_names"))),
            ("ägypten", Some((Closeness::Within, "description"))),
            ("ΟΔΟΣ", Some((Closeness::Within, "description"))),
            ("οδος", Some((Closeness::Within, "description"))),
            ("\"x\"", Some((Closeness::Within, "description"))),
            ("hidden", None),
            ("ep_", Some((Closeness::Prefix, "id"))),
            ("P_1", Some((Closeness::Within, "id"))),
        ] {
            let sought = Sought::of(text).unwrap();
            assert_eq!(sought.best(&view), expected, "{text}");
            // The quick look at the whole view loses none.
            let is_passed = sought.may_be_in(&folded(&view.to_string()));
            assert!(is_passed || expected.is_none(), "{text}");
        }
    }
}
