//! The congestion control of connections between servers and agents.

use std::fmt;
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::TcpStream;

/// Maximum length of a name in Linux.
const NAME_BYTES_MAX: usize = 15;

/// The name of a congestion control of the kernel, or its default one.
///
/// Each end decides for the bytes it sends. The usual one, BBR, is hardly slowed down by the lost packets of a long distance,
/// and one connection carries the streams of many clients. A kernel that does not have it, or does not let this process
/// use it (`net.ipv4.tcp_allowed_congestion_control`), keeps its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionControl(Option<Arc<str>>);

impl CongestionControl {
    /// Parses a name such as `cubic`; the default of the kernel if it is empty.
    ///
    /// # Errors
    ///
    /// The error is a sentence without a full stop.
    pub fn parse(name: &str) -> Result<Self, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        match name {
            "" => Ok(Self(None)),
            name if name.len() <= NAME_BYTES_MAX && name.chars().all(is_name) => {
                Ok(Self(Some(name.into())))
            }
            name => Err(format!(
                "`{name}` is not the name of a congestion control such as bbr or cubic"
            )),
        }
    }

    /// Has the kernel use it to send on a connection, if it can.
    pub(crate) fn apply(&self, tcp: &TcpStream) {
        let Some(name) = &self.0 else { return };
        #[cfg(target_os = "linux")]
        if let Err(error) = SockRef::from(tcp).set_tcp_congestion(name.as_bytes()) {
            tracing::debug!(name = &**name, %error, "the kernel keeps its congestion control");
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (tcp, name);
    }
}

impl Default for CongestionControl {
    fn default() -> Self {
        Self(Some("bbr".into()))
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_name_is_one_of_the_kernel_or_empty() {
        for name in ["", "bbr", "cubic", "dctcp", "bbr-v3_x"] {
            let parsed = CongestionControl::parse(name).unwrap();
            assert_eq!(parsed.to_string(), name);
        }
        assert_eq!(CongestionControl::default().to_string(), "bbr");
        for name in ["a b", "../bbr", "a-name-of-16-byte", "b\0"] {
            let error = CongestionControl::parse(name).unwrap_err();
            assert!(error.contains("bbr or cubic"), "{error}");
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_uses_it_if_it_can() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let tcp = tcp.unwrap();
        let used = || {
            let name = SockRef::from(&tcp).tcp_congestion().unwrap();
            let name = String::from_utf8(name).unwrap();
            name.trim_end_matches('\0').to_owned()
        };
        let usual = used();
        CongestionControl::parse("").unwrap().apply(&tcp);
        CongestionControl::parse("no-such").unwrap().apply(&tcp);
        assert_eq!(used(), usual);
        // Every kernel has it, and every process may use it.
        CongestionControl::parse("reno").unwrap().apply(&tcp);
        assert_eq!(used(), "reno");
    }
}
