use std::collections::HashMap;

use super::*;

fn load_with(variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Settings, Invalid> {
    let variables = variables
        .iter()
        .map(|(n, v)| (n.to_string(), v.to_string()))
        .collect();
    let flags: Vec<_> = flags
        .iter()
        .map(|(n, v)| (n.to_string(), v.to_string()))
        .collect();
    load(None, &variables, &flags)
}

#[test]
fn flags_precede_the_environment_and_the_environment_precedes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("culvert.toml");
    std::fs::write(
        &path,
        "[api]\naddr = \"127.0.0.1:1\"\n[edge]\ndomain = \"a.example\"\n",
    )
    .unwrap();
    let variables = HashMap::from([("CULVERT_API__ADDR".to_owned(), "127.0.0.1:2".to_owned())]);
    let settings = load(Some(&path), &variables, &[]).unwrap();
    assert_eq!(
        (settings.api.addr.as_str(), settings.edge.domain.as_str()),
        ("127.0.0.1:2", "a.example")
    );
    let flags = [("api.addr".to_owned(), "127.0.0.1:3".to_owned())];
    assert_eq!(
        load(Some(&path), &variables, &flags).unwrap().api.addr,
        "127.0.0.1:3"
    );
}

#[test]
fn lists_numbers_and_durations_are_parsed() {
    let settings = load_with(
        &[
            ("CULVERT_ROLES", "api,edge"),
            ("CULVERT_EDGE__CONNECTIONS_MAX", "7"),
        ],
        &[
            ("shutdown.drain", "250ms"),
            ("audit.retention", "90d"),
            ("events.redact_headers", ""),
            ("events.redact_query", ""),
        ],
    )
    .unwrap();
    assert_eq!(settings.roles, [Role::Api, Role::Edge]);
    assert_eq!(settings.edge.connections_max, 7);
    assert_eq!(settings.shutdown.drain.0, Duration::from_millis(250));
    assert_eq!(String::from(settings.audit.retention), "90d");
    assert!(settings.events.redact_headers.is_empty());
    assert!(settings.events.redact_query.is_empty());
}

#[test]
fn an_unknown_key_suggests_the_nearest() {
    let error = load_with(&[("CULVERT_EDGE__HTP_ADDR", "x")], &[])
        .unwrap_err()
        .0;
    assert_eq!(
        error,
        "unknown setting `edge.htp_addr`; did you mean `edge.http_addr`?"
    );
}

#[test]
fn invalid_values_are_named() {
    for (key, value) in [
        ("api.addr", "nowhere"),
        ("edge.tcp_ports", "9-1"),
        ("edge.timeouts.connect", "99ms"),
        ("edge.timeouts.idle", "0s"),
        ("edge.timeouts.write", "8d"),
        ("edge.timeouts.first_byte", "long"),
        ("limits.sessions_max", "0"),
        ("edge.connections_max", "0"),
        ("api.connections_max", "0"),
        ("api.requests_per_owner_max", "1000001"),
        ("edge.connections_per_source_max", "0"),
        ("edge.memory_bytes", "0"),
        ("limits.handshakes_max", "1000001"),
        ("nodes.addr", "here"),
        ("nodes.advertised_addr", "10.0.0.7"),
        ("edge.domain", "a..b"),
        ("roles", ""),
        ("database_url", "mysql://x"),
        ("event_log", "kafka://here"),
        ("event_log", ""),
        ("events.log_stream", "a.b"),
        ("events.log_replicas", "6"),
        ("shutdown.drain", "soon"),
        ("audit.retention", "29d"),
        ("events.traffic_retention", "a day"),
        ("events.traffic_retention_bytes", "1000"),
        ("acme.directory_url", "http://ca.example/dir"),
        ("acme.contact", "nobody"),
        ("acme.challenges", "http-01,dns-01"),
        ("acme.dns_hook_timeout", "4m"),
        ("oauth.callback_base", "login.example.com"),
        ("oauth.callback_base", "https://login.example.com/?a"),
        ("oauth.providers.google.token_url", "ftp://x"),
        ("oauth.providers.google.client_id", "alone"),
        ("keys.token_form", "other"),
        ("keys.leaked", "ignore"),
        ("keys.leak_partner_url", "http://partner.example/keys"),
        (
            "keys.leak_partner_url",
            "https://user:password@partner.example/keys",
        ),
    ] {
        assert!(load_with(&[], &[(key, value)]).is_err(), "{key}");
    }
}

#[test]
fn secrets_are_hidden() {
    let token = culvert_resources::access::token::Form::Prefixed
        .generate(&culvert_base::SystemClock, &culvert_base::OsEntropy);
    let settings = load_with(
        &[
            ("CULVERT_BOOTSTRAP__API_KEY", token.reveal()),
            ("CULVERT_DATABASE_URL", "postgres://u:canary@h/d"),
            ("CULVERT_EVENT_LOG", "nats://u:canary@one:4222,two:4222"),
            ("CULVERT_OAUTH__PROVIDERS__GITHUB__CLIENT_ID", "me"),
            ("CULVERT_OAUTH__PROVIDERS__GITHUB__CLIENT_SECRET", "canary"),
        ],
        &[],
    )
    .unwrap();
    let shown = settings.shown().to_string();
    assert!(!shown.contains("canary") && !shown.contains(token.reveal()));
    assert!(shown.contains("nats://u:[secret]@one:4222,nats://two:4222"));
    let error = load_with(&[("CULVERT_EVENT_LOG", "http://u:canary@one")], &[]).unwrap_err();
    assert!(!error.0.contains("canary"), "{error}");
}

#[test]
fn every_key_is_documented() {
    for key in keys() {
        assert!(!key.doc.is_empty(), "{}", key.name);
    }
}

#[test]
fn every_reloadable_key_exists() {
    let keys: Vec<String> = keys().iter().map(|key| key.name.clone()).collect();
    for live in LIVE {
        assert!(keys.iter().any(|key| key == live), "{live}");
    }
}

/// A wrong line may have a secret, and so may a value of a wrong type.
#[test]
fn an_invalid_configuration_is_refused_without_its_values() {
    const PLANT: &str = "planted-5f1c9e";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("culvert.toml");
    for (text, line) in [
        (format!("[bootstrap]\napi_key = \"{PLANT}\n"), Some("line ")),
        (format!("[bootstrap]\n\napi_key = {PLANT}\n"), Some("line ")),
        (
            format!("a = 1\ndatabase_url = \"x:{PLANT}@y\" z\n"),
            Some("line "),
        ),
        (format!("[edge]\nconnections_max = \"{PLANT}\"\n"), None),
        (format!("edge = \"{PLANT}\"\n"), None),
        (format!("[edge]\ntcp_ports = [\"{PLANT}\"]\n"), None),
    ] {
        std::fs::write(&path, &text).unwrap();
        let Invalid(why) = load(Some(&path), &HashMap::new(), &[]).unwrap_err();
        assert!(!why.contains(PLANT), "{text}: {why}");
        assert!(line.is_none_or(|line| why.contains(line)), "{text}: {why}");
    }
}

#[test]
fn directories_with_files_of_the_server_are_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for name in ["data", "sites", "data/sites"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::os::unix::fs::symlink(at("data"), at("link")).unwrap();
    let data = at("data");
    for (allowed, is_refused) in [
        (at("sites"), false),
        (at("absent"), false),
        (at("data"), true),
        (at("data/sites"), true),
        (at("link"), true),
        (at(""), true),
        ("/".to_owned(), true),
    ] {
        let loaded = load_with(
            &[("CULVERT_EDGE__ALLOW_FILE_UPSTREAMS", &*allowed)],
            &[("data_dir", &*data)],
        );
        match loaded {
            Ok(_) => assert!(!is_refused, "{allowed}"),
            Err(Invalid(why)) => {
                assert!(is_refused && why.contains("of the server itself"), "{why}");
            }
        }
    }
}
