//! The built-in DNS providers: BIND for dynamic updates, `moto` for Route 53, and for Cloudflare, deSEC and acme-dns peers
//! of ours that follow the documentation of their APIs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use culvert_aws::Keys;
use culvert_base::{BoxFuture, Clock, ManualClock, Secret, SystemClock};
use culvert_dns::{
    AcmeDns, Cloudflare, Desec, DnsWriter, LookupSettings, Provider, Rfc2136, Route53,
};
use culvert_edge::PublicClient;
use culvert_tls::acme::{Cause, Fetch};
use http::{Method, Request, Response};
use serde_json::{Value, json};

use crate::acme::{free_port, patiently};
use crate::destinations::Partner;

/// Name and secret of the key that the name server accepts.
pub const KEY_NAME: &str = "culvert";
pub const KEY: &str = "c2VjcmV0IG9mIHRoZSB0ZXN0cyBmb3IgdXBkYXRlcw==";

/// A BIND of this test, primary server of zones.
pub struct Bind {
    folder: tempfile::TempDir,
    pub address: SocketAddr,
    child: Child,
}

impl Drop for Bind {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Bind {
    /// Starts it with these zones, each with further records. `None`, reported as ignored, if BIND is not installed.
    pub async fn start(zones: &[(&str, &str)]) -> Option<Self> {
        let program = ["/usr/sbin/named", "/usr/bin/named"];
        let Some(program) = program.into_iter().find(|path| Path::new(path).exists()) else {
            culvert_testing::ignore("BIND is not installed; Debian has a package `bind9`");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let port = free_port();
        let mut config = format!(
            "options {{ directory \"{dir}\"; pid-file \"{dir}/pid\"; session-keyfile \"{dir}/session\";\
             listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; recursion no;\
             dnssec-validation no; allow-query {{ any; }}; }};\n\
             controls {{ }};\n\
             key {KEY_NAME} {{ algorithm hmac-sha256; secret \"{KEY}\"; }};\n\
             key stranger {{ algorithm hmac-sha256; secret \"{KEY}\"; }};\n",
            dir = folder.path().display(),
        );
        for (zone, records) in zones {
            let text = format!(
                "$ORIGIN {zone}.\n$TTL 5\n@ SOA ns.{zone}. ops.{zone}. 1 60 60 60 5\n@ NS ns.{zone}.\n\
                 ns A 127.0.0.1\n{records}\n"
            );
            std::fs::write(at(zone), text).unwrap();
            config.push_str(&format!(
                "zone \"{zone}\" {{ type primary; file \"{zone}\"; update-policy {{ grant {KEY_NAME} \
                 zonesub TXT; }}; }};\n"
            ));
        }
        std::fs::write(at("named.conf"), config).unwrap();
        let log = std::fs::File::create(at("log")).unwrap();
        let child = Command::new(program)
            .arg("-g")
            .arg("-c")
            .arg(at("named.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let bind = Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            child,
            folder,
        };
        // Before it has loaded its zones, its responses are SERVFAIL.
        patiently("BIND has loaded its zones", async || {
            bind.log().contains("all zones loaded").then_some(())
        })
        .await;
        Some(bind)
    }

    /// The TXT records of a name.
    pub async fn texts(&self, name: &str) -> Vec<String> {
        let output = tokio::process::Command::new("dig")
            .args(["+short", "+norecurse", "+tcp", "-p"])
            .arg(self.address.port().to_string())
            .args(["@127.0.0.1", name, "TXT"])
            .output()
            .await
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter(|line| line.starts_with('"'));
        lines
            .map(|line| line.trim_matches('"').to_owned())
            .collect()
    }

    /// What it logged.
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

/// Lookups at one server only.
fn lookups(server: SocketAddr) -> LookupSettings {
    LookupSettings {
        resolvers: vec![server],
        nameservers: vec![server],
        propagation_timeout: Duration::from_secs(10),
        may_ask: Arc::new(|_| false),
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

fn updates(bind: &Bind, key_name: &str, key: &str) -> DnsWriter {
    let key = Secret::new(key.to_owned());
    let provider = Rfc2136::new(bind.address, None, key_name, "hmac-sha256", &key).unwrap();
    let provider = Provider::Rfc2136(provider);
    DnsWriter::new(provider, lookups(bind.address), Arc::new(Nothing), clock()).unwrap()
}

/// Sends nothing.
#[derive(Debug)]
struct Nothing;

impl Fetch for Nothing {
    fn fetch(&self, _: Request<Bytes>, _: usize) -> BoxFuture<'_, Result<Response<Bytes>, Cause>> {
        Box::pin(async { Err("there is no HTTP here".into()) })
    }
}

#[tokio::test]
async fn bind_accepts_signed_updates_and_aliases_are_followed() {
    let aliases = "_acme-challenge.other CNAME there.far.example.\n*.wild CNAME there.far.example.\nloop CNAME loop2\nloop2 CNAME loop";
    let zones = [("near.example", aliases), ("far.example", "")];
    let Some(bind) = Bind::start(&zones).await else {
        return;
    };
    let writer = updates(&bind, KEY_NAME, KEY);
    let name = "_acme-challenge.near.example";
    // A certificate for a domain and its wildcard needs two records of one name.
    for value in ["first", "second", "second"] {
        writer.add(name, value).await.unwrap();
    }
    let mut found = bind.texts(name).await;
    found.sort();
    assert_eq!(found, ["first", "second"]);
    writer.remove(name, "first").await.unwrap();
    assert_eq!(bind.texts(name).await, ["second"]);
    writer.remove(name, "second").await.unwrap();
    writer.remove(name, "second").await.unwrap();
    assert!(bind.texts(name).await.is_empty());

    let alias = "_acme-challenge.other.near.example";
    writer.add(alias, "value").await.unwrap();
    assert_eq!(bind.texts("there.far.example").await, ["value"]);
    writer.remove(alias, "value").await.unwrap();
    assert!(bind.texts("there.far.example").await.is_empty());

    // A wildcard makes every name an alias; a record of the name itself replaces that.
    let below = "_acme-challenge.wild.near.example";
    writer.add(below, "value").await.unwrap();
    assert_eq!(bind.texts(below).await, ["value"]);
    assert!(bind.texts("there.far.example").await.is_empty());
    writer.remove(below, "value").await.unwrap();
    assert!(bind.texts(below).await.is_empty());

    let why = writer.add("loop.near.example", "value").await.unwrap_err();
    assert!(why.to_string().contains("CNAME"), "{why}");
    let found = writer.check(name).await.unwrap();
    assert!(
        found.contains("accepts updates of `near.example`"),
        "{found}"
    );
}

#[tokio::test]
async fn an_update_refused_by_bind_names_the_record() {
    let Some(bind) = Bind::start(&[("near.example", "")]).await else {
        return;
    };
    let name = "_acme-challenge.near.example";
    let other = "b3RoZXIgc2VjcmV0IG9mIHRoZSB0ZXN0cw==";
    for (key_name, key, expected) in [
        ("stranger", KEY, "Refused"),
        ("unknown", KEY, "check name, algorithm and secret"),
        (KEY_NAME, other, "check name, algorithm and secret"),
    ] {
        let writer = updates(&bind, key_name, key);
        let why = writer.add(name, "value").await.unwrap_err().to_string();
        assert!(
            why.contains(name) && why.contains(expected),
            "{key_name}: {why}"
        );
        assert!(!why.contains(key), "{why}");
        assert!(bind.texts(name).await.is_empty(), "{key_name}");
    }
    let writer = updates(&bind, KEY_NAME, other);
    writer.check(name).await.unwrap_err();
    let elsewhere = updates(&bind, KEY_NAME, KEY)
        .add("_acme-challenge.x.example", "v")
        .await;
    elsewhere.unwrap_err();
    // A recorded request is of no use later.
    let past: Arc<dyn Clock> = Arc::new(ManualClock::at(
        SystemClock.now().minus(Duration::from_secs(3600)),
    ));
    let provider = Rfc2136::new(
        bind.address,
        None,
        KEY_NAME,
        "hmac-sha256",
        &Secret::new(KEY.into()),
    );
    let provider = Provider::Rfc2136(provider.unwrap());
    let writer = DnsWriter::new(provider, lookups(bind.address), Arc::new(Nothing), past).unwrap();
    writer.add(name, "value").await.unwrap_err();
    assert!(bind.texts(name).await.is_empty());
}

#[tokio::test]
async fn a_missing_record_is_an_error_that_names_the_server() {
    let zones = [("near.example", "")];
    let (Some(bind), Some(stale)) = (Bind::start(&zones).await, Bind::start(&zones).await) else {
        return;
    };
    let key = Secret::new(KEY.to_owned());
    let provider = Rfc2136::new(bind.address, None, KEY_NAME, "hmac-sha256", &key).unwrap();
    let lookups = LookupSettings {
        resolvers: vec![bind.address],
        nameservers: vec![bind.address, stale.address],
        propagation_timeout: Duration::from_secs(3),
        may_ask: Arc::new(|_| true),
    };
    let provider = Provider::Rfc2136(provider);
    let writer = DnsWriter::new(provider, lookups, Arc::new(Nothing), clock()).unwrap();
    let name = "_acme-challenge.near.example";
    let why = writer.add(name, "value").await.unwrap_err().to_string();
    let at = stale.address.to_string();
    assert!(why.contains(name) && why.contains(&at), "{why}");
}

#[tokio::test]
async fn name_servers_at_private_addresses_are_not_queried() {
    let Some(bind) = Bind::start(&[("near.example", "")]).await else {
        return;
    };
    let key = Secret::new(KEY.to_owned());
    let provider = Rfc2136::new(bind.address, None, KEY_NAME, "hmac-sha256", &key).unwrap();
    let lookups = LookupSettings {
        nameservers: Vec::new(),
        propagation_timeout: Duration::from_secs(1),
        ..lookups(bind.address)
    };
    let provider = Provider::Rfc2136(provider);
    let writer = DnsWriter::new(provider, lookups, Arc::new(Nothing), clock()).unwrap();
    let why = writer.add("_acme-challenge.near.example", "value").await;
    let why = why.unwrap_err().to_string();
    assert!(
        why.contains("127.0.0.1") && why.contains("private"),
        "{why}"
    );
}

/// A peer that follows the documentation of a provider's API.
#[derive(Debug)]
struct Peer {
    answer: fn(&Request<Bytes>, &mut Vec<Value>) -> (u16, Value),
    records: Mutex<Vec<Value>>,
}

impl Fetch for Peer {
    fn fetch(
        &self,
        call: Request<Bytes>,
        _: usize,
    ) -> BoxFuture<'_, Result<Response<Bytes>, Cause>> {
        Box::pin(async move {
            let (status, body) = (self.answer)(&call, &mut self.records.lock().unwrap());
            let body = Bytes::from(body.to_string());
            Ok(Response::builder().status(status).body(body).unwrap())
        })
    }
}

fn header<'r>(call: &'r Request<Bytes>, name: &str) -> &'r str {
    call.headers()
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

/// A parameter of the query.
fn parameter(call: &Request<Bytes>, name: &str) -> Option<String> {
    let query = call.uri().query()?;
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs.find_map(|(key, value)| (key == name).then(|| value.into_owned()))
}

/// A writer whose zone is at a BIND, which has no TXT records, so propagation is not waited for.
fn through(peer: &Arc<Peer>, bind: &Bind, provider: Provider) -> DnsWriter {
    let lookups = LookupSettings {
        propagation_timeout: Duration::ZERO,
        ..lookups(bind.address)
    };
    DnsWriter::new(provider, lookups, peer.clone(), clock()).unwrap()
}

/// Cloudflare: one zone, and its TXT records.
fn cloudflare(call: &Request<Bytes>, records: &mut Vec<Value>) -> (u16, Value) {
    let failed = |status, code: u32, message: &str| {
        let errors = json!([{"code": code, "message": message}]);
        (
            status,
            json!({"success": false, "errors": errors, "result": null}),
        )
    };
    let fine = |result: Value| {
        (
            200,
            json!({"success": true, "errors": [], "result": result}),
        )
    };
    if header(call, "authorization") != "Bearer the-token" {
        return failed(403, 9109, "Invalid access token");
    }
    let path = call.uri().path().strip_prefix("/client/v4").unwrap();
    let list = "/zones/zone1/dns_records";
    match (call.method().as_str(), path) {
        ("GET", "/zones") if parameter(call, "name").as_deref() == Some("near.example") => {
            fine(json!([{"id": "zone1", "name": "near.example"}]))
        }
        ("GET", "/zones") => fine(json!([])),
        ("POST", path) if path == list => {
            let mut record: Value = serde_json::from_slice(call.body()).unwrap();
            let is_same = |one: &Value| one["content"] == record["content"];
            if records.iter().any(is_same) {
                return failed(400, 81058, "An identical record already exists.");
            }
            record["id"] = json!(format!("r{}", records.len()));
            records.push(record.clone());
            fine(record)
        }
        ("GET", path) if path == list => {
            assert_eq!(parameter(call, "type").unwrap(), "TXT");
            let name = parameter(call, "name").unwrap();
            let named = records.iter().filter(|one| one["name"] == *name);
            fine(named.cloned().collect())
        }
        ("DELETE", path) => {
            let id = path.rsplit('/').next().unwrap();
            records.retain(|one| one["id"] != *id);
            fine(json!({"id": id}))
        }
        _ => failed(404, 7003, "Could not route to the request"),
    }
}

#[tokio::test]
async fn cloudflare_records_are_created_and_deleted() {
    let Some(bind) = Bind::start(&[("near.example", ""), ("far.example", "")]).await else {
        return;
    };
    let peer = Arc::new(Peer {
        answer: cloudflare,
        records: Mutex::default(),
    });
    let provider = |token: &str| {
        Provider::Cloudflare(Cloudflare {
            api_url: Cloudflare::API_URL.to_owned(),
            api_token: Secret::new(token.to_owned()),
        })
    };
    let writer = through(&peer, &bind, provider("the-token"));
    let name = "_acme-challenge.a.near.example";
    writer.check(name).await.unwrap();
    for value in ["one", "two", "one"] {
        writer.add(name, value).await.unwrap();
    }
    writer.remove(name, "one").await.unwrap();
    {
        let records = peer.records.lock().unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0]["content"], "\"two\"");
        assert_eq!(
            (&records[0]["name"], &records[0]["ttl"]),
            (&json!(name), &json!(60))
        );
    }
    let why = writer.add("_acme-challenge.far.example", "v").await;
    assert!(why.unwrap_err().to_string().contains("no zone"));
    let why = through(&peer, &bind, provider("stolen"))
        .add(name, "v")
        .await;
    let why = why.unwrap_err().to_string();
    assert!(
        why.contains(name) && why.contains("Invalid access token (9109)"),
        "{why}"
    );
    assert!(!why.contains("stolen"), "{why}");
}

/// A TXT record of two strings.
const OTHERS: &str = r#""first part" "second part""#;

/// deSEC: one domain, and the set of TXT records of one name.
fn desec(call: &Request<Bytes>, records: &mut Vec<Value>) -> (u16, Value) {
    if header(call, "authorization") != "Token the-token" {
        return (401, json!({"detail": "Invalid token."}));
    }
    let path = call.uri().path().strip_prefix("/api/v1").unwrap();
    match (call.method().as_str(), path) {
        ("GET", "/domains/") => {
            let name = parameter(call, "owns_qname").unwrap();
            let domain = json!({"name": "near.example", "minimum_ttl": 3600});
            let owns = name.ends_with(".near.example");
            (200, if owns { json!([domain]) } else { json!([]) })
        }
        ("GET", "/domains/near.example/rrsets/_acme-challenge.a/TXT/") => match records.first() {
            Some(set) => (200, set.clone()),
            None => (404, json!({"detail": "Not found."})),
        },
        ("PATCH", "/domains/near.example/rrsets/") => {
            let sets: Value = serde_json::from_slice(call.body()).unwrap();
            let set = sets[0].clone();
            if set["ttl"].as_u64().unwrap() < 3600 {
                return (
                    400,
                    json!([{"ttl": ["Ensure this value is greater than or equal to 3600."]}]),
                );
            }
            records.clear();
            if set["records"] != json!([]) {
                records.push(set);
            }
            (200, sets)
        }
        _ => (404, json!({"detail": "Not found."})),
    }
}

#[tokio::test]
async fn desec_records_are_created_and_deleted() {
    let Some(bind) = Bind::start(&[("near.example", ""), ("far.example", "")]).await else {
        return;
    };
    let peer = Arc::new(Peer {
        answer: desec,
        // A record of others, in two parts, which stays as it is.
        records: Mutex::new(vec![json!({"ttl": 7200, "records": [OTHERS]})]),
    });
    let provider = |token: &str| {
        Provider::Desec(Desec {
            api_url: Desec::API_URL.to_owned(),
            token: Secret::new(token.to_owned()),
        })
    };
    let writer = through(&peer, &bind, provider("the-token"));
    let name = "_acme-challenge.a.near.example";
    writer.check(name).await.unwrap();
    for value in ["one", "two", "one"] {
        writer.add(name, value).await.unwrap();
    }
    let set = peer.records.lock().unwrap()[0].clone();
    assert_eq!(set["records"], json!([OTHERS, "\"one\"", "\"two\""]));
    assert_eq!(set["subname"], "_acme-challenge.a");
    writer.remove(name, "one").await.unwrap();
    writer.remove(name, "two").await.unwrap();
    writer.remove(name, "two").await.unwrap();
    let set = peer.records.lock().unwrap()[0].clone();
    assert_eq!(
        (&set["records"], &set["ttl"]),
        (&json!([OTHERS]), &json!(7200))
    );
    let why = writer.add("_acme-challenge.far.example", "v").await;
    assert!(why.unwrap_err().to_string().contains("no domain"));
    let why = through(&peer, &bind, provider("stolen"))
        .add(name, "v")
        .await;
    let why = why.unwrap_err().to_string();
    assert!(
        why.contains(name) && why.contains("Invalid token."),
        "{why}"
    );
    assert!(!why.contains("stolen"), "{why}");
}

/// acme-dns: one account, which keeps two values.
fn acme_dns(call: &Request<Bytes>, records: &mut Vec<Value>) -> (u16, Value) {
    assert_eq!(
        (call.method(), call.uri().path()),
        (&Method::POST, "/update")
    );
    if (header(call, "x-api-user"), header(call, "x-api-key")) != ("the-user", "the-key") {
        return (401, json!({"error": "unauthorized"}));
    }
    let body: Value = serde_json::from_slice(call.body()).unwrap();
    assert_eq!(body["subdomain"], "sub");
    if body["txt"].as_str().unwrap().len() != 43 {
        return (400, json!({"error": "bad_txt"}));
    }
    records.push(body["txt"].clone());
    if records.len() > 2 {
        records.remove(0);
    }
    (200, json!({"txt": body["txt"]}))
}

#[tokio::test]
async fn acme_dns_records_are_created_only_for_its_alias() {
    let alias = "_acme-challenge.a CNAME sub.auth.example.";
    let Some(bind) = Bind::start(&[("near.example", alias), ("auth.example", "")]).await else {
        return;
    };
    let peer = Arc::new(Peer {
        answer: acme_dns,
        records: Mutex::default(),
    });
    let provider = |password: &str| {
        Provider::AcmeDns(AcmeDns {
            server_url: "https://auth.example".to_owned(),
            username: Secret::new("the-user".to_owned()),
            password: Secret::new(password.to_owned()),
            subdomain: "sub".to_owned(),
            full_domain: "sub.auth.example".to_owned(),
        })
    };
    let writer = through(&peer, &bind, provider("the-key"));
    let name = "_acme-challenge.a.near.example";
    let values = ["a", "b"].map(|letter| letter.repeat(43));
    writer.check(name).await.unwrap();
    for value in &values {
        writer.add(name, value).await.unwrap();
    }
    assert_eq!(*peer.records.lock().unwrap(), values);
    writer.remove(name, &values[0]).await.unwrap();
    let why = writer
        .add("_acme-challenge.b.near.example", &values[0])
        .await;
    let why = why.unwrap_err().to_string();
    assert!(
        why.contains("_acme-challenge.b.near.example CNAME sub.auth.example."),
        "{why}"
    );
    let why = through(&peer, &bind, provider("stolen"))
        .add(name, &values[0])
        .await;
    let why = why.unwrap_err().to_string();
    assert!(why.contains(name) && why.contains("unauthorized"), "{why}");
    assert!(!why.contains("stolen"), "{why}");
}

#[tokio::test]
async fn route_53_records_are_created_and_deleted() {
    let Some(bind) = Bind::start(&[("near.example", ""), ("far.example", "")]).await else {
        return;
    };
    let Some(mut amazon) = Partner::start("route53.py") else {
        return;
    };
    let said = amazon.said().await;
    let text = |name: &str| said[name].as_str().unwrap().to_owned();
    let root = rustls_pki_types::pem::PemObject::from_pem_slice(text("certificate").as_bytes());
    let networks = ["127.0.0.1/32".parse().unwrap()];
    let client = PublicClient::new(&[root.unwrap()], Duration::from_secs(10), &networks, []);
    let client = Arc::new(client.unwrap());
    let writer = |secret: String, zone: Option<&str>| {
        let provider = Route53 {
            endpoint_url: text("url"),
            keys: Keys {
                id: text("aws_access_key_id"),
                secret: Secret::new(secret),
                session: None,
            },
            hosted_zone_id: zone.map(str::to_owned),
        };
        let lookups = LookupSettings {
            propagation_timeout: Duration::ZERO,
            ..lookups(bind.address)
        };
        let provider = Provider::Route53(provider);
        DnsWriter::new(provider, lookups, client.clone(), clock()).unwrap()
    };
    let zone_id = text("zone_id");
    let name = "_acme-challenge.a.near.example";
    for zone in [None, Some(&*zone_id)] {
        let writer = writer(text("aws_secret_access_key"), zone);
        writer.check(name).await.unwrap();
        for value in ["one", "two", "one"] {
            writer.add(name, value).await.unwrap();
        }
        let found = amazon.ask(&json!({"name": name})).await;
        assert_eq!(found, json!(["\"one\"", "\"two\""]));
        writer.remove(name, "one").await.unwrap();
        writer.remove(name, "two").await.unwrap();
        writer.remove(name, "two").await.unwrap();
        assert_eq!(amazon.ask(&json!({"name": name})).await, json!([]));
    }
    let writer_of = writer(text("aws_secret_access_key"), None);
    let why = writer_of.add("_acme-challenge.far.example", "v").await;
    assert!(
        why.unwrap_err()
            .to_string()
            .contains("no public hosted zone")
    );
    let why = writer("stolen".to_owned(), None).add(name, "v").await;
    let why = why.unwrap_err().to_string();
    assert!(
        why.contains(name) && why.contains("SignatureDoesNotMatch"),
        "{why}"
    );
    assert!(!why.contains("stolen"), "{why}");
}
