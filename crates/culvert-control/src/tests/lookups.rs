//! Objects that are found by their names, while objects are created, renamed and deleted in random orders.

use std::collections::BTreeMap;

use culvert_agents::ingress;
use culvert_base::Entropy;
use culvert_cel::{Value as CelValue, ValueRef};
use culvert_certificates::ssh::{PublicKey, public_key};
use culvert_endpoints::traffic_policy::Compiled;
use culvert_endpoints::traffic_policy::model::StoredPolicy;
use culvert_endpoints::vault::secret;
use culvert_policy::Scheme;

use crate::tests::*;

/// A random sequence.
struct Choices(SeededEntropy);

impl Choices {
    fn below(&self, count: usize) -> usize {
        let entropy: &dyn Entropy = &self.0;
        let [byte] = entropy.bytes();
        usize::from(byte) % count
    }

    fn of<'n>(&self, names: &'n [String]) -> &'n String {
        &names[self.below(names.len())]
    }
}

/// A kind whose objects have unique names that callers choose.
struct NamedKind {
    collection: &'static str,
    names: Vec<String>,
    /// A new object, whose name is `NAME`.
    body: Value,
    /// The field with the name, if it can be changed.
    renamed_by: Option<&'static str>,
}

impl NamedKind {
    fn new(collection: &'static str, names: [&str; 3], body: Value) -> Self {
        Self {
            collection,
            names: names.map(str::to_owned).into(),
            body,
            renamed_by: None,
        }
    }

    fn renamed_by(self, field: &'static str) -> Self {
        Self {
            renamed_by: Some(field),
            ..self
        }
    }

    /// The body of a new object with this name.
    fn body(&self, name: &str) -> Value {
        serde_json::from_str(&self.body.to_string().replace("NAME", name)).unwrap()
    }

    async fn all(rig: &Rig) -> Vec<Self> {
        let vault = rig.post("/vaults", json!({"name": "v"})).await.body();
        let policy = rig.ip_policy().await;
        let keys = [ssh::new_key(), ssh::new_key(), ssh::new_key()];
        let words = ["a", "b", "c"];
        let hosts = ["a.example", "b.example", "c.example"];
        let of = Self::new;
        vec![
            of("vaults", words, json!({"name": "NAME"})).renamed_by("name"),
            of(
                "vault_secrets",
                words,
                json!({"name": "NAME", "value": "x", "vault_id": vault["id"]}),
            )
            .renamed_by("name"),
            of("bot_users", words, json!({"name": "NAME"})).renamed_by("name"),
            of("users", words, json!({"email": "NAME@x.example"})),
            of("reserved_domains", hosts, json!({"domain": "NAME"})),
            of(
                "agent_ingresses",
                hosts,
                json!({"domain": "connect.NAME"}),
            ),
            of(
                "endpoints",
                words,
                json!({"url": "https://NAME.culvert.localhost", "upstream_url": "http://127.0.0.1:1"}),
            )
            .renamed_by("url"),
            of(
                "ip_policy_rules",
                ["192.0.2.1", "192.0.2.2", "192.0.2.3"],
                json!({"cidr": "NAME/32", "action": "allow", "ip_policy_id": policy}),
            )
            .renamed_by("cidr"),
            of(
                "ip_restrictions",
                ["dashboard", "agent", "endpoints"],
                json!({"type": "NAME", "ip_policy_ids": [policy]}),
            ),
            of(
                "kubernetes_operators",
                words,
                json!({
                    "deployment": {"name": "NAME", "namespace": "x"},
                    "metadata": json!({"namespace.uid": "u"}).to_string(),
                }),
            ),
            of(
                "ssh_credentials",
                keys.each_ref().map(String::as_str),
                json!({"public_key": "NAME"}),
            ),
        ]
    }

    /// The ID of the object that other parts of the program find by this name; `""` if they do not show it. The outer
    /// `None`: nothing looks such objects up but for creations and renames.
    async fn found(&self, rig: &Rig, name: &str) -> Option<Option<String>> {
        let store = &rig.store;
        let id_of = |found: Option<Document>| found.map(|document| document.head.id);
        let given = async |path: &str, body: Value, field: &str| match rig.post(path, body).await {
            Answered::Created(made) => {
                let id = made["id"].as_str().unwrap();
                let deleted = rig.delete(&format!("{path}/{id}")).await;
                assert_eq!(deleted, Answered::NoContent);
                Some(made[field]["id"].as_str().unwrap().to_owned())
            }
            _ => None,
        };
        Some(match self.collection {
            "vaults" => {
                let body = json!({"name": "s", "value": "x", "vault_name": name});
                given("/vault_secrets", body, "vault").await
            }
            "vault_secrets" => {
                let account = &rig.admin.account;
                let found = secret::find(store, account, "v", name).await;
                id_of(found.unwrap())
            }
            "users" => {
                let body = json!({"owner_id": format!("{name}@x.example")});
                let code = rig.post("/credentials", body).await.code();
                // An invited user is not active yet.
                (code != Some(634)).then(String::new)
            }
            "reserved_domains" => {
                let url = format!("https://{name}");
                let body = json!({"url": url, "upstream_url": "http://127.0.0.1:1"});
                given("/endpoints", body, "domain").await
            }
            "agent_ingresses" => {
                let found = ingress::find(store, &format!("connect.{name}")).await;
                id_of(found.unwrap())
            }
            "ssh_credentials" => {
                let key = PublicKey::parse(name).unwrap();
                let found = public_key::find(store, &key.fingerprint, false).await;
                id_of(found.unwrap())
            }
            _ => return None,
        })
    }
}

#[tokio::test]
async fn a_name_finds_the_object_that_has_it_now() {
    let rig = Rig::start().await;
    for kind in NamedKind::all(&rig).await {
        let choices = Choices(SeededEntropy::new(11));
        let collection = format!("/{}", kind.collection);
        let mut ids: BTreeMap<String, String> = BTreeMap::new();
        for step in 0..30 {
            let name = choices.of(&kind.names);
            let path = ids.get(name).map(|id| format!("{collection}/{id}"));
            let what = format!("{} {step}: {name} among {ids:?}", kind.collection);
            match (choices.below(3), path) {
                (0, Some(path)) => {
                    assert_eq!(rig.delete(&path).await, Answered::NoContent, "{what}");
                    assert!(rig.get(&path).await.is_absent(), "{what}");
                    ids.remove(name);
                }
                (1, Some(path)) if let Some(field) = kind.renamed_by => {
                    let other = choices.of(&kind.names);
                    let change = json!({field: kind.body(other)[field]});
                    let changed = rig.patch(&path, change).await;
                    let is_free = other == name || !ids.contains_key(other);
                    match changed {
                        Answered::Ok(_) if is_free => {
                            let id = ids.remove(name).unwrap();
                            ids.insert(other.clone(), id);
                        }
                        Answered::Refused(..) if !is_free => {}
                        other => panic!("{what}: {other:?}"),
                    }
                }
                _ => match rig.post(&collection, kind.body(name)).await {
                    Answered::Created(made) if !ids.contains_key(name) => {
                        ids.insert(name.clone(), made["id"].as_str().unwrap().to_owned());
                    }
                    Answered::Refused(..) if ids.contains_key(name) => {}
                    other => panic!("{what}: {other:?}"),
                },
            }
            for name in &kind.names {
                let Some(found) = kind.found(&rig, name).await else {
                    break;
                };
                let expected = ids.get(name).map(|id| match kind.collection {
                    "users" => "",
                    _ => id,
                });
                assert_eq!(found.as_deref(), expected, "{what}: {name}");
            }
        }
        for id in ids.values() {
            rig.delete(&format!("{collection}/{id}")).await;
        }
    }
}

/// A secret of the model.
#[derive(Debug)]
struct Held {
    vault: String,
    name: String,
    value: String,
}

#[tokio::test]
async fn a_secret_is_found_by_the_current_names_of_its_vault_and_itself() {
    const STEPS: usize = 120;
    let rig = Rig::start().await;
    let choices = Choices(SeededEntropy::new(5));
    let names = ["a", "b"].map(str::to_owned);
    // As the edge has them, for a policy that was compiled before.
    let account = rig.store.get(Account::KIND, &rig.admin.account).await;
    let head = Head {
        account: rig.admin.account.clone(),
        ..account.unwrap().unwrap().head
    };
    let stored = StoredPolicy {
        shown: "on_http_request: [{actions: [{type: log, config: {metadata: {a: \"${secrets.get('a', 'a')}\"}}}]}]"
            .to_owned(),
        sealed: None,
        names: Vec::new(),
        forwards_to: Default::default(),
        secrets_by: String::new(),
        warnings: Vec::new(),
    };
    let mut compiled = Compiled::new(Arc::clone(&rig.control.endpoints.policies.logins));
    let seal = &rig.control.kernel.seal;
    let owner = (&head, &*rig.admin.owner_id);
    let policy = compiled
        .policy(seal, owner, &stored, Scheme::Http, true)
        .unwrap();
    let mut vaults: BTreeMap<String, String> = BTreeMap::new();
    let mut secrets: BTreeMap<String, Held> = BTreeMap::new();
    for step in 0..STEPS {
        let (name, other) = (choices.of(&names), choices.of(&names));
        let (vault, secret) = (vaults.get(name).cloned(), choices.below(4));
        let secret = secrets.keys().nth(secret).cloned();
        let what = format!("{step}: {name}, {other}, {vaults:?}, {secrets:?}");
        let value = format!("value {step}");
        match (choices.below(7), vault, secret) {
            (0, Some(id), _) => {
                let is_empty = !secrets.values().any(|held| held.vault == id);
                let deleted = rig.delete(&format!("/vaults/{id}")).await;
                assert_eq!(deleted == Answered::NoContent, is_empty, "{what}");
                if is_empty {
                    vaults.remove(name);
                }
            }
            (1, Some(id), _) => {
                let body = json!({"name": other});
                let renamed = rig.patch(&format!("/vaults/{id}"), body).await;
                let is_free = other == name || !vaults.contains_key(other);
                assert_eq!(matches!(renamed, Answered::Ok(_)), is_free, "{what}");
                if is_free {
                    vaults.remove(name);
                    vaults.insert(other.clone(), id);
                }
            }
            (2, _, Some(id)) => {
                let deleted = rig.delete(&format!("/vault_secrets/{id}")).await;
                assert_eq!(deleted, Answered::NoContent, "{what}");
                secrets.remove(&id);
            }
            (3, _, Some(id)) => {
                let body = json!({"name": name, "value": value});
                let changed = rig.patch(&format!("/vault_secrets/{id}"), body).await;
                let vault = secrets[&id].vault.clone();
                let is_other = |(other, held): (&String, &Held)| {
                    *other != id && held.vault == vault && held.name == *name
                };
                let is_free = !secrets.iter().any(is_other);
                assert_eq!(matches!(changed, Answered::Ok(_)), is_free, "{what}");
                if is_free {
                    let name = name.clone();
                    secrets.insert(id, Held { vault, name, value });
                }
            }
            (4, None, _) => {
                let made = rig.post("/vaults", json!({"name": name})).await.body();
                vaults.insert(name.clone(), made["id"].as_str().unwrap().to_owned());
            }
            (_, vault, _) => {
                let body = json!({"name": other, "value": value, "vault_name": name});
                let made = rig.post("/vault_secrets", body).await;
                let taken = |id: &String| {
                    let mut all = secrets.values();
                    all.any(|held| held.vault == *id && held.name == *other)
                };
                match (made, vault) {
                    (Answered::Created(made), Some(vault)) if !taken(&vault) => {
                        let id = made["id"].as_str().unwrap().to_owned();
                        let name = other.clone();
                        secrets.insert(id, Held { vault, name, value });
                    }
                    (Answered::Refused(..), vault) if vault.as_ref().is_none_or(taken) => {}
                    (made, _) => panic!("{what}: {made:?}"),
                }
            }
        }
        compiled.refresh(&rig.store, seal).await.unwrap();
        let CelValue::Map(seen) = policy.secrets() else {
            panic!("{what}");
        };
        for vault in &names {
            for name in &names {
                let is_it = |(_, held): &(&String, &Held)| {
                    vaults.get(vault) == Some(&held.vault) && held.name == *name
                };
                let expected = secrets.iter().find(is_it);
                let account = &rig.admin.account;
                let found = secret::find(&rig.store, account, vault, name).await;
                let found = found.unwrap().map(|document| document.head.id);
                assert_eq!(found.as_ref(), expected.map(|(id, _)| id), "{what}");
                let value = match seen.get(ValueRef::String(vault)) {
                    Some(CelValue::Map(of_vault)) => of_vault.get(ValueRef::String(name)),
                    _ => None,
                };
                let value = match value {
                    Some(CelValue::String(value)) => Some(&**value),
                    _ => None,
                };
                let expected = expected.map(|(_, held)| &*held.value);
                assert_eq!(value, expected, "{what}");
            }
        }
    }
}
