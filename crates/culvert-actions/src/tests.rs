//! Policies that are accepted, and those that are rejected, by code (contract: traffic policy 11).

use std::sync::Arc;

use culvert_base::Refusal;
use culvert_ip_data::address::IpPolicy;
use culvert_policy::action_type::Actions;
use culvert_policy::policy::context::Resources;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::variables;
use culvert_policy::{Policy, Scheme, Source};
use culvert_yaml::TEXT_BYTES_MAX;

use crate::action;

/// The actions of this crate.
const ACTIONS: Actions = Actions(&[action::ALL]);

/// The refusal of a policy for an http endpoint with an upstream: its code and its sentence.
fn refused(text: &str) -> (u16, String) {
    refused_for(Scheme::Https, true, text)
}

fn refused_for(scheme: Scheme, has_upstream: bool, text: &str) -> (u16, String) {
    match compiled(scheme, has_upstream, text) {
        Ok(_) => (0, String::new()),
        Err(refusal) => (refusal.code.unwrap().number(), refusal.message.into_owned()),
    }
}

fn compiled(scheme: Scheme, has_upstream: bool, text: &str) -> Result<Policy, Refusal> {
    let mut resources = Resources::default();
    let policy = Arc::new(IpPolicy::default());
    resources.ip_policies.insert("ipp_1".to_owned(), policy);
    Source::read(text, ACTIONS)?.compile(scheme, has_upstream, &resources)
}

/// A policy with one action in the request phase.
fn action(config: &str) -> String {
    format!("on_http_request:\n- actions:\n  - {config}\n")
}

#[test]
fn policy_documents_compile_or_are_refused() {
    for (text, code, said) in [
        ("{}", 0, ""),
        ("on_http_request: []", 0, ""),
        ("on_http_request:\n- actions: [{type: deny}]", 0, ""),
        (
            "on_http_request:\n- expressions: [true, 'false']\n  name: x\n  actions: [{type: deny, config: {}}]",
            0,
            "",
        ),
        (
            r#"{"on_http_request":[{"actions":[{"type":"deny"}]}]}"#,
            0,
            "",
        ),
        ("", 2236, "must be an object"),
        ("- a", 2236, "must be an object"),
        ("a: [", 2236, "line"),
        ("inbound: []", 2236, "renamed to `on_http_request`"),
        ("outbound: []", 2236, "renamed to `on_http_response`"),
        ("nope: []", 2236, "unknown phase `nope`"),
        ("on_event_stream_message: []", 2204, "not supported"),
        ("on_http_request: {}", 2236, "list of rules"),
        ("on_http_request: [1]", 2236, "on_http_request, rule 1"),
        (
            "on_http_request:\n- {action: x}",
            2236,
            "unknown field `action`",
        ),
        (
            "on_http_request:\n- {name: a}",
            2206,
            "rule 1 (a): it has no actions",
        ),
        (
            "on_http_request:\n- {name: 1, actions: [{type: deny}]}",
            2236,
            "`name`",
        ),
        (
            "on_http_request:\n- {actions: deny}",
            2236,
            "must be a list",
        ),
        ("on_http_request:\n- {actions: [deny]}", 2236, "action 1"),
        (
            "on_http_request:\n- {actions: [{config: {}}]}",
            2201,
            "`type`",
        ),
        (
            "on_http_request:\n- {actions: [{type: deny, x: 1}]}",
            2236,
            "unknown field `x`",
        ),
        (
            "on_http_request:\n- {actions: [{type: nope}]}",
            2201,
            "unknown action `nope`",
        ),
        (
            "on_http_request:\n- {actions: [{type: saml}]}",
            2204,
            "not supported",
        ),
        (
            "on_http_response:\n- {actions: [{type: deny}]}",
            2202,
            "only in on_tcp_connect and on_http_request",
        ),
        (
            "on_http_request:\n- {actions: [{type: deny}, {type: deny}]}",
            2207,
            "action 2: `deny` can never run",
        ),
        (
            "on_http_request:\n- {expressions: [1], actions: [{type: deny}]}",
            2200,
            "expression 1",
        ),
        (
            "on_http_request:\n- {expressions: ['1'], actions: [{type: deny}]}",
            2200,
            "must be a bool",
        ),
        (
            "on_http_request:\n- {expressions: ['res.status_code == 1'], actions: [{type: deny}]}",
            2200,
            "cannot be used here",
        ),
        (
            "on_http_request:\n- {expressions: ['req.host.starts_with(\"a\")'], actions: [{type: deny}]}",
            2200,
            "startsWith",
        ),
        (
            "on_http_request:\n- {expressions: ['[x*2 for x in [1]] == []'], actions: [{type: deny}]}",
            2200,
            "",
        ),
        (
            "on_http_request:\n- {expressions: ['has(req.headers[\"a\"])'], actions: [{type: deny}]}",
            0,
            "",
        ),
    ] {
        let (found, sentence) = refused(text);
        assert_eq!(found, code, "{text}: {sentence}");
        assert!(sentence.contains(said), "{text}: {sentence}");
        assert!(
            code == 0 || sentence.starts_with("The traffic policy is invalid: "),
            "{sentence}"
        );
    }
}

#[test]
fn policies_beyond_the_limits_are_refused() {
    let rule = "{actions: [{type: deny}]}";
    for (text, code) in [
        (
            format!("on_http_request: [{}]", vec![rule; 100].join(",")),
            0,
        ),
        (
            format!("on_http_request: [{}]", vec![rule; 101].join(",")),
            2264,
        ),
        (
            action(&format!(
                "type: log\n    config: {{metadata: {{}}}}\n{}",
                "  - {type: log, config: {metadata: {}}}\n".repeat(19)
            )),
            0,
        ),
        (
            action(&format!(
                "type: log\n    config: {{metadata: {{}}}}\n{}",
                "  - {type: log, config: {metadata: {}}}\n".repeat(20)
            )),
            2265,
        ),
        (
            format!(
                "on_http_request: [{{expressions: [{}], actions: [{{type: deny}}]}}]",
                vec!["true"; 20].join(",")
            ),
            0,
        ),
        (
            format!(
                "on_http_request: [{{expressions: [{}], actions: [{{type: deny}}]}}]",
                vec!["true"; 21].join(",")
            ),
            2265,
        ),
        (
            format!(
                "on_http_request: [{{name: {}, actions: [{{type: deny}}]}}]",
                "x".repeat(255)
            ),
            0,
        ),
        (
            format!(
                "on_http_request: [{{name: {}, actions: [{{type: deny}}]}}]",
                "x".repeat(256)
            ),
            2221,
        ),
        (
            format!(
                "on_http_request: [{{expressions: ['\"{}\" == \"\"'], actions: [{{type: deny}}]}}]",
                "x".repeat(4097)
            ),
            2200,
        ),
        (" ".repeat(TEXT_BYTES_MAX + 1), 2236),
    ] {
        let (found, sentence) = refused(&text);
        assert_eq!(
            found,
            code,
            "{}: {sentence}",
            text.chars().take(80).collect::<String>()
        );
    }
}

/// A pattern of a few bytes may take a megabyte, and YAML repeats it with four bytes.
#[test]
fn the_patterns_of_a_policy_share_a_budget() {
    const LARGE: &str = r"\\pL{15}";
    let often = |item: &str, count: usize| format!("&a {item}{}", ", *a".repeat(count - 1));
    let condition = format!(
        r#""req.url.path.matches('{}')""#,
        LARGE.replace('\\', r"\\")
    );
    let replaced = format!(r#"{{from: "{LARGE}", to: a}}"#);
    let rewritten = format!(r#"{{type: url-rewrite, config: {{from: "{LARGE}", to: a}}}}"#);
    let template = format!(
        r#""${{req.url.path.matches('{}')}}""#,
        LARGE.replace('\\', r"\\")
    );
    let of = |count| {
        [
            format!(
                "on_http_request: [{{expressions: [{}], actions: [{{type: deny}}]}}]",
                often(&condition, count)
            ),
            action(&format!(
                "{{type: request-body-find-replace, config: {{replacements: [{}]}}}}",
                often(&replaced, count)
            )),
            format!(
                "on_http_request: [{{actions: [{}]}}]",
                often(&rewritten, count)
            ),
            action(&format!(
                "{{type: log, config: {{metadata: {{a: [{}]}}}}}}",
                often(&template, count)
            )),
        ]
    };
    for text in of(2) {
        assert_eq!(refused(&text), (0, String::new()), "{text}");
    }
    let resources = Resources {
        is_written: true,
        ..Resources::default()
    };
    for text in of(18) {
        let source = Source::read(&text, ACTIONS).unwrap();
        let refusal = source.compile(Scheme::Https, true, &resources).unwrap_err();
        let is_said = refusal
            .message
            .contains("larger than 4194304 bytes together");
        assert!(is_said, "{refusal:?}");
        // One that is stored stays usable.
        assert_eq!(refused(&text), (0, String::new()), "{text}");
    }
}

#[test]
fn phases_and_upstreams_fit_the_endpoint() {
    let deny = "on_http_request: [{actions: [{type: deny}]}]";
    let maybe = "on_http_request: [{expressions: ['false'], actions: [{type: deny}]}]";
    let connect = "on_tcp_connect: [{actions: [{type: deny}]}]";
    let moved = "on_http_request: [{actions: [{type: redirect, config: {to: 'https://x'}}]}]";
    let partly = "on_http_request: [{actions: [{type: redirect, config: {from: a, to: b}}]}]";
    for (scheme, has_upstream, text, code) in [
        (Scheme::Http, false, deny, 0),
        (Scheme::Http, false, moved, 0),
        (Scheme::Http, false, maybe, 2235),
        (Scheme::Http, false, partly, 2235),
        (Scheme::Http, false, connect, 2235),
        (Scheme::Http, true, maybe, 0),
        (Scheme::Tcp, true, deny, 2230),
        (Scheme::Tls, true, deny, 2230),
        (Scheme::Tcp, true, connect, 0),
    ] {
        let (found, sentence) = refused_for(scheme, has_upstream, text);
        assert_eq!(found, code, "{scheme:?} {text}: {sentence}");
    }
}

#[test]
fn invalid_action_configurations_are_refused() {
    let long = "x".repeat((64 << 10) + 1);
    for (text, code, said) in [
        ("type: deny\n    config: {status_code: 451}", 0, ""),
        (
            "type: deny\n    config: {status_code: 399}",
            2215,
            "`status_code` must be from 400 to 599",
        ),
        (
            "type: deny\n    config: {status_code: no}",
            2203,
            "`status_code`: it must be u16",
        ),
        (
            "type: deny\n    config: {status: 1}",
            2203,
            "unknown field `status`",
        ),
        (
            "type: close-connection\n    config: {a: 1}",
            2203,
            "unknown field",
        ),
        ("type: log", 2234, "missing field `metadata`"),
        (
            "type: log\n    config: {metadata: {a: '${req.host}', b: [{c: '${1}'}]}}",
            0,
            "",
        ),
        (
            "type: log\n    config: {metadata: {a: '${req.hos}'}}",
            2224,
            "`metadata`",
        ),
        ("type: restrict-ips", 2234, "one of `allow`"),
        (
            "type: restrict-ips\n    config: {allow: [203.0.113.7/24, '::1']}",
            0,
            "",
        ),
        (
            "type: restrict-ips\n    config: {allow: [203.0.113.0/33]}",
            2217,
            "`allow[0]`",
        ),
        (
            "type: restrict-ips\n    config: {deny: ['${req.headers[\"x\"][0]}']}",
            0,
            "",
        ),
        (
            "type: restrict-ips\n    config: {ip_policies: [ipp_1]}",
            0,
            "",
        ),
        (
            "type: restrict-ips\n    config: {ip_policies: [ipp_2]}",
            2216,
            "`ipp_2`",
        ),
        (
            "type: custom-response\n    config: {body: hello, headers: {x-a: 'b ${req.host}'}}",
            0,
            "",
        ),
        (
            "type: custom-response\n    config: {status_code: 199}",
            2215,
            "200 to 599",
        ),
        (
            "type: custom-response\n    config: {status_code: 204, body: x}",
            2204,
            "cannot have a `body`",
        ),
        (
            "type: custom-response\n    config: {headers: {'a b': c}}",
            2204,
            "`headers.a b`",
        ),
        (
            "type: custom-response\n    config: {headers: {a: \"b\\nc\"}}",
            2204,
            "line breaks",
        ),
        (
            &format!("type: custom-response\n    config: {{body: {long}}}"),
            2221,
            "`body`",
        ),
        (
            "type: add-headers\n    config: {headers: {}}",
            2223,
            "`headers`",
        ),
        (
            "type: add-headers\n    config: {headers: {User-Agent: x}}",
            2204,
            "`user-agent`",
        ),
        (
            "type: add-headers\n    config: {headers: {Transfer-Encoding: x}}",
            2204,
            "`transfer-encoding`",
        ),
        (
            "type: add-headers\n    config: {headers: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1, j: 1, k: 1}}",
            2203,
            "",
        ),
        ("type: remove-headers\n    config: {headers: [x-a]}", 0, ""),
        (
            "type: remove-headers\n    config: {headers: [content-length]}",
            2204,
            "content-length",
        ),
        (
            "type: remove-headers\n    config: {headers: [a, b, c, d, e, f, g, h, i, j, k]}",
            2218,
            "11 entries",
        ),
        (
            "type: set-vars\n    config: {vars: [{a: 1}, {b: {c: [1, '${vars.a}']}}]}",
            0,
            "",
        ),
        (
            "type: set-vars\n    config: {vars: [{a: 1, b: 2}]}",
            2252,
            "`vars[0]`",
        ),
        (
            "type: set-vars\n    config: {vars: [{'1a': 1}]}",
            2252,
            "`vars[0]`",
        ),
        (
            "type: set-vars\n    config: {vars: [{a: [[[[[[[[[[[1]]]]]]]]]]]}]}",
            2250,
            "10 levels",
        ),
        ("type: redirect\n    config: {to: ''}", 2223, "`to`"),
        (
            "type: redirect\n    config: {to: x, from: '('}",
            2204,
            "`from`",
        ),
        (
            "type: redirect\n    config: {to: x, status_code: 304}",
            2222,
            "`status_code`",
        ),
        (
            "type: url-rewrite\n    config: {from: '/a/(.*)', to: '/b/$1'}",
            0,
            "",
        ),
    ] {
        let (found, sentence) = refused(&action(text));
        assert_eq!(found, code, "{text}: {sentence}");
        assert!(sentence.contains(said), "{text}: {sentence}");
    }
}

#[test]
fn references_of_policies_are_found() {
    let text = action("type: restrict-ips\n    config: {ip_policies: [ipp_1, ipp_9, ipp_1]}");
    let references = Source::read(&text, ACTIONS).unwrap().references();
    let ids: Vec<_> = references
        .iter()
        .map(|one| (one.prefix, one.id.as_str()))
        .collect();
    assert_eq!(ids, [("ipp", "ipp_1"), ("ipp", "ipp_9")]);
}

#[test]
fn invalid_configurations_of_access_actions_are_refused() {
    let short = "x".repeat(7);
    let long = "x".repeat(129);
    for (text, code, said) in [
        (
            "type: basic-auth\n    config: {credentials: ['me:password', '${vars.a}', 'you:${vars.b}']}",
            0,
            "",
        ),
        ("type: basic-auth", 2234, "credentials"),
        (
            "type: basic-auth\n    config: {credentials: []}",
            2223,
            "`credentials`",
        ),
        (
            "type: basic-auth\n    config: {credentials: [nobody]}",
            2257,
            "`user:password`",
        ),
        (
            "type: basic-auth\n    config: {credentials: [':password']}",
            2257,
            "user",
        ),
        (
            &format!("type: basic-auth\n    config: {{credentials: ['me:{short}']}}"),
            2258,
            "8 to 128",
        ),
        (
            &format!("type: basic-auth\n    config: {{credentials: ['me:{long}']}}"),
            2258,
            "8 to 128",
        ),
        (
            "type: basic-auth\n    config: {credentials: [\"me:pass\\u0007word\"]}",
            2258,
            "control",
        ),
        (
            "type: basic-auth\n    config: {credentials: ['me:password'], realm: é}",
            2204,
            "ASCII",
        ),
        (
            &format!(
                "type: basic-auth\n    config: {{credentials: ['me:password'], realm: {long}}}"
            ),
            2221,
            "`realm`",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: 60s, bucket_key: ['conn.client_ip']}",
            0,
            "",
        ),
        (
            "type: rate-limit\n    config: {capacity: 0, rate: 60s, bucket_key: ['conn.client_ip']}",
            2215,
            "`capacity`",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: 61s, bucket_key: ['conn.client_ip']}",
            2215,
            "10s",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: 50s, bucket_key: ['conn.client_ip']}",
            2215,
            "from 60s to 86400s",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: soon, bucket_key: ['conn.client_ip']}",
            2203,
            "`rate`",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: 1m, bucket_key: []}",
            2223,
            "`bucket_key`",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: 1m, bucket_key: [nope]}",
            2200,
            "`bucket_key[0]`",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: 1m, bucket_key: ['1'], algorithm: x}",
            2222,
            "`algorithm`",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: 1m, bucket_key: ['1'], scope: node}",
            0,
            "",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: 1m, bucket_key: ['1'], scope: cluster}",
            0,
            "",
        ),
        (
            "type: rate-limit\n    config: {capacity: 1, rate: 1m, bucket_key: ['1'], scope: world}",
            2203,
            "`scope`: it must be `node` or `cluster`",
        ),
        ("type: circuit-breaker", 0, ""),
        (
            "type: circuit-breaker\n    config: {error_threshold: 1.1}",
            2215,
            "`error_threshold`",
        ),
        (
            "type: circuit-breaker\n    config: {volume_threshold: 0}",
            2215,
            "`volume_threshold`",
        ),
        (
            "type: circuit-breaker\n    config: {window_duration: 3m}",
            2215,
            "`window_duration`",
        ),
        (
            "type: circuit-breaker\n    config: {tripped_duration: 100ms}",
            2215,
            "`tripped_duration`",
        ),
        (
            "type: circuit-breaker\n    config: {num_buckets: 5}",
            2215,
            "`num_buckets`",
        ),
    ] {
        let (found, sentence) = refused(&action(text));
        assert_eq!(found, code, "{text}: {sentence}");
        assert!(sentence.contains(said), "{text}: {sentence}");
    }
}

#[test]
fn secrets_are_redacted_and_restored() {
    let text = "# mine\non_http_request:\n- name: é\n  actions:\n  - type: basic-auth\n    config:\n      credentials: [ 'me:password', \"${vars.x}\" ] # two\n      realm: r\n";
    let source = Source::read(text, ACTIONS).unwrap();
    let shown = source.redacted().unwrap();
    assert_eq!(shown, text.replace("'me:password'", "\"[redacted]\""));
    // The secret is restored even if the rule changed, because there is only one.
    for again in [shown.clone(), shown.replace("realm: r", "realm: other")] {
        let restored = Source::read(&again, ACTIONS)
            .unwrap()
            .restored(Some(&source))
            .unwrap();
        assert_eq!(restored.text(), again.replace("[redacted]", "me:password"));
        assert_eq!(restored.redacted().unwrap(), again);
    }
    let nobody = Source::read(&shown, ACTIONS)
        .unwrap()
        .restored(None)
        .unwrap_err();
    assert_eq!(nobody.code.unwrap().number(), 2204);

    // Two secrets are identified by their rules.
    let rule = |name: &str, secret: &str| {
        format!(
            "- {{name: {name}, actions: [{{type: basic-auth, config: {{credentials: [{secret}]}}}}]}}\n"
        )
    };
    let both = |one: String, two: String| {
        Source::read(&format!("on_http_request:\n{one}{two}"), ACTIONS).unwrap()
    };
    let stored = both(rule("a", "'a:password1'"), rule("b", "'b:password2'"));
    let swapped = both(rule("b", "'[redacted]'"), rule("a", "'[redacted]'"));
    let restored = swapped.restored(Some(&stored)).unwrap();
    assert_eq!(
        restored.text(),
        both(rule("b", "\"b:password2\""), rule("a", "\"a:password1\"")).text()
    );
    let unclear = both(rule("c", "'[redacted]'"), rule("a", "'[redacted]'"));
    assert!(unclear.restored(Some(&stored)).is_err());

    // If a secret cannot be replaced in the text, the policy is shown as JSON.
    let block = Source::read("on_http_request:\n- actions:\n  - type: basic-auth\n    config:\n      credentials:\n      - |-\n        me:password\n", ACTIONS).unwrap();
    let shown = block.redacted().unwrap();
    assert!(
        shown.starts_with('{') && !shown.contains("password"),
        "{shown}"
    );
    assert_eq!(
        Source::read("on_http_request: []", ACTIONS)
            .unwrap()
            .redacted(),
        None
    );
}

#[test]
fn rules_that_differ_only_in_secrets_keep_their_own() {
    let rule = |secret: &str| {
        format!(
            "- actions: [{{type: verify-webhook, config: {{provider: github, secret: {secret}}}}}]"
        )
    };
    let text = |secrets: [&str; 2]| {
        let [a, b] = secrets.map(rule);
        format!("on_http_request:\n{a}\n{b}\n")
    };
    let stored = Source::read(&text(["first", "second"]), ACTIONS).unwrap();
    let shown = stored.redacted().unwrap();
    assert!(
        !shown.contains("first") && !shown.contains("second"),
        "{shown}"
    );
    let restored = Source::read(&shown, ACTIONS)
        .unwrap()
        .restored(Some(&stored))
        .unwrap();
    assert_eq!(restored.text(), text(["\"first\"", "\"second\""]));
}

/// A new policy must not name a variable that never has a value; stored policies continue to run.
#[test]
fn variables_without_a_source_are_refused() {
    let judged = Resources {
        ip_data: Some(Arc::default()),
        ..Resources::default()
    };
    let mut refused = Vec::new();
    for variable in variables::ALL.iter() {
        for phase in Phase::ALL
            .into_iter()
            .filter(|phase| variable.since <= *phase)
        {
            let is_known = match variable.filled {
                variables::Filled::Never => false,
                variables::Filled::Answered => phase == Phase::Response,
                // Rejected for missing data, or not a name in policies.
                variables::Filled::Data(_) | variables::Filled::Hidden => continue,
                _ => true,
            };
            let rule = format!("[\"{0} == {0}\"]", variable.path);
            let logs = format!(
                "{{type: log, config: {{metadata: {{a: '${{{}}}'}}}}}}",
                variable.path
            );
            for text in [
                format!(
                    "{}: [{{expressions: {rule}, actions: [{{type: log, config: {{metadata: {{a: b}}}}}}]}}]",
                    phase.name()
                ),
                format!("{}: [{{actions: [{logs}]}}]", phase.name()),
            ] {
                let source = Source::read(&text, ACTIONS).unwrap();
                let made = source.compile(Scheme::Https, true, &judged);
                match (made, is_known) {
                    (Ok(_), true) => {}
                    (Err(refusal), false) => {
                        let message = refusal.message;
                        assert!(
                            message.contains(&format!("`{}`", variable.path)),
                            "{message}"
                        );
                        refused.push(variable.path.to_string());
                    }
                    (made, _) => panic!("{text}: {made:?}"),
                }
                let stored = source.compile(Scheme::Https, true, &Resources::default());
                assert!(stored.is_ok(), "{text}: {stored:?}");
            }
        }
    }
    for path in [
        "req.trailers",
        "res.trailers",
        "req.user_agent.is_bot",
        "req.ts.body_received",
    ] {
        assert!(
            refused.iter().any(|known| known == path),
            "{path}: {refused:?}"
        );
    }
}

/// If one of three rules that differ only in their secrets was removed, their order does not identify the others.
#[test]
fn an_ambiguous_secret_is_not_restored() {
    let rules = |secrets: &[&str]| {
        let rule = |secret: &&str| {
            format!(
                "- actions: [{{type: verify-webhook, config: {{provider: github, secret: '{secret}'}}}}]\n"
            )
        };
        let rules: String = secrets.iter().map(rule).collect();
        Source::read(&format!("on_http_request:\n{rules}"), ACTIONS).unwrap()
    };
    let stored = rules(&["first", "second", "third"]);
    for n in [1, 2, 4] {
        let again = rules(&vec!["[redacted]"; n]);
        let refused = again.restored(Some(&stored)).unwrap_err();
        assert_eq!(refused.code.unwrap().number(), 2204, "{n}");
    }
    let restored = rules(&["[redacted]"; 3]).restored(Some(&stored)).unwrap();
    for secret in ["first", "second", "third"] {
        assert!(restored.text().contains(secret), "{secret}");
    }
}

/// An author who may not read the secrets keeps them in rules that are otherwise equal.
#[test]
fn a_secret_stays_in_its_rule_for_an_author_who_may_not_read_it() {
    let rule = |provider: &str, secret: &str| {
        let text = format!(
            "on_http_request:\n- actions: [{{type: verify-webhook, config: {{provider: {provider}, secret: '{secret}'}}}}]\n"
        );
        Source::read(&text, ACTIONS).unwrap()
    };
    let stored = rule("github", "hush");
    let same = rule("github", "[redacted]").restored_in_place(Some(&stored));
    assert!(same.unwrap().text().contains("hush"));
    let changed = || rule("slack", "[redacted]");
    assert!(changed().restored_in_place(Some(&stored)).is_err());
    let restored = changed().restored(Some(&stored)).unwrap();
    assert!(restored.text().contains("hush"));
    // The caller that sends the secret knows it.
    let known = rule("slack", "hush").restored_in_place(Some(&stored));
    assert!(known.unwrap().has_only_secrets_of(&stored));
    assert!(!rule("slack", "another").has_only_secrets_of(&stored));
}

/// Only a text that is one expression is shown.
#[test]
fn text_around_expressions_is_redacted() {
    for (text, is_secret) in [
        ("${vars.x}", false),
        ("${secrets.get('v', 's')}", false),
        ("${vars.x}-hush-${vars.y}", true),
        ("${vars.x} }hush${ x}", true),
        ("hush", true),
    ] {
        let policy = format!(
            "on_http_request:\n- actions: [{{type: verify-webhook, config: {{provider: github, secret: \"{text}\"}}}}]\n"
        );
        let source = Source::read(&policy, ACTIONS).unwrap();
        let shown = source.redacted().unwrap_or(policy);
        assert_eq!(!shown.contains(text), is_secret, "{shown}");
    }
}

#[test]
fn headers_of_the_edge_are_refused() {
    for (action, name, code) in [
        ("set-headers", "x-user", 0),
        ("set-headers", "host", 0),
        ("set-headers", "user-agent", 2204),
        ("set-headers", "connection", 2204),
        ("set-headers", "transfer_encoding", 2204),
        ("set-headers", "Content-Length", 2204),
        ("set-headers", "content.length", 2204),
        ("set-headers", "a b", 2204),
        ("add-headers", "proxy.connection", 2204),
        ("add-headers", "ngrok_error_code", 2204),
    ]
    .into_iter()
    .chain(
        [
            "culvert-assertion",
            "culvert_assertion",
            "Culvert.Replay.Of",
        ]
        .into_iter()
        .flat_map(|name| ["set-headers", "add-headers", "http-request"].map(|ty| (ty, name, 2204))),
    ) {
        let url = if action == "http-request" {
            "url: 'http://a.internal', "
        } else {
            ""
        };
        let text = action_of(action, &format!("{{{url}headers: {{'{name}': '1'}}}}"));
        let (found, sentence) = refused(&text);
        assert_eq!(found, code, "{action} {name}: {sentence}");
    }
    for (headers, code) in [("{}", 2223), ("[]", 2203)] {
        let (found, sentence) = refused(&action_of(
            "set-headers",
            &format!("{{headers: {headers}}}"),
        ));
        assert_eq!(found, code, "{sentence}");
    }
    let many: Vec<String> = (0..11).map(|nth| format!("x-{nth}: '1'")).collect();
    let text = action_of(
        "set-headers",
        &format!("{{headers: {{{}}}}}", many.join(", ")),
    );
    assert_eq!(refused(&text).0, 2218);
}

/// A policy with one action of this type and configuration in the request phase.
fn action_of(ty: &str, config: &str) -> String {
    action(&format!("type: {ty}\n    config: {config}"))
}

#[test]
fn likely_mistakes_are_warned_of() {
    let add = "{type: add-headers, config: {headers: {x-user: '1'}}}";
    for (actions, warns) in [
        (add.to_owned(), true),
        (
            format!("{{type: set-headers, config: {{headers: {{X-User: '1'}}}}}}, {add}"),
            false,
        ),
        (
            format!("{{type: remove-headers, config: {{headers: [x_user]}}}}, {add}"),
            false,
        ),
        (
            format!("{{type: remove-headers, config: {{headers: [x-users]}}}}, {add}"),
            true,
        ),
        (
            format!("{add}, {{type: remove-headers, config: {{headers: [x-user]}}}}"),
            true,
        ),
        (
            "{type: add-headers, config: {headers: {host: a.example}}}".to_owned(),
            false,
        ),
        (
            "{type: restrict-ips, config: {deny: [192.0.2.1]}}".to_owned(),
            true,
        ),
        (
            "{type: restrict-ips, config: {deny: [192.0.2.1], allow: [0.0.0.0/0]}}".to_owned(),
            false,
        ),
    ] {
        let text = format!("on_http_request: [{{actions: [{actions}]}}]");
        let policy = compiled(Scheme::Http, true, &text).unwrap();
        let found = policy.warnings();
        assert_eq!(!found.is_empty(), warns, "{actions}: {found:?}");
        let is_sentence =
            |why: &String| why.starts_with("on_http_request, rule 1") && why.ends_with('.');
        assert!(found.iter().all(is_sentence), "{found:?}");
    }
    let response = format!("on_http_response: [{{actions: [{add}]}}]");
    assert!(
        compiled(Scheme::Http, true, &response)
            .unwrap()
            .warnings()
            .is_empty()
    );
    let many = format!(
        "on_http_request: [{}]",
        vec![format!("{{actions: [{add}]}}"); 50].join(", ")
    );
    assert_eq!(
        compiled(Scheme::Http, true, &many)
            .unwrap()
            .warnings()
            .len(),
        20
    );
}

#[test]
fn identity_goes_to_fields_of_its_own() {
    let with = |forward: &str| {
        action_of(
            "jwt-validation",
            &format!(
                "{{issuer: {{allow_list: [{{value: a}}]}}, audience: {{allow_list: [{{value: b}}]}}, \
                 http: {{tokens: [{{type: jwt, method: header, name: x-token}}]}}, \
                 jws: {{allowed_algorithms: [ES512], keys: {{sources: {{additional_jkus: ['https://a.example']}}}}}}, \
                 forward_identity: {forward}}}"
            ),
        )
    };
    for (forward, code) in [
        ("{headers: {x-user: email}}", 0),
        (
            "{headers: {x-forwarded-user: 'https://a.example/claim'}}",
            0,
        ),
        // There are no keys here.
        ("{assertion: {}}", 2201),
        ("{}", 2234),
        ("{headers: {}}", 2234),
        ("{headers: {x-user: ''}}", 2223),
        ("{headers: {cookie: email}}", 2204),
        ("{headers: {authorization: email}}", 2204),
        ("{headers: {x_token: email}}", 2204),
        ("{headers: {x-forwarded-for: email}}", 2204),
        ("{headers: {culvert-assertion: email}}", 2204),
        ("{headers: {x-user: email, x_user: email}}", 2231),
        ("{assertion: {header: culvert_assertion}}", 2204),
        ("{assertion: {claims: [sub]}}", 2204),
        ("{assertion: {claim: [email]}}", 2203),
    ] {
        let (found, sentence) = refused(&with(forward));
        assert_eq!(found, code, "{forward}: {sentence}");
    }
}

/// Places that a secret reaches in a policy: the beginning of each place, and whether it is confined there.
fn reached(text: &str) -> Vec<(String, bool)> {
    let policy =
        compiled(Scheme::Https, true, text).unwrap_or_else(|refusal| panic!("{refusal}: {text}"));
    let uses = policy.secret_uses().iter();
    uses.map(|one| {
        assert_eq!((&*one.vault, &*one.name), ("v", "n"), "{text}");
        (one.place.clone(), one.is_confined)
    })
    .collect()
}

/// The fields of actions that take templates, each with a configuration whose `SECRET` is a template, and whether a
/// secret is confined in it.
const TEMPLATES: &[(&str, &str, &str, bool)] = &[
    ("on_tcp_connect", "log", "metadata: {a: 'SECRET'}", false),
    ("on_tcp_connect", "set-vars", "vars: [{a: 'SECRET'}]", false),
    ("on_tcp_connect", "restrict-ips", "allow: ['SECRET']", false),
    ("on_tcp_connect", "restrict-ips", "deny: ['SECRET']", false),
    (
        "on_tcp_connect",
        "terminate-tls",
        "mutual_tls_certificate_authorities: ['SECRET']",
        false,
    ),
    (
        "on_tcp_connect",
        "terminate-tls",
        "server_certificate: 'SECRET', server_private_key: 'x'",
        false,
    ),
    (
        "on_tcp_connect",
        "terminate-tls",
        "server_certificate: '${\"x\"}', server_private_key: 'SECRET'",
        true,
    ),
    (
        "on_http_request",
        "add-headers",
        "headers: {x-a: 'SECRET'}",
        true,
    ),
    (
        "on_http_request",
        "set-headers",
        "headers: {x-a: 'SECRET'}",
        true,
    ),
    (
        "on_http_request",
        "basic-auth",
        "credentials: ['u:SECRET']",
        true,
    ),
    (
        "on_http_request",
        "custom-response",
        "body: 'SECRET'",
        false,
    ),
    (
        "on_http_request",
        "custom-response",
        "headers: {x-a: 'SECRET'}",
        false,
    ),
    (
        "on_http_request",
        "forward-internal",
        "url: 'SECRET'",
        false,
    ),
    ("on_http_request", "http-request", "url: 'SECRET'", false),
    (
        "on_http_request",
        "http-request",
        "url: 'http://a.internal', query_params: [{key: a, value: 'SECRET'}]",
        false,
    ),
    (
        "on_http_request",
        "http-request",
        "url: 'http://a.internal', headers: {x-a: 'SECRET'}",
        true,
    ),
    (
        "on_http_request",
        "http-request",
        "url: 'http://a.internal', body: 'SECRET'",
        true,
    ),
    (
        "on_http_request",
        "http-request",
        "url: 'http://a.internal', retry_condition: '(EXPRESSION) == string(attempts)'",
        false,
    ),
    (
        "on_http_request",
        "log",
        "metadata: {a: [{b: 'SECRET'}]}",
        false,
    ),
    (
        "on_http_request",
        "rate-limit",
        "capacity: 1, rate: 60s, bucket_key: ['EXPRESSION']",
        false,
    ),
    ("on_http_request", "redirect", "to: 'SECRET'", false),
    (
        "on_http_request",
        "redirect",
        "to: 'https://a.example/', from: 'SECRET'",
        false,
    ),
    (
        "on_http_request",
        "redirect",
        "to: 'https://a.example/', headers: {x-a: 'SECRET'}",
        false,
    ),
    (
        "on_http_request",
        "request-body-find-replace",
        "replacements: [{from: 'SECRET', to: a}]",
        false,
    ),
    (
        "on_http_request",
        "request-body-find-replace",
        "replacements: [{from: a, to: 'SECRET'}]",
        false,
    ),
    (
        "on_http_request",
        "restrict-ips",
        "allow: ['SECRET']",
        false,
    ),
    (
        "on_http_request",
        "set-vars",
        "vars: [{a: {b: ['SECRET']}}]",
        false,
    ),
    ("on_http_request", "url-rewrite", "to: 'SECRET'", false),
    (
        "on_http_request",
        "url-rewrite",
        "to: '/a', from: 'SECRET'",
        false,
    ),
    (
        "on_http_request",
        "verify-webhook",
        "provider: github, secret: 'SECRET'",
        true,
    ),
    (
        "on_http_response",
        "add-headers",
        "headers: {x-a: 'SECRET'}",
        false,
    ),
    (
        "on_http_response",
        "set-headers",
        "headers: {x-a: 'SECRET'}",
        false,
    ),
    (
        "on_http_response",
        "custom-response",
        "body: 'SECRET'",
        false,
    ),
    (
        "on_http_response",
        "custom-response",
        "headers: {x-a: 'SECRET'}",
        false,
    ),
    (
        "on_http_response",
        "http-request",
        "url: 'http://a.internal', headers: {x-a: 'SECRET'}",
        true,
    ),
    (
        "on_http_response",
        "http-request",
        "url: 'http://a.internal', body: 'SECRET'",
        true,
    ),
    ("on_http_response", "log", "metadata: {a: 'SECRET'}", false),
    (
        "on_http_response",
        "response-body-find-replace",
        "replacements: [{from: a, to: 'SECRET'}]",
        false,
    ),
    (
        "on_http_response",
        "set-vars",
        "vars: [{a: 'SECRET'}]",
        false,
    ),
];

/// Ways to write the secret `n` of the vault `v`, or a function of it.
const SPELLINGS: [&str; 6] = [
    "secrets.get(\"v\", \"n\")",
    "\"Bearer \" + secrets.get(\"v\", r\"n\")",
    "hash.sha256(secrets.get(\"v\", \"n\"))",
    "string(size(secrets.get(\"v\", \"n\")))",
    "secrets.get(\"v\", \"n\").startsWith(\"a\") ? \"1\" : \"2\"",
    "[1].map(x, secrets.get(\"v\", \"n\"))[0]",
];

#[test]
fn secrets_are_confined_only_in_fields_that_cannot_echo_them() {
    for (phase, action, config, is_confined) in TEMPLATES {
        for spelling in SPELLINGS {
            let config = config
                .replace("SECRET", &format!("${{{spelling}}}"))
                .replace("EXPRESSION", spelling);
            let text = format!("{phase}:\n- actions: [{{type: {action}, config: {{{config}}}}}]\n");
            let uses = reached(&text);
            let [(place, confined)] = &*uses else {
                panic!("{text}: {uses:?}");
            };
            let here = format!("{phase}, rule 1, action 1 ({action}): `");
            assert!(
                place.starts_with(&here) && confined == is_confined,
                "{text}: {uses:?}"
            );
        }
    }
    // A condition tells whether it holds.
    for phase in Phase::ALL {
        for spelling in SPELLINGS {
            let text = format!(
                "{}:\n- expressions: ['({spelling}) == \"x\"']\n  actions: [{{type: set-vars, config: {{vars: [{{a: b}}]}}}}]\n",
                phase.name()
            );
            let place = format!("{}, rule 1, expression 1", phase.name());
            assert_eq!(reached(&text), [(place, false)], "{text}");
        }
    }
}

/// Every action with a field that supports expressions is in the table, so that a new field has to decide.
#[test]
fn every_field_with_expressions_decides_about_secrets() {
    for ty in ACTIONS.sorted() {
        let Some(schema) = ty.schema else { continue };
        let settings = schemars::generate::SchemaSettings::draft2020_12();
        let settings = settings.with(|settings| settings.inline_subschemas = true);
        let schema = schema(&mut settings.into_generator())
            .to_value()
            .to_string();
        let rows = TEMPLATES
            .iter()
            .filter(|(_, action, ..)| *action == ty.name);
        let ways = ["upports `${", "upport `${", "expressions whose values"];
        let has_expressions = ways.iter().any(|way| schema.contains(way));
        assert_eq!(has_expressions, rows.count() > 0, "{}", ty.name);
        for (field, phases) in ty.takes_secrets {
            assert!(
                phases.iter().all(|phase| ty.phases.contains(phase)),
                "{}",
                ty.name
            );
            let has_row = TEMPLATES.iter().any(|(_, action, config, is_confined)| {
                *action == ty.name && *is_confined && config.contains(&format!("{field}: "))
            });
            assert!(has_row, "{}: {field}", ty.name);
        }
    }
}

#[test]
fn secrets_are_followed_through_variables_and_results() {
    for (text, places) in [
        (
            "on_http_request:\n- actions:\n  - {type: set-vars, config: {vars: [{a: \"${secrets.get('v', 'n')}\"}, {b: \"${vars.a + 'x'}\"}, {c: d}]}}\n  - {type: log, config: {metadata: {b: \"${vars.b}\"}}}\n  - {type: log, config: {metadata: {c: \"${vars.c}\"}}}\n  - {type: log, config: {metadata: {c: \"${vars[req.method]}\"}}}\n  - {type: log, config: {metadata: {c: \"${vars}\"}}}\n",
            vec!["action 1", "action 1", "action 2", "action 4", "action 5"],
        ),
        (
            "on_http_request:\n- actions:\n  - {type: add-headers, config: {headers: {x: \"${secrets.get('v', 'n')}\"}}}\n  - {type: log, config: {metadata: {b: \"${actions.ngrok.add_headers.headers_added.x}\"}}}\n- expressions: [\"'x' in actions.culvert['add_headers']\"]\n  actions: [{type: log, config: {metadata: {c: \"${actions.ngrok.log}\"}}}]\n",
            vec![
                "rule 1, action 1",
                "rule 1, action 2",
                "rule 2, expression 1",
                "rule 2, action 1",
            ],
        ),
        (
            "on_http_request:\n- expressions: [\"req.method == 'GET'\"]\n  actions:\n  - {type: basic-auth, config: {credentials: [\"u:${secrets.get('v', 'n')}\"]}}\n  - {type: log, config: {metadata: {b: \"${actions.ngrok.basic_auth.credentials.username}\"}}}\n",
            vec!["action 1"],
        ),
        (
            "on_http_request:\n- actions:\n  - {type: http-request, config: {url: 'http://a.internal', headers: {x: \"${secrets.get('v', 'n')}\"}}}\n- expressions: [\"actions.ngrok.http_request.res.status_code == 200\"]\n  actions: [{type: deny}]\n",
            vec!["rule 1, action 1"],
        ),
        (
            "on_http_request:\n- actions: [{type: custom-response, config: {headers: {x: \"${secrets.get('v', 'n')}\"}}}]\non_http_response:\n- actions: [{type: log, config: {metadata: {a: \"${res.headers['x'][0]}\"}}}]\n",
            vec![
                "on_http_request, rule 1, action 1",
                "on_http_response, rule 1, action 1",
            ],
        ),
    ] {
        let found = reached(text);
        assert_eq!(found.len(), places.len(), "{text}: {found:?}");
        for ((place, _), expected) in found.iter().zip(places) {
            assert!(place.contains(expected), "{text}: {place} {expected}");
        }
    }
    let computed = "on_http_request:\n- actions: [{type: rate-limit, config: {capacity: 1, rate: 60s, bucket_key: ['secrets.get(\"v\", req.method)']}}]\n";
    let policy = compiled(Scheme::Https, true, computed).unwrap();
    assert!(policy.computes_secret_names());
    let source = Source::read(computed, ACTIONS).unwrap();
    assert!(source.computes_secret_names());
}

/// Headers and variables may have the names of fields whose values are expressions.
#[test]
fn references_to_secrets_are_found_whatever_names_surround_them() {
    for name in ["expressions", "retry_condition", "bucket_key", "x-other"] {
        for (action, config) in [
            (
                "add-headers",
                format!("headers: {{{name}: \"${{secrets.get('v', 'n')}}\"}}"),
            ),
            (
                "log",
                format!("metadata: {{{name}: [\"a ${{secrets.get('v', 'n')}}\"]}}"),
            ),
        ] {
            let text = format!(
                "on_http_request:\n- actions: [{{type: {action}, config: {{{config}}}}}]\n"
            );
            let source = Source::read(&text, ACTIONS).unwrap();
            let expected = [("v".to_owned(), "n".to_owned())];
            assert_eq!(source.secrets(), expected, "{text}");
            assert!(!source.computes_secret_names(), "{text}");
            let computed = text.replace("'n'", "req.method");
            let source = Source::read(&computed, ACTIONS).unwrap();
            assert!(source.computes_secret_names(), "{computed}");
        }
    }
    let limit = "on_http_request:\n- actions: [{type: rate-limit, config: {capacity: 1, rate: 60s, bucket_key: ['secrets.get(\"v\", \"n\")']}}]\n";
    let source = Source::read(limit, ACTIONS).unwrap();
    assert_eq!(source.secrets(), [("v".to_owned(), "n".to_owned())]);
}

/// The host of a URL is known also where the rest of the URL is computed.
#[test]
fn internal_hosts_are_those_that_no_expression_computes() {
    for (url, host) in [
        ("http://a.internal", Some("a.internal")),
        ("http://A.internal.:8080/x", Some("a.internal")),
        ("http://a.internal/${req.url.path}", Some("a.internal")),
        ("http://a.internal?x=${req.url.path}", Some("a.internal")),
        ("http://a.internal#${req.url.path}", Some("a.internal")),
        ("http://a.internal/$${x}", Some("a.internal")),
        ("http://a.internal/$${x}${req.url.path}", Some("a.internal")),
        ("http://a.internal${req.url.path}", None),
        ("http://a.internal:${req.url.path}", Some("a.internal")),
        ("http://${req.host}.internal/", None),
        ("http://a.${req.host}/x.internal", None),
        ("${req.url.path}", None),
        ("http://a.example/${req.url.path}", None),
    ] {
        for action in ["forward-internal", "http-request"] {
            let config = serde_json::json!({"type": action, "config": {"url": url}});
            let text = serde_json::json!({"on_http_request": [{"actions": [config]}]}).to_string();
            let source = Source::read(&text, ACTIONS).unwrap();
            let hosts = source.internal_hosts();
            assert_eq!(hosts.first().map(String::as_str), host, "{url}");
        }
    }
}
