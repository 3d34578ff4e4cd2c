//! How an endpoint is spoken to.

/// How an endpoint is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP in clear, found by host.
    Http,
    /// HTTP over TLS that ends here, found by host.
    Https,
    /// Raw TCP on a dedicated port.
    Tcp,
    /// TLS that passes through, found by the name in its first bytes.
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
