//! Service user: a bot user under its newer name (contract: management API 2.20). One kind of
//! object, stored as `bot_user`; here its ids read `service_…`.

use culvert_base::{Code, Ksuid, Refusal, Timestamp};
use culvert_store::{Changes, Head};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bot_user::{self, BotUser, Create, Update};
use super::{Draft, Links, Resource, ResourceType};
use crate::base::Base;
use crate::cx::Cx;
use crate::listfilter::{self, Field};
use crate::{Caller, Error};

pub(crate) static TYPE: ResourceType = ResourceType::of::<ServiceUser>();

/// The stored form is a bot's.
#[derive(Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct ServiceUser(BotUser);

/// A service user as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ServiceUser")]
pub(crate) struct View<'a> {
    id: String,
    uri: String,
    name: &'a str,
    active: bool,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
}

impl Resource for ServiceUser {
    const NAME: &'static str = "service_user";
    const COLLECTION: &'static str = "service_users";
    const LIST_FIELD: &'static str = "service_users";
    const ID_PREFIX: &'static str = "service";
    const DOC: &'static str = "Service users: the current name of bot users.";
    const KIND: &'static str = BotUser::KIND;
    const PREFIXES: &'static [&'static str] = bot_user::PREFIXES;
    const SILENT: Option<&'static str> = bot_user::SILENT;
    const FILTER: Option<&'static [Field]> = Some(&[listfilter::ID, listfilter::CREATED_AT]);
    const VALUE_CODES: &'static [(&'static str, Code)] = bot_user::VALUE_CODES;
    const TAKEN: Option<Code> = bot_user::TAKEN;
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;
    type View<'a> = View<'a>;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let draft = BotUser::create(cx, id, input).await?;
        Ok(Draft::of(Self(draft.document)))
    }

    async fn update(self, cx: &Cx<'_>, head: &Head, input: Update) -> Result<Draft<Self>, Error> {
        let draft = self.0.update(cx, head, input).await?;
        Ok(Draft::of(Self(draft.document)))
    }

    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        self.0.before_removal(cx, head).await
    }

    fn permit(caller: &Caller) -> Result<(), Refusal> {
        BotUser::permit(caller)
    }

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
