//! Traffic policies: what they may know of a connection, and what their actions decide by.
//!
//! It opens no connection and serves none.

pub mod address;
pub mod conn;
pub mod document;
pub mod fair_table;
pub mod ipdata;
pub mod scheme;
pub mod shared_counts;
pub mod webhook;

pub use address::IpPolicy;
pub use document::read_yaml;
pub use ipdata::{IpData, IpDataFiles, IpDatabases, IpField, IpFields, Scalar};
pub use scheme::Scheme;
pub use shared_counts::{CountMeters, MESSAGE_BYTES_MAX, MESSAGES_MAX, SharedCounts, TELL_EVERY};
