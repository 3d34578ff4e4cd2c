//! Failures of deliveries: their class, which decides the retry schedule, and a text without secrets.

use std::error::Error;
use std::fmt;

use culvert_base::RetryAfter;

/// The class of a failure; decides the retry schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureClass {
    /// Transient: timeouts, resets, 5xx, throttling, names that do not resolve.
    Retryable,
    /// The credentials were rejected.
    Auth,
    /// The configured resource does not exist or must not be reached.
    Config,
    /// The batch is too large for the destination.
    Split,
    /// The content was rejected, and a repetition would be rejected too.
    Permanent,
    /// The request was sent but no response arrived: it may have been accepted.
    Unknown,
    /// The destination no longer exists; nothing is sent until it is edited.
    Gone,
}

impl FailureClass {
    /// Every class, for meters.
    pub const ALL: &'static [Self] = &[
        Self::Retryable,
        Self::Auth,
        Self::Config,
        Self::Split,
        Self::Permanent,
        Self::Unknown,
        Self::Gone,
    ];

    /// Its name in metrics, health and dead letters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Auth => "auth",
            Self::Config => "config",
            Self::Split => "split",
            Self::Permanent => "permanent",
            Self::Unknown => "unknown",
            Self::Gone => "gone",
        }
    }

    /// Whether the error needs action: slow schedule, destination unhealthy.
    pub const fn needs_a_hand(self) -> bool {
        matches!(self, Self::Auth | Self::Config | Self::Gone)
    }
}

/// A failed send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class, which decides the reaction.
    pub class: FailureClass,
    /// The destination's error code: an HTTP status or a short word of at most 64 ASCII letters, digits and `._:-`.
    pub code: String,
    /// The HTTP status of the response, or of the event if it has its own.
    pub status: Option<u16>,
    /// One sentence for users, without secrets. At most 200 characters.
    pub text: String,
    /// The wait before the next attempt that the destination asks for.
    pub after: Option<RetryAfter>,
}

/// Maximum number of bytes of a failure's code.
const CODE_BYTES_MAX: usize = 64;
/// Bytes of the shortest text that is treated as a secret.
const SECRET_MIN: usize = 4;
/// Maximum number of characters of a failure's text.
pub const FAILURE_TEXT_MAX: usize = 200;

impl Failure {
    /// A failure. `code` and `text` are shown to everyone who sees the destination. A code that is none is replaced by the
    /// name of the class.
    pub fn new(class: FailureClass, code: impl Into<String>, text: impl AsRef<str>) -> Self {
        let code = code.into();
        Self {
            class,
            code: match is_code(&code) {
                true => code,
                false => class.name().to_owned(),
            },
            status: None,
            text: scrub(text.as_ref(), &[]),
            after: None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.class.name(), self.code, self.text)
    }
}

/// Whether a text can be shown as an error code.
fn is_code(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=CODE_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// The error code that a receiver wrote. `None` if it cannot be shown: it is no code, or has a secret.
pub fn vendor_code(code: &str, secrets: &[&str]) -> Option<String> {
    let has_secret = |secret: &&str| secret.len() >= SECRET_MIN && without(code, secret) != code;
    let can_be_shown = is_code(code) && !secrets.iter().any(has_secret);
    can_be_shown.then(|| code.to_owned())
}

/// Prepares foreign text for display: removes secrets and URL queries, replaces control characters, and truncates to
/// [`FAILURE_TEXT_MAX`] characters.
pub fn scrub(text: &str, secrets: &[&str]) -> String {
    // Truncated at the end, so a secret across the limit is found; bounded first, against very long text.
    let mut clean: String = text.chars().take(8 * FAILURE_TEXT_MAX).collect();
    for secret in secrets.iter().filter(|secret| secret.len() >= SECRET_MIN) {
        clean = without(&clean, secret);
    }
    let mut shown = String::new();
    let mut in_url = false;
    let mut in_query = false;
    for (at, c) in clean.char_indices() {
        if clean[at..].starts_with("://") {
            in_url = true;
        }
        if c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | ')') {
            (in_url, in_query) = (false, false);
        }
        if in_url && c == '?' {
            in_query = true;
        }
        if !in_query {
            shown.push(if c.is_control() { ' ' } else { c });
        }
    }
    shown.trim().chars().take(FAILURE_TEXT_MAX).collect()
}

/// Text in which a secret is replaced, in any case of its ASCII letters.
fn without(text: &str, secret: &str) -> String {
    let (lower, secret) = (text.to_ascii_lowercase(), secret.to_ascii_lowercase());
    let mut clean = String::new();
    let mut after = 0;
    for (at, found) in lower.match_indices(&secret) {
        clean.push_str(&text[after..at]);
        clean.push_str("[redacted]");
        after = at + found.len();
    }
    clean.push_str(&text[after..]);
    clean
}

/// An error and its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
