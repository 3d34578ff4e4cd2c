//! Bot user: an owner of keys that is not a person (contract: management API 2.20).
//!
//! Service users are the same objects under another name (`service_user`).

use culvert_base::{Code, Ksuid, Refusal, code, id};
use culvert_store::{AuditEvent, Changes, Document, Head, PageQuery};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::cx::Cx;
use crate::listfilter::Field;
use crate::names::check_bot_name;
use crate::page::{self, LIMIT_MAX};
use crate::resource::model::Model;
use crate::resource::model::bot_user::{BotUser, Name};
use crate::resource::model::kubernetes_operator::KubernetesOperator;
use crate::resource::resource_type::{Draft, Resource, ResourceType};
use crate::resource::{api_key, application_user, ssh_public_key, tunnel_credential};
use crate::stored::{self, Format};
use crate::{Caller, Error, Parameter, Role, console_session, input, service};

pub(crate) static TYPE: ResourceType = ResourceType::of::<BotUser>();

/// Why neither resource has audit events.
pub(crate) const SILENT: Option<&str> = Some("the catalogue has no events for bot users");

/// Objects that belong to an owner and are removed with it.
const OWNED: [&ResourceType; 4] = [
    &application_user::TYPE,
    &api_key::TYPE,
    &ssh_public_key::TYPE,
    &tunnel_credential::TYPE,
];

/// Codes for names that are not allowed.
pub(crate) const VALUE_CODES: &[(&str, Code)] = &[("name", code::BOT_NAME_TOO_LONG)];

/// Code for a name that another bot has.
pub(crate) const TAKEN: Option<Code> = Some(code::BOT_NAME_TAKEN);

/// A new bot.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "BotUserCreate", extend("required" = ["name"]), transform = input::create_schema)]
pub(crate) struct Create {
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
pub(crate) struct Update {
    /// Unique name, at most 255 bytes.
    #[schemars(with = "Option<String>", length(min = 1, max = 255))]
    name: Option<Name>,
    /// Whether the user is active and its keys are valid.
    active: Option<bool>,
}

impl Resource for BotUser {
    const DOC: &'static str = "Bot users: non-human owners of keys.";
    const SILENT: Option<&'static str> = SILENT;
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
            false => console_session::removal_of_owner(cx, head).await?,
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

const SILENT_OPERATORS: AuditEvent = AuditEvent::Suppress {
    reason: "the catalogue has no events for Kubernetes operators",
};

/// Removes the Kubernetes operators of an owner, and its keys and credentials, oldest first.
pub(crate) async fn owned_removal(cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
    let mut owned: Vec<(&ResourceType, Document)> = Vec::new();
    for ty in OWNED {
        let mut before = None;
        loop {
            let query = PageQuery {
                kind: ty.kind.to_owned(),
                account: head.account.clone(),
                before,
                limit: LIMIT_MAX,
                refs_to: Some(head.id.clone()),
            };
            let page = cx.store.page(&query).await?;
            let Some(last) = page.last() else {
                break;
            };
            before = Some(last.head.id.clone());
            owned.extend(page.into_iter().map(|document| (ty, document)));
        }
    }
    // Prefixes differ by kind; the ID bodies after them ascend with time.
    let age = |document: &Document| id::split(&document.head.id).map(|(_, body)| body.to_owned());
    let mut operators = Changes::default();
    for document in cx.store.all(KubernetesOperator::KIND).await? {
        let operator: KubernetesOperator = stored::read(&document)?;
        if document.head.account == head.account && operator.principal_id == head.id {
            operators = operators.and(Changes::remove(document.head, SILENT_OPERATORS));
        }
    }
    owned.sort_by_cached_key(|(_, document)| age(document));
    owned
        .into_iter()
        .try_fold(operators, |changes, (ty, document)| {
            Ok(changes.and(service::removal(cx, ty, document)?))
        })
}

fn check_name(name: Name) -> Result<Name, Refusal> {
    if name.is_empty() {
        return Err(Refusal::of(code::BOT_NAME_EMPTY));
    }
    check_bot_name(&name)?;
    Ok(name)
}
