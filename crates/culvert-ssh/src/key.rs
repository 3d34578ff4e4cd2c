//! The host key of the server.

use std::fmt;

use russh::keys::ssh_key::private::{Ed25519Keypair, KeypairData};
use russh::keys::{HashAlg, PrivateKey};

/// An Ed25519 key, derived from 32 secret bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

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
