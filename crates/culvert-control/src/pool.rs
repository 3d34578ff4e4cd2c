//! The TCP pool: which of the installation's addresses are taken, by a reservation or by an endpoint
//! that asked for any.
//!
//! An address that was ever handed out has one document, found by the address, that stays when it is
//! released. So addresses that nobody had go first, each equally likely, and then the one released
//! longest ago: clients of a former holder are not met by strangers while that can be avoided. There
//! are at most as many documents as the pool has ports. An owner without the role of an admin has half
//! of them at most, so that there are some for others.

use std::collections::HashSet;

use culvert_base::Timestamp;
use culvert_store::{AuditEvent, Changes, Document, Head, Key};
use serde::{Deserialize, Serialize};

use crate::cx::Cx;
use crate::settings::Settings;
use crate::stored::{self, Format};
use crate::{Error, host as hosts, owner};

const KIND: &str = "tcp_pool_address";
const PREFIX: &str = "tcpadr";
const KEY: &str = "address";

const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "the pool is bookkeeping of the installation",
};

/// A port of [`host`], taken once `taking` is committed.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) port: u16,
    pub(crate) taking: Changes,
}

#[derive(Debug, Deserialize, Serialize)]
struct Lot {
    format: Format<1>,
    is_taken: bool,
    /// Until when a released address is not given to others.
    #[serde(default)]
    kept_until: Option<Timestamp>,
    /// The owner of the key or credential it was taken with. Nothing in one that was taken before this was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner_id: Option<String>,
}

/// The host of every address of the pool.
pub(crate) fn host(settings: &Settings) -> String {
    format!("1.tcp.{}", &*settings.edge_domain)
}

/// An available address. `None` if there is none, or if the owner is at the limit.
pub(crate) async fn take(cx: &Cx<'_>) -> Result<Option<Taken>, Error> {
    let (host, now) = (host(cx.settings), cx.clock.now());
    let mut known = HashSet::new();
    let mut n_own = 0;
    let mut released: Vec<(u16, Document)> = Vec::new();
    let mut kept: Vec<(u16, Document)> = Vec::new();
    for document in cx.store.all(KIND).await? {
        let Some(port) = port_of(&document, &host) else {
            continue;
        };
        known.insert(port);
        let lot: Lot = stored::read(&document)?;
        let is_own = lot.owner_id.as_deref() == Some(&*cx.caller.owner_id);
        n_own += usize::from(lot.is_taken && is_own);
        let is_free = !lot.is_taken && lot.kept_until.is_none_or(|until| until <= now);
        if is_free {
            released.push((port, document));
        } else if !lot.is_taken {
            kept.push((port, document));
        }
    }
    let ports = cx.settings.tcp_ports.clone();
    let is_at_limit = n_own >= ports.clone().count().div_ceil(2);
    if is_at_limit && !owner::is_admin(cx, &cx.caller.owner_id).await? {
        return Ok(None);
    }
    let fresh: Vec<u16> = ports.clone().filter(|port| !known.contains(port)).collect();
    let random = usize::from(u16::from_le_bytes(cx.entropy.bytes()));
    let pick = random
        .checked_rem(fresh.len())
        .and_then(|index| fresh.get(index).copied());
    if let Some(port) = pick {
        let id = cx.new_id();
        let document = Document {
            head: Head {
                id: format!("{PREFIX}_{id}"),
                kind: KIND.to_owned(),
                account: String::new(),
                revision: 0,
                created_at: id.at(),
                updated_at: id.at(),
            },
            body: taken_by(cx)?,
            keys: vec![Key::new(KEY, format!("{host}:{port}"))],
            refs: Vec::new(),
            topics: Vec::new(),
        };
        let taking = Changes::insert(document, NOTHING);
        return Ok(Some(Taken { port, taking }));
    }
    // Released longest ago first. Before there is none at all, one that is reserved for the caller's own
    // agents.
    for lots in [&mut released, &mut kept] {
        lots.retain(|(port, _)| ports.contains(port));
        lots.sort_by_key(|(_, document)| document.head.revision);
    }
    let mut found = None;
    for (port, document) in released.into_iter().chain(kept) {
        // An agent may still be about to leave it, or have its name reserved.
        if !hosts::is_anothers(cx, &format!("{host}:{port}")).await? {
            found = Some((port, document));
            break;
        }
    }
    let Some((port, mut document)) = found else {
        return Ok(None);
    };
    document.body = taken_by(cx)?;
    let taking = Changes::replace(document, NOTHING);
    Ok(Some(Taken { port, taking }))
}

/// An address for who had it before, unless somebody else has it now. `None` also where the
/// installation has no such address.
pub(crate) async fn take_again(cx: &Cx<'_>, address: &str) -> Result<Option<Changes>, Error> {
    let Some(mut document) = cx.store.find(KIND, KEY, address).await? else {
        return Ok(None);
    };
    if stored::read::<Lot>(&document)?.is_taken {
        return Ok(None);
    }
    document.body = taken_by(cx)?;
    Ok(Some(Changes::replace(document, NOTHING)))
}

/// The write by which `host:port` is free for others.
pub(crate) async fn release(cx: &Cx<'_>, address: &str) -> Result<Changes, Error> {
    release_after(cx, address, None).await
}

/// The same; none but who had it gets it before that time.
pub(crate) async fn release_after(
    cx: &Cx<'_>,
    address: &str,
    kept_until: Option<Timestamp>,
) -> Result<Changes, Error> {
    let Some(mut document) = cx.store.find(KIND, KEY, address).await? else {
        return Ok(Changes::default());
    };
    document.body = released(kept_until)?;
    Ok(Changes::replace(document, NOTHING))
}

fn port_of(document: &Document, host: &str) -> Option<u16> {
    let address = document.keys.first()?.value.strip_prefix(host)?;
    address.strip_prefix(':')?.parse().ok()
}

fn taken_by(cx: &Cx<'_>) -> Result<String, Error> {
    Ok(stored::write(&Lot {
        format: Format,
        is_taken: true,
        kept_until: None,
        owner_id: Some(cx.caller.owner_id.clone()),
    })?)
}

fn released(kept_until: Option<Timestamp>) -> Result<String, Error> {
    Ok(stored::write(&Lot {
        format: Format,
        is_taken: false,
        kept_until,
        owner_id: None,
    })?)
}
