//! Application user: who logged in through an identity action of a Traffic Policy (contract:
//! management API 2.24).
//!
//! Log-ins make them (`login`), never this API.

use culvert_base::{Ksuid, Timestamp};
use culvert_edge::login::{Sighting, UserKey};
use culvert_store::{Changes, Head, Key};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Draft, Life, Links, Never, Resource, ResourceType, Uri, application_session};
use crate::base::Base;
use crate::cx::Cx;
use crate::listfilter::Field;
use crate::login::{self, End};
use crate::page;
use crate::stored::Format;
use crate::{Error, Parameter, service};

pub(crate) static TYPE: ResourceType = ResourceType::of::<ApplicationUser>();

/// The key by which a user who logs in is found.
pub(crate) const KEY: &str = "identity";

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

impl ApplicationUser {
    /// Somebody who logs in for the first time.
    pub(crate) fn of(sighting: &Sighting) -> Self {
        let mut user = Self {
            format: Format,
            identity_provider: IdentityProvider {
                name: sighting.provider.clone(),
                url: sighting.provider_url.clone(),
            },
            provider_user_id: sighting.person.provider_user_id.clone(),
            username: String::new(),
            email: String::new(),
            name: String::new(),
            last_active: sighting.seen_at,
            last_login: sighting.started_at,
        };
        user.seen(sighting);
        user
    }

    /// The same, seen again.
    pub(crate) fn seen(&mut self, sighting: &Sighting) {
        let person = &sighting.person;
        self.username.clone_from(&person.username);
        self.email.clone_from(&person.email);
        self.name.clone_from(&person.name);
        self.last_active = self.last_active.max(sighting.seen_at);
        self.last_login = self.last_login.max(sighting.started_at);
    }

    /// What the edge knows the user by.
    pub(crate) fn user_key(&self, account: &str) -> UserKey {
        UserKey::of(account, &self.identity_provider.url, &self.provider_user_id)
    }
}

/// Identity provider of a user.
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
    /// User ID at the identity provider.
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
    const DOC: &'static str = "Application users: users that signed in through a traffic policy.";
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
        let (sessions, user) = (&application_session::TYPE, self.user_key(&head.account));
        let ended = login::ending(cx.store, &head.account, user, End::All, cx.clock.now()).await?;
        cx.referring(sessions.kind, head)
            .await?
            .into_iter()
            .try_fold(ended, |changes, session| {
                Ok(changes.and(service::removal(cx, sessions, session)?))
            })
    }

    fn links(&self, head: &Head) -> Links {
        let key = self.user_key(&head.account).to_string();
        Links {
            keys: vec![Key::new(KEY, key)],
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
