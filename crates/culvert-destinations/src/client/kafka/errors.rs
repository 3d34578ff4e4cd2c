//! Broker error codes by name, and their failure classes.

use culvert_target::failure::FailureClass::{Auth, Config, Permanent, Retryable, Unknown};
use culvert_target::failure::{Failure, FailureClass};

pub(crate) const NONE: i16 = 0;
/// The broker already has this batch.
pub(crate) const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;

/// Codes with a specific class. All others are temporary.
const KNOWN: &[(i16, &str, FailureClass)] = &[
    (2, "CORRUPT_MESSAGE", Retryable),
    (3, "UNKNOWN_TOPIC_OR_PARTITION", Config),
    (5, "LEADER_NOT_AVAILABLE", Retryable),
    (6, "NOT_LEADER_OR_FOLLOWER", Retryable),
    (7, "REQUEST_TIMED_OUT", Unknown),
    (10, "MESSAGE_TOO_LARGE", Permanent),
    (17, "INVALID_TOPIC_EXCEPTION", Config),
    (18, "RECORD_LIST_TOO_LARGE", Permanent),
    (19, "NOT_ENOUGH_REPLICAS", Retryable),
    (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", Unknown),
    (21, "INVALID_REQUIRED_ACKS", Config),
    (29, "TOPIC_AUTHORIZATION_FAILED", Auth),
    (31, "CLUSTER_AUTHORIZATION_FAILED", Auth),
    (32, "INVALID_TIMESTAMP", Permanent),
    (33, "UNSUPPORTED_SASL_MECHANISM", Config),
    (34, "ILLEGAL_SASL_STATE", Config),
    (35, "UNSUPPORTED_VERSION", Config),
    (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", Config),
    (44, "POLICY_VIOLATION", Config),
    (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", Retryable),
    (47, "INVALID_PRODUCER_EPOCH", Retryable),
    (56, "KAFKA_STORAGE_ERROR", Retryable),
    (58, "SASL_AUTHENTICATION_FAILED", Auth),
    (59, "UNKNOWN_PRODUCER_ID", Retryable),
    (76, "UNSUPPORTED_COMPRESSION_TYPE", Config),
    (87, "INVALID_RECORD", Permanent),
    (89, "THROTTLING_QUOTA_EXCEEDED", Retryable),
];

/// Fails for every code except 0.
pub(crate) fn check(error: i16) -> Result<(), Failure> {
    if error == NONE {
        return Ok(());
    }
    let known = KNOWN.iter().find(|(number, ..)| *number == error);
    let (name, class) = match known {
        Some((_, name, class)) => ((*name).to_owned(), *class),
        None => (format!("error {error}"), Retryable),
    };
    let text = format!("the broker returned {name}");
    Err(Failure::new(class, name, text))
}

/// Whether the broker no longer knows our producer ID, or expects another sequence number.
pub(crate) fn is_about_the_producer(error: i16) -> bool {
    matches!(error, 45 | 47 | 59)
}

/// Whether the partition's leader may have changed.
pub(crate) fn is_about_the_place(error: i16) -> bool {
    matches!(error, 3 | 5 | 6 | 9 | 13 | 56 | 72 | 74 | 75)
}
