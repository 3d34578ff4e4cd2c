//! Routing: the endpoint that a request is for, by its host, and the one that a refused request names.
//!
//! The host of a refused request names the endpoint whose account gets the event, and nothing else: the connection is not
//! attributed by it, and nothing of the endpoint runs. With TLS it names one only if the connection may carry requests
//! for it; otherwise the server name of the connection does, and the event has neither the target nor the fields, which
//! are meant for another. A request without an endpoint is collected with those of its network
//! ([`refusals`](crate::recording::refusals)).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_events::Reason;
use culvert_http::authority::{Authority, ReceivedAuthority};
use culvert_http::http1::Violation;
use culvert_http::http2::Refused;
use culvert_http::refused_head::RefusedHead;
use culvert_http::target::{self, Received};
use culvert_policy::conn::TlsInfo;
use culvert_policy::problem::Problem;
use culvert_policy::{own_cookies, reply};
use culvert_statistics::UpstreamUse;
use http::header::{HOST, HeaderMap, HeaderValue, LOCATION, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, Version, request, response};
use tokio::time::Instant;

use crate::connection::downstream::Downstream;
use crate::http::exchange::HttpExchange;
use crate::http::fields;
use crate::recording::refusals::RefusedFacts;
use crate::recording::{Recording, recorded, recorded_with};
use crate::snapshot::group::{Group, Member};
use crate::snapshot::live_snapshot::LiveSnapshot;

/// The result of routing a request by its host.
pub(super) enum Route {
    /// An endpoint, and the authority as a header value.
    Endpoint(Arc<Member>, HeaderValue),
    /// A response of the edge, such as a redirect to the https endpoint.
    Respond(Response<Bytes>),
}

/// Finds the endpoint of a request, and attributes the exchange to it.
pub(super) fn route(
    exchange: &mut HttpExchange,
    parts: &mut request::Parts,
) -> Result<Route, Problem> {
    let down = Arc::clone(exchange.down());
    merge_slashes(&down, parts)?;
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Problem::Authority);
    }
    let authority =
        Authority::of(parts.version, &parts.uri, host).map_err(|_| Problem::Authority)?;
    let live = down.edge.live.load();
    let found = match find(&down, parts, &authority, &live) {
        // With a configuration that is too old there is no endpoint: the host may have another owner, or exist only since.
        Ok(_) | Err(Problem::UnknownHost) if down.edge.refuses_outdated() => {
            return Err(Problem::Outdated);
        }
        found => found?,
    };
    let (group, is_admitted) = (
        found.group(),
        found.group().admits(down.conn.info.client.ip()),
    );
    // None is picked for a client that is not admitted, so its event names the first.
    let member = match (&found, is_admitted) {
        (Found::Bound(_, member), _) => member,
        (Found::Group(group), true) => group
            .edge_path_member(parts.uri.path())
            .unwrap_or_else(|| down.pick(group)),
        _ => group.first(),
    };
    exchange.attribute(group, member, recorded(parts), &authority);
    exchange.passes(member);
    if !is_admitted {
        exchange.recording.blocked();
        return Err(Problem::Restricted);
    }
    match found {
        Found::Redirect(group) => redirect(group, &authority.host, parts).map(Route::Respond),
        Found::Group(_) | Found::Bound(..) => {
            let value = host_value(host, &authority)?;
            Ok(Route::Endpoint(Arc::clone(member), value))
        }
    }
}

/// The endpoints that a request is for, in one configuration.
enum Found<'l> {
    /// Those at its host.
    Group(&'l Arc<Group>),
    /// Those at its host, which only serve https.
    Redirect(&'l Arc<Group>),
    /// Those that a Kubernetes operator names, and the one of them that serves the request.
    Bound(&'l Arc<Group>, &'l Arc<Member>),
}

impl<'l> Found<'l> {
    fn group(&self) -> &'l Arc<Group> {
        match self {
            Self::Group(group) | Self::Redirect(group) | Self::Bound(group, _) => group,
        }
    }
}

/// Finds the endpoints that a request is for.
fn find<'l>(
    down: &Downstream,
    parts: &request::Parts,
    authority: &Authority<'_>,
    live: &'l LiveSnapshot,
) -> Result<Found<'l>, Problem> {
    let (tls, bound) = (down.conn.info.tls.get(), down.bound.get());
    let scheme = match (tls, bound) {
        // An operator has terminated TLS, if there was any.
        (Some(_), None) => "https",
        _ => "http",
    };
    // An absolute target must not name another scheme than the connection has (RFC 9110 7.4), or has before a trusted proxy.
    if let Some(named) = parts.uri.scheme_str()
        && named != scheme
        && !(named == "https" && is_tls_elsewhere(down, parts))
    {
        return Err(Problem::malformed(
            "the scheme is not that of the connection",
        ));
    }
    // The operator has said which endpoint the connection is for; in a cluster its host has several names.
    if let Some(bound) = bound {
        let found = bound.find(live, down.edge.agents(), parts.uri.path());
        let (group, member) = found.ok_or(Problem::UnknownHost)?;
        return Ok(Found::Bound(group, member));
    }
    let table = match tls {
        Some(_) => &live.https,
        None => &live.http,
    };
    let Some(group) = table.find(&authority.host) else {
        if down.conn.rules.redirect_http
            && tls.is_none()
            && let Some(group) = live.https.find(&authority.host)
            && !is_tls_elsewhere(down, parts)
        {
            return Ok(Found::Redirect(group));
        }
        down.edge.state.meters.unknown_hosts.up();
        return Err(Problem::UnknownHost);
    };
    if let Some(tls) = tls
        && down.conn.info.sni() != authority.host
        && !shares_rules(down, tls, group, live, &authority.host)
    {
        // The event belongs to the endpoint of the server name for which TLS was terminated (`attribute`).
        return Err(Problem::Misdirected);
    }
    Ok(Found::Group(group))
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

/// Whether a connection to one name may carry requests for another: both have the same account and
/// certificate, and no policy of the other name has rules about connections.
pub(super) fn shares_rules(
    down: &Downstream,
    tls: &TlsInfo,
    group: &Group,
    live: &LiveSnapshot,
    host: &str,
) -> bool {
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

/// Whether a trusted proxy says that its client uses TLS. A redirect would loop, and the target may name https.
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
            let authority = Authority::of(parts.version, &parts.uri, parts.headers.get(HOST));
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

/// The authority of a request that names none.
const NO_AUTHORITY: Authority<'static> = Authority {
    text: "",
    host: std::borrow::Cow::Borrowed(""),
};

/// The known parts of a refused request.
struct RefusedRequest<'x> {
    parts: &'x request::Parts,
    has_method: bool,
    has_target: bool,
    authority: Option<Authority<'x>>,
}

/// The endpoints whose account gets the event of a refused request.
struct Named {
    group: Arc<Group>,
    /// Whether the request is for another host, which the connection must not carry requests for. It may be another
    /// account's: browsers send requests for all names of a certificate over one connection (RFC 9113 9.1.1).
    is_misdirected: bool,
}

/// The endpoints that a refused request or its connection names.
fn named(down: &Downstream, host: Option<&str>, is_http2: bool) -> Option<Named> {
    let of_request = |group: &Arc<Group>| Named {
        group: Arc::clone(group),
        is_misdirected: false,
    };
    // The host may have another owner since.
    if down.edge.freshness.is_outdated() {
        return None;
    }
    let live = down.edge.live.load();
    if let Some(bound) = down.bound.get() {
        return bound.group(&live).map(of_request);
    }
    let Some(tls) = down.conn.info.tls.get() else {
        let host = host?;
        let group = live.http.find(host).or_else(|| live.https.find(host));
        return group.map(of_request);
    };
    let is_of_connection = |host| down.conn.info.sni() == host;
    if let Some(host) = host
        && let Some(group) = live.https.find(host)
        && (is_of_connection(host) || shares_rules(down, tls, group, &live, host))
    {
        return Some(of_request(group));
    }
    let group = down.tls_group.get()?;
    Some(Named {
        group: Arc::clone(group),
        // Without a host that is certain it may be for another.
        is_misdirected: is_http2 && host.is_none()
            || host.is_some_and(|host| !is_of_connection(host)),
    })
}

impl RefusedRequest<'_> {
    fn of_head(head: &RefusedHead) -> RefusedRequest<'_> {
        RefusedRequest {
            parts: &head.parts,
            has_method: head.has_method,
            has_target: head.has_target,
            authority: head.host().and_then(|host| Authority::parse(host).ok()),
        }
    }

    /// Counts the request, and starts its record. Returns the endpoints that it names, unless there are none; without a
    /// record if others stand for it.
    fn begin(
        &self,
        down: &Downstream,
        reason: Reason,
        began: Instant,
        recording: &mut Recording,
    ) -> Option<Arc<Group>> {
        let (conn, edge) = (&down.conn, &down.conn.edge);
        let host = self.authority.as_ref().map(|authority| &*authority.host);
        let is_http2 = self.parts.version == Version::HTTP_2;
        let Some(named) = named(down, host, is_http2) else {
            let facts = RefusedFacts {
                host: match host {
                    Some(host) => host,
                    None => conn.info.sni(),
                },
                method: match self.has_method {
                    true => self.parts.method.as_str(),
                    false => "",
                },
                user_agent: self.user_agent(),
            };
            let ends = (conn.info.client, conn.info.server);
            edge.refuse(reason, ends, conn.info.now(), facts);
            return None;
        };
        let Named {
            group,
            is_misdirected,
        } = named;
        let member = group.first();
        let Some(sampled) = down.refused_at(member, reason) else {
            return Some(group);
        };
        let server_name = match conn.info.tls.get() {
            Some(_) => conn.info.sni(),
            None => host.unwrap_or_default(),
        };
        let no_fields = HeaderMap::new();
        let fields = match is_misdirected {
            true => &no_fields,
            false => &self.parts.headers,
        };
        let mut request = recorded_with(self.parts, fields);
        if self.may_hold_secret(&group) {
            request.query = None;
        }
        let authority = self.authority.as_ref().unwrap_or(&NO_AUTHORITY);
        let from = (&conn.info, server_name);
        let rules = &conn.rules.header_rules;
        let of = (group.account(), &member.id);
        recording.start(edge, began, of, from, (request, authority), rules);
        let has_target = self.has_target && !is_misdirected;
        recording.refused(sampled, self.has_method, has_target);
        recording.note_reason(reason);
        Some(group)
    }

    fn user_agent(&self) -> &[u8] {
        let agent = self.parts.headers.get(USER_AGENT);
        agent.map_or(b"", |agent| agent.as_bytes())
    }

    /// Whether the query may be a secret of a sign-in: the path is one of the edge, or has no certain normal form.
    fn may_hold_secret(&self, group: &Group) -> bool {
        let Some(local) = self.parts.uri.path_and_query() else {
            return false;
        };
        let is_edges = |path: &str| group.edge_path_member(path).is_some();
        match target::merge_slashes(local) {
            Ok(merged) => is_edges(merged.as_ref().unwrap_or(local).path()),
            Err(_) => true,
        }
    }
}

/// Records a refused request whose exchange has begun, and that has not reached an endpoint.
pub(super) fn attribute(exchange: &mut HttpExchange, parts: &request::Parts, problem: Problem) {
    let Some(reason) = problem.reason() else {
        return;
    };
    if exchange.count.has_endpoint() {
        // Its record has begun.
        return;
    }
    let down = Arc::clone(exchange.down());
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (host, more) = (hosts.next(), hosts.next());
    let authority = match more {
        Some(_) => None,
        None => Authority::of(parts.version, &parts.uri, host).ok(),
    };
    let request = RefusedRequest {
        parts,
        has_method: true,
        // The target of a head that HTTP/2 refused was not read.
        has_target: parts.extensions.get::<Refused>().is_none(),
        authority,
    };
    let group = request.begin(
        &down,
        reason,
        exchange.count.began(),
        &mut exchange.recording,
    );
    exchange.refused(reason);
    if let Some(group) = group {
        exchange.passes(group.first());
    }
}

/// The record of a refused request without an exchange.
pub(crate) struct RefusedRecord {
    recording: Recording,
    down: Arc<Downstream>,
    /// The response was written.
    is_sent: bool,
}

impl RefusedRecord {
    /// Counts a request whose head was refused, and starts its record.
    pub(crate) fn begin(
        down: &Arc<Downstream>,
        violation: Violation,
        mut head: RefusedHead,
        response: Option<StatusCode>,
    ) -> Self {
        let mut recording = Recording::new(head.parts.version);
        // As for requests that are served: the edge's own fields and cookies are not recorded.
        let _said = fields::strip_edges_own(&mut head.parts.headers);
        let _cookies = own_cookies::take(&mut head.parts.headers);
        if let Some(reason) = Problem::Violation(violation).reason() {
            let group =
                RefusedRequest::of_head(&head).begin(down, reason, Instant::now(), &mut recording);
            if let Some(group) = group {
                let response = response.map(|status| (status.as_u16(), Duration::ZERO));
                let counters = group.first().counters(&down.conn.edge);
                counters.request(response, UpstreamUse::Unneeded);
            }
        }
        Self {
            recording,
            down: Arc::clone(down),
            is_sent: false,
        }
    }

    /// Records the response, which has this body.
    pub(crate) fn answer(&mut self, head: &response::Parts, body: &Bytes) {
        let conn = &self.down.conn;
        let fields = crate::recording::lines(&head.headers);
        let (rules, answer) = (
            &conn.rules.header_rules,
            (head.status, Some(Duration::ZERO)),
        );
        self.recording.answer(&conn.edge, answer, fields, rules, 0);
        self.recording.sent(body.len(), false);
    }

    /// The response was written.
    pub(crate) fn sent(&mut self) {
        self.is_sent = true;
    }
}

impl Drop for RefusedRecord {
    fn drop(&mut self) {
        let conn = &self.down.conn;
        if let Some(unflushed) = self.recording.take_unflushed(&conn.edge) {
            match self.is_sent {
                true => unflushed.complete(&conn.edge, 0, conn.info.now()),
                // Nothing of a response has left.
                false => unflushed.cut(&conn.edge, 0, 0, conn.info.now()),
            }
        }
    }
}
