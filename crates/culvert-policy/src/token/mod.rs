//! Signed tokens, and the documents of their issuers.

pub mod documents;
pub mod jws;
pub(crate) mod unique_json;
