//! Transparency logs as C2SP describes them: trees, tiles, proofs, signed notes, checkpoints, cosignatures, and what a
//! witness decides. Without sockets, files and clocks.
//!
//! # Where the facts are from
//!
//! Hashes and proofs are those of RFC 6962, section 2.1, and their checks those of RFC 9162, section 2.1. Texts and
//! addresses are those of `signed-note`, `tlog-checkpoint`, `tlog-cosignature`, `tlog-tiles`, `tlog-proof` and
//! `tlog-witness` at <https://c2sp.org>. The only signatures are Ed25519.
//!
//! # Guarantees
//!
//! Every parser takes any bytes, has a limit, accepts only the one spelling that is written here, and never panics. A
//! checkpoint of which a known key's signature is wrong is refused as a whole. Signatures of unknown keys are kept and mean
//! nothing.

mod checkpoint;
pub mod fuzz;
mod hash;
mod key;
mod note;
mod proof;
mod tile;
mod tree;
mod witness;

#[cfg(test)]
mod tests;

pub use checkpoint::{
    BadCheckpoint, Checkpoint, Policy, SignedCheckpoint, Untrusted, continuation, continued,
};
pub use hash::{HASH_BYTES, NotAHash, TreeHash};
pub use key::{BadKey, KeyType, NAME_BYTES_MAX, SigningKey, VerifierKey};
pub use note::{BadNote, NOTE_BYTES_MAX, Note, SIGNATURES_MAX, SignatureLine, WrongSignature};
pub use proof::{BadProof, InclusionProof, NotProven, PROOF_BYTES_MAX};
pub use tile::{BadTile, Edge, NotATile, TILE_WIDTH, TileId, TilePath, Tiles, tiles_of};
pub use tree::{
    PROOF_HASHES_MAX, Unproven, consistency_ranges, inclusion_ranges, verify_consistency,
    verify_inclusion,
};
pub use witness::{
    ADD_CHECKPOINT_PATH, AddCheckpoint, Declined, KnownTree, REQUEST_BYTES_MAX, SIZE_TYPE, judge,
    origin_digest,
};
