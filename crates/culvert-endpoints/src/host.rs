//! Ownership of names: keeps one owner from using the names of another.
//!
//! Each name in use has one document, found by the name, for all schemes and ports: `http://` and `https://`
//! of one host belong to one owner, and so do the names below a wildcard. The document is written in the same
//! commit as the endpoint. When an agent's session ends, its names stay reserved for their owner for a while
//! (contract: agent protocol 5.7), so that a reconnecting agent can use them again.
//!
//! The owner is the user or bot that the credential or key belongs to. API calls of admins may add endpoints
//! to any name of their account.

use std::time::Duration;

use culvert_base::{Fault, Refusal, Timestamp, code};
use culvert_resources::cx::Cx;
use culvert_resources::stored::{self, Format};
use culvert_resources::{Error, Role};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, Key, Store};
use serde::{Deserialize, Serialize};

/// Document kind.
pub const KIND: &str = "endpoint_host";
const PREFIX: &str = "hst";
const KEY: &str = "host";

const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "names are bookkeeping of endpoints, which have no events",
};

#[derive(Debug, Deserialize, Serialize)]
struct Host {
    format: Format<1>,
    /// The name: a host, `host:port` of a public TCP endpoint, or the host and account of an internal
    /// endpoint.
    name: String,
    account: String,
    owner_id: String,
    endpoint_ids: Vec<String>,
    /// Until when a name without endpoints is reserved for its owner.
    kept_until: Option<Timestamp>,
}

/// A name that an endpoint requests.
#[derive(Clone, Copy, Debug)]
pub struct NameRequest<'a> {
    /// ID of the endpoint that wants the name.
    pub endpoint_id: &'a str,
    /// The host name.
    pub name: &'a str,
    /// The owner of the endpoint.
    pub owner_id: &'a str,
}

impl Host {
    /// Whether it belongs to its owner at that time.
    fn is_held(&self, now: Timestamp) -> bool {
        !self.endpoint_ids.is_empty() || self.kept_until.is_some_and(|until| now < until)
    }

    /// Whether the caller may have an endpoint here.
    fn admits(&self, cx: &Cx<'_>) -> bool {
        let caller = cx.caller;
        let is_own = self.owner_id == caller.owner_id || caller.role == Role::Admin;
        !self.is_held(cx.clock.now()) || self.account == caller.account && is_own
    }

    /// Replaces the stored document.
    fn put(self, document: Document) -> Result<Changes, Fault> {
        let body = stored::write(&self)?;
        Ok(Changes::replace(Document { body, ..document }, NOTHING))
    }
}

/// The write that adds an endpoint to a name, unless the name belongs to another owner (18006). A wildcard
/// and the names below it belong to one owner.
pub async fn join(cx: &Cx<'_>, want: NameRequest<'_>) -> Result<Changes, Error> {
    let now = cx.clock.now();
    let found = cx.store.find(KIND, KEY, want.name).await?;
    let known: Option<Host> = found.as_ref().map(stored::read).transpose()?;
    if let Some(known) = &known {
        let is_there = known.endpoint_ids.iter().any(|id| id == want.endpoint_id);
        if is_there {
            return Ok(Changes::default());
        }
        if !known.admits(cx) {
            return Err(another(want.name));
        }
    }
    // If the name has endpoints, related names were checked when the first of them took the name, and this
    // commit changes the document that records it. A name that is only reserved may be free by the time of
    // the commit.
    let kin = match &known {
        Some(known) if !known.endpoint_ids.is_empty() => Changes::default(),
        _ => check_kin(cx, want.name).await?,
    };
    match (found, known) {
        (Some(document), Some(mut known)) => {
            if !known.is_held(now) {
                known.account.clone_from(&cx.caller.account);
                want.owner_id.clone_into(&mut known.owner_id);
            }
            known.endpoint_ids.push(want.endpoint_id.to_owned());
            known.kept_until = None;
            Ok(known.put(document)?.and(kin))
        }
        _ => {
            let host = Host {
                format: Format,
                name: want.name.to_owned(),
                account: cx.caller.account.clone(),
                owner_id: want.owner_id.to_owned(),
                endpoint_ids: vec![want.endpoint_id.to_owned()],
                kept_until: None,
            };
            let id = cx.new_id();
            Ok(Changes::insert(host.document(id, id.at())?, NOTHING).and(kin))
        }
    }
}

impl Host {
    fn document(&self, id: impl std::fmt::Display, at: Timestamp) -> Result<Document, Fault> {
        Ok(Document {
            head: Head {
                id: format!("{PREFIX}_{id}"),
                kind: KIND.to_owned(),
                // A name can move to another account; a document cannot.
                account: String::new(),
                revision: 0,
                created_at: at,
                updated_at: at,
            },
            body: stored::write(self)?,
            keys: vec![Key::new(KEY, &*self.name)],
            refs: Vec::new(),
            topics: Vec::new(),
        })
    }
}

/// Refuses a name below another owner's wildcard, and a wildcard above another owner's name. Returns the
/// condition that this still holds at the commit. A name depends only on the wildcards above it, so names
/// next to each other do not conflict. A wildcard is checked against all names, because wildcards are rare.
async fn check_kin(cx: &Cx<'_>, name: &str) -> Result<Changes, Error> {
    let (host, behind) = match name.split_once(' ') {
        Some((host, account)) => (host, format!(" {account}")),
        None if name.contains(':') => return Ok(Changes::default()),
        None => (name, String::new()),
    };
    let since = cx.store.revision().await?;
    let above: Vec<String> = wildcards_above(host)
        .map(|wildcard| format!("{wildcard}{behind}"))
        .collect();
    for wildcard in &above {
        if let Some(document) = cx.store.find(KIND, KEY, wildcard).await? {
            let known: Host = stored::read(&document)?;
            if !known.admits(cx) {
                return Err(another(name));
            }
        }
    }
    let kin = Changes::unless_written(KIND, KEY, above, since);
    let Some(base) = host.strip_prefix('*') else {
        return Ok(kin);
    };
    let end = format!("{base}{behind}");
    for document in cx.store.find_ending(KIND, KEY, &end).await? {
        let known: Host = stored::read(&document)?;
        if !known.admits(cx) {
            return Err(another(name));
        }
    }
    Ok(kin.and(Changes::unless_written_below(KIND, KEY, end, since)))
}

/// The wildcards that cover a host, nearest first; for a wildcard, those above it.
pub(crate) fn wildcards_above(host: &str) -> impl Iterator<Item = String> {
    let mut rest = host.strip_prefix("*.").unwrap_or(host);
    std::iter::from_fn(move || {
        let (_, above) = rest.split_once('.')?;
        rest = above;
        Some(format!("*.{above}"))
    })
}

/// The condition for reserving a domain: no endpoint of another account uses the name, a name below it, or a
/// wildcard above it. `None` if one does.
pub(crate) async fn free_for_reservation(
    cx: &Cx<'_>,
    domain: &str,
) -> Result<Option<Changes>, Fault> {
    let base = domain.strip_prefix("*.").unwrap_or(domain);
    let since = cx.store.revision().await?;
    let above: Vec<String> = wildcards_above(base).collect();
    let mut kin = cx.store.find_ending(KIND, KEY, base).await?;
    for wildcard in &above {
        kin.extend(cx.store.find(KIND, KEY, wildcard).await?);
    }
    let now = cx.clock.now();
    for document in kin {
        let known: Host = stored::read(&document)?;
        let is_kin = above.contains(&known.name)
            || known
                .name
                .strip_suffix(base)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if is_kin && known.is_held(now) && known.account != cx.caller.account {
            return Ok(None);
        }
    }
    let below = Changes::unless_written_below(KIND, KEY, base.to_owned(), since);
    Ok(Some(
        below.and(Changes::unless_written(KIND, KEY, above, since)),
    ))
}

/// Refuses to delete a reservation while an agent of another owner serves a name below it (446). Admins may
/// delete it.
pub(crate) async fn may_unreserve(cx: &Cx<'_>, name: &str) -> Result<(), Error> {
    if cx.caller.role == Role::Admin {
        return Ok(());
    }
    let mut documents: Vec<Document> = Vec::new();
    documents.extend(cx.store.find(KIND, KEY, name).await?);
    if let Some(end) = name.strip_prefix('*') {
        documents.extend(cx.store.find_ending(KIND, KEY, end).await?);
    }
    for document in documents {
        let known: Host = stored::read(&document)?;
        if !known.endpoint_ids.is_empty()
            && known.account == cx.caller.account
            && known.owner_id != cx.caller.owner_id
        {
            let why = format!(
                "Another owner serves `{}`, which this reservation covers; only admins may delete it.",
                known.name
            );
            return Err(Refusal::new(code::ADDRESS_IN_USE, why).into());
        }
    }
    Ok(())
}

fn another(name: &str) -> Error {
    let host = name.split(' ').next().unwrap_or(name);
    let why = format!(
        "Another owner uses the name `{host}`, a wildcard that covers it or a name under it, or \
         it is reserved for an agent that may reconnect."
    );
    Refusal::new(code::ENDPOINT_URL_NOT_RESERVED, why).into()
}

/// An internal name with endpoints.
#[derive(Debug)]
pub struct InternalName {
    /// A host, which may be a wildcard.
    pub name: String,
    /// The owner of the endpoints at the name.
    pub owner_id: String,
    /// The endpoints at the name.
    pub endpoint_ids: Vec<String>,
}

/// The internal name of an account that covers a host: an exact match, or the nearest wildcard above. `None` if it has
/// no endpoint.
pub async fn internal(
    store: &Store,
    account: &str,
    host: &str,
) -> Result<Option<InternalName>, Fault> {
    let names = std::iter::once(host.to_owned()).chain(wildcards_above(host));
    for name in names {
        let key = format!("{name} {account}");
        if let Some(document) = store.find(KIND, KEY, &key).await? {
            let held: Host = stored::read(&document)?;
            if !held.endpoint_ids.is_empty() {
                return Ok(Some(InternalName {
                    name,
                    owner_id: held.owner_id,
                    endpoint_ids: held.endpoint_ids,
                }));
            }
        }
    }
    Ok(None)
}

/// The owner for whom an internal name without endpoints is reserved, because an agent may reconnect.
pub(crate) async fn reserved_for(
    store: &Store,
    account: &str,
    host: &str,
    now: Timestamp,
) -> Result<Option<String>, Fault> {
    let key = format!("{host} {account}");
    let Some(document) = store.find(KIND, KEY, &key).await? else {
        return Ok(None);
    };
    let known: Host = stored::read(&document)?;
    Ok(known.is_held(now).then_some(known.owner_id))
}

/// Whether a public TCP address belongs to another owner, whose agent may reconnect.
pub async fn is_anothers(cx: &Cx<'_>, name: &str) -> Result<bool, Fault> {
    match cx.store.find(KIND, KEY, name).await? {
        Some(document) => Ok(!stored::read::<Host>(&document)?.admits(cx)),
        None => Ok(false),
    }
}

/// The write that removes endpoints from a name. With `kept`, a name without endpoints stays reserved for its
/// owner for that long.
pub async fn leave(
    cx: &Cx<'_>,
    endpoint_ids: &[&str],
    name: &str,
    kept: Option<Duration>,
) -> Result<Changes, Fault> {
    let Some(document) = cx.store.find(KIND, KEY, name).await? else {
        return Ok(Changes::default());
    };
    let mut host: Host = stored::read(&document)?;
    let before = host.endpoint_ids.len();
    host.endpoint_ids
        .retain(|id| !endpoint_ids.contains(&&**id));
    if host.endpoint_ids.len() == before {
        return Ok(Changes::default());
    }
    if host.endpoint_ids.is_empty() {
        let Some(kept) = kept.filter(|kept| !kept.is_zero()) else {
            return Ok(Changes::remove(document.head, NOTHING));
        };
        host.kept_until = Some(cx.clock.now().plus(kept));
    }
    host.put(document)
}

/// Stores the name of an endpoint that was stored before names were recorded. Does nothing if the name is
/// known.
pub async fn note(store: &Store, endpoint: &Head, name: &str, owner_id: &str) -> Result<(), Fault> {
    let found = store.find(KIND, KEY, name).await?;
    let id = endpoint.id.clone();
    let changes = match found {
        Some(document) => {
            let mut host: Host = stored::read(&document)?;
            if host.endpoint_ids.contains(&id) {
                return Ok(());
            }
            host.endpoint_ids.push(id);
            host.put(document)?
        }
        None => {
            let host = Host {
                format: Format,
                name: name.to_owned(),
                account: endpoint.account.clone(),
                owner_id: owner_id.to_owned(),
                endpoint_ids: vec![id.clone()],
                kept_until: None,
            };
            let body = culvert_base::id::split(&id).map_or("", |(_, body)| body);
            let document = host.document(body, endpoint.created_at)?;
            Changes::insert(document, NOTHING)
        }
    };
    match store.commit(changes).await {
        Err(CommitError::Fault(fault)) => Err(fault),
        // Another server may do this concurrently.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The owner of a name without endpoints, and until when it is reserved.
pub fn kept(document: &Document) -> Option<ReservedName> {
    let host: Host = stored::read(document).ok()?;
    if !host.endpoint_ids.is_empty() {
        return None;
    }
    Some(ReservedName {
        until: host.kept_until?,
        owner_id: host.owner_id,
        head: document.head.clone(),
    })
}

/// A name without endpoints, from [`kept`].
#[derive(Clone, Debug)]
pub struct ReservedName {
    /// When the reservation ends.
    pub until: Timestamp,
    /// The owner for whom it is reserved.
    pub owner_id: String,
    /// Head of the document of the reservation.
    pub head: Head,
}

/// Removes an expired name, unless it was taken meanwhile.
pub async fn forget(store: &Store, kept: ReservedName) -> Result<(), Fault> {
    match store.commit(Changes::remove(kept.head, NOTHING)).await {
        Err(CommitError::Fault(fault)) => Err(fault),
        Ok(_) | Err(_) => Ok(()),
    }
}
