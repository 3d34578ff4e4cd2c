//! Application session: a browser that is signed in through an identity action of a Traffic Policy (contract:
//! management API 2.25).
//!
//! Sign-ins create them (`login`); the API does not. Removing a session here ends it at every edge.

use culvert_base::{Ksuid, Timestamp};
use culvert_login::Sighting;
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter::Field;
use culvert_resources::list::page;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Life, Never, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::{Error, Parameter, stored};
use culvert_store::{Changes, Head};

use crate::application::login;
use crate::application::login::End;
use crate::application::session_model::{ApplicationSession, UserAgent};
use crate::application::user_model::ApplicationUser;

/// The row of the sessions of visitors in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<ApplicationSession>();

impl ApplicationSession {
    /// A session of a user, from a sign-in.
    pub(crate) fn of(sighting: &Sighting, user_id: &str) -> Self {
        Self {
            format: Format,
            owner_id: sighting.owner.to_string(),
            public_url: sighting.public_url.clone(),
            last_active: sighting.seen_at,
            expires_at: sighting.expires_at,
            user_agent: UserAgent {
                raw: sighting.user_agent.clone(),
                browser_name: String::new(),
                browser_version: String::new(),
                device_type: String::new(),
                os_name: String::new(),
                os_version: String::new(),
            },
            ip_address: sighting.ip_address.clone(),
            user_id: Some(user_id.to_owned()),
            endpoint_id: Some(sighting.endpoint.clone()),
        }
    }

    /// When it ends unless it is used again.
    pub(crate) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

impl Resource for ApplicationSession {
    const DOC: &'static str = "Application sessions: browsers signed in through a traffic policy.";
    const LIFE: Life = Life::Recorded;
    const TIMES_OF_USE: &'static [&'static str] = &["last_active", "expires_at"];
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Never;
    type Update = Never;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    async fn update(self, _cx: &Cx<'_>, _: &Head, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    /// The browser must sign in again.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        let user = match &self.user_id {
            Some(id) => cx.own(ApplicationUser::KIND, id).await?,
            None => None,
        };
        let Some(user) = user else {
            return Ok(Changes::default());
        };
        let user: ApplicationUser = stored::read(&user)?;
        let user = user.user_key(&head.account);
        // An idle session may have been used since the last record.
        let until = cx.clock.now().plus(culvert_login::SESSION_MAX);
        let end = End::One(&head.id, until);
        Ok(login::ending(cx.store, &head.account, user, end, cx.clock.now()).await?)
    }
}
