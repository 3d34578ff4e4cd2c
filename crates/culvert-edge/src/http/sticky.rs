//! Keeps a client at one of several upstreams, by a cookie of the edge.
//!
//! The cookie is no credential: it only chooses among upstreams that may serve the client anyway. Its value can only be made
//! by this installation, so no client chooses an upstream that it was not given by chance.

use culvert_edge_config::Sticky;
use culvert_policy::own_cookies::{EdgeCookies, HOST_PREFIX};
use http::{Extensions, HeaderValue};

/// What comes before the name of the cookie without TLS. Browsers take the other prefix only over TLS.
const PREFIX_WITHOUT_TLS: &str = "culvert.";

/// The position of the upstream that served the client of a request before, by one of its cookies.
pub(super) fn position(sticky: &Sticky, request: &Extensions, is_tls: bool) -> Option<usize> {
    let cookies: &EdgeCookies = request.get()?;
    let name = name(&sticky.cookie, is_tls);
    let mut tokens = cookies.values(&name);
    tokens.find_map(|token| sticky.position(token))
}

/// The cookie that tells a client to stay at the upstream at this position.
pub(super) fn cookie(sticky: &Sticky, position: usize, is_tls: bool) -> Option<Box<HeaderValue>> {
    let token = sticky.tokens.get(position)?;
    let name = name(&sticky.cookie, is_tls);
    let secure = if is_tls { "; Secure" } else { "" };
    let line = format!("{name}={token}; Path=/; HttpOnly; SameSite=Lax{secure}");
    let mut line = HeaderValue::try_from(line).ok()?;
    line.set_sensitive(true);
    Some(Box::new(line))
}

fn name(cookie: &str, is_tls: bool) -> String {
    let prefix = if is_tls {
        HOST_PREFIX
    } else {
        PREFIX_WITHOUT_TLS
    };
    [prefix, cookie].concat()
}
