//! Every kind of event with a fixed table, sorted. Adding one is a file and two lines here.

mod http_request_complete;
mod tcp_connection_closed;

use crate::kind::Kind;

/// The name in code of each kind.
pub use http_request_complete::KIND as HTTP_REQUEST_COMPLETE;
pub use tcp_connection_closed::KIND as TCP_CONNECTION_CLOSED;

/// All of them.
pub static ALL: &[&Kind] = &[&http_request_complete::KIND, &tcp_connection_closed::KIND];

/// The kind of that name.
pub fn find(name: &str) -> Option<&'static Kind> {
    ALL.iter().copied().find(|kind| kind.name == name)
}

/// What a module says it did when it did not run.
const NOT_RUN: &str = r#""invalid""#;

/// What a module can say it decided.
const DECISIONS: &[&str] = &["allow", "block", "invalid"];
