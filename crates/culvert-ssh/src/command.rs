//! Parses the request of a client: its user name, its `-R` forward and its command (agent protocol, section 9.1).

use std::net::IpAddr;

use culvert_base::{Code, Refusal, code};
use culvert_tunnel::client::{FLAGS, Flag, Given, Protocol, RequestedEndpoint};
use culvert_tunnel::wire::BindRequest;

/// Maximum length of a command.
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Maximum number of words in a command.
const WORDS_MAX: usize = 256;

/// The forward that the client requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    /// The name of the endpoint, or an address at which the client wants to listen, which names none (RFC 4254 7.1).
    pub(crate) host: String,
    /// Zero if the server chooses the port.
    pub(crate) port: u32,
}

impl Forward {
    /// The host, if it is that of an endpoint: not one that means all addresses, or the loopback.
    fn name(&self) -> Option<&str> {
        let host = self.host.as_str();
        let address = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let address = address.unwrap_or(host).parse::<IpAddr>();
        let is_any = address.is_ok_and(|it| it.is_unspecified() || it.is_loopback());
        let is_none = is_any || matches!(host, "" | "*" | "localhost");
        (!is_none).then_some(host)
    }
}

/// The result of parsing a command.
#[derive(Debug)]
pub(crate) enum ParsedCommand {
    /// A request for an endpoint.
    Endpoint(Box<BindRequest>),
    /// The help text.
    Help(String),
}

/// Parses a command.
pub(crate) fn read(user: &str, forward: &Forward, command: &str) -> Result<ParsedCommand, Refusal> {
    check_version(user)?;
    if command.len() > COMMAND_BYTES_MAX {
        return Err(wrong_flag("the command is too long"));
    }
    let words = words(command).ok_or_else(|| wrong_flag("a quotation mark is not closed"))?;
    let Some((name, given)) = words.split_first() else {
        return Err(Refusal::of(code::SSH_COMMAND_MISSING));
    };
    let kind = match &name[..] {
        "http" => Protocol::Http,
        "tcp" => Protocol::Tcp,
        "tls" => Protocol::Tls,
        "--help" | "help" => return Ok(ParsedCommand::Help(help(None))),
        other => {
            let text = format!(
                "Unknown command `{}`; use `http`, `tcp` or `tls`.",
                other.escape_debug()
            );
            return Err(Refusal::new(code::SSH_COMMAND_UNKNOWN, text));
        }
    };
    if given.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(ParsedCommand::Help(help(Some(kind))));
    }
    let mut wanted = RequestedEndpoint::default();
    flags(kind, given, &mut wanted)?;
    listen(kind, forward, &mut wanted)?;
    let (_, request) = wanted.bind(kind, "ssh").map_err(|why| wrong_flag(&why))?;
    Ok(ParsedCommand::Endpoint(Box::new(request)))
}

/// The port of the endpoint that a command requests, if its protocol determines it.
pub(crate) fn fixed_port(user: &str, command: &str) -> Option<u16> {
    let forward = Forward {
        host: String::new(),
        port: 0,
    };
    match read(user, &forward, command) {
        Ok(ParsedCommand::Endpoint(request)) => default_port(&request.proto).parse().ok(),
        _ => None,
    }
}

/// The port of an endpoint's URL.
pub(crate) fn port_of(url: &str) -> &str {
    let (scheme, address) = url.split_once("://").unwrap_or_default();
    match address.rsplit_once(':') {
        Some((_, port)) => port,
        None => default_port(scheme),
    }
}

/// The port of URLs without one; empty for TCP endpoints, whose URLs have one.
fn default_port(scheme: &str) -> &'static str {
    match scheme {
        "http" => "80",
        "https" | "tls" => "443",
        _ => "",
    }
}

/// A user name of `v` and digits selects the version of the command line; the latest is 2. SSH clients send the local
/// login name by default, so other names are ignored.
fn check_version(user: &str) -> Result<(), Refusal> {
    match user.strip_prefix('v') {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            match digits {
                "1" | "2" => Ok(()),
                _ => Err(Refusal::of(code::SSH_CLI_VERSION_UNSUPPORTED)),
            }
        }
        _ => Ok(()),
    }
}

/// The flags for the address of the endpoint, and the error code of each if the forward has a host too.
const NAMING: [(&str, Code); 4] = [
    ("remote-addr", code::SSH_ADDRESS_GIVEN_TWICE),
    ("url", code::SSH_ADDRESS_GIVEN_TWICE),
    ("hostname", code::SSH_HOSTNAME_GIVEN_TWICE),
    ("subdomain", code::SSH_SUBDOMAIN_GIVEN_TWICE),
];

/// Sets the address of the endpoint from the forward.
fn listen(
    kind: Protocol,
    forward: &Forward,
    wanted: &mut RequestedEndpoint,
) -> Result<(), Refusal> {
    let by_flags: Vec<&str> = wanted.named_by().collect();
    let is_given = |flag: &str| by_flags.contains(&flag);
    if is_given("hostname") && is_given("subdomain") {
        return Err(Refusal::of(code::SSH_HOSTNAME_AND_SUBDOMAIN_GIVEN));
    }
    let Some(host) = forward.name() else {
        return match kind {
            Protocol::Tcp if forward.port == 0 => Ok(()),
            Protocol::Tcp if is_given("remote-addr") => {
                Err(Refusal::of(code::SSH_PORT_GIVEN_TWICE))
            }
            Protocol::Tcp if by_flags.is_empty() => Err(Refusal::of(code::SSH_TCP_HOST_MISSING)),
            _ => Ok(()),
        };
    };
    if let Some((_, code)) = NAMING.iter().find(|(flag, _)| is_given(flag)) {
        return Err(Refusal::of(*code));
    }
    match kind {
        Protocol::Tcp if forward.port == 0 => Err(Refusal::of(code::SSH_TCP_PORT_MISSING)),
        Protocol::Tcp => {
            wanted.set_remote_addr(format!("{host}:{}", forward.port));
            Ok(())
        }
        _ => {
            wanted.set_host(host);
            Ok(())
        }
    }
}

fn flags(kind: Protocol, words: &[String], wanted: &mut RequestedEndpoint) -> Result<(), Refusal> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--") else {
            return Err(wrong_flag(&format!(
                "`{}` is not a flag",
                word.escape_debug()
            )));
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        let known = FLAGS.iter().find(|known| known.name == name);
        let Some(known) = known.filter(|known| known.scope.has(kind)) else {
            let text = format!(
                "`--{}` is not a valid flag for `{}`",
                name.escape_debug(),
                kind.command()
            );
            return Err(wrong_flag(&text));
        };
        if !known.scope.ssh || known.given == Given::File {
            let code = if known.name == "proxy-proto" {
                code::SSH_PROXY_PROTOCOL_UNSUPPORTED
            } else {
                code::SSH_FLAG_UNSUPPORTED
            };
            return Err(Refusal::new(code, format!("`--{name}` requires an agent.")));
        }
        let value = match (known.given, value) {
            (_, Some(value)) => value,
            (Given::Switch, None) => "",
            (_, None) => words
                .next()
                .ok_or_else(|| wrong_flag(&format!("`--{name}` requires a value")))?,
        };
        (known.apply)(wanted, value).map_err(|why| wrong_flag(&format!("`--{name}`: {why}")))?;
    }
    Ok(())
}

fn wrong_flag(why: &str) -> Refusal {
    Refusal::new(code::SSH_FLAG_UNSUPPORTED, format!("{why}."))
}

fn help(kind: Option<Protocol>) -> String {
    let mut text =
        String::from("ssh -R [host:]port:local-host:local-port v2@server http|tcp|tls [flags]\n");
    let has = |flag: &&Flag| flag.scope.ssh && flag.given != Given::File;
    if let Some(kind) = kind {
        for flag in FLAGS.iter().filter(has).filter(|flag| flag.scope.has(kind)) {
            let value = match flag.given {
                Given::Text(value) => format!(" <{value}>"),
                Given::Switch | Given::File => String::new(),
            };
            text.push_str(&format!("  --{}{value}\n      {}\n", flag.name, flag.doc));
        }
    } else {
        text.push_str("`http --help`, `tcp --help` and `tls --help` list the flags.\n");
    }
    text
}

/// Splits a command like a shell, without expansions. `None` if a quote is not closed.
fn words(command: &str) -> Option<Vec<String>> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut rest = command.chars();
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        '"' => break,
                        '\\' => match rest.next()? {
                            c @ ('"' | '\\' | '$' | '`') => word.push(c),
                            '\n' => {}
                            c => word.extend(['\\', c]),
                        },
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(rest.next()?),
            c => word.get_or_insert_default().push(c),
        }
        if words.len() > WORDS_MAX {
            return None;
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        user: &str,
        host: &str,
        port: u32,
        command: &str,
        expected: Result<(&str, Option<&str>), u16>,
    ) {
        let forward = Forward {
            host: host.into(),
            port,
        };
        match (read(user, &forward, command), expected) {
            (Ok(ParsedCommand::Endpoint(request)), Ok((proto, name))) => {
                assert_eq!(request.proto, proto, "{command}");
                let options = request.options().unwrap();
                assert_eq!(options.requested(), name, "{command}");
            }
            (Err(refusal), Err(code)) => {
                assert_eq!(
                    refusal.code.map(Code::number),
                    Some(code),
                    "{command}: {refusal}"
                );
            }
            (other, _) => panic!("{command}: {other:?}"),
        }
    }

    #[test]
    fn forms_of_the_contract() {
        check("v2", "localhost", 443, "http", Ok(("https", None)));
        check("ann", "", 80, "http --scheme http", Ok(("http", None)));
        check(
            "v2",
            "app.test",
            443,
            "http",
            Ok(("https", Some("app.test"))),
        );
        check(
            "v2",
            "*.app.test",
            443,
            "tls",
            Ok(("tls", Some("*.app.test"))),
        );
        check("v2", "localhost", 0, "tcp", Ok(("tcp", None)));
        // RFC 4254 7.1.
        for host in [
            "",
            "*",
            "0.0.0.0",
            "127.0.0.1",
            "::",
            "[::]",
            "::1",
            "[::1]",
        ] {
            check("v2", host, 443, "http", Ok(("https", None)));
            check("v2", host, 0, "tcp", Ok(("tcp", None)));
            let named = "http --url a.test";
            check("v2", host, 443, named, Ok(("https", Some("a.test"))));
        }
        check(
            "v2",
            "tcp.test",
            7000,
            "tcp",
            Ok(("tcp", Some("tcp.test:7000"))),
        );
        check(
            "v2",
            "localhost",
            0,
            "tcp --remote-addr tcp.test:7",
            Ok(("tcp", Some("tcp.test:7"))),
        );
        check(
            "v2",
            "localhost",
            0,
            "http --hostname a.test",
            Ok(("https", Some("a.test"))),
        );
    }

    #[test]
    fn each_mistake_has_its_code() {
        check("v3", "", 0, "http", Err(1106));
        check("v2", "", 0, "", Err(1107));
        check("v2", "", 0, "bash", Err(1108));
        check("v2", "", 0, "http --traffic-policy-file x", Err(1109));
        check("v2", "", 0, "http --no-such", Err(1109));
        check("v2", "", 0, "tcp --basic-auth a:b", Err(1109));
        check("v2", "", 0, "http 'open", Err(1109));
        check("v2", "", 0, "http --proxy-proto 1", Err(1123));
        check("v2", "a.test", 443, "http --url b.test", Err(1114));
        check("v2", "a.test", 7, "tcp --remote-addr b.test:8", Err(1114));
        check("v2", "", 7000, "tcp --remote-addr a.test:8", Err(1115));
        check("v2", "a.test", 443, "http --hostname b.test", Err(1118));
        check("v2", "a.test", 443, "tls --domain b.test", Err(1118));
        check("v2", "a.test", 443, "http --subdomain b", Err(1119));
        check(
            "v2",
            "",
            443,
            "http --hostname b.test --subdomain b",
            Err(1120),
        );
        check("v2", "localhost", 7000, "tcp", Err(1116));
        check("v2", "tcp.test", 0, "tcp", Err(1117));
        assert!(matches!(
            read("v2", &Forward { host: String::new(), port: 0 }, "http --help"),
            Ok(ParsedCommand::Help(text)) if text.contains("--basic-auth") && !text.contains("-file")
        ));
    }

    #[test]
    fn the_port_of_an_endpoint_is_known_before_its_forward() {
        for (command, port) in [
            ("http", Some(443)),
            ("http --scheme http", Some(80)),
            ("http --url a.test", Some(443)),
            ("tls", Some(443)),
            ("tcp", None),
            ("tcp --remote-addr a.test:7000", None),
            ("http --help", None),
            ("bash", None),
        ] {
            assert_eq!(fixed_port("v2", command), port, "{command}");
        }
        for (url, port) in [
            ("https://a.test", "443"),
            ("http://a.test", "80"),
            ("https://a.test:8443", "8443"),
            ("tls://a.test", "443"),
            ("tcp://a.test:7000", "7000"),
        ] {
            assert_eq!(port_of(url), port, "{url}");
        }
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let check = |text: &str, expected: &[&str]| {
            assert_eq!(words(text).unwrap(), expected, "{text}");
        };
        check("http  --metadata x y", &["http", "--metadata", "x", "y"]);
        check(
            "http --metadata 'x y' \"a \\\" b\" c\\ d ''",
            &["http", "--metadata", "x y", "a \" b", "c d", ""],
        );
        check("a'b'\"c\"d", &["abcd"]);
        assert_eq!(words("'open"), None);
        assert_eq!(words("\"open\\\""), None);
        assert_eq!(words("open\\"), None);
    }
}
