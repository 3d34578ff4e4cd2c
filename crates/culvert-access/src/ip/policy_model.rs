//! Stored form and view of the IP policy.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::Head;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct IpPolicy {
    /// Version of the stored form.
    pub format: Format<1>,
    /// The owner of the key that created it. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// What the policy is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
}

/// An IP policy as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "IpPolicy")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
}

impl Model for IpPolicy {
    const NAME: &'static str = "ip_policy";
    const COLLECTION: &'static str = "ip_policies";
    const LIST_FIELD: &'static str = "ip_policies";
    const ID_PREFIX: &'static str = "ipp";
    const RIGHTS: Rights = Rights {
        see: See::All,
        use_by: Use::All,
        change: Change::OwnerUnlessRestricting,
    };
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
        }
    }
}
