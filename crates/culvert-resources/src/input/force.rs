//! The query parameters of changes: `force` of those that do harm, and `dry_run` of those that can be tried.

use culvert_base::{Refusal, code};

use crate::list::page::{Form, Parameter};

/// The query parameter of changes that can lock out.
pub const FORCED: &[Parameter] = &[FORCE];

/// The query parameter `force`.
pub const FORCE: Parameter = Parameter {
    name: "force",
    doc: "`true` makes the change even if it locks out all admins, or the caller.",
    repeatable: false,
    within: None,
    form: Form::Flag,
};

/// Parses `force=true` in the query of such a change. Codes 215, 231 and 232.
pub fn forced(query: &[(String, String)]) -> Result<bool, Refusal> {
    flag(query, FORCED, &FORCE)
}

/// The query parameter of creations that can be tried.
pub const DRY_RUN: Parameter = Parameter {
    name: "dry_run",
    doc: "`true` stores nothing, and shows with status 200 what the object could do.",
    repeatable: false,
    within: None,
    form: Form::Flag,
};

/// The value of a query parameter that is `true` or `false`; false without it.
///
/// # Errors
///
/// 215 for another value, 231 for a parameter that is not in `accepted`, and 232 for one that is repeated.
pub fn flag(
    query: &[(String, String)],
    accepted: &[Parameter],
    wanted: &Parameter,
) -> Result<bool, Refusal> {
    let mut is_set = false;
    for (index, (name, value)) in query.iter().enumerate() {
        if !accepted.iter().any(|parameter| parameter.name == name) {
            return Err(unknown(accepted));
        }
        if query.iter().take(index).any(|(earlier, _)| earlier == name) {
            let why = format!("`{name}` is repeated.");
            return Err(Refusal::new(code::QUERY_PARAMETER_REPEATED, why));
        }
        if name != wanted.name {
            continue;
        }
        is_set = match value.as_str() {
            "true" => true,
            "false" | "" => false,
            _ => {
                let why = format!("`{name}` must be `true` or `false`.");
                return Err(Refusal::new(code::BODY_FIELD_INVALID, why));
            }
        };
    }
    Ok(is_set)
}

fn unknown(accepted: &[Parameter]) -> Refusal {
    let names: Vec<String> = accepted
        .iter()
        .map(|parameter| format!("`{}`", parameter.name))
        .collect();
    let why = match names.as_slice() {
        [name] => format!("The only query parameter of this operation is {name}."),
        names => format!(
            "The query parameters of this operation are {}.",
            names.join(" and ")
        ),
    };
    Refusal::new(code::QUERY_PARAMETER_UNKNOWN, why)
}
