//! Responses of the agent's API and page.

use culvert_http::coding;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Value, json};

/// A response whose body is complete.
pub(crate) type Reply = Response<Full<Bytes>>;

/// What the page may load: its own files, and images of recorded bodies.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; \
     form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// An error of the API, in the form of ngrok's agent API.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: u16,
    message: String,
    cause: String,
}

impl Problem {
    /// The numbers are those of ngrok's agent API.
    fn new(status: StatusCode, code: u16, message: &str, cause: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            cause: cause.into(),
        }
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, 100, "Not found", what)
    }

    pub(crate) fn invalid(cause: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, 102, "Invalid request", cause)
    }

    pub(crate) fn forbidden(cause: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, 101, "Forbidden", cause)
    }

    pub(crate) fn too_long() -> Self {
        let why = "the body is too long";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, 102, "Invalid request", why)
    }

    pub(crate) fn wrong_method() -> Self {
        let why = "the path does not support this method";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            100,
            "Method not allowed",
            why,
        )
    }

    /// The server or the service did not do what was asked.
    pub(crate) fn failed(cause: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, 103, "Failed", cause)
    }

    /// The agent has no connection to a server.
    pub(crate) fn offline(cause: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, 104, "Not ready", cause)
    }

    pub(crate) fn reply(&self) -> Reply {
        let body = json!({
            "error_code": self.code,
            "status_code": self.status.as_u16(),
            "msg": self.message,
            "details": {"err": self.cause},
        });
        with_status(
            self.status,
            "application/json",
            Bytes::from(body.to_string()),
        )
    }
}

/// A JSON response.
pub(crate) fn data(status: StatusCode, value: &Value) -> Reply {
    with_status(status, "application/json", Bytes::from(value.to_string()))
}

/// 204.
pub(crate) fn empty() -> Reply {
    with_status(
        StatusCode::NO_CONTENT,
        "text/plain; charset=utf-8",
        Bytes::new(),
    )
}

/// A redirect to a path of this server.
pub(crate) fn see_other(to: &'static str) -> Reply {
    let kind = "text/plain; charset=utf-8";
    let mut reply = with_status(StatusCode::SEE_OTHER, kind, Bytes::new());
    let headers = reply.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_static(to));
    reply
}

/// A file of the page, compressed if the client accepts that.
pub(crate) fn file(file: &'static culvert_console::File, request: &HeaderMap) -> Reply {
    let field = |name: header::HeaderName| {
        let value = request.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    };
    let is_known = field(header::IF_NONE_MATCH)
        .split(',')
        .any(|tag| tag.trim() == file.tag());
    let (status, body, coding) = match is_known {
        true => (StatusCode::NOT_MODIFIED, &[][..], None),
        false => {
            let coding = coding::negotiate_named(request, file.codings());
            (StatusCode::OK, file.encoded(coding), coding)
        }
    };
    let mut reply = with_status(status, file.media_type, Bytes::from_static(body));
    let headers = reply.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(coding) = coding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    if let Ok(tag) = HeaderValue::from_str(file.tag()) {
        headers.insert(header::ETAG, tag);
    }
    reply
}

fn with_status(status: StatusCode, kind: &'static str, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let policy = header::HeaderName::from_static("cross-origin-resource-policy");
    headers.insert(policy, HeaderValue::from_static("same-origin"));
    reply
}
