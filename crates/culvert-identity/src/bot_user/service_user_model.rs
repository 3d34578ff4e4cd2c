//! Stored form and view of the service user.

use culvert_base::Timestamp;
use culvert_resources::access::bot_user::BotUser;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model};
use culvert_store::Head;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The stored form is a bot's.
#[derive(Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct ServiceUser(pub(crate) BotUser);

/// A service user as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ServiceUser")]
pub(crate) struct View<'a> {
    pub(crate) id: String,
    pub(crate) uri: String,
    pub(crate) name: &'a str,
    pub(crate) active: bool,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
}

impl Model for ServiceUser {
    const NAME: &'static str = "service_user";
    const COLLECTION: &'static str = "service_users";
    const LIST_FIELD: &'static str = "service_users";
    const ID_PREFIX: &'static str = "service";
    const KIND: &'static str = BotUser::KIND;
    const PREFIXES: &'static [&'static str] = culvert_resources::access::bot_user::PREFIXES;
    const RIGHTS: Rights = Rights::ADMINS;
    const OWNED_BY: Option<&'static str> = None;
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let body = head.id.strip_prefix("bot_").unwrap_or(&head.id);
        let id = format!("{}_{body}", Self::ID_PREFIX);
        View {
            uri: format!("{base}/{}/{id}", Self::COLLECTION),
            id,
            name: &self.0.name,
            active: self.0.active,
            created_at: head.created_at,
        }
    }

    fn links(&self, head: &Head) -> Links {
        self.0.links(head)
    }
}
