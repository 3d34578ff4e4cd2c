//! The reference page of the policy language, drawn from its tables.

use std::collections::BTreeMap;
use std::fmt::Write;

use culvert_cel::{Extension, STANDARD};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use crate::action_type::{ActionType, Actions, NOT_BUILT};
use crate::policy::functions;
use crate::policy::phase::{Ends, Phase};
use crate::policy::variables;
use crate::scheme::Scheme;

/// `docs/reference/traffic-policy.md`.
pub fn reference(actions: Actions) -> String {
    let guards = actions.sorted().into_iter().filter(|ty| ty.guards);
    let guards: Vec<_> = guards.map(|ty| format!("`{}`", ty.name)).collect();
    let rows = Phase::ALL.map(|phase| {
        let endpoints = match phase {
            Phase::Connect => "all",
            Phase::Request | Phase::Response => "http, https",
        };
        format!("| `{}` | {} | {endpoints} |\n", phase.name(), phase.doc())
    });
    let mut page = INTRODUCTION.replace("{guards}", &guards.join(", "));
    page = page.replace("{phases}", &rows.concat());
    page.push_str("## Actions\n\n| action | phases | ends the phase |\n|---|---|---|\n");
    let actions = actions.sorted();
    for ty in &actions {
        let ends = match ty.ends {
            Ends::Never => "no",
            Ends::Sometimes => "when it rejects or redirects",
            Ends::Always => "yes",
        };
        line(
            &mut page,
            &[format!("[{0}](#{0})", ty.name), phases(ty), ends.to_owned()],
        );
    }
    for ty in &actions {
        push_action(&mut page, ty);
    }
    page.push_str("\n### Unsupported actions\n\nPolicies with these actions are rejected.\n\n| action | reason |\n|---|---|\n");
    for row in NOT_BUILT {
        line(
            &mut page,
            &[format!("`{}`", row.name), row.reason.to_owned()],
        );
    }
    page.push_str("\n## Variables\n\nA variable is available in its phase and later phases. Without a value, a string, list or map is empty, a number is 0, a bool is false, and other types are absent.\n\n| variable | type | from | set | |\n|---|---|---|---|---|\n");
    for variable in variables::ALL
        .iter()
        .filter(|variable| !variable.path.starts_with('('))
    {
        let cells = [
            format!("`{}`", variable.path),
            format!("`{}`", variable.of),
            format!("`{}`", variable.since.name()),
            variable.filled.text().into_owned(),
            variable.doc.to_owned(),
        ];
        line(&mut page, &cells);
    }
    page.push_str("\n## Functions\n\n| function | |\n|---|---|\n");
    for function in functions::ALL.iter() {
        let calls: Vec<String> = calls(function.extension)
            .map(|call| format!("`{call}`"))
            .collect();
        line(
            &mut page,
            &[calls.join("<br>"), function.extension.doc.to_owned()],
        );
    }
    page.push_str("\n### Functions of CEL\n\nThe accessors of times take a time zone: an offset such as `+02:00` or a name such as `Europe/Vienna`.\n\n| function | |\n|---|---|\n");
    for row in STANDARD {
        line(&mut page, &[format!("`{}`", row.call), row.doc.to_owned()]);
    }
    page
}

const INTRODUCTION: &str = "# Traffic policy

Generated from the code that runs policies. The [guide](../how-to/traffic-policy.md) has examples.

A policy is a YAML 1.2 or JSON document of at most 256 KiB with a list of rules per phase. A rule has an
optional `name`, `expressions` that must all be true (a rule without expressions always runs), and `actions`
that run in order. Anchors and aliases are supported; merge keys, tags and duplicate keys are not.

| phase | runs | endpoints |
|---|---|---|
{phases}
Limits: 100 rules per phase, 20 expressions and 20 actions per rule. An expression may have 4096 bytes and 2000
nodes, and all regular expressions of a policy 4 MiB when they are compiled. An evaluation may take 100,000 steps and 1 MiB of memory, with texts of 64 KiB and lists of 1024 items; JSON
may be nested 127 levels deep. The text of a template and the value of a variable or result may have 1 MiB, and all
variables of a phase 64 KiB. A request that exceeds one of these limits is rejected with 500 (`ERR_NGROK_2301`), and a
connection is closed, whatever the rule does: clients can reach limits at will, so a limit never means that a rule does
not match.

If an expression fails for another reason, such as a missing header, and no other expression of its rule is false, the
rule rejects the request with 500 if it has an action that restricts access: {guards}.
Otherwise it does not match. `policy.on_expression_error` changes that: `deny` rejects in any case, `skip` never. In a
rule with `terminate-tls`, a failure always closes the connection. `culvert_edge_policy_failures_total` counts failures,
and `culvert_edge_policy_refusals_total` the requests and connections that are rejected because of them.

A policy that uses a variable whose data is not loaded is rejected when it is written. If the data becomes
unavailable later, the endpoint rejects all traffic until it is loaded again.

Expressions and actions see the original message. Only the recipient of the message sees the changes of actions.

Strings that support `${…}` can contain expressions; `$${` is a literal `${`. If an expression fails, its value is
empty. In credentials, addresses and URLs, where an empty value would be unsafe, the request is rejected, as it is
after a limit.

";

fn push_action(page: &mut String, ty: &ActionType) {
    // Writing to a string cannot fail.
    let _ok = write!(page, "\n### {}\n\n{}\n", ty.name, ty.doc);
    if ty.schemes.len() < Scheme::ALL.len() {
        let names: Vec<_> = ty.schemes.iter().map(|scheme| scheme.name()).collect();
        let _ok = write!(
            page,
            "\nFor endpoints with the scheme {}.\n",
            names.join(" or ")
        );
    }
    let Some(schema) = ty.schema else {
        page.push_str("\nThis action has no configuration.\n");
        return;
    };
    let schema = schema_value(schema);
    page.push_str("\n| field | type | |\n|---|---|---|\n");
    push_fields(page, "", &schema, ty.secrets);
}

/// The schema of a configuration, without references.
pub fn schema_value(schema: fn(&mut SchemaGenerator) -> Schema) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    schema(&mut settings.into_generator()).to_value()
}

/// The fields of an object, and those of the objects in it. `secrets` are those that are encrypted at rest.
fn push_fields(page: &mut String, prefix: &str, schema: &Value, secrets: &[&str]) {
    let texts = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let required = texts(&schema["required"]);
    let fields: BTreeMap<&String, &Value> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .collect();
    for (name, field) in fields {
        let mut doc = field["description"]
            .as_str()
            .unwrap_or_default()
            .replace('\n', " ");
        let choices = texts(&field["enum"]);
        if !choices.is_empty() {
            let _ok = write!(doc, " One of `{}`.", choices.join("`, `"));
        }
        if required.contains(name) {
            doc.push_str(" Required.");
        }
        let path = format!("{prefix}{name}");
        if secrets.contains(&path.as_str()) {
            doc.push_str(" Encrypted at rest.");
        }
        line(page, &[format!("`{path}`"), kind(field), doc]);
        push_fields(page, &format!("{path}."), field, secrets);
        push_fields(page, &format!("{path}[]."), &field["items"], secrets);
    }
}

fn phases(ty: &ActionType) -> String {
    let names = ty
        .phases
        .iter()
        .map(|phase: &Phase| format!("`{}`", phase.name()));
    names.collect::<Vec<_>>().join(", ")
}

/// The type of a field in words.
pub fn kind(field: &Value) -> String {
    let name = match &field["type"] {
        Value::String(name) => name.as_str(),
        Value::Array(names) => names
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null")
            .unwrap_or("any"),
        _ => match field["anyOf"].as_array().and_then(|any| any.first()) {
            Some(first) => return kind(first),
            None => "any",
        },
    };
    match name {
        "array" => "list".to_owned(),
        "string" => "text".to_owned(),
        "boolean" => "bool".to_owned(),
        other => other.to_owned(),
    }
}

/// How a function is called, one text for each signature, without the variable that it reads implicitly.
pub fn calls(extension: &Extension) -> impl Iterator<Item = String> {
    let signatures = extension.signatures.iter();
    signatures.map(|signature| call(extension, signature))
}

fn call(extension: &Extension, signature: &str) -> String {
    let (parameters, result) = signature
        .trim_start_matches('(')
        .rsplit_once(") -> ")
        .unwrap_or((signature, ""));
    let mut parameters = split(parameters);
    let name = extension.name;
    if extension.reads.is_some() || extension.is_member {
        let first = if parameters.is_empty() {
            String::new()
        } else {
            parameters.remove(0)
        };
        if extension.is_member {
            return format!("{first}.{name}({}) -> {result}", parameters.join(", "));
        }
    }
    format!("{name}({}) -> {result}", parameters.join(", "))
}

/// Parameters at commas outside of brackets.
fn split(parameters: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for character in parameters.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = parts.last_mut() {
            last.push(character);
        }
    }
    parts
        .iter()
        .map(|part| part.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}

/// A row of a table.
fn line(page: &mut String, cells: &[String]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    let _ok = writeln!(page, "| {} |", cells.join(" | "));
}
