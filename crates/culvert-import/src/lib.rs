//! Turns configurations of other products into files for `culvert apply`, for the agent and for the server. Whatever
//! has no equivalent is listed with its line and the reason: nothing is dropped silently.
//!
//! Not here: the command that reads and writes the files (`culvert-cli`).

mod caddy;
mod caddyfile;
mod cloudflared;
mod frp;
mod imported;
mod tree;

use std::path::Path;

pub use imported::{Imported, Note, RESERVED_NAMES};

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
}
