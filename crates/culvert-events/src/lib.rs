//! What culvert tells the world: the catalogue of events, one traffic event being filled, and how it becomes
//! JSON.
//!
//! A kind of event is a `static` table of fields ([`kinds`]). Serialisation, capture, selection, filter
//! variables, JSON Schema and the reference page are loops over it; no field is written down twice.
//!
//! The way of a traffic event: whoever carries the traffic asks a [`Recorder`] what to [`Capture`], fills a
//! [`Record`] and offers it; for each subscription a [`Filter`] decides, a [`Selection`] says which fields, and
//! [`encode::event`] writes one line of JSON.
//!
//! Not here: where an event goes and when (delivery), how a field's value is found (the planes), what an audit
//! event's object looks like (control gives its schema to [`catalogue::Catalogue`]).

mod capture;
pub mod catalogue;
pub mod encode;
mod field;
mod filter;
mod headers;
mod id;
mod json;
mod kind;
pub mod kinds;
mod log_filter;
mod record;
mod retained;
mod selection;

pub use capture::{Capture, Recorder};
pub use encode::{Principal, Reference};
pub use field::{
    Bool, FieldDef, FieldType, Headers, Int32, Int64, Logs, Settable, Slot, Text, Time, Type, field,
};
pub use filter::{Filter, FilterFault};
pub use headers::{Cookies, HeaderRules};
pub use id::{EventId, EventIds};
pub use kind::{Family, Kind};
pub use kinds::{HTTP_REQUEST_COMPLETE, TCP_CONNECTION_CLOSED};
pub use log_filter::{LogFilter, Logged};
pub use record::Record;
pub use retained::Retained;
pub use selection::Selection;
