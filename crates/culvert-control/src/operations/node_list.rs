//! `GET /nodes`: the processes of the installation, as each describes itself every few seconds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Fault, Refusal, Timestamp, code};
use culvert_resources::access::caller::Role;
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::audit::trace::Trace;
use culvert_resources::operation::{Call, Method, Operation, Reply, ResponseSpec, Run, Status};
use culvert_resources::stored;
use culvert_store::NodeNote;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::operations::noted_upstreams::NotedUpstreams;
use crate::{Error, Revision};

const PATH: &str = "/nodes";

/// Interval of descriptions.
const NOTE_EVERY: Duration = Duration::from_secs(5);
/// Age of the last description from which a node counts as offline.
const OFFLINE_AFTER: Duration = Duration::from_secs(20);
/// How long a node that crashed is listed.
const LISTED_FOR: Duration = Duration::from_secs(3_600);

/// What a node says of itself.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "NodeFacts")]
pub struct NodeFacts {
    /// Version of the server.
    pub version: String,
    /// Start of the process.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub started_at: Timestamp,
    /// Roles of the process: `api`, `edge`, `agents`, `delivery`.
    pub roles: Vec<String>,
    /// Region, if one is configured.
    pub region: String,
    /// Listen addresses by name: `api`, `http`, `https`, `agents`, `ssh`, `nodes`, `metrics`.
    pub addresses: BTreeMap<String, String>,
    /// Open connections to other nodes.
    pub node_connections: u64,
    /// Connected sessions of agents.
    pub agent_sessions: u64,
    /// Overload level of the edge, 0 to 3.
    pub overload_level: u64,
    /// The database.
    pub store: StoreFacts,
    /// The log in which traffic events wait.
    pub event_log: EventLogFacts,
}

/// The database of a node.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "NodeStore")]
pub struct StoreFacts {
    /// `sqlite` or `postgres`.
    pub engine: String,
    /// Latency of a write in milliseconds.
    pub write_ms: f64,
    /// Whether the disk was full at the start and still is.
    pub is_read_only: bool,
}

/// The event log of a node.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "NodeEventLog")]
pub struct EventLogFacts {
    /// `embedded` (in the database) or `nats`.
    pub kind: String,
    /// Whether it is available.
    pub is_up: bool,
}

/// The stored description of a node.
#[derive(Debug, Deserialize, Serialize)]
struct Stored {
    facts: NodeFacts,
    /// The revision of the configuration that its edge runs, and the last one that it knows of.
    revision: i64,
    known: i64,
    /// The passes of its alert evaluator that did not fail. A number that grows no more is that of one that hangs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alert_passes: Option<u64>,
    /// Upstreams that its edge sees as unhealthy.
    #[serde(default)]
    upstreams: NotedUpstreams,
}

impl Stored {
    fn has_edge(&self) -> bool {
        self.facts.roles.iter().any(|role| role == "edge")
    }
}

pub(crate) fn operations() -> [Operation<Control>; 1] {
    [Operation {
        name: "list",
        collection: "nodes",
        method: Method::Get,
        path: PATH.to_owned(),
        doc: "Lists the server processes of the installation, with their version, addresses and state. Admins only."
            .to_owned(),
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<NodeList<'static>>),
        },
        query: &[],
        right: Right {
            role: Role::Admin,
            scope: Some(Scope::EventsRead),
        },
        object: None,
        hides: None,
        preview: None,
            trace: Trace::Nothing,
        run: Run::new(|control, call| Box::pin(list(control, call))),
    }]
}

/// The nodes of the installation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NodeList")]
struct NodeList<'a> {
    nodes: Vec<View>,
    uri: &'a str,
}

/// A server process.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Node")]
struct View {
    /// Name of the node.
    name: String,
    /// Whether it described itself in the last 20 seconds.
    is_online: bool,
    /// When it last described itself, by its clock.
    #[schemars(with = "String", extend("format" = "date-time"))]
    last_seen_at: Timestamp,
    /// The revision of the configuration that it runs; null without an edge.
    revision: Option<i64>,
    /// How many revisions that is behind the last commit it knew of.
    revision_lag: i64,
    #[serde(flatten)]
    facts: NodeFacts,
}

async fn list(control: &Control, call: Call) -> Result<Reply, Error> {
    if call.caller.role != Role::Admin {
        return Err(Refusal::new(code::NOT_ADMIN, "Only admins may list the nodes.").into());
    }
    let now = control.kernel.clock.now();
    let mut nodes = Vec::new();
    for note in control.events.statistics.queue().node_notes().await? {
        let Ok(stored) = serde_json::from_str::<Stored>(&note.body) else {
            tracing::debug!(note.node, "a node of another version described itself");
            continue;
        };
        let has_edge = stored.has_edge();
        nodes.push(View {
            is_online: now.since(note.at) < OFFLINE_AFTER,
            name: note.node,
            last_seen_at: note.at,
            revision: has_edge.then_some(stored.revision),
            revision_lag: match has_edge {
                true => stored.known.saturating_sub(stored.revision).max(0),
                false => 0,
            },
            facts: stored.facts,
        });
    }
    let uri = format!("{}{PATH}", call.base);
    Ok(Reply::Ok(stored::write(&NodeList { nodes, uri: &uri })?))
}

impl Control {
    /// What the other nodes with an edge, which described themselves lately, say of upstreams. By the names of the nodes.
    pub(super) async fn upstreams_of_others(&self) -> Result<Vec<(String, NotedUpstreams)>, Fault> {
        let (now, own) = (self.kernel.clock.now(), self.events.statistics.node());
        let notes = self.events.statistics.queue().node_notes().await?;
        let others = notes
            .into_iter()
            .filter(|note| note.node != own && now.since(note.at) < OFFLINE_AFTER);
        let mut found = Vec::new();
        for note in others {
            match serde_json::from_str::<Stored>(&note.body) {
                Ok(stored) if stored.has_edge() => found.push((note.node, stored.upstreams)),
                Ok(_) => {}
                Err(_) => tracing::debug!(note.node, "a node of another version described itself"),
            }
        }
        Ok(found)
    }

    /// Describes this node every few seconds until cancelled, and removes the description then.
    pub async fn keep_node_note(
        self: Arc<Self>,
        describe: impl Fn() -> NodeFacts,
        cancel: CancellationToken,
    ) {
        let mut is_failing = false;
        loop {
            match self.note_node(describe()).await {
                Ok(()) => is_failing = false,
                Err(fault) if !is_failing => {
                    tracing::warn!(cause = %fault.chain(), "describing this node failed; retrying");
                    is_failing = true;
                }
                Err(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(NOTE_EVERY) => {}
                () = cancel.cancelled() => break,
            }
        }
        let before = self.kernel.clock.now().minus(LISTED_FOR);
        let node = self.events.statistics.node();
        if let Err(fault) = self
            .events
            .statistics
            .queue()
            .drop_node_notes(node, before)
            .await
        {
            tracing::debug!(cause = %fault.chain(), "removing the description of this node failed");
        }
    }

    /// Describes this node now.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn note_node(&self, facts: NodeFacts) -> Result<(), Fault> {
        let known = *self.kernel.store.watch().borrow();
        let published = self.kernel.applied.revision().unwrap_or(Revision::START);
        let is_current = published.epoch == known.epoch;
        let edge = self.edge.as_ref();
        let unhealthy = edge.and_then(|edge| edge.unhealthy_upstreams());
        let note = Stored {
            facts,
            // Numbers of an earlier epoch say nothing about this one.
            revision: if is_current { published.number } else { 0 },
            known: known.number,
            alert_passes: Some(self.alerts.passes.get()).filter(|passes| *passes > 0),
            upstreams: NotedUpstreams::of(unhealthy.unwrap_or_default()),
        };
        let note = NodeNote {
            node: self.events.statistics.node().to_owned(),
            at: self.kernel.clock.now(),
            body: stored::write(&note)?,
        };
        self.events.statistics.queue().note_node(note).await
    }
}
