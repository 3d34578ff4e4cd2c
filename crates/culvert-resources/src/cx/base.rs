//! The installation's public addresses in views: the base URL of the API, and the public ports of the edge.

use std::borrow::Cow;
use std::fmt;

/// Ports that public URLs show (`edge.public_http_port`, `edge.public_https_port`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicPorts {
    /// Port of `http` endpoints.
    pub http: u16,
    /// Port of `https` and `tls` endpoints.
    pub https: u16,
}

impl Default for PublicPorts {
    /// The default ports, which URLs omit.
    fn default() -> Self {
        Self {
            http: 80,
            https: 443,
        }
    }
}

impl PublicPorts {
    /// The public URL of an endpoint. Internal and TCP endpoints keep their ports.
    pub fn shown<'a>(self, url: &'a str) -> Cow<'a, str> {
        let Some((scheme, authority)) = url.split_once("://") else {
            return url.into();
        };
        let (usual, port) = match scheme {
            "http" => (80, self.http),
            "https" | "tls" => (443, self.https),
            _ => return url.into(),
        };
        let host = authority
            .split_once(':')
            .map_or(authority, |(host, _)| host);
        if port == usual || host.ends_with(".internal") {
            return url.into();
        }
        format!("{scheme}://{host}:{port}").into()
    }
}

/// The context of views.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// Base of `uri` fields, without a trailing slash.
    pub uri: &'a str,
    /// Ports that URLs of endpoints show.
    pub ports: PublicPorts,
    /// Where Kubernetes operators connect that have no own `ingress_endpoint`.
    pub kubernetes_ingress: &'a str,
    /// The owner whose private fields are shown; `None` shows those of all owners.
    pub viewer: Option<&'a str>,
}

impl Base<'_> {
    /// Whether private fields of this owner's objects are shown.
    pub fn shows_fields_of(&self, owner_id: &str) -> bool {
        self.viewer.is_none_or(|viewer| viewer == owner_id)
    }
}

impl fmt::Display for Base<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_urls_have_the_public_ports() {
        let mapped = PublicPorts::default();
        let bound = PublicPorts {
            http: 8080,
            https: 8443,
        };
        for (url, shown) in [
            ("http://a.example", "http://a.example:8080"),
            ("https://*.a.example", "https://*.a.example:8443"),
            ("tls://a.example", "tls://a.example:8443"),
            ("tls://a.example:443", "tls://a.example:8443"),
            ("tcp://a.example:20000", "tcp://a.example:20000"),
            ("https://a.internal", "https://a.internal"),
            ("https://a.internal:9000", "https://a.internal:9000"),
            ("", ""),
        ] {
            assert_eq!(bound.shown(url), shown);
            assert_eq!(mapped.shown(url), url);
        }
    }
}
