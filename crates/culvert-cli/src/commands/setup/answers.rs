//! What `culvert setup` has to know: asked on the terminal, or read from a file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use culvert_base::Secret;
use serde::Deserialize;

use crate::commands::Failure;
use crate::commands::prompt::{ask, ask_secret};
use culvert_command::Invalid;

/// Let's Encrypt.
const DIRECTORY_URL: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// A provider of DNS, with the settings that it needs below `acme.dns.<name>`.
pub(super) struct Provider {
    pub(super) name: &'static str,
    /// Name and question of each setting.
    pub(super) settings: &'static [(&'static str, &'static str)],
    /// The one that is secret, and its question.
    pub(super) secret: (&'static str, &'static str),
}

/// Every provider.
pub(super) static PROVIDERS: [Provider; 5] = [
    Provider {
        name: "cloudflare",
        settings: &[],
        secret: ("api_token", "API token with the permission DNS:Edit"),
    },
    Provider {
        name: "route53",
        settings: &[("access_key_id", "ID of the access key")],
        secret: ("secret_access_key", "Secret access key"),
    },
    Provider {
        name: "desec",
        settings: &[],
        secret: ("token", "API token"),
    },
    Provider {
        name: "acme-dns",
        settings: &[
            ("server_url", "URL of the acme-dns server"),
            ("username", "User name of the account"),
            ("subdomain", "Subdomain of the account"),
            ("full_domain", "Full domain of the account"),
        ],
        secret: ("password", "Password of the account"),
    },
    Provider {
        name: "rfc2136",
        settings: &[
            (
                "server",
                "Address of the primary name server, such as 203.0.113.53:53",
            ),
            ("key_name", "Name of the TSIG key"),
        ],
        secret: ("key_secret", "TSIG key in base64"),
    },
];

/// The values that were given. In a file, each field is a key of TOML.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Answers {
    /// Endpoints are subdomains of this domain.
    pub(super) domain: String,
    /// Host of the API and the console; empty for `api.` before the domain.
    pub(super) api_host: String,
    /// URL of the CA; empty for the installation's own CA.
    pub(super) acme_directory_url: String,
    /// Mail address for the CA.
    pub(super) contact: String,
    /// Name of the DNS provider; empty for none.
    pub(super) dns_provider: String,
    /// Settings of the provider that are not secret.
    pub(super) dns: BTreeMap<String, String>,
    /// The secret of the provider.
    pub(super) dns_secret: Secret,
    /// Ports on every address of the machine. 0 turns a listener off.
    pub(super) http_port: u16,
    pub(super) https_port: u16,
    pub(super) agents_port: u16,
    pub(super) ssh_port: u16,
    pub(super) api_port: u16,
    /// Whether a timer makes a backup each night.
    pub(super) backups: bool,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            domain: String::new(),
            api_host: String::new(),
            acme_directory_url: DIRECTORY_URL.to_owned(),
            contact: String::new(),
            dns_provider: String::new(),
            dns: BTreeMap::new(),
            dns_secret: Secret::default(),
            http_port: 80,
            https_port: 443,
            agents_port: 8441,
            ssh_port: 0,
            api_port: 8445,
            backups: true,
        }
    }
}

impl Answers {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or has an unknown key or a value of another type. The message does not repeat values.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("reading `{shown}`"))?;
        let answers = toml::from_str(&text);
        Ok(answers.map_err(|error| Invalid(format!("`{shown}`: {}", error.message())))?)
    }

    /// Asks on the terminal, or reads a line of standard input for each question.
    pub(super) fn asked() -> Result<Self, Failure> {
        let mut answers = Self {
            domain: required(
                "Domain, whose subdomains are endpoints (such as tunnel.example.com)",
            )?,
            ..Self::default()
        };
        let api = format!("api.{}", answers.domain);
        answers.api_host = or("Host of the API and the console", &api)?;
        let url = or(
            "URL of the CA, whose terms of service you accept; `none` for an own CA",
            DIRECTORY_URL,
        )?;
        answers.acme_directory_url = if url == "none" { String::new() } else { url };
        if !answers.acme_directory_url.is_empty() {
            answers.contact = ask("Mail address for the CA")?;
            answers.ask_for_provider()?;
        }
        for (question, port) in [
            ("Port for HTTP", &mut answers.http_port),
            ("Port for HTTPS", &mut answers.https_port),
            ("Port for agents", &mut answers.agents_port),
            ("Port for `ssh -R`; 0 for none", &mut answers.ssh_port),
            (
                "Port of the API and the console over TLS",
                &mut answers.api_port,
            ),
        ] {
            *port = ask_port(question, *port)?;
        }
        let backups = or("Make a backup each night (yes or no)", "yes")?;
        answers.backups = !matches!(backups.to_ascii_lowercase().as_str(), "n" | "no");
        Ok(answers)
    }

    fn ask_for_provider(&mut self) -> Result<(), Failure> {
        let names = PROVIDERS
            .each_ref()
            .map(|provider| provider.name)
            .join(", ");
        let question =
            format!("DNS provider, which wildcard certificates need ({names}; `none` for none)");
        self.dns_provider = loop {
            let name = or(&question, "none")?;
            if name == "none" {
                return Ok(());
            }
            if provider(&name).is_some() {
                break name;
            }
            eprintln!("culvert: `{name}` is no provider");
        };
        let Some(provider) = provider(&self.dns_provider) else {
            return Ok(());
        };
        for (name, question) in provider.settings {
            self.dns.insert((*name).to_owned(), required(question)?);
        }
        self.dns_secret = ask_secret(provider.secret.1)?;
        Ok(())
    }

    /// The ports on every address of the machine.
    pub(super) fn ports(&self) -> [u16; 5] {
        [
            self.http_port,
            self.https_port,
            self.agents_port,
            self.ssh_port,
            self.api_port,
        ]
    }

    /// Host of the API and the console.
    pub(super) fn api_host(&self) -> String {
        match self.api_host.as_str() {
            "" => format!("api.{}", self.domain),
            host => host.to_owned(),
        }
    }
}

/// The provider with a name.
pub(super) fn provider(name: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|provider| provider.name == name)
}

fn or(question: &str, default: &str) -> Result<String, Failure> {
    let answer = ask(&format!("{question} [{default}]"))?;
    Ok(match answer.is_empty() {
        true => default.to_owned(),
        false => answer,
    })
}

fn required(question: &str) -> Result<String, Failure> {
    match ask(question)? {
        answer if answer.is_empty() => Err(Failure::Usage(format!("no answer to “{question}”"))),
        answer => Ok(answer),
    }
}

fn ask_port(question: &str, default: u16) -> Result<u16, Failure> {
    let answer = or(question, &default.to_string())?;
    let why = |_| Failure::Usage(format!("`{answer}` is no port"));
    answer.parse().map_err(why)
}
