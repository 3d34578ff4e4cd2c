//! Stored form and view of the SSH public key.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::acl::Acl;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the unique key: the fingerprint, which ignores the comment.
pub const KEY: &str = "fingerprint";

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct SshPublicKey {
    /// Version of the stored form.
    pub format: Format<1>,
    /// ID of the user or bot that it belongs to.
    pub owner_id: String,
    /// Value as sent.
    pub public_key: String,
    /// Fingerprint of the key without its comment.
    pub fingerprint: String,
    /// Whether the key signs the certificates that clients sign in with, instead of signing in itself.
    #[serde(default)]
    pub(crate) is_authority: bool,
    /// What the key is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// The addresses that its tunnels may bind.
    pub acl: Acl,
}

/// An SSH public key as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SshPublicKey")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    /// Value as sent, including the comment.
    pub(crate) public_key: &'a str,
    /// Addresses that endpoints may bind; empty for all.
    pub(crate) acl: &'a [String],
    /// Owner of the key.
    pub(crate) owner_id: &'a str,
}

impl Model for SshPublicKey {
    const NAME: &'static str = "ssh_public_key";
    const COLLECTION: &'static str = "ssh_credentials";
    const LIST_FIELD: &'static str = "ssh_credentials";
    const ID_PREFIX: &'static str = "sshcr";
    const REFERS_TO_OWNER: bool = true;
    const RIGHTS: Rights = Rights::PRIVATE;
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
            description: &self.description,
            metadata: &self.metadata,
            created_at: head.created_at,
            public_key: &self.public_key,
            acl: &self.acl,
            owner_id: &self.owner_id,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            keys: vec![Key::new(KEY, &*self.fingerprint)],
            refs: vec![Ref::new("owner_id", &self.owner_id, OnDelete::Cascade)],
            ..Links::default()
        }
    }
}
