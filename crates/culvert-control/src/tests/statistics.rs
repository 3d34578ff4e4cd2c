//! Statistics: counts of nodes are folded, kept for their retention, and read only by callers with the right.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use culvert_statistics::{Field, Frame, Key, Point, SubjectKind};
use culvert_store::{Queue, StoreUrl};

use crate::tests::*;

/// A node whose source counts the same at each reading.
#[derive(Debug, Default)]
struct Constant {
    points: Mutex<Vec<(Key, Point)>>,
    readings: AtomicU64,
}

impl StatisticsSource for Constant {
    fn read(&self, frame: &mut Frame) {
        self.readings.fetch_add(1, Ordering::SeqCst);
        for (key, point) in &*self.points.lock().unwrap() {
            frame.add(key.clone(), point);
        }
    }
}

/// Ten requests that took 20 ms, one of which failed, and 100 bytes each way.
fn requests() -> Point {
    let mut point = Point::default();
    point.add(Field::Status2xx, 9);
    point.add(Field::Status5xx, 1);
    point.add(Field::BytesIn, 100);
    point.add(Field::BytesOut, 100);
    for _ in 0..10 {
        point.record(Duration::from_millis(20));
    }
    point
}

struct Node {
    statistics: Statistics,
    keeper: Keeper,
    source: Arc<Constant>,
}

impl Node {
    fn new(queue: &Queue, name: &str, settings: StatisticsSettings) -> Self {
        let source = Arc::<Constant>::default();
        Self {
            statistics: Statistics::new(queue.clone(), name.to_owned(), settings),
            keeper: Keeper::new(source.clone()),
            source,
        }
    }

    fn counts(&self, kind: SubjectKind, account: &str, id: &str, point: Point) {
        let key = Key::new(kind, account, id);
        self.source.points.lock().unwrap().push((key, point));
    }

    fn readings(&self) -> u64 {
        self.source.readings.load(Ordering::SeqCst)
    }

    async fn look(&mut self, clock: &ManualClock) {
        self.keeper.step(&self.statistics, clock).await.unwrap();
    }

    /// Calls `look` every ten seconds, starting at the clock's time, and advances the clock.
    async fn run(&mut self, clock: &ManualClock, span: Duration) {
        for _ in 0..span.as_secs() / 10 {
            clock.advance(Duration::from_secs(10));
            self.look(clock).await;
        }
    }
}

impl Rig {
    async fn node(&self, name: &str) -> Node {
        let node = Node::new(&self.queue, name, StatisticsSettings::default());
        let account = &self.admin.account;
        node.counts(SubjectKind::Endpoint, account, "ep_1", requests());
        node.counts(SubjectKind::Account, account, "", requests());
        node.counts(SubjectKind::Endpoint, "ac_other", "ep_other", requests());
        let mut process = Point::default();
        process.add(Field::CpuMillis, 500);
        process.add(Field::OpenConnections, 3);
        node.counts(SubjectKind::Node, "", name, process);
        node
    }

    async fn statistics(&self, query: &str) -> Value {
        self.get(&format!("/statistics{query}")).await.body()
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn folding_does_not_change_two_hours_of_statistics() {
    let rig = Rig::start().await;
    let mut node = rig.node("a").await;
    let mut other = rig.node("b").await;
    let begin = rig.clock.now();
    for _ in 0..2 * 360 + 40 {
        rig.clock.advance(Duration::from_secs(10));
        node.look(&rig.clock).await;
        other.look(&rig.clock).await;
    }
    let total = 2 * 10 * (2 * 360 + 40);

    let fine = rig.statistics("?from=2027-01-15T08:00:00Z&step=10").await;
    assert_eq!(fine["from"], begin.to_string());
    let points = fine["points"].as_array().unwrap();
    assert_eq!(points.len(), 2 * 360 + 40);
    assert!(
        points
            .iter()
            .all(|point| point["traffic"]["requests"] == 20)
    );
    assert_eq!(fine["total"]["traffic"]["requests"], total);
    assert_eq!(fine["total"]["traffic"]["status_5xx"], total / 10);
    assert_eq!(fine["total"]["latency"]["count"], total);
    let median = fine["total"]["latency"]["p50_ms"].as_f64().unwrap();
    assert!((18.0..23.0).contains(&median), "{median}");
    assert_eq!(fine["total"]["latency"]["mean_ms"], 20.0);

    let coarse = rig
        .statistics("?subject=endpoint&id=ep_1&from=2027-01-15T08:00:00Z&step=300")
        .await;
    let points = coarse["points"].as_array().unwrap();
    assert_eq!(points.len(), 26, "{points:?}");
    assert_eq!(points[0]["traffic"]["requests"], 600);
    assert_eq!(coarse["total"]["traffic"]["requests"], total);
    assert_eq!(coarse["total"]["latency"], fine["total"]["latency"]);

    // Two hours of both nodes are chunks; what came later are frames.
    let frames = rig
        .queue
        .statistic_frames(300, (0, i64::MAX), None, 100)
        .await
        .unwrap();
    assert_eq!(frames.len(), 2);
    let begin = begin.unix_seconds();
    let chunks = rig
        .queue
        .statistic_chunks(300, "n//a", (begin, begin + 7_200), 9)
        .await
        .unwrap();
    assert_eq!(chunks.len(), 1);

    // Levels are the highest of a node, and nodes add up.
    let nodes = rig.statistics("?subject=node&step=300").await;
    assert_eq!(nodes["points"][0]["node"]["open_connections"], 6);
    let one = rig.statistics("?subject=node&id=b&step=10").await;
    assert_eq!(one["points"][0]["node"]["cpu_seconds"], 0.5);
}

#[tokio::test]
async fn top_lists_are_sorted_and_limited_to_the_account() {
    let rig = Rig::start().await;
    let mut node = rig.node("a").await;
    let account = rig.admin.account.clone();
    for (id, requests, failed) in [("ep_2", 90, 0), ("ep_3", 1, 50)] {
        let mut point = Point::default();
        point.add(Field::Status2xx, requests);
        point.add(Field::Aborted, failed);
        node.counts(SubjectKind::Endpoint, &account, id, point);
    }
    node.run(&rig.clock, 20 * MINUTE).await;
    let ids = async |query: &str| -> Vec<Value> {
        let top = rig.statistics(&format!("/top{query}")).await;
        let top = top["top"].as_array().unwrap().clone();
        top.iter().map(|one| one["id"].clone()).collect()
    };
    // An hour is made of steps of five minutes, ten minutes of steps of ten seconds.
    assert_eq!(ids("").await, ["ep_2", "ep_3", "ep_1"]);
    let recent = "from=2027-01-15T08:10:00Z";
    let by_errors = ids(&format!("?{recent}&order=errors")).await;
    assert_eq!(by_errors, ["ep_3", "ep_1", "ep_2"]);
    assert_eq!(ids("?order=latency&limit=1").await, ["ep_1"]);
    assert_eq!(ids("?subject=node").await, ["a"]);
    assert_eq!(ids("?subject=destination").await, [Value::Null; 0]);
    let top = rig.statistics(&format!("/top?limit=1&{recent}")).await;
    assert_eq!(top["count"], 3);
    assert_eq!(top["top"][0]["traffic"]["requests"], 90 * 60);
}

#[tokio::test]
async fn node_statistics_are_for_admins_and_accounts_are_separate() {
    let rig = Rig::start().await;
    let mut node = rig.node("a").await;
    node.run(&rig.clock, MINUTE).await;
    let member = rig.user("member@x.example", Role::Member, true).await;
    for path in [
        "/statistics?subject=node",
        "/statistics/top?subject=node",
        "/nodes",
    ] {
        let refused = rig.call(&member, "GET", path, Value::Null).await;
        assert_eq!(refused.code(), Some(630), "{path}");
    }
    let path = "/statistics?subject=endpoint&id=ep_1";
    let seen = rig.call(&member, "GET", path, Value::Null).await.body();
    assert_eq!(seen["total"]["traffic"]["requests"], 60);
    let stranger = rig.stranger().await;
    for path in [path, "/statistics"] {
        let seen = rig.call(&stranger, "GET", path, Value::Null).await.body();
        assert_eq!(seen["total"]["traffic"]["requests"], 0, "{seen}");
    }
    let path = "/statistics/top";
    let seen = rig.call(&stranger, "GET", path, Value::Null).await.body();
    assert_eq!(seen["top"], json!([]));
    let absent = "/statistics?subject=endpoint&id=ep_other";
    assert_eq!(rig.get(absent).await.body()["points"], json!([]));
}

#[tokio::test]
async fn the_step_follows_the_range() {
    let rig = Rig::start().await;
    for (from, step) in [
        ("2027-01-15T07:00:00Z", 10),
        ("2027-01-15T05:00:00Z", 30),
        ("2027-01-14T08:00:00Z", 300),
        ("2027-01-08T08:00:00Z", 3_600),
        ("2026-12-16T08:00:00Z", 21_600),
    ] {
        let chosen = rig.statistics(&format!("?from={from}")).await;
        assert_eq!(chosen["step"], step, "{from}");
        assert_eq!(chosen["points"], json!([]));
    }
}

#[tokio::test]
async fn old_and_surplus_statistics_are_deleted() {
    let rig = Rig::start().await;
    let settings = StatisticsSettings {
        detail_retention: 60 * MINUTE,
        retention: 600 * MINUTE,
        bytes_max: 1 << 20,
    };
    let mut node = Node::new(&rig.queue, "a", settings);
    let account = rig.admin.account.clone();
    node.counts(SubjectKind::Endpoint, &account, "ep_1", requests());
    node.run(&rig.clock, 180 * MINUTE).await;
    let begin = rig.clock.now().minus(180 * MINUTE).unix_seconds();
    let chunks = async |step: i64| {
        let subject = Key::new(SubjectKind::Endpoint, &account, "ep_1").to_string();
        let range = (begin, i64::MAX);
        let chunks = rig.queue.statistic_chunks(step, &subject, range, 1000);
        chunks.await.unwrap().len()
    };
    assert!(
        (12..=15).contains(&chunks(10).await),
        "{}",
        chunks(10).await
    );
    assert_eq!(chunks(300).await, 1);

    // Too many bytes: the finer resolution goes first.
    node.statistics = Statistics::new(
        rig.queue.clone(),
        "a".to_owned(),
        StatisticsSettings {
            bytes_max: 0,
            ..StatisticsSettings::default()
        },
    );
    node.run(&rig.clock, 5 * MINUTE).await;
    assert_eq!((chunks(10).await, chunks(300).await), (0, 0));
}

#[tokio::test]
async fn frames_of_a_lost_node_are_folded_by_another() {
    let rig = Rig::start().await;
    let mut gone = rig.node("gone").await;
    gone.run(&rig.clock, 2 * MINUTE).await;
    let mut node = rig.node("a").await;
    node.source.points.lock().unwrap().clear();
    node.counts(SubjectKind::Node, "", "a", requests());
    rig.clock.advance(120 * MINUTE);
    node.look(&rig.clock).await;
    let frames = rig
        .queue
        .statistic_frames(10, (0, i64::MAX), Some("gone"), 100)
        .await
        .unwrap();
    assert_eq!(frames, []);
    let total = rig.statistics("?from=2027-01-15T08:00:00Z").await;
    assert_eq!(total["total"]["traffic"]["requests"], 120);
}

#[tokio::test]
async fn an_interrupted_fold_counts_once() {
    let rig = Rig::start().await;
    let mut node = rig.node("a").await;
    node.run(&rig.clock, 4 * MINUTE).await;
    let before = rig.statistics("?step=10").await;
    // A chunk of the next fold exists, as after a crash during the fold.
    let frames = rig
        .queue
        .statistic_frames(10, (0, i64::MAX), None, 100)
        .await
        .unwrap();
    let (key, at) = (
        Key::new(SubjectKind::Account, &rig.admin.account, ""),
        rig.clock.now().minus(4 * MINUTE).unix_seconds(),
    );
    let mut chunk = culvert_statistics::Chunk::default();
    for frame in &frames {
        let step = u32::try_from((frame.at - at) / 10).unwrap();
        chunk.add(step, &requests());
    }
    let chunk = culvert_store::StatisticChunk {
        step: 10,
        subject: key.to_string(),
        at,
        node: "a".to_owned(),
        body: chunk.encode(),
    };
    rig.queue
        .put_statistics(Vec::new(), vec![chunk], None)
        .await
        .unwrap();
    assert_eq!(rig.statistics("?step=10").await["total"], before["total"]);
}

#[tokio::test]
async fn an_unavailable_store_delays_statistics_and_drops_the_oldest() {
    let rig = Rig::start().await;
    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::Sqlite(folder.path().join("state.db"));
    let dead = Queue::open(&url, rig.clock.clone()).await.unwrap();
    dead.close().await;
    let account = rig.admin.account.clone();
    let mut node = Node::new(&dead, "a", StatisticsSettings::default());
    // The store is there for the first look.
    node.statistics = Statistics::new(
        rig.queue.clone(),
        "a".to_owned(),
        StatisticsSettings::default(),
    );
    node.counts(SubjectKind::Account, &account, "", requests());
    node.run(&rig.clock, Duration::from_secs(10)).await;
    let gone = Statistics::new(dead, "a".to_owned(), StatisticsSettings::default());
    for _ in 0..70 {
        rig.clock.advance(Duration::from_secs(10));
        let looked = node.keeper.step(&gone, &*rig.clock).await;
        looked.unwrap_err();
    }
    assert_eq!(gone.meters().lost.get(), 10);
    node.run(&rig.clock, Duration::from_secs(10)).await;
    // One frame before, sixty that waited, and one that was dropped for the last.
    let total = rig.statistics("?step=10").await;
    assert_eq!(total["points"].as_array().unwrap().len(), 61);
}

#[tokio::test]
async fn nodes_describe_themselves() {
    let rig = Rig::start().await;
    let facts = NodeFacts {
        version: "1.2.3".to_owned(),
        started_at: rig.clock.now(),
        roles: vec!["edge".to_owned()],
        region: String::new(),
        addresses: [("http".to_owned(), "127.0.0.1:80".to_owned())].into(),
        node_connections: 1,
        agent_sessions: 2,
        overload_level: 0,
        store: StoreFacts {
            engine: "sqlite".to_owned(),
            write_ms: 0.5,
            is_read_only: false,
        },
        event_log: EventLogFacts {
            kind: "embedded".to_owned(),
            is_up: true,
        },
    };
    rig.control.note_node(facts).await.unwrap();
    let list = rig.get("/nodes").await.body();
    let node = &list["nodes"][0];
    assert_eq!(node["name"], "a node");
    assert_eq!(node["is_online"], true);
    assert_eq!(node["version"], "1.2.3");
    assert_eq!(node["store"]["engine"], "sqlite");
    // The edge of this node has applied nothing yet.
    assert!(node["revision_lag"].as_i64().unwrap() > 0);
    rig.clock.advance(MINUTE);
    let list = rig.get("/nodes").await.body();
    assert_eq!(list["nodes"][0]["is_online"], false);
}

/// Each reading counts once, also those while the clock showed a time that has counts already.
#[tokio::test]
async fn a_clock_that_jumps_loses_no_statistics_and_deletes_none() {
    const DAY: Duration = Duration::from_secs(86_400);
    let rig = Rig::start().await;
    let mut node = rig.node("a").await;
    let begin = rig.clock.now();
    node.run(&rig.clock, 20 * MINUTE).await;

    rig.clock.set(rig.clock.now().plus(400 * DAY));
    let before = node.readings();
    node.run(&rig.clock, 7 * MINUTE).await;
    let n_ahead = node.readings() - before;
    assert!(n_ahead >= 41, "{n_ahead}");

    // Back to the true time: counts have their steps again immediately.
    rig.clock.set(begin.plus(27 * MINUTE));
    let before = node.readings();
    node.run(&rig.clock, 20 * MINUTE).await;
    let n_then = node.readings() - before;
    assert!(n_then >= 119, "{n_then}");

    // An hour back, to times before the first counts, and then to times that have counts.
    rig.clock.set(begin.minus(13 * MINUTE));
    node.run(&rig.clock, 13 * MINUTE).await;
    let before = node.readings();
    node.run(&rig.clock, 19 * MINUTE).await;
    let n_again = node.readings() - before;
    assert!(n_again <= 1, "{n_again}");
    rig.clock.set(begin.plus(80 * MINUTE));
    node.run(&rig.clock, 10 * MINUTE).await;
    let now = rig.clock.now();
    node.keeper.finish(&node.statistics, now).await.unwrap();

    let total = async || {
        let from = begin.minus(60 * MINUTE);
        let query = format!("?subject=endpoint&id=ep_1&step=300&from={from}");
        rig.statistics(&query).await["total"]["traffic"]["requests"].as_u64()
    };
    rig.clock.advance(MINUTE);
    let wanted = Some(10 * (node.readings() - n_ahead));
    assert_eq!(total().await, wanted);
    // The same when all of it is folded.
    node.run(&rig.clock, 10 * MINUTE).await;
    let wanted = Some(10 * (node.readings() - n_ahead));
    assert_eq!(total().await, wanted);
}

#[tokio::test]
async fn the_last_counts_of_a_process_whose_clock_was_set_back_are_written() {
    let rig = Rig::start().await;
    let mut node = rig.node("a").await;
    let begin = rig.clock.now();
    node.run(&rig.clock, 2 * MINUTE).await;
    rig.clock.set(rig.clock.now().minus(MINUTE));
    let now = rig.clock.now();
    node.keeper.finish(&node.statistics, now).await.unwrap();
    rig.clock.advance(2 * MINUTE);
    let query = format!("?subject=endpoint&id=ep_1&step=10&from={begin}");
    let total = rig.statistics(&query).await["total"]["traffic"]["requests"].as_u64();
    assert_eq!(total, Some(10 * node.readings()));
}

/// Calls by key and operation: the owner and admins read them, by day and together, of all nodes.
#[tokio::test]
async fn calls_of_a_key_are_counted_by_operation() {
    let rig = Rig::start().await;
    let member = rig.user("ada@example.com", Role::Member, true).await;
    let made = rig
        .post("/api_keys", json!({"owner_id": member.owner_id}))
        .await
        .body();
    let (id, account) = (made["id"].as_str().unwrap(), &rig.admin.account);
    let calls = |count| {
        let mut point = Point::default();
        point.add(Field::Calls, count);
        point
    };
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let node = Node::new(&rig.queue, name, StatisticsSettings::default());
        let counts = |key: &str, operation: &str, count| {
            let subject = format!("{key}/{operation}");
            node.counts(SubjectKind::Key, account, &subject, calls(count));
        };
        counts(id, "api_keys_list", 2);
        counts(id, "endpoints_create", 1);
        // Another key whose ID begins the same way.
        counts(&format!("{id}x"), "api_keys_list", 50);
        let mut process = Point::default();
        process.add(Field::CpuMillis, 500);
        node.counts(SubjectKind::Node, "", name, process);
        nodes.push(node);
    }
    let steps = 3 * 8_640 / 12;
    for _ in 0..steps {
        rig.clock.advance(2 * MINUTE);
        for node in &mut nodes {
            node.look(&rig.clock).await;
        }
    }
    let query = format!("?subject=key&id={id}&from=2027-01-15T00:00:00Z&step=86400");
    let shown = rig.statistics(&query).await;
    let total = 2 * 3 * steps;
    assert_eq!(shown["total"]["calls"]["calls"], total);
    assert_eq!(
        shown["total"]["calls"]["by_operation"],
        json!({"api_keys_list": total / 3 * 2, "endpoints_create": total / 3})
    );
    let days = shown["points"].as_array().unwrap();
    assert_eq!(days.len(), 4, "{days:?}");
    let of_days = days.iter().map(|day| &day["calls"]["by_operation"]);
    let listed = of_days.map(|calls| calls["api_keys_list"].as_u64().unwrap());
    assert_eq!(listed.sum::<u64>(), total / 3 * 2);
    assert_eq!(shown["total"]["traffic"], Value::Null);
    assert_eq!(
        rig.statistics("?subject=account").await["total"]["calls"],
        Value::Null
    );

    // Its owner reads them, and others as those of a key that does not exist.
    let of = async |caller: &Caller| {
        let path = format!("/statistics{query}");
        let shown = rig.call(caller, "GET", &path, Value::Null).await.body();
        shown["total"]["calls"]["calls"].as_u64().unwrap()
    };
    assert_eq!(of(&member).await, total);
    let other = rig.user("bob@example.com", Role::Member, true).await;
    assert_eq!(of(&other).await, 0);
    let missing = rig.get("/statistics?subject=key").await;
    assert_eq!(missing.code(), Some(5430));

    let top = async |caller: &Caller| {
        let path = "/statistics/top?subject=key";
        let top = rig.call(caller, "GET", path, Value::Null).await.body();
        let top = top["top"].as_array().unwrap().clone();
        top.into_iter()
            .map(|one| {
                let calls = one["calls"]["by_operation"]["api_keys_list"].as_u64();
                (one["id"].as_str().unwrap().to_owned(), calls.unwrap())
            })
            .collect::<Vec<_>>()
    };
    let of_all = top(&rig.admin).await;
    assert_eq!(of_all.len(), 2);
    assert_eq!(of_all[0].0, format!("{id}x"));
    let of_own = top(&member).await;
    assert_eq!(of_own, [of_all[1].clone()]);
    assert!(top(&other).await.is_empty());
}
