//! Service user: a bot user under its newer name (contract: management API 2.20). Both are stored as
//! `bot_user`; here the IDs read `service_…`.

use culvert_base::{Code, Ksuid, Refusal};
use culvert_resources::access::bot_user::BotUser;
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter;
use culvert_resources::list::listfilter::Field;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::{Caller, Error, Role};
use culvert_store::{Changes, Head};

use crate::bot_user;
use crate::bot_user::service_user_model::ServiceUser;
use crate::bot_user::{Create, Update};

/// The row of bots under their former name in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<ServiceUser>();

impl Resource for ServiceUser {
    const DOC: &'static str = "Service users: the current name of bot users.";
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
