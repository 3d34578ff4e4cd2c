//! Permissions: every operation of the table, called by every kind of caller with an object of every
//! ownership. Each rule states its outcomes once; an operation without a rule fails.

use May::{Do, Not, NotSee};
use Who::{Admin, OtherBot, Owner, OwnerReading, OwnerScoped, Reader, Stranger};
use culvert_resources::resource::Life;

use crate::operations::resources::ALL;
use crate::tests::audit;
use crate::tests::observed::stored_one;
use crate::tests::*;
use crate::{KeyRestrictions, Scope};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Admin,
    /// A bot.
    Owner,
    OtherBot,
    Reader,
    /// An admin of another account.
    Stranger,
    /// The owner with a key that is restricted to the role `read_only`.
    OwnerReading,
    /// The owner with a key that has every scope but the one of the operation.
    OwnerScoped,
}

pub(super) const CALLERS: [Who; 7] = [
    Admin,
    Owner,
    OtherBot,
    Reader,
    Stranger,
    OwnerReading,
    OwnerScoped,
];

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum May {
    /// The call succeeds, or fails for a reason that does not depend on the caller.
    Do,
    /// The object counts as absent.
    NotSee,
    /// Refused with this code, class Forbidden.
    Not(u16),
}

/// The object of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    OfOwner,
    /// Stored by a version that did not record owners.
    Ownerless,
    /// A subscription to events about keys, or a destination that received some.
    AboutKeys,
}

/// What only admins see and write.
const OF_ADMINS_UNSEEN: [&str; 2] = ["alert_rules", "audit_holds"];

/// The callers that an operation allows.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// Everyone in the account.
    Read,
    /// Everyone in the account with write permission.
    Write,
    /// The object's owner and admins. For others it does not exist.
    Private,
    /// The object's owner and admins.
    Owned,
    /// What only the object's owner and admins see.
    Whole,
    /// Admins. For others it does not exist.
    Unseen,
    /// Admins; with the codes for other callers and for read-only callers.
    Admins(u16, u16),
}

impl Rule {
    /// The operation's rule; `None` for an operation without one.
    fn of(collection: &str, name: &str, object: Object) -> Option<Self> {
        let is_read = name == "get" || name.starts_with("get_") || name.starts_with("list");
        let is_change = matches!(name, "update" | "delete");
        let is_create = name == "create";
        if PRIVATE.contains(&collection) || collection.starts_with("app/") {
            // A list contains the caller's own objects, and a create makes one for the caller; other tests
            // cover both.
            return match name {
                "list" => Some(Self::Read),
                "create" => Some(Self::Write),
                "get" | "get_restrictions" => Some(Self::Private),
                "update_restrictions" | "delete_restrictions" => Some(Self::Private),
                "rotate" | "end_overlap" => Some(Self::Private),
                _ => is_change.then_some(Self::Private),
            };
        }
        if collection == "alerts" {
            return match name {
                "list" => Some(Self::Read),
                _ => is_read.then_some(Self::Private),
            };
        }
        if OF_ADMINS_UNSEEN.contains(&collection) {
            return match name {
                "list" => Some(Self::Read),
                "create" => Some(Self::Admins(630, 635)),
                "get" => Some(Self::Unseen),
                _ => is_change.then_some(Self::Unseen),
            };
        }
        if UNSEEN.contains(&collection) {
            return match (name, object) {
                ("list", _) => Some(Self::Read),
                ("create", _) => Some(Self::Write),
                // An admin made it its own.
                (_, Object::AboutKeys) => Some(Self::Unseen),
                _ => Some(Self::Private),
            };
        }
        match (collection, name) {
            ("", "root" | "referrers" | "search" | "search_objects" | "self") => Some(Self::Read),
            ("", "traffic_policy_analysis") => Some(Self::Write),
            ("nodes", "list") => Some(Self::Admins(630, 630)),
            ("endpoints", "get_health")
            | (
                "event_destinations",
                "get_health" | "list_attempts" | "list_dead_letters" | "get_replay",
            ) => Some(Self::Whole),
            _ if is_read => Some(Self::Read),
            _ if ADMINS.contains(&collection) => {
                (is_change || is_create).then_some(Self::Admins(4111, 4111))
            }
            _ if ADMINS_ALONE.contains(&collection) => {
                let is_further = matches!(
                    name,
                    "check_certificate" | "retry_certificate_management" | "invite"
                );
                let is_known = is_change || is_create || is_further;
                is_known.then_some(Self::Admins(630, 635))
            }
            ("event_destinations", "update") if object == Object::AboutKeys => {
                Some(Self::Admins(630, 635))
            }
            ("event_destinations", "replay") => Some(Self::Admins(630, 635)),
            ("events", "replay") => Some(Self::Write),
            ("event_destinations", "test" | "redrive") | ("endpoints", "dry_run") => {
                Some(Self::Owned)
            }
            ("app/users" | "app/sessions", "delete") => Some(Self::Write),
            (
                "reserved_domains",
                "delete_certificate"
                | "delete_certificate_management_policy"
                | "check_certificate"
                | "retry_certificate_management",
            ) => Some(Self::Owned),
            (_, "create") => Some(Self::Write),
            _ => is_change.then_some(Self::Owned),
        }
    }

    fn outcome(self, who: Who, object: Object, operation: &Operation) -> May {
        let is_of_owner = matches!(who, Owner | OwnerReading | OwnerScoped);
        let is_owner = is_of_owner && object != Object::Ownerless;
        let is_read = operation.method == Method::Get;
        match (self, who) {
            (_, OwnerScoped) if operation.right.scope.is_some() => Not(642),
            (_, Stranger) => NotSee,
            (Self::Read, _) | (_, Admin) => Do,
            (Self::Unseen, _) => NotSee,
            (Self::Private, _) if !is_owner => NotSee,
            (Self::Whole, _) if !is_owner => Not(630),
            (Self::Whole, _) => Do,
            (Self::Private, Owner) => Do,
            (Self::Private, OwnerReading) if is_read => Do,
            (Self::Admins(_, code), Reader | OwnerReading) => Not(code),
            (_, Reader | OwnerReading) => Not(635),
            (Self::Private, _) => Do,
            (Self::Admins(code, _), _) => Not(code),
            (Self::Owned, _) if !is_owner => Not(630),
            (Self::Owned | Self::Write, _) => Do,
        }
    }
}

/// Resources whose objects only their owner can see.
pub(super) const PRIVATE: [&str; 3] = ["api_keys", "credentials", "ssh_credentials"];
/// Further resources whose objects others do not see.
const UNSEEN: [&str; 4] = [
    "event_subscriptions",
    "grants",
    "tunnel_sessions",
    "tunnels",
];
/// Resources that only admins change.
const ADMINS: [&str; 2] = ["bot_users", "service_users"];

/// Resources that only admins change, with the code of a missing permission: a wrong change may block every
/// caller.
const ADMINS_ALONE: [&str; 4] = [
    "agent_ingresses",
    "api_key_rules",
    "ip_restrictions",
    "users",
];

/// A source that every caller may subscribe to.
const SOURCE: &str = "ip_policy_created.v0";
/// A source that only admins may subscribe to.
const SOURCE_ABOUT_KEYS: &str = "api_key_created.v0";

pub(super) struct Cast {
    pub(super) rig: Rig,
    /// In the order of [`CALLERS`].
    pub(super) callers: Vec<Caller>,
}

impl Cast {
    pub(super) async fn start() -> Self {
        Self::of(Rig::start().await).await
    }

    pub(super) async fn of(rig: Rig) -> Self {
        let owner = bot(&rig, "owner").await;
        let other = bot(&rig, "other").await;
        let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
        let stranger = rig.stranger().await;
        let restricted = |role, restrictions| Caller {
            role,
            restrictions: Some(Arc::new(restrictions)),
            ..owner.clone()
        };
        let reading = restricted(
            Role::ReadOnly,
            KeyRestrictions {
                role: Some(Role::ReadOnly),
                ..KeyRestrictions::default()
            },
        );
        let scoped = restricted(owner.role, KeyRestrictions::default());
        let callers = vec![
            rig.admin.clone(),
            owner,
            other,
            reader,
            stranger,
            reading,
            scoped,
        ];
        Self { rig, callers }
    }

    fn owner(&self) -> &Caller {
        &self.callers[1]
    }

    /// Creates an object that belongs to the owner; returns its ID.
    pub(super) async fn object(&self, collection: &str, n: u32) -> String {
        let rig = &self.rig;
        let ty = ALL.iter().find(|ty| ty.collection == collection).unwrap();
        if ty.life != Life::Configured {
            let id = stored_one(rig, ty, &rig.admin.owner_id).await;
            if let Some(field) = ty.owned_by {
                let document = rig.store.get(ty.kind, &id).await.unwrap().unwrap();
                let mut form: Value = serde_json::from_str(&document.body).unwrap();
                form[field] = json!(self.owner().owner_id);
                let body = form.to_string();
                let reported = AuditEvent::Suppress { reason: "a test" };
                let changed = Document { body, ..document };
                let changes = Changes::replace(changed, reported);
                rig.store.commit(changes).await.unwrap();
            }
            return id;
        }
        let is_of_admins = ADMINS.contains(&collection)
            || ADMINS_ALONE.contains(&collection)
            || OF_ADMINS_UNSEEN.contains(&collection);
        let by = if is_of_admins {
            &rig.admin
        } else {
            self.owner()
        };
        let mut sample = rig.sample_by(by, collection, n).await;
        if collection == "event_subscriptions" {
            sample["sources"] = json!([{"type": SOURCE}]);
        }
        if collection == "grants" {
            // No user of the cast.
            sample["grantee"] = json!(rig.admin.owner_id);
        }
        let path = format!("/{collection}");
        let made = rig.call(by, "POST", &path, sample).await.body();
        made["id"].as_str().unwrap().to_owned()
    }

    /// Converts an object to the given kind; `false` if the collection has none of that kind.
    async fn becomes(&self, collection: &str, id: &str, object: Object) -> bool {
        let rig = &self.rig;
        match (object, collection) {
            (Object::OfOwner, _) => true,
            (Object::Ownerless, _) => {
                let ids = [id.replace("service_", "bot_")];
                let found = rig.store.get_many(&ids).await.unwrap().pop();
                let document = found.unwrap();
                let mut form: Value = serde_json::from_str(&document.body).unwrap();
                let fields = ["owner_id", "principal_id", "created_by"];
                let Some(field) = fields.iter().find(|field| form[**field].is_string()) else {
                    return false;
                };
                form[*field] = json!("");
                let body = form.to_string();
                let why = AuditEvent::Suppress { reason: "a test" };
                let changes = Changes::replace(Document { body, ..document }, why);
                rig.store.commit(changes).await.unwrap();
                true
            }
            (Object::AboutKeys, "event_subscriptions") => {
                let path = format!("/event_subscriptions/{id}/sources");
                let body = json!({"type": SOURCE_ABOUT_KEYS});
                rig.post(&path, body).await.body();
                true
            }
            (Object::AboutKeys, "event_destinations") => {
                let body =
                    json!({"sources": [{"type": SOURCE_ABOUT_KEYS}], "destination_ids": [id]});
                let made = rig.post("/event_subscriptions", body).await.body();
                let path = format!("/event_subscriptions/{}", made["id"].as_str().unwrap());
                assert_eq!(rig.delete(&path).await, Answered::NoContent);
                true
            }
            (Object::AboutKeys, _) => false,
        }
    }
}

/// The caller of an operation: `OwnerScoped` has a key with every other scope.
pub(super) fn caller_of(who: Who, caller: &Caller, operation: &Operation) -> Caller {
    let mut caller = caller.clone();
    if who == OwnerScoped {
        let of_operation = operation.right.scope;
        let collection = match operation.name {
            "traffic_policy_analysis" => "endpoints",
            _ => operation.collection,
        };
        let family = of_operation.and_then(|_| Scope::of(collection));
        // The scope to write includes the one to read.
        let is_other = |scope: &Scope| match family {
            Some((read, write)) if of_operation == Some(read) => *scope != read && *scope != write,
            Some((_, write)) => *scope != write,
            None => false,
        };
        let scopes = Scope::ALL.into_iter().filter(is_other).collect();
        caller.restrictions = Some(Arc::new(KeyRestrictions {
            scopes,
            ..KeyRestrictions::default()
        }));
    }
    caller
}

/// A new bot with its own key, as a caller.
async fn bot(rig: &Rig, name: &str) -> Caller {
    let made = rig.post("/bot_users", json!({"name": name})).await.body();
    let key = rig
        .post("/api_keys", json!({"owner_id": made["id"]}))
        .await
        .body();
    rig.authenticate(key["token"].as_str().unwrap())
        .await
        .unwrap()
}

/// The outcome of a call; `absent` is the response to the same call for an object that does not exist.
fn judge(answered: &Answered, absent: &Answered) -> May {
    use culvert_base::Class;
    match answered {
        Answered::Refused(Class::Forbidden, Some(code), _) => Not(*code),
        Answered::Refused(Class::NotFound, ..) if answered == absent => NotSee,
        _ => Do,
    }
}

#[tokio::test]
async fn every_operation_on_an_object_checks_its_ownership_and_leaves_its_trace() {
    let cast = Cast::start().await;
    let mut done = Done::default();
    for object in [Object::OfOwner, Object::Ownerless, Object::AboutKeys] {
        for operation in operations() {
            // Events are no objects; `audit_events_are_readable_within_their_account` has their rights.
            if operation.path.contains("{id}") && operation.collection != "events" {
                call_by_all(&cast, operation, object, &mut done).await;
            }
        }
    }
    let of_objects = operations()
        .iter()
        .filter(|operation| operation.path.contains("{id}") && operation.collection != "events");
    let never: Vec<_> = of_objects
        .map(Operation::id)
        .filter(|id| !done.0.contains(id))
        .collect();
    assert_eq!(never, NEVER_DONE);
}

/// The same on PostgreSQL, with a part of the operations.
#[tokio::test]
async fn operations_leave_the_same_traces_on_postgres() {
    let Some(database) = uses::Database::new("traces").await else {
        return;
    };
    let cast = Cast::of(Rig::on(Some(database.url.clone()), None, AGENTS).await).await;
    for operation in operations().iter().step_by(9) {
        if operation.path.contains("{id}") && operation.collection != "events" {
            call_by_all(&cast, operation, Object::OfOwner, &mut Done::default()).await;
        }
    }
    drop(cast);
    database.remove().await;
}

/// IDs of operations that were done for a caller.
#[derive(Default)]
struct Done(std::collections::HashSet<String>);

/// Operations that nothing in this process can do, because they need an agent, an authority, a certificate or kept traffic.
/// The tests `agent_runs`, `managed`, `domains` and `it captures` do them.
const NEVER_DONE: [&str; 6] = [
    "agent_ingresses_retry_certificate_management",
    "endpoints_dry_run",
    "reserved_domains_delete_certificate",
    "tunnel_sessions_restart",
    "tunnel_sessions_stop",
    "tunnel_sessions_update_agent",
];

/// The body of a call that changes something where it can.
fn body_of(operation: &Operation, object: Object) -> Value {
    let collection = operation.collection;
    match operation.method {
        Method::Get | Method::Delete => return Value::Null,
        Method::Post if operation.name == "create_source" => {
            return json!({"type": "vault_created.v0"});
        }
        Method::Post if (collection, operation.name) == ("event_destinations", "replay") => {
            return json!({"from": "2020-01-01T00:00:00Z", "event_types": [SOURCE]});
        }
        Method::Patch if object == Object::AboutKeys && collection == "event_destinations" => {
            return json!({"target": {"debug": {"log": false}}});
        }
        Method::Post | Method::Patch => {}
    }
    let mut settings = schemars::generate::SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let schema = operation
        .body
        .map(|body| (body.schema)(&mut settings.into_generator()));
    let has = |field: &str| {
        let schema = schema.as_ref().map(|schema| schema.as_value());
        schema.is_some_and(|schema| schema["properties"][field].is_object())
    };
    match operation.name {
        "update" if has("description") => json!({"description": "changed"}),
        "update" if has("metadata") => json!({"metadata": "changed"}),
        _ => json!({}),
    }
}

async fn call_by_all(cast: &Cast, operation: &Operation, object: Object, done: &mut Done) {
    static N: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(100);
    let rig = &cast.rig;
    let (collection, name) = (operation.collection, operation.name);
    let rule = Rule::of(collection, name, object)
        .unwrap_or_else(|| panic!("say who may {name} one of {collection}"));
    let body = body_of(operation, object);
    for (caller, who) in cast.callers.iter().zip(CALLERS) {
        let caller = &audit::with_own_context(caller_of(who, caller, operation));
        let n = N.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let id = cast.object(collection, n).await;
        if name == "end_overlap" {
            let path = format!("/{collection}/{id}/rotate");
            rig.post(&path, json!({"overlap": 60})).await.body();
        }
        let is_there = cast.becomes(collection, &id, object).await;
        if is_there {
            if name == "get_replay" {
                let body = json!({"from": "2020-01-01T00:00:00Z", "event_types": [SOURCE]});
                let path = format!("/{collection}/{id}/replay");
                rig.post(&path, body).await.body();
            }
            let absent = format!("{}_{}", id.split_once('_').unwrap().0, "0".repeat(27));
            let path = |id: &str| {
                let path = operation.path.replace("{id}", id);
                path.replace("{type}", SOURCE)
            };
            let method = operation.method.as_str();
            let before = stored(rig, &id).await;
            let shown = rig.get(&format!("/{collection}/{id}")).await.body();
            let seq = audit::end_of_log(rig).await;
            let call = async |id: &str| rig.call(caller, method, &path(id), body.clone()).await;
            let nothing = call(&absent).await;
            let answered = call(&id).await;
            let may = rule.outcome(who, object, operation);
            assert_eq!(
                judge(&answered, &nothing),
                may,
                "{who:?}: {method} {} {object:?} {answered:?}",
                operation.path
            );
            if may != Do {
                assert_eq!(stored(rig, &id).await, before, "{who:?} {method} {id}");
            }
            let is_refused = |answered: &Answered| {
                matches!(
                    answered,
                    Answered::Refused(culvert_base::Class::Forbidden, ..)
                )
            };
            let traced = audit::Traced {
                caller,
                operation,
                id: Some(&id),
                body: &body,
                answered: &answered,
                before: &shown,
                is_of_account: who != Stranger && judge(&answered, &nothing) == NotSee,
                // A missing scope or role refuses both calls.
                n_refused: 1 + u64::from(is_refused(&answered) && is_refused(&nothing)),
            };
            audit::check_trace(rig, &traced, seq).await;
            if !matches!(answered, Answered::Refused(..)) {
                done.0.insert(operation.id());
                audit::check_repetition(rig, &traced, async || call(&id).await).await;
            }
        }
        // Some resources allow only a few objects.
        let ty = ALL.iter().find(|ty| ty.collection == collection).unwrap();
        if ty.life == Life::Configured && stored(rig, &id).await.is_some() {
            rig.delete(&format!("/{collection}/{id}")).await;
        }
        if !is_there {
            return;
        }
    }
}

/// Audit events can be read by their id in their account. Traffic events need an edge (`it captures`).
#[tokio::test]
async fn audit_events_are_readable_within_their_account() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    rig.post("/vaults", json!({"name": "v"})).await.body();
    let of_kind = async |kind: &str| -> String {
        let page = rig.get(&format!("/events?type={kind}")).await.body();
        let event = &page["events"][0]["event"];
        event["event_id"].as_str().unwrap().to_owned()
    };
    let (public, private) = (
        of_kind("vault_created.v0").await,
        of_kind(SOURCE_ABOUT_KEYS).await,
    );
    let absent = format!("/events/ev_{}", "0".repeat(27));
    for (caller, who) in cast.callers.iter().zip(CALLERS) {
        // The table of rights covers scopes.
        if who == OwnerScoped {
            continue;
        }
        let nothing = rig.call(caller, "GET", &absent, Value::Null).await;
        for (id, is_private) in [(&public, false), (&private, true)] {
            let path = format!("/events/{id}");
            check_event_traces(rig, (caller, who), id).await;
            let answered = rig.call(caller, "GET", &path, Value::Null).await;
            let may = match who {
                Stranger => NotSee,
                Admin => Do,
                _ if is_private => NotSee,
                _ => Do,
            };
            assert_eq!(judge(&answered, &nothing), may, "{who:?} {id}");
            let messages = format!("{path}/messages");
            let answered = rig.call(caller, "GET", &messages, Value::Null).await;
            assert_eq!(judge(&answered, &nothing), may, "{who:?} {id}");
            let replay_path = format!("{path}/replay");
            let replay = rig.call(caller, "POST", &replay_path, json!({}));
            let code = match (may, who) {
                (NotSee, _) => None,
                (_, Reader | OwnerReading) => Some(635),
                _ => Some(5409),
            };
            assert_eq!(replay.await.code(), code, "{who:?} {id}");
        }
    }
}

/// The traces of the operations on an event.
async fn check_event_traces(rig: &Rig, (caller, who): (&Caller, Who), id: &str) {
    for operation in operations() {
        if operation.collection != "events" || !operation.path.contains("{id}") {
            continue;
        }
        let caller = &audit::with_own_context(caller.clone());
        let body = body_of(operation, Object::OfOwner);
        let path = operation.path.replace("{id}", id);
        let method = operation.method.as_str();
        let seq = audit::end_of_log(rig).await;
        let call = async || rig.call(caller, method, &path, body.clone()).await;
        let answered = call().await;
        let is_hidden = answered.is_absent();
        let traced = audit::Traced {
            caller,
            operation,
            id: Some(id),
            body: &body,
            answered: &answered,
            before: &Value::Null,
            is_of_account: who != Stranger && is_hidden,
            n_refused: 1,
        };
        audit::check_trace(rig, &traced, seq).await;
        if !matches!(answered, Answered::Refused(..)) {
            audit::check_repetition(rig, &traced, call).await;
        }
    }
}

/// The right that an operation states is the one that the tests above find.
#[test]
fn every_operation_declares_its_right() {
    use crate::Right;

    for operation in operations() {
        let (collection, name) = (operation.collection, operation.name);
        if operation.path == LEAKED_TOKENS_PATH {
            // Every caller may report leaked tokens, also of others.
            assert_eq!(operation.right, Right::ANY);
            continue;
        }
        let rule = Rule::of(collection, name, Object::OfOwner).unwrap();
        let is_read = operation.method == Method::Get;
        let role = match rule {
            Rule::Admins(..) => Role::Admin,
            Rule::Read | Rule::Private | Rule::Whole | Rule::Unseen if is_read => Role::ReadOnly,
            Rule::Unseen => Role::Admin,
            _ => Role::Member,
        };
        let scopes = Scope::of(match name {
            "traffic_policy_analysis" => "endpoints",
            _ => collection,
        });
        let scope = scopes.map(|(read, write)| if is_read { read } else { write });
        assert_eq!(
            operation.right,
            Right { role, scope },
            "{collection} {name}"
        );
        let is_of_none = collection.is_empty() && name != "traffic_policy_analysis";
        assert_eq!(scope.is_none(), is_of_none, "{collection} {name}");
    }
}

/// Operations without an object: who may create one, and that everyone may list. Other tests cover the
/// private objects in lists.
#[tokio::test]
async fn every_operation_without_an_object_checks_the_role_and_leaves_its_trace() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let mut n = 100;
    for operation in operations() {
        let (collection, name) = (operation.collection, operation.name);
        // The tests of leaked tokens and of the rules of keys have a caller of each role.
        let is_elsewhere = operation.path == LEAKED_TOKENS_PATH || collection == "api_key_rules";
        if operation.path.contains("{id}") || is_elsewhere {
            continue;
        }
        let rule = Rule::of(collection, name, Object::OfOwner)
            .unwrap_or_else(|| panic!("say who may {name} {collection}"));
        for (caller, who) in cast.callers.iter().zip(CALLERS) {
            if who == Stranger {
                continue;
            }
            let caller = &audit::with_own_context(caller_of(who, caller, operation));
            n += 1;
            let body = match name {
                "create" if collection == "event_subscriptions" => {
                    json!({"sources": [{"type": SOURCE}]})
                }
                "create" => {
                    let is_free = matches!(who, Admin | Owner | OtherBot);
                    let by = if is_free { caller } else { &rig.admin };
                    rig.sample_by(by, collection, n).await
                }
                _ => Value::Null,
            };
            let method = operation.method.as_str();
            let seq = audit::end_of_log(rig).await;
            let call = async || {
                rig.call(caller, method, &operation.path, body.clone())
                    .await
            };
            let answered = call().await;
            let nothing = Answered::NoContent;
            let may = rule.outcome(who, Object::OfOwner, operation);
            assert_eq!(
                judge(&answered, &nothing),
                may,
                "{who:?}: {method} {} {answered:?}",
                operation.path
            );
            let traced = audit::Traced {
                caller,
                operation,
                id: None,
                body: &body,
                answered: &answered,
                before: &Value::Null,
                is_of_account: false,
                n_refused: 1,
            };
            audit::check_trace(rig, &traced, seq).await;
            if may == Do {
                let is_done = !matches!(answered, Answered::Refused(..));
                // The statistics and a search need a query.
                assert!(
                    // The key of some callers is not stored.
                    is_done
                        || collection == "statistics"
                        || matches!(name, "referrers" | "self" | "search" | "search_objects"),
                    "{} {answered:?}",
                    operation.id()
                );
                if is_done {
                    audit::check_repetition(rig, &traced, call).await;
                }
            }
            if let Answered::Created(made) = answered {
                let path = format!("/{collection}/{}", made["id"].as_str().unwrap());
                rig.delete(&path).await;
            }
        }
    }
}

/// Those who see only the outline of a destination get no format that it does not have.
#[tokio::test]
async fn others_do_not_see_the_format_of_a_destination() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let body = json!({"format": "ocsf", "target": {"debug": {"log": true}}});
    let made = rig.call(cast.owner(), "POST", "/event_destinations", body);
    let id = made.await.body()["id"].as_str().unwrap().to_owned();
    let path = format!("/event_destinations/{id}");
    for (who, format) in [(0, "ocsf"), (1, "ocsf"), (2, ""), (3, "")] {
        let shown = rig.call(&cast.callers[who], "GET", &path, Value::Null);
        assert_eq!(shown.await.body()["format"], format, "{:?}", CALLERS[who]);
    }
}

/// The absence of a part of an object that the caller sees is no refusal.
#[tokio::test]
async fn an_absent_part_of_an_own_object_is_no_refusal() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let id = cast.object("event_subscriptions", 1).await;
    let path = format!("/event_subscriptions/{id}/sources/vault_deleted.v0");
    let owner = audit::with_own_context(cast.owner().clone());
    let seq = audit::end_of_log(rig).await;
    for method in ["GET", "DELETE"] {
        let answered = rig.call(&owner, method, &path, Value::Null).await;
        assert_eq!(answered.code(), Some(5125), "{method}");
    }
    rig.control.kernel.report_due(true).await.unwrap();
    assert_eq!(rig.events_after(seq).await.0, Vec::<Value>::new());
}

/// The stored form and revision of an object.
async fn stored(rig: &Rig, id: &str) -> Option<(String, i64)> {
    let ids = [id.replace("service_", "bot_")];
    let found = rig.store.get_many(&ids).await.unwrap().pop()?;
    Some((found.body, found.head.revision))
}

/// No list contains keys and credentials of others, whatever the query, and pages are full.
#[tokio::test]
async fn lists_of_private_objects_have_only_the_callers_own() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let [admin, owner, other] = [0, 1, 2].map(|index| &cast.callers[index]);
    for collection in PRIVATE {
        let mut own = Vec::new();
        let mut all = Vec::new();
        for n in 0..30 {
            let caller = [owner, other, admin][n % 3];
            let mut body = rig.sample(collection, 1).await;
            body["description"] = json!("the same");
            let path = format!("/{collection}");
            let made = rig.call(caller, "POST", &path, body).await.body();
            let id = made["id"].as_str().unwrap().to_owned();
            if n % 3 == 0 {
                own.push(id.clone());
            }
            all.push(id);
        }
        let foreign = all.iter().find(|id| !own.contains(id)).unwrap().clone();
        own.reverse();
        all.reverse();
        let filters = [
            String::new(),
            "obj.description == 'the same'".to_owned(),
            "obj.description.contains('same')".to_owned(),
            format!("obj.id == '{foreign}' || obj.description == 'the same'"),
            format!(
                "obj.owner_id in ['{}', '{}']",
                owner.owner_id, admin.owner_id
            ),
        ];
        for filter in filters {
            for limit in [1, 3, 100] {
                let listed = pages(rig, owner, collection, &filter, limit).await;
                let listed: Vec<_> = listed.into_iter().filter(|id| all.contains(id)).collect();
                assert_eq!(listed, own, "{collection} {filter} {limit}");
            }
        }
        for filter in [
            format!("obj.id == '{foreign}'"),
            format!("obj.id in ['{foreign}']"),
            format!("obj.owner_id == '{}'", admin.owner_id),
            format!("obj.owner_id == '{}'", other.owner_id),
        ] {
            let listed = pages(rig, owner, collection, &filter, 100).await;
            assert_eq!(listed, Vec::<String>::new(), "{collection} {filter}");
        }
        let listed = pages(rig, admin, collection, "obj.description == 'the same'", 7).await;
        assert_eq!(listed, all, "{collection}");
    }
}

async fn pages(
    rig: &Rig,
    caller: &Caller,
    collection: &str,
    filter: &str,
    limit: usize,
) -> Vec<String> {
    let field = ALL
        .iter()
        .find(|ty| ty.collection == collection)
        .unwrap()
        .list_field;
    let query: String = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("limit", &limit.to_string())
        .append_pair("filter", filter)
        .finish();
    let mut next = Some(format!("/{collection}?{query}"));
    let mut ids = Vec::new();
    while let Some(path) = next {
        let page = rig.call(caller, "GET", &path, Value::Null).await.body();
        let items = page[field].as_array().unwrap();
        assert!(items.len() <= limit, "{path}");
        ids.extend(
            items
                .iter()
                .map(|one| one["id"].as_str().unwrap().to_owned()),
        );
        next = page["next_page_uri"]
            .as_str()
            .map(|uri| uri.strip_prefix(BASE).unwrap().to_owned());
    }
    ids
}

/// A bot cannot create keys and bots for other owners.
#[tokio::test]
async fn a_bot_creates_no_object_for_another_owner() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let bot = cast.owner();
    let admin = &rig.admin;
    for collection in PRIVATE {
        for owner in [&admin.owner_id, &admin.subject, &cast.callers[2].owner_id] {
            let mut body = rig.sample(collection, 1).await;
            body["owner_id"] = json!(owner);
            let path = format!("/{collection}");
            let answered = rig.call(bot, "POST", &path, body).await;
            assert_eq!(answered.code(), Some(630), "{collection} {owner}");
        }
        let own = cast.object(collection, 1).await;
        let path = format!("/{collection}/{own}");
        let body = json!({"owner_id": admin.owner_id});
        let moved = rig.call(bot, "PATCH", &path, body).await;
        assert_eq!(moved.code(), Some(214));
    }
    for collection in ADMINS {
        let body = json!({"name": "another"});
        let path = format!("/{collection}");
        let answered = rig.call(bot, "POST", &path, body).await;
        assert_eq!(answered.code(), Some(4111), "{collection}");
        let own = format!("{path}/{}", bot.owner_id);
        let answered = rig.call(bot, "PATCH", &own, json!({"active": true})).await;
        assert_eq!(answered.code(), Some(4111), "{collection}");
    }
}

/// Certificates of an authority with which agents sign in as its owner.
#[tokio::test]
async fn a_bot_issues_no_certificate_for_another_owner() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let authority = rig
        .post("/ssh_certificate_authorities", Value::Null)
        .await
        .body();
    let wanted = json!({
        "ssh_certificate_authority_id": authority["id"],
        "public_key": ssh::new_key(),
    });
    let issue = async |caller: &Caller| {
        let path = "/ssh_user_certificates";
        rig.call(caller, "POST", path, wanted.clone()).await
    };
    let other = &cast.callers[2];
    assert!(matches!(issue(other).await, Answered::Created(_)));
    let line = format!(
        "cert-authority {}",
        authority["public_key"].as_str().unwrap()
    );
    let body = json!({"public_key": line, "owner_id": cast.owner().owner_id});
    rig.post("/ssh_credentials", body).await.body();
    assert_eq!(issue(other).await.code(), Some(630));
    assert!(matches!(issue(cast.owner()).await, Answered::Created(_)));
    assert!(matches!(issue(&rig.admin).await, Answered::Created(_)));
}

#[tokio::test]
async fn the_last_admin_key_is_deleted_only_with_force() {
    let rig = Rig::start().await;
    let delete = async |id: &str, query: &str| rig.delete(&format!("/api_keys/{id}{query}")).await;
    let first = rig.admin.key_id.clone();
    let (_, start) = rig.events_after(0).await;
    for (query, code) in [
        ("", 660),
        ("?force=false", 660),
        ("?force=", 660),
        ("?force=yes", 215),
        ("?force=true&force=true", 232),
        ("?forced=true", 231),
    ] {
        assert_eq!(delete(&first, query).await.code(), Some(code), "{query}");
    }
    // Keys of bots, of users who are not admins, and of inactive admins do not count.
    let owner = bot(&rig, "b").await;
    let developer = rig.user("dev@x.example", Role::Member, true).await;
    let gone = rig.user("gone@x.example", Role::Admin, false).await;
    for caller in [&owner, &developer, &gone] {
        rig.call(caller, "POST", "/api_keys", Value::Null)
            .await
            .body();
    }
    assert_eq!(delete(&first, "").await.code(), Some(660));
    assert_eq!(delete(&owner.key_id, "").await, Answered::NoContent);
    // Keys of another admin count.
    let second = rig.user("second@x.example", Role::Admin, true).await;
    let theirs = rig
        .call(&second, "POST", "/api_keys", Value::Null)
        .await
        .body();
    assert_eq!(delete(&first, "").await, Answered::NoContent);
    let theirs = theirs["id"].as_str().unwrap();
    assert_eq!(delete(theirs, "").await.code(), Some(660));
    assert_eq!(delete(theirs, "?force=true").await, Answered::NoContent);
    let (reported, _) = rig.events_after(start).await;
    let deleted = reported
        .iter()
        .filter(|event| event["event_type"] == "api_key_deleted.v0");
    assert_eq!(deleted.count(), 3);
}

/// Two concurrent deletions leave one key.
#[tokio::test]
async fn concurrent_deletions_leave_one_admin_key() {
    for _ in 0..8 {
        let rig = Rig::start().await;
        let other = rig.post("/api_keys", Value::Null).await.body();
        let paths = [rig.admin.key_id.as_str(), other["id"].as_str().unwrap()]
            .map(|id| format!("/api_keys/{id}"));
        let (a, b) = tokio::join!(rig.delete(&paths[0]), rig.delete(&paths[1]));
        let codes = [a, b].map(|answered| answered != Answered::NoContent);
        assert_ne!(codes[0], codes[1], "one of them is refused");
        assert_eq!(rig.store.all("api_key").await.unwrap().len(), 1);
    }
}

/// A stored secret of a destination is never sent to an address that it was not given for.
#[tokio::test]
async fn a_new_target_address_needs_its_secret_again() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let webhook = |url: &str, secret: &str| json!({"target": {"webhook": {"url": url, "headers": {"authorization": secret}}}});
    let mut made = webhook("https://hooks.example/in", "Bearer secret");
    made["format"] = "json".into();
    let made = rig
        .call(cast.owner(), "POST", "/event_destinations", made)
        .await
        .body();
    let path = format!("/event_destinations/{}", made["id"].as_str().unwrap());
    for caller in [&rig.admin, cast.owner()] {
        for (url, secret, code) in [
            ("https://evil.example/in", "[redacted]", Some(215)),
            ("https://hooks.example:8443/in", "[redacted]", Some(215)),
            ("https://hooks.example/in", "[redacted]", None),
            ("https://other.example/in", "Bearer new", None),
            ("https://hooks.example/in", "Bearer secret", None),
        ] {
            let answered = rig.call(caller, "PATCH", &path, webhook(url, secret)).await;
            let refused = match answered {
                Answered::Refused(_, code, _) => code,
                _ => None,
            };
            assert_eq!(refused, code, "{url} {secret}");
        }
    }
}
