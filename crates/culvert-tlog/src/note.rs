//! Signed notes (C2SP `signed-note`): a text, an empty line, and signature lines.

use std::fmt;
use std::str::FromStr;

use crate::hash::{base64_bytes, base64_text};
use crate::key::{self, KeyType, VerifierKey, is_name};

/// Limit of a note, in bytes. Sixteen signatures of 5 kB fit into it.
pub const NOTE_BYTES_MAX: usize = 256 << 10;
/// Limit of signature lines in a note.
pub const SIGNATURES_MAX: usize = 64;

/// Why a text is no signed note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNote {
    /// The text is longer than [`NOTE_BYTES_MAX`].
    #[error("the note is too long")]
    TooLong,
    /// The bytes are not UTF-8, or there are control characters.
    #[error("the note has bytes that no note may have")]
    Characters,
    /// There is no text before the signatures, or the last line does not end.
    #[error("the note has no text with an empty line and signatures after it")]
    Form,
    /// A signature line is wrong, or there are too many.
    #[error("the note has a wrong signature line")]
    Signature,
}

/// A line with a signature. Displayed without the line's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureLine {
    /// The name of the key.
    pub name: String,
    /// The ID of the key.
    pub key_id: u32,
    /// The signature, in the form of the key's type.
    pub signature: Vec<u8>,
}

impl SignatureLine {
    /// Whether the signature has the form of a cosignature, which begins with its time.
    pub(crate) fn is_cosignature(&self) -> bool {
        key::timestamped(&self.signature).is_some()
    }

    /// The time of a cosignature of this key over the text of a checkpoint, in seconds since 1970; `None` if it is not one.
    pub fn cosigned_at(&self, text: &str, key: &VerifierKey) -> Option<u64> {
        if !key.is_of(self) || key.key_type() != KeyType::Cosignature {
            return None;
        }
        let (time, signature) = key::timestamped(&self.signature)?;
        key.verify(key::cosigned(text, time).as_bytes(), signature)
            .then_some(time)
    }
}

impl fmt::Display for SignatureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.key_id.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.signature);
        write!(f, "\u{2014} {} {}", self.name, base64_text(&bytes))
    }
}

impl FromStr for SignatureLine {
    type Err = BadNote;

    fn from_str(line: &str) -> Result<Self, BadNote> {
        let parts = line
            .strip_prefix("\u{2014} ")
            .and_then(|line| line.split_once(' '));
        let (name, signature) = parts.ok_or(BadNote::Signature)?;
        let bytes = base64_bytes(signature).ok_or(BadNote::Signature)?;
        match bytes.split_first_chunk::<4>() {
            Some((id, signature)) if is_name(name) && !signature.is_empty() => Ok(Self {
                name: name.to_owned(),
                key_id: u32::from_be_bytes(*id),
                signature: signature.to_vec(),
            }),
            _ => Err(BadNote::Signature),
        }
    }
}

/// A signature line names a known key, and is not its signature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature of `{0}` is wrong")]
pub struct WrongSignature(pub String);

/// A signed note. Displayed as its text with the signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    text: String,
    signatures: Vec<SignatureLine>,
}

impl Note {
    /// The note of this text, with its signatures. `None` if it would be no note: the text does not end with a line's end
    /// or has control characters, or there is no signature.
    pub fn new(text: String, signatures: Vec<SignatureLine>) -> Option<Self> {
        let note = Self { text, signatures };
        (Self::parse(note.to_string().as_bytes()).as_ref() == Ok(&note)).then_some(note)
    }

    /// Reads a note.
    ///
    /// # Errors
    /// If the bytes are no signed note.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadNote> {
        if bytes.len() > NOTE_BYTES_MAX {
            return Err(BadNote::TooLong);
        }
        let whole = std::str::from_utf8(bytes).map_err(|_| BadNote::Characters)?;
        if whole.bytes().any(|byte| byte < 0x20 && byte != b'\n') {
            return Err(BadNote::Characters);
        }
        // The last empty line is between text and signatures.
        let (text, lines) = whole.rsplit_once("\n\n").ok_or(BadNote::Form)?;
        let lines = lines.strip_suffix('\n').ok_or(BadNote::Form)?;
        if text.is_empty() {
            return Err(BadNote::Form);
        }
        let mut signatures = Vec::new();
        for line in lines.split('\n') {
            if signatures.len() == SIGNATURES_MAX {
                return Err(BadNote::Signature);
            }
            signatures.push(line.parse()?);
        }
        Ok(Self {
            text: format!("{text}\n"),
            signatures,
        })
    }

    /// The signed text, with the end of its last line.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The signature lines, of known and unknown keys, none of them verified.
    pub fn signatures(&self) -> &[SignatureLine] {
        &self.signatures
    }

    /// Whether this key signed the note. For a key of cosignatures, the latest time of its cosignatures in seconds since
    /// 1970; else 0. `None` if the key did not sign.
    ///
    /// # Errors
    /// If a line names the key and is not its signature. Then the whole note is to be refused.
    pub fn signed_by(&self, key: &VerifierKey) -> Result<Option<u64>, WrongSignature> {
        let mut signed = None;
        for line in self.signatures.iter().filter(|line| key.is_of(line)) {
            let at = match key.key_type() {
                KeyType::Cosignature => line.cosigned_at(&self.text, key),
                KeyType::Note => {
                    let is_signed = key.verify(self.text.as_bytes(), &line.signature);
                    is_signed.then_some(0)
                }
            };
            let at = at.ok_or_else(|| WrongSignature(key.name().to_owned()))?;
            signed = signed.max(Some(at));
        }
        Ok(signed)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.signatures
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}
