//! The responses that the edge makes instead of an upstream: one table, for the responses and for their
//! reference.

use std::fmt::Write;

use culvert_events::Reason;
use culvert_http::fields::{folded, is_of_one_hop};
use culvert_http::http1::Violation;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderName, TRAILER};

/// The field with the code of a response that the edge made. It is removed from responses of upstreams, so its
/// presence proves that the edge made the response.
pub(crate) const ERROR_CODE: HeaderName = HeaderName::from_static(ERROR_CODE_NAME);
/// The name of the field with the code of a response that the edge made.
pub const ERROR_CODE_NAME: &str = "ngrok-error-code";
/// The field with the ID of the request, in responses that the edge made.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static(REQUEST_ID_NAME);
/// The name of the field with the ID of the request.
pub const REQUEST_ID_NAME: &str = "culvert-request-id";

/// Whether a field is `ngrok-error-code`, in any spelling that programs may treat as equal. Its presence proves that
/// the edge made a response.
pub(crate) fn is_error_code(name: &str) -> bool {
    is_spelled(name, ERROR_CODE_NAME)
}

/// Whether a field is one that responses of upstreams do not have: `ngrok-error-code` or `culvert-request-id`, in any
/// spelling.
pub fn is_edges_own(name: &str) -> bool {
    is_error_code(name) || is_spelled(name, REQUEST_ID_NAME)
}

/// Whether only the edge may set a field, in any spelling: hop-by-hop fields, those that define the length or the
/// transfer of a message, and `ngrok-error-code`, which proves that the edge made a response.
pub fn is_edge_controlled(name: &HeaderName) -> bool {
    let read = folded(name);
    is_of_one_hop(&read)
        || read == CONTENT_LENGTH.as_str()
        || read == TRAILER.as_str()
        || is_error_code(&read)
}

/// The field that marks a replay, with the ID of the original event.
pub const REPLAY_OF_NAME: &str = "culvert-replay-of";
/// The field with a signed assertion about the user of a request, unless a policy gives it another name.
pub const ASSERTION_NAME: &str = "culvert-assertion";

/// The field with the secret that gets past the page of an endpoint in maintenance.
pub const MAINTENANCE_NAME: &str = "culvert-maintenance";

/// Whether a field is one that requests to upstreams have only from the edge, or not at all, in any spelling: upstreams rely
/// on it, or it is a secret of the edge.
pub fn is_edges_request(name: &str) -> bool {
    is_spelled(name, REPLAY_OF_NAME)
        || is_spelled(name, ASSERTION_NAME)
        || is_spelled(name, MAINTENANCE_NAME)
}

fn is_spelled(name: &str, own: &str) -> bool {
    let fold = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => byte.to_ascii_lowercase(),
        false => b'-',
    };
    name.len() == own.len() && name.bytes().map(fold).eq(own.bytes())
}

/// What a visitor can do about a problem, as shown on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    /// The address may be wrong.
    Address,
    /// A new connection may help.
    Again,
    /// The problem may pass.
    Later,
    /// The request is at fault.
    Request,
    /// The request is too large.
    Smaller,
    /// Only the owner can permit it.
    Access,
    /// A new sign-in may help.
    SignIn,
    /// Only the owner can correct it.
    Owner,
}

impl Advice {
    fn sentence(self) -> &'static str {
        match self {
            Self::Address => "Check the address for typing errors, or try again later.",
            Self::Again => "Reload the page.",
            Self::Later => "This may be temporary. Try again in a minute.",
            Self::Request => "The site cannot process this request. Go back and try again.",
            Self::Smaller => "Send less data.",
            Self::Access => "If you need access, ask the owner of this site.",
            Self::SignIn => "Go back to the page you wanted and sign in again.",
            Self::Owner => "Only the owner of this site can correct this.",
        }
    }
}

/// A table of problems with the status, the number of the code and the sentence of each response, and what pages
/// say to the visitor and to the owner of the endpoint.
macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident: $status:ident $number:literal $text:literal
        $advice:ident $help:literal;)*) => {
        /// Why the edge responds instead of an upstream.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Problem {
            /// The bytes on the wire are rejected.
            Violation(Violation),
            $($(#[$doc])* $name,)*
        }

        impl Problem {
            /// One of each response.
            pub const ALL: &[Self] = &[
                Self::Violation(Violation::TargetTooLong),
                Self::Violation(Violation::FieldsTooLarge),
                Self::Violation(Violation::TooSlow),
                $(Self::$name,)*
            ];

            /// What the visitor and the owner of the endpoint can do.
            fn help(self) -> (Advice, &'static str) {
                match self {
                    Self::Violation(violation) => match violation {
                        Violation::Malformed(_) => Self::Malformed.help(),
                        Violation::Method => Self::Method.help(),
                        Violation::TargetTooLong => (
                            Advice::Request,
                            "Clients must send less in the address, and more in the body.",
                        ),
                        Violation::FieldsTooLarge => (
                            Advice::Request,
                            "Cookies of the host are the usual reason. Visitors can delete them.",
                        ),
                        Violation::TooSlow => (
                            Advice::Later,
                            "The connection of the visitor is too slow. `edge.timeouts.request` is the limit for bodies.",
                        ),
                    },
                    $(Self::$name => (Advice::$advice, $help),)*
                }
            }

            /// Status, number of the code, and the sentence.
            pub(super) fn row(self) -> (StatusCode, u16, &'static str) {
                match self {
                    Self::Violation(violation) => match violation {
                        Violation::Malformed(_) => Self::Malformed.row(),
                        Violation::Method => Self::Method.row(),
                        Violation::TargetTooLong => (
                            StatusCode::URI_TOO_LONG,
                            3602,
                            "The request line is too long.",
                        ),
                        Violation::FieldsTooLarge => (
                            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                            3603,
                            "The request's header fields are too large or too many.",
                        ),
                        Violation::TooSlow => (
                            StatusCode::REQUEST_TIMEOUT,
                            3605,
                            "The request did not arrive in time.",
                        ),
                    },
                    $(Self::$name => (StatusCode::$status, $number, $text),)*
                }
            }
        }
    };
}

problems! {
    /// The request names no host, or more than one.
    Authority: BAD_REQUEST 3606 "The request must name exactly one host."
        Request "Each request must have one `Host` header. A proxy in front of the edge may add another.";
    /// The target or a field is malformed.
    Malformed: BAD_REQUEST 3601 "The request is malformed."
        Request "The client, or a proxy in front of the edge, sent invalid HTTP.";
    /// No endpoint has this host.
    UnknownHost: NOT_FOUND 3200 "No endpoint is online at this host."
        Address "Compare the host with `culvert api endpoints list`. If an agent serves it, start the agent, for example with `culvert http 8080`.";
    /// An IP restriction blocks the client's address.
    Restricted: FORBIDDEN 3205 "An IP restriction blocks the client's address."
        Access "Compare the address of the visitor with `culvert api ip_restrictions list`.";
    /// The connection is for another endpoint.
    Misdirected: MISDIRECTED_REQUEST 3607 "The connection was established for another host."
        Again "The browser used its connection to another host. Hosts whose endpoints have different accounts, certificates or connection rules need separate connections.";
    /// The method is not supported.
    Method: METHOD_NOT_ALLOWED 3604 "The method is not supported."
        Request "The edge does not support `CONNECT`; it is not a forward proxy.";
    /// An expectation other than `100-continue`.
    Expectation: EXPECTATION_FAILED 3608 "The server cannot meet the `Expect` header."
        Request "Remove the `Expect` header, or send `Expect: 100-continue`.";
    /// A malformed WebSocket handshake.
    Upgrade: BAD_REQUEST 3609 "The WebSocket handshake is invalid."
        Request "The client sent a WebSocket handshake that RFC 6455 does not allow.";
    /// The upstream accepts no connections.
    Unreachable: BAD_GATEWAY 8012 "The endpoint is online, but the edge cannot connect to its upstream."
        Later "Check that the service behind the endpoint runs, and that it listens at the address of the upstream or of the agent, such as `culvert http 8080`. A library that terminates TLS itself needs a `tls` endpoint.";
    /// The TLS handshake with the upstream failed for another reason than those below.
    UpstreamTls: BAD_GATEWAY 3630 "The TLS handshake with the upstream failed."
        Owner "The log of the server has the reason. If the service does not expect TLS, use an upstream without TLS.";
    /// The certificate of the upstream has expired or is not valid yet.
    UpstreamDates: BAD_GATEWAY 3631 "The certificate of the upstream has expired or is not valid yet."
        Owner "Renew the certificate of the service, and check the clock of the server.";
    /// No trusted authority signed the certificate of the upstream.
    UpstreamIssuer: BAD_GATEWAY 3632 "The edge does not trust the certificate of the upstream."
        Owner "Name the authority that signed the certificate of the service in `upstream_tls.ca` of the endpoint, or the SHA-256 of a self-signed certificate in `upstream_tls.pins`.";
    /// The certificate of the upstream is for other names.
    UpstreamName: BAD_GATEWAY 3633 "The certificate of the upstream is for another name."
        Owner "Set `upstream_tls.server_name` of the endpoint to a name in the certificate of the service.";
    /// The certificate of the upstream matches no pin.
    UpstreamPin: BAD_GATEWAY 3634 "The certificate of the upstream matches no pin."
        Owner "If the certificate of the service was renewed, add its SHA-256 to `upstream_tls.pins` of the endpoint. Otherwise another machine has its address.";
    /// The upstream's response is incomplete or invalid.
    BadAnswer: BAD_GATEWAY 3004 "The upstream's response is incomplete or not valid HTTP."
        Later "Check the log of the service behind the endpoint. If the service expects TLS, use an upstream that begins with `https://`.";
    /// The upstream did not respond in time.
    UpstreamTooSlow: GATEWAY_TIMEOUT 3610 "The upstream did not respond in time."
        Later "Check the service behind the endpoint, or raise the timeout of the endpoint or `edge.timeouts.first_byte`.";
    /// The upstream's protocol does not support the request.
    Unsuited: SERVICE_UNAVAILABLE 3611 "The endpoint's upstream does not support this kind of request."
        Request "The upstream speaks a protocol that does not support this request, such as a WebSocket over HTTP/2. Change the upstream protocol of the endpoint.";
    /// The endpoint or its upstreams have reached their limit.
    UpstreamFull: SERVICE_UNAVAILABLE 3626 "Too many requests are in progress at this endpoint; try again shortly."
        Later "The endpoint or its upstreams have reached a limit: `upstream_limits.in_flight_max`, or `in_flight_max` of one of `upstreams`. Add an upstream, or raise the limit or `upstream_limits.queue_max` and `wait_max`.";
    /// The endpoint is in maintenance.
    Maintenance: SERVICE_UNAVAILABLE 3627 "The site is in maintenance; try again later."
        Later "`maintenance` of the endpoint is on. `maintenance.bypass_cidrs` and `bypass_secret` say who gets past it.";
    /// The traffic policy blocks the client's address.
    NotAdmitted: FORBIDDEN 3203 "The traffic policy blocks the client's address."
        Access "Review `restrict-ips` in the traffic policy of the endpoint.";
    /// The circuit breaker of the traffic policy is open.
    BreakerOpen: SERVICE_UNAVAILABLE 3202 "The circuit breaker is open because the upstream failed too often."
        Later "Check the log of the service behind the endpoint. The circuit breaker of the traffic policy closes when the service responds again.";
    /// The body exceeds the limit of the edge.
    Oversized: PAYLOAD_TOO_LARGE 3616 "The request body exceeds the edge's size limit."
        Smaller "Raise `edge.body_bytes_max`.";
    /// The body is too long for the action that buffers it.
    BodyTooLong: PAYLOAD_TOO_LARGE 3612 "The request body is too long for the traffic policy."
        Smaller "An action of the traffic policy reads the whole body. Apply it only to requests with short bodies.";
    /// The upstream's response is too long for the action that buffers it.
    AnswerTooLong: BAD_GATEWAY 3614 "The upstream's response body is too long for the traffic policy."
        Owner "An action of the traffic policy reads the whole response body. Apply it only to short responses.";
    /// The memory for buffered bodies is full.
    NoRoom: SERVICE_UNAVAILABLE 3613 "Too many request bodies are being buffered."
        Later "Traffic policies buffer many bodies at this moment. Apply actions that read bodies to fewer requests.";
    /// A webhook is not signed by its provider.
    Webhook: FORBIDDEN 3204 "The webhook signature is missing or invalid."
        Access "Compare the secret of `verify-webhook` with the one at the sender.";
    /// There is no signed token.
    NoToken: UNAUTHORIZED 3401 "The request has no token."
        Access "The client must send a token where `jwt-validation` expects it.";
    /// The token is malformed.
    BadToken: UNAUTHORIZED 3406 "The token is not a signed JWT."
        Access "The client must send a signed JWT where `jwt-validation` expects it.";
    /// The token is not accepted.
    TokenRefused: FORBIDDEN 3403 "The token is not accepted."
        Access "Compare issuer, audience, algorithm and lifetime of the token with `jwt-validation` in the traffic policy.";
    /// The keys that verify tokens are unavailable.
    NoKeys: BAD_GATEWAY 3422 "The edge cannot fetch the keys that verify the token."
        Later "Check that the edge can reach the key URLs of `jwt-validation`.";
    /// The traffic policy forwards to an internal endpoint that does not exist.
    NoInternal: BAD_GATEWAY 3615 "The internal endpoint that the traffic policy forwards to is offline."
        Later "Compare the `forward-internal` action of the traffic policy with `culvert api endpoints list`.";
    /// The traffic policy forwards to an internal endpoint that its owner may not use.
    InternalForbidden: BAD_GATEWAY 3618 "The traffic policy may not forward to this internal endpoint."
        Owner "The internal endpoint belongs to another owner, who can grant its use: `culvert api grants create`.";
    /// A request of the traffic policy got no response.
    Call: BAD_GATEWAY 3617 "A service that the traffic policy calls did not respond."
        Later "Check the service that `http-request` of the traffic policy calls.";
    /// The traffic policies of internal endpoints forward too often.
    Hops: BAD_GATEWAY 3501 "The traffic policies forwarded the request between endpoints too many times."
        Owner "The traffic policies of the internal endpoints forward in a loop, or through too many endpoints.";
    /// A path of the edge at which nothing is.
    EdgePath: NOT_FOUND 3622 "No page of the edge has this address."
        Address "Paths below `/culvert/` belong to the edge at an endpoint whose traffic policy signs users in. They are never forwarded to the upstream.";
    /// There is no session, and the request is not one that can be redirected to a sign-in.
    LoginFirst: UNAUTHORIZED 3100 "Sign in first."
        SignIn "Only GET requests redirect to the sign-in. Scripts should reload the page if they get this response.";
    /// The target after the sign-in is not a path of this host.
    LoginPath: BAD_REQUEST 3106 "The `redirect_path` is not a path on this host."
        SignIn "The link to the sign-in must have a `redirect_path` that begins with `/`.";
    /// The callback has no cookie of a sign-in.
    LoginCookie: BAD_REQUEST 3107 "This browser did not start the sign-in or did not keep its cookie; start again."
        SignIn "The browser must accept cookies of this host, and must return from the provider to the host where it began.";
    /// The callback has no state.
    LoginNoState: BAD_REQUEST 3120 "The identity provider did not return the `state` parameter; start again."
        SignIn "The identity provider must return the `state` parameter. Check that the callback URL is registered there.";
    /// The state is invalid, expired or already used.
    LoginState: BAD_REQUEST 3108 "The sign-in is invalid, expired or already complete; start again."
        SignIn "A sign-in expires after some minutes and works once. Check the clock of the server if all fail.";
    /// A sign-in at a page that is not https.
    LoginInsecure: FORBIDDEN 3128 "Sign-in requires https."
        Owner "Browsers keep the cookies of a sign-in only for `https` pages. Use an `https` endpoint. A proxy that terminates TLS before the edge must be in `edge.trusted_proxies` and send `x-forwarded-proto`.";
    /// The state is for another host.
    LoginOtherHost: BAD_REQUEST 3124 "The sign-in started on another host; start again."
        SignIn "The callback URL that is registered at the provider must have the host of this endpoint.";
    /// The provider denied access.
    LoginDenied: FORBIDDEN 3125 "Your identity provider denied the sign-in."
        Access "Check at the identity provider whether this user may use the application.";
    /// The provider returned no e-mail address.
    LoginNoEmail: FORBIDDEN 3109 "Your identity provider returned no verified e-mail address."
        Access "The application needs the scope that returns e-mail addresses, and the user needs a verified one.";
    /// The provider returned no user ID.
    LoginNoUser: FORBIDDEN 3110 "Your identity provider returned no user ID."
        Access "The application needs the scope that returns the user ID.";
    /// The provider's ID token is invalid.
    LoginToken: FORBIDDEN 3303 "The identity provider's ID token is invalid."
        SignIn "Compare issuer and client ID in the traffic policy with the provider. The log of the server has the reason.";
    /// The provider is unavailable.
    LoginProvider: BAD_GATEWAY 5536 "The edge cannot reach the identity provider or parse its response."
        Later "The log of the server has the reason. Check the client ID, the secret and the URLs of the identity provider.";
    /// Too many sign-ins or sessions.
    LoginBusy: SERVICE_UNAVAILABLE 3127 "Too many sign-ins are in progress; try again shortly."
        Later "The identity provider responds slowly, or the limit of application sessions is reached. The log of the server has the reason.";
    /// An action of the traffic policy failed.
    Policy: INTERNAL_SERVER_ERROR 2300 "An action of the traffic policy failed."
        Owner "The log of the server at level `debug` has the reason. Check that objects that the traffic policy refers to exist.";
    /// A limit of the traffic policy's evaluation was reached, so its decision is unknown.
    PolicyLimit: INTERNAL_SERVER_ERROR 2301 "The request exceeds a limit of the traffic policy."
        Owner "The request is too large or too complex for the expressions of the traffic policy, or too many requests wait for it. Its rules cannot be decided, so the request is rejected. Simplify the expressions; the reference of traffic policies lists the limits.";
    /// The traffic policy uses a secret that its owner may not use there.
    SecretsWithdrawn: INTERNAL_SERVER_ERROR 2270 "The traffic policy may not use its secrets."
        Owner "The owner of the endpoint may not use a secret, or not there. The health of the endpoint names the secret; ask for a grant on the vault.";
    /// No action of the traffic policy responded, and the endpoint has no upstream.
    Unhandled: SERVICE_UNAVAILABLE 6029 "The traffic policy did not handle the request, and the endpoint has no upstream."
        Owner "Add an action that responds or forwards to the traffic policy, or set an upstream for the endpoint.";
    /// The edge is overloaded.
    Overloaded: SERVICE_UNAVAILABLE 3620 "The edge is overloaded; try again shortly."
        Later "Check memory and CPU of the server. Raise `edge.memory_bytes` if there is memory left.";
    /// The configuration is older than the edge may serve.
    Outdated: SERVICE_UNAVAILABLE 3624 "The configuration of the edge is too old; try again later."
        Later "The server could not read its database for longer than `edge.copy_age_max`. Its log has the reason.";
    /// All agents of the endpoint are busy.
    AgentBusy: SERVICE_UNAVAILABLE 3621 "The endpoint's agent has reached its connection limit; try again shortly."
        Later "Start another agent for this endpoint, or raise the limit of open files of the agent.";
    /// The connections of all agents of the endpoint carry nothing.
    AgentSilent: SERVICE_UNAVAILABLE 3623 "The endpoint's agent does not respond; try again shortly."
        Later "The connection between the server and the agent carries nothing. Check the network of the agent.";
    /// The decision needs the database, and the edge serves from a copy of the configuration.
    NeedsDatabase: SERVICE_UNAVAILABLE 3625 "The edge cannot decide this without its database; try again later."
        Later "The server started while its database was away, and serves from a copy of its configuration. Sign-ins, and rate limits with `scope: cluster`, wait for the database.";
}

impl Problem {
    /// The reason in the event. `None` for decisions of the traffic policy, which other fields of the event have.
    pub fn reason(self) -> Option<Reason> {
        Some(match self {
            Self::Violation(Violation::Malformed(_)) | Self::Malformed => Reason::Malformed,
            Self::Violation(Violation::TargetTooLong) => Reason::TargetTooLong,
            Self::Violation(Violation::FieldsTooLarge) => Reason::HeadTooLarge,
            Self::Violation(Violation::Method) | Self::Method => Reason::Method,
            Self::Violation(Violation::TooSlow) => Reason::TooSlow,
            Self::Authority => Reason::BadHost,
            Self::UnknownHost => Reason::UnknownHost,
            Self::Misdirected => Reason::Misdirected,
            Self::Expectation => Reason::Expectation,
            Self::Upgrade => Reason::Upgrade,
            Self::Overloaded => Reason::Overloaded,
            Self::Outdated => Reason::Outdated,
            Self::Restricted | Self::NotAdmitted => Reason::Restricted,
            Self::Oversized | Self::BodyTooLong => Reason::BodyTooLong,
            Self::NoRoom | Self::LoginBusy => Reason::NoMemory,
            Self::BreakerOpen => Reason::BreakerOpen,
            Self::NoKeys | Self::Call | Self::LoginProvider => Reason::PolicyCall,
            Self::Policy | Self::PolicyLimit | Self::SecretsWithdrawn => Reason::Policy,
            Self::NoInternal | Self::InternalForbidden | Self::Hops => Reason::NoInternal,
            Self::Unhandled => Reason::NoUpstream,
            Self::NeedsDatabase => Reason::NeedsDatabase,
            Self::AgentBusy => Reason::AgentBusy,
            Self::AgentSilent => Reason::AgentSilent,
            Self::Unreachable => Reason::ConnectFailed,
            Self::UpstreamTls => Reason::UpstreamTls,
            Self::UpstreamDates => Reason::UpstreamDates,
            Self::UpstreamIssuer => Reason::UpstreamIssuer,
            Self::UpstreamName => Reason::UpstreamName,
            Self::UpstreamPin => Reason::UpstreamPin,
            Self::BadAnswer => Reason::BadResponse,
            Self::UpstreamTooSlow => Reason::ResponseTimeout,
            Self::AnswerTooLong => Reason::ResponseTooLong,
            Self::Unsuited => Reason::Unsuited,
            Self::UpstreamFull => Reason::UpstreamFull,
            Self::Maintenance => Reason::Maintenance,
            Self::Webhook
            | Self::NoToken
            | Self::BadToken
            | Self::TokenRefused
            | Self::EdgePath
            | Self::LoginFirst
            | Self::LoginPath
            | Self::LoginCookie
            | Self::LoginNoState
            | Self::LoginState
            | Self::LoginInsecure
            | Self::LoginOtherHost
            | Self::LoginDenied
            | Self::LoginNoEmail
            | Self::LoginNoUser
            | Self::LoginToken => return None,
        })
    }

    /// Whether the upstream caused it.
    pub fn is_upstreams(self) -> bool {
        matches!(
            self,
            Self::Unreachable
                | Self::UpstreamTls
                | Self::UpstreamDates
                | Self::UpstreamIssuer
                | Self::UpstreamName
                | Self::UpstreamPin
                | Self::BadAnswer
                | Self::UpstreamTooSlow
        )
    }

    /// A malformed request.
    pub fn malformed(what: &'static str) -> Self {
        Self::Violation(Violation::Malformed(what))
    }

    /// Its code as text.
    pub fn code(self) -> String {
        format!("ERR_NGROK_{}", self.row().1)
    }

    /// Its sentence.
    pub fn sentence(self) -> &'static str {
        self.row().2
    }

    /// What a visitor can do about it, as one sentence.
    pub fn advice(self) -> &'static str {
        self.help().0.sentence()
    }

    /// What the owner of the endpoint can do about it. `` ` `` surrounds code.
    pub fn owner_help(self) -> &'static str {
        self.help().1
    }

    /// The status of its response.
    pub fn status(self) -> StatusCode {
        self.row().0
    }

    /// The seconds in `retry-after`, if it is temporary.
    pub(crate) fn retry_after(self) -> Option<u32> {
        match self {
            Self::Overloaded
            | Self::AgentBusy
            | Self::AgentSilent
            | Self::UpstreamFull
            | Self::LoginBusy => Some(1),
            // An outage of the database takes longer than a peak of the load.
            Self::Outdated | Self::NeedsDatabase => Some(30),
            _ => None,
        }
    }
}

/// `docs/reference/edge-errors.md`.
pub fn errors() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut rows: Vec<(u16, Problem)> = Problem::ALL
        .iter()
        .map(|problem| (problem.row().1, *problem))
        .collect();
    rows.sort_unstable_by_key(|(number, _)| *number);
    for (_, problem) in rows {
        // Writing to a string cannot fail.
        let _ok = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            problem.code(),
            problem.status().as_u16(),
            problem.sentence(),
            problem.owner_help()
        );
    }
    page
}

const INTRODUCTION: &str = "# Edge error responses

Generated from the edge's table of errors.

If the edge responds instead of an upstream, the response has a code, a message and the ID of the request.
The `accept` header of the request selects the format: JSON (`application/json`), an HTML page
(`text/html`) or, by default, a line of text:

```json
{\"error_code\":\"ERR_NGROK_3200\",\"status_code\":404,\"msg\":\"No endpoint is online at this host.\",\"details\":{\"request_id\":\"18aa3c66d1b2a5f0-d431-1\"}}
```

The header `ngrok-error-code` contains the code. The header `culvert-request-id` contains the ID. The edge removes
these headers from upstream responses, so their presence shows that the edge generated the response.
Responses that a traffic policy configures (`deny`, `custom-response`, the 401 of `basic-auth`, the 429 of
`rate-limit`) have no code. `deny`, `basic-auth` and `rate-limit` also send the ID and, to clients that prefer
HTML, a page.

Calls of gRPC over HTTP/2, and of gRPC-Web, get such responses without a body: `grpc-status` is the one that
gRPC defines for the HTTP status, and `grpc-message` has the text.

Pages show a sentence for the visitor, the cause (`culvert.reason` of the event) and the help for the owner from
this table, and the request ID.
`edge.error_pages` replaces them.

| Code | Status | Meaning | Help for the owner |
|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_gateway_has_a_reason() {
        for problem in Problem::ALL {
            if (502..=504).contains(&problem.status().as_u16()) {
                assert!(problem.reason().is_some(), "{problem:?}");
            }
        }
    }

    #[test]
    fn each_problem_has_a_distinct_code() {
        let mut numbers: Vec<u16> = Problem::ALL.iter().map(|problem| problem.row().1).collect();
        numbers.sort_unstable();
        let before = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), before);
        for problem in Problem::ALL {
            assert!(problem.status().as_u16() >= 400 && problem.sentence().ends_with('.'));
            assert!(problem.owner_help().ends_with('.'));
            assert!(problem.owner_help().matches('`').count().is_multiple_of(2));
        }
    }
}
