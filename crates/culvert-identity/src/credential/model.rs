//! Stored form and view of the tunnel credential.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::acl::Acl;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::leak::found::Leak;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct TunnelCredential {
    /// Version of the stored form.
    pub format: Format<1>,
    /// ID of the user or bot that it belongs to.
    pub owner_id: String,
    /// `<pepper id>.<hex>`.
    pub digest: String,
    /// What the credential is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// The addresses that its agents may bind.
    pub acl: Acl,
    /// That its token was reported as leaked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leak: Option<Leak>,
}

/// A tunnel credential as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TunnelCredential")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    /// The token, returned only in the response to the creation; otherwise `null`.
    pub(crate) token: Option<&'a str>,
    /// Addresses that endpoints may bind; empty for all.
    pub(crate) acl: &'a [String],
    /// Owner of the credential.
    pub(crate) owner_id: &'a str,
}

impl Model for TunnelCredential {
    const NAME: &'static str = "tunnel_credential";
    const COLLECTION: &'static str = "credentials";
    const LIST_FIELD: &'static str = "credentials";
    const ID_PREFIX: &'static str = "cr";
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
            token: None,
            acl: &self.acl,
            owner_id: &self.owner_id,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            refs: vec![Ref::new("owner_id", &self.owner_id, OnDelete::Cascade)],
            ..Links::default()
        }
    }
}
