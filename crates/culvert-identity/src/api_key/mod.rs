//! API key: authenticates a caller of the management API (contract: management API 2.1).
//!
//! Only the response to the creation contains the token; the store keeps a keyed digest.

mod included;
pub mod key_use;
pub mod model;
pub mod operations;
pub mod overlap;
mod preview;
mod restrictions;
pub mod rules;

use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Secret, code};
use culvert_resources::access::key_restrictions::{KeyRestrictions, NETWORKS_MAX};
use culvert_resources::access::right::Scope;
use culvert_resources::access::{owner, token};
use culvert_resources::audit::trace::Performed;
use culvert_resources::cx::Cx;
use culvert_resources::input::force::{DRY_RUN, FORCED};
use culvert_resources::list::listfilter;
use culvert_resources::list::listfilter::{Field, Shape, field};
use culvert_resources::list::page::{self, Fields, INCLUDE, Part};
use culvert_resources::operation::SchemaOf;
use culvert_resources::resource::{Draft, Resource, ResourceType, Reveal};
use culvert_resources::stored::Format;
use culvert_resources::{Error, Parameter, audit, input};
use culvert_store::{Changes, Document, Head};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use crate::api_key::model::ApiKey;
use crate::api_key::preview::Preview;
use crate::api_key::restrictions::{API_KEY_RESTRICTED, Wanted, shown_restrictions};
use crate::lockout::{Taken, leave_a_way_in};

/// The row of API keys in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<ApiKey>();

/// A new API key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiKeyCreate", transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Owner of the key: ID of a user or bot user, or e-mail address of a user; shown as the ID. Default: the owner
    /// of the caller's API key. Only admins may set another owner.
    owner_id: String,
    /// The highest role of the key: `read_only`, `member` or `admin`. Default: that of the caller's key, and the role of
    /// its owner if it has none.
    #[schemars(extend("enum" = ["", "read_only", "member", "admin"]))]
    role: String,
    /// What the key may do. `x.write` includes `x.read`. Default: the scopes of the caller's key.
    #[schemars(with = "Vec<Scope>")]
    scopes: Vec<String>,
    /// Networks that the key may be used from, such as `192.0.2.0/24`; shown in their shortest form. Default: those of the caller's key.
    #[schemars(extend("maxItems" = NETWORKS_MAX))]
    networks: Vec<String>,
    /// When the key stops working: an RFC 3339 time, a date, which stands for its first moment in UTC, or the time from
    /// now, such as `90d`. Default: the end of the caller's key, or never. Shown as a time in UTC.
    expires_at: String,
}

impl Create {
    /// The restrictions that the body names. An empty value names none.
    fn wanted(&self) -> Wanted<'_> {
        fn given(text: &str) -> Option<&str> {
            (!text.is_empty()).then_some(text)
        }
        Wanted {
            role: given(&self.role),
            scopes: (!self.scopes.is_empty()).then_some(&*self.scopes),
            expires_at: given(&self.expires_at),
            networks: (!self.networks.is_empty()).then_some(&*self.networks),
        }
    }
}

/// Changes to an API key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiKeyUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

impl Resource for ApiKey {
    const DOC: &'static str = "API keys: credentials for this API. A new key has the restrictions of the key that \
                               creates it, unless the body has narrower ones.";
    const NOT_IN_EVENTS: &'static [&'static str] = &[
        "owner_id",
        "owner_name",
        "role",
        "scopes",
        "networks",
        "expires_at",
        "previous_token_expires_at",
        "leaked_at",
        "rotated_at",
        "maximum_age_at",
        "broken_rules",
        "last_used_at",
        "last_used_from",
        "token_last_used_at",
        "token_last_used_from",
        "previous_token_last_used_at",
        "previous_token_last_used_from",
    ];
    const INCLUDED: &'static [Part] = included::PARTS;
    const PARAMETERS: &'static [Parameter] = page::INCLUDED;
    const GET_PARAMETERS: &'static [Parameter] = &[INCLUDE];
    const UPDATE_PARAMETERS: &'static [Parameter] = &[INCLUDE];
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("owner_id", Shape::Id),
        field("owner_name", Shape::Apart),
        field("role", Shape::Apart),
        field("scopes", Shape::List),
        field("networks", Shape::List),
        field("expires_at", Shape::Time),
        field("previous_token_expires_at", Shape::Time),
        field("leaked_at", Shape::Time),
        field("rotated_at", Shape::Time),
        field("maximum_age_at", Shape::Time),
        field("broken_rules", Shape::List),
        field("last_used_at", Shape::Time),
        field("last_used_from", Shape::Apart),
        field("token_last_used_at", Shape::Time),
        field("token_last_used_from", Shape::Apart),
        field("previous_token_last_used_at", Shape::Time),
        field("previous_token_last_used_from", Shape::Apart),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::CREDENTIAL_DESCRIPTION_TOO_LONG),
        ("metadata", code::CREDENTIAL_METADATA_TOO_LONG),
    ];
    const EMPTY_UPDATE: Option<Code> = Some(code::CREDENTIAL_UPDATE_EMPTY);
    const UNKNOWN: Option<Code> = Some(code::OWNER_UNKNOWN);
    const DELETE_PARAMETERS: &'static [Parameter] = FORCED;
    const PREVIEW: Option<SchemaOf> = Some(SchemaGenerator::subschema_for::<Preview<'static>>);
    const CREATE_NEEDS_BODY: bool = false;
    const CREATE_PARAMETERS: &'static [Parameter] = &[DRY_RUN, INCLUDE];
    const IS_REMOVED_WITH_OWNER: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let owner_id = owner::named(cx, &input.owner_id).await?;
        // A new key can do no more than the one that creates it.
        let own = cx.caller.restrictions();
        let restrictions = input.wanted().applied(&own, cx.clock.now())?;
        cx.caller.may_give(&restrictions)?;
        let form = cx.settings.token_form;
        let token = form.mint(token::Kind::Key, id, cx.entropy);
        let mut document = Self {
            format: Format,
            owner_id,
            digest: cx.pepper.digest(token.reveal()),
            description: input.description,
            metadata: input.metadata,
            restrictions,
            rotated_at: None,
            previous: None,
            leak: None,
            noticed: Vec::new(),
        };
        let reveal = Reveal {
            pointer: "/token".to_owned(),
            json: Secret::new(format!("\"{}\"", token.reveal())),
        };
        let key_id = TYPE.stored_id_of(id);
        let checked = rules::check(cx, &key_id, id.at(), &mut document).await?;
        let also = restricted(cx, id, &document.restrictions)?.and(checked);
        Ok(Draft {
            document,
            reveal: Some(reveal),
            also,
        })
    }

    async fn included(cx: &Cx<'_>, documents: &[Document]) -> Result<Vec<Fields>, Fault> {
        included::read(cx, documents).await
    }

    async fn preview(&self, cx: &Cx<'_>) -> Result<String, Error> {
        preview::of(self, cx).await
    }

    fn changed_secrets(&self, after: &Self) -> Vec<&'static str> {
        Vec::from_iter((self.digest != after.digest).then_some("token"))
    }

    async fn update(
        mut self,
        _cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft::of(self))
    }

    async fn check_removal(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        _query: &[(String, String)],
    ) -> Result<Changes, Error> {
        leave_a_way_in(cx, &head.account, Taken::Key(&head.id)).await
    }
}

/// The event of a new key that has restrictions.
fn restricted(cx: &Cx<'_>, id: Ksuid, restrictions: &KeyRestrictions) -> Result<Changes, Fault> {
    if restrictions.is_none() {
        return Ok(Changes::default());
    }
    let id = TYPE.stored_id_of(id);
    let performed = Performed {
        after: Some(shown_restrictions(restrictions)?),
        ..Performed::of(&id, "api_keys_create")
    };
    let event = audit::operation(cx, API_KEY_RESTRICTED.name, &performed)?;
    Ok(Changes::event(event))
}
