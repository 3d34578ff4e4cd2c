//! Traffic policies from the management API to live traffic and its events.

use http::Method;
use serde_json::{Value, json};

use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, Receiver, backends, eventually};

/// A policy as users write it: with comments, irregular spacing and no final line break.
const POLICY: &str = "# ours\non_http_request:\n  - name:   only us\n    expressions: [ \"req.headers['x-who'][0] == 'me'\" ]\n    actions:\n      - {type: log, config: {metadata: {n: '${1 + 1}'}}}\n      - type: custom-response\n        config: { status_code: 201, body: 'hello ${req.headers[\"x-who\"][0]}' }\n  - actions: [ {type: deny} ]";

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_returned_runs_and_changes_without_a_restart() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let hook = Receiver::start().await;
        let source = json!([{"type": "http_request_complete.v0"}]);
        subscribe_debug(&culvert, &hook, source).await;
        let host = "governed.culvert.localhost";
        let url = format!("http://{host}");
        let made = culvert
            .create("endpoints", json!({"url": url, "traffic_policy": POLICY}))
            .await;
        assert_eq!(made["traffic_policy"], POLICY);
        assert_eq!(made["upstream_url"], "");
        let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
        let read = culvert.call(Method::GET, &path, None).await.body;
        assert_eq!(read["traffic_policy"], POLICY);

        eventually("the policy answers", async || {
            culvert.get(host, "/").await.status == 403
        })
        .await;
        let mine =
            format!("GET / HTTP/1.1\r\nhost: {host}\r\nx-who: me\r\nconnection: close\r\n\r\n");
        let answer = crate::harness::raw(culvert.http, mine.as_bytes()).await;
        assert_eq!(answer.status, 201);
        assert!(answer.text.ends_with("\r\n\r\nhello me"), "{}", answer.text);
        let reported = |event: &Value| {
            let object = &event["object"];
            object["http"]["response"]["status_code"] == 201
                && object["traffic_policy"]["logs"] == json!([{"metadata": {"n": 2}}])
        };
        eventually("the event has the log", async || {
            hook.events().iter().any(reported)
        })
        .await;

        // A policy as an object is stored as JSON. An invalid one changes nothing.
        let teapot = json!({"on_http_request": [{"actions": [{"type": "deny", "config": {"status_code": 418}}]}]});
        let patched = culvert
            .call(
                Method::PATCH,
                &path,
                Some(json!({"traffic_policy": teapot})),
            )
            .await;
        assert_eq!(patched.body["traffic_policy"], teapot.to_string());
        eventually("the new policy answers", async || {
            culvert.get(host, "/").await.status == 418
        })
        .await;
        for (policy, code) in [
            (
                "on_http_request: [{actions: [{type: dney}]}]",
                "ERR_NGROK_2201",
            ),
            ("on_http_request: []", "ERR_NGROK_2235"),
            ("", "ERR_NGROK_18015"),
        ] {
            let body = json!({"traffic_policy": policy});
            let refused = culvert.call(Method::PATCH, &path, Some(body)).await;
            assert_eq!(refused.status, 400);
            assert_eq!(refused.body["error_code"], code, "{policy}");
        }
        assert_eq!(culvert.get(host, "/").await.status, 418);
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_ip_policies_apply_immediately_and_keep_no_reference() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let origin = Receiver::start().await;
        let policy = culvert.create("ip_policies", json!({})).await["id"].clone();
        let host = "walled.culvert.localhost";
        let text = format!(
            "on_http_request: [{{actions: [{{type: restrict-ips, config: {{ip_policies: [{}]}}}}]}}]",
            policy.as_str().unwrap()
        );
        let body = json!({
            "url": format!("http://{host}"), "traffic_policy": text,
            "upstream_url": format!("http://{}", origin.address),
        });
        let made = culvert.create("endpoints", body.clone()).await;
        eventually("no request is admitted", async || {
            culvert.get(host, "/").await.text.contains("ERR_NGROK_3203")
        })
        .await;
        let rule = json!({"ip_policy_id": policy, "action": "allow", "cidr": "127.0.0.0/8"});
        culvert.create("ip_policy_rules", rule).await;
        eventually("this address is admitted", async || {
            culvert.get(host, "/").await.status == 200
        })
        .await;
        // An IP policy cannot be deleted while a traffic policy references it.
        let path = format!("/ip_policies/{}", policy.as_str().unwrap());
        let refused = culvert.call(Method::DELETE, &path, None).await;
        assert_eq!(refused.body["error_code"], "ERR_NGROK_1420");
        assert_eq!(culvert.get(host, "/").await.status, 200);
        let endpoint = format!("/endpoints/{}", made["id"].as_str().unwrap());
        let gone = culvert.call(Method::DELETE, &endpoint, None).await;
        assert_eq!(gone.status, 204);
        assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
        let again = culvert.call(Method::POST, "/endpoints", Some(body)).await;
        assert_eq!(again.body["error_code"], "ERR_NGROK_2216");
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_encrypted_and_kept_by_updates() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let host = "locked.culvert.localhost";
        let text = "on_http_request: # locked\n- actions:\n  - {type: basic-auth, config: {credentials: ['me:correct horse']}}\n  - {type: custom-response, config: {body: in}}\n";
        let body = json!({"url": format!("http://{host}"), "traffic_policy": text});
        let made = culvert.create("endpoints", body).await;
        assert_eq!(made["traffic_policy"], text);
        let listed = culvert.call(Method::GET, "/endpoints", None).await.body;
        // The admin who lists it gets it byte for byte, as Terraform and the operator compare it.
        assert_eq!(listed["endpoints"][0]["traffic_policy"], text);
        let shown = text.replace("'me:correct horse'", "\"[redacted]\"");
        let enter = async || {
            // me:correct horse
            let ask = format!(
                "GET / HTTP/1.1\r\nhost: {host}\r\nauthorization: Basic bWU6Y29ycmVjdCBob3JzZQ==\r\nconnection: close\r\n\r\n"
            );
            crate::harness::raw(culvert.http, ask.as_bytes()).await
        };
        eventually("the password opens", async || enter().await.status == 200).await;
        assert_eq!(culvert.get(host, "/").await.status, 401);
        assert_eq!(
            crate::secrets::files_with(&culvert.settings.data_dir, b"correct horse"),
            Vec::<String>::new()
        );
        // A redacted text can be written back with another body.
        let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
        let changed = shown.replace("body: in", "body: inside");
        let patch = json!({"traffic_policy": changed});
        let patched = culvert.call(Method::PATCH, &path, Some(patch)).await;
        let whole = changed.replace("\"[redacted]\"", "\"me:correct horse\"");
        assert_eq!(patched.body["traffic_policy"], whole);
        eventually("the password still opens", async || {
            enter().await.text.ends_with("inside")
        })
        .await;
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_policy_of_the_guide_is_accepted() {
    let guide = include_str!("../../../../docs/how-to/traffic-policy.md");
    let culvert = Harness::start(&Backend::Sqlite).await;
    let policy = culvert.create("ip_policies", json!({})).await;
    let id = policy["id"].as_str().unwrap();
    let vault = culvert.create("vaults", json!({"name": "logins"})).await;
    let secret = json!({"vault_id": vault["id"], "name": "anna", "value": "a long password"});
    culvert.create("vault_secrets", secret).await;
    let mut n_taken = 0;
    for block in guide.split("```yaml\n").skip(1) {
        let (text, _) = block.split_once("```").unwrap();
        n_taken += 1;
        let body = json!({
            "url": format!("http://guide-{n_taken}.culvert.localhost"),
            "upstream_url": "http://127.0.0.1:9",
            "traffic_policy": text.replace("ipp_example", id),
        });
        culvert.create("endpoints", body).await;
    }
    assert!(n_taken > 3, "{n_taken}");
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_endpoints_are_reachable_only_through_policies() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let origin = Receiver::start().await;
        let body = json!({
            "url": "http://app.internal:8080", "upstream_url": format!("http://{}", origin.address),
        });
        let inner = culvert.create("endpoints", body).await;
        assert_eq!(inner["bindings"], json!(["internal"]));
        assert_eq!(inner["hostport"], "app.internal:8080");
        let host = "front.culvert.localhost";
        let text = "on_http_request: [{actions: [{type: forward-internal, config: {url: http://app.internal:8080}}]}]";
        let body = json!({"url": format!("http://{host}"), "traffic_policy": text});
        culvert.create("endpoints", body).await;
        eventually("the internal endpoint answers", async || {
            culvert.get(host, "/").await.status == 200
        })
        .await;
        assert_eq!(culvert.get("app.internal", "/").await.status, 404);
        let path = format!("/endpoints/{}", inner["id"].as_str().unwrap());
        assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
        eventually("nobody is there any more", async || {
            culvert.get(host, "/").await.text.contains("ERR_NGROK_3615")
        })
        .await;
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vault_secret_applies_immediately_and_stays_encrypted() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let vault = culvert.create("vaults", json!({"name": "keys"})).await;
        let body = json!({"name": "door", "value": "open sesame", "vault_id": vault["id"]});
        let secret = culvert.create("vault_secrets", body).await;
        let host = "vaulted.culvert.localhost";
        let text = "on_http_request:\n- actions:\n  - {type: basic-auth, config: {credentials: ['${\"me:\" + secrets.get(\"keys\", \"door\")}']}}\n  - {type: custom-response, config: {body: in}}\n";
        let body = json!({"url": format!("http://{host}"), "traffic_policy": text});
        let made = culvert.create("endpoints", body).await;
        // Expressions are not redacted.
        assert_eq!(made["traffic_policy"], text);
        let enter = async |credentials: &str| {
            let ask = format!(
                "GET / HTTP/1.1\r\nhost: {host}\r\nauthorization: Basic {credentials}\r\nconnection: close\r\n\r\n"
            );
            crate::harness::raw(culvert.http, ask.as_bytes())
                .await
                .status
        };
        // me:open sesame, me:another word
        let (old, new) = ("bWU6b3BlbiBzZXNhbWU=", "bWU6YW5vdGhlciB3b3Jk");
        eventually("the secret opens", async || enter(old).await == 200).await;
        assert_eq!(enter(new).await, 401);
        assert_eq!(
            crate::secrets::files_with(&culvert.settings.data_dir, b"open sesame"),
            Vec::<String>::new()
        );
        let path = format!("/vault_secrets/{}", secret["id"].as_str().unwrap());
        let patch = json!({"value": "another word"});
        culvert.call(Method::PATCH, &path, Some(patch)).await;
        eventually("the new one opens", async || enter(new).await == 200).await;
        assert_eq!(enter(old).await, 401);
        let refused = culvert.call(Method::DELETE, &path, None).await;
        assert_eq!(refused.body["error_code"], "ERR_NGROK_23003");
        assert_eq!(enter(new).await, 200);
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_use_certificate_authorities() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let pem = params.self_signed(&key).unwrap().pem();
    let made = culvert
        .create("certificate_authorities", json!({"ca_pem": pem}))
        .await;
    let id = made["id"].as_str().unwrap();
    let policy = |id: &str| json!({"on_tcp_connect": [{"actions": [{"type": "terminate-tls", "config": {"mutual_tls_certificate_authorities": [id]}}]}]});
    let body = json!({
        "url": "https://mutual.culvert.localhost", "upstream_url": "http://127.0.0.1:9", "traffic_policy": policy(id),
    });
    culvert.create("endpoints", body.clone()).await;
    let mut unknown = body;
    unknown["url"] = json!("https://other.culvert.localhost");
    unknown["traffic_policy"] = policy("ca_2OtNvAlhso10Gx6s7eupzX3F98q");
    let refused = culvert
        .call(Method::POST, "/endpoints", Some(unknown))
        .await;
    assert_eq!(refused.body["error_code"], "ERR_NGROK_2204");
    culvert.stop().await;
}
