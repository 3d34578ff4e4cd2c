//! References: an object cannot be deleted while another refers to it. Every field of an object or of its
//! traffic policy that can refer to another object is a row. The rows are compared with the fields of
//! operations, with all actions, and with stored forms.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use culvert_resources::resource::Life;

use super::*;
use crate::operations::resources::ALL;

/// The result of removing a referenced object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// It is refused with this code.
    Refused(u16),
    /// The removal includes the referring objects.
    Cascades,
}
use Removal::{Cascades, Refused};

/// A field of one collection that refers to an object of another.
pub(super) struct ReferenceField {
    /// Collection and field; fields of a traffic policy are those of its action.
    pub(super) at: (&'static str, &'static str),
    /// Collection of the referenced object.
    pub(super) to: &'static str,
    removal: Removal,
}

const fn place(
    collection: &'static str,
    field: &'static str,
    to: &'static str,
    removal: Removal,
) -> ReferenceField {
    ReferenceField {
        at: (collection, field),
        to,
        removal,
    }
}

#[rustfmt::skip]
pub(super) const PLACES: &[ReferenceField] = &[
    place("alert_rules", "destination_ids", "event_destinations", Refused(5112)),
    place("api_keys", "owner_id", "bot_users", Cascades),
    place("credentials", "owner_id", "bot_users", Cascades),
    place("endpoints", "restrict-ips.ip_policies", "ip_policies", Refused(1420)),
    place("endpoints", "secrets.get in an expression", "vault_secrets", Refused(23003)),
    place("endpoints", "secrets.get in a template", "vault_secrets", Refused(23003)),
    place("endpoints", "terminate-tls.mutual_tls_certificate_authorities", "certificate_authorities", Refused(1964)),
    place("endpoints", "upstream_tls.ca", "certificate_authorities", Refused(1964)),
    place("endpoints", "upstream_tls.client_certificate_id", "tls_certificates", Refused(1966)),
    place("endpoints", "url of a domain", "reserved_domains", Refused(446)),
    place("endpoints", "url of an address", "reserved_addrs", Refused(446)),
    place("event_subscriptions", "destination_ids", "event_destinations", Refused(5112)),
    place("grants", "grantee", "bot_users", Cascades),
    place("grants", "object_id", "vaults", Cascades),
    place("ip_policy_rules", "ip_policy_id", "ip_policies", Cascades),
    place("ip_restrictions", "ip_policy_ids", "ip_policies", Refused(1420)),
    place("reserved_domains", "certificate_id", "tls_certificates", Refused(1966)),
    place("ssh_credentials", "owner_id", "bot_users", Cascades),
    place("ssh_host_certificates", "ssh_certificate_authority_id", "ssh_certificate_authorities", Refused(1964)),
    place("ssh_user_certificates", "ssh_certificate_authority_id", "ssh_certificate_authorities", Refused(1964)),
    place("vault_secrets", "vault_id", "vaults", Refused(23003)),
];

/// A new object, and its body.
async fn named(rig: &Rig, to: &str) -> (String, Value) {
    named_by(rig, &rig.admin, to, 70).await
}

/// As [`named`], of a caller.
pub(super) async fn named_by(rig: &Rig, by: &Caller, to: &str, n: u32) -> (String, Value) {
    let body = match to {
        "tls_certificates" => certificates::leaf(&format!("named{n}.example")),
        "reserved_domains" => json!({"domain": format!("named{n}.example")}),
        _ => rig.sample_by(by, to, n).await,
    };
    let made = rig.call(by, "POST", &format!("/{to}"), body).await.body();
    let id = made["id"].as_str().unwrap();
    (format!("/{to}/{id}"), made)
}

/// The body of an object of a caller that refers in a field to `other`, which was made with `n`.
pub(super) async fn naming(
    rig: &Rig,
    by: &Caller,
    place: &ReferenceField,
    other: &Value,
    n: u32,
) -> Value {
    let (collection, field) = place.at;
    let id = &other["id"];
    let mut body = match field {
        "certificate_id" => json!({"domain": format!("named{n}.example")}),
        "url of a domain" => {
            json!({"url": format!("https://named{n}.example"), "upstream_url": "http://127.0.0.1:1"})
        }
        "url of an address" => {
            let url = format!("tcp://{}", other["addr"].as_str().unwrap());
            json!({"url": url, "upstream_url": "tcp://127.0.0.1:1"})
        }
        _ => {
            static SAMPLES: AtomicU32 = AtomicU32::new(50_000);
            let number = SAMPLES.fetch_add(1, Ordering::Relaxed);
            rig.sample_by(by, collection, number).await
        }
    };
    if collection == "alert_rules" {
        body["name"] = json!(format!("named {n}"));
        body["condition"] = json!({"type": "key_expiring", "within": "7d"});
    }
    if collection == "event_subscriptions" {
        body["sources"] = json!([{"type": "vault_created.v0"}]);
    }
    let policy = |phase: &str, rule: Value| Some(json!({ phase: [rule] }));
    let get = || {
        let (vault, name) = (&other["vault_name"], &other["name"]);
        format!("secrets.get({vault}, {name})")
    };
    let policy = match field {
        "restrict-ips.ip_policies" => policy(
            "on_tcp_connect",
            json!({"actions": [{"type": "restrict-ips", "config": {"ip_policies": [id]}}]}),
        ),
        "terminate-tls.mutual_tls_certificate_authorities" => policy(
            "on_tcp_connect",
            json!({"actions": [{
                "type": "terminate-tls",
                "config": {"mutual_tls_certificate_authorities": [id]},
            }]}),
        ),
        "secrets.get in an expression" => policy(
            "on_http_request",
            json!({
                "expressions": [format!("req.headers['x'][0] != {}", get())],
                "actions": [{"type": "deny"}],
            }),
        ),
        "secrets.get in a template" => policy(
            "on_http_request",
            json!({"actions": [{
                "type": "add-headers",
                "config": {"headers": {"x-key": format!("Bearer ${{{}}}", get())}},
            }]}),
        ),
        _ => None,
    };
    if let Some(option) = field.strip_prefix("upstream_tls.") {
        body["upstream_url"] = json!("https://127.0.0.1:1");
        body["upstream_tls"] = match option {
            "ca" => json!({ "ca": [id] }),
            option => json!({ option: id }),
        };
        return body;
    }
    match policy {
        Some(policy) => body["traffic_policy"] = policy,
        None if field.starts_with("url") => {}
        None if field.ends_with("_ids") => body[field] = json!([id]),
        None => body[field] = id.clone(),
    }
    body
}

#[tokio::test]
pub(super) async fn objects_in_use_are_not_deleted() {
    for place in PLACES {
        let rig = Rig::start().await;
        let (path, other) = named(&rig, place.to).await;
        let body = naming(&rig, &rig.admin, place, &other, 70).await;
        let made = rig.post(&format!("/{}", place.at.0), body).await;
        let Answered::Created(made) = made else {
            panic!("{:?} {made:?}", place.at);
        };
        let by = format!("/{}/{}", place.at.0, made["id"].as_str().unwrap());
        let Refused(code) = place.removal else {
            assert_eq!(rig.delete(&path).await, Answered::NoContent);
            assert!(rig.get(&by).await.is_absent(), "{:?}", place.at);
            continue;
        };
        let (before, seq) = (rig.get(&path).await, rig.events_after(0).await.1);
        let refused = rig.delete(&path).await;
        assert_eq!(refused.code(), Some(code), "{:?}", place.at);
        let Answered::Refused(class, ..) = refused else {
            unreachable!();
        };
        assert_eq!(class, culvert_base::Class::Invalid);
        assert_eq!(rig.get(&path).await, before);
        assert_eq!(rig.events_after(seq).await.0, Vec::<Value>::new());
        assert_eq!(rig.delete(&by).await, Answered::NoContent, "{:?}", place.at);
        assert_eq!(
            rig.delete(&path).await,
            Answered::NoContent,
            "{:?}",
            place.at
        );
    }
}

#[tokio::test]
async fn every_field_that_refers_to_an_object_is_in_the_table() {
    let has_row = |collection: &str, field: &str| {
        let mut rows = PLACES.iter().map(|place| place.at);
        rows.any(|at| at == (collection, field))
    };
    // Fields that refer to something other than a removable object.
    let others = [
        // The endpoint whose policy is analysed is not kept.
        ("", "endpoint_id"),
        // What a rule watches may be removed.
        ("alert_rules", "object_ids"),
        // IDs of Amazon and Azure.
        ("event_destinations", "tenant_id"),
        ("event_destinations", "client_id"),
    ];
    for operation in operations() {
        let Some(body) = operation.body else { continue };
        let mut settings = schemars::generate::SchemaSettings::draft2020_12();
        settings.inline_subschemas = true;
        let schema = (body.schema)(&mut settings.into_generator()).to_value();
        for field in schema["properties"].as_object().unwrap().keys() {
            let names = field.ends_with("_id") || field.ends_with("_ids");
            let at = (operation.collection, field.as_str());
            assert!(
                !names || others.contains(&at) || has_row(at.0, at.1),
                "{at:?} names an object: give it a row"
            );
        }
    }
    for action in culvert_edge_config::ACTIONS.sorted() {
        for (field, _) in action.references {
            let field = format!("{}.{field}", action.name);
            assert!(has_row("endpoints", &field), "{field}: give it a row");
        }
    }
    // The stored form of one object of each resource, and of each field.
    let rig = Rig::start().await;
    for ty in ALL.iter().filter(|ty| ty.life == Life::Configured) {
        let sample = rig.sample(ty.collection, 1).await;
        rig.post(&format!("/{}", ty.collection), sample)
            .await
            .body();
    }
    let mut found = BTreeSet::new();
    for ty in ALL {
        for document in rig.store.all(ty.kind).await.unwrap() {
            let fields = document.refs.iter().map(|one| one.field.to_string());
            found.extend(fields.map(|field| (ty.collection, field)));
        }
    }
    for (collection, field) in found {
        let is_known = has_row(collection, &field) || collection == "endpoints";
        assert!(is_known, "{collection} {field}: give it a row");
    }
}

/// A policy refers to a secret by names, which cannot change while it does.
#[tokio::test]
async fn secrets_used_by_a_policy_are_not_renamed() {
    let rig = Rig::start().await;
    let (path, secret) = named(&rig, "vault_secrets").await;
    let vault = format!("/vaults/{}", secret["vault"]["id"].as_str().unwrap());
    let row = PLACES
        .iter()
        .find(|place| place.to == "vault_secrets")
        .unwrap();
    let body = naming(&rig, &rig.admin, row, &secret, 70).await;
    let endpoint = rig.post("/endpoints", body.clone()).await.body();
    for path in [&path, &vault] {
        let renamed = rig.patch(path, json!({"name": "another"})).await;
        assert_eq!(renamed.code(), Some(23003), "{path}");
    }
    let same = json!({"name": secret["name"], "value": "another"});
    assert!(matches!(rig.patch(&path, same).await, Answered::Ok(_)));
    let endpoint = format!("/endpoints/{}", endpoint["id"].as_str().unwrap());
    // A policy without the reference releases it.
    let update = json!({"traffic_policy": ""});
    rig.patch(&endpoint, update).await.body();
    let renamed = rig.patch(&path, json!({"name": "another"})).await;
    assert!(matches!(renamed, Answered::Ok(_)));
    // A reference to a missing object is refused.
    let refused = rig
        .patch(&endpoint, json!({"traffic_policy": body["traffic_policy"]}))
        .await;
    assert_eq!(refused.code(), Some(2204));
}

#[tokio::test]
async fn a_certificate_must_cover_its_domain() {
    let rig = Rig::start().await;
    for (name, domain, fits) in [
        ("a.example", "a.example", true),
        ("A.Example", "a.example", true),
        ("b.example", "a.example", false),
        ("*.a.example", "x.a.example", true),
        ("*.a.example", "a.example", false),
        ("*.a.example", "y.x.a.example", false),
        ("*.a.example", "*.a.example", true),
        ("a.example", "*.a.example", false),
        ("*.a.example", "*.x.a.example", false),
        ("x.a.example", "a.example", false),
    ] {
        let certificate = rig
            .post("/tls_certificates", certificates::leaf(name))
            .await;
        let id = certificate.body()["id"].clone();
        let body = json!({"domain": domain, "certificate_id": id});
        let made = rig.post("/reserved_domains", body).await;
        let place = format!("{name} for {domain}: {made:?}");
        assert_eq!(matches!(made, Answered::Created(_)), fits, "{place}");
        let made = match fits {
            true => made,
            false => {
                assert_eq!(made.code(), Some(215), "{place}");
                let made = rig
                    .post("/reserved_domains", json!({"domain": domain}))
                    .await;
                let one = format!("/reserved_domains/{}", made_id(&made));
                let patched = rig.patch(&one, json!({"certificate_id": id})).await;
                assert_eq!(patched.code(), Some(215), "{place}");
                made
            }
        };
        let one = format!("/reserved_domains/{}", made_id(&made));
        assert_eq!(rig.delete(&one).await, Answered::NoContent);
    }
}

fn made_id(answered: &Answered) -> String {
    match answered {
        Answered::Created(body) => body["id"].as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Objects of a version that did not store references.
#[tokio::test]
async fn a_start_stores_missing_references_of_older_objects() {
    let rig = Rig::start().await;
    let mut named_paths = Vec::new();
    for place in PLACES
        .iter()
        .filter(|place| place.at.1.contains('.') || place.at.1 == "certificate_id")
    {
        if place.at.1 == "secrets.get in a template" {
            continue;
        }
        let (path, other) = named(&rig, place.to).await;
        let mut body = naming(&rig, &rig.admin, place, &other, 70).await;
        if place.at.0 == "endpoints" {
            body["url"] = json!(format!("https://n{}.culvert.localhost", named_paths.len()));
        }
        rig.post(&format!("/{}", place.at.0), body).await.body();
        named_paths.push((path, place.removal));
    }
    for kind in ["endpoint", "domain"] {
        for mut document in rig.store.all(kind).await.unwrap() {
            document.refs.clear();
            let mut form: Value = serde_json::from_str(&document.body).unwrap();
            if let Some(policy) = form["policy"].as_object_mut() {
                policy.remove("names");
            }
            document.body = form.to_string();
            let reported = AuditEvent::Suppress { reason: "a test" };
            rig.store
                .commit(Changes::replace(document, reported))
                .await
                .unwrap();
        }
    }
    for document in rig.store.all(host::KIND).await.unwrap() {
        let reported = AuditEvent::Suppress { reason: "a test" };
        rig.store
            .commit(Changes::remove(document.head, reported))
            .await
            .unwrap();
    }
    rig.store.meta_set("references", "").await.unwrap();
    let seal = Seal::new(&Secret::new("a master key of the tests".into()));
    relink::relink(&rig.store, &seal).await.unwrap();
    for (path, removal) in &named_paths {
        let Refused(code) = removal else {
            unreachable!()
        };
        assert_eq!(rig.delete(path).await.code(), Some(*code), "{path}");
    }
    let n_endpoints = rig.store.count("endpoint").await.unwrap();
    assert_eq!(rig.store.count(host::KIND).await.unwrap(), n_endpoints);
    // The second run writes nothing.
    let revision = rig.store.revision().await.unwrap();
    rig.store.meta_set("references", "").await.unwrap();
    relink::relink(&rig.store, &seal).await.unwrap();
    assert_eq!(rig.store.revision().await.unwrap(), revision);
}
