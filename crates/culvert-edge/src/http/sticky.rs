//! Keeps a client at one of several upstreams, by a cookie of the edge.
//!
//! The cookie is no credential: it only chooses among upstreams that may serve the client anyway. Its value can only be made
//! by this installation, so no client chooses an upstream that it was not given by chance.

use culvert_policy::own_cookies::{EdgeCookies, HOST_PREFIX};
use http::HeaderValue;

use crate::connection::downstream::Downstream;
use crate::http::exchange::HttpExchange;
use crate::http::plain_head::OutgoingHead;
use crate::pools::TargetSet;

/// What comes before the name of the cookie without TLS. Browsers take the other prefix only over TLS.
const PREFIX_WITHOUT_TLS: &str = "culvert.";

/// The upstream that served the client before, if the list says so and that one gets traffic.
pub(super) fn kept(
    targets: &TargetSet,
    down: &Downstream,
    head: &OutgoingHead<'_>,
) -> Option<usize> {
    let sticky = targets.list().sticky.as_ref()?;
    // Plain requests are not for endpoints with this.
    let OutgoingHead::Parts(parts) = head else {
        return None;
    };
    let cookies: &EdgeCookies = parts.extensions.get()?;
    let name = name(&sticky.cookie, down.conn.info.tls.get().is_some());
    targets.kept(cookies.values(&name), &down.edge.state.meters)
}

/// The response will tell the client to stay at the upstream at this position.
pub(super) fn keep(targets: &TargetSet, exchange: &mut HttpExchange, index: usize) {
    // A policy's own request has no browser.
    let Some(sticky) = targets
        .list()
        .sticky
        .as_ref()
        .filter(|_| !exchange.is_call())
    else {
        return;
    };
    let Some(token) = sticky.tokens.get(index) else {
        return;
    };
    let is_tls = exchange.down().conn.info.tls.get().is_some();
    let name = name(&sticky.cookie, is_tls);
    let secure = if is_tls { "; Secure" } else { "" };
    let line = format!("{name}={token}; Path=/; HttpOnly; SameSite=Lax{secure}");
    exchange.sticky_cookie = HeaderValue::try_from(line).ok().map(|mut line| {
        line.set_sensitive(true);
        Box::new(line)
    });
}

fn name(cookie: &str, is_tls: bool) -> String {
    let prefix = if is_tls {
        HOST_PREFIX
    } else {
        PREFIX_WITHOUT_TLS
    };
    [prefix, cookie].concat()
}
