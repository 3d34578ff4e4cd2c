//! Events: the catalogue of their kinds, records of traffic events, and their encoding as JSON.
//!
//! A kind of event is a `static` table of fields ([`kinds`]). Serialisation, capture, selection,
//! filter variables, JSON Schema and the reference page are loops over it, so each field is defined
//! in one place.
//!
//! A traffic event takes these steps: the plane that carries the traffic gets from a [`Recorder`]
//! the fields to [`Capture`], fills a [`Record`] and offers it. For each subscription, a [`Filter`]
//! decides whether to send the event and a [`Selection`] lists its fields. [`encode::event`] writes
//! one line of JSON.
//!
//! Not here: where and when an event is sent (delivery), how the values of fields are determined
//! (the planes), the objects of audit events (control passes their schemas to
//! [`catalogue::Catalogue`]).

pub mod bodies;
mod capture;
pub mod catalogue;
pub mod encode;
mod filter;
mod formats;
mod headers;
mod id;
pub mod kinds;
mod reason;
mod record;
mod refused;
mod selection;
pub mod words;

pub use capture::{Capture, Recorder};
pub use catalogue::field::{
    Bool, FieldDef, FieldType, Headers, Int32, Int64, Logs, Settable, Slot, Text, Time, Type, field,
};
pub use catalogue::kind::{EventKind, Family};
pub use encode::template::{
    BODY_BYTES_MAX, BodyTemplate, TemplateBody, TemplateError, TemplateFault,
};
pub use encode::{Audit, CallContext, Principal, Reference, Source, Via, caused_by};
pub use filter::log_filter::{LogFilter, Logged};
pub use filter::{Filter, FilterFault};
pub use formats::{
    EventFormat, EventSeverity, JsonReader, JsonRules, kinds as formatted_kinds, read_json,
    severity_of,
};
pub use headers::{Cookies, HeaderRules, sign_in_parameter};
pub use id::{EventId, EventIds};
pub use kinds::{HTTP_REQUEST_COMPLETE, TCP_CONNECTION_CLOSED};
pub use reason::Reason;
pub use record::Record;
pub use record::packed::{Packer, Unpacked, unpack};
pub use record::retained::Retained;
pub use record::summary::{PieceSummary, Summary};
pub use refused::{RefusedSample, RefusedTraffic};
pub use selection::Selection;
