//! Stored form and view of the IP restriction.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Reference, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ip::policy_model::IpPolicy;

/// Key of the one restriction of a type.
pub const KEY: &str = "type";

/// The value of the key: an account has one restriction of each type, but keys are unique in the installation.
pub(crate) fn unique_place(account: &str, place: RestrictionScope) -> String {
    format!("{account} {}", place.name())
}

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct IpRestriction {
    /// Version of the stored form.
    pub format: Format<1>,
    /// What the restriction is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// Whether addresses that are not allowed are refused, or only logged.
    pub enforced: bool,
    /// Which traffic it restricts.
    pub place: RestrictionScope,
    pub(crate) ip_policy_ids: Vec<String>,
}

/// What a restriction protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestrictionScope {
    /// Nothing, since there is no dashboard.
    Dashboard,
    /// Calls of the management API.
    Api,
    /// Sessions of agents.
    Agent,
    /// Connections to public endpoints.
    Endpoints,
}

/// An IP restriction as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "IpRestriction")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    pub(crate) enforced: bool,
    #[serde(rename = "type")]
    #[schemars(extend("enum" = RestrictionScope::ALL.map(RestrictionScope::name)))]
    pub(crate) place: &'static str,
    pub(crate) ip_policies: Vec<Reference<'a>>,
}

impl Model for IpRestriction {
    const NAME: &'static str = "ip_restriction";
    const COLLECTION: &'static str = "ip_restrictions";
    const LIST_FIELD: &'static str = "ip_restrictions";
    const ID_PREFIX: &'static str = "ipx";
    const RIGHTS: Rights = Rights::ADMINS;
    const OWNED_BY: Option<&'static str> = None;
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            description: &self.description,
            metadata: &self.metadata,
            enforced: self.enforced,
            place: self.place.name(),
            ip_policies: self
                .ip_policy_ids
                .iter()
                .map(|id| Reference::to(base, IpPolicy::COLLECTION, id))
                .collect(),
        }
    }

    fn links(&self, head: &Head) -> Links {
        let place = unique_place(&head.account, self.place);
        let refs = self
            .ip_policy_ids
            .iter()
            .map(|id| Ref::new("ip_policy_ids", id, OnDelete::Block));
        Links {
            keys: vec![Key::new(KEY, place)],
            refs: refs.collect(),
            ..Links::default()
        }
    }
}

impl RestrictionScope {
    /// All places, in the order of the reference.
    pub const ALL: [Self; 4] = [Self::Dashboard, Self::Api, Self::Agent, Self::Endpoints];

    /// As in the API: `agent`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dashboard => "dashboard",
            Self::Api => "api",
            Self::Agent => "agent",
            Self::Endpoints => "endpoints",
        }
    }
}
