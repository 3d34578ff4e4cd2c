//! Measures how much of its resources a server uses, and decides what it sheds.
//!
//! - A [`Pressure`] turns the usage of memory, open files, threads and storage ([`Shares`], [`RunQueue`]) into a [`Level`]
//!   and a [`Decision`] about the load to shed.
//! - A [`Census`] has the open connections by source, under limits for all of them and for each source. [`victims`] chooses
//!   the idle ones to close.
//! - A [`HandshakeLimiter`] gives the CPU time of TLS handshakes to sources in turn.
//!
//! It decides and counts. Closing, refusing and dropping are up to the server.

mod census;
mod handshake_limiter;
mod level;
mod memory_limit;

pub use census::{Census, CensusEntry, CensusLimit};
pub use handshake_limiter::{HandshakeLimiter, NoTurn};
pub use level::*;
pub use memory_limit::memory_max;
