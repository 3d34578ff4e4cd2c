//! The query parameters of the live event tail, which is not in the operation table.

use culvert_resources::list::page::{Form, Parameter};

/// The query parameters of the tail.
pub static PARAMETERS: [Parameter; 3] = [
    Parameter {
        name: "type",
        doc: "Event types to stream, such as `http_request_complete.v0`. `audit` and `traffic` stand for all types of a log that the caller may read; default: both. Types about API keys, credentials and agent sessions need an admin (630).",
        repeatable: true,
        within: None,
        form: Form::Text,
    },
    Parameter {
        name: "filter",
        doc: "CEL filter over `ev` for traffic events.",
        repeatable: false,
        within: None,
        form: Form::Text,
    },
    Parameter {
        name: "fields",
        doc: "Fields of traffic events to include; default: all.",
        repeatable: true,
        within: None,
        form: Form::Text,
    },
];
