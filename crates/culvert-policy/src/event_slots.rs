//! The event fields that actions fill, all of `http_request_complete`. A misspelt path or a wrong type does
//! not compile.

use culvert_events::{HTTP_REQUEST_COMPLETE as KIND, Logs, Slot, Text};

pub const WEBHOOK_DECISION: Slot<Text> = KIND.slot("webhook_verification.decision");
pub const BASIC_AUTH_DECISION: Slot<Text> = KIND.slot("basic_auth.decision");
pub const BASIC_AUTH_USERNAME: Slot<Text> = KIND.slot("basic_auth.username");
pub const CIRCUIT_BREAKER_DECISION: Slot<Text> = KIND.slot("circuit_breaker.decision");
pub const IP_POLICY_DECISION: Slot<Text> = KIND.slot("ip_policy.decision");
pub const POLICY_LOGS: Slot<Logs> = KIND.slot("traffic_policy.logs");
