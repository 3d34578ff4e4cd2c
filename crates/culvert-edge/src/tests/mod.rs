//! The edge from outside: raw clients, raw origins, every event looked at.

pub(crate) mod harness;

mod agents;
mod answers;
mod bodies;
mod bounds;
mod buffers;
mod calls;
mod challenges;
mod drain;
mod events;
mod fields;
mod floods;
mod forwarding;
mod internal;
mod lanes;
mod limits;
mod logins;
mod malformed;
mod mutual;
mod overloaded;
mod policies;
mod proxied;
mod restricted;
mod rfc6455;
mod secure;
mod situations;
mod sizes;
mod storm;
mod streams;
mod tokens;
mod tunnels;
mod webhooks;
mod websockets;
