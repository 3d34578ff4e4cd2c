//! set-vars: sets variables for the rest of the phase.

use std::collections::BTreeMap;

use culvert_base::code;
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::template::ValueTemplate;
use culvert_policy::policy::values::to_json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// Maximum nesting of a value.
const NESTING_MAX: usize = 10;
/// Maximum size of all variables of a phase as JSON, in bytes.
const BYTES_MAX: usize = 64 << 10;

pub(crate) static TYPE: ActionType = ActionType {
    name: "set-vars",
    doc: "Sets variables for later expressions of the same phase, as `vars.<name>`. Each entry can use earlier ones. All variables of a phase may have 64 KiB in total; a request that exceeds the limit is rejected with 500, a connection is closed.",
    phases: &[Phase::Connect, Phase::Request, Phase::Response],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| {
        let config: Config = context.config()?;
        let mut vars = Vec::with_capacity(config.vars.len());
        for (index, entry) in config.vars.into_iter().enumerate() {
            vars.push(variable(context, index, entry)?);
        }
        Ok(Box::new(SetVars { vars }))
    },
    ..ActionType::PLAIN
};

fn variable(
    context: &PolicyContext<'_>,
    index: usize,
    entry: BTreeMap<String, Value>,
) -> Result<(String, ValueTemplate), culvert_base::Refusal> {
    let field = format!("vars[{index}]");
    let mut entries = entry.into_iter();
    let (Some((name, value)), None) = (entries.next(), entries.next()) else {
        let why = format!("`{field}` must be one name and its value");
        return Err(context.refuse(code::POLICY_VARIABLE_MALFORMED, &why));
    };
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.len() <= 64
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !is_name {
        let why = format!(
            "`{field}`: a name may have at most 64 letters, digits and `_` and must not start with a digit"
        );
        return Err(context.refuse(code::POLICY_VARIABLE_MALFORMED, &why));
    }
    if depth(&value) > NESTING_MAX {
        let why = format!("`{field}` is nested deeper than {NESTING_MAX} levels");
        return Err(context.refuse(code::POLICY_VARIABLE_TOO_DEEP, &why));
    }
    let value = context.variable(&field, &name, &value)?;
    Ok((name, value))
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(entries) => 1 + entries.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SetVars")]
struct Config {
    /// Objects with one key each: a name and its value. Strings support `${…}`; a string that is
    /// only one `${…}` keeps the type of its value.
    vars: Vec<BTreeMap<String, Value>>,
}

#[derive(Debug)]
struct SetVars {
    vars: Vec<(String, ValueTemplate)>,
}

impl Action for SetVars {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        for (name, template) in &self.vars {
            let value = template.render(x);
            let size = |value: &culvert_cel::Value| to_json(value.borrow()).to_string().len();
            let others = x.memory.vars.iter().filter(|(known, _)| known != name);
            let bytes: usize = others.map(|(_, value)| size(value)).sum();
            // A rule that reads the variable must not run without it.
            if bytes + size(&value) > BYTES_MAX {
                x.limit_reached();
                break;
            }
            x.set_var(name, value);
        }
        Flow::Continue.into()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.vars
            .iter()
            .flat_map(|(_, template)| template.slots())
            .collect()
    }
}
