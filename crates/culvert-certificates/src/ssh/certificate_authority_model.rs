//! Stored form and view of the SSH certificate authority.

use std::collections::BTreeMap;

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ssh::Algorithm;

/// Key types as shown.
pub(crate) const KEY_TYPES: [&str; 3] = ["rsa", "ecdsa", "ed25519"];

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct SshCertificateAuthority {
    /// Version of the stored form.
    pub format: Format<1>,
    /// The owner of the key that created it. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// What the authority is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// Algorithm of its key.
    pub algorithm: Algorithm,
    /// One line without a comment.
    pub public_key: String,
    /// Private key, encrypted.
    pub(crate) sealed_key: String,
}

/// An SSH certificate authority as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SshCertificateAuthority")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// Public key of the CA: one line without a comment.
    pub(crate) public_key: &'a str,
    /// `rsa`, `ecdsa` or `ed25519`.
    #[schemars(extend("enum" = KEY_TYPES))]
    pub(crate) key_type: &'static str,
}

impl Model for SshCertificateAuthority {
    const NAME: &'static str = "ssh_certificate_authority";
    const COLLECTION: &'static str = "ssh_certificate_authorities";
    const LIST_FIELD: &'static str = "ssh_certificate_authorities";
    const ID_PREFIX: &'static str = "sshca";
    const RIGHTS: Rights = Rights::SHARED;
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
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
            public_key: &self.public_key,
            key_type: self.algorithm.key_type(),
        }
    }
}

/// Names with values; flags have the value `""`.
pub type Options = BTreeMap<String, String>;

/// The common part of the stored forms.
#[derive(Debug, Deserialize, Serialize)]
pub struct Issued {
    /// Value as sent.
    pub public_key: String,
    /// Algorithm of the certified key.
    pub algorithm: Algorithm,
    pub(crate) ssh_certificate_authority_id: String,
    pub(crate) principals: Vec<String>,
    pub(crate) valid_after: Timestamp,
    /// End of the validity of the certificate.
    pub valid_until: Timestamp,
    /// One line, as in a `-cert.pub` file.
    pub certificate: String,
}

impl Issued {
    /// The links of a certificate, whose authority cannot be deleted before it.
    pub(crate) fn links(&self) -> Links {
        let authority = &self.ssh_certificate_authority_id;
        let field = "ssh_certificate_authority_id";
        Links {
            refs: vec![Ref::new(field, authority, OnDelete::Block)],
            ..Links::default()
        }
    }
}
