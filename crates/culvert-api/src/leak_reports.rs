//! Reports of leaked tokens that a partner signs instead of giving an API key, and the rate of all reports.
//!
//! The response is 204 whatever the tokens are, 401 for a wrong signature, and 503 while the keys of the partner are not
//! available, so that it tries again.

use std::time::Duration;

use culvert_api_http::access::limits::{Failures, Source};
use culvert_api_http::body;
use culvert_api_http::response::answer::Body;
use culvert_api_http::response::problem::Problem;
use culvert_base::{Refusal, code};
use culvert_control::{Caller, Control, LEAKED_TOKENS_PATH, NotSigned, signed_tokens};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, Response, StatusCode};

use crate::{Api, Arrival, Asked};

/// Rate and burst of reports of a caller, or of a network without one: 10 a minute.
const REPORTS_EVERY: Duration = Duration::from_secs(6);
const REPORTS_AT_ONCE: u32 = 10;

/// Limit of a report.
const REPORT_BYTES_MAX: usize = 256 << 10;

/// Limit of reports with a signature in flight. Anyone may send them, slowly too, so they take no capacity from callers.
pub(crate) const SIGNED_AT_ONCE: usize = 32;

const KEY: HeaderName = HeaderName::from_static("github-public-key-identifier");
const SIGNATURE: HeaderName = HeaderName::from_static("github-public-key-signature");

/// Nothing is counted yet.
pub(crate) fn rate() -> Failures {
    Failures::every(REPORTS_EVERY, REPORTS_AT_ONCE)
}

fn is_report(asked: &Result<Asked, Refusal>) -> bool {
    matches!(asked, Ok(Asked::Operation(operation, _)) if operation.path == LEAKED_TOKENS_PATH)
}

impl Api {
    /// The response to a report of leaked tokens that has the signature of a partner; `None` for other requests.
    pub(crate) async fn signed_report(
        &self,
        asked: &Result<Asked, Refusal>,
        arrival: &mut Arrival<'_>,
    ) -> Result<Option<Response<Body>>, Problem> {
        let signature = signature(&arrival.parts.headers);
        let Some(signature) = signature.filter(|_| is_report(asked)) else {
            return Ok(None);
        };
        let deadline = arrival.deadline;
        let reporting = self.take_signed_report(signature, arrival);
        let reported = tokio::time::timeout_at(deadline, reporting).await;
        let reported = reported
            .unwrap_or_else(|_late| Err(Problem::unavailable("The server is busy; try again.")));
        reported.map(Some).inspect_err(|problem| {
            let called = ("leaked_tokens_report", None);
            let origin = self.origin(arrival);
            self.control
                .note_refusal(&origin, called, problem.refusal());
        })
    }

    async fn take_signed_report(
        &self,
        signature: (&str, &str),
        arrival: &mut Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        let (client, now) = (self.client(arrival), self.started_at.elapsed());
        let counted = self.signed_reports.count(Source::network_of(client), now);
        counted.map_err(too_many)?;
        let Some(_place) = self.reporting.enter(Source::of(client)).await else {
            return Err(self.full());
        };
        let reading = body::read_raw(arrival.body, REPORT_BYTES_MAX);
        let read = tokio::time::timeout(self.settings.limits.head, reading).await;
        let read = read.unwrap_or_else(|_late| Err(body::too_slow()))?;
        answer(&self.control, signature, &read).await
    }

    /// Counts the report of a caller with a key.
    pub(crate) fn check_reports(
        &self,
        caller: &Caller,
        asked: &Result<Asked, Refusal>,
    ) -> Result<(), Problem> {
        if !is_report(asked) {
            return Ok(());
        }
        let now = self.started_at.elapsed();
        self.leak_reports
            .count(&caller.owner_id, now)
            .map_err(too_many)
    }
}

/// The name of the key and the signature of a request without an API key.
fn signature(headers: &HeaderMap) -> Option<(&str, &str)> {
    if headers.contains_key(AUTHORIZATION) {
        return None;
    }
    let text = |name| headers.get(name)?.to_str().ok();
    Some((text(KEY)?, text(SIGNATURE)?))
}

/// The refusal of a report that is beyond the rate.
fn too_many(wait: Duration) -> Problem {
    let why = "Too many reports of leaked tokens; try again later.";
    Problem::too_many(wait, why)
}

/// The response to a report with this signature.
async fn answer(
    control: &Control,
    (key, signature): (&str, &str),
    body: &[u8],
) -> Result<Response<Body>, Problem> {
    let unsigned = || {
        let why = "The signature of the report is not valid.";
        Refusal::new(code::CREDENTIAL_MISSING, why)
    };
    let partner = control.identity.leak_partner.as_ref();
    let partner = partner.ok_or_else(unsigned)?;
    match partner.verify(key, signature, body).await {
        Ok(()) => {}
        Err(NotSigned::Invalid) => return Err(unsigned().into()),
        Err(NotSigned::Unavailable) => {
            let why = "The keys of the partner are not available; try again later.";
            return Err(Problem::unavailable(why));
        }
    }
    let tokens = signed_tokens(body)?;
    control.identity.report_leaks(None, &tokens).await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
