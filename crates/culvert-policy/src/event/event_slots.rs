//! The event fields that actions fill, all of `http_request_complete`. A misspelt path or a wrong type does
//! not compile.

use culvert_events::{HTTP_REQUEST_COMPLETE as KIND, Logs, Slot, Text};

/// The decision about the signature of a webhook.
pub const WEBHOOK_DECISION: Slot<Text> = KIND.slot("webhook_verification.decision");
/// The decision about the credentials of a request.
pub const BASIC_AUTH_DECISION: Slot<Text> = KIND.slot("basic_auth.decision");
/// The user of a request with credentials.
pub const BASIC_AUTH_USERNAME: Slot<Text> = KIND.slot("basic_auth.username");
/// The decision of the circuit breaker about a request.
pub const CIRCUIT_BREAKER_DECISION: Slot<Text> = KIND.slot("circuit_breaker.decision");
/// The decision of IP policies about a request.
pub const IP_POLICY_DECISION: Slot<Text> = KIND.slot("ip_policy.decision");
/// Entries of the `log` action.
pub const POLICY_LOGS: Slot<Logs> = KIND.slot("traffic_policy.logs");
