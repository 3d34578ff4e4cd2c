use std::collections::VecDeque;
use std::sync::Mutex as StdMutex;

use culvert_base::OsEntropy;
use culvert_base::batch::BatchClass;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;
use crate::client::kafka::wire::{In, Out};
use crate::tests::fake::{
    DESTINATION_IDS, Named, assert_connections_have_a_life, batch, envelope, failure,
    local_settings, pair, target,
};

/// A cluster of one broker with configurable behaviour.
struct Broker {
    port: u16,
    state: Arc<BrokerState>,
    _task: JoinSet<()>,
}

/// The broker's configuration, and the requests it received.
#[derive(Default)]
struct BrokerState {
    /// The host and port that it reports as its own.
    named: StdMutex<(String, i32)>,
    partitions: i32,
    /// Errors of appends to a partition, in order; afterwards there are none.
    errors: StdMutex<VecDeque<i16>>,
    /// Batches with more records than this fail with `MESSAGE_TOO_LARGE`.
    records_max: StdMutex<Option<i32>>,
    /// Number of further appends at which it closes the connection.
    hang_ups: StdMutex<usize>,
    /// Partition, producer ID, first sequence number and count of each batch.
    appended: StdMutex<Vec<(i32, i64, i32, i32)>>,
    producers: StdMutex<i64>,
    password: Option<&'static str>,
}

impl Broker {
    async fn start(partitions: i32) -> Self {
        Self::with(BrokerState {
            partitions,
            ..BrokerState::default()
        })
        .await
    }

    async fn with(state: BrokerState) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        *state.named.lock().unwrap() = ("127.0.0.1".to_owned(), port.into());
        let state = Arc::new(state);
        let own = state.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let state = own.clone();
                links.spawn(async move { serve(stream, &state).await });
            }
        });
        Self {
            port,
            state,
            _task: task,
        }
    }

    fn config(&self, more: Value) -> Value {
        let mut config = json!({
            "brokers": [format!("127.0.0.1:{}", self.port)],
            "topic": "events",
            "tls": false,
        });
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        config
    }

    fn target(&self, more: Value) -> Arc<dyn Target> {
        target(&TYPE, &self.config(more), |_| {})
    }

    fn fail_with(&self, errors: impl IntoIterator<Item = i16>) {
        self.state.errors.lock().unwrap().extend(errors);
    }

    fn appended(&self) -> Vec<(i32, i64, i32, i32)> {
        self.state.appended.lock().unwrap().clone()
    }
}

/// Responds to requests until the connection ends.
async fn serve(mut stream: TcpStream, state: &BrokerState) -> Option<()> {
    loop {
        let length = stream.read_u32().await.ok()?;
        let mut request = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut request).await.ok()?;
        let mut request = In::new(&request);
        let (key, _version) = (request.i16().unwrap(), request.i16().unwrap());
        let correlation = request.i32().unwrap();
        assert_eq!(request.text(), Ok("culvert"));
        let mut out = Out::default();
        match key {
            0 => {
                let hangs_up = {
                    let mut left = state.hang_ups.lock().unwrap();
                    let hangs_up = *left > 0;
                    *left = left.saturating_sub(1);
                    hangs_up
                };
                append(&mut request, state, &mut out);
                if hangs_up {
                    return None;
                }
            }
            3 => {
                let (host, port) = state.named.lock().unwrap().clone();
                out.i32(0).i32(1).i32(7).text(&host).i32(port).i16(-1);
                out.text("cluster").i32(7).i32(1);
                let error = if state.partitions == 0 { 3 } else { 0 };
                out.i16(error).text("events").i8(0).i32(state.partitions);
                for partition in 0..state.partitions {
                    out.i16(0).i32(partition).i32(7);
                    out.i32(1).i32(7).i32(1).i32(7);
                }
            }
            17 => {
                let error = if request.text() == Ok("PLAIN") { 0 } else { 33 };
                out.i16(error).i32(1).text("PLAIN");
            }
            22 => {
                let mut producers = state.producers.lock().unwrap();
                *producers += 1;
                out.i32(0).i16(0).i64(*producers).i16(0);
            }
            36 => {
                let wanted = format!("\0culvert\0{}", state.password.unwrap());
                let said = request.bytes().unwrap();
                match said == wanted.as_bytes() {
                    true => out.i16(0).i16(-1).bytes(&[]),
                    false => out.i16(58).text("no: wr0ng-s3cr3t").bytes(&[]),
                };
            }
            other => panic!("request {other}"),
        }
        let mut head = Out::default();
        head.i32(correlation);
        stream.write_all(&head.framed(out)).await.ok()?;
    }
}

fn append(request: &mut In<'_>, state: &BrokerState, out: &mut Out) {
    assert_eq!(request.i16(), Ok(-1), "no transaction");
    assert_eq!(request.i16(), Ok(-1), "all replicas");
    request.i32().unwrap();
    assert_eq!(request.i32(), Ok(1));
    out.i32(1).text(request.text().unwrap());
    let n_partitions = request.count().unwrap();
    out.count(n_partitions);
    for _ in 0..n_partitions {
        let partition = request.i32().unwrap();
        let batch = request.bytes().unwrap();
        let mut numbers = In::new(&batch[43..]);
        let (producer, _epoch) = (numbers.i64().unwrap(), numbers.i16().unwrap());
        let (sequence, count) = (numbers.i32().unwrap(), numbers.i32().unwrap());
        let max = *state.records_max.lock().unwrap();
        let error = match max {
            Some(max) if count > max => 10,
            _ => state.errors.lock().unwrap().pop_front().unwrap_or(0),
        };
        let entry = (partition, producer, sequence, count);
        state.appended.lock().unwrap().push(entry);
        out.i32(partition).i16(error).i64(0).i64(-1);
    }
    out.i32(0);
}

fn many(count: u32) -> Vec<String> {
    (0..count)
        .map(|id| envelope(id, "2027-01-15T08:00:00.000Z"))
        .collect()
}

fn batch_of(events: &[String]) -> Batch {
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    batch(BatchClass::Traffic, &events)
}

#[tokio::test]
async fn records_of_one_key_share_a_partition_and_others_spread() {
    let broker = Broker::start(4).await;
    let kafka = broker.target(json!({}));
    for _ in 0..2 {
        assert_eq!(kafka.send(&batch_of(&many(10))).await, Verdict::Delivered);
    }
    let appended = broker.appended();
    let partition_index = i32::try_from(records::partition_index(b"ac_1", 4)).unwrap();
    assert_eq!(
        appended,
        [(partition_index, 1, 0, 10), (partition_index, 1, 10, 10)]
    );

    let kafka = broker.target(json!({"key": "event", "compression": "gzip"}));
    assert_eq!(kafka.send(&batch_of(&many(100))).await, Verdict::Delivered);
    let appended = broker.appended().split_off(2);
    assert_eq!(appended.len(), 4, "every partition in one request");
    assert_eq!(appended.iter().map(|(.., count)| count).sum::<i32>(), 100);
    let kafka = broker.target(json!({"key": "none"}));
    for _ in 0..4 {
        assert_eq!(kafka.send(&batch_of(&many(3))).await, Verdict::Delivered);
    }
    let places: BTreeSet<i32> = broker
        .appended()
        .split_off(6)
        .into_iter()
        .map(|(partition, ..)| partition)
        .collect();
    assert_eq!(places.len(), 4, "in turn");
}

/// The broker may have stored a batch without a response, so the same records are sent under the
/// same sequence numbers.
#[tokio::test]
async fn unanswered_records_are_resent_with_their_sequence_numbers() {
    let broker = Broker::start(1).await;
    let kafka = broker.target(json!({}));
    assert_eq!(kafka.send(&batch_of(&many(3))).await, Verdict::Delivered);
    *broker.state.hang_ups.lock().unwrap() = 1;
    let events = many(5);
    let sent = kafka.send(&batch_of(&events)).await;
    let Verdict::Partial(outcomes) = sent else {
        panic!("{sent:?}")
    };
    assert!(outcomes.iter().all(is_unknown));
    // The response of a broker that already has the records.
    broker.fail_with([DUPLICATE_SEQUENCE_NUMBER]);
    assert_eq!(kafka.send(&batch_of(&events)).await, Verdict::Delivered);
    assert_eq!(
        broker.appended(),
        [(0, 1, 0, 3), (0, 1, 3, 5), (0, 1, 3, 5)]
    );

    // Other records must not use sequence numbers that may be taken, so they get a new producer ID.
    *broker.state.hang_ups.lock().unwrap() = 1;
    kafka.send(&batch_of(&events)).await;
    assert_eq!(kafka.send(&batch_of(&many(2))).await, Verdict::Delivered);
    assert_eq!(broker.appended()[3..], [(0, 1, 8, 5), (0, 2, 0, 2)]);
    // A producer ID that the broker no longer knows is replaced too.
    broker.fail_with([59]);
    let sent = kafka.send(&batch_of(&many(1))).await;
    assert_eq!(failure(sent).code, "UNKNOWN_PRODUCER_ID");
    assert_eq!(kafka.send(&batch_of(&many(1))).await, Verdict::Delivered);
    assert_eq!(broker.appended()[5..], [(0, 2, 2, 1), (0, 3, 0, 1)]);
}

fn is_unknown(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(failure) if failure.class == FailureClass::Unknown)
}

#[tokio::test]
async fn a_too_large_part_is_halved_until_one_event_is_refused() {
    let broker = Broker::start(1).await;
    *broker.state.records_max.lock().unwrap() = Some(2);
    let kafka = broker.target(json!({}));
    assert_eq!(kafka.send(&batch_of(&many(5))).await, Verdict::Delivered);
    let taken: Vec<_> = broker
        .appended()
        .into_iter()
        .filter(|(.., count)| *count <= 2)
        .map(|(_, _, sequence, count)| (sequence, count))
        .collect();
    assert_eq!(taken, [(0, 2), (2, 1), (3, 2)], "in order, without a gap");

    *broker.state.records_max.lock().unwrap() = None;
    broker.fail_with([87, 0, 87, 87]);
    let sent = kafka.send(&batch_of(&many(3))).await;
    let Verdict::Partial(outcomes) = sent else {
        panic!("{sent:?}")
    };
    let classes: Vec<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Outcome::Failed(failure) => Some(failure.class),
            _ => None,
        })
        .collect();
    // The first half was accepted. The second half was split, and its first event was rejected.
    assert_eq!(classes, [None, Some(FailureClass::Permanent), None]);
}

#[tokio::test]
async fn errors_of_the_broker_have_their_class() {
    use FailureClass::*;
    let broker = Broker::start(1).await;
    let kafka = broker.target(json!({}));
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    for (error, class) in [
        (3, Config),
        (6, Retryable),
        (7, Unknown),
        (10, Permanent),
        (19, Retryable),
        (29, Auth),
        (999, Retryable),
    ] {
        broker.fail_with([error]);
        let failure = failure(kafka.send(&one).await);
        assert_eq!(failure.class, class, "{error}: {failure}");
    }
    assert_eq!(kafka.send(&one).await, Verdict::Delivered);
    let missing = Broker::start(0).await;
    let missing = failure(missing.target(json!({})).send(&one).await);
    assert_eq!(
        (missing.class, missing.code.as_str()),
        (Config, "UNKNOWN_TOPIC_OR_PARTITION")
    );
}

/// A broker cannot name an address that a user may not configure.
#[tokio::test]
async fn addresses_announced_by_the_cluster_are_checked() {
    let broker = Broker::start(1).await;
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    for host in ["10.0.0.1", "169.254.169.254", "::1", "a b", "u@127.0.0.1"] {
        broker.state.named.lock().unwrap().0 = host.to_owned();
        let failure = failure(broker.target(json!({})).send(&one).await);
        assert_eq!(
            (failure.class, failure.code.as_str()),
            (FailureClass::Config, "address"),
            "{host}: {failure}"
        );
    }
    // The address of a name is checked when it is resolved.
    broker.state.named.lock().unwrap().0 = "inside.example".to_owned();
    let mut settings = local_settings();
    let config = broker.config(json!({"brokers": [format!("kafka.example:{}", broker.port)]}));
    let stored = check(&config, &settings, &OsEntropy).unwrap().stored;
    let context = Named::context(&settings);
    let kafka = open(&stored, &context, DESTINATION_IDS).unwrap();
    assert_eq!(kafka.send(&one).await, Verdict::Delivered);
    settings.rules.allow_networks.clear();
    let kafka = open(&stored, &Named::context(&settings), DESTINATION_IDS).unwrap();
    let refused = failure(kafka.send(&one).await);
    assert_eq!(refused.code, "address", "{refused}");
    assert!(broker.appended().len() == 1);
}

#[tokio::test]
async fn sasl_passwords_are_accepted_or_refused() {
    let broker = Broker::with(BrokerState {
        partitions: 1,
        password: Some("s3cr3t"),
        ..BrokerState::default()
    })
    .await;
    let [one, _] = pair();
    let one = batch(BatchClass::Audit, &[&one]);
    let sasl = |mechanism: &str, password: &str| json!({"sasl": {"mechanism": mechanism, "username": "culvert", "password": password}});
    let good = broker.target(sasl("plain", "s3cr3t"));
    assert_eq!(good.send(&one).await, Verdict::Delivered);
    let bad = failure(
        broker
            .target(sasl("plain", "wr0ng-s3cr3t"))
            .send(&one)
            .await,
    );
    assert_eq!(
        (bad.class, bad.text.as_str()),
        (FailureClass::Auth, "no: [redacted]")
    );
    let other = failure(
        broker
            .target(sasl("scram-sha-256", "s3cr3t"))
            .send(&one)
            .await,
    );
    assert_eq!(other.class, FailureClass::Config, "{other}");
}

#[test]
fn configurations_are_validated_and_updates_keep_secrets() {
    let settings = TargetSettings::default();
    let good = json!({
        "brokers": ["kafka.example:9093", "kafka-2.example"],
        "topic": "events",
        "sasl": {"mechanism": "scram-sha-512", "username": "u", "password": "hidden"},
    });
    let stored = check(&good, &settings, &OsEntropy).unwrap().stored;
    assert_eq!(stored["key"], "account");
    assert_eq!(stored["compression"], "none");
    for (field, value, says) in [
        ("brokers", json!([]), "1 to 16"),
        ("brokers", json!(["127.0.0.1:9092"]), "loopback"),
        (
            "brokers",
            json!(["http://kafka.example"]),
            "must start with",
        ),
        ("brokers", json!(["kafka.example/x"]), "path"),
        ("tls", json!(false), "`tls` must be on"),
        ("topic", json!(""), "`topic`"),
        ("topic", json!("a/b"), "`topic`"),
        ("topic", json!(".."), "`topic`"),
        ("key", json!("x"), "`account`, `event`, `none`"),
        (
            "sasl",
            json!({"mechanism": "plain", "username": "u"}),
            "`sasl.password`",
        ),
    ] {
        let mut given = good.clone();
        given[field] = value;
        let refusal = check(&given, &settings, &OsEntropy).unwrap_err();
        assert!(
            refusal.message.contains(says),
            "{given}: {}",
            refusal.message
        );
        assert!(!refusal.message.contains("hidden"));
    }
    let shown = (TYPE.redact)(&stored);
    assert_eq!(shown["sasl"]["password"], Value::Null);
    assert_eq!((TYPE.merge)(&stored, shown), stored);
}

#[tokio::test]
async fn a_busy_connection_is_replaced_and_its_records_keep_their_numbers() {
    let broker = Broker::start(1).await;
    *broker.state.named.lock().unwrap() = ("broker.example".to_owned(), broker.port.into());
    let config = broker.config(json!({"brokers": [format!("boot.example:{}", broker.port)]}));
    assert_connections_have_a_life(&TYPE, &config).await;
    let numbers: Vec<_> = broker.appended();
    assert_eq!(
        numbers,
        [(0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 2, 1), (0, 1, 3, 1)]
    );
}
