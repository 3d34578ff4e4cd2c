//! The last head of the audit log that this node knows to be signed: a file beside the key, apart from the database, so that
//! a database that is older or another one is noticed. It is synced to disk before the head is published. A file that is
//! behind is as good as a new one: a log may grow.

use std::path::Path;

use anyhow::{Context, Result};
use culvert_tlog::SignedCheckpoint;

use crate::keys::write_private;

/// Reads the head; `None` if there is no file.
///
/// # Errors
/// If the file cannot be read or has no head.
pub fn load(path: &Path) -> Result<Option<SignedCheckpoint>> {
    let shown = path.display();
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading `{shown}`")),
    };
    let head = SignedCheckpoint::parse(&bytes).with_context(|| format!("`{shown}`"))?;
    Ok(Some(head))
}

/// Writes the head, and returns when file and directory are synced to disk.
///
/// # Errors
/// If the file cannot be written.
pub fn store(path: &Path, head: &SignedCheckpoint) -> Result<()> {
    write_private(path, &head.to_string())
}
