//! Connections to the listener of agents that never say who they are, and agents that come meanwhile.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::agent_clients::{Kind, Order, all_gone, start};
use crate::agents::Service;
use crate::harness::{Backend, Harness, eventually};

const HOST: &str = "strangers.culvert.localhost";
/// The settings' default for all sources, and for each.
const PLACES: usize = 256;
const PLACES_PER_SOURCE: usize = 16;

/// A way to the server on which everything takes its time, as from another continent.
async fn slow_road(target: SocketAddr, tasks: &mut JoinSet<()>) -> SocketAddr {
    const DELAY: Duration = Duration::from_millis(80);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut travelled = JoinSet::new();
        while let Ok((near, _)) = listener.accept().await {
            travelled.spawn(async move {
                let Ok(far) = TcpStream::connect(target).await else {
                    return;
                };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                let there = slowly(near_in, far_out, DELAY);
                let back = slowly(far_in, near_out, DELAY);
                tokio::select! {
                    () = there => {}
                    () = back => {}
                }
            });
        }
    });
    address
}

async fn slowly(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    delay: Duration,
) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        tokio::time::sleep(delay).await;
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

fn connector(folder: &Path) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// A connection from one of many addresses of this machine.
async fn from(source: usize, to: SocketAddr) -> std::io::Result<TcpStream> {
    let last = u8::try_from(10 + source).unwrap();
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into())?;
    socket.connect(to).await
}

/// Begins to say who it is, and never ends, until it is closed.
async fn half_open(
    source: usize,
    to: SocketAddr,
    tls: TlsConnector,
    standing: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    // The first frame of a stream: five bytes, of which four say that an Auth follows.
    const BEGINNING: [u8; 13] = [0, 0, 5, 0x12, 0, 0, 0, 3, 0, 0, 0, 0, b'{'];
    let socket = from(source, to).await?;
    let name = "localhost".try_into().unwrap();
    let mut socket = tls.connect(name, socket).await?;
    socket.write_all(&BEGINNING).await?;
    standing.fetch_add(1, Ordering::Relaxed);
    let mut rest = Vec::new();
    while socket.read_buf(&mut rest).await.unwrap_or(0) > 0 {}
    standing.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// Starts an agent over and over, each of which has to come in at its first try.
async fn agents_come(culvert: &Harness, at: SocketAddr, upstream: SocketAddr, times: usize) {
    for kind in [Kind::Crate, Kind::Python, Kind::Own] {
        if !kind.is_here() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let (_, token) = kind.credential(culvert, folder.path(), json!([])).await;
        for nth in 0..times {
            let began = Instant::now();
            let order = Order {
                proto: "http",
                name: HOST,
                upstream,
                at,
                token: &token,
                folder: folder.path(),
                files: None,
            };
            let started = start(kind, culvert, order).await;
            let agent = started.unwrap_or_else(|code| panic!("{kind:?}, time {nth}: {code}"));
            println!("{kind:?} serves after {:?}", began.elapsed());
            assert_eq!(culvert.get(HOST, "/").await.status, 200);
            agent.close().await;
            all_gone(culvert).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_agent_handshakes_block_no_other_agent() {
    const SOURCES: usize = PLACES / PLACES_PER_SOURCE;
    let culvert = Harness::start(&Backend::Sqlite).await;
    let service = Service::named("one").await;
    let mut tasks = JoinSet::new();
    let proxy = slow_road(culvert.agents, &mut tasks).await;
    let standing = Arc::new(AtomicUsize::new(0));
    let (tls, to) = (connector(&culvert.settings.data_dir), culvert.agents);
    let counted = Arc::clone(&standing);
    tasks.spawn(async move {
        let mut attackers = JoinSet::new();
        for nth in 0.. {
            let source = nth % SOURCES;
            attackers.spawn(half_open(source, to, tls.clone(), Arc::clone(&counted)));
            while attackers.try_join_next().is_some() {}
            if nth > PLACES {
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
        }
    });
    eventually("most places are taken", async || {
        standing.load(Ordering::Relaxed) > PLACES * 3 / 4
    })
    .await;
    Box::pin(agents_come(&culvert, proxy, service.address, 3)).await;
    assert!(standing.load(Ordering::Relaxed) > PLACES / 2);
    tasks.shutdown().await;
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_delay_no_agent() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let service = Service::named("one").await;
    let mut tasks = JoinSet::new();
    let proxy = slow_road(culvert.agents, &mut tasks).await;
    let mut silent = Vec::new();
    for nth in 0..300 {
        // Some have the address of the agents.
        let came = match nth % 15 {
            0 => TcpStream::connect(culvert.agents).await,
            source => from(source, culvert.agents).await,
        };
        silent.push(came.unwrap());
    }
    // Each of them had its moment.
    eventually("a newcomer of the same address stays", async || {
        let mut newcomer = TcpStream::connect(culvert.agents).await.unwrap();
        newcomer.write_all(&[22]).await.unwrap();
        let closed = tokio::time::timeout(Duration::from_millis(100), newcomer.read_u8());
        closed.await.is_err()
    })
    .await;
    Box::pin(agents_come(&culvert, proxy, service.address, 1)).await;
    drop(silent);
    tasks.shutdown().await;
    culvert.stop().await;
}
