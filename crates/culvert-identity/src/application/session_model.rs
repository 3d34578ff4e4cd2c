//! Stored form and view of the application session.

use culvert_base::Timestamp;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{ENDPOINTS, Links, Model, Reference, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::application::user_model::{ApplicationUser, owner_refs};

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ApplicationSession {
    pub format: Format<1>,
    /// Owner of the endpoint. Empty in sessions of former versions.
    #[serde(default)]
    pub owner_id: String,
    pub public_url: String,
    pub(crate) last_active: Timestamp,
    pub expires_at: Timestamp,
    pub user_agent: UserAgent,
    pub ip_address: String,
    pub user_id: Option<String>,
    pub endpoint_id: Option<String>,
}

/// User agent of the browser. This version does not parse it.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct UserAgent {
    pub(crate) raw: String,
    pub(crate) browser_name: String,
    pub(crate) browser_version: String,
    pub(crate) device_type: String,
    pub(crate) os_name: String,
    pub(crate) os_version: String,
}

/// An application session as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApplicationSession")]
pub(crate) struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    pub(crate) public_url: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) last_active: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) expires_at: Timestamp,
    pub(crate) browser_session: BrowserSession<'a>,
    pub(crate) application_user: Option<Reference<'a>>,
    pub(crate) endpoint: Option<Reference<'a>>,
    pub(crate) edge: Option<Reference<'a>>,
    pub(crate) route: Option<Reference<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct BrowserSession<'a> {
    pub(crate) user_agent: &'a UserAgent,
    pub(crate) ip_address: &'a str,
    /// Always `null`; culvert has no location data here.
    pub(crate) location: Option<&'a str>,
}

impl Model for ApplicationSession {
    const NAME: &'static str = "application_session";
    const COLLECTION: &'static str = "app/sessions";
    const LIST_FIELD: &'static str = "application_sessions";
    const ID_PREFIX: &'static str = "as";
    const RIGHTS: Rights = Rights::PRIVATE;
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

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
            application_user: self.user_id.as_ref().map(to(ApplicationUser::COLLECTION)),
            endpoint: self.endpoint_id.as_ref().map(to(ENDPOINTS)),
            edge: None,
            route: None,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        let of_user = |id: &String| Ref::new("user_id", id, OnDelete::Cascade);
        Links {
            refs: self
                .user_id
                .iter()
                .map(of_user)
                .chain(owner_refs(&self.owner_id))
                .collect(),
            ..Links::default()
        }
    }
}
