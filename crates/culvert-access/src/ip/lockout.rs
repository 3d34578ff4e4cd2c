//! Keeps callers from locking themselves out by an IP restriction.
//!
//! A change that makes an IP restriction block its own caller needs `force=true` in its query. The command line on the
//! server is the way back. Changes have conditions on what they rely on, so of two changes that together lock out, one
//! is decided again.

use culvert_base::net::plain_address;
use culvert_base::{IpSet, Prefix, Refusal, Verdict, code};
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_store::{Changes, Head};

use crate::ip::policy_rule_model::{IpPolicyRule, PREFIX_KEY};
use crate::ip::restriction_model::{self, IpRestriction, RestrictionScope};
use crate::ip::rules;

/// A change of the addresses that reach the API.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddressChange<'a> {
    /// The IP restriction of the API, after the change.
    Restriction(&'a IpRestriction),
    /// A rule of an IP policy.
    Rule {
        policy: &'a str,
        /// The rule before; `None` if it is new.
        id: Option<&'a str>,
        /// The rule after; `None` if it is removed.
        after: Option<(Verdict, Prefix)>,
    },
}

/// Refuses a change after which the IP restriction of the API blocks the caller's address (660), unless it is forced.
/// Returns the conditions that this still holds at the commit.
pub(crate) async fn keep_caller_in(
    cx: &Cx<'_>,
    change: AddressChange<'_>,
) -> Result<Changes, Error> {
    let Some(address) = cx.address else {
        return Ok(Changes::default());
    };
    let account = cx.caller.account.as_str();
    let since = cx.store.revision().await?;
    let any = String::new;
    let mut conditions =
        Changes::unless_written_below(IpRestriction::KIND, restriction_model::KEY, any(), since);
    let found;
    let restriction = match change {
        AddressChange::Restriction(restriction) => {
            if restriction.place != RestrictionScope::Api {
                return Ok(Changes::default());
            }
            restriction
        }
        AddressChange::Rule { policy, .. } => {
            let key = restriction_model::unique_place(account, RestrictionScope::Api);
            let document = cx
                .store
                .find(IpRestriction::KIND, restriction_model::KEY, &key);
            let Some(document) = document.await? else {
                return Ok(conditions);
            };
            conditions = conditions.and(Changes::while_at(&document.head));
            found = stored::read::<IpRestriction>(&document)?;
            if !found.ip_policy_ids.iter().any(|id| id == policy) {
                return Ok(conditions);
            }
            &found
        }
    };
    if !restriction.enforced {
        return Ok(conditions);
    }
    let mut rules: Vec<(Verdict, Prefix)> = Vec::new();
    let mut admitting: Option<Head> = None;
    for policy in &restriction.ip_policy_ids {
        for document in rules::of_policy(cx.store, account, policy).await? {
            if let AddressChange::Rule { id: Some(id), .. } = change
                && id == document.head.id
            {
                continue;
            }
            let rule: IpPolicyRule = stored::read(&document)?;
            let (verdict, prefix) = rule.compile(&document.head)?;
            if verdict == Verdict::Allow && prefix.contains(address) {
                admitting = Some(document.head);
            }
            rules.push((verdict, prefix));
        }
    }
    if let AddressChange::Rule { after, .. } = change {
        rules.extend(after);
    }
    if !IpSet::of(rules).contains(address) && !cx.force {
        let why = format!(
            "The IP restriction of the API would block your own address, {}. To make the change nevertheless, send \
             `force=true` in the query; after that, `culvert admin lift-api-restriction` on the server lets you in again.",
            plain_address(address)
        );
        return Err(Refusal::new(code::LOCK_OUT, why).into());
    }
    if let Some(head) = admitting {
        conditions = conditions.and(Changes::while_at(&head));
    }
    let no_rule = Changes::unless_written_below(IpPolicyRule::KIND, PREFIX_KEY, any(), since);
    Ok(conditions.and(no_rule))
}
