//! Proofs (RFC 6962, section 2.1; the checks as in RFC 9162, section 2.1): the ranges of leaves whose hashes they
//! have, and their verification.

use std::ops::Range;

use crate::hash::TreeHash;

/// Limit of hashes in a proof. No tree of 2^63 leaves needs more.
pub const PROOF_HASHES_MAX: usize = 63;

/// Why a proof proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// The leaf is not within the tree, or the older tree is larger.
    #[error("the position is not within the tree")]
    Outside,
    /// The proof has more or fewer hashes than such a proof.
    #[error("the proof has the wrong number of hashes")]
    Length,
    /// The hashes lead to another tree.
    #[error("the proof leads to another tree")]
    OtherTree,
}

/// The largest power of two below `n`, which is at least 2.
fn split(n: u64) -> u64 {
    1 << n.saturating_sub(1).checked_ilog2().unwrap_or(0)
}

/// The ranges of leaves whose hashes prove that the leaf at `index` is in a tree of `size` leaves, from the sibling of
/// the leaf to a child of the root.
///
/// # Errors
/// If there is no such leaf.
pub fn inclusion_ranges(index: u64, size: u64) -> Result<Vec<Range<u64>>, Unproven> {
    if index >= size {
        return Err(Unproven::Outside);
    }
    let mut ranges = Vec::new();
    let (mut low, mut high) = (0, size);
    while high - low > 1 {
        let middle = low + split(high - low);
        if index < middle {
            ranges.push(middle..high);
            high = middle;
        } else {
            ranges.push(low..middle);
            low = middle;
        }
    }
    ranges.reverse();
    Ok(ranges)
}

/// The ranges of leaves whose hashes prove that a tree of `old` leaves is the beginning of one of `new` leaves. None if
/// `old` is 0 or `new`.
///
/// # Errors
/// If the older tree is larger.
pub fn consistency_ranges(old: u64, new: u64) -> Result<Vec<Range<u64>>, Unproven> {
    if old > new {
        return Err(Unproven::Outside);
    }
    let mut ranges = Vec::new();
    if old == 0 || old == new {
        return Ok(ranges);
    }
    let (mut low, mut high) = (0, new);
    while high != old {
        let middle = low + split(high - low);
        if old <= middle {
            ranges.push(middle..high);
            high = middle;
        } else {
            ranges.push(low..middle);
            low = middle;
        }
    }
    // The verifier knows the hash of the older tree itself.
    if low > 0 {
        ranges.push(low..high);
    }
    ranges.reverse();
    Ok(ranges)
}

/// Verifies that the tree of `size` leaves with this root has `leaf` at `index`.
///
/// # Errors
/// If the proof does not prove it.
pub fn verify_inclusion(
    leaf: TreeHash,
    index: u64,
    size: u64,
    proof: &[TreeHash],
    root: TreeHash,
) -> Result<(), Unproven> {
    if index >= size {
        return Err(Unproven::Outside);
    }
    let (mut at, mut last, mut hash) = (index, size - 1, leaf);
    for sibling in proof {
        if last == 0 {
            return Err(Unproven::Length);
        }
        if at & 1 == 1 || at == last {
            hash = TreeHash::node(*sibling, hash);
            // A node without a right sibling is the same node one level higher.
            while at & 1 == 0 && at != 0 {
                at >>= 1;
                last >>= 1;
            }
        } else {
            hash = TreeHash::node(hash, *sibling);
        }
        at >>= 1;
        last >>= 1;
    }
    match (last, hash == root) {
        (0, true) => Ok(()),
        (0, false) => Err(Unproven::OtherTree),
        _ => Err(Unproven::Length),
    }
}

/// Verifies that a tree of `old` leaves with one root is the beginning of a tree of `new` leaves with another root.
///
/// # Errors
/// If the proof does not prove it.
pub fn verify_consistency(
    (old, old_root): (u64, TreeHash),
    (new, new_root): (u64, TreeHash),
    proof: &[TreeHash],
) -> Result<(), Unproven> {
    if old > new {
        return Err(Unproven::Outside);
    }
    if old == 0 || old == new {
        let is_same = match old {
            0 => old_root == TreeHash::empty() && (new > 0 || new_root == old_root),
            _ => old_root == new_root,
        };
        return match (proof.is_empty(), is_same) {
            (true, true) => Ok(()),
            (true, false) => Err(Unproven::OtherTree),
            (false, _) => Err(Unproven::Length),
        };
    }
    let (mut at, mut last) = (old - 1, new - 1);
    while at & 1 == 1 {
        at >>= 1;
        last >>= 1;
    }
    // A complete older tree is a node of the newer one, and is not in the proof.
    let (first, rest) = match (old.is_power_of_two(), proof.split_first()) {
        (true, Some(_)) => (old_root, proof),
        (false, Some((first, rest))) => (*first, rest),
        (_, None) => return Err(Unproven::Length),
    };
    let (mut old_hash, mut new_hash) = (first, first);
    for sibling in rest {
        if last == 0 {
            return Err(Unproven::Length);
        }
        if at & 1 == 1 || at == last {
            old_hash = TreeHash::node(*sibling, old_hash);
            new_hash = TreeHash::node(*sibling, new_hash);
            while at & 1 == 0 && at != 0 {
                at >>= 1;
                last >>= 1;
            }
        } else {
            new_hash = TreeHash::node(new_hash, *sibling);
        }
        at >>= 1;
        last >>= 1;
    }
    match (last, old_hash == old_root && new_hash == new_root) {
        (0, true) => Ok(()),
        (0, false) => Err(Unproven::OtherTree),
        _ => Err(Unproven::Length),
    }
}
