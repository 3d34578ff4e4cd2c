//! Managed certificates from a real ACME server (pebble). It resolves names with a DNS server of the test and
//! connects to this server's listeners.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert::client::Client;
use culvert::config::{Settings, Span};
use culvert_base::{Entropy, OsEntropy, Timestamp};
use http::Method;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::destination_states::logged;
use crate::events_arrive::subscribe;
use crate::harness::{Backend, Harness, Receiver, backends, binary, cluster};
use crate::kill::Process;

/// Time limit for all operations of these tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `look` returns a value.
pub async fn patiently<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An unused port outside of the ephemeral range and the pool of TCP endpoints.
pub fn free_port() -> u16 {
    let entropy: &dyn Entropy = &OsEntropy;
    loop {
        let [a, b] = entropy.bytes();
        let port = 22_000 + u16::from_le_bytes([a, b]) % 10_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// The content of the DNS server.
#[derive(Debug, Default)]
struct Zone {
    /// Names with the address of this machine. Other names have no address.
    here: Vec<String>,
    aliases: BTreeMap<String, String>,
    /// Directory with a file for each TXT record.
    texts: Option<PathBuf>,
    /// Whether it sends no responses at all.
    is_silent: bool,
    asked: usize,
}

/// An ACME server that is not running yet, and its DNS server.
pub struct Authority {
    folder: tempfile::TempDir,
    port: u16,
    management: u16,
    root: CertificateDer<'static>,
    zone: Arc<Mutex<Zone>>,
    pub resolver: SocketAddr,
    /// An external account that it requires: the ID and the key.
    pub external: Option<(String, String)>,
    running: Option<Child>,
    _tasks: JoinSet<()>,
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Authority {
    /// `None`, reported as ignored, if pebble is not installed.
    pub async fn prepare() -> Option<Self> {
        let known = Command::new("pebble")
            .arg("-h")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if known.is_err() {
            culvert_testing::ignore("`pebble` is not installed; Debian has a package of that name");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        let zone = Arc::<Mutex<Zone>>::default();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let resolver = socket.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(resolve(socket, Arc::clone(&zone)));
        Some(Self {
            folder,
            port: free_port(),
            management: free_port(),
            root: certificate.der().clone(),
            zone,
            resolver,
            external: None,
            running: None,
            _tasks: tasks,
        })
    }

    pub fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn directory(&self) -> String {
        format!("https://127.0.0.1:{}/dir", self.port)
    }

    /// Adds names with the address of this machine.
    pub fn point_here(&self, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned());
        self.zone.lock().unwrap().here.extend(names);
    }

    /// Configures a server to use it.
    pub fn configure(&self, settings: &mut Settings) {
        settings.acme.directory_url = self.directory();
        settings.acme.contact = "ops@culvert.example".into();
        settings.acme.extra_ca_file = self.file("cert.pem");
        settings.acme.retry_after = Span(Duration::from_millis(400));
    }

    /// Starts it and waits until it accepts connections. It validates names at these ports, and issues certificates
    /// that are valid for `seconds`.
    pub async fn start(&mut self, http: u16, tls: u16, seconds: u32) {
        let keys = self.external.clone().map(|(id, key)| (id, json!(key)));
        let config = json!({"pebble": {
            "externalAccountBindingRequired": keys.is_some(),
            "externalAccountMACKeys": serde_json::Map::from_iter(keys),
            "listenAddress": format!("127.0.0.1:{}", self.port),
            "managementListenAddress": format!("127.0.0.1:{}", self.management),
            "certificate": self.file("cert.pem"),
            "privateKey": self.file("key.pem"),
            "httpPort": http,
            "tlsPort": tls,
            "certificateValidityPeriod": seconds,
        }});
        std::fs::write(self.file("config.json"), config.to_string()).unwrap();
        self.running = Some(self.spawn());
        patiently("pebble accepts", async || {
            if let Some(ended) = self.running.as_mut().unwrap().try_wait().unwrap() {
                // Its port was free when it was chosen. Another test may use it for a moment.
                let log = self.log();
                assert!(
                    log.contains("address already in use"),
                    "pebble exited with {ended}: {log}"
                );
                self.running = Some(self.spawn());
            }
            self.ask("/roots/0").await
        })
        .await;
    }

    fn spawn(&self) -> Child {
        let log = std::fs::File::create(self.file("log")).unwrap();
        Command::new("pebble")
            .args(["-config", &self.file("config.json")])
            .args(["-dnsserver", &self.resolver.to_string()])
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    pub fn stop(&mut self) {
        if let Some(mut child) = self.running.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.file("log")).unwrap()
    }

    /// The response of its management API, if there is one.
    async fn ask(&self, path: &str) -> Option<String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.management));
        let mut stream = connect(address, "127.0.0.1", &self.root).await?;
        let head = format!("GET {path} HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n");
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned())
    }

    /// The root certificate that clients must trust.
    pub async fn trust(&self) -> CertificateDer<'static> {
        let answer = self.ask("/roots/0").await.unwrap();
        let (_, pem) = answer.split_once("\r\n\r\n").unwrap();
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    }
}

/// Responds to queries for addresses and TXT records.
async fn resolve(socket: UdpSocket, zone: Arc<Mutex<Zone>>) {
    let mut question = [0; 1500];
    while let Ok((length, asker)) = socket.recv_from(&mut question).await {
        let answer = answer(&question[..length], &mut zone.lock().unwrap());
        if let Some(answer) = answer {
            socket.send_to(&answer, asker).await.unwrap();
        }
    }
}

fn answer(question: &[u8], zone: &mut Zone) -> Option<Vec<u8>> {
    zone.asked += 1;
    if zone.is_silent {
        return None;
    }
    let mut labels = Vec::new();
    let mut at = 12;
    while let Some(length) = question.get(at).copied().filter(|length| *length > 0) {
        let end = at + 1 + usize::from(length);
        labels.push(String::from_utf8_lossy(question.get(at + 1..end)?).to_lowercase());
        at = end;
    }
    let end = at + 5;
    let kind = u16::from_be_bytes(question.get(at + 1..at + 3)?.try_into().ok()?);
    let name = labels.join(".");
    let mut answers: Vec<(String, u16, Vec<u8>)> = Vec::new();
    let mut target = name.clone();
    if let Some(alias) = zone.aliases.get(&name) {
        answers.push((name.clone(), 5, wire(alias)));
        target.clone_from(alias);
    }
    match kind {
        1 if zone.here.contains(&target) => {
            answers.push((target.clone(), 1, Ipv4Addr::LOCALHOST.octets().to_vec()));
        }
        16 => {
            let text = zone.texts.as_ref().map(|folder| folder.join(&target));
            if let Some(text) = text.and_then(|file| std::fs::read(file).ok()) {
                let mut data = vec![u8::try_from(text.len()).unwrap()];
                data.extend(text);
                answers.push((target.clone(), 16, data));
            }
        }
        _ => {}
    }
    let is_known = !answers.is_empty() || zone.here.contains(&target);
    let mut packet = question.get(..2)?.to_vec();
    packet.extend([0x81, if is_known { 0x80 } else { 0x83 }, 0, 1, 0]);
    packet.push(u8::try_from(answers.len()).unwrap());
    packet.extend([0; 4]);
    packet.extend(question.get(12..end)?);
    for (owner, kind, data) in answers {
        packet.extend(wire(&owner));
        packet.extend(kind.to_be_bytes());
        packet.extend([0, 1, 0, 0, 0, 0]);
        packet.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        packet.extend(data);
    }
    Some(packet)
}

/// A name in DNS wire format.
fn wire(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// Opens a TLS connection to a server with a certificate for this name under this root.
async fn connect(
    address: SocketAddr,
    name: &str,
    root: &CertificateDer<'static>,
) -> Option<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.ok()?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .ok()
}

/// The certificate that is presented for a name, if it is trusted.
pub async fn presented(
    address: SocketAddr,
    name: &str,
    root: &CertificateDer<'static>,
) -> Option<CertificateDer<'static>> {
    let stream = connect(address, name, root).await?;
    let (_, session) = stream.get_ref();
    Some(session.peer_certificates().unwrap()[0].clone())
}

fn path(object: &Value) -> String {
    let id = object["id"].as_str().unwrap();
    match id.split_once('_') {
        Some(("rd", _)) => format!("/reserved_domains/{id}"),
        Some(("agin", _)) => format!("/agent_ingresses/{id}"),
        _ => format!("/tls_certificates/{id}"),
    }
}

/// Waits until the domain meets a condition, and returns it.
async fn domain_when(
    client: &Client,
    domain: &Value,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    let path = path(domain);
    patiently(what, async || {
        let shown = client.call(Method::GET, &path, None).await.ok()?;
        holds(&shown.body).then_some(shown.body)
    })
    .await
}

fn is_issued(domain: &Value) -> bool {
    let status = &domain["certificate_management_status"];
    !domain["certificate"].is_null() && status["provisioning_job"].is_null()
}

fn job(domain: &Value) -> &Value {
    &domain["certificate_management_status"]["provisioning_job"]
}

fn time(value: &Value) -> Timestamp {
    Timestamp::parse(value.as_str().unwrap()).unwrap()
}

async fn reserve(culvert: &Harness, body: Value) -> Value {
    culvert.create("reserved_domains", body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_domain_gets_and_keeps_a_certificate_by_http_01() {
    for backend in backends().await {
        let Some(mut authority) = Authority::prepare().await else {
            return;
        };
        let culvert = Harness::start_with(&backend, |settings| {
            authority.configure(settings);
            settings.acme.challenges = vec!["http-01".into()];
        })
        .await;
        let hook = Receiver::start().await;
        let wanted = ["tls_certificate_created.v0", "domain_updated.v0"];
        let wanted = wanted.map(|kind| json!({"type": kind}));
        subscribe(&culvert.client, &hook, json!(wanted)).await;
        let name = "app.managed.example";
        authority.point_here(&[name]);
        authority
            .start(culvert.http.port(), free_port(), 86_400)
            .await;

        let made = reserve(&culvert, json!({"domain": name})).await;
        let policy = json!({"authority": "letsencrypt", "private_key_type": "rsa"});
        assert_eq!(made["certificate_management_policy"], policy);
        assert_eq!(made["certificate"], Value::Null);
        let status = &made["certificate_management_status"];
        assert_eq!(status["renews_at"], Value::Null);
        assert_eq!(job(&made)["error_code"], Value::Null);
        assert_eq!(job(&made)["retries_at"], Value::Null);
        assert!(job(&made)["started_at"].is_string());

        let domain = domain_when(&culvert.client, &made, "a certificate", is_issued).await;
        let certificate = culvert
            .call(Method::GET, &path(&domain["certificate"]), None)
            .await
            .body;
        assert_eq!(
            certificate["subject_alternative_names"]["dns_names"],
            json!([name])
        );
        assert_eq!(certificate["private_key_type"], "rsa");
        assert!(certificate["issued_at"].is_string());
        let life = time(&certificate["not_after"]).since(time(&certificate["not_before"]));
        let renews_at = time(&domain["certificate_management_status"]["renews_at"]);
        let used = renews_at.since(time(&certificate["not_before"]));
        assert_eq!(used.as_secs(), life.as_secs() * 2 / 3);

        let root = authority.trust().await;
        patiently("it is served", async || {
            presented(culvert.https, name, &root).await
        })
        .await;

        // Each event occurs once, without a principal, and in this order.
        let created = hook.wait_for("tls_certificate_created.v0", 1).await;
        let updated = hook.wait_for("domain_updated.v0", 1).await;
        let reported: Vec<Value> = hook.events();
        let kinds: Vec<&Value> = reported.iter().map(|event| &event["event_type"]).collect();
        assert_eq!(
            kinds,
            ["tls_certificate_created.v0", "domain_updated.v0"],
            "{backend:?}"
        );
        assert_eq!(created[0]["principal"], Value::Null);
        assert_eq!(updated[0]["principal"], Value::Null);
        assert_eq!(created[0]["object"]["id"], certificate["id"]);
        assert_eq!(updated[0]["object"]["certificate"]["id"], certificate["id"]);
        for file in ["state.db", "state.db-wal"] {
            let bytes = std::fs::read(culvert.settings.data_dir.join(file)).unwrap_or_default();
            assert!(
                !String::from_utf8_lossy(&bytes).contains("PRIVATE KEY"),
                "{file}"
            );
        }

        // The certificate of a managed domain cannot be deleted.
        let refused = culvert
            .call(Method::DELETE, &path(&certificate), None)
            .await;
        assert_eq!(refused.body["error_code"], "ERR_NGROK_1966");
        let attached = format!("{}/certificate", path(&domain));
        let refused = culvert.call(Method::DELETE, &attached, None).await;
        assert_eq!(refused.body["error_code"], "ERR_NGROK_436");
        let managed = format!("{}/certificate_management_policy", path(&domain));
        let ended = culvert.call(Method::DELETE, &managed, None).await;
        assert_eq!(ended.status, 204);
        let domain = culvert.call(Method::GET, &path(&domain), None).await.body;
        for field in [
            "certificate",
            "certificate_management_policy",
            "certificate_management_status",
        ] {
            assert_eq!(domain[field], Value::Null, "{field}");
        }
        patiently("it is served no more", async || {
            let found = presented(culvert.https, name, &root).await;
            found.is_none().then_some(())
        })
        .await;
        let deleted = culvert
            .call(Method::DELETE, &path(&certificate), None)
            .await;
        assert_eq!(deleted.status, 204);
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_gets_its_certificate_by_tls_alpn_01() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        authority.configure(settings);
        settings.acme.challenges = vec!["tls-alpn-01".into()];
    })
    .await;
    let name = "alpn.managed.example";
    authority.point_here(&[name]);
    authority
        .start(free_port(), culvert.https.port(), 86_400)
        .await;
    let policy = json!({"private_key_type": "ecdsa"});
    let body = json!({"domain": name, "certificate_management_policy": policy});
    let made = reserve(&culvert, body).await;
    let domain = domain_when(&culvert.client, &made, "a certificate", is_issued).await;
    let certificate = path(&domain["certificate"]);
    let certificate = culvert.call(Method::GET, &certificate, None).await.body;
    assert_eq!(certificate["private_key_type"], "ecdsa");
    let root = authority.trust().await;
    patiently("it is served", async || {
        presented(culvert.https, name, &root).await
    })
    .await;
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_ingress_gets_its_certificate_and_renews_it() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        authority.configure(settings);
        settings.acme.challenges = vec!["http-01".into()];
    })
    .await;
    let name = "connect.managed.example";
    authority.point_here(&[name]);
    // The certificate is renewed at two thirds of its short lifetime.
    authority.start(culvert.http.port(), free_port(), 18).await;
    let made = culvert
        .create("agent_ingresses", json!({"domain": name}))
        .await;
    assert_eq!(made["certificate_management_status"], Value::Null);
    let policy = json!({"certificate_management_policy": {"private_key_type": "ecdsa"}});
    culvert
        .call(Method::PATCH, &path(&made), Some(policy))
        .await;
    let has_certificate =
        |ingress: &Value| !ingress["certificate_management_status"]["renews_at"].is_null();
    let ingress = domain_when(&culvert.client, &made, "a certificate", has_certificate).await;
    let first = time(&ingress["certificate_management_status"]["renews_at"]);
    let root = authority.trust().await;
    for (listener, address) in [("agents", culvert.agents), ("edge", culvert.https)] {
        patiently(
            &format!("it is presented to those of {listener}"),
            async || presented(address, name, &root).await,
        )
        .await;
    }
    domain_when(&culvert.client, &made, "a renewal", |ingress| {
        has_certificate(ingress)
            && time(&ingress["certificate_management_status"]["renews_at"]) > first
    })
    .await;
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_replaces_the_old_one() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let culvert =
        Harness::start_with(&Backend::Sqlite, |settings| authority.configure(settings)).await;
    let hook = Receiver::start().await;
    let wanted = json!([{"type": "tls_certificate_created.v0"}]);
    subscribe(&culvert.client, &hook, wanted).await;
    let name = "short.managed.example";
    authority.point_here(&[name]);
    let (http, https) = (culvert.http.port(), culvert.https.port());
    authority.start(http, https, 30).await;
    let root = authority.trust().await;
    let made = reserve(&culvert, json!({"domain": name})).await;
    let first = patiently("the first certificate", async || {
        presented(culvert.https, name, &root).await
    })
    .await;
    let second = patiently("another certificate", async || {
        let found = presented(culvert.https, name, &root).await;
        found.filter(|found| *found != first)
    })
    .await;
    assert_ne!(first, second);
    for _ in 0..5 {
        let found = presented(culvert.https, name, &root).await;
        assert_ne!(found, Some(first.clone()));
    }
    let created = hook.wait_for("tls_certificate_created.v0", 2).await;
    let domain = culvert.call(Method::GET, &path(&made), None).await.body;
    assert_ne!(created[0]["object"]["id"], domain["certificate"]["id"]);
    // The old certificate still exists as an object and can be deleted.
    let old = path(&created[0]["object"]);
    assert_eq!(culvert.call(Method::DELETE, &old, None).await.status, 204);
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_with_wrong_dns_shows_a_dns_error_until_corrected() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let culvert =
        Harness::start_with(&Backend::Sqlite, |settings| authority.configure(settings)).await;
    authority
        .start(culvert.http.port(), culvert.https.port(), 86_400)
        .await;
    let name = "elsewhere.managed.example";
    let made = reserve(&culvert, json!({"domain": name})).await;
    let failing = |domain: &Value| job(domain)["error_code"] == "DNS_ERROR";
    let domain = domain_when(&culvert.client, &made, "a DNS_ERROR", failing).await;
    assert!(job(&domain)["retries_at"].is_string());
    assert_eq!(job(&domain)["started_at"], job(&made)["started_at"]);
    let msg = job(&domain)["msg"].as_str().unwrap();
    assert!(msg.contains("could not validate the domain"), "{msg}");
    assert_eq!(domain["certificate"], Value::Null);
    let failed = logged(&culvert.client, "certificate_failed.v0").await;
    let object = &failed[0]["object"];
    assert_eq!(object["id"], made["id"]);
    assert_eq!(object["names"], json!([name]));
    assert_eq!(object["error"]["error_code"], "DNS_ERROR");
    authority.point_here(&[name]);
    domain_when(&culvert.client, &made, "a certificate", is_issued).await;
    let ordered = logged(&culvert.client, "certificate_ordered.v0").await;
    let object = &ordered[0]["object"];
    assert_eq!(object["id"], made["id"]);
    assert_eq!(object["names"], json!([name]));
    assert_eq!(object["authority"], authority.directory());
    assert_eq!(object["error"], Value::Null);
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_authority_shows_an_internal_error() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let culvert =
        Harness::start_with(&Backend::Sqlite, |settings| authority.configure(settings)).await;
    let (name, later) = ("away.managed.example", "later.managed.example");
    authority.point_here(&[name, later]);
    let made = reserve(&culvert, json!({"domain": name})).await;
    let failing = |domain: &Value| job(domain)["error_code"] == "INTERNAL_ERROR";
    let domain = domain_when(&culvert.client, &made, "an INTERNAL_ERROR", failing).await;
    assert!(job(&domain)["retries_at"].is_string());
    let (http, https) = (culvert.http.port(), culvert.https.port());
    authority.start(http, https, 86_400).await;
    domain_when(&culvert.client, &made, "a certificate", is_issued).await;
    // An authority that has lost its data gets the account again.
    authority.stop();
    authority.start(http, https, 86_400).await;
    let made = reserve(&culvert, json!({"domain": later})).await;
    domain_when(&culvert.client, &made, "another certificate", is_issued).await;
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_domain_without_an_authority_shows_an_error() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let made = reserve(&culvert, json!({"domain": "lone.managed.example"})).await;
    let failing = |domain: &Value| job(domain)["error_code"] == "INTERNAL_ERROR";
    let domain = domain_when(&culvert.client, &made, "an INTERNAL_ERROR", failing).await;
    let msg = job(&domain)["msg"].as_str().unwrap();
    assert!(msg.contains("acme.directory_url"), "{msg}");
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_during_an_order_continues_with_its_account() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (http, https) = (free_port(), free_port());
    let name = "killed.managed.example";
    authority.point_here(&[name]);
    authority.zone.lock().unwrap().is_silent = true;
    authority.start(http, https, 86_400).await;
    let (http, https) = (format!("127.0.0.1:{http}"), format!("127.0.0.1:{https}"));
    let (directory, root) = (authority.directory(), authority.file("cert.pem"));
    let flags = [
        ["--edge-http-addr", &http],
        ["--edge-https-addr", &https],
        ["--acme-directory-url", &directory],
        ["--acme-extra-ca-file", &root],
        ["--acme-retry-after", "400ms"],
    ]
    .concat();
    let start = || Process::start_as(binary(), &data, "", &flags);
    let client = |server: &Process| {
        let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
        Client::new(&server.api, token).unwrap()
    };
    let server = start();
    let body = json!({"domain": name});
    let before = client(&server);
    let made = before.expect(Method::POST, "/reserved_domains", Some(&body));
    let made = made.await.unwrap();
    patiently("the authority looks for the name", async || {
        (authority.zone.lock().unwrap().asked > 0).then_some(())
    })
    .await;
    server.kill();
    authority.zone.lock().unwrap().is_silent = false;

    let server = start();
    let client = client(&server);
    domain_when(&client, &made, "a certificate", is_issued).await;
    let list = client.expect(Method::GET, "/tls_certificates", None);
    let list = list.await.unwrap();
    assert_eq!(list["tls_certificates"].as_array().unwrap().len(), 1);
    let root = authority.trust().await;
    let https = https.parse().unwrap();
    patiently("it is served", async || presented(https, name, &root).await).await;
    assert!(!authority.log().contains("There are now 2 accounts"));
    assert_eq!(server.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_gets_its_certificate_by_dns_01_through_the_hook() {
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let texts = authority.folder.path().join("texts");
    std::fs::create_dir(&texts).unwrap();
    authority.zone.lock().unwrap().texts = Some(texts.clone());
    let hook = authority.file("hook");
    write_hook(Path::new(&hook), &texts);
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        authority.configure(settings);
        settings.acme.dns_hook = hook;
    })
    .await;
    let made = reserve(&culvert, json!({"domain": "*.wild.example"})).await;
    let target = made["acme_challenge_cname_target"].as_str().unwrap();
    let aliases = [("_acme-challenge.wild.example".to_owned(), target.to_owned())];
    authority.zone.lock().unwrap().aliases.extend(aliases);
    authority.start(free_port(), free_port(), 86_400).await;
    let domain = domain_when(&culvert.client, &made, "a certificate", is_issued).await;
    let certificate = path(&domain["certificate"]);
    let certificate = culvert.call(Method::GET, &certificate, None).await.body;
    assert_eq!(
        certificate["subject_alternative_names"]["dns_names"],
        json!(["*.wild.example"])
    );
    let root = authority.trust().await;
    patiently("it is served", async || {
        presented(culvert.https, "any.wild.example", &root).await
    })
    .await;
    assert_eq!(std::fs::read_dir(&texts).unwrap().count(), 0);
    culvert.stop().await;
}

/// Writes a hook that stores each record in a file with its name.
fn write_hook(hook: &Path, texts: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let texts = texts.display();
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in\nadd) printf '%s' \"$3\" > '{texts}'/\"$2\" ;;\nremove) rm -f '{texts}'/\"$2\" ;;\nesac\n"
    );
    std::fs::write(hook, script).unwrap();
    std::fs::set_permissions(hook, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_nodes_orders_and_both_answer_challenges_and_serve() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let one = Harness::start_with(&backend, |settings| {
        authority.configure(settings);
        settings.acme.challenges = vec!["http-01".into()];
        settings.node_name = "one".into();
    })
    .await;
    let other = Harness::start_with(&Backend::Sqlite, |settings| {
        authority.configure(settings);
        settings.acme.challenges = vec!["http-01".into()];
        settings.node_name = "other".into();
        settings.database_url = one.settings.database_url.clone();
        settings.secrets.key_file = one.settings.key_file().to_str().unwrap().to_owned();
    })
    .await;
    let names: Vec<String> = (0..4).map(|n| format!("n{n}.nodes.example")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    authority.point_here(&names);
    // Whichever node orders, the authority connects to this one.
    authority
        .start(other.http.port(), free_port(), 86_400)
        .await;
    let root = authority.trust().await;
    for name in &names {
        let made = reserve(&one, json!({"domain": name})).await;
        let domain = domain_when(&one.client, &made, "a certificate", is_issued).await;
        for node in [&one, &other] {
            patiently("each node serves it", async || {
                presented(node.https, name, &root).await
            })
            .await;
        }
        assert!(is_issued(&domain));
    }
    let list = one.call(Method::GET, "/tls_certificates", None).await.body;
    let list = list["tls_certificates"].as_array().unwrap();
    assert_eq!(list.len(), names.len());
    other.stop().await;
    one.stop().await;
}
