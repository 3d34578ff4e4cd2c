//! An installation as its operator has it: its settings, as a file, variables and flags; its data directory with databases,
//! master key and lock; how a process opens them; and the checks of what certificates need.
//!
//! Server and commands of the operator share this. Not here: the parts that a server runs (`culvert-server`), and what a
//! user configures (`culvert-control`).

pub mod audit_head;
pub mod audit_key;
pub mod certificate_checks;
pub mod config;
pub mod data_dir_lock;
pub mod dns_writer;
pub mod edge_copy;
mod flags;
pub mod keys;
mod process_context;
mod proxies;
pub mod sqlite_files;

pub use flags::{
    file_digest, settings_of, storage_settings_of, variable, variables, with_settings,
};
pub use process_context::{
    Access, MASTER_KEY_MARK, ProcessContext, Unopened, key_rotated, store_url,
};
pub use proxies::proxies;
