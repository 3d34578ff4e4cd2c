//! Keeps admins from locking themselves out.
//!
//! A way in is an API key without restrictions of an active admin. A sign-in at the console's OpenID provider is none:
//! the provider may be unavailable, or take the role away. A change that takes the last way in, or that makes an IP
//! restriction block its own caller, needs `force=true` in its query. The command line on the server is the way back.
//!
//! A refusal and the commit of another change cannot overlap: changes that take a way in replace the document of the
//! account, and changes of the IP restriction have conditions on what they rely on. So of two changes that together
//! lock out, one is decided again.

use culvert_base::net::plain_address;
use culvert_base::{IpSet, Prefix, Refusal, Verdict, code};
use culvert_resources::Error;
use culvert_resources::access::tenant::Account;
use culvert_resources::access::user::User;
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_store::{AuditEvent, Changes, Head};

use crate::api_key::model::ApiKey;
use crate::ip::policy_rule_model::{IpPolicyRule, PREFIX_KEY};
use crate::ip::restriction_model::{self, IpRestriction, RestrictionScope};
use crate::ip::rules;

/// What a change takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken<'a> {
    /// The API key with this ID is restricted or deleted, or its token stops working.
    Key(&'a str),
    /// The user with this ID is no longer an active admin.
    Admin(&'a str),
    /// The identity provider takes the role of the user with this ID. It decides, so only the last admin stays.
    Role(&'a str),
}

/// Refuses a change after which the account has no active admin (644), or none with a way in (660), unless it is forced.
/// Returns the condition that this still holds at the commit.
pub(crate) async fn leave_a_way_in(
    cx: &Cx<'_>,
    account: &str,
    taken: Taken<'_>,
) -> Result<Changes, Error> {
    // Read first: of two concurrent changes, the commit of one makes this stale.
    let Some(account) = cx.store.get(Account::KIND, account).await? else {
        return Ok(Changes::default());
    };
    let (mut is_taken, mut has_admin, mut has_way) = (false, false, false);
    for document in cx.store.all(User::KIND).await? {
        let user: User = stored::read(&document)?;
        if document.head.account != account.head.id || !user.is_active_admin() {
            continue;
        }
        let id = document.head.id.as_str();
        let is_lost = taken == Taken::Admin(id) || taken == Taken::Role(id);
        is_taken |= is_lost;
        has_admin |= !is_lost;
        for document in cx.referring(ApiKey::KIND, &document.head).await? {
            let key: ApiKey = stored::read(&document)?;
            if key.restrictions.is_way_in() {
                let is_key = taken == Taken::Key(&document.head.id);
                is_taken |= is_key;
                has_way |= !is_lost && !is_key;
            }
        }
    }
    if !is_taken {
        return Ok(Changes::default());
    }
    if !cx.force {
        if !has_admin {
            let why = "The account must keep an active admin. To change the last one nevertheless, send `force=true` in the \
                       query; after that, only `culvert admin create-key` on the server makes an admin.";
            return Err(Refusal::new(code::LAST_ADMIN, why).into());
        }
        if !has_way && !matches!(taken, Taken::Role(_)) {
            let why = "After this change, no admin would have an API key without restrictions. To make it nevertheless, \
                       send `force=true` in the query; after that, only `culvert admin create-key` on the server can \
                       create such a key.";
            return Err(Refusal::new(code::LOCK_OUT, why).into());
        }
    }
    let reason = "the account stays as it is; what takes a way in happens one after the other";
    Ok(Changes::replace(account, AuditEvent::Suppress { reason }))
}

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
