//! The host keys of the server, and the types of keys that clients may have.

use std::fmt;

use aws_lc_rs::{agreement, hkdf};
use russh::keys::ssh_key::private::{EcdsaKeypair, Ed25519Keypair, KeypairData};
use russh::keys::ssh_key::public::EcdsaPublicKey;
use russh::keys::{Algorithm, HashAlg, PrivateKey};

/// The type of a host key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKeyType {
    /// `ssh-ed25519`.
    Ed25519,
    /// `ecdsa-sha2-nistp256`.
    EcdsaP256,
}

/// The type of a client's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKeyType {
    /// `ssh-ed25519`.
    Ed25519,
    /// `sk-ssh-ed25519@openssh.com`: Ed25519 in a security key.
    SkEd25519,
    /// `ecdsa-sha2-nistp256`, `-nistp384` and `-nistp521`.
    Ecdsa,
    /// `sk-ecdsa-sha2-nistp256@openssh.com`: ECDSA in a security key.
    SkEcdsa,
}

impl ClientKeyType {
    /// All types. Others are not accepted: DSA and RSA, whose signatures cannot be verified here.
    pub const ALL: [Self; 4] = [Self::Ed25519, Self::SkEd25519, Self::Ecdsa, Self::SkEcdsa];

    /// The type of a key with this algorithm, if it can be accepted.
    pub(crate) fn of(algorithm: &Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::Ed25519 => Some(Self::Ed25519),
            Algorithm::SkEd25519 => Some(Self::SkEd25519),
            Algorithm::Ecdsa { .. } => Some(Self::Ecdsa),
            Algorithm::SkEcdsaSha2NistP256 => Some(Self::SkEcdsa),
            _ => None,
        }
    }
}

/// What an ECDSA key is derived for. Another text would be another key, which clients do not know.
const ECDSA_PURPOSE: &[u8] = b"culvert SSH host key ecdsa-sha2-nistp256";

/// A key, derived from 32 secret bytes.
#[derive(Clone)]
pub struct HostKey(PrivateKey);

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostKey").field(&self.fingerprint()).finish()
    }
}

impl HostKey {
    /// Derives the key from `seed`.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let pair = KeypairData::Ed25519(Ed25519Keypair::from_seed(seed));
        let key = PrivateKey::new(pair, "culvert").expect("an unencrypted key is always valid");
        Self(key)
    }

    /// Derives the key of this type from `seed`.
    pub fn derive(kind: HostKeyType, seed: &[u8; 32]) -> Self {
        match kind {
            HostKeyType::Ed25519 => Self::from_seed(seed),
            HostKeyType::EcdsaP256 => {
                let pair = KeypairData::Ecdsa(ecdsa_pair(seed));
                let key = PrivateKey::new(pair, "culvert");
                Self(key.expect("an unencrypted key is always valid"))
            }
        }
    }

    /// The fingerprint as clients show it on the first connection: `SHA256:` and base64.
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint(HashAlg::Sha256).to_string()
    }

    /// The public key as in `known_hosts`, without the host.
    pub fn public_line(&self) -> String {
        self.0.public_key().to_openssh().unwrap_or_default()
    }

    pub(crate) fn private(&self) -> &PrivateKey {
        &self.0
    }
}

/// A key on P-256 whose scalar is HKDF-SHA256 (RFC 5869) of `seed`.
fn ecdsa_pair(seed: &[u8; 32]) -> EcdsaKeypair {
    let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(seed);
    // All but one of 2^32 outputs are below the order of the curve.
    (0_u8..=u8::MAX)
        .find_map(|attempt| {
            let mut scalar = [0; 32];
            let info = [ECDSA_PURPOSE, &[attempt]];
            secret
                .expand(&info, hkdf::HKDF_SHA256)
                .ok()?
                .fill(&mut scalar)
                .ok()?;
            let key = agreement::PrivateKey::from_private_key(&agreement::ECDH_P256, &scalar);
            let public = key.ok()?.compute_public_key().ok()?;
            match EcdsaPublicKey::from_sec1_bytes(public.as_ref()).ok()? {
                EcdsaPublicKey::NistP256(public) => Some(EcdsaKeypair::NistP256 {
                    public,
                    private: scalar.into(),
                }),
                _ => None,
            }
        })
        .expect("256 outputs of a hash are not all out of range")
}

#[cfg(test)]
mod tests {
    use russh::keys::EcdsaCurve;

    use super::*;

    /// A key that changes is one that clients take for an attack.
    #[test]
    fn keys_stay_what_they_are() {
        let line = |kind| HostKey::derive(kind, &[7; 32]).public_line();
        let ecdsa = line(HostKeyType::EcdsaP256);
        assert!(ecdsa.starts_with("ecdsa-sha2-nistp256 AAAA"), "{ecdsa}");
        assert_eq!(ecdsa, line(HostKeyType::EcdsaP256));
        assert_ne!(
            ecdsa,
            HostKey::derive(HostKeyType::EcdsaP256, &[8; 32]).public_line()
        );
        assert_eq!(
            HostKey::derive(HostKeyType::EcdsaP256, &[7; 32]).fingerprint(),
            "SHA256:CU2/8G0S4dvTQd77E2RJPaLRkEvCPjvDtnSCAsxwRPQ"
        );
        assert_eq!(
            line(HostKeyType::Ed25519),
            HostKey::from_seed(&[7; 32]).public_line()
        );
    }

    #[test]
    fn types_of_client_keys() {
        for (algorithm, kind) in [
            (Algorithm::Ed25519, Some(ClientKeyType::Ed25519)),
            (Algorithm::SkEd25519, Some(ClientKeyType::SkEd25519)),
            (
                Algorithm::Ecdsa {
                    curve: EcdsaCurve::NistP521,
                },
                Some(ClientKeyType::Ecdsa),
            ),
            (Algorithm::SkEcdsaSha2NistP256, Some(ClientKeyType::SkEcdsa)),
            (Algorithm::Dsa, None),
            (Algorithm::Rsa { hash: None }, None),
            (
                Algorithm::Rsa {
                    hash: Some(HashAlg::Sha512),
                },
                None,
            ),
        ] {
            assert_eq!(ClientKeyType::of(&algorithm), kind, "{algorithm:?}");
        }
    }

    #[test]
    fn a_seed_is_a_key_and_is_not_shown() {
        let key = HostKey::from_seed(&[7; 32]);
        assert_eq!(
            key.fingerprint(),
            HostKey::from_seed(&[7; 32]).fingerprint()
        );
        assert_ne!(
            key.fingerprint(),
            HostKey::from_seed(&[8; 32]).fingerprint()
        );
        assert!(key.public_line().starts_with("ssh-ed25519 AAAA"));
        assert_eq!(
            format!("{key:?}"),
            format!("HostKey(\"{}\")", key.fingerprint())
        );
    }
}
