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
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, Store};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::authentication::KeyOfCaller;
use crate::caller::Caller;
use crate::control::Control;
use crate::cx::Cx;
use crate::resource::model::Model;
use crate::resource::model::api_key::ApiKey;
use crate::resource::model::user::User;
use crate::service::RUNS_MAX;
use crate::stored::{self, Format};
use crate::token::{self, Shape};

const KIND: &str = "console_sessions";
const SILENT: AuditEvent = AuditEvent::Suppress {
    reason: "signing in to the console changes no object",
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
    fn expires_at(&self) -> Timestamp {
        let idle = Timestamp::from_unix_millis(self.seen_at).plus(IDLE_MAX);
        let last = Timestamp::from_unix_millis(self.began_at).plus(CONSOLE_SESSION_MAX);
        idle.min(last)
    }
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
pub(crate) async fn removal(store: &Store, key_body: &str) -> Result<Changes, Fault> {
    let document = store.get(KIND, &id_of(key_body)).await?;
    Ok(document.map_or_else(Changes::default, |document| {
        Changes::remove(document.head, SILENT)
    }))
}

/// Ends all sessions of an owner and of its keys. They must not come back when the owner becomes active again.
pub(crate) async fn removal_of_owner(cx: &Cx<'_>, owner: &Head) -> Result<Changes, Fault> {
    let mut ids = vec![owner.id.clone()];
    let keys = cx.referring(ApiKey::KIND, owner).await?;
    ids.extend(keys.into_iter().map(|key| key.head.id));
    let mut removals = Changes::default();
    for id in ids {
        let (_, body) = id.split_once('_').unwrap_or_default();
        removals = removals.and(removal(cx.store, body).await?);
    }
    Ok(removals)
}

fn ended() -> Error {
    Refusal::new(
        code::API_KEY_INVALID,
        "The console session has ended; sign in again.",
    )
    .into()
}

impl Control {
    /// Starts a session for an authenticated caller. Returns the cookie. `address` is the caller's
    /// own, not a proxy's.
    ///
    /// # Errors
    ///
    /// Those of [`Control::admit`].
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
        let cookie = token::mint(key, &*self.entropy);
        let now = self.clock.now();
        let session = Session {
            digest: self.pepper.digest(cookie.reveal()),
            began_at: now.unix_millis(),
            seen_at: now.unix_millis(),
            of_person,
            of_token: caller.token.as_ref().map(|token| token.digest.to_string()),
        };
        let expires_at = ends_at(&session, &caller);
        self.change(body, Some(&caller.account), |sessions| {
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
    /// 203 if it has ended, those of [`Control::authenticate`] for its key and owner, and those of
    /// [`Control::admit`].
    pub async fn console_session(
        &self,
        cookie: &str,
        address: IpAddr,
    ) -> Result<ConsoleSession, Error> {
        let Shape::Token { body } = token::shape(cookie) else {
            return Err(ended());
        };
        let now = self.clock.now();
        let found = self.session_of(body, cookie).await?;
        let Some(session) = found.filter(|session| now < session.expires_at()) else {
            return Err(ended());
        };
        let caller = if session.of_person {
            self.person_again(&format!("{}_{body}", User::ID_PREFIX))
                .await?
        } else {
            let key_id = format!("{}_{body}", ApiKey::ID_PREFIX);
            let Some(document) = self.store.get(ApiKey::KIND, &key_id).await? else {
                return Err(ended());
            };
            let key: KeyOfCaller = stored::read(&document)?;
            let token = key.token(session.of_token.as_deref(), now);
            let token = token.map_err(|_| ended())?;
            self.caller_of(key, document.head, token).await?
        };
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

    /// Ends the session of a cookie, if there is one.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn sign_out(&self, cookie: &str) -> Result<(), Error> {
        let Shape::Token { body } = token::shape(cookie) else {
            return Ok(());
        };
        let Some(session) = self.session_of(body, cookie).await? else {
            return Ok(());
        };
        self.change(body, None, |sessions| {
            sessions.retain(|other| other.digest != session.digest);
        })
        .await?;
        Ok(())
    }

    async fn session_of(&self, key_body: &str, cookie: &str) -> Result<Option<Session>, Fault> {
        let document = self.store.get(KIND, &id_of(key_body)).await?;
        let stored: Option<Sessions> = document.as_ref().map(stored::read).transpose()?;
        let sessions = stored.map_or(Vec::new(), |stored| stored.sessions);
        Ok(sessions
            .into_iter()
            .find(|session| self.pepper.recognises(Some(&session.digest), cookie)))
    }

    /// Records that a session is in use. The session stays valid if the write fails.
    async fn note_seen(&self, key_body: &str, session: Session, now: Timestamp) -> Session {
        let seen = Session {
            seen_at: now.unix_millis(),
            ..session.clone()
        };
        let noted = self.change(key_body, None, |sessions| {
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

    /// Changes the active sessions of a key. `account` allows creating the document.
    async fn change(
        &self,
        key_body: &str,
        account: Option<&str>,
        edit: impl Fn(&mut Vec<Session>),
    ) -> Result<(), Fault> {
        let id = id_of(key_body);
        let changing = self.change_locked(&id, account, edit);
        self.locks.with(&[&id], changing).await
    }

    async fn change_locked(
        &self,
        id: &str,
        account: Option<&str>,
        edit: impl Fn(&mut Vec<Session>),
    ) -> Result<(), Fault> {
        for _ in 0..RUNS_MAX {
            let now = self.clock.now();
            let known = self.store.get(KIND, id).await?;
            let mut stored: Sessions = match &known {
                Some(document) => stored::read(document)?,
                None => Sessions::default(),
            };
            stored.sessions.retain(|session| now < session.expires_at());
            edit(&mut stored.sessions);
            let body = stored::write(&stored)?;
            let changes = match (known, account) {
                (Some(document), _) if stored.sessions.is_empty() => {
                    Changes::remove(document.head, SILENT)
                }
                (Some(document), _) => Changes::replace(Document { body, ..document }, SILENT),
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
                    SILENT,
                ),
                (None, None) => return Ok(()),
            };
            match self.store.commit(changes).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Fault(fault)) => return Err(fault),
                // Another node changed them concurrently.
                Err(_) => {}
            }
        }
        Err(Fault::bare("changing console sessions: they keep changing"))
    }

    /// Removes expired sessions, and those of deleted keys.
    pub(crate) async fn clean_console_sessions(&self) -> Result<(), Fault> {
        let now = self.clock.now();
        for document in self.store.all(KIND).await? {
            let stored: Sessions = stored::read(&document)?;
            let has_ended = |session: &Session| now >= session.expires_at();
            if stored.sessions.iter().all(has_ended) {
                let removed = self.store.commit(Changes::remove(document.head, SILENT));
                // Sessions that were started meanwhile stay.
                if let Err(CommitError::Fault(fault)) = removed.await {
                    return Err(fault);
                }
            }
        }
        Ok(())
    }
}
