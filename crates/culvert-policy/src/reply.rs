//! Answers the edge makes itself: each with a status, a code, a sentence and the id of the request,
//! in the form the client prefers.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderName, HeaderValue, RETRY_AFTER,
};
use http::{Response, StatusCode};

use crate::conn::{ConnCounters, ConnInfo};
use crate::problem::{ERROR_CODE, Problem};

/// Names the exchange in the log and in what the client sees.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("culvert-request-id");

impl Problem {
    /// The answer, in the form the request's `accept` prefers.
    pub fn answer(
        self,
        accept: Option<&HeaderValue>,
        info: &ConnInfo,
        counters: &ConnCounters,
    ) -> Response<Bytes> {
        let (status, number, text) = self.row();
        let id = request_id(info, counters);
        let form = Form::of(accept);
        let body = form.body(status, number, text, &id);
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(code) = HeaderValue::try_from(format!("ERR_NGROK_{number}")) {
            headers.insert(ERROR_CODE, code);
        }
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(REQUEST_ID, id);
        }
        if self.is_brief() {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        headers.insert(DATE, date(info));
        *response.body_mut() = body.into();
        response
    }
}

/// An answer of a policy without a body.
pub fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from(0));
    response
}

/// An answer of a policy with a line of text.
pub fn plain(status: StatusCode, text: &'static str) -> Response<Bytes> {
    let mut response = empty(status);
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static(Form::Text.content_type()),
    );
    *response.body_mut() = Bytes::from_static(text.as_bytes());
    response
}

/// An answer that is no refusal: a heading and a sentence, in the form the request's `accept` prefers.
pub fn page(
    accept: Option<&HeaderValue>,
    heading: &'static str,
    text: &'static str,
) -> Response<Bytes> {
    let form = Form::of(accept);
    let body = match form {
        Form::Json => format!(r#"{{"msg":"{text}"}}"#),
        Form::Html => format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{heading}</title>\
             <h1>{heading}</h1><p>{text}</p></html>\n"
        ),
        Form::Text => format!("{text}\n"),
    };
    let mut response = empty(StatusCode::OK);
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    *response.body_mut() = body.into();
    response
}

/// The forms an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Html,
    Text,
}

impl Form {
    /// What the client likes best of the three, of those that it likes alike what it names first; text
    /// when it names none.
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

    /// Nothing here comes from the client, so nothing needs escaping.
    fn body(self, status: StatusCode, number: u16, text: &str, id: &str) -> String {
        let reason = status.canonical_reason().unwrap_or("Error");
        let status = status.as_u16();
        match self {
            Self::Json => format!(
                r#"{{"error_code":"ERR_NGROK_{number}","status_code":{status},"msg":"{text}","details":{{"request_id":"{id}"}}}}"#
            ),
            Self::Html => format!(
                "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{status} {reason}</title>\
                 <h1>{status} {reason}</h1><p>{text}</p><p>ERR_NGROK_{number}, request {id}</p></html>\n"
            ),
            Self::Text => format!("ERR_NGROK_{number}: {text} (request {id})\n"),
        }
    }
}

/// A weight in thousandths (RFC 9110 12.4.2); 0 for what cannot be read.
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

/// The present moment as the `date` field has it.
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
    fn dates() {
        assert_eq!(imf_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(imf_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn each_answer_says_its_code_and_the_request_in_every_form() {
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
            let page = body(Form::Html);
            let reason = problem.status().canonical_reason().unwrap();
            for part in [reason, &code, text, "id-1"] {
                assert!(page.contains(part), "{page}");
            }
            // It is put into JSON and pages as it is.
            assert!(!text.contains(['"', '<', '&', '\\']), "{text}");
        }
    }

    #[test]
    fn the_form_named_first_is_chosen() {
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
