//! Tunnel credential: authenticates an agent (contract: management API 2.16).
//!
//! Its token has the same format as an API key's: it is shown once and stored as a keyed digest. The
//! management API does not accept it.

pub mod model;

use culvert_base::{Code, Description, Ksuid, Metadata, Secret, code};
use culvert_resources::Error;
use culvert_resources::access::acl::{self, Acl};
use culvert_resources::access::{owner, token};
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::resource::{Draft, Resource, ResourceType, Reveal};
use culvert_resources::stored::Format;
use culvert_store::Head;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::credential::model::TunnelCredential;

/// The row of agents' credentials in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<TunnelCredential>();

/// A new tunnel credential.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "TunnelCredentialCreate", transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Addresses that endpoints may bind. Each rule is `*`, or `bind:` followed by a domain, `*.`
    /// and a domain, `host:port`, `key=value` with `*` allowed on either side, or `*`. Default:
    /// all.
    #[schemars(with = "Vec<String>", extend("maxItems" = acl::RULES_MAX, "items" = {"type": "string", "minLength": 1, "maxLength": acl::RULE_BYTES_MAX}))]
    acl: Acl,
    /// Owner of the credential: ID of a user or bot user, or e-mail address of a user; shown as the ID. Default: the
    /// owner of the caller's API key. Only admins may set another owner.
    owner_id: String,
}

/// Changes to a tunnel credential.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "TunnelCredentialUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Addresses that new endpoints may bind; `[]` allows all.
    #[schemars(with = "Option<Vec<String>>", extend("maxItems" = acl::RULES_MAX, "items" = {"type": "string", "minLength": 1, "maxLength": acl::RULE_BYTES_MAX}))]
    acl: Option<Acl>,
}

impl Resource for TunnelCredential {
    const DOC: &'static str = "Tunnel credentials: credentials for agents.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("owner_id", Shape::Id),
        field("acl", Shape::List),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::CREDENTIAL_DESCRIPTION_TOO_LONG),
        ("metadata", code::CREDENTIAL_METADATA_TOO_LONG),
        ("acl", code::ACL_RULE_INVALID),
    ];
    const EMPTY_UPDATE: Option<Code> = Some(code::CREDENTIAL_UPDATE_EMPTY);
    const UNKNOWN: Option<Code> = Some(code::OWNER_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = false;
    const IS_REMOVED_WITH_OWNER: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        cx.caller.may_make_credentials()?;
        let owner_id = owner::named(cx, &input.owner_id).await?;
        let form = cx.settings.token_form;
        let token = form.mint(token::Kind::Agent, id, cx.entropy);
        let document = Self {
            format: Format,
            owner_id,
            digest: cx.pepper.digest(token.reveal()),
            description: input.description,
            metadata: input.metadata,
            acl: input.acl,
            leak: None,
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
        cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        if input.acl.as_ref().is_some_and(|acl| *acl != self.acl) {
            // Another ACL is another credential.
            cx.caller.may_make_credentials()?;
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        self.acl = input.acl.unwrap_or(self.acl);
        Ok(Draft::of(self))
    }
}
