//! Reports of leaked tokens that a partner signs instead of giving an API key, and the rate of all reports.
//!
//! The response is 204 whatever the tokens are, 401 for a wrong signature, and 503 while the keys of the partner are not
//! available, so that it tries again.

use std::net::IpAddr;
use std::time::Duration;

use culvert_api_http::access::limits::{Failures, Source, Turnstile};
use culvert_api_http::body;
use culvert_api_http::response::answer::Body;
use culvert_api_http::response::problem::Problem;
use culvert_base::{Refusal, code};
use culvert_control::{Caller, Control, NotSigned, signed_tokens};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, Response, StatusCode};
use hyper::body::Incoming;

/// Rate and burst of reports of a caller, or of a network without one: 10 a minute.
const REPORTS_EVERY: Duration = Duration::from_secs(6);
const REPORTS_AT_ONCE: u32 = 10;

/// Limit of a report.
const REPORT_BYTES_MAX: usize = 256 << 10;

/// Limit of reports with a signature that are verified at one time. Anyone may send them, so they take no capacity from
/// callers.
const SIGNED_AT_ONCE: usize = 32;

const KEY: HeaderName = HeaderName::from_static("github-public-key-identifier");
const SIGNATURE: HeaderName = HeaderName::from_static("github-public-key-signature");

/// The limits of reports.
#[derive(Debug)]
pub(crate) struct LeakReports {
    /// Reports with a signature, by network.
    signed: Failures,
    /// Those of callers with a key, by its owner, so that strangers use up nothing of theirs.
    of_callers: Failures,
    /// Reports with a signature that are verified.
    places: Turnstile,
    /// Limit for the body of one.
    body_within: Duration,
}

/// Why a report is not taken.
pub(crate) enum NotTaken {
    /// Too many are in flight.
    Full,
    Refused(Problem),
}

impl LeakReports {
    /// Nothing is counted yet. A report waits this long for its place, and for its body.
    pub(crate) fn new(place_within: Duration, body_within: Duration) -> Self {
        let rate = || Failures::every(REPORTS_EVERY, REPORTS_AT_ONCE);
        Self {
            signed: rate(),
            of_callers: rate(),
            places: Turnstile::new(SIGNED_AT_ONCE, 1, place_within),
            body_within,
        }
    }

    /// Counts the report of a caller with a key.
    pub(crate) fn count(&self, caller: &Caller, now: Duration) -> Result<(), Problem> {
        let counted = self.of_callers.count(&caller.owner_id, now);
        counted.map_err(too_many)
    }

    /// Takes a report with a signature from this address.
    pub(crate) async fn take(
        &self,
        control: &Control,
        signature: (&str, &str),
        (client, now): (IpAddr, Duration),
        body: &mut Incoming,
    ) -> Result<Response<Body>, NotTaken> {
        let counted = self.signed.count(Source::network_of(client), now);
        counted.map_err(|wait| NotTaken::Refused(too_many(wait)))?;
        let reading = body::read_raw(body, REPORT_BYTES_MAX);
        let read = tokio::time::timeout(self.body_within, reading).await;
        let read = read.unwrap_or_else(|_late| Err(body::too_slow()));
        let read = read.map_err(|problem| NotTaken::Refused(problem.into()))?;
        // Taken with the whole report, so that those who send slowly hold no place.
        let place = self.places.enter(Source::of(client)).await;
        let _place = place.ok_or(NotTaken::Full)?;
        let taken = answer(control, signature, &read).await;
        taken.map_err(NotTaken::Refused)
    }
}

/// The name of the key and the signature of a request without an API key.
pub(crate) fn signature(headers: &HeaderMap) -> Option<(&str, &str)> {
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
