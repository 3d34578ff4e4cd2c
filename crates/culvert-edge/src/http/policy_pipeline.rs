//! A request of an endpoint with a traffic policy: each phase in its place, and from endpoint to
//! endpoint where policies forward internally.
//!
//! The request phases run in the order in which the endpoints are reached, the response phases in the
//! reverse order: what an endpoint answers is what the policy that forwarded to it sees.

use std::sync::Arc;

use culvert_http::target::{self, Received};
use culvert_policy::event_slots;
use culvert_policy::policy::compiled::Policy;
use culvert_policy::policy::edits::{Edits, Replacement};
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::replace;
use culvert_policy::policy::run::{Exchange, Flow, Memory};
use culvert_policy::problem::Problem;
use http::header::{HOST, HeaderValue, SET_COOKIE};
use http::{StatusCode, request};

use crate::connection_phase;
use crate::downstream::Downstream;
use crate::http::body::{BufferedUpload, NotHeld, Source, Upload};
use crate::http::exchange::{Abandoned, Answer, Asked, check, forward, outgoing, prepare};
use crate::http::upgrade::Wanted;
use crate::http::upload::UploadPace;
use crate::http1_state::Broken;
use crate::recording::Recording;
use crate::snapshot::group::Member;

/// A request on its way.
pub(super) struct ForwardRequest {
    /// Where it is now.
    pub(super) member: Arc<Member>,
    pub(super) parts: Box<request::Parts>,
    pub(super) body: Upload,
    /// The host it is for.
    pub(super) authority: HeaderValue,
    /// Whether its fields are ours already: they are from the first hop on.
    pub(super) is_prepared: bool,
    /// Whether it is no client's, but made by a policy: whatever becomes of it, the connection stays.
    pub(super) is_call: bool,
}

/// An endpoint whose policy saw the request, and is to see the answer.
struct Passed {
    member: Arc<Member>,
    policy: Arc<Policy>,
    memory: Memory,
    /// As the policy saw it, if its response phase needs it.
    received: Option<Box<request::Parts>>,
}

/// The answer to a request of an endpoint with a policy.
pub(super) async fn serve(
    recording: &mut Recording,
    mut forward_request: ForwardRequest,
    wanted: &Wanted,
    asked: &Asked,
) -> Result<Answer, Abandoned> {
    let down = &Arc::clone(recording.down());
    let began = down.info.now();
    let is_call = forward_request.is_call;
    let mut passed: Vec<Passed> = Vec::new();
    let sent = loop {
        let member = Arc::clone(&forward_request.member);
        if !passed.is_empty() || is_call {
            recording.reached(member.endpoint.timeouts);
        }
        let Some(policy) = &member.endpoint.policy else {
            break send(recording, forward_request, wanted, None, &mut passed).await?;
        };
        if !connection_phase::admits(down, &member.endpoint).await {
            // The connection's event tells it.
            recording.withdraw();
            return Err(hang_up(down, is_call));
        }
        if let Some(decision) = down.policy.decision_for_requests() {
            recording.decide(event_slots::IP_POLICY_DECISION, decision);
        }
        let mut memory = Memory::new(began);
        memory.hops = passed.len();
        memory.is_call = is_call;
        let (flow, mut edits) = match check(&forward_request.parts, wanted) {
            Err(problem) => (Err(problem), Edits::default()),
            Ok(()) if policy.rules(Phase::Request).is_empty() => {
                (Ok(Flow::Continue), Edits::default())
            }
            Ok(()) => {
                let (endpoint, conn) = (member.endpoint.info(), down.context());
                let (event, received) = recording.for_policy();
                let mut body = BufferedUpload {
                    upload: &mut forward_request.body,
                    down,
                    received,
                };
                let mut x = Exchange::new(Phase::Request, policy, endpoint, conn, &mut memory);
                x.request = Some(&*forward_request.parts);
                x.body = Some(&mut body);
                x.event = Some(event);
                let flow = x.run().await;
                (Ok(flow), std::mem::take(&mut x.edits))
            }
        };
        let is_response_ruled = !policy.rules(Phase::Response).is_empty();
        passed.push(Passed {
            received: is_response_ruled.then(|| forward_request.parts.clone()),
            policy: Arc::clone(policy),
            member: Arc::clone(&member),
            memory,
        });
        let flow = match flow {
            Ok(flow @ (Flow::Continue | Flow::Forward(_))) => {
                let replaced = replace_upload(recording, &mut forward_request, &mut edits).await;
                match (replaced, flow) {
                    (Ok(()), Flow::Forward(next)) => {
                        let hopped = match next.endpoint() {
                            Some(member) => forward_request.hop(down, wanted, edits, member),
                            None => Err(Problem::Policy),
                        };
                        match hopped {
                            Ok(()) => continue,
                            Err(problem) => Err(problem),
                        }
                    }
                    (Ok(()), _) => {
                        break send(recording, forward_request, wanted, Some(edits), &mut passed)
                            .await?;
                    }
                    (Err(flow), _) => flow,
                }
            }
            Ok(flow) => Ok(flow),
            Err(problem) => Err(problem),
        };
        break match flow {
            Ok(Flow::Reply(reply)) => Ok(Answer::made(*reply)),
            Ok(Flow::Broken) => match down.http1.broken() {
                Some(Broken::Refused(violation)) => Err(Problem::Violation(violation)),
                _ => return Err(Abandoned),
            },
            Ok(Flow::Continue | Flow::Forward(_) | Flow::Close) => {
                return Err(hang_up(down, is_call));
            }
            Err(problem) => Err(problem),
        };
    };
    let mut answer = sent.unwrap_or_else(|problem| Answer::of(problem, asked, down));
    for passed in passed.iter_mut().rev() {
        respond(recording, passed, &mut answer, asked).await?;
    }
    // What the browser is to keep, whatever became of the answer.
    for passed in &mut passed {
        for cookie in passed.memory.cookies.drain(..) {
            answer.head.headers.append(SET_COOKIE, cookie);
        }
    }
    Ok(answer)
}

/// Ends the connection for what a policy decided, unless the request is not the client's.
fn hang_up(down: &Downstream, is_call: bool) -> Abandoned {
    if !is_call {
        down.hang_up();
    }
    Abandoned
}

/// Sends the request to the upstream of the endpoint it has reached, and tells those who wait for its
/// verdict.
async fn send(
    recording: &mut Recording,
    forward_request: ForwardRequest,
    wanted: &Wanted,
    edits: Option<Edits>,
    passed: &mut [Passed],
) -> Result<Result<Answer, Problem>, Abandoned> {
    if let Err(problem) = check(&forward_request.parts, wanted) {
        return Ok(Err(problem));
    }
    let member = Arc::clone(&forward_request.member);
    let (parts, body) = outgoing(recording, forward_request, wanted, edits);
    let sent = forward(&member, recording, parts, body).await?;
    let verdict = match &sent {
        Ok(answer) => Some(Some(answer.head.status)),
        Err(problem) if problem.is_upstreams() => Some(None),
        Err(_) => None,
    };
    if let Some(status) = verdict {
        for passed in passed {
            passed.memory.answered(status);
        }
    }
    Ok(sent)
}

/// The response phase of one policy.
async fn respond(
    recording: &mut Recording,
    passed: &mut Passed,
    answer: &mut Answer,
    asked: &Asked,
) -> Result<(), Abandoned> {
    let Some(received) = &passed.received else {
        return Ok(());
    };
    let down = &Arc::clone(recording.down());
    let (policy, endpoint) = (&passed.policy, passed.member.endpoint.info());
    let conn = down.context();
    let body_whole_at = recording.upload().and_then(UploadPace::whole_at);
    let mut x = Exchange::new(Phase::Response, policy, endpoint, conn, &mut passed.memory);
    x.request = Some(received);
    x.body_whole_at = body_whole_at;
    x.response = Some(&answer.head);
    x.event = Some(recording.for_policy().0);
    let flow = x.run().await;
    let mut edits = std::mem::take(&mut x.edits);
    match flow {
        Flow::Continue | Flow::Forward(_) => {}
        Flow::Reply(reply) => *answer = Answer::made(*reply),
        Flow::Broken => return Err(Abandoned),
        Flow::Close => {
            drop(x);
            return Err(hang_up(down, passed.memory.is_call));
        }
    }
    if !edits.replacements.is_empty() && !asked.is_head {
        let replaced = answer.replace(&edits.replacements, down).await;
        if let Err(problem) = replaced {
            *answer = Answer::of(problem, asked, down);
        }
    }
    edits.apply(&mut answer.head.headers);
    if let Some(coding) = edits.coding {
        answer.encode(coding, asked, down);
    }
    Ok(())
}

/// Has parts of the request's body replaced, if that is asked for.
async fn replace_upload(
    recording: &mut Recording,
    forward_request: &mut ForwardRequest,
    edits: &mut Edits,
) -> Result<(), Result<Flow, Problem>> {
    let replacements = std::mem::take(&mut edits.replacements);
    if replacements.is_empty() || matches!(forward_request.body, Upload::None) {
        return Ok(());
    }
    let down = &Arc::clone(recording.down());
    let most = down.rules.limits.body_bytes;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let received = || recording.count_received();
    let bytes_max = replace::BODY_BYTES_MAX.min(most);
    let held = forward_request.body.hold(bytes_max, down, received);
    let bytes = held
        .await
        .map_err(|why| why.problem().map_or(Ok(Flow::Broken), Err))?;
    let made = replace::apply(&replacements, &mut forward_request.parts.headers, bytes);
    forward_request
        .body
        .put(made.map_err(|_| Err(Problem::BodyTooLong))?);
    Ok(())
}

impl ForwardRequest {
    /// Goes on to another endpoint, with what the policy of this one changed.
    fn hop(
        &mut self,
        down: &Downstream,
        wanted: &Wanted,
        mut edits: Edits,
        member: Arc<Member>,
    ) -> Result<(), Problem> {
        prepare(self, down, wanted);
        edits.apply_to_request(&mut self.parts.headers);
        if let Some(target) = edits.target {
            // From here on this is what was received.
            self.parts.extensions.remove::<Received>();
            self.parts.uri = target;
        }
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
        self.member = member;
        Ok(())
    }
}

impl Answer {
    /// Has parts of its body replaced, where it has a whole one.
    async fn replace(
        &mut self,
        replacements: &[Replacement],
        down: &Arc<Downstream>,
    ) -> Result<(), Problem> {
        let is_whole = self.head.status != StatusCode::PARTIAL_CONTENT
            && self.head.status != StatusCode::SWITCHING_PROTOCOLS
            && !culvert_http::fields::is_event_stream(&self.head.headers);
        if !is_whole || self.source.is_ended() {
            return Ok(());
        }
        let held = self.source.hold(replace::BODY_BYTES_MAX, down);
        let (bytes, room) = held.await.map_err(|why| match why {
            NotHeld::TooLong => Problem::AnswerTooLong,
            NotHeld::NoRoom => Problem::NoRoom,
            NotHeld::TooSlow => Problem::UpstreamTooSlow,
            NotHeld::Broken => Problem::BadAnswer,
        })?;
        let made = replace::apply(replacements, &mut self.head.headers, bytes);
        let made = made.map_err(|_| Problem::AnswerTooLong)?;
        self.head
            .headers
            .insert(http::header::CONTENT_LENGTH, HeaderValue::from(made.len()));
        self.source = Source::Held {
            bytes: made,
            _room: room,
        };
        Ok(())
    }
}
