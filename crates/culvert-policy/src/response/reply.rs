//! Responses that the edge makes itself: each with a status, a code, a sentence and the ID of the request,
//! in the form that the client prefers.

use bytes::Bytes;
use culvert_events::Reason;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, DATE, HOST, HeaderValue,
    REFERRER_POLICY, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Response, StatusCode, Uri};

use crate::conn::{ConnCounters, ConnInfo};
use crate::response::error_page::{self, ErrorPages, PageValues};
use crate::response::problem::{ERROR_CODE, Problem, REQUEST_ID};

/// The request that a response is for, as far as the response depends on it.
#[derive(Clone, Copy, Debug)]
pub struct ReplyContext<'x> {
    /// Facts of the connection.
    pub info: &'x ConnInfo,
    /// Counters of the connection.
    pub counters: &'x ConnCounters,
    /// The pages for clients that prefer HTML.
    pub pages: &'x ErrorPages,
    /// The `accept` field of the request.
    pub accept: Option<&'x HeaderValue>,
    /// The host as the client sent it; empty if there is none.
    pub host: &'x str,
    /// Why the edge responds, if that is known better than from the problem.
    pub cause: Option<Reason>,
}

impl ReplyContext<'_> {
    /// Sets the ID of the request, and the body in a form that must not be stored.
    fn fill(&self, response: &mut Response<Bytes>, form: Form, id: String, body: Body) {
        let headers = response.headers_mut();
        if let Body::Page(_, policy) = &body {
            headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        }
        let (Body::Page(text, _) | Body::Text(text)) = body;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(REQUEST_ID, id);
        }
        *response.body_mut() = text.into();
    }
}

/// The host of a request as the client sent it; empty if it has none or it is not ASCII.
pub fn host<'x>(uri: &'x Uri, headers: &'x HeaderMap) -> &'x str {
    match uri.authority() {
        Some(authority) => authority.as_str(),
        None => {
            let field = headers.get(HOST).and_then(|host| host.to_str().ok());
            field.unwrap_or_default()
        }
    }
}

/// The body of a response.
enum Body {
    Text(String),
    /// A page with its content security policy.
    Page(String, HeaderValue),
}

impl Problem {
    /// The response, in the form that the request's `accept` prefers.
    pub fn answer(self, to: &ReplyContext<'_>) -> Response<Bytes> {
        let (status, number, text) = self.row();
        let id = request_id(to.info, to.counters);
        let form = Form::of(to.accept);
        let body = match form {
            Form::Html => {
                let (page, policy) = to.pages.render(&PageValues {
                    status,
                    reason: "",
                    code: Some(number),
                    request_id: &id,
                    host: to.host,
                    message: text,
                    advice: self.advice(),
                    owner_help: self.owner_help(),
                    cause: to.cause.or(self.reason()),
                });
                Body::Page(page, policy)
            }
            form => Body::Text(form.body(status, number, text, &id)),
        };
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = status;
        to.fill(&mut response, form, id, body);
        let headers = response.headers_mut();
        if let Ok(code) = HeaderValue::try_from(format!("ERR_NGROK_{number}")) {
            headers.insert(ERROR_CODE, code);
        }
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        headers.insert(DATE, date(to.info));
        response
    }
}

/// A response of a policy without a body.
pub fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from(0));
    response
}

/// A rejection by an action of a policy: a page for clients that prefer HTML, `text` for others.
#[derive(Clone, Copy, Debug)]
pub struct Rejection {
    /// The body for clients that do not prefer HTML; may be empty.
    pub text: &'static str,
    /// The sentence of the page.
    pub message: &'static str,
    /// What a visitor can do about it.
    pub advice: &'static str,
    /// What the owner of the endpoint can do about it. `` ` `` surrounds code.
    pub owner_help: &'static str,
}

impl Rejection {
    /// The response. It has the ID of the request and no error code.
    pub(crate) fn answer(&self, status: StatusCode, to: &ReplyContext<'_>) -> Response<Bytes> {
        let id = request_id(to.info, to.counters);
        let mut response = empty(status);
        if Form::of(to.accept) == Form::Html {
            let (page, policy) = to.pages.render(&PageValues {
                status,
                reason: "",
                code: None,
                request_id: &id,
                host: to.host,
                message: self.message,
                advice: self.advice,
                owner_help: self.owner_help,
                cause: None,
            });
            to.fill(&mut response, Form::Html, id, Body::Page(page, policy));
            return response;
        }
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(REQUEST_ID, id);
        }
        if !self.text.is_empty() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(self.text.len()));
            let media = HeaderValue::from_static(Form::Text.content_type());
            headers.insert(CONTENT_TYPE, media);
            *response.body_mut() = Bytes::from_static(self.text.as_bytes());
        }
        response
    }
}

/// A page with a button that sends a POST request to the address of the page. Clients that do not prefer HTML get the
/// text.
pub fn confirmation(
    to: &ReplyContext<'_>,
    heading: &'static str,
    text: &'static str,
    button: &'static str,
) -> Response<Bytes> {
    if Form::of(to.accept) != Form::Html {
        return page(to, heading, text);
    }
    let id = request_id(to.info, to.counters);
    let (page, policy) = error_page::confirmation(&PageValues {
        status: StatusCode::OK,
        reason: heading,
        code: None,
        request_id: &id,
        host: to.host,
        message: text,
        advice: button,
        owner_help: "",
        cause: None,
    });
    let mut response = empty(StatusCode::OK);
    to.fill(&mut response, Form::Html, id, Body::Page(page, policy));
    // With another policy, old browsers would not say that the form is of this site.
    let same_origin = HeaderValue::from_static("same-origin");
    response.headers_mut().insert(REFERRER_POLICY, same_origin);
    response
}

/// A response that is not an error: a heading and a sentence, in the form that the request's `accept` prefers.
pub fn page(to: &ReplyContext<'_>, heading: &'static str, text: &'static str) -> Response<Bytes> {
    let form = Form::of(to.accept);
    let id = request_id(to.info, to.counters);
    let body = match form {
        Form::Json => Body::Text(format!(r#"{{"msg":"{text}"}}"#)),
        Form::Text => Body::Text(format!("{text}\n")),
        Form::Html => {
            let (page, policy) = error_page::notice(&PageValues {
                status: StatusCode::OK,
                reason: heading,
                code: None,
                request_id: &id,
                host: to.host,
                message: text,
                advice: "",
                owner_help: "",
                cause: None,
            });
            Body::Page(page, policy)
        }
    };
    let mut response = empty(StatusCode::OK);
    to.fill(&mut response, form, id, body);
    response
}

/// The forms of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Html,
    Text,
}

impl Form {
    /// The form that the client prefers; among equal preferences the one that it lists first; text if it lists none of
    /// the three.
    fn of(accept: Option<&HeaderValue>) -> Self {
        let value = accept.map_or(&b""[..], HeaderValue::as_bytes);
        let mut best = (0, Self::Text);
        for range in value.split(|&b| b == b',') {
            let mut parts = range.split(|&b| b == b';').map(<[u8]>::trim_ascii);
            let media = parts.next().unwrap_or_default();
            let form = [Self::Json, Self::Html, Self::Text]
                .into_iter()
                .find(|form| media.eq_ignore_ascii_case(form.media()));
            let Some(form) = form else { continue };
            let weight = parts.find_map(weight).unwrap_or(1000);
            if weight > best.0 {
                best = (weight, form);
            }
        }
        best.1
    }

    fn media(self) -> &'static [u8] {
        match self {
            Self::Json => b"application/json",
            Self::Html => b"text/html",
            Self::Text => b"text/plain",
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Html => "text/html; charset=utf-8",
            Self::Text => "text/plain; charset=utf-8",
        }
    }

    /// The body of a response to a program. Nothing in it comes from the client, so nothing needs escaping.
    fn body(self, status: StatusCode, number: u16, text: &str, id: &str) -> String {
        let status = status.as_u16();
        match self {
            Self::Json => format!(
                r#"{{"error_code":"ERR_NGROK_{number}","status_code":{status},"msg":"{text}","details":{{"request_id":"{id}"}}}}"#
            ),
            Self::Html | Self::Text => format!("ERR_NGROK_{number}: {text} (request {id})\n"),
        }
    }
}

/// A weight in thousandths (RFC 9110 section 12.4.2); 0 if it is malformed.
fn weight(parameter: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(parameter).ok()?;
    let weight = text
        .strip_prefix("q=")
        .or_else(|| text.strip_prefix("Q="))?;
    let weight: f32 = weight.parse().unwrap_or(0.0);
    Some((weight.clamp(0.0, 1.0) * 1000.0) as u16)
}

/// The id of the connection's current request: accept time, client port, number on the connection.
fn request_id(info: &ConnInfo, counters: &ConnCounters) -> String {
    let begun = counters.begun.load(std::sync::atomic::Ordering::Relaxed);
    format!(
        "{:x}-{:x}-{begun:x}",
        info.started_at().unix_nanos(),
        info.client.port()
    )
}

/// The current time in the form of the `date` field.
pub fn date(info: &ConnInfo) -> HeaderValue {
    use std::cell::RefCell;
    thread_local! {
        static LAST: RefCell<(i64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
    }
    let now = info.now().unix_seconds();
    LAST.with(|last| {
        let mut last = last.borrow_mut();
        if last.0 != now {
            *last = (
                now,
                HeaderValue::try_from(imf_date(now))
                    .unwrap_or_else(|_| HeaderValue::from_static("")),
            );
        }
        last.1.clone()
    })
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 5.6.7).
fn imf_date(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let plain = culvert_base::Timestamp::from_unix_seconds(seconds).to_string();
    let part = |from: usize, to: usize| plain.get(from..to).unwrap_or("00");
    let day = usize::try_from(seconds.div_euclid(86_400).rem_euclid(7)).unwrap_or(0);
    let month = part(5, 7).parse::<usize>().unwrap_or(1).saturating_sub(1);
    format!(
        "{}, {} {} {} {} GMT",
        DAYS.get(day).unwrap_or(&"Thu"),
        part(8, 10),
        MONTHS.get(month).unwrap_or(&"Jan"),
        part(0, 4),
        part(11, 19)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_dates_are_formatted() {
        assert_eq!(imf_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(imf_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn every_form_of_a_problem_has_its_code_and_the_request_id() {
        for problem in Problem::ALL {
            let (code, text) = (problem.code(), problem.sentence());
            let number = code.rsplit('_').next().unwrap().parse().unwrap();
            let body = |form: Form| form.body(problem.status(), number, text, "id-1");
            let json: serde_json::Value = serde_json::from_str(&body(Form::Json)).unwrap();
            assert_eq!(
                json,
                serde_json::json!({
                    "error_code": code, "status_code": problem.status().as_u16(), "msg": text,
                    "details": {"request_id": "id-1"},
                })
            );
            assert_eq!(body(Form::Text), format!("{code}: {text} (request id-1)\n"));
            // It is put into JSON as it is.
            assert!(!text.contains(['"', '<', '&', '\\']), "{text}");
        }
    }

    #[test]
    fn the_preferred_form_of_the_client_is_chosen() {
        for (accept, form) in [
            ("text/html,application/json", Form::Html),
            ("application/json;q=0.1", Form::Json),
            ("*/*", Form::Text),
            ("image/png, Text/Plain", Form::Text),
            ("text/html;q=0.5, application/json ; q=0.9", Form::Json),
            ("text/html;q=0", Form::Text),
            (
                "text/html;level=1;q=x, application/json;Q=0.001",
                Form::Json,
            ),
            ("", Form::Text),
        ] {
            let value = HeaderValue::from_static(accept);
            assert_eq!(Form::of(Some(&value)), form, "{accept}");
        }
    }
}
