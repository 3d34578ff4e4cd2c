//! The settings of an agent, from flags, the environment, a configuration file and what `culvert config` saved.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::ArgMatches;
use culvert_base::Secret;
use culvert_tunnel::CongestionControl;
use culvert_tunnel::client::{Dialing, Endpoint, Heartbeat, Interface, Proxy};

use super::policy_url::PolicyUrl;
use super::{INSPECT_ADDR, Inspect, Plan};
use crate::log::LogPlan;
use culvert_command::Failure;
use culvert_command::Profile;
use culvert_command::{id_of, read_token};

/// The default address of the server.
pub const DEFAULT_SERVER: &str = "localhost:8441";

/// The CAs that verify the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authorities {
    /// Those that this machine trusts.
    System,
    /// Those in this PEM file.
    File(PathBuf),
}

/// The settings for the server and the agent. A configuration file may complete them.
#[derive(Debug, Default)]
pub struct Identity {
    /// `host:port`, or several with commas between them.
    pub server: Option<String>,
    /// The CAs that verify the server.
    pub ca: Option<Authorities>,
    /// The credential.
    pub token: Option<Secret>,
    /// Where the credential is from, such as a file; empty if that is obvious.
    pub token_origin: String,
    /// Metadata for the session.
    pub metadata: Option<String>,
    /// Address of the inspection page.
    pub inspect: Option<Inspect>,
    /// The log.
    pub log: LogPlan,
    /// Whether to show the status screen.
    pub has_screen: Option<bool>,
    /// A region, which has no effect.
    pub region: Option<String>,
    /// URL of the proxy, which takes precedence over the environment's.
    pub proxy: Option<String>,
    /// Interface of connections to the server.
    pub interface: Option<Interface>,
    /// Congestion control of connections to the server.
    pub congestion_control: Option<CongestionControl>,
    /// Timeout of a connection to the server.
    pub connect_timeout: Option<Duration>,
    /// Interval of heartbeats.
    pub heartbeat_interval: Option<Duration>,
    /// Timeout for the reply to a heartbeat.
    pub heartbeat_tolerance: Option<Duration>,
    /// Whether the server may stop and restart the agent.
    pub is_managed: Option<bool>,
    /// Warnings about settings.
    pub notices: Vec<String>,
}

impl Identity {
    /// Reads flags and the environment.
    pub fn of(matches: &ArgMatches) -> Result<Self, Failure> {
        let mut environment = culvert_command::environment();
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
        let mut token_origin = String::new();
        let token = match (text("authtoken"), path("authtoken-file")) {
            (Some(_), Some(_)) => {
                let why = "a token and a token file are mutually exclusive";
                return Err(Failure::Usage(why.into()));
            }
            (Some(token), None) => Some(token),
            (None, Some(path)) => {
                token_origin = format!("`{}`", path.display());
                Some(read_token(&path)?)
            }
            (None, None) => {
                token_origin = "CULVERT_AUTHTOKEN".into();
                environment.remove("CULVERT_AUTHTOKEN")
            }
        };
        let off = matches.get_one::<bool>("inspect") == Some(&false);
        let inspect = match text("inspect-addr") {
            _ if off => Some(Inspect::Off),
            Some(address) => Some(inspect_at(&address).map_err(Failure::Usage)?),
            None => None,
        };
        Ok(Self {
            server: text("server").or_else(|| environment.remove("CULVERT_SERVER")),
            ca: path("ca")
                .or_else(|| environment.remove("CULVERT_CA_FILE").map(PathBuf::from))
                .map(Authorities::File),
            token: token.map(Secret::new),
            token_origin,
            metadata: text("session-metadata"),
            inspect,
            log: LogPlan::read(
                text("log").as_deref(),
                text("log-format").as_deref(),
                text("log-level").as_deref(),
            )?,
            has_screen: matches.get_one("console-ui").copied(),
            region: text("region"),
            ..Self::default()
        })
    }

    /// Completes missing settings from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            server: self.server.or(other.server),
            ca: self.ca.or(other.ca),
            token_origin: match &self.token {
                Some(_) => self.token_origin,
                None => other.token_origin,
            },
            token: self.token.or(other.token),
            metadata: self.metadata.or(other.metadata),
            inspect: self.inspect.or(other.inspect),
            log: self.log.or(other.log),
            has_screen: self.has_screen.or(other.has_screen),
            region: self.region.or(other.region),
            proxy: self.proxy.or(other.proxy),
            interface: self.interface.or(other.interface),
            congestion_control: self.congestion_control.or(other.congestion_control),
            connect_timeout: self.connect_timeout.or(other.connect_timeout),
            heartbeat_interval: self.heartbeat_interval.or(other.heartbeat_interval),
            heartbeat_tolerance: self.heartbeat_tolerance.or(other.heartbeat_tolerance),
            is_managed: self.is_managed.or(other.is_managed),
            notices: [other.notices, self.notices].concat(),
        }
    }

    /// The plan for `endpoints`. Missing settings are those that `culvert config` saved, or defaults.
    pub fn plan(self, endpoints: Vec<Endpoint>, policies: Vec<PolicyUrl>) -> Result<Plan, Failure> {
        let mut identity = self;
        if identity.token.is_none() || identity.server.is_none() {
            identity.complete(Profile::load()?)?;
        }
        let Some(token) = identity.token.filter(|token| !token.is_empty()) else {
            let why = "no authtoken; set CULVERT_AUTHTOKEN, use `--authtoken-file` or save one with `culvert config add-authtoken` (create one with `culvert api credentials create`, or on the Connect page of the console)";
            return Err(Failure::Usage(why.into()));
        };
        let authorities = match identity.ca {
            Some(Authorities::System) => None,
            Some(Authorities::File(path)) => Some(read(&path)?),
            None => own_authority().map(|path| read(&path)).transpose()?,
        };
        let server = identity.server.as_deref().unwrap_or(DEFAULT_SERVER);
        let servers = server
            .split(',')
            .map(|address| {
                let dialing = dialing(
                    address.trim(),
                    authorities.as_deref(),
                    identity.proxy.as_deref(),
                )?;
                let dialing = dialing
                    .from_interface(identity.interface.clone())
                    .with_congestion_control(
                        identity.congestion_control.clone().unwrap_or_default(),
                    );
                Ok(match identity.connect_timeout {
                    Some(timeout) => dialing.within(timeout),
                    None => dialing,
                })
            })
            .collect::<Result<Vec<Dialing>, _>>()
            .map_err(Failure::Usage)?;
        let mut notices = identity.notices;
        if let Some(region) = identity.region.filter(|region| !region.is_empty()) {
            notices.push(format!(
                "the region `{region}` has no effect: the server decides the region"
            ));
        }
        let unverified = endpoints.iter().filter(|one| one.upstream.is_unverified());
        notices.extend(unverified.map(|endpoint| {
            format!(
                "the certificate of {} is not verified: others on the network can read and change the traffic; `--upstream-pin` accepts a self-signed certificate and no other",
                endpoint.upstream.as_str()
            )
        }));
        let usual = Heartbeat::default();
        Ok(Plan {
            servers,
            token_origin: match id_of(token.reveal(), "cr") {
                _ if identity.token_origin.is_empty() => String::new(),
                Some(id) => format!("the token of `{id}` is from {}", identity.token_origin),
                None => format!("the token is from {}", identity.token_origin),
            },
            token,
            metadata: identity.metadata.unwrap_or_default(),
            endpoints,
            policies,
            inspect: identity.inspect.unwrap_or(Inspect::Usual),
            log: identity.log,
            has_screen: identity.has_screen.unwrap_or(true),
            heartbeat: Heartbeat {
                interval: identity.heartbeat_interval.unwrap_or(usual.interval),
                tolerance: identity.heartbeat_tolerance.unwrap_or(usual.tolerance),
            },
            is_managed: identity.is_managed.unwrap_or(true),
            notices,
        })
    }

    /// Takes missing settings from the saved ones. A token that was saved for a server goes to no other server.
    fn complete(&mut self, saved: Profile) -> Result<(), Failure> {
        let is_other = match (&self.server, &saved.server) {
            (Some(server), Some(of_token)) => !is_same_server(server, of_token),
            _ => false,
        };
        if self.token.is_none() && saved.authtoken.is_some() {
            if is_other {
                let text = format!(
                    "no authtoken for `{}`: the saved one is for `{}`; set CULVERT_AUTHTOKEN or use `--authtoken-file`",
                    self.server.as_deref().unwrap_or_default(),
                    saved.server.as_deref().unwrap_or_default(),
                );
                return Err(Failure::Usage(text));
            }
            self.token = saved.authtoken;
            self.token_origin = match Profile::path() {
                Ok(path) => format!("`{}`", path.display()),
                Err(_) => String::new(),
            };
        }
        if self.server.is_none() {
            self.server = saved.server;
            if self.ca.is_none() {
                self.ca = saved.server_ca.map(Authorities::File);
            }
        }
        Ok(())
    }
}

/// Whether two lists of addresses are the same ones, with the usual port where one is missing.
fn is_same_server(one: &str, other: &str) -> bool {
    let addresses = |list: &str| -> Vec<String> {
        let whole = |address: &str| match address.contains(':') {
            true => address.to_owned(),
            false => format!("{address}:8441"),
        };
        list.split(',').map(|it| whole(it.trim())).collect()
    };
    addresses(one) == addresses(other)
}

/// How to connect to a server: through the proxy that the file or the environment names, if any.
#[allow(
    clippy::disallowed_methods,
    reason = "a variable that every program reads, not a setting of culvert"
)]
fn dialing(
    address: &str,
    authorities: Option<&[u8]>,
    proxy: Option<&str>,
) -> Result<Dialing, String> {
    let dialing = Dialing::new(address, authorities).map_err(|error| error.to_string())?;
    let proxy = match proxy {
        Some(url) => Some(Proxy::parse(url)?),
        None => Proxy::from_environment(|name| std::env::var(name).ok(), dialing.address())?,
    };
    if let Some(proxy) = &proxy {
        tracing::debug!(
            server = address,
            proxy = proxy.address(),
            "connecting through a proxy"
        );
    }
    Ok(dialing.through(proxy))
}

/// The certificate authority that a server on this machine created.
fn own_authority() -> Option<PathBuf> {
    let folder = culvert_command::environment()
        .remove("CULVERT_DATA_DIR")
        .unwrap_or("./culvert-data".into());
    let path = PathBuf::from(folder).join("ca.pem");
    path.is_file().then_some(path)
}

/// Parses the address of the inspection page, which must be on loopback.
pub fn inspect_at(text: &str) -> Result<Inspect, String> {
    let address = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    match address.parse::<std::net::SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Inspect::At(address)),
        Ok(_) => Err(format!(
            "`{text}`: the inspection page requires a loopback address"
        )),
        Err(_) => Err(format!(
            "`{text}` is not an address and port such as {INSPECT_ADDR}"
        )),
    }
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let read = std::fs::read(path).with_context(|| format!("reading `{}`", path.display()));
    Ok(read?)
}

/// Reads a text file.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let read =
        std::fs::read_to_string(path).with_context(|| format!("reading `{}`", path.display()));
    Ok(read?)
}
