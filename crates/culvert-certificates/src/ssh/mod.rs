//! OpenSSH formats: parses public keys, creates signing keys and signs certificates.
//!
//! A public key from a caller is limited in length, parsed completely, and must have an algorithm and size
//! that OpenSSH accepts today. aws-lc creates keys and signatures. This module implements the formats around
//! them (RFC 4251 section 5, and `PROTOCOL.certkeys` of OpenSSH).
//!
//! `ssh_issue` decides which certificates are issued.

pub mod certificate_authority;
pub mod certificate_authority_model;
pub mod host_certificate;
pub mod host_certificate_model;
pub(crate) mod host_key;
pub mod issue;
pub mod public_key;
pub mod public_key_model;
pub mod user_certificate;
pub mod user_certificate_model;

use std::collections::BTreeMap;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, ParsedPublicKey,
    RSA_PKCS1_SHA512, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{Entropy, Fault, Secret, Timestamp};
use serde::{Deserialize, Serialize};
use ssh_key::HashAlg;
use ssh_key::public::{EcdsaPublicKey, KeyData, RsaPublicKey};
use zeroize::Zeroizing;

/// Longest accepted public key, in bytes with its comment.
const LINE_BYTES_MAX: usize = 8192;
/// Accepted sizes of RSA keys, in bits. OpenSSH advises against smaller ones and does not accept larger ones.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=16384;
/// Longest public exponent of an RSA key, in bytes.
const RSA_EXPONENT_BYTES_MAX: usize = 8;

/// The algorithm of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// RSA.
    Rsa,
    /// ECDSA on the curve P-256.
    P256,
    /// ECDSA on the curve P-384.
    P384,
    /// ECDSA on the curve P-521.
    P521,
    /// Ed25519.
    Ed25519,
}

impl Algorithm {
    /// Its name in the API.
    pub(crate) const fn key_type(self) -> &'static str {
        match self {
            Self::Rsa => "rsa",
            Self::P256 | Self::P384 | Self::P521 => "ecdsa",
            Self::Ed25519 => "ed25519",
        }
    }

    /// OpenSSH's name of its keys.
    const fn name(self) -> &'static str {
        match self {
            Self::Rsa => "ssh-rsa",
            Self::P256 => "ecdsa-sha2-nistp256",
            Self::P384 => "ecdsa-sha2-nistp384",
            Self::P521 => "ecdsa-sha2-nistp521",
            Self::Ed25519 => "ssh-ed25519",
        }
    }

    /// OpenSSH's name of its signatures.
    const fn signature_name(self) -> &'static str {
        match self {
            Self::Rsa => "rsa-sha2-512",
            _ => self.name(),
        }
    }
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    /// Algorithm of the key.
    pub algorithm: Algorithm,
    /// `SHA256:` and base64; independent of the comment.
    pub fingerprint: String,
    /// Wire format without the leading algorithm name.
    fields: Vec<u8>,
}

/// Why a public key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// The text is not the line of a public key.
    #[error(
        "The public key is malformed; it must be one line of an OpenSSH `.pub` file, at most {LINE_BYTES_MAX} bytes long."
    )]
    Unreadable,
    /// The algorithm is not supported.
    #[error("The public key must be an RSA, ECDSA or Ed25519 key.")]
    Kind,
    /// The key is too short or too long.
    #[error("An RSA key must have 2048 to 16384 bits.")]
    Size,
}

impl PublicKey {
    /// Parses `<algorithm> <base64> <comment>`; the comment is optional.
    pub fn parse(line: &str) -> Result<Self, BadKey> {
        if line.len() > LINE_BYTES_MAX {
            return Err(BadKey::Unreadable);
        }
        let line = line.trim();
        if line.chars().any(|c| c.is_control() && c != '\t') {
            return Err(BadKey::Unreadable);
        }
        let key = ssh_key::PublicKey::from_openssh(line).map_err(|_| BadKey::Unreadable)?;
        let algorithm = match key.key_data() {
            KeyData::Ed25519(_) => Algorithm::Ed25519,
            KeyData::Ecdsa(point) => on_curve(point)?,
            KeyData::Rsa(rsa) => {
                check_rsa(rsa)?;
                Algorithm::Rsa
            }
            _ => return Err(BadKey::Kind),
        };
        let blob = key.to_bytes().map_err(|_| BadKey::Unreadable)?;
        let fields = blob.get(4 + algorithm.name().len()..);
        Ok(Self {
            algorithm,
            fingerprint: key.fingerprint(HashAlg::Sha256).to_string(),
            fields: fields.ok_or(BadKey::Unreadable)?.to_vec(),
        })
    }
}

fn on_curve(key: &EcdsaPublicKey) -> Result<Algorithm, BadKey> {
    let point = key.as_sec1_bytes();
    let (algorithm, parsed) = match key {
        EcdsaPublicKey::NistP256(_) => (
            Algorithm::P256,
            ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point),
        ),
        EcdsaPublicKey::NistP384(_) => (
            Algorithm::P384,
            ParsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point),
        ),
        EcdsaPublicKey::NistP521(_) => (
            Algorithm::P521,
            ParsedPublicKey::new(&ECDSA_P521_SHA512_FIXED, point),
        ),
    };
    // Accept only the uncompressed form, so that a key has one fingerprint.
    let is_plain = point.first() == Some(&4);
    match parsed {
        Ok(_) if is_plain => Ok(algorithm),
        _ => Err(BadKey::Unreadable),
    }
}

fn check_rsa(key: &RsaPublicKey) -> Result<(), BadKey> {
    let positive = |number: &ssh_key::Mpint| number.as_positive_bytes().map(<[u8]>::to_vec);
    let (Some(modulus), Some(exponent)) = (positive(key.n()), positive(key.e())) else {
        return Err(BadKey::Unreadable);
    };
    let is_odd = |number: &[u8]| number.last().is_some_and(|byte| byte & 1 == 1);
    let is_exponent = is_odd(&exponent) && exponent != [1];
    if !is_odd(&modulus) || !is_exponent || exponent.len() > RSA_EXPONENT_BYTES_MAX {
        return Err(BadKey::Unreadable);
    }
    let zeros = modulus.first().map_or(0, |byte| byte.leading_zeros());
    let bits = modulus.len() * 8 - usize::try_from(zeros).unwrap_or(0);
    if RSA_BITS.contains(&bits) {
        Ok(())
    } else {
        Err(BadKey::Size)
    }
}

/// The kind of key to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spec {
    /// RSA with 2048 bits.
    Rsa2048,
    /// RSA with 4096 bits.
    Rsa4096,
    /// ECDSA on the curve P-256.
    P256,
    /// ECDSA on the curve P-384.
    P384,
    /// ECDSA on the curve P-521.
    P521,
    /// Ed25519.
    Ed25519,
}

/// A private key that signs certificates.
#[derive(Debug)]
pub struct SigningKey {
    algorithm: Algorithm,
    pair: Pair,
}

#[derive(Debug)]
enum Pair {
    Rsa(RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// Creates a key. An RSA key takes up to several seconds.
    pub fn generate(spec: Spec) -> Result<Self, Fault> {
        let failed = |error| Fault::new("generating an SSH key", error);
        let rsa = |size| RsaKeyPair::generate(size).map(Pair::Rsa);
        let ecdsa = |algorithm| EcdsaKeyPair::generate(algorithm).map(Pair::Ecdsa);
        let (algorithm, pair) = match spec {
            Spec::Rsa2048 => (Algorithm::Rsa, rsa(KeySize::Rsa2048)),
            Spec::Rsa4096 => (Algorithm::Rsa, rsa(KeySize::Rsa4096)),
            Spec::P256 => (Algorithm::P256, ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING)),
            Spec::P384 => (Algorithm::P384, ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING)),
            Spec::P521 => (Algorithm::P521, ecdsa(&ECDSA_P521_SHA512_FIXED_SIGNING)),
            Spec::Ed25519 => (
                Algorithm::Ed25519,
                Ed25519KeyPair::generate().map(Pair::Ed25519),
            ),
        };
        let pair = pair.map_err(failed)?;
        Ok(Self { algorithm, pair })
    }

    /// Reads the format of [`SigningKey::to_text`].
    pub(crate) fn from_text(algorithm: Algorithm, text: &Secret) -> Result<Self, Fault> {
        let unreadable = |error| Fault::new("reading an SSH key", error);
        let der = STANDARD
            .decode(text.reveal())
            .map(Zeroizing::new)
            .map_err(|_| Fault::bare("reading an SSH key: it is not Base64"))?;
        let ecdsa = |signing: &'static EcdsaSigningAlgorithm| {
            EcdsaKeyPair::from_pkcs8(signing, &der).map(Pair::Ecdsa)
        };
        let pair = match algorithm {
            Algorithm::Rsa => RsaKeyPair::from_pkcs8(&der).map(Pair::Rsa),
            Algorithm::P256 => ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
            Algorithm::P384 => ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
            Algorithm::P521 => ecdsa(&ECDSA_P521_SHA512_FIXED_SIGNING),
            Algorithm::Ed25519 => Ed25519KeyPair::from_pkcs8(&der).map(Pair::Ed25519),
        };
        let pair = pair.map_err(unreadable)?;
        Ok(Self { algorithm, pair })
    }

    /// The private key for encryption at rest: PKCS #8, base64.
    pub(crate) fn to_text(&self) -> Result<Secret, Fault> {
        let failed = |error| Fault::new("writing an SSH key", error);
        let text = match &self.pair {
            Pair::Rsa(pair) => {
                let der: Pkcs8V1Der<'_> = pair.as_der().map_err(failed)?;
                STANDARD.encode(der.as_ref())
            }
            Pair::Ecdsa(pair) => STANDARD.encode(pair.to_pkcs8v1().map_err(failed)?),
            Pair::Ed25519(pair) => STANDARD.encode(pair.to_pkcs8v1().map_err(failed)?),
        };
        Ok(Secret::new(text))
    }

    pub(crate) const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The public key as one line, without a comment.
    pub fn public_line(&self) -> String {
        format!("{} {}", self.algorithm.name(), STANDARD.encode(self.blob()))
    }

    /// Wire format of the public key.
    fn blob(&self) -> Vec<u8> {
        let mut wire = Wire::default();
        wire.text(self.algorithm.name());
        match &self.pair {
            Pair::Rsa(pair) => {
                let public = pair.public_key();
                wire.number(public.exponent().big_endian_without_leading_zero());
                wire.number(public.modulus().big_endian_without_leading_zero());
            }
            Pair::Ecdsa(pair) => {
                let curve = self.algorithm.name().rsplit('-').next().unwrap_or_default();
                wire.text(curve);
                wire.bytes(pair.public_key().as_ref());
            }
            Pair::Ed25519(pair) => wire.bytes(pair.public_key().as_ref()),
        }
        wire.0
    }

    /// Wire format of a signature of `message`.
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Fault> {
        let failed = |error| Fault::new("signing an SSH certificate", error);
        let random = SystemRandom::new();
        let mut wire = Wire::default();
        wire.text(self.algorithm.signature_name());
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA512, &random, message, &mut signature)
                    .map_err(failed)?;
                wire.bytes(&signature);
            }
            Pair::Ecdsa(pair) => {
                let signature = pair.sign(&random, message).map_err(failed)?;
                let (r, s) = signature.as_ref().split_at(signature.as_ref().len() / 2);
                let mut numbers = Wire::default();
                numbers.number(r);
                numbers.number(s);
                wire.bytes(&numbers.0);
            }
            Pair::Ed25519(pair) => wire.bytes(pair.sign(message).as_ref()),
        }
        Ok(wire.0)
    }
}

/// The kind of subject of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A user signs in with the certificate.
    User = 1,
    /// A host shows the certificate.
    Host = 2,
}

/// A certificate to be signed.
#[derive(Debug)]
pub struct Certificate<'a> {
    /// User or host.
    pub role: Role,
    /// Its name in logs, and its comment.
    pub key_id: &'a str,
    /// The certified key.
    pub key: &'a PublicKey,
    /// User or host names; empty for all.
    pub(crate) principals: &'a [String],
    /// Not before 1970.
    pub(crate) valid_after: Timestamp,
    /// End of the validity.
    pub valid_until: Timestamp,
    pub(crate) critical_options: &'a BTreeMap<String, String>,
    /// Extensions by name, with values that are empty for flags.
    pub extensions: &'a BTreeMap<String, String>,
}

impl Certificate<'_> {
    /// Signs the certificate with `authority` and returns it as one line.
    pub(crate) fn signed(
        &self,
        authority: &SigningKey,
        entropy: &dyn Entropy,
    ) -> Result<String, Fault> {
        let nonce: [u8; 32] = entropy.bytes();
        let name = format!("{}-cert-v01@openssh.com", self.key.algorithm.name());
        let mut principals = Wire::default();
        for principal in self.principals {
            principals.text(principal);
        }
        let seconds = |at: Timestamp| u64::try_from(at.unix_seconds()).unwrap_or(0);
        let mut wire = Wire::default();
        wire.text(&name);
        wire.bytes(&nonce);
        wire.0.extend_from_slice(&self.key.fields);
        // Serial.
        wire.0.extend_from_slice(&0_u64.to_be_bytes());
        wire.0.extend_from_slice(&(self.role as u32).to_be_bytes());
        wire.text(self.key_id);
        wire.bytes(&principals.0);
        for at in [self.valid_after, self.valid_until] {
            wire.0.extend_from_slice(&seconds(at).to_be_bytes());
        }
        wire.bytes(&options(self.critical_options));
        wire.bytes(&options(self.extensions));
        // Reserved.
        wire.bytes(&[]);
        wire.bytes(&authority.blob());
        let signature = authority.sign(&wire.0)?;
        wire.bytes(&signature);
        Ok(format!(
            "{name} {} {}",
            STANDARD.encode(&wire.0),
            self.key_id
        ))
    }
}

/// Names with values, sorted by name. A value is wrapped in another string; a flag has none.
fn options(options: &BTreeMap<String, String>) -> Vec<u8> {
    let mut wire = Wire::default();
    for (name, value) in options {
        let mut wrapped = Wire::default();
        if !value.is_empty() {
            wrapped.text(value);
        }
        wire.text(name);
        wire.bytes(&wrapped.0);
    }
    wire.0
}

/// A sequence of data types of RFC 4251 section 5.
#[derive(Debug, Default)]
struct Wire(Vec<u8>);

impl Wire {
    /// `string`.
    fn bytes(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("the blob is far below 4 GiB");
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// `mpint` of a positive big-endian number.
    fn number(&mut self, number: &[u8]) {
        let n_zeros = number.iter().take_while(|byte| **byte == 0).count();
        let mut bytes = number.get(n_zeros..).unwrap_or_default().to_vec();
        if bytes.first().is_some_and(|byte| byte & 0x80 != 0) {
            bytes.insert(0, 0);
        }
        self.bytes(&bytes);
    }
}

#[cfg(test)]
mod tests;
