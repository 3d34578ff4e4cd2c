//! Application user: a user who signed in through an identity action of a Traffic Policy (contract:
//! management API 2.24).
//!
//! Sign-ins create them (`login`); the API does not.

use culvert_base::Ksuid;
use culvert_login::Sighting;
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter::Field;
use culvert_resources::list::page;
use culvert_resources::resource::{Draft, Life, Never, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::{Error, Parameter, service};
use culvert_store::{Changes, Head};

use crate::application::login::End;
use crate::application::user_model::{ApplicationUser, IdentityProvider};
use crate::application::{login, session};

/// The row of visitors in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<ApplicationUser>();

impl ApplicationUser {
    /// A user at the first sign-in.
    pub(crate) fn of(sighting: &Sighting) -> Self {
        let mut user = Self {
            format: Format,
            owner_id: sighting.owner.to_string(),
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

    /// Updates the user at a later sign-in.
    pub(crate) fn seen(&mut self, sighting: &Sighting) {
        self.owner_id = sighting.owner.to_string();
        let person = &sighting.person;
        self.username.clone_from(&person.username);
        self.email.clone_from(&person.email);
        self.name.clone_from(&person.name);
        self.last_active = self.last_active.max(sighting.seen_at);
        self.last_login = self.last_login.max(sighting.started_at);
    }
}

impl Resource for ApplicationUser {
    const DOC: &'static str = "Application users: users that signed in through a traffic policy.";
    const LIFE: Life = Life::Recorded;
    const TIMES_OF_USE: &'static [&'static str] = &["last_active", "last_login"];
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const CREATE_NEEDS_BODY: bool = false;
    const IS_REMOVED_WITH_OWNER: bool = true;

    type Create = Never;
    type Update = Never;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    async fn update(self, _cx: &Cx<'_>, _: &Head, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    /// Ends the user's sessions too: the next request must sign in again.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        let (sessions, user) = (&session::TYPE, self.user_key(&head.account));
        let known = cx.referring(sessions.kind, head).await?;
        let latest = known.iter().map(|session| session.head.created_at).max();
        let end = End::All(latest);
        let ended = login::ending(cx.store, &head.account, user, end, cx.clock.now()).await?;
        known.into_iter().try_fold(ended, |changes, session| {
            Ok(changes.and(service::removal(cx, sessions, session)?))
        })
    }
}
