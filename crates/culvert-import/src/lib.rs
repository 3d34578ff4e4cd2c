//! Turns configurations of other products into files for `culvert apply`, for the agent and for the server. Whatever
//! has no equivalent is listed with its line and the reason: nothing is dropped silently.
//!
//! Not here: the command that reads and writes the files (`culvert-cli`).

mod caddy;
mod caddyfile;
mod cloudflared;
mod frp;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

/// A product's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `frps.toml`
    Frps,
    /// `frpc.toml`
    Frpc,
    /// `cloudflared.yml`, `config.yml`
    Cloudflared,
    /// `Caddyfile`
    Caddy,
}

impl Format {
    /// All formats with their names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("frps", Self::Frps),
        ("frpc", Self::Frpc),
        ("cloudflared", Self::Cloudflared),
        ("caddy", Self::Caddy),
    ];

    /// The format that a file's name or content suggests.
    pub fn guess(path: &Path, text: &str) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let has_key = |key: &str| text.lines().any(|line| line.starts_with(key));
        match name.as_str() {
            name if name.contains("caddyfile") => Some(Self::Caddy),
            name if name.ends_with(".toml") && name.contains("frps") => Some(Self::Frps),
            name if name.ends_with(".toml") && name.contains("frpc") => Some(Self::Frpc),
            name if name.ends_with(".toml") && has_key("serverAddr") => Some(Self::Frpc),
            name if name.ends_with(".toml") && has_key("bindPort") => Some(Self::Frps),
            name if name.ends_with("yml") || name.ends_with("yaml") => {
                (has_key("tunnel:") || has_key("ingress:")).then_some(Self::Cloudflared)
            }
            _ => None,
        }
    }
}

/// What a configuration became.
#[derive(Debug, Default)]
pub struct Imported {
    /// Objects for `culvert apply`.
    objects: Vec<Value>,
    /// The agent's configuration.
    agent: Map<String, Value>,
    /// The agent's endpoints.
    endpoints: Vec<Value>,
    /// Settings of the server, by section and name.
    settings: BTreeMap<&'static str, BTreeMap<&'static str, Value>>,
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

/// Reads a configuration. `domain` is the base domain of the culvert server, for names below it.
///
/// # Errors
/// A sentence with the line, if the text cannot be read.
pub fn import(format: Format, text: &str, domain: Option<&str>) -> Result<Imported, String> {
    let mut imported = Imported::default();
    match format {
        Format::Frps => frp::server(tree::read_toml(text)?, &mut imported),
        Format::Frpc => frp::client(tree::read_toml(text)?, domain, &mut imported),
        Format::Cloudflared => cloudflared::convert(tree::read_yaml(text)?, &mut imported),
        Format::Caddy => caddy::convert(caddyfile::parse(text)?, domain, &mut imported),
    }
    imported.notes.sort();
    imported.notes.dedup();
    Ok(imported)
}

impl Imported {
    fn note(&mut self, line: usize, what: impl Into<String>, why: impl Into<String>) {
        self.notes.push(Note {
            line,
            what: what.into(),
            why: why.into(),
        });
    }

    fn object(&mut self, kind: &str, name: &str, spec: Value) {
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
fn name_of(text: &str) -> String {
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
fn label_of(text: &str) -> String {
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
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// A text in a template of a policy, where `${` would begin an expression.
fn literal(text: &str) -> String {
    text.replace("${", "$${")
}

/// A rule of a policy.
fn rule(expressions: Vec<String>, actions: Vec<Value>) -> Value {
    match expressions.is_empty() {
        true => json!({"actions": actions}),
        false => json!({"expressions": expressions, "actions": actions}),
    }
}

fn action(kind: &str, config: Value) -> Value {
    json!({"type": kind, "config": config})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_guessed() {
        for (path, text, format) in [
            ("/etc/caddy/Caddyfile", "", Some(Format::Caddy)),
            ("frps.toml", "", Some(Format::Frps)),
            ("a/frpc-home.toml", "", Some(Format::Frpc)),
            ("x.toml", "serverAddr = \"a\"", Some(Format::Frpc)),
            ("x.toml", "bindPort = 7000", Some(Format::Frps)),
            (
                "config.yml",
                "tunnel: x\ningress:\n",
                Some(Format::Cloudflared),
            ),
            ("config.yml", "version: 3", None),
            ("x.txt", "", None),
        ] {
            assert_eq!(Format::guess(Path::new(path), text), format, "{path}");
        }
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
