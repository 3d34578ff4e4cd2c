//! Records sign-ins at the edge as application users and sessions. Publishes sessions that ended early as a
//! table that every edge applies.
//!
//! The edge does not wait for this module: it queues entries, and repeats them while a session is used, so a
//! lost entry only causes a delay. A removed session cannot come back, because the document of its end
//! outlives it.
//!
//! Each user has one document of ended sessions. An entry stays until the session would have expired. With
//! more than [`ENDS_MAX`] entries, all sessions of the user end.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use culvert_login::{
    Ending, JournalEntry, Noted, Revocations, Revoked, SESSION_MAX, Sighting, UserKey,
};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, PageQuery, Store};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::control::Control;
use crate::resource::model::Model;
use crate::resource::model::application_session::ApplicationSession;
use crate::resource::model::application_user::ApplicationUser;
use crate::resource::resource_type::{Resource, ResourceType};
use crate::resource::{application_session, application_user};
use crate::service::RUNS_MAX;
use crate::stored::{self, Format};

/// Document kind of ended sessions.
pub(crate) const KIND: &str = "application_session_ends";

/// Limit of sessions of one user that can be ended one by one.
const ENDS_MAX: usize = 50;
/// Limit of sessions of one user; a new session ends the oldest.
const SESSIONS_MAX: u32 = 50;
/// Limit of users of an installation.
const USERS_MAX: usize = 100_000;
/// Limit of entries that are written concurrently.
const AT_ONCE: usize = 16;
/// Interval for removing expired documents, which are kept for this long after they expire.
const CLEAN_EVERY: Duration = Duration::from_secs(600);
/// Delay before a failed write of an end is retried.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The stored form of a user's ended sessions; times are in milliseconds.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Ends {
    format: Format<1>,
    /// All sessions that began until then have ended.
    before: Option<i64>,
    /// When the last entry is no longer needed.
    until: i64,
    sessions: Vec<EndedSession>,
}

#[derive(Debug, Deserialize, Serialize)]
struct EndedSession {
    id: String,
    until: i64,
}

/// The sessions of a user to end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End<'a> {
    /// One session, and the time at which it would have expired.
    One(&'a str, Timestamp),
    /// All sessions.
    All,
}

fn suppressed<R: Resource>() -> AuditEvent {
    AuditEvent::Suppress {
        reason: R::SILENT.unwrap_or_default(),
    }
}

const UNTOLD: AuditEvent = AuditEvent::Suppress {
    reason: "the end of a session is seen in the list of sessions",
};

fn id_of(user: UserKey) -> String {
    format!("ase_{user}")
}

impl Ends {
    fn add(&mut self, end: End<'_>, now: Timestamp) {
        let now_ms = now.unix_millis();
        self.sessions.retain(|one| one.until > now_ms);
        match end {
            End::One(id, until) => {
                let until = until.unix_millis();
                self.until = self.until.max(until);
                if !self.sessions.iter().any(|one| one.id == id) {
                    self.sessions.push(EndedSession {
                        id: id.to_owned(),
                        until,
                    });
                }
            }
            End::All => self.until = self.until.max(now.plus(SESSION_MAX).unix_millis()),
        }
        if matches!(end, End::All) || self.sessions.len() > ENDS_MAX {
            self.before = Some(now_ms);
            self.sessions.clear();
        }
    }

    fn compile(self) -> Revoked {
        Revoked {
            before: self.before.map(Timestamp::from_unix_millis),
            sessions: self.sessions.into_iter().map(|one| one.id).collect(),
        }
    }
}

/// The write that ends sessions of a user.
pub(crate) async fn ending(
    store: &Store,
    account: &str,
    user: UserKey,
    end: End<'_>,
    now: Timestamp,
) -> Result<Changes, Fault> {
    let id = id_of(user);
    let known = store.get(KIND, &id).await?;
    let mut ends = match &known {
        Some(document) => stored::read(document)?,
        None => Ends::default(),
    };
    ends.add(end, now);
    let body = stored::write(&ends)?;
    Ok(match known {
        Some(document) => Changes::replace(Document { body, ..document }, UNTOLD),
        None => {
            let head = Head {
                id,
                kind: KIND.to_owned(),
                account: account.to_owned(),
                revision: 0,
                created_at: now.whole_seconds(),
                updated_at: now.whole_seconds(),
            };
            Changes::insert(document_of(head, body), UNTOLD)
        }
    })
}

/// Compiles a document of ended sessions for the edge.
pub(crate) fn compile(document: &Document) -> Result<(UserKey, Revoked), Fault> {
    let ends: Ends = stored::read(document)?;
    let text = document.head.id.strip_prefix("ase_").unwrap_or_default();
    let user = UserKey::parse(text).ok_or_else(|| {
        Fault::bare(format!(
            "reading {}: its ID is not a user ID",
            document.head.id
        ))
    })?;
    Ok((user, ends.compile()))
}

/// Collects the table of all users. Documents that could not be read are logged and skipped.
pub(crate) fn table<'a>(made: impl Iterator<Item = &'a Option<(UserKey, Revoked)>>) -> Revocations {
    made.flatten().cloned().collect()
}

fn document_of(head: Head, body: String) -> Document {
    Document {
        head,
        body,
        keys: Vec::new(),
        refs: Vec::new(),
        topics: Vec::new(),
    }
}

/// Builds the document of a resource in stored form.
fn drawn<R: Resource>(head: Head, form: &R) -> Result<Document, Fault> {
    let links = form.links(&head);
    Ok(Document {
        body: stored::write(form)?,
        head,
        keys: links.keys,
        refs: links.refs,
        topics: links.topics,
    })
}

impl Control {
    /// Writes the sign-ins that edges report, and removes expired documents, until cancelled.
    pub async fn keep_logins(
        self: Arc<Self>,
        mut entries: mpsc::Receiver<JournalEntry>,
        cancel: CancellationToken,
    ) {
        let mut clean = tokio::time::interval(CLEAN_EVERY);
        let mut writing = JoinSet::new();
        loop {
            let entry = tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                _ = clean.tick() => {
                    if let Err(fault) = self.clean_logins().await {
                        warn!(cause = %fault.chain(), "removing expired sessions failed; retrying later");
                    }
                    if let Err(fault) = self.clean_console_sessions().await {
                        warn!(cause = %fault.chain(), "expired console sessions are removed later");
                    }
                    continue;
                }
                Some(_) = writing.join_next(), if writing.len() >= AT_ONCE => continue,
                entry = entries.recv(), if writing.len() < AT_ONCE => entry,
            };
            match entry {
                Some(entry) => {
                    writing.spawn(Arc::clone(&self).write_login(entry, cancel.clone()));
                }
                None => cancel.cancelled().await,
            }
        }
        // Entries queued before the shutdown are still written.
        entries.close();
        while let Ok(entry) = entries.try_recv() {
            if writing.len() >= AT_ONCE {
                writing.join_next().await;
            }
            writing.spawn(Arc::clone(&self).write_login(entry, cancel.clone()));
        }
        while writing.join_next().await.is_some() {}
    }

    async fn write_login(self: Arc<Self>, entry: JournalEntry, cancel: CancellationToken) {
        match entry {
            JournalEntry::SignedIn(sighting, answer) => match self.note(&sighting).await {
                // The receiver may be gone.
                Ok(noted) => drop(answer.send(noted)),
                Err(fault) => {
                    warn!(cause = %fault.chain(), "recording a sign-in session failed; retrying at its next use");
                }
            },
            JournalEntry::Ended(ending) => {
                while let Err(fault) = self.end(&ending).await {
                    warn!(cause = %fault.chain(), session = ending.session, "recording the end of a sign-in session failed");
                    let stopped = tokio::time::timeout(AGAIN_AFTER, cancel.cancelled()).await;
                    if stopped.is_ok() {
                        return;
                    }
                }
            }
        }
    }

    /// Writes a new or used session, with its user.
    async fn note(&self, sighting: &Sighting) -> Result<Noted, Fault> {
        let user = sighting.user();
        let noting = self.note_locked(sighting, user);
        self.locks.with(&[&id_of(user)], noting).await
    }

    async fn note_locked(&self, sighting: &Sighting, user: UserKey) -> Result<Noted, Fault> {
        for _ in 0..RUNS_MAX {
            if let Some(ends) = self.store.get(KIND, &id_of(user)).await? {
                let (_, revoked) = compile(&ends)?;
                if revoked.covers(&sighting.session, sighting.started_at) {
                    return Ok(Noted::Ended);
                }
            }
            let (user_id, changes) = match self.note_user(sighting, user).await? {
                Some(noted) => noted,
                None => return Ok(Noted::Full),
            };
            let changes = changes.and(self.note_session(sighting, user, &user_id).await?);
            if self.commit_login(changes).await? {
                return Ok(Noted::Stored(user_id));
            }
        }
        Err(Fault::bare("recording a session: concurrent updates"))
    }

    /// The ID of a user and the write that creates or changes them; `None` at the limit of users.
    async fn note_user(
        &self,
        sighting: &Sighting,
        user: UserKey,
    ) -> Result<Option<(String, Changes)>, Fault> {
        let ty: &ResourceType = &application_user::TYPE;
        let key = user.to_string();
        let name = crate::resource::model::application_user::KEY;
        let mut known = self.store.find(ty.kind, name, &key).await?;
        if known.is_none() && !sighting.owner.is_empty() {
            // A user of a former version, who had no owner, becomes the user of the first owner at whose endpoint they
            // sign in again, so that policies know their id.
            let (account, person) = (&sighting.account, &sighting.person);
            let url = &sighting.provider_url;
            let former = UserKey::of(account, "", url, &person.provider_user_id);
            known = self.store.find(ty.kind, name, &former.to_string()).await?;
        }
        let event = suppressed::<ApplicationUser>();
        Ok(match known {
            Some(document) => {
                let mut form: ApplicationUser = stored::read(&document)?;
                form.seen(sighting);
                let head = document.head;
                let id = head.id.clone();
                Some((id, Changes::replace(drawn(head, &form)?, event)))
            }
            None if self.store.count(ty.kind).await? >= USERS_MAX => None,
            None => {
                let body = self.ids.next(&*self.clock, &*self.entropy);
                let head = Head {
                    id: ty.stored_id_of(body),
                    kind: ty.kind.to_owned(),
                    account: sighting.account.to_string(),
                    revision: 0,
                    created_at: body.at(),
                    updated_at: body.at(),
                };
                let id = head.id.clone();
                let form = ApplicationUser::of(sighting);
                Some((id, Changes::insert(drawn(head, &form)?, event)))
            }
        })
    }

    /// The write that creates or changes a session. At the limit of a user's sessions the oldest ends.
    async fn note_session(
        &self,
        sighting: &Sighting,
        user: UserKey,
        user_id: &str,
    ) -> Result<Changes, Fault> {
        let ty: &ResourceType = &application_session::TYPE;
        let form = ApplicationSession::of(sighting, user_id);
        let event = suppressed::<ApplicationSession>();
        if let Some(document) = self.store.get(ty.kind, &sighting.session).await? {
            return Ok(Changes::replace(drawn(document.head, &form)?, event));
        }
        let head = Head {
            id: sighting.session.clone(),
            kind: ty.kind.to_owned(),
            account: sighting.account.to_string(),
            revision: 0,
            created_at: sighting.started_at.whole_seconds(),
            updated_at: sighting.seen_at.whole_seconds(),
        };
        let mut changes = Changes::insert(drawn(head, &form)?, event.clone());
        let query = PageQuery {
            kind: ty.kind.to_owned(),
            account: sighting.account.to_string(),
            before: None,
            limit: SESSIONS_MAX,
            refs_to: Some(user_id.to_owned()),
        };
        let others = self.store.page(&query).await?;
        if others.len() >= SESSIONS_MAX as usize
            && let Some(oldest) = others.into_iter().next_back()
        {
            let end = End::One(&oldest.head.id, self.clock.now().plus(SESSION_MAX));
            let ended = ending(&self.store, &sighting.account, user, end, self.clock.now());
            changes = changes.and(ended.await?);
            changes = changes.and(Changes::remove(oldest.head, event));
        }
        Ok(changes)
    }

    /// Ends the session of a user who signed out.
    async fn end(&self, ended: &Ending) -> Result<(), Fault> {
        let ending = self.end_locked(ended);
        self.locks.with(&[&id_of(ended.user)], ending).await
    }

    async fn end_locked(&self, ended: &Ending) -> Result<(), Fault> {
        let ty: &ResourceType = &application_session::TYPE;
        for _ in 0..RUNS_MAX {
            let end = End::One(&ended.session, ended.until);
            let now = self.clock.now();
            let mut changes = ending(&self.store, &ended.account, ended.user, end, now).await?;
            if let Some(document) = self.store.get(ty.kind, &ended.session).await? {
                let event = suppressed::<ApplicationSession>();
                changes = changes.and(Changes::remove(document.head, event));
            }
            if self.commit_login(changes).await? {
                return Ok(());
            }
        }
        Err(Fault::bare("ending a session: concurrent updates"))
    }

    /// Removes expired sessions, and ends that are no longer needed.
    pub(crate) async fn clean_logins(&self) -> Result<(), Fault> {
        let gone = self.clock.now().minus(CLEAN_EVERY);
        for document in self.store.all(ApplicationSession::KIND).await? {
            let session: ApplicationSession = match stored::read(&document) {
                Ok(session) => session,
                Err(fault) => {
                    error!(cause = %fault.chain(), "sign-in session left unchanged");
                    continue;
                }
            };
            if session.expires_at() < gone {
                let event = suppressed::<ApplicationSession>();
                self.commit_login(Changes::remove(document.head, event))
                    .await?;
            }
        }
        for document in self.store.all(KIND).await? {
            let ends: Ends = stored::read(&document)?;
            if Timestamp::from_unix_millis(ends.until) < gone {
                self.commit_login(Changes::remove(document.head, UNTOLD))
                    .await?;
            }
        }
        Ok(())
    }

    /// Commits; returns `false` if a document has changed since it was read.
    async fn commit_login(&self, changes: Changes) -> Result<bool, Fault> {
        match self.store.commit(changes).await {
            Ok(_) => Ok(true),
            Err(CommitError::Fault(fault)) => Err(fault),
            Err(_) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_ended_sessions_is_bounded_and_expires() {
        let at = Timestamp::from_unix_seconds;
        let mut ends = Ends::default();
        ends.add(End::One("as_1", at(100)), at(1));
        ends.add(End::One("as_2", at(50)), at(2));
        ends.add(End::One("as_2", at(50)), at(3));
        assert_eq!((ends.sessions.len(), ends.until), (2, 100_000));
        ends.add(End::One("as_3", at(90)), at(60));
        let ids: Vec<_> = ends.sessions.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, ["as_1", "as_3"]);
        for number in 0..ENDS_MAX {
            ends.add(End::One(&format!("as_x{number}"), at(200)), at(61));
        }
        assert!(ends.before.is_some() && ends.sessions.len() < ENDS_MAX);
        ends.add(End::All, at(62));
        assert_eq!(ends.before, Some(62_000));
        let revoked = ends.compile();
        assert!(revoked.covers("as_any", at(62)) && !revoked.covers("as_any", at(63)));
    }
}
