//! Certificates from an authority that speaks ACME (RFC 8555): the client that takes single steps of
//! an order.
//!
//! Which step is taken when, what of it is stored and when it is tried again is another's to decide;
//! nothing here remembers an order.

mod client;
mod hook;
mod https;

use std::fmt;
use std::time::Duration;

pub use client::{Acme, AcmeSettings};
use culvert_base::net::HostName;
pub use hook::DnsHook;
pub use https::{Cause, Fetch};

/// How a name is shown to be ours.
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
    /// Every kind, as authorities call it.
    pub const NAMED: [(Self, &'static str); 3] = [
        (Self::Http01, "http-01"),
        (Self::TlsAlpn01, "tls-alpn-01"),
        (Self::Dns01, "dns-01"),
    ];

    /// As authorities call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Dns01 => "dns-01",
        }
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<Self> {
        let mut named = Self::NAMED.into_iter();
        named.find_map(|(kind, known)| (known == name).then_some(kind))
    }
}

/// Something an authority looks for at a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Where and how it looks.
    pub kind: ChallengeKind,
    /// The name, without the star of a wildcard.
    pub host: HostName,
    /// What it asks for.
    pub token: String,
    /// What it wants to find there: the token and the account's thumbprint.
    pub answer: String,
}

/// How far an order is.
#[derive(Debug)]
pub enum OrderState {
    /// The authority wants one of these shown; with none, it has seen enough and has yet to say so.
    Pending(Vec<Challenge>),
    /// It waits for the request of the certificate.
    Ready,
    /// It makes the certificate.
    Processing,
    /// The certificate is there.
    Valid,
    /// Nothing will come of it.
    Failed(Failure),
}

/// An order as the authority has it.
#[derive(Debug)]
pub struct Order {
    /// Where it is looked at again.
    pub url: String,
    /// How far it is.
    pub state: OrderState,
}

/// Who can do something about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The owner of the name: its DNS does not point here, or does not allow this authority.
    Name,
    /// Nobody needs to: the authority was away, or we were.
    Passing,
    /// The order is not known any more, or belongs to another account.
    Gone,
}

/// Why a step was not taken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Who can do something about it.
    pub blame: Blame,
    /// A sentence without a full stop.
    pub why: String,
    /// How long the authority wants us to wait.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// Longest sentence of another that is passed on, in characters.
    const WHY_MAX: usize = 400;

    /// A failure that passes.
    pub fn passing(why: impl fmt::Display) -> Self {
        Self::of(Blame::Passing, why)
    }

    fn of(blame: Blame, why: impl fmt::Display) -> Self {
        // What others say is shown to users: one line, not too long.
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
