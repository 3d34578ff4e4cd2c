//! The event fields this crate fills. A misspelt path or a wrong type does not compile.
//!
//! Fields of modules that an endpoint does not have are not here: unset, they say what the catalogue
//! says for a module that did not run.

/// `http_request_complete`.
pub(crate) mod http {
    use culvert_events::{
        Bool, HTTP_REQUEST_COMPLETE as KIND, Headers, Int32, Int64, Slot, Text, Time,
    };

    pub(crate) const CONNECTION_REUSED: Slot<Bool> = KIND.slot("backend.connection_reused");
    pub(crate) const COMPRESSION_ALGORITHM: Slot<Text> = KIND.slot("compression.algorithm");
    pub(crate) const BYTES_SAVED: Slot<Int64> = KIND.slot("compression.bytes_saved");
    pub(crate) const CLIENT_IP: Slot<Text> = KIND.slot("conn.client_ip");
    pub(crate) const SERVER_IP: Slot<Text> = KIND.slot("conn.server_ip");
    pub(crate) const SERVER_NAME: Slot<Text> = KIND.slot("conn.server_name");
    pub(crate) const SERVER_PORT: Slot<Int32> = KIND.slot("conn.server_port");
    pub(crate) const START_TS: Slot<Time> = KIND.slot("conn.start_ts");
    pub(crate) const ATTEMPTS: Slot<Int32> = KIND.slot("culvert.attempts");
    pub(crate) const CONNECT_MS: Slot<Int64> = KIND.slot("culvert.connect_ms");
    pub(crate) const DURATION_MS: Slot<Int64> = KIND.slot("culvert.duration_ms");
    pub(crate) const FIRST_BYTE_MS: Slot<Int64> = KIND.slot("culvert.first_byte_ms");
    pub(crate) const PROTOCOL: Slot<Text> = KIND.slot("culvert.protocol");
    pub(crate) const QUEUE_MS: Slot<Int64> = KIND.slot("culvert.queue_ms");
    pub(crate) const REASON: Slot<Text> = KIND.slot("culvert.reason");
    pub(crate) const SAMPLED: Slot<Int64> = KIND.slot("culvert.sampled");
    pub(crate) const TRACE_ID: Slot<Text> = KIND.slot("culvert.trace_id");
    pub(crate) const UPSTREAM: Slot<Text> = KIND.slot("culvert.upstream");
    pub(crate) const REQUEST_BODY_LENGTH: Slot<Int64> = KIND.slot("http.request.body_length");
    pub(crate) const REQUEST_HEADERS: Slot<Headers> = KIND.slot("http.request.headers");
    pub(crate) const METHOD: Slot<Text> = KIND.slot("http.request.method");
    pub(crate) const URL_HOST: Slot<Text> = KIND.slot("http.request.url.host");
    pub(crate) const URL_PATH: Slot<Text> = KIND.slot("http.request.url.path");
    pub(crate) const URL_QUERY: Slot<Text> = KIND.slot("http.request.url.query");
    pub(crate) const URL_RAW: Slot<Text> = KIND.slot("http.request.url.raw");
    pub(crate) const URL_SCHEME: Slot<Text> = KIND.slot("http.request.url.scheme");
    pub(crate) const USER_AGENT: Slot<Text> = KIND.slot("http.request.user_agent");
    pub(crate) const RESPONSE_BODY_LENGTH: Slot<Int64> = KIND.slot("http.response.body_length");
    pub(crate) const RESPONSE_HEADERS: Slot<Headers> = KIND.slot("http.response.headers");
    pub(crate) const STATUS_CODE: Slot<Int32> = KIND.slot("http.response.status_code");
    pub(crate) const IP_POLICY_DECISION: Slot<Text> = KIND.slot("ip_policy.decision");
    pub(crate) const CIPHER_SUITE: Slot<Text> = KIND.slot("tls.cipher_suite");
    pub(crate) const CLIENT_SERIAL: Slot<Text> = KIND.slot("tls.client_cert.serial_number");
    pub(crate) const CLIENT_COMMON_NAME: Slot<Text> = KIND.slot("tls.client_cert.subject.cn");
    pub(crate) const TLS_VERSION: Slot<Text> = KIND.slot("tls.version");
}

/// `tcp_connection_closed`.
pub(crate) mod tcp {
    use culvert_events::{Int32, Int64, Logs, Slot, TCP_CONNECTION_CLOSED as KIND, Text, Time};

    pub(crate) const BYTES_IN: Slot<Int64> = KIND.slot("conn.bytes_in");
    pub(crate) const BYTES_OUT: Slot<Int64> = KIND.slot("conn.bytes_out");
    pub(crate) const CLIENT_IP: Slot<Text> = KIND.slot("conn.client_ip");
    pub(crate) const END_TS: Slot<Time> = KIND.slot("conn.end_ts");
    pub(crate) const CONNECT_MS: Slot<Int64> = KIND.slot("culvert.connect_ms");
    pub(crate) const DURATION_MS: Slot<Int64> = KIND.slot("culvert.duration_ms");
    pub(crate) const REASON: Slot<Text> = KIND.slot("culvert.reason");
    pub(crate) const SAMPLED: Slot<Int64> = KIND.slot("culvert.sampled");
    pub(crate) const UPSTREAM: Slot<Text> = KIND.slot("culvert.upstream");
    pub(crate) const IP_POLICY_DECISION: Slot<Text> = KIND.slot("ip_policy.decision");
    pub(crate) const SERVER_IP: Slot<Text> = KIND.slot("conn.server_ip");
    pub(crate) const SERVER_NAME: Slot<Text> = KIND.slot("conn.server_name");
    pub(crate) const SERVER_PORT: Slot<Int32> = KIND.slot("conn.server_port");
    pub(crate) const START_TS: Slot<Time> = KIND.slot("conn.start_ts");
    pub(crate) const POLICY_LOGS: Slot<Logs> = KIND.slot("traffic_policy.logs");
}
