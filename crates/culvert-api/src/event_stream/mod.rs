//! Events as server-sent events: live, and those that are retained.

pub(crate) mod follow;
pub(crate) mod tail;
