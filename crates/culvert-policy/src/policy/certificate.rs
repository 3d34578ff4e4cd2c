//! Certificates as events and expressions show them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::text::hex;
use culvert_cel::{Timestamp, Value};
use culvert_tls::peer::{common_name, serial};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Name};
use x509_parser::time::ASN1Time;

use crate::policy::values::{map, texts};

/// A field of a certificate, by its path below `conn.tls.client`; `None` if the certificate lacks
/// it.
pub(crate) fn field(der: &[u8], path: &str) -> Option<Value> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let of = |name: &X509Name<'_>, part: Option<&str>| match part {
        None => Some(Value::from(&*rfc2253(name))),
        Some("common_name") => Some(Value::from(&*common_name(name).unwrap_or_default())),
        Some(part) => attributes(name, part),
    };
    let (first, rest) = match path.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    };
    Some(match first {
        "pem" => Value::from(&*pem(der)),
        "serial_number" => Value::from(&*serial(&certificate)),
        "signature_algorithm" => Value::from(&*algorithm(&certificate)),
        "extensions" => extensions(&certificate),
        "validity" => match rest {
            Some("not_before") => moment(&certificate.validity().not_before),
            _ => moment(&certificate.validity().not_after),
        },
        "issuer" => of(certificate.issuer(), rest)?,
        "subject" => of(certificate.subject(), rest)?,
        "san" => alternatives(&certificate, rest),
        _ => return None,
    })
}

fn pem(der: &[u8]) -> String {
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    let text = STANDARD.encode(der);
    for line in text.as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

fn moment(time: &ASN1Time) -> Value {
    Timestamp::new(time.timestamp(), 0).map_or(Value::Null, Value::Timestamp)
}

/// The names of algorithms in Go's library.
fn algorithm(certificate: &X509Certificate<'_>) -> String {
    let id = certificate.signature_algorithm.algorithm.to_id_string();
    match id.as_str() {
        "1.2.840.113549.1.1.4" => "MD5-RSA",
        "1.2.840.113549.1.1.5" => "SHA1-RSA",
        "1.2.840.113549.1.1.11" => "SHA256-RSA",
        "1.2.840.113549.1.1.12" => "SHA384-RSA",
        "1.2.840.113549.1.1.13" => "SHA512-RSA",
        "1.2.840.113549.1.1.10" => "RSAPSS",
        "1.2.840.10045.4.1" => "ECDSA-SHA1",
        "1.2.840.10045.4.3.2" => "ECDSA-SHA256",
        "1.2.840.10045.4.3.3" => "ECDSA-SHA384",
        "1.2.840.10045.4.3.4" => "ECDSA-SHA512",
        "1.3.101.112" => "Ed25519",
        other => other,
    }
    .to_owned()
}

fn extensions(certificate: &X509Certificate<'_>) -> Value {
    let all = certificate.extensions().iter().map(|extension| {
        map(vec![
            ("id", Value::from(&*extension.oid.to_id_string())),
            ("critical", Value::Bool(extension.critical)),
            ("value", Value::Bytes(extension.value.into())),
        ])
    });
    Value::List(all.collect())
}

/// The attributes of a name that have their own lists, with their short names in RFC 4514 and the
/// labels in Go.
const ATTRIBUTES: [(&str, &str, &str); 10] = [
    ("2.5.4.3", "CN", "common_name"),
    ("2.5.4.6", "C", "country"),
    ("2.5.4.7", "L", "locality"),
    ("2.5.4.10", "O", "organization"),
    ("2.5.4.11", "OU", "organizational_unit"),
    ("2.5.4.17", "POSTALCODE", "postal_code"),
    ("2.5.4.8", "ST", "province"),
    ("2.5.4.9", "STREET", "street_address"),
    ("2.5.4.5", "SERIALNUMBER", ""),
    ("0.9.2342.19200300.100.1.25", "DC", ""),
];

fn attributes(name: &X509Name<'_>, part: &str) -> Option<Value> {
    let (wanted, ..) = ATTRIBUTES.iter().find(|(_, _, field)| *field == part)?;
    let found = name
        .iter_attributes()
        .filter(|attribute| attribute.attr_type().to_id_string() == *wanted);
    Some(texts(found.filter_map(|attribute| attribute.as_str().ok())))
}

/// A name in the form of RFC 2253: last part first.
fn rfc2253(name: &X509Name<'_>) -> String {
    let parts: Vec<_> = name.iter_rdn().collect();
    let parts = parts.into_iter().rev().map(|part| {
        let attributes = part.iter().map(|attribute| {
            let id = attribute.attr_type().to_id_string();
            let short = ATTRIBUTES.iter().find(|(known, ..)| *known == id);
            match (short, attribute.as_str()) {
                (Some((_, short, _)), Ok(text)) => format!("{short}={}", escaped(text)),
                _ => format!("{id}=#{}", hex(attribute.attr_value().data)),
            }
        });
        attributes.collect::<Vec<_>>().join("+")
    });
    parts.collect::<Vec<_>>().join(",")
}

fn escaped(text: &str) -> String {
    let last = text.chars().count().saturating_sub(1);
    let mut out = String::new();
    for (at, character) in text.chars().enumerate() {
        let is_edge =
            (at == 0 && matches!(character, ' ' | '#')) || (at == last && character == ' ');
        if is_edge || ",+\"\\<>;".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

fn alternatives(certificate: &X509Certificate<'_>, part: Option<&str>) -> Value {
    let mut found: Vec<(&str, String)> = Vec::new();
    let names = certificate.subject_alternative_name().ok().flatten();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::DNSName(text) => found.push(("dns_names", (*text).to_owned())),
            GeneralName::RFC822Name(text) => found.push(("email_addresses", (*text).to_owned())),
            GeneralName::URI(text) => found.push(("uris", (*text).to_owned())),
            GeneralName::IPAddress(bytes) => {
                found.extend(address(bytes).map(|text| ("ip_addresses", text)))
            }
            _ => {}
        }
    }
    match part {
        Some(part) => {
            let of = found.iter().filter(|(kind, _)| *kind == part);
            texts(of.map(|(_, text)| text.as_str()))
        }
        None => {
            let all: Vec<_> = found.iter().map(|(_, text)| text.as_str()).collect();
            Value::from(&*all.join(","))
        }
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    let address: std::net::IpAddr = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
        _ => <[u8; 16]>::try_from(bytes).ok()?.into(),
    };
    Some(address.to_string())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, SerialNumber};

    use culvert_tls::peer::Peer;

    use super::*;
    use crate::policy::values::text;

    #[test]
    fn variables_of_a_certificate_are_extracted() {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from_slice(&[0x00, 0xAB, 0x01]));
        params.distinguished_name = Default::default();
        for (kind, value) in [
            (DnType::CountryName, "AT"),
            (DnType::OrganizationName, "Ours, Inc."),
            (DnType::CommonName, "me"),
        ] {
            params.distinguished_name.push(kind, value);
        }
        params
            .subject_alt_names
            .push(SanType::IpAddress([192, 0, 2, 1].into()));
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let peer = Peer::new(made.der());
        assert_eq!(
            (peer.serial.as_str(), peer.common_name.as_str()),
            ("ab01", "me")
        );
        for (path, shown) in [
            ("serial_number", "ab01"),
            ("signature_algorithm", "ECDSA-SHA256"),
            ("subject", "CN=me,O=Ours\\, Inc.,C=AT"),
            ("subject.common_name", "me"),
            ("issuer.organization", r#"["Ours, Inc."]"#),
            ("subject.locality", "[]"),
            ("san", "a.example,192.0.2.1"),
            ("san.dns_names", r#"["a.example"]"#),
            ("san.ip_addresses", r#"["192.0.2.1"]"#),
            ("san.uris", "[]"),
        ] {
            let value = field(peer.der(), path).unwrap();
            assert_eq!(text(value.borrow()), shown, "{path}");
        }
        let Some(Value::Timestamp(_)) = field(peer.der(), "validity.not_before") else {
            panic!("no moment");
        };
        assert!(field(peer.der(), "nope").is_none());
        assert_eq!(Peer::new(b"nonsense").serial, "");
    }
}
