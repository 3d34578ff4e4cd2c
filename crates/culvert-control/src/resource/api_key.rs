//! API key: authenticates a caller of the management API (contract: management API 2.1).
//!
//! Only the response to the creation contains the token; the store keeps a keyed digest.

use culvert_base::{Code, Description, Ksuid, Metadata, Refusal, Secret, code};
use culvert_store::{AuditEvent, Changes, Head, PageQuery};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::cx::Cx;
use crate::key_operations;
use crate::listfilter::{self, Field, Shape, field};
use crate::resource::model::Model;
use crate::resource::model::api_key::ApiKey;
use crate::resource::model::user::User;
use crate::resource::resource_type::{Draft, Extra, Resource, ResourceType, Reveal};
use crate::stored::{self, Format};
use crate::tenant::Account;
use crate::{Error, Parameter, Role, input, owner, token};

pub(crate) static TYPE: ResourceType = ResourceType::of::<ApiKey>();

/// A new API key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiKeyCreate", transform = input::create_schema)]
pub(crate) struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Owner of the key: ID of a user or bot user, or e-mail address of a user. Default: the owner
    /// of the caller's API key. Only admins may set another owner.
    owner_id: String,
}

/// Changes to an API key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiKeyUpdate", transform = input::update_schema)]
pub(crate) struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

impl Resource for ApiKey {
    const DOC: &'static str = "API keys: credentials for this API. A new key has the restrictions of the key that \
                               creates it.";
    const NOT_IN_EVENTS: &'static [&'static str] = &["owner_id"];
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("owner_id", Shape::Id),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::CREDENTIAL_DESCRIPTION_TOO_LONG),
        ("metadata", code::CREDENTIAL_METADATA_TOO_LONG),
    ];
    const EMPTY_UPDATE: Option<Code> = Some(code::CREDENTIAL_UPDATE_EMPTY);
    const UNKNOWN: Option<Code> = Some(code::OWNER_UNKNOWN);
    const DELETE_PARAMETERS: &'static [Parameter] = &[FORCE];
    const CREATE_NEEDS_BODY: bool = false;
    const OPERATIONS: &'static [Extra] = &key_operations::OPERATIONS;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let owner_id = owner::named(cx, &input.owner_id).await?;
        let token = token::mint(id, cx.entropy);
        let document = Self {
            format: Format,
            owner_id,
            digest: cx.pepper.digest(token.reveal()),
            description: input.description,
            metadata: input.metadata,
            // A new key can do no more than the one that creates it.
            restrictions: cx.caller.restrictions(),
            previous: None,
        };
        let reveal = Reveal {
            pointer: "/token".to_owned(),
            json: Secret::new(format!("\"{}\"", token.reveal())),
        };
        Ok(Draft {
            reveal: Some(reveal),
            ..Draft::of(document)
        })
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

    /// Refuses to delete the last key of an admin unless the query has `force=true`: afterwards only the
    /// command line can create another.
    async fn check_removal(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        query: &[(String, String)],
    ) -> Result<Changes, Error> {
        let is_forced = forced(query)?;
        let Some(account) = cx.store.get(Account::KIND, &head.account).await? else {
            return Ok(Changes::default());
        };
        let mut admins = Vec::new();
        for document in cx.store.all(User::KIND).await? {
            let user: User = stored::read(&document)?;
            let is_admin = user.active && user.role == Role::Admin;
            if is_admin && document.head.account == head.account {
                admins.push(document.head);
            }
        }
        if !admins.iter().any(|admin| admin.id == self.owner_id) {
            return Ok(Changes::default());
        }
        let mut has_other = false;
        for admin in &admins {
            let query = PageQuery {
                kind: Self::KIND.to_owned(),
                account: head.account.clone(),
                before: None,
                limit: 2,
                refs_to: Some(admin.id.clone()),
            };
            let keys = cx.store.page(&query).await?;
            has_other |= keys.iter().any(|key| key.head.id != head.id);
        }
        if !has_other && !is_forced {
            let why = "This is the last API key of an admin. To delete it, send `force=true` in \
                       the query; after that, only `culvert admin create-key` on the server can \
                       create another.";
            return Err(Refusal::new(code::NOT_ADMIN, why).into());
        }
        // Of two concurrent deletions of keys, one is decided again.
        let why = "the account stays as it is; its keys are deleted one after the other";
        Ok(Changes::replace(
            account,
            AuditEvent::Suppress { reason: why },
        ))
    }
}

pub(crate) const FORCE: Parameter = Parameter {
    name: "force",
    doc: "`true` deletes the key even if it is the last key of an admin.",
    repeatable: false,
    within: None,
};

/// Parses `force=true` in the query of a delete. Codes 215, 231 and 232.
pub(crate) fn forced(query: &[(String, String)]) -> Result<bool, Refusal> {
    let wrong = |code, why: &'static str| Err(Refusal::new(code, why));
    match query {
        [] => Ok(false),
        [(name, value)] if name == FORCE.name => match value.as_str() {
            "true" => Ok(true),
            "false" | "" => Ok(false),
            _ => wrong(
                code::BODY_FIELD_INVALID,
                "`force` must be `true` or `false`.",
            ),
        },
        [(name, _), ..] if name != FORCE.name => wrong(
            code::QUERY_PARAMETER_UNKNOWN,
            "The only query parameter of this operation is `force`.",
        ),
        _ => wrong(code::QUERY_PARAMETER_REPEATED, "`force` is repeated."),
    }
}
