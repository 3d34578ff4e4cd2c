//! Why a record was not written.

use std::fmt;

use culvert_base::RetryAfter;

/// Why a record was not written, with the provider's message. Contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsError {
    why: String,
    retry_after: Option<RetryAfter>,
}

impl DnsError {
    /// Maximum length, in characters: other parties send parts of it.
    const CHARS_MAX: usize = 600;

    pub(crate) fn new(why: impl fmt::Display) -> Self {
        let why = why.to_string();
        let plain = why.chars().filter(|c| !c.is_control());
        Self {
            why: plain.take(Self::CHARS_MAX).collect(),
            retry_after: None,
        }
    }

    /// The same with the wait that the provider requested.
    pub(crate) fn with_retry_after(self, retry_after: Option<RetryAfter>) -> Self {
        Self {
            retry_after,
            ..self
        }
    }

    /// The wait before the next attempt that the provider requested.
    pub fn retry_after(&self) -> Option<RetryAfter> {
        self.retry_after
    }

    /// The same with what was being done.
    pub(crate) fn about(&self, what: &str) -> Self {
        Self::new(format_args!("{what}: {}", self.why)).with_retry_after(self.retry_after)
    }
}

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for DnsError {}
