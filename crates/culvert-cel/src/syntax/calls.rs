//! Finds the calls of a function in an expression whose arguments are string literals.

use crate::limits::Limits;
use crate::syntax::ast::{Expr, ExprKind, Literal};
use crate::syntax::parse;

/// The arguments of each call of `function`, such as `secrets.get`, in the order of the text. Only calls whose
/// arguments are all string literals count. Empty if `source` is not an expression within `limits`.
pub fn literal_calls(source: &str, function: &str, limits: &Limits) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    if let Ok(expression) = parse::parse(source, limits) {
        walk(&expression, function, &mut found);
    }
    found
}

/// Whether `source` uses `function`, such as `secrets.get`, or the name before its dot, in any other way than in a
/// call whose arguments are all string literals. `false` if `source` is not an expression within `limits`.
pub fn has_computed_calls(source: &str, function: &str, limits: &Limits) -> bool {
    let Ok(expression) = parse::parse(source, limits) else {
        return false;
    };
    let root = function.split('.').next().unwrap_or(function);
    let mut literal = Vec::new();
    walk(&expression, function, &mut literal);
    let mut n_named = 0;
    count(&expression, root, &mut n_named);
    n_named > literal.len()
}

/// What `source` reads of the variable `root`: for each occurrence, the names of the selections that follow it, such as
/// `["x", "y"]` for `vars.x['y']`, up to the first that is computed. A use of the whole variable is an empty list. Empty
/// if `source` is not an expression within `limits`.
pub fn selections(source: &str, root: &str, limits: &Limits) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    if let Ok(expression) = parse::parse(source, limits) {
        select(&expression, root, &mut found);
    }
    found
}

fn select(expression: &Expr, root: &str, found: &mut Vec<Vec<String>>) {
    match selected(expression, root) {
        Some(names) => found.push(names),
        None => each_part(expression, &mut |part| select(part, root, found)),
    }
}

/// The selections that `expression` consists of, if it begins with this variable.
fn selected(expression: &Expr, root: &str) -> Option<Vec<String>> {
    let (operand, name) = match &expression.kind {
        ExprKind::Name(name) => return (**name == *root).then(Vec::new),
        ExprKind::Select { operand, field } => (operand, field.to_string()),
        ExprKind::Index { operand, index } => (operand, text(index)?),
        _ => return None,
    };
    let mut names = selected(operand, root)?;
    names.push(name);
    Some(names)
}

/// Counts the occurrences of a name.
fn count(expression: &Expr, root: &str, n_named: &mut usize) {
    if let ExprKind::Name(name) = &expression.kind
        && **name == *root
    {
        *n_named += 1;
    }
    each_part(expression, &mut |part| count(part, root, n_named));
}

fn walk(expression: &Expr, function: &str, found: &mut Vec<Vec<String>>) {
    each_part(expression, &mut |part| walk(part, function, found));
    if let ExprKind::Call {
        name,
        target,
        arguments,
    } = &expression.kind
    {
        let called = match target {
            None => Some(name.to_string()),
            Some(target) => path(target).map(|path| format!("{path}.{name}")),
        };
        let texts: Option<Vec<String>> = arguments.iter().map(text).collect();
        if let (true, Some(texts)) = (called.as_deref() == Some(function), texts) {
            found.push(texts);
        }
    }
}

/// Calls `each` with the direct subexpressions, in the order of the text.
fn each_part(expression: &Expr, each: &mut dyn FnMut(&Expr)) {
    match &expression.kind {
        ExprKind::Literal(_) | ExprKind::Name(_) => {}
        ExprKind::Select { operand, .. }
        | ExprKind::Has(operand)
        | ExprKind::Not(operand)
        | ExprKind::Negate(operand) => each(operand),
        ExprKind::Index { operand, index } => {
            each(operand);
            each(index);
        }
        ExprKind::Call {
            target, arguments, ..
        } => {
            target.iter().for_each(|target| each(target));
            arguments.iter().for_each(&mut *each);
        }
        ExprKind::Binary { left, right, .. } => {
            each(left);
            each(right);
        }
        ExprKind::And(parts) | ExprKind::Or(parts) | ExprKind::List(parts) => {
            parts.iter().for_each(&mut *each);
        }
        ExprKind::Conditional(parts) => parts.iter().for_each(&mut *each),
        ExprKind::Map(entries) => entries.iter().for_each(|(key, value)| {
            each(key);
            each(value);
        }),
        ExprKind::Fold(fold) => {
            each(&fold.range);
            fold.condition.iter().for_each(&mut *each);
            each(&fold.body);
        }
    }
}

fn text(expression: &Expr) -> Option<String> {
    match &expression.kind {
        ExprKind::Literal(Literal::String(text)) => Some(text.to_string()),
        _ => None,
    }
}

fn path(expression: &Expr) -> Option<String> {
    match &expression.kind {
        ExprKind::Name(name) => Some(name.to_string()),
        ExprKind::Select { operand, field } => Some(format!("{}.{field}", path(operand)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_with_literals_are_found_wherever_they_stand() {
        for (source, expected) in [
            ("secrets.get('v', 'n')", 1),
            ("secrets.get(\"v\", r'n')", 1),
            ("!(a == 'x' || secrets . get('v', 'n') == b)", 1),
            (
                "[1, 2].exists(x, x == 1 && secrets.get('v', 'n') == 'y')",
                1,
            ),
            ("[1, 2].map(x, x > 1, secrets.get('v', 'n'))", 1),
            (
                "a ? {'k': secrets.get('v', 'n')} : [secrets.get('v', 'n')][0]",
                2,
            ),
            (
                "secrets.get('v', 'n').size() + -size(secrets.get('v', 'n'))",
                2,
            ),
            ("secrets.get('v', 'n' + 'o')", 0),
            ("secrets.get(x, 'n')", 0),
            ("other.get('v', 'n')", 0),
            ("get('v', 'n')", 0),
            ("\"secrets.get('v', 'n')\"", 0),
            ("secrets.get('v', 'n'", 0),
        ] {
            let found = literal_calls(source, "secrets.get", &Limits::POLICY);
            let expected = vec![vec!["v".to_owned(), "n".to_owned()]; expected];
            assert_eq!(found, expected, "{source}");
        }
    }

    #[test]
    fn computed_names_are_reported() {
        for (source, expected) in [
            ("secrets.get('v', 'n')", false),
            ("secrets.get('v', 'n') + secrets . get(\"v\", r'n')", false),
            ("a.secrets.get(x, 'n')", false),
            ("'secrets'", false),
            ("secrets.get('v', 'n' + 'o')", true),
            ("secrets.get(x, 'n')", true),
            ("secrets.get('v', 'n') + secrets.get('v', x)", true),
            ("secrets.get('v', secrets.get('v', 'n'))", true),
            ("[secrets].map(s, s.get('v', 'n'))", true),
            ("secrets['v']['n']", true),
            ("secrets.v", true),
            ("size(secrets)", true),
            ("has(secrets.v)", true),
        ] {
            let found = has_computed_calls(source, "secrets.get", &Limits::POLICY);
            assert_eq!(found, expected, "{source}");
        }
    }

    #[test]
    fn selections_of_a_variable_are_found() {
        for (source, expected) in [
            ("vars.x", vec!["x"]),
            ("vars['x'].y + vars.z", vec!["x.y", "z"]),
            ("vars[vars.k]", vec!["", "k"]),
            ("vars.x[req.method].y", vec!["x"]),
            ("size(vars)", vec![""]),
            (
                "has(vars.x) ? [1].map(y, vars.y)[0] : {'a': vars.z}",
                vec!["x", "y", "z"],
            ),
            ("req.vars.x", vec![]),
            ("'vars.x'", vec![]),
            ("vars.x +", vec![]),
        ] {
            let found = selections(source, "vars", &Limits::POLICY);
            let found: Vec<String> = found.iter().map(|names| names.join(".")).collect();
            assert_eq!(found, expected, "{source}");
        }
    }
}
