//! An ACME client (RFC 8555) for certificate authorities, which performs single steps of an order.
//!
//! The caller stores orders and decides about the next step and retries. This module keeps no orders.

mod answers;
pub mod check;
mod client;
mod hook;
mod https;

use std::fmt;
use std::time::Duration;

pub use answers::{ChallengeAnswers, PreparedChallenges};
pub use client::{Acme, AcmeSettings, ExternalAccount};
use culvert_base::net::HostName;
use culvert_base::{RetryAfter, Timestamp};
pub use hook::DnsHook;
pub use https::{Cause, Fetch};

/// A way to prove control of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChallengeKind {
    /// A file over plain HTTP (RFC 8555 8.3).
    Http01,
    /// A certificate over TLS (RFC 8737).
    TlsAlpn01,
    /// A TXT record (RFC 8555 8.4).
    Dns01,
}

impl ChallengeKind {
    /// All types, with their names in ACME.
    pub const NAMED: [(Self, &'static str); 3] = [
        (Self::Http01, "http-01"),
        (Self::TlsAlpn01, "tls-alpn-01"),
        (Self::Dns01, "dns-01"),
    ];

    /// The name in ACME.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Dns01 => "dns-01",
        }
    }

    /// Parses the name in ACME.
    pub fn parse(name: &str) -> Option<Self> {
        let mut named = Self::NAMED.into_iter();
        named.find_map(|(kind, known)| (known == name).then_some(kind))
    }
}

/// A challenge of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The type of the challenge.
    pub kind: ChallengeKind,
    /// The name, without the star of a wildcard.
    pub host: HostName,
    /// The token from the authority.
    pub token: String,
    /// The key authorization: the token and the account's thumbprint.
    pub answer: String,
}

/// The state of an order.
#[derive(Debug)]
pub enum OrderState {
    /// The authority requires one of these challenges. If the list is empty, it has validated the names but not
    /// updated the order yet.
    Pending(Vec<Challenge>),
    /// The authority waits for the certificate request.
    Ready,
    /// The authority is issuing the certificate.
    Processing,
    /// The certificate is available.
    Valid,
    /// The order has failed.
    Failed(Failure),
}

/// An order at the authority.
#[derive(Debug)]
pub struct Order {
    /// The URL of the order.
    pub url: String,
    /// The state of the order.
    pub state: OrderState,
    /// The wait before the next look that the authority requested.
    pub retry_after: Option<RetryAfter>,
}

/// When an authority suggests to renew a certificate (RFC 9773).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalWindow {
    /// The start of the window.
    pub start: Timestamp,
    /// The end of the window.
    pub end: Timestamp,
    /// How long the suggestion is valid.
    pub ask_after: Duration,
}

/// Who can correct a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The owner of the name: its DNS does not point to this installation, or it does not permit this authority.
    Name,
    /// A temporary failure, on either side, which needs no correction.
    Passing,
    /// The order no longer exists, or belongs to another account.
    Gone,
}

/// Why a step failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Who can correct it.
    pub blame: Blame,
    /// A sentence without a full stop.
    pub why: String,
    /// The wait before the next attempt that the other party requested.
    pub retry_after: Option<RetryAfter>,
}

impl Failure {
    /// Maximum length of another party's message, in characters.
    const WHY_MAX: usize = 400;

    /// A temporary failure.
    pub fn passing(why: impl fmt::Display) -> Self {
        Self::of(Blame::Passing, why)
    }

    fn of(blame: Blame, why: impl fmt::Display) -> Self {
        // Users see messages of other parties, so removes control characters and limits the length.
        let why = why.to_string();
        let why = why.chars().filter(|c| !c.is_control());
        Self {
            blame,
            why: why.take(Self::WHY_MAX).collect(),
            retry_after: None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Failure {}
