//! Starts over a store of an earlier version, and moves stored secrets to another master key.

pub(crate) mod open;
pub(crate) mod reencrypt;
pub(crate) mod relink;
pub(crate) mod upgrade_grants;
