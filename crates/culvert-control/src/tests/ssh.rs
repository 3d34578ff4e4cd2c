//! SSH keys, authorities and certificates: every code, and checks with the tools of OpenSSH.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_certificates::ssh::{SigningKey, Spec};

use super::*;

/// A new public key with a comment.
pub(super) fn new_key() -> String {
    let key = SigningKey::generate(Spec::Ed25519).unwrap();
    format!("{} someone@x.example", key.public_line())
}

async fn authority(rig: &Rig, body: Value) -> Value {
    let made = rig.post("/ssh_certificate_authorities", body).await;
    made.body()
}

/// Keys that are valid but unsupported (`true`), and texts that are not keys.
fn bad_keys() -> [(String, bool); 4] {
    let dss = "ssh-dss AAAAB3NzaC1kc3MAAAABAwAAAAEDAAAAAQMAAAABAw==";
    let small = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAwEAAQ==";
    [
        ("junk".to_owned(), false),
        (format!("{}\n{}", new_key(), new_key()), false),
        (dss.to_owned(), true),
        (small.to_owned(), true),
    ]
}

#[tokio::test]
pub(super) async fn ssh_public_keys_are_validated() {
    let rig = Rig::start().await;
    let key = new_key();
    for (body, code) in [
        (json!({}), 611),
        (json!({"public_key": ""}), 611),
        (json!({"public_key": " \n"}), 611),
        (json!({"public_key": 5}), 215),
        (json!({"public_key": key, "acl": ["bind:"]}), 600),
        (
            json!({"public_key": key, "owner_id": format!("bot_{}", "0".repeat(27))}),
            634,
        ),
        (json!({"public_key": key, "owner_id": "ak_1"}), 243),
        (json!({"public_key": key, "token": "x"}), 214),
    ] {
        let answered = rig.post("/ssh_credentials", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    for (bad, _) in bad_keys() {
        let answered = rig
            .post("/ssh_credentials", json!({"public_key": bad}))
            .await;
        assert_eq!(answered.code(), Some(612), "{bad}");
    }
    let sent = format!("{key}\n");
    let body = json!({"public_key": sent, "acl": ["bind:a.example"]});
    let made = rig.post("/ssh_credentials", body).await.body();
    assert_eq!(made["public_key"], *sent);
    assert_eq!(made["owner_id"], *rig.admin.owner_id);
    let other_comment = key.replace("someone", "nobody");
    let again = json!({"public_key": other_comment});
    let answered = rig.post("/ssh_credentials", again.clone()).await;
    assert_eq!(answered.code(), Some(609));
    let stranger = rig.stranger().await;
    let answered = rig
        .call(&stranger, "POST", "/ssh_credentials", again.clone())
        .await;
    assert_eq!(answered.code(), Some(610));

    let one = format!("/ssh_credentials/{}", made["id"].as_str().unwrap());
    assert_eq!(rig.patch(&one, json!({})).await.code(), Some(606));
    let answered = rig.patch(&one, json!({"public_key": key})).await;
    assert_eq!(answered.code(), Some(214));
    assert_eq!(
        rig.patch(&one, json!({"acl": ["x"]})).await.code(),
        Some(600)
    );
    let changed = rig.patch(&one, json!({"acl": []})).await.body();
    assert_eq!(
        (&changed["acl"], &changed["public_key"]),
        (&json!([]), &json!(sent))
    );
    assert_eq!(rig.delete(&one).await, Answered::NoContent);
    let taken = rig.call(&stranger, "POST", "/ssh_credentials", again).await;
    assert!(matches!(taken, Answered::Created(_)));
}

#[tokio::test]
async fn concurrent_registrations_of_one_key_succeed_once() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    let body = json!({"public_key": new_key()});
    let (a, b, c) = tokio::join!(
        rig.post("/ssh_credentials", body.clone()),
        rig.post("/ssh_credentials", body.clone()),
        rig.call(&stranger, "POST", "/ssh_credentials", body.clone()),
    );
    let all = [a, b, c];
    let is_made = |one: &&Answered| matches!(one, Answered::Created(_));
    assert_eq!(all.iter().filter(is_made).count(), 1, "{all:?}");
    let refused = all.iter().filter(|one| !is_made(one)).map(Answered::code);
    assert!(
        refused
            .into_iter()
            .all(|code| matches!(code, Some(609 | 610)))
    );
}

#[tokio::test]
pub(super) async fn ssh_certificate_authorities_are_validated() {
    let rig = Rig::start().await;
    for (body, code) in [
        (json!({"private_key_type": "dsa"}), 1936),
        (json!({"private_key_type": "RSA"}), 1936),
        (json!({"private_key_type": "rsa", "key_size": 1024}), 1939),
        (json!({"private_key_type": "rsa", "key_size": -1}), 1939),
        (json!({"key_size": 2048}), 1940),
        (json!({"private_key_type": "ecdsa", "key_size": 2048}), 1940),
        (
            json!({"private_key_type": "ecdsa", "elliptic_curve": "p224"}),
            1941,
        ),
        (json!({"elliptic_curve": "p256"}), 1942),
        (
            json!({"private_key_type": "rsa", "elliptic_curve": "p256"}),
            1942,
        ),
        (json!({"private_key_type": "rsa", "key_size": "2048"}), 215),
        (json!({"private_key_type": "rsa", "key_size": 2048.5}), 215),
        (json!({"public_key": "x"}), 214),
    ] {
        let answered = rig.post("/ssh_certificate_authorities", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    for (body, key_type, name) in [
        (
            json!({"key_size": 0, "elliptic_curve": ""}),
            "ed25519",
            "ssh-ed25519",
        ),
        (
            json!({"private_key_type": "ed25519"}),
            "ed25519",
            "ssh-ed25519",
        ),
        (
            json!({"private_key_type": "ecdsa"}),
            "ecdsa",
            "ecdsa-sha2-nistp256",
        ),
        (
            json!({"private_key_type": "ecdsa", "elliptic_curve": "p521"}),
            "ecdsa",
            "ecdsa-sha2-nistp521",
        ),
        (json!({"private_key_type": "rsa"}), "rsa", "ssh-rsa"),
    ] {
        let made = authority(&rig, body).await;
        assert_eq!(made["key_type"], key_type);
        let line = made["public_key"].as_str().unwrap();
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!((words[0], words.len()), (name, 2));
        // The private key is in no response and, unencrypted, in no document.
        let id = made["id"].as_str().unwrap();
        let stored = rig
            .store
            .get("ssh_certificate_authority", id)
            .await
            .unwrap()
            .unwrap();
        let form: Value = serde_json::from_str(&stored.body).unwrap();
        let sealed = form["sealed_key"].as_str().unwrap();
        let text = rig.control.kernel.seal.open(id, sealed).unwrap();
        assert!(!stored.body.contains(text.reveal()) && !made.to_string().contains(sealed));
    }
}

#[tokio::test]
pub(super) async fn ssh_certificates_are_issued_or_refused() {
    let rig = Rig::start().await;
    let ca = authority(&rig, json!({})).await["id"].clone();
    let stranger = rig.stranger().await;
    let foreign = rig
        .call(&stranger, "POST", "/ssh_certificate_authorities", json!({}))
        .await
        .body()["id"]
        .clone();
    for (collection, unknown, disordered) in [
        ("/ssh_host_certificates", 1949, 1963),
        ("/ssh_user_certificates", 1951, 1962),
    ] {
        let key = new_key();
        let with = |field: &str, value: Value| {
            let mut body = json!({"ssh_certificate_authority_id": ca, "public_key": key});
            body[field] = value;
            body
        };
        let long = "x".repeat(256);
        for (body, code) in [
            (json!({"public_key": key}), 215),
            (json!({"ssh_certificate_authority_id": ca}), 1952),
            (with("public_key", json!("")), 1952),
            (
                with("ssh_certificate_authority_id", foreign.clone()),
                unknown,
            ),
            (
                with(
                    "ssh_certificate_authority_id",
                    json!(format!("sshca_{}", "0".repeat(27))),
                ),
                unknown,
            ),
            (with("ssh_certificate_authority_id", json!("ca_1")), 227),
            (
                with("ssh_certificate_authority_id", json!("not an id")),
                223,
            ),
            (with("valid_after", json!("tomorrow")), 241),
            (with("valid_after", json!("1969-12-31T23:59:59Z")), 241),
            (with("valid_until", json!("0001-01-01T00:00:00Z")), 241),
            (
                with("valid_until", json!("2027-01-15T08:00:00Z")),
                disordered,
            ),
            (
                with("valid_until", json!("2027-01-15T08:00:00.9Z")),
                disordered,
            ),
            (
                with("valid_after", json!("2262-04-11T23:47:16Z")),
                disordered,
            ),
            (with("principals", json!("a")), 215),
            (with("principals", json!([""])), 215),
            (with("principals", json!([long])), 215),
            (with("principals", json!(["a\n"])), 215),
            (with("principals", json!(vec!["a"; 257])), 215),
            (with("certificate", json!("x")), 214),
        ] {
            let answered = rig.post(collection, body.clone()).await;
            assert_eq!(answered.code(), Some(code), "{collection} {body}");
        }
        for (bad, is_read) in bad_keys() {
            let answered = rig.post(collection, with("public_key", json!(bad))).await;
            let code = if is_read { 1950 } else { 1934 };
            assert_eq!(answered.code(), Some(code), "{bad}");
        }
        let filtered = rig.get(&format!("{collection}?filter=true")).await;
        assert_eq!(filtered.code(), Some(231));

        let body = with("valid_after", json!("2027-01-15T10:00:00.5+01:00"));
        let made = rig.post(collection, body).await.body();
        assert_eq!(made["valid_after"], "2027-01-15T09:00:00Z");
        let until = if collection.contains("host") {
            "2028-01-15T09:00:00Z"
        } else {
            "2027-01-16T09:00:00Z"
        };
        assert_eq!(made["valid_until"], until);
        assert_eq!(made["public_key"], *key);
        assert_eq!(made["key_type"], "ed25519");
        assert_eq!(made["principals"], json!([]));
        let id = made["id"].as_str().unwrap();
        assert!(
            made["certificate"]
                .as_str()
                .unwrap()
                .ends_with(&format!(" {id}"))
        );

        let one = format!("/ssh_certificate_authorities/{}", ca.as_str().unwrap());
        assert_eq!(rig.delete(&one).await.code(), Some(1964));
        assert_eq!(
            rig.delete(&format!("{collection}/{id}")).await,
            Answered::NoContent
        );
    }
    let one = format!("/ssh_certificate_authorities/{}", ca.as_str().unwrap());
    assert_eq!(rig.delete(&one).await, Answered::NoContent);
}

#[tokio::test]
async fn options_of_user_certificates_are_validated() {
    let rig = Rig::start().await;
    let ca = authority(&rig, json!({})).await["id"].clone();
    let key = new_key();
    let make = |options: Value, extensions: Value| {
        rig.post(
            "/ssh_user_certificates",
            json!({
                "ssh_certificate_authority_id": ca,
                "public_key": key,
                "critical_options": options,
                "extensions": extensions,
            }),
        )
    };
    let many: Value = (0..65)
        .map(|n| (n.to_string(), json!("")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    for (options, extensions) in [
        (json!({"source-address": "10.0.0.1/8"}), json!({})),
        (json!({"source-address": ""}), json!({})),
        (json!({"force-command": ""}), json!({})),
        (json!({"": "x"}), json!({})),
        (json!({"x": 1}), json!({})),
        (json!([]), json!(["permit-pty"])),
        (json!({"x": "x".repeat(4097)}), json!({})),
        (many.clone(), json!({})),
        (json!({}), many),
    ] {
        let answered = make(options.clone(), extensions).await;
        assert_eq!(answered.code(), Some(215), "{options}");
    }
    let made = make(json!({}), json!({})).await.body();
    assert_eq!(made["critical_options"], json!({}));
    assert_eq!(
        made["extensions"],
        json!({"permit-pty": "", "permit-user-rc": ""})
    );
    let options = json!({"force-command": "true", "source-address": "10.0.0.0/8,::1", "x@y": ""});
    let extensions = json!({"permit-agent-forwarding": ""});
    let made = make(options.clone(), extensions.clone()).await.body();
    assert_eq!(
        (&made["critical_options"], &made["extensions"]),
        (&options, &extensions)
    );
}

/// Runs an installed tool; `None` if it is not installed.
fn run(tool: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(tool).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            culvert_testing::ignore(format_args!("there is no {tool} on this machine"));
            None
        }
        Err(error) => panic!("{tool}: {error}"),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn openssh_reads_and_verifies_certificates_of_every_authority() {
    let rig = Rig::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key-cert.pub");
    for body in [
        json!({"private_key_type": "rsa", "key_size": 2048}),
        json!({"private_key_type": "rsa", "key_size": 4096}),
        json!({"private_key_type": "ecdsa", "elliptic_curve": "p256"}),
        json!({"private_key_type": "ecdsa", "elliptic_curve": "p384"}),
        json!({"private_key_type": "ecdsa", "elliptic_curve": "p521"}),
        json!({"private_key_type": "ed25519"}),
    ] {
        let ca = authority(&rig, body.clone()).await;
        let with = json!({
            "ssh_certificate_authority_id": ca["id"],
            // A key of the authority's own type, so that every type is certified too.
            "public_key": ca["public_key"],
            "principals": ["web", "db"],
            "valid_until": "2027-01-17T00:00:00Z",
        });
        for (collection, role) in [
            ("ssh_host_certificates", "host"),
            ("ssh_user_certificates", "user"),
        ] {
            let made = rig
                .post(&format!("/{collection}"), with.clone())
                .await
                .body();
            std::fs::write(&file, made["certificate"].as_str().unwrap()).unwrap();
            let Some(output) = run("ssh-keygen", &["-L", "-f", text(&file)]) else {
                return;
            };
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            let id = made["id"].as_str().unwrap();
            assert!(output.status.success(), "{body} {output:?}");
            for part in [
                format!("{role} certificate"),
                format!("Key ID: \"{id}\""),
                "Serial: 0".to_owned(),
                "web".to_owned(),
                "db".to_owned(),
            ] {
                assert!(shown.contains(&part), "{part}: {shown}");
            }
            assert_eq!(shown.contains("permit-pty"), role == "user", "{shown}");

            // Flipping one bit of the signature must be enough for a refusal.
            let line = made["certificate"].as_str().unwrap();
            let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let mut bytes = STANDARD.decode(&words[1]).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            words[1] = STANDARD.encode(bytes);
            std::fs::write(&file, words.join(" ")).unwrap();
            let output = run("ssh-keygen", &["-L", "-f", text(&file)]).unwrap();
            assert!(!output.status.success(), "{output:?}");
        }
    }
}

/// A server that is killed when the test ends.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test]
async fn a_stock_ssh_server_accepts_issued_certificates() {
    let sshd = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].map(PathBuf::from);
    let Some(sshd) = sshd.into_iter().find(|path| path.exists()) else {
        culvert_testing::ignore("there is no sshd on this machine");
        return;
    };
    let rig = Rig::start().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["host", "user"] {
        let path = at(name);
        let arguments = ["-q", "-t", "ed25519", "-N", "", "-f", text(&path)];
        if run("ssh-keygen", &arguments).is_none() {
            return;
        }
    }
    let Some(me) = run("id", &["-un"]) else {
        return;
    };
    let me = String::from_utf8(me.stdout).unwrap().trim().to_owned();
    let mut authorities = Vec::new();
    for body in [
        json!({"private_key_type": "rsa"}),
        json!({"private_key_type": "ecdsa", "elliptic_curve": "p256"}),
        json!({"private_key_type": "ecdsa", "elliptic_curve": "p384"}),
        json!({"private_key_type": "ecdsa", "elliptic_curve": "p521"}),
        json!({"private_key_type": "ed25519"}),
    ] {
        authorities.push(authority(&rig, body).await);
    }
    let certify = async |ca: &Value, role: &str, file: &str, more: Value| {
        let mut body = json!({
            "ssh_certificate_authority_id": ca["id"],
            "public_key": std::fs::read_to_string(at(role).with_extension("pub")).unwrap(),
            "valid_after": "2020-01-01T00:00:00Z",
            "valid_until": "2100-01-01T00:00:00Z",
        });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let made = rig.post(&format!("/ssh_{role}_certificates"), body).await;
        std::fs::write(at(file), made.body()["certificate"].as_str().unwrap()).unwrap();
    };
    let forced = json!({
        "principals": [me],
        "critical_options": {"force-command": "echo forced", "source-address": "127.0.0.0/8"},
    });
    let other = json!({"principals": ["somebody-else"]});
    let mut wanted = vec![("forced".to_owned(), "forced\n"), ("other".to_owned(), "")];
    certify(&authorities[0], "host", "host-cert.pub", json!({})).await;
    certify(&authorities[1], "user", "forced", forced).await;
    certify(&authorities[2], "user", "other", other).await;
    let mut trusted = String::new();
    let mut known = String::new();
    for (n, ca) in authorities.iter().enumerate() {
        let file = format!("user-{n}");
        certify(ca, "user", &file, json!({"principals": [me]})).await;
        wanted.push((file, "hello\n"));
        let line = ca["public_key"].as_str().unwrap();
        trusted.push_str(&format!("{line}\n"));
        known.push_str(&format!("@cert-authority * {line}\n"));
    }
    std::fs::write(at("ca.pub"), trusted).unwrap();
    std::fs::write(at("known"), known).unwrap();

    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {host}\nHostCertificate {host}-cert.pub\n\
         TrustedUserCAKeys {ca}\nAuthorizedKeysFile none\nPasswordAuthentication no\n\
         KbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPidFile none\n\
         PermitRootLogin yes\n",
        host = text(&at("host")),
        ca = text(&at("ca.pub")),
    );
    std::fs::write(at("config"), config).unwrap();
    let check = run(text(&sshd), &["-t", "-f", text(&at("config"))]).unwrap();
    if !check.status.success() {
        let why = String::from_utf8_lossy(&check.stderr);
        culvert_testing::ignore(format_args!("sshd does not start here: {}", why.trim()));
        return;
    }
    let log = std::fs::File::create(at("log")).unwrap();
    let server = Command::new(&sshd)
        .args(["-D", "-e", "-f", text(&at("config"))])
        .stderr(log)
        .spawn()
        .unwrap();
    let _server = Server(server);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(std::time::Instant::now() < deadline, "sshd does not listen");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let log_in = |certificate: &str| {
        let options = [
            format!("CertificateFile={}", text(&at(certificate))),
            format!("UserKnownHostsFile={}", text(&at("known"))),
            "GlobalKnownHostsFile=none".to_owned(),
            "StrictHostKeyChecking=yes".to_owned(),
            "IdentitiesOnly=yes".to_owned(),
            "BatchMode=yes".to_owned(),
            "ConnectTimeout=20".to_owned(),
        ];
        let mut command = Command::new("ssh");
        command.args([
            "-F",
            "none",
            "-p",
            &port.to_string(),
            "-i",
            text(&at("user")),
        ]);
        for option in &options {
            command.args(["-o", option]);
        }
        command.args([&format!("{me}@127.0.0.1"), "echo hello"]);
        command.output().unwrap()
    };
    for (certificate, said) in wanted {
        let output = log_in(&certificate);
        let log = std::fs::read_to_string(at("log")).unwrap_or_default();
        let is_in = output.status.success();
        assert_eq!(is_in, !said.is_empty(), "{certificate} {output:?} {log}");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(stdout, said, "{certificate} {log}");
    }
}

#[tokio::test]
async fn the_host_key_is_generated_once_and_stored_encrypted() {
    let rig = Rig::start().await;
    let seed = rig.control.certificates.ssh_host_seed().await.unwrap();
    assert_eq!(
        rig.control.certificates.ssh_host_seed().await.unwrap(),
        seed
    );
    assert_ne!(*seed, [0; 32]);
    let documents = rig.store.documents_after("", 10_000).await.unwrap();
    let kept: Vec<_> = documents
        .iter()
        .filter(|document| document.head.kind == "ssh_host_key")
        .collect();
    assert_eq!(kept.len(), 1);
    let plain = STANDARD.encode(*seed);
    assert!(!kept[0].body.contains(&plain));
}
