//! Internal errors for the log.

use std::error::Error;
use std::fmt;

/// An internal error: the operation that failed, and the chain of causes. The log contains the whole chain. The
/// caller of an API gets one sentence without the causes.
#[derive(Debug)]
pub struct Fault {
    doing: String,
    cause: Option<Box<dyn Error + Send + Sync>>,
    passes: bool,
}

impl Fault {
    /// `doing` names the operation as a gerund in lower case: `"reading a document"`.
    pub fn new(doing: impl Into<String>, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            doing: doing.into(),
            cause: Some(cause.into()),
            passes: false,
        }
    }

    /// An error without a cause.
    pub fn bare(doing: impl Into<String>) -> Self {
        Self {
            doing: doing.into(),
            cause: None,
            passes: false,
        }
    }

    /// The same fault, marked as temporary: something outside of the process is away, and the operation may succeed later.
    pub fn passing(mut self) -> Self {
        self.passes = true;
        self
    }

    /// Whether it, or the fault that caused it, is temporary.
    pub fn is_passing(&self) -> bool {
        let cause = self.cause.as_deref().and_then(|cause| cause.downcast_ref());
        self.passes || cause.is_some_and(Self::is_passing)
    }

    /// The same fault for another caller, with its causes as text.
    pub fn copy(&self) -> Self {
        Self {
            doing: self.doing.clone(),
            cause: self.source().map(|cause| chain(cause).into()),
            passes: self.is_passing(),
        }
    }

    /// The operation that failed, without causes.
    pub fn doing(&self) -> &str {
        &self.doing
    }

    /// The operation and all causes, joined by `: `, for one log line.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// An error and its causes, joined by `: `. Omits a cause that the message before it already contains.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        next = cause.source();
    }
    text
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.doing)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause
            .as_deref()
            .map(|cause| cause as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Repeats(Fault);

    impl fmt::Display for Repeats {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the database answered: {}", self.0)
        }
    }

    impl Error for Repeats {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_that_a_message_repeats_is_printed_once() {
        let refused = || Fault::new("connecting to 127.0.0.1:1", "connection refused");
        let plain = Fault::new("opening the store", refused());
        assert_eq!(
            plain.chain(),
            "opening the store: connecting to 127.0.0.1:1: connection refused"
        );
        let repeats = Fault::new("opening the store", Repeats(refused()));
        assert_eq!(
            repeats.chain(),
            "opening the store: the database answered: connecting to 127.0.0.1:1: connection refused"
        );
    }
}
