//! What a certificate of a user demands before it counts (OpenSSH's `PROTOCOL.certkeys`). That it is
//! signed, and that it is valid now, was seen to by the library; whose authority signed it is the gate's
//! to know.

use std::net::IpAddr;

use culvert_base::ipset::{IpSet, Prefix, Verdict};
use culvert_base::net::plain_address;
use culvert_base::{Refusal, code};
use culvert_tunnel::server::{ISSUER, Proof};
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Certificate, HashAlg};

/// Without it a certificate allows no forward, and so nothing that could be done here.
const FORWARDING: &str = "permit-port-forwarding";

/// What a certificate comes to.
#[derive(Debug)]
pub(crate) struct Shown {
    /// For the gate.
    pub(crate) proof: Proof,
    /// The command that takes the place of the client's.
    pub(crate) command: Option<String>,
}

/// Reads the certificate of a `user` who comes from `peer`.
///
/// # Errors
/// Code 1102, with what it lacks.
pub(crate) fn read(certificate: &Certificate, user: &str, peer: IpAddr) -> Result<Shown, Refusal> {
    if certificate.cert_type() != CertType::User {
        return Err(refuse("is not a user certificate"));
    }
    let principals = certificate.valid_principals();
    if !principals.is_empty() && !principals.iter().any(|name| name == user) {
        return Err(refuse(
            "does not list the client's user name as a principal",
        ));
    }
    let mut command = None;
    for (name, value) in certificate.critical_options().iter() {
        match name.as_str() {
            "force-command" => command = Some(value.clone()),
            "source-address" => {
                if !is_from(value, peer) {
                    return Err(refuse("does not allow the client's source address"));
                }
            }
            _ => return Err(refuse("has an unsupported critical option")),
        }
    }
    if !certificate.extensions().contains_key(FORWARDING) {
        return Err(refuse("lacks the extension `permit-port-forwarding`"));
    }
    let until = certificate.valid_before();
    Ok(Shown {
        proof: Proof::Certificate {
            authority: certificate
                .signature_key()
                .fingerprint(HashAlg::Sha256)
                .to_string(),
            // The format's own word for "for ever" is the largest number.
            valid_until: i64::try_from(until).is_ok().then_some(until),
            issuer: certificate.extensions().get(ISSUER).cloned(),
        },
        command,
    })
}

/// Whether one of the networks in a list has the address. A list that cannot be read has none.
fn is_from(list: &str, peer: IpAddr) -> bool {
    let peer = plain_address(peer);
    list.split(',').any(|entry| {
        let entry = entry.trim();
        match entry.parse::<IpAddr>() {
            Ok(address) => plain_address(address) == peer,
            Err(_) => Prefix::parse(entry)
                .is_ok_and(|prefix| IpSet::of([(Verdict::Allow, prefix)]).contains(peer)),
        }
    })
}

fn refuse(why: &str) -> Refusal {
    Refusal::new(
        code::SSH_KEY_NOT_REGISTERED,
        format!("The SSH certificate {why}."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_addresses_are_addresses_and_networks() {
        let check = |list: &str, peer: &str, expected: bool| {
            assert_eq!(is_from(list, peer.parse().unwrap()), expected, "{list}");
        };
        check("192.0.2.7", "192.0.2.7", true);
        check("192.0.2.7", "::ffff:192.0.2.7", true);
        check("10.0.0.0/8, 192.0.2.0/24", "192.0.2.7", true);
        check("10.0.0.0/8", "192.0.2.7", false);
        check("2001:db8::/32", "2001:db8::1", true);
        check("", "192.0.2.7", false);
        check("anything", "192.0.2.7", false);
    }
}
