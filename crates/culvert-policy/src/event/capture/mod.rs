//! Captures of requests and responses, which the `capture` action requests and the edge fills.
//!
//! An exchange that captures nothing has no `CaptureDraft`, so it costs one check. The request's body is
//! copied through a [`RequestTap`], which the task that reads the body shares; everything else belongs to
//! the exchange.
//!
//! Not here: where the bytes pass (the edge), where they are stored (delivery).

mod json_path;
mod redaction;

use std::sync::{Arc, Mutex};

use crate::headers::own_cookies::recorded_value;
use culvert_base::Timestamp;
use culvert_base::sync::lock;
use culvert_events::HeaderRules;
use culvert_events::bodies::{
    BodyBudget, BodyBuffer, BodyOmission, BodyShare, CapturedExchange, CapturedMessages,
    CapturedRequest, CapturedResponse, Field, Redact,
};
use culvert_http::authority::Authority;
use culvert_http::target::Received;
use http::header::{CONTENT_TYPE, HOST, HeaderMap};
use http::{StatusCode, request};

use crate::event::{Hidden, shown};
use crate::policy::secret::REDACTED;

pub use json_path::JsonPath;
pub use redaction::{Redaction, decoded, header_key};

/// Largest part of a body that is captured, in bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// Most capture actions that apply to one exchange; further ones are ignored.
const RULES_MAX: usize = 8;

/// What one capture action captures.
#[derive(Debug)]
pub struct CaptureRules {
    /// ID of the owner of the policy's endpoint.
    pub owner: String,
    /// Whether it captures the request.
    pub request: bool,
    /// Whether it captures the response.
    pub response: bool,
    /// Maximum size of the captured part of a body, in bytes.
    pub bytes_max: usize,
    /// Patterns of media types in lower case; empty for all.
    pub content_types: Vec<String>,
    /// When it ends; `None` if it does not.
    pub until: Option<Timestamp>,
    /// What it redacts, and what it reveals.
    pub redaction: Redaction,
}

impl CaptureRules {
    fn takes(&self, headers: &HeaderMap) -> bool {
        if self.content_types.is_empty() {
            return true;
        }
        let value = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
        let value = String::from_utf8_lossy(value.unwrap_or_default()).to_ascii_lowercase();
        let essence = value.split(';').next().unwrap_or_default().trim();
        let mut patterns = self.content_types.iter();
        patterns.any(|pattern| match pattern.split_once('*') {
            None => pattern == essence,
            Some((before, after)) => {
                essence.len() >= before.len() + after.len()
                    && essence.starts_with(before)
                    && essence.ends_with(after)
            }
        })
    }
}

impl Redact for CaptureRules {
    fn redact(&self, messages: &mut CapturedMessages, defaults: &HeaderRules) {
        self.redaction.apply(messages, defaults);
        if !messages.owners.contains(&self.owner) {
            messages.owners.push(self.owner.clone());
        }
    }
}

/// Copies the body of a request in the task that reads the body.
#[derive(Debug)]
pub struct RequestTap(Mutex<Option<TappedBody>>);

#[derive(Debug)]
struct TappedBody {
    buffer: BodyBuffer,
    has_begun: bool,
}

impl RequestTap {
    fn new(budget: &Arc<BodyBudget>, bytes_max: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(TappedBody {
            buffer: BodyBuffer::new(budget, bytes_max),
            has_begun: false,
        }))))
    }

    /// Copies the next bytes.
    pub fn push(&self, data: &[u8]) {
        if let Some(body) = &mut *lock(&self.0) {
            body.has_begun = true;
            body.buffer.push(data);
        }
    }

    /// Copies trailer fields.
    pub fn trailers(&self, trailers: &HeaderMap) {
        if let Some(body) = &mut *lock(&self.0) {
            body.buffer.trailers(fields(trailers));
        }
    }

    /// Marks the body as complete.
    pub fn complete(&self) {
        if let Some(body) = &mut *lock(&self.0) {
            body.has_begun = true;
            body.buffer.complete();
        }
    }

    /// Copies a whole body that was buffered, unless it was copied before.
    pub fn whole(&self, data: &[u8]) {
        if let Some(body) = &mut *lock(&self.0)
            && !std::mem::replace(&mut body.has_begun, true)
        {
            body.buffer.push(data);
            body.buffer.complete();
        }
    }

    fn limit(&self, bytes_max: usize, omitted: Option<BodyOmission>) {
        if let Some(body) = &mut *lock(&self.0) {
            body.buffer.limit(bytes_max, omitted);
        }
    }

    fn take(&self) -> Option<BodyBuffer> {
        lock(&self.0).take().map(|body| body.buffer)
    }
}

/// The capture of an exchange while it is filled.
#[derive(Debug)]
pub(crate) struct CaptureDraft {
    budget: Arc<BodyBudget>,
    rules: Vec<Arc<CaptureRules>>,
    tap: Option<Arc<RequestTap>>,
    /// The head of the request, if the request is captured. Otherwise its body is only copied in case a later rule
    /// captures it.
    request: Option<Head<(String, String)>>,
    wants_response: bool,
    response: Option<(Head<StatusCode>, BodyBuffer)>,
}

/// The head of a message.
#[derive(Debug)]
struct Head<T> {
    start: T,
    headers: Vec<Field>,
    share: BodyShare,
}

impl<T> Head<T> {
    /// `None` if the budget is used up.
    fn of(start: T, extra: usize, headers: &HeaderMap, budget: &Arc<BodyBudget>) -> Option<Self> {
        let bytes = headers.iter().fold(extra, |sum, (name, value)| {
            sum + name.as_str().len() + value.len() + size_of::<Field>()
        });
        let mut share = BodyShare::new(budget);
        if !share.grow(bytes) {
            budget.skip();
            return None;
        }
        Some(Self {
            start,
            headers: fields(headers).collect(),
            share,
        })
    }
}

impl CaptureDraft {
    pub(crate) fn new(budget: &Arc<BodyBudget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            rules: Vec::new(),
            tap: None,
            request: None,
            wants_response: false,
            response: None,
        }
    }

    /// Copies the request's body in case a rule of the response phase captures it.
    pub(crate) fn tap_request(&mut self, bytes_max: usize) {
        if self.tap.is_none() {
            self.tap = Some(RequestTap::new(&self.budget, bytes_max));
        }
    }

    pub(crate) fn tap(&self) -> Option<&Arc<RequestTap>> {
        self.tap.as_ref()
    }

    /// Applies an action. `is_tls` is the scheme of the client's connection.
    pub(crate) fn apply(
        &mut self,
        rules: &Arc<CaptureRules>,
        request: &request::Parts,
        is_tls: bool,
        hidden: Option<&Hidden>,
    ) {
        let is_known = self.rules.iter().any(|known| Arc::ptr_eq(known, rules));
        if is_known || self.rules.len() == RULES_MAX {
            return;
        }
        self.rules.push(Arc::clone(rules));
        self.wants_response |= rules.response;
        if !rules.request {
            return;
        }
        let bytes_max = self.limit(|rules| rules.request, &request.headers);
        let is_hidden = hidden.is_some_and(|hidden| hidden.has_request_body);
        let omitted = match bytes_max {
            None => Some(BodyOmission::ContentType),
            Some(_) => is_hidden.then_some(BodyOmission::Redaction),
        };
        let bytes_max = bytes_max.filter(|_| !is_hidden).unwrap_or(0);
        match &self.tap {
            Some(tap) if self.request.is_none() => tap.limit(bytes_max, omitted),
            // An earlier action decided for this message.
            Some(_) => {}
            None => {
                let tap = RequestTap::new(&self.budget, bytes_max);
                tap.limit(bytes_max, omitted);
                self.tap = Some(tap);
            }
        }
        if self.request.is_none() {
            let url = match hidden.is_some_and(|hidden| hidden.has_target) {
                true => REDACTED.to_owned(),
                false => url_of(request, is_tls),
            };
            let (method, extra) = (request.method.as_str().to_owned(), url.len());
            let fields = hidden.map_or(&[][..], |hidden| &hidden.request_fields);
            let headers = shown(&request.headers, fields);
            self.request = Head::of((method, url), extra, &headers, &self.budget);
        }
    }

    /// The largest limit of the actions that capture the body; `None` if its content type is not captured.
    fn limit(&self, wants: impl Fn(&CaptureRules) -> bool, headers: &HeaderMap) -> Option<usize> {
        let rules = self.rules.iter().filter(|rules| wants(rules));
        let taking = rules.filter(|rules| rules.takes(headers));
        taking.map(|rules| rules.bytes_max).max()
    }

    /// Records the final head of the response.
    pub(crate) fn answer(&mut self, status: StatusCode, headers: &HeaderMap, is_secret: bool) {
        if !self.wants_response {
            return;
        }
        let bytes_max = self.limit(|rules| rules.response, headers);
        let mut body = BodyBuffer::new(&self.budget, bytes_max.unwrap_or(0));
        if bytes_max.is_none() {
            body.limit(0, Some(BodyOmission::ContentType));
        } else if is_secret {
            body.limit(0, Some(BodyOmission::Redaction));
        }
        let head = Head::of(status, 0, headers, &self.budget);
        self.response = head.map(|head| (head, body));
    }

    /// Copies body bytes of the response.
    pub(crate) fn sent(&mut self, data: &[u8]) {
        if let Some((_, body)) = &mut self.response {
            body.push(data);
        }
    }

    /// Copies trailers of the response.
    pub(crate) fn sent_trailers(&mut self, trailers: &HeaderMap) {
        if let Some((_, body)) = &mut self.response {
            body.trailers(fields(trailers));
        }
    }

    /// The captured messages; `None` if there are none. `is_answered` says whether the response is complete.
    pub(crate) fn finish(
        self,
        is_answered: bool,
        defaults: &Arc<HeaderRules>,
    ) -> Option<Box<CapturedExchange>> {
        let mut share = BodyShare::new(&self.budget);
        let body = self.tap.and_then(|tap| tap.take());
        let request = self.request.zip(body).map(|(head, body)| {
            let (body, trailers, of_body) = body.finish();
            share.merge(head.share);
            share.merge(of_body);
            let (method, url) = head.start;
            CapturedRequest {
                method,
                url,
                is_url_redacted: false,
                headers: head.headers,
                trailers,
                body,
            }
        });
        let response = self.response.map(|(head, mut body)| {
            if is_answered {
                body.complete();
            }
            let (body, trailers, of_body) = body.finish();
            share.merge(head.share);
            share.merge(of_body);
            CapturedResponse {
                status_code: head.start.as_u16(),
                headers: head.headers,
                trailers,
                body,
            }
        });
        if request.is_none() && response.is_none() {
            return None;
        }
        let rules = self.rules.into_iter().map(|rules| rules as Arc<dyn Redact>);
        let messages = CapturedMessages {
            request,
            response,
            owners: Vec::new(),
        };
        let rules = rules.collect();
        let exchange = CapturedExchange::new(messages, rules, Arc::clone(defaults), share);
        Some(Box::new(exchange))
    }
}

fn fields(headers: &HeaderMap) -> impl Iterator<Item = Field> {
    headers
        .iter()
        .map(|(name, value)| Field::new(name.as_str(), recorded_value(name, value)))
}

/// The URL as received.
fn url_of(parts: &request::Parts, is_tls: bool) -> String {
    let host = parts.headers.get(HOST);
    let authority = Authority::of(parts.version, &parts.uri, host);
    let authority = authority.map_or("", |authority| authority.text);
    let received = parts.extensions.get::<Received>();
    let path = match received.map(Received::path) {
        Some("") => "/",
        Some(path) => path,
        None => parts.uri.path(),
    };
    let query = match received {
        Some(received) => received.query(),
        None => parts.uri.query(),
    };
    let (mark, query) = (query.map_or("", |_| "?"), query.unwrap_or_default());
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{authority}{path}{mark}{query}")
}

#[cfg(test)]
mod tests {
    use culvert_base::Timestamp;
    use http::header::HeaderValue;

    use super::*;

    fn rules(content_types: &[&str]) -> CaptureRules {
        CaptureRules {
            owner: "usr_1".to_owned(),
            request: true,
            response: true,
            bytes_max: 10,
            content_types: content_types.iter().map(ToString::to_string).collect(),
            until: None::<Timestamp>,
            redaction: Redaction::default(),
        }
    }

    #[test]
    fn content_types_are_matched_without_case_and_parameters() {
        let headers = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            headers
        };
        for (patterns, value, is_taken) in [
            (&["application/json"][..], "application/json", true),
            (
                &["application/json"],
                "Application/JSON ; charset=utf-8",
                true,
            ),
            (&["application/json"], "application/jsonp", false),
            (&["text/*"], "text/html", true),
            (&["application/*+json"], "application/a+json", true),
            (&["application/*+json"], "application/+jso", false),
            (&["text/*", "image/png"], "image/png", true),
            (&["text/*"], "", false),
            (&[], "x/y", true),
        ] {
            let rules = rules(patterns);
            assert_eq!(
                rules.takes(&headers(value)),
                is_taken,
                "{patterns:?} {value}"
            );
        }
        assert!(!rules(&["text/*"]).takes(&HeaderMap::new()));
    }

    #[test]
    fn an_unconfirmed_request_is_not_captured_and_frees_its_memory() {
        let budget = BodyBudget::new(1 << 20);
        let mut draft = CaptureDraft::new(&budget);
        draft.tap_request(100);
        draft.tap().unwrap().push(b"secret");
        assert!(budget.used() > 0);
        assert!(draft.finish(true, &Arc::default()).is_none());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn both_messages_are_captured_until_the_end() {
        let budget = BodyBudget::new(1 << 20);
        let mut draft = CaptureDraft::new(&budget);
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.uri = "/a?b=c".parse().unwrap();
        parts
            .headers
            .insert(HOST, HeaderValue::from_static("x.test"));
        draft.apply(&Arc::new(rules(&[])), &parts, true, None);
        let tap = Arc::clone(draft.tap().unwrap());
        tap.push(b"0123456789abcdef");
        draft.answer(StatusCode::OK, &HeaderMap::new(), false);
        draft.sent(b"hello");
        let captured = draft.finish(false, &Arc::default()).unwrap();
        // The task that reads the body may still run.
        tap.push(b"late");
        let (messages, share) = captured.finish();
        let (request, response) = (messages.request.unwrap(), messages.response.unwrap());
        assert_eq!(request.url, "https://x.test/a?b=c");
        assert_eq!(
            (&*request.body.bytes, request.body.length),
            (&b"0123456789"[..], 16)
        );
        assert!(request.body.is_truncated && response.body.is_truncated);
        assert_eq!(response.body.bytes, b"hello");
        drop((share, tap));
        assert_eq!(budget.used(), 0);
    }
}
