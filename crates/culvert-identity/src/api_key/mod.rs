//! API key: authenticates a caller of the management API (contract: management API 2.1).
//!
//! Only the response to the creation contains the token; the store keeps a keyed digest.

pub mod key_use;
pub mod key_uses;
pub mod model;
pub mod operations;

use culvert_base::{Code, Description, Ksuid, Metadata, Secret, code};
use culvert_resources::access::{owner, token};
use culvert_resources::cx::Cx;
use culvert_resources::input::force::FORCED;
use culvert_resources::list::listfilter;
use culvert_resources::list::listfilter::{Field, Shape, field};
use culvert_resources::resource::{Draft, Resource, ResourceType, Reveal};
use culvert_resources::stored::Format;
use culvert_resources::{Error, Parameter, input};
use culvert_store::{Changes, Head};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::api_key::model::ApiKey;
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
    /// Owner of the key: ID of a user or bot user, or e-mail address of a user. Default: the owner
    /// of the caller's API key. Only admins may set another owner.
    owner_id: String,
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
    const DELETE_PARAMETERS: &'static [Parameter] = FORCED;
    const CREATE_NEEDS_BODY: bool = false;
    const IS_REMOVED_WITH_OWNER: bool = true;

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
