//! The store: documents, the audit outbox and the event queue, on SQLite or PostgreSQL.
//!
//! It is the only crate that uses SQL, and it is independent of resources. It guarantees that a
//! commit that returned is on disk with its events, that the outbox is in commit order, that keys
//! are unique, and that references always have targets.

mod audit;
mod broadcast;
mod chain;
mod changes;
mod commit_error;
mod condition;
#[cfg(test)]
mod conformance;
mod database;
mod dialect;
mod document;
mod event_index;
mod event_names;
mod feed;
mod health;
mod heartbeat;
mod history;
mod inspection;
mod installation;
mod ledger_watch;
mod lookup;
mod migrate;
mod node;
mod notifications;
mod outbox;
mod pool;
mod postgres;
mod queue;
mod revision;
mod sqlite;
mod state_log;
mod statements;
mod store;
mod store_url;
mod text_index;
mod text_query;
mod transfer;
mod trouble;
mod write_latency;
mod writer;

pub use audit::{
    AuditError, AuditLog, AuditRow, Bound, Damage, Extent, NotedHead, Range, RangeError,
};
pub use broadcast::Broadcast;
pub use chain::{Hash, Link, NotAHash};
pub use changes::{AuditEvent, Changes};
pub use commit_error::CommitError;
pub use document::{Document, Head, Key, OnDelete, PageQuery, Ref, Topic};
pub use event_index::{AuditKey, LinkedRow, Order};
pub use event_names::event_names;
pub use feed::Touched;
pub use heartbeat::Heartbeat;
pub use history::LostCommits;
pub use inspection::{Inspection, inspect, inspect_bodies};
pub use installation::{Depth, INSTALLATION, InstallationFiles};
pub use node::Node;
pub use outbox::OutboxRow;
pub use queue::{
    Backlog, BatchClass, Body, CursorMove, DEAD_LETTERS_BYTES_MAX, DEAD_LETTERS_FOR,
    DEAD_LETTERS_MAX, DeadBatch, DeadLetter, DeadLetterReason, FrameRange, Gathering, Lease,
    NewBatch, NewPiece, NewTrafficBody, NodeNote, OpenTail, Piece, Queue, QueueError,
    RetainedTraffic, Run, StatisticChunk, StatisticFrame, TailPiece, WHY_BYTES_MAX,
};
pub use revision::Revision;
pub use store::Store;
pub use store_url::StoreUrl;
pub use text_index::{Like, TextField, TextQuery, Texts};
pub use transfer::{Moved, Transfer, TransferError, undo_transfer};
