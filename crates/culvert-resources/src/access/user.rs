//! Stored form and view of the user.

use culvert_base::Timestamp;
use culvert_store::{Head, Key};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::caller::Role;
use crate::access::rights::Rights;
use crate::cx::base::Base;
use crate::resource::model::{Links, Model, Uri};
use crate::stored::Format;

/// A person who owns keys. The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct User {
    /// Version of the stored form.
    pub format: Format<1>,
    /// E-mail address as it was given; lookups ignore case.
    pub email: String,
    /// The role of the person. The roles of its keys cannot exceed it.
    pub role: Role,
    /// Whether the person may sign in and its keys are valid.
    pub active: bool,
    /// The invitation that is not accepted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invitation: Option<Invitation>,
    /// The user at the OpenID provider of the console: `<issuer> <subject>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openid: Option<String>,
    /// Whether the user was admitted by its groups at that provider, which decide its role at each sign-in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_by_group: bool,
}

/// An invitation, whose token is in a link.
#[derive(Debug, Deserialize, Serialize)]
pub struct Invitation {
    /// Digest of the token: `<pepper id>.<hex>`.
    pub digest: String,
    /// When the link stops working.
    pub until: Timestamp,
    /// Who invited: an e-mail address, or the name of a bot. Empty if an earlier version stored it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
}

/// A user as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "User")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    /// E-mail address.
    pub(crate) email: &'a str,
    /// Role.
    #[schemars(extend("enum" = ["read_only", "member", "admin"]))]
    pub(crate) role: &'static str,
    /// Whether the user may sign in and its keys are valid.
    pub(crate) active: bool,
    /// When the invitation expires; null if there is none, or it was accepted.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub(crate) invitation_expires_at: Option<Timestamp>,
    /// The link that accepts the invitation, returned only in the response to the invitation; otherwise `null`.
    pub(crate) invitation_url: Option<&'a str>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
}

impl User {
    /// The key for looking up a user by e-mail address.
    pub fn by_email(email: &str) -> Key {
        Key::new("email", email.trim().to_lowercase())
    }

    /// The key for looking up a user of the OpenID provider.
    pub fn by_openid(openid: &str) -> Key {
        Key::new("openid", openid)
    }

    /// The keys of a user. Keys are unique, so two users have neither one address nor one identity.
    pub fn keys(&self) -> Vec<Key> {
        let openid = self.openid.as_deref().map(Self::by_openid);
        std::iter::once(Self::by_email(&self.email))
            .chain(openid)
            .collect()
    }

    /// Whether the user is an admin who may act.
    pub fn is_active_admin(&self) -> bool {
        self.active && self.role == Role::Admin
    }
}

impl Model for User {
    const NAME: &'static str = "user";
    const COLLECTION: &'static str = "users";
    const LIST_FIELD: &'static str = "users";
    const ID_PREFIX: &'static str = "usr";
    const RIGHTS: Rights = Rights::ADMINS;
    const OWNED_BY: Option<&'static str> = None;
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            email: &self.email,
            role: self.role.name(),
            active: self.active,
            invitation_expires_at: self.invitation.as_ref().map(|invitation| invitation.until),
            // The stored form has only a digest. The response to the invitation adds the link.
            invitation_url: None,
            created_at: head.created_at,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            keys: self.keys(),
            ..Links::default()
        }
    }
}
