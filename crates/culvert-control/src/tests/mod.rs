//! Control over a real store in a temporary folder, with a manual clock and a seeded source of randomness.

mod addresses;
mod agent_runs;
mod agents;
mod alerts;
mod audit;
mod audit_holds;
mod authority;
mod bind_owners;
mod callers;
mod certificates;
mod clock_steps;
mod codes;
mod compile;
mod console;
mod copied;
mod domains;
mod endpoint_addresses;
mod every_resource;
mod hostile;
mod idempotency;
mod ingresses;
mod internal;
mod ip;
mod key_creation;
mod key_restrictions;
mod key_reviews;
mod key_rotation;
mod key_rules;
mod keys;
mod leaked_tokens;
mod lists;
mod lockout;
mod logins;
mod lookups;
mod lost_commits;
mod maintenance;
mod managed;
mod names;
mod observed;
mod operators;
mod people;
mod planted_errors;
mod planted_secret;
mod policy_analysis;
mod private;
mod races;
mod reencrypt;
mod references;
mod replays;
mod restricted_effects;
mod rights;
mod schemas;
mod search;
mod search_objects;
mod secrets;
mod server_log;
mod spellings;
mod ssh;
mod statistics;
mod subscriptions;
mod upstream_lists;
mod upstream_tls;
mod uses;
mod vaults;

use std::sync::{Arc, Mutex};

use culvert_base::net::HostName;
use culvert_base::{Clock, Code, IdMaker, ManualClock, Secret, SeededEntropy, Timestamp, code};
use culvert_delivery::Delivery;
use culvert_endpoints::host;
use culvert_event_config::event_kinds;
use culvert_event_config::replay;
use culvert_resources::access::tenant::Account;
use culvert_resources::access::user::User;
use culvert_resources::keyed_mutex;
use culvert_resources::resource::model::Model;
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, Document, Head, Queue, Store, StoreUrl};
use culvert_target::TargetSettings;
use serde_json::{Value, json};

use super::*;
use crate::upgrade::{relink, upgrade_grants};

/// Public base of these tests.
const BASE: &str = "http://api.example";

/// The limits of agents.
const AGENTS: AgentLimits = AgentLimits {
    sessions: 100,
    sessions_per_account: 100,
    sessions_per_owner: 100,
    sessions_per_credential: 100,
    endpoints_per_account: 100,
    endpoints_per_owner: 10_000,
};

/// Control with its store, clock, edge and first key.
pub(crate) struct Rig {
    pub(crate) control: Arc<Control>,
    clock: Arc<ManualClock>,
    store: Store,
    queue: Queue,
    /// Token of the first key.
    token: Secret,
    /// Its owner.
    pub(crate) admin: Caller,
    edge: Arc<HeldEdge>,
    /// The edge's sign-in entries.
    entries: Mutex<Option<tokio::sync::mpsc::Receiver<culvert_login::JournalEntry>>>,
    /// The position of the last event that a test has seen.
    last_seq: Mutex<i64>,
    folder: tempfile::TempDir,
}

/// An edge that keeps its snapshot.
#[derive(Debug)]
struct HeldEdge(
    tokio::sync::watch::Sender<Option<culvert_edge_config::Snapshot>>,
    Mutex<Vec<culvert_events::RefusedTraffic>>,
);

impl EdgePort for HeldEdge {
    fn publish(&self, snapshot: culvert_edge_config::Snapshot) -> culvert_base::BoxFuture<'_, ()> {
        self.0.send_replace(Some(snapshot));
        Box::pin(async {})
    }

    fn apply(&self, change: culvert_edge_config::Change) -> culvert_base::BoxFuture<'_, ()> {
        self.0.send_modify(|snapshot| {
            let before = snapshot.take().unwrap_or_default();
            *snapshot = Some(before.changed(change));
        });
        Box::pin(async {})
    }

    fn confirm(&self, _: std::time::Instant) {}

    fn take_refused(&self) -> Vec<culvert_events::RefusedTraffic> {
        std::mem::take(&mut *self.1.lock().unwrap())
    }

    fn unhealthy_upstreams(&self) -> Option<Vec<culvert_edge_config::UnhealthyUpstream>> {
        None
    }

    fn upstream_statuses(&self, _: &str) -> Option<Vec<culvert_edge_config::UpstreamStatus>> {
        None
    }

    fn replay(
        &self,
        _: culvert_edge_config::ReplayRequest,
    ) -> culvert_base::BoxFuture<
        '_,
        Result<culvert_edge_config::Replayed, culvert_edge_config::NotReplayed>,
    > {
        Box::pin(async { Err(culvert_edge_config::NotReplayed::NoEndpoint) })
    }
}

/// The body of the ID in a token.
fn body_of(token: &str) -> &str {
    match token::shape(token) {
        token::Shape::Token { body, .. } => body,
        other => panic!("{other:?}"),
    }
}

/// The part of a token that nothing may repeat.
fn secret_of(token: &str) -> &str {
    token.rsplit('_').next().unwrap()
}

/// A token in the right format for the same ID, with another secret.
fn guessed(token: &str) -> String {
    format!("{}_{}", body_of(token), "a".repeat(21))
}

/// The result of an operation.
#[derive(Debug, PartialEq)]
pub(crate) enum Answered {
    Created(Value),
    Ok(Value),
    NoContent,
    /// Class and code.
    Refused(culvert_base::Class, Option<u16>, String),
}

impl Answered {
    pub(crate) fn body(self) -> Value {
        match self {
            Self::Created(body) | Self::Ok(body) => body,
            other => panic!("{other:?}"),
        }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(_, code, _) => *code,
            other => panic!("{other:?}"),
        }
    }

    fn is_absent(&self) -> bool {
        matches!(self, Self::Refused(culvert_base::Class::NotFound, None, message) if message == "Resource not found")
    }
}

/// Waits until a condition holds. Fails with its description after [`culvert_testing::PATIENCE`].
async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(culvert_testing::PATIENCE, waiting).await;
    waited.unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::with(None, AGENTS).await
    }

    async fn with(certificates: Option<Certificates>, limits: AgentLimits) -> Self {
        Self::on(None, certificates, limits).await
    }

    /// On a new SQLite database, or on this one.
    async fn on(
        url: Option<StoreUrl>,
        certificates: Option<Certificates>,
        limits: AgentLimits,
    ) -> Self {
        // Work that locks an object while it holds the lock of another waits for itself.
        let locks = keyed_mutex::KeyedMutex::of_size(1);
        Self::build(url, certificates, limits, locks, |_| ()).await
    }

    /// With other settings.
    async fn adjusted(adjust: fn(&mut Settings)) -> Self {
        let locks = keyed_mutex::KeyedMutex::of_size(1);
        Self::build(None, None, AGENTS, locks, adjust).await
    }

    async fn build(
        url: Option<StoreUrl>,
        certificates: Option<Certificates>,
        limits: AgentLimits,
        locks: keyed_mutex::KeyedMutex,
        adjust: fn(&mut Settings),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000)));
        let entropy = Arc::new(SeededEntropy::new(1));
        let url = url.unwrap_or_else(|| StoreUrl::Sqlite(folder.path().join("state.db")));
        let store = Store::open(&url, clock.clone(), texts()).await.unwrap();
        let queue = Queue::open(&url, clock.clone()).await.unwrap();
        let targets = TargetSettings {
            file_root: Some(folder.path().join("events")),
            public_base: BASE.to_owned(),
            ..TargetSettings::default()
        };
        let delivery = Delivery::new(
            culvert_delivery::Settings {
                targets: targets.clone(),
                ..culvert_delivery::Settings::default()
            },
            queue.clone(),
            store.clone(),
            clock.clone(),
            entropy.clone(),
        );
        let edge = Arc::new(HeldEdge(
            tokio::sync::watch::Sender::new(None),
            Mutex::default(),
        ));
        let keys = LoginKeys::new([[1; 32]]);
        let (logins, entries) = Logins::new(keys, LoginSettings::default());
        let mut settings = Settings {
            edge_domain: HostName::parse("culvert.localhost").unwrap(),
            reserved_names: [
                "admin", "api", "auth", "connect", "console", "login", "metrics",
            ]
            .map(str::to_owned)
            .to_vec(),
            public_ports: Default::default(),
            tcp_ports: 20000..=20002,
            allow_private_upstreams: true,
            allow_unix_upstreams: culvert_base::net::AllowedPaths::default(),
            allow_file_upstreams: culvert_base::net::AllowedPaths::default(),
            has_tls_before_edge: false,
            domains_of_owner: false,
            allow_public_calls: false,
            strict_rights: false,
            own_names: vec!["own.example".to_owned()],
            kubernetes_ingress: "operators.culvert.example:8442".into(),
            targets: Arc::new(Targets {
                types: culvert_destinations::TYPES,
                settings: targets,
            }),
            token_form: Default::default(),
            leaked: Default::default(),
            base_url: BASE.to_owned(),
            agent_minimum: Some(AgentMinimum {
                version: "3.5.0".to_owned(),
                date: "2027-01-31".to_owned(),
                message: "Update the agent.".to_owned(),
            }),
        };
        adjust(&mut settings);
        let parts = Parts {
            ids: Arc::default(),
            store: store.clone(),
            clock: clock.clone(),
            entropy,
            seal: Seal::new(&Secret::new("a master key of the tests".into())),
            pepper: Pepper::new(&Secret::new("a pepper of the tests".into())),
            settings,
            delivery,
            target_types: culvert_destinations::TYPES,
            edge: Some(edge.clone()),
            policies: PolicyRuntime {
                logins,
                ip_data: Default::default(),
                on_expression_error: Default::default(),
            },
            console_sign_in: None,
            leak_partner: None,
            certificates,
            checks: None,
            agents: Some((
                Arc::default(),
                AgentSettings {
                    node: "a node".to_owned(),
                    region: String::new(),
                    names: vec!["localhost".to_owned()],
                    is_alone: true,
                    address: String::new(),
                    names_kept: std::time::Duration::from_secs(180),
                    limits,
                },
            )),
            nodes: None,
            statistics: Statistics::new(
                queue.clone(),
                "a node".to_owned(),
                StatisticsSettings::default(),
            ),
        };
        let control = Control::open_with(parts, locks).await.unwrap();
        let token = control.bootstrap(None).await.unwrap().unwrap();
        let header = format!("Bearer {}", token.reveal());
        let admin = control.identity.authenticate(Some(&header)).await.unwrap();
        Self {
            control,
            clock,
            store,
            queue,
            token,
            admin,
            edge,
            entries: Mutex::new(Some(entries)),
            last_seq: Mutex::new(0),
            folder,
        }
    }

    /// Runs the operation that `method` and `path` name; the query follows a `?`.
    pub(crate) async fn call(
        &self,
        caller: &Caller,
        method: &str,
        path: &str,
        body: Value,
    ) -> Answered {
        self.call_on(caller, method, path, body, Arc::default())
            .await
    }

    /// The same, on terms.
    pub(crate) async fn call_on(
        &self,
        caller: &Caller,
        method: &str,
        path: &str,
        body: Value,
        terms: Arc<Terms>,
    ) -> Answered {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let given: Vec<&str> = path.split('/').collect();
        let fits = |operation: &&Operation| {
            let wanted: Vec<&str> = operation.path.split('/').collect();
            operation.method.as_str() == method
                && wanted.len() == given.len()
                && wanted
                    .iter()
                    .zip(&given)
                    .all(|(w, g)| w.starts_with('{') || w == g)
        };
        let operation = operations().iter().find(fits).expect(path);
        let wanted = operation.path.split('/').zip(&given);
        let call = Call {
            caller: caller.clone(),
            path: wanted
                .filter(|(w, _)| w.starts_with('{'))
                .map(|(_, g)| (*g).to_owned())
                .collect(),
            query: url::form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
            body: (!body.is_null()).then_some(body),
            base: BASE.to_owned(),
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            cause: None,
            terms,
        };
        let parse = |text: &str| serde_json::from_str(text).unwrap();
        match operation.call(&self.control, call).await {
            Ok(Reply::Created { body, .. }) => Answered::Created(parse(&body)),
            Ok(Reply::Ok(body) | Reply::Secret { body, .. }) => Answered::Ok(parse(&body)),
            Ok(Reply::NoContent) => Answered::NoContent,
            Err(Error::Refused(refusal)) => {
                codes::note(refusal.code);
                Answered::Refused(
                    refusal.class,
                    refusal.code.map(Code::number),
                    refusal.message.into_owned(),
                )
            }
            Err(Error::Faulted(fault)) => panic!("{}", fault.chain()),
        }
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answered {
        self.call(&self.admin, "POST", path, body).await
    }

    async fn get(&self, path: &str) -> Answered {
        self.call(&self.admin, "GET", path, Value::Null).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Answered {
        self.call(&self.admin, "PATCH", path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answered {
        self.call(&self.admin, "DELETE", path, Value::Null).await
    }

    async fn authenticate(&self, token: &str) -> Result<Caller, Option<u16>> {
        let header = format!("Bearer {token}");
        self.judged(Some(&header)).await
    }

    /// The result of authenticating an `Authorization` header.
    async fn judged(&self, header: Option<&str>) -> Result<Caller, Option<u16>> {
        match self.control.identity.authenticate(header).await {
            Ok(caller) => Ok(caller),
            Err(Error::Refused(refusal)) => {
                codes::note(refusal.code);
                Err(refusal.code.map(Code::number))
            }
            Err(Error::Faulted(fault)) => panic!("{}", fault.chain()),
        }
    }

    /// A user of the admin's account, as a caller.
    pub(crate) async fn user(&self, email: &str, role: Role, active: bool) -> Caller {
        self.user_of(&self.admin.account, email, role, active).await
    }

    async fn user_of(&self, account: &str, email: &str, role: Role, active: bool) -> Caller {
        let user = User {
            format: Format,
            email: email.to_owned(),
            role,
            active,
            invitation: None,
            openid: None,
            is_by_group: false,
        };
        let id = self
            .insert(User::KIND, User::ID_PREFIX, account, &user, user.keys())
            .await;
        Caller {
            owner_id: id,
            owner_kind: OwnerKind::User,
            role,
            key_id: "ak_000000000000000000000000000".to_owned(),
            subject: email.to_owned(),
            account: account.to_owned(),
            restrictions: None,
            token: None,
            context: None,
        }
    }

    /// The admin of another account.
    async fn stranger(&self) -> Caller {
        let account = Account {
            format: Format,
            name: "another".to_owned(),
            suspended: false,
            key_rules: Default::default(),
        };
        let id = self
            .insert(Account::KIND, Account::PREFIX, "", &account, Vec::new())
            .await;
        self.user_of(&id, "admin@another.example", Role::Admin, true)
            .await
    }

    async fn insert(
        &self,
        kind: &str,
        prefix: &str,
        account: &str,
        form: &impl serde::Serialize,
        keys: Vec<culvert_store::Key>,
    ) -> String {
        let id = self
            .control
            .kernel
            .ids
            .next(&*self.clock, &SeededEntropy::new(99));
        let head = Head {
            id: format!("{prefix}_{id}"),
            kind: kind.to_owned(),
            account: account.to_owned(),
            revision: 0,
            created_at: id.at(),
            updated_at: id.at(),
        };
        let document = Document {
            head: head.clone(),
            body: serde_json::to_string(form).unwrap(),
            keys,
            refs: Vec::new(),
            topics: Vec::new(),
        };
        let reported = AuditEvent::Suppress { reason: "a test" };
        self.store
            .commit(Changes::insert(document, reported))
            .await
            .unwrap();
        head.id
    }

    /// Events committed after `seq`, as JSON, and the last position.
    async fn events_after(&self, seq: i64) -> (Vec<Value>, i64) {
        let rows = self.store.outbox_after(seq, 1000).await.unwrap();
        let last = rows.last().map_or(seq, |row| row.seq);
        let events = rows
            .iter()
            .map(|row| serde_json::from_str(&row.event.body).unwrap());
        (events.collect(), last)
    }

    /// Id of a new IP policy.
    async fn ip_policy(&self) -> String {
        self.ip_policy_by(&self.admin).await
    }

    async fn ip_policy_by(&self, by: &Caller) -> String {
        let made = self.call(by, "POST", "/ip_policies", json!({}));
        made.await.body()["id"].as_str().unwrap().to_owned()
    }

    /// The body of a new object of any resource, made distinct by `n`, for the admin.
    pub(crate) async fn sample(&self, collection: &str, n: u32) -> Value {
        self.sample_by(&self.admin, collection, n).await
    }

    /// As [`Self::sample`], for a caller, to whom the objects belong that it is a part of.
    async fn sample_by(&self, by: &Caller, collection: &str, n: u32) -> Value {
        match collection {
            "api_keys" => json!({"description": format!("key {n}")}),
            "alert_rules" => {
                let condition = json!({"type": "key_expiring", "within": "7d"});
                json!({"name": format!("rule {n}"), "condition": condition})
            }
            "audit_holds" => {
                json!({"filter": format!("event_id == 'ev_{n}'"), "reason": format!("case {n}")})
            }
            "bot_users" | "service_users" => json!({"name": format!("{collection} {n}")}),
            "certificate_authorities" => {
                json!({"ca_pem": certificates::authority(&format!("authority {n}"))})
            }
            "endpoints" => {
                json!({"url": format!("https://e{n}.culvert.localhost"), "upstream_url": "http://127.0.0.1:1"})
            }
            "event_destinations" => {
                json!({"format": "json", "target": {"debug": {"log": true}}, "metadata": format!("{n}")})
            }
            "event_subscriptions" => {
                json!({"sources": [{"type": "api_key_created.v0"}], "description": format!("{n}")})
            }
            "credentials" => json!({"description": format!("credential {n}"), "acl": ["bind:*"]}),
            "ssh_certificate_authorities" => json!({"description": format!("authority {n}")}),
            "ssh_credentials" => json!({"public_key": ssh::new_key(), "acl": ["bind:*"]}),
            "ssh_host_certificates" | "ssh_user_certificates" => {
                let authority = self.post("/ssh_certificate_authorities", Value::Null).await;
                json!({
                    "ssh_certificate_authority_id": authority.body()["id"],
                    "public_key": ssh::new_key(),
                })
            }
            "reserved_addrs" => json!({"description": format!("address {n}")}),
            "reserved_domains" => json!({"domain": format!("d{n}.example")}),
            "tls_certificates" => certificates::leaf(&format!("t{n}.example")),
            "ip_policies" => json!({"description": format!("policy {n}")}),
            "ip_policy_rules" => {
                json!({"cidr": "192.0.2.0/24", "action": "allow", "ip_policy_id": self.ip_policy_by(by).await})
            }
            "ip_restrictions" => {
                // Each type exists once; tests create at most one object for each of these numbers.
                let types = ["dashboard", "api", "agent", "endpoints"];
                json!({"type": types[n as usize % 4], "ip_policy_ids": [self.ip_policy_by(by).await]})
            }
            "users" => json!({"email": format!("u{n}@x.example")}),
            "vaults" => json!({"name": format!("vault-{n}")}),
            "vault_secrets" => {
                let name = format!("of-secret-{n}");
                let vault = self.call(by, "POST", "/vaults", json!({"name": name}));
                let vault = vault.await.body();
                json!({"name": format!("secret-{n}"), "value": "hush", "vault_id": vault["id"]})
            }
            "grants" => {
                let name = format!("of-grant-{n}");
                let vault = self.call(by, "POST", "/vaults", json!({"name": name}));
                json!({"object_id": vault.await.body()["id"], "grantee": "role:member"})
            }
            "agent_ingresses" => json!({"domain": format!("connect{n}.x.example")}),
            "kubernetes_operators" => {
                json!({"deployment": {"name": format!("operator-{n}"), "namespace": "x"}})
            }
            "leaked_tokens" => json!({"tokens": [{"token": "no token"}]}),
            // An analysis of a policy.
            "" => json!({}),
            other => panic!("tell this function how to make one of {other}"),
        }
    }
}
