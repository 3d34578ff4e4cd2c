//! The process environment.

use std::collections::HashMap;

/// The environment of the process. Only this function reads it.
pub fn environment() -> HashMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
