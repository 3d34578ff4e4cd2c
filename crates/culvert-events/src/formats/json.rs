//! JSON whose keys are nothing but keys.
//!
//! `serde_json::Value` takes an object for something else if its first key is one of the private names that the crate uses
//! for raw values. A client chooses such keys: of query parameters that a policy logs, for example.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads JSON text. `None` if it is not valid.
pub fn read_json(text: &[u8]) -> Option<Value> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = JsonReader(AnyJson).deserialize(&mut reader).ok()?;
    reader.end().ok()?;
    Some(value)
}

/// What a reader of JSON refuses. The methods return the error of the whole text.
pub trait JsonRules: Copy {
    /// The rules for the content of an array or object at this place.
    ///
    /// # Errors
    /// If there must be none.
    fn inner<E: Error>(self) -> Result<Self, E>;

    /// Notes an element of an array or a member of an object.
    ///
    /// # Errors
    /// If there are too many.
    fn member<E: Error>(self) -> Result<(), E>;

    /// Notes the name of the next member of an object. Of members with equal names, the last one counts.
    ///
    /// # Errors
    /// If the object must not have the name.
    fn name<E: Error>(self, object: &Map<String, Value>, name: &str) -> Result<(), E>;
}

/// All that is JSON.
#[derive(Clone, Copy)]
struct AnyJson;

impl JsonRules for AnyJson {
    fn inner<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn member<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn name<E: Error>(self, _: &Map<String, Value>, _: &str) -> Result<(), E> {
        Ok(())
    }
}

/// Reads one value under these rules.
#[derive(Clone, Copy, Debug)]
pub struct JsonReader<R>(pub R);

impl<'de, R: JsonRules> DeserializeSeed<'de> for JsonReader<R> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: JsonRules> Visitor<'de> for JsonReader<R> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
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

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).map(Value::Number);
        number.ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let inner = self.0.inner()?;
        let mut list = Vec::new();
        while let Some(element) = elements.next_element_seed(JsonReader(inner))? {
            inner.member()?;
            list.push(element);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let inner = self.0.inner()?;
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            inner.member()?;
            inner.name(&object, &name)?;
            let value = members.next_value_seed(JsonReader(inner))?;
            object.insert(name, value);
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
