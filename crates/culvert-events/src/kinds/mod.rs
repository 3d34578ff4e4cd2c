//! Every kind of event with a fixed table, sorted. A new kind needs a file and two lines here.

mod http_request_complete;
mod tcp_connection_closed;

use crate::catalogue::kind::EventKind;

/// The name in code of each kind.
pub use http_request_complete::KIND as HTTP_REQUEST_COMPLETE;
pub use tcp_connection_closed::KIND as TCP_CONNECTION_CLOSED;

/// All kinds, sorted by name.
pub static ALL: &[&EventKind] = &[&http_request_complete::KIND, &tcp_connection_closed::KIND];

/// The kind of that name.
pub fn find(name: &str) -> Option<&'static EventKind> {
    ALL.iter().copied().find(|kind| kind.name == name)
}

/// The default decision of a module that did not run.
const NOT_RUN: &str = r#""invalid""#;

/// The decisions of a module.
const DECISIONS: &[&str] = &["allow", "block", "invalid"];

/// What `culvert.reason` means.
const REASON: &str = "Why the edge refused the traffic, or the cause of a response with status 502, 503 or 504. Empty \
                      otherwise. The names are listed below.";

/// What `culvert.sampled` means.
const SAMPLED: &str = "How many refusals this event stands for: those of the same network and account since the one \
                       before that has an event. 1 if each one has an event, and for all other traffic.";

/// What `culvert.upstream` means.
const UPSTREAM: &str = "The upstream of the last attempt: scheme, host and port, or `agents of` and the ID of the endpoint. \
                        Empty if there was none.";
