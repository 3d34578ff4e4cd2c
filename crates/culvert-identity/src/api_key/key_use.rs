//! When and from where each API key and each of its tokens was used last, and for which operations.
//!
//! Calls note their use in memory. A task writes it once a minute, and earlier if many keys are used, so a node that fails
//! loses the uses of up to a minute.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::net::plain_address;
use culvert_base::{Fault, Timestamp};
use culvert_resources::access::caller::Caller;
use culvert_resources::access::key_uses::{Called, KeyCalls, KeyUses, Use};
use culvert_resources::resource::model::Model;
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, Store};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::Identity;
use crate::api_key::model::ApiKey;

const KIND: &str = "key_uses";
const SILENT: AuditEvent = AuditEvent::Suppress {
    reason: "the use of a key changes no object",
};
const WRITE_EVERY: Duration = Duration::from_secs(60);
/// How often the uses of deleted keys are removed.
const CLEAN_EVERY: Duration = Duration::from_secs(3_600);
/// Limit of pairs of key and operation in one frame of statistics.
const PAIRS_MAX: usize = 500;
/// Limit of keys in one commit.
const BATCH: usize = 100;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
struct Stored {
    format: Format<1>,
    at: Timestamp,
    from: IpAddr,
    /// The last uses of its valid tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tokens: Vec<StoredToken>,
}

/// The stored last use of a token.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct StoredToken {
    digest: String,
    at: Timestamp,
    from: IpAddr,
}

/// The last use of a key or of a token: when and from where.
pub(crate) type LastUse = (Timestamp, IpAddr);

/// The last use of a key, and of each of its tokens by digest.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyUse {
    /// Of the key, with whichever token.
    pub(crate) last: Option<LastUse>,
    tokens: Vec<StoredToken>,
}

impl KeyUse {
    /// The last use of the token with this digest.
    pub(crate) fn of(&self, digest: &str) -> Option<LastUse> {
        let its = self.tokens.iter().filter(|one| one.digest == digest);
        its.map(|one| (one.at, one.from)).max_by_key(|(at, _)| *at)
    }

    fn add(&mut self, at: Timestamp, from: IpAddr) {
        if self.last.is_none_or(|(known, _)| known < at) {
            self.last = Some((at, from));
        }
    }
}

/// The last use of each token of a key that this use knows of.
fn tokens_of(one: &Use) -> impl Iterator<Item = StoredToken> {
    one.tokens.iter().flatten().map(|token| StoredToken {
        digest: token.digest.to_string(),
        at: token.at,
        from: token.from,
    })
}

/// The stored last use of each key, by the ID of the key. The last minute may be missing.
///
/// # Errors
/// If the store fails.
pub async fn stored_uses(store: &Store) -> Result<HashMap<String, Timestamp>, Fault> {
    let mut uses = HashMap::new();
    for document in store.all(KIND).await? {
        let stored: Stored = stored::read(&document)?;
        let (_, body) = document.head.id.split_once('_').unwrap_or_default();
        uses.insert(format!("{}_{body}", ApiKey::ID_PREFIX), stored.at);
    }
    Ok(uses)
}

/// The last uses of these keys that this node knows of, in their order.
pub(crate) async fn last_uses(
    store: &Store,
    key_uses: &KeyUses,
    key_ids: &[&str],
) -> Result<Vec<KeyUse>, Fault> {
    let ids: Vec<String> = key_ids.iter().map(|id| id_of(id)).collect();
    let mut known = HashMap::new();
    for document in store.get_many(&ids).await? {
        let stored: Stored = stored::read(&document)?;
        known.insert(document.head.id, stored);
    }
    let last = |(key_id, id): (&&str, &String)| {
        let mut found = KeyUse::default();
        if let Some(stored) = known.remove(id) {
            found.add(stored.at, stored.from);
            found.tokens = stored.tokens;
        }
        if let Some(own) = key_uses.last(key_id) {
            found.add(own.at, own.from);
            found.tokens.extend(tokens_of(&own));
        }
        found
    };
    Ok(key_ids.iter().zip(&ids).map(last).collect())
}

/// The ID of the document for a key.
fn id_of(key_id: &str) -> String {
    let (_, body) = key_id.split_once('_').unwrap_or_default();
    format!("kuse_{body}")
}

impl Identity {
    /// Notes that the caller's key was used from this address.
    pub fn note_key_use(&self, caller: &Caller, address: IpAddr) {
        self.note_call(caller, address, None);
    }

    /// Notes that the caller's key was used from this address, for this operation.
    pub fn note_call(&self, caller: &Caller, address: IpAddr, called: Option<Called>) {
        if caller.key_id.is_empty() {
            return;
        }
        let (at, from) = (self.kernel.clock.now(), plain_address(address));
        self.kernel.key_uses.note_use(caller, at, from, called);
    }

    /// Takes the calls by key and operation since the last time, for a frame of statistics: at most as many pairs as one
    /// may have, and the others the next time.
    pub fn take_key_calls(&self) -> Vec<KeyCalls> {
        self.kernel.key_uses.take_calls(PAIRS_MAX)
    }

    /// Writes the uses of keys, until cancelled.
    pub async fn keep_key_uses(self: Arc<Self>, cancel: CancellationToken) {
        let mut write = tokio::time::interval(WRITE_EVERY);
        let mut clean = tokio::time::interval(CLEAN_EVERY);
        loop {
            let done = tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                _ = clean.tick() => self.clean_key_uses().await,
                _ = write.tick() => self.write_key_uses().await,
                () = self.kernel.key_uses.crowded() => self.write_key_uses().await,
            };
            if let Err(fault) = done {
                warn!(cause = %fault.chain(), "the last uses of API keys are written later");
            }
        }
        if let Err(fault) = self.write_key_uses().await {
            warn!(cause = %fault.chain(), "the last uses of API keys were not written");
        }
    }

    /// Writes the uses since the last write.
    pub async fn write_key_uses(&self) -> Result<(), Fault> {
        for batch in self.kernel.key_uses.due().chunks(BATCH) {
            let mut writes = Vec::new();
            for (key_id, one) in batch {
                writes.extend(self.key_use_write(key_id, one).await?);
            }
            let Some(changes) = writes.into_iter().reduce(Changes::and) else {
                self.kernel.key_uses.set_written(batch);
                continue;
            };
            match self.kernel.store.commit(changes).await {
                Ok(_) => self.kernel.key_uses.set_written(batch),
                Err(CommitError::Fault(fault)) => return Err(fault),
                // Another node wrote one of them meanwhile; the next write is soon enough.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The write of one use; `None` if there is a newer one, or the key is deleted.
    async fn key_use_write(&self, key_id: &str, one: &Use) -> Result<Option<Changes>, Fault> {
        let Some(key) = self.kernel.store.get(ApiKey::KIND, key_id).await? else {
            return Ok(None);
        };
        let key: ApiKey = stored::read(&key)?;
        let id = id_of(key_id);
        let known = self.kernel.store.get(KIND, &id).await?;
        let before: Option<Stored> = known.as_ref().map(stored::read).transpose()?;
        let mut all = KeyUse::default();
        if let Some(before) = &before {
            all.add(before.at, before.from);
            all.tokens.clone_from(&before.tokens);
        }
        all.add(one.at, one.from);
        all.tokens.extend(tokens_of(one));
        let Some((at, from)) = all.last else {
            return Ok(None);
        };
        // Only the tokens that the key has, so that the document does not grow.
        let previous = key.previous.as_ref().map(|previous| &previous.digest);
        let digests = std::iter::once(&key.digest).chain(previous);
        let tokens = digests.filter_map(|digest| {
            let (at, from) = all.of(digest)?;
            let digest = digest.clone();
            Some(StoredToken { digest, at, from })
        });
        let stored = Stored {
            format: Format,
            at,
            from,
            tokens: tokens.collect(),
        };
        let body = stored::write(&stored)?;
        let Some(known) = known else {
            let now = self.kernel.clock.now().whole_seconds();
            let head = Head {
                id,
                kind: KIND.to_owned(),
                account: one.account.clone(),
                revision: 0,
                created_at: now,
                updated_at: now,
            };
            let document = Document {
                head,
                body,
                keys: Vec::new(),
                refs: Vec::new(),
                topics: Vec::new(),
            };
            return Ok(Some(Changes::insert(document, SILENT)));
        };
        let has_changes = known.body != body;
        Ok(has_changes.then(|| Changes::replace(Document { body, ..known }, SILENT)))
    }

    /// Removes the uses of deleted keys.
    pub async fn clean_key_uses(&self) -> Result<(), Fault> {
        for document in self.kernel.store.all(KIND).await? {
            let (_, body) = document.head.id.split_once('_').unwrap_or_default();
            let key_id = format!("{}_{body}", ApiKey::ID_PREFIX);
            if self
                .kernel
                .store
                .get(ApiKey::KIND, &key_id)
                .await?
                .is_none()
            {
                let removed = self
                    .kernel
                    .store
                    .commit(Changes::remove(document.head, SILENT));
                if let Err(CommitError::Fault(fault)) = removed.await {
                    return Err(fault);
                }
            }
        }
        Ok(())
    }
}
