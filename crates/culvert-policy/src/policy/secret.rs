//! Redacts the secrets in a policy's text, and restores them when the redacted text is submitted again.

use std::ops::Range;

use culvert_base::{Refusal, code};
use serde_json::Value;

use crate::action_type::{ActionType, Actions};
use crate::policy::context::refusal;
use crate::policy::phase::Phase;
pub use crate::policy::redacted::REDACTED;
use crate::policy::source::Source;
use culvert_yaml::{Node, Text};

impl Source {
    /// The text with redacted secrets; `None` if it has none. All other bytes are unchanged, except if a
    /// secret is in a block scalar: then the policy is returned as JSON.
    pub fn redacted(&self) -> Option<String> {
        let mut root = self.root.clone();
        let mut places = Vec::new();
        for rule in rules(&mut root) {
            secrets(rule, self.known, &mut |text| {
                places.push(text.at.clone());
                REDACTED.clone_into(&mut text.value);
            });
        }
        if places.is_empty() {
            return None;
        }
        let replaced = places
            .into_iter()
            .map(|at| Some((at?, REDACTED.to_owned())));
        let shown = replaced
            .collect::<Option<Vec<_>>>()
            .map(|replaced| replace(&self.text, replaced));
        let wanted = root.to_json();
        let is_right = |text: &String| Node::parse(text).is_ok_and(|node| node.to_json() == wanted);
        Some(
            shown
                .filter(is_right)
                .unwrap_or_else(|| format!("{wanted:#}\n")),
        )
    }

    /// Whether it is certain where its secrets are: all keys are phases with lists of rules, and all actions have a known
    /// type. Another document, or a policy that the server will refuse, may have secrets anywhere.
    pub fn has_known_secrets(&self) -> bool {
        let mut root = self.root.clone();
        let Node::Object(entries) = &root else {
            return false;
        };
        let is_phase = |name: &str| Phase::ALL.iter().any(|phase| phase.name() == name);
        let has_rules = |value: &Node| matches!(value, Node::List(_));
        if !entries
            .iter()
            .all(|(name, value)| is_phase(name) && has_rules(value))
        {
            return false;
        }
        rules(&mut root).into_iter().all(|rule| {
            let count = match entry(rule, "actions") {
                Some(Node::List(actions)) => actions.len(),
                Some(_) => return false,
                None => 0,
            };
            actions(rule, self.known).len() == count
        })
    }

    /// Replaces each `[redacted]` in this text by the secret in `before`: in rules that are otherwise equal,
    /// or if both texts have exactly one secret of that kind.
    ///
    /// # Errors
    /// If a secret cannot be restored (2204).
    pub fn restored(self, before: Option<&Self>) -> Result<Self, Refusal> {
        self.restored_in(before, true)
    }

    /// Like [`Source::restored`], but only in rules that are otherwise equal. For an author who may not read the
    /// secrets: a changed rule could send them elsewhere.
    ///
    /// # Errors
    /// If a secret cannot be restored (2204).
    pub fn restored_in_place(self, before: Option<&Self>) -> Result<Self, Refusal> {
        self.restored_in(before, false)
    }

    /// Whether all secrets of this text are secrets of `before` too.
    pub fn has_only_secrets_of(&self, before: &Self) -> bool {
        let values = |source: &Self| -> Vec<String> {
            let secrets = all(&mut source.root.clone(), source.known);
            secrets.into_iter().map(|(_, secret)| secret).collect()
        };
        let before = values(before);
        values(self).iter().all(|secret| before.contains(secret))
    }

    fn restored_in(self, before: Option<&Self>, in_changed: bool) -> Result<Self, Refusal> {
        let actions = self.known;
        let mut root = self.root.clone();
        let wants = |rule: &mut Node| {
            let mut wants = false;
            secrets(rule, actions, &mut |text| wants |= text.value == REDACTED);
            wants
        };
        if !rules(&mut root).into_iter().any(wants) {
            return Ok(self);
        }
        let mut old = before.map_or(Node::Null, |before| before.root.clone());
        let only = match (
            all(&mut root, actions).as_slice(),
            all(&mut old, actions).as_slice(),
        ) {
            ([(kind, _)], [(same, text)]) if in_changed && kind == same => Some(text.clone()),
            _ => None,
        };
        let mut places = Vec::new();
        let mut is_known = true;
        for phase in Phase::ALL {
            // Rules that differ only in their secrets are matched in order.
            let mut same_before: Vec<Value> = Vec::new();
            let mut copy = root.clone();
            let all_plain: Vec<Value> = rules_of(&mut copy, phase)
                .into_iter()
                .map(|rule| without_secrets(rule, actions))
                .collect();
            for rule in rules_of(&mut root, phase) {
                let plain = without_secrets(rule, actions);
                let nth = same_before.iter().filter(|node| **node == plain).count();
                let mut same: Vec<_> = rules_of(&mut old, phase)
                    .into_iter()
                    .filter(|old| without_secrets(old, actions) == plain)
                    .collect();
                // If one of several equal rules was added or removed, their order does not identify them.
                let n_now = all_plain.iter().filter(|node| **node == plain).count();
                let is_unclear = n_now != same.len() && have_other_secrets(&mut same, actions);
                let nth = nth.min(same.len().saturating_sub(1));
                let mut theirs = Vec::new();
                if let Some(same) = same.get_mut(nth) {
                    secrets(same, actions, &mut |text| theirs.push(text.value.clone()));
                }
                same_before.push(plain);
                let mut theirs = theirs.into_iter();
                secrets(rule, actions, &mut |text| {
                    let secret = theirs.next().or_else(|| only.clone());
                    if text.value == REDACTED {
                        match secret {
                            Some(secret) if !is_unclear => {
                                places.push(text.at.clone().map(|at| (at, secret.clone())));
                                text.value = secret;
                            }
                            _ => is_known = false,
                        }
                    }
                });
            }
        }
        if !is_known {
            let why =
                "`[redacted]` stands for a secret, and it is unclear which one; send the secret";
            return Err(refusal(code::POLICY_VALUE_INVALID, "", why));
        }
        let wanted = root.to_json();
        let text = places
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .map(|places| replace(&self.text, places));
        let is_right = |text: &String| Node::parse(text).is_ok_and(|node| node.to_json() == wanted);
        let text = text
            .filter(is_right)
            .unwrap_or_else(|| format!("{wanted:#}\n"));
        Self::read(&text, self.known)
    }
}

/// Replaces these parts of the text by strings.
fn replace(text: &str, mut parts: Vec<(Range<usize>, String)>) -> String {
    let mut text = text.to_owned();
    parts.sort_by_key(|(at, _)| std::cmp::Reverse(at.start));
    // Through an alias, several secrets share one place.
    parts.dedup_by(|(a, _), (b, _)| a == b);
    for (at, value) in parts {
        text.replace_range(at, &Value::String(value).to_string());
    }
    text
}

/// Whether the secrets of these rules differ.
fn have_other_secrets(rules: &mut [&mut Node], known: Actions) -> bool {
    let mut all = rules.iter_mut().map(|rule| {
        let mut found = Vec::new();
        secrets(rule, known, &mut |text| found.push(text.value.clone()));
        found
    });
    let first = all.next();
    all.any(|other| Some(&other) != first.as_ref())
}

fn without_secrets(rule: &Node, known: Actions) -> Value {
    let mut rule = rule.clone();
    secrets(&mut rule, known, &mut |text| {
        REDACTED.clone_into(&mut text.value)
    });
    rule.to_json()
}

/// Every secret, with the type of its action.
fn all(root: &mut Node, known: Actions) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for rule in rules(root) {
        for (kind, action) in actions(rule, known) {
            secrets_of(kind, action, &mut |text| {
                found.push((kind.name, text.value.clone()))
            });
        }
    }
    found
}

fn rules(root: &mut Node) -> Vec<&mut Node> {
    let Node::Object(phases) = root else {
        return Vec::new();
    };
    let lists = phases.iter_mut().filter_map(|(_, rules)| match rules {
        Node::List(rules) => Some(rules),
        _ => None,
    });
    lists.flatten().collect()
}

fn rules_of(root: &mut Node, phase: Phase) -> Vec<&mut Node> {
    match entry(root, phase.name()) {
        Some(Node::List(rules)) => rules.iter_mut().collect(),
        _ => Vec::new(),
    }
}

fn actions(rule: &mut Node, known: Actions) -> Vec<(&'static ActionType, &mut Node)> {
    let Some(Node::List(actions)) = entry(rule, "actions") else {
        return Vec::new();
    };
    let found = actions.iter_mut().filter_map(|action| {
        let Some(Node::Text(name)) = action.get("type") else {
            return None;
        };
        Some((known.find(&name.value)?, action))
    });
    found.collect()
}

/// The secret texts of a rule, in order.
fn secrets(rule: &mut Node, known: Actions, look: &mut dyn FnMut(&mut Text)) {
    for (kind, action) in actions(rule, known) {
        secrets_of(kind, action, look);
    }
}

fn secrets_of(kind: &ActionType, action: &mut Node, look: &mut dyn FnMut(&mut Text)) {
    let Some(config) = entry(action, "config") else {
        return;
    };
    for field in kind.secrets {
        if let Some(value) = entry(config, field) {
            // A value that is only an expression is not a secret, but refers to one.
            value.texts(&mut |text| {
                // A text with braces inside may begin and end with different expressions.
                let inner = text.value.strip_prefix("${");
                let inner = inner.and_then(|inner| inner.strip_suffix('}'));
                let is_expression =
                    inner.is_some_and(|inner| !inner.contains("${") && !inner.contains('}'));
                if !is_expression {
                    look(text);
                }
            });
        }
    }
}

fn entry<'n>(node: &'n mut Node, key: &str) -> Option<&'n mut Node> {
    match node {
        Node::Object(entries) => entries
            .iter_mut()
            .find_map(|(name, value)| (name == key).then_some(value)),
        _ => None,
    }
}
