//! The rules of an IP policy, read from the store.

use culvert_base::{Fault, Refusal, code};
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_store::{Changes, Document, PageQuery, Store};

use crate::ip::policy_rule_model::IpPolicyRule;
use crate::ip::restriction_model::{IpRestriction, KEY};

/// Rules per read.
pub(crate) const PAGE: u32 = 5000;

/// All rules of a policy, ordered by ID.
pub async fn of_policy(
    store: &Store,
    account: &str,
    policy_id: &str,
) -> Result<Vec<Document>, Fault> {
    let mut rules: Vec<Document> = Vec::new();
    loop {
        let query = PageQuery {
            kind: IpPolicyRule::KIND.to_owned(),
            account: account.to_owned(),
            before: rules.last().map(|rule| rule.head.id.clone()),
            limit: PAGE,
            refs_to: Some(policy_id.to_owned()),
        };
        let page = store.page(&query).await?;
        let is_last = page.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
        rules.extend(page);
        if is_last {
            rules.reverse();
            return Ok(rules);
        }
    }
}

/// Refuses a change to an IP policy or one of its rules while an IP restriction refers to the policy (630). Admins
/// are not asked (`access::may_change`). Returns the condition that this still holds at the commit.
pub async fn may_change(cx: &Cx<'_>, policy_id: &str) -> Result<Changes, Error> {
    let since = cx.store.revision().await?;
    let naming = PageQuery {
        kind: IpRestriction::KIND.to_owned(),
        account: cx.caller.account.clone(),
        before: None,
        limit: 1,
        refs_to: Some(policy_id.to_owned()),
    };
    if !cx.store.page(&naming).await?.is_empty() {
        let why = "An IP restriction uses the IP policy; only admins may change it and its rules.";
        return Err(Refusal::new(code::NOT_ADMIN, why).into());
    }
    let any = String::new();
    Ok(Changes::unless_written_below(
        IpRestriction::KIND,
        KEY,
        any,
        since,
    ))
}
