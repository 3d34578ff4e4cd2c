//! Relays between two streams in memory.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert_io::{CountedUpstream, MovedBytes, RelayClient, RelayEnd, RelayLimits, run_relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::Instant;

const LIMITS: RelayLimits = RelayLimits {
    idle: Duration::from_secs(3600),
    write: Duration::from_secs(300),
};

/// One side of a relay.
struct End(DuplexStream);

impl RelayEnd for End {}

culvert_io::delegate_io!(AsyncRead, AsyncWrite for End { Self(io) => io });

/// Counts how often its relay called it slow.
#[derive(Debug, Default)]
struct Client(AtomicUsize);

impl RelayClient for Client {
    type HeldMemory = ();

    fn source(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    fn hold(self: &Arc<Self>, _: usize) {}

    fn too_slow(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A relay with these limits, and the far ends of its client and its upstream.
fn relay(
    limits: RelayLimits,
) -> (
    impl Future<Output = (u64, u64)>,
    Arc<Client>,
    DuplexStream,
    DuplexStream,
) {
    let (client, far_client) = tokio::io::duplex(1 << 10);
    let (upstream, far_upstream) = tokio::io::duplex(1 << 10);
    let owner = Arc::new(Client::default());
    let for_relay = Arc::clone(&owner);
    let relayed = async move {
        let moved = Arc::new(MovedBytes::default());
        let mut client = End(client);
        let mut upstream = CountedUpstream::new(upstream, Arc::clone(&moved));
        let sum = || {
            let (there, back) = moved.bytes();
            there + back
        };
        let owner = Some(&for_relay);
        run_relay(&mut client, &mut upstream, owner, limits, sum, |_| false).await;
        moved.bytes()
    };
    (relayed, owner, far_client, far_upstream)
}

#[tokio::test]
async fn bytes_pass_in_both_directions_until_both_are_closed() {
    let (relayed, owner, mut client, mut upstream) = relay(LIMITS);
    let request = vec![b'a'; 100_000];
    let response = vec![b'b'; 70_000];
    let client = async {
        client.write_all(&request).await.unwrap();
        client.shutdown().await.unwrap();
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        read
    };
    let upstream = async {
        let mut read = Vec::new();
        upstream.read_to_end(&mut read).await.unwrap();
        upstream.write_all(&response).await.unwrap();
        upstream.shutdown().await.unwrap();
        read
    };
    let (moved, to_client, to_upstream) = tokio::join!(relayed, client, upstream);
    assert!(to_upstream == request && to_client == response);
    assert_eq!(moved, (100_000, 70_000));
    assert_eq!(owner.0.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_relay_ends_at_the_idle_limit() {
    let limits = RelayLimits {
        idle: Duration::from_secs(60),
        ..LIMITS
    };
    let (relayed, owner, mut client, _upstream) = relay(limits);
    client.write_all(b"one message").await.unwrap();
    let began = Instant::now();
    assert_eq!(relayed.await, (11, 0));
    assert!(began.elapsed() >= Duration::from_secs(60));
    assert_eq!(owner.0.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_ends_its_relay() {
    let (relayed, owner, _client, mut upstream) = relay(LIMITS);
    let data = vec![0; 1 << 20];
    let sending = async { upstream.write_all(&data).await };
    let began = Instant::now();
    let (_, sent) = tokio::join!(relayed, sending);
    assert!(sent.is_err(), "the relay has closed its end");
    assert_eq!(owner.0.load(Ordering::Relaxed), 1);
    assert!(began.elapsed() <= LIMITS.write);
}
