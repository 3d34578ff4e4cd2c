//! The findings of an examination.

use culvert_tls::acme::check::{self, Level};
use serde::{Serialize, Serializer};

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// What was examined: `data`, `key`, `copy`, `store`, `grants`, `policies`, `clock`, `listeners`, `dns`, `certificates`,
    /// `services`; of a URL `resolution`, `connection`, `tls`, `old_tls`, `http1.1`, `http1.0`, `http2`, `h2c`,
    /// `websocket`, `upgrade`, `h2c_upgrade`, `upload`.
    pub(super) area: &'static str,
    #[serde(serialize_with = "name_of")]
    pub(super) level: Level,
    /// One clause without a period.
    pub(super) text: String,
    /// What was seen: addresses, a status, the message of another party.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) evidence: Vec<String>,
    /// What to do, unless the level is [`Level::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
}

fn name_of<S: Serializer>(level: &Level, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(level.name())
}

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Report(pub(super) Vec<Finding>);

impl Report {
    pub(super) fn ok(&mut self, area: &'static str, text: impl Into<String>) {
        self.add(area, Level::Ok, text.into(), None);
    }

    pub(super) fn warn(
        &mut self,
        area: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(area, Level::Warn, text.into(), Some(mend.into()));
    }

    pub(super) fn fail(
        &mut self,
        area: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(area, Level::Fail, text.into(), Some(mend.into()));
    }

    fn add(&mut self, area: &'static str, level: Level, text: String, mend: Option<String>) {
        self.0.push(Finding {
            area,
            level,
            text,
            evidence: Vec::new(),
            mend,
        });
    }

    /// A finding of the checks that the server has too.
    pub(super) fn found(&mut self, area: &'static str, found: check::Finding) {
        self.0.push(Finding {
            area,
            level: found.level,
            text: found.text,
            evidence: found.evidence,
            mend: found.mend,
        });
    }

    pub(super) fn count(&self, level: Level) -> usize {
        let of_level = |finding: &&Finding| finding.level == level;
        self.0.iter().filter(of_level).count()
    }
}
