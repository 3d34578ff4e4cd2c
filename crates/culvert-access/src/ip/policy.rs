//! IP policy: a named set of address rules (contract: management API 2.7).
//!
//! Its rules are separate objects that are removed with it. `culvert_base::ipset` evaluates rules, and
//! `restriction` enforces policies.

use std::borrow::Cow;

use culvert_base::{Code, Description, Ksuid, Metadata, Refusal, code};
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter::{self, Field};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::{input, service};
use culvert_store::{Changes, Head, PageQuery};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::ip::policy_model::IpPolicy;
use crate::ip::restriction_model::IpRestriction;
use crate::ip::{policy_rule, rules};

/// The row of IP policies in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<IpPolicy>();

/// A new IP policy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "IpPolicyCreate", transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// No longer supported; must be absent. Set the action on the rules.
    #[serde(rename = "action")]
    _action: Retired,
}

/// Changes to an IP policy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "IpPolicyUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// No longer supported; must be absent. Set the action on the rules.
    #[serde(rename = "action")]
    _action: Retired,
}

/// A field that accepts no value.
#[derive(Debug, Default)]
struct Retired;

impl<'de> Deserialize<'de> for Retired {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer)?;
        Err(D::Error::custom(
            "it is no longer supported; set the action on each rule",
        ))
    }
}

impl JsonSchema for Retired {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Retired".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "null" })
    }
}

impl Resource for IpPolicy {
    const DOC: &'static str = "IP policies: named sets of IP policy rules.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] =
        &[("action", code::IP_POLICY_ACTION_RETIRED)];
    const EMPTY_UPDATE: Option<Code> = Some(code::IP_POLICY_UPDATE_EMPTY);
    const IN_USE: Option<Code> = Some(code::IP_POLICY_IN_USE);
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        Ok(Draft::of(Self {
            format: Format,
            owner_id: cx.caller.owner_id.clone(),
            description: input.description,
            metadata: input.metadata,
        }))
    }

    async fn may_change(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        rules::may_change(cx, &head.id).await
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

    /// Removes its rules too, oldest first.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        // Check this before reading all rules; the commit checks it again.
        let of_it = PageQuery {
            kind: IpRestriction::KIND.to_owned(),
            account: head.account.clone(),
            before: None,
            limit: 1,
            refs_to: Some(head.id.clone()),
        };
        if !cx.store.page(&of_it).await?.is_empty() {
            return Err(Refusal::of(code::IP_POLICY_IN_USE).into());
        }
        let rules = rules::of_policy(cx.store, &head.account, &head.id).await?;
        rules
            .into_iter()
            .try_fold(Changes::default(), |changes, rule| {
                Ok(changes.and(service::removal(cx, &policy_rule::TYPE, rule)?))
            })
    }
}
