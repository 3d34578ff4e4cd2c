//! The state that all sign-ins of a process share, and the paths and redirects that they have in common.

mod ttl_cache;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use culvert_base::{Entropy, FairPermits, IdMaker, Timestamp};
use culvert_policy::identity::AssertionKeys;
use culvert_policy::reply;
use culvert_policy::services::PolicyServices;
use http::header::{CACHE_CONTROL, HeaderValue, LOCATION};
use http::{Response, StatusCode};
use tokio::sync::{mpsc, oneshot};
use url::Url;

use self::ttl_cache::TtlCache;
use crate::action::session_middleware::{Completion, Refresh};
use crate::attempt::ATTEMPT_WITHIN;
use crate::journal::{Ending, JournalEntry, Noted, Revocations, Sighting, UserKey};
use crate::provider::ProvidersSettings;
use crate::seal::LoginKeys;

/// The path on the endpoint's host to which the provider redirects the user.
pub(crate) const CALLBACK_PATH: &str = "/culvert/oauth2/callback";
/// The callback path below `oauth.callback_base`.
pub(crate) const CENTRAL_CALLBACK: &str = "/oauth2/callback";

/// Maximum duration of a session.
pub const SESSION_MAX: Duration = Duration::from_secs(8760 * 3600);

/// Capacity of the journal's queue. If it is full, a session is recorded at its next renewal.
const JOURNAL_MAX: usize = 1024;
/// Minimum interval between two records of a session in use.
const NOTE_EVERY: Duration = Duration::from_secs(60);
/// How long a new session waits for its record. After that it begins without one.
const NOTE_WITHIN: Duration = Duration::from_secs(2);
/// How long a session that ended here is remembered. By then it is in the table.
const ENDED_FOR: Duration = Duration::from_secs(10 * 60);
/// Maximum number of remembered sessions, states and users.
const REMEMBERED_MAX: usize = 100_000;
/// Maximum number of remembered refreshes, for requests with the previous cookie, and of remembered steps of sign-ins.
const REFRESHES_MAX: usize = 1024;
const REFRESH_FOR: Duration = Duration::from_secs(60);
/// How long further requests of the same browser with the same callback get the result of the first one.
const COMPLETED_FOR: Duration = Duration::from_secs(10);
/// Maximum number of concurrent calls to providers. One endpoint gets at most half of them.
const CALLS_MAX: usize = 128;

/// The operator's settings for sign-ins.
#[derive(Clone, Debug, Default)]
pub struct LoginSettings {
    /// The base URL of the installation: the issuer of assertions about users.
    pub issuer: String,
    /// The common callback address of all endpoints, without `/oauth2/callback`. `None` uses the endpoint's host.
    pub callback_base: Option<Url>,
    /// The providers of `oauth`.
    pub providers: ProvidersSettings,
    /// Whether issuers may have `http` URLs with loopback addresses.
    pub allows_loopback: bool,
}

/// A step of a sign-in attempt.
pub(crate) type AttemptStep = (&'static str, [u8; 16]);
/// A step, and the digest of the code or ticket that a request has for it.
pub(crate) type StepProof = (AttemptStep, [u8; 32]);

/// The shared state of all sign-ins of a process.
#[derive(Debug)]
pub struct Logins {
    pub(crate) keys: LoginKeys,
    assertions: Arc<AssertionKeys>,
    settings: LoginSettings,
    ids: IdMaker,
    journal: mpsc::Sender<JournalEntry>,
    /// Sessions that were ended early.
    revoked: ArcSwap<Revocations>,
    /// Sessions that ended in this process and are not in the table yet.
    ended: TtlCache<String, ()>,
    /// Steps of attempts that were begun.
    pub(crate) used: TtlCache<AttemptStep, ()>,
    /// Their results, for requests with the same code or ticket that arrive with or after the first one.
    pub(crate) completing: TtlCache<StepProof, Completion>,
    /// Sessions that were recently recorded.
    noted: TtlCache<String, ()>,
    /// Ids of users, as far as the journal has returned them.
    pub(crate) users: TtlCache<UserKey, String>,
    pub(crate) refreshed: TtlCache<String, Refresh>,
    pub(crate) calls: FairPermits,
}

impl Logins {
    /// Sign-ins whose cookies are encrypted with `keys`, and the receiver of the journal.
    pub fn new(
        keys: LoginKeys,
        settings: LoginSettings,
    ) -> (Arc<Self>, mpsc::Receiver<JournalEntry>) {
        let (journal, entries) = mpsc::channel(JOURNAL_MAX);
        let secrets = keys.assertion_secrets().iter().copied();
        let logins = Self {
            assertions: Arc::new(AssertionKeys::new(&settings.issuer, secrets)),
            keys,
            settings,
            ids: IdMaker::new(),
            journal,
            revoked: ArcSwap::default(),
            ended: TtlCache::new(ENDED_FOR, REMEMBERED_MAX),
            used: TtlCache::new(ATTEMPT_WITHIN, REMEMBERED_MAX),
            completing: TtlCache::new(COMPLETED_FOR, REFRESHES_MAX),
            noted: TtlCache::new(NOTE_EVERY, REMEMBERED_MAX),
            users: TtlCache::new(ENDED_FOR, REMEMBERED_MAX),
            refreshed: TtlCache::new(REFRESH_FOR, REFRESHES_MAX),
            calls: FairPermits::new(CALLS_MAX),
        };
        (Arc::new(logins), entries)
    }

    /// The operator's settings.
    pub(crate) fn settings(&self) -> &LoginSettings {
        &self.settings
    }

    /// The keys of assertions about users.
    pub fn assertions(&self) -> &Arc<AssertionKeys> {
        &self.assertions
    }

    /// Replaces the table of ended sessions.
    pub fn revoke(&self, sessions: Revocations) {
        self.revoked.store(Arc::new(sessions));
    }

    /// Whether a session was ended early.
    pub(crate) fn has_ended(&self, user: UserKey, session: &str, started_at: Timestamp) -> bool {
        let revoked = self.revoked.load();
        let is_revoked = revoked
            .get(&user)
            .is_some_and(|revoked| revoked.covers(session, started_at));
        is_revoked || self.ended.contains_key(session)
    }

    /// The start time of a new session of this user: later than the last time at which all sessions were ended.
    pub(crate) fn beginning(&self, user: UserKey, now: Timestamp) -> Timestamp {
        let revoked = self.revoked.load();
        let before = revoked.get(&user).and_then(|revoked| revoked.before);
        before.map_or(now, |before| now.max(before.plus(Duration::from_millis(1))))
    }

    /// Sends a session to the journal. `None` if the queue is full or has no reader.
    fn note(&self, sighting: Sighting) -> Option<oneshot::Receiver<Noted>> {
        let (answer, noted) = oneshot::channel();
        let entry = JournalEntry::SignedIn(Box::new(sighting), answer);
        self.journal.try_send(entry).ok()?;
        Some(noted)
    }

    /// Records a new session. Returns the id of its user, empty if it is not known in time, or why the session must
    /// not begin.
    pub(crate) async fn note_first(&self, sighting: Sighting) -> Result<String, Noted> {
        let user = sighting.user();
        let Some(noted) = self.note(sighting) else {
            return Ok(String::new());
        };
        match tokio::time::timeout(NOTE_WITHIN, noted).await {
            Ok(Ok(Noted::Stored(id))) => {
                self.users.insert(user, id.clone());
                Ok(id)
            }
            Ok(Ok(refused)) => Err(refused),
            // Sign-ins work without a store. The session is recorded when it is renewed.
            Ok(Err(_)) | Err(_) => Ok(String::new()),
        }
    }

    /// Records the use of a session at most once per interval, without waiting for the result.
    pub(crate) fn note_again(self: &Arc<Self>, services: &Arc<PolicyServices>, sighting: Sighting) {
        let id = sighting.session.clone();
        let ((), is_due) = self.noted.get_or_insert(id.clone(), ());
        if !is_due {
            return;
        }
        let user = sighting.user();
        let Some(noted) = self.note(sighting) else {
            self.noted.remove(&id);
            return;
        };
        let logins = Arc::clone(self);
        services.tasks.spawn(Box::pin(async move {
            match noted.await {
                Ok(Noted::Stored(user_id)) => logins.users.insert(user, user_id),
                Ok(Noted::Ended) => logins.ended.insert(id, ()),
                Ok(Noted::Full) | Err(_) => {}
            }
        }));
    }

    /// Ends a session immediately in this process, and soon everywhere.
    pub(crate) fn end(&self, ending: Ending) {
        self.ended.insert(ending.session.clone(), ());
        let session = ending.session.clone();
        if self
            .journal
            .try_send(JournalEntry::Ended(Box::new(ending)))
            .is_err()
        {
            tracing::warn!(session, "ending a session on other nodes failed");
        }
    }
}

/// A redirect that must not be cached.
pub(crate) fn redirect(to: &str) -> Option<Response<bytes::Bytes>> {
    let mut answer = reply::empty(StatusCode::FOUND);
    let headers = answer.headers_mut();
    headers.insert(LOCATION, HeaderValue::try_from(to).ok()?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(answer)
}

/// A redirect to a URL that has secrets, which events and captures show as redacted.
pub(crate) fn secret_redirect(to: &str) -> Option<Response<bytes::Bytes>> {
    let mut answer = redirect(to)?;
    answer.headers_mut().get_mut(LOCATION)?.set_sensitive(true);
    Some(answer)
}

/// The id of a new session.
pub(crate) fn new_session_id(logins: &Logins, services: &PolicyServices) -> String {
    let entropy: &dyn Entropy = &*services.entropy;
    format!("as_{}", logins.ids.next(&*services.clock, entropy))
}
