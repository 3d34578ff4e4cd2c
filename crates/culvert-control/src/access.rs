//! Decides who may change an object and who may use it, by the rights of its resource ([`rights`](crate::rights)).
//!
//! Every operation on an object asks here: `service` before an update or a removal, and the table of operations before
//! any further operation. Whatever refers to an object by ID or name asks [`may_use`]. It judges the owner of the
//! referring object, because the reference keeps working for that owner, whichever user wrote it. The compiled state
//! asks again by the same rule ([`is_user`]), because roles and grants change later.

use culvert_base::{Fault, Refusal, code};
use culvert_store::{Changes, Document, PageQuery};

use crate::caller::Role;
use crate::cx::Cx;
use crate::owner::{self, Owner};
use crate::resource::model::Model;
use crate::resource::model::grant::{Grant, Grantee};
use crate::resource::model::ip_policy_rule::IpPolicyRule;
use crate::resource::model::ip_restriction::{IpRestriction, KEY};
use crate::resource::model::vault_secret::VaultSecret;
use crate::resource::resource_type::ResourceType;
use crate::rights::{Change, Use};
use crate::{Error, host, stored};

/// An object that refers to another, and the rights of its owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Referrer<'a> {
    /// The owner of the referring object; empty if it has none.
    pub(crate) owner_id: &'a str,
    /// ID of the referring object, such as an endpoint.
    pub(crate) id: &'a str,
}

/// Whether a referring object may use an object of that owner under these grants on it. `role` is that of the
/// referrer's owner; `None` if that owner was deleted.
pub(crate) fn is_user<'g>(
    referrer: Referrer<'_>,
    role: Option<Role>,
    object_owner: Option<&str>,
    mut grants: impl Iterator<Item = &'g Grantee>,
) -> bool {
    role == Some(Role::Admin)
        || object_owner.is_some_and(|owner| owner == referrer.owner_id)
        || grants.any(|grantee| match grantee {
            Grantee::Members => role >= Some(Role::Member),
            Grantee::Owner(id) => id == referrer.owner_id,
            Grantee::Endpoint(id) => id == referrer.id,
        })
}

/// Refuses a change by a caller without the right `change` (630). Returns the conditions under which this holds at the
/// commit. The caller sees the object.
pub(crate) async fn may_change(
    cx: &Cx<'_>,
    ty: &ResourceType,
    document: &Document,
) -> Result<Changes, Error> {
    if cx.caller.role == Role::Admin {
        return Ok(Changes::default());
    }
    match ty.rights.change {
        Change::Owner | Change::OwnerUnlessRestricting => {
            let owner_id = ty.owner_of(document)?;
            if owner_id.as_deref() != Some(&*cx.caller.owner_id) {
                return Err(not_changed(cx, ty, document, owner_id.as_deref()).await?);
            }
        }
        Change::Admins => return Err(not_changed(cx, ty, document, None).await?),
    }
    match ty.rights.change {
        Change::OwnerUnlessRestricting => may_change_policy(cx, ty, document).await,
        _ => Ok(Changes::default()),
    }
}

/// Refuses to show what only the owner of an object and admins see (630).
pub(crate) async fn may_see_whole(
    cx: &Cx<'_>,
    ty: &ResourceType,
    document: &Document,
) -> Result<(), Error> {
    let owner_id = ty.owner_of(document)?;
    if cx.caller.role == Role::Admin || owner_id.as_deref() == Some(&*cx.caller.owner_id) {
        return Ok(());
    }
    let what = thing(ty, document);
    let who = holders(cx, owner_id.as_deref()).await?;
    let why = format!("You see only a part of the {what}. {who} see more.");
    Err(Refusal::new(code::NOT_ADMIN, why).into())
}

/// Refuses a reference without the right `use` (650). `document` is the object that `referrer` refers to; `is_known`
/// says that it did so before, when the restrictions of the caller's key do not count. Returns the conditions under
/// which this holds at the commit.
pub(crate) async fn may_use(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    ty: &ResourceType,
    document: &Document,
    is_known: bool,
) -> Result<Changes, Error> {
    let is_by_grant = match ty.rights.use_by {
        Use::All => return Ok(Changes::default()),
        Use::Setting if !cx.settings.domains_of_owner => return Ok(Changes::default()),
        Use::Grant => true,
        Use::Setting | Use::Nothing => false,
    };
    let owner_id = ty.owner_of(document)?;
    let role = role_of(cx, referrer.owner_id, is_known).await?;
    if let Some(held) = held(cx, referrer, role, ty, document).await? {
        return Ok(held);
    }
    let what = thing(ty, document);
    let id = &document.head.id;
    Err(not_used(cx, referrer, &what, id, owner_id.as_deref(), is_by_grant).await?)
}

/// The conditions under which a referring object may use an object, whose resource has grants; `None` if it may not.
async fn held(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    role: Option<Role>,
    ty: &ResourceType,
    document: &Document,
) -> Result<Option<Changes>, Fault> {
    let owner_id = ty.owner_of(document)?;
    if is_user(referrer, role, owner_id.as_deref(), std::iter::empty()) {
        return Ok(Some(Changes::default()));
    }
    if ty.rights.use_by != Use::Grant {
        return Ok(None);
    }
    for (granted, grant) in live_grants(cx, document).await? {
        if !is_user(referrer, role, None, std::iter::once(&grant.grantee)) {
            continue;
        }
        // The owner of a vault grants the secrets of others in it only as an admin.
        if owner_id.as_deref() == Some(&*grant.owner_id)
            || role_of(cx, &grant.owner_id, true).await? == Some(Role::Admin)
        {
            return Ok(Some(Changes::while_at(&granted.head)));
        }
    }
    Ok(None)
}

/// Whether an object that refers to this one may use it now.
pub(crate) async fn is_used_by(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    ty: &ResourceType,
    document: &Document,
) -> Result<bool, Fault> {
    let role = role_of(cx, referrer.owner_id, true).await?;
    Ok(held(cx, referrer, role, ty, document).await?.is_some())
}

/// Refuses to forward to an internal name without the right `use` (650). A name without an endpoint is not refused: the
/// edge decides by the endpoints that exist when a request arrives. Also returns the owner of the endpoints, or of the
/// name if it is reserved; empty for the admins. `known` is the owner that the policy meant before.
pub(crate) async fn may_forward(
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

/// The grants on an object that are in force, with their documents; for a secret, also those on its vault.
async fn live_grants(cx: &Cx<'_>, document: &Document) -> Result<Vec<(Document, Grant)>, Fault> {
    let mut granted = cx.referring(Grant::KIND, &document.head).await?;
    if document.head.kind == VaultSecret::KIND {
        let secret: VaultSecret = stored::read(document)?;
        let vault = culvert_store::Head {
            id: secret.vault_id,
            ..document.head.clone()
        };
        granted.extend(cx.referring(Grant::KIND, &vault).await?);
    }
    let mut grants = Vec::new();
    for document in granted {
        let grant: Grant = stored::read(&document)?;
        if grant.is_live(cx.clock.now()) {
            grants.push((document, grant));
        }
    }
    Ok(grants)
}

/// The role of the owner of a referring object. If it is the caller, the key may lower it.
pub(crate) async fn role_of(
    cx: &Cx<'_>,
    owner_id: &str,
    is_known: bool,
) -> Result<Option<Role>, Fault> {
    if owner_id.is_empty() {
        // The object belongs to the admins.
        return Ok(Some(Role::Admin));
    }
    if owner_id == cx.caller.owner_id && !is_known {
        return Ok(Some(match owner::is_caller_admin(cx).await? {
            true => Role::Admin,
            false => cx.caller.role.min(Role::Member),
        }));
    }
    let owner = Owner::load(cx.store, owner_id).await?;
    let owner = owner.filter(|(_, account)| *account == cx.caller.account);
    Ok(owner.map(|(owner, _)| owner.role))
}

/// `vault `vault_…``.
fn thing(ty: &ResourceType, document: &Document) -> String {
    format!("{} `{}`", ty.noun(), document.head.id)
}

/// The beginning of a sentence about those who have a right: ``Its owner `ada` and admins``.
async fn holders(cx: &Cx<'_>, owner_id: Option<&str>) -> Result<String, Fault> {
    let Some(owner_id) = owner_id else {
        return Ok("Only admins".to_owned());
    };
    let owner = Owner::load(cx.store, owner_id).await?;
    let owner = owner.filter(|(_, account)| *account == cx.caller.account);
    let name = owner.map_or(owner_id.to_owned(), |(owner, _)| owner.subject);
    Ok(format!("Its owner `{name}` and admins"))
}

async fn not_changed(
    cx: &Cx<'_>,
    ty: &ResourceType,
    document: &Document,
    owner_id: Option<&str>,
) -> Result<Error, Fault> {
    let what = thing(ty, document);
    let who = holders(cx, owner_id).await?;
    let why = format!("You do not have the right `change` to the {what}. {who} have it.");
    Ok(Refusal::new(code::NOT_ADMIN, why).into())
}

/// The refusal of a reference. It names the owner of the referring object if that is not the caller.
async fn not_used(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    what: &str,
    object_id: &str,
    owner_id: Option<&str>,
    is_by_grant: bool,
) -> Result<Error, Fault> {
    let whose = if referrer.owner_id == cx.caller.owner_id {
        "You do".to_owned()
    } else {
        let owner = Owner::load(cx.store, referrer.owner_id).await?;
        let name = owner.map_or(referrer.owner_id.to_owned(), |(owner, _)| owner.subject);
        format!("`{name}`, the owner of the referring object, does")
    };
    let who = holders(cx, owner_id).await?;
    let how = match is_by_grant {
        true => format!(
            "{who} can grant it: `culvert api grants create --object-id {object_id} --grantee {}`.",
            referrer.owner_id
        ),
        false => format!("{who} have it."),
    };
    let why = format!("{whose} not have the right `use` to the {what}. {how}");
    Ok(Refusal::new(code::RIGHT_TO_USE_MISSING, why).into())
}

/// Refuses a change to an IP policy or one of its rules while an IP restriction refers to the policy (630). The caller
/// is no admin. Returns the condition that this still holds at the commit.
async fn may_change_policy(
    cx: &Cx<'_>,
    ty: &ResourceType,
    document: &Document,
) -> Result<Changes, Error> {
    let policy_id = match ty.kind {
        IpPolicyRule::KIND => stored::read::<IpPolicyRule>(document)?.ip_policy_id,
        _ => document.head.id.clone(),
    };
    let since = cx.store.revision().await?;
    let naming = PageQuery {
        kind: IpRestriction::KIND.to_owned(),
        account: cx.caller.account.clone(),
        before: None,
        limit: 1,
        refs_to: Some(policy_id),
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
