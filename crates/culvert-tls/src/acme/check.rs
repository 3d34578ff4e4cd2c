//! What a certificate from an authority needs, as findings, each with its evidence.

use std::fmt;

use culvert_base::BoxFuture;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// In order.
    Ok,
    /// Something may not work as intended.
    Warn,
    /// Something does not work.
    Fail,
}

impl Level {
    /// The names of all levels.
    pub const NAMES: [&'static str; 3] = ["ok", "warn", "fail"];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Whether the name leads to this installation.
    Name,
    /// Whether the server reaches the authority.
    Authority,
    /// Whether TXT records can be written, and whether the name's alias for them exists.
    DnsProvider,
    /// Whether the public ports are those that authorities connect to.
    Ports,
    /// What the authority said when it last connected to the name.
    Validation,
}

impl Check {
    /// The names of all checks.
    pub const NAMES: [&'static str; 5] =
        ["name", "ports", "authority", "dns_provider", "validation"];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Ports => "ports",
            Self::Authority => "authority",
            Self::DnsProvider => "dns_provider",
            Self::Validation => "validation",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was checked.
    pub check: Check,
    /// How serious it is.
    pub level: Level,
    /// One clause without a full stop.
    pub text: String,
    /// What was seen: addresses, a status, the message of another party.
    pub evidence: Vec<String>,
    /// What to do; `None` if it is in order.
    pub mend: Option<String>,
}

impl Finding {
    /// In order.
    pub fn ok(check: Check, text: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Ok,
            text: text.into(),
            evidence: Vec::new(),
            mend: None,
        }
    }

    /// Something may not work as intended.
    pub fn warn(check: Check, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            mend: Some(mend.into()),
            ..Self::ok(check, text)
        }
    }

    /// Something does not work.
    pub fn fail(check: Check, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            level: Level::Fail,
            ..Self::warn(check, text, mend)
        }
    }

    /// The same with what was seen.
    #[must_use]
    pub fn with(mut self, evidence: impl IntoIterator<Item = String>) -> Self {
        self.evidence.extend(evidence);
        self
    }
}

/// A name whose certificate is checked.
#[derive(Clone, Copy, Debug)]
pub struct CheckedName<'a> {
    /// The name, which may be a wildcard.
    pub name: &'a str,
    /// The name below the installation's domain that the owner makes it an alias of, if it has one.
    pub target: Option<&'a str>,
    /// The name of the records for challenges that the owner makes an alias, if it has one.
    pub challenge_target: Option<&'a str>,
    /// Whether its certificate comes from an authority.
    pub is_managed: bool,
    /// Whether the caller operates the installation: others see no private addresses, and not what a DNS provider says.
    pub by_operator: bool,
}

/// Checks names.
pub trait Checks: Send + Sync + fmt::Debug {
    /// Checks everything but [`Check::Validation`]. It looks names up, and connects to the authority and the DNS provider
    /// of the settings. It never connects to what a name resolves to.
    fn check<'a>(&'a self, name: CheckedName<'a>) -> BoxFuture<'a, Vec<Finding>>;
}
