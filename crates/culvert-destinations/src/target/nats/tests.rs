use async_nats::jetstream::stream;
use culvert_base::OsEntropy;
use serde_json::json;

use super::*;
use crate::tests::fake::nats::NatsServer as Server;
use crate::tests::fake::{
    DESTINATION_IDS, Named, assert_connections_have_a_life, batch, certificate, envelope, failure,
    local_settings, pair, target,
};

/// The server as a destination, and as its consumers see it.
trait Stream {
    fn config(&self, prefix: &str) -> Value;
    async fn jetstream(&self) -> jetstream::Context;
}

impl Stream for Server {
    fn config(&self, prefix: &str) -> Value {
        json!({
            "urls": [format!("nats://127.0.0.1:{}", self.port)],
            "tls": false,
            "subject_prefix": prefix,
            "credentials": {"user": "culvert", "password": "n4ts-s3cr3t"},
        })
    }

    async fn jetstream(&self) -> jetstream::Context {
        let options =
            ConnectOptions::with_user_and_password("culvert".into(), "n4ts-s3cr3t".into());
        let address = format!("nats://127.0.0.1:{}", self.port);
        jetstream::new(options.connect(address).await.unwrap())
    }
}

#[tokio::test]
async fn events_are_stored_once_by_the_stream() {
    let Some(server) = Server::start(&[]).await else {
        return;
    };
    let context = server.jetstream().await;
    let mut stream = context
        .create_stream(stream::Config {
            name: "EVENTS".into(),
            subjects: vec!["a.events.>".into()],
            ..stream::Config::default()
        })
        .await
        .unwrap();
    let nats = target(&TYPE, &server.config("a.events"), |_| {});
    let [one, two] = pair();
    for class in [BatchClass::Audit, BatchClass::Traffic] {
        // The second round has the same message ids.
        let sent = nats.send(&batch(class, &[&one, &two])).await;
        assert_eq!(sent, Verdict::Delivered);
    }
    assert_eq!(stream.info().await.unwrap().state.messages, 2);
    let message = stream.get_raw_message(1).await.unwrap();
    assert_eq!(message.subject.as_str(), "a.events.ac_1.test");
    assert_eq!(message.payload, one.as_bytes());
    let header = |name: &str| {
        message
            .headers
            .get(name)
            .map(|value| value.as_str().to_owned())
    };
    assert_eq!(header("Nats-Msg-Id").as_deref(), Some("ev_1:esb_1"));
    assert_eq!(header("content-type").as_deref(), Some("application/json"));

    let many: Vec<String> = (10..1010)
        .map(|id| envelope(id, "2027-01-15T08:00:00.000Z"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let sent = nats.send(&batch(BatchClass::Traffic, &many)).await;
    assert_eq!(sent, Verdict::Delivered);
    assert_eq!(stream.info().await.unwrap().state.messages, 1002);
    let last = stream.get_raw_message(1002).await.unwrap();
    assert!(
        last.payload.starts_with(br#"{"event_id":"ev_1009""#),
        "in order"
    );
}

#[tokio::test]
async fn errors_of_the_server_are_classified() {
    let Some(server) = Server::start(&[]).await else {
        return;
    };
    let [one, two] = pair();
    let batch = batch(BatchClass::Traffic, &[&one, &two]);
    let send = async |config: Value| target(&TYPE, &config, |_| {}).send(&batch).await;
    let class_of_first = |verdict: Verdict| match verdict {
        Verdict::Failed(failure) => (failure.class, failure.code),
        Verdict::Partial(outcomes) => match &outcomes[0] {
            Outcome::Failed(failure) => (failure.class, failure.code.clone()),
            other => panic!("not failed: {other:?}"),
        },
        Verdict::Delivered => panic!("delivered"),
    };
    let nowhere = send(server.config("no.stream")).await;
    assert_eq!(
        class_of_first(nowhere),
        (FailureClass::Config, "503".into())
    );

    let context = server.jetstream().await;
    let config = stream::Config {
        name: "OTHER".into(),
        subjects: vec!["b.events.>".into()],
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
    let mut config = server.config("b.events");
    config["stream"] = "EVENTS".into();
    assert_eq!(
        class_of_first(send(config).await),
        (FailureClass::Config, "10060".into())
    );

    let mut config = server.config("b.events");
    config["credentials"]["password"] = "wrong-s3cr3t".into();
    let refused = failure(send(config).await);
    assert_eq!(refused.class, FailureClass::Auth, "{refused}");
    assert!(!refused.text.contains("s3cr3t"));
}

/// The library connects to an address, but the certificate must be valid for the host name.
#[tokio::test]
async fn certificates_are_verified_for_the_name_in_the_url() {
    let folder = tempfile::tempdir().unwrap();
    certificate(&folder, "nats.example");
    let at = |name: &str| folder.path().join(name);
    let (cert, key) = (
        at("cert.pem").display().to_string(),
        at("key.pem").display().to_string(),
    );
    let tls = ["--tls", "--tlscert", &cert, "--tlskey", &key];
    let Some(server) = Server::start(&tls).await else {
        return;
    };
    let mut settings = local_settings();
    settings.extra_ca_file = Some(at("cert.pem"));
    let context = Named::context(&settings);
    let [one, two] = pair();
    let batch = batch(BatchClass::Audit, &[&one, &two]);
    for (host, code) in [
        ("nats.example", "503"),
        ("other.example", "connection"),
        ("gone.example", "connection"),
    ] {
        let mut config = server.config("c.events");
        config["urls"] = json!([format!("tls://{host}:{}", server.port)]);
        config["tls"] = true.into();
        let stored = check(&config, &settings, &OsEntropy).unwrap().stored;
        let nats = open(&stored, &context, DESTINATION_IDS).unwrap();
        // With the right certificate the sign-in succeeds but there is no stream. With a
        // certificate for another name, the connection fails.
        let failure = match nats.send(&batch).await {
            Verdict::Failed(failure) => failure,
            other => panic!("{other:?}"),
        };
        assert_eq!(failure.code, code, "{host}: {failure}");
    }
}

#[test]
fn configurations_are_validated_and_updates_keep_secrets() {
    let good = json!({"urls": ["nats://nats.example"]});
    let stored = check(&good, &TargetSettings::default(), &OsEntropy)
        .unwrap()
        .stored;
    assert_eq!(stored["subject_prefix"], "culvert.events");
    for (field, value, says) in [
        ("urls", json!([]), "1 to 16"),
        ("urls", json!(["nats://127.0.0.1:4222"]), "loopback"),
        ("urls", json!(["http://nats.example"]), "must start with"),
        (
            "urls",
            json!(["nats://u:p@nats.example"]),
            "user or password",
        ),
        ("urls", json!(["nats://nats.example/x"]), "path"),
        ("tls", json!(false), "`tls` must be on"),
        ("stream", json!("a b"), "`stream`"),
        ("subject_prefix", json!("a..b"), "`subject_prefix`"),
        ("subject_prefix", json!("a.>"), "`subject_prefix`"),
        (
            "credentials",
            json!({"token": "t", "user": "u", "password": "p"}),
            "one of",
        ),
        ("credentials", json!({"user": "u"}), "one of"),
        ("credentials", json!({"nkey_seed": "hidden"}), "one of"),
        ("credentials", json!({"creds": "hidden"}), "one of"),
    ] {
        let mut given = good.clone();
        given[field] = value;
        let refusal = check(&given, &TargetSettings::default(), &OsEntropy).unwrap_err();
        assert!(
            refusal.message.contains(says),
            "{given}: {}",
            refusal.message
        );
        assert!(!refusal.message.contains("hidden"));
    }
    let given = json!({"urls": ["nats://nats.example"], "credentials": {"user": "u", "password": "hidden"}});
    let stored = check(&given, &TargetSettings::default(), &OsEntropy)
        .unwrap()
        .stored;
    let shown = (TYPE.redact)(&stored);
    assert!(!shown.to_string().contains("hidden"));
    assert_eq!((TYPE.merge)(&stored, shown), stored);
    let without = json!({"urls": ["nats://nats.example"], "credentials": {"user": "u"}});
    assert_eq!(
        (TYPE.merge)(&stored, without)["credentials"]["password"],
        "hidden"
    );
    let token = json!({"credentials": {"token": "t"}});
    assert_eq!((TYPE.merge)(&stored, token.clone()), token);
}

#[tokio::test]
async fn a_busy_connection_is_replaced() {
    let Some(server) = Server::start(&[]).await else {
        return;
    };
    let context = server.jetstream().await;
    let stream = stream::Config {
        name: "EVENTS".into(),
        subjects: vec!["a.events.>".into()],
        ..stream::Config::default()
    };
    let mut stream = context.create_stream(stream).await.unwrap();
    let mut config = server.config("a.events");
    config["urls"] = json!([format!("nats://broker.example:{}", server.port)]);
    assert_connections_have_a_life(&TYPE, &config).await;
    assert_eq!(stream.info().await.unwrap().state.messages, 4);
}
