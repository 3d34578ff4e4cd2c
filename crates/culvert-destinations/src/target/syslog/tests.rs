use culvert_base::OsEntropy;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::tests::fake::rsyslog::Rsyslog;
use crate::tests::fake::{
    DESTINATION_IDS, Named, assert_refused, batch, envelope, failure, local_settings, pair, target,
};

#[tokio::test]
async fn rsyslog_parses_every_part_of_messages_over_tls() {
    let Some(server) = Rsyslog::start(true).await else {
        return;
    };
    let mut settings = local_settings();
    settings.extra_ca_file = Some(server.certificate());
    let context = Named::context(&settings);
    let opened = |host: &str, more: Value| {
        let mut config = json!({"url": format!("tls://{host}:{}", server.port)});
        for (name, value) in more.as_object().unwrap() {
            config[name] = value.clone();
        }
        let stored = check(&config, &settings, &OsEntropy).unwrap().stored;
        open(&stored, &context, DESTINATION_IDS).unwrap()
    };
    let event =
        envelope(1, "2027-01-15T08:00:00.123Z").replace("\"test\"", "\"sign_in_failed.v0\"");
    // Longer than many receivers take, with every kind of character, and then another in the same batch.
    let text = json!({"text": format!("é\n\"\\]{}", "x".repeat(200 << 10))});
    let long = envelope(2, "2027-01-15T08:00:00.000Z").replace("{}", &text.to_string());
    let syslog = opened("syslog.example", json!({}));
    let sent = syslog
        .send(&batch(BatchClass::Audit, &[&event, &long]))
        .await;
    assert_eq!(sent, Verdict::Delivered);
    let more = json!({"app_name": "edge", "facility": 23, "enterprise_id": 99});
    let other = opened("syslog.example", more);
    for id in 3..5 {
        let event = envelope(id, "2027-01-15T08:00:00.000Z");
        let sent = other.send(&batch(BatchClass::Traffic, &[&event])).await;
        assert_eq!(sent, Verdict::Delivered);
    }
    let got = server.received(4).await;
    let parsed = |value: &Value| serde_json::from_str::<Value>(value.as_str().unwrap()).unwrap();
    let data = json!({"culvert@32473": {
        "event_id": "ev_1", "event_type": "sign_in_failed.v0", "subscription_id": "esb_1",
    }});
    assert_eq!(parsed(&got[0]["data"]), data);
    assert_eq!(got[0]["message"], event);
    for (name, value) in [
        ("facility", "13"),
        ("severity", "4"),
        ("time", "2027-01-15T08:00:00.123Z"),
        ("host", "node-1"),
        ("app", "culvert"),
        ("msgid", "sign_in_failed.v0"),
    ] {
        assert_eq!(got[0][name], value, "{name}");
    }
    assert_eq!(got[1]["message"], long);
    assert_eq!(
        (&got[2]["facility"], &got[2]["app"]),
        (&json!("23"), &json!("edge"))
    );
    assert!(got[3]["data"].as_str().unwrap().contains("culvert@99"));
    // The certificate is for another name.
    let refused = failure(
        opened("other.example", json!({}))
            .send(&batch(BatchClass::Audit, &[&event]))
            .await,
    );
    assert_eq!(
        (refused.class, &*refused.code),
        (FailureClass::Config, "tls")
    );
}

#[tokio::test]
async fn a_broken_connection_is_replaced_and_a_reset_one_is_not_delivered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let syslog = target(&TYPE, &json!({"url": url}), |_| {});
    let [one, _] = pair();
    let traffic = batch(BatchClass::Traffic, &[&one]);
    assert_eq!(syslog.send(&traffic).await, Verdict::Delivered);
    let (mut first, _) = listener.accept().await.unwrap();
    assert_eq!(syslog.send(&traffic).await, Verdict::Delivered);
    let mut frames = vec![0; 2 * syslog_frame(&one).len()];
    first.read_exact(&mut frames).await.unwrap();
    assert_eq!(frames, syslog_frame(&one).repeat(2).into_bytes());
    // The receiver closes the idle connection; the next batch goes over a new one.
    drop(first);
    let mut sent = Vec::new();
    while sent.len() < 100 {
        sent.push(syslog.send(&traffic).await);
        let accepted = tokio::time::timeout(Duration::from_millis(5), listener.accept()).await;
        if let Ok(accepted) = accepted {
            let (mut second, _) = accepted.unwrap();
            let mut frame = vec![0; syslog_frame(&one).len()];
            second.read_exact(&mut frame).await.unwrap();
            assert_eq!(sent.pop(), Some(Verdict::Delivered));
            break;
        }
    }
    assert!(sent.len() < 100, "no new connection");

    // Audit events: a receiver that has read everything and closes has taken them; one that resets or does not close has not.
    let audit = batch(BatchClass::Audit, &[&one]);
    for (reads, closes) in [(true, true), (false, true), (false, false)] {
        let receiving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).await.unwrap();
            if reads {
                stream.read_to_end(&mut Vec::new()).await.unwrap();
            }
            // With unread bytes, the system resets a connection that is closed.
            (!closes).then_some(stream)
        };
        let (sent, _kept) = tokio::join!(syslog.send(&audit), receiving);
        match reads {
            true => assert_eq!(sent, Verdict::Delivered),
            false => assert_eq!(failure(sent).class, FailureClass::Unknown),
        }
    }
    drop(listener);
    let away = failure(syslog.send(&audit).await);
    assert_eq!(away.class, FailureClass::Retryable);
}

#[tokio::test]
async fn an_end_that_comes_before_ours_does_not_count_as_delivered() {
    // The receiver only closes its own side.
    let (ours, mut theirs) = tokio::io::duplex(64);
    theirs.shutdown().await.unwrap();
    let mut ours: Box<dyn Duplex> = Box::new(ours);
    assert_eq!(
        close(&mut ours).await.unwrap_err().class,
        FailureClass::Unknown
    );
    // It closes both.
    let (ours, theirs) = tokio::io::duplex(64);
    drop(theirs);
    let mut ours: Box<dyn Duplex> = Box::new(ours);
    assert_eq!(
        close(&mut ours).await.unwrap_err().class,
        FailureClass::Unknown
    );
    // It reads our end, and then closes.
    let (ours, mut theirs) = tokio::io::duplex(64);
    let mut ours: Box<dyn Duplex> = Box::new(ours);
    let reading = async move { theirs.read_to_end(&mut Vec::new()).await.unwrap() };
    let (closed, _) = tokio::join!(close(&mut ours), reading);
    assert_eq!(closed, Ok(()));
}

/// A test event of traffic as a frame.
fn syslog_frame(event: &str) -> String {
    let message = format!(
        "<134>1 2027-01-15T08:00:00.000Z node-1 culvert - test \
         [culvert@32473 event_id=\"ev_1\" event_type=\"test\" subscription_id=\"esb_1\"] {event}"
    );
    format!("{} {message}", message.len())
}

#[test]
fn invalid_fields_are_refused() {
    assert_refused(
        &TYPE,
        &json!({"url": "tls://syslog.example"}),
        &[
            json!({"url": "syslog.example:6514"}),
            json!({"url": "udp://syslog.example"}),
            json!({"url": "tls://syslog.example/path"}),
            json!({"url": "tls://user:s3cr3t@syslog.example"}),
            json!({"app_name": "a b"}),
            json!({"app_name": "x".repeat(49)}),
            json!({"facility": 24}),
            json!({"facility": -1}),
            json!({"password": "s3cr3t"}),
        ],
    );
    // Plain connections need the setting.
    let config = json!({"url": "tcp://syslog.example"});
    let refusal = check(&config, &TargetSettings::default(), &OsEntropy).unwrap_err();
    assert!(
        refusal.message.contains("allow_plain_http"),
        "{}",
        refusal.message
    );
}

#[test]
fn severities_follow_the_table_of_kinds() {
    for (kind, expected) in [
        ("commits_lost.v0", 3),
        ("sign_in_failed.v0", 4),
        ("api_key_created.v0", 5),
        ("http_request_complete.v0", 6),
        ("unheard_of", 6),
    ] {
        assert_eq!(severity(kind), expected, "{kind}");
    }
}
