//! Records sign-ins at the edge as application users and sessions. Publishes sessions that ended early as a
//! table that every edge applies.
//!
//! The edge does not wait for this module: it queues entries, and repeats them while a session is used, so a
//! lost entry only causes a delay. A removed session cannot come back, because the document of its end
//! outlives it.
//!
//! Each user has one document of ended sessions. An entry stays until the session would have expired. With
//! more than `ENDS_MAX` entries, all sessions of the user end.
//!
//! Clocks may be set, and those of nodes differ. So "all sessions" are those that began before the latest of now, the
//! beginning of a known session, and the former such time, which never moves back. Entries are removed by a clock that
//! does not follow a step forward for a day.

use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::{Fault, Ksuid, Timestamp};
use culvert_login::{
    Ending, JournalEntry, Noted, Revocations, Revoked, SESSION_MAX, Sighting, UserKey,
};
use culvert_resources::audit::verb::Verb;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Resource, ResourceType};
use culvert_resources::service::RUNS_MAX;
use culvert_resources::stored;
use culvert_resources::stored::Format;
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, PageQuery, Store};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::Identity;
use crate::application::session_model::ApplicationSession;
use crate::application::user_model::ApplicationUser;
use crate::application::{session, user};

/// Document kind of ended sessions.
pub const KIND: &str = "application_session_ends";

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
/// Recorded sessions know in which second they began: at most this much later.
const WITHIN_SECOND: Duration = Duration::from_millis(999);

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
pub enum End<'a> {
    /// One session, and the time at which it would have expired.
    One(&'a str, Timestamp),
    /// All sessions, of which the last one that is known began at this time.
    All(Option<Timestamp>),
}

const UNTOLD: AuditEvent = AuditEvent::Suppress {
    reason: "the end of a session is seen in the list of sessions",
};

/// The second in which a session began.
fn begin_second(session: &str) -> Option<Timestamp> {
    let (_, body) = culvert_base::id::split(session)?;
    Some(body.parse::<Ksuid>().ok()?.at())
}

fn id_of(user: UserKey) -> String {
    format!("ase_{user}")
}

impl Ends {
    fn add(&mut self, end: End<'_>, now: Timestamp) {
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
            End::All(latest) => self.end_all(latest, now),
        }
        if self.sessions.len() > ENDS_MAX {
            self.end_all(None, now);
        }
    }

    /// Ends all sessions that began, also those that began before the clock was set back.
    fn end_all(&mut self, latest: Option<Timestamp>, now: Timestamp) {
        let listed = self.sessions.iter().filter_map(|one| begin_second(&one.id));
        let of_sessions = listed
            .chain(latest)
            .map(|at| at.plus(WITHIN_SECOND).unix_millis());
        // Later sessions began a millisecond after the former time if the clock was behind it.
        let former = self.before.map(|before| before.saturating_add(1));
        let before = of_sessions.chain(former).fold(now.unix_millis(), i64::max);
        self.before = Some(before);
        let until = Timestamp::from_unix_millis(before).plus(SESSION_MAX);
        self.until = self.until.max(until.unix_millis());
        self.sessions.clear();
    }

    /// Removes the entries of sessions that have expired. Whether there were any.
    fn prune(&mut self, now: Timestamp) -> bool {
        let (n_before, now_ms) = (self.sessions.len(), now.unix_millis());
        self.sessions.retain(|one| one.until > now_ms);
        self.sessions.len() < n_before
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
pub fn compile(document: &Document) -> Result<(UserKey, Revoked), Fault> {
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
pub fn table<'a>(made: impl Iterator<Item = &'a Option<(UserKey, Revoked)>>) -> Revocations {
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

impl Identity {
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
        self.kernel.locks.with(&[&id_of(user)], noting).await
    }

    async fn note_locked(&self, sighting: &Sighting, user: UserKey) -> Result<Noted, Fault> {
        for _ in 0..RUNS_MAX {
            if let Some(ends) = self.kernel.store.get(KIND, &id_of(user)).await? {
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
        let ty: &ResourceType = &user::TYPE;
        let key = user.to_string();
        let name = crate::application::user_model::KEY;
        let mut known = self.kernel.store.find(ty.kind, name, &key).await?;
        if known.is_none() && !sighting.owner.is_empty() {
            // A user of a former version, who had no owner, becomes the user of the first owner at whose endpoint they
            // sign in again, so that policies know their id.
            let (account, person) = (&sighting.account, &sighting.person);
            let url = &sighting.provider_url;
            let former = UserKey::of(account, "", url, &person.provider_user_id);
            known = self
                .kernel
                .store
                .find(ty.kind, name, &former.to_string())
                .await?;
        }
        Ok(match known {
            Some(document) => {
                let mut form: ApplicationUser = stored::read(&document)?;
                form.seen(sighting);
                let head = document.head.clone();
                let id = head.id.clone();
                let seen = drawn(head, &form)?;
                let event = self.kernel.own_update(ty, &document, &seen)?;
                Some((id, Changes::replace(seen, event)))
            }
            None if self.kernel.store.count(ty.kind).await? >= USERS_MAX => None,
            None => {
                let body = self
                    .kernel
                    .ids
                    .next(&*self.kernel.clock, &*self.kernel.entropy);
                let head = Head {
                    id: ty.stored_id_of(body),
                    kind: ty.kind.to_owned(),
                    account: sighting.account.to_string(),
                    revision: 0,
                    created_at: body.at(),
                    updated_at: body.at(),
                };
                let id = head.id.clone();
                let made = drawn(head, &ApplicationUser::of(sighting))?;
                let event = self.kernel.own_event(ty, Verb::Created, &made)?;
                Some((id, Changes::insert(made, event)))
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
        let ty: &ResourceType = &session::TYPE;
        let form = ApplicationSession::of(sighting, user_id);
        if let Some(document) = self.kernel.store.get(ty.kind, &sighting.session).await? {
            let seen = drawn(document.head.clone(), &form)?;
            let event = self.kernel.own_update(ty, &document, &seen)?;
            return Ok(Changes::replace(seen, event));
        }
        let head = Head {
            id: sighting.session.clone(),
            kind: ty.kind.to_owned(),
            account: sighting.account.to_string(),
            revision: 0,
            created_at: sighting.started_at.whole_seconds(),
            updated_at: sighting.seen_at.whole_seconds(),
        };
        let made = drawn(head, &form)?;
        let event = self.kernel.own_event(ty, Verb::Created, &made)?;
        let mut changes = Changes::insert(made, event);
        let query = PageQuery {
            kind: ty.kind.to_owned(),
            account: sighting.account.to_string(),
            before: None,
            limit: SESSIONS_MAX,
            refs_to: Some(user_id.to_owned()),
        };
        let others = self.kernel.store.page(&query).await?;
        if others.len() >= SESSIONS_MAX as usize
            && let Some(oldest) = others.into_iter().next_back()
        {
            let end = End::One(&oldest.head.id, self.kernel.clock.now().plus(SESSION_MAX));
            let ended = ending(
                &self.kernel.store,
                &sighting.account,
                user,
                end,
                self.kernel.clock.now(),
            );
            changes = changes.and(ended.await?);
            let event = self.kernel.own_event(ty, Verb::Deleted, &oldest)?;
            changes = changes.and(Changes::remove(oldest.head, event));
        }
        Ok(changes)
    }

    /// Ends the session of a user who signed out.
    async fn end(&self, ended: &Ending) -> Result<(), Fault> {
        let ending = self.end_locked(ended);
        self.kernel.locks.with(&[&id_of(ended.user)], ending).await
    }

    async fn end_locked(&self, ended: &Ending) -> Result<(), Fault> {
        let ty: &ResourceType = &session::TYPE;
        for _ in 0..RUNS_MAX {
            let end = End::One(&ended.session, ended.until);
            let now = self.kernel.clock.now();
            let mut changes =
                ending(&self.kernel.store, &ended.account, ended.user, end, now).await?;
            if let Some(document) = self.kernel.store.get(ty.kind, &ended.session).await? {
                let event = self.kernel.own_event(ty, Verb::Deleted, &document)?;
                changes = changes.and(Changes::remove(document.head, event));
            }
            if self.commit_login(changes).await? {
                return Ok(());
            }
        }
        Err(Fault::bare("ending a session: concurrent updates"))
    }

    /// Removes expired sessions, and ends that are no longer needed.
    pub async fn clean_logins(&self) -> Result<(), Fault> {
        let now = self
            .login_retention
            .now(&*self.kernel.clock, Instant::now());
        let gone = now.minus(CLEAN_EVERY);
        for document in self.kernel.store.all(ApplicationSession::KIND).await? {
            let session: ApplicationSession = match stored::read(&document) {
                Ok(session) => session,
                Err(fault) => {
                    error!(cause = %fault.chain(), "sign-in session left unchanged");
                    continue;
                }
            };
            if session.expires_at() < gone {
                let event = self
                    .kernel
                    .own_event(&session::TYPE, Verb::Deleted, &document)?;
                self.commit_login(Changes::remove(document.head, event))
                    .await?;
            }
        }
        for document in self.kernel.store.all(KIND).await? {
            let mut ends: Ends = stored::read(&document)?;
            if Timestamp::from_unix_millis(ends.until) < gone {
                self.commit_login(Changes::remove(document.head, UNTOLD))
                    .await?;
            } else if ends.prune(gone) {
                let body = stored::write(&ends)?;
                let pruned = Document { body, ..document };
                self.commit_login(Changes::replace(pruned, UNTOLD)).await?;
            }
        }
        Ok(())
    }

    /// Commits; returns `false` if a document has changed since it was read.
    async fn commit_login(&self, changes: Changes) -> Result<bool, Fault> {
        match self.kernel.store.commit(changes).await {
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
        assert!(ends.prune(at(60)) && !ends.prune(at(60)));
        let ids: Vec<_> = ends.sessions.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, ["as_1", "as_3"]);
        for number in 0..ENDS_MAX {
            ends.add(End::One(&format!("as_x{number}"), at(200)), at(61));
        }
        assert!(ends.before.is_some() && ends.sessions.len() < ENDS_MAX);
        ends.add(End::All(None), at(62));
        assert_eq!(ends.before, Some(62_000));
        let revoked = ends.compile();
        assert!(revoked.covers("as_any", at(62)) && !revoked.covers("as_any", at(63)));
    }

    /// Sessions that ended stay ended when the clock is set in between, whichever way and however they ended.
    #[test]
    fn ended_sessions_stay_ended_when_the_clock_is_set() {
        let start = Timestamp::from_unix_seconds(1_800_000_000);
        let hour = Duration::from_secs(3600);
        let id = |begun: Timestamp, nth: u8| format!("as_{}", Ksuid::new(begun, [nth; 16]));
        let times = [
            start.minus(48 * hour),
            start.minus(hour),
            start,
            start.plus(hour),
            start.plus(48 * hour),
        ];
        for begun_at in times {
            for ended_at in times {
                for ended_again_at in times {
                    let case = format!("{begun_at} {ended_at} {ended_again_at}");
                    let session = id(begun_at, 0);
                    let begun = begun_at.plus(Duration::from_millis(700));
                    let mut ends = Ends::default();
                    ends.add(End::All(Some(begun.whole_seconds())), ended_at);
                    let first = ends.before;
                    assert!(first >= Some(begun.unix_millis()), "{case}");
                    ends.add(End::All(None), ended_again_at);
                    assert!(
                        ends.before > first,
                        "{case}: of a session that began meanwhile"
                    );
                    assert!(
                        ends.until >= begun.plus(SESSION_MAX).unix_millis(),
                        "{case}"
                    );
                    assert!(ends.compile().covers(&session, begun), "{case}");

                    // One by one, until the list is full.
                    let mut ends = Ends::default();
                    for nth in 0..=ENDS_MAX {
                        let one = id(begun_at, u8::try_from(nth).unwrap());
                        ends.add(End::One(&one, begun.plus(SESSION_MAX)), ended_at);
                    }
                    assert!(ends.sessions.is_empty(), "{case}");
                    ends.add(End::One("as_other", ended_again_at), ended_again_at);
                    assert!(ends.compile().covers(&session, begun), "{case}");
                }
            }
        }
    }
}
