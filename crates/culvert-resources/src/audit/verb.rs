//! The changes of objects, and the names of their events.

/// A change to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The object is new.
    Created,
    /// The object has another state.
    Updated,
    /// The object is gone.
    Deleted,
}

impl Verb {
    /// All verbs, in the order of the catalogue.
    pub const ALL: [Self; 3] = [Self::Created, Self::Updated, Self::Deleted];

    /// As in the names of kinds: `created`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
        }
    }
}

/// `api_key_created.v0`.
pub fn kind_name(resource: &str, verb: Verb) -> String {
    format!("{resource}_{}.v0", verb.name())
}
