//! Stored form and view of the tunnel session.

use culvert_base::Timestamp;
use culvert_store::Head;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::Base;
use crate::resource::model::ssh_public_key::SshPublicKey;
use crate::resource::model::tunnel_credential::TunnelCredential;
use crate::resource::model::{Model, Reference, Uri};
use crate::rights::Rights;
use crate::stored::Format;

/// The stored form.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct TunnelSession {
    pub(crate) format: Format<1>,
    pub(crate) agent_version: String,
    /// A tunnel credential, or the public key of an SSH client.
    pub(crate) credential_id: String,
    /// Owner of the credential, which may be deleted before the session ends.
    pub(crate) principal_id: String,
    /// E-mail address or name of the owner.
    pub(crate) principal_subject: String,
    pub(crate) ip: String,
    pub(crate) ingress_server_ip: String,
    pub(crate) ingress_hostname: String,
    pub(crate) user_agent: String,
    pub(crate) metadata: String,
    pub(crate) os: String,
    pub(crate) arch: String,
    pub(crate) region: String,
    /// The transport as named in events: `muxado` or `ssh`.
    pub(crate) transport: String,
    /// The latest end, if its credential expires.
    #[serde(default)]
    pub(crate) expires_at: Option<Timestamp>,
    /// The run of a server that the agent is connected to.
    pub(crate) run: String,
}

/// A tunnel session as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TunnelSession")]
pub(crate) struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    pub(crate) agent_version: &'a str,
    /// `null` if the credential belongs to another owner and the caller is not an admin.
    pub(crate) credential: Option<Reference<'a>>,
    /// Source address without the port.
    pub(crate) ip: &'a str,
    pub(crate) metadata: &'a str,
    pub(crate) os: &'a str,
    pub(crate) region: &'a str,
    /// Time of the first connection.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) started_at: Timestamp,
    /// `ngrok/2`, or `ssh`.
    pub(crate) transport: &'a str,
}

/// The API collection of an agent's credential.
pub(crate) fn collection_of(credential_id: &str) -> &'static str {
    if credential_id.starts_with("sshcr_") {
        SshPublicKey::COLLECTION
    } else {
        TunnelCredential::COLLECTION
    }
}

impl Model for TunnelSession {
    const NAME: &'static str = "tunnel_session";
    const COLLECTION: &'static str = "tunnel_sessions";
    const LIST_FIELD: &'static str = "tunnel_sessions";
    const ID_PREFIX: &'static str = "ts";
    const RIGHTS: Rights = Rights::PRIVATE;
    const OWNED_BY: Option<&'static str> = Some("principal_id");
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let credentials = collection_of(&self.credential_id);
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            agent_version: &self.agent_version,
            credential: base
                .shows_fields_of(&self.principal_id)
                .then(|| Reference::to(base, credentials, &self.credential_id)),
            ip: &self.ip,
            metadata: &self.metadata,
            os: &self.os,
            region: &self.region,
            started_at: head.created_at,
            transport: match self.transport.as_str() {
                "muxado" => "ngrok/2",
                other => other,
            },
        }
    }
}
