//! What conditions are about, read with as few queries as there are kinds of facts: never one for each rule or object.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use culvert_agents::session::model::TunnelSession;
use culvert_base::{Fault, Timestamp};
use culvert_certificates::expiry::{Expiry, KINDS};
use culvert_certificates::ssh::public_key_model::SshPublicKey;
use culvert_delivery::{DestinationState, Health};
use culvert_endpoints::endpoint::model::Endpoint;
use culvert_event_config::alert::condition::Condition;
use culvert_event_config::destination::model::EventDestination;
use culvert_identity::api_key::key_use;
use culvert_identity::api_key::model::ApiKey;
use culvert_identity::credential::model::TunnelCredential;
use culvert_resources::access::key_rules::KeyRules;
use culvert_resources::access::tenant::Account;
use culvert_resources::audit::refusals::SIGN_IN_FAILED;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_resources::stored::informer_cache::InformerCache;
use culvert_statistics::Point;
use culvert_store::{AuditKey, Document, Order, Store};
use serde::Deserialize;

use super::agents::Agents;
use crate::control::Control;
use crate::operations::resources;
use culvert_server_log::ServerLog;

/// Longest name of an object in an alert, in bytes.
const NAME_MAX: usize = 255;
/// How often the uses of keys are read, in seconds. Nodes write them once a minute.
const USES_EVERY: u64 = 60;
/// The longest window of sign-ins, in seconds.
const SIGN_INS_FOR: u64 = 3_600;
/// Events of refused sign-ins that are read together, and that are remembered.
const SIGN_INS_READ: u32 = 500;
const SIGN_INS_MAX: usize = 10_000;

/// The properties of an object.
#[derive(Debug)]
pub(super) struct Fact {
    pub(super) account: String,
    /// Empty if it belongs to the admins.
    pub(super) owner_id: String,
    /// What people call it.
    pub(super) name: String,
    pub(super) created_at: Timestamp,
    pub(super) detail: Detail,
}

/// The properties of objects of some kinds only.
#[derive(Debug)]
pub(super) enum Detail {
    Nothing,
    Certificate(Expiry),
    Key {
        /// Its own end.
        expires_at: Option<Timestamp>,
        /// When it got its token, whose age the account may limit.
        issued_at: Timestamp,
    },
    /// The ID of the credential of an agent's session.
    Session(String),
}

/// The health of a destination on all nodes.
#[derive(Debug)]
pub(super) struct DestinationFact {
    pub(super) state: DestinationState,
    pub(super) last_success_at: Option<Timestamp>,
    /// When it was first seen failing since it worked; now if it works.
    pub(super) failing_since: Timestamp,
    /// The last error as people read it; empty if there is none.
    pub(super) error: String,
}

/// The points of endpoints, by ID and the start of their step.
type Points = BTreeMap<String, BTreeMap<i64, Point>>;

/// All facts, as of the last reading. An error says why something is not known.
#[derive(Debug)]
pub(super) struct Facts {
    objects: HashMap<&'static str, InformerCache<Option<Fact>>>,
    /// The first account, which has what belongs to no account.
    first_account: String,
    pub(super) agents: Agents,
    pub(super) health: Result<HashMap<String, DestinationFact>, String>,
    /// Of the destinations that failed when their health was last known.
    failing_since: HashMap<String, Timestamp>,
    points: HashMap<String, Result<Points, String>>,
    pub(super) key_uses: Result<HashMap<String, Timestamp>, String>,
    uses_read_at: Option<Timestamp>,
    /// The rules of keys, by account.
    pub(super) key_rules: Result<HashMap<String, KeyRules>, String>,
    pub(super) sign_ins: Result<SignIns, String>,
}

impl Default for Facts {
    fn default() -> Self {
        let unread = || "not read yet".to_owned();
        Self {
            objects: HashMap::new(),
            first_account: String::new(),
            agents: Agents::default(),
            health: Err(unread()),
            failing_since: HashMap::new(),
            points: HashMap::new(),
            key_uses: Err(unread()),
            uses_read_at: None,
            key_rules: Err(unread()),
            sign_ins: Err(unread()),
        }
    }
}

impl Facts {
    /// The kinds of credentials of agents.
    pub(super) const CREDENTIALS: [&'static str; 2] = [TunnelCredential::KIND, SshPublicKey::KIND];
    pub(super) const CERTIFICATES: [&'static str; 5] = KINDS;
    pub(super) const DESTINATION: &'static str = EventDestination::KIND;
    pub(super) const ENDPOINT: &'static str = Endpoint::KIND;
    pub(super) const KEY: &'static str = ApiKey::KIND;

    /// All objects of a kind that can be read, with their IDs, in the order of these.
    pub(super) fn facts_of(&self, kind: &'static str) -> impl Iterator<Item = (&str, &Fact)> {
        let all = self.objects.get(kind).into_iter();
        all.flat_map(|cache| cache.iter())
            .filter_map(|(id, fact)| Some((id.as_str(), fact.as_ref()?)))
    }

    /// Whether an object exists.
    pub(super) fn has_fact(&self, kind: &str, id: &str) -> bool {
        kind == Account::KIND
            || self
                .objects
                .get(kind)
                .is_some_and(|cache| cache.contains(id))
    }

    /// Whether an object exists and cannot be read here, such as one of a later version: nothing is known of it.
    pub(super) fn is_unreadable(&self, kind: &str, id: &str) -> bool {
        let cache = self.objects.get(kind);
        cache.is_some_and(|cache| matches!(cache.get(id), Some(None)))
    }

    /// The points of the endpoints of an account.
    pub(super) fn points_of(&self, account: &str) -> Result<&Points, String> {
        match self.points.get(account) {
            Some(Ok(points)) => Ok(points),
            Some(Err(why)) => Err(why.clone()),
            None => Err("the statistics are not read yet".to_owned()),
        }
    }

    /// Reads what these conditions of accounts need.
    pub(super) async fn read_facts(
        &mut self,
        control: &Control,
        log: &ServerLog,
        watched: &[(&str, &Condition)],
        now: Timestamp,
    ) -> Result<(), Fault> {
        let store = &control.kernel.store;
        if self.first_account.is_empty() {
            self.first_account = log.account().await?.unwrap_or_default();
        }
        let kinds: HashSet<&'static str> = watched
            .iter()
            .flat_map(|(_, condition)| kinds_of(condition))
            .copied()
            .collect();
        self.objects.retain(|kind, _| kinds.contains(kind));
        for kind in kinds {
            let first_account = self.first_account.clone();
            let make = |document| read(document, &first_account);
            let cache = self
                .objects
                .entry(kind)
                .or_insert_with(|| InformerCache::of(kind));
            cache.refresh(store, make).await?;
        }
        let asks = |is_asked: fn(&Condition) -> bool| {
            watched.iter().any(|(_, condition)| is_asked(condition))
        };
        if asks(|one| matches!(one, Condition::AgentOffline { .. })) {
            self.note_agents(log, now).await?;
        }
        if asks(|one| matches!(one, Condition::DestinationFailing { .. })) {
            self.read_health(control, now).await;
        }
        if asks(|one| matches!(one, Condition::KeyUnused { .. })) {
            self.read_uses(store, now).await;
        }
        if asks(|one| matches!(one, Condition::KeyExpiring { .. })) {
            let rules = read_key_rules(store).await;
            self.key_rules = rules
                .map_err(|fault| format!("the rules of keys are not known: {}", fault.chain()));
        }
        if asks(|one| matches!(one, Condition::SignInsFailed { .. })) {
            self.read_sign_ins(store, now).await;
        }
        self.read_points(control, watched, now).await;
        Ok(())
    }

    async fn note_agents(&mut self, log: &ServerLog, now: Timestamp) -> Result<(), Fault> {
        let objects = &self.objects;
        let sessions = objects.get(TunnelSession::KIND).into_iter();
        let sessions = sessions.flat_map(|cache| cache.values()).flatten();
        let connected: HashSet<&str> = sessions
            .filter_map(|fact| match &fact.detail {
                Detail::Session(credential) => Some(credential.as_str()),
                _ => None,
            })
            .collect();
        let exists = |id: &str| {
            let mut caches = Self::CREDENTIALS
                .iter()
                .filter_map(|kind| objects.get(kind));
            caches.any(|cache| cache.contains(id))
        };
        self.agents
            .note_connected(log, &connected, exists, now)
            .await
    }

    async fn read_health(&mut self, control: &Control, now: Timestamp) {
        let before = &self.failing_since;
        let since = |id: &str, health: &Health| match health.state {
            DestinationState::Ok => now,
            _ => before.get(id).copied().unwrap_or(now).min(now),
        };
        let fact = |(id, health): (String, Health)| {
            let error = health.last_error.as_ref();
            let fact = DestinationFact {
                state: health.state,
                last_success_at: health.last_success_at,
                failing_since: since(&id, &health),
                error: error.map_or_else(String::new, |error| {
                    cut(format!("{} {}", error.class.name(), error.code))
                }),
            };
            (id, fact)
        };
        let read = control.events.delivery.cluster_healths().await;
        self.health = match read {
            Ok(healths) => {
                let facts: HashMap<String, DestinationFact> =
                    healths.into_iter().map(fact).collect();
                let failing = facts
                    .iter()
                    .filter(|(_, one)| one.state != DestinationState::Ok);
                // A failed read forgets none.
                self.failing_since = failing
                    .map(|(id, one)| (id.clone(), one.failing_since))
                    .collect();
                Ok(facts)
            }
            Err(fault) => Err(format!(
                "the health of destinations is not known: {}",
                fault.chain()
            )),
        };
    }

    async fn read_uses(&mut self, store: &Store, now: Timestamp) {
        let is_fresh = |at: Timestamp| now.since(at).as_secs() < USES_EVERY && at <= now;
        if self.key_uses.is_ok() && self.uses_read_at.is_some_and(is_fresh) {
            return;
        }
        let uses = key_use::stored_uses(store).await;
        self.key_uses =
            uses.map_err(|fault| format!("the uses of keys are not known: {}", fault.chain()));
        self.uses_read_at = Some(now);
    }

    async fn read_sign_ins(&mut self, store: &Store, now: Timestamp) {
        let known = std::mem::replace(&mut self.sign_ins, Err(String::new()));
        let mut known = known.unwrap_or_default();
        self.sign_ins = match known.read_refusals(store, now).await {
            Ok(()) => Ok(known),
            Err(fault) => Err(format!("the audit log cannot be read: {}", fault.chain())),
        };
    }

    /// Reads the longest window that the rules of each account have.
    async fn read_points(
        &mut self,
        control: &Control,
        watched: &[(&str, &Condition)],
        now: Timestamp,
    ) {
        let mut windows: HashMap<&str, u64> = HashMap::new();
        for (account, condition) in watched {
            if let Condition::EndpointWithoutUpstream { over, .. }
            | Condition::ErrorRate { over, .. }
            | Condition::Latency { over, .. } = condition
            {
                let longest = windows.entry(account).or_default();
                *longest = (*longest).max(over.seconds());
            }
        }
        self.points.clear();
        let statistics = &control.events.statistics;
        let to = now.unix_seconds();
        for (account, seconds) in windows {
            let from = to.saturating_sub(i64::try_from(seconds).unwrap_or(i64::MAX));
            let points = statistics.endpoint_points(account, (from, to)).await;
            let points =
                points.map_err(|fault| format!("the statistics cannot be read: {}", fault.chain()));
            self.points.insert(account.to_owned(), points);
        }
    }
}

async fn read_key_rules(store: &Store) -> Result<HashMap<String, KeyRules>, Fault> {
    let accounts = store.all(Account::KIND).await?.into_iter();
    let rules = |document: Document| {
        let account: Account = stored::read(&document)?;
        Ok((document.head.id, account.key_rules))
    };
    accounts.map(rules).collect()
}

/// The kinds of documents that a condition is about.
fn kinds_of(condition: &Condition) -> &'static [&'static str] {
    match condition {
        Condition::AgentOffline { .. } => &[
            TunnelCredential::KIND,
            SshPublicKey::KIND,
            TunnelSession::KIND,
        ],
        Condition::CertificateExpiring { .. } => &Facts::CERTIFICATES,
        Condition::DestinationFailing { .. } => &[Facts::DESTINATION],
        Condition::EndpointWithoutUpstream { .. }
        | Condition::ErrorRate { .. }
        | Condition::Latency { .. } => &[Facts::ENDPOINT],
        Condition::KeyExpiring { .. } | Condition::KeyUnused { .. } => &[Facts::KEY],
        Condition::SignInsFailed { .. } => &[],
    }
}

fn read(document: Document, first_account: &str) -> Option<Fact> {
    match fact_of(&document, first_account) {
        Ok(fact) => Some(fact),
        Err(fault) => {
            tracing::error!(cause = %fault.chain(), "an object of alert rules cannot be read");
            None
        }
    }
}

fn fact_of(document: &Document, first_account: &str) -> Result<Fact, Fault> {
    let head = &document.head;
    let (name, detail) = match head.kind.as_str() {
        TunnelCredential::KIND => {
            let credential: TunnelCredential = stored::read(document)?;
            (credential.description.to_string(), Detail::Nothing)
        }
        SshPublicKey::KIND => {
            let key: SshPublicKey = stored::read(document)?;
            (key.description.to_string(), Detail::Nothing)
        }
        TunnelSession::KIND => {
            let session: TunnelSession = stored::read(document)?;
            (String::new(), Detail::Session(session.credential_id))
        }
        Endpoint::KIND => {
            let endpoint: Endpoint = stored::read(document)?;
            (endpoint.address.url.clone(), Detail::Nothing)
        }
        EventDestination::KIND => {
            let destination: EventDestination = stored::read(document)?;
            (destination.description.to_string(), Detail::Nothing)
        }
        ApiKey::KIND => {
            let key: ApiKey = stored::read(document)?;
            let detail = Detail::Key {
                expires_at: key.restrictions.expires_at,
                issued_at: key.issued_at(head),
            };
            (key.description.to_string(), detail)
        }
        _ => match Expiry::of(document)? {
            Some(expiry) => (expiry.names.join(", "), Detail::Certificate(expiry)),
            None => (String::new(), Detail::Nothing),
        },
    };
    let ty = resources::ALL.iter().find(|ty| ty.kind == head.kind);
    let owner_id = ty.map(|ty| ty.owner_of(document)).transpose()?.flatten();
    Ok(Fact {
        account: match head.account.as_str() {
            // The installation's own certificates belong to no account.
            "" => first_account.to_owned(),
            account => account.to_owned(),
        },
        owner_id: owner_id.unwrap_or_default(),
        name: match name.trim() {
            "" => head.id.clone(),
            name => cut(name.to_owned()),
        },
        created_at: head.created_at,
        detail,
    })
}

/// A text of a stranger within a sentence: one line, without marks that change the direction of text.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(NAME_MAX));
    let is_steering = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    match text.contains(is_steering) {
        true => text.replace(is_steering, " "),
        false => text,
    }
}

/// The refused sign-ins of the last hour, as the audit log counts them.
#[derive(Debug, Default)]
pub(super) struct SignIns {
    /// The position of the last event that was read.
    last: i64,
    /// The history of the database that the position is of.
    epoch: u64,
    seen: VecDeque<Refused>,
}

#[derive(Debug)]
struct Refused {
    event_id: String,
    account: String,
    at: Timestamp,
    count: u64,
}

impl SignIns {
    /// How many there were after `begin` until `now`, and the ID of the last event.
    pub(super) fn counted_between(
        &self,
        account: &str,
        begin: Timestamp,
        now: Timestamp,
    ) -> (u64, Option<&str>) {
        // Another node's clock may be a little ahead. Events later than that were written by a clock that was wrong.
        let end = now.plus(std::time::Duration::from_secs(60));
        let is_in = |one: &&Refused| one.account == account && one.at > begin && one.at <= end;
        let seen = self.seen.iter().filter(is_in);
        seen.fold((0, None), |(sum, _), one| {
            (sum.saturating_add(one.count), Some(one.event_id.as_str()))
        })
    }

    /// Reads the events since the last call; the first call, those of the last hour.
    async fn read_refusals(&mut self, store: &Store, now: Timestamp) -> Result<(), Fault> {
        let epoch = store.epoch();
        if self.epoch != epoch {
            *self = Self {
                epoch,
                ..Self::default()
            };
        }
        let (log, key) = (store.audit_log(), AuditKey::Kind(SIGN_IN_FAILED));
        let begin = now.minus(std::time::Duration::from_secs(SIGN_INS_FOR));
        let head = log.extent().await?.last;
        let mut before = head;
        let mut new = Vec::new();
        loop {
            let positions = self.last.saturating_add(1)..=before;
            if positions.is_empty() || new.len() >= SIGN_INS_MAX {
                break;
            }
            let rows = log
                .page(key, Order::NewestFirst, positions, SIGN_INS_READ)
                .await?;
            let n_rows = rows.len();
            let mut is_old = false;
            for linked in rows {
                let row = linked.row;
                before = row.seq - 1;
                let at = Timestamp::from_unix_nanos(row.happened_at);
                is_old |= at <= begin;
                new.push(Refused {
                    count: count_of(&row.body),
                    event_id: row.id,
                    account: row.account,
                    at,
                });
            }
            if is_old || n_rows < SIGN_INS_READ as usize {
                break;
            }
        }
        self.last = head;
        self.seen.extend(new.into_iter().rev());
        self.seen.retain(|one| one.at > begin);
        while self.seen.len() > SIGN_INS_MAX {
            self.seen.pop_front();
        }
        Ok(())
    }
}

/// How many refusals an event counts.
fn count_of(body: &str) -> u64 {
    #[derive(Deserialize)]
    struct Envelope {
        object: Counted,
    }
    #[derive(Deserialize)]
    struct Counted {
        count: u64,
    }
    serde_json::from_str(body).map_or(1, |envelope: Envelope| envelope.object.count)
}
