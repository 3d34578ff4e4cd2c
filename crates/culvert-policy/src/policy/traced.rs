//! The spans of a policy, in the trace of a request that is recorded.

use culvert_traces::{AttributeValue, Trace};
use tokio::time::Instant;

use crate::policy::exchange::Exchange;
use crate::policy::run::Flow;

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
            span.set("culvert.policy.result", flow.trace_result().as_str());
            if !notes.is_empty() {
                span.set("culvert.policy.actions", AttributeValue::Texts(notes));
            }
        }
        trace.end_group(Instant::now());
    }
}
