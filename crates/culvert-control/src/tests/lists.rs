//! Pages and filters.

use std::time::Duration;

use culvert_resources::list::listfilter::Shape;
use culvert_resources::resource::{Life, ResourceType};

use crate::operations::resources::ALL;
use crate::tests::*;

#[tokio::test]
async fn pages_are_newest_first_and_the_last_has_no_link() {
    let rig = Rig::start().await;
    let mut ids = vec![rig.admin.key_id.clone()];
    for n in 0..6 {
        rig.clock
            .advance(Duration::from_secs(u64::from(n % 2 == 0)));
        let key = rig
            .post("/api_keys", json!({"description": format!("{n}")}))
            .await
            .body();
        ids.push(key["id"].as_str().unwrap().to_owned());
    }
    ids.reverse();
    for limit in [1, 2, 3, 7, 100] {
        let mut path = format!("/api_keys?limit={limit}");
        let mut seen = Vec::new();
        let mut n_pages = 0;
        loop {
            let page = rig.get(&path).await.body();
            let keys = page["keys"].as_array().unwrap();
            assert!(!keys.is_empty());
            assert_eq!(page["uri"], format!("{BASE}/api_keys"));
            seen.extend(
                keys.iter()
                    .map(|key| key["id"].as_str().unwrap().to_owned()),
            );
            n_pages += 1;
            match page["next_page_uri"].as_str() {
                Some(next) => path = next.strip_prefix(BASE).unwrap().to_owned(),
                None => break,
            }
        }
        assert_eq!(seen, ids, "limit {limit}");
        assert_eq!(n_pages, 7usize.div_ceil(limit));
    }
    // The object in `before_id` need not exist any more.
    rig.delete(&format!("/api_keys/{}", ids[2])).await;
    let page = rig
        .get(&format!("/api_keys?before_id={}", ids[2]))
        .await
        .body();
    assert_eq!(page["keys"][0]["id"], *ids[3]);
}

#[tokio::test]
pub(super) async fn filters_are_applied_before_paging() {
    let rig = Rig::start().await;
    for n in 0..7 {
        rig.post("/api_keys", json!({"description": format!("{}", n % 2)}))
            .await;
    }
    let filter = "filter=obj.description == '0'";
    let page = rig.get(&format!("/api_keys?limit=2&{filter}")).await.body();
    assert_eq!(page["keys"].as_array().unwrap().len(), 2);
    let next = page["next_page_uri"].as_str().unwrap();
    assert!(
        next.contains("&limit=2&filter=obj.description+%3D%3D+%270%27"),
        "{next}"
    );
    let last = page["keys"][1]["id"].as_str().unwrap();
    let page = rig
        .get(&format!("/api_keys?limit=2&before_id={last}&{filter}"))
        .await
        .body();
    assert_eq!(page["keys"].as_array().unwrap().len(), 2);
    assert_eq!(page["next_page_uri"], Value::Null);
    for (path, code) in [
        ("/api_keys?filter=obj.nope == 1", 250),
        ("/api_keys?filter=obj.token == ''", 250),
        ("/bot_users?filter=true", 231),
        ("/api_keys?order=asc", 231),
        ("/api_keys?url=x", 231),
        ("/api_keys?limit=1&limit=1", 232),
        ("/api_keys?limit=101", 233),
        ("/api_keys?limit=x", 244),
        ("/api_keys?before_id=esb_1", 227),
        ("/service_users?before_id=ak_1", 243),
    ] {
        assert_eq!(rig.get(path).await.code(), Some(code), "{path}");
    }
    let owner = &rig.admin.owner_id;
    for (collection, filter, n) in [
        ("api_keys", format!("obj.owner_id == '{owner}'"), 8),
        (
            "api_keys",
            "obj.created_at > timestamp(time.now).subtract('1h')".to_owned(),
            8,
        ),
        ("service_users", "obj.id == 'service_x'".to_owned(), 0),
        ("event_destinations", "obj.metadata == null".to_owned(), 0),
    ] {
        let list = rig
            .get(&format!("/{collection}?filter={filter}"))
            .await
            .body();
        let items = list
            .as_object()
            .unwrap()
            .values()
            .find_map(Value::as_array)
            .unwrap();
        assert_eq!(items.len(), n, "{collection} {filter}");
    }
}

#[tokio::test]
async fn endpoints_are_found_by_id_and_url() {
    let rig = Rig::start().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let made = rig
            .post("/endpoints", rig.sample("endpoints", n).await)
            .await
            .body();
        ids.push(made["id"].as_str().unwrap().to_owned());
    }
    for (query, n) in [
        (format!("id={}&ids={}", ids[0], ids[1]), 2),
        (format!("url=https://e1.culvert.localhost&id={}", ids[1]), 1),
        ("urls=https://nowhere.culvert.localhost".to_owned(), 0),
        (
            "filter=obj.type == 'cloud' %26%26 obj.binding == 'public'".to_owned(),
            3,
        ),
        ("filter=obj.principal.id != ''".to_owned(), 3),
    ] {
        let list = rig.get(&format!("/endpoints?{query}")).await.body();
        assert_eq!(list["endpoints"].as_array().unwrap().len(), n, "{query}");
    }
}

/// Filters narrow the objects that the store reads; matching objects must be among them.
#[tokio::test]
async fn filters_on_every_field_find_the_matching_object() {
    let rig = Rig::start().await;
    let mut missed = Vec::new();
    for ty in ALL {
        let Some(fields) = ty.filter else { continue };
        let collection = format!("/{}", ty.collection);
        let id = if ty.life == Life::Configured {
            let mut sample = rig.sample(ty.collection, 1).await;
            if !["audit_holds", "service_users"].contains(&ty.collection) {
                sample["description"] = json!("\"quoted\" \\ \u{e9}\n\u{1}");
                sample["metadata"] = json!("{\"a\": [1]}");
            }
            let made = rig.post(&collection, sample).await.body();
            made["id"].as_str().unwrap().to_owned()
        } else {
            observed::stored_one(&rig, ty, &rig.admin.owner_id).await
        };
        let shown = rig.get(&format!("{collection}/{id}")).await.body();
        for field in fields {
            let value = field
                .name
                .split('.')
                .fold(&shown, |inner, name| &inner[name]);
            let value = match field.shape {
                Shape::Reference | Shape::Link => &value["id"],
                _ => value,
            };
            let Some(text) = value.as_str().filter(|text| !text.is_empty()) else {
                continue;
            };
            // A certificate may expire later than any time that a filter can express.
            if field.shape == Shape::Time && text > "2262" {
                continue;
            }
            let name = field.name;
            let quoted = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let conditions = match field.shape {
                Shape::Time => ["==", "<=", ">="]
                    .map(|relation| format!("obj.{name} {relation} timestamp(\"{text}\")"))
                    .to_vec(),
                Shape::Id if name == "id" => vec![
                    format!("obj.id == \"{text}\""),
                    format!("\"{text}\" >= obj.id && obj.id >= \"{text}\""),
                    format!("obj.id in [\"{text}\", \"{}_0\"]", ty.id_prefix),
                    format!("obj.id > \"{}_0\" && obj.id != \"\"", ty.id_prefix),
                ],
                Shape::Text | Shape::Within(_) | Shape::Spelled(_) => vec![
                    format!("obj.{name}.startsWith(\"{quoted}\")"),
                    format!("obj.{name} in [\"x\", \"{quoted}\"] || obj.id == \"\""),
                    format!("obj.{name} == \"{quoted}\""),
                    format!("obj.{name}.contains(\"{quoted}\")"),
                    format!("obj.{name}.endsWith(\"{quoted}\") && true"),
                ],
                _ => vec![format!("obj.{name} == \"{quoted}\"")],
            };
            for condition in conditions {
                let listed = list(&rig, ty, &condition).await;
                if !listed.contains(&id) {
                    missed.push(format!("{} {condition}", ty.name));
                }
            }
        }
        for nothing in [
            "obj.id < \"a_0\" && obj.id > \"zzzz_z\"".to_owned(),
            format!("obj.id == \"{}_{}\"", ty.id_prefix, "0".repeat(27)),
            format!("obj.id > \"{id}\" && obj.id < \"{id}\""),
        ] {
            assert!(
                list(&rig, ty, &nothing).await.is_empty(),
                "{} {nothing}",
                ty.name
            );
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// IDs of the objects that match a filter.
async fn list(rig: &Rig, ty: &ResourceType, filter: &str) -> Vec<String> {
    let filter: String = url::form_urlencoded::byte_serialize(filter.as_bytes()).collect();
    let listed = rig
        .get(&format!("/{}?filter={filter}", ty.collection))
        .await
        .body();
    let items = listed[ty.list_field].as_array().unwrap();
    items
        .iter()
        .map(|item| item["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn selective_filters_find_few_objects_among_many() {
    let rig = Rig::start().await;
    let first = rig
        .post("/api_keys", json!({"description": "needle"}))
        .await
        .body();
    let id = first["id"].as_str().unwrap();
    let document = rig.store.get("api_key", id).await.unwrap().unwrap();
    let numbers: Vec<u64> = (0..20_000).collect();
    for some in numbers.chunks(1000) {
        let changes = some.iter().fold(Changes::default(), |changes, n| {
            let mut document = document.clone();
            let id = rig
                .control
                .kernel
                .ids
                .next(&*rig.clock, &SeededEntropy::new(*n));
            document.head.id = format!("ak_{id}");
            document.body = document.body.replace("needle", "straw");
            document.keys.clear();
            document.refs.clear();
            changes.and(Changes::insert(
                document,
                AuditEvent::Suppress { reason: "a test" },
            ))
        });
        rig.store.commit(changes).await.unwrap();
    }
    for filter in [
        "obj.description == \"needle\"".to_owned(),
        "obj.description.startsWith(\"need\") && obj.metadata == \"\"".to_owned(),
        format!("obj.id == \"{id}\""),
    ] {
        let ty = ALL.iter().find(|ty| ty.name == "api_key").unwrap();
        assert_eq!(list(&rig, ty, &filter).await, [id], "{filter}");
    }
}

/// The cost limit of a filter is a number of objects, not a time: a busy machine refuses no more than an idle
/// one.
#[tokio::test]
async fn a_filter_reads_a_fixed_number_of_objects() {
    let rig = Rig::start().await;
    let first = rig
        .post(
            "/api_keys",
            json!({"description": "straw", "metadata": "x".repeat(4000)}),
        )
        .await;
    let id = first.body()["id"].as_str().unwrap().to_owned();
    let document = rig.store.get("api_key", &id).await.unwrap().unwrap();
    let add = async |numbers: std::ops::Range<u64>| {
        let changes = numbers.fold(Changes::default(), |changes, n| {
            let mut document = document.clone();
            let entropy = SeededEntropy::new(n);
            let id = rig.control.kernel.ids.next(&*rig.clock, &entropy);
            document.head.id = format!("ak_{id}");
            document.keys.clear();
            document.refs.clear();
            changes.and(Changes::insert(
                document,
                AuditEvent::Suppress { reason: "a test" },
            ))
        });
        rig.store.commit(changes).await.unwrap();
    };
    // No index helps with a negated condition.
    let filter: String =
        url::form_urlencoded::byte_serialize(b"!(obj.description == \"straw\")").collect();
    let path = format!("/api_keys?filter={filter}");
    let mut n_objects = 2;
    let refused_at = loop {
        match rig.get(&path).await {
            Answered::Ok(page) => assert_eq!(page["keys"].as_array().unwrap().len(), 1),
            refused => {
                assert_eq!(refused.code(), Some(250));
                break n_objects;
            }
        }
        assert!(n_objects < 5000);
        add(n_objects..n_objects + 100).await;
        n_objects += 100;
    };
    assert!(refused_at > 2000, "{refused_at}");
    for _ in 0..3 {
        assert_eq!(rig.get(&path).await.code(), Some(250));
    }
}
