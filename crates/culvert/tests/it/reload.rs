//! SIGHUP applies changed settings and certificate files. Invalid ones change nothing.

use std::path::Path;

use culvert::client::Client;
use http::Method;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::CertificateDer;
use serde_json::json;

use crate::custom_domain::request;
use crate::harness::{Receiver, binary, eventually, raw};
use crate::kill::Process;

const NAME: &str = "app.files.example";

/// Writes a new certificate for the platform domain, with its key, to `path`.
fn renew(path: &Path) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["*.files.example".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(path, certificate.pem() + &key.serialize_pem()).unwrap();
    certificate.der().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_uses_new_files_and_keeps_the_old_if_invalid() {
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("edge.pem");
    let config = folder.path().join("culvert.toml");
    let first = renew(&pem);
    let write = |more: &str| {
        let text = format!(
            "edge.domain = \"files.example\"\nedge.certificates = [{:?}]\n{more}\n",
            pem.to_str().unwrap()
        );
        std::fs::write(&config, text).unwrap();
    };
    write("log.level = \"error\"");
    let data = folder.path().join("data");
    let log = folder.path().join("log");
    let mut command = binary();
    command.stderr(std::fs::File::create(&log).unwrap());
    let arguments = ["--config", config.to_str().unwrap()];
    let culvert = Process::start_as(command, &data, "", &arguments);
    let token = std::fs::read_to_string(data.join("bootstrap-key")).unwrap();
    let client = Client::new(&culvert.api, token.trim().to_owned()).unwrap();
    let origin = Receiver::start().await;
    let endpoint = json!({
        "url": format!("https://{NAME}"),
        "upstream_url": format!("http://{}", origin.address),
    });
    let made = client
        .call(Method::POST, "/endpoints", Some(&endpoint))
        .await
        .unwrap();
    assert_eq!(made.status, 201);
    // It replaces the installation's own certificate.
    eventually("the certificate of the file is presented", async || {
        request(culvert.https, NAME, &first).await == Some(200)
    })
    .await;

    let second = renew(&pem);
    culvert.signal("HUP");
    eventually("the new certificate is presented", async || {
        request(culvert.https, NAME, &second).await == Some(200)
    })
    .await;

    // A limit that would refuse all traffic is refused, as at a start.
    write("edge.connections_max = 0");
    culvert.signal("HUP");
    eventually("the log says which limit is not valid", async || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("`edge.connections_max` must be at least 1")
    })
    .await;
    assert_eq!(request(culvert.https, NAME, &second).await, Some(200));
    // Neither an invalid certificate nor the limit in the same reload is applied.
    std::fs::write(&pem, "-----BEGIN CERTIFICATE-----").unwrap();
    write("edge.connections_per_source_max = 1");
    culvert.signal("HUP");
    eventually("the log says what is not valid", async || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("invalid settings") && said.contains("edge.pem")
    })
    .await;
    write("log.level = \"warn\"\nnode_name = \"other\"");
    let third = renew(&pem);
    assert_eq!(request(culvert.https, NAME, &second).await, Some(200));
    culvert.signal("HUP");
    eventually("a good file is presented again", async || {
        request(culvert.https, NAME, &third).await == Some(200)
    })
    .await;
    eventually("the log names what waits for a start", async || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("take effect at the next start") && said.contains("node_name")
    })
    .await;
    assert_eq!(culvert.terminate(), 0);
}

/// Status and body of `/readyz`.
async fn ready(culvert: &Process) -> (u16, String) {
    let address = culvert.api.trim_start_matches("http://").parse().unwrap();
    let request = b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = raw(address, request).await;
    (answer.status, answer.text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_reads_ip_data_and_missing_data_is_reported_and_refuses_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (config, log, geo, list) = (
        path("culvert.toml"),
        path("log"),
        path("geo.mmdb"),
        path("bad"),
    );
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../culvert-ip-data/tests/data");
    let good = std::fs::read(data.join("geo.mmdb")).unwrap();
    std::fs::write(&geo, &good).unwrap();
    std::fs::write(&list, "127.0.0.0/8\n").unwrap();
    let write =
        |text: &str| std::fs::write(&config, format!("log.level = \"info\"\n{text}\n")).unwrap();
    let with_data = format!(
        "edge.geo_database = {:?}\nedge.ip_categories = [\"blocklist={}\"]",
        geo.to_str().unwrap(),
        list.display()
    );
    write("");
    let data = path("data");
    let start = || {
        let mut command = binary();
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        command.stderr(file);
        Process::start_as(command, &data, "", &["--config", config.to_str().unwrap()])
    };
    let culvert = start();
    let token = std::fs::read_to_string(data.join("bootstrap-key")).unwrap();
    let client = Client::new(&culvert.api, token.trim().to_owned()).unwrap();
    let denies = |host: &str, expression: &str| {
        let policy = json!({"on_http_request": [
            {"expressions": [expression], "actions": [{"type": "deny"}]},
            {"actions": [{"type": "custom-response", "config": {"body": "ok"}}]},
        ]});
        json!({"url": format!("http://{host}.culvert.localhost"), "traffic_policy": policy.to_string()})
    };
    let make = async |host: &str, expression: &str| {
        let body = denies(host, expression);
        client
            .call(Method::POST, "/endpoints", Some(&body))
            .await
            .unwrap()
    };
    const DENIED: &str = "conn.geo.country_code == 'AT'";
    const PASSED: &str = "conn.geo.country_code == 'US'";
    const LISTED: &str = "conn.client_ip.is_on_blocklist";

    // Without address data.
    for expression in [DENIED, PASSED, LISTED] {
        let refused = make("none", expression).await;
        assert_eq!(refused.status, 400);
        assert_eq!(refused.body["error_code"], "ERR_NGROK_2200");
    }
    assert_eq!(ready(&culvert).await.0, 200);
    // With address data.
    write(&with_data);
    culvert.signal("HUP");
    eventually("a policy may name a country", async || {
        make("denied", DENIED).await.status == 201
    })
    .await;
    assert_eq!(make("passed", PASSED).await.status, 201);
    assert_eq!(make("listed", LISTED).await.status, 201);
    // Fields that the database does not have, and a list that does not exist.
    for expression in [
        "conn.client_ip.geo.registered_location.city == 'x'",
        "conn.client_ip.is_tor_node",
        "conn.client_ip.as.number == 1",
    ] {
        assert_eq!(make("none", expression).await.status, 400, "{expression}");
    }
    let status = async |culvert: &Process, host: &str| {
        let request = format!(
            "GET / HTTP/1.1\r\nhost: {host}.culvert.localhost\r\nconnection: close\r\n\r\n"
        );
        raw(culvert.http, request.as_bytes()).await.status
    };
    for (host, expected) in [("denied", 403), ("passed", 200), ("listed", 403)] {
        assert_eq!(status(&culvert, host).await, expected, "{host}");
    }
    // A damaged file changes nothing.
    std::fs::write(&geo, &good[..good.len() / 2]).unwrap();
    culvert.signal("HUP");
    eventually("the log says what is not valid", async || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("invalid settings") && said.contains("edge.geo_database")
    })
    .await;
    assert_eq!(status(&culvert, "denied").await, 403);
    assert_eq!(status(&culvert, "passed").await, 200);
    assert_eq!(culvert.terminate(), 0);

    // After a restart there is no previous data: policies that need it reject traffic, others run.
    let culvert = start();
    for (host, expected) in [("denied", 500), ("passed", 500), ("listed", 403)] {
        assert_eq!(status(&culvert, host).await, expected, "{host}");
    }
    let (code, text) = ready(&culvert).await;
    assert_eq!(code, 503);
    assert!(text.contains("not loaded: edge.geo_database"), "{text}");
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("endpoints reject traffic"), "{said}");
    std::fs::write(&geo, &good).unwrap();
    culvert.signal("HUP");
    eventually("the data is back", async || {
        status(&culvert, "passed").await == 200
    })
    .await;
    assert_eq!(status(&culvert, "denied").await, 403);
    eventually("it is ready", async || ready(&culvert).await.0 == 200).await;
    assert_eq!(culvert.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_reads_error_page_templates_and_invalid_ones_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (pages, log) = (folder.path().join("pages"), folder.path().join("log"));
    std::fs::create_dir(&pages).unwrap();
    let template = |text: &str| std::fs::write(pages.join("4xx.html"), text).unwrap();
    template("<h1>first {{status}}</h1>");
    let config = folder.path().join("culvert.toml");
    let setting = format!("edge.error_pages = {:?}\n", pages.to_str().unwrap());
    std::fs::write(&config, setting).unwrap();
    let mut command = binary();
    command.stderr(std::fs::File::create(&log).unwrap());
    let arguments = ["--config", config.to_str().unwrap()];
    let culvert = Process::start_as(command, &folder.path().join("data"), "", &arguments);
    let page = async || {
        let request =
            b"GET / HTTP/1.1\r\nhost: no.example\r\naccept: text/html\r\nconnection: close\r\n\r\n";
        raw(culvert.http, request).await.text
    };
    assert!(page().await.ends_with("<h1>first 404</h1>"));
    template("<h1>second {{code}}</h1>");
    culvert.signal("HUP");
    eventually("the new template is used", async || {
        page().await.ends_with("<h1>second ERR_NGROK_3200</h1>")
    })
    .await;
    template("<h1>{{title}}</h1>");
    culvert.signal("HUP");
    eventually("the log names the file and the placeholder", async || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("4xx.html: line 1: unknown placeholder `{{title}}`")
    })
    .await;
    assert!(page().await.ends_with("<h1>second ERR_NGROK_3200</h1>"));
    assert_eq!(culvert.terminate(), 0);
}
