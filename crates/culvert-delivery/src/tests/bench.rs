//! Test bench: a plane in its own folder, and a scripted target.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use culvert_base::{BoxFuture, Clock, Event, ManualClock, SeededEntropy, Timestamp};
use culvert_events::{Audit, Capture, HTTP_REQUEST_COMPLETE, Int32, Record, Selection, Slot, Text};
use culvert_store::{
    AuditEvent, BatchClass, Changes, Document, Head, NewBatch, Queue, Store, StoreUrl, Texts, Topic,
};
use culvert_target::batch::{Batch, BatchLimits, OpenBatch};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::guard::Rules;
use culvert_target::{DestinationIds, Target, TargetSettings, TargetType, Verdict};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dispatch::dispatcher::Dispatcher;
use crate::plane::delivery::Delivery;
use crate::plane::settings::{DESTINATION_KIND, Settings};
use crate::subscription::tests::whole::Table;
use crate::subscription::{Destination, Source};
use crate::{Health, Meters, Replay};

/// The destination of tests.
const DESTINATION_IDS: DestinationIds<'static> = DestinationIds {
    destination: "ed_1",
    account: "ac_1",
};

/// Settings that allow this machine, over plain HTTP.
pub(crate) fn local_settings() -> TargetSettings {
    TargetSettings {
        rules: Rules {
            allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
            allow_plain_http: true,
            deny_ports: Vec::new(),
        },
        public_base: "https://culvert.example".to_owned(),
        node: "node-1".to_owned(),
        ..TargetSettings::default()
    }
}

/// An envelope in the form of the recorder.
pub(super) fn envelope(id: u32, at: &str) -> String {
    format!(
        r#"{{"event_id":"ev_{id}","event_type":"test","event_timestamp":"{at}","account_id":"ac_1","principal":null,"object":{{}}}}"#
    )
}

pub(super) struct Bench {
    pub(super) folder: Arc<tempfile::TempDir>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) started_at: Timestamp,
    pub(super) queue: Queue,
    pub(super) store: Store,
    pub(super) delivery: Arc<Delivery>,
}

impl Bench {
    pub(super) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(super) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let started_at = Timestamp::from_unix_seconds(1_800_000_000);
        let mut settings = Settings {
            flush_after: std::time::Duration::from_millis(20),
            ..Settings::default()
        };
        change(&mut settings);
        let folder = Arc::new(tempfile::tempdir().unwrap());
        Self::at(folder, started_at, settings).await
    }

    async fn at(folder: Arc<tempfile::TempDir>, started_at: Timestamp, settings: Settings) -> Self {
        let clock = Arc::new(ManualClock::at(started_at));
        let url = StoreUrl::Sqlite(folder.path().join("state.db"));
        let store = Store::open(&url, clock.clone(), Texts::default())
            .await
            .unwrap();
        let queue = Queue::open(&url, clock.clone()).await.unwrap();
        let delivery = Delivery::new(
            settings,
            queue.clone(),
            store.clone(),
            clock.clone(),
            Arc::new(SeededEntropy::new(7)),
        );
        Self {
            folder,
            clock,
            started_at,
            queue,
            store,
            delivery,
        }
    }

    /// Another node on the same database.
    pub(super) async fn beside(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            flush_after: std::time::Duration::from_millis(20),
            ..Settings::default()
        };
        change(&mut settings);
        let delivery = Delivery::new(
            settings,
            self.queue.clone(),
            self.store.clone(),
            self.clock.clone(),
            Arc::new(SeededEntropy::new(8)),
        );
        Self {
            folder: self.folder.clone(),
            clock: self.clock.clone(),
            started_at: self.started_at,
            queue: self.queue.clone(),
            store: self.store.clone(),
            delivery,
        }
    }

    /// A new plane on the same files, as after a restart.
    pub(super) async fn next_life(&self) -> Self {
        self.next_life_with(|_| {}).await
    }

    /// Like [`Self::next_life`], with other settings.
    pub(super) async fn next_life_with(&self, change: impl FnOnce(&mut Settings)) -> Self {
        self.queue.close().await;
        self.store.close().await;
        let mut settings = Settings::default();
        change(&mut settings);
        Self::at(self.folder.clone(), self.clock.now(), settings).await
    }

    pub(super) fn meters(&self) -> &Meters {
        self.delivery.meters()
    }

    pub(super) fn health(&self, destination: &str) -> Health {
        self.delivery.health(destination).unwrap()
    }

    pub(super) fn publish(&self, sources: Vec<Source>, targets: &[(&str, &Arc<Scripted>)]) {
        self.publish_all(1, sources, targets);
    }

    pub(super) fn publish_revision(&self, revision: i64, targets: &[(&str, &Arc<Scripted>)]) {
        self.publish_all(revision, Vec::new(), targets);
    }

    fn publish_all(&self, revision: i64, sources: Vec<Source>, targets: &[(&str, &Arc<Scripted>)]) {
        let destinations = targets
            .iter()
            .map(|(id, target)| Destination {
                id: (*id).to_owned(),
                account: "ac_1".to_owned(),
                revision,
                target: (*target).clone(),
            })
            .collect();
        self.delivery.publish(Table {
            sources: sources.into_iter().map(Arc::new).collect(),
            destinations,
            ..Table::default()
        });
    }

    /// One destination, replays to it, and the destinations with the right to restricted audit events.
    pub(super) fn publish_entitled(
        &self,
        target: &Arc<Scripted>,
        replays: &[Replay],
        entitled: &[&str],
    ) {
        self.delivery.publish(Table {
            private_kinds: [AUDIT_KIND.to_owned()].into(),
            entitled: entitled.iter().map(|id| (*id).to_owned()).collect(),
            ..self.table(target, replays)
        });
    }

    /// One destination and replays to it.
    pub(super) fn publish_replays(&self, target: &Arc<Scripted>, replays: &[Replay]) {
        self.delivery.publish(self.table(target, replays));
    }

    fn table(&self, target: &Arc<Scripted>, replays: &[Replay]) -> Table {
        Table {
            destinations: vec![Destination {
                id: "ed_1".to_owned(),
                account: "ac_1".to_owned(),
                revision: 1,
                target: target.clone(),
            }],
            replays: replays.to_vec(),
            ..Table::default()
        }
    }

    /// One source with every field, one destination of that type. No reader may get events of the private kinds.
    pub(super) fn publish_type(&self, ty: &TargetType, config: Value, private: &[&str]) {
        let context = self.delivery.targets();
        let entropy = SeededEntropy::new(1);
        let stored = (ty.check)(&config, context.settings(), &entropy)
            .unwrap()
            .stored;
        self.delivery.publish(Table {
            sources: vec![source("esb_1", &["ed_1"]).into()],
            destinations: vec![Destination {
                id: "ed_1".to_owned(),
                account: "ac_1".to_owned(),
                revision: 1,
                target: (ty.open)(&stored, context, DESTINATION_IDS).unwrap(),
            }],
            private_kinds: private.iter().map(|kind| (*kind).to_owned()).collect(),
            ..Table::default()
        });
    }

    /// One destination with this target.
    pub(super) fn publish_target(&self, target: Arc<dyn Target>) {
        self.delivery.publish(Table {
            destinations: vec![Destination {
                id: "ed_1".to_owned(),
                account: "ac_1".to_owned(),
                revision: 1,
                target,
            }],
            ..Table::default()
        });
    }

    pub(super) fn run(&self) -> Running {
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(self.delivery.clone().run(cancel.clone()));
        Running { cancel, tasks }
    }

    pub(super) fn dispatcher(&self) -> Dispatcher {
        Dispatcher::new(self.delivery.plane.clone())
    }

    /// Appends a batch to the queue without the plane.
    pub(super) async fn append(&self, destination: &str, class: BatchClass, ids: &[&str]) {
        let mut open = OpenBatch::default();
        for id in ids {
            let envelope = format!(r#"{{"event_id":"{id}","object":{{}}}}"#);
            open.push(&"esb_1".into(), envelope.as_bytes());
        }
        let batch = NewBatch {
            destination: destination.to_owned(),
            class,
            count: open.len(),
            body: open.finish(),
        };
        self.queue.append(vec![batch], None).await.unwrap();
    }

    /// Stores a destination.
    pub(super) async fn destination(&self, id: &str) -> Head {
        let document = document(DESTINATION_KIND, id, Vec::new());
        self.insert(document).await;
        let stored = self.store.get(DESTINATION_KIND, id).await.unwrap();
        stored.unwrap().head
    }

    pub(super) async fn remove(&self, head: Head) {
        let reported = AuditEvent::Suppress { reason: "a test" };
        self.store
            .commit(Changes::remove(head, reported))
            .await
            .unwrap();
    }

    /// Subscribes a destination to the events of [`Self::tell`].
    pub(super) async fn subscribe(&self, subscription: &str, destination: &str) {
        let topic = Topic {
            kind: AUDIT_KIND.to_owned(),
            destination: destination.to_owned(),
        };
        self.insert(document("event_subscription", subscription, vec![topic]))
            .await;
    }

    async fn insert(&self, document: Document) {
        let reported = AuditEvent::Suppress { reason: "a test" };
        self.store
            .commit(Changes::insert(document, reported))
            .await
            .unwrap();
    }

    /// Commits an audit event, `ev_audit<n>`.
    pub(super) async fn tell(&self, n: u32) {
        self.tell_all([("ac_1", AUDIT_KIND, n)]).await;
    }

    /// Commits audit events of these accounts, kinds and numbers together.
    pub(super) async fn tell_all(&self, reported: impl IntoIterator<Item = (&str, &str, u32)>) {
        let mut changes = Changes::default();
        for (account, kind, n) in reported {
            let id = format!("ev_audit{n}");
            let object = json!({"id": "ak_1"});
            let audit = Audit::by_server(kind, self.clock.now(), &id, account);
            let event: Event = audit.about(&object).unwrap();
            changes = changes.and(Changes::event(event));
        }
        self.store.commit(changes).await.unwrap();
    }
}

pub(super) const AUDIT_KIND: &str = "api_key_created.v0";

fn document(kind: &str, id: &str, topics: Vec<Topic>) -> Document {
    let at = Timestamp::from_unix_seconds(1_800_000_000);
    Document {
        head: Head {
            id: id.to_owned(),
            kind: kind.to_owned(),
            account: "ac_1".to_owned(),
            revision: 0,
            created_at: at,
            updated_at: at,
        },
        body: "{}".to_owned(),
        keys: Vec::new(),
        refs: Vec::new(),
        topics,
    }
}

/// A plane that runs.
pub(super) struct Running {
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

impl Running {
    pub(super) async fn stop(mut self) {
        self.cancel.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }

    /// Ends it without cleanup, as a kill would.
    pub(super) fn abandon(self) {
        drop(self.tasks);
    }
}

pub(super) fn source(subscription: &str, destinations: &[&str]) -> Source {
    Source {
        subscription: subscription.to_owned(),
        account: "ac_1".into(),
        kind: &HTTP_REQUEST_COMPLETE,
        selection: Selection::usual(&HTTP_REQUEST_COMPLETE),
        filter: None,
        destinations: destinations.iter().map(|id| (*id).to_owned()).collect(),
    }
}

const PORT: Slot<Int32> = HTTP_REQUEST_COMPLETE.slot("conn.server_port");
const METHOD: Slot<Text> = HTTP_REQUEST_COMPLETE.slot("http.request.method");

/// A completed request that arrived at this port.
pub(super) fn record(bench: &Bench, port: i32) -> Record {
    let capture = Capture::all(&HTTP_REQUEST_COMPLETE);
    let mut record = Record::new(&HTTP_REQUEST_COMPLETE, capture, "ac_1".into());
    record.set(PORT, port);
    record.set(METHOD, "get");
    record.complete(bench.clock.now());
    record
}

pub(super) fn failure(class: FailureClass, code: &str) -> Failure {
    Failure::new(class, code, "as scripted")
}

/// A target that records its batches and returns the outcomes of a script.
#[derive(Debug)]
pub(super) struct Scripted {
    limits: BatchLimits,
    pub(super) started: AtomicUsize,
    state: Mutex<Scripts>,
    open: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Scripts {
    /// Idempotency keys and envelopes of each batch, and whether the batch was accepted.
    batches: Vec<(Vec<(String, String)>, bool)>,
    script: VecDeque<Verdict>,
    otherwise: Option<Verdict>,
    /// Sends that panic next.
    panics: u32,
    refused: HashMap<String, Failure>,
}

impl Scripted {
    pub(super) fn new(events_max: u32) -> Arc<Self> {
        Arc::new(Self {
            limits: BatchLimits {
                events_max,
                ..BatchLimits::DEFAULT
            },
            started: AtomicUsize::new(0),
            state: Mutex::default(),
            open: watch::Sender::new(true),
        })
    }

    pub(super) fn script(&self, verdicts: impl IntoIterator<Item = Verdict>) {
        self.state.lock().unwrap().script.extend(verdicts);
    }

    pub(super) fn otherwise(&self, verdict: Verdict) {
        self.state.lock().unwrap().otherwise = Some(verdict);
    }

    /// Makes this many sends panic.
    pub(super) fn panic(&self, times: u32) {
        self.state.lock().unwrap().panics = times;
    }

    /// Makes every batch with this event fail.
    pub(super) fn refuse(&self, event_id: &str, failure: Failure) {
        let mut state = self.state.lock().unwrap();
        state.refused.insert(event_id.to_owned(), failure);
    }

    /// Makes sends wait until [`Self::open_gate`], after the batch was recorded.
    pub(super) fn gate(&self) {
        self.open.send_replace(false);
    }

    pub(super) fn open_gate(&self) {
        self.open.send_replace(true);
    }

    /// Makes sends hang.
    pub(super) fn hang(&self) {
        self.gate();
    }

    fn with<T>(&self, look: impl FnOnce(&Scripts) -> T) -> T {
        look(&self.state.lock().unwrap())
    }

    /// Every event that was sent, in order, including repetitions.
    pub(super) fn keys(&self) -> Vec<String> {
        self.with(|state| {
            let sent = state.batches.iter().flat_map(|(batch, _)| batch);
            sent.map(|(key, _)| key.clone()).collect()
        })
    }

    /// Every event that was accepted.
    pub(super) fn taken(&self) -> Vec<String> {
        self.with(|state| {
            let taken = state.batches.iter().filter(|(_, taken)| *taken);
            let events = taken.flat_map(|(batch, _)| batch);
            events.map(|(key, _)| key.clone()).collect()
        })
    }

    pub(super) fn envelopes(&self) -> Vec<String> {
        self.with(|state| {
            let sent = state.batches.iter().flat_map(|(batch, _)| batch);
            sent.map(|(_, envelope)| envelope.clone()).collect()
        })
    }

    pub(super) fn sizes(&self) -> Vec<usize> {
        self.with(|state| state.batches.iter().map(|(batch, _)| batch.len()).collect())
    }

    /// The port in each event.
    pub(super) fn ports(&self) -> Vec<i64> {
        let port = |envelope: &String| {
            let event: Value = serde_json::from_str(envelope).unwrap();
            event["object"]["conn"]["server_port"].as_i64().unwrap()
        };
        self.envelopes().iter().map(port).collect()
    }
}

impl Target for Scripted {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let events: Vec<(String, String)> = batch
                .deliveries()
                .map(|delivery| {
                    let envelope = String::from_utf8(delivery.envelope.to_vec()).unwrap();
                    (delivery.idempotency_key(), envelope)
                })
                .collect();
            let verdict = {
                let mut state = self.state.lock().unwrap();
                let refused = batch
                    .deliveries()
                    .find_map(|delivery| state.refused.get(delivery.event_id).cloned());
                let verdict = match refused {
                    Some(failure) => Verdict::Failed(failure),
                    None => state
                        .script
                        .pop_front()
                        .or_else(|| state.otherwise.clone())
                        .unwrap_or(Verdict::Delivered),
                };
                state.batches.push((events, verdict == Verdict::Delivered));
                let panics = state.panics > 0;
                state.panics = state.panics.saturating_sub(1);
                drop(state);
                assert!(!panics, "as scripted");
                verdict
            };
            self.started.fetch_add(1, Ordering::SeqCst);
            let mut open = self.open.subscribe();
            open.wait_for(|open| *open).await.unwrap();
            verdict
        })
    }

    fn limits(&self) -> BatchLimits {
        self.limits
    }
}
