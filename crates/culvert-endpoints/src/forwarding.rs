//! Who may forward requests to an internal endpoint.

use std::sync::Arc;

use culvert_access::use_table::UseTable;
use culvert_edge_config::ForwardRights;
use culvert_policy::host::EndpointInfo;
use culvert_resources::Error;
use culvert_resources::Role;
use culvert_resources::access::grant::Grant;
use culvert_resources::access::{Referrer, is_user, not_used, role_of};
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_store::Changes;

use crate::host;

/// Refuses to forward to an internal name without the right `use` (650). A name without an endpoint is not refused: the
/// edge decides by the endpoints that exist when a request arrives. Also returns the owner of the endpoints, or of the
/// name if it is reserved; empty for the admins. `known` is the owner that the policy meant before.
pub async fn may_forward(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    name: &str,
    known: Option<&String>,
) -> Result<(Changes, Option<String>), Error> {
    let account = &cx.caller.account;
    let Some(held) = host::internal(cx.store, account, name).await? else {
        let reserved = host::reserved_for(cx.store, account, name, cx.clock.now()).await?;
        return Ok((Changes::default(), reserved));
    };
    let owner = (!held.owner_id.is_empty()).then_some(&*held.owner_id);
    // A policy that meant this owner before may do so with a restricted key.
    let is_known = known == Some(&held.owner_id);
    let role = role_of(cx, referrer.owner_id, is_known).await?;
    if is_user(referrer, role, owner, std::iter::empty()) {
        return Ok((Changes::default(), Some(held.owner_id)));
    }
    for granted in cx.store.all(Grant::KIND).await? {
        let grant: Grant = stored::read(&granted)?;
        let is_of_name =
            grant.name.as_deref() == Some(&*held.name) && grant.owner_id == held.owner_id;
        let is_of_it = is_of_name || held.endpoint_ids.contains(&grant.object_id);
        let grantee = std::iter::once(&grant.grantee);
        if granted.head.account == *account
            && is_of_it
            && grant.is_live(cx.clock.now())
            && is_user(referrer, role, None, grantee)
        {
            return Ok((Changes::while_at(&granted.head), Some(held.owner_id)));
        }
    }
    let what = format!("internal endpoint `{name}`");
    let id = held.endpoint_ids.first().map_or("ep_…", String::as_str);
    Err(not_used(cx, referrer, &what, id, owner, true).await?)
}

/// The rights of a table, by which the edge decides for each request.
#[derive(Debug)]
pub struct TableRights(pub Arc<UseTable>);

impl ForwardRights for TableRights {
    fn may_forward(&self, from: EndpointInfo<'_>, host: &str, to: EndpointInfo<'_>) -> bool {
        let Self(table) = self;
        // Admins may write every policy, and serve the names of others.
        if table.role(to.owner) != Some(Role::Admin) && !from.means(host, to) {
            return false;
        }
        let referrer = Referrer {
            owner_id: from.owner,
            id: from.id,
        };
        let owner = (!to.owner.is_empty()).then_some(to.owner);
        table.is_user(referrer, owner, &[to.id])
            || owner.is_some_and(|owner| table.is_user_of_name(referrer, owner, to.host))
    }
}
