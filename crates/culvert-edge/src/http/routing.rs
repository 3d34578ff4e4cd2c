//! Routing: the endpoint that a request is for, by its host.

use std::sync::Arc;

use bytes::Bytes;
use culvert_http::authority::{Authority, ReceivedAuthority};
use culvert_http::target::{self, Received};
use culvert_policy::conn::TlsInfo;
use culvert_policy::problem::Problem;
use culvert_policy::reply;
use http::header::{HOST, HeaderValue, LOCATION};
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, request};

use crate::connection::downstream::{Bound, Downstream};
use crate::http::exchange::HttpExchange;
use crate::http::fields;
use crate::recording::recorded;
use crate::snapshot::group::{Group, Member};
use crate::snapshot::live::Live;

/// The result of routing a request by its host.
pub(super) enum Route {
    /// An endpoint, and the authority as a header value.
    Endpoint(Arc<Member>, HeaderValue),
    /// A response of the edge, such as a redirect to the https endpoint.
    Respond(Response<Bytes>),
}

/// Finds the endpoint of a request. With a configuration that is too old there is none: the host may have another
/// owner, or exist only since.
pub(super) fn route(
    exchange: &mut HttpExchange,
    parts: &mut request::Parts,
) -> Result<Route, Problem> {
    let down = Arc::clone(exchange.down());
    match find(exchange, parts) {
        Ok(_) | Err(Problem::UnknownHost) if down.edge.refuses_outdated() => Err(Problem::Outdated),
        found => found,
    }
}

/// Finds the endpoint of a request in the current configuration.
fn find(exchange: &mut HttpExchange, parts: &mut request::Parts) -> Result<Route, Problem> {
    let down = Arc::clone(exchange.down());
    let down = &*down;
    merge_slashes(down, parts)?;
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Problem::Authority);
    }
    let authority = Authority::of(&parts.uri, host).map_err(|_| Problem::Authority)?;
    let live = down.edge.live.load();
    // A Kubernetes operator has said which endpoint the connection is for.
    if let Some(bound) = down.bound.get() {
        return bound_route(exchange, parts, &authority, bound, &live);
    }
    let tls = down.conn.info.tls.get();
    let (table, scheme) = if tls.is_some() {
        (&live.https, "https")
    } else {
        (&live.http, "http")
    };
    // An absolute target must not name another scheme than the connection has (RFC 9110 7.4).
    if parts.uri.scheme_str().is_some_and(|named| named != scheme) {
        return Err(Problem::malformed(
            "the scheme is not that of the connection",
        ));
    }
    let Some(group) = table.find(&authority.host) else {
        if down.conn.rules.redirect_http
            && tls.is_none()
            && let Some(group) = live.https.find(&authority.host)
            && !is_tls_elsewhere(down, parts)
        {
            exchange.attribute(group, recorded(parts), &authority);
            exchange.served_by(group.first());
            admitted(exchange, group)?;
            return redirect(group, &authority.host, parts).map(Route::Respond);
        }
        down.edge.state.meters.unknown_hosts.up();
        return Err(Problem::UnknownHost);
    };
    if let Some(tls) = tls
        && down.conn.info.sni() != authority.host
        && !shares_rules(down, tls, group, &live, &authority.host)
    {
        // The event belongs to the endpoint of the server name for which TLS was terminated.
        if let Some(own) = down.tls_group.get() {
            exchange.attribute(own, recorded(parts), &authority);
            exchange.served_by(own.first());
        }
        return Err(Problem::Misdirected);
    }
    exchange.attribute(group, recorded(parts), &authority);
    if let Err(refused) = admitted(exchange, group) {
        // None is picked, so the event names the first.
        exchange.served_by(group.first());
        return Err(refused);
    }
    // A path of the edge belongs to the endpoint whose policy handles it, and not to the next one in turn.
    let member = match group.edge_path_member(parts.uri.path()) {
        Some(member) => Arc::clone(member),
        None => Arc::clone(down.pick(group)),
    };
    exchange.served_by(&member);
    Ok(Route::Endpoint(member, host_value(host, &authority)?))
}

/// Rejects a request whose client the IP restriction of its endpoints does not admit, and records that.
fn admitted(exchange: &mut HttpExchange, group: &Group) -> Result<(), Problem> {
    if group.admits(exchange.down().conn.info.client.ip()) {
        return Ok(());
    }
    exchange.recording.blocked();
    Err(Problem::Restricted)
}

/// The authority of a request, in normal form, as a header value.
fn host_value(
    host: Option<&HeaderValue>,
    authority: &Authority<'_>,
) -> Result<HeaderValue, Problem> {
    match (host, authority.normal()) {
        (Some(value), normal) if value.as_bytes() == normal.as_bytes() => Ok(value.clone()),
        (_, normal) => HeaderValue::from_str(&normal).map_err(|_| Problem::Authority),
    }
}

/// Leaves one place that names the host of a routed request, with the authority in normal form. Policies judge it, and
/// the upstream gets it. How the client spelled it stays in an extension.
pub(super) fn set_authority(parts: &mut request::Parts, authority: &HeaderValue) {
    let field = parts.headers.get(HOST).map(HeaderValue::as_bytes);
    let received = match parts.uri.authority() {
        Some(target) => Some(target.as_str().as_bytes()),
        None => field,
    };
    if let Some(received) = received
        && received != authority.as_bytes()
        && let Ok(text) = std::str::from_utf8(received)
    {
        let received = ReceivedAuthority::new(text);
        parts.extensions.insert(received);
    }
    if field != Some(authority.as_bytes()) {
        parts.headers.insert(HOST, authority.clone());
    }
    if parts.uri.authority().is_some() {
        let local = parts.uri.path_and_query().cloned();
        let local = local.unwrap_or_else(|| PathAndQuery::from_static("/"));
        parts.uri = local.into();
    }
}

/// The route of a request that comes through a Kubernetes operator. The connection names the endpoint; in a cluster
/// its host has several names.
fn bound_route(
    exchange: &mut HttpExchange,
    parts: &request::Parts,
    authority: &Authority<'_>,
    bound: &Bound,
    live: &Live,
) -> Result<Route, Problem> {
    let down = Arc::clone(exchange.down());
    if parts.uri.scheme_str().is_some_and(|named| named != "http") {
        return Err(Problem::malformed(
            "the scheme is not that of the connection",
        ));
    }
    let Some((group, member)) = bound.find(live, down.edge.agents(), parts.uri.path()) else {
        return Err(Problem::UnknownHost);
    };
    exchange.attribute(group, recorded(parts), authority);
    exchange.served_by(member);
    admitted(exchange, group)?;
    let value = host_value(parts.headers.get(HOST), authority)?;
    Ok(Route::Endpoint(Arc::clone(member), value))
}

/// Whether a connection to one name may carry requests for another: both have the same account and
/// certificate, and no policy of the other name has rules about connections.
fn shares_rules(down: &Downstream, tls: &TlsInfo, group: &Group, live: &Live, host: &str) -> bool {
    down.tls_group
        .get()
        .is_none_or(|own| own.account() == group.account())
        && down
            .edge
            .certificate(live, host)
            .is_some_and(|presented| Arc::ptr_eq(&presented, &tls.certificate))
        // The connection has not passed the connection rules of the other name.
        && !group.judges_connections()
}

/// Redirects a plain HTTP request to the https endpoint of its host (RFC 9110 15.4.2 and 15.4.9), at its
/// public port.
fn redirect(group: &Group, host: &str, parts: &request::Parts) -> Result<Response<Bytes>, Problem> {
    let port = match group.first().endpoint.port {
        0 | 443 => String::new(),
        port => format!(":{port}"),
    };
    let target = parts.uri.path_and_query();
    let target = target.map_or("/", |target| target.as_str());
    let target = if target == "*" { "/" } else { target };
    let location = HeaderValue::try_from(format!("https://{host}{port}{target}"));
    // Old clients know 301; a request with a body must not become a GET.
    let status = match parts.method {
        Method::GET | Method::HEAD => StatusCode::MOVED_PERMANENTLY,
        _ => StatusCode::PERMANENT_REDIRECT,
    };
    let mut answer = reply::empty(status);
    let location = location.map_err(|_| Problem::Malformed)?;
    answer.headers_mut().insert(LOCATION, location);
    Ok(answer)
}

/// Whether a trusted proxy says that its client uses TLS. A redirect would loop.
fn is_tls_elsewhere(down: &Downstream, parts: &request::Parts) -> bool {
    let proto = parts.headers.get(fields::X_FORWARDED_PROTO);
    down.conn.info.is_trusted
        && proto.is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"))
}

/// Removes empty segments from the path of a request, unless its endpoint keeps them.
fn merge_slashes(down: &Downstream, parts: &mut request::Parts) -> Result<(), Problem> {
    // Only the path of a target that was normalised can have empty segments.
    if parts.extensions.get::<Received>().is_none() {
        return Ok(());
    }
    let live = down.edge.live.load();
    let group = match down.bound.get() {
        Some(bound) => live.kubernetes(&bound.account, &bound.host, bound.port),
        None => {
            let authority = Authority::of(&parts.uri, parts.headers.get(HOST));
            // A plain request may be redirected to the https endpoint of its host, with this path.
            let tables = match down.conn.info.tls.get() {
                Some(_) => [&live.https, &live.https],
                None => [&live.http, &live.https],
            };
            authority.ok().and_then(|authority| {
                let mut tables = tables.into_iter();
                tables.find_map(|table| table.find(&authority.host))
            })
        }
    };
    if group.is_some_and(|group| !group.merges_slashes()) {
        return Ok(());
    }
    let Some(local) = parts.uri.path_and_query() else {
        return Ok(());
    };
    let merged = target::merge_slashes(local);
    let merged = merged.and_then(|merged| {
        let uri = merged.map(|merged| target::with_path(&parts.uri, merged));
        uri.transpose()
    });
    match merged {
        Ok(None) => Ok(()),
        Ok(Some(uri)) => {
            parts.uri = uri;
            Ok(())
        }
        Err(what) => {
            down.edge.state.meters.requests_refused.up();
            Err(Problem::malformed(what))
        }
    }
}
