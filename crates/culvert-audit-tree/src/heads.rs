//! Which signed heads a log continues. The last one is known by a file beside the key, by the database, and by witnesses; a
//! head of a later continuation (`+1`, `+2`) replaces all of the one before, because only the key makes it.

use culvert_base::{Fault, Timestamp};
use culvert_store::{AuditLog, AuditTree, SignedHead};
use culvert_tlog::{
    Checkpoint, SignedCheckpoint, SigningKey, VerifierKey, consistency_ranges, continuation,
    verify_consistency,
};

/// The head to continue: that of the later continuation, and else that of the file, which no access to the database changes.
pub fn latest<'a>(
    file: Option<&'a SignedCheckpoint>,
    stored: Option<&'a SignedCheckpoint>,
) -> Option<&'a SignedCheckpoint> {
    let n = |head: &SignedCheckpoint| continuation(&head.checkpoint().origin).1;
    match (file, stored) {
        (Some(file), Some(stored)) if n(stored) > n(file) => Some(stored),
        (Some(file), _) => Some(file),
        (None, stored) => stored,
    }
}

/// Whether a head is of this origin and signed by one of the keys of its log. No one else can make one.
pub fn is_own(head: &SignedCheckpoint, origin: &str, keys: &[VerifierKey]) -> bool {
    let is_by = |key: &VerifierKey| {
        key.name() == continuation(origin).0 && matches!(head.note().signed_by(key), Ok(Some(_)))
    };
    head.checkpoint().origin == origin && keys.iter().any(is_by)
}

/// Whether the end of one origin is that of another too: of the same one, or of an earlier part of the same log.
pub fn ends(ended: &str, origin: &str) -> bool {
    let ((ended, n_ended), (log, n)) = (continuation(ended), continuation(origin));
    ended == log && n_ended >= n
}

/// Whether the tree begins with that of a head.
pub async fn is_continued(
    log: &AuditLog,
    tree: &AuditTree,
    head: &SignedCheckpoint,
) -> Result<bool, Fault> {
    let head = head.checkpoint();
    Ok(head.size <= tree.size && log.root(head.size).await? == head.root)
}

/// Whether a new head extends the tree of an older one, as a witness proves it. The stored hashes need not fit together:
/// an attacker with the database can keep those of the old root and give others for the new one.
pub async fn is_extended(
    log: &AuditLog,
    old: &Checkpoint,
    new: &Checkpoint,
) -> Result<bool, Fault> {
    let Ok(ranges) = consistency_ranges(old.size, new.size) else {
        return Ok(false);
    };
    let proof = log.range_hashes(&ranges).await?;
    Ok(verify_consistency((old.size, old.root), (new.size, new.root), &proof).is_ok())
}

/// Whether a head is of the beginning of the tree, and the whole tree extends it: the comparison and the next
/// signature use different hashes of the database.
pub async fn is_begun_by(
    log: &AuditLog,
    tree: &AuditTree,
    head: &SignedCheckpoint,
) -> Result<bool, Fault> {
    if !is_continued(log, tree, head).await? {
        return Ok(false);
    }
    let old = head.checkpoint();
    let whole = log.head(&old.origin, tree.size).await?;
    is_extended(log, old, &whole).await
}

/// The head of the whole tree, signed.
pub async fn signed(
    log: &AuditLog,
    tree: &AuditTree,
    key: &SigningKey,
    origin: &str,
    at: Timestamp,
) -> Result<SignedHead, Fault> {
    let head = log.head(origin, tree.size).await?;
    let line = key.sign(&head.to_string(), 0);
    let unwritable = || Fault::bare("signing the audit log: its head cannot be written");
    let checkpoint = SignedCheckpoint::new(head, vec![line]).ok_or_else(unwritable)?;
    Ok(SignedHead { at, checkpoint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_continuation_is_that_of_those_before() {
        for (ended, origin, expected) in [
            ("log", "log", true),
            ("log+2", "log", true),
            ("log+2", "log+2", true),
            ("log", "log+1", false),
            ("log+2", "log+3", false),
            ("other+2", "log", false),
        ] {
            assert_eq!(ends(ended, origin), expected, "{ended} {origin}");
        }
    }
}
