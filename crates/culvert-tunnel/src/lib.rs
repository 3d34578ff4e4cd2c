//! Tunnels between agents and servers. An agent is a program beside a service; it connects to the server and
//! forwards connections to the service.
//!
//! [`driver`] runs the multiplexer over a socket and provides its streams to asynchronous code. [`wire`] has
//! the messages of agents and servers on these streams. [`server`] accepts agents, [`client`] is culvert's
//! own agent, and [`nodes`] forwards connections to agents of other nodes.
//!
//! The edge handles the traffic itself, and the control plane decides which account an agent belongs to.

pub mod client;
pub mod driver;
pub mod fuzz;
pub mod nodes;
pub mod server;
mod socket;
pub mod wire;
