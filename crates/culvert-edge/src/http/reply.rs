//! Answers the edge makes itself: each with a status, a code, a sentence and the id of the request,
//! in the form the client prefers.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderName, HeaderValue, RETRY_AFTER,
};
use http::{Response, StatusCode};

use crate::downstream::Downstream;
use crate::http::fields::ERROR_CODE;
use crate::http::framing::Violation;

/// Names the exchange in the log and in what the client sees.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("culvert-request-id");

/// Why the edge answers in the place of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// What is on the wire is refused.
    Violation(Violation),
    /// The request names no host, or more than one.
    Authority,
    /// The target or a field is not acceptable.
    Malformed,
    /// No endpoint has this host.
    UnknownHost,
    /// The client's address is not admitted.
    Restricted,
    /// The connection is for another endpoint.
    Misdirected,
    /// A method that is not served.
    Method,
    /// An expectation other than `100-continue`.
    Expectation,
    /// An upgrade to WebSocket that is not one.
    Upgrade,
    /// The upstream does not take connections.
    Unreachable,
    /// The upstream's answer broke off or cannot be taken.
    BadAnswer,
    /// The upstream did not answer in time.
    UpstreamTooSlow,
    /// The endpoint's upstream cannot be spoken to like this.
    Unsuited,
    /// The traffic policy does not admit the client's address.
    NotAdmitted,
    /// The traffic policy leaves the upstream alone for now.
    BreakerOpen,
    /// The body is longer than the edge takes.
    Oversized,
    /// An action of the traffic policy has to see the whole body, and it is too long.
    BodyTooLong,
    /// The same for the upstream's answer.
    AnswerTooLong,
    /// The same, and too many are held.
    NoRoom,
    /// A webhook is not signed by its provider.
    Webhook,
    /// There is no signed token.
    NoToken,
    /// There is something else in its place.
    BadToken,
    /// The token is not one that is let in.
    TokenRefused,
    /// The keys to check tokens by cannot be had.
    NoKeys,
    /// The traffic policy forwards to an internal endpoint that is not there.
    NoInternal,
    /// The traffic policies of internal endpoints forward too often.
    Hops,
    /// Nobody is logged in, and the request is no page that a log-in could come back to.
    LoginFirst,
    /// Where to go after the log-in is no path of this host.
    LoginPath,
    /// A user comes back without the cookie that the log-in began with.
    LoginCookie,
    /// Without the state.
    LoginNoState,
    /// With a state that is not ours, too old, or was used.
    LoginState,
    /// With a state of another host.
    LoginOtherHost,
    /// The provider does not let the user in.
    LoginDenied,
    /// The provider gives no e-mail address.
    LoginNoEmail,
    /// The provider does not say who the user is.
    LoginNobody,
    /// The provider's ID token is not to be believed.
    LoginToken,
    /// The provider cannot be asked.
    LoginProvider,
    /// Too many log in at once, or have.
    LoginBusy,
    /// An action of the traffic policy failed.
    Policy,
    /// The traffic policy is at its end and the endpoint has no upstream.
    Unhandled,
    /// The edge has no room for the request now.
    Overloaded,
    /// The agents that serve the endpoint have no room for it.
    AgentBusy,
}

impl Problem {
    /// Status, number of the code, and the sentence.
    fn row(self) -> (StatusCode, u16, &'static str) {
        match self {
            Self::Violation(Violation::Malformed(_)) | Self::Malformed => {
                (StatusCode::BAD_REQUEST, 3601, "The request is malformed.")
            }
            Self::Violation(Violation::TargetTooLong) => (
                StatusCode::URI_TOO_LONG,
                3602,
                "The request line is too long.",
            ),
            Self::Violation(Violation::FieldsTooLarge) => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                3603,
                "The request's header fields are too large or too many.",
            ),
            Self::Violation(Violation::Method) | Self::Method => (
                StatusCode::METHOD_NOT_ALLOWED,
                3604,
                "The method is not served here.",
            ),
            Self::Violation(Violation::TooSlow) => (
                StatusCode::REQUEST_TIMEOUT,
                3605,
                "The request did not arrive in time.",
            ),
            Self::Authority => (
                StatusCode::BAD_REQUEST,
                3606,
                "The request does not name exactly one host.",
            ),
            Self::UnknownHost => (
                StatusCode::NOT_FOUND,
                3200,
                "No endpoint is online at this host.",
            ),
            Self::Restricted => (
                StatusCode::FORBIDDEN,
                3205,
                "An IP restriction does not admit the address of this client.",
            ),
            Self::Misdirected => (
                StatusCode::MISDIRECTED_REQUEST,
                3607,
                "The connection was made for another host.",
            ),
            Self::Expectation => (
                StatusCode::EXPECTATION_FAILED,
                3608,
                "The expectation cannot be met.",
            ),
            Self::Upgrade => (
                StatusCode::BAD_REQUEST,
                3609,
                "The WebSocket handshake is not valid.",
            ),
            Self::Unreachable => (
                StatusCode::BAD_GATEWAY,
                8012,
                "The endpoint is online, but its upstream cannot be reached.",
            ),
            Self::BadAnswer => (
                StatusCode::BAD_GATEWAY,
                3004,
                "The upstream's answer is incomplete or not valid HTTP.",
            ),
            Self::UpstreamTooSlow => (
                StatusCode::GATEWAY_TIMEOUT,
                3610,
                "The upstream did not answer in time.",
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                3620,
                "The edge is overloaded; try again in a moment.",
            ),
            Self::AgentBusy => (
                StatusCode::SERVICE_UNAVAILABLE,
                3621,
                "The agent of this endpoint serves as many connections as it can; try again in a moment.",
            ),
            Self::Unsuited => (
                StatusCode::SERVICE_UNAVAILABLE,
                3611,
                "The endpoint's upstream does not take this kind of request.",
            ),
            Self::NotAdmitted => (
                StatusCode::FORBIDDEN,
                3203,
                "The traffic policy does not admit the address of this client.",
            ),
            Self::BreakerOpen => (
                StatusCode::SERVICE_UNAVAILABLE,
                3202,
                "The endpoint's upstream failed too often and is left alone for now.",
            ),
            Self::BodyTooLong => (
                StatusCode::PAYLOAD_TOO_LARGE,
                3612,
                "The request's body is longer than the traffic policy takes.",
            ),
            Self::Oversized => (
                StatusCode::PAYLOAD_TOO_LARGE,
                3616,
                "The request's body is longer than is taken here.",
            ),
            Self::AnswerTooLong => (
                StatusCode::BAD_GATEWAY,
                3614,
                "The upstream's answer is longer than the traffic policy takes.",
            ),
            Self::NoRoom => (
                StatusCode::SERVICE_UNAVAILABLE,
                3613,
                "Too many requests are being read at once.",
            ),
            Self::Webhook => (
                StatusCode::FORBIDDEN,
                3204,
                "The request is not a webhook that its provider signed.",
            ),
            Self::NoToken => (
                StatusCode::UNAUTHORIZED,
                3401,
                "The request carries no token.",
            ),
            Self::BadToken => (
                StatusCode::UNAUTHORIZED,
                3406,
                "What the request carries is not a signed token.",
            ),
            Self::TokenRefused => (
                StatusCode::FORBIDDEN,
                3403,
                "The token that the request carries is not accepted.",
            ),
            Self::NoKeys => (
                StatusCode::BAD_GATEWAY,
                3422,
                "The keys to check the token by cannot be fetched.",
            ),
            Self::NoInternal => (
                StatusCode::BAD_GATEWAY,
                3615,
                "The internal endpoint that the traffic policy forwards to is not online.",
            ),
            Self::Hops => (
                StatusCode::BAD_GATEWAY,
                3501,
                "The traffic policies forward from endpoint to endpoint too often.",
            ),
            Self::LoginFirst => (StatusCode::UNAUTHORIZED, 3100, "Log in first."),
            Self::LoginPath => (
                StatusCode::BAD_REQUEST,
                3106,
                "The redirect_path is not a path of this host.",
            ),
            Self::LoginCookie => (
                StatusCode::BAD_REQUEST,
                3107,
                "This log-in did not begin in this browser, or the browser did not keep its cookie; begin again.",
            ),
            Self::LoginNoState => (
                StatusCode::BAD_REQUEST,
                3120,
                "The identity provider did not send the state parameter back; begin again.",
            ),
            Self::LoginState => (
                StatusCode::BAD_REQUEST,
                3108,
                "The log-in is not valid, has taken too long, or is over already; begin again.",
            ),
            Self::LoginOtherHost => (
                StatusCode::BAD_REQUEST,
                3124,
                "The log-in began on another host; begin again.",
            ),
            Self::LoginDenied => (
                StatusCode::FORBIDDEN,
                3125,
                "The identity provider does not let you in.",
            ),
            Self::LoginNoEmail => (
                StatusCode::FORBIDDEN,
                3109,
                "The identity provider gives no verified e-mail address of yours.",
            ),
            Self::LoginNobody => (
                StatusCode::FORBIDDEN,
                3110,
                "The identity provider does not say who you are.",
            ),
            Self::LoginToken => (
                StatusCode::FORBIDDEN,
                3303,
                "The identity provider's ID token is not valid.",
            ),
            Self::LoginProvider => (
                StatusCode::BAD_GATEWAY,
                5536,
                "The identity provider cannot be reached, or its answer is not understood.",
            ),
            Self::LoginBusy => (
                StatusCode::SERVICE_UNAVAILABLE,
                3127,
                "Nobody else can log in now; try again in a moment.",
            ),
            Self::Policy => (
                StatusCode::INTERNAL_SERVER_ERROR,
                2300,
                "An action of the traffic policy failed.",
            ),
            Self::Unhandled => (
                StatusCode::SERVICE_UNAVAILABLE,
                6029,
                "The traffic policy has no answer to this request, and the endpoint has no upstream.",
            ),
        }
    }

    /// Whether the upstream is to blame.
    pub(crate) fn is_upstreams(self) -> bool {
        matches!(
            self,
            Self::Unreachable | Self::BadAnswer | Self::UpstreamTooSlow
        )
    }

    /// Its sentence.
    pub(crate) fn text(self) -> &'static str {
        self.row().2
    }

    /// Its code as text.
    pub(crate) fn code(self) -> String {
        format!("ERR_NGROK_{}", self.row().1)
    }

    /// What it says.
    pub(crate) fn sentence(self) -> &'static str {
        self.row().2
    }

    /// The status it is answered with.
    pub(crate) fn status(self) -> StatusCode {
        self.row().0
    }

    /// The answer, in the form the request's `accept` prefers.
    pub(crate) fn answer(self, accept: Option<&HeaderValue>, down: &Downstream) -> Response<Bytes> {
        let (status, number, text) = self.row();
        let id = request_id(down);
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
        if matches!(self, Self::Overloaded | Self::AgentBusy | Self::LoginBusy) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        headers.insert(DATE, date(down));
        *response.body_mut() = body.into();
        response
    }

    /// The answer as HTTP/1 bytes, for a connection that is closed after it.
    pub(crate) fn bytes(self, down: &Downstream) -> Vec<u8> {
        let response = self.answer(None, down);
        let (parts, body) = response.into_parts();
        let reason = parts.status.canonical_reason().unwrap_or("");
        let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", parts.status.as_str()).into_bytes();
        for (name, value) in &parts.headers {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"connection: close\r\n\r\n");
        bytes.extend_from_slice(&body);
        bytes
    }
}

/// An answer of a policy without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from(0));
    response
}

/// An answer of a policy with a line of text.
pub(crate) fn plain(status: StatusCode, text: &'static str) -> Response<Bytes> {
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
pub(crate) fn page(
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
    /// What the client names first of the three; text when it names none.
    fn of(accept: Option<&HeaderValue>) -> Self {
        if let Some(value) = accept {
            for part in value.as_bytes().split(|&b| b == b',') {
                let media = part
                    .split(|&b| b == b';')
                    .next()
                    .unwrap_or_default()
                    .trim_ascii();
                if media.eq_ignore_ascii_case(b"application/json") {
                    return Self::Json;
                }
                if media.eq_ignore_ascii_case(b"text/html") {
                    return Self::Html;
                }
                if media.eq_ignore_ascii_case(b"text/plain") {
                    return Self::Text;
                }
            }
        }
        Self::Text
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

/// The id of the connection's current request: accept time, client port, number on the connection.
fn request_id(down: &Downstream) -> String {
    let begun = down.begun.load(std::sync::atomic::Ordering::Relaxed);
    format!(
        "{:x}-{:x}-{begun:x}",
        down.started_at().unix_nanos(),
        down.client.port()
    )
}

/// The present moment as the `date` field has it.
pub(crate) fn date(down: &Downstream) -> HeaderValue {
    use std::cell::RefCell;
    thread_local! {
        static LAST: RefCell<(i64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
    }
    let now = down.now().unix_seconds();
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
    fn the_form_named_first_is_chosen() {
        for (accept, form) in [
            ("text/html,application/json", Form::Html),
            ("application/json;q=0.1", Form::Json),
            ("*/*", Form::Text),
            ("image/png, Text/Plain", Form::Text),
        ] {
            let value = HeaderValue::from_static(accept);
            assert_eq!(Form::of(Some(&value)), form, "{accept}");
        }
    }
}
