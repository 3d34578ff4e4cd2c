//! Why the edge refused traffic, or why it and not an upstream made a response with status 502, 503 or 504.

/// Reasons: the name in code, the text in events, and what it means.
macro_rules! reasons {
    ($($name:ident $text:literal $doc:literal;)*) => {
        /// Why the edge refused traffic or an upstream failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $doc] $name,)*
        }

        impl Reason {
            /// All reasons. Those of refused traffic come first.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// All names, and the empty text of events without a reason, sorted.
            pub const VALUES: &'static [&'static str] = &sorted(["", $($text,)*]);

            /// Its name in events, statistics and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// What it means, as a sentence.
            pub const fn doc(self) -> &'static str {
                match self {
                    $(Self::$name => $doc,)*
                }
            }
        }
    };
}

reasons! {
    Malformed "malformed" "The request is not valid HTTP, or is ambiguous.";
    TargetTooLong "target_too_long" "The request line is too long (414).";
    HeadTooLarge "head_too_large" "The header fields are too large or too many (431).";
    Method "method_not_supported" "The method is not supported (405).";
    TooSlow "too_slow" "The request did not arrive in time (408).";
    BadHost "bad_host" "The request names no host, more than one, or an invalid one.";
    Misdirected "misdirected" "The connection was established for another host (421).";
    UnknownHost "unknown_host" "No endpoint has the host.";
    Expectation "expectation_failed" "The request has an expectation other than `100-continue` (417).";
    Upgrade "upgrade_invalid" "The WebSocket handshake is invalid.";
    Overloaded "overloaded" "The edge is overloaded.";
    Outdated "outdated" "The configuration of the edge is too old.";
    HandshakeFailed "handshake_failed" "The TLS handshake failed: no common version or cipher suite, no acceptable client certificate, or the client rejected the certificate.";
    HandshakeTimeout "handshake_timeout" "The TLS handshake took too long.";
    NoCertificate "no_certificate" "There is no certificate for the endpoint.";
    UnknownName "unknown_name" "The TLS client named no host, or one without a certificate.";
    NotTls "not_tls" "The first bytes of the connection are not TLS.";
    Http2Error "http2_error" "The client violated the protocol of HTTP/2.";
    Http2Flood "http2_flood" "The client sent too many HTTP/2 frames without progress, or reset too many streams.";
    ProxyHeader "proxy_header" "The connection lacks a valid PROXY header.";
    ConnectionLimit "connection_limit" "Too many connections, of all clients or of this source, are open.";
    Restricted "restricted" "An IP restriction or a traffic policy blocks the address of the client.";
    BodyTooLong "body_too_long" "The body of the request is too long (413).";
    NoMemory "memory_limit" "The memory for buffered bodies or the limit of sign-ins is used up.";
    BreakerOpen "circuit_breaker_open" "The circuit breaker of the traffic policy is open.";
    PolicyCall "policy_call_failed" "A service that the traffic policy uses did not respond: of `http-request`, of keys for tokens, or the identity provider.";
    Policy "policy_failed" "The traffic policy cannot decide about the request, or an action failed.";
    NoInternal "internal_endpoint_unavailable" "The internal endpoint that the traffic policy forwards to is offline, forbidden, or part of a loop.";
    Maintenance "maintenance" "The endpoint is in maintenance.";
    NoUpstream "no_upstream" "The traffic policy did not respond, and the endpoint has no upstream.";
    NeedsDatabase "database_away" "The decision needs the database, which is away.";
    AgentAway "agent_away" "No agent serves the endpoint.";
    AgentBusy "agent_busy" "All agents of the endpoint have reached their connection limit.";
    AgentSilent "agent_silent" "The connections to the agents of the endpoint carry nothing.";
    NoAddress "upstream_no_address" "The name of the upstream has no address.";
    AddressForbidden "upstream_address_forbidden" "The address of the upstream is private or that of the edge, which the settings forbid.";
    LookupLimit "upstream_lookup_limit" "Too many host names are being looked up for the owner of the endpoint.";
    UpstreamFull "upstream_full" "The endpoint or its upstreams have reached their limit of requests in flight, and none ended in time.";
    ConnectFailed "upstream_connect_failed" "The network or the upstream refused the connection.";
    ConnectTimeout "upstream_connect_timeout" "Connecting to the upstream took too long.";
    ProxyFailed "upstream_proxy_failed" "The proxy on the way to the upstream made no connection.";
    UpstreamTls "upstream_tls_failed" "The TLS handshake with the upstream failed, for none of the four reasons that follow.";
    UpstreamDates "upstream_certificate_expired" "The certificate of the upstream has expired, or is not valid yet.";
    UpstreamIssuer "upstream_certificate_untrusted" "No authority that the endpoint trusts signed the certificate of the upstream.";
    UpstreamName "upstream_certificate_wrong_name" "The certificate of the upstream is for other names.";
    UpstreamPin "upstream_certificate_not_pinned" "The certificate of the upstream matches no pin of the endpoint.";
    Aborted "upstream_aborted" "The upstream closed the connection before the response was complete.";
    BadResponse "upstream_bad_response" "The response of the upstream is not valid HTTP.";
    ResponseTimeout "upstream_response_timeout" "The response of the upstream did not begin in time.";
    ResponseTooLong "upstream_response_too_long" "The body of the response is too long for the traffic policy.";
    Unsuited "upstream_unsuited" "The upstream does not support this kind of request.";
}

impl Reason {
    /// The reasons of refused traffic, which statistics count. The others are causes of responses, or decisions of the
    /// endpoint.
    pub const REFUSALS: usize = Self::ConnectionLimit as usize + 1;

    /// Its position among the reasons of refused traffic, if it is one.
    pub const fn refusal(self) -> Option<usize> {
        let position = self as usize;
        if position < Self::REFUSALS {
            Some(position)
        } else {
            None
        }
    }

    /// Whether it means that no upstream could be reached. Not whether an internal endpoint was: its name may be the client's.
    pub const fn is_unreached(self) -> bool {
        matches!(
            self,
            Self::NoUpstream
                | Self::AgentAway
                | Self::AgentSilent
                | Self::NoAddress
                | Self::AddressForbidden
                | Self::LookupLimit
                | Self::ConnectFailed
                | Self::ConnectTimeout
                | Self::ProxyFailed
                | Self::UpstreamTls
                | Self::UpstreamDates
                | Self::UpstreamIssuer
                | Self::UpstreamName
                | Self::UpstreamPin
        )
    }

    /// The reason with this position among [`Self::ALL`].
    pub fn at(position: usize) -> Option<Self> {
        Self::ALL.get(position).copied()
    }
}

/// The texts in the order of their bytes.
const fn sorted<const N: usize>(mut texts: [&'static str; N]) -> [&'static str; N] {
    let mut next = 1;
    while next < N {
        let mut at = next;
        while at > 0 && is_before(texts[at].as_bytes(), texts[at - 1].as_bytes()) {
            let text = texts[at];
            texts[at] = texts[at - 1];
            texts[at - 1] = text;
            at -= 1;
        }
        next += 1;
    }
    texts
}

const fn is_before(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() {
        if one[at] != other[at] {
            return one[at] < other[at];
        }
        at += 1;
    }
    one.len() < other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_name_and_position() {
        let mut names: Vec<&str> = Reason::VALUES.to_vec();
        assert_eq!(names.len(), Reason::ALL.len() + 1);
        assert!(names.is_sorted());
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len() + 1);
        for (position, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(Reason::at(position), Some(*reason));
            let is_refusal = position < Reason::REFUSALS;
            assert_eq!(reason.refusal(), is_refusal.then_some(position));
            assert!(reason.doc().ends_with('.'), "{reason:?}");
            let is_plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(reason.name().bytes().all(is_plain), "{reason:?}");
        }
        assert_eq!(Reason::at(Reason::ALL.len()), None);
    }
}
