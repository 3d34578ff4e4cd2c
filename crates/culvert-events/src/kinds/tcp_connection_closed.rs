//! `tcp_connection_closed.v0`: one TCP connection of any endpoint, recorded when it has ended
//! (contract: events 8).

use super::{DECISIONS, NOT_RUN, REASON, SAMPLED, UPSTREAM};
use crate::catalogue::field::Type::{Int32, Int64, Logs, Text, Timestamp};
use crate::catalogue::field::field;
use crate::catalogue::kind::EventKind;
use crate::reason::Reason;

/// The kind.
#[rustfmt::skip]
pub static KIND: EventKind = EventKind::traffic(
    "tcp_connection_closed.v0",
    "A TCP connection to an endpoint is closed in both directions, for any protocol, after all \
     its `http_request_complete.v0` events. Emitted exactly once for each connection that \
     belonged to an endpoint, also if its TLS handshake failed after the client had named the endpoint. Above 100 failed \
     handshakes a second of a network (/24 or /64), only some have an event (`culvert.sampled`).",
    &[
        field("conn.bytes_in", Int64, "Bytes read from the client's socket; with TLS, encrypted bytes including the handshake."),
        field("conn.bytes_out", Int64, "Bytes written to the client's socket; with TLS, encrypted bytes including the handshake."),
        field("conn.client_ip", Text, "Source address of the client's TCP connection, never from a request header.").filterable(),
        field("conn.end_ts", Timestamp, "Time when the second direction closed or the connection was reset."),
        field("conn.server_ip", Text, "Server address that the connection arrived on.").filterable(),
        field("conn.server_name", Text, "Host name of the connection: the SNI with TLS, the host of the first request with plain HTTP, the host of the address for a TCP endpoint. Empty if there is none.").filterable(),
        field("conn.server_port", Int32, "Server port that the connection arrived on.").filterable(),
        field("conn.start_ts", Timestamp, "Time when the client's TCP connection was accepted."),
        field("culvert.connect_ms", Int64, "Time to connect to the upstream, in milliseconds.").null_when("the connection is HTTP, or reached no upstream").by_name(),
        field("culvert.duration_ms", Int64, "Time from the accept to the close, in milliseconds.").by_name(),
        field("culvert.reason", Text, REASON).one_of(Reason::VALUES, r#""""#).filterable().by_name(),
        field("culvert.sampled", Int64, SAMPLED).or("1").by_name(),
        field("culvert.upstream", Text, UPSTREAM).by_name(),
        field("ip_policy.decision", Text, "Decision of IP policies on the connection: `allow`, `block` or `invalid` (none applied, or the endpoint is HTTP; then the decision is in `http_request_complete.v0`).").one_of(DECISIONS, NOT_RUN),
        field("traffic_policy.logs", Logs, "Entries of the traffic policy's log actions on connect, in order: at most 32 entries of 4 KiB, 16 KiB in total."),
    ],
);
