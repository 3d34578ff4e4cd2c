//! The text in place of a secret.

/// The placeholder of a secret.
pub const REDACTED: &str = "[redacted]";
