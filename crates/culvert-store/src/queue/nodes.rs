//! Notes of nodes about themselves, destination health and live tails, which nodes share.
//!
//! Not here: their content (`delivery`), which is opaque text.

use culvert_base::{Fault, Timestamp};

use super::Queue;
use crate::database::dialect::{Arg, While};
use crate::database::statements::events;
use crate::queue::queue_log::QueueCommand;

/// A live tail of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTail {
    /// Id of the tail.
    pub id: String,
    /// The tail's query, opaque here.
    pub spec: String,
}

/// Lines for a tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailPiece {
    /// Position; ascending.
    pub id: i64,
    /// Opaque to the queue.
    pub body: String,
}

/// The last note of a node about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNote {
    /// Name of the node.
    pub node: String,
    /// When the node wrote it.
    pub at: Timestamp,
    /// Opaque to the queue.
    pub body: String,
}

/// Maximum number of tails of other nodes.
const TAILS_MAX: i64 = 256;
/// Pieces per read.
const PIECES_MAX: i64 = 64;

impl Queue {
    /// Stores a node's note about itself, in place of the previous one.
    pub async fn note_node(&self, note: NodeNote) -> Result<(), Fault> {
        let NodeNote { node, at, body } = note;
        let command = QueueCommand::NoteNode { node, at, body };
        self.count("describing this node", command).await.map(drop)
    }

    /// The last note of each node, sorted by name.
    pub async fn node_notes(&self) -> Result<Vec<NodeNote>, Fault> {
        let doing = "reading the nodes";
        let rows = self.pool().rows(doing, events::NODE_NOTES, &[]).await?;
        rows.iter()
            .map(|row| {
                let at: i64 = row.get(1).during(doing)?;
                Ok(NodeNote {
                    node: row.get(0).during(doing)?,
                    at: Timestamp::from_unix_nanos(at),
                    body: row.get(2).during(doing)?,
                })
            })
            .collect()
    }

    /// Removes the note of `node`, and notes of other nodes that were written before `before`.
    pub async fn drop_node_notes(&self, node: &str, before: Timestamp) -> Result<(), Fault> {
        let node = node.to_owned();
        let command = QueueCommand::DropNodeNotes { node, before };
        self.count("removing the description of a node", command)
            .await
            .map(drop)
    }

    /// Stores `node`'s views of destinations in place of the previous ones.
    pub async fn note_healths(
        &self,
        node: &str,
        notes: Vec<(String, String)>,
    ) -> Result<(), Fault> {
        let command = QueueCommand::NoteHealths {
            node: node.to_owned(),
            notes,
            at: self.shared.now(),
        };
        let doing = "recording the health of destinations";
        self.count(doing, command).await.map(drop)
    }

    /// The stored views of a destination: node names and texts.
    pub async fn healths(&self, destination: &str) -> Result<Vec<(String, String)>, Fault> {
        let doing = "reading the health of a destination";
        let arguments = [Arg::Text(destination)];
        let rows = self.pool().rows(doing, events::HEALTHS, &arguments).await?;
        rows.iter()
            .map(|row| Ok((row.get(0).during(doing)?, row.get(1).during(doing)?)))
            .collect()
    }

    /// The stored views of all destinations: IDs of destinations, node names and texts.
    pub async fn all_healths(&self) -> Result<Vec<(String, String, String)>, Fault> {
        let doing = "reading the health of all destinations";
        let rows = self.pool().rows(doing, events::ALL_HEALTHS, &[]).await?;
        rows.iter()
            .map(|row| {
                Ok((
                    row.get(0).during(doing)?,
                    row.get(1).during(doing)?,
                    row.get(2).during(doing)?,
                ))
            })
            .collect()
    }

    /// Announces that a tail of `node` is open until `until`.
    pub async fn open_tail(
        &self,
        id: &str,
        node: &str,
        spec: &str,
        until: Timestamp,
    ) -> Result<(), Fault> {
        let command = QueueCommand::OpenTail {
            id: id.to_owned(),
            node: node.to_owned(),
            spec: spec.to_owned(),
            until,
        };
        self.count("opening a tail", command).await.map(drop)
    }

    /// Removes a tail and its lines.
    pub async fn close_tail(&self, id: &str) -> Result<(), Fault> {
        let id = id.to_owned();
        let command = QueueCommand::CloseTail { id };
        self.count("closing a tail", command).await.map(drop)
    }

    /// Tails of nodes other than `node` that are open.
    pub async fn tails_beside(&self, node: &str, now: Timestamp) -> Result<Vec<OpenTail>, Fault> {
        let doing = "reading the tails of other nodes";
        let now = Arg::Int(now.unix_nanos());
        let arguments = [Arg::Text(node), now, Arg::Int(TAILS_MAX)];
        let rows = self.pool().rows(doing, events::TAILS, &arguments).await?;
        rows.iter()
            .map(|row| {
                Ok(OpenTail {
                    id: row.get(0).during(doing)?,
                    spec: row.get(1).during(doing)?,
                })
            })
            .collect()
    }

    /// Stores lines for a tail of another node. False if the tail is closed or does not keep up.
    pub async fn tell_tail(&self, id: &str, body: String) -> Result<bool, Fault> {
        let id = id.to_owned();
        let command = QueueCommand::TellTail { id, body };
        Ok(self.count("telling a tail", command).await? > 0)
    }

    /// The stored lines of a tail after a position, in order.
    pub async fn tail_pieces(&self, id: &str, after: i64) -> Result<Vec<TailPiece>, Fault> {
        let doing = "reading a tail";
        let arguments = [Arg::Text(id), Arg::Int(after), Arg::Int(PIECES_MAX)];
        let rows = self.pool().rows(doing, events::TAIL_LINES, &arguments);
        rows.await?
            .iter()
            .map(|row| {
                Ok(TailPiece {
                    id: row.get(0).during(doing)?,
                    body: row.get(1).during(doing)?,
                })
            })
            .collect()
    }

    /// Removes the stored lines of a tail up to a position.
    pub async fn drop_tail_pieces(&self, id: &str, up_to: i64) -> Result<(), Fault> {
        let id = id.to_owned();
        let command = QueueCommand::DropTailLines { id, up_to };
        self.count("deleting delivered tail events", command)
            .await
            .map(drop)
    }
}
