//! What the edge keeps of a body whose receiver takes nothing (reliability 4.2): counted where it reads
//! and where it writes, so that what the system keeps does not matter.

use std::time::Duration;

use culvert_base::BoxFuture;
use culvert_policy::Scheme;
use tokio::io::{AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::harness::*;
use crate::{
    AgentCall, AgentIo, AgentRefused, Clients, Dial, Endpoint, Protocol, Settings, Snapshot,
    Upstream,
};

/// Most bytes of a body that are kept in one direction: 64 KiB of a read, and 16 KiB that wait to be written.
const KEPT_MAX: u64 = (64 + 16) << 10;
/// Bytes that the stream to the agent holds.
const WAY_BYTES: usize = 1 << 10;
/// After this time without a read, the test takes the reader for stalled. On a slow machine it then sees fewer bytes.
const STALLED_AFTER: Duration = Duration::from_millis(500);

/// The edge's end of a stream to an agent.
#[derive(Debug)]
pub(super) struct AgentStream(pub(super) DuplexStream);

impl AgentIo for AgentStream {}

culvert_io::delegate_io!(AsyncRead, AsyncWrite for AgentStream { Self(io) => io });

/// Gives the test the other end of each stream to an agent.
#[derive(Debug)]
struct Agents(mpsc::Sender<DuplexStream>);

impl Dial for Agents {
    fn dial(&self, _: &AgentCall<'_>) -> Result<Box<dyn AgentIo>, AgentRefused> {
        let (near, far) = tokio::io::duplex(WAY_BYTES);
        self.0.try_send(far).expect("one stream");
        Ok(Box::new(AgentStream(near)))
    }

    fn dial_in_turn<'a>(
        &'a self,
        call: AgentCall<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn AgentIo>, AgentRefused>> {
        Box::pin(async move { self.dial(&call) })
    }

    fn is_online(&self, _: &str) -> bool {
        true
    }
}

/// A client and an agent, and the edge between them.
async fn between() -> (
    Rig,
    Client<tokio::net::TcpStream>,
    mpsc::Receiver<DuplexStream>,
) {
    let (send, streams) = mpsc::channel(1);
    let rig = Rig::with(Settings {
        agents: Some(std::sync::Arc::new(Agents(send))),
        ..settings()
    })
    .await;
    let endpoint = Endpoint {
        upstream: Some(Upstream::agent(
            "ep_1",
            Scheme::Http,
            Protocol::Http1,
            None,
            Clients::Apart,
        )),
        ..endpoint(Scheme::Http, "app.example", 80, "http://127.0.0.1:1", "")
    };
    let snapshot = Snapshot::builder().endpoint(endpoint).build();
    rig.edge.publish(snapshot).await;
    let client = rig.connect().await;
    (rig, client, streams)
}

/// Writes until nothing more is taken. How many bytes that were.
async fn fill(stream: &mut (impl AsyncWrite + Unpin)) -> u64 {
    let part = [b'x'; 8 << 10];
    let mut taken = 0;
    while let Ok(wrote) = tokio::time::timeout(STALLED_AFTER, stream.write(&part)).await {
        taken += wrote.expect("the other end is there") as u64;
    }
    taken
}

/// Bytes read from and written to the client.
fn bytes(rig: &Rig) -> (u64, u64) {
    let open = rig.edge.shared().census.open();
    open.first().expect("the connection").counters.bytes()
}

#[tokio::test]
async fn an_unread_response_stops_reads_from_the_upstream() {
    for framing in [
        "Content-Length: 1099511627776",
        "Transfer-Encoding: chunked",
    ] {
        let (rig, mut client, mut streams) = between().await;
        client
            .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
            .await;
        let mut agent = Client::new(soon("a stream", streams.recv()).await.unwrap());
        agent.request().await.unwrap();
        agent
            .send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n"))
            .await;
        if framing.ends_with("chunked") {
            agent.send("fffffffff\r\n").await;
        }
        let sent = fill(&mut agent.stream).await;
        let (_, written) = bytes(&rig);
        let kept = sent.saturating_sub(written);
        assert!(kept <= KEPT_MAX + WAY_BYTES as u64, "{framing}: {kept}");
    }
}

#[tokio::test]
async fn an_unread_request_stops_reads_from_the_client() {
    for (framing, begin) in [
        ("Content-Length: 1099511627776", ""),
        ("Transfer-Encoding: chunked", "fffffffff\r\n"),
    ] {
        let (rig, mut client, mut streams) = between().await;
        let head = format!("POST / HTTP/1.1\r\nHost: app.example\r\n{framing}\r\n\r\n{begin}");
        client.send(&head).await;
        let _agent = soon("a stream", streams.recv()).await.unwrap();
        fill(&mut client.stream).await;
        let (read, _) = bytes(&rig);
        let kept = read - head.len() as u64;
        assert!(kept <= KEPT_MAX + WAY_BYTES as u64, "{framing}: {kept}");
        // And yet it took what it could.
        assert!(kept > WAY_BYTES as u64, "{framing}: {kept}");
    }
}
