//! Why a record was not written.

use std::fmt;

/// Why a record was not written, with the provider's message. Contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsError(String);

impl DnsError {
    /// Maximum length, in characters: other parties send parts of it.
    const CHARS_MAX: usize = 600;

    pub(crate) fn new(why: impl fmt::Display) -> Self {
        let why = why.to_string();
        let plain = why.chars().filter(|c| !c.is_control());
        Self(plain.take(Self::CHARS_MAX).collect())
    }

    /// The same with what was being done.
    pub(crate) fn about(&self, what: &str) -> Self {
        Self::new(format_args!("{what}: {}", self.0))
    }
}

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DnsError {}
