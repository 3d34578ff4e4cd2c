//! `culvert apply`, `culvert diff` and `culvert import`: the real program against a real server.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Backend, Harness, Receiver, backends, binary, eventually};

/// Kinds with metadata, which `--prune` lists.
const LISTED_KINDS: usize = 19;

/// The program with the address and key of a server.
fn culvert(server: &Harness, arguments: &[&str]) -> Command {
    let mut command = binary();
    command
        .env("CULVERT_API_URL", &server.api)
        .env("CULVERT_API_KEY", &server.token)
        .args(arguments);
    command
}

/// Runs it: exit code, standard output, standard error.
fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn apply(server: &Harness, folder: &Path, more: &[&str]) -> (i32, String, String) {
    run(culvert(server, &["apply", "--yes", "-f"])
        .arg(folder)
        .args(more))
}

fn diff(server: &Harness, folder: &Path, more: &[&str]) -> (i32, String, String) {
    run(culvert(server, &["diff", "-f"]).arg(folder).args(more))
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

/// ID of the newest event of a write. Reads have events too.
async fn newest_event(server: &Harness) -> Value {
    let page = server.call(Method::GET, "/events?limit=100", None).await;
    let events = page.body["events"].as_array().unwrap();
    let is_write = |event: &&Value| {
        let kind = event["event"]["event_type"].as_str().unwrap();
        ["_created.", "_updated.", "_deleted."]
            .iter()
            .any(|verb| kind.contains(verb))
    };
    events.iter().find(is_write).unwrap()["event"]["event_id"].clone()
}

const OFFICE: &str = "kind: ip_policies\nname: office\nlabels: {app: shop}\nspec:\n  description: The office\n---\nkind: ip_policy_rules\nname: office-lan\nlabels: {app: shop}\nspec: {ip_policy_id: '${ip_policies/office}', cidr: 192.0.2.0/24, action: allow}\n";
const SHOP: &str = "kind: vaults\nname: keys\nlabels: {app: shop}\nspec: {name: keys}\n---\nkind: vault_secrets\nname: pin\nlabels: {app: shop}\nspec: {name: pin, value: 'pin-${env:SHOP_PIN}', vault_id: '${vaults/keys}'}\n---\nkind: endpoints\nname: shop\nlabels: {app: shop}\nspec:\n  url: https://Shop.culvert.localhost:443\n  metadata: {team: web}\n  traffic_policy: '@policy.txt'\n";
const POLICY: &str = "on_http_request: # in\n- actions:\n  - {type: restrict-ips, config: {ip_policies: ['${ip_policies/office}']}}\n  - {type: basic-auth, config: {credentials: ['me:${env:SHOP_PIN}-long']}}\n  - {type: custom-response, config: {body: '${req.host} in'}}\n";

#[tokio::test(flavor = "multi_thread")]
async fn applied_files_create_update_and_prune_objects() {
    for backend in backends().await {
        let server = Harness::start(&backend).await;
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        write(at, "office.yaml", OFFICE);
        std::fs::create_dir(at.join("sub")).unwrap();
        write(at, "sub/shop.yaml", SHOP);
        // The policy is beside the file that names it.
        write(at, "sub/policy.txt", POLICY);
        write(at, "sub/shop.yaml", SHOP);
        let pin = "1234-secret";
        let with_pin = |arguments: &[&str]| {
            let mut command = culvert(&server, arguments);
            run(command.env("SHOP_PIN", pin).arg("-f").arg(at))
        };
        let (code, out, error) = with_pin(&["diff"]);
        assert_eq!((code, error.as_str()), (3, ""), "{out}");
        assert!(
            out.contains("+ endpoints/shop create") && out.contains("5 to create"),
            "{out}"
        );
        assert!(!out.contains(pin), "{out}");
        let (code, out, error) =
            with_pin(&["apply", "--dry-run", "--detailed-exitcode", "-o", "json"]);
        assert_eq!((code, error.as_str()), (3, ""), "{out}");
        assert!(!out.contains(pin), "{out}");
        // Nothing was changed, and nothing is without a confirmation.
        let (code, _, error) = with_pin(&["apply"]);
        assert_eq!(code, 2, "{error}");
        assert_eq!(
            server.call(Method::GET, "/vaults", None).await.body["vaults"],
            json!([])
        );
        let (code, out, error) = with_pin(&["apply", "--yes"]);
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        assert!(
            out.contains("endpoints/shop: created\n") && !out.contains(pin),
            "{out}"
        );
        let endpoints = server.call(Method::GET, "/endpoints", None).await.body;
        let shop = endpoints["endpoints"][0].clone();
        let metadata: Value = serde_json::from_str(shop["metadata"].as_str().unwrap()).unwrap();
        assert_eq!(
            metadata,
            json!({"team": "web", "culvert_apply": {"name": "shop", "labels": {"app": "shop"}}})
        );
        let path = format!("/endpoints/{}", shop["id"].as_str().unwrap());
        let whole = server.call(Method::GET, &path, None).await.body;
        let policy = whole["traffic_policy"].as_str().unwrap();
        assert!(
            policy.contains("me:1234-secret-long")
                && policy.contains("ipp_")
                && policy.contains("${req.host} in"),
            "{policy}"
        );

        // Again: no change, and no event.
        let newest = newest_event(&server).await;
        for arguments in [&["apply", "--yes"][..], &["diff"]] {
            let (code, out, error) = with_pin(arguments);
            assert_eq!((code, error.as_str()), (0, ""), "{out}");
            assert!(
                out.contains("0 to create, 0 to update, 0 to replace, 0 to delete, 5 unchanged"),
                "{out}"
            );
        }
        assert_eq!(newest_event(&server).await, newest);

        // A changed field, a field that needs a replacement, and one that was changed by hand.
        write(
            at,
            "office.yaml",
            &OFFICE
                .replace("The office", "Our office")
                .replace("action: allow", "action: deny"),
        );
        let by_hand = json!({"pooling_enabled": true, "upstream_url": "http://127.0.0.1:9", "traffic_policy": ""});
        assert_eq!(
            server
                .call(Method::PATCH, &path, Some(by_hand))
                .await
                .status,
            200
        );
        let (code, out, _) = with_pin(&["diff"]);
        assert_eq!(code, 3);
        assert!(
            out.contains("description: \"The office\" → \"Our office\""),
            "{out}"
        );
        assert!(
            out.contains("± ip_policy_rules/office-lan replace (`action` cannot be changed)"),
            "{out}"
        );
        assert!(
            out.contains("~ endpoints/shop update") && !out.contains(pin),
            "{out}"
        );
        // A field that no file names is not touched.
        assert!(
            !out.contains("pooling_enabled") && !out.contains("upstream_url"),
            "{out}"
        );
        let (code, out, error) = with_pin(&["apply", "--yes"]);
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        assert_eq!(with_pin(&["diff"]).0, 0);

        // A raised revision sends hidden values again.
        let raised = SHOP.replace("name: pin\nlabels", "name: pin\nrevision: 1\nlabels");
        write(at, "sub/shop.yaml", &raised);
        let (_, out, _) = with_pin(&["diff"]);
        assert!(
            out.contains("~ vault_secrets/pin update (revision 0 → 1)"),
            "{out}"
        );
        assert_eq!(with_pin(&["apply", "--yes"]).0, 0);
        assert_eq!(with_pin(&["diff"]).0, 0);

        // Only labelled objects are pruned.
        let other = json!({"name": "by-hand", "metadata": "{\"app\":\"shop\"}"});
        server.create("vaults", other).await;
        std::fs::remove_dir_all(at.join("sub")).unwrap();
        let (code, out, _) = diff(&server, at, &[]);
        assert_eq!(code, 0, "{out}");
        assert_eq!(apply(&server, at, &["--prune"]).0, 2);
        let (code, out, error) = apply(&server, at, &["--prune", "--selector", "app=other"]);
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        let (code, out, error) = apply(&server, at, &["--prune", "-l", "app=shop", "-o", "json"]);
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        let done: Value = serde_json::from_str(&out).unwrap();
        let deleted = done["changes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|it| it["result"] == "deleted");
        assert_eq!(deleted.count(), 3, "{out}");
        let vaults = server.call(Method::GET, "/vaults", None).await.body;
        assert_eq!(vaults["vaults"].as_array().unwrap().len(), 1);
        server.stop().await;
    }
}

/// Neither a default of the server nor its spelling of a value is a difference, for an object of every kind.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_is_unchanged_when_applied_again() {
    let server = Harness::start(&Backend::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["t.example".into()]).unwrap();
    write(at, "leaf.pem", &params.self_signed(&key).unwrap().pem());
    write(at, "key.pem", &key.serialize_pem());
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    write(at, "ca.pem", &params.self_signed(&key).unwrap().pem());
    let objects = json!([
        {"kind": "bot_users", "name": "robot"},
        {"kind": "service_users", "name": "service"},
        {"kind": "vaults", "name": "v", "spec": {"name": "v/1"}},
        {"kind": "vault_secrets", "name": "s", "spec": {"name": "s", "value": "hush", "vault_name": "v/1"}},
        {"kind": "ip_policies", "name": "p"},
        {"kind": "ip_policy_rules", "name": "r", "spec": {"ip_policy_id": "${ip_policies/p}", "cidr": "0.0.0.0/0", "action": "allow"}},
        {"kind": "certificate_authorities", "name": "ca", "spec": {"ca_pem": "@ca.pem"}},
        {"kind": "tls_certificates", "name": "t", "spec": {"certificate_pem": "@leaf.pem", "private_key_pem": "@key.pem"}},
        {"kind": "ssh_certificate_authorities", "name": "ssh", "spec": {"private_key_type": "ed25519"}},
        {"kind": "agent_ingresses", "name": "in", "spec": {"domain": "Connect.example.com"}},
        {"kind": "reserved_addrs", "name": "game", "spec": {"description": "a"}},
        {"kind": "reserved_domains", "name": "t", "spec": {"domain": "T.example.", "certificate_id": "${tls_certificates/t}"}},
        {"kind": "event_destinations", "name": "d", "spec": {"format": "json", "target": {"datadog": {"api_key": "dd-hush", "ddsite": "datadoghq.com"}}}},
        {"kind": "event_destinations", "name": "w", "spec": {"format": "json", "target": {"webhook": {"url": "http://127.0.0.1:9/x", "headers": {"x-key": "hush"}}}}},
        {"kind": "event_subscriptions", "name": "e", "spec": {"sources": [{"type": "vault_created.v0"}], "destination_ids": ["${event_destinations/d}"]}},
        {"kind": "ssh_credentials", "name": "k", "spec": {"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@home", "acl": ["bind:*"]}},
        {"kind": "credentials", "name": "agent", "token_file": "agent.token", "spec": {"acl": ["bind:*.example.com"]}},
        {"kind": "api_keys", "name": "ci", "token_file": "ci.token", "spec": {"role": "member", "scopes": ["secrets.read", "endpoints.write"], "networks": ["127.0.0.1/32"], "expires_at": "90d"}},
        {"kind": "endpoints", "name": "tcp", "spec": {"url": "tcp://${reserved_addrs/game:addr}", "upstream_url": "tcp://127.0.0.1:9"}},
        {"kind": "endpoints", "name": "http", "spec": {"url": "https://T.example:443", "upstream_url": "http://127.0.0.1:9", "timeouts": {"idle": "90s"}, "traffic_policy": {"on_http_response": [{"actions": [{"type": "add-headers", "config": {"headers": {"x": "y"}}}]}]}}},
        {"kind": "endpoints", "name": "port", "spec": {"url": "https://port.culvert.localhost", "upstream_url": 3000}},
        {"kind": "endpoints", "name": "several", "spec": {"url": "https://several.culvert.localhost", "upstreams": [{"url": "https://127.0.0.1:9"}, {"url": "https://127.0.0.1:10", "weight": 3, "in_flight_max": 9}], "upstream_limits": {"in_flight_max": 50, "wait_max": "2s"}, "upstream_balancing": {"policy": "least_requests"}, "upstream_health": {"passive": {"ejection_time": "60s"}}, "upstream_retries": {"on": ["503"], "attempts": 2}, "upstream_tls": {"ca": ["${certificate_authorities/ca}"], "client_certificate_id": "${tls_certificates/t}"}}},
        {"kind": "grants", "name": "g", "spec": {"object_id": "${vaults/v}", "grantee": "role:member"}},
        {"kind": "alert_rules", "name": "slow", "spec": {"name": "Slow", "for": "90s", "repeat_every": "240m", "condition": {"type": "latency", "quantile": "p95", "above_ms": 2000, "over": "300s"}, "object_ids": ["${endpoints/http}"], "destination_ids": ["${event_destinations/w}"]}},
        {"kind": "ip_restrictions", "name": "x", "spec": {"type": "agent", "ip_policy_ids": ["${ip_policies/p}"], "enforced": false}},
    ]);
    write(at, "all.json", &objects.to_string());
    let (code, out, error) = apply(&server, at, &[]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    assert!(!out.contains("the server stores another value"), "{out}");
    assert!(!out.contains("hush"), "{out}");
    let newest = newest_event(&server).await;
    let (code, out, error) = apply(&server, at, &[]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    let n = objects.as_array().unwrap().len();
    assert!(
        out.contains(&format!(
            "0 to create, 0 to update, 0 to replace, 0 to delete, {n} unchanged"
        )),
        "{out}"
    );
    assert_eq!(newest_event(&server).await, newest);
    let kinds: BTreeSet<&str> = objects
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds.len(), 21, "every kind");
    // The token works, and only its owner reads the file.
    let token = std::fs::read_to_string(at.join("ci.token")).unwrap();
    let client = server.client_with(token.trim());
    assert_eq!(
        client
            .call(Method::GET, "/vaults", None)
            .await
            .unwrap()
            .status,
        200
    );
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(at.join("ci.token"))
            .unwrap()
            .permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);

    // Restrictions are updated, and the token stays.
    let mut objects = objects;
    let key = objects.as_array_mut().unwrap();
    let key = key.iter_mut().find(|it| it["kind"] == "api_keys").unwrap();
    key["spec"]["scopes"] = json!(["endpoints.read"]);
    key["spec"]["expires_at"] = json!("2099-01-31");
    write(at, "all.json", &objects.to_string());
    let (code, out, error) = apply(&server, at, &[]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    let counts = "0 to create, 1 to update, 0 to replace, 0 to delete";
    assert!(out.contains(counts), "{out}");
    let refused = client.call(Method::GET, "/vaults", None).await.unwrap();
    assert_eq!(refused.status, 403, "{refused:?}");
    let (code, out, _) = diff(&server, at, &[]);
    assert_eq!(code, 0, "{out}");
    server.stop().await;
}

/// A run that is killed is completed by the next one, without duplicates.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_is_completed_by_the_next() {
    let server = Harness::start(&Backend::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut objects = vec![json!({"kind": "ip_policies", "name": "p"})];
    for n in 1..1000 {
        let cidr = format!("10.{}.{}.0/24", n / 256, n % 256);
        objects.push(json!({"kind": "ip_policy_rules", "name": format!("r{n}"), "labels": {"all": "1"}, "spec": {"ip_policy_id": "${ip_policies/p}", "cidr": cidr, "action": "allow"}}));
    }
    write(at, "all.json", &Value::Array(objects).to_string());
    let mut child = culvert(&server, &["apply", "--yes", "-f"])
        .arg(at)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let count = async || {
        let filter = "/ip_policy_rules?limit=100";
        let page = server.call(Method::GET, filter, None).await.body;
        page["ip_policy_rules"].as_array().unwrap().len()
    };
    eventually("some objects exist", async || count().await >= 20).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let (code, out, _) = diff(&server, at, &[]);
    println!("after the kill: {}", out.lines().last().unwrap_or_default());
    assert!(code == 3 || code == 0, "{out}");
    let (code, out, error) = apply(&server, at, &[]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    let (code, out, _) = apply(&server, at, &["--prune", "-l", "all=1"]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("0 to delete, 999 unchanged"), "{out}");
    write(at, "all.json", "[]");
    assert_eq!(apply(&server, at, &["--prune", "-l", "all=1"]).0, 0);
    assert_eq!(count().await, 0);
    server.stop().await;
}

/// Requests that the API has answered.
async fn requests(server: &Harness) -> usize {
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let metrics = crate::harness::raw(server.metrics, request).await.text;
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix("culvert_api_requests_total "));
    value.unwrap().trim().parse().unwrap()
}

/// A run makes one request for each change, and reads lists in pages of 100, however many objects there are. Only a
/// policy with secrets is read alone. The seconds are printed for people.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_objects_need_a_thousand_writes() {
    let server = Harness::start(&Backend::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let mut objects = vec![json!({"kind": "ip_policies", "name": "p"})];
    for n in 1..500 {
        let cidr = format!("10.{}.{}.0/24", n / 256, n % 256);
        objects.push(json!({"kind": "ip_policy_rules", "name": format!("r{n}"), "labels": {"all": "1"}, "spec": {"ip_policy_id": "${ip_policies/p}", "cidr": cidr, "action": "allow"}}));
        objects.push(json!({"kind": "endpoints", "name": format!("e{n}"), "labels": {"all": "1"}, "spec": {"url": format!("https://e{n}.culvert.localhost"), "traffic_policy": {"on_http_request": [{"actions": [{"type": "restrict-ips", "config": {"ip_policies": ["${ip_policies/p}"]}}, {"type": "custom-response", "config": {"body": "in"}}]}]}}}));
    }
    let hidden = json!({"on_http_request": [{"actions": [{"type": "basic-auth", "config": {"credentials": ["me:long enough"]}}, {"type": "deny"}]}]});
    objects.push(json!({"kind": "endpoints", "name": "hidden", "labels": {"all": "1"}, "spec": {"url": "https://hidden.culvert.localhost", "traffic_policy": hidden}}));
    let all = Value::Array(objects).to_string();
    // Three kinds, of which two have 5 pages at the second run; then every kind is listed once for `--prune`.
    let lists = LISTED_KINDS + 2 * 4;
    for (what, files, more, expected, most) in [
        ("first run", &all[..], &[][..], "1000 to create", 1000 + 3),
        ("second run", &all, &[], "1000 unchanged", 3 + 2 * 5 + 1),
        (
            "prune",
            "[]",
            &["--prune", "-l", "all=1"],
            "999 to delete",
            999 + lists,
        ),
    ] {
        write(folder.path(), "all.json", files);
        let (before, began) = (requests(&server).await, Instant::now());
        let (code, out, error) = apply(&server, folder.path(), more);
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        assert!(out.contains(expected), "{what}: {out}");
        let made = requests(&server).await - before;
        println!("{what} of 1,000 objects: {made} requests, {seconds:.2} s");
        assert!(made <= most, "{what}: {made} requests, at most {most}");
    }
    server.stop().await;
}

/// Without the right to read, nothing is changed. A refused object stops those that refer to it, and others go on.
#[tokio::test(flavor = "multi_thread")]
async fn failures_are_reported_and_others_go_on() {
    let server = Harness::start(&Backend::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write(
        at,
        "a.yaml",
        "kind: vaults\nname: bad\nspec: {name: 'not allowed!'}\n---\nkind: vault_secrets\nname: s\nspec: {name: s, value: hush, vault_id: '${vaults/bad}'}\n---\nkind: ip_policies\nname: good\n",
    );
    let (code, out, error) = apply(&server, at, &[]);
    assert_eq!(code, 1, "{out}");
    assert!(
        out.contains("vaults/bad: create failed: ") && out.contains("ERR_NGROK_23000"),
        "{out}"
    );
    assert!(
        out.contains("vault_secrets/s: skipped: vaults/bad failed"),
        "{out}"
    );
    assert!(out.contains("ip_policies/good: created"), "{out}");
    assert!(error.contains("2 objects were not changed"), "{error}");
    // A key without the scope to read cannot plan.
    let key = server.create("api_keys", json!({})).await;
    let path = format!("/api_keys/{}/restrictions", key["id"].as_str().unwrap());
    let scopes = json!({"scopes": ["ip_policies.write"]});
    assert_eq!(
        server.call(Method::PATCH, &path, Some(scopes)).await.status,
        200
    );
    let mut command = culvert(&server, &["apply", "--yes", "-f"]);
    let (code, out, error) = run(command
        .env("CULVERT_API_KEY", key["token"].as_str().unwrap())
        .arg(at));
    assert_eq!((code, out.as_str()), (1, ""), "{error}");
    assert!(
        error.contains("reading vault") && error.contains("scope"),
        "{error}"
    );
    for (text, why) in [
        (
            "kind: ip_policy_rules\nname: r\nspec: {ip_policy_id: '${ip_policies/no}', cidr: 10.0.0.0/8, action: allow}",
            "ip_policies/no is in no file and not on the server",
        ),
        (
            "kind: vaults\nname: a\nspec: {nam: a}",
            "vaults have no field `nam`",
        ),
    ] {
        write(at, "a.yaml", text);
        let (code, _, error) = apply(&server, at, &[]);
        assert_eq!(code, 1);
        assert!(error.contains(why) && error.contains("a.yaml:1"), "{error}");
    }
    server.stop().await;
}

fn import(server: &Harness, file: &Path, out: &Path, more: &[&str]) -> String {
    let (code, said, error) = run(culvert(server, &["import"])
        .arg(file)
        .arg("--out")
        .arg(out)
        .args(more));
    assert_eq!((code, error.as_str()), (0, ""), "{said}");
    said
}

/// An imported Caddyfile behaves as it did in Caddy.
#[tokio::test(flavor = "multi_thread")]
async fn an_imported_caddyfile_behaves_like_caddy() {
    let server = Harness::start(&Backend::Sqlite).await;
    let (api, web) = (Receiver::start().await, Receiver::start().await);
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = format!(
        "{{\n\temail me@example.com\n}}\n(common) {{\n\theader X-Site caddy\n\tencode gzip\n}}\nhttp://app.culvert.localhost {{\n\timport common\n\t@old path /old /older/*\n\tredir @old /new{{uri}} permanent\n\thandle_path /api/* {{\n\t\treverse_proxy {api} {{\n\t\t\theader_up X-From {{host}}\n\t\t}}\n\t}}\n\thandle /secret* {{\n\t\tbasic_auth {{\n\t\t\tme $2a$14$hash\n\t\t}}\n\t\trespond \"welcome\"\n\t}}\n\thandle /gone {{\n\t\trespond \"gone\" 410\n\t}}\n\thandle {{\n\t\treverse_proxy {web}\n\t}}\n\tfile_server\n}}\nhttp://plain.culvert.localhost {{\n\treverse_proxy {web}\n}}\n:9000 {{\n\trespond ok\n}}\n",
        api = api.address,
        web = web.address,
    );
    write(at, "Caddyfile", &text);
    let out = at.join("out");
    let said = import(
        &server,
        &at.join("Caddyfile"),
        &out,
        &["--domain", "culvert.localhost"],
    );
    for note in [
        "Caddyfile:2: email",
        "Caddyfile:19: the password of me",
        "Caddyfile:29: file_server",
        "Caddyfile:34: the site `:9000`",
    ] {
        assert!(said.contains(note), "{note}: {said}");
    }
    let mut command = culvert(&server, &["apply", "--yes", "-f"]);
    let (code, done, error) = run(command.env("PASSWORD_ME", "correct horse").arg(&out));
    assert_eq!((code, error.as_str()), (0, ""), "{done}");
    let host = "app.culvert.localhost";
    eventually("the site is live", async || {
        server.get(host, "/gone").await.status == 410
    })
    .await;
    let get = async |target: &str| server.get(host, target).await;
    let old = get("/older/x?a=1").await;
    assert_eq!(old.status, 301, "{}", old.text);
    assert!(
        old.text
            .to_ascii_lowercase()
            .contains("location: http://app.culvert.localhost/new/older/x?a=1"),
        "{}",
        old.text
    );
    assert_eq!(get("/api/v1/things?q=1").await.status, 200);
    let received = api.received().pop().unwrap();
    assert_eq!(received.path, "/v1/things?q=1");
    assert_eq!(received.headers["x-from"], host);
    assert_eq!(get("/secret").await.status, 401);
    let ask = format!(
        "GET /secret HTTP/1.1\r\nhost: {host}\r\nauthorization: Basic bWU6Y29ycmVjdCBob3JzZQ==\r\nconnection: close\r\n\r\n"
    );
    let inside = crate::harness::raw(server.http, ask.as_bytes()).await;
    assert!(
        inside.status == 200 && inside.text.ends_with("welcome"),
        "{}",
        inside.text
    );
    let other = get("/else").await;
    assert!(
        other.status == 200 && other.text.to_ascii_lowercase().contains("x-site: caddy"),
        "{}",
        other.text
    );
    assert_eq!(web.received().pop().unwrap().path, "/else");
    assert_eq!(api.received().len(), 1);
    assert_eq!(
        server.get("plain.culvert.localhost", "/x").await.status,
        200
    );
    // The import can be applied again.
    let (code, done, _) = run(culvert(&server, &["diff", "-f"])
        .env("PASSWORD_ME", "correct horse")
        .arg(&out));
    assert_eq!(code, 0, "{done}");
    server.stop().await;
}

/// Agents, which are stopped also if the test fails.
struct Agents(Vec<std::process::Child>);

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            drop(agent.kill());
            drop(agent.wait());
        }
    }
}

/// Imported agents of frp and cloudflared publish their services.
#[tokio::test(flavor = "multi_thread")]
async fn imported_agents_publish_their_services() {
    let (server, port) = Harness::start_with_port().await;
    let (one, two) = (Receiver::start().await, Receiver::start().await);
    let credential = server.create("credentials", json!({})).await;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let frpc = format!(
        "serverAddr = \"culvert.localhost\"\nserverPort = 7000\nauth.token = \"x\"\n\n[[proxies]]\nname = \"web\"\ntype = \"http\"\nlocalPort = {}\nsubdomain = \"frp\"\nlocations = [\"/in\"]\nhttpUser = \"me\"\nhttpPassword = \"correct horse\"\nrequestHeaders.set.x-from = \"frp\"\n\n[[proxies]]\nname = \"raw\"\ntype = \"tcp\"\nlocalPort = {}\nremotePort = 6000\n\n[[proxies]]\nname = \"dns\"\ntype = \"udp\"\nlocalPort = 53\n",
        one.address.port(),
        two.address.port(),
    );
    write(at, "frpc.toml", &frpc);
    let cloudflared = format!(
        "tunnel: abc\ningress:\n  - hostname: cf.culvert.localhost\n    path: ^/one\n    service: http://127.0.0.1:{}\n  - hostname: cf.culvert.localhost\n    service: http://127.0.0.1:{}\n    originRequest:\n      httpHostHeader: inner.example\n  - service: http_status:404\n",
        one.address.port(),
        two.address.port(),
    );
    write(at, "cloudflared.yml", &cloudflared);
    let mut agents = Agents(Vec::new());
    for (file, out) in [("frpc.toml", "frp"), ("cloudflared.yml", "cf")] {
        let out = at.join(out);
        let said = import(
            &server,
            &at.join(file),
            &out,
            &["--domain", "culvert.localhost"],
        );
        if file == "frpc.toml" {
            for note in [
                "frpc.toml:3: auth",
                "frpc.toml:21: proxies[2] `dns`, type `udp`",
            ] {
                assert!(said.contains(note), "{note}: {said}");
            }
        } else {
            assert!(said.contains("cloudflared.yml:1: tunnel"), "{said}");
            let (code, done, error) = apply(&server, &out.join("objects.yaml"), &[]);
            assert_eq!((code, error.as_str()), (0, ""), "{done}");
        }
        let mut start = culvert(&server, &["start", "--config"]);
        start
            .arg(out.join("agent.yaml"))
            .env(
                "CULVERT_SERVER",
                format!("localhost:{}", server.agents.port()),
            )
            .env("CULVERT_CA_FILE", server.settings.data_dir.join("ca.pem"))
            .env("CULVERT_AUTHTOKEN", credential["token"].as_str().unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        agents.0.push(start.spawn().unwrap());
    }
    let ask = |host: &str, path: &str, more: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n")
    };
    let authorization = "authorization: Basic bWU6Y29ycmVjdCBob3JzZQ==\r\n";
    let host = "frp.culvert.localhost";
    eventually("the agent of frp is online", async || {
        let ask = ask(host, "/in", authorization);
        crate::harness::raw(server.http, ask.as_bytes())
            .await
            .status
            == 200
    })
    .await;
    assert_eq!(one.received().pop().unwrap().headers["x-from"], "frp");
    assert_eq!(server.get(host, "/in").await.status, 401);
    let outside =
        crate::harness::raw(server.http, ask(host, "/out", authorization).as_bytes()).await;
    assert_eq!(outside.status, 404);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    eventually("the TCP service answers", async || {
        let Ok(mut stream) = tokio::net::TcpStream::connect(address).await else {
            return false;
        };
        let mut answer = Vec::new();
        let bytes = ask("x", "/raw", "");
        tokio::io::AsyncWriteExt::write_all(&mut stream, bytes.as_bytes())
            .await
            .is_ok()
            && tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer)
                .await
                .is_ok()
            && answer.starts_with(b"HTTP/1.1 200")
    })
    .await;
    // The public endpoint of cloudflared's host is of https; the internal ones are reached through its policy.
    let endpoints = server
        .call(Method::GET, "/endpoints?limit=100", None)
        .await
        .body;
    let urls: BTreeSet<String> = endpoints["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["url"].as_str().unwrap().to_owned())
        .collect();
    assert!(urls.contains("https://cf.culvert.localhost"), "{urls:?}");
    eventually("cloudflared's services are online", async || {
        let page = server
            .call(Method::GET, "/endpoints?limit=100", None)
            .await
            .body;
        page.to_string().matches(".internal\"").count() >= 2
    })
    .await;
    drop(agents);
    server.stop().await;
}
