use culvert_base::OsEntropy;
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;
use crate::client::amqp::tests::{Admin, broker};
use crate::tests::fake::{
    DESTINATION_IDS, Named, assert_connections_have_a_life, batch, envelope, failure,
    local_settings, pair, target,
};

fn name() -> String {
    let entropy: &dyn Entropy = &OsEntropy;
    let letters = entropy.text(b"abcdefghijklmnopqrstuvwxyz", 12);
    format!("culvert-target-{letters}")
}

fn config(more: Value) -> Value {
    let mut config = json!({
        "urls": [format!("amqp://{}", broker())],
        "tls": false,
        "user": "guest",
        "password": "guest",
    });
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

fn first_failure(verdict: Verdict) -> (FailureClass, String) {
    match verdict {
        Verdict::Failed(failure) => (failure.class, failure.code),
        Verdict::Partial(outcomes) => match &outcomes[0] {
            Outcome::Failed(failure) => (failure.class, failure.code.clone()),
            other => panic!("not failed: {other:?}"),
        },
        Verdict::Delivered => panic!("delivered"),
    }
}

#[tokio::test]
async fn events_are_published_in_order_with_their_kind_as_routing_key() {
    let Some(mut admin) = Admin::connect().await else {
        return;
    };
    let queue = name();
    let prefix = name();
    admin
        .make_queue(&queue, Some(("amq.direct", &prefix)))
        .await;
    let rabbitmq = target(
        &TYPE,
        &config(json!({"exchange": "amq.direct", "routing_key": prefix})),
        |_| {},
    );
    let [one, two] = pair();
    let sent = rabbitmq
        .send(&batch(BatchClass::Audit, &[&one, &two]))
        .await;
    assert_eq!(sent, Verdict::Delivered);
    let many: Vec<String> = (10..1010)
        .map(|id| envelope(id, "2027-01-15T08:00:00.000Z"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    // A message that is longer than a frame.
    let long = one.replace("{}", &format!("{{\"text\":\"{}\"}}", "x".repeat(200 << 10)));
    for events in [&many[..], &[&long]] {
        let sent = rabbitmq.send(&batch(BatchClass::Traffic, events)).await;
        assert_eq!(sent, Verdict::Delivered);
    }
    let got = admin.drain(&queue).await;
    assert_eq!(got.len(), 1003);
    assert_eq!(got[0].id, "ev_1:esb_1");
    assert_eq!(got[0].body, one.as_bytes());
    assert_eq!(got[1].id, "ev_2:esb_1");
    assert_eq!(got[1001].id, "ev_1009:esb_1", "in order");
    assert_eq!(got[1002].body, long.as_bytes());
    admin.remove_queue(&queue).await;

    // By default, the routing key contains the account and the event type.
    admin
        .make_queue(&queue, Some(("amq.topic", "culvert.events.ac_1.#")))
        .await;
    let rabbitmq = target(&TYPE, &config(json!({})), |_| {});
    let sent = rabbitmq.send(&batch(BatchClass::Audit, &[&one])).await;
    assert_eq!(sent, Verdict::Delivered);
    let got = admin.drain(&queue).await;
    assert_eq!(got[0].routing_key, "culvert.events.ac_1.test");
    admin.remove_queue(&queue).await;
}

#[tokio::test]
async fn errors_of_the_broker_are_classified() {
    if Admin::connect().await.is_none() {
        return;
    }
    let [one, two] = pair();
    let batch = batch(BatchClass::Traffic, &[&one, &two]);
    let send = async |more: Value| target(&TYPE, &config(more), |_| {}).send(&batch).await;
    let nobody = send(json!({"exchange": "", "routing_key": name()})).await;
    assert_eq!(first_failure(nobody), (FailureClass::Config, "312".into()));
    let missing = send(json!({"exchange": name()})).await;
    assert_eq!(first_failure(missing), (FailureClass::Config, "404".into()));
    let missing = failure(send(json!({"virtual_host": name()})).await);
    assert_eq!(missing.class, FailureClass::Config, "{missing}");
    let refused = failure(send(json!({"password": "wrong-s3cr3t"})).await);
    assert_eq!(
        (refused.class, refused.code.as_str()),
        (FailureClass::Auth, "403")
    );
    assert!(!refused.text.contains("s3cr3t"), "{refused}");
    let away = failure(send(json!({"urls": ["amqp://127.0.0.1:1"]})).await);
    assert_eq!(away.class, FailureClass::Retryable, "{away}");
}

#[tokio::test]
async fn a_broken_connection_is_reopened() {
    let Some(mut admin) = Admin::connect().await else {
        return;
    };
    let queue = name();
    admin.make_queue(&queue, None).await;
    // A proxy before the broker, whose connections the test can close.
    let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = front.local_addr().unwrap();
    let config = config(json!({
        "urls": [format!("amqp://{addr}")],
        "exchange": "",
        "routing_key": queue,
    }));
    let rabbitmq = target(&TYPE, &config, |_| {});
    let [one, two] = pair();
    for event in [&one, &two] {
        let mut link = JoinSet::new();
        let accept = async {
            let (mut near, _) = front.accept().await.unwrap();
            let mut far = TcpStream::connect(broker()).await.unwrap();
            link.spawn(async move { copy_bidirectional(&mut near, &mut far).await.map(drop) });
        };
        let batch = batch(BatchClass::Audit, &[event]);
        let (sent, ()) = tokio::join!(rabbitmq.send(&batch), accept);
        assert_eq!(sent, Verdict::Delivered);
        // On the connection that was kept open.
        assert_eq!(rabbitmq.send(&batch).await, Verdict::Delivered);
        link.shutdown().await;
        let cut = failure(rabbitmq.send(&batch).await);
        assert_eq!(cut.class, FailureClass::Unknown, "{cut}");
    }
    assert_eq!(admin.drain(&queue).await.len(), 4);
    admin.remove_queue(&queue).await;
}

/// The broker's certificate must be that of the host in the URL.
#[tokio::test]
async fn tls_verifies_the_name_in_the_url() {
    if Admin::connect().await.is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let front = crate::tests::fake::tls_front(&folder, "rabbit.example", broker()).await;
    let mut settings = local_settings();
    settings.extra_ca_file = Some(folder.path().join("cert.pem"));
    let context = Named::context(&settings);
    let [one, _] = pair();
    let batch = batch(BatchClass::Audit, &[&one]);
    for (host, code) in [("rabbit.example", "312"), ("other.example", "tls")] {
        let config = config(json!({
            "urls": [format!("amqps://{host}:{}", front.port)],
            "tls": true,
            "exchange": "",
            "routing_key": name(),
        }));
        let stored = check(&config, &settings, &OsEntropy).unwrap().stored;
        let rabbitmq = open(&stored, &context, DESTINATION_IDS).unwrap();
        // The sign-in succeeds, but there is no queue.
        let refused = first_failure(rabbitmq.send(&batch).await);
        assert_eq!(refused, (FailureClass::Config, code.into()), "{host}");
    }
}

#[test]
fn configurations_are_validated_and_updates_keep_secrets() {
    let good = json!({"urls": ["amqps://rabbit.example"], "user": "u", "password": "hidden"});
    let settings = TargetSettings::default();
    let stored = check(&good, &settings, &OsEntropy).unwrap().stored;
    assert_eq!(stored["exchange"], "amq.topic");
    assert_eq!(stored["virtual_host"], "/");
    for (field, value, says) in [
        ("urls", json!([]), "1 to 16"),
        ("urls", json!(["amqps://127.0.0.1"]), "loopback"),
        ("urls", json!(["amqp://rabbit.example"]), "must start with"),
        (
            "urls",
            json!(["amqps://u:p@rabbit.example"]),
            "user or password",
        ),
        ("urls", json!(["amqps://rabbit.example/vhost"]), "path"),
        ("tls", json!(false), "`tls` must be on"),
        ("user", json!(""), "`user`"),
        ("routing_key", json!("x".repeat(256)), "`routing_key`"),
        ("exchange", json!(""), "must name a queue"),
        ("queue", json!("x"), "unknown field"),
    ] {
        let mut given = good.clone();
        given[field] = value;
        if field == "tls" {
            given["urls"] = json!(["amqp://rabbit.example"]);
        }
        let refusal = check(&given, &settings, &OsEntropy).unwrap_err();
        assert!(
            refusal.message.contains(says),
            "{given}: {}",
            refusal.message
        );
        assert!(!refusal.message.contains("hidden"));
    }
    let shown = (TYPE.redact)(&stored);
    assert_eq!(shown["password"], Value::Null);
    assert_eq!((TYPE.merge)(&stored, shown), stored);
}

#[tokio::test]
async fn a_busy_connection_is_replaced() {
    let Some(mut admin) = Admin::connect().await else {
        return;
    };
    let queue = name();
    admin.make_queue(&queue, None).await;
    let url = format!("amqp://{}", broker()).replace("127.0.0.1", "broker.example");
    let config = config(json!({"urls": [url], "exchange": "", "routing_key": queue}));
    assert_connections_have_a_life(&TYPE, &config).await;
    assert_eq!(admin.drain(&queue).await.len(), 4);
    admin.remove_queue(&queue).await;
}
