//! The TCP pool: tracks which of the installation's addresses have a reservation, or an endpoint that
//! requested any address.
//!
//! Every address that was ever assigned has one document, found by the address, which stays when the address
//! is released. The pool assigns addresses that were never used first, chosen at random, and then the one
//! released longest ago. So clients of a former holder reach another owner only if that cannot be avoided.
//! There are at most as many documents as the pool has ports.
//!
//! An owner without the role admin has at most half of the addresses, so that some are left for others. Each of
//! these addresses has a number below the limit that is unique among those of its owner. Of two concurrent
//! requests that would exceed the limit, on one node or two, the store refuses one. An address that is kept
//! for its owner still counts.

use std::collections::{BTreeMap, HashSet};

use culvert_base::Timestamp;
use culvert_resources::Error;
use culvert_resources::access::owner;
use culvert_resources::cx::Cx;
use culvert_resources::settings::Settings;
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, Document, Head, Key};
use serde::{Deserialize, Serialize};

use crate::host as hosts;

const KIND: &str = "tcp_pool_address";
const PREFIX: &str = "tcpadr";
const KEY: &str = "address";
/// Name of the unique key of owner and number.
const SLOT: &str = "slot";

const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "the pool is bookkeeping of the installation",
};

/// A port of [`host`]; committing `pool_changes` assigns it.
#[derive(Debug)]
pub struct Taken {
    /// The port of the address.
    pub port: u16,
    pub(crate) pool_changes: Changes,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Lot {
    format: Format<1>,
    is_taken: bool,
    /// Until when a released address is kept for its former holder.
    #[serde(default)]
    kept_until: Option<Timestamp>,
    /// The owner of the key or credential that took it, while it is taken or kept. `None` if it was taken
    /// before this was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner_id: Option<String>,
    /// Its number among the addresses of the owner; `None` for those of admins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<usize>,
}

/// An address that was assigned before.
#[derive(Debug)]
struct KnownLot {
    port: u16,
    lot: Lot,
    document: Document,
}

impl KnownLot {
    /// Whether it is kept for its former holder.
    fn is_kept(&self, now: Timestamp) -> bool {
        !self.lot.is_taken && self.lot.kept_until.is_some_and(|until| until > now)
    }

    fn is_of(&self, cx: &Cx<'_>) -> bool {
        self.lot.owner_id.as_deref() == Some(&*cx.caller.owner_id)
    }
}

/// The addresses that were assigned before.
async fn known_lots(cx: &Cx<'_>) -> Result<Vec<KnownLot>, Error> {
    let host = host(cx.settings);
    let mut lots = Vec::new();
    for document in cx.store.all(KIND).await? {
        if let Some(port) = port_of(&document, &host) {
            lots.push(KnownLot {
                port,
                lot: stored::read(&document)?,
                document,
            });
        }
    }
    Ok(lots)
}

/// How the next address of the caller counts.
#[derive(Debug)]
enum NextSlot {
    /// Admins have no limit.
    Unlimited,
    /// Under this number. An address that is no longer kept may have to release the number first.
    Free(usize, Option<Document>),
    Full,
}

impl NextSlot {
    async fn of(cx: &Cx<'_>, lots: &[KnownLot]) -> Result<Self, Error> {
        if owner::is_caller_admin(cx).await? {
            return Ok(Self::Unlimited);
        }
        let now = cx.clock.now();
        let limit = cx.settings.tcp_ports.clone().count().div_ceil(2);
        let mut used = HashSet::new();
        let mut lapsed = BTreeMap::new();
        // Addresses from before numbers were introduced.
        let mut n_unnumbered = 0;
        for known in lots.iter().filter(|known| known.is_of(cx)) {
            let counts = known.lot.is_taken || known.is_kept(now);
            match known.lot.slot {
                Some(slot) if counts => {
                    used.insert(slot);
                }
                Some(slot) => {
                    lapsed.insert(slot, known);
                }
                None => n_unnumbered += usize::from(counts),
            }
        }
        let mut slots = 0..limit.saturating_sub(n_unnumbered);
        let Some(slot) = slots.find(|slot| !used.contains(slot)) else {
            return Ok(Self::Full);
        };
        let lapsed = match lapsed.get(&slot) {
            Some(known) => {
                let released = Lot::released(None, known.lot.clone());
                Some(released.written(known.document.clone())?)
            }
            None => None,
        };
        Ok(Self::Free(slot, lapsed))
    }

    /// The writes that assign `document` to the caller.
    fn take(self, cx: &Cx<'_>, document: Document) -> Result<Changes, Error> {
        let (slot, lapsed) = match self {
            Self::Free(slot, lapsed) => (Some(slot), lapsed),
            Self::Unlimited | Self::Full => (None, None),
        };
        let lapsed = lapsed.filter(|lapsed| lapsed.head.id != document.head.id);
        let freed =
            lapsed.map_or_else(Changes::default, |lapsed| Changes::replace(lapsed, NOTHING));
        let is_new = document.head.revision == 0;
        let taken = Lot::taken_by(cx, slot).written(document)?;
        Ok(freed.and(match is_new {
            true => Changes::insert(taken, NOTHING),
            false => Changes::replace(taken, NOTHING),
        }))
    }

    /// The writes that assign a known address. An address that is kept for the caller already counts.
    fn take_again(self, cx: &Cx<'_>, known: KnownLot) -> Result<Option<Changes>, Error> {
        let is_own = known.is_of(cx) && known.is_kept(cx.clock.now());
        match self {
            Self::Full if !is_own => Ok(None),
            Self::Free(..) | Self::Full if is_own && known.lot.slot.is_some() => {
                let taken = Lot::taken_by(cx, known.lot.slot).written(known.document)?;
                Ok(Some(Changes::replace(taken, NOTHING)))
            }
            next => Ok(Some(next.take(cx, known.document)?)),
        }
    }
}

impl Lot {
    fn taken_by(cx: &Cx<'_>, slot: Option<usize>) -> Self {
        Self {
            format: Format,
            is_taken: true,
            kept_until: None,
            owner_id: Some(cx.caller.owner_id.clone()),
            slot,
        }
    }

    /// A released address. It counts for its holder while it is kept.
    fn released(kept_until: Option<Timestamp>, before: Self) -> Self {
        Self {
            format: Format,
            is_taken: false,
            kept_until,
            owner_id: before.owner_id.filter(|_| kept_until.is_some()),
            slot: before.slot.filter(|_| kept_until.is_some()),
        }
    }

    /// The document of its address with this state.
    fn written(&self, mut document: Document) -> Result<Document, Error> {
        document.body = stored::write(self)?;
        document.keys.retain(|key| key.name == KEY);
        if let (Some(owner_id), Some(slot)) = (&self.owner_id, self.slot) {
            let value = format!("{owner_id} {slot}");
            document.keys.push(Key::new(SLOT, value));
        }
        Ok(document)
    }
}

/// The host of every address of the pool.
pub fn host(settings: &Settings) -> String {
    format!("1.tcp.{}", &*settings.edge_domain)
}

/// An available address, with the preferred port if that is as good a choice as others. `None` if there is none, or if
/// the owner is at the limit.
pub async fn take(cx: &Cx<'_>, preferred: Option<u16>) -> Result<Option<Taken>, Error> {
    let (host, now) = (host(cx.settings), cx.clock.now());
    let mut lots = known_lots(cx).await?;
    let next = NextSlot::of(cx, &lots).await?;
    let ports = cx.settings.tcp_ports.clone();
    if let NextSlot::Full = next {
        lots.retain(|known| known.is_of(cx));
    } else {
        let known: HashSet<u16> = lots.iter().map(|known| known.port).collect();
        let fresh: Vec<u16> = ports.clone().filter(|port| !known.contains(port)).collect();
        let random = usize::from(u16::from_le_bytes(cx.entropy.bytes()));
        let pick = random
            .checked_rem(fresh.len())
            .and_then(|index| fresh.get(index).copied());
        let preferred = preferred.filter(|port| fresh.contains(port));
        if let Some(port) = preferred.or(pick) {
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
                body: String::new(),
                keys: vec![Key::new(KEY, format!("{host}:{port}"))],
                refs: Vec::new(),
                topics: Vec::new(),
            };
            let pool_changes = next.take(cx, document)?;
            return Ok(Some(Taken { port, pool_changes }));
        }
    }
    // Sort by release, the oldest first. Addresses kept for the caller's own agents come last.
    lots.retain(|known| !known.lot.is_taken && ports.contains(&known.port));
    lots.sort_by_key(|known| {
        let is_other = preferred != Some(known.port);
        (known.is_kept(now), is_other, known.document.head.revision)
    });
    for known in lots {
        // An agent may still be releasing it, or its name may be reserved.
        if !hosts::is_anothers(cx, &format!("{host}:{}", known.port)).await? {
            let port = known.port;
            let pool_changes = next.take_again(cx, known)?;
            return Ok(pool_changes.map(|pool_changes| Taken { port, pool_changes }));
        }
    }
    Ok(None)
}

/// Assigns an address again to its former holder. `None` if another owner has it now, if the owner is at the
/// limit, or if the pool has no such address.
pub(crate) async fn take_again(cx: &Cx<'_>, address: &str) -> Result<Option<Changes>, Error> {
    let mut lots = known_lots(cx).await?;
    let next = NextSlot::of(cx, &lots).await?;
    let is_it = |known: &KnownLot| {
        let mut keys = known.document.keys.iter();
        keys.any(|key| key.name == KEY && key.value == address)
    };
    let Some(at) = lots.iter().position(is_it) else {
        return Ok(None);
    };
    let known = lots.swap_remove(at);
    match known.lot.is_taken {
        true => Ok(None),
        false => next.take_again(cx, known),
    }
}

/// The write that releases `host:port`.
pub(crate) async fn release(cx: &Cx<'_>, address: &str) -> Result<Changes, Error> {
    release_after(cx, address, None).await
}

/// The write that releases `host:port` but keeps it for its former holder until that time.
pub(crate) async fn release_after(
    cx: &Cx<'_>,
    address: &str,
    kept_until: Option<Timestamp>,
) -> Result<Changes, Error> {
    let Some(document) = cx.store.find(KIND, KEY, address).await? else {
        return Ok(Changes::default());
    };
    let released = Lot::released(kept_until, stored::read(&document)?);
    Ok(Changes::replace(released.written(document)?, NOTHING))
}

fn port_of(document: &Document, host: &str) -> Option<u16> {
    let key = document.keys.iter().find(|key| key.name == KEY)?;
    key.value
        .strip_prefix(host)?
        .strip_prefix(':')?
        .parse()
        .ok()
}
