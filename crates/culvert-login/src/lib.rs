//! People log in at an identity provider before they reach an endpoint: the machine behind the
//! actions `oauth` and `openid-connect`.
//!
//! ```text
//! no session ─▶ provider ─▶ callback ─▶ session cookie ─▶ the page that was wanted
//!               (state,      (code, tokens, user info)
//!                nonce, PKCE)
//! ```
//!
//! All of a session is in its cookie, sealed ([`seal`]): any node of an installation takes it, and no
//! request waits for a store. What others know of sessions goes through the [`journal`]. What is kept
//! here is bounded and may be forgotten: states that were used, refreshes under way.
//!
//! Requests to providers go through the ports of [`culvert_policy::services`].

mod attempt;
mod config;
mod cookie;
mod event_slots;
mod grant;
mod journal;
mod oauth;
mod openid_connect;
mod provider;
mod seal;
mod session;
mod session_middleware;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use culvert_base::{Entropy, IdMaker, Timestamp};
use culvert_http::authority::Authority;
use culvert_policy::action;
use culvert_policy::action_type::Actions;
use culvert_policy::conn::{ConnCounters, ConnInfo};
use culvert_policy::problem::Problem;
use culvert_policy::reply;
use culvert_policy::services::PolicyServices;
use http::header::{CACHE_CONTROL, HOST, HeaderValue, LOCATION};
use http::{Method, Response, StatusCode, request};
use moka::future::Cache;
use tokio::sync::{Semaphore, mpsc, oneshot};
use url::Url;

pub(crate) use self::grant::App;
pub use self::journal::{Ending, Entry, Noted, Person, Revocations, Revoked, Sighting, UserKey};
pub(crate) use self::provider::{Issuer, Known, is_secure};
pub use self::provider::{ProviderSettings, ProvidersSettings, provider_names};
pub use self::seal::LoginKeys;
pub(crate) use self::session_middleware::{AppSource, Kind, Provider};

use self::attempt::{ATTEMPT_WITHIN, State};
use self::session_middleware::Refresh;

/// Where the user comes back from the provider, on the endpoint's host.
pub(crate) const CALLBACK_PATH: &str = "/culvert/oauth2/callback";
/// The same behind `oauth.callback_base`.
const CENTRAL_CALLBACK: &str = "/oauth2/callback";

/// The actions that traffic policies may use: those of `culvert-policy`, and the sign-ins.
pub static ACTIONS: Actions = Actions(&[action::ALL, &[&oauth::TYPE, &openid_connect::TYPE]]);

/// How long a session can last.
pub const SESSION_MAX: Duration = Duration::from_secs(8760 * 3600);

/// Entries of the journal that wait. When it is full a session is not noted now, but with its next
/// renewal.
const JOURNAL_MAX: usize = 1024;
/// A session in use is noted once in so long.
const NOTE_EVERY: Duration = Duration::from_secs(60);
/// How long a new session may take to be noted; then it begins all the same.
const NOTE_WITHIN: Duration = Duration::from_secs(2);
/// How long a session that ended here is remembered: until it is in the table.
const ENDED_FOR: Duration = Duration::from_secs(10 * 60);
/// Sessions, states and users that are remembered.
const REMEMBERED_MAX: u64 = 100_000;
/// Refreshes whose outcome is remembered, for requests that come with the cookie of before.
const REFRESHES_MAX: u64 = 1024;
const REFRESH_FOR: Duration = Duration::from_secs(60);
/// Calls to providers at once.
const CALLS_MAX: usize = 64;

/// What the operator says of log-ins.
#[derive(Clone, Debug, Default)]
pub struct LoginSettings {
    /// The one address that users come back to from every provider, without `/oauth2/callback`; `None`
    /// for one on the endpoint's host.
    pub callback_base: Option<Url>,
    /// The providers of `oauth`.
    pub providers: ProvidersSettings,
    /// Whether an issuer may be at `http` addresses of this machine.
    pub allows_loopback: bool,
}

/// What all log-ins of a process share.
#[derive(Debug)]
pub struct Logins {
    keys: LoginKeys,
    settings: LoginSettings,
    ids: IdMaker,
    journal: mpsc::Sender<Entry>,
    /// Sessions that ended before their time.
    revoked: ArcSwap<Revocations>,
    /// The same, of which only this process knows yet.
    ended: Cache<String, ()>,
    /// Attempts that came back.
    used: Cache<[u8; 16], ()>,
    /// Sessions that were noted a moment ago.
    noted: Cache<String, ()>,
    /// Ids of users, as far as the journal told them.
    users: Cache<UserKey, String>,
    refreshed: Cache<String, Refresh>,
    calls: Semaphore,
}

impl Logins {
    /// Log-ins whose cookies are sealed with these keys, and what they tell.
    pub fn new(keys: LoginKeys, settings: LoginSettings) -> (Arc<Self>, mpsc::Receiver<Entry>) {
        fn cache<
            K: std::hash::Hash + Eq + Send + Sync + 'static,
            V: Clone + Send + Sync + 'static,
        >(
            kept_for: Duration,
            max: u64,
        ) -> Cache<K, V> {
            Cache::builder()
                .max_capacity(max)
                .time_to_live(kept_for)
                .build()
        }
        let (journal, entries) = mpsc::channel(JOURNAL_MAX);
        let logins = Self {
            keys,
            settings,
            ids: IdMaker::new(),
            journal,
            revoked: ArcSwap::default(),
            ended: cache(ENDED_FOR, REMEMBERED_MAX),
            used: cache(ATTEMPT_WITHIN, REMEMBERED_MAX),
            noted: cache(NOTE_EVERY, REMEMBERED_MAX),
            users: cache(ENDED_FOR, REMEMBERED_MAX),
            refreshed: cache(REFRESH_FOR, REFRESHES_MAX),
            calls: Semaphore::new(CALLS_MAX),
        };
        (Arc::new(logins), entries)
    }

    /// What the operator says.
    pub(crate) fn settings(&self) -> &LoginSettings {
        &self.settings
    }

    /// Ends sessions: these, and no others.
    pub fn revoke(&self, sessions: Revocations) {
        self.revoked.store(Arc::new(sessions));
    }

    /// Whether a session has ended before its time.
    fn has_ended(&self, user: UserKey, session: &str, started_at: Timestamp) -> bool {
        let revoked = self.revoked.load();
        let is_revoked = revoked
            .get(&user)
            .is_some_and(|revoked| revoked.covers(session, started_at));
        is_revoked || self.ended.contains_key(session)
    }

    /// A moment from which a session of this user can begin: after the last one at which all ended.
    fn beginning(&self, user: UserKey, now: Timestamp) -> Timestamp {
        let revoked = self.revoked.load();
        let before = revoked.get(&user).and_then(|revoked| revoked.before);
        before.map_or(now, |before| now.max(before.plus(Duration::from_millis(1))))
    }

    /// Hands a session to the journal; `None` if there is no room, or nobody who notes it.
    fn tell(&self, sighting: Sighting) -> Option<oneshot::Receiver<Noted>> {
        let (answer, noted) = oneshot::channel();
        let entry = Entry::Seen(Box::new(sighting), answer);
        self.journal.try_send(entry).ok()?;
        Some(noted)
    }

    /// Notes a session that begins: its user's id as far as it is known in time, or why it does not.
    async fn note_first(&self, sighting: Sighting) -> Result<String, Noted> {
        let user = sighting.user();
        let Some(noted) = self.tell(sighting) else {
            return Ok(String::new());
        };
        match tokio::time::timeout(NOTE_WITHIN, noted).await {
            Ok(Ok(Noted::Stored(id))) => {
                self.users.insert(user, id.clone()).await;
                Ok(id)
            }
            Ok(Ok(refused)) => Err(refused),
            // The planes go on without a store; the session is noted when it is renewed.
            Ok(Err(_)) | Err(_) => Ok(String::new()),
        }
    }

    /// Notes a session that is in use, now and then, without waiting for what comes of it.
    async fn note_again(self: &Arc<Self>, services: &Arc<PolicyServices>, sighting: Sighting) {
        let id = sighting.session.clone();
        let entry = self.noted.entry(id.clone()).or_insert(()).await;
        if !entry.is_fresh() {
            return;
        }
        let user = sighting.user();
        let Some(noted) = self.tell(sighting) else {
            self.noted.invalidate(&id).await;
            return;
        };
        let logins = Arc::clone(self);
        services.tasks.spawn(Box::pin(async move {
            match noted.await {
                Ok(Noted::Stored(user_id)) => logins.users.insert(user, user_id).await,
                Ok(Noted::Ended) => logins.ended.insert(id, ()).await,
                Ok(Noted::Full) | Err(_) => {}
            }
        }));
    }

    /// Ends a session here at once, and everywhere soon.
    async fn end(&self, ending: Ending) {
        self.ended.insert(ending.session.clone(), ()).await;
        let session = ending.session.clone();
        if self
            .journal
            .try_send(Entry::Ended(Box::new(ending)))
            .is_err()
        {
            tracing::warn!(session, "ending a session on other nodes failed");
        }
    }
}

/// The answer to a user who comes back to the one address of all endpoints: on to the endpoint where
/// he began. `None` for every other request.
pub fn forwarded_callback(
    logins: &Logins,
    (info, counters): (&ConnInfo, &ConnCounters),
    parts: &request::Parts,
) -> Option<Response<bytes::Bytes>> {
    let base = logins.settings.callback_base.as_ref()?;
    let path = parts.uri.path().strip_suffix(CENTRAL_CALLBACK)?;
    let authority = Authority::of(&parts.uri, parts.headers.get(HOST)).ok()?;
    let is_here = path == base.path().trim_end_matches('/')
        && base.host_str() == Some(&*authority.host)
        && parts.method == Method::GET;
    if !is_here {
        return None;
    }
    let accept = parts.headers.get(http::header::ACCEPT);
    let query = parts.uri.query().unwrap_or_default();
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    let Some((_, text)) = pairs.find(|(name, _)| name == "state") else {
        return Some(Problem::LoginNoState.answer(accept, info, counters));
    };
    let Some(state) = State::open(&logins.keys, "", &text, info.now()) else {
        return Some(Problem::LoginState.answer(accept, info, counters));
    };
    redirect(&format!("{}{CALLBACK_PATH}?{query}", state.origin))
}

/// A redirect that is not kept.
fn redirect(to: &str) -> Option<Response<bytes::Bytes>> {
    let mut answer = reply::empty(StatusCode::FOUND);
    let headers = answer.headers_mut();
    headers.insert(LOCATION, HeaderValue::try_from(to).ok()?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(answer)
}

/// The id of a new session.
fn new_session_id(logins: &Logins, services: &PolicyServices) -> String {
    let entropy: &dyn Entropy = &*services.entropy;
    format!("as_{}", logins.ids.next(&*services.clock, entropy))
}
