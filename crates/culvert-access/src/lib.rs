//! What the subjects ask of owners and addresses: who may use what, which owners are active, and which addresses are
//! allowed.
//!
//! [`use_table`] holds the grants and roles by which the compiled state decides who uses what. [`ip`] has IP policies and
//! the restrictions that use them, with their resources: keys, endpoints and traffic policies refer to them.
//!
//! Not here: who a caller is (`culvert-identity`), and whose right a single operation needs (`culvert-resources`).

pub mod active_owners;
pub mod ip;
pub mod use_table;
