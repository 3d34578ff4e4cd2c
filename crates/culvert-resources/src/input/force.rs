//! The query parameter `force` of changes that do harm.

use culvert_base::{Refusal, code};

use crate::list::page::Parameter;

/// The query parameter of changes that can lock out.
pub const FORCED: &[Parameter] = &[FORCE];

/// The query parameter `force`.
pub const FORCE: Parameter = Parameter {
    name: "force",
    doc: "`true` makes the change even if it locks out all admins, or the caller.",
    repeatable: false,
    within: None,
};

/// Parses `force=true` in the query of such a change. Codes 215, 231 and 232.
pub fn forced(query: &[(String, String)]) -> Result<bool, Refusal> {
    let wrong = |code, why: &'static str| Err(Refusal::new(code, why));
    match query {
        [] => Ok(false),
        [(name, value)] if name == FORCE.name => match value.as_str() {
            "true" => Ok(true),
            "false" | "" => Ok(false),
            _ => wrong(
                code::BODY_FIELD_INVALID,
                "`force` must be `true` or `false`.",
            ),
        },
        [(name, _), ..] if name != FORCE.name => wrong(
            code::QUERY_PARAMETER_UNKNOWN,
            "The only query parameter of this operation is `force`.",
        ),
        _ => wrong(code::QUERY_PARAMETER_REPEATED, "`force` is repeated."),
    }
}
