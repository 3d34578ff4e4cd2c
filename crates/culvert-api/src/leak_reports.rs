//! Reports of leaked tokens that a partner signs instead of giving an API key, and the rate of all reports.
//!
//! The response is 204 whatever the tokens are, 401 for a wrong signature, and 503 while the keys of the partner are not
//! available, so that it tries again.

use std::time::Duration;

use culvert_api_http::response::answer::Body;
use culvert_api_http::response::problem::Problem;
use culvert_base::{Refusal, code};
use culvert_control::{Control, NotSigned, signed_tokens};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, Response, StatusCode};

/// Rate and burst of reports of a network: 10 a minute.
pub(crate) const REPORTS_EVERY: Duration = Duration::from_secs(6);
pub(crate) const REPORTS_AT_ONCE: u32 = 10;

/// Limit of a report.
pub(crate) const REPORT_BYTES_MAX: usize = 256 << 10;

const KEY: HeaderName = HeaderName::from_static("github-public-key-identifier");
const SIGNATURE: HeaderName = HeaderName::from_static("github-public-key-signature");

/// The name of the key and the signature of a request without an API key.
pub(crate) fn signature(headers: &HeaderMap) -> Option<(&str, &str)> {
    if headers.contains_key(AUTHORIZATION) {
        return None;
    }
    let text = |name| headers.get(name)?.to_str().ok();
    Some((text(KEY)?, text(SIGNATURE)?))
}

/// The refusal of a report that is beyond the rate.
pub(crate) fn too_many(wait: Duration) -> Problem {
    let why = "Your network has sent too many reports of leaked tokens; try again later.";
    Problem::too_many(wait, why)
}

/// The response to a report with this signature.
pub(crate) async fn answer(
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
