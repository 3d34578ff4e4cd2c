//! The files that `culvert setup` writes.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::Context;
use culvert_installation::{config, variable, variables};
use toml::Table;

use super::answers::{Answers, PROVIDERS, Provider, provider};
use crate::commands::{Failure, say};
use culvert_command::Invalid;

/// The settings of the server.
pub(super) const SETTINGS: &str = "/etc/culvert/culvert.toml";
/// The secrets among them, as variables.
pub(super) const ENVIRONMENT: &str = "/etc/culvert/environment";
const SOCKETS: &str = "/etc/systemd/system/culvert.socket.d/setup.conf";
/// Where the package has its data.
pub(super) const DATA: &str = "/var/lib/culvert";
/// The API without TLS, for this machine.
pub(super) const API: &str = "127.0.0.1:8420";
const API_PORT: u16 = 8420;
const METRICS: &str = "127.0.0.1:9420";
const METRICS_PORT: u16 = 9420;
/// The group of the server, which reads the settings.
const GROUP: &str = "culvert";

/// The files, in the order of writing.
#[derive(Debug)]
pub(super) struct Plan {
    settings: String,
    sockets: String,
    /// The variable with the secret of the DNS provider.
    secret: Option<(String, String)>,
}

impl Plan {
    /// The files for these values.
    ///
    /// # Errors
    /// If a server with these settings would not start.
    pub(super) fn of(answers: &Answers) -> Result<Self, Failure> {
        if answers.acme_directory_url.contains('@') {
            let text = "`acme_directory_url` has a user name or a password";
            return Err(Invalid(text.to_owned()).into());
        }
        let plan = Self {
            settings: format!(
                "# Written by `culvert setup`. `culvert config show` prints all settings.\n\n{}",
                settings(answers)
            ),
            sockets: sockets(answers),
            secret: secret(answers)?,
        };
        let environment = plan.secret.iter().cloned().collect();
        config::parse(&plan.settings, &environment)?;
        let mut ports = answers.ports().to_vec();
        ports.retain(|port| *port != 0);
        ports.extend([API_PORT, METRICS_PORT]);
        ports.sort_unstable();
        match ports.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(plan),
            Some(pair) => Err(Invalid(format!("two listeners have port {}", pair[0])).into()),
        }
    }

    /// Prints the files, without secrets.
    pub(super) fn show(&self) -> Result<(), Failure> {
        say(format_args!("{SETTINGS}:\n\n{}", indented(&self.settings)))?;
        if let Some((name, _)) = &self.secret {
            say(format_args!("{ENVIRONMENT}:\n\n    {name}=…\n"))?;
        }
        say(format_args!("{SOCKETS}:\n\n{}", indented(&self.sockets)))
    }

    /// Writes the files. Former settings stay beside the new ones. Returns where they are.
    pub(super) fn write(&self) -> Result<Option<PathBuf>, Failure> {
        let former = keep_former(Path::new(SETTINGS), &self.settings)?;
        write(SETTINGS, &self.settings, 0o640, Some(group()?))?;
        if let Some((name, value)) = &self.secret {
            let before = match fs::read_to_string(ENVIRONMENT) {
                Ok(text) => text,
                Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
                Err(error) => return Err(Failure::Failed(format!("`{ENVIRONMENT}`: {error}"))),
            };
            write(
                ENVIRONMENT,
                &with_variable(&before, name, value),
                0o600,
                None,
            )?;
        }
        write(SOCKETS, &self.sockets, 0o644, None)?;
        Ok(former)
    }
}

/// The settings file.
fn settings(answers: &Answers) -> Table {
    let on_all = |port: u16| match port {
        0 => String::new(),
        port => format!("0.0.0.0:{port}"),
    };
    let table = |pairs: &[(&str, String)]| -> Table {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), value.clone().into()))
            .collect()
    };
    let mut api = table(&[("addr", API.to_owned())]);
    if answers.api_port != 0 {
        let url = format!("https://{}:{}", answers.api_host(), answers.api_port);
        api.insert("base_url".to_owned(), url.into());
        let tls = table(&[("addr", on_all(answers.api_port))]);
        api.insert("tls".to_owned(), tls.into());
    }
    let mut settings = table(&[("data_dir", DATA.to_owned())]);
    for (name, section) in [
        ("api", api),
        (
            "edge",
            table(&[
                ("domain", answers.domain.clone()),
                ("http_addr", on_all(answers.http_port)),
                ("https_addr", on_all(answers.https_port)),
            ]),
        ),
        (
            "agents",
            table(&[
                ("addr", on_all(answers.agents_port)),
                ("ssh_addr", on_all(answers.ssh_port)),
            ]),
        ),
        ("metrics", table(&[("addr", METRICS.to_owned())])),
        ("acme", acme(answers)),
    ] {
        settings.insert(name.to_owned(), section.into());
    }
    settings
}

fn acme(answers: &Answers) -> Table {
    let mut acme = Table::new();
    if answers.acme_directory_url.is_empty() {
        return acme;
    }
    let url = answers.acme_directory_url.as_str();
    acme.insert("directory_url".to_owned(), url.into());
    acme.insert("contact".to_owned(), answers.contact.as_str().into());
    if answers.dns_provider.is_empty() {
        // Without a wildcard certificate, the names of the installation have one each.
        let mut names = vec![format!("connect.{}", answers.domain)];
        if answers.api_port != 0 {
            names.push(answers.api_host());
        }
        acme.insert("names".to_owned(), names.into());
        return acme;
    }
    acme.insert("domain_certificate".to_owned(), true.into());
    let mut dns = Table::new();
    dns.insert("provider".to_owned(), answers.dns_provider.as_str().into());
    let own: Table = answers
        .dns
        .iter()
        .map(|(key, value)| (key.clone(), value.as_str().into()))
        .collect();
    if !own.is_empty() {
        dns.insert(section_of(&answers.dns_provider), own.into());
    }
    acme.insert("dns".to_owned(), dns.into());
    acme
}

/// The section of a provider below `acme.dns`.
fn section_of(provider: &str) -> String {
    provider.replace('-', "_")
}

fn secret(answers: &Answers) -> Result<Option<(String, String)>, Failure> {
    if answers.dns_provider.is_empty() {
        return Ok(None);
    }
    let name = &answers.dns_provider;
    let Some(provider) = provider(name) else {
        return Err(Invalid(format!("`dns_provider`: `{name}` is no provider")).into());
    };
    if let Some(other) = answers.dns.keys().find(|key| {
        let known = provider.settings.iter().map(|(known, _)| *known);
        let known = known.chain(["api_url", "zone", "key_algorithm", "hosted_zone_id"]);
        !known.into_iter().any(|known| known == key.as_str())
    }) {
        let text = format!("`dns.{other}` is no setting of `{name}` that is not secret");
        return Err(Invalid(text).into());
    }
    let value = answers.dns_secret.reveal();
    if value.is_empty() || value.contains(char::is_control) {
        return Err(Invalid(format!("`dns_secret` has no secret of `{name}`")).into());
    }
    Ok(Some((variable_of(provider), value.to_owned())))
}

/// The variable with the secret of a provider.
fn variable_of(provider: &Provider) -> String {
    let section = section_of(provider.name).to_ascii_uppercase();
    let key = provider.secret.0.to_ascii_uppercase();
    format!("CULVERT_ACME__DNS__{section}__{key}")
}

/// The sockets of the unit, which have the addresses of the settings.
fn sockets(answers: &Answers) -> String {
    let public = answers.ports();
    let public = public.iter().filter(|port| **port != 0);
    let mut text = "# Written by `culvert setup`.\n[Socket]\nListenStream=\n".to_owned();
    for port in public {
        text.push_str(&format!("ListenStream=0.0.0.0:{port}\n"));
    }
    for address in [API, METRICS] {
        text.push_str(&format!("ListenStream={address}\n"));
    }
    text
}

/// The lines of an environment file with this variable in place of an earlier value and of secrets of other providers.
fn with_variable(before: &str, name: &str, value: &str) -> String {
    let of_providers = PROVIDERS.each_ref().map(variable_of);
    let is_other = |line: &&str| {
        let set = line.split('=').next().unwrap_or_default();
        set != name && !of_providers.iter().any(|of| of == set)
    };
    let mut text: String = before
        .lines()
        .filter(is_other)
        .map(|line| format!("{line}\n"))
        .collect();
    text.push_str(&variable(name, value));
    text
}

/// Copies settings that will be replaced to a file that does not exist yet.
fn keep_former(path: &Path, new: &str) -> Result<Option<PathBuf>, Failure> {
    if !path.exists() || fs::read_to_string(path).is_ok_and(|text| text == new) {
        return Ok(None);
    }
    let mut n = 1;
    let former = loop {
        let former = path.with_extension(format!("toml.former-{n}"));
        if !former.exists() {
            break former;
        }
        n += 1;
    };
    fs::copy(path, &former).with_context(|| format!("copying `{}`", path.display()))?;
    Ok(Some(former))
}

/// Replaces a file, for root and this group, as a whole.
fn write(path: &str, text: &str, mode: u32, group: Option<u32>) -> Result<(), Failure> {
    let writing = || format!("writing `{path}`");
    let path = Path::new(path);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(writing)?;
    }
    let new = path.with_extension("setup");
    // A file of an earlier run that was interrupted may have other rights.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Failure::from(anyhow::Error::new(error).context(writing())));
        }
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&new)
        .with_context(writing)?;
    file.write_all(text.as_bytes()).with_context(writing)?;
    chown(&new, Some(0), group).with_context(writing)?;
    // The mask of the process may have taken rights of the group.
    let rights = std::os::unix::fs::PermissionsExt::from_mode(mode);
    file.set_permissions(rights).with_context(writing)?;
    file.sync_all().with_context(writing)?;
    fs::rename(&new, path).with_context(writing)?;
    Ok(())
}

/// The number of the server's group.
fn group() -> Result<u32, Failure> {
    let groups = fs::read_to_string("/etc/group").context("reading `/etc/group`")?;
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_ours = fields.next() == Some(GROUP);
        is_ours.then(|| fields.nth(1)?.parse().ok())?
    });
    number.ok_or_else(|| Failure::Failed(format!("the group `{GROUP}` does not exist")))
}

fn indented(text: &str) -> String {
    let lines = text.lines();
    lines.map(|line| format!("    {line}\n")).collect()
}

/// The variables of the environment file, for commands that this one runs as another user.
pub(super) fn environment_of_service() -> HashMap<String, String> {
    let text = fs::read_to_string(ENVIRONMENT);
    text.map_or_else(|_| HashMap::new(), |text| variables(&text))
}

#[cfg(test)]
mod tests {
    use culvert_base::Secret;

    use super::*;

    fn answers() -> Answers {
        Answers {
            domain: "tunnel.test".to_owned(),
            ..Answers::default()
        }
    }

    #[test]
    fn answers_become_settings_that_a_server_accepts() {
        let mut with_provider = answers();
        with_provider.dns_provider = "acme-dns".to_owned();
        with_provider.dns_secret = Secret::new("a\"b".to_owned());
        for (key, value) in [
            ("server_url", "https://acme-dns.test"),
            ("username", "u"),
            ("subdomain", "s"),
            ("full_domain", "s.acme-dns.test"),
        ] {
            with_provider.dns.insert(key.to_owned(), value.to_owned());
        }
        let plan = Plan::of(&with_provider).unwrap();
        assert!(plan.settings.contains("domain_certificate = true"));
        assert!(!plan.settings.contains("a\\\"b"), "{}", plan.settings);
        let (name, value) = plan.secret.unwrap();
        assert_eq!(name, "CULVERT_ACME__DNS__ACME_DNS__PASSWORD");
        assert_eq!(value, "a\"b");
        let plan = Plan::of(&answers()).unwrap();
        let names = r#"names = ["connect.tunnel.test", "api.tunnel.test"]"#;
        assert!(plan.settings.contains(names), "{}", plan.settings);
        assert!(plan.sockets.contains("ListenStream=0.0.0.0:443\n"));
        assert!(!plan.sockets.contains(":2222"));
        let mut own_ca = answers();
        own_ca.acme_directory_url.clear();
        assert!(Plan::of(&own_ca).is_ok());
    }

    #[test]
    fn wrong_answers_are_refused() {
        let refused = |change: &dyn Fn(&mut Answers)| {
            let mut wrong = answers();
            change(&mut wrong);
            assert!(Plan::of(&wrong).is_err(), "{wrong:?}");
        };
        refused(&|answers| answers.domain = "not a domain".to_owned());
        refused(&|answers| answers.dns_provider = "unknown".to_owned());
        refused(&|answers| answers.dns_provider = "cloudflare".to_owned());
        refused(&|answers| answers.api_port = API_PORT);
        refused(&|answers| {
            answers.acme_directory_url = "https://u:secret@ca.test/dir".to_owned();
        });
        // A secret that is given as a setting would be printed, and readable for the group.
        refused(&|answers| {
            answers.dns_provider = "desec".to_owned();
            answers.dns_secret = Secret::new("a".to_owned());
            answers.dns.insert("token".to_owned(), "a".to_owned());
        });
        refused(&|answers| {
            answers.dns_provider = "desec".to_owned();
            answers.dns_secret = Secret::new("a\nB=1".to_owned());
        });
        refused(&|answers| answers.agents_port = answers.https_port);
    }

    #[test]
    fn a_variable_replaces_its_former_value_only() {
        let before = "# mine\nCULVERT_A=1\nCULVERT_AB=2\nCULVERT_ACME__DNS__DESEC__TOKEN=3\n";
        let after = with_variable(before, "CULVERT_A", "x\"y");
        assert_eq!(after, "# mine\nCULVERT_AB=2\nCULVERT_A=\"x\\\"y\"\n");
    }
}
