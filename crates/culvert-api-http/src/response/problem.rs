//! Error responses, and the only place that maps errors to HTTP status codes (contract: management API 1.14).
//!
//! Any step of a request may return a [`Problem`]. [`Problem::into_response`] turns it into a response: the status
//! from the refusal's class, the JSON body that all clients parse, `cache-control: no-store`, and the header that its
//! status requires. It logs a fault with its causes and the operation id; the caller gets one sentence.

use std::time::Duration;

use culvert_base::{Class, Fault, Refusal, code};
use culvert_resources::Error;
use culvert_resources::operation::shown_id;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderValue, Response, StatusCode};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::response::answer::{Body, JSON, NO_STORE};

/// Why a request failed. Boxed, because most requests succeed and their results should stay small.
#[derive(Debug)]
pub struct Problem(Box<Inner>);

#[derive(Debug)]
struct Inner {
    status: StatusCode,
    refusal: Refusal,
    fault: Option<Fault>,
    allow: Option<HeaderValue>,
    retry_after: Option<u64>,
}

impl Problem {
    /// The path exists, but only with the methods in `allow`.
    pub fn wrong_method(allow: HeaderValue) -> Self {
        let methods = allow.to_str().unwrap_or_default().to_owned();
        let refusal = Refusal::uncoded(Class::WrongMethod, "Method not allowed");
        let mut problem = Self::from(refusal.with("allow", methods));
        problem.0.allow = Some(allow);
        problem
    }

    /// The same, for the path of an object of this kind. Only an ID of ours is repeated.
    pub fn wrong_method_of(
        allow: HeaderValue,
        kind: Option<&'static str>,
        id: Option<&str>,
    ) -> Self {
        let mut problem = Self::wrong_method(allow);
        let details = &mut problem.0.refusal.details;
        details.extend(kind.map(|kind| ("kind", kind.to_owned())));
        details.extend(id.and_then(shown_id).map(|id| ("id", id.to_owned())));
        problem
    }

    /// The path does not exist.
    pub fn unknown_path(path: &str) -> Self {
        Refusal::uncoded(Class::NotFound, "Not Found")
            .with("path", path)
            .into()
    }

    /// The request target exceeds the limit.
    pub fn target_too_long() -> Self {
        let mut problem = Self::from(Refusal::uncoded(
            Class::Invalid,
            "The path and query are longer than 16 KiB.",
        ));
        problem.0.status = StatusCode::URI_TOO_LONG;
        problem
    }

    /// Too many requests (226): the limit, and the time until the next request is accepted, which the response rounds up
    /// to whole seconds.
    pub fn too_many(wait: Duration, why: &'static str) -> Self {
        let mut problem = Self::from(Refusal::new(code::TOO_MANY_REQUESTS, why));
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        problem.0.retry_after = Some(seconds.max(1));
        problem
    }

    /// A temporary server error: at capacity, stopping, or a required part is unavailable.
    pub fn unavailable(why: &'static str) -> Self {
        Self::from(Refusal {
            class: Class::Unavailable,
            ..Refusal::new(code::INTERNAL_ERROR, why)
        })
    }

    /// A server error whose cause is known only as text: a caught panic.
    pub fn broken(doing: &'static str) -> Self {
        Fault::bare(doing).into()
    }

    /// Turns the problem into a temporary error, because a required part is unavailable.
    pub fn passing(self) -> Self {
        let mut problem =
            Self::unavailable("The database is unavailable; try again. `/readyz` shows the cause.");
        problem.0.fault = self.0.fault;
        problem
    }

    /// The error that the caller sees.
    pub fn refusal(&self) -> &Refusal {
        &self.0.refusal
    }

    /// Whether it is a server error that may pass: the database is away, or read only.
    pub fn is_passing(&self) -> bool {
        self.0.fault.as_ref().is_some_and(Fault::is_passing)
    }

    /// Whether it is a server error.
    pub fn is_fault(&self) -> bool {
        self.0.fault.is_some()
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Seconds until the request may be sent again, if the error passes.
    pub fn retry_after(&self) -> Option<u64> {
        self.0.retry_after
    }

    /// Turns the problem into a response, and logs a fault.
    pub fn into_response(self, operation_id: &str) -> Response<Body> {
        let inner = *self.0;
        if let Some(fault) = &inner.fault {
            tracing::error!(operation.id = operation_id, "{}", fault.chain());
        }
        let wire = Wire {
            refusal: &inner.refusal,
            status: inner.status,
            operation_id,
        };
        let body = serde_json::to_vec(&wire).expect("text and numbers always serialise");
        let mut response = Response::new(Body::whole(body.into()));
        *response.status_mut() = inner.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(CACHE_CONTROL, NO_STORE);
        if inner.status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if inner.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(allow) = inner.allow {
            headers.insert(ALLOW, allow);
        }
        if let Some(seconds) = inner.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        // Temporary errors may be retried after one second, unless the limit sets a longer wait.
        let passes = matches!(
            refusal.class,
            Class::TooMany | Class::Unavailable | Class::Conflict | Class::Running
        );
        let wait = match refusal.code {
            // The sweep of old responses makes room.
            Some(code::IDEMPOTENCY_ANSWERS_FULL) => 60,
            _ => 1,
        };
        Self(Box::new(Inner {
            status: status(refusal.class),
            retry_after: passes.then_some(wait),
            refusal,
            fault: None,
            allow: None,
        }))
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        let mut problem = Self::from(Refusal::of(code::INTERNAL_ERROR));
        problem.0.fault = Some(fault);
        problem
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(refusal) => refusal.into(),
            Error::Faulted(fault) => fault.into(),
        }
    }
}

/// The status of a class.
///
/// A conflict of objects is never 409: by contract, errors in a request are 400, and conflicts with concurrent changes
/// are temporary, so they are 503, which clients retry. Only a repeated request that is still running is 409.
pub fn status(class: Class) -> StatusCode {
    match class {
        Class::Invalid => StatusCode::BAD_REQUEST,
        Class::Unauthenticated => StatusCode::UNAUTHORIZED,
        Class::Forbidden => StatusCode::FORBIDDEN,
        Class::NotFound => StatusCode::NOT_FOUND,
        Class::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
        Class::TooSlow => StatusCode::REQUEST_TIMEOUT,
        Class::Running => StatusCode::CONFLICT,
        Class::ConditionFailed => StatusCode::PRECONDITION_FAILED,
        Class::OtherRequest => StatusCode::UNPROCESSABLE_ENTITY,
        Class::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Class::UnsupportedType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Class::TooMany => StatusCode::TOO_MANY_REQUESTS,
        Class::BadAgent => StatusCode::BAD_GATEWAY,
        Class::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        Class::Conflict | Class::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The body that clients parse. `error_code` is omitted if there is none; `details` contains only text and is never
/// empty.
struct Wire<'a> {
    refusal: &'a Refusal,
    status: StatusCode,
    operation_id: &'a str,
}

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(code) = self.refusal.code {
            map.serialize_entry("error_code", &code.to_string())?;
        }
        map.serialize_entry("status_code", &self.status.as_u16())?;
        map.serialize_entry("msg", &self.refusal.message)?;
        map.serialize_entry("details", &Details(self))?;
        map.end()
    }
}

struct Details<'a>(&'a Wire<'a>);

impl Serialize for Details<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("operation_id", self.0.operation_id)?;
        for (name, value) in &self.0.refusal.details {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;

    async fn respond(problem: Problem) -> (u16, Option<String>, Value) {
        let response = problem.into_response("op_1");
        let status = response.status().as_u16();
        let wait = response.headers().get(RETRY_AFTER).cloned();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (
            status,
            wait.map(|wait| wait.to_str().unwrap().to_owned()),
            serde_json::from_slice(&bytes).unwrap(),
        )
    }

    #[tokio::test]
    async fn a_fault_shows_one_sentence_and_no_cause() {
        let fault = || Fault::new("reading a document", std::io::Error::other("/secret/path"));
        let (status, wait, body) = respond(fault().into()).await;
        assert_eq!((status, wait), (500, None));
        assert_eq!(body["error_code"], "ERR_NGROK_10000");
        assert_eq!(body["details"], json!({"operation_id": "op_1"}));
        assert!(!body.to_string().contains("secret") && !body.to_string().contains("document"));

        let (status, wait, body) = respond(Problem::from(fault()).passing()).await;
        assert_eq!((status, wait.as_deref()), (503, Some("1")));
        assert_eq!(body["error_code"], "ERR_NGROK_10000");
    }

    #[tokio::test]
    async fn a_refusal_is_shown_as_it_is() {
        let refusal = Refusal::new(code::BODY_FIELD_INVALID, "no").with("field", "x");
        let (status, _, body) = respond(refusal.into()).await;
        assert_eq!(status, 400);
        assert_eq!(
            body,
            json!({
                "error_code": "ERR_NGROK_215",
                "status_code": 400,
                "msg": "no",
                "details": {"operation_id": "op_1", "field": "x"},
            })
        );
        let (_, _, body) = respond(Refusal::not_found().into()).await;
        assert_eq!(
            body.as_object().unwrap().len(),
            3,
            "no code, no key: {body}"
        );
    }

    #[tokio::test]
    async fn what_others_changed_meanwhile_is_to_be_tried_again() {
        let conflict = Refusal::uncoded(Class::Conflict, "others kept changing it");
        let (status, wait, _) = respond(conflict.into()).await;
        assert_eq!((status, wait.as_deref()), (503, Some("1")));
    }
}
