//! Bot user: an owner of keys that is not a person (contract: management API 2.20).
//!
//! Service users are the same objects under another name (`service_user`).

pub mod service_user;
pub(crate) mod service_user_model;

use culvert_base::{Code, Fault, Ksuid, Refusal, code, id};
use culvert_resources::access::bot_user::{BotUser, Name};
use culvert_resources::cx::Cx;
use culvert_resources::input::names::check_bot_name;
use culvert_resources::list::listfilter::Field;
use culvert_resources::list::page;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::{Caller, Error, Parameter, Role, input, service};
use culvert_store::{Changes, Document, Head};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Identity;
use crate::console::session;

/// The row of bots in the table of resources.
pub static TYPE: ResourceType = ResourceType::of_subject::<BotUser, Identity>();

/// Codes for names that are not allowed.
pub const VALUE_CODES: &[(&str, Code)] = &[("name", code::BOT_NAME_TOO_LONG)];

/// Code for a name that another bot has.
pub const TAKEN: Option<Code> = Some(code::BOT_NAME_TAKEN);

/// A new bot.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "BotUserCreate", extend("required" = ["name"]), transform = input::create_schema)]
pub struct Create {
    /// Unique name, at most 255 bytes. Required.
    #[schemars(with = "String", length(min = 1, max = 255))]
    name: Name,
    /// Whether the user is active and its keys are valid. Default: `true`.
    active: Option<bool>,
}

/// Changes to a bot.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "BotUserUpdate", transform = input::update_schema)]
pub struct Update {
    /// Unique name, at most 255 bytes.
    #[schemars(with = "Option<String>", length(min = 1, max = 255))]
    name: Option<Name>,
    /// Whether the user is active and its keys are valid.
    active: Option<bool>,
}

impl Resource<Identity> for BotUser {
    const DOC: &'static str = "Bot users: non-human owners of keys.";
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const VALUE_CODES: &'static [(&'static str, Code)] = VALUE_CODES;
    const TAKEN: Option<Code> = TAKEN;
    const CREATE_NEEDS_BODY: bool = true;
    const WRITERS: Role = Role::Admin;

    type Create = Create;
    type Update = Update;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        Ok(Draft::of(Self {
            format: Format,
            name: check_name(input.name)?,
            active: input.active.unwrap_or(true),
        }))
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        let was_active = self.active;
        if input.active == Some(true) && !self.active {
            cx.caller.may_activate()?;
        }
        // A client may send the name that the bot has.
        if let Some(name) = input.name.filter(|name| *name != self.name) {
            self.name = check_name(name)?;
        }
        self.active = input.active.unwrap_or(self.active);
        let also = match self.active == was_active {
            true => Changes::default(),
            false => session::removal_of_owner(cx, head).await?,
        };
        Ok(Draft {
            also,
            ..Draft::of(self)
        })
    }

    /// Removes the objects of the bot too, oldest first.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        owned_removal(cx, head).await
    }

    fn permit(caller: &Caller) -> Result<(), Refusal> {
        match caller.role {
            Role::Admin => Ok(()),
            Role::Member | Role::ReadOnly => Err(Refusal::of(code::BOT_CHANGE_NOT_ADMIN)),
        }
    }
}

/// Removes the objects of an owner that do not outlive it, oldest first.
pub(crate) async fn owned_removal(cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
    let mut owned: Vec<(&ResourceType, Document)> = Vec::new();
    for ty in cx.resources.iter().filter(|ty| ty.is_removed_with_owner) {
        for document in of_owner(cx, ty, head).await? {
            owned.push((ty, document));
        }
    }
    // Prefixes differ by kind; the ID bodies after them ascend with time.
    let age = |document: &Document| id::split(&document.head.id).map(|(_, body)| body.to_owned());
    owned.sort_by_cached_key(|(_, document)| age(document));
    owned
        .into_iter()
        .try_fold(Changes::default(), |changes, (ty, document)| {
            Ok(changes.and(service::removal(cx, ty, document)?))
        })
}

/// The objects of a resource that belong to an owner.
async fn of_owner(cx: &Cx<'_>, ty: &ResourceType, owner: &Head) -> Result<Vec<Document>, Fault> {
    if ty.refers_to_owner {
        return cx.referring(ty.kind, owner).await;
    }
    let mut owned = Vec::new();
    for document in cx.store.all(ty.kind).await? {
        let is_of_account = document.head.account == owner.account;
        if is_of_account && ty.owner_of(&document)?.as_deref() == Some(&*owner.id) {
            owned.push(document);
        }
    }
    Ok(owned)
}

fn check_name(name: Name) -> Result<Name, Refusal> {
    if name.is_empty() {
        return Err(Refusal::of(code::BOT_NAME_EMPTY));
    }
    check_bot_name(&name)?;
    Ok(name)
}
