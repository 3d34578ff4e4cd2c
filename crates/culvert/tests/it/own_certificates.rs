//! Public certificates for the installation's own names, from pebble with BIND as its DNS: for the edge, the agent
//! listener and the API. Until they are issued, the installation's own CA issues.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use culvert::config::{Settings, Span};
use culvert_base::net::HostName;
use culvert_base::{BoxFuture, SystemClock};
use culvert_edge::PublicClient;
use culvert_tls::acme::{Acme, AcmeSettings, Cause, Fetch};
use http::{Method, Request, Response};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::acme::{Authority, free_port, patiently, presented};
use crate::dns_records::{Bind, KEY, KEY_NAME};
use crate::harness::{Backend, Harness, binary};
use crate::kill::Process;

const DOMAIN: &str = "platform.example";

/// Settings for the platform domain, with a BIND that has its zone.
fn configure(settings: &mut Settings, bind: &Bind) {
    settings.edge.domain = DOMAIN.into();
    settings.acme.domain_certificate = true;
    let dns = &mut settings.acme.dns;
    dns.provider = "rfc2136".into();
    dns.resolvers = vec![bind.address.to_string()];
    dns.nameservers = vec![bind.address.to_string()];
    dns.propagation_timeout = Span(Duration::from_secs(20));
    dns.rfc2136.server = bind.address.to_string();
    dns.rfc2136.key_name = KEY_NAME.into();
    dns.rfc2136.key_secret = KEY.into();
    settings.api.tls.addr = "127.0.0.1:0".into();
}

fn own_ca(culvert: &Harness) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(culvert.settings.data_dir.join("ca.pem")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_platform_domain_gets_and_renews_a_public_wildcard_for_all_listeners() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let Some(bind) = Bind::start(&[(DOMAIN, "")]).await else {
        return;
    };
    authority.resolver = bind.address;
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        authority.configure(settings);
        configure(settings, &bind);
    })
    .await;
    let api_tls = culvert.api_tls.unwrap();
    let below = format!("any.{DOMAIN}");
    let agents = format!("connect.{DOMAIN}");
    let own = own_ca(&culvert);
    // Until the authority issues one, all listeners present a certificate of the installation's CA.
    for (address, name) in [
        (culvert.https, &*below),
        (culvert.https, DOMAIN),
        (culvert.agents, &agents),
        (api_tls, DOMAIN),
    ] {
        assert!(presented(address, name, &own).await.is_some(), "{name}");
    }
    authority.start(free_port(), free_port(), 45).await;
    let root = authority.trust().await;
    let mut first = Vec::new();
    for (address, name) in [
        (culvert.https, &*below),
        (culvert.https, DOMAIN),
        (culvert.agents, &agents),
        (api_tls, DOMAIN),
        (api_tls, &below),
    ] {
        let found = patiently("the public certificate", async || {
            presented(address, name, &root).await
        });
        first.push(found.await);
    }
    assert!(first.windows(2).all(|two| two[0] == two[1]));
    // Names that the wildcard does not cover keep the installation's.
    let deep = format!("a.b.{DOMAIN}");
    assert!(presented(culvert.https, &deep, &root).await.is_none());
    patiently("the records are removed", async || {
        let left = bind.texts(&format!("_acme-challenge.{DOMAIN}")).await;
        left.is_empty().then_some(())
    })
    .await;
    // A renewal replaces it; meanwhile every handshake succeeds.
    patiently("the next certificate", async || {
        let found = presented(culvert.https, &below, &root).await;
        let found = found.expect("a handshake succeeds during a renewal");
        (found != first[0]).then_some(())
    })
    .await;
    // It is the installation's: no account sees it.
    let list = culvert.call(Method::GET, "/tls_certificates", None).await;
    assert_eq!(list.body["tls_certificates"], json!([]));
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_over_tls_has_its_own_scheme_and_secure_cookies() {
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.api.tls.addr = "127.0.0.1:0".into();
    })
    .await;
    let own = own_ca(&culvert);
    let body = json!({"token": culvert.token}).to_string();
    let page = ask(
        &culvert,
        &own,
        &format!(
            "POST /console/session HTTP/1.1\r\nhost: culvert.localhost\r\ncontent-type: application/json\r\n\
             x-culvert-console: 1\r\norigin: https://culvert.localhost\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        ),
    )
    .await;
    let cookie = page
        .lines()
        .find(|line| line.to_lowercase().starts_with("set-cookie:"));
    let cookie = cookie.unwrap_or_else(|| panic!("no cookie: {page}"));
    assert!(cookie.contains("Secure"), "{cookie}");
    let listed = ask(
        &culvert,
        &own,
        &format!(
            "GET /api_keys HTTP/1.1\r\nhost: culvert.localhost\r\nauthorization: Bearer {}\r\n\
             connection: close\r\n\r\n",
            culvert.token
        ),
    )
    .await;
    assert!(
        listed.contains("\"uri\":\"https://culvert.localhost/api_keys"),
        "{listed}"
    );
    // A client without TLS is not served there.
    let mut plain = TcpStream::connect(culvert.api_tls.unwrap()).await.unwrap();
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    drop(plain.read_to_end(&mut answer).await);
    assert!(!answer.starts_with(b"HTTP"));
    culvert.stop().await;
}

/// The response of the API over TLS.
async fn ask(culvert: &Harness, root: &CertificateDer<'static>, request: &str) -> String {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(culvert.api_tls.unwrap()).await.unwrap();
    let name = ServerName::try_from("culvert.localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Writes a new certificate with its key to `path`.
fn renew(path: &Path) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["api.files.example".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(path, certificate.pem() + &key.serialize_pem()).unwrap();
    certificate.der().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_reads_the_certificate_file_of_the_api() {
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("api.pem");
    let first = renew(&pem);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let (text, path) = (address.to_string(), pem.to_str().unwrap());
    let flags = ["--api-tls-addr", &text, "--api-tls-cert-file", path];
    let data = folder.path().join("data");
    let culvert = Process::start_as(binary(), &data, "", &flags);
    let name = "api.files.example";
    assert_eq!(presented(address, name, &first).await, Some(first.clone()));
    let second = renew(&pem);
    culvert.signal("HUP");
    patiently("the new certificate", async || {
        presented(address, name, &second).await
    })
    .await;
    assert!(presented(address, name, &first).await.is_none());
    assert_eq!(culvert.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_requires_an_external_account_gets_it() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    authority.external = Some(("kid-1".to_owned(), key.to_owned()));
    let name = "bound.managed.example";
    authority.point_here(&[name]);
    for (given, is_right) in [
        ("bm90IHRoZSBrZXkgb2YgdGhlIGF1dGhvcml0eQ", false),
        (key, true),
    ] {
        let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
            authority.configure(settings);
            settings.acme.external_account.key_id = "kid-1".into();
            settings.acme.external_account.hmac_key = given.into();
        })
        .await;
        authority.stop();
        let (http, https) = (culvert.http.port(), culvert.https.port());
        authority.start(http, https, 86_400).await;
        let body = json!({"domain": name});
        let made = culvert.create("reserved_domains", body).await;
        let path = format!("/reserved_domains/{}", made["id"].as_str().unwrap());
        patiently("the order ends", async || {
            let domain = culvert.call(Method::GET, &path, None).await.body;
            let job = &domain["certificate_management_status"]["provisioning_job"];
            match is_right {
                true => (domain["certificate"] != Value::Null).then_some(()),
                false => (job["error_code"] == "INTERNAL_ERROR").then_some(()),
            }
        })
        .await;
        culvert.stop().await;
    }
}

/// Passes requests to pebble, and adds the renewal information (RFC 9773) that its packaged version lacks.
#[derive(Debug)]
struct WithRenewals {
    client: PublicClient,
    base: String,
    /// What it was asked for: `replaces` of orders, and the paths of renewal information.
    asked: Mutex<Vec<String>>,
}

impl Fetch for WithRenewals {
    fn fetch(
        &self,
        request: Request<Bytes>,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Response<Bytes>, Cause>> {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            if let Some(id) = path.strip_prefix("/renewal-info/") {
                self.asked.lock().unwrap().push(format!("info {id}"));
                let window = json!({"suggestedWindow": {
                    "start": "2021-01-03T00:00:00Z", "end": "2021-01-07T00:00:00Z",
                }});
                let answer = Response::builder().header("retry-after", "21600");
                return Ok(answer.body(Bytes::from(window.to_string())).unwrap());
            }
            let replaces = replaces_of(request.body());
            let answer = self.client.fetch(request, bytes_max).await?;
            let (head, body) = answer.into_parts();
            let mut json: Value = match serde_json::from_slice(&body) {
                Ok(json) => json,
                Err(_) => return Ok(Response::from_parts(head, body)),
            };
            if path == "/dir" {
                json["renewalInfo"] = json!(format!("{}/renewal-info", self.base));
            }
            if let Some(replaces) = replaces {
                self.asked
                    .lock()
                    .unwrap()
                    .push(format!("replaces {replaces}"));
                json["replaces"] = json!(replaces);
            }
            let mut head = head;
            head.headers.remove("content-length");
            Ok(Response::from_parts(head, Bytes::from(json.to_string())))
        })
    }
}

/// The field `replaces` of a signed request.
fn replaces_of(body: &[u8]) -> Option<String> {
    let signed: Value = serde_json::from_slice(body).ok()?;
    let payload = URL_SAFE_NO_PAD.decode(signed["payload"].as_str()?).ok()?;
    let payload: Value = serde_json::from_slice(&payload).ok()?;
    Some(payload["replaces"].as_str()?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_information_is_read_and_orders_name_the_replaced_certificate() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    authority.start(free_port(), free_port(), 86_400).await;
    let roots = [CertificateDer::from_pem_file(authority.file("cert.pem")).unwrap()];
    let networks = ["127.0.0.1/32".parse().unwrap()];
    let client = PublicClient::new(&roots, Duration::from_secs(10), &networks, []).unwrap();
    let directory_url = authority.directory();
    let peer = Arc::new(WithRenewals {
        client,
        base: directory_url.trim_end_matches("/dir").to_owned(),
        asked: Mutex::default(),
    });
    let settings = AcmeSettings {
        directory_url,
        contact: None,
        external_account: None,
    };
    let acme = Acme::new(settings, peer.clone(), Arc::new(SystemClock));
    let key = acme.new_account().await.unwrap();
    // A certificate with an authority key identifier.
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = Issuer::new(params, ca_key);
    let mut params = CertificateParams::new(vec!["old.example".to_owned()]).unwrap();
    params.use_authority_key_identifier_extension = true;
    let leaf_key = KeyPair::generate().unwrap();
    let old = params.signed_by(&leaf_key, &issuer).unwrap().pem();

    let window = acme.renewal_window(&key, &old).await.unwrap().unwrap();
    assert_eq!(window.start.to_string(), "2021-01-03T00:00:00Z");
    assert_eq!(window.end.to_string(), "2021-01-07T00:00:00Z");
    assert!(window.ask_after > Duration::from_secs(21_000));
    let names = [HostName::parse("old.example").unwrap()];
    acme.order(&key, &names, Some(&old)).await.unwrap();
    {
        let mut asked = peer.asked.lock().unwrap().clone();
        // The authority refuses some nonces, and the client then asks again.
        asked.dedup();
        let id = asked[0].strip_prefix("info ").unwrap();
        assert_eq!(asked, [format!("info {id}"), format!("replaces {id}")]);
    }
    // An authority without renewal information gets neither.
    let settings = AcmeSettings {
        directory_url: authority.directory(),
        contact: None,
        external_account: None,
    };
    let client = PublicClient::new(&roots, Duration::from_secs(10), &networks, []).unwrap();
    let acme = Acme::new(settings, Arc::new(client), Arc::new(SystemClock));
    assert_eq!(acme.renewal_window(&key, &old).await.unwrap(), None);
    acme.order(&key, &names, Some(&old)).await.unwrap();
}
