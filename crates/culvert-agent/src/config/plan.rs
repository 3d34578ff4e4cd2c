//! The flags of the agent commands: those that all of them share, and those of one endpoint.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_tunnel::client::{
    Endpoint, FLAGS, Given, Protocol, RequestedEndpoint, RequestedTls, Upstream, UpstreamTls,
};

use super::definition::termination;
use super::file::{self, Selection};
use super::identity::{DEFAULT_SERVER, Identity, read, read_text};
use super::policy_url::{self, PolicyUrl};
use super::{INSPECT_ADDR, Plan};
use culvert_command::Failure;

/// Names of flags in ngrok's command line that have another name here.
const ALIASES: &[(&str, &str)] = &[
    ("proxy-proto", "upstream-proxy-protocol"),
    ("traffic-policy-file", "policy-file"),
    ("upstream-protocol", "app-protocol"),
];

/// Headings of the help text, with the beginnings of the names of their flags.
const HEADINGS: &[(&str, &[&str])] = &[
    (
        "Endpoint",
        &[
            "url",
            "domain",
            "hostname",
            "subdomain",
            "scheme",
            "name",
            "description",
            "metadata",
            "binding",
            "pooling",
            "remote-addr",
            "config",
        ],
    ),
    (
        "Access",
        &[
            "basic-auth",
            "oauth",
            "oidc",
            "cidr",
            "ua-filter",
            "verify-webhook",
            "mutual-tls",
        ],
    ),
    (
        "Traffic",
        &[
            "traffic-policy",
            "compression",
            "circuit-breaker",
            "request-header",
            "response-header",
            "websocket",
        ],
    ),
    (
        "Service",
        &[
            "proxy-proto",
            "upstream",
            "host-header",
            "crt",
            "key",
            "terminate-at",
        ],
    ),
    (
        "Server",
        &["server", "ca", "authtoken", "session-metadata", "region"],
    ),
    ("Screen and log", &["log", "console-ui", "inspect"]),
];

/// The heading of a flag; `None` for a flag of one command alone.
fn heading(name: &str) -> Option<&'static str> {
    let is_of = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    let exact = HEADINGS.iter().find(|(_, starts)| starts.contains(&name));
    let found = exact.or_else(|| HEADINGS.iter().find(|(_, starts)| is_of(starts)));
    found.map(|(heading, _)| *heading)
}

/// Puts the flags of a command under their headings.
fn with_headings(command: Command) -> Command {
    command.mut_args(|arg| match arg.get_long().and_then(heading) {
        Some(heading) => arg.help_heading(heading),
        None => arg,
    })
}

/// Adds the flags for the server and the agent.
pub fn with_server(command: Command) -> Command {
    with_headings(with_server_flags(command))
}

fn with_server_flags(command: Command) -> Command {
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
    with_headings(with_endpoint_flags(command, kind))
}

fn with_endpoint_flags(command: Command, kind: Protocol) -> Command {
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
        if let Some((_, alias)) = ALIASES.iter().find(|(name, _)| *name == flag.name) {
            arg = arg.visible_alias(*alias);
        }
        command = command.arg(arg);
    }
    command = command
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .action(ArgAction::Append)
                .value_parser(value_parser!(PathBuf))
                .help("Configuration file whose settings of the agent apply"),
        )
        .arg(
            Arg::new("traffic-policy-url")
                .long("traffic-policy-url")
                .value_name("URL")
                .conflicts_with("traffic-policy-file")
                .help(
                    "http or https URL of a Traffic Policy, which the agent fetches when it starts",
                ),
        );
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help(help)
    };
    let upstream_ca = file(
        "upstream-ca",
        "PEM file of CAs to verify the service [default: the system's CAs]",
    );
    command = command
        .arg(upstream_ca.visible_alias("upstream-tls-verify-cas"))
        .arg(
            Arg::new("upstream-tls-verify")
                .long("upstream-tls-verify")
                .value_name("BOOL")
                .value_parser(value_parser!(bool))
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .help("Whether to verify the certificate of a service with TLS [default: true]"),
        )
        .arg(
            Arg::new("upstream-server-name")
                .long("upstream-server-name")
                .value_name("NAME")
                .help("Name to ask a service with TLS for, and to verify, instead of its host"),
        )
        .arg(
            Arg::new("upstream-pin")
                .long("upstream-pin")
                .value_name("SHA256")
                .action(ArgAction::Append)
                .help("SHA-256 of the certificate of the service or of its public key; accepts a self-signed one"),
        )
        .arg(file("upstream-cert", "PEM certificate chain to present to a service with TLS").requires("upstream-key"))
        .arg(file("upstream-key", "PEM private key of that certificate").requires("upstream-cert"));
    if kind.is_http() {
        command = command.arg(
            Arg::new("host-header")
                .long("host-header")
                .value_name("HOST")
                .help("Value of the `Host` header that the service gets; `rewrite` uses the service's own host, `preserve` that of the request"),
        );
    }
    if kind == Protocol::Tls {
        command = command
            .arg(file("crt", "PEM certificate chain to terminate TLS in the agent").requires("key"))
            .arg(file("key", "PEM private key of the certificate").requires("crt"))
            .arg(
                Arg::new("terminate-at")
                    .long("terminate-at")
                    .value_name("PLACE")
                    .value_parser(["agent", "edge", "upstream"])
                    .help("Where TLS is terminated: `agent` or `edge` with --crt and --key, which `edge` sends to the server, `edge` with a certificate of the server, or `upstream` [default: agent with --crt, otherwise upstream]"),
            );
    }
    command
}

/// The plan of a command built with [`with_server`] and [`with_endpoint`].
pub fn plan_of(matches: &ArgMatches, kind: Protocol) -> Result<Plan, Failure> {
    let endpoint = endpoint_of(matches, kind)?;
    let policies = policy_of(matches)?;
    let mut given = Identity::of(matches)?;
    if let Some(paths) = matches.get_many::<PathBuf>("config") {
        let paths: Vec<PathBuf> = paths.cloned().collect();
        given = given.or(file::read(&paths, Selection::None)?.identity);
    }
    given.plan(vec![endpoint], policies.into_iter().collect())
}

/// The URL of the endpoint's policy.
fn policy_of(matches: &ArgMatches) -> Result<Option<PolicyUrl>, Failure> {
    let Some(url) = matches.get_one::<String>("traffic-policy-url") else {
        return Ok(None);
    };
    let place = "`--traffic-policy-url`".to_owned();
    let url = policy_url::parse(url).map_err(|why| Failure::Usage(format!("{place}: {why}")))?;
    Ok(Some(PolicyUrl {
        endpoint: 0,
        place,
        url,
    }))
}

/// The options of TLS to the service.
fn upstream_tls_of(matches: &ArgMatches) -> Result<UpstreamTls, Failure> {
    let file = |name: &str| {
        let path = matches.get_one::<PathBuf>(name);
        path.map(|path| read(path)).transpose()
    };
    let pins = matches.get_many::<String>("upstream-pin");
    let requested = RequestedTls {
        verify: matches.get_one("upstream-tls-verify").copied(),
        authorities: file("upstream-ca")?,
        server_name: matches.get_one("upstream-server-name").cloned(),
        pins: pins.into_iter().flatten().cloned().collect(),
        certificate: file("upstream-cert")?,
        private_key: file("upstream-key")?,
    };
    requested.options().map_err(Failure::Usage)
}

fn endpoint_of(matches: &ArgMatches, kind: Protocol) -> Result<Endpoint, Failure> {
    let mut wanted = RequestedEndpoint::default();
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
    let options = upstream_tls_of(matches)?;
    let upstream = matches
        .get_one::<String>("upstream")
        .map(String::as_str)
        .unwrap_or_default();
    let upstream =
        Upstream::parse(upstream, kind, wanted.http2, &options).map_err(Failure::Usage)?;
    if kind.is_http()
        && let Some(host) = matches.get_one::<String>("host-header")
    {
        wanted.set_host_header(host, &upstream);
    }
    let mut tls_end = None;
    if kind == Protocol::Tls {
        let of_file = |name| matches.get_one::<PathBuf>(name).map(|path| read(path));
        let chain = of_file("crt").transpose()?;
        let key = of_file("key").transpose()?;
        let place = matches.get_one::<String>("terminate-at");
        let place = place.map(String::as_str);
        tls_end = termination(&mut wanted, chain.as_deref(), key.as_deref(), place)
            .map_err(Failure::Usage)?;
    }
    let mut endpoint = Endpoint::new(kind, wanted, upstream).map_err(Failure::Usage)?;
    endpoint.tls_end = tls_end;
    if endpoint.name.is_empty() {
        endpoint.name = "command_line".into();
    }
    Ok(endpoint)
}
