//! gRPC's framing of messages and its status codes (the specification of OTLP/gRPC).

use std::time::Duration;

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use culvert_base::RetryAfter;
use culvert_target::failure::{Failure, FailureClass, scrub};
use culvert_target::net::HttpResponse;
use http::{HeaderMap, HeaderValue, header};
use prost::Message;

use crate::client::http_failure::class_of_status;

/// Path of the method that accepts log records.
pub(super) const PATH: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
const PREFIX: usize = 5;

/// The request headers of a call.
pub(super) fn headers(packs: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let fixed = HeaderValue::from_static;
    headers.insert(header::CONTENT_TYPE, fixed("application/grpc"));
    headers.insert(header::TE, fixed("trailers"));
    headers.insert("grpc-timeout", fixed("25S"));
    if packs {
        headers.insert("grpc-encoding", fixed("gzip"));
    }
    headers
}

/// A message with its prefix.
pub(super) fn framed(message: &[u8], is_packed: bool) -> Vec<u8> {
    let mut frame = Vec::with_capacity(PREFIX + message.len());
    frame.push(u8::from(is_packed));
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    frame
}

/// The message of a response. `secrets` never appear in the text of a failure.
pub(super) fn judge(answer: &HttpResponse, secrets: &[&str]) -> Result<Bytes, Failure> {
    // A response without a message has no trailers; its header has the status.
    let said = |name: &str| {
        let value = answer.trailers.get(name);
        let value = value.or_else(|| answer.headers.get(name));
        value.and_then(|value| value.to_str().ok())
    };
    let Some(status) = said("grpc-status") else {
        // The response came from an intermediary that does not speak gRPC.
        let class = match (answer.status, class_of_status(answer.status)) {
            (404 | 405, _) | (_, Ok(())) => FailureClass::Config,
            (_, Err(class)) => class,
        };
        return Err(super::failed(answer, class, secrets));
    };
    let status: u32 = status.parse().unwrap_or(2);
    if status == 0 {
        return Ok(answer.body.slice(PREFIX.min(answer.body.len())..));
    }
    let after = said("grpc-status-details-bin").and_then(retry_delay);
    let (name, class) = named(status, after.is_some());
    let text = scrub(
        &unescaped(said("grpc-message").unwrap_or_default()),
        secrets,
    );
    let mut failure = Failure::new(
        class,
        name,
        match text.is_empty() {
            true => format!("the receiver returned {name}"),
            false => text,
        },
    );
    failure.after = after.or(answer.retry_after);
    failure.status = Some(answer.status);
    Err(failure)
}

/// Name and failure class of a status code.
fn named(status: u32, says_when: bool) -> (&'static str, FailureClass) {
    use FailureClass::*;
    match status {
        1 => ("CANCELLED", Retryable),
        3 => ("INVALID_ARGUMENT", Permanent),
        4 => ("DEADLINE_EXCEEDED", Unknown),
        5 => ("NOT_FOUND", Config),
        6 => ("ALREADY_EXISTS", Permanent),
        7 => ("PERMISSION_DENIED", Auth),
        // Without a retry delay, the message is too large.
        8 if says_when => ("RESOURCE_EXHAUSTED", Retryable),
        8 => ("RESOURCE_EXHAUSTED", Split),
        9 => ("FAILED_PRECONDITION", Permanent),
        10 => ("ABORTED", Retryable),
        11 => ("OUT_OF_RANGE", Retryable),
        12 => ("UNIMPLEMENTED", Config),
        13 => ("INTERNAL", Permanent),
        14 => ("UNAVAILABLE", Retryable),
        15 => ("DATA_LOSS", Retryable),
        16 => ("UNAUTHENTICATED", Auth),
        _ => ("UNKNOWN", Permanent),
    }
}

/// `google.rpc.Status`, as far as it is read.
#[derive(Message)]
struct Status {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// `google.protobuf.Any`.
#[derive(Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The retry delay in the details of a status, if any.
fn retry_delay(details: &str) -> Option<RetryAfter> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let status = Status::decode(&LENIENT.decode(details).ok()?[..]).ok()?;
    let info = status
        .details
        .iter()
        .find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&info.value[..]).ok()?.retry_delay?;
    let seconds = u64::try_from(delay.seconds).ok()?;
    let nanos = u32::try_from(delay.nanos).ok()?;
    let nanos = Duration::from_nanos(nanos.into());
    Some(RetryAfter::new(
        Duration::from_secs(seconds).saturating_add(nanos),
    ))
}

/// Decodes percent encoding.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..2).filter(|_| *first == b'%');
        let byte = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &others[2..] } else { others };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD_NO_PAD;

    use super::*;

    fn answer(trailers: &[(&'static str, &str)]) -> HttpResponse {
        let mut all = HeaderMap::new();
        for (name, value) in trailers {
            all.insert(*name, value.parse().unwrap());
        }
        HttpResponse {
            status: 200,
            headers: HeaderMap::new(),
            trailers: all,
            retry_after: None,
            body: Bytes::new(),
            text: String::new(),
        }
    }

    #[test]
    fn statuses_are_classified_and_have_a_retry_delay() {
        use FailureClass::*;
        let delay = RetryInfo {
            retry_delay: Some(Delay {
                seconds: 7,
                nanos: 500_000_000,
            }),
        };
        let details = Status {
            details: vec![Detail {
                type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
                value: delay.encode_to_vec(),
            }],
        };
        let details = STANDARD_NO_PAD.encode(details.encode_to_vec());
        for (status, class) in [
            ("14", Retryable),
            ("8", Split),
            ("16", Auth),
            ("7", Auth),
            ("12", Config),
            ("3", Permanent),
            ("4", Unknown),
            ("99", Permanent),
            ("x", Permanent),
        ] {
            let message = ("grpc-message", "the s3cr3t%20token");
            let failure = judge(&answer(&[("grpc-status", status), message]), &["s3cr3t"]);
            let failure = failure.unwrap_err();
            assert_eq!(
                (failure.class, &*failure.text, failure.after),
                (class, "the [redacted] token", None),
                "{status}"
            );
        }
        let busy = answer(&[("grpc-status", "8"), ("grpc-status-details-bin", &details)]);
        let failure = judge(&busy, &[]).unwrap_err();
        assert_eq!(failure.class, Retryable);
        assert_eq!(
            failure.after,
            Some(RetryAfter::new(Duration::from_millis(7500)))
        );
        assert_eq!(
            judge(&answer(&[("grpc-status", "0")]), &[]),
            Ok(Bytes::new())
        );
        let not_grpc = judge(&answer(&[]), &[]).unwrap_err();
        assert_eq!(not_grpc.class, Config);
    }

    #[test]
    fn status_messages_are_percent_decoded() {
        assert_eq!(unescaped("a%20b%C3%A9%"), "a bé%");
        assert_eq!(unescaped("%zz%4"), "%zz%4");
    }
}
