//! Reads a few texts from a JSON body, without building the whole document.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::request::Unverified;

/// The text or whole number at the end of a path of names. A name that occurs twice is an error:
/// the upstream's parser may use the other one.
pub(crate) fn text(body: &[u8], path: &'static [&'static str]) -> Result<String, Unverified> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let found = At(path)
        .deserialize(&mut reader)
        .map_err(|_| Unverified::Malformed)?;
    reader.end().map_err(|_| Unverified::Malformed)?;
    let name = path.last().copied().unwrap_or_default();
    found.ok_or(Unverified::Missing(name))
}

/// The texts of these names in an object, `None` if absent. Names that differ only in case are rejected as duplicates,
/// because some parsers treat them as equal.
pub(crate) fn texts<const N: usize>(
    body: &[u8],
    names: &'static [&'static str; N],
) -> Result<[Option<String>; N], Unverified> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let found = reader
        .deserialize_map(Named(names))
        .map_err(|_| Unverified::Malformed)?;
    reader.end().map_err(|_| Unverified::Malformed)?;
    Ok(found)
}

struct At(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for At {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object, or a text at the end of the path")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.is_empty().then(|| text.to_owned()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(self.0.is_empty().then(|| number.to_string()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((wanted, rest)) = self.0.split_first() else {
            return Err(A::Error::custom("an object where a text is expected"));
        };
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            if name != *wanted {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if found.replace(map.next_value_seed(At(rest))?).is_some() {
                return Err(A::Error::custom("a duplicate name"));
            }
        }
        Ok(found.flatten())
    }
}

struct Named<const N: usize>(&'static [&'static str; N]);

impl<'de, const N: usize> Visitor<'de> for Named<N> {
    type Value = [Option<String>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [const { None }; N];
        while let Some(name) = map.next_key::<String>()? {
            let known = self.0.iter().zip(&mut found);
            let mut known = known.filter(|(known, _)| known.eq_ignore_ascii_case(&name));
            let Some((known, slot)) = known.next() else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if *known != name || slot.replace(map.next_value()?).is_some() {
                return Err(A::Error::custom("a duplicate name"));
            }
        }
        Ok(found)
    }
}
