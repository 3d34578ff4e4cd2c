//! Stored form and view of the API key.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::key_restrictions::KeyRestrictions;
use culvert_resources::access::key_rules::KeyRule;
use culvert_resources::access::right::Scope;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, OnDelete, Ref};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::leak::found::Leak;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct ApiKey {
    /// Version of the stored form.
    pub format: Format<1>,
    /// ID of the user or bot that it belongs to.
    pub owner_id: String,
    /// `<pepper id>.<hex>`.
    pub digest: String,
    /// What the key is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// What it may not do although its owner may.
    #[serde(default, skip_serializing_if = "KeyRestrictions::is_none")]
    pub restrictions: KeyRestrictions,
    /// When it was rotated last. Rotations of earlier versions did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<Timestamp>,
    /// The token before the last rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousToken>,
    /// That its token was reported as leaked, until a rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leak: Option<Leak>,
    /// The rules of the account that it breaks, as far as events say so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noticed: Vec<KeyRule>,
}

impl ApiKey {
    /// When the key with this head got its token.
    pub fn issued_at(&self, head: &Head) -> Timestamp {
        self.rotated_at.unwrap_or(head.created_at)
    }

    /// The token before the last rotation, if it still works.
    pub fn valid_previous(&self, now: Timestamp) -> Option<&PreviousToken> {
        self.previous.as_ref().filter(|one| now < one.until)
    }

    /// Whether an admin's key of this form is a way in.
    pub fn is_way_in(&self) -> bool {
        self.restrictions.is_way_in() && !self.leak.as_ref().is_some_and(|leak| leak.is_revoked)
    }
}

/// A token that was replaced and still works for a while.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PreviousToken {
    /// `<pepper id>.<hex>`.
    pub digest: String,
    /// When the key had got it. Rotations of earlier versions did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_at: Option<Timestamp>,
    /// When it stops working.
    pub until: Timestamp,
}

/// An API key as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKey", transform = add_included)]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    /// Owner of the key.
    pub(crate) owner_id: &'a str,
    /// The token, returned only in the response to the creation; otherwise `null`.
    pub(crate) token: Option<&'a str>,
}

/// Adds the fields that a view has only with `include`. `included` reads them.
fn add_included(schema: &mut Schema) {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|settings| settings.inline_subschemas = true);
    let generator = settings.into_generator();
    let mut more = generator.into_root_schema_for::<Included>();
    let more = more.get_mut("properties").map(Value::take);
    if let (Some(Value::Object(properties)), Some(Value::Object(more))) =
        (schema.get_mut("properties"), more)
    {
        properties.extend(more);
    }
}

/// What an API key has beside that with `include`.
#[derive(Debug, Serialize, JsonSchema)]
struct Included {
    /// The owner's e-mail address, or the bot's name. Only with `include=restrictions`, as the fields up to `broken_rules`.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner_name: Option<String>,
    /// The highest role of the key; empty for the role of its owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["", "read_only", "member", "admin"]))]
    role: Option<String>,
    /// What the key may do; empty for everything that its role may do.
    #[serde(skip_serializing_if = "Option::is_none")]
    scopes: Option<Vec<Scope>>,
    /// Networks that the key may be used from; empty for anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    networks: Option<Vec<String>>,
    /// When the key stops working; null for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    expires_at: Option<Timestamp>,
    /// Until when the token before the last rotation works; null if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    previous_token_expires_at: Option<Timestamp>,
    /// When its token was reported as leaked; null if it was not since the last rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    leaked_at: Option<Timestamp>,
    /// When the key was rotated last; null if it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    rotated_at: Option<Timestamp>,
    /// When the token reaches the maximum age of the account; null without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    maximum_age_at: Option<Timestamp>,
    /// The rules of the account that the key breaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    broken_rules: Option<Vec<KeyRule>>,
    /// When the key was used last, to the minute; null if it never was. Only with `include=usage`, as the fields after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    last_used_at: Option<Timestamp>,
    /// Address of the last use; empty if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_from: Option<String>,
    /// When the token of the key was used last, since the key got it; null if it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    token_last_used_at: Option<Timestamp>,
    /// Address of that use; empty if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_last_used_from: Option<String>,
    /// When the token before the last rotation was used last, while it works; null otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    previous_token_last_used_at: Option<Timestamp>,
    /// Address of that use; empty if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_token_last_used_from: Option<String>,
}

impl Model for ApiKey {
    const NAME: &'static str = "api_key";
    const COLLECTION: &'static str = "api_keys";
    const LIST_FIELD: &'static str = "keys";
    const ID_PREFIX: &'static str = "ak";
    const REFERS_TO_OWNER: bool = true;
    const RIGHTS: Rights = Rights::PRIVATE;
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

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
