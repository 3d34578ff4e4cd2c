//! What agents and servers say to each other on the streams of a session.
//!
//! Every stream begins with its type, four bytes, big-endian. A call is one stream: type and a JSON
//! object one way, a JSON object and the end the other way; nothing else delimits them. A proxied
//! connection is one stream: type, a header with its length before it, and then the bytes.
//!
//! The families of agents spell some names differently (`AuthToken`, `Authtoken`) and write null
//! where others write nothing, so a received object is [`parse`]d without regard to the case of
//! names, and null is absence. What is sent is spelled as the strictest reader wants it, and holds
//! no null where one would be refused.

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
    HeaderChanges, IpRestriction, MutualTls, OAuth, Oidc, Options, TlsTermination, UserAgentFilter,
    WebhookVerification,
};
pub use object::{Object, Scanned};

/// The first four bytes of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamType(pub u32);

impl StreamType {
    /// The agent says who it is.
    pub const AUTH: Self = Self(0);
    /// The agent asks for an endpoint.
    pub const BIND: Self = Self(1);
    /// The agent gives an endpoint up.
    pub const UNBIND: Self = Self(2);
    /// The server brings a connection.
    pub const PROXY: Self = Self(3);
    /// The server asks the agent to start anew.
    pub const RESTART: Self = Self(4);
    /// The server asks the agent to end.
    pub const STOP: Self = Self(5);
    /// The server asks the agent to replace itself.
    pub const UPDATE: Self = Self(6);
    /// The agent offers itself under labels.
    pub const LABELLED: Self = Self(7);
    /// Somebody asks what this server is.
    pub const SERVER_INFO: Self = Self(8);
    /// The server ends one endpoint.
    pub const STOP_ENDPOINT: Self = Self(9);
    /// The agent changes what an endpoint is called, or does.
    pub const PATCH_ENDPOINT: Self = Self(10);
    /// A node asks another for something of one of its agents; no agent hears it.
    pub const ERRAND: Self = Self(0x8000_0001);
    /// Either side asks whether the other is there.
    pub const HEARTBEAT: Self = Self(0xFFFF_FFFF);

    /// As it travels.
    pub const fn to_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    /// As it came.
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
            Self::ERRAND => f.write_str("Errand"),
            Self::HEARTBEAT => f.write_str("Heartbeat"),
            Self(other) => write!(f, "StreamType({other})"),
        }
    }
}

/// The first frame of a call: its type and its request.
pub fn call(kind: StreamType, request: &impl Serialize) -> Bytes {
    let mut first = BytesMut::new();
    first.put_slice(&kind.to_bytes());
    first.put_slice(&reply(request));
    first.freeze()
}

/// A reply, which is the object alone.
pub fn reply(reply: &impl Serialize) -> Bytes {
    serde_json::to_vec(reply)
        .expect("a message has text for names and nothing that cannot be written")
        .into()
}

/// Reads a message of either family.
pub fn parse<T: DeserializeOwned>(object: Value) -> Result<T, serde_json::Error> {
    T::deserialize(fold(object))
}

/// Lower-case names and no nulls, at every level but under names of the sender's own choice.
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

/// The text of a refusal in a reply: the sentence, an empty line, the code alone on its line. Rust
/// agents take a line that begins with the prefix for the code, Go agents the first match anywhere.
pub fn error_text(refusal: &Refusal) -> String {
    match refusal.code {
        Some(code) => format!("{}\r\n\r\n{code}\r\n", refusal.message),
        None => refusal.message.clone().into_owned(),
    }
}

/// The number of the code in such a text.
pub fn code_of(text: &str) -> Option<u16> {
    text.lines()
        .find_map(|line| line.strip_prefix("ERR_NGROK_"))
        .and_then(|number| number.trim_end().parse().ok())
}

/// A reply that says no: to any call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Outcome {
    /// Empty for success.
    #[serde(rename(serialize = "Error", deserialize = "error"))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl Outcome {
    /// Says no.
    pub fn refused(refusal: &Refusal) -> Self {
        Self {
            error: error_text(refusal),
        }
    }

    /// Says no with a code's own sentence.
    pub fn of(code: Code) -> Self {
        Self::refused(&Refusal::of(code))
    }
}

/// The only version of the protocol that is spoken here.
pub const VERSION: &str = "3";

/// The client of a stream that carries the requests of many. Agents of both families read it as an
/// address (contract: agent protocol 6), and it is nobody's.
pub const MANY_CLIENTS: &str = "0.0.0.0:0";

/// What the agent of this crate begins its name with.
pub(crate) const OWN_AGENT: &str = "culvert/";

/// The first call of a session.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AuthRequest {
    /// Versions the agent speaks, best first.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub versions: Vec<String>,
    /// Empty for a new session, else the one the agent had.
    #[serde(rename(serialize = "ClientId", deserialize = "clientid"))]
    pub client_id: String,
    /// Everything else.
    #[serde(rename(serialize = "Extra", deserialize = "extra"))]
    pub extra: AuthExtra,
}

/// What an agent says of itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AuthExtra {
    /// Operating system.
    #[serde(rename(serialize = "OS", deserialize = "os"))]
    pub os: String,
    /// Processor, in Rust's words or in Go's.
    #[serde(rename(serialize = "Arch", deserialize = "arch"))]
    pub arch: String,
    /// The credential.
    #[serde(rename(serialize = "AuthToken", deserialize = "authtoken"))]
    pub token: String,
    /// Version of the outermost client.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub version: String,
    /// Name of the machine; from libraries always empty.
    #[serde(rename(serialize = "Hostname", deserialize = "hostname"))]
    pub hostname: String,
    /// `name/version` of each layer, outermost first, separated by spaces.
    #[serde(rename(serialize = "UserAgent", deserialize = "useragent"))]
    pub user_agent: String,
    /// Text of the application.
    #[serde(rename(serialize = "Metadata", deserialize = "metadata"))]
    pub metadata: String,
    /// What the server gave in its last reply.
    #[serde(rename(serialize = "Cookie", deserialize = "cookie"))]
    pub cookie: String,
    /// Time between heartbeats, in nanoseconds.
    #[serde(rename(serialize = "HeartbeatInterval", deserialize = "heartbeatinterval"))]
    pub heartbeat_interval: i64,
    /// How late one may be, in nanoseconds.
    #[serde(rename(serialize = "HeartbeatTolerance", deserialize = "heartbeattolerance"))]
    pub heartbeat_tolerance: i64,
    /// Absent from agents too old to know; empty if supported; else why not.
    #[serde(rename(
        serialize = "UpdateUnsupportedError",
        deserialize = "updateunsupportederror"
    ))]
    pub update_unsupported: Option<String>,
    /// The same for the command to end.
    #[serde(rename(
        serialize = "StopUnsupportedError",
        deserialize = "stopunsupportederror"
    ))]
    pub stop_unsupported: Option<String>,
    /// The same for the command to start anew.
    #[serde(rename(
        serialize = "RestartUnsupportedError",
        deserialize = "restartunsupportederror"
    ))]
    pub restart_unsupported: Option<String>,
    /// Name of the outermost client.
    #[serde(rename(serialize = "ClientType", deserialize = "clienttype"))]
    pub client_type: String,
    /// Which of a session's connections this is.
    #[serde(rename(serialize = "LegNumber", deserialize = "legnumber"))]
    pub leg: u32,
    /// How many streams the agent takes at once, and that it frees each as soon as it reads its end.
    /// A field of our own: published agents do not send it, and a server that does not know it
    /// ignores it. Zero for an agent that says nothing, which gets no more than the published ones.
    #[serde(rename(serialize = "StreamsMax", deserialize = "streamsmax"))]
    #[serde(skip_serializing_if = "is_zero")]
    pub streams_max: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What the server answers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AuthReply {
    /// The version chosen.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub version: String,
    /// The session, which the agent names when it comes back.
    #[serde(rename(serialize = "ClientId", deserialize = "clientid"))]
    pub client_id: String,
    /// Empty for success.
    #[serde(rename(serialize = "Error", deserialize = "error"))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Everything else.
    #[serde(rename(serialize = "Extra", deserialize = "extra"))]
    pub extra: AuthReplyExtra,
}

/// What the server says of itself and the session.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AuthReplyExtra {
    /// Version of the server.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub version: String,
    /// Shown to people.
    #[serde(rename(serialize = "Region", deserialize = "region"))]
    pub region: String,
    /// The agent returns it when it comes back.
    #[serde(rename(serialize = "Cookie", deserialize = "cookie"))]
    pub cookie: String,
    /// Shown to people.
    #[serde(rename(serialize = "AccountName", deserialize = "accountname"))]
    pub account_name: String,
    /// Shown to people.
    #[serde(rename(serialize = "PlanName", deserialize = "planname"))]
    pub plan_name: String,
    /// Shown to people.
    #[serde(rename(serialize = "Banner", deserialize = "banner"))]
    pub banner: String,
    /// Seconds the session may last; zero for no limit.
    #[serde(rename(serialize = "SessionDuration", deserialize = "sessionduration"))]
    pub session_duration: i64,
    /// Further addresses for further connections of the session.
    #[serde(rename(serialize = "ConnectAddresses", deserialize = "connectaddresses"))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connect_addresses: Vec<ConnectAddress>,
    /// The session as the API names it.
    #[serde(rename(serialize = "AgentSessionID", deserialize = "agentsessionid"))]
    pub agent_session_id: String,
}

/// An address for one more connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ConnectAddress {
    /// Shown to people.
    #[serde(rename(serialize = "Region", deserialize = "region"))]
    pub region: String,
    /// `host:port`.
    #[serde(rename(serialize = "ServerAddr", deserialize = "serveraddr"))]
    pub server_addr: String,
}

/// Gives an endpoint up. Agents send it two or three times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct UnbindRequest {
    /// From the reply to the Bind.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
}

/// Offers the agent to whatever the labels select.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct LabelledRequest {
    /// Names and values of the user's choice.
    #[serde(rename(serialize = "Labels", deserialize = "labels"))]
    pub labels: BTreeMap<String, String>,
    /// Shown to people.
    #[serde(rename(serialize = "ForwardsTo", deserialize = "forwardsto"))]
    pub forwards_to: String,
    /// What the service speaks.
    #[serde(rename(serialize = "ForwardsProto", deserialize = "forwardsproto"))]
    pub forwards_proto: String,
    /// Text of the application.
    #[serde(rename(serialize = "Metadata", deserialize = "metadata"))]
    pub metadata: String,
}

/// The answer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct LabelledReply {
    /// Names the endpoint in headers and commands.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// Empty for success.
    #[serde(rename(serialize = "Error", deserialize = "error"))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// The answer to whoever asks what this server is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ServerInfoReply {
    /// Shown to people.
    #[serde(rename(serialize = "Region", deserialize = "region"))]
    pub region: String,
}

/// Changes an endpoint; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PatchRequest {
    /// [`BindReplyExtra::tunnel_id`].
    #[serde(rename(serialize = "TunnelId", deserialize = "tunnelid"))]
    pub tunnel_id: String,
    /// Its name.
    #[serde(rename(serialize = "Name", deserialize = "name"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for.
    #[serde(rename(serialize = "Description", deserialize = "description"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Text of the application.
    #[serde(rename(serialize = "Metadata", deserialize = "metadata"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// Whether others may share its URL.
    #[serde(rename(serialize = "PoolingEnabled", deserialize = "poolingenabled"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling_enabled: Option<bool>,
    /// The policy, as text.
    #[serde(rename(serialize = "TrafficPolicy", deserialize = "trafficpolicy"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_policy: Option<String>,
}

/// Asks the agent to replace itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct UpdateRequest {
    /// The version wanted; empty for the newest.
    #[serde(rename(serialize = "Version", deserialize = "version"))]
    pub version: String,
    /// Whether it may be of another major version.
    #[serde(rename(serialize = "PermitMajorVersion", deserialize = "permitmajorversion"))]
    pub permit_major_version: bool,
}

/// Tells the agent that an endpoint is gone. Nobody answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct StopEndpointRequest {
    /// The endpoint.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// For people.
    #[serde(rename(serialize = "Message", deserialize = "message"))]
    pub message: String,
    /// For programs.
    #[serde(rename(serialize = "ErrorCode", deserialize = "errorcode"))]
    pub error_code: String,
}

/// Ahead of the bytes of a proxied connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ProxyHeader {
    /// The endpoint, as the reply to its Bind named it.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// `ip:port` of whoever connected, IPv6 in brackets.
    #[serde(rename(serialize = "ClientAddr", deserialize = "clientaddr"))]
    pub client_addr: String,
    /// Protocol of the endpoint.
    #[serde(rename(serialize = "Proto", deserialize = "proto"))]
    pub proto: String,
    /// `"1"` tcp, `"2"` tls, `"3"` http and https. A text, not a number.
    #[serde(rename(serialize = "EdgeType", deserialize = "edgetype"))]
    pub edge_type: String,
    /// Whether the bytes are TLS from end to end.
    #[serde(rename(serialize = "PassthroughTLS", deserialize = "passthroughtls"))]
    pub passthrough_tls: bool,
}

impl ProxyHeader {
    /// The beginning of the stream: type, length of the header as 64 bits, little-endian, header.
    /// All of it belongs into one frame.
    pub fn encode(&self) -> Bytes {
        let header = reply(self);
        let mut first = BytesMut::with_capacity(12 + header.len());
        first.put_slice(&StreamType::PROXY.to_bytes());
        first.put_u64_le(header.len() as u64);
        first.put_slice(&header);
        first.freeze()
    }

    /// The length of a header from the eight bytes before it; `None` if no header is that long.
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
