//! Clients that stop reading fast bytes keep no pipe, and their bytes count as memory of the edge.
#![cfg(target_os = "linux")]

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use culvert_io::splice::used_by;
use culvert_overload::{Decision, Level, Shares};
use culvert_policy::Scheme;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::harness::*;
use super::limits::free_port;
use super::relays::{LONG, bytes};
use crate::Snapshot;

/// An address of a client. Pipes are counted by source, and other tests have others.
fn source(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 77, last])
}

/// An edge with a TCP and an HTTP endpoint whose origin sends [`LONG`] bytes to each connection or request.
async fn rig(tasks: &mut JoinSet<()>) -> (Rig, SocketAddr) {
    let origin = origin(tasks, |mut client| async move {
        let mut first = [0; 1];
        if client.stream.peek(&mut first).await.is_err() {
            return;
        }
        if first == *b"G" {
            while client.request().await.is_some() {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LONG}\r\n\r\n");
                client.send(head).await;
                client.send(bytes(1, LONG)).await;
            }
        } else {
            // The client may close before the end.
            drop(client.stream.write_all(&bytes(1, LONG)).await);
            drop(client.stream.read(&mut [0; 2]).await);
        }
    })
    .await;
    let rig = Rig::start().await;
    let port = free_port().await;
    let tcp = endpoint(Scheme::Tcp, "x", port, &format!("tcp://{origin}"), "");
    let http = endpoint(
        Scheme::Http,
        "app.example",
        80,
        &format!("http://{origin}"),
        "",
    );
    let snapshot = Snapshot::builder().endpoint(tcp).endpoint(http).build();
    rig.edge.publish(snapshot).await;
    (rig, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// A connection from an address.
async fn connect(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Reads some bytes of each client, as fast as they arrive. Returns what each has read.
async fn read_some(clients: &mut [TcpStream]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for client in clients {
        let mut read = vec![0; 256 << 10];
        soon("bytes", client.read_exact(&mut read)).await.unwrap();
        all.push(read);
    }
    all
}

async fn until_given_back(from: IpAddr) {
    eventually("all pipes are given back", || used_by(from) == 0).await;
}

/// Bytes that count as memory of connections.
fn held(rig: &Rig) -> usize {
    let open = rig.edge.shared().census.open();
    let held = open
        .iter()
        .map(|conn| conn.counters.held_bytes.load(Ordering::Relaxed));
    held.sum()
}

/// Reads until bytes of a pipe are in memory, because the clients have stopped. Returns what each has read. If the edge copies
/// bytes when they stop, they try again.
async fn read_until_stalled(rig: &Rig, clients: &mut [TcpStream], from: IpAddr) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = clients.iter().map(|_| Vec::new()).collect();
    loop {
        let read = read_some(clients).await;
        for (all, mut read) in all.iter_mut().zip(read) {
            all.append(&mut read);
        }
        let held = eventually("bytes are held", || held(rig) > 0);
        if tokio::time::timeout(Duration::from_secs(3), held)
            .await
            .is_ok()
        {
            until_given_back(from).await;
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_to_clients_that_stop_reading_give_their_pipes_back() {
    let mut tasks = JoinSet::new();
    let (rig, at) = rig(&mut tasks).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = connect(source(1), at).await;
        client.write_all(b"!").await.unwrap();
        clients.push(client);
    }
    let read = read_until_stalled(&rig, &mut clients, source(1)).await;
    assert!(held(&rig) <= clients.len() * (256 << 10), "{}", held(&rig));
    // They go on, and get every byte.
    for (mut client, mut all) in clients.into_iter().zip(read) {
        let mut rest = vec![0; LONG - all.len()];
        soon("the rest", client.read_exact(&mut rest))
            .await
            .unwrap();
        all.append(&mut rest);
        assert!(all == bytes(1, LONG));
    }
    eventually("no memory is held", || held(&rig) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_to_clients_that_stop_reading_give_their_pipes_back() {
    let mut tasks = JoinSet::new();
    let (rig, _) = rig(&mut tasks).await;
    let at = rig.edge.http_addr().unwrap();
    let mut client = connect(source(2), at).await;
    for _ in 0..2 {
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
            .await
            .unwrap();
        let clients = std::slice::from_mut(&mut client);
        let read = read_some(clients).await;
        until_given_back(source(2)).await;
        assert!(held(&rig) <= 256 << 10, "{}", held(&rig));
        let mut all = read.into_iter().next().unwrap();
        let head = find(&all, b"\r\n\r\n").unwrap() + 4;
        let mut rest = vec![0; head + LONG - all.len()];
        soon("the rest", client.read_exact(&mut rest))
            .await
            .unwrap();
        all.append(&mut rest);
        assert!(all[head..] == bytes(1, LONG));
        eventually("no memory is held", || held(&rig) == 0).await;
    }
    let events = rig.recorder.events(2).await;
    for event in of(&events, HTTP) {
        assert_eq!(event["object"]["http"]["response"]["body_length"], LONG);
    }
    eventually("no memory is held", || held(&rig) == 0).await;
}

/// The busiest honest client: many transfers at full speed, while others hoard.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_client_runs_on_while_others_stall() {
    let mut tasks = JoinSet::new();
    let (_rig, at) = rig(&mut tasks).await;
    let mut stalled = Vec::new();
    for _ in 0..4 {
        let mut client = connect(source(3), at).await;
        client.write_all(b"!").await.unwrap();
        stalled.push(client);
    }
    read_some(&mut stalled).await;
    let mut transfers = JoinSet::new();
    for _ in 0..4 {
        transfers.spawn(async move {
            let mut client = connect(source(4), at).await;
            client.write_all(b"!").await.unwrap();
            let mut all = vec![0; LONG];
            soon("all bytes", client.read_exact(&mut all))
                .await
                .unwrap();
            assert!(all == bytes(1, LONG));
        });
    }
    while let Some(ended) = transfers.join_next().await {
        ended.unwrap();
    }
    until_given_back(source(3)).await;
    until_given_back(source(4)).await;
}

/// When memory is short, the relay that holds most of it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_relay_ends_when_memory_is_short() {
    let mut tasks = JoinSet::new();
    let (rig, at) = rig(&mut tasks).await;
    let mut clients = vec![connect(source(5), at).await];
    clients[0].write_all(b"!").await.unwrap();
    read_until_stalled(&rig, &mut clients, source(5)).await;
    let decision = Decision {
        level: Level::Calm,
        drops_events: false,
        ends_one: true,
    };
    rig.edge.shared().press(decision, Shares::default());
    let mut all = Vec::new();
    // What was in the kernel, and then the end.
    drop(soon("the end", clients[0].read_to_end(&mut all)).await);
    assert!(all.len() < LONG);
    assert_eq!(rig.edge.meters().shed_exchanges.get(), 1);
}
