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
use culvert_resources::access::tenant::Account;
use culvert_resources::access::user::User;
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_store::{AuditEvent, Changes};

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
            if key.is_way_in() {
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
