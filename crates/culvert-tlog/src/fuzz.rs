//! For fuzzing: any bytes are read or refused, and accepted texts have one spelling.

use crate::{AddCheckpoint, InclusionProof, Note, Policy, SignedCheckpoint, TilePath, VerifierKey};

/// Reads the bytes as each of the texts.
///
/// # Panics
/// If a text that was accepted is written in another way.
pub fn text(bytes: &[u8]) {
    let same = |written: String| assert_eq!(written.as_bytes(), bytes);
    if let Ok(note) = Note::parse(bytes) {
        same(note.to_string());
    }
    if let Ok(signed) = SignedCheckpoint::parse(bytes) {
        same(signed.to_string());
        assert!(Policy::default().verify(&signed).is_err());
    }
    if let Ok(proof) = InclusionProof::parse(bytes) {
        same(proof.to_string());
    }
    if let Some(request) = AddCheckpoint::parse(bytes) {
        same(request.to_string());
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(key) = text.parse::<VerifierKey>() {
        same(key.to_string());
    }
    if let Ok(path) = text.parse::<TilePath>() {
        same(path.to_string());
    }
}
