//! A kind of event and its fields: a row of the catalogue.

use culvert_base::{Refusal, code};

use crate::catalogue::field::{FieldDef, FieldType, Slot};

/// The family of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Traffic of endpoints. Subscriptions can select fields and filter events.
    Traffic,
    /// Agent sessions that start and end.
    Agent,
    /// Changes of configuration.
    Audit,
}

/// One kind of event with a fixed table of fields.
///
/// ```
/// use culvert_events::{HTTP_REQUEST_COMPLETE, Int32, Slot};
///
/// const PORT: Slot<Int32> = HTTP_REQUEST_COMPLETE.slot("conn.server_port");
/// assert_eq!(PORT.field().path, "conn.server_port");
/// ```
///
/// A misspelt path does not compile:
///
/// ```compile_fail,E0080
/// use culvert_events::{HTTP_REQUEST_COMPLETE, Int32, Slot};
///
/// const PORT: Slot<Int32> = HTTP_REQUEST_COMPLETE.slot("conn.server_prot");
/// ```
///
/// Nor does a type the field does not have:
///
/// ```compile_fail,E0080
/// use culvert_events::{HTTP_REQUEST_COMPLETE, Int64, Slot};
///
/// const PORT: Slot<Int64> = HTTP_REQUEST_COMPLETE.slot("conn.server_port");
/// ```
#[derive(Debug)]
pub struct EventKind {
    /// Name with version suffix: `http_request_complete.v0`.
    pub name: &'static str,
    /// Its family.
    pub family: Family,
    /// When it occurs, for the reference page.
    pub doc: &'static str,
    /// Its fields, in the order of encoding.
    pub fields: &'static [FieldDef],
}

/// Maximum number of fields of a kind. A capture has one bit for each.
pub(crate) const FIELDS_MAX: usize = 64;

impl EventKind {
    /// A kind of traffic event. In a `static`, a table that cannot be written as nested objects
    /// does not compile: paths must ascend (so that fields of one parent are adjacent), no path may
    /// be another's parent, and at most 64 are allowed.
    pub const fn traffic(
        name: &'static str,
        doc: &'static str,
        fields: &'static [FieldDef],
    ) -> Self {
        assert!(
            !fields.is_empty() && fields.len() <= FIELDS_MAX,
            "a kind has 1 to 64 fields"
        );
        let mut index = 1;
        while index < fields.len() {
            let (before, path) = (
                fields[index - 1].path.as_bytes(),
                fields[index].path.as_bytes(),
            );
            assert!(
                ascends(before, path),
                "paths ascend and none is another's parent"
            );
            index += 1;
        }
        Self {
            name,
            family: Family::Traffic,
            doc,
            fields,
        }
    }

    /// The handle to the field at `path`.
    ///
    /// # Panics
    /// If there is no such field or it has another type. In a `const` this is a compile error.
    pub const fn slot<T: FieldType>(&'static self, path: &str) -> Slot<T> {
        let mut index = 0;
        while index < self.fields.len() {
            if same(self.fields[index].path.as_bytes(), path.as_bytes()) {
                assert!(
                    self.fields[index].ty as u8 == T::TYPE as u8,
                    "the field holds another type"
                );
                return Slot::new(self, index);
            }
            index += 1;
        }
        panic!("the kind has no field of this path");
    }

    /// The index of the field at `path`.
    pub(crate) fn index_of(&self, path: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.path == path)
    }

    /// The error for a path that is not a field of this kind.
    pub(crate) fn no_field(&self, path: &str) -> Refusal {
        let name: String = path.chars().take(100).collect();
        Refusal::new(
            code::EVENT_FIELD_UNKNOWN,
            format!("the event {} has no field {name:?}", self.name),
        )
    }
}

/// Two statics never have the same address, so the address identifies a kind.
impl PartialEq for EventKind {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for EventKind {}

const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut index = 0;
    while index < a.len() {
        if a[index] != b[index] {
            return false;
        }
        index += 1;
    }
    true
}

/// Whether `path` comes after `before` and is not below it. A dot sorts before all characters of
/// names, so ascending paths keep the fields of one parent together.
const fn ascends(before: &[u8], path: &[u8]) -> bool {
    let mut index = 0;
    while index < before.len() && index < path.len() {
        if before[index] != path[index] {
            return before[index] < path[index];
        }
        index += 1;
    }
    index == before.len() && index < path.len() && path[index] != b'.'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_paths() {
        for (before, path, fits) in [
            ("a.b", "a.c", true),
            ("a.b", "a.bc", true),
            ("a.c", "a.b", false),
            ("a.b", "a.b", false),
            ("a.b", "a.b.c", false),
            ("a.b.c", "a.b", false),
            ("a.b.c", "a.b_c", true),
        ] {
            assert_eq!(
                ascends(before.as_bytes(), path.as_bytes()),
                fits,
                "{before} {path}"
            );
        }
    }

    #[test]
    fn kinds_are_distinguished() {
        let [http, tcp] = [&crate::HTTP_REQUEST_COMPLETE, &crate::TCP_CONNECTION_CLOSED];
        assert!(http == http && http != tcp);
    }
}
