//! Batches that vanish from the stream are counted: all of them, once, and nothing else.

use std::sync::Mutex;

use async_nats::jetstream;
use async_nats::jetstream::stream::DiscardPolicy;
use tokio::task::JoinSet;

use super::*;

const STREAM: &str = "culvert_test";
const BATCHES: u64 = 10;
/// Batches that a limit leaves in the stream.
const LEFT: i64 = 4;
/// Events of a batch.
const EVENTS: u64 = 2;

/// A node whose losses are counted.
struct Node {
    log: Arc<dyn EventLog>,
    stream: Arc<JetStream>,
    lost: Arc<Mutex<u64>>,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

impl Node {
    async fn start(place: &Place, settings: JetStreamSettings) -> Self {
        let Place {
            queue,
            clock,
            meters,
            ..
        } = place;
        let stream = stream_over(settings, local_settings(), queue, clock, meters).await;
        let log: Arc<dyn EventLog> = stream.clone();
        let (lost, cancel) = (Arc::new(Mutex::new(0)), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let (kept, counted, stop) = (log.clone(), lost.clone(), cancel.clone());
        tasks.spawn(async move {
            let count = move |destination: &str, events| {
                assert_eq!(destination, "ed_1");
                *counted.lock().unwrap() += events;
            };
            kept.keep(stop, &count).await;
        });
        Self {
            log,
            stream,
            lost,
            cancel,
            tasks,
        }
    }

    fn lost(&self) -> u64 {
        *self.lost.lock().unwrap()
    }

    async fn append(&self, name: &str, count: u64) {
        for n in 0..count {
            let batch = traffic(&format!("{name}-{n}"));
            self.log.append(vec![batch]).await.unwrap();
        }
    }

    /// Delivers all batches that are due, until no batch waits.
    async fn deliver(&self, place: &Place) -> u64 {
        let mut events = 0;
        let began = std::time::Instant::now();
        while !self.log.backlog().await.unwrap().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "{events} came");
            if let Some(lease) = lease(&*self.log, place.clock.now()).await {
                self.log.ack(&lease).await.unwrap();
                events += u64::from(lease.count);
            }
        }
        events
    }

    /// Several looks of the node.
    async fn several_checks(&self) {
        tokio::time::sleep(2 * STREAM_LEASE).await;
    }

    /// Stops like a server that was asked to.
    async fn stop(mut self) {
        self.cancel.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.log.close().await;
    }
}

fn shared(place: &Place, is_shared: bool) -> JetStreamSettings {
    JetStreamSettings {
        is_shared,
        ..settings(&place.server.as_ref().unwrap().url())
    }
}

async fn administrator(place: &Place) -> jetstream::Context {
    let (user, password) = (NatsServer::USER, NatsServer::PASSWORD);
    let options = async_nats::ConnectOptions::with_user_and_password(user.into(), password.into());
    let port = place.server.as_ref().unwrap().port;
    let client = options.connect(format!("127.0.0.1:{port}")).await.unwrap();
    jetstream::new(client)
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Deleted,
    Purged,
    Limited,
    LostDisks,
}

impl Fault {
    /// Lets it happen. Returns the number of batches that vanish.
    async fn happen(self, place: &mut Place) -> u64 {
        match self {
            Self::Deleted => {
                let context = administrator(place).await;
                context.delete_stream(STREAM).await.unwrap();
                BATCHES
            }
            Self::Purged => {
                let context = administrator(place).await;
                let stream = context.get_stream(STREAM).await.unwrap();
                stream.purge().await.unwrap();
                BATCHES
            }
            Self::Limited => {
                let context = administrator(place).await;
                let stream = context.get_stream(STREAM).await.unwrap();
                let config = jetstream::stream::Config {
                    discard: DiscardPolicy::Old,
                    max_messages: LEFT,
                    ..stream.cached_info().config.clone()
                };
                context.update_stream(config).await.unwrap();
                BATCHES - LEFT.unsigned_abs()
            }
            Self::LostDisks => {
                let server = place.server.as_mut().unwrap();
                server.kill();
                server.wipe();
                server.restart().await;
                BATCHES
            }
        }
    }
}

/// Waits until the nodes have counted this many events together.
async fn counted(nodes: &[&Node], wanted: u64) {
    let began = std::time::Instant::now();
    loop {
        let lost: u64 = nodes.iter().map(|node| node.lost()).sum();
        if lost == wanted {
            return;
        }
        assert!(lost < wanted, "{lost} of {wanted}");
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{lost} of {wanted}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Batches wait for a destination that does not respond when the fault happens. Those that vanish are counted, and
/// those after it are delivered.
async fn a_fault_is_counted(fault: Fault) {
    let Some(mut place) = Place::stream().await else {
        return;
    };
    let node = Node::start(&place, shared(&place, false)).await;
    node.append("before", BATCHES).await;
    node.log.backlog().await.unwrap();
    let held = lease(&*node.log, place.clock.now()).await.unwrap();
    let due = place.clock.now();
    node.log.retry(&held, due, "503").await.unwrap();
    let vanished = fault.happen(&mut place).await;
    if let Fault::LostDisks = fault {
        // Without a connection, batches go to the database.
        let began = std::time::Instant::now();
        while node.log.usable().await.is_err() {
            assert!(began.elapsed() < Duration::from_secs(60));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // They may get the numbers of those that vanished, before that was noticed.
    node.append("after", BATCHES).await;
    let after = match fault {
        // The limit goes on.
        Fault::Limited => {
            counted(&[&node], (vanished + BATCHES) * EVENTS).await;
            LEFT.unsigned_abs()
        }
        _ => {
            counted(&[&node], vanished * EVENTS).await;
            BATCHES
        }
    };
    place.clock.advance(LOOK);
    assert_eq!(node.deliver(&place).await, after * EVENTS, "{fault:?}");
    let before = node.lost();
    node.several_checks().await;
    assert_eq!(node.lost(), before, "{fault:?}");
    assert_eq!(place.meters.log_fallbacks.get(), 0, "all are in the stream");
    node.stop().await;
}

#[tokio::test]
async fn a_deleted_stream_is_counted_and_created_again() {
    a_fault_is_counted(Fault::Deleted).await;
}

#[tokio::test]
async fn a_purged_stream_is_counted() {
    a_fault_is_counted(Fault::Purged).await;
}

#[tokio::test]
async fn what_a_limit_discards_is_counted() {
    a_fault_is_counted(Fault::Limited).await;
}

#[tokio::test]
async fn a_stream_that_lost_its_disks_is_counted_and_created_again() {
    a_fault_is_counted(Fault::LostDisks).await;
}

/// Two nodes store batches, and one of them holds the head when they vanish.
#[tokio::test]
async fn each_node_counts_what_it_stored() {
    for fault in [Fault::Deleted, Fault::Limited, Fault::LostDisks] {
        let Some(mut place) = Place::stream().await else {
            return;
        };
        let one = Node::start(&place, shared(&place, true)).await;
        let two = Node::start(&place, shared(&place, true)).await;
        one.append("one", BATCHES / 2).await;
        two.append("two", BATCHES / 2).await;
        two.log.backlog().await.unwrap();
        let held = lease_elsewhere(&*two.log, place.clock.now()).await.unwrap();
        let due = place.clock.now().plus(Duration::from_secs(3600));
        two.log.retry(&held, due, "503").await.unwrap();
        let vanished = fault.happen(&mut place).await;
        counted(&[&one, &two], vanished * EVENTS).await;
        assert!(one.lost() > 0 && two.lost() > 0, "{fault:?}");
        place.clock.advance(Duration::from_secs(3600));
        let left = BATCHES - vanished;
        assert_eq!(one.deliver(&place).await, left * EVENTS, "{fault:?}");
        one.several_checks().await;
        assert_eq!(one.lost() + two.lost(), vanished * EVENTS, "{fault:?}");
        one.stop().await;
        two.stop().await;
    }
}

/// New messages get the numbers of those that are gone, which the consumer counts as settled.
#[tokio::test]
async fn batches_after_a_stream_that_lost_its_end_are_delivered() {
    let Some(mut place) = Place::stream().await else {
        return;
    };
    let node = Node::start(&place, shared(&place, true)).await;
    node.append("before", BATCHES).await;
    assert_eq!(node.deliver(&place).await, BATCHES * EVENTS);
    let server = place.server.as_mut().unwrap();
    server.kill();
    server.wipe_messages(STREAM);
    server.restart().await;
    let began = std::time::Instant::now();
    while node.log.usable().await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    node.append("after", BATCHES / 2).await;
    assert_eq!(node.deliver(&place).await, BATCHES / 2 * EVENTS);
    assert_eq!(node.lost(), 0);
    node.append("later", BATCHES).await;
    assert_eq!(node.deliver(&place).await, BATCHES * EVENTS);
    node.stop().await;
}

#[tokio::test]
async fn batches_that_another_node_delivers_are_not_lost() {
    let Some(place) = Place::stream().await else {
        return;
    };
    let one = Node::start(&place, shared(&place, true)).await;
    let two = Node::start(&place, shared(&place, true)).await;
    one.append("one", BATCHES).await;
    assert_eq!(two.deliver(&place).await, BATCHES * EVENTS);
    // They are away before the stream is deleted.
    let began = std::time::Instant::now();
    while one.stream.n_away() < usize::try_from(BATCHES).unwrap() {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let context = administrator(&place).await;
    context.delete_stream(STREAM).await.unwrap();
    one.append("after", 1).await;
    one.several_checks().await;
    // Servers of version 2.9 may lose a message that is stored right behind the deletion. That is a loss, and counted as one.
    let stream = context.get_stream(STREAM).await.unwrap();
    let lost = match stream.get_raw_message(1).await {
        Ok(_) => 0,
        Err(_) => EVENTS,
    };
    assert_eq!((one.lost(), two.lost()), (lost, 0));
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_loss_while_the_node_is_stopped_is_counted_at_its_next_start() {
    let Some(place) = Place::stream().await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let of_node = || JetStreamSettings {
        stored: Some(folder.path().join("stored")),
        ..shared(&place, false)
    };
    let node = Node::start(&place, of_node()).await;
    node.append("before", BATCHES).await;
    node.several_checks().await;
    node.stop().await;
    let context = administrator(&place).await;
    context.delete_stream(STREAM).await.unwrap();
    let node = Node::start(&place, of_node()).await;
    counted(&[&node], BATCHES * EVENTS).await;
    node.append("after", BATCHES).await;
    assert_eq!(node.deliver(&place).await, BATCHES * EVENTS);
    node.stop().await;
}
