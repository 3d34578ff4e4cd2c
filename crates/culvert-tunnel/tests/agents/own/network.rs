//! Changes of the machine's network.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_tunnel::client::{Event, Protocol};
use culvert_tunnel::driver;
use culvert_tunnel::server::DialError;
use nix::sched::{CloneFlags, unshare};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::super::{Running, echo_server, expect_echo, soon, start};
use super::{endpoint, run};

/// A link to the server. Connections that exist when it is cut carry nothing more, and neither end learns of it.
async fn link(running: &mut Running) -> watch::Sender<u64> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = std::mem::replace(&mut running.address, listener.local_addr().unwrap());
    let cuts = watch::Sender::new(0);
    let cut = cuts.subscribe();
    running.tasks.spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut cut = cut.clone();
            cut.mark_unchanged();
            connections.spawn(async move {
                let mut far = TcpStream::connect(server).await.unwrap();
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => {}
                    _ = cut.changed() => std::future::pending().await,
                }
            });
        }
    });
    cuts
}

/// Measures how much later than due the tasks of this process run, because the machine has other work.
fn scheduling_delay(running: &mut Running) -> watch::Receiver<Duration> {
    const EACH: Duration = Duration::from_millis(10);
    // The timer itself may be that late.
    const TIMER: Duration = Duration::from_millis(2);
    let sum = watch::Sender::new(Duration::ZERO);
    let delay = sum.subscribe();
    running.tasks.spawn(async move {
        loop {
            let began = Instant::now();
            tokio::time::sleep(EACH).await;
            let late = began.elapsed().saturating_sub(EACH + TIMER);
            sum.send_modify(|sum| *sum += late);
        }
    });
    delay
}

async fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split(' ')).output().await;
    output.is_ok_and(|output| output.status.success())
}

/// Needs the right to make a network.
#[test]
fn after_a_change_of_the_network_a_dead_connection_is_replaced_at_once() {
    // Agents of other tests would notice changes of the machine's network. The threads of the runtime are in the
    // network of the thread that starts them.
    let test = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let runtime = Runtime::new().unwrap();
        runtime.block_on(a_dead_connection_is_replaced_after_a_change());
        Ok(())
    });
    let done: nix::Result<()> = test.join().unwrap_or_else(|panic| resume_unwind(panic));
    if let Err(error) = done {
        culvert_testing::ignore(format_args!("no right to make a network: {error}"));
    }
}

async fn a_dead_connection_is_replaced_after_a_change() {
    assert!(ip("link set lo up").await);
    assert!(ip("address replace 127.77.0.1/32 dev lo").await);
    let mut running = start().await;
    let cuts = link(&mut running).await;
    let upstream = echo_server(&mut running.tasks).await.to_string();
    let endpoints = vec![endpoint(Protocol::Tcp, &upstream, &[])];
    let mut own = run(&running, "right", endpoints);
    let id = own.online().await.endpoints[0].id.clone();
    expect_echo(running.dial(&id).await, 1_000).await;

    // The connection survives a change that it has nothing to do with.
    let beats = own.status.borrow().latency;
    assert!(ip("address replace 127.77.0.2/32 dev lo").await);
    soon(own.status.wait_for(|status| status.latency != beats))
        .await
        .unwrap();
    expect_echo(running.dial(&id).await, 1_000).await;

    cuts.send_modify(|count| *count += 1);
    let delay = scheduling_delay(&mut running);
    let began = Instant::now();
    assert!(ip("address delete 127.77.0.2/32 dev lo").await);
    own.heard(|event| matches!(event, Event::Online { again: true, .. }))
        .await;
    // Without the change, the agent would notice after up to 25 seconds.
    let (took, delay) = (began.elapsed(), *delay.borrow());
    let limit = Duration::from_secs(3) + delay;
    assert!(took < limit, "{took:?}, of which {delay:?} of other work");
    expect_echo(running.dial(&id).await, 1_000).await;
    let waits = own.events.borrow().clone();
    let waits = waits
        .iter()
        .filter(|it| matches!(it, Event::Waiting { .. }));
    assert_eq!(waits.count(), 1);
    let bindings = Arc::clone(&running.bindings);
    assert_eq!(bindings.connections(), 1, "it replaced the dead one");
    own.stop.cancel();
    assert_eq!(own.ended().await, Ok(()));
}

/// A dead connection is found without the agent's heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_on_a_dead_connection_end_soon_and_the_connection_stays() {
    let mut running = start().await;
    let cuts = link(&mut running).await;
    let upstream = echo_server(&mut running.tasks).await.to_string();
    let endpoints = vec![endpoint(Protocol::Tcp, &upstream, &[])];
    let mut own = run(&running, "right", endpoints);
    let id = own.online().await.endpoints[0].id.clone();
    let mut open = running.dial(&id).await;
    open.write_all(b"x").await.unwrap();
    soon(open.read_u8()).await.unwrap();
    // A service that takes its time is no dead connection.
    let mut slow = running.dial(&id).await;
    let waits = tokio::time::timeout(Duration::from_secs(6), slow.read_u8());
    assert!(waits.await.is_err(), "the agent responds");

    cuts.send_modify(|count| *count += 1);
    let began = Instant::now();
    let mut waiting = running.dial(&id).await;
    let error = soon(waiting.read_u8()).await.unwrap_err();
    assert!(driver::is_silent(&error), "{error}");
    assert!(began.elapsed() < Duration::from_secs(12));
    let refused = running.dial_at_once(&id).unwrap_err();
    assert_eq!(refused, DialError::Silent);
    assert_eq!(running.bindings.count(&id), 1);
    assert!(running.seen.borrow().ends.is_empty());
}
