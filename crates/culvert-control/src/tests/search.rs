//! `GET /search`: what it finds, for whom, and in which order.

use std::time::Instant;

use culvert_resources::access::key_restrictions::KeyRestrictions;
use culvert_resources::access::right::Scope;

use crate::operations::resources;
use crate::tests::uses::Database;
use crate::tests::*;

impl Rig {
    /// The results of a search.
    async fn found(&self, by: &Caller, text: &str) -> Vec<Value> {
        let text: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
        let path = format!("/search?q={text}&limit=100");
        let body = self.call(by, "GET", &path, Value::Null).await.body();
        assert_eq!(body["uri"], format!("{BASE}/search"));
        assert_eq!(body["is_complete"], true);
        body["results"].as_array().unwrap().clone()
    }

    /// Collections and matched fields of the results.
    async fn matches(&self, by: &Caller, text: &str) -> Vec<(String, String)> {
        let found = self.found(by, text).await;
        let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
        let of = |one: &Value| (text(one, "collection"), text(one, "matched"));
        found.iter().map(of).collect()
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(collection, field): &(&str, &str)| ((*collection).into(), (*field).into());
    expected.iter().map(owned).collect()
}

pub(super) fn with_scopes(caller: &Caller, scopes: &[Scope]) -> Caller {
    let restrictions = KeyRestrictions {
        scopes: scopes.iter().copied().collect(),
        ..KeyRestrictions::default()
    };
    Caller {
        restrictions: Some(restrictions.into()),
        ..caller.clone()
    }
}

async fn check_order_and_fields(rig: &Rig) {
    for (path, body) in [
        (
            "/vaults",
            json!({"name": "the-shop", "description": "old", "metadata": "needle"}),
        ),
        ("/vaults", json!({"name": "shop-two"})),
        ("/vaults", json!({"name": "shop"})),
        ("/bot_users", json!({"name": "shop-one"})),
        (
            "/ip_policies",
            json!({"description": "for the SHOP, \"Ägypten\""}),
        ),
        ("/users", json!({"email": "ada@shop.example"})),
    ] {
        rig.clock.advance(std::time::Duration::from_secs(1));
        rig.post(path, body).await.body();
    }
    let endpoint = json!({
        "url": "https://Shop.culvert.localhost", "upstream_url": "http://127.0.0.1:3999",
    });
    let endpoint = rig.post("/endpoints", endpoint).await.body();
    // Exact, then beginnings, then others; each newest first.
    assert_eq!(
        rig.matches(&rig.admin, " Shop ").await,
        pairs(&[
            ("vaults", "name"),
            ("endpoints", "public_url"),
            ("bot_users", "name"),
            ("vaults", "name"),
            ("users", "email"),
            ("ip_policies", "description"),
            ("vaults", "name"),
        ])
    );
    let shown = &rig.found(&rig.admin, "SHOP.culvert.localhost").await[0];
    let expected = json!({
        "kind": "endpoint", "collection": "endpoints", "id": endpoint["id"], "name": "", "description": "",
        "url": endpoint["public_url"], "matched": "public_url",
    });
    assert_eq!(*shown, expected);
    let id = endpoint["id"].as_str().unwrap();
    for text in [id, &id[..15], &id[3..]] {
        assert_eq!(
            rig.matches(&rig.admin, text).await,
            pairs(&[("endpoints", "id")]),
            "{text}"
        );
    }
    for (text, expected) in [
        ("127.0.0.1:3999", &[("endpoints", "upstream_url")][..]),
        ("ägypten", &[("ip_policies", "description")]),
        ("\"Ägypten\"", &[("ip_policies", "description")]),
        ("ada@", &[("users", "email")]),
        // Metadata is not searched.
        ("needle", &[]),
        ("%", &[]),
        ("shop_two", &[]),
    ] {
        assert_eq!(
            rig.matches(&rig.admin, text).await,
            pairs(expected),
            "{text}"
        );
    }
    let few = rig.get("/search?q=shop&limit=2").await.body();
    assert_eq!(few["results"].as_array().unwrap().len(), 2);
    assert_eq!(few["results"][0]["name"], "shop");
}

#[tokio::test]
async fn exact_matches_come_first_on_sqlite() {
    check_order_and_fields(&Rig::start().await).await;
}

#[tokio::test]
async fn exact_matches_come_first_on_postgres() {
    let Some(database) = Database::new("search").await else {
        return;
    };
    let rig = Rig::on(Some(database.url.clone()), None, AGENTS).await;
    check_order_and_fields(&rig).await;
    rig.store.close().await;
    rig.queue.close().await;
    database.remove().await;
}

/// More objects than one page, of which the oldest match.
#[tokio::test]
async fn the_oldest_object_is_found() {
    let rig = Rig::start().await;
    let first = rig.post("/api_keys", json!({"description": "the oldest one"}));
    let first = first.await.body();
    for n in 0..300 {
        let body = json!({"description": format!("another {n}")});
        rig.post("/api_keys", body).await.body();
    }
    let found = rig.found(&rig.admin, "oldest").await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["id"], first["id"]);
    assert_eq!(rig.found(&rig.admin, "another 299").await.len(), 1);
    assert_eq!(rig.found(&rig.admin, "another").await.len(), 100);
}

/// A caller finds what its lists show.
#[tokio::test]
async fn a_search_finds_what_lists_show() {
    let rig = Rig::start().await;
    let member = rig.user("member@x.example", Role::Member, true).await;
    let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
    let stranger = rig.stranger().await;
    for (by, path, body) in [
        (
            &rig.admin,
            "/api_keys",
            json!({"description": "findme of the admin"}),
        ),
        (
            &member,
            "/api_keys",
            json!({"description": "findme of the member"}),
        ),
        (
            &rig.admin,
            "/credentials",
            json!({"description": "findme credential"}),
        ),
        (&member, "/vaults", json!({"name": "findme-vault"})),
        (&stranger, "/vaults", json!({"name": "findme-elsewhere"})),
        (
            &member,
            "/event_subscriptions",
            json!({"sources": [{"type": "vault_created.v0"}], "description": "findme"}),
        ),
    ] {
        rig.call(by, "POST", path, body).await.body();
    }
    let names = async |by: &Caller| {
        let mut found = rig.matches(by, "findme").await;
        found.sort();
        found.into_iter().map(|(of, _)| of).collect::<Vec<_>>()
    };
    let all = [
        "api_keys",
        "api_keys",
        "credentials",
        "event_subscriptions",
        "vaults",
    ];
    assert_eq!(names(&rig.admin).await, all);
    assert_eq!(
        names(&member).await,
        ["api_keys", "event_subscriptions", "vaults"]
    );
    assert_eq!(names(&reader).await, ["vaults"]);
    assert_eq!(names(&stranger).await, ["vaults"]);
    assert_eq!(
        rig.found(&stranger, "findme").await[0]["name"],
        "findme-elsewhere"
    );
    // Scopes decide on collections, and those to write include to read.
    let narrow = with_scopes(&rig.admin, &[Scope::SecretsWrite]);
    assert_eq!(names(&narrow).await, ["vaults"]);
    let narrow = with_scopes(&member, &[Scope::KeysRead]);
    assert_eq!(names(&narrow).await, ["api_keys"]);
    // The ID of an object that a caller does not see is none.
    let keys = rig.get("/api_keys").await.body();
    let of_admin = keys["keys"]
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["description"] == "findme of the admin");
    let id = of_admin.unwrap()["id"].as_str().unwrap();
    assert_eq!(rig.found(&rig.admin, id).await.len(), 1);
    for other in [
        &member,
        &reader,
        &stranger,
        &with_scopes(&rig.admin, &[Scope::SecretsRead]),
    ] {
        assert_eq!(rig.found(other, id).await, Vec::<Value>::new());
    }
}

/// Every listed object is found by its ID, and nothing else is.
#[tokio::test]
async fn each_collection_is_searched() {
    let rig = Rig::start().await;
    for ty in resources::ALL {
        let path = format!("/{}", ty.collection);
        let is_made = operations()
            .iter()
            .any(|one| one.collection == ty.collection && one.name == "create");
        if is_made {
            let sample = rig.sample(ty.collection, 1).await;
            rig.post(&path, sample).await.body();
        }
        let list = rig.get(&path).await.body();
        let objects = list[ty.list_field].as_array().unwrap();
        if let Some(object) = objects.first() {
            let id = object["id"].as_str().unwrap();
            let found = rig.found(&rig.admin, id).await;
            // A bot user and its service user are one object.
            let shown = found.iter().any(|one| one["matched"] == "id");
            assert!(shown, "{id}: {found:?}");
            let member = rig.user("m@x.example", Role::Member, false).await;
            let listed = rig.call(&member, "GET", &path, Value::Null).await.body();
            let mut listed = listed[ty.list_field].as_array().unwrap().iter();
            let is_listed = listed.any(|one| one["id"] == id);
            assert_eq!(!rig.found(&member, id).await.is_empty(), is_listed, "{id}");
            rig.delete(&format!("/users/{}", member.owner_id)).await;
        }
    }
}

#[tokio::test]
pub(super) async fn senseless_searches_and_tokens_are_refused() {
    let rig = Rig::start().await;
    let token = rig.token.reveal().to_owned();
    let long = "x".repeat(257);
    for (query, code) in [
        ("", 268),
        ("?q=", 268),
        ("?q=%20%20", 268),
        (&*format!("?q={long}"), 268),
        ("?q=a&q=b", 232),
        ("?q=a&filter=true", 231),
        ("?q=a&limit=0", 233),
        ("?q=a&limit=101", 233),
        ("?q=a&limit=x", 244),
        (&*format!("?q={token}"), 269),
        (&*format!("?q=%20{}", &token[..token.len() - 4]), 269),
        (&*format!("?q={}", guessed(&token)), 269),
    ] {
        let answered = rig.get(&format!("/search{query}")).await;
        assert_eq!(answered.code(), Some(code), "{query}");
        let Answered::Refused(_, _, message) = answered else {
            unreachable!()
        };
        assert!(!message.contains(secret_of(&token)), "{message}");
    }
}

impl Rig {
    /// Copies the object of a path 10,000 times, with other numbers for its `n0`.
    pub(super) async fn multiply(&self, kind: &str, id: &str) {
        let kernel = &self.control.kernel;
        let one = self.store.get(kind, id).await.unwrap().unwrap();
        let numbered = |text: &str, n: u32| text.replace("n0", &format!("n{n}"));
        for batch in 1..=20 {
            let mut changes = Changes::default();
            for n in (batch - 1) * 500 + 1..=batch * 500 {
                let (prefix, _) = id.split_once('_').unwrap();
                let body = kernel.ids.next(&*self.clock, &*kernel.entropy);
                let mut document = one.clone();
                document.head.id = format!("{prefix}_{body}");
                document.body = numbered(&one.body, n);
                for key in &mut document.keys {
                    key.value = numbered(&key.value, n);
                }
                let event = AuditEvent::Suppress { reason: "a test" };
                changes = changes.and(Changes::insert(document, event));
            }
            self.store.commit(changes).await.unwrap();
        }
    }
}

/// 10,000 endpoints and 10,000 keys. The times are printed, because they say little of a release build.
#[tokio::test]
#[ignore = "measures a time"]
#[expect(clippy::print_stdout, reason = "a person reads the times")]
async fn many_objects_are_searched_in_time() {
    let rig = Rig::start().await;
    let body = json!({"url": "https://n0.culvert.localhost", "upstream_url": "http://127.0.0.1:1", "description": "endpoint n0"});
    let made = rig.post("/endpoints", body).await.body();
    rig.multiply("endpoint", made["id"].as_str().unwrap()).await;
    let made = rig
        .post("/api_keys", json!({"description": "key n0"}))
        .await
        .body();
    rig.multiply("api_key", made["id"].as_str().unwrap()).await;
    for (text, count) in [
        ("endpoint n77", 100),
        ("key n9999", 1),
        ("nothing has this", 0),
        ("n", 100),
    ] {
        let start = Instant::now();
        let found = rig.found(&rig.admin, text).await.len();
        println!("{text}: {found} in {:?}", start.elapsed());
        assert!(found <= count && (found > 0 || count == 0), "{text}");
    }
}
