//! The agent ingress, and the connections between nodes.

use std::time::Duration;

use culvert_base::net::HostName;
use culvert_tunnel::CongestionControl;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;
use super::span::{DAY, Span};

/// The agent ingress.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Agents {
    /// Listen address for agents, with TLS; empty to disable. Port 0 selects a free port.
    pub addr: String,
    /// Listen address for reverse tunnels over SSH (`ssh -R`); empty to disable. Port 0 selects a
    /// free port.
    pub ssh_addr: String,
    /// Types of the host keys that the SSH listener offers, in the order of preference: `ed25519` and `ecdsa-p256`, the
    /// latter for clients that know no other. Both are derived from the installation's SSH secret. There is no RSA key.
    pub ssh_host_keys: Vec<SshHostKey>,
    /// Types of the keys that SSH clients may have: `ed25519` and `ecdsa`, and those of security keys, `sk-ed25519` and
    /// `sk-ecdsa`. For a certificate, the type of its key counts. RSA and DSA keys are never accepted, nor are signatures
    /// with SHA-1.
    pub ssh_client_keys: Vec<SshClientKey>,
    /// PEM file with the certificate chain that the agent ingress presents. Empty: a certificate
    /// of the installation's own CA, whose certificate is `ca.pem` in `data_dir`.
    pub cert_file: String,
    /// PEM file with the private key of `agents.cert_file`.
    pub key_file: String,
    /// Additional host names and addresses for the agent ingress certificate of the
    /// installation's own CA. The certificate already covers `edge.domain`, `connect.` plus
    /// `edge.domain`, the node name, `localhost` and its addresses, and the domains of agent
    /// ingresses.
    pub names: Vec<String>,
    /// Addresses as `host:port` that the server offers to agents with several connections
    /// (multi-leg agents in Go); at least two, all of this process. The first address replaces
    /// the one that the agent connected to. Empty: one connection per agent.
    pub connect_addresses: Vec<String>,
    /// How long the host names and TCP addresses of a disconnected agent stay reserved for their
    /// owner. Published agents may need more than two minutes to reconnect after a long outage.
    /// `0s` disables the reservation.
    pub name_reservation: Span,
    /// Congestion control of connections to agents, such as `bbr` or `cubic`, where the kernel has it; empty for the
    /// default of the kernel. It decides how fast the server sends to agents if packets are lost.
    pub congestion_control: String,
    /// Minimum agent version to announce, such as `3.5.0`; empty for none. Events of sessions
    /// with an older agent are marked in `deprecated`. The server does not reject older agents.
    pub minimum_version: String,
    /// Announced date from which older agents are rejected, such as `2027-01-31`, for those
    /// events.
    pub minimum_version_date: String,
    /// Message to the owners of older agents, for those events. Empty: a message that names the
    /// version.
    pub minimum_version_message: String,
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            addr: "0.0.0.0:8441".into(),
            ssh_addr: "0.0.0.0:2222".into(),
            ssh_host_keys: vec![SshHostKey::Ed25519],
            ssh_client_keys: vec![
                SshClientKey::Ed25519,
                SshClientKey::SkEd25519,
                SshClientKey::Ecdsa,
                SshClientKey::SkEcdsa,
            ],
            cert_file: String::new(),
            key_file: String::new(),
            names: Vec::new(),
            connect_addresses: Vec::new(),
            name_reservation: Span(Duration::from_secs(180)),
            congestion_control: CongestionControl::default().to_string(),
            minimum_version: String::new(),
            minimum_version_date: String::new(),
            minimum_version_message: String::new(),
        }
    }
}

impl Agents {
    /// The minimum version of agents, if one is set.
    pub fn minimum(&self) -> Option<culvert_resources::settings::AgentMinimum> {
        let version = Some(&self.minimum_version).filter(|version| !version.is_empty())?;
        Some(culvert_resources::settings::AgentMinimum {
            version: version.clone(),
            date: self.minimum_version_date.clone(),
            message: match self.minimum_version_message.as_str() {
                "" => format!("Update the agent to version {version} or later."),
                message => message.to_owned(),
            },
        })
    }

    /// The congestion control of connections to agents.
    ///
    /// # Errors
    ///
    /// If the setting is not a name.
    pub fn congestion_control(&self) -> Result<CongestionControl, Invalid> {
        CongestionControl::parse(&self.congestion_control)
            .map_err(|why| Invalid(format!("`agents.congestion_control` is invalid: {why}")))
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        self.congestion_control()?;
        let mut hosts = self.ssh_host_keys.iter().enumerate();
        if self.ssh_host_keys.is_empty()
            || hosts.any(|(at, kind)| self.ssh_host_keys.iter().take(at).any(|it| it == kind))
        {
            return Err(Invalid(
                "`agents.ssh_host_keys` must name at least one type, and each once".into(),
            ));
        }
        if self.ssh_client_keys.is_empty() {
            return Err(Invalid(
                "`agents.ssh_client_keys` must name at least one type; `agents.ssh_addr = \"\"` disables SSH".into(),
            ));
        }
        if self.cert_file.is_empty() && !self.key_file.is_empty() {
            return Err(Invalid(
                "`agents.key_file` requires `agents.cert_file`".into(),
            ));
        }
        let is_version = |text: &str| {
            text.split('.').all(|part| {
                !part.is_empty() && part.len() <= 9 && part.bytes().all(|b| b.is_ascii_digit())
            })
        };
        if !self.minimum_version.is_empty() && !is_version(&self.minimum_version) {
            return Err(Invalid(format!(
                "`agents.minimum_version` must be a dotted version such as `3.5.0`, not `{}`",
                self.minimum_version
            )));
        }
        for (key, text) in [
            ("date", &self.minimum_version_date),
            ("message", &self.minimum_version_message),
        ] {
            if self.minimum_version.is_empty() && !text.is_empty() {
                return Err(Invalid(format!(
                    "`agents.minimum_version_{key}` requires `agents.minimum_version`"
                )));
            }
        }
        let date = &self.minimum_version_date;
        let midnight = format!("{date}T00:00:00Z");
        if !date.is_empty() && culvert_base::Timestamp::parse(&midnight).is_none() {
            return Err(Invalid(format!(
                "`agents.minimum_version_date` must be a date such as `2027-01-31`, not `{date}`"
            )));
        }
        for name in &self.names {
            let is_address = name.parse::<std::net::IpAddr>().is_ok();
            if !is_address && HostName::parse(name).is_err() {
                return Err(Invalid(format!(
                    "`agents.names` contains `{name}`, which is neither a host name nor an IP address"
                )));
            }
        }
        if self.name_reservation.0 > DAY {
            return Err(Invalid(
                "`agents.name_reservation` must be at most 24h".into(),
            ));
        }
        if self.connect_addresses.len() == 1 {
            return Err(Invalid(
                "`agents.connect_addresses` must have at least two addresses or be empty".into(),
            ));
        }
        for address in &self.connect_addresses {
            let parts = address.rsplit_once(':');
            let is_place = parts.is_some_and(|(host, port)| {
                let is_host =
                    HostName::parse(host).is_ok() || host.parse::<std::net::Ipv4Addr>().is_ok();
                is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
            });
            if !is_place {
                return Err(Invalid(format!(
                    "`agents.connect_addresses` contains `{address}`, which is not `host:port`"
                )));
            }
        }
        Ok(())
    }
}

/// The type of a host key of the SSH listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SshHostKey {
    /// `ssh-ed25519`.
    Ed25519,
    /// `ecdsa-sha2-nistp256`.
    #[serde(rename = "ecdsa-p256")]
    EcdsaP256,
}

/// The type of a client's key on the SSH listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SshClientKey {
    /// `ssh-ed25519`.
    Ed25519,
    /// `sk-ssh-ed25519@openssh.com`.
    SkEd25519,
    /// `ecdsa-sha2-nistp256`, `-nistp384` and `-nistp521`.
    Ecdsa,
    /// `sk-ecdsa-sha2-nistp256@openssh.com`.
    SkEcdsa,
}

/// Connections between the nodes of the installation.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Nodes {
    /// Listen address for other nodes on the same `database_url`, which reach this node's agents
    /// through it, with mutual TLS; empty to disable. Port 0 selects a free port. Ignored without
    /// `database_url`.
    pub addr: String,
    /// Address as `host:port` that other nodes connect to. Empty: the source address of this
    /// machine's connection to the database, with the port of `nodes.addr`.
    pub advertised_addr: String,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            addr: "0.0.0.0:8442".into(),
            advertised_addr: String::new(),
        }
    }
}

impl Nodes {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_address = |text: &str| {
            let (host, port) = text.rsplit_once(':')?;
            (!host.is_empty()).then_some(port)?.parse::<u16>().ok()
        };
        if self.advertised_addr.is_empty() || is_address(&self.advertised_addr).is_some() {
            return Ok(());
        }
        Err(Invalid(format!(
            "`nodes.advertised_addr` must be a host and port such as `10.0.0.7:8442`, not `{}`",
            self.advertised_addr
        )))
    }
}
