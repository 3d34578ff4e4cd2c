//! Messages between agents and servers on the streams of a session.
//!
//! Every stream begins with its type: four bytes, big-endian. A call is one stream: the caller sends the type
//! and a JSON object, the other side replies with a JSON object and FIN. There are no other delimiters. A
//! proxied connection is one stream: the type, a header with a length prefix, and the bytes of the
//! connection.
//!
//! The agent families spell some names differently (`AuthToken`, `Authtoken`), and some send null where
//! others omit the field. [`parse`] therefore ignores the case of names and treats null as absent. Sent
//! objects use the spelling that the strictest reader needs, and omit null where a reader would reject it.

use std::collections::BTreeMap;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use culvert_base::{Code, Refusal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod bind;
mod object;

pub use bind::{
    BasicAuth, BasicCredential, BindExtra, BindReply, BindReplyExtra, BindRequest, CircuitBreaker,
    EndpointTimeouts, HeaderChanges, IpRestriction, MutualTls, OAuth, Oidc, Options,
    TlsTermination, UserAgentFilter, WebhookVerification,
};
pub use object::{Object, Scanned};

/// The type of a stream: its first four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamType(pub u32);

impl StreamType {
    /// The agent authenticates.
    pub const AUTH: Self = Self(0);
    /// The agent requests an endpoint.
    pub const BIND: Self = Self(1);
    /// The agent removes an endpoint.
    pub const UNBIND: Self = Self(2);
    /// The server forwards a connection.
    pub const PROXY: Self = Self(3);
    /// The server asks the agent to restart.
    pub const RESTART: Self = Self(4);
    /// The server asks the agent to stop.
    pub const STOP: Self = Self(5);
    /// The server asks the agent to update itself.
    pub const UPDATE: Self = Self(6);
    /// The agent starts a tunnel with labels.
    pub const LABELLED: Self = Self(7);
    /// A client requests information about the server.
    pub const SERVER_INFO: Self = Self(8);
    /// The server stops one endpoint.
    pub const STOP_ENDPOINT: Self = Self(9);
    /// The agent changes the name or the settings of an endpoint.
    pub const PATCH_ENDPOINT: Self = Self(10);
    /// A call between nodes about an agent's session. Agents never receive it.
    pub const PEER_RPC: Self = Self(0x8000_0001);
    /// A heartbeat, from either side.
    pub const HEARTBEAT: Self = Self(0xFFFF_FFFF);

    /// The encoding on the wire.
    pub const fn to_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    /// Decodes the type.
    pub const fn from_bytes(bytes: [u8; 4]) -> Self {
        Self(u32::from_be_bytes(bytes))
    }
}

impl fmt::Debug for StreamType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::AUTH => f.write_str("Auth"),
            Self::BIND => f.write_str("Bind"),
            Self::UNBIND => f.write_str("Unbind"),
            Self::PROXY => f.write_str("Proxy"),
            Self::RESTART => f.write_str("Restart"),
            Self::STOP => f.write_str("Stop"),
            Self::UPDATE => f.write_str("Update"),
            Self::LABELLED => f.write_str("StartTunnelWithLabel"),
            Self::SERVER_INFO => f.write_str("SrvInfo"),
            Self::STOP_ENDPOINT => f.write_str("StopTunnel"),
            Self::PATCH_ENDPOINT => f.write_str("PatchTunnelState"),
            Self::PEER_RPC => f.write_str("PeerRpc"),
            Self::HEARTBEAT => f.write_str("Heartbeat"),
            Self(other) => write!(f, "StreamType({other})"),
        }
    }
}

/// Encodes the first frame of a call, which is sent whole when the stream is opened: its type and its request.
pub fn call(kind: StreamType, request: &impl Serialize) -> Bytes {
    let mut first = BytesMut::new();
    first.put_slice(&kind.to_bytes());
    first.put_slice(&reply(request));
    first.freeze()
}

/// Encodes a reply, which is only the object.
pub fn reply(reply: &impl Serialize) -> Bytes {
    serde_json::to_vec(reply)
        .expect("a message has text for names and nothing that cannot be written")
        .into()
}

/// Decodes a message from an agent of either family.
pub fn parse<T: DeserializeOwned>(object: Value) -> Result<T, serde_json::Error> {
    T::deserialize(fold(object))
}

/// Lower-cases names and removes nulls at every level, except below names that users choose.
fn fold(value: Value) -> Value {
    const OWN_NAMES: [&str; 1] = ["labels"];
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| {
                let name = name.to_ascii_lowercase();
                let value = if OWN_NAMES.contains(&name.as_str()) {
                    value
                } else {
                    fold(value)
                };
                (name, value)
            })
            .collect::<Map<String, Value>>()
            .into(),
        Value::Array(values) => values.into_iter().map(fold).collect(),
        other => other,
    }
}

/// The error text of a reply: the message, an empty line, and the code on its own line. Rust agents take a
/// line that begins with the prefix as the code, Go agents the first match anywhere.
pub fn error_text(refusal: &Refusal) -> String {
    match refusal.code {
        Some(code) => format!("{}\r\n\r\n{code}\r\n", refusal.message),
        None => refusal.message.clone().into_owned(),
    }
}

/// The number of the error code in such a text.
pub fn code_of(text: &str) -> Option<u16> {
    text.lines()
        .find_map(|line| line.strip_prefix("ERR_NGROK_"))
        .and_then(|number| number.trim_end().parse().ok())
}

/// A reply that holds only an error, for any call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Outcome {
    /// Empty for success.
    #[serde(rename(serialize = "Error", deserialize = "error"))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl Outcome {
    /// A reply with this error.
    pub fn refused(refusal: &Refusal) -> Self {
        Self {
            error: error_text(refusal),
        }
    }

    /// A reply with the default message of a code.
    pub fn of(code: Code) -> Self {
        Self::refused(&Refusal::of(code))
    }
}

/// The only supported version of the protocol.
pub const VERSION: &str = "3";

/// The client address of a stream that carries the requests of many clients. Agents of both families parse it
/// as an address (contract: agent protocol 6).
pub const MANY_CLIENTS: &str = "0.0.0.0:0";

/// Maximum number of connections of one session, each with its own index.
pub(crate) const SESSION_CONNECTIONS_MAX: u32 = 16;

/// The prefix of the user agent of culvert's own agent.
pub(crate) const OWN_AGENT: &str = "culvert/";

/// The first call of a session: authentication.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AuthRequest {
    /// Versions that the agent supports, in order of preference.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub versions: Vec<String>,
    /// Empty for a new session, otherwise the id of the session to resume.
    #[serde(rename(serialize = "ClientId", deserialize = "clientid"))]
    pub client_id: String,
    /// Further fields.
    #[serde(rename(serialize = "Extra", deserialize = "extra"))]
    pub extra: AuthExtra,
}

/// Information about the agent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AuthExtra {
    /// Operating system.
    #[serde(rename(serialize = "OS", deserialize = "os"))]
    pub os: String,
    /// Processor architecture, by its Rust or Go name.
    #[serde(rename(serialize = "Arch", deserialize = "arch"))]
    pub arch: String,
    /// The credential.
    #[serde(rename(serialize = "AuthToken", deserialize = "authtoken"))]
    pub token: String,
    /// Version of the outermost client layer.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub version: String,
    /// Host name; always empty from libraries.
    #[serde(rename(serialize = "Hostname", deserialize = "hostname"))]
    pub hostname: String,
    /// `name/version` of each layer, outermost first, separated by spaces.
    #[serde(rename(serialize = "UserAgent", deserialize = "useragent"))]
    pub user_agent: String,
    /// Metadata of the application.
    #[serde(rename(serialize = "Metadata", deserialize = "metadata"))]
    pub metadata: String,
    /// The cookie of the server's last reply.
    #[serde(rename(serialize = "Cookie", deserialize = "cookie"))]
    pub cookie: String,
    /// Interval of heartbeats, in nanoseconds.
    #[serde(rename(serialize = "HeartbeatInterval", deserialize = "heartbeatinterval"))]
    pub heartbeat_interval: i64,
    /// How late a heartbeat may be, in nanoseconds.
    #[serde(rename(serialize = "HeartbeatTolerance", deserialize = "heartbeattolerance"))]
    pub heartbeat_tolerance: i64,
    /// Whether the agent supports the update command: absent from agents that predate it, empty if supported,
    /// otherwise the reason.
    #[serde(rename(
        serialize = "UpdateUnsupportedError",
        deserialize = "updateunsupportederror"
    ))]
    pub update_unsupported: Option<String>,
    /// Whether the agent supports the stop command, with the same values.
    #[serde(rename(
        serialize = "StopUnsupportedError",
        deserialize = "stopunsupportederror"
    ))]
    pub stop_unsupported: Option<String>,
    /// Whether the agent supports the restart command, with the same values.
    #[serde(rename(
        serialize = "RestartUnsupportedError",
        deserialize = "restartunsupportederror"
    ))]
    pub restart_unsupported: Option<String>,
    /// Name of the outermost client layer.
    #[serde(rename(serialize = "ClientType", deserialize = "clienttype"))]
    pub client_type: String,
    /// Index of this connection within the session.
    #[serde(rename(serialize = "LegNumber", deserialize = "legnumber"))]
    pub leg: u32,
    /// Number of concurrent streams that the agent accepts. An agent that sends it frees each stream as soon
    /// as it reads its end. Only culvert's agent sends this field; servers that do not know it ignore it.
    /// Zero if absent: the session then gets the limit of published agents.
    #[serde(rename(serialize = "StreamsMax", deserialize = "streamsmax"))]
    #[serde(skip_serializing_if = "is_zero")]
    pub streams_max: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The server's reply to [`AuthRequest`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AuthReply {
    /// The selected version.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub version: String,
    /// The session id, which the agent sends when it reconnects.
    #[serde(rename(serialize = "ClientId", deserialize = "clientid"))]
    pub client_id: String,
    /// Empty for success.
    #[serde(rename(serialize = "Error", deserialize = "error"))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Further fields.
    #[serde(rename(serialize = "Extra", deserialize = "extra"))]
    pub extra: AuthReplyExtra,
}

/// Information about the server and the session.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AuthReplyExtra {
    /// Version of the server.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub version: String,
    /// The region, for display.
    #[serde(rename(serialize = "Region", deserialize = "region"))]
    pub region: String,
    /// A cookie, which the agent sends when it reconnects.
    #[serde(rename(serialize = "Cookie", deserialize = "cookie"))]
    pub cookie: String,
    /// The account's name, for display.
    #[serde(rename(serialize = "AccountName", deserialize = "accountname"))]
    pub account_name: String,
    /// The plan's name, for display.
    #[serde(rename(serialize = "PlanName", deserialize = "planname"))]
    pub plan_name: String,
    /// A banner, for display.
    #[serde(rename(serialize = "Banner", deserialize = "banner"))]
    pub banner: String,
    /// A notice that the agent's version is too old.
    #[serde(rename(serialize = "DeprecationWarning", deserialize = "deprecationwarning"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deprecation: Option<DeprecationWarning>,
    /// Maximum duration of the session in seconds; zero for no limit.
    #[serde(rename(serialize = "SessionDuration", deserialize = "sessionduration"))]
    pub session_duration: i64,
    /// Addresses for additional connections of the session.
    #[serde(rename(serialize = "ConnectAddresses", deserialize = "connectaddresses"))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connect_addresses: Vec<ConnectAddress>,
    /// The id of the session in the API.
    #[serde(rename(serialize = "AgentSessionID", deserialize = "agentsessionid"))]
    pub agent_session_id: String,
}

/// A notice that the version of an agent will be refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct DeprecationWarning {
    /// The minimum version after `next_date`.
    #[serde(rename(serialize = "NextMin", deserialize = "nextmin"))]
    pub next_min: String,
    /// When older versions will be refused, in RFC 3339. Published agents reject a reply with another value.
    #[serde(rename(serialize = "NextDate", deserialize = "nextdate"))]
    pub next_date: String,
    /// A message for the user.
    #[serde(rename(serialize = "Msg", deserialize = "msg"))]
    pub message: String,
}

/// An address for an additional connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ConnectAddress {
    /// The region, for display.
    #[serde(rename(serialize = "Region", deserialize = "region"))]
    pub region: String,
    /// `host:port`.
    #[serde(rename(serialize = "ServerAddr", deserialize = "serveraddr"))]
    pub server_addr: String,
}

/// Removes an endpoint. Agents send it two or three times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct UnbindRequest {
    /// The id from the reply to the Bind.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
}

/// Starts a tunnel for endpoints that select these labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct LabelledRequest {
    /// Labels that the user chose.
    #[serde(rename(serialize = "Labels", deserialize = "labels"))]
    pub labels: BTreeMap<String, String>,
    /// The address of the upstream, for display.
    #[serde(rename(serialize = "ForwardsTo", deserialize = "forwardsto"))]
    pub forwards_to: String,
    /// Protocol of the upstream.
    #[serde(rename(serialize = "ForwardsProto", deserialize = "forwardsproto"))]
    pub forwards_proto: String,
    /// Metadata of the application.
    #[serde(rename(serialize = "Metadata", deserialize = "metadata"))]
    pub metadata: String,
}

/// The reply to [`LabelledRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct LabelledReply {
    /// The endpoint's id in headers and commands.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// Empty for success.
    #[serde(rename(serialize = "Error", deserialize = "error"))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// The reply to a request for server information.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ServerInfoReply {
    /// The region, for display.
    #[serde(rename(serialize = "Region", deserialize = "region"))]
    pub region: String,
}

/// Changes an endpoint; absent fields keep their values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PatchRequest {
    /// [`BindReplyExtra::tunnel_id`].
    #[serde(rename(serialize = "TunnelId", deserialize = "tunnelid"))]
    pub tunnel_id: String,
    /// The endpoint's name.
    #[serde(rename(serialize = "Name", deserialize = "name"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The endpoint's description.
    #[serde(rename(serialize = "Description", deserialize = "description"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Metadata of the application.
    #[serde(rename(serialize = "Metadata", deserialize = "metadata"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// Whether other endpoints may share its URL.
    #[serde(rename(serialize = "PoolingEnabled", deserialize = "poolingenabled"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling_enabled: Option<bool>,
    /// The traffic policy, as text.
    #[serde(rename(serialize = "TrafficPolicy", deserialize = "trafficpolicy"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_policy: Option<String>,
}

/// Asks the agent to update itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct UpdateRequest {
    /// The requested version; empty for the newest.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub version: String,
    /// Whether the agent may change to another major version.
    #[serde(rename(serialize = "PermitMajorVersion", deserialize = "permitmajorversion"))]
    pub permit_major_version: bool,
}

/// Tells the agent that an endpoint was stopped. Has no reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct StopEndpointRequest {
    /// The endpoint's id.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// A message for display.
    #[serde(rename(serialize = "Message", deserialize = "message"))]
    pub message: String,
    /// The error code.
    #[serde(rename(serialize = "ErrorCode", deserialize = "errorcode"))]
    pub error_code: String,
}

/// The header of a proxied connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ProxyHeader {
    /// The endpoint's id from the reply to its Bind.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// The client's address as `ip:port`, with IPv6 in brackets.
    #[serde(rename(serialize = "ClientAddr", deserialize = "clientaddr"))]
    pub client_addr: String,
    /// Protocol of the endpoint.
    #[serde(rename(serialize = "Proto", deserialize = "proto"))]
    pub proto: String,
    /// `"1"` tcp, `"2"` tls, `"3"` http and https. A string, not a number.
    #[serde(rename(serialize = "EdgeType", deserialize = "edgetype"))]
    pub edge_type: String,
    /// Whether the bytes are TLS that the server does not terminate.
    #[serde(rename(serialize = "PassthroughTLS", deserialize = "passthroughtls"))]
    pub passthrough_tls: bool,
}

impl ProxyHeader {
    /// Encodes the first frame of the stream, which is sent whole when the stream is opened: type, header length as a
    /// 64-bit little-endian number, and header.
    pub fn encode(&self) -> Bytes {
        let header = reply(self);
        let mut first = BytesMut::with_capacity(12 + header.len());
        first.put_slice(&StreamType::PROXY.to_bytes());
        first.put_u64_le(header.len() as u64);
        first.put_slice(&header);
        first.freeze()
    }

    /// Decodes the header length from the eight bytes before it; `None` if it exceeds the limit.
    pub fn length(bytes: [u8; 8]) -> Option<usize> {
        const HEADER_BYTES_MAX: u64 = 16 << 10;
        let length = u64::from_le_bytes(bytes);
        (length <= HEADER_BYTES_MAX)
            .then(|| usize::try_from(length).ok())
            .flatten()
    }
}

#[cfg(test)]
mod tests;
