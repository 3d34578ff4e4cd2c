//! Starts over a store of an earlier version.

pub(crate) mod open;
pub(crate) mod relink;
pub(crate) mod upgrade_grants;
