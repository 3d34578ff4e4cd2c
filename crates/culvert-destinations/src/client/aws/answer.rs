//! Errors of Amazon's services (contract: destinations 3).

use serde_json::Value;

use culvert_target::failure::{Failure, FailureClass, scrub, vendor_code};
use culvert_target::net::HttpResponse;

use crate::client::http_failure::class_of_status;

/// Throttling.
const THROTTLED: &[&str] = &[
    "BandwidthLimitExceeded",
    "KMSThrottlingException",
    "KmsThrottled",
    "LimitExceededException",
    "OverLimit",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
];
/// Temporary errors of the service.
const TRANSIENT: &[&str] = &[
    "InternalError",
    "InternalFailure",
    "InternalFailureException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
];
/// Clock skew.
const CLOCK: &[&str] = &["RequestExpired", "RequestTimeTooSkewed"];
/// Signature errors whose text may say that they are about the clock.
const SIGNATURE: &[&str] = &["InvalidSignatureException", "SignatureDoesNotMatch"];
/// Rejected credentials.
const AUTH: &[&str] = &[
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignatureException",
    "InvalidToken",
    "KMSAccessDeniedException",
    "KmsAccessDenied",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorizedForDetailTypeException",
    "NotAuthorizedForSourceException",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];
/// Resources that do not exist or cannot be used.
const CONFIG: &[&str] = &[
    "AWS.SimpleQueueService.NonExistentQueue",
    "InvalidAccountIdException",
    "InvalidAddress",
    "InvalidKMSResourceException",
    "InvalidSourceException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "KmsDisabled",
    "KmsInvalidKeyUsage",
    "KmsInvalidState",
    "KmsNotFound",
    "KmsOptInRequired",
    "NoSuchBucket",
    "PermanentRedirect",
    "QueueDoesNotExist",
    "ResourceNotFoundException",
];
/// Contents that are never accepted.
const PERMANENT: &[&str] = &[
    "InvalidArgument",
    "InvalidMessageContents",
    "MalformedDetail",
];
/// Batches that are too large.
const TOO_LARGE: &[&str] = &[
    "AWS.SimpleQueueService.BatchRequestTooLong",
    "BatchRequestTooLong",
];

/// The class of a service's error code; `None` for unknown codes.
pub(crate) fn class_of(code: &str) -> Option<FailureClass> {
    [
        (THROTTLED, FailureClass::Retryable),
        (TRANSIENT, FailureClass::Retryable),
        (AUTH, FailureClass::Auth),
        (CONFIG, FailureClass::Config),
        (PERMANENT, FailureClass::Permanent),
        (TOO_LARGE, FailureClass::Split),
    ]
    .into_iter()
    .find(|(codes, _)| codes.contains(&code))
    .map(|(_, class)| class)
}

/// The failure that a response reports, if any. `secrets` never appear in the text.
pub(crate) fn judge(answer: &HttpResponse, secrets: &[&str]) -> Result<(), Failure> {
    let status = answer.status;
    let Err(by_status) = class_of_status(status) else {
        return Ok(());
    };
    let (code, message) = said(answer);
    let class = match &*code {
        // Some errors are about the stream; others are about the content.
        "InvalidArgumentException" if message.to_ascii_lowercase().contains("stream") => {
            FailureClass::Config
        }
        code => class_of(code).unwrap_or(by_status),
    };
    let text = scrub(&message, secrets);
    let mut failure = Failure::new(
        class,
        vendor_code(&code, secrets).unwrap_or_else(|| status.to_string()),
        match text.is_empty() {
            true => format!("HTTP status {status}"),
            false => text,
        },
    );
    failure.after = answer.retry_after;
    failure.status = Some(status);
    Err(failure)
}

/// Whether a failure reports clock skew.
pub(super) fn is_about_the_clock(failure: &Failure) -> bool {
    let code = failure.code.as_str();
    let says = |word: &str| failure.text.to_ascii_lowercase().contains(word);
    CLOCK.contains(&code)
        || (SIGNATURE.contains(&code)
            && (says("expired") || says("not yet current") || says("date")))
}

/// Code and message, from JSON, a header or XML; empty if absent.
fn said(answer: &HttpResponse) -> (String, String) {
    // `namespace#Code` in bodies, `Code:url` in headers.
    let bare = |code: &str| {
        let code = code.rsplit('#').next().unwrap_or_default();
        code.split(':').next().unwrap_or_default().to_owned()
    };
    let header = answer
        .headers
        .get("x-amzn-errortype")
        .and_then(|value| value.to_str().ok())
        .map(bare);
    if let Ok(body) = serde_json::from_str::<Value>(&answer.text) {
        let text = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| body.get(name)?.as_str());
            found.unwrap_or_default().to_owned()
        };
        let code = header.unwrap_or_else(|| bare(&text(["__type", "code"])));
        return (code, text(["message", "Message"]));
    }
    let code = header.or_else(|| element(&answer.text, "Code").map(str::to_owned));
    let message = element(&answer.text, "Message").unwrap_or_default();
    (code.unwrap_or_default(), message.to_owned())
}

/// The text of the first element with that name. The XML of the services is flat, with values free of markup.
pub(crate) fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim())
}
