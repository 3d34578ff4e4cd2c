use culvert_base::{Clock, SeededEntropy};
use proptest::prelude::*;
use ssh_key::certificate::CertType;

use super::*;

const SPECS: [Spec; 6] = [
    Spec::Rsa2048,
    Spec::Rsa4096,
    Spec::P256,
    Spec::P384,
    Spec::P521,
    Spec::Ed25519,
];

fn key(spec: Spec) -> SigningKey {
    SigningKey::generate(spec).unwrap()
}

/// A public key line with this algorithm and these fields.
fn line(name: &str, fields: &[&[u8]]) -> String {
    let mut wire = Wire::default();
    wire.text(name);
    for field in fields {
        wire.bytes(field);
    }
    format!("{name} {}", STANDARD.encode(wire.0))
}

#[test]
fn generated_keys_are_stored_and_read_back() {
    for spec in SPECS {
        let key = key(spec);
        let again = SigningKey::from_text(key.algorithm(), &key.to_text().unwrap()).unwrap();
        assert_eq!(again.public_line(), key.public_line());
        let read = PublicKey::parse(&key.public_line()).unwrap();
        assert_eq!(read.algorithm, key.algorithm());
        assert!(key.blob().ends_with(&read.fields));
        let commented = PublicKey::parse(&format!("{} me@home again\n", key.public_line()));
        assert_eq!(commented.unwrap(), read);
    }
    let other = Secret::new("AAAA".to_owned());
    assert!(SigningKey::from_text(Algorithm::P256, &other).is_err());
    let ed25519 = key(Spec::Ed25519).to_text().unwrap();
    assert!(SigningKey::from_text(Algorithm::Rsa, &ed25519).is_err());
}

#[test]
fn certificates_have_the_requested_fields_for_an_independent_parser() {
    let clock = culvert_base::ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
    let flags = BTreeMap::from([
        ("permit-pty".to_owned(), String::new()),
        ("a@x.example".to_owned(), "b".to_owned()),
    ]);
    let authority = key(Spec::Ed25519);
    let subjects = SPECS.map(|spec| PublicKey::parse(&key(spec).public_line()).unwrap());
    for (role, expected) in [(Role::User, CertType::User), (Role::Host, CertType::Host)] {
        for subject in &subjects {
            let certificate = Certificate {
                role,
                key_id: "shcrt_1",
                key: subject,
                principals: &["a".to_owned(), "b".to_owned()],
                valid_after: clock.now(),
                valid_until: Timestamp::from_unix_seconds(1_900_000_000),
                critical_options: &BTreeMap::new(),
                extensions: &flags,
            };
            let entropy = SeededEntropy::new(7);
            let line = certificate.signed(&authority, &entropy).unwrap();
            let read = ssh_key::Certificate::from_openssh(&line).unwrap();
            assert_eq!(read.cert_type(), expected);
            assert_eq!((read.key_id(), read.serial()), ("shcrt_1", 0));
            assert_eq!(read.comment(), "shcrt_1");
            let nonce: [u8; 32] = (&SeededEntropy::new(7) as &dyn Entropy).bytes();
            assert_eq!(read.nonce(), nonce);
            assert_eq!(read.valid_principals(), ["a", "b"]);
            assert_eq!(read.valid_after(), 1_800_000_000);
            assert_eq!(read.valid_before(), 1_900_000_000);
            assert!(read.critical_options().is_empty());
            let names: Vec<_> = read.extensions().keys().collect();
            assert_eq!(names, ["a@x.example", "permit-pty"]);
            let signer = ssh_key::PublicKey::from_openssh(&authority.public_line()).unwrap();
            assert_eq!(read.signature_key(), signer.key_data());
        }
    }
}

#[test]
fn malformed_public_keys_are_refused() {
    let good = key(Spec::Ed25519).public_line();
    let point = |first: u8| {
        let mut point = vec![1; 65];
        point[0] = first;
        line("ecdsa-sha2-nistp256", &[b"nistp256", &point])
    };
    let rsa = |exponent: &[u8], n_bytes: usize, last: u8| {
        let mut modulus = vec![0x7f; n_bytes];
        modulus[n_bytes - 1] = last;
        line("ssh-rsa", &[exponent, &modulus])
    };
    for (line, bad) in [
        (String::new(), BadKey::Unreadable),
        (" \n".to_owned(), BadKey::Unreadable),
        ("ssh-ed25519".to_owned(), BadKey::Unreadable),
        ("ssh-ed25519 AAAA".to_owned(), BadKey::Unreadable),
        ("ssh-ed25519 ????".to_owned(), BadKey::Unreadable),
        (good.replace("ssh-ed25519", "ssh-rsa"), BadKey::Unreadable),
        (format!("no-pty {good}"), BadKey::Unreadable),
        (format!("{good}\n{good}"), BadKey::Unreadable),
        (format!("{good} \0"), BadKey::Unreadable),
        (format!("{good} {}", "x".repeat(8192)), BadKey::Unreadable),
        (line("ssh-ed25519", &[&[1; 31]]), BadKey::Unreadable),
        (line("ssh-ed25519", &[&[1; 32], &[1]]), BadKey::Unreadable),
        // A point off the curve, and one in compressed form.
        (point(4), BadKey::Unreadable),
        (
            line("ecdsa-sha2-nistp256", &[b"nistp256", &[2; 33]]),
            BadKey::Unreadable,
        ),
        (
            line("ecdsa-sha2-nistp256", &[b"nistp384", &[4; 97]]),
            BadKey::Unreadable,
        ),
        (rsa(&[1, 0, 1], 128, 1), BadKey::Size),
        (rsa(&[1, 0, 1], 2049, 1), BadKey::Size),
        (rsa(&[1, 0, 1], 257, 2), BadKey::Unreadable),
        (rsa(&[1], 257, 1), BadKey::Unreadable),
        (rsa(&[2], 257, 1), BadKey::Unreadable),
        (rsa(&[3; 9], 257, 1), BadKey::Unreadable),
        (rsa(&[0x80], 257, 1), BadKey::Unreadable),
        (line("ssh-dss", &[&[3], &[3], &[3], &[3]]), BadKey::Kind),
        (
            line("sk-ssh-ed25519@openssh.com", &[&[1; 32], b"ssh:"]),
            BadKey::Kind,
        ),
        (line("new-kind@x.example", &[&[1; 32]]), BadKey::Kind),
    ] {
        assert_eq!(PublicKey::parse(&line).unwrap_err(), bad, "{line}");
    }
    // A length that points far beyond the end.
    let beyond = format!("ssh-ed25519 {}", STANDARD.encode([0xff; 40]));
    assert_eq!(PublicKey::parse(&beyond), Err(BadKey::Unreadable));
    assert!(PublicKey::parse(&rsa(&[1, 0, 1], 256, 1).replace("ssh-rsa ", "ssh-rsa  ")).is_err());
    assert_eq!(
        PublicKey::parse(&rsa(&[1, 0, 1], 257, 1))
            .unwrap()
            .algorithm,
        Algorithm::Rsa
    );
}

#[test]
fn numbers_and_options_are_encoded_like_openssh() {
    let number = |bytes: &[u8]| {
        let mut wire = Wire::default();
        wire.number(bytes);
        wire.0
    };
    assert_eq!(number(&[]), [0, 0, 0, 0]);
    assert_eq!(number(&[0, 0]), [0, 0, 0, 0]);
    assert_eq!(number(&[0, 0x7f]), [0, 0, 0, 1, 0x7f]);
    assert_eq!(number(&[0x80]), [0, 0, 0, 2, 0, 0x80]);
    let written = options(&BTreeMap::from([
        ("b".to_owned(), "v".to_owned()),
        ("a".to_owned(), String::new()),
    ]));
    let expected = b"\0\0\0\x01a\0\0\0\0\0\0\0\x01b\0\0\0\x05\0\0\0\x01v";
    assert_eq!(written, expected);
}

proptest! {
    #[test]
    fn any_line_is_parsed_as_a_key_or_refused(
        name in "ssh-rsa|ssh-ed25519|ssh-dss|ecdsa-sha2-nistp(256|384|521)|\\PC{0,20}",
        fields in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..4),
        tail in "\\PC{0,20}",
    ) {
        let fields: Vec<&[u8]> = fields.iter().map(Vec::as_slice).collect();
        let text = line(&name, &fields);
        for text in [format!("{text} {tail}"), format!("{name} {tail}"), tail] {
            if let Ok(key) = PublicKey::parse(&text) {
                prop_assert!(key.fingerprint.starts_with("SHA256:"));
            }
        }
    }
}
