//! Authentication by the `authorization` header (contract: management API 1.3; reliability 2.1). The console's cookie
//! is valid only on the console's paths (see `console`).
//!
//! Browsers send `Basic` credentials automatically, so they are rejected if the request comes from a page of another
//! origin. Failed attempts are counted per source after the look-up, so a valid key works even from a source that
//! exceeded the limit. A request without credentials is not a failed attempt. Responses never repeat credentials.
//!
//! Formats of tokens, keys and their owners are control's.

use culvert_base::{Class, Refusal, code};
use culvert_control::{Caller, Control};
use http::header::{AUTHORIZATION, ORIGIN};
use http::{HeaderMap, HeaderName};

use culvert_api_http::access::limits::{Failures, Source};
use culvert_api_http::response::problem::Problem;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Authenticates the caller.
pub(crate) async fn caller(
    control: &Control,
    headers: &HeaderMap,
    failures: Option<&Failures>,
    source: Source,
    now: std::time::Duration,
) -> Result<Caller, Problem> {
    let problem = match credential(headers) {
        Ok(authorization) => match control.identity.authenticate(authorization).await {
            Ok(caller) => return Ok(caller),
            Err(error) => Problem::from(error),
        },
        Err(refusal) => refusal.into(),
    };
    Err(counted(problem, failures, source, now))
}

/// Counts a failed attempt of a source. Above the limit, returns the error for that instead.
pub(crate) fn counted(
    problem: Problem,
    failures: Option<&Failures>,
    source: Source,
    now: std::time::Duration,
) -> Problem {
    let refusal = problem.refusal();
    let tried =
        refusal.class == Class::Unauthenticated && refusal.code != Some(code::CREDENTIAL_MISSING);
    if tried
        && let Some(failures) = failures
        && let Err(wait) = failures.count(source, now)
    {
        return Problem::too_many(
            wait,
            "Your address has sent too many invalid API keys. Valid keys still work.",
        );
    }
    problem
}

/// The credential in the request's header. More than one is an error.
fn credential(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let text = value
        .to_str()
        .map_err(|_| Refusal::of(code::AUTHORIZATION_MALFORMED))?;
    if values.next().is_some() {
        return Err(Refusal::of(code::AUTHORIZATION_MALFORMED));
    }
    let is_basic = text
        .split_once(' ')
        .is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
    let by_a_page = headers.contains_key(ORIGIN)
        || headers
            .get(SEC_FETCH_SITE)
            .is_some_and(|site| site != "same-origin" && site != "none");
    if is_basic && by_a_page {
        return Err(Refusal::new(
            code::AUTHORIZATION_MALFORMED,
            "Cross-origin requests must send `Authorization: Bearer <API key token>`.",
        ));
    }
    Ok(Some(text))
}
