//! Stored form and view of the tunnel session.

use culvert_base::Timestamp;
use culvert_certificates::ssh::public_key_model::SshPublicKey;
use culvert_identity::credential::model::TunnelCredential;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{
    Model, Reference, TUNNEL_SESSION_PREFIX, TUNNEL_SESSIONS, Uri,
};
use culvert_resources::stored::Format;
use culvert_resources::{Caller, OwnerKind, Role};
use culvert_store::Head;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The stored form.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct TunnelSession {
    /// Version of the stored form.
    pub format: Format<1>,
    pub(crate) agent_version: String,
    /// A tunnel credential, or the public key of an SSH client.
    pub credential_id: String,
    /// Owner of the credential, which may be deleted before the session ends.
    pub principal_id: String,
    /// E-mail address or name of the owner.
    pub(crate) principal_subject: String,
    pub(crate) ip: String,
    pub(crate) ingress_server_ip: String,
    pub(crate) ingress_hostname: String,
    /// As the agent sends it, at most 1024 bytes.
    pub user_agent: String,
    /// Text that the agent keeps with it.
    pub metadata: String,
    /// Operating system, as the agent sends it.
    pub os: String,
    /// CPU architecture, as the agent sends it.
    pub arch: String,
    /// Region of the node; empty if none is configured.
    pub region: String,
    /// The transport as named in events: `muxado` or `ssh`.
    pub transport: String,
    /// The latest end, if its credential expires.
    #[serde(default)]
    pub expires_at: Option<Timestamp>,
    /// The run of a server that the agent is connected to.
    pub run: String,
}

impl TunnelSession {
    /// The caller that the agent acts as.
    pub(crate) fn caller(&self, account: &str) -> Caller {
        Caller {
            owner_id: self.principal_id.clone(),
            owner_kind: match self.principal_id.split_once('_') {
                Some(("usr", _)) => OwnerKind::User,
                _ => OwnerKind::Bot,
            },
            // Not used: the ACL of the credential limits the agent.
            role: Role::Member,
            key_id: self.credential_id.clone(),
            subject: self.principal_subject.clone(),
            account: account.to_owned(),
            restrictions: None,
            token: None,
            context: None,
        }
    }
}

/// A tunnel session as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TunnelSession")]
pub struct View<'a> {
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
    const COLLECTION: &'static str = TUNNEL_SESSIONS;
    const LIST_FIELD: &'static str = "tunnel_sessions";
    const ID_PREFIX: &'static str = TUNNEL_SESSION_PREFIX;
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
