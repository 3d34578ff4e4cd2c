use culvert_base::{Code, OsEntropy};
use culvert_target::TargetSettings;
use schemars::SchemaGenerator;
use serde_json::json;

use super::*;

#[test]
fn targets_are_listed_in_order_and_found_by_name() {
    assert!(ALL.windows(2).all(|pair| pair[0].name < pair[1].name));
    for ty in ALL {
        assert!(std::ptr::eq(*ty, TYPES.find(ty.name).unwrap()));
        assert!(ty.doc.ends_with('.'));
        assert!(culvert_events::encode::EVENT_BYTES_MAX < ty.limits.bytes_max);
    }
    assert!(TYPES.find("nowhere").is_none());
}

#[test]
fn every_field_of_every_target_is_documented() {
    for ty in ALL {
        let mut generator = SchemaGenerator::default();
        (ty.schema)(&mut generator);
        let definitions = generator.take_definitions(true);
        let fields: Vec<_> = definitions
            .values()
            .filter_map(|schema| schema.get("properties")?.as_object())
            .flatten()
            .collect();
        assert!(!fields.is_empty(), "{}", ty.name);
        for (name, field) in fields {
            assert!(field.get("description").is_some(), "{}.{name}", ty.name);
        }
    }
}

#[test]
fn malformed_configurations_are_refused_by_every_target() {
    let settings = TargetSettings {
        file_root: Some("/nowhere".into()),
        ..TargetSettings::default()
    };
    for ty in ALL {
        for nonsense in [
            json!({}),
            json!([]),
            json!(null),
            json!("hidden"),
            json!({"nope": 1}),
            json!({"callback_url": ["hidden"], "path": {"hidden": 1}, "url": {"hidden": 1}}),
            json!({"log": "hidden, expected x", "mode": "hidden", "secrets": "hidden"}),
        ] {
            let refusal = (ty.check)(&nonsense, &settings, &OsEntropy).unwrap_err();
            assert!(!refusal.message.contains("hidden"), "{}", refusal.message);
            let code = refusal.code.map(Code::number);
            // A target of the contract may report a missing field with a specific code.
            let is_missing = nonsense == json!({}) && [5106, 5133, 5136].map(Some).contains(&code);
            assert!(
                is_missing || code == Some(5140),
                "{} {nonsense}: {code:?}",
                ty.name
            );
        }
    }
}

#[test]
fn addresses_inside_the_network_are_refused_by_every_target_with_a_url() {
    let settings = TargetSettings::default();
    for (name, scheme) in [
        ("clickhouse", "https"),
        ("debug", "https"),
        ("discord", "https"),
        ("elasticsearch", "https"),
        ("loki", "https"),
        ("ntfy", "https"),
        ("otlp", "https"),
        ("pagerduty", "https"),
        ("slack", "https"),
        ("splunk_hec", "https"),
        ("syslog", "tls"),
        ("webhook", "https"),
    ] {
        let ty = TYPES.find(name).unwrap();
        let check = |url: &str| {
            let mut config = match name {
                "clickhouse" => json!({"table": "t"}),
                "elasticsearch" => json!({"index": "i"}),
                "ntfy" => json!({"topic": "t"}),
                "pagerduty" => json!({"routing_key": "k".repeat(32)}),
                "splunk_hec" => json!({"token": "t"}),
                _ => json!({}),
            };
            let field = match name {
                "debug" => "callback_url",
                "discord" | "slack" => "webhook_url",
                "otlp" => "endpoint",
                _ => "url",
            };
            config[field] = url.into();
            (ty.check)(&config, &settings, &OsEntropy).map_err(|refusal| refusal.message)
        };
        check(&format!("{scheme}://example.com")).unwrap();
        for host in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]"] {
            let refused = check(&format!("{scheme}://{host}")).unwrap_err();
            assert!(refused.contains("not allowed"), "{name}: {refused}");
        }
        let plain = if scheme == "tls" { "tcp" } else { "http" };
        let refused = check(&format!("{plain}://example.com")).unwrap_err();
        assert!(refused.contains("allow_plain_http"), "{name}: {refused}");
    }
}
