//! Uploaded certificates and keys: parses PEM and the X.509 content.
//!
//! All input is untrusted. The length of a text is limited to 64 KiB here, and further by each resource.
//! Invalid input is refused with a message, and no type of this file keeps or shows a private key.
//!
//! Each resource decides which sections and certificates it accepts.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::text::hex;
use culvert_base::{Refusal, code};
use rustls::SignatureAlgorithm;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::SigningKey;
use rustls_pki_types::PrivateKeyDer;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{
    ASN1Time, AttributeTypeAndValue, FromDer, GeneralName, SubjectPublicKeyInfo, X509Certificate,
};
use zeroize::Zeroizing;

/// Label of a certificate section.
pub(crate) const CERTIFICATE: &str = "CERTIFICATE";

/// Longest text that is parsed, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Longest accepted private key, PEM, in bytes.
const KEY_BYTES_MAX: usize = 16 * 1024;

/// One `BEGIN` … `END` part of a PEM text.
pub(crate) struct Section {
    /// The label after `BEGIN`, such as `CERTIFICATE`.
    pub label: String,
    /// Whether lines such as `Proc-Type: …` come before the data.
    pub(crate) has_headers: bool,
    /// The data; zeroed when dropped, since it may be a key.
    pub der: Zeroizing<Vec<u8>>,
}

impl Section {
    /// Whether it holds a private key of any format.
    pub(crate) fn is_key(&self) -> bool {
        is_key_label(&self.label)
    }
}

/// The sections of a PEM text in order, ignoring text around them. `None` if a section does not end, ends
/// with another label, or holds anything but base64, or if the text is too long.
pub(crate) fn sections(text: &str) -> Option<Vec<Section>> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let mut sections = Vec::new();
    let mut open: Option<Open<'_>> = None;
    for line in text.lines().map(str::trim) {
        match &mut open {
            None => {
                if let Some(label) = marker(line, "-----BEGIN ") {
                    open = Some(Open {
                        label,
                        headers: Headers::Perhaps,
                        data: Zeroizing::new(String::with_capacity(text.len())),
                    });
                }
            }
            Some(section) => match marker(line, "-----END ") {
                Some(label) if label == section.label => {
                    let der = Zeroizing::new(STANDARD.decode(section.data.as_bytes()).ok()?);
                    sections.push(Section {
                        label: label.to_owned(),
                        has_headers: section.headers == Headers::Were,
                        der,
                    });
                    open = None;
                }
                Some(_) => return None,
                None => section.take(line),
            },
        }
    }
    open.is_none().then_some(sections)
}

/// Whether a text starts a private key section, complete or not.
pub(crate) fn names_a_key(text: &str) -> bool {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("-----BEGIN "))
        .any(|rest| is_key_label(rest.trim_end_matches('-')))
}

fn is_key_label(label: &str) -> bool {
    label.ends_with("PRIVATE KEY")
}

fn marker<'t>(line: &'t str, begin: &str) -> Option<&'t str> {
    line.strip_prefix(begin)?.strip_suffix("-----")
}

/// A section whose end was not read yet.
struct Open<'t> {
    label: &'t str,
    headers: Headers,
    data: Zeroizing<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Headers {
    /// Only the first line was read.
    Perhaps,
    /// Inside the headers, which end at an empty line.
    Are,
    Were,
    None,
}

impl Open<'_> {
    fn take(&mut self, line: &str) {
        match self.headers {
            Headers::Perhaps if line.contains(':') => self.headers = Headers::Are,
            Headers::Are if line.is_empty() => self.headers = Headers::Were,
            Headers::Are => {}
            Headers::Perhaps if line.is_empty() => {}
            Headers::Perhaps => {
                self.headers = Headers::None;
                self.data.push_str(line);
            }
            Headers::Were | Headers::None => self.data.push_str(line),
        }
    }
}

/// The refusal of a certificate that cannot be parsed.
pub fn unreadable(why: &str) -> Refusal {
    Refusal::new(
        code::CERTIFICATE_UNREADABLE,
        format!("The certificate cannot be parsed: {why}."),
    )
}

/// Parses one certificate, DER.
pub fn parse(der: &[u8]) -> Result<X509Certificate<'_>, Refusal> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(unreadable("data follows the certificate")),
        Err(_) => Err(unreadable("it is not an X.509 certificate")),
    }
}

/// The fields that the views of all certificates show.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Summary {
    pub(crate) subject_common_name: String,
    /// RFC 3339. Not a timestamp: certificates may be valid until the year 9999.
    pub not_before: String,
    pub not_after: String,
    pub key_usages: Vec<String>,
    pub extended_key_usages: Vec<String>,
}

impl Summary {
    /// Summarises a certificate. Refused if an extension cannot be parsed.
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Result<Self, Refusal> {
        let validity = certificate.validity();
        Ok(Self {
            subject_common_name: first_text(certificate.subject().iter_common_name()),
            not_before: moment(validity.not_before),
            not_after: moment(validity.not_after),
            key_usages: key_usages(certificate)?,
            extended_key_usages: extended_key_usages(certificate)?,
        })
    }
}

/// Further fields that the view of a server certificate shows.
#[derive(Debug, Deserialize, Serialize)]
pub struct Names {
    pub(crate) issuer_common_name: String,
    pub(crate) subject_organization: String,
    pub(crate) subject_organizational_unit: String,
    pub(crate) subject_locality: String,
    pub(crate) subject_province: String,
    pub(crate) subject_country: String,
    pub(crate) dns_names: Vec<String>,
    pub(crate) ips: Vec<String>,
    /// Serial number, as the API shows it.
    pub serial_number: String,
}

impl Names {
    /// Reads the names of a certificate. Refused if its alternative names cannot be parsed.
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Result<Self, Refusal> {
        let alternatives = certificate
            .subject_alternative_name()
            .map_err(|_| unreadable("its alternative names are malformed"))?;
        let alternatives = alternatives.map_or(&[][..], |found| &found.value.general_names);
        let mut dns_names = Vec::new();
        let mut ips = Vec::new();
        for name in alternatives {
            match name {
                GeneralName::DNSName(name) => dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => ips.extend(address(bytes)),
                _ => {}
            }
        }
        let subject = certificate.subject();
        Ok(Self {
            issuer_common_name: first_text(certificate.issuer().iter_common_name()),
            subject_organization: first_text(subject.iter_organization()),
            subject_organizational_unit: first_text(subject.iter_organizational_unit()),
            subject_locality: first_text(subject.iter_locality()),
            subject_province: first_text(subject.iter_state_or_province()),
            subject_country: first_text(subject.iter_country()),
            dns_names,
            ips,
            serial_number: serial(certificate.raw_serial()),
        })
    }
}

/// Whether the basic constraints mark a CA certificate.
pub(crate) fn is_authority(certificate: &X509Certificate<'_>) -> Result<bool, Refusal> {
    let constraints = certificate
        .basic_constraints()
        .map_err(|_| unreadable("its basic constraints are malformed"))?;
    Ok(constraints.is_some_and(|found| found.value.ca))
}

/// The first value of an attribute; empty if there is none or it uses a legacy character set.
fn first_text<'n>(mut values: impl Iterator<Item = &'n AttributeTypeAndValue<'n>>) -> String {
    let text = values.next().and_then(|value| value.as_str().ok());
    text.unwrap_or_default().to_owned()
}

fn moment(at: ASN1Time) -> String {
    let at = at.to_datetime();
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let (hour, minute, second) = at.to_hms();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// In the order of their bits.
const KEY_USAGES: [&str; 9] = [
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
];

fn key_usages(certificate: &X509Certificate<'_>) -> Result<Vec<String>, Refusal> {
    let usage = certificate
        .key_usage()
        .map_err(|_| unreadable("its key usage is malformed"))?;
    let flags = usage.map_or(0, |found| found.value.flags);
    let named = KEY_USAGES.iter().enumerate();
    let set = named.filter(|(bit, _)| (flags >> bit) & 1 == 1);
    Ok(set.map(|(_, name)| (*name).to_owned()).collect())
}

/// Extended key usages that have a name but no flag in the parser.
const OTHER_USAGES: [(&str, &str); 3] = [
    ("1.3.6.1.5.5.7.3.5", "ipsec_end_system"),
    ("1.3.6.1.5.5.7.3.6", "ipsec_tunnel"),
    ("1.3.6.1.5.5.7.3.7", "ipsec_user"),
];

fn extended_key_usages(certificate: &X509Certificate<'_>) -> Result<Vec<String>, Refusal> {
    let usage = certificate
        .extended_key_usage()
        .map_err(|_| unreadable("its extended key usage is malformed"))?;
    let Some(usage) = usage.map(|found| found.value) else {
        return Ok(Vec::new());
    };
    let others: Vec<String> = usage.other.iter().map(|oid| oid.to_id_string()).collect();
    let has = |oid: &str| others.iter().any(|other| other == oid);
    let [end_system, tunnel, user] = OTHER_USAGES.map(|(oid, name)| (has(oid), name));
    let named = [
        (usage.any, "any"),
        (usage.server_auth, "server_auth"),
        (usage.client_auth, "client_auth"),
        (usage.code_signing, "code_signing"),
        (usage.email_protection, "email_protection"),
        end_system,
        tunnel,
        user,
        (usage.time_stamping, "time_stamping"),
        (usage.ocsp_signing, "ocsp_signing"),
    ];
    let named = named.into_iter().filter(|(is_set, _)| *is_set);
    let mut usages: Vec<String> = named.map(|(_, name)| name.to_owned()).collect();
    let has_name = |other: &String| OTHER_USAGES.iter().any(|(oid, _)| oid == other);
    usages.extend(others.iter().filter(|other| !has_name(other)).cloned());
    Ok(usages)
}

fn address(bytes: &[u8]) -> Option<String> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(bytes).to_string());
    }
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(Ipv6Addr::from(bytes).to_string())
}

/// Two lower-case hex digits per byte. Omits the leading zero byte that only keeps the number positive.
fn serial(bytes: &[u8]) -> String {
    let bytes = match bytes {
        [0, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    hex(bytes)
}

/// The name of a private key's type in views.
pub fn key_type(key: &dyn SigningKey) -> Option<&'static str> {
    match key.algorithm() {
        SignatureAlgorithm::RSA => Some("rsa"),
        SignatureAlgorithm::ECDSA => Some("ecdsa"),
        SignatureAlgorithm::ED25519 => Some("ed25519"),
        _ => None,
    }
}

/// Whether the certificate has the public key of this key.
pub(crate) fn is_for(certificate: &X509Certificate<'_>, key: &dyn SigningKey) -> bool {
    let Some(info) = key.public_key() else {
        return false;
    };
    let info = SubjectPublicKeyInfo::from_der(&info);
    info.is_ok_and(|(_, info)| {
        info.subject_public_key.data == certificate.public_key().subject_public_key.data
    })
}

/// Parses the one private key of a PEM text. No refusal quotes the text.
pub(crate) fn private_key(pem: &str) -> Result<Arc<dyn SigningKey>, Refusal> {
    if pem.len() > KEY_BYTES_MAX {
        return Err(Refusal::new(
            code::PRIVATE_KEY_UNSUPPORTED,
            format!("`private_key_pem` is longer than {KEY_BYTES_MAX} bytes."),
        ));
    }
    let mut sections = sections(pem).ok_or_else(|| {
        Refusal::new(
            code::PRIVATE_KEY_UNSUPPORTED,
            "`private_key_pem` is not well-formed PEM: a section has no end line or is not Base64.",
        )
    })?;
    // Tools write the curve before the key, but the key names it too.
    sections.retain(|section| section.label != "EC PARAMETERS");
    let section = match sections.as_slice() {
        [] => return Err(Refusal::of(code::PRIVATE_KEY_MISSING)),
        all if all.iter().any(|one| one.label == CERTIFICATE) => {
            return Err(Refusal::of(code::PRIVATE_KEY_PEM_WITH_CERTIFICATE));
        }
        [one] => one,
        _ => {
            return Err(Refusal::new(
                code::PRIVATE_KEY_UNSUPPORTED,
                "`private_key_pem` must contain exactly one private key.",
            ));
        }
    };
    if section.has_headers || section.label == "ENCRYPTED PRIVATE KEY" {
        return Err(Refusal::of(code::PRIVATE_KEY_ENCRYPTED));
    }
    if !section.is_key() {
        return Err(Refusal::of(code::PRIVATE_KEY_MISSING));
    }
    let der = section.der.as_slice();
    let key = match section.label.as_str() {
        "RSA PRIVATE KEY" => PrivateKeyDer::Pkcs1(der.into()),
        "EC PRIVATE KEY" => PrivateKeyDer::Sec1(der.into()),
        "PRIVATE KEY" => PrivateKeyDer::Pkcs8(der.into()),
        _ => return Err(Refusal::of(code::PRIVATE_KEY_UNSUPPORTED)),
    };
    let key = any_supported_type(&key).map_err(|_| Refusal::of(code::PRIVATE_KEY_UNSUPPORTED))?;
    match key_type(&*key) {
        Some(_) => Ok(key),
        None => Err(Refusal::of(code::PRIVATE_KEY_UNSUPPORTED)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn labels(text: &str) -> Option<Vec<(String, bool, usize)>> {
        let sections = sections(text)?;
        let of = |one: &Section| (one.label.clone(), one.has_headers, one.der.len());
        Some(sections.iter().map(of).collect())
    }

    #[test]
    fn a_long_text_is_not_parsed() {
        let text = |length| "\n".repeat(length);
        assert_eq!(labels(&text(TEXT_BYTES_MAX)), Some(Vec::new()));
        assert_eq!(labels(&text(TEXT_BYTES_MAX + 1)), None);
    }

    #[test]
    fn pem_sections_are_parsed() {
        let a = |label: &str, headers| Some(vec![(label.to_owned(), headers, 3)]);
        for (text, expected) in [
            ("", Some(Vec::new())),
            ("hello\n", Some(Vec::new())),
            ("-----BEGIN A-----\nAAAA\n-----END A-----", a("A", false)),
            (
                "before\r\n-----BEGIN A B-----\r\nAA\r\nAA\r\n-----END A B-----\r\nafter",
                a("A B", false),
            ),
            (
                "-----BEGIN A-----\nX: y\n z\n\nAAAA\n-----END A-----\n",
                a("A", true),
            ),
            ("-----BEGIN A-----\nAAAA\n-----END B-----", None),
            ("-----BEGIN A-----\nAAAA\n", None),
            ("-----BEGIN A-----\nA?AA\n-----END A-----", None),
            (
                "-----BEGIN A-----\n-----BEGIN A-----\n-----END A-----",
                None,
            ),
        ] {
            assert_eq!(labels(text), expected, "{text}");
        }
        assert!(names_a_key("x\n-----BEGIN EC PRIVATE KEY-----"));
        assert!(!names_a_key("-----BEGIN CERTIFICATE-----"));
    }

    #[test]
    fn serials_and_ip_addresses_are_formatted() {
        assert_eq!(serial(&[0, 0x8f, 1]), "8f01");
        assert_eq!(serial(&[4, 0xce]), "04ce");
        assert_eq!(serial(&[0]), "00");
        assert_eq!(address(&[127, 0, 0, 1]).as_deref(), Some("127.0.0.1"));
        assert_eq!(address(&[0; 16]).as_deref(), Some("::"));
        assert_eq!(address(&[1]), None);
    }

    fn sample() -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a.example".into()]).unwrap();
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn read(der: &[u8]) -> Result<(), Refusal> {
        let certificate = parse(der)?;
        Summary::of(&certificate)?;
        Names::of(&certificate)?;
        is_authority(&certificate).map(drop)
    }

    #[test]
    fn a_truncated_certificate_is_refused() {
        let der = sample();
        read(&der).unwrap();
        for end in 0..der.len() {
            assert!(read(&der[..end]).is_err(), "{end}");
        }
        let mut more = der;
        more.push(0);
        assert!(read(&more).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_as_pem_or_refused(text in "(-----(BEGIN|END) (CERTIFICATE|PRIVATE KEY|EC PRIVATE KEY)-----\n|[A-Za-z0-9+/=:]{0,40}\n|\\PC{0,30}){0,8}") {
            if let Some(sections) = sections(&text) {
                for section in sections {
                    drop(read(&section.der));
                }
            }
            prop_assert!(private_key(&text).is_err());
        }

        #[test]
        fn any_bytes_are_parsed_as_a_certificate_or_refused(bytes: Vec<u8>) {
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn a_damaged_certificate_is_parsed_or_refused(at: prop::sample::Index, byte: u8) {
            let mut der = sample();
            let at = at.index(der.len());
            der[at] = byte;
            drop(read(&der));
        }
    }
}
