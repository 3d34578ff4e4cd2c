//! Keys of notes and cosignatures: Ed25519 (C2SP `signed-note`, `tlog-cosignature`).
//!
//! A verifier key is the text `<name>+<ID>+<base64 of type and public key>`. The file of a signing key has the same
//! form with `PRIVATE+KEY+` before it and the seed in place of the public key, as the checksum database of Go has it.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::hash::{base64_bytes, base64_text};
use crate::note::SignatureLine;

/// Limit of the name of a key, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a public key and of a seed.
const KEY_BYTES: usize = 32;
/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 64;
/// Begins the text of a signing key.
const PRIVATE: &str = "PRIVATE+KEY+";

/// What a key signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// The text of a note.
    Note,
    /// A checkpoint with the time (`cosignature/v1`).
    Cosignature,
}

impl KeyType {
    fn byte(self) -> u8 {
        match self {
            Self::Note => 0x01,
            Self::Cosignature => 0x04,
        }
    }

    fn of(byte: u8) -> Option<Self> {
        match byte {
            0x01 => Some(Self::Note),
            0x04 => Some(Self::Cosignature),
            _ => None,
        }
    }
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// The text does not have the form of a key.
    #[error("a verifier key must be `<name>+<8 hex digits>+<base64>`")]
    Form,
    /// The text does not have the form of a signing key.
    #[error("a signing key must be `PRIVATE+KEY+<name>+<8 hex digits>+<base64>`")]
    PrivateForm,
    /// The name is empty, too long, or has spaces, control characters or `+`.
    #[error("the name of a key must have 1 to 255 bytes without spaces and `+`")]
    Name,
    /// The ID does not belong to the key.
    #[error("the ID of the key does not belong to it")]
    Id,
    /// The key has a type other than Ed25519 (01) or cosignature/v1 (04).
    #[error("the type of the key must be 01 (Ed25519) or 04 (cosignature/v1)")]
    Type,
}

/// Whether a text can be the name of a key.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name
            .chars()
            .any(|c| c == '+' || c.is_whitespace() || c.is_control())
}

fn id_of(name: &str, key_type: KeyType, public: &[u8; KEY_BYTES]) -> u32 {
    let mut hasher = Sha256::new();
    hasher.update(name);
    hasher.update([b'\n', key_type.byte()]);
    hasher.update(public);
    let hash: [u8; 32] = hasher.finalize().into();
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// The name, the ID, and the key with its type.
fn parts(text: &str) -> Option<(&str, u32, KeyType, [u8; KEY_BYTES])> {
    let mut parts = text.splitn(3, '+');
    let (name, id, key) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = id.len() == 8
        && id
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let id = u32::from_str_radix(id, 16).ok().filter(|_| is_hex)?;
    let key = Zeroizing::new(base64_bytes(key)?);
    let (first, key) = key.split_first()?;
    Some((name, id, KeyType::of(*first)?, key.try_into().ok()?))
}

/// The public half of a key. Displayed as its text.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifierKey {
    name: String,
    id: u32,
    key_type: KeyType,
    public: [u8; KEY_BYTES],
}

impl VerifierKey {
    /// The Ed25519 public key.
    pub(crate) fn public(&self) -> &[u8; KEY_BYTES] {
        &self.public
    }

    /// The name of the key.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the key signs.
    pub fn key_type(&self) -> KeyType {
        self.key_type
    }

    /// Whether a signature line names this key.
    pub(crate) fn is_of(&self, line: &SignatureLine) -> bool {
        self.name == line.name && self.id == line.key_id
    }

    pub(crate) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.public)
            .verify(message, signature)
            .is_ok()
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = vec![self.key_type.byte()];
        key.extend_from_slice(&self.public);
        write!(f, "{}+{:08x}+{}", self.name, self.id, base64_text(&key))
    }
}

impl fmt::Debug for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for VerifierKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        let (name, id, key_type, public) = parts(text).ok_or(BadKey::Form)?;
        if !is_name(name) {
            return Err(BadKey::Name);
        }
        if id != id_of(name, key_type, &public) {
            return Err(BadKey::Id);
        }
        Ok(Self {
            name: name.to_owned(),
            id,
            key_type,
            public,
        })
    }
}

/// A key that signs.
pub struct SigningKey {
    seed: Zeroizing<[u8; KEY_BYTES]>,
    pair: Ed25519KeyPair,
    verifier: VerifierKey,
}

impl SigningKey {
    /// The key of this name that is made of 32 random bytes.
    ///
    /// # Errors
    /// If the name cannot be the name of a key.
    pub fn new(name: &str, key_type: KeyType, seed: [u8; KEY_BYTES]) -> Result<Self, BadKey> {
        if !is_name(name) {
            return Err(BadKey::Name);
        }
        let seed = Zeroizing::new(seed);
        let pair = Ed25519KeyPair::from_seed_unchecked(&*seed).map_err(|_| BadKey::PrivateForm)?;
        let public = pair.public_key().as_ref();
        let public = public.try_into().map_err(|_| BadKey::PrivateForm)?;
        Ok(Self {
            verifier: VerifierKey {
                name: name.to_owned(),
                id: id_of(name, key_type, &public),
                key_type,
                public,
            },
            seed,
            pair,
        })
    }

    /// Reads the text of a signing key.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self, BadKey> {
        let key = text.strip_prefix(PRIVATE).ok_or(BadKey::PrivateForm)?;
        let (name, id, key_type, seed) = parts(key).ok_or(BadKey::PrivateForm)?;
        let key = Self::new(name, key_type, seed)?;
        match key.verifier.id == id {
            true => Ok(key),
            false => Err(BadKey::Id),
        }
    }

    /// The text of the signing key, for a file that only its owner can read.
    pub fn secret_text(&self) -> Zeroizing<String> {
        let mut key = Zeroizing::new(vec![self.verifier.key_type.byte()]);
        key.extend_from_slice(&*self.seed);
        let VerifierKey { name, id, .. } = &self.verifier;
        Zeroizing::new(format!("{PRIVATE}{name}+{id:08x}+{}", base64_text(&key)))
    }

    /// Its public half.
    pub fn verifier(&self) -> &VerifierKey {
        &self.verifier
    }

    /// The signature line over the text of a note, for a key of the type [`KeyType::Note`]. With
    /// [`KeyType::Cosignature`] it is a cosignature of a checkpoint at this time, in seconds since 1970.
    pub fn sign(&self, text: &str, time: u64) -> SignatureLine {
        let mut signature = Vec::with_capacity(8 + SIGNATURE_BYTES);
        let message = match self.verifier.key_type {
            KeyType::Note => text.to_owned(),
            KeyType::Cosignature => {
                signature.extend_from_slice(&time.to_be_bytes());
                cosigned(text, time)
            }
        };
        signature.extend_from_slice(self.pair.sign(message.as_bytes()).as_ref());
        SignatureLine {
            name: self.verifier.name.clone(),
            key_id: self.verifier.id,
            signature,
        }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("verifier", &self.verifier)
            .finish_non_exhaustive()
    }
}

/// The message of a cosignature over the text of a checkpoint.
pub(crate) fn cosigned(text: &str, time: u64) -> String {
    format!("cosignature/v1\ntime {time}\n{text}")
}

/// The time and the Ed25519 signature of a cosignature; `None` if the bytes are none.
pub(crate) fn timestamped(signature: &[u8]) -> Option<(u64, &[u8])> {
    let (time, signature) = signature.split_first_chunk::<8>()?;
    let time = u64::from_be_bytes(*time);
    let is_valid = signature.len() == SIGNATURE_BYTES && i64::try_from(time).is_ok();
    is_valid.then_some((time, signature))
}
