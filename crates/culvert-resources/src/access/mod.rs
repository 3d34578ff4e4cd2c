//! Decides who may change an object and who may use it, by the rights of its resource ([`rights`]).
//!
//! Every operation on an object asks here: `service` before an update or a removal, and the table of operations before
//! any further operation. Whatever refers to an object by ID or name asks [`may_use`]. It judges the owner of the
//! referring object, because the reference keeps working for that owner, whichever user wrote it. The compiled state
//! asks again by the same rule ([`is_user`]), because roles and grants change later.

pub mod acl;
pub mod bot_user;
pub mod caller;
pub mod grant;
pub mod key_restrictions;
pub mod key_rules;
pub mod key_uses;
pub mod owner;
pub mod policy_misuse;
pub mod right;
pub mod rights;
pub mod tenant;
pub mod token;
pub mod user;

use culvert_base::{Fault, Refusal, code};
use culvert_store::{Changes, Document, Head};

use crate::Error;
use crate::access::caller::Role;
use crate::access::grant::{Grant, Grantee};
use crate::access::owner::Owner;
use crate::access::rights::{Change, Use};
use crate::cx::Cx;
use crate::resource::ResourceType;
use crate::resource::model::Model;
use crate::stored;

/// An object that refers to another, and the rights of its owner.
#[derive(Clone, Copy, Debug)]
pub struct Referrer<'a> {
    /// The owner of the referring object; empty if it has none.
    pub owner_id: &'a str,
    /// ID of the referring object, such as an endpoint.
    pub id: &'a str,
}

/// Whether a referring object may use an object of that owner under these grants on it. `role` is that of the
/// referrer's owner; `None` if that owner was deleted.
pub fn is_user<'g>(
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
pub async fn may_change(
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
    (ty.may_change)(cx, document).await
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
pub async fn may_use(
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
    for (granted, grant) in live_grants(cx, ty, document).await? {
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
pub async fn is_used_by(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    ty: &ResourceType,
    document: &Document,
) -> Result<bool, Fault> {
    let role = role_of(cx, referrer.owner_id, true).await?;
    Ok(held(cx, referrer, role, ty, document).await?.is_some())
}

/// The grants on an object and on its container that are in force, with their documents.
async fn live_grants(
    cx: &Cx<'_>,
    ty: &ResourceType,
    document: &Document,
) -> Result<Vec<(Document, Grant)>, Fault> {
    let mut granted = cx.referring(Grant::KIND, &document.head).await?;
    if let Some(id) = (ty.container)(document)? {
        let container = Head {
            id,
            ..document.head.clone()
        };
        granted.extend(cx.referring(Grant::KIND, &container).await?);
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
pub async fn role_of(cx: &Cx<'_>, owner_id: &str, is_known: bool) -> Result<Option<Role>, Fault> {
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
pub async fn not_used(
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
