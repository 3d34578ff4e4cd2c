//! Application session: a browser that is logged in through an identity action of a Traffic Policy
//! (contract: management API 2.25).
//!
//! Log-ins make them (`login`), never this API. A session that is removed here ends at every edge.

use culvert_base::{Ksuid, Timestamp};
use culvert_edge::login::Sighting;
use culvert_store::{Changes, Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Draft, Life, Links, Never, Reference, Resource, ResourceType, Uri, application_user, endpoint,
};
use crate::base::Base;
use crate::cx::Cx;
use crate::listfilter::Field;
use crate::login::{self, End};
use crate::page;
use crate::resource::application_user::ApplicationUser;
use crate::stored::{self, Format};
use crate::{Error, Parameter};

pub(crate) static TYPE: ResourceType = ResourceType::of::<ApplicationSession>();

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ApplicationSession {
    format: Format<1>,
    public_url: String,
    last_active: Timestamp,
    expires_at: Timestamp,
    user_agent: UserAgent,
    ip_address: String,
    user_id: Option<String>,
    endpoint_id: Option<String>,
}

impl ApplicationSession {
    /// A session of a user, as it was seen.
    pub(crate) fn of(sighting: &Sighting, user_id: &str) -> Self {
        Self {
            format: Format,
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

    /// When it ends if it is not used again.
    pub(crate) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

/// User agent of the browser. This version does not parse it.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
struct UserAgent {
    raw: String,
    browser_name: String,
    browser_version: String,
    device_type: String,
    os_name: String,
    os_version: String,
}

/// An application session as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApplicationSession")]
pub(crate) struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    public_url: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    last_active: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    expires_at: Timestamp,
    browser_session: BrowserSession<'a>,
    application_user: Option<Reference<'a>>,
    endpoint: Option<Reference<'a>>,
    edge: Option<Reference<'a>>,
    route: Option<Reference<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct BrowserSession<'a> {
    user_agent: &'a UserAgent,
    ip_address: &'a str,
    /// Always `null`; culvert has no location data here.
    location: Option<&'a str>,
}

impl Resource for ApplicationSession {
    const NAME: &'static str = "application_session";
    const COLLECTION: &'static str = "app/sessions";
    const LIST_FIELD: &'static str = "application_sessions";
    const ID_PREFIX: &'static str = "as";
    const DOC: &'static str = "Application sessions: browsers signed in through a traffic policy.";
    const LIFE: Life = Life::Recorded;
    const SILENT: Option<&'static str> =
        Some("the catalogue has no events for application sessions");
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

    /// The browser must log in again.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        let user = match &self.user_id {
            Some(id) => cx.own(application_user::TYPE.kind, id).await?,
            None => None,
        };
        let Some(user) = user else {
            return Ok(Changes::default());
        };
        let user: ApplicationUser = stored::read(&user)?;
        let user = user.user_key(&head.account);
        // An idle one may have been used since it was last noted.
        let until = cx.clock.now().plus(culvert_edge::login::SESSION_MAX);
        let end = End::One(&head.id, until);
        Ok(login::ending(cx.store, &head.account, user, end, cx.clock.now()).await?)
    }

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let to = |collection| move |id: &'a String| Reference::to(base, collection, id);
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            public_url: &self.public_url,
            created_at: head.created_at,
            last_active: self.last_active,
            expires_at: self.expires_at,
            browser_session: BrowserSession {
                user_agent: &self.user_agent,
                ip_address: &self.ip_address,
                location: None,
            },
            application_user: self
                .user_id
                .as_ref()
                .map(to(application_user::TYPE.collection)),
            endpoint: self.endpoint_id.as_ref().map(to(endpoint::TYPE.collection)),
            edge: None,
            route: None,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        let of_user = |id: &String| Ref::new("user_id", id, OnDelete::Cascade);
        Links {
            refs: self.user_id.iter().map(of_user).collect(),
            ..Links::default()
        }
    }
}
