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
        let mut text = self.doing.clone();
        let mut next = self.source();
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
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
