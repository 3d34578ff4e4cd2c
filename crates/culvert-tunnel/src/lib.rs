//! Tunnels between agents and servers. An agent is a program beside a service; it connects to the server and
//! forwards connections to the service.
//!
//! [`driver`] runs the multiplexer over a socket and provides its streams to asynchronous code. [`wire`] has
//! the messages of agents and servers on these streams. [`server`] accepts agents, [`client`] is culvert's
//! own agent, and [`nodes`] forwards connections to agents of other nodes.
//!
//! The edge handles the traffic itself, and the control plane decides which account an agent belongs to.
//!
//! # Other nodes
//!
//! Processes on one PostgreSQL database have distinct names (`crates/culvert-store/src/node/mod.rs`, a lock of the
//! database that is released with its process) and hold leases by the database's clock. A run of a server writes a
//! heartbeat and the address where others reach its agents. Control compiles that into a table of endpoints by
//! address, beside the snapshot that the edge gets. `crates/culvert-tunnel/src/nodes.rs` keeps multiplexed
//! connections to those nodes, with certificates of a CA for nodes alone, so opening a stream to another node's
//! agent never waits either; the edge sees the port `Dial` here too. A node hands such a stream to its own agent or
//! rejects it, and never passes it on; the node that sent it then looks up the agent again. API commands to another
//! node's agent (`crates/culvert-tunnel/src/nodes/peer_rpc.rs`) use a separate connection. A run without the database
//! asks the other nodes to write its heartbeat, and ends the connections of its agents before their names can be
//! taken if none can (`crates/culvert-agents/src/run_lease.rs`). A run that misses its
//! heartbeats for a while is over, and its sessions end with it; an agent that reconnected elsewhere before that
//! has taken its session along (`crates/culvert-agents/src/heartbeat.rs`).
//!
//! # An agent's connection
//!
//! An agent's connection (`crates/culvert-tunnel` over `crates/culvert-mux`) departs from the written muxado
//! protocol where real agents do: stream numbers may come out of order, GOAWAY ends the connection immediately, a
//! reset stream counts for one more second, and a stream that this side finished last for a tenth of a second.
//! Streams between a server and an agent of ours are free with their last frame. Streams share the send queue
//! equally, and a stream that finds it full waits for its turn. Slow readers throttle their own senders: above a
//! quarter of the buffer limit, streams get less credit; at the limit, the streams that have held the most data for
//! longest are reset, and the connection continues. A client that finds no free stream queues at the connection
//! (`crates/culvert-tunnel/src/driver.rs`); idle streams in the edge's pools make room, and then streams that carry
//! nothing, by client (`crates/culvert-mux/src/connection/shares.rs`). If nothing arrives while requests wait, a
//! heartbeat of the server finds out whether the connection is dead
//! (`crates/culvert-tunnel/src/server/link_watch.rs`).

pub mod client;
mod congestion_control;
pub mod driver;
pub mod fuzz;
pub mod nodes;
mod path;
pub mod server;
mod socket;
pub mod wire;

pub use congestion_control::CongestionControl;
