//! Header fields that policies and the edge own: those that a policy adds, and the edge's own cookies.

pub(crate) mod fields;
pub mod own_cookies;
