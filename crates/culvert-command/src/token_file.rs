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

/// The ID of the object that a token is for, such as `ak_…` of an API key. Tokens without a kind are of objects with the
/// prefix `usual`. `None` for a text that is no token.
pub fn id_of(token: &str, usual: &str) -> Option<String> {
    const BODY_LENGTH: usize = 27;
    let (prefix, rest) = match token.strip_prefix("culvert_") {
        Some(rest) => match rest.split_once('_')? {
            ("key", rest) => ("ak", rest),
            ("agent", rest) => ("cr", rest),
            _ => return None,
        },
        None => (usual, token),
    };
    let (body, secret) = rest.split_once('_')?;
    let is_body =
        body.len() == BODY_LENGTH && body.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_body && !secret.is_empty()).then(|| format!("{prefix}_{body}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_object_without_its_secret() {
        let body = "3MoUVnDcmveLvyNjcHw81JakXmX";
        for (token, id) in [
            (format!("culvert_key_{body}_secret"), Some("ak")),
            (format!("culvert_agent_{body}_secret"), Some("cr")),
            (format!("culvert_link_{body}_secret"), None),
            (format!("{body}_secret"), Some("cr")),
            (format!("{body}_"), None),
            ("a_secret".to_owned(), None),
            (format!("secret_{body}"), None),
            (String::new(), None),
        ] {
            let expected = id.map(|prefix| format!("{prefix}_{body}"));
            assert_eq!(id_of(&token, "cr"), expected, "{token}");
        }
    }
}
