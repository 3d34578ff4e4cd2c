//! API key: what a caller of the management API shows to be known (contract: management API 2.1).
//!
//! The token exists in the answer to the creation and nowhere else; what is stored of it is a keyed
//! digest.

use culvert_base::{Code, Description, Ksuid, Metadata, Refusal, Secret, Timestamp, code};
use culvert_store::{Changes, Head, OnDelete, PageQuery, Ref, Told};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Draft, Links, Resource, ResourceType, Reveal, Uri};
use crate::base::Base;
use crate::cx::Cx;
use crate::input;
use crate::listfilter::{self, Field, Shape, field};
use crate::stored::{self, Format};
use crate::tenant::{Account, User};
use crate::{Error, Parameter, Role, owner, token};

pub(crate) static TYPE: ResourceType = ResourceType::of::<ApiKey>();

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ApiKey {
    pub(crate) format: Format<1>,
    pub(crate) owner_id: String,
    /// `<pepper id>.<hex>`.
    pub(crate) digest: String,
    pub(crate) description: Description,
    pub(crate) metadata: Metadata,
}

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

/// An API key as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKey")]
pub(crate) struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    description: &'a str,
    metadata: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    /// Owner of the key.
    owner_id: &'a str,
    /// The token, returned only in the response to the creation; otherwise `null`.
    token: Option<&'a str>,
}

impl Resource for ApiKey {
    const NAME: &'static str = "api_key";
    const COLLECTION: &'static str = "api_keys";
    const LIST_FIELD: &'static str = "keys";
    const ID_PREFIX: &'static str = "ak";
    const DOC: &'static str = "API keys: credentials for this API.";
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
    const IS_PRIVATE: bool = true;
    const DELETE_PARAMETERS: &'static [Parameter] = &[FORCE];
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Create;
    type Update = Update;
    type View<'a> = View<'a>;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let owner_id = owner::named(cx, &input.owner_id).await?;
        let token = token::mint(id, cx.entropy);
        let document = Self {
            format: Format,
            owner_id,
            digest: cx.pepper.digest(token.reveal()),
            description: input.description,
            metadata: input.metadata,
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

    /// The last key of an admin is deleted only where the query says `force=true`: nothing but the
    /// command line makes another.
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
        // Of two keys that are deleted at the same moment, one deletion is decided again.
        let why = "the account stays as it is; its keys are deleted one after the other";
        Ok(Changes::replace(account, Told::Nothing { why }))
    }

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            description: &self.description,
            metadata: &self.metadata,
            created_at: head.created_at,
            owner_id: &self.owner_id,
            token: None,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            refs: vec![Ref::new("owner_id", &self.owner_id, OnDelete::Cascade)],
            ..Links::default()
        }
    }
}

const FORCE: Parameter = Parameter {
    name: "force",
    doc: "`true` deletes the key even if it is the last key of an admin.",
    repeatable: false,
    within: None,
};

/// Whether the query of a delete has `force=true`. Codes 215, 231 and 232.
fn forced(query: &[(String, String)]) -> Result<bool, Refusal> {
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
