//! A request on its way to an upstream, possibly through several endpoints.

use std::sync::Arc;

use culvert_http::fields::{
    has_connection_authentication, has_token, is_grpc, join_cookies, strip_named,
};
use culvert_http::target::{self, Received};
use culvert_io::UploadMeter;
use culvert_policy::host::NextEndpoint;
use culvert_policy::policy::compiled::Policy;
use culvert_policy::policy::edits::Edits;
use culvert_policy::policy::replace::{self, NotReplaced};
use culvert_policy::problem::Problem;
use culvert_upstream::Protocol;
use http::header::{AUTHORIZATION, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHORIZATION, TE};
use http::{Method, Version, request};

use crate::connection::downstream::Downstream;
use crate::http::body_memory::NotBuffered;
use crate::http::call::member_for;
use crate::http::exchange::HttpExchange;
use crate::http::fields;
use crate::http::request_body::{RequestBody, Upload};
use crate::http::upgrade::UpgradeRequest;
use crate::snapshot::group::Member;

/// A request on its way to an upstream.
pub(super) struct ForwardRequest {
    /// The endpoint it has reached.
    pub(super) member: Arc<Member>,
    pub(super) parts: Box<request::Parts>,
    pub(super) body: Upload,
    /// The host it is for, in normal form.
    pub(super) authority: HeaderValue,
    /// Whether its fields are those of the edge's own request: they are from the first policy on.
    pub(super) is_prepared: bool,
    /// Whether policies set or removed credentials, or fields of gRPC.
    pub(super) policies_set: PolicyFields,
    /// Whether a policy made it, and not the client. Then the connection stays open whatever the result.
    pub(super) is_call: bool,
}

/// Marks a request whose client waits for 100 (Continue) before it sends the body.
#[derive(Clone, Copy, Debug)]
struct AwaitsContinue;

/// What policies on the way set or removed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PolicyFields {
    credentials: bool,
    grpc: bool,
}

impl PolicyFields {
    fn note<'n>(&mut self, names: impl Iterator<Item = &'n HeaderName>) {
        for name in names {
            self.credentials |= *name == AUTHORIZATION || *name == PROXY_AUTHORIZATION;
            self.grpc |= name.as_str().starts_with(fields::GRPC_PREFIX);
        }
    }
}

/// Whom the connection that carries a request may serve afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reuse {
    /// Any client.
    Anyone,
    /// The client of this request, which it authenticates.
    Client,
    /// No one.
    Nobody,
}

/// Why a request does not go on.
pub(super) enum NotAdvanced {
    Problem(Problem),
    /// The client aborted its body.
    Broken,
}

/// A request as the upstream gets it.
pub(super) struct OutgoingRequest {
    pub(super) head: Box<request::Parts>,
    pub(super) body: RequestBody,
    pub(super) reuse: Reuse,
}

/// The body of a client. In a call of gRPC the client may pause while sending it, and it may have trailers.
pub(super) fn client_body(
    exchange: &mut HttpExchange,
    body: Upload,
    is_grpc: bool,
    has_trailers: bool,
) -> RequestBody {
    let rules = &Arc::clone(&exchange.down().conn.rules);
    let progress = exchange.watch_upload(is_grpc);
    let received = exchange.recording.count_received();
    RequestBody::new(body, received, exchange.body_limit())
        .cut(exchange.cut())
        .with_trailers(has_trailers)
        .tapped(exchange.recording.request_tap())
        .metered(Some(UploadMeter::new(
            progress,
            rules.limits.body_rate_over,
        )))
}

impl ForwardRequest {
    /// Rejects requests that the edge forwards to no endpoint.
    pub(super) fn check(&self, wanted: &UpgradeRequest) -> Result<(), Problem> {
        let parts = &self.parts;
        // `PRI` begins the preface of HTTP/2 and is no method (RFC 9113 3.4).
        if matches!(parts.method.as_str(), "CONNECT" | "PRI" | "TRACE") {
            return Err(Problem::Method);
        }
        let path = parts.uri.path();
        let is_star = path == "*" && parts.method == Method::OPTIONS;
        if !is_star && !path.starts_with('/') {
            return Err(Problem::Malformed);
        }
        for expectation in parts.headers.get_all(EXPECT) {
            if !expectation.as_bytes().eq_ignore_ascii_case(b"100-continue") {
                return Err(Problem::Expectation);
            }
        }
        match wanted {
            UpgradeRequest::Broken => Err(Problem::Upgrade),
            UpgradeRequest::Http
            | UpgradeRequest::WebSocket(_)
            | UpgradeRequest::Stream(_)
            | UpgradeRequest::Other(_) => Ok(()),
        }
    }

    /// Removes what clients, or policies before this one, say about the user: the policy says it itself.
    pub(super) fn strip_identity(&mut self, policy: &Policy) {
        let names = policy.identity_fields();
        if !names.is_empty() {
            strip_named(&mut self.parts.headers, names.iter());
            self.policies_set.note(names.iter());
        }
    }

    /// Replaces parts of its body.
    async fn replace_body(
        &mut self,
        exchange: &mut HttpExchange,
        edits: &mut Edits,
    ) -> Result<(), NotBuffered> {
        let replacements = std::mem::take(&mut edits.replacements);
        if replacements.is_empty() || matches!(self.body, Upload::None) {
            return Ok(());
        }
        let down = Arc::clone(exchange.down());
        let most = down.conn.rules.limits.body_bytes;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let received = || exchange.recording.count_received();
        let bytes_max = replace::BODY_BYTES_MAX.min(most);
        let share = self.member.endpoint.share();
        let bytes = self
            .body
            .hold(share, bytes_max, &down.conn, received)
            .await?;
        self.copy_buffered(exchange);
        let made = replace::apply(&replacements, &mut self.parts.headers, bytes);
        // Otherwise a client could prevent the replacement by a coding that the upstream ignores.
        self.body.put(made.map_err(|why| match why {
            NotReplaced::TooLong => NotBuffered::TooLong,
            NotReplaced::Coding => NotBuffered::Coding,
        })?);
        Ok(())
    }

    /// Copies the body for a capture, if it is empty or buffered. Otherwise it is copied while it is forwarded.
    pub(super) fn copy_buffered(&self, exchange: &HttpExchange) {
        if let Some(tap) = exchange.recording.request_tap() {
            self.body.copy_to(&tap);
        }
    }

    /// Goes on after an endpoint's policy: with its changes to the next endpoint, if it names one; otherwise returns the
    /// changes, which come last.
    pub(super) async fn advance(
        &mut self,
        exchange: &mut HttpExchange,
        wanted: &UpgradeRequest,
        mut edits: Edits,
        next: Option<NextEndpoint>,
    ) -> Result<Option<Edits>, NotAdvanced> {
        let replaced = self.replace_body(exchange, &mut edits).await;
        replaced.map_err(|why| match why.problem() {
            Some(problem) => NotAdvanced::Problem(problem),
            None => NotAdvanced::Broken,
        })?;
        let Some(next) = next else {
            return Ok(Some(edits));
        };
        let entered = exchange.enter(&self.member).await;
        entered.map_err(NotAdvanced::Problem)?;
        let hop = self.hop(exchange.down(), wanted, edits, next);
        hop.map_err(NotAdvanced::Problem)?;
        Ok(None)
    }

    /// Goes on to another endpoint, with the changes of this endpoint's policy.
    fn hop(
        &mut self,
        down: &Downstream,
        wanted: &UpgradeRequest,
        mut edits: Edits,
        next: NextEndpoint,
    ) -> Result<(), Problem> {
        self.prepare(down, wanted);
        self.policies_set.note(edits.field_names());
        edits.apply_to_request(&mut self.parts.headers);
        if let Some(target) = edits.target {
            // The next policy sees this target as the one received.
            self.parts.extensions.remove::<Received>();
            self.parts.uri = target;
        }
        let member = member_for(next.clone(), "/").ok_or(Problem::Policy)?;
        if let Some(local) = self.parts.uri.path_and_query() {
            let merged = match member.endpoint.merge_slashes {
                true => target::merge_slashes(local).map_err(Problem::malformed)?,
                false => None,
            };
            self.parts.uri = merged.unwrap_or_else(|| local.clone()).into();
        }
        if let Some(host) = self.parts.headers.get(HOST) {
            self.authority = host.clone();
        }
        let member = member_for(next, self.parts.uri.path());
        self.member = member.ok_or(Problem::Policy)?;
        Ok(())
    }

    /// The request as the upstream gets it.
    pub(super) fn outgoing(
        mut self,
        exchange: &mut HttpExchange,
        wanted: &UpgradeRequest,
        edits: Option<Edits>,
    ) -> OutgoingRequest {
        self.prepare(exchange.down(), wanted);
        if let Some(edits) = &edits {
            self.policies_set.note(edits.field_names());
        }
        let Self {
            mut parts,
            body,
            member,
            policies_set,
            ..
        } = self;
        if let Some(mut edits) = edits {
            edits.apply_to_request(&mut parts.headers);
            if let Some(target) = edits.target {
                parts.uri = target;
            }
        }
        let credentials = [AUTHORIZATION, PROXY_AUTHORIZATION];
        let is_http2 = member
            .pool
            .as_ref()
            .is_some_and(|pool| pool.upstream().protocol() == Protocol::Http2);
        let upgrades = match wanted {
            UpgradeRequest::Http => false,
            // HTTP/2 has no such upgrade, so the upstream is not asked for it.
            UpgradeRequest::Other(_) => !is_http2,
            _ => true,
        };
        let reuse = if upgrades {
            // After a refused upgrade, a server behind the upstream may read something else than HTTP.
            Reuse::Nobody
        } else if !has_connection_authentication(&parts.headers, credentials) {
            Reuse::Anyone
        } else if policies_set.credentials {
            // This client has no right to the identity beyond this request.
            Reuse::Nobody
        } else {
            Reuse::Client
        };
        let is_client = matches!(body, Upload::Http1(_) | Upload::Http2(_));
        if !is_client {
            // There is none, or it is in memory.
            return OutgoingRequest {
                body: RequestBody::new(body, None, None),
                head: parts,
                reuse,
            };
        }
        // The upstream decides whether the client sends its body. One on HTTP/2 does not: its body is not held back.
        let has_arrived = matches!(&body, Upload::Http1(body) if body.has_arrived());
        if parts.extensions.get::<AwaitsContinue>().is_some() && !is_http2 && !has_arrived {
            let expected = HeaderValue::from_static(fields::CONTINUE);
            parts.headers.insert(EXPECT, expected);
        }
        // A gRPC call may pause: on HTTP/2 it occupies one stream of the upstream, while a request on HTTP/1
        // occupies a whole connection.
        let is_grpc = parts.version == Version::HTTP_2
            && is_grpc(&parts.headers)
            && has_token(&parts.headers, &TE, b"trailers")
            && is_http2;
        let has_trailers = is_grpc && !policies_set.grpc;
        OutgoingRequest {
            body: client_body(exchange, body, is_grpc, has_trailers),
            head: parts,
            reuse,
        }
    }

    /// Makes the client's request the edge's own, unless that is done. Policies see the result, so that they judge the
    /// request that is sent.
    pub(super) fn prepare(&mut self, down: &Downstream, wanted: &UpgradeRequest) {
        if std::mem::replace(&mut self.is_prepared, true) {
            return;
        }
        let parts = &mut self.parts;
        let has_body = matches!(self.body, Upload::Http1(_) | Upload::Http2(_));
        let expects = match parts.version {
            // Clients of HTTP/1.0 do not know 100 (RFC 9110 10.1.1).
            Version::HTTP_11 | Version::HTTP_2 => has_body && parts.headers.contains_key(EXPECT),
            _ => false,
        };
        if expects {
            parts.extensions.insert(AwaitsContinue);
        }
        fields::to_upstream(&mut parts.headers, &down.conn.info, self.authority.clone());
        if parts.version == Version::HTTP_2 {
            join_cookies(&mut parts.headers);
        }
        wanted.ask(&mut parts.headers);
    }
}
