//! SIGHUP: changed settings and certificate files are taken into use, and what is not valid changes
//! nothing.

use std::path::Path;

use culvert::client::Client;
use http::Method;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::CertificateDer;
use serde_json::json;

use crate::custom_domain::request;
use crate::harness::{Receiver, binary, eventually};
use crate::kill::Process;

const NAME: &str = "app.files.example";

/// Writes a new certificate of the platform domain with its key to `path`.
fn renew(path: &Path) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["*.files.example".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(path, certificate.pem() + &key.serialize_pem()).unwrap();
    certificate.der().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_takes_new_files_into_use_and_keeps_the_old_when_they_are_bad() {
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
    // Instead of one of the installation's own.
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

    // Neither a certificate without its key nor a limit beside it comes into use.
    std::fs::write(&pem, "-----BEGIN CERTIFICATE-----").unwrap();
    write("edge.connections_max = 0");
    culvert.signal("HUP");
    eventually("the log says what is not valid", async || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("the settings are not valid") && said.contains("edge.pem")
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
        said.contains("wait for the next start") && said.contains("node_name")
    })
    .await;
    assert_eq!(culvert.terminate(), 0);
}
