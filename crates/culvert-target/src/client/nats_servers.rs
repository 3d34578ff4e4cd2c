//! Parses settings that list the servers of a NATS cluster.

use std::fmt;

use async_nats::ServerAddr;
use culvert_base::Secret;
use url::Url;

/// Maximum number of servers.
const SERVERS_MAX: usize = 16;

/// NATS servers of one cluster, and their credentials.
#[derive(Clone)]
pub struct NatsServers {
    /// In the given order.
    pub addresses: Vec<ServerAddr>,
    /// For all of them.
    pub login: NatsLogin,
}

/// Authentication at NATS servers.
#[derive(Clone, Debug, Default)]
pub enum NatsLogin {
    /// None is required.
    #[default]
    None,
    /// A token.
    Token(Secret),
    /// A user and a password.
    User(String, Secret),
}

impl fmt::Debug for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NatsServers").field(&self.shown()).finish()
    }
}

impl NatsServers {
    /// Parses `nats://host:4222`, or several servers separated by commas. `tls://` requires TLS.
    /// `user:password@` or `token@` before one host applies to all servers.
    ///
    /// # Errors
    /// A clause about the text, without its secrets, to be completed to a sentence by the caller.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut addresses = Vec::new();
        let mut login = None;
        let mut scheme = String::new();
        for entry in text.split(',').map(str::trim) {
            let url = match entry.contains("://") {
                true => entry.to_owned(),
                // A server without a scheme uses that of the server before it.
                false if !scheme.is_empty() => format!("{scheme}://{entry}"),
                false => return Err("it must start with `nats://` or `tls://`".to_owned()),
            };
            let mut url = Url::parse(&url).map_err(|error| format!("it is not a URL: {error}"))?;
            if !["nats", "tls"].contains(&url.scheme()) {
                return Err("it must start with `nats://` or `tls://`".to_owned());
            }
            if url.host_str().unwrap_or_default().is_empty() {
                return Err("it must name a host".to_owned());
            }
            if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some()
            {
                return Err("it must end after the port".to_owned());
            }
            let given = login_of(&url)?;
            if let Some(given) = given {
                if login.replace(given).is_some() {
                    return Err(
                        "only one server may have credentials, which apply to all servers"
                            .to_owned(),
                    );
                }
                url.set_password(None).ok();
                url.set_username("").ok();
            }
            scheme = url.scheme().to_owned();
            addresses.push(ServerAddr::from_url(url).map_err(|error| error.to_string())?);
        }
        if addresses.len() > SERVERS_MAX {
            return Err(format!("it must name at most {SERVERS_MAX} servers"));
        }
        Ok(Self {
            addresses,
            login: login.unwrap_or_default(),
        })
    }

    /// The servers as text, without secrets.
    pub fn shown(&self) -> String {
        let login = match &self.login {
            NatsLogin::None => String::new(),
            NatsLogin::Token(_) => "[secret]@".to_owned(),
            NatsLogin::User(user, _) => format!("{user}:[secret]@"),
        };
        let urls = self.addresses.iter().enumerate().map(|(index, address)| {
            let (scheme, rest) = address.as_url_str().split_once("://").unwrap_or_default();
            let rest = rest.trim_end_matches('/');
            match index {
                0 => format!("{scheme}://{login}{rest}"),
                _ => format!("{scheme}://{rest}"),
            }
        });
        urls.collect::<Vec<_>>().join(",")
    }
}

fn login_of(url: &Url) -> Result<Option<NatsLogin>, String> {
    let wrong = || "its credentials are not valid UTF-8".to_owned();
    let user = unescaped(url.username()).ok_or_else(wrong)?;
    Ok(match (user.is_empty(), url.password()) {
        (true, None) => None,
        (true, Some(_)) => return Err("it has a password but no user".to_owned()),
        (false, None) => Some(NatsLogin::Token(Secret::new(user))),
        (false, Some(password)) => {
            let password = unescaped(password).ok_or_else(wrong)?;
            Some(NatsLogin::User(user, Secret::new(password)))
        }
    })
}

/// Decodes percent escapes; `None` if the result is not UTF-8.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let escaped = (*first == b'%').then(|| after.get(..2)).flatten();
        let byte = escaped
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_parsed_and_shown_without_secrets() {
        for (text, shown) in [
            ("nats://one:4222", "nats://one:4222"),
            ("nats://one", "nats://one"),
            ("tls://one:1,two:2", "tls://one:1,tls://two:2"),
            (
                "nats://u:p%40ss@one:1, nats://two",
                "nats://u:[secret]@one:1,nats://two",
            ),
            ("nats://t0ken@[::1]:4222", "nats://[secret]@[::1]:4222"),
        ] {
            assert_eq!(NatsServers::parse(text).unwrap().shown(), shown, "{text}");
        }
        let NatsLogin::User(user, password) =
            NatsServers::parse("nats://u:p%40ss@one").unwrap().login
        else {
            panic!("a user");
        };
        assert_eq!((user.as_str(), password.reveal()), ("u", "p@ss"));
    }

    #[test]
    fn invalid_server_urls_are_refused_without_showing_secrets() {
        for text in [
            "",
            "one:4222",
            "http://s3cret@one",
            "nats://",
            "nats://:s3cret@one",
            "nats://s3cret@one/path",
            "nats://s3cret@one?x=1",
            "nats://a:s3cret@one,nats://b:s3cret@two",
            "nats://one:99999",
        ] {
            let why = NatsServers::parse(text).unwrap_err();
            assert!(!why.contains("s3cret"), "{why}");
        }
    }
}
