//! Options of TCP sockets.

use std::time::Duration;

use culvert_http::slow_reader::UNSENT_BYTES;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// TCP keep-alive: idle time, interval and number of probes. A peer that has vanished is detected within two
/// minutes, so silence needs no other limit.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// Enables keep-alive, for a connection that may be silent for long.
pub fn probe(tcp: &TcpStream) {
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY)
        .with_retries(PROBES);
    if let Err(error) = SockRef::from(tcp).set_tcp_keepalive(&probes) {
        tracing::debug!(%error, "cannot enable TCP keep-alive");
    }
}

/// Limits unsent bytes in the kernel's buffer (`TCP_NOTSENT_LOWAT`), so that writes show how fast the client reads.
pub fn keep_little(tcp: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(error) = SockRef::from(tcp).set_tcp_notsent_lowat(UNSENT_BYTES) {
        tracing::debug!(%error, "cannot limit the send buffer of a client socket");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (tcp, UNSENT_BYTES);
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn silent_connections_are_probed_after_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap());
        let tcp = tcp.await.unwrap();
        let socket = SockRef::from(&tcp);
        assert!(!socket.keepalive().unwrap());
        probe(&tcp);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), PROBE_AFTER);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), PROBE_EVERY);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), PROBES);
        keep_little(&tcp);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), UNSENT_BYTES);
    }
}
