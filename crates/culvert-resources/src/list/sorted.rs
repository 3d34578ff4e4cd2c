//! Objects of one resource by plain text, in the order of a field.
//!
//! It reads what the list of the resource reads, and views decide what matches and its place: neither depends on what the
//! caller does not see. A page reads all objects again, until `WORK_MAX` is spent: an order has no index, because views
//! show fields that the store does not have, and because callers see different ones.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::{Fault, Refusal, code, id};
use culvert_store::{Document, PageQuery};
use schemars::SchemaGenerator;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::Error;
use crate::cx::Cx;
use crate::list::page::Fields;
use crate::list::search::{PAGE, Sought, WORK_MAX, folded};
use crate::list::{
    BYTE_WORK, INCLUDED_WORK, Listed, OBJECT_WORK, ObjectPage, Reading, Sieve, conditions,
};
use crate::resource::ResourceType;

/// The part of a text that decides its place, in characters.
const KEY_CHARS: usize = 128;
/// Most different words of a text.
const WORDS_MAX: usize = 8;
/// Limit of the text of a cursor.
const CURSOR_BYTES_MAX: usize = 2048;
/// Limit of the objects that are kept while others are read, in pages.
const KEPT_PAGES: usize = 4;

/// The objects to find.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Words that the fields of a search must have, each in any of them.
    pub text: &'a str,
    /// A condition as lists take it.
    pub filter: Option<&'a str>,
    /// The order; `None` for the newest first.
    pub order: Option<Order<'a>>,
    /// Only objects behind this place.
    pub after: Option<Place>,
    /// Maximum number of objects.
    pub limit: usize,
}

/// An order by a field of the view. Objects without a value are last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order<'a> {
    field: &'a str,
    is_descending: bool,
}

impl<'a> Order<'a> {
    /// The order that a text names: a field, after `-` if the largest value is first. `None` if the resource has no such
    /// field, or it has no single value.
    pub fn parse(ty: &ResourceType, text: &'a str) -> Option<Self> {
        let descending = text.strip_prefix('-');
        let field = descending.unwrap_or(text);
        fields(ty)
            .iter()
            .any(|known| known == field)
            .then_some(Self {
                field,
                is_descending: descending.is_some(),
            })
    }
}

/// The fields of the view of a resource that have a single value.
pub fn fields(ty: &ResourceType) -> Vec<String> {
    let mut generator = SchemaGenerator::default();
    let view = (ty.view_schema)(&mut generator).to_value();
    let definitions = generator.definitions();
    let properties = resolved(&view, definitions).get("properties");
    let properties = properties.and_then(Value::as_object).into_iter().flatten();
    properties
        .filter(|(_, schema)| is_plain(schema, definitions))
        .map(|(name, _)| name.clone())
        .collect()
}

fn resolved<'s>(schema: &'s Value, definitions: &'s Map<String, Value>) -> &'s Value {
    let name = schema.get("$ref").and_then(Value::as_str);
    let name = name.and_then(|path| path.rsplit('/').next());
    name.and_then(|name| definitions.get(name))
        .unwrap_or(schema)
}

/// Whether a value is a text, a number or a flag, or may be absent.
fn is_plain(schema: &Value, definitions: &Map<String, Value>) -> bool {
    let schema = resolved(schema, definitions);
    let is_single = |ty: &Value| ty != "object" && ty != "array";
    match schema.get("type") {
        Some(Value::Array(all)) => all.iter().all(is_single),
        Some(one) => is_single(one),
        None => {
            let forms = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key));
            let forms = forms.and_then(Value::as_array);
            forms.is_some_and(|all| all.iter().all(|one| is_plain(one, definitions)))
                || schema.get("enum").is_some()
                || schema.get("const").is_some()
        }
    }
}

/// The value of a field, as orders compare it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Key {
    Number(f64),
    Text(String),
    Nothing,
}

impl Key {
    fn of(value: &RawValue) -> Self {
        match serde_json::from_str(value.get()) {
            Ok(Value::Bool(is)) => Self::Number(f64::from(u8::from(is))),
            Ok(Value::Number(number)) => number.as_f64().map_or(Self::Nothing, Self::Number),
            Ok(Value::String(text)) if !text.is_empty() => {
                // People order URLs by their hosts.
                let text = text.split_once("://").map_or(&*text, |(_, rest)| rest);
                let key = text.chars().flat_map(char::to_lowercase).take(KEY_CHARS);
                Self::Text(key.collect())
            }
            _ => Self::Nothing,
        }
    }

    /// The order of two values; absent ones are not compared.
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => one.total_cmp(other),
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Number(_), _) => Ordering::Less,
            _ => Ordering::Greater,
        }
    }
}

/// The place of an object in an order.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    key: Key,
    /// Stored ID: of equal values, the newest object is first.
    id: String,
}

impl Place {
    fn compare(&self, other: &Self, order: Option<Order<'_>>) -> Ordering {
        let is_descending = order.is_some_and(|order| order.is_descending);
        let by_key = match (&self.key, &other.key) {
            (Key::Nothing, Key::Nothing) => Ordering::Equal,
            (Key::Nothing, _) => Ordering::Greater,
            (_, Key::Nothing) => Ordering::Less,
            (one, other) if is_descending => other.compare(one),
            (one, other) => one.compare(other),
        };
        by_key.then_with(|| other.id.cmp(&self.id))
    }

    /// The place that a cursor names; `None` if it is malformed, or of another order or resource.
    pub fn parse(text: &str, ty: &ResourceType, order: &str) -> Option<Self> {
        if text.len() > CURSOR_BYTES_MAX {
            return None;
        }
        let json = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (collection, of_order, key, body): (String, String, Key, String) =
            serde_json::from_slice(&json).ok()?;
        let is_id =
            body.len() <= id::BODY_LENGTH && body.bytes().all(|b| b.is_ascii_alphanumeric());
        (collection == ty.collection && of_order == order && is_id).then(|| Self {
            key,
            id: ty.stored_id_of(body),
        })
    }

    /// The cursor that continues behind this place.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn cursor(&self, ty: &ResourceType, order: &str) -> Result<String, Fault> {
        let body = id::split(&self.id).map_or("", |(_, body)| body);
        let json = serde_json::to_vec(&(ty.collection, order, &self.key, body))
            .map_err(|error| Fault::new("writing a cursor", error))?;
        Ok(URL_SAFE_NO_PAD.encode(json))
    }
}

/// Objects in their order.
#[derive(Debug)]
pub struct Sorted {
    /// Their views, as JSON texts.
    pub views: Vec<String>,
    /// Where the next page continues, if there is one.
    pub next: Option<Place>,
    /// Whether all objects were read. If not, the oldest ones were not.
    pub is_complete: bool,
}

struct Placed {
    place: Place,
    view: String,
}

/// The objects of a resource that the caller may see and that match.
///
/// # Errors
///
/// The filter is invalid, or the store fails.
pub async fn sorted(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    asked: &Asked<'_>,
) -> Result<Sorted, Error> {
    let listed = Listed {
        uri: String::new(),
        takes_filter: ty.filter.is_some(),
        arguments: &[],
        refs_to: None,
        having: None,
    };
    let filter = asked
        .filter
        .map(|text| ("filter".to_owned(), text.to_owned()));
    let wanted = conditions(ty, filter.as_slice(), &listed)?;
    let sieve = Sieve::of(cx, ty, &wanted, &listed)?;
    let words: BTreeSet<&str> = asked.text.split_whitespace().collect();
    if words.len() > WORDS_MAX {
        return Err(Refusal::of(code::SEARCH_TEXT_INVALID).into());
    }
    let sought = words.into_iter().map(Sought::of);
    let sought: Vec<Sought> = sought.collect::<Result<_, _>>()?;
    let mut matching = Matching {
        cx,
        ty,
        asked,
        sieve: &sieve,
        sought,
        found: Vec::new(),
        work: 0,
    };
    // Without an order, objects before the page need not be read.
    let behind = asked.after.as_ref().filter(|_| asked.order.is_none());
    let behind = behind.and_then(|place| id::split(&place.id));
    let behind = behind.map(|(_, body)| body);
    let Reading {
        source,
        from,
        mut before,
        refs_to,
    } = Reading::of(cx, ty, &sieve, behind, None).await?;
    let has_included = sieve.has_included(ty);
    let mut is_complete = true;
    'pages: loop {
        let query = PageQuery {
            kind: ty.kind.to_owned(),
            account: cx.caller.account.clone(),
            before: before.take(),
            limit: PAGE,
            refs_to: refs_to.clone(),
        };
        let ObjectPage { documents, next } = source.read(cx, &query).await?;
        let included = match has_included {
            true => (ty.read_included)(cx, &documents).await?,
            false => Vec::new(),
        };
        let mut included = included.iter();
        for document in &documents {
            let included = included.next();
            if from.as_ref().is_some_and(|from| document.head.id < *from) {
                break 'pages;
            }
            matching.judge(document, included)?;
        }
        let is_full = asked.order.is_none() && matching.found.len() > asked.limit;
        let Some(next) = next.filter(|_| !is_full) else {
            break;
        };
        if matching.work > WORK_MAX {
            is_complete = false;
            break;
        }
        before = Some(next);
    }
    matching.keep_first(asked.limit.saturating_add(1));
    let mut found = matching.found;
    let is_more = found.len() > asked.limit;
    found.truncate(asked.limit);
    let next = found.last().filter(|_| is_more);
    Ok(Sorted {
        next: next.map(|last| last.place.clone()),
        views: found.into_iter().map(|placed| placed.view).collect(),
        is_complete,
    })
}

/// The objects found so far.
struct Matching<'a> {
    cx: &'a Cx<'a>,
    ty: &'static ResourceType,
    asked: &'a Asked<'a>,
    sieve: &'a Sieve<'a>,
    sought: Vec<Sought>,
    found: Vec<Placed>,
    work: u64,
}

impl Matching<'_> {
    /// Adds an object if the caller sees it, it matches and it is behind the previous page.
    fn judge(&mut self, document: &Document, included: Option<&Fields>) -> Result<(), Fault> {
        self.work = self.work.saturating_add(OBJECT_WORK);
        if !self.ty.is_seen_by(self.cx.caller, document)? {
            return Ok(());
        }
        let view = self.ty.view_text(document, self.cx.base)?;
        // Each word is looked for in all of it.
        let n_looks = self.sought.len().saturating_add(1);
        let n_bytes = u64::try_from(view.len().saturating_mul(n_looks)).unwrap_or(u64::MAX);
        self.work = self.work.saturating_add(n_bytes.saturating_mul(BYTE_WORK));
        if included.is_some() {
            self.work = self.work.saturating_add(INCLUDED_WORK);
        }
        if !self.has_text(&view)?
            || !(self.sieve).passes(view.as_bytes(), document, included, &mut self.work)?
        {
            return Ok(());
        }
        let place = Place {
            key: self.key(&view)?,
            id: document.head.id.clone(),
        };
        let is_behind = self
            .asked
            .after
            .as_ref()
            .is_none_or(|after| place.compare(after, self.asked.order) == Ordering::Greater);
        if is_behind {
            self.found.push(Placed { place, view });
        }
        let most = self.asked.limit.saturating_add(1);
        if self.asked.order.is_some() && self.found.len() > most.saturating_mul(KEPT_PAGES) {
            self.keep_first(most);
        }
        Ok(())
    }

    fn has_text(&self, view: &str) -> Result<bool, Fault> {
        if self.sought.is_empty() {
            return Ok(true);
        }
        let small = folded(view);
        if !self.sought.iter().all(|word| word.may_be_in(&small)) {
            return Ok(false);
        }
        let view: Value = serde_json::from_str(view)
            .map_err(|error| Fault::new("reading a view to search it", error))?;
        Ok(self.sought.iter().all(|word| word.best(&view).is_some()))
    }

    fn key(&self, view: &str) -> Result<Key, Fault> {
        let Some(order) = self.asked.order else {
            return Ok(Key::Nothing);
        };
        // Names of fields have no escapes.
        let fields: HashMap<&str, &RawValue> = serde_json::from_str(view)
            .map_err(|error| Fault::new("reading a view to sort it", error))?;
        Ok(fields
            .get(order.field)
            .map_or(Key::Nothing, |value| Key::of(value)))
    }

    fn keep_first(&mut self, count: usize) {
        let order = self.asked.order;
        (self.found).sort_by(|one, other| one.place.compare(&other.place, order));
        self.found.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(key: Key, id: &str) -> Place {
        Place {
            key,
            id: id.to_owned(),
        }
    }

    #[test]
    fn absent_values_are_last_and_equal_ones_newest_first() {
        let text = |text: &str| Key::Text(text.to_owned());
        let ordered = |is_descending| {
            let order = Some(Order {
                field: "x",
                is_descending,
            });
            let mut places = [
                place(Key::Nothing, "a_1"),
                place(text("b"), "a_2"),
                place(Key::Number(10.0), "a_3"),
                place(text("b"), "a_4"),
                place(Key::Number(9.0), "a_5"),
                place(text("a"), "a_6"),
            ];
            places.sort_by(|one, other| one.compare(other, order));
            let ids = places.iter().map(|place| place.id.trim_start_matches("a_"));
            ids.collect::<String>()
        };
        assert_eq!(ordered(false), "536421");
        assert_eq!(ordered(true), "426351");
    }

    #[test]
    fn urls_are_ordered_by_their_hosts_in_any_case() {
        let key = |json: &str| Key::of(&RawValue::from_string(json.to_owned()).unwrap());
        for (json, expected) in [
            ("\"HTTPS://Shop.Example/A\"", "shop.example/a"),
            ("\"\\u00c4gypten\"", "ägypten"),
            ("\"true\"", "true"),
        ] {
            assert_eq!(key(json), Key::Text(expected.to_owned()));
        }
        for (json, expected) in [("true", 1.0), ("7", 7.0), ("-0.5", -0.5)] {
            assert_eq!(key(json), Key::Number(expected));
        }
        for json in ["null", "\"\"", "[]", "{\"id\":\"x\"}"] {
            assert_eq!(key(json), Key::Nothing);
        }
        let long = format!("\"{}\"", "İ".repeat(400));
        let Key::Text(text) = key(&long) else {
            unreachable!()
        };
        assert_eq!(text.chars().count(), KEY_CHARS);
    }
}
