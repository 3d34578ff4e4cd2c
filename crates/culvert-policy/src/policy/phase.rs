//! When rules run.

use crate::scheme::Scheme;

/// When a rule runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Once per connection, before any handshake.
    Connect,
    /// Once per request, when its head is read.
    Request,
    /// Once per response, before it is sent.
    Response,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 3] = [Self::Connect, Self::Request, Self::Response];

    /// Its key in a policy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "on_tcp_connect",
            Self::Request => "on_http_request",
            Self::Response => "on_http_response",
        }
    }

    /// When it runs, for the reference.
    pub fn doc(self) -> &'static str {
        match self {
            Self::Connect => {
                "once per connection, before the TLS handshake; without TLS, before the first request"
            }
            Self::Request => "once per request, after its head arrived",
            Self::Response => "once per response of the upstream or the edge, before it is sent",
        }
    }

    pub(crate) fn is_of(self, scheme: Scheme) -> bool {
        self == Self::Connect || scheme.is_http()
    }
}

/// Whether an action ends its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Never.
    Never,
    /// If it rejects or redirects.
    Sometimes,
    /// Always: no action may follow it.
    Always,
}
