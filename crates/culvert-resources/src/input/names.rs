//! Names that people read: what they must not have, and who may be called how.

use culvert_base::{Refusal, code, names};
use serde_json::Value;

/// Refuses deceptive characters in the names of a body (661): in every text whose key is `email`, `name` or ends in
/// `_name`. Stored names that have some stay readable.
pub fn check_names(body: Option<&Value>) -> Result<(), Refusal> {
    match body {
        Some(Value::Object(entries)) => {
            for (key, value) in entries {
                let is_name = key == "email" || key == "name" || key.ends_with("_name");
                match value {
                    Value::String(text) if is_name => check_name(key, text)?,
                    value => check_names(Some(value))?,
                }
            }
        }
        Some(Value::Array(items)) => {
            for item in items {
                check_names(Some(item))?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Refuses deceptive characters in a name (661).
pub fn check_name(field: &str, name: &str) -> Result<(), Refusal> {
    let Some(character) = names::deceptive_in(name) else {
        return Ok(());
    };
    let why = format!(
        "`{field}` has the character U+{:04X}; names must not have control characters, invisible characters, or \
         characters that change the direction of text.",
        u32::from(character)
    );
    Err(Refusal::new(code::NAME_CHARACTER_INVALID, why))
}

/// Refuses a name of a bot that has the form of an e-mail address (662): users have one, so a bot cannot be mistaken for
/// a user, also after later invitations and renames.
pub fn check_bot_name(name: &str) -> Result<(), Refusal> {
    if names::is_like_email(&names::folded(name)) {
        let why = "`name` has the form of an e-mail address; only users are called so.";
        return Err(Refusal::new(code::NAME_LIKE_USER, why));
    }
    Ok(())
}
