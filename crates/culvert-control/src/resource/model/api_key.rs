//! Stored form and view of the API key.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::Base;
use crate::key_restrictions::KeyRestrictions;
use crate::resource::model::{Links, Model, Uri};
use crate::rights::Rights;
use crate::stored::Format;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ApiKey {
    pub(crate) format: Format<1>,
    pub(crate) owner_id: String,
    /// `<pepper id>.<hex>`.
    pub(crate) digest: String,
    pub(crate) description: Description,
    pub(crate) metadata: Metadata,
    #[serde(default, skip_serializing_if = "KeyRestrictions::is_none")]
    pub(crate) restrictions: KeyRestrictions,
    /// The token before the last rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<PreviousToken>,
}

/// A token that was replaced and still works for a while.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PreviousToken {
    /// `<pepper id>.<hex>`.
    pub(crate) digest: String,
    /// When it stops working.
    pub(crate) until: Timestamp,
}

/// An API key as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKey")]
pub(crate) struct View<'a> {
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
