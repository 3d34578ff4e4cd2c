//! Stored form and view of the API key.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::key_restrictions::KeyRestrictions;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct ApiKey {
    /// Version of the stored form.
    pub format: Format<1>,
    /// ID of the user or bot that it belongs to.
    pub owner_id: String,
    /// `<pepper id>.<hex>`.
    pub digest: String,
    /// What the key is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// What it may not do although its owner may.
    #[serde(default, skip_serializing_if = "KeyRestrictions::is_none")]
    pub restrictions: KeyRestrictions,
    /// The token before the last rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousToken>,
}

/// A token that was replaced and still works for a while.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PreviousToken {
    /// `<pepper id>.<hex>`.
    pub digest: String,
    /// When it stops working.
    pub until: Timestamp,
}

/// An API key as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKey")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    /// Owner of the key.
    pub(crate) owner_id: &'a str,
    /// The token, returned only in the response to the creation; otherwise `null`.
    pub(crate) token: Option<&'a str>,
}

impl Model for ApiKey {
    const NAME: &'static str = "api_key";
    const COLLECTION: &'static str = "api_keys";
    const LIST_FIELD: &'static str = "keys";
    const ID_PREFIX: &'static str = "ak";
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
            owner_id: &self.owner_id,
            token: None,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            refs: vec![Ref::new("owner_id", &self.owner_id, OnDelete::Cascade)],
            ..Links::default()
        }
    }
}
