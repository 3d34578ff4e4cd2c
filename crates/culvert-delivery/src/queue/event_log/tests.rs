//! One suite that runs against both logs: the stream must behave like the queue in the database.
//!
//! The stream needs `nats-server`. Without it, the tests of the stream are reported as ignored.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Clock, ManualClock, OsEntropy, Timestamp};
use culvert_store::{
    BatchClass, DeadLetterReason, Gathering, Lease, NewBatch, Queue, QueueError, Run, StoreUrl,
};
use culvert_target::batch::{Batch, BatchLimits, OpenBatch};
use culvert_target::{NatsServers, Net, TargetSettings};
use culvert_testing::nats::NatsServer;
use tokio_util::sync::CancellationToken;

use super::{EventLog, JetStream, JetStreamSettings, Settlement};
use crate::plane::meters::Meters;
use crate::tests::bench::local_settings;

mod unreachable;
mod vanished;

/// Runs each test on both logs. The argument is the acknowledgement deadline of the stream.
macro_rules! on_both_logs {
    ($lease:ident: $($name:ident),* $(,)?) => {$(
        mod $name {
            use super::Place;

            #[tokio::test]
            async fn queue() {
                super::$name(&Place::queue().await).await;
            }

            #[tokio::test]
            async fn stream() {
                if let Some(place) = Place::stream_for(super::$lease).await {
                    super::$name(&place).await;
                }
            }
        }
    )*};
}

on_both_logs!(LEASE:
    batches_are_leased_in_order_and_once,
    a_failed_batch_blocks_later_ones_until_its_retry,
    waiting_batches_can_be_made_due,
    a_leased_batch_is_unchanged,
    a_failed_lease_is_sent_again,
    a_split_batch_is_replaced_by_its_parts,
    dead_letters_are_in_the_database,
    the_backlog_is_counted_and_deleted_by_destination,
    a_run_of_batches_is_leased_by_size_or_age,
    a_run_of_batches_is_settled_in_parts,
    several_leased_batches_block_later_ones_until_settled,
    audit_events_in_the_database_are_leased_first,
);

// Only this test waits for the end of a lease. A short deadline would also pass early on a busy
// machine.
on_both_logs!(STREAM_LEASE: an_expired_lease_passes_to_another_node);

const LEASE: Duration = Duration::from_secs(60);
/// Acknowledgement deadline for tests that let leases end.
const STREAM_LEASE: Duration = Duration::from_secs(2);
/// Longer than the interval at which a batch that another node sends is checked.
const LOOK: Duration = Duration::from_secs(2);

/// A log, with its database and server.
pub(super) struct Place {
    pub(super) clock: Arc<ManualClock>,
    pub(super) queue: Queue,
    pub(super) log: Arc<dyn EventLog>,
    pub(super) meters: Arc<Meters>,
    pub(super) server: Option<NatsServer>,
    lease: Duration,
    _folder: tempfile::TempDir,
}

impl Place {
    async fn queue() -> Self {
        let (folder, clock, queue) = database().await;
        Self {
            log: Arc::new(queue.clone()),
            clock,
            queue,
            meters: Arc::default(),
            server: None,
            lease: LEASE,
            _folder: folder,
        }
    }

    pub(super) async fn stream() -> Option<Self> {
        Self::stream_for(STREAM_LEASE).await
    }

    /// A stream whose messages pass to other nodes `lease` after their node died.
    async fn stream_for(lease: Duration) -> Option<Self> {
        let server = NatsServer::start(&[]).await?;
        let (folder, clock, queue) = database().await;
        let meters = Arc::<Meters>::default();
        let settings = JetStreamSettings {
            lease,
            ..settings(&server.url())
        };
        let log = stream_with(settings, &queue, &clock, &meters).await;
        Some(Self {
            log,
            clock,
            queue,
            meters,
            server: Some(server),
            lease,
            _folder: folder,
        })
    }

    /// The log as another node opens it.
    pub(super) async fn beside(&self) -> Arc<dyn EventLog> {
        match &self.server {
            None => Arc::new(self.queue.clone()),
            Some(server) => {
                let settings = JetStreamSettings {
                    lease: self.lease,
                    ..settings(&server.url())
                };
                stream_with(settings, &self.queue, &self.clock, &self.meters).await
            }
        }
    }

    pub(super) async fn append(&self, batches: Vec<NewBatch>) {
        self.log.append(batches).await.unwrap();
    }

    pub(super) async fn lease(&self) -> Option<Lease> {
        lease(&*self.log, self.clock.now()).await
    }

    /// Leases and acknowledges all batches that are due, one by one; this many are expected.
    pub(super) async fn drain(&self, expected: usize) -> Vec<String> {
        let mut drained = Vec::new();
        // A busy stream may hand out a batch only at a later look.
        for _ in 0..100 {
            while let Some(lease) = self.lease().await {
                drained.push(text(&lease));
                self.log.ack(&lease).await.unwrap();
            }
            if drained.len() >= expected {
                break;
            }
        }
        drained
    }
}

async fn database() -> (tempfile::TempDir, Arc<ManualClock>, Queue) {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000)));
    let url = StoreUrl::Sqlite(folder.path().join("state.db"));
    let queue = Queue::open(&url, clock.clone()).await.unwrap();
    (folder, clock, queue)
}

pub(super) async fn stream(
    url: &str,
    queue: &Queue,
    clock: &Arc<ManualClock>,
    meters: &Arc<Meters>,
) -> Arc<dyn EventLog> {
    stream_with(settings(url), queue, clock, meters).await
}

pub(super) fn settings(url: &str) -> JetStreamSettings {
    JetStreamSettings {
        servers: NatsServers::parse(url).unwrap(),
        stream: "culvert_test".to_owned(),
        replicas: 1,
        lease: STREAM_LEASE,
        held: None,
        stored: None,
        is_shared: false,
    }
}

pub(super) async fn stream_with(
    settings: JetStreamSettings,
    queue: &Queue,
    clock: &Arc<ManualClock>,
    meters: &Arc<Meters>,
) -> Arc<dyn EventLog> {
    stream_over(settings, local_settings(), queue, clock, meters).await as _
}

async fn stream_over(
    settings: JetStreamSettings,
    trust: TargetSettings,
    queue: &Queue,
    clock: &Arc<ManualClock>,
    meters: &Arc<Meters>,
) -> Arc<JetStream> {
    let log = JetStream::new(&settings, queue.clone(), clock.clone(), meters.clone());
    let net = Net::new(trust.net(), clock.clone(), Arc::new(OsEntropy));
    log.start(&net).await;
    Arc::new(log)
}

async fn lease(log: &dyn EventLog, now: Timestamp) -> Option<Lease> {
    log.lease("ed_1", "node-1", LEASE, now).await.unwrap()
}

/// Leases the next batch as another node.
async fn lease_elsewhere(log: &dyn EventLog, now: Timestamp) -> Option<Lease> {
    log.lease("ed_1", "node-2", LEASE, now).await.unwrap()
}

/// A batch of two events, the first of which has this name.
pub(super) fn traffic(name: &str) -> NewBatch {
    batch("ed_1", BatchClass::Traffic, name, 0)
}

pub(super) fn batch(destination: &str, class: BatchClass, name: &str, filling: usize) -> NewBatch {
    let mut open = OpenBatch::default();
    for id in [name, "other"] {
        let filling = noise(filling);
        let envelope = format!(r#"{{"event_id":"{id}","object":"{filling}"}}"#);
        open.push(&"esb_1".into(), envelope.as_bytes());
    }
    NewBatch {
        destination: destination.to_owned(),
        class,
        count: open.len(),
        body: open.finish(),
    }
}

/// Text that compression does not shorten.
pub(super) fn noise(length: usize) -> String {
    let next = |state: &u64| {
        Some(
            state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        )
    };
    let states = std::iter::successors(Some(1), next);
    let digits = states.map(|state: u64| char::from(b'a' + (state >> 60) as u8));
    digits.take(length).collect()
}

fn name(body: Vec<u8>) -> String {
    let batch = Batch::read("ed_1".into(), BatchClass::Traffic, body).unwrap();
    let first = batch.deliveries().next().unwrap();
    first.event_id.to_owned()
}

pub(super) fn text(lease: &Lease) -> String {
    name(lease.body.clone())
}

fn is_lost(outcome: Result<(), QueueError>) -> bool {
    matches!(outcome, Err(QueueError::Lost))
}

fn why() -> DeadLetterReason {
    DeadLetterReason {
        class: "permanent".to_owned(),
        code: "413".to_owned(),
        text: "too big".to_owned(),
    }
}

async fn batches_are_leased_in_order_and_once(place: &Place) {
    assert_eq!(place.lease().await, None);
    assert_eq!(place.log.next_due("ed_1").await.unwrap(), None);
    let elsewhere = batch("ed_2", BatchClass::Traffic, "x", 0);
    place
        .append(vec![traffic("a"), elsewhere, traffic("b")])
        .await;
    place.append(vec![traffic("c")]).await;
    let first = place.lease().await.unwrap();
    assert_eq!(text(&first), "a");
    assert_eq!((first.attempt, first.count), (1, 2));
    assert_eq!(
        (first.first_at, first.class),
        (place.clock.now(), BatchClass::Traffic)
    );
    // It delays those behind it, on this node and on others.
    assert_eq!(place.lease().await, None);
    let other = place.beside().await;
    other.backlog().await.unwrap();
    assert_eq!(lease_elsewhere(&*other, place.clock.now()).await, None);
    place.log.ack(&first).await.unwrap();
    assert!(is_lost(place.log.ack(&first).await), "a lease is spent");
    assert_eq!(place.drain(2).await, ["b", "c"]);
    let left = place.log.backlog().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].destination, "ed_2");
}

async fn a_failed_batch_blocks_later_ones_until_its_retry(place: &Place) {
    place.append(vec![traffic("a"), traffic("b")]).await;
    let first = place.lease().await.unwrap();
    let due = place.clock.now().plus(Duration::from_secs(10));
    place.log.retry(&first, due, "503").await.unwrap();
    assert!(is_lost(place.log.retry(&first, due, "again").await));
    assert_eq!(place.lease().await, None);
    assert_eq!(place.log.next_due("ed_1").await.unwrap(), Some(due));
    place.clock.advance(Duration::from_secs(10));
    let again = place.lease().await.unwrap();
    assert_eq!((text(&again).as_str(), again.attempt), ("a", 2));
    assert_eq!(again.first_at, first.first_at);
    assert!(is_lost(place.log.ack(&first).await));
    place.log.ack(&again).await.unwrap();
    assert_eq!(place.drain(1).await, ["b"]);
}

async fn waiting_batches_can_be_made_due(place: &Place) {
    place.append(vec![traffic("a")]).await;
    let now = place.clock.now();
    let first = place.lease().await.unwrap();
    let later = now.plus(Duration::from_secs(600));
    place.log.retry(&first, later, "401").await.unwrap();
    assert_eq!(place.lease().await, None);
    place.log.hasten("ed_1", now).await.unwrap();
    let again = place.lease().await.unwrap();
    let pieces = vec![traffic("p"), traffic("q")];
    place.log.replace(&again, pieces, later).await.unwrap();
    assert_eq!(place.lease().await, None);
    place.log.hasten("ed_1", now).await.unwrap();
    assert_eq!(place.drain(2).await, ["p", "q"]);
}

async fn a_leased_batch_is_unchanged(place: &Place) {
    let sending = place
        .log
        .append_leased(traffic("first"), "node-1", LEASE)
        .await
        .unwrap();
    assert_eq!((sending.attempt, sending.count), (1, 2));
    place.append(vec![traffic("second")]).await;
    let other = place.beside().await;
    other.backlog().await.unwrap();
    let now = place.clock.now();
    assert_eq!(place.lease().await, None);
    assert_eq!(lease_elsewhere(&*other, now).await, None);
    place.log.ack(&sending).await.unwrap();
    assert!(is_lost(place.log.ack(&sending).await));
    // Both nodes notice that it was removed.
    let mut second = None;
    for _ in 0..100 {
        place.clock.advance(LOOK);
        other.backlog().await.unwrap();
        place.log.backlog().await.unwrap();
        second = second.or(place.lease().await);
        second = second.or(lease_elsewhere(&*other, place.clock.now()).await);
        if second.is_some() {
            break;
        }
    }
    assert_eq!(text(&second.unwrap()), "second");
}

async fn a_failed_lease_is_sent_again(place: &Place) {
    let batch = traffic("first");
    let sending = place.log.append_leased(batch.clone(), "node-1", LEASE);
    let sending = sending.await.unwrap();
    let due = place.clock.now().plus(Duration::from_secs(5));
    place.log.retry(&sending, due, "503").await.unwrap();
    assert_eq!(place.lease().await, None);
    place.clock.advance(Duration::from_secs(5));
    let again = place.lease().await.unwrap();
    assert_eq!((text(&again).as_str(), again.attempt), ("first", 2));
    assert_eq!(again.first_at, sending.first_at);
    place.log.ack(&again).await.unwrap();
    assert_eq!(place.log.backlog().await.unwrap(), []);

    // It is split like any other batch.
    let sending = place
        .log
        .append_leased(traffic("next"), "node-1", LEASE)
        .await
        .unwrap();
    let now = place.clock.now();
    place
        .log
        .replace(&sending, vec![traffic("half")], now)
        .await
        .unwrap();
    assert_eq!(place.drain(1).await, ["half"]);
}

async fn a_split_batch_is_replaced_by_its_parts(place: &Place) {
    place.append(vec![traffic("whole")]).await;
    let whole = place.lease().await.unwrap();
    let began = place.clock.now();
    place.clock.advance(Duration::from_secs(1));
    let due = place.clock.now().plus(Duration::from_secs(5));
    let pieces = vec![traffic("p"), traffic("q")];
    place.log.replace(&whole, pieces, due).await.unwrap();
    assert_eq!(place.lease().await, None, "pieces wait for their time");
    place.clock.advance(Duration::from_secs(5));
    let piece = place.lease().await.unwrap();
    assert_eq!((text(&piece).as_str(), piece.attempt), ("p", 2));
    assert_eq!(piece.first_at, began);
    place.log.ack(&piece).await.unwrap();
    assert_eq!(place.drain(1).await, ["q"]);
    assert_eq!(place.log.backlog().await.unwrap(), []);
}

async fn dead_letters_are_in_the_database(place: &Place) {
    place.append(vec![traffic("a"), traffic("b")]).await;
    let first = place.lease().await.unwrap();
    let began = place.clock.now();
    place.log.retry(&first, began, "503").await.unwrap();
    place.clock.advance(Duration::from_secs(1));
    let again = place.lease().await.unwrap();
    place.log.dead_letter(&again, why()).await.unwrap();
    let letters = place.queue.dead_letters("ed_1", None, 9).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(name(letters[0].body.clone()), "a");
    assert_eq!((letters[0].attempts, letters[0].count), (2, 2));
    assert_eq!(
        (letters[0].first_at, letters[0].buried_at),
        (began, place.clock.now())
    );
    assert_eq!(letters[0].why, why());
    let backlog = place.log.backlog().await.unwrap();
    assert_eq!((backlog[0].batches, backlog[0].dead_lettered), (1, 1));
    // Dead letters are redriven through the database.
    assert!(place.queue.redrive(letters[0].id).await.unwrap());
    let mut drained = place.drain(2).await;
    drained.sort_unstable();
    assert_eq!(drained, ["a", "b"]);
    place.queue.check().await.unwrap();
}

async fn an_expired_lease_passes_to_another_node(place: &Place) {
    place.append(vec![traffic("a")]).await;
    let slow = place.lease().await.unwrap();
    let other = place.beside().await;
    // The deadline is not extended while the batch is being sent.
    let began = std::time::Instant::now();
    let taken = loop {
        place.clock.advance(LEASE);
        other.backlog().await.unwrap();
        if let Some(taken) = lease_elsewhere(&*other, place.clock.now()).await {
            break taken;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "never passed on");
    };
    assert_eq!(text(&taken), "a");
    // On a busy machine a response of the server may come too late, which counts as a delivery.
    assert!(taken.attempt >= 2, "{}", taken.attempt);
    let now = place.clock.now();
    assert!(is_lost(place.log.retry(&slow, now, "late").await));
    assert!(is_lost(
        place.log.replace(&slow, vec![traffic("p")], now).await
    ));
    assert!(is_lost(place.log.dead_letter(&slow, why()).await));
    assert!(is_lost(place.log.ack(&slow).await));
    other.ack(&taken).await.unwrap();
    assert_eq!(place.log.backlog().await.unwrap(), []);
}

async fn the_backlog_is_counted_and_deleted_by_destination(place: &Place) {
    let batches = [
        traffic("a"),
        traffic("b"),
        batch("ed_2", BatchClass::Traffic, "c", 9),
    ];
    let bytes = |batch: &NewBatch| batch.body.bytes;
    let of_first = bytes(&batches[0]) + bytes(&batches[1]);
    place.append(batches.to_vec()).await;
    let backlog = place.log.backlog().await.unwrap();
    assert_eq!(backlog.len(), 2);
    assert_eq!(
        (backlog[0].destination.as_str(), backlog[0].batches),
        ("ed_1", 2)
    );
    assert_eq!((backlog[0].events, backlog[0].bytes), (4, of_first));
    let held = place.lease().await.unwrap();
    place.log.drop_destination("ed_1").await.unwrap();
    let backlog = place.log.backlog().await.unwrap();
    assert_eq!(backlog.len(), 1);
    assert!(is_lost(place.log.ack(&held).await));
    assert_eq!(place.lease().await, None);
    // A destination with a reused id starts empty.
    place.append(vec![traffic("d")]).await;
    assert_eq!(place.drain(1).await, ["d"]);
}

async fn audit_events_in_the_database_are_leased_first(place: &Place) {
    place.append(vec![traffic("t"), traffic("u")]).await;
    let audit = |name| batch("ed_1", BatchClass::Audit, name, 0);
    let append = place.queue.append(vec![audit("a"), audit("b")], None);
    append.await.unwrap();
    assert_eq!(place.drain(4).await, ["a", "b", "t", "u"]);
    place.queue.append(vec![audit("c")], None).await.unwrap();
    assert_eq!(place.drain(1).await, ["c"]);
}

/// Fits two batches of [`traffic`], but not three.
const SEND: BatchLimits = BatchLimits {
    events_max: 5,
    bytes_max: 1 << 20,
};

async fn several(place: &Place) -> Vec<Lease> {
    let now = place.clock.now();
    let leases = place.log.lease_several("ed_1", "node-1", LEASE, now, SEND);
    leases.await.unwrap()
}

async fn several_leased_batches_block_later_ones_until_settled(place: &Place) {
    let names = ["a", "b", "c", "d"];
    place.append(names.map(traffic).into()).await;
    let mut came = Vec::new();
    loop {
        let leases = several(place).await;
        let Some(last) = leases.last() else {
            break;
        };
        assert!(leases.len() >= 2, "as many as one send takes");
        came.extend(leases.iter().map(text));
        assert_eq!(several(place).await, []);
        assert_eq!(place.lease().await, None);
        // Batches that failed are retried together.
        let now = place.clock.now();
        let again = |at| Settlement::Retry {
            at,
            why: String::new(),
        };
        let later = now.plus(Duration::from_secs(5));
        let rest = std::slice::from_ref(last);
        assert_eq!(place.log.settle(rest, again(now)).await.unwrap().len(), 1);
        let others = &leases[..leases.len() - 1];
        let settled = place.log.settle(others, again(later)).await.unwrap();
        assert_eq!(settled.len(), others.len());
        assert_eq!(several(place).await, [], "its head waits");
        place.clock.advance(Duration::from_secs(5));
        let leases_again = several(place).await;
        let texts = |leases: &[Lease]| leases.iter().map(text).collect::<Vec<_>>();
        assert_eq!(texts(&leases_again), texts(&leases));
        assert_eq!(leases_again[0].attempt, 2);
        let n = place.log.settle(&leases_again, Settlement::Ack).await;
        assert_eq!(n.unwrap().len(), leases.len());
    }
    assert_eq!(came, names);
    assert_eq!(place.log.backlog().await.unwrap(), []);
}

/// Fits two batches of [`filled`], but not three.
const GATHERING: Gathering = Gathering {
    bytes_max: 2_500,
    age_max: Duration::from_secs(300),
};

fn filled(name: &str) -> NewBatch {
    batch("ed_1", BatchClass::Traffic, name, 450)
}

async fn run(place: &Place) -> Run {
    let now = place.clock.now();
    let run = place.log.lease_run("ed_1", "node-1", LEASE, now, GATHERING);
    run.await.unwrap()
}

async fn names(place: &Place, run: &Run) -> Vec<String> {
    let mut names = Vec::new();
    for lease in &run.leases {
        names.push(name(place.log.body(lease).await.unwrap().unwrap()));
    }
    names
}

async fn a_run_of_batches_is_leased_by_size_or_age(place: &Place) {
    let began = place.clock.now();
    assert_eq!(run(place).await, Run::default());
    place.append(vec![filled("a"), filled("b")]).await;
    let early = run(place).await;
    assert!(early.leases.is_empty());
    assert_eq!(early.next_at, Some(began.plus(GATHERING.age_max)));
    // A third batch does not fit.
    place.append(vec![filled("c")]).await;
    let full = run(place).await;
    assert_eq!(names(place, &full).await, ["a", "b"]);
    assert!(run(place).await.leases.is_empty(), "the line is held back");
    let now = place.clock.now();
    let put_back = Settlement::Retry {
        at: now,
        why: "503".to_owned(),
    };
    let n_settled = place.log.settle(&full.leases, put_back).await.unwrap();
    assert_eq!(n_settled.len(), 2);
    assert_eq!(
        place
            .log
            .settle(&full.leases, Settlement::Ack)
            .await
            .unwrap()
            .len(),
        0,
        "lost"
    );
    let again = run(place).await;
    assert_eq!(names(place, &again).await, ["a", "b"]);
    assert_eq!(again.leases[0].attempt, 2);
    let n_settled = place.log.settle(&again.leases, Settlement::Ack).await;
    assert_eq!(n_settled.unwrap().len(), 2);
    assert_eq!(place.log.body(&again.leases[0]).await.unwrap(), None);
    assert!(run(place).await.leases.is_empty());
    place.clock.advance(GATHERING.age_max);
    let old = run(place).await;
    assert_eq!(names(place, &old).await, ["c"]);
    place
        .log
        .settle(&old.leases, Settlement::Ack)
        .await
        .unwrap();
    assert_eq!(place.log.backlog().await.unwrap(), []);
}

async fn a_run_of_batches_is_settled_in_parts(place: &Place) {
    place
        .append(vec![filled("a"), filled("b"), filled("c")])
        .await;
    let full = run(place).await;
    let (first, second) = full.leases.split_at(1);
    let dead_lettered = place
        .log
        .settle(second, Settlement::DeadLetter(why()))
        .await;
    assert_eq!(dead_lettered.unwrap().len(), 1);
    let put_back = Settlement::Retry {
        at: place.clock.now(),
        why: "503".to_owned(),
    };
    place.log.settle(first, put_back).await.unwrap();
    let letters = place.queue.dead_letters("ed_1", None, 9).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(name(letters[0].body.clone()), "b");
    let again = run(place).await;
    assert_eq!(names(place, &again).await, ["a", "c"]);
    place
        .log
        .settle(&again.leases, Settlement::Ack)
        .await
        .unwrap();
    assert_eq!(place.log.backlog().await.unwrap()[0].batches, 0);
}
