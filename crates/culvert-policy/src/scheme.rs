//! The schemes of endpoints.

/// The scheme of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP without TLS. The endpoint is selected by the host.
    Http,
    /// HTTP over TLS, which the edge terminates. The endpoint is selected by the host.
    Https,
    /// Raw TCP on a dedicated port.
    Tcp,
    /// TLS that is passed through. The endpoint is selected by the SNI.
    Tls,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Self; 4] = [Self::Http, Self::Https, Self::Tcp, Self::Tls];

    /// The scheme as in a URL, without `://`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }

    /// The port of an address without one.
    pub fn port(self) -> Option<u16> {
        match self {
            Self::Http => Some(80),
            Self::Https | Self::Tls => Some(443),
            Self::Tcp => None,
        }
    }

    /// Whether the edge speaks HTTP at such an endpoint.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }
}
