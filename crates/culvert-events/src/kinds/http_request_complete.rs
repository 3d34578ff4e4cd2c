//! `http_request_complete.v0`: one HTTP request, recorded when it has ended (contract: events 7).

use super::{DECISIONS, NOT_RUN, REASON, SAMPLED, UPSTREAM};
use crate::catalogue::field::Type::{Bool, Headers, Int32, Int64, Logs, Text, Timestamp};
use crate::catalogue::field::field;
use crate::catalogue::kind::EventKind;
use crate::reason::Reason;

const NO_CERTIFICATE: &str = "the client presented no certificate";
const NO_USER: &str = "no user was authenticated";
const NOT_TLS: &str = "the client's connection is not TLS";

/// Maximum length of the URL in an event that would otherwise be too large.
const URL_BYTES: usize = 8 << 10;

/// The kind.
#[rustfmt::skip]
pub static KIND: EventKind = EventKind::traffic(
    "http_request_complete.v0",
    "An HTTP request is complete: the response was sent and the request body was received or \
     abandoned, either side aborted, or the upgraded stream closed. Emitted exactly once for \
     each request that reached an endpoint, or that the edge refused and whose host or TLS server name is that of an \
     endpoint; fields that are not known of a refused request are empty. Above 100 refused requests a second of a \
     network (/24 or /64), only some have an event (`culvert.sampled`).",
    &[
        field("backend.connection_reused", Bool, "Whether the last attempt used a reused upstream connection. False without an attempt."),
        field("basic_auth.decision", Text, "Decision of basic authentication: `allow` (credentials matched), `block` (401 sent) or `invalid` (it did not run).").one_of(DECISIONS, NOT_RUN),
        field("basic_auth.username", Text, "User name of the Basic credentials, even if blocked.").null_when("the module did not run, or the request had no valid Basic credentials"),
        field("circuit_breaker.decision", Text, "`allow`: the breaker was closed and the request sent. `block`: it was open, 503 sent. `allow_while_open`: let through to probe. `invalid`: it did not run.").one_of(&["allow", "allow_while_open", "block", "invalid"], NOT_RUN),
        field("compression.algorithm", Text, "Content coding that the edge applied to the response: `gzip`, `deflate`, `br` or `none`.").one_of(&["br", "deflate", "gzip", "none"], r#""none""#),
        field("compression.bytes_saved", Int64, "Body bytes before compression minus body bytes sent. Can be negative; 0 when the algorithm is `none`."),
        field("conn.client_ip", Text, "Source address of the client's TCP connection, never from a request header.").filterable(),
        field("conn.server_ip", Text, "Server address that the connection arrived on.").filterable(),
        field("conn.server_name", Text, "Host name of the connection in lower case: the SNI with TLS, otherwise the host of this request without port. Empty if both are missing.").filterable(),
        field("conn.server_port", Int32, "Server port that the connection arrived on.").filterable(),
        field("conn.start_ts", Timestamp, "Time when the client's TCP connection was accepted; identical for all requests of a connection."),
        field("culvert.attempts", Int32, "How many times the request was sent to an upstream. 0 if it never was.").by_name(),
        field("culvert.connect_ms", Int64, "Time to connect to the upstream, over all attempts, in milliseconds.").null_when("no connection was opened for the request").by_name(),
        field("culvert.duration_ms", Int64, "Time from the head of the request to the end of the exchange, in milliseconds.").by_name(),
        field("culvert.first_byte_ms", Int64, "Time from the head of the request to the head of the response, in milliseconds.").null_when("no response began").by_name(),
        field("culvert.protocol", Text, "Protocol of the request: `HTTP/1.0`, `HTTP/1.1` or `HTTP/2`.").by_name(),
        field("culvert.queue_ms", Int64, "Time that the request waited because of the limits of requests in flight, in milliseconds.").null_when("the request did not wait").by_name(),
        field("culvert.reason", Text, REASON).one_of(Reason::VALUES, r#""""#).filterable().by_name(),
        field("culvert.sampled", Int64, SAMPLED).or("1").by_name(),
        field("culvert.trace_id", Text, "ID of the trace (W3C Trace Context), 32 hexadecimal digits: of the `traceparent` header, or of the trace that the edge began.").null_when("the request has no trace").by_name(),
        field("culvert.upstream", Text, UPSTREAM).by_name(),
        field("http.request.body_length", Int64, "Bytes of the request's body received, without framing, before decoding any content encoding."),
        field("http.request.headers", Headers, "Request headers as received: names capitalised, values in ASCII lower case, several values of a name in order. Values of credential headers are `[redacted]`. At most 32 KiB."),
        field("http.request.method", Text, "Request method in lower case."),
        field("http.request.url.host", Text, "Host of the URL in lower case, without port; an IPv6 address without brackets."),
        field("http.request.url.path", Text, "Path of the URL as received, percent-encoding untouched."),
        field("http.request.url.query", Text, "Query of the URL as received, without the question mark. Empty if there is none.").at_most_when_large(URL_BYTES),
        field("http.request.url.raw", Text, "Whole URL: scheme, authority as received, path and query.").at_most_when_large(URL_BYTES),
        field("http.request.url.scheme", Text, "`https` if the client's connection is TLS, otherwise `http`.").one_of(&["http", "https"], r#""http""#),
        field("http.request.user_agent", Text, "The User-Agent header as received, the first if there are several, at most 1024 bytes.").null_when("the header is absent").at_most(1024),
        field("http.response.body_length", Int64, "Bytes of the response's body sent to the client, after compression, without framing."),
        field("http.response.headers", Headers, "Response headers as sent to the client, in the form of `http.request.headers`. Empty if nothing was sent."),
        field("http.response.status_code", Int32, "Status of the final response; 101 for upgrades.").null_when("the request ended before a status was sent"),
        field("ip_policy.decision", Text, "Decision of IP policies: `allow`, `block` or `invalid` (none applied).").one_of(DECISIONS, NOT_RUN),
        field("oauth.app_client_id", Text, "Client id of the OAuth application that was used.").null_when("the module did not run"),
        field("oauth.decision", Text, "Decision of OAuth: `allow` (valid session), `block` (redirected to sign in, rejected, or handled by the module) or `invalid` (it did not run).").one_of(DECISIONS, NOT_RUN),
        field("oauth.user.id", Text, "User ID at the provider.").null_when(NO_USER),
        field("oauth.user.name", Text, "Display name of the user at the provider.").null_when("no user was authenticated, or the provider returned no name"),
        field("tls.cipher_suite", Text, "IANA name of the cipher suite.").null_when(NOT_TLS),
        field("tls.client_cert.serial_number", Text, "Serial number of the client's certificate, lower-case hexadecimal without separators.").null_when(NO_CERTIFICATE),
        field("tls.client_cert.subject.cn", Text, "Last common name in the subject of the client's certificate. Empty if there is none.").null_when(NO_CERTIFICATE),
        field("tls.version", Text, "TLS version between client and edge: `1.2` or `1.3`.").null_when(NOT_TLS).one_of(&["1.2", "1.3"], "null"),
        field("traffic_policy.logs", Logs, "Entries of the traffic policy's log actions, in order: at most 32 entries of 4 KiB, 16 KiB in total."),
        field("webhook_verification.decision", Text, "Decision of webhook verification: `allow`, `block` (403 sent) or `invalid` (it did not run).").one_of(DECISIONS, NOT_RUN),
    ],
);
