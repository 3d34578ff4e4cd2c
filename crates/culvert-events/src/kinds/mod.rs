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
