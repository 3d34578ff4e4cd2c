//! Stored form and view of the vault.

use culvert_base::{Bounded, Description, Metadata, Timestamp};
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the unique key for looking up a vault.
pub(crate) const NAME_KEY: &str = "name";

/// At most 255 bytes.
pub type Name = Bounded<255>;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct Vault {
    /// Version of the stored form.
    pub format: Format<1>,
    /// Unique in the account.
    pub name: Name,
    /// What the vault is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    pub(crate) created_by: String,
    pub(crate) last_updated_by: String,
}

/// A vault as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Vault")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) updated_at: Timestamp,
    pub(crate) name: &'a str,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// ID of the owner of the API key that created the object.
    pub(crate) created_by: &'a str,
    /// ID of the owner of the API key that last updated the object.
    pub(crate) last_updated_by: &'a str,
}

/// The unique key of a name. Names are unique within an account; keys are unique in the installation.
pub(crate) fn unique_name(account: &str, name: &str) -> String {
    format!("{account} {name}")
}

impl Model for Vault {
    const NAME: &'static str = "vault";
    const COLLECTION: &'static str = "vaults";
    const LIST_FIELD: &'static str = "vaults";
    const ID_PREFIX: &'static str = "vault";
    const RIGHTS: Rights = Rights {
        see: See::All,
        use_by: Use::Grant,
        change: Change::Owner,
    };
    const OWNED_BY: Option<&'static str> = Some("created_by");
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
            updated_at: head.updated_at,
            name: &self.name,
            description: &self.description,
            metadata: &self.metadata,
            created_by: &self.created_by,
            last_updated_by: &self.last_updated_by,
        }
    }

    fn links(&self, head: &Head) -> Links {
        Links {
            keys: vec![Key::new(NAME_KEY, unique_name(&head.account, &self.name))],
            ..Links::default()
        }
    }
}
