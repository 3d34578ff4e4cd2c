//! Keys with restrictions: for every operation, what a restriction does not allow is refused and changes nothing in the
//! store; and whatever a restricted key may do, it gives no right that is more than the key has or outlives it.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_base::Class;
use culvert_resources::access::key_restrictions::KeyRestrictions;
use culvert_resources::resource::Life;
use rcgen::{CertificateParams, KeyPair};

use super::rights::{CALLERS, Cast, Who, caller_of};
use super::*;
use crate::operations::resources::ALL;

fn csr() -> String {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

/// The admin with a key that has these restrictions.
fn admin_with(rig: &Rig, restrictions: Value) -> Caller {
    let restrictions: KeyRestrictions = serde_json::from_value(restrictions).unwrap();
    Caller {
        role: restrictions.role.unwrap_or(Role::Admin),
        restrictions: Some(Arc::new(restrictions)),
        ..rig.admin.clone()
    }
}

/// One object of each collection, made by the admin.
async fn objects(rig: &Rig) -> BTreeMap<&'static str, String> {
    let mut made = BTreeMap::new();
    for ty in ALL.iter().filter(|ty| ty.life == Life::Configured) {
        let sample = rig.sample(ty.collection, 1).await;
        let one = rig.post(&format!("/{}", ty.collection), sample).await;
        made.insert(ty.collection, one.body()["id"].as_str().unwrap().to_owned());
    }
    made
}

/// Requests of an operation that would give rights, and one that fits its shape.
async fn bodies(rig: &Rig, operation: &Operation, n: u32) -> Vec<Value> {
    let sampled = match operation.name {
        "create" => rig.sample(operation.collection, n).await,
        _ => json!({}),
    };
    let mut bodies = match (operation.collection, operation.name) {
        ("kubernetes_operators", "create") => vec![json!({"binding": {"csr": csr()}})],
        ("kubernetes_operators", "update") => vec![
            json!({"binding": {"csr": csr()}}),
            json!({"binding": {"endpoint_selectors": ["true"]}}),
            json!({"enabled_features": ["bindings"]}),
        ],
        ("credentials" | "ssh_credentials", "update") => vec![json!({"acl": []})],
        ("users", "update") => vec![json!({"active": true}), json!({"role": "admin"})],
        ("bot_users" | "service_users", "update") => vec![json!({"active": true})],
        ("api_keys", "update_restrictions") => vec![
            json!({"role": "", "scopes": [], "networks": [], "expires_at": ""}),
            json!({"role": "admin"}),
        ],
        ("api_keys", "rotate") => vec![json!({"overlap": 60})],
        ("endpoints", "update") => return vec![json!({"description": "changed"})],
        ("event_subscriptions", "create_source") => {
            return vec![json!({"type": "vault_created.v0"})];
        }
        _ => Vec::new(),
    };
    bodies.push(match operation.method {
        Method::Get | Method::Delete => Value::Null,
        Method::Post | Method::Patch => sampled,
    });
    bodies
}

/// Documents that give rights, with the parts that decide which.
async fn rights(rig: &Rig) -> BTreeMap<String, Value> {
    let mut rights = BTreeMap::new();
    for (kind, fields) in [
        ("api_key", &["restrictions", "digest"][..]),
        ("tunnel_credential", &["acl", "digest"]),
        ("ssh_public_key", &["acl", "public_key"]),
        ("ssh_user_certificate", &["certificate"]),
        ("user", &["role", "active", "invitation"]),
        ("bot_user", &["active"]),
        ("kubernetes_operator", &["binding", "enabled_features"]),
    ] {
        for document in rig.store.all(kind).await.unwrap() {
            let form: Value = serde_json::from_str(&document.body).unwrap();
            let parts = fields.iter().map(|field| form[*field].clone());
            rights.insert(document.head.id, parts.collect());
        }
    }
    rights
}

/// Whether the change of a document gives no right beyond a key with these restrictions.
fn is_no_more(id: &str, before: &Value, now: &Value, own: &KeyRestrictions) -> bool {
    if before == now {
        return true;
    }
    match id.split_once('_').unwrap().0 {
        "ak" => {
            let given = serde_json::from_value::<KeyRestrictions>(now[0].clone());
            given.unwrap_or_default().is_within(own)
        }
        "bot" => now[0] == false || before.is_null(),
        // Without a certificate it gives no access.
        "k8sop" => now[0]["certificate"].is_null(),
        _ => false,
    }
}

#[tokio::test]
async fn operations_refused_by_a_restriction_change_nothing() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let objects = objects(rig).await;
    let mut n_refused = 0;
    for operation in operations() {
        let scoped = caller_of(Who::OwnerScoped, &rig.admin, operation);
        let reads = operation.right.role == Role::ReadOnly;
        let mut callers = vec![(scoped, operation.right.scope.is_some())];
        for (role, allowed) in [
            ("read_only", reads),
            ("member", operation.right.role < Role::Admin),
        ] {
            callers.push((admin_with(rig, json!({"role": role})), !allowed));
        }
        let id = objects.get(operation.collection);
        // Roles are checked after the object is found.
        let has_object = !operation.path.contains("{id}") || id.is_some();
        let path = operation
            .path
            .replace("{id}", id.map_or("ev_0", String::as_str));
        let path = path.replace("{type}", "api_key_created.v0");
        for body in bodies(rig, operation, 50).await {
            for (caller, is_refused) in &callers {
                let is_scope = caller
                    .restrictions
                    .as_ref()
                    .is_some_and(|it| it.role.is_none());
                if !is_refused || !(has_object || is_scope) {
                    continue;
                }
                let before = rig.store.revision().await.unwrap();
                let method = operation.method.as_str();
                let answered = rig.call(caller, method, &path, body.clone()).await;
                let about = format!(
                    "{method} {path} {body} {:?}: {answered:?}",
                    caller.restrictions
                );
                // Only admins see them, and a key with a lower role is none.
                let is_unseen = ["alert_rules", "audit_holds"].contains(&operation.collection)
                    && answered.is_absent();
                assert!(
                    is_unseen
                        || matches!(answered, Answered::Refused(Class::Forbidden, Some(_), _)),
                    "{about}"
                );
                assert_eq!(rig.store.revision().await.unwrap(), before, "{about}");
                n_refused += 1;
            }
        }
    }
    assert!(n_refused > 200, "{n_refused}");
    assert_eq!(CALLERS.len(), cast.callers.len());
}

/// The same requests by an unrestricted admin give rights, so the test sees them.
#[tokio::test]
async fn rights_granted_by_a_restricted_key_end_with_it() {
    for restricted in [true, false] {
        let rig = Rig::start().await;
        let objects = objects(&rig).await;
        let operator = format!("/kubernetes_operators/{}", objects["kubernetes_operators"]);
        rig.patch(&operator, json!({"binding": {"csr": csr()}}))
            .await
            .body();
        let inactive = rig
            .user("inactive@x.example", Role::Member, false)
            .await
            .owner_id;
        for bot in ["bot_users", "service_users"] {
            let path = format!("/{bot}/{}", objects[bot]);
            rig.patch(&path, json!({"active": false})).await.body();
        }
        let end = rig
            .clock
            .now()
            .plus(Duration::from_secs(3_600))
            .whole_seconds();
        let own = json!({"expires_at": end.to_string(), "networks": ["192.0.2.0/24"]});
        let caller = match restricted {
            true => admin_with(&rig, own.clone()),
            false => rig.admin.clone(),
        };
        let own: KeyRestrictions = serde_json::from_value(own).unwrap();
        let mut given = Vec::new();
        for operation in operations() {
            // Deletions last: they give nothing, and the others need the objects.
            if matches!(operation.method, Method::Get) || operation.name == "delete" {
                continue;
            }
            let mut ids: Vec<&str> = Vec::new();
            ids.extend(objects.get(operation.collection).map(String::as_str));
            if operation.collection == "users" {
                ids.push(&inactive);
            }
            for body in bodies(&rig, operation, 60).await {
                for id in if ids.is_empty() { &["x_0"] } else { &*ids } {
                    let path = operation.path.replace("{id}", id);
                    let path = path.replace("{type}", "api_key_created.v0");
                    let before = rights(&rig).await;
                    let method = operation.method.as_str();
                    let answered = rig.call(&caller, method, &path, body.clone()).await;
                    for (id, now) in rights(&rig).await {
                        let was = before.get(&id).unwrap_or(&Value::Null);
                        if !is_no_more(&id, was, &now, &own) {
                            let what = format!("{answered:?}")
                                .chars()
                                .take(120)
                                .collect::<String>();
                            given.push(format!("{method} {path} {body}: {id} {what}"));
                        }
                    }
                    if !operation.path.contains("{id}") {
                        break;
                    }
                }
            }
        }
        if restricted {
            assert!(given.is_empty(), "{}", given.join("\n"));
            continue;
        }
        // Each kind of right is among those that an unrestricted key gives.
        for (what, by) in [
            ("a key", "POST /api_keys {"),
            ("a wider key", "/restrictions"),
            ("a token", "/rotate"),
            ("a credential", "POST /credentials {"),
            ("an ACL", "PATCH /credentials/"),
            ("an SSH key", "POST /ssh_credentials {"),
            ("an ACL of an SSH key", "PATCH /ssh_credentials/"),
            ("an SSH certificate", "POST /ssh_user_certificates"),
            ("a user", "POST /users {"),
            ("an invitation", "/invite"),
            ("a role", "PATCH /users/"),
            ("an active bot", "PATCH /bot_users/"),
            ("an active service user", "PATCH /service_users/"),
            ("a certificate", "PATCH /kubernetes_operators/"),
            ("a first certificate", "POST /kubernetes_operators {"),
        ] {
            assert!(
                given.iter().any(|one| one.contains(by)),
                "{what}: {given:#?}"
            );
        }
    }
}
