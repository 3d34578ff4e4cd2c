//! Application user: who logged in through an identity action of a Traffic Policy (contract:
//! management API 2.24).
//!
//! Logins make them, never this API; this version has no identity actions yet, so the collection is
//! empty.

use culvert_base::{Ksuid, Timestamp};
use culvert_store::{Changes, Head};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Draft, Life, Never, Resource, ResourceType, Uri, application_session};
use crate::cx::Cx;
use crate::listfilter::Field;
use crate::page;
use crate::stored::Format;
use crate::{Error, Parameter, service};

pub(crate) static TYPE: ResourceType = ResourceType::of::<ApplicationUser>();

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ApplicationUser {
    format: Format<1>,
    identity_provider: IdentityProvider,
    provider_user_id: String,
    username: String,
    email: String,
    name: String,
    last_active: Timestamp,
    last_login: Timestamp,
}

/// Who vouches for a user.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
struct IdentityProvider {
    name: String,
    url: String,
}

/// An application user as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApplicationUser")]
pub(crate) struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    last_active: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    last_login: Timestamp,
    identity_provider: &'a IdentityProvider,
    /// What the identity provider knows the user by.
    provider_user_id: &'a str,
    username: &'a str,
    email: &'a str,
    name: &'a str,
}

impl Resource for ApplicationUser {
    const NAME: &'static str = "application_user";
    const COLLECTION: &'static str = "app/users";
    const LIST_FIELD: &'static str = "application_users";
    const ID_PREFIX: &'static str = "au";
    const DOC: &'static str = "Application users: who logged in through a traffic policy.";
    const LIFE: Life = Life::Recorded;
    const SILENT: Option<&'static str> = Some("the catalogue has no events for application users");
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Never;
    type Update = Never;
    type View<'a> = View<'a>;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    async fn update(self, _cx: &Cx<'_>, _: &Head, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    /// The user's sessions go too: the next request must log in again.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        let sessions = &application_session::TYPE;
        cx.referring(sessions.kind, head)
            .await?
            .into_iter()
            .try_fold(Changes::default(), |changes, session| {
                Ok(changes.and(service::removal(cx, sessions, session)?))
            })
    }

    fn view<'a>(&'a self, head: &'a Head, base: &'a str) -> View<'a> {
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
