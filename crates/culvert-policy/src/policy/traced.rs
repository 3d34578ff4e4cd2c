//! The spans of a policy, in the trace of a request that is recorded.

use culvert_traces::{AttributeValue, Trace};
use tokio::time::Instant;

use crate::policy::exchange::Exchange;
use crate::policy::run::Flow;

/// What followed, as an attribute.
fn result(flow: &Flow) -> String {
    match flow {
        Flow::Continue => "continue".to_owned(),
        Flow::Reply(reply) => format!("respond {}", reply.status().as_u16()),
        Flow::Forward(_) => "forward".to_owned(),
        Flow::Close => "close".to_owned(),
        Flow::Broken => "client left".to_owned(),
    }
}

impl Exchange<'_> {
    fn trace(&mut self) -> Option<&mut Trace> {
        self.event.as_mut()?.trace.as_deref_mut()
    }

    /// Begins the span of what the policy does next, if the request is recorded.
    pub fn begin_span(&mut self, name: &str) {
        let id = self.endpoint.id;
        if let Some(span) = self
            .trace()
            .and_then(|trace| trace.begin_group(name, Instant::now()))
        {
            span.set("culvert.endpoint.id", id);
        }
    }

    /// Ends it.
    pub fn end_span(&mut self, flow: &Flow) {
        let Some(trace) = self.trace().filter(|trace| trace.is_recorded()) else {
            return;
        };
        let notes = trace.take_notes();
        if let Some(span) = trace.group() {
            span.set("culvert.policy.result", result(flow).as_str());
            if !notes.is_empty() {
                span.set("culvert.policy.actions", AttributeValue::Texts(notes));
            }
        }
        trace.end_group(Instant::now());
    }

    /// When an action begins, if the request is recorded.
    pub(super) fn action_clock(&self) -> Option<Instant> {
        let trace = self.event.as_ref()?.trace.as_ref()?;
        trace.is_recorded().then(Instant::now)
    }

    /// Notes an action that has run. One that `has_waited` has a separate span.
    #[cold]
    pub(super) fn note_action(
        &mut self,
        (name, rule): (&'static str, &str),
        (began, has_waited): (Instant, bool),
        flow: &Flow,
    ) {
        let Some(trace) = self.trace() else {
            return;
        };
        let result = result(flow);
        if has_waited && let Some(span) = trace.step(name, began, Instant::now()) {
            span.set("culvert.policy.action", name);
            if !rule.is_empty() {
                span.set("culvert.policy.rule", rule);
            }
            span.set("culvert.policy.result", result.as_str());
        }
        trace.note(format!("{name}: {result}"));
    }
}
