//! Texts come back as they were sent, or are refused: a program that compares both, such as Terraform, would otherwise
//! change an object with each run. Every text of every body is sent in other spellings; the fields whose value has one spelling
//! only are listed here, and their descriptions in the OpenAPI document say it.

use std::collections::BTreeSet;

use crate::operations::resources;
use crate::tests::*;

/// Fields that are shown in one spelling: the collection and the name, and words of their descriptions.
const NORMALISED: &[(&str, &str, &str)] = &[
    ("agent_ingresses", "domain", "in lower case"),
    ("alert_rules", "silenced_until", "in UTC"),
    ("api_keys", "expires_at", "in UTC"),
    ("api_keys", "networks", "shortest form"),
    ("audit_holds", "until", "in UTC"),
    ("grants", "expires_at", "in UTC"),
    ("ip_policy_rules", "cidr", "in lower case"),
    ("kubernetes_operators", "enabled_features", "in lower case"),
    ("reserved_domains", "domain", "in lower case"),
    ("ssh_host_certificates", "valid_after", "in UTC"),
    ("ssh_host_certificates", "valid_until", "in UTC"),
    ("ssh_user_certificates", "valid_after", "in UTC"),
    ("ssh_user_certificates", "valid_until", "in UTC"),
    ("users", "email", "without spaces"),
];

/// A body with all texts of a collection, and one that changes them.
async fn bodies(rig: &Rig, n: u32) -> Vec<(&'static str, Value)> {
    let sample = async |collection: &str| rig.sample(collection, n).await;
    let vault = rig.post("/vaults", sample("vaults").await).await.body()["id"].clone();
    let domain = json!({"domain": format!("s{n}.example"), "description": "a", "metadata": "b"});
    let of_texts = |body: Value| {
        let mut body = body;
        body["description"] = json!("a text");
        body["metadata"] = json!("b text");
        body
    };
    let mut bodies = vec![
        ("reserved_domains", domain),
        (
            "agent_ingresses",
            of_texts(json!({"domain": format!("i{n}.x.example")})),
        ),
        (
            "alert_rules",
            of_texts(json!({
                "name": format!("a name {n}"), "for": "90m", "repeat_every": "1h30m",
                "silenced_until": "2028-01-01T00:00:00Z", "condition": {"type": "key_expiring", "within": "36h"},
            })),
        ),
        (
            "alert_rules",
            json!({
                "name": format!("windows {n}"),
                "condition": {"type": "error_rate", "above": 0.5, "over": "5m"},
            }),
        ),
        (
            "alert_rules",
            json!({
                "name": format!("unused {n}"), "condition": {"type": "key_unused", "for": "30d"},
            }),
        ),
        (
            "api_keys?include=restrictions",
            of_texts(json!({
                "networks": ["192.0.2.0/24", "2001:db8::/32"], "expires_at": "2028-01-01T00:00:00Z", "role": "member",
            })),
        ),
        (
            "audit_holds",
            json!({
                "filter": format!("event_id == 'ev_{n}'"), "reason": format!("case {n}"), "until": "2028-01-01T00:00:00Z",
            }),
        ),
        ("bot_users", json!({"name": format!("bot {n}")})),
        (
            "credentials",
            of_texts(json!({"acl": ["bind:*.a.example", "bind:tcp.example:20000"]})),
        ),
        (
            "endpoints",
            of_texts(json!({
                "url": format!("https://u{n}.culvert.localhost"), "upstream_url": "http://127.0.0.1:1",
                "timeouts": {"connect": "90s", "first_byte": "90m", "idle": "1h", "request": "10s", "write": "10s"},
            })),
        ),
        (
            "endpoints",
            json!({
                "url": format!("tls://t{n}.culvert.localhost"), "upstream_url": "tcp://a.example:5",
                "traffic_policy": "on_tcp_connect:\n- actions: [{type: deny}]\n",
            }),
        ),
        (
            "endpoints",
            json!({
                "url": format!("http://v{n}.internal:8080"), "upstream_url": "https://a.example:8443",
            }),
        ),
        (
            "event_subscriptions",
            of_texts(json!({"sources": [
                {"type": "http_request_complete.v0", "filter": "ev.conn.server_port == 443", "fields": ["conn.server_port"]},
            ]})),
        ),
        (
            "grants",
            of_texts(json!({
                "object_id": vault, "grantee": "role:member", "expires_at": "2028-01-01T00:00:00Z",
            })),
        ),
        ("ip_policies", of_texts(json!({}))),
        (
            "kubernetes_operators",
            of_texts(json!({
                "enabled_features": ["bindings"], "region": "global",
                "deployment": {"name": format!("o{n}"), "namespace": "x", "cluster_name": "c", "version": "1.0"},
                "binding": {"endpoint_selectors": ["true"], "ingress_endpoint": "a.example:443"},
            })),
        ),
        ("reserved_addrs", of_texts(json!({}))),
        ("ssh_certificate_authorities", of_texts(json!({}))),
        (
            "tls_certificates",
            of_texts(sample("tls_certificates").await),
        ),
        (
            "certificate_authorities",
            of_texts(sample("certificate_authorities").await),
        ),
        ("users", json!({"email": format!("u{n}@x.example")})),
        ("vaults", of_texts(json!({"name": format!("v{n}")}))),
        (
            "vault_secrets",
            of_texts(json!({"name": format!("w{n}"), "value": "hush", "vault_id": vault})),
        ),
        (
            "ssh_credentials",
            of_texts(json!({"public_key": ssh::new_key(), "acl": ["bind:*"]})),
        ),
    ];
    let policy = rig.post("/ip_policies", json!({})).await.body()["id"].clone();
    for cidr in ["192.0.2.0/24", "2001:db8::/32", "192.0.2.7/32"] {
        let rule = json!({"cidr": cidr, "action": "allow", "ip_policy_id": policy});
        bodies.push(("ip_policy_rules", of_texts(rule)));
    }
    let authority = rig
        .post("/ssh_certificate_authorities", Value::Null)
        .await
        .body()["id"]
        .clone();
    for (collection, principal) in [
        ("ssh_host_certificates", "a.example"),
        ("ssh_user_certificates", "ada"),
    ] {
        let body = json!({
            "ssh_certificate_authority_id": authority, "public_key": ssh::new_key(), "principals": [principal],
            "valid_after": "2027-01-15T00:00:00Z", "valid_until": "2027-02-01T00:00:00Z",
        });
        bodies.push((collection, of_texts(body)));
    }
    for (name, target) in targets() {
        let body = json!({"format": "json", "target": {name: target}});
        bodies.push(("event_destinations", of_texts(body)));
    }
    bodies
}

/// Targets with the texts that have other spellings.
fn targets() -> Vec<(&'static str, Value)> {
    vec![
        (
            "debug",
            json!({"callback_url": "https://hooks.example/a/b"}),
        ),
        (
            "webhook",
            json!({"url": "https://hooks.example/a/b?c=d", "timeout": "10s"}),
        ),
        ("file", json!({"path": "a.ndjson", "max_age": "90m"})),
        ("file", json!({"path": "a/b.ndjson", "max_age": "1h30m"})),
        (
            "syslog",
            json!({"url": "tls://logs.example:6514", "app_name": "a"}),
        ),
        (
            "nats",
            json!({"urls": ["nats://nats.example:4222"], "subject_prefix": "a.b", "stream": "a"}),
        ),
        (
            "kafka",
            json!({"brokers": ["kafka.example:9092"], "topic": "a"}),
        ),
        (
            "loki",
            json!({"url": "https://loki.example", "tenant": "a"}),
        ),
        (
            "elasticsearch",
            json!({"url": "https://es.example:9200", "index": "a"}),
        ),
        (
            "clickhouse",
            json!({"url": "https://ch.example:8443", "table": "a", "database": "b"}),
        ),
        ("ntfy", json!({"url": "https://ntfy.example", "topic": "a"})),
        ("otlp", json!({"endpoint": "https://otlp.example:4318"})),
        (
            "postgres",
            json!({"url": "postgres://db.example:5432/a", "user": "a", "table": "a"}),
        ),
        (
            "rabbitmq",
            json!({"urls": ["amqps://mq.example:5671"], "user": "a", "password": "b", "routing_key": "a"}),
        ),
        (
            "smtp",
            json!({"host": "mail.example", "from": "a@mail.example", "to": ["b@mail.example"]}),
        ),
        (
            "splunk_hec",
            json!({"url": "https://splunk.example:8088", "token": "t", "host": "a"}),
        ),
    ]
}

/// Other spellings of a text, some of which mean the same.
fn spellings(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::from([
        text.to_uppercase(),
        text.to_lowercase(),
        format!(" {text}"),
        format!("{text} "),
        format!("{text}."),
        format!("{text}/"),
        text.replace(':', ":0"),
        text.replace(".example", ".example."),
        text.replace(".example", ".EXAMPLE"),
        text.replace(".localhost", ".LOCALHOST"),
        text.replace("//", "///"),
        text.replace("//", "//user@"),
        text.replace("/a", "/%61"),
        text.replace("a/b", "a/./b"),
        text.replace("192.0.2.0/24", "192.0.2.9/24"),
        text.replace("192.0.2.0/24", "192.0.2.0/024"),
        text.replace("192.0.2.0/24", "::ffff:192.0.2.0/120"),
        text.replace("192.0.2.7/32", "192.0.2.7"),
        text.replace("2001:db8::", "2001:DB8::"),
        text.replace("2001:db8::", "2001:0db8:0::"),
        text.replace("2001:db8::/32", "2001:db8::1/32"),
        text.replace("00:00Z", "00:00+00:00"),
        text.replace("00:00Z", "00:00.000Z"),
        text.replace("00:00Z", "00:00+02:00"),
        text.replace("T00:00:00Z", "t00:00:00z"),
        text.replace("T00:00:00Z", " 00:00:00Z"),
        text.replace("T00:00:00Z", ""),
        text.replace("1h30m", "90m"),
        text.replace("90m", "1h30m"),
        text.replace("90m", "5400s"),
        text.replace("90s", "1m30s"),
        text.replace("36h", "1d12h"),
        text.replace("36h", "2160m"),
        text.replace("5m", "300s"),
        text.replace("30d", "720h"),
        text.replace("1h", "60m"),
        text.replace("10s", "10000ms"),
        text.replace("10s", "010s"),
        text.replace("10s", "10.0s"),
        text.replace("a.example", "ä.example"),
        text.replace("a text", "a\u{308} text"),
        text.replace("\n", "\r\n"),
    ]);
    all.remove(text);
    all
}

/// The pointers of all texts.
fn texts(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(at),
        Value::Array(list) => {
            for (n, one) in list.iter().enumerate() {
                texts(one, format!("{at}/{n}"), found);
            }
        }
        Value::Object(map) => {
            for (name, one) in map {
                texts(one, format!("{at}/{name}"), found);
            }
        }
        _ => {}
    }
}

/// Compares a response with a body: the pointers of texts that it shows in another spelling.
fn respelled(sent: &Value, shown: &Value) -> Vec<(String, String, String)> {
    let mut pointers = Vec::new();
    texts(sent, String::new(), &mut pointers);
    let text = |value: &Value, at: &str| Some(value.pointer(at)?.as_str()?.to_owned());
    let differs = |at: String| {
        let (sent, shown) = (text(sent, &at)?, text(shown, &at)?);
        (sent != shown).then_some((at, sent, shown))
    };
    pointers.into_iter().filter_map(differs).collect()
}

#[tokio::test]
async fn texts_come_back_as_they_were_sent() {
    let rig = Rig::start().await;
    let mut found: BTreeSet<(String, String, String, String)> = BTreeSet::new();
    let (mut n_accepted, mut refused) = (0, Vec::new());
    for (collection, body) in bodies(&rig, 0).await {
        let name = collection.split('?').next().unwrap();
        let made = rig.post(&format!("/{collection}"), body.clone()).await;
        let made = match made {
            Answered::Created(made) => made,
            answered => {
                refused.push(format!("{collection} {body}: {answered:?}"));
                continue;
            }
        };
        for (at, sent, shown) in respelled(&body, &made) {
            found.insert((name.to_owned(), at, sent, shown));
        }
        let path = format!("/{name}/{}", made["id"].as_str().unwrap());
        rig.delete(&format!("{path}?force=true")).await;
        let mut pointers = Vec::new();
        texts(&body, String::new(), &mut pointers);
        for pointer in pointers {
            let text = body.pointer(&pointer).unwrap().as_str().unwrap().to_owned();
            for other in spellings(&text) {
                let mut sent = body.clone();
                *sent.pointer_mut(&pointer).unwrap() = json!(other);
                let answered = rig.post(&format!("/{collection}"), sent.clone()).await;
                let Answered::Created(made) = answered else {
                    continue;
                };
                n_accepted += 1;
                let mut differs = respelled(&sent, &made);
                let path = format!("/{name}/{}", made["id"].as_str().unwrap());
                let query = collection.split_once('?').map_or("", |(_, query)| query);
                let read = rig.get(&format!("{path}?{query}")).await;
                if let Answered::Ok(read) = read {
                    differs.extend(respelled(&sent, &read));
                }
                for (at, sent, shown) in differs {
                    found.insert((name.to_owned(), at, sent, shown));
                }
                rig.delete(&format!("{path}?force=true")).await;
                // The same by a change.
                let original = rig.post(&format!("/{collection}"), body.clone()).await;
                let Answered::Created(original) = original else {
                    continue;
                };
                let path = format!("/{name}/{}", original["id"].as_str().unwrap());
                let first = pointer.split('/').nth(1).unwrap();
                let change = json!({first: sent[first]});
                let changed = rig.patch(&path, change.clone()).await;
                if let Answered::Ok(changed) = changed {
                    for (at, sent, shown) in respelled(&change, &changed) {
                        found.insert((name.to_owned(), at, sent, shown));
                    }
                }
                rig.delete(&format!("{path}?force=true")).await;
            }
        }
    }
    assert!(n_accepted > 100, "{n_accepted}");
    let is_unknown = |(name, at, ..): &&(String, String, String, String)| {
        let field = at.split('/').nth(1).unwrap();
        let mut listed = NORMALISED.iter();
        !listed.any(|(collection, name_of, _)| collection == name && *name_of == field)
    };
    let unknown: Vec<_> = found.iter().filter(is_unknown).collect();
    assert!(refused.is_empty(), "{refused:#?} {unknown:#?}");
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Clients know from the document which texts come back in another spelling.
#[test]
fn the_document_says_which_texts_have_one_spelling() {
    for (collection, field, words) in NORMALISED {
        let ty = resources::ALL
            .iter()
            .find(|ty| ty.collection == *collection);
        let ty = ty.unwrap();
        for (schema, is_create) in [(ty.create_schema, true), (ty.update_schema, false)] {
            let mut settings = schemars::generate::SchemaSettings::draft2020_12();
            settings.inline_subschemas = true;
            let schema = schema(&mut settings.into_generator()).to_value();
            let described = schema["properties"][field]["description"].as_str();
            let is_said = described.is_some_and(|text| text.contains(words));
            assert!(
                is_said || (described.is_none() && !is_create),
                "{collection} {field}: {described:?}"
            );
        }
    }
}
