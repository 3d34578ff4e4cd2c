//! The interface or address of this machine from which connections to the server leave.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpSocket, TcpStream, lookup_host};

/// Maximum length of an interface's name in Linux: `IFNAMSIZ` without the final null byte.
const NAME_BYTES_MAX: usize = 15;

/// An interface or an address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interface {
    /// An address.
    Address(IpAddr),
    /// The name of an interface, such as `eth0`.
    Name(String),
}

impl Interface {
    /// Parses an address or a name. Whether it exists is checked with each connection, because interfaces come and go.
    ///
    /// # Errors
    ///
    /// `text` is neither. The error is a sentence without a full stop.
    pub fn parse(text: &str) -> Result<Self, String> {
        // IPv6 addresses may have brackets, as in URLs.
        if let Ok(address) = text.trim_matches(['[', ']']).parse() {
            return Ok(Self::Address(address));
        }
        // The rules of Linux, and no control characters.
        let is_name = (1..=NAME_BYTES_MAX).contains(&text.len())
            && !matches!(text, "." | "..")
            && !text
                .contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
        match is_name {
            true => Ok(Self::Name(text.to_owned())),
            false => Err(format!(
                "`{text}` is neither an address nor the name of an interface such as eth0"
            )),
        }
    }

    fn bind(&self, socket: &TcpSocket) -> io::Result<()> {
        match self {
            Self::Address(address) => socket.bind(SocketAddr::new(*address, 0)),
            #[cfg(target_os = "linux")]
            Self::Name(name) => socket.bind_device(Some(name.as_bytes())),
            #[cfg(not(target_os = "linux"))]
            Self::Name(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "interfaces have names on Linux only; use an address",
            )),
        }
    }

    /// Whether a socket that is bound here can connect to `address`: an address needs one of the same family.
    fn can_reach(&self, address: &SocketAddr) -> bool {
        match self {
            Self::Address(own) => own.is_ipv4() == address.is_ipv4(),
            Self::Name(_) => true,
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Connects to `host:port`, from the interface if there is one. Tries each address of the host. The error is that of
/// the last one.
pub(crate) async fn connect(interface: Option<&Interface>, target: &str) -> io::Result<TcpStream> {
    let Some(interface) = interface else {
        return TcpStream::connect(target).await;
    };
    let mut last = io::Error::other(format!(
        "`{target}` has no address that {interface} can reach"
    ));
    for address in lookup_host(target)
        .await?
        .filter(|it| interface.can_reach(it))
    {
        let socket = match address.is_ipv4() {
            true => TcpSocket::new_v4()?,
            false => TcpSocket::new_v6()?,
        };
        if let Err(error) = interface.bind(&socket) {
            last = io::Error::new(
                error.kind(),
                format!("using the interface {interface}: {error}"),
            );
            continue;
        }
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn interfaces_are_addresses_or_names() {
        for (text, expected) in [
            ("127.0.0.1", Interface::Address([127, 0, 0, 1].into())),
            (
                "[::1]",
                Interface::Address(std::net::Ipv6Addr::LOCALHOST.into()),
            ),
            (
                "::1",
                Interface::Address(std::net::Ipv6Addr::LOCALHOST.into()),
            ),
            ("eth0", Interface::Name("eth0".into())),
            ("wg-home.1", Interface::Name("wg-home.1".into())),
        ] {
            assert_eq!(Interface::parse(text).unwrap(), expected, "{text}");
        }
        for text in [
            "",
            "a b",
            "../eth0",
            "eth0:80",
            "a-name-that-is-long",
            "..",
            "a\0",
        ] {
            let error = Interface::parse(text).unwrap_err();
            assert!(error.contains("neither an address"), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn connections_leave_from_the_interface() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap().to_string();
        let own = Interface::parse("127.0.0.7").unwrap();
        let stream = connect(Some(&own), &target).await.unwrap();
        assert_eq!(stream.local_addr().unwrap().ip().to_string(), "127.0.0.7");
        let other = Interface::parse("::1").unwrap();
        let error = connect(Some(&other), &target).await.unwrap_err();
        assert!(
            error.to_string().contains("no address that ::1 can reach"),
            "{error}"
        );
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn an_interface_has_a_name() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap().to_string();
        let lo = Interface::parse("lo").unwrap();
        drop(connect(Some(&lo), &target).await.unwrap());
        let missing = Interface::parse("missing0").unwrap();
        let error = connect(Some(&missing), &target).await.unwrap_err();
        assert!(
            error.to_string().contains("the interface missing0"),
            "{error}"
        );
    }
}
