//! restrict-ips: admits only some client addresses.

use std::sync::Arc;

use culvert_base::{Prefix, Verdict, code};
use culvert_cel::Value;
use culvert_ip_data::address::{Addresses, IpPolicy, prefix};
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::template::Template;
use culvert_policy::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) static TYPE: ActionType = ActionType {
    name: "restrict-ips",
    doc: "Allows a client whose address is in `allow` or allowed by an IP policy, and neither in `deny` nor denied by an IP policy. Other clients get 403, or their connection is closed. With only deny entries, all clients are denied.",
    phases: &[Phase::Connect, Phase::Request, Phase::Response],
    ends: Ends::Sometimes,
    references: &[("ip_policies", "ipp")],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| {
        let config: Config = context.config()?;
        if config.allow.is_empty() && config.deny.is_empty() && config.ip_policies.is_empty() {
            let why = "it requires at least one of `allow`, `deny` and `ip_policies`";
            return Err(context.refuse(code::POLICY_FIELD_MISSING, why));
        }
        let (mut rules, mut computed) = (Vec::new(), Vec::new());
        for (field, verdict, entries) in [
            ("allow", Verdict::Allow, &config.allow),
            ("deny", Verdict::Deny, &config.deny),
        ] {
            for (index, entry) in entries.iter().enumerate() {
                match entry_of(context, &format!("{field}[{index}]"), entry)? {
                    Ok(prefix) => rules.push((verdict, prefix)),
                    Err(template) => computed.push((verdict, template)),
                }
            }
        }
        let policies = config.ip_policies.iter().map(|id| context.ip_policy(id));
        Ok(Box::new(RestrictIps {
            enforce: config.enforce.unwrap_or(true),
            only_denies: config.allow.is_empty() && config.ip_policies.is_empty(),
            inline: Addresses::of(rules),
            computed,
            policies: policies.collect::<Result<_, _>>()?,
        }))
    },
    guards: true,
    ..ActionType::PLAIN
};

/// Parses a prefix, or a template that computes one.
fn entry_of(
    context: &PolicyContext<'_>,
    field: &str,
    entry: &str,
) -> Result<Result<Prefix, Template>, culvert_base::Refusal> {
    let template = context.template(field, entry)?;
    let Some(text) = template.constant() else {
        return Ok(Err(template));
    };
    prefix(text).map(Ok).ok_or_else(|| {
        let why = format!("`{field}` must be an address or a prefix such as `192.0.2.0/24`");
        context.refuse(code::POLICY_PREFIX_INVALID, &why)
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RestrictIps")]
struct Config {
    /// Whether other clients are rejected; default true.
    #[serde(default)]
    enforce: Option<bool>,
    /// Allowed addresses and prefixes. Supports `${…}`.
    #[serde(default)]
    allow: Vec<String>,
    /// Denied addresses and prefixes; they take precedence. Supports `${…}`.
    #[serde(default)]
    deny: Vec<String>,
    /// IDs of IP policies; changes to their rules take effect immediately.
    #[serde(default)]
    ip_policies: Vec<String>,
}

#[derive(Debug)]
struct RestrictIps {
    enforce: bool,
    /// Whether no entry can allow a client.
    only_denies: bool,
    inline: Addresses,
    computed: Vec<(Verdict, Template)>,
    policies: Box<[Arc<IpPolicy>]>,
}

/// Whether a client is admitted, and the prefix that decided.
#[derive(Default)]
struct Judgement {
    is_allowed: bool,
    is_denied: bool,
    matched: Option<String>,
}

impl RestrictIps {
    /// Checks the client. `None` if an expression yields no prefix.
    fn judge(&self, x: &mut Exchange<'_>) -> Option<Judgement> {
        let client = x.conn.info.client.ip();
        let is_reported = x.wants_results();
        let mut judgement = Judgement::default();
        let mut look = |addresses: &Addresses| {
            let (allows, denies) = (addresses.allows(client), addresses.denies(client));
            if is_reported && denies && !judgement.is_denied {
                judgement.matched = addresses.matched(Verdict::Deny, client);
            } else if is_reported && allows && judgement.matched.is_none() {
                judgement.matched = addresses.matched(Verdict::Allow, client);
            }
            judgement.is_allowed |= allows;
            judgement.is_denied |= denies;
        };
        look(&self.inline);
        for policy in &self.policies {
            look(&policy.now());
        }
        if !self.computed.is_empty() {
            let mut rules = Vec::with_capacity(self.computed.len());
            for (verdict, template) in &self.computed {
                let text = template.strict(x).ok()?;
                rules.push((*verdict, prefix(&text)?));
            }
            look(&Addresses::of(rules));
        }
        Some(judgement)
    }
}

impl Action for RestrictIps {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let judgement = self.judge(x);
        let is_admitted = judgement
            .as_ref()
            .is_some_and(|judgement| judgement.is_allowed && !judgement.is_denied);
        let passes = is_admitted || !self.enforce;
        x.tell_admitted(passes);
        if x.wants_results() {
            let action = if is_admitted { "allow" } else { "deny" };
            let matched = judgement.and_then(|judgement| judgement.matched);
            let error = x.error();
            x.result(
                "restrict_ips",
                vec![
                    ("action", Value::from(action)),
                    (
                        "matched_cidr",
                        Value::from(matched.as_deref().unwrap_or_default()),
                    ),
                    error,
                ],
            );
        }
        if passes {
            Flow::Continue.into()
        } else {
            x.refuse(Problem::NotAdmitted).into()
        }
    }

    fn warning(&self) -> Option<&'static str> {
        self.only_denies.then_some(
            "it has only `deny` entries and denies all clients; `allow: [0.0.0.0/0, \"::/0\"]` allows all others",
        )
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        let templates = self.computed.iter();
        templates
            .flat_map(|(_, template)| template.slots())
            .collect()
    }
}
