//! API key: what a caller of the management API shows to be known (contract: management API 2.1).
//!
//! The token exists in the answer to the creation and nowhere else; what is stored of it is a keyed
//! digest.

use culvert_base::{Code, Description, Ksuid, Metadata, Secret, Timestamp};
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Draft, Links, Resource, ResourceType, Reveal, Uri};
use crate::base::Base;
use crate::cx::Cx;
use crate::input;
use crate::listfilter::{self, Field, Shape, field};
use crate::stored::Format;
use crate::{Error, owner, token};

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
    /// What the key is for. At most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Anything to be kept beside it. At most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Whose key it is: id of a user or bot, or a user's e-mail address. The caller's owner by
    /// default; only admins may name another.
    owner_id: String,
}

/// Changes to an API key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiKeyUpdate", transform = input::update_schema)]
pub(crate) struct Update {
    /// What the key is for. At most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Anything to be kept beside it. At most 4096 bytes.
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
    /// Whose key it is.
    owner_id: &'a str,
    /// The secret text, shown once in the answer to the creation; `null` everywhere else.
    token: Option<&'a str>,
}

impl Resource for ApiKey {
    const NAME: &'static str = "api_key";
    const COLLECTION: &'static str = "api_keys";
    const LIST_FIELD: &'static str = "keys";
    const ID_PREFIX: &'static str = "ak";
    const DOC: &'static str = "API keys: what callers of this API are known by.";
    const NOT_IN_EVENTS: &'static [&'static str] = &["owner_id"];
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("owner_id", Shape::Id),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", Code::new(604)),
        ("metadata", Code::new(605)),
    ];
    const EMPTY_UPDATE: Option<Code> = Some(Code::new(606));
    const UNKNOWN: Option<Code> = Some(Code::new(634));
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
