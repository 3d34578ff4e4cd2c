//! The trace of one request while it is served.

use std::sync::Arc;

use culvert_base::Share;
use http::HeaderValue;
use tokio::time::Instant;

use crate::context::{SpanId, TRACEPARENT_BYTES, TraceContext, TraceId, hex};
use crate::queue::FinishedTrace;
use crate::span::{AttributeValue, Span, SpanKind};
use crate::tracer::{Parent, Tracer};

/// Most spans of a request. A policy may have thousands of actions.
const SPANS_MAX: usize = 64;
/// Most notes of a group.
const NOTES_MAX: usize = 64;
/// The difference between the IDs of two spans of a request: odd, so that no two of them are the same.
const ID_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// When a request began, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// When it began.
    pub at: Instant,
    /// The same in nanoseconds since 1970.
    pub unix_nanos: u64,
    /// Whose share of the queue its spans use.
    pub share: Share,
}

/// The fields that a request to an upstream gets.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The value of `traceparent`.
    pub traceparent: [u8; TRACEPARENT_BYTES],
    /// The value of `tracestate`, if it has one.
    pub tracestate: Option<HeaderValue>,
}

impl Outgoing {
    /// The value of `traceparent` as that of a field.
    pub fn parent_value(&self) -> HeaderValue {
        HeaderValue::from_bytes(&self.traceparent).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// The trace of a request.
#[derive(Debug)]
pub struct Trace {
    trace_id: TraceId,
    /// The span of the edge; of a request that is not recorded, the ID that the upstream gets.
    own: SpanId,
    flags: u8,
    state: Option<HeaderValue>,
    recorded: Option<Box<Recorded>>,
}

/// The record of a request.
#[derive(Debug)]
struct Recorded {
    tracer: Arc<Tracer>,
    share: Share,
    /// The span of the edge.
    server: Span,
    unix_nanos: u64,
    /// Those that have ended, except for that of the edge.
    spans: Vec<Span>,
    /// How many began.
    count: u64,
    /// How many were not kept.
    left_out: i64,
    /// The open request to an upstream.
    attempt: Option<Span>,
    /// Begin and end of connecting, for the next of them.
    connect: Option<(Instant, Instant)>,
    /// When the head of the response was known.
    answered: Option<Instant>,
    /// The open step that has others within it.
    group: Option<Span>,
    /// Its notes, for its end.
    notes: Vec<String>,
}

impl Recorded {
    fn child(&mut self, name: &str, kind: SpanKind, began: Instant) -> Span {
        self.count += 1;
        let own = u64::from_be_bytes(self.server.span_id);
        let id = match own.wrapping_add(ID_STEP.wrapping_mul(self.count)) {
            0 => own.wrapping_sub(ID_STEP),
            id => id,
        };
        let parent = self.group.as_ref().unwrap_or(&self.server);
        Span {
            span_id: id.to_be_bytes(),
            parent: Some(parent.span_id),
            name: name.to_owned(),
            kind,
            began,
            ended: began,
            attributes: Vec::new(),
            has_failed: false,
        }
    }

    fn keep(&mut self, span: Span) {
        match self.spans.len() + 1 < SPANS_MAX {
            true => self.spans.push(span),
            false => self.left_out += 1,
        }
    }
}

impl Trace {
    /// `own` has the IDs for a new trace and the span of the edge.
    pub(crate) fn new(
        tracer: &Arc<Tracer>,
        parent: Parent,
        begun: Begun,
        own: TraceContext,
        is_recorded: bool,
    ) -> Self {
        let context = parent.context;
        let mut flags = context.map_or(0, |context| context.flags & !TraceContext::SAMPLED);
        if is_recorded {
            flags |= TraceContext::SAMPLED;
        }
        let recorded = || Recorded {
            tracer: Arc::clone(tracer),
            share: begun.share,
            server: Span {
                span_id: own.span_id,
                parent: context.map(|context| context.span_id),
                name: String::new(),
                kind: SpanKind::Server,
                began: begun.at,
                ended: begun.at,
                attributes: Vec::new(),
                has_failed: false,
            },
            unix_nanos: begun.unix_nanos,
            spans: Vec::new(),
            count: 0,
            left_out: 0,
            attempt: None,
            connect: None,
            answered: None,
            group: None,
            notes: Vec::new(),
        };
        Self {
            trace_id: context.map_or(own.trace_id, |context| context.trace_id),
            own: own.span_id,
            flags,
            // Without a valid `traceparent` it means nothing (W3C Trace Context 4.3).
            state: parent.state.filter(|_| context.is_some()),
            recorded: is_recorded.then(|| Box::new(recorded())),
        }
    }

    /// Its ID in hexadecimal digits.
    pub fn id(&self) -> String {
        hex(&self.trace_id)
    }

    /// Whether its spans are recorded.
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// The span of the edge, if it is recorded.
    pub fn server(&mut self) -> Option<&mut Span> {
        self.recorded.as_mut().map(|recorded| &mut recorded.server)
    }

    /// The fields of a request to an upstream: with the span of the open attempt, if there is one.
    pub fn outgoing_fields(&self) -> Outgoing {
        let recorded = self.recorded.as_ref();
        let attempt = recorded.and_then(|recorded| recorded.attempt.as_ref());
        let context = TraceContext {
            trace_id: self.trace_id,
            span_id: attempt.map_or(self.own, |attempt| attempt.span_id),
            flags: self.flags,
        };
        Outgoing {
            traceparent: context.value(),
            tracestate: self.state.clone(),
        }
    }

    /// Adds a step that has ended. Returns it, so that the caller describes it.
    pub fn step(&mut self, name: &str, began: Instant, ended: Instant) -> Option<&mut Span> {
        let recorded = self.recorded.as_mut()?;
        let mut span = recorded.child(name, SpanKind::Internal, began);
        span.ended = ended;
        let count = recorded.spans.len();
        recorded.keep(span);
        recorded.spans.get_mut(count)
    }

    /// Begins a step that others are part of. Returns it, so that the caller describes it.
    pub fn begin_group(&mut self, name: &str, began: Instant) -> Option<&mut Span> {
        self.end_group(began);
        let recorded = self.recorded.as_mut()?;
        let span = recorded.child(name, SpanKind::Internal, began);
        Some(recorded.group.insert(span))
    }

    /// The step that others are part of, if one is open.
    pub fn group(&mut self) -> Option<&mut Span> {
        self.recorded.as_mut()?.group.as_mut()
    }

    /// Ends it.
    pub fn end_group(&mut self, ended: Instant) {
        if let Some(recorded) = &mut self.recorded
            && let Some(mut group) = recorded.group.take()
        {
            group.ended = ended;
            recorded.keep(group);
        }
    }

    /// Notes something for the end of the group.
    pub fn note(&mut self, note: String) {
        if let Some(recorded) = &mut self.recorded
            && recorded.notes.len() < NOTES_MAX
        {
            recorded.notes.push(note);
        }
    }

    /// What was noted.
    pub fn take_notes(&mut self) -> Vec<String> {
        let recorded = self.recorded.as_mut();
        recorded.map_or_else(Vec::new, |recorded| std::mem::take(&mut recorded.notes))
    }

    /// Begins a request to an upstream. One that is open has failed. Returns it, so that the caller describes it.
    pub fn begin_attempt(&mut self, name: &str, began: Instant) -> Option<&mut Span> {
        self.end_attempt("superseded", Instant::now());
        let recorded = self.recorded.as_mut()?;
        let connect = recorded.connect.take();
        let began = connect.map_or(began, |(began, _)| began);
        let span = recorded.child(name, SpanKind::Client, began);
        if let Some((began, ended)) = connect {
            let mut connect = recorded.child("connect", SpanKind::Internal, began);
            (connect.parent, connect.ended) = (Some(span.span_id), ended);
            recorded.keep(connect);
        }
        Some(recorded.attempt.insert(span))
    }

    /// Notes that a connection was opened for the next request to an upstream, or was not.
    pub fn note_connect(&mut self, began: Instant, ended: Instant) {
        if let Some(recorded) = &mut self.recorded {
            recorded.connect = Some((began, ended));
        }
    }

    /// Notes when the head of the response was known. The last one counts.
    pub fn note_answer(&mut self, at: Instant) {
        if let Some(recorded) = &mut self.recorded {
            recorded.answered = Some(at);
        }
    }

    /// The request to an upstream that is open.
    pub fn attempt(&mut self) -> Option<&mut Span> {
        self.recorded.as_mut()?.attempt.as_mut()
    }

    /// Ends the open request to an upstream. `error` is its cause, or empty.
    pub fn end_attempt(&mut self, error: &str, ended: Instant) {
        let Some(recorded) = &mut self.recorded else {
            return;
        };
        if let Some(mut attempt) = recorded.attempt.take() {
            attempt.ended = ended;
            if !error.is_empty() {
                attempt.has_failed = true;
                attempt.set("error.type", error);
            }
            recorded.keep(attempt);
        }
    }

    /// Ends the request, and offers its spans for export. They are dropped, and counted, if there is no room.
    pub fn finish(mut self, ended: Instant) {
        self.end_attempt("abandoned", ended);
        self.end_group(ended);
        let answered = self.recorded.as_ref().and_then(|it| it.answered);
        if let Some(at) = answered {
            self.step("send response", at, ended);
        }
        let Some(recorded) = self.recorded.take() else {
            return;
        };
        let Recorded {
            tracer,
            share,
            mut server,
            unix_nanos,
            mut spans,
            left_out,
            ..
        } = *recorded;
        server.ended = ended;
        if left_out > 0 {
            server.set("culvert.spans_left_out", AttributeValue::Number(left_out));
        }
        let at = (server.began, unix_nanos);
        spans.push(server);
        let bytes = spans.iter().map(Span::bytes).sum();
        let dropped = &tracer.meters().dropped;
        let Some(room) = tracer.queue.room(share, bytes, spans.len()) else {
            return dropped.add(spans.len() as u64);
        };
        let finished = FinishedTrace {
            trace_id: self.trace_id,
            flags: self.flags,
            state: self.state,
            at,
            spans,
            _room: room,
        };
        tracer.queue.add(finished);
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::SeededEntropy;

    use super::*;
    use crate::sampler::Sample;
    use crate::tracer::TracerSettings;

    fn tracer(settings: TracerSettings) -> Arc<Tracer> {
        Tracer::new(settings, Arc::new(SeededEntropy::new(1)))
    }

    fn settings(share: f64) -> TracerSettings {
        TracerSettings {
            sample: Sample::Share(share),
            is_parent_based: true,
            parents_per_second: 3,
            queue_spans: 100,
            queue_bytes: 1 << 20,
        }
    }

    fn begun(owner: &str) -> Begun {
        Begun {
            at: Instant::now(),
            unix_nanos: 1_000_000_000,
            share: Share::new(owner, "ep_1"),
        }
    }

    fn parent(flags: u8, is_trusted: bool) -> Parent {
        Parent {
            context: Some(TraceContext {
                trace_id: [7; 16],
                span_id: [9; 8],
                flags,
            }),
            state: Some(HeaderValue::from_static("a=1")),
            is_trusted,
        }
    }

    fn begin(tracer: &Arc<Tracer>, parent: Parent) -> Option<Box<Trace>> {
        tracer.begin(parent, begun("usr_1"), || None)
    }

    #[test]
    fn a_trace_is_begun_or_continued() {
        let all = tracer(settings(1.0));
        let new = begin(&all, Parent::default()).unwrap();
        assert!(new.is_recorded());
        assert_eq!(&new.outgoing_fields().traceparent[52..], b"-01");
        let continued = begin(&all, parent(3, false)).unwrap();
        let outgoing = continued.outgoing_fields();
        assert_eq!(&outgoing.traceparent[3..35], "07".repeat(16).as_bytes());
        // The span of the edge, and not that of the caller.
        assert_ne!(&outgoing.traceparent[36..52], "09".repeat(8).as_bytes());
        assert_eq!(&outgoing.traceparent[52..], b"-03");
        assert_eq!(outgoing.tracestate.unwrap(), "a=1");
        // The caller does not record it.
        assert!(begin(&all, parent(0, true)).is_none());
        // Without a valid parent its state means nothing.
        let state = Parent {
            context: None,
            ..parent(0, true)
        };
        assert!(
            begin(&all, state)
                .unwrap()
                .outgoing_fields()
                .tracestate
                .is_none()
        );
        let none = tracer(settings(0.0));
        let unrecorded = begin(&none, Parent::default()).unwrap();
        assert!(!unrecorded.is_recorded());
        assert_eq!(&unrecorded.outgoing_fields().traceparent[52..], b"-00");
    }

    #[test]
    fn strangers_cannot_force_records() {
        let tracer = tracer(settings(0.0));
        let recorded = (0..100).filter(|_| begin(&tracer, parent(1, false)).is_some());
        assert!(recorded.count() <= 4);
        assert!(tracer.meters().parents_refused.get() >= 96);
        // Proxies of the operator can.
        for _ in 0..100 {
            assert!(begin(&tracer, parent(1, true)).unwrap().is_recorded());
        }
    }

    #[test]
    fn without_parents_the_share_decides_and_strangers_do_not_choose_the_id() {
        let of_all = |share: f64| TracerSettings {
            is_parent_based: false,
            ..settings(share)
        };
        assert!(begin(&tracer(of_all(1.0)), parent(0, false)).is_some());
        assert!(begin(&tracer(of_all(0.0)), parent(1, true)).is_none());
        let low = |is_trusted| {
            let mut low = parent(1, is_trusted);
            low.context.as_mut().unwrap().trace_id =
                [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
            low
        };
        let few = tracer(of_all(0.01));
        assert!(begin(&few, low(true)).is_some());
        let recorded = (0..200)
            .filter(|_| begin(&few, low(false)).is_some())
            .count();
        assert!(recorded < 20, "{recorded}");
    }

    #[test]
    fn attempts_have_their_own_ids_and_all_spans_the_same_parent() {
        let tracer = tracer(settings(1.0));
        let mut trace = begin(&tracer, parent(1, false)).unwrap();
        let at = Instant::now();
        trace.step("policy", at, at).unwrap().set("x", 1_i64);
        trace.begin_attempt("GET", at).unwrap();
        let first = trace.outgoing_fields().traceparent;
        trace.begin_attempt("GET", at).unwrap();
        let second = trace.outgoing_fields().traceparent;
        assert_ne!(first, second);
        trace.end_attempt("", at);
        trace.finish(at);
        let finished = tracer.take(10).remove(0);
        assert_eq!(finished.spans.len(), 4);
        let server = finished.spans.last().unwrap();
        assert_eq!(server.parent, Some([9; 8]));
        for span in &finished.spans[..3] {
            assert_eq!(span.parent, Some(server.span_id));
        }
        let ids: Vec<String> = finished
            .spans
            .iter()
            .map(|span| hex(&span.span_id))
            .collect();
        assert_eq!(ids[1].as_bytes(), &first[36..52]);
        assert_eq!(ids[2].as_bytes(), &second[36..52]);
        assert!(finished.spans[1].has_failed && !finished.spans[2].has_failed);
    }

    #[test]
    fn spans_and_their_memory_are_bounded_and_shared() {
        let tracer = tracer(TracerSettings {
            queue_spans: 10,
            queue_bytes: 16 << 10,
            ..settings(1.0)
        });
        let finish = |owner: &str, steps: usize| {
            let mut trace = tracer
                .begin(Parent::default(), begun(owner), || None)
                .unwrap();
            for _ in 0..steps {
                let step = trace.step("step", Instant::now(), Instant::now());
                if let Some(step) = step {
                    step.set("text", "x".repeat(4_096).as_str());
                }
            }
            trace.finish(Instant::now());
        };
        finish("usr_1", 4);
        assert_eq!(tracer.waiting(), 5);
        // One owner does not take the room of all.
        finish("usr_1", 9);
        assert_eq!((tracer.waiting(), tracer.meters().dropped.get()), (5, 10));
        finish("usr_2", 0);
        assert_eq!(tracer.waiting(), 6);
        for _ in 0..10 {
            finish("usr_2", 0);
        }
        assert!(tracer.waiting() <= 10);
        assert_eq!(tracer.take(1).len(), 1);
        // A request has a limited number of spans.
        drop(tracer.take(100));
        let mut trace = begin(&tracer, Parent::default()).unwrap();
        for _ in 0..1_000 {
            let _: Option<&mut Span> = trace.step("step", Instant::now(), Instant::now());
        }
        assert_eq!(trace.recorded.as_ref().unwrap().spans.len(), SPANS_MAX - 1);
        assert_eq!(trace.recorded.as_ref().unwrap().left_out, 1_000 - 63);
    }
}
