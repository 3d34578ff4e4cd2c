//! Every kind of audit event arrives at a webhook: caused by real calls, signed, in commit order, with every field of
//! the contract and without secrets. Rejected calls cause none.
//!
//! The lists here are those of the contract. If the catalogue or the operation table has more, the test fails until
//! they are listed here too.

use std::collections::BTreeSet;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{Entropy, OsEntropy};
use culvert_events::Family;
use http::Method;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::{Value, json};

use crate::agents::connect;
use crate::events_arrive::verify;
use crate::harness::{Harness, Receiver, backends, eventually};

/// Collections with audit events: the stem of their kinds, and the fields of the object.
const AUDITED: &[(&str, &str, &str)] = &[
    (
        "api_keys",
        "api_key",
        "id uri description metadata created_at token",
    ),
    (
        "certificate_authorities",
        "certificate_authority",
        "id uri created_at description metadata ca_pem subject_common_name not_before not_after key_usages extended_key_usages",
    ),
    (
        "credentials",
        "tunnel_credential",
        "id uri created_at description metadata token acl owner_id",
    ),
    (
        "event_destinations",
        "event_destination",
        "id metadata created_at description format target uri",
    ),
    (
        "event_subscriptions",
        "event_subscription",
        "id uri created_at metadata description sources destinations",
    ),
    (
        "grants",
        "grant",
        "id uri created_at description metadata object_id grantee right expires_at",
    ),
    (
        "ip_policies",
        "ip_policy",
        "id uri created_at description metadata",
    ),
    (
        "ip_policy_rules",
        "ip_policy_rule",
        "id uri created_at description metadata cidr ip_policy action",
    ),
    (
        "ip_restrictions",
        "ip_restriction",
        "id uri created_at description metadata enforced type ip_policies",
    ),
    (
        "reserved_addrs",
        "tcp_address",
        "id uri created_at description metadata addr region",
    ),
    (
        "reserved_domains",
        "domain",
        "id uri created_at description metadata domain region cname_target certificate certificate_management_policy certificate_management_status acme_challenge_cname_target",
    ),
    (
        "ssh_certificate_authorities",
        "ssh_certificate_authority",
        "id uri created_at description metadata public_key key_type",
    ),
    (
        "ssh_credentials",
        "ssh_public_key",
        "id uri created_at description metadata public_key acl owner_id",
    ),
    (
        "ssh_host_certificates",
        "ssh_host_certificate",
        "id uri created_at description metadata public_key key_type ssh_certificate_authority_id principals valid_after valid_until certificate",
    ),
    (
        "ssh_user_certificates",
        "ssh_user_certificate",
        "id uri created_at description metadata public_key key_type ssh_certificate_authority_id principals critical_options extensions valid_after valid_until certificate",
    ),
    (
        "tls_certificates",
        "tls_certificate",
        "id uri created_at description metadata certificate_pem subject_common_name subject_alternative_names issued_at not_before not_after key_usages extended_key_usages private_key_type issuer_common_name serial_number subject_organization subject_organizational_unit subject_locality subject_province subject_country",
    ),
    (
        "vaults",
        "vault",
        "id uri created_at updated_at name description metadata created_by last_updated_by",
    ),
    (
        "vault_secrets",
        "secret",
        "id uri created_at updated_at name description metadata created_by last_updated_by vault vault_name",
    ),
];

/// Resources with kinds of our own.
const OWN: [&str; 10] = [
    "agent_ingress",
    "alert_rule",
    "application_session",
    "application_user",
    "audit_hold",
    "bot_user",
    "endpoint",
    "kubernetes_operator",
    "service_user",
    "user",
];

/// Collections that callers change, whose kinds are our own.
const OF_OWN: &[&str] = &[
    "agent_ingresses",
    "alert_rules",
    "audit_holds",
    "bot_users",
    "endpoints",
    "kubernetes_operators",
    "users",
    "service_users",
];

/// Kinds for agent sessions, and the fields of their object.
const OF_AGENTS: [&str; 2] = ["agent_session_start.v0", "agent_session_stop.v0"];
const FIELDS_OF_AGENTS: &str = "session credential agent_ip ingress_server_ip region ingress_hostname user_agent metadata os arch transport started_at expires_at stopped_at deprecated error";

/// The kinds that no call causes; `fail_over`, `data_directory`, `refused_traffic` and `several_upstreams` do.
const OF_DATABASE: [&str; 5] = [
    "commits_lost.v0",
    "events_dropped.v0",
    "traffic_refused.v0",
    "upstream_healthy.v0",
    "upstream_unhealthy.v0",
];

const VERBS: [&str; 3] = ["created", "updated", "deleted"];

/// A server, the calls sent to it, and the events that they must cause.
pub struct Witness {
    pub culvert: Harness,
    /// Kind and object of each event, in commit order.
    expected: Vec<(String, String)>,
    /// Texts that no event may contain.
    secrets: Vec<String>,
}

impl Witness {
    /// No events are expected yet.
    pub fn of(culvert: Harness) -> Self {
        Self {
            culvert,
            expected: Vec::new(),
            secrets: Vec::new(),
        }
    }

    pub async fn create(&mut self, collection: &str, body: Value) -> Value {
        let made = self.culvert.create(collection, body).await;
        self.expect(collection, "created", &made);
        for pointer in ["/token", "/target/webhook/secrets/0"] {
            let secret = made.pointer(pointer).and_then(Value::as_str);
            // The first part of a token is the public id of its key.
            let secret = secret.and_then(|text| text.rsplit('_').next());
            self.secrets.extend(secret.map(str::to_owned));
        }
        made
    }

    pub async fn update(&mut self, collection: &str, object: &Value) {
        let path = path(collection, object);
        let body = match collection {
            "bot_users" | "service_users" => json!({"name": "changed"}),
            "users" => json!({"role": "read_only"}),
            "audit_holds" => json!({"reason": "changed"}),
            _ => json!({"description": "changed"}),
        };
        let answer = self.culvert.call(Method::PATCH, &path, Some(body)).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        self.expect(collection, "updated", object);
    }

    pub async fn delete(&mut self, collection: &str, object: &Value) {
        let path = path(collection, object);
        let answer = self.culvert.call(Method::DELETE, &path, None).await;
        assert_eq!(answer.status, 204, "{path}: {:?}", answer.body);
        self.expect(collection, "deleted", object);
    }

    /// Starts an agent session, which ends when its credential is deleted.
    pub async fn agent(&mut self, hook: &Receiver) {
        let made = self.create("credentials", json!({})).await;
        let token = made["token"].as_str().unwrap();
        let session = connect(&self.culvert, token).await;
        let id = session.id();
        let [start, stop] = OF_AGENTS;
        self.expected.push((start.to_owned(), id.clone()));
        self.delete("credentials", &made).await;
        hook.wait_for(stop, 1).await;
        self.expected.push((stop.to_owned(), id));
    }

    /// Sends calls that are rejected. Each would cause an event if it were accepted.
    async fn refused(&self, collection: &str, object: &Value) {
        let one = path(collection, object);
        let unknown = json!({"no_such_field": 1});
        let reader = self.culvert.client_with("not a token");
        for (method, path, body) in [
            (
                Method::POST,
                format!("/{collection}"),
                Some(unknown.clone()),
            ),
            (Method::PATCH, one.clone(), Some(unknown)),
            (
                Method::PATCH,
                one.clone(),
                Some(json!({"metadata": "x".repeat(4097)})),
            ),
            (Method::DELETE, format!("{one}0"), None),
            (Method::DELETE, format!("/{collection}"), None),
        ] {
            let answer = self.culvert.call(method.clone(), &path, body.clone()).await;
            assert!(
                answer.status >= 400 && answer.status < 500,
                "{method} {path}"
            );
            let answer = reader
                .call(method.clone(), &path, body.as_ref())
                .await
                .unwrap();
            assert!(
                answer.status >= 400 && answer.status < 500,
                "{method} {path}"
            );
        }
    }

    fn expect(&mut self, collection: &str, verb: &str, object: &Value) {
        let audited = AUDITED.iter().find(|(name, ..)| *name == collection);
        if let Some((_, stem, _)) = audited {
            let id = object["id"].as_str().unwrap().to_owned();
            self.expected.push((format!("{stem}_{verb}.v0"), id));
        }
    }

    /// The body for an object of the collection. Creates the objects that it references.
    pub async fn sample(&mut self, collection: &str) -> Value {
        match collection {
            "agent_ingresses" => json!({"domain": "connect.x.example"}),
            "api_keys" | "ip_policies" | "reserved_addrs" => json!({"description": "a sample"}),
            "alert_rules" => {
                let condition = json!({"type": "key_expiring", "within": "7d"});
                json!({"name": "a sample", "condition": condition})
            }
            "audit_holds" => json!({"filter": "event_id == ''", "reason": "a sample"}),
            "bot_users" | "service_users" => json!({"name": collection}),
            "certificate_authorities" => {
                let mut params = CertificateParams::new(Vec::new()).unwrap();
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
                params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
                let key = KeyPair::generate().unwrap();
                json!({"ca_pem": params.self_signed(&key).unwrap().pem()})
            }
            "credentials" => json!({"acl": ["bind:*"]}),
            "endpoints" => {
                json!({"url": "https://e.culvert.localhost", "upstream_url": "http://127.0.0.1:1"})
            }
            "event_destinations" => {
                let webhook = json!({"url": "http://127.0.0.1:1/", "headers": {"x-secret": "canary-in-a-header"}});
                self.secrets.push("canary-in-a-header".into());
                json!({"format": "json", "target": {"webhook": webhook}})
            }
            "event_subscriptions" => json!({"sources": [{"type": "tcp_connection_closed.v0"}]}),
            "ip_policy_rules" => {
                let policy = self.create("ip_policies", json!({})).await;
                json!({"cidr": "192.0.2.0/24", "action": "allow", "ip_policy_id": policy["id"]})
            }
            "ip_restrictions" => {
                let policy = self.create("ip_policies", json!({})).await;
                json!({"type": "agent", "ip_policy_ids": [policy["id"]]})
            }
            "kubernetes_operators" => json!({"deployment": {"name": "o", "namespace": "x"}}),
            "reserved_domains" => json!({"domain": "d.example"}),
            "ssh_certificate_authorities" => json!({}),
            "ssh_credentials" => json!({"public_key": ssh_key(), "acl": ["bind:*"]}),
            "ssh_host_certificates" | "ssh_user_certificates" => {
                let authority = self.create("ssh_certificate_authorities", json!({})).await;
                json!({"ssh_certificate_authority_id": authority["id"], "public_key": ssh_key()})
            }
            "tls_certificates" => {
                let key = KeyPair::generate().unwrap();
                let params = CertificateParams::new(vec!["t.example".to_owned()]).unwrap();
                let certificate = params.self_signed(&key).unwrap();
                let lines = key.serialize_pem();
                self.secrets.extend(lines.lines().nth(1).map(str::to_owned));
                json!({"certificate_pem": certificate.pem(), "private_key_pem": lines})
            }
            "users" => json!({"email": "someone@x.example"}),
            "vaults" => json!({"name": "vault"}),
            "vault_secrets" => {
                let vault = self.create("vaults", json!({"name": "of-a-secret"})).await;
                self.secrets.push("canary-in-a-vault".into());
                json!({"name": "secret", "value": "canary-in-a-vault", "vault_id": vault["id"]})
            }
            "grants" => {
                let vault = self.create("vaults", json!({"name": "of-a-grant"})).await;
                json!({"object_id": vault["id"], "grantee": "role:member"})
            }
            other => panic!("this test has no sample for `{other}`"),
        }
    }
}

fn path(collection: &str, object: &Value) -> String {
    format!("/{collection}/{}", object["id"].as_str().unwrap())
}

/// A public key line as in `id_ed25519.pub`.
fn ssh_key() -> String {
    let entropy: &dyn Entropy = &OsEntropy;
    let mut key = Vec::new();
    for part in [&b"ssh-ed25519"[..], &entropy.bytes::<32>()] {
        key.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
        key.extend(part);
    }
    format!("ssh-ed25519 {} someone@x.example", STANDARD.encode(key))
}

/// All kinds of the catalogue except for traffic.
fn catalogue() -> BTreeSet<String> {
    let entries = culvert_control::catalogue().entries();
    let audit = entries.filter(|entry| entry.family() != Family::Traffic);
    audit.map(|entry| entry.name().to_owned()).collect()
}

/// The kinds of audit events of the ngrok API, with those of grants and of losses.
fn contract() -> BTreeSet<String> {
    let kinds = AUDITED
        .iter()
        .flat_map(|(_, stem, _)| VERBS.map(|verb| format!("{stem}_{verb}.v0")));
    let others = OF_AGENTS.into_iter().chain(OF_DATABASE);
    kinds.chain(others.map(str::to_owned)).collect()
}

#[test]
fn the_catalogue_has_the_kinds_of_the_contract() {
    let (catalogue, contract) = (catalogue(), contract());
    let absent: Vec<_> = contract.difference(&catalogue).collect();
    assert_eq!(absent, Vec::<&String>::new());
    // Our own stand beside them: ten resources with three kinds each, and those of operations, refusals and the server.
    let own: Vec<_> = catalogue.difference(&contract).collect();
    let of = |stem: &str| VERBS.map(|verb| format!("{stem}_{verb}.v0"));
    for stem in OWN {
        assert!(of(stem).iter().all(|kind| own.contains(&kind)), "{stem}");
    }
    assert_eq!(own.len(), OWN.len() * VERBS.len() + 53, "{own:?}");
    let mut made: Vec<&str> = culvert_control::operations()
        .iter()
        .filter(|operation| operation.name == "create")
        .map(|operation| operation.collection)
        .collect();
    let audited = AUDITED.iter().map(|(collection, ..)| *collection);
    let mut listed: Vec<&str> = audited.chain(OF_OWN.iter().copied()).collect();
    made.sort_unstable();
    listed.sort_unstable();
    assert_eq!(made, listed);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_audit_kind_arrives_at_a_webhook() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let hook = Receiver::start().await;
        let oneself = culvert.call(Method::GET, "/self", None).await.body;
        let mut witness = Witness::of(culvert);
        let url = format!("http://{}/hook", hook.address);
        let body = json!({"format": "json", "target": {"webhook": {"url": url}}});
        let destination = witness.create("event_destinations", body).await;
        let secret = destination["target"]["webhook"]["secrets"][0]
            .as_str()
            .unwrap();
        // There was no subscription yet.
        witness.expected.clear();
        let sources: Vec<Value> = contract()
            .iter()
            .map(|kind| json!({"type": kind}))
            .collect();
        let body = json!({"destination_ids": [destination["id"]], "sources": sources});
        witness.create("event_subscriptions", body).await;

        let collections = culvert_control::operations()
            .iter()
            .filter(|operation| operation.name == "create")
            .map(|operation| operation.collection);
        for collection in collections {
            let sample = witness.sample(collection).await;
            let object = witness.create(collection, sample).await;
            witness.refused(collection, &object).await;
            witness.update(collection, &object).await;
            witness.delete(collection, &object).await;
            witness.refused(collection, &object).await;
        }
        witness.agent(&hook).await;
        // The last event. Unexpected events would arrive before it.
        let last = witness
            .create("api_keys", json!({"description": "the last"}))
            .await;
        eventually("the last event arrives", async || {
            let events = hook.events();
            events
                .iter()
                .any(|event| event["object"]["id"] == last["id"])
        })
        .await;

        for request in hook.received() {
            verify(secret, &request.headers, &request.body);
        }
        let events = hook.events();
        let reported: Vec<(String, String)> = events
            .iter()
            .map(|event| {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let object = &event["object"];
                let id = object.get("id").unwrap_or(&object["session"]["id"]);
                (text(&event["event_type"]), text(id))
            })
            .collect();
        assert_eq!(
            reported, witness.expected,
            "all of them, in commit order, and no other"
        );
        let key = &oneself["api_key"];
        for event in &events {
            let kind = event["event_type"].as_str().unwrap();
            let mut envelope = json!({"event_id": 0, "event_type": 0, "event_timestamp": 0, "account_id": 0, "principal": 0, "object": 0});
            if kind.contains("_updated.") {
                envelope["previous"] = json!(0);
            }
            assert_eq!(keys(event), keys(&envelope));
            assert_eq!(event["account_id"], oneself["account"]["id"]);
            let is_agents = OF_AGENTS.contains(&kind);
            let credential = match is_agents {
                true => event["object"]["credential"].clone(),
                false => json!({"id": key["id"], "uri": key["uri"]}),
            };
            let mut principal = event["principal"].clone();
            let context = principal.as_object_mut().unwrap().remove("context");
            // An agent's connection is no call.
            assert_eq!(context.is_none(), is_agents, "{kind}");
            assert_eq!(
                principal,
                json!({
                    "id": key["owner_id"],
                    "subject": oneself["user"],
                    "source": if is_agents { "Agent" } else { "API" },
                    "credential": credential,
                })
            );
            let of_agents = is_agents.then_some(("", "", FIELDS_OF_AGENTS));
            let fields = AUDITED
                .iter()
                .find(|(_, stem, _)| {
                    let rest = kind
                        .strip_prefix(stem)
                        .and_then(|rest| rest.strip_prefix('_'));
                    rest.is_some_and(|rest| VERBS.iter().any(|verb| rest == format!("{verb}.v0")))
                })
                .copied()
                .or(of_agents)
                .map(|(.., fields)| {
                    fields
                        .split(' ')
                        .map(str::to_owned)
                        .collect::<BTreeSet<_>>()
                });
            assert_eq!(Some(keys(&event["object"])), fields, "{kind}");
            let text = event.to_string();
            for secret in &witness.secrets {
                assert!(!text.contains(secret), "{kind} has a secret");
            }
        }
        assert!(witness.secrets.len() >= 6, "{}", witness.secrets.len());
        let seen: BTreeSet<String> = reported.into_iter().map(|(kind, _)| kind).collect();
        let mut expected = contract();
        expected.retain(|kind| !OF_DATABASE.contains(&&**kind));
        assert_eq!(seen, expected);
        // Writes to standard output directly, because the test harness hides what passing tests print.
        let mut out = std::io::stdout();
        writeln!(out, "kinds seen: {} of {}", seen.len(), expected.len()).unwrap();
        witness.culvert.stop().await;
    }
}

fn keys(object: &Value) -> BTreeSet<String> {
    object.as_object().unwrap().keys().cloned().collect()
}
