//! Rights that follow references: an object of one owner that an object of another owner refers to. Every field that
//! refers to an object, with every kind of grant, on both stores. The outcomes are those of the table of rights.

use culvert_resources::access::rights::{Change, Use};
use culvert_resources::resource::ResourceType;
use culvert_store::StoreUrl;

use super::references::{PLACES, ReferenceField, named_by, naming};
use super::rights::Cast;
use crate::operations::resources::ALL;
use crate::tests::*;

/// The grant on the object that is referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Nothing,
    ToOwner,
    ToMembers,
    ToEndpoint,
    ToAnother,
    Expired,
    Deleted,
}

const GRANTS: [Given; 7] = [
    Given::Nothing,
    Given::ToOwner,
    Given::ToMembers,
    Given::ToEndpoint,
    Given::ToAnother,
    Given::Expired,
    Given::Deleted,
];

/// What the owner of the referring object needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// The right to use the object.
    Use,
    /// The right to change it: the referring object is a part of it.
    Change,
    /// The reference is to an owner, or for admins; other tests have it.
    Other,
}

fn needs(place: &ReferenceField) -> Needs {
    match place.at {
        ("ip_policy_rules", "ip_policy_id")
        | ("vault_secrets", "vault_id")
        | ("grants", "object_id") => Needs::Change,
        ("alert_rules" | "ip_restrictions" | "api_keys" | "credentials" | "ssh_credentials", _)
        | ("grants", "grantee") => Needs::Other,
        _ => Needs::Use,
    }
}

fn type_of(collection: &str) -> &'static ResourceType {
    ALL.iter().find(|ty| ty.collection == collection).unwrap()
}

fn id(made: &Value) -> String {
    made["id"].as_str().unwrap().to_owned()
}

/// Makes a grant, and ends it if it is one that has ended.
async fn give(rig: &Rig, by: &Caller, object: &str, given: Given, to: (&str, &str, &str)) {
    let (owner, endpoint, another) = to;
    let (grantee, end) = match given {
        Given::Nothing => return,
        Given::ToOwner | Given::Deleted => (owner, ""),
        Given::ToMembers => ("role:member", ""),
        Given::ToEndpoint => (endpoint, ""),
        Given::ToAnother => (another, ""),
        Given::Expired => (owner, "soon"),
    };
    let mut body = json!({"object_id": object, "grantee": grantee});
    if end == "soon" {
        let end = rig.clock.now().plus(std::time::Duration::from_secs(60));
        body["expires_at"] = json!(end.to_string());
    }
    let made = rig.call(by, "POST", "/grants", body).await;
    let Answered::Created(made) = made else {
        panic!("{object} {given:?}: {made:?}");
    };
    match given {
        Given::Expired => rig.clock.advance(std::time::Duration::from_secs(61)),
        Given::Deleted => {
            let path = format!("/grants/{}", id(&made));
            let gone = rig.call(by, "DELETE", &path, Value::Null).await;
            assert_eq!(gone, Answered::NoContent);
        }
        _ => {}
    }
}

async fn every_reference(cast: &Cast) {
    let rig = &cast.rig;
    let (admin, owner, other) = (&cast.callers[0], &cast.callers[1], &cast.callers[2]);
    let reader = &cast.callers[3];
    let third = rig.user("third@x.example", Role::Member, true).await;
    let mut n = 1000;
    for place in PLACES.iter().filter(|place| needs(place) != Needs::Other) {
        let ty = type_of(place.to);
        let can_be_granted = ty.rights.use_by == Use::Grant && needs(place) == Needs::Use;
        for of in [admin, owner] {
            for given in GRANTS {
                if given != Given::Nothing && !can_be_granted {
                    continue;
                }
                n += 1;
                let (path, object) = named_by(rig, of, place.to, n).await;
                let body = naming(rig, other, place, &object, n).await;
                let collection = format!("/{}", place.at.0);
                // A policy of this endpoint will refer to the object.
                let is_policy = !body["traffic_policy"].is_null();
                let plain = match is_policy {
                    true => {
                        let mut plain = body.clone();
                        plain.as_object_mut().unwrap().remove("traffic_policy");
                        plain
                    }
                    false => rig.sample("endpoints", n).await,
                };
                let mut plain = plain;
                plain["url"] = json!(format!("https://plain{n}.culvert.localhost"));
                let made = rig.call(other, "POST", "/endpoints", plain).await.body();
                let endpoint = id(&made);
                let to = (&*other.owner_id, &*endpoint, &*third.owner_id);
                give(rig, of, &id(&object), given, to).await;
                let by_grant = match given {
                    Given::ToOwner | Given::ToMembers => true,
                    Given::ToEndpoint => is_policy,
                    Given::Nothing | Given::ToAnother | Given::Expired | Given::Deleted => false,
                };
                let is_echoed = place.at.1 == "secrets.get in an expression";
                // A client certificate is an identity of its owner.
                let use_by = match place.at.1 {
                    "upstream_tls.client_certificate_id" => Use::Nothing,
                    _ => ty.rights.use_by,
                };
                let (may, code) = match (needs(place), use_by) {
                    (Needs::Change, _) => (false, 630),
                    (_, Use::All | Use::Setting) => (true, 0),
                    // A condition can echo a secret, which needs the right to change it.
                    (_, Use::Grant) if by_grant && is_echoed => (false, 2270),
                    (_, Use::Grant) => (by_grant, 650),
                    (_, Use::Nothing) => (false, 650),
                };
                let case = format!("{:?} of {}: {given:?}", place.at, of.subject);
                let by = match is_policy {
                    true => {
                        let path = format!("/endpoints/{endpoint}");
                        let body = json!({"traffic_policy": body["traffic_policy"]});
                        rig.call(other, "PATCH", &path, body).await
                    }
                    false => rig.call(other, "POST", &collection, body.clone()).await,
                };
                let Answered::Refused(class, refused, ref why) = by else {
                    assert!(may, "{case} {by:?}");
                    let by = format!("{collection}/{}", id(&by.body()));
                    in_use(cast, of, (ty, &path), reader, &case).await;
                    if by_grant {
                        grant_in_use(rig, of, &id(&object), &case).await;
                    }
                    assert_eq!(rig.delete(&by).await, Answered::NoContent, "{case}");
                    assert_eq!(rig.delete(&path).await, Answered::NoContent, "{case}");
                    continue;
                };
                assert!(!may, "{case} {by:?}");
                assert_eq!(
                    (class, refused),
                    (culvert_base::Class::Forbidden, Some(code)),
                    "{case}"
                );
                // Who can give the right.
                assert!(
                    code == 2270
                        || why.contains(&of.subject) && why.contains("`use`") != (code == 630),
                    "{why}"
                );
                // Its owner and admins may.
                let mut body = naming(rig, of, place, &object, n).await;
                if place.at.0 == "endpoints" && is_policy {
                    body["url"] = json!(format!("https://own{n}.culvert.localhost"));
                }
                let made = rig.call(of, "POST", &collection, body).await;
                assert!(matches!(made, Answered::Created(_)), "{case} {made:?}");
                let made = format!("{collection}/{}", id(&made.body()));
                assert_eq!(rig.delete(&made).await, Answered::NoContent, "{case}");
                assert_eq!(rig.delete(&path).await, Answered::NoContent, "{case}");
            }
        }
    }
}

/// The owner of the referring object does not change the object that it refers to.
async fn in_use(
    cast: &Cast,
    of: &Caller,
    (ty, path): (&ResourceType, &str),
    reader: &Caller,
    case: &str,
) {
    let rig = &cast.rig;
    assert!(matches!(
        ty.rights.change,
        Change::Owner | Change::OwnerUnlessRestricting
    ));
    let before = rig.get(path).await;
    for (caller, code) in [(&cast.callers[2], 630), (reader, 635)] {
        for (method, body) in [
            ("PATCH", json!({"description": "taken"})),
            ("DELETE", Value::Null),
        ] {
            let answered = rig.call(caller, method, path, body).await;
            assert_eq!(answered.code(), Some(code), "{method} {case}");
        }
    }
    assert_eq!(rig.get(path).await, before, "{case}");
    let body = json!({"description": "of the owner"});
    let changed = rig.call(of, "PATCH", path, body).await;
    assert!(matches!(changed, Answered::Ok(_)), "{case} {changed:?}");
}

/// A grant that is needed is deleted only with force, and only by those who can give it.
async fn grant_in_use(rig: &Rig, of: &Caller, object: &str, case: &str) {
    let filter: String = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("filter", &format!("obj.object_id == '{object}'"))
        .finish();
    let listed = rig.get(&format!("/grants?{filter}")).await.body();
    let [grant] = &listed["grants"].as_array().unwrap()[..] else {
        panic!("{case} {listed}");
    };
    let path = format!("/grants/{}", id(grant));
    let refused = rig.call(of, "DELETE", &path, Value::Null).await;
    assert_eq!(refused.code(), Some(651), "{case}");
    let forced = format!("{path}?force=true");
    let gone = rig.call(of, "DELETE", &forced, Value::Null).await;
    assert_eq!(gone, Answered::NoContent, "{case}");
}

#[tokio::test]
async fn references_need_the_right_to_use_on_sqlite() {
    every_reference(&Cast::start().await).await;
}

#[tokio::test]
async fn references_need_the_right_to_use_on_postgres() {
    let Some(database) = Database::new("uses").await else {
        return;
    };
    let rig = Rig::on(Some(database.url.clone()), None, AGENTS).await;
    every_reference(&Cast::of(rig).await).await;
    database.remove().await;
}

/// A database of one test.
pub(super) struct Database {
    pub(super) url: StoreUrl,
    server: String,
    name: String,
}

impl Database {
    /// `None`, reported as ignored, if there is no server.
    #[allow(
        clippy::disallowed_methods,
        reason = "the environment names the PostgreSQL server of the tests"
    )]
    pub(super) async fn new(test: &str) -> Option<Self> {
        let server = std::env::var("CULVERT_TEST_POSTGRES_URL")
            .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/postgres".to_owned());
        let name = format!("culvert_test_{test}_{}", std::process::id());
        if let Err(error) = Self::execute(&server, &format!("CREATE DATABASE {name}")).await {
            culvert_testing::ignore(format_args!("rights on PostgreSQL: no server: {error}"));
            return None;
        }
        let (base, _) = server.rsplit_once('/').unwrap();
        let url = StoreUrl::Postgres(format!("{base}/{name}"));
        Some(Self { url, server, name })
    }

    async fn execute(server: &str, sql: &str) -> Result<(), tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(server, tokio_postgres::NoTls).await?;
        let mut running = tokio::task::JoinSet::new();
        running.spawn(connection);
        client.batch_execute(sql).await?;
        drop(client);
        running.join_next().await.unwrap().unwrap()
    }

    /// Runs statements in it.
    pub(super) async fn run(&self, sql: &str) {
        let (base, _) = self.server.rsplit_once('/').unwrap();
        let url = format!("{base}/{}", self.name);
        Self::execute(&url, sql).await.unwrap();
    }

    pub(super) async fn remove(self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        Self::execute(&self.server, &sql).await.unwrap();
    }
}

/// The edge forwards to an internal endpoint of another owner as long as its owner may use it.
#[tokio::test]
async fn the_edge_forwards_by_the_rights_of_now() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let (owner, other) = (&cast.callers[1], &cast.callers[2]);
    let cancel = tokio_util::sync::CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    running.spawn(Arc::clone(&rig.control).run(cancel.clone()));
    let upstream = "http://127.0.0.1:9";
    let to = json!({"url": "http://a.internal", "upstream_url": upstream});
    let to = id(&rig.call(owner, "POST", "/endpoints", to).await.body());
    let computed = json!({"on_http_request": [{"actions": [{
        "type": "forward-internal", "config": {"url": "http://${req.headers['x'][0]}.internal"}}]}]});
    let from = json!({
        "url": "https://from.culvert.localhost",
        "traffic_policy": computed.to_string(),
    });
    let from = id(&rig.call(other, "POST", "/endpoints", from).await.body());
    let may = async |expected: bool| {
        eventually(&format!("the edge forwards: {expected}"), async || {
            let snapshot = rig.edge.0.borrow();
            let Some(snapshot) = snapshot.as_ref() else {
                return false;
            };
            let one = |id: &str| snapshot.endpoints().find(|one| one.id == id);
            let (Some(from), Some(to)) = (one(&from), one(&to)) else {
                return false;
            };
            snapshot.may_forward(from, "a.internal", to) == expected
                && snapshot.may_forward(to, "a.internal", from) == expected
                || !expected && !snapshot.may_forward(from, "a.internal", to)
                || expected && snapshot.may_forward(from, "a.internal", to)
        })
        .await;
    };
    may(false).await;
    let constant = json!({"on_http_request": [{"actions": [{
        "type": "forward-internal", "config": {"url": "http://a.internal"}}]}]});
    let constant = json!({"traffic_policy": constant.to_string()});
    let path = format!("/endpoints/{from}");
    let refused = rig.call(other, "PATCH", &path, constant.clone()).await;
    assert_eq!(refused.code(), Some(650));
    // An admin who writes the policy does not give the owner of the endpoint the right.
    assert_eq!(rig.patch(&path, constant.clone()).await.code(), Some(650));
    for grantee in [&*other.owner_id, "role:member", &*from] {
        let grant = json!({"object_id": to, "grantee": grantee});
        let made = rig.call(owner, "POST", "/grants", grant).await.body();
        may(true).await;
        rig.call(other, "PATCH", &path, constant.clone())
            .await
            .body();
        let grant = format!("/grants/{}", id(&made));
        let refused = rig.call(owner, "DELETE", &grant, Value::Null).await;
        assert_eq!(refused.code(), Some(651), "{grantee}");
        let grant = format!("{grant}?force=true");
        assert_eq!(rig.delete(&grant).await, Answered::NoContent);
        may(false).await;
    }
    // It ends on time, without a write.
    let end = rig.clock.now().plus(std::time::Duration::from_secs(1));
    let grant = json!({"object_id": to, "grantee": from, "expires_at": end.to_string()});
    rig.call(owner, "POST", "/grants", grant).await.body();
    may(true).await;
    rig.clock.advance(std::time::Duration::from_secs(2));
    may(false).await;
    cancel.cancel();
    running.join_all().await;
}

/// Who sees, makes and changes grants.
#[tokio::test]
async fn grants_are_given_by_the_owner_and_admins() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let (owner, other, reader) = (&cast.callers[1], &cast.callers[2], &cast.callers[3]);
    let third = rig.user("third@x.example", Role::Member, true).await;
    let vault = rig
        .call(owner, "POST", "/vaults", json!({"name": "v"}))
        .await;
    let vault = id(&vault.body());
    let body = |grantee: &str| json!({"object_id": vault, "grantee": grantee});
    for (caller, code) in [(other, 630), (&third, 630), (reader, 635)] {
        let refused = rig
            .call(caller, "POST", "/grants", body(&other.owner_id))
            .await;
        assert_eq!(refused.code(), Some(code), "{}", caller.subject);
    }
    let made = rig
        .call(owner, "POST", "/grants", body(&other.owner_id))
        .await
        .body();
    assert_eq!(made["right"], "use");
    assert_eq!(made["expires_at"], Value::Null);
    let path = format!("/grants/{}", id(&made));
    for (caller, is_seen) in [
        (&rig.admin, true),
        (owner, true),
        (other, true),
        (&third, false),
        (reader, false),
    ] {
        let shown = rig.call(caller, "GET", &path, Value::Null).await;
        assert_eq!(!shown.is_absent(), is_seen, "{}", caller.subject);
        let listed = rig.call(caller, "GET", "/grants", Value::Null).await.body();
        let listed = listed["grants"].as_array().unwrap().len();
        assert_eq!(listed, usize::from(is_seen), "{}", caller.subject);
    }
    let changed = json!({"description": "d"});
    let refused = rig.call(other, "PATCH", &path, changed.clone()).await;
    assert_eq!(refused.code(), Some(630));
    rig.call(owner, "PATCH", &path, changed).await.body();
    for wrong in [
        json!({"object_id": vault, "grantee": "role:admin"}),
        json!({"object_id": vault, "grantee": owner.owner_id}),
        json!({"object_id": vault, "grantee": format!("bot_{}", "0".repeat(27))}),
        json!({"object_id": vault, "grantee": other.owner_id, "right": "change"}),
        json!({"object_id": vault, "grantee": other.owner_id, "expires_at": "2020-01-01T00:00:00Z"}),
        json!({"object_id": format!("vault_{}", "0".repeat(27)), "grantee": other.owner_id}),
        json!({"object_id": other.owner_id, "grantee": other.owner_id}),
        json!({"grantee": other.owner_id}),
    ] {
        let refused = rig.call(owner, "POST", "/grants", wrong.clone()).await;
        assert!(
            matches!(refused, Answered::Refused(culvert_base::Class::Invalid, ..)),
            "{wrong} {refused:?}"
        );
    }
    // A key gives no more than it has.
    let with = |scopes: &[Scope], expires_at| Caller {
        restrictions: Some(Arc::new(KeyRestrictions {
            scopes: scopes.iter().copied().collect(),
            expires_at,
            ..KeyRestrictions::default()
        })),
        ..owner.clone()
    };
    for (key, code) in [
        (with(&[Scope::EndpointsWrite], None), 642),
        (with(&[Scope::SecretsWrite], None), 642),
        (with(&[Scope::GrantsWrite], None), 642),
        (
            with(
                &[Scope::GrantsWrite, Scope::SecretsWrite],
                Some(rig.clock.now()),
            ),
            643,
        ),
    ] {
        let refused = rig
            .call(&key, "POST", "/grants", body(&third.owner_id))
            .await;
        assert_eq!(refused.code(), Some(code), "{:?}", key.restrictions);
    }
    let key = with(&[Scope::GrantsWrite, Scope::SecretsWrite], None);
    rig.call(&key, "POST", "/grants", body(&third.owner_id))
        .await
        .body();
    // The removal of a grantee, and of the object, removes the grants, each with an event.
    let (_, start) = rig.events_after(0).await;
    assert_eq!(
        rig.delete(&format!("/bot_users/{}", other.owner_id)).await,
        Answered::NoContent
    );
    assert!(rig.get(&path).await.is_absent());
    assert_eq!(
        rig.delete(&format!("/vaults/{vault}")).await,
        Answered::NoContent
    );
    assert_eq!(rig.store.all("grant").await.unwrap().len(), 0);
    let (reported, _) = rig.events_after(start).await;
    let deleted = reported
        .iter()
        .filter(|event| event["event_type"] == "grant_deleted.v0");
    assert_eq!(deleted.count(), 2);
}

/// Others see which destinations there are, and nothing else.
#[tokio::test]
async fn destinations_of_others_show_only_an_outline() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let (owner, other) = (&cast.callers[1], &cast.callers[2]);
    let hook = json!({
        "format": "JSON", "description": "d", "metadata": "inner",
        "target": {"webhook": {"url": "https://hooks.example/inner"}},
    });
    let made = rig
        .call(owner, "POST", "/event_destinations", hook)
        .await
        .body();
    let path = format!("/event_destinations/{}", id(&made));
    let shown = rig.call(other, "GET", &path, Value::Null).await.body();
    assert_eq!(
        (&shown["id"], &shown["description"]),
        (&made["id"], &made["description"])
    );
    assert!(
        !shown.to_string().to_lowercase().contains("inner"),
        "{shown}"
    );
    for expression in ["obj.metadata == 'inner'", "obj.metadata.contains('inner')"] {
        let filter: String = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("filter", expression)
            .finish();
        for (caller, n) in [(owner, 1), (other, 0)] {
            let path = format!("/event_destinations?{filter}");
            let listed = rig.call(caller, "GET", &path, Value::Null).await.body();
            let listed = listed["event_destinations"].as_array().unwrap().len();
            assert_eq!(listed, n, "{expression} {}", caller.subject);
        }
    }
    for below in ["health", "dead_letters"] {
        let path = format!("{path}/{below}");
        assert_eq!(
            rig.call(other, "GET", &path, Value::Null).await.code(),
            Some(630)
        );
        rig.call(owner, "GET", &path, Value::Null).await.body();
    }
}

/// A name of another owner's reservation is not taken by deleting the reservation.
#[tokio::test]
async fn domains_of_others_are_neither_deleted_nor_served_by_setting() {
    let cast = Cast::start().await;
    let (owner, other) = (cast.callers[1].clone(), cast.callers[2].clone());
    let domain = json!({"domain": "*.d.example"});
    let made = cast
        .rig
        .call(&owner, "POST", "/reserved_domains", domain.clone())
        .await
        .body();
    let path = format!("/reserved_domains/{}", id(&made));
    let refused = cast.rig.call(&other, "DELETE", &path, Value::Null).await;
    assert_eq!(refused.code(), Some(630));
    let taken = cast
        .rig
        .call(&other, "POST", "/reserved_domains", domain)
        .await;
    assert_eq!(taken.code(), Some(413));
    let body = |n: u32| json!({"url": format!("https://x{n}.d.example"), "upstream_url": "http://127.0.0.1:1"});
    cast.rig
        .call(&other, "POST", "/endpoints", body(1))
        .await
        .body();

    let rig = Rig::adjusted(|settings| settings.domains_of_owner = true).await;
    let cast = Cast::of(rig).await;
    let (owner, other) = (cast.callers[1].clone(), cast.callers[2].clone());
    let domain = json!({"domain": "*.d.example"});
    cast.rig
        .call(&owner, "POST", "/reserved_domains", domain)
        .await
        .body();
    let refused = cast.rig.call(&other, "POST", "/endpoints", body(2)).await;
    assert_eq!(refused.code(), Some(650));
    cast.rig
        .call(&owner, "POST", "/endpoints", body(3))
        .await
        .body();
    cast.rig.post("/endpoints", body(4)).await.body();
}

/// An upgrade gives objects their owners from the audit log, and adds grants for the uses across owners.
#[tokio::test]
async fn an_upgrade_recovers_owners_and_grants_what_is_used() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let (admin, owner, other) = (&rig.admin, &cast.callers[1], &cast.callers[2]);
    let make = async |by: &Caller, collection: &str, body: Value| {
        id(&rig
            .call(by, "POST", &format!("/{collection}"), body)
            .await
            .body())
    };
    let policy = make(owner, "ip_policies", Value::Null).await;
    let rule = json!({"ip_policy_id": policy, "cidr": "192.0.2.0/24", "action": "deny"});
    // The owner of the policy owns its rules.
    let rule = make(admin, "ip_policy_rules", rule).await;
    let hook = rig.sample("event_destinations", 1).await;
    let destination = make(owner, "event_destinations", hook).await;
    let vault = make(owner, "vaults", json!({"name": "v"})).await;
    let secret = json!({"name": "s", "value": "hush", "vault_id": vault});
    let secret = make(owner, "vault_secrets", secret).await;
    let upstream = "http://127.0.0.1:9";
    let internal = json!({"url": "http://a.internal", "upstream_url": upstream});
    let internal = make(owner, "endpoints", internal).await;
    let mut grants = Vec::new();
    for object in [&destination, &vault, &internal] {
        let grant = json!({"object_id": object, "grantee": other.owner_id});
        grants.push(make(owner, "grants", grant).await);
    }
    let sources = json!([{"type": "vault_created.v0"}]);
    let subscription = json!({"sources": sources, "destination_ids": [destination]});
    let subscription = make(other, "event_subscriptions", subscription).await;
    let governed = async |n: u32, action: Value| {
        let policy = json!({"on_http_request": [{"actions": [action]}]});
        let body = json!({
            "url": format!("https://u{n}.culvert.localhost"),
            "upstream_url": upstream,
            "traffic_policy": policy.to_string(),
        });
        make(other, "endpoints", body).await
    };
    let header = json!({"headers": {"x": "${secrets.get('v', 's')}"}});
    let reads = governed(1, json!({"type": "add-headers", "config": header})).await;
    let url = json!({"url": "http://a.internal"});
    let forwards = governed(2, json!({"type": "forward-internal", "config": url})).await;
    let url = json!({"url": "http://${req.host}.internal"});
    let computes = governed(3, json!({"type": "forward-internal", "config": url})).await;
    for grant in grants {
        let path = format!("/grants/{grant}?force=true");
        assert_eq!(rig.delete(&path).await, Answered::NoContent);
    }
    // As an older version stored them.
    let ids = [&policy, &rule, &destination].map(|id| id.to_string());
    for document in rig.store.get_many(&ids).await.unwrap() {
        let mut form: Value = serde_json::from_str(&document.body).unwrap();
        form.as_object_mut().unwrap().remove("owner_id").unwrap();
        let body = form.to_string();
        let changes = Changes::replace(
            Document { body, ..document },
            AuditEvent::Suppress { reason: "a test" },
        );
        rig.store.commit(changes).await.unwrap();
    }
    let patched = async |by: &Caller, path: String| {
        let body = json!({"description": "d"});
        rig.call(by, "PATCH", &path, body).await
    };
    let of_policy = || format!("/ip_policies/{policy}");
    assert_eq!(patched(owner, of_policy()).await.code(), Some(630));
    for meta in ["owners", "grants_of_references"] {
        rig.store.meta_set(meta, "").await.unwrap();
    }
    let seal = Seal::new(&Secret::new("a master key of the tests".into()));
    relink::relink(&rig.store, &seal).await.unwrap();
    for path in [
        of_policy(),
        format!("/ip_policy_rules/{rule}"),
        format!("/event_destinations/{destination}"),
    ] {
        assert_eq!(
            patched(other, path.clone()).await.code(),
            Some(630),
            "{path}"
        );
        patched(owner, path).await.body();
    }
    let maker = upgrade_grants::Maker {
        store: &rig.control.kernel.store,
        seal: &rig.control.kernel.seal,
        clock: &*rig.control.kernel.clock,
        entropy: &*rig.control.kernel.entropy,
        ids: &rig.control.kernel.ids,
        base: rig.control.kernel.base(BASE),
    };
    let (_, start) = rig.events_after(0).await;
    maker.run().await.unwrap();
    let listed = rig.get("/grants").await.body();
    let mut made: Vec<(String, String)> = listed["grants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (
                one["object_id"].as_str().unwrap().to_owned(),
                one["grantee"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    made.sort();
    let mut expected = vec![
        (destination.clone(), other.owner_id.clone()),
        (internal.clone(), computes),
        (internal.clone(), forwards.clone()),
        (secret.clone(), reads.clone()),
    ];
    expected.sort();
    assert_eq!(made, expected);
    let (reported, last) = rig.events_after(start).await;
    let reported = reported
        .iter()
        .filter(|event| event["event_type"] == "grant_created.v0" && event["principal"].is_null());
    assert_eq!(reported.count(), 4);
    let health = format!("/event_subscriptions/{subscription}/health");
    let health = rig.call(other, "GET", &health, Value::Null).await.body();
    assert_eq!(health["state"], "ok");
    // What was written stays writable, and a second start makes nothing.
    for endpoint in [&reads, &forwards] {
        let path = format!("/endpoints/{endpoint}");
        let shown = rig.call(other, "GET", &path, Value::Null).await.body();
        let body = json!({"traffic_policy": shown["traffic_policy"]});
        rig.call(other, "PATCH", &path, body).await.body();
    }
    rig.store
        .meta_set("grants_of_references", "")
        .await
        .unwrap();
    let (_, last) = rig.events_after(last).await;
    maker.run().await.unwrap();
    let (reported, _) = rig.events_after(last).await;
    assert_eq!(reported, Vec::<Value>::new());
}

/// The codes of grants (650 to 652).
#[tokio::test]
pub(super) async fn grant_errors_have_their_codes() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let other = &cast.callers[2];
    let hook = rig.sample("event_destinations", 1).await;
    let destination = id(&rig.post("/event_destinations", hook).await.body());
    let subscription = json!({"destination_ids": [destination]});
    let subscribe = async || {
        let path = "/event_subscriptions";
        rig.call(other, "POST", path, subscription.clone()).await
    };
    assert_eq!(subscribe().await.code(), Some(650));
    let grant = json!({"object_id": destination, "grantee": other.owner_id});
    let made = id(&rig.post("/grants", grant.clone()).await.body());
    subscribe().await.body();
    let path = format!("/grants/{made}");
    assert_eq!(rig.delete(&path).await.code(), Some(651));
    // Another grant that gives the same right makes it superfluous.
    rig.post("/grants", grant.clone()).await.body();
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    for _ in 1..200 {
        rig.post("/grants", grant.clone()).await.body();
    }
    assert_eq!(rig.post("/grants", grant).await.code(), Some(652));
}

/// A policy that names an internal endpoint means the owner that it had when the policy was written. Who takes the name
/// when it is free gets no request, whatever rights the policy has and whatever grants the new owner gives.
#[tokio::test]
async fn a_freed_internal_name_gets_no_requests_for_its_next_owner() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let cancel = tokio_util::sync::CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    running.spawn(Arc::clone(&rig.control).run(cancel.clone()));
    let (admin, first, second) = (&cast.callers[0], &cast.callers[1], &cast.callers[2]);
    let serve = async |by: &Caller, url: &str| {
        let body = json!({"url": url, "upstream_url": "http://127.0.0.1:9"});
        id(&rig.call(by, "POST", "/endpoints", body).await.body())
    };
    let remove = async |by: &Caller, id: &str| {
        let path = format!("/endpoints/{id}");
        let gone = rig.call(by, "DELETE", &path, Value::Null).await;
        assert_eq!(gone, Answered::NoContent);
    };
    for (nth, writer) in [admin, first].into_iter().enumerate() {
        for served in ["a", "*"] {
            let url = format!("http://{served}.n{nth}.internal");
            let host = format!("a.n{nth}.internal");
            let named = json!({"on_http_request": [{"actions": [{
                "type": "forward-internal", "config": {"url": format!("http://{host}")}}]}]});
            let front = json!({
                "url": format!("https://front-{nth}.culvert.localhost"),
                "traffic_policy": named.to_string(),
            });
            let to = serve(first, &url).await;
            let front = id(&rig.call(writer, "POST", "/endpoints", front).await.body());
            let may = async |to: &str, expected: bool| {
                eventually(&format!("{url} {nth}: {expected}"), async || {
                    let snapshot = rig.edge.0.borrow();
                    let Some(snapshot) = snapshot.as_ref() else {
                        return false;
                    };
                    let one = |id: &str| snapshot.endpoints().find(|one| one.id == id);
                    match (one(&front), one(to)) {
                        (Some(front), Some(to)) => {
                            snapshot.may_forward(front, &host, to) == expected
                        }
                        _ => false,
                    }
                })
                .await;
            };
            may(&to, true).await;
            remove(first, &to).await;
            let taken = serve(second, &url).await;
            let grant = json!({"object_id": taken, "grantee": writer.owner_id});
            rig.call(second, "POST", "/grants", grant).await.body();
            may(&taken, false).await;
            // A change of other fields approves nothing; a written policy does.
            let path = format!("/endpoints/{front}");
            let change = json!({"description": "changed"});
            rig.call(writer, "PATCH", &path, change).await.body();
            may(&taken, false).await;
            let approved = json!({"traffic_policy": named.to_string()});
            rig.call(writer, "PATCH", &path, approved).await.body();
            may(&taken, true).await;
            remove(second, &taken).await;
            // Written again while no agent or endpoint has it, it still means the last owner.
            let rewritten = json!({"traffic_policy": format!(" {named}")});
            rig.call(writer, "PATCH", &path, rewritten).await.body();
            let own = serve(first, &url).await;
            may(&own, writer.owner_id == first.owner_id).await;
            remove(first, &own).await;
            remove(writer, &front).await;
        }
    }
    cancel.cancel();
    running.join_all().await;
}

/// The health of an endpoint explains why its policy may not forward: who was meant, who has the name, and what to do.
#[tokio::test]
async fn health_explains_a_forward_target_of_another_owner() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let (first, second) = (&cast.callers[1], &cast.callers[2]);
    let serve = async |by: &Caller| {
        let body = json!({"url": "http://a.internal", "upstream_url": "http://127.0.0.1:9"});
        id(&rig.call(by, "POST", "/endpoints", body).await.body())
    };
    let remove = async |by: &Caller, id: &str| {
        let path = format!("/endpoints/{id}");
        let gone = rig.call(by, "DELETE", &path, Value::Null).await;
        assert_eq!(gone, Answered::NoContent);
    };
    let named = json!({"on_http_request": [{"actions": [{
        "type": "forward-internal", "config": {"url": "http://a.internal"}}]}]});
    let front = json!({
        "url": "https://front.culvert.localhost",
        "traffic_policy": named.to_string(),
    });
    let to = serve(first).await;
    let front = id(&rig.call(first, "POST", "/endpoints", front).await.body());
    let path = format!("/endpoints/{front}");
    let health = async || {
        let path = format!("{path}/health");
        let health = rig.call(first, "GET", &path, Value::Null).await.body();
        let problems = health["problems"].as_array().unwrap();
        let text = |problem: &Value| {
            assert_eq!(problem["code"], "ERR_NGROK_3618");
            problem["message"].as_str().unwrap().to_owned()
        };
        let texts: Vec<String> = problems.iter().map(text).collect();
        (
            health["state"].as_str().unwrap().to_owned(),
            texts.join("\n"),
        )
    };
    let fine = ("ok".to_owned(), String::new());
    assert_eq!(health().await, fine);
    remove(first, &to).await;
    assert_eq!(health().await, fine, "nothing is there");
    let taken = serve(second).await;
    let (state, why) = health().await;
    assert_eq!(state, "warning");
    let owners = [&first.subject, &second.subject].map(|subject| format!("`{subject}`"));
    for part in [
        "`a.internal`",
        &owners[0],
        &owners[1],
        "Write the policy again",
    ] {
        assert!(why.contains(part), "{why}");
    }
    // Written again, it means the new owner, who has not granted it.
    remove(second, &taken).await;
    let grant = async |to: &str| {
        let grant = json!({"object_id": to, "grantee": first.owner_id});
        id(&rig.call(second, "POST", "/grants", grant).await.body())
    };
    let taken = serve(second).await;
    let given = grant(&taken).await;
    let approved = json!({"traffic_policy": format!(" {named}")});
    rig.call(first, "PATCH", &path, approved).await.body();
    assert_eq!(health().await, fine);
    rig.delete(&format!("/grants/{given}?force=true")).await;
    let (state, why) = health().await;
    assert_eq!(state, "warning");
    assert!(
        why.contains(&owners[1]) && why.contains("Ask for a grant"),
        "{why}"
    );
    grant(&taken).await;
    assert_eq!(health().await, fine);
}
