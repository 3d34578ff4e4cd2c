//! Kubernetes operators: codes, certificates, and the endpoints that they bind.

use std::time::Duration;

use culvert_endpoints::kubernetes_operator::active_operators::ActiveOperators;
use rcgen::{CertificateParams, KeyPair};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::*;

fn csr() -> String {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

#[tokio::test]
pub(super) async fn kubernetes_operator_errors_have_their_codes() {
    let rig = Rig::start().await;
    let uid = |uid: &str| json!({"namespace.uid": uid}).to_string();
    let deployment = json!({"name": "o", "namespace": "n", "version": "1", "cluster_name": "c"});
    let whole = json!({
        "metadata": uid("1"), "enabled_features": ["Ingress", "BINDINGS", "ingress"],
        "deployment": deployment,
    });
    let made = rig
        .post("/kubernetes_operators", whole.clone())
        .await
        .body();
    assert_eq!(made["enabled_features"], json!(["ingress", "bindings"]));
    assert_eq!(made["region"], "global");
    assert_eq!(made["deployment"], deployment);
    assert_eq!(made["binding"], Value::Null);
    assert_eq!(
        made["principal"],
        json!({"id": rig.admin.owner_id, "uri": ""})
    );
    for (body, code) in [
        (whole.clone(), 19002),
        (json!({"enabled_features": ["nope"]}), 19002),
        (json!({"binding": {"ingress_endpoint": "no port"}}), 19002),
        (
            json!({"binding": {"ingress_endpoint": "a.example:0"}}),
            19002,
        ),
        (json!({"binding": {"csr": "nope"}}), 19001),
        (
            json!({"binding": {"endpoint_selectors": ["endpoint."]}}),
            19003,
        ),
        (
            json!({"binding": {"endpoint_selectors": ["endpoint.nope == 1"]}}),
            19003,
        ),
        (
            json!({"binding": {"endpoint_selectors": ["endpoint.url"]}}),
            19003,
        ),
        (
            json!({"binding": {"endpoint_selectors": vec!["true"; 65]}}),
            19003,
        ),
        (json!({"binding": {"endpoint_selectors": "true"}}), 215),
        (json!({"binding": {"nope": 1}}), 214),
        (json!({"deployment": {"nope": "x"}}), 214),
        (json!({"deployment": {"name": "x".repeat(256)}}), 215),
        (json!({"description": "x".repeat(256)}), 215),
    ] {
        let answered = rig.post("/kubernetes_operators", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let one = format!("/kubernetes_operators/{}", made["id"].as_str().unwrap());
    let change = json!({
        "deployment": {"version": "2"}, "enabled_features": [], "region": "eu",
        "metadata": uid("2"),
    });
    let changed = rig.patch(&one, change).await.body();
    assert_eq!(changed["deployment"]["version"], "2");
    assert_eq!(changed["deployment"]["cluster_name"], "c");
    assert_eq!(changed["enabled_features"], json!([]));
    assert_eq!(changed["region"], "eu");
    let moved = rig
        .patch(&one, json!({"deployment": {"namespace": "m"}}))
        .await;
    assert_eq!(moved.code(), Some(214));
    // The key of its registration is free again; operators without a UID do not conflict.
    rig.post("/kubernetes_operators", whole).await.body();
    for _ in 0..2 {
        let nameless = json!({"deployment": {"name": "o", "namespace": "n"}});
        rig.post("/kubernetes_operators", nameless).await.body();
    }
    let back = rig.patch(&one, json!({"metadata": uid("1")})).await;
    assert_eq!(back.code(), Some(19002));
}

#[tokio::test]
async fn signing_requests_are_signed_by_the_operators_authority() {
    let rig = Rig::start().await;
    let body = json!({"binding": {"endpoint_selectors": ["true"], "ingress_endpoint": "in.x.example:443"}});
    let made = rig.post("/kubernetes_operators", body).await.body();
    let none = json!({
        "cert": "", "not_before": "0001-01-01T00:00:00Z", "not_after": "0001-01-01T00:00:00Z",
    });
    assert_eq!(made["binding"]["cert"], none);
    let id = made["id"].as_str().unwrap();
    let one = format!("/kubernetes_operators/{id}");
    let request = csr();
    let change = json!({"binding": {"csr": request}});
    let changed = rig.patch(&one, change.clone()).await.body();
    assert_eq!(changed["binding"]["endpoint_selectors"], json!(["true"]));
    assert_eq!(changed["binding"]["ingress_endpoint"], "in.x.example:443");
    let shown = changed["binding"]["cert"].clone();
    assert_eq!(shown["not_before"], "2027-01-14T08:00:00Z");
    assert_eq!(shown["not_after"], "2028-01-15T08:00:00Z");

    let pem = |text: &str| {
        x509_parser::pem::parse_x509_pem(text.as_bytes())
            .unwrap()
            .1
            .contents
    };
    let der = pem(shown["cert"].as_str().unwrap());
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    let name = certificate.subject().iter_common_name().next().unwrap();
    assert_eq!(name.as_str().unwrap(), id);
    assert!(!certificate.is_ca());
    assert!(
        certificate
            .extended_key_usage()
            .unwrap()
            .unwrap()
            .value
            .client_auth
    );
    let authority = rig.store.find("authority", "name", "operators").await;
    let authority: Value = serde_json::from_str(&authority.unwrap().unwrap().body).unwrap();
    let root = pem(authority["certificate_pem"].as_str().unwrap());
    let roots = {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(root.into()).unwrap();
        Arc::new(roots)
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider)
        .build()
        .unwrap();
    let now = rustls_pki_types::UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    verifier
        .verify_client_cert(&der.clone().into(), &[], now)
        .unwrap();
    assert!(!authority.to_string().contains("PRIVATE KEY"));

    // A repeated request keeps its certificate until it is due; another request replaces it.
    let again = rig.patch(&one, change.clone()).await.body();
    assert_eq!(again["binding"]["cert"], shown);
    let other = rig
        .patch(&one, json!({"binding": {"csr": csr()}}))
        .await
        .body();
    assert_ne!(other["binding"]["cert"], shown);
    rig.patch(&one, change.clone()).await.body();
    rig.clock.advance(Duration::from_secs(200 * 86_400));
    let renewed = rig.patch(&one, change).await.body();
    assert_eq!(
        renewed["binding"]["cert"]["not_before"],
        "2027-08-02T08:00:00Z"
    );
}

#[tokio::test]
async fn an_endpoint_moves_between_public_and_kubernetes_bindings() {
    let rig = Rig::start().await;
    let host = "x.culvert.localhost";
    let body = json!({"url": format!("http://{host}"), "upstream_url": "http://127.0.0.1:9"});
    let made = rig.post("/endpoints", body).await.body();
    let one = format!("/endpoints/{}", made["id"].as_str().unwrap());
    // The host decides whether a binding fits.
    let kubernetes = json!({"bindings": ["kubernetes"]});
    assert_eq!(
        rig.patch(&one, kubernetes.clone()).await.code(),
        Some(18014)
    );
    let moved = json!({"url": "http://x.web", "bindings": ["kubernetes"]});
    let moved = rig.patch(&one, moved).await.body();
    assert_eq!(
        (&moved["url"], &moved["domain"]),
        (&json!("http://x.web"), &Value::Null)
    );
    // Its public name is free again, and it keeps its binding with another URL.
    let body = json!({"url": format!("http://{host}"), "upstream_url": "http://127.0.0.1:9"});
    rig.post("/endpoints", body).await.body();
    let renamed = rig
        .patch(&one, json!({"url": "http://y.web:81"}))
        .await
        .body();
    assert_eq!(renamed["bindings"], json!(["kubernetes"]));
    assert_eq!(
        rig.patch(&one, json!({"bindings": []})).await.code(),
        Some(18023)
    );
    let back = json!({"url": format!("http://z.{host}"), "bindings": ["public"]});
    let back = rig.patch(&one, back).await.body();
    assert_eq!(back["bindings"], json!(["public"]));
}

#[tokio::test]
async fn bound_endpoints_have_the_kubernetes_binding() {
    let rig = Rig::start().await;
    rig.post("/endpoints", rig.sample("endpoints", 1).await)
        .await
        .body();
    let offered = json!({
        "url": "tcp://db.web:5432", "bindings": ["kubernetes"], "upstream_url": "tcp://127.0.0.1:9",
    });
    let offered = rig.post("/endpoints", offered).await.body();
    let body = json!({
        "enabled_features": ["bindings"],
        "binding": {"endpoint_selectors": ["endpoint.port == 5432"]},
    });
    let made = rig.post("/kubernetes_operators", body).await.body();
    // It has no own address.
    let ingress = &made["binding"]["ingress_endpoint"];
    assert_eq!(ingress, "operators.culvert.example:8442");
    let one = format!("/kubernetes_operators/{}", made["id"].as_str().unwrap());
    let path = format!("{one}/bound_endpoints");
    let list = rig.get(&path).await.body();
    assert_eq!(
        list,
        json!({"endpoints": [offered], "uri": format!("{BASE}{path}"), "next_page_uri": null})
    );
    // A selector sees the URL as the server writes it, however the owner spells it.
    let named =
        json!({"binding": {"endpoint_selectors": ["!endpoint.url.startsWith('http://admin.')"]}});
    rig.patch(&one, named).await.body();
    let sent = json!({
        "url": "HTTP://Admin.web", "bindings": ["kubernetes"], "upstream_url": "http://127.0.0.1:9",
    });
    let hidden = rig.post("/endpoints", sent).await.body();
    assert_eq!(hidden["url"], "HTTP://Admin.web");
    assert_eq!(rig.get(&path).await.body()["endpoints"], json!([offered]));
    let off = json!({"enabled_features": ["ingress"]});
    rig.patch(&one, off).await.body();
    assert_eq!(rig.get(&path).await.body()["endpoints"], json!([]));
    let absent = format!(
        "/kubernetes_operators/k8sop_{}/bound_endpoints",
        "0".repeat(27)
    );
    assert!(rig.get(&absent).await.is_absent());
    for (path, code) in [
        (format!("{path}?filter=true"), 231),
        (format!("{path}?id=ep_1"), 231),
        (format!("{absent}?limit=0"), 233),
    ] {
        assert_eq!(rig.get(&path).await.code(), Some(code), "{path}");
    }
}

/// The certificate of an operator gives no access once its owner is inactive or deleted.
#[tokio::test]
async fn an_operator_is_compiled_only_while_its_owner_is_active() {
    let rig = Rig::start().await;
    let person = rig.user("owner@x.example", Role::Member, true).await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let key = rig
        .post("/api_keys", json!({"owner_id": bot["id"]}))
        .await
        .body();
    let bot = rig.authenticate(key["token"].as_str().unwrap()).await;
    let mut operators = ActiveOperators::empty();
    for (owner, collection) in [(person, "users"), (bot.unwrap(), "bot_users")] {
        let body = json!({
            "enabled_features": ["bindings"],
            "binding": {"csr": csr(), "endpoint_selectors": ["true"]},
        });
        let made = rig
            .call(&owner, "POST", "/kubernetes_operators", body)
            .await
            .body();
        let mut active = async |is_changed: bool| {
            let accounts = operators.refresh(&rig.store).await.unwrap();
            assert_eq!(!accounts.is_empty(), is_changed);
            operators
                .all()
                .map(|one| one.id.clone())
                .collect::<Vec<_>>()
        };
        let id = made["id"].as_str().unwrap().to_owned();
        assert_eq!(active(true).await, std::slice::from_ref(&id));
        let path = format!("/{collection}/{}", owner.owner_id);
        rig.patch(&path, json!({"active": false})).await.body();
        assert!(active(true).await.is_empty());
        rig.patch(&path, json!({"active": true})).await.body();
        assert_eq!(active(true).await, std::slice::from_ref(&id));
        // Other changes of the owner change nothing.
        let other = match collection {
            "users" => json!({"role": "read_only"}),
            _ => json!({"name": "c"}),
        };
        rig.patch(&path, other).await.body();
        assert_eq!(active(false).await, std::slice::from_ref(&id));
        assert_eq!(rig.delete(&path).await, Answered::NoContent);
        assert!(active(true).await.is_empty());
        let gone = format!("/kubernetes_operators/{id}");
        assert!(rig.get(&gone).await.is_absent());
    }
}

/// The owner of an endpoint chooses how its URL is spelled, and not what a selector sees.
#[tokio::test]
async fn a_selector_sees_one_spelling_of_each_address() {
    let rig = Rig::start().await;
    for (scheme, port) in [("tls", ":443"), ("http", ":80")] {
        let upstream = match scheme {
            "tls" => "tcp://127.0.0.1:9",
            _ => "http://127.0.0.1:9",
        };
        for (host, url) in [
            ("one.ns1", format!("{scheme}://one.ns1")),
            ("two.ns1", format!("{scheme}://two.ns1{port}")),
            ("three.ns1", format!("{scheme}://Three.ns1")),
        ] {
            let body = json!({"url": url, "bindings": ["kubernetes"], "upstream_url": upstream});
            let made = rig.post("/endpoints", body).await.body();
            let address = format!("{scheme}://{host}");
            assert_eq!(
                (&made["url"], &made["public_url"]),
                (&json!(url), &json!(address))
            );
            for (selector, is_bound) in [
                (format!("endpoint.url == '{address}'"), true),
                (format!("endpoint.url in ['{address}']"), true),
                (format!("endpoint.url != '{address}'"), false),
                (format!("endpoint.public_url != '{address}'"), false),
            ] {
                let body = json!({
                    "enabled_features": ["bindings"], "binding": {"endpoint_selectors": [selector]},
                });
                let operator = rig.post("/kubernetes_operators", body).await.body();
                let operator = operator["id"].as_str().unwrap();
                let bound = format!("/kubernetes_operators/{operator}/bound_endpoints");
                let bound = rig.get(&bound).await.body();
                let mut bound = bound["endpoints"].as_array().unwrap().iter();
                assert_eq!(
                    bound.any(|one| one["id"] == made["id"]),
                    is_bound,
                    "{selector}"
                );
            }
        }
    }
}
