//! Bot user: an owner of keys that is no person (contract: management API 2.20).
//!
//! Service users are the same objects under another name (`service_user`).

use culvert_base::{Bounded, Code, Ksuid, Refusal, Timestamp, code, id};
use culvert_store::{Changes, Document, Head, Key, PageQuery};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Draft, Links, Resource, ResourceType, Uri, api_key, ssh_public_key, tunnel_credential,
};
use crate::base::Base;
use crate::cx::Cx;
use crate::input;
use crate::listfilter::Field;
use crate::page::{self, LIMIT_MAX};
use crate::stored::Format;
use crate::{Caller, Error, Parameter, Role, service};

pub(crate) static TYPE: ResourceType = ResourceType::of::<BotUser>();

/// Prefixes of the ids that name one object: the one that is stored, then the other.
pub(crate) const PREFIXES: &[&str] = &["bot", "service"];

/// Why neither resource has audit events.
pub(crate) const SILENT: Option<&str> = Some("the catalogue has no events for bot users");

/// What belongs to owners and goes with them.
const OWNED: [&ResourceType; 3] = [
    &api_key::TYPE,
    &ssh_public_key::TYPE,
    &tunnel_credential::TYPE,
];

/// Codes for names that are not allowed.
pub(crate) const VALUE_CODES: &[(&str, Code)] = &[("name", code::BOT_NAME_TOO_LONG)];

/// Code for a name that another bot has.
pub(crate) const TAKEN: Option<Code> = Some(code::BOT_NAME_TAKEN);

/// At most 255 bytes.
type Name = Bounded<255>;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct BotUser {
    pub(crate) format: Format<1>,
    pub(crate) name: Name,
    pub(crate) active: bool,
}

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

/// A bot as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BotUser")]
pub(crate) struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    name: &'a str,
    active: bool,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
}

impl Resource for BotUser {
    const NAME: &'static str = "bot_user";
    const COLLECTION: &'static str = "bot_users";
    const LIST_FIELD: &'static str = "bot_users";
    const ID_PREFIX: &'static str = "bot";
    const DOC: &'static str = "Bot users: non-human owners of keys.";
    const PREFIXES: &'static [&'static str] = PREFIXES;
    const SILENT: Option<&'static str> = SILENT;
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const VALUE_CODES: &'static [(&'static str, Code)] = VALUE_CODES;
    const TAKEN: Option<Code> = TAKEN;
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;
    type View<'a> = View<'a>;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        Ok(Draft::of(Self {
            format: Format,
            name: not_empty(input.name)?,
            active: input.active.unwrap_or(true),
        }))
    }

    async fn update(
        mut self,
        _cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        if let Some(name) = input.name {
            self.name = not_empty(name)?;
        }
        self.active = input.active.unwrap_or(self.active);
        Ok(Draft::of(self))
    }

    /// What belongs to it goes with it, oldest first.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
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
        // Prefixes tell the kinds apart; what is behind them ascends with time.
        let age =
            |document: &Document| id::split(&document.head.id).map(|(_, body)| body.to_owned());
        owned.sort_by_cached_key(|(_, document)| age(document));
        owned
            .into_iter()
            .try_fold(Changes::default(), |changes, (ty, document)| {
                Ok(changes.and(service::removal(cx, ty, document)?))
            })
    }

    fn permit(caller: &Caller) -> Result<(), Refusal> {
        match caller.role {
            Role::Admin => Ok(()),
            Role::Developer | Role::ReadOnly => Err(Refusal::of(code::BOT_CHANGE_NOT_ADMIN)),
        }
    }

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            name: &self.name,
            active: self.active,
            created_at: head.created_at,
        }
    }

    fn links(&self, head: &Head) -> Links {
        // Names are unique within an account; keys are unique in the installation.
        let name = format!("{} {}", head.account, &*self.name);
        Links {
            keys: vec![Key::new("name", name)],
            ..Links::default()
        }
    }
}

fn not_empty(name: Name) -> Result<Name, Refusal> {
    if name.is_empty() {
        return Err(Refusal::of(code::BOT_NAME_EMPTY));
    }
    Ok(name)
}
