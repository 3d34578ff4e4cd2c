use serde_json::json;

use super::*;

/// As a Rust-based agent sends it.
const AUTH_OF_RUST: &str = r#"{"Version":["3","2"],"ClientId":"","Extra":{"OS":"linux","Arch":"x86_64",
"AuthToken":"2hTok","Version":"0.19.0","Hostname":"","UserAgent":"ngrok-rust/0.19.0","Metadata":"m",
"Cookie":"","HeartbeatInterval":10000000000,"HeartbeatTolerance":15000000000,"Fingerprint":null,
"UpdateUnsupportedError":"no","StopUnsupportedError":"","RestartUnsupportedError":null,"ProxyType":"",
"MutualTLS":false,"ServiceRun":false,"ConfigVersion":"","CustomInterface":false,"CustomCAs":false,
"ClientType":"ngrok-rust"}}"#;

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn an_agent_introduces_itself_in_either_spelling() {
    let rust: AuthRequest = parse(value(AUTH_OF_RUST)).unwrap();
    assert_eq!(rust.versions, ["3", "2"]);
    assert_eq!(rust.extra.token, "2hTok");
    assert_eq!(rust.extra.heartbeat_tolerance, 15_000_000_000);
    assert_eq!(rust.extra.update_unsupported.as_deref(), Some("no"));
    assert_eq!(rust.extra.stop_unsupported.as_deref(), Some(""));
    assert_eq!(rust.extra.restart_unsupported, None);

    let go = AUTH_OF_RUST
        .replace("AuthToken", "Authtoken")
        .replace("\"ClientType\"", "\"LegNumber\":2,\"ClientType\"");
    let go: AuthRequest = parse(value(&go)).unwrap();
    assert_eq!((&go.extra.token[..], go.extra.leg), ("2hTok", 2));
}

#[test]
fn our_own_introduction_is_one_that_we_read() {
    let sent = AuthRequest {
        versions: vec![VERSION.into()],
        extra: AuthExtra {
            token: "t".into(),
            stop_unsupported: Some(String::new()),
            ..AuthExtra::default()
        },
        ..AuthRequest::default()
    };
    let first = call(StreamType::AUTH, &sent);
    assert_eq!(first[..4], [0, 0, 0, 0]);
    let read: AuthRequest = parse(serde_json::from_slice(&first[4..]).unwrap()).unwrap();
    assert_eq!(read, sent);
}

/// Names are literal: agents in Rust refuse a reply that spells them otherwise.
#[test]
fn replies_have_the_names_that_agents_want() {
    let auth = AuthReply {
        version: VERSION.into(),
        client_id: "ts_1".into(),
        ..AuthReply::default()
    };
    assert_eq!(
        serde_json::to_value(&auth).unwrap(),
        json!({
            "Version": "3",
            "ClientId": "ts_1",
            "Extra": {
                "Version": "", "Region": "", "Cookie": "", "AccountName": "", "PlanName": "",
                "Banner": "", "SessionDuration": 0, "AgentSessionID": ""
            }
        })
    );
    let bind = BindReply {
        id: "b".into(),
        url: "https://a.example.test".into(),
        proto: "https".into(),
        opts: json!({"Hostname": ""}),
        ..BindReply::default()
    };
    assert_eq!(
        serde_json::to_value(&bind).unwrap(),
        json!({
            "Id": "b", "URL": "https://a.example.test", "Proto": "https",
            "Opts": {"Hostname": ""}, "Extra": {"Token": "", "TunnelID": ""}
        })
    );
    assert_eq!(&reply(&Outcome::default())[..], b"{}");
}

#[test]
fn a_refusal_is_read_by_every_agent() {
    let unknown = Refusal::uncoded(culvert_base::Class::Invalid, "nobody knows it");
    assert_eq!(error_text(&unknown), "nobody knows it");
    assert_eq!(code_of("nobody knows it"), None);
    let known = culvert_base::refusal::CODES
        .iter()
        .filter_map(|row| Code::find(row.number));
    for code in known {
        let text = Outcome::of(code).error;
        assert!(text.ends_with(&format!("\r\n\r\n{code}\r\n")));
        assert_eq!(code_of(&text), Some(code.number()));
    }
}

/// Everything set, as captured from an agent in Python.
const BIND_OF_PYTHON: &str = r#"{"Id":"","Proto":"http","ForwardsTo":"fwd","ForwardsProto":"http2",
"Opts":{"Hostname":"app.example.test","Auth":"","Subdomain":"","HostHeaderRewrite":false,
"LocalUrlScheme":null,"ProxyProto":1,"Compression":{},"CircuitBreaker":{"error_threshold":0.5},
"IPRestriction":{"allow_cidrs":["10.0.0.0/8"],"deny_cidrs":["10.1.0.0/16"]},
"BasicAuth":{"credentials":[{"username":"u","cleartext_password":"secretpw"}]},
"OAuth":{"provider":"google","client_id":"cid","client_secret":"csec","allow_emails":["a@example.test"],"allow_domains":["example.test"],"scopes":["s1"]},
"OIDC":{"issuer_url":"https://id.example.test","client_id":"cid","client_secret":"csec"},
"WebhookVerification":{"provider":"github","secret":"whsec"},"MutualTLSCA":{"mutual_tls_ca":"LS0t"},
"RequestHeaders":{"add":["x-a:1"],"remove":["x-c"]},"ResponseHeaders":{"add":["x-b:2"],"remove":["x-d"]},
"WebsocketTCPConverter":{},"UserAgentFilter":{"allow":["foo.*"],"deny":["bar.*"]},
"TrafficPolicy":"{\"on_http_request\":[]}"},
"Extra":{"Token":"","IPPolicyRef":"","Metadata":"m","Bindings":[]}}"#;

#[test]
fn a_bind_is_understood_in_full() {
    let request = BindRequest::read(value(BIND_OF_PYTHON)).unwrap();
    assert_eq!(
        (&request.proto[..], &request.forwards_proto[..]),
        ("http", "http2")
    );
    assert_eq!(request.extra.metadata, "m");
    let options = request.options().unwrap();
    assert_eq!(options.requested(), Some("app.example.test"));
    assert_eq!(options.proxy_proto, 1);
    assert!(options.compression.is_some() && options.websocket_tcp_converter.is_some());
    assert_eq!(options.circuit_breaker.unwrap().error_threshold, 0.5);
    assert_eq!(options.ip_restriction.unwrap().deny_cidrs, ["10.1.0.0/16"]);
    let basic = options.basic_auth.unwrap();
    assert_eq!(basic.credentials[0].cleartext_password.reveal(), "secretpw");
    assert_eq!(options.oauth.unwrap().allow_domains, ["example.test"]);
    assert_eq!(options.oidc.unwrap().issuer_url, "https://id.example.test");
    assert_eq!(options.webhook_verification.unwrap().provider, "github");
    assert_eq!(options.mutual_tls_ca.unwrap().mutual_tls_ca, "LS0t");
    assert_eq!(options.request_headers.unwrap().add, ["x-a:1"]);
    assert_eq!(options.response_headers.unwrap().remove, ["x-d"]);
    assert_eq!(options.user_agent_filter.unwrap().deny, ["bar.*"]);
    assert_eq!(options.traffic_policy, r#"{"on_http_request":[]}"#);
    assert_eq!(options.tls_termination, None);
}

#[test]
fn an_agent_gets_its_options_back_as_it_spelled_them() {
    let request = BindRequest::read(value(BIND_OF_PYTHON)).unwrap();
    let back = request.options_with("app.example.test", "http://app.example.test");
    assert_eq!(back, value(BIND_OF_PYTHON)["Opts"]);

    let named = |opts: Value, proto: &str| {
        let request = BindRequest::read(json!({"Proto": proto, "Opts": opts})).unwrap();
        request.options_with("a.example.test:7", "tcp://a.example.test:7")
    };
    assert_eq!(
        named(json!({"Domain": "", "Hostname": ""}), "https"),
        json!({"Domain": "a.example.test:7", "Hostname": ""})
    );
    assert_eq!(
        named(json!({"URL": ""}), "tcp"),
        json!({"URL": "tcp://a.example.test:7"})
    );
    assert_eq!(
        named(Value::Null, "tcp"),
        json!({"Addr": "a.example.test:7"})
    );
}

#[test]
fn what_a_go_agent_leaves_null_is_absent() {
    let request = BindRequest::read(json!({
        "Id": "", "Proto": "https", "ForwardsTo": "", "ForwardsProto": "",
        "Opts": {"URL": "https://", "Domain": "", "BasicAuth": null, "OAuth": null,
                 "LocalURLScheme": null, "ProxyProto": 0, "TrafficPolicy": null, "Policy": null},
        "Extra": {"Token": "", "Bindings": null, "PoolingEnabled": true, "Name": "n",
                  "Description": "d"}
    }))
    .unwrap();
    assert!(request.extra.bindings.is_empty() && request.extra.pooling_enabled);
    let options = request.options().unwrap();
    assert_eq!(options.requested(), Some("https://"));
    assert_eq!(options.basic_auth, None);
    assert!(options.traffic_policy.is_empty());
    let unbind: UnbindRequest = parse(json!({"Id": "b", "Extra": null})).unwrap();
    assert_eq!(unbind.id, "b");
}

#[test]
fn labels_keep_their_spelling() {
    let request: LabelledRequest =
        parse(json!({"Labels": {"Edge": "E_1"}, "ForwardsTo": "x"})).unwrap();
    assert_eq!(request.labels["Edge"], "E_1");
}

#[test]
fn the_header_of_a_connection_has_the_bytes_of_the_capture() {
    let header = ProxyHeader {
        id: "ep_1234567890123456789012345".into(),
        client_addr: "203.0.113.9:51234".into(),
        proto: "https".into(),
        edge_type: "3".into(),
        passthrough_tls: false,
    };
    let first = header.encode();
    let json = br#"{"Id":"ep_1234567890123456789012345","ClientAddr":"203.0.113.9:51234","Proto":"https","EdgeType":"3","PassthroughTLS":false}"#;
    assert_eq!(first[..4], [0, 0, 0, 3]);
    assert_eq!(first[4..12], (json.len() as u64).to_le_bytes());
    assert_eq!(first[12..], json[..]);
    assert_eq!(
        ProxyHeader::length(first[4..12].try_into().unwrap()),
        Some(json.len())
    );
    assert_eq!(ProxyHeader::length([0xFF; 8]), None);
    assert_eq!(
        parse::<ProxyHeader>(value(std::str::from_utf8(json).unwrap())).unwrap(),
        header
    );
}

#[test]
fn types_have_their_numbers() {
    let numbers = [
        (StreamType::AUTH, 0),
        (StreamType::BIND, 1),
        (StreamType::UNBIND, 2),
        (StreamType::PROXY, 3),
        (StreamType::RESTART, 4),
        (StreamType::STOP, 5),
        (StreamType::UPDATE, 6),
        (StreamType::LABELLED, 7),
        (StreamType::SERVER_INFO, 8),
        (StreamType::STOP_ENDPOINT, 9),
        (StreamType::PATCH_ENDPOINT, 10),
        (StreamType::HEARTBEAT, u32::MAX),
    ];
    for (kind, number) in numbers {
        assert_eq!(kind, StreamType(number));
        assert_eq!(StreamType::from_bytes(kind.to_bytes()), kind);
    }
    assert_eq!(format!("{:?}", StreamType(77)), "StreamType(77)");
}
