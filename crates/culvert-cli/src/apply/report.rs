//! Plans and results as people and programs read them.

use culvert_base::names::escaped;
use serde_json::{Value, json};

use super::compare::Difference;
use super::execute::{Outcome, Results};
use super::plan::{Action, Change, Plan};

/// Lines of a changed text that are shown.
const LINES_MAX: usize = 40;

impl Action {
    const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Create => "create",
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Delete => "delete",
        }
    }

    const fn sign(self) -> &'static str {
        match self {
            Self::Keep => " ",
            Self::Create => "+",
            Self::Update => "~",
            Self::Replace => "±",
            Self::Delete => "-",
        }
    }

    const fn past(self) -> &'static str {
        match self {
            Self::Keep => "unchanged",
            Self::Create => "created",
            Self::Update => "updated",
            Self::Replace => "replaced",
            Self::Delete => "deleted",
        }
    }
}

impl Change {
    /// The line that reports its result.
    pub(super) fn said(&self, outcome: &Outcome) -> String {
        let name = format!("{}/{}", self.kind.collection, self.name);
        match outcome {
            Outcome::Done(None) => format!("{name}: {}", self.action.past()),
            Outcome::Done(Some(note)) => format!("{name}: {}; {note}", self.action.past()),
            Outcome::Failed(why) => format!("{name}: {} failed: {why}", self.action.name()),
            Outcome::Skipped(why) => format!("{name}: skipped: {why}"),
        }
    }
}

/// The plan as text; unchanged objects are only counted.
pub fn as_text(plan: &Plan) -> String {
    let mut text = String::new();
    for change in plan
        .changes
        .iter()
        .filter(|change| change.action != Action::Keep)
    {
        let why = match change.why.as_str() {
            "" => String::new(),
            why => format!(" ({why})"),
        };
        let (sign, action) = (change.action.sign(), change.action.name());
        text.push_str(&format!(
            "{sign} {}/{} {action}{why}\n",
            change.kind.collection, change.name
        ));
        for difference in &change.differences {
            describe(difference, change.action == Action::Create, &mut text);
        }
    }
    let count = |action| {
        plan.changes
            .iter()
            .filter(|change| change.action == action)
            .count()
    };
    text.push_str(&format!(
        "{} to create, {} to update, {} to replace, {} to delete, {} unchanged\n",
        count(Action::Create),
        count(Action::Update),
        count(Action::Replace),
        count(Action::Delete),
        count(Action::Keep),
    ));
    text
}

/// A value as JSON, without characters that hide something on a terminal.
fn shown(value: &Value) -> String {
    escaped(&value.to_string()).into_owned()
}

fn describe(difference: &Difference, is_new: bool, text: &mut String) {
    let Difference {
        path,
        before,
        after,
    } = difference;
    let lines = |value: &Value| value.as_str().map_or(0, |it| it.lines().count());
    if lines(before) < 2 && lines(after) < 2 {
        match is_new {
            true => text.push_str(&format!("    {path}: {}\n", shown(after))),
            false => {
                text.push_str(&format!(
                    "    {path}: {} → {}\n",
                    shown(before),
                    shown(after)
                ));
            }
        }
        return;
    }
    text.push_str(&format!("    {path}:\n"));
    let of = |value: &Value| -> Vec<String> {
        value
            .as_str()
            .unwrap_or_default()
            .lines()
            .map(|it| {
                let line = it.escape_debug().to_string();
                escaped(&line.replace("\\\"", "\"").replace("\\'", "'")).into_owned()
            })
            .collect()
    };
    let (old, new) = (of(before), of(after));
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - same;
    let end = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take(rest)
        .take_while(|(a, b)| a == b)
        .count();
    let changed = |lines: &[String], sign: &str, text: &mut String| {
        let lines = lines.get(same..lines.len() - end).unwrap_or_default();
        for line in lines.iter().take(LINES_MAX) {
            text.push_str(&format!("      {sign} {line}\n"));
        }
        if lines.len() > LINES_MAX {
            text.push_str(&format!(
                "      {sign} … {} more lines\n",
                lines.len() - LINES_MAX
            ));
        }
    };
    changed(&old, "-", text);
    changed(&new, "+", text);
}

/// The plan as JSON, with the results of a run.
pub fn as_json(plan: &Plan, results: Option<&Results>) -> Value {
    let changes: Vec<Value> = plan
        .changes
        .iter()
        .enumerate()
        .map(|(index, change)| {
            let manifest = change.manifest.and_then(|at| plan.manifests.get(at));
            let differences = change
                .differences
                .iter()
                .map(|it| json!({"path": it.path, "before": it.before, "after": it.after}));
            let outcome = results.and_then(|results| results.outcomes.get(index));
            let (result, message) = match outcome {
                None => (None, None),
                Some(Outcome::Done(note)) => (Some(change.action.past()), note.as_deref()),
                Some(Outcome::Failed(why)) => (Some("failed"), Some(why.as_str())),
                Some(Outcome::Skipped(why)) => (Some("skipped"), Some(why.as_str())),
            };
            json!({
                "kind": change.kind.collection,
                "name": change.name,
                "action": change.action.name(),
                "reason": change.why,
                "id": change.id,
                "place": manifest.map(|it| &it.place),
                "differences": differences.collect::<Vec<_>>(),
                "result": result,
                "message": message,
            })
        })
        .collect();
    json!({ "changes": changes })
}
