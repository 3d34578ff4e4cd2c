//! The protocol of witnesses (C2SP `tlog-witness`): the request `add-checkpoint`, and what a witness decides about it.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::checkpoint::SignedCheckpoint;
use crate::hash::{TreeHash, decimal};
use crate::key::VerifierKey;
use crate::note::NOTE_BYTES_MAX;
use crate::tree::{PROOF_HASHES_MAX, verify_consistency};

/// Limit of a request, in bytes.
pub const REQUEST_BYTES_MAX: usize = NOTE_BYTES_MAX + (8 << 10);
/// The path of the request below a witness's prefix.
pub const ADD_CHECKPOINT_PATH: &str = "/add-checkpoint";
/// The media type of a response that has the size of the tree that the witness knows.
pub const SIZE_TYPE: &str = "text/x.tlog.size";

/// A request to a witness. Displayed as its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddCheckpoint {
    /// The size of the tree that the witness knows, as far as the sender knows.
    pub old: u64,
    /// The proof that the tree of this size is the beginning of the new one.
    pub proof: Vec<TreeHash>,
    /// The new tree.
    pub signed: SignedCheckpoint,
}

impl AddCheckpoint {
    /// Reads the body of a request; `None` if it is not one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > REQUEST_BYTES_MAX {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let (lines, checkpoint) = text.split_once("\n\n")?;
        let mut lines = lines.split('\n');
        let old = decimal(lines.next()?.strip_prefix("old ")?)?;
        let mut proof = Vec::new();
        for line in lines {
            if proof.len() == PROOF_HASHES_MAX {
                return None;
            }
            proof.push(line.parse().ok()?);
        }
        Some(Self {
            old,
            proof,
            signed: SignedCheckpoint::parse(checkpoint.as_bytes()).ok()?,
        })
    }
}

impl fmt::Display for AddCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "old {}", self.old)?;
        for hash in &self.proof {
            writeln!(f, "{hash}")?;
        }
        write!(f, "\n{}", self.signed)
    }
}

/// The name of a log in the paths of a witness: the SHA-256 of its origin in lower-case hexadecimal digits.
pub fn origin_digest(origin: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(origin).into();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The latest tree of a log that a witness cosigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownTree {
    /// The number of its leaves.
    pub size: u64,
    /// Its root.
    pub root: TreeHash,
}

impl KnownTree {
    /// The tree of a log that was never cosigned.
    pub fn none() -> Self {
        Self {
            size: 0,
            root: TreeHash::empty(),
        }
    }
}

/// Why a witness does not cosign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// No trusted key of the log signed the checkpoint, or one of its signatures is wrong.
    #[error("the checkpoint is not signed by a trusted key of the log")]
    Unsigned,
    /// The old tree is larger than the new one.
    #[error("the old size is larger than the size of the checkpoint")]
    Smaller,
    /// The witness knows another size.
    #[error("the latest tree that was cosigned has {0} leaves")]
    Conflict(u64),
    /// The new tree does not begin with the old one.
    #[error("the checkpoint does not extend the tree that was cosigned")]
    Inconsistent,
}

impl Declined {
    /// The status of the response.
    pub fn status(self) -> u16 {
        match self {
            Self::Smaller => 400,
            Self::Unsigned => 403,
            Self::Conflict(_) => 409,
            Self::Inconsistent => 422,
        }
    }
}

/// Decides whether to cosign a checkpoint of a log with these keys whose latest cosigned tree is `known`. Returns the tree
/// to remember before the cosignature leaves the witness.
///
/// # Errors
/// If the checkpoint must not be cosigned.
pub fn judge(
    request: &AddCheckpoint,
    keys: &[VerifierKey],
    known: KnownTree,
) -> Result<KnownTree, Declined> {
    let mut is_signed = false;
    for key in keys {
        let signed = request.signed.note().signed_by(key);
        is_signed |= signed.map_err(|_| Declined::Unsigned)?.is_some();
    }
    if !is_signed {
        return Err(Declined::Unsigned);
    }
    let new = request.signed.checkpoint();
    if request.old > new.size {
        return Err(Declined::Smaller);
    }
    if request.old != known.size {
        return Err(Declined::Conflict(known.size));
    }
    let proof = &request.proof;
    verify_consistency((known.size, known.root), (new.size, new.root), proof)
        .map_err(|_| Declined::Inconsistent)?;
    Ok(KnownTree {
        size: new.size,
        root: new.root,
    })
}
