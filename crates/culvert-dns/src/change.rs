//! Changes to records, and the zones that may have them.

/// Time to live of the records, in seconds; providers may require more.
pub(crate) const TTL: u32 = 60;

/// A change to a TXT record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    Remove,
}

impl Change {
    /// The values of a name after this change.
    pub(crate) fn of(self, mut values: Vec<String>, value: &str) -> Vec<String> {
        let has_value = values.iter().any(|one| one == value);
        match self {
            Self::Add if has_value => {}
            Self::Add => values.push(value.to_owned()),
            Self::Remove => values.retain(|one| one != value),
        }
        values
    }
}

/// The name and its parents that can be zones, the longest first.
pub(crate) fn zones_of(name: &str) -> impl Iterator<Item = &str> {
    let parents = std::iter::successors(Some(name), |name| Some(name.split_once('.')?.1));
    parents.filter(|name| name.contains('.')).take(ZONES_MAX)
}

/// Maximum number of names that may be the zone of a record.
pub(crate) const ZONES_MAX: usize = 16;
