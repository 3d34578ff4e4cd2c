//! Stored form and view of the vault secret.

use culvert_base::{Bounded, Description, Metadata, Timestamp};
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Reference, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::vault::model::Vault;

/// Name of the unique key.
pub(crate) const NAME_KEY: &str = "name";

/// At most 255 bytes.
pub type Name = Bounded<255>;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct VaultSecret {
    /// Version of the stored form.
    pub format: Format<1>,
    /// Unique in the vault.
    pub name: Name,
    /// What the secret is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// The value, encrypted for this object.
    pub sealed_value: String,
    pub(crate) vault_id: String,
    pub(crate) vault_name: Name,
    pub(crate) created_by: String,
    pub(crate) last_updated_by: String,
}

/// A secret without its value.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Secret")]
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
    pub(crate) vault: Reference<'a>,
    pub(crate) vault_name: &'a str,
    /// Owner of the API key that created the object.
    pub(crate) created_by: Reference<'a>,
    /// Owner of the API key that last updated the object.
    pub(crate) last_updated_by: Reference<'a>,
}

/// The unique key of a name. Names are unique within a vault; keys are unique in the installation.
pub(crate) fn unique_name(vault_id: &str, name: &str) -> String {
    format!("{vault_id} {name}")
}

impl Model for VaultSecret {
    const NAME: &'static str = "secret";
    const COLLECTION: &'static str = "vault_secrets";
    const LIST_FIELD: &'static str = "secrets";
    const ID_PREFIX: &'static str = "secret";
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
            vault: Reference::to(base, Vault::COLLECTION, &self.vault_id),
            vault_name: &self.vault_name,
            created_by: Reference::to_owner(&self.created_by),
            last_updated_by: Reference::to_owner(&self.last_updated_by),
        }
    }

    fn container(&self) -> Option<&str> {
        Some(&self.vault_id)
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            keys: vec![Key::new(NAME_KEY, unique_name(&self.vault_id, &self.name))],
            refs: vec![Ref::new("vault_id", &self.vault_id, OnDelete::Block)],
            ..Links::default()
        }
    }
}
