//! Stored form and view of the IP policy rule.

use culvert_base::{Description, Metadata, Prefix, Timestamp};
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Reference, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ip::policy_model::IpPolicy;

/// Name of the unique key.
pub(crate) const PREFIX_KEY: &str = "prefix";

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct IpPolicyRule {
    /// Version of the stored form.
    pub format: Format<1>,
    /// The owner of its IP policy. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// What the rule is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// As sent, in lower case, which is also how it is shown. It has passed [`Prefix::parse`].
    pub cidr: String,
    /// ID of the policy that has the rule.
    pub ip_policy_id: String,
    /// What the rule does with an address in its prefix.
    pub action: Action,
}

/// The effect on addresses in the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The address passes, unless another rule denies it.
    Allow,
    /// The address is refused, whatever other rules say.
    Deny,
}

/// A rule of an IP policy as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "IpPolicyRule")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    pub(crate) cidr: &'a str,
    /// IP policy of this rule.
    pub(crate) ip_policy: Reference<'a>,
    #[schemars(extend("enum" = [Action::Allow.name(), Action::Deny.name()]))]
    pub(crate) action: &'static str,
}

impl Model for IpPolicyRule {
    const NAME: &'static str = "ip_policy_rule";
    const COLLECTION: &'static str = "ip_policy_rules";
    const LIST_FIELD: &'static str = "ip_policy_rules";
    const ID_PREFIX: &'static str = "ipr";
    const RIGHTS: Rights = Rights {
        see: See::All,
        use_by: Use::All,
        change: Change::OwnerUnlessRestricting,
    };
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
            created_at: head.created_at,
            description: &self.description,
            metadata: &self.metadata,
            cidr: &self.cidr,
            ip_policy: Reference::to(base, IpPolicy::COLLECTION, &self.ip_policy_id),
            action: self.action.name(),
        }
    }

    fn links(&self, _head: &Head) -> Links {
        // Normalise the prefix, so that different spellings have one key.
        let prefix = Prefix::parse(&self.cidr).map(|prefix| prefix.to_string());
        let prefix = prefix.unwrap_or_else(|_| self.cidr.clone());
        Links {
            keys: vec![Key::new(
                PREFIX_KEY,
                format!("{} {prefix}", self.ip_policy_id),
            )],
            refs: vec![Ref::new(
                "ip_policy_id",
                &self.ip_policy_id,
                OnDelete::Cascade,
            )],
            ..Links::default()
        }
    }
}

impl Action {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}
