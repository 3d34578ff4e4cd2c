//! Owners of keys: users and bots, found by id or by a user's e-mail address (contract: management
//! API 2.1).

use culvert_base::{Class, Fault, Refusal, code, id};
use culvert_store::{Document, Store};

use crate::access::bot_user::BotUser;
use crate::access::user::User;
use crate::cx::Cx;
use crate::list::page::reference;
use crate::resource::model::Model;
use crate::stored;
use crate::{Error, OwnerKind, Role};

/// ID prefixes of owners.
const PREFIXES: &[&str] = &["usr", "bot", "service"];

/// The fields of an owner that calls need.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Person or bot.
    pub kind: OwnerKind,
    /// Its role; a bot has `member`.
    pub role: Role,
    /// Whether its keys are valid.
    pub active: bool,
    /// E-mail address or name.
    pub subject: String,
}

impl Owner {
    /// The owner with this stored id, and their account.
    pub async fn load(store: &Store, id: &str) -> Result<Option<(Self, String)>, Fault> {
        match Self::get(store, id).await? {
            Some(document) => Ok(Some((Self::read(&document)?, document.head.account))),
            None => Ok(None),
        }
    }

    /// The document of a user or bot; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn get(store: &Store, id: &str) -> Result<Option<Document>, Fault> {
        let kind = match id::split(id) {
            Some((User::ID_PREFIX, _)) => User::KIND,
            Some(("bot", _)) => BotUser::KIND,
            _ => return Ok(None),
        };
        store.get(kind, id).await
    }

    /// The owner that a document of a user or bot stores.
    ///
    /// # Errors
    ///
    /// If the stored form is not readable.
    pub fn read(document: &Document) -> Result<Self, Fault> {
        if document.head.kind == User::KIND {
            let user: User = stored::read(document)?;
            Ok(Self {
                kind: OwnerKind::User,
                role: user.role,
                active: user.active,
                subject: user.email,
            })
        } else {
            let bot: BotUser = stored::read(document)?;
            Ok(Self {
                kind: OwnerKind::Bot,
                role: Role::Member,
                active: bot.active,
                subject: bot.name.into(),
            })
        }
    }
}

/// Whether an owner is currently an admin.
pub async fn is_admin(cx: &Cx<'_>, owner_id: &str) -> Result<bool, Fault> {
    let owner = Owner::load(cx.store, owner_id).await?;
    Ok(owner.is_some_and(|(owner, _)| owner.role == Role::Admin))
}

/// Whether the caller may act as an admin: its owner is one, and its key has no lower role.
pub async fn is_caller_admin(cx: &Cx<'_>) -> Result<bool, Fault> {
    let restrictions = cx.caller.restrictions.as_ref();
    let highest = restrictions.and_then(|restrictions| restrictions.role);
    if highest.is_some_and(|role| role < Role::Admin) {
        return Ok(false);
    }
    is_admin(cx, &cx.caller.owner_id).await
}

/// The stored ID of the owner in a body: a user's or bot's ID, or a user's e-mail address. Defaults to the
/// caller's own. Only admins may name another.
pub async fn named(cx: &Cx<'_>, text: &str) -> Result<String, Error> {
    let caller = cx.caller;
    let own = caller.owner_id.as_str();
    let is_email = text.contains('@');
    let named_id = match id::split(text) {
        Some(("service", body)) => Some(format!("bot_{body}")),
        Some((User::ID_PREFIX | "bot", _)) => Some(text.to_owned()),
        _ => None,
    };
    let is_own_email =
        caller.owner_kind == OwnerKind::User && text.eq_ignore_ascii_case(&caller.subject);
    if text.is_empty() || named_id.as_deref() == Some(own) || is_own_email {
        return Ok(own.to_owned());
    }
    if caller.role != Role::Admin {
        return Err(Refusal::of(code::NOT_ADMIN).into());
    }
    let found = if is_email {
        let key = User::by_email(text);
        cx.store.find(User::KIND, &key.name, &key.value).await?
    } else {
        let id = match named_id {
            Some(id) => id,
            None => {
                reference("owner_id", text, PREFIXES)?;
                return Err(Refusal::of(code::OWNER_UNKNOWN).into());
            }
        };
        let kind = if id.starts_with("usr_") {
            User::KIND
        } else {
            BotUser::KIND
        };
        cx.store.get(kind, &id).await?
    };
    let document = found
        .filter(|document| document.head.account == caller.account)
        .ok_or_else(|| Refusal::of(code::OWNER_UNKNOWN))?;
    if !Owner::read(&document)?.active {
        // In the body this is an invalid value, not a missing permission.
        let mut refusal = Refusal::of(code::OWNER_INACTIVE);
        refusal.class = Class::Invalid;
        return Err(refusal.into());
    }
    Ok(document.head.id)
}
