//! Failures that an HTTP response reports.

use culvert_target::failure::{Failure, FailureClass, scrub};
use culvert_target::net::HttpResponse;

/// The failure class of an HTTP status (contract: destinations 1.3 and 6).
pub(crate) fn class_of_status(status: u16) -> Result<(), FailureClass> {
    Err(match status {
        200..=299 => return Ok(()),
        300..=399 => FailureClass::Config,
        401 | 403 => FailureClass::Auth,
        // The resource is missing; the content may be valid.
        404 | 405 => FailureClass::Config,
        408 | 409 | 425 | 429 => FailureClass::Retryable,
        410 => FailureClass::Gone,
        413 => FailureClass::Split,
        400..=499 => FailureClass::Permanent,
        _ => FailureClass::Retryable,
    })
}

/// The failure that an HTTP response reports, if any. `secrets` never appear in the text.
pub(crate) fn judge(answer: &HttpResponse, secrets: &[&str]) -> Result<(), Failure> {
    let Err(class) = class_of_status(answer.status) else {
        return Ok(());
    };
    Err(failed(answer, class, secrets))
}

/// A failure with the status and text of an HTTP response.
pub(crate) fn failed(answer: &HttpResponse, class: FailureClass, secrets: &[&str]) -> Failure {
    let text = scrub(&answer.text, secrets);
    Failure {
        class,
        code: answer.status.to_string(),
        status: Some(answer.status),
        text: if text.is_empty() {
            format!("HTTP status {}", answer.status)
        } else {
            text
        },
        after: answer.retry_after,
    }
}

#[cfg(test)]
mod tests;
