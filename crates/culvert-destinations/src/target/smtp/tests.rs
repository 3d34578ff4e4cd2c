use culvert_base::OsEntropy;
use culvert_base::batch::BatchClass;
use culvert_target::failure::FailureClass::*;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::target::message::tests::{HOSTILE, alerts, event};
use crate::tests::fake::{assert_refused, batch, classes, failure, pair, stored_and_shown, target};

/// A server that says the next line of its script after each line of the client, and then hangs.
struct Scripted {
    port: u16,
    tasks: JoinSet<String>,
}

impl Scripted {
    /// Serves one connection for each script. The first line is the greeting.
    async fn start(scripts: Vec<Vec<&'static str>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut all = String::new();
            for script in scripts {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = BufReader::new(stream);
                let mut in_data = false;
                for line in script {
                    stream.get_mut().write_all(line.as_bytes()).await.ok();
                    let mut heard = String::new();
                    loop {
                        heard.clear();
                        if stream.read_line(&mut heard).await.unwrap_or(0) == 0 {
                            break;
                        }
                        all.push_str(&heard);
                        if !in_data || heard == ".\r\n" {
                            break;
                        }
                    }
                    in_data = line.starts_with("250") && heard == "DATA\r\n";
                }
            }
            all
        });
        Self { port, tasks }
    }

    fn smtp(&self, more: Value) -> Arc<dyn Target> {
        let mut config = json!({
            "host": "127.0.0.1", "port": self.port, "security": "none", "from": "culvert@example.com",
            "to": ["a@example.com", "b@example.com"],
        });
        for (name, value) in more.as_object().unwrap() {
            config[name] = value.clone();
        }
        target(&TYPE, &config, |_| {})
    }

    /// Everything that clients said.
    async fn heard(mut self) -> String {
        self.tasks.join_next().await.unwrap().unwrap()
    }
}

const HELLO: &str = "250-mx.example\r\n250 8BITMIME\r\n";

fn one() -> Batch {
    batch(BatchClass::Audit, &[&pair()[0]])
}

#[tokio::test]
async fn the_class_of_a_refusal_depends_on_the_command() {
    const OK: &str = "250 ok\r\n";
    const GO: &str = "354 go\r\n";
    let rows: [(&[&str], FailureClass, &str); 12] = [
        (&["421 busy\r\n"], Retryable, "421"),
        (&["554 no service\r\n"], Config, "554"),
        (
            &["220 mx\r\n", HELLO, "530 authentication required\r\n"],
            Auth,
            "530",
        ),
        (&["220 mx\r\n", HELLO, "553 sender\r\n"], Config, "553"),
        (
            &["220 mx\r\n", HELLO, OK, "550 no such user\r\n"],
            Config,
            "550",
        ),
        // The second recipient.
        (
            &["220 mx\r\n", HELLO, OK, OK, "550 no such user\r\n"],
            Config,
            "550",
        ),
        (
            &["220 mx\r\n", HELLO, OK, OK, "451 greylisted\r\n"],
            Retryable,
            "451",
        ),
        (
            &["220 mx\r\n", HELLO, OK, OK, OK, "554 no\r\n"],
            Permanent,
            "554",
        ),
        (
            &["220 mx\r\n", HELLO, OK, OK, OK, GO, "554 spam\r\n"],
            Permanent,
            "554",
        ),
        // One event cannot be split.
        (
            &["220 mx\r\n", HELLO, OK, OK, OK, GO, "552 too large\r\n"],
            Permanent,
            "552",
        ),
        (
            &["220 mx\r\n", HELLO, OK, OK, OK, GO, "452 full\r\n"],
            Retryable,
            "452",
        ),
        (&["HTTP/1.1 400 Bad Request\r\n"], Retryable, "answer"),
    ];
    for (script, class, code) in rows {
        let server = Scripted::start(vec![script.to_vec()]).await;
        let failure = failure(server.smtp(json!({})).send(&one()).await);
        assert_eq!(
            (failure.class, &*failure.code),
            (class, code),
            "{script:?}: {failure}"
        );
    }
    let both = batch(BatchClass::Audit, &[&pair()[0], &pair()[1]]);
    let large = vec!["220 mx\r\n", HELLO, OK, OK, OK, GO, "552 too large\r\n"];
    let server = Scripted::start(vec![large]).await;
    assert_eq!(
        failure(server.smtp(json!({})).send(&both).await).class,
        Split
    );
}

/// The server takes the mail and ends the connection each time.
#[tokio::test]
async fn a_mail_without_a_confirmation_is_sent_eight_times() {
    const OK: &str = "250 ok\r\n";
    let taken = vec!["220 mx\r\n", HELLO, OK, OK, OK, "354 go\r\n"];
    let server = Scripted::start(vec![taken; 8]).await;
    let smtp = server.smtp(json!({}));
    let both = batch(BatchClass::Audit, &[&pair()[0], &pair()[1]]);
    for _ in 0..7 {
        let failure = failure(smtp.send(&both).await);
        assert!(failure.class == Unknown && failure.after.is_some());
    }
    // Each event is given up, so that none of them is sent alone.
    let last = smtp.send(&both).await;
    assert_eq!(classes(last), [Some(Permanent), Some(Permanent)]);
    let heard = server.heard().await;
    assert_eq!(heard.matches("DATA\r\n").count(), 8);
    assert_eq!(
        heard.matches("Auto-Submitted: auto-generated\r\n").count(),
        8
    );
}

#[tokio::test]
async fn no_response_after_the_mail_is_unknown_and_before_it_is_not() {
    const OK: &str = "250 ok\r\n";
    let whole = vec!["220 mx\r\n", HELLO, OK, OK, OK, "354 go\r\n"];
    let server = Scripted::start(vec![whole]).await;
    let lost = failure(server.smtp(json!({})).send(&one()).await);
    assert_eq!(lost.class, Unknown, "{lost}");
    let server = Scripted::start(vec![vec!["220 mx\r\n", HELLO]]).await;
    let lost = failure(server.smtp(json!({})).send(&one()).await);
    assert_eq!(lost.class, Retryable, "{lost}");
    // A port where nothing listens.
    let config = json!({
        "host": "127.0.0.1", "port": 1, "security": "none", "from": "a@example.com", "to": ["b@example.com"],
    });
    let away = failure(target(&TYPE, &config, |_| {}).send(&one()).await);
    assert_eq!(away.class, Retryable);
}

#[tokio::test]
async fn starttls_is_required_and_nothing_is_said_without_it() {
    let without = vec!["220 mx\r\n", HELLO];
    let refused = vec![
        "220 mx\r\n",
        "250-mx\r\n250 STARTTLS\r\n",
        "454 not now\r\n",
    ];
    // Responses that a stranger puts behind the one that begins TLS are dropped with the connection.
    let injected = vec![
        "220 mx\r\n",
        "250-mx\r\n250 STARTTLS\r\n",
        "220 go\r\n250-mx\r\n250 AUTH PLAIN\r\n235 ok\r\n250 ok\r\n250 ok\r\n250 ok\r\n354 go\r\n250 ok\r\n",
    ];
    for (script, class, code) in [
        (without, Config, "starttls"),
        (refused, Retryable, "454"),
        (injected, Retryable, "connection"),
    ] {
        let server = Scripted::start(vec![script.clone()]).await;
        let more = json!({"security": "starttls", "username": "u", "password": "s3cr3t-password"});
        let smtp = server.smtp(more);
        let failed = failure(smtp.send(&one()).await);
        assert_eq!(
            (failed.class, &*failed.code),
            (class, code),
            "{script:?}: {failed}"
        );
        assert!(!format!("{smtp:?}").contains("s3cr3t"));
        let heard = server.heard().await;
        assert!(
            !heard.contains("AUTH") && !heard.contains("MAIL"),
            "{heard}"
        );
    }
}

#[tokio::test]
async fn endless_responses_end() {
    let endless: &'static str = Box::leak("x".repeat(1 << 20).into_boxed_str());
    let server = Scripted::start(vec![vec![endless]]).await;
    let failed = failure(server.smtp(json!({})).send(&one()).await);
    assert_eq!(failed.class, Retryable);
    assert!(failed.text.contains("too long"), "{failed}");
}

#[test]
fn no_text_of_an_event_or_a_setting_becomes_a_header() {
    let smtp = opened(&json!({"subject": "shop"}));
    let hostile = event(
        3,
        "api_key_created.v0",
        &json!({"id": HOSTILE, "name": HOSTILE}),
    );
    let alarming = crate::target::message::tests::alert("critical", false, HOSTILE);
    let alarming = event(4, "alert_fired.v0", &alarming);
    for envelope in [&hostile, &alarming] {
        let mail = text_of(&smtp, &[envelope]);
        let (head, _) = mail.split_once("\r\n\r\n").unwrap();
        let mut names: Vec<_> = head
            .split("\r\n")
            .filter(|line| !line.starts_with([' ', '\t']))
            .map(|line| line.split(':').next().unwrap().to_ascii_lowercase())
            .collect();
        names.sort_unstable();
        let expected = [
            "auto-submitted",
            "content-type",
            "date",
            "from",
            "message-id",
            "mime-version",
            "subject",
            "to",
        ];
        assert_eq!(names, expected, "{head}");
        assert!(mail.is_ascii());
        assert!(
            mail.split("\r\n")
                .all(|line| line.len() <= 998 && !line.contains(['\r', '\n']))
        );
    }
}

#[test]
fn the_identity_of_a_mail_is_that_of_its_events() {
    let smtp = opened(&json!({}));
    let [one, two] = alerts();
    let id = |events: &[&str]| {
        let mail = text_of(&smtp, events);
        let line = mail
            .split("\r\n")
            .find(|line| line.starts_with("Message-ID: "));
        line.unwrap().to_owned()
    };
    assert_eq!(id(&[&one, &two]), id(&[&one, &two]));
    assert_ne!(id(&[&one, &two]), id(&[&one]));
    assert!(id(&[&one]).ends_with("@example.com>"));
    let subject = |events: &[&str]| {
        let mail = text_of(&smtp, events);
        let line = mail
            .split("\r\n")
            .find(|line| line.starts_with("Subject: "));
        line.unwrap().to_owned()
    };
    assert_eq!(
        subject(&[&two]),
        "Subject: culvert: [resolved] 25 % of the requests failed"
    );
    assert_eq!(subject(&[&one, &two]), "Subject: culvert: 2 events");
}

fn opened(more: &Value) -> Smtp {
    let mut config = valid();
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    let settings = crate::tests::fake::local_settings();
    let stored = check(&config, &settings, &OsEntropy).unwrap().stored;
    let context = crate::tests::fake::Named::context(&settings);
    smtp(&stored, &context).unwrap()
}

fn text_of(smtp: &Smtp, envelopes: &[&str]) -> String {
    let batch = batch(BatchClass::Audit, envelopes);
    let letters: Vec<_> = batch
        .deliveries()
        .map(|delivery| Letter {
            delivery,
            message: Message::of(delivery, &smtp.public_base),
        })
        .collect();
    let letters: Vec<_> = letters.iter().collect();
    let id = smtp.message_id(&letters);
    let mail = smtp.mail(&id, &letters).unwrap();
    String::from_utf8(mail).unwrap()
}

fn valid() -> Value {
    json!({
        "host": "mail.example", "username": "u", "password": "s3cr3t-password", "from": "culvert@example.com",
        "to": ["a@example.com"],
    })
}

#[test]
fn invalid_fields_are_refused_and_the_password_is_kept_with_its_user_and_hidden() {
    let many: Vec<_> = (0..21).map(|at| format!("a{at}@example.com")).collect();
    assert_refused(
        &TYPE,
        &valid(),
        &[
            json!({"host": ""}),
            json!({"host": "mail.example/s3cr3t"}),
            json!({"host": "user@mail.example"}),
            json!({"host": "mail.example#"}),
            json!({"host": "mail.example:25"}),
            json!({"host": "10.0.0.1"}),
            json!({"host": "::1"}),
            json!({"host": "mail.example\r\nQUIT"}),
            json!({"port": 0}),
            json!({"port": 70_000}),
            json!({"security": "ssl"}),
            // A password over a plain connection.
            json!({"security": "none"}),
            json!({"username": null}),
            json!({"password": null}),
            json!({"username": "u\r\nx"}),
            json!({"password": "s3cr3t\r\nx"}),
            json!({"from": "culvert"}),
            json!({"from": "a@example.com\r\nBcc: b@example.com"}),
            json!({"from": "a@example.com> SIZE=1"}),
            json!({"from": "\"a b\"@example.com"}),
            json!({"to": []}),
            json!({"to": many}),
            json!({"to": ["a@example.com", "b@example.com,c@example.com"]}),
            json!({"to": ["ä@example.com"]}),
            json!({"subject": "a\r\nBcc: b@example.com"}),
            json!({"subject": "x".repeat(101)}),
            json!({"cc": ["s3cr3t@example.com"]}),
        ],
    );
    let (stored, shown) = stored_and_shown(&TYPE, &valid());
    assert_eq!(shown["password"], Value::Null);
    let mut given = valid();
    given["password"] = Value::Null;
    assert_eq!(
        (TYPE.merge)(&stored, given.clone())["password"],
        "s3cr3t-password"
    );
    given["username"] = "other".into();
    assert_eq!((TYPE.merge)(&stored, given)["password"], Value::Null);
    // Plain connections need the setting.
    let plain = json!({
        "host": "mail.example", "security": "none", "from": "a@example.com", "to": ["b@example.com"],
    });
    let refusal = check(&plain, &TargetSettings::default(), &OsEntropy).unwrap_err();
    assert!(
        refusal.message.contains("allow_plain_http"),
        "{}",
        refusal.message
    );
    let local = crate::tests::fake::local_settings();
    check(&plain, &local, &OsEntropy).unwrap();
}
