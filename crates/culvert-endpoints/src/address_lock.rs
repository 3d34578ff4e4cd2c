//! Locks addresses so that two endpoints share a host and port only if both use pooling.
//!
//! Each address in use has one document, found by the address, that lists its endpoints. The endpoint and
//! this document are written in one commit. Of two endpoints that want an address concurrently, one is
//! decided again.

use culvert_base::{Refusal, code};
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, Document, Head, Key};
use serde::{Deserialize, Serialize};

use crate::endpoint::address::written;
use crate::host;

/// Document kind.
const KIND: &str = "endpoint_address";
const PREFIX: &str = "adr";
const KEY: &str = "address";

/// Writes of locks emit no events.
const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "addresses are bookkeeping of endpoints, which have no events",
};

#[derive(Debug, Deserialize, Serialize)]
struct AddressLock {
    format: Format<1>,
    /// `<port> <host>`, plus the account for an internal address.
    address: String,
    /// The URL of all endpoints at the address.
    url: String,
    /// Whether the endpoints pool; an endpoint without pooling is the only one.
    pooling: bool,
    endpoint_ids: Vec<String>,
}

/// An endpoint and the address that it requests.
#[derive(Debug)]
pub struct AddressRequest<'a> {
    /// ID of the endpoint that wants the address.
    pub endpoint_id: &'a str,
    /// `<port> <host>`, plus the account for an internal address.
    pub address: String,
    /// URL of the endpoint.
    pub url: &'a str,
    /// Whether it shares its URL with other endpoints.
    pub pooling: bool,
    /// The name whose owner is checked; see [`host`].
    pub name: String,
    /// The owner of the endpoint.
    pub owner_id: &'a str,
}

/// The write that adds an endpoint to an address and to its name.
pub async fn join(cx: &Cx<'_>, want: AddressRequest<'_>) -> Result<Changes, Error> {
    let named = host::join(cx, want.named()).await?;
    Ok(named.and(join_address(cx, want).await?))
}

impl AddressRequest<'_> {
    fn named(&self) -> host::NameRequest<'_> {
        host::NameRequest {
            endpoint_id: self.endpoint_id,
            name: &self.name,
            owner_id: self.owner_id,
        }
    }
}

async fn join_address(cx: &Cx<'_>, want: AddressRequest<'_>) -> Result<Changes, Error> {
    let Some(document) = cx.store.find(KIND, KEY, &want.address).await? else {
        return first_there(cx, want);
    };
    if document.head.account != cx.caller.account {
        return Err(Refusal::new(
            code::ENDPOINT_URL_NOT_RESERVED,
            "The `url` belongs to another account.",
        )
        .into());
    }
    let mut claim: AddressLock = stored::read(&document)?;
    let is_alone = claim.endpoint_ids.iter().all(|id| id == want.endpoint_id);
    if !is_alone {
        if !want.pooling {
            return Err(Refusal::of(code::ENDPOINT_POOLING_DISABLED).into());
        }
        if !claim.pooling {
            return Err(Refusal::of(code::ENDPOINT_URL_NOT_POOLED).into());
        }
        // Earlier versions stored `tls` with its usual port, if it was sent.
        if written(&claim.url) != want.url {
            return Err(Refusal::new(
                code::ENDPOINT_POOLING_DISABLED,
                format!(
                    "`{}` already uses this host and port; all endpoints of a pool must have the same `url`.",
                    claim.url
                ),
            )
            .into());
        }
    }
    if !claim.endpoint_ids.iter().any(|id| id == want.endpoint_id) {
        claim.endpoint_ids.push(want.endpoint_id.to_owned());
    }
    claim.pooling = want.pooling;
    want.url.clone_into(&mut claim.url);
    Ok(Changes::replace(claim.document(document.head)?, NOTHING))
}

/// The write that adds an endpoint to an address that should be unused: a free one of the pool. Does not read
/// the lock. If another endpoint took the address meanwhile, the commit fails and another address is chosen.
pub async fn first(cx: &Cx<'_>, want: AddressRequest<'_>) -> Result<Changes, Error> {
    let named = host::join(cx, want.named()).await?;
    Ok(named.and(first_there(cx, want)?))
}

fn first_there(cx: &Cx<'_>, want: AddressRequest<'_>) -> Result<Changes, Error> {
    let claim = AddressLock {
        format: Format,
        address: want.address,
        url: want.url.to_owned(),
        pooling: want.pooling,
        endpoint_ids: vec![want.endpoint_id.to_owned()],
    };
    let id = cx.new_id();
    let head = Head {
        id: format!("{PREFIX}_{id}"),
        kind: KIND.to_owned(),
        account: cx.caller.account.clone(),
        revision: 0,
        created_at: id.at(),
        updated_at: id.at(),
    };
    Ok(Changes::insert(claim.document(head)?, NOTHING))
}

/// The write that removes several endpoints from an address; [`host::leave`] removes them from their name.
pub(crate) async fn leave_all(
    cx: &Cx<'_>,
    endpoint_ids: &[&str],
    address: &str,
) -> Result<Changes, Error> {
    let Some(document) = cx.store.find(KIND, KEY, address).await? else {
        return Ok(Changes::default());
    };
    let mut claim: AddressLock = stored::read(&document)?;
    claim
        .endpoint_ids
        .retain(|id| !endpoint_ids.contains(&&**id));
    if claim.endpoint_ids.is_empty() {
        return Ok(Changes::remove(document.head, NOTHING));
    }
    Ok(Changes::replace(claim.document(document.head)?, NOTHING))
}

/// IDs of the endpoints at an address.
pub async fn at(cx: &Cx<'_>, address: &str) -> Result<Vec<String>, Error> {
    match cx.store.find(KIND, KEY, address).await? {
        Some(document) => Ok(stored::read::<AddressLock>(&document)?.endpoint_ids),
        None => Ok(Vec::new()),
    }
}

impl AddressLock {
    fn document(self, head: Head) -> Result<Document, Error> {
        Ok(Document {
            head,
            body: stored::write(&self)?,
            keys: vec![Key::new(KEY, self.address)],
            refs: Vec::new(),
            topics: Vec::new(),
        })
    }
}
