//! Patterns of texts in bodies, for their schemas. A pattern says what a text looks like; the server checks more, such as
//! bounds.

/// A time as RFC 3339 has it, or an empty text, which ends something.
pub const TIME_OR_EMPTY: &str =
    "^$|^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]{8,}([Zz]|[+-][0-9]{2}:[0-9]{2})$";

/// A duration in days, hours, minutes and seconds: `90s`, `1h30m`.
pub const DURATION: &str = "^([0-9]+[dhms])+$";

/// The same, or an empty text.
pub const DURATION_OR_EMPTY: &str = "^$|^([0-9]+[dhms])+$";

/// A network: an address of IPv4 or IPv6, and the length of its prefix.
pub const NETWORK: &str = "^[0-9A-Fa-f:.]+/[0-9]{1,3}$";

/// An RFC 3339 time, or the ID of an event.
pub const TIME_OR_EVENT: &str = "^([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].+|ev_[A-Za-z0-9]{1,64})$";

/// A text with at least one block in PEM.
pub const PEM: &str = "-----BEGIN [A-Z0-9 ]+-----";
