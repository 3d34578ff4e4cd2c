//! Signed tokens, and the documents of their issuers.

pub mod documents;
pub mod jws;
pub mod unique_json;
