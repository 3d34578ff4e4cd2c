//! Builds a plan from flags and the environment: the flags that all agent commands share, and those of one endpoint.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::Secret;
use culvert_tunnel::client::{
    Dialing, Endpoint, FLAGS, Given, Protocol, Proxy, TlsEnd, Upstream, UpstreamTrust, Wanted,
};

use super::log::LogPlan;
use super::{INSPECT_ADDR, Inspect, Plan};
use crate::client::read_token;
use crate::config;
use crate::failure::Failure;

/// The default address of the server.
pub const DEFAULT_SERVER: &str = "localhost:8441";

/// Adds the flags for the server and the agent.
pub fn with_server(command: Command) -> Command {
    let file = |name: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
    };
    command
        .arg(
            Arg::new("server")
                .long("server")
                .value_name("HOST:PORT")
                .help(format!("Address of the agent ingress. With several, separated by commas, the agent keeps a session with two of them, so that it is reached while one server is down [env: CULVERT_SERVER] [default: {DEFAULT_SERVER}]")),
        )
        .arg(file("ca").help("PEM file of CAs to verify the server [env: CULVERT_CA_FILE] [default: ca.pem in ./culvert-data if it exists, otherwise the system's CAs]"))
        .arg(
            Arg::new("authtoken")
                .long("authtoken")
                .value_name("TOKEN")
                .help("Token of the tunnel credential; prefer CULVERT_AUTHTOKEN or a file, because other users can see command lines [env: CULVERT_AUTHTOKEN]"),
        )
        .arg(file("authtoken-file").help("File with the token in its first line"))
        .arg(
            Arg::new("session-metadata")
                .long("session-metadata")
                .value_name("TEXT")
                .help("Custom text, shown with the session"),
        )
        .arg(
            Arg::new("log")
                .long("log")
                .value_name("WHERE")
                .help("Where to log: stdout, stderr, false or a file. With stdout, there is no status screen [default: stderr; false on a terminal with the status screen]"),
        )
        .arg(
            Arg::new("log-format")
                .long("log-format")
                .value_name("FORMAT")
                .help("Format of the log: term, logfmt or json [default: term on a terminal, otherwise logfmt with --log and json without]"),
        )
        .arg(
            Arg::new("log-level")
                .long("log-level")
                .value_name("LEVEL")
                .help("Level of the log: debug, info, warn, error or crit [default: info]"),
        )
        .arg(
            Arg::new("console-ui")
                .long("console-ui")
                .value_name("BOOL")
                .value_parser(value_parser!(bool))
                .num_args(0..=1)
                .default_missing_value("true")
                .help("Whether to show the status screen on a terminal [default: true]"),
        )
        .arg(
            Arg::new("region")
                .long("region")
                .value_name("REGION")
                .help("Accepted for compatibility; the server decides the region"),
        )
        .arg(
            Arg::new("inspect")
                .long("inspect")
                .value_name("BOOL")
                .value_parser(value_parser!(bool))
                .num_args(0..=1)
                .default_missing_value("true")
                .help("Whether to keep recent requests for the inspection page [default: true]"),
        )
        .arg(
            Arg::new("inspect-addr")
                .long("inspect-addr")
                .value_name("ADDR")
                .help(format!("Loopback address of the inspection page [default: {INSPECT_ADDR} or one of the next ports]")),
        )
}

/// Adds the flags of one endpoint and its service.
pub fn with_endpoint(command: Command, kind: Protocol) -> Command {
    let mut command = command.arg(
        Arg::new("upstream")
            .required(true)
            .value_name("UPSTREAM")
            .help("Service: a port, `host:port`, or a URL"),
    );
    for flag in FLAGS.iter().filter(|flag| flag.scope.has(kind)) {
        let mut arg = Arg::new(flag.name).long(flag.name).help(flag.doc);
        arg = match flag.given {
            Given::Switch => arg
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            Given::Text(value) => arg.value_name(value),
            Given::File => arg.value_name("FILE").value_parser(value_parser!(PathBuf)),
        };
        if flag.many {
            arg = arg.action(ArgAction::Append);
        }
        command = command.arg(arg);
    }
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help(help)
    };
    command = command.arg(file(
        "upstream-ca",
        "PEM file of CAs to verify the service [default: the system's CAs]",
    ));
    if kind.is_http() {
        command = command.arg(
            Arg::new("host-header")
                .long("host-header")
                .value_name("HOST")
                .help("Value of the `Host` header that the service gets; `rewrite` uses the service's own host"),
        );
    }
    if kind == Protocol::Tls {
        command = command
            .arg(file("crt", "PEM certificate chain to terminate TLS in the agent").requires("key"))
            .arg(file("key", "PEM private key of the certificate").requires("crt"));
    }
    command
}

/// The plan of a command built with [`with_server`] and [`with_endpoint`].
pub fn plan_of(matches: &ArgMatches, kind: Protocol) -> Result<Plan, Failure> {
    let endpoint = endpoint_of(matches, kind)?;
    let given = Identity::of(matches)?;
    given.plan(vec![endpoint])
}

fn endpoint_of(matches: &ArgMatches, kind: Protocol) -> Result<Endpoint, Failure> {
    let mut wanted = Wanted::default();
    for flag in FLAGS.iter().filter(|flag| flag.scope.has(kind)) {
        let usage = |why| Failure::Usage(format!("`--{}`: {why}", flag.name));
        if flag.given == Given::File {
            if let Some(path) = matches.get_one::<PathBuf>(flag.name) {
                (flag.apply)(&mut wanted, &read_text(path)?).map_err(usage)?;
            }
            continue;
        }
        for value in matches.get_many::<String>(flag.name).into_iter().flatten() {
            (flag.apply)(&mut wanted, value).map_err(usage)?;
        }
    }
    let trust = match matches.get_one::<PathBuf>("upstream-ca") {
        Some(path) => UpstreamTrust::Only(read(path)?),
        None => UpstreamTrust::System,
    };
    let upstream = matches
        .get_one::<String>("upstream")
        .map(String::as_str)
        .unwrap_or_default();
    let upstream = Upstream::parse(upstream, kind, wanted.http2, &trust).map_err(Failure::Usage)?;
    if kind.is_http()
        && let Some(host) = matches.get_one::<String>("host-header")
    {
        wanted.set_host_header(host, &upstream);
    }
    let mut tls_end = None;
    if kind == Protocol::Tls
        && let (Some(chain), Some(key)) = (
            matches.get_one::<PathBuf>("crt"),
            matches.get_one::<PathBuf>("key"),
        )
    {
        let authorities = wanted.take_authorities();
        let authorities = authorities.as_deref().map(str::as_bytes);
        let end = TlsEnd::new(&read(chain)?, &read(key)?, authorities).map_err(Failure::Usage)?;
        tls_end = Some(end);
    }
    let mut endpoint = Endpoint::new(kind, wanted, upstream).map_err(Failure::Usage)?;
    endpoint.tls_end = tls_end;
    if endpoint.name.is_empty() {
        endpoint.name = "command_line".into();
    }
    Ok(endpoint)
}

/// The settings for the server and the agent. A configuration file may complete them.
#[derive(Debug, Default)]
pub struct Identity {
    /// `host:port`, or several with commas between them.
    pub server: Option<String>,
    /// File with the server's certificate authorities.
    pub ca: Option<PathBuf>,
    /// The credential.
    pub token: Option<Secret>,
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
    /// URL of the HTTP proxy, which takes precedence over the environment's.
    pub proxy: Option<String>,
}

impl Identity {
    /// Reads flags and the environment.
    pub fn of(matches: &ArgMatches) -> Result<Self, Failure> {
        let mut environment = config::environment();
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
        let token = match (text("authtoken"), path("authtoken-file")) {
            (Some(_), Some(_)) => {
                let why = "a token and a token file are mutually exclusive";
                return Err(Failure::Usage(why.into()));
            }
            (Some(token), None) => Some(token),
            (None, Some(path)) => Some(read_token(&path)?),
            (None, None) => environment.remove("CULVERT_AUTHTOKEN"),
        };
        let off = matches.get_one::<bool>("inspect") == Some(&false);
        let inspect = match text("inspect-addr") {
            _ if off => Some(Inspect::Off),
            Some(address) => Some(inspect_at(&address).map_err(Failure::Usage)?),
            None => None,
        };
        Ok(Self {
            server: text("server").or_else(|| environment.remove("CULVERT_SERVER")),
            ca: path("ca").or_else(|| environment.remove("CULVERT_CA_FILE").map(PathBuf::from)),
            token: token.map(Secret::new),
            metadata: text("session-metadata"),
            inspect,
            log: LogPlan::read(
                text("log").as_deref(),
                text("log-format").as_deref(),
                text("log-level").as_deref(),
            )?,
            has_screen: matches.get_one("console-ui").copied(),
            region: text("region"),
            proxy: None,
        })
    }

    /// Completes missing settings from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            server: self.server.or(other.server),
            ca: self.ca.or(other.ca),
            token: self.token.or(other.token),
            metadata: self.metadata.or(other.metadata),
            inspect: self.inspect.or(other.inspect),
            log: self.log.or(other.log),
            has_screen: self.has_screen.or(other.has_screen),
            region: self.region.or(other.region),
            proxy: self.proxy.or(other.proxy),
        }
    }

    /// The plan for `endpoints`, with defaults for missing settings.
    pub fn plan(self, endpoints: Vec<Endpoint>) -> Result<Plan, Failure> {
        let Some(token) = self.token.filter(|token| !token.is_empty()) else {
            let why = "no authtoken; set CULVERT_AUTHTOKEN or use `--authtoken-file` (create one with `culvert api credentials create`)";
            return Err(Failure::Usage(why.into()));
        };
        let authorities = match self.ca.or_else(own_authority) {
            Some(path) => Some(read(&path)?),
            None => None,
        };
        let server = self.server.as_deref().unwrap_or(DEFAULT_SERVER);
        let servers = server
            .split(',')
            .map(|address| {
                dialing(
                    address.trim(),
                    authorities.as_deref(),
                    self.proxy.as_deref(),
                )
            })
            .collect::<Result<Vec<Dialing>, _>>()
            .map_err(Failure::Usage)?;
        let mut notices = Vec::new();
        if let Some(region) = self.region.filter(|region| !region.is_empty()) {
            notices.push(format!(
                "the region `{region}` has no effect: the server decides the region"
            ));
        }
        Ok(Plan {
            servers,
            token,
            metadata: self.metadata.unwrap_or_default(),
            endpoints,
            inspect: self.inspect.unwrap_or(Inspect::Usual),
            log: self.log,
            has_screen: self.has_screen.unwrap_or(true),
            notices,
        })
    }
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
        None => Proxy::from_environment(|name| std::env::var(name).ok(), address)?,
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
    let folder = config::environment()
        .remove("CULVERT_DATA_DIR")
        .unwrap_or("./culvert-data".into());
    let path = PathBuf::from(folder).join("ca.pem");
    path.is_file().then_some(path)
}

/// Parses the address of the inspection page, which must be on loopback.
pub fn inspect_at(text: &str) -> Result<Inspect, String> {
    match text.parse::<std::net::SocketAddr>() {
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
