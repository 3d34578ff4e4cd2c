//! `culvert config check` opens what `culvert serve` opens because of its settings.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::harness::binary;

/// Settings that keep a server from starting, with a part of the error.
const BAD: &[(&str, &str)] = &[
    ("[edge]\ncertificates = ['no.pem']", "edge.certificates"),
    ("[edge]\nextra_ca_file = 'no.pem'", "edge.extra_ca_file"),
    ("[edge]\nerror_pages = 'no'", "edge.error_pages"),
    ("[edge]\nip_categories = ['x']", "edge.ip_categories"),
    ("[edge]\ntrusted_proxies = ['x']", "edge.trusted_proxies"),
    (
        "[edge]\nhttps_addr = '127.0.61.7:18080'\nhttp_addr = '127.0.61.7:18080'",
        "127.0.61.7:18080",
    ),
    ("[metrics]\naddr = '192.0.2.1:9'", "metrics.addr"),
    ("[agents]\ncert_file = 'no.pem'", "agents.cert_file"),
    ("[api.tls]\ncert_file = 'garbage'", "api.tls.cert_file"),
    ("[api]\ntrusted_proxies = ['x']", "api.trusted_proxies"),
    ("[log]\nlevel = 'a=b=c'", "log.level"),
    (
        "[destinations]\ndeny_ports = ['x']",
        "destinations.deny_ports",
    ),
    (
        "[destinations]\nallow_networks = ['x']",
        "destinations.allow_networks",
    ),
    (
        "[destinations.azure]\nauthority_url = 'x'",
        "destinations.azure.authority_url",
    ),
    (
        "[acme]\ndirectory_url = 'https://127.0.0.1:1/d'\nextra_ca_file = 'no.pem'",
        "acme.extra_ca_file",
    ),
    (
        "[acme]\ndirectory_url = 'https://127.0.0.1:1/d'\ndns_hook = 'no'",
        "acme.dns_hook",
    ),
    ("[secrets]\nkey_file = 'garbage'", "garbage"),
    (
        "[keys]\nleak_partner_url = 'http://partner.example'",
        "keys.leak_partner_url",
    ),
    ("[console.openid]\nissuer_url = 'x'", "console.openid"),
    ("data_dir = 'garbage'", "garbage"),
    ("data_dir = 'garbage/below'", "garbage"),
    (
        "database_url = 'postgres://localhost:port/x'",
        "database URL",
    ),
];

fn command(folder: &Path, arguments: &[&str], file: &str) -> std::process::Command {
    let mut command = binary();
    command
        .args(arguments)
        .args(["--config", file])
        .current_dir(folder);
    for (name, value) in [
        ("CULVERT_API__ADDR", "127.0.0.1:0"),
        ("CULVERT_AGENTS__ADDR", ""),
        ("CULVERT_AGENTS__SSH_ADDR", ""),
    ] {
        command.env(name, value);
    }
    command
}

#[test]
fn what_keeps_a_server_from_starting_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("garbage"), "garbage").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(folder.join("garbage"), mode).unwrap();
    for (number, (settings, named)) in BAD.iter().enumerate() {
        let file = format!("{number}.toml");
        std::fs::write(folder.join(&file), settings).unwrap();
        let before = std::fs::read_dir(folder).unwrap().count();
        let checked = command(folder, &["config", "check"], &file)
            .output()
            .unwrap();
        let said = String::from_utf8(checked.stderr).unwrap();
        assert!(!checked.status.success(), "{settings}");
        assert!(said.contains(named), "{settings}: {said}");
        let after = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(before, after, "{settings}: it creates nothing");

        let mut serve = command(folder, &["serve"], &file);
        if !settings.contains("http_addr") {
            serve.env("CULVERT_EDGE__HTTP_ADDR", "127.0.0.1:0");
            serve.env("CULVERT_EDGE__HTTPS_ADDR", "127.0.0.1:0");
        }
        let mut serve = serve
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let began = Instant::now();
        let status = loop {
            match serve.try_wait().unwrap() {
                Some(status) => break status,
                None if began.elapsed() > Duration::from_secs(60) => {
                    serve.kill().unwrap();
                    panic!("{settings}: a server starts");
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut said = String::new();
        serve
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(
            !status.success() && said.contains(named),
            "{settings}: {said}"
        );
        drop(std::fs::remove_dir_all(folder.join("culvert-data")));
    }
}

#[test]
fn what_a_server_goes_on_with_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "[edge]\ngeo_database = 'no.mmdb'\n[destinations.tls]\nextra_ca_file = 'no.pem'";
    std::fs::write(folder.path().join("a.toml"), settings).unwrap();
    let checked = command(folder.path(), &["config", "check"], "a.toml")
        .output()
        .unwrap();
    let said = String::from_utf8(checked.stderr).unwrap();
    assert!(checked.status.success(), "{said}");
    assert!(
        said.contains("no.mmdb") && said.contains("destinations.tls.extra_ca_file"),
        "{said}"
    );
    assert!(!folder.path().join("culvert-data").exists());
}
