//! Destinations against the real systems or substitutes: AWS services as emulated by `moto` with authentication, and
//! the published library of Standard Webhooks. Without the environment that `scripts/python-clients` creates, a test
//! is reported as ignored.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{ManualClock, OsEntropy, Secret, Timestamp};
use culvert_destinations::TYPES;
use culvert_store::BatchClass;
use culvert_target::batch::{Batch, OpenBatch};
use culvert_target::failure::FailureClass;
use culvert_target::guard::Rules;
use culvert_target::settings::aws::OwnKeys;
use culvert_target::{DestinationIds, Outcome, TargetContext, TargetSettings, Verdict};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, Receiver, backends, eventually, raw};

const SUITE: &str = "destinations";

/// A program of the Python suite, which exchanges lines of JSON with the test.
pub struct Partner {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Partner {
    /// `None`, reported as ignored, if there is no environment for it.
    pub fn start(program: &str) -> Option<Self> {
        Self::start_with(program, &[])
    }

    /// Like [`Partner::start`], with arguments.
    fn start_with(program: &str, arguments: &[&str]) -> Option<Self> {
        Self::start_in(SUITE, program, arguments)
    }

    /// Like [`Partner::start_with`], for a program of another suite.
    pub fn start_in(suite: &str, program: &str, arguments: &[&str]) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let place = root.join("target/python-clients").join(suite);
        // The script writes this copy last.
        if !place.join("requirements.txt").exists() {
            culvert_testing::ignore(format_args!(
                "no Python environment for `{suite}`; scripts/python-clients makes it"
            ));
            return None;
        }
        let mut child = Command::new(place.join("bin/python"))
            .arg("-B")
            .arg(root.join("tests/clients").join(suite).join(program))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Some(Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        })
    }

    /// Reads its next line.
    pub async fn said(&mut self) -> Value {
        let line = tokio::time::timeout(culvert_testing::PATIENCE, self.output.next_line());
        let line = line.await.expect("the partner answers").unwrap();
        serde_json::from_str(&line.expect("the partner is still running")).unwrap()
    }

    /// Ends its input, and waits until it has removed its files.
    async fn finish(mut self) {
        drop(self.input);
        self.child.wait().await.unwrap();
    }

    /// Sends a request and waits for the response.
    pub async fn ask(&mut self, question: &Value) -> Value {
        let line = format!("{question}\n");
        self.input.write_all(line.as_bytes()).await.unwrap();
        self.said().await
    }
}

/// The AWS services with one user, and streams and groups with the name `events`.
struct Amazon {
    partner: Partner,
    url: String,
    id: String,
    secret: String,
}

impl Amazon {
    async fn start() -> Option<Self> {
        let mut partner = Partner::start("amazon.py")?;
        let said = partner.said().await;
        let text = |name: &str| said[name].as_str().unwrap().to_owned();
        Some(Self {
            url: text("url"),
            id: text("aws_access_key_id"),
            secret: text("aws_secret_access_key"),
            partner,
        })
    }

    fn creds(&self) -> Value {
        json!({"creds": {"aws_access_key_id": self.id, "aws_secret_access_key": self.secret}})
    }

    /// Settings that allow its address, with its user's keys as the server's own.
    fn settings(&self) -> TargetSettings {
        let mut settings = TargetSettings {
            rules: Rules {
                allow_networks: vec!["127.0.0.1/32".parse().unwrap()],
                allow_plain_http: true,
                deny_ports: Vec::new(),
            },
            node: "node-1".into(),
            ..TargetSettings::default()
        };
        settings.aws.endpoint = Some(self.url.parse().unwrap());
        settings.aws.own_keys = OwnKeys::Given {
            id: self.id.clone(),
            secret: Secret::new(self.secret.clone()),
            session: None,
        };
        settings
    }
}

const QUEUE: &str = "arn:aws:sqs:us-east-1:123456789012:events";
const BUS: &str = "arn:aws:events:us-east-1:123456789012:event-bus/events";
const STREAM: &str = "arn:aws:kinesis:us-east-1:123456789012:stream/events";
const DELIVERY: &str = "arn:aws:firehose:us-east-1:123456789012:deliverystream/events";
const GROUP: &str = "arn:aws:logs:us-east-1:123456789012:log-group:/edge/events:*";

/// Events of a server arrive at each service, signed with static keys that the service verifies.
#[tokio::test(flavor = "multi_thread")]
async fn events_reach_amazons_services_with_static_keys() {
    let Some(mut amazon) = Amazon::start().await else {
        return;
    };
    let url = amazon.url.clone();
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.destinations.aws.endpoint_url = url;
    })
    .await;
    let mut ids = Vec::new();
    for target in [
        json!({"kinesis": {"auth": amazon.creds(), "stream_arn": STREAM}}),
        json!({"firehose": {"auth": amazon.creds(), "delivery_stream_arn": DELIVERY}}),
        json!({"cloudwatch_logs": {"auth": amazon.creds(), "log_group_arn": GROUP}}),
        json!({"sqs": {"auth": amazon.creds(), "queue_arn": QUEUE}}),
        json!({"eventbridge": {"auth": amazon.creds(), "event_bus_arn": BUS}}),
    ] {
        let body = json!({"format": "json", "target": target});
        let made = culvert.create("event_destinations", body).await;
        assert!(!made.to_string().contains(&amazon.secret));
        ids.push(made["id"].clone());
    }
    let sources = json!([{"type": "api_key_created.v0"}]);
    let body = json!({"destination_ids": ids, "sources": sources});
    culvert.create("event_subscriptions", body).await;
    let key = culvert
        .create("api_keys", json!({"description": "é"}))
        .await;

    for (service, at) in [("kinesis", 1), ("firehose", 1), ("logs", 1)] {
        let mut found = Value::Null;
        eventually(service, async || {
            found = amazon.partner.ask(&service.into()).await;
            !found.as_array().unwrap().is_empty()
        })
        .await;
        assert_eq!(
            found[0][at]["event_type"], "api_key_created.v0",
            "{service}"
        );
        assert_eq!(found[0][at]["object"]["id"], key["id"], "{service}");
        assert_eq!(found[0][at]["object"]["description"], "é", "{service}");
    }
    let messages = found(&mut amazon.partner, &"sqs".into(), 1).await;
    assert_eq!(messages[0][0], "api_key_created.v0");
    assert_eq!(messages[0][1]["object"]["description"], "é");
    let on_bus = found(&mut amazon.partner, &"bus".into(), 1).await;
    let event = &on_bus[0][1];
    assert_eq!(event["detail-type"], "api_key_created.v0");
    assert_eq!(event["detail"]["object"]["id"], key["id"]);
    culvert.stop().await;
}

/// Targets without a server.
struct Targets {
    settings: TargetSettings,
    context: TargetContext,
}

impl Targets {
    fn with(settings: TargetSettings) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_millis(now_ms())));
        let context = TargetContext::new(settings.clone(), clock, Arc::new(OsEntropy));
        Self { settings, context }
    }

    /// Those that may reach this machine.
    fn local() -> Self {
        let mut settings = TargetSettings::default();
        settings.rules.allow_networks = vec!["127.0.0.1/32".parse().unwrap()];
        settings.rules.allow_plain_http = true;
        Self::with(settings)
    }

    async fn send(&self, name: &str, config: &Value, batch: &Batch) -> Verdict {
        let ty = TYPES.find(name).unwrap();
        let checked = (ty.check)(config, &self.settings, &OsEntropy).unwrap();
        let ids = DestinationIds {
            destination: "ed_1",
            account: "ac_1",
        };
        let target = (ty.open)(&checked.stored, &self.context, ids).unwrap();
        target.send(batch).await
    }

    async fn refused(&self, name: &str, config: &Value, batch: &Batch) -> (FailureClass, String) {
        match self.send(name, config, batch).await {
            Verdict::Failed(failure) => (failure.class, failure.code),
            other => panic!("not refused: {other:?}"),
        }
    }
}

/// A batch of events with these objects.
fn batch_of(objects: &[&str]) -> Batch {
    let mut open = OpenBatch::default();
    for (id, object) in objects.iter().enumerate() {
        let line = format!(
            r#"{{"event_id":"ev_{id}","event_type":"test","event_timestamp":"2027-01-15T08:00:00.000Z","account_id":"ac_1","principal":null,"object":{object}}}"#
        );
        open.push(&Arc::from("esb_1"), line.as_bytes());
    }
    Batch::read("ed_1".into(), BatchClass::Traffic, open.finish().stored).unwrap()
}

/// Queues and buses verify signatures, take the largest batches, and refuse wrong names and keys. A repetition in a FIFO
/// queue is stored once, in order.
#[tokio::test(flavor = "multi_thread")]
async fn queues_and_buses_of_amazon_take_the_largest_batches() {
    let Some(mut amazon) = Amazon::start().await else {
        return;
    };
    let targets = Targets::with(amazon.settings());
    let queue = |auth: &Value, arn: &str| json!({"auth": auth, "queue_arn": arn});
    let bus = |auth: &Value, arn: &str| json!({"auth": auth, "event_bus_arn": arn});
    let role = json!({"role": {"role_arn": "arn:aws:iam::123456789012:role/events"}});
    let ten = events(0, 10);
    let fifo = queue(&role, &format!("{QUEUE}.fifo"));
    for _ in 0..2 {
        assert_eq!(targets.send("sqs", &fifo, &ten).await, Verdict::Delivered);
    }
    let messages = found(&mut amazon.partner, &"fifo".into(), 10).await;
    let ids: Vec<&str> = messages
        .iter()
        .map(|message| message[1]["event_id"].as_str().unwrap())
        .collect();
    let expected: Vec<String> = (0..10).map(|id| format!("ev_{id}")).collect();
    assert_eq!(ids, expected);
    assert_eq!(messages[0][2]["MessageGroupId"], "ac_1");
    // As many bytes as a batch may have.
    let creds = amazon.creds();
    for (name, config, partner) in [
        ("sqs", queue(&creds, QUEUE), "sqs"),
        ("eventbridge", bus(&creds, BUS), "bus"),
    ] {
        let limits = TYPES.find(name).unwrap().limits;
        let text = format!("\"{}\"", "x".repeat(limits.bytes_max / 10 - 180));
        let object = format!("{{\"text\":{text}}}");
        let full = batch_of(&[object.as_str(); 10]);
        let bytes = full.lines().len();
        assert!(
            (limits.bytes_max - 1000..=limits.bytes_max).contains(&bytes),
            "{bytes}"
        );
        let sent = targets.send(name, &config, &full).await;
        assert_eq!(sent, Verdict::Delivered, "{name}");
        found(&mut amazon.partner, &partner.into(), 10).await;
    }
    let wrong =
        json!({"creds": {"aws_access_key_id": amazon.id, "aws_secret_access_key": "wrong"}});
    let nowhere = QUEUE.replace("events", "nowhere");
    let no_bus = BUS.replace("bus/events", "bus/nowhere");
    for (name, config, class) in [
        ("sqs", queue(&creds, &nowhere), FailureClass::Config),
        ("sqs", queue(&wrong, QUEUE), FailureClass::Auth),
        ("eventbridge", bus(&wrong, BUS), FailureClass::Auth),
        ("eventbridge", bus(&creds, &no_bus), FailureClass::Config),
    ] {
        assert_eq!(
            targets.refused(name, &config, &ten).await.0,
            class,
            "{name}"
        );
    }
}

/// Events of a server become documents of an OpenSearch-compatible server. Repetitions are stored once, and a document that
/// the index does not take leaves the others alone.
#[tokio::test(flavor = "multi_thread")]
async fn events_become_documents_of_a_search_server() {
    let Some(mut search) = Partner::start("search.py") else {
        return;
    };
    let url = search.said().await;
    let culvert = Harness::start(&Backend::Sqlite).await;
    let target = json!({"elasticsearch": {"url": url, "index": "events"}});
    let id = subscribe(&culvert, target).await;
    let said = tested(&culvert, &id).await;
    assert_eq!(said["delivered"], true, "{said}");
    let made = culvert
        .create("api_keys", json!({"description": "é"}))
        .await;
    let mut documents = Value::Null;
    eventually("the documents", async || {
        documents = search.ask(&"events".into()).await;
        documents.as_object().unwrap().len() == 2
    })
    .await;
    let documents = documents.as_object().unwrap();
    let of_key = |(_, one): &(&String, &Value)| one["event_type"] == "api_key_created.v0";
    let (key, document) = documents.iter().find(of_key).unwrap();
    assert!(key.starts_with(document["event_id"].as_str().unwrap()));
    assert_eq!(document["object"]["id"], made["id"]);
    assert_eq!(document["@timestamp"], document["event_timestamp"]);
    culvert.stop().await;

    let targets = Targets::local();
    let strict = json!({"url": url, "index": "strict"});
    let batch = batch_of(&[r#"{"n":1}"#, r#"{"n":"not a number"}"#, r#"{"n":3}"#]);
    for _ in 0..2 {
        let sent = targets.send("elasticsearch", &strict, &batch).await;
        let Verdict::Partial(outcomes) = sent else {
            panic!("not partial: {sent:?}");
        };
        let [
            Outcome::Delivered,
            Outcome::Failed(failure),
            Outcome::Delivered,
        ] = &outcomes[..]
        else {
            panic!("not the second one: {outcomes:?}");
        };
        assert_eq!(failure.class, FailureClass::Permanent, "{failure}");
    }
    let stored = search.ask(&"strict".into()).await;
    let stored: Vec<_> = stored.as_object().unwrap().keys().cloned().collect();
    assert_eq!(stored, ["ev_0:esb_1", "ev_2:esb_1"]);
    let many = events(10, 500);
    for _ in 0..2 {
        let sent = targets.send("elasticsearch", &strict, &many).await;
        assert_eq!(sent, Verdict::Delivered);
    }
    let stored = search.ask(&"strict".into()).await;
    assert_eq!(stored.as_object().unwrap().len(), 502);
}

/// The engine of ClickHouse stores events of a server as rows, and a repeated batch once. Its errors have their classes.
#[tokio::test(flavor = "multi_thread")]
async fn events_become_rows_of_clickhouse() {
    let Some(mut clickhouse) = Partner::start("clickhouse.py") else {
        return;
    };
    let port = clickhouse.said().await;
    let config = |table: &str, password: &str| {
        let url = format!("http://127.0.0.1:{port}");
        json!({"url": url, "table": table, "user": "culvert", "password": password})
    };
    let password = "cl1ck-s3cr3t";
    let culvert = Harness::start(&Backend::Sqlite).await;
    let target = json!({"clickhouse": config("events", password)});
    let id = subscribe(&culvert, target).await;
    let said = tested(&culvert, &id).await;
    assert_eq!(said["delivered"], true, "{said}");
    let made = culvert
        .create("api_keys", json!({"description": "é"}))
        .await;
    let question = json!(
        "SELECT *, JSONExtractString(object, 'description') AS description FROM events \
         WHERE event_type = 'api_key_created.v0'"
    );
    let row = found(&mut clickhouse, &question, 1).await.remove(0);
    let read = |column: &str| serde_json::from_str::<Value>(row[column].as_str().unwrap()).unwrap();
    assert_eq!(read("object")["id"], made["id"]);
    assert_eq!(row["description"], "é");
    assert!(read("principal")["id"].is_string(), "{row}");
    culvert.stop().await;

    let targets = Targets::local();
    let whole = config("events", password);
    let many = events(0, 5000);
    for _ in 0..2 {
        let sent = targets.send("clickhouse", &whole, &many).await;
        assert_eq!(sent, Verdict::Delivered);
    }
    let question =
        json!("SELECT toUInt32(count()) AS n FROM events WHERE subscription_id = 'esb_1'");
    assert_eq!(clickhouse.ask(&question).await, json!([{"n": 5000}]));
    let few = events(0, 2);
    for (config, class, code) in [
        (config("nowhere", password), FailureClass::Config, "60"),
        (config("events", "wrong"), FailureClass::Auth, "516"),
        (config("strict", password), FailureClass::Permanent, "41"),
    ] {
        let refused = targets.refused("clickhouse", &config, &few).await;
        assert_eq!(refused, (class, code.to_owned()));
    }
    clickhouse.finish().await;
}

fn events(first: usize, count: usize) -> Batch {
    let mut open = OpenBatch::default();
    for id in first..first + count {
        let at = Timestamp::from_unix_millis(now_ms()).to_millis_text();
        let line = format!(
            r#"{{"event_id":"ev_{id}","event_type":"test","event_timestamp":"{at}","account_id":"ac_1","principal":null,"object":{{}}}}"#
        );
        open.push(&Arc::from("esb_1"), line.as_bytes());
    }
    Batch::read("ed_1".into(), BatchClass::Traffic, open.finish().stored).unwrap()
}

/// The current time, which the services use.
fn now_ms() -> i64 {
    use culvert_base::Clock;
    culvert_base::SystemClock.now().unix_millis()
}

/// A role is assumed with the account's external id. Wrong ids, keys and names have their failure classes, and the
/// largest batch is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn assumed_roles_and_refusals_follow_amazons_authentication() {
    let Some(mut amazon) = Amazon::start().await else {
        return;
    };
    let settings = amazon.settings();
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_millis(now_ms())));
    let context = TargetContext::new(settings.clone(), clock, Arc::new(OsEntropy));
    let role = json!({"role": {"role_arn": "arn:aws:iam::123456789012:role/events"}});
    let wrong_secret =
        json!({"creds": {"aws_access_key_id": amazon.id, "aws_secret_access_key": "wrong"}});
    let unknown_key =
        json!({"creds": {"aws_access_key_id": "AKIAUNKNOWN", "aws_secret_access_key": "wrong"}});
    let send = async |name: &str, config: Value, account: &str, batch: &Batch| {
        let ty = TYPES.find(name).unwrap();
        let stored = (ty.check)(&config, &settings, &OsEntropy).unwrap().stored;
        let ids = DestinationIds {
            destination: "ed_1",
            account,
        };
        (ty.open)(&stored, &context, ids).unwrap().send(batch).await
    };
    let kinesis = |auth: &Value, stream: &str| json!({"auth": auth, "stream_arn": stream});
    let refused = |verdict: Verdict| match verdict {
        Verdict::Failed(failure) => (failure.class, failure.code),
        other => panic!("not refused: {other:?}"),
    };
    let few = events(0, 2);

    let sent = send("kinesis", kinesis(&role, STREAM), "ac_1", &few).await;
    assert_eq!(sent, Verdict::Delivered);
    let sent = send("kinesis", kinesis(&role, STREAM), "ac_2", &few).await;
    assert_eq!(refused(sent), (FailureClass::Auth, "AccessDenied".into()));
    let sent = send("kinesis", kinesis(&wrong_secret, STREAM), "ac_1", &few).await;
    assert_eq!(refused(sent).0, FailureClass::Auth);
    let sent = send("kinesis", kinesis(&unknown_key, STREAM), "ac_1", &few).await;
    assert_eq!(refused(sent).0, FailureClass::Auth);
    let nowhere = STREAM.replace("events", "nowhere");
    let sent = send("kinesis", kinesis(&amazon.creds(), &nowhere), "ac_1", &few).await;
    assert_eq!(
        refused(sent),
        (FailureClass::Config, "ResourceNotFoundException".into())
    );
    let config = json!({"auth": amazon.creds(), "log_group_arn": GROUP.replace("edge", "no")});
    let sent = send("cloudwatch_logs", config, "ac_1", &few).await;
    assert_eq!(
        refused(sent),
        (FailureClass::Config, "ResourceNotFoundException".into())
    );

    let many = events(2, 500);
    for (name, field, arn) in [
        ("kinesis", "stream_arn", STREAM),
        ("firehose", "delivery_stream_arn", DELIVERY),
        ("cloudwatch_logs", "log_group_arn", GROUP),
    ] {
        let config = json!({"auth": amazon.creds(), field: arn});
        assert_eq!(
            send(name, config, "ac_1", &many).await,
            Verdict::Delivered,
            "{name}"
        );
    }
    let found = amazon.partner.ask(&"kinesis".into()).await;
    assert_eq!(found.as_array().unwrap().len(), 502);
    // Each traffic record has its own key, so that records are spread over shards.
    assert!(
        found
            .as_array()
            .unwrap()
            .iter()
            .all(|record| record[0] == record[1]["event_id"])
    );
    let found = amazon.partner.ask(&"firehose".into()).await;
    assert_eq!(found.as_array().unwrap().len(), 500);
    let found = amazon.partner.ask(&"logs".into()).await;
    let names: Vec<_> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event[0].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 500);
    assert!(
        names
            .iter()
            .all(|name| name.starts_with("culvert/ed_1/node-1/20")),
        "{}",
        names[0]
    );
}

/// Creates a destination and subscribes it to new API keys; returns its id.
async fn subscribe(culvert: &Harness, target: Value) -> String {
    let body = json!({"format": "json", "target": target});
    let made = culvert.create("event_destinations", body).await;
    let sources = json!([{"type": "api_key_created.v0"}]);
    let body = json!({"destination_ids": [made["id"]], "sources": sources});
    culvert.create("event_subscriptions", body).await;
    made["id"].as_str().unwrap().to_owned()
}

/// The items that the partner found, once there are `count` of them.
async fn found(partner: &mut Partner, question: &Value, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    eventually("all have arrived", async || {
        let answer = partner.ask(question).await;
        found = answer.as_array().unwrap().clone();
        found.len() >= count
    })
    .await;
    assert_eq!(found.len(), count, "{found:?}");
    found
}

/// Sends a test event to a destination, which may have been created just now, and returns the result.
async fn tested(culvert: &Harness, destination: &str) -> Value {
    let path = format!("/event_destinations/{destination}/test");
    let said = culvert.call(Method::POST, &path, Some(json!({}))).await;
    said.body
}

const BUCKET: &str = "arn:aws:s3:::event.bucket";

/// Events are collected in objects. Conditional writes prevent that an object is overwritten.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_gathered_into_objects_of_a_bucket() {
    let Some(mut amazon) = Amazon::start().await else {
        return;
    };
    let url = amazon.url.clone();
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.destinations.aws.endpoint_url = url;
    })
    .await;
    let config = |auth: Value| {
        json!({
            "auth": auth,
            "bucket_arn": BUCKET,
            "object_prefix": "all=1/",
            "compression": true,
            "max_file_age": 10,
        })
    };
    let id = subscribe(&culvert, json!({"s3": config(amazon.creds())})).await;
    let said = tested(&culvert, &id).await;
    assert_eq!(said["delivered"], true, "{said}");
    for description in ["é", "ü"] {
        let body = json!({"description": description});
        culvert.create("api_keys", body).await;
    }
    let all = found(&mut amazon.partner, &"s3".into(), 3).await;
    let of_keys: Vec<_> = all
        .iter()
        .filter(|line| line[1]["event_type"] == "api_key_created.v0")
        .collect();
    assert_eq!(of_keys[0][0], of_keys[1][0], "one object");
    assert_eq!(of_keys[0][1]["object"]["description"], "é");
    let name = of_keys[0][0].as_str().unwrap();
    let first = of_keys[0][1]["event_id"].as_str().unwrap();
    assert!(
        name.starts_with("all=1/20") && name.ends_with(&format!("-{first}.json.gz")),
        "{name}"
    );
    let path = format!("/event_destinations/{id}/health");
    eventually("all are settled", async || {
        let health = culvert.call(Method::GET, &path, None).await.body;
        health["queued"] == 0 && health["sent"] == 2
    })
    .await;
    culvert.stop().await;

    let settings = amazon.settings();
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_millis(now_ms())));
    let context = TargetContext::new(settings.clone(), clock, Arc::new(OsEntropy));
    let send = async |config: Value, batch: &Batch| {
        let ty = TYPES.find("s3").unwrap();
        let stored = (ty.check)(&config, &settings, &OsEntropy).unwrap().stored;
        let ids = DestinationIds {
            destination: "ed_1",
            account: "ac_1",
        };
        (ty.open)(&stored, &context, ids).unwrap().send(batch).await
    };
    // The same batch again is stored once. A longer batch, as after a crash, has another name.
    let role = json!({"role": {"role_arn": "arn:aws:iam::123456789012:role/events"}});
    let (five, seven) = (events(0, 5), events(0, 7));
    for batch in [&five, &five, &seven] {
        let sent = send(config(role.clone()), batch).await;
        assert_eq!(sent, Verdict::Delivered);
    }
    found(&mut amazon.partner, &"s3".into(), 3 + 5 + 7).await;
    let mut nowhere = config(amazon.creds());
    nowhere["bucket_arn"] = "arn:aws:s3:::no-such-bucket".into();
    let wrong =
        json!({"creds": {"aws_access_key_id": amazon.id, "aws_secret_access_key": "wrong"}});
    for (config, class) in [
        (nowhere, FailureClass::Config),
        (config(wrong), FailureClass::Auth),
    ] {
        match send(config, &events(0, 1)).await {
            Verdict::Failed(failure) => assert_eq!(failure.class, class, "{failure}"),
            other => panic!("not refused: {other:?}"),
        }
    }
}

/// A published RabbitMQ client reads events from a queue.
#[tokio::test(flavor = "multi_thread")]
async fn events_reach_a_consumer_at_rabbitmq() {
    let address = std::env::var_os("CULVERT_TEST_RABBITMQ_ADDR")
        .and_then(|address| address.into_string().ok())
        .unwrap_or_else(|| "127.0.0.1:5672".to_owned());
    if tokio::net::TcpStream::connect(&address).await.is_err() {
        culvert_testing::ignore("RabbitMQ does not answer; set CULVERT_TEST_RABBITMQ_ADDR");
        return;
    }
    let Some(mut consumer) = Partner::start_with("rabbit.py", &[&address]) else {
        return;
    };
    let queue = consumer.said().await;
    let key = format!("{}.all", queue.as_str().unwrap());
    let culvert = Harness::start(&Backend::Sqlite).await;
    let target = json!({"rabbitmq": {
        "urls": [format!("amqp://{address}")],
        "tls": false,
        "user": "guest",
        "password": "guest",
        "routing_key": key,
    }});
    let id = subscribe(&culvert, target).await;
    let said = tested(&culvert, &id).await;
    assert_eq!(said["delivered"], true, "{said}");
    found(&mut consumer, &json!(1), 1).await;
    let made = culvert
        .create("api_keys", json!({"description": "é"}))
        .await;
    let got = found(&mut consumer, &json!(1), 1).await.remove(0);
    assert_eq!(got["key"], key);
    assert_eq!(got["type"], "api_key_created.v0");
    assert_eq!(got["persistent"], true);
    assert_eq!(got["content_type"], "application/json");
    assert_eq!(got["body"]["object"]["id"], made["id"]);
    assert_eq!(got["body"]["object"]["description"], "é");
    let event = got["body"]["event_id"].as_str().unwrap();
    assert!(got["id"].as_str().unwrap().starts_with(event), "{got}");
    culvert.stop().await;
}

/// A published Kafka client reads events from a cluster of three brokers.
#[tokio::test(flavor = "multi_thread")]
async fn events_reach_a_consumer_of_kafka() {
    let Some(mut cluster) = Partner::start("kafka.py") else {
        return;
    };
    let brokers = cluster.said().await;
    let topic = json!("events");
    let culvert = Harness::start(&Backend::Sqlite).await;
    let config = json!({"brokers": brokers, "topic": "events", "tls": false});
    let id = subscribe(&culvert, json!({"kafka": config})).await;
    let said = tested(&culvert, &id).await;
    assert_eq!(said["delivered"], true, "{said}");
    found(&mut cluster, &topic, 1).await;
    let made = culvert
        .create("api_keys", json!({"description": "é"}))
        .await;
    let got = found(&mut cluster, &topic, 2).await;
    let of_key = |record: &&Value| record["headers"]["event_type"] == "api_key_created.v0";
    let got = got.iter().find(of_key).unwrap();
    assert_eq!(got["value"]["object"]["id"], made["id"]);
    assert_eq!(got["value"]["object"]["description"], "é");
    assert_eq!(got["key"], got["value"]["account_id"]);
    assert_eq!(got["headers"]["event_id"], got["value"]["event_id"]);
    assert!(got["timestamp"].as_i64().unwrap() > 1_700_000_000_000);
    culvert.stop().await;

    // Many events, to every partition at every broker, with and without compression.
    let mut settings = TargetSettings::default();
    settings.rules.allow_networks = vec!["127.0.0.1/32".parse().unwrap()];
    settings.rules.allow_plain_http = true;
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_millis(now_ms())));
    let context = TargetContext::new(settings.clone(), clock, Arc::new(OsEntropy));
    let ty = TYPES.find("kafka").unwrap();
    let mut first = 0;
    for compression in ["none", "gzip"] {
        let mut config = config.clone();
        config["key"] = "event".into();
        config["compression"] = compression.into();
        let stored = (ty.check)(&config, &settings, &OsEntropy).unwrap().stored;
        let ids = DestinationIds {
            destination: "ed_1",
            account: "ac_1",
        };
        let kafka = (ty.open)(&stored, &context, ids).unwrap();
        for _ in 0..2 {
            let sent = kafka.send(&events(first, 500)).await;
            assert_eq!(sent, Verdict::Delivered, "{compression}");
            first += 500;
        }
    }
    let got = found(&mut cluster, &topic, 2 + 2000).await;
    let mut ids: Vec<_> = got
        .iter()
        .map(|one| one["value"]["event_id"].as_str())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 2002, "each once");
    let mut partitions: Vec<_> = got.iter().map(|one| one["partition"].as_i64()).collect();
    partitions.sort_unstable();
    partitions.dedup();
    assert!(partitions.len() > 2, "{partitions:?}");
    let mut nowhere = config;
    nowhere["topic"] = "no-such-topic".into();
    let stored = (ty.check)(&nowhere, &settings, &OsEntropy).unwrap().stored;
    let ids = DestinationIds {
        destination: "ed_1",
        account: "ac_1",
    };
    let sent = (ty.open)(&stored, &context, ids)
        .unwrap()
        .send(&events(0, 1))
        .await;
    let Verdict::Failed(failure) = sent else {
        panic!("{sent:?}")
    };
    assert_eq!(failure.class, FailureClass::Config, "{failure}");
}

/// A receiver built from OpenTelemetry's own definitions accepts records over gRPC, and rejects a wrong token.
#[tokio::test(flavor = "multi_thread")]
async fn log_records_reach_a_receiver_over_grpc() {
    let Some(mut receiver) = Partner::start("receiver.py") else {
        return;
    };
    let endpoint = receiver.said().await;
    let culvert = Harness::start(&Backend::Sqlite).await;
    for (compression, count) in [("gzip", 1), ("none", 3)] {
        let target = json!({"otlp": {
            "endpoint": endpoint,
            "protocol": "grpc",
            "compression": compression,
            "headers": {"x-token": "right"},
        }});
        subscribe(&culvert, target).await;
        let key = culvert
            .create("api_keys", json!({"description": "é"}))
            .await;
        let exports = found(&mut receiver, &json!(1), count).await;
        let export = exports.last().unwrap();
        assert_eq!(export["resource"]["service.name"], "culvert");
        let record = &export["records"][0];
        assert_eq!(record["event_name"], "api_key_created.v0");
        assert_eq!(record["body"]["id"], key["id"]);
        assert_eq!(record["body"]["description"], "é");
    }
    let target = json!({"otlp": {
        "endpoint": endpoint,
        "protocol": "grpc",
        "headers": {"x-token": "wrong"},
    }});
    let id = subscribe(&culvert, target).await;
    let said = tested(&culvert, &id).await;
    assert_eq!(
        said,
        json!({"delivered": false, "error": "auth UNAUTHENTICATED: no such token: wr0ng"})
    );
    culvert.stop().await;
}

/// Records decode with OpenTelemetry's published messages, in both encodings.
#[tokio::test(flavor = "multi_thread")]
async fn log_records_decode_by_opentelemetrys_own_messages() {
    let Some(mut library) = Partner::start("records.py") else {
        return;
    };
    let culvert = Harness::start(&Backend::Sqlite).await;
    for protocol in ["http/protobuf", "http/json"] {
        let hook = Receiver::start().await;
        let endpoint = format!("http://{}", hook.address);
        let target = json!({"otlp": {"endpoint": endpoint, "protocol": protocol}});
        let body = json!({"format": "json", "target": target});
        let made = culvert.create("event_destinations", body).await;
        let sources = json!([{"type": "api_key_created.v0"}]);
        let body = json!({"destination_ids": [made["id"]], "sources": sources});
        culvert.create("event_subscriptions", body).await;
        let key = culvert
            .create("api_keys", json!({"description": "é"}))
            .await;
        eventually("a request", async || !hook.received().is_empty()).await;
        let request = hook.received().remove(0);
        assert_eq!(request.path, "/v1/logs");
        let question = json!({
            "content_type": request.headers["content-type"].to_str().unwrap(),
            "body": STANDARD.encode(&request.body),
        });
        let read = library.ask(&question).await;
        assert_eq!(read["resource"]["service.name"], "culvert", "{protocol}");
        let record = &read["records"][0];
        assert_eq!(record["event_name"], "api_key_created.v0");
        assert_eq!(record["severity_number"], 9);
        assert_eq!(record["body"]["id"], key["id"]);
        assert_eq!(record["body"]["description"], "é");
        assert_eq!(record["attributes"]["principal.source"], "API");
        assert!(
            record["attributes"]["event_id"]
                .as_str()
                .unwrap()
                .starts_with("ev_")
        );
        assert!(record["time_unix_nano"].as_u64().unwrap() > 1_700_000_000_000_000_000);
    }
    culvert.stop().await;
}

/// A destination can be tested and inspected, and its dead letters can be sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_destination_is_tested_inspected_and_its_dead_letters_replayed() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let hook = Receiver::start().await;
        let subscription =
            subscribe_debug(&culvert, &hook, json!([{"type": "api_key_created.v0"}])).await;
        let id = subscription["destinations"][0]["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let one = format!("/event_destinations/{id}");
        let post = async |path: &str, body: Value| {
            let path = format!("{one}{path}");
            let made = culvert.call(Method::POST, &path, Some(body)).await;
            assert_eq!(made.status, 200, "{path}");
            made.body
        };
        let get = async |path: &str| {
            let path = format!("{one}{path}");
            culvert.call(Method::GET, &path, None).await.body
        };
        eventually("the destination is active", async || {
            post("/test", json!({})).await["delivered"] == true
        })
        .await;
        assert_eq!(hook.wait_for("test", 1).await[0]["object"], json!({}));
        hook.answer_with(StatusCode::UNPROCESSABLE_ENTITY);
        let tested = post("/test", json!({})).await;
        assert_eq!(
            tested,
            json!({"delivered": false, "error": "permanent 422: received"})
        );
        assert_eq!(get("/health").await["state"], "ok", "a test is no delivery");

        let key = culvert.create("api_keys", json!({})).await;
        let mut letters = Value::Null;
        eventually("a dead letter", async || {
            letters = get("/dead_letters").await;
            letters["dead_letters"] != json!([])
        })
        .await;
        let letter = &letters["dead_letters"][0];
        assert_eq!(letter["events"][0]["object"]["id"], key["id"]);
        assert_eq!(letter["class"], "audit");
        assert_eq!(
            letter["reason"],
            json!({"class": "permanent", "code": "422", "text": "received"})
        );
        assert_eq!(letters["next_page_uri"], Value::Null);
        let page = get("/dead_letters?limit=1").await;
        let next = page["next_page_uri"].as_str().unwrap();
        assert!(next.ends_with(&format!(
            "{one}/dead_letters?before_id={}&limit=1",
            letter["id"].as_str().unwrap()
        )));
        let health = get("/health").await;
        assert_eq!(health["state"], "retrying");
        assert_eq!(health["last_error"]["code"], "422");
        let metrics = raw(
            culvert.metrics,
            b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n",
        )
        .await
        .text;
        assert!(
            metrics.contains(&format!(
                "culvert_destination_state{{destination=\"{id}\"}} 1"
            )),
            "{metrics}"
        );

        hook.answer_with(StatusCode::OK);
        let of_another = json!({"ids": ["999999"]});
        assert_eq!(
            post("/dead_letters/redrive", of_another).await["redriven"],
            0
        );
        let before = hook.received().len();
        assert_eq!(
            post("/dead_letters/redrive", json!({})).await["redriven"],
            1
        );
        eventually("the event again", async || hook.received().len() > before).await;
        let again = hook.received().pop().unwrap().json();
        assert_eq!(again[0]["event_id"], letter["events"][0]["event_id"]);
        eventually("all is well", async || {
            get("/health").await["state"] == "ok"
        })
        .await;
        assert_eq!(get("/dead_letters").await["dead_letters"], json!([]));
        culvert.stop().await;
    }
}

/// Rejected credentials cause no audit event. A PATCH with valid credentials resumes delivery immediately.
#[tokio::test(flavor = "multi_thread")]
async fn a_destination_with_a_refused_key_recovers_by_a_patch() {
    let datadog = Receiver::start().await;
    let url = format!("http://{}", datadog.address);
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.destinations.datadog.base_url = url;
    })
    .await;
    datadog.answer_with(StatusCode::ACCEPTED);
    datadog.refuse("dd-api-key", "dd-wr0ng-key");
    let target = |key: &str| json!({"datadog": {"api_key": key, "service": "edge"}});
    let body = json!({"format": "json", "target": target("dd-wr0ng-key")});
    let made = culvert.create("event_destinations", body).await;
    let sources = json!([{"type": "api_key_created.v0"}]);
    let body = json!({"destination_ids": [made["id"]], "sources": sources});
    culvert.create("event_subscriptions", body).await;
    culvert.create("api_keys", json!({})).await;
    let one = format!("/event_destinations/{}", made["id"].as_str().unwrap());
    let mut health = Value::Null;
    eventually("the destination is unhealthy", async || {
        let path = format!("{one}/health");
        health = culvert.call(Method::GET, &path, None).await.body;
        health["state"] == "unhealthy"
    })
    .await;
    assert_eq!(
        health["last_error"],
        json!({"class": "auth", "code": "403", "text": "received"})
    );
    assert_eq!(health["queued"], 1);

    let body = json!({"target": target("dd-g00d-key")});
    let patched = culvert.call(Method::PATCH, &one, Some(body)).await;
    assert_eq!(patched.body["target"]["datadog"]["api_key"], Value::Null);
    let good = || {
        let requests = datadog.received().into_iter();
        let mut good = requests.filter(|request| request.headers["dd-api-key"] == "dd-g00d-key");
        good.next()
    };
    eventually("the event with the good key", async || good().is_some()).await;
    let request = good().unwrap();
    assert_eq!(request.path, "/api/v2/logs");
    assert_eq!(request.headers["content-encoding"], "gzip");
    eventually("all is well", async || {
        let path = format!("{one}/health");
        let health = culvert.call(Method::GET, &path, None).await.body;
        health["state"] == "ok" && health["queued"] == 0 && health["sent"] == 1
    })
    .await;
    culvert.stop().await;
}

/// The published library of the scheme accepts every request and rejects a modified one, and that of CloudEvents reads them.
#[tokio::test(flavor = "multi_thread")]
async fn webhooks_verify_by_the_published_library() {
    let Some(mut library) = Partner::start("webhooks.py") else {
        return;
    };
    let culvert = Harness::start(&Backend::Sqlite).await;
    for (mode, encoding) in [
        ("single", "envelope"),
        ("single", "cloudevents"),
        ("batch", "envelope"),
        ("batch", "cloudevents"),
    ] {
        let hook = Receiver::start().await;
        let url = format!("http://{}/hook", hook.address);
        let target = json!({"webhook": {"url": url, "mode": mode, "encoding": encoding}});
        let body = json!({"format": "json", "target": target});
        let made = culvert.create("event_destinations", body).await;
        let secret = &made["target"]["webhook"]["secrets"][0];
        let sources = json!([{"type": "api_key_created.v0"}]);
        let body = json!({"destination_ids": [made["id"]], "sources": sources});
        culvert.create("event_subscriptions", body).await;
        culvert
            .create("api_keys", json!({"description": "é"}))
            .await;
        eventually("a request", async || !hook.received().is_empty()).await;
        let request = hook.received().remove(0);
        let headers: serde_json::Map<String, Value> = request
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().into()))
            .collect();
        let text = String::from_utf8(request.body.to_vec()).unwrap();
        let question = |body: &str| json!({"secret": secret, "headers": headers, "body": body});
        let events = usize::from(encoding == "cloudevents");
        let read = json!(format!("ok: {events} CloudEvents"));
        assert_eq!(
            library.ask(&question(&text)).await,
            read,
            "{mode} {encoding}"
        );
        let touched = text.replacen("api_key_created", "api_key_deleted", 1);
        let said = library.ask(&question(&touched)).await;
        assert!(
            !said.as_str().unwrap().starts_with("ok"),
            "{mode} {encoding}: {said}"
        );
    }
    culvert.stop().await;
}
