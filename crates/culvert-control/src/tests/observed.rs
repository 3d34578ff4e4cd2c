//! Resources that callers do not create: their views, and the refusal to create or change them.

use culvert_identity::application;
use culvert_resources::resource::{Life, ResourceType};

use crate::operations::resources::ALL;
use crate::tests::*;

/// A stored form of each, by collection.
fn stored_form(collection: &str, user_id: &str) -> Value {
    match collection {
        "alerts" => json!({
            "format": 1, "rule_id": "arl_1", "rule_name": "Errors", "condition": "error_rate",
            "severity": "warning", "state": "resolved", "summary": "Many requests fail.",
            "subject": {"kind": "endpoint", "id": "ep_1", "name": "https://x.example"},
            "owner_id": "usr_1", "value": 0.2, "threshold": 0.1,
            "fired_at": "2027-01-15T08:00:00Z", "resolved_at": "2027-01-15T09:00:00Z",
            "reason": "recovered", "repetition": 0, "sent_at": "2027-01-15T09:00:00Z",
            "destination_ids": [],
        }),
        "app/users" => json!({
            "format": 1,
            "identity_provider": {"name": "A provider", "url": "https://id.example"},
            "provider_user_id": "7", "username": "ann", "email": "ann@x.example", "name": "Ann",
            "last_active": "2027-01-15T08:00:00Z", "last_login": "2027-01-15T08:00:00Z",
        }),
        "app/sessions" => json!({
            "format": 1,
            "public_url": "https://x.culvert.localhost",
            "last_active": "2027-01-15T08:00:00Z", "expires_at": "2027-01-16T08:00:00Z",
            "user_agent": {
                "raw": "curl/8", "browser_name": "", "browser_version": "", "device_type": "",
                "os_name": "", "os_version": "",
            },
            "ip_address": "192.0.2.1", "user_id": user_id, "endpoint_id": null,
        }),
        "tunnel_sessions" => json!({
            "format": 1, "agent_version": "3.9", "credential_id": "cr_1", "principal_id": "usr_1",
            "principal_subject": "ann@x.example", "ip": "192.0.2.1",
            "ingress_server_ip": "192.0.2.2", "ingress_hostname": "connect.example",
            "user_agent": "agent/3.9", "metadata": "", "os": "linux", "arch": "amd64",
            "region": "", "transport": "muxado", "run": "agrun_1",
        }),
        "tunnels" => json!({
            "format": 1, "public_url": "https://x.culvert.localhost", "metadata": "",
            "proto": "https", "region": "", "session_id": "ts_1", "endpoint_id": "ep_1",
            "labels": {}, "forwards_to": "localhost:80",
        }),
        other => panic!("tell this function what one of {other} is stored as"),
    }
}

fn not_configured() -> impl Iterator<Item = &'static &'static ResourceType> {
    ALL.iter().filter(|ty| ty.life != Life::Configured)
}

/// Inserts one into the store. Refers to `user_id` where the resource refers to a user.
pub(super) async fn stored_one(rig: &Rig, ty: &ResourceType, user_id: &str) -> String {
    let form = stored_form(ty.collection, user_id);
    let id = rig
        .control
        .kernel
        .ids
        .next(&*rig.clock, &SeededEntropy::new(7));
    let refs = form
        .get("user_id")
        .and_then(Value::as_str)
        .map(|id| culvert_store::Ref::new("user_id", id, culvert_store::OnDelete::Cascade));
    let document = Document {
        head: Head {
            id: format!("{}_{id}", ty.id_prefix),
            kind: ty.kind.to_owned(),
            account: rig.admin.account.clone(),
            revision: 0,
            created_at: id.at(),
            updated_at: id.at(),
        },
        body: form.to_string(),
        keys: Vec::new(),
        refs: refs.into_iter().collect(),
        topics: Vec::new(),
    };
    let id = document.head.id.clone();
    let reported = AuditEvent::Suppress { reason: "a test" };
    rig.store
        .commit(Changes::insert(document, reported))
        .await
        .unwrap();
    id
}

#[tokio::test]
async fn observed_collections_are_empty_without_sessions() {
    let rig = Rig::start().await;
    for ty in not_configured() {
        let list = rig.get(&format!("/{}", ty.collection)).await.body();
        assert_eq!(
            list,
            json!({
                ty.list_field: [],
                "uri": format!("{BASE}/{}", ty.collection),
                "next_page_uri": null,
            })
        );
        let absent = format!("/{}/{}_{}", ty.collection, ty.id_prefix, "0".repeat(27));
        assert!(rig.get(&absent).await.is_absent());
        if ty.life == Life::Recorded {
            assert!(rig.delete(&absent).await.is_absent());
        }
        if ty.filter.is_none() {
            let path = format!("/{}?filter=true", ty.collection);
            assert_eq!(rig.get(&path).await.code(), Some(231));
        }
    }
}

#[test]
fn observed_objects_cannot_be_created_or_changed() {
    for ty in not_configured() {
        let methods: Vec<_> = operations()
            .iter()
            .filter(|operation| operation.collection == ty.collection)
            .map(|operation| (operation.name, operation.method.as_str()))
            .collect();
        let expected: &[_] = match ty.collection {
            "alerts" | "tunnels" => &[("get", "GET"), ("list", "GET")],
            "tunnel_sessions" => &[
                ("get", "GET"),
                ("list", "GET"),
                ("restart", "POST"),
                ("stop", "POST"),
                ("update_agent", "POST"),
            ],
            _ => &[("get", "GET"), ("list", "GET"), ("delete", "DELETE")],
        };
        assert_eq!(methods, expected);
    }
}

#[tokio::test]
async fn observed_objects_have_every_key_of_their_schema() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    let users = &application::user::TYPE;
    let user = stored_one(&rig, users, "").await;
    for ty in not_configured() {
        let id = stored_one(&rig, ty, &user).await;
        let one = format!("/{}/{id}", ty.collection);
        let shown = rig.get(&one).await.body();
        let mut generator = schemars::generate::SchemaSettings::draft2020_12()
            .for_serialize()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator();
        let schema = (ty.view_schema)(&mut generator).to_value();
        let mut required: Vec<_> = schema["required"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        required.sort_unstable();
        let mut keys: Vec<_> = shown.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(required, keys, "{}", ty.name);
        if ty.collection != "tunnels" {
            assert_eq!(shown["uri"], format!("{BASE}{one}"));
        }
        let list = rig.get(&format!("/{}", ty.collection)).await.body();
        assert_eq!(list[ty.list_field][0], shown);
        let foreign = rig.call(&stranger, "GET", &one, Value::Null).await;
        assert!(foreign.is_absent());
    }
    let filter = "/tunnel_sessions?filter=obj.os == 'linux' %26%26 obj.credential == 'cr_1'";
    let list = rig.get(filter).await.body();
    assert_eq!(list["tunnel_sessions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_application_user_is_deleted_with_its_sessions() {
    let rig = Rig::start().await;
    let (users, sessions) = (&application::user::TYPE, &application::session::TYPE);
    let user = stored_one(&rig, users, "").await;
    let other = stored_one(&rig, users, "").await;
    let first = stored_one(&rig, sessions, &user).await;
    stored_one(&rig, sessions, &user).await;
    let kept = stored_one(&rig, sessions, &other).await;
    let (_, start) = rig.events_after(0).await;
    let path = format!("/app/sessions/{first}");
    let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
    let denied = rig.call(&reader, "DELETE", &path, Value::Null).await;
    assert!(denied.is_absent(), "it belongs to admins");
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    assert!(rig.delete(&path).await.is_absent());
    let path = format!("/app/users/{user}");
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    let left = rig.get("/app/sessions").await.body();
    let left = left["application_sessions"].as_array().unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["id"], *kept);
    assert_eq!(left[0]["application_user"]["id"], *other);
    let (reported, _) = rig.events_after(start).await;
    let kinds: Vec<_> = reported.iter().map(|event| &event["event_type"]).collect();
    let session = "application_session_deleted.v0";
    assert_eq!(kinds, [session, session, "application_user_deleted.v0"]);
}

#[tokio::test]
async fn operations_on_unknown_sessions_are_not_found() {
    let rig = Rig::start().await;
    let id = format!("ts_{}", "0".repeat(27));
    for name in ["restart", "stop", "update"] {
        for id in [&*id, "nonsense"] {
            let path = format!("/tunnel_sessions/{id}/{name}");
            for body in [Value::Null, json!({}), json!({"id": id})] {
                assert!(rig.post(&path, body).await.is_absent(), "{path}");
            }
            let answered = rig.post(&path, json!({"nope": 1})).await;
            assert_eq!(answered.code(), Some(214));
        }
    }
}
