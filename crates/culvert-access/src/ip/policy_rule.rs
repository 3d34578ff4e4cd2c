//! IP policy rule: a prefix whose addresses an IP policy allows or denies (contract: management API
//! 2.8).

use culvert_base::ipset::NotAPrefix;
use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Prefix, Refusal, Verdict, code};
use culvert_resources::cx::Cx;
use culvert_resources::input::force::FORCED;
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::{self, Format};
use culvert_resources::{Error, Parameter};
use culvert_resources::{access, input};
use culvert_store::{Changes, Document, Head, PageQuery};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::ip::lockout::{AddressChange, keep_caller_in};
use crate::ip::policy_model::IpPolicy;
use crate::ip::policy_rule_model::{Action, IpPolicyRule};
use crate::ip::restriction_model::{IpRestriction, RestrictionScope};
use crate::ip::{policy, rules};

/// The row of the rules of IP policies in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<IpPolicyRule>();
/// Limit of rules of one policy, which are removed with it in one commit. Concurrent creations may exceed it
/// by their number.
pub const RULES_MAX: usize = 5000;

/// A new rule of an IP policy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "IpPolicyRuleCreate", extend("required" = ["cidr", "ip_policy_id", "action"]), transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// An IPv4 or IPv6 prefix, such as `192.0.2.0/24`; unique within the policy. Shown in lower case. Required.
    #[schemars(length(min = 1), extend("pattern" = input::patterns::NETWORK))]
    cidr: String,
    /// ID of the IP policy of this rule. Required.
    #[schemars(extend("pattern" = input::id_pattern(IpPolicy::PREFIXES)))]
    ip_policy_id: String,
    /// `allow` or `deny`; deny rules take precedence. Required.
    #[schemars(extend("enum" = [Action::Allow.name(), Action::Deny.name()]))]
    action: String,
}

/// Changes to a rule of an IP policy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "IpPolicyRuleUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// An IPv4 or IPv6 prefix; unique within the policy. Shown in lower case.
    #[schemars(length(min = 1), extend("pattern" = input::patterns::NETWORK))]
    cidr: Option<String>,
}

impl Resource for IpPolicyRule {
    const DOC: &'static str = "IP policy rules: address prefixes that an IP policy allows or \
        denies, at most 5000 per policy.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("ip_policy", Shape::Link),
        field("cidr", Shape::Text),
        field("action", Shape::Text),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] =
        &[("description", code::IP_RULE_DESCRIPTION_TOO_LONG)];
    const EMPTY_UPDATE: Option<Code> = Some(code::IP_RULE_UPDATE_EMPTY);
    const TAKEN: Option<Code> = Some(code::IP_RULE_CIDR_REPEATED);
    const UNKNOWN: Option<Code> = Some(code::IP_RULE_POLICY_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = true;
    const CREATE_PARAMETERS: &'static [Parameter] = FORCED;
    const UPDATE_PARAMETERS: &'static [Parameter] = FORCED;
    const DELETE_PARAMETERS: &'static [Parameter] = FORCED;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let cidr = check_cidr(&input.cidr)?;
        let policy = check_policy(cx, input.ip_policy_id).await?;
        let action = check_action(&input.action)?;
        // A rule changes what its policy allows.
        let also = access::may_change(cx, &policy::TYPE, &policy).await?;
        let owner_id = policy::TYPE.owner_of(&policy)?.unwrap_or_default();
        let ip_policy_id = policy.head.id;
        check_room(cx, &ip_policy_id).await?;
        let after = AddressChange::Rule {
            policy: &ip_policy_id,
            id: None,
            after: Some((action.verdict(), parse(&cidr)?)),
        };
        let also = also.and(keep_caller_in(cx, after).await?);
        Ok(Draft {
            also,
            ..Draft::of(Self {
                format: Format,
                owner_id,
                description: input.description,
                metadata: input.metadata,
                cidr,
                ip_policy_id,
                action,
            })
        })
    }

    async fn may_change(&self, cx: &Cx<'_>, _head: &Head) -> Result<Changes, Error> {
        rules::may_change(cx, &self.ip_policy_id).await
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        if let Some(cidr) = input.cidr {
            self.cidr = check_cidr(&cidr)?;
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        let after = AddressChange::Rule {
            policy: &self.ip_policy_id,
            id: Some(&head.id),
            after: Some(self.compile(head)?),
        };
        Ok(Draft {
            also: keep_caller_in(cx, after).await?,
            ..Draft::of(self)
        })
    }

    /// Refuses to remove the last rule of a policy that a dashboard restriction uses.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        let of_policy = |kind: &str, limit| PageQuery {
            kind: kind.to_owned(),
            account: head.account.clone(),
            before: None,
            limit,
            refs_to: Some(self.ip_policy_id.clone()),
        };
        let rules = cx.store.page(&of_policy(IpPolicyRule::KIND, 2)).await?;
        if rules.len() < 2 {
            // An account has at most one restriction of each type.
            let limit = u32::try_from(RestrictionScope::ALL.len()).unwrap_or(u32::MAX);
            let query = of_policy(IpRestriction::KIND, limit);
            for document in cx.store.page(&query).await? {
                let restriction: IpRestriction = stored::read(&document)?;
                if restriction.place == RestrictionScope::Dashboard {
                    return Err(Refusal::of(code::IP_RULE_LAST_OF_DASHBOARD).into());
                }
            }
        }
        let after = AddressChange::Rule {
            policy: &self.ip_policy_id,
            id: Some(&head.id),
            after: None,
        };
        keep_caller_in(cx, after).await
    }
}

impl IpPolicyRule {
    /// The verdict and the addresses of the rule.
    pub fn compile(&self, head: &Head) -> Result<(Verdict, Prefix), Fault> {
        let prefix = Prefix::parse(&self.cidr)
            .map_err(|error| Fault::new(format!("compiling rule {}", head.id), error))?;
        Ok((self.action.verdict(), prefix))
    }
}

impl Action {
    fn verdict(self) -> Verdict {
        match self {
            Self::Allow => Verdict::Allow,
            Self::Deny => Verdict::Deny,
        }
    }
}

/// A prefix that was checked.
fn parse(cidr: &str) -> Result<Prefix, Fault> {
    Prefix::parse(cidr).map_err(|error| Fault::new("reading a checked prefix", error))
}

fn check_cidr(text: &str) -> Result<String, Refusal> {
    if text.is_empty() {
        return Err(Refusal::new(
            code::IP_RULE_FIELD_MISSING,
            "`cidr` is required.",
        ));
    }
    match Prefix::parse(text) {
        Ok(_) => Ok(text.to_ascii_lowercase()),
        Err(NotAPrefix::Malformed) => Err(Refusal::of(code::IP_RULE_CIDR_MALFORMED)),
        Err(NotAPrefix::HostBits) => Err(Refusal::of(code::IP_RULE_CIDR_HOST_BITS)),
        Err(NotAPrefix::NoMask) => Err(Refusal::of(code::IP_RULE_CIDR_WITHOUT_MASK)),
    }
}

async fn check_policy(cx: &Cx<'_>, id: String) -> Result<Document, Error> {
    if id.is_empty() {
        return Err(
            Refusal::new(code::IP_RULE_FIELD_MISSING, "`ip_policy_id` is required.").into(),
        );
    }
    if culvert_base::id::split(&id).is_none() {
        return Err(Refusal::of(code::IP_RULE_POLICY_NOT_ID).into());
    }
    let ty = &policy::TYPE;
    culvert_resources::list::page::reference("ip_policy_id", &id, ty.prefixes)?;
    cx.own(ty.kind, &id).await?.ok_or_else(|| {
        let why = format!("The IP policy `{id}` does not exist.");
        Refusal::new(code::IP_RULE_POLICY_UNKNOWN, why).into()
    })
}

async fn check_room(cx: &Cx<'_>, policy_id: &str) -> Result<(), Error> {
    // Also counts references by restrictions, which are few.
    if cx.store.n_referring(policy_id).await? < RULES_MAX {
        return Ok(());
    }
    Err(Refusal::new(
        code::BODY_FIELD_INVALID,
        format!("The IP policy `{policy_id}` has reached the limit of {RULES_MAX} rules; a restriction can use several policies."),
    )
    .into())
}

fn check_action(text: &str) -> Result<Action, Refusal> {
    match text {
        "allow" => Ok(Action::Allow),
        "deny" => Ok(Action::Deny),
        _ => Err(Refusal::of(code::IP_RULE_ACTION_UNKNOWN)),
    }
}
