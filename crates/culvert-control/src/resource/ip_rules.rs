//! The rules of an IP policy, read from the store.

use culvert_base::Fault;
use culvert_store::{Document, PageQuery, Store};

use crate::resource::model::Model;
use crate::resource::model::ip_policy_rule::IpPolicyRule;

/// Rules per read.
pub(crate) const PAGE: u32 = 5000;

/// All rules of a policy, ordered by ID.
pub(crate) async fn of_policy(
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
