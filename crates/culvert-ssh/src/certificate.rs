//! Checks the constraints of user certificates (OpenSSH's `PROTOCOL.certkeys`). The library verifies the signature
//! and the validity period. The authorizer decides whether the authority is trusted.

use std::net::IpAddr;

use culvert_base::ipset::{IpSet, Prefix, Verdict};
use culvert_base::net::plain_address;
use culvert_base::{Refusal, code};
use culvert_tunnel::server::{ISSUER, Proof};
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Certificate, HashAlg};

/// A certificate without this extension permits no port forwarding, so it is of no use here.
const FORWARDING: &str = "permit-port-forwarding";

/// The content of an accepted certificate.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The proof for the authorizer.
    pub(crate) proof: Proof,
    /// The command that replaces the client's.
    pub(crate) command: Option<String>,
}

/// Checks the certificate of `user`, who connects from `peer`.
///
/// # Errors
/// Code 1102, with the constraint that is not met.
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
            // The largest number means unlimited.
            valid_until: i64::try_from(until).is_ok().then_some(until),
            issuer: certificate.extensions().get(ISSUER).cloned(),
        },
        command,
    })
}

/// Whether a list of networks contains the address. An invalid list contains no address.
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
