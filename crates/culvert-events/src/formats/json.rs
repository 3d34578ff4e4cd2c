//! JSON whose keys are nothing but keys.
//!
//! `serde_json::Value` takes an object for something else if its first key is one of the private names that the crate uses
//! for raw values. A client chooses such keys: of query parameters that a policy logs, for example.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads JSON text. `None` if it is not valid.
pub fn read_json(text: &[u8]) -> Option<Value> {
    let Plain(value) = serde_json::from_slice(text).ok()?;
    Some(value)
}

struct Plain(Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PlainVisitor).map(Self)
    }
}

struct PlainVisitor;

impl<'de> Visitor<'de> for PlainVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Plain(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Plain(value))) = entries.next_entry::<String, Plain>()? {
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_a_key() {
        for key in [
            "$serde_json::private::RawValue",
            "$serde_json::private::Number",
            "",
            "\u{0}",
        ] {
            let mut object = Map::new();
            object.insert(key.to_owned(), Value::String("x".to_owned()));
            object.insert("n".to_owned(), serde_json::json!([1, -2, 0.5, null, true]));
            let text = Value::Object(object.clone()).to_string();
            assert_eq!(read_json(text.as_bytes()), Some(Value::Object(object)));
        }
        assert_eq!(read_json(b"{"), None);
    }
}
