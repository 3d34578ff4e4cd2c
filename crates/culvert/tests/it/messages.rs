//! Mail, chat and paging: mail to a server of others (aiosmtpd), whose mails Python's parser reads, and the requests to
//! Slack, Discord and PagerDuty, which their published libraries read. No receiver of these three can run here.

use std::sync::{Arc, Mutex};

use culvert_base::{ManualClock, OsEntropy, Timestamp};
use culvert_destinations::TYPES;
use culvert_store::BatchClass;
use culvert_target::batch::{Batch, OpenBatch};
use culvert_target::failure::FailureClass;
use culvert_target::guard::Rules;
use culvert_target::{DestinationIds, Target, TargetContext, TargetSettings, Verdict};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::destinations::Partner;

const SUITE: &str = "messages";
/// What a stranger writes into a name.
const HOSTILE: &str = "@everyone <!channel> <@U1> [x](https://evil.example) **b**\r\nBcc: evil@evil.example\r\n\r\n.\r\nQUIT";

fn settings() -> TargetSettings {
    TargetSettings {
        rules: Rules {
            allow_networks: vec!["127.0.0.1/32".parse().unwrap(), "::1/128".parse().unwrap()],
            allow_plain_http: true,
            deny_ports: Vec::new(),
        },
        public_base: "https://culvert.example".into(),
        node: "node-1".into(),
        ..TargetSettings::default()
    }
}

fn opened(name: &str, config: &Value, settings: &TargetSettings) -> Arc<dyn Target> {
    let ty = TYPES.find(name).unwrap();
    let stored = (ty.check)(config, settings, &OsEntropy).unwrap().stored;
    let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
    let context = TargetContext::new(settings.clone(), Arc::new(clock), Arc::new(OsEntropy));
    let ids = DestinationIds {
        destination: "ed_1",
        account: "ac_1",
    };
    (ty.open)(&stored, &context, ids).unwrap()
}

fn event(id: u32, kind: &str, object: &Value) -> String {
    format!(
        r#"{{"event_id":"ev_{id}","event_type":"{kind}","event_timestamp":"2027-01-15T08:00:00.000Z","account_id":"ac_1","principal":{{"id":"usr_1","subject":"anna@example.com","source":"API"}},"object":{object}}}"#
    )
}

/// `alert_fired`, `alert_resolved`, and an event with hostile texts.
fn events() -> [String; 3] {
    let alert = |state: &str| {
        json!({
            "id": "alr_1", "rule_id": "alrule_1", "rule_name": HOSTILE, "condition": "error_rate",
            "severity": "warning", "state": state, "summary": "25 % of the requests of Müller & Söhne failed",
            "subject": {"kind": "endpoint", "id": "ep_1", "name": HOSTILE}, "value": 0.25, "threshold": 0.1,
            "fired_at": "2027-01-15T08:00:00Z", "resolved_at": null, "repetition": 0,
        })
    };
    [
        event(1, "alert_fired.v0", &alert("firing")),
        event(2, "alert_resolved.v0", &alert("resolved")),
        event(
            3,
            "api_key_created.v0",
            &json!({"id": HOSTILE, "name": HOSTILE}),
        ),
    ]
}

fn batch(events: &[&str]) -> Batch {
    let mut open = OpenBatch::default();
    for event in events {
        open.push(&"esb_1".into(), event.as_bytes());
    }
    Batch::read("ed_1".into(), BatchClass::Audit, open.finish().stored).unwrap()
}

fn class(verdict: Verdict) -> (FailureClass, String) {
    match verdict {
        Verdict::Failed(failure) => (failure.class, failure.code),
        other => panic!("not failed: {other:?}"),
    }
}

/// A mail server with a certificate for this machine.
struct MailServer {
    partner: Partner,
    ports: Value,
    folder: tempfile::TempDir,
}

impl MailServer {
    async fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (certificate, key) = (path("cert.pem"), path("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let mut partner = Partner::start_in(SUITE, "mail.py", &[&certificate, &key])?;
        let ports = partner.said().await;
        Some(Self {
            partner,
            ports,
            folder,
        })
    }

    fn smtp(&self, security: &str, more: Value) -> Arc<dyn Target> {
        let mut config = json!({
            "host": "127.0.0.1", "port": self.ports[security], "security": security, "from": "culvert@example.com",
            "to": ["ops@example.com", "anna@example.com"],
        });
        if security != "none" {
            config["username"] = "culvert".into();
            config["password"] = "correct horse".into();
        }
        for (name, value) in more.as_object().unwrap() {
            config[name] = value.clone();
        }
        let settings = TargetSettings {
            extra_ca_file: Some(self.folder.path().join("cert.pem")),
            ..settings()
        };
        opened("smtp", &config, &settings)
    }
}

/// With STARTTLS, TLS and neither, the mails are whole, and no text of an event is a header, a command or an end of the mail.
#[tokio::test(flavor = "multi_thread")]
async fn mail_arrives_whole_with_and_without_tls() {
    let Some(mut server) = MailServer::start().await else {
        return;
    };
    let [fired, resolved, hostile] = events();
    // The server writes the mails to a pipe that is read after all of them.
    let other = event(4, "test", &json!({"text": "x".repeat(5_000)}));
    let mut ids = Vec::new();
    for security in ["starttls", "tls", "none"] {
        let smtp = server.smtp(security, json!({"subject": "Läden"}));
        let sent = smtp
            .send(&batch(&[&hostile, &fired, &other, &resolved]))
            .await;
        assert_eq!(sent, Verdict::Delivered, "{security}");
        let mut mails = Vec::new();
        for _ in 0..3 {
            mails.push(server.partner.said().await);
        }
        let subjects: Vec<_> = mails
            .iter()
            .map(|mail| mail["subject"].as_str().unwrap())
            .collect();
        assert_eq!(
            subjects,
            [
                "Läden: [warning] 25 % of the requests of Müller & Söhne failed",
                "Läden: [resolved] 25 % of the requests of Müller & Söhne failed",
                "Läden: 2 events",
            ]
        );
        for mail in &mails {
            assert_eq!(mail["from"], "culvert@example.com");
            let to = json!(["ops@example.com", "anna@example.com"]);
            assert_eq!((&mail["to"], &mail["header_to"]), (&to, &to));
            let headers = json!([
                "auto-submitted",
                "content-type",
                "date",
                "from",
                "message-id",
                "mime-version",
                "subject",
                "to"
            ]);
            assert_eq!((&mail["headers"], &mail["defects"]), (&headers, &json!([])));
            assert_eq!(mail["date"], "2027-01-15T08:00:00+00:00");
            assert_eq!(mail["is_tls"], security != "none");
            assert_eq!(mail["user"].is_string(), security != "none");
            assert_eq!(mail["attached"], json!(["events.ndjson"]));
        }
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(mails[0]["lines"], json!([parsed(&fired)]));
        assert_eq!(mails[2]["lines"], json!([parsed(&hostile), parsed(&other)]));
        let text = mails[2]["text"].as_str().unwrap();
        assert!(text.contains("API key created: @everyone"), "{text}");
        assert!(
            text.contains("https://culvert.example/console/events/ev_3"),
            "{text}"
        );
        assert!(!text.contains("https://evil"), "{text}");
        let id = |mail: &Value| mail["id"].as_str().unwrap().to_owned();
        ids.push(mails.iter().map(id).collect::<Vec<_>>());
    }
    // A mail that is sent again has its identity.
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0][0], ids[0][2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_a_mail_server_have_their_class() {
    let Some(mut server) = MailServer::start().await else {
        return;
    };
    let [_, _, event] = events();
    let rejected = event.replace("@everyone", "reject-this-mail");
    let one = batch(&[&event]);
    for (security, more, expected) in [
        (
            "starttls",
            json!({"password": "wrong"}),
            (FailureClass::Auth, "535"),
        ),
        (
            "tls",
            json!({"password": "wrong"}),
            (FailureClass::Auth, "535"),
        ),
        (
            "starttls",
            json!({"username": null, "password": null}),
            (FailureClass::Auth, "530"),
        ),
        // The port without STARTTLS.
        (
            "starttls",
            json!({"port": server.ports["none"]}),
            (FailureClass::Config, "starttls"),
        ),
        (
            "none",
            json!({"to": ["a@example.com", "refused@example.com"]}),
            (FailureClass::Config, "550"),
        ),
        (
            "none",
            json!({"to": ["later@example.com", "a@example.com"]}),
            (FailureClass::Retryable, "451"),
        ),
        // A name that the certificate does not have.
        (
            "tls",
            json!({"host": "localhost"}),
            (FailureClass::Config, "tls"),
        ),
        (
            "starttls",
            json!({"host": "localhost"}),
            (FailureClass::Config, "tls"),
        ),
    ] {
        let sent = class(server.smtp(security, more.clone()).send(&one).await);
        assert_eq!((sent.0, sent.1.as_str()), expected, "{security} {more}");
    }
    let sent = server
        .smtp("none", json!({}))
        .send(&batch(&[&rejected]))
        .await;
    assert_eq!(class(sent), (FailureClass::Permanent, "554".to_owned()));
    // Nothing of all that was a mail; the next one is the first that the server has.
    let sent = server.smtp("none", json!({})).send(&one).await;
    assert_eq!(sent, Verdict::Delivered);
    let mail = server.partner.said().await;
    assert_eq!(mail["to"], json!(["ops@example.com", "anna@example.com"]));
    // A certificate that is not trusted here.
    let config = json!({
        "host": "127.0.0.1", "port": server.ports["tls"], "from": "a@example.com", "to": ["b@example.com"],
    });
    let sent = opened("smtp", &config, &settings()).send(&one).await;
    assert_eq!(class(sent), (FailureClass::Config, "tls".to_owned()));
}

/// A receiver of HTTP requests that gives the same response to each.
async fn answering(
    status: u16,
    body: &'static str,
) -> (String, Arc<Mutex<Vec<(String, Value)>>>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let own = seen.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).await.unwrap_or(0) > 0 {
                let mut length = 0;
                let mut header = String::new();
                while header != "\r\n" {
                    header.clear();
                    stream.read_line(&mut header).await.unwrap();
                    if let Some(value) = header.strip_prefix("content-length: ") {
                        length = value.trim().parse().unwrap();
                    }
                }
                let mut sent = vec![0; length];
                stream.read_exact(&mut sent).await.unwrap();
                let path = line.split(' ').nth(1).unwrap().to_owned();
                own.lock()
                    .unwrap()
                    .push((path, serde_json::from_slice(&sent).unwrap()));
                let n_bytes = body.len();
                let response =
                    format!("HTTP/1.1 {status} X\r\ncontent-length: {n_bytes}\r\n\r\n{body}");
                stream
                    .get_mut()
                    .write_all(response.as_bytes())
                    .await
                    .unwrap();
                line.clear();
            }
        }
    });
    (url, seen, tasks)
}

/// Path and body of each request that a target makes of the three events.
async fn posted(
    name: &str,
    config: impl Fn(&str) -> Value,
    status: u16,
    body: &'static str,
) -> Vec<(String, Value)> {
    let (url, seen, _tasks) = answering(status, body).await;
    let target = opened(name, &config(&url), &settings());
    let [fired, resolved, hostile] = events();
    let sent = target.send(&batch(&[&fired, &resolved, &hostile])).await;
    assert_eq!(sent, Verdict::Delivered, "{name}");
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn slacks_library_reads_every_block() {
    let Some(mut library) = Partner::start_in(SUITE, "chat.py", &[]) else {
        return;
    };
    let config = |url: &str| json!({"webhook_url": format!("{url}/services/T/B/X")});
    let requests = posted("slack", config, 200, "ok").await;
    assert_eq!(requests.len(), 3);
    for (_, body) in requests {
        let read = library.ask(&json!({"target": "slack", "body": body})).await;
        assert_eq!(
            read["types"],
            json!(["header", "section", "section", "context"])
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_for_discord_reads_the_embeds_without_markup() {
    let Some(mut library) = Partner::start_in(SUITE, "chat.py", &[]) else {
        return;
    };
    let config = |url: &str| json!({"webhook_url": format!("{url}/api/webhooks/1/X")});
    let taken = r#"{"id":"9","channel_id":"8"}"#;
    let requests = posted("discord", config, 200, taken).await;
    assert_eq!(requests.len(), 1);
    let (path, body) = &requests[0];
    assert_eq!(path, "/api/webhooks/1/X?wait=true");
    let read = library
        .ask(&json!({"target": "discord", "body": body}))
        .await;
    assert!(read["length"].as_u64().unwrap() <= 6000);
    let at = "2027-01-15T08:00:00+00:00";
    assert_eq!(read["at"], json!([at, at, at]));
    assert_eq!(read["is_escaped"], true);
    assert_eq!(body["allowed_mentions"], json!({"parse": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn pagerdutys_client_writes_the_same_events() {
    let Some(mut client) = Partner::start_in(SUITE, "chat.py", &[]) else {
        return;
    };
    let config = |url: &str| json!({"routing_key": "k".repeat(32), "url": url});
    let taken = r#"{"status":"success","message":"Event processed"}"#;
    let requests = posted("pagerduty", config, 202, taken).await;
    assert_eq!(requests.len(), 3);
    for (path, mut body) in requests {
        let theirs = client
            .ask(&json!({"target": "pagerduty", "body": body}))
            .await;
        assert_eq!(theirs["path"], path);
        // Its session adds the key, and it has no fields for the name and the page of the sender.
        let fields = body.as_object_mut().unwrap();
        for own in ["routing_key", "client", "client_url"] {
            fields.remove(own);
        }
        assert_eq!(theirs["body"], body);
    }
}
