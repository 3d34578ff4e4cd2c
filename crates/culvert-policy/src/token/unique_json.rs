//! JSON in which each name occurs once in its object. Of two equal names, readers use the first or the last value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The value of a whole JSON text. `None` if it is malformed, or an object in it has a name twice.
pub fn read(bytes: &[u8]) -> Option<Value> {
    let Unique(value) = serde_json::from_slice(bytes).ok()?;
    Some(value)
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
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
        let number = Number::from_f64(value);
        number
            .map(Value::Number)
            .ok_or_else(|| E::custom("no number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Unique(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Map::new();
        while let Some((name, Unique(value))) = map.next_entry::<String, _>()? {
            if entries.insert(name, value).is_some() {
                return Err(A::Error::custom("a duplicate name"));
            }
        }
        Ok(Value::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_by_other_readers() {
        let text =
            r#" {"a":[1,-2,0.5,1e3,18446744073709551615],"b":{"c":null,"d":true},"e":"\u00e9\n"} "#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(read(text.as_bytes()), Some(expected));
    }

    #[test]
    fn duplicate_names_are_refused() {
        for wrong in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"b":{"a":1,"a":2}}]"#,
            r#"{"a":1} x"#,
            "",
            "{",
            "\u{feff}{}",
        ] {
            assert_eq!(read(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(read(b"{\"a\":\"\xff\"}"), None);
        assert_eq!(read("[".repeat(100_000).as_bytes()), None);
    }
}
