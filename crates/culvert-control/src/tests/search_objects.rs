//! `GET /search/objects`: order, words, pages and rights.

use std::time::Instant;

use culvert_resources::access::right::Scope;
use culvert_resources::list::sorted;

use crate::operations::resources;
use crate::tests::search::with_scopes;
use crate::tests::uses::Database;
use crate::tests::*;

impl Rig {
    /// A page of a search.
    async fn objects(&self, by: &Caller, query: &str) -> Value {
        let path = format!("/search/objects?{query}");
        self.call(by, "GET", &path, Value::Null).await.body()
    }

    /// A field of all objects of a search, which is read in pages of two.
    async fn in_order(&self, by: &Caller, query: &str, field: &str) -> Vec<String> {
        let mut path = format!("/search/objects?{query}&limit=2");
        let mut found = Vec::new();
        loop {
            let page = self.call(by, "GET", &path, Value::Null).await.body();
            assert_eq!(page["is_complete"], true);
            let objects = page["objects"].as_array().unwrap();
            assert!(found.is_empty() || !objects.is_empty());
            found.extend(
                objects
                    .iter()
                    .map(|one| one[field].as_str().unwrap().to_owned()),
            );
            match page["next_page_uri"].as_str() {
                Some(next) => path = next.strip_prefix(BASE).unwrap().to_owned(),
                None => return found,
            }
        }
    }
}

async fn check_orders(rig: &Rig) {
    for (url, description) in [
        ("https://b.culvert.localhost", "Öl"),
        ("http://a.culvert.localhost", ""),
        ("https://D.culvert.localhost", "zebra"),
        ("https://c.culvert.localhost", "Zebra"),
        ("https://e.culvert.localhost", "apple <b>x</b>"),
    ] {
        rig.clock.advance(std::time::Duration::from_secs(1));
        let body =
            json!({"url": url, "description": description, "upstream_url": "http://127.0.0.1:1"});
        rig.post("/endpoints", body).await.body();
    }
    let of = "collection=endpoints";
    for (query, expected) in [
        ("", ["e", "c", "d", "a", "b"]),
        ("&order=public_url", ["a", "b", "c", "d", "e"]),
        ("&order=-public_url", ["e", "d", "c", "b", "a"]),
        ("&order=created_at", ["b", "a", "d", "c", "e"]),
        // Of equal values the newest is first, and those without one are last.
        ("&order=description", ["e", "c", "d", "b", "a"]),
        ("&order=-description", ["b", "c", "d", "e", "a"]),
        ("&order=pooling_enabled", ["e", "c", "d", "a", "b"]),
    ] {
        let found = rig
            .in_order(&rig.admin, &format!("{of}{query}"), "host")
            .await;
        let hosts = expected.map(|host| format!("{host}.culvert.localhost"));
        assert_eq!(found, hosts, "{query}");
    }
    for (query, expected) in [
        ("&q=ZEBRA", vec!["c", "d"]),
        ("&q=zebra%20D.culvert", vec!["d"]),
        ("&q=%3Cb%3E", vec!["e"]),
        ("&q=a.culvert%20zebra", vec![]),
        ("&q=zebra&order=public_url", vec!["c", "d"]),
        ("&filter=obj.description=='Zebra'", vec!["c"]),
        (
            "&order=public_url&filter=obj.description!=''",
            vec!["b", "c", "d", "e"],
        ),
        ("&q=apple&filter=obj.description=='Zebra'", vec![]),
    ] {
        let found = rig
            .in_order(&rig.admin, &format!("{of}{query}"), "host")
            .await;
        let hosts = expected
            .iter()
            .map(|host| format!("{host}.culvert.localhost"));
        assert_eq!(found, hosts.collect::<Vec<_>>(), "{query}");
    }
}

#[tokio::test]
async fn objects_are_ordered_and_filtered_on_sqlite() {
    check_orders(&Rig::start().await).await;
}

#[tokio::test]
async fn objects_are_ordered_and_filtered_on_postgres() {
    let Some(database) = Database::new("search_objects").await else {
        return;
    };
    let rig = Rig::on(Some(database.url.clone()), None, AGENTS).await;
    check_orders(&rig).await;
    rig.store.close().await;
    rig.queue.close().await;
    database.remove().await;
}

/// Objects that are deleted, renamed or made between two pages move no other one.
#[tokio::test]
async fn pages_continue_behind_objects_that_are_gone() {
    let rig = Rig::start().await;
    let mut ids = Vec::new();
    for n in 0..6 {
        let vault = rig
            .post("/vaults", json!({"name": format!("v{n}")}))
            .await
            .body();
        ids.push(vault["id"].as_str().unwrap().to_owned());
    }
    let page = rig
        .objects(&rig.admin, "collection=vaults&order=name&limit=3")
        .await;
    let next = page["next_page_uri"].as_str().unwrap().to_owned();
    rig.delete(&format!("/vaults/{}", ids[2])).await;
    rig.delete(&format!("/vaults/{}", ids[3])).await;
    rig.post("/vaults", json!({"name": "v0a"})).await.body();
    let (_, query) = next.split_once('?').unwrap();
    let page = rig.objects(&rig.admin, query).await;
    let names: Vec<_> = page["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["v4", "v5"]);
    assert_eq!(page["next_page_uri"], Value::Null);
    // Nor does the newest one, where the order is that of the list.
    let page = rig.objects(&rig.admin, "collection=vaults&limit=2").await;
    let (_, query) = page["next_page_uri"]
        .as_str()
        .unwrap()
        .split_once('?')
        .unwrap();
    let last = page["objects"][1]["id"].as_str().unwrap();
    rig.delete(&format!("/vaults/{last}")).await;
    rig.post("/vaults", json!({"name": "newest"})).await.body();
    let page = rig.objects(&rig.admin, query).await;
    let names: Vec<_> = page["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["v4", "v1"]);
}

/// A caller finds what its lists show, in every order and with every cursor.
#[tokio::test]
async fn no_order_shows_what_lists_do_not() {
    let rig = Rig::start().await;
    let member = rig.user("member@x.example", Role::Member, true).await;
    let stranger = rig.stranger().await;
    for (by, text) in [
        (&rig.admin, "b of admin"),
        (&member, "c of member"),
        (&stranger, "a elsewhere"),
    ] {
        for path in ["/api_keys", "/credentials"] {
            rig.call(by, "POST", path, json!({"description": text}))
                .await
                .body();
        }
    }
    for ty in resources::ALL {
        let path = format!("/{}?limit=100", ty.collection);
        for by in [&rig.admin, &member, &stranger] {
            let list = rig.call(by, "GET", &path, Value::Null).await.body();
            let ids = |list: &Value| {
                let all = list.as_array().unwrap().iter();
                let mut ids: Vec<_> = all
                    .map(|one| one["id"].as_str().unwrap().to_owned())
                    .collect();
                ids.sort();
                ids
            };
            let listed = ids(&list[ty.list_field]);
            let plain = rig
                .objects(by, &format!("collection={}", ty.collection))
                .await;
            // The newest first, and in the same form.
            assert_eq!(plain["objects"], list[ty.list_field], "{}", ty.collection);
            for field in sorted::fields(ty) {
                let query = format!("collection={}&order=-{field}", ty.collection);
                let found = rig.objects(by, &query).await;
                assert_eq!(ids(&found["objects"]), listed, "{query}");
            }
        }
    }
    // The cursor of an admin is a place and gives no right.
    let page = rig
        .objects(&rig.admin, "collection=api_keys&order=-description&limit=1")
        .await;
    let (_, query) = page["next_page_uri"]
        .as_str()
        .unwrap()
        .split_once('?')
        .unwrap();
    let found = rig.objects(&member, query).await;
    assert!(!found.to_string().contains("of admin"), "{found}");
    assert!(
        !rig.objects(&member, "collection=api_keys&q=admin")
            .await
            .to_string()
            .contains("of admin")
    );
    // Scopes decide on collections.
    let narrow = with_scopes(&rig.admin, &[Scope::SecretsRead]);
    let path = "/search/objects?collection=api_keys&order=description";
    let refused = rig.call(&narrow, "GET", path, Value::Null).await;
    let listed = rig.call(&narrow, "GET", "/api_keys", Value::Null).await;
    assert_eq!(refused.code(), listed.code());
    assert!(refused.code().is_some());
}

#[tokio::test]
pub(super) async fn senseless_orders_and_cursors_are_refused() {
    let rig = Rig::start().await;
    for n in 0..3 {
        rig.post("/vaults", json!({"name": format!("v{n}")}))
            .await
            .body();
    }
    let page = rig
        .objects(&rig.admin, "collection=vaults&order=name&limit=1")
        .await;
    let (_, cursor) = page["next_page_uri"]
        .as_str()
        .unwrap()
        .split_once("cursor=")
        .unwrap();
    let token = rig.token.reveal();
    let long = "x".repeat(3000);
    for (query, code) in [
        ("", 270),
        ("collection=", 270),
        ("collection=nothing", 270),
        ("collection=events", 270),
        ("collection=nodes", 270),
        ("collection=vaults&order=nothing", 270),
        ("collection=vaults&order=--name", 270),
        ("collection=vaults&order=name,id", 270),
        // Fields with several values have no order.
        ("collection=endpoints&order=bindings", 270),
        ("collection=endpoints&order=principal", 270),
        ("collection=vaults&cursor=x", 270),
        (&*format!("collection=vaults&cursor={long}"), 270),
        // A cursor is of one order of one collection.
        (&*format!("collection=vaults&cursor={cursor}"), 270),
        (
            &*format!("collection=vaults&order=-name&cursor={cursor}"),
            270,
        ),
        (&*format!("collection=vaults&order=id&cursor={cursor}"), 270),
        (
            &*format!("collection=bot_users&order=name&cursor={cursor}"),
            270,
        ),
        ("collection=vaults&filter=obj.x==1", 250),
        ("collection=bot_users&filter=true", 231),
        ("collection=vaults&sort=name", 231),
        ("collection=vaults&q=a&q=b", 232),
        ("collection=vaults&limit=0", 233),
        ("collection=vaults&limit=x", 244),
        (&*format!("collection=vaults&q={}", "x".repeat(257)), 268),
        (&*format!("collection=vaults&q={token}"), 269),
    ] {
        let answered = rig.get(&format!("/search/objects?{query}")).await;
        assert_eq!(answered.code(), Some(code), "{query}");
    }
    assert_eq!(
        rig.objects(
            &rig.admin,
            &format!("collection=vaults&order=name&cursor={cursor}")
        )
        .await["objects"][0]["name"],
        "v1"
    );
}

/// Hosts and endpoints complete a search of events for those who may list endpoints.
#[tokio::test]
async fn completions_are_endpoints_that_the_caller_may_list() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    let member = rig.user("m@x.example", Role::Member, true).await;
    let body =
        json!({"url": "https://shop-7.culvert.localhost", "upstream_url": "http://127.0.0.1:1"});
    let made = rig.post("/endpoints", body).await.body();
    let id = made["id"].as_str().unwrap();
    let texts = async |by: &Caller, q: &str| {
        let path = format!("/events/terms?q={q}");
        let terms = rig.call(by, "GET", &path, Value::Null).await.body();
        let all = terms["completions"].as_array().unwrap().iter();
        all.map(|one| one["text"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let host = "shop-7.culvert.localhost";
    for by in [&rig.admin, &member] {
        assert_eq!(
            texts(by, "502 Shop-7").await,
            [host.to_owned(), format!("object:{id}")]
        );
        assert_eq!(texts(by, "-host:p-7").await, [format!("-host:{host}")]);
        assert_eq!(texts(by, "endpoint:shop").await, [format!("endpoint:{id}")]);
    }
    for by in [&stranger, &with_scopes(&rig.admin, &[Scope::EventsRead])] {
        for q in ["shop-7", "host:shop", "host:", "endpoint:shop", "object:"] {
            assert_eq!(texts(by, q).await, [""; 0], "{q}");
        }
    }
    rig.delete(&format!("/endpoints/{id}")).await;
    assert_eq!(texts(&rig.admin, "shop-7").await, [""; 0]);
}

/// 10,000 endpoints in orders and by words. The times are printed, because they say little of a debug build.
#[tokio::test]
#[ignore = "measures a time"]
#[expect(clippy::print_stdout, reason = "a person reads the times")]
async fn many_objects_are_ordered_in_time() {
    let database = Database::new("search_many").await;
    let mut rigs = vec![("SQLite", Rig::start().await)];
    if let Some(database) = &database {
        let url = Some(database.url.clone());
        rigs.push(("PostgreSQL", Rig::on(url, None, AGENTS).await));
    }
    for (name, rig) in rigs {
        let body = json!({"url": "https://n0.culvert.localhost", "upstream_url": "http://127.0.0.1:1", "description": "endpoint n0"});
        let made = rig.post("/endpoints", body).await.body();
        rig.multiply("endpoint", made["id"].as_str().unwrap()).await;
        for query in [
            "order=public_url&limit=50",
            "order=-description&limit=100",
            "q=n77",
            "q=n9999&order=created_at",
        ] {
            let start = Instant::now();
            let page = rig
                .objects(&rig.admin, &format!("collection=endpoints&{query}"))
                .await;
            let count = page["objects"].as_array().unwrap().len();
            println!(
                "{name} {query}: {count} in {:?}, complete: {}",
                start.elapsed(),
                page["is_complete"]
            );
        }
        for q in ["shop", "n99"] {
            let start = Instant::now();
            rig.get(&format!("/events/terms?q={q}")).await.body();
            println!("{name} completions of {q}: {:?}", start.elapsed());
        }
        rig.store.close().await;
        rig.queue.close().await;
    }
    if let Some(database) = database {
        database.remove().await;
    }
}
