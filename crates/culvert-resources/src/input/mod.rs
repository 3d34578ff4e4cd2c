//! Parses the body of a call into a typed input, or returns a refusal that names the field (contract:
//! management API 1.11, codes 214 and 215).
//!
//! Inputs are ordinary `serde` structs. This reader adds three rules. An unknown field is refused before
//! anything else, and the refusal lists the accepted names. A wrong type is refused with the path of the
//! field and never quotes the value. A value of the right type that is not allowed (too long, say) is a
//! separate case, because the contract reports it only after looking up the object and checking the caller's
//! permission.

pub mod end;
pub mod force;
pub mod names;
pub mod patterns;
pub mod period;

use std::fmt::{self, Display};

use culvert_base::{Refusal, code};
use schemars::Schema;
use serde::de::value::StringDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value, json};

/// Why a body is not a valid input.
#[derive(Debug)]
pub enum Problem {
    /// Names or types are wrong. Reported before the object is looked up.
    Shape(Refusal),
    /// A value is not allowed. Reported after the object is looked up.
    Value {
        /// The path of the field, such as `description`.
        field: String,
        /// The end of a sentence about the field.
        why: String,
    },
}

/// A parsed update.
#[derive(Debug)]
pub struct Update<T> {
    /// The body, with defaults for missing fields.
    pub input: T,
    /// Whether the body names no field.
    pub is_empty: bool,
}

/// Reads the body of a create. `null` and the empty value of a field's type (`""`, `0`, `[]`, `{}`) count
/// as not given. An empty value of another type is refused like any other wrong type.
pub fn create<T: DeserializeOwned>(body: Option<Value>) -> Result<T, Problem> {
    let mut fields = object(body)?;
    // Unknown names are refused whatever their value, so they must stay in the object here.
    let mut dropped = Vec::new();
    let mut empty = Vec::new();
    fields.retain(|name, value| {
        let given = !is_empty(value);
        if !given {
            dropped.push(name.clone());
            if !value.is_null() {
                empty.push((name.clone(), value.take()));
            }
        }
        given
    });
    let input = read(fields, &dropped)?;
    for (name, value) in empty {
        let alone = Reader {
            value: Value::Object(Map::from_iter([(name.clone(), value)])),
            dropped: &[],
        };
        // Only a wrong type of this field counts; other errors, such as a missing field, do not.
        if let Err(wrong) = T::deserialize(alone)
            && wrong.path == name
            && matches!(wrong.what, What::Type(_))
        {
            return Err(wrong.problem());
        }
    }
    Ok(input)
}

/// Reads the body of an update. An absent key and `null` leave a field as it is. `id` is ignored, but must be text.
pub fn update<T: DeserializeOwned>(body: Option<Value>) -> Result<Update<T>, Problem> {
    let mut fields = object(body)?;
    if fields
        .remove("id")
        .is_some_and(|id| !id.is_null() && !id.is_string())
    {
        return Err(Wrong::must_be("text").within("id").problem());
    }
    let mut dropped = Vec::new();
    fields.retain(|name, value| {
        if value.is_null() {
            dropped.push(name.clone());
        }
        !value.is_null()
    });
    let is_empty = fields.is_empty();
    let input = read(fields, &dropped)?;
    Ok(Update { input, is_empty })
}

/// Completes the schema of a create's body: objects accept no other fields at any depth, and a field that is
/// not required may be `null` or the empty value of its type, which count as not given.
pub fn create_schema(schema: &mut Schema) {
    complete(schema, true);
}

/// Completes the schema of an update's body, where only `null` counts as not given. The body may repeat the
/// ID.
pub fn update_schema(schema: &mut Schema) {
    complete(schema, false);
    let id = json!({
        "type": ["string", "null"],
        "description": "Ignored: the path identifies the object.",
    });
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert("id".to_owned(), id);
    }
}

/// The pattern of ids with one of `prefixes`, as [`culvert_base::id::split`] takes them apart.
pub fn id_pattern(prefixes: &[&str]) -> String {
    format!("^({})_[A-Za-z0-9]{{1,64}}$", prefixes.join("|"))
}

/// A pattern that matches `words`, given in lower case, in any letter case. JSON Schema has no flag for this.
pub fn caseless_pattern(words: &[&str]) -> String {
    let any_case = |word: &&str| -> String {
        word.chars()
            .map(|letter| format!("[{}{letter}]", letter.to_ascii_uppercase()))
            .collect()
    };
    let words: Vec<String> = words.iter().map(any_case).collect();
    format!("^({})$", words.join("|"))
}

fn complete(schema: &mut Schema, is_create: bool) {
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| {
        let names = required.as_array().map(Vec::as_slice).unwrap_or_default();
        names.iter().any(|one| one == name)
    };
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties {
            close(property);
            if let (false, Value::Object(property)) = (is_required(name), property) {
                if is_create {
                    take_empty(property);
                }
                take_null(property);
            }
        }
    }
    schema.insert("additionalProperties".to_owned(), false.into());
}

/// Completes a nested schema: objects accept no other fields, and an enumerated value that may be `null`
/// lists `null`. Removes defaults: descriptions state them, and the derived ones would mislead.
fn close(schema: &mut Value) {
    let Value::Object(schema) = schema else {
        return;
    };
    schema.remove("default");
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(close);
        schema
            .entry("additionalProperties")
            .or_insert_with(|| false.into());
    }
    for within in ["items", "additionalProperties"] {
        if let Some(schema) = schema.get_mut(within) {
            close(schema);
        }
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        if let Some(Value::Array(choices)) = schema.get_mut(choice) {
            choices.iter_mut().for_each(close);
        }
    }
    if has_type(schema, "null") {
        list(schema, Value::Null);
    }
}

/// Lets a property be `null`.
fn take_null(property: &mut Map<String, Value>) {
    if let Some(reference) = property.remove("$ref") {
        let choices = json!([{ "$ref": reference }, { "type": "null" }]);
        property.insert("anyOf".to_owned(), choices);
        return;
    }
    match property.get_mut("type") {
        Some(Value::Array(kinds)) if !kinds.iter().any(|kind| kind == "null") => {
            kinds.push("null".into());
        }
        Some(Value::String(kind)) if *kind != "null" => {
            let kinds = json!([kind, "null"]);
            property.insert("type".to_owned(), kinds);
        }
        _ => {}
    }
    list(property, Value::Null);
}

/// Lets a property be the empty value of its type.
fn take_empty(property: &mut Map<String, Value>) {
    if has_type(property, "string") {
        property.remove("minLength");
        if let Some(Value::String(pattern)) = property.get_mut("pattern") {
            pattern.insert_str(0, "^$|");
        }
        list(property, json!(""));
    }
    if has_type(property, "integer") {
        list(property, json!(0));
        if property.get("minimum").and_then(Value::as_i64) > Some(0) {
            property.insert("minimum".to_owned(), json!(0));
        }
    }
    if has_type(property, "array") {
        property.remove("minItems");
    }
}

fn has_type(schema: &Map<String, Value>, kind: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == kind,
        Some(Value::Array(kinds)) => kinds.iter().any(|one| one == kind),
        _ => false,
    }
}

/// Adds a value to those that a schema lists, if it lists any.
fn list(schema: &mut Map<String, Value>, value: Value) {
    if let Some(Value::Array(values)) = schema.get_mut("enum")
        && !values.contains(&value)
    {
        values.push(value);
    }
}

fn object(body: Option<Value>) -> Result<Map<String, Value>, Problem> {
    match body {
        None => Ok(Map::new()),
        Some(Value::Object(fields)) => Ok(fields),
        Some(_) => Err(Problem::Shape(Refusal::of(code::BODY_NOT_OBJECT))),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn read<T: DeserializeOwned>(fields: Map<String, Value>, dropped: &[String]) -> Result<T, Problem> {
    T::deserialize(Reader {
        value: Value::Object(fields),
        dropped,
    })
    .map_err(|wrong| wrong.problem())
}

/// A deserialization error and its location.
#[derive(Debug)]
struct Wrong {
    /// Path from the root; fields follow a dot, positions are in brackets.
    path: String,
    what: What,
}

#[derive(Debug)]
enum What {
    /// An unknown field, with the accepted names.
    Unknown(&'static [&'static str]),
    Missing,
    /// The expected type, for a value of another type.
    Type(String),
    /// The expected values, for a value of the right type.
    Choice(String),
    /// Why the value is not allowed.
    Value(String),
}

impl Wrong {
    fn must_be(what: &str) -> Self {
        Self {
            path: String::new(),
            what: What::Type(what.to_owned()),
        }
    }

    fn within(mut self, outer: &str) -> Self {
        if !self.path.is_empty() && !self.path.starts_with('[') {
            self.path.insert(0, '.');
        }
        self.path.insert_str(0, outer);
        self
    }

    fn problem(self) -> Problem {
        let path = self.path;
        let refusal = match self.what {
            What::Unknown([]) => Refusal::new(
                code::BODY_FIELD_UNKNOWN,
                format!("Unknown field `{path}`; this operation has no fields."),
            ),
            What::Unknown(taken) => Refusal::new(
                code::BODY_FIELD_UNKNOWN,
                format!(
                    "Unknown field `{path}`; valid fields: {}.",
                    taken.join(", ")
                ),
            ),
            What::Missing => {
                Refusal::new(code::BODY_FIELD_INVALID, format!("`{path}` is required."))
            }
            What::Type(what) | What::Choice(what) => Refusal::new(
                code::BODY_FIELD_INVALID,
                format!("`{path}` must be {what}."),
            ),
            What::Value(why) => return Problem::Value { field: path, why },
        };
        Problem::Shape(refusal)
    }
}

impl Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: Display>(message: T) -> Self {
        Self {
            path: String::new(),
            what: What::Value(message.to_string()),
        }
    }

    // The message omits the unexpected value: it may be a secret in the wrong place.
    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::must_be(&expected.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self {
            path: String::new(),
            what: What::Choice(expected.to_string()),
        }
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self {
            path: String::new(),
            what: What::Choice(format!("one of {}", expected.join(", "))),
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self {
            path: field.to_owned(),
            what: What::Missing,
        }
    }
}

/// Deserializes one value.
struct Reader<'d> {
    value: Value,
    /// Names of fields of the root object whose values count as not given.
    dropped: &'d [String],
}

impl Reader<'_> {
    fn nested(value: Value) -> Self {
        Self {
            value,
            dropped: &[],
        }
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(flag),
            Value::Number(number) => {
                if let Some(number) = number.as_u64() {
                    visitor.visit_u64(number)
                } else if let Some(number) = number.as_i64() {
                    visitor.visit_i64(number)
                } else {
                    visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN))
                }
            }
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => visitor.visit_seq(Items {
                items: items.into_iter(),
                index: 0,
            }),
            Value::Object(fields) => visitor.visit_map(Fields {
                fields: fields.into_iter(),
                value: None,
            }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.value {
            Value::Bool(flag) => visitor.visit_bool(flag),
            _ => Err(Wrong::must_be("true or false")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.value {
            Value::String(text) => visitor.visit_string(text),
            _ => Err(Wrong::must_be("text")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.value {
            Value::Array(_) => self.deserialize_any(visitor),
            _ => Err(Wrong::must_be("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.value {
            Value::Object(_) => self.deserialize_any(visitor),
            _ => Err(Wrong::must_be("an object")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        taken: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        if let Value::Object(fields) = &self.value {
            let unknown = fields
                .keys()
                .chain(self.dropped)
                .find(|name| !taken.contains(&name.as_str()));
            if let Some(name) = unknown {
                // A caller may send a name of any length; the message shows its beginning.
                return Err(Wrong {
                    path: name.chars().take(64).collect(),
                    what: What::Unknown(taken),
                });
            }
        }
        self.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct
        tuple tuple_struct enum identifier ignored_any
    }
}

struct Items {
    items: std::vec::IntoIter<Value>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Wrong> {
        let Some(item) = self.items.next() else {
            return Ok(None);
        };
        let index = self.index;
        self.index += 1;
        seed.deserialize(Reader::nested(item))
            .map(Some)
            .map_err(|wrong| wrong.within(&format!("[{index}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Fields {
    fields: serde_json::map::IntoIter,
    value: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Wrong> {
        let Some((name, value)) = self.fields.next() else {
            return Ok(None);
        };
        let key: StringDeserializer<Wrong> = name.clone().into_deserializer();
        self.value = Some((name, value));
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Wrong> {
        let Some((name, value)) = self.value.take() else {
            return Err(de::Error::custom("a value without its name"));
        };
        seed.deserialize(Reader::nested(value))
            .map_err(|wrong| wrong.within(&name))
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::Description;
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Input {
        description: Description,
        active: Option<bool>,
        items: Vec<Item>,
        size: Option<u32>,
    }

    #[derive(Debug, Deserialize)]
    struct Item {
        name: String,
        tags: Option<Vec<String>>,
    }

    fn shape(body: Value) -> (u16, String) {
        match create::<Input>(Some(body)) {
            Err(Problem::Shape(refusal)) => (
                refusal.code.expect("every shape has a code").number(),
                refusal.message.into_owned(),
            ),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn malformed_input_is_refused_with_the_path_of_its_field() {
        for (body, code, message) in [
            (
                json!({"x": 1}),
                214,
                "Unknown field `x`; valid fields: description, active, items, size.",
            ),
            (
                json!({"x": null}),
                214,
                "Unknown field `x`; valid fields: description, active, items, size.",
            ),
            (
                json!({"description": 5}),
                215,
                "`description` must be text.",
            ),
            (
                json!({"active": "yes"}),
                215,
                "`active` must be true or false.",
            ),
            (json!({"items": {"a": 1}}), 215, "`items` must be a list."),
            (json!({"items": [1]}), 215, "`items[0]` must be an object."),
            (json!({"items": [{}]}), 215, "`items[0].name` is required."),
            (
                json!({"items": [{"name": "a", "tags": ["b", 1]}]}),
                215,
                "`items[0].tags[1]` must be text.",
            ),
            (
                json!({"items": [{"name": "a", "y": 1}]}),
                214,
                "Unknown field `items[0].y`; valid fields: name, tags.",
            ),
            (json!({"size": -1}), 215, "`size` must be u32."),
        ] {
            assert_eq!(shape(body), (code, message.to_owned()));
        }
    }

    #[test]
    fn empty_values_in_a_create_are_absent_and_false_is_not() {
        let body = json!({"description": "", "items": [], "size": 0, "active": false});
        let input: Input = create(Some(body)).unwrap();
        assert_eq!(input.active, Some(false));
        assert!(input.items.is_empty() && input.size.is_none() && input.description.is_empty());
    }

    /// Empty values × types of fields: only the empty value of the field's own type counts as not given.
    #[test]
    fn empty_values_of_the_wrong_type_are_refused() {
        let fields = [
            ("description", json!(""), "text"),
            ("active", json!(false), "true or false"),
            ("items", json!([]), "a list"),
            ("size", json!(0), "u32"),
        ];
        for (name, own, what) in &fields {
            for empty in [json!(""), json!(0), json!([]), json!({})] {
                let body = json!({ *name: empty });
                if empty == *own {
                    assert!(create::<Input>(Some(body)).is_ok());
                } else {
                    let expected = (215, format!("`{name}` must be {what}."));
                    assert_eq!(shape(body), expected, "{empty}");
                }
            }
        }
    }

    #[test]
    fn a_nested_null_is_an_absent_value() {
        let input: Input = create(Some(json!({"items": [{"name": "a", "tags": null}]}))).unwrap();
        assert_eq!(input.items[0].name, "a");
        assert_eq!(input.items[0].tags, None);
    }

    #[test]
    fn an_update_keeps_empty_values_and_drops_null_and_the_id() {
        let sent = update::<Input>(Some(json!({"id": "x", "active": null}))).unwrap();
        assert!(sent.is_empty);
        let sent = update::<Input>(Some(json!({"items": []}))).unwrap();
        assert!(!sent.is_empty && sent.input.items.is_empty());
    }

    /// Empty values × types of fields: an update takes only those of the field's own type.
    #[test]
    fn an_update_refuses_empty_values_of_the_wrong_type() {
        let fields = [
            ("id", json!(""), "text"),
            ("description", json!(""), "text"),
            ("active", json!(false), "true or false"),
            ("items", json!([]), "a list"),
            ("size", json!(0), "u32"),
        ];
        for (name, own, what) in &fields {
            for empty in [json!(""), json!(0), json!([]), json!({})] {
                let body = json!({ *name: empty });
                match update::<Input>(Some(body)) {
                    Ok(_) => assert_eq!(empty, *own, "{name}"),
                    Err(Problem::Shape(refusal)) => {
                        assert_ne!(empty, *own, "{name}");
                        assert_eq!(refusal.message, format!("`{name}` must be {what}."));
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn invalid_values_are_distinguished_from_malformed_input() {
        let body = json!({"description": "x".repeat(256)});
        match create::<Input>(Some(body)) {
            Err(Problem::Value { field, why }) => {
                assert_eq!(
                    (field.as_str(), why.as_str()),
                    ("description", "it is longer than 255 bytes")
                );
            }
            other => panic!("{other:?}"),
        }
        match create::<Input>(Some(json!([]))) {
            Err(Problem::Shape(refusal)) => assert_eq!(refusal.code, Some(code::BODY_NOT_OBJECT)),
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn any_object_is_parsed_or_refused(name in "[a-z]{0,12}|description|active|items|size", text in ".{0,300}", n: i64) {
            for value in [json!(text), json!(n), json!([text]), json!({ name.clone(): n }), json!([{ "name": text }])] {
                drop(create::<Input>(Some(json!({ name.clone(): value }))));
                drop(update::<Input>(Some(json!({ name.clone(): value }))));
            }
        }
    }
}
