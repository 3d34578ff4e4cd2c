//! Stored form and view of the SSH host certificate.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::Head;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ssh::certificate_authority_model::Issued;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct SshHostCertificate {
    /// Version of the stored form.
    pub format: Format<1>,
    /// The owner of the key that created it. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// What the certificate is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// The certificate and what it says.
    pub issued: Issued,
}

/// An SSH host certificate as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SshHostCertificate")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// Value as sent, including the comment.
    pub(crate) public_key: &'a str,
    /// `rsa`, `ecdsa` or `ed25519`.
    #[schemars(extend("enum" = crate::ssh::certificate_authority_model::KEY_TYPES))]
    pub(crate) key_type: &'static str,
    /// Issuer.
    pub(crate) ssh_certificate_authority_id: &'a str,
    /// Host names; empty for all hosts.
    pub(crate) principals: &'a [String],
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) valid_after: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) valid_until: Timestamp,
    /// The certificate as one line of an OpenSSH `-cert.pub` file.
    pub(crate) certificate: &'a str,
}

impl Model for SshHostCertificate {
    const NAME: &'static str = "ssh_host_certificate";
    const COLLECTION: &'static str = "ssh_host_certificates";
    const LIST_FIELD: &'static str = "ssh_host_certificates";
    const ID_PREFIX: &'static str = "shcrt";
    const RIGHTS: Rights = Rights::SHARED;
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let issued = &self.issued;
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            description: &self.description,
            metadata: &self.metadata,
            public_key: &issued.public_key,
            key_type: issued.algorithm.key_type(),
            ssh_certificate_authority_id: &issued.ssh_certificate_authority_id,
            principals: &issued.principals,
            valid_after: issued.valid_after,
            valid_until: issued.valid_until,
            certificate: &issued.certificate,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        self.issued.links()
    }
}
