//! The policies of the endpoints that a request passes through.
//!
//! The request phases run in the order in which the endpoints are reached, and the response phases in the
//! reverse order: a policy that forwarded to an endpoint sees that endpoint's response.

use std::sync::Arc;

use bytes::Bytes;
use culvert_base::{BoxFuture, Share};
use culvert_http::target::Received;
use culvert_io::UploadProgress;
use culvert_policy::event_slots;
use culvert_policy::host::{BodyReader, Unread};
use culvert_policy::own_cookies;
use culvert_policy::policy::compiled::Policy;
use culvert_policy::policy::edits::Edits;
use culvert_policy::policy::exchange::{Exchange, Memory};
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::Flow;
use culvert_policy::problem::Problem;
use http::header::SET_COOKIE;
use http::request;
use http::uri::PathAndQuery;

use crate::connection::connection_phase;
use crate::connection::downstream::Downstream;
use crate::connection::http1_state::Broken;
use crate::http::exchange::HttpExchange;
use crate::http::forward_request::{ForwardRequest, NotAdvanced};
use crate::http::request_body::Upload;
use crate::http::response::{Abandoned, PendingResponse, RequestTraits};
use crate::http::upgrade::UpgradeRequest;
use crate::recording::ReceivedCounter;
use crate::snapshot::group::Member;

/// The policies whose request phase has run, in this order.
#[derive(Default)]
pub(super) struct PolicyChain(Vec<PolicyRun>);

/// A policy whose request phase has run.
struct PolicyRun {
    member: Arc<Member>,
    policy: Arc<Policy>,
    memory: Memory,
    /// The request as the policy saw it, if its response phase needs it.
    received: Option<Box<request::Parts>>,
}

/// The result of the request phases.
pub(super) enum RequestOutcome {
    /// The request goes to the upstream, with the changes of its last policy.
    Forward(ForwardRequest, Option<Edits>),
    /// A policy made the response.
    Respond(PendingResponse),
    /// The request is rejected.
    Reject(Problem),
}

impl PolicyChain {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs the request phase of the policy of each endpoint that the request reaches.
    pub(super) async fn run_request_phases(
        &mut self,
        exchange: &mut HttpExchange,
        mut request: ForwardRequest,
        (wanted, traits): (&UpgradeRequest, &RequestTraits),
    ) -> Result<RequestOutcome, Abandoned> {
        let down = &Arc::clone(exchange.down());
        let began = down.conn.info.now();
        let is_call = request.is_call;
        loop {
            let member = Arc::clone(&request.member);
            if !self.is_empty() {
                exchange.reached(member.endpoint.timeouts);
                exchange.passes(&member);
                let extensions = &request.parts.extensions;
                let (endpoint, conn) = (&member.endpoint, &down.conn);
                let closed = PendingResponse::of_maintenance(endpoint, extensions, traits, conn);
                if let Some(response) = closed {
                    return Ok(RequestOutcome::Respond(response));
                }
            }
            let Some(policy) = &member.endpoint.policy else {
                return Ok(RequestOutcome::Forward(request, None));
            };
            if !connection_phase::admits(down, &member.endpoint).await {
                // The connection's event has the decision.
                exchange.recording.withdraw();
                return Err(hang_up(exchange, is_call));
            }
            request.strip_identity(policy);
            if let Some(decision) = down.conn.policy.decision_for_requests() {
                let slot = event_slots::IP_POLICY_DECISION;
                exchange.recording.decide(slot, decision);
            }
            let mut memory = Memory::new(began);
            memory.hops = self.0.len();
            memory.is_call = is_call;
            if let Some(bytes_max) = policy.late_request_bytes() {
                let (event, _) = exchange.recording.for_policy();
                event.tap_request(down.edge.policy.bodies.as_ref(), bytes_max);
            }
            // Before all rules, whatever their conditions are.
            if policy.owns_path(request.parts.uri.path()) {
                let flow = answer_edge_path(exchange, &request, wanted, policy, &mut memory).await;
                let has_response_rules = !policy.rules(Phase::Response).is_empty();
                self.0.push(PolicyRun {
                    received: has_response_rules.then(|| without_query(&request.parts)),
                    policy: Arc::clone(policy),
                    member,
                    memory,
                });
                return match flow {
                    Flow::Reply(reply) => {
                        Ok(RequestOutcome::Respond(PendingResponse::whole(*reply)))
                    }
                    Flow::Broken => broken_off(down),
                    Flow::Close => Err(hang_up(exchange, is_call)),
                    Flow::Continue | Flow::Forward(_) => {
                        Ok(RequestOutcome::Reject(Problem::EdgePath))
                    }
                };
            }
            let ran = match request.check(wanted) {
                Ok(()) => {
                    request.prepare(down, wanted);
                    Ok(run_request_phase(exchange, &mut request, policy, &mut memory).await)
                }
                Err(problem) => Err(problem),
            };
            request.copy_buffered(exchange);
            let has_response_rules = !policy.rules(Phase::Response).is_empty();
            self.0.push(PolicyRun {
                received: has_response_rules.then(|| request.parts.clone()),
                policy: Arc::clone(policy),
                member: Arc::clone(&member),
                memory,
            });
            let (flow, edits) = match ran {
                Ok(ran) => ran,
                Err(problem) => return Ok(RequestOutcome::Reject(problem)),
            };
            let next = match flow {
                Flow::Continue => None,
                Flow::Forward(next) => Some(next),
                Flow::Reply(reply) => {
                    return Ok(RequestOutcome::Respond(PendingResponse::whole(*reply)));
                }
                Flow::Broken => return broken_off(down),
                Flow::Close => return Err(hang_up(exchange, is_call)),
            };
            match request.advance(exchange, wanted, edits, next).await {
                Ok(None) => {}
                Ok(edits) => return Ok(RequestOutcome::Forward(request, edits)),
                Err(NotAdvanced::Problem(problem)) => return Ok(RequestOutcome::Reject(problem)),
                Err(NotAdvanced::Broken) => return broken_off(down),
            }
        }
    }

    /// Tells the policies the status of the upstream's response; `None` if the upstream failed.
    pub(super) fn note_upstream_status(&mut self, sent: &Result<PendingResponse, Problem>) {
        let status = match sent {
            Ok(response) => Some(response.head.status),
            Err(problem) if problem.is_upstreams() => None,
            Err(_) => return,
        };
        for run in &mut self.0 {
            run.memory.answered(status);
        }
    }

    /// Runs the response phases, and sets the cookies of all policies.
    pub(super) async fn run_response_phases(
        &mut self,
        exchange: &mut HttpExchange,
        response: &mut PendingResponse,
        traits: &RequestTraits,
    ) -> Result<(), Abandoned> {
        for run in self.0.iter_mut().rev() {
            run.run_response_phase(exchange, response, traits).await?;
        }
        own_cookies::drop_set_cookies(&mut response.head.headers);
        // The browser gets the cookies even if a later policy replaced the response. A policy that made the request does
        // not get them.
        for run in &mut self.0 {
            if run.memory.is_call {
                continue;
            }
            for cookie in run.memory.cookies.drain(..) {
                response.head.headers.append(SET_COOKIE, cookie);
            }
        }
        Ok(())
    }
}

/// A request without its query, which may be a secret of a sign-in.
fn without_query(parts: &request::Parts) -> Box<request::Parts> {
    let mut parts = parts.clone();
    parts.extensions.remove::<Received>();
    let path = PathAndQuery::try_from(parts.uri.path());
    parts.uri = path.unwrap_or(PathAndQuery::from_static("/")).into();
    Box::new(parts)
}

/// Handles a request to a path of the edge. Its query may be a secret, so its event has none.
async fn answer_edge_path(
    exchange: &mut HttpExchange,
    request: &ForwardRequest,
    wanted: &UpgradeRequest,
    policy: &Arc<Policy>,
    memory: &mut Memory,
) -> Flow {
    let down = &Arc::clone(exchange.down());
    let scheme = match down.conn.info.tls.get() {
        Some(_) => "https",
        None => "http",
    };
    let host = request.authority.to_str().unwrap_or_default();
    let url = [scheme, "://", host, request.parts.uri.path()];
    exchange.recording.hide_query(&url);
    let endpoint = request.member.endpoint.info();
    let mut x = Exchange::new(Phase::Request, policy, endpoint, down.context(), memory);
    x.request = Some(&*request.parts);
    x.event = Some(exchange.recording.for_policy().0);
    if *wanted != UpgradeRequest::Http || request.check(wanted).is_err() {
        return x.refuse(Problem::EdgePath);
    }
    x.begin_span("edge path");
    let flow = x.answer_edge_path().await;
    let flow = flow.unwrap_or(Flow::Continue);
    x.end_span(&flow);
    flow
}

/// Runs the request phase of one policy.
async fn run_request_phase(
    exchange: &mut HttpExchange,
    request: &mut ForwardRequest,
    policy: &Arc<Policy>,
    memory: &mut Memory,
) -> (Flow, Edits) {
    // A policy that cannot do its part of the response refuses before the service gets the request.
    let right = policy.secret_right();
    let does_nothing = policy.ip_fields().is_empty() && right.is_none_or(|it| !it.is_withdrawn());
    if policy.rules(Phase::Request).is_empty() && does_nothing {
        return (Flow::Continue, Edits::default());
    }
    let down = &Arc::clone(exchange.down());
    let (event, received) = exchange.recording.for_policy();
    let mut body = PolicyBody {
        upload: &mut request.body,
        down,
        share: request.member.endpoint.share(),
        received,
    };
    let endpoint = request.member.endpoint.info();
    let mut x = Exchange::new(Phase::Request, policy, endpoint, down.context(), memory);
    x.request = Some(&*request.parts);
    x.body = Some(&mut body);
    x.event = Some(event);
    x.begin_span(Phase::Request.name());
    let flow = x.run().await;
    x.end_span(&flow);
    (flow, std::mem::take(&mut x.edits))
}

impl PolicyRun {
    /// Runs the response phase of this policy.
    async fn run_response_phase(
        &mut self,
        exchange: &mut HttpExchange,
        response: &mut PendingResponse,
        traits: &RequestTraits,
    ) -> Result<(), Abandoned> {
        let Some(received) = &self.received else {
            return Ok(());
        };
        let down = &Arc::clone(exchange.down());
        let endpoint = self.member.endpoint.info();
        let (conn, memory) = (down.context(), &mut self.memory);
        let body_whole_at = exchange.upload().and_then(UploadProgress::whole_at);
        let mut x = Exchange::new(Phase::Response, &self.policy, endpoint, conn, memory);
        x.request = Some(received);
        x.body_whole_at = body_whole_at;
        x.response = Some(&response.head);
        x.event = Some(exchange.recording.for_policy().0);
        x.begin_span(Phase::Response.name());
        let flow = x.run().await;
        x.end_span(&flow);
        let mut edits = std::mem::take(&mut x.edits);
        match flow {
            Flow::Continue | Flow::Forward(_) => {}
            Flow::Reply(reply) => *response = PendingResponse::whole(*reply),
            Flow::Broken => return Err(Abandoned),
            Flow::Close => {
                drop(x);
                return Err(hang_up(exchange, self.memory.is_call));
            }
        }
        if !edits.replacements.is_empty() && !traits.is_head {
            let share = self.member.endpoint.share();
            let replaced = response.replace(share, &edits.replacements, &down.conn);
            let replaced = replaced.await;
            if let Err(problem) = replaced {
                *response =
                    PendingResponse::of(problem, exchange.recording.reason(), traits, &down.conn);
            }
        }
        exchange.note_set(edits.field_names());
        edits.apply(&mut response.head.headers);
        if edits.negotiates_coding {
            let share = self.member.endpoint.share();
            response.encode(share, edits.coding, traits, &down.conn);
        }
        Ok(())
    }
}

/// The result if the client aborted the request's body.
fn broken_off(down: &Downstream) -> Result<RequestOutcome, Abandoned> {
    match down.conn.http1.broken() {
        Some(Broken::Refused(violation)) => {
            Ok(RequestOutcome::Reject(Problem::Violation(violation)))
        }
        _ => Err(Abandoned),
    }
}

/// Closes the connection, unless a policy made the request. A proxy may send the requests of several clients and accounts over
/// one connection of HTTP/2 in the clear: only the stream ends then.
fn hang_up(exchange: &HttpExchange, is_call: bool) -> Abandoned {
    if !is_call && !exchange.may_share_connection() {
        exchange.down().conn.hang_up();
    }
    Abandoned
}

/// The body of a request as policies read it.
#[derive(Debug)]
struct PolicyBody<'x> {
    upload: &'x mut Upload,
    down: &'x Downstream,
    share: Share,
    received: ReceivedCounter<'x>,
}

impl BodyReader for PolicyBody<'_> {
    fn read(&mut self, bytes_max: usize) -> BoxFuture<'_, Result<Bytes, Unread>> {
        let most = self.down.conn.rules.limits.body_bytes;
        let bytes_max = bytes_max.min(usize::try_from(most).unwrap_or(usize::MAX));
        let received = || self.received.start();
        let held = self
            .upload
            .hold(self.share, bytes_max, &self.down.conn, received);
        Box::pin(async move {
            held.await
                .map_err(|why| why.problem().map_or(Unread::Broken, Unread::Problem))
        })
    }
}
