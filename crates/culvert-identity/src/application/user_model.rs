//! Stored form and view of the application user.

use culvert_base::Timestamp;
use culvert_login::UserKey;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the key for looking up a user at sign-in.
pub(crate) const KEY: &str = "identity";

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ApplicationUser {
    pub format: Format<1>,
    /// Owner of the endpoints that the user signed in at. Empty for users of former versions, which belong to admins until
    /// they sign in again.
    #[serde(default)]
    pub owner_id: String,
    pub(crate) identity_provider: IdentityProvider,
    pub provider_user_id: String,
    pub username: String,
    pub email: String,
    pub name: String,
    pub(crate) last_active: Timestamp,
    pub(crate) last_login: Timestamp,
}

/// Identity provider of a user.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct IdentityProvider {
    pub(crate) name: String,
    pub(crate) url: String,
}

/// An application user as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApplicationUser")]
pub(crate) struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) last_active: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) last_login: Timestamp,
    pub(crate) identity_provider: &'a IdentityProvider,
    /// User ID at the identity provider.
    pub(crate) provider_user_id: &'a str,
    pub(crate) username: &'a str,
    pub(crate) email: &'a str,
    pub(crate) name: &'a str,
}

impl Model for ApplicationUser {
    const NAME: &'static str = "application_user";
    const COLLECTION: &'static str = "app/users";
    const LIST_FIELD: &'static str = "application_users";
    const ID_PREFIX: &'static str = "au";
    const RIGHTS: Rights = Rights::PRIVATE;
    const REFERS_TO_OWNER: bool = true;
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

    fn links(&self, head: &Head) -> Links {
        let key = self.user_key(&head.account).to_string();
        Links {
            keys: vec![Key::new(KEY, key)],
            refs: owner_refs(&self.owner_id),
            ..Links::default()
        }
    }

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            last_active: self.last_active,
            last_login: self.last_login,
            identity_provider: &self.identity_provider,
            provider_user_id: &self.provider_user_id,
            username: &self.username,
            email: &self.email,
            name: &self.name,
        }
    }
}

impl ApplicationUser {
    /// The key that identifies the user at the edge.
    pub(crate) fn user_key(&self, account: &str) -> UserKey {
        let provider = &self.identity_provider.url;
        UserKey::of(account, &self.owner_id, provider, &self.provider_user_id)
    }
}

/// The reference to the owner of an endpoint, if it is recorded.
pub(crate) fn owner_refs(owner_id: &str) -> Vec<Ref> {
    let owner_id = Some(owner_id).filter(|id| !id.is_empty());
    let refs = owner_id.map(|id| Ref::new("owner_id", id, OnDelete::Cascade));
    refs.into_iter().collect()
}
