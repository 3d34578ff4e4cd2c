//! The agent as a program: its commands, its configuration, its status screen and its inspection page, around the agent of
//! `culvert-tunnel`.
//!
//! It runs a plan until a signal. On a terminal it shows a status screen; otherwise it prints the URLs of its endpoints and
//! writes a log.
//!
//! Not here: any part of a server. The program `culvert-agent` has the agent alone, for machines that run no server.
//!
//! # The agent
//!
//! The agent (`crates/culvert-tunnel/src/client`; `crates/culvert-agent` is its terminal, file and page) keeps one
//! session: dial, Auth, Bind for each endpoint, then a task for each stream. Bytes are forwarded as the slices they
//! arrived in; a tap beside them finds the requests and keeps them within a limit. The values that the server
//! assigned (session, cookie, ids, tokens, options) are all that a reconnect needs, so a network failure costs a
//! back-off and no name. Beyond 512 streams a connection, or after two seconds of congestion, the agent opens up to
//! three further connections of the session (`crates/culvert-tunnel/src/client/further.rs`) and closes them when
//! they are not needed. It accepts as many streams as its limit of open files allows
//! (`crates/culvert-agent/src/files.rs`). One table lists all options of an endpoint
//! (`crates/culvert-tunnel/src/client/flags.rs`). ngrok's configuration file and its agent API share one reader of
//! endpoints (`crates/culvert-agent/src/config/definition.rs`); the settings beside them are a table
//! (`crates/culvert-agent/src/config/keys.rs`). The screen (`crates/culvert-agent/src/screen`) and the page
//! (`console/src/agent-page`, served by `crates/culvert-agent/src/inspect`) only read the status, the meters and
//! the recorded exchanges of that.

pub mod commands;
pub mod config;
mod files;
mod inspect;
pub mod log;
mod reporter;
mod run;
mod screen;
mod sessions;

pub use run::run;
