//! IP restriction: the addresses from which one area of an account can be reached (contract: management API
//! 2.9).
//!
//! `restriction` enforces them.

use std::collections::HashSet;

use culvert_base::{Code, Description, Ksuid, Metadata, Refusal, code};
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::input::force::FORCED;
use culvert_resources::list::listfilter::{self, Field};
use culvert_resources::list::page::reference;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::{Caller, Error, Parameter, Role};
use culvert_store::Head;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::ip::lockout::{AddressChange, keep_caller_in};
use crate::ip::policy;
use crate::ip::policy_model::IpPolicy;
use crate::ip::restriction_model::{IpRestriction, RestrictionScope};

/// The row of IP restrictions in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<IpRestriction>();

/// A new IP restriction.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "IpRestrictionCreate", extend("required" = ["type", "ip_policy_ids"]), transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Whether other addresses are blocked. By default they are only logged.
    enforced: Option<bool>,
    /// Type of the restriction: `dashboard`, `api`, `agent` or `endpoints`; at most one per type.
    /// Required.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = RestrictionScope::ALL.map(RestrictionScope::name)))]
    place: String,
    /// IDs of the IP policies that define the allowed addresses. Required.
    #[schemars(extend("items" = {"type": "string", "pattern": input::id_pattern(IpPolicy::PREFIXES)}), extend("minItems" = 1))]
    ip_policy_ids: Vec<String>,
}

/// Changes to an IP restriction.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "IpRestrictionUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Whether other addresses are blocked; otherwise they are only logged.
    enforced: Option<bool>,
    /// IDs of the IP policies that define the allowed addresses; an empty list changes nothing.
    #[schemars(extend("items" = {"type": "string", "pattern": input::id_pattern(IpPolicy::PREFIXES)}))]
    ip_policy_ids: Option<Vec<String>>,
}

impl Resource for IpRestriction {
    const DOC: &'static str = "IP restrictions: source addresses that may reach the API, the agent ingress and endpoints.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
    ]);
    const TAKEN: Option<Code> = Some(code::RESTRICTION_TYPE_TAKEN);
    const UNKNOWN: Option<Code> = Some(code::RESTRICTION_POLICY_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = true;
    const WRITERS: Role = Role::Admin;
    const CREATE_PARAMETERS: &'static [Parameter] = FORCED;
    const UPDATE_PARAMETERS: &'static [Parameter] = FORCED;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let named = |place: &RestrictionScope| place.name() == input.place;
        let place = RestrictionScope::ALL.into_iter().find(named);
        let place = place.ok_or_else(|| Refusal::of(code::RESTRICTION_TYPE_UNKNOWN))?;
        if input.ip_policy_ids.is_empty() {
            return Err(Refusal::of(code::RESTRICTION_POLICY_MISSING).into());
        }
        let restriction = Self {
            format: Format,
            description: input.description,
            metadata: input.metadata,
            enforced: input.enforced.unwrap_or(false),
            place,
            ip_policy_ids: check_policies(cx, input.ip_policy_ids).await?,
        };
        Ok(Draft {
            also: keep_caller_in(cx, AddressChange::Restriction(&restriction)).await?,
            ..Draft::of(restriction)
        })
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        // One client sends an empty list for a field that its caller did not set.
        if let Some(ids) = input.ip_policy_ids.filter(|ids| !ids.is_empty()) {
            self.ip_policy_ids = check_policies(cx, ids).await?;
        }
        self.enforced = input.enforced.unwrap_or(self.enforced);
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft {
            also: keep_caller_in(cx, AddressChange::Restriction(&self)).await?,
            ..Draft::of(self)
        })
    }

    /// Admins only: a restriction that allows no address blocks every caller, including admins.
    fn permit(caller: &Caller) -> Result<(), Refusal> {
        caller.must_be_admin("Only admins may create, change and delete IP restrictions.")
    }
}

/// Removes duplicates; refuses IDs that are not IP policies of the caller's account.
async fn check_policies(cx: &Cx<'_>, given: Vec<String>) -> Result<Vec<String>, Error> {
    let mut seen = HashSet::new();
    let mut ids = Vec::new();
    for (index, id) in given.into_iter().enumerate() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let ty = &policy::TYPE;
        reference(&format!("ip_policy_ids[{index}]"), &id, ty.prefixes)?;
        if cx.own(ty.kind, &id).await?.is_none() {
            let text = format!("The IP policy `{id}` does not exist.");
            return Err(Refusal::new(code::RESTRICTION_POLICY_UNKNOWN, text).into());
        }
        ids.push(id);
    }
    Ok(ids)
}
