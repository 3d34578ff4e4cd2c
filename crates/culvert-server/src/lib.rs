//! The server: creates all parts of the product from an installation's settings, contains the adapters between them, and
//! runs and stops them in order.
//!
//! Not here: how settings and data are opened (`culvert-installation`), and logic worth testing alone.
//!
//! # Parts
//!
//! Parts (`crates/culvert-server/src/server/parts`): each has a `start`, a `stop` and the parts that it depends on.
//! Order and failure are in `crates/culvert-server/src/server/part.rs`: a part stops when those that depend on it
//! have stopped.
//!
//! # Stopping
//!
//! Stopping (`crates/culvert-server/src/server/shutdown.rs`): stop accepting → mark each response in flight as the
//! last of its connection → finish exchanges within a deadline → end the sessions of agents → flush the recorder →
//! let workers finish their send → close the store. A start accepts connections once the edge has its first
//! snapshot. A supervisor may hold the sockets, so nothing is lost in between.
//!
//! # A start without the database
//!
//! While the database is away, the edge serves from a copy of its configuration
//! (`crates/culvert-server/src/server/standby`): the documents of the copy are compiled by the code that compiles the
//! database, over a temporary store. When the database is back, the server starts on further handles of the same
//! sockets, and the first edge drains. A part of the server keeps the copy
//! (`crates/culvert-server/src/server/parts/edge_copy.rs`).
//!
//! # A reload
//!
//! A reload (`crates/culvert-server/src/reload.rs`): settings and the files they name are read again. A connection
//! keeps the rules it was accepted with.

mod certificates;
mod cloud_destinations;
pub mod commands;
mod ingress;
mod nodes;
pub mod reload;
pub mod server;
mod system_clock;
pub mod telemetry;

pub use server::Server;
