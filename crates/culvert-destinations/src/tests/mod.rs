//! What tests of targets share.

pub(crate) mod fake;
