//! Converts the traffic options of an agent to a traffic policy. Older agents send options, newer ones send a
//! policy; both use the same actions (contract: agent protocol 5.2).
//!
//! Each row of `OPTIONS` names an option and its rules. Rules of options come before those of the agent's
//! policy. The policy compiler decides whether an action exists, so an option with an unsupported action is
//! refused with the compiler's code.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{Refusal, code};
use culvert_edge_config::ACTIONS;
use culvert_policy::{Phase, Source};
use culvert_tunnel::server::EndpointRequest;
use culvert_tunnel::wire::HeaderChanges;
use serde_json::{Map, Value, json};

/// A traffic option of agents.
struct AgentOption {
    /// The name in the agent protocol.
    name: &'static str,
    /// Its rules; empty if the option was not sent.
    rules: fn(&EndpointRequest) -> Result<Rules, Wrong>,
}

/// Rules with their phases.
type Rules = Vec<(Phase, Value)>;

/// Why an option is refused.
struct Wrong(&'static str);

/// All options, in the order in which their rules run.
const OPTIONS: &[AgentOption] = &[
    option("IPPolicyRef", ip_policy),
    option("IPRestriction", ip_restriction),
    option("MutualTLSCA", mutual_tls),
    option("TLSTermination", tls_termination),
    option("UserAgentFilter", user_agent_filter),
    option("BasicAuth", basic_auth),
    option("OAuth", oauth),
    option("OIDC", oidc),
    option("WebhookVerification", webhook_verification),
    option("CircuitBreaker", circuit_breaker),
    option("RequestHeaders", request_headers),
    option("ResponseHeaders", response_headers),
    option("Compression", compression),
    option("WebsocketTCPConverter", websocket_converter),
];

const fn option(
    name: &'static str,
    rules: fn(&EndpointRequest) -> Result<Rules, Wrong>,
) -> AgentOption {
    AgentOption { name, rules }
}

/// The policy text for an agent; empty for none.
///
/// # Errors
/// Code 359 for an invalid option, 2236 for a policy that cannot be parsed.
pub fn policy(request: &EndpointRequest) -> Result<String, Refusal> {
    let mut phases: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for option in OPTIONS {
        let rules = (option.rules)(request).map_err(|Wrong(why)| {
            let name = option.name;
            Refusal::new(
                code::ENDPOINT_OPTION_INVALID,
                format!("The option `{name}` of the endpoint {why}."),
            )
        })?;
        for (phase, rule) in rules {
            phases.entry(phase.name()).or_default().push(rule);
        }
    }
    let own = request.options.traffic_policy.trim();
    let given = match own {
        "" => None,
        text => Some(Source::read(text, ACTIONS)?.to_json()),
    };
    let converted = given.as_ref().and_then(to_current_format);
    if let Some(policy) = converted.as_ref().or(given.as_ref()) {
        check_handshake_settings(&phases, policy)?;
    }
    if phases.is_empty() && converted.is_none() {
        return Ok(own.to_owned());
    }
    let mut whole = converted.or(given).unwrap_or_else(|| json!({}));
    for (phase, mut rules) in phases {
        let behind = whole.get_mut(phase).map(Value::take);
        match behind {
            None | Some(Value::Null) => {}
            Some(Value::Array(behind)) => rules.extend(behind),
            // The compiler reports the error.
            Some(other) => rules.push(other),
        }
        whole[phase] = rules.into();
    }
    Ok(whole.to_string())
}

/// Refuses options and a policy that give different values for one setting of the TLS handshake (code 359).
/// Different settings are merged when the policy runs, but for one setting the last action wins. The policy
/// would silently override the option, such as the CAs for client certificates.
fn check_handshake_settings(
    options: &BTreeMap<&str, Vec<Value>>,
    policy: &Value,
) -> Result<(), Refusal> {
    let name = Phase::Connect.name();
    let own = terminations(policy[name].as_array().into_iter().flatten());
    let own: Vec<&Value> = own.collect();
    for option in terminations(options.get(name).into_iter().flatten()) {
        for group in HANDSHAKE_SETTINGS {
            let names = |config: &Value| group.fields.iter().any(|field| !config[*field].is_null());
            if names(option) && own.iter().any(|config| names(config)) {
                return Err(Refusal::new(
                    code::ENDPOINT_OPTION_INVALID,
                    format!(
                        "The endpoint option `{}` and a `terminate-tls` action of the traffic policy both set {}. Remove one of them.",
                        group.option, group.what
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Fields of `terminate-tls` that form one setting, and the equivalent option.
struct HandshakeSetting {
    option: &'static str,
    fields: &'static [&'static str],
    what: &'static str,
}

const HANDSHAKE_SETTINGS: &[HandshakeSetting] = &[
    HandshakeSetting {
        option: "MutualTLSCA",
        fields: &[
            "mutual_tls_certificate_authorities",
            "mutual_tls_verification_strategy",
        ],
        what: "the verification of client certificates",
    },
    HandshakeSetting {
        option: "TLSTermination",
        fields: &["server_certificate", "server_private_key"],
        what: "the server certificate",
    },
];

/// The configurations of the `terminate-tls` actions in `rules`.
fn terminations<'r>(rules: impl Iterator<Item = &'r Value>) -> impl Iterator<Item = &'r Value> {
    rules
        .flat_map(|rule| rule["actions"].as_array().into_iter().flatten())
        .filter(|action| action["type"] == "terminate-tls")
        .map(|action| &action["config"])
}

/// Converts a policy in the previous format (capitalised names, two phases) to the current one. `None` for a
/// policy in the current format.
fn to_current_format(given: &Value) -> Option<Value> {
    let phases = given.as_object()?;
    let mut current = Map::new();
    for (name, rules) in phases {
        let phase = match name.to_ascii_lowercase().as_str() {
            "inbound" => Phase::Request,
            "outbound" => Phase::Response,
            // The previous format had this field to enable a policy.
            "enabled" => continue,
            _ => return None,
        };
        let rules: Vec<Value> = rules.as_array().into_iter().flatten().map(rule).collect();
        current.insert(phase.name().to_owned(), rules.into());
    }
    (!current.is_empty()).then(|| current.into())
}

fn rule(given: &Value) -> Value {
    let mut current = lowered(given);
    if let Some(Value::Array(actions)) = current.get_mut("actions") {
        for action in actions {
            *action = lowered(action);
        }
    }
    // The previous format wrote unset fields as `null` or empty text.
    if let Value::Object(fields) = &mut current {
        fields.retain(|_, value| !value.is_null() && value != "");
    }
    current
}

/// The object with its field names in lower case.
fn lowered(given: &Value) -> Value {
    match given {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// A rule with one action.
fn action_rule(phase: Phase, action: &str, config: Value) -> (Phase, Value) {
    let rule = json!({"actions": [{"type": action, "config": config}]});
    (phase, rule)
}

/// A rule that denies requests for which the expression is true.
fn deny_rule(expression: String) -> (Phase, Value) {
    let rule = json!({"expressions": [expression], "actions": [{"type": "deny"}]});
    (Phase::Request, rule)
}

/// Escapes text for a field that accepts templates.
fn literal(text: &str) -> String {
    text.replace("${", "$${")
}

fn ip_policy(request: &EndpointRequest) -> Result<Rules, Wrong> {
    if request.ip_policy.is_empty() {
        return Ok(Vec::new());
    }
    let config = json!({"ip_policies": [request.ip_policy]});
    Ok(vec![action_rule(Phase::Connect, "restrict-ips", config)])
}

fn ip_restriction(request: &EndpointRequest) -> Result<Rules, Wrong> {
    let Some(restriction) = &request.options.ip_restriction else {
        return Ok(Vec::new());
    };
    if restriction.allow_cidrs.is_empty() && restriction.deny_cidrs.is_empty() {
        return Ok(Vec::new());
    }
    let mut allow = restriction.allow_cidrs.clone();
    if allow.is_empty() {
        // A list with only denied ranges allows all other addresses.
        allow = vec!["0.0.0.0/0".into(), "::/0".into()];
    }
    let config = json!({"allow": allow, "deny": restriction.deny_cidrs});
    Ok(vec![action_rule(Phase::Connect, "restrict-ips", config)])
}

fn mutual_tls(request: &EndpointRequest) -> Result<Rules, Wrong> {
    let options = &request.options;
    // One option has two names, and an agent may send both.
    let given = [&options.mutual_tls_ca, &options.mutual_tls_at_edge];
    let mut given = given
        .into_iter()
        .flatten()
        .map(|authorities| &authorities.mutual_tls_ca)
        .filter(|authorities| !authorities.is_empty());
    let Some(authorities) = given.next() else {
        return Ok(Vec::new());
    };
    if given.any(|other| other != authorities) {
        return Err(Wrong("and `MutualTLSAtEdge` name different authorities"));
    }
    let pem = pem(authorities)?;
    let config = json!({"mutual_tls_certificate_authorities": [pem]});
    Ok(vec![action_rule(Phase::Connect, "terminate-tls", config)])
}

fn tls_termination(request: &EndpointRequest) -> Result<Rules, Wrong> {
    let Some(termination) = &request.options.tls_termination else {
        return Ok(Vec::new());
    };
    let config = match (termination.cert.as_str(), termination.key.reveal()) {
        ("", "") => json!({}),
        (certificate, key) => json!({
            "server_certificate": pem(certificate)?,
            "server_private_key": pem(key)?,
        }),
    };
    Ok(vec![action_rule(Phase::Connect, "terminate-tls", config)])
}

/// Decodes PEM in base64.
fn pem(base64: &str) -> Result<String, Wrong> {
    STANDARD
        .decode(base64)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or(Wrong("must be Base64-encoded PEM"))
}

/// Allowed user agents pass even if a deny pattern matches. With only allow patterns, all others are denied.
fn user_agent_filter(request: &EndpointRequest) -> Result<Rules, Wrong> {
    let Some(filter) = &request.options.user_agent_filter else {
        return Ok(Vec::new());
    };
    let any = |patterns: &[String]| {
        let each = patterns
            .iter()
            .map(|pattern| format!("req.user_agent.matches({})", Value::from(pattern.as_str())));
        format!("({})", each.collect::<Vec<_>>().join(" || "))
    };
    Ok(match (&filter.allow[..], &filter.deny[..]) {
        ([], []) => Vec::new(),
        (allow, []) => vec![deny_rule(format!("!{}", any(allow)))],
        ([], deny) => vec![deny_rule(any(deny))],
        (allow, deny) => vec![deny_rule(format!("{} && !{}", any(deny), any(allow)))],
    })
}

fn basic_auth(request: &EndpointRequest) -> Result<Rules, Wrong> {
    let options = &request.options;
    let mut credentials: Vec<String> = Vec::new();
    if !options.auth.is_empty() {
        credentials.push(literal(&options.auth));
    }
    for user in options.basic_auth.iter().flat_map(|auth| &auth.credentials) {
        let password = user.cleartext_password.reveal();
        if password.is_empty() {
            return Err(Wrong(
                "requires plain-text passwords; hashed passwords are not supported",
            ));
        }
        credentials.push(literal(&format!("{}:{password}", user.username)));
    }
    if credentials.is_empty() {
        return Ok(Vec::new());
    }
    let config = json!({"credentials": credentials});
    Ok(vec![action_rule(Phase::Request, "basic-auth", config)])
}

fn oauth(request: &EndpointRequest) -> Result<Rules, Wrong> {
    let Some(login) = &request.options.oauth else {
        return Ok(Vec::new());
    };
    let mut config = json!({"provider": login.provider});
    application(
        &mut config,
        &login.client_id,
        login.client_secret.reveal(),
        &login.scopes,
    );
    let mut rules = vec![action_rule(Phase::Request, "oauth", config)];
    rules.extend(deny_others(
        "oauth",
        &login.allow_emails,
        &login.allow_domains,
    ));
    Ok(rules)
}

fn oidc(request: &EndpointRequest) -> Result<Rules, Wrong> {
    let Some(login) = &request.options.oidc else {
        return Ok(Vec::new());
    };
    let mut config = json!({"issuer_url": login.issuer_url});
    application(
        &mut config,
        &login.client_id,
        login.client_secret.reveal(),
        &login.scopes,
    );
    let mut rules = vec![action_rule(Phase::Request, "openid-connect", config)];
    rules.extend(deny_others(
        "oidc",
        &login.allow_emails,
        &login.allow_domains,
    ));
    Ok(rules)
}

fn application(config: &mut Value, id: &str, secret: &str, scopes: &[String]) {
    if !id.is_empty() {
        config["client_id"] = literal(id).into();
    }
    if !secret.is_empty() {
        config["client_secret"] = literal(secret).into();
    }
    if !scopes.is_empty() {
        config["scopes"] = scopes.into();
    }
}

/// Denies users who signed in with another e-mail address.
fn deny_others(action: &str, emails: &[String], domains: &[String]) -> Option<(Phase, Value)> {
    let email = format!("actions.ngrok.{action}.identity.email");
    let by_email = (!emails.is_empty()).then(|| format!("{email} in {}", json!(emails)));
    let by_domain = domains
        .iter()
        .map(|domain| format!("{email}.endsWith({})", json!(format!("@{domain}"))));
    let admitted: Vec<String> = by_email.into_iter().chain(by_domain).collect();
    (!admitted.is_empty()).then(|| deny_rule(format!("!({})", admitted.join(" || "))))
}

fn webhook_verification(request: &EndpointRequest) -> Result<Rules, Wrong> {
    let Some(verification) = &request.options.webhook_verification else {
        return Ok(Vec::new());
    };
    let mut config = json!({"provider": verification.provider.to_ascii_lowercase()});
    if !verification.secret.is_empty() {
        config["secret"] = literal(verification.secret.reveal()).into();
    }
    Ok(vec![action_rule(Phase::Request, "verify-webhook", config)])
}

fn circuit_breaker(request: &EndpointRequest) -> Result<Rules, Wrong> {
    let Some(breaker) = &request.options.circuit_breaker else {
        return Ok(Vec::new());
    };
    let config = json!({"error_threshold": breaker.error_threshold});
    Ok(vec![action_rule(Phase::Request, "circuit-breaker", config)])
}

fn request_headers(request: &EndpointRequest) -> Result<Rules, Wrong> {
    header_changes(Phase::Request, request.options.request_headers.as_ref())
}

fn response_headers(request: &EndpointRequest) -> Result<Rules, Wrong> {
    header_changes(Phase::Response, request.options.response_headers.as_ref())
}

/// Limit of header names of one action.
const NAMES_MAX: usize = 10;

fn header_changes(phase: Phase, changes: Option<&HeaderChanges>) -> Result<Rules, Wrong> {
    let Some(changes) = changes else {
        return Ok(Vec::new());
    };
    let mut rules: Rules = changes
        .remove
        .chunks(NAMES_MAX)
        .map(|names| action_rule(phase, "remove-headers", json!({"headers": names})))
        .collect();
    // Adding one name twice takes two actions.
    let mut actions: Vec<Map<String, Value>> = Vec::new();
    for field in &changes.add {
        let (name, value) = field
            .split_once(':')
            .ok_or(Wrong("must have fields of the form `name:value`"))?;
        let (name, value) = (name.trim(), Value::from(value.trim()));
        let has_room = |action: &&mut Map<String, Value>| {
            action.len() < NAMES_MAX && !action.contains_key(name)
        };
        match actions.iter_mut().find(has_room) {
            Some(action) => {
                action.insert(name.to_owned(), value);
            }
            None => actions.push(Map::from_iter([(name.to_owned(), value)])),
        }
    }
    let added = actions
        .into_iter()
        .map(|headers| action_rule(phase, "add-headers", json!({"headers": headers})));
    rules.extend(added);
    Ok(rules)
}

fn compression(request: &EndpointRequest) -> Result<Rules, Wrong> {
    Ok(match request.options.compression {
        None => Vec::new(),
        Some(_) => vec![action_rule(Phase::Response, "compress-response", json!({}))],
    })
}

fn websocket_converter(request: &EndpointRequest) -> Result<Rules, Wrong> {
    match request.options.websocket_tcp_converter {
        None => Ok(Vec::new()),
        Some(_) => Err(Wrong(
            "is not supported; WebSocket traffic passes through unchanged",
        )),
    }
}

#[cfg(test)]
mod tests {
    use culvert_policy::Resources;
    use culvert_policy::Scheme;
    use culvert_tunnel::wire::BindRequest;

    use super::*;

    /// The policy for the options that an agent sends.
    fn policy_of(opts: Value) -> Result<Value, u16> {
        let sent = json!({"Proto": "http", "Opts": opts});
        let bind = BindRequest::read(sent).unwrap();
        let request = EndpointRequest {
            proto: "http".into(),
            options: bind.options().unwrap(),
            ..EndpointRequest::default()
        };
        match policy(&request) {
            Ok(text) if text.is_empty() => Ok(Value::Null),
            Ok(text) => Ok(Source::read(&text, ACTIONS).unwrap().to_json()),
            Err(refusal) => Err(refusal.code.unwrap().number()),
        }
    }

    /// The actions of each phase, in order.
    fn actions(policy: &Value) -> Vec<String> {
        let phases = ["on_tcp_connect", "on_http_request", "on_http_response"];
        let rules = phases.iter().flat_map(|phase| policy[phase].as_array());
        rules
            .flatten()
            .flat_map(|rule| rule["actions"].as_array().unwrap())
            .map(|action| action["type"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn all_options_together_compile_to_a_policy() {
        let policy = policy_of(json!({
            "Hostname": "app.example.test", "Auth": "bob:long enough", "Subdomain": "",
            "HostHeaderRewrite": false, "LocalUrlScheme": null, "ProxyProto": 1,
            "Compression": {}, "CircuitBreaker": {"error_threshold": 0.5},
            "IPRestriction": {"allow_cidrs": ["10.0.0.0/8"], "deny_cidrs": ["10.1.0.0/16"]},
            "BasicAuth": {"credentials": [{"username": "u", "cleartext_password": "secret${pw}"}]},
            "WebhookVerification": {"provider": "GitHub", "secret": "whsec"},
            "RequestHeaders": {"add": ["x-a:1", "x-a:2"], "remove": ["x-c"]},
            "ResponseHeaders": {"add": ["x-b:2"], "remove": ["x-d"]},
            "UserAgentFilter": {"allow": ["foo.*"], "deny": ["bar.*"]},
            "TrafficPolicy": "on_http_request:\n- actions:\n  - type: log\n    config: {metadata: {a: b}}\n",
        }))
        .unwrap();
        assert_eq!(
            actions(&policy),
            [
                "restrict-ips",
                "deny",
                "basic-auth",
                "verify-webhook",
                "circuit-breaker",
                "remove-headers",
                "add-headers",
                "add-headers",
                "log",
                "remove-headers",
                "add-headers",
                "compress-response",
            ]
        );
        let credentials =
            policy["on_http_request"][1]["actions"][0]["config"]["credentials"].clone();
        assert_eq!(credentials, json!(["bob:long enough", "u:secret$${pw}"]));
        let text = policy.to_string();
        let compiled = Source::read(&text, ACTIONS).unwrap().compile(
            Scheme::Http,
            true,
            &Resources::default(),
        );
        assert!(compiled.is_ok(), "{compiled:?}");
    }

    #[test]
    fn each_option_becomes_its_rules() {
        for (opts, expected) in [
            (json!({}), &[][..]),
            (json!({"TrafficPolicy": ""}), &[]),
            (json!({"IPRestriction": {}}), &[]),
            (
                json!({"IPRestriction": {"deny_cidrs": ["10.0.0.0/8"]}}),
                &["restrict-ips"],
            ),
            (json!({"UserAgentFilter": {"allow": ["a"]}}), &["deny"]),
            (
                json!({"MutualTLSCA": {"mutual_tls_ca": "LS0t"}}),
                &["terminate-tls"],
            ),
            (json!({"TLSTermination": {}}), &["terminate-tls"]),
            (json!({"OAuth": {"provider": "google"}}), &["oauth"]),
            (
                json!({"OAuth": {"provider": "google", "allow_domains": ["x.example"]}}),
                &["oauth", "deny"],
            ),
            (
                json!({"OIDC": {"issuer_url": "https://id.example", "allow_emails": ["a@x.example"]}}),
                &["openid-connect", "deny"],
            ),
        ] {
            let policy = policy_of(opts.clone()).unwrap();
            assert_eq!(actions(&policy), expected, "{opts}");
        }
        for (opts, expected) in [
            (json!({"WebsocketTCPConverter": {}}), 359),
            (json!({"RequestHeaders": {"add": ["no colon"]}}), 359),
            (json!({"MutualTLSCA": {"mutual_tls_ca": "?"}}), 359),
            (
                json!({"BasicAuth": {"credentials": [{"username": "u", "hashed_password": "eA=="}]}}),
                359,
            ),
            (json!({"TrafficPolicy": "[]"}), 2236),
        ] {
            assert_eq!(policy_of(opts.clone()).unwrap_err(), expected, "{opts}");
        }
    }

    /// Pairs of handshake settings, from options and from the policy, in every order.
    #[test]
    fn tls_settings_of_options_and_policy_are_merged_or_refused() {
        let authority = json!({"mutual_tls_ca": STANDARD.encode("ca one")});
        let other = json!({"mutual_tls_ca": STANDARD.encode("ca two")});
        let key = json!({"cert": STANDARD.encode("chain"), "key": STANDARD.encode("key")});
        let own = |config: Value| {
            json!({"on_tcp_connect": [
                {"expressions": ["conn.client_port > 0"], "actions": [{"type": "terminate-tls", "config": config}]},
            ]})
            .to_string()
        };
        // Expected: the number of terminate-tls actions, which the edge merges, or the refusal.
        for (opts, expected) in [
            (
                json!({"MutualTLSCA": authority, "MutualTLSAtEdge": authority}),
                Ok(1),
            ),
            (
                json!({"MutualTLSCA": authority, "MutualTLSAtEdge": {}}),
                Ok(1),
            ),
            (
                json!({"MutualTLSCA": {}, "MutualTLSAtEdge": authority}),
                Ok(1),
            ),
            (
                json!({"MutualTLSCA": authority, "MutualTLSAtEdge": other}),
                Err(359),
            ),
            (
                json!({"MutualTLSAtEdge": authority, "TLSTermination": {}}),
                Ok(2),
            ),
            (
                json!({"MutualTLSAtEdge": authority, "TLSTermination": key}),
                Ok(2),
            ),
            (
                json!({"MutualTLSCA": authority, "TrafficPolicy": own(json!({"min_version": "1.3"}))}),
                Ok(2),
            ),
            (
                json!({"MutualTLSCA": authority, "TrafficPolicy": own(json!(null))}),
                Ok(2),
            ),
            (
                json!({"MutualTLSCA": authority, "TrafficPolicy": own(json!({"server_certificate": "c", "server_private_key": "k"}))}),
                Ok(2),
            ),
            (
                json!({"MutualTLSCA": authority, "TrafficPolicy": own(json!({"mutual_tls_certificate_authorities": ["ca_1"]}))}),
                Err(359),
            ),
            (
                json!({"MutualTLSAtEdge": authority, "TrafficPolicy": own(json!({"mutual_tls_verification_strategy": "request"}))}),
                Err(359),
            ),
            (
                json!({"TLSTermination": key, "TrafficPolicy": own(json!({"mutual_tls_certificate_authorities": ["ca_1"]}))}),
                Ok(2),
            ),
            (
                json!({"TLSTermination": {}, "TrafficPolicy": own(json!({"server_certificate": "c", "server_private_key": "k"}))}),
                Ok(2),
            ),
            (
                json!({"TLSTermination": key, "TrafficPolicy": own(json!({"server_certificate": "c", "server_private_key": "k"}))}),
                Err(359),
            ),
        ] {
            let made = policy_of(opts.clone()).map(|policy| {
                let types = actions(&policy);
                types.iter().filter(|name| *name == "terminate-tls").count()
            });
            assert_eq!(made, expected, "{opts}");
        }
    }

    #[test]
    fn a_policy_in_the_old_form_is_converted() {
        let old = json!({
            "Inbound": [{"Name": "n", "Expressions": ["true"], "Actions": [{"Type": "deny", "Config": {"status_code": 404}}]}],
            "Outbound": [{"Name": "", "Actions": [{"Type": "add-headers", "Config": {"headers": {"a": "b"}}}]}],
            "Enabled": true,
        });
        let policy = policy_of(json!({"TrafficPolicy": old.to_string()})).unwrap();
        assert_eq!(
            policy,
            json!({
                "on_http_request": [{"name": "n", "expressions": ["true"], "actions": [{"type": "deny", "config": {"status_code": 404}}]}],
                "on_http_response": [{"actions": [{"type": "add-headers", "config": {"headers": {"a": "b"}}}]}],
            })
        );
    }
}
