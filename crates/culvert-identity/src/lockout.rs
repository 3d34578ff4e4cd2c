//! Keeps admins from locking themselves out.
//!
//! A way in is an API key without restrictions of an active admin. A sign-in at the console's OpenID provider is none:
//! the provider may be unavailable, or take the role away. A change that takes the last way in needs `force=true` in its
//! query. The command line on the server is the way back.
//!
//! A refusal and the commit of another change cannot overlap: changes that take a way in replace the document of the
//! account. So of two changes that together lock out, one is decided again.

use culvert_base::{Refusal, code};
use culvert_resources::Error;
use culvert_resources::access::key_rules::{KeyRules, Strictness};
use culvert_resources::access::tenant::Account;
use culvert_resources::access::user::User;
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_store::{AuditEvent, Changes, Head};

use crate::api_key::model::ApiKey;

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
    let rules = stored::read::<Account>(&account)?.key_rules;
    let Ways {
        is_taken,
        has_admin,
        has_way,
    } = ways(cx, &account.head, &rules, Some(taken)).await?;
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

/// Refuses new rules (660) whose maximum age ends the caller's token now, or takes the last way in of the admins, unless they
/// are forced. The caller replaces the document of the account, so of two changes that together lock out, one is decided again.
pub(crate) async fn rules_leave_a_way_in(
    cx: &Cx<'_>,
    account: &Head,
    (before, rules): (&KeyRules, &KeyRules),
) -> Result<(), Error> {
    if cx.force || rules.maximum_age != Strictness::Refuse {
        return Ok(());
    }
    let token = cx.caller.token.as_ref();
    let now = cx.clock.now();
    let ends = |issued_at| rules.is_too_old(issued_at, now) && !before.is_too_old(issued_at, now);
    if token.is_some_and(|token| ends(token.issued_at)) {
        let why = "The token that this change comes with is older than this maximum age, and would stop working now. \
                   Rotate its key first, or send `force=true` in the query.";
        return Err(Refusal::new(code::LOCK_OUT, why).into());
    }
    let has_way = async |rules| Ok::<_, Error>(ways(cx, account, rules, None).await?.has_way);
    if !has_way(rules).await? && has_way(before).await? {
        let why = "With this maximum age, no admin would have an API key without restrictions whose token works. Rotate \
                   one first, or send `force=true` in the query; after that, only `culvert admin create-key` on the \
                   server can create such a key.";
        return Err(Refusal::new(code::LOCK_OUT, why).into());
    }
    Ok(())
}

/// The ways in of the admins of an account.
#[derive(Debug, Default)]
struct Ways {
    /// Whether the change takes one of them.
    is_taken: bool,
    /// Whether there is an active admin after the change.
    has_admin: bool,
    /// Whether one of these has a way in.
    has_way: bool,
}

async fn ways(
    cx: &Cx<'_>,
    account: &Head,
    rules: &KeyRules,
    taken: Option<Taken<'_>>,
) -> Result<Ways, Error> {
    let mut ways = Ways::default();
    let now = cx.clock.now();
    for document in cx.store.all(User::KIND).await? {
        let user: User = stored::read(&document)?;
        if document.head.account != account.id || !user.is_active_admin() {
            continue;
        }
        let id = document.head.id.as_str();
        let is_lost = matches!(taken, Some(Taken::Admin(lost) | Taken::Role(lost)) if lost == id);
        ways.is_taken |= is_lost;
        ways.has_admin |= !is_lost;
        for document in cx.referring(ApiKey::KIND, &document.head).await? {
            let key: ApiKey = stored::read(&document)?;
            if key.is_way_in() && !rules.is_too_old(key.issued_at(&document.head), now) {
                let is_key = taken == Some(Taken::Key(&document.head.id));
                ways.is_taken |= is_key;
                ways.has_way |= !is_lost && !is_key;
            }
        }
    }
    Ok(ways)
}
