//! Service user: a bot user under its newer name (contract: management API 2.20). Both are stored as
//! `bot_user`; here the IDs read `service_…`.

use culvert_base::{Code, Ksuid, Refusal};
use culvert_store::{Changes, Head};

use crate::cx::Cx;
use crate::listfilter::{self, Field};
use crate::resource::bot_user::{self, Create, Update};
use crate::resource::model::bot_user::BotUser;
use crate::resource::model::service_user::ServiceUser;
use crate::resource::resource_type::{Draft, Resource, ResourceType};
use crate::{Caller, Error, Role};

pub(crate) static TYPE: ResourceType = ResourceType::of::<ServiceUser>();

impl Resource for ServiceUser {
    const DOC: &'static str = "Service users: the current name of bot users.";
    const SILENT: Option<&'static str> = bot_user::SILENT;
    const FILTER: Option<&'static [Field]> = Some(&[listfilter::ID, listfilter::CREATED_AT]);
    const VALUE_CODES: &'static [(&'static str, Code)] = bot_user::VALUE_CODES;
    const TAKEN: Option<Code> = bot_user::TAKEN;
    const CREATE_NEEDS_BODY: bool = true;
    const WRITERS: Role = Role::Admin;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let draft = BotUser::create(cx, id, input).await?;
        Ok(Draft::of(Self(draft.document)))
    }

    async fn update(self, cx: &Cx<'_>, head: &Head, input: Update) -> Result<Draft<Self>, Error> {
        let draft = self.0.update(cx, head, input).await?;
        Ok(Draft {
            also: draft.also,
            ..Draft::of(Self(draft.document))
        })
    }

    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        self.0.before_removal(cx, head).await
    }

    fn permit(caller: &Caller) -> Result<(), Refusal> {
        BotUser::permit(caller)
    }
}
