//! The overlap of a rotation: the time in which the token before it still works.
//!
//! A document for each overlap says which events it had, so each comes once, whatever nodes and restarts do.
//! The task that watches reads those documents, which are few, and not all keys. It also removes the digest of a token
//! that has ended from its key, so that a clock that is set back later does not make the token work again.

use std::time::Duration;

use culvert_base::{Fault, Refusal, Timestamp};
use culvert_events::catalogue::AuditKind;
use culvert_resources::access::owner::Owner;
use culvert_resources::audit;
use culvert_resources::cx::Cx;
use culvert_resources::input::force::FORCED;
use culvert_resources::operation::{Call, Reply};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Running, StoredDraft};
use culvert_resources::service::{self, Attempts};
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::api_key::key_use::{KeyUse, last_uses};
use crate::api_key::model::ApiKey;
use crate::lockout::{Taken, leave_a_way_in};
use crate::{Identity, api_key};

/// The kind of the event of a token that is still used shortly before its overlap ends.
pub const API_KEY_OVERLAP_ENDING: &str = "api_key_overlap_ending.v0";
/// The kind of the event of an overlap that ended.
pub const API_KEY_OVERLAP_ENDED: &str = "api_key_overlap_ended.v0";
/// The kind of the event of a new token that was not used in the overlap.
pub const API_KEY_ROTATION_UNUSED: &str = "api_key_rotation_unused.v0";

const KIND: &str = "key_overlap";
const SILENT: AuditEvent = AuditEvent::Suppress {
    reason: "which events an overlap had is no object",
};
/// The reminder comes this long before the end, or with the last quarter of a shorter overlap.
const BEFORE_MAX: Duration = Duration::from_secs(86_400);
/// How long after the end it is reported: nodes write the last uses once a minute.
const SETTLED_AFTER: Duration = Duration::from_secs(120);

/// An overlap. The stored form.
#[derive(Debug, Deserialize, Serialize)]
struct Overlap {
    format: Format<1>,
    /// Digests of the token of the key since the rotation, and of the one before.
    token: String,
    previous: String,
    rotated_at: Timestamp,
    until: Timestamp,
    /// Whether it was reported that the token before is still used.
    #[serde(default)]
    is_warned: bool,
    /// Whether a caller ended it, with its event.
    #[serde(default)]
    is_ended: bool,
}

/// The object of these events.
#[derive(Serialize, JsonSchema)]
struct Shown<'a> {
    /// ID of the API key.
    id: &'a str,
    /// ID of its owner.
    owner_id: &'a str,
    /// The owner's e-mail address, or the bot's name.
    owner_name: &'a str,
    /// Description of the key.
    description: &'a str,
    /// When the key was rotated.
    #[schemars(with = "String", extend("format" = "date-time"))]
    rotated_at: Timestamp,
    /// When the overlap ends or ended.
    #[schemars(with = "String", extend("format" = "date-time"))]
    ends_at: Timestamp,
    /// When the token of the key was used last, since the rotation; null if it never was.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    token_last_used_at: Option<Timestamp>,
    /// When the token before the rotation was used last; null if that is not known.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    previous_token_last_used_at: Option<Timestamp>,
    /// Address of that use; empty if it is not known.
    previous_token_last_used_from: String,
}

/// The kinds of events about overlaps.
pub fn kinds() -> [AuditKind; 3] {
    let schema = audit::schema_of::<Shown<'static>>();
    [
        (
            API_KEY_OVERLAP_ENDING,
            "The overlap of a rotation ends within a day, or within a quarter of its length if that is shorter, and the \
             token before the rotation was used in the second half of the overlap. One event for an overlap.",
        ),
        (
            API_KEY_OVERLAP_ENDED,
            "The overlap of a rotation ended: by its time, which is reported two to three minutes later, or early by a \
             call, which `principal` shows.",
        ),
        (
            API_KEY_ROTATION_UNUSED,
            "The overlap of a rotation ended, and the new token was never used: what used the key works no more. It comes \
             two to three minutes after the end.",
        ),
    ]
    .map(|(name, doc)| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema: schema.clone(),
    })
}

impl Overlap {
    fn shown<'a>(
        &self,
        (id, key): (&'a str, &'a ApiKey),
        owner_name: &'a str,
        used: &KeyUse,
    ) -> Shown<'a> {
        let (at, from) = Option::unzip(used.of(&self.previous));
        Shown {
            id,
            owner_id: &key.owner_id,
            owner_name,
            description: &key.description,
            rotated_at: self.rotated_at.whole_seconds(),
            ends_at: self.until.whole_seconds(),
            token_last_used_at: used.of(&self.token).map(|(at, _)| at.whole_seconds()),
            previous_token_last_used_at: at.map(Timestamp::whole_seconds),
            previous_token_last_used_from: from.map_or(String::new(), |from| from.to_string()),
        }
    }

    /// Whether the token before is used in the second half.
    fn is_still_used(&self, used: &KeyUse) -> bool {
        let half = self.rotated_at.plus(self.until.since(self.rotated_at) / 2);
        used.of(&self.previous).is_some_and(|(at, _)| at >= half)
    }

    fn warns_at(&self) -> Timestamp {
        let length = self.until.since(self.rotated_at);
        self.until.minus(BEFORE_MAX.min(length / 4))
    }
}

/// The ID of the document for a key.
fn id_of(key_id: &str) -> String {
    let (_, body) = key_id.split_once('_').unwrap_or_default();
    format!("kovl_{body}")
}

fn key_id_of(document: &Document) -> String {
    let (_, body) = document.head.id.split_once('_').unwrap_or_default();
    format!("{}_{body}", ApiKey::ID_PREFIX)
}

/// The write that follows a rotation of this key: the new overlap, instead of an earlier one.
pub(crate) async fn rotated(cx: &Cx<'_>, head: &Head, key: &ApiKey) -> Result<Changes, Fault> {
    let id = id_of(&head.id);
    let known = cx.store.get(KIND, &id).await?;
    let Some(previous) = &key.previous else {
        let removal = known.map(|known| Changes::remove(known.head, SILENT));
        return Ok(removal.unwrap_or_default());
    };
    let now = cx.clock.now();
    let body = stored::write(&Overlap {
        format: Format,
        token: key.digest.clone(),
        previous: previous.digest.clone(),
        rotated_at: now,
        until: previous.until,
        is_warned: false,
        is_ended: false,
    })?;
    if let Some(known) = known {
        return Ok(Changes::replace(Document { body, ..known }, SILENT));
    }
    let head = Head {
        id,
        kind: KIND.to_owned(),
        account: head.account.clone(),
        revision: 0,
        created_at: now.whole_seconds(),
        updated_at: now.whole_seconds(),
    };
    let document = Document {
        head,
        body,
        keys: Vec::new(),
        refs: Vec::new(),
        topics: Vec::new(),
    };
    Ok(Changes::insert(document, SILENT))
}

/// `DELETE /api_keys/{id}/previous_token`.
pub(crate) fn run_end(identity: &Identity, call: Call) -> Running<'_> {
    let end = |call| end(identity, call);
    Box::pin(service::locked(&identity.kernel, &api_key::TYPE, call, end))
}

fn end(identity: &Identity, call: Call) -> Running<'_> {
    Box::pin(async move {
        let cx = identity.kernel.cx_of(&call, FORCED)?;
        let ty = &api_key::TYPE;
        let mut attempts = Attempts::of(cx.locks);
        loop {
            attempts.begin().await?;
            let document = service::named(&cx, ty, &call).await?;
            let document = document.ok_or_else(Refusal::not_found)?;
            cx.caller.may_write()?;
            let mut key: ApiKey = stored::read(&document)?;
            let now = cx.clock.now();
            let Some(previous) = key.valid_previous(now).cloned() else {
                return Err(Refusal::not_found().into());
            };
            key.previous = None;
            let id = document.head.id.as_str();
            let used = last_uses(cx.store, cx.key_uses, &[id]).await?;
            let used = used.into_iter().next().unwrap_or_default();
            // A new token that was never used may be lost.
            let way_in = match key.is_way_in() && used.of(&key.digest).is_none() {
                true => leave_a_way_in(&cx, &document.head.account, Taken::Key(id)).await?,
                false => Changes::default(),
            };
            let known = cx.store.get(KIND, &id_of(id)).await?;
            let overlap: Option<Overlap> = known.as_ref().map(stored::read).transpose()?;
            let overlap = Overlap {
                until: now,
                is_ended: true,
                // Rotations of earlier versions have no document.
                ..overlap.unwrap_or_else(|| Overlap {
                    format: Format,
                    token: key.digest.clone(),
                    previous: previous.digest,
                    rotated_at: key.issued_at(&document.head),
                    until: now,
                    is_warned: false,
                    is_ended: true,
                })
            };
            let owner = Owner::load(cx.store, &key.owner_id).await?;
            let owner_name = owner.map_or(String::new(), |(owner, _)| owner.subject);
            let shown = overlap.shown((id, &key), &owner_name, &used);
            let ended = audit::operation(&cx, API_KEY_OVERLAP_ENDED, &shown)?;
            let noted = match known {
                Some(known) => {
                    let body = stored::write(&overlap)?;
                    Changes::replace(Document { body, ..known }, SILENT)
                }
                None => Changes::default(),
            };
            let made = StoredDraft {
                body: stored::write(&key)?,
                links: key.links(&document.head),
                reveal: None,
                also: Changes::event(ended).and(way_in).and(noted),
            };
            if service::replace(&cx, ty, document, made).await?.is_some() {
                return Ok(Reply::NoContent);
            }
        }
    })
}

impl Identity {
    /// Reports the due events of overlaps as of `now`, and forgets tokens whose overlap has ended.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn watch_overlaps(&self, now: Timestamp) -> Result<(), Fault> {
        let mut failed = None;
        for document in self.kernel.store.all(KIND).await? {
            let overlap: Overlap = match stored::read(&document) {
                Ok(overlap) => overlap,
                Err(fault) => {
                    warn!(cause = %fault.chain(), id = document.head.id, "an overlap of a rotation cannot be read");
                    continue;
                }
            };
            let is_told = overlap.is_warned || overlap.is_ended;
            let reported = if now >= overlap.until.plus(SETTLED_AFTER) {
                self.end_overlap(document, overlap).await
            } else if now >= overlap.warns_at() && now < overlap.until && !is_told {
                self.warn_of_overlap(document, overlap).await
            } else {
                Ok(())
            };
            // One that fails keeps no other from being reported.
            failed = failed.or(reported.err());
        }
        failed.map_or(Ok(()), Err)
    }

    /// The key of an overlap, its use, and the name of its owner.
    async fn key_of_overlap(
        &self,
        key_id: &str,
    ) -> Result<Option<(Document, ApiKey, KeyUse, String)>, Fault> {
        let kernel = &self.kernel;
        let Some(document) = kernel.store.get(ApiKey::KIND, key_id).await? else {
            return Ok(None);
        };
        let key: ApiKey = stored::read(&document)?;
        let used = last_uses(&kernel.store, &kernel.key_uses, &[key_id]).await?;
        let used = used.into_iter().next().unwrap_or_default();
        let owner = Owner::load(&kernel.store, &key.owner_id).await?;
        let owner_name = owner.map_or(String::new(), |(owner, _)| owner.subject);
        Ok(Some((document, key, used, owner_name)))
    }

    async fn warn_of_overlap(&self, document: Document, overlap: Overlap) -> Result<(), Fault> {
        let id = key_id_of(&document);
        let found = self.key_of_overlap(&id).await?;
        let Some((_, key, used, owner_name)) = found else {
            return self
                .commit_overlap(Changes::remove(document.head, SILENT))
                .await;
        };
        let previous = key.previous.as_ref();
        let is_on = previous.is_some_and(|previous| previous.digest == overlap.previous);
        if !is_on || !overlap.is_still_used(&used) {
            return Ok(());
        }
        let shown = overlap.shown((&id, &key), &owner_name, &used);
        let account = &document.head.account;
        let event = self
            .kernel
            .server_event(API_KEY_OVERLAP_ENDING, account, &shown)?;
        let body = stored::write(&Overlap {
            is_warned: true,
            ..overlap
        })?;
        let noted = Document { body, ..document };
        let changes = Changes::replace(noted, SILENT).and(Changes::event(event));
        self.commit_overlap(changes).await
    }

    async fn end_overlap(&self, document: Document, overlap: Overlap) -> Result<(), Fault> {
        let id = key_id_of(&document);
        let account = document.head.account.clone();
        let mut changes = Changes::remove(document.head, SILENT);
        if let Some((before, mut key, used, owner_name)) = self.key_of_overlap(&id).await? {
            let previous = key.previous.as_ref();
            let is_its = previous.is_some_and(|previous| previous.digest == overlap.previous);
            let shown = overlap.shown((&id, &key), &owner_name, &used);
            let event = |kind| self.kernel.server_event(kind, &account, &shown);
            // A report that the token leaked has ended it with another event.
            if is_its && !overlap.is_ended {
                changes = changes.and(Changes::event(event(API_KEY_OVERLAP_ENDED)?));
            }
            let is_unused = key.digest == overlap.token && used.of(&overlap.token).is_none();
            if is_unused {
                changes = changes.and(Changes::event(event(API_KEY_ROTATION_UNUSED)?));
            }
            if is_its {
                key.previous = None;
                let body = stored::write(&key)?;
                let after = Document { body, ..before };
                changes = changes.and(Changes::replace(after, SILENT));
            }
        }
        self.commit_overlap(changes).await
    }

    /// Commits, unless another node or a caller was faster: then the next look decides again.
    async fn commit_overlap(&self, changes: Changes) -> Result<(), Fault> {
        match self.kernel.store.commit(changes).await {
            Ok(_) | Err(CommitError::Stale | CommitError::Duplicate { .. }) => Ok(()),
            Err(error) => Err(Fault::new("reporting an overlap of a rotation", error)),
        }
    }
}
