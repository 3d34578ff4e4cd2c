//! What a configuration became, and the parts that every format writes.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::tree;

/// Names directly below the base domain of a server that are reserved for it by default.
pub const RESERVED_NAMES: [&str; 9] = [
    "acme-challenge",
    "admin",
    "api",
    "auth",
    "connect",
    "console",
    "login",
    "metrics",
    "tcp",
];

/// What a configuration became.
#[derive(Debug, Default)]
pub struct Imported {
    /// Objects for `culvert apply`.
    pub(crate) objects: Vec<Value>,
    /// The agent's configuration.
    pub(crate) agent: Map<String, Value>,
    /// The agent's endpoints.
    pub(crate) endpoints: Vec<Value>,
    /// Settings of the server, by section and name.
    pub(crate) settings: BTreeMap<&'static str, BTreeMap<&'static str, Value>>,
    /// What has no equivalent.
    pub notes: Vec<Note>,
}

/// A part of the configuration without an equal, or with one that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Line in the file.
    pub line: usize,
    /// The part.
    pub what: String,
    /// The reason, and what to do.
    pub why: String,
}

impl Imported {
    pub(crate) fn note(&mut self, line: usize, what: impl Into<String>, why: impl Into<String>) {
        self.notes.push(Note {
            line,
            what: what.into(),
            why: why.into(),
        });
    }

    /// Notes a host that a server with the base domain `domain` keeps for itself.
    pub(crate) fn note_reserved(&mut self, line: usize, host: &str, domain: Option<&str>) {
        let below = domain.and_then(|domain| host.strip_suffix(domain)?.strip_suffix('.'));
        let label = below.map(|below| below.rsplit_once('.').map_or(below, |(_, last)| last));
        if let Some(label) = label.filter(|label| RESERVED_NAMES.contains(label)) {
            let why = match label {
                "acme-challenge" | "tcp" => "the name is reserved for the installation",
                _ => {
                    "the name is reserved for the installation, unless the setting `edge.reserved_names` leaves it out"
                }
            };
            self.note(line, format!("`{host}`"), why);
        }
    }

    pub(crate) fn object(&mut self, kind: &str, name: &str, spec: Value) {
        self.objects
            .push(json!({"kind": kind, "name": name, "spec": spec}));
    }

    /// The files: name and text.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let mut files = Vec::new();
        if !self.objects.is_empty() {
            let documents: Vec<String> = self.objects.iter().map(tree::as_yaml).collect();
            files.push(("objects.yaml", documents.join("---\n")));
        }
        if !self.endpoints.is_empty() {
            let file = json!({"version": 3, "agent": self.agent, "endpoints": self.endpoints});
            files.push(("agent.yaml", tree::as_yaml(&file)));
        }
        if !self.settings.is_empty() {
            let mut text = String::new();
            for (section, settings) in &self.settings {
                text.push_str(&format!("[{section}]\n"));
                for (name, value) in settings {
                    text.push_str(&format!("{name} = {value}\n"));
                }
                text.push('\n');
            }
            files.push(("culvert.toml", text));
        }
        files
    }
}

/// A name for an object, from any text.
pub(crate) fn name_of(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '*');
    let name: String = text
        .chars()
        .map(|c| if is_plain(c) { c } else { '-' })
        .take(100)
        .collect();
    match name.trim_matches('-') {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    }
}

/// A label of a host name, from any text.
pub(crate) fn label_of(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let label: String = lower
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(50)
        .collect();
    match label.trim_matches('-') {
        "" => "unnamed".to_owned(),
        label => label.to_owned(),
    }
}

/// A text in an expression.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// A text in a template of a policy, where `${` would begin an expression.
pub(crate) fn literal(text: &str) -> String {
    text.replace("${", "$${")
}

/// A rule of a policy.
pub(crate) fn rule(expressions: Vec<String>, actions: Vec<Value>) -> Value {
    match expressions.is_empty() {
        true => json!({"actions": actions}),
        false => json!({"expressions": expressions, "actions": actions}),
    }
}

pub(crate) fn action(kind: &str, config: Value) -> Value {
    json!({"type": kind, "config": config})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_server_reserves_are_noted() {
        let mut imported = Imported::default();
        for host in [
            "api.t.test",
            "a.tcp.t.test",
            "web.t.test",
            "api.other.test",
            "t.test",
        ] {
            imported.note_reserved(1, host, Some("t.test"));
            imported.note_reserved(1, host, None);
        }
        let noted: Vec<&str> = imported.notes.iter().map(|note| &*note.what).collect();
        assert_eq!(noted, ["`api.t.test`", "`a.tcp.t.test`"]);
    }

    #[test]
    fn imported_names_and_texts_are_escaped() {
        assert_eq!(name_of("a b/c"), "a-b-c");
        assert_eq!(name_of("//"), "unnamed");
        assert_eq!(label_of("A_b.c"), "a-b-c");
        assert_eq!(quoted("it's \\"), "'it\\'s \\\\'");
        assert_eq!(literal("${x}"), "$${x}");
    }
}
