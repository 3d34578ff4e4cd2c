//! `kafka`: events as records of a Kafka topic (contract: destinations 8.2).
//!
//! A record counts as delivered when all in-sync replicas have it. The producer is idempotent:
//! while this process runs, a batch that is repeated unchanged after a lost response is stored
//! once. The bootstrap brokers name the other brokers; their addresses are checked by the same
//! rules as those that users configure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;

use culvert_base::{BoxFuture, Entropy, Refusal, Secret};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::Net;
use culvert_target::{
    Checked, DestinationIds, Outcome, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::kafka::errors::{self, DUPLICATE_SEQUENCE_NUMBER};
use crate::client::kafka::records::{self, Record};
use crate::client::kafka::{Link, Login, Mechanism, ProducerId};
use crate::client::kept::Kept;
use crate::client::tls_client::{Peer, Scheme};
use crate::config::{hide, invalid, keep_secret, parse, stored};
use crate::target::envelope::{event_time, event_type};
use crate::target::verdict::verdict;

const NAME: &str = "kafka";
const SCHEMES: &[Scheme] = &[Scheme {
    name: "kafka",
    port: 9092,
}];
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// How long the topic's metadata is used before it is read again.
const KNOWN_FOR: Duration = Duration::from_secs(300);

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Appends each event to a Kafka topic as a record and waits for its replicas.",
    // The brokers' default limit is a million bytes, with the headers of each record.
    limits: BatchLimits {
        events_max: 1000,
        bytes_max: 700 << 10,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        keep_secret(stored, &mut given, "/sasl", "password");
        given
    },
    redact: |stored| hide(stored, "/sasl/password", Value::Null),
    open,
};

/// Configuration of the `kafka` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "KafkaTarget")]
struct Config {
    /// Bootstrap brokers of one cluster, `<host>:<port>`, tried in this order; at most 16.
    brokers: Vec<String>,
    /// Name of an existing topic.
    topic: String,
    /// Whether connections use TLS with certificate verification. Default: `true`. `false` requires
    /// a server that allows plain connections.
    #[serde(default)]
    tls: Option<bool>,
    /// Authentication, if the brokers require it.
    #[serde(default)]
    sasl: Option<Sasl>,
    /// Record key: the account ID (`account`, the default, which keeps the events of an account in
    /// order in one partition), the event ID (`event`), or nothing (`none`).
    #[serde(default)]
    key: Option<KeyOf>,
    /// `none`, the default, or `gzip`.
    #[serde(default)]
    compression: Option<Compression>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "KafkaSasl")]
struct Sasl {
    /// `plain`, `scram-sha-256` or `scram-sha-512`.
    mechanism: Mechanism,
    /// The user.
    username: String,
    /// Password of the user. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true, "x-culvert-required" = true))]
    password: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "KafkaKey")]
enum KeyOf {
    Account,
    Event,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "KafkaCompression")]
enum Compression {
    None,
    Gzip,
}

fn check(given: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, given)?;
    peers(&config, settings)?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let topic = &config.topic;
    if !(1..=249).contains(&topic.len())
        || !topic.bytes().all(is_name)
        || topic == "."
        || topic == ".."
    {
        return Err(invalid(
            NAME,
            "`topic` must be 1 to 249 letters, digits, `.`, `_` and `-`",
        ));
    }
    if let Some(sasl) = &config.sasl {
        let password = sasl.password.as_deref().unwrap_or_default();
        for (name, text) in [("username", &*sasl.username), ("password", password)] {
            if !(1..=512).contains(&text.len()) || text.contains('\0') {
                return Err(invalid(
                    NAME,
                    format_args!("`sasl.{name}` must be 1 to 512 bytes"),
                ));
            }
        }
    }
    config.tls.get_or_insert(true);
    config.key.get_or_insert(KeyOf::Account);
    config.compression.get_or_insert(Compression::None);
    Ok(stored(&config))
}

fn peers(config: &Config, settings: &TargetSettings) -> Result<Vec<Peer>, Refusal> {
    let with_scheme = |broker: &String| match broker.contains("://") {
        true => broker.clone(),
        false => format!("kafka://{broker}"),
    };
    let urls: Vec<String> = config.brokers.iter().map(with_scheme).collect();
    let is_tls = config.tls.unwrap_or(true);
    Peer::several(NAME, "brokers", &urls, SCHEMES, is_tls, &settings.rules)
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    Ok(Arc::new(Kafka {
        peers: peers(&config, context.settings())?,
        topic: config.topic,
        is_tls: config.tls.unwrap_or(true),
        login: config.sasl.map(|sasl| Login {
            mechanism: sasl.mechanism,
            user: sasl.username,
            password: Secret::new(sasl.password.unwrap_or_default()),
        }),
        key: config.key.unwrap_or(KeyOf::Account),
        packs: config.compression == Some(Compression::Gzip),
        account: ids.account.to_owned(),
        state: Mutex::default(),
        net: context.net().clone(),
    }))
}

struct Kafka {
    peers: Vec<Peer>,
    topic: String,
    is_tls: bool,
    login: Option<Login>,
    key: KeyOf,
    packs: bool,
    account: String,
    state: Mutex<State>,
    net: Net,
}

impl std::fmt::Debug for Kafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// State kept between sends.
#[derive(Default)]
struct State {
    cluster: Option<Cluster>,
    /// Whether the metadata may be outdated.
    is_stale: bool,
    producer: Option<Producer>,
    /// Connections by broker ID.
    links: HashMap<i32, Kept<Link>>,
    /// Selects the partition of records without a key, round robin.
    turn: usize,
}

/// Brokers and partitions of the topic.
struct Cluster {
    brokers: HashMap<i32, Peer>,
    /// ID and leader of each partition.
    partitions: Vec<(i32, i32)>,
    fetched_at: Instant,
}

/// The producer ID, and the sequence numbers in each partition.
struct Producer {
    id: ProducerId,
    /// Sequence number of the next record, by partition.
    next: HashMap<i32, i32>,
    /// Digest of a batch whose response was lost, by partition. The broker may have stored it.
    doubts: HashMap<i32, [u8; 32]>,
}

impl Target for Kafka {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let mut state = self.state.lock().await;
            match self.append(&mut state, batch).await {
                Ok(outcomes) => verdict(outcomes),
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

/// A partition, and the positions in the batch of the events that go there.
type Part = (i32, Vec<usize>);

impl Kafka {
    async fn append(&self, state: &mut State, batch: &Batch) -> Result<Vec<Outcome>, Failure> {
        let deliveries: Vec<Delivery<'_>> = batch.deliveries().collect();
        self.look_around(state).await?;
        let mut outcomes = vec![Outcome::NotTried; deliveries.len()];
        let mut waiting = self.parted(state, &deliveries);
        // A part that a broker rejects for its content is halved until each rejected event is
        // alone.
        while !waiting.is_empty() {
            let (round, mut later) = first_of_each(std::mem::take(&mut waiting));
            for (leader, parts) in by_leader(state, round) {
                let failures = self.append_at(state, leader, &parts, &deliveries).await;
                for ((partition, events), failure) in parts.into_iter().zip(failures) {
                    let Some(failure) = failure else {
                        for event in events {
                            outcomes[event] = Outcome::Delivered;
                        }
                        continue;
                    };
                    let is_at_fault = failure.class == FailureClass::Permanent;
                    if is_at_fault && events.len() > 1 {
                        let (first, second) = events.split_at(events.len() / 2);
                        waiting.push((partition, first.to_vec()));
                        waiting.push((partition, second.to_vec()));
                        continue;
                    }
                    if !is_at_fault {
                        // Later events must not overtake a part that was not accepted.
                        later.retain(|(other, _)| *other != partition);
                    }
                    for event in events {
                        outcomes[event] = Outcome::Failed(failure.clone());
                    }
                }
            }
            waiting.append(&mut later);
        }
        Ok(outcomes)
    }

    /// Assigns events to partitions.
    fn parted(&self, state: &mut State, deliveries: &[Delivery<'_>]) -> Vec<Part> {
        let Some(cluster) = &state.cluster else {
            return Vec::new();
        };
        state.turn = state.turn.wrapping_add(1);
        let n_partitions = cluster.partitions.len();
        let mut parts: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for (index, delivery) in deliveries.iter().enumerate() {
            let partition_at = match self.key(delivery) {
                Some(key) => records::partition_index(key.as_bytes(), n_partitions),
                None => state.turn.checked_rem(n_partitions).unwrap_or(0),
            };
            let (partition, _) = cluster
                .partitions
                .get(partition_at)
                .copied()
                .unwrap_or_default();
            parts.entry(partition).or_default().push(index);
        }
        parts.into_iter().collect()
    }

    fn key<'a>(&'a self, delivery: &Delivery<'a>) -> Option<&'a str> {
        match self.key {
            KeyOf::Account => Some(&self.account),
            KeyOf::Event => Some(delivery.event_id),
            KeyOf::None => None,
        }
    }

    /// Appends parts to partitions of one leader. Returns the failure of each part, if it failed.
    async fn append_at(
        &self,
        state: &mut State,
        leader: i32,
        parts: &[Part],
        deliveries: &[Delivery<'_>],
    ) -> Vec<Option<Failure>> {
        let all = |failure: Failure| vec![Some(failure); parts.len()];
        let mut link = match self.link(state, leader).await {
            Ok(link) => link,
            Err(failure) => {
                state.is_stale = true;
                return all(failure);
            }
        };
        let batches: Vec<records::Batch> = parts
            .iter()
            .map(|(_, events)| self.batch(events, deliveries))
            .collect();
        let Some(producer) = &mut state.producer else {
            return all(forgotten());
        };
        let is_doubtful = parts.iter().zip(&batches).any(|((partition, _), batch)| {
            let doubt = producer.doubts.get(partition);
            doubt.is_some_and(|doubt| *doubt != batch.digest())
        });
        if is_doubtful {
            // The broker may have used these sequence numbers already, and would drop other records
            // under them as duplicates. So a new producer ID is needed.
            state.links.insert(leader, link);
            state.producer = None;
            if let Err(failure) = self.look_around(state).await {
                return all(failure);
            }
            return Box::pin(self.append_at(state, leader, parts, deliveries)).await;
        }
        let finished: Vec<(i32, Vec<u8>)> = parts
            .iter()
            .zip(&batches)
            .map(|((partition, _), batch)| {
                let sequence = producer.next.get(partition).copied().unwrap_or(0);
                (*partition, batch.finish(producer.id, sequence))
            })
            .collect();
        // Until the response arrives, or if the send is cancelled, the broker may have stored any
        // of them.
        for ((partition, _), batch) in parts.iter().zip(&batches) {
            producer.doubts.insert(*partition, batch.digest());
        }
        let results = match link.connection.produce(&self.topic, &finished).await {
            Ok(results) => results,
            Err(failure) => {
                state.is_stale = true;
                return all(failure);
            }
        };
        state.links.insert(leader, link);
        let mut failures = Vec::with_capacity(parts.len());
        let mut is_forgotten = false;
        for ((partition, _), batch) in parts.iter().zip(&batches) {
            let error = results.iter().find(|(other, _)| other == partition);
            let Some((_, error)) = error else {
                failures.push(Some(forgotten()));
                continue;
            };
            let failure = match *error {
                DUPLICATE_SEQUENCE_NUMBER => None,
                error => errors::check(error).err(),
            };
            state.is_stale |= errors::is_about_the_place(*error);
            is_forgotten |= errors::is_about_the_producer(*error);
            match &failure {
                None => {
                    let next = producer.next.entry(*partition).or_default();
                    *next = after(*next, batch.count());
                    producer.doubts.remove(partition);
                }
                Some(failure) if failure.class == FailureClass::Unknown => {}
                Some(_) => {
                    producer.doubts.remove(partition);
                }
            }
            failures.push(failure);
        }
        if is_forgotten {
            state.producer = None;
        }
        failures
    }

    fn batch(&self, events: &[usize], deliveries: &[Delivery<'_>]) -> records::Batch {
        let records: Vec<Record<'_>> = events
            .iter()
            .filter_map(|event| deliveries.get(*event))
            .map(|delivery| Record {
                at: event_time(delivery.envelope).map_or(0, culvert_base::Timestamp::unix_millis),
                key: self.key(delivery),
                value: delivery.payload(),
                headers: [
                    ("event_id", delivery.event_id.to_owned()),
                    (
                        "event_type",
                        event_type(delivery.envelope).unwrap_or_default().to_owned(),
                    ),
                    ("idempotency_key", delivery.idempotency_key()),
                ],
            })
            .collect();
        records::Batch::of(&records, self.packs)
    }

    /// A connection to a leader. It is removed from the state while in use. Sequence numbers belong to the producer, so a
    /// new connection continues them.
    async fn link(&self, state: &mut State, leader: i32) -> Result<Kept<Link>, Failure> {
        if let Some(link) = state.links.remove(&leader)
            && let Ok(link) = link.again()
        {
            return Ok(link);
        }
        let cluster = state.cluster.as_ref();
        let Some(peer) = cluster.and_then(|cluster| cluster.brokers.get(&leader)) else {
            return Err(Failure::new(
                FailureClass::Retryable,
                "LEADER_NOT_AVAILABLE",
                "a partition has no leader",
            ));
        };
        self.open_link(peer).await.map(Kept::opened)
    }

    async fn open_link(&self, peer: &Peer) -> Result<Link, Failure> {
        let opening = Link::open(peer, self.login.as_ref(), &self.net);
        tokio::time::timeout(OPEN_DEADLINE, opening)
            .await
            .map_err(|_| {
                let text = "authentication with the broker took longer than 10 s";
                Failure::new(FailureClass::Retryable, "timeout", text)
            })?
            // Nothing was sent before the connection was open, so a retry is safe.
            .map_err(|failure| match failure.class {
                FailureClass::Unknown => Failure {
                    class: FailureClass::Retryable,
                    ..failure
                },
                _ => failure,
            })
    }

    /// Requests the topic's metadata and the producer ID, if they are missing.
    async fn look_around(&self, state: &mut State) -> Result<(), Failure> {
        let is_old = |cluster: &Cluster| cluster.fetched_at.elapsed() >= KNOWN_FOR;
        if state.is_stale || state.cluster.as_ref().is_some_and(is_old) {
            state.cluster = None;
        }
        if state.cluster.is_some() && state.producer.is_some() {
            return Ok(());
        }
        let mut last = Failure::new(
            FailureClass::Config,
            "brokers",
            "no broker address is available",
        );
        for peer in &self.peers {
            let learning = async {
                let mut link = self.open_link(peer).await?;
                if state.cluster.is_none() {
                    state.cluster = Some(self.cluster(&mut link).await?);
                    state.is_stale = false;
                }
                if state.producer.is_none() {
                    state.producer = Some(Producer {
                        id: link.producer_id().await?,
                        next: HashMap::new(),
                        doubts: HashMap::new(),
                    });
                }
                Ok(())
            };
            match learning.await {
                Ok(()) => return Ok(()),
                Err(failure) => last = failure,
            }
        }
        Err(Failure {
            class: match last.class {
                FailureClass::Unknown => FailureClass::Retryable,
                class => class,
            },
            ..last
        })
    }

    async fn cluster(&self, link: &mut Link) -> Result<Cluster, Failure> {
        let metadata = link.metadata(&self.topic).await?;
        errors::check(metadata.error)?;
        if metadata.partitions.is_empty() {
            errors::check(3)?;
        }
        let mut brokers = HashMap::new();
        for (id, host, port) in metadata.brokers {
            let host = match host.contains(':') {
                true => format!("[{host}]"),
                false => host,
            };
            let rules = self.net.rules();
            let url = format!("kafka://{host}:{port}");
            let peer = Peer::parse(&url, SCHEMES, self.is_tls, rules).map_err(|why| {
                let text = format!("a broker of the cluster has a denied address: {why}");
                Failure::new(FailureClass::Config, "address", text)
            })?;
            brokers.insert(id, peer);
        }
        Ok(Cluster {
            brokers,
            partitions: metadata.partitions,
            fetched_at: Instant::now(),
        })
    }
}

/// Separates the first part of each partition from the others, which keep their order.
fn first_of_each(parts: Vec<Part>) -> (Vec<Part>, Vec<Part>) {
    let mut seen = BTreeSet::new();
    parts
        .into_iter()
        .partition(|(partition, _)| seen.insert(*partition))
}

/// Groups parts by the leaders of their partitions. A negative leader means none.
fn by_leader(state: &State, parts: Vec<Part>) -> BTreeMap<i32, Vec<Part>> {
    let mut leaders: BTreeMap<i32, Vec<Part>> = BTreeMap::new();
    for part in parts {
        let known = state.cluster.as_ref().and_then(|cluster| {
            let mut partitions = cluster.partitions.iter();
            partitions.find(|(partition, _)| *partition == part.0)
        });
        let leader = known.map_or(-1, |(_, leader)| *leader);
        leaders.entry(leader).or_default().push(part);
    }
    leaders
}

/// The sequence number after `count` records, which wraps around after the largest.
fn after(next: i32, count: i32) -> i32 {
    let sum = i64::from(next) + i64::from(count);
    i32::try_from(sum % (1 << 31)).unwrap_or(0)
}

fn forgotten() -> Failure {
    Failure::new(
        FailureClass::Unknown,
        "answer",
        "the response lacks the results of the records",
    )
}

#[cfg(test)]
mod tests;
