//! Rules that hold for every resource, in a loop over the table.

use std::path::Path;

use culvert_event_config::event_kinds::{self, AUDITED, AuditedResource};
use culvert_resources::access::rights::See;
use culvert_resources::resource::{Audited, Life, ResourceType};

use crate::catalogue::kinds;
use crate::operations::resources::ALL;
use crate::tests::*;

/// The resources whose objects callers create.
fn configured() -> impl Iterator<Item = &'static &'static ResourceType> {
    ALL.iter().filter(|ty| ty.life == Life::Configured)
}

/// Whether only admins change the resource.
fn is_admins(ty: &ResourceType) -> bool {
    matches!(ty.name, "bot_user" | "service_user")
}

#[test]
fn every_resource_with_events_is_in_the_table() {
    let all = ALL.iter();
    let audited = all
        .filter(|ty| ty.audited == Audited::Own)
        .map(|ty| AuditedResource {
            name: ty.name,
            prefixes: ty.prefixes,
            // Events of endpoints show the traffic policy.
            is_private: !ty.rights.see.has_public_events() || ty.name == "endpoint",
        });
    assert_eq!(audited.collect::<Vec<_>>(), AUDITED);
}

#[test]
fn all_kinds_of_events_are_in_the_catalogue() {
    let mut named: Vec<String> = event_kinds::names().collect();
    named.sort();
    let mut known: Vec<String> = kinds().into_iter().map(|kind| kind.name).collect();
    known.sort();
    assert_eq!(named, known);
}

#[test]
fn every_collection_has_scopes() {
    for ty in ALL {
        assert!(Scope::of(ty.collection).is_some(), "{}", ty.collection);
    }
}

#[tokio::test]
async fn each_resource_is_created_updated_and_deleted_with_events() {
    let rig = Rig::start().await;
    for ty in configured() {
        let collection = format!("/{}", ty.collection);
        let sample = rig.sample(ty.collection, 1).await;
        let (_, start) = rig.events_after(0).await;
        let made = rig.post(&collection, sample).await;
        let Answered::Created(made) = made else {
            panic!("{made:?}");
        };
        let id = made["id"].as_str().unwrap().to_owned();
        assert!(id.starts_with(&format!("{}_", ty.id_prefix)), "{id}");
        let uri = format!("{BASE}/{}/{id}", ty.collection);
        assert_eq!(made["uri"], *uri);
        assert_eq!(made["created_at"], "2027-01-15T08:00:00Z");

        let one = format!("{collection}/{id}");
        let shown = rig.get(&one).await.body();
        let mut expected = made.clone();
        for once in ["token", "invitation_url"] {
            if expected.get(once).is_some() {
                expected[once] = Value::Null;
            }
        }
        assert_eq!(shown, expected, "{}", ty.name);

        let list = rig.get(&collection).await.body();
        assert_eq!(list["uri"], format!("{BASE}{collection}"));
        assert_eq!(list["next_page_uri"], Value::Null);
        assert!(
            list[ty.list_field].as_array().unwrap().contains(&shown),
            "{}",
            ty.name
        );

        let change = match ty.collection {
            "bot_users" | "service_users" => json!({"active": false, "id": "ignored"}),
            "audit_holds" => json!({"reason": "changed", "until": null, "id": "ignored"}),
            "users" => json!({"role": "read_only", "active": null, "id": "ignored"}),
            _ => json!({"description": "changed", "metadata": null, "id": "ignored"}),
        };
        let changed = rig.patch(&one, change).await;
        assert!(matches!(changed, Answered::Ok(_)), "{changed:?}");
        let changed = changed.body();
        assert_eq!(rig.get(&one).await.body(), changed);
        assert_ne!(changed, shown);

        assert_eq!(rig.delete(&one).await, Answered::NoContent);
        for (method, body) in [
            ("GET", Value::Null),
            ("PATCH", json!({})),
            ("DELETE", Value::Null),
        ] {
            let answered = rig.call(&rig.admin, method, &one, body).await;
            assert!(answered.is_absent(), "{method} {one} {answered:?}");
        }

        let (reported, _) = rig.events_after(start).await;
        let kinds: Vec<_> = reported
            .iter()
            .map(|event| event["event_type"].as_str().unwrap())
            .collect();
        let (reported, kinds): (Vec<_>, Vec<_>) = reported
            .iter()
            .zip(kinds)
            .filter(|(_, kind)| !kind.starts_with("invitation_"))
            .unzip();
        let verbs = ["created", "updated", "deleted"];
        let expected: Vec<_> = verbs
            .iter()
            .map(|verb| format!("{}_{verb}.v0", ty.name))
            .collect();
        assert_eq!(kinds, expected);
        for (event, view) in reported.iter().zip([&shown, &changed, &changed]) {
            let mut object = view.clone();
            for name in ty.not_in_events {
                // Some are in a view only with `include`.
                object.as_object_mut().unwrap().remove(*name);
            }
            assert_eq!(event["object"], object);
            let is_update = event["event_type"].as_str().unwrap().contains("_updated");
            assert_eq!(event.get("previous").is_some(), is_update, "{event}");
            for (name, value) in event["previous"].as_object().into_iter().flatten() {
                // A secret that was changed, and a difference of texts, are no fields as they were.
                if value != "[changed]" && !name.ends_with("_diff") {
                    assert_eq!((&shown[name], shown[name] == changed[name]), (value, false));
                }
            }
            assert_eq!(event["account_id"], *rig.admin.account);
            assert_eq!(
                event["principal"],
                json!({
                    "id": rig.admin.owner_id,
                    "subject": "admin@culvert.localhost",
                    "source": "API",
                    "credential": {
                        "id": rig.admin.key_id,
                        "uri": format!("{BASE}/api_keys/{}", rig.admin.key_id),
                    },
                })
            );
        }
    }
}

#[tokio::test]
async fn objects_of_other_accounts_look_absent() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    for ty in configured() {
        let collection = format!("/{}", ty.collection);
        let made = rig
            .post(&collection, rig.sample(ty.collection, 2).await)
            .await
            .body();
        let foreign = format!("{collection}/{}", made["id"].as_str().unwrap());
        let absent = format!("{collection}/{}_{}", ty.id_prefix, "0".repeat(27));
        let other_kind = format!("{collection}/xx_{}", "0".repeat(27));
        for path in [&foreign, &absent, &other_kind, &format!("{collection}/..")] {
            for (method, body) in [
                ("GET", Value::Null),
                ("PATCH", json!({})),
                ("DELETE", Value::Null),
            ] {
                let answered = rig.call(&stranger, method, path, body).await;
                assert!(answered.is_absent(), "{method} {path} {answered:?}");
            }
        }
        let list = rig
            .call(&stranger, "GET", &collection, Value::Null)
            .await
            .body();
        let items = list[ty.list_field].as_array().unwrap();
        assert!(
            !items.iter().any(|item| item["id"] == made["id"]),
            "{}",
            ty.name
        );
        assert_eq!(rig.get(&foreign).await.body()["id"], made["id"]);
    }
}

#[tokio::test]
pub(super) async fn refused_calls_change_nothing_and_make_no_event() {
    let rig = Rig::start().await;
    let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
    for ty in configured() {
        let collection = format!("/{}", ty.collection);
        let sample = rig.sample(ty.collection, 3).await;
        let made = rig.post(&collection, sample.clone()).await.body();
        let one = format!("{collection}/{}", made["id"].as_str().unwrap());
        let before = rig.get(&one).await.body();
        let n_before = rig.get(&collection).await.body()[ty.list_field]
            .as_array()
            .unwrap()
            .len();
        let (_, start) = rig.events_after(0).await;

        for (method, path, known) in [("POST", &collection, &sample), ("PATCH", &one, &json!({}))] {
            let mut unknown = known.clone();
            unknown["created_at"] = json!("2020-01-01T00:00:00Z");
            let answered = rig.call(&rig.admin, method, path, unknown).await;
            assert_eq!(answered.code(), Some(214), "{method} {path}");
            let Answered::Refused(_, _, message) = answered else {
                unreachable!();
            };
            assert!(
                message.contains("`created_at`") && message.contains("valid fields: "),
                "{message}"
            );
        }
        // Field names are checked before the object is read; values after the object and the permission.
        let absent = format!("{collection}/{}_{}", ty.id_prefix, "0".repeat(27));
        let answered = rig.patch(&absent, json!({"nope": 1})).await;
        assert_eq!(answered.code(), Some(214));
        let text = match ty.name {
            _ if sample.get("name").is_some() => "name",
            "user" => "role",
            "audit_hold" => "reason",
            _ => "description",
        };
        for wrong in [json!(5), json!(true), json!(["x"]), json!({"x": 1})] {
            for (method, path, known) in
                [("POST", &collection, &sample), ("PATCH", &one, &json!({}))]
            {
                let mut body = known.clone();
                body[text] = wrong.clone();
                let answered = rig.call(&rig.admin, method, path, body).await;
                assert_eq!(answered.code(), Some(215), "{method} {path}");
            }
        }
        for (field, length) in [("description", 255), ("metadata", 4096), ("name", 255)] {
            if before.get(field).is_none() || ty.name == "endpoint" && field == "name" {
                continue;
            }
            // Limits count bytes, not characters; the start of each name is different.
            let letter = if field == "name" && !is_admins(ty) {
                // Names in expressions are ASCII.
                "ee"
            } else {
                "é"
            };
            let text = format!("{}{}", ty.name, letter.repeat(length / 2 - ty.name.len()));
            let fits = json!({ field: format!("{text}{}", "x".repeat(length - text.len())) });
            let too_long =
                json!({ field: format!("{text}{}", "x".repeat(length + 1 - text.len())) });
            assert!(matches!(rig.patch(&one, fits).await, Answered::Ok(_)));
            let code = too_long_code(ty.name, field);
            let answered = rig.patch(&one, too_long.clone()).await;
            assert_eq!(answered.code(), Some(code), "{} {field}", ty.name);
            assert!(rig.patch(&absent, too_long.clone()).await.is_absent());
            let readers = rig.call(&reader, "PATCH", &one, too_long).await;
            let forbidden = if is_admins(ty) { 4111 } else { 635 };
            match is_private(ty) {
                true => assert!(readers.is_absent(), "{readers:?}"),
                false => assert_eq!(readers.code(), Some(forbidden)),
            }
        }
        let (_, after_fits) = rig.events_after(start).await;
        let before = rig.get(&one).await.body();
        let forbidden = if is_admins(ty) { 4111 } else { 635 };
        for (method, path) in [("POST", &collection), ("PATCH", &one), ("DELETE", &one)] {
            let body = if method == "POST" {
                sample.clone()
            } else {
                Value::Null
            };
            let answered = rig.call(&reader, method, path, body).await;
            match is_private(ty) && method != "POST" {
                true => assert!(answered.is_absent(), "{method} {path} {answered:?}"),
                false => assert_eq!(answered.code(), Some(forbidden), "{method} {path}"),
            }
        }
        let shown = rig.call(&reader, "GET", &one, Value::Null).await;
        match (is_private(ty), ty.rights.see) {
            (true, _) => assert!(shown.is_absent(), "{one} {shown:?}"),
            (false, See::Outline) => {
                let shown = shown.body();
                assert_eq!(keys(&shown), keys(&before));
                for field in ["id", "description"] {
                    assert_eq!(shown[field], before[field]);
                }
            }
            (false, _) => assert_eq!(shown.body(), before),
        }
        let list = rig.get(&collection).await.body();
        assert_eq!(list[ty.list_field].as_array().unwrap().len(), n_before);
        let (reported, _) = rig.events_after(after_fits).await;
        assert_eq!(reported, Vec::<Value>::new(), "{}", ty.name);
    }
}

fn too_long_code(name: &str, field: &str) -> u16 {
    match (name, field) {
        ("api_key" | "ssh_public_key" | "tunnel_credential", "description") => 604,
        ("api_key" | "ssh_public_key" | "tunnel_credential", _) => 605,
        ("bot_user" | "service_user", _) => 4110,
        ("certificate_authority", "description") => 1914,
        ("certificate_authority", _) => 1915,
        ("ssh_certificate_authority", "description") => 1937,
        ("ssh_certificate_authority", _) => 1938,
        ("ssh_host_certificate", "description") => 1945,
        ("ssh_host_certificate", _) => 1946,
        ("ssh_user_certificate", "description") => 1947,
        ("ssh_user_certificate", _) => 1948,
        ("domain", "description") => 420,
        ("domain", _) => 421,
        ("endpoint", "description") => 18012,
        ("endpoint", _) => 18013,
        ("ip_policy" | "ip_restriction", _) | ("ip_policy_rule", "metadata") => 215,
        ("ip_policy_rule", _) => 1421,
        ("tcp_address", "description") => 504,
        ("tcp_address", _) => 505,
        ("tls_certificate", "description") => 1916,
        ("tls_certificate", _) => 1917,
        ("secret", "name") => 24002,
        ("vault", "name") => 23002,
        ("agent_ingress", "description") => 6700,
        ("agent_ingress", _) => 6701,
        ("alert_rule" | "audit_hold" | "grant" | "kubernetes_operator" | "secret" | "vault", _) => {
            215
        }
        _ => 5140,
    }
}

#[tokio::test]
async fn views_have_the_keys_of_their_schemas_and_events_those_of_theirs() {
    let rig = Rig::start().await;
    for ty in configured() {
        let collection = format!("/{}", ty.collection);
        let made = rig
            .post(&collection, rig.sample(ty.collection, 4).await)
            .await
            .body();
        let mut generator = schemars::generate::SchemaSettings::draft2020_12()
            .for_serialize()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator();
        let schema = (ty.view_schema)(&mut generator).to_value();
        assert_eq!(required(&schema), keys(&made), "{}", ty.name);
        let kind = format!("{}_created.v0", ty.name);
        let Some(kind) = catalogue().find(&kind) else {
            panic!("{} has no events", ty.name);
        };
        let expected: Vec<_> = keys(&made)
            .into_iter()
            .filter(|key| !ty.not_in_events.contains(&key.as_str()))
            .collect();
        assert_eq!(
            required(&kind.json_schema()["properties"]["object"]),
            expected
        );
    }
}

fn keys(object: &Value) -> Vec<String> {
    let mut keys: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
    keys.sort();
    keys
}

fn required(schema: &Value) -> Vec<String> {
    let required = schema["required"].as_array().unwrap();
    let mut names: Vec<_> = required
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_event_lists_of_the_contract_are_the_fields_of_the_events() {
    let rig = Rig::start().await;
    for (collection, fields) in [
        ("api_keys", "created_at description id metadata token uri"),
        (
            "credentials",
            "acl created_at description id metadata owner_id token uri",
        ),
        (
            "certificate_authorities",
            "ca_pem created_at description extended_key_usages id key_usages metadata not_after not_before subject_common_name uri",
        ),
        (
            "event_destinations",
            "created_at description format id metadata target uri",
        ),
        (
            "event_subscriptions",
            "created_at description destinations id metadata sources uri",
        ),
        ("ip_policies", "created_at description id metadata uri"),
        (
            "ip_policy_rules",
            "action cidr created_at description id ip_policy metadata uri",
        ),
        (
            "ip_restrictions",
            "created_at description enforced id ip_policies metadata type uri",
        ),
        (
            "ssh_certificate_authorities",
            "created_at description id key_type metadata public_key uri",
        ),
        (
            "ssh_credentials",
            "acl created_at description id metadata owner_id public_key uri",
        ),
        (
            "ssh_host_certificates",
            "certificate created_at description id key_type metadata principals public_key ssh_certificate_authority_id uri valid_after valid_until",
        ),
        (
            "ssh_user_certificates",
            "certificate created_at critical_options description extensions id key_type metadata principals public_key ssh_certificate_authority_id uri valid_after valid_until",
        ),
        (
            "reserved_domains",
            "acme_challenge_cname_target certificate certificate_management_policy certificate_management_status cname_target created_at description domain id metadata region uri",
        ),
        (
            "tls_certificates",
            "certificate_pem created_at description extended_key_usages id issued_at issuer_common_name key_usages metadata not_after not_before private_key_type serial_number subject_alternative_names subject_common_name subject_country subject_locality subject_organization subject_organizational_unit subject_province uri",
        ),
        (
            "vaults",
            "created_at created_by description id last_updated_by metadata name updated_at uri",
        ),
        (
            "vault_secrets",
            "created_at created_by description id last_updated_by metadata name updated_at uri vault vault_name",
        ),
    ] {
        let path = format!("/{collection}");
        let sample = rig.sample(collection, 5).await;
        let (_, start) = rig.events_after(0).await;
        rig.post(&path, sample).await.body();
        let (reported, _) = rig.events_after(start).await;
        assert_eq!(keys(&reported[0]["object"]).join(" "), fields);
        assert_eq!(reported[0].as_object().unwrap().len(), 6);
    }
}

#[tokio::test]
async fn the_root_lists_every_collection_and_self_shows_the_caller() {
    let rig = Rig::start().await;
    let root = rig.get("/").await.body();
    assert_eq!(root["uri"], format!("{BASE}/"));
    for ty in ALL {
        let uri = format!("{BASE}/{}", ty.collection);
        assert_eq!(root["subresource_uris"][ty.collection], *uri);
    }
    let oneself = rig.get("/self").await.body();
    assert_eq!(oneself["user"], "admin@culvert.localhost");
    assert_eq!(oneself["api_key"]["id"], *rig.admin.key_id);
    assert_eq!(oneself["api_key"]["token"], Value::Null);
    assert_eq!(
        keys(&oneself["account"]).join(" "),
        "created_at enforce_sso id min_agent_version min_api_version name suspended traffic_full_capture user_mfa_required"
    );
    assert_eq!(oneself["account"]["id"], *rig.admin.account);
}

#[test]
fn every_resource_is_in_the_table() {
    fn visit(folder: &Path, module: &str) -> usize {
        let mut n_found = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let module = match name {
                "mod" => module.to_owned(),
                _ => format!("{module}::{name}"),
            };
            if path.is_dir() {
                n_found += visit(&path, &module);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let is_type =
                |line: &str| line.starts_with("pub") && line.contains(" static TYPE: ResourceType");
            if text.lines().any(is_type) {
                n_found += 1;
                let list = include_str!("../operations/resources.rs");
                assert!(list.contains(&format!("    &{module}::TYPE,")), "{module}");
            }
        }
        n_found
    }
    let mut n_found = 0;
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in std::fs::read_dir(&crates).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = match name.as_str() {
            "culvert-control" => "crate".to_owned(),
            _ => name.replace('-', "_"),
        };
        n_found += visit(&crates.join(&name).join("src"), &module);
    }
    assert_eq!(n_found, ALL.len());
}

/// Operations of resources beyond the five.
const N_FURTHER: usize = 33;

#[test]
fn operations_have_one_path_and_method_each() {
    let mut seen = std::collections::HashSet::new();
    for operation in operations() {
        assert!(
            seen.insert((operation.method, &operation.path)),
            "{operation:?}"
        );
        assert!(operation.doc.ends_with('.'), "{operation:?}");
    }
    let five = ALL.iter().map(|ty| match ty.life {
        Life::Configured => 5,
        Life::Recorded => 3,
        Life::Observed => 2,
    });
    // Six of the root, six of events, two of statistics, the list of nodes, reports of leaked tokens, and two of the rules
    // of keys.
    let n_others = 18;
    assert_eq!(seen.len(), five.sum::<usize>() + N_FURTHER + n_others);
}

/// A body's schema lists exactly the fields that the operation accepts.
#[tokio::test]
async fn request_schemas_name_the_accepted_fields() {
    let rig = Rig::start().await;
    for operation in operations() {
        let Some(body) = operation.body else {
            continue;
        };
        let mut settings = schemars::generate::SchemaSettings::draft2020_12();
        settings.inline_subschemas = true;
        let schema = (body.schema)(&mut settings.into_generator()).to_value();
        assert_eq!(schema["additionalProperties"], false, "{}", operation.path);
        let properties = schema["properties"].as_object().unwrap();
        let required = schema.get("required").and_then(Value::as_array).is_some();
        assert_eq!(required, body.required, "{}", operation.path);
        let path = operation.path.replace("{id}", "x").replace("{type}", "y");
        let method = operation.method.as_str();
        let answered = rig
            .call(&rig.admin, method, &path, json!({"nope": 1}))
            .await;
        let Answered::Refused(_, Some(214), message) = answered else {
            panic!("{method} {path} {answered:?}");
        };
        let mut listed: Vec<_> = match message.trim_end_matches('.').split_once("valid fields: ") {
            Some((_, names)) => names.split(", ").collect(),
            None => Vec::new(),
        };
        if method == "PATCH" || listed.is_empty() {
            listed.push("id");
        }
        listed.sort_unstable();
        let names: Vec<_> = properties.keys().map(String::as_str).collect();
        assert_eq!(names, listed, "{method} {path}");
        for property in properties.values() {
            assert!(property.get("default").is_none() && property.get("description").is_some());
        }
    }
}

/// Whether an object does not exist for callers without the right to see it.
fn is_private(ty: &ResourceType) -> bool {
    matches!(ty.rights.see, See::Owner | See::Parties)
}
