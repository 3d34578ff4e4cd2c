//! Files with a token.

use std::path::Path;

use anyhow::{Context, Result};

/// The first line of a token file.
///
/// # Errors
/// If the file cannot be read.
pub fn read_token(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the token file `{}`", path.display()))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
