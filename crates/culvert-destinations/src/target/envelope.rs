//! Fields of event envelopes that targets read.

use serde::Deserialize;

use culvert_base::Timestamp;

/// The time of an event.
pub(crate) fn event_time(envelope: &[u8]) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Stamped<'a> {
        event_timestamp: &'a str,
    }
    let stamped: Stamped<'_> = serde_json::from_slice(envelope).ok()?;
    Timestamp::parse(stamped.event_timestamp)
}

/// The type of an event, if it is valid in names of topics and subjects.
pub(crate) fn event_type(envelope: &[u8]) -> Option<&str> {
    #[derive(Deserialize)]
    struct Typed<'a> {
        event_type: &'a str,
    }
    let typed: Typed<'_> = serde_json::from_slice(envelope).ok()?;
    let kind = typed.event_type;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (!kind.is_empty()
        && kind.bytes().all(is_name)
        && kind.split('.').all(|token| !token.is_empty()))
    .then_some(kind)
}
