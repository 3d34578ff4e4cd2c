//! The store: documents, the audit outbox and the event queue, on SQLite or PostgreSQL.
//!
//! It is the only crate that uses SQL, and it is independent of resources. It guarantees that a
//! commit that returned is on disk with its events, that the outbox is in commit order, that keys
//! are unique, and that references always have targets.
//!
//! # Lost commits
//!
//! A fail-over to a standby may take commits back, and the next ones get their numbers. So a `Revision` has an
//! epoch, which increases when a process finds that a commit it knew is missing
//! (`crates/culvert-store/src/commit/history.rs`). The database has the latest commit of each writer, so this is exact.
//! Feed, caches and readers compare whole revisions: in another epoch they read everything again. A connection is
//! used only to a primary, and for a limited time (`crates/culvert-store/src/database/postgres.rs`). If the answer to a
//! commit is lost, the writing task asks the database whether it happened before it writes anything else
//! (`crates/culvert-store/src/commit/writer.rs`).
//!
//! # The audit log
//!
//! The audit log is the outbox, retained. Each row has a SHA-256 over the previous row's hash and its own stored
//! bytes. The ledger row, which every commit locks first, has the head, so the chain is in commit order on every
//! node. A server of an older format writes rows without a hash; the next commit chains them. `AuditLog` reads and
//! verifies the log without writing. Retention (`crates/culvert-delivery/src/retained_events/retention.rs`) deletes
//! only rows that the dispatcher and replays have passed, and keeps the last link as an anchor.

mod audit_log;
mod commit;
mod database;
mod document;
mod feed;
mod installation;
mod node;
mod queue;
mod store;
#[cfg(test)]
mod tests;

pub use audit_log::audit::{
    AuditError, AuditLog, AuditRow, Bound, Damage, Deciding, Expired, Extent, NotedHead, Range,
    RangeError,
};
pub use audit_log::beginning::Beginning;
pub use audit_log::chain::{Hash, Link, NotAHash};
pub use audit_log::event_index::{AuditKey, LinkedRow, Order, SummarizedPiece, TrafficEnds};
pub use audit_log::event_names::event_names;
pub use audit_log::outbox::OutboxRow;
pub use audit_log::rebuild::{Rebuilt, TreeDamage};
pub use audit_log::record::AuditRecord;
pub use audit_log::repair::{Repaired, Unrepairable};
pub use audit_log::tree::{AuditFile, AuditTree, ProveError, SignedHead};
pub use commit::answers::{AnswerRoom, KeptAnswer};
pub use commit::changes::{AuditEvent, Changes};
pub use commit::commit_error::CommitError;
pub use commit::history::LostCommits;
pub use commit::revision::Revision;
pub use database::store_url::StoreUrl;
pub use document::text_index::{Like, TextField, TextQuery, Texts};
pub use document::{Document, Head, Key, OnDelete, PageQuery, Ref, Topic};
pub use feed::Touched;
pub use installation::inspection::{Inspection, inspect, inspect_documents};
pub use installation::transfer::{Moved, Transfer, TransferError, undo_transfer};
pub use installation::{Depth, INSTALLATION, InstallationFiles, TemporaryStore};
pub use node::Node;
pub use node::broadcast::Broadcast;
pub use node::heartbeat::Heartbeat;
pub use queue::{
    Backlog, BatchClass, Body, CursorMove, DEAD_LETTERS_BYTES_MAX, DEAD_LETTERS_FOR,
    DEAD_LETTERS_MAX, DeadBatch, DeadLetter, DeadLetterReason, FrameRange, Gathering,
    HashedTraffic, Lease, NewBatch, NewPiece, NewTrafficBody, NodeNote, OpenTail, Piece,
    PieceFound, Queue, QueueError, RetainedTraffic, Run, StatisticChunk, StatisticFrame, TailPiece,
    TrafficLog, TrafficState, UnrecordedTraffic, WHY_BYTES_MAX,
};
pub use store::Store;
