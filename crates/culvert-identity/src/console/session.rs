//! Sessions of the web console: a browser cookie that represents an API key, or a person who signed in without one.
//!
//! The cookie is a token like a key's; the store keeps its digest. A session ends 30 minutes after its last
//! request, 12 hours after its start, when its user signs out, and with its key or the token that it began with: a
//! rotation of the key ends both. Session and key are read for every request, so an end takes effect on every node
//! immediately, and the session has the restrictions that the key has now.
//!
//! The sessions of a key or person are stored in one document, whose ID derives from theirs. So the number of keys
//! and people limits the number of documents.
//!
//! The HTTP server sets the cookie's name and attributes, and decides which requests may use it.

use std::net::IpAddr;
use std::time::Duration;

use culvert_base::{Fault, Ksuid, Refusal, Secret, Timestamp, code};
use culvert_events::catalogue::AuditKind;
use culvert_events::{Audit, EventId};
use culvert_resources::access::caller::{Caller, Origin};
use culvert_resources::access::token;
use culvert_resources::access::token::Shape;
use culvert_resources::access::user::User;
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::service::RUNS_MAX;
use culvert_resources::stored::Format;
use culvert_resources::{Error, audit, stored};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Identity;
use crate::api_key::model::ApiKey;
use crate::authentication::KeyOfCaller;

const KIND: &str = "console_sessions";
const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "the events of the sessions in it report the change",
};

/// A session ends this long after its last request.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// A session ends this long after it began.
pub const CONSOLE_SESSION_MAX: Duration = Duration::from_secs(12 * 3_600);
/// Limit of sessions of one key; a new session ends the oldest.
const SESSIONS_MAX: usize = 10;
/// Minimum interval between writes of the time of the last request.
const SEEN_EVERY: Duration = Duration::from_secs(60);

/// A session and its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleSession {
    /// Owner and key.
    pub caller: Caller,
    /// When it ends unless a request comes first.
    pub expires_at: Timestamp,
}

/// The sessions of a key or person. The stored form; times are in milliseconds.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Sessions {
    format: Format<1>,
    /// Oldest first.
    sessions: Vec<Session>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Session {
    /// Digest of the cookie: `<pepper id>.<hex>`.
    digest: String,
    began_at: i64,
    seen_at: i64,
    /// Whether it represents a person rather than a key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    of_person: bool,
    /// Digest of the token of the key that it began with. Sessions of keys from before this was recorded have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of_token: Option<String>,
}

impl Session {
    /// As events show it, of the key or person whose ID has this body.
    fn shown(&self, body: &str, ended: Option<Ended>) -> Shown {
        let prefix = if self.of_person {
            User::ID_PREFIX
        } else {
            ApiKey::ID_PREFIX
        };
        Shown {
            id: format!("{prefix}_{body}"),
            began_at: Timestamp::from_unix_millis(self.began_at),
            expires_at: self.expires_at(),
            reason: ended,
        }
    }

    fn expires_at(&self) -> Timestamp {
        let idle = Timestamp::from_unix_millis(self.seen_at).plus(IDLE_MAX);
        let last = Timestamp::from_unix_millis(self.began_at).plus(CONSOLE_SESSION_MAX);
        idle.min(last)
    }
}

/// Kinds of events of console sessions.
pub(crate) const CONSOLE_SESSION_CREATED: &str = "console_session_created.v0";
pub(crate) const CONSOLE_SESSION_DELETED: &str = "console_session_deleted.v0";
/// Kinds of events of people who begin and end a session.
pub(crate) const SIGN_IN: &str = "sign_in.v0";
pub(crate) const SIGN_OUT: &str = "sign_out.v0";

/// The object of these events.
#[derive(Serialize, JsonSchema)]
struct Shown {
    /// The API key that the session represents; the user of a session without a key.
    id: String,
    /// When it began.
    #[schemars(with = "String", extend("format" = "date-time"))]
    began_at: Timestamp,
    /// When it ends unless a request comes first.
    #[schemars(with = "String", extend("format" = "date-time"))]
    expires_at: Timestamp,
    /// Why it ended; null while it has not.
    reason: Option<Ended>,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Ended {
    /// Its user signed out.
    SignedOut,
    /// No request came in time, or it lasted too long.
    Expired,
    /// Its key has too many newer ones.
    Replaced,
    /// Its key was rotated or deleted, or its owner deactivated or deleted.
    Revoked,
}

/// The kinds of events about sessions.
pub fn kinds() -> [AuditKind; 4] {
    let schema = audit::schema_of::<Shown>();
    [
        (CONSOLE_SESSION_CREATED, "A session of the console began."),
        (CONSOLE_SESSION_DELETED, "A session of the console ended."),
        (SIGN_IN, "A person signed in to the console."),
        (SIGN_OUT, "A person signed out of the console."),
    ]
    .map(|(name, doc)| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema: schema.clone(),
    })
}

/// When a session ends: with the rights of its caller at the latest.
fn ends_at(session: &Session, caller: &Caller) -> Timestamp {
    let session = session.expires_at();
    caller.ends_at().map_or(session, |end| end.min(session))
}

/// The id of the document that holds the sessions of a key or person.
fn id_of(key_body: &str) -> String {
    format!("cses_{key_body}")
}

/// Ends all sessions of a key or person, whose ID has this body.
pub(crate) async fn removal(cx: &Cx<'_>, key_body: &str) -> Result<Changes, Fault> {
    let Some(document) = cx.store.get(KIND, &id_of(key_body)).await? else {
        return Ok(Changes::default());
    };
    let stored: Sessions = stored::read(&document)?;
    let ended = stored.sessions.iter();
    let mut changes = Changes::remove(document.head, NOTHING);
    for session in ended {
        let object = session.shown(key_body, Some(Ended::Revoked));
        let event = audit::operation(cx, CONSOLE_SESSION_DELETED, &object)?;
        changes = changes.and(Changes::event(event));
    }
    Ok(changes)
}

/// Ends all sessions of an owner and of its keys. They must not come back when the owner becomes active again.
pub(crate) async fn removal_of_owner(cx: &Cx<'_>, owner: &Head) -> Result<Changes, Fault> {
    let mut ids = vec![owner.id.clone()];
    let keys = cx.referring(ApiKey::KIND, owner).await?;
    ids.extend(keys.into_iter().map(|key| key.head.id));
    let mut removals = Changes::default();
    for id in ids {
        let (_, body) = id.split_once('_').unwrap_or_default();
        removals = removals.and(removal(cx, body).await?);
    }
    Ok(removals)
}

/// A change of the sessions of a key or person.
struct Change<'a> {
    /// Allows creating the document, in this account.
    account: Option<&'a str>,
    /// Who changes them; `None` for the server itself.
    caller: Option<&'a Caller>,
    /// Why sessions end that it removes.
    ended: Ended,
    /// The event of the person's action.
    also: Option<&'static str>,
}

fn ended() -> Error {
    Refusal::new(
        code::API_KEY_INVALID,
        "The console session has ended; sign in again.",
    )
    .into()
}

impl Identity {
    /// Starts a session for an authenticated caller. Returns the cookie. `address` is the caller's
    /// own, not a proxy's.
    ///
    /// # Errors
    ///
    /// Those of [`Identity::admit`].
    pub async fn sign_in(
        &self,
        caller: Caller,
        address: IpAddr,
    ) -> Result<(Secret, ConsoleSession), Error> {
        // Check before writing, because a new session may end an older one.
        self.admit(&caller, address)?;
        let of_person = caller.key_id.is_empty();
        let id = if of_person {
            &caller.owner_id
        } else {
            &caller.key_id
        };
        let (_, body) = id.split_once('_').unwrap_or_default();
        let key: Ksuid = body
            .parse()
            .map_err(|error| Fault::new("reading the ID of a key or user", error))?;
        let cookie = token::mint_plain(key, &*self.kernel.entropy);
        let now = self.kernel.clock.now();
        let session = Session {
            digest: self.kernel.pepper.digest(cookie.reveal()),
            began_at: now.unix_millis(),
            seen_at: now.unix_millis(),
            of_person,
            of_token: caller.token.as_ref().map(|token| token.digest.to_string()),
        };
        let expires_at = ends_at(&session, &caller);
        let change = Change {
            account: Some(&caller.account),
            caller: Some(&caller),
            ended: Ended::Replaced,
            also: Some(SIGN_IN),
        };
        self.change(body, change, |sessions| {
            let excess = (sessions.len() + 1).saturating_sub(SESSIONS_MAX);
            sessions.drain(..excess);
            sessions.push(session.clone());
        })
        .await?;
        Ok((cookie, ConsoleSession { caller, expires_at }))
    }

    /// The session of a cookie. `address` is the caller's own, not a proxy's.
    ///
    /// # Errors
    ///
    /// 203 if it has ended, those of [`Identity::authenticate`] for its key and owner, and those of
    /// [`Identity::admit`].
    pub async fn console_session(
        &self,
        cookie: &str,
        address: IpAddr,
    ) -> Result<ConsoleSession, Error> {
        let Shape::Token { body, kind: None } = token::shape(cookie) else {
            return Err(ended());
        };
        let now = self.kernel.clock.now();
        let found = self.session_of(body, cookie).await?;
        let Some(session) = found.filter(|session| now < session.expires_at()) else {
            return Err(ended());
        };
        let caller = self.caller_of_session(body, &session, now).await?;
        self.admit(&caller, address)?;
        let seen_at = Timestamp::from_unix_millis(session.seen_at);
        let session = match now.since(seen_at) > SEEN_EVERY {
            true => self.note_seen(body, session, now).await,
            false => session,
        };
        Ok(ConsoleSession {
            expires_at: ends_at(&session, &caller),
            caller,
        })
    }

    /// The caller that a session represents, with its present rights.
    async fn caller_of_session(
        &self,
        body: &str,
        session: &Session,
        now: Timestamp,
    ) -> Result<Caller, Error> {
        if session.of_person {
            let id = format!("{}_{body}", User::ID_PREFIX);
            return self.person_again(&id).await;
        }
        let key_id = format!("{}_{body}", ApiKey::ID_PREFIX);
        let Some(document) = self.kernel.store.get(ApiKey::KIND, &key_id).await? else {
            return Err(ended());
        };
        let key: KeyOfCaller = stored::read(&document)?;
        let created_at = document.head.created_at;
        let token = key.token(session.of_token.as_deref(), created_at, now);
        let token = token.map_err(|_| ended())?;
        self.caller_of(key, document.head, token).await
    }

    /// Ends the session of a cookie, if there is one.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn sign_out(&self, cookie: &str, origin: impl Into<Origin>) -> Result<(), Error> {
        let Shape::Token { body, kind: None } = token::shape(cookie) else {
            return Ok(());
        };
        let Some(session) = self.session_of(body, cookie).await? else {
            return Ok(());
        };
        // A caller whose rights have ended meanwhile may sign out as well.
        let caller = self
            .caller_of_session(body, &session, self.kernel.clock.now())
            .await;
        let caller = caller.ok().map(|caller| Caller {
            context: origin.into().context,
            ..caller
        });
        let change = Change {
            account: None,
            caller: caller.as_ref(),
            ended: Ended::SignedOut,
            also: Some(SIGN_OUT),
        };
        self.change(body, change, |sessions| {
            sessions.retain(|other| other.digest != session.digest);
        })
        .await?;
        Ok(())
    }

    async fn session_of(&self, key_body: &str, cookie: &str) -> Result<Option<Session>, Fault> {
        let document = self.kernel.store.get(KIND, &id_of(key_body)).await?;
        let stored: Option<Sessions> = document.as_ref().map(stored::read).transpose()?;
        let sessions = stored.map_or(Vec::new(), |stored| stored.sessions);
        Ok(sessions
            .into_iter()
            .find(|session| self.kernel.pepper.recognises(Some(&session.digest), cookie)))
    }

    /// Records that a session is in use. The session stays valid if the write fails.
    async fn note_seen(&self, key_body: &str, session: Session, now: Timestamp) -> Session {
        let seen = Session {
            seen_at: now.unix_millis(),
            ..session.clone()
        };
        let change = Change {
            account: None,
            caller: None,
            ended: Ended::Expired,
            also: None,
        };
        let noted = self.change(key_body, change, |sessions| {
            let mine = |other: &&mut Session| other.digest == seen.digest;
            if let Some(stored) = sessions.iter_mut().find(mine) {
                stored.seen_at = stored.seen_at.max(seen.seen_at);
            }
        });
        match noted.await {
            Ok(()) => seen,
            Err(fault) => {
                tracing::warn!(cause = %fault.chain(), "the use of a console session was not recorded");
                session
            }
        }
    }

    /// Changes the active sessions of a key.
    async fn change(
        &self,
        key_body: &str,
        change: Change<'_>,
        edit: impl Fn(&mut Vec<Session>),
    ) -> Result<(), Fault> {
        let id = id_of(key_body);
        let changing = self.change_locked(key_body, change, edit);
        self.kernel.locks.with(&[&id], changing).await
    }

    async fn change_locked(
        &self,
        key_body: &str,
        change: Change<'_>,
        edit: impl Fn(&mut Vec<Session>),
    ) -> Result<(), Fault> {
        let id = &id_of(key_body);
        for _ in 0..RUNS_MAX {
            let now = self.kernel.clock.now();
            let known = self.kernel.store.get(KIND, id).await?;
            let mut stored: Sessions = match &known {
                Some(document) => stored::read(document)?,
                None => Sessions::default(),
            };
            let before = stored.sessions.clone();
            stored.sessions.retain(|session| now < session.expires_at());
            edit(&mut stored.sessions);
            let account = match (&known, change.account) {
                (Some(document), _) => document.head.account.clone(),
                (None, account) => account.unwrap_or_default().to_owned(),
            };
            let events =
                self.events_of(key_body, &account, &change, (&before, &stored.sessions))?;
            let body = stored::write(&stored)?;
            let changes = match (known, change.account) {
                (Some(document), _) if stored.sessions.is_empty() => {
                    Changes::remove(document.head, NOTHING)
                }
                (Some(document), _) => Changes::replace(Document { body, ..document }, NOTHING),
                (None, Some(account)) => Changes::insert(
                    Document {
                        head: Head {
                            id: id.to_owned(),
                            kind: KIND.to_owned(),
                            account: account.to_owned(),
                            revision: 0,
                            created_at: now.whole_seconds(),
                            updated_at: now.whole_seconds(),
                        },
                        body,
                        keys: Vec::new(),
                        refs: Vec::new(),
                        topics: Vec::new(),
                    },
                    NOTHING,
                ),
                (None, None) => return Ok(()),
            };
            let changes = changes.and(events);
            match self.kernel.store.commit(changes).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Fault(fault)) => return Err(fault),
                // Another node changed them concurrently.
                Err(_) => {}
            }
        }
        Err(Fault::bare("changing console sessions: they keep changing"))
    }

    /// The events of sessions that begin and end with a change from the first to the second list.
    fn events_of(
        &self,
        key_body: &str,
        account: &str,
        change: &Change<'_>,
        (before, after): (&[Session], &[Session]),
    ) -> Result<Changes, Fault> {
        let is_in = |sessions: &[Session], one: &Session| {
            sessions.iter().any(|session| session.digest == one.digest)
        };
        let now = self.kernel.clock.now();
        let mut changes = Changes::default();
        for gone in before.iter().filter(|one| !is_in(after, one)) {
            let reason = match now < gone.expires_at() {
                true => change.ended,
                false => Ended::Expired,
            };
            let object = gone.shown(key_body, Some(reason));
            if change.also == Some(SIGN_OUT) && matches!(reason, Ended::SignedOut) {
                changes = changes.and(self.event_of(SIGN_OUT, account, change.caller, &object)?);
            }
            let caller = change.caller.filter(|_| !matches!(reason, Ended::Expired));
            let kind = CONSOLE_SESSION_DELETED;
            changes = changes.and(self.event_of(kind, account, caller, &object)?);
        }
        for new in after.iter().filter(|one| !is_in(before, one)) {
            let object = new.shown(key_body, None);
            for kind in change.also.into_iter().chain([CONSOLE_SESSION_CREATED]) {
                changes = changes.and(self.event_of(kind, account, change.caller, &object)?);
            }
        }
        Ok(changes)
    }

    /// An event about a session, by a caller or by the server itself.
    fn event_of(
        &self,
        kind: &str,
        account: &str,
        caller: Option<&Caller>,
        object: &Shown,
    ) -> Result<Changes, Fault> {
        let kernel = &self.kernel;
        Ok(Changes::event(match caller {
            Some(caller) => {
                audit::operation(&kernel.cx(caller, &kernel.settings.base_url), kind, object)?
            }
            None => {
                let at = kernel.clock.now();
                let id = EventId::new(at, kernel.entropy.bytes());
                Audit::by_server(kind, at, &id, account).about(object)?
            }
        }))
    }

    /// Removes expired sessions, and those of deleted keys.
    pub async fn clean_console_sessions(&self) -> Result<(), Fault> {
        let now = self.kernel.clock.now();
        for document in self.kernel.store.all(KIND).await? {
            let stored: Sessions = stored::read(&document)?;
            let has_ended = |session: &Session| now >= session.expires_at();
            if stored.sessions.iter().all(has_ended) {
                let body = document.head.id.strip_prefix("cses_").unwrap_or_default();
                let change = Change {
                    account: None,
                    caller: None,
                    ended: Ended::Expired,
                    also: None,
                };
                let account = &document.head.account;
                let events = self.events_of(body, account, &change, (&stored.sessions, &[]))?;
                let changes = Changes::remove(document.head, NOTHING).and(events);
                let removed = self.kernel.store.commit(changes);
                // Sessions that were started meanwhile stay.
                if let Err(CommitError::Fault(fault)) = removed.await {
                    return Err(fault);
                }
            }
        }
        Ok(())
    }
}
