//! Errors for callers: a class, an optional code, and a sentence (contract: management API 1.14).

use std::borrow::Cow;

use crate::error::code::Code;

/// An error that the caller sees as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The class, which the API maps to an HTTP status.
    pub class: Class,
    /// The code that clients evaluate, if any.
    pub code: Option<Code>,
    /// One sentence with the cause and how to correct it.
    pub message: Cow<'static, str>,
    /// Further facts as text, such as the requested path.
    pub details: Vec<(&'static str, String)>,
}

impl Refusal {
    /// An error with the class and message of a code's row.
    pub fn of(code: Code) -> Self {
        let row = code.row();
        Self {
            class: row.class,
            code: Some(code),
            message: row.text.into(),
            details: Vec::new(),
        }
    }

    /// An error with the class of a code and its own message.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            message: message.into(),
            ..Self::of(code)
        }
    }

    /// An error without a code.
    pub fn uncoded(class: Class, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            class,
            code: None,
            message: message.into(),
            details: Vec::new(),
        }
    }

    /// The object does not exist, or the caller may not see it.
    pub fn not_found() -> Self {
        Self::uncoded(Class::NotFound, "Resource not found")
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.details.push((name, value.into()));
        self
    }
}

/// The class of an error. The API maps it to an HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The request or a value in it is invalid.
    Invalid,
    /// The request has no valid credentials.
    Unauthenticated,
    /// The caller is authenticated but not permitted.
    Forbidden,
    /// The path or the object does not exist.
    NotFound,
    /// The path exists, but not with this method.
    WrongMethod,
    /// Concurrent changes of the object kept conflicting with this one.
    Conflict,
    /// A condition in the request's headers is false for the object.
    ConditionFailed,
    /// The same request is still running, or its outcome is not known.
    Running,
    /// A key that stands for another request.
    OtherRequest,
    /// The request did not arrive in time.
    TooSlow,
    /// The body exceeds the size limit.
    TooLarge,
    /// The content type is not supported.
    UnsupportedType,
    /// The caller exceeded a rate limit.
    TooMany,
    /// An agent did not do what it was requested to do.
    BadAgent,
    /// Internal error.
    Failed,
    /// Temporarily unavailable.
    Unavailable,
}

/// An error code that a caller may see.
#[derive(Debug)]
pub struct CodeRow {
    /// The number after `ERR_NGROK_`.
    pub number: u16,
    /// The class, which determines the HTTP status.
    pub class: Class,
    /// The message, unless the place of the error gives a more specific one.
    pub text: &'static str,
}

const fn row(number: u16, class: Class, text: &'static str) -> CodeRow {
    CodeRow {
        number,
        class,
        text,
    }
}

/// All codes, in ascending order. The reference page is generated from this table.
#[rustfmt::skip]
pub const CODES: &[CodeRow] = &[
    row(100, Class::Invalid, "The metadata is longer than 4096 bytes."),
    row(103, Class::Forbidden, "The account is suspended."),
    row(105, Class::Unauthenticated, "The authtoken is malformed."),
    row(107, Class::Unauthenticated, "The authtoken is unknown."),
    row(108, Class::TooMany, "The agent session limit is reached."),
    row(109, Class::Invalid, "The agent's authentication request is malformed."),
    row(115, Class::Forbidden, "An IP restriction blocks the agent's address."),
    row(122, Class::Forbidden, "The agent ingress belongs to another account."),
    row(200, Class::Unauthenticated, "The request has no credential; send `Authorization: Bearer <API key token>`."),
    row(201, Class::Unauthenticated, "The Authorization header is malformed; send `Authorization: Bearer <API key token>`."),
    row(202, Class::Unauthenticated, "The API key token is malformed."),
    row(203, Class::Unauthenticated, "The API key is invalid."),
    row(205, Class::Forbidden, "The account is suspended."),
    row(206, Class::Unauthenticated, "The credential is a tunnel credential; the API accepts only API keys."),
    row(208, Class::Unauthenticated, "The credential is the ID of an API key; send its token."),
    row(210, Class::UnsupportedType, "The request body must be `application/json`."),
    row(211, Class::Invalid, "This operation does not accept a request body."),
    row(212, Class::Invalid, "The request body cannot be read."),
    row(213, Class::Invalid, "The request body must be one JSON object."),
    row(214, Class::Invalid, "The request body has an unknown field."),
    row(215, Class::Invalid, "A field of the request body has the wrong type or value."),
    row(217, Class::Invalid, "The API version must be `2`."),
    row(220, Class::Forbidden, "An IP restriction blocks the caller's address."),
    row(221, Class::Forbidden, "This installation does not accept abuse reports."),
    row(223, Class::Invalid, "A reference is not a valid identifier."),
    row(226, Class::TooMany, "Too many requests; try again later."),
    row(227, Class::Invalid, "An identifier refers to the wrong kind of object."),
    row(230, Class::Invalid, "The query string cannot be parsed."),
    row(231, Class::Invalid, "The query has an unknown parameter."),
    row(232, Class::Invalid, "A query parameter is repeated."),
    row(233, Class::Invalid, "`limit` must be between 1 and 100."),
    row(235, Class::Invalid, "`format` must be `json`, `ocsf` or `ecs`."),
    row(236, Class::Invalid, "The target type is unknown."),
    row(238, Class::Invalid, "The event type does not exist."),
    row(241, Class::Invalid, "A time must be in RFC 3339 format."),
    row(243, Class::Invalid, "An identifier refers to a kind of object that is not allowed here."),
    row(244, Class::Invalid, "`limit` must be a number."),
    row(248, Class::Invalid, "An endpoint's type must be `cloud`."),
    row(250, Class::Invalid, "The filter expression is invalid."),
    row(260, Class::Invalid, "`Host` must be one host name or address, with an optional port."),
    row(261, Class::Invalid, "`Idempotency-Key` must be one value of 1 to 255 visible ASCII characters."),
    row(262, Class::OtherRequest, "Another request was sent with this `Idempotency-Key`; use a new key."),
    row(263, Class::Running, "A request with this `Idempotency-Key` is still running; try again."),
    row(264, Class::TooMany, "The API key or its owner has too many stored responses; they are removed 24 hours after their requests."),
    row(265, Class::Forbidden, "The rights of the API key were reduced after the request with this `Idempotency-Key`."),
    row(266, Class::ConditionFailed, "The object has changed: a condition in the request's headers is false."),
    row(267, Class::Invalid, "A condition in the request's headers is malformed, or the operation cannot check it."),
    row(268, Class::Invalid, "`q` must be a text of 1 to 256 bytes."),
    row(269, Class::Invalid, "`q` contains a token, which is a secret: search for the ID of its object."),
    row(270, Class::Invalid, "The collection, order or cursor of a search is invalid."),
    row(300, Class::Unauthenticated, "The credential of the agent session was deleted."),
    row(301, Class::Invalid, "The agent's endpoint request is malformed."),
    row(307, Class::Invalid, "The TCP address is not reserved by the account, or no address is free."),
    row(308, Class::Forbidden, "The credential's ACL does not allow this TCP address."),
    row(316, Class::Forbidden, "The credential's ACL does not allow this name."),
    row(318, Class::Invalid, "No reserved domain of the account covers this wildcard."),
    row(319, Class::Invalid, "No reserved domain of the account covers this name."),
    row(320, Class::Invalid, "A reserved domain of another account covers this name."),
    row(324, Class::TooMany, "The endpoint limit of the agent session is reached."),
    row(326, Class::Invalid, "The endpoint's name is not a valid host name."),
    row(332, Class::Invalid, "An endpoint's protocol must be `http`, `https`, `tcp` or `tls`."),
    row(333, Class::NotFound, "The agent session has no endpoint with this ID."),
    row(334, Class::Invalid, "Another endpoint is online at this URL; both must enable pooling."),
    row(335, Class::Invalid, "The endpoint token is invalid."),
    row(356, Class::Forbidden, "The credential's ACL does not allow random TCP addresses."),
    row(358, Class::Invalid, "Labelled tunnels are no longer supported; bind a URL."),
    row(359, Class::Invalid, "An endpoint option is invalid."),
    row(399, Class::Forbidden, "The credential's ACL does not allow these labels."),
    row(400, Class::Invalid, "The region is unknown."),
    row(402, Class::Invalid, "`*` is allowed only as the first label of a domain."),
    row(403, Class::Invalid, "`*` must be the entire first label of a domain."),
    row(406, Class::Invalid, "A domain may contain letters, digits, `-` and dots, and `*` as its first label."),
    row(407, Class::Invalid, "A domain label starts with an invalid character."),
    row(408, Class::Invalid, "A domain label ends with an invalid character."),
    row(409, Class::Invalid, "The domain has an empty label (two dots in a row)."),
    row(410, Class::Invalid, "A domain label has `--` in positions 3 and 4 but is not an `xn--` label."),
    row(411, Class::Invalid, "The domain is not under a public top-level domain."),
    row(413, Class::Invalid, "The domain is already reserved by this account."),
    row(414, Class::Invalid, "The domain is already reserved by another account."),
    row(416, Class::Invalid, "The wildcard of the platform domain cannot be reserved."),
    row(417, Class::Invalid, "The wildcard overlaps a domain of another account."),
    row(420, Class::Invalid, "The description of the domain is longer than 255 bytes."),
    row(421, Class::Invalid, "The metadata of the domain is longer than 4096 bytes."),
    row(422, Class::Invalid, "The update changes no field."),
    row(423, Class::Invalid, "The domain is longer than 253 characters."),
    row(429, Class::Invalid, "The domain has an invalid internationalised label (IDNA)."),
    row(434, Class::Invalid, "A domain cannot have both an uploaded certificate and a certificate management policy."),
    row(435, Class::Invalid, "The certificate management policy names an unsupported certificate authority."),
    row(436, Class::Invalid, "A managed certificate cannot be detached; delete the certificate management policy instead."),
    row(437, Class::Invalid, "The object has no certificate management policy."),
    row(438, Class::Invalid, "A domain must not contain underscores."),
    row(439, Class::Invalid, "A subdomain of the platform domain cannot have a certificate management policy."),
    row(440, Class::Invalid, "A subdomain of the platform domain cannot have its own certificate."),
    row(446, Class::Invalid, "An endpoint uses the domain or TCP address."),
    row(448, Class::Invalid, "A domain must have at least two labels."),
    row(456, Class::Invalid, "`resolves_to` names a region more than once."),
    row(500, Class::Invalid, "The region is unknown; the only region is `us`."),
    row(503, Class::Invalid, "No TCP address is free: the pool is exhausted, or this installation is not in the region."),
    row(504, Class::Invalid, "The description of the TCP address is longer than 255 bytes."),
    row(505, Class::Invalid, "The metadata of the TCP address is longer than 4096 bytes."),
    row(506, Class::Invalid, "The update changes no field."),
    row(513, Class::Invalid, "A domain label is longer than 63 characters."),
    row(514, Class::Invalid, "The domain in Punycode is longer than 253 characters or has a label longer than 63."),
    row(600, Class::Invalid, "An ACL rule is invalid."),
    row(604, Class::Invalid, "The description is longer than 255 bytes."),
    row(605, Class::Invalid, "The metadata is longer than 4096 bytes."),
    row(606, Class::Invalid, "The update changes no field."),
    row(609, Class::Invalid, "This account already has the SSH public key."),
    row(610, Class::Invalid, "Another account already has the SSH public key."),
    row(611, Class::Invalid, "The SSH public key is missing."),
    row(612, Class::Invalid, "The SSH public key is invalid."),
    row(630, Class::Forbidden, "Only admins may set another owner."),
    row(634, Class::Invalid, "The owner does not exist."),
    row(635, Class::Forbidden, "The owner of this API key has read-only access."),
    row(636, Class::Forbidden, "The owner is inactive."),
    row(640, Class::Unauthenticated, "The API key has expired."),
    row(641, Class::Forbidden, "The API key may not be used from this address."),
    row(642, Class::Forbidden, "The API key does not have the scope of this operation."),
    row(643, Class::Forbidden, "A restricted API key cannot give more rights than it has."),
    row(644, Class::Invalid, "The account must keep an active admin."),
    row(645, Class::Unauthenticated, "The invitation is invalid or has expired."),
    row(646, Class::Invalid, "Another user already has this e-mail address."),
    row(647, Class::Forbidden, "Your user at the identity provider may not sign in to this console."),
    row(648, Class::Unauthenticated, "The sign-in was denied, has expired, or began in another browser; sign in again."),
    row(649, Class::Unavailable, "The identity provider of the console is not usable; see the server log."),
    row(650, Class::Forbidden, "The owner of the referring object may not use the object that it refers to."),
    row(651, Class::Invalid, "Objects need the grant; send `force=true` to delete it."),
    row(652, Class::Invalid, "The limit of grants is reached."),
    row(653, Class::Invalid, "The API key would break a rule of the account."),
    row(660, Class::Invalid, "The change would lock out all admins, or the caller."),
    row(661, Class::Invalid, "A name must not contain control characters, invisible characters or characters that change the direction of text."),
    row(662, Class::Invalid, "Only users are called like an e-mail address."),
    row(800, Class::Invalid, "The agent opened a stream of an unknown type."),
    row(801, Class::Invalid, "The agent's request is malformed."),
    row(802, Class::Failed, "The server did not process the agent's request in time."),
    row(804, Class::Invalid, "The agent does not support remote restarts."),
    row(805, Class::Invalid, "The agent does not support remote stops."),
    row(806, Class::Invalid, "The agent does not support remote updates."),
    row(807, Class::BadAgent, "The agent failed to stop."),
    row(808, Class::BadAgent, "The agent failed to restart."),
    row(809, Class::BadAgent, "The agent failed to update itself."),
    row(810, Class::BadAgent, "The agent disconnected or did not respond."),
    row(811, Class::Invalid, "The agent supports no protocol version of this server, which supports `3`."),
    row(812, Class::TooLarge, "The agent's request is too long."),
    row(1100, Class::Unauthenticated, "The SSH client offered no key; a registered key is required."),
    row(1101, Class::Unauthenticated, "The SSH client offered too many keys; select one with `-i` and `-o IdentitiesOnly=yes`."),
    row(1102, Class::Unauthenticated, "The SSH key is not registered."),
    row(1104, Class::Invalid, "An SSH connection allows one session; `ControlMaster` connections cannot be shared."),
    row(1105, Class::Invalid, "`-R` is given more than once; only one forward is supported."),
    row(1106, Class::Invalid, "The command-line version in the SSH user name must be `v1` or `v2`."),
    row(1107, Class::Invalid, "The command is missing; use `http`, `tcp` or `tls`."),
    row(1108, Class::Invalid, "The command must be `http`, `tcp` or `tls`."),
    row(1109, Class::Invalid, "The command does not support a flag, or the flag requires an agent."),
    row(1111, Class::Invalid, "No command arrived in time; use `http`, `tcp` or `tls`."),
    row(1112, Class::Invalid, "The forward is missing; use `-R`."),
    row(1114, Class::Invalid, "The address is given both by `-R` and by `--remote-addr` or `--url`."),
    row(1115, Class::Invalid, "The port is given both by `-R` and by `--remote-addr`; give `-R` the full address."),
    row(1116, Class::Invalid, "A TCP address must have a host before the port, or port 0."),
    row(1117, Class::Invalid, "A TCP address must have a port after the host."),
    row(1118, Class::Invalid, "The name is given both by `-R` and by `--hostname`."),
    row(1119, Class::Invalid, "The name is given both by `-R` and by `--subdomain`."),
    row(1120, Class::Invalid, "The name is given both by `--hostname` and by `--subdomain`."),
    row(1121, Class::Invalid, "SSH clients cannot be updated."),
    row(1122, Class::Invalid, "SSH clients cannot be restarted."),
    row(1123, Class::Invalid, "SSH clients do not support the PROXY protocol."),
    row(1400, Class::Invalid, "The update changes no field."),
    row(1401, Class::Invalid, "The update changes no field."),
    row(1402, Class::Invalid, "The IP policy does not exist."),
    row(1405, Class::Invalid, "A required field of the rule is missing."),
    row(1406, Class::Invalid, "`cidr` must be an address prefix, such as `192.0.2.0/24` or `2001:db8::/32`."),
    row(1408, Class::Invalid, "The IP policy already has a rule for this prefix."),
    row(1409, Class::Invalid, "The address in `cidr` has bits set beyond its mask."),
    row(1413, Class::Invalid, "`cidr` must have a mask, such as `/32` or `/128` for a single address."),
    row(1414, Class::Invalid, "`ip_policy_id` is not a valid identifier."),
    row(1419, Class::Invalid, "The rule is the last one of an IP policy that a dashboard restriction uses."),
    row(1420, Class::Invalid, "An IP restriction or traffic policy uses the IP policy."),
    row(1421, Class::Invalid, "The description of the rule is longer than 255 bytes."),
    row(1422, Class::Invalid, "`action` must be `allow` or `deny`."),
    row(1423, Class::Invalid, "An IP policy has no action; set the action on its rules."),
    row(1608, Class::Invalid, "Endpoint configurations are no longer supported; use endpoints with a traffic policy."),
    row(1801, Class::Invalid, "An IP policy does not exist."),
    row(1802, Class::Invalid, "An IP restriction of this type already exists."),
    row(1803, Class::Invalid, "The type must be `dashboard`, `api`, `agent` or `endpoints`."),
    row(1804, Class::Invalid, "An IP restriction requires an IP policy."),
    row(1900, Class::Invalid, "The certificate cannot be parsed."),
    row(1901, Class::Invalid, "`private_key_pem` must contain a PEM private key."),
    row(1902, Class::Invalid, "The private key must not be encrypted."),
    row(1903, Class::Invalid, "The private key format is not supported; use RSA (2048 to 8192 bits), ECDSA (P-256, P-384, P-521) or Ed25519 in PKCS #8, PKCS #1 (RSA) or SEC 1 (ECDSA)."),
    row(1909, Class::Invalid, "The private key type of a certificate management policy must be `rsa` or `ecdsa`."),
    row(1910, Class::Invalid, "The PEM of a certificate must not have headers."),
    row(1911, Class::Invalid, "The PEM contains something other than certificates."),
    row(1912, Class::Invalid, "`ca_pem` must contain exactly one certificate."),
    row(1913, Class::Invalid, "The certificate is not a CA certificate; its basic constraints must set CA."),
    row(1914, Class::Invalid, "The description of the certificate authority is longer than 255 bytes."),
    row(1915, Class::Invalid, "The metadata of the certificate authority is longer than 4096 bytes."),
    row(1916, Class::Invalid, "The description of the TLS certificate is longer than 255 bytes."),
    row(1917, Class::Invalid, "The metadata of the TLS certificate is longer than 4096 bytes."),
    row(1919, Class::Invalid, "`ca_pem` is required; send one PEM certificate."),
    row(1920, Class::Invalid, "`ca_pem` must be PEM."),
    row(1921, Class::Invalid, "The PEM is too long."),
    row(1922, Class::Invalid, "`certificate_pem` must contain PEM certificates, starting with the server's."),
    row(1923, Class::Invalid, "The private key does not match the first certificate."),
    row(1924, Class::Invalid, "`private_key_pem` contains a certificate."),
    row(1925, Class::Invalid, "`certificate_pem` contains a private key; send it as `private_key_pem`."),
    row(1926, Class::Invalid, "The chain is out of order; each certificate must be issued by the next one."),
    row(1934, Class::Invalid, "The public key of the certificate cannot be read."),
    row(1936, Class::Invalid, "`private_key_type` must be `rsa`, `ecdsa` or `ed25519`."),
    row(1937, Class::Invalid, "The description of the SSH certificate authority is longer than 255 bytes."),
    row(1938, Class::Invalid, "The metadata of the SSH certificate authority is longer than 4096 bytes."),
    row(1939, Class::Invalid, "`key_size` must be 2048 or 4096."),
    row(1940, Class::Invalid, "`key_size` applies only to RSA keys."),
    row(1941, Class::Invalid, "`elliptic_curve` must be `p256`, `p384` or `p521`."),
    row(1942, Class::Invalid, "`elliptic_curve` applies only to ECDSA keys."),
    row(1945, Class::Invalid, "The description of the SSH host certificate is longer than 255 bytes."),
    row(1946, Class::Invalid, "The metadata of the SSH host certificate is longer than 4096 bytes."),
    row(1947, Class::Invalid, "The description of the SSH user certificate is longer than 255 bytes."),
    row(1948, Class::Invalid, "The metadata of the SSH user certificate is longer than 4096 bytes."),
    row(1949, Class::Invalid, "The CA of the SSH host certificate does not exist."),
    row(1950, Class::Invalid, "The certificate's public key type is not supported."),
    row(1951, Class::Invalid, "The CA of the SSH user certificate does not exist."),
    row(1952, Class::Invalid, "The public key of the certificate is missing."),
    row(1962, Class::Invalid, "The SSH user certificate must expire after it becomes valid."),
    row(1963, Class::Invalid, "The SSH host certificate must expire after it becomes valid."),
    row(1964, Class::Invalid, "A certificate or traffic policy uses the certificate authority."),
    row(1965, Class::Invalid, "The TLS certificate does not exist."),
    row(1966, Class::Invalid, "A domain or agent ingress uses the certificate."),
    row(2200, Class::Invalid, "An expression of the traffic policy is invalid."),
    row(2201, Class::Invalid, "The traffic policy names an unknown or unsupported action."),
    row(2202, Class::Invalid, "An action of the traffic policy cannot run in its phase."),
    row(2203, Class::Invalid, "The configuration of a traffic policy action is malformed."),
    row(2204, Class::Invalid, "A value of the traffic policy is invalid."),
    row(2205, Class::Invalid, "An action of the traffic policy does not support the endpoint's protocol."),
    row(2206, Class::Invalid, "A rule of the traffic policy has no action."),
    row(2207, Class::Invalid, "An action of the traffic policy can never run, because the action before it always ends the phase."),
    row(2214, Class::Invalid, "A compression algorithm of the traffic policy is unknown."),
    row(2215, Class::Invalid, "A number of the traffic policy is out of range."),
    row(2216, Class::Invalid, "The traffic policy names an IP policy that does not exist."),
    row(2217, Class::Invalid, "An address or prefix of the traffic policy is invalid."),
    row(2218, Class::Invalid, "A list of the traffic policy is too long."),
    row(2221, Class::Invalid, "A string of the traffic policy is too long."),
    row(2222, Class::Invalid, "A value of the traffic policy is not one of the allowed values."),
    row(2223, Class::Invalid, "A value of the traffic policy must not be empty."),
    row(2224, Class::Invalid, "A template of the traffic policy does not compile."),
    row(2230, Class::Invalid, "A phase of the traffic policy does not exist for the endpoint's protocol."),
    row(2231, Class::Invalid, "A list of the traffic policy has a duplicate entry."),
    row(2234, Class::Invalid, "The traffic policy lacks a required field."),
    row(2235, Class::Invalid, "The endpoint has no `upstream_url`, and its traffic policy does not handle all traffic."),
    row(2236, Class::Invalid, "The traffic policy cannot be parsed."),
    row(2237, Class::Invalid, "A string of the traffic policy is too short."),
    row(2239, Class::Invalid, "A traffic policy may have only one sign-in action."),
    row(2250, Class::Invalid, "A variable of the traffic policy is nested too deeply."),
    row(2252, Class::Invalid, "A variable of the traffic policy must have the form `name: value`."),
    row(2257, Class::Invalid, "The user of a basic-auth credential is invalid."),
    row(2258, Class::Invalid, "The password of a basic-auth credential is invalid."),
    row(2264, Class::Invalid, "The traffic policy has too many rules."),
    row(2265, Class::Invalid, "A rule of the traffic policy has too many actions or expressions."),
    row(2270, Class::Forbidden, "The traffic policy may not use a secret, or not at this place."),
    row(4018, Class::Unauthenticated, "The agent sent no authtoken."),
    row(4109, Class::Invalid, "The name must not be empty."),
    row(4110, Class::Invalid, "The name is longer than 255 bytes."),
    row(4111, Class::Forbidden, "Only admins may change bot users."),
    row(4112, Class::Invalid, "Another bot user already has this name."),
    row(5100, Class::Invalid, "The destination requires a target."),
    row(5103, Class::Invalid, "A destination does not exist."),
    row(5104, Class::Invalid, "`role_arn` is not the ARN of an IAM role."),
    row(5106, Class::Invalid, "An AWS target requires `auth`."),
    row(5107, Class::Invalid, "`auth` requires `role` or `creds`."),
    row(5108, Class::Invalid, "The target type of a destination cannot be changed."),
    row(5112, Class::Invalid, "An event subscription uses the destination."),
    row(5115, Class::Invalid, "The destination must have exactly one target."),
    row(5116, Class::Invalid, "`auth` must have either `role` or `creds`, not both."),
    row(5118, Class::Invalid, "An ARN has an unknown AWS partition."),
    row(5119, Class::Invalid, "An ARN belongs to a different service than its target."),
    row(5120, Class::Invalid, "An ARN is malformed."),
    row(5123, Class::NotFound, "The event subscription does not exist."),
    row(5125, Class::NotFound, "The event source does not exist."),
    row(5127, Class::Invalid, "An event type is repeated."),
    row(5130, Class::Invalid, "An ARN has the wrong resource type for its target."),
    row(5133, Class::Invalid, "The Datadog target requires `api_key`."),
    row(5134, Class::Invalid, "`ddsite` is not a Datadog site."),
    row(5136, Class::Invalid, "`data_collection_rule_id` is not the immutable ID of a data collection rule, such as `dcr-…`."),
    row(5137, Class::Invalid, "`data_collection_stream_name` is not a stream name, such as `Custom-Events`."),
    row(5138, Class::Invalid, "`logs_ingestion_uri` must be an `https` URL with only a host."),
    row(5140, Class::Invalid, "A value of the event destination or subscription is invalid."),
    row(5401, Class::Invalid, "Fields can be selected only for traffic events."),
    row(5402, Class::Invalid, "Filters can be set only for traffic events."),
    row(5403, Class::Invalid, "The event does not have this field."),
    row(5404, Class::Invalid, "The filter expression is invalid."),
    row(5405, Class::Invalid, "The filter names an unknown field."),
    row(5406, Class::Invalid, "The filter names a field that filters cannot use."),
    row(5407, Class::Invalid, "A parameter of the event query is invalid."),
    row(5408, Class::Invalid, "This server does not retain traffic events."),
    row(5409, Class::Invalid, "The request of this event cannot be sent again."),
    row(5410, Class::Invalid, "The limit of holds of audit events is reached."),
    row(5411, Class::Invalid, "The limit of alert rules is reached."),
    row(5412, Class::Invalid, "The condition of the alert rule, or an object that it names, is invalid."),
    row(5430, Class::Invalid, "A parameter of the statistics query is invalid."),
    row(6700, Class::Invalid, "The description of the agent ingress is longer than 255 bytes."),
    row(6701, Class::Invalid, "The metadata of the agent ingress is longer than 4096 bytes."),
    row(6704, Class::Invalid, "The domain of an agent ingress must be a full domain name without a wildcard."),
    row(6705, Class::Invalid, "The domain belongs to the platform; an agent ingress requires its own domain."),
    row(6706, Class::Invalid, "Another agent ingress already uses this domain."),
    row(7008, Class::Invalid, "Edges and backends are no longer supported; use endpoints with a traffic policy."),
    row(9037, Class::Invalid, "The URL of an agent endpoint must consist of a scheme and a host, and a port for `tcp`."),
    row(9038, Class::Invalid, "The URL of an agent endpoint must not end with a slash."),
    row(10000, Class::Failed, "Internal error; search the server log for this operation ID."),
    row(15005, Class::Invalid, "A binding must be `public`, `internal` or `kubernetes`."),
    row(15006, Class::Invalid, "A binding is repeated."),
    row(18001, Class::Invalid, "The endpoint's `url` cannot be parsed."),
    row(18002, Class::Invalid, "The traffic policy must be a string or an object."),
    row(18003, Class::Invalid, "The `url` must have a port."),
    row(18004, Class::Invalid, "The update changes no field."),
    row(18005, Class::Invalid, "The scheme of an endpoint's `url` cannot be changed."),
    row(18006, Class::Invalid, "No reserved domain or address covers the `url`."),
    row(18012, Class::Invalid, "The description of the endpoint is longer than 255 bytes."),
    row(18013, Class::Invalid, "The metadata of the endpoint is longer than 4096 bytes."),
    row(18014, Class::Invalid, "A field of the endpoint is invalid."),
    row(18015, Class::Invalid, "The endpoint requires a traffic policy or an `upstream_url`."),
    row(18016, Class::Invalid, "Another endpoint uses this `url` without pooling."),
    row(18017, Class::Invalid, "Another endpoint uses this `url`; both must enable pooling."),
    row(18018, Class::Invalid, "Endpoints with the binding `kubernetes` must use the scheme http, tls or tcp."),
    row(18022, Class::Invalid, "The scheme of the `url` must be http, https, tcp or tls."),
    row(18023, Class::Invalid, "The port does not match the scheme; http uses 80, https and tls use 443."),
    row(19001, Class::Invalid, "The certificate signing request is invalid."),
    row(19002, Class::Invalid, "The Kubernetes operator is invalid, or another one has the same deployment."),
    row(19003, Class::Invalid, "An endpoint selector is not a valid expression over `endpoint`."),
    row(23000, Class::Invalid, "The name of a vault may contain only letters, digits, `_`, `/`, `.` and `-`."),
    row(23001, Class::Invalid, "The name of the vault must not be empty."),
    row(23002, Class::Invalid, "The name of the vault is longer than 255 bytes."),
    row(23003, Class::Invalid, "The vault contains secrets, or a traffic policy uses the secret."),
    row(23004, Class::Invalid, "Another vault already has this name."),
    row(24000, Class::Invalid, "The name of a secret may contain only letters, digits, `_`, `/`, `.` and `-`."),
    row(24001, Class::Invalid, "The name of the secret must not be empty."),
    row(24002, Class::Invalid, "The name of the secret is longer than 255 bytes."),
    row(24003, Class::Invalid, "The value of the secret must not be empty."),
    row(24004, Class::Invalid, "The value of the secret is longer than 16 KiB."),
    row(24005, Class::Invalid, "Another secret of the vault already has this name."),
    row(24006, Class::Invalid, "No vault has this ID."),
    row(24008, Class::Invalid, "A secret requires exactly one vault; send `vault_id` or `vault_name`."),
    row(24009, Class::Invalid, "No vault has this name."),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::code;

    #[test]
    fn codes_ascend_and_each_has_a_sentence() {
        assert!(CODES.windows(2).all(|pair| pair[0].number < pair[1].number));
        for row in CODES {
            assert!(row.text.ends_with('.'), "{}", row.number);
            assert!(Code::find(row.number).is_some_and(|code| code.row().number == row.number));
        }
    }

    #[test]
    fn a_code_reads_as_on_the_wire() {
        assert_eq!(code::API_KEY_INVALID.to_string(), "ERR_NGROK_203");
    }
}
