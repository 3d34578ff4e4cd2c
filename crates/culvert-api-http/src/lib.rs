//! HTTP of the management API, without what runs its operations: routes, bodies, responses and problems, limits of
//! callers and connections, and the documents that are generated from the table of operations.
//!
//! Not here: who calls, and the calls themselves (`culvert-api`).

pub mod access;
pub mod body;
pub mod connection;
pub mod health;
pub mod openapi;
pub mod query;
pub mod reference;
pub mod request;
pub mod response;
pub mod route;
pub mod tombstones;
