//! Certificate authorities and TLS certificates: the parsed fields, and every invalid input.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SerialNumber,
};

use super::*;

/// A CA certificate, PEM.
pub(super) fn authority(name: &str) -> String {
    make_authority(name).0
}

/// The body of a TLS certificate for a name, or for several separated by commas.
pub(super) fn leaf(name: &str) -> Value {
    let key = KeyPair::generate().unwrap();
    let names: Vec<_> = name.split(',').map(str::to_owned).collect();
    let params = CertificateParams::new(names).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    json!({"certificate_pem": certificate.pem(), "private_key_pem": key.serialize_pem()})
}

fn make_authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(1990, 1, 2);
    params.not_after = rcgen::date_time_ymd(2000, 1, 2);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (pem, Issuer::new(params, key))
}

fn with_headers(pem: &str) -> String {
    pem.replacen("-----\n", "-----\nX-Note: y\n\n", 1)
}

fn wrapped(label: &str, data: &str) -> String {
    format!("-----BEGIN {label}-----\n{data}\n-----END {label}-----\n")
}

#[tokio::test]
pub(super) async fn certificate_authorities_are_validated() {
    let rig = Rig::start().await;
    let pem = authority("old root");
    let key = KeyPair::generate().unwrap().serialize_pem();
    let certificate = leaf("a.example")["certificate_pem"].clone();
    for (sent, code) in [
        (json!(""), 1919),
        (json!(null), 1919),
        (json!("hello"), 1920),
        (json!(pem.trim_end().trim_end_matches('-')), 1920),
        (json!(wrapped("CERTIFICATE", "????")), 1920),
        (json!(key), 1911),
        (json!(format!("{pem}{key}")), 1911),
        (json!("-----BEGIN PRIVATE KEY-----\nAAAA"), 1911),
        (json!(wrapped("X509 CRL", "AAAA")), 1911),
        (json!(with_headers(&pem)), 1910),
        (json!(format!("{pem}{pem}")), 1912),
        (certificate, 1913),
        (
            json!(format!("{pem}{}", " ".repeat(16 * 1024 + 1 - pem.len()))),
            1921,
        ),
        (json!(wrapped("CERTIFICATE", "")), 1900),
        (json!(wrapped("CERTIFICATE", "AAAA")), 1900),
        (json!(5), 215),
    ] {
        let answered = rig
            .post("/certificate_authorities", json!({"ca_pem": sent}))
            .await;
        assert_eq!(answered.code(), Some(code), "{sent}");
    }
    assert_eq!(
        rig.post("/certificate_authorities", json!({})).await.code(),
        Some(1919)
    );
    // The longest PEM is accepted, with text around it, and shown as sent.
    let note = "a note\r\n";
    let longest = format!(
        "{note}{pem}{}",
        " ".repeat(16 * 1024 - pem.len() - note.len())
    );
    let made = rig
        .post("/certificate_authorities", json!({"ca_pem": longest}))
        .await
        .body();
    assert_eq!(made["ca_pem"], *longest);
    assert_eq!(made["subject_common_name"], "old root");
    assert_eq!(made["not_before"], "1990-01-02T00:00:00Z");
    assert_eq!(made["not_after"], "2000-01-02T00:00:00Z");
    assert_eq!(made["key_usages"], json!(["cert_sign", "crl_sign"]));
    assert_eq!(made["extended_key_usages"], json!([]));
    let one = format!("/certificate_authorities/{}", made["id"].as_str().unwrap());
    assert_eq!(rig.patch(&one, json!({})).await.body(), made);
    let renewed = rig.patch(&one, json!({"ca_pem": pem})).await;
    assert_eq!(renewed.code(), Some(214));
    let filter = "obj.subject_common_name == 'old root' && obj.not_after < timestamp(time.now)";
    let found = format!("/certificate_authorities?filter={}", encoded(filter));
    let found = rig.get(&found).await.body();
    assert_eq!(found["certificate_authorities"], json!([made]));
}

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

#[tokio::test]
async fn tls_certificates_show_their_fields_and_never_the_key() {
    let rig = Rig::start().await;
    let (root, issuer) = make_authority("root");
    let names = ["a.example", "*.b.example", "10.0.0.1", "::1"];
    let mut params = CertificateParams::new(names.map(String::from)).unwrap();
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    params.not_before = rcgen::date_time_ymd(2020, 2, 29);
    params.serial_number = Some(SerialNumber::from_slice(&[0x04, 0xce, 0x0f]));
    params.key_usages = vec![
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::DecipherOnly,
    ];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::Other(vec![1, 2, 3, 4]),
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 6]),
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    let mut name = rcgen::DistinguishedName::new();
    for (kind, text) in [
        (DnType::CommonName, "a"),
        (DnType::OrganizationName, "o"),
        (DnType::OrganizationalUnitName, "ou"),
        (DnType::LocalityName, "l"),
        (DnType::StateOrProvinceName, "st"),
        (DnType::CountryName, "CH"),
    ] {
        name.push(kind, text);
    }
    params.distinguished_name = name;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let chain = format!("{}{root}", certificate.pem());
    let body = json!({"certificate_pem": chain, "private_key_pem": key.serialize_pem()});
    let made = rig.post("/tls_certificates", body).await.body();
    for (field, value) in [
        ("certificate_pem", json!(chain)),
        ("subject_common_name", json!("a")),
        ("subject_organization", json!("o")),
        ("subject_organizational_unit", json!("ou")),
        ("subject_locality", json!("l")),
        ("subject_province", json!("st")),
        ("subject_country", json!("CH")),
        ("issuer_common_name", json!("root")),
        ("serial_number", json!("04ce0f")),
        ("not_before", json!("2020-02-29T00:00:00Z")),
        ("not_after", json!("9999-12-31T00:00:00Z")),
        ("issued_at", Value::Null),
        ("private_key_type", json!("ecdsa")),
        (
            "key_usages",
            json!(["digital_signature", "key_encipherment", "decipher_only"]),
        ),
        (
            "extended_key_usages",
            json!(["server_auth", "client_auth", "ipsec_tunnel", "1.2.3.4"]),
        ),
        (
            "subject_alternative_names",
            json!({"dns_names": ["a.example", "*.b.example"], "ips": ["10.0.0.1", "::1"]}),
        ),
    ] {
        assert_eq!(made[field], value, "{field}");
    }

    // The key is stored only in encrypted form, and appears nowhere else.
    let id = made["id"].as_str().unwrap();
    let secret = key.serialize_pem();
    let secret = secret.lines().nth(1).unwrap();
    let document = rig.store.get("tls_certificate", id).await.unwrap();
    let document = document.unwrap().body;
    let (reported, _) = rig.events_after(0).await;
    for text in [
        &document,
        &made.to_string(),
        &Value::from(reported).to_string(),
    ] {
        assert!(!text.contains(secret) && !text.contains("PRIVATE KEY"));
        assert!(!text.contains("private_key_pem"));
    }

    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let params = CertificateParams::new(vec!["e.example".to_owned()]).unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let body = json!({"certificate_pem": pem, "private_key_pem": key.serialize_pem()});
    let made = rig.post("/tls_certificates", body).await.body();
    assert_eq!(made["private_key_type"], "ed25519");
}

#[tokio::test]
pub(super) async fn invalid_tls_certificates_are_refused() {
    let rig = Rig::start().await;
    let good = leaf("a.example");
    let pem = good["certificate_pem"].as_str().unwrap();
    let key = good["private_key_pem"].as_str().unwrap();
    let other = leaf("b.example");
    let other_key = other["private_key_pem"].as_str().unwrap();
    let unrelated = format!("{pem}{}", authority("another"));
    let long = format!("{pem}{}", " ".repeat(64 * 1024 + 1 - pem.len()));
    let curve = wrapped("EC PARAMETERS", "AAAA");
    for (chain, key, code) in [
        ("", key, 1922),
        ("hello", key, 1922),
        (key, key, 1925),
        (&format!("{pem}{key}"), key, 1925),
        ("-----BEGIN RSA PRIVATE KEY-----\nAAAA", key, 1925),
        (&long, key, 1921),
        (&wrapped("X509 CRL", "AAAA"), key, 1911),
        (&with_headers(pem), key, 1910),
        (&wrapped("CERTIFICATE", "AAAA"), key, 1900),
        (&wrapped("CERTIFICATE", "?"), key, 1900),
        (&unrelated, key, 1926),
        (pem, "", 1901),
        (pem, "hello", 1901),
        (pem, &curve, 1901),
        (pem, &wrapped("PUBLIC KEY", "AAAA"), 1901),
        (pem, pem, 1924),
        (pem, &format!("{key}{pem}"), 1924),
        (pem, &wrapped("ENCRYPTED PRIVATE KEY", "AAAA"), 1902),
        (
            pem,
            &wrapped(
                "RSA PRIVATE KEY",
                "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA",
            ),
            1902,
        ),
        (pem, &wrapped("DSA PRIVATE KEY", "AAAA"), 1903),
        (pem, &wrapped("PRIVATE KEY", "AAAA"), 1903),
        (pem, &wrapped("PRIVATE KEY", "?"), 1903),
        (pem, &wrapped("RSA PRIVATE KEY", "AAAA"), 1903),
        (pem, &wrapped("EC PRIVATE KEY", "AAAA"), 1903),
        (pem, &format!("{key}{other_key}"), 1903),
        (pem, &"x".repeat(16 * 1024 + 1), 1903),
        (pem, other_key, 1923),
    ] {
        let body = json!({"certificate_pem": chain, "private_key_pem": key});
        let answered = rig.post("/tls_certificates", body).await;
        let Answered::Refused(_, found, message) = answered else {
            panic!("{code} {answered:?}");
        };
        assert_eq!(found, Some(code), "{message}");
        // A message never quotes the input.
        assert!(!message.contains("AAAA") && !message.contains("BEGIN"));
    }
    // Tools write the curve before the key.
    let body = json!({"certificate_pem": pem, "private_key_pem": format!("{curve}{key}")});
    rig.post("/tls_certificates", body).await.body();
}

/// Keys in older formats, as tools write them.
#[tokio::test]
async fn private_keys_of_every_form_are_accepted() {
    let rig = Rig::start().await;
    for (name, kind) in [
        ("rsa_pkcs1", "rsa"),
        ("rsa_pkcs8", "rsa"),
        ("ecdsa_sec1", "ecdsa"),
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/pem");
        let read = |end: &str| std::fs::read_to_string(format!("{folder}/{name}.{end}")).unwrap();
        let body = json!({"certificate_pem": read("crt"), "private_key_pem": read("key")});
        let made = rig.post("/tls_certificates", body).await.body();
        assert_eq!(made["private_key_type"], kind, "{name}");
    }
}
