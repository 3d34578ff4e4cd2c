//! What the log is told when something of ours failed.

use std::error::Error;
use std::fmt;

/// A failure of ours: what was being done, and the chain of causes. The caller of an API sees one
/// sentence without the causes; the log gets all of it.
#[derive(Debug)]
pub struct Fault {
    doing: String,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl Fault {
    /// `doing` reads after "while", lower case: `"reading a document"`.
    pub fn new(doing: impl Into<String>, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            doing: doing.into(),
            cause: Some(cause.into()),
        }
    }

    /// A failure without a cause below it.
    pub fn bare(doing: impl Into<String>) -> Self {
        Self {
            doing: doing.into(),
            cause: None,
        }
    }

    /// What was being done, without causes.
    pub fn doing(&self) -> &str {
        &self.doing
    }

    /// The whole chain, joined by `: `, for one log line.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// An error with its causes, joined by `: `. Libraries that repeat a cause in their own message have it
/// printed once.
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
