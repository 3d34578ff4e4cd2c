//! The text of a proof that a log has an entry (C2SP `tlog-proof`).

use std::fmt;

use crate::checkpoint::{BadCheckpoint, Policy, SignedCheckpoint, Untrusted};
use crate::hash::{TreeHash, base64_bytes, base64_text, decimal};
use crate::tree::{PROOF_HASHES_MAX, Unproven, verify_inclusion};

/// Limit of a proof, in bytes: an entry of 1 MiB in base64, and a checkpoint.
pub const PROOF_BYTES_MAX: usize = 2 << 20;

const FIRST_LINE: &str = "c2sp.org/tlog-proof@v1";

/// Why a text is no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProof {
    /// The text is longer than [`PROOF_BYTES_MAX`].
    #[error("the proof is too long")]
    TooLong,
    /// A line before the checkpoint is wrong.
    #[error("the text is not a proof of the form `c2sp.org/tlog-proof@v1`")]
    Form,
    /// It has no checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] BadCheckpoint),
}

/// Why a proof does not prove that the log has an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotProven {
    /// Nothing is known of who made the checkpoint.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The entry is not in the tree of the checkpoint.
    #[error(transparent)]
    Unproven(#[from] Unproven),
}

/// A proof that the tree of a checkpoint has an entry. Displayed as its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InclusionProof {
    /// Further data, which the proof alone does not vouch for.
    pub extra: Option<Vec<u8>>,
    /// The place of the entry, from 0.
    pub index: u64,
    /// The hashes from the entry's sibling to a child of the root.
    pub hashes: Vec<TreeHash>,
    /// The checkpoint.
    pub signed: SignedCheckpoint,
}

impl InclusionProof {
    /// Reads a proof.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadProof> {
        if bytes.len() > PROOF_BYTES_MAX {
            return Err(BadProof::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| BadProof::Form)?;
        let (lines, checkpoint) = text.split_once("\n\n").ok_or(BadProof::Form)?;
        let mut lines = lines.split('\n').peekable();
        if lines.next() != Some(FIRST_LINE) {
            return Err(BadProof::Form);
        }
        let extra = match lines.peek().and_then(|line| line.strip_prefix("extra ")) {
            None => None,
            Some(extra) => {
                lines.next();
                Some(base64_bytes(extra).ok_or(BadProof::Form)?)
            }
        };
        let index = lines.next().and_then(|line| line.strip_prefix("index "));
        let index = index.and_then(decimal).ok_or(BadProof::Form)?;
        let mut hashes = Vec::new();
        for line in lines {
            if hashes.len() == PROOF_HASHES_MAX {
                return Err(BadProof::Form);
            }
            hashes.push(line.parse().map_err(|_| BadProof::Form)?);
        }
        Ok(Self {
            extra,
            index,
            hashes,
            signed: SignedCheckpoint::parse(checkpoint.as_bytes())?,
        })
    }

    /// Verifies that the log has an entry with this hash at the proof's index, and that the checkpoint is signed as the
    /// policy demands. Returns the witnesses as [`Policy::verify`].
    ///
    /// # Errors
    /// If the proof does not prove it.
    pub fn verify(&self, leaf: TreeHash, policy: &Policy) -> Result<Vec<(String, u64)>, NotProven> {
        let witnesses = policy.verify(&self.signed)?;
        let tree = self.signed.checkpoint();
        verify_inclusion(leaf, self.index, tree.size, &self.hashes, tree.root)?;
        Ok(witnesses)
    }
}

impl fmt::Display for InclusionProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}")?;
        if let Some(extra) = &self.extra {
            writeln!(f, "extra {}", base64_text(extra))?;
        }
        writeln!(f, "index {}", self.index)?;
        for hash in &self.hashes {
            writeln!(f, "{hash}")?;
        }
        write!(f, "\n{}", self.signed)
    }
}
