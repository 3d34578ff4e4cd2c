//! Why the agent cannot connect to a server, in words: what happened, and what to do about it.
//!
//! An agent that was never online repeats an attempt that fails for a mistake, such as a wrong port or CA, only for a while.

use std::fmt;
use std::io;

use culvert_base::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};

use super::connect::DEFAULT_PORT;

/// Usual ports of other listeners of a server, which users confuse with that for agents.
const OTHER_PORTS: &[(u16, &str)] = &[
    (22, "SSH"),
    (80, "the edge for HTTP"),
    (443, "the edge for HTTPS"),
    (2222, "agents over SSH"),
    (8080, "the edge for HTTP"),
    (8420, "the management API"),
    (8442, "other nodes"),
    (8443, "the edge for HTTPS"),
    (9420, "metrics"),
];
/// Maximum number of names of a certificate that are listed.
const NAMES_MAX: usize = 4;

/// Why a connection to a server failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DialError {
    /// A sentence without a full stop, which names the server.
    pub why: String,
    /// Whether the same attempt fails until a user changes something.
    pub is_lasting: bool,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl DialError {
    fn lasting(why: String) -> Self {
        Self {
            why,
            is_lasting: true,
        }
    }

    fn passing(why: String) -> Self {
        Self {
            why,
            is_lasting: false,
        }
    }
}

/// Explains an error before TLS.
pub(crate) fn before_tls(error: &io::Error, server: &str) -> DialError {
    // The resolver's errors have no kind of their own.
    let text = error.to_string();
    if text.starts_with("failed to lookup address") {
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        return DialError::passing(format!(
            "the name `{host}` does not resolve: {text}; is it spelled as in `--server`, and is DNS reachable?"
        ));
    }
    DialError::passing(match error.kind() {
        io::ErrorKind::ConnectionRefused => format!(
            "nothing listens at `{server}`: is the server running, with `agents.addr` at this port?"
        ),
        io::ErrorKind::TimedOut => format!(
            "no response from `{server}`: does a firewall let connections to this port through?"
        ),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            format!("`{server}` is unreachable from this machine: {text}")
        }
        _ => format!("cannot connect to `{server}`: {text}"),
    })
}

/// Explains an error of the TLS handshake. `first` are the first bytes that the server sent, and `has_own_cas` says
/// whether a file names the CAs that the agent trusts.
pub(crate) fn in_tls(
    error: &io::Error,
    server: &str,
    first: &[u8],
    has_own_cas: bool,
) -> DialError {
    let Some(tls) = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    else {
        return DialError::passing(match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => format!(
                "`{server}` closed the connection during the TLS handshake: is it the port for agents?"
            ),
            _ => format!("the TLS handshake with `{server}` failed: {error}"),
        });
    };
    match tls {
        rustls::Error::InvalidCertificate(error) => of_certificate(error, server, has_own_cas),
        rustls::Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
            DialError::lasting(format!(
                "`{server}` has no certificate for `{host}`, so it is not the port for agents{}",
                usual_ports(server)
            ))
        }
        rustls::Error::InvalidMessage(_) => {
            let speaks = match first {
                [b'S', b'S', b'H', b'-', ..] => "speaks SSH",
                [b'H', b'T', b'T', b'P', ..] => "speaks HTTP without TLS",
                _ => "does not speak TLS",
            };
            DialError::lasting(format!(
                "`{server}` {speaks}, so it is not the port for agents{}",
                usual_ports(server)
            ))
        }
        other => DialError::passing(format!("the TLS handshake with `{server}` failed: {other}")),
    }
}

/// Explains a server whose certificate is right, but which speaks another protocol.
pub(crate) fn after_tls(server: &str) -> String {
    format!(
        "`{server}` speaks another protocol over TLS, so it is not the port for agents{}",
        usual_ports(server)
    )
}

/// Explains a connection whose certificate is right, and which was lost before the server established the session.
pub(crate) fn before_session(why: &str, server: &str) -> String {
    format!("{why}: `{server}` established no session; is it the port for agents?")
}

fn of_certificate(error: &CertificateError, server: &str, has_own_cas: bool) -> DialError {
    const FIND: &str =
        "it is in the data directory of the server, and on the Connect page of its console";
    let text = match error {
        // A CA of another installation has the same name, and another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature if has_own_cas => format!(
            "the CAs in `--ca` did not sign the certificate of `{server}`: use the `ca.pem` of this server; {FIND}"
        ),
        CertificateError::UnknownIssuer => format!(
            "this machine does not trust the CA of `{server}`: give the server's `ca.pem` with `--ca`; {FIND}"
        ),
        CertificateError::NotValidForNameContext { presented, .. } => format!(
            "the certificate of `{server}` is for {}: connect with one of these names, or add yours to `agents.names` of the server",
            listed(presented)
        ),
        CertificateError::ExpiredContext { time, not_after } => {
            return DialError::passing(format!(
                "the certificate of `{server}` expired at {}, and the clock of this machine shows {}: correct the clock, or renew the certificate",
                shown(*not_after),
                shown(*time)
            ));
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            return DialError::passing(format!(
                "the certificate of `{server}` is valid from {}, and the clock of this machine shows {}: correct the clock",
                shown(*not_before),
                shown(*time)
            ));
        }
        other => format!("the certificate of `{server}` is invalid: {other}"),
    };
    DialError::lasting(text)
}

/// Where agents connect to, and what the port of this server usually is for.
fn usual_ports(server: &str) -> String {
    let port = server
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse::<u16>().ok());
    let other = OTHER_PORTS.iter().find(|(other, _)| Some(*other) == port);
    let other = match other {
        Some((port, what)) => format!("; {port} is usually for {what}"),
        None => String::new(),
    };
    format!("{other}; the usual one is {DEFAULT_PORT}, and `agents.addr` of the server sets it")
}

/// Names of a certificate, as rustls presents them.
fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "no name".into();
    }
    let mut shown: Vec<String> = names
        .iter()
        .take(NAMES_MAX)
        .map(|name| {
            let inner = name
                .split_once('(')
                .and_then(|(_, it)| it.strip_suffix(')'));
            format!("`{}`", inner.unwrap_or(name).trim_matches('"'))
        })
        .collect();
    if names.len() > NAMES_MAX {
        shown.push("others".into());
    }
    shown.join(", ")
}

fn shown(time: UnixTime) -> Timestamp {
    Timestamp::from_unix_seconds(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

/// What a user can do about a refusal with this code; empty if the server's message says it, or if it passes.
pub(crate) fn remedy(code: u16) -> &'static str {
    match code {
        103 => "an admin can activate the account",
        105 => {
            "copy the whole token that `culvert api credentials create` or the Connect page printed"
        }
        107 => {
            "it was never valid here, or its credential was deleted: create one with `culvert api credentials create` or on the Connect page, and save it with `culvert config add-authtoken`"
        }
        115 => "an admin can add the address to the IP restriction of type `agent`",
        121 => "install a newer agent",
        300 => {
            "create a new credential, with `culvert api credentials create` or on the Connect page"
        }
        308 | 316 | 356 => "add a `bind:` rule to the `acl` of the credential, or use another URL",
        319 => {
            "omit the URL to get a free one, or reserve the domain with `culvert api reserved_domains create`"
        }
        320 => "use another name, or a credential of the owner of this one",
        334 => "stop the other endpoint, use another URL, or give both `--pooling`",
        636 => "an admin can activate the owner, or create a credential of another one",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::ServerName;

    use super::*;

    fn time(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn a_refused_certificate_says_what_to_correct() {
        let names = |count: usize| -> Vec<String> {
            let name = |nth| format!("DnsName(\"n{nth}.test\")");
            (0..count).map(name).collect()
        };
        let for_name = |count| CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("x.test").unwrap(),
            presented: names(count),
        };
        let expired = CertificateError::ExpiredContext {
            time: time(1_000_000_000),
            not_after: time(900_000_000),
        };
        let early = CertificateError::NotValidYetContext {
            time: time(900_000_000),
            not_before: time(1_000_000_000),
        };
        let issuer = CertificateError::UnknownIssuer;
        for (error, has_own_cas, is_lasting, words) in [
            (
                issuer.clone(),
                false,
                true,
                "with `--ca`; it is in the data directory",
            ),
            (issuer, true, true, "the CAs in `--ca` did not sign"),
            (
                CertificateError::BadSignature,
                true,
                true,
                "use the `ca.pem` of this server",
            ),
            (
                for_name(2),
                true,
                true,
                "is for `n0.test`, `n1.test`: connect with one of these",
            ),
            (for_name(9), true, true, "`n3.test`, others: connect"),
            (for_name(0), true, true, "is for no name"),
            (
                expired,
                true,
                false,
                "and the clock of this machine shows 2001-09-09T01:46:40Z",
            ),
            (early, true, false, "is valid from 2001-09-09T01:46:40Z"),
        ] {
            let found = of_certificate(&error, "s.test:8441", has_own_cas);
            assert_eq!(found.is_lasting, is_lasting, "{found}");
            assert!(found.why.contains(words), "{found}");
            assert!(found.why.contains("`s.test:8441`"), "{found}");
        }
    }

    #[test]
    fn a_usual_port_is_named() {
        assert!(after_tls("s.test:8443").contains("; 8443 is usually for the edge for HTTPS;"));
        assert!(!after_tls("s.test:9").contains("usually for"));
    }
}
