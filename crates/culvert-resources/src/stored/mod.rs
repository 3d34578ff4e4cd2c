//! Stored forms: the bodies of documents, with the number of their format.

pub mod copy_entry;
pub mod informer_cache;
pub mod lost_events;
pub mod read_set;
pub mod reencrypt;
pub mod seal;

use culvert_base::Fault;
use culvert_store::Document;
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The format number in a stored form: `"format":N`. Reading a document with another number fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format<const N: u32>;

impl<const N: u32> Serialize for Format<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(N)
    }
}

impl<'de, const N: u32> Deserialize<'de> for Format<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(deserializer)?;
        if number == N {
            Ok(Self)
        } else {
            Err(de::Error::custom(format!(
                "the document has format {number}, this version of culvert reads {N}"
            )))
        }
    }
}

/// Reads the stored form from a document.
pub fn read<T: DeserializeOwned>(document: &Document) -> Result<T, Fault> {
    serde_json::from_str(&document.body)
        .map_err(|error| Fault::new(format!("reading the stored {}", document.head.id), error))
}

/// Serialises a stored form for a document.
pub fn write<T: Serialize>(form: &T) -> Result<String, Fault> {
    serde_json::to_string(form).map_err(|error| Fault::new("writing a stored form", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_another_format_are_refused() {
        assert_eq!(serde_json::to_string(&Format::<1>).unwrap(), "1");
        assert!(serde_json::from_str::<Format<1>>("1").is_ok());
        let error = serde_json::from_str::<Format<1>>("2").unwrap_err();
        assert!(error.to_string().contains("format 2"));
    }
}
